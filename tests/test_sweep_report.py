"""The page about a sweep: what it claims, that every seed is on it, and what it says of runs that are unfinished, torn or unlike."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from made_sweep import BUDGET, made_result, made_sweep, steps_of, tasks_of
from test_report import drawing_of, marks_of, read_page

from analysis import compare as comparison
from analysis.__main__ import main
from analysis.compare import Plan, compare, write_json
from analysis.endpoints import Curve
from analysis.plots import DASHES, style_of
from analysis.sweep_figures import issued_between, mean_curve, read_courses, shares_by_run, styles_of, value_at
from analysis.sweep_report import write_sweep_report
from analysis.sweeps import Planned, read_sweep

FINALS = {"frontier": (70.0, 80.0, 75.0), "uniform": (60.0, 65.0, 62.0), "fixed_0.5": (60.0, 85.0, 70.0)}
ALARM = {"name": "density_lost", "step": 10, "message": "Reward density is <low>."}

BY_STRICTNESS = "Final held-out score by strictness"
ABOVE_A_SCORE = "Share of runs and cells above a score"


def made(folder: Path, finals=FINALS, **facts) -> Path:
    return made_sweep(folder / "sweep", finals, metrics=steps_of(), teacher=tasks_of(), **facts)


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Bootstrap bars are for the eye: nothing here looks at them, and they take most of a page's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "Plan", partial(Plan, num_resamples=20))
        yield


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    return write_sweep_report(made(tmp_path_factory.mktemp("runs")))


def words_of(path: Path) -> str:
    return read_page(path).words


def rows_of(page: Path, name: str) -> list[dict[str, str]]:
    with (page.parent / "figures" / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_page_opens_with_a_verdict_that_three_seeds_allow(page):
    title = re.search(r"<h1>(.*?)</h1>", page.read_text(encoding="utf-8"))[1]
    assert title == "Is the first arm better by the area under the held-out score? Of 2: 0 yes, 0 no, 2 undecided."


def test_each_contrast_is_a_row_with_its_interval(page):
    # Areas are (20 + final) / 2: the differences are 5, 7.5 and 6.5, their mean 6.33, sd 1.26, t(.975, 2) = 4.303.
    # Three of three: Clopper and Pearson's lower bound is .025^(1/3).
    assert "frontier - uniformundecided+6.3[3.2, 9.5]3 of 30.250.51.00 [0.29, 1.00]" in words_of(page)


def test_the_verdict_and_the_arms_lie_beside_it_as_tables(page):
    # The differences as above; Student's t for three, and p after Holm over two contrasts.
    verdict = rows_of(page, "../verdict")
    first = next(row for row in verdict if row["b"] == "uniform")
    assert (first["a"], first["endpoint"], first["pairs"]) == ("frontier", "heldout.auc", "3")
    assert float(first["difference"]) == pytest.approx(19 / 3) and float(first["low"]) == pytest.approx(3.2, abs=0.05)
    assert (first["p"], first["p_holm"], first["probability_of_improvement"], first["answer"]) == ("0.25", "0.5", "1", "undecided")
    assert first["at_p"] == "0.025" and first["minimal_detectable_effect"] == "", "three pairs detect nothing, however large"
    others = [row for row in verdict if row["endpoint"] != "heldout.auc"]
    assert others and all(row["answer"] == row["p_holm"] == "" for row in others)
    arms = {(row["arm"], row["endpoint"]): row for row in rows_of(page, "../arms")}
    area = arms["frontier", "heldout.auc"]
    found = [float(row["score"]) for row in rows_of(page, "area") if row["arm"] == "frontier" and row["seed"] != "mean"]
    assert area["runs"] == "3" and float(area["mean"]) == pytest.approx(np.mean(found))
    assert float(area["sd"]) == pytest.approx(np.std(found, ddof=1)) and float(area["min"]) == min(found)


def test_the_page_and_the_command_say_the_same(tmp_path, capsys):
    folder = made(tmp_path)
    words = words_of(write_sweep_report(folder))
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert len(said) == 2 and all(sentence in words for sentence in said)


def test_forty_two_arms_are_told_apart_by_more_than_colour():
    styles = styles_of([f"arm_{i:02}" for i in range(42)], None)
    assert len(set(styles.values())) == 42 and len(set(DASHES.values())) == len(DASHES) == 7
    looks = [style_of(*style, num_points=60, start=0) for style in styles.values()]
    assert len({(look["linestyle"], look.get("marker")) for look in looks}) == 42


def test_every_arm_has_its_own_look_in_the_frame_of_all(tmp_path):
    folder = made(tmp_path, {f"arm_{i:02}": (50.0 + i, 60.0 + i) for i in range(16)})
    curves = drawing_of(write_sweep_report(folder).read_text(encoding="utf-8"), "Held-out score over policy tokens")
    means = [group for group in curves.iter("g") if group.get("class") == "mean"]
    looks = set()
    for mean in means:
        stroke = re.sub(r"clip-path[^;]*", "", next(mean.iter("path")).get("style", ""))
        markers = [path.get("d") for path in mean.iter("path") if path.get("id")]
        looks.add((stroke, *markers[:1]))
    assert len(means) == len(looks) == 16


def test_alarms_of_an_unfinished_run_are_at_least_so_many(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0,)})
    steps = [{**line, "collapse/alarms_on": 2.0 if line["step"] > 9 else 0.0} for line in steps_of()]
    made_result(folder, "uniform", 0, metrics=steps, finished=False)
    text = write_sweep_report(folder).read_text(encoding="utf-8")
    assert "<dt>alarms</dt><dd>at least 2</dd><small>in 1 of 2 runs</small>" in text
    assert "uniform/seed_0</b>, 2 alarms: 2 alarms at step 10" in text


def test_a_sweep_whose_runs_have_just_begun_shows_where_they_stand(tmp_path):
    made_result(tmp_path / "sweep", "frontier", 0, looks=((0, 20.0),), metrics=steps_of()[:1], finished=False)
    text = write_sweep_report(tmp_path / "sweep").read_text(encoding="utf-8")
    assert len(marks_of(text, "Held-out score over policy tokens", "run-unfinished")) == 1
    assert len(marks_of(text, "courses of all arms", "seed")) == 4


def test_alarms_of_one_step_are_counted_alike_in_the_strip_and_below(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0,)})
    made_result(folder, "uniform", 0, metrics=steps_of(), summary={"collapse": {"alarms": [ALARM, {**ALARM, "name": "entropy_lost"}]}})
    text = write_sweep_report(folder).read_text(encoding="utf-8")
    assert "<dt>alarms</dt><dd>2</dd><small>in 1 of 2 runs</small>" in text
    assert re.findall(r'<details class="alarm"><summary><b>(.*?)</summary>', text) == [
        "uniform/seed_0</b>, 2 alarms: density_lost at step 10, entropy_lost at step 10"
    ]
    assert text.count("Reward density is &lt;low&gt;.") == 2


def test_beyond_eight_runs_with_alarms_the_rest_is_folded_in(tmp_path):
    for num, words in ((9, "2 more runs"), (8, "1 more run")):
        finals = {"frontier": [70.0] * num, "uniform": [60.0]}
        folder = made(tmp_path / str(num), finals, summary={"collapse": {"alarms": [ALARM]}})
        shown, _, folded = write_sweep_report(folder).read_text(encoding="utf-8").partition(f"<summary>{words}</summary>")
        assert [part.count('<details class="alarm">') for part in (shown, folded)] == [8, num - 7]


def test_an_arm_whose_name_needs_the_width_of_its_frame_has_it_for_itself(tmp_path):
    arms = {"frontier": [70.0], "frontier_with_a_name_that_is_long": [60.0]}
    drawing = drawing_of(write_sweep_report(made(tmp_path, arms)).read_text(encoding="utf-8"), "courses of all arms")
    words = [element for element in drawing.iter() if element.tag.endswith("text")]
    assert set(arms) <= {element.text for element in words}
    beside = [element for element in words if element.text == "held-out score"]
    # It ends at the edge of its frame, wherever a reader's letters let the name end.
    assert len(beside) == 1 and "text-anchor: end" in beside[0].get("style")


def test_one_seed_has_no_spread_no_list_of_seeds_and_no_strokes_of_runs(tmp_path):
    page = write_sweep_report(made(tmp_path, {"frontier": [70.0], "uniform": [60.0]}))
    words, text = words_of(page), page.read_text(encoding="utf-8")
    assert "the one run" in words and "area, seed by seed" not in words and "sd of the area" not in words
    assert "Dot: the one run." in words and "Dot: the one seed." in words and "Rings" not in words
    assert marks_of(text, BY_STRICTNESS, "run") == [] and "Short strokes" not in words
    assert lines_of(text, ABOVE_A_SCORE, "run") == [] and "Thin lines" not in words


def test_runs_of_several_seeds_are_strokes_and_the_axis_has_the_strictnesses_of_users(page):
    text = page.read_text(encoding="utf-8")
    # Three seeds at .1, .5 and .9 in three arms.
    assert len(marks_of(text, BY_STRICTNESS, "run")) == 27 and "Short strokes: one run each." in words_of(page)
    words = [element.text for element in drawing_of(text, BY_STRICTNESS).iter() if element.tag.endswith("text")]
    assert words[:3] == ["0.1", "0.5", "0.9"]


def lines_of(text: str, title: str, kind: str) -> list[str | None]:
    return [group.findtext("title") for group in drawing_of(text, title).iter("g") if group.get("class") == kind]


def test_the_share_above_a_score_is_drawn_for_every_run_and_for_each_arm(page):
    text = page.read_text(encoding="utf-8")
    assert sorted(lines_of(text, ABOVE_A_SCORE, "run")) == sorted(f"{arm}/seed_{seed}" for arm in FINALS for seed in range(3))
    assert set(lines_of(text, ABOVE_A_SCORE, "mean")) == set(FINALS) and "Thin lines: one run each." in words_of(page)


def test_the_runs_shares_above_a_score_are_what_the_arms_are_made_of(page):
    sweep = read_sweep(page.parent)
    found, by_run = compare(sweep, comparison.Plan()), shares_by_run(list(sweep.of("frontier").values()))
    assert [name for name, _, _ in by_run] == ["frontier/seed_0", "frontier/seed_1", "frontier/seed_2"]
    assert np.mean([shares for _, _, shares in by_run], axis=0) == pytest.approx(found["arms"]["frontier"]["profile"]["value"])


def test_an_axis_of_differences_names_the_endpoint_in_words(page):
    words = words_of(page)
    assert "difference in the area under the held-out score" in words and "heldout.auc" not in words.partition("How to repeat it")[0]


def test_captions_say_which_grid_a_number_is_of(page):
    words = words_of(page)
    assert "On the small held-out grid, as the curves are." in words and "At the last evaluation, on the full held-out grid." in words
    assert "Area: under the curves, on the small held-out grid. The other scores: at the last evaluation, on the full grid" in words


def test_wide_pictures_keep_their_letters_and_are_scrolled(page):
    text = page.read_text(encoding="utf-8")
    kinds = dict(re.findall(r'<h3>([^<]+)</h3><div class="(scroll[^"]*)">', text))
    assert kinds["Held-out score over policy tokens"] == kinds["Each arm by itself"] == "scroll full"
    assert kinds["Differences on the same seeds"] == kinds[BY_STRICTNESS] == "scroll"


def test_the_command_that_repeats_a_sweep_starts_one_of_another_name(tmp_path):
    assert "arms=fixed_0.5,frontier,uniform name=again" in words_of(write_sweep_report(made(tmp_path)))
    folder = made_sweep(tmp_path / "again", {"frontier": [70.0], "uniform": [60.0]})
    assert "arms=frontier,uniform name=again_2" in words_of(write_sweep_report(folder))


def test_the_page_stands_alone_and_has_every_part(page):
    text = page.read_text(encoding="utf-8")
    assert read_page(page).loads == []
    assert (
        "<script" not in text and not re.search(r"url\((?!#)", text) and "nan" not in "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    )
    assert re.findall(r"<h2>([^<]+)</h2>", text) == [
        *("How the arms learned", "What they reached", "With whom", "Alarms, and what happened after"),
        *("One held-out user, before and after", "Cost", "How to repeat it", "Versions"),
    ]


def test_every_figure_lies_beside_the_page_as_picture_and_table(page):
    names = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    for ending in ("csv", "png"):
        assert names == {path.stem for path in (page.parent / "figures").glob(f"*.{ending}")}
    assert names == {"learning_curves", "courses", "contrasts", "area", "final", "score_by_strictness", "performance_profile", "cells"}
    for path in (page.parent / "figures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in text and "nan" not in text


def test_every_run_is_drawn_and_not_only_means(page):
    curves = rows_of(page, "learning_curves")
    assert {(row["arm"], row["seed"]) for row in curves} == {(arm, str(seed)) for arm in FINALS for seed in range(3)}
    drawing = drawing_of(page.read_text(encoding="utf-8"), "Held-out score over policy tokens")
    assert [sum(group.get("class") == kind for group in drawing.iter("g")) for kind in ("run", "mean")] == [9, 3]


def test_the_map_of_cells_averages_seeds_and_persona_types(page):
    # The last look of frontier averages 75; the cells of the made runs add +30 or -30 for advice, within 0 and 100.
    cells = {(row["arm"], row["hidden_intention"], row["strictness"]): float(row["score"]) for row in rows_of(page, "cells")}
    assert cells["frontier", "advice", "0.1"] == 100.0 and cells["frontier", "advice", "0.9"] == 45.0
    assert cells["frontier", "praise", "0.5"] == 75.0


def test_an_unfinished_run_is_named_and_its_curve_drawn(tmp_path):
    folder = made(tmp_path)
    made_result(folder, "linear", 0, looks=((0, 20.0), (500, 44.0)), metrics=steps_of(8, budget=BUDGET // 2), finished=False)
    page = write_sweep_report(folder)
    words = words_of(page)
    assert "linear/seed_0 has not finished (step 8, 50% of its tokens): its curves are drawn, the verdict does without it." in words
    assert "linear/seed_0 is left out" not in words
    assert "9 of 10" in words
    assert {"arm": "linear", "seed": "0", "policy_tokens": "500", "score": "44"} in rows_of(page, "learning_curves")
    drawing = drawing_of(page.read_text(encoding="utf-8"), "Held-out score over policy tokens")
    assert [group.findtext("title") for group in drawing.iter("g") if group.get("class") == "run-unfinished"] == ["linear/seed_0"]


def test_finished_runs_of_which_none_can_be_used_are_not_called_unfinished(tmp_path):
    folder = tmp_path / "fixed_vs_adaptive" / "main"
    made_result(folder, "frontier", 0)
    (folder / "frontier" / "seed_0").rename(folder / "frontier" / "seed_5")
    words = words_of(write_sweep_report(folder))
    assert "Nothing can be compared: 1 run was finished, and none of them can be used." in words
    assert "frontier/seed_5 is left out: its summary says seed 0, its folder 5" in words


def test_a_torn_run_is_named_and_the_others_are_compared(tmp_path):
    folder = made(tmp_path)
    (folder / "uniform" / "seed_1" / "summary.json").write_text("{", encoding="utf-8")
    words = words_of(write_sweep_report(folder))
    assert "uniform/seed_1 is left out:" in words
    assert words.count("uniform/seed_1 is left out") == 1
    assert "uniform lacks seed 1; only common seeds are paired." in words
    assert "frontier - uniformundecided+5.8" in words


def test_a_torn_teacher_log_costs_what_was_issued_and_not_the_run(tmp_path):
    folder = made(tmp_path)
    torn = folder / "frontier" / "seed_1" / "teacher.jsonl"
    torn.write_text(f"\0\0\n{torn.read_text()}")
    courses = read_courses(folder)
    assert not courses.unreadable and [course.name for course in courses.runs if not course.issued] == ["frontier/seed_1"]
    words = words_of(write_sweep_report(folder))
    assert "frontier/seed_1 is shown without the tasks it issued: " in words and "teacher.jsonl must hold a JSON object" in words
    assert "frontier/seed_1 is left out" not in words and "frontier has no run with seed 1" not in words and "runs finished9 of 9" in words


def test_worlds_budgets_and_missing_seeds_are_each_said_in_a_sentence(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 80.0)})
    made_result(folder, "uniform", 0, world="bbbb")
    made_result(folder, "uniform", 1)
    made_result(folder, "linear", 0, budget=2 * BUDGET)
    made_result(folder, "linear", 1)
    made_result(folder, "adarft", 1)
    words = words_of(write_sweep_report(folder))
    assert "The runs come from 2 worlds (uniform in bbbb); only runs of one world are set against each other." in words
    assert "frontier/seed_0 and uniform/seed_0 ran in different worlds (aaaa and bbbb); this pair is left out." in words
    assert "had unequal budgets (budget.policy_tokens: 1000 and 2000); this pair is left out." in words
    assert "(adarft, frontier, linear, uniform 1,000 policy tokens; linear 2,000 policy tokens)" in words
    assert "adarft lacks seed 0; only common seeds are paired." in words
    assert "1,000 or 2,000" in words


def test_a_budget_that_is_no_number_leaves_that_run_out_and_the_page_whole(tmp_path):
    folder = made(tmp_path)
    config = folder / "uniform" / "seed_0" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("policy_tokens: 1000", "policy_tokens: many"), encoding="utf-8")
    words = words_of(write_sweep_report(folder))
    assert "uniform/seed_0 is left out: budget.policy_tokens must stand in its config.yaml, got 'many'" in words


def test_nothing_finished_has_a_page_too(tmp_path):
    for seed in range(2):
        made_result(tmp_path / "sweep", "frontier", seed, looks=((0, 20.0),), finished=False)
    words = words_of(write_sweep_report(tmp_path / "sweep"))
    assert "No run of this sweep has finished: 2 runs were begun, and nothing can be compared yet." in words
    assert "step 1, unfinished" in words


def test_an_alarm_is_told_with_what_happened_after(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0,)})
    metrics = [{**line, "collapse/alarms_on": float(10 <= line["step"] < 14)} for line in steps_of()]
    made_result(
        folder, "uniform", 0, metrics=metrics, summary={"collapse": {"alarms": [ALARM]}}, looks=((0, 20.0), (500, 50.0), (BUDGET, 40.0))
    )
    page = write_sweep_report(folder)
    # Looks lie at steps 0, 10 and 20: before the alarm 50, at the end 40. Entropy is 1 - step / 40, means of three steps.
    assert (
        "What followed: no alarm was on 4 steps later; the held-out score went from 50.0 to 40.0, entropy from 0.775 to 0.525"
        in words_of(page)
    )
    assert "&lt;low&gt;" in page.read_text(encoding="utf-8")


def test_the_contrasts_of_the_comparison_beside_the_runs_are_kept(tmp_path):
    folder = made(tmp_path)
    plan = Plan(contrasts=[("uniform", "fixed_*")], primary="heldout.score", num_resamples=20)
    write_json(compare(read_sweep(folder), plan), folder / "comparison.json")
    words = words_of(write_sweep_report(folder))
    assert "uniform - fixed_0.5" in words and "frontier -" not in words
    assert "--contrast 'uniform:fixed_*'" in words


def test_the_page_keeps_to_the_plan_of_the_sweep(tmp_path):
    folder = made(tmp_path)
    Planned(contrasts=(("uniform", "fixed_*"), ("uniform", "yoked")), primary="heldout.score").keep(folder)
    words = words_of(write_sweep_report(folder))
    assert "uniform - fixed_0.5" in words and "frontier -" not in words
    assert "uniform - yoked cannot be computed: yoked has no run that can be used." in words


def test_how_to_repeat_it_has_the_settings_that_were_given_for_all_arms(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": (70.0,), "uniform": (60.0,)})
    assert "was not kept; they are among those below" in words_of(write_sweep_report(folder))
    planned = Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", overrides=("rollout.group_size=4", "seeds=0"))
    planned.keep(folder)
    words = words_of(write_sweep_report(folder))
    assert 'ARGS="rollout.group_size=4 seeds=0' in words and "was not kept" not in words


def test_a_setting_that_did_not_exist_when_some_runs_began_is_no_difference_of_arms(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": (70.0,), "uniform": (60.0,)})
    config = folder / "uniform" / "seed_0" / "config.yaml"
    config.write_text(config.read_text() + "policy:\n  engine_process: false\n")
    assert "engine_process" not in words_of(write_sweep_report(folder))


@pytest.mark.parametrize("finished", [True, False])
def test_a_torn_plan_is_said_and_the_page_is_written(tmp_path, finished):
    folder = made_sweep(tmp_path / "sweep", {"frontier": (70.0,), "uniform": (60.0,)})
    if not finished:
        for summary in folder.glob("*/*/summary.json"):
            summary.unlink()
    (folder / "plan.json").write_text("{")
    assert words_of(write_sweep_report(folder)).count("What was planned is not known") == 1


def test_the_page_tells_runs_that_are_planned_from_those_begun(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": (70.0, 80.0), "uniform": (60.0,)})
    assert "runs finished3 of 3begun so far" in words_of(write_sweep_report(folder))
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=(0, 1, 2), arms=("frontier", "uniform")).keep(folder)
    assert "runs finished3 of 6planned; 3 begun" in words_of(write_sweep_report(folder))


def test_a_broken_comparison_beside_the_runs_is_done_without(tmp_path):
    folder = made(tmp_path)
    (folder / "comparison.json").write_text("{", encoding="utf-8")
    assert "frontier - uniform" in words_of(write_sweep_report(folder))


def test_the_command_takes_a_sweep_and_writes_it_again_alike(tmp_path, capsys):
    folder = made(tmp_path)
    assert main(["report", str(folder)]) == 0
    first = (folder / "report.html").read_bytes()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_bytes() == first
    assert capsys.readouterr().out.splitlines() == [str(folder / "report.html")] * 2
    assert not list(folder.glob(".*"))


def test_a_folder_of_sweeps_is_refused_in_one_sentence_that_names_them(tmp_path, capsys):
    made(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and "sweeps beneath it: " in complaint and str(tmp_path / "sweep") in complaint


def test_means_are_over_finished_runs_and_over_all_while_there_is_none(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 80.0)})
    made_result(folder, "frontier", 2, finished=False)
    made_result(folder, "uniform", 0, finished=False)
    courses = read_courses(folder)
    assert [course.name for course in courses.averaged("frontier")] == ["frontier/seed_0", "frontier/seed_1"]
    assert [course.name for course in courses.averaged("uniform")] == ["uniform/seed_0"]


def test_what_the_teachers_issued_is_read_with_its_tokens(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0,)})
    (course,) = read_courses(folder).runs
    assert [task.policy_tokens for task in course.issued[:4]] == [0.0, 0.0, 50.0, 50.0]
    # Tenth and ninetieth percentile of .2 and .6 in equal parts.
    edges, lows, highs = issued_between(course.issued, end=1000.0, num_bins=2)
    assert edges == [250.0, 750.0]
    assert lows == pytest.approx([0.2, 0.2]) and highs == pytest.approx([0.6, 0.6])


def test_what_training_cost_stands_by_arm_and_by_contrast_where_runs_were_probed(tmp_path):
    for arm, changes in {"situated": (0.02, 0.04), "warm": (0.10, 0.20)}.items():
        for seed, change in enumerate(changes):
            errors = {name: {"change": change} for name in ("plain", "emotional", "false_belief")}
            added = {"emotional_cost": {"change": 0.0}, "sycophancy": {"change": 2 * change}}
            margins = {"plain": {"change": -change}, "false_belief": {"change": 10 * change}}
            probe = {"reliability": {"n": 8, "errors": errors, **added, "margin_nats": margins}}
            made_result(tmp_path / "sweep", arm, seed, summary=probe, metrics=steps_of(), teacher=tasks_of())
    words = words_of(write_sweep_report(tmp_path / "sweep"))
    told = words[words.index("What it cost: reliability") :]
    assert "situated+3.0 [2.0, 4.0]" in told and "warm+15.0 [10.0, 20.0]" in told
    assert "situated less warm-12.0 [" in told
    Planned(contrasts=(("situated", "warm"),), primary="reliability.margin_nats.plain.change").keep(tmp_path / "sweep")
    words = words_of(write_sweep_report(tmp_path / "sweep"))
    assert "Compared on the nats that training added to what is right, the primary endpoint." in words
    assert "situated - warmundecided+0.12 nats" in words and "The best by the primary endpoint" in words
    # The belief adds twice 10 and twice 20 points, the margin against it is ten times the change.
    assert "+0.0 [0.0, 0.0]+30.0 [20.0, 40.0]" in told and "warm-0.15 [-0.20, -0.10]+1.50 [1.00, 2.00]" in told


def test_what_the_plan_is_read_by_stands_by_arm_and_by_contrast(tmp_path):
    for seed in range(2):
        made_result(tmp_path / "sweep", "a", seed, looks=((0, 20.0), (500, 64.0 + 2 * seed), (BUDGET, 60.0)), metrics=steps_of())
        made_result(tmp_path / "sweep", "b", seed, looks=((0, 20.0), (500, 70.0), (BUDGET, 50.0)), metrics=steps_of())
    Planned(contrasts=(("a", "b"),), primary="heldout.auc", read=("heldout.forgotten", "heldout.gain")).keep(tmp_path / "sweep")
    words = words_of(write_sweep_report(tmp_path / "sweep"))
    told = words[words.index("What this experiment is read by") :]
    # 64 - 60 and 66 - 60 against 70 - 50 twice.
    assert "a5.0 [4.0, 6.0]40.0 [40.0, 40.0]" in told and "a less b-15.0 [" in told
    assert "lies above the last one even where nothing is forgotten" in told


def test_a_sweep_that_names_nothing_else_has_no_such_part(page):
    assert "What this experiment is read by" not in words_of(page)


def test_a_sweep_without_the_probe_says_nothing_of_it(page):
    assert "What it cost: reliability" not in words_of(page)


def test_mean_curves_reach_as_far_as_all_runs():
    mean = mean_curve([Curve([0, 100], [0.0, 10.0]), Curve([0, 50], [10.0, 20.0])], points=3)
    # At 0, 25 and 50: (0 + 10) / 2, (2.5 + 15) / 2, (5 + 20) / 2.
    assert mean == Curve([0.0, 25.0, 50.0], [5.0, 8.75, 12.5])
    assert mean_curve([Curve([0], [1.0])]) is None
    assert value_at(Curve([0, 10], [1.0, 3.0]), 20) == 3.0


def test_no_mean_is_drawn_over_runs_that_the_verdict_does_not_average(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 80.0), "uniform": (60.0,)})
    made_result(folder, "uniform", 1, world="bbbb", metrics=steps_of())
    page = write_sweep_report(folder)
    assert "uniform is not averaged: uniform/seed_0 and uniform/seed_1 ran in different worlds (aaaa and bbbb)." in words_of(page)
    drawing = drawing_of(page.read_text(encoding="utf-8"), "Held-out score over policy tokens")
    assert [sum(group.get("class") == kind for group in drawing.iter("g")) for kind in ("run", "mean")] == [4, 1]
    assert {row["arm"] for row in rows_of(page, "cells")} == {"frontier"}
    assert {row["arm"] for row in rows_of(page, "learning_curves")} == {"frontier", "uniform"}


def test_a_dialogue_is_shown_while_the_favourite_is_unfinished_and_said_to_be_gone_where_it_is(tmp_path):
    folder = made(tmp_path, {"uniform": (60.0,)})
    frontier = made_result(folder, "frontier", 0, finished=False)
    assert "After training: uniform" in words_of(write_sweep_report(folder))
    made_result(folder, "frontier", 1)
    for place in (frontier, folder / "frontier" / "seed_1"):
        (place / "evaluation.jsonl").unlink()
    words = words_of(write_sweep_report(folder))
    assert "evaluation.jsonl of frontier/seed_1 holds no dialogue of before and after training." in words


def test_no_seed_that_an_arm_lacks_is_passed_over(tmp_path):
    folder = tmp_path / "sweep"
    for arm, seeds in {"frontier": [0], "uniform": [0, 1], "linear": [0, 2]}.items():
        for seed in seeds:
            made_result(folder, arm, seed)
    words = words_of(write_sweep_report(folder))
    # Of seed 1 the contrast with uniform says it, of seed 2 that with linear.
    assert "frontier lacks seed 1; only common seeds are paired." in words
    assert "frontier lacks seed 2; only common seeds are paired." in words
    assert "uniform has no run with seed 2." in words and "linear has no run with seed 1." in words
    assert "frontier has no run" not in words
    (folder / "linear").rename(tmp_path / "later")
    made_result(folder, "adarft", 2, looks=((0, 20.0),), finished=False)
    words = words_of(write_sweep_report(folder))
    assert "frontier lacks seed 1; only common seeds are paired." in words and "frontier has no run with seed 2." in words
    assert "adarft/seed_2 has not finished" in words and "adarft/seed_2 is left out" not in words


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
