"""A user that goes away: who waits, for how long, who asks meanwhile, and that a failure about one question is not waited for."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket

import pytest

from policy.rollout.outage import Outage, PatientUser
from simulator.dialogue import Dialogue, Reaction, Speaker, Turn
from simulator.llm.client import SimulatorAwayError, SimulatorError
from simulator.scenario import VANILLA, Split
from simulator.world import load_bank

SCENARIO = load_bank().scenarios(Split.TRAIN)[0]


class Time:
    """A clock that moves when all tasks sleep, to the first that wakes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleeping: list[tuple[float, int, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleeping.append((self.now + seconds, len(self._sleeping), woken))
        await woken.wait()

    async def run(self, *questions):
        tasks = [asyncio.create_task(question) for question in questions]
        while not all(task.done() for task in tasks):
            for _ in range(50):
                await asyncio.sleep(0)
            if self._sleeping:
                first = min(self._sleeping, key=lambda entry: entry[:2])
                self._sleeping.remove(first)
                self.now = max(self.now, first[0])
                first[2].set()
        return [task.exception() or task.result() for task in tasks]


class AwayUser:
    """Answers no question before `back_at`, and never one that says `stupid`."""

    def __init__(self, time: Time, *, back_at: float, error: Exception | None = None) -> None:
        self.time, self.back_at, self.error = time, back_at, error or ConnectionRefusedError("not there")
        self.asked_at: list[float] = []

    async def open(self, scenario, difficulty, *, seed: int) -> Dialogue:
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed).then(Turn(speaker=Speaker.USER, text="hello", emotion=40))

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        self.asked_at.append(self.time())
        if self.time() < self.back_at or reply == "stupid":
            raise self.error
        return Reaction(turn=Turn(speaker=Speaker.USER, text="well", emotion=42, change=2))


def ask(*replies: str, back_at: float, longest_s: float = 120.0, error: Exception | None = None):
    """What each reply got, the user, the outage, and the clock at the end."""
    time = Time()
    user, outage = AwayUser(time, back_at=back_at, error=error), Outage(longest_s, clock=time, sleep=time.sleep)
    patient = PatientUser(user, outage)

    async def run():
        dialogue = await patient.open(SCENARIO, VANILLA, seed=0)
        time.now = 1.0
        return await time.run(*(patient.react(dialogue, reply) for reply in replies))

    return asyncio.run(run()), user, outage, time()


AWAY = [SimulatorAwayError("HTTP 500 five times"), socket.gaierror("no such name"), OSError(errno.EHOSTUNREACH, "no route")]


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_an_outage_is_waited_out_with_one_probe_at_a_time_ever_more_rarely(error):
    found, user, outage, now = ask(*["hi"] * 20, back_at=61.0, error=error)
    assert all(isinstance(reaction, Reaction) for reaction in found)
    assert 61.0 <= now <= 61.0 + Outage.LONGEST_PAUSE_S and outage.paused_s == pytest.approx(now - 1.0, abs=Outage.LONGEST_PAUSE_S)
    probes = [moment for moment in user.asked_at if 1.0 < moment < 61.0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert len(probes) <= 12 and gaps == sorted(gaps) and max(gaps) == Outage.LONGEST_PAUSE_S


def talk_at(user: AwayUser, *moments: float):
    """What dialogues of one reply that begin at these moments got, the outage, and the clock at the end."""
    time, outage = user.time, Outage(120.0, clock=user.time, sleep=user.time.sleep)

    async def talk(starts_at: float):
        patient = PatientUser(user, outage)
        await time.sleep(starts_at)
        return await patient.react(await patient.open(SCENARIO, VANILLA, seed=0), "hi")

    return asyncio.run(time.run(*map(talk, moments))), outage, time()


def test_openings_do_not_end_an_outage():
    found, _, now = talk_at(AwayUser(Time(), back_at=30.0), 0.5, 3.0, 6.0, 12.0)
    assert all(isinstance(reaction, Reaction) for reaction in found)
    assert 30.0 <= now <= 30.0 + Outage.LONGEST_PAUSE_S


def test_a_long_outage_fails_every_question_after_the_longest_wait():
    found, _, _, now = ask(*["hi"] * 5, back_at=1e9, longest_s=30.0)
    assert all(isinstance(error, ConnectionRefusedError) for error in found)
    assert 31.0 <= now <= 31.0 + Outage.LONGEST_PAUSE_S


def test_a_failure_about_one_question_is_not_waited_for_while_others_are_answered():
    found, _, outage, now = ask("stupid", "hi", "hi", back_at=0.0)
    assert [type(answer) for answer in found] == [ConnectionRefusedError, Reaction, Reaction]
    assert now < 2.0 + PatientUser.ALONE_S and outage.paused_s < 1.0  # once the others are done, no question is left to be answered


class BusyUser(AwayUser):
    """Answers after a while, but no question that waits when it goes away or comes while it is away."""

    def __init__(self, time: Time, *, away: tuple[tuple[float, float], ...] = (), each_s: float = 0.2) -> None:
        super().__init__(time, back_at=0.0)
        self.away, self.each_s = away, each_s

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        began = self.time()
        if reply == "stupid":
            self.asked_at.append(began)
            await self.time.sleep(0.02)
            raise self.error
        await self.time.sleep(self.each_s)
        if any(began < end and self.time() >= start for start, end in self.away):
            raise self.error
        return Reaction(turn=Turn(speaker=Speaker.USER, text="well", emotion=42, change=2))


def steady_traffic(user: BusyUser, *, num_dialogues: int, stupid: frozenset[int] = frozenset()):
    """What dialogues of twelve replies got, some of them of replies at fault, and the outage."""
    time, outage = user.time, Outage(120.0, clock=user.time, sleep=user.time.sleep)

    async def talk(number: int):
        patient = PatientUser(user, outage)
        await time.sleep(0.013 * number)
        dialogue = await patient.open(SCENARIO, VANILLA, seed=0)
        return [await patient.react(dialogue, "stupid" if number in stupid else "hi") for _ in range(12)]

    return asyncio.run(time.run(*(talk(number) for number in range(num_dialogues)))), outage


@pytest.mark.parametrize("away", [((2.0, 40.0),), ((2.0, 40.0), (41.0, 60.0), (60.5, 61.0))], ids=["once", "and again"])
def test_in_steady_traffic_no_dialogue_is_lost_to_an_outage(away):
    found, outage = steady_traffic(BusyUser(Time(), away=away), num_dialogues=16)
    assert all(isinstance(talks, list) and len(talks) == 12 for talks in found)
    assert outage.num_failing == 0 and outage.paused_s >= 38.0


@pytest.mark.parametrize(("each_s", "stupid", "most"), [(0.2, {3}, 4), (5.0, {3, 5}, 20)], ids=["one", "two, slow answers"])
def test_questions_that_fail_by_themselves_among_steady_traffic_are_asked_a_few_times_and_given_up(each_s, stupid, most):
    user = BusyUser(Time(), each_s=each_s)
    found, outage = steady_traffic(user, num_dialogues=8, stupid=frozenset(stupid))
    assert {number for number, talks in enumerate(found) if not isinstance(talks, list)} == stupid
    assert len(user.asked_at) <= most and outage.num_failing == 0
    assert user.time() < 13 * each_s + 4.0 and outage.paused_s < 2.0 * each_s + 2.0


@pytest.mark.parametrize("back_at", [1.2, 0.5 + PatientUser.ALONE_S])
def test_a_question_that_is_alone_when_the_user_goes_away_waits_for_it(back_at):
    """The first is answered just before the user goes away, and then no other is asked that could decide between the two causes."""
    found, outage, now = talk_at(BusyUser(Time(), away=((1.0, back_at),)), 0.79, 0.95)
    assert all(isinstance(reaction, Reaction) for reaction in found)
    assert back_at <= now <= back_at + Outage.LONGEST_PAUSE_S and outage.num_failing == 0


def test_a_question_that_fails_for_long_and_alone_counts():
    found, outage, now = talk_at(BusyUser(Time(), away=((1.0, 1e9),)), 0.79, 0.95)
    assert [type(answer) for answer in found] == [Reaction, ConnectionRefusedError]
    assert 5.0 < now < 2.0 + PatientUser.ALONE_S and not outage.is_on and outage.num_failing == 0


@pytest.mark.parametrize("error", [SimulatorError("the request must be taken"), OSError(errno.ENOSPC, "no space left")], ids=repr)
def test_an_error_about_the_dialogue_is_raised_at_once(error):
    found, user, _, now = ask("hi", back_at=50.0, error=error)
    assert found == [error] and user.asked_at == [1.0] and now == 1.0
