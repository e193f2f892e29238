"""Simulator and teacher: speed of the embedded user, cost of a task, and throughput with users as slow as a language model.

The slow user is the embedded one behind a real HTTP server of this machine that sleeps before each answer: log-normal with a median of
0.15 s and 1.2 s at the 99th percentile, the same for the same turn of the same dialogue. Three ways to play the same dialogues, one after
the other in each round, in replies per second:

- the pool, in which each dialogue advances by itself;
- lockstep: all replies of a turn in one call of each engine, then all users at once, and the next turn when the last has answered;
- serial: users one after the other: lockstep's time in the engines, and for each reply the time of a call, measured on four dialogues.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import NormalDist
from threading import Thread
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.figures import Figures, Settings, dialogues, figure, ratios, repeated
from simulator.dialogue import Dialogue
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario
from simulator.user import Reaction
from simulator.users import make_user
from simulator.world import load_bank

if TYPE_CHECKING:
    from policy.engine.engine import Completion, Request
    from policy.rollout.chat import Chat
    from policy.rollout.dialogue import PlainTask, Rollout
    from policy.rollout.pool import RolloutPool

NUM_GROUPS, GROUP_SIZE = 16, 4
STUDENT = "S2_slow"
"""A toy student that learns at the pace of a training run."""
NUM_DIALOGUES, NUM_SERIAL = 64, 4
"""Dialogues at once, and those that measure a serial call."""
NUM_ENGINES = 2
MEDIAN_S, P99_S = 0.15, 1.2


class TimedUser(RuleUser):
    """The embedded user, with the CPU time of its answers."""

    cpu_s, num_answers = 0.0, 0

    def answer(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer."""
        started = time.process_time()
        reaction = super().answer(dialogue, reply)
        self.cpu_s += time.process_time() - started
        self.num_answers += 1
        return reaction


def measure(settings: Settings) -> Figures:
    """Answers of the embedded user to scripted agents, on one core; other scenarios in every repeat."""

    def rate(number: int) -> float:
        settings.progress(f"repeat {number} of {settings.repeats}")
        user = TimedUser(RuleUserConfig(register=Register.WORLD))
        for _ in dialogues(NUM_GROUPS, GROUP_SIZE, seed=number, user=user):
            pass
        return user.num_answers / user.cpu_s

    return {"simulator.reactions_per_s": figure(repeated(rate, settings.repeats))}


def measure_teacher(settings: Settings) -> Figures:
    """CPU time of the main experiment's teacher: to propose a task and observe its outcome, with a toy student."""
    from curriculum.toy.benchmark import simulate
    from experiments.config import DEFAULT_KINDS

    def cost(seed: int) -> float:
        settings.progress(f"run {seed + 1} of {settings.repeats} with the student {STUDENT}")
        trace = simulate(STUDENT, DEFAULT_KINDS["teacher"], seed=seed)
        return 1e6 * trace.teacher_cpu_s / sum(map(len, trace.tasks))

    return {"teacher.us_per_task": figure(repeated(cost, settings.repeats, warm_ups=0))}


