"""The contract that every teacher keeps, whatever its idea."""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from types import FunctionType, ModuleType

import numpy as np
import pytest
from made_trace import usable_settings
from omegaconf import OmegaConf

from curriculum import NEEDS, TEACHERS
from curriculum.__main__ import main, settings
from curriculum.allocation import AllocationConfig, FamilyAllocation, capped
from curriculum.frontier import FrontierConfig, Measure
from curriculum.schedules import FixedConfig, FixedTeacher
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, UpdateStats
from curriculum.teacher import LedgerTeacher, task_from_record, task_to_record
from simulator.scenario import FAMILIES, Difficulty, Family

GROUP_SIZE = 4


def with_what_it_needs(kind: str):
    missing = kind in NEEDS and find_spec(NEEDS[kind]) is None
    return pytest.param(kind, marks=pytest.mark.skipif(missing, reason=f"{kind} needs {NEEDS.get(kind)}"))


every_teacher = pytest.mark.parametrize("kind", [with_what_it_needs(kind) for kind in TEACHERS])


def make_teacher(kind: str, *, seed: int = 0, families: tuple[Family, ...] = FAMILIES, num_scenarios: int = 3):
    _, teacher = TEACHERS[kind]
    scenarios = {family: [f"{family}-{i}" for i in range(num_scenarios)] for family in families}
    return teacher(usable_settings(kind), scenarios=scenarios, group_size=GROUP_SIZE, seed=seed)


def make_outcome(
    task: TaskSpec, *, num_successes: int = 2, rewards: tuple[float, ...] | None = None, status: Status = Status.OK
) -> GroupOutcome:
    successes = tuple(i < num_successes for i in range(task.group_size))
    return GroupOutcome(
        task=task,
        rewards=rewards or tuple(0.9 if success else 0.2 for success in successes),
        successes=successes,
        num_tokens=(50,) * task.group_size,
        statuses=(status,) * task.group_size,
    )


def make_stats(step: int, *, entropy: float = 1.0, reward_density: float = 0.5) -> UpdateStats:
    return UpdateStats(
        step=step,
        policy_version=step,
        entropy=entropy,
        entropy_sampled=entropy,
        reward_density=reward_density,
        zero_variance_share=0.0,
        kl=float("nan"),
    )


def practise(teacher, student: np.random.Generator, *, num_steps: int, first: int = 0) -> list[TaskSpec]:
    """Steps of six groups; an outcome of every seventh task never comes, and the third step of four brings no update."""
    issued = []
    for step in range(first, first + num_steps):
        tasks = teacher.propose(6, policy_version=step)
        issued.extend(tasks)
        successes = student.integers(0, GROUP_SIZE + 1, len(tasks))
        teacher.observe(
            [make_outcome(task, num_successes=int(n)) for i, (task, n) in enumerate(zip(tasks, successes, strict=True)) if (step + i) % 7]
        )
        if step % 4 != 2:
            teacher.on_update(make_stats(step, entropy=0.97**step, reward_density=0.96**step))
    return issued


@every_teacher
def test_proposals_are_whole_valid_and_unlike_each_other(kind):
    teacher = make_teacher(kind)
    tasks = [task for step in range(5) for task in teacher.propose(7, policy_version=step)]
    assert len({task.uid for task in tasks}) == 35
    assert len({task.seed for task in tasks}) == 35
    for task in tasks:
        assert task.group_size == GROUP_SIZE and task.scenario_id.startswith(str(task.family))
        assert task.difficulty == Difficulty.along(task.strictness) and 0.0 <= task.strictness <= 1.0
        assert 0.0 < task.propensity <= 1.0 and task.seed >= 0 and task.mode is not Mode.PROBE
    assert [task.policy_version for task in tasks[::7]] == [0, 1, 2, 3, 4]


