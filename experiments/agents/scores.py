"""95 % intervals over scenarios: those of one user hang together, so scenarios are drawn, or left out, and never single dialogues.

Scores of an evaluation: how users felt in the end, success and failure, over all and by group, and where it was worst.

An evaluation's dialogues as they are measured: every answered reply with what was heard in it, read again by the embedded reader.

The embedded reader hears support strategies, facts taken up and repetition in any dialogue, whoever played the user.

Five capabilities of an agent, each in [0, 1], by rules over what the embedded reader hears in its replies.

The five are those of RLVER's analysis, there judged by a model on a scale of 1 to 5. Here each is a share of chances that were taken:
replies in which the situation called for something, and those that gave it. Nobody is penalised for what nobody asked for, and a rule says
the same on every machine. For dialogues with a user that a model plays, a model judges instead (`judge.py`).

Source: RLVER, arXiv 2507.03112, for the names.

Which support strategies an agent uses, and where they put it on the plane of social cognition.

Source: the axes are RLVER's (arXiv 2507.03112), who have a model place agents on them; the formulas are ours.

What is left of a score once the length of the replies is taken out.

What several tries at each user are worth.

`agent.json`: everything that is said of an agent after an evaluation, and the words that are printed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.evaluated import AGENT_JSON, FORMAT, read_object
from analysis.leaderboard import Z, score_within
from analysis.persona_judge import in_options
from analysis.stats import HIGH, LOW, NOTHING, NUM_RESAMPLES, Estimate, Sample, share, where_nothing_varies
from analysis.text import with_interval
from analysis.transcripts import CutShort
from curriculum.collapse.indicators import distinct, own_overlap, strategy_entropy, words
from curriculum.signals import expected_best
from experiments.agents.agent import Setting, last_line, setting_id
from experiments.agents.players import PATIENCE, Played
from experiments.evaluation import Graded, cut_short, summarise, worst_cell, worst_mean
from experiments.run_folder import git_commit, versions
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Outcome, Speaker
from simulator.emotion import EXPLORING, PUZZLED_BELOW, REPEATED_AT, Appraisal, Skill, hint_in, meets, skill_table
from simulator.explain import appraisals
from simulator.files import jsonable, write_whole
from simulator.lexicon import lexicon
from simulator.listener import Register
from simulator.rule_user import RuleUserConfig
from simulator.scenario import HiddenIntention
from simulator.text import num_words

NUM_GROUPS = 20
"""Parts of the scenarios that the jackknife leaves out in turn."""

Row = tuple[str, int, int, float, float, float]
"""Scenario, number of the dialogue, of the reply, strictness; what was reached and what could have been."""


def ratio(rows: Sequence[Row], *, seed: int, scale: float = 1.0) -> Estimate:
    """Sum of what was reached over the sum of what could have been, [0, scale], by a bootstrap over scenarios."""
    sample = Sample.of(rows)
    found = share(sample, rng=np.random.default_rng(seed)) if sample.part.size else NOTHING
    return Estimate(value=scale * found.value, low=scale * found.low, high=scale * found.high)


def resampled(statistic: Callable[[np.ndarray], float], num: int, *, seed: int) -> Estimate:
    """A statistic of scenarios by a percentile bootstrap.

    Args:
        statistic: of scenarios' numbers, int[S], some of them more than once.
        num: scenarios there are, S.
    """
    value = statistic(np.arange(num)) if num else float("nan")
    if num < 2 or np.isnan(value):
        return Estimate.alone(value)
    rng = np.random.default_rng(seed)
    values = [statistic(rng.integers(0, num, size=num)) for _ in range(NUM_RESAMPLES)]
    low, high = np.nanquantile(values, [LOW, HIGH])
    return Estimate(value=value, low=float(low), high=float(high))


def mean(values_N: np.ndarray, *, seed: int, within: tuple[float, float] | None = None) -> Estimate:
    """The mean of one value for each of N things that were drawn, by a percentile bootstrap over them.

    Args:
        within: the least and the greatest value that there could be, which bound the mean where all N are alike.
    """
    found = resampled(lambda chosen: float(values_N[chosen].mean()), len(values_N), seed=seed)
    if within is None or not values_N.size or np.ptp(values_N) > 0.0:
        return found
    low, high = where_nothing_varies(found.value, values_N.size, within=within)
    return Estimate(value=found.value, low=low, high=high)


def jackknifed(
    statistic: Callable[[np.ndarray], float], num: int, *, seed: int, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """A statistic of scenarios with an interval of 1.96 standard errors of the delete-a-group jackknife.

    For statistics that compare scenarios with each other, or count distinct things: a bootstrap, which takes some twice, would find them
    more alike than they are.

    Args:
        statistic: of scenarios' numbers, int[S], none more than once.
        num: scenarios there are, S.
        within: the least and the greatest value that there could be, where the interval ends: standard errors know of neither.

    Source: Kott 2001, "The delete-a-group jackknife".
    """
    value = statistic(np.arange(num)) if num else float("nan")
    groups = np.array_split(np.random.default_rng(seed).permutation(num), min(NUM_GROUPS, max(num, 1)))
    if num < 3 or np.isnan(value):
        return Estimate.alone(value)
    without = np.array([statistic(np.setdiff1d(np.arange(num), group)) for group in groups])
    without = without[~np.isnan(without)]
    if without.size < 3:
        return Estimate.alone(value)
    error = float(np.sqrt((without.size - 1) / without.size * ((without - without.mean()) ** 2).sum()))
    return Estimate(value=value, low=max(value - Z * error, within[0]), high=min(value + Z * error, within[1]))


MAX_REASONS = 10
"""Different reasons for broken dialogues that are told."""


def scores(played: Sequence[Played], *, seed: int) -> dict[str, Any]:
    """The keys of a run's `heldout` and more.

    Args:
        played: also those that broke, which count nowhere but in `errors`.

    Returns:
        Keys of `experiments.evaluation.summarise`; intervals of success, failure, worst cell and CVaR under `intervals`; the groups
        of `by` in `strictness`, `family`, `intention` and `persona`; `per_scenario` means, for paired comparisons; `outcomes`.
    """
    alive = [one for one in played if one.dialogue.outcome is not Outcome.ERROR]
    graded = [Graded.of(one.dialogue, strictness=one.task.strictness) for one in alive]
    names = sorted({one.task.scenario_id for one in alive})
    by_scenario: list[list[Graded]] = [[] for _ in names]
    where = {name: i for i, name in enumerate(names)}
    for item in graded:
        by_scenario[where[item.scenario_id]].append(item)
    means_S = np.array([np.mean([item.emotion for item in items]) for items in by_scenario])
    return {
        **summarise(graded, seed=seed),
        "intervals": {
            **shares(alive, seed=seed),
            "cvar20": resampled(lambda chosen: worst_mean(means_S[chosen]), len(names), seed=seed).to_dict(),
            "worst_cell": resampled(
                lambda chosen: worst_cell([one for i in chosen for one in by_scenario[i]]), len(names), seed=seed
            ).to_dict(),
        },
        "strictness": by(alive, lambda one: f"{one.task.strictness:g}", seed=seed),
        "intention": by(alive, lambda one: str(one.dialogue.scenario.family.intention), seed=seed),
        "persona": by(alive, lambda one: str(one.dialogue.scenario.family.persona), seed=seed),
        "family": by(alive, lambda one: str(one.dialogue.scenario.family), seed=seed),
        "per_scenario": {name: float(mean) for name, mean in zip(names, means_S, strict=True)},
        "outcomes": dict(sorted(Counter(str(one.dialogue.outcome) for one in played).items())),
    }


def by(played: Sequence[Played], key: Callable[[Played], str], *, seed: int) -> dict[str, dict[str, Any]]:
    """What the dialogues that share a key came to.

    Returns:
        By key: `value`, `low` and `high` of the mean final emotion, 0-100; `success_rate` and `failure_rate`, [0, 1], with intervals; `n`.
    """
    groups: dict[str, list[Played]] = {}
    for one in played:
        groups.setdefault(key(one), []).append(one)
    found = {}
    for name, members in sorted(groups.items()):
        rows = [(one.task.scenario_id, i, 0, one.task.strictness, one.dialogue.emotion / 100.0, 1.0) for i, one in enumerate(members)]
        found[name] = {**ratio(rows, seed=seed, scale=100.0).to_dict(), **shares(members, seed=seed), "n": len(members)}
    return found


def shares(played: Sequence[Played], *, seed: int) -> dict[str, dict[str, float | None]]:
    """Shares of the dialogues that ended with a delighted user, and with one who had had enough."""
    return {
        "success_rate": share_of(played, lambda one: one.dialogue.emotion >= DELIGHTED_AT, seed=seed),
        "failure_rate": share_of(played, lambda one: one.dialogue.emotion < LEFT_BELOW, seed=seed),
    }


def share_of(played: Sequence[Played], is_one: Callable[[Played], bool], *, seed: int) -> dict[str, float | None]:
    """Share of the dialogues, [0, 1], with its interval."""
    rows = [(one.task.scenario_id, i, 0, one.task.strictness, float(is_one(one)), 1.0) for i, one in enumerate(played)]
    return ratio(rows, seed=seed).to_dict()


def errors(played: Sequence[Played], *, planned: int) -> dict[str, Any]:
    """How many dialogues broke, by reason, the most frequent first, how many were not played at all, and how many ran out of context.

    The agent's own complaints speak of its options already; any other setting they name is the user's.
    """
    cut = cut_short(one.dialogue for one in played)
    reasons = Counter(in_options(last_line(one.dialogue.error), "--user-") for one in played if one.dialogue.outcome is Outcome.ERROR)
    return {
        "planned": planned,
        "not_played": planned - len(played),
        "excluded_dialogues": sum(reasons.values()),
        "reasons": dict(reasons.most_common(MAX_REASONS)),
        "cut_short": sum(one.dialogue.outcome is Outcome.TRUNCATED for one in played),
        **({"cut_short_by_user": cut.by_user, "cut_short_replies": cut.replies} if cut.share > 0.0 else {}),
    }


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One reply that was answered."""

    played: Played
    dialogue: int
    """Number of its dialogue."""
    number: int
    """From 1: which of the dialogue's replies."""
    appraisal: Appraisal
    change: int
    """Points that it moved the user."""
    was_hinted: bool
    """The user had hinted at its wish, or is one who never hints: users of native profiles have no lines for that."""

    @property
    def scenario_id(self) -> str:
        """Whom it was said to."""
        return self.played.task.scenario_id

    @property
    def moves(self) -> frozenset[str]:
        """Support strategies heard in it."""
        return frozenset(self.appraisal.reading.strategies)

    @property
    def fits(self) -> bool:
        """It does what the wish wants."""
        return bool(meets(self.played.dialogue.scenario.family) & self.moves)

    @property
    def explores(self) -> bool:
        """One of the first two replies, which asks or restates instead of trying: right before anything is known."""
        return self.number <= 2 and bool(EXPLORING & self.moves) and not self.fits

    @property
    def sound(self) -> float:
        """How much of it could be followed, [0, 1]; 0 for one that repeats an earlier reply or says too much at once."""
        reading = self.appraisal.reading
        return 0.0 if reading.similarity >= REPEATED_AT or self.appraisal.scattered else reading.clarity

    @property
    def is_clear(self) -> bool:
        """Whether a listener would follow it."""
        return self.appraisal.reading.clarity >= PUZZLED_BELOW

    @property
    def only_veiled(self) -> bool:
        """The wish had only shone through."""
        return self.appraisal.shown[Skill.HINTS] is not None


