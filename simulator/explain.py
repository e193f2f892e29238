"""Every figure between a reply and the change of emotion, apart and by name: what the emotion rule adds up, to be checked by hand.

The five steps to a change under the preset SAGE: the score taken apart term by term, so that the change can be added up by hand.

The five steps from a reply to a change of emotion, in words and with the figures, in the order in which SAGE's users take them.

Source: SAGE, arXiv 2505.02847: what the reply says, how it meets the hidden intention, the inner activity, the feeling, the change.

How often an agent shows each skill where the situation calls for it, read off dialogues after the fact.

Recorded dialogues put through the embedded user's rule again: the same reply must move the same user by the same points.

What `python -m simulator explain` prints: recorded changes beside those that the rule gives, and the five steps to each.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from simulator.dialogue import DELIGHTED_AT, Dialogue, Speaker, Turn
from simulator.emotion import (
    MAX_CHANGE,
    PUZZLED_BELOW,
    QUANTA,
    REPEATED_AT,
    VERBATIM_AT,
    Appraisal,
    Skill,
    against,
    appraise,
    explain,
    is_rebuff,
    meets,
    onset,
    skill_table,
    times_again,
    weight,
)
from simulator.files import read_jsonl, say_torn
from simulator.listener import Register, facts_told
from simulator.preset import CONTEXT, UNCLEAR, WATERSHED, WORDING, Weighed, calibrated, moves, weigh
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import profiles_by_id
from simulator.sage.user import NativeUser
from simulator.scenario import Difficulty, Family, Scenario
from simulator.study_commands import import_studies
from simulator.text import figure, listed, plus, signed
from simulator.users import USERS
from simulator.version import recorded_world, world_of
from simulator.world import Bank, load_bank

CHARGED = (Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY, Skill.REPAIR)
"""Skills with a price. A veiled hint that was missed is charged as a missed fit."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one lack takes from a reply's worth."""

    name: str
    """A skill, or a name under `side_costs` of `world/skills.toml`."""
    price: float
    """Where it counts in full."""
    weight: float = 1.0
    """How much it counts at this difficulty, in [0, 1]."""
    excused: float = 0.0
    """Share that is forgiven because the reply asks first, in [0, 1]."""

    @property
    def taken(self) -> float:
        """Worth that the reply loses."""
        return self.price * (self.weight * (1.0 - self.excused))


@dataclass(frozen=True, kw_only=True)
class Worth:
    """How a reply comes to its worth."""

    start: float
    """1 where the reply was heard to say anything, else 0."""
    costs: tuple[Cost, ...]
    """In the order in which they are taken; those that do not count yet stand among them with a weight of 0."""
    floor: float
    """No lack makes a reply worth less."""
    clarity: float
    """Share of the words that could be followed."""
    garble: float
    """Taken, times the share that could not be followed."""
    contempt: float | None = None
    """What the reply is worth because it holds contempt, whatever else it holds; None where it holds none."""

    @property
    def lacking(self) -> float:
        """After all costs."""
        left = self.start
        for cost in self.costs:
            left -= cost.taken
        return left

    @property
    def total(self) -> float:
        """As the rule has it, in [-1, 1]."""
        if self.contempt is not None:
            return self.contempt
        return max(self.lacking, self.floor) * self.clarity - self.garble * (1.0 - self.clarity)


