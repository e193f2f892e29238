"""The wheel in an environment that holds nothing but what it requires; run by `make adapters`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

README = Path("source/README.md")
if not README.is_file():
    pytest.skip("it wants an environment of its own (make adapters)", allow_module_level=True)


def test_it_holds_three_packages_and_a_plugin() -> None:
    names = {path.parts[0] for path in files("attune-rl") or () if not path.parts[0].endswith(".dist-info")}
    assert names - {"__pycache__"} == {"attune_rl", "attune_users.py", "curriculum", "simulator"}


def test_nothing_that_it_requires_is_missing_and_the_readmes_loop_runs() -> None:
    assert subprocess.run([sys.executable, "-m", "pip", "check"], check=False).returncode == 0
    loop = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    done = subprocess.run([sys.executable, "-c", loop], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0.0 <= float(done.stdout) <= 1.0
