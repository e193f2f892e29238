"""What a line claims about who says it, read by plain rules, and whether that agrees with a card or with another line.

Heard are names, ages, years that take an age, occupations, and everything that the built-in world lets one kind of user say: the facts of
its events, the hints of its wishes and the reactions of its persona types. What is not heard claims nothing.

Where the dialogues of simulated users come from: a run, a file, or fresh ones between scripted agents and the embedded user.

Complaints of the servers' client, which speaks of settings of a run, in the words of a command line.

What a judge of simulated users finds, and the judge that is a plain rule, for users of the built-in world.

A model behind an OpenAI-compatible endpoint that judges simulated users, and one that is asked about itself while it plays one.

An answer that is not what was asked for is asked for again and then an error; it is never counted as consistent.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from simulator.adversaries import LETTERS, QuizQuestion, messages_to_quiz, read_quiz, schema_to_quiz
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import hint_in
from simulator.explain import SETTINGS, follows_rule, read_dialogues, recorded_config, require_feelings, transcript_file, user_settings
from simulator.files import Progress
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.config import AnswerFormat, TokenLimit
from simulator.llm.prompts import Messages, Unusable, object_of, quoted, record_of, string_of
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.text import content_words, words_of
from simulator.users import make_bank
from simulator.world import Bank, load_bank, read_toml

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SENTENCE = re.compile(r"(?<=[.!?])\s+")
NUMBER = r"(\d{1,3}|[a-z]+(?:[- ][a-z]+)?)"
AGE = re.compile(rf"\b(?:i am|i'm|i have turned|i turned|i just turned) {NUMBER}(?: years? old\b|(?=[.,;!?]|$))")
SPAN = re.compile(rf"\bi (?:have|had|was|worked|lived)\b[^.!?]{{0,60}}?\bfor {NUMBER} years\b")
NAME = re.compile(r"\b(?:[Mm]y name is|[Cc]all me|I am|I'm) ([A-Z][a-z]+)\b")
OCCUPATION = re.compile(r"\bI(?: am|'m| work as) an? ([a-z' -]+?)(?= and\b| who\b| at\b| in\b| here\b|[.,;!?]|$)")
OWN = re.compile(r"\bmy (?:own |little |youngest |eldest |oldest |late )?([a-z]+)")
LEAST_AGE = {
    **dict.fromkeys(("grandson", "granddaughter", "grandchild", "grandchildren", "grandsons", "granddaughters"), 34),
    **dict.fromkeys(("son", "daughter", "sons", "daughters", "children", "wife", "husband"), 17),
    **dict.fromkeys(("retirement", "pension"), 45),
}
"""Years without which hardly anybody has such a relative, or draws such money."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Values claimed by kind; an empty set claims nothing, several leave it open which."""

    name: frozenset[str] = frozenset()
    age: frozenset[int] = frozenset()
    occupation: frozenset[str] = frozenset()
    event: frozenset[str] = frozenset()
    """Events of the built-in world in which somebody may say so."""
    wish: frozenset[str] = frozenset()
    """Hidden intentions of those who hint so."""
    manner: frozenset[str] = frozenset()
    """Persona types of those who react so."""
    least_age: int = 0
    """Years that it takes to say so."""


def claims_in(line: str) -> list[Claims]:
    """What each sentence of a line claims, without those that claim nothing."""
    return [claims for sentence in SENTENCE.split(line.strip()) if (claims := _claims(sentence)) != Claims()]


def card_of(scenario: Scenario) -> Claims:
    """What the card of a user of the built-in world says of the same things."""
    persona = scenario.persona
    return Claims(
        name=frozenset({persona.name}),
        age=frozenset({persona.age}),
        occupation=frozenset({persona.occupation}),
        event=frozenset({event_of(scenario)}),
        wish=frozenset({scenario.family.intention.value}),
        manner=frozenset({persona.persona_type.value}),
    )


