"""Profiles and transcripts in the files of SAGE and RLVER: read into scenarios and dialogues, and written.

Source: SAGE, arXiv 2505.02847, and RLVER, arXiv 2507.03112, as released: JSON Lines, here also gzipped.
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
from simulator.files import read_jsonl, write_whole
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
"""The word that identifies the kind of a native `task`, and our own task for a scenario whose hidden intention has no such word."""
RECORDED_TASKS = {
    HiddenIntention.ADVICE: "你想获得能真实帮助你解决当下困境的建议",
    HiddenIntention.EMPATHY: "你希望对方深刻共情你的感受，而不是简单的安慰",
    HiddenIntention.LISTENED: "你希望对方用心倾听你的情绪宣泄",
    HiddenIntention.PRAISE: "你希望对方真诚地夸奖你在事件中的具体行为",
    HiddenIntention.REFLECTION: "你希望对方引导你针对事件进行自我反思，收获自我成长",
    HiddenIntention.BOTH_SIDES: "你希望对方辩证地分析事件中的问题",
    HiddenIntention.MOTIVES: "你想分析事件中其他人物这么做的原因",
    HiddenIntention.NOT_AT_FAULT: "你认为自己在事件中没有任何责任和错误，你想要对方也认同你没有错",
}
"""The tasks of SAGE's recorded dialogues."""
PERSONA_TYPES = {"负面型": PersonaType.NEGATIVE, "被动型": PersonaType.PASSIVE, "回避型": PersonaType.AVOIDANT}
OF_SAGE = "sage/"
"""Prefix of scenario ids that are SAGE's profiles."""
GOAL = "想找人说说这件事"
"""Goal of a profile without a topic."""
HIDDEN_SECTION = re.compile(r"\n?#+[ ]*隐藏主题[:：]\s*\**\s*(?P<hidden>\S[^\n]*?)\s*\Z")
EMOTION_STATES = ((DELIGHTED_AT, "Emotion-S"), (70, "Emotion-A"), (40, "Emotion-B"), (LEFT_BELOW, "Emotion-C"), (0, "Emotion-F"))
PLANNING = {"content": "says", "TargetCompletion": "meets", "activity": "inner", "analyse": "feeling"}
"""Native name of each step of a thought."""


def read_profiles(path: str | Path, *, split: Split = Split.TRAIN) -> list[Scenario]:
    """The scenarios of a file of profiles, plain or gzipped.

    Args:
        split: the files do not name one.

    Raises:
        ValueError: the file cannot be read, or a line is no profile, has no or an unknown kind of task or person, or repeats an id; the
            line's number is named.
    """
    seen: dict[str, int] = {}
    scenarios = []
    for number, scenario in _read(Path(path), lambda record: scenario_of(record, split=split), what="a SAGE profile"):
        if scenario.scenario_id in seen:
            raise ValueError(f"{path} line {number} must have an id of its own, got that of line {seen[scenario.scenario_id]}")
        seen[scenario.scenario_id] = number
        scenarios.append(scenario)
    return scenarios


def profiles_by_id(path: str | Path) -> dict[str, Scenario]:
    """The profiles of a native file by the id of their scenario.

    Raises:
        ValueError: as `read_profiles` does.
    """
    return {scenario.scenario_id: scenario for scenario in read_profiles(path)}


def write_profiles(path: str | Path, scenarios: Iterable[Scenario]) -> None:
    """Writes scenarios as native profiles, gzipped where the name ends in `.gz`."""
    write_records(Path(path), map(profile_of, scenarios))


def read_transcripts(path: str | Path, *, split: Split = Split.HELDOUT, difficulty: Difficulty = VANILLA) -> list[Dialogue]:
    """The dialogues of a native result file, plain or gzipped.

    Args:
        difficulty: to record; native users have only one, whose prompts VANILLA stands for.

    Raises:
        ValueError: the file cannot be read, or a line is no transcript or contradicts itself; the line's number is named.
    """
    read = _read(Path(path), lambda record: dialogue_of(record, split=split, difficulty=difficulty), what="a SAGE transcript")
    return [dialogue for _, dialogue in read]


