"""Runs that replay another one: which tasks they copied is written down and held against the run that lies there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from made_sweep import made_result

from analysis.runs import COPIED, EARLIER_COMMITS, TEACHER, digest_of_tasks, read_lines, read_run, why_no_copy
from analysis.sweeps import read_sweep
from experiments.config import load
from experiments.resume import copied_tasks, earlier_commits, write_over
from experiments.run_lock import begin


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
    digest = digest_of_tasks(read_lines(source / TEACHER))
    run = replayed(tmp_path, copied=digest)
    assert yaml.safe_load((run / "config.yaml").read_text())["teacher"]["trace"].endswith("frontier/seed_1/teacher.jsonl")
    assert why_no_copy(read_run(run)) == "" and read_sweep(tmp_path).of("yoked").keys() == {0}
    (source / TEACHER).write_text(json.dumps(task(0.75)) + "\n", encoding="utf-8")
    sweep = read_sweep(tmp_path)
    assert sweep.of("yoked") == {}
    assert sweep.notes == ["yoked/seed_0 is left out: it replays another frontier/seed_1 than the one that is here, and must be run anew"]


def test_what_is_replayed_is_written_down_once(tmp_path):
    source = made_result(tmp_path, "frontier", 1, teacher=[task(0.25)])
    digest = digest_of_tasks(read_lines(source / TEACHER))
    assert copied_tasks(load("smoke"), tmp_path) == {}
    for trace in (source, source / TEACHER):
        assert copied_tasks(load("smoke", ["teacher.kind=yoked", f"teacher.trace={trace}"]), tmp_path) == {COPIED: digest}
    run = replayed(tmp_path, copied="before")
    resumed = load("smoke", ["teacher.kind=yoked", f"teacher.trace={source}", f"resume={run}"])
    assert copied_tasks(resumed, run) == {COPIED: "before"}


def test_settings_are_whole_from_their_first_moment_and_keep_their_file(tmp_path):
    folder = tmp_path / "run"
    begin(folder, "first: 1\n")
    begin(folder, "second: 2\n")
    path = folder / "config.yaml"
    assert path.read_text() == "first: 1\n" and [file.name for file in folder.iterdir()] == ["config.yaml"]
    number = path.stat().st_ino
    write_over(path, "a: 1\n")
    assert path.read_text() == "a: 1\n" and path.stat().st_ino == number


def test_dialogues_that_a_finished_run_lost_are_missed(tmp_path):
    made_result(tmp_path, "a", 0)
    run = made_result(tmp_path, "b", 0)
    summary = json.loads((run / "summary.json").read_text())
    for counted, notes in (
        (5, []),
        (6, ["b/seed_0 is left out: evaluation.jsonl holds 5 of the 6 dialogues that its summary counted at the end"]),
    ):
        summary["heldout"]["n_dialogues"] = counted
        (run / "summary.json").write_text(json.dumps(summary))
        assert read_sweep(tmp_path).notes == notes


@pytest.mark.parametrize("text", ["", "{", "just words\n"])
def test_a_run_whose_settings_were_never_written_is_refused_with_the_remedy(tmp_path, text):
    from experiments.errors import ConfigError
    from experiments.sweep import check_same_run
    from experiments.sweep_plan import Cell, load_sweep

    sweep = load_sweep("quick_comparison", [f"runs={tmp_path}"])
    folder = sweep.run_folder(Cell("uniform", 1))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=f"uniform seed 1 was broken off before its settings were written: .*; delete {folder} to run it anew"
    ):
        check_same_run(sweep, Cell("uniform", 1))


def test_a_resumed_run_names_every_state_of_the_code_it_ran_on(tmp_path):
    run = made_result(tmp_path, "frontier", 1, commit="decaf")
    resumed = load("smoke", [f"resume={run}"])
    assert earlier_commits(load("smoke"), run) == {} and earlier_commits(resumed, run) == {EARLIER_COMMITS: ["decaf"]}
    config = (
        (run / "config.yaml").read_text(encoding="utf-8").replace("git_commit: decaf", f"git_commit: decaf\n  {EARLIER_COMMITS}: [c0ffee]")
    )
    (run / "config.yaml").write_text(config, encoding="utf-8")
    assert earlier_commits(resumed, run) == {EARLIER_COMMITS: ["c0ffee", "decaf"]}
    assert read_run(run).commits == ["c0ffee", "decaf"] and read_sweep(tmp_path).runs[0].commits == ("c0ffee", "decaf")