def event_of(scenario: Scenario) -> str:
    """The event that a scenario tells of: the middle of its id, or the id where it has none."""
    parts = scenario.scenario_id.split("/")
    return parts[1] if len(parts) == 3 else scenario.scenario_id


def conflicts(claims: Iterable[Claims], others: Iterable[Claims]) -> tuple[str, ...]:
    """The kinds of claim in which the first disagree with the second, each once."""
    seconds = list(others)
    return tuple(dict.fromkeys(kind for one in claims for other in seconds for kind in _disagreements(one, other)))


def _disagreements(one: Claims, other: Claims) -> list[str]:
    kinds = [kind for kind in _SETS if getattr(one, kind) and getattr(other, kind) and not _agree(kind, one, other)]
    too_young = (one.age and max(one.age) < other.least_age) or (other.age and max(other.age) < one.least_age)
    return [*kinds, "years"] if too_young else kinds


_SETS = tuple(field.name for field in fields(Claims) if field.name != "least_age")


def _agree(kind: str, one: Claims, other: Claims) -> bool:
    mine, theirs = getattr(one, kind), getattr(other, kind)
    if kind == "occupation":
        # Who calls herself a nurse may be a ward nurse on her card.
        mine, theirs = ({job.split()[-1] for job in jobs} for jobs in (mine, theirs))
    return bool(mine & theirs)


def _claims(sentence: str) -> Claims:
    lower = sentence.lower()
    plain = sentence.strip()
    names, jobs = _people()
    said = {name for name in NAME.findall(sentence) if name in names}
    ages = {age for text in AGE.findall(lower) if (age := number_of(text)) is not None and 5 <= age <= 110}
    spans = [span for text in SPAN.findall(lower) if (span := number_of(text)) is not None]
    relatives = [LEAST_AGE[word] for word in OWN.findall(lower) if word in LEAST_AGE]
    works = {job for text in OCCUPATION.findall(sentence) if (job := text.lower().strip()) in jobs}
    event, wish, manner = (table.get(plain, frozenset()) for table in _world())
    return Claims(
        name=frozenset(said),
        age=frozenset(ages),
        occupation=frozenset(works),
        event=event,
        wish=wish,
        manner=manner,
        least_age=max([*spans, *relatives], default=0),
    )


def number_of(text: str) -> int | None:
    """A number in figures or in words below a hundred; None for anything else."""
    if text.isdigit():
        return int(text)
    words = text.replace("-", " ").split()
    tens = 10 * (TENS.index(words[0]) + 2) if words[0] in TENS else None
    if tens is not None:
        return tens + (ONES.index(words[1]) if len(words) == 2 and words[1] in ONES[1:10] else 0)
    return ONES.index(words[0]) if words[0] in ONES else None


@cache
def _people() -> tuple[frozenset[str], frozenset[str]]:
    """Names and occupations of the built-in world's people."""
    people = [scenario.persona for scenario in load_bank().by_id.values()]
    return frozenset(person.name for person in people), frozenset(person.occupation for person in people)


@cache
def _world() -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """Sentences of the built-in world -> the events, wishes and persona types that have them."""
    events: dict[str, set[str]] = {}
    for scenario in load_bank().by_id.values():
        for fact in scenario.facts:
            _add(events, fact.text, event_of(scenario))
    wishes: dict[str, set[str]] = {}
    for intention, pools in read_toml("phrases")["hints"].items():
        for line in (line for pool in pools.values() for line in pool):
            _add(wishes, line, intention)
    manners: dict[str, set[str]] = {}
    for group in ("reactions", "reactions_by_state"):
        for persona, pools in read_toml("phrases")[group].items():
            for line in (line for pool in pools.values() for line in pool):
                _add(manners, line, persona)
    frozen = [{sentence: frozenset(owners) for sentence, owners in table.items()} for table in (events, wishes, manners)]
    return frozen[0], frozen[1], frozen[2]


