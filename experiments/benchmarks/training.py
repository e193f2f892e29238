"""Training: an optimiser step against TRL's on the same dialogues (speed, memory), and the logprobs of engine and trainer.

`python -m experiments.benchmarks.training WHAT FOLDER` measures one side in a process of its own and prints JSON. TRL is optional
(requirements/bench.txt).
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib.util
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from experiments.benchmarks.figures import Figures, Settings, dialogues, figure, ratios, repeated
from policy.algorithms.algorithms import Grpo
from policy.batch import Batch, collate
from policy.config import EngineConfig, EngineDtype, GrpoConfig, LearnerConfig
from policy.engine.engine import Request, Sampling
from policy.engine.factory import make_engine
from policy.learner import Learner
from policy.model import load_model, token_logprobs_and_entropy
from policy.rollout.chat import Chat
from policy.rollout.dialogue import PlainTask, Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Speaker
from simulator.reward import final_emotion

LARGE_VOCABULARY = 151_936
"""Qwen2.5's."""
NO_TRL = "TRL is not installed; make setup-bench, then run again"
NUM_PROMPTS, MAX_TOKENS, MAX_CONTEXT = 64, 40, 512
"""Of the comparison of logprobs."""
Step = Callable[[], object]


def measure(settings: Settings) -> Figures:
    """The two sides take turns in one process for speed; for memory each repeat is a process forked before its first step."""
    has_trl = importlib.util.find_spec("trl") is not None
    sides = {"ours": "", "trl": "trl_"} if has_trl else {"ours": ""}
    settings.progress(f"tokens per second of {' and '.join(sides)}")
    speeds = _run("speed", list(sides), settings)
    figures: Figures = {f"training.{prefix}tokens_per_s": figure(speeds[side]) for side, prefix in sides.items()}
    for what, group in (("memory", "training"), ("wide-memory", "training.large_vocab")):
        for side, prefix in sides.items():
            settings.progress(f"{what} of {side}")
            figures[f"{group}.{prefix}peak_mb"] = figure(_run(what, [side], settings)[side])
    if has_trl:
        return figures | {"training.ratio": ratios(speeds["ours"], speeds["trl"])}
    return figures | {f"training.{key}": NO_TRL for key in ("trl_tokens_per_s", "ratio", "trl_peak_mb", "large_vocab.trl_peak_mb")}


