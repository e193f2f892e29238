"""Files of ours that somebody changed: what does not fit is named, in a sentence, wherever it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compared import compared
from made_run import ALARM, make_run
from made_sweep import made_result, made_sweep, steps_of, tasks_of
from test_report import read_page

from analysis.__main__ import main
from analysis.report import write_report
from analysis.runs import EACH, EACH_NUMBER, INTEGER, NUMBER, SET, TEXT, Complete, Filled, misfit, read_run, read_summary, read_torn_run
from analysis.sweep_report import write_sweep_report
from analysis.sweeps import read_planned, read_sweep
from analysis.transcripts import write_transcripts
from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import check_unfinished

AREAS = "evaluation.jsonl lacks looks, or they were changed: the area under them is 40.000, and its summary says 50.000"


@pytest.mark.parametrize(
    ("value", "shape", "said"),
    [
        (1, NUMBER, ""),
        (True, NUMBER, "it must be a number, got True"),
        ("1", NUMBER, "it must be a number, got '1'"),
        (1, TEXT, "it must be a text, got 1"),
        ({"a": {"b": [1, None, "x"]}}, {"a": {"b": [NUMBER]}}, "a.b[2] must be a number, got 'x'"),
        ({"a": 3}, {"a": [NUMBER]}, "a must be a list, got 3"),
        ([], {"a": NUMBER}, "it must be an object with names, got []"),
        ({"a": None, "other": object}, {"a": NUMBER}, ""),
        ({"x": 1, "y": "z"}, {EACH: NUMBER}, "y must be a number, got 'z'"),
        ({"a": {"k": 1}}, {"a": Complete(k=NUMBER, by_k=[NUMBER])}, "a.by_k must be there"),
        ({"a": {"k": None}}, {"a": Complete(k=NUMBER)}, "a.k must be there"),
        ({"a": {"k": None}}, {"a": Filled({EACH: NUMBER})}, "a.k must not be null"),
        ([1, None], [SET], "[1] must be a number, not null, got None"),
        ({"a": [["b", None]]}, {"a": [[TEXT]]}, "a[0][1] must be a text, got None"),
        ({"a": [None]}, {"a": [{"b": NUMBER}]}, "a[0] must be an object with names, got None"),
        ({"a": [1.0]}, {"a": (NUMBER, NUMBER)}, "a must be a list of 2, got [1.0]"),
        ({"a": [1.0, "2"]}, {"a": (NUMBER, NUMBER)}, "a[1] must be a number, got '2'"),
        ({"a": {"0.1": 3.0, "x": 1.0}}, {"a": {EACH_NUMBER: NUMBER}}, "a must be named by numbers, got 'x'"),
        (2.5, INTEGER, "it must be a whole number, got 2.5"),
        ({"a": "long" * 50}, {"a": NUMBER}, f"a must be a number, got '{'long' * 14}..."),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(value, shape, said):
    assert misfit(value, shape) == said


WRONG = [
    ("wall_s", "an hour"),
    ("cpu_s", []),
    ("errors", [0]),
    ("versions", "2.13"),
    ("heldout", 61.0),
    ("start", {"by_strictness": [1.0]}),
    ("policy_tokens", "600k"),
    ("simulator_calls", {"n": 3}),
    ("reliability", [1]),
    ("collapse", {"alarms": {"density_lost": 3}}),
    ("collapse", {"alarms": ["density_lost"]}),
    ("collapse", {"alarms": [None]}),
    ("collapse", {"alarms": [{"name": "density_lost"}]}),
    ("heldout", {"worst_cell": "low"}),
    ("heldout", {"score_ci95": [3.0]}),
    ("heldout", {"by_strictness": {"strict": 3.0}}),
    ("reliability", {"errors": {"plain": {"change_ci95": [0.1]}}}),
    ("strictness", {"start": "low"}),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_summary_of_other_kinds_costs_its_part_of_the_page_and_is_named(tmp_path, key, value):
    folder = make_run(tmp_path / "seed0", num_steps=8, alarms=[{**ALARM, "step": 3}])
    change(folder / "summary.json", **{key: value})
    with pytest.raises(ValueError, match=rf"summary.json: {key}\S* must be "):
        read_summary(folder / "summary.json")
    words = read_page(write_report(folder)).words
    assert f"Nothing here rests on summary.json, which cannot be used: {folder / 'summary.json'}: {key}" in words


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_summary_of_other_kinds_costs_one_run_of_a_sweep(tmp_path, key, value):
    folder = made_sweep(tmp_path / "sweep", {"a": [50.0, 60.0], "b": [40.0, 50.0]})
    change(folder / "b" / "seed_1" / "summary.json", **{key: value})
    assert compared(folder, ("a", "b"))["notes"][0].startswith("b/seed_1 is left out: ")
    assert "b/seed_1 is left out: " in read_page(write_sweep_report(folder)).words


def test_provenance_of_another_kind_costs_one_run_of_a_sweep(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"a": [50.0, 60.0], "b": [40.0, 50.0]})
    path = folder / "b" / "seed_1" / "config.yaml"
    path.write_text(path.read_text().partition("provenance:")[0] + "provenance:\n  earlier_git_commits: 3\n", encoding="utf-8")
    (note,) = read_sweep(folder).notes
    assert note == f"b/seed_1 is left out: {path}: provenance.earlier_git_commits must be a list, got 3"
    assert "earlier_git_commits must be a list" in read_page(write_sweep_report(folder)).words


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tuning", ["none"]),
        ("contrasts", [["a", 1]]),
        ("contrasts", [["a"]]),
    ],
)
def test_a_plan_of_other_kinds_is_one_sentence_and_the_runs_are_compared(tmp_path, capsys, key, value):
    folder = made_sweep(tmp_path / "sweep", {"a": [70.0, 71.0], "b": [50.0, 52.0]})
    plan = {"contrasts": [["a", "b"]], "primary": "heldout.auc", "tuning": {}}
    (folder / "plan.json").write_text(json.dumps({**plan, key: value}), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"plan.json must hold the sweep's contrasts, got something else \({key}.* must be "):
        read_planned(folder)
    assert main(["compare", str(folder)]) == 0 and main(["report", str(folder)]) == 0
    assert "What was planned is not known" in capsys.readouterr().out


def test_metrics_that_end_before_their_run_are_used_nowhere_and_named(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    cut(folder / "metrics.jsonl", 5)
    words = read_page(write_report(folder)).words
    assert "Nothing here rests on metrics.jsonl, which cannot be used" in words
    assert "metrics.jsonl ends at step 5 of the 8 that the summary counts" in words
    assert read_torn_run(folder).metrics == []
    with pytest.raises(ValueError, match="ends at step 5 of the 8"):
        read_run(folder)
    (folder / "summary.json").unlink()
    assert read_run(folder).num_steps == 5


def test_a_teachers_log_that_ends_before_its_run_is_named_on_both_pages(tmp_path):
    run = make_run(tmp_path / "seed0", num_steps=8)
    cut(run / "teacher.jsonl", 12)
    words = read_page(write_report(run)).words
    assert "Nothing here rests on teacher.jsonl, which cannot be used" in words and "teacher.jsonl ends at step 3 of the 8" in words
    facts = {"metrics": steps_of(10), "teacher": tasks_of(10), "summary": {"steps": 10}}
    sweep = made_sweep(tmp_path / "sweep", {"a": [50.0, 60.0], "b": [40.0, 50.0]}, **facts)
    cut(sweep / "b" / "seed_1" / "teacher.jsonl", 8)
    assert "teacher.jsonl ends at step 4 of the 10 that the summary counts" in read_page(write_sweep_report(sweep)).words


def test_looks_that_are_gone_cost_the_run_and_are_named_by_the_area(tmp_path):
    looks = ((0, 20.0), (500, 60.0), (1000, 60.0))
    folder = made_sweep(tmp_path / "sweep", {"a": [50.0, 60.0]})

    made_result(folder, "b", 0, looks=looks, summary={"heldout": {"score": 60.0, "auc": 50.0}})
    run = made_result(folder, "b", 1, looks=looks, summary={"heldout": {"score": 60.0, "auc": 50.0}})
    assert read_sweep(folder).of("b").keys() == {0, 1}
    lines = (run / "evaluation.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluation.jsonl").write_text("".join(line for line in lines if json.loads(line)["policy_tokens"] != 500))
    assert f"b/seed_1 is left out: {AREAS}" in read_page(write_sweep_report(folder)).words
    assert read_sweep(folder).notes == [f"b/seed_1 is left out: {AREAS}"]
    assert f"Nothing here rests on evaluation.jsonl, which cannot be used: {AREAS}." in read_page(write_report(run)).words


@pytest.mark.parametrize(
    ("name", "says"), [("teacher.jsonl", "ends at step 0 of the 8"), ("evaluation.jsonl", "holds no held-out dialogue")]
)
def test_a_stream_that_is_gone_altogether_is_named(tmp_path, name, says):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    (folder / name).write_text("")
    words = read_page(write_report(folder)).words
    assert f"Nothing here rests on {name}, which cannot be used: {folder / name} {says}" in words
    assert ("It noted no decision" in words) == (name != "teacher.jsonl")
    (folder / name).unlink()
    assert f"Nothing here rests on {name}" in read_page(write_report(folder)).words


def test_transcripts_are_shown_whatever_is_torn_beside_them(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    cut(folder / "metrics.jsonl", 5)
    change(folder / "summary.json", wall_s="an hour")
    assert write_transcripts(folder).is_file()


def test_a_run_whose_summary_cannot_be_read_is_not_resumed(tmp_path):
    folder = made_result(tmp_path, "a", 0)
    change(folder / "summary.json", wall_s="an hour")
    with pytest.raises(ConfigError, match=r"resume must name a run whose summary can be read; .*wall_s must be a number"):
        check_unfinished(load("smoke", []), folder)


def change(path: Path, **values: object) -> None:
    """Other values in a JSON object."""
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def cut(path: Path, num_lines: int) -> None:
    """The beginning of a stream."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:num_lines]), encoding="utf-8")
