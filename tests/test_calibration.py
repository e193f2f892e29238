"""Calibration: realised strictness follows the commanded one, rungs are in their places, and broken users are noticed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from simulator.__main__ import main
from simulator.calibration import (
    PANEL_AGENTS,
    Calibration,
    Frozen,
    Place,
    Scores,
    figure,
    from_run,
    in_order,
    judged_again,
    panel,
    places,
    rescored,
)
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, HiddenIntention, Split
from simulator.scripted import AGENTS, play, sample
from simulator.version import world_name
from simulator.world import load_bank

CONFIG = RuleUserConfig()
USER = RuleUser(CONFIG)
FEW = sample(load_bank().scenarios(Split.TRAIN), 1, seed=0)
THREE = [scenario for scenario in FEW if scenario.family in FAMILIES[::8]]
COARSE = (0.0, 0.3, 0.6, 0.9, 1.0)


@pytest.fixture(scope="module")
def scores() -> Scores:
    return rescored(panel(THREE, user=USER), COARSE, CONFIG)


def test_realised_strictness_follows_the_commanded_one_and_rungs_come_in_order(scores):
    overall, families = scores.curve(COARSE), scores.by_family(COARSE)
    assert min(curve.spearman for curve in (overall, *families.values())) >= 0.95 and len(families) == 3
    assert overall.realised[0] == 0.0 and overall.realised[-1] == 1.0
    for family in families:
        assert in_order(scores.by_rung(family), is_advice=family.intention is HiddenIntention.ADVICE), str(family)


def test_every_rung_is_in_its_place():
    members = [scenario for scenario in sample(load_bank().scenarios(Split.TRAIN), 8, seed=0) if scenario.family in FAMILIES[::8]]
    found = places(members, user=USER)
    assert [(str(family), rung, place) for family, rungs in found.items() for rung, place in rungs.items() if not place.is_kept] == []
    assert list(next(iter(found.values()))) == [f"L{k}" for k in range(7)]


def test_a_dialogue_judged_again_at_its_own_difficulty_ends_as_it_did():
    for d in (0.1, 0.4, 0.8):
        for name, agent in PANEL_AGENTS.items():
            played = play(agent, FEW[5], Difficulty.along(d), seed=3, user=USER)
            assert judged_again(played, played.difficulty, CONFIG) == played.emotion, (name, d)


def made_up(emotions: list[list[float]]) -> Scores:
    frozen = tuple(
        Frozen(agent="L0", dialogue=play(AGENTS["L0"], one, Difficulty.along(0.5), seed=0, user=USER)) for one in (FEW[0], FEW[-1])
    )
    return Scores(frozen=frozen, levels=(0.0, 0.5, 1.0), emotions=np.array(emotions, float))


def test_realised_strictness_is_the_share_of_the_panels_own_range():
    curve = made_up([[80, 100], [60, 70], [20, 40]]).curve((0.0, 0.5, 1.0))
    assert curve.emotion == (90.0, 65.0, 30.0) and curve.realised == pytest.approx((0.0, 25 / 60, 1.0)) and curve.spearman == 1.0


def test_users_who_do_not_get_stricter_are_noticed():
    for emotions in ([[80, 80], [90, 70], [20, 40]], [[50, 80], [50, 70], [50, 40]]):
        curves = made_up(emotions).by_family((0.0, 0.5, 1.0)).values()
        assert [curve.is_faithful for curve in curves] == [False, True]


def test_a_rung_out_of_place_is_noticed():
    assert Place(below=70.0, above=39.9).is_kept and Place(below=None, above=None).is_kept
    assert not Place(below=69.9, above=10.0).is_kept and not Place(below=90.0, above=40.0).is_kept
    assert in_order({"L1": (2, 1), "L2": (3, 2)}, is_advice=False) and not in_order({"L1": (2, 2), "L2": (3, 2)}, is_advice=False)
    assert in_order({"L1": (2, 2), "L2": (3, 2)}, is_advice=True) and not in_order({"L1": (2, 2), "L2": (3, 4)}, is_advice=True)


def test_a_runs_dialogues_are_taken_evenly_and_by_the_seed():
    played = [play(AGENTS["L3"], scenario, Difficulty.along(0.5), seed=i, user=USER) for i, scenario in enumerate(FEW * 4)]
    chosen = from_run(played, 2, seed=1)
    assert len(chosen) == 2 * len(FAMILIES) and chosen == from_run(played, 2, seed=1) != from_run(played, 2, seed=2)
    assert from_run([USER.begin(FEW[0], Difficulty.along(0.5), seed=0)], 2, seed=1) == []


def test_the_figure_has_a_line_for_each_family_and_marks_for_each_rung(scores):
    result = Calibration(scores, COARSE, {})
    tree = ElementTree.fromstring(figure(result, title="A & B"))
    num_lines = len(tree.findall(".//{*}polyline"))
    assert sum(node.text == "A & B" for node in tree.iter()) == 1 and tree.findall(".//{*}circle") == []
    result.places = places(THREE[:1], user=USER)
    svg = figure(result, title="A & B")
    assert len(ElementTree.fromstring(svg).findall(".//{*}circle")) >= 7 and svg.count("<polyline") == num_lines + 6 and "nan" not in svg


def test_the_command_writes_a_table_and_a_figure(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.calibration.sample", lambda scenarios, per_family, *, seed: THREE)
    code = main(["calibrate", "--per-family", "1", "--levels", "0", "0.5", "1", "--out", str(tmp_path / "a"), "--by-family"])
    out = capsys.readouterr().out
    record = json.loads((tmp_path / "a" / "calibration.json").read_text())
    assert code == (0 if record["is_kept"] else 1) and "Spearman" in out and "each rung in its place" in out
    assert record["world"] == world_name("open") and record["overall"]["levels"] == [0, 0.5, 1] and len(record["families"]) == 3
    ElementTree.fromstring((tmp_path / "a" / "calibration.svg").read_text())


def test_a_runs_dialogues_are_judged_again(capsys, tmp_path):
    played = [play(AGENTS["L4"], scenario, Difficulty.along(d), seed=0, user=USER) for d in (0.2, 0.5, 0.8) for scenario in THREE]
    path = tmp_path / "dialogues.jsonl"
    path.write_text("".join(json.dumps({**dialogue.to_dict(), "step": 0}) + "\n" for dialogue in played))
    code = main(["calibrate", "--dialogues", str(path), "--levels", "0", "0.5", "1"])
    out = capsys.readouterr().out
    assert code == (0 if "all bounds kept" in out else 1) and "9 frozen dialogues of 3 families" in out and "each rung" not in out
    for content in ("", "{}\n"):
        path.write_text(content)
        assert main(["calibrate", "--dialogues", str(path)]) == 2 and str(path) in capsys.readouterr().err


@pytest.mark.parametrize("levels", [["0", "1"], ["0", "0.5", "1.5"], ["0", "0.5", "0.5"]])
def test_impossible_levels_are_refused(capsys, levels: list[str]):
    assert main(["calibrate", "--levels", *levels]) == 2
    assert capsys.readouterr().err.startswith("error: --levels must be")


def test_an_insensitive_user_misses_the_bounds(scores):
    flat = replace(scores, emotions=np.tile(scores.emotions[0], (len(scores.levels), 1)))
    assert not flat.curve(COARSE).is_faithful
