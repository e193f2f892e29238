"""The measure of the reader on labelled replies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.lexicon import lexicon
from simulator.text import language_of
from studies.user_tests.reading_score import NAMES, Labelled, Score, macro_f1, read_labelled, scores, table_of_scores

DATA = Path(__file__).resolve().parents[3] / "tests" / "data"
STRATEGIES = [pattern.strategy for pattern in lexicon().patterns]


def name_of(label: str) -> str:
    return NAMES.get(label, label)


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_precision_recall_and_f1_are_counted_over_replies():
    score = Score(hits=3, labelled=4, heard=6)
    assert (score.precision, score.recall, score.f1) == (0.5, 0.75, 0.6)
    assert Score(hits=0, labelled=0, heard=0).f1 == Score(hits=0, labelled=2, heard=0).precision == 0.0


def test_what_is_heard_is_held_against_the_labels():
    replies = [
        Labelled(text="What happened then?", labels=frozenset({"question"})),
        Labelled(text="Did he call you?", labels=frozenset()),
        Labelled(text="None of this was your fault.", labels=frozenset({"siding", "question"})),
    ]
    found = scores(replies)
    assert len(found) == 16
    assert found["question"] == Score(hits=1, labelled=2, heard=2)
    assert found["siding"] == Score(hits=1, labelled=1, heard=1)
    assert macro_f1(found) == pytest.approx((0.5 + 1.0) / 16)


def test_labels_may_go_by_their_longer_names(tmp_path):
    path = written(tmp_path / "replies.jsonl", {"id": "a", "text": "Hm.", "labels": ["taking_sides", "reflection_of_feelings", "praise"]})
    assert [reply.labels for reply in read_labelled(path)] == [frozenset({"siding", "reflection", "praise"})]


def test_the_table_has_a_line_for_each_strategy_and_one_for_the_mean():
    header, *rows, last = table_of_scores(scores([Labelled(text="Did he call you?", labels=frozenset({"question"}))])).splitlines()
    assert header.split() == ["strategy", "precision", "recall", "F1", "support"]
    assert ["question", "1.000", "1.000", "1.000", "1"] in [row.split() for row in rows]
    assert last.split() == ["macro", "0.062"]


def test_the_command_prints_the_table(tmp_path, capsys):
    assert main(["reading", str(written(tmp_path / "replies.jsonl", {"text": "Did he call you?", "labels": ["question"]}))]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 18


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"text": "Hm."}',
        '{"text": 1, "labels": []}',
        '{"text": "Hm.", "labels": "praise"}',
        '{"text": "Hm.", "labels": [1]}',
    ],
)
def test_a_line_that_is_no_labelled_reply_is_named(tmp_path, capsys, line):
    path = tmp_path / "replies.jsonl"
    path.write_text('{"text": "Hm.", "labels": []}\n' + line + "\n")
    assert main(["reading", str(path)]) == 2
    assert "line 2 must be a reply with `text` and `labels`" in capsys.readouterr().err


def test_an_unknown_label_and_a_file_that_is_not_there_are_named(tmp_path, capsys):
    assert main(["reading", str(written(tmp_path / "replies.jsonl", {"text": "Hm.", "labels": ["comfort"]}))]) == 2
    assert "line 1" in (message := capsys.readouterr().err) and "got 'comfort'" in message
    assert main(["reading", str(tmp_path / "none.jsonl")]) == 2
    assert "which is not there" in capsys.readouterr().err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_ordinary_replies_that_were_not_worked_on_are_heard(language: str):
    replies = list(read_labelled(DATA / f"replies_{language}.jsonl", half="test"))
    assert len(replies) >= 100
    assert macro_f1(scores(replies)) >= 0.75


def test_the_labelled_replies_are_in_their_language_in_two_halves_and_hold_every_strategy():
    for language, least in (("en", 400), ("zh", 200)):
        records = [json.loads(line) for line in (DATA / f"replies_{language}.jsonl").open(encoding="utf-8")]
        assert len({record["id"] for record in records}) == len({record["text"] for record in records}) == len(records) >= least
        assert {language_of(record["text"]) for record in records} == {language}
        for half in ("dev", "test"):
            chosen = [record for record in records if record["half"] == half]
            assert abs(len(chosen) - len(records) / 2) <= 1
            assert all(sum(ear in map(name_of, record["labels"]) for record in chosen) >= 5 for ear in STRATEGIES)


def test_one_half_is_scored_by_itself(tmp_path, capsys):
    path = written(tmp_path / "replies.jsonl", {"text": "Hm.", "labels": [], "half": "dev"}, {"text": "So?", "labels": [], "half": "test"})
    assert [reply.text for reply in read_labelled(path, half="test")] == ["So?"]
    assert main(["reading", str(written(tmp_path / "one.jsonl", {"text": "Hm.", "labels": []})), "--half", "test"]) == 2
    assert "none of the half test" in capsys.readouterr().err


def test_a_file_without_replies_is_refused(tmp_path, capsys):
    assert main(["reading", str(written(tmp_path / "replies.jsonl"))]) == 2
    assert "must hold labelled replies" in capsys.readouterr().err
