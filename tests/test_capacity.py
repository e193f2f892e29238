"""How much memory engines need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policy.capacity import check_capacity
from policy.cluster import ClusterConfig
from policy.engine import EngineConfig, EngineDtype, EngineKind
from policy.rollout_config import RolloutConfig
from policy.stored_weights import num_weights

MIB = 1 << 20


def model_of(folder: Path, *, num_weights: int, name: str = "model.safetensors") -> Path:
    """As much of a folder as is looked at: headers, of weights that are stored in 16 bits."""
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "BF16", "shape": [2, num_weights // 2], "data_offsets": [0, 2 * num_weights]},
    }
    text = json.dumps(header).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)
    return folder


@pytest.mark.parametrize(("dtype", "each_mb"), [(EngineDtype.FLOAT32, 900 + 96 + 2 * 1024), (EngineDtype.BFLOAT16, 900 + 96 + 2 * 512)])
def test_weights_take_the_room_of_the_engines_dtype_whatever_their_files_have(tmp_path, monkeypatch, dtype, each_mb):
    folder = model_of(tmp_path, num_weights=1 << 28)
    asked = (RolloutConfig(num_engines=1), EngineConfig(engine=EngineKind.HF, dtype=dtype), ClusterConfig(), folder)
    monkeypatch.setattr("policy.capacity.free_bytes", lambda: each_mb * MIB)
    check_capacity(*asked)
    monkeypatch.setattr("policy.capacity.free_bytes", lambda: (each_mb - 1) * MIB)
    with pytest.raises(ValueError, match=rf"each needs about {each_mb} MiB and {each_mb - 1} MiB are free"):
        check_capacity(*asked)


def test_weights_in_pieces_are_those_that_their_index_names(tmp_path):
    model_of(tmp_path, num_weights=10, name="consolidated.safetensors")
    model_of(tmp_path, num_weights=6, name="model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    assert num_weights(tmp_path) == 6


@pytest.mark.parametrize("damaged", [b"", b"\xff" * 40, (9).to_bytes(8, "little") + b'{"w": {}}'[:5]])
def test_a_file_that_cannot_be_read_is_named(tmp_path, damaged):
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"policy\.model must hold safetensors files that can be read, got '.*': "):
        num_weights(tmp_path)