@every_teacher
def test_resume_is_exact_through_json(kind):
    whole = make_teacher(kind)
    student = np.random.default_rng(1)
    practise(whole, student, num_steps=30)
    state, student_state = json.dumps(whole.state_dict()), student.bit_generator.state
    tasks, metrics, decisions = practise(whole, student, num_steps=30, first=30), whole.metrics(), whole.decisions()

    resumed = make_teacher(kind, seed=123)
    resumed.load_state_dict(json.loads(state))
    student.bit_generator.state = student_state
    assert practise(resumed, student, num_steps=30, first=30) == tasks
    assert resumed.metrics() == metrics and resumed.decisions() == decisions
    assert json.dumps(resumed.state_dict()) == json.dumps(whole.state_dict())


def reachable(root: object) -> list[object]:
    """Everything that a thing refers to, however deep: the owners of methods and what closures hold among it, modules and classes not."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen and not isinstance(thing, type | ModuleType):
            seen[id(thing)] = thing
            waiting += thing.__closure__ or () if isinstance(thing, FunctionType) else gc.get_referents(thing)
    return list(seen.values())


@every_teacher
def test_after_a_resume_nothing_refers_to_another_teacher(kind):
    whole, resumed = make_teacher(kind), make_teacher(kind, seed=123)
    practise(whole, np.random.default_rng(1), num_steps=10)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [thing for thing in reachable(resumed) if isinstance(thing, LedgerTeacher)] == [resumed]


@every_teacher
def test_same_seed_same_tasks_other_seed_other_tasks(kind):
    one, two, other = (make_teacher(kind, seed=seed).propose(12, policy_version=0) for seed in (5, 5, 6))
    assert one == two
    assert {task.seed for task in one}.isdisjoint(task.seed for task in other)


@every_teacher
def test_global_random_state_is_left_alone(kind):
    def states() -> tuple[str, object]:
        # With the generator's place in its row of numbers, which alone moves with each draw.
        return str(np.random.get_state()[2:]), random.getstate()  # noqa: NPY002

    before = states()
    practise(make_teacher(kind), np.random.default_rng(0), num_steps=3)
    assert states() == before


@every_teacher
def test_order_within_one_observe_does_not_matter(kind):
    forward, backward = make_teacher(kind), make_teacher(kind)
    tasks = forward.propose(9, policy_version=0)
    backward.propose(9, policy_version=0)
    outcomes = [make_outcome(task, num_successes=i % 5) for i, task in enumerate(tasks)]
    forward.observe(outcomes)
    backward.observe(outcomes[::-1])
    assert forward.state_dict() == backward.state_dict()


@every_teacher
def test_duplicate_unknown_and_expired_outcomes_are_counted_and_change_nothing_else(kind):
    teacher = make_teacher(kind)
    tasks = teacher.propose(4, policy_version=0)
    stranger = make_teacher(kind, seed=9).propose(8, policy_version=0)[7]
    teacher.observe([make_outcome(tasks[0])])
    teacher.expire([tasks[1].uid, tasks[1].uid, "never issued"], reason="worker lost")
    before = teacher.state_dict()

    teacher.observe([make_outcome(tasks[0], num_successes=4), make_outcome(tasks[1], num_successes=4), make_outcome(stranger)])
    after = teacher.state_dict()
    assert after["counts"].pop("ignored") == 3 and before["counts"].pop("ignored") == 0
    assert after == before
    assert teacher.metrics()["curriculum/outstanding"] == 2.0 and teacher.metrics()["curriculum/outcomes_expired"] == 1.0


@every_teacher
def test_outcome_that_claims_another_difficulty_than_was_issued_is_ignored(kind):
    teacher = make_teacher(kind)
    task = teacher.propose(1, policy_version=0)[0]
    claimed = TaskSpec(**{**vars(task), "strictness": 0.99})
    teacher.observe([make_outcome(claimed)])
    assert teacher.metrics()["curriculum/outcomes_ignored"] == 1.0 and teacher.metrics()["curriculum/outstanding"] == 1.0


@every_teacher
def test_groups_with_too_few_survivors_teach_nothing_and_leave_the_ledger(kind):
    teacher = make_teacher(kind)
    tasks = teacher.propose(3, policy_version=0)
    learned = teacher.state_dict()["learned"], teacher.state_dict()["allocation"]
    nan = float("nan")
    broken = make_outcome(tasks[0], rewards=(nan,) * 4, status=Status.SIMULATOR_ERROR)
    lonely = make_outcome(tasks[1], rewards=(1.0, nan, nan, nan))
    teacher.observe([broken, lonely])
    assert (teacher.state_dict()["learned"], teacher.state_dict()["allocation"]) == learned
    metrics = teacher.metrics()
    assert metrics["curriculum/outcomes_too_few_survivors"] == 2.0 and metrics["curriculum/outstanding"] == 1.0
    teacher.observe([make_outcome(tasks[2], rewards=(0.9, 0.9, nan, nan))])
    assert teacher.metrics()["curriculum/success_share"] == 1.0


@every_teacher
def test_evaluation_cannot_be_passed_in(kind):
    with pytest.raises(TypeError, match="evaluation never reaches a teacher"):
        make_teacher(kind).observe([{"score": 0.9}])


@every_teacher
def test_probes_are_counted_and_are_not_practice(kind):
    teacher = make_teacher(kind)
    task = teacher.propose(1, policy_version=0)[0]
    before = teacher.state_dict()
    teacher.observe([make_outcome(TaskSpec(**{**vars(task), "uid": "probe-1", "mode": Mode.PROBE}), num_successes=4)])
    after = teacher.state_dict()
    # What a teacher keeps of the probes themselves is the only thing that may have moved: they never count as practice.
    for learned in (before["learned"], after["learned"]):
        learned.pop("forgetting", None)
    assert (after["learned"], after["allocation"]) == (before["learned"], before["allocation"])
    assert teacher.metrics()["curriculum/outcomes_probes"] == 1.0 and teacher.metrics()["curriculum/outcomes_ignored"] == 0.0


@every_teacher
def test_metrics_are_finite_numbers_under_one_prefix(kind):
    teacher = make_teacher(kind)
    practise(teacher, np.random.default_rng(0), num_steps=10)
    metrics = teacher.metrics()
    assert all(key.startswith("curriculum/") and np.isfinite(value) for key, value in metrics.items())
    assert metrics["curriculum/in_flight_delay"] == 0.0 and "curriculum/strictness" in metrics
    json.dumps(teacher.decisions())


@every_teacher
def test_delay_is_measured_on_the_tasks_that_come_back(kind):
    teacher = make_teacher(kind)
    first = teacher.propose(2, policy_version=0)
    teacher.propose(2, policy_version=0)
    teacher.propose(2, policy_version=0)
    teacher.observe([make_outcome(task) for task in first])
    assert teacher.metrics()["curriculum/in_flight_delay"] == 2.0


def issued_metrics(teacher) -> tuple[float, float]:
    return teacher.metrics()["curriculum/strictness"], teacher.metrics()["curriculum/strictness_std"]


def test_strictness_is_that_of_all_rounds_of_a_step_also_where_a_state_was_saved_between_them():
    teacher = make_teacher("uniform")
    tasks = teacher.propose(6, policy_version=0)
    resumed = make_teacher("uniform", seed=1)
    resumed.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    for each in (teacher, resumed):
        issued = [task.strictness for task in [*tasks, *each.propose(3, policy_version=0), *each.propose(1, policy_version=0)]]
        assert len(issued) == 10 and issued_metrics(each) == pytest.approx((np.mean(issued), np.std(issued)))
    teacher.observe([make_outcome(task) for task in tasks])
    assert issued_metrics(teacher) == issued_metrics(resumed)  # until the next step
    issued = [task.strictness for task in teacher.propose(4, policy_version=1)]
    assert issued_metrics(teacher) == pytest.approx((np.mean(issued), np.std(issued)))


def test_a_state_from_between_two_steps_may_lack_what_was_issued_in_one():
    teacher, resumed = make_teacher("uniform"), make_teacher("uniform", seed=1)
    practise(teacher, np.random.default_rng(0), num_steps=3)
    state = teacher.state_dict()
    assert state.pop("issued") == []
    resumed.load_state_dict(state)
    assert resumed.state_dict() == teacher.state_dict()


@every_teacher
def test_a_teacher_that_has_learned_goes_back_to_its_own_earlier_state(kind):
    teacher, early = make_teacher(kind), make_teacher(kind).state_dict()
    practise(teacher, np.random.default_rng(0), num_steps=40)
    learned = teacher.state_dict()
    teacher.load_state_dict(json.loads(json.dumps(early)))
    assert teacher.state_dict() == early
    practise(teacher, np.random.default_rng(0), num_steps=40)
    assert teacher.state_dict() == learned


def test_nothing_may_lack_among_numbers_that_are_always_known():
    teacher = make_teacher("spdl")
    state = teacher.state_dict()
    broken = {**state["learned"], "parameters": [None, 0.0]}
    with pytest.raises(ValueError, match=r"teacher state\.learned\.parameters\[0\] must be a number, got None"):
        teacher.load_state_dict({**state, "learned": broken})


@every_teacher
def test_state_that_does_not_fit_is_refused_and_changes_nothing(kind):
    teacher = make_teacher(kind)
    practise(teacher, np.random.default_rng(0), num_steps=3)
    state = teacher.state_dict()
    other = next(name for name in TEACHERS if name != kind)
    wrong = {
        "kind must be": {**state, "kind": other},
        "version must be": {**state, "version": 99},
        "unknown \\['mood'\\]": {**state, "mood": 1},
        "missing \\['rng'\\]": {key: value for key, value in state.items() if key != "rng"},
        "learned must have exactly": {**state, "learned": {**state["learned"], "mood": 1}},
        "must be in the scenario bank": {**state, "scenarios": {**state["scenarios"], "advice/negative": ["gone"]}},
        "must have exactly the fields": {**state, "outstanding": [{"uid": "1"}]},
        "teacher state's settings.success_emotion must be 70.0, got 60.0": {
            **state,
            "settings": {**state["settings"], "success_emotion": 60.0},
        },
        "teacher state.step must be a number, got 'x'": {**state, "step": "x"},
        "teacher state.step must be a whole number": {**state, "step": 1.5},
        "teacher state.seed must be a number, got None": {**state, "seed": None},
        "teacher state.counts.ignored must be a number, got nan": {**state, "counts": {**state["counts"], "ignored": float("nan")}},
        "teacher state.issued\\[0\\] must be a number, got 'x'": {**state, "issued": ["x"]},
        "teacher state must be a mapping, got NoneType": None,
    }
    for message, bad in wrong.items():
        with pytest.raises(ValueError, match=message):
            teacher.load_state_dict(bad)
        assert teacher.state_dict() == state


@every_teacher
def test_settings_are_a_structured_config_with_a_note_and_a_range_each(kind):
    config, _ = TEACHERS[kind]
    assert OmegaConf.to_object(OmegaConf.structured(config)) == config()
    for name, default, note in settings(config(), "teacher"):
        assert note, name
        if isinstance(default, (bool, str)):
            continue
        *nested, setting = name.split(".")[1:]
        owner = type(getattr(config(), nested[0])) if nested else config
        for value in (1e9, -1e9, float("nan")):
            with pytest.raises(ValueError, match=f"{name} must be (in|a whole number)"):
                owner(**{setting: [value] if isinstance(default, list) else value})


def test_settings_are_of_the_type_of_their_default_whoever_gives_them():
    assert FrontierConfig(measure="success").measure is Measure.SUCCESS and FrontierConfig(start=1).start == 1.0
    assert type(TEACHERS["rlve"][0](window=8.0).window) is int
    for kind, given, message in (
        ("frontier", {"measure": "nonsense"}, "teacher.measure must be in {reward, success}, got 'nonsense'"),
        ("fixed", {"strictness": "0.5"}, "teacher.strictness must be a number, got '0.5'"),
        ("fixed", {"strictness": True}, "teacher.strictness must be a number, got True"),
        ("fixed", {"reserve": "much"}, "teacher.reserve must be in .0, 1., got 'much'"),
        ("rlve", {"window": 2.5}, "teacher.window must be a whole number, got 2.5"),
        ("rlve", {"reversible": 1}, "teacher.reversible must be true or false, got 1"),
        ("staged", {"strictness": 3}, "teacher.strictness must be a list, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            TEACHERS[kind][0](**given)


def test_an_allocation_that_would_have_no_say_is_refused():
    for kind, given in (("yoked", {}), ("shuffled", {}), ("sec", {"scope": "flat"})):
        with pytest.raises(ValueError, match=r"teacher.allocation must be left alone where families are .*, got \{'uniform_floor': 0.25\}"):
            TEACHERS[kind][0](**given, allocation=AllocationConfig(uniform_floor=0.25))


def test_a_state_whose_learned_numbers_are_none_is_refused():
    teacher = make_teacher("frontier")
    state = teacher.state_dict()
    for value in ("abc", float("nan"), None):
        with pytest.raises(ValueError, match=r"teacher state\.learned\.level must be a number"):
            teacher.load_state_dict({**state, "learned": {**state["learned"], "level": value}})


def test_an_outcome_that_does_not_add_up_is_refused_when_it_is_made():
    outcome = make_outcome(make_teacher("fixed").propose(1, policy_version=0)[0])
    with pytest.raises(ValueError, match="one value for each rollout in every column"):
        replace(outcome, statuses=outcome.statuses[1:])
    for reward in (7.0, -0.1, float("inf")):
        with pytest.raises(ValueError, match=r"outcome.rewards must be in \[0, 1\]"):
            replace(outcome, rewards=(reward, *outcome.rewards[1:]))
    with pytest.raises(ValueError, match=r"task.strictness must be in \[0, 1\], got 2.0"):
        replace(outcome.task, strictness=2.0)
    with pytest.raises(TypeError, match="uids must be a sequence of uids"):
        make_teacher("fixed").expire(outcome.task.uid, reason="a slip")


@every_teacher
def test_memory_stays_flat(kind):
    # Few families, so that every window fills; a trace brings its own.
    teacher = make_teacher(kind, families=FAMILIES if kind in ("yoked", "shuffled") else FAMILIES[:2])
    sizes, things = [], []
    for step in range(400):
        tasks = teacher.propose(12, policy_version=step)
        teacher.observe([make_outcome(task) for task in tasks[:10]])
        teacher.expire([task.uid for task in tasks[10:]], reason="stale")
        teacher.on_update(make_stats(step))
        teacher.decisions()
        if step % 200 >= 180:
            sizes.append(len(json.dumps(teacher.state_dict())))
            things.append(len(reachable(teacher)))
    # What the state leaves out must not grow either.
    assert max(sizes[20:]) < 1.5 * max(sizes[:20]) and max(things[20:]) < 1.1 * max(things[:20])


@every_teacher
def test_bad_construction_is_one_sentence(kind):
    config, teacher = TEACHERS[kind]
    scenarios = {FAMILIES[0]: ["a"], FAMILIES[1]: []}
    with pytest.raises(ValueError, match=r"teacher.scenarios must hold .* got none in \['advice/passive'\]"):
        teacher(config(), scenarios=scenarios, group_size=4, seed=0)
    with pytest.raises(ValueError, match=r"teacher.group_size must be a whole number of at least 2, got 1"):
        teacher(config(), scenarios={FAMILIES[0]: ["a"]}, group_size=1, seed=0)
    with pytest.raises(ValueError, match=r"num_groups must be a whole number of at least 1, got 0"):
        make_teacher(kind).propose(0, policy_version=0)


@pytest.mark.parametrize("kind", ["fixed", "uniform"])
def test_families_take_turns_and_scenarios_repeat_only_after_all_were_used(kind):
    teacher = make_teacher(kind, num_scenarios=3)
    rounds = [teacher.propose(24, policy_version=0) for _ in range(6)]
    for tasks in rounds:
        assert {task.family for task in tasks} == set(FAMILIES)
    for three in (rounds[:3], rounds[3:]):
        assert set(Counter(task.scenario_id for tasks in three for task in tasks).values()) == {1}
    assert [task.family for task in rounds[0]] != [task.family for task in rounds[1]]


def test_fixed_is_fixed():
    config = FixedConfig(strictness=0.3)
    teacher = FixedTeacher(config, scenarios={FAMILIES[0]: ["a"]}, group_size=2, seed=0)
    tasks = teacher.propose(3, policy_version=0)
    assert [task.strictness for task in tasks] == [0.3, 0.3, 0.3] and tasks[0].propensity == 1.0


def test_uniform_covers_its_range_evenly():
    config, teacher = TEACHERS["uniform"]
    tasks = teacher(config(low=0.2, high=0.6), scenarios={FAMILIES[0]: ["a"]}, group_size=2, seed=0).propose(800, policy_version=0)
    counts, _ = np.histogram([task.strictness for task in tasks], bins=4, range=(0.2, 0.6))
    assert counts.sum() == 800 and counts.min() > 160


def test_tasks_survive_json():
    task = make_teacher("uniform").propose(1, policy_version=3)[0]
    assert task_from_record(json.loads(json.dumps(task_to_record(task)))) == task


def test_allocation_follows_progress_above_its_floor():
    settings = AllocationConfig(uniform_floor=0.25, rate=0.5, num_errors=0.0, prior_progress=0.02, known_after=0.0, largest=4.0)
    allocation = FamilyAllocation(settings, FAMILIES[:4])
    for success in (0.1, 0.3):
        allocation.learn(FAMILIES[0], strictness=0.5, fared=success)
        for family in FAMILIES[1:4]:
            allocation.learn(family, strictness=0.5, fared=0.5)
    # The second group lies .2 above the first, half of which counts; so w = .12 against .02 for each of the three others.
    assert allocation.shares() == pytest.approx([1 / 16 + 0.75 * 12 / 18] + 3 * [1 / 16 + 0.75 * 2 / 18])
    dealt = Counter(family for family, _ in allocation.choose(1000, np.random.default_rng(0)))
    assert dealt[FAMILIES[0]] == pytest.approx(1000 * (1 / 16 + 0.75 * 12 / 18), abs=2)


def test_families_seen_little_are_judged_like_the_mean():
    settings = AllocationConfig(uniform_floor=0.0, rate=0.5, num_errors=0.0, prior_progress=0.02, known_after=2.0, largest=4.0)
    allocation = FamilyAllocation(settings, FAMILIES[:4])
    for success in (0.1, 0.3):
        allocation.learn(FAMILIES[0], strictness=0.5, fared=success)
    # Two groups count half: w = .5 x .1 + .5 x .025 + .02 for the first, .025 + .02 for the three of which nothing is known.
    assert allocation.shares() == pytest.approx([0.0825 / 0.2175] + 3 * [0.045 / 0.2175])


def test_no_family_gets_more_than_its_multiple_of_an_even_share():
    assert capped(np.array([0.7, 0.2, 0.05, 0.05]), 0.4) == pytest.approx([0.4, 0.4, 0.1, 0.1])
    assert capped(np.array([0.3, 0.3, 0.2, 0.2]), 0.4) == pytest.approx([0.3, 0.3, 0.2, 0.2])


def test_door_lists_teachers_with_their_settings(capsys):
    assert main(["teachers"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{kind}: " in listed for kind in TEACHERS) and "teacher.guard.entropy_low=0.8" in listed
    assert main(["teachers", "frontal"]) == 2 and "got 'frontal'" in capsys.readouterr().err
