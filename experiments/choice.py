"""Which fixed setting, which schedule: a baseline that is the best of several is chosen on runs that do not judge it.

    choose: {from: fixed_vs_adaptive/sweep, seeds: 0-4, best: ["fixed_*", "linear_*"]}

takes, of the arms that fit each pattern, the one with the greatest mean endpoint over these seeds of that sweep, whose runs must have had
the settings that this sweep would give them, seed and split aside. What was chosen is kept in the sweep's own folder before its first run,
so that later runs of the other sweep change nothing.
"""

from __future__ import annotations

import fnmatch
import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.comparisons.options import seeds as seeds_from
from analysis.comparisons.planned import CHOSEN
from analysis.comparisons.sweep import RunResult, read_sweep, why_not_paired
from analysis.endpoints import sign_of
from analysis.results import results_beside, results_of
from analysis.runs import CONFIG
from experiments.config import load_saved, to_plain
from experiments.keys import ConfigError
from experiments.same_run import differences
from simulator.drafts import write_whole
from simulator.fingerprint import world_name
from simulator.scenario import Split

if TYPE_CHECKING:
    from experiments.config import ExperimentConfig

OF_EACH_RUN = ("experiment", "seed", "evaluation.split", "sealed.")
"""Settings in which a run that a choice rests on differs from the run that the choice is for, beside those of any two sittings."""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """The best of the arms that fit a pattern."""

    pattern: str
    arm: str
    means: dict[str, float]
    """Endpoint of each candidate, mean over the seeds."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is to be chosen, and as far as it is known what was."""

    origin: str
    """The sweep that it rests on, as `<experiment>/<name>`."""
    seeds: str
    candidates: dict[str, list[str]]
    """By pattern, the arms among which there is a choice."""
    endpoint: str
    world_hash: str
    picks: tuple[Pick, ...] = ()
    why_not: str = ""
    """Why nothing could be chosen yet; empty where it was."""

    @property
    def rejected(self) -> set[str]:
        """Candidates that were not chosen, those among them that were no candidates yet when the choice was made."""
        return {arm for pick in self.picks for arm in (*pick.means, *self.candidates.get(pick.pattern, ())) if arm != pick.arm}

    @property
    def num_open(self) -> int:
        """How many candidates will fall away once the best are chosen."""
        return sum(max(len(names) - 1, 0) for names in self.candidates.values()) if self.why_not else 0

    def sentences(self) -> Iterable[str]:
        """What was chosen and why, or why not yet."""
        if self.why_not:
            yield f"not chosen yet, so all candidates are listed: {self.why_not}"
        for pick in self.picks:
            means = ", ".join(f"{arm} {mean:.2f}" for arm, mean in pick.means.items())
            later = [arm for arm in self.candidates.get(pick.pattern, ()) if arm not in pick.means]
            but = f"; {', '.join(later)} came later and is not among them" if later else ""
            yield f"{pick.arm} is the best {pick.pattern} on seeds {self.seeds} of {self.origin} ({self.endpoint}: {means}){but}"

    def keep(self, folder: Path) -> None:
        """Writes it down for all later sittings.

        Raises:
            ConfigError: nothing could be chosen.
        """
        if self.why_not:
            raise ConfigError(f"{', '.join(self.candidates)} must be chosen before a run begins: {self.why_not}")
        if self.picks:
            folder.mkdir(parents=True, exist_ok=True)
            kept = {**kept_picks(self, folder), **{pick.pattern: pick for pick in self.picks}}
            record = asdict(replace(self, picks=tuple(kept.values())))
            text = json.dumps(record, indent=1) + "\n"
            if not (folder / CHOSEN).is_file() or (folder / CHOSEN).read_text(encoding="utf-8") != text:
                write_whole(folder / CHOSEN, text)


def read_choice(
    wanted: Mapping[str, Any],
    arms: Collection[str],
    *,
    asked: Collection[str],
    folder: Path,
    runs: Path,
    endpoint: str,
    config_of: Callable[[str], ExperimentConfig],
    all_at_once: bool = False,
) -> Choice:
    """The choice that was kept in the sweep's folder, or the one that the other sweep's runs now give.

    Args:
        wanted: `from`, `seeds` and `best`, as in the sweep's file.
        arms: all of the file, among which the best is chosen.
        asked: those that were asked for. Where nothing can be chosen yet, a pattern that fits only one of them leaves nothing to choose.
        config_of: the settings that the sweep would give an arm, whatever the seed.
        all_at_once: also of patterns that fit none or only one of them: once the sealed half is open nothing is chosen any more.

    Raises:
        ConfigError: `wanted` has other keys, its seeds are none, or the arms lack one that was chosen before.
    """
    patterns, numbers = checked(wanted, arms)
    fitting = {pattern: fnmatch.filter(asked, pattern) for pattern in patterns}
    candidates = {pattern: fnmatch.filter(arms, pattern) for pattern, some in fitting.items() if some or all_at_once}
    origin, seeds = str(wanted["from"]), str(wanted["seeds"])
    undecided = Choice(origin=origin, seeds=seeds, candidates=candidates, endpoint=endpoint, world_hash=world_name())
    kept = kept_picks(undecided, folder)
    settings = {pattern: {arm: config_of(arm) for arm in some} for pattern, some in candidates.items() if pattern not in kept}
    picks, why = [], ""
    for pattern in candidates:
        try:
            picks.append(kept.get(pattern) or best_there_is(pattern, settings[pattern], runs, origin, numbers, endpoint))
        except ValueError as error:
            why = why or (str(error) if len(fitting[pattern]) > 1 or all_at_once else "")
    if why:
        several = {pattern: some for pattern, some in fitting.items() if len(some) > 1 or all_at_once}
        why = f"{why}; run {origin.partition('/')[0]} first" + ("" if all_at_once else ", or name one of them with arms=")
        return replace(undecided, candidates=several, why_not=why)
    for pick in picks:
        if fitting[pick.pattern] and pick.arm not in fitting[pick.pattern]:
            said = f"which {folder / CHOSEN} has as the best" if pick.pattern in kept else f"on {origin} the best"
            raise ConfigError(f"arms must hold {pick.arm}, {said} {pick.pattern}, got {', '.join(fitting[pick.pattern])}")
    return replace(undecided, picks=tuple(picks))


