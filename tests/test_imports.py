"""Modules a package may pull in: the light ones nothing of the training stack, no package and no --help anything slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINING_STACK = ("torch", "ray", "vllm", "transformers")
SLOW_TO_IMPORT = (*TRAINING_STACK, "tensorboard", "PIL", "scipy", "openai")

# The refusal makes the traceback name the module that asked.
REFUSE = """
import importlib, pkgutil, runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise ModuleNotFoundError(f"{{name}} must not be imported here", name=name)
sys.meta_path.insert(0, Refuse())
"""

IMPORT_EVERY_MODULE = """
for name in ("simulator", "curriculum", "analysis"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        # The encoder's network is imported by whoever asks for it.
        if not module.name.endswith((".__main__", "simulator.encoder.network", "simulator.encoder.train")):
            importlib.import_module(module.name)
"""

RUN_HELP = """
import simulator, curriculum, policy, experiments, analysis
for package, *words in {commands!r}:
    sys.argv = [package, *words, "--help"]
    try:
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert end.code == 0, package
"""


def run_refusing(refused: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    program = REFUSE.format(refused=refused) + code
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_light_packages_import_without_the_training_stack():
    """Takes 2 s: every module must be new."""
    done = run_refusing(TRAINING_STACK, IMPORT_EVERY_MODULE)
    assert done.returncode == 0, done.stderr


def test_packages_and_help_import_nothing_slow():
    commands = [(path.parent.name,) for path in sorted(ROOT.glob("*/__main__.py"))]
    commands += [("experiments", "evaluate"), ("experiments", "reliability")]
    done = run_refusing(SLOW_TO_IMPORT, RUN_HELP.format(commands=commands))
    assert done.returncode == 0, done.stderr
    usages = [line for line in done.stdout.splitlines() if line.lower().startswith("usage: ")]
    assert len(usages) == len(commands) and usages[-1].startswith("usage: python -m experiments reliability")


def test_a_refused_import_is_noticed():
    done = run_refusing(("colorsys",), "import colorsys")
    assert done.returncode != 0 and "colorsys must not be imported here" in done.stderr
