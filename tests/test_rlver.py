"""RLVER's findings against a table whose numbers are chosen by hand."""

from __future__ import annotations

import json
import math

import pytest

from analysis.__main__ import main
from analysis.rlver import ALGORITHMS, MODES, USERS, Cell, Figures, figures_of, findings, leaning

CELLS = [Cell(algorithm, mode, user) for algorithm in ALGORITHMS for mode in MODES for user in USERS]


def figures(score: float, *, leaning: float = 0.0, gain: float = 30.0, gain_at_equal_length: float = 28.0) -> Figures:
    return Figures(score=score, gain=gain, gain_at_equal_length=gain_at_equal_length, leaning=leaning)


def score_of(cell: Cell, seed: int) -> float:
    """Challenging costs 10, and 4 more without thinking; seeds differ by 1, with PPO by 6."""
    fall = {"vanilla": 0.0, "challenging": 10.0 if cell.mode == "think" else 14.0}[cell.user]
    return 60.0 - fall + (6.0 if cell.algorithm == "ppo" else 1.0) * (seed - 1)


def made_table(**changes) -> dict[Cell, dict[int, Figures]]:
    return {cell: {seed: figures(score_of(cell, seed), **changes) for seed in range(3)} for cell in CELLS}


def by_claim(table) -> dict[str, tuple[float, str]]:
    return {finding.claim: (finding.estimate.value, finding.mark) for finding in findings(table)}


def test_each_claim_is_measured_as_it_says():
    found = by_claim(made_table())
    assert found["moderate users teach more than challenging ones"] == (pytest.approx(12.0), "reproduced")
    assert found["thinking is more robust to a hard user"] == (pytest.approx(4.0), "reproduced")
    # Pooled sd 6 and 1, each from four cells of three seeds.
    assert found["GRPO is steadier"] == (pytest.approx(math.log(6.0)), "reproduced")
    assert found["PPO's ceiling is higher"] == (pytest.approx(5.0), "reproduced")
    assert found["length does not explain the gain"] == (pytest.approx(13.0), "reproduced")


def test_a_claim_that_goes_the_other_way_is_not_reproduced_and_one_without_a_difference_neither():
    table = made_table(gain_at_equal_length=2.0)
    turned = {cell: table[cell._replace(user=USERS[1 - USERS.index(cell.user)])] for cell in CELLS}
    found = by_claim(turned)
    assert found["moderate users teach more than challenging ones"] == (pytest.approx(-12.0), "not reproduced")
    assert found["length does not explain the gain"] == (pytest.approx(-13.0), "not reproduced")
    assert found["thinking gives understanding, no thinking action"] == (0.0, "not reproduced")


def test_seeds_that_disagree_leave_a_claim_undecided():
    table = made_table()
    for cell in CELLS:
        if cell.user == "challenging":
            table[cell][2] = figures(90.0)
    assert by_claim(table)["moderate users teach more than challenging ones"][1] == "undecided"


def test_claims_without_their_runs_are_left_out():
    table = {cell: runs for cell, runs in made_table().items() if cell.mode == "plain" and cell.algorithm == "grpo"}
    assert "PPO's ceiling is higher" not in by_claim(table) and "GRPO is steadier" not in by_claim(table)


def line(look: int, emotion: float, words: int, heard: tuple[str, ...] = ()) -> dict:
    turns = [{"speaker": "user", "text": "well.", "change": None, "heard": []}]
    turns += [{"speaker": "agent", "text": "word " * words, "change": None, "heard": []}]
    turns += [{"speaker": "user", "text": "hm.", "change": 1, "heard": list(heard)}]
    return {"step": look, "grid": "full", "look": look, "outcome": "max_turns", "emotion": emotion, "turns": turns}


def test_a_gain_that_length_explains_is_none_at_equal_length():
    # Emotion is 10 log2(words): after training replies are four times as long, and better by that alone.
    lines = [line(look, 10.0 * math.log2(words), words) for look, counts in ((0, (2, 4)), (9, (8, 16))) for words in counts]
    found = figures_of(lines)
    assert found.gain == pytest.approx(20.0) and found.gain_at_equal_length == pytest.approx(0.0, abs=1e-9)
    flat = figures_of([line(0, 30.0, 4), line(0, 30.0, 8), line(9, 50.0, 4), line(9, 50.0, 8)])
    assert (flat.gain, flat.gain_at_equal_length) == (pytest.approx(20.0), pytest.approx(20.0))


def test_leaning_is_understanding_less_action_in_what_was_heard():
    lines = [line(9, 1.0, 1, heard) for heard in (("reflection",), ("suggestion",), ("motives", "suggestion"), ("listening",))]
    assert leaning(lines) == 0.25


def test_the_command_reads_a_sweep_and_marks_each_finding(tmp_path, capsys):
    for cell in CELLS:
        for seed in range(2):
            folder = tmp_path / "_".join(cell) / f"seed_{seed}"
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text("seed: 0\n")
            (folder / "metrics.jsonl").write_text("")
            (folder / "summary.json").write_text("{}")
            records = [line(0, 30.0, 4), line(0, 31.0, 8), line(9, score_of(cell, seed), 4), line(9, score_of(cell, seed), 8)]
            (folder / "evaluation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["rlver", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "moderate users teach more than challenging ones" in out and "16 runs" in out and "reproduced" in out
    assert main(["rlver", str(tmp_path / "ppo_think_vanilla")]) == 2
