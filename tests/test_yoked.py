"""Following another run's trace, in its order or out of it; and every trace that cannot be followed, refused in one sentence."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_trace import any_trace, record, write_trace
from tiny_student import make_outcome, make_teacher
from toy_student import practise

from curriculum.task import Mode
from curriculum.teacher import task_to_record
from experiments.config import load, load_saved, to_yaml
from experiments.errors import ConfigError
from experiments.preflight import check_teacher
from simulator.scenario import Difficulty

FAMILIES = ("calm", "cross", "shy")
every_follower = pytest.mark.parametrize("kind", ["yoked", "shuffled"])


def what(tasks):
    """What a step asks for, without whom it is played with and on which seed."""
    return [(task.family, task.strictness, task.difficulty, task.mode) for task in tasks]


def recorded(*, num_steps: int = 12, num_groups: int = 4, seed: int = 1, kind: str = "uniform", **settings):
    """Steps of a teacher that leaves much to chance."""
    return record(make_teacher(kind, families=FAMILIES, seed=seed, **settings), num_steps=num_steps, num_groups=num_groups)


def follower(kind, path, *, seed: int = 2, families=FAMILIES, **settings):
    return make_teacher(kind, families=families, seed=seed, trace=str(path), **settings)


def refusal(kind, path, **settings) -> str:
    with pytest.raises(ValueError, match=r"^teacher.trace must ") as refused:
        follower(kind, path, **settings)
    return str(refused.value)


def test_yoked_repeats_the_trace_in_its_order_with_scenarios_and_seeds_of_its_own(tmp_path):
    steps = recorded(axes=3)
    copy = follower("yoked", write_trace(tmp_path / "teacher.jsonl", steps))
    repeated = record(copy, num_steps=12, num_groups=4)
    assert list(map(what, repeated)) == list(map(what, steps))
    assert {task.seed for tasks in repeated for task in tasks}.isdisjoint(task.seed for tasks in steps for task in tasks)
    assert [task.scenario_id for tasks in repeated for task in tasks] != [task.scenario_id for tasks in steps for task in tasks]
    assert {task.propensity for tasks in repeated for task in tasks} == {1.0}


@every_follower
def test_nothing_that_is_observed_changes_what_comes_next(kind, tmp_path):
    path = write_trace(tmp_path / "teacher.jsonl", recorded())
    good, bad = follower(kind, path), follower(kind, path)
    issued_to_good = practise(good, lambda task: 2.0, num_steps=12, num_groups=4)
    issued_to_bad = practise(bad, lambda task: -1.0, num_steps=12, num_groups=4)
    assert issued_to_good == issued_to_bad


def test_a_trace_of_a_teacher_that_adapted_keeps_its_difficulties_and_modes(tmp_path):
    frontier = make_teacher("frontier", families=FAMILIES, seed=1, explore=0.5)
    steps = practise(frontier, lambda task: 0.6, num_steps=20, num_groups=4)
    copy = follower("yoked", write_trace(tmp_path / "teacher.jsonl", steps))
    repeated = record(copy, num_steps=20, num_groups=4)
    assert list(map(what, repeated)) == list(map(what, steps))
    assert {task.mode for tasks in repeated for task in tasks} == {Mode.FRONTIER, Mode.UNIFORM}


def test_shuffled_gives_the_same_steps_whole_in_an_order_of_the_runs_seed(tmp_path):
    steps = recorded()
    path = write_trace(tmp_path / "teacher.jsonl", steps)
    one, again, other = (record(follower("shuffled", path, seed=seed), num_steps=12, num_groups=4) for seed in (2, 2, 3))
    for shuffled in (one, other):
        assert Counter(map(str, map(what, shuffled))) == Counter(map(str, map(what, steps)))
        assert list(map(what, shuffled)) != list(map(what, steps))
    assert one == again and list(map(what, one)) != list(map(what, other))


def test_yoked_holds_the_last_tenth_when_the_trace_is_over(tmp_path):
    steps = recorded(num_steps=20)
    copy = follower("yoked", write_trace(tmp_path / "teacher.jsonl", steps))
    repeated = record(copy, num_steps=25, num_groups=4)
    assert list(map(what, repeated[20:])) == [what(steps[i]) for i in (18, 19, 18, 19, 18)]
    assert copy.metrics()["curriculum/yoked/replayed"] == 1.25


def test_shuffled_goes_through_the_trace_again_in_another_order(tmp_path):
    steps = recorded()
    twice = record(follower("shuffled", write_trace(tmp_path / "teacher.jsonl", steps)), num_steps=24, num_groups=4)
    first, second = twice[:12], twice[12:]
    assert Counter(map(str, map(what, first))) == Counter(map(str, map(what, second)))
    assert list(map(what, first)) != list(map(what, second))


@every_follower
def test_a_run_may_ask_to_be_stopped_where_the_trace_ends(kind, tmp_path):
    copy = follower(kind, write_trace(tmp_path / "teacher.jsonl", recorded(num_steps=3)), on_end="stop")
    record(copy, num_steps=3, num_groups=4)
    with pytest.raises(RuntimeError, match=r"the trace ended after 3 steps; teacher.on_end=hold would have gone on as it ended"):
        copy.propose(4, policy_version=copy.policy_version)


@every_follower
def test_resume_in_the_middle_goes_on_where_it_was_and_only_with_the_same_trace(kind, tmp_path):
    path = write_trace(tmp_path / "teacher.jsonl", recorded())
    whole = follower(kind, path)
    record(whole, num_steps=5, num_groups=4)
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = follower(kind, path, seed=99)
    resumed.load_state_dict(state)
    assert record(resumed, num_steps=10, num_groups=4) == record(whole, num_steps=10, num_groups=4)

    other = follower(kind, write_trace(tmp_path / "other.jsonl", recorded(seed=7)))
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"teacher.trace must be the one that the state was made with .* resume with the trace"):
        other.load_state_dict(state)
    assert other.state_dict() == before


def test_what_a_run_records_can_be_followed(tmp_path):
    """Written by the training loop's own code: tasks, outcomes, updates and decisions."""
    from experiments.recorder import Recorder
    from experiments.train import TrainingRun

    teacher = make_teacher("frontier", families=FAMILIES, seed=1, explore=0.5)
    recorder = Recorder(tmp_path)
    steps = []
    for step in range(1, 7):
        steps.append(teacher.propose(4, policy_version=step))
        outcomes = [make_outcome(task, 4, rewards=(float("nan"), *[0.5] * 7)) for task in steps[-1]]
        teacher.observe(outcomes)
        teacher.decide("anything", why=None)
        run = SimpleNamespace(parts=SimpleNamespace(teacher=teacher), recorder=recorder, tally=SimpleNamespace(step=step))
        TrainingRun.record_teaching(run, steps[-1], outcomes, [], {"entropy": float("nan")})
    recorder.close()
    repeated = record(follower("yoked", tmp_path), num_steps=6, num_groups=4)
    assert list(map(what, repeated)) == list(map(what, steps))