def _add(table: dict[str, set[str]], text: str, owner: str) -> None:
    for sentence in SENTENCE.split(text):
        table.setdefault(sentence, set()).add(owner)


ENUMS: dict[str, type[Enum]] = {"answer_format": AnswerFormat, "token_limit": TokenLimit}
FLAGS = {
    "model": "model",
    "key_env": "api_key_env",
    "format": "answer_format",
    "concurrency": "concurrency",
    "retries": "retries",
    "timeout": "timeout_s",
    "max_wait": "max_wait_s",
    "max_tokens": "max_tokens",
    "extra_body": "extra_body",
}
"""Option -> setting of the endpoint that it sets, beside the addresses."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Dialogues and what is known of who played the user."""

    name: str
    dialogues: tuple[Dialogue, ...]
    kind: str
    """Of the user: `rule`, `llm`, or one of somebody's own."""
    bank: Bank
    rule: RuleUserConfig | None
    llm: dict[str, Any]
    """Settings of the model that played, as far as they are known."""


def source_of(options: argparse.Namespace) -> Source:
    """The dialogues that the options name.

    Raises:
        ValueError: they cannot be had; the sentence says why.
    """
    if options.play is not None:
        return played_source(options)
    path = transcript_file(options.dialogues, evaluation=options.evaluation)
    if options.num < 1:
        raise ValueError(f"--num must be at least 1, got {options.num}")
    settings = recorded_config(path).get(SETTINGS) or {}
    kind = options.user or str(settings.get("kind") or "rule")
    llm = model_settings(settings) if kind == "llm" else {}
    bank = make_bank(LLMUserConfig(**{"model": "unknown", **llm})) if kind == "llm" else load_bank()
    dialogues = tuple(drawn(read_whole(path, bank), options.num, seed=options.seed))
    if not dialogues:
        raise ValueError(f"{path} must hold a dialogue that was answered, got none")
    rule = user_settings({**settings, "kind": kind}) if follows_rule(kind) else None
    return Source(name=str(path), dialogues=dialogues, kind=kind, bank=bank, rule=rule, llm=llm)


def read_whole(path: Path, bank: Bank) -> Iterator[Dialogue]:
    """The dialogues of a file but those that broke or in which nobody answered."""
    for number, (_, dialogue) in enumerate(read_dialogues(path, bank), start=1):
        if dialogue.outcome is Outcome.ERROR or not dialogue.num_replies:
            continue
        try:
            require_feelings(dialogue)
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from error
        yield dialogue


def drawn(dialogues: Iterator[Dialogue], num: int, *, seed: int) -> list[Dialogue]:
    """So many of a stream, each with the same chance, in their order (reservoir sampling)."""
    chance, kept = random.Random(f"drawn|{seed}"), list[tuple[int, Dialogue]]()
    for place, dialogue in enumerate(dialogues):
        if len(kept) < num:
            kept.append((place, dialogue))
        elif (slot := chance.randrange(place + 1)) < num:
            kept[slot] = (place, dialogue)
    return [dialogue for _, dialogue in sorted(kept, key=lambda pair: pair[0])]


def played_source(options: argparse.Namespace) -> Source:
    """Fresh dialogues with the embedded user."""
    if options.play < 1:
        raise ValueError(f"--play must be at least 1, got {options.play}")
    if options.user == "llm":
        raise ValueError("--user must be rule with --play, got 'llm'; play them in a run and give its folder")
    config = RuleUserConfig()
    with Progress("playing", options.play) as bar:
        dialogues = []
        for dialogue in played(
            options.play,
            strictness=options.strictness,
            reserve=options.reserve,
            split=Split(options.split),
            seed=options.seed,
            user=RuleUser(config),
        ):
            dialogues.append(dialogue)
            bar.add()
    name = f"{options.play} played on {options.split} scenarios"
    return Source(name=name, dialogues=tuple(dialogues), kind="rule", bank=load_bank(), rule=config, llm={})


