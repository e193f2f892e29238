"""Evaluation of a model whose weights are local, by a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_agent_evaluation import evaluate, lines_of, replies_in
from tiny_policy import save_tiny_policy
from transformers import AutoTokenizer

from experiments.__main__ import main
from experiments.agents.agent import Agent, agent_parser
from experiments.agents.players import ModelSettings
from policy.config import EngineConfig

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


def test_the_default_cache_has_room_for_whole_dialogues(tmp_path, monkeypatch):
    # SmolLM2-135M-Instruct.
    sizes = {"num_hidden_layers": 30, "num_key_value_heads": 3, "num_attention_heads": 9, "head_dim": 64, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(sizes), encoding="utf-8")

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

    mb = 726
    assert cache_mb() == mb and cache_mb(kv_cache_mb=200) == 200
    assert cache_mb("--max-context", "128", "--max-tokens", "20") == EngineConfig().kv_cache_mb
    # A quarter of the memory has room for two, or for none: vLLM needs one.
    assert [cache_mb(free_mb=free) for free in (2 * mb + 8, 8)] == pytest.approx([mb / 2, mb / 4], abs=1)
