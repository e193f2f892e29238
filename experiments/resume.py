"""Whether a run goes on from the past that it had: its records are there, nobody moved them, and what it began with is what it was.

Whether a run that is there is the one that a sweep would make: the same world and settings; and which words would make it again.

What a run writes down before its first step: its settings and where they come from, whole from their first moment.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.runs import (
    CONFIG,
    COPIED,
    EARLIER_COMMITS,
    EVALUATION,
    METRICS,
    PROVENANCE,
    SUMMARY,
    TEACHER,
    digest_of_tasks,
    last_record,
    leaves,
    read_config,
    read_lines,
    setting,
)
from experiments.agents.agent import fingerprint
from experiments.build import model_folder
from experiments.config import (
    DEFAULT_KINDS,
    MAY_CHANGE,
    PLACES,
    ExperimentConfig,
    defaults_for,
    load,
    parse_overrides,
    read_experiment,
    to_plain,
    to_yaml,
)
from experiments.errors import ConfigError
from experiments.recorder import CHECKPOINTS, STREAMS
from experiments.run_folder import git_commit, versions
from simulator.users import contents_of
from simulator.version import fingerprint_of, world_of

if TYPE_CHECKING:
    pass


Stamps = dict[str, tuple[int, int, int]]
"""Of each file of a run that is there: its inode, its size in bytes, and when it was written, in nanoseconds."""


def stamps_of(folder: Path) -> Stamps:
    """By what it shows that another process went on with a run: whoever does writes every stream anew, if only to cut nothing off."""
    there = ((name, folder / name) for name in (*STREAMS, SUMMARY))
    facts = {name: path.stat() for name, path in there if path.is_file()}
    return {name: (fact.st_ino, fact.st_size, fact.st_mtime_ns) for name, fact in facts.items()}


def require_unmoved(folder: Path, stamps: Stamps) -> None:
    """Refuses to go on from a checkpoint that is not the newest any more; to be asked while no other process can write the run.

    Args:
        stamps: taken before the checkpoint was looked for.

    Raises:
        ConfigError: another process went on with the run meanwhile, and has ended.
    """
    if stamps_of(folder) != stamps:
        raise ConfigError(f"{folder} must be written by one process at a time, got another one that went on with it meanwhile; start again")


def require_records(folder: Path, *, step: int, num_looks: int) -> None:
    """Refuses to go on with a run that lacks records of what its checkpoint has behind it: its summary would be of the rest alone.

    Args:
        step: of the checkpoint.
        num_looks: evaluations before it.

    Raises:
        ConfigError: names the file, and how far it reaches.
    """
    for name, key, wanted in ((METRICS, "step", step), (EVALUATION, "look", num_looks - 1)):
        last = last_record(folder / name) or {}
        # Steps count from one, looks from zero.
        if wanted >= (key == "step") and last.get(key, -1) < wanted:
            found = f"{key} {last[key]}" if key in last else "none"
            raise ConfigError(
                f"{folder / name} must reach {key} {wanted}, from which the newest checkpoint goes on, got {found}; bring the file "
                f"back, delete {CHECKPOINTS}/step_{step} to go on from the one before it, or start a new run"
            )


def require_start(config: ExperimentConfig, folder: Path) -> None:
    """Refuses to go on where the weights before training are still needed and are others than those that the run began with.

    Raises:
        ConfigError: names the settings that need them.
    """
    before, needing = setting(read_config(folder / CONFIG), f"{PROVENANCE}.initial_policy"), list(needing_start(config))
    if not before or not needing:
        return
    if (now := fingerprint(model_folder(config))) != before:
        raise ConfigError(
            f"policy.model must be what the run began with ({before}), as {' and '.join(needing)} still needs those weights, got others "
            f"({now}) in {model_folder(config)}; bring the first ones back, or start a new run"
        )


def needing_start(config: ExperimentConfig) -> Iterator[str]:
    """The settings for which a run that goes on looks at the weights before training."""
    if config.policy.lora.rank:
        yield f"policy.lora.rank={config.policy.lora.rank}"
    if config.algorithm.kl_coef:
        yield f"algorithm.kl_coef={config.algorithm.kl_coef:g}"
    yield from (f"callbacks.{name}" for name, callback in config.callbacks.items() if callback.needs_start)


MAY_DIFFER = (*(name for name in MAY_CHANGE if name not in ("budget.", *PLACES)), "name", "experiment")
"""Settings that change nothing about how a run comes out, by the beginnings of their names. A trace is the same if it lies in the same
place beneath the runs."""
OF_A_PLACE = ("cluster.", "checkpoint.", "resume", "runs", "name", "experiment")
"""Settings that say where and when a run was made and not what it was."""


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


def settings_text(config: ExperimentConfig, folder: Path) -> str:
    """What stands in a run's `config.yaml`: every setting, and where it comes from."""
    provenance = {
        "versions": versions(),
        "git_commit": git_commit(),
        **earlier_commits(config, folder),
        "world": world_of(config.simulator),
        "world_fingerprint": fingerprint_of(config.simulator),
        **contents_of(config.simulator),
        "initial_policy": initial_policy(config, folder),
        "overrides": words_for(config),
        **copied_tasks(config, folder),
    }
    return to_yaml(replace(config, resume=""), provenance)


def write_over(path: Path, text: str) -> None:
    """Writes a file that this process has locked, and that is therefore not exchanged for another; at no time is it empty."""
    with path.open("r+b") as file:
        file.write(text.encode("utf-8"))
        file.truncate()


def earlier_commits(config: ExperimentConfig, folder: Path) -> dict[str, list[str]]:
    """The other states of the code that a resumed run has run on; nothing where there are none."""
    before = setting(read_config(folder / CONFIG), PROVENANCE, {}) if config.resume else {}
    commits = dict.fromkeys([*(before.get(EARLIER_COMMITS) or ()), before.get("git_commit")])
    others = [commit for commit in commits if commit and commit != git_commit()]
    return {EARLIER_COMMITS: others} if others else {}


def initial_policy(config: ExperimentConfig, folder: Path) -> str:
    """The fingerprint of the weights that a run began with: two builds of one prior need not be the same on two machines."""
    before = setting(read_config(folder / CONFIG), f"{PROVENANCE}.initial_policy") if config.resume else None
    return str(before) if before else fingerprint(model_folder(config))


def copied_tasks(config: ExperimentConfig, folder: Path) -> dict[str, str | None]:
    """The digest of the tasks that a run was given to replay, once and for all; nothing of one that replays none."""
    trace = getattr(config.teacher, "trace", None)
    if not trace:
        return {}
    before = setting(read_config(folder / CONFIG), f"{PROVENANCE}.{COPIED}") if config.resume else None
    place = Path(trace) / TEACHER if Path(trace).is_dir() else Path(trace)
    return {COPIED: before or digest_of_tasks(read_lines(place))}
