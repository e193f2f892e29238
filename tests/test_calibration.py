"""Calibration: realised strictness follows the commanded one, rungs stand in their places, and what is broken is noticed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from earlier_file import EARLIER, earlier

from simulator.__main__ import main
from simulator.calibration import PANEL_AGENTS, Frozen, Place, Scores, figure, from_run, in_order, judged_again, panel, places, rescored
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, HiddenIntention, Split
from simulator.scripted import AGENTS, play, sample
from simulator.version import world_name
from simulator.world import load_bank

CONFIG = RuleUserConfig()
USER = RuleUser(CONFIG)
FEW = sample(load_bank().scenarios(Split.TRAIN), 1, seed=0)
COARSE = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)


@pytest.fixture(scope="module")
def scores() -> Scores:
    return rescored(panel(FEW, user=USER), COARSE, CONFIG)


def test_realised_strictness_follows_the_commanded_one_in_every_family(scores):
    overall, families = scores.curve(COARSE), scores.by_family(COARSE)
    assert overall.spearman >= 0.95
    assert set(families) == set(FAMILIES) and min(curve.spearman for curve in families.values()) >= 0.95
    assert overall.realised[0] == 0.0 and overall.realised[-1] == 1.0


def test_rungs_come_in_order_on_frozen_dialogues(scores):
    for family in FAMILIES:
        assert in_order(scores.by_rung(family), is_advice=family.intention is HiddenIntention.ADVICE), str(family)


@pytest.mark.parametrize("register", list(Register))
def test_every_rung_is_in_its_place_in_every_family(register: Register):
    found = places(sample(load_bank().scenarios(Split.TRAIN), 16, seed=0), user=RuleUser(RuleUserConfig(register=register)))
    assert [(str(family), rung, place) for family, rungs in found.items() for rung, place in rungs.items() if not place.is_kept] == []
    assert set(found) == set(FAMILIES) and list(found[FAMILIES[0]]) == [f"L{k}" for k in range(7)]


def test_a_dialogue_judged_again_at_its_own_difficulty_ends_as_it_did():
    for d in (0.1, 0.4, 0.8):
        for name, agent in PANEL_AGENTS.items():
            played = play(agent, FEW[5], Difficulty.along(d), seed=3, user=USER)
            assert judged_again(played, played.difficulty, CONFIG) == played.emotion, (name, d)


def test_judging_again_leaves_the_words_alone():
    (frozen, *_) = panel(FEW[:1], user=USER)
    before = frozen.dialogue.to_dict()
    judged_again(frozen.dialogue, Difficulty.along(0.9), CONFIG)
    assert frozen.dialogue.to_dict() == before


def made_up(emotions: list[list[float]]) -> Scores:
    dialogue = play(AGENTS["L0"], FEW[0], Difficulty.along(0.5), seed=0, user=USER)
    other = play(AGENTS["L0"], FEW[-1], Difficulty.along(0.5), seed=0, user=USER)
    frozen = (Frozen(agent="L0", dialogue=dialogue), Frozen(agent="L0", dialogue=other))
    return Scores(frozen=frozen, levels=(0.0, 0.5, 1.0), emotions=np.array(emotions, float))


def test_realised_strictness_is_the_share_of_the_panels_own_range():
    curve = made_up([[80, 100], [60, 70], [20, 40]]).curve((0.0, 0.5, 1.0))
    assert curve.emotion == (90.0, 65.0, 30.0)
    assert curve.realised == pytest.approx((0.0, 25 / 60, 1.0))
    assert curve.spearman == 1.0 and curve.is_faithful


def test_users_who_do_not_get_stricter_are_noticed():
    swapped = made_up([[80, 80], [90, 70], [20, 40]]).by_family((0.0, 0.5, 1.0))
    assert [curve.is_faithful for curve in swapped.values()] == [False, True]
    still = made_up([[50, 80], [50, 70], [50, 40]]).by_family((0.0, 0.5, 1.0))
    assert [curve.is_faithful for curve in still.values()] == [False, True]


def test_a_rung_out_of_place_is_noticed():
    assert Place(below=70.0, above=39.9).is_kept and Place(below=None, above=None).is_kept
    assert not Place(below=69.9, above=10.0).is_kept and not Place(below=90.0, above=40.0).is_kept
    assert in_order({"L1": (2, 1), "L2": (3, 2)}, is_advice=False) and not in_order({"L1": (2, 2), "L2": (3, 2)}, is_advice=False)
    assert in_order({"L1": (2, 2), "L2": (3, 2)}, is_advice=True) and not in_order({"L1": (2, 2), "L2": (3, 4)}, is_advice=True)


def test_an_insensitive_user_misses_the_bounds():
    easy = rescored(panel(FEW[:4], user=USER), (0.0, 0.5, 1.0), CONFIG)
    flat = replace(easy, emotions=np.tile(easy.emotions[0], (3, 1)))
    assert not flat.curve((0.0, 0.5, 1.0)).is_faithful


def test_a_runs_dialogues_are_taken_evenly_and_by_the_seed():
    played = [play(AGENTS["L3"], scenario, Difficulty.along(0.5), seed=i, user=USER) for i, scenario in enumerate(FEW * 5)]
    chosen = from_run(played, 2, seed=1)
    assert len(chosen) == 2 * len(FAMILIES)
    assert chosen == from_run(played, 2, seed=1) != from_run(played, 2, seed=2)
    opening = USER.begin(FEW[0], Difficulty.along(0.5), seed=0)
    assert from_run([opening], 2, seed=1) == []


def test_the_figure_is_well_formed_and_holds_a_mark_for_each_family(scores):
    found = places(FEW[:4], user=USER)
    svg = figure(scores.curve(COARSE), scores.by_family(COARSE), found, title="A & B")
    tree = ElementTree.fromstring(svg)
    assert len(tree.findall(".//{*}polyline")) == 1 + len(FAMILIES)
    assert sum(node.text == "A & B" for node in tree.iter()) == 1
    assert "nan" not in svg


def test_the_command_writes_a_table_and_a_figure(capsys, tmp_path):
    (tmp_path / "a").mkdir()
    before = [earlier(tmp_path / "a" / name) for name in ("calibration.json", "calibration.svg")]
    code = main(["calibrate", "--per-family", "1", "--levels", "0", "0.3", "0.6", "1", "--out", str(tmp_path / "a"), "--by-family"])
    out = capsys.readouterr().out
    record = json.loads((tmp_path / "a" / "calibration.json").read_text())
    assert code == (0 if record["is_kept"] else 1)
    assert record["world"] == world_name("open") and record["overall"]["levels"] == [0, 0.3, 0.6, 1]
    assert set(record["families"]) == {str(family) for family in FAMILIES}
    assert "Spearman" in out and "each rung in its place" in out
    ElementTree.fromstring((tmp_path / "a" / "calibration.svg").read_text())
    assert [path.read_text() for path in before] == [EARLIER] * 2


def test_a_runs_dialogues_are_judged_again(capsys, tmp_path):
    lines = []
    for d in (0.2, 0.5, 0.8):
        for i, scenario in enumerate(FEW):
            played = play(AGENTS["L4"], scenario, Difficulty.along(d), seed=i, user=USER)
            lines.append(json.dumps({**played.to_dict(), "step": 0}))
    path = tmp_path / "dialogues.jsonl"
    path.write_text("\n".join(lines) + "\n")
    code = main(["calibrate", "--dialogues", str(path)])
    out = capsys.readouterr().out
    assert (
        code == (0 if "all bounds kept" in out else 1) and f"{len(lines)} frozen dialogues of 24 families" in out and "each rung" not in out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--levels", "0", "1"], "--levels must be at least three strictnesses, got 2"),
        (["--levels", "0", "0.5", "1.5"], "--levels must be in [0, 1], got 1.5"),
        (["--levels", "0", "0.5", "0.5"], "--levels must rise, got 0.0 0.5 0.5"),
        (["--per-family", "0"], "--per-family must be at least 1, got 0"),
        (["--dialogues", "nowhere.jsonl"], "DIALOGUE must be a JSONL file of ours or a run's folder, got 'nowhere.jsonl'"),
    ],
)
def test_a_request_that_cannot_be_met_is_named(capsys, arguments: list[str], message: str):
    assert main(["calibrate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {message}")


def test_a_file_without_anything_to_judge_is_named(capsys, tmp_path):
    path = tmp_path / "dialogues.jsonl"
    path.write_text("")
    assert main(["calibrate", "--dialogues", str(path)]) == 2
    assert "must hold a dialogue in which the user answers a reply, got none" in capsys.readouterr().err
    path.write_text("{}\n")
    assert main(["calibrate", "--dialogues", str(path)]) == 2
    assert f"{path} line 1" in capsys.readouterr().err