@dataclass(frozen=True, kw_only=True)
class Points:
    """How a worth comes to a change of emotion."""

    worth: float
    rate: float
    """Points that a worth of 1 gains, or one of -1 loses, at this strictness."""
    by_persona: float
    """How strongly such a person feels a gain or a loss."""
    drain: float
    impatience: float
    disappointment: float
    """Lost each time that the wish is missed again, where impatience is 1."""
    times_again: int
    """How often in a row it was missed besides the first time."""
    fit_weight: float
    """How much a missed wish counts at this difficulty and for this reply, in [0, 1]."""
    momentum: float
    previous: int
    """The change before."""
    doubt: float | None
    """Weight of a difficult user's doubt; None where this turn has none."""
    doubted: float
    """What a doubt in full makes of any change that is higher."""
    quantise: bool
    contempt: float
    """Taken by contempt; 0 where there is none."""
    before: int
    """Emotion that the reply met, 0-100."""

    @property
    def moved(self) -> float:
        """By the reply itself."""
        return self.rate * self.worth * self.by_persona

    @property
    def drained(self) -> float:
        """By impatience, where the reply does not help."""
        return self.drain * self.impatience * (1.0 - max(0.0, self.worth))

    @property
    def disappointed(self) -> float:
        """Over a wish that was missed again."""
        return self.disappointment * self.impatience * self.times_again * self.fit_weight

    @property
    def carried(self) -> float:
        """Over from the change before."""
        return self.momentum * self.previous

    @property
    def summed(self) -> float:
        """All five, before any doubt."""
        return self.moved - self.drained - self.disappointed + self.carried - self.contempt

    @property
    def exact(self) -> float:
        """After a doubt, before bounds and rounding."""
        return self.summed if self.doubt is None else self.summed + self.doubt * (min(self.summed, self.doubted) - self.summed)

    @property
    def change(self) -> int:
        """As the rule has it, in [-10, 10]."""
        bounded = max(-MAX_CHANGE, min(MAX_CHANGE, self.exact))
        return min(QUANTA, key=lambda quantum: abs(quantum - bounded)) if self.quantise else round(bounded)

    @property
    def after(self) -> int:
        """Emotion that the reply leaves, 0-100."""
        return max(0, min(DELIGHTED_AT, self.before + self.change))

    @property
    def felt(self) -> int:
        """The change as it is recorded: what 0 and 100 leave of it."""
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One reply, from its reading to the change."""

    dialogue: Dialogue
    """Up to the turn that the reply answers."""
    reply: str
    appraisal: Appraisal
    worth: Worth
    points: Points
    thought: str
    """The user's, in the user's words."""


def explain_reply(dialogue: Dialogue, reply: str, config: RuleUserConfig) -> Explanation:
    """Weighs a reply that is not yet in the dialogue as the embedded user does, and keeps every figure."""
    family, difficulty = dialogue.scenario.family, dialogue.difficulty
    appraisal = appraise(dialogue, reply, register=config.register or Register.OPEN)
    worth = worth_of(appraisal, family, difficulty)
    excused = _excused(appraisal, family, difficulty)
    points = points_of(
        worth.total,
        dialogue,
        config,
        times_missed_again=times_again(appraisal),
        excused=excused,
        is_contempt=bool(appraisal.reading.contempt),
    )
    cue = dialogue.story.facts[appraisal.reading.cues[0]].cue if appraisal.reading.cues else ""
    thought = explain(appraisal, family, difficulty, rebuff=points.doubt is not None and points.change < 0, cue=cue)
    return Explanation(dialogue=dialogue, reply=reply, appraisal=appraisal, worth=worth, points=points, thought=thought)


def worth_of(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Worth:
    """The worth of an appraised reply, taken apart."""
    table = skill_table()
    return Worth(
        start=1.0 if appraisal.reading.strategies or appraisal.reading.cues else 0.0,
        costs=(*_skill_costs(appraisal, family, difficulty), *_side_costs(appraisal, family, difficulty)),
        floor=table["worst"],
        clarity=appraisal.reading.clarity,
        garble=table["side_costs"]["garble"],
        contempt=table["contempt"] if appraisal.reading.contempt else None,
    )


def points_of(
    worth: float, dialogue: Dialogue, config: RuleUserConfig, *, times_missed_again: int, excused: float, is_contempt: bool
) -> Points:
    """The change that a worth brings about, and a wish that was missed again, taken apart.

    Args:
        excused: share of a missed wish that is not held against a reply that asks first, in [0, 1].
    """
    table, family, difficulty = skill_table()["points"], dialogue.scenario.family, dialogue.difficulty
    if worth > 0:
        rate = table["gain"] + table["gain_slope"] * difficulty.strictness
    else:
        rate = table["loss"] * (table["loss_floor"] + table["loss_slope"] * difficulty.strictness)
    return Points(
        worth=worth,
        rate=rate,
        by_persona=table["gain_by_persona" if worth > 0 else "loss_by_persona"][family.persona],
        drain=table["drain"],
        impatience=difficulty.impatience,
        disappointment=table["disappointment"],
        times_again=times_missed_again,
        fit_weight=weight(Skill.FIT, family, difficulty) * (1.0 - excused),
        momentum=config.momentum,
        previous=dialogue.turns[-1].change or 0,
        doubt=weight(Skill.REPAIR, family, difficulty) if is_rebuff(dialogue) else None,
        doubted=table["rebuff"],
        quantise=config.quantise,
        contempt=table["contempt"] if is_contempt else 0.0,
        before=dialogue.emotion,
    )


def _skill_costs(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Iterator[Cost]:
    for skill in CHARGED:
        if appraisal.shown[skill] is False:
            share = _excused(appraisal, family, difficulty) if skill is Skill.FIT else 0.0
            yield Cost(name=skill, price=skill_table()["cost"][skill], weight=weight(skill, family, difficulty), excused=share)


def _excused(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> float:
    """Share of a missed wish that is not held against this reply."""
    return max(skill_table()["asking_first"], weight(Skill.LISTENING, family, difficulty)) if appraisal.asks_first else 0.0


def _side_costs(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Iterator[Cost]:
    prices, overlap = skill_table()["side_costs"], appraisal.reading.similarity
    if appraisal.runs_against:
        yield Cost(name="against", price=prices["against"], weight=weight(Skill.FIT, family, difficulty))
    if appraisal.shown[Skill.FIT] and appraisal.wishes_tried > 1:
        price = prices["guessing"] * (appraisal.wishes_tried - 1)
        yield Cost(name="guessing", price=price, weight=weight(Skill.FIT, family, difficulty))
    if overlap >= REPEATED_AT:
        name = "verbatim" if overlap >= VERBATIM_AT else "repetition"
        yield Cost(name=name, price=prices[name])
    for name, broken in (("scattered", appraisal.scattered), ("unneeded_apology", appraisal.unneeded_apology)):
        if broken:
            yield Cost(name=name, price=prices[name])


MOST_PIECES = 4
"""Of a reply's wording, told in its explanation."""


