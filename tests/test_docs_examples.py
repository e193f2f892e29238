"""The examples in the docs run as they stand there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from tiny_student import make_outcome

TEACHERS_PAGE = Path(__file__).parent.parent / "docs" / "teachers.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEACHERS_PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_curriculum_runs_inside_another_trainer(capsys):
    names: dict[str, object] = {}
    exec(compile(examples()[0], str(TEACHERS_PAGE), "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 3
    json.dumps(names["saved"])
    assert names["teacher"].metrics()["curriculum/outcomes_observed"] == 18.0


def test_a_teacher_of_ones_own_takes_under_forty_lines_and_keeps_the_contract():
    source = examples()[1]
    assert len([line for line in source.splitlines() if line.strip()]) < 40
    names: dict[str, object] = {"__name__": "staircase"}
    exec(compile(source, str(TEACHERS_PAGE), "exec", dont_inherit=True), names)
    teacher = names["StaircaseTeacher"](names["StaircaseConfig"](), scenarios={"a": ["1"], "b": ["2"]}, group_size=8, seed=0)
    rng, ability = np.random.default_rng(0), {"a": 0.3, "b": 0.7}
    for step in range(200):
        tasks = teacher.propose(4, policy_version=step)
        chances = [1.0 / (1.0 + np.exp(8.0 * (task.strictness - ability[task.family]))) for task in tasks]
        teacher.observe([make_outcome(task, rng.binomial(8, p)) for task, p in zip(tasks, chances, strict=True)])
    assert abs(teacher.level["a"] - 0.3) < 0.15 and abs(teacher.level["b"] - 0.7) < 0.15
    copy = names["StaircaseTeacher"](names["StaircaseConfig"](), scenarios={"a": ["1"], "b": ["2"]}, group_size=8, seed=1)
    copy.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    assert copy.propose(4, policy_version=200) == teacher.propose(4, policy_version=200)
