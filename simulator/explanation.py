"""The explanation of a change of emotion: every number between a reply and the change, in the five steps of SAGE's users.

Source: SAGE, arXiv 2505.02847: the content of the reply, the hidden intention, the inner activity, the feeling, the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, Dialogue
from simulator.emotion import (
    CHARGED,
    MAX_CHANGE,
    QUANTA,
    REPEATED_AT,
    Appraisal,
    Cost,
    Points,
    Skill,
    against,
    appraise,
    meets,
    onset,
    points_of,
    skill_table,
    thought_of,
)
from simulator.listener import Register
from simulator.preset import CONTEXT, UNCLEAR, WATERSHED, WORDING, Weighed, calibrated, moves, weigh
from simulator.rule_user import Preset, RuleUserConfig
from simulator.scenario import Family

TITLES = ("what the reply says", "the hidden intention", "inner activity", "feeling", "change")
REASONS = {
    Skill.FIT: "it does not give what was hinted at",
    Skill.GROUNDING: "it takes up nothing that the user mentioned",
    Skill.LISTENING: "it goes on without having asked enough",
    Skill.MEMORY: "it does not tie back to earlier turns, or repeats itself",
    Skill.REPAIR: "it does not own what went wrong in the reply before",
    "against": "it does the opposite of what is wished for",
    "guessing": "it would meet other wishes too, as if to try which one it is",
    "repetition": "it is nearly an earlier reply again",
    "verbatim": "it is an earlier reply again",
    "scattered": "it is too much at once",
    "unneeded_apology": "it owns a misstep that did not happen",
}
"""The reason for each cost."""
MOST_PIECES = 4
"""Pieces of a reply's wording that an explanation names."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One reply and the change that it causes, with every number in between."""

    dialogue: Dialogue
    """Up to the turn that the reply answers."""
    reply: str
    appraisal: Appraisal
    points: Points
    thought: str
    """The user's, in the user's words."""
    weighed: Weighed | None = None
    """Under the preset SAGE, which replaces `points`."""

    def steps(self) -> tuple[tuple[str, str], ...]:
        """Title and text of the five steps, in the order in which SAGE's users take them."""
        texts = self._training_steps() if self.weighed is None else self._sage_steps(self.weighed)
        return tuple((title, " ".join(text)) for title, text in zip(TITLES, texts, strict=True))

    def losses(self) -> dict[str, float]:
        """Worth that the reply lost, by name: costs, and contempt or garble."""
        lost = {cost.name: cost.taken for cost in self.appraisal.costs if cost.taken}
        table, parsed = skill_table(), self.appraisal.parsed
        if parsed.contempt:
            lost["contempt"] = self._start - sum(lost.values()) - table["contempt"]
        elif parsed.clarity < 1.0:
            lost["garble"] = table["side_costs"]["garble"] * (1.0 - parsed.clarity)
        return lost

    @property
    def _start(self) -> float:
        return 1.0 if self.appraisal.says_something else 0.0

    def _training_steps(self) -> tuple[Iterator[str], ...]:
        return self._says(), self._meets(), self._activity(), iter((self._worth(), self.thought)), self._change()

    def _says(self) -> Iterator[str]:
        parsed, facts = self.appraisal.parsed, self.dialogue.story.facts
        yield f"Heard as {listed(parsed.strategies)}." if parsed.strategies else "No support strategy is heard in it."
        if parsed.contempt:
            yield f"It holds contempt ({listed(parsed.contempt)}); the sentences with it show no strategy."
        if parsed.echo:
            yield "It is mostly the user's own words, an echo, and shows no strategy."
        known = {index for turn in parsed.mentioned for index in turn}
        taken_up = [f"{facts[index].cue}{'' if index in known else ' (not mentioned yet)'}" for index in parsed.cues]
        yield f"Takes up {listed(taken_up)}." if taken_up else "Takes up nothing of this story."
        if parsed.dropped:
            why = "it is an echo" if parsed.echo else "nothing is said about it"
            yield f"Not counted, as {why}: {listed(facts[index].cue for index in parsed.dropped)}."
        limits = self.appraisal.limits
        too_much = f", more than {limits['moves']} moves, {limits['cues']} facts or {limits['words']} words"
        yield f"{parsed.num_words} words{too_much if self.appraisal.scattered else ''}."
        yield f"Clarity {figure(parsed.clarity)}."
        if self.dialogue.num_replies:
            again = f", from {REPEATED_AT:g} on a repetition" if parsed.similarity >= REPEATED_AT else ""
            yield f"Overlap with the most similar earlier reply {figure(parsed.similarity)}{again}."
        if parsed.farewell:
            yield "It says goodbye."

    def _meets(self) -> Iterator[str]:
        scenario, appraisal = self.dialogue.scenario, self.appraisal
        wanted, unwanted = (listed(sorted(strategies(scenario.family))) for strategies in (meets, against))
        yield f"{scenario.hidden_intention} Met by {wanted}; against it: {unwanted}."
        if appraisal.shown[Skill.HINTS] is not None:
            yield "So far the wish was only hinted at from afar."
        fits = appraisal.shown[Skill.FIT]
        if fits is None:
            yield "Nothing has hinted at the wish yet, so no reply is expected to meet it."
        else:
            yield "The reply meets it." if fits else "The reply does not meet it."
        if appraisal.times_missed > 1:
            yield f"It is reply number {appraisal.times_missed} in a row that does not."
        if appraisal.runs_against:
            yield "It even runs against it."
        if appraisal.asks_first:
            yield "It asks first, which excuses that."

    def _activity(self) -> Iterator[str]:
        shown, family = self.appraisal.shown, self.dialogue.scenario.family
        yield f"Starts at {figure(self._start)}, as {'something' if self._start else 'nothing'} was said."
        for title, value in (("Shown", True), ("Not called for", None)):
            if skills := [skill for skill in CHARGED if shown[skill] is value]:
                yield f"{title}: {listed(skills)}."
        for cost in self.appraisal.costs:
            yield _cost_in_words(cost, family, self.dialogue.difficulty.strictness)

    def _worth(self) -> str:
        parsed, table, costs = self.appraisal.parsed, skill_table(), [cost for cost in self.appraisal.costs if cost.taken]
        if parsed.contempt:
            return f"Worth {figure(self.appraisal.worth)}, for contempt, whatever else it holds."
        left = self._start - sum(cost.taken for cost in costs)
        text = f"Worth {figure(self._start)}" + "".join(f" \u2212 {figure(cost.taken)}" for cost in costs)
        text += f" = {figure(left)}" if costs else ""
        if left < table["worst"]:
            text += f", held at {figure(table['worst'])}"
        if parsed.clarity < 1.0:
            missed = f"{figure(table['side_costs']['garble'])} \u00d7 {figure(1.0 - parsed.clarity)}"
            text += f"; \u00d7 clarity {figure(parsed.clarity)}, less {missed} for the rest, = {figure(self.appraisal.worth)}"
        return f"{text}."

    def _change(self) -> Iterator[str]:
        points, table, strictness = self.points, skill_table()["points"], figure(self.dialogue.difficulty.strictness)
        kind = "gain" if points.worth > 0 else "loss"
        if kind == "gain":
            rate = f"{figure(table['gain'])} {plus(table['gain_slope'])} \u00d7 {strictness}"
        else:
            rate = f"{figure(table['loss'])} \u00d7 ({figure(table['loss_floor'])} {plus(table['loss_slope'])} \u00d7 {strictness})"
        moved = _product(points.moved, points.rate, points.worth, points.by_persona)
        yield f"{kind.capitalize()} [{rate}] \u00d7 worth \u00d7 how such a person feels a {kind}: {moved}."
        if points.drained:
            yield f"Impatience drains {_product(points.drained, points.drain, points.impatience, 1.0 - max(0.0, points.worth))}."
        if points.disappointed:
            factors = (points.disappointment, points.impatience, points.times_again, points.fit_weight)
            yield f"Disappointment at a wish missed again takes {_product(points.disappointed, *factors)}."
        if points.carried:
            yield f"Of the change before, {_product(points.carried, points.momentum, points.previous)} carries over."
        if points.contempt:
            yield f"Contempt takes {figure(points.contempt)}."
        summed = figure(points.summed, digits=6)
        yield f"Together {summed}."
        if points.doubt is not None:
            full = figure(min(points.summed, points.doubted), digits=6)
            yield (
                f"A doubt comes up at this turn, whatever is said, and in full leaves no more than {figure(points.doubted)}; "
                f"with its weight: {summed} + {figure(points.doubt)} \u00d7 ({full} \u2212 {summed}) = {figure(points.exact, digits=6)}."
            )
        if abs(points.exact) > MAX_CHANGE:
            yield f"Held within \u00b1{MAX_CHANGE}."
        rounded = f"Taken to the nearest of {listed(map(figure, QUANTA))}" if points.quantise else "Rounded"
        held = f" (not beyond {DELIGHTED_AT if points.change > 0 else 0})" if points.felt != points.change else ""
        yield f"{rounded}: {signed(points.change)}. Emotion {points.before} \u2192 {points.after}{held}."

    def _sage_steps(self, weighed: Weighed) -> tuple[Iterator[str], ...]:
        scenario, numbers = self.dialogue.scenario, calibrated()
        heard = moves(self.reply, scenario.language)
        said = {name: value for name, value in weighed.terms.items() if name not in CONTEXT}
        given = {name: value for name, value in weighed.terms.items() if name in CONTEXT}
        meeting = [f"{scenario.hidden_intention} The reply's terms, strongest first: {_terms(said)}."]
        if WORDING in said:
            strongest = numbers.wording.strongest(self.reply, MOST_PIECES)
            named = ", ".join(f"\u300c{piece}\u300d {plus(value)}" for piece, value in strongest.items())
            meeting.append(f"Its wording is a sum of many small pieces, {plus(-numbers.wording.offset)} for all; most weigh: {named}.")
        low, middle, high = map(figure, weighed.thresholds)
        last, emotion = numbers.momentum.last, numbers.momentum.emotion
        change = [
            f"Pull {figure(weighed.score)} {plus(last)} \u00d7 {figure(weighed.last / 10)} "
            f"{plus(emotion)} \u00d7 ({weighed.emotion} \u2212 {WATERSHED}) / 30 = {figure(weighed.pull)}.",
            f"Below {low} it is \u221210, below {middle} \u22125, below {high} +5, else +10: {signed(weighed.change)}.",
        ]
        if weighed.guarded:
            reason = "it cannot be followed" if weighed.guarded == UNCLEAR else "all of it was said before"
            change.append(f"Whatever the score: {reason}.")
        change.append(f"Emotion {weighed.emotion} \u2192 {max(0, min(DELIGHTED_AT, weighed.emotion + weighed.change))}.")
        return (
            iter([f"Heard as {listed(heard)}." if heard else "No support strategy is heard in it."]),
            iter(meeting),
            iter([f"Such a person, with such a wish, at this turn: {_terms(given)}."]),
            iter([f"Score {figure(weighed.score)}. {self.thought}"]),
            iter(change),
        )