def played(
    num: int,
    *,
    strictness: Sequence[float],
    user: RuleUser,
    reserve: Sequence[float] | None = None,
    split: Split = Split.TRAIN,
    agents: Sequence[str] = tuple(AGENTS),
    seed: int = 0,
) -> Iterator[Dialogue]:
    """Dialogues over the grid of strictness, reserve and agents, each cell as often as any other; scenarios come in shuffled rounds.

    Args:
        reserve: instead of what strictness gives; None leaves that.
        agents: of the ladder, by name.
    """
    chance = random.Random(f"played|{seed}")
    cells = [(d, r, agent) for d in strictness for r in reserve or (None,) for agent in agents]
    scenarios = list(load_bank().scenarios(split))
    for i in range(num):
        if i % len(cells) == 0:
            chance.shuffle(cells)
        if i % len(scenarios) == 0:
            chance.shuffle(scenarios)
        d, r, agent = cells[i % len(cells)]
        difficulty = Difficulty.along(d) if r is None else replace(Difficulty.along(d), reserve=r)
        yield play(AGENTS[agent], scenarios[i % len(scenarios)], difficulty, seed=chance.randrange(2**31), user=user)


def model_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an llm user as they stand in a run's config.yaml, ready for `LLMUserConfig`."""
    known = {field.name for field in fields(LLMUserConfig)}
    return {key: ENUMS[key](value) if key in ENUMS else value for key, value in recorded.items() if key in known}


def flag_settings(options: argparse.Namespace, who: str) -> dict[str, Any]:
    """Settings of an endpoint as they stand on the command line.

    Args:
        who: `judge` or `user`.
    """
    given = {setting: getattr(options, f"{who}_{flag}") for flag, setting in FLAGS.items()}
    found = {name: ENUMS[name](value) if name in ENUMS else value for name, value in given.items() if value is not None}
    urls = getattr(options, f"{who}_url")
    return {**found, **({"urls": urls} if urls else {}), "cache": options.cache}


SETTING = re.compile(r"simulator\.(\w+|\*)(?:=([\w.]+\w|\w))?")
NAMED = {**{setting: flag.replace("_", "-") for flag, setting in FLAGS.items()}, "urls": "url"}
WITHOUT_OPTION = {
    *("kind", "retry_share", "cache", "first_backoff_s", "max_backoff_s", "circuit_failures", "circuit_pause_s"),
    *("start_emotion", "max_chars", "price_prompt", "price_completion"),
}
"""Settings that no command takes."""


def in_options(message: str, prefix: str = "--") -> str:
    """The message with options in the place of `simulator.<setting>`.

    Args:
        prefix: of the options: `--` of the agent, `--user-` or `--judge-`.
    """

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name in WITHOUT_OPTION:
            words = "the " + name.removesuffix("_s").replace("_", " ")
            return f"{words} of {value}, which no option sets," if value else words
        return prefix + NAMED.get(name, name.replace("_", "-")) + (f"={value}" if value else "")

    return SETTING.sub(option, message)


def of_judge(message: str) -> str:
    """The same for the judge's servers."""
    return in_options(message, "--judge-").replace("the simulated user", "the judge")


OUTRIGHT_FROM = 0.6
"""Share of the words of a hidden intention, but for those that the story holds, from which a line says it outright."""
ASSISTANT = re.compile(
    r"\bas an? (?:ai|language model|assistant)\b|\bi(?: a|')m (?:an? (?:ai|language model|assistant|chatbot)|here to help|here for you)\b"
    r"|\bhow (?:can|may) i (?:help|assist|support)\b|\bi(?: am|'m) (?:so )?sorry (?:to hear|you(?: are|'re) going)\b"
    r"|\bi understand how you feel\b|\bthank you for sharing\b|\b(?:it sounds like|it seems that) you\b|\byour feelings are valid\b"
    r"|\bi can (?:hear|imagine) how\b|\bi hear you\b|\byou (?:could try|might want|should consider|could consider)\b"
    r"|\bhave you (?:tried|considered|thought about)\b|\bi(?: would|'d) (?:suggest|recommend|encourage)\b|\bwould you like (?:me )?to\b",
    re.IGNORECASE,
)
"""How helpers and language models talk to somebody in trouble, and people in trouble do not."""


