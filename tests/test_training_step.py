"""Whole training steps in one process: a tiny random policy that samples from the learner's own weights; all else is real."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from parts_in_process import parts_in_process
from tiny_policy import save_tiny_policy

from experiments.callbacks import CALLBACKS, Callback
from experiments.config import load
from experiments.run_state import RunState
from experiments.train import TrainingRun

SMALL = ["groups_per_step=2", "group_size=3", "rollout.max_turns=2", "rollout.max_new_tokens=6", "probe.num_dialogues=2", "probe.every=2"]


class Kept:
    """A recorder that keeps what it is given."""

    def __init__(self):
        self.taught, self.played, self.measured = [], [], []

    def teacher(self, step, records):
        self.taught += list(records)

    def dialogues(self, step, records, **_):
        self.played += list(records)

    def metrics(self, step, values):
        self.measured.append(values)

    def alarm(self, step, text):
        """Nobody looks."""


@pytest.fixture
def run(tmp_path):
    """Makes a run of the tiny policy."""
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)

    def run(*overrides: str) -> tuple[TrainingRun, Kept]:
        config = load("smoke", [f"policy.model={folder}", *SMALL, *overrides])
        parts = parts_in_process(config, folder)
        kept = Kept()
        return TrainingRun(config, parts, kept, RunState()), kept

    return run


def events(kept: Kept) -> SimpleNamespace:
    """What the teacher issued and heard, by uid."""
    uids = {kind: [each for each in kept.taught if each["event"] == kind] for kind in ("task", "outcome", "probe")}
    return SimpleNamespace(tasks=uids["task"], outcomes=uids["outcome"], probes=uids["probe"])


def test_the_dialogues_that_stop_a_run_are_left_behind(run):
    training, kept = run("rollout.max_error_share=0")

    def broke(groups):
        raise RuntimeError("too many")

    training.parts.faults.observe = broke
    with pytest.raises(RuntimeError, match="too many"):
        training.step()
    assert len(kept.played) == 6 and training.tally.step == 0


def test_the_dialogues_of_an_update_that_stops_a_run_are_left_behind(run):
    contrast = ("resampling.max_rounds=2", "resampling.contrast=reward", "teacher.strictness=0.3", "teacher.kind=fixed")
    training, kept = run("learner.num_minibatches=3", *contrast)
    observe = training.parts.teacher.observe

    def spoil_the_weights(outcomes):
        observe(outcomes)
        torch.nn.init.constant_(training.parts.learner.model.lm_head.weight, torch.nan)

    training.parts.teacher.observe = spoil_the_weights
    with pytest.raises(RuntimeError, match=r"skipped 3 optimiser steps in a row .*; then .*; then "):
        training.step()
    assert len(kept.played) >= 6 and training.tally.step == 0 and not kept.measured


def test_the_dialogues_before_a_pool_that_dies_when_groups_are_played_anew_are_left_behind(run):
    training, kept = run("resampling.max_rounds=2", "teacher.kind=uniform")
    roll_out, rounds = training.roll_out, []

    def dies_in_the_second_round(tasks):
        rounds.append(tasks)
        if len(rounds) == 2:
            raise RuntimeError("no worker is left")
        return roll_out(tasks)

    training.roll_out = dies_in_the_second_round
    with pytest.raises(RuntimeError, match="no worker is left"):
        training.step()
    assert len(kept.played) == 12 and training.tally.step == 0 and not kept.measured


def test_weights_that_do_not_arrive_stop_a_run_in_the_step_whose_dialogues_they_learned_from(run):
    training, kept = run()
    training.parts.pool.score = lambda token_ids: [[logprob - 1.0 for logprob in training.parts.learner.score(token_ids)]]
    with pytest.raises(RuntimeError, match="must reach every engine"):
        training.step()
    assert len(kept.played) == 6 and training.tally.step == 0 and not kept.measured


@pytest.mark.parametrize(("where", "expected"), [((), ["trained", "sent"]), (("cluster.address=auto",), ["trained", "given back", "sent"])])
def test_memory_is_given_back_between_an_update_and_its_weights_where_engines_may_share_the_gpu(where, expected, run):
    training, _ = run(*where)
    learner, pool, order = training.parts.learner, training.parts.pool, []
    update, load_weights = learner.update, pool.load_weights

    def noted(name, call):
        return lambda *arguments, **named: (order.append(name), call(*arguments, **named))[1]

    learner.update, pool.load_weights = noted("trained", update), noted("sent", load_weights)
    learner.give_back_memory = noted("given back", learner.give_back_memory)
    training.step()
    assert order == expected


def test_a_step_plays_its_groups_once_and_the_panel_can_be_kept_from_the_teacher(run):
    training, kept = run("probe.teaches=false")
    for _ in range(2):
        metrics, _ = training.step()
    seen = events(kept)
    assert len(seen.tasks) == len(seen.outcomes) == 4 and not seen.probes
    assert metrics["curriculum/outcomes_probes"] == 0.0
    assert not {"rollout/num_rounds", "rollout/num_groups"} & set(metrics)
    assert all(set(record["terms"]) == {"emotion"} for record in kept.played)


def test_groups_without_contrast_are_played_anew_billed_and_heard_but_not_trained_on(run):
    # A policy that speaks at random pleases nobody, so every group lacks contrast of success.
    training, kept = run("resampling.max_rounds=2", "teacher.kind=uniform")
    before = [tensor for _, tensor in training.parts.learner.weights()]
    metrics, _ = training.step()
    seen = events(kept)
    assert (metrics["rollout/num_rounds"], metrics["rollout/num_groups"]) == (2.0, 6.0)
    assert [each["uid"] for each in seen.tasks] == [each["task"] for each in seen.outcomes] and len(seen.tasks) == 6
    assert training.tally.policy_tokens == sum(sum(outcome["num_tokens"]) for outcome in seen.outcomes)
    assert metrics["curriculum/outcomes_observed"] == 6.0 and metrics["perf/trained_num_tokens"] == 0.0
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, training.parts.learner.weights(), strict=True))


def test_groups_with_contrast_are_trained_on_and_a_callback_may_move_the_weights_after_that(run, monkeypatch):
    heard = []

    @dataclass
    class Shrink(Callback):
        share: float = 0.5

        def after_update(self, training):
            heard.append(training.parts.learner.policy_version)
            for tensor in training.parts.learner.model.parameters():
                tensor.data.mul_(1.0 - self.share)

    monkeypatch.setitem(CALLBACKS, "shrink", Shrink)
    contrast = ("resampling.max_rounds=2", "resampling.contrast=reward", "teacher.strictness=0.3", "teacher.kind=fixed")
    weights = []
    for words in ([], ["callbacks.shrink.share=0.25"]):
        training, _ = run(*contrast, *words)
        start = flat(training)
        metrics, _ = training.step()
        assert metrics["perf/trained_num_tokens"] > 0.0 and training.parts.learner.policy_version == 1
        weights.append(flat(training))
    kept, shrunk = weights
    assert not torch.equal(kept, start) and heard == [1]
    torch.testing.assert_close(shrunk, 0.75 * kept)


def flat(training: TrainingRun) -> torch.Tensor:
    """All weights of the policy in one row."""
    return torch.cat([tensor.detach().flatten().clone() for _, tensor in training.parts.learner.weights()])


def test_a_teacher_hears_the_panel_every_time_it_is_played(run):
    training, kept = run()
    for _ in range(2):
        metrics, _ = training.step()
    assert [each["task"]["uid"] for each in events(kept).probes] == ["step0000002-probe000", "step0000002-probe001"]
    assert metrics["curriculum/outcomes_probes"] == 2.0 and metrics["curriculum/outcomes_observed"] == 4.0


def test_where_feedback_is_sparse_a_dialogue_is_paid_for_how_it_ended(run):
    training, kept = run("rollout.binary_reward_at=20", "algorithm.turn_credit=0")
    training.step()
    assert [record["reward"] for record in kept.played] == [float(record["terms"]["emotion"] >= 0.2) for record in kept.played]
