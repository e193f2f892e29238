"""Training steps of a tiny policy, all real but for Ray: tasks, updates, observations, records, and the faults that stop a run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from parts_in_process import SMALL, InProcessPool, components_in_process, tiny_run
from policy_factories import group, rollout
from tiny_policy import save_tiny_policy
from tiny_student import make_outcome, make_task, make_teacher

from analysis.tensorboard import PAGES
from curriculum.collapse.history import INDICATOR_METRICS
from curriculum.task import Mode, UpdateStats
from experiments.callbacks import CALLBACKS, Callback
from experiments.config import load
from experiments.prefetch import LANE, RolloutPrefetcher
from experiments.run_state import RunState
from experiments.train import StepData, TrainingRun
from policy.checkpoint import save_checkpoint
from simulator.dialogue import Outcome

CONTRAST_OF_REWARD = ("resampling.max_rounds=2", "resampling.contrast=reward", "teacher.kind=fixed", "teacher.strictness=0.3")
"""A random policy never succeeds, so its groups lack contrast of success; most have it of reward."""


def steps(run: TrainingRun, number: int) -> list[dict[str, float]]:
    return [run.step()[0] for _ in range(number)]


def weights_of(run: TrainingRun) -> torch.Tensor:
    """All weights of the policy in one row."""
    return torch.cat([tensor.detach().flatten().clone() for _, tensor in run.components.learner.weights()])


def uids(items: Iterable) -> list[str]:
    return [item.uid for item in items]


def test_two_steps_answer_every_task_count_every_token_and_play_the_panel_in_the_second(training):
    run = training()
    _, metrics = steps(run, 2)
    kept = run.recorder
    assert uids(kept.tasks) == [f"step{step:07d}-group{number:04d}" for step in (1, 2) for number in (0, 1)]
    assert uids(kept.tasks) == [outcome.task.uid for outcome in kept.outcomes] == [played.task.uid for played in kept.groups]
    assert list(kept.panels) == [2] and [probe.task.uid for probe in kept.probes] == ["step0000002-probe000", "step0000002-probe001"]
    everything = [each for played in [*kept.groups, *kept.panels[2]] for each in played.rollouts]
    assert run.state.policy_tokens == metrics["perf/policy_tokens"] == sum(each.num_sampled for each in everything)
    assert run.state.simulator_calls == sum(1 + each.dialogue.num_replies for each in everything)
    assert metrics["curriculum/outcomes_probes"] == 2 and metrics["curriculum/outcomes_observed"] == 4
    assert metrics["rollout/arrival_logprob_diff"] < 1e-5 and metrics["training/rollout_logprob_abs_diff_max"] < 1e-4
    assert run.components.pool.sent == [1, 2] and metrics["training/policy_version"] == 2
    assert "probe/reward" in metrics and "rollout/num_rounds" not in metrics
    untaught = training("probe.teaches=false", "probe.at_start=true")
    assert [metrics["curriculum/outcomes_probes"] for metrics in steps(untaught, 2)] == [0, 0]
    assert list(untaught.recorder.panels) == [1, 2] and not untaught.recorder.probes


def test_the_same_seed_gives_the_same_steps_and_another_seed_others(training):
    once, again, other = (steps(training("rollout.deterministic=true", f"seed={seed}"), 2)[1] for seed in (0, 0, 1))
    timed = ("timing_s/", "perf/update_")
    assert {k: v for k, v in once.items() if not k.startswith(timed)} == pytest.approx(
        {k: v for k, v in again.items() if not k.startswith(timed)}, nan_ok=True, rel=0, abs=0
    )
    assert once["reward/mean"] != other["reward/mean"]


def test_teacher_and_collapse_monitor_observe_each_step(training, monkeypatch):
    run, updates, seen = training(), [], []
    monkeypatch.setattr(run.components.teacher, "on_update", updates.append)
    observe = run.components.collapse.observe
    monkeypatch.setattr(run.components.collapse, "observe", lambda step, values: (seen.append(set(values)), observe(step, values))[1])
    first, second = steps(run, 2)
    assert [(type(stats), stats.step, stats.policy_version) for stats in updates] == [(UpdateStats, 1, 1), (UpdateStats, 2, 2)]
    assert [stats.entropy for stats in updates] == [first["actor/entropy"], second["actor/entropy"]]
    assert run.recorder.updates == [asdict(stats) for stats in updates]
    # Every indicator, but in a step without the panel those of it.
    of_the_panel = {name for name, key in INDICATOR_METRICS.items() if key.startswith("probe/")}
    assert seen == [set(INDICATOR_METRICS) - of_the_panel, set(INDICATOR_METRICS)]


def test_entropy_that_the_budget_affords_falls_by_equal_ratios_to_a_tenth_of_its_start(training):
    run = training("budget.steps=4")
    found = steps(run, 2)
    assert run.recorder.updates[1]["budget_fraction"] == 0.25
    for number, (metrics, update) in enumerate(zip(found, run.recorder.updates, strict=True), 1):
        start = sum(each["actor/entropy"] for each in found[:number]) / number
        assert metrics["curriculum/entropy_affordable"] == pytest.approx(start * 0.1 ** update["budget_fraction"])


@pytest.mark.parametrize("model", ["a language model", "embedded"])
def test_every_model_logs_the_metrics_of_the_first_page(training, model):
    run = training(*(["policy.model=embedded"] if model == "embedded" else []))
    _, metrics = steps(run, 2)
    asked = [tag for _, *tags in PAGES[0]["charts"] for tag in tags if not tag.startswith(("eval/", "curriculum/recent/"))]
    assert [tag for tag in asked if not any(re.fullmatch(tag, key) for key in metrics)] == []


def test_the_learning_rate_falls_with_the_budget(training):
    rates = [metrics["actor/lr"] for metrics in steps(training("learner.lr=0.001", "learner.lr_end=0.2", "budget.steps=4"), 4)]
    # Before the updates 0, 1/4, 2/4 and 3/4 of the budget are used.
    assert rates == pytest.approx([0.001, 0.0008, 0.0006, 0.0004], rel=1e-3)


def test_a_callback_acts_between_the_update_and_the_engines(training, monkeypatch):
    versions = []

    @dataclass
    class Shrink(Callback):
        share: float = 0.5

        def after_update(self, run):
            versions.append((run.components.learner.policy_version, list(run.components.pool.sent)))
            for tensor in run.components.learner.model.parameters():
                tensor.data.mul_(1.0 - self.share)

    monkeypatch.setitem(CALLBACKS, "shrink", Shrink)
    plain, shrunk = training(), training("callbacks.shrink.share=0.25")
    for run in (plain, shrunk):
        run.step()
    assert versions == [(1, [])]
    torch.testing.assert_close(weights_of(shrunk), 0.75 * weights_of(plain))


ORDER = [
    ((), ["trained", "sent"]),
    (("cluster.address=auto",), ["trained", "freed", "sent"]),
    (("cluster.address=auto", "sleep"), ["slept", "trained", "freed", "sent"]),
]


@pytest.mark.parametrize(("where", "expected"), ORDER)
def test_memory_is_freed_before_weights_are_sent_where_engines_may_share_the_gpu(training, where, expected, monkeypatch):
    run, order = training(*(word for word in where if word != "sleep")), []
    run.config.policy.sleep = "sleep" in where  # refused without a GPU
    for owner, method, name in (
        (run.components.learner, "update", "trained"),
        (run.components.learner, "give_back_memory", "freed"),
        (run.components.pool, "load_weights", "sent"),
        (run.components.pool, "sleep", "slept"),
    ):
        call = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *a, call=call, name=name, **k: (order.append(name), call(*a, **k))[1])
    run.step()
    assert order == expected


# Which groups are trained on ----------------------------------------------------------------------------------------------------


def test_groups_issued_for_their_score_alone_are_not_trained_on():
    teacher = make_teacher("plr")
    tasks = [make_task(teacher, 0.5, mode=mode) for mode in (Mode.UNLEARNED, Mode.REPLAY, Mode.UNIFORM)]
    groups = [replace(group(rollout([1, i], [0, 1])), task=task) for i, task in enumerate(tasks)]
    data = StepData(proposed=[], groups=groups, outcomes=[make_outcome(task, 1) for task in tasks], stale=[], panel=[])
    assert [kept for kept, _ in data.trainable()] == groups[1:]


@pytest.mark.parametrize(("contrast", "kept"), [("success", [1]), ("reward", [0, 1])])
def test_contrast_is_of_success_or_of_reward_among_rollouts_that_did_not_break(training, contrast, kept):
    teacher, nan = make_teacher("uniform"), float("nan")
    # None succeeds, three succeed, one alone did not break.
    outcomes = [make_outcome(make_task(teacher, 0.5), number, rewards=[number / 10 + i / 100 for i in range(8)]) for number in (0, 3)]
    outcomes.append(make_outcome(make_task(teacher, 0.5), 1, rewards=[1.0] + [nan] * 7))
    groups = [replace(group(rollout([1, i], [0, 1])), task=outcome.task) for i, outcome in enumerate(outcomes)]
    run = training("resampling.max_rounds=1", f"resampling.contrast={contrast}", "teacher.kind=uniform")
    data = StepData(proposed=[], groups=groups, outcomes=outcomes, stale=[], panel=[])
    assert run.with_contrast(data) == [groups[i] for i in kept]


def test_groups_without_contrast_are_replaced_counted_and_observed_but_not_trained_on(training):
    run = training("resampling.max_rounds=2", "teacher.kind=uniform")
    before = weights_of(run)
    metrics, _ = run.step()
    assert (metrics["rollout/num_rounds"], metrics["rollout/num_groups"]) == (2, 6)
    assert len(run.recorder.tasks) == 6 and uids(run.recorder.tasks) == [outcome.task.uid for outcome in run.recorder.outcomes]
    assert run.state.policy_tokens == sum(sum(outcome.num_tokens) for outcome in run.recorder.outcomes)
    assert metrics["curriculum/outcomes_observed"] == 6 and metrics["perf/trained_num_tokens"] == 0
    assert torch.equal(before, weights_of(run)) and run.components.learner.policy_version == 0
    metrics, _ = training(*CONTRAST_OF_REWARD).step()
    assert metrics["perf/trained_num_tokens"] > 0 and metrics["training/policy_version"] == 1


def test_only_as_many_groups_are_replaced_as_lack_contrast(training, monkeypatch):
    run, asked = training("resampling.max_rounds=5", "teacher.kind=uniform", "groups_per_step=3"), []
    # One of the first three has contrast, then one of two more, then the last.
    lacking = [2, 1, 0, 0]
    monkeypatch.setattr(run, "with_contrast", lambda data: data.groups[: 3 - lacking[data.num_rounds]])
    propose = run.components.teacher.propose
    monkeypatch.setattr(run.components.teacher, "propose", lambda n, **k: (asked.append(n), propose(n, **k))[1])
    metrics, _ = run.step()
    assert asked == [3, 2, 1] and (metrics["rollout/num_rounds"], metrics["rollout/num_groups"]) == (2, 6)


# Steps rolled out ahead ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_staleness", [0, 3])
def test_no_token_is_older_than_the_bound_and_nothing_is_begun_beyond_the_budget(training, max_staleness):
    run = training(f"rollout.max_staleness={max_staleness}", "budget.steps=6")
    course = steps(run, 6)
    ages = [metrics["off_policy/max"] for metrics in course]
    assert max(ages) == max_staleness and ages[0] == 0 and not any(metrics["off_policy/dropped"] for metrics in course)
    assert len(run.recorder.tasks) == 12 and uids(run.recorder.tasks) == [outcome.task.uid for outcome in run.recorder.outcomes]
    assert sorted(run.recorder.panels) == [2, 4, 6]
    assert run.components.teacher.metrics()["curriculum/outstanding"] == 0 and run.prefetcher.records() == []


class AgedPool(InProcessPool):
    """Its engines lag five versions behind."""

    def ready(self, num_groups, *, lane=""):
        return [replace(each, rollouts=tuple(map(aged, each.rollouts))) for each in super().ready(num_groups, lane=lane)]


def aged(played):
    return replace(played, policy_versions=(-5, -5), reply_versions=(-5,) * len(played.reply_versions))


def test_groups_that_are_too_old_expire_recorded_and_counted_and_ten_such_steps_stop_a_run(training):
    run = training("rollout.max_staleness=1", pool=AgedPool)
    with pytest.raises(RuntimeError, match="10 steps in a row"):
        steps(run, 10)
    kept = run.recorder
    assert [metrics["off_policy/dropped"] for metrics in kept.steps.values()] == [2] * 9
    assert kept.groups == kept.outcomes == [] and len(kept.stale) == 20 and run.state.policy_tokens > 0
    expired = [decision for decision in kept.decisions if decision["decision"] == "expire"]
    assert [decision["uid"] for decision in expired] == uids(kept.tasks)[:18]
    assert "rollout.max_staleness=1" in expired[0]["reason"]


def test_steps_are_taken_in_their_order_from_a_lane_of_their_own():
    lanes, names = {}, iter("abcdefgh")

    def ready(num_groups, *, lane):
        taken, lanes[lane] = lanes[lane][:num_groups], lanes[lane][num_groups:]
        return taken

    pool = SimpleNamespace(submit=lambda tasks, *, lane: lanes.setdefault(lane, []).extend(tasks), ready=ready)
    ahead = RolloutPrefetcher(
        pool, max_staleness=1, last_step=3, propose=lambda: [next(names), next(names)], panel=lambda step: ["probe"] * (step == 2)
    )
    assert ahead.fill(1) == ["a", "b", "c", "d"] and lanes == {LANE: ["a", "b", "c", "d", "probe"]}
    assert ahead.take() == (["a", "b"], [])
    assert ahead.fill(2) == ["e", "f"] and ahead.take() == (["c", "d"], ["probe"])
    assert ahead.fill(3) == [] and ahead.take() == (["e", "f"], [])


def test_what_users_cost_outside_of_steps_goes_into_the_checkpoint(training):
    run = training()
    run.components.pool.cost = 5.0
    run.usage.count_cost()
    run.components.pool.cost = 7.0
    run.usage.count_cost()
    assert run.state.simulator_cost == 7.0
    resumed = training(state=RunState(simulator_cost=5.0))
    resumed.components.pool.cost = 1.0
    assert resumed.step()[0]["simulator/cost"] == 6.0 == resumed.state.simulator_cost


# What stops a run ----------------------------------------------------------------------------------------------------------------


def stops(run: TrainingRun, match: str) -> None:
    """The next step raises, leaves its dialogues and nothing else."""
    before, played = run.state.step, len(run.recorder.groups)
    with pytest.raises(RuntimeError, match=match):
        run.step()
    assert len(run.recorder.groups) > played and run.state.step == before and before + 1 not in run.recorder.steps


def test_engines_that_sample_by_other_weights_stop_a_run(training):
    class Doubting(InProcessPool):
        def ready(self, num_groups, *, lane=""):
            return [replace(each, rollouts=tuple(map(doubted, each.rollouts))) for each in super().ready(num_groups, lane=lane)]

    def doubted(played):
        return replace(played, rollout_logprobs=played.rollout_logprobs - 0.01 * played.loss_mask)

    stops(training(pool=Doubting), "engines must sample by the learner's weights of version 0")
    for inexact in ("rollout.max_staleness=1", "learner.autocast=true"):
        training(inexact, pool=Doubting).step()


def test_weights_that_do_not_arrive_stop_a_run(training, monkeypatch):
    run = training()
    monkeypatch.setattr(run.components.pool, "score", lambda ids: [[logprob - 1.0 for logprob in run.components.learner.score(ids)]])
    stops(run, "weights of version 1 must reach every engine")


def test_broken_dialogues_stop_a_run(training, monkeypatch):
    run = training("rollout.max_error_share=0", "rollout.retries=0", "rollout.dialogue_timeout_s=0.0001")
    stops(run, "at most 0 of the last 200 dialogues may break, got 6.*rollout.max_error_share")


def test_weights_that_are_no_numbers_stop_a_run(training, monkeypatch):
    run = training("learner.num_minibatches=3", *CONTRAST_OF_REWARD)
    observe = run.components.teacher.observe

    def spoil_the_weights(outcomes):
        observe(outcomes)
        torch.nn.init.constant_(run.components.learner.model.lm_head.weight, torch.nan)

    monkeypatch.setattr(run.components.teacher, "observe", spoil_the_weights)
    stops(run, "skipped 3 optimiser steps in a row")


# Components from a checkpoint ----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint after a step whose components differ from new ones in every respect."""
    run = tiny_run(tmp_path / "tiny", "algorithm.kl_coef=0.1")
    run.step()
    parts = run.components
    parts.collapse.observe(2, {"entropy": 0.5, "reward_density": 0.25})
    parts.errors.observe([group(*(rollout([1], [1], outcome=Outcome.ERROR) for _ in range(3)))])
    with torch.no_grad():
        for tensor in parts.learner.model.parameters():
            tensor.add_(1.0)
    names = {"learner": "learner", "teacher": "teacher", "collapse": "collapse", "errors": "faults"}
    state = {"run": asdict(run.state), **{key: getattr(parts, name).state_dict() for name, key in names.items()}}
    place = tmp_path / "checkpoints" / "step_1"
    save_checkpoint(place, model=parts.learner.model, tokenizer=parts.tokenizer, state=state)
    parts.pool.close()
    return run, place


