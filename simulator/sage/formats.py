"""Profiles and transcripts in the files of SAGE and RLVER: read into scenarios and dialogues, and written as these have them.

Source: SAGE, arXiv 2505.02847, and RLVER, arXiv 2507.03112, as released: JSON Lines, here also gzipped.

Folders of native SAGE transcripts: which agent met which simulated user, and what was said.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Outcome, Speaker, Turn
from simulator.files import read_jsonl
from simulator.llm.prompts import HALF, Thought
from simulator.scenario import VANILLA, Difficulty, Family, HiddenIntention, Persona, PersonaType, Scenario, Split
from simulator.text import language_of
from simulator.world import Bank

T = TypeVar("T")

TASKS = {
    HiddenIntention.ADVICE: ("建议", "希望得到真正用得上的建议"),
    HiddenIntention.EMPATHY: ("共情", "希望对方真正共情自己"),
    HiddenIntention.LISTENED: ("倾听", "希望对方认真倾听自己"),
    HiddenIntention.PRAISE: ("夸奖", "希望自己的做法得到夸奖"),
    HiddenIntention.REFLECTION: ("反思", "希望对方引导自己反思"),
    HiddenIntention.BOTH_SIDES: ("辩证", "希望对方辩证地看这件事"),
    HiddenIntention.MOTIVES: ("其他人物", "想弄清其他人物的动机"),
    HiddenIntention.NOT_AT_FAULT: ("没有错", "希望对方也认为自己没有错"),
}
"""The word by which a native `task` tells its kind, and how we put that task where a scenario does not have it in these words."""
PERSONA_TYPES = {"负面型": PersonaType.NEGATIVE, "被动型": PersonaType.PASSIVE, "回避型": PersonaType.AVOIDANT}
OF_SAGE = "sage/"
"""How ids of scenarios begin that are SAGE's profiles; its own records have the rest."""
GOAL = "想找人说说这件事"
"""Of a profile that names no topic."""
HIDDEN_SECTION = re.compile(r"\n?#+[ ]*隐藏主题[:：]\s*\**\s*(?P<hidden>\S[^\n]*?)\s*\Z")
EMOTION_STATES = ((DELIGHTED_AT, "Emotion-S"), (70, "Emotion-A"), (40, "Emotion-B"), (LEFT_BELOW, "Emotion-C"))
LOWEST_STATE = "Emotion-F"
PLANNING = {"content": "says", "TargetCompletion": "meets", "activity": "inner", "analyse": "feeling"}
"""Native name of each step of a thought."""


def read_profiles(path: str | Path, *, split: Split = Split.TRAIN) -> list[Scenario]:
    """The scenarios of a file of profiles, plain or gzipped.

    Args:
        split: what they are used for; the files do not say.

    Raises:
        ValueError: the file cannot be read, or a line is no profile, has no hidden intention, an unknown kind of task or of person, or an
            id that an earlier line had; the line's number is named.
    """
    scenarios = _read(Path(path), lambda record: scenario_of(record, split=split), what="a SAGE profile")
    seen: dict[str, int] = {}
    for number, scenario in scenarios:
        if scenario.scenario_id in seen:
            raise ValueError(f"{path} line {number} must have an id of its own, got that of line {seen[scenario.scenario_id]}")
        seen[scenario.scenario_id] = number
    return [scenario for _, scenario in scenarios]


def profiles_by_id(path: str | Path) -> dict[str, Scenario]:
    """The profiles of a native file by the id of their scenario.

    Raises:
        ValueError: as `read_profiles` does.
    """
    return {scenario.scenario_id: scenario for scenario in read_profiles(path)}


def write_profiles(path: str | Path, scenarios: Iterable[Scenario]) -> None:
    """Writes scenarios as native profiles, gzipped where the name ends in `.gz`."""
    _write(Path(path), map(profile_of, scenarios))


def read_transcripts(path: str | Path, *, split: Split = Split.HELDOUT, difficulty: Difficulty = VANILLA) -> list[Dialogue]:
    """The dialogues of a native result file, plain or gzipped.

    Args:
        difficulty: to put on record; native users have one only, whose prompts VANILLA stands for.

    Raises:
        ValueError: the file cannot be read, or a line is no transcript or contradicts itself; the line's number is named.
    """
    read = _read(Path(path), lambda record: dialogue_of(record, split=split, difficulty=difficulty), what="a SAGE transcript")
    return [dialogue for _, dialogue in read]


def write_transcripts(path: str | Path, dialogues: Iterable[Dialogue]) -> None:
    """Writes dialogues as a native result file, gzipped where the name ends in `.gz`."""
    _write(Path(path), map(transcript_of, dialogues))


