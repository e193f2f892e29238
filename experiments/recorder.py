"""Writes a run's folder: streams of metrics, teaching, dialogues and evaluations, TensorBoard events, and at the end the summary."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis.endpoints import read_plan
from analysis.runs import (
    CONFIG,
    DIALOGUES,
    EVALUATION,
    METRICS,
    RUNS,
    SUMMARY,
    TEACHER,
    THOUGHTS,
    read_config,
    read_lines,
    turns_with_thoughts,
)
from analysis.tensorboard import COMPARED, IMAGE_EVERY, JUDGED_BY, Dashboard, TeachingBoard, compared_settings, evaluation_picture
from analysis.transcripts import ending_of
from curriculum.task import GroupOutcome, TaskSpec, outcome_to_record
from experiments.tasks import ProbeTask
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Speaker
from simulator.files import draft_of, jsonable, write_whole

CHECKPOINTS = "checkpoints"


class Recorder:
    """Appends to the streams of a run and to its TensorBoard, flushed line by line.

    Args:
        folder: of the run; made if it is not there.
        cut_after: a step and a number of evaluations; later records are dropped first. None starts a new run.
    """

    def __init__(self, folder: Path, *, cut_after: tuple[int, int] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if cut_after is not None:
            step, num_evaluations = cut_after
            for name in (METRICS, TEACHER, DIALOGUES):
                cut_back(folder / name, lambda record: record["step"] <= step)
            cut_back(folder / EVALUATION, lambda record: record["look"] < num_evaluations)
        # Each holds one JSON object a line, with its `step`.
        self._streams = {name: (folder / name).open("a", encoding="utf-8") for name in (METRICS, TEACHER, DIALOGUES, EVALUATION)}
        self._dashboard = Dashboard(folder, purge_step=None if cut_after is None else cut_after[0] + 1)
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        """Called with the step and every scalar that TensorBoard gets."""
        self._taught = TeachingBoard()
        for record in read_lines(folder / TEACHER):
            self._taught.add(record["step"], [record])

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One line of scalars, the same keys in the file and in TensorBoard."""
        self._append(METRICS, [{"step": step, **values}])
        self.scalars(step, values)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars for TensorBoard and the listeners alone, such as those of an evaluation."""
        self._dashboard.scalars(step, values)
        for listener in self.listeners:
            listener(step, values)

    def teaching(
        self,
        step: int,
        issued: Iterable[TaskSpec],
        outcomes: Iterable[GroupOutcome],
        probes: Iterable[GroupOutcome],
        update: Mapping[str, Any],
        decisions: Iterable[Mapping[str, Any]],
    ) -> None:
        """Everything a teacher issued and observed in a step, in its order: enough to replay it."""
        records: list[dict[str, Any]] = [{"event": "task", **task.to_dict()} for task in issued]
        records += [{"event": "outcome", **outcome_to_record(outcome)} for outcome in outcomes]
        records += [{"event": "probe", **outcome_to_record(probe)} for probe in probes]
        records += [{"event": "update", "update": update}, *({"event": "decision", **decision} for decision in decisions)]
        self._append(TEACHER, [{"step": step, **record} for record in records])
        self.scalars(step, self._taught.add(step, records))
        if step % IMAGE_EVERY == 0:
            self._show_teaching(step)

    def step_dialogues(self, step: int, groups: Iterable[RolloutGroup], stale: Iterable[RolloutGroup]) -> None:
        """Transcripts of a training step; the first two also appear in TensorBoard's text tab."""
        records = []
        for kind, played in (("train", groups), ("stale", stale)):
            for group in played:
                task = group.task
                assert isinstance(task, TaskSpec), f"only a teacher's groups are recorded whole, got {type(task).__name__}"
                for i, rollout in enumerate(group.rollouts):
                    facts = {"kind": kind, "uid": task.uid, "sibling": i, "mode": task.mode, "strictness": task.strictness}
                    records.append(rollout_record(rollout, **facts))
        self.dialogues(step, records, num_as_text=2)

    def panel(self, step: int, tasks: Iterable[ProbeTask], groups: Iterable[RolloutGroup]) -> None:
        """Transcripts of the probe panel."""
        pairs = zip(tasks, groups, strict=True)
        records = [rollout_record(group.rollouts[0], kind="probe", uid=task.uid, strictness=task.strictness) for task, group in pairs]
        self.dialogues(step, records)

    def dialogues(self, step: int, records: Sequence[Mapping[str, Any]], *, num_as_text: int = 0) -> None:
        """Transcripts; the first `num_as_text` also appear in TensorBoard."""
        self._append(DIALOGUES, [{"step": step, **record} for record in records])
        for i, record in enumerate(records[:num_as_text]):
            self._dashboard.text(f"dialogue/{i}", step, as_markdown(record))

    def evaluation(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Held-out results, per dialogue, and as a map in TensorBoard."""
        records = list(records)
        self._append(EVALUATION, [{"step": step, **record} for record in records])
        if records and (picture := evaluation_picture(records)):
            self._dashboard.image(f"eval/{records[0].get('grid', 'full')}_grid", step, picture)

    def alarm(self, step: int, text: str) -> None:
        """An alarm, for TensorBoard's text tab."""
        # Not the name of a scalar: of two kinds under one name TensorBoard shows the first.
        self._dashboard.text("alarms", step, text)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Writes the run's settings and scores for TensorBoard, and last summary.json: a run that has it has ended."""
        step = int(values.get("steps", 0))
        self._show_teaching(step)
        if (self.folder / CONFIG).is_file():
            config = read_config(self.folder / CONFIG)
            planned = read_plan(self.folder.absolute().parents[1])
            # In a sweep also every setting that some arm of it changes.
            columns = sorted({*COMPARED, *(planned.varied if planned else ())})
            settings = compared_settings(config, folder=self.folder, names=columns)
            # TensorBoard takes lines of one name for one run and shows the mean of their scores. A run that lies outside of the folder of
            # all runs is named after its experiment, sweep, arm and seed.
            place, runs = self.folder.absolute(), Path(config.get("runs", RUNS)).absolute()
            name = "/".join(place.relative_to(runs).parts if place.is_relative_to(runs) else place.parts[-4:])
            self._dashboard.settings(name, settings, columns=columns, metrics=JUDGED_BY)
        write_whole(self.folder / SUMMARY, json.dumps(jsonable(values), indent=2) + "\n")

    def flush(self) -> None:
        """Forces the records to the disk, because a checkpoint must not outlive them; raises OSError where it is full or gone."""
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())

    def close(self) -> None:
        """Closes the files; the recorder is of no use afterwards."""
        for close in (*(stream.close for stream in self._streams.values()), self._dashboard.close):
            # A full disk was reported when a record was written.
            with suppress(OSError):
                close()

    def _show_teaching(self, step: int) -> None:
        for tag, picture in self._taught.pictures().items():
            self._dashboard.image(tag, step, picture)

    def _append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        stream = self._streams[name]
        stream.writelines(json.dumps(jsonable(record), ensure_ascii=False) + "\n" for record in records)
        stream.flush()


