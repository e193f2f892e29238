"""The labelled replies: parts that share nothing, and what the rule listener makes of those on which its thresholds were chosen."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.rule_user import RuleUserConfig
from studies.user_hearing.hearing import figures, play_all

REPLIES = Path(__file__).parents[1] / "simulator" / "replies"
TESTS = ("test", "test_2", "test_3", "test_4", "test_5", "test_zh")
TRAINING = ("train", "train_2", "train_3", "train_zh", "dev", "dev_2", "dev_zh", "hard", "redteam", "small_model")


def part(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (REPLIES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_test_parts_share_no_voice_and_no_reply_with_what_listeners_learn_from_and_the_older_no_user():
    learned = [record for name in TRAINING for record in part(name)]
    for name in TESTS:
        kept_apart = [lambda record: {record["voice"]}, lambda record: {r["text"] for r in record["replies"] if len(r["text"]) > 40}]
        if name != "test_5":  # voices apart, to users that are in training
            kept_apart.append(lambda record: {record["scenario_id"]})
        for what in kept_apart:
            shared = set().union(*map(what, part(name))) & set().union(*map(what, learned))
            assert not shared, (name, sorted(shared)[:3])


@pytest.mark.parametrize(("strictness", "r", "mocking"), [(0.1, 0.58, 0.3), (0.35, 0.65, 0.05), (0.75, 0.52, 0.05)])
def test_the_rule_listener_follows_the_marks_of_the_development_part(strictness: float, r: float, mocking: float):
    found = figures(asyncio.run(play_all(part("dev"), RuleUserConfig(register="open"), strictness)))
    assert found["r"] > r and found["mocking pays"] < mocking and found["senseless pays"] <= 0.05
