"""The evaluation of a model whose weights are here, by a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, serving
from test_agent_evaluation import user_and_judge
from tiny_policy import save_tiny_policy
from transformers import AutoTokenizer

from experiments.__main__ import main
from experiments.agents import players as speech
from experiments.agents.agent import Agent, Kind
from experiments.agents.options import evaluate_parser
from policy.config import EngineConfig, EngineDtype
from policy.model import cache_bytes
from simulator.sage.formats import write_profiles
from simulator.scenario import Split
from simulator.world import load_bank


def evaluate(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["evaluate", *arguments, "--out", str(folder)])
    return code, json.loads((folder / "agent.json").read_text(encoding="utf-8"))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_model_is_played_by_its_own_engine_and_samples_differ(tmp_path):
    model = save_tiny_policy(tmp_path / "model", hidden=32, layers=1)
    arguments = (str(model), "--num-scenarios", "2", "--strictness", "0.1", "--samples", "2", "--engine", "hf", "--max-tokens", "6")
    code, found = evaluate(tmp_path / "a", *arguments)
    assert code == 0 and found["n_dialogues"] == 4 and found["agent"]["kind"] == "model" and len(found["agent"]["fingerprint"]) == 16
    said = {(line["uid"], line["sibling"]): [turn["text"] for turn in line["turns"]] for line in lines_of(tmp_path / "a")}
    (one, other) = (said[uid, 0] for uid in {uid for uid, _ in said})
    assert said.keys() == {(uid, sibling) for uid, _ in said for sibling in (0, 1)} and one != other
    assert all(said[uid, 0] != said[uid, 1] for uid, _ in said)
    assert found["best_of_k"]["k"] == 2 and found["usage"]["agent"]["completion_tokens"] > 0
    _, again = evaluate(tmp_path / "b", *arguments)
    assert {(line["uid"], line["sibling"]): [turn["text"] for turn in line["turns"]] for line in lines_of(tmp_path / "b")} == said
    assert again["score"] == found["score"]


def test_weights_that_are_here_meet_a_user_that_a_model_plays_and_are_graded_by_a_judge(tmp_path):
    model = save_tiny_policy(tmp_path / "model", hidden=32, layers=1)
    with serving(FakeEndpoint(always=user_and_judge)) as other:
        who = (
            "--user",
            "llm",
            "--user-url",
            other.url,
            "--user-model",
            "m",
            "--judge-url",
            other.url,
            "--judge-model",
            "m",
            "--cache",
            "off",
        )
        speech = ("--engine", "hf", "--max-tokens", "6", "--max-turns", "2")
        code, found = evaluate(tmp_path / "a", str(model), "--num-scenarios", "2", "--strictness", "0.1", *speech, *who)
    # Every reply moves this user by 5, from 40.
    assert code == 0 and found["score"] == 50.0 and found["setting"]["user"]["kind"] == "llm" and found["agent"]["kind"] == "model"
    assert found["capabilities"]["by"] == "judge" and found["capabilities"]["empathic_depth"]["value"] == 1.0
    replies = [turn for line in lines_of(tmp_path / "a") for turn in line["turns"] if turn["speaker"] == "agent"]
    assert len(replies) == 4 and found["usage"]["user"]["calls"] > 0 < found["usage"]["judge"]["calls"]


def test_weights_that_are_here_meet_users_of_native_profiles(tmp_path):
    profiles = tmp_path / "profiles.jsonl"
    write_profiles(profiles, load_bank().scenarios(Split.TRAIN)[:2])
    model = save_tiny_policy(tmp_path / "model", hidden=32, layers=1)
    code, found = evaluate(tmp_path / "a", str(model), "--profiles", str(profiles), "--engine", "hf", "--max-tokens", "6")
    assert code == 0 and found["n_dialogues"] == 2 and found["agent"]["kind"] == "model"
    assert found["setting"]["user"]["preset"] == "sage" and found["setting"]["max_turns"] == 9


def test_dialogues_that_ran_out_of_context_are_told(tmp_path, capsys):
    model = save_tiny_policy(tmp_path / "model", hidden=32, layers=1)
    arguments = (str(model), "--num-scenarios", "2", "--strictness", "0.1", "--engine", "hf", "--max-tokens", "6", "--max-context", "100")
    code, found = evaluate(tmp_path / "a", *arguments)
    assert code == 0 and found["errors"]["cut_short"] == found["outcomes"]["truncated"] == 2
    assert "cut short   2 of 2 dialogues ran out of context (--max-context)" in capsys.readouterr().out


def test_a_model_whose_template_opens_a_thought_is_only_heard_after_it(tmp_path, capsys):
    model = save_tiny_policy(tmp_path / "model", hidden=32, layers=1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<think>", "</think>"])
    opening = "{% if add_generation_prompt %}<|assistant|>"
    assert opening in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(opening, opening + "<think>\n")
    tokenizer.save_pretrained(model)
    arguments = ["evaluate", str(model), "--num-scenarios", "1", "--strictness", "0.1", "--engine", "hf", "--max-tokens", "6"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 2
    assert "--thinking must be given with a chat template that begins each reply with <think>" in capsys.readouterr().err
    code, found = evaluate(tmp_path / "a", *arguments[1:], "--thinking")
    # Six tokens of a random model close no thought: nothing of it is heard.
    (line,) = lines_of(tmp_path / "a")
    assert code == 0 and found["agent"]["thinking"] is True and any(line["thoughts"])
    assert {turn["text"] for turn in line["turns"] if turn["speaker"] == "agent"} == {""}


@pytest.mark.parametrize(("option", "told"), [(None, "Listen."), ("", ""), ("Ask.", "Ask.")])
def test_an_agent_is_told_before_a_dialogue_what_its_run_told_it_unless_something_else_is_said(option, told):
    agent = Agent(kind=Kind.MODEL, name="a", source="a", run_config={"policy": {"system_prompt": "Listen."}})
    assert agent.told(option) == told
    assert Agent(kind=Kind.SERVER, name="a", source="a").told(None) == ""


# SmolLM2-135M-Instruct, Qwen2.5-0.5B-Instruct: heads of the keys, their width, layers.
@pytest.mark.parametrize(("heads", "width", "layers", "mb"), [(3, {"head_dim": 64}, 30, 726), (2, {"hidden_size": 896}, 24, 388)])
def test_the_cache_of_a_model_from_elsewhere_has_room_for_whole_dialogues_unless_something_else_is_said(
    tmp_path, monkeypatch, heads, width, layers, mb
):
    config = {
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "num_attention_heads": 14,
        "max_position_embeddings": 8192,
        **width,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    built: list[EngineConfig] = []
    monkeypatch.setattr(speech, "make_engine", lambda config, folder, *, max_context: built.append(config))
    monkeypatch.setattr(speech, "free_bytes", lambda: 64 << 30)
    agent = Agent(kind=Kind.MODEL, name="m", source=str(tmp_path), folder=tmp_path)
    for options in ((), ("--kv-cache-mb", "200"), ("--max-context", "128", "--max-tokens", "20")):
        asked = speech.speech_of(evaluate_parser().parse_args([str(tmp_path), *options]), agent, max_turns=2)
        speech.engine_for(asked, tmp_path)
    assert [config.kv_cache_mb for config in built] == [mb, 200, EngineConfig.kv_cache_mb]
    # A quarter of the memory has room for two, or for none: vLLM wants one.
    for free_mb, num in ((2 * mb + 8, 2), (8, 1)):
        monkeypatch.setattr(speech, "free_bytes", lambda free_mb=free_mb: free_mb << 20)
        speech.engine_for(speech.speech_of(evaluate_parser().parse_args([str(tmp_path)]), agent, max_turns=2), tmp_path)
        assert built[-1].kv_cache_mb == pytest.approx(mb * num / 4, abs=1)


def test_what_a_config_does_not_say_of_its_cache_is_not_guessed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "num_hidden_layers": 4}', encoding="utf-8")
    assert cache_bytes(tmp_path, num_tokens=10, dtype=EngineDtype.FLOAT32) == 0
    (tmp_path / "config.json").write_text(
        '{"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}}', encoding="utf-8"
    )
    assert cache_bytes(tmp_path, num_tokens=10, dtype=EngineDtype.BFLOAT16) == 2 * 2 * 4 * 8 * 2 * 10
