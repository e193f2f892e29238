"""The search for replies that please and make no sense."""

from __future__ import annotations

import json
from pathlib import Path

from simulator.__main__ import main
from simulator.redteam import Sense, sentences_of


def test_a_sentence_is_broken_only_where_its_words_never_stood_together():
    sense = Sense(["The old dog slept beside the warm stove."])
    assert not sense.is_broken(tuple(sentences_of("The warm stove and the old dog slept.")))
    assert not sense.is_broken(tuple(sentences_of("The dog painted.")))
    assert sense.is_broken(tuple(sentences_of("The dog painted tired ladders.")))


def test_the_same_seed_finds_the_same_broken_replies(tmp_path: Path):
    found = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for out in found:
        assert main(["redteam", "--users", "1", "--generations", "2", "--seed", "3", "--out", str(out)]) == 0
    assert found[0].read_text() == found[1].read_text()
    assert json.loads(found[0].read_text())["voice"] == "redteam"
