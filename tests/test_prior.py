"""The embedded policy's prior: its recipe, its cache, what it is taught."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import platform
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.sweep_plan import load_sweep
from policy.config import DemonstrationConfig, PriorConfig
from policy.files import LOCK
from policy.model import load_model
from policy.prior import SHIPPED, prior_folder, recipe_of
from policy.prior.demonstrations import demonstrate, thoughts
from policy.prior.prior import CHOICE_TOKENS, WORD_WEIGHT, build_anew, build_model, build_prior, build_tokenizer, encode, words_told
from policy.rollout.chat import RECIPE
from simulator.dialogue import Dialogue, Speaker
from simulator.emotion import REPEATED_AT, Skill
from simulator.explain import appraisals
from simulator.listener import Register, clarity, cue_heads, facts_told
from simulator.scenario import Split
from simulator.world import load_bank

SCENARIOS = load_bank().scenarios(Split.TRAIN)
DEMONSTRATED = "f36f31cd50a02720"
"""Hash over what the first demonstrations of the default recipe say and think."""
TINY = PriorConfig(num_tokens=20_000, vocab_size=600, hidden_size=32, num_layers=1, num_heads=2)


def demonstrations(num: int, **settings: float) -> list:
    return list(itertools.islice(demonstrate(DemonstrationConfig(**settings), SCENARIOS, seed=0), num))


def appraised(dialogue: Dialogue) -> list:
    return list(appraisals(dialogue, register=Register.WORLD))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build_prior(TINY, progress=False)


def test_each_skill_is_shown_now_and_then_and_all_together_hardly_ever():
    # The model shows them less often (measured: 18-28 % of the replies that call for one, docs/decisions.md).
    weighed = [one for demo in demonstrations(600) for one in appraised(demo.dialogue)]
    for skill in Skill:
        shown = [one.shown[skill] for one in weighed if one.shown[skill] is not None]
        most = 0.42 if skill is Skill.MEMORY else 0.36  # pointing back is what the model learns least of
        assert 0.15 <= sum(shown) / len(shown) <= most, skill
    late = [one for one in weighed if one.shown[Skill.MEMORY] is not None]
    assert sum(all(value is not False for value in one.shown.values()) for one in late) / len(late) < 0.01


def test_that_thing_was_told_two_turns_before_so_that_such_a_reply_ties_back():
    ties: list[bool] = []
    for demo in demonstrations(40, ground_prob=1.0, earlier_prob=1.0, repair_prob=0.0):
        facts = demo.dialogue.scenario.facts
        told = [facts_told(turn.text, facts) for turn in demo.dialogue.turns if turn.speaker is Speaker.USER]
        for number, one in enumerate(appraised(demo.dialogue)):
            if number >= 2 and told[number - 2] and told[number - 1]:
                assert set(told[number - 2]) & set(one.reading.cues)
                ties.append(bool(one.shown[Skill.MEMORY]) or one.reading.similarity >= REPEATED_AT)
    assert sum(ties) / len(ties) > 0.98


def test_lessons_in_answering_hints_show_what_each_hint_asks_for_and_nothing_else():
    demos = list(itertools.islice(demonstrate(DemonstrationConfig().skilled(0.7).answering_hints(), SCENARIOS, seed=0), 60))
    kinds: list[bool] = []
    for demo in demos:
        assert demo.dialogue.num_replies <= 3
        for one in appraised(demo.dialogue):
            if one.shown[Skill.FIT] is not None:
                assert one.shown[Skill.FIT]
                kinds.append(one.shown[Skill.HINTS] is not None)
            assert not one.shown[Skill.GROUNDING]
    assert 0.3 < sum(kinds) / len(kinds) < 0.7  # veiled ones among them


def test_where_a_strategy_is_chosen_and_what_is_taken_up_weigh_more():
    recipe = PriorConfig(vocab_size=600, choice_weight=4.0, copy_weight=3.0)
    tokenizer = build_tokenizer(recipe, [words_told(SCENARIOS)])
    demo = next(demo for demo in demonstrations(50, ground_prob=1.0) if len(demo.copied[0]) == 1)
    ids, weights = encode(demo, tokenizer, recipe, random.Random(0))
    start = ids.index(tokenizer.convert_tokens_to_ids("<|assistant|>")) + 1
    assert not any(weights[:start])  # the user's part is not learnt
    reply = weights[start : ids.index(tokenizer.eos_token_id, start)]
    assert set(reply[:CHOICE_TOKENS]) <= {4.0, 3.0} and {3.0, 1.0} <= set(reply)


def test_attention_starts_out_repeating_what_it_looks_at():
    recipe = PriorConfig(vocab_size=600, hidden_size=32, num_layers=2, num_heads=2, copy_init=3.0)
    tokenizer = build_tokenizer(recipe, [words_told(SCENARIOS)])
    for strength in (0.0, 3.0):
        torch.manual_seed(0)
        for layer in build_model(replace(recipe, copy_init=strength), tokenizer).model.layers:
            seen_HH = (layer.self_attn.o_proj.weight @ layer.self_attn.v_proj.weight).detach()
            assert abs(seen_HH.diagonal().mean() - strength) < 0.3


def test_demonstrations_are_mostly_solutions_and_always_clear():
    demos = demonstrations(200)
    heard = [one.reading.strategies for demo in demos for one in appraised(demo.dialogue)]
    assert sum("suggestion" in strategies for strategies in heard) / len(heard) > 0.35
    for demo in demos:
        scenario = demo.dialogue.scenario
        for reply in demo.dialogue.replies():
            assert clarity(reply, Register.WORLD, facts=scenario.facts, other=scenario.other) == 1.0, reply


def test_the_same_seed_gives_the_same_demonstrations():
    assert [demo.dialogue.turns for demo in demonstrations(5)] == [demo.dialogue.turns for demo in demonstrations(5)]


TAUGHT = {
    "main job": "d3da1038afe3c1a6",
    "weak_narrow": "2a596c2a358e7c83",
    "weak_diverse": "8f86ad965341839b",
    "strong_narrow": "782a1f49bb3196d8",
    "strong_diverse": "ee1d2e20edb87bca",
}
"""By prior, a digest of what its lessons show. Another one is another prior: runs are no longer paired with those that began with the old
one (CONTRIBUTING.md, changes to numbers), so change it here only where that is meant."""


@pytest.mark.parametrize("prior", TAUGHT)
def test_what_a_prior_is_taught_stays_as_it_is(prior: str):
    arm = {} if prior == "main job" else load_sweep("prior_ceiling").arms[prior]["policy"]["prior"]["demonstrations"]
    habits = DemonstrationConfig(**arm)
    knowhow = habits.skilled(PriorConfig().knowhow_prob)
    digest = hashlib.sha256()
    for lesson in (knowhow.answering_hints(), knowhow.taking_up(), knowhow, habits):
        for demo in itertools.islice(demonstrate(lesson, SCENARIOS, seed=0), 8):
            digest.update(json.dumps([[turn.speaker, turn.text] for turn in demo.dialogue.turns] + [demo.copied]).encode())
    assert digest.hexdigest()[:16] == TAUGHT[prior]


def test_narrow_demonstrations_have_one_wording_for_each_move():
    def wordings(narrow: bool) -> int:
        demos = demonstrations(60, narrow=narrow, ground_prob=0.0, repair_prob=0.0)
        return len({" ".join(reply.split()[:4]) for demo in demos for reply in demo.dialogue.replies()})

    assert wordings(True) < 0.5 * wordings(False)


def test_a_collage_tells_of_things_that_its_sentences_did_not_have():
    known = {fact for scenario in SCENARIOS for fact in scenario.facts}
    demos = demonstrations(20, collage_prob=1.0)
    facts = [fact for demo in demos for fact in demo.dialogue.scenario.facts]
    assert sum(fact in known for fact in facts) / len(facts) < 0.2
    for demo in demos:
        heads = cue_heads(demo.dialogue.scenario.facts)
        assert len(set(heads)) == len(heads)


def test_a_prior_is_the_same_where_other_kernels_and_threads_would_be_chosen(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Built by a process that is not told which kernels to use, it is another one."""
    weights = (tiny / "model.safetensors").read_bytes()
    elsewhere = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    assert (build_prior(TINY, progress=False) / "model.safetensors").read_bytes() == weights
    command = [sys.executable, "-m", "policy.prior.prior", str(tmp_path / "direct"), "--quiet"]
    subprocess.run(command, input=pickle.dumps(TINY), check=True)
    assert (tmp_path / "direct" / "model.safetensors").read_bytes() != weights


