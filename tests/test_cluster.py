"""A run on a Ray cluster of two machines, both on this one: joined by the file of the main job, with a machine lost and one that joins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import ray
from ray.cluster_utils import Cluster
from tiny_policy import save_tiny_policy

from analysis.runs import DIALOGUES, METRICS, read_lines, read_summary
from experiments.config import load
from policy.config import ClusterConfig
from policy.rollout.session import ray_session
from policy.versions import check_same, to_compare

ROOT = Path(__file__).resolve().parent.parent
MACHINE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False}
NOTICES = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""A lost machine is noticed after two seconds."""


@pytest.fixture
def cluster():
    """Two machines with room for an engine each."""
    if ray.is_initialized():
        ray.shutdown()
    found = Cluster(initialize_head=True, head_node_args={**MACHINE, "_system_config": NOTICES})
    try:
        yield found
    finally:
        found.shutdown()


def waits_for(condition, *, process, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.engine
def test_the_main_job_on_two_machines_outlives_the_loss_of_one_and_takes_in_another(cluster, tmp_path):
    """Its file is unchanged but for a small model and few dialogues. Takes a minute: three engines start."""
    lost = cluster.add_node(**MACHINE)
    model, folder, steps = save_tiny_policy(tmp_path / "policy", hidden=64, layers=1), tmp_path / "adaptive_curriculum" / "a", 4
    settings = {"cluster.address": "auto", "policy.model": model, "budget.steps": steps, "runs": tmp_path, "name": "a"}
    settings |= {"evaluation.num_scenarios": 1, "evaluation.during_scenarios": 1, "evaluation.strictness": "[0.5]"}
    settings |= {"evaluation.listener": "none", "policy.engine": "hf", "groups_per_step": 8}
    words = [sys.executable, "-m", "experiments", "adaptive_curriculum", *(f"{name}={value}" for name, value in settings.items())]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log"
    with log.open("w") as output:
        run = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        waits_for(lambda: (folder / METRICS).is_file() and read_lines(folder / METRICS), process=run)
        cluster.remove_node(lost, allow_graceful=False)
        cluster.add_node(**MACHINE)
        assert run.wait(300) == 0, log.read_text()
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)
            run.wait()
    assert "rollout worker" in log.read_text() and "is restarted" in log.read_text()
    # Each dialogue of a step is there once, whichever machine played it.
    played = Counter((line["step"], line["uid"], line["sibling"]) for line in read_lines(folder / DIALOGUES) if line["kind"] == "train")
    assert set(played.values()) == {1} and len(played) == steps * settings["groups_per_step"] * load("adaptive_curriculum").group_size
    assert read_summary(folder / "summary.json")["steps"] == steps


def test_auto_without_a_cluster_is_refused(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("policy.rollout.session.get_ray_address_from_environment", MagicMock(side_effect=ConnectionError("none")))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(ValueError, match=r"cluster\.address must be that of a running Ray cluster, got 'auto'"),
        ray_session(ClusterConfig(address="auto"), num_cpus=1, folder=Path("/tmp")),
    ):
        pass


def test_a_machine_with_other_packages_or_other_code_is_refused_by_name():
    here = to_compare()
    check_same(here)
    with pytest.raises(
        ValueError, match=r"^every machine with an engine must have the driver's packages and code, got torch .* and not 0\.1 on "
    ):
        check_same({**here, "torch": "0.1"})
    with pytest.raises(ValueError, match=rf"got vllm2 \(missing\) and not 7, attune {here['attune']} and not abc on .*same commit there"):
        check_same({"vllm2": "7", **here, "attune": "abc"})
