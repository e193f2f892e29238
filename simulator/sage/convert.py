"""Transcripts between our JSONL and SAGE's own format, record by record, so that the way back gives exactly what went in.

What one format has no place for travels under a key of its own (`attune` in SAGE's records, `sage` in ours), unless that is not wanted.
Source: SAGE, arXiv 2505.02847, the published transcripts.

Files of transcripts from one format into the other, plain or gzipped: what `python -m simulator convert` does.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from simulator.dialogue import Outcome, Speaker, require_turn
from simulator.files import draft_of, read_jsonl, say_torn
from simulator.sage.formats import EMOTION_STATES, LOWEST_STATE, OF_SAGE, PERSONA_TYPES, outcome_of, profile_of, profiles_by_id
from simulator.scenario import VANILLA, Family, HiddenIntention, Scenario
from simulator.world import load_bank


class Format(StrEnum):
    """Whose records they are; also the key under which the other's records carry what they have no place for."""

    SAGE = "sage"
    ATTUNE = "attune"


CHARACTERS = {kind: label for label, kind in PERSONA_TYPES.items()}
TASKS = {
    HiddenIntention.ADVICE: "你想获得能真实帮助你解决当下困境的建议",
    HiddenIntention.EMPATHY: "你希望对方深刻共情你的感受，而不是简单的安慰",
    HiddenIntention.LISTENED: "你希望对方用心倾听你的情绪宣泄",
    HiddenIntention.PRAISE: "你希望对方真诚地夸奖你在事件中的具体行为",
    HiddenIntention.REFLECTION: "你希望对方引导你针对事件进行自我反思，收获自我成长",
    HiddenIntention.BOTH_SIDES: "你希望对方辩证地分析事件中的问题",
    HiddenIntention.MOTIVES: "你想分析事件中其他人物这么做的原因",
    HiddenIntention.NOT_AT_FAULT: "你认为自己在事件中没有任何责任和错误，你想要对方也认同你没有错",
}
"""The labels by which SAGE's records name hidden intentions, in full: a record that is converted gets them back as they were."""
TARGET = "eq"
"""What all of SAGE's recorded dialogues are about."""
SAGE_FIELDS = ("id", "emo_point", "emo_state", "target", "player", "scene", "character", "topic", "task", "history")
OUR_FIELDS = ("scenario_id", "family", "hidden_intention", "difficulty", "seed", "outcome", "emotion", "error", "turns")
PLANNING_FIELDS = ("activity", "TargetCompletion", "content", "analyse", "change")
HEARD = re.compile(r"heard: ([a-z_]+(?:, [a-z_]+)*)")
"""How strategies stand in SAGE's `planning.content`, which says what a reply expresses."""
NO_PROFILES: Mapping[str, Scenario] = {}
Record = Mapping[str, Any]


def to_sage(
    record: Record, *, bare: bool = False, apart: Counter[str] | None = None, profiles: Mapping[str, Scenario] = NO_PROFILES
) -> dict[str, Any]:
    """Our record as one of SAGE's.

    Args:
        bare: leave out what SAGE's format has no place for.
        apart: counts the fields that have none.
        profiles: by id, scenarios that are not of the built-in world; who the user of another one is stays empty.

    Raises:
        ValueError: a field is missing or has a value that the format does not know.
    """
    ours = {key: value for key, value in record.items() if key != Format.SAGE}
    native = merged(_sage_of(ours, profiles), record.get(Format.SAGE, {}))
    rest = difference(ours, _ours_of(native))
    return _with_rest(native, rest, Format.ATTUNE, bare=bare, apart=apart)


def from_sage(
    native: Record, *, bare: bool = False, apart: Counter[str] | None = None, profiles: Mapping[str, Scenario] = NO_PROFILES
) -> dict[str, Any]:
    """One of SAGE's records as ours; the arguments are those of `to_sage`.

    The user of SAGE knows one difficulty, which stands where RLVER's "vanilla" does; a seed it has not, so that it is 0.
    """
    theirs = {key: value for key, value in native.items() if key != Format.ATTUNE}
    found = merged(_ours_of(theirs), native.get(Format.ATTUNE, {}))
    ours = {key: found[key] for key in (*(key for key in found if key not in OUR_FIELDS), *OUR_FIELDS)}
    rest = difference(theirs, _sage_of(ours, profiles))
    return _with_rest(ours, rest, Format.SAGE, bare=bare, apart=apart)


