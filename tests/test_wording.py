"""The learned reader of wording: what it counts, how its weights are stored and fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native_files import write_folder

from simulator.fit import Recorded, read
from simulator.regression import Recipe, regress, scores
from simulator.sage_emotion import WORDING, calibrated
from simulator.signs import signs
from simulator.wording import NUM_BUCKETS, STEP, Wording, bucket_of, pieces, shares
from simulator.wording_fit import regress_all, regress_wording


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder, profiles = write_folder(tmp_path_factory.mktemp("native"), num_profiles=9)
    return read(folder, profiles)


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


def test_the_fit_is_the_ridge_regression_it_is_said_to_be(recorded):
    table, rows, recipe = recorded.table, np.arange(len(recorded.dialogues)) % 3 > 0, Recipe()
    numbers = regress(table, rows, recipe)
    wording = regress_wording(table, rows, numbers, recipe)
    late = table.is_turn & rows[:, None] & (np.arange(table.is_turn.shape[1]) > 0)
    x_NB = np.array([table.pieces[place].toarray()[0] for place in table.places[late]])
    simulators = np.eye(2)[table.simulators[np.nonzero(late)[0]]]
    beside_NC = np.column_stack([scores(table, numbers)[late], simulators])
    seen = x_NB.any(axis=0)
    columns = np.column_stack([x_NB[:, seen], beside_NC])
    penalty = np.diag([recipe.wording] * int(seen.sum()) + [0.0] * beside_NC.shape[1])
    direct = np.linalg.solve(columns.T @ columns + penalty, columns.T @ table.changes[late])
    worth = direct[seen.sum()]
    assert worth > 0
    assert wording.weights[seen] == pytest.approx(direct[: seen.sum()] / worth, abs=1e-6)
    assert not wording.weights[~seen].any()
    assert wording.offset == pytest.approx(np.mean(x_NB @ wording.weights))


def test_the_table_scores_wording_as_the_user_does(recorded):
    numbers = regress_all(recorded.table, np.ones(len(recorded.dialogues), bool), Recipe())
    found = scores(recorded.table, numbers)
    for place in (0, 7, len(recorded.dialogues) - 1):
        dialogue = recorded.dialogues[place]
        for index in np.flatnonzero(recorded.table.is_turn[place]):
            reply = dialogue.replies()[index]
            terms = numbers.terms(signs(reply, dialogue.scenario, dialogue.replies()[:index]), dialogue.scenario, index, reply)
            assert sum(terms.values()) == pytest.approx(found[place, index])
            assert (WORDING in terms) == (index > 0)


def test_without_a_later_reply_there_is_no_wording(recorded):
    nobody = np.zeros(len(recorded.dialogues), bool)
    numbers = regress(recorded.table, ~nobody, Recipe())
    silent = regress_wording(recorded.table, nobody, numbers, Recipe())
    assert not silent.weights.any() and silent.adds("你好") == 0.0


def test_committed_weights_weigh_something_and_say_nothing():
    weights = calibrated().wording.weights
    assert weights.shape == (NUM_BUCKETS,) and 0.1 < np.abs(weights).max() < 32