def test_a_build_that_fails_says_so_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONHASHSEED", "none")
    with pytest.raises(RuntimeError, match="its process ended with exit code 1"):
        build_prior(TINY, progress=False)
    assert "PYTHONHASHSEED" in capfd.readouterr().err
    assert not any((tmp_path / "attune").iterdir())


def test_a_cache_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    from policy.__main__ import main

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["prior", "--seed", "1"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1 and "XDG_CACHE_HOME" in message


def test_what_killed_builds_of_any_recipe_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("policy.prior.prior.build_apart", lambda config, folder, **_: (folder / "weights").touch())
    left = tmp_path / "attune" / ".prior-of-another-recipe-x"
    left.mkdir(parents=True)
    (left / LOCK).write_text(platform.node())
    built = build_prior(TINY, progress=False)
    assert [path.name for path in built.parent.iterdir()] == [built.name]


@pytest.mark.parametrize("is_quicker", [True, False])
def test_a_prior_that_cannot_get_its_name_is_an_error_unless_another_build_was_quicker(
    is_quicker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = prior_folder(TINY)

    def build(config: PriorConfig, folder: Path, **_: object) -> None:
        (folder / "weights").touch()
        if is_quicker:
            place.mkdir(parents=True)
            (place / "weights").touch()

    def refuse(path: Path, target: Path) -> None:
        raise OSError("the disk can only be read")

    if not is_quicker:
        monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr("policy.prior.prior.build_apart", build)
    if is_quicker:
        assert build_prior(TINY, progress=False) == place
    else:
        with pytest.raises(RuntimeError, match=r"^the prior's cache .* must be writable \(the disk can only be read\)"):
            build_prior(TINY, progress=False)


def test_a_prior_may_be_read_by_whom_the_umask_lets_and_lies_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, flushed, fsync = prior_folder(TINY), [], os.fsync

    def build(config: PriorConfig, unfinished: Path, *, progress: bool) -> None:
        save_file({"weight": torch.zeros(2)}, unfinished / "model.safetensors")
        (unfinished / "config.json").write_text("{}")

    def noted(descriptor: int) -> None:
        flushed.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, folder.exists()))
        fsync(descriptor)

    monkeypatch.setattr("policy.prior.prior.build_apart", build)
    monkeypatch.setattr("os.fsync", noted)
    before = os.umask(0o027)
    try:
        assert build_prior(TINY, progress=False) == folder
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    assert set(flushed) == {*((path.name, False) for path in (folder, *folder.iterdir())), (folder.parent.name, True)}
    assert list(folder.parent.iterdir()) == [folder]


