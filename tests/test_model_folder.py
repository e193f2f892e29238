"""Folders of models that cannot be trained or run here are refused in a sentence, before anything starts."""

from __future__ import annotations

import json

import pytest

from experiments.__main__ import main
from policy.model import check_model_folder, find_model
from tests.tiny_policy import save_tiny_policy

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n"
CONFIGS = {
    "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "awq": {"quantization_config": {"quant_method": "awq", "bits": 4}},
    "bitsandbytes": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    "fp8": {"quantization_config": {"quant_method": "fp8"}},
    "compressed-tensors": {"quantization_config": {"quant_method": "compressed-tensors"}},
    "a method that it does not name": {"compression_config": {"format": "pack-quantized"}},
    "mxfp4": {"text_config": {"quantization_config": {"quant_method": "mxfp4"}}},
}


@pytest.fixture
def folder(tmp_path):
    return save_tiny_policy(tmp_path / "tiny")


def change(folder, changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_plain_folder_is_found(folder):
    assert find_model(folder) == folder


@pytest.mark.parametrize("method", CONFIGS)
def test_quantised_weights_are_refused_by_their_method(folder, method):
    change(folder, CONFIGS[method])
    with pytest.raises(ValueError, match=f"policy.model must hold unquantised weights, got .*, quantised by {method}; name the model"):
        find_model(folder)


def test_what_gptq_wrote_before_there_was_a_place_for_it_is_seen(folder):
    (folder / "quantize_config.json").write_text("{}")
    with pytest.raises(ValueError, match="quantised by quantize"):
        find_model(folder)


def test_a_folder_of_gguf_files_is_refused(tmp_path):
    (tmp_path / "model-q4_k_m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="with GGUF files alone"):
        find_model(tmp_path)


def test_a_model_that_brings_code_of_its_own_is_refused(folder):
    change(folder, {"model_type": "made_up", "auto_map": {"AutoModelForCausalLM": "modeling_made_up.MadeUp"}})
    with pytest.raises(ValueError, match="names code of its own"):
        find_model(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_in_the_place_of_a_file_says_how_to_fetch_it(folder, name):
    (folder / name).write_text(POINTER)
    with pytest.raises(ValueError, match=f"{name}', a Git LFS pointer; run `git lfs pull`"):
        check_model_folder(folder)


def test_a_config_that_is_an_array_is_refused(folder):
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"must have a config\.json with a JSON object"):
        find_model(folder)


def test_a_dry_run_and_an_evaluation_refuse_it_too(folder, capsys):
    change(folder, CONFIGS["gptq"])
    assert main(["smoke", f"policy.model={folder}", "--dry-run"]) == 2
    assert main(["evaluate", str(folder), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "error: policy.model must hold unquantised weights" in said and "error: AGENT must hold unquantised weights" in said
