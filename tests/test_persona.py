"""Consistency of simulated users: claims, moods and repeated lines by rule, a model that judges behind a real server, and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import KEY, Behaviour, FakeEndpoint, Reply, completion, garbage, serving, status, text

from analysis.__main__ import main
from analysis.persona import AT_EASE_FROM, HURT_BELOW, contradicts_emotion, drawn, mood_of, played, repeated_lines
from analysis.persona_judge import (
    ASSISTANT,
    Claims,
    LineVerdict,
    ModelJudge,
    RuleExaminer,
    conflicts,
    lines_of,
    numbered,
    says_outright,
)
from experiments.recorder import dialogue_record
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.listener import facts_stated
from simulator.llm.client import Endpoints
from simulator.llm.prompts import Unusable
from simulator.llm.quiz import quiz_of
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, Scenario, Split
from simulator.text import number_of
from simulator.world import load_bank, read_toml

USER = RuleUser(RuleUserConfig())
CARDS = load_bank().scenarios(Split.TRAIN)
GOOD_LINE = {"why": "w", "contradicts_card": False, "conflicts_with": [], "reveals_hidden": False, "assistant_register": False}


def some(num: int = 6, **options: Any) -> list[Dialogue]:
    return list(played(num, strictness=(0.1, 0.75), user=USER, agents=("L0", "L3", "L6"), **options))


def write(path: Path, dialogues: list[Dialogue]) -> Path:
    path.write_text("".join(json.dumps(dialogue_record(dialogue, step=1, uid="a", sibling=0)) + "\n" for dialogue in dialogues))
    return path


def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    out = tmp_path / "out.json"
    code = main(["persona", *arguments, "--out", str(out)])
    table, error = capsys.readouterr()
    assert code == 0, error
    return json.loads(out.read_text()), table


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["persona", *arguments]) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.startswith("error: ") and message.count("\n") == 1
    return message.removeprefix("error: ").strip()


def value(found: Mapping[str, Any], measure: str) -> float:
    return found["measures"][measure]["value"]["value"]


def test_the_embedded_user_stays_who_it_is_over_strictness_and_turns(tmp_path, capsys):
    found, table = judge(tmp_path, capsys, "--play", "30", "--strictness", "0.1", "0.75")
    assert (value(found, "prompt_to_line"), value(found, "line_to_line"), value(found, "reveals_hidden")) == (1.0, 1.0, 0.0)
    assert found["num_dialogues"] == 30 and found["num_line_errors"] == found["num_quiz_errors"] == 0
    assert set(found["measures"]["prompt_to_line"]["by_strictness"]) == {"0.1", "0.75"}
    assert "prompt to line" in table and "d=0.75" in table and "rank correlation" in table
    assert found["adherence_spearman"]["value"] > 0.2


def test_a_user_with_another_persons_card_is_caught(tmp_path, capsys):
    swapped = [replace(dialogue, scenario=CARDS[(500 + 31 * i) % len(CARDS)]) for i, dialogue in enumerate(some())]
    found, _ = judge(tmp_path, capsys, "--dialogues", str(write(tmp_path / "d.jsonl", swapped)))
    assert value(found, "prompt_to_line") < 0.5


def test_lines_of_two_users_in_one_dialogue_conflict_with_each_other(tmp_path, capsys):
    """The second answer is another user's: one of three pairs of lines agrees, and half the answers belie the card."""
    one, other = (f"{CARDS[i].facts[1].text}" for i in (0, 100))
    dialogue = talk(CARDS[0].opening, one, other)
    found, _ = judge(tmp_path, capsys, "--dialogues", str(write(tmp_path / "d.jsonl", [dialogue])), "--quiz-every", "0")
    assert value(found, "prompt_to_line") == 0.5
    assert value(found, "line_to_line") == pytest.approx(1 / 3)
    assert "quiz" not in found["measures"]


def talk(*lines: str) -> Dialogue:
    dialogue = Dialogue(scenario=CARDS[0], difficulty=Difficulty.along(0.5), seed=0)
    dialogue = dialogue.then(Turn(speaker=Speaker.USER, text=lines[0], emotion=40))
    for line in lines[1:]:
        said = Turn(speaker=Speaker.USER, text=line, emotion=40, change=0)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text="And then?"), said)
    return dialogue.then(outcome=Outcome.MAX_TURNS)


