"""Several servers as one: the load spread, failures retried within bounds, answers kept, and the same question never paid for twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from simulator.answers import Answers, answers_folder, key_of
from simulator.asking import Unusable, whole_text
from simulator.endpoint import OF_THE_SERVER, Away, Passing, Question, RateLimited, Refused, Server, body_of, is_client_installed
from simulator.endpoint_config import EndpointConfig
from simulator.in_line import UnderWay
from simulator.retrying import RetryBudget, backoff_s

log = logging.getLogger(__name__)

T = TypeVar("T")

COUNTS = ("calls", "cache_hits", "retries", "rate_limited", "unusable", "failures", "prompt_tokens", "completion_tokens", "cost")
"""What is counted; everything only grows."""
FEW_TOKENS = 16
SHORTEST_HOLD_S = 0.05
NUM_SEEDS = 2**31
WARMER_BY = 0.3
"""What each further attempt adds to a temperature of 0 after an answer that could not be used: at 0 a seed changes nothing."""
MOST_WARMTH = 1.0


class SimulatorError(RuntimeError):
    """The model that plays the user gave no usable answer; such a dialogue is an ERROR and has no score."""


class SimulatorAwayError(SimulatorError):
    """It gave none because its servers fail at whatever they are asked, or do not answer: the question may be asked again later."""


class Endpoints:
    """Asks any of the servers and gives back what could be read; one object for each process.

    Building it calls nobody. It works on whichever event loop asks, and what it counts goes on over all of them.

    Args:
        rng: decides how far pauses are spread, and nothing else.

    Raises:
        ValueError: the key's environment variable is not set.
    """

    def __init__(self, config: EndpointConfig, *, rng: random.Random | None = None) -> None:
        self.config = config
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)
        self._key = config.key()
        self._rng = rng or random.Random()
        self._answers = Answers(answers_folder(config.cache))
        self._budget = RetryBudget(config.retry_share)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: list[Server] = []
        self._under_way: dict[str, UnderWay] = {}
        self._may_keep = True

    async def ask(self, question: Question, read: Callable[[str], T]) -> T:
        """The answer to a question: from the disk if it was ever given, and sent once if it is asked twice at a time.

        Args:
            read: turns the text into what it says, or raises Unusable; the question is asked again then, with another seed, and warmer
                where the temperature is 0.

        Raises:
            SimulatorError: no usable answer after all retries and waiting; SimulatorAwayError where that says nothing about the question.
        """
        self._settle()
        key = key_of(body_of(question, self.config))
        kept = self._answers.find(key)
        if kept is not None:
            try:
                found = read(whole_text(kept))
            except Unusable:
                self._answers.forget(key)
            else:
                self.counts["cache_hits"] += 1
                return found
        asked = self._under_way.get(key)
        if asked is None or asked.task.cancelled():
            asked = self._under_way[key] = UnderWay()
            asked.task = asyncio.get_running_loop().create_task(self._answer(key, question, read, asked))
            asked.task.add_done_callback(lambda done: self._finished(key, asked, done))
        else:
            self.counts["cache_hits"] += 1
        try:
            with asked.awaited():
                # Whoever else waits for the same answer still gets it when this caller is cancelled.
                return await asyncio.shield(asked.task)
        finally:
            if asked.may_be_dropped:
                self._forget(key, asked)
                asked.task.cancel()

    async def check(self) -> None:
        """Asks every server for a few tokens.

        Raises:
            ValueError: one does not answer, refuses the key, or does not take the model or the settings.
        """
        self._settle()
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
        question = Question(name="check", messages=(("user", 'Answer {"ok": true} as JSON.'),), schema=schema, seed=0)
        body = {**body_of(question, self.config), self.config.token_limit.value: FEW_TOKENS}
        for server in self._servers:
            try:
                await server.ask(body)
            except (RateLimited, Unusable):
                continue  # it is there and takes the key; whether its answers are of use shows in the first dialogue
            except Refused as error:
                raise ValueError(await self._refusal(server, error)) from None
            except Passing as error:
                raise ValueError(f"simulator.urls must name servers that answer, got {server.url!r}: {error}") from None

    async def close(self) -> None:
        """Closes the connections; the next question opens them again."""
        for server in self._servers:
            await server.close()
        self._loop, self._servers = None, []

    def _settle(self) -> None:
        """Connects on the running loop: connections and semaphores belong to one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._servers = [Server(url, self.config, key=self._key, counts=self.counts) for url in self.config.urls]
            self._loop, self._under_way = loop, {}

    def _finished(self, key: str, asked: UnderWay, task: asyncio.Task[Any]) -> None:
        self._forget(key, asked)
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains when all who asked were cancelled

    def _forget(self, key: str, asked: UnderWay) -> None:
        if self._under_way.get(key) is asked:
            del self._under_way[key]

    async def _answer(self, key: str, question: Question, read: Callable[[str], T], asked: UnderWay) -> T:
        try:
            text, value = await self._insist(question, read, asked)
        except SimulatorError:
            self.counts["failures"] += 1
            raise
        try:
            kept = self._answers.keep(key, text) if self._may_keep else text
        except OSError as error:
            self._may_keep = False
            log.warning("answers of the simulated user are no longer kept on disk: %s", error)
            return value
        return value if kept == text else read(kept)

    async def _insist(self, question: Question, read: Callable[[str], T], asked: UnderWay) -> tuple[str, T]:
        """Asks until there is a usable answer or patience ends.

        A server that is away or limits the rate costs waiting, of which there is `max_wait_s`; a request that was looked at and failed
        costs an attempt, of which there are `retries` more. A server that refuses it is not asked again, but the others are.
        """
        body = body_of(question, self.config)
        is_greedy = body.get("temperature") == 0
        num_failures, num_unusable, waited_s = 0, 0, 0.0
        avoid: Server | None = None
        refused: dict[Server, Refused] = {}
        while True:
            if asked.may_be_dropped:
                raise asyncio.CancelledError
            server, wait_s = self._choose(avoid, never=refused)
            if server is None:
                self._refuse_hopeless(refused)
                waited_s = await self._pause(wait_s, waited_s)
                continue
            try:
                text = await self._ask(server, body, asked, may_be_cut=question.may_be_cut)
                if text is None:
                    continue
                value = read(text)
            except Away as error:
                self.counts["retries"] += 1
                server.complaint, avoid = str(error), server
                waited_s = await self._leave_alone(server, error, waited_s)
                continue
            except Refused as error:
                server.complaint, refused[server] = str(error), error
                if server.refuses and len(self._servers) > 1:
                    server.hold(self.config.circuit_pause_s)
                continue
            except (Passing, Unusable) as error:
                failure = error
            else:
                server.num_away = 0
                self._budget.earn()
                return text, value
            server.complaint, avoid = server.clean(str(failure)), server
            num_failures += 1
            if isinstance(failure, Unusable):
                self.counts["unusable"] += 1
                num_unusable += 1
                if "seed" in body:
                    body["seed"] = (body["seed"] + 1) % NUM_SEEDS
                if is_greedy:
                    body["temperature"] = min(MOST_WARMTH, round(WARMER_BY * num_unusable, 6))
            given_up = SimulatorAwayError if isinstance(failure, Passing) else SimulatorError
            self._require_retry(num_failures, server, given_up)
            waited_s = await self._pause(self._backoff_s(num_failures), waited_s, given_up)

    async def _ask(self, server: Server, body: dict[str, Any], asked: UnderWay, *, may_be_cut: bool) -> str | None:
        """An answer's text; None if the server went away while others were served there first."""
        server.load += 1
        clock = asyncio.get_running_loop().time
        try:
            with asked.in_line():
                await server.places.acquire()
            try:
                asked_at = clock()
                if server.wait_s() > 0.0:
                    return None
                with asked.sent():
                    return await server.ask(body, may_be_cut=may_be_cut)
            finally:
                server.places.release()
        except Away as error:
            error.asked_at = asked_at
            raise
        finally:
            server.load -= 1

    def _choose(self, avoid: Server | None, *, never: Collection[Server]) -> tuple[Server | None, float]:
        """The least loaded server that may be asked, another than `avoid` if there is one; or how long until there is."""
        waits = {server: server.wait_s() for server in self._servers if server not in never}
        free = [server for server, wait_s in waits.items() if wait_s <= 0.0]
        if not free:
            return None, min(waits.values(), default=0.0)
        return min([server for server in free if server is not avoid] or free, key=lambda server: server.load), 0.0

    def _refuse_hopeless(self, refused: Mapping[Server, Refused]) -> None:
        """Raises where no server is free and waiting is useless.

        Raises:
            SimulatorError: one refused the question itself, every server refused it, or every server now refuses whatever it is asked. A
                server that is merely away is still waited for, even if the others refuse the key.
        """
        everywhere = len(refused) == len(self._servers)
        for server, error in refused.items():
            if everywhere or error.status not in OF_THE_SERVER:
                raise SimulatorError(f"{server.url} must take the request: {error}")
        if all(server.refuses for server in self._servers):
            raise SimulatorError(f"{self._servers[-1].url} must take the request: {self._servers[-1].refuses}")

    async def _leave_alone(self, server: Server, error: Away, waited_s: float) -> float:
        """Does as the server asked, or waits a little before anybody is asked; returns how long the question has waited in all.

        The call counts as waiting, and the time before it, for a place, does not: others were served then.
        """
        waited_s += asyncio.get_running_loop().time() - error.asked_at
        server.count_away(error)
        # One that had begun before a later call succeeded is not counted, and still waits.
        pause_s = self._backoff_s(max(server.num_away, 1))
        if error.retry_after_s is None and not isinstance(error, RateLimited):
            return await self._pause(pause_s, waited_s)
        server.hold(max(pause_s if error.retry_after_s is None else error.retry_after_s, SHORTEST_HOLD_S))
        return waited_s

    def _require_retry(self, num_failures: int, server: Server, error: type[SimulatorError]) -> None:
        """Counts one more attempt, or raises the error when there is none left."""
        config = self.config
        if num_failures > config.retries:
            last = f"the last, at {server.url}: {server.complaint}"
            raise error(f"the simulated user must answer within simulator.retries={config.retries} retries; {last}")
        if not self._budget.spend():
            last = f"{server.url}: {server.complaint}"
            raise error(f"retries must stay within simulator.retry_share={config.retry_share:g} of successes; {last}")
        self.counts["retries"] += 1

    async def _pause(self, seconds: float, waited_s: float, error: type[SimulatorError] = SimulatorAwayError) -> float:
        """Waits, spread out a little; returns how long the question has waited in all.

        Raises:
            SimulatorError: that would be longer than a question may wait; of the type `error`.
        """
        if waited_s + seconds > self.config.max_wait_s:
            complaints = "; ".join(f"{server.url}: {server.complaint}" for server in self._servers if server.complaint)
            raise error(f"a server must be ready within simulator.max_wait_s={self.config.max_wait_s:g} s; {complaints}")
        seconds *= self._rng.uniform(1.0, 1.1)
        await asyncio.sleep(seconds)
        return waited_s + seconds

    def _backoff_s(self, failures: int) -> float:
        return backoff_s(failures, first_s=self.config.first_backoff_s, longest_s=self.config.max_backoff_s, rng=self._rng)

    async def _refusal(self, server: Server, error: Refused) -> str:
        """The sentence for a request that a server will never take."""
        config = self.config
        if error.status in (401, 403):
            got = repr(config.api_key_env) if config.api_key_env else "'', so that none was sent"
            return f"simulator.api_key_env must name a variable whose key {server.url} accepts, got {got}: {error}"
        if error.status == 404:
            served = await server.models()
            if served and config.model not in served:
                return f"simulator.model must be one that {server.url} serves ({', '.join(served)}), got {config.model!r}"
            return f"simulator.urls must be base addresses, such as http://127.0.0.1:8000/v1, got {server.url!r}: {error}"
        return f"simulator.* must be settings that {server.url} takes: {error}"


def check_endpoints(config: EndpointConfig) -> None:
    """Refuses servers that cannot be worked with, before anything is started.

    Raises:
        ValueError: the client is not installed, the key is not set, or a server does not answer or refuses; the sentence says which.
    """
    if not is_client_installed():
        raise ValueError("simulator.kind must be another where the openai client is not installed, got 'llm'; pip install openai")

    async def check() -> None:
        endpoints = Endpoints(config)
        try:
            await endpoints.check()
        finally:
            await endpoints.close()

    asyncio.run(check())
