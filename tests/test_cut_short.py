"""Dialogues whose context is full: when a run warns of them, whose words filled them, and where their share is reported."""

from __future__ import annotations

import math

import pytest

from analysis.transcripts import CutShort, ending_of
from curriculum.collapse.history import CollapseConfig
from curriculum.collapse.monitor import CollapseMonitor
from experiments.agents.scores import report

LONG_USER = ("truncated", [("user", "x" * 60), ("agent", "y" * 10), ("user", "x" * 30)])
LONG_AGENT = ("truncated", [("user", "x" * 10), ("agent", "y" * 45), ("agent", "y" * 45)])
WHOLE = ("farewell", [("user", "x"), ("agent", "y")])


def test_the_share_and_whose_words_they_are_by_hand():
    found = CutShort.of([LONG_USER, LONG_AGENT, WHOLE, WHOLE])
    # 100 of 200 characters are the user's, in two dialogues of one and of two replies.
    assert found == CutShort(share=0.5, by_user=0.5, replies=1.5)
    nothing = CutShort.of([])
    assert math.isnan(nothing.share) and not nothing.is_much


@pytest.mark.parametrize(("num_whole", "is_much"), [(8, True), (9, True), (10, False)])
def test_it_is_much_from_a_tenth_on(num_whole, is_much):
    assert CutShort.of([LONG_USER] + [WHOLE] * num_whole).is_much is is_much


def test_a_transcript_says_that_the_context_was_full_and_of_whose_words():
    turns = [{"speaker": speaker, "text": text} for speaker, text in LONG_USER[1]]
    said = ending_of({"outcome": "truncated", "turns": turns})
    assert said == "the context was full (rollout.max_context): 90% of what was said are the user's words"


@pytest.mark.parametrize(("share", "rings"), [(1.0, True), (0.1, True), (0.06, False)])
def test_the_alarm_rings_also_where_it_was_so_from_the_first_step(share, rings):
    config = CollapseConfig()
    monitor = CollapseMonitor(config)
    rung = [alarm for step in range(1, 3 * config.patience) for alarm in monitor.observe(step, {"truncated": share})]
    assert [alarm.name for alarm in rung] == ["truncated"] * rings
    if rings:
        assert rung[0].step == config.patience and "no further reply fits their context" in rung[0].message


def test_an_evaluation_warns_in_its_own_options(tmp_path):
    errors = {"planned": 4, "not_played": 0, "excluded_dialogues": 0, "reasons": {}}
    errors |= {"cut_short": 4, "cut_short_by_user": 0.9, "cut_short_replies": 1.0}
    agent = {"name": "a", "max_context": 100, "max_new_tokens": 6}
    found = {"agent": agent, "profiles": "p.jsonl", "n_dialogues": 0, "errors": errors, "capabilities": {}}
    said = report(found, tmp_path)
    (warning,) = [line for line in said.splitlines() if line.startswith("WARNING")]
    assert warning.startswith("WARNING     100% of the dialogues were cut short after 1.0 replies on average")
    assert "fits into --max-context=100: 90%" in warning and warning.endswith("; raise --max-context")
