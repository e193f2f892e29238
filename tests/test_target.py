"""The teacher target: tracking by hand and with few groups, many families and late outcomes; replay and the entropy guard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_student import make_outcome, make_stats, make_task, practise, teach
from tiny_student import make_teacher as make_any_teacher

from curriculum.forgetting import ForgettingConfig, ForgettingWatch
from curriculum.target import EntropyGuard, GuardConfig, TargetTeacher
from curriculum.task import GroupOutcome, Mode, Status
from simulator.scenario import FAMILIES, Difficulty

PLAIN = {"target_success": 0.45, "offset_prior": 2.0, "offset_rate": 0.1}
"""Settings with which the values of these tests were worked out by hand."""
TARGET_BELOW = 0.025
"""Where sigmoid(8 (c - d)) is 0.45: at d = c + this."""


def make_teacher(**settings) -> TargetTeacher:
    return make_any_teacher("target", families=FAMILIES, **{**PLAIN, **settings})


def test_24_rising_families_are_tracked_with_few_groups():
    """Student S7: frontiers rise together from about 0.15 by 0.55. Root mean square error of each task issued at the frontier."""
    errors, num_steps = [], 50
    for seed in range(8):
        offset = dict(zip(FAMILIES, np.random.default_rng(seed).normal(0.0, 0.15, len(FAMILIES)), strict=True))

        def ability(task, offset=offset) -> float:
            return 0.15 + 0.55 * (task.teacher_step - 1) / num_steps + offset[task.family]

        issued = practise(make_teacher(seed=seed), ability, num_steps=num_steps, num_groups=6, seed=seed)
        errors += [
            (step, task.strictness - np.clip(ability(task) + TARGET_BELOW, 0.0, 1.0))
            for step, tasks in enumerate(issued)
            for task in tasks
            if task.mode is Mode.FRONTIER
        ]
    steps, misses = np.array(errors).T
    assert np.sqrt(np.mean(misses**2)) <= 0.08 and np.sqrt(np.mean(misses[steps >= num_steps / 3] ** 2)) <= 0.07


def test_the_frontier_error_is_worked_out_from_the_strictness_issued():
    teacher = make_teacher(start=0.5)
    # Expected at 0.4: 0.45 + 2 * 0.1 = 0.65; half succeeded: (0.5 - 0.65) / 2.
    assert teacher.frontier_error(make_outcome(make_task(teacher, 0.4), 4)) == pytest.approx(-0.075)
    assert teacher.frontier_error(make_outcome(make_task(teacher, 0.9), 0)) == 0.0  # a failure far above says nothing
    assert teacher.frontier_error(make_outcome(make_task(teacher, 0.1), 8)) == 0.0  # nor does a success far below
    assert teacher.frontier_error(make_outcome(make_task(teacher, 0.9), 8)) == pytest.approx(0.5)


@pytest.mark.parametrize(("num_groups", "num_successes", "move"), [(4, 5, 0.3 * (5 / 8 - 0.45) / 2), (4, 8, 0.05), (1, 8, 0.05 / 4)])
def test_the_level_moves_by_rho_of_the_mean_at_most_by_rate_and_less_for_few_groups(num_groups, num_successes, move):
    teacher = make_teacher(start=0.5)
    teacher.observe([make_outcome(make_task(teacher, 0.5), num_successes) for _ in range(num_groups)])
    assert teacher.level == pytest.approx(0.5 + move)


def test_a_family_that_differs_gets_an_offset():
    teacher = make_teacher(start=0.5)
    teach(teacher, 0.5, 0, family=FAMILIES[3])
    # The level fell to 0.4875, so 0.425 was expected at 0.5; none succeeded: -0.425 / 2, and a first group is half believed.
    assert teacher.level == pytest.approx(0.4875) and teacher.offsets.pop(str(FAMILIES[3])) == pytest.approx(0.5 * -0.425 / 2)
    assert set(teacher.offsets.values()) == {0.0}


def test_a_family_at_a_bound_is_not_carried_beyond_it_by_the_others():
    teacher, (bound, other) = make_teacher(start=0.5), FAMILIES[:2]
    teacher.offsets[str(bound)] = 0.6
    teacher.observe([make_outcome(make_task(teacher, 0.5, family=other), 8) for _ in range(4)])
    assert teacher.level == pytest.approx(0.55) and teacher.level + teacher.offsets[str(bound)] == pytest.approx(1.1)


def test_the_ceiling_follows_easy_groups_and_the_target_is_a_share_of_it():
    teacher = make_teacher(start=0.8, target_success=0.46, ceiling_rate=0.5)
    teach(teacher, 0.7, 4)
    assert teacher.ceiling == 1.0  # near the frontier failure says where it lies, not how an able agent would do
    teach(teacher, 0.1, 4)
    assert teacher.ceiling == pytest.approx(0.75) and teacher.target == pytest.approx(0.75 * 0.46)
    assert teacher.frontier_error(make_outcome(make_task(teacher, 0.1), 6)) == 0.0  # six of eight are the ceiling


def test_mastered_families_do_not_move_the_ceiling():
    teacher = make_teacher(start=0.8, ceiling_rate=0.5)
    teacher.offsets[str(FAMILIES[0])], teacher.num_seen[str(FAMILIES[0])] = 0.3, 100
    teach(teacher, 0.1, 4, family=FAMILIES[0])
    assert teacher.frontier(FAMILIES[0]) >= 1.0 and teacher.ceiling == 1.0


def test_the_running_success_is_that_of_groups_at_the_frontier():
    teacher = make_teacher(start=0.5)
    for mode, success in ((Mode.REPLAY, 0.45), (Mode.UNIFORM, 0.45), (Mode.FRONTIER, 0.45 + 0.05 * (1.0 - 0.45))):
        teach(teacher, 0.5, 8, mode=mode)
        assert teacher.success == pytest.approx(success)


def test_graded_rewards_move_the_frontier_without_any_success():
    by_reward, by_success = (
        make_teacher(start=0.5, target_success=0.4, measure=measure, group_size=2) for measure in ("reward", "success")
    )
    task = make_task(by_reward, 0.5)
    group = GroupOutcome(task=task, rewards=(0.5, 0.66), successes=(0, 0), num_tokens=(1, 1), statuses=(Status.OK,) * 2)
    assert by_reward.frontier_error(group) == pytest.approx((0.58 - 0.4) / 2)
    assert by_success.frontier_error(group) == pytest.approx(-0.4 / 2)


def test_propensities_of_the_three_modes_add_up_to_one_while_a_part_is_replay():
    teacher = make_any_teacher("target", explore=0.2, forgetting=replace(STARK, num_errors=0.0))
    teacher.observe([probe(0.1, reward) for reward in (1.0, 1.0, 0.0, 1.0)])
    assert teacher.forgetting.replay_share == pytest.approx(0.5)
    tasks = teacher.propose(2000, policy_version=0)
    propensities = {task.mode: task.propensity for task in tasks}
    assert propensities == pytest.approx({Mode.UNIFORM: 0.2, Mode.REPLAY: 0.4, Mode.FRONTIER: 0.4})
    assert {mode: np.mean([task.mode is mode for task in tasks]) for mode in propensities} == pytest.approx(propensities, abs=0.04)
    families = make_teacher(explore=0.0).propose(24, policy_version=0)
    assert [task.propensity for task in families] == pytest.approx([1 / 24] * 24)


# Forgetting

STARK = ForgettingConfig(rate=0.5, fading=0.0, num_errors=0.0, full=0.5)
"""A band is judged from two dialogues on."""


def probe(strictness: float, reward: float) -> GroupOutcome:
    task = make_any_teacher("fixed").propose(1, policy_version=0)[0]
    task = replace(task, uid="probe", mode=Mode.PROBE, group_size=1, difficulty=Difficulty.along(strictness))
    return make_outcome(task, round(reward), rewards=(reward,))


def watch(*rewards: float, strictness: float = 0.1, config: ForgettingConfig = STARK) -> ForgettingWatch:
    watched = ForgettingWatch(config)
    watched.learn([probe(strictness, reward) for reward in rewards], rewards)
    return watched


def test_a_fall_of_a_judged_band_becomes_a_share_of_replay():
    assert watch(1.0).drops == [0.0] * 5
    # now = 1, then 0.5: half of the best is gone, and 0.5 of it calls for all groups.
    fallen = watch(1.0, 1.0, 0.0)
    assert fallen.drops == pytest.approx([0.5, 0.0, 0.0, 0.0, 0.0]) and fallen.replay_share == pytest.approx(1.0)
    fallen.learn([probe(0.1, 1.0)], [1.0])
    assert fallen.drops[0] == pytest.approx(0.25) and fallen.replay_share == pytest.approx(0.5)
    fallen.learn([probe(0.9, 0.0)] * 50, [0.0] * 50)
    assert fallen.replay_share == pytest.approx(0.5)  # a band that never succeeded lost nothing
    fallen.learn([probe(0.1, 1.0)] * 60, [1.0] * 60)
    assert fallen.replay_share == 0.0
    assert watch(0.6, 0.6, 0.6, 0.2, 0.2, strictness=0.9).drops[4] == pytest.approx(0.3)


def test_chance_explains_so_many_standard_errors_and_a_lucky_best_fades():
    # best 1, now 0.5: m = 0.75, standard error sqrt(0.75 * 0.25 * 0.5 / 1.5) = 0.25.
    noisy = watch(1.0, 1.0, 0.0, config=replace(STARK, num_errors=1.5))
    assert noisy.replay_share == pytest.approx((0.5 - 0.375) / 0.5)
    # best = 1 goes half of the way to now = 0.5.
    assert watch(1.0, 1.0, 0.0, config=replace(STARK, fading=0.5)).drops[0] == pytest.approx(0.25)


def test_the_ablation_never_replays_and_broken_probes_do_not_count():
    off = watch(1.0, 1.0, *[0.0] * 5, config=replace(STARK, enabled=False))
    assert off.replay_share == 0.0 and off.drops[0] > 0.9
    before = list(off.now)
    off.learn([probe(0.1, 1.0)], [float("nan")])
    assert off.now == before


def test_it_replays_while_the_probes_show_forgetting_and_records_it():
    teacher = make_any_teacher("target")
    teacher.observe([probe(0.1, 1.0)] * 20)
    assert not [task for task in teacher.propose(100, policy_version=0) if task.mode is Mode.REPLAY]
    teacher.observe([probe(0.1, 0.0)] * 20)
    decision = next(decision for decision in teacher.decisions() if decision["decision"] == "replay")
    assert decision["share"] == teacher.metrics()["curriculum/replay_share"] == 1.0 and decision["drops"][0] > 0.5
    tasks = teacher.propose(400, policy_version=0)
    shares = {mode: sum(task.mode is mode for task in tasks) / 400 for mode in Mode}
    assert shares[Mode.FRONTIER] == 0.0 and shares[Mode.UNIFORM] == pytest.approx(0.05, abs=0.03)
    assert {task.propensity for task in tasks if task.mode is Mode.REPLAY} == {0.95}


# Entropy guard

FALLING = [(0.95**i, 0.6 * 0.95**i) for i in range(40)]
"""Entropy and reward density."""


def feed(guard: EntropyGuard, series, *, success: float = 0.45, target: float = 0.45) -> list[dict]:
    """The guard's decisions, each with its update."""
    taken = []
    for step, (entropy, density) in enumerate(series):
        decision = guard.on_update(make_stats(step, entropy=entropy, reward_density=density), success=success, target=target)
        if decision:
            taken.append({**decision, "update": step})
    return taken


