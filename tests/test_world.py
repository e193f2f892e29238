"""The built-in world: enough scenarios, and splits that share nothing but words."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from simulator.dialogue import Outcome
from simulator.fingerprint import behaviour_fingerprint, fixed_dialogues
from simulator.listener import cue_heads
from simulator.scenario import FAMILIES, Scenario, Split
from simulator.text import words_of
from simulator.version import FINGERPRINTS, PRESET_VERSION, WORLD_VERSION, is_current, recorded_world, world_name
from simulator.world import WORLD, load_bank, read_toml

EVENT_FILES = sorted(path.stem for split in Split for path in WORLD.glob(f"{split}*.toml"))


def events(split: Split) -> list[dict]:
    return [event for name in EVENT_FILES if name.startswith(split) for event in read_toml(name)["event"]]


@pytest.mark.parametrize(("split", "at_least"), [(Split.TRAIN, 500), (Split.HELDOUT, 100), (Split.SEALED, 100)])
def test_there_are_enough_scenarios_of_every_family(split: Split, at_least: int):
    counts = Counter(scenario.family for scenario in load_bank().scenarios(split))
    assert counts.total() >= at_least
    assert set(counts) == set(FAMILIES)
    assert max(counts.values()) - min(counts.values()) <= 3


def test_splits_share_no_event_no_person_and_no_situation():
    for first, second in ((Split.TRAIN, Split.HELDOUT), (Split.TRAIN, Split.SEALED), (Split.HELDOUT, Split.SEALED)):
        a, b = events(first), events(second)
        assert not {event["id"] for event in a} & {event["id"] for event in b}
        assert not {person["name"] for event in a for person in event["people"]} & {
            person["name"] for event in b for person in event["people"]
        }
        sentences = [{text for event in group for text, _ in (event["opening"], event["opening_alt"], *event["facts"])} for group in (a, b)]
        assert not sentences[0] & sentences[1]


@pytest.mark.parametrize("split", [Split.HELDOUT, Split.SEALED])
def test_held_out_words_occur_in_training_text(split: Split):
    def spoken(scenario: Scenario) -> set[str]:
        texts = [scenario.opening, scenario.other, *scenario.feelings, *(text for fact in scenario.facts for text in (fact.text, fact.cue))]
        return {word for text in texts for word in words_of(text)}

    bank = load_bank()
    phrases = words_of(json.dumps([read_toml("phrases"), read_toml("moves")]))
    known = set(phrases).union(*(spoken(scenario) for scenario in bank.scenarios(Split.TRAIN)))
    assert set().union(*(spoken(scenario) for scenario in bank.scenarios(split))) - known == set()


def test_every_cue_is_recognised_in_the_sentence_that_tells_it_and_in_no_other_way():
    for scenario in load_bank().by_id.values():
        heads = cue_heads(scenario.facts)
        assert len(set(heads)) == len(heads) == 8, scenario.scenario_id
        for fact, head in zip(scenario.facts, heads, strict=True):
            assert head in words_of(fact.text), (scenario.scenario_id, fact)


def test_a_scenario_survives_its_record():
    for scenario in load_bank().scenarios(Split.HELDOUT):
        assert Scenario.from_dict(json.loads(json.dumps(scenario.to_dict()))) == scenario


def test_an_unknown_scenario_is_named():
    with pytest.raises(ValueError, match="got 'nowhere'"):
        load_bank().scenario("nowhere")


@pytest.mark.parametrize("name", list(FINGERPRINTS))
def test_users_say_and_feel_what_they_did_when_the_world_got_its_version(name: str):
    assert behaviour_fingerprint(name) == FINGERPRINTS[name], (
        f"users of {name} say or feel something else than in version {WORLD_VERSION.get(name, PRESET_VERSION)}. Take the change back, or "
        "raise the version in simulator/world.py, put the new fingerprint there, and build and ship the prior again"
    )


def test_the_fixed_dialogues_cover_families_difficulties_and_ways_to_end():
    dialogues = list(fixed_dialogues("open"))
    assert {dialogue.scenario.family for dialogue in dialogues} == set(FAMILIES)
    assert {dialogue.outcome for dialogue in dialogues} == {Outcome.DELIGHTED, Outcome.LEFT, Outcome.FAREWELL, Outcome.MAX_TURNS}
    assert len({dialogue.difficulty.strictness for dialogue in dialogues}) == 11
    assert {dialogue.scenario.language for dialogue in dialogues} == {"en", "zh"}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("simulator.rule_user", "REMARK_PROB", 0.8),
        ("simulator.emotion", "is_rebuff", lambda dialogue: False),
    ],
)
def test_a_change_of_behaviour_changes_the_fingerprint(module: str, name: str, value: object, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{module}.{name}", value)
    assert behaviour_fingerprint.__wrapped__("world") != FINGERPRINTS["world"]


def test_worlds_are_told_apart_by_register_and_version_and_old_hashes_map_to_the_first():
    assert (world_name(), world_name("open"), world_name("open", "sage")) == ("world-1", "open-1", "open-1-sage-1")
    assert recorded_world({"world": "world-7"}, {}) == "world-7"
    assert recorded_world({"world_hash": "5ad6837599ae0863"}, {"simulator": {"register": "open"}}) == "open-1"
    assert recorded_world({"world_hash": "5ad6837599ae0863"}, {}) == "world-1"
    assert recorded_world({"world_hash": "aaaa"}, {}) == "aaaa" and recorded_world({}, {}) == ""
    assert is_current("world-1") and not is_current("aaaa") and not is_current("world-7")