def checked(wanted: Mapping[str, Any], arms: Collection[str]) -> tuple[list[str], range]:
    """The patterns and the seeds that a sweep's file names.

    Raises:
        ConfigError: it names other things, no arms of its own, or seeds that are none.
    """
    if set(wanted) != {"from", "seeds", "best"}:
        raise ConfigError(f"choose must have the keys from, seeds and best, got {', '.join(wanted)}")
    patterns = wanted["best"]
    if not isinstance(patterns, list) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f"choose: best must be a list of names of arms, such as [fixed_*], got {patterns!r}")
    if strays := [pattern for pattern in patterns if not fnmatch.filter(arms, pattern)]:
        raise ConfigError(f"choose: best must name arms of the sweep, got {', '.join(strays)}; the arms are {', '.join(arms)}")
    try:
        return patterns, seeds_from(str(wanted["seeds"]))
    except ArgumentTypeError as error:
        raise ConfigError(f"choose: seeds {error}") from error


def kept_picks(choice: Choice, folder: Path) -> dict[str, Pick]:
    """By pattern, what was chosen in earlier sittings from the same seeds of the same sweep in the same world.

    What was kept with the sweep's results counts where its folder is gone.

    Raises:
        ConfigError: the file cannot be read, or the sweep's own has another choice.
    """
    path = next((place / CHOSEN for place in (folder, results_of(folder)) if (place / CHOSEN).is_file()), None)
    if path is None:
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["world_hash"] != choice.world_hash:
            return {}
        others = [name for name in ("origin", "seeds", "endpoint") if kept[name] != getattr(choice, name)]
        picks = {pick["pattern"]: Pick(**pick) for pick in kept["picks"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} must hold what was chosen, got something else ({error}); delete it to choose anew") from error
    if others and path.parent == folder:
        raise ConfigError(
            f"{path} was chosen with {others[0]} {kept[others[0]]!r}, this would be with {getattr(choice, others[0])!r}; a choice is made "
            "once: take another name= for the sweep"
        )
    return {} if others else picks


def best_there_is(pattern: str, arms: Mapping[str, ExperimentConfig], runs: Path, origin: str, seeds: range, endpoint: str) -> Pick:
    """The best arm among the other sweep's runs, or among what was kept of them where these do not suffice.

    Args:
        arms: the settings that each candidate would be given.

    Raises:
        ValueError: neither suffices; it is said of the runs.
    """
    try:
        return best(pattern, arms, runs / origin, seeds, endpoint)
    except ValueError as error:
        results = results_beside(runs) / origin
        if not results.is_dir():
            raise
        try:
            return best(pattern, arms, results, seeds, endpoint)
        except ValueError as other:
            raise ValueError(f"{error}, and {other}") from other


def best(pattern: str, arms: Mapping[str, ExperimentConfig], folder: Path, seeds: range, endpoint: str) -> Pick:
    """The arm with the best mean endpoint.

    Args:
        arms: the settings that each candidate would be given.

    Raises:
        ValueError: the sweep is not there, lacks a run of a candidate, or was run in another world or with other settings; a run was judged
            on the sealed half, or candidates began with different weights.
    """
    sweep = read_sweep(folder, seeds=seeds)
    means: dict[str, float] = {}
    starts: dict[int, RunResult] = {}
    for arm, config in arms.items():
        found = sweep.of(arm)
        if lacking := [str(seed) for seed in seeds if seed not in found or found[seed].scalars[endpoint] is None]:
            raise ValueError(f"{folder} lacks {endpoint} of {arm} with seed {', '.join(lacking)}")
        if others := {run.world for run in found.values()} - {world_name()}:
            raise ValueError(f"{folder} was run in world {', '.join(sorted(others))}, this is {world_name()}")
        for seed, run in found.items():
            require_settings(folder / arm / f"seed_{seed}", config)
            if run.settings.get("evaluation.split") == Split.SEALED:
                raise ValueError(f"{folder / arm / f'seed_{seed}'} was judged on the sealed half, on which nothing may be chosen")
            first = starts.setdefault(seed, run)
            if reason := why_not_paired(first, run):
                raise ValueError(f"{folder} has candidates that may not be compared: {first.name} and {run.name} {reason}")
        means[arm] = float(np.mean([run.scalars[endpoint] for run in found.values()]))
    return Pick(pattern=pattern, arm=max(means, key=lambda arm: sign_of(endpoint) * means[arm]), means=means)


def require_settings(run: Path, config: ExperimentConfig) -> None:
    """Raises where a run had other settings than these, but for what is of each run.

    Raises:
        ValueError: names the setting and both values.
    """
    for name, before, now in differences(to_plain(load_saved(run / CONFIG)), config):
        if not name.startswith(OF_EACH_RUN):
            raise ValueError(f"{run} was run with {name}={before!r}, this sweep wants {now!r}")
