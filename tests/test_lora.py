"""Adapters train alone, and what leaves the trainer is a plain model; without their package they are refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from policy_factories import VOCABULARY, random_batch, tiny_model, tiny_tokenizer
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import check_model
from policy.algorithms.algorithms import Grpo
from policy.checkpoint import load_checkpoint, save_checkpoint
from policy.config import GrpoConfig, LearnerConfig, LoraConfig, check_lora
from policy.learner import Learner
from policy.lora import add_adapters, is_adapter, make_trainable, merged_parameters, merged_state
from policy.model import load_model, token_logprobs_and_entropy

needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed (requirements/lora.txt)")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": -1}, r"policy\.lora\.rank must be >= 0, got -1"),
        ({"alpha": 0.0}, r"policy\.lora\.alpha must be > 0, got 0\.0"),
        ({"targets": "q_proj,,v_proj"}, r"policy\.lora\.targets must be all-linear or names of layers"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LoraConfig(**settings)


def test_adapters_without_their_package_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_lora(LoraConfig())
    with pytest.raises(ValueError, match=r"policy\.lora\.rank must be 0 where peft is not installed, got 8; make setup-lora"):
        check_lora(LoraConfig(rank=8))


def test_model_without_adapters_trains_and_gives_away_every_parameter_itself() -> None:
    model = tiny_model()
    assert [id(parameter) for parameter in make_trainable(model)] == [id(parameter) for parameter in model.parameters()]
    assert merged_state(model) is None
    for (name, merged), (expected_name, expected) in zip(merged_parameters(model), model.named_parameters(), strict=True):
        assert name == expected_name
        assert merged is expected


@needs_peft
@pytest.mark.parametrize(
    ("targets", "tied", "words"),
    [
        ("lm_head", True, r"must leave out an output head that is the embedding, got 'lm_head'"),
        ("embed_tokens", True, r"must leave embeddings out, got 'embed_tokens'"),
        ("q_proj, embed_tokens", False, r"must leave embeddings out"),
        ("nothing", False, r"must name layers of the model that can be adapted, got 'nothing'"),
        ("q_proj, nothing", False, r"must name layers of the model that can be adapted, got 'nothing' in 'q_proj, nothing'"),
        ("all-linear, lm_head", False, r"must name layers of the model that can be adapted, got 'all-linear' in"),
    ],
)
def test_targets_whose_adapter_would_reach_nobody_are_refused(targets: str, tied: bool, words: str) -> None:
    with pytest.raises(ValueError, match=rf"policy\.lora\.targets {words}"):
        add_adapters(tiny_model(tied=tied), LoraConfig(rank=2, targets=targets), seed=1)


@needs_peft
@pytest.mark.parametrize(("targets", "tied"), [("lm_head", False), ("q_proj", True), ("all-linear", True), ("q_proj, lm_head", False)])
def test_what_is_trained_is_what_leaves(targets: str, tied: bool) -> None:
    model = add_adapters(tiny_model(tied=tied), LoraConfig(rank=2, alpha=4.0, targets=targets), seed=1)
    learner = Learner(LearnerConfig(lr=0.05), Grpo(GrpoConfig()), model)
    train(learner, range(2))
    plain = tiny_model(seed=9, tied=tied)
    plain.load_state_dict(dict(merged_parameters(learner.model)), strict=not tied)
    token_ids_BT = torch.arange(1, 13)[None]
    with torch.no_grad():
        torch.testing.assert_close(learner.model(token_ids_BT).logits, plain(token_ids_BT).logits, atol=1e-4, rtol=1e-4)


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


@needs_peft
@pytest.mark.parametrize(
    ("targets", "meant"),
    [
        ("all-linear", "model.layers.1.mlp.experts.gate_up_proj"),
        ("kv_b_proj, gate_up_proj", "model.layers.1.mlp.experts.gate_up_proj"),
        ("down_proj", "model.layers.1.mlp.experts.down_proj"),
        ("experts", "model.layers.1.mlp.experts.gate_up_proj"),
        ("kv_b_proj, mlp.gate", "model.layers.1.mlp.gate"),
    ],
)
def test_experts_joined_in_one_parameter_are_refused_rather_than_left_out(targets: str, meant: str) -> None:
    words = rf"must leave out what is no linear layer.*, got '{targets}', which means {meant}; name linear layers"
    with pytest.raises(ValueError, match=rf"policy\.lora\.targets {words}"):
        add_adapters(model_of_experts(), LoraConfig(rank=2, targets=targets), seed=1)


@needs_peft
def test_gates_and_scales_with_three_dimensions_are_no_experts_and_stay_as_norms_do() -> None:
    model = tiny_model()
    model.model.gate = torch.nn.Parameter(torch.ones(2, 3, 4))
    add_adapters(model, LoraConfig(rank=2), seed=1)
    assert any(is_adapter(name) for name, _ in model.named_parameters())


@needs_peft
def test_a_checkpoint_with_adapters_keeps_what_the_model_stores_besides_parameters(tmp_path: Path) -> None:
    model, bias = model_of_experts(), "model.layers.1.mlp.gate.e_score_correction_bias"
    model.get_buffer(bias).copy_(torch.arange(4.0))
    model = add_adapters(model, LoraConfig(rank=2, targets="kv_b_proj, o_proj"), seed=1)
    make_trainable(model)
    folder = tmp_path / "checkpoints" / "step_2"
    save_checkpoint(folder, model=model, tokenizer=tiny_tokenizer(), state={})
    loaded, _ = load_model(folder)
    assert torch.equal(loaded.get_buffer(bias), torch.arange(4.0))
    assert loaded.state_dict().keys() == model_of_experts().state_dict().keys()
    assert "model.layers.0.self_attn.kv_b_proj.weight" in dict(merged_parameters(model))


class Adapted(nn.Module):
    """A layer as peft leaves it: y = x (W + b a)^T + c."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(3, 2)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(3, 1, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(1, 2, bias=False)})

    def get_delta_weight(self, adapter: str) -> Tensor:
        return self.lora_B[adapter].weight @ self.lora_A[adapter].weight


