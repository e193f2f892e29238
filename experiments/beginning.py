"""What a run writes down before its first step: its settings and where they come from, whole from their first moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.runs import CONFIG, COPIED, EARLIER_COMMITS, PROVENANCE, TEACHER, digest_of_tasks, read_config, read_lines, setting
from experiments.agents.who import fingerprint
from experiments.config import ExperimentConfig, to_yaml
from experiments.parts import model_folder
from experiments.same_run import words_for
from experiments.summary import git_commit, versions
from simulator.users import contents_of
from simulator.version import fingerprint_of, world_of


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
