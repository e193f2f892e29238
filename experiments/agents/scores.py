"""Scores of an evaluation: how users felt in the end, success and failure, over all and by group, and where it was worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from analysis.persona_judge import in_options
from experiments.agents.intervals import ratio, resampled
from experiments.agents.players import Played
from experiments.agents.wording import last_line
from experiments.evaluate import Graded, cut_short, summarise, worst_cell, worst_mean
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Outcome

MAX_REASONS = 10
"""Different reasons for broken dialogues that are told."""


def scores(played: Sequence[Played], *, seed: int) -> dict[str, Any]:
    """The keys of a run's `heldout` and more.

    Args:
        played: also those that broke, which count nowhere but in `errors`.

    Returns:
        The keys of `experiments.evaluate.summarise`, with intervals of success, failure, worst cell and CVaR under `intervals`; the groups
        of `by` in `strictness`, `family`, `intention` and `persona`; `per_scenario` means, for paired comparisons; `outcomes`.
    """
    alive = [one for one in played if one.dialogue.outcome is not Outcome.ERROR]
    graded = [Graded.of(one.dialogue, strictness=one.task.strictness) for one in alive]
    names = sorted({one.task.scenario_id for one in alive})
    by_scenario: list[list[Graded]] = [[] for _ in names]
    where = {name: i for i, name in enumerate(names)}
    for item in graded:
        by_scenario[where[item.scenario_id]].append(item)
    means_S = np.array([np.mean([item.emotion for item in items]) for items in by_scenario])
    return {
        **summarise(graded, seed=seed),
        "intervals": {
            **shares(alive, seed=seed),
            "cvar20": resampled(lambda chosen: worst_mean(means_S[chosen]), len(names), seed=seed).to_dict(),
            "worst_cell": resampled(
                lambda chosen: worst_cell([one for i in chosen for one in by_scenario[i]]), len(names), seed=seed
            ).to_dict(),
        },
        "strictness": by(alive, lambda one: f"{one.task.strictness:g}", seed=seed),
        "intention": by(alive, lambda one: str(one.dialogue.scenario.family.intention), seed=seed),
        "persona": by(alive, lambda one: str(one.dialogue.scenario.family.persona), seed=seed),
        "family": by(alive, lambda one: str(one.dialogue.scenario.family), seed=seed),
        "per_scenario": {name: float(mean) for name, mean in zip(names, means_S, strict=True)},
        "outcomes": dict(sorted(Counter(str(one.dialogue.outcome) for one in played).items())),
    }


def by(played: Sequence[Played], key: Callable[[Played], str], *, seed: int) -> dict[str, dict[str, Any]]:
    """What the dialogues that share a key came to.

    Returns:
        By key: `value`, `low` and `high` of the mean final emotion, 0-100; `success_rate` and `failure_rate`, [0, 1], with intervals; `n`.
    """
    groups: dict[str, list[Played]] = {}
    for one in played:
        groups.setdefault(key(one), []).append(one)
    found = {}
    for name, members in sorted(groups.items()):
        rows = [(one.task.scenario_id, i, 0, one.task.strictness, one.dialogue.emotion / 100.0, 1.0) for i, one in enumerate(members)]
        found[name] = {**ratio(rows, seed=seed, scale=100.0).to_dict(), **shares(members, seed=seed), "n": len(members)}
    return found


def shares(played: Sequence[Played], *, seed: int) -> dict[str, dict[str, float | None]]:
    """Shares of the dialogues that ended with a delighted user, and with one who had had enough."""
    return {
        "success_rate": share_of(played, lambda one: one.dialogue.emotion >= DELIGHTED_AT, seed=seed),
        "failure_rate": share_of(played, lambda one: one.dialogue.emotion < LEFT_BELOW, seed=seed),
    }


def share_of(played: Sequence[Played], is_one: Callable[[Played], bool], *, seed: int) -> dict[str, float | None]:
    """Share of the dialogues, [0, 1], with its interval."""
    rows = [(one.task.scenario_id, i, 0, one.task.strictness, float(is_one(one)), 1.0) for i, one in enumerate(played)]
    return ratio(rows, seed=seed).to_dict()


def errors(played: Sequence[Played], *, planned: int) -> dict[str, Any]:
    """How many dialogues broke, by reason, the most frequent first, how many were not played at all, and how many ran out of context.

    The agent's own complaints speak of its options already; any other setting they name is the user's.
    """
    cut = cut_short(one.dialogue for one in played)
    reasons = Counter(in_options(last_line(one.dialogue.error), "--user-") for one in played if one.dialogue.outcome is Outcome.ERROR)
    return {
        "planned": planned,
        "not_played": planned - len(played),
        "excluded_dialogues": sum(reasons.values()),
        "reasons": dict(reasons.most_common(MAX_REASONS)),
        "cut_short": sum(one.dialogue.outcome is Outcome.TRUNCATED for one in played),
        **({"cut_short_by_user": cut.by_user, "cut_short_replies": cut.replies} if cut.share > 0.0 else {}),
    }
