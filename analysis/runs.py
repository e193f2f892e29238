"""A run's folder as data: settings, metrics of each step, dialogues, summary, and what its teacher issued and decided.

Runs of the first edition are read, too: they recorded another name of a metric (`FORMER_METRICS`) and a hash in place of the world's
version (`Run.world`). A setting that an older run does not know is taken to have had its default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from simulator.dialogue import Speaker
from simulator.files import read_lines, record_of
from simulator.llm.config import DECIDE_NOTHING
from simulator.settings import setting
from simulator.version import recorded_world

CONFIG, METRICS, TEACHER, DIALOGUES = "config.yaml", "metrics.jsonl", "teacher.jsonl", "dialogues.jsonl"
EVALUATION, SUMMARY, REPORT, TRANSCRIPTS = "evaluation.jsonl", "summary.json", "report.html", "transcripts.html"
RUNS = "runs"
"""The folder of all runs, next to the checkout's packages."""
OF_A_SITTING = (
    *("cluster.", "checkpoint.", "resume", "runs"),
    *(f"simulator.{name}" for name in DECIDE_NOTHING),
    *("policy.weight_transport", "policy.weight_folder", "policy.load_timeout_s", "policy.start_timeout_s", "policy.gpu_memory_share"),
    *("learner.micro_batch_", "learner.logit_chunk_mb", "learner.gradient_checkpointing"),
    *("rollout.max_error_share", "rollout.hang_timeout_s", "rollout.max_restarts", "rollout.restart_window_s", "rollout.outage_s"),
)
"""Beginnings of settings that may change when a run is resumed: where, how patiently and in how much memory it runs. Results stay the same
but for rounding."""
LAST_BYTES = 2**20
THOUGHTS = "thoughts"
"""Key of a recorded dialogue: an agent's thoughts before each of its replies."""
PROVENANCE = "provenance"
"""Key of `config.yaml` that holds versions and the git commit, which are no settings."""
EARLIER_COMMITS = "earlier_git_commits"
"""Key of the provenance: the commits on which a resumed run had run before, the first one first."""
COPIED = "copied_tasks"
"""Key of the provenance: a digest of the tasks that the run replays."""
FORMER_METRICS = {"actor/ppo_kl": "actor/approx_kl"}
"""Present names of metrics, by the name that runs of the first edition recorded."""
LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""libyaml reads the same eight times as fast."""


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
    torn: Mapping[str, str] = field(default_factory=dict)
    """By file, why it cannot be used and is taken for empty; only where that was allowed."""

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

    def teacher(self) -> Iterator[dict[str, Any]]:
        """Tasks, outcomes, updates and decisions, in the order they happened.

        Raises:
            ValueError: a line cannot be read, or the run has ended and they stop before its end; at the end of the iteration.
        """
        last = 0
        for line in read_lines(self.folder / TEACHER):
            last = line.get("step", last)
            yield line
        if reason := ends_early(self.summary, last):
            raise ValueError(f"{self.folder / TEACHER} {reason}")


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
        ValueError: the folder is no run's, or one of its files cannot be read.
    """
    run = read_torn_run(folder)
    for complaint in run.torn.values():
        raise ValueError(complaint)
    return run


def read_torn_run(folder: Path) -> Run:
    """As `read_run`, but settings, metrics and a summary that cannot be read are taken for empty and named in the run's `torn`.

    Raises:
        ValueError: the folder is no run's.
    """
    folder = Path(folder)
    require_run(folder)
    torn = dict[str, str]()

    def read(name: str, reader: Callable[[Path], Any]) -> Any:
        try:
            return reader(folder / name)
        except (ValueError, OSError) as error:
            torn[name] = str(error)
            return None

    config = read(CONFIG, read_config) or {}
    provenance = config.pop(PROVENANCE, None) or {}
    summary, metrics = read(SUMMARY, read_summary), read(METRICS, read_metrics) or []
    if METRICS not in torn and (reason := ends_early(summary, metrics[-1]["step"] if metrics else 0)):
        metrics, torn[METRICS] = [], f"{folder / METRICS} {reason}"
    return Run(folder=folder, config=config, provenance=provenance, metrics=metrics, summary=summary, torn=torn)