def answered(played: Sequence[Played], register: Register) -> list[Answered]:
    """Every answered reply of the dialogues that did not break, in the order of their uids."""
    found: list[Answered] = []
    for place, one in enumerate(sound_ones(played)):
        users = [turn for turn in one.dialogue.turns if turn.speaker is Speaker.USER]
        hinted = not one.dialogue.scenario.facts
        for number, (appraisal, user, answer) in enumerate(
            zip(appraisals(one.dialogue, register=register), users, users[1:], strict=False)
        ):
            hinted = hinted or hint_in(user.text) is not None
            change = answer.change or 0
            found.append(Answered(played=one, dialogue=place, number=number + 1, appraisal=appraisal, change=change, was_hinted=hinted))
    return found


def sound_ones(played: Iterable[Played]) -> list[Played]:
    """The dialogues that did not break, in an order that does not depend on which ended first."""
    alive = [one for one in played if one.dialogue.outcome is not Outcome.ERROR]
    return sorted(alive, key=lambda one: (one.task.uid, one.sibling))


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


REFERENCE_WORDS = {Register.WORLD: 10.0, Register.OPEN: 50.0}
"""Words of a reply at which an agent's length-controlled score is told, by how it speaks; a leaderboard takes its own agents' mean."""
NUM_DRAWS = 500
LEAST_SPREAD = 0.01
"""Standard deviation of the lengths of comparable replies, in doublings, below which no slope over length can be told."""
LEAST_DRAWS = 0.9
"""Share of the redrawn sets of scenarios that must have a slope; with fewer the interval would be of those that happened to have one."""
OUTER = 0.05
"""Share of an agent's replies at either end of their lengths that counts as no longer and no shorter than the rest."""


