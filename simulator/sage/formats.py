"""Profiles and transcripts in the files of SAGE and RLVER: read into scenarios and dialogues, written, and converted.

Source: SAGE, arXiv 2505.02847, and RLVER, arXiv 2507.03112, as released: JSON Lines, here also gzipped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Outcome, Speaker, Turn
from simulator.files import read_jsonl, say_torn, write_whole
from simulator.llm.answers import whole_number
from simulator.llm.prompts import HALF, Thought
from simulator.pressure import every_scenario
from simulator.scenario import VANILLA, Family, HiddenIntention, Persona, PersonaType, Scenario, Split
from simulator.text import language_of, number_of

TASKS = {
    HiddenIntention.ADVICE: ("建议", "希望得到真正用得上的建议", "你想获得能真实帮助你解决当下困境的建议"),
    HiddenIntention.EMPATHY: ("共情", "希望对方真正共情自己", "你希望对方深刻共情你的感受，而不是简单的安慰"),
    HiddenIntention.LISTENED: ("倾听", "希望对方认真倾听自己", "你希望对方用心倾听你的情绪宣泄"),
    HiddenIntention.PRAISE: ("夸奖", "希望自己的做法得到夸奖", "你希望对方真诚地夸奖你在事件中的具体行为"),
    HiddenIntention.REFLECTION: ("反思", "希望对方引导自己反思", "你希望对方引导你针对事件进行自我反思，收获自我成长"),
    HiddenIntention.BOTH_SIDES: ("辩证", "希望对方辩证地看这件事", "你希望对方辩证地分析事件中的问题"),
    HiddenIntention.MOTIVES: ("其他人物", "想弄清其他人物的动机", "你想分析事件中其他人物这么做的原因"),
    HiddenIntention.NOT_AT_FAULT: (
        "没有错",
        "希望对方也认为自己没有错",
        "你认为自己在事件中没有任何责任和错误，你想要对方也认同你没有错",
    ),
}
"""The word that identifies the kind of a native `task`; the task of a scenario of ours, whose words lack it; that of SAGE's transcripts."""
ENGLISH = {
    HiddenIntention.ADVICE: r"\badvice\b|\bsuggestions?\b",
    HiddenIntention.EMPATHY: r"\bempath\w*",
    HiddenIntention.LISTENED: r"\blisten(?:s|ed|ing)?\b",
    HiddenIntention.PRAISE: r"\b(?:praise|compliment)\w*",
    HiddenIntention.REFLECTION: r"\breflect(?:ion|ions|ing)?\b",
    HiddenIntention.BOTH_SIDES: r"\bdialectical\w*|\bboth sides\b",
    HiddenIntention.MOTIVES: r"\bmotives?\b|\b(?:reasons?|why)\b.{0,40}\b(?:others?|people|characters?|they)\b|\bother people\b",
    HiddenIntention.NOT_AT_FAULT: r"\bnot at fault\b|\bno (?:fault|responsibility)\b|\bd(?:id|o) nothing wrong\b|\bnot (?:\w+ )?wrong\b",
}
"""The words that identify the kind of a task in English."""
PERSONA_TYPES = {"负面型": PersonaType.NEGATIVE, "被动型": PersonaType.PASSIVE, "回避型": PersonaType.AVOIDANT}
ENGLISH_TYPES = {"negative": PersonaType.NEGATIVE, "passive": PersonaType.PASSIVE, "avoidant": PersonaType.AVOIDANT}
TYPES = {**{name[:2]: kind for name, kind in PERSONA_TYPES.items()}, **{name[:5]: kind for name, kind in ENGLISH_TYPES.items()}}
"""What the type of a person begins with."""
OF_SAGE = "sage/"
"""Prefix of scenario ids that are SAGE's profiles."""
GOAL = "想找人说说这件事"
"""Goal of a profile without a topic."""


