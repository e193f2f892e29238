"""Skills read off finished dialogues."""

from __future__ import annotations

import json
import math

import pytest

from simulator.__main__ import main
from simulator.emotion import Skill
from simulator.explain import read_dialogues, shares_shown
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Split
from simulator.scripted import score_agent
from simulator.world import load_bank

SCENARIOS = load_bank().scenarios(Split.TRAIN)[::20]


def shares_of(agent: str, strictness: float) -> dict[str, float]:
    dialogues = score_agent(agent, SCENARIOS, [strictness], user=RuleUser(RuleUserConfig(register=Register.WORLD)))[strictness]
    return shares_shown(dialogues, register=Register.WORLD)


def test_each_rung_of_the_ladder_shows_its_skill_and_the_rung_below_does_not():
    for rung, skill in enumerate((Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY), start=1):
        below, at = shares_of(f"L{rung - 1}", 0.3), shares_of(f"L{rung}", 0.3)
        assert at[skill] > below[skill] + 0.4, skill
    assert shares_of("L6", 0.3)["garbled"] < 0.02


def test_a_skill_that_was_never_called_for_has_no_share():
    assert math.isnan(shares_of("L6", 0.1)[Skill.HINTS])


def test_the_command_reads_a_runs_dialogues(tmp_path, capsys):
    user = RuleUser(RuleUserConfig(register=Register.WORLD))
    played = score_agent("L2", SCENARIOS[:4], [0.2, 0.8], user=user)
    path = tmp_path / "dialogues.jsonl"
    lines = [{"step": step, **dialogue.to_dict()} for step, d in ((3, 0.2), (14, 0.8)) for dialogue in played[d]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [dialogue for _, dialogue in read_dialogues(path, load_bank())] == [*played[0.2], *played[0.8]]
    assert main(["skills", str(path)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["step", "dialogues", "emotion", "fit"]
    assert [row.split()[:2] for row in rows] == [["0", "4"], ["10", "4"]]
    assert main(["skills", str(path), "--by", "strictness", "--from-step", "10"]) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == ["0.8"]


def test_a_last_line_that_a_kill_tore_is_left_out_and_said(tmp_path, capsys):
    (played,) = score_agent("L2", SCENARIOS[:2], [0.2], user=RuleUser(RuleUserConfig(register=Register.WORLD))).values()
    path = tmp_path / "dialogues.jsonl"
    whole, torn = (json.dumps({"step": 3, **dialogue.to_dict()}) for dialogue in played)
    path.write_text(whole + "\n" + torn[:200])
    assert [dialogue for _, dialogue in read_dialogues(path, load_bank())] == [played[0]]
    assert f"note: {path} breaks off within line 2" in capsys.readouterr().err
    assert main(["convert", str(path), str(tmp_path / "sage.jsonl")]) == 0
    assert "breaks off within line 2" in capsys.readouterr().err and len((tmp_path / "sage.jsonl").read_text().splitlines()) == 1
    path.write_text(torn[:200])
    assert main(["convert", str(path), str(tmp_path / "none.jsonl")]) == 2
    assert "line 1 must be a JSON object, got one that breaks off" in capsys.readouterr().err
    sage = (tmp_path / "sage.jsonl").read_text()
    path.write_text(sage + sage[:100])
    assert main(["convert", str(path), str(tmp_path / "none.jsonl")]) == 2 and not (tmp_path / "none.jsonl").exists()
    assert "line 2 must be a JSON object, got one that breaks off" in capsys.readouterr().err
    path.write_text(torn[:200] + "\n" + whole + "\n")
    assert main(["skills", str(path)]) == 2
    assert "line 1 must be a dialogue of this world" in capsys.readouterr().err


def test_without_a_dialogue_there_is_no_table(tmp_path, capsys):
    path = tmp_path / "dialogues.jsonl"
    path.write_text("")
    assert main(["skills", str(path)]) == 2
    assert "FILE must hold a dialogue that did not break, got none" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["", "{}", '{"scenario_id": "nowhere"}', '{"step": "x"}'])
def test_a_line_that_is_no_dialogue_is_named(tmp_path, capsys, line):
    path = tmp_path / "dialogues.jsonl"
    path.write_text(line + "\n")
    assert main(["skills", str(path)]) == 2
    assert "line 1 must be a dialogue of this world" in capsys.readouterr().err
    assert main(["skills", str(tmp_path / "none.jsonl")]) == 2
    assert "which is not there" in capsys.readouterr().err
