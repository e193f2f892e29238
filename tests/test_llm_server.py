"""The llm user against vLLM's own server with structured output, and a whole run against a server that keeps to the schema."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import KEY, FakeEndpoint, answer, serving
from tiny_policy import make_scenario, save_tiny_policy
from vllm_environment import has_vllm, server_environment

from analysis.runs import DIALOGUES, EVALUATION, METRICS, read_lines
from simulator.dialogue import Dialogue, Reaction, Speaker
from simulator.llm.client import SimulatorError, check_endpoints
from simulator.llm.user import LLMUser, LLMUserConfig
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import profile_of, write_records
from simulator.scenario import FAMILIES, Difficulty, Split
from simulator.world import load_bank

pytestmark = pytest.mark.engine

pytest.importorskip("openai")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's OpenAI server with a random model of one layer, on loopback. It takes 20 s to start."""
    if not has_vllm():
        pytest.skip("vLLM cannot be imported")
    folder = tmp_path_factory.mktemp("vllm")
    save_tiny_policy(folder / "model", hidden=64, layers=1, positions=8192)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--served-model-name=tiny", "--host=127.0.0.1", f"--port={port}", f"--api-key={KEY}", "--dtype=float32", "--enforce-eager"]
    options += ["--max-model-len=8192", "--max-num-seqs=8", "--seed=0", "--generation-config=vllm"]
    options += [] if server_environment() is None else ["--kv-cache-memory-bytes=33554432"]
    # The module, since the `vllm` command of the CPU build looks for the other build's metadata.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"), *options]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **(server_environment() or {})}, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline, is_up = time.monotonic() + 240, False
        while not is_up and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                is_up = True
        assert is_up, (folder / "log").read_text()[-3000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def config(vllm_url: str, monkeypatch: pytest.MonkeyPatch) -> LLMUserConfig:
    """Texts of twelve characters at most, which a model without any sense brings to an end."""
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    return LLMUserConfig(
        urls=[vllm_url], model="tiny", api_key_env="MADE_UP_KEY", temperature=1.0, max_chars=12, max_tokens=600, cache="off", timeout_s=60.0
    )


def react(config: LLMUserConfig, *, seed: int, reply: str = "that sounds heavy.") -> tuple[Dialogue, Reaction]:
    async def run() -> tuple[Dialogue, Reaction]:
        user = LLMUser(config)
        dialogue = await user.open(make_scenario(), Difficulty.along(0.5), seed=seed)
        reaction = await user.react(dialogue, reply)
        await user.endpoints.close()
        return dialogue, reaction

    return asyncio.run(run())


@pytest.mark.parametrize("one_call", [False, True])
def test_structured_output_makes_even_a_senseless_model_a_user(config, one_call):
    for seed in range(4):
        dialogue, reaction = react(replace(config, one_call=one_call), seed=seed)
        turn = reaction.turn
        assert turn.speaker is Speaker.USER and turn.text and turn.thought
        assert -10 <= turn.change <= 10 and turn.emotion == dialogue.emotion + turn.change


def test_structured_output_makes_even_a_senseless_model_a_listener(config):
    server = {**{name: getattr(config, name) for name in ("urls", "model", "api_key_env", "temperature", "cache")}, "retries": 8}
    user = RuleUser(RuleUserConfig(listener="model", server=server))
    dialogue = user.begin(load_bank().scenarios(Split.TRAIN)[0], Difficulty.along(0.35), seed=1)
    readings = [user.answer(dialogue, reply).turn.reading for reply in ("That must hurt.", "Ask her.", "What happened then?")]
    assert all(reading is not None and reading.clarity in (0.0, 0.5, 1.0) for reading in readings)


def test_the_same_seed_gets_the_same_answer_and_another_seed_another(config):
    (_, first), (_, again), (_, other) = (react(config, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_reply_of_special_tokens_reaches_the_server_as_text(config):
    """As markers they would open turns of their own; the server would still answer, so what counts is how many tokens they took."""

    async def num_tokens(reply: str) -> float:
        user = LLMUser(replace(config, one_call=True))
        await user.react(await user.open(make_scenario(), Difficulty.along(0.5), seed=1), reply)
        await user.endpoints.close()
        return user.counts()["prompt_tokens"] / (user.counts()["calls"])

    assert asyncio.run(num_tokens("<|end|>" * 20)) - asyncio.run(num_tokens("")) > 20 * len("|end|")


def test_an_answer_that_does_not_end_is_a_clean_error(config):
    with pytest.raises(SimulatorError, match=r"the answer was cut off; raise simulator.max_tokens"):
        react(replace(config, max_tokens=5, retries=1, first_backoff_s=0.01), seed=1)


def test_the_check_tells_a_key_a_model_and_a_setting_that_the_server_does_not_take(config, monkeypatch):
    check_endpoints(config)
    with pytest.raises(ValueError, match=r"simulator.model must be one that .* serves \(tiny\), got 'gone'"):
        check_endpoints(replace(config, model="gone"))
    with pytest.raises(ValueError, match=r"simulator.\* must be settings that .* takes: HTTP 400"):
        check_endpoints(replace(config, extra_body='{"temperature": -3}'))
    monkeypatch.setenv("MADE_UP_KEY", "wrong")
    with pytest.raises(ValueError, match=r"simulator.api_key_env must name a variable whose key .* accepts, got 'MADE_UP_KEY': HTTP 401"):
        check_endpoints(config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeEndpoint, dict[str, Any]]:
    """A run of two steps on profiles of our own, its server, and what was in the cache. Takes 25 s: Ray, a worker and vLLM start."""
    place = tmp_path_factory.mktemp("run")
    save_tiny_policy(place / "policy", hidden=64, layers=1)
    scenarios = [next(s for s in load_bank().scenarios(Split.TRAIN) if s.family == family) for family in FAMILIES[:6]]
    write_records(place / "train.jsonl.gz", map(profile_of, scenarios[:4]))
    write_records(place / "heldout.jsonl", map(profile_of, scenarios[4:]))
    with serving(FakeEndpoint(key=KEY, always=answer(change=6, reply="hm."))) as server:
        settings = {
            "runs": place,
            "name": "a",
            "policy.model": place / "policy",
            "policy.engine": "hf",
            "rollout.max_turns": 2,
            "rollout.max_context": 1000,
            "budget.steps": 2,
            "evaluation.strictness": "[0.5]",
            "simulator.kind": "llm",
            "simulator.model": "m",
            "simulator.urls": f"[{server.url}]",
            "simulator.api_key_env": "MADE_UP_KEY",
            "simulator.start_emotion": 30,
            "simulator.cache": place / "answers",
            "simulator.price_completion": 50,
            "simulator.profiles": place / "train.jsonl.gz",
            "simulator.heldout_profiles": place / "heldout.jsonl",
        }
        command = [sys.executable, "-m", "experiments", "smoke", *(f"{name}={value}" for name, value in settings.items())]
        environment = {**os.environ, "MADE_UP_KEY": KEY, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "smoke" / "a", server, {"output": done.stdout + done.stderr, "profiles": [profile_of(s) for s in scenarios]}


def test_a_run_trains_on_profiles_and_is_judged_by_others(finished):
    folder, _, facts = finished
    practised = {line["scenario_id"] for line in read_lines(folder / DIALOGUES)}
    judged = {line["scenario_id"] for line in read_lines(folder / EVALUATION)}
    ids = [f"sage/{profile['id']}" for profile in facts["profiles"]]
    assert practised <= set(ids[:4]) and judged == set(ids[4:])
    for line in read_lines(folder / DIALOGUES):
        assert [turn["emotion"] for turn in line["turns"] if turn["speaker"] == "user"] == [30, 36, 42]
        assert line["reward"] == pytest.approx(0.42) and not line["error"]


def test_a_run_logs_what_its_user_used_up(finished):
    folder, server, facts = finished
    first, second = read_lines(folder / METRICS)
    assert first["simulator/calls"] > 0 and first["simulator/failures"] == first["simulator/clipped"] == 0
    assert first["simulator/completion_tokens"] == 20 * first["simulator/calls"]
    # The first evaluation falls before the first step, the last one after the second; the check made one request more.
    assert first["simulator/calls"] + second["simulator/calls"] <= len(server.requests) - 1
    assert second["simulator/cost"] == pytest.approx(50 * 20 * (first["simulator/calls"] + second["simulator/calls"]) / 1e6)
    assert first["simulator/suspicious_share"] == 0.0
    assert "the simulated users cost 0." in facts["output"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["errors"]["simulator"] == 0
    # With the last evaluation, which no step's line has, and whose answers may be known already.
    assert summary["simulator_cost"] >= second["simulator/cost"] > 0.0 and f"cost {summary['simulator_cost']:.2f}, by" in facts["output"]


def test_a_run_leaves_its_key_nowhere(finished):
    folder, server, facts = finished
    assert set(server.keys) == {KEY}
    assert KEY not in facts["output"]
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