class _Replies(NamedTuple):
    """The answered replies of an evaluation, N of them."""

    log_words_N: np.ndarray
    """log2 of the words of each."""
    before_N: np.ndarray
    """The user's emotion when it was said."""
    change_N: np.ndarray
    """Points that it moved the user."""
    cell_N: np.ndarray
    """int: those of one cell are compared with each other."""
    scenario_N: np.ndarray
    """int: whose scenario, by which they are resampled."""


def length_control(played: Sequence[Played], *, seed: int, register: Register) -> dict[str, Any]:
    """How the score hangs on the length of the replies, and the score at a given length.

    The unit is the reply, since a dialogue's mean length is also a result of how it went: one that fails may end early, or make the agent
    talk. Fitted is the change that a reply brought on log2 of its words and on the emotion before it, within cells, so that replies of one
    number in the dialogue to users alike are compared. Cells are the dialogues with one user where there are several, else strictness x
    hidden intention. With `slope` = points a reply and doubling x replies per dialogue, the score at L words is the score + slope x (log2 L
    - mean). It says what length explains among this agent's own replies, longer ones saying more included, not what would happen if it
    were made to speak otherwise; and nothing of lengths that it does not speak.

    Args:
        played: dialogues that did not break.
        register: how the agent speaks, which says at how many words its own score is told.

    Returns:
        `words_per_reply` (geometric mean), `points_per_doubling`, `range`: words of its shortest and longest replies but for one in twenty
        each, `score_at_reference`, None outside of them, and `line`: intercept, slope and their covariance over resampled scenarios, from
        which the score at a length in the range follows (`score_within`).

    Source: AlpacaEval's length control, arXiv 2404.04475, takes length out of a preference likewise.
    """
    heard = [one for one in played if len(one.dialogue.turns) > 2]
    names = sorted({one.task.scenario_id for one in heard})
    where = {name: i for i, name in enumerate(names)}
    replies = _replies(heard, where)
    words = float(2.0 ** replies.log_words_N.mean()) if replies.log_words_N.size else math.nan
    unfitted = {"words_per_reply": words, "points_per_doubling": None, "range": None, "score_at_reference": None, "line": None}
    if len(names) < 2:
        return unfitted
    shortest, longest = np.quantile(replies.log_words_N, [OUTER, 1.0 - OUTER])
    # One reply that runs away would turn the line by itself.
    x_N = np.clip(replies.log_words_N, shortest, longest)
    emotion_D = np.array([one.dialogue.emotion for one in heard], dtype=float)
    scenario_D = np.array([where[one.task.scenario_id] for one in heard], dtype=int)

    def line(chosen: np.ndarray) -> tuple[float, float]:
        weight_S = np.bincount(chosen, minlength=len(names)).astype(float)
        weight_N, weight_D = weight_S[replies.scenario_N], weight_S[scenario_D]
        per_doubling = _slope(x_N, replies, weight_N) * float(weight_N.sum() / weight_D.sum())
        score = float(np.average(emotion_D, weights=weight_D))
        return score - per_doubling * float(np.average(x_N, weights=weight_N)), per_doubling

    intercept, slope = line(np.arange(len(names)))
    rng = np.random.default_rng(seed)
    draws = np.array([line(rng.integers(0, len(names), size=len(names))) for _ in range(NUM_DRAWS)])
    draws = draws[~np.isnan(draws[:, 1])]
    if math.isnan(slope) or len(draws) < LEAST_DRAWS * NUM_DRAWS:
        return unfitted
    error = float(draws[:, 1].std())
    found = {"intercept": intercept, "slope": slope, "covariance": np.cov(draws.T).tolist()}
    # Whole words are whole again, so that a length at the edge lies within.
    spoken = [round(float(2.0**end), 6) for end in (shortest, longest)]
    reference = REFERENCE_WORDS[register]
    at_reference = score_within({"line": found, "range": spoken}, reference)
    return {
        "words_per_reply": words,
        "points_per_doubling": {"value": slope, "low": slope - Z * error, "high": slope + Z * error},
        "range": spoken,
        "score_at_reference": {"words": reference, **at_reference} if at_reference else None,
        "line": found,
    }


