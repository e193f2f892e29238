"""The version of the simulated world: results name it, and only results of the same version are compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.listener import ListenerKind, Register
from simulator.rule_user import Preset

WORLD_VERSION: Mapping[str, int] = {"world": 1, "open": 2, "sage": 1}
"""By register, and of `simulator.preset=sage`, which hears the open register. Raised when such users say or feel anything else."""
FINGERPRINTS: Mapping[str, str] = {"world": "c730dc9066b0a098", "open": "d1ebc983f0441468", "sage": "0742d4cd270ce072"}
"""Of the words and feelings of these versions; `tests/test_world.py` recomputes them."""


def world_name(register: Register | str = Register.WORLD, preset: Preset | str = Preset.TRAINING, heard_by: str = "") -> str:
    """The world that results name, such as `world-1`, `open-2`, `open-2-sage-1` or `open-2-heard-by-qwen`.

    Args:
        heard_by: who listens, the encoder or a model; empty for the rule.
    """
    register = Register(register)
    name = f"{register}-{WORLD_VERSION[register]}"
    if preset == Preset.SAGE:
        name = f"{name}-{Preset.SAGE}-{WORLD_VERSION[Preset.SAGE]}"
    return f"{name}-heard-by-{heard_by}" if heard_by else name


def world_of(simulator: Any) -> str:
    """The world of a user's settings: rule users hear a register, all others ordinary language."""
    server = getattr(simulator, "server", None)
    register, preset = getattr(simulator, "register", None) or Register.OPEN, getattr(simulator, "preset", Preset.TRAINING)
    listens = getattr(simulator, "listener", ListenerKind.RULE)
    return world_name(register, preset, encoder_name() if listens is ListenerKind.ENCODER else server.model if server else "")


def encoder_name() -> str:
    """`encoder-` and the first digits of its weights' checksum."""
    return f"encoder-{(Path(__file__).parent / 'encoder' / 'weights.sha256').read_text()[:8]}"


def recorded_world(record: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The world that a run's summary or provenance names; "" where it names none.

    Args:
        record: with `world`, or `world_hash`, a hash over source files, in older records.
        config: the run's settings, which hold the register of an older run.
    """
    if record.get("world") or record.get("world_hash") != "5ad6837599ae0863":
        return str(record.get("world") or record.get("world_hash") or "")
    simulator = config.get("simulator") or {}
    spoken = Register.WORLD if simulator.get("kind", "rule") == "rule" else Register.OPEN
    return f"{simulator.get('register') or spoken}-1" + ("-sage-1" if simulator.get("preset") == Preset.SAGE else "")