@dataclass(frozen=True, kw_only=True)
class SageExplanation:
    """One reply, from its reading to the change, under the preset SAGE."""

    dialogue: Dialogue
    """Up to the turn that the reply answers."""
    reply: str
    weighed: Weighed


def explain_by_sage(dialogue: Dialogue, reply: str) -> SageExplanation:
    """Weighs a reply that is not yet in the dialogue."""
    return SageExplanation(dialogue=dialogue, reply=reply, weighed=weigh(dialogue, reply))


def sage_steps(explanation: SageExplanation) -> tuple[str, str, str, str, str]:
    """The five steps, in order."""
    weighed, scenario = explanation.weighed, explanation.dialogue.scenario
    heard = moves(explanation.reply, scenario.language)
    said = {name: value for name, value in weighed.terms.items() if name not in CONTEXT}
    brought = {name: value for name, value in weighed.terms.items() if name in CONTEXT}
    return (
        f"Heard as {listed(heard)}." if heard else "No support strategy is heard in it.",
        f"{scenario.hidden_intention} What the reply adds, strongest first: {_terms(said)}.{_wording(explanation)}",
        f"Such a person, with such a wish, at this turn: {_terms(brought)}.",
        f"Score {figure(weighed.score)}. {weighed.thought}",
        " ".join(_change(weighed)),
    )


def _wording(explanation: SageExplanation) -> str:
    """The pieces of the reply that its wording owes most to."""
    if WORDING not in explanation.weighed.terms:
        return ""
    strongest = calibrated().wording.strongest(explanation.reply, MOST_PIECES)
    told = ", ".join(f"\u300c{piece}\u300d {plus(value)}" for piece, value in strongest.items())
    return f" Its wording is the sum of many small pieces, {plus(-calibrated().wording.offset)} for all; most weigh: {told}."


def _terms(terms: Mapping[str, float]) -> str:
    """Names with what they add."""
    strongest = sorted(terms, key=lambda name: -abs(terms[name]))
    return ", ".join(f"{name.replace('_', ' ')} {plus(terms[name])}" for name in strongest) or "nothing"


def _change(weighed: Weighed) -> Iterator[str]:
    numbers = calibrated()
    momentum, last, emotion = numbers.momentum, weighed.last, weighed.emotion
    yield (
        f"Pull {figure(weighed.score)} {plus(momentum.last)} \u00d7 {figure(last / 10)} "
        f"{plus(momentum.emotion)} \u00d7 ({emotion} \u2212 {WATERSHED}) / 30 = {figure(weighed.pull)}."
    )
    low, middle, high = map(figure, weighed.thresholds)
    yield f"Below {low} it is \u221210, below {middle} \u22125, below {high} +5, else +10: {signed(weighed.change)}."
    after = max(0, min(DELIGHTED_AT, emotion + weighed.change))
    if weighed.guarded:
        why = "it cannot be followed" if weighed.guarded == UNCLEAR else "all of it was said before"
        yield f"Whatever the score: {why}."
    yield f"Emotion {emotion} \u2192 {after}."


LACKS = {
    Skill.FIT: "it does not give what was hinted at",
    Skill.GROUNDING: "it takes up nothing that was told",
    Skill.LISTENING: "it goes on without having asked enough",
    Skill.MEMORY: "it does not tie back to earlier turns, or repeats itself",
    Skill.REPAIR: "it does not own what went wrong in the reply before",
    "against": "it does the opposite of what is wished for",
    "guessing": "it would meet other wishes as well, as if to try which one it is",
    "repetition": "it is nearly an earlier reply again",
    "verbatim": "it is an earlier reply again",
    "scattered": "it is too much at once",
    "unneeded_apology": "it owns a misstep that nobody saw",
}
"""What each cost is for, as part of a sentence."""

STEPS = ("says", "meets", "activity", "feeling", "change")
TITLES = ("what the reply says", "the hidden intention", "inner activity", "feeling", "change")


@dataclass(frozen=True, kw_only=True)
class FiveSteps:
    """One reply as one user took it, each step a few sentences."""

    says: str
    """What the reply says: strategies, facts taken up, length, clarity."""
    meets: str
    """How it meets the hidden intention."""
    activity: str
    """The inner activity: what was looked for, and what the lacks cost."""
    feeling: str
    """What the reply was worth, and the thought."""
    change: str
    """How the worth becomes points of emotion."""

    def named(self) -> tuple[tuple[str, str], ...]:
        """Title and text of each step, in order."""
        return tuple(zip(TITLES, (self.says, self.meets, self.activity, self.feeling, self.change), strict=True))


def five_steps(explanation: Explanation | SageExplanation) -> FiveSteps:
    """Puts an explanation into words."""
    if isinstance(explanation, SageExplanation):
        return FiveSteps(**dict(zip(STEPS, sage_steps(explanation), strict=True)))
    return FiveSteps(
        says=" ".join(_says(explanation)),
        meets=" ".join(_meets(explanation)),
        activity=" ".join(_activity(explanation)),
        feeling=f"{_worth_in_figures(explanation.worth)} {explanation.thought}",
        change=" ".join(_parts_of_change(explanation.points, explanation.dialogue.difficulty.strictness)),
    )


