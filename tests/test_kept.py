"""What is kept of finished runs: small, enough for every comparison, and taken for the runs themselves where these are gone."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from made_run import make_run
from made_sweep import begin_with, made_result, made_sweep, steps_of, tasks_of
from sweep_file import PLAN, planned
from test_report import read_page

from analysis.__main__ import main
from analysis.comparisons.comparison import compare
from analysis.comparisons.comparison_plan import Plan
from analysis.comparisons.planned import Planned, read_planned
from analysis.comparisons.sweep import read_sweep
from analysis.copies import digest_of_tasks
from analysis.kept import keep_plan as keep_plan_of
from analysis.kept import keep_run, keep_sweep, size_of, unpack
from analysis.pages.report import write_report
from analysis.results import MARKS, only_one_in, results_beside
from analysis.runs import read_lines, read_run
from curriculum.trace import read_trace
from experiments.__main__ import main as main_of_experiments
from experiments.agents.who import fingerprint
from experiments.config import load, to_plain
from experiments.keys import ConfigError
from experiments.same_run import says_the_same
from experiments.sealed import Mark, check_sealed
from experiments.sweep import keep_plan, run_arm, run_sweep
from experiments.sweep_plan import Cell, load_sweep
from experiments.taking_over import began_otherwise, is_done, kept_runs
from simulator.bank import load_bank
from simulator.columns import read_columns, write_columns
from simulator.difficulty import Difficulty
from simulator.fingerprint import world_name
from simulator.scenario import Split
from studies.rlver_replication.rlver_table import figures_of

FINALS = {"frontier": (70.0, 80.0), "uniform": (60.0, 65.0)}


def keep(folder) -> str:
    """Keeps a sweep by the command."""
    assert main(["keep", str(folder)]) == 0
    return str(results_beside(folder.parent.parent) / folder.parent.name / folder.name)


def test_columns_are_the_records_that_were_written(tmp_path):
    records = [{"step": 1, "a": 0.5}, {"step": 1, "b": {"c": [1, None]}}, {"step": 2, "a": 0.25}, {"a": 1, "step": 2}]
    write_columns(tmp_path / "metrics.jsonl", records)
    assert [list(record.items()) for record in read_columns(tmp_path / "metrics.columns.xz")] == [list(r.items()) for r in records]
    write_columns(tmp_path / "none.jsonl", [])
    assert list(read_lines(tmp_path / "none.jsonl")) == []
    (tmp_path / "metrics.columns.xz").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"metrics.columns.xz must hold records as columns, got something else"):
        list(read_lines(tmp_path / "metrics.jsonl"))


def test_a_comparison_of_what_was_kept_is_that_of_the_runs(tmp_path):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS, metrics=steps_of(), teacher=tasks_of())
    plan = Plan(num_resamples=20)
    assert compare(read_sweep(keep(folder)), plan) == compare(read_sweep(folder), plan)


def read_kept_of(results: Path) -> dict[str, list[dict]]:
    """The metrics of every kept run, by its place."""
    return {
        str(path.parent.relative_to(results)): list(read_lines(path.parent / "metrics.jsonl")) for path in results.glob("*/*/summary.json")
    }


def test_what_is_kept_has_a_page_that_says_what_it_lacks(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS, metrics=steps_of(), teacher=tasks_of())
    made_result(folder, "uniform", 2, finished=False)
    results = results_beside(tmp_path / "runs") / "made" / "sweep"
    keep(folder)
    said = capsys.readouterr().out
    assert f"kept 4 runs in {results}, " in said and "not kept: uniform/seed_2, it has not finished" in said
    words = read_page(results / "report.html").words
    assert "frontier less uniform" in words and "of 3 pairs of frontier/seed_0 kept with their words" in words
    assert "The same user after training in the other arms" in words and "After training: uniform" in words
    assert {path.name for path in results.iterdir()} == {"report.html", "comparison.json", "frontier", "uniform"}
    assert main(["transcripts", str(results / "uniform" / "seed_0")]) == 2
    assert "which was kept without them" in capsys.readouterr().err
    assert main(["keep", str(results)]) == 2
    assert "where frontier/seed_0 is a record already; to copy it, name a folder with --out" in capsys.readouterr().err
    # As a sweep that goes on does: what was kept becomes runs, and these are kept once more with the others.
    again = tmp_path / "again" / "runs"
    for arm in ("frontier", "uniform"):
        for seed in (0, 1):
            unpack(results / arm / f"seed_{seed}", again / "made" / "sweep" / arm / f"seed_{seed}", runs=again)
    keep(again / "made" / "sweep")
    assert read_kept_of(results_beside(again) / "made" / "sweep") == read_kept_of(results)


def test_a_kept_run_is_small_and_has_the_figures_of_the_whole_one(tmp_path):
    run, kept = make_run(tmp_path / "runs" / "seed0"), tmp_path / "kept"
    keep_run(run, kept, runs=tmp_path / "runs")
    before, after = read_run(run), read_run(kept)
    assert after.summary == before.summary and after.config == before.config and after.is_kept
    assert after.series("actor/entropy").values == pytest.approx(before.series("actor/entropy").values, rel=1e-4)
    assert after.series("perf/policy_tokens") == before.series("perf/policy_tokens")
    assert figures_of(after.evaluation()) == figures_of(before.evaluation())
    words = (kept / "config.yaml").read_bytes() + b"".join(path.read_bytes() for path in kept.glob("*.xz"))
    assert len(words) < 0.1 * sum(path.stat().st_size for path in run.glob("*.jsonl"))


def test_a_long_run_keeps_every_look_at_the_probe_panel(tmp_path):
    # 1000 steps are kept by threes: 1, 4, 7, ...; looks come by fives.
    steps = [{"step": i, "actor/entropy": 0.5, "probe/reward": i / 1000 if i % 5 == 0 else None} for i in range(1, 1001)]
    run, kept = make_run(tmp_path / "runs" / "seed0"), tmp_path / "kept"
    (run / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    keep_run(run, kept, runs=tmp_path / "runs")
    looks = read_run(kept).series("probe/reward")
    assert looks.steps == list(range(5, 1001, 5)) and looks.values == [step / 1000 for step in looks.steps]
    others = [line["step"] for line in read_lines(kept / "metrics.jsonl") if line["probe/reward"] is None]
    assert others == [step for step in range(1, 1000, 3) if step % 5]
    # Kept once more, as when another experiment takes it over, it loses nothing.
    keep_run(kept, tmp_path / "again", runs=tmp_path / "runs")
    assert list(read_lines(tmp_path / "again" / "metrics.jsonl")) == list(read_lines(kept / "metrics.jsonl"))


def test_a_few_users_can_still_be_read_the_same_in_every_run(tmp_path):
    run, kept = make_run(tmp_path / "runs" / "seed0"), tmp_path / "kept"
    keep_run(run, kept, runs=tmp_path / "runs")
    read = [line for line in read_lines(kept / "evaluation.jsonl") if "turns" in line]
    first, last = read[:3], read[3:]
    assert {line["look"] for line in first} == {0} and len({line["look"] for line in last}) == 1 and last[0]["look"] > 0
    assert [line["uid"] for line in first] == [line["uid"] for line in last]
    assert len({line["strictness"] for line in first}) == 3
    assert all(line in list(read_lines(run / "evaluation.jsonl")) for line in read)
    words = read_page(write_report(kept)).words
    assert "Not picked by hand: of 3 pairs kept with their words" in words
    assert any(line["turns"][0]["text"] in words for line in read)
    bare = [{name: value for name, value in line.items() if name != "turns"} for line in read_lines(kept / "evaluation.jsonl")]
    write_columns(kept / "evaluation.jsonl", bare)
    assert "This run was kept without its transcripts." in read_page(write_report(kept)).words


def task(step: int, slot: int, difficulty: Difficulty) -> dict:
    """A task event as a run records it."""
    family = load_bank().scenarios(Split.TRAIN)[7 * step + slot]
    return {
        "step": step,
        "event": "task",
        "uid": f"step{step}-group{slot}",
        "family": str(family.family),
        "scenario_id": family.scenario_id,
        "difficulty": difficulty.to_dict(),
        "strictness": difficulty.strictness,
        "group_size": 8,
        "seed": 1000 * step + slot,
        "mode": "frontier",
        "teacher_step": step,
        "policy_version": step,
        "propensity": 0.123456789,
    }


def tasks(shift: float = 0.0) -> list[dict]:
    """Two steps of two tasks, one of which has an axis set by itself."""
    off = Difficulty(strictness=0.3, reserve=0.9, impatience=0.1)
    return [
        task(step, slot, off if slot and step == 1 else Difficulty.along(0.1 * step + slot / 3 + shift))
        for step in (1, 2)
        for slot in (0, 1)
    ]


def test_a_kept_teacher_can_be_copied_to_the_last_digit(tmp_path):
    run = made_result(tmp_path / "runs" / "made" / "sweep", "frontier", 3, teacher=tasks())
    keep_run(run, tmp_path / "kept", runs=tmp_path / "runs")
    unpack(tmp_path / "kept", tmp_path / "again", runs=tmp_path / "runs")
    families = sorted({scenario.family for scenario in load_bank().scenarios(Split.TRAIN)}, key=str)
    traces = [read_trace(str(folder), families=families, seed=5) for folder in (run, tmp_path / "again")]
    assert traces[0].digest == traces[1].digest and traces[0].num_steps == 2


def test_a_run_is_kept_once_and_another_one_never_in_its_place(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS)
    results = results_beside(tmp_path / "runs") / "made" / "sweep"
    keep(folder)
    first = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    keep(folder)
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == first
    summary = folder / "uniform" / "seed_1" / "summary.json"
    summary.write_text(summary.read_text().replace("65.0", "66.0"))
    assert main(["keep", str(folder)]) == 2
    assert f"{results / 'uniform' / 'seed_1'} holds another run than" in capsys.readouterr().err


def test_the_size_of_what_is_kept_is_told_without_a_page_that_was_made_of_it(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS)
    record = Path(keep(folder)) / "uniform" / "seed_1"
    said = capsys.readouterr().out.splitlines()[0]
    (record / "report.html").write_text("x" * 100_000, encoding="utf-8")
    (record / "figures").mkdir()
    keep(folder)
    assert " kB each" in said and capsys.readouterr().out.splitlines()[0] == said
    assert size_of(record) == sum(path.stat().st_size for path in record.iterdir() if path.name not in ("report.html", "figures"))


def test_a_torn_run_is_not_kept_and_a_torn_record_is_written_anew(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS)
    evaluation, results = folder / "uniform" / "seed_1" / "evaluation.jsonl", results_beside(tmp_path / "runs") / "made" / "sweep"
    whole_file = evaluation.read_text()
    evaluation.write_text("nonsense\n" + whole_file)
    keep(folder)
    assert "kept 3 runs" in (said := capsys.readouterr().out) and "not kept: uniform/seed_1, " in said
    assert not (results / "uniform" / "seed_1").exists()
    evaluation.write_text(whole_file)
    (results / "uniform" / "seed_0" / "evaluation.columns.xz").write_bytes(b"torn")
    keep(folder)
    assert len(read_sweep(results).runs) == 4 and compare(read_sweep(results), Plan(num_resamples=20))["notes"] == []
    (results / "uniform" / "seed_0" / "summary.json").write_text('{"seed": 0, "wall_s": "of another run"}')
    with pytest.raises(ValueError, match="seed_0 holds another run than"):
        keep_sweep(folder, results)


@pytest.mark.parametrize(
    ("words", "message"), [([], "frontier/seed_0: it has not finished (no summary.json)"), (["--out", "in"], "--out must lie outside")]
)
def test_what_cannot_be_kept_is_refused_in_one_sentence(tmp_path, capsys, words, message):
    folder = tmp_path / "runs" / "made" / "sweep"
    made_result(folder, "frontier", 0, finished=bool(words))
    assert main(["keep", str(folder), *(str(folder / word) if word == "in" else word for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_what_is_kept_of_a_plan_does_not_shrink_when_its_folder_is_gone(earlier):
    results = results_beside(earlier.runs) / "made" / "sweep"
    wide = replace(earlier.planned, seeds=(3, 5, 6))
    wide.keep(results)
    keep_plan(planned(f"runs={earlier.runs}", "seeds=3"))
    assert read_planned(earlier.folder).seeds == (3, 5, 6)
    (earlier.folder / "plan.json").unlink()
    earlier.planned.keep(earlier.folder)
    keep_plan_of(earlier.folder, results)
    assert read_planned(results).seeds == (3, 5, 6)


def test_results_of_another_plan_are_not_mixed(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS)
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc").keep(folder)
    keep(folder)
    (folder / "plan.json").unlink()
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.score").keep(folder)
    assert main(["keep", str(folder)]) == 2
    assert "must be the sweep's plan (frontier:uniform on heldout.score), got frontier:uniform on heldout.auc" in capsys.readouterr().err


@pytest.fixture
def prior(tmp_path, monkeypatch) -> Path:
    """What stands for the weights that runs here would begin with."""
    folder = tmp_path / "prior"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("experiments.taking_over.prior_folder", lambda config: folder)
    return folder


@pytest.fixture
def earlier(write, tmp_path, prior):
    """A sweep of three arms and two seeds of which all but one run were made, kept, and then lost."""
    write()
    sweep = planned(f"runs={tmp_path / 'runs'}")
    for cell in sweep.cells():
        if cell == Cell("fixed", 5):
            continue
        place = made_result(sweep.folder, cell.arm, cell.seed, world=world_name(), teacher=tasks(cell.seed / 100), metrics=steps_of())
        config = {**to_plain(sweep.config(cell)), "provenance": {"world": world_name(), "git_commit": "c0ffee"}}
        config["provenance"]["initial_policy"] = fingerprint(prior)
        (place / "config.yaml").write_text(yaml.safe_dump(config))
    sweep.planned.keep(sweep.folder)
    keep(sweep.folder)
    shutil.rmtree(tmp_path / "runs")
    return sweep


def test_kept_runs_are_done_and_only_the_rest_is_left(earlier):
    kept = kept_runs(earlier)
    results = results_beside(earlier.runs) / "made" / "sweep"
    assert set(kept.usable) == set(earlier.cells()) - {Cell("fixed", 5)} and not kept.unusable
    done = f"5 of 6 runs were kept in {results} and are done: without weights and transcripts"
    assert list(kept.sentences(6)) == [f"{done}; another name= runs them anew"]
    kept.place(earlier)
    assert kept_runs(earlier).usable == {}
    assert digest_of_tasks(read_lines(earlier.run_folder(Cell("frontier", 3)) / "teacher.jsonl")) == digest_of_tasks(tasks(0.03))
    config = yaml.safe_load((earlier.run_folder(Cell("replayed", 3)) / "config.yaml").read_text())
    assert config["teacher"]["trace"] == str(earlier.run_folder(Cell("frontier", 5)) / "teacher.jsonl")
    assert "teacher.jsonl" in (results / "replayed" / "seed_3" / "config.yaml").read_text()
    assert str(earlier.runs) not in (results / "replayed" / "seed_3" / "config.yaml").read_text()


def test_a_run_by_itself_is_done_where_it_was_kept_and_so_is_what_it_replays(earlier, capsys):
    assert run_arm(earlier, Cell("replayed", 3)) == 0
    assert "replayed/seed_3 has ended" in capsys.readouterr().err
    there = {path.parent for path in earlier.folder.rglob("summary.json")}
    assert there == {earlier.run_folder(cell) for cell in (Cell("replayed", 3), *earlier.needs(Cell("replayed", 3)))}


def test_kept_runs_that_say_what_would_be_written_now_need_not_go_through_the_schema(earlier, monkeypatch):
    expected = kept_runs(earlier).usable
    monkeypatch.setattr("experiments.taking_over.load_saved", None)
    assert kept_runs(earlier).usable == expected


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"runs": "elsewhere", "name": "other", "experiment": "another"}, True),
        ({"resampling": {}}, True),
        ({"group_size": None}, False),
        ({"group_size": 16}, False),
        ({"budget": {"policy_tokens": 5000, "steps": True}}, False),
        ({"teacher": {"strictness": 0.5}}, False),
        ({"budgte": 3}, False),
        ({"name": None}, False),
    ],
)
def test_a_file_says_the_same_with_defaults_for_what_it_lacks_and_with_nothing_else(write, changed, same):
    write(PLAN.replace("budget: {policy_tokens: 5000}", "budget: {policy_tokens: 5000, steps: 1}"))
    config = planned().config(Cell("fixed", 3))
    assert says_the_same({**to_plain(config), **changed}, config) is same


def test_kept_runs_that_began_with_other_weights_are_named(earlier, prior):
    record = results_beside(earlier.runs) / "made" / "sweep" / "frontier" / "seed_3" / "config.yaml"
    config = yaml.safe_load(record.read_text())

    def said(began_with: str) -> list[str]:
        record.write_text(yaml.safe_dump({**config, "provenance": {**config["provenance"], "initial_policy": began_with}}))
        return list(began_otherwise(earlier, kept_runs(earlier)))

    assert said(fingerprint(prior)) == []
    (sentence,) = said("aaaa")
    assert "than the prior here gives: frontier seed 3; they are not paired with the runs made now" in sentence
    # In a later sitting they lie where runs do.
    kept_runs(earlier).place(earlier)
    assert list(began_otherwise(earlier, kept_runs(earlier))) == [sentence]


def test_a_sweep_whose_runs_were_all_kept_runs_nothing_and_compares(earlier, capsys):
    part = planned(f"runs={earlier.runs}", "arms=frontier,fixed", "seeds=3")
    assert run_sweep(part) == 0
    said = capsys.readouterr().err
    assert "2 of 2 runs were kept in" in said and "0 runs to do, 2 done" in said
    assert set(json.loads((part.folder / "comparison.json").read_text())["arms"]) == {"frontier", "fixed"}
    # The runs that were taken over are kept again as they are.
    keep(part.folder)


def test_a_run_that_was_begun_is_never_replaced(earlier):
    folder = earlier.run_folder(Cell("fixed", 3))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 3\n")
    kept = kept_runs(earlier)
    assert Cell("fixed", 3) not in kept.usable and not kept.unusable


def test_kept_runs_of_other_settings_worlds_and_plans_are_left_with_the_reason(earlier, monkeypatch, capsys):
    other = planned(f"runs={earlier.runs}", "algorithm.turn_credit=0.5")
    said = list(kept_runs(other).sentences(6))
    cells = "frontier seed 3, fixed seed 3, frontier seed 5 and 2 more"
    assert len(said) == 1 and said[0].endswith(f"{cells}; algorithm.turn_credit was 0.0 and is 0.5")
    assert main_of_experiments(["made", "--dry-run", f"runs={earlier.runs}", "algorithm.turn_credit=0.5"]) == 0
    assert f"# {said[0]}" in capsys.readouterr().out
    monkeypatch.setattr("experiments.taking_over.world_name", lambda *_: "another")
    assert all(f"the world was {world_name()} and is another" in sentence for sentence in kept_runs(earlier).sentences(6))


def test_kept_runs_of_another_plan_are_left(earlier):
    path = results_beside(earlier.runs) / "made" / "sweep" / "plan.json"
    path.write_text(path.read_text().replace("heldout.auc", "heldout.score"))
    assert list(kept_runs(earlier).unusable) == ["they were run for another plan (frontier:fixed on heldout.score)"]


def test_a_copy_of_a_run_that_is_gone_or_was_made_anew_is_left(earlier):
    shutil.rmtree(results_beside(earlier.runs) / "made" / "sweep" / "frontier" / "seed_5")
    kept = kept_runs(earlier)
    assert kept.unusable == {"the run that they copied is not the one here": [Cell("replayed", 3)]}
    made_result(earlier.folder, "frontier", 5, teacher=tasks(0.2))
    assert list(kept_runs(earlier).unusable.values()) == [[Cell("replayed", 3)]]
    made_result(earlier.folder, "frontier", 3, teacher=tasks(0.03))
    assert Cell("replayed", 5) in kept_runs(earlier).usable


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "metrics.columns.xz", "evaluation.columns.xz", "teacher.columns.xz"])
def test_a_torn_record_is_left_and_the_others_are_used(earlier, name):
    (results_beside(earlier.runs) / "made" / "sweep" / "fixed" / "seed_3" / name).write_text("a: [")
    kept = kept_runs(earlier)
    assert [cells for reason, cells in kept.unusable.items() if "cannot be read" in reason] == [[Cell("fixed", 3)]]
    assert len(kept.usable) == 4


OTHER = """# Two of the same runs, called otherwise.
base: smoke
settings: {budget: {policy_tokens: 5000}}
seeds: [3, 5]
parallel: 2
arms:
  leader: {}
  half: {teacher: {kind: fixed, strictness: 0.5}}
  copied: {teacher: {kind: yoked, trace: "{leader}"}}
