"""Beta counts on strictness bins: credit, fading, smoothing and sharing by hand; Thompson draws that find targets and return."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_student import make_outcome, make_teacher, practise, sigmoid

from curriculum.task import GroupOutcome, Mode
from curriculum.thompson import BinsConfig, StrictnessBins
from simulator.scenario import Difficulty


def make_group(strictness: float, num_successes: int, *, family: str = "a", version: int = 0) -> GroupOutcome:
    task = make_teacher("fixed", group_size=4).propose(1, policy_version=0)[0]
    return make_outcome(replace(task, family=family, difficulty=Difficulty.along(strictness), policy_version=version), num_successes)


def make_bins(families: str = "a", **settings) -> StrictnessBins:
    """Four bins with a kernel too narrow for neighbours."""
    return StrictnessBins(BinsConfig(**{"num_bins": 4, "smoothing": 0.001, "family_prior": 0.0, **settings}), tuple(families))


def learn(bins: StrictnessBins, *groups: GroupOutcome) -> None:
    bins.learn(groups, [group.success_rate for group in groups])


def test_the_first_belief_is_that_stricter_is_harder_and_a_group_counts_in_the_bin_it_was_issued_in():
    bins = make_bins()
    assert bins.posterior("a") == pytest.approx(np.array([[1.75, 0.25], [1.25, 0.75], [0.75, 1.25], [0.25, 1.75]]))
    learn(bins, make_group(0.6, 3))
    # Bin 2 of 4: (0.75, 1.25) and 3 successes, 1 failure; the shared grid, of the same counts, is worth its 2 rollouts.
    assert bins.posterior("a")[2] == pytest.approx([2 * 3.75 / 6 + 3, 2 * 2.25 / 6 + 1])
    assert bins.posterior("a")[1] == pytest.approx([1.25, 0.75])


def test_evidence_fades_with_each_version_in_any_order():
    early, late = make_group(0.1, 4, version=0), make_group(0.9, 0, version=2)
    expected = np.zeros((4, 2))
    expected[0, 0], expected[3, 1] = 4 * 0.25, 4.0
    for order in ((early, late), (late, early)):
        bins = make_bins(discount=0.5)
        for group in order:
            learn(bins, group)
        assert bins.state_dict()["own"] == [pytest.approx(expected)] and bins.state_dict()["version"] == 2


def test_a_neighbour_counts_by_distance_along_the_slope_and_at_most_its_prior():
    bins = make_bins(smoothing=0.25, slope=1.0, discount=1.0)
    before = bins.curve_K2
    learn(bins, make_group(0.4, 2))
    # Half of 4 rollouts succeeded in bin 1. One bin away exp(-1/2) = 0.6065 of them count, and 0.25 stricter a share of 0.25.
    near = 4 * 0.6065
    assert (bins.curve_K2 - before)[:3] == pytest.approx(
        np.array([[0.75 * near, 0.25 * near], [2.0, 2.0], [0.25 * near, 0.75 * near]]), abs=1e-3
    )
    bins = make_bins(smoothing=0.25, neighbour_prior=1.0, discount=1.0)
    learn(bins, *[make_group(0.4, 2)] * 10)
    assert (bins.curve_K2 - before).sum(axis=-1) == pytest.approx([1.0, 40.0, 1.0, 1.0])


def test_families_share_the_curve_and_differ_by_offsets_of_mean_zero():
    bins = make_bins("ab", slope=2.0, offset_prior=2.0)
    learn(bins, make_group(0.6, 4))
    # 0.375 was expected in bin 2 and all succeeded: half of 0.625 / 2, of which the other family then takes half with the other sign.
    assert bins.offsets_F[0] == pytest.approx(0.5 * 0.3125 / 2) and bins.offsets_F[1] == pytest.approx(-0.5 * 0.3125 / 2)
    bins = make_bins("ab", family_prior=8.0)
    for _ in range(20):
        learn(bins, make_group(0.6, 1))
    seen, unseen = (bins.posterior(family)[2] for family in "ab")
    assert unseen.sum() == pytest.approx(8.0) and seen.sum() == pytest.approx(8.0 + 80.0)


def test_forgotten_easy_users_are_practised_again():
    """Success at lenient users falls to the target: a tracker at the frontier misses it, the explored share finds it."""

    def success(task) -> float:
        return 0.45 if task.teacher_step > 30 and task.strictness < 0.2 else sigmoid(8.0 * (0.7 - task.strictness))

    issued = practise(make_teacher("beta_thompson"), 0.0, num_steps=110, num_groups=32, success=success)
    lenient = [np.mean([task.strictness < 0.2 for task in tasks if task.mode is Mode.FRONTIER]) for tasks in issued]
    assert np.mean(lenient[10:30]) < 0.02 and np.mean(lenient[60:]) > 0.3
