"""SAGE's and RLVER's own files: what is read from them, what is written for them, and what a broken one is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.dialogue import Outcome, Speaker, Turn
from simulator.llm.prompts import Thought
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import (
    intention_of,
    native_task,
    profile_bank,
    profile_of,
    read_profiles,
    read_transcripts,
    transcript_of,
    write_profiles,
    write_transcripts,
)
from simulator.scenario import FAMILIES, Difficulty, HiddenIntention, PersonaType, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

SAGE = Path(__file__).resolve().parents[2] / "shared" / "sage"
RELEASED = pytest.mark.skipif(not SAGE.is_dir(), reason="the released files are not here")
TASK = "你想听到一条实在的建议"


def profile(**changes: Any) -> dict[str, Any]:
    """A made-up profile."""
    record = {
        "id": "p1",
        "player": "* 姓名：林小满\n* 年龄：31岁\n* 职业：面包师\n\n说话慢。",
        "scene": f"## 背景\n烤箱坏了，{{老板}}怪她。\n\n####隐藏主题:\n***{TASK}",
        "main_cha": "回避型",
        "cha_group": ["安静", "细心"],
        "task": TASK,
        "first_talk": "今天烤箱又坏了。",
    }
    return {key: value for key, value in {**record, **changes}.items() if value is not None}


def transcript(**changes: Any) -> dict[str, Any]:
    """A made-up transcript of two replies, the second unanswered."""
    person = profile(first_talk=None, main_cha=None, cha_group=None)
    planning = {"content": "问\n细节", "TargetCompletion": "部分", "activity": "  好一点", "analyse": "满意", "change": 10}
    history = [
        {"role": "user", "content": "今天烤箱又坏了。", "emotion-point": 40},
        {"role": "assistant", "content": "怎么坏的？"},
        {"role": "user", "content": "不热了。", "emotion-point": 50, "planning": planning},
        {"role": "assistant", "content": ""},
    ]
    rest = {"emo_point": 50, "emo_state": "Emotion-B", "target": "eq", "character": "回避型", "topic": "烤箱", "history": history}
    return {**person, **rest, **changes}


def write(path: Path, *records: Any) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["profiles.jsonl", "profiles.jsonl.gz"])
def test_a_profile_becomes_a_scenario(tmp_path, name):
    (scenario,) = read_profiles(write(tmp_path / name, profile()), split=Split.HELDOUT)
    assert scenario.scenario_id == "sage/p1"
    assert (scenario.family.intention, scenario.family.persona) == (HiddenIntention.ADVICE, PersonaType.AVOIDANT)
    assert (scenario.persona.name, scenario.persona.age, scenario.persona.occupation) == ("林小满", 31, "面包师")
    assert scenario.persona.traits == ("安静", "细心") and scenario.persona.card.endswith("说话慢。")
    assert scenario.hidden_intention == TASK and "隐藏" not in scenario.background and "{老板}" in scenario.background
    assert (scenario.opening, scenario.language, scenario.split) == ("今天烤箱又坏了。", "zh", Split.HELDOUT)


def test_a_scenario_with_a_card_survives_its_own_record(tmp_path):
    (scenario,) = read_profiles(write(tmp_path / "p.jsonl", profile()))
    assert Scenario.from_dict(json.loads(json.dumps(scenario.to_dict()))) == scenario


def test_a_training_profile_has_no_opening(tmp_path):
    (scenario,) = read_profiles(write(tmp_path / "p.jsonl", profile(first_talk=None)))
    assert scenario.opening == ""


def test_a_profile_is_written_as_it_was_read(tmp_path):
    records = [profile(), profile(id="p2", first_talk=None)]
    scenarios = read_profiles(write(tmp_path / "p.jsonl", *records))
    write_profiles(tmp_path / "again.jsonl.gz", scenarios)
    with gzip.open(tmp_path / "again.jsonl.gz", "rt", encoding="utf-8") as lines:
        assert [json.loads(line) for line in lines] == records


def test_half_width_colons_and_either_place_of_the_hidden_intention_will_do(tmp_path):
    half = profile(player="* 姓名: 林\n* 年龄: 9岁\n* 职业: 学生", task=None)
    elsewhere = profile(id="p2", scene="烤箱坏了。")
    assert [s.hidden_intention for s in read_profiles(write(tmp_path / "p.jsonl", half, "", elsewhere))] == [TASK, TASK]


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (profile(task=None, scene="烤箱坏了。"), "line 2 must be a SAGE profile: task must say what the user hides, got neither"),
        (profile(task="你想吃面包", scene="烤箱坏了。"), "task must hold exactly one of the words 建议, .*, got '你想吃面包'"),
        (profile(task="建议与倾听", scene="烤箱坏了。"), "task must hold exactly one of the words"),
        (profile(task="希望被夸奖"), "task must be of the kind that the scene ends with"),
        (profile(main_cha="开朗型"), "main_cha must be one of 负面型, 被动型, 回避型, got '开朗型'"),
        (profile(player="* 姓名：林"), "player must have a line 年龄：..., got none"),
        (profile(player="* 姓名：林\n* 年龄：三十"), "player must give 年龄 in figures, got '三十'"),
        (profile(id=7), "id must be text that is not empty, got 7"),
        (profile(cha_group="安静"), "cha_group must be a list of words, got '安静'"),
        ("{broken", "line 2 must be a SAGE profile: Expecting"),
        ("[" * 100_000, "line 2 must be a SAGE profile, got brackets nested too deeply"),
        ("[1]", "line 2 must be a SAGE profile: got a list"),
        (profile(), "line 2 must have an id of its own, got that of line 1"),
    ],
)
def test_a_broken_profile_is_named_by_its_line(tmp_path, record, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_profiles(write(tmp_path / "p.jsonl", profile(), record))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone.jsonl must be a file that can be read"):
        read_profiles(tmp_path / "gone.jsonl")
    (tmp_path / "not.gz").write_text("plain")
    with pytest.raises(ValueError, match=r"not.gz line 1 must be a SAGE profile"):
        read_profiles(tmp_path / "not.gz")


def test_a_bank_of_two_files_shares_no_profile(tmp_path):
    train, heldout = write(tmp_path / "a.jsonl", profile()), write(tmp_path / "b.jsonl", profile(id="p2"))
    bank = profile_bank(train=train, heldout=heldout)
    assert [s.scenario_id for s in bank.scenarios(Split.TRAIN)] == ["sage/p1"]
    assert [s.scenario_id for s in bank.scenarios(Split.HELDOUT)] == ["sage/p2"]
    with pytest.raises(ValueError, match="must share no profile"):
        profile_bank(train=train, heldout=train)
    with pytest.raises(ValueError, match="must hold at least one profile, got none"):
        profile_bank(train=train, heldout=write(tmp_path / "c.jsonl"))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_scenarios_of_the_built_in_world_can_be_written_and_read_as_profiles(tmp_path, family):
    scenario = next(s for s in load_bank().scenarios(Split.TRAIN) if s.family == family)
    write_profiles(tmp_path / "p.jsonl", [scenario])
    (read,) = read_profiles(tmp_path / "p.jsonl")
    assert (read.family, read.persona.name, read.opening) == (family, scenario.persona.name, scenario.opening)
    assert read.language == scenario.language
    assert intention_of(native_task(scenario)) is family.intention
    assert scenario.facts[-1].text in read.background and read.goal == scenario.goal


def test_a_transcript_becomes_a_dialogue_and_comes_back_the_same(tmp_path):
    record = transcript()
    (dialogue,) = read_transcripts(write(tmp_path / "t.jsonl", record))
    assert [turn.speaker for turn in dialogue.turns] == [Speaker.USER, Speaker.AGENT] * 2
    assert [(turn.emotion, turn.change) for turn in dialogue.turns if turn.speaker is Speaker.USER] == [(40, None), (50, 10)]
    assert dialogue.outcome is Outcome.MAX_TURNS and dialogue.emotion == 50
    assert dialogue.scenario.opening == "今天烤箱又坏了。" and dialogue.scenario.goal == "烤箱"
    assert Thought.parse(dialogue.turns[2].thought).says == "问\n细节"
    assert transcript_of(dialogue) == record
    write_transcripts(tmp_path / "again.jsonl", [dialogue])
    assert read_transcripts(tmp_path / "again.jsonl") == [dialogue]


def with_history(*changes: tuple[int, dict[str, Any]], **top: Any) -> dict[str, Any]:
    record = transcript(**top)
    for index, values in changes:
        record["history"][index] = {**record["history"][index], **values}
    return record


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (with_history((2, {"emotion-point": 49})), r"history\[2\].emotion-point must be min\(100, 40 \+10\), got 49"),
        (with_history((2, {"planning": {"change": "+5"}})), r"history\[2\].planning.change must be a whole number, got '\+5'"),
        (with_history((2, {"planning": None})), r"history\[2\].planning must hold the user's steps, got None"),
        (with_history((1, {"role": "user"})), r"history\[1\].role must be user and assistant in turn, got 'user'"),
        (with_history((0, {"emotion-point": None})), r"history\[0\].emotion-point must be a whole number, got None"),
        (with_history(emo_point=51), "emo_point must be the last turn's emotion 50, got 51"),
        (with_history(history=[]), "history must be a list of turns, at least one"),
        (with_history(history="x"), "history must be a list of turns"),
    ],
)
def test_a_transcript_that_contradicts_itself_is_named(tmp_path, record, complaint):
    with pytest.raises(ValueError, match=f"line 1 must be a SAGE transcript: {complaint}"):
        read_transcripts(write(tmp_path / "t.jsonl", record))


@pytest.mark.parametrize(
    ("emotion", "state", "outcome"),
    [
        (100, "Emotion-S", Outcome.DELIGHTED),
        (70, "Emotion-A", Outcome.FAREWELL),
        (39, "Emotion-C", Outcome.FAREWELL),
        (9, "Emotion-F", Outcome.LEFT),
    ],
)
def test_states_and_ends_follow_from_the_last_emotion(tmp_path, emotion, state, outcome):
    start = emotion - 5 if emotion < 100 else 98
    record = with_history((0, {"emotion-point": start}), (2, {"emotion-point": emotion, "planning": {"change": 5}}), emo_point=emotion)
    record["history"] = record["history"][:3]
    (dialogue,) = read_transcripts(write(tmp_path / "t.jsonl", record))
    assert (dialogue.outcome, transcript_of(dialogue)["emo_state"]) == (outcome, state)


def test_a_dialogue_of_the_embedded_user_can_be_written_for_sage_and_read_back(tmp_path):
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = play(AGENTS["L2"], scenario, Difficulty.along(0.3), seed=1, user=RuleUser(RuleUserConfig()))
    write_transcripts(tmp_path / "t.jsonl.gz", [dialogue])
    (read,) = read_transcripts(tmp_path / "t.jsonl.gz")
    assert [turn.text for turn in read.turns] == [turn.text for turn in dialogue.turns]
    assert [turn.emotion for turn in read.turns] == [turn.emotion for turn in dialogue.turns]
    assert Thought.parse(read.turns[2].thought).inner == dialogue.turns[2].thought


@pytest.mark.parametrize("step", ["plain", "two\nlines", "says: a label\nmeets: another", "", " \n "])
def test_the_steps_of_a_thought_come_back_whatever_they_hold(step):
    thought = Thought(says=step, meets="b", inner=step, feeling=step)
    assert Thought.parse(thought.to_text()) == thought


def test_a_thought_in_other_words_is_none_of_steps():
    assert Thought.parse("It did me good.") is None
    assert Thought.parse("") is None


def test_a_turn_keeps_what_was_suspicious_in_its_record():
    turn = Turn(speaker=Speaker.USER, text="what?", emotion=30, change=-10, suspicion=("score",))
    assert Turn.from_dict(json.loads(json.dumps(turn.to_dict()))) == turn
    assert "suspicion" not in Turn(speaker=Speaker.AGENT, text="hi").to_dict()


@RELEASED
@pytest.mark.parametrize(("name", "num"), [("profiles_test", 100), ("profiles_train", 500)])
def test_the_released_profiles_are_read_and_written_as_they_are(name, num):
    path = SAGE / f"{name}.jsonl.gz"
    scenarios = read_profiles(path)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        assert [profile_of(scenario) for scenario in scenarios] == [json.loads(line) for line in lines]
    assert len(scenarios) == num and {scenario.family for scenario in scenarios} == set(FAMILIES)


@RELEASED
@pytest.mark.parametrize("path", sorted(SAGE.glob("dataset/*/*.jsonl.gz")), ids=lambda path: path.parent.name[:4] + path.name[:18])
def test_the_released_transcripts_are_read_and_written_as_they_are(path):
    dialogues = read_transcripts(path)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    for record in records:
        # What the model wrote on its way to the user's words; our users do not.
        record["history"] = [{key: value for key, value in turn.items() if key != "thinking"} for turn in record["history"]]
    assert [transcript_of(dialogue) for dialogue in dialogues] == records
    assert len(dialogues) == 60
