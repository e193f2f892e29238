"""Adversarial agents: each tries to be paid without doing anything for the user, and none may pass a bound.

The bounds are L1's score at VANILLA and L0's at CHALLENGING.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from simulator.dialogue import LEFT_BELOW, Dialogue, Outcome
from simulator.emotion import Skill
from simulator.files import progress
from simulator.listener import ListenerKind, Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import CHALLENGING, VANILLA, Difficulty, Scenario, Split
from simulator.scripted import AGENTS, Agent, ScriptedAgent, mean_score, play, sample
from simulator.version import world_of
from simulator.world import FOLDER, load_bank, read_toml

BOUNDS = (("VANILLA", VANILLA, "L1"), ("CHALLENGING", CHALLENGING, "L0"))
"""The rung that no adversary may outscore at a difficulty."""


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """An agent with one trick. It knows the rule of the reward, and of the user only the words."""

    name: str
    trick: str
    lines: Sequence[str] = ()
    source: str = "lines"
    """`lines`, or the words that it takes: `user` (the last turn), `last_sentence`, or `expert` (L6's reply with a line behind it)."""
    disguise: str = "plain"
    """The change of a line before it is said."""
    seen: bool = False
    """A policy found it late in a training run."""
    only_open: bool = False
    """Ordinary English, for which the world's small language has no words: played in the open register only."""

    def reply(self, dialogue: Dialogue) -> str:
        """The next reply."""
        text = self._line(dialogue)
        chance = random.Random(f"{self.name}|{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}")
        match self.disguise:
            case "mirrored":  # I and you exchanged
                pairs = "i you, me you, my your, mine yours, myself yourself, am are, you I, your my"
                mirror = dict(pair.split() for pair in pairs.split(", "))
                words = re.sub(r"[A-Za-z]+", lambda word: mirror.get(word[0].lower(), word[0]), text)
                return f"So {words[:1].lower()}{words[1:]}"
            case "shuffled":
                return " ".join(chance.sample(text.split(), len(text.split())))
            case "tail":  # of nonsense
                syllables = ("ka", "lo", "mir", "ten", "sul", "dra", "vo", "pi", "shem", "gar")
                return f"{text} The {' '.join(''.join(chance.choices(syllables, k=3)) for _ in range(4))}."
            case "homoglyphs":  # Cyrillic and Greek letters that look Latin
                look = dict(zip("aceiopsuy", "\u0430\u0441\u0435\u0456\u043e\u0440\u0455\u03c5\u0443", strict=True))
                return "".join(look[letter] if letter in look and chance.random() < 0.5 else letter for letter in text)
            case "zero_width":
                invisible = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
                return "".join(letter + (chance.choice(invisible) if chance.random() < 0.3 else "") for letter in text)
            case "accents":
                accents = "\u0300\u0301\u0302\u0308"
                return "".join(letter + (chance.choice(accents) if letter.isalpha() and chance.random() < 0.3 else "") for letter in text)
            case "endless":  # 2,000 words
                return " ".join([text] * (2000 // max(1, len(text.split()))))
            case "thrice":
                return " ".join([text] * 3)
        return text

    def _line(self, dialogue: Dialogue) -> str:
        said = dialogue.turns[-1].text
        if self.source == "user":
            return said
        if self.source == "last_sentence":
            return re.split(r"(?<=[.?!]) ", said)[-1]
        line = self.lines[dialogue.num_replies % len(self.lines)]
        if self.source == "expert":
            return f"{AGENTS['L6'].reply(dialogue)} {line}"
        # Words after a determiner are the facts of the user, for an agent that cannot read.
        after = r"\b(?:the|my|our|a|an|his|her|their) ([a-z]{3,})(?=[ .,?!])"
        turns = [list(dict.fromkeys(re.findall(after, text))) for text in reversed(dialogue.said())]
        things = next(filter(None, turns), ["day"])
        earlier = next(filter(None, turns[1:]), things)[0]
        return line.replace("{things}", ", the ".join(things)).replace("{thing}", things[0]).replace("{earlier}", earlier)

    @staticmethod
    @cache
    def suite() -> tuple[Adversary, ...]:
        """The suite, in the order of its file."""
        renamed = {"from": "source", "as": "disguise"}
        suite = read_toml("adversaries", FOLDER / "suite")
        return tuple(
            Adversary(name=name, **{renamed.get(key, key): value for key, value in entry.items()}) for name, entry in suite.items()
        )

    def is_played_in(self, register: Register) -> bool:
        """Whether it plays with users of this register."""
        return register is Register.OPEN or not self.only_open


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An agent's result with the same users as all others."""

    score: float
    """Mean final emotion, 0-100."""
    stayed: float
    """Share of users who did not leave, [0, 1]."""

    @classmethod
    def of(cls, agent: Agent, scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser, seed: int = 0) -> Standing:
        """Plays a dialogue with each scenario's user."""
        dialogues = [play(agent, scenario, difficulty, seed=seed + i, user=user) for i, scenario in enumerate(scenarios)]
        stayed = sum(dialogue.outcome is not Outcome.LEFT for dialogue in dialogues) / len(dialogues)
        return cls(score=mean_score(dialogues), stayed=stayed)

    def stays_within(self, rung: Standing) -> bool:
        """Whether it scores no more than the rung; scores below those at which users leave do not differ."""
        return self.score <= max(rung.score, LEFT_BELOW)


def play_adversaries(options: argparse.Namespace) -> int:
    """Plays the suite and prints a line for each agent; returns the exit code, 1 when a trick passes its bound.

    Raises:
        ValueError: unknown adversary.
    """
    known = {adversary.name: adversary for adversary in Adversary.suite()}
    for name in options.agent or ():
        if name not in known:
            raise ValueError(f"--agent must be one of {', '.join(known)}, got {name!r}")
    suite = [known[name] for name in options.agent or known]
    scenarios = sample(load_bank().scenarios(Split(options.split)), options.per_family, seed=options.seed)
    listener = ListenerKind(options.listener)
    registers = [Register(options.register)] if options.register else list(Register) if listener is ListenerKind.RULE else [Register.OPEN]
    # Honest agents for comparison: the ladder, one that only takes up facts, one that only misses the wish.
    alone, without_fit = frozenset([Skill.GROUNDING]), frozenset(Skill) - {Skill.FIT}
    references: dict[str, Agent] = {
        **{f"L{k}": AGENTS[f"L{k}"] for k in range(7)},
        "grounding alone": ScriptedAgent(name="grounding alone", skills=alone),
        "without fit": ScriptedAgent(name="without fit", skills=without_fit),
    }
    found: dict[Register, dict[str, tuple[Standing, ...]]] = {}
    for register in registers:
        user = RuleUser(RuleUserConfig(register=register, listener=listener))
        agents = references | {adversary.name: adversary for adversary in suite if adversary.is_played_in(register)}
        found[register] = {
            name: tuple(Standing.of(agent, scenarios, difficulty, user=user, seed=options.seed) for _, difficulty, _ in BOUNDS)
            for name, agent in progress(agents.items(), total=len(agents), what=f"Playing ({register})")
        }
    worlds = " and ".join(world_of(RuleUserConfig(register=register, listener=listener)) for register in registers)
    print(f"{worlds}, {len(scenarios)} {options.split} scenarios: mean final emotion (0-100), and share of users who stayed")
    for register in registers:
        print("", *table(suite, found[register], register), sep="\n")
    paying = [f"{name} ({register})" for register in registers for name in payers(suite, found[register])]
    print("", f"PAYS: {', '.join(paying)}" if paying else "no trick gets more than its bound", sep="\n")
    return int(bool(paying))


def payers(suite: Sequence[Adversary], found: Mapping[str, tuple[Standing, ...]]) -> list[str]:
    """Adversaries that pass a bound."""
    played = [one.name for one in suite if one.name in found]
    return [name for name in played if not all(found[name][i].stays_within(found[rung][i]) for i, (_, _, rung) in enumerate(BOUNDS))]


def table(suite: Sequence[Adversary], found: Mapping[str, tuple[Standing, ...]], register: Register) -> Iterator[str]:
    """A line for each rung and each adversary."""
    wide = max(map(len, found))
    yield f"{register!s:{wide}}  " + "  ".join(f"{f'{name} (at most {rung})':>27}" for name, _, rung in BOUNDS)
    tricks = {one.name: one.trick + " (seen in training)" * one.seen for one in suite}
    paying = payers(suite, found)
    for name, both in found.items():
        scores = "  ".join(f"{one.score:18.1f}  {one.stayed:6.0%}" + " " for one in both)
        yield f"{name:{wide}}  {scores}  {'PAYS: ' if name in paying else ''}{tricks.get(name, 'honest')}"
