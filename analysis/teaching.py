"""What a run's teacher issued, how it went and what it decided, read from `teacher.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from analysis.runs import Run

OWN_KEYS = frozenset({"step", "event", "decision", "teacher_step"})
"""Keys of a recorded decision that are not what it rests on."""


class Group(NamedTuple):
    """A task of the teacher, and how its rollouts fared."""

    step: int
    family: str
    strictness: float
    success_share: float | None
    """None while its outcome is out, or where no rollout survived."""
    mode: str = ""
    """Why the teacher issued it, `frontier`, `uniform`, `replay` ...; empty where the log does not say."""

    @property
    def intention(self) -> str:
        """The hidden intention, the first half of a family."""
        return self.family.partition("/")[0]


def intention_of(group: Group) -> str:
    """Its hidden intention."""
    return group.intention


class Decision(NamedTuple):
    """Something the teacher decided, and what it rested on."""

    step: int
    name: str
    inputs: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """All of it, in order."""

    groups: list[Group]
    decisions: list[Decision]


def read_teaching(run: Run) -> Teaching:
    """Reads a run's `teacher.jsonl`.

    Raises:
        ValueError: a line lacks something.
    """
    tasks: dict[str, Group] = {}
    decisions = []
    for line in run.teacher():
        try:
            if line["event"] == "task":
                tasks[line["uid"]] = Group(line["step"], str(line["family"]), float(line["strictness"]), None, str(line.get("mode", "")))
            elif line["event"] == "outcome" and line["task"] in tasks:
                share = line.get("success_share")
                tasks[line["task"]] = tasks[line["task"]]._replace(success_share=None if share is None else float(share))
            elif line["event"] == "decision":
                inputs = {key: value for key, value in line.items() if key not in OWN_KEYS}
                decisions.append(Decision(line["step"], str(line["decision"]), inputs))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"teacher.jsonl must hold tasks and outcomes, got a line at step {line['step']} with a bad {error}") from error
    return Teaching(groups=list(tasks.values()), decisions=decisions)


def by_time(
    groups: Sequence[Group], *, num_bins: int, of: Callable[[Group], str] = intention_of
) -> tuple[list[str], dict[tuple[str, str], float], dict[tuple[str, str], int]]:
    """Mean strictness and number of groups, by what they have in common and stretch of steps.

    Args:
        of: what groups of one row have in common, the hidden intention unless said otherwise.

    Returns:
        The stretches, named by their last step, in order; the means and the counts by (row, stretch).
    """
    last = max((group.step for group in groups), default=0)
    size = -(-last // num_bins) or 1
    ends = [str(min(end, last)) for end in range(size, last + size, size)]
    cells: dict[tuple[str, str], list[float]] = {}
    for group in groups:
        cells.setdefault((of(group), ends[(group.step - 1) // size]), []).append(group.strictness)
    return ends, {cell: fmean(values) for cell, values in cells.items()}, {cell: len(values) for cell, values in cells.items()}


def in_words(inputs: Mapping[str, Any]) -> str:
    """What a decision rested on: `name value` pairs, numbers to three digits."""
    return ", ".join(f"{name.replace('_', ' ')} {short(value)}" for name, value in inputs.items())


def short(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return "{" + in_words(value) + "}"
    if isinstance(value, list):
        return f"[{', '.join(short(item) for item in value[:6])}{', ...' * (len(value) > 6)}]"
    return str(value)
