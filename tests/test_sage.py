"""SAGE's and RLVER's files: profiles and transcripts read, written and converted; and the fitted rule's text regressor."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.__main__ import main
from simulator.dialogue import Dialogue, Outcome, Speaker
from simulator.llm.prompts import Thought
from simulator.llm.user import LLMUserConfig
from simulator.preset import SageNumbers, Wording
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import (
    age_in,
    dialogue_of,
    intention_of,
    profile_of,
    read_profiles,
    read_records,
    scenario_of,
    transcript_of,
    write_records,
)
from simulator.scenario import FAMILIES, VANILLA, Difficulty, HiddenIntention, PersonaType, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.user import make_bank
from simulator.world import load_bank

SAGE = Path(__file__).resolve().parents[2] / "shared" / "sage"
RELEASED = pytest.mark.skipif(not SAGE.is_dir(), reason="the released files are not here")
TASK = "你想听到一条实在的建议"
TRAIN = load_bank().scenarios(Split.TRAIN)


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


def transcript(*changes: tuple[int, dict[str, Any]], **top: Any) -> dict[str, Any]:
    """A made-up transcript of two replies, the second unanswered, with changes of turns by number and of fields."""
    person = profile(first_talk=None, main_cha=None, cha_group=None)
    planning = {"content": "问\n细节", "TargetCompletion": "部分", "activity": "  好一点", "analyse": "满意", "change": 10}
    history = [
        {"role": "user", "content": "今天烤箱又坏了。", "emotion-point": 40},
        {"role": "assistant", "content": "怎么坏的？"},
        {"role": "user", "content": "不热了。", "emotion-point": 50, "planning": planning},
        {"role": "assistant", "content": ""},
    ]
    for index, values in changes:
        history[index] = {**history[index], **values}
    rest = {"emo_point": 50, "emo_state": "Emotion-B", "target": "eq", "character": "回避型", "topic": "烤箱", "history": history}
    return {**person, **rest, **top}


def write(path: Path, *records: Any) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def records_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()]


# Profiles


def test_a_profile_becomes_a_scenario_and_is_written_as_it_was_read(tmp_path):
    records = [profile(), profile(id="p2", first_talk=None)]
    scenario, without_opening = read_profiles(write(tmp_path / "p.jsonl.gz", *records), split=Split.HELDOUT).values()
    assert scenario.scenario_id == "sage/p1" and str(scenario.family) == "advice/avoidant"
    assert (scenario.persona.name, scenario.persona.age, scenario.persona.occupation) == ("林小满", 31, "面包师")
    assert scenario.persona.traits == ("安静", "细心") and scenario.persona.card.endswith("说话慢。")
    assert scenario.hidden_intention == TASK and "隐藏" not in scenario.background and "{老板}" in scenario.background
    assert (scenario.opening, scenario.language, scenario.split) == ("今天烤箱又坏了。", "zh", Split.HELDOUT)
    assert without_opening.opening == ""
    assert Scenario.from_dict(json.loads(json.dumps(scenario.to_dict()))) == scenario
    for name in ("again.jsonl.gz", "again.jsonl"):
        write_records(tmp_path / name, map(profile_of, [scenario, without_opening]))
        assert records_of(tmp_path / name) == records


def test_half_width_colons_blank_lines_and_either_place_of_the_hidden_intention_will_do(tmp_path):
    half = profile(player="* 姓名: 林\n* 年龄: 9岁\n* 职业: 学生", task=None)
    elsewhere = profile(id="p2", scene="烤箱坏了。", first_talk=" \n")
    assert [s.hidden_intention for s in read_profiles(write(tmp_path / "p.jsonl", half, "", elsewhere)).values()] == [TASK, TASK]


def test_labels_tasks_and_kinds_may_be_english_bold_or_in_words_and_a_file_may_begin_with_a_mark(tmp_path):
    english = {
        "player": "* **Name**: Lin\n* **Age**: 31\n* **Occupation**: baker",
        "scene": "## Background\nThe oven broke.\n\n####Hidden theme:\n***You want the other person to listen to you",
        "main_cha": "Passive type",
        "task": "You want the other person to listen to you",
        "first_talk": "The oven broke again.",
    }
    records = [profile(player="* 姓名：林\n* 年龄：二十三岁\n* 职业：面包师"), profile(id="p2", **english)]
    path = write(tmp_path / "p.jsonl", *records)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    words, translated = read_profiles(path).values()
    assert words.persona.age == 23 and str(translated.family) == "listened/passive" and translated.language == "en"
    assert (translated.persona.name, translated.persona.age, translated.persona.occupation) == ("Lin", 31, "baker")
    assert profile_of(translated)["task"] == english["task"] and "Hidden" not in translated.background


@pytest.mark.parametrize(
    ("text", "age"),
    [
        *[("27", 27), ("31 years", 31), ("twenty-seven", 27), ("Forty", 40), ("nineteen", 19), ("sixty nine", 69)],
        *[("二十三岁", 23), ("廿五岁", 25), ("十岁", 10), ("九岁", 9), ("young", None), ("", None)],
    ],
)
def test_ages_are_read_in_figures_and_words(text, age):
    assert age_in(text) == age


@pytest.mark.parametrize("name", ["负面型", "负面", "Negative", "negative type"])
def test_types_of_persons_are_known_by_how_they_begin(name):
    assert scenario_of(profile(main_cha=name), split=Split.TRAIN).family.persona is PersonaType.NEGATIVE


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (profile(task=None, scene="烤箱坏了。"), "task"),
        (profile(task="建议与倾听", scene="烤箱坏了。"), "task"),
        (profile(task="希望被夸奖"), "task"),
        (profile(main_cha="开朗型"), "main_cha"),
        (profile(player="* 姓名：林\n* 年龄：三十"), "player"),
        (profile(id=7), "id"),
        (profile(cha_group="安静"), "cha_group"),
        ("{broken", "Expecting"),
        ("[1]", "list"),
        (profile(), "id"),
    ],
)
def test_a_broken_profile_is_named_by_its_line(tmp_path, record, name):
    with pytest.raises(ValueError, match=f"line 2 must.*{name}"):
        read_profiles(write(tmp_path / "p.jsonl", profile(), record))


def test_a_bank_of_two_files_shares_no_profile(tmp_path):
    train, heldout = write(tmp_path / "a.jsonl", profile()), write(tmp_path / "b.jsonl", profile(id="p2"))
    model = {"model": "m", "urls": ["http://127.0.0.1:9/v1"], "profiles": str(train)}
    bank = make_bank(LLMUserConfig(**model, heldout_profiles=str(heldout)))
    assert [[s.scenario_id for s in bank.scenarios(split)] for split in (Split.TRAIN, Split.HELDOUT)] == [["sage/p1"], ["sage/p2"]]
    for other in (train, write(tmp_path / "c.jsonl"), tmp_path / "gone.jsonl"):
        with pytest.raises(ValueError, match=str(other.name)):
            make_bank(LLMUserConfig(**model, heldout_profiles=str(other)))


def test_scenarios_of_the_built_in_world_survive_as_profiles(tmp_path):
    scenarios = [next(s for s in TRAIN if s.family == family) for family in FAMILIES]
    write_records(tmp_path / "p.jsonl", map(profile_of, scenarios))
    for scenario, read in zip(scenarios, read_profiles(tmp_path / "p.jsonl").values(), strict=True):
        assert (read.family, read.persona.name, read.opening) == (scenario.family, scenario.persona.name, scenario.opening)
        assert intention_of(profile_of(scenario)["task"]) is scenario.family.intention
        assert scenario.facts[-1].text in read.background and read.goal == scenario.goal


# Transcripts


def test_a_transcript_becomes_a_dialogue_and_comes_back_the_same(tmp_path):
    record = transcript()
    ((_, dialogue),) = read_records(write(tmp_path / "t.jsonl", record), dialogue_of, what="a SAGE transcript")
    assert [turn.speaker for turn in dialogue.turns] == [Speaker.USER, Speaker.AGENT] * 2
    assert [(turn.emotion, turn.change) for turn in dialogue.turns if turn.speaker is Speaker.USER] == [(40, None), (50, 10)]
    assert (dialogue.outcome, dialogue.emotion, dialogue.scenario.goal) == (Outcome.MAX_TURNS, 50, "烤箱")
    assert Thought.parse(dialogue.turns[2].thought).says == "问\n细节"
    assert transcript_of(dialogue) == record


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (transcript((2, {"emotion-point": 49})), r"history\[2\].emotion-point"),
        (transcript((2, {"planning": {"change": "five"}})), r"history\[2\].planning.change"),
        (transcript((2, {"planning": None})), r"history\[2\].planning"),
        (transcript((1, {"role": "user"})), r"history\[1\].role"),
        (transcript((0, {"emotion-point": None})), r"history\[0\].emotion-point"),
        (transcript(emo_point=51), "emo_point"),
        (transcript(history=[]), "history"),
    ],
)
def test_a_transcript_that_contradicts_itself_is_named(tmp_path, record, name):
    with pytest.raises(ValueError, match=f"line 1 must be a SAGE transcript: {name}"):
        list(read_records(write(tmp_path / "t.jsonl", record), dialogue_of, what="a SAGE transcript"))


@pytest.mark.parametrize(
    ("emotion", "state", "outcome"),
    [(100, "S", "delighted"), (70, "A", "farewell"), (40, "B", "farewell"), (39, "C", "farewell"), (9, "F", "left")],
)
def test_states_and_outcomes_follow_from_the_last_emotion(tmp_path, emotion, state, outcome):
    start = emotion - 5 if emotion < 100 else 98
    record = transcript((0, {"emotion-point": start}), (2, {"emotion-point": emotion, "planning": {"change": 5}}), emo_point=emotion)
    record["history"] = record["history"][:3]
    ((_, dialogue),) = read_records(write(tmp_path / "t.jsonl", record), dialogue_of, what="a SAGE transcript")
    assert (dialogue.outcome, transcript_of(dialogue)["emo_state"]) == (outcome, f"Emotion-{state}")


@pytest.mark.parametrize("step", ["plain", "two\nlines", "says: a label\nmeets: another", "", " \n "])
def test_the_steps_of_a_thought_survive_as_text(step):
    thought = Thought(says=step, meets="b", inner=step, feeling=step)
    assert Thought.parse(thought.to_text()) == thought
    assert Thought.parse("It did me good.") is None and Thought.parse("") is None


@RELEASED
def test_the_released_files_are_read_and_written_as_they_are():
    for name, num in (("profiles_test", 100), ("profiles_train", 500)):
        scenarios = list(read_profiles(SAGE / f"{name}.jsonl.gz").values())
        assert [profile_of(scenario) for scenario in scenarios] == records_of(SAGE / f"{name}.jsonl.gz")
        assert len(scenarios) == num and {scenario.family for scenario in scenarios} == set(FAMILIES)
    for path in sorted(SAGE.glob("dataset/*/*.jsonl.gz"))[:4]:
        records = records_of(path)
        for record in records:
            # The model's drafts of the user's words; our users have none.
            record["history"] = [{key: value for key, value in turn.items() if key != "thinking"} for turn in record["history"]]
        assert [transcript_of(dialogue) for _, dialogue in read_records(path, dialogue_of, what="a SAGE transcript")] == records


@pytest.mark.parametrize("change", ["+10", "10", "＋10", "10.0", "+10 points"])
def test_a_transcript_as_rlver_saves_it_is_read(tmp_path, change):
    record = transcript((2, {"planning": {"content": "a", "reason": "b", "change": change}}), task=None)
    ((_, dialogue),) = read_records(write(tmp_path / "t.jsonl", record), dialogue_of, what="a transcript")
    assert dialogue.turns[2].change == 10 and dialogue.scenario.hidden_intention == TASK


# Conversion


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    """A line of a run's dialogues.jsonl."""
    dialogue = play(AGENTS["L2"], TRAIN[0], Difficulty.along(0.4), seed=7, user=RuleUser(RuleUserConfig()))
    return {"step": 3, "uid": "step3-group1", "strictness": 0.4, **dialogue.to_dict()}


