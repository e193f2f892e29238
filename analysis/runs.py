"""A run directory as data: its settings, what every step measured, its held-out dialogues and its summary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from analysis.shapes import PROVENANCE_SHAPE, SUMMARY_SHAPE, misfit
from simulator.dialogue import Speaker
from simulator.files import read_lines, record_of
from simulator.llm.config import DECIDE_NOTHING

CONFIG, METRICS, TEACHER, DIALOGUES = "config.yaml", "metrics.jsonl", "teacher.jsonl", "dialogues.jsonl"
EVALUATION, SUMMARY, REPORT, TRANSCRIPTS = "evaluation.jsonl", "summary.json", "report.html", "transcripts.html"
RUNS = "runs"
"""The folder of all runs, beside the checkout's packages."""
OF_A_SITTING = (
    *("cluster.", "checkpoint.", "resume", "runs"),
    *(f"simulator.{name}" for name in DECIDE_NOTHING),
    *("policy.weight_transport", "policy.weight_folder", "policy.load_timeout_s", "policy.start_timeout_s", "policy.gpu_memory_share"),
    *("learner.micro_batch_", "learner.logit_chunk_mb", "learner.gradient_checkpointing"),
    *("rollout.max_error_share", "rollout.hang_timeout_s", "rollout.max_restarts", "rollout.restart_window_s", "rollout.outage_s"),
)
"""Beginnings of the settings that may be others in each sitting of a run: where, how patiently and in how much memory it ran, and but for
rounding nothing of what came out."""
LAST_BYTES = 2**20
THOUGHTS = "thoughts"
"""Key of a recorded dialogue: what an agent that thinks thought before each of its replies."""
PROVENANCE = "provenance"
"""Key of `config.yaml` that holds versions and the git commit, which are no settings."""
LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""Reads the same either way; a sweep's runs are many files, and libyaml is eight times as fast."""
EARLIER_COMMITS = "earlier_git_commits"
"""Key of the provenance: on which other states of the code a resumed run had run before, the first one first."""


class Series(NamedTuple):
    """A metric over the steps that measured it."""

    steps: list[int]
    values: list[float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run left, finished or not. The long streams are read from disk when they are asked for."""

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
        """The states of the code that it ran on, the last one last; several only where it was resumed on another."""
        return [str(commit) for commit in (*(self.provenance.get(EARLIER_COMMITS) or ()), self.provenance.get("git_commit")) if commit]

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
        """Of a sweep, in whose folder it lies as `<arm>/seed_<n>`; empty for a run by itself."""
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
    """The turns of a recorded dialogue, the agent's with its thoughts: in the record these stand apart, for the user never hears them."""
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
    """As `read_run`, but settings, metrics and a summary that cannot be used are taken for empty and named in the run's `torn`.

    Raises:
        ValueError: the folder is no run's.
    """
    folder = Path(folder)
    require_run(folder)
    config, provenance, torn = dict[str, Any](), dict[str, Any](), dict[str, str]()
    try:
        config, provenance = read_settings(folder / CONFIG)
    except (ValueError, OSError) as error:
        torn[CONFIG] = str(error)
    metrics, summary = list[dict[str, Any]](), None
    try:
        metrics = list(read_lines(folder / METRICS))
        require_numbers(metrics, folder / METRICS)
    except (ValueError, OSError) as error:
        metrics, torn[METRICS] = [], str(error)
    try:
        summary = read_summary(folder / SUMMARY)
    except (ValueError, OSError) as error:
        torn[SUMMARY] = str(error)
    if METRICS not in torn and (reason := ends_early(summary, metrics[-1].get("step", 0) if metrics else 0)):
        metrics, torn[METRICS] = [], f"{folder / METRICS} {reason}"
    return Run(folder=folder, config=config, provenance=provenance, metrics=metrics, summary=summary, torn=torn)


def require_numbers(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raises unless every step measured numbers, or nothing.

    Raises:
        ValueError: one is something else.
    """
    for line in metrics:
        for key, value in line.items():
            if not isinstance(value, int | float | None):
                raise ValueError(f"{path} must hold numbers, got {value!r} for {key} at step {line.get('step')}")


def require_run(folder: Path) -> None:
    """Raises unless the folder holds what every run has from its first moment.

    Raises:
        ValueError: with the runs that lie beneath, if there are any.
    """
    if not folder.is_dir():
        raise ValueError(f"run must be a run's folder, got {str(folder)!r}; there is no such folder")
    missing = lacking_files(folder)
    if missing:
        found = sorted(path.parent for depth in ("*/", "*/*/") for path in folder.glob(depth + CONFIG) if not lacking_files(path.parent))
        sweeps = sorted({path.parents[1] for depth in ("*/*/", "*/*/*/") for path in folder.glob(f"{depth}seed_*")})
        # An evaluation of an agent looks like a run without steps.
        runs = [path for path in found if not is_empty(path / METRICS)]
        what, beneath = next((pair for pair in (("runs", runs), ("sweeps", sweeps), ("runs", found)) if pair[1]), ("", []))
        hint = f"{what} beneath it: {', '.join(map(str, beneath[:5]))}" if beneath else f"it has no {' and no '.join(missing)}"
        raise ValueError(f"run must be a run's folder, got {str(folder)!r}; {hint}")


def lacking_files(folder: Path) -> list[str]:
    """Which of the files that every run has are not in a folder."""
    return [name for name in (CONFIG, METRICS) if not (folder / name).is_file()]


def is_empty(path: Path) -> bool:
    """Whether a file is there and nothing in it."""
    return path.is_file() and path.stat().st_size == 0


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run.

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


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a run, and the facts about it that stand beside them.

    Raises:
        ValueError: as `read_config`, or they break off, or the facts are of another kind than a run writes.
    """
    config, written = read_config(path), path.read_bytes()
    if not written.endswith(b"\n"):
        num_whole = written.count(b"\n")
        raise ValueError(f"{path} ends early, within line {num_whole + 1}")
    provenance = config.pop(PROVENANCE, None) or {}
    if said := misfit(provenance, PROVENANCE_SHAPE, PROVENANCE):
        raise ValueError(f"{path}: {said}")
    return config, provenance


def lacks_provenance(run: Run) -> str:
    """That a run's settings were cut off between two lines, seen by the facts that are written last; empty where they were not."""
    return "" if run.provenance else f"its {CONFIG} ends early: what it ran on, which is written last, is not in it"


def in_a_line(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """What is wrong with a file of YAML, and in which line."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{said} in line {mark.line + 1}" if mark else said


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary, None before there is one.

    Raises:
        ValueError: the file is not a JSON object, or something in it is of another kind than a run writes.
    """
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a JSON object, got a file that breaks off or was changed ({error})") from error
    if not isinstance(summary, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(summary).__name__}")
    if said := misfit(summary, SUMMARY_SHAPE):
        raise ValueError(f"{path}: {said}")
    return summary


def ends_early(summary: Mapping[str, Any] | None, last_step: int) -> str:
    """That a stream lacks the end of a run which has ended, as `ends at step ...`; empty where it does not, or that cannot be told."""
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


def setting(tree: Mapping[str, Any] | None, dotted: str, default: Any = None) -> Any:
    """A nested value by its dotted name; `default` where a part is missing or the value is None."""
    value: Any = tree
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or value.get(part) is None:
            return default
        value = value[part]
    return value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting in a nested mapping, in its order; an empty mapping has none."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        else:
            yield name, value
