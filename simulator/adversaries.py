"""Agents that try to be paid without doing anything for the user, and the bounds that none of them may pass.

L1 at VANILLA and L0 at CHALLENGING.

What `python -m simulator adversaries` prints: every trick beside the ladder, in both registers.

Questions with options about who a user is, to see whether whoever plays it still knows; asked apart from the conversation.

The card gives the right option, other cards of the same bank the wrong ones; the options are shuffled anew at every turn.
Source: question-and-answer consistency of simulated users, repaired: the simulator itself is asked, with its own prompt and history.
"""

from __future__ import annotations

import argparse
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator.dialogue import LEFT_BELOW, Dialogue, Outcome, Speaker
from simulator.emotion import Skill
from simulator.files import progress
from simulator.listener import Register
from simulator.llm.prompts import Messages, Schema, Unusable, conversation, messages_of, object_of, prompts, quoted, record_of, string_of
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import CHALLENGING, VANILLA, Difficulty, Scenario, Split
from simulator.scripted import AGENTS, RUNGS, Agent, ScriptedAgent, mean_score, play, sample
from simulator.version import world_name
from simulator.world import load_bank

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


PAYS = 1
"""Exit code when a trick gets more than it may."""


def play_adversaries(options: argparse.Namespace) -> int:
    """Plays the suite and prints a line for each agent; returns the exit code."""
    suite = chosen(options.agent)
    if options.per_family < 1:
        raise ValueError(f"--per-family must be at least 1, got {options.per_family}")
    scenarios = sample(load_bank().scenarios(Split(options.split)), options.per_family, seed=options.seed)
    registers = [Register(options.register)] if options.register else list(Register)
    found = {register: standings(suite, scenarios, register, seed=options.seed) for register in registers}
    worlds = " and ".join(map(world_name, registers))
    print(f"{worlds}, {len(scenarios)} {options.split} scenarios: mean final emotion (0-100), and share of users who stayed")
    for register in registers:
        print("", *table(suite, found[register], register), sep="\n")
    paying = [f"{name} ({register})" for register in registers for name in payers(suite, found[register])]
    but = ", but for those known to" if any(one.known for one in suite) else ""
    print("", f"PAYS: {', '.join(paying)}" if paying else f"no trick gets more than its bound{but}", sep="\n")
    return PAYS if paying else 0


def chosen(names: Sequence[str] | None) -> tuple[Adversary, ...]:
    """The adversaries of these names, or all.

    Raises:
        ValueError: there is none of a name.
    """
    suite = {adversary.name: adversary for adversary in adversaries()}
    for name in names or ():
        if name not in suite:
            raise ValueError(f"--agent must be one of {', '.join(suite)}, got {name!r}")
    return tuple(suite[name] for name in names or suite)


def standings(
    suite: Sequence[Adversary], scenarios: Sequence[Scenario], register: Register, *, seed: int
) -> dict[str, tuple[Standing, ...]]:
    """Each agent's standing at each bound's difficulty, the ladder's rungs first."""
    user = RuleUser(RuleUserConfig(register=register))
    agents: dict[str, Agent] = {**REFERENCES, **{adversary.name: adversary for adversary in suite if adversary.is_played_in(register)}}
    return {
        name: tuple(standing(agent, scenarios, difficulty, user=user, seed=seed) for _, difficulty, _ in BOUNDS)
        for name, agent in progress(agents.items(), total=len(agents), what=f"Playing ({register})")
    }


def payers(suite: Sequence[Adversary], found: dict[str, tuple[Standing, ...]]) -> list[str]:
    """Adversaries that get more than they may, but for those that are known to."""
    played = [one for one in suite if one.name in found and not one.known]
    return [one.name for one in played if not all(found[one.name][i].stays_within(found[rung][i]) for i, (_, _, rung) in enumerate(BOUNDS))]


def table(suite: Sequence[Adversary], found: dict[str, tuple[Standing, ...]], register: Register) -> Iterator[str]:
    """A line for each rung and each trick."""
    wide = max(map(len, found))
    yield f"{register!s:{wide}}  " + "  ".join(f"{f'{name} (at most {rung})':>27}" for name, _, rung in BOUNDS)
    marks = {"seen in training": {one.name for one in suite if one.seen}, "known to pay": {one.name for one in suite if one.known}}
    tricks = {one.name: one.trick + "".join(f" ({mark})" for mark, names in marks.items() if one.name in names) for one in suite}
    paying = payers(suite, found)
    for name, both in found.items():
        figures = "  ".join(f"{one.score:18.1f}  {one.stayed:6.0%}" + " " for one in both)
        yield f"{name:{wide}}  {figures}  {'PAYS: ' if name in paying else ''}{tricks.get(name, 'honest')}"


