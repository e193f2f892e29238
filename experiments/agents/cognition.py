"""Which support strategies an agent uses, and where they put it on the plane of social cognition.

Source: the axes are RLVER's (arXiv 2507.03112), who have a model place agents on them; the formulas are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.stats import Estimate
from curriculum.collapse.indicators import distinct, own_overlap, strategy_entropy, words
from experiments.agents.heard import Answered
from experiments.agents.intervals import jackknifed, ratio
from simulator.lexicon import lexicon

TOWARDS_FEELINGS = frozenset({"reflection", "listening", "praise", "siding", "reassurance", "restatement", "self_disclosure"})
TOWARDS_SOLUTIONS = frozenset({"suggestion", "information", "referral", "guided_reflection", "both_sides", "motives"})
"""What to do, or another way to see it. A question, an apology and hedging lead to neither and count for neither."""
NUM_WORDS = 1000
"""Of all replies together that are looked at for distinct pairs of words: their share falls with the amount of text."""
NO_MOVE = "none"
ENDS = (-1.0, 1.0)
"""Of both axes."""


def strategy_shares(replies: Sequence[Answered], *, seed: int) -> dict[str, Estimate]:
    """Share of the answered replies in which each strategy is heard, and of those in which none is; [0, 1] each."""
    found = {}
    for name in (*sorted(ear.strategy for ear in lexicon().ears), NO_MOVE):
        rows = [
            (
                r.scenario_id,
                r.dialogue,
                r.number,
                r.played.task.strictness,
                float(name in r.moves or (name == NO_MOVE and not r.moves)),
                1.0,
            )
            for r in replies
        ]
        found[name] = ratio(rows, seed=seed)
    return found


def plane(replies: Sequence[Answered], *, seed: int) -> dict[str, Any]:
    """Where the agent stands on both axes, each in [-1, 1], with intervals.

    Returns:
        `empathy_to_solution`: (S - E) / (S + E), of moves towards solutions and towards feelings: -1 where all are about feelings.
        `structured_to_creative`: 2 c - 1 with c the mean of `parts`; each of the three is 0 for who says the same in the same way to
        everybody, and near 1 for who never does. NaN below NUM_WORDS words, where the second of them says nothing.
        `parts`: entropy of its strategies over that of even ones; distinct pairs of words in NUM_WORDS words; 1 - the largest overlap
        with an earlier reply of its own (ROUGE-L), over dialogues.
    """
    names = sorted({reply.scenario_id for reply in replies})
    by_scenario: list[list[Answered]] = [[] for _ in names]
    where = {name: i for i, name in enumerate(names)}
    for reply in replies:
        by_scenario[where[reply.scenario_id]].append(reply)
    # Users of one family have neighbouring names: in another order the first words are not all said to the same kind of user.
    order = np.random.default_rng(seed).permutation(len(names))

    def of(chosen: np.ndarray) -> list[Answered]:
        kept = set(chosen.tolist())
        return [reply for i in order.tolist() if i in kept for reply in by_scenario[i]]

    num, overlaps = len(names), own_overlaps(replies)
    return {
        "empathy_to_solution": jackknifed(lambda chosen: empathy_to_solution(of(chosen)), num, seed=seed, within=ENDS),
        "structured_to_creative": jackknifed(lambda chosen: structured_to_creative(of(chosen), overlaps), num, seed=seed, within=ENDS),
        "parts": creativity(of(np.arange(num)), overlaps),
    }


def empathy_to_solution(replies: Sequence[Answered]) -> float:
    """(S - E) / (S + E) of the moves heard, each once a reply; NaN where there is neither."""
    solutions = sum(len(reply.moves & TOWARDS_SOLUTIONS) for reply in replies)
    feelings = sum(len(reply.moves & TOWARDS_FEELINGS) for reply in replies)
    return (solutions - feelings) / (solutions + feelings) if solutions + feelings else math.nan


def structured_to_creative(replies: Sequence[Answered], overlaps: Mapping[int, float]) -> float:
    """2 c - 1, c the mean of the parts of `creativity`; NaN where one of them could not be measured."""
    return 2.0 * float(np.mean(list(creativity(replies, overlaps).values()))) - 1.0


def creativity(replies: Sequence[Answered], overlaps: Mapping[int, float]) -> dict[str, float]:
    """The three parts, each in [0, 1].

    Args:
        overlaps: of each dialogue's replies with its own earlier ones, as `own_overlaps` has them.
    """
    moves = [move for reply in replies for move in sorted(reply.moves)]
    texts = [said(reply) for reply in replies]
    enough = sum(len(words(text)) for text in texts) >= NUM_WORDS
    within = np.array([overlaps[dialogue] for dialogue in sorted({reply.dialogue for reply in replies})], dtype=float)
    within = within[np.isfinite(within)]
    return {
        "strategies": min(strategy_entropy(moves) / math.log(len(lexicon().ears)), 1.0) if moves else math.nan,
        "wording": distinct(texts, 2, max_words=NUM_WORDS) if enough else math.nan,
        "within_dialogues": 1.0 - float(within.mean()) if within.size else math.nan,
    }


def own_overlaps(replies: Sequence[Answered]) -> dict[int, float]:
    """How much each dialogue's replies say its own earlier ones again, [0, 1] (`curriculum.collapse.indicators.own_overlap`)."""
    talks: dict[int, list[str]] = {}
    for reply in replies:
        talks.setdefault(reply.dialogue, []).append(said(reply))
    return {dialogue: own_overlap(texts) for dialogue, texts in talks.items()}


def said(reply: Answered) -> str:
    """Its words."""
    return reply.played.dialogue.replies()[reply.number - 1]
