"""The client of the servers that play the user: OpenAI-compatible, with retries, failover, and answers kept on disk."""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import importlib.util
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from simulator.llm.clock import queued
from simulator.llm.config import AnswerFormat, EndpointConfig, hide
from simulator.llm.prompts import Messages, Schema, Unusable, whole_text

if TYPE_CHECKING:
    from tenacity import RetryCallState

COUNTS = ("calls", "cache_hits", "retries", "rate_limited", "unusable", "failures", "prompt_tokens", "completion_tokens", "cost")
"""Counts of usage; all only grow."""
FIRST_RETRIES = 10.0
"""Retries in stock before any success."""
OF_THE_SERVER = (401, 403, 404)
"""Statuses with which a server refuses every question: another key, another model."""
RAN_OUT = re.compile(r"max_tokens or model output limit was reached", re.IGNORECASE)
"""Message of HTTP 400 when a reasoning model spent the tokens of an answer on its thoughts."""
CUT_OFF = "the answer was cut off; raise simulator.max_tokens"
FEW_TOKENS = 16
NUM_SEEDS = 2**31
WARMER_BY, WARMEST = 0.3, 1.0
"""Added to a temperature of 0 for each unusable answer, and its limit: at 0 a seed changes nothing."""
MAX_QUOTED, MAX_READ = 200, 8000
"""Characters of a server's message that an error repeats, and that are searched for it."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class SimulatorError(RuntimeError):
    """The model that plays the user gave no usable answer; such a dialogue is an ERROR and has no score."""


class SimulatorAwayError(SimulatorError):
    """Its servers fail at every question, or do not answer: the question may be asked again later."""


class Failed(Exception):
    """No answer; the same request may succeed later."""


class Away(Failed):
    """The server is away or limits the rate, which does not count as an attempt.

    Args:
        retry_after_s: how long the server asks to be left alone; None when it does not say.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The server will refuse the same request again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question to the model."""

    name: str
    """Of the schema: letters and underscores."""
    messages: Messages
    schema: Schema
    seed: int
    """In [0, 2^31)."""
    may_be_cut: bool = False
    """An answer that ran out of tokens counts: words do, JSON does not."""

    def body(self, config: EndpointConfig) -> dict[str, Any]:
        """The request: everything that an answer depends on."""
        body: dict[str, Any] = {
            "model": config.model,
            "messages": [{"role": role, "content": content} for role, content in self.messages],
            config.token_limit.value: config.max_tokens,
        }
        if config.temperature is not None:
            body["temperature"] = config.temperature
        if config.send_seed:
            body["seed"] = self.seed
        if config.answer_format is AnswerFormat.JSON_SCHEMA:
            schema = {"name": self.name, "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif config.answer_format is AnswerFormat.JSON_OBJECT:
            body["response_format"] = {"type": "json_object"}
        return {**body, **config.extra()}


class Server:
    """One server on the running event loop.

    Args:
        counts: `calls`, `rate_limited`, tokens and `cost` are added up here.
    """

    def __init__(self, url: str, config: EndpointConfig, *, key: str, counts: dict[str, float]) -> None:
        from openai import AsyncOpenAI

        self.url = url
        self.places = asyncio.Semaphore(config.concurrency)
        self.complaint = ""
        """Its last failure."""
        self.takes_none = False
        """Its last call was refused as any other would be, for want of a key or a model."""
        self._failures = 0
        self._back_at = 0.0
        self._config, self._key, self._counts = config, key, counts
        # The client would send the content of these variables (keys, an organisation, headers) to any server.
        hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith("OPENAI_")}
        try:
            self.client = AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, timeout=config.timeout_s)
        finally:
            os.environ.update(hidden)

    def away_s(self) -> float:
        """Seconds for which it is still left alone."""
        return max(0.0, self._back_at - time.monotonic())

    async def ask(self, body: Mapping[str, Any], *, may_be_cut: bool = False) -> str:
        """The text of one answer.

        Args:
            may_be_cut: accept one that ran out of tokens, and an empty one after a thought that the server keeps apart.

        Raises:
            Failed, Refused, Unusable: there is none.
        """
        try:
            text = await self._send(dict(body), may_be_cut=may_be_cut)
        except (Failed, Refused, Unusable) as error:
            self.complaint = str(error)
            self.takes_none = isinstance(error, Refused) and error.status in OF_THE_SERVER
            wait_s = error.retry_after_s if isinstance(error, Away) else None
            self._failures = self._failures + 1 if isinstance(error, Failed) and wait_s is None else 0
            if self._failures >= self._config.circuit_failures:
                wait_s = self._config.circuit_pause_s
            if wait_s is not None:
                self._back_at = max(self._back_at, time.monotonic() + wait_s)
            raise
        self._failures, self.takes_none = 0, False
        return text

    async def _send(self, body: dict[str, Any], *, may_be_cut: bool) -> str:
        import openai

        extra = {name: body.pop(name) for name in self._config.extra()}
        self._counts["calls"] += 1
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = await self.client.chat.completions.with_raw_response.create(**body, extra_body=extra or None)
        except (TimeoutError, openai.APITimeoutError):
            raise Failed(f"no answer within simulator.timeout_s={self._config.timeout_s:g} s") from None
        except openai.APIStatusError as error:
            detail = error.body.get("error", error.body) if isinstance(error.body, dict) else error.body
            said = detail.get("message") or detail.get("detail") if isinstance(detail, dict) else detail
            text = self.clean(f"HTTP {error.status_code} {said or ''}".strip())
            raise self._of_status(error.status_code, text, retry_after_s(error.response.headers.get("retry-after"))) from None
        except openai.OpenAIError as error:
            cause = error.__cause__ or error
            said = self.clean(f"{type(cause).__name__}: {cause}")
            # A connection that was made and then broke may be the request's fault, so it counts as an attempt.
            raise (Away if type(cause).__name__ == "ConnectError" else Failed)(said) from None
        return self._content(response.text, may_be_cut=may_be_cut)

    def _of_status(self, status: int, said: str, wait_s: float | None = None) -> Exception:
        if RAN_OUT.search(said):
            return Unusable(CUT_OFF)
        if status in (429, 502, 503, 504):
            self._counts["rate_limited"] += status == 429
            return Away(said, wait_s)
        return Failed(said) if status >= 500 or status in (408, 409, 425) else Refused(said, status)

    def _content(self, text: str, *, may_be_cut: bool) -> str:
        """The answer in a response; every response is billed."""
        try:
            record = json.loads(text)
            usage, error = record.get("usage") or {}, record.get("error")
            choice = (record.get("choices") or [{}])[0]
            message, finish = choice.get("message") or {}, choice.get("finish_reason")
            content, refusal = message.get("content"), message.get("refusal")
        except (ValueError, RecursionError, AttributeError, IndexError, KeyError, TypeError):
            raise Unusable(self.clean(f"a response must be a chat completion, got {text!r}")) from None
        for name, price in (("prompt_tokens", self._config.price_prompt), ("completion_tokens", self._config.price_completion)):
            if isinstance(tokens := usage.get(name), int):
                self._counts[name] += tokens
                self._counts["cost"] += tokens * price / 1e6
        if error and not content:  # a gateway's way to report a failure behind it
            code = str(error.get("code") if isinstance(error, dict) else "")
            said = self.clean(f"HTTP 200 with an error: {error.get('message') if isinstance(error, dict) else error} ({code})")
            raise self._of_status(int(code), said) if re.fullmatch("[45][0-9][0-9]", code) else Unusable(said)
        if refusal:
            raise Unusable(self.clean(f"the model refused: {refusal}"))
        if finish == "length" and not may_be_cut:
            raise Unusable(CUT_OFF)
        if finish == "content_filter":
            raise Unusable("the server's content filter withheld the answer")
        if content is None or (isinstance(content, str) and not content.strip()):
            thought = message.get("reasoning_content") or message.get("reasoning")
            if not may_be_cut or not (thought or finish == "length"):
                raise Unusable("the answer was empty")
            content = ""  # all that came is a thought, which the server keeps apart
        if not isinstance(content, str):
            raise Unusable(self.clean(f"the answer is no text: content must be a string, got {content!r}"))
        if finish == "length":
            self._counts["cut_off"] = self._counts.get("cut_off", 0.0) + 1.0
        return whole_text(content)

    def clean(self, text: str) -> str:
        """A server's message on one line, short, printable and without the key."""
        text = hide(" ".join(text[:MAX_READ].split()).encode("utf-8", "backslashreplace").decode("utf-8"), self._key)
        return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