def test_the_wish_in_the_cards_words_is_a_leak_and_a_hint_of_the_world_is_none():
    scenario = next(card for card in CARDS if card.family.intention == "listened")
    assert says_outright("I want to tell all of it and not be stopped, advised or judged.", scenario)
    assert not says_outright("I want to tell it without being stopped. Hm.", scenario)
    assert not any(says_outright(fact.text, card) for card in CARDS for fact in card.facts)


def test_helpers_are_heard_and_people_in_trouble_are_not():
    helpers = [
        "I'm sorry to hear that, how can I help you?",
        "As an AI, I cannot feel.",
        "It sounds like you had a hard day.",
        "I'd suggest a walk.",
    ]
    assert all(ASSISTANT.search(line) for line in helpers)
    assert not any(ASSISTANT.search(turn.text) for dialogue in some(60) for _, turn in lines_of(dialogue))


def test_a_side_branch_is_answered_by_what_the_line_supports_and_by_nothing_else():
    scenario = CARDS[0]
    questions = {question.name: question for question in quiz_of(scenario, CARDS, seed=0, turn=0)}
    told = scenario.facts[2].text
    assert RuleExaminer.letter_in(f"Hm. {told}", questions["happened"]) == questions["happened"].letter
    assert RuleExaminer.letter_in("Hm.", questions["happened"]) == ""
    stranger = questions["happened"].cards[(questions["happened"].right + 1) % 4]
    assert RuleExaminer.letter_in(stranger.facts[2].text, questions["happened"]) not in ("", questions["happened"].letter)
    assert RuleExaminer.letter_in(f"{told} {stranger.facts[2].text}", questions["happened"]) == ""
    assert RuleExaminer.letter_in(f"I am {scenario.persona.name}.", questions["person"]) == questions["person"].letter
    assert RuleExaminer.letter_in(f"It was my {scenario.other}.", questions["other"]) == questions["other"].letter


def test_a_file_is_sampled_in_order_and_by_its_seed():
    dialogues = some(12)
    assert drawn(iter(dialogues), 20, seed=0) == dialogues
    few = drawn(iter(dialogues), 5, seed=0)
    assert few == drawn(iter(dialogues), 5, seed=0) and few != drawn(iter(dialogues), 5, seed=1)
    assert [dialogues.index(dialogue) for dialogue in few] == sorted(dialogues.index(dialogue) for dialogue in few)


def test_play_gives_every_cell_of_the_grid_the_same_share_and_the_same_dialogues_again():
    dialogues = some(12, reserve=(0.0, 1.0), seed=4)
    cells = [(dialogue.difficulty.strictness, dialogue.difficulty.reserve) for dialogue in dialogues]
    assert sorted(cells) == [(d, r) for d in (0.1, 0.75) for r in (0.0, 1.0) for _ in range(3)]
    assert dialogues == some(12, reserve=(0.0, 1.0), seed=4) and dialogues != some(12, reserve=(0.0, 1.0), seed=5)


def test_many_strictnesses_are_put_together_in_fifths(tmp_path, capsys):
    found, _ = judge(tmp_path, capsys, "--play", "40", "--quiz-every", "0", "--strictness", *(f"{i / 10}" for i in range(11)))
    assert [*found["measures"]["prompt_to_line"]["by_strictness"]] == ["0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1"]


def model_run(tmp_path: Path, url: str, *, key_env: str = "") -> Path:
    """A run's folder whose users a model played."""
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder / "dialogues.jsonl", [talk(CARDS[0].opening, "a", "b"), talk(CARDS[0].opening, "c", "d", "e")])
    settings = {"kind": "llm", "model": "m", "urls": [url], "cache": "off", "answer_format": "json_schema", "api_key_env": key_env}
    quick = {"first_backoff_s": 0.01, "max_backoff_s": 0.02, "retries": 1, "max_wait_s": 1.0}
    (folder / "config.yaml").write_text(json.dumps({"simulator": {**settings, **quick}}))
    return folder


