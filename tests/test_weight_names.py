"""Which models' weights can be sent to vLLM: those stored under the names that they have in training, a tied head aside."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from experiments.__main__ import main
from experiments.build import build
from experiments.config import load
from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.engine.factory import check_engine
from policy.engine.weights import TIED_HEAD, check_weight_names, engine_names, require_names
from policy.model import has_tied_head
from policy.rollout.pool import check_pool
from tests.tiny_policy import save_tiny_policy, tiny_tokenizer

NEEDS_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
EMBEDDING = "model.embed_tokens.weight"


def small(folder: Path, **settings: object) -> Path:
    return save_tiny_policy(folder, hidden=32, layers=1, vocab_size=400, positions=512, **settings)


def add_tensor(folder: Path, name: str, tensor: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: tensor}, path, metadata={"format": "pt"})


def stored(folder: Path, name: str) -> torch.Tensor:
    return load_file(folder / "model.safetensors")[name]


def trained_names(folder: Path) -> list[str]:
    return [name for name, _ in AutoModelForCausalLM.from_pretrained(folder).named_parameters()]


def check(folder: Path) -> None:
    check_weight_names(trained_names(folder), folder, is_tied=has_tied_head(folder))


def with_joined_experts(folder: Path) -> Path:
    """As transformers saves it: expert by expert, where the model that trains has one tensor of all."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512}
    config = Qwen3MoeConfig(**sizes, **heads, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=False)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_as_transformers_saves_it_has_the_names_that_it_trains_by(tmp_path, tied):
    check(small(tmp_path, tied=tied))


def test_a_tied_head_may_be_stored_and_sent_or_not(tmp_path):
    folder = small(tmp_path, tied=True)
    add_tensor(folder, TIED_HEAD, stored(folder, EMBEDDING).clone())
    names = trained_names(folder)
    assert TIED_HEAD not in names
    check(folder)
    wanted = engine_names(folder, is_tied=has_tied_head(folder))
    for sent in (names, [*names, TIED_HEAD]):
        require_names(sent, expected=wanted)


def test_a_head_of_its_own_where_the_settings_tie_it_is_refused(tmp_path):
    folder = small(tmp_path, tied=True)
    add_tensor(folder, TIED_HEAD, -stored(folder, EMBEDDING))
    with pytest.raises(ValueError, match=r"policy\.model must have one matrix for words in and out .* set tie_word_embeddings to false"):
        check(folder)


def test_names_that_only_the_trainer_or_only_the_files_have_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"files lack \['model\.layers\.0\.mlp\.experts\.down_proj', .* and hold \['model\.layers\.0"):
        check(with_joined_experts(tmp_path / "experts"))
    folder = small(tmp_path / "buffer")
    add_tensor(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(16))
    with pytest.raises(ValueError, match=r"lack none and hold \['model\.layers\.0\.self_attn\.rotary_emb\.inv_freq'\] besides") as caught:
        check(folder)
    assert str(caught.value).endswith("; save it anew with transformers, or set policy.engine=hf")


def test_the_index_says_which_files_are_the_models(tmp_path):
    folder = small(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({"layers.0.attention.wq.weight": torch.ones(1)}, folder / "consolidated.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    check(folder)


@NEEDS_VLLM
@pytest.mark.parametrize("kind", ["auto", "vllm"])
def test_a_model_whose_names_vllm_does_not_know_is_refused_before_an_engine_starts(tmp_path, kind):
    folder = with_joined_experts(tmp_path / "model")
    config = load("smoke", [f"policy.model={folder}", f"policy.engine={kind}"])
    with pytest.raises(ValueError, match=r"policy\.model must be stored under the names that its weights have in training"):
        build(config, checkpoint=None)


@NEEDS_VLLM
def test_weights_in_bin_files_alone_are_refused_where_vllm_samples(tmp_path, capsys):
    folder = small(tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    words = r"policy\.model must have its weights in \*\.safetensors where vLLM samples, .*; save it anew with transformers, or set policy"
    rollout = RolloutConfig(max_context=256)
    for kind in (EngineKind.AUTO, EngineKind.VLLM):
        with pytest.raises(ValueError, match=words):
            check_pool(rollout, EngineConfig(engine=kind), ClusterConfig(), folder)
        check_engine(EngineConfig(engine=kind), folder, max_context=256)  # who only samples is sent nothing
    check_pool(rollout, EngineConfig(engine=EngineKind.HF), ClusterConfig(), folder)
    given = ["smoke", "--dry-run", f"runs={tmp_path}/runs", f"policy.model={folder}"]
    capsys.readouterr()
    assert main(given) == 2
    assert capsys.readouterr().err.startswith("error: policy.model must have its weights in *.safetensors")
    assert main([*given, "policy.engine=hf"]) == 0
