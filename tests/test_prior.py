"""The embedded policy's prior: its recipe and demonstrations, its build and cache, the shipped weights."""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.sweep_plan import load_sweep
from policy.__main__ import main
from policy.files import LOCK
from policy.mode import RECIPE, learnt_to_think
from policy.model import load_model
from policy.prior import SHIPPED, DemonstrationConfig, PriorConfig, prior_folder, recipe_of
from policy.prior.demonstrations import MOVES, WISHES, Demonstration, ShownThought, demonstrate, thoughts
from policy.prior.prior import build_into, build_model, build_prior, build_tokenizer, encode, fact_words
from simulator.dialogue import Dialogue, Speaker
from simulator.emotion import Skill, appraise, hint_in, skill_table
from simulator.listener import Register, clarity, strategies_in
from simulator.scenario import HiddenIntention, Split
from simulator.tokens import CLOSE, OPEN, take_apart
from simulator.world import load_bank

SCENARIOS = load_bank().scenarios(Split.TRAIN)
TINY = PriorConfig(num_tokens=20_000, vocab_size=600, hidden_size=32, num_layers=1, num_heads=2)


def demonstrations(num: int, config: DemonstrationConfig | None = None, **settings: float) -> list[Demonstration]:
    return list(itertools.islice(demonstrate(config or DemonstrationConfig(**settings), SCENARIOS, seed=0), num))


def appraised(dialogue: Dialogue) -> list:
    return [appraise(before, reply, register=Register.WORLD) for before, reply, _ in dialogue.answered()]


LESSONS = {"main job": "d3da1038afe3c1a6", "strong_narrow": "782a1f49bb3196d8"}
"""By prior, a digest of its lessons. With another one runs cannot be paired with older ones (CONTRIBUTING.md, changes to numbers)."""


@pytest.mark.parametrize("prior", LESSONS)
def test_the_lessons_of_a_prior_stay_the_same(prior: str):
    arm = {} if prior == "main job" else load_sweep("prior_ceiling").arms[prior]["policy"]["prior"]["demonstrations"]
    habits = DemonstrationConfig(**arm)
    knowhow = habits.skilled(PriorConfig().knowhow_prob)
    digest = hashlib.sha256()
    for lesson in (knowhow.answering_hints(), knowhow.taking_up(), knowhow, habits):
        for demo in demonstrations(8, lesson):
            digest.update(json.dumps([[turn.speaker, turn.text] for turn in demo.dialogue.turns] + [demo.copied]).encode())
    assert digest.hexdigest()[:16] == LESSONS[prior]


def test_the_demonstrations_are_those_of_the_recipes_version():
    digest = hashlib.sha256()
    for demo in demonstrations(300):
        texts = [turn.text for turn in demo.dialogue.turns] + [thought.text for thought in thoughts(demo, random.Random(0))]
        digest.update("\0".join([*texts, ""]).encode())
    assert digest.hexdigest()[:16] == "f36f31cd50a02720", (
        "raise RECIPE_VERSION, build the prior again (`python -m policy prior --out`) and ship it"
    )


def test_the_shipped_prior_is_the_default_recipes_and_replies_as_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build_prior(PriorConfig(), progress=False)
    assert folder == SHIPPED and not any(tmp_path.iterdir())
    assert json.loads((SHIPPED / RECIPE).read_text()) == json.loads(json.dumps(recipe_of(PriorConfig())))
    with safe_open(SHIPPED / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118 (not a dict)
    model, tokenizer = load_model(folder)
    for scenario, reply in ((0, "You could talk to your boss openly."), (1, "You could talk to your boss about the costume.")):
        opening = [{"role": "user", "content": load_bank().scenarios(Split.HELDOUT)[scenario].opening}]
        asked = tokenizer.apply_chat_template(opening, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        ids = model.generate(**asked, max_new_tokens=24, do_sample=False)[0, asked["input_ids"].shape[1] :]
        assert tokenizer.decode(ids, skip_special_tokens=True) == reply


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden_size": 31}, "hidden_size"),
        ({"hints_share": 0.5}, "taking_up_share"),
        ({"knowhow_share": 0.3}, "knowhow_share"),
        ({"demonstrations": {"open_prob": 0.5, "veiled_prob": 0.6}}, "veiled_prob"),
    ],
)
def test_a_recipe_whose_lessons_cannot_be_given_is_refused(settings: dict, named: str):
    with pytest.raises(ValueError, match=named):
        PriorConfig(**settings)


