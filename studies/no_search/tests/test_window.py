"""The window's figure: a run's curves again, from its recorded outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_student import make_outcome, make_teacher, sigmoid

from curriculum.task import outcome_to_record
from studies.no_search.window import GRID_D, draw, replayed


def recorded_run(folder: Path, *, kind: str = "frontier", num_steps: int = 12) -> Path:
    """A learner of ability 0.4, whose groups the teacher learned from and recorded."""
    folder.mkdir()
    (folder / "config.yaml").write_text(f"experiment: adaptive_curriculum\nteacher: {{kind: {kind}}}\n")
    teacher, rng = make_teacher("frontier", seed=3), np.random.default_rng(0)
    with (folder / "teacher.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            outcomes = [
                make_outcome(task, rng.binomial(8, sigmoid(8.0 * (0.4 - task.strictness))))
                for task in teacher.propose(16, policy_version=step)
            ]
            teacher.observe(outcomes)
            records = [{"event": "task", **outcome.task.to_dict()} for outcome in outcomes]
            records += [{"event": "outcome", **outcome_to_record(outcome)} for outcome in outcomes]
            file.writelines(json.dumps({"step": step, **record}) + "\n" for record in records)
    np.save(folder / "learned.npy", teacher.density.values_Z)
    return folder


def test_a_replayed_run_has_its_teachers_curves_and_its_figure_is_drawn(tmp_path: Path):
    folder = recorded_run(tmp_path / "run")
    moments = replayed(folder)
    assert len(moments) == 12 and {len(moment.issued) for moment in moments} == {16}
    # Greatest where half succeed, as high as the curve that the teacher had at the end.
    last = moments[-1].density_D
    assert GRID_D[int(np.argmax(last))] == pytest.approx(0.4, abs=0.1)
    assert last.max() == pytest.approx(np.load(folder / "learned.npy").max(), rel=0.01)
    draw(folder, tmp_path / "window.svg")
    assert "after step 12" in (tmp_path / "window.svg").read_text()


def test_a_run_of_another_teacher_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"must be a run of teacher\.kind=frontier, got uniform"):
        replayed(recorded_run(tmp_path / "run", kind="uniform", num_steps=1))
