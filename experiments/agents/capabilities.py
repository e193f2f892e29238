"""Capabilities of an agent, by rule or by a model that judges; support strategies; plane of social cognition.

By rule the embedded listener reads the replies: capabilities, each in [0, 1], are shares of opportunities that were taken. A model grades
dialogues with a user that a model plays; unusable grades count as missing, never as low.

Source: RLVER, arXiv 2507.03112, for the names of the capabilities and the axes of the plane; rules and formulas are ours.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analysis.evaluated import CAPABILITIES
from analysis.persona_judge import card_text, numbered, seed_of
from analysis.stats import NOTHING, Estimate
from curriculum.collapse.indicators import distinct, own_overlap, strategy_entropy, words
from experiments.agents.players import AgentDialogue, run_all
from experiments.agents.scores import jackknifed, ratio
from simulator.dialogue import Speaker
from simulator.emotion import EXPLORING, PUZZLED_BELOW, REPEATED_AT, Appraisal, Skill, appraise, hint_in, meets, skill_table
from simulator.lexicon import lexicon
from simulator.listener import Register
from simulator.llm.answers import whole_number
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.prompts import Unusable, object_of, quoted, record_of, string_of
from simulator.options import of_judge
from simulator.scenario import HiddenIntention


@dataclass(frozen=True, kw_only=True)
class ReplyFeatures:
    """One answered reply; the four methods named after capabilities give credit and opportunity, each >= 0."""

    played: AgentDialogue
    dialogue: int
    """Number of its dialogue."""
    number: int
    """From 1: its place among the dialogue's replies."""
    appraisal: Appraisal
    change: int
    """Points of emotion that it moved the user."""
    was_hinted: bool
    """The user had hinted at its wish; always true of users of native profiles, who have no lines for that."""

    @property
    def strategies(self) -> frozenset[str]:
        return frozenset(self.appraisal.parsed.strategies)

    @property
    def fits(self) -> bool:
        return bool(meets(self.played.dialogue.scenario.family) & self.strategies)

    @property
    def explores(self) -> bool:
        """One of the first two replies that asks or restates instead of trying, which is right before anything is known."""
        return self.number <= 2 and bool(EXPLORING & self.strategies) and not self.fits

    def empathic_depth(self) -> tuple[float, float]:
        """Of replies to users who want empathy: 1 for a move that meets any such wish and a fact they said, 1/2 for one without a fact.

        Times clarity and sincerity; 0 for a repeated or overloaded reply. First questions are not counted.
        """
        return self._tied_move(HiddenIntention.EMPATHY, HiddenIntention.LISTENED, HiddenIntention.PRAISE, HiddenIntention.NOT_AT_FAULT)

    def solution_crafting(self) -> tuple[float, float]:
        """As `empathic_depth`, for users who want something to work with."""
        return self._tied_move(HiddenIntention.ADVICE, HiddenIntention.REFLECTION, HiddenIntention.BOTH_SIDES, HiddenIntention.MOTIVES)

    def _tied_move(self, *wishes: HiddenIntention) -> tuple[float, float]:
        if self.played.dialogue.scenario.family.intention not in wishes or self.explores:
            return 0.0, 0.0
        table, reading = skill_table()["meets"], self.appraisal.parsed
        is_move = self.strategies & {move for wish in wishes for move in table[wish]}
        if not is_move or reading.similarity >= REPEATED_AT or self.appraisal.scattered:
            return 0.0, 1.0
        return self.appraisal.counts * (1.0 if reading.cues else 0.5), 1.0

    def core_insight(self) -> tuple[float, float]:
        """Of replies since the first hint: clear ones that meet the hidden intention and no other wish.

        A reply to a veiled hint counts twice. First questions are not counted.
        """
        if not self.was_hinted or self.explores:
            return 0.0, 0.0
        weight = 2.0 if self.appraisal.shown[Skill.HINTS] is not None else 1.0
        is_clear = self.appraisal.counts >= PUZZLED_BELOW
        return weight * (self.fits and self.appraisal.wishes_tried == 1 and is_clear), weight

    def dialogue_guidance(self) -> tuple[float, float]:
        """Skills of the emotion rule: listening in the first two replies, memory from the third on, repair after a hurt."""
        shown = self.appraisal.shown
        called = [shown[Skill.LISTENING] if self.number <= 2 else None, shown[Skill.MEMORY], shown[Skill.REPAIR]]
        return float(sum(bool(done) for done in called if done is not None)), float(sum(done is not None for done in called))


