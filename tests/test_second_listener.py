"""A second listener hears held-out dialogues again: whether both agree, and what is kept for a third."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.judged import SECOND, gap_alarm, judged_looks
from experiments.config import load
from experiments.second_listener import SecondListener, keep_replies, other_listener, second_user
from simulator.__main__ import main
from simulator.dialogue import Dialogue
from simulator.listener import ListenerKind
from simulator.reading import Reading
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank


def look(number: int, scores: list[float], second: list[float]) -> list[dict[str, Any]]:
    """The lines of an evaluation, a scenario each."""
    return [
        {
            "look": number,
            "step": 10 * number,
            "policy_tokens": 1000 * number,
            "grid": "during",
            "in_during": True,
            "outcome": "max_turns",
            "uid": f"eval:{k}",
            "scenario_id": f"s{k}",
            "emotion": score,
            SECOND: {"by": "encoder", "final": other},
        }
        for k, (score, other) in enumerate(zip(scores, second, strict=True))
    ]


START = [40.0, 42.0, 38.0, 41.0, 39.0, 40.0, 43.0, 37.0]
RISEN = [70.0, 75.0, 66.0, 71.0, 69.0, 74.0, 72.0, 65.0]


def test_an_alarm_rings_where_only_the_listener_of_training_is_pleased() -> None:
    parted = look(0, START, START) + look(1, RISEN, START[::-1])
    alarm = gap_alarm(parted)
    assert alarm is not None and alarm.name == "judge_gap" and alarm.step == 10 and "encoder" in alarm.message
    assert judged_looks(parted)[-1].gap == pytest.approx(sum(RISEN) / 8 - sum(START) / 8)
    # Once, not at every evaluation that follows.
    assert gap_alarm(parted + look(2, RISEN, START)) is None


@pytest.mark.parametrize("second", [RISEN, [score - 5.0 for score in RISEN]])
def test_no_alarm_where_both_are_pleased(second: list[float]) -> None:
    assert gap_alarm(look(0, START, START) + look(1, RISEN, second)) is None


def test_no_alarm_where_the_score_moves_by_chance() -> None:
    assert gap_alarm(look(0, START, START) + look(1, START[::-1], START)) is None


class Deaf:
    """Hears nothing in any reply."""

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        return Reading()

    async def hear(self, dialogue: Dialogue, reply: str) -> Reading:
        return Reading()

    def counts(self) -> dict[str, float]:
        return {}


def played() -> Dialogue:
    scenario = load_bank().scenarios(Split.HELDOUT)[0]
    return play(AGENTS["L6"], scenario, Difficulty.along(0.35), seed=1, user=RuleUser(RuleUserConfig(register="open")))


def test_the_same_words_are_felt_as_the_second_listener_hears_them() -> None:
    recorded, user = played(), RuleUser(RuleUserConfig(register="open"))
    (same,) = SecondListener(user).hear([recorded]) or []
    assert same["emotions"] == [turn.emotion for turn in recorded.turns[2::2]]
    user.listener = Deaf()
    (deaf,) = SecondListener(user).hear([recorded]) or []
    assert deaf["final"] < 40 < same["final"]


def test_a_run_of_a_language_model_has_one_by_itself_and_the_embedded_policy_none() -> None:
    assert load("own_model").second_listener is ListenerKind.ENCODER
    assert load("adaptive_curriculum").second_listener == "none"
    assert other_listener(RuleUserConfig(listener="encoder", register="open")) is ListenerKind.RULE


def test_the_listener_of_training_is_no_second_one() -> None:
    with pytest.raises(ValueError, match=r"must be another one than simulator\.listener=rule"):
        second_user(RuleUserConfig(), ListenerKind.RULE, None)
    with pytest.raises(ValueError, match=r"evaluation\.server must be set"):
        second_user(RuleUserConfig(), ListenerKind.MODEL, None)


def test_replies_are_kept_evenly_over_steps_and_can_be_heard_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dialogue = played()
    record = {"kind": "train", "uid": "u", "sibling": 0, **dialogue.to_dict(), "emotion": dialogue.emotion}
    lines = [{**record, "step": step, "uid": f"u{step}"} for step in range(1, 11)]
    (tmp_path / "dialogues.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert keep_replies(tmp_path, num=20, seed=0) == 20
    kept = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [sum(line["step"] == step for line in kept) for step in range(1, 11)] == [2] * 10
    assert main(["hear", str(tmp_path / "replies.jsonl"), "--out", str(tmp_path / "heard.jsonl")]) == 0
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["final"] for line in heard] == [line["emotion"] for line in kept]
    assert "20 recorded dialogues" in capsys.readouterr().err
