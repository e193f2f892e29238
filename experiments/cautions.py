"""What a run may do and probably should not: said before it starts, and nothing is refused for it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from analysis.runs import leaves
from experiments.config import ExperimentConfig
from experiments.same_run import defaults_of, own_file
from policy.config import LearnerConfig

HEAVY_BONUS = 0.02
"""Entropy bonus from which on it was seen to outweigh a reward that comes once a dialogue; .01 did not."""


def cautions(config: ExperimentConfig) -> list[str]:
    """All that there are for a run, a sentence each."""
    return [*large_step(config), *heavy_bonus(config), *left_behind(config)]


def large_step(config: ExperimentConfig) -> list[str]:
    """A caution where a language model would be trained by the embedded policy's step size."""
    if config.policy.is_embedded or config.policy.lora.rank or config.learner.lr != LearnerConfig().lr:
        return []
    from policy.rollout.chat import RECIPE

    if (Path(config.policy.model).expanduser() / RECIPE).is_file():
        return []
    return [
        f"WARNING learner.lr={config.learner.lr:g} was found for the embedded policy and is far too large for most language models: "
        f"set it for {config.policy.model} (1e-6 for billions of parameters), or begin with the experiment own_model"
    ]


def heavy_bonus(config: ExperimentConfig) -> list[str]:
    """A caution where the main job's entropy bonus is left beside a reward that comes once a dialogue."""
    bonus = config.algorithm.entropy_coef
    if not config.policy.is_embedded or getattr(config.algorithm, "turn_credit", 0.0) > 0.0 or bonus < HEAVY_BONUS:
        return []
    return [
        f"WARNING algorithm.entropy_coef={bonus:g} was found with credit by turn. Without it (algorithm.turn_credit=0) the bonus "
        "outweighed the reward in recorded runs: entropy .5 to 4 nats, little learned. With algorithm.entropy_coef=0 they did learn"
    ]


def left_behind(config: ExperimentConfig) -> list[str]:
    """A caution where another algorithm or user was chosen than the file has, if settings of the first stand otherwise in the other.

    Not for teachers, whose settings share names by chance, nor for arms of a sweep, whose file says what they take over.
    """
    file = own_file(config)
    return lost_settings(file, config, called=config.experiment) if file is not None else []


def lost_settings(before: ExperimentConfig, now: ExperimentConfig, *, called: str) -> list[str]:
    """What is lost of an algorithm's or user's settings by another kind that has them, too.

    Args:
        called: where the settings before stand.
    """
    found = []
    for group in ("algorithm", "simulator"):
        was, has = (dict(leaves(asdict(getattr(config, group)))) for config in (before, now))
        # What was given along with the new kind stands otherwise than by its default, and is not lost.
        usual = defaults_of(group, getattr(now, group).kind)
        lost = {
            name: value for name, value in was.items() if name in has and has[name] != value and has[name] == usual.get(f"{group}.{name}")
        }
        lost.pop("kind", None)
        if was["kind"] != has["kind"] and lost:
            settings = " ".join(f"{group}.{name}={value}" for name, value in lost.items())
            found.append(f"NOTE {group}.kind={has['kind']} begins with its own defaults; {called} has for {was['kind']}: {settings}")
    return found