def _replies(played: Sequence[Played], where: Mapping[str, int]) -> _Replies:
    """Every reply that a user answered; turns alternate, the user's first.

    Args:
        where: number of each scenario.
    """
    has_siblings = any(one.sibling for one in played)
    cells: dict[tuple[str, float, int], int] = {}
    rows = []
    for one in played:
        who = one.task.scenario_id if has_siblings else str(one.dialogue.scenario.family.intention)
        turns = one.dialogue.turns
        for number, (before, reply, answer) in enumerate(zip(turns[::2], turns[1::2], turns[2::2], strict=False)):
            cell = cells.setdefault((who, one.task.strictness, number), len(cells))
            length = math.log2(max(1, num_words(reply.text)))
            rows.append((length, before.emotion or 0, answer.change or 0, cell, where[one.task.scenario_id]))
    table_NC = np.array(rows, dtype=float).reshape(-1, len(_Replies._fields))
    return _Replies(*table_NC[:, :3].T, *table_NC[:, 3:].astype(int).T)


def _slope(x_N: np.ndarray, replies: _Replies, weight_N: np.ndarray) -> float:
    """Points of emotion that a reply brings for each doubling of its words, with the emotion before it held, within cells.

    Returns:
        NaN where lengths do not differ but as the emotion before does.
    """
    x, before, change = (_within(column, replies.cell_N, weight_N) for column in (x_N, replies.before_N, replies.change_N))
    spread = float((weight_N * before * before).sum())
    # Where all feel alike before a reply there is nothing to hold.
    x = x - (float((weight_N * x * before).sum()) / spread if spread > 1e-9 else 0.0) * before
    variance = float((weight_N * x * x).sum() / weight_N.sum())
    return float((weight_N * x * change).sum() / (weight_N * x * x).sum()) if variance > LEAST_SPREAD**2 else math.nan