def test_dialogues_of_the_built_in_world_go_to_sage_and_back(ours, tmp_path, capsys):
    source = write(tmp_path / "d.jsonl", ours, {**ours, "outcome": "error"})
    native, same, back = tmp_path / "native.jsonl.gz", tmp_path / "same.jsonl.gz", tmp_path / "back.jsonl"
    assert main(["convert", str(source), str(native)]) == main(["convert", str(source), str(same), "--to", "sage"]) == 0
    out = capsys.readouterr().out
    assert "1 dialogue in sage's format" in out and "left out: 1" in out
    assert native.read_bytes() == same.read_bytes()
    (record,) = records_of(native)
    planning = record["history"][2]["planning"]
    assert planning["content"] == "heard: suggestion" and planning["analyse"] == ours["turns"][2]["thought"]
    assert TRAIN[0].persona.name in record["player"] and TRAIN[0].facts[3].text in record["scene"]
    assert main(["convert", str(native), str(back)]) == 0
    (again,) = records_of(back)
    for name in ("scenario_id", "family", "hidden_intention", "emotion", "outcome"):
        assert again[name] == ours[name], name
    for turn, other in zip(again["turns"], ours["turns"], strict=True):
        assert (turn["text"], turn.get("emotion")) == (other["text"], other.get("emotion"))
    assert Dialogue.from_dict(again, scenario=TRAIN[0]).difficulty == VANILLA


