"""Requests that cannot be run cost nothing and leave nothing; warnings about settings that seldom work."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_endpoint import KEY, FakeEndpoint, serving
from tiny_policy import save_tiny_policy

from experiments import preflight
from experiments.__main__ import main
from experiments.callbacks import CALLBACKS, Callback
from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import warnings
from experiments.sweep_plan import Cell, load_sweep
from simulator.sage.formats import profile_of, write_records
from simulator.scenario import Split
from simulator.world import load_bank

SCENARIOS = load_bank().scenarios(Split.TRAIN)
Refused = Callable[..., str]


@pytest.fixture
def refused(capsys, tmp_path) -> Refused:
    """Makes a run that is refused, without traces; returns the sentence."""

    def refused(*arguments: str) -> str:
        runs = [word for word in arguments if word.startswith("runs=")] or [f"runs={tmp_path / 'runs'}"]
        assert main(["smoke", *runs, *arguments]) == 2
        out, message = capsys.readouterr()
        assert out == "" and message.startswith("error: ") and message.count("\n") == 1
        assert not (tmp_path / "runs").exists()
        return message.removeprefix("error: ").strip()

    return refused


def test_a_run_that_exists_is_not_written_over(capsys, tmp_path):
    (tmp_path / "smoke" / "a").mkdir(parents=True)
    assert main(["smoke", f"runs={tmp_path}", "name=a"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: name must be new, got 'a'") and f"resume={tmp_path}/smoke/a" in message


@pytest.mark.parametrize("name", ["a/b", ".hidden", "a b"])
def test_a_name_that_is_no_folder_name_is_refused(refused, name):
    assert refused(f"name={name}").startswith("name must")


def test_a_run_that_lacks_something_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    assert refused(f"runs={tmp_path}/file").startswith("runs must be a folder that can be written")
    assert refused("policy.kv_cache_mb=900000000").startswith("policy.kv_cache_mb must")
    assert refused("teacher.kind=yoked", f"teacher.trace={tmp_path}/gone").startswith("teacher.trace must")
    assert refused(f"policy.model={tmp_path}/model").endswith("without config.json")


@dataclass
class Picky(Callback):
    """Takes no seed but 0."""

    def check(self, config):
        if config.seed:
            raise ValueError(f"callbacks.picky must be left out with seed={config.seed}")


def test_a_callback_may_refuse_settings(refused, monkeypatch):
    monkeypatch.setitem(CALLBACKS, "picky", Picky)
    assert refused("callbacks.picky={}", "seed=1") == "callbacks.picky must be left out with seed=1"


# Model and device ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["./models/gone", "gone", "a/b/c", "runs/nope"])
def test_a_model_folder_that_does_not_exist_is_refused(refused, model):
    assert refused(f"policy.model={model}").startswith("policy.model must be 'embedded'")


def test_the_system_prompt_must_leave_room_for_a_dialogue(refused, tmp_path, capsys):
    model = f"policy.model={save_tiny_policy(tmp_path / 'tiny')}"
    assert main(["smoke", model, "--dry-run", f"runs={tmp_path / 'runs'}", "policy.system_prompt=Listen, and ask: what hurts?"]) == 0
    assert "system_prompt: 'Listen, and ask: what hurts?'" in capsys.readouterr().out
    message = refused(model, "--dry-run", f"policy.system_prompt={'Listen. ' * 400}")
    assert message.startswith("rollout.max_context must leave room") and "policy.system_prompt" in message


def test_ranks_refuse_an_architecture_before_anything_starts(refused, tmp_path, capsys):
    folder = save_tiny_policy(tmp_path / "tiny")
    capsys.readouterr()  # it draws a bar
    words = [f"policy.model={folder}", "learner.ranks=2", "learner.sharded=true"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"]}))
    assert refused(*words).startswith("learner.sharded must be false for a OpenAIGPT")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    assert refused(*words).startswith("policy.model must be a causal language model that transformers loads")


def test_a_run_on_a_gpu_is_refused_where_there_is_none_before_a_model_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr("experiments.preflight.num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r"^learner\.device must be cpu .* cluster.gpus_per_engine"):
        preflight.check(load("own_model"), tmp_path / "run", resuming=False)


@pytest.mark.parametrize(("device", "is_there"), [("cuda:1", True), ("cuda:2", False)])
def test_the_learner_may_be_given_any_gpu_of_the_machine(device, is_there, monkeypatch):
    monkeypatch.setattr("experiments.preflight.num_gpus", lambda: 2)
    monkeypatch.setattr("experiments.preflight.check_capacity", lambda *_, **__: None)
    with nullcontext() if is_there else pytest.raises(ConfigError, match=r"^learner\.device must be one of this machine's 2 GPUs"):
        preflight.check_needs(load("smoke", [f"learner.device={device}"]))


# Users that a model plays -------------------------------------------------------------------------------------------------------


def with_model(server: FakeEndpoint, *settings: str) -> list[str]:
    return ["simulator.kind=llm", f"simulator.urls=[{server.url}]", "simulator.model=m", *settings]


def test_a_run_with_a_model_as_user_is_planned_once_its_server_answers(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(FakeEndpoint(key=KEY)) as server:
        words = with_model(server, "simulator.api_key_env=MADE_UP_KEY", f"runs={tmp_path}")
        assert main(["smoke", *words, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "on the llm user" in out and "api_key_env: MADE_UP_KEY" in out
    assert KEY not in out + err and len(server.requests) == 1


def test_a_run_whose_user_cannot_be_reached_is_refused(refused, monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", "sk-wrong-9876")
    with serving(FakeEndpoint(key=KEY)) as server:
        message = refused(*with_model(server, "simulator.api_key_env=MADE_UP_KEY"))
        assert message.startswith("simulator.api_key_env must") and "sk-wrong" not in message
    with serving(FakeEndpoint()) as server:
        assert refused(*with_model(server, "simulator.model=n")).endswith("got 'n'")
    gone = refused(*with_model(server))
    assert gone.startswith("simulator.urls must") and server.url in gone


def test_profiles_that_cannot_be_read_are_refused_by_file_and_line(refused, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "p1"}\n')
    with serving(FakeEndpoint()) as server:
        files = [f"simulator.profiles={tmp_path}/a.jsonl", f"simulator.heldout_profiles={tmp_path}/gone.jsonl"]
        assert refused(*with_model(server, *files)).startswith(f"{tmp_path}/a.jsonl line 1 ")
        assert server.requests == []
        files = [write_users(tmp_path / "b.jsonl", 0, 2), write_users(tmp_path / "c.jsonl", 2, 4)]  # without a sealed half
        words = [f"simulator.profiles={files[0]}", f"simulator.heldout_profiles={files[1]}", "evaluation.split=sealed"]
        assert refused(*with_model(server, *words)).startswith("evaluation.split must be heldout")


def write_users(path: Path, begin: int, end: int) -> Path:
    write_records(path, map(profile_of, SCENARIOS[begin:end]))
    return path


# Warnings -----------------------------------------------------------------------------------------------------------------------


def of(*overrides: str, experiment: str = "adaptive_curriculum") -> list[str]:
    return warnings(load(experiment, overrides))


def test_settings_of_the_file_that_another_algorithm_loses_are_named():
    (note,) = of("algorithm.kind=ppo")
    assert note.startswith("NOTE algorithm.kind=ppo")
    assert note.endswith("for grpo: algorithm.entropy_coef=0.03 algorithm.turn_credit=0.9 algorithm.turn_discount=0.6")
    # What was given with the new kind is not lost.
    (note,) = of("algorithm.kind=ppo", "algorithm.entropy_coef=0.01", "algorithm.turn_credit=0.5")
    assert note.endswith(" has for grpo: algorithm.turn_discount=0.6")
    given = ("algorithm.kind=ppo", "algorithm.turn_credit=0.9", "algorithm.turn_discount=0.6", "algorithm.entropy_coef=0.03")
    for quiet in (given, ("algorithm.normalise_by=group",), ("teacher.kind=linear",)):
        assert of(*quiet) == []
    sweep = load_sweep("rlver_matrix")
    assert [note for arm in sweep.arms for note in warnings(sweep.config(Cell(arm, 0)))] == []


def test_an_entropy_bonus_that_outweighs_a_reward_at_the_end_is_warned_of():
    (warning,) = of("algorithm.turn_credit=0")
    assert warning.startswith("WARNING algorithm.entropy_coef=0.03")
    for quiet in (["algorithm.entropy_coef=0"], ["algorithm.entropy_coef=0.01"], ["policy.model=some/model", "learner.lr=1e-6"]):
        assert of("algorithm.turn_credit=0", *quiet) == []


def test_the_learning_rate_of_the_embedded_policy_is_warned_of_for_another_model(tmp_path):
    model = f"policy.model={tmp_path}"
    (warning,) = of(model)
    assert warning.startswith("WARNING learner.lr=0.0005") and "own_model" in warning
    for quiet in ([], [model, "learner.lr=1e-6"], [model, "policy.lora.rank=8"]):
        assert of(*quiet) == []
    assert of(experiment="own_model") == of(experiment="small_model") == []
    (tmp_path / "recipe.json").write_text("{}")
    assert of(model) == []
