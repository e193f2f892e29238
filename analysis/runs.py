"""A run's folder as data: settings, metrics of each step, dialogues, summary, and what its teacher issued and decided.

Runs of the first edition are read, too: they recorded another name of a metric (`read_metrics`) and a hash in place of the world's
version (`Run.world`). A setting that an older run does not know is taken to have had its default.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from simulator.dialogue import Speaker
from simulator.files import read_lines
from simulator.llm.config import DECIDE_NOTHING
from simulator.settings import setting
from simulator.version import recorded_world

CONFIG, METRICS, TEACHER, DIALOGUES = "config.yaml", "metrics.jsonl", "teacher.jsonl", "dialogues.jsonl"
EVALUATION, REPLIES, SUMMARY, REPORT, TRANSCRIPTS = "evaluation.jsonl", "replies.jsonl", "summary.json", "report.html", "transcripts.html"
RUNS = "runs"
"""The folder of all runs, next to the checkout's packages."""
OF_A_MACHINE = (
    *("cluster.", "checkpoint.", "resume", "runs"),
    *(f"simulator.{name}" for name in DECIDE_NOTHING),
    *(f"{group}.server.{name}" for group in ("simulator", "evaluation") for name in DECIDE_NOTHING),
    *("policy.weight_transport", "policy.weight_folder", "policy.load_timeout_s", "policy.start_timeout_s", "policy.gpu_memory_share"),
    "policy.sleep",
    *("learner.micro_batch_", "learner.logit_chunk_mb", "learner.gradient_checkpointing", "learner.ranks", "learner.sharded"),
    *("rollout.max_error_share", "rollout.hang_timeout_s", "rollout.max_restarts", "rollout.restart_window_s", "rollout.outage_s"),
)
"""Beginnings of settings that may change when a run is resumed: where, how patiently and in how much memory it runs. Results stay the same
but for rounding."""
THOUGHTS = "thoughts"
"""Key of a recorded dialogue: an agent's thoughts before each of its replies."""
PROVENANCE = "provenance"
"""Key of `config.yaml` that holds versions and the git commit, which are no settings."""
EARLIER_COMMITS = "earlier_git_commits"
"""Key of the provenance: the commits on which a resumed run had run before, the first one first."""
COPIED = "copied_tasks"
"""Key of the provenance: a digest of the tasks that the run replays."""


