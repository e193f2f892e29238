"""Held-out scores by the listener of training and by a second one, on the same dialogues: the curves of both, and whether they part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.stats import mean_interval
from curriculum.collapse.monitor import Alarm
from simulator.dialogue import Outcome

SECOND = "second_listener"
"""Key of a held-out dialogue: `emotions`, `changes`, `readings` and `final` as the second listener (`by`) heard it, or an `error`. In
`summary.json`, its score."""
MAX_UNHEARD = 0.05
"""Share of an evaluation's dialogues that the second listener may fail on; with more, its score would be that of those it can read."""
NUM_LATER = 10
"""Evaluations of a run after the first."""
LEVEL = 0.05
"""Probability that a run without a gap has an alarm, over all its evaluations; `judge_gap` is Bonferroni-corrected."""


class Judged(NamedTuple):
    """One evaluation, on the dialogues of the small grid that both listeners heard. Changes are since the first evaluation, in points."""

    step: int
    policy_tokens: int
    by: str
    """The second listener, such as `rule` or `model qwen`."""
    score: float
    """Mean final emotion by the listener of training, 0-100."""
    second: float
    """By the second listener."""
    change_S: np.ndarray
    """Change of `score` by scenario, float[S], paired by dialogue."""
    second_change_S: np.ndarray
    """Of `second`."""

    @property
    def gap(self) -> float:
        """Points by which the listener of training scores higher."""
        return self.score - self.second

    @property
    def parts(self) -> bool:
        """Whether the first score rose, the second did not, and the first rose by more than the second.

        Three one-sided paired t tests over scenarios at the level 0.05 / 10. The third is needed because of two changes one may be
        significant and the other not without a significant difference of both (Gelman and Stern 2006).
        """
        from scipy.stats import t as student

        if self.change_S.size < 2:
            return False
        limit = float(student.ppf(1.0 - LEVEL / NUM_LATER, self.change_S.size - 1))
        rose, second_rose, gap_rose = map(t_value, (self.change_S, self.second_change_S, self.change_S - self.second_change_S))
        return rose > limit and gap_rose > limit and not second_rose > limit


def t_value(values_S: np.ndarray) -> float:
    """Mean over its standard error; NaN where nothing varies."""
    error = float(values_S.std(ddof=1)) / math.sqrt(values_S.size)
    return float(values_S.mean()) / error if error > 0.0 else math.nan


def is_heard(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the second listener heard nearly all of an evaluation's dialogues (`MAX_UNHEARD`)."""
    unheard = sum("final" not in (line.get(SECOND) or {}) for line in lines)
    return bool(lines) and unheard <= MAX_UNHEARD * len(lines)


def judged_looks(lines: Iterable[Mapping[str, Any]]) -> list[Judged]:
    """The evaluations of a run that its second listener heard, in their order.

    Args:
        lines: of `evaluation.jsonl`; ERROR dialogues count nowhere.
    """
    by_look: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["in_during"] and line.get("outcome") != Outcome.ERROR:
            by_look.setdefault(line["look"], []).append(line)
    found: list[Judged] = []
    first: dict[str, Mapping[str, Any]] = {}
    for _, played in sorted(by_look.items()):
        if not is_heard(played):
            continue
        heard = {line["uid"]: line for line in played if "final" in line[SECOND]}
        first = first or heard
        changes: dict[str, list[tuple[float, float]]] = {}
        for uid in sorted(heard.keys() & first.keys()):
            now, then = heard[uid], first[uid]
            change = (now["emotion"] - then["emotion"], now[SECOND]["final"] - then[SECOND]["final"])
            changes.setdefault(now["scenario_id"], []).append(change)
        change_S, second_change_S = np.array([np.mean(pairs, axis=0) for pairs in changes.values()]).reshape(-1, 2).T
        score = float(np.mean([one["emotion"] for one in heard.values()]))
        second = float(np.mean([one[SECOND]["final"] for one in heard.values()]))
        by = str(next(iter(heard.values()))[SECOND]["by"])
        found.append(Judged(played[0]["step"], played[0]["policy_tokens"], by, score, second, change_S, second_change_S))
    return found


def gap_of(lines: Sequence[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """`gap`, the listener of training less the second one over the dialogues that both heard, with its interval over scenarios."""
    both = [line for line in lines if "final" in (line.get(SECOND) or {})]
    gaps = [float(line["emotion"] - line[SECOND]["final"]) for line in both]
    within, rng = (-100.0, 100.0), np.random.default_rng(seed)
    interval = mean_interval(gaps, [line["scenario_id"] for line in both], rng=rng, within=within)
    return {"gap": float(np.mean(gaps)) if gaps else math.nan, "gap_ci95": list(interval)}


def gap_alarm(lines: Iterable[Mapping[str, Any]]) -> Alarm | None:
    """The alarm `judge_gap` of the latest evaluation; None where both agree, or parted at the evaluation before already."""
    seen = judged_looks(lines)
    if len(seen) < 2 or not seen[-1].parts or seen[-2].parts:
        return None
    first, now = seen[0], seen[-1]
    message = (
        f"Held-out score changed by {now.score - first.score:+.1f} points since the start, and by {now.second - first.second:+.1f} to a "
        f"second listener ({now.by}) of the same dialogues: the policy may please only the listener that it trains with."
    )
    return Alarm(name="judge_gap", step=now.step, message=message, values={"score": now.score, "second": now.second, "gap": now.gap})