LETTERS = "ABCD"
NAMES = ("person", "happened", "detail", "other", "goal", "wish")
"""Of the questions, in the order in which they are asked; a card that says nothing to one goes without it."""
MOST_ASKED = 60
"""Other cards that are looked at for the wrong options of one question."""


@dataclass(frozen=True, kw_only=True)
class QuizQuestion:
    """One question about the user."""

    name: str
    text: str
    options: tuple[str, ...]
    """As many as there are letters."""
    cards: tuple[Scenario, ...]
    """Whose card each option is from."""
    right: int
    """Index of the option that the user's own card gives."""

    @property
    def letter(self) -> str:
        """The letter of the right option."""
        return LETTERS[self.right]


def quiz_of(scenario: Scenario, others: Sequence[Scenario], *, seed: int, turn: int) -> tuple[QuizQuestion, ...]:
    """The questions that a card can answer; the same seed gives the same ones, in an order of options that differs by turn.

    Args:
        others: whose cards give the wrong options.
    """
    words = prompts(scenario.language)["quiz"]
    strangers = [other for other in others if other.language == scenario.language and other.scenario_id != scenario.scenario_id]
    questions = []
    for name in NAMES:
        chance = random.Random(f"quiz|{seed}|{scenario.scenario_id}|{name}")
        own = _answers(name, scenario)
        if not own:
            continue
        right = chance.choice(own)
        options = [(right, scenario), *_wrong(name, scenario, strangers, chance)]
        if len(options) == len(LETTERS):
            random.Random(f"order|{seed}|{scenario.scenario_id}|{name}|{turn}").shuffle(options)
            texts, cards = tuple(text for text, _ in options), tuple(card for _, card in options)
            questions.append(QuizQuestion(name=name, text=words[name], options=texts, cards=cards, right=texts.index(right)))
    return tuple(questions)


def _wrong(name: str, scenario: Scenario, strangers: Sequence[Scenario], chance: random.Random) -> list[tuple[str, Scenario]]:
    """Options of other cards, each different and none of them right for this one as well."""
    taken = {_sense(name, answer) for answer in _answers(name, scenario)}
    found: list[tuple[str, Scenario]] = []
    # More than are needed, since some say the same.
    for stranger in chance.sample(strangers, min(len(strangers), MOST_ASKED)):
        answers = _answers(name, stranger)
        if (name == "wish" and stranger.family.intention is scenario.family.intention) or not answers:
            continue
        option = chance.choice(answers)
        if _sense(name, option) not in taken:
            taken.add(_sense(name, option))
            found.append((option, stranger))
        if len(found) == len(LETTERS) - 1:
            break
    return found


def _sense(name: str, answer: str) -> str:
    """What two answers that mean the same have in common: a best friend is a friend."""
    return answer.split()[-1] if name == "other" and answer.split() else answer


def _answers(name: str, scenario: Scenario) -> list[str]:
    """What a card says to a question; several where any of them is right."""
    words, persona = prompts(scenario.language)["quiz"], scenario.persona
    return {
        "person": [words["whoever"].format(name=persona.name, age=persona.age, occupation=persona.occupation)] if persona.name else [],
        "happened": [scenario.facts[0].text] if scenario.facts else [],
        "detail": [fact.text for fact in scenario.facts[1:]],
        "other": [words["someone"].format(other=scenario.other)] if scenario.other else [],
        "goal": [scenario.goal] if scenario.goal else [],
        "wish": [scenario.hidden_intention],
    }[name]


def messages_to_quiz(dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> Messages:
    """Asks whoever plays the user, with the prompt and the history that it plays by; a dialogue without turns is one not yet begun."""
    words = prompts(dialogue.scenario.language)["quiz"]
    history = words["after"].format(conversation=conversation(dialogue)) if dialogue.turns else words["before"]
    asked = "\n".join(
        "\n".join((f"{question.name}: {question.text}", *(f"  {LETTERS[i]}. {quoted(text)}" for i, text in enumerate(question.options))))
        for question in questions
    )
    return messages_of(dialogue.scenario, dialogue.difficulty, words["ask"].format(history=history.strip(), questions=asked))


def schema_to_quiz(questions: Sequence[QuizQuestion]) -> Schema:
    """JSON schema of the answers."""
    return object_of({question.name: {"type": "string", "enum": list(LETTERS)} for question in questions})


def read_quiz(answer: str, questions: Sequence[QuizQuestion]) -> Mapping[str, str]:
    """The letter chosen for each question.

    Raises:
        Unusable: the answer is no such JSON, or lacks one.
    """
    record = record_of(answer)
    letters = {question.name: string_of(record, question.name).strip() for question in questions}
    for name, letter in letters.items():
        if letter not in tuple(LETTERS):
            raise Unusable(f"{name} must be one of {', '.join(LETTERS)}, got {letter[:80]!r}")
    return letters
