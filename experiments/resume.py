"""Whether a run can be resumed: its folder, records, weights and users are those it was begun with.

Changed settings are refused before, by `experiments.config.load_saved`. A further check goes into `check_resumable`; one that needs the
lock on the run's folder or its state goes next to `check_records`, which `experiments.run` calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis.runs import CONFIG, EVALUATION, METRICS, OF_A_MACHINE, PROVENANCE, SUMMARY, last_record, read_config, read_summary
from experiments.config import ExperimentConfig, path_of, to_plain
from experiments.errors import ConfigError, refusing
from simulator.listener import Register
from simulator.rule_user import Preset
from simulator.settings import leaves, setting
from simulator.user import contents_of, served_by_run
from simulator.version import recorded_world, world_name


def resumed_folder(experiment: str, resume: str, *, runs: str) -> Path:
    """The folder that `resume` means: a run's folder, or the name of a run of this experiment in the folder `runs`.

    Raises:
        ConfigError: there is no such experiment or run, it is of another experiment, or of version 0.1, or its users have changed since.
    """
    path_of(experiment)
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
    world = recorded_world(provenance, saved)
    if world.partition("-heard-by-")[0] not in {world_name(register, preset) for register in Register for preset in Preset}:
        raise ConfigError(f"resume must name a run whose users are still the same, got one of world {world!r}; start a new run")
    return folder


def check_resumable(config: ExperimentConfig, folder: Path) -> None:
    """Raises ConfigError for a run whose budget is used up, that lacks a checkpoint or records, or whose users are other ones."""
    with refusing():
        summary, last = read_summary(folder / SUMMARY) or {}, last_record(folder / METRICS) or {}

    # The last evaluation of a run whose budget is used up would be repeated.
    steps, tokens = int(summary.get("steps") or 0), int(summary.get("policy_tokens") or 0)
    if config.budget.fraction(policy_tokens=tokens, steps=steps) >= 1.0:
        raise ConfigError(
            f"resume must name a run that has not ended, got {str(folder)!r} with {steps:,} steps and {tokens:,} policy tokens; "
            "continue it with a larger budget.policy_tokens or budget.steps"
        )

    # A run with steps and no whole checkpoint would begin again and drop its records.
    if last.get("step", 0) >= 1:
        from policy.checkpoint import newest_checkpoint, step_of

        torn: list[str] = []
        if (newest := newest_checkpoint(folder, on_torn=torn.append)) is None:
            raise ConfigError(
                f"resume must name a run with a whole checkpoint, got {str(folder)!r} at step {last['step']}: "
                f"{torn[0] if torn else 'there is none'}; bring the checkpoint back, or start a new run"
            )
        check_records(folder, step=step_of(newest), num_evaluations=0)

    if reason := other_users(read_config(folder / CONFIG), config):
        raise ConfigError(reason)


def check_records(folder: Path, *, step: int, num_evaluations: int) -> None:
    """Raises ConfigError for a run that lacks records up to its checkpoint's step and evaluations: its summary would miss them."""
    # Steps count from one, evaluations from zero.
    for name, key, needed, first in ((METRICS, "step", step, 1), (EVALUATION, "look", num_evaluations - 1, 0)):
        last = (last_record(folder / name) or {}).get(key, -1)
        if needed >= first and last < needed:
            raise ConfigError(f"{folder / name} must reach {key} {needed} of the newest checkpoint, got {last}; bring the file back")


def check_initial_weights(config: ExperimentConfig, folder: Path) -> None:
    """Raises ConfigError for other weights before training than the run began with, where settings still need them."""
    needing = [f"callbacks.{name}" for name, callback in config.callbacks.items() if callback.needs_start]
    if config.algorithm.kl_coef:
        needing.insert(0, f"algorithm.kl_coef={config.algorithm.kl_coef:g}")
    if config.policy.lora.rank:
        needing.insert(0, f"policy.lora.rank={config.policy.lora.rank}")
    before = setting(read_config(folder / CONFIG), f"{PROVENANCE}.initial_policy")
    if not before or not needing:
        return
    from experiments.build import model_folder
    from policy.files import fingerprint

    if (now := fingerprint(model_folder(config))) != before:
        raise ConfigError(
            f"policy.model must be the weights that the run began with ({before}), which {' and '.join(needing)} needs, got others ({now})"
        )


def contents_of_users(config: ExperimentConfig) -> dict[str, str]:
    """`contents_of` the user's settings, and `served_hash`, the fingerprint of a model that the run serves, where it is there."""
    found = contents_of(config.simulator)
    if user := served_by_run(config.simulator):
        from policy.files import fingerprint
        from policy.model import find_model

        with suppress(ValueError, OSError):
            found["served_hash"] = fingerprint(find_model(user.serve))
    return found


def other_users(written: Mapping[str, Any], config: ExperimentConfig) -> str:
    """Why the users differ from those of a run's `config.yaml`, with the remedy; empty where they do not."""
    before, now = setting(written, PROVENANCE, {}), contents_of_users(config)
    for key, name in (("profiles_hash", "simulator.profiles"), ("heldout_profiles_hash", "simulator.heldout_profiles")):
        if before.get(key) and now.get(key) != before[key]:
            path = setting(to_plain(config), name, "")
            got = f"others in {path} (contents {now[key]})" if now.get(key) else f"{path!r}, which cannot be read"
            return f"{name} must hold the users that the run began with (contents {before[key]}), got {got}; bring the first file back"
    for key, name in (
        ("prompts_hash", "the prompts of the LLM user"),
        ("numbers_hash", "the numbers of simulator.preset=sage"),
        ("listener_hash", "the questions or weights of simulator.listener"),
        ("served_hash", "the weights of simulator.serve"),
    ):
        if before.get(key) and key in now and now[key] != before[key]:
            return f"{name} must be those that the run began with ({before[key]}), got others ({now[key]}); start a new run"
    return ""


def differences(saved: Mapping[str, object], config: ExperimentConfig) -> Iterator[tuple[str, object, object]]:
    """Settings that decide results and differ from those a run was begun with: name, value then, value now."""
    before, now = dict(leaves(saved)), dict(leaves(to_plain(config)))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name) and not name.startswith((*OF_A_MACHINE, "name", "experiment")):
            yield name, before.get(name), now.get(name)