def require_run(folder: Path) -> None:
    """Raises unless the folder holds the files that every run has from its first moment.

    Raises:
        ValueError: with the runs or sweeps beneath it, if there are any.
    """
    if not folder.is_dir():
        raise ValueError(f"run must be a run's folder, got {str(folder)!r}; there is no such folder")
    if missing := [name for name in (CONFIG, METRICS) if not (folder / name).is_file()]:
        runs = sorted(path.parent for depth in ("*/", "*/*/") for path in folder.glob(depth + METRICS))
        sweeps = sorted({path.parents[1] for depth in ("*/*/", "*/*/*/") for path in folder.glob(f"{depth}seed_*")})
        what, beneath = ("runs", runs) if runs else ("sweeps", sweeps)
        hint = f"{what} beneath it: {', '.join(map(str, beneath[:5]))}" if beneath else f"it has no {' and no '.join(missing)}"
        raise ValueError(f"run must be a run's folder, got {str(folder)!r}; {hint}")


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run, with `PROVENANCE`.

    Raises:
        ValueError: the file is not YAML, or not settings by name.
    """
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be YAML, got {in_a_line(error)}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold settings by name, got {type(config).__name__}")
    return config


def in_a_line(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """The complaint about a file of YAML, and its line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} in line {mark.line + 1}" if mark else problem


def lacks_provenance(run: Run) -> str:
    """That a run's settings were cut off, seen by the facts that are written last; empty where they were not."""
    return "" if run.provenance else f"its {CONFIG} ends early: what it ran on, which is written last, is not in it"


def read_metrics(path: Path, *, appended: bool = True) -> list[dict[str, Any]]:
    """The metrics of each step, under their present names.

    Args:
        appended: as in `read_lines`.

    Raises:
        ValueError: a line but the last one cannot be read.
    """
    return [{FORMER_METRICS.get(name, name): value for name, value in line.items()} for line in read_lines(path, appended=appended)]


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


def ends_early(summary: Mapping[str, Any] | None, last_step: int) -> str:
    """That a stream lacks the end of a run which has ended, as `ends at step ...`; empty where it does not, or that is unknown."""
    steps = setting(summary, "steps", 0)
    return f"ends at step {last_step} of the {steps} that the summary counts" if last_step < steps else ""


def last_record(path: Path) -> dict[str, Any] | None:
    """The last record of a stream, read from its end; None where there is none within the last megabyte.

    As in `read_lines` a torn last line is passed over.

    Raises:
        ValueError: the line before a torn one is none either.
    """
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - LAST_BYTES, 0))
        whole, _, _ = stream.read().rpartition(b"\n")
    rest, _, last = whole.rpartition(b"\n")
    if not last:
        return None
    try:
        return record_of(last)
    except ValueError:
        before = rest.rpartition(b"\n")[2]
        return record_of(before) if before else None


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


class Teaching(NamedTuple):
    """Tasks and decisions of a run's teacher, in order."""

    groups: list[Group]
    decisions: list[Decision]


def read_teaching(run: Run) -> Teaching:
    """Reads a run's `teacher.jsonl`.

    Raises:
        ValueError: a line lacks something.
    """
    tasks: dict[str, Group] = {}
    decisions = []
    for line in run.teacher():
        try:
            if line["event"] == "task":
                tasks[line["uid"]] = Group(line["step"], str(line["family"]), float(line["strictness"]), None, str(line.get("mode", "")))
            elif line["event"] == "outcome" and line["task"] in tasks:
                share = line.get("success_share")
                tasks[line["task"]] = tasks[line["task"]]._replace(success_share=None if share is None else float(share))
            elif line["event"] == "decision":
                inputs = {key: value for key, value in line.items() if key not in {"step", "event", "decision", "teacher_step"}}
                decisions.append(Decision(line["step"], str(line["decision"]), inputs))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"teacher.jsonl must hold tasks and outcomes, got a line at step {line['step']} with a bad {error}") from error
    return Teaching(groups=list(tasks.values()), decisions=decisions)


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
    return ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in inputs.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return "{" + in_words(value) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value[:6]))}{', ...' * (len(value) > 6)}]"
    return str(value)


def digest_of_tasks(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """A digest of the tasks in a teacher's log, in their order; None without any."""
    digest, num = hashlib.sha256(), 0
    for line in lines:
        if line.get("event") == "task":
            what = [line.get(name) for name in ("teacher_step", "family", "mode", "strictness", "difficulty")]
            digest.update(json.dumps(what, sort_keys=True).encode())
            num += 1
    return digest.hexdigest()[:16] if num else None


def why_no_copy(run: Run) -> str:
    """Why a run is no replay of the run of its sweep that its settings name; empty where it is, or where that is unknown.

    Raises:
        ValueError: the log of the run that it names cannot be read.
    """
    trace, copied = setting(run.config, "teacher.trace"), run.provenance.get(COPIED)
    if not trace or not isinstance(trace, str) or copied is None:
        return ""
    arm, seed = Path(trace).parts[-3:-1] if len(Path(trace).parts) > 2 else ("", "")
    source = run.folder.parent.parent / arm / seed / TEACHER
    if not source.is_file() or digest_of_tasks(read_lines(source)) == str(copied):
        return ""
    return f"it replays another {arm}/{seed} than the one that is here, and must be run again"
