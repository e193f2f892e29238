"""What a contrast showed, in the words of the page and of the command alike; they claim no more than the primary endpoint does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.endpoints import AUC, EMOTIONS, IN_WORDS, MARGINS, digits_of, sign_of, unit_of
from analysis.wording import signed

Contrast = Mapping[str, Any]
"""An entry of `contrasts` in `comparison.json`."""
Plan = Mapping[str, Any]
"""Its `plan`."""
FINAL = "heldout.score"
MEANING = {
    AUC: "the held-out score averaged over policy tokens (the area under its curve)",
    FINAL: "the held-out score at the end",
    MARGINS[0]: "the change that training made to the lead of what a user told, in nats, asked for plainly (the reliability probe)",
}
DECIDES_FROM = 5
"""Pairs below which a comparison describes and does not decide."""
OPENINGS = ("Over ", "In one seed")
"""How sentences about too few seeds begin."""
NUMBERS = ("no", "one", "two", "three", "four")
SO_FEW = "so few describe and do not decide"
NOT_ONE = "contrasts can be computed: each is with an arm that has no run here which can be used."
TOO_EARLY = "what is here is not what was planned, and nothing is decided before it is"


def summary_of(found: Mapping[str, Any]) -> str:
    """How the contrasts came out, in a sentence or two for each arm they are about."""
    plan = found["plan"]
    tested = [contrast for contrast in found["contrasts"] if contrast["endpoints"][plan["primary"]]]
    if not found["contrasts"]:
        return "There is one arm, and nothing to compare it with."
    if not tested:
        usable = {name for name, arm in found["arms"].items() if arm["seeds"]}
        if len(usable) > 1 and all({contrast["a"], contrast["b"]} - usable for contrast in found["contrasts"]):
            return f"None of the {NOT_ONE}"
        return "Nothing can be compared: no two arms have a seed on which they may be set against each other."
    firsts = dict.fromkeys(contrast["a"] for contrast in tested)
    if len(firsts) > 1 and not any(can_decide(contrast, plan) for contrast in tested):
        return by_what(plan, on_pairs(tested, plan))
    return by_what(plan, " ".join(on_favourite(a, [c for c in tested if c["a"] == a], plan) for a in firsts))


def by_what(plan: Plan, said: str) -> str:
    """The summary, with the endpoint before it where that is no score, which everybody would take it for."""
    primary = plan["primary"]
    if primary in EMOTIONS:
        return said
    name = str(IN_WORDS.get(primary, primary)).removesuffix(", nats")
    better = " (less is better)" if sign_of(primary) < 0 else ""
    rest = f"{said[0].lower()}{said[1:]}" if said.startswith(OPENINGS) else said
    return f"By {name}{better}: {rest}"


def limits(found: Mapping[str, Any]) -> list[str]:
    """What the contrasts cannot show, or were not planned to."""
    plan, primary = found["plan"], found["plan"]["primary"]
    num = len(found["contrasts"])
    counts = [endpoint["num_pairs"] for contrast in found["contrasts"] if (endpoint := contrast["endpoints"][primary])]
    said = [beside_the_plan(plan), power_of_so_few(found["contrasts"], plan)]
    if 0 < len(counts) < num:
        counted = "; they count for Holm with p = 1" if max(counts) > 1 else ""
        said.append(f"{num - len(counts)} of {num} contrasts cannot be computed{counted}.")
    if plan["chosen_by"] == "default" and num > 1 and not plan.get("is_torn"):
        said.append(f"No contrast was named beforehand, so Holm corrects for all {num}.")
    return [sentence for sentence in said if sentence]


def beside_the_plan(plan: Mapping[str, Any]) -> str:
    """That the contrasts or their endpoint are not those the sweep set out with; empty where they are, or none are known."""
    planned = plan.get("planned")
    if not planned or plan["chosen_by"] == "plan":
        return ""
    if plan["chosen_by"] == "instead":
        return f"None of the plan's {NOT_ONE}"
    names = ", ".join(":".join(contrast) for contrast in planned["contrasts"]) or "no contrast"
    return f"These contrasts are not the plan's, which are {names} on {planned['primary']}."


def power_of_so_few(contrasts: Sequence[Contrast], plan: Plan) -> str:
    """What the fewest pairs cannot do; empty where they can, and where they are so few that the summary says it."""
    tested = [endpoint for contrast in contrasts if (endpoint := contrast["endpoints"][plan["primary"]])]
    fewest = min(tested, key=lambda endpoint: endpoint["num_pairs"], default=None)
    if fewest is None or fewest["num_pairs"] < DECIDES_FROM or fewest["p_smallest_holm"] <= plan["alpha"]:
        return ""
    num = len(contrasts)
    smallest = f"the smallest p that they could all give is {fewest['p_smallest_holm']:.3f} after Holm"
    return f"{fewest['num_pairs']} seeds cannot decide {num} contrast{'s' if num > 1 else ''}: {smallest}."


def on_favourite(a: str, contrasts: Sequence[Contrast], plan: Plan) -> str:
    """One arm against the others it was set against, in a sentence or two: what was decided, then what was only seen."""
    few = [contrast for contrast in contrasts if not can_decide(contrast, plan)]
    decided = [contrast for contrast in contrasts if contrast not in few]
    sentences = [f"{a} {grouped(decided, plan)}."] if decided else []
    if few:
        over, end = without_decision(few, plan)
        sentences.append(f"{over} {a} lay {grouped(few, plan)}; {end}.")
    return " ".join(sentences)


def on_pairs(few: Sequence[Contrast], plan: Plan) -> str:
    """Contrasts of several arms that cannot be decided, in a sentence: who lay where on all seeds, and how many pairs did not agree."""
    over, end = without_decision(few, plan)
    mixed = [contrast for contrast in few if standing(contrast, plan) == MIXED]
    agreed = [contrast for contrast in few if contrast not in mixed]
    firsts = list(dict.fromkeys(contrast["a"] for contrast in agreed))
    said = [f"{a} lay {grouped([contrast for contrast in agreed if contrast['a'] == a], plan)}" for a in firsts]
    between = ", " if len(agreed) == len(firsts) else "; "
    if mixed:
        num = len(mixed)
        rest = "the other pair" if num == 1 else f"the other {count_in_words(num)} pairs"
        everywhere = "both pairs" if num == 2 else f"all {count_in_words(num)} pairs"
        said.append(f"{'and in' if said else 'in'} {rest if said else everywhere} the first lay {MIXED} the second")
    return f"{over} {between.join(said)}; {end}."


def without_decision(few: Sequence[Contrast], plan: Plan) -> tuple[str, str]:
    """How a sentence about contrasts begins that cannot be decided, and how it ends."""
    counts = sorted({contrast["endpoints"][plan["primary"]]["num_pairs"] for contrast in few})
    if counts == [1]:
        return "In one seed", "one seed describes and does not decide"
    seeds = count_in_words(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    too_early = any(contrast.get("too_early") for contrast in few) and counts[0] >= DECIDES_FROM
    return f"Over {seeds} seeds", TOO_EARLY if too_early else SO_FEW


def can_decide(contrast: Contrast, plan: Plan) -> bool:
    """Whether so many pairs could, were those of all contrasts to agree, get below alpha after Holm, and nothing planned lacks."""
    if contrast.get("too_early"):
        return False
    endpoint = contrast["endpoints"][plan["primary"]]
    return bool(endpoint["num_pairs"] >= DECIDES_FROM and endpoint["p_smallest_holm"] <= plan["alpha"])


def count_in_words(number: int) -> str:
    """`three`, `12`."""
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def grouped(contrasts: Sequence[Contrast], plan: Plan) -> str:
    """The other arms, by how the first stands to them."""
    others: dict[str, list[str]] = {}
    for contrast in contrasts:
        others.setdefault(standing(contrast, plan), []).append(contrast["b"])
    return ", ".join(f"{words} {listed(others[words])}" for words in STANDINGS if words in others)


MIXED = "now above, now below"
STANDINGS = ("does better than", "shows no clear difference from", "does worse than", "above", "level with", MIXED, "below")
"""In the order in which they are said; the last four where seeds are too few to decide, all of which agree or do not."""


def standing(contrast: Contrast, plan: Plan) -> str:
    """How the first arm stands to the second, one of `STANDINGS`."""
    primary = plan["primary"]
    endpoint = contrast["endpoints"][primary]
    if can_decide(contrast, plan):
        if endpoint["p_holm"] > plan["alpha"] or is_flattered(contrast, plan):
            return "shows no clear difference from"
        return "does better than" if sign_of(primary) * endpoint["difference"]["value"] > 0 else "does worse than"
    if not any(endpoint["differences"]):
        return "level with"
    if all(difference > 0 for difference in endpoint["differences"]):
        return "above"
    return "below" if all(difference < 0 for difference in endpoint["differences"]) else MIXED


def is_flattered(contrast: Contrast, plan: Plan) -> bool:
    """Whether the first arm lies behind one that was chosen on these very runs as the best of several.

    The best of several equal arms lies ahead by luck, so a test decides for it too often: of five, in 8 % of ten-seed sweeps of noise at
    p <= .05. A yes against it errs the other way.
    """
    if not contrast.get("b_chosen_from") or len(contrast["b_chosen_from"]) < 2 or contrast.get("b_chosen_on"):
        return False
    primary = plan["primary"]
    return bool(sign_of(primary) * contrast["endpoints"][primary]["difference"]["value"] < 0)


def answer(contrast: Contrast, plan: Plan) -> str:
    """Whether the first arm is better: `yes` and `no` are decided (p after Holm at most alpha), `undecided` is everything else.

    An arm whose mean is a little behind, and might be ahead, is undecided like one a little ahead.
    """
    endpoint = contrast["endpoints"][plan["primary"]]
    if endpoint is None or not can_decide(contrast, plan):
        return "undecided"
    return {"does better than": "yes", "does worse than": "no"}.get(standing(contrast, plan), "undecided")


def answer_in_words(contrast: Contrast, plan: Plan) -> str:
    """The answer as a page gives it."""
    said = answer(contrast, plan)
    return "No, it is behind" if said == "no" else said.capitalize()


def count_of_yes(contrasts: Sequence[Contrast], plan: Plan) -> str:
    """How many contrasts are a yes, and with which probability of improvement at least; empty without contrasts."""
    if not contrasts:
        return ""
    better = [contrast for contrast in contrasts if answer(contrast, plan) == "yes"]
    said = f"{len(better)} of {len(contrasts)} contrasts {'is' if len(better) == 1 else 'are'} a yes"
    if not better:
        return f"{said}."
    least = min(contrast["endpoints"][plan["primary"]]["probability_of_improvement"]["value"] for contrast in better)
    return f"{said}, with a probability of improvement of at least {least:.2f}."


def on_contrast(contrast: Contrast, plan: Plan) -> str:
    """One contrast with its numbers, in a sentence or two; of a single pair neither p nor a probability, which would say nothing."""
    primary = plan["primary"]
    endpoint = contrast["endpoints"][primary]
    if endpoint is None:
        return f"{contrast['a']} against {contrast['b']} cannot be computed: {contrast['cannot']}"
    digits, d = digits_of(primary), endpoint["difference"]
    low, high = finite(d["low"]), finite(d["high"])
    interval = f" (95% interval {signed(low, digits)} to {signed(high, digits)})" if low is not None and high is not None else ""
    num, wins = endpoint["num_pairs"], sum(sign_of(primary) * difference > 0 for difference in endpoint["differences"])
    seeds = f"better in {wins} of {num} seeds" if num > 1 else f"{'better' if wins else 'not better'} in the one seed"
    said = f"{contrast['a']} less {contrast['b']}: {signed(d['value'], digits)}{unit_of(primary)}{interval}, {seeds}"
    if num == 1:
        return f"{said}{at_the_end(contrast, primary)}."
    said += f"{chance(endpoint)}{at_the_end(contrast, primary)}"
    over = len(plan["contrasts"])
    p = f"p = {endpoint['p']:.3g} ({endpoint['p_holm']:.3g} after Holm's correction over {over} contrast{'' if over == 1 else 's'})"
    effect, alpha = (finite(endpoint["minimal_detectable_effect"][name]) for name in ("effect", "alpha"))
    would = ""
    # A spread taken from two seeds is known to a factor of thirty: what it could detect says nothing.
    if effect and num > 2:
        would = f"; with this spread, {num} seeds would detect a difference of {effect:.{digits}f} in four cases of five (p ≤ {alpha:.3g})"
    if not can_decide(contrast, plan):
        return f"{said}. Here {p}{would}."
    if endpoint["p_holm"] <= plan["alpha"] and is_flattered(contrast, plan):
        return f"{said}{would}. Not decided, as {contrast['b']} was chosen on these very runs: {p}."
    return f"{said}{would}. {'Decided' if endpoint['p_holm'] <= plan['alpha'] else 'Not decided'}: {p}."


def chance(endpoint: Mapping[str, Any]) -> str:
    """The probability of improvement with its interval."""
    better = endpoint["probability_of_improvement"]
    low, high = finite(better["low"]), finite(better["high"])
    interval = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f", probability of improvement {better['value']:.2f}{interval}"


def at_the_end(contrast: Contrast, primary: str) -> str:
    """The difference of the final scores, beside a primary endpoint that is over policy tokens."""
    final = contrast["endpoints"].get(FINAL)
    if primary != AUC or final is None:
        return ""
    low, high = finite(final["difference"]["low"]), finite(final["difference"]["high"])
    interval = f" ({low:+.1f} to {high:+.1f})" if low is not None and high is not None else ""
    return f"; at the end {final['difference']['value']:+.1f}{interval}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def finite(value: float | None) -> float | None:
    """The value, None where it is not defined."""
    return None if value is None or not math.isfinite(value) else float(value)
