"""What is left of a score once the length of the replies is taken out, and what several tries at each user are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.agents.length_control import Z, score_at
from analysis.best_of import expected_best
from experiments.agents.intervals import resampled
from experiments.agents.players import Played
from simulator.chinese import num_words

REFERENCE_WORDS = 20.0
"""Words of a reply at which the length-controlled score of one agent is told; a leaderboard takes its own agents' mean."""
NUM_DRAWS = 500
LEAST_SPREAD = 0.01
"""Standard deviation of the lengths of comparable dialogues, in doublings, below which no slope over length can be told."""


def length_control(played: Sequence[Played], *, seed: int) -> dict[str, Any]:
    """How the score hangs on the length of the replies, and the score at a given length.

    A line is fitted: final emotion on log2 of the mean words of a dialogue's replies, within cells, so that a strict user, to whom an
    agent may speak at greater length, is compared with users alike. Cells are the dialogues with one user where there are several, else
    strictness x hidden intention. The score at L words is then the score + slope x (log2 L - mean). It says what length explains among
    this agent's own replies, not what would happen if it were made to speak otherwise.

    Args:
        played: dialogues that did not break.

    Returns:
        `words_per_reply` (geometric mean), `points_per_doubling`, `score_at_reference`, and `line`: intercept, slope and their
        covariance over resampled scenarios, from which the score at any length follows (`score_at`).

    Source: AlpacaEval's length control, arXiv 2404.04475, takes length out of a preference likewise.
    """
    spoken = [one for one in played if one.dialogue.num_replies]
    names = sorted({one.task.scenario_id for one in spoken})
    where = {name: i for i, name in enumerate(names)}
    lengths_N = np.array([np.mean([max(1, num_words(reply)) for reply in one.dialogue.replies()]) for one in spoken])
    x_N, y_N = np.log2(lengths_N) if lengths_N.size else lengths_N, np.array([one.dialogue.emotion for one in spoken], dtype=float)
    scenario_N = np.array([where[one.task.scenario_id] for one in spoken], dtype=int)
    cells: dict[Any, int] = {}
    has_siblings = _has_siblings(spoken)
    cell_N = np.array([cells.setdefault(_cell(one, has_siblings=has_siblings), len(cells)) for one in spoken], dtype=int)

    def line(chosen: np.ndarray) -> tuple[float, float]:
        weight_N = np.bincount(chosen, minlength=len(names))[scenario_N].astype(float)
        total_C = np.maximum(np.bincount(cell_N, weight_N), 1e-12)
        dx_N = x_N - (np.bincount(cell_N, weight_N * x_N) / total_C)[cell_N]
        dy_N = y_N - (np.bincount(cell_N, weight_N * y_N) / total_C)[cell_N]
        spread = float((weight_N * dx_N**2).sum())
        slope = float((weight_N * dx_N * dy_N).sum()) / spread if spread > 1e-9 else 0.0
        return float(np.average(y_N, weights=weight_N) - slope * np.average(x_N, weights=weight_N)), slope

    unfitted = {"words_per_reply": float(2.0 ** x_N.mean()) if x_N.size else math.nan, "points_per_doubling": None, "line": None}
    if len(names) < 2:
        return unfitted
    means_C = np.bincount(cell_N, x_N) / np.bincount(cell_N)
    if float((x_N - means_C[cell_N]).std()) < LEAST_SPREAD:
        return unfitted
    intercept, slope = line(np.arange(len(names)))
    rng = np.random.default_rng(seed)
    draws = np.array([line(rng.integers(0, len(names), size=len(names))) for _ in range(NUM_DRAWS)])
    error = float(draws[:, 1].std())
    found = {"intercept": intercept, "slope": slope, "covariance": np.cov(draws.T).tolist()}
    return {
        "words_per_reply": float(2.0 ** x_N.mean()),
        "points_per_doubling": {"value": slope, "low": slope - Z * error, "high": slope + Z * error},
        "score_at_reference": {"words": REFERENCE_WORDS, **score_at(found, REFERENCE_WORDS)},
        "line": found,
    }


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


def _has_siblings(played: Sequence[Played]) -> bool:
    return any(one.sibling for one in played)


def _cell(one: Played, *, has_siblings: bool) -> tuple[str, float]:
    name = one.task.scenario_id if has_siblings else str(one.dialogue.scenario.family.intention)
    return name, one.task.strictness
