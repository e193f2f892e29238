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
from html.parser import HTMLParser
from pathlib import Path

import pytest
from earlier_file import EARLIER, earlier
from made_run import ALARM, make_run

from analysis.__main__ import main, tensorboard_command
from analysis.endpoints import Look
from analysis.plots import (
    Dots,
    Figure,
    Line,
    Panel,
    Plot,
    Row,
    Stroke,
    dot_rows,
    lattice,
    line_chart,
    moved_apart,
    number_line,
    on_the_page,
    ticks_between,
    write_figures,
)
from analysis.report import AIM, aim_figure, caveat, issued_figure, training_figures, verdict, write_report
from analysis.runs import Group, Run, by_time, read_run
from analysis.text import duration, make_experiment
from analysis.transcripts import BeforeAfter, Gain, before_after
from experiments.recorder import Recorder

VOID = {"meta", "br", "link", "img"}


class Balance(HTMLParser):
    """Fails on a tag that is closed in the wrong order, and gathers what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.words = ""

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data if "style" not in self.open else ""


def read_page(path: Path) -> Balance:
    page = Balance()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


def drawing_of(page: str, label: str) -> ElementTree.Element:
    """The drawing on a page that has this label."""
    return next(
        drawing
        for text in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
        if (drawing := ElementTree.fromstring(text)).get("aria-label") == label
    )


def marks_of(page: str, label: str, kind: str) -> list[ElementTree.Element]:
    """The marks of one kind in a drawing: every marker that is placed."""
    groups = [group for group in drawing_of(page, label).iter("g") if group.get("class") == kind]
    return [mark for group in groups for mark in group.iter("use")]


def drawn(plot: Plot | None) -> str:
    """A plot as it stands on a page."""
    assert plot is not None
    return on_the_page(plot.render(name="made", title="Made")["svg"], plot)


def make_summary(*, start=25.0, end=70.0, alarms=(), expert=85.0) -> dict:
    scores = {"start": {"score": start}, "heldout": {"score": end}}
    return {**scores, "reference": {"L6": {"score": expert}}, "collapse": {"alarms": list(alarms)}}


def run_with(summary: dict | None) -> Run:
    return Run(folder=Path("runs/smoke/seed0"), config={}, provenance={}, metrics=[], summary=summary)


def held_out(mean: float, low: float, high: float) -> BeforeAfter:
    return BeforeAfter(looks=[], pairs=[], gain=Gain(mean=mean, low=low, high=high, num_pairs=10))


def looked_at(*looks: tuple[int, float]) -> BeforeAfter:
    """Looks at the small grid: step and score."""
    return BeforeAfter(looks=[Look(step, 100 * step, score) for step, score in looks], pairs=[], gain=None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "seed0", alarms=[ALARM]))


def test_the_page_opens_with_its_verdict(finished):
    words = read_page(finished).words
    assert "Training raised the held-out score from" in words.partition("How training went")[0]


def test_the_page_loads_nothing(finished):
    page = read_page(finished)
    assert page.loads == []
    assert "<script" not in finished.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)", finished.read_text(encoding="utf-8"))


def test_the_page_has_every_part(finished):
    titles = re.findall(r"<h[23]>([^<]+)</h[23]>", finished.read_text(encoding="utf-8"))
    expected = [
        *(
            "Held-out score",
            "How training went",
            "Reward",
            "Reward density",
            "Policy entropy",
            "Difficulty",
            "Zero-variance share",
            "Repetition",
        ),
        *("Held-out users", "Score over tokens", "Score by strictness", "What the teacher did"),
        *("What was issued, and how it went", "Mean strictness by what users secretly want"),
        *("Alarms, and what happened after", "One held-out user, before and after"),
        # A typical user, and folded in those who lost and gained most.
        *("Before training", "After training") * 3,
        *("Cost", "How to repeat it", "Versions"),
    ]
    assert titles == expected


def test_the_page_shows_alarms_in_their_own_words(finished):
    assert ALARM["message"] in read_page(finished).words
    assert "1 alarm went off (density_lost)" in read_page(finished).words


def test_the_page_tells_what_followed_an_alarm(finished):
    # Alarms were on from step 31 to 35; the look before lies at step 30, the last one at 40.
    looks = before_after(read_run(finished.parent).evaluation()).looks
    scores = {look.step: f"{look.score:.1f}" for look in looks}
    followed = f"What followed: no alarm was on 5 steps later; the held-out score went from {scores[30]} to {scores[40]}, entropy from"
    assert followed in read_page(finished).words


def test_scores_of_the_small_grid_are_told_apart_from_those_of_the_headline(finished, tmp_path):
    words, note = read_page(finished).words, "Held-out scores here are of the small grid, as in the curves."
    assert note in words.partition("Alarms, and what happened after")[2].partition(ALARM["message"])[0]
    assert "held-out score on the small grid, over its own tokens" in words
    assert note not in read_page(write_report(make_run(tmp_path / "seed0"))).words


def test_without_a_summary_alarms_are_counted_by_how_many_more_are_on(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8, finished=False)
    steps = [{"step": i, "collapse/alarms_on": on} for i, on in enumerate([0, 2, 2, 0, 1, 1], start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<dt>alarms</dt><dd>at least 3</dd>" in page
    assert re.findall(r'<p class="alarm"><b>(.*?)</b> at step (\d+):', page) == [("2 alarms", "2"), ("1 alarm", "5")]
    (folder / "metrics.jsonl").write_text(json.dumps(steps[0]) + "\n", encoding="utf-8")
    assert "<dt>alarms</dt><dd>0</dd>" in write_report(folder).read_text(encoding="utf-8")


def test_an_alarm_at_the_very_end_has_no_aftermath(tmp_path):
    folder = make_run(tmp_path / "seed0", alarms=[{**ALARM, "step": 40}])
    assert "It was the last thing recorded." in read_page(write_report(folder)).words


def test_the_page_shows_what_the_teacher_issued_and_decided(finished):
    page = finished.read_text(encoding="utf-8")
    assert len(marks_of(page, "strictness of every group over steps", "issued")) == 80
    assert "Decisions in its log: entropy guard 1." in read_page(finished).words
    assert "step 30: entropy guard (shift 0.02, why <low entropy>)" in read_page(finished).words


def test_every_figure_lies_beside_the_page_with_its_numbers(finished):
    folder = finished.parent / "figures"
    assert {path.stem for path in folder.glob("*.png")} == {path.stem for path in folder.glob("*.svg")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))
    names = {"reward", "reward_density", "entropy", "difficulty", "zero_variance", "repetition", "score_over_tokens", "score_by_strictness"}
    assert {path.stem for path in folder.glob("*.svg")} == {*names, "issued", "strictness_by_intention", "scores"}
    for picture in folder.glob("*.svg"):
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in picture.read_text(encoding="utf-8")
    reward = list(csv.DictReader((folder / "reward.csv").open(encoding="utf-8")))
    assert len(reward) == 80 and reward[0]["line"] == "mean"
    assert float(reward[0]["value"]) == pytest.approx(read_run(finished.parent).series("reward/mean").values[0], rel=1e-5)


@pytest.mark.parametrize(("paid", "names"), [(0.4, ["mean", "success rate"]), (0.9, ["mean", "success rate", "felt"])])
def test_what_users_felt_is_drawn_where_a_run_is_paid_for_something_else(tmp_path, paid, names):
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    recorder = Recorder(tmp_path)
    for step in (1, 2, 3):
        recorder.metrics(step, {"reward/mean": paid, "reward/success_rate": 0.2, "reward/emotion": 0.4 + 1e-9})
    recorder.close()
    reward = training_figures(read_run(tmp_path))[0]
    assert list(dict.fromkeys(row[0] for row in reward.rows)) == names


def test_the_files_of_a_figure_are_exchanged_and_not_written_over(tmp_path):
    plot = Plot(width=60.0, height=40.0, label="nothing", paint=lambda sheet: None)
    figure = Figure(name="bare", title="Bare", plot=plot, caption="", header=("x", "y"), rows=[(1, 0.25), (2, None)])
    (tmp_path / "figures").mkdir()
    before = [earlier(tmp_path / "figures" / f"bare.{form}") for form in ("svg", "png", "csv")]
    written = write_figures(tmp_path, [figure])
    assert [path.suffix for path in written] == [".svg", ".png", ".csv"]
    assert written[-1].read_bytes() == b"x,y\n1,0.25\n2,\n"
    assert [path.read_text() for path in before] == [EARLIER] * 3


def test_numbers_of_a_figure_keep_their_digits():
    rows = [(1_234_567.0, 1_234_567), (0.1 + 0.2, 2.0 / 3.0)]
    figure = Figure(name="x", title="", plot=None, caption="", header=("tokens", "score"), rows=rows)
    assert figure.table() == "tokens,score\n1234567,1234567\n0.3,0.6666666667\n"


def test_of_many_groups_every_so_manieth_is_drawn_and_said():
    def caption(num: int) -> str:
        return issued_figure([Group(1 + i // 8, "praise/negative", 0.5, 0.5) for i in range(num)]).caption

    assert caption(2400).endswith(" Of 2,400 every 2nd is drawn.") and "is drawn" not in caption(2000)


def test_tasks_explored_at_random_have_a_shape_of_their_own_beside_those_at_the_level(tmp_path):
    groups = [Group(1, "praise/negative", 0.2, 0.5, mode) for mode in ("frontier", "uniform")]

    def drawn(groups: list[Group]) -> str:
        return issued_figure(groups).pictures("svg")["svg"].decode()

    assert "explored at random" in drawn(groups) and "its own choice" in drawn(groups)
    assert "explored at random" not in drawn(groups[1:]), "of the uniform teacher, whose tasks are all at random, nothing is set apart"
    assert issued_figure(groups).table().splitlines()[1:] == ["1,praise/negative,0.2,0.5,frontier", "1,praise/negative,0.2,0.5,uniform"]


def test_what_a_tracking_teacher_goes_by_is_drawn_over_steps(tmp_path):
    aims = {"curriculum/level": 0.4, "curriculum/target_success": 0.5, "curriculum/success_running": 0.3}
    run = read_run(make_run(tmp_path / "seed0"))
    found = aim_figure(replace(run, metrics=[{"step": step, **aims} for step in (1, 2)]))
    assert found.rows == [(name, step, value) for name, value in zip(AIM, aims.values(), strict=True) for step in (1, 2)]
    assert aim_figure(replace(run, metrics=[{"step": 1}])) is None


def test_what_was_issued_is_summed_up_by_intention_and_time():
    groups = [Group(1, "praise/negative", 0.2, 0.5), Group(2, "praise/passive", 0.4, None), Group(4, "advice/negative", 1.0, 1.0)]
    ends, means, counts = by_time(groups, num_bins=2)
    assert ends == ["2", "4"]
    assert means == {("praise", "2"): pytest.approx(0.3), ("advice", "4"): 1.0}
    assert counts == {("praise", "2"): 2, ("advice", "4"): 1}
    assert set(by_time(groups, num_bins=2, of=lambda group: group.family)[1]) == {
        *(("praise/negative", "2"), ("praise/passive", "2"), ("advice/negative", "4")),
    }


def test_a_run_whose_teacher_left_nothing_has_a_page_too(tmp_path):
    folder = make_run(tmp_path / "seed0", finished=False)
    (folder / "teacher.jsonl").unlink()
    words = read_page(write_report(folder)).words
    assert "Nothing was recorded." in words and "It noted no decision beyond the tasks it issued." in words


def tear(path: Path) -> None:
    """Writes zeros where a line was, as a machine that lost power may; cuts a file of one object."""
    if path.suffix == ".json":
        path.write_text(path.read_text(encoding="utf-8")[:200], encoding="utf-8")
    else:
        first, rest = path.read_bytes().split(b"\n", 1)
        path.write_bytes(b"\0" * len(first) + b"\n" + rest)


@pytest.mark.parametrize(
    ("file", "title", "gone", "says"),
    [
        ("metrics.jsonl", "Training raised the held-out score from", ["Reward", "Policy entropy"], "metrics.jsonl cannot be used."),
        ("teacher.jsonl", "Training raised the held-out score from", ["What was issued, and how it went"], "teacher.jsonl cannot be used."),
        (
            "evaluation.jsonl",
            "how sure that is cannot be told without evaluation.jsonl.",
            ["Score over tokens", "Before training"],
            "evaluation.jsonl cannot be used.",
        ),
        ("summary.json", "What this run reached cannot be told; on the small", ["Score by strictness", "Cost"], "at step 40."),
    ],
)
def test_a_torn_file_costs_its_part_of_the_page_and_is_named_first(tmp_path, file, title, gone, says):
    folder = make_run(tmp_path / "seed0", alarms=[ALARM])
    tear(folder / file)
    page = write_report(folder)
    words, text = read_page(page).words, page.read_text(encoding="utf-8")
    assert title in re.search(r"<h1>(.*?)</h1>", text)[1] and "has not finished" not in words
    assert f"Nothing here rests on {file}, which cannot be used: " in words.partition("policy tokens")[0] and says in words
    titles = re.findall(r"<h[23]>([^<]+)</h[23]>", text)
    assert not set(gone) & set(titles) and {"How training went", "What the teacher did", "How to repeat it"} <= set(titles)
    for false in ("None went off.", "is still to come", "It was the last thing recorded", "steps0", "not recorded", "was not measured"):
        assert false not in words


def test_dialogues_missing_at_the_end_of_the_last_look_are_noticed_though_the_curve_is_whole(tmp_path):
    folder = make_run(tmp_path / "seed0")
    path = folder / "evaluation.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    last = next(i for i in reversed(range(len(lines))) if not json.loads(lines[i])["in_during"])
    path.write_text("".join(lines[:last] + lines[last + 1 :]), encoding="utf-8")
    words = read_page(write_report(folder)).words
    assert "evaluation.jsonl, which cannot be used: evaluation.jsonl holds" in words and "that its summary counted at the end" in words


@pytest.mark.parametrize("emotion", ["NaN", "1e9", "150", '"40"', "null"])
def test_an_emotion_that_is_none_costs_the_held_out_dialogues_and_is_named(tmp_path, emotion):
    folder = make_run(tmp_path / "seed0")
    path = folder / "evaluation.jsonl"
    *others, last = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*others, json.dumps({**json.loads(last), "emotion": json.loads(emotion)}), ""]), encoding="utf-8")
    words = read_page(write_report(folder)).words
    assert "with a bad emotion: it must be a number in [0, 100], got" in words and "nan" not in words.replace("got nan", "")


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_settings_that_were_cut_off_are_not_offered_as_all_there_are(tmp_path, share):
    folder = make_run(tmp_path / "seed0")
    path = folder / "config.yaml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    cut = lines[: int(share * len(lines))]
    path.write_text("".join(cut).rstrip("\n"), encoding="utf-8")
    page = write_report(folder)
    assert "Nothing here rests on config.yaml, which cannot be used:" in (words := read_page(page).words) and "ends early" in words
    assert "All settings of this run" not in words
    # Cut between two lines: nothing but the facts that are written last tells.
    settings = lines[: next(i for i, line in enumerate(lines) if line.startswith("provenance"))]
    path.write_text("".join(settings), encoding="utf-8")
    assert "its config.yaml ends early: what it ran on, which is written last, is not in it" in read_page(write_report(folder)).words


def test_metrics_that_are_words_are_named_and_not_drawn(tmp_path):
    folder = make_run(tmp_path / "seed0")
    path = folder / "metrics.jsonl"
    path.write_text(re.sub(r'("actor/entropy": )[\d.e-]+', r'\1"x"', path.read_text(encoding="utf-8")), encoding="utf-8")
    assert "metrics.jsonl must hold numbers, got 'x' for actor/entropy at step 1" in read_page(write_report(folder)).words


def test_a_run_without_its_dialogues_on_held_out_users_says_what_its_summary_has(tmp_path):
    folder = make_run(tmp_path / "seed0")
    (folder / "evaluation.jsonl").unlink()
    headline = re.search(r"<h1>(.*?)</h1>", write_report(folder).read_text(encoding="utf-8"))[1]
    assert re.match(r"The held-out score went from [\d.]+ to [\d.]+ of 100; how sure that is cannot be told", headline)


def test_an_unfinished_run_whose_files_are_torn_is_not_said_to_have_done_nothing(tmp_path):
    folder = make_run(tmp_path / "seed0", finished=False)
    tear(folder / "metrics.jsonl")
    words = read_page(write_report(folder)).words
    assert "This run has not finished: how far it came cannot be told; on the small held-out grid the score was" in words
    assert "steps–" in words and "policy tokens–" in words and "alarms–" in words
    tear(folder / "evaluation.jsonl")
    assert "how far it came cannot be told; its held-out scores cannot be told." in read_page(write_report(folder)).words


def test_a_broken_teacher_log_is_named_with_what_it_lacks(tmp_path, capsys):
    folder = make_run(tmp_path / "seed0")
    lines = (folder / "teacher.jsonl").read_text(encoding="utf-8").replace('"uid"', '"id"', 1)
    (folder / "teacher.jsonl").write_text(lines, encoding="utf-8")
    assert main(["report", str(folder)]) == 0
    assert "teacher.jsonl must hold tasks and outcomes, got a line at step 1 with a bad 'uid'" in read_page(folder / "report.html").words


def test_what_training_cost_is_told_in_shares_and_its_change_in_points_or_nats(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    path = folder / "summary.json"
    cell = {"before": 0.1, "after": 0.13, "change": 0.03, "change_ci95": [-0.01, 0.07]}
    nats = {"before": 1.5, "after": 1.25, "change": -0.25, "change_ci95": [-0.5, 0.0]}
    probe = {"n": 200, "errors": {"plain": cell}, "emotional_cost": cell, "margin_nats": {"plain": nats}}
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "reliability": probe}), encoding="utf-8")
    words = read_page(write_report(folder)).words
    assert "errors, asked plainly10.0%13.0%+3.0 [-1.0, +7.0]" in words
    assert "right answer over the wrong one, plainly, nats1.501.25-0.25 [-0.50, +0.00]" in words
    assert "emotion adds+10.0 points+13.0 points+3.0 [-1.0, +7.0]" in words and "the belief adds–––" in words


def test_both_transcripts_are_of_the_same_user(finished):
    openings = re.findall(r'class="turn user">.*?class="said">([^<]+)<', finished.read_text(encoding="utf-8"))
    before, after = finished.read_text(encoding="utf-8").split("<h3>Before training</h3>")[1].split("<h3>After training</h3>")
    assert openings[0] in before
    assert openings[0] in after.partition("</article>")[0]
    assert "thought" in before


def test_the_page_says_how_to_repeat_the_run(finished):
    words = read_page(finished).words
    assert "git checkout 0123456789abcdef0123456789abcdef01234567" in words
    assert 'make experiment EXP=adaptive_curriculum ARGS="seed=0"' in words


def test_what_was_said_on_the_command_line_stands_where_it_is_repeated(tmp_path):
    make_run(tmp_path / "seed0")
    config = tmp_path / "seed0" / "config.yaml"
    words = "  overrides: [seed=3, teacher.kind=uniform, 'evaluation.strictness=[0.1, 0.5]']\n"
    config.write_text(config.read_text().replace("provenance:\n", f"provenance:\n{words}"))
    said = read_page(write_report(tmp_path / "seed0")).words
    assert """ARGS="seed=3 teacher.kind=uniform 'evaluation.strictness=[0.1, 0.5]'\"""" in said
    assert "If other settings were given too" not in said


