"""What a run will cost, reckoned by hand."""

from __future__ import annotations

import pytest

from experiments.config import load
from experiments.evaluation import heldout_dialogues, seconds_of_run

STEP = {"timing_s/step": 10.0, "timing_s/gen": 6.4}


def test_looks_are_the_full_grid_twice_and_the_smaller_one_at_nine_tenths():
    grid = ["evaluation.num_scenarios=8", "evaluation.during_scenarios=3", "evaluation.strictness=[0.1,0.9]"]
    assert heldout_dialogues(load("adaptive_curriculum", grid)) == (2 * 8 + 9 * 3) * 2
    assert heldout_dialogues(load("adaptive_curriculum")) == 2 * 540 + 9 * 120


def test_a_run_takes_its_steps_and_its_looks():
    # 100,000 tokens are 50 steps of 2,000; 128 dialogues took 6.4 s, so the 86 of all looks take 4.3 s.
    grid = ["evaluation.num_scenarios=8", "evaluation.during_scenarios=3", "evaluation.strictness=[0.1,0.9]"]
    config = load("adaptive_curriculum", [*grid, "budget.policy_tokens=100000"])
    assert seconds_of_run(config, STEP, num_tokens=2000.0) == pytest.approx(500.0 + 4.3)


def test_a_budget_in_steps_ends_a_run_sooner():
    config = load("adaptive_curriculum", ["budget.steps=3"])
    assert seconds_of_run(config, STEP, num_tokens=2000.0) == pytest.approx(30.0 + (2 * 540 + 9 * 120) * 0.05)
