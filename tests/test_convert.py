"""Between our transcripts and SAGE's: nothing is lost that both hold, nothing at all unless it is wished."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.__main__ import main
from simulator.dialogue import Dialogue, Outcome
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.convert import CHARACTERS, TASKS, difference, from_sage, merged, to_sage
from simulator.sage.formats import read_profiles, read_transcripts, transcript_of, write_profiles
from simulator.scenario import VANILLA, Difficulty, HiddenIntention, PersonaType, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

PUBLISHED = sorted((Path(__file__).resolve().parents[2] / "shared" / "sage" / "dataset").glob("*/*.jsonl.gz"))


def ours(*, agent: str = "L2", d: float = 0.4, index: int = 0, **facts: Any) -> dict[str, Any]:
    scenario = load_bank().scenarios(Split.TRAIN)[index]
    dialogue = play(AGENTS[agent], scenario, Difficulty.along(d), seed=7, user=RuleUser(RuleUserConfig()))
    return {"step": 3, "uid": "step3-group1", "strictness": d, "terms": {"emotion": 0.5}, **facts, **dialogue.to_dict()}


def theirs(*, emotion: int = 45, **fields: Any) -> dict[str, Any]:
    """A made-up record as SAGE writes it."""
    planning = {"activity": "warms a little", "TargetCompletion": "in part", "content": "asks what happened", "analyse": "still alone"}
    history = [
        {"role": "user", "content": "我很难过。", "emotion-point": 40},
        {"role": "assistant", "content": "发生了什么？"},
        {
            "role": "user",
            "content": "没什么。",
            "thinking": "1. short\nOrigin:\n没什么。",
            "emotion-point": emotion,
            "planning": {**planning, "change": emotion - 40},
        },
        {"role": "assistant", "content": "我在听。"},
    ]
    record = {"id": "0-1-2", "emo_point": emotion, "emo_state": "Emotion-B", "target": "eq", "player": "* 姓名：小云"}
    record |= {"scene": "## 背景", "character": "被动型", "topic": "工作", "task": TASKS[HiddenIntention.LISTENED], "history": history}
    return {**record, **fields}


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def convert(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["convert", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["convert", *map(str, arguments)]) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.count("\n") == 1
    return message.removeprefix("error: ").strip()


@pytest.mark.parametrize("bare", [False, True])
def test_what_both_formats_hold_survives_both_ways(bare: bool):
    record = ours()
    back = from_sage(to_sage(record, bare=bare), bare=bare)
    for name in ("scenario_id", "family", "hidden_intention", "emotion", "outcome", "turns"):
        assert back[name] == record[name], name
    native = theirs()
    again = to_sage(from_sage(native, bare=bare), bare=bare)
    for name in ("id", "emo_point", "emo_state", "target", "character", "task"):
        assert again[name] == native[name], name
    assert [message["content"] for message in again["history"]] == [message["content"] for message in native["history"]]
    assert again["history"][2]["planning"]["analyse"] == "still alone" and again["history"][2]["planning"]["change"] == 5


def test_nothing_is_lost_unless_it_is_wished():
    assert from_sage(to_sage(ours())) == ours()
    assert list(from_sage(to_sage(ours()))) == list(ours())
    assert to_sage(from_sage(theirs())) == theirs()
    assert list(to_sage(from_sage(theirs()))) == list(theirs())


def test_a_bare_record_has_the_formats_own_fields_alone():
    assert set(to_sage(ours(), bare=True)) == set(theirs())
    assert list(from_sage(theirs(), bare=True)) == list(ours())[4:]


def test_our_record_becomes_sages_by_hand():
    record = ours()
    native = to_sage(record, bare=True)
    user = record["turns"][2]
    assert native["id"] == record["scenario_id"] and native["emo_point"] == record["emotion"]
    assert native["history"][0] == {"role": "user", "content": record["turns"][0]["text"], "emotion-point": 40}
    assert native["history"][1] == {"role": "assistant", "content": record["turns"][1]["text"]}
    assert list(native["history"][2]) == ["role", "content", "thinking", "emotion-point", "planning"]
    planning = {
        "activity": "",
        "TargetCompletion": "",
        "content": "heard: suggestion",
        "analyse": user["thought"],
        "change": user["change"],
    }
    assert native["history"][2]["planning"] == planning
    assert load_bank().scenario(record["scenario_id"]).facts[3].text in native["scene"]


def test_sages_record_becomes_ours_by_hand():
    record = from_sage(theirs(), bare=True)
    assert (record["scenario_id"], record["family"], record["outcome"]) == ("sage/0-1-2", "listened/passive", "max_turns")
    assert (record["difficulty"], record["seed"], record["error"]) == (VANILLA.to_dict(), 0, "")
    assert record["turns"][2] == {"speaker": "user", "text": "没什么。", "emotion": 45, "change": 5, "thought": "still alone"}


@pytest.mark.parametrize(
    ("emotion", "state", "outcome"),
    [
        (100, "S", "delighted"),
        (99, "A", "max_turns"),
        (70, "A", "max_turns"),
        (40, "B", "max_turns"),
        (10, "C", "max_turns"),
        (9, "F", "left"),
    ],
)
def test_the_final_emotion_names_band_and_outcome(emotion: int, state: str, outcome: str):
    record = from_sage(theirs(emotion=emotion), bare=True)
    assert record["outcome"] == outcome
    assert to_sage(record, bare=True)["emo_state"] == f"Emotion-{state}"


def test_every_family_has_labels_of_its_own():
    assert set(TASKS) == set(HiddenIntention) and len(set(TASKS.values())) == 8
    assert set(CHARACTERS) == set(PersonaType) and len(set(CHARACTERS.values())) == 3


def test_an_outcome_that_sage_does_not_know_is_kept_apart():
    record = from_sage(theirs(), bare=True) | {"outcome": "farewell"}
    assert to_sage(record)["attune"]["outcome"] == "farewell"
    assert from_sage(to_sage(record))["outcome"] == "farewell"
    assert from_sage(to_sage(record, bare=True))["outcome"] == "max_turns"


def test_a_difference_is_what_merging_adds():
    whole = {"a": 1, "b": {"c": 2, "d": [1, {"e": 3}]}, "f": [1]}
    part = {"a": 1, "b": {"c": 2, "d": [1, {"e": 4}]}, "f": [1, 2]}
    assert difference(whole, part) == {"b": {"d": {"1": {"e": 3}}}, "f": [1]}
    assert merged(part, difference(whole, part)) == whole


def test_a_file_goes_there_and_back_byte_for_byte(tmp_path, capsys):
    source = write(tmp_path / "dialogues.jsonl", ours(), ours(agent="L6", index=5), ours(agent="praise", d=0.9, index=8))
    said = convert(capsys, source, tmp_path / "native.jsonl.gz")
    assert "3 dialogues in sage's format" in said and "kept under 'attune', since it has no place for them: difficulty (3), " in said
    convert(capsys, tmp_path / "native.jsonl.gz", tmp_path / "back.jsonl")
    assert (tmp_path / "back.jsonl").read_bytes() == source.read_bytes()


def test_sages_file_goes_there_and_back_byte_for_byte(tmp_path, capsys):
    source = write(tmp_path / "result.jsonl", theirs(), theirs(emotion=100, emo_state="Emotion-S"))
    convert(capsys, source, tmp_path / "ours.jsonl")
    convert(capsys, tmp_path / "ours.jsonl", tmp_path / "back.jsonl", "--to", "sage")
    assert (tmp_path / "back.jsonl").read_bytes() == source.read_bytes()


@pytest.mark.skipif(not PUBLISHED, reason="SAGE's published transcripts are not beside this checkout")
def test_the_published_transcripts_go_there_and_back_byte_for_byte(tmp_path, capsys):
    for source in PUBLISHED[:2]:
        convert(capsys, source, tmp_path / "ours.jsonl.gz", "--force")
        convert(capsys, tmp_path / "ours.jsonl.gz", tmp_path / "back.jsonl.gz", "--force")
        assert gzip.decompress((tmp_path / "back.jsonl.gz").read_bytes()) == gzip.decompress(source.read_bytes())


def test_converted_dialogues_are_read_as_ours(tmp_path, capsys):
    source = write(tmp_path / "dialogues.jsonl", ours())
    convert(capsys, source, tmp_path / "native.jsonl", "--bare")
    said = convert(capsys, tmp_path / "native.jsonl", tmp_path / "back.jsonl")
    record = json.loads((tmp_path / "back.jsonl").read_text())
    dialogue = Dialogue.from_dict(record, scenario=load_bank().scenario(record["scenario_id"]))
    assert dialogue.outcome is Outcome(ours()["outcome"]) and "has no place" not in said


def test_dialogues_of_the_built_in_world_are_read_as_native_transcripts(tmp_path, capsys):
    convert(capsys, write(tmp_path / "dialogues.jsonl", ours()), tmp_path / "native.jsonl")
    (read,) = read_transcripts(tmp_path / "native.jsonl")
    persona = load_bank().scenario(ours()["scenario_id"]).persona
    assert (read.scenario.persona.name, read.scenario.persona.age) == (persona.name, persona.age)
    assert [turn.text for turn in read.turns] == [turn["text"] for turn in ours()["turns"]]


def test_dialogues_on_profiles_become_sages_own_where_the_profiles_are_given(tmp_path, capsys):
    """What was played on a profile is read as a native transcript, whole; without the file it lacks who the user is, which is said."""
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    write_profiles(tmp_path / "profiles.jsonl", [replace(scenario, scenario_id="0-1-2")])
    (profile,) = read_profiles(tmp_path / "profiles.jsonl")
    (played,) = read_transcripts(write(tmp_path / "native.jsonl", transcript_of(replace(talk(), scenario=profile))))
    source = write(tmp_path / "dialogues.jsonl", {"step": 0, **played.to_dict()})
    assert "without player and scene: 1, whose scenarios are not built in" in convert(capsys, source, tmp_path / "bare.jsonl")
    assert "without player" not in convert(capsys, source, tmp_path / "sage.jsonl", "--profiles", tmp_path / "profiles.jsonl")
    (read,) = read_transcripts(tmp_path / "sage.jsonl")
    # SAGE's records name what is hidden by one of eight labels.
    label = TASKS[profile.family.intention]
    assert read.scenario == replace(profile, hidden_intention=label, opening=read.scenario.opening, split=Split.HELDOUT)
    assert [(turn.text, turn.emotion, turn.change) for turn in read.turns] == [
        (turn.text, turn.emotion, turn.change) for turn in played.turns
    ]
    convert(capsys, tmp_path / "sage.jsonl", tmp_path / "back.jsonl", "--profiles", tmp_path / "profiles.jsonl")
    assert (tmp_path / "back.jsonl").read_bytes() == source.read_bytes()
    # And the other way: what is SAGE's is ours with the id under which the profiles are read.
    convert(capsys, source, tmp_path / "bare.jsonl", "--profiles", tmp_path / "profiles.jsonl", "--bare", "--force")
    convert(capsys, tmp_path / "bare.jsonl", tmp_path / "ours.jsonl")
    assert json.loads((tmp_path / "ours.jsonl").read_text())["scenario_id"] == profile.scenario_id


def talk() -> Dialogue:
    """Two replies, at least."""
    return play(AGENTS["L2"], load_bank().scenarios(Split.TRAIN)[0], Difficulty.along(0.4), seed=7, user=RuleUser(RuleUserConfig()))


def test_what_is_lost_is_named(tmp_path, capsys):
    source = write(tmp_path / "dialogues.jsonl", ours())
    said = convert(capsys, source, tmp_path / "native.jsonl", "--bare")
    assert "lost, since it has no place for them: difficulty (1), seed (1), step (1), strictness (1), terms (1), uid (1)" in said


def test_an_error_is_no_dialogue_of_sages(tmp_path, capsys):
    source = write(tmp_path / "dialogues.jsonl", ours(), ours() | {"outcome": "error"})
    assert "left out: 1 that ended in an error" in convert(capsys, source, tmp_path / "native.jsonl")
    assert len((tmp_path / "native.jsonl").read_text().splitlines()) == 1


def test_the_same_records_are_packed_into_the_same_bytes(tmp_path, capsys):
    source = write(tmp_path / "dialogues.jsonl", ours())
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        convert(capsys, source, tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def without(record: dict[str, Any], *path: Any) -> dict[str, Any]:
    """The record less one field."""
    copy = json.loads(json.dumps(record))
    place = copy
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return copy


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (without(theirs(), "task"), "line 2: record must hold task, got id, "),
        (without(theirs(), "history", 2, "planning", "change"), "line 2: record must hold history[2].planning.change"),
        (without(theirs(), "history", 0, "emotion-point"), "line 2: record must hold history[0].emotion-point"),
        (theirs(task="something else"), "line 2: task must be one of SAGE's 8 ("),
        (theirs(history=[{"role": "system", "content": ""}]), "line 2: history[0].role must be user or assistant, got 'system'"),
        (ours(), "line 2: record must be in sage's format to be converted to attune's, got one in attune's"),
        (
            theirs(history=[{"role": "user", "content": "Hm.", "emotion-point": "x"}]),
            "line 2: turn 1: emotion must be a whole number, got 'x'",
        ),
        (theirs(history=[{"role": "assistant", "content": None}]), "line 2: turn 1: text must be a string, got None"),
        ({"id": 1}, "line 2: record must hold either SAGE's 'history' or our 'turns'"),
        ([], "line 2: record must hold either"),
    ],
)
def test_a_record_that_lacks_something_is_named_by_its_line(tmp_path, capsys, record, complaint):
    source = write(tmp_path / "result.jsonl", theirs(), record)
    assert complaint in refused(capsys, source, tmp_path / "ours.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.jsonl"]


def test_a_field_of_ours_that_cannot_be_is_named(tmp_path, capsys):
    for number, name, value in ((2, "emotion", "x"), (2, "change", True), (1, "text", None)):
        record = json.loads(json.dumps(ours()))
        record["turns"][number][name] = value
        source = write(tmp_path / "dialogues.jsonl", record)
        assert f"line 1: turn {number + 1}: {name} must be a" in refused(capsys, source, tmp_path / "native.jsonl")


def test_a_field_that_ours_lacks_is_named(tmp_path, capsys):
    for path, name in ((("seed",), "seed"), (("turns", 2, "change"), "turns[2].change"), (("difficulty", "reserve"), "difficulty.reserve")):
        source = write(tmp_path / "dialogues.jsonl", without(ours(), *path))
        assert f"line 1: record must hold {name}, got " in refused(capsys, source, tmp_path / "native.jsonl")


@pytest.mark.parametrize("line", ["", "{", '{"id": "caf\\udce9"', "\u00ff"])
def test_a_broken_line_is_named(tmp_path, capsys, line):
    source = write(tmp_path / "result.jsonl", theirs())
    source.write_bytes(source.read_bytes() + line.encode("latin-1", "ignore") + b"\n")
    assert f"{source} line 2 must be a JSON object" in refused(capsys, source, tmp_path / "ours.jsonl")


def test_a_gzip_file_that_breaks_off_is_named(tmp_path, capsys):
    whole = gzip.compress(write(tmp_path / "plain", *[theirs()] * 50).read_bytes())
    (tmp_path / "result.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert "must be a whole gzip file" in refused(capsys, tmp_path / "result.jsonl.gz", tmp_path / "ours.jsonl")


def test_nothing_is_written_over_unless_it_is_wished(tmp_path, capsys):
    source, target = write(tmp_path / "dialogues.jsonl", ours()), tmp_path / "native.jsonl"
    target.write_text("mine")
    assert "TARGET must be new" in refused(capsys, source, target)
    assert target.read_text() == "mine"
    convert(capsys, source, target, "--force")
    assert json.loads(target.read_text())["id"] == ours()["scenario_id"]


def test_a_failure_leaves_what_was_there(tmp_path, capsys):
    source, target = write(tmp_path / "dialogues.jsonl", ours(), {}), tmp_path / "native.jsonl"
    target.write_text("mine")
    refused(capsys, source, target, "--force")
    assert target.read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


def test_what_is_not_there_or_empty_is_refused(tmp_path, capsys):
    assert "SOURCE must be a file of transcripts" in refused(capsys, tmp_path / "none", tmp_path / "out")
    assert "TARGET must lie in a folder that is there" in refused(capsys, write(tmp_path / "a", ours()), tmp_path / "none" / "out")
    assert "must hold at least one record" in refused(capsys, write(tmp_path / "empty"), tmp_path / "out")
