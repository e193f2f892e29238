"""The toy benchmark: the run between a teacher and a student, its figures, and the command that compares many."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from curriculum import NEEDS, TEACHERS
from curriculum.__main__ import main
from curriculum.collapse.indicators import collapse_onset
from curriculum.schedules import FixedConfig, FixedTeacher
from curriculum.target import TargetConfig
from curriculum.task import Mode
from curriculum.toy.benchmark import all_arms, cell, parse_arms, resolve, run_one, summary, tables
from curriculum.toy.simulation import alarms, configure, figures, simulate
from curriculum.toy.students import STUDENTS, Improving

FAST = "S7_few_groups_50"


class Spy(FixedTeacher):
    """Fixed, and records its calls with the number of updates before each."""

    latest: Spy

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.stats, self.fates, self.probes = [], defaultdict(list), []
        Spy.latest = self

    def propose(self, num_groups, *, policy_version):
        tasks = super().propose(num_groups, policy_version=policy_version)
        for task in tasks:
            self.fates[task.uid].append(("issued", len(self.stats)))
        return tasks

    def observe(self, outcomes):
        for outcome in outcomes:
            if outcome.task.mode is Mode.PROBE:
                self.probes.append((len(self.stats), outcome))
            else:
                self.fates[outcome.task.uid].append(("observed", len(self.stats)))
        super().observe(outcomes)

    def expire(self, uids, *, reason):
        for uid in uids:
            self.fates[uid].append(("expired", len(self.stats)))
        super().expire(uids, reason=reason)

    def on_update(self, stats):
        self.stats.append(stats)


@pytest.fixture
def spy(monkeypatch):
    monkeypatch.setitem(TEACHERS, "spy", (FixedConfig, Spy))

    def run(student: str) -> Spy:
        simulate(student, "spy", {}, seed=0)
        return Spy.latest

    return run


def test_outcomes_come_once_and_as_late_as_the_student_says(spy):
    teacher, delay = spy("S1_delay2"), 2
    waits = Counter(observed - issued for (_, issued), (_, observed) in teacher.fates.values())
    assert max(waits) == delay and waits[delay] == 32 * (len(teacher.stats) - delay)
    assert teacher.metrics()["curriculum/outstanding"] == 0.0


def test_outages_account_for_every_task_once(spy):
    teacher = spy("outages")
    ends = Counter(fate[1][0] if len(fate) > 1 else "outstanding" for fate in teacher.fates.values())
    assert {len(fate) for fate in teacher.fates.values()} <= {1, 2} and sum(ends.values()) == 32 * len(teacher.stats)
    metrics = teacher.metrics()
    assert metrics["curriculum/outcomes_expired"] == ends["expired"] > 50 and metrics["curriculum/outcomes_ignored"] == 0
    assert metrics["curriculum/outcomes_observed"] == ends["observed"] and metrics["curriculum/outcomes_too_few_survivors"] > 50
    assert {fate[1][1] - fate[0][1] for fate in teacher.fates.values() if len(fate) > 1 and fate[1][0] == "expired"} == {10}


def test_the_probe_panel_is_the_same_25_points_every_five_updates_and_billed(spy):
    by_update = defaultdict(list)
    for update, outcome in spy(FAST).probes:
        by_update[update].append((outcome.task.uid, outcome.task.family, outcome.task.strictness, len(outcome.rewards)))
    assert sorted(by_update) == list(range(0, 50, 5)) and len({tuple(panel) for panel in by_update.values()}) == 1
    assert sorted(strictness for _, _, strictness, _ in by_update[0]) == pytest.approx((np.arange(25) + 0.5) / 25)
    assert {size for *_, size in by_update[0]} == {1} and len({family for _, family, _, _ in by_update[0]}) == 24
    assert figures(simulate(FAST, "fixed"))["probe_share"] == pytest.approx(250 / (250 + 50 * 6 * 8))


def test_updates_have_the_entropy_and_the_density_of_the_practice(spy):
    stats = spy("S1_stationary").stats
    assert len(stats) == 150 and stats[0].entropy == pytest.approx(math.log(2))
    assert np.mean([update.reward_density for update in stats]) == pytest.approx(1.0, abs=0.02)
    assert np.mean([update.zero_variance_share for update in stats]) == pytest.approx(2 / 2**8, abs=0.005)


def test_the_same_seed_gives_the_same_run_also_to_teachers_that_issue_the_same(monkeypatch):
    first, again, other = (run_one(FAST, "frontier", {}, seed) for seed in (3, 3, 4))
    for run in (first, again, other):
        del run["us_per_task"]
    assert first == again and first != other
    monkeypatch.setitem(STUDENTS, "short", lambda rng: Improving(num_updates=20))
    narrow = simulate("short", "uniform", {"low": 0.4, "high": 0.4}, 5)
    for name, values in simulate("short", "fixed", {"strictness": 0.4}, 5).series.items():
        assert np.array_equal(narrow.series[name], values, equal_nan=True), name


def test_groups_played_only_to_be_scored_teach_the_teacher_and_not_the_student(monkeypatch):
    class Unlearning(Spy):
        def choose(self, family):
            return replace(super().choose(family), mode=Mode.UNLEARNED)

    monkeypatch.setitem(TEACHERS, "unlearning", (FixedConfig, Unlearning))
    monkeypatch.setitem(STUDENTS, "short", lambda rng: Improving(num_updates=20))
    trace = simulate("short", "unlearning")
    assert len(set(trace.series["score"])) == 1 and trace.num_rollouts == 20 * 256
    assert Unlearning.latest.metrics()["curriculum/outcomes_observed"] == 20 * 32


def test_forgetting_under_a_fixed_teacher_is_a_collapse_after_an_alarm():
    trace = simulate("S3_forgetting", "fixed", {"strictness": 0.5})
    onset, values = collapse_onset(range(len(trace.series["score"])), trace.series["score"]), figures(trace)
    early = [alarm for alarm in alarms(trace) if alarm.step < onset]
    assert "density_lost" in {alarm.name for alarm in early}
    assert values["collapsed"] == 1.0 and values["first_alarm"] == min(alarm.step for alarm in early)


def test_every_registered_teacher_is_an_arm_and_every_arm_can_be_configured():
    arms = all_arms()
    assert {arm.kind for arm in arms.values()} == {kind for kind in TEACHERS if kind not in NEEDS or find_spec(NEEDS[kind])}
    for arm in arms.values():
        configure(TEACHERS[arm.kind][0](), resolve(arm.settings, num_updates=200))
    assert [arm.name for arm in parse_arms(["all"])] == list(arms) and len(parse_arms(["uniform", "uniform"])) == 1
    assert resolve({"num_steps": "T/2", "start": 0.1}, num_updates=300) == {"num_steps": 150, "start": 0.1}


def test_settings_are_read_from_text_and_leave_the_rest_of_a_part_as_the_teacher_has_it():
    (arm,) = parse_arms(["target:rho=1,guard.enabled=false,allocation.rate=.2,guard.hold_updates=3"])
    config = configure(TargetConfig(), arm.settings)
    assert (config.rho, config.guard.enabled, config.allocation.rate, config.guard.hold_updates) == (1.0, False, 0.2, 3)
    assert configure(FixedConfig(), {"allocation.rate": "0.2"}).allocation.uniform_floor == FixedConfig().allocation.uniform_floor == 1.0
    assert configure(TEACHERS["sec"][0](), {"scope": "flat"}).scope == "flat"
    for stages in ([0.1, 0.5], "[0.1, 0.5]"):
        assert configure(TEACHERS["staged"][0](), {"strictness": stages}).strictness == [0.1, 0.5]


def test_summary_is_a_t_interval_over_the_seeds_that_have_a_value():
    found = summary([1.0, 2.0, 3.0, math.nan])
    assert found["mean"] == 2.0 and found["per_seed"] == [1.0, 2.0, 3.0, None]
    assert found["ci95"] == pytest.approx([2.0 - 4.302653 / math.sqrt(3), 2.0 + 4.302653 / math.sqrt(3)], abs=1e-5)
    assert summary([math.nan]) == {"mean": None, "ci95": None, "per_seed": [None]}


def test_a_cell_of_the_table_has_the_yardstick_of_its_student():
    row = {name: {"mean": value} for name, value in {"final": 0.5, "worst": 0.25, "auc": 0.125, "us_per_task": 50.0}.items()}
    assert cell(row) == "0.50/0.25 (0.12)" and cell(None) == ""
    assert cell({"rmse": {"mean": 0.0314}}) == "0.031" and cell({"rmse": {"mean": None}}) == "-"
    assert cell({"macro": {"mean": 0.9}, "worst": {"mean": 0.8}, "noise_share": {"mean": 0.11}}) == "0.900/0.80 0.11"
    table = ["| teacher | one | us |", "|---|---|---|", "| fixed | 0.50/0.25 (0.12) | 50 |"]
    assert tables({"one": {"fixed": row}}, markdown=True).splitlines()[:3] == table


def test_the_command_prints_a_table_and_writes_the_figures(capsys, tmp_path):
    out = tmp_path / "teachers.json"
    arguments = ["benchmark", "--teachers", "fixed_.5", "target:rho=.2", "yoked", "--students", FAST, "--seeds", "2", "--jobs", "2"]
    assert main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:4]] == ["teacher", "fixed_.5", "target:rho=.2", "yoked"]
    results = json.loads(out.read_text())
    assert list(results) == [FAST] and list(results[FAST]) == ["fixed_.5", "target:rho=.2", "yoked"]
    for row in results[FAST].values():
        assert {"rmse", "us_per_task"} <= set(row)
        for values in row.values():
            assert set(values) == {"mean", "ci95", "per_seed"} and values["ci95"][0] <= values["mean"] <= values["ci95"][1]
    seeds = [run_one(FAST, "target", {"rho": 0.2}, seed)["rmse"] for seed in range(2)]
    assert results[FAST]["target:rho=.2"]["rmse"]["per_seed"] == seeds and list(tmp_path.iterdir()) == [out]
    assert main(["benchmark", "--show", str(out)]) == 0 and capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--teachers", "unknown"], "--teachers must be all, one of "),
        (["--teachers", "fixed:strictnes=.2"], "teacher.strictnes is no setting of FixedConfig; it has "),
        (["--students", "S9"], "--students must be all or some of S1_stationary, "),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--out", "/nowhere/at/all.json"], "--out must be "),
        (["--show", "/nowhere/at/all.json"], "--show must be a file that `benchmark --out` wrote"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_one_sentence_before_any_work(monkeypatch, capsys, arguments, name):
    monkeypatch.setattr("curriculum.__main__.run_jobs", lambda *_, **__: pytest.fail("work was started"))
    assert main(["benchmark", *arguments]) == 2
    out, errors = capsys.readouterr()
    assert out == "" and errors.startswith(f"error: {name}") and errors.count("\n") == 1
