"""Rollouts and their driver: tokens per second against one offline call of the same engines, weight updates, CPU time of the driver."""

from __future__ import annotations

import functools
import importlib.util
import os
import pickle
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from experiments.benchmarks.figures import Figure, Figures, Settings, repeated, tasks_of_round
from policy.config import EngineConfig, EngineKind, RolloutConfig
from policy.engine.engine import Request, Sampling
from policy.engine.weights import pack_weights
from policy.model import load_model
from policy.rollout.dialogue import sampling_seed
from policy.rollout.pool import RolloutPool
from simulator.dialogue import Dialogue, Reaction, Speaker, Turn, UserSimulator
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Difficulty, Scenario
from simulator.user import make_user
from simulator.world import load_bank

NUM_GROUPS, GROUP_SIZE = 8, 8
"""64 dialogues at once."""
DRIVER_ENGINES = 2
LARGE_MB = 256
"""MiB of weights that separate the cost of bytes from that of calls."""


class EchoUser:
    """A user that costs nothing and never ends a dialogue: it isolates the engines' side of a rollout."""

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        dialogue = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed)
        return dialogue.then(Turn(speaker=Speaker.USER, text=scenario.opening, emotion=40))

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """A point up after a long reply, a point down after a short one."""
        change = 1 if len(reply.split()) >= 4 else -1
        text = f"i see. that is thing number {dialogue.num_replies + 1} about {dialogue.scenario.other}, and i still do not know."
        return Reaction(turn=Turn(speaker=Speaker.USER, text=text, emotion=dialogue.emotion + change, change=change))


def make_pool(
    settings: Settings, folder: Path, user: Callable[[], UserSimulator], *, num_engines: int, engine_process: bool = False
) -> RolloutPool:
    """A pool of engines that sample by the weights in a folder."""
    config = RolloutConfig(num_engines=num_engines, threads_per_engine=settings.threads)
    engine = EngineConfig(engine=settings.engine, engine_process=engine_process)
    return RolloutPool(config, engine, model_folder=folder, user_factory=user, scenarios=load_bank, seed=0)


class Rounds(NamedTuple):
    """Measurements of a pool, one entry a round: over all engines, and seconds from a trainer's tensors to all acknowledgements."""

    rollout_tokens_per_s: tuple[float, ...]
    offline_tokens_per_s: tuple[float, ...]
    update_s: tuple[float, ...]


def measure_rounds(settings: Settings, *, num_engines: int, engine_process: bool) -> Rounds:
    """Rolls out groups with the embedded user, then continues the same prompts with the same seeds in one offline call per engine."""
    from safetensors.torch import load_file

    folder, config = settings.folder(), RolloutConfig()
    sampling = Sampling(max_tokens=config.max_new_tokens, temperature=config.temperature)

    def run_round(number: int) -> tuple[float, float]:
        pool.reset_cache()
        started = time.perf_counter()
        pool.submit(tasks_of_round(number, NUM_GROUPS, GROUP_SIZE))
        groups = pool.ready(NUM_GROUPS)
        rollout_s = time.perf_counter() - started
        # With groups of one size the pool deals them out in turn.
        prompts: list[list[Request]] = [[] for _ in range(num_engines)]
        for i, group in enumerate(groups):
            for sibling, rollout in enumerate(group.rollouts):
                is_first = rollout.loss_mask & ~np.concatenate([[False], rollout.loss_mask[:-1]])
                for turn, first in enumerate(np.flatnonzero(is_first)):
                    seed = sampling_seed(group.task.seed, sibling, turn)
                    prompts[i % num_engines].append(Request(prompt_ids=rollout.token_ids[:first].tolist(), sampling=sampling, seed=seed))
        pool.reset_cache()
        started = time.perf_counter()
        completions = pool.generate_all(prompts)
        offline_s = time.perf_counter() - started
        num_sampled = sum(rollout.num_sampled for group in groups for rollout in group.rollouts)
        return num_sampled / rollout_s, sum(len(completion.token_ids) for batch in completions for completion in batch) / offline_s

    def update(version: int) -> float:
        tensors = [item for path in sorted(folder.glob("*.safetensors")) for item in load_file(path).items()]
        started = time.perf_counter()
        pool.load_weights(tensors, version + 1)
        return time.perf_counter() - started

    user = functools.partial(make_user, "rule", RuleUserConfig())
    with make_pool(settings, folder, user, num_engines=num_engines, engine_process=engine_process) as pool:
        rollout, offline = zip(*repeated(run_round, settings.repeats), strict=True)
        return Rounds(rollout, offline, tuple(repeated(update, settings.repeats, warm_ups=0)))


