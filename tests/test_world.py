"""The built-in world: enough scenarios, splits that share nothing but words, and users whose words and feelings stay."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace

import pytest

from simulator.adversaries import Adversary
from simulator.dialogue import Dialogue, Outcome
from simulator.listener import Register, cue_heads
from simulator.rule_user import Preset, RuleUserConfig
from simulator.sage.user import NativeUser
from simulator.scenario import FAMILIES, Difficulty, Scenario, Split
from simulator.scripted import AGENTS, exchange, play
from simulator.text import words_of
from simulator.version import FINGERPRINTS, WORLD_VERSION, recorded_world, world_name
from simulator.world import WORLD, load_bank, read_toml

BANK = load_bank()


@pytest.mark.parametrize(("split", "at_least"), [(Split.TRAIN, 500), (Split.HELDOUT, 100), (Split.SEALED, 100)])
def test_there_are_enough_scenarios_of_every_family(split: Split, at_least: int):
    counts = Counter(scenario.family for scenario in BANK.scenarios(split))
    assert counts.total() >= at_least and set(counts) == set(FAMILIES)
    assert max(counts.values()) - min(counts.values()) <= 3


def test_splits_share_no_event_no_person_and_no_sentence():
    parts: list[set[str]] = []
    for split in Split:
        events = [event for path in WORLD.glob(f"{split}*.toml") for event in read_toml(path.stem)["event"]]
        sentences = {text for event in events for text, _ in (event["opening"], event["opening_alt"], *event["facts"])}
        parts.append({event["id"] for event in events} | {person["name"] for event in events for person in event["people"]} | sentences)
    assert len(set().union(*parts)) == sum(map(len, parts))


def test_held_out_words_occur_in_training_text():
    def spoken(scenario: Scenario) -> set[str]:
        texts = [scenario.opening, scenario.other, *scenario.feelings, *(text for fact in scenario.facts for text in (fact.text, fact.cue))]
        return {word for text in texts for word in words_of(text)}

    phrases = words_of(json.dumps([read_toml("phrases"), read_toml("moves")]))
    words = {split: set().union(*map(spoken, BANK.scenarios(split))) for split in Split}
    assert words[Split.HELDOUT] | words[Split.SEALED] <= words[Split.TRAIN].union(phrases)


def test_every_cue_is_recognised_in_the_sentence_that_tells_it_and_in_no_other_way():
    for scenario in BANK.by_id.values():
        heads = cue_heads(scenario.facts)
        assert len(set(heads)) == len(heads) == 8, scenario.scenario_id
        for fact, head in zip(scenario.facts, heads, strict=True):
            assert head in words_of(fact.text), (scenario.scenario_id, fact)


def test_a_scenario_survives_its_record_and_an_unknown_one_is_named():
    for scenario in BANK.scenarios(Split.HELDOUT):
        assert Scenario.from_dict(json.loads(json.dumps(scenario.to_dict()))) == scenario
    with pytest.raises(ValueError, match="nowhere"):
        BANK.scenario("nowhere")


CHINESE_REPLIES = (
    "你是不是觉得很委屈？",
    "听起来你真的很难过，换作是我也会这样。",
    "这不是你的错，你已经做得很好了。",
    "那天后来发生了什么？",
    "你应该直接去找他谈一谈。",
    "你想太多了，别这么小气。",
    "我在听，你慢慢说。",
    "谢谢你愿意告诉我这些。",
    "可能他也有自己的难处。",
    "再见。",
)


def fixed_dialogues(name: str, num: int = 504) -> list[Dialogue]:
    """Scripted agents and adversaries with users of all families and difficulties; in the open register some also in Chinese.

    Args:
        name: a register, or `sage` for the preset.
    """
    preset = Preset.SAGE if name == Preset.SAGE else Preset.TRAINING
    register = Register.WORLD if name == Register.WORLD else Register.OPEN
    user = NativeUser(RuleUserConfig(register=register, preset=preset))
    tricks = [trick for trick in Adversary.suite() if trick.is_played_in(register) and trick.disguise != "endless"]
    agents, scenarios, played = [*AGENTS.values(), *tricks], BANK.by_family(Split.TRAIN), []
    levels = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    for i in range(num):
        family, round_ = FAMILIES[i % len(FAMILIES)], i // len(FAMILIES)
        scenario = BANK.scenario(scenarios[family][round_ % len(scenarios[family])])
        difficulty = Difficulty.along(levels[i % len(levels)])
        played.append(play(agents[i % len(agents)], scenario, difficulty, seed=i, user=user))
        if register is Register.OPEN and round_ < 2:
            profile = replace(scenario, language="zh", facts=(), opening="我今天特别难受，没人理解我。")
            dialogue = user.begin(profile, difficulty, seed=i)
            while dialogue.outcome is None:
                dialogue = exchange(dialogue, CHINESE_REPLIES[(i + dialogue.num_replies) % len(CHINESE_REPLIES)], user=user)
            played.append(dialogue)
    return played


def fingerprint(dialogues: list[Dialogue]) -> str:
    """First 16 hex digits of a SHA-256 over emotions and words of dialogues, and over every scenario's words."""
    digest = hashlib.sha256()
    for scenario in BANK.by_id.values():
        digest.update(json.dumps(scenario.to_dict(), sort_keys=True, ensure_ascii=False).encode())
    for dialogue in dialogues:
        turns = [(turn.text, turn.emotion, turn.change) for turn in dialogue.turns]
        digest.update(json.dumps([dialogue.scenario.scenario_id, turns, dialogue.outcome], ensure_ascii=False).encode())
    return digest.hexdigest()[:16]


# Takes some seconds: only many dialogues reach every family, difficulty, agent and trick.
@pytest.mark.parametrize("name", list(FINGERPRINTS))
def test_users_say_and_feel_what_they_did_when_the_world_got_its_version(name: str):
    dialogues = fixed_dialogues(name)
    assert {dialogue.scenario.family for dialogue in dialogues} == set(FAMILIES)
    assert {dialogue.outcome for dialogue in dialogues} >= {Outcome.DELIGHTED, Outcome.LEFT, Outcome.MAX_TURNS}
    assert fingerprint(dialogues) == FINGERPRINTS[name], (
        f"users of {name} say or feel something else than in version {WORLD_VERSION[name]}. Take the change back, or raise the version in "
        "simulator/version.py, put the new fingerprint there, and build and ship the prior again"
    )


@pytest.mark.parametrize(("name", "value"), [("simulator.rule_user.RELIEVED_AT", 60), ("simulator.emotion.is_rebuff", lambda _: False)])
def test_a_change_of_behaviour_changes_the_fingerprint(name: str, value: object, monkeypatch: pytest.MonkeyPatch):
    before = fingerprint(fixed_dialogues("world", 48))
    monkeypatch.setattr(name, value)
    assert fingerprint(fixed_dialogues("world", 48)) != before


def test_worlds_differ_by_register_and_version_and_old_hashes_map_to_the_first():
    assert (world_name(), world_name("open"), world_name("open", "sage")) == ("world-1", "open-2", "open-2-sage-1")
    assert recorded_world({"world": "world-7"}, {}) == "world-7"
    assert recorded_world({"world_hash": "5ad6837599ae0863"}, {"simulator": {"register": "open"}}) == "open-1"
    assert recorded_world({"world_hash": "5ad6837599ae0863"}, {}) == "world-1"
    assert recorded_world({"world_hash": "aaaa"}, {}) == "aaaa" and recorded_world({}, {}) == ""
