"""Five capabilities of an agent, each in [0, 1], by rules over what the embedded reader hears in its replies.

The five are those of RLVER's analysis, there judged by a model on a scale of 1 to 5. Here each is a share of chances that were taken:
replies in which the situation called for something, and those that gave it. Nobody is penalised for what nobody asked for, and a rule says
the same on every machine. For dialogues with a user that a model plays, a model judges instead (`judge.py`).

Source: RLVER, arXiv 2507.03112, for the names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from analysis.stats import Estimate
from experiments.agents.heard import Answered
from experiments.agents.intervals import Row, jackknifed, ratio
from simulator.emotion import Skill, skill_table
from simulator.scenario import HiddenIntention

FELT_WITH = (HiddenIntention.EMPATHY, HiddenIntention.LISTENED, HiddenIntention.PRAISE, HiddenIntention.NOT_AT_FAULT)
"""Wishes of users who want to be felt with."""
WORKED_WITH = (HiddenIntention.ADVICE, HiddenIntention.REFLECTION, HiddenIntention.BOTH_SIDES, HiddenIntention.MOTIVES)
"""Wishes of users who want something to work with: what to do, or another way to see it."""
NOT_TOLD = 0.5
"""What a move is worth that takes up nothing the user told: it would have suited anybody."""


def capabilities(replies: Sequence[Answered], *, seed: int) -> dict[str, Estimate]:
    """Each capability with its interval over scenarios; NaN where nothing called for it."""
    rules: dict[str, Callable[[Answered], tuple[float, float]]] = {
        "empathic_depth": empathic_depth,
        "core_insight": core_insight,
        "solution_crafting": solution_crafting,
        "dialogue_guidance": dialogue_guidance,
    }
    shares = {name: ratio([_row(reply, *rule(reply)) for reply in replies], seed=seed) for name, rule in rules.items()}
    return {**shares, "style_flexibility": style_flexibility(replies, seed=seed)}


def empathic_depth(reply: Answered) -> tuple[float, float]:
    """Of replies to users who want to be felt with: 1 for an empathic move about something they told, half for one about nothing.

    Empathic moves are the four that meet such wishes (naming the feeling, listening, praise, siding), whichever this user wants: to find
    out which is insight. Half for a move that takes up nothing, because a warm register for everybody is not depth. Times how much could
    be followed; nothing for a repeated or overloaded reply, and first questions are not counted: they prepare depth.
    """
    return _tied_to_what_was_told(reply, FELT_WITH)


def solution_crafting(reply: Answered) -> tuple[float, float]:
    """Of replies to users who want something to work with: 1 for such a move about something they told, half for one about nothing.

    Moves are those that meet such wishes (a suggestion, a guiding question, both sides, motives). A solution that fits anybody is half a
    solution, for the reason that empathy about nothing is half: crafting means made for this user. Otherwise as `empathic_depth`.
    """
    return _tied_to_what_was_told(reply, WORKED_WITH)


def core_insight(reply: Answered) -> tuple[float, float]:
    """Of replies since the first hint: those that do what this user secretly wants, and nothing that would meet another wish.

    Trying everything at once hits every wish and shows insight into none. Where the wish has only shone through, a reply counts twice:
    reading that is what the word is for. First questions are not counted; what cannot be followed hits nothing.
    """
    if not reply.was_hinted or reply.explores:
        return 0.0, 0.0
    weight = 2.0 if reply.only_veiled else 1.0
    return weight * (reply.fits and reply.appraisal.wishes_tried == 1 and reply.is_clear), weight


def dialogue_guidance(reply: Answered) -> tuple[float, float]:
    """Of the chances to lead a conversation well, those taken: to ask before telling, to come back to what was said, to own a misstep.

    Asking is called for in the first two replies, coming back to earlier turns without repeating oneself from the third on, owning a
    misstep after a reply that hurt. They are the skills `listening`, `memory` and `repair` of the emotion rule, looked for whether or not
    this user's strictness asks for them, so that all strictnesses are judged by the same.
    """
    shown = reply.appraisal.shown
    called = [shown[Skill.LISTENING] if reply.number <= 2 else None, shown[Skill.MEMORY], shown[Skill.REPAIR]]
    return float(sum(bool(done) for done in called if done is not None)), float(sum(done is not None for done in called))


def style_flexibility(replies: Sequence[Answered], *, seed: int) -> Estimate:
    """Mean of two: how much its manner follows the person, and how much it changes after a reply that missed and hurt.

    Following the person: a dialogue's manner is the shares of its moves; the overlap of two manners is the sum of the smaller shares. It is
    1 - (mean overlap of dialogues whose users want different things) / (mean overlap where they want the same), pairs of one scenario left
    out, at least 0. Who treats all alike gets 0, and so does who varies by chance: variety is not flexibility.
    Changing: 1 - the share of moves (an apology is none) that the next reply has in common with the one that missed the wish and hurt. Who
    is doubted after the right move does well to stay with it, so that is not counted. Where nothing missed, the first half stands alone.
    """
    names = sorted({reply.scenario_id for reply in replies})
    if not names:
        return jackknifed(lambda chosen: float("nan"), 0, seed=seed)
    overlap_SS, pairs_SS, same_SS = _overlaps(replies, names)
    changed_S, hurt_S = _changes_of_course(replies, names)

    def of(chosen: np.ndarray) -> float:
        grid = np.ix_(chosen, chosen)
        overlap, pairs, same = overlap_SS[grid], pairs_SS[grid], same_SS[grid]
        if not (pairs * same).sum() or not (pairs * ~same).sum():
            return float("nan")
        alike, others = (overlap * same).sum() / (pairs * same).sum(), (overlap * ~same).sum() / (pairs * ~same).sum()
        follows = max(0.0, 1.0 - others / alike) if alike > 0 else float("nan")
        hurt = hurt_S[chosen].sum()
        return float((follows + changed_S[chosen].sum() / hurt) / 2.0) if hurt else float(follows)

    return jackknifed(of, len(names), seed=seed, within=(0.0, 1.0))


def _tied_to_what_was_told(reply: Answered, wishes: Sequence[HiddenIntention]) -> tuple[float, float]:
    if reply.played.dialogue.scenario.family.intention not in wishes or reply.explores:
        return 0.0, 0.0
    table = skill_table()["meets"]
    if not reply.moves & {move for wish in wishes for move in table[wish]}:
        return 0.0, 1.0
    return reply.sound * (1.0 if reply.appraisal.reading.cues else NOT_TOLD), 1.0


def _row(reply: Answered, reached: float, possible: float) -> Row:
    return reply.scenario_id, reply.dialogue, reply.number, reply.played.task.strictness, reached, possible


def _overlaps(replies: Sequence[Answered], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Summed overlap of dialogues by pair of scenarios, the number of such pairs, and whether both want the same; each [S, S]."""
    moves = sorted({move for reply in replies for move in reply.moves})
    place, where = {move: i for i, move in enumerate(moves)}, {name: i for i, name in enumerate(names)}
    num = max(reply.dialogue for reply in replies) + 1
    counts_DM, scenario_D, wish_S = np.zeros((num, len(moves))), np.full(num, -1), np.zeros(len(names), dtype=object)
    for reply in replies:
        scenario_D[reply.dialogue] = where[reply.scenario_id]
        wish_S[where[reply.scenario_id]] = str(reply.played.dialogue.scenario.family.intention)
        for move in reply.moves:
            counts_DM[reply.dialogue, place[move]] += 1
    spoke_D = (scenario_D >= 0) & (counts_DM.sum(axis=1) > 0)
    manner_DM, scenario_D = counts_DM[spoke_D], scenario_D[spoke_D]
    manner_DM = manner_DM / manner_DM.sum(axis=1, keepdims=True)
    overlap_SS = np.zeros((len(names), len(names)))
    for manner_M, scenario in zip(manner_DM, scenario_D, strict=True):
        np.add.at(overlap_SS[scenario], scenario_D, np.minimum(manner_DM, manner_M).sum(axis=1))
    num_S = np.bincount(scenario_D, minlength=len(names))
    pairs_SS = np.outer(num_S, num_S).astype(float)
    for table in (overlap_SS, pairs_SS):
        np.fill_diagonal(table, 0.0)
    return overlap_SS, pairs_SS, wish_S[:, None] == wish_S[None, :]


def _changes_of_course(replies: Sequence[Answered], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """How much the replies after one that missed and hurt differed from it, summed, and how many there were; each [S]."""
    where = {name: i for i, name in enumerate(names)}
    changed_S, hurt_S = np.zeros(len(names)), np.zeros(len(names))
    for before, after in pairwise(replies):
        if before.dialogue != after.dialogue or before.change >= 0 or before.fits:
            continue
        a, b = before.moves - {"apology"}, after.moves - {"apology"}
        if a or b:
            hurt_S[where[before.scenario_id]] += 1
            changed_S[where[before.scenario_id]] += 1.0 - len(a & b) / len(a | b)
    return changed_S, hurt_S
