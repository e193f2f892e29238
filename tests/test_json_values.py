"""Figures as JSON can say them."""

from __future__ import annotations

import math

import numpy as np

from simulator.files import jsonable


def test_what_json_cannot_say_is_none_however_deep_and_numbers_of_numpy_are_numbers():
    assert jsonable({"a": {"b": math.nan}, 1: (1, [np.int64(2), np.float32(0.5), np.nan, -math.inf, None, True, "x"])}) == {
        "a": {"b": None},
        "1": [1, [2, 0.5, None, None, None, True, "x"]],
    }
