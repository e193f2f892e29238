"""What adapters have in common that is not of the session: versions of their hosts, and what the agent is told."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SYSTEM_PROMPT = "Somebody tells you of a trouble. Answer in one or two warm, short sentences."


def require_version(package: str, series: str) -> None:
    """Refuses a host of another series than that which its adapter was tried with, such as 1.16; ImportError in one sentence.

    To be called before the host is imported, whose other versions lack what adapters import.
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "none"
    if not f"{found}.".startswith(f"{series}."):
        raise ImportError(f"{package} must be {series}.* for this adapter, got {found}; install that")
