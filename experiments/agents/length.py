"""What is left of a score once the length of the replies is taken out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.leaderboard import Z, score_within
from experiments.agents.players import Played
from simulator.listener import Register
from simulator.text import num_words

REFERENCE_WORDS = {Register.WORLD: 10.0, Register.OPEN: 50.0}
"""Words of a reply at which an agent's length-controlled score is told, by how it speaks; a leaderboard takes its own agents' mean."""
NUM_DRAWS = 500
LEAST_SPREAD = 0.01
"""Standard deviation of the lengths of comparable replies, in doublings, below which no slope over length can be told."""
LEAST_DRAWS = 0.9
"""Share of the redrawn sets of scenarios that must have a slope; with fewer the interval would be of those that happened to have one."""
OUTER = 0.05
"""Share of an agent's replies at either end of their lengths that counts as no longer and no shorter than the rest."""


class _Replies(NamedTuple):
    """The answered replies of an evaluation, N of them."""

    log_words_N: np.ndarray
    """log2 of the words of each."""
    before_N: np.ndarray
    """The user's emotion when it was said."""
    change_N: np.ndarray
    """Points that it moved the user."""
    cell_N: np.ndarray
    """int: those of one cell are compared with each other."""
    scenario_N: np.ndarray
    """int: whose scenario, by which they are resampled."""


def length_control(played: Sequence[Played], *, seed: int, register: Register) -> dict[str, Any]:
    """How the score hangs on the length of the replies, and the score at a given length.

    The unit is the reply, since a dialogue's mean length is also a result of how it went: one that fails may end early, or make the agent
    talk. Fitted is the change that a reply brought on log2 of its words and on the emotion before it, within cells, so that replies of one
    number in the dialogue to users alike are compared. Cells are the dialogues with one user where there are several, else strictness x
    hidden intention. With `slope` = points a reply and doubling x replies per dialogue, the score at L words is the score + slope x (log2 L
    - mean). It says what length explains among this agent's own replies, longer ones saying more included, not what would happen if it
    were made to speak otherwise; and nothing of lengths that it does not speak.

    Args:
        played: dialogues that did not break.
        register: how the agent speaks, which says at how many words its own score is told.

    Returns:
        `words_per_reply` (geometric mean), `points_per_doubling`, `range`: words of its shortest and longest replies but for one in twenty
        each, `score_at_reference`, None outside of them, and `line`: intercept, slope and their covariance over resampled scenarios, from
        which the score at a length in the range follows (`score_within`).

    Source: AlpacaEval's length control, arXiv 2404.04475, takes length out of a preference likewise.
    """
    heard = [one for one in played if len(one.dialogue.turns) > 2]
    names = sorted({one.task.scenario_id for one in heard})
    where = {name: i for i, name in enumerate(names)}
    replies = _replies(heard, where)
    words = float(2.0 ** replies.log_words_N.mean()) if replies.log_words_N.size else math.nan
    unfitted = {"words_per_reply": words, "points_per_doubling": None, "range": None, "score_at_reference": None, "line": None}
    if len(names) < 2:
        return unfitted
    shortest, longest = np.quantile(replies.log_words_N, [OUTER, 1.0 - OUTER])
    # One reply that runs away would turn the line by itself.
    x_N = np.clip(replies.log_words_N, shortest, longest)
    emotion_D = np.array([one.dialogue.emotion for one in heard], dtype=float)
    scenario_D = np.array([where[one.task.scenario_id] for one in heard], dtype=int)

    def line(chosen: np.ndarray) -> tuple[float, float]:
        weight_S = np.bincount(chosen, minlength=len(names)).astype(float)
        weight_N, weight_D = weight_S[replies.scenario_N], weight_S[scenario_D]
        per_doubling = _slope(x_N, replies, weight_N) * float(weight_N.sum() / weight_D.sum())
        score = float(np.average(emotion_D, weights=weight_D))
        return score - per_doubling * float(np.average(x_N, weights=weight_N)), per_doubling

    intercept, slope = line(np.arange(len(names)))
    rng = np.random.default_rng(seed)
    draws = np.array([line(rng.integers(0, len(names), size=len(names))) for _ in range(NUM_DRAWS)])
    draws = draws[~np.isnan(draws[:, 1])]
    if math.isnan(slope) or len(draws) < LEAST_DRAWS * NUM_DRAWS:
        return unfitted
    error = float(draws[:, 1].std())
    found = {"intercept": intercept, "slope": slope, "covariance": np.cov(draws.T).tolist()}
    # Whole words are whole again, so that a length at the edge lies within.
    spoken = [round(float(2.0**end), 6) for end in (shortest, longest)]
    reference = REFERENCE_WORDS[register]
    at_reference = score_within({"line": found, "range": spoken}, reference)
    return {
        "words_per_reply": words,
        "points_per_doubling": {"value": slope, "low": slope - Z * error, "high": slope + Z * error},
        "range": spoken,
        "score_at_reference": {"words": reference, **at_reference} if at_reference else None,
        "line": found,
    }


def _replies(played: Sequence[Played], where: Mapping[str, int]) -> _Replies:
    """Every reply that a user answered; turns alternate, the user's first.

    Args:
        where: number of each scenario.
    """
    has_siblings = any(one.sibling for one in played)
    cells: dict[tuple[str, float, int], int] = {}
    rows = []
    for one in played:
        who = one.task.scenario_id if has_siblings else str(one.dialogue.scenario.family.intention)
        turns = one.dialogue.turns
        for number, (before, reply, answer) in enumerate(zip(turns[::2], turns[1::2], turns[2::2], strict=False)):
            cell = cells.setdefault((who, one.task.strictness, number), len(cells))
            length = math.log2(max(1, num_words(reply.text)))
            rows.append((length, before.emotion or 0, answer.change or 0, cell, where[one.task.scenario_id]))
    table_NC = np.array(rows, dtype=float).reshape(-1, len(_Replies._fields))
    return _Replies(*table_NC[:, :3].T, *table_NC[:, 3:].astype(int).T)


def _slope(x_N: np.ndarray, replies: _Replies, weight_N: np.ndarray) -> float:
    """Points of emotion that a reply brings for each doubling of its words, with the emotion before it held, within cells.

    Returns:
        NaN where lengths do not differ but as the emotion before does.
    """
    x, before, change = (_within(column, replies.cell_N, weight_N) for column in (x_N, replies.before_N, replies.change_N))
    spread = float((weight_N * before * before).sum())
    # Where all feel alike before a reply there is nothing to hold.
    x = x - (float((weight_N * x * before).sum()) / spread if spread > 1e-9 else 0.0) * before
    variance = float((weight_N * x * x).sum() / weight_N.sum())
    return float((weight_N * x * change).sum() / (weight_N * x * x).sum()) if variance > LEAST_SPREAD**2 else math.nan


def _within(values_N: np.ndarray, cell_N: np.ndarray, weight_N: np.ndarray) -> np.ndarray:
    """The values less the mean of their cell."""
    total_C = np.maximum(np.bincount(cell_N, weight_N), 1e-12)
    return values_N - (np.bincount(cell_N, weight_N * values_N) / total_C)[cell_N]