@dataclass(frozen=True, kw_only=True)
class LineVerdict:
    """What was found in one line of a user."""

    contradicts_card: bool
    conflicts_with: frozenset[int]
    """Earlier lines of the user, by number from 0."""
    reveals_hidden: bool
    """States the hidden intention outright."""
    assistant_register: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class QuizVerdict:
    """One round of questions about the user."""

    num_questions: int
    num_answered: int
    num_right: int


class Judge(Protocol):
    """Looks at users. Whatever it cannot judge is None, and an error: never a consistent line."""

    complaint: str
    """Why it last could not."""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict | None:
        """The user's line of that number in a dialogue."""
        ...

    async def demands(self, dialogue: Dialogue) -> float | None:
        """How demanding the user came across, on any scale that rises."""
        ...

    async def close(self) -> None:
        """Lets go of whatever it holds."""
        ...


class Examiner(Protocol):
    """Puts questions to whoever plays a user."""

    complaint: str
    """Why it last could not."""

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """Asks at the end of a dialogue as it stands, apart from it; without turns before it begins. None where that failed."""
        ...

    async def close(self) -> None:
        """Lets go of whatever it holds."""
        ...


def lines_of(dialogue: Dialogue) -> list[tuple[int, Turn]]:
    """The user's turns, each with its place among all turns."""
    return [(place, turn) for place, turn in enumerate(dialogue.turns) if turn.speaker is Speaker.USER]


class RuleJudge:
    """Compares what lines claim with the card and with each other."""

    complaint = ""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict:
        """The user's line of that number; a rule always finds an answer."""
        texts = [turn.text for _, turn in lines_of(dialogue)]
        claims = claims_in(texts[number])
        kinds = conflicts(claims, [card_of(dialogue.scenario)])
        return LineVerdict(
            contradicts_card=bool(kinds),
            conflicts_with=frozenset(i for i in range(number) if conflicts(claims, claims_in(texts[i]))),
            reveals_hidden=says_outright(texts[number], dialogue.scenario),
            assistant_register=bool(ASSISTANT.search(texts[number])),
            why=", ".join(kinds),
        )

    async def demands(self, dialogue: Dialogue) -> float | None:
        """Less the mean change that a reply brought, in points; None without a change."""
        changes = [turn.change for turn in dialogue.turns if turn.change is not None]
        return -sum(changes) / len(changes) if changes else None

    async def close(self) -> None:
        """Nothing to let go."""


def says_outright(line: str, scenario: Scenario) -> bool:
    """Whether a line states the hidden intention nearly in the card's words; the world's hints are meant to name what they name."""
    for sentence in SENTENCE.split(line):
        if hint_in(sentence) is None and _overlap(sentence, scenario) >= OUTRIGHT_FROM:
            return True
    return scenario.hidden_intention in line


def _overlap(sentence: str, scenario: Scenario) -> float:
    told = {word for fact in scenario.facts for word in words_of(fact.text)}
    wish = {_stem(word) for word in content_words(scenario.hidden_intention) - told}
    return len(wish & {_stem(word) for word in content_words(sentence)}) / len(wish) if wish else 0.0


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def names_the_wish(line: str) -> bool:
    """Whether a line holds one of the world's overt hints."""
    return hint_in(line, kinds=("overt",)) is not None


