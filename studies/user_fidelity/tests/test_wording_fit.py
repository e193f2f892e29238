"""The weights of the wording: the ridge regression that they come from, and that the user scores as the fit does."""

from __future__ import annotations

import numpy as np
import pytest
from native_files import write_folder

from simulator.preset import signs
from studies.user_fidelity.fit import Recorded, read
from studies.user_fidelity.regression import Recipe, regress, scores
from studies.user_fidelity.wording_fit import regress_all, regress_wording


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder, profiles = write_folder(tmp_path_factory.mktemp("native"), num_profiles=9)
    return read(folder, profiles)


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
            assert ("wording" in terms) == (index > 0)


def test_without_a_later_reply_there_is_no_wording(recorded):
    nobody = np.zeros(len(recorded.dialogues), bool)
    numbers = regress(recorded.table, ~nobody, Recipe())
    silent = regress_wording(recorded.table, nobody, numbers, Recipe())
    assert not silent.weights.any() and silent.adds("你好") == 0.0
