"""Where a command may write, asked before any work is done."""

from __future__ import annotations

from pathlib import Path


def check_out(path: Path | None) -> None:
    """Refuses an `--out` that could not be written; None is fine.

    Raises:
        ValueError: it is a folder, or lies in none.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"--out must be a file in a folder that is there, got {str(path)!r}")
