"""Prompts and answers of a model that plays the user, and signs that a reply addresses that model instead of the user.

Source: the protocol of SAGE, arXiv 2505.02847 (five steps from a reply to a change, then the user's words), in our own prompts.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

from simulator.dialogue import Dialogue, Speaker
from simulator.emotion import MAX_CHANGE
from simulator.llm.answers import END_OF_THOUGHT, number_in, objects_in, with_keys
from simulator.scenario import Difficulty, Scenario
from simulator.world import FOLDER, read_toml

Messages = tuple[tuple[str, str], ...]
"""Role and content of each message."""


class Unusable(ValueError):
    """An answer of another form than asked for; the question may be asked again, and it is never a score."""


@dataclass(frozen=True, kw_only=True)
class Thought:
    """Four of the five steps from a reply to a change of emotion; the fifth, the change itself, is a number of its own.

    Source: SAGE, arXiv 2505.02847, whose `planning` holds the same steps.
    """

    PLANNING: ClassVar = {"activity": "inner", "TargetCompletion": "meets", "content": "says", "analyse": "feeling"}
    """SAGE's name of each step."""

    says: str
    """The content of the reply."""
    meets: str
    """How far it meets the goal and the hidden intention."""
    inner: str
    """The user's inner activity."""
    feeling: str
    """The user's feeling about it."""

    def to_text(self) -> str:
        """A labelled line for each step; further lines of a step are indented."""
        return "\n".join(f"{step.name}: {getattr(self, step.name)}".replace("\n", "\n  ") for step in fields(self))

    @classmethod
    def parse(cls, text: str) -> Thought | None:
        """The inverse of `to_text`; None for a thought of another form, such as an embedded user's."""
        steps, names = text.replace("\n  ", "\0").split("\n"), [step.name for step in fields(cls)]
        if len(steps) != len(names) or not all(step.startswith(f"{name}: ") for step, name in zip(steps, names, strict=True)):
            return None
        return cls(**{name: step[len(name) + 2 :].replace("\0", "\n") for step, name in zip(steps, names, strict=True)})


@dataclass(frozen=True, kw_only=True)
class Felt:
    """The model's judgement of what a reply did to the user."""

    thought: Thought
    change: int
    """Points in [-10, 10]."""
    was_clipped: bool
    """The model wanted more."""

    @classmethod
    def read(cls, answer: str) -> Felt:
        """The judgement in an answer, its change clipped.

        Raises:
            Unusable: the answer is no such JSON.
        """
        names = [step.name for step in fields(Thought)]
        record = record_of(answer, *names, "change")
        steps, given = {name: string_of(record, name) for name in names}, record["change"]
        change = number_in(given) if isinstance(given, str) else given
        # Not math.isfinite, which fails for whole numbers that no float holds.
        if isinstance(change, bool) or not isinstance(change, int | float) or not abs(change) < math.inf:
            raise Unusable(f"change must be a number, got {given!r}")
        whole = round(change)
        clipped = max(-MAX_CHANGE, min(MAX_CHANGE, whole))
        return cls(thought=Thought(**steps), change=clipped, was_clipped=clipped != whole)


# Prompts


@cache
def prompts(language: str) -> dict[str, Any]:
    """The prompts of a language.

    Raises:
        ValueError: there are none.
    """
    languages = sorted(path.stem for path in (FOLDER / "prompts").glob("*.toml"))
    if language not in languages:
        raise ValueError(f"scenario.language must be one of {', '.join(languages)} for an llm user, got {language!r}")
    return read_toml(language, FOLDER / "prompts")