def test_dialogues_on_profiles_need_the_profiles(tmp_path, capsys):
    write_records(tmp_path / "profiles.jsonl", [profile_of(replace(TRAIN[0], scenario_id="0-1-2"))])
    native = write(tmp_path / "native.jsonl", transcript(id="0-1-2"))
    assert main(["convert", str(native), str(tmp_path / "ours.jsonl")]) == 0
    assert records_of(tmp_path / "ours.jsonl")[0]["scenario_id"] == "sage/0-1-2"
    arguments = ["convert", str(tmp_path / "ours.jsonl"), str(tmp_path / "sage.jsonl")]
    assert main(arguments) == 2 and "--profiles" in capsys.readouterr().err
    assert main([*arguments, "--profiles", str(tmp_path / "profiles.jsonl")]) == 0
    assert TRAIN[0].persona.name in records_of(tmp_path / "sage.jsonl")[0]["player"]


def test_broken_files_and_existing_targets_are_refused_and_nothing_is_overwritten(ours, tmp_path, capsys):
    target = tmp_path / "out.jsonl"
    without_seed = {name: value for name, value in ours.items() if name != "seed"}
    for record, name in [(without_seed, "seed"), ({"id": 1}, "history"), ([], "history"), (transcript(), "format"), ("{", "line 2")]:
        source = write(tmp_path / "d.jsonl", ours, record)
        assert main(["convert", str(source), str(target)]) == 2
        error = capsys.readouterr().err
        assert "line 2" in error and name in error and not target.exists(), error
    target.write_text("mine")
    source = write(tmp_path / "d.jsonl", ours)
    assert main(["convert", str(source), str(target)]) == 2 and target.read_text() == "mine"
    source.write_text(source.read_text() + "{")  # a run that goes on
    assert main(["convert", str(source), str(target), "--force"]) == 0 and "breaks off within line 2" in capsys.readouterr().err
    assert len(records_of(target)) == 1
    for name in ("empty", "gone"):
        source = write(tmp_path / "empty.jsonl") if name == "empty" else tmp_path / "gone.jsonl"
        assert main(["convert", str(source), str(tmp_path / "new.jsonl")]) == 2


