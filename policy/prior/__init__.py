"""The prior: the embedded policy before training, and the demonstrations it imitates. Its folder is found without torch."""

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
"""Raised whenever the same settings would build another prior. A test holds it to the demonstrations and to the shipped weights."""
SHIPPED = Path(__file__).parent / "shipped" / f"prior-recipe-{RECIPE_VERSION}-world-{WORLD_VERSION['world']}"
"""The default recipe's prior, which comes with the package."""


def prior_folder(config: PriorConfig) -> Path:
    """The folder of this recipe's prior, built or not: the default one in the package, others in the user's cache.

    In the cache it is named by a hash over recipe, its version, the world's version and torch's.
    """
    if SHIPPED.is_dir() and recipe_of(config) == recipe_of(PriorConfig()):
        return SHIPPED
    facts = {"version": RECIPE_VERSION, "world": WORLD_VERSION["world"], "torch": version("torch")}
    recipe = json.dumps({"recipe": recipe_of(config), **facts}, sort_keys=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune"
    return cache / f"prior-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def recipe_of(config: PriorConfig) -> dict[str, Any]:
    """The settings by name; `thinking` only where it is on."""
    return {name: value for name, value in asdict(config).items() if name != "thinking" or value}
