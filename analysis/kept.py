"""Finished runs made small enough to keep in the repository: `python -m analysis keep SWEEP` writes them to docs/results/.

A kept run is a run directory in miniature: the files of a run that comparisons and pages read, without weights, transcripts, checkpoints
and TensorBoard. Settings and summary are whole; metrics have five digits; held-out dialogues are their grades and counts of their replies,
but for those of three users, the same in all runs, whose words before and after training are kept to be read;
of the teacher's log there are its tasks, so that another run can copy them, its decisions, and each group's share of successes. Streams are
columns. So a sweep whose run directories are gone goes on with what is left to run.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from analysis.best_of import TRIES
from analysis.comparisons.planned import CHOSEN, PLAN, read_planned
from analysis.comparisons.sweep import read_result, run_folders
from analysis.copies import COPIED, TASKS, digest_of_tasks, kept_facts
from analysis.replies import REPLIES, replies_in
from analysis.results import MARKS, RUNS, keep_marks, results_of
from analysis.runs import (
    CONFIG,
    EVALUATION,
    KEPT,
    METRICS,
    PROVENANCE,
    SUMMARY,
    TEACHER,
    read_config,
    read_lines,
    read_run,
    setting,
)
from analysis.wording import count
from simulator.columns import columns_of, write_columns
from simulator.streams import on_the_line, read_kept

TAKEN_FROM = "taken_from"
"""Provenance of a run that another experiment had kept: which one."""
DIGITS = 5
MAX_STEPS = 400
"""Of a longer run every so many steps are kept, the last, and all that looked at the probe panel."""
PROBE = "probe/"
"""Beginning of the metrics of a look at the probe panel."""
GRADES = (
    *("step", "look", "policy_tokens", "grid", "in_during", "uid", "scenario_id", "family", "strictness", "outcome", "emotion"),
    TRIES,
)
"""What is kept of a held-out dialogue."""
NUM_READ = 3
"""Users of the full grid whose words are kept."""


def keep_sweep(folder: Path, out: Path | None = None) -> str:
    """Writes a record of every finished run of a sweep, its plan and its page; returns what is to be said.

    Args:
        folder: runs/<experiment>/<name>.
        out: where to; None means docs/results/<experiment>/<name> beside `runs`.

    Raises:
        ValueError: the folder holds no finished run, or another plan or another run is kept there.
    """
    from analysis.pages.sweep_report import write_sweep_report

    place = folder.absolute()
    # As it was named where that says enough, so that what is printed is short.
    is_given = out is not None
    out = out or results_of(folder if len(folder.parts) > 2 else place)
    left_out = {run: reason for run in run_folders(folder) if (reason := why_unusable(run))}
    finished = [run for run in run_folders(folder) if run not in left_out]
    if not finished:
        why = "; ".join(f"{run.relative_to(folder)}: {reason}" for run, reason in list(left_out.items())[:3])
        raise ValueError(f"keep must be given a sweep with a finished run, got {str(folder)!r}; {why}")
    # One that was unpacked, so that its sweep could go on, has kept.json too, but lines and no columns.
    records = [run for run in finished if columns_of(run / METRICS).is_file()]
    if records and not is_given:
        kept = f"{str(folder)!r}, where {records[0].relative_to(folder)} is a record already"
        raise ValueError(f"keep must be given a sweep of runs, got {kept}; to copy it, name a folder with --out")
    if out.absolute().is_relative_to(place):
        raise ValueError(f"--out must lie outside the sweep's folder, got {str(out)!r}")
    keep_plan(folder, out)
    sizes = []
    for run in finished:
        target = out / run.relative_to(folder)
        keep_run(run, target, runs=place.parent.parent)
        sizes.append(size_of(target))
    keep_marks(place.parent.parent / MARKS, out, opening=f"{place.parent.name}/{place.name}")
    page = write_sweep_report(out, with_files=False)
    mean_kb, largest_kb = sum(sizes) / len(sizes) / 1000, max(sizes) / 1000
    said = [f"kept {count(len(finished), 'run')} in {out}, {mean_kb:.0f} kB each (largest {largest_kb:.0f} kB)"]
    said += [f"not kept: {run.relative_to(folder)}, {reason}" for run, reason in left_out.items()]
    return "\n".join([*said, str(page)])


def why_unusable(run: Path) -> str:
    """Why a run cannot be kept: no comparison could use it, or the record that would be made of it; empty where it can."""
    try:
        read_result(run)
        for _ in read_run(run).teacher():
            pass
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def keep_plan(folder: Path, out: Path) -> None:
    """Copies what the sweep set out to compare, with what an earlier sitting had planned besides, and which arms were chosen for it.

    Raises:
        ValueError: results of another plan are kept there.
    """
    plan, before = read_planned(folder), read_planned(out)
    if before is not None and plan is not None and (before.contrasts, before.primary) != (plan.contrasts, plan.primary):
        raise ValueError(f"{out / PLAN} must be the sweep's plan ({plan.words()}), got {before.words()}; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        plan.keep(out)
    if (folder / CHOSEN).is_file():
        shutil.copyfile(folder / CHOSEN, out / CHOSEN)


def keep_run(run: Path, target: Path, *, runs: Path) -> None:
    """Writes the record of one finished run, whole or not at all; one that is a record already is copied, a torn one of it replaced.

    Args:
        runs: the folder of all runs; settings that name a place in it name it as `runs/...` in the record.

    Raises:
        ValueError: one of its files cannot be read, or another run is kept there.
    """
    summary = (run / SUMMARY).read_text(encoding="utf-8")
    if target.is_dir():
        there = (target / SUMMARY).read_text(encoding="utf-8") if (target / SUMMARY).is_file() else ""
        if there == summary and not why_unusable(target):
            return
        if there != summary and is_json(there):
            raise ValueError(f"{target} holds another run than {run}; delete it to keep this one, or give another --out")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".keep-", dir=target.parent) as folder:
        draft = Path(folder) / "run"
        draft.mkdir()
        write_record(run, draft, runs=runs)
        (draft / SUMMARY).write_text(summary, encoding="utf-8")
        if target.is_dir():
            target.rename(Path(folder) / "torn")
        draft.rename(target)


def size_of(record: Path) -> int:
    """Bytes of a record; a page and figures that were made of it and lie beside it are none of it."""
    files = [*(record / name for name in (CONFIG, SUMMARY, KEPT)), *(columns_of(record / name) for name in (METRICS, EVALUATION, TEACHER))]
    return sum(path.stat().st_size for path in files if path.is_file())


def is_json(content: str) -> bool:
    """Whether it can be read as JSON, so that it is no file that was cut."""
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def write_record(run: Path, draft: Path, *, runs: Path) -> None:
    """Writes everything of a record but its summary."""
    config = read_run(run).config | {PROVENANCE: read_config(run / CONFIG).get(PROVENANCE) or {}}
    named = str(config.get("runs", RUNS))
    trace = relocated(setting(config, "teacher.trace"), named, str(runs))
    lines = list(read_lines(run / METRICS))
    facts = kept_facts(run) if (run / KEPT).is_file() else facts_of(run, trace, len(lines))
    config = relocated(config, named, RUNS)
    (draft / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (draft / KEPT).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    # A record was thinned when it was made, as `kept.json` tells.
    write_columns(draft / METRICS, (rounded(line) for line in (lines if (run / KEPT).is_file() else thinned(lines))))
    write_columns(draft / EVALUATION, thin_evaluation(list(read_lines(run / EVALUATION))))
    write_columns(draft / TEACHER, teaching(read_lines(run / TEACHER)))


def facts_of(run: Path, trace: str | None, num_steps: int) -> dict[str, Any]:
    """What stands in `kept.json`: which tasks it issued, which it copied, and what is not there any more."""
    copied = (read_config(run / CONFIG).get(PROVENANCE) or {}).get(COPIED)
    return {
        TASKS: digest_of_tasks(read_lines(run / TEACHER)),
        COPIED: copied or (digest_of_tasks(read_lines(Path(trace))) if trace and Path(trace).is_file() else None),
        "every_so_many_steps": -(-num_steps // MAX_STEPS) or 1,
        "left_out": ["weights", f"transcripts but for {NUM_READ} held-out users", "TensorBoard", "rewards of single rollouts"],
    }


def relocated(tree: Any, old: str, new: str) -> Any:
    """The settings with paths in one folder of runs as paths in another."""
    if isinstance(tree, Mapping):
        return {key: relocated(value, old, new) for key, value in tree.items()}
    if isinstance(tree, str) and (tree == old or tree.startswith(f"{old}/")):
        return new + tree.removeprefix(old)
    return tree


def thinned(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """About `MAX_STEPS` lines, the last one among them, and every one with a look at the probe panel."""
    every = -(-len(lines) // MAX_STEPS) or 1
    return (line for i, line in enumerate(lines) if i % every == 0 or i == len(lines) - 1 or has_look(line))


def has_look(line: Mapping[str, Any]) -> bool:
    """Whether a step measured anything on the probe panel."""
    return any(name.startswith(PROBE) and value is not None for name, value in line.items())


def rounded(value: Any) -> Any:
    """The value with numbers to `DIGITS` digits; whole numbers stay whole."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{DIGITS}g}")
    return value


