"""Teachers compared on toy students."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curriculum.figures import figures
from curriculum.trial import simulate


def run_one(student: str, kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> dict[str, float]:
    """The figures of one run; see `simulate` and `figures`."""
    return figures(simulate(student, kind, settings, seed))
