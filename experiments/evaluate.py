"""The held-out grid: every held-out scenario at five strictnesses, the same seeds for every arm, and what is read off it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.stats import mean_interval
from analysis.transcripts import CutShort
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Outcome
from simulator.scenario import Difficulty, HiddenIntention, Scenario

BANDS: tuple[tuple[float, float], ...] = ((0.0, 0.4), (0.4, 0.6), (0.6, 1.01))
"""Three difficulty bands [low, high): on the default grid .1 and .3, .5, and .7 and .9."""
WORST_SHARE = 0.2
TRIES = "tries"
"""Key of a recorded held-out dialogue: final emotions of all dialogues with that user at that look, its own first; None where one broke."""
EMOTION_RANGE = (0.0, 100.0)
"""Between which every score lies."""


@dataclass
class EvaluationConfig:
    """What is asked of the policy on scenarios it never practised."""

    strictness: list[float] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    """Each in [0, 1], distinct, at least one: the columns of the grid."""
    num_scenarios: int = 0
    """>= 0: held-out scenarios in the full grid, spread over the families; 0 means all of them."""
    during_scenarios: int = 24
    """>= 1: scenarios in the smaller fixed grid that is played at every tenth of the budget."""
    temperature: float = 1.0
    """>= 0, at which the policy speaks; 0 is greedy. As in training by default, so that what is judged is what is trained."""
    split: str = "heldout"
    """`heldout` during development; `sealed` once, for a confirmatory result."""

    def __post_init__(self) -> None:
        if not self.strictness or not are_distinct(self.strictness):
            raise ValueError(f"evaluation.strictness must name at least one strictness, each once, got {self.strictness!r}")
        for value in self.strictness:
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"evaluation.strictness must hold values in [0, 1], got {value!r}")
        if self.num_scenarios < 0:
            raise ValueError(f"evaluation.num_scenarios must be >= 0, got {self.num_scenarios!r}; 0 means all")
        if self.during_scenarios < 1:
            raise ValueError(f"evaluation.during_scenarios must be >= 1, got {self.during_scenarios!r}")
        if not self.temperature >= 0.0:
            raise ValueError(f"evaluation.temperature must be >= 0, got {self.temperature!r}; 0 is greedy")
        if self.split not in ("heldout", "sealed"):
            raise ValueError(f"evaluation.split must be 'heldout' or 'sealed', got {self.split!r}; training scenarios judge nothing")


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """One dialogue of the grid. It is no TaskSpec, so it can never reach a teacher."""

    uid: str
    scenario_id: str
    strictness: float
    difficulty: Difficulty
    seed: int
    group_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Graded:
    """How one held-out dialogue ended."""

    scenario_id: str
    intention: HiddenIntention
    strictness: float
    emotion: int
    """Final emotion, 0-100."""
    outcome: Outcome

    @classmethod
    def of(cls, dialogue: Dialogue, *, strictness: float) -> Graded:
        """What counts of a finished dialogue."""
        assert dialogue.outcome is not None, "only finished dialogues are graded"
        return cls(
            scenario_id=dialogue.scenario.scenario_id,
            intention=dialogue.scenario.family.intention,
            strictness=strictness,
            emotion=dialogue.emotion,
            outcome=dialogue.outcome,
        )


def cut_short(dialogues: Iterable[Dialogue]) -> CutShort:
    """How many dialogues ended because their context was full; those that broke count nowhere."""
    whole = (dialogue for dialogue in dialogues if dialogue.outcome is not Outcome.ERROR)
    return CutShort.of((str(dialogue.outcome), [(str(turn.speaker), turn.text) for turn in dialogue.turns]) for dialogue in whole)


def are_distinct(strictness: Sequence[float]) -> bool:
    """Whether no two of them are the same to four digits, as seeds and names of dialogues have them."""
    return len({f"{d:.4f}" for d in strictness}) == len(strictness)


def grid_seed(scenario_id: str, strictness: float) -> int:
    """A seed in [0, 2^31) from the cell alone, so that every arm and every step meets the same users."""
    digest = hashlib.sha256(f"{scenario_id}@{strictness:.4f}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def grid_tasks(scenarios: Iterable[Scenario], strictness: Sequence[float]) -> list[EvaluationTask]:
    """Every scenario at every strictness, scenarios outermost."""
    return [
        EvaluationTask(
            uid=f"eval:{scenario.scenario_id}@{d:g}",
            scenario_id=scenario.scenario_id,
            strictness=d,
            difficulty=Difficulty.along(d),
            seed=grid_seed(scenario.scenario_id, d),
        )
        for scenario in scenarios
        for d in strictness
    ]


def spread(scenarios: Sequence[Scenario], num_scenarios: int) -> list[Scenario]:
    """A fixed choice that visits the families in turn; 0, or more than there are, means all of them."""
    if num_scenarios == 0 or num_scenarios >= len(scenarios):
        return sorted(scenarios, key=lambda scenario: scenario.scenario_id)
    by_family: dict[str, list[Scenario]] = {}
    for scenario in sorted(scenarios, key=lambda scenario: scenario.scenario_id):
        by_family.setdefault(str(scenario.family), []).append(scenario)
    rounds = max(len(members) for members in by_family.values())
    in_turn = [members[i] for i in range(rounds) for _, members in sorted(by_family.items()) if i < len(members)]
    return in_turn[:num_scenarios]


def summarise(graded: Sequence[Graded], *, seed: int = 0) -> dict[str, Any]:
    """The held-out keys of `summary.json`; ERROR dialogues count nowhere, and an empty grid gives NaN.

    Args:
        seed: of the bootstrap.
    """
    valid = [item for item in graded if item.outcome is not Outcome.ERROR]
    emotions = np.array([item.emotion for item in valid], dtype=float)
    per_scenario = np.array([mean for _, mean in sorted(means_by(valid, lambda item: item.scenario_id).items())])
    by_strictness = means_by(valid, lambda item: f"{item.strictness:g}")
    return {
        "score": mean(emotions),
        "score_ci95": list(
            mean_interval(emotions, [item.scenario_id for item in valid], rng=np.random.default_rng(seed), within=EMOTION_RANGE)
        ),
        "by_strictness": dict(sorted(by_strictness.items(), key=lambda pair: float(pair[0]))),
        "worst_cell": worst_cell(valid),
        "cvar20": worst_mean(per_scenario),
        "success_rate": mean(emotions >= DELIGHTED_AT),
        "failure_rate": mean(emotions < LEFT_BELOW),
        "cut_short": mean(np.array([item.outcome is Outcome.TRUNCATED for item in valid], dtype=float)),
        "n_dialogues": len(valid),
    }


def worst_cell(graded: Sequence[Graded]) -> float:
    """Mean final emotion in the worst cell of hidden intention x difficulty band; NaN of nothing."""
    return min(means_by(graded, lambda item: (item.intention, band(item.strictness))).values(), default=float("nan"))


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean, NaN when there is nothing to average."""
    return float(np.mean(values)) if len(values) else float("nan")


def means_by(graded: Sequence[Graded], key: Callable[[Graded], Any]) -> dict[Any, float]:
    """Mean final emotion of the dialogues that share a key."""
    groups: dict[Any, list[int]] = {}
    for item in graded:
        groups.setdefault(key(item), []).append(item.emotion)
    return {name: float(np.mean(emotions)) for name, emotions in groups.items()}


def band(strictness: float) -> int:
    """Index of the difficulty band."""
    return next(i for i, (low, high) in enumerate(BANDS) if low <= strictness < high)


def worst_mean(values_N: np.ndarray, share: float = WORST_SHARE) -> float:
    """Mean of the worst `share` of the values, at least one of them (the conditional value at risk)."""
    if not values_N.size:
        return float("nan")
    num_worst = max(1, int(np.ceil(share * values_N.size - 1e-9)))
    return float(np.sort(values_N)[:num_worst].mean())
