"""Where the prior of a recipe lies, found without importing torch: what a run would begin with is asked before anything heavy starts."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from policy.prior_config import PriorConfig
from simulator.bank import world_hash

RECIPE_VERSION = 10
"""Raised whenever what builds a prior (`policy.prior`, `policy.alike`) builds another one of the same recipe."""


def prior_folder(config: PriorConfig) -> Path:
    """Where the prior of this recipe lies, or will lie: the user's cache, named by the hash of recipe and world."""
    facts = {"version": RECIPE_VERSION, "world": world_hash(without_heldout=True), "torch": version("torch")}
    recipe = json.dumps({"recipe": recipe_of(config), **facts}, sort_keys=True)
    shown = ["demonstrations.py", *(["thinking_demonstrations.py"] if config.thinking else [])]
    moves = b"".join((Path(__file__).parent / name).read_bytes() for name in shown)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune"
    return cache / f"prior-{hashlib.sha256(recipe.encode() + moves).hexdigest()[:16]}"


def recipe_of(config: PriorConfig) -> dict[str, Any]:
    """The settings by name; one that does not think is the same recipe as before there were thoughts."""
    return {name: value for name, value in asdict(config).items() if name != "thinking" or value}
