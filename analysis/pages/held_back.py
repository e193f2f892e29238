"""Words of the sealed half's users: a sweep's pages hold them back until all planned runs are in, for who reads them may tune to them.

A run by itself on the sealed half was opened on purpose, and may be read.
"""

from __future__ import annotations

from pathlib import Path

from analysis.comparisons.planned import read_kept_plan
from analysis.comparisons.sweep import run_folders
from analysis.runs import CONFIG, SUMMARY, Run, lacks_provenance, setting
from simulator.scenario import Split


def why_held_back(run: Run) -> str:
    """Why what a run's held-out users said is not shown yet, in a sentence; empty where it may be."""
    is_cut = bool(run.arm) and setting(run.config, "evaluation.split") is None and lacks_provenance(run)
    if CONFIG in run.torn or is_cut:
        return f"Whether they are users of the sealed half stands in {CONFIG}, which cannot be used."
    if not run.arm or setting(run.config, "evaluation.split") != Split.SEALED:
        return ""
    missing, wanted = missing_runs(run.folder.absolute().parents[1])
    if not missing:
        return ""
    return (
        f"Users of the sealed half are shown once all runs of the sweep are in; {missing} of {wanted} are not. "
        "The sweep's page has them then, and so has this one when it is written anew."
    )


def missing_runs(sweep: Path) -> tuple[int, int]:
    """How many of the runs that a sweep planned have not ended, and how many it planned."""
    planned = read_kept_plan(sweep).planned
    wanted = planned.num_runs if planned else 0
    return max(0, wanted - sum((folder / SUMMARY).is_file() for folder in run_folders(sweep))), wanted
