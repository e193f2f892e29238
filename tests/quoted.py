"""Sentences that an earlier listener heard wrongly, with the user they suit and whether they should please."""

from simulator.scenario import Scenario, Split
from simulator.world import load_bank

QUOTED = (
    (
        "praise",
        "You learned a whole speech in a language that isn't yours. That's a beautiful thing to have done, and nobody told you.",
        True,
    ),
    (
        "empathy",
        "Your mum gets to walk out of the room; you have to stay in it and keep smiling. There's something very lonely about that.",
        True,
    ),
    ("not_at_fault", "Poor man, sure. Doesn't turn it into something you did.", True),
    ("empathy", "Ugh. And then the money comes, and you have to be glad about it.", True),
    ("empathy", "Well, those books won't pay for themselves, will they? Poor you, having to cash all those cheques.", False),
    ("listened", "Well then, give it to the park. Problem solved.", False),
)


def user_who_wishes(intention: str) -> Scenario:
    """A training scenario of a hidden intention."""
    return next(one for one in load_bank().scenarios(Split.TRAIN) if one.family.intention == intention)