def cut_back(path: Path, is_kept: Callable[[Mapping[str, Any]], bool]) -> None:
    """Drops the records that are not kept, and a torn last line, in place; raises ValueError for a torn line before it."""
    if not path.exists():
        return
    with draft_of(path) as draft, draft.open("w", encoding="utf-8") as new:
        new.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in read_lines(path) if is_kept(record))


def dialogue_record(dialogue: Dialogue, **facts: Any) -> dict[str, Any]:
    """A transcript, after the facts it was played for."""
    return {**facts, **dialogue.to_dict()}


def rollout_record(rollout: Rollout, **facts: Any) -> dict[str, Any]:
    """The record of a training or probe dialogue, with its reward, the weights that spoke and the agent's thoughts."""
    return dialogue_record(
        rollout.dialogue,
        **facts,
        reward=rollout.reward.total,
        terms=rollout.reward.terms,
        num_tokens=rollout.num_sampled,
        policy_versions=rollout.policy_versions,
        **({"reply_versions": rollout.reply_versions} if len(set(rollout.reply_versions)) > 1 else {}),
        **thoughts_of(rollout),
    )


def thoughts_of(rollout: Rollout) -> dict[str, list[str]]:
    """The agent's thoughts for a record, one for each of its replies; nothing for one that does not think."""
    return {THOUGHTS: [thought.text for thought in rollout.thoughts]} if rollout.thoughts else {}


def as_markdown(record: Mapping[str, Any]) -> str:
    """A transcript for a person: who said what, how the user felt, and why."""
    head = f"**{record['scenario_id']}** ({record['family']}), strictness {record['difficulty']['strictness']:.2f}: {ending_of(record)}"
    lines = [head, f"*hidden wish: {record['hidden_intention']}*"]
    for turn in turns_with_thoughts(record):
        thought = f" *{turn['thought'].rstrip('.')}*" if "thought" in turn else ""
        felt = f" {turn['change']:+d}" if "change" in turn else ""
        who = "**agent**" if turn["speaker"] == Speaker.AGENT else f"**user** [{turn['emotion']}{felt}]"
        lines.append(f"{who}{thought}: {turn['text']}")
    return "\n\n".join(lines)
