"""Training: an optimiser step against TRL's on the same dialogues (speed, memory), and the logprobs of engine and trainer.

`python -m experiments.benchmarks.training` measures in a process of its own: JSON in its argument, JSON printed.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from experiments.benchmarks.figures import Figure, Figures, Settings, dialogues, make_task, repeated
from policy.algorithms.algorithms import Grpo
from policy.batch import Batch, collate
from policy.config import ClusterConfig, EngineConfig, EngineDtype, GrpoConfig, LearnerConfig
from policy.engine.engine import Request, Sampling
from policy.engine.factory import make_engine
from policy.files import OwnFolder
from policy.learner import Learner
from policy.learner_group import LearnerGroup
from policy.model import load_model, token_logprobs_and_entropy
from policy.ranks import Ranks
from policy.rollout.dialogue import Rollout, RolloutGroup
from policy.rollout.session import ray_session
from simulator.dialogue import Speaker
from simulator.reward import final_emotion
from simulator.tokens import Chat


def measure(settings: Settings) -> Figures:
    """The two sides take turns in one process for speed; for memory each repeat is a process forked before its first step."""
    sides = {"ours": "", "trl": "trl_"} if find_spec("trl") is not None else {"ours": ""}
    speeds = run_measurement("speed", list(sides), settings)
    figures: Figures = {f"training.{prefix}tokens_per_s": Figure.of(speeds[side]) for side, prefix in sides.items()}
    for what, group in (("memory", "training"), ("wide-memory", "training.large_vocab")):
        for side, prefix in sides.items():
            figures[f"{group}.{prefix}peak_mb"] = Figure.of(run_measurement(what, [side], settings)[side])
    if "trl" in sides:
        return figures | {"training.ratio": Figure.ratio(speeds["ours"], speeds["trl"])}
    why_not = "TRL is not installed; make setup-bench, then run again"
    return figures | {f"training.{key}": why_not for key in ("trl_tokens_per_s", "ratio", "trl_peak_mb", "large_vocab.trl_peak_mb")}


def run_measurement(what: str, sides: Sequence[str], settings: Settings) -> dict[str, list[float]]:
    """One measurement by `main` in another process; every repeat by side."""
    asked = {"what": what, "folder": str(settings.folder()), "sides": list(sides), "repeats": settings.repeats, "threads": settings.threads}
    command = [sys.executable, "-m", "experiments.benchmarks.training", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{what} of {' and '.join(sides)} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def make_step(
    side: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Batch, *, micro_rows: int
) -> Callable[[], object]:
    """One optimiser step on `batch`, to be called repeatedly."""
    algorithm = Grpo(GrpoConfig())
    batch = algorithm.add_advantages(batch)
    if side == "ours":
        learner = Learner(LearnerConfig(micro_batch_rows=micro_rows), algorithm, model)
        return lambda: learner.update(batch)
    # By name, as the core imports no study.
    trl = importlib.import_module("studies.speed.trl_step").TrlStep(model, tokenizer, rows=batch.num_rollouts, micro_rows=micro_rows)
    return lambda: trl.update(batch, batch.advantages_BT)


def speeds(folder: Path, sides: list[str], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each side, in turn, padding not counted."""
    _, tokenizer = load_model(folder)
    batch = real_batch(tokenizer)
    num_tokens = int(batch.needed_B.sum())
    steps = [make_step(side, load_model(folder)[0], tokenizer, batch, micro_rows=8) for side in sides]

    def measure_sides(number: int) -> list[float]:
        found = []
        for step in steps:
            started = time.perf_counter()
            step()
            found.append(num_tokens / (time.perf_counter() - started))
        return found

    return dict(zip(sides, map(list, zip(*repeated(measure_sides, repeats), strict=True)), strict=True))


def peaks(folder: Path, side: str, repeats: int, *, wide: bool) -> list[float]:
    """MiB that a first optimiser step takes beyond model and batch; `wide` is a small random Qwen2 with Qwen2.5's vocabulary."""
    model, tokenizer = load_model(folder)
    batch = real_batch(tokenizer, num_groups=2 if wide else 8)
    if wide:
        torch.manual_seed(0)
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=151_936, **sizes, max_position_embeddings=1024, tie_word_embeddings=True))
    step = make_step(side, model, tokenizer, batch, micro_rows=4 if wide else 8)

    def peak_mb(number: int) -> float:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                step()
                grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
                os.write(writing, str(grown_kb / 1024).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading) as pipe:
            if answer := pipe.read():
                return float(answer)
        raise RuntimeError("the step whose memory is measured must succeed, got no answer of its process")

    return repeated(peak_mb, repeats, warm_ups=0)


