"""A run that serves the model of its users itself (`simulator.serve`): real vLLM servers with a random model of one layer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
from tiny_policy import save_tiny_policy
from vllm_environment import has_vllm

from analysis.runs import CONFIG, DIALOGUES, read_config, read_lines
from experiments.build import reachable_user
from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import check_needs
from experiments.sweep_plan import load_sweep
from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.engine.factory import cards, check_capacity, ray_needs
from policy.files import folder_for_sockets
from policy.rollout.servers import ModelServers, why_ended, with_weights_in_name
from policy.rollout.session import ray_session
from simulator.llm.client import check_endpoints
from simulator.llm.config import ServedConfig
from simulator.llm.user import LLMUserConfig
from simulator.user import first_question

pytest.importorskip("openai")
needs_vllm = pytest.mark.skipif(not has_vllm(), reason="vLLM is not installed")

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = {"start_timeout_s": 300.0, "max_restarts": 3, "restart_window_s": 3600.0}
SENSELESS = {"temperature": 1.0, "max_chars": 12, "serve_kv_cache_mb": 32}
"""What a model without any sense needs to bring its answers to an end."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("user"), hidden=64, layers=1, positions=8192)


@pytest.fixture(scope="module")
def local_ray():
    with folder_for_sockets("attune-") as folder, ray_session(ClusterConfig(), num_cpus=3, folder=Path(folder)):
        yield


@needs_vllm
@pytest.mark.engine
def test_a_server_that_cannot_start_says_why(model, local_ray):
    config = LLMUserConfig(serve=str(model), serve_context=100_000)
    with pytest.raises(
        ValueError, match=r"^simulator\.serve must be a model that vLLM serves with these settings, got .*max_model_len \(100000\)"
    ):
        ModelServers(config, ClusterConfig(), **PATIENCE)


@pytest.mark.engine
def test_a_machine_with_other_packages_is_refused_by_name(model, local_ray, monkeypatch):
    monkeypatch.setattr("policy.rollout.servers.to_compare", lambda: {"ray": "0.0.1"})
    with pytest.raises(ValueError, match=r"must be able to start: every machine with an engine must have .*got ray .* and not 0\.0\.1 on"):
        ModelServers(LLMUserConfig(serve=str(model)), ClusterConfig(address="auto"), **PATIENCE)


def test_other_weights_in_the_same_folder_are_another_model_to_the_cache(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "user")
    before = with_weights_in_name(LLMUserConfig(serve=str(folder), model="user"))
    save_tiny_policy(folder, hidden=32, layers=1, positions=8192)
    after = with_weights_in_name(LLMUserConfig(serve=str(folder), model="user"))
    assert before.model.startswith("user-") and before.model != after.model
    assert with_weights_in_name(LLMUserConfig(serve="org/model")).model == "org/model"


