"""The sealed half judges a teacher once in a frozen world and for a kind of reward: a second opening needs a word of its own.

A mark is a line of `<runs>/sealed.jsonl` and belongs to an opening: a sweep, or a single run. Further arms of the same sweep, with seeds
that it was planned with, are part of its opening; so is going on with a run that was broken off. Anything else (another sweep, more
seeds, a run begun anew after it was deleted) is refused unless `sealed.again` says why, and that is kept with the mark. Marks that were
kept with a sweep's results (`analysis.results`) count like those beside its runs, and those of this checkout count wherever a run lies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.results import MARKS, RUNS, results_beside
from experiments.keys import ConfigError
from simulator.fingerprint import world_name
from simulator.scenario import Split

if TYPE_CHECKING:
    from experiments.config import ExperimentConfig

CHECKOUT = Path(__file__).resolve().parent.parent
"""Where this code lies: its own runs and results count for every run, so that `runs=` elsewhere does not open what was opened here."""
NO_REASONS = ("no", "n", "off", "false", "none", "null", "0", "yes", "y", "on", "true", "1")
"""Answers to whether; the mark keeps an answer to why."""


@dataclass
class SealedConfig:
    """What is said when the sealed half is opened (`sealed.*`)."""

    again: str = ""
    """Why it is opened again for a teacher that was judged by it before in this world; empty refuses that."""
    seeds: list[int] = field(default_factory=list)
    """All seeds that the opening was planned with; a sweep sets it, a single run has its own seed."""

    def __post_init__(self) -> None:
        if self.again and (self.again.strip(" .!?").lower() in NO_REASONS or not any(map(str.isalpha, self.again))):
            raise ValueError(
                f"sealed.again must say why the sealed half is opened again, got {self.again!r}; leave it out to keep it closed"
            )


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One run that was judged by the sealed half."""

    world_hash: str
    teacher: str
    """Kind of teacher: one that was improved after it was judged is not a new one."""
    reward: str
    """`graded` or `binary`: two questions, whatever the other settings of a reward are."""
    opening: str
    """The sweep or single run, as `<experiment>/<name>`."""
    run: str
    """The run's folder beneath all runs."""
    seeds: list[int]
    again: str
    time: str


def check_sealed(config: ExperimentConfig, folder: Path, *, resuming: bool) -> None:
    """Refuses a run that would open the sealed half a second time.

    Args:
        resuming: the run goes on; what it was judged by so far is not judged again.

    Raises:
        ConfigError: it was opened before for this teacher in this world, and nobody says why it should be again.
    """
    if config.evaluation.split != Split.SEALED or config.sealed.again:
        return
    if config.sealed.seeds and config.seed not in config.sealed.seeds:
        raise ConfigError(
            f"seeds must be among those that the sealed half is planned with, {', '.join(map(str, config.sealed.seeds))}, got "
            f"{config.seed}; if others must be judged by it, say why with sealed.again=..."
        )
    mine = mark_of(config, folder)
    for mark in known_marks(root_of(config, folder)):
        if (mark.world_hash, mark.teacher, mark.reward) != (mine.world_hash, mine.teacher, mine.reward):
            continue
        if mark.opening == mine.opening and mark.seeds == mine.seeds and (resuming or mark.run != mine.run):
            continue
        raise ConfigError(
            f"evaluation.split must be heldout: the sealed half was opened for {mark.teacher} in world {mark.world_hash} with "
            f"{mark.reward} rewards by {mark.run} on {mark.time}, and judges a teacher once; if it must be opened again, say why "
            "with sealed.again=..."
        )


@contextlib.contextmanager
def opening_sealed(config: ExperimentConfig, folder: Path) -> Iterator[None]:
    """While entered, no other run can open the sealed half; a run that is begun meanwhile leaves its mark, one that goes on no second one.

    Raises:
        ConfigError: another run opened it since this one was checked, while engines started; nothing was begun.
    """
    if config.evaluation.split != Split.SEALED:
        yield
        return
    mine = mark_of(config, folder)
    root = root_of(config, folder)
    root.mkdir(parents=True, exist_ok=True)
    with (root / MARKS).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        is_marked = any(replace(mark, seeds=mine.seeds, time=mine.time) == mine for mark in read_marks(root))
        if not is_marked:
            check_sealed(config, folder, resuming=bool(config.resume))
        yield
        if not is_marked:
            file.write(json.dumps(asdict(mine)) + "\n")


def mark_of(config: ExperimentConfig, folder: Path) -> Mark:
    """The mark that a run leaves."""
    place = Path(folder).absolute().relative_to(root_of(config, folder).absolute())
    return Mark(
        world_hash=world_name(),
        teacher=config.teacher.kind,
        reward="binary" if config.rollout.binary_reward_at else "graded",
        opening="/".join(place.parts[:2]),
        run=str(place),
        seeds=config.sealed.seeds or [config.seed],
        again=config.sealed.again,
        time=f"{datetime.now():%Y-%m-%d %H:%M}",
    )


def root_of(config: ExperimentConfig, folder: Path) -> Path:
    """The folder of all runs, also of a run that was moved since."""
    runs, place = Path(config.runs), Path(folder).absolute()
    if place.is_relative_to(runs.absolute()):
        return runs
    # A single run is <runs>/<experiment>/<name>; one of a sweep, which alone is told its seeds, lies two folders deeper.
    return place.parents[3 if config.sealed.seeds else 1]


def known_marks(runs: Path) -> Iterator[Mark]:
    """The marks that count for a run: of its own folder of runs, of this checkout's, and of what was kept beside either."""
    for place in (runs, CHECKOUT / RUNS):
        yield from read_marks(place)
        yield from read_marks(results_beside(place))


def read_marks(runs: Path) -> Iterator[Mark]:
    """The marks left so far.

    Raises:
        ConfigError: a line is no mark, so that nobody knows what was opened.
    """
    if not (runs / MARKS).is_file():
        return
    for number, line in enumerate((runs / MARKS).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            yield Mark(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{runs / MARKS} must hold a mark in line {number}, got {line[:60]!r}; mend it by hand ({error})") from error
