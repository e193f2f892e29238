"""A file is written whole or not at all: a draft beside it takes its place once it is finished."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write what is to stand at `path`; it is put there on leaving, and dropped where something went wrong.

    Every draft has a name of its own, so that processes that write the same file at once do not meet: the last one counts.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> Path:
    """Writes a file whole or not at all, text as UTF-8; returns its path."""
    with draft_of(path) as draft:
        draft.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path
