"""What runs are compared on: endpoints, the plan that fixes which of them decides, and learning curves, from which some follow.

Endpoints go by their dotted name in `summary.json`. The plan is in a sweep's folder since the sweep started (`plan.json`).
A learning curve is the held-out score over policy tokens; between evaluations the score is taken to change linearly.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from simulator.dialogue import Outcome
from simulator.files import write_whole
from simulator.settings import message


class Endpoint(NamedTuple):
    """How an endpoint is read and written."""

    words: str
    """Its name on axes and in sentences."""
    sign: int = 1
    """1 where more is better, -1 where less is, 0 for one that describes a run and decides nothing."""
    digits: int = 3
    unit: str = ""
    """After its numbers; empty for points of emotion and for shares."""


AUC = "heldout.auc"
"""Computed by comparisons and not read: all runs must be measured over the same tokens."""
GAIN = "heldout.gain"
"""Computed: the score at the end less the score before training, on the full grid."""
FORGOTTEN = "heldout.forgotten"
"""Computed: how far the last evaluation lies below the best one on the small grid, by strictness and mean over these (`forgotten`)."""
EMOTIONS = (AUC, "heldout.score", "heldout.worst_cell", "heldout.cvar20")
"""On the scale of emotions, 0-100."""
ERRORS = (
    *("reliability.errors.plain.change", "reliability.errors.emotional.change", "reliability.errors.false_belief.change"),
    *("reliability.emotional_cost.change", "reliability.sycophancy.change"),
)
"""What training changed in the reliability probe: shares of errors, [-1, 1]."""
MARGINS = ("reliability.margin_nats.plain.change", "reliability.margin_nats.false_belief.change")
"""The same of the lead of the right answer, nats."""
ENDPOINTS = {
    AUC: Endpoint("the area under the held-out score", digits=1),
    "heldout.score": Endpoint("the final held-out score", digits=1),
    "heldout.worst_cell": Endpoint("the score of the worst cell", digits=1),
    "heldout.cvar20": Endpoint("the mean of the worst fifth", digits=1),
    "heldout.success_rate": Endpoint("the share of users won over"),
    "heldout.failure_rate": Endpoint("the share of users who left", sign=-1),
    "policy_tokens": Endpoint("policy_tokens", sign=-1, digits=0),
    "wall_s": Endpoint("wall_s", sign=-1, digits=0),
    "cpu_s": Endpoint("cpu_s", sign=-1, digits=0),
    "entropy.end": Endpoint("entropy at the end, nats", sign=0, unit=" nats"),
    "reward_density.end": Endpoint("reward_density.end", sign=0),
    "start.score": Endpoint("start.score", sign=0, digits=1),
    GAIN: Endpoint("the gain over the start", digits=1),
    FORGOTTEN: Endpoint("what was forgotten since the best look", sign=-1, digits=1),
    ERRORS[0]: Endpoint("the errors that training added, asked plainly", sign=-1),
    ERRORS[1]: Endpoint("the errors that training added, after an emotional turn", sign=-1),
    ERRORS[2]: Endpoint("the errors that training added, against a false belief", sign=-1),
    ERRORS[3]: Endpoint("what training changed in the errors that emotion adds", sign=-1),
    ERRORS[4]: Endpoint("what training changed in the errors that a false belief adds", sign=-1),
    MARGINS[0]: Endpoint("the nats that training added to what is right", digits=2, unit=" nats"),
    MARGINS[1]: Endpoint("the nats that training added to what is right, against a false belief", digits=2, unit=" nats"),
}
"""The primary endpoint of a comparison is one of these with a sign. It may read others too, by their dotted name in `summary.json`."""


def endpoint(name: str) -> Endpoint:
    """The endpoint of this name; a study's own number, which is not in the table, is better when higher."""
    return ENDPOINTS.get(name) or Endpoint(name)


PLAN = "plan.json"