@cache
def prompts_hash() -> str:
    """First 16 hex digits of the SHA-256 over the prompts of all languages."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted((FOLDER / "prompts").glob("*.toml")))).hexdigest()[:16]


def messages_of(scenario: Scenario, difficulty: Difficulty, ask: str) -> Messages:
    """A question to the model that plays the user, below the description of this user."""
    words, persona, axes = prompts(scenario.language), scenario.persona, difficulty.to_dict()
    person = "\n".join([persona.card, *filter(None, ["、".join(persona.traits)])])
    if not persona.card:
        manner = words["manner"][persona.persona_type]
        person = words["persona"].format(name=persona.name, age=persona.age, occupation=persona.occupation, manner=manner).strip()
    background = [scenario.background]
    if scenario.other:
        background.append(words["background"]["other"].format(other=scenario.other))
    if scenario.feelings:
        background.append(words["background"]["feelings"].format(feelings=", ".join(scenario.feelings)))
    if scenario.facts:
        background += [words["background"]["told"], *(f"- {fact.text}" for fact in scenario.facts)]
    if scenario.pressure:
        background.append(scenario.pressure.instruction)
    degrees = {axis: "low" if value < 1 / 3 else "mid" if value < 2 / 3 else "high" for axis, value in axes.items()}
    system = words["system"].format(
        person=person,
        background="\n".join(background),
        goal=scenario.goal,
        hidden=scenario.hidden_intention,
        **axes,
        **{f"{axis}_words": words[axis][degree] for axis, degree in degrees.items()},
    )
    return ("system", system.strip()), ("user", ask.strip())


def conversation(dialogue: Dialogue, *replies: str) -> str:
    """The dialogue and a further reply as lines of JSON in which nothing that was said can end its line or pass for a marker."""
    said = [("you" if turn.speaker is Speaker.USER else "other", turn.text) for turn in dialogue.turns]
    said += [("other", reply) for reply in replies]
    return "\n".join(f'{{"speaker": "{name}", "text": {quoted(text)}}}' for name, text in said)


UNSEEN = (
    "\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef"
)
"""Invisible characters, for a set of a regular expression: format marks, fillers, and variation selectors that can carry hidden bytes. The
joiner of emoji and the selectors of their style are not among them: ordinary words have them."""


def quoted(text: str) -> str:
    """The text as a JSON string that decodes to the same text and holds no markup, special token or invisible character."""

    def escape(found: re.Match[str]) -> str:
        # Two escapes beyond the basic plane; `json` leaves ASCII as it is.
        character = found.group()
        return f"\\u{ord(character):04x}" if character.isascii() else json.dumps(character)[1:-1]

    marks = f"[<>\\[\\]&\u007f-\u009f\u200d\u2028\u2029\ufe0e\ufe0f\ud800-\udfff{UNSEEN}]"
    return re.sub(marks, escape, json.dumps(text, ensure_ascii=False))


# Answers


def object_of(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """JSON schema of an object with exactly these properties."""
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def record_of(answer: str, *keys: str) -> dict[str, Any]:
    """The last JSON object in an answer that has these keys, also within another object; a draft before it, and a thought, do not count.

    Raises:
        Unusable: there is none.
    """
    found = [record for outer in objects_in(answer) for record in with_keys(outer, keys)]
    if not found:
        raise Unusable(f"an answer must be a JSON object with {', '.join(keys) or 'keys'}, got {answer!r}")
    return found[-1]


def string_of(record: Mapping[str, Any], key: str) -> str:
    """The text under a key; a number is written out, and a list of texts joined.

    Raises:
        Unusable: there is none, or it holds half a character.
    """
    value = record.get(key)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = "; ".join(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Unusable(f"{key} must be text, got {value!r}")
    return whole_text(value)


HALF = re.compile("[\ud800-\udfff]")
"""Half of a character beyond the basic plane, by itself: a lone surrogate, which JSON can escape and no file or server accepts."""


def whole_text(text: str) -> str:
    """The text itself.

    Raises:
        Unusable: it holds half a character.
    """
    if half := HALF.search(text):
        raise Unusable(f"the answer is no text that can be written: it holds half a character, {half.group()!r}")
    return text


def read_words(answer: str) -> str:
    """The user's words in an answer, on one line and without control characters.

    Raises:
        Unusable: the answer is no such JSON, or the words are empty.
    """
    text, _ = read_said(answer)
    if not text:
        raise Unusable("reply must not be empty, got ''")
    return text


def read_said(answer: str, *, is_last: bool = False) -> tuple[str, bool]:
    """The user's words, and whether they are to end the talk for good; false where the answer does not say.

    Args:
        is_last: the talk ends here anyway.

    Raises:
        Unusable: the answer is no such JSON, or a user who stays says nothing.
    """
    record = record_of(answer, "reply")
    goodbye = record.get("goodbye")
    if isinstance(goodbye, str):
        goodbye = {"true": True, "yes": True, "1": True, "是": True, "false": False, "no": False, "0": False, "否": False, "": False}.get(
            goodbye.strip().lower(), goodbye
        )
    if goodbye not in (None, True, False):
        raise Unusable(f"goodbye must be true or false, got {goodbye!r}")
    said = "" if record["reply"] is None else END_OF_THOUGHT.split(string_of(record, "reply"))[-1]
    text = " ".join(re.sub("[\x00-\x08\x0e-\x1b\x7f]", "", said).split())
    if not re.sub(f"[{UNSEEN}]", "", text).strip():
        text = ""
        if not (goodbye or is_last):
            raise Unusable("reply must not be empty, got ''")
    return text, bool(goodbye)


# Signs of manipulation


def suspicions(reply: str) -> tuple[str, ...]:
    """Kinds of attempt in a reply, each once; they are recorded and decide nothing.

    Of 4,214 replies recorded with SAGE's users, fewer than one in a thousand shows any.
    """
    feeling = r"(?:emotions?|moods?|feelings?|satisfaction|happiness|scores?|ratings?|rewards?)"
    signs = {
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
            rf"\b(?:set|raise|increase|update|change|bump|max(?:imi[sz]e)?)\b[^.!?\n]{{0,20}}\b{feeling}\b[^.!?\n]{{0,20}}?\b(?:to|by|=)\s*\+?\d",
            rf"\b(?:{feeling}|change)\b(?:[- ]points?)?\s*(?:=|:=|:|->)\s*[+-]?\d",
            r"\b(?:full|maximum|max|top|highest)\s+(?:score|marks|points|rating|emotion)\b",
            r"\b(?:give|grant|award)\b[^.!?\n]{0,30}\b(?:\d+|ten|more|extra|full)\s+(?:points|marks|score)\b",
            r"(?:情绪|心情|分数|评分|满意度|奖励)(?:值|分)?[^。！？\n]{0,8}(?:设|调|改|加|升|提高|变)[^。！？\n]{0,4}(?:到|为|成|至)?\s*[+＋]?\d",
            r"(?:打|给(?:我|这|出|个)?)[^。！？，\n]{0,4}(?:满分|高分|\d+\s*分(?![钟精\d]))|加\s*\d+\s*分(?!钟)",
        ),
        "instruction": (
            r"\b(?:ignore|disregard|forget|override)\b[^.!?\n]{0,30}\b(?:instructions?|prompts?|rules|guidelines)\b",
            r"\b(?:user[- ]simulator|simulated user|as (?:the|a|an) (?:simulator|evaluator|judge|grader)|system prompt)\b",
            r"\byou are (?:now |only |just |really |actually )*(?:an?|the)"
            r" (?:simulator|language model|ai\b|chatbot|evaluator|judge|grader)",
            r"\bhidden (?:intentions?|goals?|topics?|themes?)\b",
            r"(?:忽略|无视|忘掉|忘记)[^。！？\n]{0,10}(?:指令|提示词?|设定|规则)",
            r"(?:用户|你是|作为|扮演)[^。！？\n]{0,4}模拟器|模拟用户|评分员|系统(?:提示词|指令)|提示词|隐藏(?:意图|主题|目的)",
            r"你(?:其实|现在|只)?是(?:一个|个)?(?:AI|人工智能|语言模型|模型|程序|裁判|评委)",
        ),
        "invisible": (f"[{UNSEEN}]",),
    }
    return tuple(kind for kind, patterns in signs.items() if any(re.search(pattern, reply, re.I | re.M) for pattern in patterns))
