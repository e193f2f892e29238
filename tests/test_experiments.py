"""The experiment files themselves: what they promise, and that planning them is light."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_policy import save_tiny_policy

from curriculum import TEACHERS
from experiments import preflight
from experiments.config import experiments, load, to_plain
from experiments.errors import ConfigError
from experiments.preflight import warnings
from experiments.resume import words_for
from experiments.sweep_plan import Cell, is_sweep, load_sweep

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = sorted(name for name in experiments() if is_sweep(name))
WITHOUT_GPU = ["policy.model=embedded", "learner.device=cpu", "cluster.gpus_per_engine=0"]
PLAN_ALL = """
import sys
from experiments.__main__ import main
for name in {names!r}:
    # A GPU and a model of the Hub are looked for in a dry run, too.
    instead = {instead!r} if name in ("own_model", "small_model", "small_comparison") else []
    assert main([name, "--dry-run", *instead]) == 0, name
heavy = {{"torch", "ray", "vllm", "transformers", "tensorboard", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""


def test_planning_any_experiment_imports_nothing_heavy_and_writes_nothing(tmp_path):
    program = PLAN_ALL.format(names=sorted(experiments()), instead=WITHOUT_GPU)
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


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_states_what_was_tried_before_its_arms_were_fixed(name):
    assert load_sweep(name).planned.tuning


def test_every_teacher_is_tried_on_one_policy():
    sweep = load_sweep("teachers")
    kinds = [sweep.config(Cell(arm, 0)).teacher.kind for arm in sweep.arms]
    # A study that another test imported may have registered one of its own.
    assert sorted(kinds) == sorted(kind for kind, (_, teacher) in TEACHERS.items() if teacher.__module__.startswith("curriculum."))


def test_rlvers_table_has_every_combination_of_algorithm_mode_and_user_once():
    sweep = load_sweep("rlver_matrix")
    configs = [sweep.config(Cell(arm, 0)) for arm in sweep.arms]
    table = {(config.algorithm.kind, config.policy.thinking, config.teacher.strictness) for config in configs}
    assert table == {(kind, thinking, d) for kind in ("ppo", "grpo") for thinking in (False, True) for d in (0.35, 0.75)}
    assert len(configs) == 8


def test_an_override_of_a_sweep_reaches_arms_of_another_kind_where_it_means_the_same():
    words = ["algorithm.turn_credit=0.5", "algorithm.normalise_by=group", "teacher.success_emotion=80"]
    sweep = load_sweep("rlver_matrix", words)
    grpo, ppo = (sweep.config(Cell(arm, 0)) for arm in ("grpo_plain_vanilla", "ppo_plain_vanilla"))
    assert (grpo.algorithm.turn_credit, ppo.algorithm.turn_credit) == (0.5, 0.5)
    assert grpo.teacher.success_emotion == ppo.teacher.success_emotion == 80 and grpo.teacher.strictness == 0.35
    # An arm's own settings win, and what another kind calls by the same name is another thing.
    compared = load_sweep("quick_comparison", ["teacher.start=0.7", "teacher.success_emotion=80"])
    frontier, fixed, uniform = (compared.config(Cell(arm, 0)).teacher for arm in ("frontier", "fixed_0.5", "uniform"))
    assert (frontier.kind, frontier.start, fixed.kind, fixed.strictness, uniform.kind) == ("frontier", 0.7, "fixed", 0.5, "uniform")
    assert {frontier.success_emotion, fixed.success_emotion, uniform.success_emotion} == {80}
    with pytest.raises(ConfigError, match=r"teacher\.start must reach an arm, got 0\.7"):
        load_sweep("rlver_matrix", ["teacher.start=0.7"])
    with pytest.raises(ConfigError, match="pace is not a setting"):
        load_sweep("rlver_matrix", ["algorithm.pace=1"])


def test_what_the_laptop_comparison_says_of_itself():
    assert "three seeds" in experiments()["quick_comparison"] and "do not decide" in experiments()["quick_comparison"]
    assert list(load_sweep("quick_comparison").arms) == ["frontier", "fixed_0.1", "fixed_0.5", "fixed_0.9", "uniform"]


def test_a_model_of_ones_own_has_the_main_jobs_teacher_and_settings_of_its_own():
    main_job, own = load("adaptive_curriculum"), load("own_model")
    assert (own.teacher, own.simulator.kind, own.groups_per_step) == (main_job.teacher, main_job.simulator.kind, main_job.groups_per_step)
    assert own.algorithm.turn_credit == main_job.algorithm.turn_credit and own.algorithm.entropy_coef == 0
    assert (own.learner.lr, own.learner.num_minibatches, own.simulator.register) == (1e-6, 1, "open")
    assert own.learner.autocast and own.policy.dtype == "bfloat16" and not own.computes_in_float32
    assert load("own_model", ["teacher.kind=fixed", "teacher.strictness=0.5", "learner.lr=2e-6"]).learner.lr == 2e-6


def test_a_small_model_is_trained_without_a_gpu_by_the_same_teacher():
    own, small = load("own_model"), load("small_model")
    assert (small.teacher, small.algorithm, small.simulator) == (own.teacher, own.algorithm, own.simulator)
    assert (small.learner.device, small.cluster.gpus_per_engine, small.learner.autocast) == ("cpu", 0.0, False)
    assert small.rollout.max_turns * (small.rollout.max_new_tokens + 60) < small.rollout.max_context
    assert warnings(small) == []


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["seed=3", "learner.lr=0.001"],
        ["teacher.kind=uniform", "budget.policy_tokens=300000", "evaluation.strictness=[0.1, 0.5]"],
        ["algorithm.kind=ppo", "algorithm.turn_credit=0.9", "probe.at_start=true"],
        ["simulator.momentum=0.4"],
        ["simulator.kind=llm", "simulator.model=m", 'simulator.urls=["http://127.0.0.1:8001/v1"]', "rollout.max_error_share=0.1"],
        ["teacher.kind=yoked", "teacher.trace=elsewhere/teacher.jsonl"],
    ],
)
def test_a_run_knows_the_words_that_make_it_again(words):
    config = load("adaptive_curriculum", words)
    again = words_for(config)
    assert set(words) <= set(again) and to_plain(load("adaptive_curriculum", again)) == to_plain(config)
    assert words_for(load_sweep("quick_comparison").config(Cell("uniform", 1))) is None
    assert words_for(replace(config, experiment="gone")) is None


