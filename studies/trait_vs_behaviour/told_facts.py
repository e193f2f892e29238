"""What training cost in reliability: the probe's questions, put to the policy before and after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.callbacks import Callback

if TYPE_CHECKING:
    from experiments.callbacks import Run
    from experiments.config import ExperimentConfig


@dataclass
class ToldFacts(Callback):
    """Asks for mentioned facts in three ways, and leaves what training changed as `reliability` in the summary."""

    needs_start = True

    num: int = 150
    """>= 2: questions, each asked in three ways."""

    def __post_init__(self) -> None:
        if self.num < 2:
            raise ValueError(f"callbacks.told_facts.num must be >= 2, got {self.num!r}")

    def check(self, config: ExperimentConfig) -> None:
        """Refuses a policy that did not learn to take up what users mention."""
        if config.policy.is_embedded:
            return
        from policy.mode import RECIPE
        from policy.model import find_model

        if not (find_model(config.policy.model) / RECIPE).is_file():
            raise ValueError(
                "callbacks.told_facts must be left out but for the embedded policy, which was taught to take up what users mention, got "
                f"{config.policy.model}; ask others by callbacks.reliability"
            )

    def at_end(self, run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The policy of the last checkpoint against the one that training began with."""
        from experiments.build import model_folder
        from experiments.recorder import CHECKPOINTS

        newest = run.recorder.folder / CHECKPOINTS / f"step_{run.state.step}"
        return {"reliability": before_and_after(model_folder(run.config), newest, num=self.num)}


def before_and_after(before: Path, after: Path, *, num: int, seed: int = 0) -> dict[str, Any]:
    """Fact recall of a policy and of the policy that training made of it, as `summary.json` records it.

    Args:
        before, after: folders of the weights.
        num: facts, each asked in three conditions.

    Returns:
        `change_table` of the two, with the probe's `hash` and `seed`.
    """
    from experiments.agents.fact_recall import probe_policy
    from experiments.agents.reliability import change_table

    old, old_nats, digest = probe_policy(before, num=num, seed=seed)
    new, new_nats, _ = probe_policy(after, num=num, seed=seed)
    return {"hash": digest, "seed": seed, **change_table(old, new, margins=(old_nats, new_nats), seed=seed)}
