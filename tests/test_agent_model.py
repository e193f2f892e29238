"""Evaluation of a model whose weights are local, by a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, serving
from test_agent_evaluation import evaluate, judge_at, lines_of, llm_user, replies_in, user_and_judge
from tiny_policy import save_tiny_policy
from transformers import AutoTokenizer

from experiments.__main__ import main
from experiments.agents.agent import Agent, agent_parser
from experiments.agents.players import ModelSettings
from policy.config import EngineConfig, EngineDtype
from policy.model import cache_bytes
from simulator.sage.formats import profile_of, write_records
from simulator.scenario import Split
from simulator.world import load_bank

ENGINE = ("--engine", "hf", "--max-tokens", "6")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_policy(tmp_path / "model", hidden=32, layers=1)


def test_samples_differ_and_repeat_with_their_seed(tmp_path, model):
    arguments = (str(model), "--num-scenarios", "2", "--strictness", "0.1", "--samples", "2", *ENGINE)
    code, found = evaluate(tmp_path / "a", *arguments)
    said = {(line["uid"], line["sibling"]): replies_in(line) for line in lines_of(tmp_path / "a")}
    assert code == 0 and found["n_dialogues"] == 4 and found["agent"]["kind"] == "model" and len(found["agent"]["fingerprint"]) == 16
    assert len({tuple(replies) for replies in said.values()}) == 4
    assert found["best_of_k"]["k"] == 2 and found["usage"]["agent"]["completion_tokens"] > 0
    assert evaluate(tmp_path / "b", *arguments)[1]["score"] == found["score"]
    assert {(line["uid"], line["sibling"]): replies_in(line) for line in lines_of(tmp_path / "b")} == said
    evaluate(tmp_path / "c", *arguments, "--seed", "1")
    assert {(line["uid"], line["sibling"]): replies_in(line) for line in lines_of(tmp_path / "c")} != said


def test_it_meets_users_of_profiles_that_a_model_plays_and_a_judge(tmp_path, model):
    write_records(tmp_path / "profiles.jsonl", map(profile_of, load_bank().scenarios(Split.TRAIN)[:2]))
    with serving(FakeEndpoint(always=user_and_judge)) as other:
        who = (*llm_user(other.url, tmp_path / "c"), *judge_at(other.url))
        code, found = evaluate(tmp_path / "a", str(model), "--profiles", str(tmp_path / "profiles.jsonl"), *ENGINE, *who)
    # The one reply moves this user by 5, from 40.
    assert code == 0 and found["score"] == 45.0 and found["setting"]["user"]["kind"] == "llm" and found["n_dialogues"] == 2
    assert found["capabilities"]["by"] == "judge" and found["capabilities"]["empathic_depth"]["value"] == 1.0
    assert found["usage"]["user"]["calls"] > 0 < found["usage"]["judge"]["calls"]


def test_dialogues_that_ran_out_of_context_are_reported(tmp_path, model, capsys):
    arguments = ("--num-scenarios", "2", "--strictness", "0.1", *ENGINE, "--max-context", "100")
    code, found = evaluate(tmp_path / "a", str(model), *arguments)
    assert code == 0 and found["errors"]["cut_short"] == found["outcomes"]["truncated"] == 2
    assert "cut short   2 of 2 dialogues ran out of context (--max-context)" in capsys.readouterr().out


def test_a_template_that_opens_a_thought_needs_thinking(tmp_path, model, capsys):
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<think>", "</think>"])
    opening = "{% if add_generation_prompt %}<|assistant|>"
    tokenizer.chat_template = tokenizer.chat_template.replace(opening, opening + "<think>\n")
    assert "<think>" in tokenizer.chat_template
    tokenizer.save_pretrained(model)
    arguments = (str(model), "--num-scenarios", "1", "--strictness", "0.1", *ENGINE)
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "a")]) == 2
    assert "--thinking must be given" in capsys.readouterr().err
    code, found = evaluate(tmp_path / "a", *arguments, "--thinking")
    # Six tokens of a random model close no thought: the user hears nothing.
    (line,) = lines_of(tmp_path / "a")
    assert code == 0 and found["agent"]["thinking"] is True and any(line["thoughts"]) and set(replies_in(line)) == {""}


# SmolLM2-135M-Instruct, Qwen2.5-0.5B-Instruct: heads of the keys, their width, layers, MiB of four dialogues.
@pytest.mark.parametrize(("heads", "width", "layers", "mb"), [(3, {"head_dim": 64}, 30, 726), (2, {"hidden_size": 896}, 24, 388)])
def test_the_default_cache_has_room_for_whole_dialogues(tmp_path, monkeypatch, heads, width, layers, mb):
    sizes: dict[str, Any] = {"num_hidden_layers": layers, "num_key_value_heads": heads, "num_attention_heads": 14}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "max_position_embeddings": 8192, **width}), encoding="utf-8")

    def cache_mb(*options: str, free_mb: int = 1 << 16, **run: Any) -> int:
        def make_engine(config: EngineConfig, folder: Path, *, max_context: int) -> None:
            raise RuntimeError(config.kv_cache_mb)

        monkeypatch.setattr("policy.engine.factory.make_engine", make_engine)
        monkeypatch.setattr("policy.engine.factory.free_bytes", lambda: free_mb << 20)
        agent = Agent(kind="model", name="m", source=str(tmp_path), folder=tmp_path, run_config={"policy": run})
        settings = ModelSettings.of(agent_parser("evaluate").parse_args([str(tmp_path), *options]), agent, max_turns=2)
        with pytest.raises(RuntimeError) as built:
            settings.load(tmp_path)
        return built.value.args[0]

    assert cache_mb() == mb and cache_mb(kv_cache_mb=200) == 200
    assert cache_mb("--max-context", "128", "--max-tokens", "20") == EngineConfig().kv_cache_mb
    # A quarter of the memory has room for two, or for none: vLLM needs one.
    assert [cache_mb(free_mb=free) for free in (2 * mb + 8, 8)] == pytest.approx([mb / 2, mb / 4], abs=1)


def test_an_unknown_cache_size_is_not_guessed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "num_hidden_layers": 4}', encoding="utf-8")
    assert cache_bytes(tmp_path, num_tokens=10, dtype=EngineDtype.FLOAT32) == 0
    nested = '{"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}}'
    (tmp_path / "config.json").write_text(nested, encoding="utf-8")
    assert cache_bytes(tmp_path, num_tokens=10, dtype=EngineDtype.BFLOAT16) == 2 * 2 * 4 * 8 * 2 * 10
