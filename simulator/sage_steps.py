"""The five steps to a change under the preset SAGE: the score taken apart term by term, so that the change can be added up by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, Dialogue
from simulator.figures import figure, listed, plus, signed
from simulator.sage_emotion import CONTEXT, UNCLEAR, WATERSHED, Weighed, calibrated, weigh
from simulator.signs import moves


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
        f"{scenario.hidden_intention} What the reply adds, strongest first: {_terms(said)}.",
        f"Such a person, with such a wish, at this turn: {_terms(brought)}.",
        f"Score {figure(weighed.score)}. {weighed.thought}",
        " ".join(_change(weighed)),
    )


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
    low, middle, high = map(figure, numbers.thresholds)
    yield f"Below {low} it is \u221210, below {middle} \u22125, below {high} +5, else +10: {signed(weighed.change)}."
    after = max(0, min(DELIGHTED_AT, emotion + weighed.change))
    if weighed.guarded:
        why = "it cannot be followed" if weighed.guarded == UNCLEAR else "all of it was said before"
        yield f"Whatever the score: {why}."
    yield f"Emotion {emotion} \u2192 {after}."
