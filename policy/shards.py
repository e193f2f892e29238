"""A model of which each rank holds a part (FSDP2): whole layers exist only while they compute.

`learner.ranks` of them hold 16 bytes a parameter together, not each. Source: arXiv 2304.11277 and `torch.distributed.fsdp.fully_shard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from policy.model import token_logprobs_and_entropy

SCORE = "attune_score"
"""The method by which a sharded model scores tokens; others would not find its weights."""


def shard(model: PreTrainedModel, *, num_ranks: int, device: str) -> None:
    """Leaves this rank its part of each parameter, on its device. Gradients become sums over all ranks.

    Raises:
        ValueError: the model has no layers that can be told apart.
    """
    shard_units(model, layers_of(model), num_ranks=num_ranks, device=device)
    setattr(model, SCORE, MethodType(_score, model))
    register_fsdp_forward_method(model, SCORE)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer; a ValueError where they cannot be told apart."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"learner.sharded must be false for a {type(model).__name__}, got true; it has no layers that can be told apart")
    return list(layers)


def shard_units(model: nn.Module, layers: Sequence[nn.Module], *, num_ranks: int, device: str) -> None:
    """`shard` for a module that is only called. Each layer is a unit and the rest another, where a tied pair stays together."""
    mesh = init_device_mesh(torch.device(device).type, (num_ranks,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    # The head is used again in the backward pass, where logits are computed in pieces.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the denominator is of all rows, so the mean over ranks is not wanted
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def _score(model: PreTrainedModel, *tensors: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    logprobs_N, entropies_N = token_logprobs_and_entropy(model, *tensors, **settings)
    return logprobs_N.clone(), entropies_N  # FSDP's hooks are lost with a view that is changed in place


def reshard(model: nn.Module) -> None:
    """Gives up what the last pass left whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which each rank holds a part, whole; all ranks must ask. Another is returned as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_state(state: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """A model's state, whole and on the CPU; without `keep` this rank only helps the others to theirs."""
    return {name: _copied(tensor, keep=keep) for name, tensor in state.items()}


def whole_optimizer(state: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
    """An optimiser's state as a single process has it, likewise."""
    parts = {number: {name: _copied(value, keep=keep) for name, value in each.items()} for number, each in state["state"].items()}
    return {**state, "state": parts}


def _copied(tensor: Tensor, *, keep: bool) -> Tensor:
    found = whole(tensor)
    return found.to("cpu", copy=True) if keep else torch.empty(0)


def own_part(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, if it holds a part of `like`."""
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements) if isinstance(like, DTensor) else value


@torch.no_grad()
def load_parts(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Takes this rank's part of each tensor of `whole_state`."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(own_part(state[name], tensor))


def optimizer_parts(state: Mapping[str, Any], parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
    """This rank's part of `whole_optimizer`."""
    by_number = dict(enumerate(parameters))

    def of(value: Tensor, number: int) -> Tensor:
        return own_part(value, by_number[number]) if value.dim() else value.clone()

    parts = {number: {name: of(value, number) for name, value in each.items()} for number, each in state["state"].items()}
    return {**state, "state": parts}
