"""The five steps to a change under the preset SAGE: the score taken apart term by term, so that the change can be added up by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, Dialogue
from simulator.figures import figure, listed, plus, signed
from simulator.sage_emotion import CONTEXT, UNCLEAR, WATERSHED, WORDING, Weighed, calibrated, weigh
from simulator.signs import moves

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
