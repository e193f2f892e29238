"""One self-contained HTML page about a sweep: the verdict first, then every seed of every arm."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from analysis.aftermath import num_alarms
from analysis.comparison import compare, plan_of
from analysis.contrast_words import MEANING, on_contrast
from analysis.endpoints import AUC
from analysis.figures import Figure, write_figures
from analysis.page import write_page
from analysis.runs import CONFIG, REPORT, setting
from analysis.sweep import Sweep, read_sweep
from analysis.sweep_course import Courses, read_courses
from analysis.sweep_figures import arms_figure, cell_figure, colours_of, contrasts_figure, lattice, learning_curves, profiles, ranked
from analysis.sweep_sections import alarms, cost, dialogues, remarks, repeat, some_items, table_of_arms, table_of_runs
from analysis.sweep_verdict import headline, to_know
from analysis.wording import duration


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds arms, `<arm>/seed_<n>/`, and is no run itself."""
    return not (folder / CONFIG).is_file() and any(place.is_dir() for place in folder.glob("*/seed_*"))


def write_sweep_report(folder: Path) -> Path:
    """Writes `report.html` and `figures/` into the folder of a sweep, however far its runs have come, and returns the page's path.

    Raises:
        ValueError: the folder holds no arms, or not one run that can be read.
    """
    courses = read_courses(folder)
    if not courses.runs:
        reasons = " ".join(courses.unreadable.values())
        raise ValueError(f"sweep must hold a run that can be read, got {str(folder)!r}; {reasons}")
    sweep, found = compared(folder, courses)
    figures = figures_of(courses, sweep, found)
    body = page(folder, courses, found, figures)
    write_figures(folder, figures.values())
    return write_page(folder / REPORT, title=f"{folder.absolute().parent.name}/{folder.absolute().name}", body=body)


def compared(folder: Path, courses: Courses) -> tuple[Sweep | None, dict[str, Any] | None]:
    """The finished runs and their comparison; None while there is none."""
    if not any(course.is_finished for course in courses.runs):
        return None, None
    try:
        sweep = read_sweep(folder)
    except ValueError:
        # Finished, but not one that a comparison takes: the page says of each why.
        return None, None
    return sweep, compare(sweep, plan_of(folder))


def figures_of(courses: Courses, sweep: Sweep | None, found: Mapping[str, Any] | None) -> dict[str, Figure]:
    """All figures by name."""
    arms = ranked(courses.arms(), found)
    colours = colours_of(arms, found)
    made = [learning_curves(courses, colours), lattice(courses, arms)]
    if sweep is not None and found is not None:
        made += [
            contrasts_figure(found),
            arms_figure(found, AUC, name="area", title="Area under the held-out score"),
            arms_figure(found, "heldout.score", name="final", title="Final held-out score"),
            *profiles(found, sweep, colours),
            cell_figure(sweep, arms),
        ]
    return {figure.name: figure for figure in made}


def page(folder: Path, courses: Courses, found: Mapping[str, Any] | None, figures: Mapping[str, Figure]) -> str:
    """Everything below the title of the window."""
    place = folder.absolute()

    def drawn(*names: str) -> str:
        return "".join(figures[name].html() for name in names if name in figures)

    parts = [head(courses, found, experiment=place.parent.name, sweep=place.name), drawn("contrasts")]
    parts.append(f"<h2>How the arms learned</h2>{drawn('learning_curves', 'courses')}")
    if found is not None:
        dots = f'<div class="grid-2">{drawn("area", "final")}</div>'
        parts.append(f"<h2>What they reached</h2>{dots}{table_of_arms(found, ranked(courses.arms(), found))}")
        parts.append(f'<h2>With whom</h2><div class="grid-2">{drawn("score_by_strictness", "performance_profile")}</div>{drawn("cells")}')
    else:
        parts.append(f"<h2>How far they have come</h2>{table_of_runs(courses)}")
    parts += [
        alarms(courses),
        dialogues(courses, favourite_of(courses, found)),
        cost(courses),
        repeat(courses, found, experiment=place.parent.name, sweep=place.name),
    ]
    return "\n".join(parts)


def favourite_of(courses: Courses, found: Mapping[str, Any] | None) -> str:
    """The arm that contrasts are about; the first one where there are none."""
    return found["contrasts"][0]["a"] if found and found["contrasts"] else courses.arms()[0]


def head(courses: Courses, found: Mapping[str, Any] | None, *, experiment: str, sweep: str) -> str:
    """The verdict, the contrasts in words, what limits them, and the numbers one asks for first."""
    seeds = sorted({course.seed for course in courses.runs})
    where = f"{experiment} / {sweep} · {len(courses.arms())} arms · {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    lead = ""
    if found is not None and found["contrasts"]:
        primary = found["plan"]["primary"]
        lead = f'<p class="lead">Compared on {escape(MEANING.get(primary, primary))}, the primary endpoint.</p>'
        lead += some_items([on_contrast(contrast, found["plan"]) for contrast in found["contrasts"]])
    return (
        f'<p class="where">{escape(where)}</p><h1>{escape(headline(found, courses))}</h1>{lead}'
        f"{facts(courses)}{remarks(to_know(found, courses))}"
    )


def facts(courses: Courses) -> str:
    """A strip of numbers."""
    summaries = [course.run.summary for course in courses.runs if course.run.summary is not None]
    budgets = sorted({course.budget for course in courses.runs if course.budget})
    begun = len(courses.runs) + len(courses.unreadable)
    with_alarms = sum(bool(num_alarms(course.run)) for course in courses.runs)
    shown = [
        ("runs finished", f"{len(summaries)} of {begun}", "begun so far"),
        ("policy tokens a run", " or ".join(f"{budget:,}" for budget in budgets) or "–", "allowed to each arm"),
        ("CPU time", duration(sum(setting(summary, "cpu_s", 0.0) for summary in summaries)), "all finished runs"),
        ("alarms", str(sum(num_alarms(course.run) for course in courses.runs)), f"in {with_alarms} of {len(courses.runs)} runs"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><small>{note}</small></div>" for name, value, note in shown)
    return f'<dl class="facts">{cells}</dl>'
