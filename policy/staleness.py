"""How old the weights were that sampled what is about to be trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policy.rollout import Rollout, RolloutGroup
from simulator.dialogue import Outcome


def staleness(rollout: Rollout, *, policy_version: int) -> int:
    """Updates between the oldest weights that sampled a token of it and the present ones; 0 where none did."""
    return policy_version - rollout.policy_versions[0] if rollout.num_sampled else 0


def is_fresh(group: RolloutGroup, *, policy_version: int, max_staleness: int) -> bool:
    """Whether none of a group's dialogues is too old; one that broke is not trained on and may be of any age."""
    alive = (rollout for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR)
    return all(staleness(rollout, policy_version=policy_version) <= max_staleness for rollout in alive)


def off_policy_metrics(groups: Sequence[RolloutGroup], *, policy_version: int, num_dropped: int) -> dict[str, float]:
    """How old the tokens of these groups are, in updates; dialogues that broke are not looked at.

    Args:
        num_dropped: groups that were too old to be among them.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR]
    ages = policy_version - np.concatenate([rollout.token_versions for rollout in rollouts] or [np.zeros(0, dtype=np.int64)])
    return {
        "off_policy/mean": float(ages.mean()) if ages.size else float("nan"),
        "off_policy/max": float(ages.max()) if ages.size else float("nan"),
        "off_policy/dropped": float(num_dropped),
    }