def _within(values_N: np.ndarray, cell_N: np.ndarray, weight_N: np.ndarray) -> np.ndarray:
    """The values less the mean of their cell."""
    total_C = np.maximum(np.bincount(cell_N, weight_N), 1e-12)
    return values_N - (np.bincount(cell_N, weight_N * values_N) / total_C)[cell_N]


def best_of_k(played: Sequence[Played], *, samples: int, seed: int) -> dict[str, Any] | None:
    """What the best of k dialogues with each user is worth, beside their mean; None where there is one with each.

    Users of whom not all dialogues are there are left out.

    Returns:
        `k`, `mean`, `best` and `gain` with intervals, and `by_k`: the expected best of 1..k, from all k without bias. `expected` has `best`
        and `gain` of each with intervals.
    """
    if samples < 2:
        return None
    by_user: dict[str, list[Played]] = {}
    for one in played:
        by_user.setdefault(one.task.uid, []).append(one)
    whole = [group for _, group in sorted(by_user.items()) if len(group) == samples]
    if not whole:
        return None
    names = sorted({group[0].task.scenario_id for group in whole})
    emotions_UK = np.array([[one.dialogue.emotion for one in group] for group in whole], dtype=float)
    members = [np.array([i for i, group in enumerate(whole) if group[0].task.scenario_id == name]) for name in names]

    def over(values_U: np.ndarray) -> dict[str, float | None]:
        return resampled(
            lambda chosen: float(values_U[np.concatenate([members[i] for i in chosen])].mean()), len(names), seed=seed
        ).to_dict()

    best_U, mean_U = emotions_UK.max(axis=1), emotions_UK.mean(axis=1)
    by_k, expected = {}, {}
    for j in range(1, samples + 1):
        expected_U = expected_best(emotions_UK, j)
        by_k[str(j)] = float(expected_U.mean())
        expected[str(j)] = {"best": over(expected_U), "gain": over(expected_U - mean_U)}
    told = {"mean": over(mean_U), "best": over(best_U), "gain": over(best_U - mean_U)}
    return {"k": samples, "users": len(whole), **told, "by_k": by_k, "expected": expected}


