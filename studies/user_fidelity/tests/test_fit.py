"""The numbers of the preset SAGE: how they are fitted, what they are held back from, and the user that follows them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from earlier_file import EARLIER, earlier
from native_files import transcript, write, write_folder

from simulator.__main__ import main
from simulator.dialogue import START_EMOTION, Dialogue, Speaker, Turn
from simulator.emotion import QUANTA
from simulator.explain import replay
from simulator.preset import Momentum, SageNumbers, Wording, signs, weigh
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, HiddenIntention, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank
from studies.user_fidelity.fit import Recorded, held_out, line, maker, read
from studies.user_fidelity.follow import follow
from studies.user_fidelity.recorded import read_recorded
from studies.user_fidelity.regression import Recipe, regress, scores
from studies.user_fidelity.rolling import matched_thresholds, roll
from studies.user_fidelity.wording_fit import regress_wording

SAGE = Path(__file__).resolve().parents[4] / "shared" / "sage"
RELEASED = pytest.mark.skipif(not SAGE.is_dir(), reason="the released files are not here")
SAGE_USER = RuleUserConfig(preset=Preset.SAGE)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder, profiles = write_folder(tmp_path_factory.mktemp("native"), num_profiles=9)
    return read(folder, profiles)


def native_dialogue(tmp_path: Path) -> Dialogue:
    write(tmp_path / "a_result.jsonl", [transcript(1, warmth=0.5, seed=5)])
    return read_recorded(tmp_path)[0].dialogues[0]


def test_the_same_command_gives_the_same_numbers(tmp_path, capsys):
    folder, profiles = write_folder(tmp_path)
    command = ["fit", "--transcripts", str(folder), "--profiles", str(profiles), "--bootstrap", "5"]
    before = earlier(tmp_path / "other.json")
    for name in ("one.json", "other.json"):
        assert main([*command, "--out", str(tmp_path / name)]) == 0
    assert before.read_text() == EARLIER
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()
    assert "pair_accuracy" in capsys.readouterr().out
    numbers = json.loads((tmp_path / "one.json").read_text())
    assert numbers["signs"]["praise"] > 0 > numbers["signs"]["suggestion"]
    file = folder / "x_based_simulator" / "alpha-2_result.jsonl"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert numbers["provenance"]["files"]["x_based_simulator/alpha-2_result.jsonl"] == digest
    assert (numbers["provenance"]["profiles"], numbers["provenance"]["dialogues"]) == (6, 24)
    assert SageNumbers.from_dict(numbers).thresholds == tuple(numbers["thresholds"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--transcripts", "nowhere"], "which is not there"),
        (["--transcripts", "dataset/x_based_simulator/beta1.5_result.jsonl.gz"], "must hold two makers' agents"),
        (["--transcripts", "dataset", "--out", "nowhere/numbers.json"], "--out must be a file in a folder that is there"),
        (["--transcripts", "dataset", "--bootstrap", "0"], "--bootstrap must be at least 1"),
    ],
)
def test_what_cannot_be_fitted_gets_one_sentence(tmp_path, monkeypatch, capsys, options, complaint):
    write_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--out", "numbers.json", *options]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
    assert not Path("numbers.json").exists()


def test_the_table_scores_a_reply_as_the_user_does(recorded):
    rows = np.ones(len(recorded.dialogues), bool)
    numbers = regress(recorded.table, rows, Recipe())
    found = scores(recorded.table, numbers)
    dialogue = recorded.dialogues[3]
    for index, reply in enumerate(dialogue.replies()):
        figures = signs(reply, dialogue.scenario, dialogue.replies()[:index])
        assert sum(numbers.terms(figures, dialogue.scenario, index, reply).values()) == pytest.approx(found[3, index])
    in_turns = found[recorded.table.is_turn]
    assert in_turns.mean() == pytest.approx(0.0, abs=1e-9) and in_turns.std() == pytest.approx(1.0)


def test_rolled_users_feel_what_followed_users_feel(recorded):
    rows = np.ones(len(recorded.dialogues), bool)
    weights = regress(recorded.table, rows, Recipe())
    found, momentum = scores(recorded.table, weights), Momentum(last=0.5, emotion=0.5)
    first, later = matched_thresholds(recorded.table, found, momentum, rows)
    numbers = replace(weights, momentum=momentum, first_thresholds=first, thresholds=later)
    rolled = roll(found, momentum, first, later)
    for place, dialogue in enumerate(recorded.dialogues[:8]):
        followed = follow(dialogue, lambda so_far, reply: weigh(so_far, reply, numbers).change, simulator="", agent="")
        assert followed.changes == tuple(int(change) for change in rolled.changes[place][: len(followed.changes)])


def test_thresholds_make_each_change_as_frequent_as_recorded(recorded):
    rows = np.ones(len(recorded.dialogues), bool)
    table, momentum = recorded.table, Momentum(last=0.0, emotion=0.0)
    found = np.random.default_rng(0).normal(size=table.changes.shape)
    changes = roll(found, momentum, *matched_thresholds(table, found, momentum, rows)).changes[table.is_turn]
    for change in QUANTA:
        assert np.mean(changes == change) == pytest.approx(np.mean(table.changes[table.is_turn] == change), abs=0.02)


def test_nobody_is_judged_by_numbers_that_know_the_agent_or_the_profile(recorded, monkeypatch):
    fitted_on = []

    def watched(recorded, recipe, rows, *, seed):
        fitted_on.append(rows)
        return SageNumbers.calibrated()

    monkeypatch.setattr("studies.user_fidelity.fit.fit_numbers", watched)
    groups = [maker(agent) for agent in recorded.agents]
    followed = held_out(recorded, Recipe(), groups, seed=0)
    assert sorted((f.simulator.split()[0], f.agent, f.profile) for f in followed) == sorted(
        zip(recorded.simulators, recorded.agents, recorded.profiles, strict=True)
    )
    profiles, makers = np.array(recorded.profiles), np.array(groups)
    for rows in fitted_on:
        (held,) = set(makers) - set(makers[rows])
        unseen = set(profiles) - set(profiles[rows])
        assert len(unseen) == 3 and rows.sum() == ((makers != held) & ~np.isin(profiles, list(unseen))).sum()


def test_agents_are_grouped_by_their_names():
    assert [line(name) for name in ("gpt-4o-0808", "gpt-4o-2024-08-06", "gpt-4.1", "deepseek-v3-0324")] == ["gpt-4o"] * 2 + [
        "gpt-4.1",
        "deepseek-v3",
    ]
    assert [maker(name) for name in ("gpt-4o-0808", "gemini2.0-flash", "123")] == ["gpt", "gemini", "123"]


def test_a_user_of_the_preset_makes_sages_changes_and_can_be_replayed(tmp_path):
    dialogue, user = native_dialogue(tmp_path), RuleUser(SAGE_USER)
    opened = user.begin(dialogue.scenario, VANILLA, seed=1)
    assert opened.emotion == START_EMOTION
    made = opened
    for reply in dialogue.replies():
        turn = user.answer(made, reply).turn
        assert turn.change in QUANTA and turn.thought
        made = made.then(Turn(speaker=Speaker.AGENT, text=reply), turn)
    assert all(turn.is_same for turn in replay(made, SAGE_USER))


def test_difficulty_does_not_enter_and_the_steps_add_up():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = play(AGENTS["L3"], scenario, VANILLA, seed=0, user=RuleUser(SAGE_USER))
    turns = list(replay(dialogue, SAGE_USER))
    assert len(turns) > 2 and all(turn.is_same for turn in turns)
    explained = turns[1].explanation
    assert explained is not None and explained.weighed.change == turns[1].recorded.change
    total = explained.weighed.score + SageNumbers.calibrated().momentum.pull(explained.weighed.last, explained.weighed.emotion)
    assert total == pytest.approx(explained.weighed.pull)


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.5), ("quantise", True), ("start_emotion", 30)])
def test_the_preset_brings_its_own_settings(name, value):
    with pytest.raises(ValueError, match=f"simulator.{name} must be .* with simulator.preset sage"):
        RuleUserConfig(preset=Preset.SAGE, **{name: value})


@pytest.mark.parametrize("reply", ["", "。。。", "asdf qwer zxcv", "I am sorry to hear that, how are you feeling about it now?"])
def test_what_a_chinese_user_cannot_follow_is_as_bad_as_can_be(tmp_path, reply):
    assert weigh(native_dialogue(tmp_path), reply).change == QUANTA[0]


def test_a_golden_sentence_pleases_no_second_time(tmp_path):
    dialogue = native_dialogue(tmp_path)
    assert weigh(dialogue, dialogue.replies()[-1]).change < 0


def test_committed_numbers_are_figures_with_their_provenance():
    numbers = json.loads(SageNumbers.FILE.read_text(encoding="utf-8"))
    assert numbers["provenance"]["turns"] > 3000 and len(numbers["provenance"]["files"]) == 8
    assert set(numbers["by_intention"]) == set(HiddenIntention)
    assert SageNumbers.FILE.read_text(encoding="utf-8").isascii()
    low, middle, high = SageNumbers.calibrated().thresholds
    assert low < middle < high


@RELEASED
def test_committed_numbers_are_those_of_the_released_files():
    numbers = json.loads(SageNumbers.FILE.read_text(encoding="utf-8"))
    for name, digest in numbers["provenance"]["files"].items():
        assert hashlib.sha256((SAGE / "dataset" / name).read_bytes()).hexdigest()[:16] == digest
    recorded = read(SAGE / "dataset", None)
    fresh = regress(recorded.table, np.ones(len(recorded.dialogues), bool), Recipe())
    for name, weight in numbers["signs"].items():
        assert fresh.signs[name] == pytest.approx(weight, abs=1e-3)
    wording = regress_wording(recorded.table, np.ones(len(recorded.dialogues), bool), fresh, Recipe())
    assert wording.weights == pytest.approx(SageNumbers.calibrated().wording.weights, abs=2 * Wording.STEP)
