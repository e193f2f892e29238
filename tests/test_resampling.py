"""DAPO's filter: groups without contrast are replaced within a step, heard by the teacher, and not trained on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tiny_student import make_outcome, make_task, make_teacher

from curriculum.task import Mode
from experiments.config import Contrast, ResamplingConfig, load
from experiments.errors import ConfigError
from experiments.train import TrainingRun


def outcome(num_successes: int):
    """A group of eight of which so many succeeded."""
    teacher = make_teacher("uniform")
    return make_outcome(make_task(teacher, 0.5, mode=Mode.UNIFORM), num_successes)


def test_contrast_is_of_success_or_of_reward():
    alike, mixed = outcome(0), outcome(3)
    by_success, by_reward = ResamplingConfig(max_rounds=1), ResamplingConfig(max_rounds=1, contrast=Contrast.REWARD)
    assert not by_success.differ(alike) and by_success.differ(mixed)
    assert by_reward.differ(mixed) and not by_reward.differ(alike)


def test_nothing_is_left_out_where_nothing_is_replaced():
    outcomes = [outcome(0), outcome(3), outcome(8)]
    assert ResamplingConfig().with_contrast(["a", "b", "c"], outcomes) == ["a", "b", "c"]
    assert ResamplingConfig(max_rounds=1).with_contrast(["a", "b", "c"], outcomes) == ["b"]


class Proposer:
    """Notes how many tasks were asked for, and hands out tasks that are outcomes already."""

    def __init__(self, outcomes):
        self.left, self.asked = list(outcomes), []

    def propose(self, num_groups, *, policy_version):
        self.asked.append(num_groups)
        return [SimpleNamespace(task=None, outcome=self.left.pop(0)) for _ in range(num_groups)]


def play(outcomes, *, max_rounds, monkeypatch):
    """A step of three groups; returns what was asked of the teacher, the groups played and the rounds."""
    monkeypatch.setattr("experiments.train.measure", lambda group, success_emotion: group.outcome)
    teacher = Proposer(outcomes)
    parts = SimpleNamespace(teacher=teacher, learner=SimpleNamespace(policy_version=0))
    config = SimpleNamespace(resampling=ResamplingConfig(max_rounds=max_rounds), teacher=SimpleNamespace(success_emotion=70.0))
    run = SimpleNamespace(config=config, parts=parts, roll_out=list)
    tasks = teacher.propose(3, policy_version=0)
    groups, found = list(tasks), [task.outcome for task in tasks]
    num_rounds = TrainingRun.play_anew(run, tasks, groups, found)
    assert len(tasks) == len(groups) == len(found)
    return teacher.asked, len(groups), num_rounds


def test_a_step_plays_until_it_has_as_many_groups_with_contrast_as_it_has_groups(monkeypatch):
    outcomes = [outcome(number) for number in (3, 0, 8, 0, 4, 5)]
    assert play(outcomes, max_rounds=5, monkeypatch=monkeypatch) == ([3, 2, 1], 6, 2)
    assert play(outcomes, max_rounds=0, monkeypatch=monkeypatch) == ([3], 3, 0)


def test_a_step_gives_up_after_its_rounds(monkeypatch):
    assert play([outcome(0)] * 9, max_rounds=2, monkeypatch=monkeypatch) == ([3, 3, 3], 9, 2)


@pytest.mark.parametrize("kind", ["linear", "staged", "yoked", "shuffled", "vcrl", "sfl"])
def test_teachers_with_a_plan_are_refused(kind):
    with pytest.raises(ConfigError, match=f"resampling.max_rounds must be 0 with teacher.kind={kind}, got 2"):
        load("smoke", [f"teacher.kind={kind}", "resampling.max_rounds=2"])