def delay_of(key: str) -> float:
    """Seconds that the user thinks at this turn of this dialogue: log-normal over keys, always the same for one."""
    share = (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") + 0.5) / 2**64
    sigma = math.log(P99_S / MEDIAN_S) / NormalDist().inv_cdf(0.99)
    return MEDIAN_S * math.exp(sigma * NormalDist().inv_cdf(share))


class _Sleeper(BaseHTTPRequestHandler):
    """Answers a GET after the delay of its path."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(delay_of(self.path))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for each answer would be thousands."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 2 * NUM_DIALOGUES
    daemon_threads = True


@contextmanager
def sleeping_server() -> Iterator[str]:
    """A server on loopback for as long as the context lasts; gives its address."""
    server = _Server(("127.0.0.1", 0), _Sleeper)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class SlowUser:
    """The embedded user behind the sleeping server; `seconds` holds the time of its reactions.

    Args:
        one_at_a_time: hears one dialogue at a time.
    """

    def __init__(self, url: str, *, one_at_a_time: bool = False) -> None:
        self._url, self._user = url, make_user("rule", RuleUserConfig())
        self._client: Any = None
        self._turn = asyncio.Semaphore(1 if one_at_a_time else NUM_DIALOGUES)
        self.seconds = 0.0

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """At once."""
        return await self._user.open(scenario, difficulty, seed=seed)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """As the embedded user, when the server has answered."""
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=NUM_DIALOGUES)
            self._client = httpx.AsyncClient(base_url=self._url, limits=limits, timeout=60.0, trust_env=False)
        async with self._turn:
            started = time.perf_counter()
            await self._client.get(f"/{dialogue.scenario.scenario_id}/{dialogue.seed}/{dialogue.num_replies}")
            reaction = await self._user.react(dialogue, reply)
            self.seconds += time.perf_counter() - started
        return reaction

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One way of playing the dialogues of a round."""

    num_replies: int
    seconds: float
    engine_s: float = 0.0
    user_s: float = 0.0

    @property
    def replies_per_s(self) -> float:
        """Over all dialogues."""
        return self.num_replies / self.seconds


def play_by_pool(pool: RolloutPool, tasks: Sequence[PlainTask]) -> Timing:
    """Each dialogue by itself."""
    pool.reset_cache()
    started = time.perf_counter()
    pool.submit(tasks)
    groups = pool.ready(len(tasks))
    seconds = time.perf_counter() - started
    return Timing(num_replies=_num_replies([rollout for group in groups for rollout in group.rollouts]), seconds=seconds)


async def play_in_lockstep(pool: RolloutPool, tasks: Sequence[PlainTask], *, url: str, chat: Chat, one_at_a_time: bool = False) -> Timing:
    """All dialogues turn by turn; users at once, or one after the other."""
    from policy.config import RolloutConfig
    from policy.rollout.dialogue import RolloutContext, roll_out
    from policy.rollout.worker import Lockstep

    engine_s = 0.0

    async def generate_all(requests: Sequence[Request]) -> list[Completion]:
        nonlocal engine_s
        dealt = [list(requests[i::NUM_ENGINES]) for i in range(NUM_ENGINES)]
        started = time.perf_counter()
        answers = list(map(iter, await asyncio.to_thread(pool.generate_all, dealt)))
        engine_s += time.perf_counter() - started
        return [next(answers[i % NUM_ENGINES]) for i in range(len(requests))]

    pool.reset_cache()
    user, bank = SlowUser(url, one_at_a_time=one_at_a_time), load_bank()
    steps, config = Lockstep(generate_all, num_dialogues=len(tasks)), RolloutConfig(num_engines=NUM_ENGINES)

    async def play(task: PlainTask) -> Rollout:
        scenario = bank.scenario(task.scenario_id)
        context = RolloutContext(user=user, generate=steps, chat=chat, config=config)
        rollout = await roll_out(context, scenario, task.difficulty, task.seed)
        steps.leave(rollout)
        return rollout

    started = time.perf_counter()
    rollouts = await asyncio.gather(*map(play, tasks))
    seconds = time.perf_counter() - started
    await user.close()
    return Timing(num_replies=_num_replies(rollouts), seconds=seconds, engine_s=engine_s, user_s=user.seconds)


def serial_replies_per_s(lockstep: Timing, serial: Timing) -> float:
    """Estimate for all dialogues: lockstep's time in the engines, and a call for each reply as in the serial ones."""
    return 1.0 / (lockstep.engine_s / lockstep.num_replies + serial.user_s / serial.num_replies)


def measure_slow(settings: Settings) -> Figures:
    """Ratios round by round."""
    from experiments.benchmarks.rollouts import make_pool, tasks_of_round
    from policy.model import load_tokenizer
    from policy.rollout.chat import Chat

    folder = settings.folder()
    chat = Chat(load_tokenizer(folder))

    def run_round(number: int) -> tuple[float, float, float]:
        settings.progress(f"slow users, round {number} of {settings.repeats}")
        tasks = tasks_of_round(number, NUM_DIALOGUES, 1)
        pooled = play_by_pool(pool, tasks)
        lockstep = asyncio.run(play_in_lockstep(pool, tasks, url=url, chat=chat))
        serial = asyncio.run(play_in_lockstep(pool, tasks[:NUM_SERIAL], url=url, chat=chat, one_at_a_time=True))
        return pooled.replies_per_s, lockstep.replies_per_s, serial_replies_per_s(lockstep, serial)

    with sleeping_server() as url, make_pool(settings, folder, partial(SlowUser, url), num_engines=NUM_ENGINES) as pool:
        pooled, lockstep, serial = zip(*repeated(run_round, settings.repeats), strict=True)
    return {"slow_simulator.vs_serial": ratios(pooled, serial), "slow_simulator.vs_lockstep": ratios(pooled, lockstep)}


def _num_replies(rollouts: Sequence[Rollout]) -> int:
    broken = [rollout.dialogue.error for rollout in rollouts if rollout.dialogue.error]
    if broken:
        raise RuntimeError(f"no dialogue may break in a benchmark, but {len(broken)} did; the first:\n{broken[0]}")
    return sum(rollout.dialogue.num_replies for rollout in rollouts)
