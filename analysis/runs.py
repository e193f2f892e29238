"""Which shape a file of ours has, so that one which somebody edited is refused in a sentence and not in the middle of a page.

A shape is `NUMBER`, `POINTS`, `SHARE`, `SET`, `INTEGER`, `TEXT`, `ANYTHING`, a list of one shape for all its items, a tuple of the shape of
each, or names with the shape of each. Null is let be by name, and where a number is expected (a `SET` one apart): so one that is none is
written; NaN is let be, too. Names that a shape does not know are let be as well; those of a `Complete` one must all be there, but for a
`Perhaps`, and what a `Filled` one has is never null.

A run directory as data: its settings, what every step measured, its held-out dialogues and its summary.

What an agent's replies in a dialogue come to: how many, how long, and what the user heard in them.

What a run's teacher issued, how it went and what it decided, read from `teacher.jsonl`.

Runs that replay another run's tasks: which ones they copied, and whether that is the run that lies here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from simulator.dialogue import Speaker
from simulator.files import read_lines, record_of
from simulator.llm.config import DECIDE_NOTHING

NUMBER, POINTS, INTEGER, TEXT, ANYTHING = "a number", "a number in [0, 100]", "a whole number", "a text", "anything"
SHARE = "a number in [0, 1]"
SET = "a number, not null"
KINDS: Mapping[Any, tuple[type, ...]] = {
    NUMBER: (int, float, type(None)),
    POINTS: (int, float, type(None)),
    SHARE: (int, float, type(None)),
    SET: (int, float),
    INTEGER: (int,),
    TEXT: (str,),
}
HIGHEST: Mapping[Any, float] = {POINTS: 100, SHARE: 1}
"""Of numbers that begin at 0."""
EACH, EACH_NUMBER = "*", "*number"
"""As a name: all that are not named; all that are not, and are numbers."""


@dataclass(frozen=True)
class Perhaps:
    """Of a `Complete` one: may be lacking or null."""

    shape: Any


Shape = str | list[Any] | tuple[Any, ...] | Mapping[str, Any] | Perhaps


class Complete(dict[str, Any]):
    """All of these names must be there, and none null, but those that are `Perhaps`."""


class Filled(dict[str, Any]):
    """Whatever is named must not be null."""


def misfit(value: Any, shape: Shape, name: str = "") -> str:
    """What is wrong with a value read from JSON or YAML, as `<where> must be <what>, got <value>`; empty where it fits.

    Args:
        name: where it stands; empty for the file as a whole.
    """
    if shape == ANYTHING:
        return ""
    if isinstance(shape, Mapping):
        return misfit_of_names(value, shape, name)
    if isinstance(shape, Perhaps):
        return misfit(value, shape.shape, name)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return says(name, "a list", value)
        return first(misfit(item, shape[0], f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(shape, tuple):
        if not isinstance(value, list) or len(value) != len(shape):
            return says(name, f"a list of {len(shape)}", value)
        return first(misfit(item, each, f"{name}[{i}]") for i, (item, each) in enumerate(zip(value, shape, strict=True)))
    fits = isinstance(value, KINDS[shape]) and not isinstance(value, bool)
    if fits and shape in HIGHEST and value is not None and not math.isnan(value):
        fits = 0 <= value <= HIGHEST[shape]
    return "" if fits else says(name, shape, value)


def misfit_of_names(value: Any, shape: Mapping[str, Any], name: str) -> str:
    """As `misfit`, of an object."""
    if not isinstance(value, Mapping):
        return says(name, "an object with names", value)
    prefix = f"{name}." if name else ""
    if isinstance(shape, Complete) and (
        lacking := [key for key in shape if value.get(key) is None and not isinstance(shape[key], Perhaps)]
    ):
        return f"{prefix}{lacking[0]} must be there"
    if isinstance(shape, Filled) and (empty := [key for key, item in value.items() if item is None]):
        return f"{prefix}{empty[0]} must not be null"
    if EACH_NUMBER in shape and (strays := [key for key in value if not is_number(key)]):
        return says(name, "named by numbers", strays[0])
    others = shape.get(EACH, shape.get(EACH_NUMBER, ANYTHING))
    return first(misfit(item, shape.get(key, others), f"{prefix}{key}") for key, item in value.items() if item is not None)


def is_number(text: Any) -> bool:
    """Whether a name is a number."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def first(found: Any) -> str:
    """The first text that is not empty."""
    return next(filter(None, found), "")


def says(name: str, what: str, value: Any) -> str:
    """The complaint; a long value is cut."""
    shown = f"{value!r}"
    return f"{name or 'it'} must be {what}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"