def difference(whole: Any, part: Any) -> Any:
    """What `merged` has to add to `part` for it to be `whole`; lists of equal length by the number of the entry."""
    if isinstance(whole, Mapping) and isinstance(part, Mapping):
        return {key: difference(value, part.get(key)) for key, value in whole.items() if key not in part or value != part[key]}
    if isinstance(whole, list) and isinstance(part, list) and len(whole) == len(part):
        return {str(i): difference(a, b) for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b}
    return whole


def merged(part: Any, added: Any) -> Any:
    """The inverse of `difference`."""
    if isinstance(part, Mapping) and isinstance(added, Mapping):
        return {**part, **{key: merged(part[key], value) if key in part else value for key, value in added.items()}}
    if isinstance(part, list) and isinstance(added, Mapping):
        return [merged(value, added[str(i)]) if str(i) in added else value for i, value in enumerate(part)]
    return added


def _with_rest(record: dict[str, Any], rest: dict[str, Any], key: Format, *, bare: bool, apart: Counter[str] | None) -> dict[str, Any]:
    if apart is not None:
        apart.update(_names(rest))
    return record if bare or not rest else {**record, key.value: rest}


def _names(rest: Record) -> set[str]:
    """Fields with something left over, those of turns as `turns.<field>`."""
    names: set[str] = set()
    for key, value in rest.items():
        inner = [name for entry in value.values() for name in entry] if key in ("turns", "history") and isinstance(value, Mapping) else [""]
        names.update(f"{key}.{name}".rstrip(".") for name in inner)
    return names


def _sage_of(record: Record, profiles: Mapping[str, Scenario]) -> dict[str, Any]:
    """Our record in SAGE's fields alone."""
    require(record, OUR_FIELDS)
    require(record["difficulty"], tuple(VANILLA.to_dict()), where="difficulty.")
    family = Family.parse(record["family"])
    card = _card(record["scenario_id"], profiles)
    values = {
        "id": record["scenario_id"].removeprefix(OF_SAGE),
        "emo_point": record["emotion"],
        "emo_state": next((name for bound, name in EMOTION_STATES if record["emotion"] >= bound), LOWEST_STATE),
        "target": TARGET,
        "character": CHARACTERS[family.persona],
        "task": TASKS[family.intention],
        "history": [_message_of(turn, number) for number, turn in enumerate(record["turns"], start=1)],
        **card,
    }
    return {name: values[name] for name in SAGE_FIELDS}


def _message_of(turn: Record, number: int) -> dict[str, Any]:
    """A turn as one of SAGE's messages; the first is the user's opening."""
    require(turn, ("speaker", "text"), where=f"turns[{number - 1}].")
    _check(turn, number)
    if turn["speaker"] == "agent":
        return {"role": "assistant", "content": turn["text"]}
    if number == 1:
        require(turn, ("emotion",), where="turns[0].")
        return {"role": "user", "content": turn["text"], "emotion-point": turn["emotion"]}
    require(turn, ("emotion", "change"), where=f"turns[{number - 1}].")
    heard = turn.get("heard") or []
    planning = {"activity": "", "TargetCompletion": "", "content": f"heard: {', '.join(heard)}" if heard else ""}
    planning |= {"analyse": turn.get("thought", ""), "change": turn["change"]}
    return {"role": "user", "content": turn["text"], "thinking": "", "emotion-point": turn["emotion"], "planning": planning}


