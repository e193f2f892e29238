"""Calibration: realised strictness follows the commanded one, rungs are in their places, and broken users are noticed."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from fake_endpoint import FakeEndpoint, answer, serving

from simulator.__main__ import main
from simulator.calibration import Calibration, Frozen, Place, Scores
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, Split
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
    return Scores.of(Frozen.panel(THREE, user=USER), COARSE, CONFIG)


def test_realised_strictness_follows_the_commanded_one_rungs_come_in_order_and_broken_users_are_noticed(scores):
    in_place = {family: {f"L{k}": Place(below=70.0, above=39.9) for k in range(7)} for family in FAMILIES[::8]}
    result = Calibration(scores, COARSE, in_place)
    assert result.missed == [] and tuple(result.families) == FAMILIES[::8]
    assert result.overall.realised[0] == 0.0 and result.overall.realised[-1] == 1.0
    # L0 has L1's skill where advice is wanted.
    assert result.lead(FAMILIES[0], "L1") is None and result.lead(FAMILIES[8], "L1") > 0 and result.lead(FAMILIES[0], "L0") is None
    flat = replace(scores, emotions=np.tile(scores.emotions[0], (len(scores.levels), 1)))
    assert {"all", str(FAMILIES[8])} <= set(Calibration(flat, COARSE, {}).missed)
    upside_down = Calibration(replace(scores, emotions=100 - scores.emotions), COARSE, in_place)
    assert [name for name in upside_down.missed if name.endswith("order")] == [f"{family} order" for family in FAMILIES[::8]]


def test_every_rung_is_in_its_place():
    members = [scenario for scenario in sample(load_bank().scenarios(Split.TRAIN), 8, seed=0) if scenario.family in FAMILIES[::8]]
    found = Place.ladder(members, user=USER)
    assert [(str(family), rung, place) for family, rungs in found.items() for rung, place in rungs.items() if not place.is_kept] == []
    assert list(next(iter(found.values()))) == [f"L{k}" for k in range(7)]


def test_a_dialogue_judged_again_at_its_own_difficulty_ends_as_it_did():
    for one in Frozen.panel(FEW[5:7], user=USER):
        assert one.judged_again(one.dialogue.difficulty, CONFIG) == one.dialogue.emotion, one.agent


def test_realised_strictness_is_the_share_of_the_panels_own_range():
    frozen = tuple(Frozen(agent="L0", dialogue=USER.begin(one, Difficulty.along(0.5), seed=0)) for one in (FEW[0], FEW[-1]))
    made_up = Scores(frozen=frozen, levels=(0.0, 0.5, 1.0), emotions=np.array([[80, 100], [60, 70], [20, 40]], float))
    curve = made_up.curve((0.0, 0.5, 1.0))
    assert curve.emotion == (90.0, 65.0, 30.0) and curve.realised == pytest.approx((0.0, 25 / 60, 1.0)) and curve.spearman == 1.0
    for first in ([80, 90, 20], [50, 50, 50]):  # the first family's users do not get stricter, the second's do
        emotions = np.array([first, [80, 70, 40]], float).T
        missed = Calibration(replace(made_up, emotions=emotions), (0.0, 0.5, 1.0), {}).missed
        assert str(FEW[0].family) in missed and str(FEW[-1].family) not in missed


def test_a_rung_out_of_place_is_noticed():
    assert Place(below=70.0, above=39.9).is_kept and Place(below=None, above=None).is_kept
    assert not Place(below=69.9, above=10.0).is_kept and not Place(below=90.0, above=40.0).is_kept


def test_the_figure_has_a_line_for_each_family_and_marks_for_each_rung(scores):
    result = Calibration(scores, COARSE, {})
    tree = ElementTree.fromstring(result.figure(title="A & B"))
    num_lines = len(tree.findall(".//{*}polyline"))
    assert sum(node.text == "A & B" for node in tree.iter()) == 1 and tree.findall(".//{*}circle") == []
    result.places = {FAMILIES[0]: {f"L{k}": Place(below=80.0, above=None) for k in range(7)}}
    svg = result.figure(title="A & B")
    assert len(ElementTree.fromstring(svg).findall(".//{*}circle")) == 7 and svg.count("<polyline") == num_lines + 6


def test_the_command_writes_a_table_and_a_figure(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.calibration.sample", lambda scenarios, per_family, *, seed: THREE[:1])
    code = main(["calibrate", "--per-family", "1", "--levels", "0", "0.5", "1", "--out", str(tmp_path / "a"), "--by-family"])
    out = capsys.readouterr().out
    record = json.loads((tmp_path / "a" / "calibration.json").read_text())
    assert code == (0 if record["is_kept"] else 1) and "Spearman" in out and "each rung in its place" in out
    assert record["world"] == world_name("open") and record["overall"]["levels"] == [0, 0.5, 1] and len(record["families"]) == 1
    ElementTree.fromstring((tmp_path / "a" / "calibration.svg").read_text())


def test_a_runs_dialogues_are_taken_evenly_by_the_seed_and_judged_again(capsys, tmp_path):
    played = [play(AGENTS["L4"], scenario, Difficulty.along(d), seed=0, user=USER) for d in (0.2, 0.5, 0.8) for scenario in THREE]
    path = tmp_path / "dialogues.jsonl"
    path.write_text("".join(json.dumps({**dialogue.to_dict(), "step": 0}) + "\n" for dialogue in played))
    judge = ["calibrate", "--dialogues", str(path), "--levels", "0", "0.5", "1"]
    code = main(judge)
    out = capsys.readouterr().out
    assert code == (0 if "all bounds kept" in out else 1) and "9 frozen dialogues of 3 families" in out and "each rung" not in out
    outs = []
    for seed in ("1", "1", "2"):
        main([*judge, "--per-family", "1", "--seed", seed])
        outs.append(capsys.readouterr().out)
    assert "3 frozen dialogues of 3 families" in outs[0] and outs[0] == outs[1] != outs[2]
    for content in ("", "{}\n"):
        path.write_text(content)
        assert main(["calibrate", "--dialogues", str(path)]) == 2 and str(path) in capsys.readouterr().err


def test_a_model_that_heeds_the_strictness_obeys_and_one_that_ignores_it_does_not(capsys, tmp_path, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setattr("simulator.calibration.sample", lambda scenarios, per_family, *, seed: THREE[:2])

    def heeds(request):
        demands = float(re.search(r"Demands on the other person, (\S+):", request["messages"][0]["content"])[1])
        return answer(change=round(5 - 8 * demands))(request)

    for behaviour, code in ((heeds, 0), (answer(change=2), 1)):
        with serving(FakeEndpoint(always=behaviour)) as server:
            asked = [
                "calibrate",
                "--user",
                "llm",
                "--user-url",
                server.url,
                "--user-model",
                "m",
                "--cache",
                "off",
                "--levels",
                "0",
                "0.5",
                "1",
            ]
            assert main([*asked, "--out", str(tmp_path)]) == code
        record = json.loads((tmp_path / "calibration.json").read_text())
        assert record["obeys"] is (code == 0) and record["overall"]["num_dialogues"] == 2 and record["num_left_out"] == 0
    assert record["fall"] == 0.0 and "DOES NOT OBEY" in capsys.readouterr().out


@pytest.mark.parametrize("levels", [["0", "1"], ["0", "0.5", "1.5"], ["0", "0.5", "0.5"]])
def test_impossible_levels_are_refused(capsys, levels: list[str]):
    assert main(["calibrate", "--levels", *levels]) == 2
    assert capsys.readouterr().err.startswith("error: --levels must be")
