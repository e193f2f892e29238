"""Which runs may be set against each other, and which arm a pattern stands for."""

from __future__ import annotations

import json
import shutil

import pytest
from compared import compared, on
from made_sweep import BUDGET, made_result, made_sweep

from analysis.compare import as_text


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
    text = as_text(found)
    assert text.count(f"a and b {complaint} in seeds 0, 1; these pairs are left out.") == 1
    assert ("Arms had unequal budgets (a, c 1,000 policy tokens; b 900 policy tokens)" in text) == ("budget" in other)


def test_missing_seeds_leave_the_common_ones(tmp_path):
    found = compared(made_sweep(tmp_path, {"a": [50.0, 60.0, 70.0], "b": [40.0]}), ("a", "b"))
    assert found["contrasts"][0]["seeds"] == [0]
    assert found["contrasts"][0]["notes"] == ["b lacks seed 1, 2; only common seeds are paired."]
    assert found["contrasts"][0]["answer"] == "undecided"


def test_a_pattern_means_the_best_arm_that_fits(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [60.0, 70.0], "fixed_0.1": [30.0, 30.0], "fixed_0.5": [50.0, 50.0], "uniform": [90.0, 90.0]})
    contrast = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]
    assert contrast["b"] == "fixed_0.5"
    assert contrast["b_chosen_from"] == ["fixed_0.1", "fixed_0.5"]
    assert "which favours it over frontier" in contrast["notes"][0]


def test_an_arm_that_shares_no_seed_with_the_others_is_not_chosen_before_them(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [60.0] * 6, "fixed_0.1": [55.0] * 5, "fixed_0.5": [62.0] * 5})
    made_result(folder, "fixed_0.9", 5, looks=((0, 20.0), (BUDGET, 90.0)))
    contrast = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]
    assert (contrast["b"], contrast["seeds"]) == ("fixed_0.5", [0, 1, 2, 3, 4])
    alone = made_sweep(tmp_path / "alone", {"frontier": [60.0] * 2})
    made_result(alone, "fixed_0.1", 0, looks=((0, 20.0), (BUDGET, 40.0)))
    made_result(alone, "fixed_0.9", 1, looks=((0, 20.0), (BUDGET, 90.0)))
    assert compared(alone, ("frontier", "fixed_*"))["contrasts"][0]["b"] == "fixed_0.9"


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
    reason = "frontier and fixed_0.9 ran in different worlds (aaaa and bbbb) in seeds 0, 1; these pairs are left out."
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


def test_why_none_of_a_pattern_can_be_met_is_the_reason_of_its_arms(tmp_path):
    folder = made_sweep(tmp_path, {"frontier": [70.0]})
    for arm in ("fixed_0.1", "fixed_0.5"):
        made_result(tmp_path, arm, 0, world="bbbb")
    said = compared(folder, ("frontier", "fixed_*"))["contrasts"][0]["cannot"]
    assert "frontier/seed_0 and fixed_0.1/seed_0 ran in different worlds (aaaa and bbbb)" in said and "fixed_0.5/seed_0" in said


def test_a_pattern_that_one_arm_fits_chooses_nothing(tmp_path):
    contrast = compared(made_sweep(tmp_path, {"frontier": [70.0, 80.0], "fixed_0.5": [60.0, 65.0]}), ("frontier", "fixed_*"))["contrasts"][
        0
    ]
    assert contrast["b"] == "fixed_0.5" and contrast["notes"] == ["Of fixed_* only fixed_0.5 can be set against frontier."]


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
