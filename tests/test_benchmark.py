"""The benchmark: what a run does between a teacher and a student, how it is judged, and the command that compares many."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from importlib.util import find_spec

import numpy as np
import pytest

from curriculum import NEEDS, TEACHERS
from curriculum.__main__ import main
from curriculum.bandits import Scope, SecConfig
from curriculum.collapse.monitor import INDICATORS
from curriculum.collapse.quality import collapse_onset
from curriculum.frontier import FrontierConfig
from curriculum.schedules import FixedConfig, FixedTeacher
from curriculum.signals import reward_density, zero_variance_share
from curriculum.task import Mode
from curriculum.toy.benchmark import (
    LOOKS,
    Arm,
    alarms,
    alike,
    all_arms,
    cell,
    collapsed,
    configure,
    density,
    figures,
    parse_arms,
    resolve,
    run_one,
    simulate,
    summary,
    tables,
)
from curriculum.toy.students import STUDENTS

FAST = "S7_few_groups_50"


class Spy(FixedTeacher):
    """Fixed, and remembers what it was told and how many updates it had seen by then."""

    latest: Spy

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.num_updates = 0
        self.stats = []
        self.fates = defaultdict(list)
        self.probes = []
        Spy.latest = self

    def propose(self, num_groups, *, policy_version):
        tasks = super().propose(num_groups, policy_version=policy_version)
        for task in tasks:
            self.fates[task.uid].append(("issued", self.num_updates))
        return tasks

    def observe(self, outcomes):
        for outcome in outcomes:
            if outcome.task.mode is Mode.PROBE:
                self.probes.append((self.num_updates, outcome))
            else:
                self.fates[outcome.task.uid].append(("observed", self.num_updates))
        super().observe(outcomes)

    def expire(self, uids, *, reason):
        for uid in uids:
            self.fates[uid].append(("expired", self.num_updates))
        super().expire(uids, reason=reason)

    def on_update(self, stats):
        self.num_updates += 1
        self.stats.append(stats)


@pytest.fixture
def spy(monkeypatch):
    monkeypatch.setitem(TEACHERS, "spy", (FixedConfig, Spy))

    def run(student: str) -> Spy:
        simulate(student, "spy", {}, seed=0)
        return Spy.latest

    return run


@pytest.mark.parametrize(("student", "delay"), [("S1_stationary", 0), ("S1_delay2", 2), ("S1_delay16", 16)])
def test_outcomes_come_once_and_as_late_as_the_student_says(spy, student, delay):
    teacher = spy(student)
    waits = Counter()
    for (_, issued), (what, observed) in teacher.fates.values():
        assert what == "observed"
        waits[observed - issued] += 1
    assert max(waits) == delay and waits[delay] == 32 * (teacher.num_updates - delay)
    assert teacher.metrics()["curriculum/outstanding"] == 0.0


def test_outages_account_for_every_task_once(spy):
    teacher = spy("outages")
    ends = Counter(fate[1][0] if len(fate) > 1 else "outstanding" for fate in teacher.fates.values())
    assert {len(fate) for fate in teacher.fates.values()} <= {1, 2}
    assert sum(ends.values()) == 32 * teacher.num_updates and ends["expired"] > 50
    metrics = teacher.metrics()
    assert metrics["curriculum/outcomes_expired"] == ends["expired"] and metrics["curriculum/outcomes_observed"] == ends["observed"]
    assert metrics["curriculum/outcomes_too_few_survivors"] > 50 and metrics["curriculum/outcomes_ignored"] == 0
    waits = {fate[1][1] - fate[0][1] for fate in teacher.fates.values() if len(fate) > 1 and fate[1][0] == "expired"}
    assert waits == {10}


def test_the_probe_panel_is_the_same_25_points_every_five_updates_and_billed(spy):
    teacher = spy("S5_noise_families")
    by_update = defaultdict(list)
    for update, outcome in teacher.probes:
        by_update[update].append(outcome.task)
        assert outcome.task.group_size == len(outcome.rewards) == 1 and outcome.task.uid not in teacher.fates
    assert sorted(by_update) == list(range(0, 200, 5))
    points = [[(task.uid, task.family, task.strictness) for task in tasks] for tasks in by_update.values()]
    assert all(panel == points[0] for panel in points) and len(points[0]) == 25
    assert sorted(strictness for _, _, strictness in points[0]) == pytest.approx((np.arange(25) + 0.5) / 25)
    assert {family for _, family, _ in points[0]} == set(teacher.families)
    assert figures(simulate("S5_noise_families", "fixed"))["probe_share"] == pytest.approx(1000 / (1000 + 200 * 256))


def test_updates_tell_the_entropy_and_the_density_of_what_was_practised(spy):
    stats = spy("S1_stationary").stats
    assert len(stats) == 150 and stats[0].entropy == pytest.approx(math.log(2))
    assert np.mean([update.reward_density for update in stats]) == pytest.approx(1.0, abs=0.02)
    assert np.mean([update.zero_variance_share for update in stats]) == pytest.approx(2 / 2**8, abs=0.005)


def test_the_same_seed_gives_the_same_figures_and_another_others():
    first, again, other = (run_one(FAST, "frontier", {}, seed) for seed in (3, 3, 4))
    del first["us_per_task"], again["us_per_task"], other["us_per_task"]
    assert first == again and first != other


def test_a_setting_may_be_a_list_or_the_text_of_one():
    runs = [run_one(FAST, "staged", {"strictness": stages}, 0) for stages in ([0.1, 0.5], "[0.1, 0.5]")]
    assert runs[0]["rmse"] == runs[1]["rmse"]


def test_teachers_that_issue_the_same_meet_the_same_luck():
    narrow = simulate("S2_improving", "uniform", {"low": 0.4, "high": 0.4}, 5)
    fixed = simulate("S2_improving", "fixed", {"strictness": 0.4}, 5)
    for name, values in fixed.series.items():
        assert np.array_equal(narrow.series[name], values, equal_nan=True), name


def test_groups_played_only_to_be_scored_teach_the_teacher_and_not_the_student(monkeypatch):
    class Unlearning(Spy):
        def choose(self, family):
            return super().choose(family)._replace(mode=Mode.UNLEARNED)

    monkeypatch.setitem(TEACHERS, "unlearning", (FixedConfig, Unlearning))
    trace = simulate("S2_improving", "unlearning")
    assert len(set(trace.series["score"])) == 1 and trace.num_rollouts == 200 * 256
    assert Unlearning.latest.metrics()["curriculum/outcomes_observed"] == 200 * 32


def test_density_and_alike_agree_with_the_signals():
    rng = np.random.default_rng(0)
    whole = (rng.random((20, 8)) < rng.random((20, 1))).astype(float)
    torn = np.where(rng.random((20, 8)) < 0.3, np.nan, whole)
    for rewards_NG in (whole, torn):
        shares = zero_variance_share(rewards_NG.tolist())
        assert density(rewards_NG) == pytest.approx(reward_density(rewards_NG.tolist()))
        assert alike(rewards_NG) == pytest.approx((shares.all_low, shares.all_high))


def test_forgetting_under_a_fixed_teacher_is_a_collapse_that_the_alarms_see_coming():
    trace = simulate("S3_forgetting", "fixed", {"strictness": 0.5})
    onset = collapse_onset(range(len(trace.series["score"])), trace.series["score"])
    assert onset is not None
    early = [alarm for alarm in alarms(trace) if alarm.step < onset]
    assert "density_lost" in {alarm.name for alarm in early}
    values = figures(trace)
    assert values["collapsed"] == 1.0 and values["first_alarm"] == min(alarm.step for alarm in early)


def test_a_student_that_ends_low_has_neither_collapsed_nor_not():
    fallen = [0.5] * 10 + [0.3] * 30
    assert [collapsed(fallen), collapsed(fallen[:10])] == [1.0, 0.0]
    assert math.isnan(collapsed(fallen[:29]))
    assert summary([1.0, 0.0, collapsed(fallen[:29])]) == {**summary([1.0, 0.0]), "per_seed": [1.0, 0.0, None]}


def test_the_monitor_is_fed_whatever_look_it_knows(monkeypatch):
    known = next(name for name in INDICATORS if name not in LOOKS)
    monkeypatch.setitem(LOOKS, known, lambda look: 0.5)
    trace = simulate(FAST, "fixed")
    assert trace.series[known] == [0.5] * 50
    assert all(known in alarm.values for alarm in alarms(trace)) and "success_share" not in INDICATORS


def test_every_registered_teacher_is_an_arm_and_every_arm_can_be_configured():
    arms = all_arms()
    assert {arm.kind for arm in arms.values()} == {kind for kind in TEACHERS if kind not in NEEDS or find_spec(NEEDS[kind])}
    for arm in arms.values():
        configure(TEACHERS[arm.kind][0](), resolve(arm.settings, num_updates=200))
    assert [arm.name for arm in parse_arms(["all"])] == list(arms)


def test_settings_are_read_by_the_type_of_their_default():
    (arm,) = parse_arms(["frontier:rho=1,guard.enabled=false,allocation.rate=.2,guard.hold_updates=3"])
    config = configure(FrontierConfig(), arm.settings)
    assert (config.rho, config.guard.enabled, config.allocation.rate, config.guard.hold_updates) == (1.0, False, 0.2, 3)
    # A setting inside a part leaves the rest of that part as the teacher has it, not as the part alone would.
    assert configure(FixedConfig(), {"allocation.rate": "0.2"}).allocation.uniform_floor == FixedConfig().allocation.uniform_floor == 1.0


def test_a_setting_that_is_one_of_several_words_is_read_and_refused_by_name():
    assert configure(SecConfig(), {"scope": "flat"}).scope is Scope.FLAT
    with pytest.raises(ValueError, match=r"teacher.scope must be in \{shared, own, flat\}, got 'flatt'"):
        configure(SecConfig(), {"scope": "flatt"})


def test_lengths_follow_the_student():
    assert resolve({"num_steps": "T/2", "start": 0.1}, num_updates=300) == {"num_steps": 150, "start": 0.1}


def test_summary_is_a_t_interval_over_the_seeds_that_have_a_value():
    found = summary([1.0, 2.0, 3.0, math.nan])
    assert found["mean"] == 2.0 and found["per_seed"] == [1.0, 2.0, 3.0, None]
    assert found["ci95"] == pytest.approx([2.0 - 4.302653 / math.sqrt(3), 2.0 + 4.302653 / math.sqrt(3)], abs=1e-5)
    assert summary([5.0]) == {"mean": 5.0, "ci95": None, "per_seed": [5.0]}
    assert summary([math.nan]) == {"mean": None, "ci95": None, "per_seed": [None]}


def test_cells_show_what_a_student_is_judged_by():
    row = {name: {"mean": value} for name, value in {"final": 0.5, "worst": 0.25, "auc": 0.125, "us_per_task": 50.0}.items()}
    assert cell(row) == "0.50/0.25 (0.12)"
    assert cell({"rmse": {"mean": 0.0314}}) == "0.031" and cell({"rmse": {"mean": None}}) == "-"
    families = {"macro": {"mean": 0.9}, "worst": {"mean": 0.8}, "noise_share": {"mean": 0.11}}
    assert cell(families) == "0.900/0.80 0.11"
    assert tables({"one": {"fixed": row}}, markdown=True).splitlines()[:3] == [
        "| teacher | one | us |",
        "|---|---|---|",
        "| fixed | 0.50/0.25 (0.12) | 50 |",
    ]


def test_the_command_prints_a_table_and_writes_the_figures(capsys, tmp_path):
    out = tmp_path / "teachers.json"
    arguments = ["benchmark", "--teachers", "fixed_.5", "frontier:rho=.2", "--students", FAST, "--seeds", "2", "--jobs", "2"]
    assert main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["teacher", "fixed_.5", "frontier:rho=.2"]
    results = json.loads(out.read_text())
    assert list(results) == [FAST] and list(results[FAST]) == ["fixed_.5", "frontier:rho=.2"]
    assert {"rmse", "us_per_task"} <= set(results[FAST]["fixed_.5"])
    for metrics in results[FAST].values():
        for values in metrics.values():
            low, high = values["ci95"]
            assert set(values) == {"mean", "ci95", "per_seed"} and len(values["per_seed"]) == 2 and low <= values["mean"] <= high
    seeds = [run_one(FAST, "frontier", {"rho": 0.2}, seed)["rmse"] for seed in range(2)]
    assert results[FAST]["frontier:rho=.2"]["rmse"]["per_seed"] == seeds
    assert list(tmp_path.iterdir()) == [out]
    assert main(["benchmark", "--show", str(out)]) == 0 and capsys.readouterr().out == printed


REFUSED = [
    (["--teachers", "nobody"], "--teachers must be all, one of "),
    (["--teachers", "fixed:strictness"], "--teachers must set a teacher as in KIND:SETTING=VALUE"),
    (["--teachers", "fixed:strictnes=.2"], "teacher.strictnes is no setting of FixedConfig; it has "),
    (["--teachers", "fixed:strictness=2"], "teacher.strictness must be in [0, 1], got 2.0"),
    (["--teachers", "fixed:strictness=high"], "teacher.strictness must be a number, got 'high'"),
    (["--teachers", "frontier:guard.enabled=7"], "teacher.guard.enabled must be true or false, got 7"),
    (["--teachers", "frontier:guard=7"], "teacher.guard is no setting of FrontierConfig"),
    (["--students", "S9"], "--students must be all or some of S1_stationary, "),
    (["--seeds", "0"], "--seeds must be at least 1, got 0"),
    (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    (["--first-seed", "-1"], "--first-seed must be at least 0, got -1"),
    (["--out", "/nowhere/at/all.json"], "--out must be a file in a folder that is there"),
    (["--show", "/nowhere/at/all.json"], "--show must be a file that `benchmark --out` wrote"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_what_cannot_be_run_is_refused_in_one_sentence_before_any_work(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("curriculum.__main__.run_jobs", lambda *_, **__: pytest.fail("work was started"))
    assert main(["benchmark", *arguments]) == 2
    out, said = capsys.readouterr()
    assert out == "" and said.startswith(f"error: {message}") and said.count("\n") == 1


def test_a_file_of_something_else_is_not_shown(capsys, tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"a": {"b": [1]}}')
    assert main(["benchmark", "--show", str(other)]) == 2
    assert capsys.readouterr().err.startswith("error: --show must be a file that `benchmark --out` wrote")


def test_a_failing_run_says_which_it_was(monkeypatch):
    class Broken(FixedTeacher):
        def choose(self, family):
            raise RuntimeError("no idea")

    monkeypatch.setitem(TEACHERS, "broken", (FixedConfig, Broken))
    with pytest.raises(RuntimeError, match="no idea") as caught:
        main(["benchmark", "--teachers", "broken", "--students", FAST, "--seeds", "1", "--jobs", "1"])
    assert caught.value.__notes__ == [f"in the run of broken with {FAST}, seed 0"]


def test_arms_with_equal_names_are_one_and_can_be_looked_up():
    assert Arm("fixed", "fixed") == Arm("fixed", "fixed", {}) and len({Arm("a", "fixed"), Arm("a", "fixed", {})}) == 1
    assert len(parse_arms(["uniform", "uniform"])) == 1 and len(STUDENTS) == 19
