"""Words of the sealed half's users: a sweep's pages hold them back until all planned runs are in, for who reads them may tune to them.

A run by itself on the sealed half was opened on purpose, and may be read.
"""

from __future__ import annotations

from pathlib import Path

from analysis.comparisons.planned import PLAN, read_kept_plan
from analysis.runs import CONFIG, SUMMARY, Run, lacks_provenance, setting
from simulator.scenario import Split


def why_held_back(run: Run) -> str:
    """Why what a run's held-out users said is not shown yet, in a sentence; empty where it may be."""
    is_cut = bool(run.arm) and setting(run.config, "evaluation.split") is None and lacks_provenance(run)
    if CONFIG in run.torn or is_cut:
        return f"Whether they are users of the sealed half stands in {CONFIG}, which cannot be used."
    if not run.arm or setting(run.config, "evaluation.split") != Split.SEALED:
        return ""
    lacking = what_lacks(run.folder.absolute().parents[1])
    if not lacking:
        return ""
    return (
        f"Users of the sealed half are shown once all runs of the sweep are in; {lacking}. "
        "The sweep's page has them then, and so has this one when it is written anew."
    )


def what_lacks(sweep: Path) -> str:
    """How many of the runs that a sweep planned have not ended, or why that cannot be told; empty where all have, or none were planned."""
    kept = read_kept_plan(sweep)
    planned = kept.planned
    if kept.is_torn or (planned is not None and not planned.num_runs):
        return f"which they are should stand in its {PLAN}, and does not"
    if planned is None:
        return ""
    ended = sum((sweep / arm / f"seed_{seed}" / SUMMARY).is_file() for arm in planned.arms for seed in planned.seeds)
    return f"{planned.num_runs - ended} of {planned.num_runs} are not" if ended < planned.num_runs else ""
