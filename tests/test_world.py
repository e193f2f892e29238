"""The built-in world: enough scenarios, and splits that share nothing but words."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from simulator.bank import DECIDING_FILES, FOLDER, PRESET_FILES, WORLD, load_bank, preset_hash, read_toml, world_hash
from simulator.fluency import words_of
from simulator.reading import cue_heads
from simulator.scenario import FAMILIES, Scenario, Split

FROZEN = "5ad6837599ae0863"
"""The world in which all published figures were measured."""
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


def test_the_world_is_frozen():
    assert world_hash() == FROZEN, (
        f"the world was {FROZEN} and is now {world_hash()}: something that decides what users say or feel has changed. Every arm of every "
        "comparison reruns in the new world, and the figures of README.md and docs/ are measured again, or the change is taken back; "
        "only then does FROZEN take the new hash."
    )


def test_the_hash_covers_every_module_that_the_embedded_user_is_made_of():
    """Whatever `rule_user` imports, over any number of steps, but for the preset's parts and what only carries data."""
    imported, waiting = set(), ["rule_user.py"]
    while waiting:
        name = waiting.pop()
        if name not in imported:
            imported.add(name)
            waiting += [f"{module}.py" for module in re.findall(r"^from simulator\.(\w+) import", (FOLDER / name).read_text(), re.M)]
    carriers = {"options.py", "suspicion.py", "user.py"}
    assert imported - {*DECIDING_FILES, *PRESET_FILES} <= carriers
    assert {*DECIDING_FILES} <= imported


def test_the_preset_has_a_hash_of_its_own():
    assert all((FOLDER / name).exists() for name in PRESET_FILES)
    assert not {*PRESET_FILES} & {*DECIDING_FILES}
    assert len(preset_hash()) == len(world_hash()) == 16 and preset_hash() != world_hash()
