"""Set-up installs once per content of the pinned lists, and an unfinished installation never counts as done."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import install
from requirements.install import ROOT, Installation, SetupError, read_pins, set_up


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment as set-up makes it; each takes ten seconds, so that the others here are copies."""
    checkout = tmp_path_factory.mktemp("template")
    (checkout / "requirements").mkdir()
    write_list(checkout, "cpu", "# nothing\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        set_up(checkout, accelerator="cpu", dev=False)
    assert list(Installation(checkout).installed()) == ["cpu"]
    (checkout / ".venv" / "installed.json").unlink()
    return checkout / ".venv"


@pytest.fixture
def checkout(tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout whose lists ask for nothing, on a machine without any package index."""
    run = subprocess.run

    def copy_environment(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[1:3] != ["-m", "venv"]:
            return run(command, **options)
        if "--clear" in command:
            shutil.rmtree(command[-1])
        shutil.copytree(environment, command[-1], symlinks=True, dirs_exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(install.subprocess, "run", copy_environment)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "requirements").mkdir()
    for name in ("cpu", "gpu", "dev"):
        write_list(tmp_path, name, "# nothing\n")
    return tmp_path


def write_list(root: Path, name: str, text: str) -> None:
    (root / "requirements" / f"{name}.txt").write_text(text)


def test_second_call_installs_nothing_until_a_list_changes(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(checkout, accelerator="cpu", dev=True)
    assert "installed requirements/dev.txt" in capsys.readouterr().out

    set_up(checkout, accelerator="cpu", dev=True)
    assert capsys.readouterr().out == ""

    write_list(checkout, "dev", "# nothing, in other words\n")
    set_up(checkout, accelerator="cpu", dev=True)
    said = capsys.readouterr().out
    assert "requirements/dev.txt" in said
    assert "requirements/cpu.txt" not in said


def test_failed_installation_leaves_no_stamp_and_shows_what_pip_said(checkout: Path) -> None:
    write_list(checkout, "cpu", "attune-no-such-package==1.0\n")
    with pytest.raises(SetupError, match="attune-no-such-package"):
        set_up(checkout, accelerator="cpu", dev=False)
    assert Installation(checkout).missing(["cpu"]) == ["cpu"]


def test_a_gpu_is_used_only_where_that_is_asked_for(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    set_up(checkout, accelerator="", dev=False)
    said = capsys.readouterr().out
    assert said.count("make setup ACCELERATOR=gpu") == 1
    assert list(Installation(checkout).installed()) == ["cpu"]

    set_up(checkout, accelerator="gpu", dev=False)
    assert list(Installation(checkout).installed()) == ["gpu"]
    assert "make setup" not in capsys.readouterr().out


def test_an_environment_for_gpus_stays_one_until_the_cpu_is_asked_for(checkout: Path) -> None:
    set_up(checkout, accelerator="gpu", dev=False)
    write_list(checkout, "gpu", "attune-no-such-package==1.0\n")
    for _ in range(2):  # what did not finish is taken up again, and nothing for the CPU is laid over it
        with pytest.raises(SetupError, match="attune-no-such-package"):
            set_up(checkout, accelerator="", dev=False)
        assert Installation(checkout).begun() == {"gpu": ""}
    set_up(checkout, accelerator="cpu", dev=False)
    assert list(Installation(checkout).installed()) == ["cpu"]
    with pytest.raises(ValueError, match=r"ACCELERATOR must be one of cpu, gpu, got 'tpu'"):
        set_up(checkout, accelerator="tpu", dev=False)


@pytest.mark.parametrize("name", ["cpu", "gpu", "dev", "bench"])
def test_every_requirement_is_pinned_to_one_version(name: str) -> None:
    pins = read_pins(ROOT / "requirements" / f"{name}.txt")
    assert pins
    assert all(re.fullmatch(r"[\w.-]+={2,3}[\w.+]+", pin) for pin in pins)


def test_cpu_list_holds_none_of_the_cuda_builds_that_break_imports() -> None:
    names = {pin.partition("==")[0].lower() for pin in read_pins(ROOT / "requirements" / "cpu.txt")}
    assert not names & {"torchvision", "torchaudio", "torchcodec", "triton"}


@pytest.mark.parametrize("target", ["experiment EXP=no_such_experiment", "report RUN=", "setup ACCELERATOR=tpu"])
def test_make_refuses_bad_input_with_exit_code_2(target: str) -> None:
    done = subprocess.run(["make", f"PYTHON={sys.executable}", *target.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.search(r"^(EXP|RUN|ACCELERATOR) must ", done.stderr, re.MULTILINE)
