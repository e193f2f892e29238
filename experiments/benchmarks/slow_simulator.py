"""Users that take their time, as a language model does: what it is worth that no dialogue waits for another's user.

The embedded user answers through a real HTTP server of this machine that sleeps before each answer, log-normally with a median of .15 s and
1.2 s at the 99th percentile, and as long for the same turn of the same dialogue whoever asks. Three ways to play the same dialogues:

- the pool, in which each dialogue goes on by itself;
- lockstep turns: all replies of a turn in one call of each engine, then all users at once, and the next turn when the last has answered;
- a loop that calls the users one after the other: lockstep's time in the engines, and for each reply the time that a call took when four
  dialogues were played so.

All in replies per second, one after the other in each round.
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

from experiments.benchmarks.figures import Figures, Settings, ratios
from policy.config import RolloutConfig
from simulator.dialogue import Dialogue
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Difficulty, Scenario
from simulator.user import Reaction, UserSimulator
from simulator.users import make_user
from simulator.world import load_bank

if TYPE_CHECKING:
    from policy.engine.engine import Completion, Request
    from policy.rollout.chat import Chat
    from policy.rollout.dialogue import PlainTask, Rollout
    from policy.rollout.pool import RolloutPool

NUM_DIALOGUES = 64
"""At once."""
NUM_SERIAL = 4
"""Dialogues by which the loop is judged."""
NUM_ENGINES = 2
MEDIAN_S, P99_S = 0.15, 1.2


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
    """The embedded user behind the server."""

    def __init__(self, url: str) -> None:
        self._url, self._user = url, make_user("rule", RuleUserConfig())
        self._client: Any = None

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """At once."""
        return await self._user.open(scenario, difficulty, seed=seed)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """As the embedded user does, when the server has answered."""
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=NUM_DIALOGUES)
            self._client = httpx.AsyncClient(base_url=self._url, limits=limits, timeout=60.0, trust_env=False)
        await self._client.get(f"/{dialogue.scenario.scenario_id}/{dialogue.seed}/{dialogue.num_replies}")
        return await self._user.react(dialogue, reply)

    async def close(self) -> None:
        """Lets go of the server."""
        if self._client is not None:
            await self._client.aclose()


class OneAtATime:
    """A user that hears one dialogue at a time, and the seconds it took to."""

    def __init__(self, user: UserSimulator) -> None:
        self._user, self._turn, self.seconds, self.num_replies = user, asyncio.Lock(), 0.0, 0

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """As the user does."""
        return await self._user.open(scenario, difficulty, seed=seed)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """As the user does, after those who came before."""
        async with self._turn:
            started = time.perf_counter()
            reaction = await self._user.react(dialogue, reply)
            self.seconds, self.num_replies = self.seconds + time.perf_counter() - started, self.num_replies + 1
        return reaction


@dataclass(frozen=True, kw_only=True)
class Played:
    """One way of playing the dialogues of a round."""

    num_replies: int
    seconds: float
    engine_s: float = 0.0
    user_s: float = 0.0

    @property
    def replies_per_s(self) -> float:
        """Over all dialogues."""
        return self.num_replies / self.seconds


def play_by_pool(pool: RolloutPool, tasks: Sequence[PlainTask]) -> Played:
    """Each dialogue by itself."""
    pool.reset_cache()
    started = time.perf_counter()
    pool.submit(tasks)
    groups = pool.ready(len(tasks))
    seconds = time.perf_counter() - started
    return Played(num_replies=_replies([rollout for group in groups for rollout in group.rollouts]), seconds=seconds)


async def play_in_lockstep(pool: RolloutPool, tasks: Sequence[PlainTask], *, url: str, chat: Chat, one_at_a_time: bool = False) -> Played:
    """All dialogues turn by turn; users at once, or one after the other."""
    from policy.rollout.dialogue import roll_out
    from policy.rollout.worker import Lockstep

    engine_s = 0.0

    async def generate_all(requests: Sequence[Request]) -> list[Completion]:
        nonlocal engine_s
        dealt = [list(requests[i::NUM_ENGINES]) for i in range(NUM_ENGINES)]
        asked = time.perf_counter()
        answers = list(map(iter, await asyncio.to_thread(pool.generate_all, dealt)))
        engine_s += time.perf_counter() - asked
        return [next(answers[i % NUM_ENGINES]) for i in range(len(requests))]

    pool.reset_cache()
    slow, bank = SlowUser(url), load_bank()
    user, steps = OneAtATime(slow) if one_at_a_time else slow, Lockstep(generate_all, num_dialogues=len(tasks))

    async def play(task: PlainTask) -> Rollout:
        scenario, config = bank.scenario(task.scenario_id), RolloutConfig(num_engines=NUM_ENGINES)
        rollout = await roll_out(scenario, task.difficulty, task.seed, user=user, generate=steps, chat=chat, config=config)
        steps.leave(rollout)
        return rollout

    started = time.perf_counter()
    rollouts = await asyncio.gather(*map(play, tasks))
    seconds = time.perf_counter() - started
    await slow.close()
    user_s = user.seconds if isinstance(user, OneAtATime) else 0.0
    return Played(num_replies=_replies(rollouts), seconds=seconds, engine_s=engine_s, user_s=user_s)


def serial_replies_per_s(lockstep: Played, serial: Played) -> float:
    """What the loop would do with all dialogues: lockstep's time in the engines, and a call for each reply as in the four."""
    return 1.0 / (lockstep.engine_s / lockstep.num_replies + serial.user_s / serial.num_replies)


def measure(settings: Settings) -> Figures:
    """Ratios round by round, after one round that does not count."""
    from experiments.benchmarks.rollouts import tasks_of_round
    from policy.config import EngineConfig
    from policy.model import load_tokenizer
    from policy.rollout.chat import Chat
    from policy.rollout.pool import RolloutPool

    folder = settings.folder()
    chat, pooled, lockstep, serial = Chat(load_tokenizer(folder)), [], [], []
    config = RolloutConfig(num_engines=NUM_ENGINES, threads_per_engine=settings.threads)
    engine_config = EngineConfig(engine=settings.engine)
    with (
        sleeping_server() as url,
        RolloutPool(config, engine_config, model_folder=folder, user_factory=partial(SlowUser, url), scenarios=load_bank, seed=0) as pool,
    ):
        for round_ in range(settings.repeats + 1):
            settings.progress(f"slow users, round {round_} of {settings.repeats}")
            tasks = tasks_of_round(NUM_DIALOGUES, 1, round_)
            by_pool = play_by_pool(pool, tasks)
            in_lockstep = asyncio.run(play_in_lockstep(pool, tasks, url=url, chat=chat))
            four = asyncio.run(play_in_lockstep(pool, tasks[:NUM_SERIAL], url=url, chat=chat, one_at_a_time=True))
            if round_ > 0:
                pooled.append(by_pool.replies_per_s)
                lockstep.append(in_lockstep.replies_per_s)
                serial.append(serial_replies_per_s(in_lockstep, four))
    return {"slow_simulator.vs_serial": ratios(pooled, serial), "slow_simulator.vs_lockstep": ratios(pooled, lockstep)}


def _replies(rollouts: Sequence[Rollout]) -> int:
    broken = [rollout.dialogue.error for rollout in rollouts if rollout.dialogue.error]
    if broken:
        raise RuntimeError(f"no dialogue may break in a benchmark, but {len(broken)} did; the first:\n{broken[0]}")
    return sum(rollout.dialogue.num_replies for rollout in rollouts)
