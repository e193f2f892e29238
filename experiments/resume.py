"""Whether a run can be resumed: its folder, users, records and weights are those it was begun with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.runs import CONFIG, EVALUATION, METRICS, SUMMARY, last_record, read_config, read_summary
from experiments.config import MAY_CHANGE, PATHS, PROVENANCE, ExperimentConfig, require_known, to_plain
from experiments.errors import ConfigError, refusing
from simulator.settings import leaves, setting
from simulator.users import contents_of
from simulator.version import is_current, recorded_world

FILES = {"profiles_hash": "simulator.profiles", "heldout_profiles_hash": "simulator.heldout_profiles"}
"""Settings that name files, by the key of their contents' hash in the provenance."""
TEXTS = {"prompts_hash": "the prompts of the LLM user", "numbers_hash": "the numbers of simulator.preset=sage"}
"""Contents that ship with the package, likewise."""


def resumed_folder(experiment: str, resume: str, *, runs: str) -> Path:
    """The folder that `resume` means: a run's folder, or the name of a run of this experiment in the folder `runs`.

    Raises:
        ConfigError: there is no such experiment or run, it is of another experiment, or of version 0.1, or its users have changed since.
    """
    require_known(experiment)
    places = (Path(resume), Path(runs) / experiment / resume)
    folder = next((place for place in places if (place / CONFIG).is_file()), None)
    if folder is None:
        raise ConfigError(f"resume must name a run's folder, got {resume!r}; there is no {CONFIG} in {' or '.join(map(str, places))}")
    with refusing():
        saved = read_config(folder / CONFIG)
    if saved.get("experiment") != experiment:
        raise ConfigError(f"resume must name a run of {experiment}, got {str(folder)!r}, a run of {saved.get('experiment')}")
    provenance = saved.get(PROVENANCE) or {}
    if "format" not in provenance:
        raise ConfigError(f"resume must name a run of version 0.2 or later, got {str(folder)!r} of 0.1; reports and comparisons read it")
    if not is_current(world := recorded_world(provenance, saved)):
        raise ConfigError(f"resume must name a run whose users are still the same, got one of world {world!r}; start a new run")
    return folder


def check_resumable(config: ExperimentConfig, folder: Path) -> None:
    """Refuses a run that cannot be resumed; a further check goes here.

    Raises:
        ConfigError: its budget is used up, it lacks a checkpoint or records, or its users are other ones.
    """
    check_unfinished(config, folder)
    check_checkpoint(folder)
    if reason := other_users(read_config(folder / CONFIG), config):
        raise ConfigError(reason)


def check_unfinished(config: ExperimentConfig, folder: Path) -> None:
    """Refuses a run whose budget is used up: its last evaluation would be repeated."""
    with refusing():
        summary = read_summary(folder / SUMMARY)
    if summary is None:
        return
    steps, tokens = int(summary.get("steps") or 0), int(summary.get("policy_tokens") or 0)
    if config.budget.fraction(policy_tokens=tokens, steps=steps) >= 1.0:
        raise ConfigError(
            f"resume must name a run that has not ended, got {str(folder)!r} with {steps:,} steps and {tokens:,} policy tokens; "
            "continue it with a larger budget.policy_tokens or budget.steps"
        )


def check_checkpoint(folder: Path) -> None:
    """Refuses a run with records of training and no whole checkpoint: it would begin again and drop them."""
    with refusing():
        last = last_record(folder / METRICS)
    if last is None or last["step"] < 1:
        return
    from policy.checkpoint import newest_checkpoint, step_of

    torn: list[str] = []
    newest = newest_checkpoint(folder, on_torn=torn.append)
    if newest is None:
        raise ConfigError(
            f"resume must name a run with a whole checkpoint, got {str(folder)!r} at step {last['step']}: "
            f"{torn[0] if torn else 'there is none'}; bring the checkpoint back, or start a new run"
        )
    check_records(folder, step=step_of(newest), num_evaluations=0)


def check_records(folder: Path, *, step: int, num_evaluations: int) -> None:
    """Refuses a run that lacks records from before its checkpoint, because its summary would miss them.

    Args:
        step: of the checkpoint.
        num_evaluations: before it.

    Raises:
        ConfigError: names the file, and how far it reaches.
    """
    for name, key, needed in ((METRICS, "step", step), (EVALUATION, "look", num_evaluations - 1)):
        last = (last_record(folder / name) or {}).get(key, -1)
        # Steps count from one, evaluations from zero.
        if needed >= (key == "step") and last < needed:
            raise ConfigError(f"{folder / name} must reach {key} {needed} of the newest checkpoint, got {last}; bring the file back")


def check_initial_weights(config: ExperimentConfig, folder: Path) -> None:
    """Refuses other weights before training than the run began with, where the run still needs them.

    Raises:
        ConfigError: names the settings that need them.
    """
    before, needing = setting(read_config(folder / CONFIG), f"{PROVENANCE}.initial_policy"), list(needing_initial_weights(config))
    if not before or not needing:
        return
    from experiments.agents.agent import fingerprint
    from experiments.build import model_folder

    if (now := fingerprint(model_folder(config))) != before:
        raise ConfigError(
            f"policy.model must be the weights that the run began with ({before}), which {' and '.join(needing)} needs, got others ({now})"
        )


def needing_initial_weights(config: ExperimentConfig) -> Iterator[str]:
    """The settings for which a resumed run needs the weights before training."""
    if config.policy.lora.rank:
        yield f"policy.lora.rank={config.policy.lora.rank}"
    if config.algorithm.kl_coef:
        yield f"algorithm.kl_coef={config.algorithm.kl_coef:g}"
    yield from (f"callbacks.{name}" for name, callback in config.callbacks.items() if callback.needs_start)


def other_users(written: Mapping[str, Any], config: ExperimentConfig) -> str:
    """Why the users differ from those that a run began with, with the remedy; empty where they do not.

    Args:
        written: its `config.yaml`.
    """
    before, now = setting(written, PROVENANCE, {}), contents_of(config.simulator)
    for key, name in FILES.items():
        if before.get(key) and now.get(key) != before[key]:
            path = setting(to_plain(config), name, "")
            got = f"others in {path} (contents {now[key]})" if now.get(key) else f"{path!r}, which cannot be read"
            return f"{name} must hold the users that the run began with (contents {before[key]}), got {got}; bring the first file back"
    for key, name in TEXTS.items():
        if before.get(key) and key in now and now[key] != before[key]:
            return f"{name} must be those that the run began with ({before[key]}), got others ({now[key]}); start a new run"
    return ""


def differences(saved: Mapping[str, object], config: ExperimentConfig) -> Iterator[tuple[str, object, object]]:
    """Settings that decide results and differ from those a run was begun with: name, value then, value now."""
    ignored = (*(name for name in MAY_CHANGE if name not in ("budget.", *PATHS)), "name", "experiment")
    before, now = dict(leaves(saved)), dict(leaves(to_plain(config)))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name) and not name.startswith(ignored):
            yield name, before.get(name), now.get(name)


def relocated(tree: Any, old: str, new: str) -> Any:
    """The settings with paths in one folder of runs as paths in another."""
    if isinstance(tree, Mapping):
        return {key: relocated(value, old, new) for key, value in tree.items()}
    if isinstance(tree, str) and (tree == old or tree.startswith(f"{old}/")):
        return new + tree.removeprefix(old)
    return tree
