"""Dialogues whose context is full: when they are told, in words, whose words filled them, and where the share stands."""

from __future__ import annotations

import math

import pytest

from analysis.transcripts import CutShort, ending_of
from curriculum.collapse.history import CollapseConfig
from curriculum.collapse.monitor import CollapseMonitor
from experiments.agents.scores import report
from experiments.evaluation import Graded, summarise
from experiments.run_folder import closing_words
from simulator.dialogue import Outcome
from simulator.scenario import HiddenIntention

LONG_USER = ("truncated", [("user", "x" * 60), ("agent", "y" * 10), ("user", "x" * 30)])
LONG_AGENT = ("truncated", [("user", "x" * 10), ("agent", "y" * 45), ("agent", "y" * 45)])
WHOLE = ("farewell", [("user", "x"), ("agent", "y")])
BOUNDS = {"context": "rollout.max_context=512", "reply": "rollout.max_new_tokens=40"}


def test_the_share_and_whose_words_they_are_by_hand():
    found = CutShort.of([LONG_USER, LONG_AGENT, WHOLE, WHOLE])
    # 100 of 200 characters are the user's, in two dialogues of one and of two replies.
    assert found == CutShort(share=0.5, by_user=0.5, replies=1.5)
    nothing = CutShort.of([])
    assert math.isnan(nothing.share) and not nothing.is_much


@pytest.mark.parametrize(("num_whole", "is_much"), [(8, True), (9, True), (10, False)])
def test_it_is_told_from_a_tenth_on(num_whole, is_much):
    assert CutShort.of([LONG_USER] + [WHOLE] * num_whole).is_much is is_much


def test_the_culprit_is_named_with_the_setting_to_raise():
    by_user = CutShort.of([LONG_USER]).words(**BOUNDS)
    assert by_user == (
        "cut short after 1.0 replies on average, as no further one fits into rollout.max_context=512: 90% of what was said are the user's "
        "words; raise rollout.max_context"
    )
    by_agent = CutShort.of([LONG_AGENT]).words(**BOUNDS)
    assert "90% of what was said are the agent's own replies, each up to rollout.max_new_tokens=40; raise rollout.max_context" in by_agent


def test_a_transcript_says_that_the_context_was_full_and_of_whose_words():
    turns = [{"speaker": speaker, "text": text} for speaker, text in LONG_USER[1]]
    said = ending_of({"outcome": "truncated", "turns": turns})
    assert said == "the context was full (rollout.max_context): 90% of what was said are the user's words"


def graded(outcome: Outcome) -> Graded:
    return Graded(scenario_id="a", intention=HiddenIntention.ADVICE, strictness=0.5, emotion=50, outcome=outcome)


def test_a_score_says_how_many_of_its_dialogues_were_cut_short():
    grades = [graded(outcome) for outcome in (Outcome.TRUNCATED, Outcome.LEFT, Outcome.MAX_TURNS, Outcome.TRUNCATED, Outcome.ERROR)]
    assert summarise(grades)["cut_short"] == 0.5
    assert math.isnan(summarise([])["cut_short"])


def closing(before: float, after: float, trained: float) -> str:
    ends = {"score": 40.0, "score_ci95": [39.0, 41.0], "worst_cell": 3.0}
    summary = {"start": {**ends, "cut_short": before}, "heldout": {**ends, "cut_short": after}, "cut_short": trained, "reference": {}}
    summary |= {"collapse": {"alarms": []}, "steps": 1, "policy_tokens": 1, "wall_s": 1.0, "cpu_s": 1.0}
    return closing_words(summary, folder="runs/a", report=None, runs="runs")


def test_the_last_words_of_a_run_say_it_beside_the_score():
    said = closing(1.0, 0.98, 0.97)
    assert "CUT SHORT   100% of the held-out dialogues before, 98% after, 97% in training: their context was full" in said
    assert "CUT SHORT" not in closing(0.0, 0.05, 0.09)


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
