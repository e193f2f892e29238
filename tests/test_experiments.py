"""The experiment files themselves: what they promise, and that planning them is light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from curriculum import TEACHERS
from experiments.catalogue import experiments
from experiments.sweep_plan import Cell, is_sweep, load_sweep

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = sorted(name for name in experiments() if is_sweep(name))
PLAN_ALL = """
import sys
from experiments.__main__ import main
for name in {names!r}:
    assert main([name, "--dry-run"]) == 0, name
heavy = {{"torch", "ray", "vllm", "transformers", "tensorboard", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""


def test_planning_any_experiment_imports_nothing_heavy_and_writes_nothing(tmp_path):
    program = PLAN_ALL.format(names=sorted(experiments()))
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_compares_arms_on_several_seeds_with_contrasts_named_beforehand(name):
    sweep = load_sweep(name)
    assert len(sweep.seeds) >= 3 and len(sweep.arms) >= 2
    assert sweep.planned.contrasts


def test_an_idea_fits_on_a_line_of_the_list():
    assert all(len(idea) <= 140 for idea in experiments().values())


def test_every_teacher_is_tried_on_one_policy():
    sweep = load_sweep("teachers")
    kinds = [sweep.config(Cell(arm, 0)).teacher.kind for arm in sweep.arms]
    assert sorted(kinds) == sorted(TEACHERS)


def test_rlvers_table_has_every_combination_of_algorithm_mode_and_user_once():
    sweep = load_sweep("rlver_matrix")
    configs = [sweep.config(Cell(arm, 0)) for arm in sweep.arms]
    table = {(config.algorithm.kind, config.policy.thinking, config.teacher.strictness) for config in configs}
    assert table == {(kind, thinking, d) for kind in ("ppo", "grpo") for thinking in (False, True) for d in (0.35, 0.75)}
    assert len(configs) == 8


def test_what_the_laptop_comparison_says_of_itself():
    assert "three seeds" in experiments()["quick_comparison"] and "do not decide" in experiments()["quick_comparison"]
    assert list(load_sweep("quick_comparison").arms) == ["frontier", "fixed_0.1", "fixed_0.5", "fixed_0.9", "uniform"]
