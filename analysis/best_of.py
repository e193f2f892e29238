"""The best of several tries with each held-out user, before training and after it: did training find what sampling does not?

Source: the unbiased pass@k of Chen et al. 2021 (arXiv 2107.03374), here of final emotions; a trained policy is held against what its own
beginning reaches in k tries as in Yue et al. 2025 (arXiv 2504.13837).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from curriculum.signals import best_weights

TRIES = "tries"
"""Key of a recorded held-out dialogue: final emotions of all dialogues with that user at that look, its own first; None where one broke."""


def before_and_after(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What single tries and the best of k came to at the first and at the last look on the full grid; None where nobody was tried twice.

    Args:
        lines: of `evaluation.jsonl`.

    Returns:
        `k`, the number of `users` (those of whom no try broke at either look), `start` and `end` (see `told`), and `beyond`: the mean
        of single tries after training less the best of k before it.
    """
    by_look: dict[int, dict[str, list[float]]] = {}
    for line in lines:
        if TRIES in line and None not in line[TRIES]:
            by_look.setdefault(line["look"], {})[line["uid"]] = line[TRIES]
    if len(by_look) < 2:
        return None
    first, last = by_look[min(by_look)], by_look[max(by_look)]
    users = sorted(first.keys() & last.keys())
    if not users:
        return None
    start, end = (told(np.array([look[user] for user in users], dtype=float)) for look in (first, last))
    return {"k": len(start["by_k"]), "users": len(users), "start": start, "end": end, "beyond": end["mean"] - start["best"]}


def told(emotions_UK: np.ndarray) -> dict[str, Any]:
    """Means over users, 0-100: of single tries, of the best of all k, what this gains, and of the expected best of 1 to k (`by_k`)."""
    by_k = [float(expected_best(emotions_UK, j).mean()) for j in range(1, emotions_UK.shape[1] + 1)]
    return {"mean": by_k[0], "best": by_k[-1], "gain": by_k[-1] - by_k[0], "by_k": by_k}


def expected_best(emotions_UK: np.ndarray, j: int) -> np.ndarray:
    """float[U], the mean best of j tries over all choices of j among the k."""
    return np.asarray(np.sort(emotions_UK, axis=1) @ best_weights(emotions_UK.shape[1], j))
