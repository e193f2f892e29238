"""The recipes for real models: each arm is planned, and trained for two steps with a tiny random model of Qwen2.5's architecture."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint, serving
from parts_in_process import Recorded, components_in_process
from tiny_policy import save_tiny_policy

from experiments.__main__ import main
from experiments.config import FOLDER
from experiments.run_state import RunState
from experiments.sweep_plan import Cell, SweepFile, load_sweep
from experiments.train import TrainingRun

RECIPES = sorted(path.stem for path in (FOLDER / "recipes").glob("*.yaml"))
TINY = (
    *("policy.engine=hf", "policy.dtype=float32", "cluster.gpus_per_engine=0", "learner.device=cpu", "learner.autocast=false"),
    *("learner.ranks=1", "learner.sharded=false", "groups_per_step=2", "group_size=2", "rollout.num_engines=1"),
    *("rollout.max_turns=2", "rollout.max_new_tokens=8", "rollout.max_context=512", "budget.steps=2"),
    *("evaluation.num_scenarios=2", "evaluation.during_scenarios=1", "probe.num_dialogues=2"),
)
"""What a recipe asks of a machine, at a size for two cores."""
ARMS = [(recipe, arm) for recipe in RECIPES for arm in SweepFile.of(recipe).arms]


def test_there_is_a_recipe_for_each_size() -> None:
    assert RECIPES == ["qwen_0p5b", "qwen_1p5b_lora", "rlver_7b"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_planned_and_says_what_this_machine_lacks(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([recipe, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"# would write runs/{recipe}" in out and "150 steps each" in out
    assert all(f"\n{arm}: " in out for arm in SweepFile.of(recipe).arms)


@pytest.mark.parametrize(("recipe", "arm"), ARMS)
def test_a_recipe_trains_for_two_steps(recipe: str, arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_tiny_policy(tmp_path / "model")
    with serving(FakeEndpoint()) as server:
        words = [*TINY, f"policy.model={model}", f"runs={tmp_path / 'runs'}"]
        if SweepFile.of(recipe).settings["simulator"]["kind"] == "llm":
            words += [f"simulator.urls=[{server.url}]", "simulator.model=m"]
        else:
            words.append("simulator.listener=rule")  # the encoder is tested by itself
        sweep = load_sweep(recipe, words)
        config = sweep.config(Cell(arm, sweep.seeds[0]))
        config.learner = replace(config.learner, device="cpu", ranks=1, sharded=False)  # arms may set their own
        components, recorder = components_in_process(config), Recorded()
        try:
            run = TrainingRun(config, components, recorder, RunState())
            for _ in range(2):
                metrics, _ = run.step()
        finally:
            components.close()
    assert components.learner.policy_version == sum(math.isfinite(step["actor/grad_norm"]) for step in recorder.steps.values())
    assert metrics["perf/policy_tokens"] > 0 and {"think" in arm} == {config.policy.thinking}
