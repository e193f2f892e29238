"""The six skills that difficulty asks for, one after the other, and where each family begins to ask."""

from __future__ import annotations

from enum import StrEnum
from functools import cache, lru_cache
from typing import Any

from simulator.bank import read_toml
from simulator.difficulty import Difficulty
from simulator.scenario import Family


class Skill(StrEnum):
    """Cumulative skills, in the order in which they begin to matter."""

    FIT = "fit"
    GROUNDING = "grounding"
    LISTENING = "listening"
    MEMORY = "memory"
    HINTS = "hints"
    REPAIR = "repair"


def skill_table() -> dict[str, Any]:
    """Onsets, costs, shifts and points of `world/skills.toml`."""
    return read_toml("skills")


@cache
def onset(skill: Skill, family: Family) -> float:
    """Scalar strictness at which a family begins to ask for a skill, in [0, 1]."""
    table = skill_table()
    shifts = table["shift"]
    shift = shifts.get(family.intention, {}).get(skill, 0.0) + shifts.get(family.persona, {}).get(skill, 0.0)
    limit = table["max_shift"]
    return float(table["onset"][skill] + min(limit, max(-limit, shift)))


def weight(skill: Skill, family: Family, difficulty: Difficulty) -> float:
    """How much a skill counts: 0 below its onset, rising to 1 over the ramp."""
    return weights(family, difficulty.strictness)[skill]


@lru_cache(maxsize=65536)
def weights(family: Family, strictness: float) -> dict[Skill, float]:
    """`weight` of every skill."""
    ramp = skill_table()["ramp"]
    return {skill: min(1.0, max(0.0, (strictness - onset(skill, family)) / ramp)) for skill in Skill}


@cache
def veiled_reserve(family: Family) -> float:
    """Reserve from which this family's wish is only hinted at: the reserve of the line at the hints skill's onset."""
    return Difficulty.along(onset(Skill.HINTS, family)).reserve


@cache
def meets(family: Family) -> frozenset[str]:
    """Strategies that give the hidden intention what it wants."""
    return frozenset(skill_table()["meets"][family.intention])


@cache
def answers_to_wishes() -> frozenset[str]:
    """Strategies that meet one wish or another."""
    return frozenset().union(*skill_table()["meets"].values())


@cache
def against(family: Family) -> frozenset[str]:
    """Strategies that run against the hidden intention."""
    return frozenset(skill_table()["against"][family.intention])