@dataclass
class Flight:
    """A question that is being asked, shared by all who ask it at the same time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_waiting: int = 0
    text: str | None = None
    error: SimulatorError | None = None


class Endpoints:
    """Asks the servers in turn and returns what could be read; one object for each process.

    Building it calls no server. It works on any event loop, and its counts go on over all of them.

    Raises:
        ValueError: the key's environment variable is not set.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)
        self._key = config.key()
        self._answers = Answers(answers_folder(config.cache))
        self._spare = FIRST_RETRIES
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: list[Server] = []
        self._next = 0
        self._flights: dict[str, Flight] = {}

    async def ask(self, question: Question, read: Callable[[str], T]) -> T:
        """The answer to a question: from disk if it is known; questions asked at the same time are sent once.

        Args:
            read: parses the text, or raises Unusable; the question is then asked again with another seed, and warmer at temperature 0.

        Raises:
            SimulatorError: no usable answer after all retries and pauses; SimulatorAwayError where that is not the question's fault.
        """
        self._connect()
        key = key_of(question.body(self.config))
        kept = self._answers.find(key)
        if kept is not None:
            try:
                value = read(whole_text(kept))
            except Unusable:
                self._answers.forget(key)
            else:
                self.counts["cache_hits"] += 1
                return value
        flight = self._flights.setdefault(key, Flight())
        flight.num_waiting += 1
        try:
            with queued():
                await flight.lock.acquire()
            try:
                if flight.text is not None or flight.error is not None:
                    self.counts["cache_hits"] += 1
                else:
                    flight.text = self._answers.keep(key, await self._insist(question, read))
            except SimulatorError as error:
                self.counts["failures"] += 1
                flight.error = error
            finally:
                flight.lock.release()
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting:
                self._flights.pop(key, None)
        if flight.text is None:
            assert flight.error is not None, "a flight ends with a text or an error"
            raise flight.error
        return read(flight.text)

    async def _insist(self, question: Question, read: Callable[[str], Any]) -> str:
        """Asks until there is a usable answer, within `retries` failed attempts and `max_wait_s` seconds of pauses.

        A server that is away or limits the rate costs pauses only. One that refuses the question is not asked it again.
        """
        from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

        config, body, refused = self.config, question.body(self.config), dict[Server, Refused]()
        num_failures, is_greedy, asked = 0, body.get("temperature") == 0, list[Server]()
        backoff = wait_random_exponential(multiplier=config.first_backoff_s, max=config.max_backoff_s, min=config.first_backoff_s / 2)

        async def attempt() -> str:
            nonlocal num_failures
            server = self._choose(refused, asked[-1] if asked else None)
            asked.append(server)
            with queued():
                await server.places.acquire()
            try:
                if server.away_s() > 0:  # since others were served first
                    raise Away(server.complaint)
                text = await server.ask(body, may_be_cut=question.may_be_cut)
                read(text)
            except Refused as error:
                refused[server] = error
                raise
            except Unusable as error:
                server.complaint = server.clean(str(error))
                num_failures += 1
                self.counts["unusable"] += 1
                if "seed" in body:
                    body["seed"] = (body["seed"] + 1) % NUM_SEEDS
                if is_greedy:
                    body["temperature"] = min(WARMEST, round(body["temperature"] + WARMER_BY, 6))
                raise
            except Failed as error:
                num_failures += not isinstance(error, Away)
                raise
            finally:
                server.places.release()
            self._spare = min(self._spare + config.retry_share, max(FIRST_RETRIES, 100.0 * config.retry_share))
            return text

        def wait(state: RetryCallState) -> float:
            error, others = _error_of(state), [server for server in self._servers if server not in refused]
            soonest = min((server.away_s() for server in others), default=0.0)
            may_go_on = isinstance(error, Refused) or (isinstance(error, Away) and any(server is not asked[-1] for server in others))
            return soonest if may_go_on and soonest == 0.0 else max(soonest, 0.0 if isinstance(error, Refused) else backoff(state))

        def stop(state: RetryCallState) -> bool:
            error = _error_of(state)
            if isinstance(error, Refused):
                others = [server for server in self._servers if server not in refused]
                if not others or (error.status not in OF_THE_SERVER and all(server.away_s() > 0 for server in others)):
                    raise SimulatorError(f"{asked[-1].url} must take the request: {error}")
            elif not isinstance(error, Away):
                given_up = SimulatorError if isinstance(error, Unusable) else SimulatorAwayError
                last = f"{asked[-1].url}: {asked[-1].complaint}"
                if num_failures > config.retries:
                    raise given_up(f"the simulated user must answer within simulator.retries={config.retries} retries; the last, at {last}")
                if self._spare < 1.0:
                    raise given_up(f"retries must stay within simulator.retry_share={config.retry_share:g} of successes; {last}")
                self._spare -= 1.0
            if state.idle_for + state.upcoming_sleep > config.max_wait_s:
                given_up = SimulatorError if isinstance(error, Unusable) else SimulatorAwayError
                complaints = "; ".join(f"{server.url}: {server.complaint}" for server in self._servers if server.complaint)
                raise given_up(f"a server must be ready within simulator.max_wait_s={config.max_wait_s:g} s; {complaints}")
            self.counts["retries"] += not isinstance(error, Refused)
            return False

        return await AsyncRetrying(retry=retry_if_exception_type((Failed, Refused, Unusable)), wait=wait, stop=stop)(attempt)

    def _choose(self, refused: Mapping[Server, Refused], last: Server | None) -> Server:
        """The next server in turn that may take the question, another than the last if possible; else the first to be back."""
        in_turn = [server for server in [*self._servers[self._next :], *self._servers[: self._next]] if server not in refused]
        server = min(in_turn, key=lambda server: (server.away_s(), server.takes_none, server is last))
        self._next = (self._servers.index(server) + 1) % len(self._servers)
        return server

    async def check(self) -> None:
        """Asks every server for a few tokens.

        Raises:
            ValueError: one does not answer, refuses the key, or does not take the model or the settings.
        """
        self._connect()
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
        question = Question(name="check", messages=(("user", 'Answer {"ok": true} as JSON.'),), schema=schema, seed=0)
        body = {**question.body(self.config), self.config.token_limit.value: FEW_TOKENS}
        for server in self._servers:
            try:
                await server.ask(body)
            except Unusable:
                continue  # it is there and takes the key; whether its answers are usable shows in the first dialogue
            except Refused as error:
                raise ValueError(await self._refusal(server, error)) from None
            except Failed as error:
                if not str(error).startswith("HTTP 429"):
                    raise ValueError(f"simulator.urls must name servers that answer, got {server.url!r}: {error}") from None

    async def _refusal(self, server: Server, error: Refused) -> str:
        """The sentence for a request that a server will never take."""
        import openai

        config = self.config
        if error.status in (401, 403):
            got = repr(config.api_key_env) if config.api_key_env else "'', so that none was sent"
            return f"simulator.api_key_env must name a variable whose key {server.url} accepts, got {got}: {error}"
        if error.status == 404:
            try:
                served = [str(model.id) async for model in server.client.models.list()]
            except (openai.OpenAIError, ValueError, AttributeError, TypeError):
                served = []
            if served and config.model not in served:
                return f"simulator.model must be one that {server.url} serves ({', '.join(served)}), got {config.model!r}"
            return f"simulator.urls must be base addresses, such as http://127.0.0.1:8000/v1, got {server.url!r}: {error}"
        return f"simulator.* must be settings that {server.url} takes: {error}"

    async def close(self) -> None:
        """Closes the connections; the next question opens them again."""
        for server in self._servers:
            await server.client.close()
        self._loop, self._servers = None, []

    def _connect(self) -> None:
        """Connections, semaphores and locks belong to an event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._servers = [Server(url, self.config, key=self._key, counts=self.counts) for url in self.config.urls]
            self._loop, self._flights, self._next = loop, {}, 0


def _error_of(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, given as seconds or an HTTP date; None without a readable one."""
    try:
        seconds = float(value or "nan")
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(str(value)).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def key_of(body: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of a request."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def answers_folder(setting: str) -> Path | None:
    """The folder of the answers on disk.

    Args:
        setting: `default` is $XDG_CACHE_HOME/attune/answers (~/.cache without the variable), `off` keeps none, else a folder.
    """
    if setting == "off":
        return None
    if setting == "default":
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune" / "answers"
    return Path(setting).expanduser()


class Answers:
    """Answers on disk by key, for any number of processes: the first answer to a question counts for all.

    Args:
        folder: made when it is first needed; None keeps nothing. One that cannot be written is given up with a warning.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cache: Any = None

    def find(self, key: str) -> str | None:
        """The answer to a question, if there is one."""
        found = self._do("get", key)
        return found if isinstance(found, str) else None

    def keep(self, key: str, answer: str) -> str:
        """Keeps an answer unless there is one; returns the one that counts."""
        return answer if self._do("add", key, answer) else self.find(key) or answer

    def forget(self, key: str) -> None:
        """Drops an answer."""
        self._do("delete", key)

    def _do(self, method: str, *arguments: str) -> Any:
        if self._folder is None:
            return None
        import sqlite3

        import diskcache

        try:
            if self._cache is None:
                self._cache = diskcache.Cache(str(self._folder), eviction_policy="none")
            return getattr(self._cache, method)(*arguments)
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            log.warning("answers of the simulated user are no longer kept on disk: %s", error)
            self._folder = None
            return None


def check_endpoints(config: EndpointConfig) -> None:
    """Refuses servers that cannot be used, before anything is started.

    Raises:
        ValueError: the client is not installed, the key is not set, or a server does not answer or refuses; the message names the setting.
    """
    if missing := [name for name in ("openai", "tenacity", "diskcache") if importlib.util.find_spec(name) is None]:
        raise ValueError(
            f"simulator.kind must be another where {', '.join(missing)} is not installed, got 'llm'; pip install 'attune[llm]'"
        )

    async def check() -> None:
        endpoints = Endpoints(config)
        try:
            await endpoints.check()
        finally:
            await endpoints.close()

    asyncio.run(check())