def test_each_skill_is_shown_now_and_then_and_all_together_hardly_ever():
    # The model shows them less often (measured: 18-28 % of the replies that call for one, docs/decisions.md).
    replies = [one for demo in demonstrations(300) for one in appraised(demo.dialogue)]
    for skill in Skill:
        shown = [one.shown[skill] for one in replies if one.shown[skill] is not None]
        most = 0.42 if skill is Skill.MEMORY else 0.36  # pointing back is what the model learns least of
        assert 0.15 <= sum(shown) / len(shown) <= most, skill
    late = [one for one in replies if one.shown[Skill.MEMORY] is not None]
    assert sum(all(value is not False for value in one.shown.values()) for one in late) / len(late) < 0.01


def test_demonstrations_are_mostly_solutions_and_always_clear():
    demos = demonstrations(200)
    strategies = [one.parsed.strategies for demo in demos for one in appraised(demo.dialogue)]
    assert sum("suggestion" in each for each in strategies) / len(strategies) > 0.35
    for demo in demos:
        scenario = demo.dialogue.scenario
        for reply in demo.dialogue.replies():
            assert clarity(reply, Register.WORLD, facts=scenario.facts, other=scenario.other) == 1.0, reply


def replies_with_thoughts() -> Iterator[tuple[Dialogue, str, ShownThought]]:
    """Each reply with the dialogue before it and its thought."""
    chance = random.Random(0)
    for demo in demonstrations(80, DemonstrationConfig().skilled(0.6)):
        turns = demo.dialogue.turns
        places = [number for number, turn in enumerate(turns) if turn.speaker is Speaker.AGENT]
        for number, thought in zip(places, thoughts(demo, chance), strict=True):
            yield replace(demo.dialogue, turns=turns[:number]), turns[number].text, thought


def test_a_thought_is_short_and_names_the_latest_wish_the_fact_taken_up_and_the_move_that_follows():
    assert set(WISHES) == set(HiddenIntention) and len(set(WISHES.values())) == len(WISHES)
    assert {move for moves in skill_table()["meets"].values() for move in moves} <= set(MOVES) and len(set(MOVES.values())) == len(MOVES)
    named = 0
    for before, reply, thought in replies_with_thoughts():
        assert all(MOVES[strategy] in thought.text for strategy in strategies_in(reply))
        assert all(phrase in thought.text and phrase.lower() in reply.lower() for phrase in thought.copied)
        texts = [turn.text for turn in before.turns if turn.speaker is Speaker.USER]
        hints = [wish for text in texts if (wish := hint_in(text, kinds=("overt", "veiled")))]
        assert [wish for wish in WISHES.values() if wish in thought.chosen] == [WISHES[wish] for wish in hints[-1:]]
        assert len(thought.text.split()) <= 14
        named += bool(hints)
    assert named > 100


def test_choices_and_copies_weigh_more_and_the_users_part_is_not_learnt():
    recipe = PriorConfig(vocab_size=600, choice_weight=4.0, copy_weight=3.0)
    tokenizer = build_tokenizer(recipe, [fact_words(SCENARIOS)])
    demo = next(demo for demo in demonstrations(50, ground_prob=1.0) if len(demo.copied[0]) == 1)
    ids, weights = encode(demo, tokenizer, recipe, random.Random(0))
    start = ids.index(tokenizer.convert_tokens_to_ids("<|assistant|>")) + 1
    assert not any(weights[:start])
    reply = weights[start : ids.index(tokenizer.eos_token_id, start)]
    assert set(reply[:3]) <= {4.0, 3.0} and {3.0, 1.0} <= set(reply)


