"""Talking to a simulated user: what a pipe brings in, what is shown, summed up and saved."""

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


class Typed:
    """Lines that somebody types, and then nothing more."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    def read(self, prompt: str) -> str | None:
        return self.lines.pop(0) if self.lines else None


def talk(*lines: str, setup: Setup = SETUP, **screen: bool) -> tuple[str, Conversation]:
    """What was shown, and the conversation after it."""
    out = io.StringIO()
    conversation = Conversation(setup, screen=Screen(out=out, **screen), lines=Typed(*lines))
    conversation.run()
    return out.getvalue(), conversation


def piped(*arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "simulator", "chat", *arguments]
    return subprocess.run(program, cwd=ROOT, input=text, capture_output=True, text=True, timeout=60)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["chat", *arguments]) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.startswith("error: ") and message.count("\n") == 1
    return message.removeprefix("error: ").strip()


def test_a_pipe_talks_like_a_person_and_sees_a_bar_after_every_turn():
    done = piped("--seed", "4", text="What happened then?\nGo on, I am listening.\n")
    assert done.returncode == 0 and done.stderr == ""
    assert "you> What happened then?" in done.stdout
    assert sum("█" in line or "░" in line for line in done.stdout.splitlines()) == 3
    assert "You broke off: emotion 40 →" in done.stdout and "after 2 replies" in done.stdout
    assert "\x1b" not in done.stdout


def test_without_a_single_reply_there_is_nothing_to_sum_up():
    done = piped(text="/help\n/quit\n")
    assert done.returncode == 0
    assert "/steps" in done.stdout and "longed for:" not in done.stdout


def test_what_is_said_reaches_the_user_as_any_other_reply():
    shown, conversation = talk("What happened then?", "You should go on.")
    user = RuleUser(SETUP.config)
    opened = user.begin(SETUP.scenarios[0], VANILLA, seed=0)
    answer = user.answer(opened, "What happened then?").turn
    assert conversation.dialogue.turns[2] == answer
    assert conversation.dialogue.replies() == ["What happened then?", "You should go on."]
    assert f"{answer.emotion:3} {'▲' if answer.change > 0 else '▼'} {answer.change:+d}" in shown


def test_thoughts_and_steps_are_shown_on_demand_alone():
    silent, _ = talk("What happened then?")
    assert "thought:" not in silent and "heard:" not in silent
    asked, conversation = talk("What happened then?", "/why", "/steps")
    assert "thought: " + conversation.dialogue.turns[-1].thought[:20] in asked
    assert "heard:   question" in asked and "5 change: " in asked
    always, _ = talk("What happened then?", setup=replace(SETUP, shows_thoughts=True, shows_steps=True))
    assert "heard:   question" in always and "5 change: " in always


def test_before_the_first_reply_there_is_nothing_to_explain():
    shown, _ = talk("/why", "/steps")
    assert shown.count("Nothing has been answered yet.") == 2


def test_a_hint_is_what_the_agent_with_all_skills_would_say():
    shown, conversation = talk("/hint")
    assert f"L6 would say: {AGENTS['L6'].reply(conversation.dialogue)}" in " ".join(shown.split())


def test_hints_survive_whatever_was_said_before():
    shown, _ = talk(*["hm", "/hint"] * 3)
    assert shown.count("L6 would say:") == 3


def test_what_is_wished_for_stays_hidden_until_it_is_asked_for_or_over():
    wish = SETUP.scenarios[0].hidden_intention
    open_ended, conversation = talk()
    assert wish not in " ".join(open_ended.split())
    assert wish in " ".join(talk("/card")[0].split())
    assert wish in " ".join(talk("What happened?")[0].split())
    assert conversation.dialogue.num_replies == 0


def test_empty_lines_and_unknown_commands_are_answered_and_not_said():
    shown, conversation = talk("", "/wyh")
    assert "Say something, or /help." in shown and "There is no /wyh" in shown
    assert conversation.dialogue.num_replies == 0


def test_after_the_end_only_commands_count():
    setup = replace(SETUP, max_turns=1)
    shown, conversation = talk("What happened?", "And then?", "/hint", setup=setup)
    assert "That was the last reply" in shown and "It is over: /restart, /next or /quit." in shown
    assert conversation.dialogue.num_replies == 1


def test_a_restart_brings_the_same_person_and_next_another_one():
    setup = replace(SETUP, scenarios=load_bank().scenarios(Split.TRAIN))
    _, first = talk("What happened?", "/restart", setup=setup)
    _, second = talk("/next", setup=setup)
    assert first.dialogue.scenario == Conversation(setup, screen=Screen(out=io.StringIO()), lines=Typed()).dialogue.scenario
    assert first.dialogue.num_replies == 0
    assert second.dialogue.scenario != first.dialogue.scenario


def test_a_scripted_agent_plays_what_it_would_play_elsewhere():
    setup = replace(SETUP, agent=AGENTS["L6"], auto=True, seed=5)
    _, conversation = talk(setup=setup)
    assert conversation.dialogue == play(AGENTS["L6"], SETUP.scenarios[0], VANILLA, seed=5, user=RuleUser(SETUP.config))


def test_a_scripted_agent_goes_one_reply_further_at_each_enter():
    _, conversation = talk("", "", setup=replace(SETUP, agent=AGENTS["L3"]))
    assert conversation.dialogue.num_replies == 2


def test_the_summary_names_what_helped_and_what_was_missing():
    setup = replace(SETUP, agent=AGENTS["L0"], auto=True, difficulty=Difficulty.along(0.6))
    shown, conversation = talk(setup=setup)
    assert f"emotion 40 → {conversation.dialogue.emotion}" in shown
    assert "Hurt most: −" in shown and "What cost most: " in shown and "grounding in" in shown


def test_a_saved_dialogue_is_read_replayed_and_added_to(tmp_path, capsys):
    path = tmp_path / "talks.jsonl"
    config = RuleUserConfig(momentum=0.5, start_emotion=30)
    setup = replace(SETUP, save=path, config=config)
    _, conversation = talk("What happened then?", "/restart", "Go on.", setup=setup)
    saved = list(read_dialogues(path, load_bank()))
    assert len(saved) == 2 and saved[1][1] == conversation.dialogue
    assert saved[0][0]["agent"] == "person" and saved[0][0]["simulator"]["momentum"] == 0.5
    # The record says how the user was set, so that it is replayed without any flag.
    assert main(["explain", str(path), "--num", "0"]) == 0
    assert "all are the same" in capsys.readouterr().out


def test_difficulty_is_set_along_the_line_and_by_axis(tmp_path):
    path = tmp_path / "talks.jsonl"
    done = piped("--strictness", "0.75", "--reserve", "0", "--save", str(path), text="Go on.\n")
    assert done.returncode == 0
    assert json.loads(path.read_text())["difficulty"] == {"strictness": 0.75, "reserve": 0.0, "impatience": 0.7}


def test_scenarios_are_chosen_by_split_and_family():
    assert {str(scenario.family) for scenario in scenarios_for(None, split=Split.TRAIN, family="advice/negative")} == {"advice/negative"}
    assert {scenario.family.persona for scenario in scenarios_for(None, split=Split.HELDOUT, family="passive")} == {"passive"}
    assert {scenario.split for scenario in scenarios_for(None, split=Split.HELDOUT, family=None)} == {Split.HELDOUT}


def test_a_terminal_without_unicode_still_has_a_bar():
    shown, _ = talk("What happened then?", is_unicode=False)
    assert shown.isascii() and "####" in shown


def test_colours_come_with_a_number_and_a_word():
    shown, _ = talk(has_colours=True)
    assert "\x1b[36m" in shown and " 40 wavering" in shown


@pytest.mark.parametrize(
    ("arguments", "opening"),
    [
        (["--strictness", "2"], "strictness must be in [0, 1], got 2.0"),
        (["--reserve", "-1"], "difficulty.reserve must be in [0, 1], got -1.0"),
        (["--scenario", "nowhere"], "scenario_id must be one of the bank's"),
        (["--family", "joy"], "--family must be made of advice, "),
        (["--family", "advice/praise"], "--family must be one intention, one persona or both"),
        (["--agent", "L9"], "--agent must be one of L0, "),
        (["--auto"], "--auto must come with --agent"),
        (["--max-turns", "0"], "--max-turns must be at least 1, got 0"),
        (["--momentum", "1"], "simulator.momentum must be in [0, 1), got 1.0"),
        (["--save", "/nowhere/talks.jsonl"], "--save must name a file in a folder that is there"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(capsys, arguments, opening):
    assert refused(capsys, *arguments).startswith(opening)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:strict", "ascii"])
def test_bytes_that_are_no_text_lose_nothing(tmp_path, encoding: str):
    saved = tmp_path / "saved.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "simulator", "chat", "--max-turns", "1", "--save", str(saved)],
        cwd=ROOT,
        input=b"hello \xff you\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, saved.read_text(encoding="utf-8").splitlines())
    assert record["turns"][1]["text"].startswith("hello ") and record["turns"][1]["text"].endswith(" you")
