"""What a run showed, in one sentence that claims no more than its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.grades import Look
from analysis.pages.before_after import BeforeAfter, Gain
from analysis.runs import EVALUATION, METRICS, SUMMARY, Run, setting
from analysis.wording import count, way_covered

LOST = 5.0
"""Points by which the best look lies above the last one where a gain was lost again. Looks are of few users and noisy, and the best of
them lies above the last one by itself: in nine of ten runs by less than this."""


def verdict(run: Run, held_out: BeforeAfter) -> str:
    """The first sentence of a report."""
    start, end = score(run, "start"), score(run, "heldout")
    if SUMMARY in run.torn:
        return f"What this run reached cannot be told{on_the_small_grid(held_out)}."
    if run.summary is None or end is None:
        return unfinished(run, held_out)
    if start is None:
        return f"The held-out score is {end:.1f} of 100 after training; what it was before was not measured."
    if held_out.gain is None or EVALUATION in run.torn:
        return f"The held-out score went from {start:.1f} to {end:.1f} of 100; how sure that is cannot be told without {EVALUATION}."
    way = way_to_expert(run, start, end)
    if math.isnan(held_out.gain.low):
        return f"The held-out score went from {start:.1f} to {end:.1f} of 100{way}; with one scenario how sure that is cannot be told."
    return f"{change(start, end, held_out.gain)}{way}."


def caveat(run: Run, held_out: BeforeAfter) -> str:
    """What must be known to read the verdict: the alarms, whether a gain was lost again, and what one seed can say."""
    seed = "One training seed describes a run; it does not decide between methods."
    return " ".join(filter(None, (alarms_in_short(run), lost_again(held_out.looks), seed)))


def alarms_in_short(run: Run) -> str:
    """Which alarms went off, collapse before all others; empty while a run without any has no summary."""
    alarms = alarms_of(run)
    if any(alarm["name"] == "collapse" for alarm in alarms):
        step = min(alarm["step"] for alarm in alarms if alarm["name"] == "collapse")
        return f"Collapse was reported from step {step}: read the transcripts before trusting the score."
    if alarms:
        names = ", ".join(sorted({alarm["name"] for alarm in alarms}))
        return f"{count(len(alarms), 'alarm')} went off ({names}), but not the one named collapse."
    return "No alarm went off." if run.summary else ""


def lost_again(looks: Sequence[Look]) -> str:
    """That a look in the course of training was better than the last one; empty where it was not, or by less than `LOST`."""
    best = max(looks, key=lambda look: look.score, default=None)
    if best is None or best is looks[0] or best.score - looks[-1].score < LOST:
        return ""
    return f"On the small grid the score had reached {best.score:.1f} at step {best.step} and was {looks[-1].score:.1f} at the last look."


def change(start: float, end: float, gain: Gain) -> str:
    """How the score moved, and whether that is more than the choice of scenarios explains.

    Args:
        gain: with an interval that is known.
    """
    numbers = f"from {start:.1f} to {end:.1f} of 100 ({gain.mean:+.1f}, 95% interval {gain.low:+.1f} to {gain.high:+.1f})"
    if gain.low > 0.0:
        return f"Training raised the held-out score {numbers}"
    if gain.high < 0.0:
        return f"Training lowered the held-out score {numbers}"
    return f"Training made no clear difference: the held-out score went {numbers}"


def way_to_expert(run: Run, start: float, end: float) -> str:
    """Which part of the distance to the scripted expert was covered; nothing where there is no such distance."""
    expert = setting(run.summary, "reference.L6.score")
    covered = way_covered(start, end, expert)
    return f", {covered} of the way to the scripted expert L6 ({expert:.1f})" if covered else ""


def unfinished(run: Run, held_out: BeforeAfter) -> str:
    """How far a run has come that has no summary."""
    how_far = "how far it came cannot be told" if METRICS in run.torn else f"{count(run.num_steps, 'step')} so far"
    so_far = f"This run has not finished: {how_far}"
    if EVALUATION in run.torn:
        return f"{so_far}; its held-out scores cannot be told."
    return f"{so_far}{on_the_small_grid(held_out) or ', and no held-out score yet'}."


def on_the_small_grid(held_out: BeforeAfter) -> str:
    """How a sentence goes on about the looks that were taken; empty without any."""
    if not held_out.looks:
        return ""
    first, last = held_out.looks[0], held_out.looks[-1]
    if len(held_out.looks) == 1:
        return f"; the held-out score before training is {first.score:.1f} of 100"
    return f"; on the small held-out grid the score was {first.score:.1f} of 100 before training and {last.score:.1f} at step {last.step}"


def score(run: Run, when: str) -> float | None:
    """The mean final emotion on the full grid, `start` or `heldout`; None where it was not measured."""
    return setting(run.summary, f"{when}.score")


def alarms_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """The alarms that the summary lists."""
    return setting(run.summary, "collapse.alarms", [])
