"""Talking to a simulated user: pipes, commands, summaries and saved dialogues."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.chat import Conversation, Screen, Setup, scenarios_for
from simulator.explain import read_dialogues
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

ROOT = Path(__file__).resolve().parent.parent
SETUP = Setup(scenarios=load_bank().scenarios(Split.TRAIN)[:1], difficulty=VANILLA, config=RuleUserConfig())


def talk(*lines: str, setup: Setup = SETUP, **screen: bool) -> tuple[str, Conversation]:
    """The output of somebody who types these lines and then nothing, and the conversation after it."""
    out, typed = io.StringIO(), iter(lines)
    conversation = Conversation(setup, screen=Screen(out=out, **screen), read=lambda prompt: next(typed, None))
    conversation.run()
    return out.getvalue(), conversation


def test_a_pipe_talks_like_a_person_and_bytes_that_are_no_text_lose_nothing_on_a_poor_terminal(tmp_path):
    path = tmp_path / "saved.jsonl"
    arguments = ["--strictness", "0.75", "--reserve", "0", "--seed", "4", "--save", str(path)]
    program = [sys.executable, "-m", "simulator", "chat", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    typed = b"hello \xff you\nGo on, I am listening.\n"
    done = subprocess.run(program, cwd=ROOT, input=typed, capture_output=True, timeout=60, env=environment)
    out = done.stdout.decode("ascii")
    assert done.returncode == 0 and done.stderr == b"" and "\x1b" not in out and "you> Go on, I am listening." in out
    assert sum("????" in line for line in out.splitlines()) == 3 and "You broke off: emotion 40 ?" in out and "after 2 replies" in out
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["turns"][1]["text"] == "hello \ufffd you"
    assert record["difficulty"] == {"strictness": 0.75, "reserve": 0.0, "impatience": 0.7}


def test_replies_reach_the_user_and_thoughts_and_steps_are_shown_on_demand():
    shown, conversation = talk("What happened then?", "You should go on.")
    user = RuleUser(SETUP.config)
    answer = user.answer(user.begin(SETUP.scenarios[0], VANILLA, seed=0), "What happened then?").turn
    assert conversation.dialogue.turns[2] == answer and conversation.dialogue.replies() == ["What happened then?", "You should go on."]
    assert f"{answer.emotion:3} {'▲' if answer.change > 0 else '▼'} {answer.change:+d}" in shown
    assert "thought:" not in shown and "heard:" not in shown
    asked, _ = talk("What happened then?", "/why", "/steps")
    always, _ = talk("What happened then?", setup=replace(SETUP, shows_thoughts=True, shows_steps=True))
    for text in (asked, always):
        assert "heard:   question" in text and "5 change: " in text and answer.thought[:20] in text


def test_commands():
    shown, conversation = talk("/why", "/steps", "", "/wyh", "/help", "/hint")
    assert shown.count("Nothing has been answered yet.") == 2 and "Say something" in shown and "There is no /wyh" in shown
    assert "/restart" in shown and f"L6 would say: {AGENTS['L6'].reply(conversation.dialogue)}" in " ".join(shown.split())
    assert conversation.dialogue.num_replies == 0 and "after" not in shown.split("/quit")[-1]
    wish = SETUP.scenarios[0].hidden_intention
    assert [wish in " ".join(talk(*lines)[0].split()) for lines in ((), ("/card",), ("What happened?",))] == [False, True, True]
    over, after = talk("What happened?", "And then?", "/hint", setup=replace(SETUP, max_turns=1))
    assert "That was the last reply" in over and "It is over: /restart, /next or /quit." in over and after.dialogue.num_replies == 1


def test_a_restart_brings_the_same_person_and_next_another_one():
    setup = replace(SETUP, scenarios=load_bank().scenarios(Split.TRAIN))
    first, again, other = (talk(*lines, setup=setup)[1].dialogue for lines in ((), ("What happened?", "/restart"), ("/next",)))
    assert first.scenario == again.scenario != other.scenario and again.num_replies == 0


def test_a_scripted_agent_plays_as_elsewhere_and_is_summed_up():
    setup = replace(SETUP, agent=AGENTS["L0"], auto=True, seed=5, difficulty=Difficulty.along(0.6))
    shown, conversation = talk(setup=setup)
    assert conversation.dialogue == play(AGENTS["L0"], SETUP.scenarios[0], setup.difficulty, seed=5, user=RuleUser(SETUP.config))
    assert f"emotion 40 → {conversation.dialogue.emotion}" in shown
    assert "Hurt most: −" in shown and "What cost most: " in shown and "grounding in" in shown
    assert talk("", "", setup=replace(SETUP, agent=AGENTS["L3"]))[1].dialogue.num_replies == 2


def test_a_saved_dialogue_is_replayed_without_flags(tmp_path, capsys):
    path = tmp_path / "talks.jsonl"
    setup = replace(SETUP, save=path, config=RuleUserConfig(momentum=0.5, start_emotion=30))
    _, conversation = talk("What happened then?", "/restart", "Go on.", setup=setup)
    saved = list(read_dialogues(path, load_bank()))
    assert len(saved) == 2 and saved[1][1] == conversation.dialogue and saved[0][0]["agent"] == "person"
    assert main(["explain", str(path), "--num", "0"]) == 0 and "all are the same" in capsys.readouterr().out


def test_scenarios_are_chosen_by_split_and_family():
    assert {str(scenario.family) for scenario in scenarios_for(None, split=Split.TRAIN, family="advice/negative")} == {"advice/negative"}
    assert {scenario.family.persona for scenario in scenarios_for(None, split=Split.HELDOUT, family="passive")} == {"passive"}


def test_colour_is_never_the_only_sign():
    coloured, _ = talk(has_colours=True)
    assert "\x1b[36m" in coloured and " 40 wavering" in coloured


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--strictness", "2"], "strictness"),
        (["--reserve", "-1"], "difficulty.reserve"),
        (["--scenario", "nowhere"], "scenario_id"),
        (["--family", "advice/praise"], "--family"),
        (["--agent", "L9"], "--agent"),
        (["--auto"], "--auto"),
        (["--max-turns", "0"], "--max-turns"),
        (["--momentum", "1"], "simulator.momentum"),
        (["--save", "/nowhere/talks.jsonl"], "--save"),
    ],
)
def test_impossible_requests_are_refused_in_one_sentence(capsys, arguments: list[str], name: str):
    assert main(["chat", *arguments]) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.startswith(f"error: {name} must ") and message.count("\n") == 1
