"""Simulator and teacher: speed of the embedded user, cost of a task, and throughput with users as slow as a language model.

A slow user is the embedded one that waits before each answer: log-normal with a median of 0.15 s and 1.2 s at the 99th percentile, the
same for the same turn of the same dialogue. Three ways to play the same dialogues, in turn in each round, in replies per second:

- the pool, in which each dialogue advances by itself;
- lockstep: all replies of a turn in one call of each engine, then all users at once, and the next turn when the last has answered;
- serial: users one after the other: lockstep's time in the engines, and for each reply the time of a call, measured on four dialogues.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from experiments.benchmarks.figures import Figure, Figures, Settings, dialogues, repeated, tasks_of_round
from simulator.dialogue import Dialogue, Reaction
from simulator.listener import Register
from simulator.reading import Reading
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario
from simulator.user import make_user
from simulator.world import load_bank

if TYPE_CHECKING:
    from curriculum.task import TaskSpec
    from policy.engine.engine import Completion, Request
    from policy.rollout.dialogue import Rollout
    from policy.rollout.pool import RolloutPool
    from simulator.tokens import Chat

NUM_DIALOGUES, NUM_SERIAL, NUM_ENGINES = 64, 4, 2
"""Of slow users: dialogues at once, those that measure a serial call, and engines."""


class TimedUser(RuleUser):
    """The embedded user, with the CPU time of its answers."""

    cpu_s, num_answers = 0.0, 0

    def answer(self, dialogue: Dialogue, reply: str, reading: Reading | None = None) -> Reaction:
        started = time.process_time()
        reaction = super().answer(dialogue, reply, reading)
        self.cpu_s += time.process_time() - started
        self.num_answers += 1
        return reaction


def measure(settings: Settings) -> Figures:
    """Answers of the embedded user to scripted agents, on one core; other scenarios in every repeat."""

    def rate(number: int) -> float:
        user = TimedUser(RuleUserConfig(register=Register.WORLD))
        list(dialogues(16, 4, seed=number, user=user))
        return user.num_answers / user.cpu_s

    return {"simulator.reactions_per_s": Figure.of(repeated(rate, settings.repeats))}


def measure_teacher(settings: Settings) -> Figures:
    """CPU time of the main experiment's teacher to propose a task and observe its outcome, with a toy student as slow as a training run."""
    from curriculum.toy.benchmark import simulate
    from experiments.config import DEFAULT_KINDS

    def cost(seed: int) -> float:
        trace = simulate("S2_slow", DEFAULT_KINDS["teacher"], seed=seed)
        return 1e6 * trace.teacher_cpu_s / sum(map(len, trace.tasks))

    return {"teacher.us_per_task": Figure.of(repeated(cost, settings.repeats, warm_ups=0))}


def delay_of(key: str, *, median_s: float = 0.15, p99_s: float = 1.2) -> float:
    """Seconds that the user thinks at this turn of this dialogue: log-normal over keys, always the same for one."""
    share = (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") + 0.5) / 2**64
    sigma = math.log(p99_s / median_s) / NormalDist().inv_cdf(0.99)
    return median_s * math.exp(sigma * NormalDist().inv_cdf(share))


class SlowUser:
    """The embedded user as slow as a language model; `seconds` holds the time of its reactions."""

    def __init__(self, *, one_at_a_time: bool = False) -> None:
        self._user, self._turn = make_user("rule", RuleUserConfig()), asyncio.Semaphore(1 if one_at_a_time else NUM_DIALOGUES)
        self.seconds = 0.0

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        return await self._user.open(scenario, difficulty, seed=seed)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        async with self._turn:
            started = time.perf_counter()
            await asyncio.sleep(delay_of(f"/{dialogue.scenario.scenario_id}/{dialogue.seed}/{dialogue.num_replies}"))
            reaction = await self._user.react(dialogue, reply)
            self.seconds += time.perf_counter() - started
        return reaction


def measure_slow(settings: Settings) -> Figures:
    """Ratios round by round."""
    from experiments.benchmarks.rollouts import make_pool
    from policy.model import load_tokenizer
    from simulator.tokens import Chat

    folder = settings.folder()
    chat = Chat(load_tokenizer(folder))

    def run_round(number: int) -> tuple[float, float, float]:
        tasks = tasks_of_round(number, NUM_DIALOGUES, 1)
        pool.reset_cache()
        started = time.perf_counter()
        pool.submit(tasks)
        groups = pool.ready(len(tasks))
        pooled_s = time.perf_counter() - started
        num_pooled = num_replies([rollout for group in groups for rollout in group.rollouts])
        num_lockstep, lockstep_s, engine_s, _ = asyncio.run(play_in_lockstep(pool, tasks, chat=chat))
        num_serial, _, _, user_s = asyncio.run(play_in_lockstep(pool, tasks[:NUM_SERIAL], chat=chat, one_at_a_time=True))
        return num_pooled / pooled_s, num_lockstep / lockstep_s, 1.0 / (engine_s / num_lockstep + user_s / num_serial)

    with make_pool(settings, folder, SlowUser, num_engines=NUM_ENGINES) as pool:
        pooled, lockstep, serial = zip(*repeated(run_round, settings.repeats), strict=True)
    return {"slow_simulator.vs_serial": Figure.ratio(pooled, serial), "slow_simulator.vs_lockstep": Figure.ratio(pooled, lockstep)}


async def play_in_lockstep(
    pool: RolloutPool, tasks: Sequence[TaskSpec], *, chat: Chat, one_at_a_time: bool = False
) -> tuple[int, float, float, float]:
    """Plays all dialogues turn by turn; returns replies, and seconds: of the whole, in the engines, of the users' reactions."""
    from policy.config import RolloutConfig
    from policy.rollout.dialogue import RolloutContext, roll_out
    from policy.rollout.worker import Lockstep

    engine_s = 0.0

    async def generate_all(requests: Sequence[Request]) -> list[Completion]:
        nonlocal engine_s
        started = time.perf_counter()
        dealt = [list(requests[i::NUM_ENGINES]) for i in range(NUM_ENGINES)]
        answers = list(map(iter, await asyncio.to_thread(pool.generate_all, dealt)))
        engine_s += time.perf_counter() - started
        return [next(answers[i % NUM_ENGINES]) for i in range(len(requests))]

    user, bank = SlowUser(one_at_a_time=one_at_a_time), load_bank()
    steps, config = Lockstep(generate_all, num_dialogues=len(tasks)), RolloutConfig(num_engines=NUM_ENGINES)

    async def play(task: TaskSpec) -> Rollout:
        context = RolloutContext(user=user, generate=steps, chat=chat, config=config)
        rollout = await roll_out(context, bank.scenario(task.scenario_id), task.difficulty, task.seed)
        steps.leave(rollout)
        return rollout

    pool.reset_cache()
    started = time.perf_counter()
    rollouts = await asyncio.gather(*map(play, tasks))
    return num_replies(rollouts), time.perf_counter() - started, engine_s, user.seconds


def num_replies(rollouts: Sequence[Rollout]) -> int:
    """Replies in rollouts, none of which may have broken."""
    if broken := [rollout.dialogue.error for rollout in rollouts if rollout.dialogue.error]:
        raise RuntimeError(f"no dialogue may break in a benchmark, but {len(broken)} did; the first:\n{broken[0]}")
    return sum(rollout.dialogue.num_replies for rollout in rollouts)
