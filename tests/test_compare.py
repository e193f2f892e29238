"""A sweep compared: the numbers, which runs are paired, what the plan decides, and the command."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import scipy.stats
from compared import as_planned, compared, on
from made_sweep import BUDGET, CELLS, made_result, made_sweep

from analysis.__main__ import main
from analysis.compare import as_text, write_json
from analysis.endpoints import AUC, Planned
from analysis.stats import detectable

TEN = [50.0, 52.0, 54.0, 56.0, 58.0, 60.0, 62.0, 64.0, 66.0, 68.0]
EIGHT = {"frontier": [70.0 + i for i in range(8)], "linear_x1": [50.0] * 8, "linear_x2": [40.0] * 8, "uniform": [90.0] * 8}
PLANNED = Planned(contrasts=(("frontier", "linear_*"), ("frontier", "uniform")), primary=AUC, seeds=tuple(range(8)))


def answers(found) -> list[str]:
    return [contrast["answer"] for contrast in found["contrasts"]]


def test_the_numbers_of_an_arm(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [40.0, 50.0, 60.0, 70.0, 100.0]}))["arms"]["a"]
    assert [arm["runs"][str(seed)][AUC] for seed in range(5)] == [30.0, 35.0, 40.0, 45.0, 60.0]
    area = arm["endpoints"][AUC]
    # Of five runs one is cut off at each end.
    assert (area["mean"]["value"], area["iqm"]["value"], area["min"], area["max"]) == (42.0, 40.0, 30.0, 60.0)
    assert area["sd"] == pytest.approx(np.std([30, 35, 40, 45, 60], ddof=1))
    assert arm["endpoints"]["wall_s"]["mean"] == {"value": 60.0, "low": 60.0, "high": 60.0}


def test_cells_are_judged_by_strictness_against_thresholds_and_against_the_expert(tmp_path):
    expert = {"summary": {"reference": {"L6": {"score": 84.0}}}}
    arm = compared(made_sweep(tmp_path / "known", {"a": [60.0, 60.0]}, **expert))["arms"]["a"]
    # At .1: 90 and 80, at .5: 60, at .9: 30 and 40.
    assert (arm["by_strictness"]["strictness"], arm["by_strictness"]["value"]) == ([0.1, 0.5, 0.9], [85.0, 60.0, 35.0])
    assert dict(zip(arm["profile"]["threshold"], arm["profile"]["value"], strict=True))[50] == 3 / 5
    assert arm["cells"]["num_cells"] == len(CELLS) + 1 and arm["cells"]["mean"]["value"] == pytest.approx(60.0)
    assert arm["cells"]["gap_to_expert"]["value"] == pytest.approx(84.0 - (84 + 80 + 60 + 30 + 40) / 5)
    cells = compared(made_sweep(tmp_path / "unknown", {"a": [60.0]}))["arms"]["a"]["cells"]
    assert cells["expert"] is None and cells["gap_to_expert"] is None


def test_tokens_to_a_threshold_are_censored_where_it_was_not_reached(tmp_path):
    found = compared(made_sweep(tmp_path, {"a": [60.0, 100.0, 40.0]}), threshold=60.0)["arms"]["a"]["tokens_to_threshold"]
    # Reached at 1000 and at 500; the third never.
    assert (found["num_reached"], found["num_runs"], found["kaplan_meier_median"]) == (2, 3, 1000.0)
    assert found["restricted_mean"] == pytest.approx((500 + 1000 + 1000) / 3)
    # A finished run that ended early is watched to the budget, where its last score is held.
    made_result(tmp_path / "early", "b", 0, looks=((0, 20.0), (BUDGET // 2, 40.0)))
    made_result(tmp_path / "early", "c", 0)
    timed = compared(tmp_path / "early")["arms"]["b"]["tokens_to_threshold"]
    assert (timed["num_reached"], timed["restricted_mean"], timed["horizon"]) == (0, 1000.0, 1000.0)


def test_a_contrast_is_the_paired_test_of_areas(tmp_path):
    a, b = np.array(TEN) + np.arange(10), np.array(TEN)
    found = compared(made_sweep(tmp_path, {"a": list(a), "b": list(b)}), ("a", "b"))
    area, d = on(found), np.arange(10) / 2
    assert area["differences"] == pytest.approx(d)
    theirs = scipy.stats.ttest_rel(a / 2, b / 2).confidence_interval(0.95)
    assert (area["difference"]["low"], area["difference"]["high"]) == pytest.approx((theirs.low, theirs.high))
    # Nine differences above 0 and one at 0: the four patterns that leave the nine equal.
    assert area["p"] == area["p_holm"] == 4 / 2**10
    assert area["probability_of_improvement"]["value"] == 0.95
    assert area["minimal_detectable_effect"]["effect"] == pytest.approx(d.std(ddof=1) * detectable(10, 0.05, 0.8))
    assert found["verdict"] == ["Is the first arm better by the area under the held-out score? Of 1: 1 yes, 0 no, 0 undecided."]
    assert f"{theirs.low:.1f}, {theirs.high:.1f}]    9 of 10  0.00391  0.00391" in as_text(found)


def test_holm_counts_the_primary_contrasts_and_one_that_is_missing(tmp_path):
    folder = made_sweep(tmp_path, {"a": TEN, "b": [score + 2.0 for score in TEN], "c": [score + 4.0 for score in TEN[:6]]})
    found = compared(folder, ("b", "a"), ("c", "b"), ("c", "none"))
    assert [on(found, which=i)["p_holm"] for i in (0, 1)] == pytest.approx([3 * 2 / 1024, 2 * 2 / 64])
    assert on(found, which=2) is None and found["contrasts"][2]["cannot"] == "none has no run that can be used."
    assert on(found)["minimal_detectable_effect"]["alpha"] == pytest.approx(0.05 / 3)
    assert on(found, "heldout.score")["p_holm"] is None


def test_few_seeds_describe(tmp_path):
    for num in (1, 5):
        found = compared(made_sweep(tmp_path / str(num), {"a": [60.0, 61.0, 62.0, 63.0, 65.0][:num], "b": [20.0] * num}), ("a", "b"))
        assert answers(found) == ["undecided"] and found["verdict"][1].startswith("Undecided means fewer than 5 pairs")
    # One pair has a difference and nothing more.
    found = compared(tmp_path / "1", ("a", "b"))
    row = next(line.split() for line in as_text(found).splitlines() if line.startswith("a - b "))
    assert row == ["a", "-", "b", "undecided", "+20.0", "–", "1", "of", "1", *["–"] * 4]


def test_a_no_is_decided_and_a_mean_that_is_a_little_behind_is_undecided(tmp_path):
    ours = [50.0 + 1.5 * i for i in range(8)]
    rivals = {"level": [final + 0.1 for final in reversed(ours)], "ahead": [70.0 + i for i in range(8)], "behind": [40.0] * 8}
    found = compared(made_sweep(tmp_path, {"a": ours, **rivals}), *(("a", rival) for rival in rivals))
    assert answers(found) == ["undecided", "no", "yes"]


def test_improvement_over_cells_is_the_published_mean_over_cells(tmp_path):
    for seed in range(3):
        made_result(tmp_path, "a", seed, cells=(5.0, 5.0, 5.0, -5.0))
        made_result(tmp_path, "b", seed, cells=(0.0, 0.0, 0.0, 0.0))
    # Better in three cells, worse in one, the same in the fifth.
    found = compared(tmp_path, ("a", "b"))["contrasts"][0]["improvement_over_cells"]
    assert found == {"value": 3.5 / 5, "low": 3.5 / 5, "high": 3.5 / 5, "num_cells": 5}


def test_lower_is_better_for_failures_costs_and_own_numbers_that_the_plan_marks(tmp_path):
    for seed in range(2):
        for arm, rate in (("a", 0.25), ("b", 0.5)):
            made_result(tmp_path, arm, seed, summary={"heldout": {"score": 50.0, "failure_rate": rate}, "own": {"x": rate, "y": rate}})
    failures = on(compared(tmp_path, ("a", "b"), primary="heldout.failure_rate"), "heldout.failure_rate")
    assert failures["difference"]["value"] == -0.25
    assert failures["probability_of_improvement"]["value"] == failures["probability_of_improvement_any_pair"] == 1.0
    Planned(contrasts=(("a", "b"),), primary=AUC, read=("-own.x", "own.y")).keep(tmp_path)
    found = as_planned(tmp_path)
    assert found["plan"]["read"] == ["own.x", "own.y"]
    assert [on(found, name)["probability_of_improvement"]["value"] for name in ("own.x", "own.y")] == [1.0, 0.0]


def test_pairs_that_did_not_measure_an_endpoint_are_dropped_and_named(tmp_path):
    made_sweep(tmp_path, {"b": [50.0, 50.0]})
    made_result(tmp_path, "a", 0)
    made_result(tmp_path, "a", 1, summary={"heldout": {"score": None}})
    found = compared(tmp_path, ("a", "b"))
    assert (on(found, "heldout.score")["num_pairs"], on(found, "heldout.score")["num_dropped"]) == (1, 1) and on(found)["num_pairs"] == 2
    (note,) = found["contrasts"][0]["notes"]
    assert note.startswith("Not every pair of a and b measured heldout.score, ")
    notes = compared(tmp_path, ("a", "b"), primary="heldout.score")["contrasts"][0]["notes"]
    assert notes == ["1 of 2 pairs of a and b did not measure heldout.score."]


def test_settings_beside_the_teacher_and_the_code_are_named_where_they_differ(tmp_path):
    made_result(tmp_path, "a", 0, settings="learner:\n  lr: 0.1\n")
    # Only b knows a newer setting: it had its default in a.
    made_result(tmp_path, "b", 0, settings="learner:\n  lr: 0.5\n  newer: 1\n", commit="decaf")
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["settings_that_differ"] == ["learner.lr", "teacher.kind"]
    text = as_text(found)
    assert "a and b differ in more than the teacher: learner.lr." in text
    assert "The runs come from 2 states of the code (c0ffee, decaf)." in text


def test_the_same_seed_writes_the_same_file_without_nan(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"a": TEN, "b": TEN[::-1]})
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        write_json(compared(folder, ("a", "b"), seed=seed), tmp_path / name)
    one, two, three = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one", "two", "three"))
    assert one == two and "NaN" not in one
    assert json.loads(one)["arms"]["a"]["endpoints"][AUC]["iqm"] != json.loads(three)["arms"]["a"]["endpoints"][AUC]["iqm"]


def test_runs_of_different_worlds_are_not_compared_and_the_rest_is(tmp_path):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "b": [40.0]})
    made_result(tmp_path, "b", 1, world="bbbb")
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0]
    assert found["contrasts"][0]["notes"] == ["a/seed_1 and b/seed_1 ran in different worlds (aaaa and bbbb); this pair is left out."]
    assert "endpoints" in found["arms"]["a"] and "endpoints" not in found["arms"]["b"]
    assert "b is not averaged: b/seed_0 and b/seed_1 ran in different worlds (aaaa and bbbb)." in found["notes"]
    assert "The runs come from 2 worlds (b in bbbb); only runs of one world are set against each other." in found["notes"]
    # Of pairs from two worlds the larger group is averaged.
    for seed in (1, 2):
        for arm in "ab":
            made_result(tmp_path / "pairs", arm, seed, world="bbbb")
    made_result(tmp_path / "pairs", "a", 0), made_result(tmp_path / "pairs", "b", 0)
    contrast = compared(tmp_path / "pairs", ("a", "b"))["contrasts"][0]
    assert contrast["seeds"] == [1, 2] and contrast["notes"][-1].endswith("the pair of seed 0 is left out.")


def test_unequal_budgets_other_judges_and_missing_seeds_are_not_compared(tmp_path):
    made_sweep(tmp_path, {"a": [50.0, 60.0], "lacking": [30.0]})
    for seed in range(2):
        made_result(tmp_path, "poor", seed, budget=900)
        made_result(tmp_path, "sealed", seed, split="sealed")
    found = compared(tmp_path, ("a", "poor"), ("a", "sealed"), ("a", "lacking"))
    reasons = (
        "a and poor had unequal budgets (budget.policy_tokens: 1000 and 900)",
        "a and sealed were judged differently (evaluation.split: heldout and sealed)",
    )
    for contrast, reason in zip(found["contrasts"], reasons, strict=False):
        assert contrast["cannot"] == f"{reason} in seeds 0, 1; these pairs are left out." and contrast["endpoints"][AUC] is None
    assert any(note.startswith("Arms had unequal budgets") for note in found["notes"])
    assert found["contrasts"][2]["seeds"] == [0] and found["contrasts"][2]["notes"] == [
        "lacking lacks seed 1; only common seeds are paired."
    ]


def test_runs_that_began_with_different_weights_are_not_paired_unless_on_purpose(tmp_path):
    for seed, ours, theirs in ((0, "aa", "aa"), (1, "aa", "bb"), (2, "bb", "bb"), (3, "", "bb")):
        # A setting that only one run knows is no purpose.
        made_result(tmp_path, "a", seed, initial_policy=ours, settings="policy:\n  model: embedded\n  engine_process: false\n")
        made_result(tmp_path, "b", seed, initial_policy=theirs, settings="policy:\n  model: embedded\n")
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0, 2, 3]
    assert "a/seed_1 and b/seed_1 began with different policies (aa and bb); this pair is left out." in found["contrasts"][0]["notes"]
    assert any("began with 2 policies (aa, bb)" in note for note in found["notes"])
    for arm, policy, thinking in (("a", "aa", "true"), ("b", "bb", "false")):
        made_result(tmp_path / "other", arm, 0, initial_policy=policy, settings=f"policy:\n  thinking: {thinking}\n")
    assert compared(tmp_path / "other", ("a", "b"))["contrasts"][0]["seeds"] == [0]


def test_runs_of_an_arm_with_other_settings_are_not_averaged_nor_paired_with_the_rest(tmp_path):
    for seed, rate in enumerate(("0.1", "0.1", "0.2")):
        made_result(tmp_path, "a", seed, settings=f"learner:\n  lr: {rate}\ncheckpoint:\n  every: {seed}\n")
        made_result(tmp_path, "b", seed, settings="learner:\n  lr: 0.3\n")
    found = compared(tmp_path, ("a", "b"))
    different = "a/seed_0 and a/seed_2 were run with different settings (learner.lr: 0.1 and 0.2)"
    assert f"a is not averaged: {different}." in found["notes"] and "endpoints" not in found["arms"]["a"]
    assert found["contrasts"][0]["seeds"] == [0, 1] and f"{different}; the pair of seed 2 is left out." in found["contrasts"][0]["notes"]


def test_runs_from_before_a_setting_existed_are_compared_with_later_ones(tmp_path):
    for seed in (0, 1):
        for arm in "ab":
            run = made_result(tmp_path, arm, seed, settings="policy:\n  engine_process: false\n" if seed else "")
            config = (run / "config.yaml").read_text()
            newer = "  tries: 1\n" if arm == "b" else ""
            (run / "config.yaml").write_text(config.replace("  split: heldout\n", f"  split: heldout\n{newer}"))
    found = compared(tmp_path, ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0, 1] and found["arms"]["a"]["endpoints"][AUC]["num_runs"] == 2


@pytest.mark.parametrize(
    ("finals", "best"),
    [
        ({"frontier": [60.0, 70.0], "fixed_1": [30.0, 30.0], "fixed_2": [50.0, 50.0], "uniform": [90.0, 90.0]}, "fixed_2"),
        # fixed_2 has run on the one easy seed alone; on that one fixed_1 is better.
        ({"frontier": [60.0, 60.0], "fixed_1": [70.0, 40.0], "fixed_2": [65.0]}, "fixed_1"),
        # On seed 0 fixed_1 is the hardest to beat, over both seeds fixed_2 is; fixed_3 has run on seed 0 alone.
        ({"frontier": [60.0, 60.0], "fixed_1": [65.0, 20.0], "fixed_2": [60.0, 62.0], "fixed_3": [30.0]}, "fixed_2"),
        # More seeds are no merit.
        ({"frontier": [60.0] * 3, "fixed_1": [20.0] * 3, "fixed_2": [55.0, 55.0]}, "fixed_2"),
    ],
)
def test_a_pattern_means_the_best_arm_that_fits_on_seeds_that_candidates_share(tmp_path, finals, best):
    contrast = compared(made_sweep(tmp_path, finals), ("frontier", "fixed_*"))["contrasts"][0]
    assert contrast["b"] == best and contrast["b_chosen_from"] == [arm for arm in finals if arm.startswith("fixed")]
    assert any("which favours it over frontier" in note for note in contrast["notes"])


def test_an_arm_that_shares_no_seed_with_the_others_is_not_chosen_before_them(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [60.0] * 6, "fixed_0.1": [55.0] * 5, "fixed_0.5": [62.0] * 5})
    made_result(folder, "fixed_0.9", 5, looks=((0, 20.0), (BUDGET, 90.0)))
    assert compared(folder, ("frontier", "fixed_*"))["contrasts"][0]["b"] == "fixed_0.5"
    alone = made_sweep(tmp_path / "alone", {"frontier": [60.0] * 2, "fixed_0.1": [40.0]})
    made_result(alone, "fixed_0.9", 1, looks=((0, 20.0), (BUDGET, 90.0)))
    assert compared(alone, ("frontier", "fixed_*"))["contrasts"][0]["b"] == "fixed_0.9"


def test_a_pattern_passes_over_arms_of_another_world_and_says_so(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0, 80.0], "fixed_0.5": [50.0, 50.0]})
    for seed in range(2):
        made_result(folder, "fixed_0.9", seed, world="bbbb", looks=((0, 20.0), (BUDGET, 90.0)))
    contrast = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]
    assert (contrast["b"], contrast["b_chosen_from"]) == ("fixed_0.5", ["fixed_0.5"])
    assert contrast["notes"][0] == "Of fixed_* only fixed_0.5 can be set against frontier."
    reason = "frontier and fixed_0.9 ran in different worlds (aaaa and bbbb) in seeds 0, 1; these pairs are left out."
    assert f"fixed_0.9 was not among those to choose from: {reason}" in contrast["notes"]
    shutil.rmtree(folder / "fixed_0.5")
    assert reason in compared(folder, ("frontier", "fixed_*"))["contrasts"][0]["cannot"]


def test_the_best_arm_is_the_lowest_where_lower_is_better(tmp_path):
    for arm, rate in (("a", 0.5), ("fixed_1", 0.75), ("fixed_2", 0.25)):
        made_result(tmp_path, arm, 0, summary={"heldout": {"failure_rate": rate}})
    assert compared(tmp_path, ("a", "fixed_*"), primary="heldout.failure_rate")["contrasts"][0]["b"] == "fixed_2"


def test_an_arm_that_was_chosen_on_the_judged_runs_is_never_said_to_be_ahead_for_sure(tmp_path):
    finals = {"frontier": [50.0 + i for i in range(8)], "fixed_0.1": [70.0] * 8, "fixed_0.3": [60.0] * 8}
    found = compared(made_sweep(tmp_path, finals), ("frontier", "fixed_*"))
    assert on(found)["p_holm"] < 0.01 and answers(found) == ["undecided"]
    assert found["verdict"][-1].startswith("The best of several arms, chosen on these runs, is ahead by luck too often")
    # By its name it was not chosen, and ahead of the best a yes is a yes.
    assert answers(compared(tmp_path, ("frontier", "fixed_0.1"))) == ["no"]
    better = made_sweep(tmp_path / "better", {**finals, "frontier": [80.0 + i for i in range(8)]})
    assert answers(compared(better, ("frontier", "fixed_*"))) == ["yes"]


def test_nothing_is_answered_before_the_plans_seeds_are_in_or_with_others(tmp_path):
    folder = made_sweep(tmp_path / "sweep", EIGHT)
    PLANNED.keep(folder)
    assert answers(as_planned(folder)) == ["yes", "no"]
    found = as_planned(folder, seeds=range(7))
    assert answers(found) == ["undecided"] * 2 and found["contrasts"][1]["incomplete"] == "not paired yet: seed 7"
    assert "frontier - uniform is not answered: not paired yet: seed 7." in as_text(found)
    PLANNED.model_copy(update={"seeds": tuple(range(6))}).keep(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "plan.json", folder)
    assert as_planned(folder)["contrasts"][1]["incomplete"] == "not in the plan: seeds 6, 7"
    (folder / "plan.json").unlink(), PLANNED.keep(folder)
    (folder / "uniform" / "seed_7" / "evaluation.jsonl").unlink()
    assert as_planned(folder)["contrasts"][1]["incomplete"] == "pairs that did not measure heldout.auc: 1"


def test_a_contrast_that_is_not_complete_helps_no_other_over_the_line(tmp_path):
    # Against uniform p is 10/256: decided after Holm if yoked comes before it with a smaller p, and not if yoked does not.
    frontier = np.full(8, 80.0)
    finals = {
        "frontier": list(frontier),
        "uniform": list(frontier - [2, 4, 8, 10, 12, 14, 16, -6]),
        "yoked": list(frontier - [20, 22, 24, 26, 28, 30, 32, -19]),
    }
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "uniform"), ("frontier", "yoked")), primary=AUC, seeds=tuple(range(8))).keep(folder)
    (folder / "yoked" / "seed_7").rename(tmp_path / "later")
    found = as_planned(folder)
    assert (on(found)["p"], on(found, which=1)["p"]) == (10 / 256, 2 / 128)
    assert on(found)["p_holm"] == 20 / 256 and on(found)["p_smallest_holm"] == 4 / 256 and answers(found) == ["undecided"] * 2
    (tmp_path / "later").rename(folder / "yoked" / "seed_7")
    assert answers(as_planned(folder)) == ["yes", "yes"]


def test_contrasts_named_by_hand_in_a_sweep_with_a_plan_are_described_and_decide_nothing(tmp_path):
    folder = made_sweep(tmp_path / "sweep", EIGHT, summary={"heldout": {"score": 65.0}})
    PLANNED.keep(folder)
    # The arm that fits a pattern, a part of the plan, another endpoint.
    for contrasts, primary in (
        ([("frontier", "linear_x1")], AUC),
        ([("frontier", "uniform")], AUC),
        (PLANNED.contrasts, "heldout.score"),
    ):
        found = compared(folder, *contrasts, primary=primary)
        assert found["plan"]["chosen_by"] == "name" and set(answers(found)) == {"undecided"}
        assert "This is not the planned comparison: the plan has frontier:linear_*, frontier:uniform on heldout.auc." in found["notes"]


def test_without_named_contrasts_the_favourite_meets_all(tmp_path):
    folder = made_sweep(tmp_path, {"x": [50.0], "frontier": [50.0], "y": [50.0]})
    Planned(contrasts=(), primary=AUC).keep(folder)
    found = as_planned(folder)
    assert (found["plan"]["contrasts"], found["plan"]["chosen_by"]) == ([["frontier", "x"], ["frontier", "y"]], "default")


def test_where_the_plans_rivals_were_not_run_what_is_there_is_described_and_nothing_decided(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": EIGHT["frontier"], "adarft": [50.0] * 8, "rlve": [60.0] * 8})
    PLANNED.keep(folder)
    found = as_planned(folder)
    assert found["plan"]["chosen_by"] == "instead"
    assert [(contrast["b"], contrast["answer"]) for contrast in found["contrasts"]] == [("adarft", "undecided"), ("rlve", "undecided")]
    assert "not the planned comparison, for none of its contrasts has runs on both sides: the plan has frontier:linear_*" in as_text(found)
    # One of the plan's arms is enough to keep to the plan.
    made_result(folder, "uniform", 0)
    found = as_planned(folder)
    assert (found["plan"]["chosen_by"], [contrast["b"] for contrast in found["contrasts"]]) == ("plan", ["linear_*", "uniform"])


@pytest.mark.parametrize("wrong", [{"primary": "heldout.acu"}, {"threshold": 500}, {"contrasts": [["a"]]}])
def test_a_plan_that_cannot_be_read_is_refused_by_what_is_wrong(tmp_path, wrong):
    path = made_sweep(tmp_path, {"a": [50.0]}) / "plan.json"
    path.write_text(json.dumps({"contrasts": [["a", "b"]], "primary": AUC, **wrong}))
    with pytest.raises(ValueError, match=f"plan.json must hold .*{next(iter(wrong))}"):
        as_planned(tmp_path)


def test_arms_with_the_same_tuning_share_a_remark(tmp_path):
    folder = made_sweep(tmp_path, {"ppo_think": [70.0], "ppo_plain": [60.0], "uniform": [50.0]})
    pairs = (("ppo_think", "uniform"), ("ppo_plain", "uniform"), ("uniform", "ppo_plain"))
    Planned(contrasts=pairs, tuning={"ppo_*": "as published", "uniform": "none"}).keep(folder)
    assert "Tuned before these runs: ppo_think, ppo_plain (as published)." in as_planned(folder)["notes"]


def test_nothing_is_answered_against_the_best_of_other_arms_than_were_planned(tmp_path):
    # Against fixed_0.7, the best, frontier is behind; against fixed_0.9 it is ahead on every seed.
    finals = {"frontier": EIGHT["frontier"], "fixed_0.7": [80.0] * 8, "fixed_0.9": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "fixed_*"),), seeds=tuple(range(8)), arms=tuple(finals)).keep(folder)
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["b"] == "fixed_0.7" and not contrast["incomplete"]

    def of_another_world(folder):
        for path in folder.glob("fixed_0.7/*/summary.json"):
            path.write_text(path.read_text().replace('"aaaa"', '"bbbb"'))

    for i, (change, incomplete) in enumerate(
        (
            (lambda folder: shutil.rmtree(folder / "fixed_0.7"), "fixed_0.7 has no pair in seeds 0, 1, 2, 3, 4, 5, 6, 7"),
            (of_another_world, "fixed_0.7 has no pair in seeds 0, 1, 2, 3, 4, 5, 6, 7"),
            (lambda folder: shutil.rmtree(folder / "fixed_0.9" / "seed_3"), "fixed_0.9 has no pair in seed 3"),
            (lambda folder: made_sweep(folder, {"fixed_1": [10.0] * 8}), "not in the plan: fixed_1"),
        )
    ):
        change(changed := shutil.copytree(folder, tmp_path / str(i)))
        contrast = as_planned(changed)["contrasts"][0]
        assert (contrast["answer"], contrast["incomplete"]) == ("undecided", incomplete)


def test_the_command_keeps_to_the_plan_of_the_sweep_and_writes_nothing_else_in_its_place(tmp_path, capsys):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "linear_x1": [60.0, 65.0], "uniform": [50.0, 52.0]})
    PLANNED.keep(folder)
    path = folder / "comparison.json"
    assert main(["compare", str(folder)]) == 0
    planned = path.read_bytes()
    assert json.loads(planned)["plan"]["chosen_by"] == "plan"
    for option, value in (("--contrast", "frontier:uniform"), ("--primary", "heldout.score"), ("--seeds", "0")):
        assert main(["compare", str(folder), option, value]) == 0
        assert "--out FILE.json keeps it" in capsys.readouterr().out and path.read_bytes() == planned
    assert main(["compare", str(folder), "--seeds", "0", "--out", str(tmp_path / "other.json")]) == 0
    assert json.loads((tmp_path / "other.json").read_text())["plan"]["only_seeds"] == [0]


def test_without_a_plan_the_contrasts_that_were_named_before_are_compared_again(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 52.0], "linear": [9.0, 8.0]})
    assert main(["compare", str(folder), "--contrast", "uniform:linear", "--threshold", "50"]) == 0
    assert main(["compare", str(folder)]) == 0
    assert json.loads((folder / "comparison.json").read_text())["plan"]["contrasts"] == [["uniform", "linear"]]


def test_options_that_cannot_be_met_are_one_sentence(tmp_path, capsys):
    folder = made_sweep(tmp_path, {"a": [50.0], "b": [40.0]})
    for arguments, complaint in (
        ("--contrast a:a*", "--contrast must name two arms of the sweep (a, b), got a:a*"),
        ("--contrast a:b --contrast a:b", "--contrast must name each contrast once"),
        ("--contrast a:z*", "got a:z*"),
        ("--contrast a*:b", "got a*:b"),
        ("--primary entropy.end", "--primary must be an endpoint of which more, or less, is better"),
        ("--primary heldout.nonsense", "--primary must be one of heldout.auc, "),
        ("--threshold nan", "--threshold must be "),
        ("--bootstrap-seed -1", "--bootstrap-seed must be at least 0"),
        ("--seeds 7-9", "--seeds must hold a seed of the sweep (0), got 7-9"),
        ("--out /nowhere/at/all.json", "--out must be a file in a folder that is there"),
    ):
        assert main(["compare", str(folder), *arguments.split()]) == 2
        error = capsys.readouterr().err
        assert complaint in error and error.count("\n") == 1 and not (folder / "comparison.json").exists()
    for arguments in ("--contrast a", "--contrast a:a", "--seeds 4-0", "--seeds x"):
        with pytest.raises(SystemExit) as ended:
            main(["compare", str(folder), *arguments.split()])
        assert ended.value.code == 2


def test_a_folder_that_is_no_sweep_is_refused_with_the_sweeps_beneath_it(tmp_path, capsys):
    sweep = made_sweep(tmp_path / "made" / "sweep", {"a": [50.0]})
    assert main(["compare", str(tmp_path / "made")]) == 2
    assert capsys.readouterr().err.endswith(f"which holds none; sweeps beneath it: {sweep}\n")
    assert main(["compare", str(tmp_path / "nowhere")]) == 2 and "there is no such folder" in capsys.readouterr().err
