"""The command `curriculum alarms`: courses from folders and from toy students, and every figure written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from earlier_file import EARLIER, earlier

from curriculum.__main__ import main
from curriculum.collapse.history import INDICATOR_METRICS, CollapseConfig
from curriculum.toy.benchmark import Arm, parse_arms
from studies.alarm_quality.alarm_study import ARMS, configured
from studies.alarm_quality.courses import course_of_run, course_of_student
from studies.alarm_quality.quality import LABELS, judge


def arm(text: str) -> Arm:
    (only,) = parse_arms([text])
    return only


@pytest.mark.parametrize("student", ["S2_slow", "S4_collapse"])
def test_a_toy_students_course_repeats_and_shows_the_panel(student: str):
    first, second = (course_of_student(student, arm("fixed:strictness=0.9"), 3) for _ in range(2))
    assert first == second
    assert {"probe_reward", "probe_easy", "probe_middle", "probe_hard", "reward_density"} <= set(first.values[0]) <= set(INDICATOR_METRICS)
    assert ("strategy_entropy" in first.values[0]) == (student == "S4_collapse")


def test_the_shortcut_alarms_before_update_100_and_frontier_and_the_middle_do_not_collapse():
    config = CollapseConfig()
    shortcut = judge(course_of_student("S4_collapse", arm("fixed:strictness=0.2"), 0), config, LABELS)["whole"]
    assert min(shortcut.first.values()) < 100
    for teacher in ("frontier", "fixed:strictness=0.5"):
        healthy = judge(course_of_student("S2_improving", arm(teacher), 0), config, LABELS)["whole or a third"]
        # A student's entropy is that of its strategies, of which it begins with few.
        assert healthy.onset is None and set(healthy.first) <= {"stuck_at_bounds", "entropy_exploding"}


def write_run(folder: Path, lines: list[dict]) -> Path:
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"step": 99, "actor/entr', encoding="utf-8")
    return folder


def collapsing(step: int) -> dict:
    look = {"probe/reward": 0.6 if step < 40 else 0.2} if step % 5 == 0 else {}
    return {"step": step, "actor/entropy": 1.0 if step < 25 else 0.01, "dialogue/distinct_2": None, "timing_s/step": 3.0, **look}


def test_a_recorded_run_is_read_with_what_it_measured(tmp_path: Path):
    read = course_of_run(write_run(tmp_path / "run", [collapsing(step) for step in range(1, 81)]))
    assert read.steps == list(range(1, 81))  # the torn last line is left out
    assert read.values[0] == {"entropy": 1.0} and read.values[4] == {"entropy": 1.0, "probe_reward": 0.6}
    judged = judge(read, CollapseConfig(), LABELS)["whole"]
    assert judged.onset == 40 and judged.first["entropy_spent"] < 40


def test_the_command_judges_folders_and_students_and_writes_every_figure(tmp_path: Path, capsys):
    run = write_run(tmp_path / "run", [collapsing(step) for step in range(1, 81)])
    out = tmp_path / "alarms.json"
    before = earlier(out)
    students = ["--students", "S2_slow", "--teachers", "fixed:strictness=0.9", "--seeds", "1", "--processes", "1"]
    assert main(["alarms", "--runs", str(run), *students, "--set", "patience=4", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 runs; 1 collapsed by the whole or a third; 1 collapsed by the whole" in printed
    assert "entropy_spent" in printed and "never rang:" in printed
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["settings"]["patience"] == 4 and before.read_text() == EARLIER
    spent = written["labels"]["whole"]["alarms"]["entropy_spent"]
    assert spent["precision"]["num_hits"] == spent["recall"]["num_hits"] == 1 and spent["median_lead"] > 0
    assert [judged["name"] for judged in written["labels"]["whole"]["runs"]] == [str(run), "S2_slow fixed:strictness=0.9 seed 0"]


def test_the_folder_of_a_sweep_stands_for_its_runs(tmp_path: Path, capsys):
    for arm in ("a", "b"):
        (tmp_path / arm).mkdir()
        write_run(tmp_path / arm / "seed_0", [collapsing(step) for step in range(1, 81)])
    assert main(["alarms", "--runs", str(tmp_path)]) == 0
    assert "2 runs; 2 collapsed by the whole or a third" in capsys.readouterr().out


@pytest.mark.parametrize("torn", ['{"step": 1}\nnonsense\n{"step": 3}\n', None])
def test_a_torn_run_of_a_sweep_is_left_out_with_its_reason_and_the_others_are_judged(tmp_path: Path, capsys, torn: str | None):
    for seed in (0, 1):
        (tmp_path / "sweep" / "a").mkdir(parents=True, exist_ok=True)
        write_run(tmp_path / "sweep" / "a" / f"seed_{seed}", [collapsing(step) for step in range(1, 81)])
    metrics, out = tmp_path / "sweep" / "a" / "seed_1" / "metrics.jsonl", tmp_path / "alarms.json"
    metrics.unlink() if torn is None else metrics.write_text(torn)
    assert main(["alarms", "--runs", str(tmp_path / "sweep"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "1 runs; 1 collapsed by the whole or a third" in printed and f"{metrics.parent} is left out: " in printed
    assert [sentence.startswith(f"{metrics.parent} is left out") for sentence in json.loads(out.read_text())["left_out"]] == [True]
    assert main(["alarms", "--runs", str(tmp_path / "sweep"), "nowhere"]) == 2
    assert "got 'nowhere', which is not there" in capsys.readouterr().err


def test_the_command_says_how_many_runs_it_left_out(tmp_path: Path, capsys):
    runs = [str(write_run(tmp_path / str(num), [collapsing(step) for step in range(1, num + 1)])) for num in (55, 80)]
    out = tmp_path / "alarms.json"
    assert main(["alarms", "--runs", *runs, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 runs; 1 collapsed by the whole or a third; 1 collapsed by the whole" in printed
    assert "left out, low at the end for fewer than 20 updates: 1 by the whole or a third; 1 by the whole" in printed
    (Path(runs[1]) / "summary.json").write_text('{"steps": 90}')
    assert main(["alarms", "--runs", *runs]) == 0
    assert f"{Path(runs[1]) / 'metrics.jsonl'} ends at step 80 of the 90 that the summary counts" in capsys.readouterr().out
    (tmp_path / "seed_0.txt").write_text("what a run printed\n")
    assert main(["alarms", "--runs", runs[0], str(tmp_path / "seed_0.txt")]) == 0
    assert main(["alarms", "--runs", str(tmp_path / "seed_0.txt")]) == 2
    assert main(["alarms", "--runs", runs[0]]) == 0
    assert "never rang" in (printed := capsys.readouterr().out) and "\nentropy_spent         policy     -" in printed
    judged = json.loads(out.read_text(encoding="utf-8"))["labels"]["whole"]
    assert judged["num_undecided"] == 1 and [run["undecided"] for run in judged["runs"]] == [True, False]
    assert judged["alarms"]["entropy_spent"]["precision"] == {**judged["alarms"]["entropy_spent"]["precision"], "num_hits": 1, "num_all": 1}


@pytest.mark.parametrize("gap", ["NaN", "null"])
def test_nan_between_looks_is_no_look_and_a_run_without_any_is_left_out_for_that(tmp_path: Path, capsys, gap: str):
    run = write_run(tmp_path / "run", [collapsing(step) for step in range(1, 81)])
    metrics = run / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
    for line in lines[1::2]:
        line |= {key: "gap" for key in line if key.startswith("probe/")}
    metrics.write_text("".join(json.dumps(line).replace('"gap"', gap) + "\n" for line in lines))
    assert main(["alarms", "--runs", str(run)]) == 0
    assert "1 runs; 1 collapsed by the whole or a third" in capsys.readouterr().out
    metrics.write_text("".join(json.dumps({key: value for key, value in line.items() if "/" not in key}) + "\n" for line in lines))
    assert main(["alarms", "--runs", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "left out, without any look at the panel (probe/reward, probe/reward_easy," in printed and "low at the end" not in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--runs or --students must name something"),
        (["--runs", "nowhere"], "'nowhere', which is not there"),
        (["--students", "S1_stationary"], "got 'S1_stationary', which is not examined by strictness or never learns"),
        (["--students", "S9"], "got 'S9', which there is not"),
        (["--students", "all", "--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--students", "all", "--teachers", "oracle"], "--teachers must be all, one of"),
        (["--students", "all", "--teachers", "fixed:0.2"], "--teachers must set a teacher as in KIND:SETTING=VALUE,..., got 'fixed:0.2'"),
        (["--students", "all", "--set", "patience=soon"], "collapse.patience must be "),
        (["--students", "all", "--set", "patience=0"], "collapse.patience must be "),
        (["--students", "all", "--set", "mood=1"], "--set must be NAME=VALUE with a setting of"),
        (["--students", "all", "--out", "no/such/place.json"], "--out must be a file in a folder that is there"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_starts(arguments: list[str], words: str, capsys):
    assert main(["alarms", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and said.out == ""


def test_a_last_line_of_zeros_is_torn_as_everywhere_else(tmp_path: Path):
    run = write_run(tmp_path / "run", [collapsing(1)])
    (run / "metrics.jsonl").write_text('{"step": 1}\n\0\0\0\n', encoding="utf-8")
    assert course_of_run(run).steps == [1]


def test_the_last_line_of_another_trainer_counts_without_its_end(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}', encoding="utf-8")
    assert course_of_run(tmp_path).steps == [1, 2]
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2', encoding="utf-8")
    assert course_of_run(tmp_path).steps == [1]


def test_a_broken_line_is_named(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.jsonl must hold a JSON object with a step in line 2, got b'nonsense.*Expecting value"):
        course_of_run(folder)
    (folder / "metrics.jsonl").write_text('{"stage": 1}\n{"step": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="with a step in line 1"):
        course_of_run(folder)


def test_every_default_arm_and_setting_is_what_it_says():
    assert [each.name for each in parse_arms(ARMS)] == list(ARMS)
    assert configured(["entropy_low=0.2", "patience=3"]) == CollapseConfig(entropy_low=0.2, patience=3)