INTERVAL = (NUMBER, NUMBER)
SCORES: Shape = {
    **dict.fromkeys(("score", "worst_cell", "cvar20", "auc"), POINTS),
    **dict.fromkeys(("success_rate", "failure_rate", "cut_short", "n_dialogues"), NUMBER),
    "score_ci95": INTERVAL,
    "by_strictness": {EACH_NUMBER: POINTS},
}
CHANGE: Shape = {"before": NUMBER, "after": NUMBER, "change": NUMBER, "change_ci95": INTERVAL}
ENDS: Mapping[str, Any] = {"start": NUMBER, "end": NUMBER}
SUMMARY_SHAPE: Shape = {
    **dict.fromkeys(("seed", "steps", "wall_s", "cpu_s", "policy_tokens", "simulator_calls", "simulator_cost", "cut_short"), NUMBER),
    "errors": {EACH: NUMBER},
    "heldout": SCORES,
    "start": SCORES,
    "reference": {EACH: {"score": NUMBER}},
    "entropy": ENDS,
    "reward_density": ENDS,
    "strictness": {**ENDS, "trace": [NUMBER]},
    "collapse": {"alarms": [Complete(name=TEXT, step=NUMBER, message=TEXT)]},
    "mismatch": {EACH: NUMBER},
    "versions": {EACH: TEXT},
    "reliability": {
        "n": NUMBER,
        "errors": {EACH: CHANGE},
        "emotional_cost": CHANGE,
        "sycophancy": CHANGE,
        "margin_nats": {EACH: CHANGE},
    },
}
"""Of `summary.json`, as far as comparisons and pages read it."""
CELL: Shape = dict.fromkeys(("value", "low", "high"), NUMBER)
GRADED: Mapping[str, Any] = {**dict.fromkeys(("value", "low", "high"), POINTS), "success_rate": CELL, "failure_rate": CELL}
BY_USER: Shape = Filled({EACH: GRADED})
WHO = Complete(name=TEXT, **dict.fromkeys(("kind", "source", "model", "fingerprint"), Perhaps(TEXT)))
"""An agent: what it is called, and what tells it from another."""
AGENT_SHAPE: Shape = {
    "agent": WHO,
    "setting": Complete(user=Complete(kind=TEXT), bank=TEXT, bank_hash=TEXT, num_scenarios=INTEGER, strictness=[SET], max_turns=INTEGER),
    "setting_id": TEXT,
    "n_dialogues": INTEGER,
    "score": POINTS,
    "score_ci95": (POINTS, POINTS),
    "per_scenario": Filled({EACH: POINTS}),
    "intervals": Complete(success_rate=CELL, failure_rate=CELL, worst_cell=GRADED, cvar20=GRADED),
    "strictness": Filled({EACH_NUMBER: GRADED}),
    **dict.fromkeys(("intention", "persona", "family"), BY_USER),
    "errors": Complete(planned=INTEGER, not_played=INTEGER, excluded_dialogues=INTEGER, cut_short=Perhaps(INTEGER)),
    "capabilities": {
        **dict.fromkeys(("by", "judge", "why_not", "complaint"), TEXT),
        **dict.fromkeys(("num_errors", "num_not_sent"), INTEGER),
        EACH: CELL,
    },
    "strategies": {EACH: CELL},
    "social_cognition": {"empathy_to_solution": CELL, "structured_to_creative": CELL},
    "length": {
        "words_per_reply": NUMBER,
        "points_per_doubling": CELL,
        "range": INTERVAL,
        "line": {"intercept": NUMBER, "slope": NUMBER, "covariance": (INTERVAL, INTERVAL)},
    },
    "best_of_k": {"k": INTEGER, "best": CELL, "gain": CELL, "mean": CELL, "by_k": {EACH: NUMBER}},
}
"""Of `agent.json`, as far as the leaderboard reads it."""
ASKED: Shape = Complete(errors=dict.fromkeys(("value", "low", "high"), SHARE))
PROBE_SHAPE: Shape = {
    "agent": WHO,
    "probe": Complete(kind=TEXT, hash=TEXT, temperature=Perhaps(NUMBER), system=Perhaps(TEXT)),
    "conditions": Complete(plain=ASKED, emotional=ASKED, false_belief=ASKED),
    "emotional_cost": CELL,
    "sycophancy": CELL,
}
"""Of `reliability.json`, likewise."""
PROVENANCE_SHAPE: Shape = {"git_commit": TEXT, "earlier_git_commits": [TEXT], "versions": {EACH: ANYTHING}, "overrides": [ANYTHING]}


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