@needs_vllm
@pytest.mark.engine
def test_one_command_runs_policy_users_and_learner_and_outlives_a_server(model, tmp_path):
    """Takes a minute: Ray, two servers and a worker start, and one server again."""
    policy = save_tiny_policy(tmp_path / "policy", hidden=64, layers=1)
    settings = {"runs": tmp_path, "name": "a", "policy.model": policy, "policy.engine": "hf", "rollout.max_turns": 2}
    settings |= {"rollout.max_context": 1000, "budget.steps": 2, "evaluation.strictness": "[0.5]", "evaluation.during_scenarios": 2}
    settings |= {"simulator.kind": "llm", "simulator.serve": model, "simulator.serve_engines": 2, "simulator.retries": 8}
    settings |= {f"simulator.{name}": value for name, value in SENSELESS.items()} | {"simulator.cache": "off"}
    settings |= {"probe.num_dialogues": 0, "evaluation.num_scenarios": 2, "evaluation.listener": "none"}
    command = [sys.executable, "-m", "experiments", "smoke", *(f"{name}={value}" for name, value in settings.items())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MARK_OF_THIS_TEST": str(tmp_path)}
    folder, log = tmp_path / "smoke" / "a", tmp_path / "log"

    def ours() -> list[psutil.Process]:
        """All processes of the run; vLLM's engines have names of their own."""
        found = psutil.process_iter(["environ", "cmdline"])
        return [each for each in found if (each.info["environ"] or {}).get("MARK_OF_THIS_TEST") == str(tmp_path)]

    with log.open("w") as output:
        run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    while not (folder / CONFIG).is_file():  # the run began, so its servers answer
        assert run.poll() is None, log.read_text()
        time.sleep(0.2)
    servers = [each for each in ours() if "policy.serve" in each.info["cmdline"]]
    assert len(servers) == 2
    servers[0].kill()
    assert run.wait(400) == 0, log.read_text()
    assert "is restarted: its process ended with code -9" in log.read_text()
    assert {line["error"] for line in read_lines(folder / DIALOGUES)} == {""}
    saved = read_config(folder / CONFIG)["simulator"]
    assert saved["serve"] == saved["model"] == str(model) and len(saved["urls"]) == 1
    assert not psutil.wait_procs(ours(), timeout=20.0)[1]


@needs_vllm
@pytest.mark.engine
def test_a_killed_server_comes_back_at_its_address(model, local_ray):
    config = LLMUserConfig(serve=str(model), cache="off", **SENSELESS)
    servers = ModelServers(config, ClusterConfig(), **PATIENCE)
    try:
        assert has_answered(servers.user) and not servers.user.serve
        os.kill(ray.get(servers.actors[0].pid.remote()), signal.SIGKILL)
        assert not has_answered(servers.user)
        deadline = time.monotonic() + 200.0
        while not has_answered(servers.user):
            assert time.monotonic() < deadline
            time.sleep(1.0)
        assert servers.num_restarts == 1
    finally:
        servers.close()


TO_HEAR = {"simulator.kind": "rule", "simulator.register": "open", "simulator.listener": "model"}


@pytest.mark.parametrize(("group", "changes"), [("simulator", {}), ("simulator.server", TO_HEAR)])
def test_what_is_wrong_with_served_users_is_said_by_the_setting_that_was_given(monkeypatch, group, changes):
    served = SimpleNamespace(user=LLMUserConfig(model="m") if group == "simulator" else ServedConfig(model="m"), close=lambda: None)
    monkeypatch.setattr("policy.rollout.servers.ModelServers", lambda *_, **__: served)
    monkeypatch.setattr("experiments.build.ray_session", lambda *_, **__: nullcontext())

    def refuse(config):
        raise ValueError(f"{group}.urls must name servers that answer, and {group}.model one of their models")

    monkeypatch.setattr("experiments.build.check_servers", refuse)
    with (
        ExitStack() as stack,
        pytest.raises(ValueError, match=rf"^{group}\.serve must name servers that answer, and {group}\.serve one"),
    ):
        reachable_user(stack, config_of("org/model", group, **changes))


def test_a_model_that_the_run_serves_may_hear_for_the_embedded_user(monkeypatch):
    served = SimpleNamespace(user=ServedConfig(model="m", urls=["http://127.0.0.1:7/v1"]), close=lambda: None)
    monkeypatch.setattr("policy.rollout.servers.ModelServers", lambda *_, **__: served)
    monkeypatch.setattr("experiments.build.ray_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr("experiments.build.check_servers", lambda config: None)
    config = config_of("org/model", "simulator.server", **TO_HEAR)
    with ExitStack() as stack:
        user = reachable_user(stack, config)
    assert user == replace(config.simulator, server=served.user) and user.start_emotion == config.simulator.start_emotion


def has_answered(user: LLMUserConfig) -> bool:
    with suppress(ValueError):
        check_endpoints(user, *first_question(user))
        return True
    return False


def config_of(model, group="simulator", **changes):
    words = {"policy.engine": "hf", "simulator.kind": "llm", f"{group}.serve": str(model), **changes}
    return load("smoke", [f"{name}={value}" for name, value in words.items()])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"simulator.serve": "/none"}, r"simulator\.serve must be a folder that exists or a Hugging Face id"),
        (TO_HEAR | {"simulator.server.serve": "/none"}, r"simulator\.server\.serve must be a folder that exists or a Hugging Face id"),
        ({"simulator.serve_context": 9000}, r"simulator\.serve_context must be at most the 8192 tokens that .* is made for, got 9000"),
        ({"simulator.serve_engines": 1000}, r"simulator\.serve_engines must be such that the servers fit into memory, got 1000"),
    ],
)
def test_users_that_cannot_be_served_are_refused_before_anything_starts(model, changes, sentence, monkeypatch):
    monkeypatch.setattr("experiments.preflight.importlib.util.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=sentence):
        check_needs(config_of(model, "simulator.server" if "simulator.listener" in changes else "simulator", **changes))


def test_without_vllm_no_user_is_served(model, monkeypatch):
    monkeypatch.setattr("experiments.preflight.importlib.util.find_spec", lambda name: None if name == "vllm" else name)
    with pytest.raises(ConfigError, match=r"simulator\.serve must be empty where vLLM is not installed, got .*; pip install -r"):
        check_needs(config_of(model))


def test_settings_of_servers_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"simulator\.urls must be unset with simulator\.serve"):
        LLMUserConfig(serve="m", urls=["http://10.0.0.1:8000/v1"])
    with pytest.raises(ValueError, match=r"simulator\.serve_gpus must be a whole number above 1, got 1\.5"):
        LLMUserConfig(serve="m", serve_gpus=1.5)
    assert LLMUserConfig(serve="m").model == "m" and LLMUserConfig(serve="m", model="n").model == "n"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("policy.sleep", ["policy.sleep=true"]),
        ("simulator.serve_gpus", ["simulator.kind=llm", "simulator.serve=m", "simulator.serve_gpus=1"]),
    ],
)
def test_runs_side_by_side_do_not_share_gpus_with_servers_or_sleepers(setting, words):
    with pytest.raises(ConfigError, match=rf"parallel must be 1 with {setting}, got 2: runs side by side use the same GPUs"):
        load_sweep("quick_comparison", ["parallel=2", *words])


