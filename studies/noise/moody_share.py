"""How much of a run's teaching went to users with moods."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from analysis.runs import TEACHER, read_lines
from experiments.callbacks import Callback
from studies.noise.moody_user import MoodyUserConfig

if TYPE_CHECKING:
    from experiments.callbacks import Run
    from experiments.config import ExperimentConfig


@dataclass
class MoodyShare(Callback):
    """Leaves `teaching.moody_share` in the summary: the share of the teacher's groups that went to families that may have moods.

    Where `simulator.whim_prob` is 0 it is what the same families get without them.
    """

    def check(self, config: ExperimentConfig) -> None:
        """Refuses users without moods."""
        if not isinstance(config.simulator, MoodyUserConfig):
            raise ValueError("callbacks.moody_share needs simulator.kind=moody")

    def at_end(self, run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The share, from the teacher's log; empty where it issued nothing."""
        issued = [str(line["family"]) for line in read_lines(run.recorder.folder / TEACHER) if line["event"] == "task"]
        return {"teaching": {"moody_share": share_of(issued, run.config.simulator.families)}} if issued else {}


def share_of(families: Sequence[str], patterns: Sequence[str]) -> float:
    """Share of the families, named once for each group, that fit one of the patterns over intention/persona."""
    return fmean(any(fnmatch.fnmatch(family, pattern) for pattern in patterns) for family in families)
