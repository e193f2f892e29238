"""Skills that fade: after each update the weights take a step back to those that the policy began with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.callbacks import Callback

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from experiments.callbacks import Run
    from experiments.config import ExperimentConfig


@dataclass
class PullToStart(Callback):
    """Lets what is not practised fade with a half-life of ln 2 / -ln(1 - share) updates (0.02: 34), as skills do."""

    needs_start = True

    share: float = 0.02
    """In [0, 1): of the way back to the first weights, taken after every update; 0 forgets only what other practice overwrites."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"callbacks.pull_to_start.share must be in [0, 1), got {self.share!r}")
        self._start: Mapping[str, Tensor] | None = None

    def check(self, config: ExperimentConfig) -> None:
        """Refuses adapters, which are not weights that could go back to where they were."""
        for name, value, one in (("policy.lora.rank", config.policy.lora.rank, 0), ("learner.ranks", config.learner.ranks, 1)):
            if self.share and value > one:
                raise ValueError(f"callbacks.pull_to_start.share must be 0 with {name}={value}, got {self.share!r}; set {name}={one}")

    def after_update(self, run: Run) -> None:
        """Pulls the learner's weights."""
        if not self.share:
            return
        if self._start is None:
            from experiments.build import model_folder
            from policy.model import load_model

            start = load_model(model_folder(run.config))[0].to(run.config.learner.device)
            self._start = dict(start.named_parameters())
        pull(run.components.learner.model, self._start, share=self.share)


def pull(model: Module, start: Mapping[str, Tensor], *, share: float) -> None:
    """Moves each weight by a share of the way to where it was at the start."""
    for name, before in start.items():
        model.get_parameter(name).data.lerp_(before.data, share)