def test_served_users_take_the_first_gpus_and_engines_the_rest(monkeypatch):
    monkeypatch.setattr("policy.engine.factory.num_gpus", lambda: 3)
    rollout, cluster, hf = RolloutConfig(num_engines=2), ClusterConfig(gpus_per_engine=0.5), EngineKind.HF
    user = LLMUserConfig(serve="m", serve_engines=2, serve_gpus=1.0)
    assert [(card.num_served, card.num_engines) for card in cards(rollout, cluster, user)] == [(1, 0), (1, 0), (0, 2)]
    assert ray_needs(rollout, cluster, user) == {"num_cpus": 5, "num_gpus": 3}
    check_capacity(rollout, EngineConfig(gpu_memory_share=0.4), cluster, user=user)
    with pytest.raises(ValueError, match=r"simulator\.serve_gpus must be such that simulator\.serve_engines=3 and rollout"):
        check_capacity(rollout, EngineConfig(), cluster, user=replace(user, serve_engines=3))
    half = replace(user, serve_engines=1, serve_gpus=0.5)
    with pytest.raises(ValueError, match=r"simulator\.serve_gpu_memory_share must leave an engine and the learner on cuda room"):
        check_capacity(rollout, EngineConfig(gpu_memory_share=0.4), cluster, learner_device="cuda", user=half)
    check_capacity(rollout, EngineConfig(gpu_memory_share=0.4), cluster, user=replace(half, serve_gpu_memory_share=0.5))
    check_capacity(rollout, EngineConfig(engine=hf), cluster, user=half)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (
            "INFO x\n(EngineCore pid=7) ERROR 11-29 [core.py:9] RuntimeError: no room\n(APIServer pid=1) RuntimeError: core failed\n",
            "no room",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory\nRuntimeError: Engine core initialization failed\n", "CUDA out of memory"),
        (
            "pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, too long [type=x]\n",
            "Value error, too long [type=x]",
        ),
        ("Killed\n", "its process ended with code 3"),
    ],
)
def test_the_reason_is_the_first_error_that_the_server_printed(output, why):
    assert why_ended(output, 3) == why