def test_the_digest_is_of_what_the_trace_says_and_not_of_its_layout(tmp_path):
    steps = recorded()
    plain = write_trace(tmp_path / "teacher.jsonl", steps)
    events = [{"step": 1, **json.loads(line)} for line in plain.read_text(encoding="utf-8").splitlines()]
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps(event, indent=None, separators=(",", ":")) for event in events), encoding="utf-8")
    digests = {follower("yoked", path).trace.digest for path in (plain, other, tmp_path)}  # the folder stands for its record
    assert len(digests) == 1


def test_a_trace_is_kept_as_numbers(tmp_path):
    trace = follower("yoked", write_trace(tmp_path / "teacher.jsonl", recorded(num_steps=50))).trace
    kept = sum(array.nbytes for array in (trace.family_SG, trace.mode_SG, trace.strictness_SG, trace.axes_SGA))
    assert kept <= 40 * 200 and (trace.num_steps, trace.num_groups) == (50, 4)


# traces that cannot be followed


@every_follower
def test_a_trace_that_is_not_there_is_refused(kind, tmp_path):
    assert "got ''; there is no such file" in refusal(kind, "")
    missing = tmp_path / "nowhere"
    assert f"name a run's folder or its teacher.jsonl, got '{missing}'" in refusal(kind, missing)
    assert f"got '{tmp_path}'; there is no such file" in refusal(kind, tmp_path)  # a folder without the record


