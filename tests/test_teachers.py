"""The contract of all teachers: propose and observe, the ledger, seeds, states, metrics, settings."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from made_trace import usable_settings
from pydantic import TypeAdapter, ValidationError
from tiny_student import make_outcome, make_stats

from curriculum import NEEDS, TEACHERS
from curriculum.__main__ import main, settings
from curriculum.allocation import AllocationConfig
from curriculum.task import Mode, Status, TaskSpec, UpdateStats, outcome_to_record
from curriculum.teacher import Teacher
from simulator.scenario import FAMILIES, Difficulty

GROUP_SIZE = 4
NAN = float("nan")


def installed(kind: str):
    missing = kind in NEEDS and find_spec(NEEDS[kind]) is None
    return pytest.param(kind, marks=pytest.mark.skipif(missing, reason=f"{kind} needs {NEEDS.get(kind)}"))


every_teacher = pytest.mark.parametrize("kind", [installed(kind) for kind in TEACHERS])


def make_teacher(kind: str, *, seed: int = 0, families=FAMILIES, num_scenarios: int = 3) -> Teacher:
    scenarios = {family: [f"{family}-{i}" for i in range(num_scenarios)] for family in families}
    return TEACHERS[kind][1](usable_settings(kind), scenarios=scenarios, group_size=GROUP_SIZE, seed=seed)


def practise(teacher, student: np.random.Generator, *, num_steps: int, first: int = 0) -> list[TaskSpec]:
    """Steps of six groups; an outcome of every seventh task never comes, and the third step of four brings no update.

    Entropy is spent too fast, and probes show mild users forgotten from the tenth step on.
    """
    issued = []
    for step in range(first, first + num_steps):
        tasks = teacher.propose(6, policy_version=step)
        issued.extend(tasks)
        successes = student.integers(0, GROUP_SIZE + 1, len(tasks))
        teacher.observe([make_outcome(task, int(n)) for i, (task, n) in enumerate(zip(tasks, successes, strict=True)) if (step + i) % 7])
        probe = replace(tasks[0], uid="probe", mode=Mode.PROBE, group_size=1, difficulty=Difficulty.along(0.2))
        teacher.observe([make_outcome(probe, int(step < 10))] * 8)
        if step % 4 != 2:
            measured = {"budget_fraction": step / 50, "entropy_forking": 0.9**step}
            teacher.on_update(make_stats(step, entropy=0.97**step, reward_density=0.96**step, **measured))
    return issued


@every_teacher
def test_proposals_are_valid_and_differ(kind):
    teacher = make_teacher(kind)
    tasks = [task for step in range(5) for task in teacher.propose(7, policy_version=step)]
    assert len({task.uid for task in tasks}) == len({task.seed for task in tasks}) == 35
    for task in tasks:
        assert task.group_size == GROUP_SIZE and task.scenario_id.startswith(str(task.family))
        assert task.difficulty == Difficulty.along(task.strictness) and 0.0 < task.propensity <= 1.0 and task.mode is not Mode.PROBE
    assert [task.policy_version for task in tasks[::7]] == [0, 1, 2, 3, 4]


@every_teacher
def test_the_same_seed_gives_the_same_tasks_and_no_other_generator_is_touched(kind):
    before = str(np.random.get_state()[2:]), random.getstate()  # noqa: NPY002
    one, two, other = (make_teacher(kind, seed=seed) for seed in (5, 5, 6))
    issued = practise(one, np.random.default_rng(0), num_steps=8)
    assert issued == practise(two, np.random.default_rng(0), num_steps=8)
    assert {task.seed for task in issued}.isdisjoint(task.seed for task in practise(other, np.random.default_rng(0), num_steps=8))
    assert before == (str(np.random.get_state()[2:]), random.getstate())  # noqa: NPY002


@every_teacher
def test_resume_is_exact_through_json(kind):
    whole, student = make_teacher(kind), np.random.default_rng(1)
    practise(whole, student, num_steps=20)
    state, student_state = json.dumps(whole.state_dict()), student.bit_generator.state
    tasks, metrics, decisions = practise(whole, student, num_steps=20, first=20), whole.metrics(), whole.decisions()
    resumed = make_teacher(kind, seed=123)
    resumed.load_state_dict(json.loads(state))
    student.bit_generator.state = student_state
    assert practise(resumed, student, num_steps=20, first=20) == tasks
    assert resumed.metrics() == metrics and resumed.decisions() == decisions
    assert json.dumps(resumed.state_dict()) == json.dumps(whole.state_dict())
    early = make_teacher(kind).state_dict()
    resumed.load_state_dict(json.loads(json.dumps(early)))
    assert resumed.state_dict() == early


@every_teacher
def test_memory_stays_flat(kind):
    # Few families, so that every window fills; a trace brings its own.
    teacher = make_teacher(kind, families=FAMILIES if kind in ("yoked", "shuffled") else FAMILIES[:2])
    sizes = []
    for step in range(300):
        tasks = teacher.propose(12, policy_version=step)
        teacher.observe([make_outcome(task, 2, rewards=(0.9, 0.9, 0.2, 0.2)) for task in tasks[:10]])
        teacher.expire([task.uid for task in tasks[10:]], reason="stale")
        teacher.decisions()
        if step % 100 >= 90:
            sizes.append(len(json.dumps(teacher.state_dict())))
    assert max(sizes[-10:]) < 1.5 * max(sizes[10:20])


@every_teacher
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(kind):
    teacher = make_teacher(kind)
    practise(teacher, np.random.default_rng(0), num_steps=12)
    other = make_teacher(kind, seed=3)
    practise(other, np.random.default_rng(3), num_steps=5)
    before, state = json.dumps(teacher.state_dict()), other.state_dict()
    refused = {
        "kind": {**state, "kind": "other"},
        "version": {**state, "version": 99},
        "settings.group_size": {**state, "settings": {**state["settings"], "group_size": 8}},
    }
    for name, bad in refused.items():
        with pytest.raises(ValueError, match=rf"teacher state\.{name} must be"):
            teacher.load_state_dict(bad)
        assert json.dumps(teacher.state_dict()) == before
    torn = json.loads(json.dumps(state))
    del torn["issued"]
    with pytest.raises(KeyError):
        teacher.load_state_dict(torn)
    assert json.dumps(teacher.state_dict()) == before


@every_teacher
def test_order_within_one_observe_does_not_matter(kind):
    forward, backward = make_teacher(kind), make_teacher(kind)
    outcomes = [make_outcome(task, i % 5) for i, task in enumerate(forward.propose(9, policy_version=0))]
    backward.propose(9, policy_version=0)
    forward.observe(outcomes)
    backward.observe(outcomes[::-1])
    assert forward.state_dict() == backward.state_dict()


@every_teacher
def test_duplicate_unknown_expired_and_relabelled_outcomes_are_counted_and_change_nothing_else(kind):
    teacher = make_teacher(kind)
    tasks = teacher.propose(4, policy_version=0)
    unknown = make_teacher(kind, seed=9).propose(8, policy_version=0)[7]
    teacher.observe([make_outcome(tasks[0], 2)])
    teacher.expire([tasks[1].uid, tasks[1].uid, "never issued"], reason="worker lost")
    before = teacher.state_dict()
    relabelled = replace(tasks[2], difficulty=Difficulty.along(0.99))
    teacher.observe([make_outcome(task, 4) for task in (tasks[0], tasks[1], unknown, relabelled)])
    after = teacher.state_dict()
    assert after["counts"].pop("ignored") == 4 and before["counts"].pop("ignored") == 0
    assert after == before
    assert teacher.metrics()["curriculum/outstanding"] == 2.0 and teacher.metrics()["curriculum/outcomes_expired"] == 1.0


@every_teacher
def test_groups_with_too_few_survivors_and_probes_are_no_practice(kind):
    teacher = make_teacher(kind)
    tasks = teacher.propose(3, policy_version=0)
    before = teacher.state_dict()
    broken = replace(make_outcome(tasks[0], 2), statuses=(Status.SIMULATOR_ERROR,) * 4, rewards=(NAN,) * 4)
    probe = make_outcome(replace(tasks[2], uid="probe-1", mode=Mode.PROBE), 4)
    teacher.observe([broken, make_outcome(tasks[1], 2, rewards=(1.0, NAN, NAN, NAN)), probe])
    after = teacher.state_dict()
    for learned in (before["learned"], after["learned"]):
        learned.pop("forgetting", None)  # the one part that takes in probes
    assert (after["learned"], after["allocation"]) == (before["learned"], before["allocation"])
    metrics = teacher.metrics()
    assert (metrics["curriculum/outcomes_too_few_survivors"], metrics["curriculum/outcomes_probes"]) == (2.0, 1.0)
    assert metrics["curriculum/outstanding"] == 1.0 and metrics["curriculum/outcomes_ignored"] == 0.0
    teacher.observe([make_outcome(tasks[2], 2, rewards=(0.9, 0.9, NAN, NAN))])
    assert teacher.metrics()["curriculum/success_share"] == 1.0


@every_teacher
def test_metrics_are_finite_and_the_delay_is_that_of_the_tasks_that_came_back(kind):
    teacher = make_teacher(kind)
    first, second = teacher.propose(2, policy_version=0), teacher.propose(2, policy_version=0)
    teacher.propose(2, policy_version=0)
    teacher.observe([make_outcome(first[0], 2)])
    assert teacher.metrics()["curriculum/in_flight_delay"] == 2.0
    teacher.observe([make_outcome(first[1], 2), make_outcome(second[0], 2)])
    assert teacher.metrics()["curriculum/in_flight_delay"] == 1.5
    practise(teacher, np.random.default_rng(0), num_steps=10)
    assert all(key.startswith("curriculum/") and np.isfinite(value) for key, value in teacher.metrics().items())
    json.dumps(teacher.decisions())


def test_policy_versions_never_fall_also_not_after_a_resume():
    teacher, resumed = make_teacher("uniform"), make_teacher("uniform")
    teacher.propose(2, policy_version=7)
    resumed.load_state_dict(teacher.state_dict())
    for version in (6, None, 7.5):
        with pytest.raises(ValueError, match="policy_version must be a whole number of at least 7"):
            resumed.propose(2, policy_version=version)
    with pytest.raises(ValueError, match="num_groups must be"):
        resumed.propose(0, policy_version=7)
    assert resumed.propose(2, policy_version=7) == teacher.propose(2, policy_version=7)


@pytest.mark.parametrize("kind", ["frontier", "target"])
def test_numbers_of_other_libraries_leave_a_state_that_json_can_hold(kind):
    teacher, again = make_teacher(kind, seed=np.int64(3)), make_teacher(kind, seed=9)
    for step in range(12):
        number = torch.tensor if step % 2 else np.float32
        tasks = teacher.propose(np.int64(6), policy_version=np.int64(step))
        teacher.observe([make_outcome(task, 2, rewards=[number(0.1 * i) for i in range(4)]) for task in tasks])
        # Falling entropy and density make target's guard decide, and a decision records its step.
        stats = make_stats(step, entropy=number(0.8**step), reward_density=number(0.8**step))
        teacher.on_update(replace(stats, step=np.int64(step)))
    again.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    assert again.propose(6, policy_version=12) == teacher.propose(6, policy_version=12)


@every_teacher
def test_every_setting_has_a_note_and_refuses_other_types_and_values_by_name(kind):
    config, _ = TEACHERS[kind]
    for name, default, note in settings(config(), "teacher"):
        assert note, name
        bad = ["perhaps"] if isinstance(default, bool) else [7] if isinstance(default, str) else [1e9, -1e9, NAN, "much"]
        for value in bad:
            tree: object = [value] if isinstance(default, list) else value
            for part in reversed(name.split(".")[1:]):
                tree = {part: tree}
            with pytest.raises(ValidationError) as refused:
                TypeAdapter(config).validate_python(tree)
            first = refused.value.errors()[0]
            assert name.rpartition(".")[2] in (*first["loc"], *str(first["msg"]).replace("teacher.", "").split()), name


def test_settings_that_contradict_each_other_are_refused():
    for kind, given, name in (
        ("uniform", {"low": 0.6, "high": 0.4}, "teacher.low"),
        ("rlve", {"reversible": True, "threshold": 0.2}, "teacher.lower_threshold"),
        ("adr", {"lower_at": 0.3, "raise_at": 0.2}, "teacher.lower_at"),
        ("staged", {"strictness": []}, "teacher.strictness"),
        ("sec", {"axes": 3, "num_bins": 20}, "teacher.num_bins"),
        ("sec", {"axes": 2}, "axes"),
        ("yoked", {"allocation": AllocationConfig(uniform_floor=0.25)}, "teacher.allocation"),
        ("sec", {"scope": "flat", "allocation": AllocationConfig(uniform_floor=0.25)}, "teacher.allocation"),
    ):
        with pytest.raises(ValueError, match=name):
            TEACHERS[kind][0](**given)


@pytest.mark.parametrize("scenarios", [{}, {FAMILIES[0]: []}, {"algebra": "a17"}])
def test_families_that_a_state_could_not_hold_and_groups_of_one_are_refused(scenarios):
    config, teacher = TEACHERS["uniform"]
    with pytest.raises(ValueError, match=r"teacher\.scenarios"):
        teacher(config(), scenarios=scenarios, group_size=4, seed=0)
    with pytest.raises(ValueError, match=r"teacher\.group_size"):
        teacher(config(), scenarios={"algebra": ["a"]}, group_size=1, seed=0)


def test_families_take_turns_and_scenarios_repeat_only_after_all_were_used():
    teacher = make_teacher("uniform")
    rounds = [teacher.propose(24, policy_version=0) for _ in range(6)]
    assert all({task.family for task in tasks} == set(FAMILIES) for tasks in rounds)
    for three in (rounds[:3], rounds[3:]):
        assert set(Counter(task.scenario_id for tasks in three for task in tasks).values()) == {1}
    assert [task.family for task in rounds[0]] != [task.family for task in rounds[1]]


def test_the_metric_of_strictness_covers_all_proposals_of_a_step_also_across_a_resume():
    teacher, resumed = make_teacher("uniform"), make_teacher("uniform", seed=1)
    tasks = teacher.propose(6, policy_version=0)
    resumed.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    issued = [task.strictness for task in [*tasks, *resumed.propose(3, policy_version=0)]]
    metrics = resumed.metrics()
    assert (metrics["curriculum/strictness"], metrics["curriculum/strictness_std"]) == pytest.approx((np.mean(issued), np.std(issued)))
    resumed.observe([make_outcome(task, 2) for task in tasks])
    issued = [task.strictness for task in resumed.propose(4, policy_version=1)]
    assert resumed.metrics()["curriculum/strictness"] == pytest.approx(np.mean(issued))


def test_a_task_has_one_difficulty_and_survives_json():
    task = make_teacher("uniform").propose(1, policy_version=3)[0]
    assert TaskSpec.from_dict(json.loads(json.dumps(task.to_dict()))) == task
    assert task.to_dict()["strictness"] == task.strictness and replace(task, mode="replay").mode is Mode.REPLAY
    apart = replace(task, difficulty=Difficulty(strictness=0.1, reserve=0.3, impatience=0.5))
    assert apart.strictness == pytest.approx(0.3)


def test_an_outcome_must_add_up():
    task = make_teacher("fixed").propose(1, policy_version=0)[0]
    outcome = make_outcome(task, 2)
    for column, values in {"statuses": ("banana",) * 4, "rewards": (7.0, 0, 0, 0), "successes": (0.5, 0, 1, 0)}.items():
        with pytest.raises(ValueError, match=rf"outcome\.{column}"):
            replace(outcome, **{column: values})
    with pytest.raises(TypeError, match="evaluation never reaches a teacher"):
        make_teacher("fixed").observe([{"score": 0.9}])
    with pytest.raises(ValueError, match=r"update\.entropy"):
        UpdateStats(**{**vars(make_stats(1)), "entropy": None})
    torn = replace(outcome, statuses=("simulator_error", "ok", "ok", "truncated"), successes=(False, True, False, True))
    assert torn.surviving == (1, 2, 3) and torn.success_rate == pytest.approx(2 / 3) and torn.mean_reward == pytest.approx(1 / 3)
    assert outcome_to_record(torn)["success_share"] == torn.success_rate and outcome_to_record(torn)["task"] == task.uid


def test_the_command_lists_teachers_with_settings_and_ranges(capsys):
    assert main(["teachers"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{kind}: " in listed for kind in TEACHERS)
    assert "  teacher.guard.entropy_low=0.8\n      (0, 1]: " in listed
    assert main(["teachers", "frontal"]) == 2 and "got 'frontal'" in capsys.readouterr().err