def test_a_resumed_run_has_its_learner_teacher_alarms_and_errors_and_the_first_weights_as_reference(checkpoint):
    run, place = checkpoint
    before, again = run.components, components_in_process(run.config, checkpoint=place)
    for name in ("teacher", "collapse", "errors"):
        assert getattr(again, name).state_dict() == getattr(before, name).state_dict(), name
    assert again.learner.policy_version == 1 and again.errors.counts()["excluded_dialogues"] == 3
    assert again.collapse.state_dict() != components_in_process(run.config).collapse.state_dict()
    for name, tensor in before.learner.model.named_parameters():
        assert torch.equal(again.learner.model.get_parameter(name), tensor), name
    for name, tensor in before.learner.reference.named_parameters():
        assert torch.equal(again.learner.reference.get_parameter(name), tensor), name


def test_workers_are_given_the_system_prompt_and_the_learner_the_temperature(training, tmp_path):
    folder = save_tiny_policy(tmp_path / "other", hidden=32, layers=1)
    given = {}

    class Asked(InProcessPool):
        def __init__(self, *configs, **facts):
            given.update(facts)

    components_in_process(load("smoke", [f"policy.model={folder}", *SMALL, "policy.system_prompt=Listen."]), pool=Asked)
    assert given["system_prompt"] == "Listen." and given["model_folder"] == folder and given["seed"] == 0
    # At another temperature the learner would not agree with the engine.
    assert training("rollout.temperature=0.7").step()[0]["training/rollout_logprob_abs_diff_max"] < 1e-4


def test_a_lone_survivor_of_a_group_is_of_use_only_where_siblings_are_not_compared(tmp_path):
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    lone = group(rollout([1, 2], [0, 1]), rollout([1, 2], [0, 1], outcome=Outcome.ERROR))
    for kind, is_stopped in (("grpo", True), ("ppo", False)):
        words = [f"policy.model={folder}", *SMALL, f"algorithm.kind={kind}", "rollout.max_error_share=1"]
        errors = components_in_process(load("smoke", words)).errors
        for _ in range(9):
            errors.observe([lone])
        with pytest.raises(RuntimeError, match="10 steps in a row") if is_stopped else nullcontext():
            errors.observe([lone])
