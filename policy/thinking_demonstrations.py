"""The thought before each demonstrated reply: what the user hints at, what of the told is taken up, which move follows.

A thought is read off a reply that the demonstrator has made anyway, so the one who thinks has the habits and skills of the one who does
not. It names the wish even where the reply passes it over: naming is what makes a hint's meaning one word, from which a move is one
further step. Its vocabulary is closed and it is short, for a small model and a small budget of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from policy.demonstrations import Demonstration
from simulator.dialogue import Dialogue, Speaker
from simulator.emotion import hint_in
from simulator.listener import strategies_in

WISHES = {
    "advice": "advice",
    "empathy": "warmth",
    "listened": "space",
    "praise": "praise",
    "reflection": "insight",
    "both_sides": "fairness",
    "motives": "reasons",
    "not_at_fault": "backing",
}
"""Hidden intention -> how a thought names what was hinted at."""
MOVES = {
    "question": "ask",
    "restatement": "restate",
    "reflection": "empathise",
    "reassurance": "soothe",
    "praise": "admire",
    "suggestion": "advise",
    "information": "inform",
    "self_disclosure": "share",
    "motives": "explain",
    "siding": "absolve",
    "both_sides": "balance",
    "guided_reflection": "wonder",
    "listening": "listen",
    "referral": "refer",
    "apology": "apologise",
    "hedging": "hedge",
}
"""Support strategy -> how a thought names it."""
HINTED = ("They want {wish}", "Wish: {wish}", "Wants {wish}")
NOTHING_HINTED = ("No hint yet", "Wish unclear")
TAKEN_UP = (", told of {cue}", ", with {cue}")
DECIDED = (", so {move}.", ": {move}.", "; I {move}.")
DETERMINERS = ("the", "your", "that", "those")
"""With which a phrase begins that takes up something told."""


@dataclass(frozen=True, kw_only=True)
class ShownThought:
    """The thought before one reply."""

    text: str
    chosen: tuple[str, ...]
    """The words in it that decide: the wish and the move."""
    copied: tuple[str, ...]
    """The phrase in it that the user said, if any."""


def thoughts(demo: Demonstration, chance: random.Random) -> Iterator[ShownThought]:
    """One thought for each reply of a demonstration; all of it is true of the conversation so far and of the reply."""
    dialogue, copied = demo.dialogue, iter(demo.copied)
    for number, turn in enumerate(dialogue.turns):
        if turn.speaker is Speaker.AGENT:
            yield _thought(replace(dialogue, turns=dialogue.turns[:number]), turn.text, next(copied), chance)


def _thought(before: Dialogue, reply: str, copied: tuple[str, ...], chance: random.Random) -> ShownThought:
    wish = _latest_wish(before)
    cue = next((phrase for phrase in copied if phrase.partition(" ")[0] in DETERMINERS and " " in phrase), "")
    heard = sorted(strategies_in(reply), key=lambda strategy: strategy != "apology")
    moves = [MOVES[strategy] for strategy in heard]
    first = chance.choice(HINTED).format(wish=WISHES[wish]) if wish else chance.choice(NOTHING_HINTED)
    told = chance.choice(TAKEN_UP).format(cue=cue) if cue else ""
    text = f"{first}{told}{chance.choice(DECIDED).format(move=' and '.join(moves))}"
    return ShownThought(text=text, chosen=(*([WISHES[wish]] if wish else []), *moves), copied=(cue,) if cue else ())


def _latest_wish(dialogue: Dialogue) -> str | None:
    """What the user hinted at last, overtly or not; None before any hint."""
    for turn in reversed(dialogue.turns):
        if turn.speaker is Speaker.USER and (wish := hint_in(turn.text, kinds=("overt", "veiled"))):
            return wish
    return None
