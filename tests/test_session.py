"""Sessions, without any trainer: dialogues stepped from outside, groups that come home in pieces, and states that go on exactly."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from attune_rl.credit import turn_advantages
from attune_rl.session import Episode, Result, Session, Ticket, wait_for
from curriculum.task import Mode
from simulator.scenario import Split


def make_session(**changes) -> Session:
    return Session("frontier", **{"group_size": 3, "max_turns": 2, "max_staleness": 2, **changes})


def play(episode: Episode, *replies: str) -> list[str | None]:
    async def go() -> list[str | None]:
        return [await episode.open(), *[await episode.reply(reply, num_tokens=5) for reply in replies]]

    return asyncio.run(go())


def result(reward: float | None = 0.5) -> Result:
    return Result(reward=reward, num_tokens=9)


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


class Broken:
    """A user whose server is down, from the start or after the opening."""

    def __init__(self, opens=None):
        self.opens = opens

    async def open(self, *args, **kwargs):
        if self.opens is None:
            raise ConnectionError("nobody there")
        return await self.opens.open(*args, **kwargs)

    async def react(self, *args):
        raise ConnectionError("gone")


# Dialogues ----------------------------------------------------------------------------------------------------------------------------


def test_siblings_who_say_the_same_hear_the_same_and_earn_the_same():
    session = make_session()
    (task,) = session.propose(1)
    first, second = session.episode(task), session.episode(task)
    heard = play(first, "What hurts most?", "That sounds hard.")
    assert heard == play(second, "What hurts most?", "That sounds hard.") and heard[-1] is None
    assert first.result() == second.result()
    assert (
        first.result().reward == first.dialogue.emotion / 100 and len(first.result().turn_rewards) == 2 and first.result().num_tokens == 10
    )


def test_a_ticket_meets_the_same_user_in_another_process():
    session = make_session()
    (task,) = session.propose(1)
    code = """if True:
        import asyncio, json, sys
        from attune_rl.session import Episode, Ticket, built_in_world, make_user
        episode = Episode(make_user("rule"), Ticket.from_dict(json.load(sys.stdin)), built_in_world(), max_turns=2)
        async def go():
            return [await episode.open(), await episode.reply("Hm.")]
        print(json.dumps(asyncio.run(go())))"""
    ticket = json.dumps(Ticket.of(task).to_dict())
    assert Ticket.from_dict(json.loads(ticket)) == Ticket.of(task)
    done = subprocess.run([sys.executable, "-c", code], input=ticket, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == play(session.episode(task), "Hm.")


def test_a_dialogue_has_no_result_before_it_is_over_and_can_be_cut_off():
    session = make_session()
    episode = session.episode(session.propose(1)[0])
    play(episode, "What hurts most?")
    with pytest.raises(RuntimeError, match="must be over before it has a result"):
        episode.result()
    episode.cut_off()
    assert episode.result().status == "truncated" and not episode.result().broke


def test_a_hosts_mistakes_are_not_the_users():
    session = make_session()
    episode = session.episode(session.propose(1)[0])
    with pytest.raises(RuntimeError, match="must be under way"):
        asyncio.run(episode.reply("Hello?"))
    play(episode)
    with pytest.raises(TypeError, match="a reply must be a text"):
        asyncio.run(episode.reply(None))
    for _ in range(2):
        asyncio.run(episode.reply("Hello?"))
    with pytest.raises(RuntimeError, match="must be under way"):
        asyncio.run(episode.reply("Still there?"))
    assert not episode.result().broke and episode.dialogue.num_replies == 2


@pytest.mark.parametrize("reward", [-0.1, 1.7])
def test_a_reward_out_of_range_is_refused_where_it_is_made(reward):
    with pytest.raises(ValueError, match=r"reward must be in \[0, 1\]"):
        result(reward)
    with pytest.raises(ValueError, match=r"turn_rewards must be finite"):
        Result(reward=0.5, turn_rewards=(math.nan,))
    with pytest.raises(ValueError, match=r"a turn's reward must be finite"):
        turn_advantages([[math.nan, 0.1], [0.2, 0.3]])
    broken = replace(Result(reward=None), reward=0.5)
    assert broken.broke and math.isnan(broken.reward)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_user_that_breaks_ends_the_dialogue_without_a_reward_and_says_why(from_the_start):
    session = make_session()
    session.user = Broken(None if from_the_start else session.user)
    episode = session.episode(session.propose(1)[0])
    assert play(episode, *([] if from_the_start else ["Hello?"]))[-1] is None
    assert episode.over and episode.result().broke and math.isnan(episode.result().reward)
    assert "ConnectionError" in episode.result().error
    assert Result.from_dict(through_json(episode.result().to_dict())).broke


@pytest.mark.parametrize("brought", [None, 0.5])
def test_what_is_no_result_is_refused_and_leaves_its_group_as_it_was(brought):
    session = make_session()
    (task,) = session.propose(1)
    with pytest.raises(TypeError, match="what a rollout brings must be a Result"):
        session.finish(task.uid, brought)
    assert [session.finish(task.uid, result()) for _ in range(3)] == [False, False, True]


def test_evaluation_meets_users_whom_no_teacher_issues():
    session = make_session()
    tickets = session.heldout(3, (0.2, 0.8))
    assert len({ticket.uid for ticket in tickets}) == 6
    heldout = {scenario.scenario_id for scenario in session.bank.scenarios(Split.HELDOUT)}
    assert {ticket.scenario_id for ticket in tickets} <= heldout
    assert not heldout & {task.scenario_id for task in session.propose(200)}


# Groups -------------------------------------------------------------------------------------------------------------------------------


def test_the_teacher_hears_of_a_group_once_it_is_whole_and_only_once():
    session = make_session()
    (task,) = session.propose(1)
    assert [session.finish(task.uid, result()) for _ in range(4)] == [False, False, True, False]
    metrics = session.metrics()
    assert metrics["curriculum/outcomes_observed"] == 1 and metrics["session/dialogues"] == 3 and metrics["session/ignored"] == 1


def test_the_teacher_hears_of_a_batch_at_once():
    session, batches = make_session(), []
    session.teacher.observe = batches.append
    first, second = session.propose(2)
    for uid in (first.uid, second.uid):
        for _ in range(3):
            session.finish(uid, result())
    assert [len(batch) for batch in batches] == [2]
    late, whole = session.propose(2)
    for _ in range(3):
        session.finish(whole.uid, result())
    session.finish(late.uid, result())
    session.updated(1)
    assert [len(batch) for batch in batches] == [2, 1] and session.waiting == (late.uid,)


def test_a_task_that_nobody_issued_is_counted_and_ignored():
    session = make_session()
    session.propose(1)
    assert not session.finish("step0000009-group0000", result())
    session.close("step0000009-group0000")
    assert session.metrics()["session/ignored"] == 2 and session.metrics()["curriculum/outcomes_observed"] == 0


@pytest.mark.parametrize(("home", "learned"), [(2, True), (1, False)])
def test_a_group_that_comes_home_short_counts_the_missing_as_broken(home, learned):
    session = make_session()
    (task,) = session.propose(1)
    for _ in range(home):
        session.finish(task.uid, result())
    assert session.waiting == (task.uid,)
    session.close(task.uid)
    assert not session.waiting
    assert session.metrics()["session/missing"] == 3 - home and session.metrics()["curriculum/outcomes_observed"] == 1
    assert session.metrics()["curriculum/outcomes_too_few_survivors"] == float(not learned)


@pytest.mark.parametrize("reward", [None, math.nan])
def test_a_rollout_without_a_reward_is_broken_and_never_a_zero(reward):
    session = make_session()
    (task,) = session.propose(1)
    outcomes = []
    session.teacher.observe = outcomes.extend
    for each in (0.8, 0.4, reward):
        session.finish(task.uid, result(each))
    assert (
        outcomes[0].surviving == (0, 1) and outcomes[0].mean_reward == pytest.approx(0.6) and outcomes[0].successes == (True, False, False)
    )
    assert session.metrics()["session/broken"] == 1


def test_rollouts_of_groups_may_come_home_mixed_and_in_any_order():
    orders = [(0, 0, 0, 1, 1, 1), (1, 0, 1, 0, 0, 1)]
    states = []
    for order in orders:
        session = make_session()
        tasks, rewards = session.propose(2), ([0.2, 0.4, 0.9], [0.1, 0.1, 0.6])
        heard = []
        session.teacher.observe = heard.extend
        homes = [iter(each) for each in rewards]
        for number in order:
            session.finish(tasks[number].uid, result(next(homes[number])))
        states.append(sorted((outcome.task.uid, outcome.rewards) for outcome in heard))
    assert states[0] == states[1] and [rewards for _, rewards in states[0]] == [(0.2, 0.4, 0.9), (0.1, 0.1, 0.6)]


def test_a_run_whose_users_break_ends_and_says_why():
    session = make_session(group_size=50)
    (task,) = session.propose(1)
    for _ in range(16):
        session.finish(task.uid, result())
    broken = Result(reward=None, error="Traceback ...\nConnectionError: nobody there")
    for _ in range(4):
        session.finish(task.uid, broken)  # a fifth of twenty
    with pytest.raises(RuntimeError, match=r"^5 of the last 21 dialogues broke; the latest because: ConnectionError: nobody there$"):
        session.finish(task.uid, broken)


def test_a_run_of_small_updates_whose_users_break_ends_too():
    session = make_session(group_size=19)
    for step in range(2):
        (task,) = session.propose(1)
        for _ in range(19 * (step == 0)):
            session.finish(task.uid, result(None))
        session.updated(step + 1)
    with pytest.raises(RuntimeError, match=r"^20 of the last 20 dialogues broke"):
        session.finish(task.uid, result(None))


def test_a_group_whose_last_rollout_ends_the_run_is_whole():
    session = make_session(group_size=20)
    (task,) = session.propose(1)
    for _ in range(19):
        session.finish(task.uid, result(None))
    with pytest.raises(RuntimeError, match="20 of the last 20 dialogues broke"):
        session.finish(task.uid, result(None))
    assert not session.waiting


def test_groups_that_are_only_scored_are_not_in_the_density():
    session, heard = make_session(), []
    session.teacher.on_update = heard.append
    task, scored = session.propose(2)
    session._open[scored.uid] = (replace(scored, mode=Mode.UNLEARNED), [])
    session.teacher.observe = lambda outcomes: None
    for uid, rewards in ((task.uid, (0.5, 0.5, 0.5)), (scored.uid, (0.0, 1.0, 1.0))):
        for reward in rewards:
            session.finish(uid, result(reward))
    session.updated(1)
    assert heard[0].reward_density == 0.0


def test_a_task_that_never_comes_home_is_given_up():
    session = make_session()
    tasks = session.propose(2, policy_version=0)
    for version in (1, 2, 3):
        session.updated(version)
        assert math.isnan(session.metrics()["curriculum/reward_density"])
    assert session.metrics()["curriculum/outstanding"] == 0 and session.metrics()["curriculum/outcomes_expired"] == 2
    assert not session.finish(tasks[0].uid, result())


# Updates and states -------------------------------------------------------------------------------------------------------------------


def test_an_older_version_counts_as_the_latest():
    session = make_session()
    session.updated(5)
    assert session.propose(1, policy_version=3)[0].policy_version == 5


def test_what_was_measured_reaches_the_teacher():
    session, heard = make_session(num_updates=10), []
    session.teacher.on_update = heard.append
    (task,) = session.propose(1)
    for reward in (0.0, 1.0, None):
        session.finish(task.uid, result(reward))
    session.updated(1, entropy_sampled=1.5)
    session.updated(2, entropy=1.2, entropy_sampled=1.5, kl=0.1)
    assert (heard[0].entropy, heard[0].reward_density, heard[0].budget_fraction) == (1.5, 2.0, 0.1) and math.isnan(heard[0].kl)
    assert (heard[1].entropy, heard[1].kl) == (1.2, 0.1) and math.isnan(heard[1].reward_density)


def test_a_session_goes_on_where_it_was_saved_with_groups_half_played():
    ours, other = make_session(num_updates=9), make_session(num_updates=9)
    first, second = ours.propose(2, policy_version=1)
    for reward in (0.1, None, 0.7):
        ours.finish(second.uid, result(reward))
    ours.finish(first.uid, result(0.5))
    other.load_state_dict(through_json(ours.state_dict()))
    for session in (ours, other):
        assert [session.finish(first.uid, result(0.1)) for _ in range(2)] == [False, True]
        session.updated(2, entropy=1.0)
    assert ours.propose(4) == other.propose(4) and ours.state_dict() == other.state_dict()
    assert json.dumps(ours.metrics()) == json.dumps(other.metrics())


def test_a_state_of_another_teacher_user_or_group_size_is_refused():
    state = make_session().state_dict()
    others = (
        make_session(group_size=4),
        make_session(max_turns=3),
        make_session(user=Broken()),
        Session("uniform", group_size=3, max_turns=2),
    )
    for other in others:
        with pytest.raises(ValueError, match="must be"):
            other.load_state_dict(state)


def test_a_group_that_is_only_scored_says_so_on_its_ticket():
    (task,) = make_session().propose(1)
    assert Ticket.of(task).learned and not Ticket.of(replace(task, mode=Mode.UNLEARNED)).learned


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"teacher": "frontal"}, "teacher must be one of frontier, "),
        ({"user": "lexicon"}, "user must be 'rule', 'encoder' or a simulated user, got 'lexicon'"),
        ({"group_size": 1}, "group_size must be a whole number of at least 2"),
        ({"teacher": "fixed", "strictness": 1.5}, r"^teacher\.strictness must be .*, got 1\.5$"),
        ({"max_turns": 0}, "max_turns must be a whole number of at least 1"),
        ({"num_updates": -1}, "num_updates must be a whole number of at least 0"),
    ],
)
def test_wrong_settings_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Session(**settings)


def test_more_held_out_users_than_there_are_are_refused():
    with pytest.raises(ValueError, match=r"num_scenarios must be at most the \d+ of split heldout, got 10000"):
        make_session().heldout(10_000)


@pytest.mark.parametrize(("teacher", "settings"), [("linear", {"num_steps": 5}), ("plr", {"robust": True})])
def test_hosts_that_ask_for_one_task_at_a_time_refuse_some_teachers(teacher, settings):
    with pytest.raises(ValueError, match="takes proposals one by one"):
        Session(teacher, **settings).require_one_by_one()
    make_session().require_one_by_one()


def test_a_host_without_a_loop_may_wait_and_so_may_a_notebook():
    async def answer() -> int:
        return 42

    async def notebook() -> int:
        return wait_for(answer())

    assert wait_for(answer()) == 42 and asyncio.run(notebook()) == 42
