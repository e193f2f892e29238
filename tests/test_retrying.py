"""When to ask again: pauses, Retry-After, the budget of retries and the circuit, on a clock of their own."""

from __future__ import annotations

import random

import pytest

from simulator.llm.client import Circuit, RetryBudget, backoff_s, retry_after_s


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pauses_double_up_to_a_limit_and_are_spread_over_the_upper_half():
    for failures, ceiling in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5000, 3.0)):
        drawn = [backoff_s(failures, first_s=0.5, longest_s=3.0, rng=random.Random(i)) for i in range(200)]
        assert ceiling / 2 <= min(drawn) < 0.55 * ceiling and 0.95 * ceiling < max(drawn) <= ceiling


def test_the_same_generator_gives_the_same_pauses():
    assert [backoff_s(3, first_s=1, longest_s=9, rng=random.Random(7)) for _ in range(2)] == [
        backoff_s(3, first_s=1, longest_s=9, rng=random.Random(7)) for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert retry_after_s(value, now=lambda: 40.0) == seconds


def test_retries_run_out_and_are_earned_by_successes():
    budget = RetryBudget(0.5)
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend() and not budget.spend()


def test_a_stock_of_retries_is_bounded():
    budget = RetryBudget(0.2)
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(100)) == 20


def opened(clock: Clock) -> Circuit:
    circuit = Circuit(failures=2, pause_s=4.0, clock=clock)
    for _ in range(2):
        circuit.begin()
        circuit.failed()
    return circuit


def test_a_circuit_opens_after_failures_in_a_row_only():
    circuit = Circuit(failures=2, pause_s=4.0, clock=Clock())
    for happened in (circuit.failed, circuit.succeeded, circuit.failed):
        circuit.begin()
        happened()
    assert circuit.wait_s() == 0.0
    circuit.failed()
    assert circuit.wait_s() == 4.0


def test_one_probe_goes_out_after_the_pause_and_closes_it():
    clock = Clock()
    circuit = opened(clock)
    clock.now = 4.0
    assert circuit.wait_s() == 0.0
    circuit.begin()
    assert circuit.wait_s() == 1.0
    circuit.succeeded()
    assert circuit.wait_s() == 0.0
    circuit.failed()
    assert circuit.wait_s() == 0.0


def test_failed_probes_lengthen_the_pause_up_to_eightfold():
    clock = Clock()
    circuit = opened(clock)
    pauses = []
    for _ in range(5):
        clock.now += circuit.wait_s()
        circuit.begin()
        circuit.failed()
        pauses.append(circuit.wait_s())
    assert pauses == [8.0, 16.0, 32.0, 32.0, 32.0]


def test_an_abandoned_probe_makes_room_for_another():
    clock = Clock()
    circuit = opened(clock)
    clock.now = 4.0
    circuit.begin()
    circuit.abandoned()
    assert circuit.wait_s() == 0.0