def profile_bank(*, train: str | Path, heldout: str | Path) -> Bank:
    """A bank of two files of profiles, practised on and judged by.

    Raises:
        ValueError: a file cannot be read, is empty, or both have a profile in common.
    """
    by_id: dict[str, Scenario] = {}
    for path, split in ((train, Split.TRAIN), (heldout, Split.HELDOUT)):
        scenarios = read_profiles(path, split=split)
        if not scenarios:
            raise ValueError(f"{path} must hold at least one profile, got none")
        for scenario in scenarios:
            if scenario.scenario_id in by_id:
                raise ValueError(f"{path} must share no profile with {train}, got {scenario.scenario_id!r} in both")
            by_id[scenario.scenario_id] = scenario
    return Bank(by_id=by_id)


def scenario_of(record: Mapping[str, Any], *, split: Split) -> Scenario:
    """A profile, or the profile part of a transcript, as a scenario.

    The scene without its hidden section is the background; the person's card is kept whole. Its language, Chinese or
    English, is that of the background and the opening.

    Raises:
        ValueError: says which key is missing, of the wrong type or unknown.
    """
    scene, card = _text(record, "scene"), _text(record, "player")
    section = HIDDEN_SECTION.search(scene)
    hidden = _hidden_intention(record, section)
    kind = PERSONA_TYPES.get(persona_type := str(record.get("main_cha", record.get("character", ""))))
    if kind is None:
        raise ValueError(f"main_cha must be one of {', '.join(PERSONA_TYPES)}, got {persona_type!r}")
    background = scene[: section.start()] if section else scene
    opening = "" if record.get("first_talk") is None else _text(record, "first_talk", missing="")
    opening = opening if opening.strip() else ""
    return Scenario(
        scenario_id=f"{OF_SAGE}{_text(record, 'id')}",
        family=Family(intention=intention_of(hidden), persona=kind),
        persona=Persona(
            name=_named(card, "姓名"),
            age=_age(card),
            occupation=_named(card, "职业"),
            persona_type=kind,
            traits=_traits(record),
            card=card,
        ),
        background=background,
        facts=(),
        other="",
        feelings=(),
        goal=_text(record, "topic", missing=GOAL),
        hidden_intention=hidden,
        opening=opening,
        language=language_of(f"{background}\n{opening}"),
        split=split,
    )


def profile_of(scenario: Scenario) -> dict[str, Any]:
    """A scenario as a native profile; one that was read from there comes out as it went in."""
    hidden, persona = native_task(scenario), scenario.persona
    facts = "".join(f"\n- {fact.text}" for fact in scenario.facts)
    card = persona.card or f"* 姓名：{persona.name}\n* 年龄：{persona.age}岁\n* 职业：{persona.occupation}"
    names = {kind: name for name, kind in PERSONA_TYPES.items()}
    record = {
        "id": scenario.scenario_id.removeprefix(OF_SAGE),
        "player": card,
        "scene": f"{scenario.background}{facts}\n####隐藏主题:\n***{hidden}",
        "main_cha": names[persona.persona_type],
        "cha_group": list(persona.traits),
        "task": hidden,
    }
    topic = {} if scenario.goal == GOAL else {"topic": scenario.goal}
    return {**record, **topic, **({"first_talk": scenario.opening} if scenario.opening else {})}


def dialogue_of(record: Mapping[str, Any], *, split: Split, difficulty: Difficulty = VANILLA) -> Dialogue:
    """A native transcript as a dialogue, with the changes as they were recorded: new emotion = min(100, old + change).

    Raises:
        ValueError: something is missing, or the emotions do not follow from the changes.
    """
    history = record.get("history")
    if not isinstance(history, Sequence) or not history or not all(isinstance(turn, Mapping) for turn in history):
        raise ValueError("history must be a list of turns, at least one")
    scenario = scenario_of({**record, "first_talk": _text(history[0], "content")}, split=split)
    turns: list[Turn] = []
    emotion: int | None = None
    for index, native in enumerate(history):
        turns.append(_turn(native, before=emotion, index=index))
        emotion = turns[-1].emotion if turns[-1].emotion is not None else emotion
    if emotion is None or record.get("emo_point", emotion) != emotion:
        raise ValueError(f"emo_point must be the last turn's emotion {emotion}, got {record.get('emo_point')!r}")
    outcome = outcome_of(emotion, turns[-1].speaker)
    return Dialogue(scenario=scenario, difficulty=difficulty, seed=0, turns=tuple(turns), outcome=outcome)


