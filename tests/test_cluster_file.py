"""The file for Ray's cluster launcher keeps Ray's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from experiments.config import load

FILE = Path(__file__).parents[1] / "experiments" / "cluster" / "machines.yaml"


def test_the_cluster_file_is_one_that_ray_accepts_and_has_a_worker_for_each_address():
    launcher = pytest.importorskip("ray.autoscaler._private.util")
    config = launcher.prepare_config(yaml.safe_load(FILE.read_text()))
    launcher.validate_config(config)
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    assert all(
        "RAY_USAGE_STATS_ENABLED=0" in commands[-1] for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"])
    )


def test_every_machine_fetches_the_model_that_own_model_names():
    commands = yaml.safe_load(FILE.read_text())["setup_commands"]
    assert f".venv/bin/hf download {load('own_model').policy.model}" in commands[-1]
