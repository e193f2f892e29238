"""A sweep as it is run, refused beside what is there already, and taken up again."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from made_sweep import begin_with, made_result, made_sweep
from sweep_file import PLAN, planned

from analysis.compare import plan_of
from analysis.sweeps import read_planned, read_sweep
from experiments.__main__ import main
from experiments.config import to_plain
from experiments.errors import ConfigError
from experiments.resume import differences
from experiments.run_lock import Interruption, only_writer
from experiments.sweep import (
    SETTINGS,
    RunningCell,
    SweepRunner,
    check_same_run,
    compare_arms,
    digest_of,
    goes_first,
    keep_plan,
    run_cell,
    run_sweep,
    settings_to_go_on,
    torn_runs,
)
from experiments.sweep_plan import Cell, Sweep, describe
from simulator.files import ExitCode
from simulator.version import world_name


def test_a_run_by_itself_waits_for_the_run_that_it_replays(write, tmp_path):
    write()
    sweep = planned(f"runs={tmp_path}")
    with pytest.raises(ConfigError, match=r"replayed seed 3 replays frontier seed 5, which must have ended before; .* --cell frontier 5"):
        run_cell(sweep, Cell("replayed", 3))
    assert not sweep.folder.exists()


@pytest.mark.parametrize(("name", "content"), [("summary.json", '{"seed": 3'), ("metrics.jsonl", "\0\0\n{}\n"), ("config.yaml", "")])
def test_a_run_that_cannot_be_read_is_named_and_the_others_count(write, tmp_path, capsys, name, content):
    write()
    sweep = planned(f"runs={tmp_path}", "arms=frontier,fixed", "seeds=3")
    for cell in sweep.cells():
        place = made_result(sweep.folder, cell.arm, cell.seed, world=world_name(), metrics=[{"step": 1, "perf/policy_tokens": 5000}])
        begin_with(place, sweep.config(cell))
    (sweep.run_folder(Cell("fixed", 3)) / name).write_text(content)
    assert run_sweep(sweep) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert "fixed seed 3 " in said and f"delete {sweep.run_folder(Cell('fixed', 3))} to run it anew" in said
    assert "0 runs to do, 1 done" in said and (sweep.folder / "comparison.json").is_file()


def test_the_planned_family_stays_whole_whichever_arms_are_asked_for(write, tmp_path):
    write(PLAN.replace('["frontier:fixed"]', '["frontier:fixed", "frontier:replayed"]'))
    part = planned("arms=frontier,fixed", f"runs={tmp_path}")
    assert part.planned.contrasts == (("frontier", "fixed"), ("frontier", "replayed"))
    assert "# contrast frontier against replayed; replayed was not asked for, so it counts with p = 1 until it is run" in describe(part)
    finals = {"frontier": [70.0 + i for i in range(6)], "fixed": [50.0 + i / 2 for i in range(6)]}
    made_sweep(part.folder, finals)
    keep_plan(part)
    compare_arms(part)
    found = json.loads((part.folder / "comparison.json").read_text())
    assert found["contrasts"][0]["endpoints"]["heldout.auc"]["p_holm"] == 2 * 2 / 2**6
    assert found["contrasts"][1]["cannot"] == "replayed has no run that can be used." and found["plan"]["chosen_by"] == "plan"


def test_a_sweep_leaves_its_plan_and_refuses_another_one(write, tmp_path):
    write(f"{PLAN}tuning: {{frontier: much, fixed: a grid, replayed: none}}\n")
    keep_plan(planned("arms=fixed,frontier", f"runs={tmp_path}"))
    kept = json.loads((tmp_path / "made" / "sweep" / "plan.json").read_text())
    assert kept["contrasts"] == [["frontier", "fixed"]] and kept["primary"] == "heldout.auc"
    assert kept["tuning"] == {"frontier": "much", "fixed": "a grid", "replayed": "none"}
    keep_plan(planned(f"runs={tmp_path}"))
    write(PLAN.replace("frontier:fixed", "fixed:frontier"))
    with pytest.raises(ConfigError, match=r"must have the experiment's contrasts .*fixed:frontier on heldout.auc.*, got frontier:fixed"):
        keep_plan(planned(f"runs={tmp_path}"))


def test_the_score_whose_first_reaching_is_timed_is_the_files_and_no_reason_to_refuse_a_plan(write, tmp_path):
    write()
    keep_plan(planned(f"runs={tmp_path}"))
    path = tmp_path / "made" / "sweep" / "plan.json"
    assert json.loads(path.read_text())["threshold"] == 60
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "threshold"}))
    assert read_planned(path.parent).threshold == 60
    write(f"{PLAN}threshold: 35\n")
    keep_plan(timed := planned(f"runs={tmp_path}"))
    assert json.loads(path.read_text())["threshold"] == 35
    made_sweep(timed.folder, {"frontier": [50.0], "fixed": [40.0]})
    compare_arms(timed)
    found = json.loads((timed.folder / "comparison.json").read_text())
    assert found["arms"]["frontier"]["tokens_to_threshold"]["threshold"] == 35
    assert plan_of(read_sweep(timed.folder)).threshold == 35 and plan_of(read_sweep(timed.folder), threshold=70.0).threshold == 70


def test_a_run_of_other_settings_is_not_taken_for_one_of_this_sweep(write):
    write()
    config = planned().config(Cell("fixed", 3))
    saved = {"seed": 3, "teacher": {"kind": "fixed", "strictness": 0.7}, "runs": "elsewhere"}
    found = {name: (before, now) for name, before, now in differences(saved, config)}
    assert found["teacher.strictness"] == (0.7, 0.5)
    assert "runs" not in found and "seed" not in found


def test_a_dry_run_says_that_a_run_which_is_there_is_another_one_or_has_ended(write, tmp_path, capsys):
    write()
    runs = f"runs={tmp_path / 'runs'}"
    folder = finished(planned(runs), Cell("fixed", 3))
    refused = f"{folder} was run with learner.lr="
    assert main(["made", runs, "learner.lr=0.1", "--dry-run"]) == 0
    assert f"# it would be refused: {refused}" in capsys.readouterr().out
    assert main(["made", runs, "learner.lr=0.1", "--cell", "fixed", "3", "--dry-run"]) == 2 and refused in capsys.readouterr().err
    assert main(["made", runs, "--cell", "fixed", "3", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"# {folder} has ended: held-out 60.0\n"
    (folder / "summary.json").unlink()
    assert main(["made", runs, "--cell", "fixed", "3", "--dry-run"]) == 2 and "with a whole checkpoint" in capsys.readouterr().err
    (folder / "metrics.jsonl").unlink()
    assert main(["made", runs, "--cell", "fixed", "3", "--dry-run"]) == 0 and f"# continues {folder}" in capsys.readouterr().out
    (folder / "config.yaml").unlink()
    assert main(["made", runs, "--dry-run"]) == 0
    assert f"# fixed seed 3 has no config.yaml: it was broken off before, or it was deleted; delete {folder}" in capsys.readouterr().out


def test_a_run_that_copies_another_goes_on_where_all_were_moved(write, tmp_path):
    write()
    finished(planned(f"runs={tmp_path / 'runs'}"), cell := Cell("replayed", 3))
    (tmp_path / "runs").rename(tmp_path / "moved")
    sweep = planned(f"runs={tmp_path / 'moved'}")
    check_same_run(sweep, cell)
    config = settings_to_go_on(sweep, cell)
    assert config.teacher.trace == str(tmp_path / "moved" / "made" / "sweep" / "frontier" / "seed_5" / "teacher.jsonl")
    assert config.runs == str(tmp_path / "moved") and config.resume == str(sweep.run_folder(cell))


def test_a_run_begun_before_a_setting_existed_is_of_this_sweep_still(write, tmp_path):
    write()
    sweep = planned(f"runs={tmp_path}")
    saved = to_plain(sweep.config(Cell("fixed", 3)))
    del saved["resampling"], saved["rollout"]["reward_terms"], saved["callbacks"]
    folder = sweep.run_folder(Cell("fixed", 3))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({**saved, "provenance": {"world": world_name()}}), encoding="utf-8")
    check_same_run(sweep, Cell("fixed", 3))
    with pytest.raises(ConfigError, match=r"was run with resampling.max_rounds=0, this sweep wants 2"):
        check_same_run(planned(f"runs={tmp_path}", "arms=fixed,frontier", "resampling.max_rounds=2"), Cell("fixed", 3))


def test_a_run_of_a_sweep_that_lost_its_checkpoints_is_refused_and_keeps_its_records(write, tmp_path, capsys):
    write()
    sweep = planned(f"runs={tmp_path / 'runs'}")
    folder = sweep.run_folder(Cell("fixed", 3))
    folder.mkdir(parents=True)
    saved = {**to_plain(sweep.config(Cell("fixed", 3))), "provenance": {"world": world_name()}}
    (folder / "config.yaml").write_text(yaml.safe_dump(saved), encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 4}\n', encoding="utf-8")
    assert main(["made", f"runs={tmp_path / 'runs'}", "--cell", "fixed", "3"]) == 2
    assert "resume must name a run with a whole checkpoint" in capsys.readouterr().err
    assert (folder / "metrics.jsonl").read_text(encoding="utf-8") == '{"step": 4}\n'


def test_the_cost_is_told_from_the_first_steps_own_clock(write, tmp_path, monkeypatch):
    write()
    sweep = planned(f"runs={tmp_path}", "budget.policy_tokens=1000", "evaluation.num_scenarios=1", "evaluation.during_scenarios=1")
    folder = sweep.run_folder(Cell("frontier", 3))
    folder.mkdir(parents=True)
    step = {"step": 2, "perf/policy_tokens": 200, "timing_s/step": 10.0, "timing_s/gen": 8.0}
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n", encoding="utf-8")
    sitting, said = SweepRunner(sweep, Interruption()), []
    monkeypatch.setattr(sitting, "say", said.append)
    assert sitting.estimate(sitting.spent()) == "?"
    sitting.tell_cost(Cell("frontier", 3), sitting.spent())
    # Ten steps of 10 s, of which four make the budget of steps; 33 held-out dialogues of 1 s; six runs of 73 s less half of one.
    assert sitting.run_s == pytest.approx(4 * 10.0 + 11 * 3 * 1.0)
    assert sitting.spent() == 0.5
    assert said[0].endswith(
        "3:21 to 6:42 for the rest, as 2 runs slow each other down little or much, if the others cost what frontier does"
    )


def step_of(number: int) -> str:
    return json.dumps({"step": number, "perf/policy_tokens": 100 * number, "timing_s/step": 10.0, "timing_s/gen": 8.0}) + "\n"


def test_a_run_that_goes_on_from_a_checkpoint_goes_alone_for_its_first_new_step_only(write, tmp_path, monkeypatch):
    write()
    sweep = planned(f"runs={tmp_path}")
    folder = sweep.run_folder(Cell("frontier", 3))
    folder.mkdir(parents=True)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(map(step_of, (1, 2, 3, 4))), encoding="utf-8")
    monkeypatch.setattr("experiments.sweep.start", lambda sweep, cell: None)
    sitting = SweepRunner(sweep, Interruption())
    seen = []
    # Broken off hard after its fourth step, it goes back to the checkpoint of its second.
    for steps in ((1, 2, 3, 4), (1, 2), (1, 2, 3)):
        sitting.start_what_can()
        metrics.write_text("".join(map(step_of, steps)), encoding="utf-8")
        sitting.show()
        seen.append((len(sitting.running), sitting.run_s is not None))
    sitting.start_what_can()
    assert seen == [(1, False), (1, False), (1, True)] and len(sitting.running) == 2


def test_runs_that_failed_are_not_to_be_made(write, tmp_path, monkeypatch):
    write()
    sweep = planned(f"runs={tmp_path}", "parallel=1")
    sitting, said = SweepRunner(sweep, Interruption(), torn=[Cell("fixed", 3)]), []
    monkeypatch.setattr(sitting, "say", said.append)
    sitting.left.remove(Cell("frontier", 3))
    sitting.failed.append(Cell("frontier", 3))
    sitting.run_s = 100.0
    assert sitting.rest() == 4 and sitting.estimate(sitting.spent()) == "6:40"
    assert sitting.so_far() == "0 of 6, 2 failed, about 6:40 left"


def test_the_first_run_is_named_with_what_it_builds_and_where_it_can_be_watched(write, tmp_path, monkeypatch):
    write()
    sitting, said = SweepRunner(planned(f"runs={tmp_path}"), Interruption()), []
    monkeypatch.setattr(sitting, "say", said.append)
    monkeypatch.setattr("experiments.sweep.start", lambda sweep, cell: None)
    monkeypatch.setattr("experiments.sweep.prior_folder", lambda config: tmp_path / "prior")
    sitting.start_what_can()
    output = tmp_path / "made" / "sweep" / "frontier" / "seed_3.txt"
    assert said == [
        "first frontier seed 3 alone, until its first step is over; it builds the prior, which the cache lacks and which takes minutes: "
        f"how it goes is in {output}"
    ]
    (tmp_path / "prior").mkdir()
    assert goes_first(sitting.sweep, Cell("frontier", 3)).endswith(f"its first step is over: how it goes is in {output}")


def test_a_run_that_ends_is_told_with_how_many_are_done_and_how_long_the_rest_takes(write, tmp_path, monkeypatch):
    write()
    sweep = planned(f"runs={tmp_path}", "parallel=1")
    sitting, said = SweepRunner(sweep, Interruption()), []
    monkeypatch.setattr(sitting, "say", said.append)
    sitting.run_s = 100.0
    for cell in sweep.cells()[:2]:
        sitting.left.remove(cell)
        made_result(sweep.folder, cell.arm, cell.seed)
        sitting.running = [RunningCell(cell, subprocess.Popen([sys.executable, "-c", ""]))]
        sitting.running[0].process.wait()
        sitting.began, sitting.spent_before = time.monotonic(), sitting.spent()
        sitting.collect()
    # Each of the others as long as a run goes alone.
    assert said == [
        "done frontier seed 3: held-out 60.0 (1 of 6, about 8:20 left)",
        "done fixed seed 3: held-out 60.0 (2 of 6, about 6:40 left)",
    ]


def test_an_arm_that_cannot_be_run_here_is_named_before_any_other_is_run(write, tmp_path, monkeypatch, capsys):
    write(PLAN.replace("{kind: fixed, strictness: 0.5}", "{kind: alp_gmm}"))
    monkeypatch.setattr("curriculum.density.find_spec", lambda name: None)
    runs = f"runs={tmp_path / 'runs'}"
    assert main(["made", "--dry-run", runs]) == 0
    assert "# arm fixed: teacher.kind=alp_gmm needs scikit-learn, which is not installed" in capsys.readouterr().out
    assert main(["made", runs]) == 2
    assert "arm fixed: teacher.kind=alp_gmm needs scikit-learn" in (told := capsys.readouterr().err)
    assert told.rstrip().endswith("Or go without: arms=frontier,replayed")
    assert not (tmp_path / "runs").exists()


def test_later_sittings_add_seeds_to_the_plan_and_take_none_away(write, tmp_path):
    write()
    keep_plan(planned(f"runs={tmp_path}"))
    keep_plan(planned(f"runs={tmp_path}", "seeds=9", "arms=fixed"))
    assert read_planned(tmp_path / "made" / "sweep").seeds == (3, 5, 9)
    keep_plan(planned(f"runs={tmp_path}", "seeds=3"))
    found = read_planned(tmp_path / "made" / "sweep")
    assert (found.seeds, found.arms) == ((3, 5, 9), ("frontier", "fixed", "replayed"))


def finished(sweep: Sweep, cell: Cell) -> Path:
    """A run that has ended, with its whole settings."""
    folder = made_result(sweep.folder, cell.arm, cell.seed, world=world_name())
    config = {**to_plain(sweep.config(cell)), "provenance": {"world": world_name()}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def test_a_run_that_has_ended_is_not_ended_again(write, tmp_path, capsys):
    write()
    runs = f"runs={tmp_path / 'runs'}"
    sweep = planned(runs)
    folder = finished(sweep, Cell("fixed", 3))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["made", runs, "--cell", "fixed", "3"]) == 0
    assert f"{folder} has ended: held-out 60.0" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ("cluster.address=ray://new:1", ['cluster.address="ray://new:1"']),
        ("cluster={address: here, object_store_mb: 99}", ['cluster.address="here"', "cluster.object_store_mb=99"]),
        ("cluster.address=ray://\U0001f600:1", ['cluster.address="ray://\U0001f600:1"']),
        ("learner.micro_batch_rows=2", ["learner.micro_batch_rows=2"]),
        ("checkpoint.every=3", ["checkpoint.every=3"]),
        ("learner.lr=0.1", []),
    ],
)
def test_a_later_sitting_says_where_things_are_now(write, tmp_path, changed, taken):
    write()
    sweep = planned(f"runs={tmp_path / 'runs'}", changed)
    finished(planned(f"runs={tmp_path / 'runs'}"), cell := Cell("fixed", 3))
    assert sweep.for_resumed(cell) == taken
    if taken:
        check_same_run(sweep, cell)
        assert settings_to_go_on(sweep, cell).cluster == sweep.config(cell).cluster
    else:
        with pytest.raises(ConfigError, match=r"was run with learner\.lr"):
            check_same_run(sweep, cell)


def test_runs_that_are_not_asked_for_must_have_the_settings_too(write, tmp_path):
    # Else arms of one sweep would differ in what must be equal, each by the words of its own sitting.
    write()
    runs = f"runs={tmp_path / 'runs'}"
    finished(planned(runs), Cell("frontier", 3))
    torn_runs(planned(runs, "arms=fixed"))
    with pytest.raises(ConfigError, match=r"frontier/seed_3 was run with group_size=.*, this sweep wants 3"):
        torn_runs(planned(runs, "arms=fixed", "group_size=3"))


def test_a_run_whose_file_was_changed_under_its_sweep_is_refused(write, tmp_path, monkeypatch):
    write()
    sweep, cell = planned(f"runs={tmp_path / 'runs'}"), Cell("fixed", 3)
    monkeypatch.setenv(SETTINGS, digest_of(sweep.config(cell)))
    write(PLAN.replace("policy_tokens: 5000", "policy_tokens: 9000"))
    with pytest.raises(ConfigError, match="fixed seed 3 must have the settings that its sweep began with"):
        run_cell(planned(f"runs={tmp_path / 'runs'}"), cell)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_how_many_runs_are_left(write, tmp_path, capsys):
    write()
    runs = f"runs={tmp_path / 'runs'}"
    finished(planned(runs), Cell("fixed", 3))
    assert main(["made", runs, "--dry-run"]) == 0
    assert f"# 1 of 6 runs are done in {tmp_path / 'runs' / 'made' / 'sweep'}, 5 are left to run" in capsys.readouterr().out


def test_a_sweep_that_cannot_run_here_is_refused_before_its_first_run(write, tmp_path, capsys):
    write()
    (tmp_path / "file").write_text("")
    for words, said in (
        ([f"runs={tmp_path / 'file'}"], "runs must be a folder that can be written"),
        ([f"runs={tmp_path / 'runs'}", "policy.model=no/such/folder"], "policy.model must"),
    ):
        assert main(["made", *words]) == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_later_sitting_says_to_each_run_what_its_own_kind_of_user_knows(write, tmp_path):
    asked = PLAN.replace("settings: {", "settings: {simulator: {kind: llm, model: m}, ")
    write(f"{asked.replace('fixed: {', 'fixed: {simulator: {kind: rule}, ')}differ: [simulator.]\n")
    sweep = planned(f"runs={tmp_path / 'runs'}", "simulator.timeout_s=9")
    assert sweep.for_resumed(Cell("frontier", 3)) == ["simulator.timeout_s=9.0"] and sweep.for_resumed(Cell("fixed", 3)) == []


def test_a_dry_run_says_what_the_sweep_or_its_run_would_be_refused_for_here(write, tmp_path, capsys):
    write()
    runs, gone = f"runs={tmp_path / 'runs'}", "policy.model=no/such/folder"
    assert main(["made", runs, gone, "--dry-run"]) == 0
    assert "# it would be refused: policy.model must" in capsys.readouterr().out
    assert main(["made", runs, gone, "--cell", "fixed", "5", "--dry-run"]) == 2 and "policy.model must" in capsys.readouterr().err
    folder = planned(runs).run_folder(Cell("fixed", 5))
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    with only_writer(folder):
        assert main(["made", runs, "--dry-run"]) == 0
    assert f"# it would be refused: {folder} must be written by one process at a time" in capsys.readouterr().out


def test_one_run_of_a_sweep_is_planned_by_itself(write, tmp_path, capsys):
    write()
    runs = f"runs={tmp_path / 'runs'}"
    assert main(["made", runs, "--cell", "fixed", "5", "--dry-run"]) == 0
    assert "strictness: 0.5" in (out := capsys.readouterr().out) and "seed: 5" in out
    assert main(["made", runs, "--cell", "fixed", "99", "--dry-run"]) == 2


def test_a_sweep_waits_for_nobody_who_still_writes_one_of_its_runs(write, tmp_path):
    write()
    sweep = planned(f"runs={tmp_path}")
    folder = sweep.run_folder(Cell("fixed", 5))
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    with only_writer(folder), pytest.raises(ConfigError, match=r"fixed/seed_5 must be written by one process at a time"):
        run_sweep(sweep)
    assert not (sweep.folder / "plan.json").exists()


PATIENT = "import time; from experiments.run_folder import Interruption\nwith Interruption(): print('runs', flush=True); time.sleep(600)"
"""A run in the middle of a long step: the first signal is remembered, the second ends it."""


def test_who_asks_twice_to_stop_a_sweep_leaves_no_run_behind(write, tmp_path, monkeypatch):
    write()
    started = []

    def start(sweep: Sweep, cell: Cell) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-c", PATIENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        assert started[-1].stdout.readline() == b"runs\n"
        return started[-1]

    monkeypatch.setattr("experiments.sweep.start", start)
    monkeypatch.setattr("experiments.sweep.POLL_S", 0.01)
    with Interruption() as interruption:
        sitting = SweepRunner(planned(f"runs={tmp_path}"), interruption)
        monkeypatch.setattr(sitting, "show", lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
        with pytest.raises(KeyboardInterrupt):
            sitting.run()
    assert [process.poll() is not None for process in started] == [True]
    started[0].stdout.close()


COUNTING = """
import signal, time
received = []
def take(number, frame):
    received.append(number)
    print(len(received), flush=True)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, take)
