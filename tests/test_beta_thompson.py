"""Beta counts on strictness bins: credit, fading, smoothing and sharing by hand; Thompson draws that find targets and come back."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest
from tiny_student import make_outcome

from curriculum.bandits import BetaThompsonConfig, BetaThompsonTeacher
from curriculum.frontier import BinsConfig, StrictnessBins
from curriculum.task import GroupOutcome, Mode, TaskSpec
from simulator.scenario import FAMILIES, Difficulty

NARROW = 0.001
"""A kernel so narrow that bins do not hear each other."""


def sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))


def make_group(strictness: float, num_successes: int, *, family: str = "a", version: int = 0, group_size: int = 4) -> GroupOutcome:
    task = TaskSpec(
        uid=f"{family}-{strictness}-{version}",
        family=family,
        scenario_id="s",
        difficulty=Difficulty.along(strictness),
        strictness=strictness,
        group_size=group_size,
        seed=0,
        mode=Mode.FRONTIER,
        teacher_step=0,
        policy_version=version,
        propensity=1.0,
    )
    return make_outcome(task, num_successes)


def make_bins(families: str = "a", **settings) -> StrictnessBins:
    return StrictnessBins(BinsConfig(**{"num_bins": 4, "smoothing": NARROW, "family_prior": 0.0, **settings}), tuple(families))


def make_teacher(families=("a",), *, seed: int = 0, **settings) -> BetaThompsonTeacher:
    scenarios = {family: [f"{family}-{i}" for i in range(20)] for family in families}
    return BetaThompsonTeacher(BetaThompsonConfig(**settings), scenarios=scenarios, group_size=8, seed=seed)


def test_before_any_evidence_stricter_is_believed_harder_and_worth_two_rollouts():
    bins = make_bins()
    assert bins.posterior("a") == pytest.approx(np.array([[1.75, 0.25], [1.25, 0.75], [0.75, 1.25], [0.25, 1.75]]))


def test_group_counts_in_the_bin_it_was_issued_in():
    bins = make_bins()
    bins.learn([make_group(0.6, 3)])
    # Bin 2 of 4: (.75, 1.25) and 3 successes, 1 failure; the shared grid, of the same counts, is worth its 2 rollouts: (.625, 0.375) * 2.
    assert bins.posterior("a")[2] == pytest.approx([2 * 3.75 / 6 + 3, 2 * 2.25 / 6 + 1])
    assert bins.posterior("a")[1] == pytest.approx([1.25, 0.75])


def test_evidence_fades_with_each_version_and_late_evidence_counts_for_what_it_is_worth():
    fresh, late = make_bins(discount=0.5), make_bins(discount=0.5)
    fresh.learn([make_group(0.1, 4, version=0)])
    fresh.learn([make_group(0.9, 0, version=2)])
    late.learn([make_group(0.9, 0, version=2)])
    late.learn([make_group(0.1, 4, version=0)])
    expected = np.zeros((4, 2))
    expected[0, 0], expected[3, 1] = 4 * 0.25, 4.0
    for bins in (fresh, late):
        assert bins.state_dict()["own"] == [pytest.approx(expected)]
        assert bins.state_dict()["version"] == 2


def test_neighbour_is_heard_by_distance_and_along_the_slope():
    bins = make_bins(smoothing=0.25, slope=1.0, discount=1.0)
    unheard = bins.shared()
    bins.learn([make_group(0.4, 2)])
    gained_K2 = bins.shared() - unheard
    # Half of 4 rollouts succeeded in bin 1. One bin away exp(-1/2) = .6065 of them are heard, and .25 stricter a share of .25.
    assert gained_K2[1] == pytest.approx([2.0, 2.0])
    assert gained_K2[2] == pytest.approx([0.25 * 4 * 0.6065, 0.75 * 4 * 0.6065], abs=1e-3)
    assert gained_K2[0] == pytest.approx([0.75 * 4 * 0.6065, 0.25 * 4 * 0.6065], abs=1e-3)


def test_neighbours_count_for_no_more_than_their_prior():
    bins = make_bins(smoothing=0.25, neighbour_prior=1.0, discount=1.0)
    unheard = bins.shared()
    bins.learn([make_group(0.4, 2) for _ in range(10)])
    assert (bins.shared() - unheard).sum(axis=-1) == pytest.approx([1.0, 40.0, 1.0, 1.0])


def test_family_never_seen_is_believed_like_the_others():
    bins = make_bins("ab", family_prior=8.0)
    for _ in range(20):
        bins.learn([make_group(0.6, 1)])
    seen, unseen = (bins.posterior(family)[2] for family in "ab")
    assert unseen.sum() == pytest.approx(8.0) and seen.sum() == pytest.approx(8.0 + 80.0)
    assert bins.offset("a") == pytest.approx(-bins.offset("b"))


def test_family_that_fares_better_gets_an_offset_and_offsets_have_mean_zero():
    bins = make_bins("ab", slope=2.0, offset_prior=2.0)
    bins.learn([make_group(0.6, 4, family="a")])
    # .375 were expected in bin 2 and all succeeded: half of .625 / 2, of which the other family then takes half with the other sign.
    assert bins.offset("a") == pytest.approx(0.5 * 0.3125 / 2) and bins.offset("b") == pytest.approx(-0.5 * 0.3125 / 2)


def test_state_of_other_settings_is_refused():
    state = json.loads(json.dumps(make_bins().state_dict()))
    with pytest.raises(ValueError, match=r"bins.own must have shape \(1, 5, 2\), got \(1, 4, 2\)"):
        make_bins(num_bins=5).load_state_dict(state)


@pytest.mark.parametrize("delay", [0, 16])
def test_stationary_student_is_found_whatever_the_delay(delay):
    """Student S1: p = sigmoid(4 - 8 d), so that p = .45 at d = .525."""
    rng, teacher = np.random.default_rng(0), make_teacher()
    in_flight: deque[list[GroupOutcome]] = deque()
    means = []
    for step in range(300 if delay else 150):
        tasks = teacher.propose(32, policy_version=step)
        means.append(np.mean([task.strictness for task in tasks]))
        in_flight.append([make_outcome(task, rng.binomial(8, sigmoid(4.0 - 8.0 * task.strictness))) for task in tasks])
        if len(in_flight) > delay:
            teacher.observe(in_flight.popleft())
    late = np.array(means[len(means) // 3 :])
    assert np.sqrt(np.mean((late - 0.525) ** 2)) <= 0.02


def test_easy_users_that_were_forgotten_are_practised_again():
    """Success at lenient users falls to the target: what a tracker at the frontier never sees, the explored share finds."""
    rng, teacher = np.random.default_rng(0), make_teacher()
    lenient = []
    for step in range(110):
        tasks = teacher.propose(32, policy_version=step)
        forgotten = step >= 30
        lenient.append(np.mean([task.strictness < 0.2 for task in tasks if task.mode is Mode.FRONTIER]))
        shares = [0.45 if forgotten and task.strictness < 0.2 else sigmoid(8.0 * (0.7 - task.strictness)) for task in tasks]
        teacher.observe([make_outcome(task, rng.binomial(8, share)) for task, share in zip(tasks, shares, strict=True)])
    assert np.mean(lenient[10:30]) < 0.02 and np.mean(lenient[60:]) > 0.3


def test_24_families_share_strength():
    """Student S7, 8 groups a step: families of different frontiers (sd .15) that rise together are tracked to a bin or so."""
    rng, teacher = np.random.default_rng(0), make_teacher(FAMILIES)
    offset = dict(zip(FAMILIES, rng.normal(0.0, 0.15, len(FAMILIES)), strict=True))
    misses = []
    for step in range(200):
        outcomes = []
        for task in teacher.propose(8, policy_version=step):
            ability = 0.15 + 0.55 * step / 200 + offset[task.family]
            outcomes.append(make_outcome(task, rng.binomial(8, sigmoid(8.0 * (ability - task.strictness)))))
            if task.mode is Mode.FRONTIER and step >= 67:
                misses.append(task.strictness - np.clip(ability + 0.025, 0.0, 1.0))
        teacher.observe(outcomes)
    assert np.sqrt(np.mean(np.square(misses))) < 0.08
    assert np.std([teacher.bins.offset(family) - offset[family] for family in FAMILIES]) < 0.04