def measure(settings: Settings) -> Figures:
    """Whole dialogues against the offline ceiling of the engines that served them; the headline is one engine in its own process."""
    one, two = (measure_rounds(settings, num_engines=num, engine_process=False) for num in (1, 2))
    ours, theirs = two.rollout_tokens_per_s, one.rollout_tokens_per_s
    found: Figures = {
        "rollouts.engines.1": Figure.of(one.rollout_tokens_per_s),
        "rollouts.engines.2": Figure.of(two.rollout_tokens_per_s),
        "rollouts.in_process_ratio.1": Figure.ratio(one.rollout_tokens_per_s, one.offline_tokens_per_s),
        "rollouts.in_process_ratio.2": Figure.ratio(two.rollout_tokens_per_s, two.offline_tokens_per_s),
        # Not paired: from the slowest of two over the fastest of one to the contrary.
        "rollouts.two_over_one": Figure(
            median=statistics.median(ours) / statistics.median(theirs),
            lowest=min(ours) / max(theirs),
            highest=max(ours) / min(theirs),
            repeats=settings.repeats,
        ),
        "weights.sync_s": Figure.of(two.update_s),
    }
    if settings.engine is EngineKind.HF or importlib.util.find_spec("vllm") is None or (os.cpu_count() or 1) < 2 * settings.threads:
        reason = f"not measured: an engine in a process of its own needs vLLM and two cores for {settings.threads} threads"
        return found | {f"rollouts.{name}": reason for name in ("tokens_per_s", "ceiling_tokens_per_s", "ratio")}
    alone = measure_rounds(settings, num_engines=1, engine_process=True)
    return found | {
        "rollouts.tokens_per_s": Figure.of(alone.rollout_tokens_per_s),
        "rollouts.ceiling_tokens_per_s": Figure.of(alone.offline_tokens_per_s),
        "rollouts.ratio": Figure.ratio(alone.rollout_tokens_per_s, alone.offline_tokens_per_s),
    }


def measure_driver(settings: Settings) -> Figures:
    """CPU time of this process, Ray's threads included, and bytes: for dialogues with a user that costs nothing, and for weight updates."""
    # One update alone is too short for a clock of CPU time.
    folder, num, num_updates = settings.folder(), NUM_GROUPS * GROUP_SIZE, 10

    def run(number: int) -> tuple[float, float, float]:
        started = time.process_time()
        pool.submit(tasks_of_round(number, NUM_GROUPS, GROUP_SIZE))
        groups = pool.ready(NUM_GROUPS)
        dialogues_s = time.process_time() - started
        kilobytes = sum(len(pickle.dumps(group)) for group in groups) / 1024
        named = list(load_model(folder)[0].named_parameters())
        started = time.process_time()
        for version in range(num_updates):
            pool.load_weights(named, 1 + number * num_updates + version)
        return 1e3 * dialogues_s / num, kilobytes / num, 1e3 * (time.process_time() - started) / num_updates

    def pack(version: int) -> float:
        started = time.process_time()
        pack_weights(weights, version=version)
        return 1e3 * (time.process_time() - started) / LARGE_MB

    with make_pool(settings, folder, EchoUser, num_engines=DRIVER_ENGINES) as pool:
        dialogue_ms, kilobytes, update_ms = zip(*repeated(run, settings.repeats), strict=True)
    weights = [(f"w{i}", torch.randn(1 << 22)) for i in range(LARGE_MB // 16)]
    return {
        "driver.cpu_ms_per_dialogue": Figure.of(dialogue_ms),
        "driver.kb_per_dialogue": Figure.of(kilobytes),
        "driver.cpu_ms_per_update": Figure.of(update_ms),
        "driver.cpu_ms_per_weight_mb": Figure.of(repeated(pack, settings.repeats, warm_ups=0)),
    }
