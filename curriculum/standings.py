"""The benchmark's table: a row for each teacher, a column for each student."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

COLUMNS_AT_ONCE = 5
"""Students side by side; more follow in a table below."""
LEGEND = (
    "Where a frontier is to be tracked: rmse of the strictness issued. Otherwise final/worst (auc): mean success over all cells at the end,"
    " the worst cell's, and the mean over the run; with families macro/worst, then the share of tasks spent on noise if there is any."
    " us: CPU of the teacher for each task, microseconds. Means over seeds."
)
Row = Mapping[str, Mapping[str, Any]]


def tables(results: Mapping[str, Mapping[str, Row]], *, markdown: bool = False) -> str:
    """All results as text or as Markdown."""
    students = iter(results)
    blocks = []
    while block := list(islice(students, COLUMNS_AT_ONCE)):
        arms = list(dict.fromkeys(arm for student in block for arm in results[student]))
        head = ["teacher", *block, "us"]
        rows = [[arm, *(cell(results[student].get(arm)) for student in block), _cost(results, block, arm)] for arm in arms]
        blocks.append("\n".join(_markdown([head, *rows]) if markdown else _plain([head, *rows])))
    return "\n\n".join([*blocks, LEGEND])


def cell(row: Row | None) -> str:
    """The figures of one teacher with one student."""
    if row is None:
        return ""
    if "rmse" in row:
        return _number(row, "rmse", 3)
    if "macro" in row:
        noise = f" {_number(row, 'noise_share', 2)}" if "noise_share" in row else ""
        return f"{_number(row, 'macro', 3)}/{_number(row, 'worst', 2)}{noise}"
    return f"{_number(row, 'final', 2)}/{_number(row, 'worst', 2)} ({_number(row, 'auc', 2)})"


def _number(row: Row, name: str, digits: int) -> str:
    mean = row[name]["mean"]
    return "-" if mean is None else f"{mean:.{digits}f}"


def _cost(results: Mapping[str, Mapping[str, Row]], students: Sequence[str], arm: str) -> str:
    costs = [results[student][arm]["us_per_task"]["mean"] for student in students if arm in results[student]]
    return f"{sum(costs) / len(costs):.0f}"


def _plain(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in body)
