"""Teachers that follow another run's trace, in its order or shuffled; traces that cannot be followed are refused."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from made_trace import any_trace, record, write_trace
from tiny_student import make_outcome, make_teacher, practise

from curriculum.replayed import append_tasks, read_steps
from curriculum.task import Mode
from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import check_teacher
from experiments.recorder import Recorder

FAMILIES = ("calm", "cross", "shy")
every_follower = pytest.mark.parametrize("kind", ["yoked", "shuffled"])


def content(tasks) -> list[tuple]:
    """Family, difficulty and mode of the tasks of a step."""
    return [(task.family, task.difficulty, task.mode) for task in tasks]


def recorded(*, num_steps: int = 12, num_groups: int = 4, seed: int = 1, **settings):
    """Steps of a teacher that leaves much to chance."""
    return record(make_teacher("uniform", families=FAMILIES, seed=seed, **settings), num_steps=num_steps, num_groups=num_groups)


def follower(kind, path, *, seed: int = 2, families=FAMILIES, **settings):
    return make_teacher(kind, families=families, seed=seed, trace=str(path), **settings)


@pytest.fixture
def path(tmp_path):
    return write_trace(tmp_path / "teacher.jsonl", recorded())


def test_yoked_repeats_the_trace_with_its_own_scenarios_and_seeds(tmp_path):
    steps = recorded(axes=3)
    repeated = record(follower("yoked", write_trace(tmp_path / "teacher.jsonl", steps)), num_steps=12, num_groups=4)
    assert list(map(content, repeated)) == list(map(content, steps))
    assert {task.seed for tasks in repeated for task in tasks}.isdisjoint(task.seed for tasks in steps for task in tasks)
    assert [task.scenario_id for tasks in repeated for task in tasks] != [task.scenario_id for tasks in steps for task in tasks]
    assert {task.propensity for tasks in repeated for task in tasks} == {1.0}


@every_follower
def test_outcomes_change_nothing_and_a_resume_needs_the_same_trace(kind, path, tmp_path):
    good, bad = (practise(follower(kind, path), ability, num_steps=12, num_groups=4) for ability in (2.0, -1.0))
    assert good == bad
    whole = follower(kind, path)
    record(whole, num_steps=7, num_groups=4)
    state = json.loads(json.dumps(whole.state_dict()))
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    resumed = follower(kind, moved, seed=99)
    resumed.load_state_dict(state)
    assert record(resumed, num_steps=9, num_groups=4) == record(whole, num_steps=9, num_groups=4)
    with pytest.raises(ValueError, match=r"settings\.trace must be"):
        follower(kind, write_trace(moved, recorded(seed=8))).load_state_dict(state)


def test_yoked_holds_the_last_tenth_when_the_trace_is_over(tmp_path):
    steps = recorded(num_steps=20)
    copy = follower("yoked", write_trace(tmp_path / "teacher.jsonl", steps))
    repeated = record(copy, num_steps=25, num_groups=4)
    assert list(map(content, repeated[20:])) == [content(steps[i]) for i in (18, 19, 18, 19, 18)]
    assert copy.metrics()["curriculum/yoked/replayed"] == 1.25


def test_shuffled_gives_the_same_steps_whole_in_another_order_by_seed_and_each_time_through(path):
    one, again, other = (record(follower("shuffled", path, seed=seed), num_steps=24, num_groups=4) for seed in (2, 2, 3))
    assert one == again
    orders = [list(map(str, map(content, steps))) for steps in (recorded(), one[:12], one[12:], other[:12])]
    assert all(Counter(order) == Counter(orders[0]) for order in orders) and len(set(map(tuple, orders))) == 4


@every_follower
def test_a_run_can_stop_where_the_trace_ends(kind, path):
    copy = follower(kind, path, on_end="stop")
    record(copy, num_steps=12, num_groups=4)
    with pytest.raises(RuntimeError, match=r"teacher\.on_end"):
        copy.propose(4, policy_version=copy.policy_version)


@every_follower
def test_another_number_of_groups_is_refused_without_effect_unless_they_are_regrouped(kind, path):
    refused, fresh = follower(kind, path), follower(kind, path)
    with pytest.raises(ValueError, match=r"num_groups must be .* teacher\.regroup=true"):
        refused.propose(6, policy_version=3)
    assert refused.propose(4, policy_version=0) == fresh.propose(4, policy_version=0)
    sixes = record(follower(kind, path, regroup=True), num_steps=8, num_groups=6)
    fours = record(follower(kind, path), num_steps=12, num_groups=4)
    assert [this for tasks in sixes for this in content(tasks)] == [this for tasks in fours for this in content(tasks)]


def test_the_record_of_a_run_can_be_followed_in_any_layout(tmp_path):
    teacher = make_teacher("target", families=FAMILIES, seed=1, explore=0.5)
    recorder, steps = Recorder(tmp_path), []
    for step in range(1, 7):
        steps.append(teacher.propose(4, policy_version=step))
        outcomes = [make_outcome(task, 4, rewards=(float("nan"), *[0.5] * 7)) for task in steps[-1]]
        teacher.observe(outcomes)
        teacher.decide("anything", why=None)
        recorder.teaching(step, steps[-1], outcomes, [], {"entropy": float("nan")}, teacher.decisions())
    recorder.close()
    copy = follower("yoked", tmp_path)
    assert list(map(content, record(copy, num_steps=6, num_groups=4))) == list(map(content, steps))
    assert copy.digest == follower("yoked", write_trace(tmp_path / "plain.jsonl", steps)).digest
    assert {task.mode for tasks in steps for task in tasks} == {Mode.FRONTIER, Mode.UNIFORM}


def test_the_record_of_a_trainer_that_resumed_counts_from_the_later_record_of_a_step(tmp_path):
    steps = recorded(num_steps=7)
    early, later = steps[:6], steps[6:]
    smooth = read_steps(str(write_trace(tmp_path / "smooth.jsonl", steps)), families=FAMILIES, seed=2)
    for name, crashed in {
        "torn, one step back": [*early[:5], early[5][:2], *early[4:], *later],
        "twice": [*early[:5], early[5][:3], early[5][:1], early[5], *later],
    }.items():
        crashed_path = tmp_path / f"{name}.jsonl"
        for tasks in crashed:
            append_tasks(str(crashed_path), tasks)
        assert read_steps(str(crashed_path), families=FAMILIES, seed=2) == smooth, name


def test_a_trace_that_cannot_be_followed_is_refused_with_its_place(tmp_path):
    path = tmp_path / "teacher.jsonl"
    task = {"event": "task", **recorded()[0][0].to_dict()}
    lines = [json.dumps({"event": "task", **task.to_dict()}) for tasks in recorded() for task in tasks]
    for reason, bad in {
        "must hold task events": ['{"step": 1, "event": "update"}'],
        "is not a valid Mode.* in line 2 of": [json.dumps(task), json.dumps({**task, "mode": "guess"})],
        "only families of this run, got 'loud'": [json.dumps({**task, "family": "loud"})],
        "must have 4 groups a step, got 3 in step 6": [*lines[:23], *lines[24:]],
        "got step 4 after 2": [*lines[:8], *lines[12:]],
    }.items():
        path.write_text("\n".join(bad), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"teacher\.trace .*{reason}"):
            follower("yoked", path)


@every_follower
def test_a_missing_or_same_seeded_trace_is_refused(kind, path, tmp_path):
    for settings in ({"path": ""}, {"path": tmp_path / "nowhere"}, {"path": path, "seed": 1}):
        with pytest.raises(ValueError, match=r"teacher\.trace"):
            follower(kind, **settings)


def check(*overrides: str) -> None:
    check_teacher(load("smoke", ["groups_per_step=6", "teacher.kind=yoked", f"teacher.trace={any_trace()}", *overrides]))


def test_a_run_is_refused_before_it_starts_when_it_cannot_follow_its_trace():
    check("groups_per_step=5", "teacher.regroup=true")
    check("teacher.on_end=hold", "budget.steps=41")
    check("teacher.on_end=stop", "budget.steps=40")
    for overrides in (["groups_per_step=5"], ["teacher.trace=''"], ["teacher.on_end=stop", "budget.steps=41"]):
        with pytest.raises(ConfigError, match=r"num_groups|teacher\.trace"):
            check(*overrides)
