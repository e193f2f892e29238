"""Prompts and answers of a model that plays the user, and signs that a reply addresses that model instead of the user.

Source: the protocol of SAGE, arXiv 2505.02847 (five steps from a reply to a change, then the user's words), in our own prompts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Speaker
from simulator.emotion import MAX_CHANGE
from simulator.scenario import Difficulty, Scenario
from simulator.world import FOLDER, read_toml

INDENT = "\n  "
"""Beginning of a step's further lines; a label always starts a line."""


@dataclass(frozen=True, kw_only=True)
class Thought:
    """Four of the five steps from a reply to a change of emotion; the fifth, the change itself, is a number of its own.

    Source: SAGE, arXiv 2505.02847, whose `planning` holds the same steps.
    """

    says: str
    """The content of the reply."""
    meets: str
    """How far it meets the goal and the hidden intention."""
    inner: str
    """The user's inner activity."""
    feeling: str
    """The user's feeling about it."""

    def to_text(self) -> str:
        """A labelled line for each step; `parse` reads it, line breaks inside the steps included."""
        return "\n".join(f"{step.name}: {getattr(self, step.name)}".replace("\n", INDENT) for step in fields(self))

    @classmethod
    def parse(cls, text: str) -> Thought | None:
        """The inverse of `to_text`; None for a thought of another form, such as an embedded user's."""
        steps = text.replace(INDENT, "\0").split("\n")
        names = [step.name for step in fields(cls)]
        if len(steps) != len(names) or not all(step.startswith(f"{name}: ") for step, name in zip(steps, names, strict=True)):
            return None
        return cls(**{name: step[len(name) + 2 :].replace("\0", "\n") for step, name in zip(steps, names, strict=True)})


_FEELING = r"(?:emotions?|moods?|feelings?|satisfaction|happiness|scores?|ratings?|rewards?)"

UNSEEN = (
    "\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef"
)
"""Invisible characters, for a set of a regular expression: format marks, fillers, and variation selectors that can carry hidden bytes. The
joiner of emoji and the selectors of their style are not among them: ordinary words have them."""

PATTERNS: dict[str, tuple[str, ...]] = {
    "role_marker": (
        r"<\|[^|>\n]{0,40}\|>",
        r"</?think>",
        r"\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>",
        r"</?(?:system|assistant|user|instructions?|conversation|reply)>",
        r"^\s*(?:#+\s*)?(?:system|assistant|user|human|instruction|系统|用户|助手|指令)\s*[:：]",
    ),
    "format": (
        r"[\"'“”](?:says|meets|inner|feeling|change|reply|goodbye|emotion(?:[-_ ]point)?)[\"'“”]\s*[:：]",
        r"```\s*json",
        r"response_format|json[ _]?schema",
    ),
    "score": (
        rf"\b(?:set|raise|increase|update|change|bump|max(?:imi[sz]e)?)\b[^.!?\n]{{0,20}}\b{_FEELING}\b[^.!?\n]{{0,20}}?\b(?:to|by|=)\s*\+?\d",
        rf"\b(?:{_FEELING}|change)\b(?:[- ]points?)?\s*(?:=|:=|:|->)\s*[+-]?\d",
        r"\b(?:full|maximum|max|top|highest)\s+(?:score|marks|points|rating|emotion)\b",
        r"\b(?:give|grant|award)\b[^.!?\n]{0,30}\b(?:\d+|ten|more|extra|full)\s+(?:points|marks|score)\b",
        r"(?:情绪|心情|分数|评分|满意度|奖励)(?:值|分)?[^。！？\n]{0,8}(?:设|调|改|加|升|提高|变)[^。！？\n]{0,4}(?:到|为|成|至)?\s*[+＋]?\d",
        r"(?:打|给(?:我|这|出|个)?)[^。！？，\n]{0,4}(?:满分|高分|\d+\s*分(?![钟精\d]))|加\s*\d+\s*分(?!钟)",
    ),
    "instruction": (
        r"\b(?:ignore|disregard|forget|override)\b[^.!?\n]{0,30}\b(?:instructions?|prompts?|rules|guidelines)\b",
        r"\b(?:user[- ]simulator|simulated user|as (?:the|a|an) (?:simulator|evaluator|judge|grader)|system prompt)\b",
        r"\byou are (?:now |only |just |really |actually )*(?:a|an|the) (?:simulator|language model|ai\b|chatbot|evaluator|judge|grader)",
        r"\bhidden (?:intentions?|goals?|topics?|themes?)\b",
        r"(?:忽略|无视|忘掉|忘记)[^。！？\n]{0,10}(?:指令|提示词?|设定|规则)",
        r"(?:用户|你是|作为|扮演)[^。！？\n]{0,4}模拟器|模拟用户|评分员|系统(?:提示词|指令)|提示词|隐藏(?:意图|主题|目的)",
        r"你(?:其实|现在|只)?是(?:一个|个)?(?:AI|人工智能|语言模型|模型|程序|裁判|评委)",
    ),
    "invisible": (f"[{UNSEEN}]",),
}
"""Signs of each kind of attempt, in English and in Chinese."""
_COMPILED = {kind: re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.I | re.M) for kind, patterns in PATTERNS.items()}


