"""`analysis compare`: what it takes and writes, and what it refuses in a sentence."""

from __future__ import annotations

import json

import pytest
from made_run import make_run
from made_sweep import made_sweep

from analysis.__main__ import COMMANDS, main
from analysis.endpoints import AUC
from analysis.sweeps import Planned

PLANNED = Planned(contrasts=(("frontier", "fixed_*"), ("frontier", "uniform"), ("frontier", "yoked")), primary="heldout.score")


def test_the_command_without_contrasts_keeps_to_the_plan_of_the_sweep(tmp_path, capsys):
    folder = made_sweep(
        tmp_path / "sweep", {"frontier": [70.0, 80.0], "fixed_0.5": [60.0, 65.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]}
    )
    PLANNED.keep(folder)
    assert main(["compare", str(folder)]) == 0
    found = json.loads((folder / "comparison.json").read_text())
    assert found["plan"]["contrasts"] == [["frontier", "fixed_*"], ["frontier", "uniform"], ["frontier", "yoked"]]
    assert (found["plan"]["primary"], found["plan"]["chosen_by"]) == ("heldout.score", "plan")
    said = capsys.readouterr().out
    assert "frontier - yoked cannot be computed: yoked has no run that can be used." in said and "not the plan" not in said


def test_contrasts_that_are_not_the_plans_are_said_to_be_others(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    PLANNED.keep(folder)
    assert main(["compare", str(folder), "--contrast", "frontier:linear"]) == 0
    said = "What is compared is not the plan: it has frontier:fixed_*, frontier:uniform, frontier:yoked on heldout.score."
    assert said in capsys.readouterr().out
    assert json.loads((folder / "comparison.json").read_text())["plan"]["chosen_by"] == "name"
    assert main(["compare", str(folder), "--primary", "heldout.auc"]) == 0
    assert said in capsys.readouterr().out


def test_a_torn_plan_is_one_sentence_and_the_runs_are_compared(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"a": [70.0, 71.0], "b": [50.0, 52.0]})
    (folder / "plan.json").write_text("{")
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.count("plan.json must hold") == 1 and "What was planned is not known: " in said
    found = json.loads((folder / "comparison.json").read_text())
    assert found["plan"]["chosen_by"] == "default" and found["contrasts"][0]["endpoints"]["heldout.score"]["num_pairs"] == 2


def test_real_run_directories_are_compared(tmp_path, capsys):
    for arm, after in (("frontier", "L4"), ("uniform", "L2")):
        for seed in range(2):
            make_run(tmp_path / arm / f"seed_{seed}", num_steps=8, num_scenarios=2, after=after, seed=seed)
    assert main(["compare", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Is the first arm better by the area under the held-out score? Of 1: 0 yes, 0 no, 1 undecided.\n")
    found = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    run = json.loads((tmp_path / "frontier" / "seed_1" / "summary.json").read_text(encoding="utf-8"))
    assert found["arms"]["frontier"]["runs"]["1"]["heldout.score"] == run["heldout"]["score"]
    # None of these runs reaches the budget, so the area is that of the summary, over all that each run sampled.
    assert found["arms"]["frontier"]["runs"]["1"][AUC] == pytest.approx(run["heldout"]["auc"])


@pytest.mark.parametrize("asked", ["7-9", "7"])
def test_seeds_of_which_a_sweep_has_none_are_refused_with_those_it_has(tmp_path, capsys, asked):
    folder = made_sweep(tmp_path / "sweep", {"a": [50.0, 60.0], "b": [40.0, 40.0]})
    assert main(["compare", str(folder), "--seeds", asked]) == 2
    assert f"--seeds must hold a seed of the sweep (0, 1), got {asked}\n" in capsys.readouterr().err


def test_the_command_writes_where_it_is_told_and_takes_seeds(tmp_path, capsys):
    folder, out = made_sweep(tmp_path / "sweep", {"a": [50.0, 60.0, 70.0], "b": [40.0, 40.0, 40.0]}), tmp_path / "out.json"
    code = main(
        [
            "compare",
            str(folder),
            "--contrast",
            "a:b",
            "--seeds",
            "1-2",
            "--primary",
            "heldout.score",
            "--out",
            str(out),
            "--threshold",
            "50",
        ]
    )
    assert code == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["contrasts"][0]["seeds"] == [1, 2]
    assert found["contrasts"][0]["endpoints"]["heldout.score"]["differences"] == [20.0, 30.0]
    assert not (folder / "comparison.json").exists()
    assert str(out) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--contrast", "a:a*"], "--contrast must set a against another arm, got the pattern 'a*', which fits a alone"),
        (["--contrast", "a:b", "--contrast", "a:b"], "--contrast must name each contrast once, got a:b more often"),
        (["--primary", "entropy.end"], "--primary must be an endpoint of which more, or less, is better, got 'entropy.end', which only"),
        (["--contrast", "a:nobody"], "--contrast must name arms of the sweep (a, b), got 'nobody'"),
        (["--contrast", "a:z*"], "got 'z*'"),
        (["--contrast", "a*:b"], "got 'a*'"),
        (["--primary", "heldout.nonsense"], "--primary must be one of heldout.auc, "),
        (["--threshold", "nan"], "--threshold must be in [0, 100]"),
        (["--bootstrap-seed", "-1"], "--bootstrap-seed must be at least 0"),
        (["--seeds", "100-109"], "--seeds must hold a seed of the sweep (0), got 100-109"),
        (["--out", "/nowhere/at/all.json"], "--out must be a file in a folder that is there"),
    ],
)
def test_what_cannot_be_met_is_one_sentence(tmp_path, capsys, arguments, complaint):
    folder = made_sweep(tmp_path, {"a": [50.0], "b": [40.0]})
    assert main(["compare", str(folder), *arguments]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (folder / "comparison.json").exists()


@pytest.mark.parametrize("arguments", [["--contrast", "a"], ["--contrast", "a:a"], ["--seeds", "4-0"], ["--seeds", "x"], ["--seeds", "3-"]])
def test_options_that_cannot_be_read_end_the_command(tmp_path, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), *arguments])
    assert ended.value.code == 2


