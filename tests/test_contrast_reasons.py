"""Why a contrast came out as it did, on sweeps whose numbers are chosen by hand, and how the page's first lines say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_sweep import made_sweep, steps_of, tasks_of
from test_report import read_page

from analysis.comparisons.comparison import compare
from analysis.comparisons.comparison_plan import Plan
from analysis.comparisons.contrast_words import answer_in_words, count_of_yes, limits, on_contrast
from analysis.comparisons.planned import Planned
from analysis.comparisons.sweep import read_sweep
from analysis.learning_curves import Curve
from analysis.pages.contrast_reasons import by_fifths, why, with_whom
from analysis.pages.sweep_course import read_courses
from analysis.pages.sweep_report import write_sweep_report

FEW = {"frontier": (70.0, 80.0), "uniform": (60.0, 66.0)}
AHEAD = {"frontier": [70.0 + i for i in range(8)], "uniform": [50.0 + 1.5 * i for i in range(8)]}


def made(folder: Path, finals, **facts) -> Path:
    return made_sweep(folder / "sweep", finals, metrics=steps_of(**facts), teacher=tasks_of())


def found_in(folder: Path) -> dict:
    return compare(read_sweep(folder), Plan(contrasts=[("frontier", "uniform")], num_resamples=20))


def test_curves_are_compared_in_fifths_of_what_all_cover():
    # From 0 to 10 over 0 to 100 against 0 all along: 1, 3, 5, 7, 9.
    ours, theirs = [Curve([0, 100], [0.0, 10.0])], [Curve([0, 200], [0.0, 0.0])]
    assert by_fifths(ours, theirs) == pytest.approx([1.0, 3.0, 5.0, 7.0, 9.0])
    assert by_fifths(ours, [Curve([0], [1.0])]) == []


def test_what_went_with_a_contrast_is_told_from_curves_teachers_and_cells(tmp_path):
    folder = made(tmp_path, FEW, **{"curriculum/zero_variance_share": 0.25})
    found = found_in(folder)
    said = why(found["contrasts"][0], read_courses(folder), read_sweep(folder))
    # Means end at 75 and 63, both start at 20: the difference grows to 12 in a straight line. Strictness is step / 20.
    assert said.startswith(
        "frontier led uniform by +1.2, +3.6, +6.0, +8.4 and +10.8 points of held-out score in successive fifths of their common tokens."
    )
    assert "frontier issued strictness from 0.15 to 0.90, uniform from 0.15 to 0.90." in said
    assert "frontier against uniform: reward density 0.05 against 0.05, groups without contrast 25% against 25%, entropy at the end" in said
    assert "At the end uniform is ahead in none of 5 cells." in said


def test_with_which_users_two_arms_part_is_told_by_strictness(tmp_path):
    folder = made(tmp_path, FEW)
    for arm, less in (("frontier", 10.0), ("uniform", 4.0)):
        for path in (folder / arm).glob("*/evaluation.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            stricter = [{**line, "strictness": 0.9, "emotion": line["emotion"] - less} for line in lines if line["in_during"]]
            path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *stricter]))
    courses = read_courses(folder)
    # 6 on average over the budget, as in the test above; with users of .9 as much less as they were made worse.
    said = with_whom("frontier", "uniform", courses.of("frontier"), courses.of("uniform"))
    assert said == "By the strictness of the users who judged, frontier less uniform over their common tokens: +6.0 at 0.5 and +0.0 at 0.9."
    assert said in why(found_in(folder)["contrasts"][0], courses, read_sweep(folder))


def test_an_arm_that_does_not_lead_all_along_is_told_with_signs(tmp_path):
    behind = made(tmp_path / "behind", {"frontier": (60.0,), "uniform": (70.0,)})
    said = why(found_in(behind)["contrasts"][0], read_courses(behind), read_sweep(behind))
    # The difference falls to -10 in a straight line.
    assert said.startswith(
        "frontier less uniform in successive fifths of their common tokens: -1.0, -3.0, -5.0, -7.0 and -9.0 points of held-out score."
    )
    level = made(tmp_path / "level", {"frontier": (69.8,), "uniform": (70.0,)})
    said = why(found_in(level)["contrasts"][0], read_courses(level), read_sweep(level))
    assert said.startswith(
        "frontier less uniform in successive fifths of their common tokens: +0.0, -0.1, -0.1, -0.1 and -0.2 points of held-out score."
    )


def test_of_a_single_pair_neither_p_nor_a_probability_is_told(tmp_path):
    found = found_in(made(tmp_path, {"frontier": (70.0,), "uniform": (60.0,)}))
    assert on_contrast(found["contrasts"][0], found["plan"]) == "frontier less uniform: +5.0, better in the one seed; at the end +10.0."
    assert limits({**found, "contrasts": [*found["contrasts"], {**found["contrasts"][0], "endpoints": {"heldout.auc": None}}]}) == [
        "1 of 2 contrasts cannot be computed."
    ]


def test_cells_in_which_the_other_arm_leads_are_counted_and_the_widest_named(tmp_path):
    folder = made(tmp_path, {"frontier": (60.0,), "uniform": (62.0,)})
    lines = (folder / "uniform" / "seed_0" / "evaluation.jsonl").read_text().replace('"emotion": 92.0', '"emotion": 50.0')
    (folder / "uniform" / "seed_0" / "evaluation.jsonl").write_text(lines)
    said = why(found_in(folder)["contrasts"][0], read_courses(folder), read_sweep(folder))
    # advice/positive at .1 had 62 + 30 and now has 50, against 90; the other four cells lie 2 above.
    assert "At the end uniform is ahead in 4 of 5 cells, the most in" in said and "(+2.0)." in said


def test_seeds_enough_answer_yes_or_no_and_too_few_leave_it_undecided(tmp_path):
    answers = {}
    for name, finals in {"few": FEW, "ahead": AHEAD, "behind": {"frontier": AHEAD["uniform"], "uniform": AHEAD["frontier"]}}.items():
        found = found_in(made(tmp_path / name, finals))
        answers[name] = found["contrasts"][0]["answer"], count_of_yes(found["contrasts"], found["plan"])
    assert answers["few"] == ("undecided", "0 of 1 contrasts are a yes.")
    assert answers["ahead"] == (
        "yes",
        "1 of 1 contrasts is a yes, with a probability of improvement of at least 1.00.",
    )
    assert answers["behind"][0] == "no"


def test_a_no_is_decided_and_a_mean_that_is_a_little_behind_is_undecided(tmp_path):
    level = {"frontier": AHEAD["uniform"], "uniform": [final + 0.1 for final in reversed(AHEAD["uniform"])]}
    behind = {"frontier": AHEAD["uniform"], "uniform": AHEAD["frontier"]}
    said = {}
    for name, finals in {"level": level, "behind": behind, "ahead": AHEAD}.items():
        found = found_in(made(tmp_path / name, finals))
        said[name] = answer_in_words(found["contrasts"][0], found["plan"])
    assert said == {"level": "Undecided", "behind": "No, it is behind", "ahead": "Yes"}


def test_every_contrast_has_its_p_and_what_could_have_been_found_once_its_spread_is_known(tmp_path):
    six = {"frontier": (70.0, 80.0, 76.0, 71.0, 74.0, 60.0), "uniform": (60.0, 66.0, 70.0, 68.0, 65.0, 61.0)}
    found = found_in(made(tmp_path / "six", six))
    endpoint = found["contrasts"][0]["endpoints"]["heldout.auc"]
    effect, alpha = (endpoint["minimal_detectable_effect"][name] for name in ("effect", "alpha"))
    said = on_contrast(found["contrasts"][0], found["plan"])
    assert f"; with this spread, 6 seeds would detect a difference of {effect:.1f} in four cases of five (p ≤ {alpha:.3g})" in said
    # Two seeds could never decide, whatever they differ by: the same sentence ends with p.
    found = found_in(made(tmp_path / "two", FEW))
    said = on_contrast(found["contrasts"][0], found["plan"])
    assert said.endswith(". Here p = 0.5 (0.5 after Holm's correction over 1 contrast).")


def test_the_page_opens_with_answers_and_says_what_went_with_those_that_are_no_yes(tmp_path):
    words = read_page(write_sweep_report(made(tmp_path / "few", FEW))).words
    assert "Undecided. frontier less uniform: +6.0" in words and "What went with it: frontier led uniform by +1.2" in words
    words = read_page(write_sweep_report(made(tmp_path / "ahead", AHEAD))).words
    assert "Yes. frontier less uniform" in words and "What went with it" not in words


def test_the_page_says_how_fast_a_score_was_reached_and_what_was_tuned(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 100.0), "uniform": (50.0, 55.0)})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", tuning={"front*": "single runs", "uniform": "none"}).keep(folder)
    page = write_sweep_report(folder).read_text(encoding="utf-8")
    # From 20 to 100 and to 70 over 1,000 tokens: 60 is reached after 500 and after 800.
    assert "How fast a held-out score of 60 was reached" in page
    assert '<th>frontier</th><td class="num">2 of 2</td><td class="num">500</td><td class="num">650 of 1,000</td>' in page
    assert '<th>uniform</th><td class="num">0 of 2</td><td class="num">not by half of the runs</td>' in page
    assert '<th>frontier</th><td class="list">single runs</td></tr><tr><th>uniform</th><td class="list">none</td></tr>' in page


def test_a_score_that_no_run_reached_takes_one_sentence(tmp_path):
    words = read_page(write_sweep_report(made(tmp_path, {"frontier": (50.0,), "uniform": (40.0,)}))).words
    assert "No run of any arm reached a held-out score of 60 on the small grid." in words
    assert "How fast" not in words and "restricted mean" not in words
