"""Runs of a sweep read as one frame, from folders and from tables; runs that cannot be used; replayed and resumed runs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from compared import compared
from made_sweep import BUDGET, made_result, made_sweep, steps_of

from analysis.__main__ import main
from analysis.compare import compare, plan_of
from analysis.endpoints import AUC, Planned
from analysis.runs import COPIED, TEACHER, digest_of_tasks, read_lines
from analysis.sweeps import CURVES, NO_MATTER, RESULTS, export, read_sweep
from experiments.config import MAY_CHANGE


def test_a_table_gives_the_frame_and_the_contrasts_of_the_run_folders(tmp_path):
    folder = tmp_path / "runs" / "sweep"
    for arm, finals in {"frontier": [60.0, 70.0], "uniform": [50.0, 55.5]}.items():
        for seed, final in enumerate(finals):
            summary = {"steps": 20, "own": {"x": final / 7}, "collapse": {"alarms": [{"name": "entropy_low", "step": 3, "message": ""}]}}
            looks = ((0, 20.0), (400, 30.0), (BUDGET, final))
            made_result(folder, arm, seed, looks=looks, summary=summary, metrics=steps_of(), initial_policy="aa")
    Planned(contrasts=(("frontier", "uniform"),), primary=AUC, read=("-own.x",)).keep(folder)
    export(folder, tmp_path / "study")
    of_runs, of_table = read_sweep(folder), read_sweep(tmp_path / "study" / RESULTS)
    pd.testing.assert_frame_equal(of_runs.frame, of_table.frame, check_exact=True)
    assert [run.looks for run in of_runs.runs] == [run.looks for run in of_table.runs]
    assert of_runs.frame.loc[("uniform", 1), AUC] == (25 * 400 + (30 + 55.5) / 2 * 600) / 1000
    assert of_runs.frame.loc[("uniform", 1), "alarms"] == ["entropy_low"]
    assert (of_runs.runs[0].looks[1]["step"], of_runs.runs[0].looks[1]["entropy"]) == (10, 0.75)
    ours, theirs = (compare(sweep, plan_of(sweep))["contrasts"][0] for sweep in (of_table, of_runs))
    assert str({**ours, "improvement_over_cells": None}) == str({**theirs, "improvement_over_cells": None})


def test_new_runs_are_appended_with_their_own_settings_and_rows_that_are_there_stay(tmp_path, capsys):
    folder, study = tmp_path / "runs" / "sweep", tmp_path / "study"
    made_result(folder, "a", 0, settings="learner:\n  lr: 0.1\n")
    made_result(folder, "b", 0, settings="learner:\n  lr: 0.2\n")
    assert main(["export", str(folder), "--out", str(study)]) == 0
    before = [(study / name).read_text() for name in (RESULTS, CURVES)]
    made_result(folder, "a", 1)
    assert "1 new of 3" in export(folder, study)
    for name, text in zip((RESULTS, CURVES), before, strict=True):
        assert (study / name).read_text().startswith(text)
    runs = read_sweep(study / RESULTS).runs
    assert [(run.name, run.settings.get("learner.lr")) for run in runs] == [("a/seed_0", 0.1), ("a/seed_1", None), ("b/seed_0", 0.2)]
    assert main(["compare", str(study / RESULTS)]) == 0
    assert "a - b" in capsys.readouterr().out and not (study / "comparison.json").exists()
    made_result(tmp_path / "two", "a", 0, looks=((0, 20.0), (1000, 61.0)))
    with pytest.raises(ValueError, match="a/seed_0"):
        export(tmp_path / "two", study)


def test_areas_are_cut_at_the_budget_and_held_to_it(tmp_path):
    made_result(tmp_path, "a", 0, looks=((0, 0.0), (2 * BUDGET, 100.0)))
    made_result(tmp_path, "b", 0, looks=((0, 20.0), (BUDGET // 2, 40.0)))
    sweep = read_sweep(tmp_path)
    assert sweep.frame[AUC].to_dict() == {("a", 0): 25.0, ("b", 0): 35.0}
    assert sweep.notes == ["Before 1,000 policy tokens ended b/seed_0 at 500: its last score is held to the end."]


def test_where_no_run_reaches_the_budget_areas_end_with_the_shortest(tmp_path):
    made_result(tmp_path, "a", 0, looks=((0, 0.0), (400, 40.0)))
    made_result(tmp_path, "b", 0, looks=((0, 0.0), (800, 80.0)))
    sweep = read_sweep(tmp_path)
    assert sweep.auc_ends == {BUDGET: 400.0} and sweep.frame[AUC].tolist() == [20.0, 20.0]
    (note,) = sweep.notes
    assert note.startswith("No run spent the 1,000 policy tokens that were allowed: areas are over the first 400")


def test_dialogues_that_broke_count_nowhere_and_the_grid_before_training_is_not_the_end(tmp_path):
    place = made_result(tmp_path, "a", 0)
    broken = {"step": 10, "look": 1, "policy_tokens": BUDGET, "grid": "full", "in_during": True, "outcome": "error", "emotion": 0}
    with (place / "evaluation.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**broken, "family": "praise/negative", "strictness": 0.5}) + "\n")
    made_result(tmp_path, "b", 0, looks=((0, 20.0),))
    a, b = read_sweep(tmp_path).runs
    assert a.scalars[AUC] == 40.0 and a.cells["praise/negative", 0.5] == 60.0 and b.cells == {}


def test_a_run_that_cannot_be_used_is_left_out_with_a_sentence(tmp_path):
    made_sweep(tmp_path, {"a": [50.0] * 5, "b": [40.0] * 5})
    wrong = [
        ("summary.json", None, "it has not finished (no summary.json)"),
        ("summary.json", '{"seed": 7}', "its summary says seed 7, its folder 2"),
        ("config.yaml", "seed: 1\n", "it lacks 'budget.policy_tokens'"),
        ("evaluation.jsonl", '{"step": 0, "outcome": "left"}\n', "got a line at step 0 with a bad 'look'"),
    ]
    for seed, (file, content, _) in enumerate(wrong, start=1):
        path = tmp_path / "b" / f"seed_{seed}" / file
        path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    found = compared(tmp_path, ("a", "b"))
    for seed, (note, (_, _, complaint)) in enumerate(zip(found["notes"], wrong, strict=False), start=1):
        assert note.startswith(f"b/seed_{seed} is left out: ") and complaint in note
    assert found["contrasts"][0]["seeds"] == [0]


def test_dialogues_that_a_finished_run_lost_are_missed(tmp_path):
    for arm, counted in (("a", {"n_dialogues": 5, "auc": 40.0}), ("b", {"n_dialogues": 6}), ("c", {"auc": 50.0})):
        made_result(tmp_path, arm, 0, summary={"heldout": {"score": 60.0, **counted}})
    assert read_sweep(tmp_path).notes == [
        "b/seed_0 is left out: evaluation.jsonl is not whole: dialogues at the end 5, and its summary says 6",
        "c/seed_0 is left out: evaluation.jsonl is not whole: mean score over tokens 40, and its summary says 50",
    ]


def test_runs_scored_on_fewer_dialogues_than_others_are_named(tmp_path):
    for arm, num in (("a", 5), ("b", 4)):
        run = made_result(tmp_path, arm, 0, summary={"heldout": {"score": 60.0, "n_dialogues": num}})
    lines = (run / "evaluation.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluation.jsonl").write_text("".join(lines[:-1]))
    assert read_sweep(tmp_path).notes == ["b/seed_0 is scored on 4 held-out dialogues at the end, others on 5; those lacking broke."]


def test_runs_of_one_arm_may_differ_in_settings_that_a_resumed_run_may_change():
    assert [name for name in MAY_CHANGE if name != "budget." and not name.startswith(NO_MATTER)] == []


def test_a_plan_may_grow_by_seeds_and_arms_and_has_the_same_contrasts(tmp_path):
    first = Planned(contrasts=(("a", "b"),), primary=AUC, seeds=(0, 1), arms=("a", "b"))
    first.keep(tmp_path)
    first.model_copy(update={"seeds": (1, 2), "arms": ("a", "c")}).keep(tmp_path)
    kept = json.loads((tmp_path / "plan.json").read_text())
    assert (kept["seeds"], kept["arms"], kept["contrasts"], kept["overrides"]) == ([0, 1, 2], ["a", "c", "b"], [["a", "b"]], None)
    with pytest.raises(ValueError, match="take another name= for the sweep"):
        Planned(contrasts=(("b", "a"),), primary=AUC).keep(tmp_path)


def task(strictness: float, step: int = 1) -> dict:
    return {"step": step, "event": "task", "uid": str(step), "teacher_step": step, "family": "praise/negative", "strictness": strictness}


def replayed(folder: Path, *, copied: str) -> Path:
    """A run of an arm that replays frontier's seed 1."""
    trace = folder / "frontier" / "seed_1" / TEACHER
    run = made_result(folder, "yoked", 0, settings=f"  trace: {trace}\n")
    config = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(f"{config}  {COPIED}: '{copied}'\n", encoding="utf-8")
    return run


def test_a_replay_of_the_run_that_is_here_counts_and_one_of_another_is_left_out(tmp_path):
    source = made_result(tmp_path, "frontier", 1, teacher=[task(0.25), task(0.5, step=2)])
    replayed(tmp_path, copied=digest_of_tasks(read_lines(source / TEACHER)))
    assert read_sweep(tmp_path).of("yoked").keys() == {0}
    (source / TEACHER).write_text(json.dumps(task(0.75)) + "\n", encoding="utf-8")
    sweep = read_sweep(tmp_path)
    assert sweep.of("yoked") == {}
    assert sweep.notes == ["yoked/seed_0 is left out: it replays another frontier/seed_1 than the one that is here, and must be run again"]
