"""TRL's GRPO step on a batch that is given to it, without its rollouts, rewards and generation. Needs TRL (requirements/bench.txt)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import pyarrow
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from policy.batch import Batch
from policy.config import GrpoConfig, LearnerConfig

# TRL finds fault with our vLLM, which is not asked here.
warnings.filterwarnings("ignore", module=r"trl\.")
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class TrlStep:
    """One optimiser step by TRL: same rows, advantages, loss (mean over all tokens), clipping and AdamW as `Learner.update`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, rows: int, micro_rows: int) -> None:
        """Args:
        rows: rollouts of a batch, a multiple of `micro_rows`.
        micro_rows: rollouts of a forward pass.
        """
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
        self.trainer = _GivenInputs(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset(pyarrow.table({"prompt": ["-"] * rows}), fingerprint="made up"),
            processing_class=tokenizer,
        )
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = rows // micro_rows

    def gradient(self, batch: Batch, advantages_BT: Tensor) -> None:
        """Adds up the gradient of the whole batch."""
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


class _GivenInputs(GRPOTrainer):
    """The trainer, with inputs as they are given in place of generated ones."""

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs


def trl_inputs(batch: Batch, advantages_BT: Tensor) -> dict[str, Tensor]:
    """A batch as TRL lays it out: what precedes the first reply padded on the left, the rest on the right, the user's words masked out."""
    first_B = batch.loss_mask_BT.int().argmax(dim=1)
    prompts, completions, masks = [], [], []
    for token_ids_T, mask_T, first, needed in zip(batch.token_ids_BT, batch.loss_mask_BT, first_B, batch.needed_B, strict=True):
        prompts.append(token_ids_T[:first])
        completions.append(token_ids_T[first:needed])
        masks.append(mask_T[first:needed].long())
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