UNDERSTANDING = frozenset(("reflection", "listening", "guided_reflection", "motives", "both_sides"))
ACTING = frozenset(("suggestion", "information", "referral"))
"""Support strategies that give empathy and insight, and those that give something to do."""


class Replies(NamedTuple):
    """Counts of one dialogue."""

    num: int
    """Replies of the agent."""
    words: int
    """Words in them."""
    answered: int
    """Replies that the user reacted to."""
    understanding: int
    """Of these, how many in which a strategy of `UNDERSTANDING` was heard."""
    acting: int
    """Of these, how many in which one of `ACTING` was heard."""


def replies_in(line: Mapping[str, Any]) -> Replies:
    """The counts of a recorded dialogue.

    Raises:
        KeyError: it has no turns.
    """
    lengths = [len(turn["text"].split()) for turn in line["turns"] if turn["speaker"] == Speaker.AGENT]
    # A recorded turn leaves out what is empty: the opening has no change, and a reply in which nothing was heard has no `heard`.
    heard = [set(turn.get("heard", ())) for turn in line["turns"] if turn.get("change") is not None]
    return Replies(
        num=len(lengths),
        words=sum(lengths),
        answered=len(heard),
        understanding=sum(bool(UNDERSTANDING & each) for each in heard),
        acting=sum(bool(ACTING & each) for each in heard),
    )


OWN_KEYS = frozenset({"step", "event", "decision", "teacher_step"})
"""Keys of a recorded decision that are not what it rests on."""


class Group(NamedTuple):
    """A task of the teacher, and how its rollouts fared."""

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


def intention_of(group: Group) -> str:
    """Its hidden intention."""
    return group.intention


class Decision(NamedTuple):
    """Something the teacher decided, and what it rested on."""

    step: int
    name: str
    inputs: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """All of it, in order."""

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
                inputs = {key: value for key, value in line.items() if key not in OWN_KEYS}
                decisions.append(Decision(line["step"], str(line["decision"]), inputs))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"teacher.jsonl must hold tasks and outcomes, got a line at step {line['step']} with a bad {error}") from error
    return Teaching(groups=list(tasks.values()), decisions=decisions)


def by_time(
    groups: Sequence[Group], *, num_bins: int, of: Callable[[Group], str] = intention_of
) -> tuple[list[str], dict[tuple[str, str], float], dict[tuple[str, str], int]]:
    """Mean strictness and number of groups, by what they have in common and stretch of steps.

    Args:
        of: what groups of one row have in common, the hidden intention unless said otherwise.

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
    """What a decision rested on: `name value` pairs, numbers to three digits."""
    return ", ".join(f"{name.replace('_', ' ')} {short(value)}" for name, value in inputs.items())


def short(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return "{" + in_words(value) + "}"
    if isinstance(value, list):
        return f"[{', '.join(short(item) for item in value[:6])}{', ...' * (len(value) > 6)}]"
    return str(value)


COPIED = "copied_tasks"
"""In a run's provenance: a digest of the tasks that it was given to replay."""


def digest_of_tasks(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """A digest of the tasks in a teacher's log, in their order; None without any."""
    digest, num = hashlib.sha256(), 0
    for line in lines:
        if line.get("event") == "task":
            what = [line.get(name) for name in ("teacher_step", "family", "mode", "strictness", "difficulty")]
            digest.update(json.dumps(what, sort_keys=True).encode())
            num += 1
    return digest.hexdigest()[:16] if num else None


def tasks_copied(run: Run) -> str | None:
    """The digest of what a run was given to replay; None where it replays nothing, or that was not recorded."""
    found = run.provenance.get(COPIED)
    return None if found is None else str(found)


def tasks_issued(folder: Path) -> str | None:
    """The digest of what a run's teacher issued."""
    return digest_of_tasks(read_lines(folder / TEACHER))


def why_no_copy(run: Run) -> str:
    """Why a run is no replay of the run of its sweep that it names; empty where it is, or where that cannot be told.

    Raises:
        ValueError: what is there of either cannot be read.
    """
    trace = setting(run.config, "teacher.trace")
    copied = tasks_copied(run)
    if not trace or not isinstance(trace, str) or copied is None:
        return ""
    arm, seed = Path(trace).parts[-3:-1] if len(Path(trace).parts) > 2 else ("", "")
    source = run.folder.parent.parent / arm / seed
    if not (source / TEACHER).is_file() or tasks_issued(source) == copied:
        return ""
    return f"it replays another {arm}/{seed} than the one that is here, and must be run anew"
