"""Recorded turns as a table, and a ridge regression on it: what the change of emotion hangs on, with the user's state as a control.

Source: the adjusted effects of the SAGE release (arXiv 2505.02847) are estimated the same way, with state, agent and profile held fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from simulator.dialogue import DELIGHTED_AT, START_EMOTION, Dialogue, Speaker
from simulator.lexicon import lexicon
from simulator.preset import Momentum, SageNumbers, Wording, signs
from simulator.scenario import HiddenIntention, PersonaType

Floats = NDArray[np.float64]

LEAST_SPREAD = 0.05
"""Standard deviation that a column counts with at least, so that what is seen in a few turns gets no large weight."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How strongly each group of weights is held near 0: shares of the number of turns, on standardised columns; `wording` apart."""

    signs: float = 0.5
    by_intention: float = 3.0
    intention: float = 1.0
    persona: float = 0.1
    turn: float = 0.05
    state: float = 0.003
    """Of the last change and the emotion met: a control, left out of the scores."""
    simulator: float = 0.001
    """Of which simulated user it was: another control."""
    wording: float = 1.0
    """Added to the diagonal of the likeness of replies, in which a reply is to itself 1."""
    first_weight: float = 3.0
    """How often a first turn counts: there the user's mood cannot have reached the reply."""
    general: tuple[str, ...] = ("praise", "listening", "suggestion", "referral")
    """Strategies with an effect under every hidden intention; the others have one only under each, held near 0."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """D dialogues of at most T answered replies; what is beyond a dialogue's end is 0."""

    names: tuple[str, ...]
    """Of the columns of `figures`."""
    figures: Floats
    """[D, T, F]"""
    changes: Floats
    """[D, T] recorded"""
    emotions: Floats
    """[D, T] that the replies met, as recorded"""
    is_turn: NDArray[np.bool_]
    """[D, T]"""
    intentions: NDArray[np.int64]
    """[D] places in `HiddenIntention`"""
    personas: NDArray[np.int64]
    """[D] places in `PersonaType`"""
    simulators: NDArray[np.int64]
    """[D]"""
    pieces: Any
    """[N, NUM_BUCKETS] sparse: the shares of each of the N answered replies, dialogue by dialogue"""

    @property
    def places(self) -> NDArray[np.int64]:
        """[D, T] the row of `pieces` that is a turn's reply; without meaning where there is no turn"""
        return np.cumsum(self.is_turn).reshape(self.is_turn.shape) - 1

    @cached_property
    def likeness(self) -> Floats:
        """[N, N] cosines of the replies' wordings"""
        return np.asarray((self.pieces @ self.pieces.T).todense())

    @property
    def last(self) -> Floats:
        """[D, T] the change before each reply, 0 before the first"""
        return np.concatenate([np.zeros((len(self.changes), 1)), self.changes[:, :-1]], axis=1)


def table_of(dialogues: Sequence[tuple[str, Dialogue]]) -> Table:
    """Reads every reply.

    Args:
        dialogues: each with its simulator's name.
    """
    rows = [[signs(reply, d.scenario, d.replies()[:index]) for index, reply in enumerate(d.replies())] for _, d in dialogues]
    names = tuple(sorted({name for row in rows for figures in row for name in figures}))
    changes = [[turn.change for turn in d.turns if turn.change is not None] for _, d in dialogues]
    emotions = [[turn.emotion or 0 for turn in d.turns if turn.speaker is Speaker.USER] for _, d in dialogues]
    shape = (len(dialogues), max(map(len, changes), default=0))
    table = Table(
        names=names,
        figures=np.zeros((*shape, len(names))),
        changes=np.zeros(shape),
        emotions=np.full(shape, float(START_EMOTION)),
        is_turn=np.zeros(shape, bool),
        intentions=_places([d.scenario.family.intention for _, d in dialogues], list(HiddenIntention)),
        personas=_places([d.scenario.family.persona for _, d in dialogues], list(PersonaType)),
        simulators=_places([name for name, _ in dialogues], sorted({name for name, _ in dialogues})),
        pieces=_pieces([reply for (_, d), made in zip(dialogues, changes, strict=True) for reply in d.replies()[: len(made)]]),
    )
    for place, made in enumerate(changes):
        table.changes[place, : len(made)] = made
        table.emotions[place, : len(made)] = emotions[place][: len(made)]
        table.is_turn[place, : len(made)] = True
        for turn in range(len(made)):
            table.figures[place, turn] = [rows[place][turn].get(name, 0.0) for name in names]
    return table


def _pieces(replies: Sequence[str]) -> csr_matrix:
    found = [Wording.shares(reply) for reply in replies]
    ends = np.cumsum([0, *map(len, found)])
    buckets = np.array([bucket for reply in found for bucket in reply], dtype=np.int64)
    share = np.array([value for reply in found for value in reply.values()], dtype=np.float64)
    return csr_matrix((share, buckets, ends), shape=(len(found), Wording.NUM_BUCKETS))