@pytest.mark.parametrize(
    "text",
    [
        '"hi"',
        "'quoted'",
        '"Hi" and "bye"',
        "Be kind.  # first",
        "no",
        "null",
        "~",
        "1.10",
        "[a, b]",
        "Say: yes",
        "two\nlines",
        "Grüß Gött 😊",
    ],
)
def test_the_words_for_a_prompt_make_the_same_prompt(text):
    config = load("own_model", [])
    config.policy.system_prompt = text
    assert load("own_model", words_for(config)).policy.system_prompt == text


def test_the_words_for_a_request_leave_it_as_it_is():
    words = ["simulator.kind=llm", "simulator.model=m", "simulator.urls=[http://127.0.0.1:1/v1]", 'simulator.extra_body={"a":1}']
    config = load("adaptive_curriculum", words)
    assert config.simulator.extra_body == '{"a":1}'
    assert to_plain(load("adaptive_curriculum", words_for(config))) == to_plain(config)


def test_a_run_that_has_spent_its_budget_is_not_gone_on_with(tmp_path):
    config = load("adaptive_curriculum", ["budget.policy_tokens=1000", "budget.steps=4"])
    preflight.check_unfinished(config, tmp_path)
    for tokens, steps in ((1000, 2), (500, 4)):
        (tmp_path / "summary.json").write_text(json.dumps({"policy_tokens": tokens, "steps": steps}))
        with pytest.raises(
            ConfigError, match=rf"resume must name a run that has not ended, got .*, which took {steps} steps and {tokens:,} "
        ):
            preflight.check_unfinished(config, tmp_path)
    larger = load("adaptive_curriculum", ["budget.policy_tokens=2000", "budget.steps=8"])
    preflight.check_unfinished(larger, tmp_path)


