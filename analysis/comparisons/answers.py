"""Whether the first arm of a contrast is better, and a comparison's verdict in at most three sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.endpoints import IN_WORDS, sign_of

Contrast = Mapping[str, Any]
"""An entry of `contrasts` in `comparison.json`."""
Plan = Mapping[str, Any]
"""Its `plan`."""
DECIDES_FROM = 5
"""Pairs below which a comparison describes and does not decide."""
UNDECIDED = "Undecided means fewer than {} pairs, p above {:g} after Holm's correction, or anything else than was planned."
FLATTERED = "The best of several arms, chosen on these runs, is ahead by luck too often: against it only a yes counts."


def answer(contrast: Contrast, plan: Plan) -> str:
    """`yes` or `no` where p after Holm is at most alpha, else `undecided`; an arm a little behind is as undecided as one a little ahead."""
    endpoint = contrast["endpoints"][plan["primary"]]
    if endpoint is None or contrast["incomplete"] or endpoint["num_pairs"] < DECIDES_FROM or endpoint["p_holm"] > plan["alpha"]:
        return "undecided"
    is_better = sign_of(plan["primary"]) * endpoint["difference"]["value"] > 0
    # Of five equal arms the best lies ahead for sure in 8 % of ten-seed sweeps of noise at p <= 0.05.
    return "yes" if is_better else "undecided" if is_flattered(contrast) else "no"


def is_flattered(contrast: Contrast) -> bool:
    """Whether the second arm was chosen on these very runs as the best of several."""
    return len(contrast.get("b_chosen_from", ())) > 1


def verdict(found: Mapping[str, Any]) -> list[str]:
    """How many contrasts are a yes, and what leaves the others open."""
    contrasts, plan = found["contrasts"], found["plan"]
    if not any(contrast["endpoints"][plan["primary"]] for contrast in contrasts):
        return ["Nothing can be compared: no two arms have runs that may be set against each other."]
    answers = [contrast["answer"] for contrast in contrasts]
    counts = ", ".join(f"{answers.count(said)} {said}" for said in ("yes", "no", "undecided"))
    sentences = [f"Is the first arm better by {IN_WORDS.get(plan['primary'], plan['primary'])}? Of {len(contrasts)}: {counts}."]
    if "undecided" in answers:
        sentences.append(UNDECIDED.format(DECIDES_FROM, plan["alpha"]))
    if any(is_flattered(contrast) for contrast in contrasts):
        sentences.append(FLATTERED)
    return sentences
