"""A first pass by one thread leaves no trace."""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from policy.process import choose_kernels, threads


def test_a_first_pass_changes_neither_weights_nor_gradients_nor_generators():
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    )
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    state, before = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        choose_kernels(model)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == before
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_threads_are_given_back_whatever_happens():
    before = torch.get_num_threads()
    try:
        with threads(1):
            assert torch.get_num_threads() == 1
            raise KeyError
    except KeyError:
        pass
    assert torch.get_num_threads() == before
