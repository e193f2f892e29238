"""TRL's optimiser step on our batches, for `make bench`; TRL is optional (requirements/bench.txt)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from policy.batch import Batch
from policy.config import GrpoConfig, LearnerConfig


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
        # As TRL lays it out: tokens before the first reply padded on the left, the rest on the right, the user's words masked out.
        first_B = batch.loss_mask_BT.int().argmax(dim=1)
        rows = list(zip(batch.token_ids_BT, batch.loss_mask_BT, first_B, batch.needed_B, strict=True))
        prompts = [ids_T[:first] for ids_T, _, first, _ in rows]
        completions = [ids_T[first:needed] for ids_T, _, first, needed in rows]
        masks = [mask_T[first:needed].long() for _, mask_T, first, needed in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        inputs = {
            "prompt_ids": pad(prompts, batch_first=True, padding_side="left"),
            "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
            "completion_ids": pad(completions, batch_first=True),
            "completion_mask": pad([torch.ones_like(ids) for ids in completions], batch_first=True),
            "tool_mask": pad(masks, batch_first=True),
            "advantages": advantages_BT.gather(1, first_B[:, None])[:, 0].float(),
            "num_items_in_batch": torch.tensor(float(batch.num_trained)),
        }
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
