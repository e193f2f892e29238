"""A sweep as it runs, is resumed, and is refused for what its folder holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from made_sweep import made_result, made_sweep
from sweep_file import PLAN, planned

from analysis.compare import plan_of
from analysis.sweeps import read_sweep
from experiments.__main__ import main
from experiments.config import ExperimentConfig, to_yaml
from experiments.errors import ConfigError
from experiments.preflight import learner_memory
from experiments.run_lock import Interruption, only_writer
from experiments.sweep import (
    RunningCell,
    SweepRunner,
    check_place,
    check_same_run,
    run_cell,
    run_sweep,
)
from experiments.sweep_plan import Cell, Sweep
from simulator.files import ExitCode
from simulator.version import world_name

FIXED = Cell("fixed", 3)


@pytest.fixture
def runs(write, tmp_path) -> str:
    """The override for the folder of all runs, next to a sweep's file."""
    write()
    return f"runs={tmp_path / 'runs'}"


def begun(sweep: Sweep, cell: Cell, *, finished: bool = False, **facts) -> Path:
    """A run of the sweep with its whole settings, without a step or finished."""
    if finished:
        folder = made_result(sweep.folder, cell.arm, cell.seed, world=world_name(), **facts)
    else:
        (folder := sweep.run_folder(cell)).mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(sweep.config(cell), {"format": 2, "git_commit": "c0ffee", "world": world_name()}))
    return folder


def steps_of(*numbers: int) -> str:
    line = {"timing_s/step": 10.0, "timing_s/gen": 8.0}
    return "".join(json.dumps({"step": i, "perf/policy_tokens": 100 * i, **line}) + "\n" for i in numbers)


def resumed_config(sweep: Sweep, cell: Cell, monkeypatch) -> ExperimentConfig:
    """The settings with which a run of the sweep is resumed."""
    taken = []
    monkeypatch.setattr("experiments.run.run", lambda config, folder, to_resume: taken.append(config) or ExitCode.FINISHED)
    monkeypatch.setattr("experiments.sweep.check", lambda *_, **__: None)
    monkeypatch.setattr(Sweep, "is_done", lambda sweep, other: other != cell)
    assert run_cell(sweep, cell) == ExitCode.FINISHED
    return taken[0]


# A whole sweep ------------------------------------------------------------------------------------------------------------------


def test_a_sweep_runs_every_cell_compares_them_and_is_done_when_asked_again(write, tmp_path, monkeypatch, capsys):
    """Its runs are made in this process, one after another."""
    from parts_in_process import SMALL, InProcessPool
    from tiny_policy import save_tiny_policy

    write()
    model, started = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1), []

    def in_this_process(runner: SweepRunner, cell: Cell):
        sweep = runner.sweep
        started.append(str(cell))
        code = main([sweep.experiment, *sweep.words, "--cell", cell.arm, str(cell.seed)])
        return SimpleNamespace(returncode=code, poll=lambda: code)

    monkeypatch.setattr("experiments.sweep.SweepRunner.start", in_this_process)
    monkeypatch.setattr("experiments.sweep.SweepRunner.POLL_S", 0.0)
    monkeypatch.setattr("experiments.build.RolloutPool", InProcessPool)
    monkeypatch.setattr("experiments.run.write_report", lambda folder: folder / "report.html")
    words = ["made", f"runs={tmp_path / 'runs'}", f"policy.model={model}", *SMALL, "budget.steps=2", "parallel=1", "seeds=3"]
    assert main(words) == 0
    folder, err = tmp_path / "runs" / "made" / "sweep", capsys.readouterr().err
    assert sorted(started) == ["fixed seed 3", "frontier seed 3", "frontier seed 5", "replayed seed 3"]
    assert started.index("frontier seed 5") < started.index("replayed seed 3")
    assert "4 runs to do, 0 of 4 done" in err and "first step after" in err and "done fixed seed 3: held-out" in err

    summaries = {str(path.parent.relative_to(folder)): json.loads(path.read_text()) for path in folder.glob("*/seed_*/summary.json")}
    assert len(summaries) == 4 and summaries["fixed/seed_3"]["strictness"]["trace"] == [0.5, 0.5]
    replayed, source = (
        [json.loads(line) for line in (folder / arm / "teacher.jsonl").read_text().splitlines()]
        for arm in ("replayed/seed_3", "frontier/seed_5")
    )
    copied = [[record["strictness"] for record in records if record["event"] == "task"] for records in (replayed, source)]
    assert copied[0] == copied[1] and len(copied[0]) == 4
    assert {yaml.safe_load(path.read_text())["provenance"]["overrides"] for path in folder.glob("*/*/config.yaml")} == {None}
    comparison = json.loads((folder / "comparison.json").read_text())
    assert set(comparison["arms"]) == {"frontier", "fixed", "replayed"}
    assert json.loads((folder / "plan.json").read_text())["seeds"] == [3, 5]

    started.clear()
    assert main(words) == 0 and started == [] and "0 runs to do, 4 of 4 done" in capsys.readouterr().err
    assert main([*words, "algorithm.turn_credit=0.5"]) == 2
    assert "was run with algorithm.turn_credit=0.0, this sweep wants 0.5" in capsys.readouterr().err


