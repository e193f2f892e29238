"""The built-in world: events from data files, assembled into scenarios whose splits share no event, person or situation."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from simulator.scenario import FAMILIES, Fact, Family, HiddenIntention, Persona, PersonaType, Scenario, Split

FOLDER = Path(__file__).parent
WORLD, LEXICON = FOLDER / "world", FOLDER / "lexicon"


@dataclass(frozen=True, kw_only=True)
class Bank:
    """All scenarios of a world."""

    by_id: Mapping[str, Scenario]

    def scenario(self, scenario_id: str) -> Scenario:
        """The scenario with that id.

        Raises:
            ValueError: unknown id.
        """
        if scenario_id not in self.by_id:
            raise ValueError(f"scenario_id must be one of the bank's {len(self.by_id)}, got {scenario_id!r}")
        return self.by_id[scenario_id]

    def scenarios(self, split: Split) -> tuple[Scenario, ...]:
        """The scenarios of one split, in a fixed order."""
        return tuple(scenario for scenario in self.by_id.values() if scenario.split == split)

    def by_family(self, split: Split) -> dict[Family, list[str]]:
        """Scenario ids of one split by family; every family is a key."""
        ids: dict[Family, list[str]] = {family: [] for family in FAMILIES}
        for scenario in self.scenarios(split):
            ids[scenario.family].append(scenario.scenario_id)
        return ids


@cache
def read_toml(name: str, folder: Path = WORLD) -> dict[str, Any]:
    """A data file of the simulator by its name without the ending; read once."""
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def load_bank() -> Bank:
    """The built-in bank: the same scenarios in the same order on every machine.

    Each event is a scenario for five people who want different things, held-out ones for four; families come round evenly.
    """
    intentions, personas, texts = list(HiddenIntention), list(PersonaType), read_toml("texts")
    scenarios: dict[str, Scenario] = {}
    for split in Split:
        events = [event for path in sorted(WORLD.glob(f"{split}*.toml")) for event in read_toml(path.stem)["event"]]
        num = 5 if split is Split.TRAIN else 4
        for index, k in product(range(len(events)), range(num)):
            event = events[index]
            family = Family(intention=intentions[(index * num + k) % len(intentions)], persona=personas[(index + k) % len(personas)])
            # Two versions of an event take turns: each has its own person and opening.
            person, (opening, cue) = event["people"][k % 2], event[("opening", "opening_alt")[k % 2]]
            words = {key: event[key] for key in ("step", "did", "other", "motive", "blame")}
            (words["feeling_1"], words["feeling_2"]), (words["side_1"], words["side_2"]) = event["feelings"][:2], event["sides"]
            scenario_id = f"{split}/{event['id']}/{family.intention}-{family.persona}"
            scenarios[scenario_id] = Scenario(
                scenario_id=scenario_id,
                family=family,
                persona=Persona(name=person["name"], age=person["age"], occupation=person["job"], persona_type=family.persona),
                background=f"{event['background']} {texts['manner'][family.persona]}",
                facts=(Fact(text=opening, cue=cue), *(Fact(text=text, cue=phrase) for text, phrase in event["facts"])),
                other=event["other"],
                feelings=tuple(event["feelings"]),
                goal=f"Wants to {event['goal']}.",
                hidden_intention=texts["hidden_intention"][family.intention].format(**words),
                opening=opening,
                language="en",
                split=split,
            )
    return Bank(by_id=scenarios)