@pytest.mark.parametrize(("name", "complaint"), [("nowhere", "there is no such folder"), ("", "which holds none")])
def test_a_folder_that_is_no_sweep_is_named(tmp_path, capsys, name, complaint):
    assert main(["compare", str(tmp_path / name)]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "rlver"])
def test_the_folder_of_an_experiment_is_refused_in_one_sentence_that_names_its_sweeps(tmp_path, capsys, command):
    sweeps = [made_sweep(tmp_path / "made" / name, {"a": [50.0]}) for name in ("other", "sweep")]
    assert main([command, str(tmp_path / "made")]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"which holds none; sweeps beneath it: {sweeps[0]}, {sweeps[1]}\n") and said.count("\n") == 1


def test_what_was_planned_is_not_written_over_by_what_is_asked_besides(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    PLANNED.keep(folder)
    assert main(["compare", str(folder)]) == 0
    planned = (folder / "comparison.json").read_bytes()
    asked_besides = {"--contrast": "frontier:linear", "--primary": "heldout.auc", "--seeds": "0"}
    for asked in asked_besides.items():
        assert main(["compare", str(folder), *asked]) == 0
        held = "all seeds" if asked[0] == "--seeds" else "what was planned"
        said = f"{folder / 'comparison.json'} stays as it is, for it holds {held}; --out FILE.json keeps this one"
        assert capsys.readouterr().out.rstrip().endswith(said)
        assert (folder / "comparison.json").read_bytes() == planned
    assert main(["compare", str(folder), "--contrast", "frontier:linear", "--out", str(tmp_path / "other.json")]) == 0
    assert json.loads((tmp_path / "other.json").read_text())["plan"]["chosen_by"] == "name"


def test_a_folder_in_place_of_the_comparison_is_one_sentence(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"a": [70.0], "b": [50.0]})
    (folder / "comparison.json").mkdir()
    assert main(["compare", str(folder)]) == 2
    assert (
        capsys.readouterr().err == f"error: {folder / 'comparison.json'} must be a file, got a folder; --out FILE.json writes elsewhere\n"
    )


def test_who_stops_a_command_gets_no_traceback(tmp_path, capsys, monkeypatch):
    def stopped(options):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "compare", stopped)
    assert main(["compare", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_comparison_of_some_seeds_gives_way_to_any_of_all(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    PLANNED.keep(folder)
    path = folder / "comparison.json"
    assert main(["compare", str(folder), "--seeds", "0"]) == 0
    assert json.loads(path.read_text())["plan"]["only_seeds"] == [0]
    assert main(["compare", str(folder), "--contrast", "frontier:linear"]) == 0
    assert json.loads(path.read_text())["plan"]["chosen_by"] == "name"
    assert main(["compare", str(folder), "--seeds", "0"]) == 0
    assert "holds all seeds" in capsys.readouterr().out and json.loads(path.read_text())["plan"]["only_seeds"] is None
