"""A sweep's runs in two tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_sweep import made_result, made_sweep

from analysis.__main__ import main
from analysis.compare import compare, plan_of
from analysis.sweeps import read_sweep
from analysis.table import CURVES, RESULTS, export, load_sweep


def test_contrasts_of_the_table_are_those_of_the_run_folders(tmp_path):
    folder = made_sweep(tmp_path / "runs" / "sweep", {"frontier": [60.0, 70.0], "uniform": [50.0, 55.5]})
    export(folder, tmp_path / "study")
    of_runs, of_table = read_sweep(folder), load_sweep(tmp_path / "study" / RESULTS)
    assert [replace(run, cells={}) for run in of_runs.runs] == [
        replace(run, settings=a.settings) for run, a in zip(of_table.runs, of_runs.runs, strict=True)
    ]
    for ours, theirs in zip(
        compare(of_table, plan_of(of_table))["contrasts"], compare(of_runs, plan_of(of_runs))["contrasts"], strict=True
    ):
        assert str({**ours, "improvement_over_cells": None}) == str({**theirs, "improvement_over_cells": None})


def test_settings_that_differ_between_runs_are_kept(tmp_path):
    folder = tmp_path / "runs" / "sweep"
    made_result(folder, "a", 0, settings="learner:\n  lr: 0.1\n")
    made_result(folder, "b", 0, settings="learner:\n  lr: 0.2\n")
    made_result(folder, "c", 0)
    export(folder, tmp_path / "study")
    a, b, c = load_sweep(tmp_path / "study" / RESULTS).runs
    assert (a.settings["learner.lr"], b.settings["learner.lr"], "learner.lr" in c.settings) == (0.1, 0.2, False)


def test_new_runs_are_appended_and_rows_that_are_there_stay(tmp_path):
    folder, study = tmp_path / "runs" / "sweep", tmp_path / "study"
    made_result(folder, "a", 0)
    made_result(folder, "b", 0)
    export(folder, study)
    before = [(study / name).read_text() for name in (RESULTS, CURVES)]
    made_result(folder, "a", 1)
    assert "1 new of 3" in export(folder, study)
    for name, text in zip((RESULTS, CURVES), before, strict=True):
        assert (study / name).read_text().startswith(text)
    assert [run.name for run in load_sweep(study / RESULTS).runs] == ["a/seed_0", "a/seed_1", "b/seed_0"]


def test_a_run_that_is_there_with_other_numbers_is_refused(tmp_path):
    made_result(tmp_path / "one", "a", 0, looks=((0, 20.0), (1000, 60.0)))
    made_result(tmp_path / "two", "a", 0, looks=((0, 20.0), (1000, 61.0)))
    export(tmp_path / "one", tmp_path / "study")
    with pytest.raises(ValueError, match="a/seed_0"):
        export(tmp_path / "two", tmp_path / "study")


def test_compare_takes_a_table(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "sweep", {"frontier": [60.0, 70.0], "uniform": [50.0, 55.0]})
    assert main(["export", str(folder), "--out", str(tmp_path / "study")]) == 0
    assert main(["compare", str(tmp_path / "study" / RESULTS)]) == 0
    assert "frontier - uniform" in capsys.readouterr().out
    assert not (tmp_path / "study" / "comparison.json").exists()
