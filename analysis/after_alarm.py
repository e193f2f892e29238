"""What happened after an alarm: how long it stayed on, and how score, entropy and reward density went on from there."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.endpoints import Look
from analysis.runs import Run, setting
from analysis.text import count, text


def alarms_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """The alarms that the summary lists."""
    return setting(run.summary, "collapse.alarms", [])


UNNAMED = "alarm"
"""Before there is a summary, a run's metrics say when alarms went off and not which."""
OF_WHICH_GRID = "Held-out scores here are of the small grid, as in the curves."


class Change(NamedTuple):
    """A value when the alarm went off and at the end of the record."""

    then: float | None
    end: float | None


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """One alarm and what followed; before there is a summary, all that went off at a step."""

    name: str
    num: int = 1
    step: int
    message: str
    off_after: int | None
    """Steps until no alarm was on any more; None where one still was at the end."""
    score: Change
    """Held-out, on the small grid: the latest look up to the alarm, and the last look after it."""
    entropy: Change
    density: Change


def aftermaths(run: Run, looks: Sequence[Look]) -> list[Aftermath]:
    """Every alarm of a run, in the order they went off."""
    alarms = [(str(alarm.get("name")), 1, int(alarm["step"]), str(alarm.get("message", ""))) for alarm in alarms_of(run)]
    if run.summary is None:
        alarms = [(count(num, UNNAMED), num, step, "what was said stands in the run's log") for step, num in rises(run).items()]
    return [
        Aftermath(
            name=name,
            num=num,
            step=step,
            message=message,
            off_after=off_after(run, step),
            score=score_around(looks, step),
            entropy=around(run, "actor/entropy", step),
            density=around(run, "curriculum/reward_density", step),
        )
        for name, num, step, message in sorted(alarms, key=lambda alarm: alarm[2])
    ]


def alarm_steps(run: Run) -> list[float]:
    """Steps at which alarms went off; before there is a summary, those at which more were on than the step before."""
    if run.summary is not None:
        return sorted({float(alarm["step"]) for alarm in alarms_of(run)})
    return [float(step) for step in rises(run)]


def rises(run: Run) -> dict[int, int]:
    """By how many more alarms were on than the step before, by step; one that went off as another ended is not seen."""
    steps, num_on = run.series("collapse/alarms_on")
    return {step: int(now - before) for step, before, now in zip(steps, [0.0, *num_on], num_on, strict=False) if now > before}


def num_alarms(run: Run) -> int:
    """How many alarms went off, several at one step each counted; at least so many while there is no summary."""
    return len(alarms_of(run)) if run.summary is not None else sum(rises(run).values())


def told_number(runs: Sequence[Run]) -> str:
    """How many alarms went off in these runs, and that it may be more where one that had some has no summary."""
    is_least = any(run.summary is None and num_alarms(run) for run in runs)
    return f"{'at least ' if is_least else ''}{sum(map(num_alarms, runs))}"


def off_after(run: Run, step: int) -> int | None:
    """Steps from an alarm until none was on."""
    return next((at - step for at, num in zip(*run.series("collapse/alarms_on"), strict=True) if at > step and num == 0), None)


def score_around(looks: Sequence[Look], step: int) -> Change:
    """The held-out score before an alarm, and at the last look where that came later."""
    before = bisect.bisect_right([look.step for look in looks], step) - 1
    then = looks[before].score if before >= 0 else None
    return Change(then, looks[-1].score if looks and looks[-1].step > step else None)


def around(run: Run, key: str, step: int, *, width: int = 3) -> Change:
    """A metric at an alarm and at the end, means of `width` steps because single ones are noisy."""
    steps, values = run.series(key)
    at = bisect.bisect_right(steps, step)
    if not at:
        return Change(None, None)
    last = values[-width:] if steps[-1] > step else []
    then = values[max(at - width, 0) : at]
    return Change(sum(then) / len(then), sum(last) / len(last) if last else None)


def told(item: Aftermath) -> str:
    """What followed, in a sentence."""
    if item.score.end is None and item.entropy.end is None:
        return "It was the last thing recorded."
    on = "alarms were on to the end" if item.off_after is None else f"no alarm was on {count(item.off_after, 'step')} later"
    changes = [
        ("the held-out score went", item.score, "{:.1f}"),
        ("entropy", item.entropy, "{:.3f}"),
        ("reward density", item.density, "{:.3f}"),
    ]
    went = [f"{name} {between(change, form)}" for name, change, form in changes if change.then is not None and change.end is not None]
    return f"What followed: {on}; {', '.join(went)}." if went else f"What followed: {on}."


def between(change: Change, form: str) -> str:
    """`from 40.0 to 55.0`."""
    return f"from {text(change.then, form)} to {text(change.end, form)}"
