"""The commands of experiments: what they print at once, how they end, and what they do not import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.config import experiments
from experiments.errors import ConfigError
from simulator.files import ExitCode, ended

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "ray", "vllm", "tensorboard", "matplotlib")
GPU_OR_HUB = {"own_model", "small_model", "small_comparison"}
"""Experiments for which a dry run looks for a GPU or for a model of the Hub."""
ON_ANY_MACHINE = ["policy.model=embedded", "learner.device=cpu", "cluster.gpus_per_engine=0"]


def test_without_a_name_the_experiments_are_listed(capsys):
    assert main([]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"adaptive_curriculum", "smoke"} <= set(names)


def test_an_unknown_experiment_is_refused_with_the_list(capsys):
    assert main(["adaptiv"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and "adaptive_curriculum" in err


def test_a_dry_run_prints_the_plan_and_the_settings_wherever_the_option_is_and_writes_nothing(capsys, tmp_path):
    assert main(["smoke", f"runs={tmp_path}", "--dry-run", "name=a", "teacher.kind=fixed", "seed=3"]) == 0
    out = capsys.readouterr().out
    assert f"would write {tmp_path}/smoke/a" in out and "fixed teacher" in out
    assert "policy_tokens: 1000000" in out and "seed: 3" in out and not list(tmp_path.iterdir())


PLAN_ALL = """
import sys
from experiments.__main__ import main
assert main(['smoke', 'learner.lr=-1']) == 2
for name in {names!r}:
    assert main([name, '--dry-run', 'runs=none', *({instead!r} if name in {elsewhere!r} else [])]) == 0, name
    heavy = set({heavy!r}) & set(sys.modules)
    assert not heavy, (name, heavy)
    print(name, sorted(module for module in sys.modules if module.startswith('studies.') and module.count('.') == 1), file=sys.stderr)
"""


def test_planning_any_experiment_imports_nothing_heavy_no_other_study_and_writes_nothing(tmp_path):
    """A process of its own: 4 s, because all modules must be new."""
    names = sorted(experiments(), key=lambda name: (name != "smoke", name != "noise", name))
    program = PLAN_ALL.format(names=names, instead=ON_ANY_MACHINE, elsewhere=GPU_OR_HUB, heavy=HEAVY)
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "smoke []\n" in done.stderr and "noise ['studies.noise']\n" in done.stderr and list(tmp_path.iterdir()) == []


def test_a_reader_who_has_seen_enough_ends_the_list_without_a_complaint():
    words = f"{sys.executable} -m experiments | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_polite_kill_before_a_run_removes_what_was_half_done(tmp_path, capsys):
    def half() -> int:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert ended(half, refused=ConfigError, if_interrupted="nothing was written") == ExitCode.INTERRUPTED
    assert not list(tmp_path.iterdir()) and capsys.readouterr().err == "nothing was written\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("command", ["evaluate", "reliability"])
def test_the_commands_for_agents_have_help_of_their_own(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: python -m experiments {command}" in capsys.readouterr().out
