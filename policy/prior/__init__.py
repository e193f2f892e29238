"""The prior: the embedded policy before training, and the demonstrations it imitates."""

import hashlib
import itertools
import json
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch.nn import functional as F
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from policy.config import PriorConfig
from policy.files import OwnFolder, flush, open_as_its_folder
from policy.prior.demonstrations import Demonstration, ShownThought, demonstrate, thoughts
from policy.process import ENDS_WITH, NUM_THREADS, alike_everywhere, choose_kernels, end_with_parent, threads
from policy.rollout.chat import CLOSE, MARK, OPEN, RECIPE
from simulator.dialogue import Speaker
from simulator.scenario import Scenario, Split
from simulator.version import WORLD_VERSION
from simulator.world import load_bank

if TYPE_CHECKING:
    from policy.config import PriorConfig


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