def test_the_guard_asks_for_stricter_users_when_success_is_easy_and_for_easier_ones_when_it_is_not():
    for success, action, shift in ((0.5, "stricter", -0.1), (0.2, "easier", 0.1)):
        guard = EntropyGuard(GuardConfig())
        decisions = feed(guard, FALLING, success=success)
        assert {decision["action"] for decision in decisions} == {action} and guard.shift == pytest.approx(shift)
        assert {"entropy", "entropy_start", "reward_density", "success", "target", "shift"} <= set(decisions[0])
        assert {decision["action"] for decision in feed(guard, [(1.0, 0.6)] * 60)} == {"relax"}
        assert guard.shift == pytest.approx(0.0, abs=1e-12)


def test_the_guard_acts_only_while_entropy_is_low_and_falling_and_groups_are_equal():
    low = [(1.0, 0.6)] * 5 + [(0.3, 0.1)] * 6
    cases = {
        "density holds": [(0.95**i, 0.6) for i in range(60)],
        "entropy holds": [(1.0, 0.6 * 0.95**i) for i in range(60)],
        # Low, and rising ever after: the condition needs a fall.
        "entropy rises": low + [(0.3 + 0.005 * i, 0.1) for i in range(1, 40)],
    }
    for name, series in cases.items():
        actions = [decision["action"] for decision in feed(EntropyGuard(GuardConfig(smoothing=1.0)), series)]
        assert actions == [], name


