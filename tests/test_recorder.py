"""The run directory: what is written, and what a resume cuts away."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from policy_factories import rollout
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tiny_student import make_outcome, make_task, make_teacher

from analysis.runs import DIALOGUES, EVALUATION, METRICS, TEACHER, THOUGHTS, last_record, read_lines, read_run, read_teaching
from analysis.sweeps import Planned
from curriculum.collapse.monitor import CollapseConfig, CollapseMonitor
from curriculum.task import Mode
from curriculum.teacher import task_to_record
from experiments.recorder import Recorder, as_markdown, cut_back, dialogue_record, name_among, rollout_record
from experiments.train import TrainingRun
from policy.rollout.chat import Thought
from simulator.dialogue import Dialogue
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank


def lines(folder: Path, name: str) -> list[dict]:
    return list(read_lines(folder / name))


def record_steps(folder: Path, *, steps: range, cut_after: tuple[int, int] | None = None) -> None:
    recorder = Recorder(folder, cut_after=cut_after)
    for step in steps:
        recorder.metrics(step, {"reward/mean": step / 10})
        recorder.teacher(step, [{"event": "task", "uid": f"{step}a"}, {"event": "task", "uid": f"{step}b"}])
        recorder.dialogues(step, [{"uid": step}])
        recorder.evaluation(step, [{"look": step - 1, "emotion": 40}])
    recorder.close()


def test_every_stream_is_on_disk_as_soon_as_it_is_written(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.metrics(1, {"reward/mean": 0.5})
    assert lines(tmp_path, METRICS) == [{"step": 1, "reward/mean": 0.5}]
    recorder.close()


def test_a_full_disk_is_told_when_a_record_is_written_and_not_once_more_at_the_close(tmp_path):
    (tmp_path / METRICS).symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        recorder.metrics(1, {"reward/mean": 0.5})
    recorder.close()


def test_what_json_cannot_say_becomes_null(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.metrics(1, {"actor/kl_loss": float("nan"), "actor/ratio_max": float("inf"), "reward/mean": np.float32(0.5)})
    recorder.close()
    assert lines(tmp_path, METRICS) == [{"step": 1, "actor/kl_loss": None, "actor/ratio_max": None, "reward/mean": 0.5}]


def test_a_resume_keeps_the_steps_and_evaluations_of_the_checkpoint_and_nothing_later(tmp_path):
    record_steps(tmp_path, steps=range(1, 6))
    record_steps(tmp_path, steps=range(0), cut_after=(3, 2))
    assert [line["step"] for line in lines(tmp_path, METRICS)] == [1, 2, 3]
    assert [line["uid"] for line in lines(tmp_path, TEACHER)] == ["1a", "1b", "2a", "2b", "3a", "3b"]
    assert [line["uid"] for line in lines(tmp_path, DIALOGUES)] == [1, 2, 3]
    assert [line["look"] for line in lines(tmp_path, EVALUATION)] == [0, 1]


def test_a_resumed_run_leaves_the_same_files_as_one_that_was_not_interrupted(tmp_path):
    record_steps(tmp_path / "whole", steps=range(1, 6))
    record_steps(tmp_path / "cut", steps=range(1, 5))
    record_steps(tmp_path / "cut", steps=range(3, 6), cut_after=(2, 2))
    for name in (METRICS, TEACHER, DIALOGUES, EVALUATION):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_what_a_run_records_of_an_outcome_does_not_hang_on_what_was_read_of_it(tmp_path):
    teacher = make_teacher("uniform")
    recorder = Recorder(tmp_path)
    run = SimpleNamespace(parts=SimpleNamespace(teacher=teacher), recorder=recorder, tally=SimpleNamespace(step=1))
    unread, read, lost = teacher.propose(3, policy_version=0)
    outcomes = [make_outcome(unread, 2), make_outcome(read, 4), make_outcome(lost, 8, rewards=[float("nan")] * 8)]
    probe = make_outcome(replace(make_task(teacher, 0.25, mode=Mode.PROBE), group_size=1), 1)
    assert outcomes[1].surviving and outcomes[1].success_share
    TrainingRun.record_teaching(run, [unread, read, lost], outcomes, [probe], {})
    recorder.close()

    heard = [line for line in lines(tmp_path, TEACHER) if line["event"] in ("outcome", "probe")]
    assert [line["success_share"] for line in heard] == [0.25, 0.5, None, 1.0]
    assert [line["task"] for line in heard] == [unread.uid, read.uid, lost.uid, task_to_record(probe.task)]
    columns = {"step", "event", "task", "rewards", "successes", "num_tokens", "statuses", "signals", "success_share"}
    assert all(set(line) == columns for line in heard)
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    assert [group.success_share for group in read_teaching(read_run(tmp_path)).groups] == [0.25, 0.5, None]


@pytest.mark.parametrize("torn", [b'{"step": 3, "rew', b'{"step": 3, "text": "\xe2\x80', b'{"step": 3, "te\0\0\n'])
def test_a_line_torn_by_a_kill_is_dropped(tmp_path, torn):
    path = tmp_path / METRICS
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)
    assert last_record(path) == {"step": 2}
    cut_back(path, lambda record: record["step"] <= 3)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_run_without_a_checkpoint_starts_over_in_its_folder(tmp_path):
    record_steps(tmp_path, steps=range(1, 3))
    record_steps(tmp_path, steps=range(0), cut_after=(0, 0))
    assert [lines(tmp_path, name) for name in (METRICS, TEACHER, DIALOGUES, EVALUATION)] == [[], [], [], []]


def test_the_summary_is_replaced_whole(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.summary({"steps": 1, "heldout": {"score": float("nan")}})
    recorder.summary({"steps": 2})
    recorder.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 2}
    assert not list(tmp_path.glob(".*"))


def test_a_rollout_is_recorded_with_its_reward_and_the_weights_that_spoke():
    record = rollout_record(rollout([5, 6, 7], [0, 1, 1], reward=0.25, policy_versions=(3, 4)), kind="train", uid="u", sibling=1)
    assert (record["kind"], record["uid"], record["sibling"]) == ("train", "u", 1)
    assert (record["reward"], record["num_tokens"], record["policy_versions"]) == (0.25, 2, (3, 4))
    assert record["outcome"] == "max_turns"


def test_a_transcript_tells_a_person_who_spoke_what_was_felt_and_why():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = play(AGENTS["L3"], scenario, Difficulty.along(0.4), seed=5, user=RuleUser(RuleUserConfig()))
    text = as_markdown(dialogue_record(dialogue))
    answer = dialogue.turns[2]
    assert scenario.scenario_id in text and "strictness 0.40" in text
    assert f"**user** [40]: {dialogue.turns[0].text}" in text
    assert f"**agent**: {dialogue.turns[1].text}" in text
    assert f"**user** [{answer.emotion} {answer.change:+d}] *{answer.thought.rstrip('.')}*: {answer.text}" in text


def test_thoughts_stand_beside_the_turns_of_a_record_and_a_person_reads_them_with_the_words():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = play(AGENTS["L3"], scenario, Difficulty.along(0.4), seed=5, user=RuleUser(RuleUserConfig()))
    thoughts = tuple(Thought(text=f"thought {i}", num_tokens=3, well_formed=True, cut_off=False) for i in range(dialogue.num_replies))
    record = rollout_record(replace(rollout([5, 6, 7], [0, 1, 1]), dialogue=dialogue, thoughts=thoughts))
    assert record["thoughts"] == [thought.text for thought in thoughts]
    assert Dialogue.from_dict(record, scenario=scenario) == dialogue
    assert f"**agent** *thought 0*: {dialogue.turns[1].text}" in as_markdown(record)
    assert f"**agent** *thought 1*: {dialogue.turns[3].text}" in as_markdown(record)
    assert THOUGHTS not in rollout_record(rollout([5, 6, 7], [0, 1, 1]))


def test_a_recorder_leaves_maps_and_the_table_of_settings(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\nteacher:\n  kind: fixed\n", encoding="utf-8")
    task = {"event": "task", "uid": "a", "family": "praise/negative", "strictness": 0.5}
    recorder = Recorder(tmp_path)
    recorder.teacher(9, [task])
    recorder.close()
    resumed = Recorder(tmp_path, cut_after=(9, 0))
    resumed.teacher(10, [task])
    looked = {"look": 0, "grid": "full", "outcome": "left", "family": "praise/negative", "strictness": 0.5, "emotion": 8}
    resumed.evaluation(10, [looked])
    resumed.summary({"steps": 10, "heldout": {"auc": 42.0}})
    resumed.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "scalars": 0, "images": 0})
    events.Reload()
    assert set(events.Tags()["images"]) == {
        "curriculum/strictness_by_family",
        "curriculum/strictness_by_intention",
        "curriculum/groups_by_family",
        "curriculum/groups_by_intention",
        "eval/full_grid",
    }
    assert [event.value for event in events.Scalars("eval/auc")] == [42.0]
    # What the run issued before it was resumed is in the map, too.
    assert [group.step for group in resumed._taught.groups] == [9, 10]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_a_run_of_a_sweep_has_the_settings_that_its_arms_differ_in_beside_its_score(tmp_path):
    cell = tmp_path / "runs/rlver_matrix/sweep/ppo_think/seed_0"
    plan = Planned(contrasts=(), primary="heldout.auc", varied=("algorithm.kind", "policy.thinking", "rollout.gone_since"))
    plan.keep(cell.parents[1])
    recorder = Recorder(cell)
    (cell / "config.yaml").write_text("seed: 0\nalgorithm:\n  kind: ppo\npolicy:\n  thinking: true\n", encoding="utf-8")
    recorder.summary({"steps": 1})
    recorder.close()
    events = EventAccumulator(str(cell), size_guidance={"tensors": 0})
    events.Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert hparams["policy.thinking"].bool_value and hparams["algorithm.kind"].string_value == "ppo" and "rollout.gone_since" not in hparams
    content = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert "policy.thinking" in {info.name for info in metadata.parse_experiment_plugin_data(content).hparam_infos}


def name_in_tensorboard(folder: Path) -> str:
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    return str(metadata.parse_session_start_info_plugin_data(content).group_name)


@pytest.mark.parametrize("named", ["", "runs: {runs}\n", "runs: elsewhere\n"])
def test_runs_of_different_experiments_have_different_names_in_the_table_of_settings(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    cells = [tmp_path / "runs" / experiment / "sweep/frontier/seed_0" for experiment in ("noise", "forgetting")]
    for cell in cells:
        recorder = Recorder(cell)
        (cell / "config.yaml").write_text("seed: 0\n" + named.format(runs=tmp_path / "runs"), encoding="utf-8")
        recorder.summary({"steps": 1})
        recorder.close()
    assert [name_in_tensorboard(cell) for cell in cells] == ["noise/sweep/frontier/seed_0", "forgetting/sweep/frontier/seed_0"]


def test_a_run_by_itself_is_named_by_its_experiment_and_its_name():
    assert name_among(Path("runs/smoke/first"), runs=Path("runs")) == "smoke/first"


def test_alarms_are_texts_under_a_name_that_no_metric_has(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.metrics(1, CollapseMonitor(CollapseConfig()).metrics())
    recorder.alarm(1, "**mismatch** rang")
    recorder.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    texts = set(events.PluginTagToContent("text"))
    assert texts == {"alarms"} and not texts & set(events.Tags()["scalars"])


def test_a_run_whose_last_entries_cannot_be_written_has_not_ended(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(recorder, "scalars", full)
    with pytest.raises(OSError, match="no space"):
        recorder.summary({"steps": 1})
    recorder.close()
    assert not (tmp_path / "summary.json").exists()
