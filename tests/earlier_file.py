"""A file that is read while a command writes it again: it is exchanged for another, never written over."""

from __future__ import annotations

import os
from pathlib import Path

EARLIER = "what an earlier command wrote\n"


def earlier(path: Path) -> Path:
    """Puts an earlier file at `path` and returns its second name, under which it stays as it was unless it is written over in place."""
    path.write_text(EARLIER, encoding="utf-8")
    second = path.with_name(f"{path.name}.earlier")
    os.link(path, second)
    return second
