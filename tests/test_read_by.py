"""Endpoints that an experiment is about, from its runs to its contrasts."""

from __future__ import annotations

import pytest
from compared import as_planned, compared, on
from made_sweep import BUDGET, made_result, made_sweep

from analysis.endpoints import AUC, Planned


def test_gain_is_an_endpoint(tmp_path):
    arm = compared(made_sweep(tmp_path, {"a": [60.0, 50.0]}), primary="heldout.gain")["arms"]["a"]
    assert [run["heldout.gain"] for run in arm["runs"].values()] == [40.0, 30.0]
    assert arm["endpoints"]["start.score"]["mean"]["value"] == 20.0


def probed(*, sycophancy, plain, false_belief):
    changes = {"sycophancy": {"change": sycophancy}, "margin_nats": {"plain": {"change": plain}, "false_belief": {"change": false_belief}}}
    return {"reliability": changes}


def test_a_sweep_may_be_decided_by_the_cost_of_training_and_every_figure_of_the_probe_is_described(tmp_path):
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


def test_forgetting_is_an_endpoint_that_is_better_when_low_and_part_of_contrasts_where_the_plan_reads_it(tmp_path):
    for seed in range(2):
        made_result(tmp_path, "a", seed, looks=((0, 20.0), (500, 60.0 + seed), (BUDGET, 60.0)))
        made_result(tmp_path, "b", seed, looks=((0, 20.0), (500, 70.0), (BUDGET, 50.0)))
    assert "heldout.forgotten" not in compared(tmp_path, ("a", "b"))["contrasts"][0]["endpoints"]
    Planned(contrasts=(("a", "b"),), primary=AUC, read=("heldout.forgotten",), seeds=(0, 1)).keep(tmp_path)
    found = as_planned(tmp_path)
    assert found["plan"]["read"] == ["heldout.forgotten"]
    assert [run["heldout.forgotten"] for run in found["arms"]["a"]["runs"].values()] == [0.0, 1.0]
    forgot = on(found, "heldout.forgotten")
    assert forgot["differences"] == [-20.0, -19.0] and forgot["probability_of_improvement"]["value"] == 1.0


def test_a_sweep_may_be_read_by_any_number_of_its_summaries(tmp_path):
    tried = {"best_of": {"start": {"best": 40.0, "gain": 15.0}, "end": {"best": 60.0, "gain": 5.0}, "beyond": 15.0}}
    for seed in range(2):
        made_result(tmp_path, "a", seed, summary=tried)
        made_result(tmp_path, "b", seed, summary={"best_of": {"beyond": -5.0}})
    Planned(contrasts=(("a", "b"),), primary=AUC, read=("best_of.beyond", "best_of.end.gain", "best_of.gian", "entropy.end")).keep(tmp_path)
    found = as_planned(tmp_path)
    assert on(found, "best_of.beyond")["differences"] == [20.0, 20.0] and on(found, "best_of.end.gain") is None
    assert on(found, "entropy.end")["differences"] == [0.0, 0.0]
    assert found["arms"]["a"]["endpoints"]["best_of.end.gain"]["mean"]["value"] == 5.0
    assert [note for note in found["notes"] if "measured" in note] == ["No run measured best_of.gian, which the plan reads."]