def test_settings_of_the_file_that_another_algorithm_does_not_take_over_are_named():
    (note,) = warnings(load("adaptive_curriculum", ["algorithm.kind=ppo"]))
    assert note == (
        "NOTE algorithm.kind=ppo begins with its own defaults; adaptive_curriculum has for grpo: "
        "algorithm.entropy_coef=0.03 algorithm.turn_credit=0.9 algorithm.turn_discount=0.6"
    )
    # What was given with the new kind is not lost.
    (note,) = warnings(load("adaptive_curriculum", ["algorithm.kind=ppo", "algorithm.entropy_coef=0.01", "algorithm.turn_credit=0.5"]))
    assert note.endswith(" has for grpo: algorithm.turn_discount=0.6")
    # An undiscounted PPO unlearns here (docs/decisions.md): what the file leaves at its kind's default is lost as well.
    given = ["algorithm.kind=ppo", "algorithm.turn_credit=0.9", "algorithm.turn_discount=0.6", "algorithm.entropy_coef=0.03"]
    for quiet in (given, ["algorithm.normalise_by=group"], ["teacher.kind=linear"]):
        assert warnings(load("adaptive_curriculum", quiet)) == []
    sweep = load_sweep("rlver_matrix")
    assert [note for arm in sweep.arms for note in warnings(sweep.config(Cell(arm, 0)))] == []


def test_an_entropy_bonus_that_outweighs_a_reward_at_the_end_is_warned_of():
    (warning,) = warnings(load("adaptive_curriculum", ["algorithm.turn_credit=0"]))
    assert warning.startswith("WARNING algorithm.entropy_coef=0.03 was found with credit by turn") and warning.endswith("they did learn")
    for quiet in (["algorithm.entropy_coef=0"], ["algorithm.entropy_coef=0.01"], ["policy.model=some/model", "learner.lr=1e-6"]):
        assert warnings(load("adaptive_curriculum", ["algorithm.turn_credit=0", *quiet])) == []


def test_a_run_on_a_gpu_is_refused_where_there_is_none_before_a_model_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r"learner\.device must be cpu where torch finds no GPU, got 'cuda'; set it to cpu and cluster"):
        preflight.check(load("own_model"), tmp_path / "run", resuming=False)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:1", None),
        ("cuda:2", r"learner\.device must be one of this machine's 2 GPUs, cuda:0 to cuda:1, got 'cuda:2'"),
        ("cuda:last", r"learner\.device must be cpu, cuda or cuda:<number>, got 'cuda:last'"),
    ],
)
def test_the_learner_may_be_given_any_gpu_that_is_there(device, message, monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 2)
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        preflight.check_device(load("own_model", [f"learner.device={device}"]))


def test_a_model_of_ones_own_is_planned_where_there_is_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 1)
    folder = save_tiny_policy(tmp_path / "tiny")
    preflight.check(load("own_model", [f"policy.model={folder}"]), tmp_path / "run", resuming=False)


def test_the_embedded_policys_step_size_is_warned_of_where_another_model_is_trained(tmp_path):
    (warning,) = warnings(load("adaptive_curriculum", [f"policy.model={tmp_path}"]))
    assert warning.startswith("WARNING learner.lr=0.0005 was found for the embedded policy") and "own_model" in warning
    for quiet in ([], [f"policy.model={tmp_path}", "learner.lr=1e-6"], [f"policy.model={tmp_path}", "policy.lora.rank=8"]):
        assert warnings(load("adaptive_curriculum", quiet)) == []
    assert warnings(load("own_model")) == []
    (tmp_path / "recipe.json").write_text("{}")
    assert warnings(load("adaptive_curriculum", [f"policy.model={tmp_path}"])) == []
