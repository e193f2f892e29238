"""What a package may pull in: the light ones nothing of the training stack, no package's --help anything slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAINING_STACK = ("torch", "ray", "vllm", "transformers")
SLOW_TO_IMPORT = (*TRAINING_STACK, "tensorboard", "PIL", "scipy", "openai")
PROGRAMS = sorted(path.parent.name for path in ROOT.glob("*/__main__.py"))

# The refusal makes the traceback name the module that asked.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise ModuleNotFoundError(f"{{name}} must not be imported here", name=name)
sys.meta_path.insert(0, Refuse())
"""

IMPORT_EVERY_MODULE = """
import importlib, pkgutil
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
"""

RUN_HELP = """
import runpy
sys.argv = [{package!r}, "--help"]
runpy.run_module({package!r}, run_name="__main__", alter_sys=True)
"""


def run_refusing(refused: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    program = REFUSE.format(refused=refused) + code
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("package", ["simulator", "curriculum", "analysis"])
def test_light_package_imports_without_the_training_stack(package: str) -> None:
    done = run_refusing(TRAINING_STACK, IMPORT_EVERY_MODULE.format(package=package))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["simulator", "curriculum", "policy", "experiments", "analysis"])
def test_importing_a_package_runs_no_heavy_import(package: str) -> None:
    done = run_refusing(SLOW_TO_IMPORT, f"import {package}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PROGRAMS)
def test_help_answers_without_heavy_imports(package: str) -> None:
    done = run_refusing(SLOW_TO_IMPORT, RUN_HELP.format(package=package))
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


@pytest.mark.parametrize("command", ["evaluate", "reliability"])
def test_help_of_a_command_of_experiments_answers_without_heavy_imports(command: str) -> None:
    done = run_refusing(SLOW_TO_IMPORT, f"from experiments.__main__ import main; main([{command!r}, '--help'])")
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_a_refused_import_is_noticed() -> None:
    done = run_refusing(("json",), "import json")
    assert done.returncode != 0
    assert "json must not be imported here" in done.stderr
