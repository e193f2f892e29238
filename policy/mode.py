"""Whether a model thinks before it speaks, as its folder says."""

from __future__ import annotations

import json
from pathlib import Path

MARK = "attune_thinking"
"""Key in a model's config.json: whether it learnt to think before it speaks. Models that are not ours have none."""
RECIPE = "recipe.json"
"""File in the folder of an embedded prior."""


def learnt_to_think(folder: Path) -> bool | None:
    """Whether the model in a folder thinks before it speaks; None for one that is not ours, which may do either."""
    try:
        marked = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(MARK)
    except (OSError, ValueError, AttributeError):
        return None
    return False if marked is None and (folder / RECIPE).is_file() else marked


def check_mode(folder: Path, *, thinking: bool) -> None:
    """Raises ValueError for a model of ours that thinks and is asked not to, or the reverse."""
    learnt = learnt_to_think(folder)
    if learnt is not None and learnt != thinking:
        how = "to think before it speaks" if learnt else "to speak without thoughts"
        remedy = "" if learnt else "; policy.model=embedded has a prior that thinks"
        raise ValueError(f"policy.thinking must be {str(learnt).lower()} for {str(folder)!r}, which learnt {how}{remedy}")