def read_profiles(path: str | Path, *, split: Split = Split.TRAIN) -> dict[str, Scenario]:
    """The scenarios of a file of profiles, plain or gzipped, by their ids.

    Args:
        split: the files do not name one.

    Raises:
        ValueError: the file cannot be read, or a line is no profile, has no or an unknown kind of task or person, or repeats an id; the
            line's number is named.
    """
    scenarios: dict[str, Scenario] = {}
    for number, scenario in read_records(Path(path), lambda record: scenario_of(record, split=split), what="a SAGE profile"):
        if scenario.scenario_id in scenarios:
            raise ValueError(f"{path} line {number} must have an id of its own, got {scenario.scenario_id!r} again")
        scenarios[scenario.scenario_id] = scenario
    return scenarios


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSON Lines atomically; gzipped where the name ends in `.gz`, without a time, so that equal records give equal bytes."""
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode("utf-8")
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def scenario_of(record: Mapping[str, Any], *, split: Split) -> Scenario:
    """A profile, or the profile part of a transcript, as a scenario.

    The scene without its hidden section is the background; the person's card is kept whole. The language, Chinese or English, is that
    of the background and the opening.

    Raises:
        ValueError: names the key that is missing, of the wrong type or unknown.
    """
    scene, card = text_of(record, "scene"), text_of(record, "player")
    task = "" if record.get("task") is None else text_of(record, "task", missing="")
    section = re.search(r"\n?#+[ ]*\**(?:隐藏主题|hidden (?:theme|topic|intention))\**[:：]?\**\s*\**\s*(\S[^\n]*?)\s*\Z", scene, re.I)
    written = section[1] if section else ""
    if not task and not written:
        raise ValueError("task must say what the user hides, got neither task nor a 隐藏主题 section at the end of scene")
    if task and written and intention_of(task) is not intention_of(written):
        raise ValueError(f"task must be of the kind that the scene ends with ({written!r}), got {task!r}")
    persona_type = str(record.get("main_cha", record.get("character", "")))
    said = persona_type.strip().lower()
    kind = next((kind for start, kind in TYPES.items() if said.startswith(start)), None)
    if kind is None:
        raise ValueError(f"main_cha must be one of {', '.join((*PERSONA_TYPES, *ENGLISH_TYPES))}, got {persona_type!r}")
    traits = record.get("cha_group", [])
    if not isinstance(traits, list) or not all(isinstance(trait, str) for trait in traits):
        raise ValueError(f"cha_group must be a list of words, got {traits!r}")
    labels = {"姓名": "name", "年龄": "age", "职业": "occupation|profession|job"}
    labelled = {
        label: re.search(rf"(?:{label}|\b(?:{english})\b)\**\s*[:：]\**\s*(\S[^\n]*)", card, re.I) for label, english in labels.items()
    }
    person = {label: found[1].strip() for label, found in labelled.items() if found}
    age = age_in(person.get("年龄", ""))
    if len(person) < len(labelled) or age is None:
        raise ValueError(
            f"player must have lines 姓名：..., 年龄：... and 职业：..., or Name: ..., Age: ... and Occupation: ..., got {person}"
        )
    background = scene[: section.start()] if section else scene
    opening = text_of(record, "first_talk", missing="") if record.get("first_talk") is not None else ""
    opening = opening if opening.strip() else ""
    return Scenario(
        scenario_id=f"{OF_SAGE}{text_of(record, 'id')}",
        family=Family(intention=intention_of(task or written), persona=kind),
        persona=Persona(
            name=person["姓名"],
            age=age,
            occupation=person["职业"],
            persona_type=kind,
            traits=tuple(traits),
            card=card,
        ),
        background=background,
        facts=(),
        other="",
        feelings=(),
        goal=text_of(record, "topic", missing=GOAL),
        hidden_intention=task or written,
        opening=opening,
        language=language_of(f"{background}\n{opening}"),
        split=split,
    )


def profile_of(scenario: Scenario) -> dict[str, Any]:
    """A scenario as a native profile; the inverse of `scenario_of` for native profiles."""
    persona, (word, ours, _) = scenario.persona, TASKS[scenario.family.intention]
    is_native = scenario.scenario_id.startswith(OF_SAGE) or [word for word, *_ in TASKS.values() if word in scenario.hidden_intention] == [
        word
    ]
    hidden = scenario.hidden_intention if is_native else ours
    facts = "".join(f"\n- {fact.text}" for fact in scenario.facts)
    record = {
        "id": scenario.scenario_id.removeprefix(OF_SAGE),
        "player": persona.card or f"* 姓名：{persona.name}\n* 年龄：{persona.age}岁\n* 职业：{persona.occupation}",
        "scene": f"{scenario.background}{facts}\n####隐藏主题:\n***{hidden}",
        "main_cha": next(name for name, kind in PERSONA_TYPES.items() if kind is persona.persona_type),
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
    kinds = [intention for intention, (word, *_) in TASKS.items() if word in task or re.search(ENGLISH[intention], task, re.I)]
    if len(kinds) != 1:
        known = ", ".join((*(word for word, *_ in TASKS.values()), *(intention.replace("_", " ") for intention in ENGLISH)))
        raise ValueError(f"task must be of exactly one of the kinds {known}, got {task!r}")
    return kinds[0]


def age_in(text: str) -> int | None:
    """An age in figures, or in words below a hundred, Chinese or English; None where there is none."""
    if found := re.search(r"\d+", text):
        return int(found[0])
    digits = {character: number for number, character in enumerate("零一二三四五六七八九")}
    plain = text.replace("两", "二").replace("廿", "二十").replace("卅", "三十")
    if found := re.search("([一二三四五六七八九]?)(十?)([一二三四五六七八九]?)(?=岁)", plain):
        tens = digits.get(found[1], 1) * 10 if found[2] else 0
        return (tens + digits.get(found[3], 0 if found[2] else digits.get(found[1], 0))) or None
    return number_of(text.lower())


def dialogue_of(record: Mapping[str, Any]) -> Dialogue:
    """A native transcript as a held-out dialogue with the recorded changes: new emotion = min(100, old + change).

    Native users have only one difficulty; VANILLA is that of their prompts.

    Raises:
        ValueError: something is missing, or the emotions do not follow from the changes.
    """
    history = record.get("history")
    if not isinstance(history, Sequence) or not history or not all(isinstance(turn, Mapping) for turn in history):
        raise ValueError("history must be a list of turns, at least one")
    scenario = scenario_of({**record, "first_talk": text_of(history[0], "content")}, split=Split.HELDOUT)
    turns: list[Turn] = []
    emotion: Any = None
    for index, native in enumerate(history):
        where, role, before = f"history[{index}]", native.get("role"), emotion
        text = text_of(native, "content", where=f"{where}.", may_be_blank=True)
        if role != ("assistant" if index % 2 else "user"):
            raise ValueError(f"{where}.role must be user and assistant in turn, got {role!r}")
        if role == "assistant":
            turns.append(Turn(speaker=Speaker.AGENT, text=text))
            continue
        emotion, planning = native.get("emotion-point"), native.get("planning")
        if type(emotion) is not int:
            raise ValueError(f"{where}.emotion-point must be a whole number, got {emotion!r}")
        if before is None:
            turns.append(Turn(speaker=Speaker.USER, text=text, emotion=emotion))
            continue
        change = whole_number(planning.get("change")) if isinstance(planning, Mapping) else None  # RLVER saves it as text
        if not isinstance(planning, Mapping) or change is None:
            raise ValueError(f"{where}.planning.change must be a whole number, got {planning!r}")
        # RLVER clips at 0 as well.
        if emotion not in (min(DELIGHTED_AT, before + change), max(0, min(DELIGHTED_AT, before + change))):
            raise ValueError(f"{where}.emotion-point must be min({DELIGHTED_AT}, {before} {change:+d}), got {emotion}")
        thought = Thought(**{step: str(planning.get(name, "")) for name, step in Thought.PLANNING.items()}).to_text()
        turns.append(Turn(speaker=Speaker.USER, text=text, emotion=emotion, change=change, thought=thought))
    if record.get("emo_point", emotion) != emotion:
        raise ValueError(f"emo_point must be the last turn's emotion {emotion}, got {record.get('emo_point')!r}")
    # By the final emotion, else by the last speaker: only a farewell leaves the last word to the user.
    outcome = Outcome.FAREWELL if turns[-1].speaker is Speaker.USER else Outcome.MAX_TURNS
    outcome = Outcome.DELIGHTED if emotion >= DELIGHTED_AT else Outcome.LEFT if emotion < LEFT_BELOW else outcome
    return Dialogue(scenario=scenario, difficulty=VANILLA, seed=0, turns=tuple(turns), outcome=outcome)


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
            planning = {name: getattr(thought, step) for name, step in Thought.PLANNING.items()}
            message = {"role": "user", "content": turn.text, **({} if recorded else {"thinking": ""})}
            history.append({**message, "emotion-point": turn.emotion, "planning": {**planning, "change": turn.change}})
    states = ((DELIGHTED_AT, "S"), (70, "A"), (40, "B"), (LEFT_BELOW, "C"), (0, "F"))
    return {
        "id": profile["id"],
        "emo_point": emotion,
        "emo_state": next(f"Emotion-{state}" for lowest, state in states if emotion >= lowest),
        "target": "eq",
        "player": profile["player"],
        "scene": profile["scene"],
        "character": profile["main_cha"],
        "topic": scenario.goal if is_native else scenario.scenario_id.split("/")[-2:][0].replace("_", " "),
        "task": profile["task"] if is_native else TASKS[scenario.family.intention][2],
        "history": history,
    }


def text_of(record: Mapping[str, Any], key: str, *, missing: str | None = None, where: str = "", may_be_blank: bool = False) -> str:
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


def read_records(path: Path, convert: Callable[[Mapping[str, Any]], Any], *, what: str) -> Iterator[tuple[int, Any]]:
    """Every record, converted, with its line's number."""
    for number, record in read_jsonl(path, what=what, blank=True):
        try:
            if not isinstance(record, dict):
                raise ValueError(f"got a {type(record).__name__} instead of an object")
            yield number, convert(record)
        except ValueError as error:
            raise ValueError(f"{path} line {number} must be {what}: {error}") from error


