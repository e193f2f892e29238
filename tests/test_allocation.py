"""Allocation of groups to families by progress: its equations by hand, and families that teach nothing under any teacher."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from curriculum.allocation import AllocationConfig, FamilyAllocation
from curriculum.toy.simulation import simulate

FOUR = ("a", "b", "c", "d")


def make_progress(*groups: tuple[float, float], rate: float = 0.5, num_errors: float = 0.0) -> FamilyAllocation:
    """One family after groups of (strictness, performance)."""
    allocation = FamilyAllocation(AllocationConfig(rate=rate, num_errors=num_errors), ("a",))
    for strictness, performance in groups:
        allocation.learn("a", strictness=strictness, performance=performance)
    return allocation


def make_allocation(*constant: str, **settings) -> FamilyAllocation:
    """The first family rose from 0.1 to 0.3, some stayed at 0.5."""
    plain = {"rate": 0.5, "num_errors": 0.0, "prior_progress": 0.02, "largest": 4.0}
    allocation = FamilyAllocation(AllocationConfig(**{**plain, **settings}), FOUR)
    for success in (0.1, 0.3):
        allocation.learn("a", strictness=0.5, performance=success)
        for family in constant:
            allocation.learn(family, strictness=0.5, performance=0.5)
    return allocation


def test_progress_is_the_running_residual_at_equal_strictness():
    assert make_progress((0.3, 0.9)).progress() == pytest.approx([0.0])  # the first group has no past
    # 0.4 above the first group, half of which counts; forgetting counts as much.
    assert make_progress((0.5, 0.3), (0.5, 0.7)).progress() == make_progress((0.5, 0.7), (0.5, 0.3)).progress() == pytest.approx([0.2])
    # The same success though 0.1 stricter, where 0.2 less was expected.
    assert make_progress((0.5, 0.3), (0.6, 0.3)).progress() == pytest.approx([0.1])


def test_progress_is_the_excess_over_the_standard_errors_of_chance():
    # g = 0.2; mean square residual 0.16 / 2 = 0.08, so one standard error is sqrt(0.5 / 4 * 0.08) = 0.1.
    groups = ((0.5, 0.3), (0.5, 0.7))
    assert make_progress(*groups, num_errors=1.0).progress() == pytest.approx([np.sqrt(0.04 - 0.01)])
    assert make_progress(*groups, num_errors=2.0).progress() == pytest.approx([0.0], abs=1e-7)


def test_the_slope_is_learned_where_strictness_varies():
    strictness = np.random.default_rng(0).random(2000)
    for success in (np.full(2000, 0.5), 1.0 - strictness):
        # By the assumed slope each group would have a residual of up to 2 * 0.5.
        assert make_progress(*zip(strictness, success, strict=True), rate=0.02).figures_FC[0, -1] < 0.01


def test_shares_follow_progress_above_the_floor_and_groups_are_dealt_by_them():
    allocation = make_allocation("b", "c", "d", uniform_floor=0.25, known_after=0.0)
    # The second group lies 0.2 above the first, half of which counts; so w = 0.12 against 0.02 for each of the three others.
    first = 1 / 16 + 0.75 * 12 / 18
    assert allocation.shares() == pytest.approx([first] + 3 * [1 / 16 + 0.75 * 2 / 18]) and allocation.shares().sum() == pytest.approx(1.0)
    assert Counter(family for family, _ in allocation.choose(1000, np.random.default_rng(0)))["a"] == pytest.approx(1000 * first, abs=2)


def test_families_seen_little_are_judged_like_the_mean():
    # Two groups count half: w = 0.5 * 0.1 + 0.5 * 0.025 + 0.02 for the first, 0.025 + 0.02 for the three without groups.
    assert make_allocation(uniform_floor=0.0, known_after=2.0).shares() == pytest.approx([0.0825 / 0.2175] + 3 * [0.045 / 0.2175])


def test_no_family_gets_more_than_its_multiple_of_an_even_share():
    # The first would get 0.12 / 0.18 of the groups; the three others share the 0.6 that are left.
    allocation = make_allocation("b", "c", "d", uniform_floor=0.0, known_after=0.0, largest=1.6)
    assert allocation.shares() == pytest.approx([0.4, 0.2, 0.2, 0.2])


def test_families_that_teach_nothing_fall_to_the_floor():
    """Student S5: four families that are learned one after the other, a coin, an impossible and a mastered one. Even dealing gives 1/7."""
    trace = simulate("S5_noise_families", "fixed", {"allocation.uniform_floor": 0.25})
    dealt = Counter(task.family for tasks in trace.tasks for task in tasks)
    assert trace.student.scores().mean() >= 0.9
    assert dealt["noise"] <= 0.2 * 6400 and dealt["impossible"] <= 0.13 * 6400 and dealt["mastered"] <= 0.13 * 6400
