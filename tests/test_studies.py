"""Each study's experiments are found, register what their settings name, and can be planned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_policy import save_tiny_policy

from experiments.__main__ import main
from experiments.config import STUDIES, experiments

PLANS = sorted(path.stem for path in STUDIES.glob("*/*.yaml"))


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_of_each_study_is_said_and_nothing_is_started(name: str, tmp_path: Path, capsys):
    # The one with a language model would look for it on the Hub.
    words = [f"policy.model={save_tiny_policy(tmp_path / 'tiny')}"] if name == "small_comparison" else []
    capsys.readouterr()
    assert main([name, "--dry-run", f"runs={tmp_path / 'runs'}", *words]) == 0
    assert name in capsys.readouterr().out and name in experiments() and not (tmp_path / "runs").exists()


def test_a_run_imports_the_study_of_its_experiment_and_no_other():
    script = "import sys; from experiments.__main__ import main; code = main(['{}', '--dry-run', 'runs=none'])\n"
    script += "print(code, sorted(name for name in sys.modules if name.count('.') == 1 and name.startswith('studies.')), file=sys.stderr)"
    for name, imported in {"smoke": [], "noise": ["studies.noise"]}.items():
        done = subprocess.run([sys.executable, "-c", script.format(name)], capture_output=True, text=True, timeout=300)
        assert done.stderr.strip().endswith(f"0 {imported}")