def test_the_guard_decides_only_after_the_condition_held_and_so_long_after_its_last_decision():
    config = GuardConfig(smoothing=1.0, hold_updates=5)
    # The start is made of five updates, so that entropy is low and falling from the update after on: held for five at update 9.
    falling = [(1.0, 0.6)] * 5 + [(0.5 * 0.99**i, 0.1) for i in range(20)]
    updates = [decision["update"] for decision in feed(EntropyGuard(config), falling)]
    assert updates == [9, 14, 19, 24]
    # Interrupted every fourth update the condition never holds for five in a row.
    broken = [(1.0, 0.6)] * 5 + [(0.5 * 0.99**i if i % 4 else 1.0, 0.1) for i in range(20)]
    assert feed(EntropyGuard(config), broken) == []


def test_the_guard_can_be_switched_off_and_passes_over_updates_without_measurements():
    assert feed(EntropyGuard(GuardConfig(enabled=False)), FALLING) == []
    assert feed(EntropyGuard(GuardConfig()), [(float("nan"), float("inf"))] * 20) == []


def test_the_guard_moves_the_target_and_the_teacher_records_why():
    teacher = make_teacher()
    for step, (entropy, density) in enumerate(FALLING):
        teacher.on_update(make_stats(step, entropy=entropy, reward_density=density))
    first = teacher.decisions()[0]
    assert (first["decision"], first["action"]) == ("entropy_guard", "stricter") and teacher.decisions() == []
    assert teacher.target == teacher.metrics()["curriculum/target_success"] == pytest.approx(0.35)
