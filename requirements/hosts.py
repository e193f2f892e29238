"""`make adapters`: tests each adapter in a throw-away environment with its host, and writes version and day into docs/trainers.md."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/trainers.md"
PATCH = ROOT / "docs/prime_rl_sampler.patch"
HOSTS = {
    "alone": ("a loop of your own", []),
    "trl": ("TRL", ["trl==1.16.0", "torch==2.13.*"]),
    "openenv": ("OpenEnv", ["openenv==0.10.0"]),
    "verifiers": ("verifiers", ["verifiers==0.4.0"]),
    "prime_rl": ("prime-rl", ["verifiers==0.4.0"]),
    # verl's own extras bring CUDA or Megatron; of these packages its trainer needs those named here.
    "verl": (
        "verl",
        [
            "verl==0.9.1",
            "TransferQueue==0.1.11",
            "torch==2.13.*",
            "fastapi==0.165.*",
            "uvicorn==0.54.*",
            "pyzmq==27.*",
            "msgspec==0.23.*",
            "cachetools==8.*",
        ],
    ),
}
"""By name its title in the page and what is installed, the host first; tests/hosts/ has its tests. No index has prime-rl: PRIME_RL is a
checkout."""
OURS = ("simulator", "curriculum", "attune_rl", "attune_users.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
"""What the wheel is made of."""


def main() -> int:
    """Checks the hosts named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description="Tests adapters with their hosts.")
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"of {', '.join(HOSTS)} (default: all)")
    names = parser.parse_args().hosts or [name for name in HOSTS if name != "prime_rl" or os.environ.get("PRIME_RL")]
    if unknown := set(names) - set(HOSTS):
        parser.error(f"HOST must be one of {', '.join(HOSTS)}, got {', '.join(sorted(unknown))}")
    if "prime_rl" in names and not os.environ.get("PRIME_RL"):
        parser.error("PRIME_RL must be a checkout of prime-rl, got none; no index has it")
    if "prime_rl" not in names and len(names) > 1:
        print("prime-rl is left out: PRIME_RL names no checkout of it", flush=True)
    failed = [name for name in names if not passes(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def passes(name: str) -> bool:
    """Whether a host's tests pass in an environment of its own."""
    title, packages = HOSTS[name]
    with tempfile.TemporaryDirectory(prefix="attune-host-") as place:
        environment, source = Path(place) / "environment", Path(place) / "source"
        print(f"{title}: installs {', '.join(packages[:1]) or 'nothing else'}", flush=True)
        venv.create(environment, with_pip=True)
        copy_sources(source)
        python = environment / "bin/python"
        ours = [source, *([source / "attune_rl/hub"] if name == "verifiers" else [])]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages, "pytest==9.2.*", *map(str, ours)], check=True)
        tests = Path(place) / "tests"
        tests.mkdir()
        shutil.copy(ROOT / "tests/hosts" / f"test_{name}.py", tests)
        path = patched(Path(os.environ["PRIME_RL"]), Path(place) / "prime_rl") if name == "prime_rl" else ""
        variables = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run([python, "-m", "pytest", "-q", str(tests)], cwd=place, env=variables, check=False)
    if done.returncode == 0:
        day = datetime.datetime.now(tz=datetime.UTC)
        note_down(title, ", ".join([*(name.replace("==", " ") for name in packages[:1]), f"{day.day} {day:%B %Y}"]))
    return done.returncode == 0


def copy_sources(folder: Path) -> None:
    """A copy of what the wheel is made of, since setuptools leaves its build where it works."""
    folder.mkdir()
    for name in OURS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)


def patched(checkout: Path, folder: Path) -> str:
    """The PYTHONPATH of a copy of prime-rl that takes samplers of ours."""
    sources = [folder / "src", folder / "packages/prime-rl-configs/src"]
    for source in sources:
        shutil.copytree(checkout / source.relative_to(folder), source)
    # In a repository of somebody's around it git would skip the patch in silence.
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", "--unidiff-zero", PATCH], cwd=folder, env=alone, check=True)
    return os.pathsep.join(map(str, sources))


def note_down(title: str, last: str) -> None:
    """Writes the last cell of a host's row in the page."""
    text, num = re.subn(rf"^(\| \[{title}\].*\|)[^|]*\|$", rf"\g<1> {last} |", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if num != 1:
        raise RuntimeError(f"{PAGE} must have one row for {title}, got {num}")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
