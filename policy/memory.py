"""What a learner takes of each device's memory, reckoned from the model's files and the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from policy.config import LearnerConfig
from policy.files import headers

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Numbers of a model."""

    num_parameters: int
    """Of a tied pair once."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_outside: int
    """Parameters that are in no layer: the embedding and the head."""

    @classmethod
    def of(cls, folder: Path) -> ModelSize | None:
        """From config.json and the headers of the weights; None where the first names layers otherwise, or there are no safetensors."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config") or config
        numbers = {name: prod(header["shape"]) for name, header in headers(folder).items()}
        if config.get("tie_word_embeddings"):
            numbers.pop("lm_head.weight", None)
        layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
        if not (numbers and layers and hidden):
            return None
        return cls(
            num_parameters=sum(numbers.values()),
            num_layers=layers,
            hidden_size=hidden,
            intermediate_size=int(config.get("intermediate_size") or 4 * hidden),
            num_outside=sum(number for name, number in numbers.items() if "layers." not in name),
        )


def learner_bytes(
    size: ModelSize, config: LearnerConfig, *, max_context: int, num_adapted: int = 0, has_reference: bool = False, has_critic: bool = False
) -> dict[str, int]:
    """Bytes by part on each rank's device, where all are in use at once; at least, as allocators and kernels take more.

    Activations are what a plain transformer keeps for the backward pass: SmolLM2-135M took 2.7 GiB of them
    and logits for 2,048 tokens on a CPU, and 2.7 are reckoned.

    Args:
        max_context: tokens of the longest dialogue.
        num_adapted: parameters of adapters; 0 trains the whole model.
        has_critic: one with a trunk of its own.
    """
    ranks = config.ranks if config.sharded else 1
    trained = num_adapted or size.num_parameters
    layer = (size.num_parameters - size.num_outside) // size.num_layers
    found = {
        "weights": 4 * (size.num_parameters + num_adapted) // ranks,
        "gradients": 4 * (trained + size.num_parameters * has_critic) // ranks,
        "optimiser": 8 * trained // ranks,
        "reference": 4 * size.num_parameters // ranks * has_reference,
        "critic": 12 * size.num_parameters // ranks * has_critic,
        "bfloat16 copies": 2 * size.num_parameters * (config.autocast and not config.gradient_checkpointing),
        # One layer in use and the next on its way, with gradients; what is outside of layers stays.
        "whole layers": (4 * (3 * layer + 2 * size.num_outside)) * config.sharded,
    }
    num_tokens = min(config.micro_batch_tokens, config.micro_batch_rows * max_context)
    kept = (8 * size.hidden_size + 4 * size.intermediate_size) * (2 if config.autocast else 4)
    of_layers = size.num_layers * kept
    if config.gradient_checkpointing:
        of_layers = size.num_layers * 4 * size.hidden_size + kept
    found |= {"activations": num_tokens * of_layers, "logits": 4 * config.logit_chunk_mb << 20}
    return {name: number for name, number in found.items() if number}


def in_words(parts: Mapping[str, int], *, free: int, where: str) -> str:
    """The parts in GiB, and what there is."""
    each = ", ".join(f"{name} {number / GIB:.{1 if number >= GIB else 2}f}" for name, number in parts.items())
    return f"about {sum(parts.values()) / GIB:.1f} GiB of {free / GIB:.0f} {where}: {each}"


def num_adapted(size: ModelSize, rank: int) -> int:
    """Parameters of adapters of this rank, about: two thin matrices for each of a layer's seven."""
    return rank * size.num_layers * (11 * size.hidden_size + 3 * size.intermediate_size)