def real_batch(tokenizer: Any, *, num_groups: int = 8, group_size: int = 8) -> Batch:
    """Dialogues of scripted agents as a batch, every reply's tokens under the loss mask, rollout_logprobs of -1 nat."""
    chat, groups = Chat(tokenizer), []
    for i, siblings in enumerate(dialogues(num_groups, group_size, seed=0)):
        rollouts = []
        for dialogue in siblings:
            opening, *turns = dialogue.turns
            pieces = [(chat.opening_ids([{"role": "user", "content": opening.text}]), False)]
            for turn in turns:
                if turn.speaker is Speaker.AGENT:
                    pieces.append(([*tokenizer(turn.text, add_special_tokens=False)["input_ids"], chat.end_of_turn_id], True))
                else:
                    pieces.append(([*chat.closing_ids, *chat.continuation_ids(turn.text)], False))
            lengths, sampled = [len(ids) for ids, _ in pieces], np.array([is_sampled for _, is_sampled in pieces])
            loss_mask = np.repeat(sampled, lengths)
            rollouts.append(
                Rollout(
                    dialogue=dialogue,
                    token_ids=np.concatenate([np.array(ids, dtype=np.int32) for ids, _ in pieces]),
                    turn_ids=np.repeat(np.cumsum(sampled), lengths).astype(np.int16),
                    loss_mask=loss_mask,
                    rollout_logprobs=np.where(loss_mask, -1.0, 0.0).astype(np.float32),
                    reward=final_emotion(dialogue),
                    turn_rewards=(),
                    policy_versions=(0, 0),
                )
            )
        first = siblings[0]
        task = make_task(first.scenario, first.difficulty, uid=str(i), group_size=group_size, seed=first.seed)
        groups.append(RolloutGroup(task=task, rollouts=tuple(rollouts)))
    return collate(groups)


def measure_ranks(settings: Settings) -> Figures:
    """Two ranks and one process in turn, with `threads` for each rank and twice as many for the one."""
    folder = settings.folder()
    algorithm, batch = Grpo(GrpoConfig()), real_batch(load_model(folder)[1])
    batch, before = algorithm.add_advantages(batch), torch.get_num_threads()
    num_tokens = int(batch.needed_B.sum())

    def tokens_per_s(learner: Learner | LearnerGroup, num_threads: int) -> float:
        torch.set_num_threads(num_threads)
        started = time.perf_counter()
        learner.update(batch)
        return num_tokens / (time.perf_counter() - started)

    def over_one(*, sharded: bool) -> Figure:
        one = rank_learner(folder, LearnerConfig(), Ranks())
        torch.set_num_threads(2 * settings.threads)  # which the ranks divide
        two = LearnerGroup(partial(rank_learner, folder), LearnerConfig(ranks=2, sharded=sharded), ClusterConfig())
        with closing(two):
            pairs = repeated(lambda _: (tokens_per_s(two, settings.threads), tokens_per_s(one, 2 * settings.threads)), settings.repeats)
        return Figure.ratio(*zip(*pairs, strict=True))

    try:
        with OwnFolder("attune-") as place, ray_session(ClusterConfig(), num_cpus=2, folder=Path(place)):
            return {"ranks.replicas_over_one": over_one(sharded=False), "ranks.sharded_over_one": over_one(sharded=True)}
    finally:
        torch.set_num_threads(before)


def rank_learner(folder: Path, config: LearnerConfig, ranks: Ranks) -> Learner:
    """The learner of one rank, without a run around it."""
    return Learner(config, Grpo(GrpoConfig()), load_model(folder)[0], ranks=ranks)


@torch.no_grad()
def measure_mismatch(settings: Settings) -> Figures:
    """Mean absolute difference in nats between an engine's logprobs of its tokens and a float32 trainer's, the engine in two dtypes."""
    folder = settings.folder()
    model, tokenizer = load_model(folder)
    chat, sampling = Chat(tokenizer), Sampling(max_tokens=40, temperature=1.0)

    def mean_difference(seed: int) -> float:
        # Openings of dialogues, half of them after a first exchange.
        prompts = [
            chat.opening_ids(replace(dialogue, turns=dialogue.turns[: 1 + 2 * (i % 2)]).messages())
            for group in dialogues(16, 4, seed=seed)
            for i, dialogue in enumerate(group)
        ]
        requests = [Request(prompt_ids=ids, sampling=sampling, seed=1000 * seed + i) for i, ids in enumerate(prompts)]
        differences = []
        for ids, completion in zip(prompts, asyncio.run(engine.generate_all(requests)), strict=True):
            token_ids_BT = torch.tensor([[*ids, *completion.token_ids]])
            scored_BT = torch.arange(token_ids_BT.shape[1])[None] >= len(ids)
            logprobs_N, _ = token_logprobs_and_entropy(model, token_ids_BT, torch.ones_like(scored_BT), scored_BT)
            differences.append((logprobs_N - torch.tensor(completion.logprobs)).abs())
        return float(torch.cat(differences).mean())

    found: Figures = {}
    for dtype, key in ((EngineDtype.FLOAT32, "mismatch.fp32_mean_abs"), (EngineDtype.BFLOAT16, "mismatch.bf16_mean_abs")):
        engine = make_engine(EngineConfig(engine=settings.engine, dtype=dtype), folder, max_context=512)
        try:
            found[key] = Figure.of(repeated(mean_difference, settings.repeats, warm_ups=0))
        finally:
            engine.close()
    return found


def main() -> None:
    """One measurement for `run_measurement`."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked["threads"])
    folder, sides, repeats = Path(asked["folder"]), asked["sides"], asked["repeats"]
    if asked["what"] == "speed":
        print(json.dumps(speeds(folder, sides, repeats)))
    else:
        print(json.dumps({side: peaks(folder, side, repeats, wide=asked["what"] == "wide-memory") for side in sides}))


if __name__ == "__main__":
    main()
