"""Whether a run that is there is the one that a sweep would make: the same world and settings; and which words would make it again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from analysis.runs import CONFIG, METRICS, PROVENANCE, leaves, read_config, read_run, setting, why_no_copy
from experiments.config import (
    DEFAULT_KINDS,
    MAY_CHANGE,
    PLACES,
    ExperimentConfig,
    defaults_for,
    load,
    load_saved,
    parse_overrides,
    read_experiment,
    to_plain,
)
from experiments.keys import ConfigError
from simulator.users import contents_of
from simulator.version import recorded_world, world_of

if TYPE_CHECKING:
    from experiments.sweep_plan import Cell, Sweep

MAY_DIFFER = (*(name for name in MAY_CHANGE if name not in ("budget.", *PLACES)), "name", "experiment")
"""Settings that change nothing about how a run comes out, by the beginnings of their names. A trace is the same if it lies in the same
place beneath the runs."""
OF_A_PLACE = ("cluster.", "checkpoint.", "resume", "runs", "name", "experiment")
"""Settings that say where and when a run was made and not what it was."""


class TornRun(ConfigError):
    """What lies in a run's folder cannot be read; the other runs of its sweep can go on."""


def refuse_other(sweep: Sweep, cell: Cell) -> None:
    """Raises when a run that is there is not the one this sweep would make.

    Raises:
        TornRun: it cannot be read.
        ConfigError: it is another one.
    """
    folder = sweep.run_folder(cell)
    if not (folder / CONFIG).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise TornRun(f"{cell} has no {CONFIG}: it was broken off before, or it was deleted; delete {folder} to run it anew")
        return
    try:
        written = read_config(folder / CONFIG)
        began_in = recorded_world(written.get(PROVENANCE) or {}, written)
        if not began_in:
            raise ValueError(f"{CONFIG} lacks {PROVENANCE}.world")
    except ValueError as error:
        raise TornRun(f"{cell} was broken off before its settings were written: {error}; delete {folder} to run it anew") from error
    try:
        saved = to_plain(load_saved(folder / CONFIG))
    except ValueError as error:
        raise ConfigError(
            f"{folder / CONFIG} cannot be taken up by this version: {error}; take another name= for the sweep, or the version that began it"
        ) from error
    if began_in != (world := world_of(sweep.config(cell).simulator)):
        raise ConfigError(f"{folder} was run in world {began_in}, this is {world}; take another name= for the sweep")
    if other := other_users(read_config(folder / CONFIG), sweep.config(cell)):
        raise ConfigError(f"{folder} was run with other users: {other}; or take another name= for the sweep")
    # Through the schema, so that a setting which did not exist then stands at its default; all runs together may have moved.
    if found := next(differences(relocated(saved, str(saved["runs"]), str(sweep.runs)), sweep.config(cell)), None):
        name, before, now = found
        raise ConfigError(f"{folder} was run with {name}={before!r}, this sweep wants {now!r}; take another name= for the sweep")
    try:
        reason = why_no_copy(read_run(folder)) if (folder / METRICS).is_file() else ""
    except (ValueError, OSError) as error:
        raise TornRun(f"{cell} cannot be read: {error}; delete {folder} to run it anew") from error
    if reason:
        raise ConfigError(f"{cell} cannot be used: {reason}; delete {folder} for that")


FILES = {"profiles_hash": "simulator.profiles", "heldout_profiles_hash": "simulator.heldout_profiles"}
"""The setting that names the file, by what `config.yaml` calls its contents."""
SPOILT = {
    "profiles_hash": "what was learned so far and what the teacher knows are of the first ones",
    "heldout_profiles_hash": "scores before and after would be of different users",
}


def other_users(written: Mapping[str, Any], config: ExperimentConfig) -> str:
    """Why the users are not those that a run began with, with the remedy; empty where they are, or where it did not say who they were.

    Args:
        written: its `config.yaml`.
    """
    before, now = setting(written, PROVENANCE, {}), contents_of(config.simulator)
    for name, place in FILES.items():
        path, known = setting(to_plain(config), place, ""), before.get(name)
        if name in now and not known and path != (began := setting(written, place, "")):
            return f"{place} must stay {began!r}, as this run did not write down what it held, got {path!r}; name the first file"
        if known and not now.get(name):
            return (
                f"{place} must be there as the run began with it, got {path!r}, which cannot be read; bring it back, or say with "
                f"{place}=FILE where it lies now"
            )
        if known and now[name] != known:
            return (
                f"{place} must hold the people that the run began with (contents {known}), got others in {path} (contents {now[name]}): "
                f"{SPOILT[name]}; bring the first file back, or start a new run"
            )
    for name, place in {"prompts_hash": "the prompts of the model as user", "numbers_hash": "the numbers of simulator.preset=sage"}.items():
        if before.get(name) and name in now and now[name] != before[name]:
            return (
                f"{place} must be those that the run began with ({before[name]}), got others ({now[name]}), which is another world; bring "
                "the first ones back, or start a new run"
            )
    return ""


def differences(saved: Mapping[str, object], config: ExperimentConfig) -> Iterator[tuple[str, object, object]]:
    """Settings that differ from those a run was begun with."""
    before, now = dict(leaves(saved)), dict(leaves(to_plain(config)))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name) and not name.startswith(MAY_DIFFER):
            yield name, before.get(name), now.get(name)


def words_for(config: ExperimentConfig) -> list[str] | None:
    """The overrides that make these settings of the experiment's file; None where it does not say by itself what a run of it is.

    Of a group whose kind is another than the file's they are told against that kind's own defaults.
    """
    file = own_file(config)
    if file is None:
        return None
    usual, words = dict(leaves(to_plain(file))), []
    for group, kind in ((group, getattr(config, group)) for group in DEFAULT_KINDS):
        if kind.kind != usual[f"{group}.kind"]:
            words.append(f"{group}.kind={kind.kind}")
            usual = {name: value for name, value in usual.items() if not name.startswith(f"{group}.")}
            usual |= defaults_of(group, kind.kind)
    now = leaves(to_plain(config))
    changed = ((name, value) for name, value in now if usual.get(name) != value and not name.startswith(OF_A_PLACE))
    return [*words, *(word_for(name, value) for name, value in changed)]


def word_for(name: str, value: Any) -> str:
    """The override that gives a setting this value; text as it is where that is read back as the same, else in quotes."""
    plain = f"{name}={value}"
    with contextlib.suppress(ConfigError):  # what cannot be read as it is goes into quotes
        if isinstance(value, str) and setting(parse_overrides([plain]), name) == value:
            return plain
    return f"{name}={json.dumps(value, ensure_ascii=False)}"


def own_file(config: ExperimentConfig) -> ExperimentConfig | None:
    """What the experiment's file says of a run by itself; None of a sweep's, or where it cannot be read."""
    try:
        return None if "arms" in read_experiment(config.experiment) else load(config.experiment)
    except (ConfigError, KeyError, OSError):
        return None


def defaults_of(group: str, kind: str) -> dict[str, Any]:
    """What the settings of a group are, plain and by dotted name, where no more is said than its kind."""
    return {name: value for name, value in defaults_for(**{**DEFAULT_KINDS, group: kind}).items() if name.startswith(f"{group}.")}


def relocated(tree: Any, old: str, new: str) -> Any:
    """The settings with paths in one folder of runs as paths in another."""
    if isinstance(tree, Mapping):
        return {key: relocated(value, old, new) for key, value in tree.items()}
    if isinstance(tree, str) and (tree == old or tree.startswith(f"{old}/")):
        return new + tree.removeprefix(old)
    return tree
