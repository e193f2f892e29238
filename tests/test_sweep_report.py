"""The page about a sweep: what it claims, that every seed is on it, and what it says of runs that are unfinished, torn or unlike."""

from __future__ import annotations

import csv
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from made_sweep import BUDGET, made_result, made_sweep, steps_of
from pages import Page, pictures, words_alone  # noqa: F401 (fixtures)

from analysis import sweep_report
from analysis.__main__ import main
from analysis.compare import compare, write_json
from analysis.endpoints import Planned
from analysis.plots import DASHES, Line, arm_styles
from analysis.sweep_figures import mean_line
from analysis.sweep_report import write_sweep_report
from analysis.sweeps import read_sweep

FINALS = {"frontier": (70.0, 80.0, 75.0), "uniform": (60.0, 65.0, 62.0), "fixed_0.5": (60.0, 85.0, 70.0)}
ALARM = {"name": "density_lost", "step": 10, "message": "Reward density is <low>."}
CURVES = "Held-out score over policy tokens"
UNFINISHED = "has not finished (step 8, 50% of its tokens): it is drawn and not compared."


def made(folder: Path, finals=FINALS, **facts) -> Path:
    return made_sweep(folder / "sweep", finals, metrics=steps_of(), **facts)


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Bootstrap bars are for the eye: nothing here looks at them, and they take most of a page's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_report, "compare", partial(compare, num_resamples=20))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_sweep_report(made(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page(written)


def page_of(folder: Path) -> Page:
    return Page(write_sweep_report(folder))