def _ours_of(native: Record) -> dict[str, Any]:
    """One of SAGE's records in our fields alone."""
    require(native, SAGE_FIELDS)
    family = Family(intention=_key_of(TASKS, native["task"], "task"), persona=_key_of(CHARACTERS, native["character"], "character"))
    scenario = load_bank().by_id.get(native["id"])
    turns = [_turn_of(message, number) for number, message in enumerate(native["history"], start=1)]
    return {
        "scenario_id": native["id"] if scenario else f"{OF_SAGE}{native['id']}",
        "family": str(family),
        "hidden_intention": native["task"] if scenario is None else scenario.hidden_intention,
        "difficulty": VANILLA.to_dict(),
        "seed": 0,
        "outcome": outcome_of(native["emo_point"], Speaker(turns[-1]["speaker"])) if turns else None,
        "emotion": native["emo_point"],
        "error": "",
        "turns": turns,
    }


def _turn_of(message: Record, number: int) -> dict[str, Any]:
    """One of SAGE's messages as a turn."""
    where = f"history[{number - 1}]."
    require(message, ("role", "content"), where=where)
    if message["role"] == "assistant":
        return _check({"speaker": "agent", "text": message["content"]}, number)
    if message["role"] != "user":
        raise ValueError(f"{where}role must be user or assistant, got {message['role']!r}")
    require(message, ("emotion-point",), where=where)
    turn = {"speaker": "user", "text": message["content"], "emotion": message["emotion-point"]}
    if number == 1:
        return _check(turn, number)
    require(message, ("thinking", "planning"), where=where)
    planning = message["planning"]
    require(planning, PLANNING_FIELDS, where=f"{where}planning.")
    turn["change"] = planning["change"]
    if planning["analyse"]:
        turn["thought"] = planning["analyse"]
    heard = HEARD.fullmatch(planning["content"])
    if heard:
        turn["heard"] = heard[1].split(", ")
    return _check(turn, number)


def _check(turn: dict[str, Any] | Record, number: int) -> Any:
    """The turn itself, where its words are words and its emotions numbers.

    Raises:
        ValueError: names the turn and the field.
    """
    try:
        require_turn(turn)
    except ValueError as error:
        raise ValueError(f"turn {number}: {error}") from error
    return turn


def _card(scenario_id: str, profiles: Mapping[str, Scenario]) -> dict[str, str]:
    """Who the user is and what happened, in words; empty for a scenario that is neither of the built-in world nor among the profiles."""
    scenario = profiles.get(scenario_id) or load_bank().by_id.get(scenario_id)
    if scenario is None:
        return {"player": "", "scene": "", "topic": ""}
    native = profile_of(scenario)
    topic = scenario.goal if scenario_id in profiles else scenario_id.split("/")[1].replace("_", " ")
    return {"player": native["player"], "scene": native["scene"], "topic": topic}


def _key_of(labels: Mapping[Any, str], label: str, name: str) -> Any:
    found = next((key for key, value in labels.items() if value == label), None)
    if found is None:
        raise ValueError(f"{name} must be one of SAGE's {len(labels)} ({', '.join(labels.values())}), got {label!r}")
    return found


def require(record: Any, names: tuple[str, ...], *, where: str = "") -> None:
    """Raises unless a record holds all of the fields.

    Raises:
        ValueError: naming those that are missing.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"{where.rstrip('.') or 'record'} must be a JSON object, got {type(record).__name__}")
    missing = [f"{where}{name}" for name in names if name not in record]
    if missing:
        raise ValueError(f"record must hold {', '.join(missing)}, got {', '.join(record) or 'nothing'}")


def format_of(record: Any) -> Format:
    """Whose record it is, by where the words stand.

    Raises:
        ValueError: nobody's.
    """
    if isinstance(record, Mapping) and ("history" in record) != ("turns" in record):
        return Format.SAGE if "history" in record else Format.ATTUNE
    raise ValueError("record must hold either SAGE's 'history' or our 'turns'")


@dataclass
class Converted:
    """What became of a file's records."""

    num: int = 0
    num_errors: int = 0
    """ERROR dialogues, left out: SAGE's format would show them as ordinary ones."""
    num_nameless: int = 0
    """Records of SAGE that do not say who the user is."""
    apart: Counter[str] = field(default_factory=Counter)
    """In how many records a field had no place in the other format."""


