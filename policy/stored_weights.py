"""What the safetensors files of a model folder hold, read from their headers and without torch."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


def headers(model_folder: Path) -> dict[str, dict[str, Any]]:
    """By name of each tensor its dtype, shape and place in its file; of weights in pieces those that their index names.

    Raises:
        ValueError: a file is missing or damaged.
    """
    index = model_folder / INDEX
    found: dict[str, dict[str, Any]] = {}
    try:
        pieces = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())) if index.is_file() else None
        for path in sorted(model_folder.glob("*.safetensors")) if pieces is None else [model_folder / piece for piece in pieces]:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                found |= json.loads(file.read(min(length, path.stat().st_size)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"policy.model must hold safetensors files that can be read, got {str(model_folder)!r}: {error}") from error
    found.pop("__metadata__", None)
    return found


def num_weights(model_folder: Path) -> int:
    """How many numbers all tensors have together; 0 where there are no safetensors files."""
    return sum(prod(header["shape"]) for header in headers(model_folder).values())
