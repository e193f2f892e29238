"""Low-rank adapters inside a model, and the plain model with them merged: for engines, checkpoints and readers.

Source: arXiv 2106.09685; the layers are those of the package `peft`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from policy.config import LoraConfig


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> PreTrainedModel:
    """Adds an adapter to each target layer and freezes the rest; at first the model's output is unchanged.

    Args:
        model: changed in place; keeps its class.
        seed: of the adapters' first matrices; the second ones are zero.

    Raises:
        ValueError: the targets are not all linear layers whose adapters can be merged into the plain model.
    """
    import peft

    def is_target(name: str) -> bool:
        return not named or any(f".{name}".endswith(f".{target}") for target in named)

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    named = [] if config.targets == "all-linear" else [name.strip() for name in config.targets.split(",")]
    adapted = dict[str, nn.Module]()
    # Experts joined in one parameter; scales, convolutions and gates have as many dimensions, and stay as norms do.
    large = (name for name, parameter in model.named_parameters() if "expert" in name and parameter.dim() >= 3)
    not_linear = next((name for name in large if is_target(name) or is_target(name.rpartition(".")[0])), "")
    if not not_linear:
        targets = named or "all-linear"
        settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                peft.inject_adapter_in_model(settings, model)
            except ValueError as error:
                raise ValueError(f"policy.lora.targets must name layers that can be adapted, got {config.targets!r}") from error
        adapted = {name: module for name, module in model.named_modules() if isinstance(module, peft.tuners.lora.LoraLayer)}
        not_linear = next((name for name, layer in adapted.items() if isinstance(layer, peft.tuners.lora.layer.ParamWrapper)), "")
    if not_linear:
        raise ValueError(
            f"policy.lora.targets must leave out layers that are not linear, as experts joined in one parameter and their router, "
            f"got {config.targets!r}, which means {not_linear}; name linear layers, as in q_proj,k_proj,v_proj,o_proj"
        )
    are_met = all(any(f".{name}".endswith(f".{target}") for name in adapted) for target in named)
    # An embedding's adapter is another kind of layer, and a tied pair is sent as one matrix, which is not the adapted one.
    has_embedding = any("lora_embedding_" in name for name, _ in model.named_parameters())
    if not are_met or has_embedding or (is_tied and model.get_output_embeddings() is not head):
        raise ValueError(
            "policy.lora.targets must all be linear layers of the model, without embeddings and a head tied to them, "
            f"got {config.targets!r}"
        )
    return model


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapters' parameters by name; empty for a model without."""
    return {name: each for name, each in model.named_parameters() if {"lora_A", "lora_B"} & set(name.split("."))}


@torch.no_grad()
def merged_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the plain model by its name there, with its adapter added; of a tied pair only the first."""
    adapters = adapter_parameters(model)
    for name, parameter in model.named_parameters():
        if name in adapters:
            continue
        layer, found, kind = name.rpartition(".base_layer.")
        if found and kind == "weight":
            adapted: Any = model.get_submodule(layer)
            (adapter,) = adapted.lora_A  # there is one, named by peft
            parameter = parameter + adapted.get_delta_weight(adapter)
        yield (f"{layer}.{kind}" if found else name), parameter


def merged_state(model: nn.Module) -> dict[str, Tensor] | None:
    """State of the plain model for `save_pretrained`; None, which means the model's own, where there are no adapters."""
    if not adapter_parameters(model):
        return None
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name.replace(".base_layer.", "."): tensor for name, tensor in model.state_dict().items() if name not in parameters}
    return {**dict(merged_parameters(model)), **buffers}