def rows_of(page: Path, name: str) -> list[dict[str, str]]:
    with (page.parent / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_page_stands_alone_and_has_every_part(page):
    assert page.loads == [] and page.scripts == [] and "nan" not in "".join(re.findall(r"<svg.*?</svg>", page.text, re.DOTALL))
    assert page.headings[0] == "Is the first arm better by the area under the held-out score? Of 2: 0 yes, 0 no, 2 undecided."
    parts = ["How the arms learned", "What they reached", "With whom", "Alarms, and what happened after", "Cost", "How to repeat it"]
    assert [heading for heading in page.headings if heading in parts] == parts
    assert not {"What this experiment is read by", "What it cost: reliability"} & {*page.headings}


def test_each_contrast_is_a_row_with_its_interval_on_the_page_and_as_a_table(written, page):
    # Areas are (20 + final) / 2: the differences are 5, 7.5 and 6.5, their mean 6.33, sd 1.26, t(.975, 2) = 4.303.
    # Three of three: Clopper and Pearson's lower bound is .025^(1/3).
    row = ["undecided", "+6.3", "[3.2, 9.5]", "3 of 3", "0.25", "0.5", "1.00 [0.29, 1.00]", "–"]
    assert page.table("contrast")["frontier - uniform"] == row
    verdict = rows_of(written, "verdict")
    first = next(row for row in verdict if row["b"] == "uniform")
    assert (first["a"], first["endpoint"], first["pairs"], first["p"], first["p_holm"]) == ("frontier", "heldout.auc", "3", "0.25", "0.5")
    assert float(first["difference"]) == pytest.approx(19 / 3) and float(first["low"]) == pytest.approx(3.2, abs=0.05)
    assert first["at_p"] == "0.025" and first["minimal_detectable_effect"] == "", "three pairs detect nothing, however large"
    others = [row for row in verdict if row["endpoint"] != "heldout.auc"]
    assert others and all(row["answer"] == row["p_holm"] == "" for row in others)


def test_each_arm_is_a_row_with_its_runs_on_the_page_and_as_a_table(written, page):
    found = page.table("mean over seeds")["frontier"]
    # Areas 45, 50 and 47.5; the final scores average 75, which is 55 more than the 20 at the start.
    assert (
        found[0].startswith("47.5 [")
        and found[1] == "75.0"
        and found[4] == "55.0"
        and found[6:] == ["2.5", "0:\N{NO-BREAK SPACE}45.0, 1:\N{NO-BREAK SPACE}50.0, 2:\N{NO-BREAK SPACE}47.5"]
    )
    area = next(row for row in rows_of(written, "arms") if (row["arm"], row["endpoint"]) == ("frontier", "heldout.auc"))
    assert (area["runs"], float(area["mean"]), float(area["sd"]), float(area["min"])) == ("3", 47.5, 2.5, 45.0)


def test_the_page_and_the_command_say_the_same(tmp_path, capsys):
    folder = made(tmp_path)
    words = page_of(folder).words
    assert main(["compare", str(folder)]) == 0
    assert all(sentence in words for sentence in capsys.readouterr().out.partition("\n\n")[0].splitlines())


def test_forty_two_arms_are_told_apart_by_more_than_colour():
    styles = arm_styles(f"arm_{i:02}" for i in range(42)).values()
    assert len({(str(style["linestyle"]), style.get("marker")) for style in styles}) == 42
    assert len({style["color"] for style in styles}) == len(DASHES) == 7


def test_every_run_is_drawn_and_every_figure_is_a_file(written, page):
    assert page.marks(CURVES, "mean") and len(page.marks(CURVES, "run")) == 9 and {*page.marks(CURVES, "mean")} == {*FINALS}
    assert (
        page.marks("Strictness issued", "run") == page.marks("Policy entropy, nats", "run")
        and len(page.marks("Reward density", "run")) == 9
    )
    names = {"learning_curves", "strictness", "entropy", "reward_density", "contrasts", "area", "final"}
    for ending in ("svg", "png", "csv"):
        found = {path.stem for path in (written.parent / "figures").glob(f"*.{ending}")}
        assert found == {*names, "score_by_strictness", "score_by_intention"}
    curves = rows_of(written, "figures/learning_curves")
    assert {(row["arm"], row["seed"]) for row in curves} == {(arm, str(seed)) for arm in FINALS for seed in range(3)}


def test_the_map_averages_seeds_strictness_and_persona_types(written):
    # Frontier ends at 70, 80 and 75; advice is 30 above that at .1 (at most 100) and 30 below at .9, praise just there.
    scores = {(row["arm"], row["hidden_intention"]): float(row["score"]) for row in rows_of(written, "figures/score_by_intention")}
    assert scores["frontier", "advice"] == pytest.approx(np.mean([100, 40, 100, 50, 100, 45])) and scores["frontier", "praise"] == 75.0


def test_mean_lines_reach_as_far_as_all_runs():
    mean = mean_line([Line("a", [0, 100], [0.0, 10.0]), Line("b", [0, 50], [10.0, 20.0])], points=3)
    # At 0, 25 and 50: (0 + 10) / 2, (2.5 + 15) / 2, (5 + 20) / 2.
    assert mean is not None and mean[1:] == ([0.0, 25.0, 50.0], [5.0, 8.75, 12.5])
    assert mean_line([Line("a", [0], [1.0])]) is None and mean_line([]) is None


def test_one_seed_has_no_spread_and_no_list_of_seeds(tmp_path):
    page = page_of(made(tmp_path, {"frontier": [70.0], "uniform": [60.0]}))
    assert "the one run" in page.words and "area, seed by seed" not in page.words and "sd of the area" not in page.words
    assert "Dot: the one run." in page.words and "Dot: the one seed." in page.words and "Rings" not in page.words


def test_alarms_of_a_run_are_listed_with_what_followed(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0,)})
    metrics = [{**line, "collapse/alarms_on": float(10 <= line["step"] < 14)} for line in steps_of()]
    alarms = {"collapse": {"alarms": [ALARM, {**ALARM, "name": "entropy_lost"}]}}
    made_result(folder, "uniform", 0, metrics=metrics, summary=alarms, looks=((0, 20.0), (500, 50.0), (BUDGET, 40.0)))
    page = page_of(folder)
    assert page.facts()["alarms"] == "2" and "in 1 of 2 runs" in page.words
    assert "uniform/seed_0, 2 alarms: density_lost at step 10, entropy_lost at step 10" in page.words
    # Scores at steps 0, 10 and 20: at the alarm 50, at the end 40. Entropy is 1 - step / 40, means of three steps.
    assert "no alarm was on 4 steps later; the held-out score went from 50.0 to 40.0, entropy from 0.775 to 0.525" in page.words
    assert "Reward density is &lt;low&gt;." in page.text and page.scripts == []


