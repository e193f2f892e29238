"""Families by progress: its equation by hand, and a student with families that teach nothing, under any within-family teacher."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from curriculum import TEACHERS
from curriculum.allocation import AllocationConfig, FamilyProgress
from curriculum.task import GroupOutcome, Status, TaskSpec

CHAIN = ("learnable-0", "learnable-1", "learnable-2", "learnable-3")
TEACH_NOTHING = {"noise": 0.5, "impossible": 0.0, "mastered": 0.99}


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-np.asarray(x, dtype=float)))


def make_progress(*groups: tuple[float, float], rate: float = 0.5, num_errors: float = 0.0) -> FamilyProgress:
    progress = FamilyProgress(1, rate=rate, num_errors=num_errors)
    for strictness, success in groups:
        progress.learn(0, strictness=strictness, fared=success)
    return progress


def make_outcome(task: TaskSpec, successes: np.ndarray) -> GroupOutcome:
    return GroupOutcome(
        task=task,
        rewards=tuple(map(float, successes)),
        successes=tuple(map(bool, successes)),
        num_tokens=(1,) * task.group_size,
        statuses=(Status.OK,) * task.group_size,
    )


def make_teacher(kind: str, families, *, uniform_floor: float = 0.25, seed: int = 0):
    config, teacher = TEACHERS[kind]
    settings = config(allocation=AllocationConfig(uniform_floor=uniform_floor))
    return teacher(settings, scenarios={family: [f"{family}-{i}" for i in range(20)] for family in families}, group_size=8, seed=seed)


def practise_chain(kind: str, *, uniform_floor: float = 0.25, seed: int = 0) -> tuple[float, dict[str, float]]:
    """Student S5: four families that are learned one after the other, with transfer to the next, and three that teach nothing.

    Returns:
        Mean success over the four after 200 steps of 32 groups, and each family's share of the groups.
    """
    rng, teacher = np.random.default_rng(seed), make_teacher(kind, (*CHAIN, *TEACH_NOTHING), uniform_floor=uniform_floor, seed=seed)
    logits = np.array([0.5, -0.7, -2.0, -3.5])
    dealt: Counter[str] = Counter()
    for step in range(200):
        outcomes, gradient = [], np.zeros(4)
        for task in teacher.propose(32, policy_version=step):
            share = TEACH_NOTHING[task.family] if task.family in TEACH_NOTHING else sigmoid(logits[CHAIN.index(task.family)])
            successes = rng.random(8) < share
            outcomes.append(make_outcome(task, successes))
            dealt[task.family] += 1
            if task.family in CHAIN:
                gradient[CHAIN.index(task.family)] += np.sum((successes - successes.mean()) * (successes - share)) / (32 * 8)
        teacher.observe(outcomes)
        logits += 0.9 * (gradient + 0.35 * np.append(0.0, gradient[:-1]))
    return float(sigmoid(logits).mean()), {family: count / 6400 for family, count in dealt.items()}


@pytest.mark.parametrize("kind", ["uniform", "fixed", "beta_thompson", "frontier"])
def test_families_that_teach_nothing_fall_to_the_floor_under_any_teacher(kind):
    macro, shares = practise_chain(kind)
    assert macro >= 0.9
    # An even deal gives 1/7 = .143 to each; noise may look like progress now and then.
    assert shares["noise"] <= 0.2 and shares["impossible"] <= 0.13 and shares["mastered"] <= 0.13


def test_progress_beats_even_dealing():
    assert practise_chain("fixed")[0] > practise_chain("fixed", uniform_floor=1.0)[0] + 0.05


def test_first_group_has_no_past_to_be_compared_with():
    assert make_progress((0.3, 0.9)).progress() == pytest.approx([0.0])


def test_progress_is_the_running_surprise_at_equal_strictness():
    # .4 above the first group, half of which counts.
    assert make_progress((0.5, 0.3), (0.5, 0.7)).progress() == pytest.approx([0.2])
    # As well as before though .1 stricter, where .2 less were to be expected.
    assert make_progress((0.5, 0.3), (0.6, 0.3)).progress() == pytest.approx([0.1])
    assert make_progress((0.5, 0.7), (0.5, 0.3)).progress() == pytest.approx([0.2])  # forgetting counts as much


def test_progress_is_what_exceeds_the_standard_errors_of_chance():
    # g = .2; mean square surprise .16 / 2 = .08, so one standard error is sqrt(.5 / 4 * .08) = .1.
    groups = ((0.5, 0.3), (0.5, 0.7))
    assert make_progress(*groups, num_errors=1.0).progress() == pytest.approx([np.sqrt(0.04 - 0.01)])
    assert make_progress(*groups, num_errors=2.0).progress() == pytest.approx([0.0], abs=1e-7)


def test_slope_is_learned_where_strictness_varies():
    rng = np.random.default_rng(0)
    strictness = rng.random(2000)
    flat = make_progress(*((d, 0.5) for d in strictness), rate=0.02)
    steep = make_progress(*((d, 1.0 - d) for d in strictness), rate=0.02)
    # Were the slope assumed, each group would surprise by up to 2 * .5.
    assert flat.figures_FC[0, -1] < 0.01 and steep.figures_FC[0, -1] < 0.005


@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_standard_error_is_that_of_noise(rate):
    """The variance of the running surprise of pure noise is rate / 4 of the noise's, to within the shortness of memory."""
    rng = np.random.default_rng(0)
    running, squared = [], []
    progress = FamilyProgress(1, rate=rate, num_errors=0.0)
    for step in range(40_000):
        progress.learn(0, strictness=0.5, fared=rng.normal())
        if step > 1000:
            running.append(progress.figures_FC[0, -2])
            squared.append(progress.figures_FC[0, -1])
    assert np.var(running) / np.mean(squared) == pytest.approx(rate / 4, rel=0.15)


def test_state_for_other_families_is_refused():
    state = make_progress((0.5, 0.5)).state_dict()
    with pytest.raises(ValueError, match=r"progress.num_seen must have 2 numbers, got 1"):
        FamilyProgress(2, rate=0.5, num_errors=1.0).load_state_dict(state)