def test_a_prior_is_found_again_in_the_cache_and_another_recipe_is_not(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny.parents[1]))
    assert prior_folder(TINY) == tiny
    assert prior_folder(replace(TINY, num_tokens=20_001)) != tiny
    assert [path.name for path in tiny.parent.iterdir()] == [tiny.name]


def test_the_folder_loads_as_any_model_with_a_head_of_its_own(tiny: Path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    assert model.config.tie_word_embeddings is False
    assert model.lm_head.weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
    torch.testing.assert_close(model.lm_head.weight, model.get_input_embeddings().weight / PriorConfig().temperature)
    text = "You could talk to your sister's boss. I don't know!"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_every_word_that_a_user_tells_is_one_token():
    words = words_told(SCENARIOS)
    tokenizer = build_tokenizer(PriorConfig(), WORD_WEIGHT * [words])
    assert all(len(tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1 for word in words.split())


def test_its_template_is_one_token_a_role(tiny: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Go on."}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|user|>Hi.<|end|><|assistant|>Go on.<|end|>"


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_tokens", 0), ("vocab_size", 10), ("hidden_size", 31), ("knowhow_prob", 1.5), ("copy_init", -1.0), ("choice_weight", 0.0)],
)
def test_settings_out_of_range_are_named(field: str, value: float):
    with pytest.raises(ValueError, match=f"policy.prior.{field} must be"):
        PriorConfig(**{field: value})


def test_open_and_veiled_users_are_shares_of_one_whole():
    with pytest.raises(ValueError, match=r"policy\.prior\.demonstrations\.veiled_prob must be at most 1 - open_prob, got 0\.6"):
        DemonstrationConfig(open_prob=0.5, veiled_prob=0.6)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"hints_share": 0.5}, r"taking_up_share must be at least hints_share \(0\.5\), which ends before it, got 0\.39"),
        ({"knowhow_share": 0.3}, r"knowhow_share must be at least taking_up_share \(0\.39\), which ends before it, got 0\.3"),
        ({"demonstrations": DemonstrationConfig(num_replies=0)}, r"demonstrations\.num_replies must be at least 1, got 0"),
        ({"demonstrations": DemonstrationConfig(open_prob=0.7)}, r"demonstrations\.open_prob must be at most 0\.6, got 0\.7"),
    ],
)
def test_a_recipe_whose_lessons_cannot_be_given_is_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        PriorConfig(**settings)


@pytest.mark.parametrize(
    ("scenario", "reply"),
    [
        (0, "You could talk to your boss openly."),
        (1, "You could talk to your boss about the costume."),
    ],
)
def test_the_default_prior_ships_and_replies_as_it_did(scenario: int, reply: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build_prior(PriorConfig(), progress=False)
    assert folder == SHIPPED and not any(tmp_path.iterdir())
    model, tokenizer = load_model(folder)
    said = [{"role": "user", "content": load_bank().scenarios(Split.HELDOUT)[scenario].opening}]
    asked = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**asked, max_new_tokens=24, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert tokenizer.decode(ids, skip_special_tokens=True) == reply


def test_the_shipped_prior_names_the_recipe_that_it_was_built_from():
    assert json.loads((SHIPPED / RECIPE).read_text()) == json.loads(json.dumps(recipe_of(PriorConfig())))
    with safe_open(SHIPPED / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118 (not a dict)


def test_the_demonstrations_are_those_of_the_recipes_version():
    digest = hashlib.sha256()
    for demo in demonstrations(300):
        texts = [turn.text for turn in demo.dialogue.turns] + [thought.text for thought in thoughts(demo, random.Random(0))]
        digest.update("\0".join([*texts, ""]).encode())
    assert digest.hexdigest()[:16] == DEMONSTRATED, (
        "raise RECIPE_VERSION, build the prior again (`python -m policy prior --out`) and ship it"
    )


def test_a_prior_is_built_anew_where_it_is_asked_for_and_never_over_another(tiny: Path, tmp_path: Path):
    built = build_anew(TINY, tmp_path / "prior", progress=False)
    assert (built / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="--out must be a folder that is not there yet"):
        build_anew(TINY, built, progress=False)