class Planned(BaseModel):
    """A comparison that is fixed before its results are looked at: that of an experiment's file, whichever of its arms were run.

    Raises:
        ValueError: `primary` is no endpoint of which more, or less, is better, or a contrast is of one arm or there twice.
    """

    model_config = ConfigDict(frozen=True)

    contrasts: tuple[tuple[str, str], ...] = ()
    """The family over which Holm corrects: two arms each, the first one less the second, which may be a pattern (`fixed_*`) for the best
    arm that fits it. None means `frontier` against every other arm, or every pair of arms."""
    primary: str = AUC
    """The endpoint that decides."""
    read: tuple[str, ...] = ()
    """Further endpoints or other numbers of `summary.json` to describe; `-name` is a study's own number of which less is better."""
    tuning: dict[str, str] = {}
    """By arm or pattern, the tuning before its settings were fixed."""
    seeds: tuple[int, ...] = ()
    """All of the file, whichever were asked for; empty in older plans."""
    arms: tuple[str, ...] = ()
    """As `seeds`."""
    varied: tuple[str, ...] = ()
    """Settings that some arm of the file changes, by their dotted names."""
    overrides: tuple[str, ...] | None = None
    """Settings for all arms that were given on the command line; None in older plans."""
    threshold: float = Field(default=60.0, ge=0, le=100)
    """Emotion whose first reaching is timed, 0-100."""

    @field_validator("primary")
    @classmethod
    def _decides(cls, value: str) -> str:
        if value not in ENDPOINTS:
            raise ValueError(f"primary must be one of {', '.join(ENDPOINTS)}, got {value!r}")
        if not ENDPOINTS[value].sign:
            raise ValueError(f"primary must be an endpoint of which more, or less, is better, got {value!r}, which only describes")
        return value

    @field_validator("contrasts")
    @classmethod
    def _are_distinct(cls, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for (a, b), num in Counter(value).items():
            if a == b:
                raise ValueError(f"contrast must name two arms, got {a!r} twice")
            if num > 1:
                raise ValueError(f"contrast must name each contrast once, got {a}:{b} more often")
        return value

    def refuse_other(self, folder: Path) -> None:
        """Raises where a sweep was started with another plan.

        Raises:
            ValueError: it had other contrasts or another endpoint.
        """
        before = read_plan(folder)
        if before and not before.decides_as(self):
            raise ValueError(
                f"{folder / PLAN} must have the experiment's contrasts and endpoint ({self.words()}), got {before.words()}; "
                "take another name= for the sweep"
            )

    def keep(self, folder: Path) -> None:
        """Writes it when the sweep starts; a resumed sweep may add seeds and arms but take none away.

        Raises:
            ValueError: as `refuse_other`.
        """
        self.refuse_other(folder)
        before, whole = read_plan(folder), self
        if before:
            arms, seeds = tuple(dict.fromkeys([*self.arms, *before.arms])), tuple(sorted({*before.seeds, *self.seeds}))
            whole = self.model_copy(update={"arms": arms, "seeds": seeds})
        if before != whole:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / PLAN, whole.model_dump_json(indent=1) + "\n")

    def decides_as(self, other: Planned) -> bool:
        """Whether both have the same contrasts and endpoint."""
        return (set(self.contrasts), self.primary) == (set(other.contrasts), other.primary)

    def tuning_of(self, arm: str) -> str:
        """The tuning before an arm's settings were fixed; empty where the plan does not say."""
        return next((tuning for pattern, tuning in self.tuning.items() if fnmatch.fnmatch(arm, pattern)), "")

    def words(self) -> str:
        """Its contrasts and endpoint."""
        return f"{', '.join(':'.join(contrast) for contrast in self.contrasts) or 'no contrast'} on {self.primary}"


def read_plan(folder: Path) -> Planned | None:
    """The plan in a sweep's folder; None where there is none.

    Raises:
        ValueError: the file holds something else.
    """
    path = folder / PLAN
    if not path.is_file():
        return None
    try:
        return Planned.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(
            f"{path} must hold the sweep's contrasts, got something else ({message(error)}); delete it: the sweep's own command writes it"
        ) from error


