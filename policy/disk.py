"""What must be on the disk before a rename gives it its name."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Forces a file or a folder to the disk: a rename may otherwise survive a power cut that its contents do not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
