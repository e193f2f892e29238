"""New weights in transit: what proves that they arrived, and what a file of them leaves behind."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from policy.config import EngineConfig, EngineDtype, EngineKind, WeightTransport
from policy.engine.engine import EngineError, Sampling
from policy.engine.factory import make_engine
from policy.engine.weights import (
    CheckedTensors,
    WeightAck,
    WeightFileError,
    WeightSync,
    check_acks,
    pack_weights,
    rounded_names,
    write_weights,
)
from tests.tiny_policy import save_tiny_policy

NAMED = [("z", torch.arange(6.0).reshape(2, 3).bfloat16()), ("a", torch.ones(2, dtype=torch.float32)), ("m", torch.tensor(2.5))]


def checksum(name: str, values: list | torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
    return pack_weights([(name, torch.as_tensor(values, dtype=dtype))], version=1).checksum


def test_the_checksum_sees_every_bit_and_place_the_name_the_dtype_and_the_shape():
    changed = [("v", [1.0, 2.0]), ("w", [2.0, 1.0]), ("w", [[1.0], [2.0]]), ("w", [1.0, -2.0]), ("w", [1.0, 2.0], torch.bfloat16)]
    assert len({checksum("w", [1.0, 2.0]), *(checksum(*each) for each in changed)}) == 6


def test_weights_with_nan_never_leave_the_trainer_and_copies_do_not_follow_it():
    with pytest.raises(ValueError, match="finite"):
        pack_weights([("w", torch.tensor([1.0, math.nan]))], version=1)
    live = torch.ones(4)
    packed = pack_weights([("w", live)], version=2)
    live.add_(1.0)
    assert [tensor.tolist() for _, tensor in packed.tensors()] == [[1.0] * 4]


@pytest.mark.parametrize(
    ("dtype", "probe", "is_refused"),
    [("float32", -1.005, False), ("float32", -1.02, True), ("bfloat16", -1.2, False), ("bfloat16", -3.0, True)],
)
def test_engines_may_differ_on_the_probe_by_their_precision(dtype, probe, is_refused):
    sent = pack_weights([("w", torch.ones(4))], version=1)
    acks = [WeightAck(version=1, checksum=sent.checksum, probe=(-3.0, at)) for at in (-1.0, probe)]
    with pytest.raises(RuntimeError, match="engine 1") if is_refused else nullcontext():
        check_acks(acks, sent, dtype=EngineDtype(dtype))


def test_other_weights_than_those_sent_and_a_single_engine_with_nan_are_refused():
    sent = pack_weights([("w", torch.ones(4))], version=2)
    good = WeightAck(version=2, checksum=sent.checksum, probe=(-1.0,))
    check_acks([good], sent)
    for bad in (replace(good, version=1), replace(good, checksum=1), replace(good, probe=(math.nan,))):
        with pytest.raises(RuntimeError, match="engine 0"):
            check_acks([bad], sent)


def test_a_file_keeps_bits_dtypes_and_the_order_of_names(tmp_path):
    packed = pack_weights(NAMED, version=1)
    file = write_weights(packed, tmp_path, name="w.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    tensors = CheckedTensors(file)
    for (name, tensor), (sent_name, sent) in zip(tensors, NAMED, strict=True):
        assert name == sent_name and torch.equal(tensor, sent) and tensor.dtype is sent.dtype
    assert tensors.checksum == file.checksum == packed.checksum


def test_a_write_that_fails_leaves_no_file_and_names_the_setting(tmp_path, monkeypatch):
    def torn(tensors, path):
        Path(path).write_bytes(b"half")
        raise SafetensorError("no space left on the device")

    monkeypatch.setattr("policy.engine.weights.save_file", torn)
    config = EngineConfig(weight_transport=WeightTransport.FILE, weight_folder=str(tmp_path / "w"))
    with pytest.raises(RuntimeError, match=r"policy\.weight_folder .*no space"):
        WeightSync(config, lambda weights: [], folder=tmp_path).send(NAMED, 1)
    assert list((tmp_path / "w").iterdir()) == []


def test_a_file_is_deleted_when_the_next_has_arrived(tmp_path):
    config = EngineConfig(weight_transport=WeightTransport.FILE, weight_folder=str(tmp_path / "w"))
    sync = WeightSync(config, lambda file: [WeightAck(version=file.version, checksum=file.checksum, probe=(-1.0,))], folder=tmp_path)
    for version in (2, 3):
        sync.send(NAMED, version)
        assert [path.name.rpartition("-")[2] for path in (tmp_path / "w").iterdir()] == [f"v{version:08d}.safetensors"]
    sync.close()
    assert list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize("transport", ["rpc", "file"])
def test_weights_above_a_size_go_in_pieces_that_are_gone_when_the_next_have_arrived(transport, tmp_path, monkeypatch):
    monkeypatch.setattr("policy.engine.weights.PIECE_BYTES", 10)
    whole, received, stored = pack_weights(NAMED, version=1), [], []

    def load(weights):
        tensors = CheckedTensors(weights)
        received.append([(name, tensor) for name, tensor in tensors])
        return [WeightAck(version=weights.version, checksum=tensors.checksum, probe=(-1.0,))]

    def store(packed):
        stored.append(packed)
        return SimpleNamespace(get=lambda: packed)

    sync = WeightSync(EngineConfig(weight_transport=WeightTransport(transport)), load, folder=tmp_path / "w", store=store)
    for version in (1, 2):
        sync.send(iter(NAMED), version)
        files = sorted(path.name for path in (tmp_path / "w").glob("*"))
        assert len(files if transport == "file" else stored) == (len(NAMED) if transport == "file" else version * len(NAMED))
        assert all(f"-v{version:08d}-" in name for name in files)
    for got in received:
        assert [name for name, _ in got] == list(whole.names)
        assert all(torch.equal(tensor, sent) and tensor.dtype is sent.dtype for (_, tensor), (_, sent) in zip(got, NAMED, strict=True))
    sync.close()
    assert not list((tmp_path / "w").glob("*"))


def test_what_an_engine_keeps_in_bfloat16_is_sent_in_it(tmp_path):
    sent, value = [], torch.tensor([1.0, 1.001])
    save_file({"w": value.bfloat16(), "kept": value}, tmp_path / "model.safetensors")
    config = EngineConfig(dtype=EngineDtype.BFLOAT16)
    assert rounded_names(EngineConfig(), tmp_path) == set()
    sync = WeightSync(config, lambda weights: sent.append(weights) or [], folder=tmp_path, rounded=rounded_names(config, tmp_path))
    sync.send([("w", value), ("kept", value)], 1)
    (_, rounded), (_, kept) = sent[0].tensors()
    assert rounded.dtype is torch.bfloat16 and rounded.tolist() == [1.0, 1.0] and torch.equal(kept, value)


def test_files_of_a_send_that_failed_are_deleted_at_the_end(tmp_path):
    config = EngineConfig(weight_transport=WeightTransport.FILE, weight_folder=str(tmp_path / "w"))
    sync = WeightSync(config, lambda file: [WeightAck(version=file.version, checksum=file.checksum, probe=(-1.0,))], folder=tmp_path)
    sync.send(NAMED, 1)
    with pytest.raises(ValueError, match="finite"):
        sync.send([("w", torch.tensor([math.nan]))], 2)
    sync.close()
    assert list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize("kind", ["hf", pytest.param("vllm", marks=pytest.mark.engine)])
def test_a_damaged_file_is_seen_and_a_missing_one_breaks_the_engine(kind, tmp_path):
    folder = save_tiny_policy(tmp_path / "policy", hidden=32, layers=1)
    engine = make_engine(EngineConfig(engine=EngineKind(kind)), folder, max_context=64)
    named = [(name, weight.detach() * 1.5) for name, weight in AutoModelForCausalLM.from_pretrained(folder).named_parameters()]
    file = write_weights(pack_weights(named, version=3), tmp_path, name="weights.safetensors")
    try:
        check_acks([asyncio.run(engine.load_weights(file))], file)
        with Path(file.path).open("r+b") as damaged:
            damaged.seek(-8, os.SEEK_END)
            damaged.write(b"\x00\x00\x00\x40" * 2)
        with pytest.raises(RuntimeError, match="checksum"):
            check_acks([asyncio.run(engine.load_weights(file))], file)
        Path(file.path).unlink()
        with pytest.raises(WeightFileError, match=r"policy\.weight_folder .*policy\.weight_transport=rpc"):
            asyncio.run(engine.load_weights(file))
        with pytest.raises(EngineError):
            asyncio.run(engine.generate([5, 6], sampling=Sampling(max_tokens=2), seed=0))
    finally:
        engine.close()