def reply_features(played: Sequence[AgentDialogue], register: Register) -> list[ReplyFeatures]:
    """Every answered reply of the dialogues, none of them broken, in their order."""
    found: list[ReplyFeatures] = []
    for place, one in enumerate(played):
        users = [turn for turn in one.dialogue.turns if turn.speaker is Speaker.USER]
        hinted = not one.dialogue.scenario.facts
        for number, ((before, reply, answer), user) in enumerate(zip(one.dialogue.answered(), users, strict=False), start=1):
            appraisal = appraise(before, reply, register=register, reading=answer.reading)
            hinted = hinted or hint_in(user.text) is not None
            change = answer.change or 0
            found.append(ReplyFeatures(played=one, dialogue=place, number=number, appraisal=appraisal, change=change, was_hinted=hinted))
    return found


def capabilities(replies: Sequence[ReplyFeatures], *, seed: int) -> dict[str, Estimate]:
    """Each capability with its interval over scenarios; NaN where nothing called for it."""
    found = {
        name: ratio([(reply.played.scenario_id, *getattr(reply, name)()) for reply in replies], seed=seed)
        for name in ("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance")
    }
    return {**found, "style_flexibility": style_flexibility(replies, seed=seed)}


def style_flexibility(replies: Sequence[ReplyFeatures], *, seed: int) -> Estimate:
    """Mean of two: how much the manner follows the person, and how much it changes after a reply that missed and hurt, if one did.

    Following: a dialogue's manner is the shares of its moves; the overlap of two manners is the sum of the smaller shares. It is
    1 - (mean overlap of dialogues whose users want different things) / (mean overlap where they want the same), pairs of one scenario left
    out, at least 0.
    Changing: 1 - the share of moves (an apology is none) that the next reply has in common with the one that missed the wish and hurt.
    """
    if not replies:
        return NOTHING
    wish_of = {reply.played.scenario_id: str(reply.played.dialogue.scenario.family.intention) for reply in replies}
    where = {name: i for i, name in enumerate(sorted(wish_of))}
    wish_S = np.array([wish_of[name] for name in where])
    changed_S, hurt_S = np.zeros(len(where)), np.zeros(len(where))
    for before, after in pairwise(replies):
        a, b = before.strategies - {"apology"}, after.strategies - {"apology"}
        if before.dialogue == after.dialogue and before.change < 0 and not before.fits and (a or b):
            hurt_S[where[before.played.scenario_id]] += 1
            changed_S[where[before.played.scenario_id]] += 1.0 - len(a & b) / len(a | b)

    # Summed overlap of dialogues by pair of scenarios, and the number of such pairs.
    moves = {move: i for i, move in enumerate(sorted({move for reply in replies for move in reply.strategies}))}
    num = max(reply.dialogue for reply in replies) + 1
    counts_DM, scenario_D = np.zeros((num, len(moves))), np.full(num, -1)
    for reply in replies:
        scenario_D[reply.dialogue] = where[reply.played.scenario_id]
        for move in reply.strategies:
            counts_DM[reply.dialogue, moves[move]] += 1
    spoke_D = counts_DM.sum(axis=1) > 0
    manner_DM, scenario_D = counts_DM[spoke_D], scenario_D[spoke_D]
    manner_DM = manner_DM / manner_DM.sum(axis=1, keepdims=True)
    overlap_SS, num_S = np.zeros((len(where), len(where))), np.bincount(scenario_D, minlength=len(where))
    for manner_M, scenario in zip(manner_DM, scenario_D, strict=True):
        np.add.at(overlap_SS[scenario], scenario_D, np.minimum(manner_DM, manner_M).sum(axis=1))
    pairs_SS, same_SS = np.outer(num_S, num_S).astype(float), wish_S[:, None] == wish_S[None, :]
    for table in (overlap_SS, pairs_SS):
        np.fill_diagonal(table, 0.0)

    def flexibility(chosen: np.ndarray) -> float:
        grid = np.ix_(chosen, chosen)
        overlap, pairs, same = overlap_SS[grid], pairs_SS[grid], same_SS[grid]
        if not (pairs * same).sum() or not (pairs * ~same).sum():
            return math.nan
        within, between = (overlap * same).sum() / (pairs * same).sum(), (overlap * ~same).sum() / (pairs * ~same).sum()
        follows = max(0.0, 1.0 - between / within) if within > 0 else math.nan
        hurt = hurt_S[chosen].sum()
        return float((follows + changed_S[chosen].sum() / hurt) / 2.0) if hurt else float(follows)

    return jackknifed(flexibility, len(where), seed=seed, within=(0.0, 1.0))