class RuleExaminer:
    """Asks the embedded user, who knows no questions: it answers each as a reply of the agent, in a side branch of the dialogue.

    The answer is the one option whose card agrees with what that line claims; where none or more than one does, there is no answer.

    Args:
        user: as it was set in the dialogues.
    """

    complaint = ""

    def __init__(self, user: RuleUser) -> None:
        self._user = user

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """The answers of the side branches; before the dialogue it is the opening that answers."""
        answers = [answer_in(self._said(dialogue, question), question) for question in questions]
        right = sum(answer == question.letter for answer, question in zip(answers, questions, strict=True))
        return QuizVerdict(num_questions=len(questions), num_answered=sum(map(bool, answers)), num_right=right)

    async def close(self) -> None:
        """Nothing to let go."""

    def _said(self, dialogue: Dialogue, question: QuizQuestion) -> str:
        if not dialogue.turns:
            return self._user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0].text
        return self._user.answer(dialogue, question.text).turn.text


def answer_in(line: str, question: QuizQuestion) -> str:
    """The letter of the only option that a line supports; "" for none."""
    claims = claims_in(line)
    supported = [letter for letter, card in zip(LETTERS, question.cards, strict=True) if _supports(question.name, line, claims, card)]
    return supported[0] if len(supported) == 1 else ""


def _supports(name: str, line: str, claims: Sequence[Claims], card: Scenario) -> bool:
    if name == "other":
        return bool(card.other) and f"my {card.other}" in line.lower()
    own = card_of(card)
    kinds = {"person": ("name", "age", "occupation"), "happened": ("event",), "detail": ("event",), "wish": ("wish",), "goal": ()}[name]
    return any(getattr(claim, kind) & getattr(own, kind) for claim in claims for kind in kinds)


PROMPTS = Path(__file__).parent / "persona_judge.toml"
MOST_DEMANDING = 10
NO_LINES = {"type": "array", "items": {"type": "integer"}, "maxItems": 0}


class ModelJudge:
    """A `Judge` that asks a model.

    Args:
        endpoints: where; what it complained of last stands in `complaint`.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict | None:
        """The user's line of that number; None where no answer was of use."""
        texts = {
            "card": card_text(dialogue),
            "hidden": quoted(dialogue.scenario.hidden_intention),
            "conversation": numbered(dialogue, before=number),
            "line": quoted(lines_of(dialogue)[number][1].text),
        }
        schema = object_of(
            {
                "why": {"type": "string"},
                "contradicts_card": {"type": "boolean"},
                "conflicts_with": {"type": "array", "items": {"type": "integer", "enum": list(range(number))}} if number else NO_LINES,
                "reveals_hidden": {"type": "boolean"},
                "assistant_register": {"type": "boolean"},
            }
        )
        question = _question("line", judge_prompts()["line"].format(**texts), schema)
        try:
            return await self.endpoints.ask(question, lambda answer: read_line(answer, num_earlier=number))
        except SimulatorError as error:
            self.complaint = of_judge(str(error))
            return None

    async def demands(self, dialogue: Dialogue) -> float | None:
        """How demanding the user came across, 0 to 10; None where no answer was of use."""
        schema = object_of({"why": {"type": "string"}, "demands": {"type": "integer", "enum": list(range(MOST_DEMANDING + 1))}})
        text = judge_prompts()["dialogue"].format(conversation=numbered(dialogue))
        try:
            return await self.endpoints.ask(_question("demands", text, schema), read_demands)
        except SimulatorError as error:
            self.complaint = of_judge(str(error))
            return None

    async def close(self) -> None:
        """Closes the connections."""
        await self.endpoints.close()