def transcript_of(dialogue: Dialogue) -> dict[str, Any]:
    """A dialogue as a native transcript. A thought in other words than SAGE's steps stands whole under `activity`."""
    profile, emotion = profile_of(dialogue.scenario), dialogue.emotion
    return {
        "id": profile["id"],
        "emo_point": emotion,
        "emo_state": next((state for lowest, state in EMOTION_STATES if emotion >= lowest), LOWEST_STATE),
        "target": "eq",
        "player": profile["player"],
        "scene": profile["scene"],
        "character": profile["main_cha"],
        "topic": dialogue.scenario.goal,
        "task": profile["task"],
        "history": [_native_turn(turn) for turn in dialogue.turns],
    }


def intention_of(task: str) -> HiddenIntention:
    """Which of the eight kinds a native task is.

    Raises:
        ValueError: none of them, or more than one.
    """
    kinds = [intention for intention, (word, _) in TASKS.items() if word in task]
    if len(kinds) != 1:
        words = ", ".join(word for word, _ in TASKS.values())
        raise ValueError(f"task must hold exactly one of the words {words}, got {task!r}")
    return kinds[0]


def native_task(scenario: Scenario) -> str:
    """The hidden intention in words that `intention_of` reads: the scenario's own if it does, else ours."""
    intention = scenario.family.intention
    try:
        reads = intention_of(scenario.hidden_intention) is intention
    except ValueError:
        reads = False
    return scenario.hidden_intention if reads else TASKS[intention][1]


def _hidden_intention(record: Mapping[str, Any], section: re.Match[str] | None) -> str:
    task, written = _text(record, "task", missing=""), section.group("hidden") if section else ""
    if not task and not written:
        raise ValueError("task must say what the user hides, got neither task nor a 隐藏主题 section at the end of scene")
    if task and written and intention_of(task) is not intention_of(written):
        raise ValueError(f"task must be of the kind that the scene ends with ({written!r}), got {task!r}")
    return task or written


def _turn(native: Mapping[str, Any], *, before: int | None, index: int) -> Turn:
    """One native turn.

    Args:
        before: emotion so far; None at the opening.
    """
    where = f"history[{index}]"
    role, text = native.get("role"), _text(native, "content", where=f"{where}.", may_be_blank=True)
    if role != ("assistant" if index % 2 else "user"):
        raise ValueError(f"{where}.role must be user and assistant in turn, got {role!r}")
    if role == "assistant":
        return Turn(speaker=Speaker.AGENT, text=text)
    emotion = _whole(native.get("emotion-point"), f"{where}.emotion-point")
    if before is None:
        return Turn(speaker=Speaker.USER, text=text, emotion=emotion)
    planning = native.get("planning")
    if not isinstance(planning, Mapping):
        raise ValueError(f"{where}.planning must hold the user's steps, got {planning!r}")
    change = _whole(planning.get("change"), f"{where}.planning.change")
    if emotion != min(DELIGHTED_AT, before + change):
        raise ValueError(f"{where}.emotion-point must be min({DELIGHTED_AT}, {before} {change:+d}), got {emotion}")
    steps = {step: str(planning.get(name, "")) for name, step in PLANNING.items()}
    return Turn(speaker=Speaker.USER, text=text, emotion=emotion, change=change, thought=Thought(**steps).to_text())


def _native_turn(turn: Turn) -> dict[str, Any]:
    if turn.speaker is Speaker.AGENT:
        return {"role": "assistant", "content": turn.text}
    record: dict[str, Any] = {"role": "user", "content": turn.text, "emotion-point": turn.emotion}
    if turn.change is None:
        return record
    thought = Thought.parse(turn.thought) or Thought(says="", meets="", inner=turn.thought, feeling="")
    return {**record, "planning": {**{name: getattr(thought, step) for name, step in PLANNING.items()}, "change": turn.change}}


def outcome_of(emotion: int, last: Speaker) -> Outcome:
    """How a native dialogue ended: by its final emotion, 0-100, else by who spoke last: only a farewell leaves that to the user."""
    if emotion >= DELIGHTED_AT:
        return Outcome.DELIGHTED
    if emotion < LEFT_BELOW:
        return Outcome.LEFT
    return Outcome.FAREWELL if last is Speaker.USER else Outcome.MAX_TURNS


def _named(card: str, label: str) -> str:
    found = re.search(rf"{label}\s*[:：]\s*(\S[^\n]*)", card)
    if found is None:
        raise ValueError(f"player must have a line {label}：..., got none")
    return found.group(1).strip()


def _age(card: str) -> int:
    digits = re.search(r"\d+", text := _named(card, "年龄"))
    if digits is None:
        raise ValueError(f"player must give 年龄 in figures, got {text!r}")
    return int(digits.group())


