"""ALP-GMM and self-paced learning: progress, mixtures, densities and constrained moves by hand, and students that they lead."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from scipy.stats import truncnorm
from tiny_student import make_outcome, make_teacher, mean_strictness, practise, teach

from curriculum.density import Gaussian, SpdlTeacher, fit_mixture
from curriculum.task import Mode
from curriculum.toy.benchmark import all_arms

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is optional")


def test_a_missing_package_is_named_with_the_remedy_and_left_out_of_the_benchmark(monkeypatch):
    monkeypatch.setattr("curriculum.density.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"alp_gmm needs scikit-learn.*pip install scikit-learn"):
        make_teacher("alp_gmm")
    monkeypatch.setattr("curriculum.toy.benchmark.find_spec", lambda name: None)
    assert "alp_gmm" not in all_arms() and "uniform" in all_arms()


def test_progress_is_the_difference_from_the_nearest_before_in_a_bounded_history():
    teacher, short = make_teacher("alp_gmm"), make_teacher("alp_gmm", history=20, fit_rate=10_000)
    for strictness, num_successes in ((0.2, 4), (0.8, 1), (0.3, 7), (0.7, 3)):
        teach(teacher, strictness, num_successes)
    assert [row[-1] for row in teacher.history] == pytest.approx([0.0, 3 / 8, 3 / 8, 2 / 8])
    for i in range(50):
        teach(short, i / 50, 0)
    assert [row[0] for row in short.history] == pytest.approx([i / 50 for i in range(30, 50)])


@needs_sklearn
def test_a_mixture_weighs_components_by_their_progress_and_is_the_smallest_of_equal_aic(monkeypatch):
    rng = np.random.default_rng(0)
    still = np.stack([rng.normal(0.2, 0.02, 200), rng.normal(0.1, 0.01, 200)], axis=-1)
    moving = np.stack([rng.normal(0.8, 0.02, 200), rng.normal(0.4, 0.01, 200)], axis=-1)
    mixture = fit_mixture(np.concatenate([still, moving]), seed=0)
    weights_k, near_k = np.array(mixture["weights"]), np.array([abs(mean[0] - 0.8) < 0.1 for mean in mixture["means"]])
    assert weights_k[near_k].mean() / weights_k[~near_k].mean() == pytest.approx(4.0, rel=0.05)
    assert np.sqrt(mixture["covariances"][0][0][0]) < 0.05
    monkeypatch.setattr("sklearn.mixture.GaussianMixture.aic", lambda mixture, points: 0.0)
    flat = fit_mixture(np.stack([rng.random(100), np.zeros(100)], axis=-1), seed=0)
    assert flat["weights"] == pytest.approx([0.5, 0.5])


@needs_sklearn
def test_difficulty_with_changing_reward_is_practised_and_the_rest_at_random():
    teacher = make_teacher("alp_gmm")
    issued = []
    for step in range(100):
        tasks = teacher.propose(10, policy_version=step)
        # Reward rises with time where strictness is in [0.6, 0.8] and stays at 0 elsewhere.
        teacher.observe([make_outcome(t, 0, rewards=[step % 20 / 20 if 0.6 <= t.strictness <= 0.8 else 0.0] * 8) for t in tasks])
        issued.extend(tasks)
    assert {task.mode for task in issued[:250]} == {Mode.UNIFORM} and [d["decision"] for d in teacher.decisions()] == ["fit"] * 4
    late = issued[-300:]
    assert np.mean([task.mode is Mode.UNIFORM for task in late]) == pytest.approx(0.2, abs=0.07)
    assert np.mean([0.55 <= task.strictness <= 0.85 for task in late if task.mode is Mode.FRONTIER]) > 0.8


def gaussian(mean: float, std: float) -> Gaussian:
    return Gaussian(np.array([mean]), np.array([std]))


def with_returns(returns, *, old: Gaussian, num: int = 200, **settings) -> SpdlTeacher:
    """A teacher whose distribution is the old one, with returns at evenly spread quantiles of it."""
    teacher = make_teacher("spdl", **settings)
    low, high = -old.mean_D[0] / old.std_D[0], (1.0 - old.mean_D[0]) / old.std_D[0]
    x_ND = truncnorm.ppf((np.arange(num) + 0.5) / num, low, high, old.mean_D[0], old.std_D[0])[:, None]
    teacher.parameters = old.parameters.tolist()
    teacher.groups = np.column_stack([x_ND, returns(x_ND[:, 0]), old.log_density(x_ND)]).tolist()
    return teacher


def one(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def test_divergence_density_and_draws_are_those_of_the_truncated_normal():
    assert gaussian(0.3, 0.1).kl(gaussian(0.3, 0.1)) == pytest.approx(0.0)
    # A mean one standard deviation away: 1/2. Twice as wide: ln 2 + 1/8 - 1/2.
    assert gaussian(0.4, 0.1).kl(gaussian(0.3, 0.1)) == pytest.approx(0.5)
    assert gaussian(0.3, 0.1).kl(gaussian(0.3, 0.2)) == pytest.approx(np.log(2.0) + 0.125 - 0.5)
    p, reference, x_ND = gaussian(0.1, 0.2), truncnorm(-0.5, 4.5, 0.1, 0.2), np.array([[0.05], [0.4]])
    first, second = p.log_density(x_ND) - reference.logpdf(x_ND[:, 0])
    assert first == pytest.approx(second)
    rng = np.random.default_rng(0)
    drawn = np.array([p.draw(rng)[0] for _ in range(4000)])
    assert drawn.min() >= 0.0 and (drawn.mean(), drawn.std()) == pytest.approx((reference.mean(), reference.std()), abs=0.01)


def test_return_is_weighed_by_importance():
    teacher = with_returns(lambda x: x, old=gaussian(0.5, 0.1), num=2000)
    assert teacher.return_of(gaussian(0.5, 0.1)) == pytest.approx(0.5, abs=1e-3)
    assert teacher.return_of(gaussian(0.55, 0.1)) == pytest.approx(0.55, abs=5e-3)


def test_a_move_lands_on_the_target_or_as_far_as_divergence_and_return_allow():
    free = with_returns(one, old=gaussian(0.5, 0.2), target_mean=0.6, target_std=0.15, kl_step=10.0).moved(to_target=True)
    assert (free.mean_D[0], free.std_D[0]) == pytest.approx((0.6, 0.15), abs=1e-3)
    old = gaussian(0.2, 0.1)
    near = with_returns(one, old=old, target_mean=0.9, kl_step=0.1).moved(to_target=True)
    assert near.kl(old) == pytest.approx(0.1, abs=1e-3) and near.mean_D[0] > 0.22
    teacher = with_returns(lambda x: 1.0 - x, old=gaussian(0.3, 0.1), target_mean=0.9, delta=0.66, kl_step=1.0)
    kept = teacher.moved(to_target=True)
    assert teacher.return_of(kept) >= 0.66 - 1e-3 and 0.3 < kept.mean_D[0] < 0.36


def test_return_is_sought_where_it_is_too_low():
    old = gaussian(0.6, 0.15)
    teacher = with_returns(lambda x: 1.0 - x, old=old, kl_step=0.25)
    new = teacher.moved(to_target=False)
    assert new.mean_D[0] < 0.55 and new.kl(old) <= 0.25 + 1e-3 and teacher.return_of(new) > teacher.return_of(old)


def test_width_has_a_floor_until_the_target_is_near():
    far = with_returns(one, old=gaussian(0.2, 0.06), target_mean=0.9, target_std=0.02, min_std=0.05, kl_near=1.0).moved(to_target=True)
    near = with_returns(one, old=gaussian(0.9, 0.05), target_mean=0.9, target_std=0.02, kl_near=5.0, kl_step=5.0).moved(to_target=True)
    assert far.std_D[0] >= 0.05 - 1e-9 and near.std_D[0] == pytest.approx(0.02, abs=1e-3)


def test_late_outcomes_are_weighed_by_the_distribution_they_came_from():
    teacher = make_teacher("spdl", groups_per_update=8)
    first, start = teacher.propose(8, policy_version=0)[0], teacher.gaussian
    teacher.observe([make_outcome(task, 8) for task in teacher.propose(8, policy_version=0)])
    second = teacher.propose(1, policy_version=1)[0]
    teacher.observe([make_outcome(first, 8), make_outcome(second, 8)])
    expected = [float(p.log_density(np.array([[task.strictness]]))[0]) for p, task in ((start, first), (teacher.gaussian, second))]
    assert teacher.gaussian.mean_D[0] > start.mean_D[0] and [row[-1] for row in teacher.groups] == pytest.approx(expected)


def test_a_student_is_led_to_the_target_as_it_learns():
    teacher = make_teacher("spdl", axes=3, target_mean=0.7)
    means = mean_strictness(practise(teacher, lambda task: 0.2 + 0.8 * min(task.teacher_step / 100, 1.0), num_steps=150, num_groups=16))
    assert means[20] < 0.45 and np.mean(means[-20:]) == pytest.approx(0.7, abs=0.03)
    assert teacher.decisions()[-1]["aim"] == "target"
