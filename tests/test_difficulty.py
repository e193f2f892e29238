"""The three axes and the line through them."""

from __future__ import annotations

import pytest

from simulator.scenario import CHALLENGING, VANILLA, Difficulty


def test_the_line_passes_through_both_presets_and_both_corners():
    assert Difficulty.along(0.0) == Difficulty(strictness=0.0, reserve=0.0, impatience=0.0)
    assert Difficulty.along(0.35) == VANILLA
    assert Difficulty.along(0.75) == CHALLENGING
    assert Difficulty.along(1.0) == Difficulty(strictness=1.0, reserve=1.0, impatience=1.0)


def test_half_way_between_the_presets_every_axis_is_half_way():
    middle = Difficulty.along(0.55)
    assert middle.strictness == pytest.approx(0.55)
    assert middle.reserve == pytest.approx(0.5)
    assert middle.impatience == pytest.approx(0.5)


@pytest.mark.parametrize("d", [-0.01, 1.01, float("nan")])
def test_a_strictness_outside_the_unit_interval_is_refused(d: float):
    with pytest.raises(ValueError, match=r"strictness must be in \[0, 1\]"):
        Difficulty.along(d)


def test_an_axis_outside_the_unit_interval_is_named():
    with pytest.raises(ValueError, match=r"difficulty.reserve must be in \[0, 1\], got 1.5"):
        Difficulty(strictness=0.1, reserve=1.5, impatience=0.0)