def judging(line: Mapping[str, Any] = GOOD_LINE, *, demands: Any = 5, letter: str | None = None) -> Behaviour:
    """A model that judges every line alike, and that knows the right letters or always says one."""

    def respond(request: Mapping[str, Any]) -> Reply:
        name = request["response_format"]["json_schema"]["name"]
        if name == "quiz":
            return completion(json.dumps(letters_in(request, letter)))
        return completion(json.dumps({"line": line, "demands": {"why": "w", "demands": demands}, "check": {"ok": 1}}[name]))

    return respond


def letters_in(request: Mapping[str, Any], letter: str | None) -> dict[str, str]:
    """The letters whose options the system prompt or the card holds: what a model that plays by its prompt would say."""
    asked, found, current = request["messages"][-1]["content"], {}, ""
    card = f"{CARDS[0].persona.name}, {CARDS[0].persona.age} years old, {CARDS[0].persona.occupation}"
    truths = {card, CARDS[0].hidden_intention, CARDS[0].goal, f"my {CARDS[0].other}", *(fact.text for fact in CARDS[0].facts)}
    for line in asked.splitlines():
        head = line.partition(": ")[0]
        if head in ("person", "happened", "detail", "other", "goal", "wish"):
            current = head
        elif current and line.startswith("  ") and json.loads(line.split(". ", 1)[1]) in truths:
            found[current] = line.strip()[0]
    return {name: letter or found[name] for name in found}


def test_a_model_judges_lines_and_the_model_that_played_is_asked_with_its_own_prompt(tmp_path, capsys):
    with serving(FakeEndpoint(always=judging())) as judge_server, serving(FakeEndpoint(always=judging())) as user_server:
        folder = model_run(tmp_path, user_server.url)
        # Kept answers, as what is asked while the same is still under way is asked once in any case, but not what is asked a moment later.
        kept = ["--cache", str(tmp_path / "answers")]
        found, table = judge(tmp_path, capsys, "--dialogues", str(folder), "--judge-url", judge_server.url, "--judge-model", "m", *kept)
    assert (found["user"], found["judge"], found["num_judged"], found["num_line_errors"]) == ("llm", "llm", 5, 0)
    assert (value(found, "prompt_to_line"), value(found, "line_to_line"), value(found, "quiz"), value(found, "quiz_before")) == (1, 1, 1, 1)
    asked = [request for request in user_server.requests if request["response_format"]["json_schema"]["name"] == "quiz"]
    # before the dialogue, after the opening both have, and after one and two lines that differ: what is the same is asked once
    assert len(asked) == 1 + 1 + 1 + 2 and all(CARDS[0].hidden_intention in request["messages"][0]["content"] for request in asked)
    assert {request["response_format"]["json_schema"]["name"] for request in judge_server.requests} == {"check", "line", "demands"}
    assert "questions right" in table


@pytest.mark.parametrize("is_broken", [False, True])
def test_connections_to_the_judge_and_to_the_user_are_closed_whatever_comes(tmp_path, capsys, monkeypatch, is_broken):
    closed, close = [], Endpoints.close

    async def and_told(endpoints: Endpoints) -> None:
        closed.append(endpoints.config.urls[0])
        await close(endpoints)

    def breaks(self: ModelJudge, dialogue: Dialogue) -> float:
        raise ValueError("out of order")

    with serving(FakeEndpoint(always=judging())) as judge_server, serving(FakeEndpoint(always=judging())) as user_server:
        folder = model_run(tmp_path, user_server.url)
        monkeypatch.setattr(Endpoints, "close", and_told)
        if is_broken:
            monkeypatch.setattr(ModelJudge, "demands", breaks)
        assert main(["persona", "--dialogues", str(folder), *judged_by(judge_server.url)]) == (2 if is_broken else 0)
        # Each once after it was asked whether it is there, and once at the end.
        assert sorted(closed) == sorted(2 * [judge_server.url, user_server.url])