contrasts: ["leader:half"]
"""


def test_the_same_run_of_another_experiment_is_taken_over_whatever_its_arm_is_called(earlier, write, capsys):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    sweep = load_sweep("other", [f"runs={earlier.runs}"])
    kept, results = kept_runs(sweep), results_beside(earlier.runs) / "made" / "sweep"
    # Of `half` only seed 3 was kept; copies of another run are each sweep's own.
    places = {Cell("leader", 3): "frontier/seed_3", Cell("leader", 5): "frontier/seed_5", Cell("half", 3): "fixed/seed_3"}
    assert kept.usable == {cell: results / place for cell, place in places.items()} and not kept.unusable
    assert next(kept.sentences(6)).startswith(f"3 of 6 runs were kept in {results}, with the same settings, and are done")
    kept.place(sweep)
    assert run_sweep(load_sweep("other", [f"runs={earlier.runs}", "arms=leader,half", "seeds=3"])) == 0
    assert "0 runs to do, 2 done" in capsys.readouterr().err
    keep(sweep.folder)
    assert read_run(results_beside(earlier.runs) / "other" / "sweep" / "half" / "seed_3").config["experiment"] == "other"


def test_a_run_by_itself_is_done_where_another_experiment_kept_it(earlier, write, capsys):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    assert run_arm(load_sweep("other", [f"runs={earlier.runs}"]), Cell("half", 3)) == 0
    assert "half/seed_3 has ended" in capsys.readouterr().err


def test_a_sweep_without_runs_of_its_own_takes_those_over_that_began_as_its_runs_would(earlier, write, prior):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    sweep = load_sweep("other", [f"runs={earlier.runs}"])
    assert Cell("half", 3) in kept_runs(sweep).usable
    (prior / "config.json").write_text('{"another": "build"}')
    assert not kept_runs(sweep).usable
    # Of a prior that is not built yet nothing is known.
    (prior / "config.json").unlink()
    prior.rmdir()
    assert not kept_runs(sweep).usable


def test_a_copy_beside_the_records_is_none_of_them(earlier, write):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    made = results_beside(earlier.runs) / "made" / "sweep" / "frontier"
    shutil.copytree(made / "seed_3", made / "seed_3_backup")
    assert Cell("half", 3) in kept_runs(load_sweep("other", [f"runs={earlier.runs}"])).usable


def test_a_run_that_was_kept_is_done_for_a_dry_run_too(earlier, capsys):
    assert main_of_experiments(["made", f"runs={earlier.runs}", "--cell", "frontier", "3", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("# frontier seed 3 was kept in ")


def test_runs_of_another_experiment_are_left_where_they_began_with_other_weights_than_the_sweeps_own(earlier, write):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    sweep = load_sweep("other", [f"runs={earlier.runs}"])
    made = results_beside(earlier.runs) / "made" / "sweep"
    mine = results_beside(earlier.runs) / "other" / "sweep" / "leader" / "seed_3"
    shutil.copytree(made / "frontier" / "seed_3", mine)
    assert Cell("half", 3) in kept_runs(sweep).usable
    config = yaml.safe_load((mine / "config.yaml").read_text())
    config["provenance"]["initial_policy"] = "aaaa"
    (mine / "config.yaml").write_text(yaml.safe_dump(config))
    assert set(kept_runs(sweep).usable) == {Cell("leader", 3)}
    # In a later sitting its own run is there, and no longer waiting.
    kept_runs(sweep).place(sweep)
    assert not kept_runs(sweep).usable


def test_a_record_that_lacks_a_setting_of_today_is_taken_over_and_what_copied_it_too(earlier, write):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    other = load_sweep("other", [f"runs={earlier.runs}"])
    kept_runs(other).place(other)
    copy, leader = Cell("copied", 3), results_beside(earlier.runs) / "made" / "sweep" / "frontier" / "seed_5"
    made_result(other.folder, "copied", 3, world=world_name(), metrics=steps_of(), teacher=tasks(0.05))
    begin_with(other.run_folder(copy), other.config(copy))
    keep(other.folder)
    shutil.rmtree(earlier.runs)
    for arm in ("leader", "half"):
        shutil.rmtree(results_beside(earlier.runs) / "other" / "sweep" / arm)
    config = yaml.safe_load((leader / "config.yaml").read_text())
    assert config["teacher"]["guard"].pop("density_low") is not None
    (leader / "config.yaml").write_text(yaml.safe_dump(config))
    kept = kept_runs(other)
    assert kept.usable[Cell("leader", 5)] == leader and copy in kept.usable and not kept.unusable


def test_a_run_that_another_command_unpacked_meanwhile_is_there_and_not_in_the_way(earlier, monkeypatch):
    kept, write_text = kept_runs(earlier), Path.write_text
    place = earlier.run_folder(Cell("frontier", 3))

    def another_is_faster(path, *arguments, **options):
        done = write_text(path, *arguments, **options)
        if path.name == "config.yaml" and not place.exists():
            shutil.copytree(path.parent, place)
        return done

    monkeypatch.setattr(Path, "write_text", another_is_faster)
    kept.place(earlier)
    assert set(earlier.cells()) == {cell for cell in earlier.cells() if is_done(earlier, cell)} | {Cell("fixed", 5)}
    assert not list(place.parent.glob(".keep-*"))


def test_a_sweep_that_is_refused_leaves_nothing_behind(earlier):
    Planned(contrasts=(("fixed", "frontier"),), primary="heldout.auc").keep(earlier.folder)
    with pytest.raises(ConfigError, match="contrasts"):
        run_sweep(earlier)
    assert [path.name for path in earlier.folder.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("changed", ["name=mine", "algorithm.turn_credit=0.5", "evaluation.num_scenarios=9"])
def test_runs_of_another_experiment_are_not_taken_over_where_they_are_others_or_were_not_asked_for(earlier, write, changed):
    write().with_name("other.yaml").write_text(OTHER, encoding="utf-8")
    assert kept_runs(load_sweep("other", [f"runs={earlier.runs}", changed])).usable == {}


def test_the_best_arms_are_chosen_from_kept_runs_where_the_runs_are_gone(tmp_path):
    folder = tmp_path / "runs" / "fixed_vs_adaptive" / "sweep"
    arms = [f"fixed_{d}" for d in (0.1, 0.3, 0.5, 0.7, 0.9)] + ["linear_x0.5", "linear_x1", "linear_x2"]
    made_sweep(folder, {arm: [50.0 + i] * 5 for i, arm in enumerate(arms)}, world=world_name(), budget=600_000)
    origin = load_sweep("fixed_vs_adaptive", [f"runs={tmp_path / 'runs'}"])
    for cell in (Cell(arm, seed) for arm in arms for seed in origin.seeds):
        begin_with(origin.run_folder(cell), origin.config(cell))
    keep(folder)
    shutil.rmtree(tmp_path / "runs")
    sweep = load_sweep("confirmation", [f"runs={tmp_path / 'runs'}"])
    assert sweep.choice is not None and {pick.arm for pick in sweep.choice.picks} == {"fixed_0.9", "linear_x2"}


def test_what_was_chosen_is_kept_and_not_chosen_anew_when_the_runs_are_gone(tmp_path):
    picks = [
        {"pattern": f"{kind}_*", "arm": f"{kind}_{best}", "means": {f"{kind}_{best}": 50.0}}
        for kind, best in (("fixed", 0.1), ("linear", "x1"))
    ]
    facts = {"origin": "fixed_vs_adaptive/sweep", "seeds": "0-4", "endpoint": "heldout.auc", "world": world_name()}
    folder = made_sweep(tmp_path / "runs" / "confirmation" / "sweep", FINALS)
    (folder / "chosen.json").write_text(json.dumps({**facts, "candidates": {}, "picks": picks, "why_not": ""}))
    keep(folder)
    shutil.rmtree(tmp_path / "runs")
    choice = load_sweep("confirmation", [f"runs={tmp_path / 'runs'}"]).choice
    assert choice is not None and [pick.arm for pick in choice.picks] == ["fixed_0.1", "linear_x1"]


def leave_marks(runs: Path, *cells: str, seeds: tuple[int, ...] = (0, 1)) -> None:
    """Writes the marks of runs of the frontier teacher on the sealed half, each `<experiment>/<name>/<arm>/seed_<n>`."""
    of = {"world": world_name(), "teacher": "frontier", "reward": "graded"}
    facts = {**of, "seeds": list(seeds), "again": "", "time": "2026-01-01 00:00"}
    marks = [Mark(opening="/".join(cell.split("/")[:2]), run=cell, **facts) for cell in cells]
    (runs / MARKS).write_text("".join(json.dumps(vars(mark)) + "\n" for mark in marks))


def test_the_mark_of_an_opening_is_kept_and_still_guards_when_the_runs_are_gone(tmp_path):
    runs = tmp_path / "runs"
    folder = made_sweep(runs / "confirmation" / "sweep", FINALS)
    leave_marks(runs, "confirmation/sweep/frontier/seed_0", "other/sweep/frontier/seed_0")
    keep(folder)
    kept = (results_beside(runs) / MARKS).read_text().splitlines()
    assert [json.loads(line)["opening"] for line in kept] == ["confirmation/sweep"]
    shutil.rmtree(runs)
    config = load("smoke", [f"runs={runs}", "evaluation.split=sealed"])
    with pytest.raises(ConfigError, match="the sealed half was opened for frontier"):
        check_sealed(config, runs / "smoke" / "second", resuming=False)


def test_marks_that_two_sweeps_keep_at_once_are_all_kept(tmp_path):
    folder, results = made_sweep(tmp_path / "runs" / "confirmation" / "sweep", FINALS), results_beside(tmp_path / "runs")
    leave_marks(tmp_path / "runs", "confirmation/sweep/frontier/seed_0")
    results.mkdir(parents=True)
    keeper = threading.Thread(target=keep, args=(folder,))
    with only_one_in(results):
        keeper.start()
        keeper.join(timeout=5.0)
        assert keeper.is_alive() and not (results / MARKS).exists()
        (results / MARKS).write_text("another sweep's\n")
    keeper.join()
    kept = (results / MARKS).read_text().splitlines()
    assert kept[0] == "another sweep's" and [json.loads(line)["opening"] for line in kept[1:]] == ["confirmation/sweep"]


def test_marks_of_records_that_lie_elsewhere_lie_among_them_and_those_in_results_of_another_checkout_beside_all(tmp_path):
    folder = made_sweep(tmp_path / "runs" / "confirmation" / "sweep", FINALS)
    leave_marks(tmp_path / "runs", "confirmation/sweep/frontier/seed_0")
    keep_sweep(folder, tmp_path / "a" / "b" / "records")
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob(MARKS)} == {Path("runs") / MARKS, Path("a/b/records") / MARKS}
    keep_sweep(folder, tmp_path / "checkout" / "docs" / "results" / "confirmation" / "sweep")
    assert (tmp_path / "checkout" / "docs" / "results" / MARKS).is_file()


def test_of_an_opening_over_several_sittings_what_was_kept_is_not_judged_again_and_what_was_broken_off_may_begin_anew(tmp_path):
    runs = tmp_path / "runs"
    sweep = load_sweep("confirmation", [f"runs={runs}", "arms=frontier,uniform", "seeds=100,101"])
    made_result(sweep.folder, "frontier", 100)
    made_result(sweep.folder, "frontier", 101, finished=False)
    leave_marks(runs, *(f"confirmation/sweep/frontier/seed_{seed}" for seed in sweep.seeds), seeds=sweep.planned.seeds)
    keep(sweep.folder)
    shutil.rmtree(runs)
    done, broken_off = Cell("frontier", 100), Cell("frontier", 101)
    check_sealed(sweep.config(broken_off), sweep.run_folder(broken_off), resuming=False)
    check_sealed(sweep.config(done), sweep.run_folder(done), resuming=True)
    with pytest.raises(ConfigError, match="by confirmation/sweep/frontier/seed_100"):
        check_sealed(sweep.config(done), sweep.run_folder(done), resuming=False)
    # Its mark follows with its record, once it is there.
    made_result(sweep.folder, "frontier", 101)
    leave_marks(runs, "confirmation/sweep/frontier/seed_101", seeds=sweep.planned.seeds)
    keep(sweep.folder)
    assert len((results_beside(runs) / MARKS).read_text().splitlines()) == 2


def test_a_mark_that_is_none_is_told_when_runs_are_kept(tmp_path, capsys):
    folder = made_sweep(tmp_path / "runs" / "made" / "sweep", FINALS)
    (tmp_path / "runs" / MARKS).write_text('{"opening": "made/sweep"}\n')
    assert main(["keep", str(folder)]) == 2
    assert 'sealed.jsonl must hold a mark a line, got \'{"opening": "made/sweep"}\'' in capsys.readouterr().err
