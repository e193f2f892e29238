"""Does frontier stay at the frontier: few groups, many families, late outcomes, and a guard that knows learning from collapse."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
from tiny_student import make_outcome

from curriculum.frontier import EntropyGuard, FrontierConfig, FrontierTeacher, GuardConfig, Measure
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, UpdateStats
from simulator.scenario import FAMILIES, Difficulty, Family

SUCCESS_AT_TARGET = math.log(0.45 / 0.55) / 8.0
"""Where sigmoid(8 (c - d)) is .45: at d = c - this."""

PLAIN = {"target_success": 0.45, "offset_prior": 2.0, "offset_rate": 0.1}
"""Settings with which the figures of these tests were worked out by hand."""


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def make_teacher(*, group_size: int = 8, seed: int = 0, **settings) -> FrontierTeacher:
    scenarios = {family: [f"{family}-{i}" for i in range(20)] for family in FAMILIES}
    return FrontierTeacher(FrontierConfig(**{**PLAIN, **settings}), scenarios=scenarios, group_size=group_size, seed=seed)


def make_task(teacher: FrontierTeacher, strictness: float, *, family: Family | None = None) -> TaskSpec:
    """A task of the teacher's own, issued at `strictness`."""
    issued = teacher.propose(1, policy_version=0)[0]
    changed = {"family": family or issued.family, "strictness": strictness, "difficulty": Difficulty.along(strictness)}
    task = TaskSpec(**{**vars(issued), **changed, "mode": Mode.FRONTIER})
    teacher._outstanding[task.uid] = task
    return task


def tracking_rmse(*, num_groups: int, num_steps: int, seed: int, delay: int = 0) -> tuple[float, float]:
    """Student S7: 24 families whose frontiers rise together from about .15 by .55; the error of each task issued at the frontier.

    Returns:
        Root mean square error over all steps, and over the last two thirds.
    """
    rng = np.random.default_rng(seed)
    offset = dict(zip(FAMILIES, rng.normal(0.0, 0.15, len(FAMILIES)), strict=True))
    teacher = make_teacher(seed=seed)
    in_flight: deque[list[GroupOutcome]] = deque()
    errors = []
    for step in range(num_steps):
        outcomes = []
        for task in teacher.propose(num_groups, policy_version=step):
            ability = 0.15 + 0.55 * step / num_steps + offset[task.family]
            outcomes.append(make_outcome(task, rng.binomial(8, sigmoid(8.0 * (ability - task.strictness)))))
            if task.mode is Mode.FRONTIER:
                errors.append((step, task.strictness - np.clip(ability - SUCCESS_AT_TARGET, 0.0, 1.0)))
        in_flight.append(outcomes)
        if len(in_flight) > delay:
            teacher.observe(in_flight.popleft())
    steps, misses = np.array(errors).T
    late = misses[steps >= num_steps / 3]
    return float(np.sqrt(np.mean(misses**2))), float(np.sqrt(np.mean(late**2)))


def test_24_families_are_tracked_with_six_groups_in_50_steps():
    rmse, late_rmse = np.mean([tracking_rmse(num_groups=6, num_steps=50, seed=seed) for seed in range(40)], axis=0)
    assert rmse <= 0.08 and late_rmse <= 0.07


def test_24_families_are_tracked_with_eight_groups_in_200_steps():
    _, late_rmse = np.mean([tracking_rmse(num_groups=8, num_steps=200, seed=seed) for seed in range(10)], axis=0)
    assert late_rmse <= 0.03