def _says(explanation: Explanation) -> Iterator[str]:
    reading, scenario = explanation.appraisal.reading, explanation.dialogue.story
    yield f"Heard as {listed(reading.strategies)}." if reading.strategies else "No support strategy is heard in it."
    if reading.contempt:
        yield f"It holds contempt ({listed(reading.contempt)}); the sentences that do are heard as nothing else."
    if reading.echo:
        yield "It is mostly the user's own words, an echo, and so heard to say nothing."
    told = _told(explanation)
    taken_up = [f"{scenario.facts[index].cue}{'' if index in told else ' (not told yet)'}" for index in reading.cues]
    yield f"Takes up {listed(taken_up)}." if taken_up else "Takes up nothing that this story holds."
    if reading.dropped:
        named = listed(scenario.facts[index].cue for index in reading.dropped)
        why = "an echo" if reading.echo else "nothing is said about what it names"
        yield f"Not counted, as {'it is ' if reading.echo else ''}{why}: {named}."
    limits = explanation.appraisal.limits
    too_much = f", more than {limits['moves']} moves, {limits['cues']} facts or {limits['words']} words"
    yield f"{reading.num_words} words{too_much if explanation.appraisal.scattered else ''}."
    yield f"Clarity {figure(reading.clarity)}: " + ("all of it can be followed." if reading.clarity == 1.0 else "not all can be followed.")
    if explanation.dialogue.num_replies:
        again = f", from {REPEATED_AT:g} on a repetition" if reading.similarity >= REPEATED_AT else ""
        yield f"Overlap with the most similar earlier reply {figure(reading.similarity)}{again}."
    if reading.farewell:
        yield "It says goodbye."


def _told(explanation: Explanation) -> set[int]:
    """Facts that the user has told by now."""
    dialogue = explanation.dialogue
    users = [turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER]
    return {index for text in users for index in facts_told(text, dialogue.story.facts)}


def _meets(explanation: Explanation) -> Iterator[str]:
    scenario, appraisal = explanation.dialogue.scenario, explanation.appraisal
    yield wish(scenario)
    if appraisal.shown[Skill.HINTS] is not None:
        yield "So far the wish was only hinted at from afar."
    fits = appraisal.shown[Skill.FIT]
    if fits is None:
        yield "Nothing has hinted at the wish yet, so that no reply is expected to meet it."
    else:
        yield "The reply meets it." if fits else "The reply does not meet it."
        if appraisal.times_missed > 1:
            yield f"It is reply number {appraisal.times_missed} in a row that does not."
    if appraisal.runs_against:
        yield "It even runs against it."
    if appraisal.asks_first:
        yield "It asks first, which excuses that."


def wish(scenario: Scenario) -> str:
    """What the user wants, what meets it and what runs against it."""
    family = scenario.family
    return f"{scenario.hidden_intention} Met by {listed(sorted(meets(family)))}; against it: {listed(sorted(against(family)))}."


def _activity(explanation: Explanation) -> Iterator[str]:
    shown, family = explanation.appraisal.shown, explanation.dialogue.scenario.family
    yield "Something was said: 1 to begin with." if explanation.worth.start else "Nothing was heard that means anything: 0 to begin with."
    met = [skill for skill in CHARGED if shown[skill]]
    not_called_for = [skill for skill in CHARGED if shown[skill] is None]
    if met:
        yield f"Shown: {listed(met)}."
    if not_called_for:
        yield f"Not called for: {listed(not_called_for)}."
    for cost in explanation.worth.costs:
        yield _cost_in_words(cost, family, explanation.dialogue.difficulty.strictness)


def _cost_in_words(cost: Cost, family: Family, strictness: float) -> str:
    """One lack with its price; the weight is shown the way it comes about."""
    what = f"{cost.name.replace('_', ' ').capitalize()}: {LACKS[cost.name]}"
    skill = Skill.FIT if cost.name in ("against", "guessing") else Skill(cost.name) if cost.name in tuple(Skill) else None
    if skill is None:
        return f"{what}, \u2212{figure(cost.taken)}."
    begins, ramp = onset(skill, family), skill_table()["ramp"]
    if cost.weight == 0.0:
        return f"{what}, which counts only from strictness {figure(begins)} on."
    weighed = f"weight {figure(cost.weight)}"
    if cost.weight < 1.0:
        weighed += f" [({figure(strictness)} \u2212 {figure(begins)}) / {figure(ramp)}]"
    excused = f" \u00d7 {figure(1.0 - cost.excused)} for asking first" if cost.excused else ""
    return f"{what}, {figure(cost.price)} \u00d7 {weighed}{excused} = \u2212{figure(cost.taken)}."


def _worth_in_figures(worth: Worth) -> str:
    if worth.contempt is not None:
        return f"Worth {figure(worth.contempt)}, for contempt, whatever else it holds."
    taken = "".join(f" \u2212 {figure(cost.taken)}" for cost in worth.costs if cost.taken)
    text = f"Worth {figure(worth.start)}{taken}" + (f" = {figure(worth.lacking)}" if taken else "")
    if worth.lacking < worth.floor:
        text += f", held at {figure(worth.floor)}"
    if worth.clarity < 1.0:
        missed = f"{figure(worth.garble)} \u00d7 {figure(1.0 - worth.clarity)}"
        text += f"; \u00d7 clarity {figure(worth.clarity)}, less {missed} for what could not be followed, = {figure(worth.total)}"
    return f"{text}."