# The text regressor of the preset


def some_wording() -> Wording:
    return Wording(weights=np.random.default_rng(0).normal(size=Wording.NUM_BUCKETS), offset=0.25)


def test_a_text_is_its_characters_and_pairs_of_them():
    assert list(Wording.pieces("a bA")) == ["a", "b", "a", "ab", "ba"]
    twice, once = math.log(3), math.log(2)
    size = math.sqrt(twice**2 + 3 * once**2)
    assert Wording.shares("aba") == pytest.approx(
        {Wording.bucket_of("a"): twice / size} | {Wording.bucket_of(p): once / size for p in ("b", "ab", "ba")}
    )
    assert sum(share**2 for share in Wording.shares("你真的很勇敢。" * 9).values()) == pytest.approx(1.0)
    assert Wording.shares("你\u200b真 好\n") == Wording.shares("你真好") and Wording.shares("") == {} and some_wording().adds("") == -0.25


def test_the_strongest_pieces_add_up_to_the_term():
    wording, reply = some_wording(), "你真的很勇敢，我佩服你。"
    named = wording.strongest(reply, Wording.NUM_BUCKETS)
    assert sum(named.values()) - 0.25 == pytest.approx(wording.adds(reply))
    strongest = max(named, key=lambda piece: abs(named[piece]))
    assert wording.strongest(reply, 1) == {strongest: named[strongest]}


def test_stored_weights_come_back_to_half_a_step():
    wording = some_wording()
    stored = wording.to_dict()
    again = Wording.from_dict(stored)
    assert (
        stored["weights"].isascii()
        and np.abs(again.weights - wording.weights).max() <= Wording.STEP / 2 + 1e-12
        and again.to_dict() == stored
    )
    assert SageNumbers.calibrated().wording.weights.shape == (Wording.NUM_BUCKETS,)


def test_the_persona_types_and_wishes_have_native_names():
    profiles = [profile_of(scenario) for scenario in TRAIN]
    assert {intention_of(profile["task"]) for profile in profiles} == set(HiddenIntention)
    assert len({profile["main_cha"] for profile in profiles}) == len(PersonaType)
