"""How close rollouts come to their engines: tokens per second of whole dialogues against one offline call on the same prompts.

Whole dialogues against one offline call on the same prompts, on one engine and on two; and how long new weights take to reach them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.benchmarks.figures import Figures, Settings, figure, ratio_of_medians, ratios
from policy.config import EngineConfig, EngineKind, RolloutConfig
from policy.engine.engine import Request, Sampling
from policy.rollout.dialogue import PlainTask, Rollout, RolloutGroup, sampling_seed
from policy.rollout.pool import RolloutPool
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Difficulty, Scenario, Split
from simulator.user import Reaction, UserSimulator
from simulator.users import make_user
from simulator.world import load_bank


class EchoUser:
    """A user that costs nothing and never ends a dialogue: it tells the engines' side of a rollout alone."""

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """Says the scenario's opening."""
        dialogue = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed)
        return dialogue.then(Turn(speaker=Speaker.USER, text=scenario.opening, emotion=40))

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """Gains a point for a long reply and loses one for a short reply."""
        change = 1 if len(reply.split()) >= 4 else -1
        text = f"i see. that is thing number {dialogue.num_replies + 1} about {dialogue.scenario.other}, and i still do not know."
        return Reaction(turn=Turn(speaker=Speaker.USER, text=text, emotion=dialogue.emotion + change, change=change))


