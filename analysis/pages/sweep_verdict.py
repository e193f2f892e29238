"""The first line of a sweep's report, and everything that limits it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from analysis.comparisons.notes import Note, NoteKind
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
    return str(found["verdict"][0])


def to_know(found: Mapping[str, Any] | None, courses: Courses) -> list[str]:
    """Everything that limits the verdict: what is unfinished, torn, unequal or missing; a sentence each."""
    said = [still_running(course) for course in courses.runs if not course.is_finished]
    said += [f"{name} is left out: {reason}" for name, reason in courses.unreadable.items()]
    said += [f"{course.name} is shown without the tasks it issued: {course.lacks_issued}" for course in courses.runs if course.lacks_issued]
    if found is None:
        said += read_results([course.run.folder for course in courses.runs if course.is_finished])[1]
    else:
        unfinished = {(course.arm, course.seed) for course in courses.runs if not course.is_finished}
        contrast_remarks = [note for contrast in found["contrasts"] for note in contrast_notes(contrast)]
        said += found["verdict"][1:]
        said += [note for note in [*found["notes"], *contrast_remarks] if not is_said(note, unfinished)]
    return list(dict.fromkeys([*said, *missing_seeds(courses, but=lacking_in(said))]))


def is_said(note: str, unfinished: Set[tuple[str, int]]) -> bool:
    """Whether a comparison's remark says of a run no more than that it has not finished.

    Args:
        unfinished: arms and seeds of runs of which that is said already.
    """
    if not isinstance(note, Note):
        return False
    if note.kind is NoteKind.LEFT_OUT:
        return {(note.arm, seed) for seed in note.seeds} <= unfinished
    return note.kind is NoteKind.NO_RUN and note.arm in {arm for arm, _ in unfinished}


def lacking_in(notes: Iterable[str]) -> set[tuple[str, int]]:
    """The arms and seeds of which remarks say that there is no run."""
    told = [note for note in notes if isinstance(note, Note) and note.kind is NoteKind.LACKS_SEEDS]
    return {(note.arm, seed) for note in told for seed in note.seeds}


def still_running(course: Course) -> str:
    """How far a run has come that has no summary."""
    share = f", {course.policy_tokens / course.budget:.0%} of its tokens" if course.budget else ""
    step = course.run.num_steps
    return f"{course.name} has not finished (step {step}{share}): its curves are drawn, the verdict does without it."


def missing_seeds(courses: Courses, *, but: Set[tuple[str, int]]) -> list[str]:
    """A sentence for each arm that lacks seeds which other arms have.

    Args:
        but: arms and seeds of which that is said already.
    """
    everyone = {course.seed for course in courses.runs}
    there = {(course.arm, course.seed) for course in courses.runs} | but
    lacking = {arm: [seed for seed in sorted(everyone) if (arm, seed) not in there] for arm in courses.arms()}
    return [f"{arm} has no run with seed {', '.join(map(str, seeds))}." for arm, seeds in lacking.items() if seeds]


def runs(number: int) -> str:
    """`1 run was`, `3 runs were`."""
    return f"{number} run was" if number == 1 else f"{number} runs were"
