"""The page about a run: what it claims, that it stands alone, and that it survives a run that is unfinished, sparse or hostile."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from earlier_file import EARLIER, earlier
from made_run import ALARM, make_run
from pages import Page, pictures, words_alone  # noqa: F401 (fixtures)

from analysis.__main__ import main
from analysis.endpoints import Look
from analysis.plots import Dots, Figure, Line, curves, dot_rows, running_mean, write_figures
from analysis.report import AIM, CURVES, caveat, issued_figure, line_figure, verdict, write_report
from analysis.runs import Group, Run, by_time, read_run
from analysis.sections import BeforeAfter
from analysis.text import duration, make_experiment
from experiments.recorder import Recorder


def make_summary(*, start=25.0, end=70.0, alarms=(), expert=85.0) -> dict:
    scores = {"start": {"score": start}, "heldout": {"score": end}}
    return {**scores, "reference": {"L6": {"score": expert}}, "collapse": {"alarms": list(alarms)}}


def run_with(summary: dict | None) -> Run:
    return Run(folder=Path("runs/smoke/seed0"), config={}, provenance={}, metrics=[], summary=summary)


def held_out(mean: float, low: float, high: float) -> BeforeAfter:
    return BeforeAfter(looks=[], pairs=[], gain=(mean, low, high))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "seed0", alarms=[ALARM]))


@pytest.fixture(scope="module")
def page(finished) -> Page:
    return Page(finished)


def test_the_page_stands_alone_and_has_every_part(page):
    assert page.loads == [] and page.scripts == [] and "default-src 'none'" in page.text
    assert page.headings[0].startswith("Training raised the held-out score from")
    assert page.headings[1:] == [
        *("Held-out score", "How training went", "Reward", "Reward density", "Policy entropy", "Difficulty", "Zero-variance share"),
        *("Repetition", "Held-out users", "Score over tokens", "Score by strictness", "What the teacher did"),
        *(
            "What was issued, and how it went",
            "What entropy and density moved",
            "Mean strictness by hidden intention",
            "Alarms, and what happened after",
        ),
        # A typical user, and folded in those who lost and gained most.
        *("One held-out user, before and after", *("Before training", "After training") * 3),
        *("Cost", "How to repeat it", "Versions"),
    ]


def test_the_page_shows_the_numbers_of_the_summary(finished, page):
    summary = json.loads((finished.parent / "summary.json").read_text(encoding="utf-8"))
    facts = page.facts()
    assert (facts["steps"], facts["policy tokens"], facts["time"], facts["alarms"]) == ("40", "240,000", "5 min 41 s", "1")
    assert facts["area under the curve"] == f"{summary['heldout']['auc']:.1f}"
    scores = page.table("")
    assert scores["worst fifth of the scenarios"] == [f"{summary[when]['cvar20']:.1f}" for when in ("start", "heldout")]
    assert scores["score, with its 95% interval"][1].startswith(f"{summary['heldout']['score']:.1f} [")
    assert "3.2e-06 nats" in page.words and "24.00 s" not in page.words


def test_an_alarm_is_shown_in_its_own_words_with_what_followed(finished, page):
    assert "1 alarm went off (density_lost)" in page.words and ALARM["message"] in page.words
    # Alarms were on from step 31 to 35; the score before was taken at step 30, the last one at 40.
    scores = {look.step: f"{look.score:.1f}" for look in BeforeAfter.read(read_run(finished.parent).evaluation()).looks}
    assert f"no alarm was on 5 steps later; the held-out score went from {scores[30]} to {scores[40]}, entropy from" in page.words
    assert page.marks("Reward", "alarm-mark") == [""]


def test_without_a_summary_alarms_are_counted_by_how_many_more_are_on(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8, finished=False)
    steps = [{"step": i, "collapse/alarms_on": on} for i, on in enumerate([0, 2, 2, 0, 1, 1], start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    page = Page(write_report(folder))
    assert page.facts()["alarms"] == "at least 3"
    assert "2 alarms at step 2: " in page.words and "1 alarm at step 5: " in page.words


def test_an_alarm_at_the_very_end_has_nothing_after_it(tmp_path):
    folder = make_run(tmp_path / "seed0", alarms=[{**ALARM, "step": 40}])
    assert "It was the last thing recorded." in Page(write_report(folder)).words


def test_the_page_shows_what_the_teacher_issued_and_decided(page):
    drawing = page.drawing("What was issued, and how it went")
    dots = [use for group in drawing.iter("g") if group.get("class") == "issued" for use in group.iter("use")]
    assert len(dots) == 80
    assert "Decisions in its log: steer 2." in page.words
    assert page.table("step") == {
        "12": ["steer: easier", "ease 0.5, explore 0.1, pressure 0.8, why <low entropy>"],
        "30": ["steer: harder", "ease -0.25, explore 0.1, pressure 0.8, why <low entropy>"],
    }
    assert page.marks("What was issued, and how it went", "move") == ["easier, step 12", "harder, step 30"]


def test_every_figure_is_a_file_with_its_numbers(finished, page):
    folder = finished.parent / "figures"
    names = {"reward", "reward_density", "entropy", "difficulty", "zero_variance", "repetition", "score_over_tokens", "score_by_strictness"}
    for form in ("svg", "png", "csv"):
        assert {path.stem for path in folder.glob(f"*.{form}")} == {*names, "issued", "steering", "strictness_by_intention", "scores"}
    for picture in folder.glob("*.svg"):
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in picture.read_text(encoding="utf-8")
    reward = list(csv.DictReader((folder / "reward.csv").open(encoding="utf-8")))
    assert len(reward) == 80 and reward[0]["line"] == "mean"
    assert float(reward[0]["value"]) == pytest.approx(read_run(finished.parent).series("reward/mean").values[0], rel=1e-5)
    drawings = re.findall(r"<svg.*?</svg>", page.text, flags=re.DOTALL)
    assert len(drawings) >= 11 and all("nan" not in drawing and ElementTree.fromstring(drawing).tag == "svg" for drawing in drawings)


@pytest.mark.parametrize(("paid", "names"), [(0.4, ["mean", "success rate"]), (0.9, ["mean", "success rate", "felt"])])
def test_felt_emotion_is_drawn_where_a_run_is_trained_on_something_else(tmp_path, paid, names):
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    recorder = Recorder(tmp_path)
    for step in (1, 2, 3):
        recorder.metrics(step, {"reward/mean": paid, "reward/success_rate": 0.2, "reward/emotion": 0.4 + 1e-9})
    recorder.close()
    reward = line_figure(read_run(tmp_path), CURVES[0])
    assert list(dict.fromkeys(row[0] for row in reward.rows)) == names


def test_the_files_of_a_figure_are_exchanged_and_not_written_over(tmp_path):
    rows = [(1, 0.25), (2, None), (1_234_567.0, 0.1 + 0.2)]
    figure = Figure(name="bare", title="Bare", draw=lambda axes: None, caption="", header=("x", "y"), rows=rows)
    (tmp_path / "figures").mkdir()
    before = [earlier(tmp_path / "figures" / f"bare.{form}") for form in ("svg", "png", "csv")]
    write_figures(tmp_path, [figure, replace(figure, name="nothing", draw=None)])
    assert (tmp_path / "figures" / "bare.csv").read_bytes() == b"x,y\n1,0.25\n2,\n1234567,0.3\n"
    assert [path.read_text() for path in before] == [EARLIER] * 3 and len(list((tmp_path / "figures").iterdir())) == 3 + len(before)


def test_of_many_groups_every_so_manieth_is_drawn_and_said():
    def caption(num: int) -> str:
        return issued_figure([Group(1 + i // 8, "praise/negative", 0.5, 0.5) for i in range(num)]).caption

    assert caption(2400).endswith(" Of 2,400 every 2nd is drawn.") and "is drawn" not in caption(2000)


@pytest.mark.usefixtures("pictures")
def test_tasks_explored_at_random_are_marked_where_there_are_others():
    groups = [Group(1, "praise/negative", 0.2, 0.5, mode) for mode in ("frontier", "uniform")]
    both, one = issued_figure(groups), issued_figure(groups[1:])
    assert "explored at random" in both.svg() and "its own choice" in both.svg() and "explored at random" not in one.svg()
    assert [row[4] for row in both.rows] == ["frontier", "uniform"]


def test_the_aim_of_a_tracking_teacher_is_drawn_over_steps(tmp_path):
    aims = {"curriculum/level": 0.4, "curriculum/target_success": 0.5, "curriculum/success_running": 0.3}
    run = run_with(None)
    found = line_figure(replace(run, metrics=[{"step": step, **aims} for step in (1, 2)]), AIM)
    assert found.rows == [(name, step, value) for name, value in zip(AIM.keys, aims.values(), strict=True) for step in (1, 2)]
    assert line_figure(replace(run, metrics=[{"step": 1}]), AIM).draw is None


def test_issued_tasks_are_averaged_by_intention_and_time():
    groups = [Group(1, "praise/negative", 0.2, 0.5), Group(2, "praise/passive", 0.4, None), Group(4, "advice/negative", 1.0, 1.0)]
    ends, means, counts = by_time(groups, num_bins=2)
    assert ends == ["2", "4"]
    assert means == {("praise", "2"): pytest.approx(0.3), ("advice", "4"): 1.0}
    assert counts == {("praise", "2"): 2, ("advice", "4"): 1}
    families = {("praise/negative", "2"), ("praise/passive", "2"), ("advice/negative", "4")}
    assert set(by_time(groups, num_bins=2, of=lambda group: group.family)[1]) == families


def test_a_run_without_a_teachers_log_has_a_page_too(tmp_path):
    folder = make_run(tmp_path / "seed0", finished=False)
    (folder / "teacher.jsonl").unlink()
    words = Page(write_report(folder)).words
    assert "Nothing was recorded." in words and "It noted no decision beyond the tasks it issued." in words


def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path, capsys):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    (folder / "summary.json").write_text("{", encoding="utf-8")
    assert main(["report", str(folder)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and "summary.json" in complaint and not (folder / "report.html").exists()


def test_the_cost_of_training_is_in_shares_and_its_change_in_points_or_nats(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    path = folder / "summary.json"
    cell = {"before": 0.1, "after": 0.13, "change": 0.03, "change_ci95": [-0.01, 0.07]}
    nats = {"before": 1.5, "after": 1.25, "change": -0.25, "change_ci95": [-0.5, 0.0]}
    probe = {"n": 200, "errors": {"plain": cell}, "emotional_cost": cell, "margin_nats": {"plain": nats}}
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "reliability": probe}), encoding="utf-8")
    found = Page(write_report(folder)).table("200 facts")
    assert found["errors, asked plainly"] == ["10.0%", "13.0%", "+3.0 [-1.0, +7.0]"]
    assert found["right answer over the wrong one, plainly, nats"] == ["1.50", "1.25", "-0.25 [-0.50, +0.00]"]
    assert found["emotion adds"] == ["+10.0 points", "+13.0 points", "+3.0 [-1.0, +7.0]"] and found["the belief adds"] == ["–"] * 3


def test_both_transcripts_are_of_one_user(page):
    shown = re.findall(r'<article class="transcript">.*?class="said">([^<]+)<', page.text, flags=re.DOTALL)
    assert len(shown) == 6 and shown[::2] == shown[1::2]
    assert 'class="thought"' in page.text and "Not picked by hand: of 15 pairs" in page.words


def test_the_page_says_how_to_repeat_the_run(tmp_path, page):
    assert "git checkout 0123456789abcdef0123456789abcdef01234567" in page.words
    assert 'make experiment EXP=adaptive_curriculum ARGS="seed=0"' in page.words
    config = make_run(tmp_path / "seed0", num_steps=8) / "config.yaml"
    words = "  overrides: [seed=3, teacher.kind=uniform, 'evaluation.strictness=[0.1, 0.5]']\n"
    config.write_text(config.read_text().replace("provenance:\n", f"provenance:\n{words}"))
    said = Page(write_report(tmp_path / "seed0")).words
    assert """ARGS="seed=3 teacher.kind=uniform 'evaluation.strictness=[0.1, 0.5]'\"""" in said