def test_a_trace_without_tasks_is_refused(tmp_path):
    path = tmp_path / "teacher.jsonl"
    path.write_text('{"step": 1, "event": "update", "update": {}}\n', encoding="utf-8")
    assert refusal("yoked", path) == f"teacher.trace must hold task events, got none in {path}"


def test_a_trace_with_unknown_families_is_refused(tmp_path):
    path = write_trace(tmp_path / "teacher.jsonl", recorded())
    message = refusal("yoked", path, families=("calm", "shy"))
    assert message.startswith("teacher.trace must issue only families of this run, got 'cross' in line ") and str(path) in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strictness": 1.2}, "strictness must be in [0, 1], got 1.2"),
        ({"strictness": float("nan")}, "strictness must be in [0, 1], got nan"),
        ({"difficulty": {"strictness": 0.5, "reserve": -0.1, "impatience": 0.5}}, "difficulty.reserve must be in [0, 1], got -0.1"),
        ({"difficulty": 3}, "must be a mapping"),
        ({"difficulty": {"strictness": 0.5}}, "missing 2 required keyword-only arguments"),
        ({"mode": "guess"}, "'guess' is not a valid Mode"),
        ({"teacher_step": "first"}, "cannot be interpreted as an integer"),
        ({"teacher_step": -1}, "teacher_step must be in [0, 1e+12], got -1"),
        ({"mood": 1}, "unknown ['mood']"),
    ],
)
def test_a_task_that_no_teacher_could_have_issued_is_refused(change, said, tmp_path):
    task = {"event": "task", **task_to_record(recorded()[0][0])}
    path = tmp_path / "teacher.jsonl"
    path.write_text(json.dumps(task) + "\n" + json.dumps({**task, **change}) + "\n", encoding="utf-8")
    message = refusal("yoked", path)
    assert message.startswith(f"teacher.trace must hold events as a run records them, got in line 2 of {path}: ") and said in message


@pytest.mark.parametrize("line", ["not JSON", "\x00\xff"])
def test_a_file_that_is_no_record_is_refused(line, tmp_path):
    path = tmp_path / "teacher.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n")
    assert refusal("yoked", path) == f"teacher.trace must hold one JSON object a line, got none in line 1 of {path}"


@pytest.mark.parametrize("line", ["3", "[1]", '{"step": 3}'])
def test_a_line_that_is_no_event_is_refused(line, tmp_path):
    path = tmp_path / "teacher.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    assert f"line 1 of {path}" in refusal("yoked", path)


def test_steps_of_unequal_size_are_refused_and_a_torn_last_line_is_one_task_less(tmp_path):
    steps = recorded()
    path = write_trace(tmp_path / "teacher.jsonl", [*steps[:5], steps[5][:3], *steps[6:]])
    assert "got 3 in step 6 and 4 in the first" in refusal("yoked", path)
    path = write_trace(tmp_path / "teacher.jsonl", steps)
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert "got 3 in step 12 and 4 in the first" in refusal("yoked", path)


