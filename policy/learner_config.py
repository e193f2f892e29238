"""Settings of the optimiser step, apart from the learner itself so that reading them imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class LearnerConfig:
    """Settings of the optimiser step, `learner.*`."""

    lr: float = 5e-4
    """> 0; AdamW's step size after the warm-up. 5e-4 suits the embedded policy of two million parameters, 1e-6 one of billions."""
    beta1: float = 0.9
    """In [0, 1); how long the gradient is remembered."""
    beta2: float = 0.95
    """In [0, 1); how long its size is remembered. A run is 50-100 steps: a mean over the usual 1000 would never forget the first."""
    weight_decay: float = 0.0
    """>= 0; decoupled, on all parameters. The update is small enough without it, and it would pull at the prior."""
    warmup_steps: int = 0
    """>= 0; optimiser steps over which the step size grows linearly to `lr`."""
    lr_end: float = 1.0
    """In [0, 1]; share of `lr` that is left when the budget is spent. The step size falls in a straight line; 1 keeps it.
    A run that is resumed with a larger budget goes on at a larger one than it ended with."""
    max_grad_norm: float = 1.0
    """> 0; gradients are scaled down to this L2 norm."""
    num_minibatches: int = 1
    """>= 1; optimiser steps per pass over a batch. With 1 and one epoch every step is strictly on policy, if logprobs are
    recomputed or the present weights sampled the batch."""
    epochs: int = 1
    """>= 1; passes over a batch."""
    recompute_logprobs: bool | None = None
    """Whether the logprobs of the old policy are the trainer's own, at the price of a forward pass, or the engine's as they were sampled.
    Unset, an experiment takes the engine's where both sides compute in float32 and so agree to 1e-6 nats; a learner alone recomputes."""
    micro_batch_rows: int = 8
    """>= 1; rollouts per forward pass. Few rows of like length waste little on padding (on a CPU 8 took 2/3 of the time of 64)."""
    micro_batch_tokens: int = 16384
    """>= 1; padded tokens per forward pass, which bounds memory."""
    logit_chunk_mb: int = 64
    """>= 1; MiB of float32 logits held in one piece. More tokens than fit (large vocabularies) are scored piece by piece, which bounds
    memory at the price of computing their logits twice; what fits into one piece is not touched by it."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass, of a critic too, and compute the rest anew: a third more arithmetic for far less
    memory."""
    autocast: bool = False
    """Compute in bf16. A quarter cheaper, but the trainer then differs from a float32 engine by about 1e-3 instead of 1e-6 nats."""
    device: str = "cpu"
    """Where the model is trained (cpu, cuda, cuda:1). Engines of a local Ray take the first GPUs, so the last is the learner's."""

    def __post_init__(self) -> None:
        rules = {
            "be > 0 and finite": (lambda value: 0.0 < value < math.inf, ("lr", "max_grad_norm")),
            "be in [0, 1)": (lambda value: 0.0 <= value < 1.0, ("beta1", "beta2")),
            "be in [0, 1]": (lambda value: 0.0 <= value <= 1.0, ("lr_end",)),
            "be >= 0": (lambda value: value >= 0, ("weight_decay", "warmup_steps")),
            "be >= 1": (
                lambda value: value >= 1,
                ("num_minibatches", "epochs", "micro_batch_rows", "micro_batch_tokens", "logit_chunk_mb"),
            ),
        }
        for rule, (holds, names) in rules.items():
            for name in names:
                if not holds(getattr(self, name)):
                    raise ValueError(f"learner.{name} must {rule}, got {getattr(self, name)!r}")