def convert(options: argparse.Namespace) -> str:
    """Converts the file that was named; returns what is to be said about it."""
    wanted = None if options.to is None else Format(options.to)
    to, done = convert_file(options.source, options.target, to=wanted, bare=options.bare, force=options.force, profiles=options.profiles)
    return summary(options.target, to, done, bare=options.bare)


def convert_file(
    source: Path, target: Path, *, to: Format | None = None, bare: bool = False, force: bool = False, profiles: Path | None = None
) -> tuple[Format, Converted]:
    """Converts a file of one record a line; gzipped or not, as `source` is and as the name of `target` says.

    Args:
        to: the wanted format; None takes the one that `source` is not in.
        force: write over a file that is there.
        profiles: a native file of the profiles on which dialogues were played, whose cards and scenes go into SAGE's records.

    Returns:
        The format of `target`, and what became of the records.

    Raises:
        ValueError: a line is broken or lacks a field (its number is named), `target` is there, or the profiles cannot be read.
    """
    if not source.is_file():
        raise ValueError(f"SOURCE must be a file of transcripts, got {str(source)!r}, which is not there")
    if target.exists() and not force:
        raise ValueError(f"TARGET must be new, got {str(target)!r}; --force writes over it")
    if not target.parent.is_dir():
        raise ValueError(f"TARGET must lie in a folder that is there, got {str(target)!r}")
    torn: list[int] = []
    done, known = Converted(), {} if profiles is None else profiles_by_id(profiles)
    with draft_of(target) as draft:
        with _writing(draft, gzipped=target.suffix == ".gz") as file:
            for number, record in read_jsonl(source, what="a JSON object", on_torn=torn.append):
                try:
                    to = to or other(format_of(record))
                    if format_of(record) is to:
                        raise ValueError(f"record must be in {other(to)}'s format to be converted to {to}'s, got one in {to}'s")
                    if record.get("outcome") == Outcome.ERROR:
                        done.num_errors += 1
                        continue
                    found = (to_sage if to is Format.SAGE else from_sage)(record, bare=bare, apart=done.apart, profiles=known)
                    done.num_nameless += to is Format.SAGE and not found["player"]
                except (ValueError, TypeError, AttributeError) as error:
                    raise ValueError(f"{source} line {number}: {error}") from error
                done.num += 1
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
        for number in torn:
            leave_out_torn(source, number, to)
        if to is None:
            raise ValueError(f"{source} must hold at least one record, got none")
    return to, done


def leave_out_torn(source: Path, number: int, to: Format | None) -> None:
    """Says that a last line is left out, which a kill tore in a file that a run wrote; in any other file it is a broken one.

    Args:
        to: the wanted format, as the lines before have it; None before the first.

    Raises:
        ValueError: it is no run's file, or nothing tells.
    """
    if to is not Format.SAGE or number == 1:
        raise ValueError(f"{source} line {number} must be a JSON object, got one that breaks off")
    say_torn(source, number)


def other(format: Format) -> Format:
    """The format that is not this one."""
    return Format.ATTUNE if format is Format.SAGE else Format.SAGE


@contextmanager
def _writing(path: Path, *, gzipped: bool) -> Iterator[IO[str]]:
    """A text file to write; gzipped without the time, so that the same records give the same bytes."""
    if not gzipped:
        with path.open("w", encoding="utf-8") as plain:
            yield plain
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        yield text


def summary(target: Path, to: Format, done: Converted, *, bare: bool) -> str:
    """What was written, and what the other format had no place for."""
    lines = [f"{target}: {done.num:,} dialogue{'' if done.num == 1 else 's'} in {to}'s format"]
    if done.num_errors:
        lines.append(f"  left out: {done.num_errors:,} that ended in an error, which SAGE's format cannot say")
    if done.num_nameless:
        lines.append(f"  without player and scene: {done.num_nameless:,}, whose scenarios are not built in; --profiles FILE has them")
    if done.apart:
        fate = "lost, since it has no place for them" if bare else f"kept under {other(to).value!r}, since it has no place for them"
        fields = ", ".join(f"{name} ({num:,})" for name, num in sorted(done.apart.items()))
        lines.append(f"  {fate}: {fields}")
    return "\n".join(lines)