def test_the_page_about_a_run_of_a_sweep_names_its_arm_and_how_to_repeat_it(tmp_path):
    folder = tmp_path / "adaptive_curriculum" / "second" / "fixed_0.1" / "seed_0"
    folder.parent.mkdir(parents=True)
    make_run(folder, num_steps=8)
    (folder.parent.parent / "uniform" / "seed_3").mkdir(parents=True)
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("name: seed0", "name: seed_0"))
    page = Page(write_report(folder))
    assert 'make experiment EXP=adaptive_curriculum ARGS="seeds=0,3 name=again --cell fixed_0.1 0"' in page.words
    assert "adaptive_curriculum / fixed_0.1 / seed_0" in page.words


@pytest.mark.parametrize(
    "words",
    [
        ["evaluation.strictness=[.1, .5]", "name=it's"],
        ['simulator.extra_body={"a": 1}', "policy.model=a b"],
        ["simulator.urls=[http://x/?a=$b]", "back\\slash=`pwd`"],
    ],
)
def test_the_command_can_be_pasted_into_a_shell(tmp_path, words):
    (tmp_path / "Makefile").write_text(f"experiment:\n\t@{sys.executable} -c 'import sys; print(sys.argv[1:])' $(ARGS)\n", encoding="utf-8")
    command = make_experiment("smoke", [shlex.quote(word) for word in words])
    # The suite's own make would have this one say where it works.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    printed = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(words)


