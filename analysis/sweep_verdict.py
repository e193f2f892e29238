"""What a sweep showed, in plain words that claim no more than the comparison does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.comparison_text import DECIDES_FROM, NUMBERS, contrast_notes, power_of_so_few
from analysis.endpoints import AUC, digits_of, sign_of
from analysis.paired import smallest_p
from analysis.sweep_course import Course, Courses

Contrast = Mapping[str, Any]
"""An entry of `contrasts` in `comparison.json`."""
Plan = Mapping[str, Any]
"""Its `plan`."""
FINAL = "heldout.score"
MEANING = {
    AUC: "the held-out score averaged over all of training (the area under its curve)",
    FINAL: "the held-out score at the end",
}
SO_FEW = "so few describe and do not decide"


def headline(found: Mapping[str, Any] | None, courses: Courses) -> str:
    """The first sentence of the page."""
    if found is None:
        begun = len(courses.runs) + len(courses.unreadable)
        return f"No run of this sweep has finished: {runs(begun)} begun, and nothing can be compared yet."
    plan = found["plan"]
    tested = [contrast for contrast in found["contrasts"] if contrast["endpoints"][plan["primary"]]]
    if not tested:
        return "Nothing can be compared: no two arms have a seed on which they may be set against each other."
    return " ".join(on_favourite(a, [c for c in tested if c["a"] == a], plan) for a in dict.fromkeys(c["a"] for c in tested))


def on_favourite(a: str, contrasts: Sequence[Contrast], plan: Plan) -> str:
    """One arm against the others it was set against, in a sentence or two: what was decided, then what was only seen."""
    few = [contrast for contrast in contrasts if not can_decide(contrast, plan)]
    decided = [contrast for contrast in contrasts if contrast not in few]
    sentences = [f"{a} {grouped(decided, plan)}."] if decided else []
    if few:
        counts = sorted({contrast["endpoints"][plan["primary"]]["num_pairs"] for contrast in few})
        seeds = count_in_words(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        over, end = ("In one seed", "one seed describes and does not decide") if counts == [1] else (f"Over {seeds} seeds", SO_FEW)
        sentences.append(f"{over} {a} lay {grouped(few, plan)}; {end}.")
    return " ".join(sentences)


def can_decide(contrast: Contrast, plan: Plan) -> bool:
    """Whether so many pairs could, were they all to agree, get below alpha after Holm over all contrasts."""
    num = contrast["endpoints"][plan["primary"]]["num_pairs"]
    return num >= DECIDES_FROM and smallest_p(num) * len(plan["contrasts"]) <= plan["alpha"]


def count_in_words(number: int) -> str:
    """`three`, `12`."""
    return NUMBERS[number].lower() if number < len(NUMBERS) else str(number)


def grouped(contrasts: Sequence[Contrast], plan: Plan) -> str:
    """The other arms, by how the first stands to them."""
    others: dict[str, list[str]] = {}
    for contrast in contrasts:
        others.setdefault(standing(contrast, plan), []).append(contrast["b"])
    return ", ".join(f"{words} {listed(others[words])}" for words in STANDINGS if words in others)


STANDINGS = ("does better than", "shows no clear difference from", "does worse than", "above", "now above, now below", "below")
"""In the order in which they are said; the last three where seeds are too few to decide, all of which agree or do not."""


def standing(contrast: Contrast, plan: Plan) -> str:
    """How the first arm stands to the second, one of `STANDINGS`."""
    primary = plan["primary"]
    endpoint = contrast["endpoints"][primary]
    if can_decide(contrast, plan):
        if endpoint["p_holm"] > plan["alpha"]:
            return "shows no clear difference from"
        return "does better than" if sign_of(primary) * endpoint["difference"]["value"] > 0 else "does worse than"
    gains = [sign_of(primary) * difference for difference in endpoint["differences"]]
    if all(gain > 0 for gain in gains):
        return "above"
    return "below" if all(gain < 0 for gain in gains) else "now above, now below"


def on_contrast(contrast: Contrast, plan: Plan) -> str:
    """One contrast with its numbers, in a sentence or two."""
    primary = plan["primary"]
    endpoint = contrast["endpoints"][primary]
    if endpoint is None:
        return f"{contrast['a']} against {contrast['b']} cannot be computed: {contrast['cannot']}"
    digits, d = digits_of(primary), endpoint["difference"]
    low, high = finite(d["low"]), finite(d["high"])
    interval = f" (95% interval {low:+.{digits}f} to {high:+.{digits}f})" if low is not None and high is not None else ""
    num, wins = endpoint["num_pairs"], sum(sign_of(primary) * difference > 0 for difference in endpoint["differences"])
    seeds = f"better in {wins} of {num} seeds" if num > 1 else f"{'better' if wins else 'not better'} in the one seed"
    said = f"{contrast['a']} less {contrast['b']}: {d['value']:+.{digits}f}{interval}, {seeds}{at_the_end(contrast, primary)}"
    if not can_decide(contrast, plan):
        return f"{said}."
    p = f"p {endpoint['p']:.3g}, {endpoint['p_holm']:.3g} after Holm over {len(plan['contrasts'])}"
    if endpoint["p_holm"] <= plan["alpha"]:
        return f"{said}; decided ({p})."
    effect = finite(endpoint["minimal_detectable_effect"]["effect"])
    would = f" With this spread {num} seeds would find {effect:.{digits}f} four times in five." if effect is not None else ""
    return f"{said}; not decided ({p}).{would}"


def at_the_end(contrast: Contrast, primary: str) -> str:
    """The difference of the final scores, beside a primary endpoint that is over all of training."""
    final = contrast["endpoints"].get(FINAL)
    if primary != AUC or final is None:
        return ""
    low, high = finite(final["difference"]["low"]), finite(final["difference"]["high"])
    interval = f" ({low:+.1f} to {high:+.1f})" if low is not None and high is not None else ""
    return f"; at the end {final['difference']['value']:+.1f}{interval}"


def to_know(found: Mapping[str, Any] | None, courses: Courses) -> list[str]:
    """Everything that limits the verdict: what is unfinished, torn, unequal or missing; a sentence each."""
    said = [still_running(course) for course in courses.runs if not course.is_finished]
    said += [f"{name} is left out: {reason}" for name, reason in courses.unreadable.items()]
    if found is None:
        said += missing_seeds(courses)
    if found is not None:
        left_out = tuple(f"{course.name} is left out" for course in courses.runs if not course.is_finished)
        worlds = found["world_hashes"]
        if len(worlds) > 1:
            said.append(
                f"The runs come from {len(worlds)} worlds ({', '.join(worlds)}); only runs of one world are set against each other."
            )
        said += too_many_contrasts(found)
        said += [note for note in found["notes"] if not note.startswith(left_out)]
        said += [note for contrast in found["contrasts"] for note in contrast_notes(contrast) if note != contrast["cannot"]]
        begun = {f"{course.arm} has no run that can be used." for course in courses.runs if not course.is_finished}
        said = [note for note in said if note not in begun]
        said += [
            note for note in missing_seeds(courses) if not any(other.startswith(note.partition(" has no")[0] + " lacks") for other in said)
        ]
    return list(dict.fromkeys(said))


def too_many_contrasts(found: Mapping[str, Any]) -> list[str]:
    """A sentence where enough seeds for one contrast are too few for all that were named, or none was named."""
    plan = found["plan"]
    counts = [
        contrast["endpoints"][plan["primary"]]["num_pairs"] for contrast in found["contrasts"] if contrast["endpoints"][plan["primary"]]
    ]
    said = [power_of_so_few(min(counts), len(plan["contrasts"]), plan["alpha"])] if counts and min(counts) >= DECIDES_FROM else []
    if plan["chosen_by"] == "default" and len(plan["contrasts"]) > 1:
        said.append(f"No contrast was named beforehand, so Holm corrects for all {len(plan['contrasts'])}.")
    return [sentence for sentence in said if sentence]


def still_running(course: Course) -> str:
    """How far a run has come that has no summary."""
    share = f", {course.policy_tokens / course.budget:.0%} of its tokens" if course.budget else ""
    step = course.run.num_steps
    return f"{course.name} has not finished (step {step}{share}): its curves are drawn, the verdict does without it."


def missing_seeds(courses: Courses) -> list[str]:
    """A sentence for each arm that lacks seeds which other arms have."""
    everyone = {course.seed for course in courses.runs}
    lacking = {arm: sorted(everyone - {course.seed for course in courses.of(arm)}) for arm in courses.arms()}
    return [f"{arm} has no run with seed {', '.join(map(str, seeds))}." for arm, seeds in lacking.items() if seeds]


def runs(number: int) -> str:
    """`1 run was`, `3 runs were`."""
    return f"{number} run was" if number == 1 else f"{number} runs were"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def finite(value: float | None) -> float | None:
    """The value, None where it is not defined."""
    return None if value is None or not math.isfinite(value) else float(value)
