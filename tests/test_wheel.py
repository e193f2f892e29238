"""The wheel: what it puts into other people's environments, and that the README's loop runs there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from requirements.hosts import HOSTS, OURS, ROOT, copy_sources

NEEDED = {"numpy", "scipy", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "yaml"}
"""What setup.cfg requires, with what that requires."""
NAMES = {"attune_rl", "attune_users.py", "curriculum", "simulator"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed this checkout, without what it depends on."""
    place = tmp_path_factory.mktemp("wheel")
    target, source = place / "site-packages", place / "source"
    copy_sources(source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return target


def test_it_holds_three_packages_and_a_plugin_that_hide_nobodys_folders(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} - {"__pycache__"} == NAMES
    assert [path.name.partition("-")[0] for path in installed.glob("*.dist-info")] == ["attune_rl"]
    assert not [path for path in installed.rglob("*") if path.suffix == ".jsonl" or path.name.startswith("test_")]
    assert sum(path.stat().st_size for path in installed.rglob("*") if path.is_file()) < 20_000_000


def test_the_loop_in_the_readme_runs_there_with_what_the_wheel_requires_alone(installed: Path, tmp_path: Path) -> None:
    loop = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/my_run.py").write_text("mine = True\n")
    checks = f"""
import sys
import experiments.my_run
assert experiments.my_run.mine
files = {{name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}}
bought = {{name for name, file in files.items() if "site-packages" in file and {str(installed)!r} not in file and name[0] != "_"}}
assert bought <= {NEEDED}, bought
"""
    (tmp_path / "loop.py").write_text(loop + checks)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "loop.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0.0 <= float(done.stdout) <= 1.0


def test_container_and_hub_card_follow_the_wheel() -> None:
    container = (ROOT / "requirements/openenv.Dockerfile").read_text(encoding="utf-8")
    copied = [name.removesuffix("/") for line in re.findall(r"^COPY (.*) \S+$", container, re.MULTILINE) for name in line.split()]
    assert sorted(copied) == sorted(OURS) and HOSTS["openenv"][1][0] in container
    version = re.search(r"^version = (.*)$", (ROOT / "setup.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    hub = (ROOT / "attune_rl/hub/pyproject.toml").read_text(encoding="utf-8")
    assert version and f'version = "{version[1]}"' in hub and f'"attune-rl=={version[1]}"' in hub