class ModelExaminer:
    """Asks the model that plays the user, with its own prompt and history.

    Args:
        endpoints: of the user, not of the judge; what it complained of last stands in `complaint`.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """One call for all questions; None where no answer was of use."""
        messages = messages_to_quiz(dialogue, questions)
        question = Question(name="quiz", messages=messages, schema=schema_to_quiz(questions), seed=seed_of(messages))
        try:
            letters = await self.endpoints.ask(question, lambda answer: read_quiz(answer, questions))
        except SimulatorError as error:
            self.complaint = in_options(str(error), "--user-")
            return None
        right = sum(letters[question.name] == question.letter for question in questions)
        return QuizVerdict(num_questions=len(questions), num_answered=len(questions), num_right=right)

    async def close(self) -> None:
        """Closes the connections."""
        await self.endpoints.close()


def read_line(answer: str, *, num_earlier: int) -> LineVerdict:
    """The verdict in an answer; numbers that are named twice count once.

    Args:
        num_earlier: lines of the user before the one that was judged; a conflict with any other is no answer.

    Raises:
        Unusable: the answer is no such JSON.
    """
    record = record_of(answer)
    numbers = record.get("conflicts_with")
    if not isinstance(numbers, list) or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise Unusable(f"conflicts_with must be a list of whole numbers, got {numbers!r}")
    strange = [number for number in numbers if not 0 <= number < num_earlier]
    if strange:
        raise Unusable(f"conflicts_with must hold numbers of earlier lines (fewer than {num_earlier}), got {strange[0]!r}")
    return LineVerdict(
        contradicts_card=_flag(record, "contradicts_card"),
        conflicts_with=frozenset(numbers),
        reveals_hidden=_flag(record, "reveals_hidden"),
        assistant_register=_flag(record, "assistant_register"),
        why=string_of(record, "why"),
    )


def read_demands(answer: str) -> float:
    """The number in an answer.

    Raises:
        Unusable: the answer is no such JSON, or the number is out of range.
    """
    demands = record_of(answer).get("demands")
    if isinstance(demands, bool) or not isinstance(demands, int) or not 0 <= demands <= MOST_DEMANDING:
        raise Unusable(f"demands must be a whole number from 0 to {MOST_DEMANDING}, got {demands!r}")
    return float(demands)


def card_text(dialogue: Dialogue) -> str:
    """The card as the judge sees it."""
    scenario, persona = dialogue.scenario, dialogue.scenario.persona
    if persona.card:
        return "\n".join([persona.card, scenario.background])
    return (
        judge_prompts()["card"]
        .format(
            name=persona.name,
            age=persona.age,
            occupation=persona.occupation,
            background=scenario.background,
            facts="\n".join(f"- {fact.text}" for fact in scenario.facts),
            goal=scenario.goal,
        )
        .strip()
    )


def numbered(dialogue: Dialogue, *, before: int | None = None) -> str:
    """The turns as lines of JSON, the user's with their numbers; only those before the user's line of that number if one is given."""
    lines, number = [], 0
    for turn in dialogue.turns:
        if turn.speaker is Speaker.USER:
            if number == before:
                break
            lines.append(f'{{"person": {number}, "text": {quoted(turn.text)}}}')
            number += 1
        else:
            lines.append(f'{{"other": true, "text": {quoted(turn.text)}}}')
    return "\n".join(lines) or "(nothing yet)"


@cache
def judge_prompts() -> dict[str, Any]:
    """The judge's prompts."""
    with PROMPTS.open("rb") as file:
        return tomllib.load(file)


def _question(name: str, text: str, schema: Any) -> Question:
    messages: Messages = (("system", judge_prompts()["system"].strip()), ("user", text.strip()))
    return Question(name=name, messages=messages, schema=schema, seed=seed_of(messages))


def seed_of(messages: Messages) -> int:
    """A seed in [0, 2^31) that follows from what is asked."""
    return int.from_bytes(hashlib.sha256(repr(messages).encode()).digest()[:4], "big") >> 1


def _flag(record: dict[str, Any], key: str) -> bool:
    value = record.get(key)
    if not isinstance(value, bool):
        raise Unusable(f"{key} must be true or false, got {value!r}")
    return value
