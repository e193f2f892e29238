"""The five steps from a reply to a change of emotion, in words and with the figures, in the order in which SAGE's users take them.

Source: SAGE, arXiv 2505.02847: what the reply says, how it meets the hidden intention, the inner activity, the feeling, the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, Speaker
from simulator.emotion import MAX_CHANGE, QUANTA, REPEATED_AT
from simulator.explanation import CHARGED, Cost, Explanation, Points, Worth
from simulator.figures import figure, listed, plus, signed
from simulator.reading import facts_told
from simulator.sage_steps import SageExplanation, sage_steps
from simulator.scenario import Family, Scenario
from simulator.skills import Skill, against, meets, onset, skill_table

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
        change=" ".join(_change(explanation.points, explanation.dialogue.difficulty.strictness)),
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


def _change(points: Points, strictness: float) -> Iterator[str]:
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