@pytest.mark.parametrize("delay", [0, 2, 8, 16])
def test_stationary_student_is_found_whatever_the_delay(delay):
    """Student S1: p = sigmoid(4 - 8 d), so that p = .45 at d = .525; the mean strictness issued each step, over the last two thirds."""
    rng = np.random.default_rng(0)
    teacher = make_teacher()
    in_flight: deque[list[GroupOutcome]] = deque()
    means = []
    for step in range(300 if delay else 150):
        tasks = teacher.propose(32, policy_version=step)
        means.append(np.mean([task.strictness for task in tasks if task.mode is Mode.FRONTIER]))
        in_flight.append([make_outcome(task, rng.binomial(8, sigmoid(4.0 - 8.0 * task.strictness))) for task in tasks])
        if len(in_flight) > delay:
            teacher.observe(in_flight.popleft())
    late = np.array(means[len(means) // 3 :])
    assert np.sqrt(np.mean((late - 0.525) ** 2)) <= 0.02
    assert np.sqrt(np.mean((late - 0.5) ** 2)) <= 0.035  # the survey's yardstick is p = .5, which is .025 away from the target


def test_surprise_is_worked_out_from_the_strictness_issued():
    teacher = make_teacher(start=0.5)
    near = make_outcome(make_task(teacher, 0.4), 4)
    # Expected at .4: .45 + 2 * .1 = .65; half succeeded: (.5 - .65) / 2.
    assert teacher.surprise(near) == pytest.approx(-0.075)
    assert teacher.surprise(make_outcome(make_task(teacher, 0.9), 0)) == 0.0  # a failure far above says nothing
    assert teacher.surprise(make_outcome(make_task(teacher, 0.1), 8)) == 0.0  # nor does a success far below
    assert teacher.surprise(make_outcome(make_task(teacher, 0.9), 8)) == pytest.approx(0.5)


def test_level_moves_by_rho_of_the_mean_and_never_faster_than_rate():
    teacher = make_teacher(start=0.5, rho=0.3, rate=0.05)
    teacher.observe([make_outcome(make_task(teacher, 0.5), 5) for _ in range(4)])
    assert teacher.level == pytest.approx(0.5 + 0.3 * (5 / 8 - 0.45) / 2)
    teacher = make_teacher(start=0.5, rho=0.3, rate=0.05)
    teacher.observe([make_outcome(make_task(teacher, 0.5), 8) for _ in range(4)])
    assert teacher.level == pytest.approx(0.55)
    teacher = make_teacher(start=0.5, rho=0.3, rate=0.05)
    teacher.observe([make_outcome(make_task(teacher, 0.5), 8)])
    assert teacher.level == pytest.approx(0.5 + 0.05 / 4)  # one group alone moves it by a quarter of the step


def test_family_that_differs_gets_an_offset_of_its_own():
    teacher = make_teacher(start=0.5, offset_prior=2.0)
    task = make_task(teacher, 0.5)
    teacher.observe([make_outcome(task, 0)])
    # The level fell to .4875, so .45 - 2 * .0125 = .425 was expected at .5; none succeeded: -.425 / 2, and a first group is half believed.
    assert teacher.level == pytest.approx(0.4875)
    assert teacher.offsets[str(task.family)] == pytest.approx(0.5 * -0.425 / 2)
    assert all(offset == 0.0 for family, offset in teacher.offsets.items() if family != str(task.family))


@pytest.mark.parametrize(("offset", "num_successes", "level", "reach"), [(0.6, 8, 0.55, 1.1), (-0.6, 0, 0.45, -0.1)])
def test_a_family_at_a_bound_is_not_carried_beyond_it_by_the_others(offset, num_successes, level, reach):
    teacher = make_teacher(start=0.5)
    bound, other = FAMILIES[:2]
    teacher.offsets[str(bound)] = offset
    teacher.observe([make_outcome(make_task(teacher, 0.5, family=other), num_successes) for _ in range(4)])
    assert teacher.level == pytest.approx(level) and teacher.level + teacher.offsets[str(bound)] == pytest.approx(reach)


def test_the_first_failure_at_the_bound_counts_in_full_however_far_the_others_rose():
    teacher = make_teacher(start=0.5, offset_prior=2.0)
    mastered, other = FAMILIES[:2]
    teacher.offsets[str(mastered)] = 0.6
    for strictness in (0.5, 0.6, 0.7, 0.8):
        teacher.observe([make_outcome(make_task(teacher, strictness, family=other), 8) for _ in range(4)])
    teacher.observe([make_outcome(make_task(teacher, 1.0, family=mastered), 0)])
    # Below the bound by .0125, by which one group moves the level, so .45 + 2 * .0875 = .625 was expected; a first group is half believed.
    assert teacher.frontier(mastered) == pytest.approx(1.0875 - 0.5 * 0.625 / 2)


def test_impossible_and_mastered_families_do_not_drag_the_others():
    rng = np.random.default_rng(0)
    teacher = make_teacher()
    impossible, mastered = FAMILIES[0], FAMILIES[1]
    for step in range(250):
        outcomes = []
        for task in teacher.propose(8, policy_version=step):
            p = {impossible: 0.0, mastered: 1.0}.get(task.family, sigmoid(8.0 * (0.5 - task.strictness)))
            outcomes.append(make_outcome(task, rng.binomial(8, p)))
        teacher.observe(outcomes)
    others = [teacher.frontier(family) for family in FAMILIES[2:]]
    assert np.mean(others) == pytest.approx(0.525, abs=0.02) and np.std(others) < 0.06
    assert teacher.frontier(impossible) < 0.05 and teacher.frontier(mastered) > 0.95
    raw = [teacher.level + offset for offset in teacher.offsets.values()]
    assert min(raw) >= -0.1 - 1e-9 and max(raw) <= 1.1 + 1e-9


def test_explored_share_is_uniform_and_marked():
    tasks = make_teacher(explore=0.25, start=0.3, jitter=0.0).propose(2000, policy_version=0)
    explored = [task for task in tasks if task.mode is Mode.UNIFORM]
    assert len(explored) / 2000 == pytest.approx(0.25, abs=0.03)
    assert np.mean([task.strictness for task in explored]) == pytest.approx(0.5, abs=0.05)
    assert {task.strictness for task in tasks if task.mode is Mode.FRONTIER} == {0.3}
    assert tasks[0].propensity == pytest.approx((0.25 if tasks[0].mode is Mode.UNIFORM else 0.75) / 24)


def feed_guard(guard: EntropyGuard, series: list[tuple[float, float]], *, success: float = 0.45, target: float = 0.45) -> list[dict]:
    """Decisions on a series of (entropy, reward density)."""
    taken = []
    for step, (entropy, density) in enumerate(series):
        stats = UpdateStats(
            step=step,
            policy_version=step,
            entropy=entropy,
            entropy_sampled=entropy,
            reward_density=density,
            zero_variance_share=0.0,
            kl=0.0,
        )
        taken.append(guard.on_update(stats, success=success, target=target))
    return [decision for decision in taken if decision]


FALLING = [(0.95**i, 0.6 * 0.95**i) for i in range(40)]


def test_guard_leaves_learning_alone():
    guard = EntropyGuard(GuardConfig())
    assert feed_guard(guard, [(0.95**i, 0.6) for i in range(60)]) == [] and guard.shift == 0.0


def test_guard_asks_for_stricter_users_when_success_is_easy_and_for_easier_ones_when_it_is_not():
    lenient, starved = EntropyGuard(GuardConfig()), EntropyGuard(GuardConfig())
    stricter, easier = feed_guard(lenient, FALLING, success=0.5), feed_guard(starved, FALLING, success=0.2)
    assert {decision["action"] for decision in stricter} == {"stricter"} and lenient.shift == pytest.approx(-0.1)
    assert {decision["action"] for decision in easier} == {"easier"} and starved.shift == pytest.approx(0.1)
    assert {"entropy", "entropy_start", "reward_density", "success", "target", "shift"} <= set(stricter[0])


def test_guard_decides_at_most_every_fifth_update_and_takes_its_shift_back():
    guard = EntropyGuard(GuardConfig())
    assert len(feed_guard(guard, FALLING)) <= (40 - 5) // 5
    relaxed = feed_guard(guard, [(1.0, 0.6)] * 60)
    assert {decision["action"] for decision in relaxed} == {"relax"} and guard.shift == pytest.approx(0.0, abs=1e-12)


def test_guard_can_be_switched_off_and_survives_updates_that_trained_on_nothing():
    off = EntropyGuard(GuardConfig(enabled=False))
    assert feed_guard(off, FALLING) == []
    guard = EntropyGuard(GuardConfig())
    gaps = [value for pair in FALLING for value in (pair, (float("nan"), float("nan")))]
    assert len(feed_guard(guard, gaps)) == len(feed_guard(EntropyGuard(GuardConfig()), FALLING))


def test_guard_moves_the_target_and_the_teacher_notes_why():
    teacher = make_teacher()
    for step, (entropy, density) in enumerate(FALLING):
        stats = UpdateStats(
            step=step,
            policy_version=step,
            entropy=entropy,
            entropy_sampled=entropy,
            reward_density=density,
            zero_variance_share=0.0,
            kl=0.0,
        )
        teacher.on_update(stats)
    decisions = teacher.decisions()
    assert decisions[0]["decision"] == "entropy_guard" and decisions[0]["action"] == "stricter"
    assert teacher.target == pytest.approx(0.35) and teacher.metrics()["curriculum/target_success"] == pytest.approx(0.35)
    assert teacher.decisions() == []


def graded(task: TaskSpec, *rewards: float) -> GroupOutcome:
    """A group with these rewards, of which those from .7 are successes."""
    return GroupOutcome(
        task=task,
        rewards=rewards,
        successes=tuple(reward >= 0.7 for reward in rewards),
        num_tokens=(1,) * len(rewards),
        statuses=(Status.OK,) * len(rewards),
    )


def test_graded_rewards_move_the_level_where_nobody_succeeds():
    by_reward = make_teacher(start=0.5, target_success=0.4, measure=Measure.REWARD, group_size=2)
    by_success = make_teacher(start=0.5, target_success=0.4, measure=Measure.SUCCESS, group_size=2)
    group = graded(make_task(by_reward, 0.5), 0.5, 0.66)
    assert by_reward.surprise(group) == pytest.approx((0.58 - 0.4) / 2)
    assert by_success.surprise(group) == pytest.approx(-0.4 / 2)


def test_both_measures_are_one_where_rewards_are_successes():
    teachers = [make_teacher(start=0.5, measure=measure) for measure in Measure]
    for teacher in teachers:
        for _ in range(10):
            tasks = teacher.propose(4, policy_version=0)
            teacher.observe([make_outcome(task, 8 - round(8 * task.strictness)) for task in tasks])
    by_reward, by_success = (teacher.state_dict() for teacher in teachers)
    assert {**by_reward, "settings": None} == {**by_success, "settings": None}
