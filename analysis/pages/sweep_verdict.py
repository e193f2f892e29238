"""What a sweep showed, in plain words that claim no more than the comparison does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.comparisons.contrast_words import limits, summary_of
from analysis.comparisons.sweep import read_results
from analysis.comparisons.text import contrast_notes
from analysis.pages.sweep_course import Course, Courses


def headline(found: Mapping[str, Any] | None, courses: Courses) -> str:
    """The first sentence of the page; `found` is None where no run could be used."""
    if found is None and (finished := sum(course.is_finished for course in courses.runs)):
        return f"Nothing can be compared: {runs(finished)} finished, and none of them can be used."
    if found is None:
        begun = len(courses.runs) + len(courses.unreadable)
        return f"No run of this sweep has finished: {runs(begun)} begun, and nothing can be compared yet."
    return summary_of(found)


def to_know(found: Mapping[str, Any] | None, courses: Courses) -> list[str]:
    """Everything that limits the verdict: what is unfinished, torn, unequal or missing; a sentence each."""
    said = [still_running(course) for course in courses.runs if not course.is_finished]
    said += [f"{name} is left out: {reason}" for name, reason in courses.unreadable.items()]
    said += [f"{course.name} is shown without the tasks it issued: {course.lacks_issued}" for course in courses.runs if course.lacks_issued]
    if found is None:
        said += read_results([course.run.folder for course in courses.runs if course.is_finished])[1]
        said += missing_seeds(courses)
    if found is not None:
        left_out = tuple(f"{course.name} is left out" for course in courses.runs if not course.is_finished)
        said += limits(found)
        said += [note for note in found["notes"] if not note.startswith(left_out)]
        said += [note for contrast in found["contrasts"] for note in contrast_notes(contrast) if note != contrast["cannot"]]
        begun = {f"{course.arm} has no run that can be used." for course in courses.runs if not course.is_finished}
        said = [note for note in said if note not in begun]
        said += [
            note for note in missing_seeds(courses) if not any(other.startswith(note.partition(" has no")[0] + " lacks") for other in said)
        ]
    return list(dict.fromkeys(said))


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