def test_merged_parameters_have_the_plain_names_and_the_adapters_product_in_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Adapted())
    trained = make_trainable(model)
    assert [tuple(parameter.shape) for parameter in trained] == [(1, 3), (2, 1)]
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad and not is_adapter(name)] == []
    merged = dict(merged_parameters(model))
    assert list(merged) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    adapted = model[1]
    torch.testing.assert_close(merged["1.weight"], adapted.base_layer.weight + adapted.get_delta_weight("default"))
    assert torch.equal(merged["1.bias"], adapted.base_layer.bias)


def adapted_learner(*, tied: bool = False) -> Learner:
    model = add_adapters(tiny_model(tied=tied), LoraConfig(rank=2, alpha=4.0), seed=1)
    return Learner(LearnerConfig(lr=0.05), Grpo(GrpoConfig()), model)


def train(learner: Learner, seeds: range) -> None:
    for seed in seeds:
        batch = random_batch(seed=seed)
        learner.update(batch, learner.algorithm.targets(batch))


def logprobs(model: nn.Module) -> Tensor:
    batch = random_batch(seed=9)
    with torch.no_grad():
        return token_logprobs_and_entropy(model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)[0]


@needs_peft
def test_new_adapters_say_nothing_and_are_drawn_from_the_seed_alone() -> None:
    plain = tiny_model()
    models = [tiny_model(), tiny_model()]
    for disturbance, model in enumerate(models):
        torch.manual_seed(disturbance)
        before = torch.get_rng_state()
        add_adapters(model, LoraConfig(rank=2), seed=1)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logprobs(models[0]), logprobs(plain))
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


@needs_peft
def test_layers_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"policy\.lora\.targets must name layers of the model that can be adapted, got 'nothing'"):
        add_adapters(tiny_model(), LoraConfig(rank=2, targets="nothing"), seed=0)


@needs_peft
@pytest.mark.parametrize("tied", [False, True])
def test_training_moves_the_adapters_alone_and_the_checkpoint_is_a_plain_model(tmp_path: Path, tied: bool) -> None:
    learner, plain = adapted_learner(tied=tied), dict(tiny_model(tied=tied).named_parameters())
    train(learner, range(2))
    frozen = {name.replace(".base_layer", ""): parameter for name, parameter in learner.model.named_parameters() if not is_adapter(name)}
    assert all(torch.equal(frozen[name], parameter) for name, parameter in plain.items())
    sent = dict(learner.weights())
    assert sent.keys() == plain.keys()
    assert not torch.equal(sent["model.layers.0.mlp.up_proj.weight"], plain["model.layers.0.mlp.up_proj.weight"])
    folder = tmp_path / "checkpoints" / "step_2"
    save_checkpoint(folder, model=learner.model, tokenizer=tiny_tokenizer(), state={"learner": learner.state_dict()})
    loaded, _ = load_model(folder)
    assert (logprobs(loaded) - logprobs(tiny_model(tied=tied))).abs().max() > 0.01
    torch.testing.assert_close(logprobs(loaded), logprobs(learner.model), rtol=0, atol=2e-5)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, sent[name]), name


@needs_peft
def test_resumed_adapters_go_on_exactly(tmp_path: Path) -> None:
    whole, first = adapted_learner(), adapted_learner()
    train(whole, range(4))
    train(first, range(2))
    folder = tmp_path / "checkpoints" / "step_2"
    save_checkpoint(folder, model=first.model, tokenizer=tiny_tokenizer(), state={"learner": first.state_dict()})
    second = adapted_learner()
    second.load_state_dict(load_checkpoint(folder).state["learner"])
    train(second, range(2, 4))
    for (name, a), (_, b) in zip(whole.weights(), second.weights(), strict=True):
        assert torch.equal(a, b), name


def test_run_with_adapters_is_refused_before_it_starts_where_their_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load("smoke", ["policy.lora.rank=8"]).policy
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"policy\.lora\.rank must be 0 where peft is not installed"):
        check_model(policy)