def suspicions(reply: str) -> tuple[str, ...]:
    """Kinds of attempt in a reply, each once; they are recorded and decide nothing.

    Of 4,214 replies recorded with SAGE's users, fewer than one in a thousand shows any.
    """
    return tuple(kind for kind, pattern in _COMPILED.items() if pattern.search(reply))


PROMPTS = FOLDER / "prompts"
LANGUAGES = ("en", "zh")
STEPS = ("says", "meets", "inner", "feeling")
AT_EASE_FROM, UNSETTLED_FROM = 70, 40
MID_FROM, HIGH_FROM = 1 / 3, 2 / 3
"""Bounds between the words for an axis of difficulty, in [0, 1]."""
ESCAPED = re.compile(f"[<>\\[\\]&\u007f-\u009f\u200d\u2028\u2029\ufe0e\ufe0f\ud800-\udfff{UNSEEN}]")
"""Characters of role markers and special tokens, and invisible ones; JSON may write each as an escape."""
THOUGHT_ENDS = "</think>"
SIGNED = re.compile(r"[+-]?[0-9]{1,6}")
"""A change that came as text, as in "+5"."""
PLUS = re.compile(r'("change"\s*:\s*)\+(?=[0-9])')
"""A change written with a plus sign, which JSON does not allow."""
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f]")
"""Control characters that are no white space."""
HALF = re.compile("[\ud800-\udfff]")
"""Half of a character beyond the basic plane, by itself."""

Schema = Mapping[str, Any]


class Unusable(ValueError):
    """An answer of another form than asked for; the question may be asked again, and it is never a score."""


@dataclass(frozen=True, kw_only=True)
class Felt:
    """The model's judgement of what a reply did to the user."""

    thought: Thought
    change: int
    """Points in [-10, 10]."""
    was_clipped: bool
    """The model wanted more."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """The user's next words."""

    text: str
    goodbye: bool
    """They end the talk for good."""


Messages = tuple[tuple[str, str], ...]
"""Role and content of each message."""


def messages_to_open(scenario: Scenario, difficulty: Difficulty, *, emotion: int) -> Messages:
    """Asks for the first words of a user whose scenario has none."""
    words = prompts(scenario.language)
    ask = words["ask"]["open"].format(emotion=emotion, manner_of_speech=words["ask"]["manner_of_speech"])
    return messages_of(scenario, difficulty, ask)


def messages_to_judge(dialogue: Dialogue, reply: str, *, with_reply: bool) -> Messages:
    """Asks how a reply that is not yet in the dialogue moves the user.

    Args:
        with_reply: ask for the user's next words in the same answer.
    """
    ask = prompts(dialogue.scenario.language)["ask"]
    judge = ask["judge"].format(conversation=conversation(dialogue, reply), emotion=dialogue.emotion)
    text = ask["judge_and_reply"].format(judge=judge, manner_of_speech=ask["manner_of_speech"]) if with_reply else judge
    return messages_of(dialogue.scenario, dialogue.difficulty, text)