def _parts_of_change(points: Points, strictness: float) -> Iterator[str]:
    kind = "gain" if points.worth > 0 else "loss"
    product = f"{figure(points.rate)} \u00d7 {figure(points.worth)} \u00d7 {figure(points.by_persona)} = {figure(points.moved)}"
    yield f"{kind.capitalize()} [{_rate_in_figures(kind, strictness)}] \u00d7 worth \u00d7 how such a person feels a {kind}: {product}."
    if points.drained:
        factors = f"{figure(points.drain)} \u00d7 {figure(points.impatience)} \u00d7 {figure(1.0 - max(0.0, points.worth))}"
        yield f"Impatience drains {factors} = {figure(points.drained)}."
    if points.disappointed:
        weighed = f" \u00d7 {figure(points.fit_weight)}" if points.fit_weight < 1.0 else ""
        factors = f"{figure(points.disappointment)} \u00d7 {figure(points.impatience)} \u00d7 {points.times_again}{weighed}"
        yield f"Disappointment at a wish missed again takes {factors} = {figure(points.disappointed)}."
    if points.carried:
        yield f"Of the change before, {figure(points.momentum)} \u00d7 {figure(points.previous)} = {figure(points.carried)} carries over."
    if points.contempt:
        yield f"Contempt takes {figure(points.contempt)}."
    yield f"Together {figure(points.summed, digits=6)}."
    if points.doubt is not None:
        summed, full = figure(points.summed, digits=6), figure(min(points.summed, points.doubted), digits=6)
        yield (
            f"A doubt comes up at this turn, whatever is said, and in full leaves no more than {figure(points.doubted)}; "
            f"with its weight: {summed} + {figure(points.doubt)} \u00d7 ({full} \u2212 {summed}) = {figure(points.exact, digits=6)}."
        )
    if abs(points.exact) > MAX_CHANGE:
        yield f"Held within \u00b1{MAX_CHANGE}."
    rounded = f"Taken to the nearest of {listed(map(figure, QUANTA))}" if points.quantise else "Rounded"
    held = f" (not beyond {DELIGHTED_AT if points.change > 0 else 0})" if points.felt != points.change else ""
    yield f"{rounded}: {signed(points.change)}. Emotion {points.before} \u2192 {points.after}{held}."


def _rate_in_figures(kind: str, strictness: float) -> str:
    """How the points for a worth of 1 follow from strictness."""
    table, d = skill_table()["points"], figure(strictness)
    if kind == "gain":
        return f"{figure(table['gain'])} {plus(table['gain_slope'])} \u00d7 {d}"
    return f"{figure(table['loss'])} \u00d7 ({figure(table['loss_floor'])} {plus(table['loss_slope'])} \u00d7 {d})"


WHAT = "a dialogue of this world"
FURTHER = ("repeated", "garbled")
"""What is counted beside the skills, as a share of all replies."""


