"""The supervised start: what it learns from, what it makes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_policy import load, logprobs_of, save_tiny_policy, tiny_tokenizer

from experiments.config import load as load_experiment
from experiments.errors import ConfigError
from policy.config import LearnerConfig, LoraConfig, SftConfig
from policy.lora import adapter_parameters
from policy.sft import encode, read_dialogues, supervised_start
from simulator.scenario import Split
from simulator.tokens import Chat
from simulator.world import load_bank

TALK = ["i had a hard week.", "that sounds heavy.", "my sister, i mean.", "tell me more about it, please."]


def messages(*said: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(said)]


def write(path: Path, *dialogues: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps({"messages": each, "source": "test"}) + "\n" for each in dialogues))
    return str(path)


def start(base: Path, config: SftConfig, *, lora: int = 0, max_tokens: int = 256) -> Path:
    learner = LearnerConfig(micro_batch_tokens=64)
    return supervised_start(base, config, learner, LoraConfig(rank=lora), system_prompt="", max_tokens=max_tokens, progress=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_replies_are_learned_with_their_end_and_the_users_words_are_read() -> None:
    tokenizer = tiny_tokenizer()
    chat = Chat(tokenizer, "be kind.")
    ids, mask = encode(chat, messages(*TALK), max_tokens=256)
    whole = tokenizer.apply_chat_template(messages(*TALK), tokenize=False)
    assert tokenizer.decode(ids) == f"<|system|>be kind.<|end|>{whole}"
    learned = tokenizer.decode([token for token, is_learned in zip(ids, mask, strict=True) if is_learned])
    assert learned == f"{TALK[1]}<|end|>{TALK[3]}<|end|>"


def test_replies_beyond_the_context_are_left_out() -> None:
    chat = Chat(tiny_tokenizer())
    whole, _ = encode(chat, messages(*TALK), max_tokens=256)
    first, _ = encode(chat, messages(*TALK[:2]), max_tokens=256)
    assert encode(chat, messages(*TALK), max_tokens=len(whole) - 1)[0] == first
    assert encode(chat, messages(*TALK), max_tokens=4)[0] == []


@pytest.mark.parametrize("lora", [0, 4])
def test_the_model_imitates_and_stays_a_plain_model(cache: Path, lora: int) -> None:
    base = save_tiny_policy(cache / "base", hidden=32, layers=1)
    data = write(cache / "talks.jsonl", messages(*TALK), messages(*TALK[2:]))
    made = start(base, SftConfig(data=data, epochs=30, lr=3e-2 if lora else 1e-2, batch_size=2), lora=lora)
    ids, mask = encode(Chat(tiny_tokenizer()), messages(*TALK), max_tokens=256)
    first = mask.index(True)
    before, after = (logprobs_of(load(folder), ids[:first], ids[first:])[torch.tensor(mask[first:])].mean() for folder in (base, made))
    assert after > before + 1.0
    plain = load(base).state_dict()
    assert load(made).state_dict().keys() == plain.keys() and not adapter_parameters(load(made))
    if lora:  # what has no adapter is as it was
        name = "model.embed_tokens.weight"
        assert torch.equal(load(made).state_dict()[name], plain[name])


def test_it_is_made_once_for_the_same_base_data_and_settings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = save_tiny_policy(cache / "base", hidden=32, layers=1)
    config = SftConfig(data=write(cache / "talks.jsonl", messages(*TALK)), epochs=1)
    made = start(base, config)
    weights = (made / "model.safetensors").stat().st_mtime_ns
    assert start(base, config) == made and (made / "model.safetensors").stat().st_mtime_ns == weights
    others = {start(base, SftConfig(data=config.data, epochs=2)), start(save_tiny_policy(cache / "b", hidden=32, layers=1, seed=1), config)}
    others.add(start(base, SftConfig(data=write(cache / "talks.jsonl", messages(*TALK[:2])), epochs=1)))
    assert len({made, *others}) == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (messages(*TALK[:3]), r"line 1 must hold messages, each a text, in which user and assistant take turns"),
        ([{"role": "system", "content": "be kind."}, *messages(*TALK)], r"roles \['system', .*; a system prompt is policy\.system_prompt"),
        ("hello", r"line 1 must hold messages"),
        (["a", "b"], r"line 1 must hold messages"),
        ([{"role": "user", "content": "hello"}, {"role": "assistant"}], r"line 1 must hold messages, each a text"),
        ([{"role": "user", "content": "hello"}, {"role": "assistant", "content": [{"text": "yes"}]}], r"each a text"),
        ([{"role": "user", "content": "hello"}, {"role": "assistant", "content": " "}], r"each a text"),
    ],
)
def test_lines_that_are_no_dialogues_are_refused_with_their_number(tmp_path: Path, line: object, says: str) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"messages": line}) + "\n")
    with pytest.raises(ValueError, match=says):
        read_dialogues(path)


def test_a_line_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").write_text('"hello"\n')
    with pytest.raises(ValueError, match="line 1 must hold messages"):
        read_dialogues(tmp_path / "talks.jsonl")


def test_a_file_without_dialogues_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"policy\.sft\.data must hold a dialogue a line"):
        read_dialogues(tmp_path / "none.jsonl")


@pytest.mark.parametrize("other", [[], ["policy.model=smollm2", "policy.thinking=true"]])
def test_the_embedded_policy_and_one_that_thinks_take_none(other: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"policy\.sft\.data must be empty for the embedded policy"):
        load_experiment("smoke", ["policy.sft.data=talks.jsonl", *other])


def test_what_ships_is_of_training_users() -> None:
    shipped = Path(__file__).parents[1] / "experiments/small_model.jsonl"
    assert len(read_dialogues(shipped)) == 560
    named = [json.loads(line)["scenario_id"] for line in shipped.read_text().splitlines()]
    assert len(set(named)) == 560 and set(named) <= {scenario.scenario_id for scenario in load_bank().scenarios(Split.TRAIN)}
