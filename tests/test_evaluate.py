"""The held-out grid: its tasks, its seeds and what is read off it, on numbers that can be checked in the head."""

from __future__ import annotations

import math

import numpy as np
import pytest

from curriculum.task import GroupOutcome
from experiments.config import EvaluationConfig
from experiments.evaluation import Graded, summarise, worst_mean
from experiments.tasks import grid_seed, grid_tasks, spread
from simulator.dialogue import Outcome
from simulator.scenario import FAMILIES, Fact, HiddenIntention, Persona, Scenario, Split


def make_scenario(*, scenario_id: str, family=FAMILIES[0]) -> Scenario:
    return Scenario(
        scenario_id=scenario_id,
        family=family,
        persona=Persona(name="Nora", age=34, occupation="nurse", persona_type=family.persona),
        background="",
        facts=(Fact(text="They sold the piano.", cue="the piano"),),
        other="sister",
        feelings=("hurt",),
        goal="",
        hidden_intention="",
        opening="They sold the piano.",
        language="en",
        split=Split.HELDOUT,
    )


def make_graded(*, scenario_id="a", intention=HiddenIntention.ADVICE, strictness=0.5, emotion=50, outcome=Outcome.MAX_TURNS) -> Graded:
    return Graded(scenario_id=scenario_id, intention=intention, strictness=strictness, emotion=emotion, outcome=outcome)


def test_grid_holds_every_scenario_at_every_strictness_once():
    tasks = grid_tasks([make_scenario(scenario_id="a"), make_scenario(scenario_id="b")], [0.1, 0.9])
    assert [(task.scenario_id, task.strictness) for task in tasks] == [("a", 0.1), ("a", 0.9), ("b", 0.1), ("b", 0.9)]
    assert len({task.uid for task in tasks}) == 4
    assert all(task.difficulty.strictness == pytest.approx(task.strictness) for task in tasks)


def test_seed_depends_on_the_cell_alone():
    assert grid_seed("a", 0.1) == grid_tasks([make_scenario(scenario_id="a")], [0.1])[0].seed == 1762483104
    assert len({grid_seed("a", 0.1), grid_seed("a", 0.3), grid_seed("b", 0.1)}) == 3


def test_evaluation_task_cannot_become_an_outcome_for_a_teacher():
    task = grid_tasks([make_scenario(scenario_id="a")], [0.1])[0]
    with pytest.raises(TypeError, match="evaluation never reaches a teacher"):
        GroupOutcome(task=task, rewards=(), successes=(), num_tokens=(), statuses=())


def test_smaller_grid_visits_the_families_in_turn_and_is_always_the_same():
    scenarios = [make_scenario(scenario_id=f"{family}-{i}", family=family) for family in FAMILIES[:3] for i in range(4)]
    chosen = spread(scenarios, 4)
    assert sorted(str(s.family) for s in chosen[:3]) == sorted(str(f) for f in FAMILIES[:3])
    assert chosen == spread(list(reversed(scenarios)), 4)
    assert len(spread(scenarios, 0)) == 12


def test_summary_of_a_grid_worked_out_by_hand():
    graded = [
        make_graded(scenario_id="a", strictness=0.1, emotion=100, outcome=Outcome.DELIGHTED),
        make_graded(scenario_id="a", strictness=0.9, emotion=60),
        make_graded(scenario_id="b", strictness=0.1, emotion=40, intention=HiddenIntention.PRAISE),
        make_graded(scenario_id="b", strictness=0.9, emotion=0, outcome=Outcome.LEFT, intention=HiddenIntention.PRAISE),
        make_graded(scenario_id="b", strictness=0.5, emotion=7, outcome=Outcome.ERROR, intention=HiddenIntention.PRAISE),
    ]
    summary = summarise(graded)
    assert summary["score"] == 50.0
    assert summary["by_strictness"] == {"0.1": 70.0, "0.9": 30.0}
    assert summary["worst_cell"] == 0.0
    assert summary["cvar20"] == 20.0
    assert summary["success_rate"] == 0.25
    assert summary["failure_rate"] == 0.25
    assert summary["n_dialogues"] == 4


def test_worst_cell_pools_the_two_strictnesses_of_a_band():
    graded = [make_graded(strictness=d, emotion=e) for d, e in [(0.1, 90), (0.3, 50), (0.5, 65), (0.7, 80), (0.9, 40)]]
    assert summarise(graded)["worst_cell"] == 60.0


def test_empty_grid_is_nan_and_not_a_score():
    summary = summarise([make_graded(outcome=Outcome.ERROR)])
    assert math.isnan(summary["score"]) and math.isnan(summary["cvar20"]) and math.isnan(summary["worst_cell"])
    assert summary["n_dialogues"] == 0


def test_worst_fifth_rounds_up_and_never_to_none():
    assert worst_mean(np.array([5.0, 1.0, 2.0, 3.0, 4.0])) == 1.0
    assert worst_mean(np.array([6.0, 5.0, 1.0, 2.0, 3.0, 4.0])) == 1.5
    assert worst_mean(np.array([8.0])) == 8.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strictness": [0.1, 1.2]}, r"evaluation\.strictness must hold values in \[0, 1\], got 1\.2"),
        ({"strictness": []}, r"evaluation\.strictness must name at least one"),
        ({"during_scenarios": 0}, r"evaluation\.during_scenarios must be >= 1, got 0"),
        ({"split": "train"}, r"evaluation\.split must be 'heldout' or 'sealed', got 'train'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EvaluationConfig(**settings)
