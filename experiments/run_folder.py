"""Contents of a run's folder: settings and provenance in `config.yaml`, and the numbers of `summary.json`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.runs import CONFIG, COPIED, EARLIER_COMMITS, METRICS, PROVENANCE, TEACHER, digest_of_tasks, read_config, read_lines
from analysis.text import way_covered, with_interval
from analysis.transcripts import MOST_CUT_SHORT
from experiments.config import ExperimentConfig, overrides_of, to_yaml
from experiments.evaluation import mean, start_and_end
from experiments.resume import contents_of_users
from policy.files import fingerprint
from policy.versions import versions
from simulator.settings import setting
from simulator.version import FINGERPRINTS, world_of


def settings_text(config: ExperimentConfig, folder: Path) -> str:
    """The text of `config.yaml`: every setting, and the run's provenance."""
    # Imports torch, which evaluations of an agent behind a server do without.
    from experiments.build import model_folder

    before = setting(read_config(folder / CONFIG), PROVENANCE, {}) if config.resume else {}
    commits = dict.fromkeys([*(before.get(EARLIER_COMMITS) or ()), before.get("git_commit")])
    earlier = [commit for commit in commits if commit and commit != git_commit()]
    preset = getattr(config.simulator, "preset", None)
    provenance = {
        "format": 2,  # of a run's folder; runs of version 0.1 have none, can be read and not resumed
        "versions": versions(),
        "git_commit": git_commit(),
        **({EARLIER_COMMITS: earlier} if earlier else {}),
        "world": world_of(config.simulator),
        "world_fingerprint": FINGERPRINTS[preset if preset == "sage" else getattr(config.simulator, "register", None) or "open"],
        **contents_of_users(config),
        # Two builds of one prior need not be equal on two machines.
        "initial_policy": before.get("initial_policy") or fingerprint(model_folder(config)),
        "overrides": overrides_of(config),
    }
    if trace := getattr(config.teacher, "trace", None):
        path = Path(trace) / TEACHER if Path(trace).is_dir() else Path(trace)
        provenance[COPIED] = before.get(COPIED) or digest_of_tasks(read_lines(path))
    return to_yaml(replace(config, resume=""), provenance)


def summarise_run(
    folder: Path, *, facts: Mapping[str, Any], reference: Mapping[str, float], alarms: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The stable keys of `summary.json`.

    Args:
        facts: those that only the run itself knows: experiment, name, seed, steps, times, counts, hashes, errors.
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


def series(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """A metric over the steps that measured it."""
    return [line[key] for line in lines if line.get(key) is not None]


def ends(values: Sequence[float]) -> dict[str, float]:
    """Means of the first five and of the last five steps."""
    return {"start": mean(values[:5]), "end": mean(values[-5:])}


def closing_words(summary: Mapping[str, Any], *, folder: Path, report: Path | None, runs: str) -> str:
    """The last message of a run for a person; without its page, how to make it."""
    start, end = summary["start"], summary["heldout"]
    reference = {name: values["score"] for name, values in summary["reference"].items()}
    scripted = "".join(f", {name} {score:.1f}" for name, score in sorted(reference.items()))
    # Users that a language model plays have no scripted agents as a reference.
    covered = way_covered(start["score"], end["score"], reference.get("L6"))
    gained = [f"of the way to L6  {covered}"] if covered else []
    shares = [start.get("cut_short"), end.get("cut_short"), summary.get("cut_short")]
    full = []
    if any(share is not None and share >= MOST_CUT_SHORT for share in shares):
        before, after, trained = (f"{share:.0%}" if share is not None and share == share else "none" for share in shares)
        full = [f"CUT SHORT   {before} of the held-out dialogues before, {after} after, {trained} in training: their context was full"]
    alarms = ", ".join(f"{alarm['name']} at step {alarm['step']}" for alarm in summary["collapse"]["alarms"])
    return "\n".join(
        [
            "",
            f"held-out score  {with_interval(start)} before, {with_interval(end)} after  (same grid{scripted})",
            "   ".join([*gained, f"worst cell {start['worst_cell']:.1f} -> {end['worst_cell']:.1f}"]),
            *full,
            f"{summary['steps']} steps, {summary['policy_tokens']:,} tokens, {summary['wall_s']:.0f} s, {summary['cpu_s']:.0f} CPU-s",
            f"alarms      {alarms or 'none'}",
            f"results     {folder}",
            f"report      {report or f'make report RUN={folder}'}",
            f"dashboards  make tensorboard    (or: tensorboard --logdir {runs} --host 127.0.0.1)",
        ]
    )


def git_commit() -> str:
    """The commit of the working tree, with `+` when it has changes; empty outside a repository."""
    try:
        command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+"]
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