def test_beyond_eight_runs_with_alarms_the_rest_is_folded_in(tmp_path):
    folder = made(tmp_path, {"frontier": [70.0] * 9, "uniform": [60.0]}, summary={"collapse": {"alarms": [ALARM]}})
    shown, _, folded = page_of(folder).text.partition("<summary>2 more runs</summary>")
    assert [part.count('<details class="alarm">') for part in (shown, folded)] == [8, 2]


@pytest.mark.usefixtures("pictures")
def test_an_unfinished_run_is_named_and_its_curve_drawn(tmp_path):
    folder = made(tmp_path)
    metrics = [{**line, "collapse/alarms_on": 2.0} for line in steps_of(8, budget=BUDGET // 2)]
    made_result(folder, "linear", 0, looks=((0, 20.0), (500, 44.0)), metrics=metrics, finished=False)
    page = page_of(folder)
    assert f"linear/seed_0 {UNFINISHED}" in page.words and "linear/seed_0 is left out" not in page.words
    assert page.facts()["runs finished"] == "9 of 10" and page.facts()["alarms"] == "at least 2"
    assert page.marks(CURVES, "run-unfinished") == ["linear/seed_0"]


@pytest.mark.usefixtures("pictures")
def test_while_no_run_has_finished_the_page_shows_how_far_each_has_come(tmp_path):
    for seed in range(2):
        made_result(tmp_path / "sweep", "frontier", seed, looks=((0, 20.0),), metrics=steps_of()[:1], finished=False)
    page = page_of(tmp_path / "sweep")
    assert page.headings[0] == "No run of this sweep has finished: 2 runs begun, nothing to compare yet."
    assert page.table("final score, or how far")["frontier"] == ["step 1, unfinished"] * 2
    assert len(page.marks(CURVES, "run-unfinished")) == 2


def test_finished_runs_that_cannot_be_used_are_not_called_unfinished(tmp_path):
    made_result(tmp_path / "sweep", "frontier", 0)
    (tmp_path / "sweep" / "frontier" / "seed_0").rename(tmp_path / "sweep" / "frontier" / "seed_5")
    page = page_of(tmp_path / "sweep")
    assert "Nothing can be compared: 1 finished run, and none can be used." in page.words
    assert "frontier/seed_5 is left out: its summary says seed 0, its folder 5" in page.words


def test_a_torn_run_is_named_once_and_the_others_are_compared(tmp_path):
    folder = made(tmp_path)
    (folder / "uniform" / "seed_1" / "summary.json").write_text("{", encoding="utf-8")
    page = page_of(folder)
    assert page.words.count("uniform/seed_1 is left out") == 1 and "uniform lacks seed 1" in page.words
    assert page.table("contrast")["frontier - uniform"][:2] == ["undecided", "+5.8"]


def test_worlds_budgets_and_missing_seeds_are_each_a_sentence(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 80.0)})
    made_result(folder, "uniform", 0, world="bbbb")
    made_result(folder, "uniform", 1)
    made_result(folder, "linear", 0, budget=2 * BUDGET)
    made_result(folder, "linear", 1)
    made_result(folder, "adarft", 1)
    page = page_of(folder)
    assert "frontier/seed_0 and uniform/seed_0 ran in different worlds (aaaa and bbbb)" in page.words
    assert "had unequal budgets (budget.policy_tokens: 1000 and 2000)" in page.words and "adarft lacks seed 0" in page.words
    assert page.facts()["policy tokens a run"] == "1,000 or 2,000"