def test_the_page_about_a_run_of_a_sweep_names_its_arm_and_how_to_make_it_again(tmp_path):
    folder = tmp_path / "adaptive_curriculum" / "second" / "fixed_0.1" / "seed_0"
    folder.parent.mkdir(parents=True)
    make_run(folder)
    (folder.parent.parent / "uniform" / "seed_3").mkdir(parents=True)
    config = (folder / "config.yaml").read_text().replace("name: seed0", "name: seed_0")
    (folder / "config.yaml").write_text(config)
    page = write_report(folder)
    words = read_page(page).words
    assert 'make experiment EXP=adaptive_curriculum ARGS="seeds=0,3 name=again --cell fixed_0.1 0"' in words
    assert "adaptive_curriculum / fixed_0.1 / seed_0" in words
    assert "<title>adaptive_curriculum/fixed_0.1/seed_0</title>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        ["evaluation.strictness=[.1, .5]", "name=it's"],
        ['simulator.extra_body={"a": 1}', "policy.model=a b"],
        ["simulator.urls=[http://x/?a=$b]", "back\\slash=`pwd`"],
    ],
)
def test_what_repeats_a_run_can_be_pasted_into_a_shell(tmp_path, words):
    quoted = [shlex.quote(word) for word in words]
    (tmp_path / "Makefile").write_text(f"experiment:\n\t@{sys.executable} -c 'import sys; print(sys.argv[1:])' $(ARGS)\n", encoding="utf-8")
    command = make_experiment("smoke", quoted)
    # The suite's own make would have this one say where it works.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    printed = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(words)


