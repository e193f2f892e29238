"""Checkpoints that are whole or absent: a Hugging Face model folder with everything that adapts in a file of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from policy.files import as_os_error, flush, share_like_folder
from policy.lora import merged_state
from policy.model import no_progress_bars

FORMAT = 2
MANIFEST, STATE = "manifest.json", "state.pt"


def save_checkpoint(
    folder: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: Mapping[str, Any],
    model_state: dict[str, Tensor] | None = None,
    keep: int = 2,
) -> Path:
    """Writes a checkpoint next to its final place, moves it there in one rename, then removes all but the newest `keep`.

    A process killed at any moment leaves the checkpoint before or this one; the next save removes what it had not finished.

    Args:
        folder: `.../checkpoints/step_<n>`; replaced when it exists.
        model_state: of a model that is not whole by itself (`Learner.model_state`).
        state: dicts, lists, numbers, strings and tensors only, so that reading it back runs no code.

    Raises:
        OSError or, from torch, RuntimeError: the disk is full or not writable.
    """
    plain, written = _plain(state, "state"), folder.parent / f".{folder.name}.new"
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(".step_*"):
        shutil.rmtree(leftover)
    try:
        written.mkdir()
        with no_progress_bars(), as_os_error():
            model.save_pretrained(written, state_dict=model_state or merged_state(model))
            tokenizer.save_pretrained(written)
        torch.save(plain, written / STATE)
        paths = sorted(path for path in written.rglob("*") if path.is_file())
        files = {path.relative_to(written).as_posix(): path.stat().st_size for path in paths}
        (written / MANIFEST).write_text(json.dumps({"format": FORMAT, "num_bytes": files}, indent=1), encoding="utf-8")
        for path in paths:
            share_like_folder(path)
        for path in (*paths, written / MANIFEST, written):
            flush(path)
        if folder.exists():
            shutil.rmtree(folder)
        written.rename(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    older = [other for other in _steps(folder.parent) if step_of(other) < step_of(folder)]
    for other in older[: max(0, len(older) - (keep - 1))]:
        shutil.rmtree(other)
    return folder


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """The state given to `save_checkpoint`, of a whole checkpoint; the folder itself loads in transformers and vLLM."""
    verify(folder)
    return torch.load(folder / STATE, map_location="cpu", weights_only=True)


def verify(folder: Path) -> None:
    """Raises a ValueError for a checkpoint without a manifest of this format, or with a file that is missing or short."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {folder} must hold a {MANIFEST}, got {type(error).__name__}; it is no checkpoint") from error
    if manifest["format"] != FORMAT:
        raise ValueError(f"checkpoint {folder} must be of format {FORMAT}, got {manifest['format']!r}; it was written by another version")
    for name, size in manifest["num_bytes"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise ValueError(f"checkpoint {folder} must be whole, got a missing or short {name}")


def newest_checkpoint(run_folder: Path, *, on_torn: Callable[[str], None] = lambda why: None) -> Path | None:
    """The whole checkpoint of the highest step under `run_folder/checkpoints`, or None; `on_torn` gets why a newer one is passed over."""
    for folder in reversed(_steps(run_folder / "checkpoints")):
        try:
            verify(folder)
            return folder
        except ValueError as error:
            on_torn(str(error))  # the one before it will do
    return None


def step_of(folder: Path) -> int:
    """The n of `step_<n>`."""
    return int(folder.name.removeprefix("step_"))


def _steps(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step_*") if path.name.removeprefix("step_").isdecimal()), key=step_of)


def _plain(value: Any, name: str) -> Any:
    """A copy down to the tensors, of types that `torch.load(weights_only=True)` takes; a StrEnum or a numpy float becomes its base type."""
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
