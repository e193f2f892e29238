"""The benchmark of slow users: its delays, its lockstep, and one tiny real round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_policy import save_tiny_policy

from experiments.benchmarks import slow_simulator
from experiments.benchmarks.figures import Settings
from experiments.benchmarks.slow_simulator import Played, delay_of, serial_replies_per_s
from policy.config import EngineKind


def test_delays_are_log_normal_and_the_same_for_the_same_turn() -> None:
    delays = [delay_of(f"/{i}") for i in range(20_000)]
    assert delays[:10] == [delay_of(f"/{i}") for i in range(10)]
    assert np.median(delays) == pytest.approx(0.15, rel=0.03) and np.quantile(delays, 0.99) == pytest.approx(1.2, rel=0.06)


def test_the_loop_takes_lockstep_s_time_in_the_engines_and_a_call_for_each_reply() -> None:
    lockstep = Played(num_replies=100, seconds=9.0, engine_s=5.0)
    four = Played(num_replies=10, seconds=4.0, engine_s=1.0, user_s=2.0)
    assert serial_replies_per_s(lockstep, four) == pytest.approx(1.0 / (0.05 + 0.2))


@pytest.mark.engine
def test_a_round_measures_both_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    for name, value in (("NUM_DIALOGUES", 6), ("NUM_SERIAL", 2), ("NUM_ENGINES", 1), ("MEDIAN_S", 0.01), ("P99_S", 0.05)):
        monkeypatch.setattr(slow_simulator, name, value)
    found = slow_simulator.measure(Settings(repeats=1, model=str(folder), engine=EngineKind.HF))
    assert found.keys() == {"slow_simulator.vs_serial", "slow_simulator.vs_lockstep"}
    assert all(number.median > 0.0 and number.repeats == 1 for number in found.values())
