"""Answers on disk: the first one counts, for every process, and a damaged one counts as none."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from simulator.llm.client import Answers, answers_folder, key_of

KEY = key_of({"model": "m"})


def keep_many(folder: Path, name: str, keys: list[str]) -> list[str]:
    answers = Answers(folder)
    return [answers.keep(key, f"{name}: {key}" * 200) for key in keys]


def test_an_answer_is_found_again_whatever_it_holds(tmp_path):
    answers = Answers(tmp_path / "new" / "folder")
    assert answers.find(KEY) is None
    text = 'line\nbreak "quoted" 你好 \ud800'
    assert answers.keep(KEY, text) == text
    assert Answers(tmp_path / "new" / "folder").find(KEY) == text


def test_the_first_answer_counts(tmp_path):
    assert Answers(tmp_path).keep(KEY, "first") == "first"
    assert Answers(tmp_path).keep(KEY, "second") == "first"
    assert Answers(tmp_path).find(KEY) == "first"


def test_processes_that_write_at_once_agree_on_every_answer(tmp_path):
    keys = [key_of({"i": i}) for i in range(40)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        kept = pool.starmap(keep_many, [(tmp_path, name, keys) for name in "abc"])
    assert kept[0] == kept[1] == kept[2] == [Answers(tmp_path).find(key) for key in keys]
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("damage", ["", '{"answer": "half', "[]", '{"answer": 3}', "\0\0\0"])
def test_a_damaged_file_is_no_answer_and_is_replaced(tmp_path, damage):
    answers = Answers(tmp_path)
    answers.keep(KEY, "whole")
    next(tmp_path.rglob("*.json")).write_text(damage)
    assert answers.find(KEY) is None
    assert answers.keep(KEY, "again") == "again" == answers.find(KEY)


def test_a_file_system_without_links_will_do(tmp_path, monkeypatch):
    def no_links(*paths: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr("os.link", no_links)
    assert Answers(tmp_path).keep(KEY, "kept") == "kept" == Answers(tmp_path).find(KEY)


def test_what_is_forgotten_is_gone_and_off_keeps_nothing(tmp_path):
    answers = Answers(tmp_path)
    answers.keep(KEY, "a")
    answers.forget(KEY)
    answers.forget(KEY)
    assert answers.find(KEY) is None
    off = Answers(answers_folder("off"))
    assert off.keep(KEY, "a") == "a" and off.find(KEY) is None


def test_the_folder_is_the_users_cache_unless_one_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert answers_folder("default") == tmp_path / "attune" / "answers"
    assert answers_folder(str(tmp_path / "mine")) == tmp_path / "mine"


def test_everything_in_a_question_makes_another_key():
    question = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.0, "seed": 1, "response_format": {"a": 1}}
    changed = [{**question, name: "other"} for name in question]
    assert len({key_of(other) for other in (question, *changed)}) == 1 + len(question)
    assert key_of(dict(reversed(question.items()))) == key_of(question)
