"""Sections that the pages about runs and sweeps share: held-out dialogues before and after training, and what followed each alarm."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from analysis.endpoints import Grade, Look, looks
from analysis.runs import Run
from analysis.stats import mean_interval
from analysis.text import count
from analysis.transcripts import Record, transcript
from simulator.dialogue import Outcome
from simulator.settings import setting


class Pair(NamedTuple):
    """The same held-out dialogue before and after training: same scenario, strictness and seed."""

    before: Record
    after: Record

    @property
    def gain(self) -> float:
        """Points of final emotion."""
        return float(self.after["emotion"]) - float(self.before["emotion"])


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """A run's evaluations so far."""

    looks: list[Look]
    pairs: list[Pair]
    """Of the full grid at the start and at the last full evaluation; empty while there is only one."""
    gain: tuple[float, float, float] | None
    """Mean change of the held-out score, points, and the 95 % interval over scenarios, which says nothing of other training seeds."""

    @classmethod
    def read(cls, lines: Iterable[Record], *, seed: int = 0) -> BeforeAfter:
        """Reads a run's evaluations.

        Args:
            lines: of `evaluation.jsonl`; ERROR dialogues are left out.
            seed: of the bootstrap.

        Raises:
            ValueError: a line lacks something.
        """
        grades: list[Grade] = []
        full: dict[int, list[Record]] = {}
        for line in lines:
            if line.get("outcome") != Outcome.ERROR:
                grades.append(grade := Grade.of(line))
                if grade.grid == "full":
                    full.setdefault(grade.look, []).append(line)
        pairs: list[Pair] = []
        gain = None
        if len(full) > 1:
            after = {line["uid"]: line for line in full[max(full)]}
            pairs = [Pair(line, after[line["uid"]]) for line in full[min(full)] if line["uid"] in after]
        if pairs:
            # Scenarios are resampled: dialogues of one scenario are not independent.
            gains, scenarios = [pair.gain for pair in pairs], [str(pair.before["scenario_id"]) for pair in pairs]
            bounds = mean_interval(gains, scenarios, rng=np.random.default_rng(seed), within=(-100.0, 100.0))
            gain = (statistics.fmean(gains), *bounds)
        return cls(looks=looks(grades), pairs=pairs, gain=gain)


def typical(pairs: Sequence[Pair]) -> Pair:
    """The pair whose change lies closest to the mean change: an example chosen by rule."""
    mean = statistics.fmean(pair.gain for pair in pairs)
    return min(pairs, key=lambda pair: (abs(pair.gain - mean), pair.before["uid"]))


def examples(pairs: Sequence[Pair], *, run: str = "", arm: str = "") -> list[dict[str, Any]]:
    """The typical pair, then those that lost and gained most, each shown once, for the template's `example`.

    Args:
        run, arm: whose they are, where the page is about several.
    """
    mean, chosen = statistics.fmean(pair.gain for pair in pairs), typical(pairs)
    ranked = sorted(pairs, key=lambda pair: (pair.gain, pair.before["uid"]))
    whose = f" of {run}" if run else ""
    why = f"Not picked by hand: of {len(pairs)} pairs{whose}, its change of {chosen.gain:+.0f} is the closest to their mean, {mean:+.1f}."
    shown = [("", chosen, why)]
    for pair, ahead, behind in ((ranked[0], "gained least", "lost most"), (ranked[-1], "gained most", "lost least")):
        if all(pair is not other for _, other, _ in shown):
            title = f"The user who {ahead if pair.gain > 0 else behind} by training: {pair.gain:+.0f}{f' ({run})' if run else ''}"
            shown.append((title, pair, ""))
    return [
        {
            "title": title,
            "about": f"{pair.before['scenario_id']} ({pair.before['family']}), strictness {pair.before['strictness']:g}. {reason}",
            "wish": pair.before["hidden_intention"],
            "transcripts": [transcript(pair.before, "Before training"), transcript(pair.after, f"After training{arm and f': {arm}'}")],
        }
        for title, pair, reason in shown
    ]


class AfterAlarm(NamedTuple):
    """An alarm and what followed; before a run has a summary, all alarms of one step."""

    name: str
    num: int
    step: int
    message: str
    followed: str
    """A sentence."""


def alarms_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """The alarms that the summary lists; before there is a summary, those of each step at which more were on than the step before.

    One that went off as another ended is not seen then, so that their number is a lower bound.
    """
    if run.summary is not None:
        return list(setting(run.summary, "collapse.alarms", []))
    steps, num_on = run.series("collapse/alarms_on")
    rises = [(step, int(now - before)) for step, before, now in zip(steps, [0.0, *num_on], num_on, strict=False) if now > before]
    message = "its message is in the run's log"
    return [{"step": step, "name": count(num, "alarm"), "num": num, "message": message} for step, num in rises]


def num_alarms(run: Run) -> int:
    """How many alarms went off, several at one step each counted; a lower bound while there is no summary."""
    return sum(alarm.get("num", 1) for alarm in alarms_of(run))


def alarms_in_all(runs: Sequence[Run]) -> str:
    """How many alarms went off in these runs; `at least` where an unfinished run had some."""
    is_least = any(run.summary is None and num_alarms(run) for run in runs)
    return f"{'at least ' if is_least else ''}{sum(map(num_alarms, runs))}"


def after_alarms(run: Run, looks: Sequence[Look]) -> list[AfterAlarm]:
    """Every alarm of a run with what followed, in the order they went off: steps until none was on, and how metrics went on.

    Args:
        looks: held-out scores on the small grid.
    """
    series = (
        ("the held-out score went", [look.step for look in looks], [look.score for look in looks], 1, "{:.1f}"),
        ("entropy", *run.series("actor/entropy"), 3, "{:.3f}"),
        ("reward density", *run.series("curriculum/reward_density"), 3, "{:.3f}"),
    )
    found = []
    for alarm in alarms_of(run):
        step, went = int(alarm["step"]), []
        for name, steps, values, width, form in series:
            at = bisect.bisect_right(steps, step)
            if at and steps[-1] > step:
                # Means of `width` values, because single ones are noisy.
                then, last = (statistics.fmean(part) for part in (values[max(at - width, 0) : at], values[-width:]))
                went.append(f"{name} from {form.format(then)} to {form.format(last)}")
        off_after = next((at - step for at, num in zip(*run.series("collapse/alarms_on"), strict=True) if at > step and num == 0), None)
        on = "alarms were on to the end" if off_after is None else f"no alarm was on {count(off_after, 'step')} later"
        followed = f"What followed: {on}; {', '.join(went)}." if went else "It was the last thing recorded."
        found.append(AfterAlarm(str(alarm["name"]), int(alarm.get("num", 1)), step, str(alarm["message"]), followed))
    return sorted(found, key=lambda alarm: alarm[2])