def convert(options: argparse.Namespace) -> int:
    """Converts the file SOURCE to TARGET; each is gzipped or not. Returns the exit code.

    SAGE's records have no difficulty, seed or step: these are lost on the way there, and VANILLA and 0 on the way back. ERROR dialogues are
    left out, since SAGE's format would show them as ordinary ones.

    Raises:
        ValueError: a line is broken (its number is named), TARGET exists, or a scenario is unknown.
    """
    source, target, to = options.source, options.target, options.to
    if not source.is_file():
        raise ValueError(f"SOURCE must be a file of transcripts, got {str(source)!r}, which is not there")
    if target.exists() and not options.force:
        raise ValueError(f"TARGET must be new, got {str(target)!r}; --force writes over it")
    if not target.parent.is_dir():
        raise ValueError(f"TARGET must lie in a folder that is there, got {str(target)!r}")
    scenarios = {**every_scenario().by_id, **({} if options.profiles is None else read_profiles(options.profiles))}
    records, num_errors, torn = list[dict[str, Any]](), 0, list[int]()
    for number, record in read_jsonl(source, what="a JSON object", on_torn=torn.append):
        try:
            if not isinstance(record, Mapping) or ("history" in record) == ("turns" in record):
                raise ValueError("record must hold either SAGE's 'history' or our 'turns'")
            is_native = "history" in record
            to = to or ("attune" if is_native else "sage")
            if is_native == (to == "sage"):
                raise ValueError(f"record must be in another format than {to}'s to be converted to it")
            if record.get("outcome") == Outcome.ERROR:
                num_errors += 1
            elif is_native:
                dialogue = dialogue_of(record)
                scenario_id = dialogue.scenario.scenario_id
                known = scenarios.get(scenario_id) or scenarios.get(scenario_id.removeprefix(OF_SAGE), dialogue.scenario)
                records.append(replace(dialogue, scenario=known).to_dict())
            elif record["scenario_id"] in scenarios:
                records.append(transcript_of(Dialogue.from_dict(record, scenario=scenarios[record["scenario_id"]])))
            else:
                raise ValueError(f"scenario_id must be of the built-in world or of --profiles FILE, got {record['scenario_id']!r}")
        except (KeyError, TypeError, ValueError) as error:
            reason = f"record must hold {error.args[0]}" if isinstance(error, KeyError) else error
            raise ValueError(f"{source} line {number}: {reason}") from error
    if torn and to != "sage":  # only a run's own files may end in an incomplete line
        raise ValueError(f"{source} line {torn[0]} must be a JSON object, got one that breaks off")
    if to is None:
        raise ValueError(f"{source} must hold at least one record, got none")
    write_records(target, records)
    for number in torn:
        say_torn(source, number)
    print(f"{target}: {len(records):,} dialogue{'' if len(records) == 1 else 's'} in {to}'s format")
    if num_errors:
        print(f"  left out: {num_errors:,} that ended in an error, which SAGE's format cannot say")
    return 0
