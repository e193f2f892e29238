"""Weights of the wording of replies after the first: a kernel ridge regression of what the named figures leave of the recorded changes.

The user's state is no control here. How an agent words a later reply also tells to what mood it was an answer, and that is kept: a
user that goes on from its own state has nowhere else to learn that it has drifted from the recorded one. A first reply answers an
opening line that all agents were given, so its wording is left to the named figures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.preset import SageNumbers, Wording
from studies.user_fidelity.regression import Recipe, Table, regress, scores


def regress_all(table: Table, rows: NDArray[np.bool_], recipe: Recipe) -> SageNumbers:
    """`regress`, and then the wording.

    Args:
        rows: [D] which dialogues are used.
    """
    numbers = regress(table, rows, recipe)
    return replace(numbers, wording=regress_wording(table, rows, numbers, recipe))


def regress_wording(table: Table, rows: NDArray[np.bool_], numbers: SageNumbers, recipe: Recipe) -> Wording:
    """The wording in units of the named figures' score; silent where there is too little, or that score is worth nothing.

    The score and which simulated user it was stand beside the wording and are not held near 0.
    """
    is_late = table.is_turn & rows[:, None]
    is_late[:, 0] = False
    if not is_late.any():
        return Wording.silent()
    place_N = table.places[is_late]
    of_simulator = np.eye(table.simulators.max() + 1)[table.simulators[np.nonzero(is_late)[0]]]
    beside_NC = np.column_stack([scores(table, numbers)[is_late], of_simulator[:, of_simulator.any(axis=0)]])
    kernel_NN = table.likeness[np.ix_(place_N, place_N)] + recipe.wording * np.eye(len(place_N))
    solved = np.linalg.solve(kernel_NN, np.column_stack([table.changes[is_late], beside_NC]))
    worth = np.linalg.lstsq(beside_NC.T @ solved[:, 1:], beside_NC.T @ solved[:, 0], rcond=None)[0]
    if worth[0] <= 0:
        return Wording.silent()
    pieces_NB = table.pieces[place_N]
    weights_B = pieces_NB.T @ (solved[:, 0] - solved[:, 1:] @ worth) / worth[0]
    return Wording(weights=weights_B, offset=float(np.mean(pieces_NB @ weights_B)))
