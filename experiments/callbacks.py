"""Callbacks: code around a run's steps, mostly of a study, without a setting of the core for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from experiments.tasks import EvaluationTask


TRIES = "tries"
"""Key of a recorded held-out dialogue: final emotions of all dialogues with that user then, its own first; None for broken."""


class Run(Protocol):
    """The parts of a training run (`experiments.train.TrainingRun`) that callbacks use."""

    config: Any
    components: Any
    recorder: Any
    state: Any


class Callback:
    """Base of all callbacks, whose methods do nothing. A callback is a dataclass: its fields are its settings (`callbacks.<name>.*`).

    It has no state in checkpoints; it reads what it needs from the run.
    """

    needs_start: ClassVar[bool] = False
    """Whether a resumed run needs the weights before training."""

    def check(self, config: Any) -> None:
        """Called before anything starts; raises ValueError where the run's settings contradict it."""

    def evaluation_tasks(self, full: Sequence[EvaluationTask], small: Sequence[EvaluationTask]) -> Sequence[EvaluationTask]:
        """The tasks of the full held-out grid, in its order; `small` are those that the smaller grid has too.

        A larger `group_size` asks for further dialogues with a user, which count in no score and are recorded as `tries`.
        """
        return full

    def after_update(self, run: Run) -> None:
        """Called after each update that changed the policy, on the first of the learner's ranks, before its weights go to the engines."""

    def on_metrics(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
        """Called with every scalar that TensorBoard gets, under the same keys: for another logger (wandb, MLflow, a file).

        A step's metrics come in several calls, those of an evaluation with the step before it (0 before training); what a step could
        not measure is NaN, or no key. A resumed run repeats the steps after its checkpoint. An exception stops the run.
        """

    def at_end(self, run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Called when a run has ended and its last checkpoint is written; returns further keys of `summary.json`."""
        return {}


CALLBACKS: dict[str, type[Callback]] = {}
"""Callbacks by name, `reliability` among them (`experiments.config`); a study registers its own."""
