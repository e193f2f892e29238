"""Every published verdict follows from the tables in studies/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.compare import compare, plan_of
from analysis.sweeps import read_sweep
from simulator.files import jsonable
from studies.rlver_replication.rlver import read_marks

ROOT = Path(__file__).parents[1]
PUBLISHED = json.loads((ROOT / "tests/data/verdicts.json").read_text(encoding="utf-8"))
RLVER = json.loads((ROOT / "tests/data/rlver_findings.json").read_text(encoding="utf-8"))


def recomputed(study: str) -> dict[str, Any]:
    sweep = read_sweep(ROOT / "studies" / study / "results.csv")
    # No figure of a contrast is resampled.
    return dict(jsonable(compare(sweep, plan_of(sweep), num_resamples=1)))


def test_every_table_is_published():
    # These have formats and tests of their own.
    found = {str(path.parent.relative_to(ROOT / "studies")) for path in ROOT.glob("studies/**/results.csv")}
    assert found - {"in_trl", "no_search", "pool_model", "small_model"} == PUBLISHED.keys()


@pytest.mark.parametrize("study", PUBLISHED)
def test_verdicts_are_recomputed_from_the_tables(study):
    published, found = PUBLISHED[study], recomputed(study)
    primary = published["primary"]
    assert found["plan"]["primary"] == primary
    contrasts = {f"{contrast['a']}:{contrast['b']}": contrast for contrast in found["contrasts"]}
    if published["contrasts"]:
        assert contrasts.keys() == published["contrasts"].keys()
    for name, figures in published["contrasts"].items():
        endpoint = contrasts[name]["endpoints"][primary]
        assert contrasts[name]["answer"] == figures["answer"], name
        assert endpoint["num_pairs"] == figures["num_pairs"], name
        values = [endpoint["difference"][key] for key in ("value", "low", "high")] + [endpoint["p"], endpoint["p_holm"]]
        expected = [figures[key] for key in ("mean", "low", "high", "p", "p_holm")]
        for value, want in zip(values, expected, strict=True):
            assert value == (None if want is None else pytest.approx(want, abs=1e-9)), name


def test_the_findings_of_rlver_are_recomputed_from_their_table():
    found = read_marks(ROOT / "studies/rlver_replication/results.csv").findings
    assert [(one.claim, one.mark) for one in found] == [(one["claim"], one["mark"]) for one in RLVER]
    for one, published in zip(found, RLVER, strict=True):
        assert one.estimate.to_dict() == {name: pytest.approx(published[name], abs=1e-9) for name in ("value", "low", "high")}, one.claim
