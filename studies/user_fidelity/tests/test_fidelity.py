"""`python -m analysis fidelity` on made-up native files, and on the released ones where they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from earlier_file import EARLIER, earlier
from native_files import profile, transcript, write, write_folder

from analysis.__main__ import main
from simulator.dialogue import Dialogue
from studies.user_fidelity.agreement import Followed
from studies.user_fidelity.follow import follow
from studies.user_fidelity.recorded import read_recorded

SAGE = Path(__file__).resolve().parents[4] / "shared" / "sage"
RELEASED = pytest.mark.skipif(not SAGE.is_dir(), reason="the released files are not here")
KEYS = {
    *("turn_pearson", "sign_accuracy", "first_turn_pearson", "change_distribution_tv", "momentum_curve_mae", "agents", "agent_spearman"),
    *("pair_accuracy", "score_mae", "num_turns", "num_agents"),
}


def measured(folder: Path, profiles: Path, *options: str) -> int:
    return main(["fidelity", "--transcripts", str(folder), "--profiles", str(profiles), *options])


def recorded_dialogue(tmp_path: Path) -> Dialogue:
    write(tmp_path / "a_result.jsonl", [transcript(0, warmth=0.5, seed=3)])
    (file,) = read_recorded(tmp_path)
    return file.dialogues[0]


def test_it_prints_and_writes_the_same_figures(tmp_path, capsys):
    folder, profiles = write_folder(tmp_path)
    out = tmp_path / "found.json"
    before = earlier(out)
    assert measured(folder, profiles, "--out", str(out), "--bootstrap", "10") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text()) and before.read_text() == EARLIER
    assert set(found) == {*KEYS, "turn_pearson_from_recorded_state", "sign_accuracy_from_recorded_state", "intervals"}
    assert set(found["agents"]) == {"x/alpha-1", "alpha-2", "beta1.5", "y/alpha-1"}
    assert found["num_agents"] == 4 and found["num_turns"] > 40
    true = [json.loads(line)["emo_point"] for line in (folder / "y_based_simulator/alpha-1_result.jsonl").read_text().splitlines()]
    assert found["agents"]["y/alpha-1"]["true"] == pytest.approx(sum(true) / len(true), abs=1e-3)
    assert all(0 <= agent["predicted"] <= 100 for agent in found["agents"].values())


def test_praise_and_advice_are_told_apart_by_the_committed_numbers(tmp_path, capsys):
    folder, profiles = write_folder(tmp_path)
    assert measured(folder, profiles, "--bootstrap", "0") == 0
    found = json.loads(capsys.readouterr().out)
    assert "intervals" not in found
    assert found["agents"]["x/alpha-1"]["predicted"] > found["agents"]["beta1.5"]["predicted"]


def test_a_single_file_and_files_directly_in_the_folder_are_read(tmp_path, capsys):
    folder, profiles = write_folder(tmp_path)
    file = folder / "x_based_simulator" / "alpha-2_result.jsonl"
    assert measured(file, profiles, "--bootstrap", "0") == 0
    assert set(json.loads(capsys.readouterr().out)["agents"]) == {"alpha-2"}
    assert measured(file.parent, profiles, "--bootstrap", "0") == 0
    assert set(json.loads(capsys.readouterr().out)["agents"]) == {"alpha-1", "alpha-2", "beta1.5"}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder, profiles: folder.rename(folder.parent / "gone"), "which is not there"),
        (lambda folder, profiles: [path.unlink() for path in folder.rglob("*_result*")], "in files <agent>_result.jsonl"),
        (lambda folder, profiles: write(profiles, [{**profile(0), "id": "another"}]), "must hold the profiles of the transcripts"),
        (lambda folder, profiles: (folder / "y_based_simulator/alpha-1_result.jsonl").write_text('{"id": 1}\n'), "line 1 must be"),
        (lambda folder, profiles: profiles.unlink(), "must be a file that can be read"),
        (lambda folder, profiles: damage(folder / "y_based_simulator/alpha-1_result.jsonl"), "must be a whole gzip file"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path, capsys, spoil, complaint):
    folder, profiles = write_folder(tmp_path)
    spoil(folder, profiles)
    assert measured(folder, profiles, "--bootstrap", "0") == 2
    said = capsys.readouterr()
    assert said.out == "" and complaint in said.err and said.err.count("\n") == 1


def damage(path: Path) -> None:
    """Puts a gzipped file in its place that is broken in the middle."""
    packed = bytearray(gzip.compress(path.read_bytes()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    path.with_suffix(".jsonl.gz").write_bytes(packed)
    path.unlink()


@pytest.mark.parametrize("options", [("--out", "."), ("--out", "nowhere/found.json"), ("--bootstrap", "-1"), ("--seed", "-1")])
def test_wrong_options_are_refused_before_anything_is_read(tmp_path, capsys, options):
    assert measured(tmp_path / "gone", tmp_path / "gone", *options) == 2
    assert options[0] in capsys.readouterr().err


def test_a_file_beside_results_that_is_not_called_one_is_passed_over(tmp_path, capsys):
    folder, profiles = write_folder(tmp_path)
    (folder / "y_based_simulator/notes.jsonl").write_text("{}\n")
    assert measured(folder, profiles, "--bootstrap", "0") == 0
    assert len(json.loads(capsys.readouterr().out)["agents"]) == 4


def test_a_profile_that_is_not_in_the_file_is_taken_from_the_transcript(tmp_path, capsys):
    folder, profiles = write_folder(tmp_path)
    write(profiles, [profile(number) for number in range(4)])
    assert measured(folder, profiles, "--bootstrap", "0") == 0
    assert "note: 2 profiles" in capsys.readouterr().err


def test_a_user_goes_on_from_its_own_state(tmp_path):
    dialogue = recorded_dialogue(tmp_path)
    met: list[tuple[int, int | None]] = []

    def feels(so_far: Dialogue, reply: str) -> int:
        met.append((so_far.emotion, so_far.turns[-1].change))
        return 5

    followed = follow(dialogue, feels, simulator="", agent="a")
    num = len(followed.changes)
    assert met == [(40 + 5 * index, 5 if index else None) for index in range(num)]
    assert followed.true_changes == tuple(turn.change for turn in dialogue.turns if turn.change is not None)
    assert (followed.score, followed.true_score) == (40 + 5 * num, dialogue.emotion)


def test_from_the_recorded_state_it_does_not(tmp_path):
    dialogue = recorded_dialogue(tmp_path)
    followed = follow(dialogue, lambda so_far, reply: so_far.turns[-1].change or 0, simulator="", agent="a", from_recorded_state=True)
    assert followed.changes == (0, *followed.true_changes[:-1])
    assert followed.before == followed.true_before


def test_a_user_that_has_left_keeps_its_score(tmp_path):
    dialogue = recorded_dialogue(tmp_path)
    changes = iter((-10, -10, -10, -10, 10, 10, 10))
    followed: Followed = follow(dialogue, lambda so_far, reply: next(changes), simulator="", agent="a")
    assert len(followed.changes) >= 4 and followed.score == 0


@RELEASED
def test_on_the_released_conversations_it_keeps_what_was_measured(capsys):
    folder = SAGE / "dataset" / "gpt-4o-2024-0806_based_simulator"
    assert measured(folder, SAGE / "profiles_test.jsonl.gz", "--bootstrap", "0") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_agents"], found["num_turns"]) == (2, 1033)
    assert found["turn_pearson"] > 0.2 and found["first_turn_pearson"] > 0.1
    assert found["turn_pearson_from_recorded_state"] > 0.45