@pytest.mark.usefixtures("pictures")
def test_a_report_is_written_again_in_place(finished):
    before = finished.read_bytes()
    assert write_report(finished.parent) == finished and finished.read_bytes() == before
    assert not list(finished.parent.glob(".*"))


def test_an_unfinished_run_has_a_page_too(tmp_path):
    page = Page(write_report(make_run(tmp_path / "seed0", finished=False)))
    assert page.headings[0].startswith("This run has not finished: 40 steps so far; on the small held-out grid")
    assert "Cost" not in page.headings and "Held-out score" not in page.headings
    (tmp_path / "config.yaml").write_text("experiment: smoke\n", encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")
    assert "0 steps so far, and no held-out score yet" in Page(write_report(tmp_path)).headings[0]


def test_words_of_a_run_are_never_markup(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8, alarms=[{**ALARM, "message": "<script>alert(1)</script> & more"}])
    for name in ("evaluation.jsonl", "teacher.jsonl"):
        whole = (folder / name).read_text(encoding="utf-8")
        spoiled = re.sub(r'"(text|thought|hidden_intention|family)": "', r'"\1": "<b onclick=x>', whole)
        (folder / name).write_text(spoiled, encoding="utf-8")
    page = Page(write_report(folder))
    assert page.scripts == [] and "<b onclick" not in page.text and "<b onclick=x>" in page.words and "<script>alert(1)" in page.words


@pytest.mark.parametrize(
    ("gain", "opening"),
    [
        ((45.0, 40.0, 50.0), "Training raised the held-out score from 25.0 to 70.0 of 100 (+45.0, 95% interval +40.0 to +50.0)"),
        ((-5.0, -9.0, -1.0), "Training lowered the held-out score"),
        ((2.0, -1.0, 5.0), "Training made no clear difference"),
        ((0.0, 0.0, 0.0), "Training made no clear difference"),
        ((45.0, math.nan, math.nan), "The held-out score went from 25.0 to 70.0"),
    ],
)
def test_the_verdict_claims_what_the_interval_allows(gain, opening):
    found = verdict(run_with(make_summary()), held_out(*gain))
    # (70 - 25) / (85 - 25) = .75
    assert found.startswith(opening) and "75% of the way to the scripted expert L6 (85.0)" in found


def test_the_verdict_is_silent_about_an_expert_that_is_no_better_and_needs_dialogues_for_an_interval():
    assert "expert" not in verdict(run_with(make_summary(expert=20.0)), held_out(45.0, 40.0, 50.0))
    assert "interval" in verdict(run_with(make_summary()), BeforeAfter(looks=[], pairs=[], gain=None))


def test_collapse_is_said_before_any_other_alarm():
    collapse = {"name": "collapse", "step": 12, "message": ""}
    assert caveat(run_with(make_summary(alarms=[ALARM, collapse])), []).startswith("Collapse was reported from step 12")
    assert caveat(run_with(make_summary()), []).startswith("No alarm went off. One training seed")


@pytest.mark.parametrize(
    ("scores", "is_lost"),
    [((31.9, 43.8, 32.1), True), ((30.0, 44.0, 39.5), False), ((60.0, 58.0, 50.0), False), ((30.0, 31.0, 45.0), False), ((30.0,), False)],
)
def test_a_gain_that_was_lost_is_reported_and_noise_is_not(scores, is_lost):
    said = caveat(run_with(make_summary()), [Look(step, 100 * step, score) for step, score in enumerate(scores)])
    assert ("the score had reached 43.8 at step 1 and was 32.1 at the end" in said) == is_lost == ("small grid" in said)


def figure_of(draw, **facts) -> Figure:
    return Figure(name="made", title="Made", draw=draw, caption="", header=(), rows=(), **facts)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("ys", [[0.0, 0.0, 0.0], [3.0], [-2.0, -1.0], range(100_000)])
def test_flat_short_and_long_series_can_be_drawn(ys):
    picture = figure_of(curves([Line("x", range(len(ys)), ys)], x_label="step")).svg()
    assert '<g class="line"><title>x</title>' in picture and len(picture) < 20_000


def test_nothing_is_drawn_without_points():
    assert curves([Line("x", [], [])], x_label="step") is None and dot_rows([])[0] is None


def test_a_running_mean_stays_centred():
    # A twelfth of 48 values: two on each side, fewer at the ends.
    ys = [0.0] * 48
    ys[0], ys[10] = 6.0, 5.0
    assert running_mean(ys)[:2] == [6.0, 2.0] and running_mean(ys)[7:14] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.usefixtures("pictures")
def test_a_picture_follows_the_page_and_stays_itself_as_a_file():
    figure = figure_of(curves([Line("a & b", [0, 1], [0.0, 1.0]), Line("$c_1$", [0, 1], [1.0, 0.0])], x_label="step"))
    file, page = figure.pictures[0].decode(), figure.svg()
    assert "Made" in file and "var(" not in file and "$c_1$" in file and figure.render("svg")[0].decode() == file
    assert ">Made<" not in page and "stroke: var(--a)" in page and "stroke: var(--b)" in page and "<title>a &amp; b</title>" in page
    assert not re.search(r' id="(figure|axes|line2d|text)_', page) and "<style" not in page


@pytest.mark.usefixtures("pictures")
def test_no_digit_of_a_word_is_lost_in_a_picture():
    picture = figure_of(dot_rows([Dots("fixed_0.125", [1.0, 2.0], 1.5, note="+0.125")])[0]).svg()
    assert ">fixed_0.125</text>" in picture and ">+0.125</text>" in picture and '<g class="point"><title>fixed_0.125</title>' in picture


def test_durations_read_well():
    assert [duration(seconds) for seconds in (8.4, 341.0, 7261.0, None)] == ["8 s", "5 min 41 s", "2 h 01 min", "–"]


def test_the_command_line_refuses_in_one_sentence(capsys):
    assert main(["report", "nowhere"]) == 2
    assert re.fullmatch(r"error: .*\n", capsys.readouterr().err)
