"""Self-paced: the divergence, the truncated density and each kind of step by hand, and a student led to the target as it learns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import truncnorm
from tiny_student import make_outcome

from curriculum.density import Gaussian, SpdlConfig, SpdlTeacher, Step


def gaussian(mean: float, std: float) -> Gaussian:
    return Gaussian(np.array([mean]), np.array([std]))


def make_step(returns, *, old: Gaussian, num: int = 200, **settings) -> Step:
    """A step on returns at evenly spread quantiles of the old distribution."""
    config = SpdlConfig(**settings)
    low, high = -old.mean_D[0] / old.std_D[0], (1.0 - old.mean_D[0]) / old.std_D[0]
    x_ND = truncnorm.ppf((np.arange(num) + 0.5) / num, low, high, old.mean_D[0], old.std_D[0])[:, None]
    target = gaussian(config.target_mean, config.target_std)
    return Step(config, old=old, target=target, x_ND=x_ND, return_N=returns(x_ND[:, 0]), log_issued_N=old.log_density(x_ND))


def make_teacher(*, seed: int = 0, **settings) -> SpdlTeacher:
    return SpdlTeacher(SpdlConfig(**settings), scenarios={"a": [f"a-{i}" for i in range(20)]}, group_size=8, seed=seed)


def test_divergence_by_hand():
    assert gaussian(0.3, 0.1).kl(gaussian(0.3, 0.1)) == pytest.approx(0.0)
    # A mean one standard deviation away: 1/2. Twice as wide: ln 2 + 1/8 - 1/2.
    assert gaussian(0.4, 0.1).kl(gaussian(0.3, 0.1)) == pytest.approx(0.5)
    assert gaussian(0.3, 0.1).kl(gaussian(0.3, 0.2)) == pytest.approx(np.log(2.0) + 0.125 - 0.5)


def test_density_and_draws_are_those_of_the_truncated_normal():
    p = gaussian(0.1, 0.2)
    reference = truncnorm(-0.5, 4.5, 0.1, 0.2)
    x_ND = np.array([[0.05], [0.4]])
    difference = p.log_density(x_ND) - reference.logpdf(x_ND[:, 0])
    assert difference[0] == pytest.approx(difference[1])
    rng = np.random.default_rng(0)
    drawn = np.array([p.draw(rng)[0] for _ in range(4000)])
    assert drawn.min() >= 0.0 and drawn.mean() == pytest.approx(reference.mean(), abs=0.01)
    assert np.std(drawn) == pytest.approx(reference.std(), abs=0.01)


def test_expected_return_is_weighed_by_importance():
    step = make_step(lambda x: x, old=gaussian(0.5, 0.1), num=2000)
    assert step.expected_return(gaussian(0.5, 0.1)) == pytest.approx(0.5, abs=1e-3)
    assert step.expected_return(gaussian(0.55, 0.1)) == pytest.approx(0.55, abs=5e-3)


def test_step_without_hindrance_lands_on_the_target():
    new = make_step(lambda x: 1.0 + 0.0 * x, old=gaussian(0.5, 0.2), target_mean=0.6, target_std=0.15, kl_step=10.0).towards_target()
    assert new is not None and new.mean_D == pytest.approx([0.6], abs=1e-3) and new.std_D == pytest.approx([0.15], abs=1e-3)


def test_step_goes_no_farther_than_its_divergence():
    old = gaussian(0.2, 0.1)
    new = make_step(lambda x: 1.0 + 0.0 * x, old=old, target_mean=0.9, kl_step=0.1).towards_target()
    assert new is not None and new.kl(old) == pytest.approx(0.1, abs=1e-3) and new.mean_D[0] > 0.22


def test_step_keeps_the_return():
    step = make_step(lambda x: 1.0 - x, old=gaussian(0.3, 0.1), target_mean=0.9, delta=0.66, kl_step=1.0)
    new = step.towards_target()
    assert new is not None and step.expected_return(new) >= 0.66 - 1e-3
    assert 0.3 < new.mean_D[0] < 0.36


def test_return_is_sought_where_it_is_too_low():
    old = gaussian(0.6, 0.15)
    step = make_step(lambda x: 1.0 - x, old=old, kl_step=0.25)
    new = step.towards_return()
    assert new is not None and new.mean_D[0] < 0.55 and new.kl(old) <= 0.25 + 1e-3
    assert step.expected_return(new) > step.expected_return(old)


def test_width_has_a_floor_until_the_target_is_near():
    far = make_step(lambda x: 1.0 + 0.0 * x, old=gaussian(0.2, 0.06), target_mean=0.9, target_std=0.02, min_std=0.05, kl_near=1.0)
    near = make_step(
        lambda x: 1.0 + 0.0 * x, old=gaussian(0.9, 0.05), target_mean=0.9, target_std=0.02, min_std=0.05, kl_near=5.0, kl_step=5.0
    )
    moved, landed = far.towards_target(), near.towards_target()
    assert moved is not None and moved.std_D[0] >= 0.05 - 1e-9
    assert landed is not None and landed.std_D[0] == pytest.approx(0.02, abs=1e-3)


@pytest.mark.parametrize("success", [0, 8])
def test_returns_that_are_all_alike_do_no_harm(success):
    teacher = make_teacher()
    for step in range(60):
        teacher.observe([make_outcome(task, success) for task in teacher.propose(20, policy_version=step)])
    assert np.all(np.isfinite(teacher.parameters))
    assert teacher.metrics()["curriculum/spdl/mean"] == pytest.approx(0.75 if success else 0.15, abs=0.02)


def test_late_outcomes_are_weighed_by_the_distribution_they_came_from():
    teacher = make_teacher(groups_per_update=8)
    first = teacher.propose(8, policy_version=0)
    start = teacher.gaussian
    teacher.observe([make_outcome(task, 8) for task in teacher.propose(8, policy_version=0)])
    assert teacher.gaussian.mean_D[0] > start.mean_D[0]
    second = teacher.propose(1, policy_version=1)
    teacher.observe([make_outcome(first[0], 8), make_outcome(second[0], 8)])
    expected = [float(p.log_density(np.array([[task.strictness]]))[0]) for p, task in ((start, first[0]), (teacher.gaussian, second[0]))]
    assert [row[-1] for row in teacher.groups] == pytest.approx(expected)


@pytest.mark.parametrize("axes", [1, 3])
def test_student_is_led_to_the_target_as_it_learns(axes):
    """Success = sigmoid(8 (c - d)), c rising from .2 to 1 in 100 steps: the distribution follows and ends at its target."""
    rng, teacher = np.random.default_rng(0), make_teacher(axes=axes, target_mean=0.7)
    means = []
    for step in range(150):
        ability = 0.2 + 0.8 * min(step / 100, 1.0)
        tasks = teacher.propose(32, policy_version=step)
        means.append(np.mean([task.strictness for task in tasks]))
        shares = [1.0 / (1.0 + np.exp(-8.0 * (ability - task.strictness))) for task in tasks]
        teacher.observe([make_outcome(task, rng.binomial(8, share)) for task, share in zip(tasks, shares, strict=True)])
    assert means[20] < 0.45 and np.mean(means[-20:]) == pytest.approx(0.7, abs=0.03)
    assert teacher.decisions()[-1]["aim"] == "target"