def _run(what: str, sides: Sequence[str], settings: Settings) -> dict[str, list[float]]:
    """One measurement by `main` in another process."""
    command = [sys.executable, "-m", "experiments.benchmarks.training", what, str(settings.folder()), "--sides", *sides]
    command += ["--repeats", str(settings.repeats), "--threads", str(settings.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{what} of {' and '.join(sides)} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def make_step(side: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Batch, *, micro_rows: int) -> Step:
    """One optimiser step on `batch`, to be called repeatedly."""
    algorithm = Grpo(GrpoConfig())
    batch = algorithm.add_advantages(batch)
    if side == "ours":
        learner = Learner(LearnerConfig(micro_batch_rows=micro_rows), algorithm, model)
        return lambda: learner.update(batch)
    trl = TrlStep(model, tokenizer, rows=batch.num_rollouts, micro_rows=micro_rows)
    assert batch.advantages_BT is not None
    advantages_BT = batch.advantages_BT
    return lambda: trl.update(batch, advantages_BT)


def speeds(folder: Path, sides: list[str], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each side, in turn, padding not counted."""
    _, tokenizer = load_model(folder)
    batch = real_batch(tokenizer)
    num_tokens = int(batch.needed_B.sum())
    steps = {side: make_step(side, load_model(folder)[0], tokenizer, batch, micro_rows=8) for side in sides}

    def measure_sides(number: int) -> list[float]:
        found = []
        for step in steps.values():
            started = time.perf_counter()
            step()
            found.append(num_tokens / (time.perf_counter() - started))
        return found

    return dict(zip(sides, map(list, zip(*repeated(measure_sides, repeats), strict=True)), strict=True))


def peaks(folder: Path, side: str, repeats: int, *, wide: bool) -> list[float]:
    """MiB that a first optimiser step takes beyond the model and the batch.

    Args:
        wide: a small Qwen2 with a vocabulary of a published size and random weights, instead of the policy.
    """
    model, tokenizer = load_model(folder)
    batch = real_batch(tokenizer, num_groups=2 if wide else 8)
    if wide:
        torch.manual_seed(0)
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=LARGE_VOCABULARY, **sizes, max_position_embeddings=1024, tie_word_embeddings=True))
    step = make_step(side, model, tokenizer, batch, micro_rows=4 if wide else 8)

    def peak_mb(number: int) -> float:
        """Of a process forked before any step was taken."""
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
    chat = Chat(tokenizer)
    groups = []
    for i, siblings in enumerate(dialogues(num_groups, group_size, seed=0)):
        first = siblings[0]
        scenario_id = first.scenario.scenario_id
        task = PlainTask(uid=str(i), scenario_id=scenario_id, difficulty=first.difficulty, group_size=group_size, seed=first.seed)
        groups.append(RolloutGroup(task=task, rollouts=tuple(_rollout(dialogue, chat, tokenizer) for dialogue in siblings)))
    return collate(groups)


def _rollout(dialogue: Dialogue, chat: Chat, tokenizer: Any) -> Rollout:
    opening, *turns = dialogue.turns
    pieces = [(chat.opening_ids([{"role": "user", "content": opening.text}]), False)]
    for turn in turns:
        if turn.speaker is Speaker.AGENT:
            pieces.append(([*tokenizer(turn.text, add_special_tokens=False)["input_ids"], chat.end_of_turn_id], True))
        else:
            pieces.append(([*chat.closing_ids, *chat.continuation_ids(turn.text)], False))
    lengths, sampled = [len(ids) for ids, _ in pieces], np.array([is_sampled for _, is_sampled in pieces])
    loss_mask = np.repeat(sampled, lengths)
    return Rollout(
        dialogue=dialogue,
        token_ids=np.concatenate([np.array(ids, dtype=np.int32) for ids, _ in pieces]),
        role_ids=loss_mask.astype(np.int8),
        turn_ids=np.repeat(np.cumsum(sampled), lengths).astype(np.int16),
        loss_mask=loss_mask,
        rollout_logprobs=np.where(loss_mask, -1.0, 0.0).astype(np.float32),
        reward=final_emotion(dialogue),
        turn_rewards=(),
        policy_versions=(0, 0),
    )


class TrlStep:
    """One optimiser step by TRL, without its rollouts: same rows, advantages, loss (mean over all tokens), clipping and AdamW as `Learner`.

    Args:
        rows: rollouts of a batch, a multiple of `micro_rows`.
        micro_rows: rollouts of a forward pass.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, rows: int, micro_rows: int) -> None:
        # TRL warns of our vLLM, which is not used here.
        warnings.filterwarnings("ignore", module=r"trl\.")
        import pyarrow
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        class GivenInputs(GRPOTrainer):
            """The trainer, with given inputs in place of generated ones."""

            def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
                return inputs

        assert rows % micro_rows == 0, f"rows must be a multiple of {micro_rows}, got {rows}"
        self.micro_rows = micro_rows
        learner, algorithm = LearnerConfig(), GrpoConfig()
        logging.getLogger("trl").setLevel(logging.ERROR)
        arguments = GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="attune-trl-"),
            per_device_train_batch_size=micro_rows,
            gradient_accumulation_steps=rows // micro_rows,
            num_generations=2,
            loss_type="dapo",
            beta=0.0,
            epsilon=algorithm.clip_low,
            epsilon_high=algorithm.clip_high,
            learning_rate=learner.lr,
            adam_beta1=learner.beta1,
            adam_beta2=learner.beta2,
            weight_decay=learner.weight_decay,
            max_grad_norm=learner.max_grad_norm,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        self.trainer = GivenInputs(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset(pyarrow.table({"prompt": ["-"] * rows}), fingerprint="random"),
            processing_class=tokenizer,
        )
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = rows // micro_rows

    def gradient(self, batch: Batch, advantages_BT: Tensor) -> None:
        """Accumulates the gradient of the whole batch."""
        inputs = trl_inputs(batch, advantages_BT)
        for start in range(0, batch.num_rollouts, self.micro_rows):
            piece = {name: value[start : start + self.micro_rows] if value.dim() else value for name, value in inputs.items()}
            self.trainer.training_step(self.trainer.model, piece, None)

    def update(self, batch: Batch, advantages_BT: Tensor) -> None:
        """One optimiser step."""
        trainer = self.trainer
        self.gradient(batch, advantages_BT)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def trl_inputs(batch: Batch, advantages_BT: Tensor) -> dict[str, Tensor]:
    """A batch as TRL lays it out: tokens before the first reply padded on the left, the rest on the right, the user's words masked out."""
    first_B = batch.loss_mask_BT.int().argmax(dim=1)
    rows = list(zip(batch.token_ids_BT, batch.loss_mask_BT, first_B, batch.needed_B, strict=True))
    prompts = [ids_T[:first] for ids_T, _, first, _ in rows]
    completions = [ids_T[first:needed] for ids_T, _, first, needed in rows]
    masks = [mask_T[first:needed].long() for _, mask_T, first, needed in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "prompt_ids": pad(prompts, batch_first=True, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
        "completion_ids": pad(completions, batch_first=True),
        "completion_mask": pad([torch.ones_like(ids) for ids in completions], batch_first=True),
        "tool_mask": pad(masks, batch_first=True),
        "advantages": advantages_BT.gather(1, first_B[:, None])[:, 0].float(),
        "num_items_in_batch": torch.tensor(float(batch.num_trained)),
    }


@torch.no_grad()
def measure_mismatch(settings: Settings) -> Figures:
    """Mean absolute difference in nats between an engine's logprobs of its tokens and a float32 trainer's, the engine in two dtypes."""
    folder = settings.folder()
    model, tokenizer = load_model(folder)
    chat, sampling = Chat(tokenizer), Sampling(max_tokens=MAX_TOKENS, temperature=1.0)

    def mean_difference(seed: int) -> float:
        # Openings of dialogues, half of them after a first exchange.
        prompts = [
            chat.opening_ids(replace(dialogue, turns=dialogue.turns[: 1 + 2 * (i % 2)]).messages())
            for group in dialogues(NUM_PROMPTS // 4, 4, seed=seed)
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
        settings.progress(f"an engine in {dtype}")
        engine = make_engine(EngineConfig(engine=settings.engine, dtype=dtype), folder, max_context=MAX_CONTEXT)
        try:
            found[key] = figure(repeated(mean_difference, settings.repeats, warm_ups=0))
        finally:
            engine.close()
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "memory", "wide-memory"))
    parser.add_argument("folder", type=Path, help="the policy's")
    parser.add_argument("--sides", nargs="+", choices=("ours", "trl"), default=["ours"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "speed":
        found = speeds(options.folder, options.sides, options.repeats)
    else:
        is_wide = options.what == "wide-memory"
        found = {side: peaks(options.folder, side, options.repeats, wide=is_wide) for side in options.sides}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
