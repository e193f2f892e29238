"""How far two users agree who read the same replies: one recorded, one predicted, turn by turn and agent by agent.

Source of the judgement (agents' ranks and pairs first, first turns second): the recorded conversations of SAGE, arXiv 2505.02847.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]

DIGITS = 4
WORTH_RANKING = 10.0
"""Two agents are a pair if their true scores differ by more than this many points."""
EMOTION_STEPS = np.arange(15, 90, 10)
"""Borders of the emotions for which the chance of a rise is compared."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """One recorded dialogue, and what a user made of the same replies."""

    simulator: str
    agent: str
    profile: str
    true_changes: tuple[int, ...]
    """One for each reply that was answered."""
    changes: tuple[int, ...]
    """Predicted, as many."""
    true_before: tuple[int, ...]
    """Emotion that each reply met, as recorded."""
    before: tuple[int, ...]
    """The predicting user's own."""
    true_score: int
    """Emotion at the end, 0-100."""
    score: int


def figures(dialogues: Sequence[Followed], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Every figure of agreement; one that is not defined (nothing varies, no pair of agents) is nan.

    Args:
        weights: how often each dialogue counts (default once), as a bootstrap draws it.
    """
    weight = np.ones(len(dialogues)) if weights is None else np.asarray(weights, float)
    per_turn = np.repeat(weight, [len(dialogue.changes) for dialogue in dialogues])
    true, predicted = _joined(dialogues, "true_changes"), _joined(dialogues, "changes")
    answered = np.array([bool(dialogue.changes) for dialogue in dialogues])
    first = np.array([[d.true_changes[0], d.changes[0]] for d in dialogues if d.changes], float).reshape(-1, 2)
    agents = [agent for agent in agent_scores(dialogues, weight) if not np.isnan(agent[2])]
    return {
        "turn_pearson": _pearson(true, predicted, per_turn),
        "sign_accuracy": _mean(np.sign(true) == np.sign(predicted), per_turn),
        "first_turn_pearson": _pearson(first[:, 0], first[:, 1], weight[answered]),
        "change_distribution_tv": total_variation(true, predicted, per_turn),
        "momentum_curve_mae": curve_mae(
            (_joined(dialogues, "true_before"), true > 0), (_joined(dialogues, "before"), predicted > 0), per_turn
        ),
        "agent_spearman": _agent_spearman(agents),
        "pair_accuracy": _pair_accuracy(agents),
        "score_mae": float(np.mean([abs(true - predicted) for _, _, true, predicted in agents])) if agents else float("nan"),
    }


def agent_scores(dialogues: Sequence[Followed], weight: Floats) -> list[tuple[str, str, float, float]]:
    """(simulator, agent, true score, predicted score) of each agent under each simulator: weighted means of the last emotions, 0-100."""
    members: dict[tuple[str, str], list[int]] = {}
    for index, dialogue in enumerate(dialogues):
        members.setdefault((dialogue.simulator, dialogue.agent), []).append(index)
    true, predicted = np.array([d.true_score for d in dialogues], float), np.array([d.score for d in dialogues], float)
    return [(*key, _mean(true[rows], weight[rows]), _mean(predicted[rows], weight[rows])) for key, rows in sorted(members.items())]


def names_of_agents(dialogues: Sequence[Followed]) -> dict[tuple[str, str], str]:
    """By simulator and agent, how the agent is called: by its name, with the simulator's before it where the name stands twice."""
    keys = sorted({(dialogue.simulator, dialogue.agent) for dialogue in dialogues})
    agents = [agent for _, agent in keys]
    return {(simulator, agent): agent if agents.count(agent) == 1 else f"{simulator}/{agent}" for simulator, agent in keys}


def intervals(dialogues: Sequence[Followed], *, num_draws: int, seed: int, coverage: float = 0.95) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap intervals of `figures` over profiles, each drawn with all its dialogues.

    Args:
        num_draws: > 0.
        coverage: of the intervals, in (0, 1).
    """
    profiles = sorted({dialogue.profile for dialogue in dialogues})
    place = {profile: index for index, profile in enumerate(profiles)}
    of_dialogue = np.array([place[dialogue.profile] for dialogue in dialogues])
    chance = np.random.default_rng(seed)
    draws = [
        figures(dialogues, np.bincount(chance.integers(len(profiles), size=len(profiles)), minlength=len(profiles))[of_dialogue])
        for _ in range(num_draws)
    ]
    ends = (50 * (1 - coverage), 50 * (1 + coverage))
    found = {}
    for name in draws[0]:
        values = np.array([draw[name] for draw in draws])
        known = values[~np.isnan(values)]
        low, high = np.percentile(known, ends) if len(known) else (float("nan"), float("nan"))
        found[name] = (float(low), float(high))
    return found


def plain(value: Any) -> Any:
    """Figures as they are written: DIGITS decimals, None for what is not defined."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return (None if math.isnan(value) else round(float(value), DIGITS)) if isinstance(value, float) else value


def _joined(dialogues: Sequence[Followed], name: str) -> Floats:
    return np.array([value for dialogue in dialogues for value in getattr(dialogue, name)], float)


def _mean(values: NDArray[np.bool_] | Floats, weight: Floats) -> float:
    return float(np.dot(values, weight) / weight.sum()) if weight.sum() > 0 else float("nan")


def _pearson(a: Floats, b: Floats, weight: Floats) -> float:
    a, b = a - _mean(a, weight), b - _mean(b, weight)
    spread = _mean(a * a, weight) * _mean(b * b, weight)
    return float(_mean(a * b, weight) / np.sqrt(spread)) if spread > 0 else float("nan")


def total_variation(a: Floats, b: Floats, weight: Floats) -> float:
    """Half the summed differences of how often each change occurs; nan without any."""
    if not len(a):
        return float("nan")
    return 0.5 * sum(abs(_mean(a == change, weight) - _mean(b == change, weight)) for change in np.union1d(a, b))


def curve_mae(true: tuple[Floats, NDArray[np.bool_]], predicted: tuple[Floats, NDArray[np.bool_]], weight: Floats) -> float:
    """Mean difference of the chance that emotion rises, by the emotion before the reply; each step counts as often as it was recorded."""
    steps = [np.digitize(before, EMOTION_STEPS) for before, _ in (true, predicted)]
    total, counted = 0.0, 0.0
    for step in range(len(EMOTION_STEPS) + 1):
        chances = [_mean(rises[where == step], weight[where == step]) for where, (_, rises) in zip(steps, (true, predicted), strict=True)]
        if not np.isnan(chances).any():
            occurs = weight[steps[0] == step].sum()
            total, counted = total + occurs * abs(chances[0] - chances[1]), counted + occurs
    return float(total / counted) if counted else float("nan")


def _by_simulator(agents: Sequence[tuple[str, str, float, float]]) -> Mapping[str, list[tuple[float, float]]]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for simulator, _, true, predicted in agents:
        groups.setdefault(simulator, []).append((true, predicted))
    return groups


def _agent_spearman(agents: Sequence[tuple[str, str, float, float]]) -> float:
    """Rank correlation of agents who met the same simulator; the mean over simulators, weighed by their agents less one.

    Who gives all agents one score has ranked none of them: 0.
    """
    total, counted = 0.0, 0
    for scores in _by_simulator(agents).values():
        true, predicted = (rankdata([score[side] for score in scores]) for side in (0, 1))
        if np.ptp(true) > 0:
            rho = _pearson(true, predicted, np.ones(len(scores))) if np.ptp(predicted) > 0 else 0.0
            total, counted = total + (len(scores) - 1) * rho, counted + len(scores) - 1
    return total / counted if counted else float("nan")


def _pair_accuracy(agents: Sequence[tuple[str, str, float, float]]) -> float:
    """Share of pairs that are put in the right order, a tie counting half; only agents who met the same simulator are paired."""
    right = [
        0.5 + 0.5 * np.sign((a[0] - b[0]) * (a[1] - b[1]))
        for scores in _by_simulator(agents).values()
        for a, b in combinations(scores, 2)
        if abs(a[0] - b[0]) > WORTH_RANKING
    ]
    return float(np.mean(right)) if right else float("nan")
