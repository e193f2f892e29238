"""A run goes on among the users that it began with: files of profiles are known by what they hold, wherever they lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import refused

from analysis.runs import CONFIG
from experiments.config import load, load_saved
from experiments.errors import ConfigError
from experiments.preflight import check
from experiments.resume import other_users
from experiments.run_folder import settings_text
from simulator import users
from simulator.sage.formats import write_profiles
from simulator.scenario import Split
from simulator.world import load_bank

SCENARIOS = load_bank().scenarios(Split.TRAIN)


def write(path: Path, begin: int, end: int) -> Path:
    write_profiles(path, SCENARIOS[begin:end])
    return path


@pytest.fixture
def begun(tmp_path, monkeypatch) -> Path:
    """A run of a model as user on two files of profiles, as it stands before its first step."""
    monkeypatch.setattr("experiments.resume.initial_policy", lambda config, folder: "made")
    files = {"profiles": write(tmp_path / "train.jsonl", 0, 4), "heldout_profiles": write(tmp_path / "held.jsonl", 4, 6)}
    words = ["simulator.kind=llm", "simulator.urls=[http://127.0.0.1:9]", "simulator.model=m", f"runs={tmp_path}/runs"]
    config = load("smoke", [*words, *(f"simulator.{name}={path}" for name, path in files.items())])
    folder = tmp_path / "runs" / "smoke" / "a"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(settings_text(config, folder), encoding="utf-8")
    return folder


def resume(capsys, folder: Path, *words: str) -> str:
    return refused(capsys, "smoke", f"runs={folder.parents[1]}", f"resume={folder}", *words, "--dry-run")


def test_other_held_out_people_under_the_same_name_are_refused(begun, tmp_path, capsys):
    write(tmp_path / "held.jsonl", 6, 8)
    message = resume(capsys, begun)
    assert message.startswith("simulator.heldout_profiles must hold the people that the run began with (contents ")
    assert "before and after would be of different users" in message and message.endswith("or start a new run")


def test_edited_training_stories_are_refused(begun, tmp_path, capsys):
    edited = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    edited[0]["scene"] = "x" + edited[0]["scene"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in edited), encoding="utf-8")
    assert resume(capsys, begun).startswith("simulator.profiles must hold the people that the run began with")


def test_fewer_profiles_are_refused_in_words_of_the_file_and_not_of_the_teacher(begun, tmp_path, capsys):
    write(tmp_path / "train.jsonl", 0, 2)
    message = resume(capsys, begun)
    assert message.startswith("simulator.profiles must hold the people that the run began with") and "offsets" not in message


def test_a_file_that_is_gone_is_asked_for_and_one_that_moved_is_taken(begun, tmp_path, capsys):
    (tmp_path / "train.jsonl").rename(tmp_path / "elsewhere.jsonl")
    message = resume(capsys, begun)
    assert message.startswith("simulator.profiles must be there as the run began with it") and "simulator.profiles=FILE" in message
    # Nothing is wrong with the moved file: what is refused then is the server, which does not answer.
    moved = resume(capsys, begun, f"simulator.profiles={tmp_path}/elsewhere.jsonl")
    assert moved.startswith("simulator.urls must name servers that answer")


def test_other_people_are_refused_before_any_work_starts(begun, tmp_path, monkeypatch):
    write(tmp_path / "held.jsonl", 6, 8)
    monkeypatch.setattr("experiments.preflight.check_needs", lambda config: pytest.fail("it looked for what it needs"))
    with pytest.raises(ConfigError, match="heldout_profiles must hold the people"):
        check(load_saved(begun / CONFIG), begun, resuming=True)


def test_a_run_that_did_not_write_down_who_its_people_were_keeps_its_files(begun, tmp_path, capsys):
    lines = (begun / CONFIG).read_text(encoding="utf-8").splitlines()
    (begun / CONFIG).write_text("\n".join(line for line in lines if "profiles_hash" not in line), encoding="utf-8")
    message = resume(capsys, begun, f"simulator.profiles={tmp_path}/elsewhere.jsonl")
    assert message.startswith("simulator.profiles must stay ") and message.endswith("name the first file")
    assert resume(capsys, begun).startswith("simulator.urls must name servers that answer")


@pytest.mark.parametrize(("kind", "name", "words"), [("rule", "numbers_hash", "simulator.preset=sage"), ("llm", "prompts_hash", "prompts")])
def test_edited_numbers_of_the_preset_and_edited_prompts_are_another_world(kind, name, words):
    settings = {"rule": ["simulator.preset=sage"], "llm": ["simulator.urls=[http://127.0.0.1:9]", "simulator.model=m"]}
    config = load("smoke", [f"simulator.kind={kind}", *settings[kind]])
    assert other_users({"provenance": users.contents_of(config.simulator)}, config) == ""
    message = other_users({"provenance": {name: "0123"}}, config)
    assert words in message and "(0123)" in message and "another world" in message


def test_the_built_in_users_are_told_by_the_world_alone():
    assert users.contents_of(load("smoke").simulator) == {}
