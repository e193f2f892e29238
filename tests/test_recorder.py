"""What a run writes: streams that a resume cuts back, TensorBoard, transcripts, the log, and the numbers of its summary."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from policy_factories import group, rollout
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tiny_student import make_outcome, make_task, make_teacher

from analysis.endpoints import Planned
from analysis.runs import DIALOGUES, EVALUATION, METRICS, TEACHER, THOUGHTS, last_record, read_lines, read_run
from curriculum.task import Mode
from experiments.evaluation import mean
from experiments.recorder import Recorder, as_markdown, cut_back, dialogue_record, rollout_record
from experiments.run import Progress
from experiments.run_folder import closing_words, ends, series
from simulator.dialogue import Dialogue
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.tokens import Thought
from simulator.world import load_bank

STREAMS = (METRICS, TEACHER, DIALOGUES, EVALUATION)


def lines(folder: Path, name: str) -> list[dict]:
    return list(read_lines(folder / name))


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0})
    events.Reload()
    return events


def issued(number: int, seed: int = 0):
    """A teacher, and the tasks that it issues."""
    teacher = make_teacher("uniform", seed=seed)
    return teacher, teacher.propose(number, policy_version=0)


def record_steps(folder: Path, *, steps: range, cut_after: tuple[int, int] | None = None, sign: int = 1) -> None:
    """Two tasks, a dialogue and an evaluation a step."""
    recorder = Recorder(folder, cut_after=cut_after)
    for step in steps:
        _, tasks = issued(2, seed=step)
        recorder.metrics(step, {"reward/mean": sign * step / 10})
        recorder.teaching(step, tasks, [], [], {}, [])
        recorder.step_dialogues(step, [replace(group(rollout([1], [1])), task=tasks[0])], [])
        recorder.evaluation(step, [{"look": step - 1, "emotion": 40, "family": "praise/negative", "strictness": 0.5, "outcome": "left"}])
    recorder.close()


# Streams ------------------------------------------------------------------------------------------------------------------------


def test_records_are_on_disk_at_once_and_numbers_that_json_lacks_become_null(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.metrics(1, {"actor/kl_loss": float("nan"), "actor/ratio_max": float("inf"), "reward/mean": np.float32(0.5)})
    assert lines(tmp_path, METRICS) == [{"step": 1, "actor/kl_loss": None, "actor/ratio_max": None, "reward/mean": 0.5}]
    recorder.close()
    (tmp_path / METRICS).unlink()
    (tmp_path / METRICS).symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        recorder.metrics(1, {"reward/mean": 0.5})
    recorder.close()  # does not raise it again


def test_a_resumed_run_leaves_the_same_files_as_one_that_was_not_interrupted(tmp_path):
    record_steps(tmp_path / "whole", steps=range(1, 6))
    record_steps(tmp_path / "cut", steps=range(1, 5))
    record_steps(tmp_path / "cut", steps=range(0), cut_after=(2, 2))
    assert [[line["step"] for line in lines(tmp_path / "cut", name)] for name in STREAMS] == [[1, 2], [1, 1, 1, 2, 2, 2], [1, 2], [1, 2]]
    record_steps(tmp_path / "cut", steps=range(3, 6), cut_after=(2, 2))
    for name in STREAMS:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    record_steps(tmp_path / "cut", steps=range(0), cut_after=(0, 0))
    assert [lines(tmp_path / "cut", name) for name in STREAMS] == [[], [], [], []]


def test_a_resumed_run_replaces_its_later_points_in_tensorboard(tmp_path):
    record_steps(tmp_path, steps=range(1, 6))
    record_steps(tmp_path, steps=range(3, 5), cut_after=(2, 2), sign=-1)
    drawn = [(event.step, pytest.approx(event.value)) for event in events_of(tmp_path).Scalars("reward/mean")]
    assert drawn == [(1, 0.1), (2, 0.2), (3, -0.3), (4, -0.4)]


def test_a_last_line_torn_by_a_kill_is_dropped_and_one_before_is_refused(tmp_path):
    path = tmp_path / METRICS
    for torn in (b'{"step": 3, "rew', b'{"step": 3, "text": "\xe2\x80', b'{"step": 3, "te\0\0\n'):
        path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)
        assert last_record(path) == {"step": 2}
        cut_back(path, lambda record: record["step"] <= 3)
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        cut_back(path, lambda record: True)


def test_everything_that_a_teacher_issued_and_observed_is_recorded_in_its_order(tmp_path):
    teacher, tasks = issued(2)
    outcomes = [make_outcome(tasks[0], 2), make_outcome(tasks[1], 8, rewards=[float("nan")] * 8)]
    probe = make_outcome(replace(make_task(teacher, 0.25, mode=Mode.PROBE), group_size=1), 1)
    recorder = Recorder(tmp_path)
    recorder.teaching(1, tasks, outcomes, [probe], {"entropy": 0.5}, [{"decision": "replay"}])
    recorder.close()
    written = lines(tmp_path, TEACHER)
    assert [line["event"] for line in written] == ["task", "task", "outcome", "outcome", "probe", "update", "decision"]
    assert [line["uid"] for line in written[:2]] == [line["task"] for line in written[2:4]] == [task.uid for task in tasks]
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    assert [taught.success_share for taught in read_run(tmp_path).teaching()[0]] == [0.25, None]
    assert written[4]["task"]["strictness"] == 0.25 and written[5]["update"] == {"entropy": 0.5}


# The summary and TensorBoard ----------------------------------------------------------------------------------------------------


def test_the_summary_is_replaced_whole_and_written_last(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path)
    recorder.summary({"steps": 1, "heldout": {"score": float("nan")}})
    recorder.summary({"steps": 2})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 2} and not list(tmp_path.glob(".*"))
    (tmp_path / "summary.json").unlink()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(recorder, "_show_teaching", full)
    with pytest.raises(OSError, match="no space"):
        recorder.summary({"steps": 1})
    recorder.close()
    assert not (tmp_path / "summary.json").exists()


def test_tensorboard_has_maps_of_a_resumed_run_whole_and_a_table_of_settings(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\nteacher:\n  kind: fixed\n", encoding="utf-8")
    record_steps(tmp_path, steps=range(9, 10))
    resumed = Recorder(tmp_path, cut_after=(9, 9))
    resumed.teaching(10, issued(1)[1], [], [], {}, [])
    resumed.summary({"steps": 10})
    resumed.close()
    events = events_of(tmp_path)
    maps = {f"curriculum/{what}_by_{whom}" for what in ("strictness", "groups") for whom in ("family", "intention")}
    assert maps | {"eval/full_grid"} == set(events.Tags()["images"])
    assert [taught.step for taught in resumed._taught.groups] == [9, 9, 10]
    assert "_hparams_/session_start_info" in events.summary_metadata


@pytest.mark.parametrize("named", ["", "runs: {runs}\n", "runs: elsewhere\n"])
def test_a_run_of_a_sweep_has_a_name_of_its_own_and_the_settings_that_arms_differ_in_next_to_its_score(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    plan = Planned(contrasts=(), primary="heldout.auc", varied=("algorithm.kind", "policy.thinking", "rollout.gone_since"))
    for experiment in ("noise", "rlver_matrix"):
        cell = tmp_path / "runs" / experiment / "sweep/ppo_think/seed_0"
        plan.keep(cell.parents[1])
        recorder = Recorder(cell)
        settings = "seed: 0\nalgorithm:\n  kind: ppo\npolicy:\n  thinking: true\n"
        (cell / "config.yaml").write_text(settings + named.format(runs=tmp_path / "runs"), encoding="utf-8")
        recorder.summary({"steps": 1})
        recorder.close()
        content = events_of(cell).summary_metadata["_hparams_/session_start_info"].plugin_data.content
        started = metadata.parse_session_start_info_plugin_data(content)
        assert started.group_name == f"{experiment}/sweep/ppo_think/seed_0" and "rollout.gone_since" not in started.hparams
        assert started.hparams["policy.thinking"].bool_value and started.hparams["algorithm.kind"].string_value == "ppo"


# Transcripts --------------------------------------------------------------------------------------------------------------------


def test_a_transcript_has_every_turn_with_its_emotion_and_thought():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = play(AGENTS["L3"], scenario, Difficulty.along(0.4), seed=5, user=RuleUser(RuleUserConfig()))
    text, answer = as_markdown(dialogue_record(dialogue)), dialogue.turns[2]
    assert scenario.scenario_id in text and "strictness 0.40" in text
    assert f"**user** [40]: {dialogue.turns[0].text}" in text and f"**agent**: {dialogue.turns[1].text}" in text
    assert f"**user** [{answer.emotion} {answer.change:+d}] *{answer.thought.rstrip('.')}*: {answer.text}" in text

    thoughts = tuple(Thought(text=f"thought {i}", num_tokens=3, well_formed=True, cut_off=False) for i in range(dialogue.num_replies))
    record = rollout_record(replace(rollout([5, 6, 7], [0, 1, 1]), dialogue=dialogue, thoughts=thoughts))
    assert record[THOUGHTS] == [thought.text for thought in thoughts] and Dialogue.from_dict(record, scenario=scenario) == dialogue
    assert f"**agent** *thought 1*: {dialogue.turns[3].text}" in as_markdown(record)
    plain = rollout_record(rollout([5, 6, 7], [0, 1, 1], reward=0.25, policy_versions=(3, 4)), kind="train", uid="u")
    assert (plain["kind"], plain["uid"], plain["outcome"]) == ("train", "u", "max_turns") and THOUGHTS not in plain
    assert (plain["reward"], plain["num_tokens"], plain["policy_versions"]) == (0.25, 2, (3, 4))


# Terminal and log ---------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_every_tenth_step_gets_a_line_and_a_log_with_the_time_left_at_this_pace(tmp_path, capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("experiments.run.time.monotonic", lambda: now[0])
    progress = Progress(tmp_path, fraction=0.5)
    now[0] += 30.0
    for step in range(1, 21):
        progress.step(step, {"reward/mean": 0.5}, fraction=0.5 if step <= 10 else 0.6)
    progress.close()
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[1:3] for line in shown] == [["10", "50%"], ["20", "60%"]] and "reward 0.50" in shown[0]
    assert "  ? left" in shown[0] and "  2:00 left" in shown[1]  # a tenth took 30 s
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2


def test_neither_a_closed_terminal_nor_a_full_disk_ends_a_run(tmp_path, monkeypatch, capsys):
    for name in ("terminal", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "disk" / "log.txt").symlink_to("/dev/full")
    progress = Progress(tmp_path / "disk", fraction=0.0)
    progress.say("stopped in step 3: no space left on device")
    progress.close()
    assert capsys.readouterr().err == "stopped in step 3: no space left on device\n"

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    progress = Progress(tmp_path / "terminal", fraction=0.0)
    progress.say("step 10")
    progress.close()
    assert "step 10" in (tmp_path / "terminal" / "log.txt").read_text(encoding="utf-8")


# Numbers of the summary ---------------------------------------------------------------------------------------------------------


def test_start_and_end_are_means_of_five_steps_that_measured_something():
    values = series([{"step": i, "x": None if i == 2 else float(i)} for i in range(12)], "x")
    assert values == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11] and ends(values) == {"start": 13 / 5, "end": 9.0}
    assert math.isnan(mean(series([{"step": 1}], "never measured")))


def closing(
    folder: Path, start: float, end: float, reference: dict | None = None, report: str | None = "x.html", cut_short: float = 0
) -> str:
    """The closing words of a run with these scores."""
    scored = {"score_ci95": [0.0, 0.0], "worst_cell": 5.0, "cut_short": cut_short}
    scores = {"start": {**scored, "score": start}, "heldout": {**scored, "score": end}, "cut_short": cut_short}
    scores["reference"] = {"L6": {"score": 80.0}, "L0": {"score": 15.0}} if reference is None else reference
    facts = {"collapse": {"alarms": [{"name": "repetition", "step": 7}]}, "steps": 9, "policy_tokens": 12345, "wall_s": 60.0, "cpu_s": 90.0}
    return closing_words({**scores, **facts}, folder=folder, report=report and folder / report, runs="runs")


def test_a_run_closes_with_its_scores_its_share_of_the_way_to_l6_and_its_alarms(tmp_path):
    words = closing(tmp_path, 20.0, 50.0)
    assert "20.0 [0.0, 0.0] before, 50.0 [0.0, 0.0] after" in words and "L0 15.0, L6 80.0" in words
    assert "of the way to L6  50%" in words and "repetition at step 7" in words and str(tmp_path) in words and "CUT SHORT" not in words
    assert "CUT SHORT   50% of the held-out dialogues before" in closing(tmp_path, 20.0, 50.0, cut_short=0.5)
    for start, end in ((80.0, 80.0), (95.0, 90.0), (50.0, 20.0), (20.0, math.nan)):  # no way to go, or none gone
        assert "L6 80.0)\nworst cell 5.0 -> 5.0\n" in closing(tmp_path, start, end)
    assert "\nworst cell 5.0 -> 5.0\n" in (words := closing(tmp_path, 20.0, 50.0, reference={})) and "nan" not in words
    assert f"\nreport      make report RUN={tmp_path}\n" in closing(tmp_path, 20.0, 50.0, report=None)
