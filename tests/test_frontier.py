"""The frontier teacher: its two curves, its steering by entropy and density, and where it issues tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_student import make_outcome, make_stats, make_task, make_teacher, practise, sigmoid

from curriculum.frontier import AbilityCurve, DensityCurve, FrontierTeacher, Steering
from curriculum.task import Mode
from simulator.scenario import FAMILIES, Difficulty


def mean_distance(issued, frontier) -> float:
    """Root mean square distance of tasks at the frontier from `frontier(task)` over the last two thirds of the steps."""
    tasks = [task for tasks in issued[len(issued) // 3 :] for task in tasks if task.mode is Mode.FRONTIER]
    return math.sqrt(np.mean([(task.strictness - frontier(task)) ** 2 for task in tasks]))


# The curves


def groups_of(curve, *, slope: float, ability: float, num: int = 200, families=("one",), seed: int = 0):
    """Groups of eight at even strictness, that succeed with sigma(slope (ability - d))."""
    rng, teacher = np.random.default_rng(seed), make_teacher("fixed", families=families)
    groups = []
    for i in range(num):
        d = (i * 0.618) % 1.0
        task = make_task(teacher, d, family=families[i % len(families)])
        able = ability(task.family) if callable(ability) else ability
        groups.append(make_outcome(task, rng.binomial(8, sigmoid(slope * (able - d)))))
    return groups


@pytest.mark.parametrize(("slope", "ability"), [(6.0, 0.7), (20.0, 0.3)])
def test_the_ability_curve_recovers_where_reward_falls_and_how_steeply(slope, ability):
    curve = AbilityCurve(["one"], memory=1000.0)
    assert curve.expected("one", 0.5) == 0.5  # nothing is known
    curve.learn(groups_of(curve, slope=slope, ability=ability))
    a, log_b = curve.mode_2
    assert a == pytest.approx(ability, abs=0.02) and math.exp(log_b) == pytest.approx(slope, rel=0.2)
    assert curve.logit("one", ability) == pytest.approx(0.0, abs=0.3)
    # Of 1,600 coins within about 2 / slope of a, so sd of a is well below 0.02; a draw for m = 1/2 lies near it.
    drawn = [curve.draw("one", 0.0, np.random.default_rng(i)) for i in range(200)]
    assert np.mean(drawn) == pytest.approx(ability, abs=0.02) and 0.001 < np.std(drawn) < 0.02


def test_families_share_the_shape_and_keep_an_offset_each():
    families = ("easy", "plain", "hard")
    offset = {"easy": 0.15, "plain": 0.0, "hard": -0.15}
    curve = AbilityCurve(families, memory=1000.0)
    for start in range(10):
        curve.learn(groups_of(curve, slope=8.0, ability=lambda family: 0.5 + offset[family], num=60, families=families, seed=start))
    assert curve.offsets == pytest.approx(offset, abs=0.05) and sum(curve.offsets.values()) == pytest.approx(0.0)


def test_graded_rewards_that_vary_little_make_the_curve_surer():
    def learned(spread: float) -> AbilityCurve:
        curve, teacher, rng = AbilityCurve(["one"], memory=1000.0), make_teacher("fixed"), np.random.default_rng(0)
        for i in range(60):
            d = (i * 0.618) % 1.0
            mean = sigmoid(6.0 * (0.5 - d))
            rewards = np.clip(mean + spread * rng.standard_normal(8), 0.0, 1.0).tolist()
            curve.learn([make_outcome(make_task(teacher, d), 0, rewards=rewards)])
        return curve

    assert learned(0.05).scale_22[0, 0] < 0.5 * learned(0.3).scale_22[0, 0]


def test_density_is_learned_by_hardness_and_its_window_is_cut_where_it_was_not_seen_to_be_high():
    curve, rng = DensityCurve(memory=1000.0), np.random.default_rng(0)
    assert curve.window(1.0)[1] == pytest.approx(0.0, abs=0.11)  # a coin's is greatest at even odds
    for _ in range(600):
        z = rng.uniform(-4.0, 4.0)
        curve.learn(z, 4.0 * np.var(rng.random(8) < sigmoid(z), ddof=1))
    curve.fit()
    for z in (-2.0, 0.0, 2.0):
        assert curve.at(z) == pytest.approx(1.0 / math.cosh(z / 2.0) ** 2, abs=0.12)  # its kernel flattens the peak by 0.09
    hard, peak = curve.window(0.9)
    assert -1.4 < hard < -0.4 and abs(peak) < 0.7
    in_doubt = DensityCurve(memory=1000.0)
    for z in (0.0, 1.0, 2.0):  # nothing harder was seen
        in_doubt.learn(z, 0.6)
        in_doubt.learn(z, 0.8)
    in_doubt.fit()
    assert in_doubt.window(0.9, noise=2.0)[0] < in_doubt.window(0.9)[0]
    halved = DensityCurve(memory=1000.0)
    halved.load_state_dict(curve.state_dict())
    assert halved.window(0.9) == (hard, peak) and halved.at(1.0) == curve.at(1.0)


# Steering


def steer(
    entropies, *, forking=None, start: int = 0, total: int = 20, steering: Steering | None = None, by_entropy: bool = True
) -> Steering:
    steering = steering or Steering()
    steering.learn(0.5, 0.5)
    for i, entropy in enumerate(entropies):
        stats = make_stats(start + i, entropy=entropy, budget_fraction=(start + i + 1) / total)
        if forking:
            stats = make_stats(start + i, entropy=entropy, entropy_forking=forking[i], budget_fraction=(start + i + 1) / total)
        steering.on_update(stats, by_entropy=by_entropy)
    return steering


def test_entropy_that_the_budget_cannot_afford_makes_practice_harder_and_wider():
    # ln H falls by 0.2 an update of a twentieth: 4 a budget. After ten, half is left, and the window's mean lies 0.7 below the start's
    # (0.2): 4 * 0.5 / (ln 10 - 0.7) = 1.25.
    steering = steer([math.exp(-0.2 * i) for i in range(10)])
    assert steering.pressure == pytest.approx(4.0 * 0.5 / (math.log(10.0) - 0.9 + 0.2), rel=0.02)
    assert steering.ease == -0.25 and steering.widen == pytest.approx(steering.pressure)
    # The same fall over a budget a tenth as fast is affordable.
    assert steer([math.exp(-0.02 * i) for i in range(10)]).ease == 0.0
    assert steer([math.exp(-0.2 * i) for i in range(10)], by_entropy=False).pressure == 0.0


def test_forking_tokens_count_where_they_fall_faster_and_rising_entropy_makes_practice_easier():
    falling = [math.exp(-0.2 * i) for i in range(10)]
    assert steer([1.0] * 10, forking=falling).pressure == steer(falling).pressure
    rising = steer([math.exp(0.06 * i) for i in range(8)])
    # 1.2 a budget, 0.6 of it left, ln 2 less the window's mean of 0.21 above a start of 0.06.
    assert rising.growth == pytest.approx(1.2 * 0.6 / (math.log(2.0) - 0.21 + 0.06), rel=0.02) and rising.ease == 0.25
    assert rising.widen == 1.0


@pytest.mark.parametrize("total", [50, 1000])
def test_noise_of_entropy_moves_practice_no_more_in_many_small_updates_than_in_few(total):
    rng = np.random.default_rng(0)
    noise_N = 0.05 * rng.standard_normal(total)

    def share_moved(fall: float) -> float:
        steering, moved = Steering(), 0
        for i, noise in enumerate(noise_N):
            steer([math.exp(noise - fall * i / total)], start=i, total=total, steering=steering)
            moved += steering.ease != 0.0
        return moved / total

    assert share_moved(0.0) < 0.03 and share_moved(4.6) > 0.85


def test_density_below_what_was_expected_makes_practice_easier_and_wider_and_all_of_it_is_bounded_and_ends():
    steering = Steering()
    for _ in range(40):
        steering.learn(0.3, 0.5)
    assert steering.on_update(make_stats(0), by_entropy=True)
    assert steering.ease == 0.5 and steering.widen == pytest.approx(0.5 / 0.3)  # ln 5/3 = 0.51
    for _ in range(600):
        steering.learn(0.0, 0.5)
    steering.on_update(make_stats(1), by_entropy=True)
    assert steering.ease == 1.0
    for _ in range(600):
        steering.learn(0.5, 0.5)
    assert steering.on_update(make_stats(2), by_entropy=True) and (steering.ease, steering.widen) == (0.0, pytest.approx(1.0, abs=0.001))
    assert not steering.on_update(make_stats(3), by_entropy=True)


# The teacher


def test_the_first_tasks_spread_over_strictness_and_later_ones_gather_where_groups_differ():
    teacher = make_teacher("frontier", explore=0.0)
    issued = practise(teacher, 0.6, num_steps=30)
    first, last = sorted(task.strictness for task in issued[0]), [task.strictness for task in issued[-1]]
    assert np.diff([0.0, *first, 1.0]).max() < 0.13 and {task.mode for task in issued[0]} == {Mode.UNIFORM}
    assert np.mean(last) == pytest.approx(0.65, abs=0.06) and np.std(last) < 0.1 and {task.mode for task in issued[-1]} == {Mode.FRONTIER}


@pytest.mark.parametrize("seed", range(3))
def test_a_window_a_tenth_wide_is_found_and_followed(seed):
    def success(task) -> float:
        return sigmoid(40.0 * (0.2 + 0.01 * task.teacher_step - task.strictness))

    issued = practise(make_teacher("frontier", seed=seed), 0.0, num_steps=60, success=success, seed=seed)
    assert mean_distance(issued, lambda task: 0.2 + 0.01 * task.teacher_step) < 0.06


def test_24_rising_families_are_followed_with_few_groups():
    """Student S7: frontiers rise together from about 0.15 by 0.55."""
    misses = []
    for seed in range(4):
        offset = dict(zip(FAMILIES, np.random.default_rng(seed).normal(0.0, 0.15, len(FAMILIES)), strict=True))

        def ability(task, offset=offset) -> float:
            return 0.15 + 0.55 * (task.teacher_step - 1) / 50 + offset[task.family]

        issued = practise(make_teacher("frontier", families=FAMILIES, seed=seed), ability, num_steps=50, num_groups=6, seed=seed)
        misses.append(mean_distance(issued, lambda task, ability=ability: np.clip(ability(task) + 0.05, 0.0, 1.0)))
    assert np.mean(misses) < 0.11


@pytest.mark.parametrize("delay", [0, 8])
def test_late_outcomes_do_not_make_it_swing(delay):
    issued = practise(make_teacher("frontier"), 0.5, num_steps=60, delay=delay)
    means = [np.mean([task.strictness for task in tasks if task.mode is Mode.FRONTIER]) for tasks in issued[30:]]
    assert np.mean(means) == pytest.approx(0.55, abs=0.06) and np.std(means) < 0.05


def test_a_graded_reward_is_practised_where_a_binary_one_of_the_same_mean_is():
    def issued(seed: int, *, graded: bool) -> float:
        teacher, rng = make_teacher("frontier", seed=seed), np.random.default_rng(seed)
        for step in range(30):
            outcomes = []
            for task in teacher.propose(16, policy_version=step):
                share = rng.binomial(8, sigmoid(8.0 * (0.5 - task.strictness)), size=8) / 8.0
                coins = rng.random(8) < sigmoid(8.0 * (0.5 - task.strictness))
                outcomes.append(make_outcome(task, 0, rewards=(share if graded else coins).astype(float).tolist()))
            teacher.observe(outcomes)
        return float(np.mean([task.strictness for task in teacher.propose(64, policy_version=30) if task.mode is Mode.FRONTIER]))

    assert np.mean([issued(seed, graded=True) - issued(seed, graded=False) for seed in range(4)]) == pytest.approx(0.0, abs=0.04)


def test_the_share_that_is_spread_falls_while_the_first_groups_come_back():
    teacher: FrontierTeacher = make_teacher("frontier", explore=0.125)
    shares = [teacher.explore_share]
    for step in range(5):
        teacher.observe([make_outcome(task, 4) for task in teacher.propose(4, policy_version=step)])
        shares.append(teacher.explore_share)
    assert shares == [1.0, 0.75, 0.5, 0.25, 0.125, 0.125]


def test_what_moves_practice_is_logged_with_its_inputs_and_shown():
    teacher: FrontierTeacher = make_teacher("frontier")
    practise(teacher, 0.5, num_steps=10)
    for step in range(10):
        teacher.on_update(make_stats(step, entropy=math.exp(-0.3 * step), budget_fraction=(step + 1) / 20))
    decisions = [decision for decision in teacher.decisions() if decision["decision"] == "steer"]
    assert decisions and decisions[-1]["ease"] < 0.0 and decisions[-1]["pressure"] > 1.0
    assert {"ease", "explore", "pressure", "growth", "density_ratio"} <= set(decisions[-1])
    shown = teacher.metrics()
    assert shown["curriculum/ease"] == decisions[-1]["ease"] and shown["curriculum/explore_share"] > 0.05
    assert 0.0 < shown["curriculum/hard_edge_reward"] < shown["curriculum/peak_reward"] < 1.0
    still = make_teacher("frontier", entropy=False)
    practise(still, 0.5, num_steps=3)
    for step in range(10):
        still.on_update(make_stats(step, entropy=math.exp(-0.3 * step), budget_fraction=(step + 1) / 20))
    assert not [decision for decision in still.decisions() if decision.get("pressure", 0.0) > 0.0]


def test_off_the_frontier_the_propensity_is_the_share_of_its_mode():
    teacher = make_teacher("frontier", explore=0.2, families=("a", "b"))
    practise(teacher, 0.5, num_steps=2)
    tasks = teacher.propose(2000, policy_version=2)
    shares = {mode: np.mean([task.mode is mode for task in tasks]) for mode in (Mode.UNIFORM, Mode.FRONTIER)}
    assert shares[Mode.UNIFORM] == pytest.approx(teacher.explore_share, abs=0.03)
    assert all(task.propensity == pytest.approx(0.5 * shares[Mode.UNIFORM], abs=0.02) for task in tasks if task.mode is Mode.UNIFORM)
    assert all(Difficulty.along(task.strictness) == task.difficulty for task in tasks)
