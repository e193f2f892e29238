"""Whether a run that is there is the one that a sweep would make: the same world and settings; and which words would make it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from analysis.copies import why_no_copy
from analysis.runs import CONFIG, METRICS, PROVENANCE, read_config, read_run, setting
from experiments.catalogue import experiments
from experiments.config import DEFAULT_KINDS, MAY_CHANGE, ExperimentConfig, load, load_saved, read_experiment, to_plain
from experiments.keys import ConfigError, leaves
from simulator.bank import world_hash

if TYPE_CHECKING:
    from experiments.sweep_plan import Cell, Sweep

MAY_DIFFER = (*(name for name in MAY_CHANGE if name != "budget."), "name", "experiment", "sealed.again")
"""Settings that change nothing about how a run comes out, by the beginnings of their names. Copies are told by their tasks."""


def refuse_other(sweep: Sweep, cell: Cell) -> None:
    """Raises when a run that is there is not the one this sweep would make."""
    folder = sweep.run_folder(cell)
    if not (folder / CONFIG).is_file():
        return
    try:
        began_in = setting(read_config(folder / CONFIG), f"{PROVENANCE}.world_hash")
        if not began_in:
            raise ValueError(f"{CONFIG} lacks {PROVENANCE}.world_hash")
    except ValueError as error:
        raise ConfigError(f"{cell} was broken off before its settings were written: {error}; delete {folder} to run it anew") from error
    try:
        saved = to_plain(load_saved(folder / CONFIG))
    except ValueError as error:
        raise ConfigError(
            f"{folder / CONFIG} cannot be taken up by this version: {error}; take another name= for the sweep, or the version that began it"
        ) from error
    if began_in != world_hash():
        raise ConfigError(f"{folder} was run in world {began_in}, this is {world_hash()}; take another name= for the sweep")
    # Through the schema, so that a setting which did not exist then stands at its default.
    if found := next(differences(saved, sweep.config(cell)), None):
        name, before, now = found
        raise ConfigError(f"{folder} was run with {name}={before!r}, this sweep wants {now!r}; take another name= for the sweep")
    if (folder / METRICS).is_file() and (reason := why_no_copy(read_run(folder))):
        raise ConfigError(f"{cell} cannot be used: {reason}; delete {folder} for that")


def differences(saved: Mapping[str, object], config: ExperimentConfig) -> Iterator[tuple[str, object, object]]:
    """Settings that differ from those a run was begun with."""
    before, now = dict(leaves(saved)), dict(leaves(to_plain(config)))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name) and not name.startswith(MAY_DIFFER):
            yield name, before.get(name), now.get(name)


def words_for(config: ExperimentConfig) -> list[str]:
    """The overrides that make these settings of the experiment's file; none for a run of a sweep, whose file names its arm."""
    if config.experiment not in experiments() or "arms" in read_experiment(config.experiment):
        return []
    file = load(config.experiment)
    kinds = [f"{group}.kind={now}" for (group, before), (_, now) in zip(kinds_of(file), kinds_of(config), strict=True) if now != before]
    try:
        usual = to_plain(load(config.experiment, kinds))
    except ConfigError:
        # Kinds by themselves may contradict what the file has beside them.
        usual, kinds = to_plain(file), []
    return [*kinds, *(f"{name}={json.dumps(now) if not isinstance(now, str) else now}" for name, _, now in differences(usual, config))]


def kinds_of(config: ExperimentConfig) -> list[tuple[str, str]]:
    """Which kind each group of settings that has kinds is of."""
    return [(group, getattr(config, group).kind) for group in DEFAULT_KINDS]
