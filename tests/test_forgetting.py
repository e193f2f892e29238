"""Replay follows what the probes show lost, and the ceiling what easy users give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_student import make_outcome, make_task, make_teacher

from curriculum.frontier import ForgettingConfig, ForgettingWatch
from curriculum.task import Mode
from curriculum.teacher import mean_reward, success_share

PLAIN = ForgettingConfig(rate=0.5, fading=0.0, num_errors=0.0, full=0.5)
JUDGED = 2
"""Dialogues from which a band is judged at a rate of .5."""


def make_watch(config: ForgettingConfig = PLAIN) -> ForgettingWatch:
    return ForgettingWatch(config, fared=success_share)


def probe(strictness: float, success: bool):
    issued = make_teacher("fixed", group_size=2).propose(1, policy_version=0)[0]
    return make_outcome(replace(issued, uid="probe", mode=Mode.PROBE, group_size=1, strictness=strictness), int(success))


def test_a_band_is_judged_once_it_was_seen_often_and_its_fall_becomes_a_share():
    watch = make_watch()
    watch.learn([probe(0.1, True)] * (JUDGED - 1))
    assert watch.drops == [0.0] * 5 and watch.replay_share == 0.0
    watch.learn([probe(0.1, True), probe(0.1, False)])
    # now = 1, then .5: half of the best is gone, and .5 of it calls for all groups.
    assert watch.drops == pytest.approx([0.5, 0.0, 0.0, 0.0, 0.0]) and watch.replay_share == pytest.approx(1.0)
    watch.learn([probe(0.1, True)])
    assert watch.drops[0] == pytest.approx(0.25) and watch.replay_share == pytest.approx(0.5)
    watch.learn([probe(0.9, False)] * 50)
    assert watch.replay_share == pytest.approx(0.5)  # what never succeeded was not lost


def test_what_chance_explains_is_so_many_standard_errors_of_the_running_mean():
    watch = make_watch(replace(PLAIN, num_errors=1.5))
    watch.learn([probe(0.1, True)] * JUDGED + [probe(0.1, False)])
    # best 1, now .5: m = .75, standard error sqrt(.75 * .25 * .5 / 1.5) = .25
    assert watch.slacks[0] == pytest.approx(0.375) and watch.replay_share == pytest.approx((0.5 - 0.375) / 0.5)
    assert make_watch(replace(PLAIN, num_errors=2.0)).slacks == [0.0] * 5


def test_graded_rewards_are_lost_long_before_anybody_fails():
    watch = ForgettingWatch(PLAIN, fared=mean_reward)
    fared = [replace(probe(0.9, False), rewards=(reward,)) for reward in (0.6, 0.6, 0.6, 0.2, 0.2)]
    watch.learn(fared)
    assert watch.drops[4] == pytest.approx(0.3) and watch.replay_share == pytest.approx(1.0)
    blind = make_watch()
    blind.learn(fared)
    assert blind.replay_share == 0.0


def test_replay_ends_when_the_band_recovers_and_a_lucky_best_fades():
    watch = make_watch()
    watch.learn([probe(0.1, True)] * JUDGED + [probe(0.1, False)])
    watch.learn([probe(0.1, True)] * 60)
    assert watch.replay_share == 0.0
    fading = make_watch(replace(PLAIN, fading=0.5))
    fading.learn([probe(0.1, True)] * JUDGED + [probe(0.1, False)])
    # best = 1 goes half of the way to now = .5.
    assert fading.drops[0] == pytest.approx(0.25)


def test_the_ablation_never_replays_and_broken_probes_count_for_nothing():
    watch = make_watch(replace(PLAIN, enabled=False))
    watch.learn([probe(0.1, True)] * JUDGED + [probe(0.1, False)] * 5)
    assert watch.replay_share == 0.0 and watch.drops[0] > 0.9
    before = watch.state_dict()
    watch.learn([replace(probe(0.1, True), rewards=(float("nan"),))])
    assert watch.state_dict() == before
    with pytest.raises(ValueError, match=r"forgetting.best must have 5 numbers, got 1"):
        watch.load_state_dict({**before, "best": [0.0]})


def test_frontier_replays_while_the_probes_show_forgetting_and_says_so():
    teacher = make_teacher("frontier")
    teacher.observe([probe(0.1, True)] * 20)
    assert not [task for task in teacher.propose(100, policy_version=0) if task.mode is Mode.REPLAY]
    teacher.observe([probe(0.1, False)] * 20)
    decision = next(decision for decision in teacher.decisions() if decision["decision"] == "replay")
    assert decision["share"] == teacher.metrics()["curriculum/replay_share"] == 1.0 and decision["drops"][0] > 0.5
    tasks = teacher.propose(400, policy_version=0)
    shares = {mode: sum(task.mode is mode for task in tasks) / 400 for mode in Mode}
    assert shares[Mode.FRONTIER] == 0.0 and shares[Mode.UNIFORM] == pytest.approx(0.05, abs=0.03)
    assert {task.propensity for task in tasks if task.mode is Mode.REPLAY} == {0.95}


def test_the_ceiling_is_what_easy_groups_get_and_the_target_is_a_share_of_it():
    teacher = make_teacher("frontier", start=0.8, ceiling_rate=0.5)
    teacher.observe([make_outcome(make_task(teacher, 0.7), 4)])
    assert teacher.ceiling == 1.0  # near the frontier failure says where it lies, not what an able agent could get
    teacher.observe([make_outcome(make_task(teacher, 0.1), 4)])
    assert teacher.ceiling == pytest.approx(0.75) and teacher.target == pytest.approx(0.75 * 0.46)
    easy = make_outcome(make_task(teacher, 0.1), 6)
    assert teacher.surprise(easy) == 0.0  # six of eight are the ceiling: nothing to be surprised at
