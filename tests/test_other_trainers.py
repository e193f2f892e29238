"""What another trainer hands in: its own kinds of numbers and names, text for enums, and what must be refused before it does harm."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum

import numpy as np
import pytest
import torch
from made_trace import write_trace
from tiny_student import make_outcome

from curriculum import TEACHERS
from curriculum.replayed import append_tasks, read_trace
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, UpdateStats
from curriculum.teacher import LedgerTeacher

KINDS = sorted(TEACHERS.keys() - {"yoked", "shuffled"})
SCENARIOS = {"algebra": ["a1", "a2"], "geometry": ["g1", "g2", "g3"]}


class Subject(str, Enum):  # noqa: UP042 (as older code writes them)
    ALGEBRA = "algebra"


def make_teacher(kind: str = "frontier", *, scenarios=SCENARIOS, group_size=4, seed=0) -> LedgerTeacher:
    config, teacher = TEACHERS[kind]
    return teacher(config(), scenarios=scenarios, group_size=group_size, seed=seed)


def outcome_of(task: TaskSpec, **columns) -> GroupOutcome:
    usual = make_outcome(task, 2)
    return GroupOutcome(
        task=task, **{name: columns.get(name, getattr(usual, name)) for name in ("rewards", "successes", "num_tokens", "statuses")}
    )


def stats(step: int, **changed) -> UpdateStats:
    usual = {"entropy": 1.0, "entropy_sampled": 1.0, "reward_density": 0.5, "zero_variance_share": 0.2, "kl": 0.01}
    return UpdateStats(step=step, policy_version=step, **{**usual, **changed})


@pytest.mark.parametrize("number", [np.float32, torch.tensor])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_can_be_saved_whatever_kind_of_numbers_came_in(kind, number):
    teacher = make_teacher(kind, group_size=np.int64(4), seed=np.int64(3))
    rng = np.random.default_rng(0)
    for step in range(12):
        tasks = teacher.propose(np.int64(6), policy_version=np.int64(step))
        outcomes = [
            outcome_of(
                task,
                rewards=[number(reward) for reward in rng.random(4)],
                successes=[np.bool_(solved) for solved in rng.random(4) < 0.5],
                num_tokens=np.array([5, 6, 7, 8]),
            )
            for task in tasks
        ]
        teacher.observe(outcomes)
        # Entropy and density that fall make the guard decide, and a decision remembers its step.
        falling = number(0.8**step)
        update = stats(step, entropy=falling, reward_density=falling)
        teacher.on_update(replace(update, step=np.int64(step), policy_version=np.int64(step)))
    state = json.loads(json.dumps(teacher.state_dict()))
    again = make_teacher(kind, seed=9)
    again.load_state_dict(state)
    assert again.propose(6, policy_version=12) == teacher.propose(6, policy_version=12)


def test_a_status_or_a_mode_may_be_the_text_that_a_record_holds():
    teacher = make_teacher()
    task = teacher.propose(1, policy_version=0)[0]
    broken = outcome_of(task, successes=(False, True, False, True), statuses=("simulator_error", "ok", "ok", "truncated"))
    assert broken.surviving == (1, 2, 3) and broken.success_share == pytest.approx(2 / 3)
    assert outcome_of(task, statuses=("simulator_error",) * 4).surviving == ()
    teacher.observe([outcome_of(replace(task, uid="panel-0", mode="probe"))])
    assert teacher.metrics()["curriculum/outcomes_probes"] == 1.0 and teacher.metrics()["curriculum/outcomes_ignored"] == 0.0
    with pytest.raises(ValueError, match=r"outcome.statuses must be in \{ok, truncated, simulator_error\}, got 'banana'"):
        outcome_of(task, statuses=("banana",) * 4)
    with pytest.raises(ValueError, match=r"task.mode must be in \{frontier, .*\}, got 'exam'"):
        replace(task, mode="exam")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"successes": (float("nan"), False, True, False)}, r"outcome.successes must be true or false for every rollout, got nan"),
        ({"successes": (7.0, 0, 3.0, 0)}, r"outcome.successes must be true or false for every rollout, got 7.0"),
        ({"rewards": (0.1, None, 0.3, 0.2)}, r"outcome.rewards must be in \[0, 1\], or NaN for a rollout that broke, got None"),
        (
            {"rewards": (0.1,) * 9, "successes": (True,) * 9, "num_tokens": (1,) * 9, "statuses": (Status.OK,) * 9},
            r"outcome must have every rollout of its task, those that broke marked by their status, got 9 of 4",
        ),
    ],
)
def test_a_group_that_is_none_is_refused(columns, said):
    with pytest.raises(ValueError, match=said):
        outcome_of(make_teacher().propose(1, policy_version=0)[0], **columns)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_the_guard_passes_over_what_is_no_measurement(value):
    teacher = make_teacher()
    for step in range(12):
        teacher.propose(2, policy_version=step)
        teacher.on_update(stats(step, entropy=value if step == 5 else 1.0, reward_density=0.4))
    make_teacher().load_state_dict(json.loads(json.dumps(teacher.state_dict())))


def test_an_update_without_a_number_says_which():
    with pytest.raises(ValueError, match=r"update.entropy must be a number, NaN where there is none, got None"):
        stats(1, entropy=None)


@pytest.mark.parametrize("kind", KINDS)
def test_versions_of_the_policy_never_fall_not_even_after_a_resume(kind):
    teacher = make_teacher(kind)
    teacher.propose(2, policy_version=7)
    resumed = make_teacher(kind)
    resumed.load_state_dict(teacher.state_dict())
    for each in (teacher, resumed):
        before = each.state_dict()
        for version in (0, 6, None, "v8", 7.5):
            with pytest.raises(ValueError, match=r"policy_version must be a whole number of at least 7, got"):
                each.propose(2, policy_version=version)
        assert each.state_dict() == before
        each.propose(2, policy_version=7)


@pytest.mark.parametrize(
    ("scenarios", "said"),
    [
        ({0: ["a"], 1: ["b"]}, r"must name each family by text, got 0"),
        ({Subject.ALGEBRA: ["a"]}, r"must name each family by text that a saved state can hold, got <Subject.ALGEBRA"),
        ({"advice/negative": ["a"]}, r"must give Attune's own families as Family.parse\(...\), got the text 'advice/negative'"),
        ({"algebra": "a17"}, r"must give each family a list of ids, each of them text, got 'a17' for 'algebra'"),
        ({"algebra": [1, 2]}, r"must give each family a list of ids, each of them text, got \[1, 2\]"),
        ({"algebra": np.arange(5)}, r"must give each family a list of ids, each of them text, got array"),
        (["algebra"], r"must be a mapping from families to scenario ids, got list"),
    ],
)
def test_names_that_a_saved_state_could_not_hold_are_refused(scenarios, said):
    with pytest.raises(ValueError, match=r"teacher.scenarios " + said):
        make_teacher(scenarios=scenarios)


def test_a_record_that_a_resumed_trainer_went_on_with_can_be_followed(tmp_path):
    teacher = make_teacher()
    steps = [teacher.propose(4, policy_version=step) for step in range(6)]
    again = make_teacher(seed=5)
    again.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    later = [again.propose(4, policy_version=6)]
    smooth = read_trace(str(write_trace(tmp_path / "smooth.jsonl", [*steps, *later])), families=tuple(SCENARIOS), seed=1)
    assert smooth.num_steps == 7
    whole = [*steps, *later]
    for name, crashed in {
        "two steps back": [*steps, *steps[4:], *later],
        "torn, one step back": [*steps[:5], steps[5][:2], *steps[4:], *later],
        "the same step": [*steps, steps[5], *later],
        "the same step, torn": [*steps[:5], steps[5][:2], steps[5], *later],
        "the first step": [steps[0], *whole],
        "the first step, torn": [steps[0][:1], *whole],
        "the last step": [*whole, *later],
        "twice": [*steps[:5], steps[5][:3], steps[5][:1], steps[5], *later],
    }.items():
        path = tmp_path / f"{name}.jsonl"
        for tasks in crashed:
            append_tasks(str(path), tasks)
        assert read_trace(str(path), families=tuple(SCENARIOS), seed=1).digest == smooth.digest, name


def test_a_name_in_adapting_that_is_no_attribute_is_said_at_the_first_proposal():
    config, frontier = TEACHERS["uniform"]

    class Misspelt(frontier):
        adapting = ("levle",)

    teacher = Misspelt(config(), scenarios=SCENARIOS, group_size=4, seed=0)
    with pytest.raises(ValueError, match=r"Misspelt.adapting must name attributes of the teacher, got \['levle'\]"):
        teacher.propose(2, policy_version=0)


def test_modes_of_a_record_are_the_enum_again():
    task = make_teacher().propose(1, policy_version=0)[0]
    assert replace(task, mode="replay").mode is Mode.REPLAY
