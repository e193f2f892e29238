"""A full disk is called that, with the folder and how to go on, whoever noticed it."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from policy.files import as_os_error, why_full


@pytest.fixture
def full(tmp_path):
    """A folder of 1 MiB on a disk of its own."""
    folder = tmp_path / "full"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def save_state(folder):
    torch.save({"a": torch.zeros(1 << 20)}, folder / "state.pt")


def save_weights(folder):
    with as_os_error():
        save_file({"a": torch.zeros(1 << 20)}, folder / "model.safetensors")


def write_lines(folder):
    with (folder / "metrics.jsonl").open("w") as file:
        file.write("x" * (2 << 20))


@pytest.mark.parametrize("write", [save_state, save_weights, write_lines])
def test_a_full_disk_is_called_that(full, write):
    with pytest.raises((RuntimeError, OSError)) as found:
        write(full)
    said = why_full(found.value, full)
    assert said.startswith("the disk must have room for ") and str(full) in said and said.endswith("; make room")


def test_a_device_that_takes_nothing_is_full(tmp_path):
    device = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left") as found:
        os.write(device, b"x")
    os.close(device)
    assert why_full(found.value, tmp_path).startswith(f"the disk must have room for {tmp_path}, got ")


def test_the_words_of_torch_are_known_and_other_errors_are_not(tmp_path):
    assert why_full(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), tmp_path)
    error = RuntimeError("no checkpoint")
    error.__cause__ = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path / "x"))
    assert str(tmp_path / "x") in why_full(error, tmp_path)
    assert why_full(RuntimeError("an engine died"), tmp_path) == ""
    assert why_full(OSError(errno.EACCES, "no"), tmp_path) == ""