def strategy_shares(replies: Sequence[ReplyFeatures], *, seed: int) -> dict[str, Estimate]:
    """Share of the answered replies with each strategy, and with `none`; [0, 1]."""
    names = [*sorted(pattern.strategy for pattern in lexicon().patterns), "none"]
    rows = [(reply.played.scenario_id, reply.strategies or {"none"}) for reply in replies]
    return {name: ratio([(scenario, float(name in shown), 1.0) for scenario, shown in rows], seed=seed) for name in names}


def plane(replies: Sequence[ReplyFeatures], *, seed: int) -> dict[str, Any]:
    """The agent's place on both axes, each in [-1, 1], with intervals.

    `empathy_to_solution`: (S - E) / (S + E), of moves towards solutions and towards feelings. `structured_to_creative`: 2 c - 1 with c the
    mean of `parts` (see `creativity`); NaN where one of them is.
    """
    by_scenario: dict[str, list[ReplyFeatures]] = {}
    talks: dict[int, list[str]] = {}
    for reply in replies:
        by_scenario.setdefault(reply.played.scenario_id, []).append(reply)
        talks.setdefault(reply.dialogue, []).append(reply.played.dialogue.replies()[reply.number - 1])
    overlaps, names = {dialogue: own_overlap(texts) for dialogue, texts in talks.items()}, sorted(by_scenario)
    # Users of one family have neighbouring names: in a random order the first words go to all kinds of users.
    order = np.random.default_rng(seed).permutation(len(names)).tolist()

    def of(chosen: np.ndarray) -> list[ReplyFeatures]:
        kept = set(chosen.tolist())
        return [reply for i in order if i in kept for reply in by_scenario[names[i]]]

    def empathy_to_solution(chosen: np.ndarray) -> float:
        # A question, an apology and hedging lead to neither and count for neither.
        towards_feelings = {"reflection", "listening", "praise", "siding", "reassurance", "restatement", "self_disclosure"}
        towards_solutions = {"suggestion", "information", "referral", "guided_reflection", "both_sides", "motives"}
        solutions = sum(len(reply.strategies & towards_solutions) for reply in of(chosen))
        feelings = sum(len(reply.strategies & towards_feelings) for reply in of(chosen))
        return (solutions - feelings) / (solutions + feelings) if solutions + feelings else math.nan

    def structured_to_creative(chosen: np.ndarray) -> float:
        return 2.0 * float(np.mean(list(creativity(of(chosen), overlaps).values()))) - 1.0

    return {
        "empathy_to_solution": jackknifed(empathy_to_solution, len(names), seed=seed, within=(-1.0, 1.0)).to_dict(),
        "structured_to_creative": jackknifed(structured_to_creative, len(names), seed=seed, within=(-1.0, 1.0)).to_dict(),
        "parts": creativity(of(np.arange(len(names))), overlaps),
    }