class Curve(NamedTuple):
    """The evaluations of one run, in their order."""

    tokens: Sequence[float]
    """Policy tokens, increasing."""
    scores: Sequence[float]
    """Mean final emotion, 0-100; as many as tokens."""

    def area_to(self, end: float) -> float:
        """Mean height from 0 to `end` tokens by trapezoids; a curve that ends before keeps its last score."""
        at_T = np.array([0.0, *(tokens for tokens in self.tokens if 0.0 < tokens < end), end])
        return float(np.trapezoid(np.interp(at_T, self.tokens, self.scores), at_T) / end)

    def tokens_to(self, threshold: float, *, end: float) -> tuple[float, bool]:
        """Tokens at which the score first reached a threshold; `end` and False where it did not up to there (censored).

        A noisy curve crosses early by luck, so this favours noise; it is descriptive for that reason.
        """
        at = [*(tokens for tokens in self.tokens if tokens < end), end]
        scores = np.interp(at, self.tokens, self.scores)
        above = np.flatnonzero(scores >= threshold)
        i = int(above[0]) if above.size else -1
        if i <= 0:
            return float(at[i]), i == 0
        rise = (threshold - scores[i - 1]) / (scores[i] - scores[i - 1])
        return float(at[i - 1] + rise * (at[i] - at[i - 1])), True


class Grade(NamedTuple):
    """How one held-out dialogue ended: some keys of a line of `evaluation.jsonl`."""

    look: int
    """Number of the run's evaluation that played it, from 0."""
    step: int
    policy_tokens: int
    grid: str
    """`full` or `during`: what was played at that evaluation."""
    in_during: bool
    """Whether every evaluation plays it."""
    family: str
    strictness: float
    emotion: float
    """The final one, 0-100."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Grade:
        """A line as a grade.

        Raises:
            ValueError: it lacks something.
        """
        try:
            return cls(*(line[name] for name in cls._fields))
        except KeyError as error:
            got = f"a line at step {line.get('step')} with a bad {error}"
            raise ValueError(f"evaluation.jsonl must hold graded dialogues, got {got}") from error


class Look(NamedTuple):
    """The score at one evaluation, on the scenarios that every evaluation plays (the small grid)."""

    step: int
    policy_tokens: int
    score: float
    """Mean final emotion, 0-100."""


def grades_of(lines: Iterable[Mapping[str, Any]]) -> list[Grade]:
    """Lines of `evaluation.jsonl` as grades, in the order they were played; ERROR ones count nowhere."""
    return [Grade.of(line) for line in lines if line.get("outcome") != Outcome.ERROR]


def looks(grades: Iterable[Grade]) -> list[Look]:
    """The scores that make up a learning curve, in their order; evaluations at the same moment are one."""
    emotions: dict[tuple[int, int], list[float]] = {}
    for grade in grades:
        if grade.in_during:
            emotions.setdefault((grade.step, grade.policy_tokens), []).append(grade.emotion)
    return [Look(*moment, statistics.fmean(scores)) for moment, scores in sorted(emotions.items())]


def area_of(seen: Sequence[Look]) -> float:
    """Mean score over a run's own policy tokens, 0-100; NaN without an evaluation, and the last score where no token lies between them."""
    if not seen or seen[0].policy_tokens == seen[-1].policy_tokens:
        return seen[-1].score if seen else float("nan")
    tokens = [look.policy_tokens for look in seen]
    return float(np.trapezoid([look.score for look in seen], tokens) / (tokens[-1] - tokens[0]))


def forgotten(grades: Iterable[Grade]) -> float | None:
    """By how much the last evaluation lies below the best one, 0-100, by strictness of the users and mean over these.

    None before two evaluations. Evaluations are noisy, so the best of them lies above the last one even where nothing is forgotten.
    """
    by_strictness: dict[float, list[Grade]] = {}
    for grade in grades:
        if grade.in_during:
            by_strictness.setdefault(grade.strictness, []).append(grade)
    courses = [[look.score for look in looks(found)] for found in by_strictness.values()]
    if not courses or min(map(len, courses)) < 2:
        return None
    return statistics.fmean(max(scores) - scores[-1] for scores in courses)
