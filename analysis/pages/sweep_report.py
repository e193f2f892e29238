"""One self-contained HTML page about a sweep: the verdict first, then every seed of every arm."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from analysis.comparisons.comparison import compare, write_json
from analysis.comparisons.comparison_plan import COMPARISON, plan_of
from analysis.comparisons.planned import KeptPlan, Planned, read_kept_plan
from analysis.comparisons.sweep import Sweep, read_sweep
from analysis.comparisons.text import contrast_rows
from analysis.drawing.figures import FOLDER, Figure, write_figures
from analysis.drawing.page import write_page
from analysis.endpoints import AUC, IN_WORDS
from analysis.pages.aftermath import num_alarms, told_number
from analysis.pages.endpoint_tables import read_by
from analysis.pages.reliability_sections import of_arms
from analysis.pages.sweep_course import Courses, read_courses
from analysis.pages.sweep_curves import lattice, learning_curves
from analysis.pages.sweep_figures import arms_figure, cell_figure, contrasts_figure, profiles, ranked, styles_of
from analysis.pages.sweep_sections import (
    alarms,
    cost,
    dialogues,
    how_fast,
    remarks,
    repeat,
    table_of_arms,
    table_of_runs,
    tuned_before,
)
from analysis.pages.sweep_tables import write_tables
from analysis.pages.sweep_verdict import headline, to_know
from analysis.runs import CONFIG, REPORT, setting
from analysis.wording import count, duration, facts_strip, grid_table

BESIDE = f"Every figure lies in {FOLDER}/ as SVG, PNG and CSV; every endpoint of contrasts and arms in verdict.csv and arms.csv."
ELSEWHERE = f"`make report` of this folder writes every figure into {FOLDER}/ as SVG, PNG and CSV, and beside it verdict.csv and arms.csv."


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds arms, `<arm>/seed_<n>/`, and is no run itself."""
    return not (folder / CONFIG).is_file() and any(place.is_dir() for place in folder.glob("*/seed_*"))


def write_sweep_report(folder: Path, *, with_files: bool = True) -> Path:
    """Writes `report.html` and `figures/` into the folder of a sweep, however far its runs have come, and returns the page's path.

    Args:
        with_files: also each figure by itself, and `verdict.csv` and `arms.csv`; without them the page stands alone, with
            `comparison.json` beside it.

    Raises:
        ValueError: the folder holds no arms, or not one run that can be read.
    """
    courses = read_courses(folder)
    if not courses.runs:
        reasons = " ".join(courses.unreadable.values())
        raise ValueError(f"sweep must hold a run that can be read, got {str(folder)!r}; {reasons}")
    sweep, found = compared(folder, courses)
    courses = courses._replace(never_averaged=not_averaged(found))
    figures = figures_of(courses, sweep, found)
    if with_files:
        write_figures(folder, figures.values())
        if found is not None:
            write_tables(folder, found)
    elif found is not None:
        write_json(found, folder / COMPARISON)
    body = page(folder, courses, sweep, found, figures, with_files=with_files)
    return write_page(folder / REPORT, title=f"{folder.absolute().parent.name}/{folder.absolute().name}", body=body)


def compared(folder: Path, courses: Courses) -> tuple[Sweep | None, dict[str, Any] | None]:
    """The finished runs and their comparison; None while there is none."""
    if not any(course.is_finished for course in courses.runs):
        return None, None
    try:
        sweep = read_sweep(folder)
    except ValueError:
        # Finished, but not one that a comparison takes: `to_know` says of each why.
        return None, None
    return sweep, compare(sweep, plan_of(sweep))


def not_averaged(found: Mapping[str, Any] | None) -> frozenset[str]:
    """Arms of which the comparison has runs and no mean, because they ran in different worlds or with different settings."""
    arms = found["arms"] if found is not None else {}
    return frozenset(arm for arm, record in arms.items() if record["runs"] and "endpoints" not in record)