def appraisals(dialogue: Dialogue, *, register: Register) -> Iterator[Appraisal]:
    """Every answered reply of a dialogue, weighed again in the light of what had been said by then."""
    for index, turn in enumerate(dialogue.turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            before = replace(dialogue, turns=dialogue.turns[:index], outcome=None)
            yield appraise(before, turn.text, register=register)


def shares_shown(dialogues: Iterable[Dialogue], *, register: Register) -> dict[str, float]:
    """Share of replies that showed each skill, of those whose situation called for it, and the `FURTHER` shares; NaN for none.

    Memory, for one, is called for from the third reply on and repair after a reply that hurt. Whether a skill is shown does not depend
    on whether the difficulty asks for it.
    """
    seen: dict[str, list[bool]] = defaultdict(list)
    for dialogue in dialogues:
        for appraisal in appraisals(dialogue, register=register):
            for skill, shown in appraisal.shown.items():
                if shown is not None:
                    seen[skill].append(shown)
            seen["repeated"].append(appraisal.reading.similarity >= REPEATED_AT)
            seen["garbled"].append(appraisal.reading.clarity < PUZZLED_BELOW)
    return {name: sum(seen[name]) / len(seen[name]) if seen[name] else float("nan") for name in (*Skill, *FURTHER)}


def table_of_shares(rows: Mapping[str, Sequence[Dialogue]], *, header: str, register: Register) -> str:
    """A line for each set of dialogues: how many, their mean final emotion, and `shares_shown`."""
    columns = [*Skill, *FURTHER]
    lines = [f"{header:>10}  dialogues  emotion" + "".join(f"{column:>11}" for column in columns)]
    for name, dialogues in rows.items():
        shares = shares_shown(dialogues, register=register)
        emotion = sum(dialogue.emotion for dialogue in dialogues) / len(dialogues)
        lines.append(f"{name:>10}  {len(dialogues):9}  {emotion:7.1f}" + "".join(f"{shares[column]:11.3f}" for column in columns))
    return "\n".join(lines)


def read_dialogues(path: Path, bank: Bank) -> Iterator[tuple[Mapping[str, Any], Dialogue]]:
    """The records of a run's `dialogues.jsonl`, plain or gzipped, each with its dialogue, without a last line that a kill tore.

    Raises:
        ValueError: a line is no dialogue of this world.
    """
    for number, record in read_jsonl(path, what=WHAT, on_torn=lambda number: say_torn(path, number)):
        try:
            if isinstance(record, Mapping) and not isinstance(record.get("step", 0), int):
                raise ValueError(f"step must be a whole number, got {record['step']!r}")
            yield record, Dialogue.from_dict(record, scenario=bank.scenario(record["scenario_id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} line {number} must be {WHAT}: {error}") from error


CONFIG, DIALOGUES, EVALUATION = "config.yaml", "dialogues.jsonl", "evaluation.jsonl"
SETTINGS = "simulator"
"""Where a run's config, and the record of a chat, hold the user's settings."""
AGENT = "agent"
"""What the config of an evaluation has, and that of a run has not."""
TYPES: Mapping[type, tuple[type | tuple[type, ...], str]] = {
    float: ((int, float), "a number"),
    int: (int, "a whole number"),
    bool: (bool, "true or false"),
    list: (list, "a list"),
}
"""By the type of its default, what a recorded setting of the user can be, and how that is said."""
HELD_OUT_UID = "eval:"
"""How the uid of a held-out dialogue begins."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A user's turn, as it was recorded and as the rule gives it."""

    reply: str
    """What it answers; "" for the opening."""
    recorded: Turn
    recomputed: Turn
    explanation: Explanation | SageExplanation | None
    """None for the opening."""

    @property
    def is_same(self) -> bool:
        """Whether the user felt what was recorded."""
        return (self.recorded.change, self.recorded.emotion) == (self.recomputed.change, self.recomputed.emotion)

    @property
    def other_differences(self) -> tuple[str, ...]:
        """What else is told differently: words, thought, strategies heard."""
        return tuple(name for name in ("text", "thought", "heard") if getattr(self.recorded, name) != getattr(self.recomputed, name))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which dialogues of a file are meant; None does not choose."""

    uid: str | None = None
    sibling: int | None = None
    step: int | None = None
    index: int | None = None
    """Number of the dialogue in its file, from 1."""

    def takes(self, record: Mapping[str, Any], number: int) -> bool:
        """Whether it is one of them."""
        asked = (
            (self.uid, record.get("uid")),
            (self.sibling, record.get("sibling")),
            (self.step, record.get("step")),
            (self.index, number),
        )
        return all(wanted is None or wanted == is_there for wanted, is_there in asked)

    def __str__(self) -> str:
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value!r}" for name, value in asked.items() if value is not None) or "anything"


def replay(dialogue: Dialogue, config: RuleUserConfig) -> Iterator[Replayed]:
    """Every turn of the user, each recomputed from what was recorded before it, so that one difference does not bring others.

    Raises:
        ValueError: a turn lacks what the rule is to be compared with.
    """
    user, turns = user_of(config), dialogue.turns
    require_feelings(dialogue)
    opening = user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0]
    yield Replayed(reply="", recorded=turns[0], recomputed=opening, explanation=None)
    for index, turn in enumerate(turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            before = replace(dialogue, turns=turns[:index], outcome=None)
            recomputed = user.answer(before, turn.text).turn
            before = user.taken(before, turn.text)
            yield Replayed(
                reply=turn.text,
                recorded=turns[index + 1],
                recomputed=recomputed,
                explanation=explain_by_sage(before, turn.text)
                if config.preset is Preset.SAGE
                else explain_reply(before, turn.text, config),
            )


def user_of(config: RuleUserConfig) -> RuleUser:
    """The user who follows a rule with these settings; one of a study has a class of its own."""
    own = {settings: user for settings, user in USERS.values() if settings is not RuleUserConfig}
    user: RuleUser = own.get(type(config), NativeUser)(config)
    return user


def by_rule() -> dict[str, type[RuleUserConfig]]:
    """Kinds of user whose recorded changes can be computed again, with the settings of each."""
    return {kind: settings for kind, (settings, _) in USERS.items() if issubclass(settings, RuleUserConfig)}


def follows_rule(kind: Any) -> bool:
    """Whether a user of this kind can be computed again; a kind that the core does not know may be a study's."""
    if kind not in USERS:
        import_studies()
    return kind in by_rule()


def require_feelings(dialogue: Dialogue) -> None:
    """Raises unless the turns alternate, the user's first, and each of the user's tells what was felt.

    Raises:
        ValueError: with the number of the turn.
    """
    if not dialogue.turns:
        raise ValueError("turns must begin with the user's opening, got none")
    for number, turn in enumerate(dialogue.turns, start=1):
        due = (Speaker.AGENT, Speaker.USER)[number % 2]
        if turn.speaker is not due:
            raise ValueError(f"turn {number} must be the {due}'s, got one of the {turn.speaker}")
        if turn.speaker is Speaker.USER and (turn.emotion is None or (turn.change is None and number > 1)):
            raise ValueError(f"turn {number} must hold an emotion{' and a change' if number > 1 else ''}, got neither or one of them")


def chosen(path: Path, selection: Selection, bank: Bank) -> Iterator[tuple[int, Mapping[str, Any], Dialogue]]:
    """The dialogues of a file that are meant, each with its number and record.

    Raises:
        ValueError: a line is no dialogue on a scenario of the bank, or none is meant.
    """
    num_taken = 0
    for number, (record, dialogue) in enumerate(read_dialogues(path, bank), start=1):
        if selection.takes(record, number):
            num_taken += 1
            yield number, record, dialogue
    if not num_taken:
        raise ValueError(f"{path} must hold a dialogue with {selection}, got none")


def transcript_file(source: Path, *, evaluation: bool) -> Path:
    """The file that is meant: itself, or one of a run's two.

    Args:
        evaluation: of a run's folder take the held-out dialogues.

    Raises:
        ValueError: it is not there.
    """
    path = source
    if source.is_dir():
        # What an evaluation of any agent leaves behind is all held out, and in one file.
        is_apart = evaluation and AGENT not in recorded_config(source / CONFIG)
        path = source / (EVALUATION if is_apart else DIALOGUES)
    if not path.is_file():
        raise ValueError(f"DIALOGUE must be a JSONL file of ours or a run's folder, got {str(source)!r}; {path} is not there")
    return path


def recorded_config(path: Path) -> dict[str, Any]:
    """The run's config beside a transcript file, {} without one.

    Raises:
        ValueError: it cannot be read.
    """
    config = path.parent / CONFIG
    if not config.is_file():
        return {}
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{config} must be read with PyYAML, which is not installed; install it, or move the dialogues elsewhere"
        ) from error
    try:
        tree = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} must be YAML, got {str(error).splitlines()[0]}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get(SETTINGS, {}), dict):
        raise ValueError(f"{config} must hold settings by name")
    return tree