def write_transcripts(path: str | Path, dialogues: Iterable[Dialogue]) -> None:
    """Writes dialogues as a native result file, gzipped where the name ends in `.gz`."""
    write_records(Path(path), map(transcript_of, dialogues))


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSON Lines atomically; gzipped where the name ends in `.gz`, without a time, so that equal records give equal bytes."""
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode("utf-8")
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def profile_bank(*, train: str | Path, heldout: str | Path) -> Bank:
    """A bank of two files of profiles, one for training and one for evaluation.

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

    The scene without its hidden section is the background; the person's card is kept whole. The language, Chinese or English, is that
    of the background and the opening.

    Raises:
        ValueError: names the key that is missing, of the wrong type or unknown.
    """
    scene, card, task = _text(record, "scene"), _text(record, "player"), _text(record, "task", missing="")
    section = HIDDEN_SECTION.search(scene)
    written = section["hidden"] if section else ""
    if not task and not written:
        raise ValueError("task must say what the user hides, got neither task nor a 隐藏主题 section at the end of scene")
    if task and written and intention_of(task) is not intention_of(written):
        raise ValueError(f"task must be of the kind that the scene ends with ({written!r}), got {task!r}")
    kind = PERSONA_TYPES.get(persona_type := str(record.get("main_cha", record.get("character", ""))))
    if kind is None:
        raise ValueError(f"main_cha must be one of {', '.join(PERSONA_TYPES)}, got {persona_type!r}")
    traits = record.get("cha_group", [])
    if not isinstance(traits, list) or not all(isinstance(trait, str) for trait in traits):
        raise ValueError(f"cha_group must be a list of words, got {traits!r}")
    age = re.search(r"\d+", age_text := _labelled(card, "年龄"))
    if age is None:
        raise ValueError(f"player must give 年龄 in figures, got {age_text!r}")
    background = scene[: section.start()] if section else scene
    opening = "" if record.get("first_talk") is None else _text(record, "first_talk", missing="")
    opening = opening if opening.strip() else ""
    return Scenario(
        scenario_id=f"{OF_SAGE}{_text(record, 'id')}",
        family=Family(intention=intention_of(task or written), persona=kind),
        persona=Persona(
            name=_labelled(card, "姓名"),
            age=int(age[0]),
            occupation=_labelled(card, "职业"),
            persona_type=kind,
            traits=tuple(traits),
            card=card,
        ),
        background=background,
        facts=(),
        other="",
        feelings=(),
        goal=_text(record, "topic", missing=GOAL),
        hidden_intention=task or written,
        opening=opening,
        language=language_of(f"{background}\n{opening}"),
        split=split,
    )


def profile_of(scenario: Scenario) -> dict[str, Any]:
    """A scenario as a native profile; the inverse of `scenario_of` for native profiles."""
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


def intention_of(task: str) -> HiddenIntention:
    """The kind of a native task.

    Raises:
        ValueError: none of the eight, or more than one.
    """
    kinds = [intention for intention, (word, _) in TASKS.items() if word in task]
    if len(kinds) != 1:
        words = ", ".join(word for word, _ in TASKS.values())
        raise ValueError(f"task must hold exactly one of the words {words}, got {task!r}")
    return kinds[0]


def native_task(scenario: Scenario) -> str:
    """The hidden intention in words that `intention_of` understands: the scenario's own if possible, else ours."""
    word, ours = TASKS[scenario.family.intention]
    is_native = [word for word, _ in TASKS.values() if word in scenario.hidden_intention] == [word]
    return scenario.hidden_intention if is_native else ours


