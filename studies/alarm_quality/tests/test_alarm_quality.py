"""Alarms judged after the fact: labels, counts and lead times by hand."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from curriculum.collapse.history import CollapseConfig
from studies.alarm_quality.quality import LABELS, Course, Share, Verdict, collapse_onset, first_rings, is_undecided, judge, quality


def course(num_steps: int = 60, *, same: frozenset[str] = frozenset(), **series) -> Course:
    """A run whose indicators are functions of the step."""
    steps = list(range(num_steps))
    return Course(name="run", steps=steps, values=[{name: f(step) for name, f in series.items()} for step in steps], same=same)


def judged(series: Course, label: str = "whole or a third") -> Verdict:
    return judge(series, CollapseConfig(), LABELS)[label]


def verdict(onset: int | None, *, undecided: bool = False, **first: int) -> Verdict:
    return Verdict(name="run", onset=onset, first=first, undecided=undecided)


def test_collapse_begins_where_a_score_stays_low_for_twenty_updates():
    fallen = [0.5] * 10 + [0.3] * 30
    assert collapse_onset(range(40), fallen) == 10
    assert collapse_onset(range(29), fallen[:29]) is None
    assert collapse_onset(range(30), fallen[:30]) == 10
    assert collapse_onset(range(50), [0.5] * 10 + [0.3] * 19 + [0.45] + [0.3] * 20) == 30


def test_a_fall_must_be_large_in_share_and_in_size():
    assert collapse_onset(range(40), [0.5] * 10 + [0.41] * 30) is None
    assert collapse_onset(range(40), [0.1] * 10 + [0.06] * 30) is None
    assert collapse_onset(range(22), [0.5, 1.0, *[0.79] * 20]) == 2
    assert collapse_onset(range(41), [0.5, 1.0, *[0.79] * 19, 0.81, *[0.79] * 19]) is None


def test_a_score_holds_until_it_is_taken_again():
    # Evaluations at 5, 10, ...: low from 15 on, so twenty updates are over with that at 35.
    steps, scores = list(range(5, 45, 5)), [0.6, 0.6] + [0.2] * 6
    assert collapse_onset(steps, scores) == 15
    assert collapse_onset(steps[:6], scores[:6]) is None


def test_a_run_that_trades_the_hard_for_the_easy_has_collapsed_in_a_third():
    traded = course(probe_reward=lambda step: 0.4 + 0.001 * step, probe_hard=lambda step: 0.5 if step < 20 else 0.1)
    assert judged(traded).onset == 20 and judged(traded, "whole").onset is None


def test_a_run_that_ends_low_before_the_label_can_be_given_is_undecided():
    fallen = [0.5] * 10 + [0.3] * 19
    assert is_undecided(range(29), fallen) and collapse_onset(range(29), fallen) is None
    assert not is_undecided(range(30), [*fallen, 0.3])  # collapsed
    assert not is_undecided(range(30), [*fallen, 0.45])  # recovered
    assert not is_undecided(range(10), fallen[:10]) and not is_undecided([], [])
    assert not is_undecided(range(60), [0.5] * 10 + [0.3] * 20 + [0.5] * 20 + [0.3] * 10)  # collapsed before
    # Evaluations at 5, 10, ..., 30: low from 15 on, sixteen updates by the last one.
    assert is_undecided(range(5, 35, 5), [0.6, 0.6, 0.2, 0.2, 0.2, 0.2])


def test_a_run_is_undecided_without_a_panel_or_while_a_third_is_low_unless_another_has_collapsed():
    assert judged(Course(name="no panel", steps=[1, 2], values=[{"entropy": 1.0}, {"entropy": 0.1}])).undecided

    def late(step: int) -> float:
        return 0.5 if step < 50 else 0.1

    third = course(probe_reward=lambda step: 0.5, probe_hard=late)
    assert judged(third).undecided and not judged(third, "whole").undecided
    assert not judged(course(probe_reward=lambda step: 0.5 if step < 20 else 0.1, probe_hard=late)).undecided


def test_replay_finds_the_first_ring():
    dying = course(entropy=lambda step: 1.0 if step < 20 else 0.0)
    config = CollapseConfig(smoothing=1.0, patience=3)
    assert first_rings(dying, config)["entropy_spent"] == 22
    assert first_rings(dying, CollapseConfig(smoothing=1.0, patience=6))["entropy_spent"] == 25


def test_one_number_under_two_names_is_one_piece_of_evidence():
    def falling(step: int) -> float:
        return 1.0 if step < 20 else 0.01

    config = CollapseConfig(smoothing=1.0)
    assert "collapse" in first_rings(course(entropy=falling, strategy_entropy=falling), config)
    rings = first_rings(course(entropy=falling, strategy_entropy=falling, same=frozenset({"strategy_entropy"})), config)
    assert "collapse" not in rings and rings["strategies_narrowed"] == 24
    found = judge(course(entropy=falling, probe_reward=falling, same=frozenset({"strategy_entropy"})), config, LABELS)["whole"]
    assert found.onset == 20 and found.first["collapse"] == 24


def test_precision_recall_and_lead_by_hand():
    runs = [
        verdict(100, bell=60),  # forty updates ahead
        verdict(100, bell=110),  # late, but before the label could be given
        verdict(100, bell=130),  # too late to count in recall, and no false alarm
        verdict(100),
        verdict(None, bell=10),  # false
        verdict(None),
    ]
    found = quality("bell", runs)
    assert (found.precision.num_hits, found.precision.num_all) == (3, 4)
    assert (found.recall.num_hits, found.recall.num_all) == (2, 4)
    assert found.leads == [40, -10] and found.median_lead == 15.0
    undecided = [verdict(None, undecided=True, bell=10), verdict(None, undecided=True)]
    assert quality("bell", [*runs, *undecided]) == found
    silent = quality("whistle", runs)
    assert math.isnan(silent.precision.value) and silent.recall.value == 0.0 and math.isnan(silent.median_lead)


def test_wilson_intervals_by_hand():
    exact = binomtest(3, 10).proportion_ci(method="wilson")
    assert Share(num_hits=3, num_all=10).interval == pytest.approx((exact.low, exact.high), abs=1e-4)
    assert Share(num_hits=0, num_all=0).interval == (0.0, 1.0)
    assert Share(num_hits=8, num_all=8).interval == pytest.approx((8 / (8 + 1.96**2), 1.0))
