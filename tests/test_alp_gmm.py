"""ALP-GMM: progress by hand, the mixture follows it, and a resumed teacher draws from the mixture that was fitted."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

from curriculum.density import AlpGmmConfig, AlpGmmTeacher, AlpHistory, fit_mixture
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec
from curriculum.toy.benchmark import all_arms

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is optional")


def make_teacher(families=("a",), *, seed: int = 0, **settings) -> AlpGmmTeacher:
    scenarios = {family: [f"{family}-{i}" for i in range(20)] for family in families}
    return AlpGmmTeacher(AlpGmmConfig(**settings), scenarios=scenarios, group_size=8, seed=seed)


def make_outcome(task: TaskSpec, reward: float) -> GroupOutcome:
    return GroupOutcome(
        task=task,
        rewards=(reward,) * task.group_size,
        successes=(reward >= 0.5,) * task.group_size,
        num_tokens=(1,) * task.group_size,
        statuses=(Status.OK,) * task.group_size,
    )


def practise(teacher: AlpGmmTeacher, *, num_steps: int, first: int = 0) -> list[TaskSpec]:
    """Reward rises with time where strictness is in [.6, .8] and stands still at 0 elsewhere."""
    issued = []
    for step in range(first, first + num_steps):
        tasks = teacher.propose(10, policy_version=step)
        teacher.observe([make_outcome(task, step % 20 / 20 if 0.6 <= task.strictness <= 0.8 else 0.0) for task in tasks])
        issued.extend(tasks)
    return issued


def test_missing_package_is_one_sentence_with_the_remedy(monkeypatch):
    monkeypatch.setattr("curriculum.density.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"alp_gmm needs scikit-learn, .* run `\.venv/bin/pip install scikit-learn`"):
        make_teacher()


def test_benchmark_of_all_leaves_out_what_cannot_be_built(monkeypatch):
    monkeypatch.setattr("curriculum.toy.benchmark.find_spec", lambda name: None)
    assert "alp_gmm" not in all_arms() and "uniform" in all_arms()
    monkeypatch.setattr("curriculum.toy.benchmark.find_spec", lambda name: "found")
    assert "alp_gmm" in all_arms()


def test_progress_is_the_difference_from_the_nearest_before():
    history, rng = AlpHistory(AlpGmmConfig()), np.random.default_rng(0)
    for x, reward in ((0.2, 0.5), (0.8, 0.1), (0.3, 0.9), (0.7, 0.4)):
        assert not history.add([x], reward, rng)
    assert [row[-1] for row in history.points] == pytest.approx([0.0, 0.4, 0.4, 0.3])


def test_history_is_bounded():
    history, rng = AlpHistory(AlpGmmConfig(history=20, fit_rate=10_000)), np.random.default_rng(0)
    for i in range(50):
        history.add([i / 50], 0.0, rng)
    assert [row[0] for row in history.points] == pytest.approx([i / 50 for i in range(30, 50)])
    assert len(history.rewards) == 20


@needs_sklearn
def test_mixture_weighs_components_by_their_progress():
    rng = np.random.default_rng(0)
    still = np.stack([rng.normal(0.2, 0.02, 200), rng.normal(0.1, 0.01, 200)], axis=-1)
    moving = np.stack([rng.normal(0.8, 0.02, 200), rng.normal(0.4, 0.01, 200)], axis=-1)
    mixture = fit_mixture(np.concatenate([still, moving]), seed=0)
    near_moving = [abs(mean[0] - 0.8) < 0.1 for mean in mixture["means"]]
    weight = sum(w for w, near in zip(mixture["weights"], near_moving, strict=True) if near) / sum(near_moving)
    other = sum(w for w, near in zip(mixture["weights"], near_moving, strict=True) if not near) / (len(near_moving) - sum(near_moving))
    assert weight / other == pytest.approx(4.0, rel=0.05)
    assert np.sqrt(mixture["covariances"][0][0][0]) < 0.05


@needs_sklearn
@pytest.mark.parametrize("alp", [0.0, 0.3])
def test_where_everything_changes_alike_all_components_are_as_likely(alp):
    x_N = np.random.default_rng(0).random(100)
    weights = fit_mixture(np.stack([x_N, np.full(100, alp)], axis=-1), seed=0)["weights"]
    assert weights == pytest.approx([1 / len(weights)] * len(weights))


@needs_sklearn
def test_of_mixtures_of_equal_aic_the_smallest_is_kept(monkeypatch):
    monkeypatch.setattr("sklearn.mixture.GaussianMixture.aic", lambda mixture, points: 0.0)
    assert len(fit_mixture(np.random.default_rng(0).random((100, 2)), seed=0)["weights"]) == 2


@needs_sklearn
def test_what_changes_is_practised_and_the_rest_at_random():
    teacher = make_teacher()
    issued = practise(teacher, num_steps=100)
    assert {task.mode for task in issued[:250]} == {Mode.UNIFORM}
    late = issued[-300:]
    uniform = np.mean([task.mode is Mode.UNIFORM for task in late])
    assert uniform == pytest.approx(0.2, abs=0.07)
    chosen = [task.strictness for task in late if task.mode is Mode.FRONTIER]
    assert np.mean([0.55 <= d <= 0.85 for d in chosen]) > 0.8
    assert [decision["decision"] for decision in teacher.decisions()] == ["fit"] * 4


@needs_sklearn
def test_resume_draws_from_the_mixture_that_was_fitted():
    whole, resumed = make_teacher(), make_teacher(seed=1)
    practise(whole, num_steps=40)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert practise(resumed, num_steps=40, first=40) == practise(whole, num_steps=40, first=40)
    assert resumed.state_dict() == whole.state_dict() and whole.history("a").mixture is not None


@needs_sklearn
def test_three_axes_move_apart_and_families_can_have_histories_of_their_own():
    teacher = make_teacher(("a", "b"), axes=3, per_family=True, fit_rate=20)
    issued = practise(teacher, num_steps=30)
    assert len(set(issued[-1].difficulty.to_dict().values())) == 3
    assert issued[-1].strictness == pytest.approx(np.mean(list(issued[-1].difficulty.to_dict().values())))
    assert len(teacher.history("a").points) == len(teacher.history("b").points) == 150
    assert len(teacher.history("a").points[0]) == 4
    with pytest.raises(ValueError, match="per_family must be False, got True"):
        make_teacher(("a", "b"), axes=3, fit_rate=20).load_state_dict(teacher.state_dict())


def test_other_numbers_of_axes_are_refused():
    with pytest.raises(ValueError, match=r"teacher.axes must be in \{1, 3\}, got 2"):
        AlpGmmConfig(axes=2)