def messages_to_reply(dialogue: Dialogue, reply: str, felt: Felt, *, emotion: int) -> Messages:
    """Asks for the user's next words.

    Args:
        emotion: after the change.
    """
    words = prompts(dialogue.scenario.language)
    ask = words["ask"]["reply"].format(
        conversation=conversation(dialogue, reply),
        # The model's words, but the reply may have put them there.
        feeling=quoted(felt.thought.feeling),
        inner=quoted(felt.thought.inner),
        change=emotion - dialogue.emotion,
        emotion=emotion,
        state=words["state"][_state(emotion)],
        manner_of_speech=words["ask"]["manner_of_speech"],
    )
    return messages_of(dialogue.scenario, dialogue.difficulty, ask)


def schema_to_open(*, max_chars: int) -> Schema:
    """JSON schema of an opening; `max_chars` limits its texts where it is not 0."""
    return object_of({"reply": _text(max_chars)})


def schema_to_judge(*, max_chars: int, with_reply: bool) -> Schema:
    """JSON schema of a judgement, its five steps in the order of thinking."""
    # An enumeration, because not every server that enforces a schema knows of bounds.
    judged = {**{step: _text(max_chars) for step in STEPS}, "change": {"type": "integer", "enum": list(range(-MAX_CHANGE, MAX_CHANGE + 1))}}
    return object_of({**judged, **schema_to_reply(max_chars=max_chars)["properties"]} if with_reply else judged)


def schema_to_reply(*, max_chars: int) -> Schema:
    """JSON schema of the user's next words."""
    return object_of({"reply": _text(max_chars), "goodbye": {"type": "boolean"}})


def read_felt(answer: str) -> Felt:
    """The judgement in an answer, its change clipped.

    Raises:
        Unusable: the answer is no such JSON.
    """
    record = record_of(answer)
    steps = {step: string_of(record, step) for step in STEPS}
    change = record.get("change")
    if isinstance(change, str) and SIGNED.fullmatch(change.strip()):
        change = int(change)
    if isinstance(change, bool) or not isinstance(change, int | float) or change != change // 1:
        raise Unusable(f"change must be a whole number, got {change!r}")
    clipped = int(max(-MAX_CHANGE, min(MAX_CHANGE, change)))
    return Felt(thought=Thought(**steps), change=clipped, was_clipped=clipped != change)


def read_said(answer: str) -> Said:
    """The user's words in an answer.

    Raises:
        Unusable: the answer is no such JSON, or the words are empty.
    """
    goodbye = record_of(answer).get("goodbye")
    if not isinstance(goodbye, bool):
        raise Unusable(f"goodbye must be true or false, got {goodbye!r}")
    return Said(text=read_words(answer), goodbye=goodbye)


def read_words(answer: str) -> str:
    """The user's words in an answer that may hold nothing else, on one line.

    Raises:
        Unusable: the answer is no such JSON, or the words are empty.
    """
    text = " ".join(CONTROL.sub("", string_of(record_of(answer), "reply")).split())
    if not text:
        raise Unusable("reply must not be empty, got ''")
    return text


def conversation(dialogue: Dialogue, *replies: str) -> str:
    """The dialogue and a further reply as lines of JSON in which nothing that was said can end its line or pass for a marker."""
    names = {Speaker.USER: "you", Speaker.AGENT: "other"}
    said = [*((names[turn.speaker], turn.text) for turn in dialogue.turns), *((names[Speaker.AGENT], reply) for reply in replies)]
    return "\n".join(f'{{"speaker": "{name}", "text": {quoted(text)}}}' for name, text in said)


def quoted(text: str) -> str:
    """The text as a JSON string that decodes to the same text and holds no markup, special token or invisible character."""
    return ESCAPED.sub(_escape, json.dumps(text, ensure_ascii=False))


def prompts(language: str) -> dict[str, Any]:
    """The prompts of a language.

    Raises:
        ValueError: there are none.
    """
    if language not in LANGUAGES:
        raise ValueError(f"scenario.language must be one of {', '.join(LANGUAGES)} for an llm user, got {language!r}")
    return read_toml(language, PROMPTS)


