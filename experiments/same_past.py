"""Whether a run goes on from the past that it had: its records are there, nobody moved them, and what it began with is what it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from analysis.runs import CONFIG, EVALUATION, METRICS, PROVENANCE, SUMMARY, last_record, read_config, setting
from experiments.agents.who import fingerprint
from experiments.config import ExperimentConfig
from experiments.keys import ConfigError
from experiments.parts import model_folder
from experiments.recorder import CHECKPOINTS, STREAMS

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