def settings_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The user's settings in a dialogue's record or a run's config; none where it has none.

    Raises:
        ValueError: what stands there is something else.
    """
    found = record.get(SETTINGS) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{SETTINGS} must hold a user's settings by name, got {found!r}")
    return found


def recorded_register(*sources: Mapping[str, Any]) -> str:
    """In which register the users of a dialogue heard, of several sources the first that says it; a model as user hears the open one."""
    if any(source.get("kind") is not None and not follows_rule(source["kind"]) for source in sources):
        return Register.OPEN
    return next((str(source["register"]) for source in sources if source.get("register")), str(Register.WORLD))


def user_settings(*sources: Mapping[str, Any]) -> RuleUserConfig:
    """The user's settings, of several sources the first that has each; what is None says nothing.

    Raises:
        ValueError: a setting is not one that the embedded user can have.
    """
    kind = next((source["kind"] for source in sources if source.get("kind") is not None), "rule")
    if not follows_rule(kind):
        known = " or ".join(by_rule())
        raise ValueError(f"simulator.kind must be {known}, got {kind!r}: only the embedded user follows a rule that can be replayed")
    config = by_rule()[kind]
    found: dict[str, Any] = {}
    for source in reversed(sources):
        found |= {field.name: source[field.name] for field in fields(config) if source.get(field.name) is not None}
    usual = vars(config())
    for name, value in found.items():
        types, what = TYPES.get(type(usual[name]), (object, ""))
        if not isinstance(value, types) or (types is not object and isinstance(value, bool) != (types is bool)):
            raise ValueError(f"simulator.{name} must be {what}, got {value!r}")
    if "register" in found:
        found["register"] = Register(found["register"])
    if "preset" in found:
        found["preset"] = Preset(found["preset"])
    return config(**found)


WIDTH = 118
DIFFERS = 1
"""Exit code when a change is not the one that the rule gives."""
MAX_NAMED = 20
"""Dialogues with a difference that are named one by one."""


def explain_dialogues(options: argparse.Namespace) -> int:
    """Replays what was selected and prints it; returns the exit code."""
    held_out = options.evaluation or bool(options.uid and options.uid.startswith(HELD_OUT_UID))
    path = transcript_file(options.dialogue, evaluation=held_out)
    selection = Selection(uid=options.uid, sibling=options.sibling, step=options.step, index=options.index)
    if options.num < 0:
        raise ValueError(f"--num must be at least 0, got {options.num}")
    config = recorded_config(path)
    flags = {name: getattr(options, name) for name in ("register", "momentum", "start_emotion", "quantise", "preset")}
    worlds = dict[tuple[str, str], None]()
    tally = Tally()
    for number, record, dialogue in chosen(path, selection, bank_of(options.profiles)):
        settings = user_settings(flags, settings_of(record), settings_of(config))
        recorded = recorded_world(record, config) or recorded_world(config.get("provenance") or {}, config)
        worlds[recorded, world_of(settings)] = None
        try:
            turns = list(replay(dialogue, settings))
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from error
        tally.add(name_of(number, record), turns)
        if tally.num_dialogues <= options.num:
            print(*in_full(name_of(number, record), dialogue, turns, settings), sep="\n")
    print(*other_worlds(worlds), *tally.lines(path), sep="\n")
    return DIFFERS if tally.differing else 0


def bank_of(profiles: Path | None) -> Bank:
    """The built-in scenarios, or those of a native file of profiles."""
    return load_bank() if profiles is None else Bank(by_id=profiles_by_id(profiles))


def other_worlds(worlds: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A warning for each world that was recorded in and is not the one that is replayed in."""
    for recorded, now in worlds:
        if recorded and recorded != now:
            yield f"note: recorded in world {recorded}, replayed in world {now}: differences may come from that"


