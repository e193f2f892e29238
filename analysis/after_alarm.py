"""What happened after an alarm: how long it stayed on, and how score, entropy and reward density went on."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.endpoints import Look
from analysis.runs import Run
from analysis.text import count
from simulator.settings import setting

WHICH_GRID = "Held-out scores here are of the small grid, as in the curves."


class AfterAlarm(NamedTuple):
    """An alarm and what followed; before a run has a summary, all alarms of one step."""

    name: str
    num: int
    step: int
    message: str
    followed: str
    """A sentence."""


def alarms_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """The alarms that the summary lists."""
    return setting(run.summary, "collapse.alarms", [])


def alarm_steps(run: Run) -> list[float]:
    """Steps at which alarms went off; before there is a summary, those at which more were on than the step before."""
    return sorted({float(alarm["step"]) for alarm in alarms_of(run)} if run.summary is not None else map(float, rises(run)))


def rises(run: Run) -> dict[int, int]:
    """By how many more alarms were on than the step before, by step; one that went off as another ended is not seen."""
    steps, num_on = run.series("collapse/alarms_on")
    return {step: int(now - before) for step, before, now in zip(steps, [0.0, *num_on], num_on, strict=False) if now > before}


def num_alarms(run: Run) -> int:
    """How many alarms went off, several at one step each counted; a lower bound while there is no summary."""
    return len(alarms_of(run)) if run.summary is not None else sum(rises(run).values())


def alarms_in_all(runs: Sequence[Run]) -> str:
    """How many alarms went off in these runs; `at least` where an unfinished run had some."""
    is_least = any(run.summary is None and num_alarms(run) for run in runs)
    return f"{'at least ' if is_least else ''}{sum(map(num_alarms, runs))}"


def after_alarms(run: Run, looks: Sequence[Look]) -> list[AfterAlarm]:
    """Every alarm of a run with what followed, in the order they went off.

    Args:
        looks: held-out scores on the small grid.
    """
    alarms = [(int(alarm["step"]), str(alarm["name"]), 1, str(alarm["message"])) for alarm in alarms_of(run)]
    if run.summary is None:
        alarms = [(step, count(num, "alarm"), num, "its message is in the run's log") for step, num in rises(run).items()]
    return [AfterAlarm(name, num, step, message, followed(run, looks, step)) for step, name, num, message in sorted(alarms)]


def followed(run: Run, looks: Sequence[Look], step: int) -> str:
    """The sentence: steps until no alarm was on, and score, entropy and reward density at the alarm and at the end."""
    changes = [
        ("the held-out score went", around([look.step for look in looks], [look.score for look in looks], step, width=1), "{:.1f}"),
        ("entropy", around(*run.series("actor/entropy"), step), "{:.3f}"),
        ("reward density", around(*run.series("curriculum/reward_density"), step), "{:.3f}"),
    ]
    went = [f"{name} from {form.format(change[0])} to {form.format(change[1])}" for name, change, form in changes if change]
    if not went:
        return "It was the last thing recorded."
    off_after = next((at - step for at, num in zip(*run.series("collapse/alarms_on"), strict=True) if at > step and num == 0), None)
    on = "alarms were on to the end" if off_after is None else f"no alarm was on {count(off_after, 'step')} later"
    return f"What followed: {on}; {', '.join(went)}."


def around(steps: Sequence[int], values: Sequence[float], step: int, *, width: int = 3) -> tuple[float, float] | None:
    """A metric at a step and at the end, means of `width` values because single ones are noisy; None where either is missing."""
    at = bisect.bisect_right(steps, step)
    if not at or steps[-1] <= step:
        return None
    then, last = values[max(at - width, 0) : at], values[-width:]
    return sum(then) / len(then), sum(last) / len(last)
