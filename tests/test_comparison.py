"""A sweep compared: numbers worked out by hand, and what broke or was not measured."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
import scipy.stats
from compared import compared, on
from made_sweep import BUDGET, CELLS, made_result, made_sweep

from analysis.__main__ import main
from analysis.compare import Plan, as_text, compare, write_json
from analysis.endpoints import AUC
from analysis.stats import minimal_detectable_effect
from analysis.sweeps import NO_MATTER, Note, NoteKind, read_sweep
from experiments.config import MAY_CHANGE

TEN = [50.0, 52.0, 54.0, 56.0, 58.0, 60.0, 62.0, 64.0, 66.0, 68.0]


def test_the_numbers_of_an_arm(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [40.0, 50.0, 60.0, 70.0, 100.0]}))["arms"]["a"]
    assert [arm["runs"][str(seed)][AUC] for seed in range(5)] == [30.0, 35.0, 40.0, 45.0, 60.0]
    area = arm["endpoints"][AUC]
    # Of five runs one is cut off at each end.
    assert (area["mean"]["value"], area["iqm"]["value"], area["min"], area["max"]) == (42.0, 40.0, 30.0, 60.0)
    assert area["sd"] == pytest.approx(np.std([30, 35, 40, 45, 60], ddof=1))
    assert arm["endpoints"]["wall_s"]["mean"] == {"value": 60.0, "low": 60.0, "high": 60.0}


def test_runs_of_one_arm_may_differ_in_what_a_resumed_run_may_be_given_anew():
    assert [name for name in MAY_CHANGE if name != "budget." and not name.startswith(NO_MATTER)] == []


def test_cells_are_judged_by_strictness_and_against_thresholds(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [60.0, 60.0]}))["arms"]["a"]
    # At .1: 90 and 80, at .5: 60, at .9: 30 and 40.
    assert arm["by_strictness"]["strictness"] == [0.1, 0.5, 0.9]
    assert arm["by_strictness"]["value"] == [85.0, 60.0, 35.0]
    assert dict(zip(arm["profile"]["threshold"], arm["profile"]["value"], strict=True))[50] == 3 / 5
    assert arm["cells"]["num_cells"] == len(CELLS) + 1
    assert arm["cells"]["mean"]["value"] == pytest.approx(60.0)


def test_the_gap_is_to_what_the_expert_scored_and_unknown_where_that_is(tmp_path):
    expert = {"summary": {"reference": {"L6": {"score": 84.0}}}}
    known = compared(made_sweep(tmp_path / "known", {"a": [60.0, 60.0]}, **expert))["arms"]["a"]["cells"]
    # Cells at 90, 80, 60, 30 and 40, the first no better than the expert.
    assert known["expert"] == 84.0 and known["gap_to_expert"]["value"] == pytest.approx(84.0 - (84 + 80 + 60 + 30 + 40) / 5)
    made_sweep(tmp_path / "unlike", {"a": [60.0]}, **expert)
    made_result(tmp_path / "unlike", "a", 1)
    for folder in (tmp_path / "unlike", made_sweep(tmp_path / "unknown", {"a": [60.0]})):
        cells = compared(folder)["arms"]["a"]["cells"]
        assert cells["expert"] is None and cells["gap_to_expert"] is None and cells["mean"]["value"] == pytest.approx(60.0)


def test_tokens_to_a_threshold_are_censored_where_it_was_not_reached(tmp_path):
    found = compared(made_sweep(tmp_path, {"a": [60.0, 100.0, 40.0]}), threshold=60.0)["arms"]["a"]["tokens_to_threshold"]
    # Reached at 1000 and at 500; the third never.
    assert (found["num_reached"], found["num_runs"]) == (2, 3)
    assert found["kaplan_meier_median"] == 1000.0
    assert found["restricted_mean"] == pytest.approx((500 + 1000 + 1000) / 3)


def test_a_contrast_is_the_paired_test_of_areas(tmp_path):
    a, b = np.array(TEN) + np.arange(10), np.array(TEN)
    found = compared(made_sweep(tmp_path, {"a": list(a), "b": list(b)}), ("a", "b"))
    area, d = on(found), np.arange(10) / 2
    assert area["differences"] == pytest.approx(d)
    theirs = scipy.stats.ttest_rel(a / 2, b / 2).confidence_interval(0.95)
    assert (area["difference"]["low"], area["difference"]["high"]) == pytest.approx((theirs.low, theirs.high))
    # Nine differences above 0 and one at 0: the four patterns that leave the nine alike.
    assert area["p"] == 4 / 2**10
    assert area["p_holm"] == area["p"]
    assert area["probability_of_improvement"]["value"] == 0.95
    assert area["minimal_detectable_effect"]["effect"] == pytest.approx(minimal_detectable_effect(num_pairs=10, sd=d.std(ddof=1)))
    assert found["verdict"] == ["Is the first arm better by the area under the held-out score? Of 1: 1 yes, 0 no, 0 undecided."]
    row = f"{theirs.low:.1f}, {theirs.high:.1f}]    9 of 10  0.00391  0.00391"
    assert row in as_text(found)


def test_holm_counts_the_primary_contrasts_and_one_that_is_missing(tmp_path):
    better, best = [score + 2.0 for score in TEN], [score + 4.0 for score in TEN]
    folder = made_sweep(tmp_path, {"a": TEN, "b": better, "c": best})
    found = compared(folder, ("b", "a"), ("c", "b"), ("c", "nobody"))
    assert [on(found, which=i)["p_holm"] for i in (0, 1)] == pytest.approx([3 * 2 / 1024, 3 * 2 / 1024])
    assert on(found, which=2) is None
    assert found["contrasts"][2]["cannot"] == "nobody has no run that can be used."
    assert on(found)["minimal_detectable_effect"]["alpha"] == pytest.approx(0.05 / 3)
    assert on(found, "heldout.score")["p_holm"] is None


def test_a_contrast_with_fewer_pairs_is_decided_where_holm_decides_it(tmp_path):
    folder = made_sweep(tmp_path, {"a": [score + 2.0 for score in TEN], "b": TEN, "c": TEN[:6]})
    found = compared(folder, ("a", "b"), ("a", "c"))
    assert [on(found, which=i)["num_pairs"] for i in (0, 1)] == [10, 6]
    assert [on(found, which=i)["p_holm"] for i in (0, 1)] == pytest.approx([2 * 2 / 2**10, 2 / 2**6])
    assert [contrast["answer"] for contrast in found["contrasts"]] == ["yes", "yes"]


@pytest.mark.parametrize("num", [3, 5])
def test_few_seeds_describe(tmp_path, num):
    found = compared(made_sweep(tmp_path, {"a": [60.0, 61.0, 62.0, 63.0, 65.0][:num], "b": [20.0] * num}), ("a", "b"))
    assert found["contrasts"][0]["answer"] == "undecided"
    assert found["verdict"] == [
        "Is the first arm better by the area under the held-out score? Of 1: 0 yes, 0 no, 1 undecided.",
        "Undecided means fewer than 5 pairs, p above 0.05 after Holm's correction, or anything else than was planned.",
    ]


def test_a_no_is_decided_and_a_mean_that_is_a_little_behind_is_undecided(tmp_path):
    ours = [50.0 + 1.5 * i for i in range(8)]
    rivals = {"level": [final + 0.1 for final in reversed(ours)], "ahead": [70.0 + i for i in range(8)], "behind": [40.0] * 8}
    found = compared(made_sweep(tmp_path, {"a": ours, **rivals}), *(("a", rival) for rival in rivals))
    assert [contrast["answer"] for contrast in found["contrasts"]] == ["undecided", "no", "yes"]
    assert found["verdict"][0] == "Is the first arm better by the area under the held-out score? Of 3: 1 yes, 1 no, 1 undecided."


def test_improvement_over_cells_is_the_published_mean_over_cells(tmp_path):
    for seed in range(3):
        made_result(tmp_path, "a", seed, cells=(5.0, 5.0, 5.0, -5.0))
        made_result(tmp_path, "b", seed, cells=(0.0, 0.0, 0.0, 0.0))
    found = compared(tmp_path, ("a", "b"))["contrasts"][0]["improvement_over_cells"]
    # Better in three cells, worse in one, the same in the fifth.
    assert found == {"value": 3.5 / 5, "low": 3.5 / 5, "high": 3.5 / 5, "num_cells": 5}


def test_dialogues_that_broke_count_nowhere(tmp_path):
    place = made_result(tmp_path, "a", 0)
    broken = {"step": 10, "look": 1, "policy_tokens": BUDGET, "grid": "full", "in_during": True, "outcome": "error", "emotion": 0}
    with (place / "evaluation.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**broken, "family": "praise/negative", "strictness": 0.5}) + "\n")
    run = read_sweep(tmp_path).runs[0]
    assert run.scalars[AUC] == 40.0
    assert run.cells["praise/negative", 0.5] == 60.0


def test_the_grid_before_training_is_not_taken_for_the_end(tmp_path):
    made_result(tmp_path, "a", 0, looks=((0, 20.0),))
    assert read_sweep(tmp_path).runs[0].cells == {}


def test_lower_is_better_for_failures(tmp_path):
    for seed in range(2):
        for arm, rate in (("a", 0.25), ("b", 0.5)):
            made_result(tmp_path, arm, seed, summary={"heldout": {"score": 50.0, "failure_rate": rate}})
    failures = on(compared(tmp_path, ("a", "b")), "heldout.failure_rate")
    assert failures["difference"]["value"] == -0.25
    assert failures["probability_of_improvement"]["value"] == 1.0
    assert failures["probability_of_improvement_any_pair"] == 1.0


def test_what_a_run_did_not_measure_is_dropped_and_counted(tmp_path):
    made_sweep(tmp_path, {"b": [50.0, 50.0]})
    made_result(tmp_path, "a", 0)
    made_result(tmp_path, "a", 1, summary={"heldout": {"score": None}})
    found = compared(tmp_path, ("a", "b"))
    assert (on(found, "heldout.score")["num_pairs"], on(found, "heldout.score")["num_dropped"]) == (1, 1)
    told = found["contrasts"][0]["notes"]
    assert len(told) == 1 and told[0].startswith("Not every pair of a and b measured heldout.score, ")
    said = compared(tmp_path, ("a", "b"), primary="heldout.score")["contrasts"][0]["notes"]
    assert said == ["1 of 2 pairs of a and b did not measure heldout.score."]
    assert on(found)["num_pairs"] == 2
    assert on(found, "heldout.cvar20")["differences"] == [0.0]


def test_a_curve_is_cut_at_the_budget(tmp_path):
    made_result(tmp_path, "a", 0, looks=((0, 0.0), (2 * BUDGET, 100.0)))
    assert read_sweep(tmp_path).runs[0].scalars[AUC] == 25.0


def test_a_finished_run_that_ended_early_keeps_its_last_score(tmp_path):
    made_sweep(tmp_path, {"a": [60.0]})
    made_result(tmp_path, "b", 0, looks=((0, 20.0), (BUDGET // 2, 40.0)))
    sweep = read_sweep(tmp_path)
    assert sweep.of("b")[0].scalars[AUC] == 35.0
    timed = compare(sweep, Plan(num_resamples=20))["arms"]["b"]["tokens_to_threshold"]
    assert (timed["num_reached"], timed["restricted_mean"], timed["horizon"]) == (0, 1000.0, 1000.0)
    assert sweep.notes == ["Before 1,000 policy tokens ended b/seed_0 at 500: its last score is held to the end."]
    made_result(tmp_path, "b", 1, looks=((0, 20.0), (BUDGET // 4, 40.0)))
    said = "Before 1,000 policy tokens ended b/seed_0 at 500, b/seed_1 at 250: their last scores are held to the end."
    assert read_sweep(tmp_path).notes == [said]


def test_where_no_run_reaches_the_budget_areas_end_with_the_shortest(tmp_path):
    made_result(tmp_path, "a", 0, looks=((0, 0.0), (400, 40.0)))
    made_result(tmp_path, "b", 0, looks=((0, 0.0), (800, 80.0)))
    sweep = read_sweep(tmp_path)
    assert sweep.auc_ends == {BUDGET: 400.0}
    assert [run.scalars[AUC] for run in sweep.runs] == [20.0, 20.0]
    said = "No run spent the 1,000 policy tokens that were allowed: areas are over the first 400, where the shortest curve ends"
    assert sweep.notes == [f"{said}; the longest reaches 800."]
    # A threshold may be reached after that.
    timed = compare(sweep, Plan(threshold=60.0, num_resamples=20))["arms"]["b"]["tokens_to_threshold"]
    assert (timed["num_reached"], timed["restricted_mean"]) == (1, 600.0)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("summary.json", None, "it has not finished (no summary.json)"),
        ("summary.json", "{", "must be a JSON object"),
        ("summary.json", '{"seed": 7}', "its summary says seed 7, its folder 1"),
        ("config.yaml", None, "it has no config.yaml"),
        ("config.yaml", "a: [", "must be YAML"),
        ("config.yaml", "seed: 1\n", "budget.policy_tokens must stand in its config.yaml, got None"),
        ("config.yaml", "budget:\n  policy_tokens: 1000\n", "its config.yaml ends early"),
        ("config.yaml", "budget:\n  policy_tokens: true\n", "budget.policy_tokens must stand in its config.yaml, got True"),
        ("config.yaml", "budget:\n  policy_tokens: 0\n", "budget.policy_tokens in its config.yaml must be at least 1, got 0"),
        ("config.yaml", "budget:\n  policy_tokens: 9\n  steps: many\n", "budget.steps must stand in its config.yaml, got 'many'"),
        ("config.yaml", "budget:\n  policy_tokens: 9\n  steps: -1\n", "budget.steps in its config.yaml must be at least 0, got -1"),
        ("summary.json", '{"seed": 1}', "its summary.json says nothing of heldout, though evaluation.jsonl holds looks"),
        ("evaluation.jsonl", '{"step": 0, "outcome": "left"}\n', "got a line at step 0 with a bad 'look'"),
        ("evaluation.jsonl", "nonsense\n{}\n", "in line 1"),
    ],
)
def test_a_torn_run_is_left_out_with_a_sentence(tmp_path, file, content, complaint):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "b": [40.0, 50.0]})
    torn = tmp_path / "b" / "seed_1" / file
    torn.unlink() if content is None else torn.write_text(content, encoding="utf-8")
    found = compared(tmp_path, ("a", "b"))
    assert found["notes"][0].startswith("b/seed_1 is left out: ")
    assert complaint in found["notes"][0]
    assert found["contrasts"][0]["seeds"] == [0]


def test_what_is_no_finite_number_costs_that_number_or_that_run_and_nothing_else(tmp_path):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "b": [40.0, 50.0]})
    summary, looks = tmp_path / "a" / "seed_0" / "summary.json", tmp_path / "b" / "seed_1" / "evaluation.jsonl"
    summary.write_text(summary.read_text().replace('"score": 50.0', '"score": NaN'), encoding="utf-8")
    looks.write_text(looks.read_text().replace('"emotion": 80.0', '"emotion": NaN'), encoding="utf-8")
    found = compared(tmp_path, ("a", "b"))
    assert found["notes"][0].startswith("b/seed_1 is left out: evaluation.jsonl must hold graded dialogues, got a line at step ")
    assert "with a bad emotion: it must be a number in [0, 100], got nan" in found["notes"][0]
    assert found["contrasts"][0]["seeds"] == [0]
    assert on(found, "heldout.auc")["differences"] == [5.0] and on(found, "heldout.score") is None


def test_without_evaluations_there_is_no_area_and_the_rest_is_compared(tmp_path):
    made_sweep(tmp_path, {"a": [50.0], "b": [40.0]})
    (tmp_path / "b" / "seed_0" / "evaluation.jsonl").unlink()
    found = compared(tmp_path, ("a", "b"))
    assert found["notes"] == ["b/seed_0 has no evaluations: the area under its curve is unknown."]
    assert found["contrasts"][0]["cannot"] == "a and b cannot be compared on heldout.auc: no pair of runs measured it."
    assert on(found, "heldout.score")["differences"] == [10.0]
    assert found["arms"]["b"]["by_strictness"] is None


def test_a_single_pair_has_a_difference_in_the_table_and_neither_p_nor_a_probability(tmp_path):
    text = as_text(compared(made_sweep(tmp_path, {"a": [50.0], "b": [40.0]}), ("a", "b")))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("a - b ")]
    assert row == ["a", "-", "b", "undecided", "+5.0", "–", "1", "of", "1", *["–"] * 4]


@pytest.mark.parametrize("primary", ["heldout.failure_rate", "wall_s"])
def test_lower_is_better_for_endpoints_that_are_costs(tmp_path, primary):
    made_sweep(tmp_path, {"a": [60.0, 70.0]}, summary={"heldout": {"score": 65.0, "failure_rate": 0.1}, "wall_s": 20.0})
    made_sweep(tmp_path, {"b": [50.0, 50.0]}, summary={"heldout": {"score": 50.0, "failure_rate": 0.3}, "wall_s": 40.0})
    assert "2 of 2" in as_text(compared(tmp_path, ("a", "b"), primary=primary))


def test_without_named_contrasts_the_favourite_meets_all(tmp_path):
    found = compared(made_sweep(tmp_path, {"x": [50.0], "frontier": [50.0], "y": [50.0]}))
    assert found["plan"]["contrasts"] == [["frontier", "x"], ["frontier", "y"]]


def test_a_secondary_endpoint_that_a_pair_lacks_is_named(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0, 80.0], "uniform": [60.0, 65.0]})
    path = folder / "uniform" / "seed_1" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["heldout"]["score"]
    path.write_text(json.dumps(summary))
    notes = compared(folder, ("frontier", "uniform"))["contrasts"][0]["notes"]
    assert any(note.startswith("Not every pair of frontier and uniform measured heldout.score") for note in notes)


def test_without_a_plan_the_contrasts_that_were_named_before_are_compared_again(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    assert main(["compare", str(folder), "--contrast", "uniform:linear"]) == 0
    assert main(["compare", str(folder)]) == 0
    assert json.loads((folder / "comparison.json").read_text())["plan"]["contrasts"] == [["uniform", "linear"]]


def test_settings_beside_the_teacher_are_told(tmp_path):
    made_result(tmp_path, "a", 0, settings="learner:\n  lr: 0.1\n")
    # Only b knows of a newer setting: it stood at its default in a.
    made_result(tmp_path, "b", 0, settings="learner:\n  lr: 0.5\n  newer: 1\n", commit="decaf")
    text = as_text(compared(tmp_path, ("a", "b")))
    assert "a and b differ in more than the teacher: learner.lr." in text
    assert "The runs come from 2 states of the code (c0ffee, decaf)." in text
    same = tmp_path / "same"
    for arm, rate in (("a", 0.1), ("b", 0.5)):
        place = made_result(same, arm, 0, settings=f"learner:\n  lr: {rate}\n") / "config.yaml"
        place.write_text(place.read_text().replace(f"kind: {arm}", "kind: uniform"))
    assert "a and b differ in other settings than the teacher's: learner.lr." in as_text(compared(same, ("a", "b")))


def test_the_same_seed_writes_the_same_file(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"a": TEN, "b": TEN[::-1]})
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        write_json(compared(folder, ("a", "b"), seed=seed), tmp_path / name)
    one, two, three = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one", "two", "three"))
    assert one == two
    assert json.loads(one)["arms"]["a"]["endpoints"][AUC]["iqm"] != json.loads(three)["arms"]["a"]["endpoints"][AUC]["iqm"]


def test_the_file_is_json_without_nan_and_leaves_no_draft(tmp_path):
    write_json({"x": math.nan, "y": [math.inf, 1], "z": (2.0,)}, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == {"x": None, "y": [None, 1], "z": [2.0]}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_score_that_is_none_leaves_its_run_out(tmp_path):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "b": [40.0, 50.0]})
    summary = tmp_path / "b" / "seed_1" / "summary.json"
    summary.write_text(summary.read_text().replace('"score": 50.0', '"score": 1e9'), encoding="utf-8")
    (note, *_) = compared(tmp_path, ("a", "b"))["notes"]
    assert note.startswith("b/seed_1 is left out: ") and "heldout.score must be a number in [0, 100], got 1000000000.0" in note


def test_an_arm_that_was_chosen_on_the_judged_runs_is_never_said_to_be_ahead_for_sure(tmp_path):
    finals = {"frontier": [50.0 + i for i in range(8)], "fixed_0.1": [70.0] * 8, "fixed_0.3": [60.0] * 8}
    found = compared(made_sweep(tmp_path, finals), ("frontier", "fixed_*"))
    (contrast,) = found["contrasts"]
    assert on(found)["p_holm"] < 0.01 and contrast["answer"] == "undecided"
    assert found["verdict"][-1].startswith("The best of several arms, chosen on these runs, is ahead by luck too often")
    # By its name it was not chosen, and ahead of the best a yes is a yes.
    assert compared(tmp_path, ("frontier", "fixed_0.1"))["contrasts"][0]["answer"] == "no"
    better = made_sweep(tmp_path / "better", {**finals, "frontier": [80.0 + i for i in range(8)]})
    assert compared(better, ("frontier", "fixed_*"))["contrasts"][0]["answer"] == "yes"


def test_a_remark_survives_being_copied_and_sent():
    note = Note("a lacks seed 1.", arm="a", seeds=(1,), kind=NoteKind.LACKS_SEEDS)
    for other in (copy.deepcopy(note), pickle.loads(pickle.dumps(note))):
        assert (other, other.arm, other.seeds, other.kind) == (str(note), "a", (1,), NoteKind.LACKS_SEEDS)
