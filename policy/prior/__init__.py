"""The prior: the embedded policy before training, and the demonstrations it imitates. Where one lies is found without torch."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from policy.config import PriorConfig
from simulator.version import WORLD_VERSION

RECIPE_VERSION = 10
"""Raised whenever the same settings would build another prior. A test holds it to the demonstrations that are shown and to
the shipped weights."""
SHIPPED = Path(__file__).parent / "shipped" / f"prior-recipe-{RECIPE_VERSION}-world-{WORLD_VERSION['world']}"
"""The default recipe's prior, which comes with the package."""


def prior_folder(config: PriorConfig) -> Path:
    """Where the prior of this recipe lies, or will lie: the default one in the package, others in the user's cache.

    In the cache it is named by a hash over recipe, its version, the world's version and torch's.
    """
    if SHIPPED.is_dir() and recipe_of(config) == recipe_of(PriorConfig()):
        return SHIPPED
    facts = {"version": RECIPE_VERSION, "world": WORLD_VERSION["world"], "torch": version("torch")}
    recipe = json.dumps({"recipe": recipe_of(config), **facts}, sort_keys=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune"
    return cache / f"prior-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def recipe_of(config: PriorConfig) -> dict[str, Any]:
    """The settings by name; one that does not think is the same recipe as before there were thoughts."""
    return {name: value for name, value in asdict(config).items() if name != "thinking" or value}
