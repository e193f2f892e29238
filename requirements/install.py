"""Creates .venv and installs the pinned lists into it, once per content of the lists; standard library only."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where PyTorch publishes CPU builds; asked only when pip's own configuration leads to none.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ACCELERATORS = ("cpu", "gpu")


class SetupError(RuntimeError):
    """A set-up that cannot go on; the message says what to do."""


class Installation:
    """The virtual environment of one checkout and the stamp that says which lists are in it."""

    # Byte-compiling everything costs more than compiling, on first import, the part that is ever imported.
    PIP = ("--no-deps", "--no-compile", "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--root-user-action=ignore")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "installed.json"

    def begun(self) -> dict[str, str]:
        """Digest of each list whose installation began, by list name; empty where it did not finish."""
        return dict(json.loads(self.stamp.read_text())) if self.stamp.exists() else {}

    def installed(self) -> dict[str, str]:
        """Digest of each list as it was when its installation finished, by list name; none without a working Python."""
        return {name: digest for name, digest in self.begun().items() if digest and self.python.exists()}

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the lists that are not installed in their present content."""
        installed = self.installed()
        return [name for name in names if installed.get(name) != self._digest(name)]

    def install(self, name: str) -> None:
        """Installs one list and stamps it; without its digest in the stamp, an interrupted installation is taken up again."""
        digest, path = self._digest(name), self.root / "requirements" / f"{name}.txt"
        # The name is in the stamp from the beginning, so that a later call goes on with the accelerator that was asked for.
        self._write_stamp(self.installed() | {name: ""})
        pins, start_s = read_pins(path), time.monotonic()
        say(f"installing requirements/{name}.txt: {len(pins)} packages")
        for pin in (pin for pin in pins if "+cpu" in pin):
            try:
                self._pip([pin], num_packages=1)
            except SetupError as first:
                say(f"pip's own indexes have no {pin}: asking {TORCH_CPU_INDEX}")
                try:
                    self._pip([pin, "--index-url", TORCH_CPU_INDEX], num_packages=1)
                except SetupError as second:
                    raise SetupError(f"{second}\nBefore that, from pip's own indexes: {first}") from second
        self._pip(["-r", str(path)], num_packages=len(pins))
        self._write_stamp(self.installed() | {name: digest})
        say(f"installed requirements/{name}.txt in {time.monotonic() - start_s:.0f} s")

    def _digest(self, name: str) -> str:
        return hashlib.sha256((self.root / "requirements" / f"{name}.txt").read_bytes()).hexdigest()

    def _write_stamp(self, installed: dict[str, str]) -> None:
        partial = self.stamp.with_suffix(".partial")
        partial.write_text(json.dumps(installed))
        partial.replace(self.stamp)

    def _pip(self, arguments: Sequence[str], *, num_packages: int) -> None:
        """Runs pip install, with one rewritten line of progress on a terminal; raises SetupError with the end of its output."""

        def show(line: str) -> None:
            if sys.stdout.isatty():
                print(f"\r\033[K{line[:100]}", end="", flush=True)

        command = [str(self.python), "-m", "pip", "install", *self.PIP, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None, "a pipe was asked for"
        tail: list[str] = []
        num_seen = 0
        for line in process.stdout:
            if not line.startswith(("WARNING: Location", "WARNING: Retrying")):
                tail = [*tail[-14:], line.rstrip()]
            if line.startswith(("Collecting", "Requirement already satisfied")):
                num_seen += 1
                show(f"  {num_seen}/{num_packages} {line.split()[1] if line.startswith('Collecting') else ''}")
            elif line.startswith("Installing collected"):
                show("  unpacking")
        show("")
        if process.wait() != 0:
            raise SetupError("pip could not install; the end of what it said:\n  " + "\n  ".join(tail))


def read_pins(path: Path) -> list[str]:
    """The requirements in a pinned list, without comments and empty lines."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def has_gpu() -> bool:
    """Whether nvidia-smi is there and finds a working driver."""
    try:
        return shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi"], capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def set_up(root: Path, *, accelerator: str, dev: bool, extras: Sequence[str] = ()) -> None:
    """Brings .venv to the pinned lists; does nothing, at once, when it is there already.

    Args:
        root: the checkout.
        accelerator: cpu or gpu; empty takes what is installed already or was begun, else cpu, on which all experiments but own_model run.
        dev: whether the tools for tests and linting are wanted too.
        extras: names of further lists: `bench`.
    """
    if accelerator not in ("", *ACCELERATORS):
        raise ValueError(f"ACCELERATOR must be one of {', '.join(ACCELERATORS)}, got {accelerator!r}")
    installation = Installation(root)
    begun, asked = sorted(set(installation.begun()) & set(ACCELERATORS)), accelerator
    accelerator = asked or next(iter(begun), "cpu")
    names = [accelerator, *(["dev"] if dev else []), *extras]
    if not installation.missing(names):
        return
    if not (asked or begun) and has_gpu():
        say("for the CPU, which the experiments use; for a model of your own on the GPU that is here: make setup ACCELERATOR=gpu")
    installation.venv.mkdir(exist_ok=True)
    # Two calls of make must not install into one environment at once.
    with (installation.venv / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running here: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        other = set(installation.begun()) & set(ACCELERATORS) - {accelerator}
        if other or not installation.python.exists() or not (installation.venv / "bin" / "pip").exists():
            say(f"creating .venv with Python {sys.version.split()[0]}")
            # The two builds of vLLM share their files, so that one cannot be laid over the other.
            command = [sys.executable, "-m", "venv", *(["--clear"] if other else []), str(installation.venv)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                remedy = "on Debian or Ubuntu install python3-venv, then run again"
                raise SetupError(f"python -m venv failed; {remedy}\n{done.stdout}{done.stderr}")
        for name in installation.missing(names):
            installation.install(name)


def say(line: str) -> None:
    """One line of progress."""
    print(f"set-up: {line}", flush=True)


def main() -> int:
    """Exit code 0 when everything is there, 1 when the installation failed, 2 for bad input, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also the tools for tests and linting")
    extra = "also what the comparison with TRL in `make bench` needs"
    parser.add_argument("--extra", action="append", choices=("bench",), default=[], help=extra)
    arguments = parser.parse_args()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        got = sys.version.split()[0]
        print(f"Python must be 3.11 to 3.13, got {got}; try: make setup PYTHON=/path/to/python3.11", file=sys.stderr)
        return 2
    try:
        set_up(ROOT, accelerator=os.environ.get("ACCELERATOR", ""), dev=arguments.dev, extras=arguments.extra)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except (SetupError, OSError) as error:
        print(f"set-up failed: {error}\nMend what it names (network, disk space) and run the same command again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted; run the same command again to finish it", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
