"""A sweep compared: numbers worked out by hand, what must not be compared, torn runs, and the command."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import scipy.stats
from made_run import make_run
from made_sweep import BUDGET, CELLS, made_result, made_sweep

from analysis.__main__ import main
from analysis.comparisons.comparison import compare, plain, write_json
from analysis.comparisons.comparison_plan import Plan, plan_of
from analysis.comparisons.planned import Planned
from analysis.comparisons.sweep import read_sweep
from analysis.comparisons.text import as_text
from analysis.endpoints import AUC, RELIABILITY
from analysis.pages.reliability_sections import HEADINGS
from analysis.power import minimal_detectable_effect

TEN = [50.0, 52.0, 54.0, 56.0, 58.0, 60.0, 62.0, 64.0, 66.0, 68.0]


def compared(folder, *contrasts, num_resamples=20, **plan):
    return compare(read_sweep(folder), Plan(contrasts=contrasts, num_resamples=num_resamples, **plan))


def as_planned(folder, **options):
    sweep = read_sweep(folder, **options)
    return compare(sweep, plan_of(sweep))


def on(found, endpoint=AUC, which=0):
    return found["contrasts"][which]["endpoints"][endpoint]


def test_the_numbers_of_an_arm(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [40.0, 50.0, 60.0, 70.0, 180.0]}))["arms"]["a"]
    assert [arm["runs"][str(seed)][AUC] for seed in range(5)] == [30.0, 35.0, 40.0, 45.0, 100.0]
    area = arm["endpoints"][AUC]
    # Of five runs one is cut off at each end.
    assert (area["mean"]["value"], area["iqm"]["value"], area["min"], area["max"]) == (50.0, 40.0, 30.0, 100.0)
    assert area["sd"] == pytest.approx(np.std([30, 35, 40, 45, 100], ddof=1))
    assert arm["endpoints"]["wall_s"]["mean"] == {"value": 60.0, "low": 60.0, "high": 60.0}


def test_cells_are_judged_by_strictness_and_against_thresholds(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [60.0, 60.0]}))["arms"]["a"]
    # At .1: 90 and 80, at .5: 60, at .9: 30 and 40.
    assert arm["by_strictness"]["strictness"] == [0.1, 0.5, 0.9]
    assert arm["by_strictness"]["value"] == [85.0, 60.0, 35.0]
    assert dict(zip(arm["profile"]["threshold"], arm["profile"]["value"], strict=True))[50] == 3 / 5
    assert arm["cells"]["num_cells"] == len(CELLS) + 1
    assert arm["cells"]["optimality_gap"]["value"] == pytest.approx(40.0)


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
    assert found["verdict"][0] == "a does better than b."
    said = (
        f"a less b: +2.2 (95% interval {theirs.low:+.1f} to {theirs.high:+.1f}), better in 9 of 10 seeds, probability of improvement 0.95"
    )
    assert found["verdict"][1].startswith(said)
    assert found["verdict"][1].endswith("Decided: p = 0.00391 (0.00391 after Holm's correction over 1 contrast).")


def test_holm_counts_the_primary_contrasts_and_one_that_is_missing(tmp_path):
    better, best = [score + 2.0 for score in TEN], [score + 4.0 for score in TEN]
    folder = made_sweep(tmp_path, {"a": TEN, "b": better, "c": best})
    found = compared(folder, ("b", "a"), ("c", "b"), ("c", "nobody"))
    assert [on(found, which=i)["p_holm"] for i in (0, 1)] == pytest.approx([3 * 2 / 1024, 3 * 2 / 1024])
    assert on(found, which=2) is None
    assert found["contrasts"][2]["cannot"] == "nobody has no run that can be used."
    assert on(found)["minimal_detectable_effect"]["alpha"] == pytest.approx(0.05 / 3)
    assert on(found, "heldout.score")["p_holm"] is None
    assert "1 of 3 contrasts cannot be computed; they count for Holm with p = 1." in found["verdict"]


def test_three_seeds_describe(tmp_path):
    found = compared(made_sweep(tmp_path, {"a": [40.0, 50.0, 61.0], "b": [30.0, 40.0, 50.0]}), ("a", "b"))
    assert found["verdict"][0] == "Over three seeds a lay above b; so few describe and do not decide."
    assert "does better" not in " ".join(found["verdict"]) and "decided" not in " ".join(found["verdict"])
    assert as_text(found).startswith("Over three seeds a lay above b; so few describe and do not decide.\n")


def test_five_seeds_cannot_decide_and_that_is_said(tmp_path):
    found = compared(made_sweep(tmp_path, {"a": [60.0, 61.0, 62.0, 63.0, 65.0], "b": [20.0] * 5}), ("a", "b"))
    assert on(found)["p"] == 0.0625
    assert found["verdict"][0] == "Over 5 seeds a lay above b; so few describe and do not decide."
    assert found["verdict"][2].startswith("5 seeds cannot decide 1 contrast: the smallest p that they could all give is 0.062")


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


def test_runs_of_different_worlds_are_not_compared_and_the_rest_is(tmp_path):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "b": [40.0, 50.0]})
    shutil.rmtree(tmp_path / "b" / "seed_1")
    made_result(tmp_path, "b", 1, world="bbbb")
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0]
    assert found["contrasts"][0]["notes"] == ["a/seed_1 and b/seed_1 ran in different worlds (aaaa and bbbb); this pair is left out."]
    assert "endpoints" in found["arms"]["a"]
    assert "endpoints" not in found["arms"]["b"]
    assert "b is not averaged: b/seed_0 and b/seed_1 ran in different worlds (aaaa and bbbb)." in found["notes"]


def test_of_pairs_from_two_worlds_the_larger_group_is_averaged(tmp_path):
    for arm in "ab":
        made_result(tmp_path, arm, 0)
        made_result(tmp_path, arm, 1, world="bbbb")
        made_result(tmp_path, arm, 2, world="bbbb")
    contrast = compared(tmp_path, ("a", "b"))["contrasts"][0]
    assert contrast["seeds"] == [1, 2]
    assert contrast["notes"] == ["a/seed_1 and a/seed_0 ran in different worlds (bbbb and aaaa); the pair of seed 0 is left out."]


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"budget": 900}, "had unequal budgets (budget.policy_tokens: 1000 and 900)"),
        ({"split": "sealed"}, "were judged differently (evaluation.split: heldout and sealed)"),
    ],
)
def test_unequal_budgets_and_other_judges_are_not_compared(tmp_path, other, complaint):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "c": [30.0, 40.0]})
    for seed in range(2):
        made_result(tmp_path, "b", seed, **other)
    found = compared(tmp_path, ("a", "b"), ("a", "c"))
    assert complaint in found["contrasts"][0]["cannot"]
    assert on(found, which=0) is None
    assert on(found, which=1)["num_pairs"] == 2
    assert complaint in as_text(found)


def test_missing_seeds_leave_the_common_ones(tmp_path):
    found = compared(made_sweep(tmp_path, {"a": [50.0, 60.0, 70.0], "b": [40.0]}), ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0]
    assert found["contrasts"][0]["notes"] == ["b lacks seed 1, 2; only common seeds are paired."]
    assert found["verdict"][0].startswith("In one seed a lay ")


def test_a_curve_is_cut_at_the_budget(tmp_path):
    made_result(tmp_path, "a", 0, looks=((0, 0.0), (2 * BUDGET, 100.0)))
    assert read_sweep(tmp_path).runs[0].scalars[AUC] == 25.0


def test_a_finished_run_that_ended_early_keeps_its_last_score(tmp_path):
    made_sweep(tmp_path, {"a": [60.0]})
    made_result(tmp_path, "b", 0, looks=((0, 20.0), (BUDGET // 2, 40.0)))
    sweep = read_sweep(tmp_path)
    assert sweep.of("b")[0].scalars[AUC] == 35.0
    timed = compare(sweep, Plan(num_resamples=20))["arms"]["b"]["tokens_to_threshold"]
    assert (timed["num_reached"], timed["restricted_mean"], timed["horizon"]) == (0, 500.0, 500.0)
    assert sweep.notes == ["b/seed_0 ended at 500 of 1,000 policy tokens: its last score is held to the end."]


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


def test_without_evaluations_there_is_no_area_and_the_rest_is_compared(tmp_path):
    made_sweep(tmp_path, {"a": [50.0], "b": [40.0]})
    (tmp_path / "b" / "seed_0" / "evaluation.jsonl").unlink()
    found = compared(tmp_path, ("a", "b"))
    assert found["notes"] == ["b/seed_0 has no evaluations: the area under its curve is unknown."]
    assert found["contrasts"][0]["cannot"] == "a and b cannot be compared on heldout.auc: no pair of runs measured it."
    assert on(found, "heldout.score")["differences"] == [10.0]
    assert found["arms"]["b"]["by_strictness"] is None


def test_a_pattern_means_the_best_arm_that_fits(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [60.0, 70.0], "fixed_0.1": [30.0, 30.0], "fixed_0.5": [50.0, 50.0], "uniform": [90.0, 90.0]})
    contrast = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]
    assert contrast["b"] == "fixed_0.5"
    assert contrast["b_chosen_from"] == ["fixed_0.1", "fixed_0.5"]
    assert "which favours it over frontier" in contrast["notes"][0]


def test_a_pattern_passes_over_arms_of_another_world_and_the_arm_itself(tmp_path):
    folder = made_sweep(tmp_path, {"fixed_0.1": [70.0, 80.0], "fixed_0.5": [50.0, 50.0]})
    for seed in range(2):
        made_result(folder, "fixed_0.9", seed, world="bbbb", looks=((0, 20.0), (BUDGET, 90.0)))
    contrast = compared(folder, ("fixed_0.1", "fixed_*"))["contrasts"][0]
    assert (contrast["b"], contrast["b_chosen_from"]) == ("fixed_0.5", ["fixed_0.5"])


def test_an_arm_of_another_world_that_fits_a_pattern_is_named_with_its_world(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0, 80.0], "fixed_0.5": [50.0, 50.0]})
    for seed in range(2):
        made_result(folder, "fixed_0.9", seed, world="bbbb", looks=((0, 20.0), (BUDGET, 90.0)))
    found = compared(folder, ("frontier", "fixed_*"))
    reason = "frontier/seed_1 and fixed_0.9/seed_1 ran in different worlds (aaaa and bbbb); this pair is left out."
    assert f"fixed_0.9 was not among those to choose from: {reason}" in found["contrasts"][0]["notes"]
    assert "The runs come from 2 worlds (fixed_0.9 in bbbb); only runs of one world are set against each other." in found["notes"]


def test_an_arm_that_fits_a_pattern_and_did_not_measure_the_endpoint_is_named(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0], "fixed_0.1": [30.0], "fixed_0.5": [50.0]})
    summary = folder / "fixed_0.5" / "seed_0" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "heldout": None}))
    contrast = compared(folder, ("frontier", "fixed_*"), primary="heldout.score")["contrasts"][0]
    assert contrast["b"] == "fixed_0.1"
    assert "fixed_0.5 was not among those to choose from: no pair of it and frontier measured heldout.score." in contrast["notes"]


def test_all_candidates_of_one_world_are_chosen_from_without_a_remark(tmp_path):
    found = compared(made_sweep(tmp_path, {"frontier": [70.0], "fixed_0.1": [30.0], "fixed_0.5": [50.0]}), ("frontier", "fixed_*"))
    assert not any("to choose from" in note or "worlds" in note for note in [*found["notes"], *found["contrasts"][0]["notes"]])


def test_the_best_arm_is_the_lowest_where_lower_is_better(tmp_path):
    for arm, rate in (("a", 0.5), ("fixed_1", 0.75), ("fixed_2", 0.25)):
        made_result(tmp_path, arm, 0, summary={"heldout": {"failure_rate": rate}})
    assert compared(tmp_path, ("a", "fixed_*"), primary="heldout.failure_rate")["contrasts"][0]["b"] == "fixed_2"


def test_without_named_contrasts_the_favourite_meets_all(tmp_path):
    found = compared(made_sweep(tmp_path, {"x": [50.0], "frontier": [50.0], "y": [50.0]}))
    assert found["plan"]["contrasts"] == [["frontier", "x"], ["frontier", "y"]]
    assert found["verdict"][-1] == "No contrast was named beforehand, so Holm corrects for all 2."


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
    assert "1 of 3 contrasts cannot be computed; they count for Holm with p = 1." in found["verdict"]
    assert "not the plan's" not in capsys.readouterr().out


def test_why_none_of_a_pattern_can_be_met_is_the_reason_of_its_arms(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0]})
    for arm in ("fixed_0.1", "fixed_0.5"):
        made_result(tmp_path, arm, 0, world="bbbb")
    said = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]["cannot"]
    assert "frontier/seed_0 and fixed_0.1/seed_0 ran in different worlds (aaaa and bbbb)" in said and "fixed_0.5/seed_0" in said


def test_a_secondary_endpoint_that_a_pair_lacks_is_named(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0, 80.0], "uniform": [60.0, 65.0]})
    path = folder / "uniform" / "seed_1" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["heldout"]["score"]
    path.write_text(json.dumps(summary))
    notes = compared(folder, ("frontier", "uniform"))["contrasts"][0]["notes"]
    assert any(note.startswith("Not every pair of frontier and uniform measured heldout.score") for note in notes)


def test_a_plan_without_contrasts_names_none(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "x": [60.0, 65.0], "y": [9.0, 8.0]})
    Planned(contrasts=(), primary="heldout.auc").keep(folder)
    found = compared(folder)
    assert found["plan"]["chosen_by"] == "default"
    assert "No contrast was named beforehand, so Holm corrects for all 2." in found["verdict"]


def test_contrasts_that_are_not_the_plans_are_said_to_be_others(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    PLANNED.keep(folder)
    assert main(["compare", str(folder), "--contrast", "frontier:linear"]) == 0
    said = "These contrasts are not the plan's, which are frontier:fixed_*, frontier:uniform, frontier:yoked on heldout.score."
    assert capsys.readouterr().out.startswith(said)
    assert json.loads((folder / "comparison.json").read_text())["plan"]["chosen_by"] == "name"
    assert main(["compare", str(folder), "--primary", "heldout.auc"]) == 0
    assert capsys.readouterr().out.startswith(said)


def test_without_a_plan_the_contrasts_that_were_named_before_are_compared_again(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    assert main(["compare", str(folder), "--contrast", "uniform:linear"]) == 0
    assert main(["compare", str(folder)]) == 0
    assert json.loads((folder / "comparison.json").read_text())["plan"]["contrasts"] == [["uniform", "linear"]]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plan.json", "What was planned is not known: "),
        ("chosen.json", "Which arms were chosen on other runs is not known: "),
    ],
)
def test_a_torn_plan_is_one_sentence_and_the_runs_are_compared(tmp_path, capsys, name, says):
    folder = made_sweep(tmp_path / "sweep", {"a": [70.0, 71.0], "b": [50.0, 52.0]})
    (folder / name).write_text("{")
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{name} must hold") == 1 and says in said and "the same command" not in said
    found = json.loads((folder / "comparison.json").read_text())
    assert found["plan"]["chosen_by"] == "default" and found["contrasts"][0]["endpoints"]["heldout.score"]["num_pairs"] == 2


def test_an_arm_that_was_chosen_on_other_runs_is_said_to_be(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "fixed_0.5": [60.0, 65.0]})
    pick = {"pattern": "fixed_*", "arm": "fixed_0.5", "means": {"fixed_0.1": 32.0, "fixed_0.5": 36.0}}
    chosen = {"origin": "grid/sweep", "seeds": "0-4", "endpoint": AUC, "world_hash": "aaaa", "picks": [pick]}
    (folder / "chosen.json").write_text(json.dumps(chosen))
    contrast = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]
    assert contrast["notes"] == [f"fixed_0.5 was chosen as the best fixed_* on seeds 0-4 of grid/sweep ({AUC}), not on these runs."]
    assert contrast["b_chosen_from"] == ["fixed_0.1", "fixed_0.5"] and contrast["b_chosen_on"] == "seeds 0-4 of grid/sweep"


def test_a_pattern_that_one_arm_fits_chooses_nothing(tmp_path):
    contrast = compared(made_sweep(tmp_path, {"frontier": [70.0, 80.0], "fixed_0.5": [60.0, 65.0]}), ("frontier", "fixed_*"))["contrasts"][
        0
    ]
    assert contrast["b"] == "fixed_0.5" and contrast["notes"] == ["Of fixed_* only fixed_0.5 can be set against frontier."]


def test_settings_beside_the_teacher_are_told(tmp_path):
    made_result(tmp_path, "a", 0, settings="learner:\n  lr: 0.1\n")
    # Only b knows of a newer setting: it stood at its default in a.
    made_result(tmp_path, "b", 0, settings="learner:\n  lr: 0.5\n  newer: 1\n", commit="decaf")
    text = as_text(compared(tmp_path, ("a", "b")))
    assert "a and b differ in more than the teacher: learner.lr." in text
    assert "The runs come from 2 states of the code (c0ffee, decaf)." in text


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
    assert plain({"a": {"b": math.nan}}) == {"a": {"b": None}}


def test_real_run_directories_are_compared(tmp_path, capsys):
    for arm, after in (("frontier", "L4"), ("uniform", "L2")):
        for seed in range(2):
            make_run(tmp_path / arm / f"seed_{seed}", num_steps=8, num_scenarios=2, after=after, seed=seed)
    assert main(["compare", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Over two seeds frontier lay above uniform; so few describe and do not decide.\nfrontier less uniform: +")
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


@pytest.mark.parametrize("command", ["compare", "rlver", "keep"])
def test_the_folder_of_an_experiment_is_refused_in_one_sentence_that_names_its_sweeps(tmp_path, capsys, command):
    sweeps = [made_sweep(tmp_path / "made" / name, {"a": [50.0]}) for name in ("other", "sweep")]
    assert main([command, str(tmp_path / "made")]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"which holds none; sweeps beneath it: {sweeps[0]}, {sweeps[1]}\n") and said.count("\n") == 1


def test_runs_of_one_seed_that_began_with_different_weights_are_not_paired(tmp_path):
    for seed, ours, theirs in ((0, "aa", "aa"), (1, "aa", "bb"), (2, "bb", "bb"), (3, "", "bb")):
        made_result(tmp_path, "a", seed, initial_policy=ours)
        made_result(tmp_path, "b", seed, initial_policy=theirs)
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0, 2, 3]
    assert "a/seed_1 and b/seed_1 began with different policies (aa and bb); this pair is left out." in found["contrasts"][0]["notes"]
    assert any("began with 2 policies (aa, bb)" in note for note in found["notes"])
    # Where the policies are what the experiment is about, they begin differently on purpose.
    other = tmp_path / "other"
    made_result(other, "a", 0, initial_policy="aa", settings="policy:\n  thinking: true\n")
    made_result(other, "b", 0, initial_policy="bb", settings="policy:\n  thinking: false\n")
    on_purpose = compared(other, ("a", "b"))
    assert on_purpose["contrasts"][0]["seeds"] == [0] and not any("began with" in note for note in on_purpose["notes"])


def test_runs_of_an_arm_with_other_settings_are_not_averaged_nor_paired_with_the_rest(tmp_path):
    for seed, rate in enumerate(("0.1", "0.1", "0.2")):
        made_result(tmp_path, "a", seed, settings=f"learner:\n  lr: {rate}\ncheckpoint:\n  every: {seed}\n")
        made_result(tmp_path, "b", seed, settings="learner:\n  lr: 0.3\n")
    found = compared(tmp_path, ("a", "b"))
    different = "a/seed_0 and a/seed_2 were run with different settings (learner.lr: 0.1 and 0.2)"
    assert f"a is not averaged: {different}." in found["notes"] and "endpoints" not in found["arms"]["a"]
    assert found["contrasts"][0]["seeds"] == [0, 1] and f"{different}; the pair of seed 2 is left out." in found["contrasts"][0]["notes"]
    assert "learner.lr" in found["contrasts"][0]["settings_that_differ"]


def test_the_best_of_several_is_chosen_on_seeds_that_all_of_them_have(tmp_path):
    # fixed_2 has run on the one easy seed alone; on that one fixed_1 is better.
    for arm, finals in {"frontier": [60.0, 60.0], "fixed_1": [70.0, 40.0], "fixed_2": [65.0]}.items():
        for seed, final in enumerate(finals):
            made_result(tmp_path, arm, seed, looks=((0, 20.0), (BUDGET, final)))
    assert compared(tmp_path, ("frontier", "fixed_*"))["contrasts"][0]["b"] == "fixed_1"


def test_one_candidate_with_few_seeds_does_not_decide_on_which_the_others_are_judged(tmp_path):
    # On seed 0 fixed_1 is the hardest to beat, over both seeds fixed_2 is; fixed_3 has run on seed 0 alone.
    for arm, finals in {"frontier": [60.0, 60.0], "fixed_1": [65.0, 20.0], "fixed_2": [60.0, 62.0], "fixed_3": [30.0]}.items():
        for seed, final in enumerate(finals):
            made_result(tmp_path, arm, seed, looks=((0, 20.0), (BUDGET, final)))
    contrast = compared(tmp_path, ("frontier", "fixed_*"))["contrasts"][0]
    assert (contrast["b"], contrast["b_chosen_from"]) == ("fixed_2", ["fixed_1", "fixed_2", "fixed_3"])


def test_an_arm_that_is_ahead_in_seeds_is_not_the_best_for_that(tmp_path):
    for arm, finals in {"frontier": [60.0, 60.0, 60.0], "fixed_1": [20.0, 20.0, 20.0], "fixed_2": [55.0, 55.0]}.items():
        for seed, final in enumerate(finals):
            made_result(tmp_path, arm, seed, looks=((0, 20.0), (BUDGET, final)))
    assert compared(tmp_path, ("frontier", "fixed_*"))["contrasts"][0]["b"] == "fixed_2"


def test_runs_from_before_a_setting_existed_are_compared_with_later_ones(tmp_path):
    for seed in (0, 1):
        for arm, final in (("a", 60.0), ("b", 50.0)):
            later = "" if seed == 0 else "policy:\n  engine_process: false\n"
            run = made_result(tmp_path, arm, seed, looks=((0, 20.0), (BUDGET, final)), settings=later)
            if seed == 1:
                text = (run / "config.yaml").read_text().replace("  split: heldout\n", "  split: heldout\n  told_facts: 0\n")
                (run / "config.yaml").write_text(text)
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0, 1] and found["arms"]["a"]["endpoints"]["heldout.auc"]["num_runs"] == 2


def test_weights_are_looked_at_although_one_run_knows_a_newer_setting_of_the_policy(tmp_path):
    made_result(tmp_path, "a", 0, initial_policy="aa", settings="policy:\n  model: embedded\n  engine_process: false\n")
    made_result(tmp_path, "b", 0, initial_policy="bb", settings="policy:\n  model: embedded\n")
    found = compared(tmp_path, ("a", "b"))
    assert "a/seed_0 and b/seed_0 began with different policies (aa and bb)" in found["contrasts"][0]["cannot"]
    assert any("began with 2 policies" in note for note in found["notes"])


def test_nothing_is_answered_before_the_plans_seeds_are_in(tmp_path):
    finals = {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    assert as_planned(folder)["contrasts"][0]["answer"] == "yes"
    found = as_planned(folder, seeds=range(7))
    assert found["contrasts"][0]["answer"] == "undecided"
    assert found["contrasts"][0]["too_early"].endswith("before the plan's seeds are in: 7 cannot be paired yet.")
    assert found["contrasts"][0]["too_early"] in as_text(found)
    assert found["verdict"][0].endswith("what was planned is not complete, and nothing is decided before.")


def test_a_planned_pair_that_did_not_measure_the_endpoint_leaves_its_contrast_open(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8})
    (folder / "uniform" / "seed_7" / "evaluation.jsonl").unlink()
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided"
    assert contrast["too_early"].endswith("is not answered: 1 of the plan's seeds did not measure heldout.auc.")


def test_a_plan_is_looked_up_whichever_endpoint_is_asked_for(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 60.0]})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.gain", seeds=(0, 1)).keep(folder)
    assert compared(folder, ("frontier", "uniform"), primary="heldout.score")["contrasts"][0]["too_early"] == ""


def test_what_the_favourite_was_tuned_on_stands_among_the_remarks(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0], "uniform": [50.0]})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", tuning={"front*": "on seeds 0 to 2", "uniform": "none"}).keep(
        folder
    )
    assert "Before these runs frontier was tuned: on seeds 0 to 2." in as_planned(folder)["notes"]


def test_a_baseline_that_was_named_by_hand_answers_no_planned_question(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0 + i for i in range(8)], "fixed_0.1": [50.0] * 8})
    choose = {"from": "other/sweep", "seeds": "0-4", "best": ["fixed_*"]}
    Planned(contrasts=(("frontier", "fixed_*"),), primary="heldout.auc", choose=choose, seeds=tuple(range(8))).keep(folder)
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided" and "fixed_0.1 was named by hand" in contrast["too_early"]


def test_what_training_added_is_an_endpoint(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [60.0, 50.0]}), primary="heldout.gain")["arms"]["a"]
    assert [run["heldout.gain"] for run in arm["runs"].values()] == [40.0, 30.0]
    assert arm["endpoints"]["start.score"]["mean"]["value"] == 20.0


def probed(*, sycophancy, plain, false_belief):
    changes = {"sycophancy": {"change": sycophancy}, "margin_nats": {"plain": {"change": plain}, "false_belief": {"change": false_belief}}}
    return {"reliability": changes}


def test_a_sweep_may_be_decided_by_what_training_cost_and_every_figure_of_the_probe_is_described(tmp_path):
    for seed in range(2):
        made_result(tmp_path, "situated", seed, summary=probed(sycophancy=-0.05, plain=-5.0, false_belief=1.0))
        made_result(tmp_path, "warm", seed, summary=probed(sycophancy=-0.25, plain=-8.0 - seed, false_belief=4.0))
    found = compared(tmp_path, ("situated", "warm"), primary="reliability.margin_nats.plain.change")
    main = on(found, "reliability.margin_nats.plain.change")
    assert main["differences"] == [3.0, 4.0] and main["probability_of_improvement"]["value"] == 1.0
    assert on(found, "reliability.margin_nats.false_belief.change")["difference"]["value"] == -3.0
    # Agreeing more is worse: the first arm has the smaller share and is behind.
    sycophancy = on(found, "reliability.sycophancy.change")
    assert sycophancy["difference"]["value"] == pytest.approx(0.2) and sycophancy["probability_of_improvement"]["value"] == 0.0
    assert "reliability.emotional_cost.change" not in found["contrasts"][0]["endpoints"]
    assert found["arms"]["warm"]["endpoints"]["reliability.margin_nats.plain.change"]["mean"]["value"] == -8.5


def test_every_figure_of_the_probe_has_a_heading():
    assert len(HEADINGS) == len(RELIABILITY)


def test_what_was_forgotten_is_an_endpoint_that_is_better_when_low_and_stands_in_contrasts_that_the_plan_reads_by_it(tmp_path):
    for seed in range(2):
        made_result(tmp_path, "a", seed, looks=((0, 20.0), (500, 60.0 + seed), (BUDGET, 60.0)))
        made_result(tmp_path, "b", seed, looks=((0, 20.0), (500, 70.0), (BUDGET, 50.0)))
    assert "heldout.forgotten" not in compared(tmp_path, ("a", "b"))["contrasts"][0]["endpoints"]
    Planned(contrasts=(("a", "b"),), primary=AUC, read=("heldout.forgotten", "gone.since"), seeds=(0, 1)).keep(tmp_path)
    found = as_planned(tmp_path)
    assert found["plan"]["read"] == ["heldout.forgotten"]
    assert [run["heldout.forgotten"] for run in found["arms"]["a"]["runs"].values()] == [0.0, 1.0]
    forgot = on(found, "heldout.forgotten")
    assert forgot["differences"] == [-20.0, -19.0] and forgot["probability_of_improvement"]["value"] == 1.0


def test_a_plan_from_before_experiments_named_what_they_are_read_by_is_read(tmp_path):
    made_sweep(tmp_path, {"a": [60.0], "b": [50.0]})
    Planned(contrasts=(("a", "b"),), primary=AUC).keep(tmp_path)
    kept = json.loads((tmp_path / "plan.json").read_text())
    del kept["read"]
    (tmp_path / "plan.json").write_text(json.dumps(kept))
    assert as_planned(tmp_path)["plan"]["read"] == []


MOODS = 'simulator:\n  kind: moody\n  whim_prob: 0.7\n  families: ["*/negative"]\n'


def issued_to(*families):
    return [{"step": 1, "event": "task", "uid": str(i), "family": family, "strictness": 0.5} for i, family in enumerate(families)]


def test_the_share_of_groups_that_went_to_moody_families_is_an_endpoint_where_users_are_moody(tmp_path):
    calm, sour = "advice/positive", "praise/negative"
    steady = MOODS.replace("0.7", "0.0")
    for seed in range(2):
        made_result(tmp_path, "seeker", seed, settings=MOODS, teacher=issued_to(calm, sour, sour, "blame/negative"))
        made_result(tmp_path, "even", seed, settings=MOODS, teacher=issued_to(calm, sour))
        made_result(tmp_path, "steady", seed, settings=steady, teacher=issued_to(calm, calm, calm, sour))
    made_result(tmp_path, "plain", 0, teacher=issued_to(sour))
    made_result(tmp_path, "torn", 0, settings=MOODS, teacher=[{"step": 1, "event": "task", "uid": "0"}])
    Planned(contrasts=(("seeker", "even"),), primary=AUC, read=("teaching.moody_share",)).keep(tmp_path)
    found = as_planned(tmp_path)
    shares = {arm: record["runs"]["0"]["teaching.moody_share"] for arm, record in found["arms"].items()}
    assert shares == {"seeker": 0.75, "even": 0.5, "steady": 0.25, "plain": None, "torn": None}
    spent = on(found, "teaching.moody_share")
    assert spent["differences"] == [0.25, 0.25] and spent["probability_of_improvement"]["value"] == 0.0


def test_the_best_of_several_tries_is_an_endpoint_of_runs_that_took_them(tmp_path):
    tried = {"best_of": {"start": {"best": 40.0, "gain": 15.0}, "end": {"best": 60.0, "gain": 5.0}, "beyond": 15.0}}
    for seed in range(2):
        made_result(tmp_path, "a", seed, summary=tried)
        made_result(tmp_path, "b", seed, summary={"best_of": {"beyond": -5.0}})
    Planned(contrasts=(("a", "b"),), primary=AUC, read=("best_of.beyond", "best_of.end.gain", "entropy.end")).keep(tmp_path)
    found = as_planned(tmp_path)
    assert on(found, "best_of.beyond")["differences"] == [20.0, 20.0] and on(found, "best_of.end.gain") is None
    assert on(found, "entropy.end")["differences"] == [0.0, 0.0]
    assert found["arms"]["a"]["endpoints"]["best_of.start.best"]["mean"]["value"] == 40.0
