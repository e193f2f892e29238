"""A sweep of three arms in a catalogue of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import config as catalogue
from experiments.sweep_plan import Sweep, load_sweep

PLAN = """# Two teachers.
base: smoke
settings: {budget: {policy_tokens: 5000}}
seeds: [3, 5]
parallel: 2
arms:
  frontier: {}
  fixed: {teacher: {kind: fixed, strictness: 0.5}}
  replayed: {teacher: {kind: yoked, trace: "{frontier}"}}
contrasts: ["frontier:fixed"]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a sweep named `made` into a catalogue of its own."""
    (tmp_path / "experiments").mkdir()
    smoke = catalogue.path_of("smoke").read_text(encoding="utf-8")
    (tmp_path / "experiments" / "smoke.yaml").write_text(smoke, encoding="utf-8")
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path / "experiments")

    def write(text: str = PLAN) -> Path:
        path = tmp_path / "experiments" / "made.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def planned(*overrides: str) -> Sweep:
    return load_sweep("made", overrides)