print("runs", flush=True)
while len(received) < 2:
    time.sleep(0.01)
time.sleep(0.3)
"""
"""A run that says how many signals it has received and clears away for a moment once there were two."""


def test_a_run_that_was_asked_to_end_is_sent_one_more_signal_when_it_shall_abandon_its_step(write, tmp_path, monkeypatch):
    write()
    monkeypatch.setattr("experiments.sweep.POLL_S", 0.01)
    with Interruption() as interruption, subprocess.Popen([sys.executable, "-c", COUNTING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "runs\n"
        sitting = SweepRunner(planned(f"runs={tmp_path}"), interruption)
        sitting.running = [RunningCell(Cell("frontier", 3), process)]

        def ask_again() -> None:
            assert process.stdout.readline() == "1\n"
            os.kill(os.getpid(), signal.SIGINT)

        os.kill(os.getpid(), signal.SIGINT)
        again = threading.Thread(target=ask_again)
        again.start()
        with pytest.raises(KeyboardInterrupt):
            sitting.run()
        again.join()
        assert process.stdout.read() == "2\n"


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_no_run_is_abandoned_because_nobody_reads_any_more(write, tmp_path, monkeypatch):
    write()
    monkeypatch.setattr("experiments.sweep.POLL_S", 0.01)
    monkeypatch.setattr(sys, "stderr", Gone())
    with Interruption() as interruption, subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as ended:
        sitting = SweepRunner(planned(f"runs={tmp_path}"), interruption)
        sitting.left, sitting.running = [], [RunningCell(Cell("frontier", 3), ended)]
        assert sitting.run() == [Cell("frontier", 3)]


@pytest.mark.engine
def test_a_sweep_runs_compares_and_is_done_when_asked_again(tmp_path):
    small = ["budget.steps=2", "groups_per_step=2", "group_size=2", "evaluation.num_scenarios=2", "evaluation.during_scenarios=1"]
    small += ["evaluation.strictness=[0.5]", "probe.num_dialogues=2", "rollout.num_engines=1", "parallel=1", "seeds=0"]
    # A prior that hardly speaks is built in seconds.
    tiny = ["num_tokens=20000", "vocab_size=600", "hidden_size=64", "num_heads=1", "num_layers=1", "intermediate_size=64"]
    small += [f"policy.prior.{setting}" for setting in tiny]
    words = [sys.executable, "-m", "experiments", "fixed_vs_adaptive", "arms=frontier,fixed_0.5", f"runs={tmp_path / 'runs'}", *small]
    first = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr
    assert "2 runs to do, 0 done" in first.stderr and "done frontier seed 0: held-out" in first.stderr
    folder = tmp_path / "runs" / "fixed_vs_adaptive" / "sweep"
    summaries = {arm: json.loads((folder / arm / "seed_0" / "summary.json").read_text()) for arm in ("frontier", "fixed_0.5")}
    assert summaries["fixed_0.5"]["strictness"]["trace"] == [0.5, 0.5] and summaries["frontier"]["teacher"] == "frontier"
    assert summaries["frontier"]["world"] == summaries["fixed_0.5"]["world"]
    starts = {yaml.safe_load((folder / arm / "seed_0" / "config.yaml").read_text())["provenance"]["initial_policy"] for arm in summaries}
    assert len(starts) == 1 and len(starts.pop()) == 16
    comparison = json.loads((folder / "comparison.json").read_text())
    assert set(comparison["arms"]) == {"frontier", "fixed_0.5"}

    again = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0 and "0 runs to do, 2 done" in again.stderr
    other = subprocess.run([*words, "algorithm.turn_credit=0.5"], capture_output=True, text=True, timeout=120)
    assert other.returncode == 2 and "was run with algorithm.turn_credit=0.9, this sweep wants 0.5" in other.stderr
