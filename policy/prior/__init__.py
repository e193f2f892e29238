"""The prior: the recipe of the embedded policy and of the demonstrations it imitates, and its folder. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from policy.config import Share
from simulator.scripted import MAX_TURNS
from simulator.settings import SETTINGS
from simulator.version import WORLD_VERSION

EMBEDDED = "embedded"
"""Value of `policy.model` for the small policy that this recipe builds, which speaks the built-in world's language alone."""

RECIPE_VERSION = 10
"""Raised whenever the same settings would build another prior. A test holds it to the demonstrations and to the shipped weights."""
SHIPPED = Path(__file__).parent / "shipped" / f"prior-recipe-{RECIPE_VERSION}-world-{WORLD_VERSION['world']}"
"""The default recipe's prior, which comes with the package."""


@dataclass(config=SETTINGS)
class DemonstrationConfig:
    """The demonstrator's habits and skills; keys `policy.prior.demonstrations.*`."""

    fit_overt_prob: Share = 0.2
    """Chance of answering an overt hint with the strategy it asks for."""
    fit_veiled_prob: Share = 0.2
    """Chance of answering a veiled hint with the strategy it asks for."""
    ground_prob: Share = 0.32
    """Chance of taking up one of the user's facts."""
    earlier_prob: Share = 0.9
    """Given that, from the third reply on, chance of taking up the fact of two turns before the latest."""
    explore_prob: Share = 0.33
    """Chance of asking or restating in the first two replies, at any hint."""
    repair_prob: Share = 0.2
    """Chance of apologising for a turn that went wrong."""
    collage_prob: Share = 0.0
    """Share of the demonstrations whose facts come from many events: there, only reading shows what to take up, not remembering."""
    open_prob: Share = 0.0
    """Share of the demonstrations whose user hides nothing and names the wish in the opening; else reserve follows difficulty."""
    veiled_prob: Share = 0.0
    """Share of the demonstrations whose user is so reserved that every hint is veiled; with `open_prob` at most 1."""
    name_prob: Share = 0.0
    """Chance of choosing a wording that names the other person, where there is one; else all wordings are equally likely."""
    num_replies: PositiveInt = MAX_TURNS
    """After how many replies a demonstration stops."""
    narrow: bool = False
    """Only the first wording of each move: demonstrations without variety, to measure what variety buys."""

    def __post_init__(self) -> None:
        if self.open_prob + self.veiled_prob > 1.0:
            raise ValueError(f"policy.prior.demonstrations.veiled_prob must be at most 1 - open_prob, got {self.veiled_prob!r}")

    def answering_hints(self) -> DemonstrationConfig:
        """The same demonstrator in the first three replies of a dialogue, answering hints and nothing else."""
        return replace(
            self,
            fit_overt_prob=1.0,
            fit_veiled_prob=1.0,
            ground_prob=0.0,
            explore_prob=0.0,
            open_prob=0.5,
            veiled_prob=0.5,
            collage_prob=1.0,
            num_replies=3,
        )

    def taking_up(self) -> DemonstrationConfig:
        """The same demonstrator in first replies that all take up the latest fact."""
        return replace(self, ground_prob=1.0, collage_prob=1.0, num_replies=1)

    def skilled(self, prob: float) -> DemonstrationConfig:
        """The same demonstrator, showing each skill with this chance, mostly about collages."""
        return replace(
            self,
            fit_overt_prob=prob,
            fit_veiled_prob=prob,
            ground_prob=prob,
            earlier_prob=0.6,
            explore_prob=0.5,
            repair_prob=prob,
            name_prob=0.4,
            veiled_prob=0.4,
            collage_prob=0.8,
        )


@dataclass(config=SETTINGS)
class PriorConfig:
    """The recipe of the embedded policy; keys `policy.prior.*`."""

    seed: int = 0
    """Of the demonstrations, the initial weights and the order of batches."""
    num_tokens: PositiveInt = 3_400_000
    """Tokens to train on."""
    vocab_size: Annotated[int, Field(ge=300)] = 6144
    """Of the byte-level BPE tokenizer at most. Each word of the users' facts is one token: of pieces a small model copies only the last."""
    hidden_size: PositiveInt = 128
    """Width, a multiple of `num_heads`."""
    num_layers: PositiveInt = 3
    """Transformer blocks."""
    num_heads: PositiveInt = 2
    """Attention heads."""
    intermediate_size: PositiveInt = 384
    """Width of the feed-forward layers."""
    init_std: PositiveFloat = 0.06
    """Of the initial weights; 0.02 learns to copy far later at this size."""
    copy_init: NonNegativeFloat = 1.5
    """Value and output weights of attention start as this multiple of the identity, up to noise. Without it a model of this size learns
    copying late or not at all (docs/decisions.md)."""
    batch_size: PositiveInt = 8
    """Dialogues an update."""
    lr: PositiveFloat = 2e-3
    """Peak learning rate of AdamW."""
    copy_weight: PositiveFloat = 3.0
    """Loss weight of tokens that the agent takes from the user's words."""
    choice_weight: PositiveFloat = 2.5
    """Loss weight of a reply's first tokens, where its strategy is chosen."""
    hints_share: Share = 0.32
    """Share of the tokens, from the start, on short exchanges in which each reply answers the latest hint."""
    taking_up_share: Share = 0.39
    """Share of the tokens, by then, on single exchanges that take up the latest fact: short ones teach copying fast."""
    knowhow_share: Share = 0.74
    """Share of the tokens, by then, whose demonstrator shows its skills at `knowhow_prob`; the rest sets the habits."""
    knowhow_prob: Share = 0.75
    """Chance of each skill meanwhile: a rare skill is never learnt at this size, a learnt one can become rare."""
    user_share: Share = 0.0
    """Share of the user's tokens that are learnt, drawn for each dialogue; the agent's all are."""
    temperature: PositiveFloat = 0.85
    """Sampling temperature of the taught model, folded into its head; below 1 it leaves out most of the slips a small model makes."""
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    thinking: bool | None = None
    """Whether each demonstrated reply has a thought before it. Unset, an experiment does as `policy.thinking` says; else there is none."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"policy.prior.hidden_size must be a multiple of num_heads ({self.num_heads}), got {self.hidden_size!r}")
        for before, name in (("hints_share", "taking_up_share"), ("taking_up_share", "knowhow_share")):
            if getattr(self, name) < getattr(self, before):
                raise ValueError(f"policy.prior.{name} must be at least {before}={getattr(self, before):g}, got {getattr(self, name)!r}")


def prior_folder(config: PriorConfig) -> Path:
    """The folder of this recipe's prior, built or not: the default one in the package, others in the cache, by a hash."""
    if SHIPPED.is_dir() and recipe_of(config) == recipe_of(PriorConfig()):
        return SHIPPED
    facts = {"version": RECIPE_VERSION, "world": WORLD_VERSION["world"], "torch": version("torch")}
    recipe = json.dumps({"recipe": recipe_of(config), **facts}, sort_keys=True)
    return cache_folder() / f"prior-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def cache_folder() -> Path:
    """Where models are kept that were made once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune"


def recipe_of(config: PriorConfig) -> dict[str, Any]:
    """The settings by name; `thinking` only where it is on."""
    return {name: value for name, value in asdict(config).items() if name != "thinking" or value}