@cache
def prompts_hash() -> str:
    """First 16 hex digits of the SHA-256 over the prompts of all languages."""
    digest = hashlib.sha256()
    for language in LANGUAGES:
        digest.update((PROMPTS / f"{language}.toml").read_bytes())
    return digest.hexdigest()[:16]


def messages_of(scenario: Scenario, difficulty: Difficulty, ask: str) -> Messages:
    """A question to the model that plays the user, below the description of this user."""
    words = prompts(scenario.language)
    axes = difficulty.to_dict()
    system = words["system"].format(
        person=_person(scenario),
        background=_background(scenario),
        goal=scenario.goal,
        hidden=scenario.hidden_intention,
        **axes,
        **{f"{axis}_words": words[axis][_degree(value)] for axis, value in axes.items()},
    )
    return ("system", system.strip()), ("user", ask.strip())


def _person(scenario: Scenario) -> str:
    """The person's card if there is one, else the scenario's persona."""
    persona, words = scenario.persona, prompts(scenario.language)
    if persona.card:
        return "\n".join([persona.card, *filter(None, ["、".join(persona.traits)])])
    manner = words["manner"][persona.persona_type]
    return words["persona"].format(name=persona.name, age=persona.age, occupation=persona.occupation, manner=manner).strip()


def _background(scenario: Scenario) -> str:
    words = prompts(scenario.language)["background"]
    parts = [scenario.background]
    if scenario.other:
        parts.append(words["other"].format(other=scenario.other))
    if scenario.feelings:
        parts.append(words["feelings"].format(feelings=", ".join(scenario.feelings)))
    if scenario.facts:
        parts += [words["told"], *(f"- {fact.text}" for fact in scenario.facts)]
    return "\n".join(parts)


def _degree(value: float) -> str:
    return "low" if value < MID_FROM else "mid" if value < HIGH_FROM else "high"


def _state(emotion: int) -> str:
    if emotion >= DELIGHTED_AT:
        return "delighted"
    if emotion < LEFT_BELOW:
        return "left"
    return "high" if emotion >= AT_EASE_FROM else "mid" if emotion >= UNSETTLED_FROM else "low"


def _escape(found: re.Match[str]) -> str:
    """The JSON escape of a character, two of them beyond the basic plane; `json` itself leaves ASCII as it is."""
    character = found.group()
    return f"\\u{ord(character):04x}" if character.isascii() else json.dumps(character)[1:-1]


def _text(max_chars: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": max_chars} if max_chars else {"type": "string"}


def object_of(properties: Mapping[str, Any]) -> Schema:
    """JSON schema of an object with exactly these properties."""
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def record_of(answer: str) -> dict[str, Any]:
    """The JSON object in an answer, without a thought before </think> and without words or a code fence around the braces.

    Raises:
        Unusable: there is none.
    """
    # Whole first: an answer without a thought may quote the marker, because the agent said it. Around the object it ends a thought.
    for said in (answer, answer.partition(THOUGHT_ENDS)[2], answer.rpartition(THOUGHT_ENDS)[2]):
        braces = re.search(r"\{.*\}", said, re.DOTALL)
        if THOUGHT_ENDS in (said if braces is None else said[: braces.start()] + said[braces.end() :]):
            continue
        # Not strict: models, and servers that enforce a schema, let line breaks and the like stand in strings.
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(PLUS.sub(r"\1", braces.group() if braces else said), strict=False)
            if isinstance(record, dict):
                return record
    raise Unusable(f"an answer must be a JSON object, got {answer!r}")


def string_of(record: Mapping[str, Any], key: str) -> str:
    """The text under a key.

    Raises:
        Unusable: there is none, or it holds half a character.
    """
    value = record.get(key)
    if not isinstance(value, str):
        raise Unusable(f"{key} must be text, got {value!r}")
    return whole_text(value)


def whole_text(text: str) -> str:
    """The text, unless it holds half a character (a lone surrogate, which JSON can escape), which no file and no server accepts.

    Raises:
        Unusable: it does.
    """
    if half := HALF.search(text):
        raise Unusable(f"the answer is no text that can be written: it holds half a character, {half.group()!r}")
    return text