USERS: dict[str, Callable[[], UserSimulator]] = {"echo": EchoUser, "rule": functools.partial(make_user, "rule", RuleUserConfig())}


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What was measured, one entry per round."""

    rollout_tokens_per_s: tuple[float, ...]
    """Sampled tokens of whole dialogues, over all engines."""
    offline_tokens_per_s: tuple[float, ...]
    """The same prompts continued in one offline call per engine."""
    update_s: tuple[float, ...]
    """Seconds from a trainer's tensors to every engine's acknowledgement."""


def bench_rollouts(
    model_folder: str | Path,
    *,
    user: str = "echo",
    num_groups: int = 8,
    group_size: int = 8,
    repeats: int = 5,
    config: RolloutConfig | None = None,
    engine_config: EngineConfig | None = None,
) -> Rounds:
    """Rolls out groups and then continues the same prompts with the same seeds in one offline call per engine, several times over.

    Args:
        user: a key of `USERS`.
        repeats: rounds that count; one before them does not.
    """
    config, engine_config = config or RolloutConfig(), engine_config or EngineConfig()
    with RolloutPool(config, engine_config, model_folder=model_folder, user_factory=USERS[user], scenarios=load_bank, seed=0) as pool:
        rounds = [_round(pool, tasks_of_round(num_groups, group_size, round_), config) for round_ in range(repeats + 1)][1:]
        rollout, offline = zip(*rounds, strict=True)
        update_s = tuple(_update(pool, Path(model_folder), version) for version in range(1, repeats + 1))
    return Rounds(rollout_tokens_per_s=rollout, offline_tokens_per_s=offline, update_s=update_s)


def tasks_of_round(num_groups: int, group_size: int, round_: int) -> list[PlainTask]:
    """Tasks of a round, with scenarios and seeds of their own."""
    scenarios = load_bank().scenarios(Split.TRAIN)
    return [
        PlainTask(
            uid=f"{round_}-{i}",
            scenario_id=scenarios[(num_groups * round_ + i) % len(scenarios)].scenario_id,
            difficulty=Difficulty.along(0.35),
            group_size=group_size,
            seed=1000 * round_ + i,
        )
        for i in range(num_groups)
    ]


def _round(pool: RolloutPool, tasks: Sequence[PlainTask], config: RolloutConfig) -> tuple[float, float]:
    pool.reset_cache()
    start = time.perf_counter()
    pool.submit(tasks)
    groups = pool.ready(len(tasks))
    rollout_s = time.perf_counter() - start
    # With groups of one size the pool deals them out in turn.
    prompts = [
        [request for group in groups[i :: config.num_engines] for request in _requests(group, config)] for i in range(config.num_engines)
    ]
    pool.reset_cache()
    start = time.perf_counter()
    completions = pool.generate_all(prompts)
    offline_s = time.perf_counter() - start
    num_sampled = sum(rollout.num_sampled for group in groups for rollout in group.rollouts)
    num_offline = sum(len(completion.token_ids) for batch in completions for completion in batch)
    return num_sampled / rollout_s, num_offline / offline_s


def _requests(group: RolloutGroup, config: RolloutConfig) -> list[Request]:
    sampling = Sampling(max_tokens=config.max_new_tokens, temperature=config.temperature)
    return [
        Request(prompt_ids=rollout.token_ids[:first].tolist(), sampling=sampling, seed=sampling_seed(group.task.seed, sibling, turn))
        for sibling, rollout in enumerate(group.rollouts)
        for turn, first in enumerate(_first_sampled(rollout))
    ]


def _first_sampled(rollout: Rollout) -> list[int]:
    """Where each reply begins."""
    before = np.concatenate([[False], rollout.loss_mask[:-1]])
    return np.flatnonzero(rollout.loss_mask & ~before).tolist()


def _update(pool: RolloutPool, model_folder: Path, version: int) -> float:
    from safetensors.torch import load_file

    tensors = [item for path in sorted(model_folder.glob("*.safetensors")) for item in load_file(path).items()]
    start = time.perf_counter()
    pool.load_weights(tensors, version)
    return time.perf_counter() - start


NUM_GROUPS, GROUP_SIZE = 8, 8
"""64 dialogues at once."""
NO_PROCESS = "not measured: an engine in a process of its own needs vLLM and two cores for {} threads"


def measure(settings: Settings) -> Figures:
    """With the embedded user. The offline call is the ceiling of the engines that served the dialogues.

    The headline is one engine in a process of its own, where its users have a core to themselves. Engines that share their process with
    their users are beside it; where all cores are engines', these sample more.
    """
    found: Figures = {}
    in_process = {num_engines: _rounds(settings, num_engines=num_engines, engine_process=False) for num_engines in (1, 2)}
    for num_engines, rounds in in_process.items():
        found[f"rollouts.engines.{num_engines}"] = figure(rounds.rollout_tokens_per_s)
        found[f"rollouts.in_process_ratio.{num_engines}"] = ratios(rounds.rollout_tokens_per_s, rounds.offline_tokens_per_s)
    found["rollouts.two_over_one"] = ratio_of_medians(in_process[2].rollout_tokens_per_s, in_process[1].rollout_tokens_per_s)
    found["weights.sync_s"] = figure(in_process[2].update_s)
    if settings.engine is EngineKind.HF or importlib.util.find_spec("vllm") is None or (os.cpu_count() or 1) < 2 * settings.threads:
        reason = NO_PROCESS.format(settings.threads)
        return found | {f"rollouts.{name}": reason for name in ("tokens_per_s", "ceiling_tokens_per_s", "ratio")}
    rounds = _rounds(settings, num_engines=1, engine_process=True)
    found["rollouts.tokens_per_s"] = figure(rounds.rollout_tokens_per_s)
    found["rollouts.ceiling_tokens_per_s"] = figure(rounds.offline_tokens_per_s)
    found["rollouts.ratio"] = ratios(rounds.rollout_tokens_per_s, rounds.offline_tokens_per_s)
    return found


def _rounds(settings: Settings, *, num_engines: int, engine_process: bool) -> Rounds:
    where = ", in a process of its own" if engine_process else ""
    settings.progress(f"{num_engines} engine{'s' if num_engines > 1 else ''}{where}, {settings.repeats} rounds")
    return bench_rollouts(
        settings.folder(),
        user="rule",
        num_groups=NUM_GROUPS,
        group_size=GROUP_SIZE,
        repeats=settings.repeats,
        config=RolloutConfig(num_engines=num_engines, threads_per_engine=settings.threads),
        engine_config=EngineConfig(engine=settings.engine, engine_process=engine_process),
    )