def test_a_thinking_demonstration_is_the_plain_one_with_thoughts_in_it():
    recipe = replace(TINY, thinking=True)
    tokenizer = build_tokenizer(recipe, [fact_words(SCENARIOS)])
    for demo in demonstrations(10):
        ids, weights = encode(demo, tokenizer, recipe, random.Random(0))
        text = "".join(tokenizer.decode(ids, skip_special_tokens=False).split("<|end|>"))
        replies = [take_apart(part.partition("<|user|>")[0]) for part in text.split("<|assistant|>")[1:]]
        assert [reply.words for reply in replies] == demo.dialogue.replies() and all(reply.well_formed for reply in replies)
        opening = [place for place, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids(OPEN)]
        assert len(ids) == len(weights) and opening and all(weights[place] > 0 for place in opening)


def test_attention_starts_out_copying_what_it_looks_at():
    recipe = PriorConfig(vocab_size=600, hidden_size=32, num_layers=2, num_heads=2)
    tokenizer = build_tokenizer(recipe, [fact_words(SCENARIOS)])
    for strength in (0.0, 3.0):
        torch.manual_seed(0)
        for layer in build_model(replace(recipe, copy_init=strength), tokenizer).model.layers:
            seen_HH = (layer.self_attn.o_proj.weight @ layer.self_attn.v_proj.weight).detach()
            assert abs(seen_HH.diagonal().mean() - strength) < 0.3


def test_every_word_that_a_user_tells_is_one_token():
    words = fact_words(SCENARIOS)
    tokenizer = build_tokenizer(PriorConfig(), 20 * [words])
    assert all(len(tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1 for word in words.split())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Slow: a process imports torch, trains a tokenizer on 3,000 dialogues and a model on 20,000 tokens.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build_prior(TINY, progress=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attune"


def test_a_prior_loads_as_any_model_with_an_untied_head_and_its_template_is_one_token_a_role(tiny: Path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    assert model.config.tie_word_embeddings is False
    torch.testing.assert_close(model.lm_head.weight, model.get_input_embeddings().weight / PriorConfig().temperature)
    text = "You could talk to your sister's boss. I don't know!"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Go on."}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|user|>Hi.<|end|><|assistant|>Go on.<|end|>"


def test_a_prior_is_the_same_under_other_kernels_and_threads_and_is_found_again(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    built = build_prior(TINY, progress=False)
    assert (built / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert built == prior_folder(TINY) != prior_folder(replace(TINY, seed=1))


def test_a_prior_that_thinks_is_another_recipe_and_keeps_its_tags(tiny: Path, cache: Path):
    """Takes 10 s: a prior is built in a process of its own, which imports torch and compiles the lexicon."""
    assert prior_folder(PriorConfig()) == prior_folder(PriorConfig(thinking=False)) != prior_folder(PriorConfig(thinking=True))
    folder = build_prior(replace(TINY, thinking=True), progress=False)
    assert learnt_to_think(folder) is True and learnt_to_think(tiny) is False
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    text = f"{OPEN}They want advice.{CLOSE}You could ask."
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids, skip_special_tokens=True) == text


def test_a_cache_that_cannot_be_written_is_reported_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["prior", "--seed", "1"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1 and "XDG_CACHE_HOME" in message


def test_the_next_build_removes_the_folders_of_killed_ones(cache: Path, monkeypatch: pytest.MonkeyPatch):
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        (Path(command[3]) / "weights").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("policy.prior.prior.subprocess.run", run)
    left = cache / ".prior-of-another-recipe-x"
    left.mkdir(parents=True)
    (left / LOCK).write_text(platform.node())
    built = build_prior(TINY, progress=False)
    assert [path.name for path in built.parent.iterdir()] == [built.name]
    with pytest.raises(ValueError, match="--out"):
        build_into(TINY, built, progress=False)