class Series(NamedTuple):
    """A metric over the steps that measured it."""

    steps: list[int]
    values: list[float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The record of a run, finished or not. The long streams are read from disk on demand."""

    folder: Path
    config: dict[str, Any]
    """The resolved settings, nested."""
    provenance: dict[str, Any]
    """Versions, git commit: facts about the run."""
    metrics: list[dict[str, Any]]
    """One record a step, with `step`; None where a step did not measure a key."""
    summary: dict[str, Any] | None
    """None until the run has ended."""

    @property
    def commits(self) -> list[str]:
        """The commits that it ran on, the last one last; several only where it was resumed on another."""
        return [str(commit) for commit in (*(self.provenance.get(EARLIER_COMMITS) or ()), self.provenance.get("git_commit")) if commit]

    @property
    def world(self) -> str:
        """Name and version of its world, `world-1`; a hash for older runs that are not mapped to one, empty where none is recorded."""
        return recorded_world(self.summary or self.provenance, self.config)

    @property
    def experiment(self) -> str:
        """The experiment it belongs to."""
        return str(self.config.get("experiment") or self.folder.parent.name)

    @property
    def name(self) -> str:
        """Its name within the experiment."""
        return self.folder.name

    @property
    def arm(self) -> str:
        """Its arm, if its folder is `<arm>/seed_<n>` of a sweep; else empty."""
        place = self.folder.absolute()
        is_cell = place.name == self.config.get("name") == f"seed_{self.config.get('seed')}" and place.parent.name != self.experiment
        return place.parent.name if is_cell else ""

    @property
    def title(self) -> str:
        """Experiment, arm and name."""
        return "/".join(filter(None, (self.experiment, self.arm, self.name)))

    @property
    def num_steps(self) -> int:
        """The last step that was recorded."""
        return max((line["step"] for line in self.metrics), default=0)

    def series(self, key: str) -> Series:
        """A metric over steps, without the steps that did not measure it."""
        pairs = [(line["step"], line[key]) for line in self.metrics if isinstance(line.get(key), int | float)]
        return Series([step for step, _ in pairs], [float(value) for _, value in pairs])

    def evaluation(self) -> Iterator[dict[str, Any]]:
        """Held-out dialogues, in the order they were played."""
        return read_lines(self.folder / EVALUATION)

    def dialogues(self) -> Iterator[dict[str, Any]]:
        """Training and probe dialogues."""
        return read_lines(self.folder / DIALOGUES)

    def teaching(self) -> tuple[list[Group], list[Decision]]:
        """The teacher's tasks and decisions, in order.

        Raises:
            ValueError: a line lacks something.
        """
        tasks: dict[str, Group] = {}
        decisions: list[Decision] = []
        eased: dict[str, float] = {}
        for line in read_lines(self.folder / TEACHER):
            try:
                if line["event"] == "task":
                    tasks[line["uid"]] = Group(
                        line["step"], str(line["family"]), float(line["strictness"]), None, str(line.get("mode", ""))
                    )
                elif line["event"] == "outcome" and line["task"] in tasks:
                    tasks[line["task"]] = tasks[line["task"]]._replace(success_share=line.get("success_share"))
                elif line["event"] == "decision":
                    inputs = {key: value for key, value in line.items() if key not in {"step", "event", "decision", "teacher_step"}}
                    name = str(line["decision"]).replace("_", " ")
                    # By how much tasks are easier than without such decisions: in logits, or a shift of the target.
                    ease = float(inputs.get("ease", inputs.get("shift", 0.0)))
                    change, eased[name] = ease - eased.get(name, 0.0), ease
                    move = "easier" if change > 0.0 else "harder" if change < 0.0 else ""
                    decisions.append(Decision(line["step"], name, inputs, move))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"teacher.jsonl must hold tasks and outcomes, got a line at step {line['step']} with a bad {error}"
                ) from error
        return list(tasks.values()), decisions

    def why_no_copy(self) -> str:
        """Why it is no replay of the run of its sweep that its settings name; empty where it is, or where that is unknown.

        Raises:
            ValueError: the log of the run that it names cannot be read.
        """
        trace, copied = setting(self.config, "teacher.trace"), self.provenance.get(COPIED)
        if not trace or not isinstance(trace, str) or copied is None:
            return ""
        arm, seed = Path(trace).parts[-3:-1] if len(Path(trace).parts) > 2 else ("", "")
        source = self.folder.parent.parent / arm / seed / TEACHER
        if not source.is_file() or digest_of_tasks(read_lines(source)) == str(copied):
            return ""
        return f"it replays another {arm}/{seed} than the one that is here, and must be run again"


def turns_with_thoughts(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of a recorded dialogue, the agent's with its thoughts: the record keeps them apart, for the user never hears them."""
    thoughts = iter(record.get(THOUGHTS, ()))
    turns = [dict(turn) for turn in record["turns"]]
    for turn in turns:
        if turn["speaker"] == Speaker.AGENT and (thought := next(thoughts, "")):
            turn["thought"] = thought
    return turns


def read_run(folder: Path) -> Run:
    """Reads a run's folder; a last line torn by a kill is left out.

    Raises:
        ValueError: the folder is no run's, with the runs or sweeps beneath it if there are any; or one of its files cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"run must be a run's folder, got {str(folder)!r}; there is no such folder")
    if missing := [name for name in (CONFIG, METRICS) if not (folder / name).is_file()]:
        runs = sorted(path.parent for depth in ("*/", "*/*/") for path in folder.glob(depth + METRICS))
        sweeps = sorted({path.parents[1] for depth in ("*/*/", "*/*/*/") for path in folder.glob(f"{depth}seed_*")})
        kind, beneath = ("runs", runs) if runs else ("sweeps", sweeps)
        hint = f"{kind} beneath it: {', '.join(map(str, beneath[:5]))}" if beneath else f"it has no {' and no '.join(missing)}"
        raise ValueError(f"run must be a run's folder, got {str(folder)!r}; {hint}")
    config = read_config(folder / CONFIG)
    provenance = config.pop(PROVENANCE, None) or {}
    metrics, summary = read_metrics(folder / METRICS), read_summary(folder / SUMMARY)
    return Run(folder=folder, config=config, provenance=provenance, metrics=metrics, summary=summary)


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run, with `PROVENANCE`.

    Raises:
        ValueError: the file is not YAML, or not settings by name.
    """
    # libyaml reads the same eight times as fast.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be YAML, got {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold settings by name, got {type(config).__name__}")
    return config


def read_metrics(path: Path, *, appended: bool = True) -> list[dict[str, Any]]:
    """The metrics of each step, under their present names.

    Raises:
        ValueError: a line but the last one cannot be read.
    """
    present = {"actor/ppo_kl": "actor/approx_kl"}
    return [{present.get(name, name): value for name, value in line.items()} for line in read_lines(path, appended=appended)]


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary, None before there is one.

    Raises:
        ValueError: the file is not a JSON object.
    """
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a JSON object, got a file that breaks off or was changed ({error})") from error
    if not isinstance(summary, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(summary).__name__}")
    return summary


def last_record(path: Path) -> dict[str, Any] | None:
    """The last whole record of a stream; None where there is none."""
    return next(iter(deque(read_lines(path), maxlen=1)), None)


class Group(NamedTuple):
    """A task of the teacher, and the success of its rollouts."""

    step: int
    family: str
    strictness: float
    success_share: float | None
    """None while its outcome is out, or where no rollout survived."""
    mode: str = ""
    """Why the teacher issued it, `frontier`, `uniform`, `replay` ...; empty where the log does not say."""

    @property
    def intention(self) -> str:
        """The hidden intention, the first half of a family."""
        return self.family.partition("/")[0]


class Decision(NamedTuple):
    """A decision of the teacher, and the numbers it rests on."""

    step: int
    name: str
    inputs: dict[str, Any]
    move: str = ""
    """"easier" or "harder" where it moved the difficulty of all tasks."""


def by_time(
    groups: Sequence[Group], *, num_bins: int, of: Callable[[Group], str] = lambda group: group.intention
) -> tuple[list[str], dict[tuple[str, str], float], dict[tuple[str, str], int]]:
    """Mean strictness and number of groups, by row and stretch of steps.

    Args:
        of: the row of a group.

    Returns:
        The stretches, named by their last step, in order; the means and the counts by (row, stretch).
    """
    last = max((group.step for group in groups), default=0)
    size = -(-last // num_bins) or 1
    ends = [str(min(end, last)) for end in range(size, last + size, size)]
    cells: dict[tuple[str, str], list[float]] = {}
    for group in groups:
        cells.setdefault((of(group), ends[(group.step - 1) // size]), []).append(group.strictness)
    return ends, {cell: fmean(values) for cell, values in cells.items()}, {cell: len(values) for cell, values in cells.items()}


def in_words(inputs: Mapping[str, Any]) -> str:
    """The numbers that a decision rests on: `name value` pairs, to three digits."""

    def short(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + in_words(value) + "}"
        if isinstance(value, list):
            return f"[{', '.join(map(short, value[:6]))}{', ...' * (len(value) > 6)}]"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name.replace('_', ' ')} {short(value)}" for name, value in inputs.items())


def digest_of_tasks(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """A digest of the tasks in a teacher's log, in their order; None without any."""
    digest, num = hashlib.sha256(), 0
    for line in lines:
        if line.get("event") == "task":
            what = [line.get(name) for name in ("teacher_step", "family", "mode", "strictness", "difficulty")]
            digest.update(json.dumps(what, sort_keys=True).encode())
            num += 1
    return digest.hexdigest()[:16] if num else None
