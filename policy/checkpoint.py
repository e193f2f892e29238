"""Checkpoints that are whole or absent: a Hugging Face model folder with everything that adapts in a file of its own."""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from policy.files import as_os_error, flush, share_like_folder
from policy.lora import merged_state
from policy.model import no_progress_bars

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.pt"
STEP = re.compile(r"step_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint."""

    folder: Path
    """Loads in transformers and vLLM as is."""
    state: dict[str, Any]
    """The state given to `save_checkpoint`."""


def save_checkpoint(
    folder: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, state: Mapping[str, Any], keep: int = 2
) -> Path:
    """Writes a checkpoint next to its final place, moves it there in one rename, then removes all but the newest `keep`.

    A process killed at any moment leaves either the checkpoint before or this one, and at most a hidden folder that the next save removes.

    Args:
        folder: `.../checkpoints/step_<n>`; replaced when it exists.
        state: dicts, lists, numbers, strings and tensors only, so that reading it back runs no code.
        keep: >= 1.

    Raises:
        OSError: the disk is full or not writable.
        RuntimeError: likewise, from torch.
    """
    assert STEP.fullmatch(folder.name), f"a checkpoint's folder must be named step_<n>, got {folder.name!r}"
    plain = _plain(state, "state")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(".step_*"):
        shutil.rmtree(leftover)
    written, replaced = folder.parent / f".{folder.name}.new", folder.parent / f".{folder.name}.old"
    try:
        _write(written, model, tokenizer, plain)
        if folder.exists():
            folder.rename(replaced)
        written.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
        flush(folder.parent)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    older = [other for other in _steps(folder.parent) if step_of(other) < step_of(folder)]
    for other in older[: max(0, len(older) - (keep - 1))]:
        shutil.rmtree(other)
    return folder


def load_checkpoint(folder: Path) -> Checkpoint:
    """Reads a checkpoint, once every file has the size and the sha256 of the manifest.

    Raises:
        ValueError: it is torn, changed, or not ours.
    """
    verify(folder)
    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"checkpoint {folder} must hold a readable {STATE}, got {error}") from error
    return Checkpoint(folder=folder, state=state)


def verify(folder: Path) -> None:
    """Compares every file of a checkpoint with its manifest.

    Raises:
        ValueError: one is missing, short or changed, or there is no manifest of this format.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, files = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"checkpoint {folder} must hold a readable {MANIFEST}, got {type(error).__name__}; it is torn or not a checkpoint"
        ) from error
    if version != FORMAT:
        raise ValueError(f"checkpoint {folder} must be of format {FORMAT}, got {version!r}; it was written by another version")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["num_bytes"] or _sha256_of(path) != expected["sha256"]:
            raise ValueError(f"checkpoint {folder} must be whole, got a missing or changed {name}")


def newest_checkpoint(run_folder: Path, *, on_torn: Callable[[str], None] = lambda why: None, put_back: bool = True) -> Path | None:
    """The whole checkpoint of the highest step under `run_folder/checkpoints`, or None.

    Args:
        on_torn: called with the reason for each newer one that is passed over.
        put_back: first restore a checkpoint whose replacement was killed between its two renames; not while another process may write.
    """
    for replaced in (run_folder / "checkpoints").glob(".step_*.old") if put_back else ():
        place = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".old"))
        if not place.exists():
            replaced.rename(place)
    for folder in reversed(_steps(run_folder / "checkpoints")):
        try:
            verify(folder)
        except ValueError as error:
            on_torn(str(error))
            continue  # the one before it will do
        return folder
    return None


def step_of(folder: Path) -> int:
    """The n of `step_<n>`.

    Raises:
        ValueError: the folder is not named so.
    """
    match = STEP.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"a checkpoint's folder must be named step_<n>, got {folder.name!r}")
    return int(match.group(1))


def _write(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, state: dict[str, Any]) -> None:
    folder.mkdir()
    with no_progress_bars(), as_os_error():
        model.save_pretrained(folder, state_dict=merged_state(model))
        tokenizer.save_pretrained(folder)
    torch.save(state, folder / STATE)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): {"num_bytes": path.stat().st_size, "sha256": _sha256_of(path)} for path in paths}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1), encoding="utf-8")
    for path in paths:
        share_like_folder(path)
    for path in (*paths, folder / MANIFEST, folder):
        flush(path)


def _steps(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step_*") if STEP.fullmatch(path.name) and path.is_dir()), key=step_of)


def _sha256_of(path: Path) -> str:
    """Computed once by a process that finds the newest checkpoint and then loads it, unless the file changes."""
    facts = path.stat()
    return _sha256(path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any, name: str) -> Any:
    """A copy down to the tensors, of types that `torch.load(weights_only=True)` takes; a StrEnum or a numpy float becomes its base type.

    Raises:
        TypeError: it holds another type.
    """
    if isinstance(value, Mapping):
        return {_plain(key, f"a key of {name}"): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple, torch.Size):
        return type(value)(_plain(item, f"{name}[{index}]") for index, item in enumerate(value))
    if value is None or isinstance(value, bool | Tensor):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{name} must be made of dicts, lists, numbers, strings and tensors, got {type(value).__name__}")
