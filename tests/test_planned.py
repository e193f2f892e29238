"""What a sweep's plan says of a comparison: what is answered, what waits, and what is only described."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from compared import as_planned, compared, on
from made_sweep import made_result, made_sweep

from analysis.compare import as_text
from analysis.endpoints import AUC
from analysis.sweeps import Planned

EIGHT = {"frontier": [70.0 + i for i in range(8)], "linear_x1": [50.0] * 8, "linear_x2": [40.0] * 8, "uniform": [90.0] * 8}
PLANNED = (("frontier", "linear_*"), ("frontier", "uniform"))


def test_a_plan_without_contrasts_names_none(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "x": [60.0, 65.0], "y": [9.0, 8.0]})
    Planned(contrasts=(), primary="heldout.auc").keep(folder)
    found = compared(folder)
    assert found["plan"]["chosen_by"] == "default"
    assert [contrast["incomplete"] for contrast in found["contrasts"]] == ["", ""]


def test_nothing_is_answered_before_the_plans_seeds_are_in(tmp_path):
    finals = {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    assert as_planned(folder)["contrasts"][0]["answer"] == "yes"
    found = as_planned(folder, seeds=range(7))
    assert found["contrasts"][0]["answer"] == "undecided"
    assert found["contrasts"][0]["incomplete"] == "not paired yet: seed 7"
    assert "frontier - uniform is not answered: not paired yet: seed 7." in as_text(found)


def test_a_contrast_that_is_not_complete_helps_no_other_over_the_line(tmp_path):
    # Against uniform p is 10/256: decided after Holm if yoked comes before it with a smaller p, and not if yoked does not.
    frontier = np.full(8, 80.0)
    finals = {
        "frontier": list(frontier),
        "uniform": list(frontier - [2, 4, 8, 10, 12, 14, 16, -6]),
        "yoked": list(frontier - [20, 22, 24, 26, 28, 30, 32, -19]),
    }
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "uniform"), ("frontier", "yoked")), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    (folder / "yoked" / "seed_7").rename(tmp_path / "later")
    found = as_planned(folder)
    uniform, yoked = found["contrasts"]
    assert (on(found)["p"], on(found, which=1)["p"]) == (10 / 256, 2 / 128) and yoked["incomplete"]
    assert on(found)["p_holm"] == 20 / 256 and uniform["answer"] == "undecided"
    assert on(found)["p_smallest_holm"] == 4 / 256
    (tmp_path / "later").rename(folder / "yoked" / "seed_7")
    assert [one["answer"] for one in as_planned(folder)["contrasts"]] == ["yes", "yes"]


def test_nothing_is_answered_with_seeds_that_the_plan_does_not_have(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=tuple(range(6))).keep(folder)
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided"
    assert contrast["incomplete"] == "not in the plan: seeds 6, 7"


def test_a_planned_pair_that_did_not_measure_the_endpoint_leaves_its_contrast_open(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8})
    (folder / "uniform" / "seed_7" / "evaluation.jsonl").unlink()
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided"
    assert contrast["incomplete"] == "pairs that did not measure heldout.auc: 1"


def test_what_is_named_by_hand_beside_a_plan_without_contrasts_decides_nothing(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8})
    Planned(contrasts=(), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    (contrast,) = compared(folder, ("frontier", "uniform"))["contrasts"]
    assert contrast["answer"] == "undecided" and contrast["incomplete"] == "not in the sweep's plan"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"primary": "heldout.acu"}, "primary must be one of heldout.auc"), ({"threshold": 500}, "threshold must be in [0, 100], got 500.0")],
)
def test_a_plan_that_was_mistyped_is_named_and_the_runs_are_compared_all_the_same(tmp_path, wrong, complaint):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0] * 8})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=tuple(range(8))).keep(folder)
    path = folder / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}), encoding="utf-8")
    found = as_planned(folder)
    assert found["notes"][0].startswith(f"What was planned is not known: {path} must hold") and complaint in found["notes"][0]
    assert [contrast["answer"] for contrast in found["contrasts"]] == ["undecided"]


@pytest.mark.parametrize("num", [2, 8])
def test_where_the_plans_rivals_were_not_run_what_is_there_is_described_and_nothing_decided(tmp_path, num):
    finals = {"frontier": [70.0 + i for i in range(num)], "adarft": [50.0] * num, "rlve": [60.0] * num}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "fixed_*"), ("frontier", "uniform")), primary="heldout.auc", seeds=tuple(range(num))).keep(folder)
    found = as_planned(folder)
    assert found["plan"]["chosen_by"] == "instead"
    assert [(contrast["b"], contrast["answer"]) for contrast in found["contrasts"]] == [("adarft", "undecided"), ("rlve", "undecided")]
    assert "What is compared is not the plan, for none of its contrasts has runs on both sides: it has frontier:fixed_*" in as_text(found)
    # One of the plan's arms is enough to keep to the plan.
    made_result(folder, "uniform", 0)
    found = as_planned(folder)
    assert (found["plan"]["chosen_by"], [contrast["b"] for contrast in found["contrasts"]]) == ("plan", ["fixed_*", "uniform"])


def test_a_plan_is_looked_up_whichever_endpoint_is_asked_for(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0, 80.0], "uniform": [50.0, 60.0]})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.gain", seeds=(0, 1)).keep(folder)
    found = compared(folder, ("frontier", "uniform"), primary="heldout.score")
    assert found["plan"]["chosen_by"] == "name" and on(found, "heldout.score")["num_pairs"] == 2


@pytest.mark.parametrize(
    ("contrasts", "primary"),
    [
        # The arm that a pattern stands for, a part of the plan, another endpoint.
        ([("frontier", "linear_x1")], AUC),
        ([("frontier", "uniform")], AUC),
        (PLANNED, "heldout.score"),
    ],
)
def test_what_is_named_by_hand_beside_a_plan_is_described_and_decides_nothing(tmp_path, contrasts, primary):
    folder = made_sweep(tmp_path / "sweep", EIGHT, summary={"heldout": {"score": 65.0}})
    Planned(contrasts=PLANNED, primary=AUC, seeds=tuple(range(8))).keep(folder)
    assert [contrast["answer"] for contrast in as_planned(folder)["contrasts"]] == ["yes", "no"]
    found = compared(folder, *contrasts, primary=primary)
    assert {contrast["answer"] for contrast in found["contrasts"]} == {"undecided"}
    assert "What is compared is not the plan: it has frontier:linear_*, frontier:uniform on heldout.auc." in as_text(found)


def test_a_plan_that_cannot_be_read_decides_nothing(tmp_path):
    folder = made_sweep(tmp_path / "sweep", EIGHT)
    Planned(contrasts=PLANNED, primary=AUC, seeds=tuple(range(10))).keep(folder)
    (folder / "plan.json").write_text((folder / "plan.json").read_text()[:-30])
    found = compared(folder)
    assert {contrast["answer"] for contrast in found["contrasts"]} == {"undecided"}
    text = as_text(found)
    assert "is not answered: the plan cannot be read." in text and "What was planned is not known: " in text


def test_what_the_favourite_was_tuned_on_stands_among_the_remarks(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": [70.0], "uniform": [50.0]})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", tuning={"front*": "on seeds 0 to 2", "uniform": "none"}).keep(
        folder
    )
    assert "Tuned before these runs: frontier (on seeds 0 to 2)." in as_planned(folder)["notes"]


def test_arms_that_were_tuned_alike_share_a_remark(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"ppo_think": [70.0], "ppo_plain": [60.0], "uniform": [50.0]})
    pairs = (("ppo_think", "uniform"), ("ppo_plain", "uniform"), ("uniform", "ppo_plain"))
    tuning = {"ppo_*": "as published", "uniform": "none"}
    Planned(contrasts=pairs, primary="heldout.auc", tuning=tuning).keep(folder)
    notes = [note for note in as_planned(folder)["notes"] if "Tuned" in note]
    assert notes == ["Tuned before these runs: ppo_think, ppo_plain (as published)."]


@pytest.mark.parametrize("lost", ["folder", "summaries", "a seed", "world"])
def test_nothing_is_answered_against_the_best_of_some_of_the_arms_that_were_planned(tmp_path, lost):
    # Against fixed_0.7, the best, frontier is behind; against fixed_0.9 it is ahead on every seed.
    finals = {"frontier": [70.0 + i for i in range(8)], "fixed_0.7": [80.0] * 8, "fixed_0.9": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "fixed_*"),), primary="heldout.auc", seeds=tuple(range(8)), arms=tuple(finals)).keep(folder)
    assert as_planned(folder)["contrasts"][0]["b"] == "fixed_0.7" and not as_planned(folder)["contrasts"][0]["incomplete"]
    best = folder / "fixed_0.7"
    if lost == "folder":
        shutil.rmtree(best)
    for seed in range(8) if lost in ("summaries", "world") else [7] if lost == "a seed" else []:
        summary = best / f"seed_{seed}" / "summary.json"
        summary.write_text(summary.read_text().replace('"aaaa"', '"bbbb"') if lost == "world" else "{", encoding="utf-8")
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided"
    if lost == "a seed":
        assert contrast["b"] == "fixed_0.7" and contrast["incomplete"] == "not paired yet: seed 7"
        return
    which = "fixed_0.7 has no pair in seeds 0, 1, 2, 3, 4, 5, 6, 7"
    assert contrast["b"] == "fixed_0.9" and contrast["endpoints"][AUC]["p"] < 0.01
    assert contrast["incomplete"] == which


def test_a_seed_that_the_best_has_and_another_candidate_lacks_leaves_the_choice_open(tmp_path):
    finals = {"frontier": [70.0 + i for i in range(8)], "fixed_0.7": [40.0] * 8, "fixed_0.9": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "fixed_*"),), primary="heldout.auc", seeds=tuple(range(8)), arms=tuple(finals)).keep(folder)
    assert as_planned(folder)["contrasts"][0]["answer"] == "yes"
    shutil.rmtree(folder / "fixed_0.7" / "seed_3")
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided" and contrast["incomplete"] == "fixed_0.7 has no pair in seed 3"


@pytest.mark.parametrize("seeds", [(), tuple(range(8))])
@pytest.mark.parametrize("named", [True, False])
def test_candidates_are_those_of_the_plan_whether_it_names_seeds_and_arms_or_not(tmp_path, seeds, named):
    finals = {"frontier": [70.0 + i for i in range(8)], "fixed_0.7": [40.0] * 8, "fixed_0.9": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    Planned(contrasts=(("frontier", "fixed_*"),), primary="heldout.auc", seeds=seeds, arms=tuple(finals) if named else ()).keep(folder)
    assert as_planned(folder)["contrasts"][0]["answer"] == "yes"
    for seed in range(8):
        (folder / "fixed_0.7" / f"seed_{seed}" / "summary.json").unlink()
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided" and "fixed_0.7 has no pair in seeds 0, 1, 2" in contrast["incomplete"]


def test_an_arm_that_the_plan_does_not_have_is_not_chosen_into_its_verdict(tmp_path):
    finals = {"frontier": [70.0 + i for i in range(8)], "fixed_0.7": [40.0] * 8, "fixed_0.9": [50.0] * 8}
    folder = made_sweep(tmp_path / "sweep", finals)
    planned = ("frontier", "fixed_0.7")
    Planned(contrasts=(("frontier", "fixed_*"),), primary="heldout.auc", seeds=tuple(range(8)), arms=planned).keep(folder)
    contrast = as_planned(folder)["contrasts"][0]
    assert contrast["answer"] == "undecided"
    assert contrast["incomplete"] == "not in the plan: fixed_0.9"
