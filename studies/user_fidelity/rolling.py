"""Users who follow their own state through many recorded dialogues at once, and the momentum that makes them move as recorded users did."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.dialogue import DELIGHTED_AT, START_EMOTION
from simulator.emotion import QUANTA
from simulator.preset import Momentum, Thresholds
from studies.user_fidelity.agreement import curve_mae, total_variation
from studies.user_fidelity.regression import Table

Floats = NDArray[np.float64]

ROUNDS = 25
"""Of matching thresholds to the recorded changes; each goes half of the way."""
GRID = tuple(Momentum(last=last, emotion=emotion) for last, emotion in product((0.0, 0.5, 1.0, 1.5, 2.0), (-0.5, 0.0, 0.5, 1.0, 2.0)))
"""What is tried, in standard deviations of the named figures' score."""


@dataclass(frozen=True, kw_only=True)
class Rolled:
    """What users felt who began at 40 and went on from where they were."""

    pulls: Floats
    """[D, T]"""
    changes: Floats
    """[D, T]"""
    before: Floats
    """[D, T] emotion that each reply met"""


def roll(scores_DT: Floats, momentum: Momentum, first: Thresholds, later: Thresholds) -> Rolled:
    """Each user's own dialogue, reply by reply.

    Args:
        first: thresholds of first replies.
        later: thresholds of the others.
    """
    emotion, last = np.full(len(scores_DT), float(START_EMOTION)), np.zeros(len(scores_DT))
    pulls: list[Floats] = []
    changes: list[Floats] = []
    before: list[Floats] = []
    for score in scores_DT.T:
        before.append(emotion)
        pulls.append(score + momentum.pull(last, emotion))
        last = change_at(pulls[-1], later if changes else first)
        changes.append(last)
        emotion = np.clip(emotion + last, 0, DELIGHTED_AT)
    return Rolled(pulls=np.stack(pulls, axis=1), changes=np.stack(changes, axis=1), before=np.stack(before, axis=1))


def change_at(pull: Floats, thresholds: Thresholds) -> Floats:
    """One of SAGE's four changes for each pull."""
    return np.array(QUANTA, float)[np.searchsorted(thresholds, pull, side="right")]


def matched_thresholds(table: Table, scores_DT: Floats, momentum: Momentum, rows: NDArray[np.bool_]) -> tuple[Thresholds, Thresholds]:
    """Thresholds of first and of later replies at which rolled users make each change as often as it was recorded in these dialogues."""
    is_turn, changes, scores_RT = table.is_turn[rows], table.changes[rows], scores_DT[rows]
    is_first = is_turn & (np.arange(is_turn.shape[1]) == 0)
    is_later = is_turn & ~is_first
    first = _three(np.quantile(scores_RT[is_first], _shares(changes[is_first])))
    if not is_later.any():
        return first, first
    shares = _shares(changes[is_later])
    later = np.quantile(scores_RT[is_later], shares)
    for _ in range(ROUNDS):
        pulls = roll(scores_RT, momentum, first, _three(later)).pulls[is_later]
        later = (later + np.quantile(pulls, shares)) / 2
    return first, _three(later)


def _shares(changes: Floats) -> list[float]:
    """How often a change lies below each border between two of SAGE's four."""
    return [float(np.mean(changes < (low + high) / 2)) for low, high in pairwise(QUANTA)]


def chosen_momentum(table: Table, scores_DT: Floats, rows: NDArray[np.bool_]) -> Momentum:
    """The momentum of the grid with the least misfit.

    Args:
        scores_DT: made by weights that these dialogues had no part in, else they would look surer than they are.
    """
    return min(GRID, key=lambda momentum: misfit(table, scores_DT, momentum, rows))


def misfit(table: Table, scores_DT: Floats, momentum: Momentum, rows: NDArray[np.bool_]) -> float:
    """How far rolled users are from the recorded ones, 0 at best.

    The sum of: 1 less the correlation of changes from the users' own states, 1 less the one from recorded states, the total variation of
    the changes, and twice the mean difference of the chance of a rise by emotion.
    """
    is_turn = table.is_turn[rows]
    first, later = matched_thresholds(table, scores_DT, momentum, rows)
    rolled = roll(scores_DT[rows], momentum, first, later)
    own, true = rolled.changes[is_turn], table.changes[rows][is_turn]
    met = table.emotions[rows][is_turn]
    pulls = scores_DT[rows] + momentum.pull(table.last[rows], table.emotions[rows])
    led = np.concatenate([change_at(pulls[:, :1], first), change_at(pulls[:, 1:], later)], axis=1)[is_turn]
    even = np.ones(len(true))
    curve = curve_mae((met, true > 0), (rolled.before[is_turn], own > 0), even)
    return 2.0 - _correlation(own, true) - _correlation(led, true) + total_variation(true, own, even) + 2 * curve


def _correlation(a: Floats, b: Floats) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def _three(values: NDArray[np.floating[Any]]) -> Thresholds:
    low, middle, high = sorted(float(value) for value in values)
    return low, middle, high