def test_runs_side_by_side_share_the_cores_and_are_out_of_reach_of_the_terminal(runs, monkeypatch):
    given: dict = {}
    monkeypatch.setattr("experiments.sweep.subprocess.Popen", lambda words, **facts: given.update(words=words, **facts))
    monkeypatch.setattr("experiments.sweep.os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    sweep = planned(runs, "learner.lr=0.01")
    SweepRunner(sweep, Interruption()).start(FIXED)
    assert given["words"][1:] == ["-m", "experiments", "made", runs, "learner.lr=0.01", "--cell", "fixed", "3"]
    assert given["env"]["OMP_NUM_THREADS"] == "4" and given["start_new_session"] is True
    assert (sweep.folder / "fixed" / "seed_3.txt").is_file()


def test_a_run_that_cannot_be_read_is_named_with_the_remedy(runs, capsys):
    sweep = planned(runs)
    folder = begun(sweep, FIXED, finished=True, metrics=[{"step": 1, "perf/policy_tokens": 5000}])
    for name, content in (("metrics.jsonl", "\0\0\n{}\n"), ("config.yaml", ""), ("config.yaml", "{")):
        before = (folder / name).read_text()
        (folder / name).write_text(content)
        assert main(["made", runs]) == 2
        assert "fixed seed 3 cannot be read" in (said := capsys.readouterr().err) and f"delete {folder}" in said
        (folder / name).write_text(before)


# The plan -----------------------------------------------------------------------------------------------------------------------


def test_a_sweep_is_compared_by_its_files_threshold_and_arms_that_were_not_run_count_in_the_correction(write, tmp_path):
    write(PLAN.replace('["frontier:fixed"]', '["frontier:fixed", "frontier:replayed"]'))
    planned(f"runs={tmp_path}").keep_plan()
    write(PLAN.replace('["frontier:fixed"]', '["frontier:fixed", "frontier:replayed"]') + "threshold: 35\n")
    part = planned("arms=frontier,fixed", f"runs={tmp_path}")
    part.keep_plan()  # the threshold is no part of the plan that must stay
    made_sweep(part.folder, {"frontier": [70.0 + i for i in range(6)], "fixed": [50.0 + i / 2 for i in range(6)]})
    SweepRunner(part, Interruption()).compare()
    found = json.loads((part.folder / "comparison.json").read_text())
    first, second = found["contrasts"]
    assert first["endpoints"]["heldout.auc"]["p_holm"] == 2 * 2 / 2**6 and second["cannot"]
    assert found["arms"]["frontier"]["tokens_to_threshold"]["threshold"] == 35 and plan_of(read_sweep(part.folder)).threshold == 35


def test_a_sweep_keeps_its_plan_and_is_refused_another_one(write, tmp_path):
    write(f"{PLAN}tuning: {{frontier: much, fixed: a grid, replayed: none}}\n")
    planned("arms=fixed,frontier", f"runs={tmp_path}").keep_plan()
    kept = json.loads((tmp_path / "made" / "sweep" / "plan.json").read_text())
    assert kept["contrasts"] == [["frontier", "fixed"]] and kept["primary"] == "heldout.auc"
    assert kept["tuning"] == {"frontier": "much", "fixed": "a grid", "replayed": "none"}
    planned(f"runs={tmp_path}").keep_plan()
    write(PLAN.replace("frontier:fixed", "fixed:frontier"))
    with pytest.raises(ConfigError, match=r"fixed:frontier on heldout\.auc.*, got frontier:fixed"):
        planned(f"runs={tmp_path}").keep_plan()


# Existing runs ------------------------------------------------------------------------------------------------------------------


def test_an_existing_run_of_other_settings_is_refused_requested_or_not(runs):
    begun(planned(runs), Cell("frontier", 3))
    check_place(planned(runs, "arms=fixed"))
    for words in (["group_size=3"], ["arms=fixed", "group_size=3"]):
        with pytest.raises(ConfigError, match=r"frontier/seed_3 was run with group_size=.*wants 3"):
            check_place(planned(runs, *words))
    sweep, folder = planned(runs), planned(runs).run_folder(Cell("frontier", 3))
    (folder / "config.yaml").write_text(to_yaml(sweep.config(Cell("frontier", 3)), {"format": 2, "world": "0123"}))
    with pytest.raises(ConfigError, match="was run in world 0123"):
        check_place(sweep)


def test_a_run_that_replays_another_is_resumed_where_all_were_moved(runs, tmp_path, monkeypatch):
    cell = Cell("replayed", 3)
    begun(planned(runs), cell)
    (tmp_path / "runs").rename(tmp_path / "moved")
    sweep = planned(f"runs={tmp_path / 'moved'}")
    check_same_run(sweep, cell)
    config = resumed_config(sweep, cell, monkeypatch)
    assert config.teacher.trace == str(tmp_path / "moved" / "made" / "sweep" / "frontier" / "seed_5" / "teacher.jsonl")
    assert config.runs == str(tmp_path / "moved") and config.resume == str(sweep.run_folder(cell))


def test_a_resumed_run_takes_the_machine_of_now_and_no_other_settings(runs):
    begun(planned(runs), FIXED)
    for changed, taken in {
        "cluster={address: here, object_store_mb: 99}": ['cluster.address="here"', "cluster.object_store_mb=99"],
        "cluster.address=ray://\U0001f600:1": ['cluster.address="ray://\U0001f600:1"'],
        "checkpoint.every=3": ["checkpoint.every=3"],
    }.items():
        sweep = planned(runs, changed)
        assert sweep.resume_words(FIXED) == taken
        with pytest.MonkeyPatch.context() as patch:
            assert resumed_config(sweep, FIXED, patch).cluster == sweep.config(FIXED).cluster
    other = planned(runs, "learner.lr=0.1")
    assert other.resume_words(FIXED) == []
    with pytest.raises(ConfigError, match=r"was run with learner\.lr"):
        check_same_run(other, FIXED)


# One cell -----------------------------------------------------------------------------------------------------------------------


def test_one_run_of_a_sweep_is_planned_by_itself_once_the_run_that_it_replays_has_ended(runs, capsys):
    sweep = planned(runs)
    with pytest.raises(ConfigError, match=r"replayed seed 3 replays frontier seed 5, .* --cell frontier 5"):
        run_cell(sweep, Cell("replayed", 3))
    assert not sweep.folder.exists()
    assert main(["made", runs, "--cell", "fixed", "5", "--dry-run"]) == 0
    assert "strictness: 0.5" in (out := capsys.readouterr().out) and "seed: 5" in out
    for words, said in (
        (["made", "--cell", "fixed", "9"], "a cell must be one of"),
        (["smoke", "--cell", "a", "9"], "--cell needs a sweep"),
    ):
        assert main(words) == 2 and said in capsys.readouterr().err


# Refused on this machine --------------------------------------------------------------------------------------------------------


def test_an_arm_whose_teacher_cannot_teach_here_is_named_before_any_run(write, tmp_path, monkeypatch, capsys):
    write(PLAN.replace("{kind: fixed, strictness: 0.5}", "{kind: alp_gmm}"))
    monkeypatch.setattr("curriculum.density.find_spec", lambda name: None)
    runs = f"runs={tmp_path / 'runs'}"
    assert main(["made", "--dry-run", runs]) == 0
    assert "# arm fixed: teacher.kind=alp_gmm needs scikit-learn" in capsys.readouterr().out
    assert main(["made", runs]) == 2
    assert (said := capsys.readouterr().err).startswith("error: arm fixed: teacher.kind=alp_gmm")
    assert said.rstrip().endswith("arms=frontier,replayed") and not (tmp_path / "runs").exists()


def test_a_dry_run_says_what_each_arm_s_learner_needs_and_the_arm_that_is_too_large_is_named(write, runs, monkeypatch, capsys):
    write(PLAN.replace("{kind: fixed, strictness: 0.5}}", "{kind: fixed, strictness: 0.5}, algorithm: {kl_coef: 0.1}}"))
    assert main(["made", runs, "--dry-run"]) == 0
    needs = [line for line in capsys.readouterr().out.splitlines() if "the learner needs" in line]
    assert [line.partition(":")[0] for line in needs] == ["# frontier, replayed", "# fixed"]
    assert "reference" in needs[1] and "reference" not in needs[0]
    parts, _, _ = learner_memory(planned(runs).config(Cell("frontier", 3)))
    monkeypatch.setattr("experiments.preflight.free_bytes", lambda: sum(parts.values()) - parts["activations"] - parts["logits"])
    with pytest.raises(ConfigError, match=r"arm fixed: policy\.model must fit, got a learner that needs .* reference"):
        check_place(planned(runs))
    check_place(planned(runs, "arms=frontier"))


def test_a_sweep_that_cannot_run_here_is_refused_before_its_first_run(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    gone = "policy.model=no/such/folder"
    for words, said in (([f"runs={tmp_path / 'file'}"], "runs must be a folder"), ([runs, gone], "policy.model must")):
        assert main(["made", *words]) == 2 and said in capsys.readouterr().err
        assert main(["made", *words, "--dry-run"]) == 0 and f"# it would be refused: {said}" in capsys.readouterr().out
    assert main(["made", runs, gone, "--cell", "fixed", "5", "--dry-run"]) == 2
    assert not (tmp_path / "runs").exists()


def test_a_sweep_does_not_start_while_another_process_writes_one_of_its_runs(runs, capsys):
    sweep = planned(runs)
    with only_writer(begun(sweep, FIXED)):
        with pytest.raises(ConfigError, match="fixed/seed_3 must be written by one process at a time"):
            run_sweep(sweep)
        assert main(["made", runs, "--dry-run"]) == 0 and "# it would be refused: " in capsys.readouterr().out
    assert not (sweep.folder / "plan.json").exists()


def test_finished_runs_are_counted_and_not_ended_again_and_unreadable_ones_are_named(runs, capsys):
    sweep = planned(runs)
    folder = begun(sweep, FIXED, finished=True)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["made", runs, "--cell", "fixed", "3"]) == 0 and f"{folder} has ended: held-out 60.0" in capsys.readouterr().err
    assert main(["made", runs, "--cell", "fixed", "3", "--dry-run"]) == 0 and f"# {folder} has ended" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert main(["made", runs, "--dry-run"]) == 0 and f"# 1 of 6 runs are done in {sweep.folder}, 5 are left" in capsys.readouterr().out
    (folder / "config.yaml").unlink()
    assert main(["made", runs, "--dry-run"]) == 0 and f"delete {folder} to run it again" in capsys.readouterr().out


# Progress and cost --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runner(runs, monkeypatch):
    """Makes a runner that starts nothing, and what it says."""
    monkeypatch.setattr("experiments.sweep.SweepRunner.start", lambda runner, cell: SimpleNamespace(poll=lambda: None))
    monkeypatch.setattr("experiments.sweep.SweepRunner.POLL_S", 0.01)

    def runner(*words: str, **facts) -> tuple[SweepRunner, list[str]]:
        made, said = SweepRunner(planned(runs, *words), Interruption(), **facts), []
        monkeypatch.setattr(made, "say", said.append)
        return made, said

    return runner


def test_the_cost_is_predicted_from_the_first_step(runner):
    made, said = runner("budget.policy_tokens=1000", "evaluation.num_scenarios=1", "evaluation.during_scenarios=1")
    folder = made.sweep.run_folder(Cell("frontier", 3))
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(steps_of(2), encoding="utf-8")
    assert made.estimate() == "?"
    made.start_runs()
    assert said.pop().endswith(f"its output is {folder}.txt")
    made.predict(Cell("frontier", 3))
    # Of ten steps of 10 s the budget allows four; 33 held-out dialogues of 1 s; six runs of 73 s less half of one.
    assert made.run_s == pytest.approx(4 * 10.0 + 11 * 3 * 1.0) and made.runs_made() == 0.5
    assert "about 3:21 to 6:42 for the rest" in said[0] and "frontier" in said[0]


def test_a_resumed_run_goes_alone_until_its_first_new_step(runner):
    made, _ = runner()
    folder = made.sweep.run_folder(Cell("frontier", 3))
    folder.mkdir(parents=True)
    metrics, seen = folder / "metrics.jsonl", []
    metrics.write_text(steps_of(1, 2, 3, 4), encoding="utf-8")
    # Killed after its fourth step, it goes back to the checkpoint of its second.
    for steps in ((1, 2, 3, 4), (1, 2), (1, 2, 3)):
        made.start_runs()
        metrics.write_text(steps_of(*steps), encoding="utf-8")
        made.show()
        seen.append((len(made.running), made.run_s is not None))
    made.start_runs()
    assert seen == [(1, False), (1, False), (1, True)] and len(made.running) == 2


def test_a_message_at_the_end_of_a_run_counts_those_done_and_predicts_the_time_left(runner):
    made, said = runner("parallel=1")
    made.run_s = 100.0
    for cell, code in ((Cell("frontier", 3), 0), (FIXED, 0), (Cell("frontier", 5), 1)):
        made.left.remove(cell)
        if code == 0:
            made_result(made.sweep.folder, cell.arm, cell.seed)
        made.running = [RunningCell(cell, SimpleNamespace(poll=lambda code=code: code, returncode=code))]
        made.began, made.done_before = time.monotonic(), made.runs_made()
        made.collect()
    assert said[0] == "done frontier seed 3: held-out 60.0 (1 of 6 done, about 8:20 left)"
    assert said[1] == "done fixed seed 3: held-out 60.0 (2 of 6 done, about 6:40 left)"
    assert said[2].startswith("FAILED frontier seed 5 (1)") and made.failed == [Cell("frontier", 5)]
    assert made.runs_left() == 3  # the failed one is none of them


# Stopping -----------------------------------------------------------------------------------------------------------------------

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
"""A run that counts its signals and takes a moment to end after the second."""


def test_a_sweep_that_is_interrupted_twice_lets_runs_finish_and_then_abandon_their_step(runs, monkeypatch):
    monkeypatch.setattr("experiments.sweep.SweepRunner.POLL_S", 0.01)
    with Interruption() as interruption, subprocess.Popen([sys.executable, "-c", COUNTING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "runs\n"
        made = SweepRunner(planned(runs), interruption)
        made.running = [RunningCell(Cell("frontier", 3), process)]

        def ask_again() -> None:
            assert process.stdout.readline() == "1\n"
            os.kill(os.getpid(), signal.SIGINT)

        os.kill(os.getpid(), signal.SIGINT)
        again = threading.Thread(target=ask_again)
        again.start()
        with pytest.raises(KeyboardInterrupt):
            made.run()
        again.join()
        assert process.stdout.read() == "2\n" and process.poll() == 0


def test_a_closed_terminal_stops_no_sweep(runs, monkeypatch):
    def gone(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("experiments.sweep.SweepRunner.POLL_S", 0.01)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=gone, flush=lambda: None, isatty=lambda: False))
    made = SweepRunner(planned(runs), Interruption())
    made.left, made.running = [], [RunningCell(Cell("frontier", 3), SimpleNamespace(poll=lambda: 3, returncode=3))]
    assert made.run() == [Cell("frontier", 3)]
