"""The version of the simulated world: results name it, and only results of the same version are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.listener import Register
from simulator.rule_user import Preset

WORLD_VERSION: Mapping[str, int] = {"world": 1, "open": 1}
"""By register. Raised when users of that register say or feel anything else."""
PRESET_VERSION = 1
"""The same for `simulator.preset=sage`."""
FINGERPRINTS: Mapping[str, str] = {"world": "c730dc9066b0a098", "open": "72f41b0638804b2c", "sage": "15e4c927c5451b0e"}
"""`behaviour_fingerprint` of these versions; a test recomputes them."""
SOURCE_HASHES: Mapping[str, int] = {"5ad6837599ae0863": 1}
"""Versions by the hash over source files in older records."""


def world_name(register: Register | str = Register.WORLD, preset: Preset | str = Preset.TRAINING) -> str:
    """The world that results name, such as `world-1`, `open-1` or `open-1-sage-1`."""
    register = Register(register)
    name = f"{register}-{WORLD_VERSION[register]}"
    return f"{name}-{Preset.SAGE}-{PRESET_VERSION}" if preset == Preset.SAGE else name


def world_of(simulator: Any) -> str:
    """The world of a user's settings: rule users hear a register, all others ordinary language."""
    return world_name(getattr(simulator, "register", None) or Register.OPEN, getattr(simulator, "preset", Preset.TRAINING))


def is_current(world: str) -> bool:
    """Whether the world of that name is a present one."""
    return world in {world_name(register, preset) for register in Register for preset in Preset}


def fingerprint_of(simulator: Any) -> str:
    """The released fingerprint of the world of a user's settings."""
    preset = getattr(simulator, "preset", Preset.TRAINING)
    return FINGERPRINTS[Preset.SAGE if preset == Preset.SAGE else Register(getattr(simulator, "register", None) or Register.OPEN)]


def recorded_world(record: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The world that a run's summary or provenance names; "" where it names none.

    Args:
        record: with `world`, or `world_hash` in older records.
        config: the run's settings, which hold the register of an older run.
    """
    if world := record.get("world"):
        return str(world)
    old = str(record.get("world_hash") or "")
    version = SOURCE_HASHES.get(old)
    if version is None:
        return old
    simulator = config.get("simulator") or {}
    spoken = Register.WORLD if simulator.get("kind", "rule") == "rule" else Register.OPEN
    name = f"{simulator.get('register') or spoken}-{version}"
    return f"{name}-{Preset.SAGE}-1" if simulator.get("preset") == Preset.SAGE else name
