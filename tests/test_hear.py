"""Listeners: what was understood is recorded and can be replayed, by rule or by a model; replies that somebody wrote are played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Reply, answer, serving, text

from experiments.config import ConfigError, load
from simulator.__main__ import main
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import appraise
from simulator.explain import replay
from simulator.listener import Register
from simulator.llm.client import SimulatorError
from simulator.reading import Reading
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, Split
from simulator.settings import message
from simulator.text import is_scrambled
from simulator.user import check_servers
from simulator.version import world_of
from simulator.world import load_bank

SCENARIO = load_bank().scenarios(Split.TRAIN)[0]
HEARD = {"sense": "all", "tone": "plain", "strategies": ["suggestion"], "taken_up": [1], "comes_back": False}
BY_MODEL = {"listener": "model", "server": {"model": "m"}}
REPLY = "Rebuild it with her, plank by plank."


def listened_by(server: FakeEndpoint, **changes: Any) -> RuleUser:
    endpoint = {"urls": [server.url], "model": "m", "cache": "off", "retries": 1, "first_backoff_s": 0.01, "max_backoff_s": 0.02, **changes}
    return RuleUser(RuleUserConfig(listener="model", server=endpoint))


def test_a_model_hears_and_the_rule_feels():
    pytest.importorskip("openai")
    with serving(FakeEndpoint(always=answer(**HEARD))) as server:
        user = listened_by(server)
        opened = user.begin(SCENARIO, VANILLA, seed=1)
        reaction = asyncio.run(user.react(opened, REPLY))
        assert user.answer(opened, REPLY) == reaction and user.counts()["calls"] == 2
    asked = server.requests[0]["messages"]
    assert REPLY in asked[1]["content"] and SCENARIO.opening in asked[1]["content"] and SCENARIO.hidden_intention not in str(asked)
    assert reaction.turn.reading == Reading(strategies=("suggestion",), cues=(0,), ties_back=False)
    assert reaction.turn.heard == ("suggestion",)
    assert reaction.turn.change == appraise(opened, REPLY, reading=reaction.turn.reading).points(momentum=0.2, quantise=False).change


@pytest.mark.parametrize(
    "heard",
    [
        {**HEARD, "strategies": ["hugging"]},
        {**HEARD, "taken_up": [2]},
        {**HEARD, "taken_up": [1.0]},
        {**HEARD, "taken_up": [True]},
        {**HEARD, "sense": "most"},
        {**HEARD, "sense": ["all"]},
        {**HEARD, "tone": {"plain": True}},
        {**HEARD, "comes_back": None},
        {**HEARD, "strategies": "suggestion"},
    ],
)
def test_an_answer_out_of_schema_is_asked_again_and_never_a_reward(heard):
    pytest.importorskip("openai")
    with serving(FakeEndpoint(always=text(json.dumps(heard)))) as server:
        user = listened_by(server)
        with pytest.raises(SimulatorError):
            asyncio.run(user.react(user.begin(SCENARIO, VANILLA, seed=1), REPLY))
    assert len(server.requests) == 2


@pytest.mark.parametrize("reply", ["", "   ", "🙂🙂🙂", "?!", SCENARIO.opening])
def test_a_reply_without_a_letter_or_of_own_words_does_no_good_and_costs_no_question(reply):
    with serving(FakeEndpoint()) as server:
        user = listened_by(server)
        reaction = asyncio.run(user.react(user.begin(SCENARIO, VANILLA, seed=1), reply))
    assert (reaction.turn.change or 0) < 0 and server.requests == []


def test_a_long_reply_is_read_in_part():
    pytest.importorskip("openai")
    with serving(FakeEndpoint(always=answer(**HEARD))) as server:
        user = listened_by(server)
        dialogue = user.begin(SCENARIO, VANILLA, seed=1)
        answered = asyncio.run(user.react(dialogue, "no " * 20_000)).turn
        asyncio.run(user.react(dialogue.then(Turn(speaker=Speaker.AGENT, text="no " * 20_000), answered), REPLY))
    assert [len(request["messages"][1]["content"]) < limit for request, limit in zip(server.requests, (4000, 8000), strict=True)] == [
        True
    ] * 2


def test_mockery_heard_by_a_model_costs_as_much_as_contempt():
    opened = RuleUser(RuleUserConfig()).begin(SCENARIO, VANILLA, seed=1)
    mocked = RuleUser(RuleUserConfig()).answer(opened, REPLY, Reading(contempt=("irony",)))
    assert (mocked.turn.change or 0) <= -8 and mocked.turn.heard == ()


def test_earlier_readings_count_as_they_were_recorded_and_replays_need_no_listener():
    user = RuleUser(RuleUserConfig())
    dialogue = user.begin(SCENARIO, VANILLA, seed=1)
    asked = Reading(strategies=("question",), ties_back=False)
    for reading in (asked, Reading(strategies=("suggestion",), cues=(0,), ties_back=True), Reading(strategies=("praise",), sincerity=0.5)):
        answered = user.answer(dialogue, "Mm. Go on with the thing.", reading).turn
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text="Mm. Go on with the thing."), answered)
    assert appraise(dialogue, "Hm.").parsed.earlier_strategies == (("question",), ("suggestion",), ())  # doubted: no praise
    restored = Dialogue.from_dict(json.loads(json.dumps(dialogue.to_dict())), scenario=SCENARIO)
    assert restored == dialogue
    # A model listened, and its server is gone.
    config = RuleUserConfig(listener="model", server={"urls": ["http://127.0.0.1:9/v1"], "model": "m"})
    assert all(step.recomputed == step.recorded for step in replay(restored, config))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"listener": "model"}, "simulator.server must be set with simulator.listener=model"),
        ({"server": {"model": "m"}}, "simulator.server must be set with simulator.listener=model"),
        ({**BY_MODEL, "register": "world"}, "simulator.listener must be rule with simulator.register=world"),
        ({**BY_MODEL, "preset": "sage"}, "simulator.listener must be rule with simulator.preset=sage"),
    ],
)
def test_a_listener_that_does_not_fit_is_refused(settings, reason):
    with pytest.raises(ValueError, match="simulator") as refused:
        RuleUserConfig(**settings)
    assert message(refused.value).startswith(reason)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["simulator.server.urls=[http://a/v1]"], "simulator.server.model must name the model"),
        (["simulator.server.model=m", "simulator.server.retries=-1"], "simulator.server.retries must be"),
        (["simulator.server.model=m", "simulator.server.modle=m"], "did you mean simulator.server.model?"),
    ],
)
def test_a_wrong_server_is_named_where_it_was_set(settings, named):
    with pytest.raises(ConfigError, match=named):
        load("smoke", ["simulator.listener=model", *settings])


def test_a_server_that_is_away_is_named_where_it_was_set():
    pytest.importorskip("openai")
    with pytest.raises(ValueError, match=r"simulator\.server\.urls must name servers that answer"):
        check_servers(RuleUserConfig(listener="model", server={"model": "m", "urls": ["http://127.0.0.1:9/v1"]}))


def test_results_name_who_listened():
    by_model = RuleUserConfig(listener="model", server={"model": "qwen"})
    assert world_of(by_model) == f"{world_of(RuleUserConfig())}-heard-by-qwen"
    config = load("smoke", ["simulator.listener=model", "simulator.server.model=qwen", "simulator.server.cache=off"])
    assert config.simulator.register is Register.OPEN and world_of(config.simulator) == world_of(by_model)


def hear(tmp_path: Path, lines: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["hear", str(tmp_path / "replies.jsonl"), "--out", str(tmp_path / "heard.jsonl"), *options]) == 0
    return [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]


def test_replies_are_played_and_each_is_told_with_its_reading(tmp_path):
    replies = ["You must feel so hurt about the fox.", "What happened with the latch?", "x" * 50_000]
    line = {"id": "a", "scenario_id": SCENARIO.scenario_id, "replies": replies}
    (heard,) = hear(tmp_path, [line], "--strictness", "0.35", "--facts", "in_order")
    assert heard["id"] == "a" and heard["emotions"][-1] == heard["final"] and len(heard["emotions"]) == 3
    assert [40, *heard["emotions"]][1:] == [40 + sum(heard["changes"][: k + 1]) for k in range(3)]
    assert heard["readings"][0]["strategies"] == ["reflection"] and heard["readings"][1]["strategies"] == ["question"]
    assert heard["changes"][2] < 0


def test_in_order_the_user_tells_the_same_facts_whatever_is_replied(tmp_path):
    from simulator.hear import TellsInOrder, play_replies

    user = TellsInOrder(RuleUserConfig())
    told = []
    for reply in ("Hm.", "You are an idiot.", "Tell me more."):
        dialogue = asyncio.run(play_replies(user, SCENARIO, replace(VANILLA, impatience=0.0), [reply] * 2, seed=1))
        told.append([[fact.text in turn for fact in SCENARIO.facts].index(True) for turn in dialogue.said()])
    assert told[0] == told[1] == told[2] and len(set(told[0])) == 3


def test_a_reply_that_a_model_cannot_read_costs_its_dialogue_and_no_other(tmp_path, capsys):
    pytest.importorskip("openai")
    lines = [{"id": n, "scenario_id": SCENARIO.scenario_id, "replies": [reply]} for n, reply in enumerate(("Ask her.", "Oh no."))]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def reads_one(request: Mapping[str, Any]) -> Reply:
        return (text("?") if "Oh no." in request["messages"][-1]["content"] else answer(**HEARD))(request)

    with serving(FakeEndpoint(always=reads_one)) as server:
        options = ["--listener", "model", "--listener-url", server.url, "--listener-model", "m"]
        options += ["--listener-retries", "0", "--cache", "off"]
        assert main(["hear", str(tmp_path / "replies.jsonl"), "--out", str(tmp_path / "heard.jsonl"), *options]) == 1
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]
    assert heard[0]["readings"] == [{"strategies": ["suggestion"], "cues": [0], "clarity": 1.0, "ties_back": False}] and "error" in heard[1]
    assert "in 1 of 2 dialogues" in capsys.readouterr().err


CARD = {
    "name": "Lin",
    "age": 40,
    "occupation": "baker",
    "background": "Runs a bakery with her brother.",
    "goal": "To decide whether to reopen.",
    "hidden_intention": "Wants sincere praise for what was done.",
    "other": "brother",
    "feelings": ["tired"],
    "facts": [{"text": "My brother sold our oven.", "cue": "our oven"}, {"text": "I baked for ten years.", "cue": "ten years"}],
    "user": ["My brother sold our oven. I am tired.", "I baked for ten years."],
}


def test_a_card_brings_a_user_of_its_own(tmp_path):
    replies = ["Ten years of baking. You can be proud of that.", "Well done."]
    line = {"id": 1, "scenario_id": "mine/oven/praise-passive", "card": CARD, "replies": replies}
    again = {"id": 2, "scenario_id": "mine/oven/praise-passive", "replies": ["Our oven. That must hurt."]}
    first, second = hear(tmp_path, [line, again], "--strictness", "0.1", "--facts", "in_order")
    assert "praise" in first["readings"][0]["strategies"] and first["changes"][0] > 0 and len(first["changes"]) == 2
    assert second["readings"][0]["cues"] == [0]


def test_two_cards_of_one_user_are_refused(tmp_path, capsys):
    lines = [
        {"id": n, "scenario_id": "mine/oven/praise-passive", "card": {**CARD, "goal": goal}, "replies": ["Oh."]}
        for n, goal in enumerate("ab")
    ]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [lines[0], *lines]))
    assert main(["hear", str(tmp_path / "replies.jsonl")]) == 2
    assert "line 3" in (said := capsys.readouterr().err) and "another card of 'mine/oven/praise-passive'" in said


@pytest.mark.parametrize("change", [{"facts": [{"text": "x"}]}, {"user": []}, {"age": None, "name": None, "feelings": 3}])
def test_a_card_that_is_none_is_named(tmp_path, capsys, change):
    line = {"id": 1, "scenario_id": "mine/oven/praise-passive", "card": {**CARD, **change}, "replies": ["Oh."]}
    (tmp_path / "replies.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["hear", str(tmp_path / "replies.jsonl")]) == 2
    assert "line 1" in capsys.readouterr().err


def test_a_model_is_set_against_readers_marks(tmp_path, capsys):
    pytest.importorskip("openai")
    label = {"strategies": ["suggestion"], "took_up": [1], "coherence": 2, "tone": "plain"}
    label |= dict.fromkeys(("asks", "ties_back", "owns"), False)
    replies = [[{**label, "text": "Ask her.", "mark": 3}, {**label, "text": "Go.", "mark": -4}], [{**label, "text": "Oh no.", "mark": 1}]]
    lines = [{"id": n, "scenario_id": SCENARIO.scenario_id, "voice": "v1", "replies": labels} for n, labels in enumerate(replies)]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def reads_some(request: Mapping[str, Any]) -> Reply:
        reply = request["messages"][-1]["content"].split("reply:")[-1]
        tone = "contempt" if "Go." in reply else "plain"
        return (text("?") if "Oh no." in reply else answer(**{**HEARD, "tone": tone}))(request)

    with serving(FakeEndpoint(always=reads_some)) as server:
        options = ["--listener", "model", "--listener-url", server.url, "--listener-model", "m", "--listener-retries", "0"]
        out = ["--cache", "off", "--strictness", "0.35", "--out", str(tmp_path / "found.json")]
        assert main(["hearing", str(tmp_path / "replies.jsonl"), *options, *out]) == 1
    found = json.loads((tmp_path / "found.json").read_text())["model at 0.35"]
    assert found["replies"] == 2 and found["r"] == pytest.approx(1.0)
    assert "in 1 of 2 dialogues" in capsys.readouterr().err


@pytest.mark.parametrize("line", [{"scenario_id": "x", "replies": []}, {"replies": ["a"]}, {"scenario_id": SCENARIO.scenario_id}, 5])
def test_a_line_that_cannot_be_played_is_named(tmp_path, capsys, line):
    (tmp_path / "replies.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["hear", str(tmp_path / "replies.jsonl")]) != 0
    assert "line 1" in capsys.readouterr().err


SAID = [SCENARIO.facts[k].text for k in (0, 1, 2)]


@pytest.mark.parametrize(
    ("reply", "is_salad"),
    [
        ("Your latch trusted the fox at dawn, and the hens pulled their water bowls.", True),
        ("The neighbour washed a little door because her bowls checked the dawn.", True),
        ("You got up at dawn each morning to wash their water bowls.", False),
        ("So the fox got in, and the latch was never checked. Oh Amina.", False),
        ("Her hens. And you up at dawn for them. Of course you cannot sleep.", False),
        ("What do you think when you see the latch?", False),
    ],
)
def test_the_users_words_in_an_order_that_they_never_had_make_no_sense(reply, is_salad):
    assert is_scrambled(reply, SAID) is is_salad
    opened = RuleUser(RuleUserConfig()).begin(SCENARIO, replace(VANILLA, strictness=0.0), seed=1)
    for fact in SAID[1:]:
        opened = opened.then(Turn(speaker=Speaker.AGENT, text="Mm."), Turn(speaker=Speaker.USER, text=fact, emotion=40, change=0))
    changes = {register: RuleUser(RuleUserConfig(register=register)).answer(opened, reply).turn.change or 0 for register in Register}
    assert (changes[Register.OPEN] < 0) or not is_salad


def test_a_salad_of_chinese_words_is_one_too():
    said = ["隔壁阿姨把母鸡托给我，狐狸钻进来了。", "我每天天亮就起来给它们洗水盆。", "小门我拉上了，可是没看门闩。"]
    assert is_scrambled("狐狸每天给门闩洗阿姨，母鸡天亮钻进水盆。", said)
    assert not is_scrambled("你每天天亮就起来洗水盆，狐狸还是钻进来了。", said)


@pytest.mark.parametrize("sincerity", [float("nan"), -0.1, 1.1])
def test_a_reading_beyond_its_range_is_refused(sincerity: float):
    with pytest.raises(ValueError, match="must be in"):
        Reading(sincerity=sincerity)
