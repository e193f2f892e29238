"""How much memory engines need and how much there is, by the files of both kinds of control groups."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from policy.config import ClusterConfig, EngineConfig, EngineDtype, EngineKind, RolloutConfig
from policy.engine.capacity import check_capacity, free_bytes
from policy.files import num_weights

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes what the kernel says of this process's groups: their names, and files by path below the mount."""
    monkeypatch.setattr("policy.engine.capacity.CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr("policy.engine.capacity.OWN_GROUPS", tmp_path / "own")

    def write(own: str, **files: str) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


V1 = "3:cpu,cpuacct:/job\n2:memory:/job/step\n0::/\n"
V2 = "0::/job/step\n"


@pytest.mark.parametrize(
    ("own", "files", "left_mb"),
    [
        (V2, {"job/step/memory.max": f"{300 * MIB}\n", "job/step/memory.stat": f"file 7\nanon {100 * MIB}\n"}, 200),
        (V2, {"job/step/memory.max": "max\n", "job/memory.max": f"{300 * MIB}\n", "job/memory.stat": f"anon {250 * MIB}\n"}, 50),
        ("0::/\n", {"memory.max": f"{90 * MIB}\n", "memory.stat": f"anon {30 * MIB}\n"}, 60),
        (
            V1,
            {
                "memory/job/step/memory.limit_in_bytes": f"{300 * MIB}\n",
                "memory/job/step/memory.stat": f"rss 5\ntotal_rss {120 * MIB}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.stat": "total_rss 0\n",
            },
            180,
        ),
        ("4:memory:/not/to/be/seen/here\n", {"memory/memory.limit_in_bytes": f"{70 * MIB}", "memory/memory.stat": "total_rss 0\n"}, 70),
        (V2, {"job/memory.max": f"{40 * MIB}\n"}, 40),
        (V2, {"job/memory.max": f"{40 * MIB}\n", "job/memory.stat": "anon\n\nanon much more\n"}, 40),
        (V2, {"job/memory.max": f"{40 * MIB}\n", "job/memory.stat": f"anon {41 * MIB}\n"}, 0),
    ],
    ids=["v2", "v2, the one around it", "v2, a container's", "v1", "v1, a container's", "no use told", "use in no form", "over its limit"],
)
def test_a_control_group_around_this_process_says_how_much_it_may_take(groups, own, files, left_mb):
    groups(own, **files)
    assert free_bytes() == left_mb * MIB


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n", "-1\n", "0\n", "", "a lot\n"])
@pytest.mark.parametrize(("own", "name"), [(V2, "job/memory.max"), (V1, "memory/job/memory.limit_in_bytes"), ("", "none")])
def test_where_no_group_limits_it_the_machine_does(groups, monkeypatch, own, name, limit):
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    groups(own, **{name: limit})
    assert free_bytes() == memory.available


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
    monkeypatch.setattr("policy.engine.capacity.free_bytes", lambda: each_mb * MIB)
    check_capacity(*asked)
    monkeypatch.setattr("policy.engine.capacity.free_bytes", lambda: (each_mb - 1) * MIB)
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
