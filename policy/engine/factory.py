"""Builds the engine that a config names, and checks first that it can be built."""

from __future__ import annotations

import importlib.util
import logging
import socket
from importlib import metadata
from pathlib import Path

from policy.config import EngineConfig, EngineKind
from policy.engine.engine import Engine
from policy.model import num_positions

log = logging.getLogger(__name__)


def check_engine(config: EngineConfig, model_folder: str | Path, *, max_context: int) -> None:
    """Refuses settings that cannot work, without starting or importing anything.

    Raises:
        ValueError: the model folder is not there, its model is made for shorter dialogues, or vLLM is asked for and not installed.
    """
    if not (Path(model_folder) / "config.json").is_file():
        raise ValueError(
            f"policy.model must be a folder with a Hugging Face model, got {str(model_folder)!r}, which is none on {socket.gethostname()}; "
            "it must be at this path on every machine with an engine, by a copy there or a file system that they share (docs/cluster.md)"
        )
    if max_context > (positions := num_positions(model_folder, otherwise=max_context)):
        raise ValueError(f"rollout.max_context must be at most the {positions} tokens that the model is made for, got {max_context!r}")
    if (rule := config.without_vllm) and importlib.util.find_spec("vllm") is None:
        raise ValueError(f"{rule.format('is not installed')}; {vllm_remedy()}")


def vllm_remedy() -> str:
    """The command that installs vLLM for the installed torch: a build for the CPU calls itself +cpu."""
    return f"pip install -r requirements/{'cpu' if metadata.version('torch').endswith('+cpu') else 'gpu'}.txt"


def check_weight_files(config: EngineConfig, model_folder: str | Path) -> None:
    """Refuses a model without safetensors where vLLM will sample and be sent weights: their headers name these.

    Raises:
        ValueError: there are none.
    """
    if config.may_be_vllm and not any(Path(model_folder).glob("*.safetensors")):
        raise ValueError(
            f"policy.model must have its weights in *.safetensors where vLLM samples, got {str(model_folder)!r} with *.bin alone; "
            "save it again with transformers, or set policy.engine=hf"
        )


def make_engine(config: EngineConfig, model_folder: str | Path, *, max_context: int) -> Engine:
    """Builds the engine that `config.engine` names and waits until it answers.

    Args:
        max_context: tokens of the longest dialogue.

    Raises:
        ValueError: see `check_engine`, or vLLM is asked for and cannot be imported.
        RuntimeError: it did not start.
    """
    check_engine(config, model_folder, max_context=max_context)
    if config.engine is not EngineKind.HF:
        from policy.engine import vllm as vllm_engine

        try:
            vllm_engine.import_vllm(config.dtype)
        except (ImportError, OSError, RuntimeError) as error:
            if rule := config.without_vllm:
                raise ValueError(f"{rule.format(f'cannot be imported ({error})')}; {vllm_remedy()}") from error
            log.warning("vLLM cannot be imported (%s): rolling out with the slower transformers engine", error)
        else:
            return vllm_engine.VLLMEngine(config, model_folder, max_context=max_context)
    from policy.engine.hf import HFEngine

    return HFEngine(config, model_folder, max_context=max_context)