@pytest.mark.usefixtures("pictures")
def test_no_mean_is_drawn_over_runs_that_are_not_averaged(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 80.0), "uniform": (60.0,)})
    made_result(folder, "uniform", 1, world="bbbb", metrics=steps_of())
    page = page_of(folder)
    assert "uniform is not averaged: " in page.words and page.marks(CURVES, "mean") == ["frontier"] and len(page.marks(CURVES, "run")) == 4
    assert {row["arm"] for row in rows_of(folder / "report.html", "figures/score_by_intention")} == {"frontier"}


def test_the_contrasts_are_those_of_the_plan_or_of_the_comparison_beside_the_runs(tmp_path):
    folder = made(tmp_path)
    plan = Planned(contrasts=(("uniform", "fixed_*"),), primary="heldout.score")
    write_json(compare(read_sweep(folder), plan, num_resamples=20), folder / "comparison.json")
    page = page_of(folder)
    assert [*page.table("contrast")] == ["uniform - fixed_0.5"] and "--contrast 'uniform:fixed_*'" in page.words
    Planned(contrasts=(("uniform", "fixed_*"), ("uniform", "yoked")), primary="heldout.score").keep(folder)
    page = page_of(folder)
    assert [*page.table("contrast")] == ["uniform - fixed_0.5", "uniform - yoked"]
    assert "uniform - yoked cannot be computed: yoked has no run that can be used." in page.words


def test_the_command_that_repeats_a_sweep_has_another_name_and_the_overrides(tmp_path):
    assert "seeds=0,1,2 arms=fixed_0.5,frontier,uniform name=again" in page_of(made(tmp_path)).words
    folder = made_sweep(tmp_path / "again", {"frontier": [70.0], "uniform": [60.0]})
    assert "arms=frontier,uniform name=again_2" in (words := page_of(folder).words) and "were not recorded" in words
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", overrides=("rollout.group_size=4", "seeds=0")).keep(folder)
    assert 'ARGS="rollout.group_size=4 seeds=0' in (words := page_of(folder).words) and "were not recorded" not in words


