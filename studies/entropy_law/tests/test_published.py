"""The published table follows from the law of each run in `laws.csv`."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

STUDY = Path(__file__).parents[1]
ROW = re.compile(r"\|[* ]*(\d+) of `(\w+)`[* ]*\|" + r"[* ]*([\d.]+) ± ([\d.]+)[* ]*\|" * 5 + r"[* ]*(\d+)")
ERRORS = ("forecast_error", "standstill_error")
PUBLISHED = ROW.findall((STUDY / "README.md").read_text(encoding="utf-8"))


def column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows if row[name]])


@pytest.mark.parametrize(("num", "sweep", "figures"), [(int(row[0]), row[1], row[2:]) for row in PUBLISHED])
def test_the_table_is_the_mean_over_runs(num, sweep, figures):
    with (STUDY / "laws.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["sweep"] == sweep]
    foretold = [row for row in rows if row["forecast_error"]]
    assert len(rows) == num
    found = [*(column(rows, name) for name in ("a", "b", "r_squared")), *(column(foretold, name) for name in ERRORS)]
    expected = [float(figure) for figure in figures[:-1]]
    for values, digits, mean, error in zip(found, (2, 2, 2, 3, 3), expected[::2], expected[1::2], strict=True):
        assert round(float(values.mean()), digits) == mean
        assert round(float(values.std(ddof=1) / np.sqrt(len(values))), digits) == error
    assert int((found[3] < found[4]).sum()) == int(figures[-1])


def test_every_row_of_the_page_is_read():
    with (STUDY / "laws.csv").open(encoding="utf-8") as stream:
        assert {row[1] for row in PUBLISHED} <= {row["sweep"] for row in csv.DictReader(stream)} and len(PUBLISHED) == 11