def test_what_a_judge_finds_is_counted_line_by_line(tmp_path, capsys):
    bad = {**GOOD_LINE, "contradicts_card": True, "conflicts_with": [0, 0], "reveals_hidden": True}
    with serving(FakeEndpoint(always=judging(bad, letter="A"))) as server:
        folder = model_run(tmp_path, server.url)
        found, _ = judge(tmp_path, capsys, "--dialogues", str(folder), *judged_by(server.url))
    assert (value(found, "prompt_to_line"), value(found, "reveals_hidden"), value(found, "assistant_register")) == (0, 1, 0)
    # lines 1, 2 and 1, 2, 3 each conflict with line 0, which is named twice and counts once: 5 of 1 + 2 + 1 + 2 + 3 pairs
    assert value(found, "line_to_line") == pytest.approx(4 / 9)
    assert value(found, "quiz") < 0.7


def judged_by(url: str) -> list[str]:
    return ["--judge-url", url, "--judge-model", "m", "--cache", "off"]


@pytest.mark.parametrize(
    "broken",
    [
        text("not json {"),
        garbage,
        judging({**GOOD_LINE, "conflicts_with": [7]}),
        text("", finish="length"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_and_never_a_consistent_line(tmp_path, capsys, broken):
    def now_and_then(request: Mapping[str, Any]) -> Reply:
        line = request["messages"][-1]["content"]
        return broken(request) if request["response_format"]["json_schema"]["name"] == "line" and '\n"c"\n' in line else judging()(request)

    with serving(FakeEndpoint(always=now_and_then)) as server:
        found, table = judge(tmp_path, capsys, "--dialogues", str(model_run(tmp_path, server.url)), *judged_by(server.url), *IMPATIENT)
    assert (found["num_judged"], found["num_line_errors"]) == (4, 1)
    assert found["measures"]["prompt_to_line"]["num"] == 4 and "count nowhere: 1 lines" in table


IMPATIENT = ("--quiz-every", "0", "--judge-retries", "1")


def test_a_judge_of_whom_nothing_can_be_read_is_an_error_and_not_a_table(tmp_path, capsys):
    with serving(FakeEndpoint(always=text("certainly!"))) as server:
        message = refused(capsys, "--dialogues", str(model_run(tmp_path, server.url)), *judged_by(server.url), *IMPATIENT)
    assert message.startswith("--judge-model must answer in the form that it is asked for")
    assert "certainly!" in message


def test_keys_come_from_the_environment_and_stand_nowhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with serving(FakeEndpoint(always=judging(), key=KEY)) as server:
        folder = model_run(tmp_path, server.url, key_env="JUDGE_KEY")
        found, table = judge(tmp_path, capsys, "--dialogues", str(folder), *judged_by(server.url), "--judge-key-env", "JUDGE_KEY")
        assert set(server.keys) == {KEY} and KEY not in table + json.dumps(found)
        monkeypatch.setenv("JUDGE_KEY", "sk-wrong-1234")
        message = refused(capsys, "--dialogues", str(folder), *judged_by(server.url), "--judge-key-env", "JUDGE_KEY")
    assert message.startswith("--judge-key-env must name a variable whose key") and "sk-wrong" not in message


def test_the_key_of_the_run_goes_to_no_other_server(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RUN_KEY", KEY)
    with serving(FakeEndpoint(always=judging())) as server:
        folder = model_run(tmp_path, "https://paid.example/v1", key_env="RUN_KEY")
        judge(tmp_path, capsys, "--dialogues", str(folder), *judged_by(server.url), "--user-url", server.url)
        assert server.keys and KEY not in server.keys
        judge(tmp_path, capsys, "--dialogues", str(folder), *judged_by(server.url), "--user-url", server.url, "--user-key-env", "RUN_KEY")
        assert KEY in server.keys


def test_moody_users_are_asked_as_embedded_ones(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder / "dialogues.jsonl", some(1))
    (folder / "config.yaml").write_text(json.dumps({"simulator": {"kind": "moody", "whim_prob": 0.7, "families": ["*/negative"]}}))
    found, _ = judge(tmp_path, capsys, "--dialogues", str(folder))
    assert (found["user"], found["judge"]) == ("moody", "rule") and value(found, "quiz") is not None
    # Of a user of one's own nobody knows who could be asked.
    (folder / "config.yaml").write_text(json.dumps({"simulator": {"kind": "patient"}}))
    assert "--user-model must name the model that played the user" in refused(capsys, "--dialogues", str(folder))
    found, _ = judge(tmp_path, capsys, "--dialogues", str(folder), "--quiz-every", "0")
    assert (found["user"], found["judge"]) == ("patient", "rule")


def test_what_cannot_be_judged_is_refused_before_anything_starts(tmp_path, capsys):
    one = str(write(tmp_path / "d.jsonl", some(1)))
    assert "is not there" in refused(capsys, "--dialogues", str(tmp_path / "gone.jsonl"))
    assert "--seed must be at least 0, got -1" in refused(capsys, "--dialogues", str(tmp_path / "gone.jsonl"), "--seed", "-1")
    (tmp_path / "broken.jsonl").write_text('{"scenario_id": "x"}\n')
    assert f"{tmp_path}/broken.jsonl line 1 must be a dialogue of this world" in refused(capsys, "--dialogues", f"{tmp_path}/broken.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    assert "must hold a dialogue" in refused(capsys, "--dialogues", f"{tmp_path}/empty.jsonl")
    assert refused(capsys, "--play", "0") == "--play must be at least 1, got 0"
    assert refused(capsys, "--play", "1", "--strictness", "1.5") == "--strictness must be in [0, 1], got 1.5"
    assert refused(capsys, "--dialogues", one, "--num", "0") == "--num must be at least 1, got 0"
    assert "--user must be rule with --play" in refused(capsys, "--play", "1", "--user", "llm")
    assert "--judge-model must name the model that judges" in refused(capsys, "--dialogues", one, "--judge", "llm")
    assert "--user-model must name the model that played" in refused(capsys, "--dialogues", one, "--user", "llm", "--judge", "rule")
    assert "--out must be a file in a folder" in refused(capsys, "--play", "1", "--out", f"{tmp_path}/gone/out.json")
    assert "--judge-concurrency must be greater than 0" in refused(capsys, "--play", "1", "--judge-model", "m", "--judge-concurrency", "0")
    with serving(FakeEndpoint(always=status(404, "no such model"))) as server:
        assert refused(capsys, "--dialogues", one, "--judge", "llm", *judged_by(server.url)).startswith(
            "--judge-url must be base addresses"
        )


def test_verdicts_are_read_strictly():
    good = LineVerdict.read(json.dumps({**GOOD_LINE, "conflicts_with": [1, 0, 1]}), num_earlier=2)
    assert good.conflicts_with == {0, 1} and not good.contradicts_card
    for name, values in {"conflicts_with": ([2], [-1], [True], ["0"], None, [0.5]), "contradicts_card": ("no", 1), "why": (None,)}.items():
        for broken in values:
            with pytest.raises(Unusable, match=name):
                LineVerdict.read(json.dumps({**GOOD_LINE, name: broken}), num_earlier=2)


def test_a_judge_sees_the_lines_before_the_one_it_judges_with_their_numbers():
    dialogue = talk("one", "two", "three")
    assert numbered(dialogue, before=2).splitlines() == [
        '{"person": 0, "text": "one"}',
        '{"other": true, "text": "And then?"}',
        '{"person": 1, "text": "two"}',
        '{"other": true, "text": "And then?"}',
    ]
    assert numbered(dialogue, before=0) == "(nothing yet)"


ADA = load_bank().scenario("train/burned_bread/motives-negative")


def kinds(line: str, scenario: Scenario = ADA) -> tuple[str, ...]:
    return conflicts(Claims.in_line(line), [Claims.of_card(scenario)])


@pytest.mark.parametrize(
    ("text", "number"), [("27", 27), ("twenty-seven", 27), ("forty", 40), ("nineteen", 19), ("the", None), ("sixty nine", 69)]
)
def test_numbers_are_read_in_figures_and_words(text, number):
    assert number_of(text) == number


@pytest.mark.parametrize(
    "line",
    [
        "I am Ada.",
        "I'm twenty-seven, you know.",
        "I am a bakery assistant and I get up at three.",
        "I forgot to set the timer because I was serving at the front.",
        "If you say so. Why would somebody act like that?",
        "My boss was twenty-eight when he began, and his name is Bruno.",
        "I have covered the early shift alone for three weeks.",
        "Hm.",
    ],
)
def test_a_line_that_agrees_with_the_card_or_says_nothing_of_it_is_no_contradiction(line):
    assert kinds(line) == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("My name is Carmen.", "name"),
        ("I'm fifty-five.", "age"),
        ("I work as a nurse at the hospital.", "occupation"),
        ("Hm, maybe. His mother wrote a long letter to the company.", "event"),
        ("The nights are longer than they used to be.", "wish"),
        ("Thank you, that is kind.", "manner"),
        ("I have baked for forty years.", "years"),
        ("I showed it to my grandson.", "years"),
    ],
)
def test_a_contradiction_of_the_card_is_named_by_its_kind(line, kind):
    assert kinds(line) == (kind,)


def test_lines_disagree_with_each_other_in_the_same_way():
    assert conflicts(Claims.in_line("I am 55 years old."), Claims.in_line("I'm sixty.")) == ("age",)
    assert conflicts(Claims.in_line("I am 20 years old."), Claims.in_line("I have baked for forty years.")) == ("years",)
    assert conflicts(Claims.in_line("I am a nurse."), Claims.in_line("I am 55 years old.")) == ()


def test_no_card_of_the_built_in_world_contradicts_its_users_facts_and_another_card_does():
    assert not [fact.text for card in load_bank().by_id.values() for fact in card.facts if kinds(fact.text, card)]
    other = replace(load_bank().scenarios(Split.TRAIN)[40], scenario_id="train/elsewhere/x-y")
    assert "event" in kinds(ADA.facts[3].text, other)
    # A reaction that two persona types share speaks for none of them alone.
    pools = read_toml("phrases")["reactions"]
    shared = set(pools["negative"]["muted"]) & set(pools["avoidant"]["muted"])
    assert shared and all(kinds(line) == () for line in shared)


@pytest.mark.parametrize(
    ("line", "is_low", "is_high"),
    [
        ("I feel so alone with all this.", True, False),
        ("What a waste of time.", True, False),
        ("You don't understand a thing, forget it.", True, False),
        ("It hurts every single day.", True, False),
        ("Nobody cares anyway.", True, False),
        ("I feel so much better now.", False, True),
        ("That is a relief, really.", False, True),
        ("I think I can sleep again.", False, True),
        ("I was angry when it happened.", False, False),
        ("It hurts less than it did.", False, False),
        ("That is not as stupid as I feared.", False, False),
        ("My brother came by on Sunday.", False, False),
        ("They all talk before I am done with my sentence.", False, False),
    ],
)
def test_moods_are_read_from_words(line, is_low, is_high):
    assert tuple(map(bool, mood_of(line))) == (is_low, is_high)


def test_words_contradict_an_emotion_only_at_its_ends_and_the_story_is_no_mood():
    for line, emotion, words in (
        ("This is pointless.", 85, ("pointless",)),
        ("I feel lighter.", 15, ("lighter",)),
        ("This is pointless.", 15, ()),
        ("This is pointless.", 55, ()),
        ("I feel lighter.", 30, ()),
    ):
        assert contradicts_emotion(Turn(speaker=Speaker.USER, text=line, emotion=emotion, change=0), ADA) == words
    fact = replace(ADA.facts[1], text="She said that it was pointless and that I am useless.")
    assert mood_of(f"Right. {fact.text}") == (("pointless", "i am useless"), ())
    assert mood_of(f"Right. {fact.text}", replace(ADA, facts=(ADA.facts[0], fact))) == ((), ())


GRID = {"strictness": (0.1, 0.35, 0.55, 0.75, 0.95), "reserve": (0.0, 0.3, 0.6, 1.0), "user": USER}


def test_emotion_never_contradicts_words_of_the_embedded_user():
    dialogues = list(played(500, **GRID, seed=11))
    assert {dialogue.scenario.family for dialogue in dialogues} == set(FAMILIES)
    turns = [(turn, dialogue) for dialogue in dialogues for _, turn in lines_of(dialogue)]
    ends = [(turn, dialogue) for turn, dialogue in turns if turn.emotion >= AT_EASE_FROM or turn.emotion < HURT_BELOW]
    assert len(ends) > 800 and not [turn.text for turn, dialogue in turns if contradicts_emotion(turn, dialogue.scenario)]
    # The reader is not blind: with the scale turned round, lines at its ends are caught, most of all those of users who say much.
    caught = {0.0: [], 0.3: [], 0.6: [], 1.0: []}
    for turn, dialogue in ends:
        caught[dialogue.difficulty.reserve].append(bool(contradicts_emotion(replace(turn, emotion=100 - turn.emotion), dialogue.scenario)))
    assert sum(caught[0.0]) / len(caught[0.0]) > 0.4 > sum(caught[1.0]) / len(caught[1.0])


def test_a_user_who_wants_to_say_no_more_tells_no_more():
    closing = tuple(read_toml("phrases")["apart"]["telling"])
    lines = [(turn.text, dialogue.scenario) for dialogue in played(200, **GRID, seed=11) for _, turn in lines_of(dialogue)[1:]]
    refusing = [(text, scenario) for text, scenario in lines if text.startswith(closing)]
    assert refusing and not any(facts_stated(text, scenario.facts) for text, scenario in refusing)


def test_lines_that_are_kept_apart_are_in_other_pools_too():
    """A line that no pool holds would keep nothing apart, and a pool without a line left could not be drawn from."""
    phrases = read_toml("phrases")
    hints = [set(pool) for pools in phrases["hints"].values() for pool in pools.values()]
    reactions = [set(pool) for pools in phrases["reactions"].values() for pool in pools.values()]
    for pools, apart in ((hints, phrases["apart"]["at_ease"]), (reactions, phrases["apart"]["telling"])):
        assert set(apart) <= set().union(*pools) and all(pool - set(apart) for pool in pools)


def test_repeated_lines_are_counted_apart_from_openings_and_farewells():
    dialogues = [
        talk("a", "b", "c"),
        talk("a", "b", "d", "bye").then(outcome=Outcome.LEFT),
        talk("e", "d", "bye").then(outcome=Outcome.DELIGHTED),
    ]
    assert repeated_lines(dialogues) == {
        "num_lines": 5,
        "num_said_before": 2,
        "num_repeated": 0,
        "num_openings": 3,
        "num_openings_before": 1,
        "num_farewells": 2,
        "num_farewells_before": 1,
    }
    # Within one dialogue it is another kind, and of three dialogues with the same line two repeat it.
    assert repeated_lines([talk("a", "b", "b", "b")])["num_repeated"] == 2
    assert repeated_lines([talk("a", "x"), talk("b", "x"), talk("c", "x")])["num_said_before"] == 2


@pytest.mark.parametrize("reserve", [None, (0.0,), (1.0,)])
def test_of_a_thousand_dialogues_hardly_two_users_say_the_same(reserve):
    found = repeated_lines(played(1000, **{**GRID, "reserve": reserve}))
    assert found["num_lines"] > 5000 and found["num_said_before"] / found["num_lines"] < 0.05 and found["num_repeated"] <= 2


def test_a_remark_is_about_a_fact_that_was_told_and_comes_instead_of_something_new():
    heads = {line.split("{")[0] for lines in read_toml("phrases")["remarks"].values() for line in lines}
    remark = re.compile(rf"(?:{'|'.join(map(re.escape, heads))})((?:[a-z']+ )*[a-z']+)")
    num = 0
    for dialogue in played(60, strictness=(0.55, 0.95), user=USER):
        facts, told = dialogue.scenario.facts, set()
        for _, turn in lines_of(dialogue):
            found, now = remark.search(turn.text), facts_stated(turn.text, facts)
            if found and not now:
                num += 1
                assert any(found[1].startswith(facts[index].cue.replace("your ", "my ")) for index in told), turn.text
            told |= set(now)
    assert num > 50
