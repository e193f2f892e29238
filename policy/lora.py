"""Low-rank adapters inside a model, and the plain model they amount to: what engines, checkpoints and readers get.

Source: arXiv 2106.09685; the layers are those of the package `peft`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from policy.lora_config import LoraConfig, check_lora

FROZEN = ".base_layer."
"""In the names of an adapted layer's own parameters."""
ADAPTERS = ("lora_A", "lora_B")
EMBEDDING_ADAPTER = "lora_embedding_"


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> PreTrainedModel:
    """Puts an adapter beside each layer that is asked for and freezes the rest; at first the model says exactly what it said.

    Args:
        model: changed in place; keeps its class.
        seed: of the adapters' first matrices; the second ones are zero.

    Raises:
        ValueError: `peft` is not installed, or the model has no such layer, or its adapter would not reach who reads the plain model.
    """
    check_lora(config)
    import peft

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    targets = config.targets if config.targets == "all-linear" else [name.strip() for name in config.targets.split(",")]
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(settings, model)
        except ValueError as error:
            raise ValueError(f"policy.lora.targets must name layers of the model that can be adapted, got {config.targets!r}") from error
    # An embedding's adapter is another layer; of a tied pair readers get one matrix, which is not the adapted one.
    if any(EMBEDDING_ADAPTER in name for name, _ in model.named_parameters()):
        raise ValueError(f"policy.lora.targets must leave embeddings out, got {config.targets!r}")
    if is_tied and model.get_output_embeddings() is not head:
        raise ValueError(f"policy.lora.targets must leave out an output head that is the embedding, got {config.targets!r}")
    return model


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return any(part in ADAPTERS for part in name.split("."))


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapters' parameters by name; empty for a model without."""
    return {name: parameter for name, parameter in model.named_parameters() if is_adapter(name)}


def make_trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters to train, with gradients on: the adapters' where there are any, else all."""
    adapters = adapter_parameters(model)
    if not adapters:
        return list(model.requires_grad_(True).parameters())
    model.requires_grad_(False)
    for parameter in adapters.values():
        parameter.requires_grad_(True)
    return list(adapters.values())


@torch.no_grad()
def merged_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the model without adapters, by its name there, with what its adapter adds; of a tied pair only the first."""
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            continue
        layer, found, kind = name.rpartition(FROZEN)
        adapted = found and kind == "weight"
        yield (f"{layer}.{kind}" if found else name), (parameter + _delta(model.get_submodule(layer)) if adapted else parameter)


def _delta(layer: Any) -> Tensor:
    (adapter,) = layer.lora_A  # there is one, named by peft
    return layer.get_delta_weight(adapter)


def merged_state(model: nn.Module) -> dict[str, Tensor] | None:
    """What `save_pretrained` shall write in place of the model's own state: None, which means that state, where there are no adapters."""
    return dict(merged_parameters(model)) if adapter_parameters(model) else None
