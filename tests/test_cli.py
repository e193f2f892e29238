"""Commands: what they print at once, how they end, what they do not import, and the words of their refusals."""

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
from experiments.agents.agent import of_agent
from experiments.config import experiments
from experiments.errors import ConfigError
from simulator.files import ExitCode, ended, read_jsonl
from simulator.options import in_options, of_judge

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "ray", "vllm", "tensorboard", "matplotlib")
STATISTICS = ("scipy", "pandas")
"""Some teachers need them, the plan of a sweep does not."""
FIRST = ("smoke", "noise", "fixed_vs_adaptive")
ON_ANY_MACHINE = ["policy.model=embedded", "learner.device=cpu", "cluster.gpus_per_engine=0"]
INSTEAD = dict.fromkeys(("own_model", "rlver_7b"), ON_ANY_MACHINE)
INSTEAD |= {name: [*ON_ANY_MACHINE, "simulator.listener=rule", "evaluation.listener=none"] for name in ("qwen_0p5b", "qwen_1p5b_lora")}
OF_SMALL_MODEL = ["policy.sft.data=''", "policy.system_prompt=''", "callbacks=null"]
INSTEAD |= {name: [*INSTEAD["qwen_0p5b"], *OF_SMALL_MODEL] for name in ("small_model", "small_comparison")}
"""Overrides for experiments whose dry run looks for a GPU, for a model of the Hub or for the encoder."""


def test_without_a_name_the_experiments_are_listed_with_their_ideas(capsys):
    assert main([]) == 0
    ideas = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"adaptive_curriculum", "smoke"} <= set(ideas) and ideas["smoke"].endswith(".")


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
    assert main([name, '--dry-run', 'runs=none', *{instead!r}.get(name, [])]) == 0, name
    heavy = set({heavy!r} + {statistics!r} * (name in {first!r})) & set(sys.modules)
    assert not heavy, (name, heavy)
    print(name, sorted(module for module in sys.modules if module.startswith('studies.') and module.count('.') == 1), file=sys.stderr)
"""


def test_planning_any_experiment_imports_nothing_heavy_no_other_study_and_writes_nothing(tmp_path):
    """A process of its own: 4 s, because all modules must be new."""
    names = dict.fromkeys((*FIRST, *experiments()))
    facts = {"instead": INSTEAD, "heavy": HEAVY, "statistics": STATISTICS, "first": FIRST}
    program, environment = PLAN_ALL.format(names=list(names), **facts), {"PYTHONPATH": str(ROOT), "PATH": ""}
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


def test_an_array_or_a_pointer_in_the_place_of_lines_is_called_that(tmp_path):
    path = tmp_path / "profiles.jsonl"
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    for content, said in (('[{"a": 1}]', "a JSON array"), ('\ufeff[\n {"a": 1}\n]', "a JSON array"), (pointer, "a Git LFS pointer")):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=f"must be JSON Lines.*got {said}"):
            list(read_jsonl(path, what="a profile"))


def test_a_command_blames_no_setting_that_it_does_not_have():
    said = "retries must stay within simulator.retry_share=0.2 of successes; simulator.timeout_s=60"
    assert of_agent(said) == "retries must stay within the retry share of 0.2, which no option sets, of successes; --timeout=60"
    assert of_judge("simulator.api_key_env must be set") == "--judge-key-env must be set"
    assert in_options("simulator.kind must be another", "--user-") == "the kind must be another"
