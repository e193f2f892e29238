"""What a run will cost, told by one timed step: as many steps as the budget buys, and the looks at the held-out grids."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.config import ExperimentConfig
from experiments.heldout import HeldOut
from simulator.users import make_bank


def seconds_of_run(config: ExperimentConfig, step: Mapping[str, float], *, num_tokens: float) -> float:
    """Seconds that a run takes with its looks, were all steps like this one.

    A held-out dialogue is reckoned as long as one of training. What starting the engines takes is not counted.

    Args:
        step: what was measured in it.
        num_tokens: policy tokens that it took, > 0.
    """
    num_steps = config.budget.policy_tokens / num_tokens
    if config.budget.steps:
        num_steps = min(num_steps, config.budget.steps)
    per_dialogue_s = step["timing_s/gen"] / (config.groups_per_step * config.group_size)
    return num_steps * step["timing_s/step"] + heldout_dialogues(config) * per_dialogue_s


def heldout_dialogues(config: ExperimentConfig) -> int:
    """Held-out dialogues of a whole run."""
    return HeldOut(config.evaluation, make_bank(config.simulator), callbacks=config.callbacks.values()).num_dialogues