def explain_reply(dialogue: Dialogue, reply: str, config: RuleUserConfig) -> Explanation:
    """Weighs a reply that is not yet in the dialogue as the embedded user does, and keeps every number."""
    appraisal = appraise(dialogue, reply, register=config.register or Register.OPEN)
    points = points_of(appraisal, dialogue, momentum=config.momentum, quantise=config.quantise)
    weighed = weigh(dialogue, reply) if config.preset is Preset.SAGE else None
    thought = thought_of(appraisal, points, dialogue) if weighed is None else weighed.thought
    return Explanation(dialogue=dialogue, reply=reply, appraisal=appraisal, points=points, thought=thought, weighed=weighed)


def _cost_in_words(cost: Cost, family: Family, strictness: float) -> str:
    """One cost with its price; the weight is shown the way it comes about."""
    what = f"{cost.name.replace('_', ' ').capitalize()}: {REASONS[cost.name]}"
    skill = Skill.FIT if cost.name in ("against", "guessing") else Skill(cost.name) if cost.name in tuple(Skill) else None
    if skill is None:
        return f"{what}, \u2212{figure(cost.taken)}."
    begins = figure(onset(skill, family))
    if cost.weight == 0.0:
        return f"{what}, which counts only from strictness {begins} on."
    ramp = f" [({figure(strictness)} \u2212 {begins}) / {figure(skill_table()['ramp'])}]" if cost.weight < 1.0 else ""
    excused = f" \u00d7 {figure(1.0 - cost.excused)} for asking first" if cost.excused else ""
    return f"{what}, {figure(cost.price)} \u00d7 weight {figure(cost.weight)}{ramp}{excused} = \u2212{figure(cost.taken)}."


def _terms(terms: Mapping[str, float]) -> str:
    strongest = sorted(terms, key=lambda name: -abs(terms[name]))
    return ", ".join(f"{name.replace('_', ' ')} {plus(terms[name])}" for name in strongest) or "nothing"


def _product(result: float, *factors: float) -> str:
    return " \u00d7 ".join(map(figure, factors)) + f" = {figure(result)}"


def figure(value: float, *, digits: int = 4) -> str:
    """A number without needless zeros."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "\u2212")


def plus(value: float) -> str:
    """A term of a sum with the sign before it."""
    return f"\u2212 {figure(-value)}" if value < 0 else f"+ {figure(value)}"


def signed(change: int) -> str:
    """A change with its sign."""
    return figure(change) if change < 0 else f"+{change}"


def listed(words: Iterable[str]) -> str:
    """Names with commas, spaces instead of underscores."""
    return ", ".join(word.replace("_", " ") for word in words)


def count(num: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{num:,} {one if num == 1 else many or f'{one}s'}"