@pytest.mark.parametrize("left_out", [2, 5])
def test_a_trace_with_a_gap_is_refused(left_out, tmp_path):
    steps = recorded()
    del steps[left_out]
    path = write_trace(tmp_path / "teacher.jsonl", steps)
    assert f"must hold every step in order, got step {left_out + 2} after {left_out}" in refusal("yoked", path)


@every_follower
def test_a_trace_of_the_same_seed_is_refused(kind, tmp_path):
    path = write_trace(tmp_path / "teacher.jsonl", recorded(seed=5))
    assert refusal(kind, path, seed=5).startswith("teacher.trace must be recorded with another seed than this run's, got 5 in both")
    follower(kind, path, seed=6)


@every_follower
def test_a_trace_shorter_than_was_asked_for_is_refused(kind, tmp_path):
    path = write_trace(tmp_path / "teacher.jsonl", recorded())
    assert refusal(kind, path, min_steps=13) == f"teacher.trace must have at least 13 steps, got 12 in '{path}'"
    follower(kind, path, min_steps=12)


@every_follower
def test_another_number_of_groups_is_refused_unless_they_may_be_dealt_on(kind, tmp_path):
    path = write_trace(tmp_path / "teacher.jsonl", recorded())
    with pytest.raises(ValueError, match=r"num_groups must be 4, as in every step of the trace, got 6; teacher.regroup=true"):
        follower(kind, path).propose(6, policy_version=0)
    refused, fresh = follower(kind, path), follower(kind, path)
    with pytest.raises(ValueError, match=r"num_groups must be 4"):
        refused.propose(6, policy_version=3)
    assert refused.propose(4, policy_version=0) == fresh.propose(4, policy_version=0)
    dealt = record(follower(kind, path, regroup=True), num_steps=8, num_groups=6)
    in_fours = record(follower(kind, path), num_steps=12, num_groups=4)
    assert [this for tasks in dealt for this in what(tasks)] == [this for tasks in in_fours for this in what(tasks)]


def test_an_end_of_the_trace_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"teacher.on_end must be in \{hold, stop\}, got 'never'"):
        follower("yoked", any_trace(), on_end="never")


# before a run starts


def check(*overrides: str) -> None:
    check_teacher(load("smoke", ["groups_per_step=6", "teacher.kind=yoked", f"teacher.trace={any_trace()}", *overrides]))


def test_a_run_is_refused_before_it_starts_when_its_steps_are_not_those_of_the_trace():
    check()
    check("groups_per_step=5", "teacher.regroup=true")
    with pytest.raises(ConfigError, match="num_groups must be 6, as in every step of the trace, got 5"):
        check("groups_per_step=5")
    with pytest.raises(ConfigError, match="there is no such file"):
        check("teacher.trace=''")


def test_a_run_that_may_not_go_beyond_its_trace_is_refused_when_it_would():
    check("teacher.on_end=stop", "budget.steps=40")
    check("teacher.on_end=hold", "budget.steps=41")
    with pytest.raises(ConfigError, match=r"teacher.trace must have at least 41 steps, got 40"):
        check("teacher.on_end=stop", "budget.steps=41")


def test_a_resumed_run_may_find_its_trace_elsewhere(tmp_path):
    config = load("smoke", ["teacher.kind=yoked", "teacher.trace=here"])
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load_saved(tmp_path / "config.yaml", ["teacher.trace=there"]).teacher.trace == "there"


def test_outcomes_of_a_followed_trace_are_settled_like_any_other(tmp_path):
    copy = follower("yoked", write_trace(tmp_path / "teacher.jsonl", recorded()))
    tasks = copy.propose(4, policy_version=copy.policy_version)
    copy.observe([make_outcome(task, 4) for task in tasks])
    copy.observe([make_outcome(replace(tasks[0], difficulty=Difficulty.along(0.0)), 4)])
    metrics = copy.metrics()
    assert (metrics["curriculum/outcomes_observed"], metrics["curriculum/outcomes_ignored"]) == (4.0, 1.0)