def regress(table: Table, rows: NDArray[np.bool_], recipe: Recipe) -> SageNumbers:
    """Weights of the score, without wording, momentum and thresholds; scores have mean 0 and standard deviation 1 over these turns.

    Args:
        rows: [D] which dialogues are used.
    """
    blocks = _blocks(table, recipe)
    taken = table.is_turn & rows[:, None]
    x_NP = np.concatenate([columns for _, columns, _ in blocks], axis=-1)[taken]
    y_N = table.changes[taken]
    weight_N = np.where(np.broadcast_to(np.arange(taken.shape[1]) == 0, taken.shape)[taken], recipe.first_weight, 1.0)
    penalty_P = np.concatenate([np.full(columns.shape[-1], penalty) for _, columns, penalty in blocks])
    mean_P, spread_P = np.average(x_NP, axis=0, weights=weight_N), np.maximum(x_NP.std(axis=0), LEAST_SPREAD)
    z_NP = (x_NP - mean_P) / spread_P
    gram = (z_NP * weight_N[:, None]).T @ z_NP + np.diag(penalty_P * len(y_N))
    beta_P = np.linalg.solve(gram, (z_NP * weight_N[:, None]).T @ (y_N - np.average(y_N, weights=weight_N))) / spread_P
    found, start = {}, 0
    for name, columns, _ in blocks:
        found[name] = slice(start, start := start + columns.shape[-1])
    kept = np.concatenate([np.arange(found[name].start, found[name].stop) for name in found if name not in ("state", "simulator")])
    score_N = x_NP[:, kept] @ beta_P[kept]
    return _numbers(table, recipe, {name: beta_P[part] / score_N.std() for name, part in found.items()}, -score_N.mean() / score_N.std())


def _blocks(table: Table, recipe: Recipe) -> list[tuple[str, Floats, float]]:
    """Groups of columns, each [D, T, *], with what holds them near 0."""
    num, turns = table.changes.shape
    intentions = np.eye(len(HiddenIntention))[table.intentions]
    heard = table.figures[:, :, [table.names.index(name) for name in _strategies(table)]]
    crossed = (heard[:, :, None, :] * intentions[:, None, :, None]).reshape(num, turns, -1)
    count = np.broadcast_to(np.arange(turns, dtype=float), (num, turns))

    def everywhere(columns: Floats) -> Floats:
        return np.repeat(columns[:, None], turns, axis=1)

    return [
        ("signs", table.figures[:, :, [table.names.index(name) for name in _general(table, recipe)]], recipe.signs),
        ("by_intention", crossed, recipe.by_intention),
        ("intention", everywhere(intentions), recipe.intention),
        ("persona", everywhere(np.eye(len(PersonaType))[table.personas]), recipe.persona),
        ("turn", np.stack([count == 0, count], axis=-1).astype(float), recipe.turn),
        ("state", _state(table), recipe.state),
        ("simulator", everywhere(np.eye(table.simulators.max() + 1)[table.simulators]), recipe.simulator),
    ]


def _state(table: Table) -> Floats:
    low, high = np.minimum(0.0, table.emotions - 25), np.maximum(0.0, table.emotions - 70)
    return np.stack([table.last / 10, (table.emotions - START_EMOTION) / 30, low / 15, high / (DELIGHTED_AT - 70)], axis=-1)


def _strategies(table: Table) -> list[str]:
    return [pattern.strategy for pattern in lexicon("zh").patterns if pattern.strategy in table.names]


def _general(table: Table, recipe: Recipe) -> list[str]:
    strategies = _strategies(table)
    return [name for name in table.names if name not in strategies or name in recipe.general]


def _numbers(table: Table, recipe: Recipe, weights: dict[str, Floats], offset: float) -> SageNumbers:
    strategies = _strategies(table)
    crossed = weights["by_intention"].reshape(len(HiddenIntention), len(strategies))
    return SageNumbers(
        offset=float(offset),
        signs=_named(_general(table, recipe), weights["signs"]),
        by_intention={intention: _named(strategies, row) for intention, row in zip(HiddenIntention, crossed, strict=True)},
        intention=_named(HiddenIntention, weights["intention"]),
        persona=_named(PersonaType, weights["persona"]),
        first=float(weights["turn"][0]),
        turn=float(weights["turn"][1]),
        wording=Wording.silent(),
        momentum=Momentum(last=0.0, emotion=0.0),
        first_thresholds=(-1.0, 0.0, 1.0),
        thresholds=(-1.0, 0.0, 1.0),
    )


def scores(table: Table, numbers: SageNumbers) -> Floats:
    """[D, T] the score of every reply; the same as the sums of `SageNumbers.terms`."""
    signs_F = np.array([numbers.signs.get(name, 0.0) for name in table.names])
    by_IF = np.array([[numbers.by_intention[i].get(name, 0.0) for name in table.names] for i in HiddenIntention])
    of_family = np.array([numbers.intention[i] for i in HiddenIntention])[table.intentions]
    of_family = of_family + np.array([numbers.persona[p] for p in PersonaType])[table.personas]
    turns = np.arange(table.changes.shape[1])
    of_turn = numbers.turn * turns + numbers.first * (turns == 0)
    weights_DF = signs_F + by_IF[table.intentions]
    named = np.einsum("dtf,df->dt", table.figures, weights_DF) + of_family[:, None] + of_turn + numbers.offset
    worded = table.pieces @ numbers.wording.weights - numbers.wording.offset
    return named + np.where(table.is_turn & (turns > 0), worded[table.places], 0.0)


def _named(names: Any, values: Floats) -> dict[Any, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _places(values: Sequence[Any], known: Sequence[Any]) -> NDArray[np.int64]:
    return np.array([known.index(value) for value in values], dtype=np.int64)
