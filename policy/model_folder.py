"""What a model's folder must be for us to train or run it, asked of its files before anything heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.files import is_lfs_pointer

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
OLD_QUANTISED = ("quantize_config.json", "quant_config.json")
"""Where GPTQ and AWQ wrote down what they did before config.json had a place for it."""
REMEDY = "name the model that it was made from"


def check_model_folder(folder: Path, *, called: str = "policy.model") -> None:
    """Refuses a folder whose model could not be loaded in full precision by transformers' own code.

    Args:
        called: what the folder is given by.

    Raises:
        ValueError: it is quantised, holds GGUF files alone, needs code of its own, or has files that git did not fetch.
    """
    check_gguf(folder, called=called)
    for path in (*sorted(folder.glob("*.json")), *weights_of(folder)):
        if is_lfs_pointer(path):
            raise ValueError(f"{called} must hold whole files, got {str(path)!r}, a Git LFS pointer; run `git lfs pull` in {folder}")
    config = _object_in(folder / "config.json", called)
    if method := _quantised_by(folder, config):
        raise ValueError(f"{called} must hold unquantised weights, got {str(folder)!r}, quantised by {method}; {REMEDY}")
    tokenizer = folder / "tokenizer_config.json"
    for name, found in (("config.json", config), (tokenizer.name, _object_in(tokenizer, called) if tokenizer.is_file() else {})):
        if _needs_own_code(folder, found):
            raise ValueError(
                f"{called} must be a model that transformers knows, got {str(folder)!r}, whose {name} names code of its own (auto_map); "
                "such code is not run"
            )


def check_gguf(folder: Path, *, called: str = "policy.model") -> None:
    """Refuses a folder, or a file, that holds weights in GGUF alone.

    Raises:
        ValueError: it does.
    """
    if folder.suffix == ".gguf" or (any(folder.glob("*.gguf")) and not any(weights_of(folder))):
        raise ValueError(f"{called} must hold unquantised weights (*.safetensors), got {str(folder)!r} with GGUF files alone; {REMEDY}")


def weights_of(folder: Path) -> Iterator[Path]:
    """The files of a model's weights, in order."""
    yield from sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))


def _object_in(path: Path, called: str) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{called} must have a {path.name} with a JSON object, got {str(path)!r}, which is no JSON") from error
    if not isinstance(found, dict):
        raise ValueError(f"{called} must have a {path.name} with a JSON object, got {str(path)!r}, which holds another value")
    return found


def _quantised_by(folder: Path, config: Mapping[str, Any]) -> str:
    """The method, in its own word; empty for weights that are not quantised."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for name in ("quantization_config", "compression_config"):
            if settings := part.get(name):
                method = settings.get("quant_method") if isinstance(settings, dict) else None
                return str(method or "a method that it does not name")
    return next((name.partition("_config")[0] for name in OLD_QUANTISED if (folder / name).is_file()), "")


def _needs_own_code(folder: Path, found: Mapping[str, Any]) -> bool:
    """Whether transformers would ask to run code of the folder: where it has none of its own for this kind of model."""
    if not found.get("auto_map"):
        return False
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return _object_in(folder / "config.json", "policy.model").get("model_type") not in CONFIG_MAPPING_NAMES
