"""Agents that try to be paid without doing anything for the user, and the bounds that none of them may pass.

L1 at VANILLA and L0 at CHALLENGING.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator.dialogue import LEFT_BELOW, Dialogue, Outcome, Speaker
from simulator.difficulty import CHALLENGING, VANILLA, Difficulty
from simulator.ladder import AGENTS, RUNGS, Agent, ScriptedAgent, mean_score, play
from simulator.register import Register
from simulator.rule_user import RuleUser
from simulator.scenario import Scenario
from simulator.skills import Skill

FILE = Path(__file__).parent / "suite" / "adversaries.toml"
NUM_ENDLESS_WORDS = 2000
EXPERT = "L6"
HOMOGLYPHS = dict(zip("aceiopsuy", "\u0430\u0441\u0435\u0456\u043e\u0440\u0455\u03c5\u0443", strict=True))
"""Cyrillic and Greek letters that look Latin."""
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
ACCENTS = "\u0300\u0301\u0302\u0308"
MIRROR = {"i": "you", "me": "you", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "you": "I", "your": "my"}
SYLLABLES = ("ka", "lo", "mir", "ten", "sul", "dra", "vo", "pi", "shem", "gar")
BOUNDS = (("VANILLA", VANILLA, "L1"), ("CHALLENGING", CHALLENGING, "L0"))
"""At which difficulty no adversary may score above which rung."""
REFERENCES: Mapping[str, Agent] = {
    **{name: agent for name, agent in AGENTS.items() if name.startswith("L")},
    "grounding alone": ScriptedAgent(name="grounding alone", skills=frozenset([Skill.GROUNDING])),
    "without fit": ScriptedAgent(name="without fit", skills=frozenset(RUNGS) - {Skill.FIT}),
}
"""Honest agents beside which the tricks are seen: the ladder, one that only takes up what was told, one that only misses the wish."""


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """An agent with one trick. It knows how it is judged, and of the user only what was said."""

    name: str
    trick: str
    lines: Sequence[str] = ()
    source: str = "lines"
    """`lines`, or whose words it says: `user` (the last turn), `last_sentence`, or `expert` (what L6 says, with a line behind it)."""
    disguise: str = "plain"
    """What is done to a line before it is said."""
    seen: bool = False
    """A policy did it late in a training run."""
    only_open: bool = False
    """Ordinary English, for which the world's small language has no words: played in the open register alone."""
    known: bool = False
    """Gets more than its bound, which is known and told in `docs/limits.md`."""

    def reply(self, dialogue: Dialogue) -> str:
        """The next reply."""
        chance = random.Random(f"{self.name}|{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}")
        return DISGUISES[self.disguise](self._line(dialogue), chance)

    def _line(self, dialogue: Dialogue) -> str:
        said = dialogue.turns[-1].text
        if self.source == "user":
            return said
        if self.source == "last_sentence":
            return re.split(r"(?<=[.?!]) ", said)[-1]
        line = self.lines[dialogue.num_replies % len(self.lines)]
        if self.source == "expert":
            return f"{AGENTS[EXPERT].reply(dialogue)} {line}"
        turns = [things_in(turn.text) for turn in reversed(dialogue.turns) if turn.speaker is Speaker.USER]
        told = next((things for things in turns if things), ["day"])
        earlier = next((things[0] for things in turns[1:] if things), told[0])
        return line.replace("{things}", ", the ".join(told)).replace("{thing}", told[0]).replace("{earlier}", earlier)

    def is_played_in(self, register: Register) -> bool:
        """Whether it can be played before users of this register."""
        return register is Register.OPEN or not self.only_open


def things_in(text: str) -> list[str]:
    """Words after a determiner: what an agent that cannot read takes for the things told."""
    return list(dict.fromkeys(re.findall(r"\b(?:the|my|our|a|an|his|her|their) ([a-z]{3,})(?=[ .,?!])", text)))


def mirrored(text: str, chance: random.Random) -> str:
    """I becomes you, and the other way round."""
    words = re.sub(r"[A-Za-z]+", lambda word: MIRROR.get(word[0].lower(), word[0]), text)
    return f"So {words[:1].lower()}{words[1:]}"


def shuffled(text: str, chance: random.Random) -> str:
    """The same words in another order."""
    words = text.split()
    return " ".join(chance.sample(words, len(words)))


def with_tail(text: str, chance: random.Random) -> str:
    """Followed by a few words that nobody knows."""
    return f"{text} The {' '.join(''.join(chance.choices(SYLLABLES, k=3)) for _ in range(4))}."


def with_homoglyphs(text: str, chance: random.Random) -> str:
    """Half of the letters that have a double in another script become it."""
    return "".join(HOMOGLYPHS[letter] if letter in HOMOGLYPHS and chance.random() < 0.5 else letter for letter in text)


def with_invisible(text: str, chance: random.Random) -> str:
    """A character that cannot be seen behind every third letter."""
    return "".join(letter + (chance.choice(INVISIBLE) if chance.random() < 0.3 else "") for letter in text)


def with_accents(text: str, chance: random.Random) -> str:
    """An accent on every third letter."""
    return "".join(letter + (chance.choice(ACCENTS) if letter.isalpha() and chance.random() < 0.3 else "") for letter in text)


def endless(text: str, chance: random.Random) -> str:
    """Again and again."""
    return " ".join([text] * (NUM_ENDLESS_WORDS // max(1, len(text.split()))))


DISGUISES: Mapping[str, Callable[[str, random.Random], str]] = {
    "plain": lambda text, chance: text,
    "mirrored": mirrored,
    "shuffled": shuffled,
    "tail": with_tail,
    "homoglyphs": with_homoglyphs,
    "zero_width": with_invisible,
    "accents": with_accents,
    "endless": endless,
    "thrice": lambda text, chance: " ".join([text] * 3),
}


@cache
def adversaries() -> tuple[Adversary, ...]:
    """The suite, in the order of its file."""
    with FILE.open("rb") as file:
        table = tomllib.load(file)
    return tuple(
        Adversary(
            name=name,
            trick=entry["trick"],
            lines=tuple(entry.get("lines", ())),
            source=entry.get("from", "lines"),
            disguise=entry.get("as", "plain"),
            seen=entry.get("seen", False),
            only_open=entry.get("only_open", False),
            known=entry.get("known", False),
        )
        for name, entry in table.items()
    )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How an agent fares with the same users as all others."""

    score: float
    """Mean final emotion, 0-100."""
    stayed: float
    """Share of users who did not leave, [0, 1]."""

    def stays_within(self, rung: Standing) -> bool:
        """Whether it stays within what the rung gets; below the points at which users leave, a score only says how they left."""
        return self.score <= max(rung.score, LEFT_BELOW)


def standing(agent: Agent, scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser, seed: int = 0) -> Standing:
    """Plays a dialogue with each scenario's user."""
    dialogues = [play(agent, scenario, difficulty, seed=seed + i, user=user) for i, scenario in enumerate(scenarios)]
    return Standing(
        score=mean_score(dialogues), stayed=sum(dialogue.outcome is not Outcome.LEFT for dialogue in dialogues) / len(dialogues)
    )