def _traits(record: Mapping[str, Any]) -> tuple[str, ...]:
    traits = record.get("cha_group", [])
    if not isinstance(traits, list) or not all(isinstance(trait, str) for trait in traits):
        raise ValueError(f"cha_group must be a list of words, got {traits!r}")
    return tuple(traits)


def _text(record: Mapping[str, Any], key: str, *, missing: str | None = None, where: str = "", may_be_blank: bool = False) -> str:
    """The text under a key.

    Args:
        missing: what an absent key means; None refuses it.
        where: a prefix for the key's name in a complaint.
    """
    value = record.get(key, missing)
    if not isinstance(value, str) or not (value.strip() or may_be_blank or missing is not None):
        raise ValueError(f"{where}{key} must be text that is not empty, got {value!r}")
    if half := HALF.search(value):
        raise ValueError(f"{where}{key} must be text that can be written, got half a character, {half.group()!r}")
    return value


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value


def _read(path: Path, convert: Callable[[Mapping[str, Any]], T], *, what: str) -> list[tuple[int, T]]:
    """Every record with its line's number."""
    converted = []
    for number, record in read_jsonl(path, what=what, blank=True):
        try:
            if not isinstance(record, dict):
                raise ValueError(f"got a {type(record).__name__} instead of an object")
            converted.append((number, convert(record)))
        except ValueError as error:
            raise ValueError(f"{path} line {number} must be {what}: {error}") from error
    return converted


def _write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


RESULT = re.compile(r"(?P<agent>.+?)(?:_result)?\.jsonl(?:\.gz)?")
SIMULATOR = "_based_simulator"


@dataclass(frozen=True, kw_only=True)
class RecordedFile:
    """The dialogues of one agent with one simulated user."""

    simulator: str
    """As its folder is called; "" for files that lie in the given folder itself."""
    agent: str
    path: Path
    dialogues: Sequence[Dialogue]

    @property
    def digest(self) -> str:
        """First 16 hex digits of the file's SHA-256."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]


def read_recorded(folder: Path) -> list[RecordedFile]:
    """Every native result file of a folder and the folders in it, or a single file.

    Raises:
        ValueError: there is none, one of them is broken, or two are of the same agent and simulator.
    """
    found = [
        RecordedFile(simulator=simulator, agent=agent, path=path, dialogues=read_transcripts(path))
        for simulator, agent, path in _files(folder)
    ]
    if not any(file.dialogues for file in found):
        raise ValueError(f"--transcripts must hold native dialogues, got {str(folder)!r}, whose files are empty")
    return found


def with_profiles(files: Sequence[RecordedFile], path: Path) -> list[RecordedFile]:
    """The dialogues with their profiles as a native file has them, but for the opening that was said.

    A profile that the file does not have stays as the transcript tells it.

    Raises:
        ValueError: the file cannot be read, or has none of the profiles.
    """
    known = profiles_by_id(path)
    ids = {dialogue.scenario.scenario_id for file in files for dialogue in file.dialogues}
    missing = sorted(ids - set(known))
    if len(missing) == len(ids):
        raise ValueError(f"--profiles must hold the profiles of the transcripts, got none of them in {path}, such as {missing[0]!r}")
    if missing:
        print(f"note: {len(missing)} profiles of the transcripts are not in {path} and are taken from the transcripts", file=sys.stderr)

    def told(dialogue: Dialogue) -> Dialogue:
        said = dialogue.scenario
        return replace(dialogue, scenario=replace(known.get(said.scenario_id, said), opening=said.opening))

    return [replace(file, dialogues=[told(dialogue) for dialogue in file.dialogues]) for file in files]


def _files(folder: Path) -> Iterator[tuple[str, str, Path]]:
    if not folder.exists():
        raise ValueError(f"--transcripts must be a folder of native result files, got {str(folder)!r}, which is not there")
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*.jsonl*") if RESULT.fullmatch(path.name))
    named = [path for path in paths if "_result.jsonl" in path.name] or paths
    if not named:
        raise ValueError(f"--transcripts must hold files <agent>_result.jsonl or .jsonl.gz, got none in {str(folder)!r}")
    seen: dict[tuple[str, str], Path] = {}
    for path in named:
        match = RESULT.fullmatch(path.name)
        agent = match["agent"] if match else path.name
        inside = path.parent != folder or path.parent.name.endswith(SIMULATOR)
        simulator = path.parent.name.removesuffix(SIMULATOR) if inside and not folder.is_file() else ""
        if (simulator, agent) in seen:
            raise ValueError(f"{path} must be of another agent than {seen[simulator, agent]}: both are {agent!r} with {simulator!r}")
        seen[simulator, agent] = path
        yield simulator, agent, path
