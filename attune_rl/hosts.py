"""For all adapters: the check of a host's version, and the default system prompt."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SYSTEM_PROMPT = "Somebody tells you of a trouble. Answer in one or two warm, short sentences."


def require_version(package: str, series: str) -> None:
    """ImportError unless this version of the host is installed, such as 1.16. Call it before importing the host."""
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "none"
    if not f"{found}.".startswith(f"{series}."):
        raise ImportError(f"{package} must be {series}.* for this adapter, got {found}; install that")