def thin_evaluation(lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Held-out dialogues without their words, but for those of the users to be read at the first and the last look on the full grid."""
    full = [line for line in lines if line.get("grid") == "full"]
    ends = {full[0].get("look"), full[-1].get("look")} if full else set()
    opening = [line for line in full if line.get("look") == full[0].get("look")]
    users = [line["uid"] for line in sorted(opening, key=lambda line: (line["strictness"], line["uid"]))]
    # A lenient one, a middling one and a strict one: from the middle of each third.
    read = {users[(2 * third + 1) * len(users) // (2 * NUM_READ)] for third in range(NUM_READ)} if users else set()
    for line in lines:
        is_read = line.get("grid") == "full" and line.get("look") in ends and line["uid"] in read
        yield dict(line) if is_read else without_words(line)


def without_words(line: Mapping[str, Any]) -> dict[str, Any]:
    """A held-out dialogue without its words; on the full grid with what its replies came to."""
    kept = {name: line[name] for name in GRADES if name in line}
    if line.get("grid") == "full" and (REPLIES in line or "turns" in line):
        kept[REPLIES] = list(replies_in(line))
    return kept


def teaching(lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A teacher's log: tasks, with difficulty to the last digit, shares of success, and decisions."""
    for line in lines:
        if line.get("event") == "task":
            yield {name: line[name] for name in line if name != "difficulty" or line[name] != on_the_line(line)} | {
                "propensity": rounded(line.get("propensity"))
            }
        elif line.get("event") == "outcome":
            yield {name: line[name] for name in ("step", "event", "task") if name in line} | {
                "success_share": rounded(line.get("success_share"))
            }
        elif line.get("event") == "decision":
            yield rounded(line)


def unpack(record: Path, target: Path, *, runs: Path) -> None:
    """Makes a run's folder of a record, whole or not at all, with streams that anything can read.

    Args:
        runs: the folder of all runs, which settings of the record name as `runs`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".keep-", dir=target.parent) as folder:
        draft = Path(folder) / "run"
        draft.mkdir()
        for name in (SUMMARY, KEPT):
            shutil.copyfile(record / name, draft / name)
        for name in (METRICS, EVALUATION, TEACHER):
            lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in read_kept(record / name))
            (draft / name).write_text("".join(lines), encoding="utf-8")
        config = relocated(read_config(record / CONFIG), RUNS, str(runs))
        experiment = target.absolute().parents[2].name
        if config.get("experiment") != experiment:
            # The same run of another experiment: here it is this one's.
            config[PROVENANCE] = {**(config.get(PROVENANCE) or {}), TAKEN_FROM: config.get("experiment")}
            config["experiment"] = experiment
        (draft / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        try:
            draft.rename(target)
        except OSError:
            # Two commands on one sweep: the other one was faster, and what it made is the same.
            if not (target / SUMMARY).is_file():
                raise