class Tally:
    """How many changes were the same, and which dialogues hold one that was not."""

    def __init__(self) -> None:
        self.num_dialogues = self.num_turns = self.num_differing_turns = self.num_other = 0
        self.differing: list[str] = []

    def add(self, name: str, turns: list[Replayed]) -> None:
        """Counts a dialogue in."""
        wrong = [turn for turn in turns if not turn.is_same]
        self.num_dialogues += 1
        self.num_turns += len(turns)
        self.num_differing_turns += len(wrong)
        self.num_other += sum(bool(turn.other_differences) for turn in turns)
        if wrong:
            self.differing.append(f"{name}: {'; '.join(map(compared, wrong))}")

    def lines(self, path: Path) -> Iterator[str]:
        """The verdict."""
        yield f"{path}: {count(self.num_dialogues, 'dialogue')}, {count(self.num_turns, 'emotion')} recomputed"
        yield from (f"  differs in {line}" for line in self.differing[:MAX_NAMED])
        if len(self.differing) > MAX_NAMED:
            yield f"  and in {count(len(self.differing) - MAX_NAMED, 'further dialogue')}"
        if self.num_other:
            yield f"  {count(self.num_other, 'turn')} with other words, thoughts or strategies than the rule gives"
        same = "all are the same" if not self.differing else f"{self.num_differing_turns} differ"
        yield f"  {same}"


def in_full(name: str, dialogue: Dialogue, turns: list[Replayed], config: RuleUserConfig) -> Iterator[str]:
    """A dialogue with what was recorded, what is recomputed, and the five steps between."""
    difficulty = dialogue.difficulty
    axes = ", ".join(f"{axis} {value:.3g}" for axis, value in difficulty.to_dict().items())
    yield f"{name}: {dialogue.scenario.scenario_id}, {axes}, seed {dialogue.seed}, {dialogue.outcome or 'not ended'}"
    yield settings_in_words(config)
    yield from wrapped("hidden intention: ", dialogue.scenario.hidden_intention)
    for turn in turns:
        yield ""
        if turn.explanation is not None:
            yield from wrapped("      agent  ", turn.reply)
        yield from wrapped(f"{turn.recorded.emotion:4}  user   ", turn.recorded.text)
        verdict = "the same" if turn.is_same else "DIFFERENT"
        yield f"             {compared(turn)}: {verdict}"
        for what in turn.other_differences:
            yield from wrapped(f"             recorded {what}:   ", worded(turn.recorded, what))
            yield from wrapped(f"             recomputed {what}: ", worded(turn.recomputed, what))
        if turn.explanation is not None:
            if (mood := turn.explanation.dialogue.difficulty) != difficulty:
                yield f"             in a mood: strictness {mood.strictness:g}, impatience {mood.impatience:g}"
            for number, (title, text) in enumerate(five_steps(turn.explanation).named(), start=1):
                yield from wrapped(f"             {number} {title}: ", text, hanging=15)
    yield ""


def settings_in_words(config: RuleUserConfig) -> str:
    """How the replies are read, and what else the user brings."""
    if config.preset is Preset.SAGE:
        return "preset sage: fitted on SAGE's recorded users, with their changes and momentum, start at 40"
    rounding = "rounded to SAGE's changes" if config.quantise else "in whole points"
    register = config.register or Register.OPEN
    further = "".join(f", {name} {value}" for name, value in vars(config).items() if not hasattr(RuleUserConfig, name))
    return f"register {register}, momentum {config.momentum:g}, start at {config.start_emotion}, changes {rounding}{further}"


def compared(turn: Replayed) -> str:
    """What was recorded beside what the rule gives."""
    return f"recorded {felt(turn.recorded)}, recomputed {felt(turn.recomputed)}"


def felt(turn: Turn) -> str:
    """A change and where it led."""
    return f"{turn.emotion}" if turn.change is None else f"{signed(turn.change)} to {turn.emotion}"


def worded(turn: Turn, what: str) -> str:
    """One of the turn's words, lists with commas."""
    value = getattr(turn, what)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def name_of(number: int, record: Mapping[str, Any]) -> str:
    """How to find this dialogue again."""
    uid, sibling = record.get("uid"), record.get("sibling")
    return f"dialogue {number}" + (f" ({uid}{'' if sibling is None else f', sibling {sibling}'})" if uid else "")


def count(num: int, what: str) -> str:
    """A number with its noun."""
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def wrapped(opening: str, text: str, *, hanging: int | None = None) -> list[str]:
    """Lines of text after an opening, the later ones indented as far as it or by `hanging`."""
    indent = " " * (len(opening) if hanging is None else hanging)
    return textwrap.wrap(text, WIDTH, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]