def test_a_run_by_itself_on_the_sealed_half_may_be_read(tmp_path):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    with (folder / "config.yaml").open("a", encoding="utf-8") as config:
        config.write("evaluation:\n  split: sealed\n")
    assert "Hidden wish" in read_page(write_report(folder)).words


def test_every_figure_is_well_formed(finished):
    drawings = re.findall(r"<svg.*?</svg>", finished.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(drawings) >= 11
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).tag == "svg"
        assert "nan" not in drawing


def test_a_report_is_written_again_in_place(finished):
    before = finished.read_text(encoding="utf-8")
    assert write_report(finished.parent) == finished
    assert finished.read_text(encoding="utf-8") == before
    assert not list(finished.parent.glob(".*"))


def test_an_unfinished_run_has_a_page_too(tmp_path):
    page = read_page(write_report(make_run(tmp_path / "seed0", finished=False)))
    assert "This run has not finished: 40 steps so far; on the small held-out grid" in page.words
    assert "1 alarm at step 31: what was said stands in the run's log" in page.words


def test_a_run_that_was_killed_at_once_has_a_page_too(tmp_path):
    (tmp_path / "config.yaml").write_text("experiment: smoke\n", encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")
    assert "0 steps so far, and no held-out score yet" in read_page(write_report(tmp_path)).words


def test_words_of_a_run_are_never_markup(tmp_path):
    folder = make_run(tmp_path / "seed0", alarms=[{**ALARM, "message": "<script>alert(1)</script> & more"}])
    evaluation = folder / "evaluation.jsonl"
    spoiled = re.sub(r'"text": "', '"text": "<b onclick=x>', evaluation.read_text(encoding="utf-8"))
    evaluation.write_text(spoiled, encoding="utf-8")
    text = write_report(folder).read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "<b onclick" not in text
    assert "&lt;b onclick=x&gt;" in text


@pytest.mark.parametrize(
    ("gain", "opening"),
    [
        ((45.0, 40.0, 50.0), "Training raised the held-out score from 25.0 to 70.0 of 100 (+45.0, 95% interval +40.0 to +50.0)"),
        ((-5.0, -9.0, -1.0), "Training lowered the held-out score"),
        ((2.0, -1.0, 5.0), "Training made no clear difference"),
        ((0.0, 0.0, 0.0), "Training made no clear difference"),
        (
            (45.0, math.nan, math.nan),
            "The held-out score went from 25.0 to 70.0 of 100, 75% of the way to the scripted expert L6 (85.0); "
            "with one scenario how sure that is cannot be told.",
        ),
    ],
)
def test_the_verdict_claims_what_the_interval_allows(gain, opening):
    assert verdict(run_with(make_summary()), held_out(*gain)).startswith(opening)


def test_the_verdict_measures_the_way_to_the_expert():
    # (70 - 25) / (85 - 25) = .75
    assert verdict(run_with(make_summary()), held_out(45.0, 40.0, 50.0)).endswith("75% of the way to the scripted expert L6 (85.0).")


def test_the_verdict_is_silent_about_an_expert_that_is_no_better():
    assert "expert" not in verdict(run_with(make_summary(expert=20.0)), held_out(45.0, 40.0, 50.0))


def test_collapse_is_said_before_any_other_alarm():
    collapse = {"name": "collapse", "step": 12, "message": ""}
    no_looks = looked_at()
    assert caveat(run_with(make_summary(alarms=[ALARM, collapse])), no_looks).startswith("Collapse was reported from step 12")
    assert caveat(run_with(make_summary()), no_looks).startswith("No alarm went off. One training seed")


def test_a_gain_that_was_lost_again_is_told():
    lost = "On the small grid the score had reached 43.8 at step 20 and was 32.1 at the last look."
    assert f"No alarm went off. {lost} One training" in caveat(run_with(make_summary()), looked_at((0, 31.9), (20, 43.8), (32, 32.1)))
    assert caveat(run_with(None), looked_at((0, 31.9), (20, 43.8), (32, 32.1))).startswith(lost)


@pytest.mark.parametrize("scores", [(30.0, 44.0, 39.5), (60.0, 58.0, 50.0), (30.0, 31.0, 45.0), (30.0,)])
def test_noise_a_fall_from_the_start_and_a_rise_are_no_gain_that_was_lost(scores):
    assert "small grid" not in caveat(run_with(make_summary()), looked_at(*enumerate(scores)))


def test_a_flat_series_and_a_single_point_can_be_drawn():
    for xs, ys in (([1, 2, 3], [0.0, 0.0, 0.0]), ([7], [3.0]), ([0, 1], [-2.0, -1.0])):
        assert '<g class="line"><title>x</title>' in drawn(line_chart([Line(name="x", xs=xs, ys=ys)], x_label="step"))


def test_a_long_series_is_thinned():
    plot = line_chart([Line(name="x", xs=range(100_000), ys=[float(i % 7) for i in range(100_000)])], x_label="step")
    assert len(drawn(plot)) < 20_000


def test_nothing_to_draw_is_said():
    plot = line_chart([Line(name="x", xs=[], ys=[])], x_label="step")
    figure = Figure(name="x", title="X", plot=plot, caption="", header=("x",), rows=[])
    assert plot is None and "Nothing was recorded" in figure.html()


def test_a_score_lies_where_it_belongs_on_the_number_line():
    # From 190 (score 0) to 660 (score 100), in points of .72 pixels.
    page = drawn(number_line([Row(name="half way", value=50.0)]))
    (place,) = marks_of(page, "held-out scores, 0 to 100", "point")
    assert float(place.get("x", "")) == pytest.approx(425.0 * 0.72, abs=0.02)


def test_a_picture_follows_the_page_and_stays_itself_as_a_file():
    plot = line_chart([Line(name="a & b", xs=[0, 1], ys=[0.0, 1.0]), Line(name="$c_1$", xs=[0, 1], ys=[1.0, 0.0])], x_label="step")
    assert plot is not None
    file = plot.render(name="made", title="Made")["svg"].decode()
    assert "Made" in file and "var(" not in file and "$c_1$" in file and plot.render(name="made", title="Made")["svg"].decode() == file
    page = on_the_page(file.encode(), plot)
    assert "Made" not in page and "stroke: var(--a)" in page and "stroke: var(--b)" in page and "<title>a &amp; b</title>" in page
    assert not re.search(r' id="(figure|axes|line2d|text)_', page) and "<style" not in page


def test_only_places_are_shortened_and_no_digit_of_a_word_is_lost():
    ticks = drawn(line_chart([Line(name="density", xs=[1, 2, 3], ys=[0.001, 0.005, 0.009])], x_label="step"))
    assert re.findall(r"<text[^>]*>(0[^<]*)</text>", ticks) == ["0", "0.002", "0.004", "0.006", "0.008", "0.01"]
    plot = dot_rows([Dots(name="fixed_0.125", values=[1.0, 2.0], mean=1.5, note='+0.125 x="0.125"')], label="arms", x_label="score")
    assert plot is not None
    page = drawn(plot)
    assert ">fixed_0.125</text>" in page and '>+0.125 x="0.125"</text>' in page
    assert '<g class="point"><title>fixed_0.125</title>' in page
    places = re.findall(r' (?:d|x|y|transform)="([^"]*)"', re.sub(r">[^<]*<", "><", page))
    assert len(places) > 10 and not re.search(r"\d\.\d{3}", " ".join(places))


def test_names_are_moved_apart_within_their_bounds():
    assert moved_apart([10.0, 11.0, 50.0], gap=14.0, low=0.0, high=100.0) == [10.0, 24.0, 50.0]
    assert moved_apart([90.0, 95.0, 99.0], gap=14.0, low=0.0, high=100.0) == [72.0, 86.0, 100.0]
    assert moved_apart([], gap=14.0, low=0.0, high=100.0) == []


def test_ticks_are_round():
    assert ticks_between(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks_between(3.0, 250_000.0, at_most=5) == [100_000.0, 200_000.0]
    assert ticks_between(0.0, 59.0) == [0.0, 20.0, 40.0]


def test_ticks_of_what_is_counted_are_whole():
    assert ticks_between(1.0, 2.0, at_most=5, whole=True) == [1.0, 2.0]
    assert ticks_between(0.0, 10.0, at_most=5, whole=True) == [0.0, 5.0, 10.0]
    assert ticks_between(0.0, 100.0, at_most=5, whole=True) == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert ticks_between(3.1, 3.3, whole=True) == []


@pytest.mark.parametrize(("num_points", "num_dots"), [(1, 1), (2, 2), (3, 0)])
def test_a_line_that_has_just_begun_is_seen_and_its_steps_are_whole(num_points, num_dots):
    xs, ys = list(range(1, num_points + 1)), [0.5] * num_points
    page = drawn(line_chart([Line(name="density", xs=xs, ys=ys)], x_label="step"))
    assert len(marks_of(page, "density over step", "line")) == num_dots
    assert re.findall(r"<text[^>]*>([1-9][^<]*)</text>", page)[: max(num_points, 2)] == ["1", "2", "3"][: max(num_points, 2)]
    panel = Panel(title="", x_range=(0.0, 3.0), y_range=(0.0, 1.0), strokes=[Stroke(xs=xs, ys=ys, kind="mean", words="frontier")])
    assert len(marks_of(drawn(lattice([panel], columns=1, x_label="step", label="arms")), "arms", "mean")) == num_dots


def test_durations_read_well():
    assert [duration(seconds) for seconds in (8.4, 341.0, 7261.0, None)] == ["8 s", "5 min 41 s", "2 h 01 min", "–"]


def test_the_command_line_writes_a_report(tmp_path, capsys):
    folder = make_run(tmp_path / "seed0")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")


@pytest.mark.parametrize(
    "arguments", [["report", "nowhere"], ["tensorboard", "--logdir", "nowhere"], ["tensorboard", "--logdir", ".", "--port", "0"]]
)
def test_the_command_line_refuses_in_one_sentence(arguments, capsys):
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1


def test_tensorboard_is_reachable_from_this_machine_alone(tmp_path):
    command = tensorboard_command(tmp_path, 6006)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--bind_all" not in command
