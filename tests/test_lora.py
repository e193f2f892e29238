"""Adapters train alone, and a plain model leaves the trainer; without their package they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from policy_factories import VOCABULARY, random_batch, tiny_model, tiny_tokenizer, update
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from policy.algorithms.algorithms import Grpo
from policy.checkpoint import load_checkpoint, save_checkpoint
from policy.config import GrpoConfig, LearnerConfig, LoraConfig
from policy.learner import Learner
from policy.lora import adapter_parameters, add_adapters
from policy.model import load_model, token_logprobs_and_entropy


@pytest.mark.parametrize(("targets", "tied"), [("lm_head", True), ("q_proj, embed_tokens", False), ("q_proj, nothing", False)])
def test_targets_whose_adapter_could_not_be_merged_are_refused(targets: str, tied: bool) -> None:
    with pytest.raises(ValueError, match=r"policy\.lora\.targets"):
        add_adapters(tiny_model(tied=tied), LoraConfig(rank=2, targets=targets), seed=1)


def model_of_experts() -> DeepseekV3ForCausalLM:
    """One plain layer; one of experts whose matrices are joined, with a router whose bias is a buffer that is stored."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    }
    return DeepseekV3ForCausalLM(DeepseekV3Config(**sizes)).eval()


@pytest.mark.parametrize("targets", ["all-linear", "experts", "kv_b_proj, mlp.gate"])
def test_experts_joined_in_one_parameter_are_refused_and_other_tensors_stay_like_norms(targets: str) -> None:
    with pytest.raises(ValueError, match=r"policy\.lora\.targets .* which means model\.layers\.1\.mlp"):
        add_adapters(model_of_experts(), LoraConfig(rank=2, targets=targets), seed=1)
    model = tiny_model()
    model.model.gate = torch.nn.Parameter(torch.ones(2, 3, 4))
    assert adapter_parameters(add_adapters(model, LoraConfig(rank=2), seed=1))


def adapted_learner(*, tied: bool = False, targets: str = "all-linear") -> Learner:
    model = add_adapters(tiny_model(tied=tied), LoraConfig(rank=2, alpha=4.0, targets=targets), seed=1)
    return Learner(LearnerConfig(lr=0.05), Grpo(GrpoConfig()), model)


def train(learner: Learner, seeds: range) -> None:
    for seed in seeds:
        update(learner, random_batch(seed=seed))


def logprobs(model: nn.Module) -> Tensor:
    batch = random_batch(seed=9)
    with torch.no_grad():
        return token_logprobs_and_entropy(model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)[0]


def test_new_adapters_change_nothing_and_are_drawn_from_the_seed_alone() -> None:
    models = [tiny_model(), tiny_model()]
    for disturbance, model in enumerate(models):
        torch.manual_seed(disturbance)
        before = torch.get_rng_state()
        add_adapters(model, LoraConfig(rank=2), seed=1)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logprobs(models[0]), logprobs(tiny_model()))
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.parametrize(("targets", "tied"), [("lm_head", False), ("all-linear", True)])
def test_training_moves_the_adapters_alone_and_the_checkpoint_is_a_plain_model(tmp_path: Path, targets: str, tied: bool) -> None:
    learner, plain = adapted_learner(tied=tied, targets=targets), dict(tiny_model(tied=tied).named_parameters())
    train(learner, range(2))
    adapters = adapter_parameters(learner.model)
    assert {id(each) for each in adapters.values()} == {id(each) for each in learner.optimizer.param_groups[0]["params"]}
    frozen = {name.replace(".base_layer", ""): each for name, each in learner.model.named_parameters() if name not in adapters}
    assert all(torch.equal(frozen[name], parameter) for name, parameter in plain.items())
    sent = dict(learner.weights())
    assert sent.keys() == plain.keys()
    folder = tmp_path / "checkpoints" / "step_2"
    save_checkpoint(folder, model=learner.model, tokenizer=tiny_tokenizer(), state={"learner": learner.state_dict()})
    loaded, _ = load_model(folder)
    assert (logprobs(loaded) - logprobs(tiny_model(tied=tied))).abs().max() > 0.01
    torch.testing.assert_close(logprobs(loaded), logprobs(learner.model), rtol=0, atol=2e-5)
    assert all(torch.equal(parameter, sent[name]) for name, parameter in loaded.named_parameters())


def test_a_checkpoint_with_adapters_keeps_stored_buffers(tmp_path: Path) -> None:
    model, bias = model_of_experts(), "model.layers.1.mlp.gate.e_score_correction_bias"
    model.get_buffer(bias).copy_(torch.arange(4.0))
    add_adapters(model, LoraConfig(rank=2, targets="kv_b_proj, o_proj"), seed=1)
    folder = tmp_path / "checkpoints" / "step_2"
    save_checkpoint(folder, model=model, tokenizer=tiny_tokenizer(), state={})
    loaded, _ = load_model(folder)
    assert torch.equal(loaded.get_buffer(bias), torch.arange(4.0)) and loaded.state_dict().keys() == model_of_experts().state_dict().keys()


def test_resumed_adapters_go_on_exactly(tmp_path: Path) -> None:
    whole, first, second = adapted_learner(), adapted_learner(), adapted_learner()
    train(whole, range(4))
    train(first, range(2))
    folder = tmp_path / "checkpoints" / "step_2"
    save_checkpoint(folder, model=first.model, tokenizer=tiny_tokenizer(), state={"learner": first.state_dict()})
    second.load_state_dict(load_checkpoint(folder)["learner"])
    train(second, range(2, 4))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole.weights(), second.weights(), strict=True))