def dialogue_of(record: Mapping[str, Any], *, split: Split, difficulty: Difficulty = VANILLA) -> Dialogue:
    """A native transcript as a dialogue, with the recorded changes: new emotion = min(100, old + change).

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
    # By the final emotion, else by the last speaker: only a farewell leaves the last word to the user.
    outcome = Outcome.FAREWELL if turns[-1].speaker is Speaker.USER else Outcome.MAX_TURNS
    outcome = Outcome.DELIGHTED if emotion >= DELIGHTED_AT else Outcome.LEFT if emotion < LEFT_BELOW else outcome
    return Dialogue(scenario=scenario, difficulty=difficulty, seed=0, turns=tuple(turns), outcome=outcome)


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


def transcript_of(dialogue: Dialogue) -> dict[str, Any]:
    """A dialogue as a native transcript. A thought without SAGE's steps is the `analyse` of its planning, strategies are the `content`."""
    scenario, emotion = dialogue.scenario, dialogue.emotion
    profile, is_native = profile_of(scenario), scenario.scenario_id.startswith(OF_SAGE)
    history: list[dict[str, Any]] = []
    for turn in dialogue.turns:
        if turn.speaker is Speaker.AGENT:
            history.append({"role": "assistant", "content": turn.text})
        elif turn.change is None:
            history.append({"role": "user", "content": turn.text, "emotion-point": turn.emotion})
        else:
            heard = f"heard: {', '.join(turn.heard)}" if turn.heard else ""
            recorded = Thought.parse(turn.thought)
            thought = recorded or Thought(says=heard, meets="", inner="", feeling=turn.thought)
            planning = {name: getattr(thought, PLANNING[name]) for name in ("activity", "TargetCompletion", "content", "analyse")}
            message = {"role": "user", "content": turn.text, **({} if recorded else {"thinking": ""})}
            history.append({**message, "emotion-point": turn.emotion, "planning": {**planning, "change": turn.change}})
    return {
        "id": profile["id"],
        "emo_point": emotion,
        "emo_state": next(state for lowest, state in EMOTION_STATES if emotion >= lowest),
        "target": "eq",
        "player": profile["player"],
        "scene": profile["scene"],
        "character": profile["main_cha"],
        "topic": scenario.goal if is_native else scenario.scenario_id.split("/")[-2:][0].replace("_", " "),
        "task": profile["task"] if is_native else RECORDED_TASKS[scenario.family.intention],
        "history": history,
    }


def _labelled(card: str, label: str) -> str:
    found = re.search(rf"{label}\s*[:：]\s*(\S[^\n]*)", card)
    if found is None:
        raise ValueError(f"player must have a line {label}：..., got none")
    return found[1].strip()


def _text(record: Mapping[str, Any], key: str, *, missing: str | None = None, where: str = "", may_be_blank: bool = False) -> str:
    """The text under a key.

    Args:
        missing: the value of an absent key; None refuses it.
        where: a prefix for the key's name in an error.
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


def _read(path: Path, convert: Callable[[Mapping[str, Any]], T], *, what: str) -> Iterator[tuple[int, T]]:
    """Every record with its line's number."""
    for number, record in read_jsonl(path, what=what, blank=True):
        try:
            if not isinstance(record, dict):
                raise ValueError(f"got a {type(record).__name__} instead of an object")
            yield number, convert(record)
        except ValueError as error:
            raise ValueError(f"{path} line {number} must be {what}: {error}") from error


# Folders of native transcripts

RESULT = re.compile(r"(?P<agent>.+?)(?:_result)?\.jsonl(?:\.gz)?")
SIMULATOR = "_based_simulator"


@dataclass(frozen=True, kw_only=True)
class RecordedFile:
    """The dialogues of one agent with one simulated user."""

    simulator: str
    """Named by its folder; "" for files directly in the given folder."""
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
    if not folder.exists():
        raise ValueError(f"--transcripts must be a folder of native result files, got {str(folder)!r}, which is not there")
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*.jsonl*") if RESULT.fullmatch(path.name))
    found: dict[tuple[str, str], RecordedFile] = {}
    for path in [path for path in paths if "_result.jsonl" in path.name] or paths:
        match = RESULT.fullmatch(path.name)
        agent = match["agent"] if match else path.name
        is_inside = not folder.is_file() and (path.parent != folder or path.parent.name.endswith(SIMULATOR))
        simulator = path.parent.name.removesuffix(SIMULATOR) if is_inside else ""
        if (simulator, agent) in found:
            before = found[simulator, agent].path
            raise ValueError(f"{path} must be of another agent than {before}: both are {agent!r} with {simulator!r}")
        found[simulator, agent] = RecordedFile(simulator=simulator, agent=agent, path=path, dialogues=read_transcripts(path))
    if not any(file.dialogues for file in found.values()):
        raise ValueError(f"--transcripts must hold native dialogues in files <agent>_result.jsonl(.gz), got none in {str(folder)!r}")
    return list(found.values())


def with_profiles(files: Sequence[RecordedFile], path: Path) -> list[RecordedFile]:
    """The dialogues with the profiles of a native file instead of the transcripts' own, which lack persona types; openings stay.

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

    def with_profile(dialogue: Dialogue) -> Dialogue:
        said = dialogue.scenario
        return replace(dialogue, scenario=replace(known.get(said.scenario_id, said), opening=said.opening))

    return [replace(file, dialogues=[with_profile(dialogue) for dialogue in file.dialogues]) for file in files]