def creativity(replies: Sequence[ReplyFeatures], overlaps: Mapping[int, float]) -> dict[str, float]:
    """Three parts, each in [0, 1], 0 for an agent that says the same in the same way to every user.

    `strategies`: entropy over that of uniform ones; `wording`: share of distinct pairs in the first 1,000 words, NaN below;
    `within_dialogues`: 1 - mean overlap of a dialogue's replies with earlier ones (`overlaps`, [0, 1], ROUGE-L).
    """
    moves = [move for reply in replies for move in sorted(reply.strategies)]
    texts = [reply.played.dialogue.replies()[reply.number - 1] for reply in replies]
    enough = sum(len(words(text)) for text in texts) >= 1000
    within = np.array([overlaps[dialogue] for dialogue in sorted({reply.dialogue for reply in replies})], dtype=float)
    within = within[np.isfinite(within)]
    return {
        "strategies": min(strategy_entropy(moves) / math.log(len(lexicon().patterns)), 1.0) if moves else math.nan,
        "wording": distinct(texts, 2, max_words=1000) if enough else math.nan,
        "within_dialogues": 1.0 - float(within.mean()) if within.size else math.nan,
    }


class CapabilityJudge:
    """Grades dialogues by a model behind `endpoints`."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints, self._complaint = endpoints, ""
        self._prompts = tomllib.loads(Path(__file__).with_name("judge.toml").read_text(encoding="utf-8"))

    async def grade(self, played: AgentDialogue) -> dict[str, float] | None:
        """The grades of a dialogue's agent by capability, [0, 1]; None where no answer was usable."""
        dialogue = played.dialogue
        texts = {"card": card_text(dialogue), "hidden": quoted(dialogue.scenario.hidden_intention), "conversation": numbered(dialogue)}
        messages = (("system", self._prompts["system"].strip()), ("user", self._prompts["ask"].format(**texts).strip()))
        grade = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        schema = object_of({"why": {"type": "string"}, **dict.fromkeys(CAPABILITIES, grade)})
        question = Question(name="capabilities", messages=messages, schema=schema, seed=seed_of(messages))
        try:
            return await self.endpoints.ask(question, read_grades)
        except SimulatorError as error:
            self._complaint = self._complaint or of_judge(str(error))
            return None

    async def grade_all(
        self, played: Sequence[AgentDialogue], *, seed: int, should_stop: Callable[[], bool]
    ) -> tuple[dict[str, Estimate] | None, dict[str, Any]]:
        """Every capability over the dialogues, None where it was stopped before all were sent; and the record for `agent.json`."""
        config = self.endpoints.config
        found = await run_all(
            played,
            self.grade,
            concurrency=config.concurrency * len(config.urls),
            label="judging",
            is_failure=lambda grades: grades is None,
            should_stop=should_stop,
        )
        if len(found) < len(played) and should_stop():
            return None, {"why_not": "interrupted"}
        graded = [(one.scenario_id, grades) for one, grades in found if grades is not None]
        about: dict[str, Any] = {"judge": config.model, "num_errors": len(played) - len(graded)}
        if about["num_errors"]:
            about |= {"num_not_sent": len(played) - len(found), "complaint": self._complaint}
        return {name: ratio([(scenario, grades[name], 1.0) for scenario, grades in graded], seed=seed) for name in CAPABILITIES}, about


def read_grades(answer: str) -> dict[str, float]:
    """The grades in an answer, 1 to 5 rescaled to [0, 1]; raises Unusable where one is missing or out of range."""
    record = record_of(answer, "why", *CAPABILITIES)
    string_of(record, "why")
    grades = {}
    for name in CAPABILITIES:
        grade = whole_number(record[name])
        if grade is None or not 1 <= grade <= 5:
            raise Unusable(f"{name} must be a whole number from 1 to 5, got {record[name]!r}")
        grades[name] = (grade - 1) / 4
    return grades
