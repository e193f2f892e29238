"""The learned reader of wording: what it counts, how its weights are stored and fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.preset import NUM_BUCKETS, STEP, Wording, bucket_of, calibrated, pieces, shares


def some_wording(seed: int = 0) -> Wording:
    return Wording(weights=np.random.default_rng(seed).normal(size=NUM_BUCKETS), offset=0.25)


def test_a_text_is_its_characters_and_pairs_of_them():
    assert list(pieces("a bA")) == ["a", "b", "a", "ab", "ba"]
    twice, once = math.log(3), math.log(2)
    size = math.sqrt(twice**2 + 3 * once**2)
    assert shares("aba") == pytest.approx({bucket_of("a"): twice / size} | {bucket_of(p): once / size for p in ("b", "ab", "ba")})


def test_a_longer_text_weighs_no_more_and_what_cannot_be_seen_nothing():
    assert sum(share**2 for share in shares("你真的很勇敢。" * 9).values()) == pytest.approx(1.0)
    assert shares("你\u200b真 好\n") == shares("你真好")
    assert shares("") == {} and some_wording().adds("") == -0.25


def test_the_strongest_pieces_add_up_to_the_term():
    wording, reply = some_wording(), "你真的很勇敢，我佩服你。"
    told = wording.strongest(reply, NUM_BUCKETS)
    assert sum(told.values()) - 0.25 == pytest.approx(wording.adds(reply))
    strongest = max(told, key=lambda piece: abs(told[piece]))
    assert wording.strongest(reply, 1) == {strongest: told[strongest]}


def test_stored_weights_come_back_to_half_a_step():
    wording = some_wording()
    stored = wording.to_dict()
    again = Wording.from_dict(stored)
    assert stored["weights"].isascii() and again.offset == 0.25
    assert np.abs(again.weights - wording.weights).max() <= STEP / 2 + 1e-12
    assert again.to_dict() == stored


def test_committed_weights_weigh_something_and_say_nothing():
    weights = calibrated().wording.weights
    assert weights.shape == (NUM_BUCKETS,) and 0.1 < np.abs(weights).max() < 32
