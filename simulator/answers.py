"""Answers kept on disk, so that a rerun asks nothing twice and gets exactly what it got before."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OFF, DEFAULT = "off", "default"


def answers_folder(setting: str) -> Path | None:
    """Where answers are kept.

    Args:
        setting: `default` is $XDG_CACHE_HOME/attune/answers (~/.cache without the variable), `off` keeps none, else a folder.
    """
    if setting == OFF:
        return None
    if setting == DEFAULT:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune" / "answers"
    return Path(setting).expanduser()


def key_of(question: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of everything that an answer depends on."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class Answers:
    """A folder of answers by key. Any number of processes may use it: the first answer to a question is everybody's.

    Args:
        folder: made when the first answer comes; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, key: str) -> str | None:
        """The answer to a question; None if there is none, or its file is damaged."""
        if self._folder is None:
            return None
        try:
            record = json.loads(self._path(key).read_text(encoding="utf-8"))
            return record["answer"] if isinstance(record["answer"], str) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, key: str, answer: str) -> str:
        """Keeps an answer, unless there is one by now; returns the one that counts.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._folder is None:
            return answer
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".tmp", delete=False) as draft:
            json.dump({"answer": answer}, draft, ensure_ascii=True)
        try:
            # A link refuses to replace, so that of two processes the second takes over the answer of the first.
            os.link(draft.name, path)
        except FileExistsError:
            kept = self.find(key)
            if kept is not None:
                return kept
            os.replace(draft.name, path)
        except OSError:
            os.replace(draft.name, path)
        finally:
            Path(draft.name).unlink(missing_ok=True)
        return answer

    def forget(self, key: str) -> None:
        """Drops an answer that turned out to be of no use."""
        if self._folder is not None:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self._folder is not None, "only a cache that keeps something has paths"
        return self._folder / key[:2] / f"{key}.json"