Capabilities = Mapping[str, Estimate] | None


def describe(
    played: Sequence[Played],
    setting: Setting,
    *,
    agent: Mapping[str, Any],
    samples: int,
    seed: int,
    by_judge: Capabilities,
    judge: Mapping[str, Any],
    usage: Mapping[str, float],
) -> dict[str, Any]:
    """The whole of `agent.json`.

    Args:
        played: all dialogues, also those that broke.
        agent: who spoke, and how it was asked.
        by_judge: capabilities by a model; None where none judged.
        judge: which model judged, how many dialogues got no grades, how many of these were not sent and why the first got none; or why
            nobody judged.
        usage: requests, tokens and money of all sittings, by who used them.
    """
    # In an order that does not depend on which ended first: sums are then the same to the last bit.
    played = sorted(played, key=lambda one: (one.task.uid, one.sibling))
    alive = sound_ones(played)
    replies = answered(alive, setting.register())
    is_rule = isinstance(setting.user_config, RuleUserConfig)
    by_rule = capabilities(replies, seed=seed) if is_rule else None
    shown = setting.to_dict()
    return {
        "format": FORMAT,
        "agent": dict(agent),
        "setting": shown,
        "setting_id": setting_id(shown),
        "profiles": setting.bank_file,
        "samples": samples,
        "seed": seed,
        **scores(played, seed=seed),
        "errors": errors(played, planned=samples * len(setting.tasks())),
        "replies": {"answered": len(replies), "per_dialogue": len(replies) / len(alive) if alive else None},
        "capabilities": {
            "by": "rule" if is_rule else "judge" if by_judge else None,
            **dict(judge),
            **{name: estimate.to_dict() for name, estimate in (by_rule or by_judge or {}).items()},
        },
        "strategies": {name: estimate.to_dict() for name, estimate in strategy_shares(replies, seed=seed).items()},
        "social_cognition": as_plain(plane(replies, seed=seed)),
        "length": length_control(alive, seed=seed, register=setting.register()),
        "best_of_k": best_of_k(alive, samples=samples, seed=seed),
        "usage": dict(usage),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def write(folder: Path, found: Mapping[str, Any]) -> Path:
    """Writes `agent.json`, whole or not at all."""
    return write_whole(folder / AGENT_JSON, json.dumps(jsonable(found), indent=2, ensure_ascii=False) + "\n")


def read(folder: Path) -> dict[str, Any]:
    """What an earlier sitting wrote; empty where there is none that can be read."""
    try:
        return read_object(folder / AGENT_JSON)
    except ValueError:
        return {}


def graded_before(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """What a model that judged the same dialogues in an earlier sitting found, as `describe` takes it; empty where none did."""
    capable = earlier.get("capabilities")
    if not isinstance(capable, dict) or capable.get("by") != "judge":
        return {}
    graded = {name: Estimate.from_dict(value) for name, value in capable.items() if isinstance(value, dict)}
    return {"by_judge": graded, "judge": {name: value for name, value in capable.items() if name not in (*graded, "by")}}


def added_up(*sittings: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """What was used up over several sittings, by who used it."""
    total: dict[str, dict[str, float]] = {}
    for who, used in chain.from_iterable(sitting.items() for sitting in sittings):
        mine = total.setdefault(who, {})
        for name, value in used.items():
            mine[name] = mine.get(name, 0.0) + value
    return total


def as_plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Estimates in it as dicts."""
    return {name: value.to_dict() if isinstance(value, Estimate) else value for name, value in tree.items()}


def in_words(found: Mapping[str, Any], folder: Path) -> str:
    """What is printed when an evaluation ends."""
    broken = found["errors"]
    lines = [f"{found['agent']['name']}  on {found['profiles'] or found['setting']['bank']}, {found['n_dialogues']} dialogues scored"]
    if not found["n_dialogues"]:
        lines.append("score       none: no dialogue could be scored")
    else:
        lines += figures(found)
    if broken["excluded_dialogues"]:
        lines.append(f"excluded    {broken['excluded_dialogues']} of {broken['planned']} dialogues broke, and count in no score:")
        lines += [f"            {count} x {reason}" for reason, count in broken["reasons"].items()]
    if broken["not_played"]:
        lines.append(f"missing     {broken['not_played']} of {broken['planned']} dialogues were not played; the same command goes on")
    if broken["cut_short"]:
        said = "dialogues ran out of context (--max-context) and are scored as they stood"
        lines.append(f"cut short   {broken['cut_short']} of {broken['planned']} {said}")
        cut = CutShort(
            share=broken["cut_short"] / max(broken["planned"] - broken["not_played"] - broken["excluded_dialogues"], 1),
            by_user=broken["cut_short_by_user"],
            replies=broken["cut_short_replies"],
        )
        if cut.is_much:
            why = cut.words(
                context=f"--max-context={found['agent'].get('max_context')}", reply=f"--max-tokens={found['agent'].get('max_new_tokens')}"
            )
            lines.append(f"WARNING     {cut.share:.0%} of the dialogues were {why}")
    if found["capabilities"].get("num_errors"):
        lines.append(ungraded(found["capabilities"], num_dialogues=found["n_dialogues"]))
    return "\n".join([*lines, f"results     {folder / AGENT_JSON}", f"transcripts make transcripts RUN={folder}"])


def ungraded(capable: Mapping[str, Any], *, num_dialogues: int) -> str:
    """How many dialogues the judge gave no grades, and why."""
    said = f"judge: {capable['num_errors']} of {num_dialogues} dialogues got no grades: {capable['complaint']}"
    not_sent = capable["num_not_sent"]
    return f"{said}; {not_sent} were not sent after {PATIENCE} such in a row, the same command goes on" if not_sent else said


def figures(found: Mapping[str, Any]) -> list[str]:
    """The lines of scores and capabilities."""
    intervals = found["intervals"]
    lines = [
        f"score       {with_interval(found)}   worst cell {found['worst_cell']:.1f}   worst fifth {found['cvar20']:.1f}",
        f"success     {percent(intervals['success_rate'])}   failure {percent(intervals['failure_rate'])}",
        "strictness  " + "   ".join(f"{name} {cell['value']:.0f}" for name, cell in found["strictness"].items()),
        "  success   " + "   ".join(f"{name} {cell['success_rate']['value']:.0%}" for name, cell in found["strictness"].items()),
        "  failure   " + "   ".join(f"{name} {cell['failure_rate']['value']:.0%}" for name, cell in found["strictness"].items()),
    ]
    capable = found["capabilities"]
    if capable["by"]:
        shown = [f"{name.replace('_', ' ')} {number(capable[name]['value'], '.2f')}" for name in capable if isinstance(capable[name], dict)]
        lines.append(f"capable     {'   '.join(shown)}   (by {capable['by']})")
    social = found["social_cognition"]
    lines.append(
        f"plane       empathy to solution {number(social['empathy_to_solution']['value'], '+.2f')}"
        f"   structured to creative {number(social['structured_to_creative']['value'], '+.2f')}"
    )
    if found["best_of_k"]:
        best = found["best_of_k"]
        lines.append(f"best of {best['k']}   {best['best']['value']:.1f}, mean {best['mean']['value']:.1f}")
    return lines


def percent(estimate: Mapping[str, float | None]) -> str:
    """A share as a percentage with its interval."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.0%}" if low is None or high is None else f"{value:.0%} [{low:.0%}, {high:.0%}]"


def number(value: float | None, form: str) -> str:
    """The number in its form, a dash for none."""
    return "–" if value is None or value != value else format(value, form)