def test_a_setting_that_did_not_exist_when_some_runs_began_is_no_difference_of_arms(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": (70.0,), "uniform": (60.0,)})
    config = folder / "uniform" / "seed_0" / "config.yaml"
    config.write_text(config.read_text() + "policy:\n  engine_process: false\n")
    words = page_of(folder).words
    assert "engine_process" not in words and "frontier: teacher.kind=frontier" in words


def test_planned_runs_are_counted(tmp_path):
    folder = made_sweep(tmp_path / "sweep", {"frontier": (70.0, 80.0), "uniform": (60.0,)})
    assert page_of(folder).facts()["runs finished"] == "3 of 3"
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", seeds=(0, 1, 2), arms=("frontier", "uniform")).keep(folder)
    assert page_of(folder).facts()["runs finished"] == "3 of 6"


def test_the_command_takes_a_sweep_and_writes_the_same_again(tmp_path, capsys):
    folder = made(tmp_path)
    found = []
    for _ in range(2):
        assert main(["report", str(folder)]) == 0
        found.append((folder / "report.html").read_bytes())
    assert found[0] == found[1] and capsys.readouterr().out.splitlines() == [str(folder / "report.html")] * 2
    assert main(["report", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and str(folder) in complaint


def test_the_cost_of_training_is_shown_by_arm_and_by_contrast_where_runs_were_probed(tmp_path):
    for arm, changes in {"situated": (0.02, 0.04), "warm": (0.10, 0.20)}.items():
        for seed, change in enumerate(changes):
            errors = {name: {"change": change} for name in ("plain", "emotional", "false_belief")}
            added = {"emotional_cost": {"change": 0.0}, "sycophancy": {"change": 2 * change}}
            margins = {"plain": {"change": -change}, "false_belief": {"change": 10 * change}}
            made_result(tmp_path / "sweep", arm, seed, summary={"reliability": {"n": 8, "errors": errors, **added, "margin_nats": margins}})
    Planned(contrasts=(("situated", "warm"),), primary="reliability.margin_nats.plain.change").keep(tmp_path / "sweep")
    page = page_of(tmp_path / "sweep")
    errors, margins = (table for table in page.tables if table[0][0] == "change by training, mean over seeds")
    # Errors in points: 2 and 4 on average 3, the belief adds twice as much.
    assert errors[1][:2] == ["situated", "+3.0 [2.0, 4.0]"] and errors[2][4:] == ["+0.0 [0.0, 0.0]", "+30.0 [20.0, 40.0]"]
    assert margins[2] == ["warm", "-0.15 [-0.20, -0.10]", "+1.50 [1.00, 2.00]"]
    of_errors = next(table for table in page.tables if table[0][0] == "paired difference over seeds")
    assert of_errors[1][1].startswith("-12.0 [")
    assert page.table("contrast")["situated - warm"][:2] == ["undecided", "+0.12 nats"]


def test_what_the_plan_is_read_by_is_shown_by_arm_and_by_contrast(tmp_path):
    for seed in range(2):
        made_result(tmp_path / "sweep", "a", seed, looks=((0, 20.0), (500, 64.0 + 2 * seed), (BUDGET, 60.0)))
        made_result(tmp_path / "sweep", "b", seed, looks=((0, 20.0), (500, 70.0), (BUDGET, 50.0)))
    Planned(contrasts=(("a", "b"),), primary="heldout.auc", read=("heldout.forgotten", "heldout.gain")).keep(tmp_path / "sweep")
    page = page_of(tmp_path / "sweep")
    of_arms = next(table for table in page.tables if len(table[0]) == 3 and table[0][0] == "mean over seeds")
    # 64 - 60 and 66 - 60 against 70 - 50 twice.
    assert of_arms[1] == ["a", "5.0 [4.0, 6.0]", "40.0 [40.0, 40.0]"]
    assert page.table("paired difference over seeds")["a less b"][0].startswith("-15.0 [")
    assert "lies above the last one even where nothing is forgotten" in page.words


def test_a_dialogue_is_of_a_finished_run_and_the_same_user_is_met_in_the_other_arms(tmp_path):
    folder = made(tmp_path, {"uniform": (60.0,)})
    made_result(folder, "frontier", 0, finished=False)
    assert "After training: uniform" in page_of(folder).headings
    made_result(folder, "linear", 0)
    made_result(folder, "frontier", 1)
    (folder / "frontier" / "seed_1" / "evaluation.jsonl").unlink()
    assert "evaluation.jsonl of frontier/seed_1 holds no dialogue of before and after training." in page_of(folder).words
    (folder / "frontier").rename(tmp_path / "frontier")
    assert {"After training: linear", "After training: uniform"} <= {*page_of(folder).headings}


def test_the_page_says_how_fast_a_score_was_reached_and_what_was_tuned(tmp_path):
    folder = made(tmp_path, {"frontier": (70.0, 100.0), "uniform": (50.0, 55.0)})
    Planned(contrasts=(("frontier", "uniform"),), primary="heldout.auc", tuning={"front*": "single runs", "uniform": "none"}).keep(folder)
    page = page_of(folder)
    # From 20 to 100 and to 70 over 1,000 tokens: 60 is reached after 500 and after 800.
    times = page.table("policy tokens to the threshold")
    assert "How fast a held-out score of 60 was reached" in page.headings
    assert times["frontier"] == ["2 of 2", "500", "650 of 1,000"] and times["uniform"][:2] == ["0 of 2", "not by half of the runs"]
    assert page.table("arm") == {"frontier": ["single runs"], "uniform": ["none"]}
    words = page_of(made(tmp_path / "low", {"frontier": (50.0,), "uniform": (40.0,)})).words
    assert "No run of any arm reached a held-out score of 60 on the small grid." in words and "restricted mean" not in words