def figures_of(courses: Courses, sweep: Sweep | None, found: Mapping[str, Any] | None) -> dict[str, Figure]:
    """All figures by name."""
    arms = ranked(courses.arms(), found)
    styles = styles_of(arms, found)
    made = [learning_curves(courses, styles), lattice(courses, arms)]
    if sweep is not None and found is not None:
        made += [
            contrasts_figure(found),
            arms_figure(found, AUC, name="area", title="Area under the held-out score"),
            arms_figure(found, "heldout.score", name="final", title="Final held-out score"),
            *profiles(found, sweep, styles),
            cell_figure(sweep, [arm for arm in arms if arm not in courses.never_averaged]),
        ]
    return {figure.name: figure for figure in made}


def page(
    folder: Path,
    courses: Courses,
    sweep: Sweep | None,
    found: Mapping[str, Any] | None,
    figures: Mapping[str, Figure],
    *,
    with_files: bool = True,
) -> str:
    """Everything below the title of the window."""
    place = folder.absolute()

    def drawn(*names: str) -> str:
        return "".join(figures[name].html() for name in names if name in figures)

    plan = sweep.plan if sweep is not None else read_kept_plan(folder)
    parts = [head(courses, found, plan, experiment=place.parent.name, name=place.name), drawn("contrasts")]
    parts.append(f"<h2>How the arms learned</h2>{drawn('learning_curves', 'courses')}")
    if found is not None:
        dots = f'<div class="grid-2">{drawn("area", "final")}</div>'
        arms = ranked(courses.arms(), found)
        parts.append(
            f"<h2>What they reached</h2>{dots}{table_of_arms(found, arms)}{how_fast(found, arms)}{tuned_before(plan.planned, arms)}"
        )
        parts.append(f'<h2>With whom</h2><div class="grid-2">{drawn("score_by_strictness", "performance_profile")}</div>{drawn("cells")}')
        parts += [read_by(found, arms), of_arms(found, arms)]
    else:
        parts.append(f"<h2>How far they have come</h2>{table_of_runs(courses)}")
    parts += [
        alarms(courses),
        dialogues(courses, favourite_of(courses, found)),
        cost(courses),
        repeat(
            courses, found, plan.planned, experiment=place.parent.name, sweep=place.name, where_figures=BESIDE if with_files else ELSEWHERE
        ),
    ]
    return "\n".join(parts)


def favourite_of(courses: Courses, found: Mapping[str, Any] | None) -> str:
    """The arm that contrasts are about; the first one where there are none."""
    return found["contrasts"][0]["a"] if found and found["contrasts"] else courses.arms()[0]


def head(courses: Courses, found: Mapping[str, Any] | None, plan: KeptPlan, *, experiment: str, name: str) -> str:
    """The verdict, the contrasts, what limits them, and the numbers one asks for first."""
    seeds = sorted({course.seed for course in courses.runs})
    of_seeds = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    where = f"{experiment} / {name} · {count(len(courses.arms()), 'arm')} · {of_seeds}"
    lead = ""
    if found is not None and found["contrasts"]:
        (_, *header), *rows = contrast_rows(found)
        primary = found["plan"]["primary"]
        lead = f'<p class="lead">Compared on {escape(IN_WORDS.get(primary, primary))}, the primary endpoint.</p>'
        lead += grid_table(("contrast", *header), rows)
    return (
        f'<p class="where">{escape(where)}</p><h1>{escape(headline(found, courses))}</h1>{lead}'
        f"{facts(courses, plan.planned)}{remarks(list(dict.fromkeys([*plan.notes, *to_know(found, courses)])))}"
    )


def facts(courses: Courses, planned: Planned | None) -> str:
    """A strip of numbers."""
    summaries = [course.run.summary for course in courses.runs if course.run.summary is not None]
    budgets = sorted({course.budget for course in courses.runs if course.budget})
    begun = len(courses.runs) + len(courses.unreadable)
    whole = max(begun, planned.num_runs if planned else 0)
    with_alarms = sum(bool(num_alarms(course.run)) for course in courses.runs)
    shown = [
        ("runs finished", f"{len(summaries)} of {whole}", f"planned; {begun} begun" if whole > begun else "begun so far"),
        ("policy tokens a run", " or ".join(f"{budget:,}" for budget in budgets) or "–", "allowed to each arm"),
        ("CPU time", duration(sum(setting(summary, "cpu_s", 0.0) for summary in summaries)), "all finished runs"),
        ("alarms", told_number([course.run for course in courses.runs]), f"in {with_alarms} of {len(courses.runs)} runs"),
    ]
    return facts_strip(shown)
