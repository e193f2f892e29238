"""What several tries at each user are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from curriculum.signals import expected_best
from experiments.agents.intervals import resampled
from experiments.agents.players import Played


def best_of_k(played: Sequence[Played], *, samples: int, seed: int) -> dict[str, Any] | None:
    """What the best of k dialogues with each user is worth, beside their mean; None where there is one with each.

    Users of whom not all dialogues are there are left out.

    Returns:
        `k`, `mean`, `best` and `gain` with intervals, and `by_k`: the expected best of 1..k, from all k without bias. `expected` has `best`
        and `gain` of each with intervals.
    """
    if samples < 2:
        return None
    by_user: dict[str, list[Played]] = {}
    for one in played:
        by_user.setdefault(one.task.uid, []).append(one)
    whole = [group for _, group in sorted(by_user.items()) if len(group) == samples]
    if not whole:
        return None
    names = sorted({group[0].task.scenario_id for group in whole})
    emotions_UK = np.array([[one.dialogue.emotion for one in group] for group in whole], dtype=float)
    members = [np.array([i for i, group in enumerate(whole) if group[0].task.scenario_id == name]) for name in names]

    def over(values_U: np.ndarray) -> dict[str, float | None]:
        return resampled(
            lambda chosen: float(values_U[np.concatenate([members[i] for i in chosen])].mean()), len(names), seed=seed
        ).to_dict()

    best_U, mean_U = emotions_UK.max(axis=1), emotions_UK.mean(axis=1)
    by_k, expected = {}, {}
    for j in range(1, samples + 1):
        expected_U = expected_best(emotions_UK, j)
        by_k[str(j)] = float(expected_U.mean())
        expected[str(j)] = {"best": over(expected_U), "gain": over(expected_U - mean_U)}
    told = {"mean": over(mean_U), "best": over(best_U), "gain": over(best_U - mean_U)}
    return {"k": samples, "users": len(whole), **told, "by_k": by_k, "expected": expected}
