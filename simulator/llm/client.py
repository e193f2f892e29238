"""The client of the servers that play the user: OpenAI-compatible, with retries, failover, and answers kept on disk."""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import importlib.util
import ipaddress
import json
import logging
import math
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from simulator.llm.answers import END_OF_THOUGHT
from simulator.llm.config import AnswerFormat, EndpointConfig, hide
from simulator.llm.prompts import Messages, Unusable, object_of, record_of, whole_text

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")


class SimulatorError(RuntimeError):
    """The model that plays the user gave no usable answer; such a dialogue is an ERROR and has no score."""


class SimulatorAwayError(SimulatorError):
    """Its servers fail at every question, or do not answer: the question may be asked again later."""


class TooLongError(SimulatorError):
    """The question does not fit into the model's context."""


class Failed(Exception):
    """A server gave no usable answer.

    Args:
        status: of HTTP; 200 for an unusable answer, 408 for none in time, 500 for a broken connection, 503 for none.
        retry_after_s: how long the server asks to be left alone; None when it does not say.
    """

    TOO_LONG = re.compile(
        r"\bcontext\b|context_length|reduce the length|too many tokens|maximum input"
        r"|(?:prompt|inputs?)\b.{0,60}\b(?:too long|too large|length|exceed|less than)|tokens.{0,60}(?:exceed|must be <=)",
        re.I,
    )

    def __init__(self, message: str, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.is_unusable = status == 200
        self.is_away = status in (429, 502, 503, 504)
        """The server is away or limits the rate, which does not count as an attempt."""
        self.is_refusal = 400 <= status < 500 and status not in (408, 409, 425, 429)
        """The server will refuse the same request again."""
        self.refuses_all = status in (401, 403, 404)
        """It refuses every question, for want of a key or a model."""
        self.is_too_long = status in (400, 413, 422) and bool(self.TOO_LONG.search(message))
        """The question and the tokens of an answer do not fit into the model's context."""


class DialogueClock:
    """The time limit of the dialogue that a task plays, which pauses as long as one of its questions is queued for a server.

    The rollout, which owns the limit, enters the clock within it; a context variable takes it past the user to the client's queue.
    """

    current: ContextVar[DialogueClock | None] = ContextVar("attune_clock", default=None)

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._left_s: float | None = None
        self._num_pauses = 0

    def __enter__(self) -> None:
        self._before = self.current.set(self)

    def __exit__(self, *_: object) -> None:
        self.current.reset(self._before)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While entered, the limit pauses; it may be entered more than once."""
        loop, until = asyncio.get_running_loop(), self._limit.when()
        self._num_pauses += 1
        if self._num_pauses == 1 and until is not None and not self._limit.expired():
            self._left_s = until - loop.time()
            self._limit.reschedule(None)
        try:
            yield
        finally:
            self._num_pauses -= 1
            if self._num_pauses == 0 and self._left_s is not None:
                if not self._limit.expired():
                    self._limit.reschedule(loop.time() + self._left_s)
                self._left_s = None


@asynccontextmanager
async def queued_for(lock: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
    """Holds a lock; the dialogue's clock pauses until it is acquired."""
    clock = DialogueClock.current.get()
    with nullcontext() if clock is None else clock.paused():
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question to the model."""

    name: str
    """Of the schema: letters and underscores."""
    messages: Messages
    schema: Mapping[str, Any]
    seed: int
    """In [0, 2^31)."""
    may_be_cut: bool = False
    """An answer that ran out of tokens counts: words do, JSON does not."""

    def body(self, config: EndpointConfig) -> dict[str, Any]:
        """The request: everything that an answer depends on."""
        body: dict[str, Any] = {
            "model": config.model,
            "messages": [{"role": role, "content": content} for role, content in self.messages],
            config.token_limit.value: config.answer_tokens,
        }
        if config.answer_temperature is not None:
            body["temperature"] = config.answer_temperature
        if config.send_seed:
            body["seed"] = self.seed
        if config.answer_format == AnswerFormat.JSON_SCHEMA:
            schema = {"name": self.name, "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif config.answer_format == AnswerFormat.JSON_OBJECT:
            body["response_format"] = {"type": "json_object"}
        return {**body, **config.extra()}


class Server:
    """One server on the running event loop.

    Args:
        counts: `calls`, `rate_limited`, tokens and `cost` are added up here.
    """

    CUT_OFF = "the answer was cut off; raise simulator.max_tokens"

    def __init__(self, url: str, config: EndpointConfig, *, key: str, counts: dict[str, float]) -> None:
        import httpx
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self.url = url
        self.proxy = proxy_variable(url)
        """Name of the environment variable with the proxy in between; empty for none."""
        self.places = asyncio.Semaphore(config.concurrency)
        self.complaint = ""
        """Its last failure."""
        self.takes_none = False
        """Its last call was refused as any other would be."""
        self.thinks = False
        """It has thought before an answer."""
        self._failures = 0
        self._back_at = 0.0
        self._config, self._key, self._counts = config, key, counts
        # The client would send the content of these variables (keys, an organisation, headers) to any server.
        hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith("OPENAI_")}
        try:
            verify = httpx.create_ssl_context()  # it knows SSL_CERT_FILE, also where no proxy is asked for
            http = DefaultAsyncHttpxClient(trust_env=bool(self.proxy), verify=verify, timeout=config.timeout_s)
            self.client = AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, timeout=config.timeout_s, http_client=http)
        except (ImportError, ValueError) as error:  # a proxy of another kind, or one that needs a further package
            raise ValueError(f"{self.proxy or 'simulator.urls'} must be an address that the client can use for {url}: {error}") from None
        finally:
            os.environ.update(hidden)

    @property
    def away_s(self) -> float:
        """Seconds for which it is still left alone."""
        return max(0.0, self._back_at - time.monotonic())

    async def ask(self, body: Mapping[str, Any], *, may_be_cut: bool = False) -> str:
        """The text of one answer.

        Args:
            may_be_cut: accept one that ran out of tokens, and an empty one after a thought that the server keeps apart.

        Raises:
            Failed: there is none.
        """
        try:
            text = self._content(await self._send(dict(body)), may_be_cut=may_be_cut)
        except Failed as error:
            self.complaint, self.takes_none = str(error), error.refuses_all
            wait_s = error.retry_after_s if error.is_away else None
            self._failures = 0 if error.is_unusable or error.is_refusal or wait_s is not None else self._failures + 1
            if self._failures >= self._config.circuit_failures:
                wait_s = self._config.circuit_pause_s
            if wait_s is not None:
                self._back_at = max(self._back_at, time.monotonic() + wait_s)
            raise
        self._failures, self.takes_none = 0, False
        return text

    async def _send(self, body: dict[str, Any]) -> str:
        """The response to a request."""
        import openai

        extra = {name: body.pop(name) for name in self._config.extra()}
        self._counts["calls"] += 1
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = await self.client.chat.completions.with_raw_response.create(**body, extra_body=extra or None)
        except (TimeoutError, openai.APITimeoutError):
            raise Failed(f"no answer within simulator.timeout_s={self._config.timeout_s:g} s", 408) from None
        except openai.APIStatusError as error:
            detail = error.body.get("error", error.body) if isinstance(error.body, dict) else error.body
            said = detail.get("message") or detail.get("detail") if isinstance(detail, dict) else detail
            text = self.clean(f"HTTP {error.status_code} {said or ''}".strip())
            raise self._failure(text, error.status_code, self.retry_after_s(error.response.headers.get("retry-after"))) from None
        except openai.OpenAIError as error:
            cause = error.__cause__ or error
            # A connection that was made and then broke may be the request's fault, so it counts as an attempt.
            status = 503 if type(cause).__name__ == "ConnectError" else 500
            through = f" (through the proxy that the environment variable {self.proxy} names)" if self.proxy else ""
            raise Failed(self.clean(f"{type(cause).__name__}: {cause}{through}"), status) from None
        return response.text

    def _failure(self, said: str, status: int, retry_after_s: float | None = None) -> Failed:
        # A reasoning model spent the tokens of the answer on its thoughts.
        if "max_tokens or model output limit was reached" in said.lower():
            return Failed(self.CUT_OFF, 200)
        self._counts["rate_limited"] += status == 429
        return Failed(said, status, retry_after_s)

    def _content(self, response: str, *, may_be_cut: bool) -> str:
        """The answer in a response; every response is billed."""
        try:
            record = json.loads(response)
            usage, error = record.get("usage") or {}, record.get("error")
            choice = (record.get("choices") or [{}])[0]
            message, finish = choice.get("message") or {}, choice.get("finish_reason")
            content, refusal = message.get("content"), message.get("refusal")
            if isinstance(content, list):  # parts, of which some may be thoughts
                content = "".join(part["text"] for part in content if part.get("type") in ("text", "output_text"))
        except (ValueError, RecursionError, AttributeError, IndexError, KeyError, TypeError):
            raise Failed(self.clean(f"a response must be a chat completion, got {response!r}"), 200) from None
        self.thinks |= bool(message.get("reasoning_content") or message.get("reasoning")) or bool(END_OF_THOUGHT.search(str(content)))
        for name, price in (("prompt_tokens", self._config.price_prompt), ("completion_tokens", self._config.price_completion)):
            if isinstance(tokens := usage.get(name), int):
                self._counts[name] += tokens
                self._counts["cost"] += tokens * price / 1e6
        if error and not content:  # a gateway's way to report a failure behind it
            code, said = (str(error.get("code")), error.get("message")) if isinstance(error, dict) else ("", error)
            text = self.clean(f"HTTP 200 with an error: {said} ({code})")
            raise self._failure(text, int(code) if re.fullmatch("[45][0-9][0-9]", code) else 200)
        if refusal:
            raise Failed(self.clean(f"the model refused: {refusal}"), 200)
        if finish == "length" and not may_be_cut:
            raise Failed(self.CUT_OFF, 200)
        if finish == "content_filter":
            raise Failed("the server's content filter withheld the answer", 200)
        if content is None or (isinstance(content, str) and not content.strip()):
            thought = message.get("reasoning_content") or message.get("reasoning")
            if may_be_cut and (thought or finish == "length"):
                content = ""  # all that came is a thought, which the server keeps apart
            elif not self._config.thinks and isinstance(thought, str) and re.fullmatch(r"\s*\{.*\}\s*", thought, re.DOTALL):
                content = thought  # a server whose parser takes the answer of a model that does not think for a thought
            else:
                raise Failed("the answer was empty", 200)
        if not isinstance(content, str):
            raise Failed(self.clean(f"the answer is no text: content must be a string, got {content!r}"), 200)
        if finish == "length":
            self._counts["cut_off"] = self._counts.get("cut_off", 0.0) + 1.0
        return content

    def clean(self, text: str) -> str:
        """A server's message on one line, short, printable and without the key."""
        text = hide(" ".join(text[:8000].split()).encode("utf-8", "backslashreplace").decode("utf-8"), self._key)
        return text if len(text) <= 200 else f"{text[:200]}..."

    @staticmethod
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


@dataclass
class Flight:
    """A question that is being asked, shared by all who ask it at the same time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_waiting: int = 0
    found: str | SimulatorError | None = None


class Endpoints:
    """Asks the servers in turn and returns the first answer that can be read; one object for each process.

    Building it calls no server. It works on any event loop, and its counts go on over all of them.

    Raises:
        ValueError: the key's environment variable is not set.
    """

    FIRST_RETRIES = 10.0
    """Retries in stock before any success."""
    CHECKS = 3
    """Answers of which one must be usable before the work."""
    COUNTS = ("calls", "cache_hits", "retries", "rate_limited", "unusable", "failures", "prompt_tokens", "completion_tokens", "cost")
    """Counts of usage; all only grow."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.counts: dict[str, float] = dict.fromkeys(self.COUNTS, 0.0)
        self._key = config.key()
        self._spare = self.FIRST_RETRIES
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: list[Server] = []
        self._next = 0
        self._flights: dict[str, Flight] = {}
        self._has_cache = config.cache != "off"
        self._cache: Any = None

    async def ask(self, question: Question, read: Callable[[str], T]) -> T:
        """The answer to a question: from disk if it is known; questions asked at the same time are sent once.

        Args:
            read: parses the text, or raises Unusable; the question is then asked again with another seed, and warmer at temperature 0.

        Raises:
            SimulatorError: no usable answer after all retries and pauses; SimulatorAwayError where that is not the question's fault.
        """
        self._connect()
        body = json.dumps(question.body(self.config), sort_keys=True, ensure_ascii=True)
        key = hashlib.sha256(body.encode()).hexdigest()
        if isinstance(kept := self._on_disk("get", key), str):
            try:
                value = read(whole_text(kept))
            except Unusable:
                self._on_disk("delete", key)
            else:
                self.counts["cache_hits"] += 1
                return value
        flight = self._flights.setdefault(key, Flight())
        flight.num_waiting += 1
        try:
            async with queued_for(flight.lock):
                if flight.found is not None:
                    self.counts["cache_hits"] += 1
                else:
                    text = await self._insist(question, read)
                    # The first answer to a question counts for every process.
                    is_first = self._on_disk("add", key, text)
                    flight.found = text if is_first else self._on_disk("get", key) or text
        except SimulatorError as error:
            self.counts["failures"] += 1
            flight.found = error
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting:
                self._flights.pop(key, None)
        if isinstance(flight.found, SimulatorError):
            raise flight.found
        return read(flight.found)

    async def _insist(self, question: Question, read: Callable[[str], Any]) -> str:
        """Asks until there is a usable answer, within `retries` failed attempts and `max_wait_s` seconds of pauses.

        A server that is away or limits the rate costs pauses only. One that refuses the question is not asked it again.
        """
        from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

        config, body, asked, refused = self.config, question.body(self.config), list[Server](), set[Server]()
        num_failures, is_greedy = 0, config.answer_temperature == 0
        backoff = wait_random_exponential(multiplier=config.first_backoff_s, max=config.max_backoff_s, min=config.first_backoff_s / 2)

        def failure(state: RetryCallState) -> Failed:
            error = state.outcome.exception() if state.outcome else None
            assert isinstance(error, Failed)
            return error

        async def attempt() -> str:
            nonlocal num_failures
            # The next server in turn that may take the question, another than the last if possible; else the first to be back.
            in_turn = [server for server in [*self._servers[self._next :], *self._servers[: self._next]] if server not in refused]
            last = asked[-1] if asked else None
            server = min(in_turn, key=lambda server: (server.away_s, server.takes_none, server is last))
            self._next = (self._servers.index(server) + 1) % len(self._servers)
            asked.append(server)
            async with queued_for(server.places):
                try:
                    if server.away_s > 0:  # since others were served first
                        raise Failed(server.complaint, 503)
                    text = await self._ask_once(server, body, question, read)
                except Failed as error:
                    num_failures += not error.is_refusal and not error.is_away
                    if error.is_refusal:
                        refused.add(server)
                    if error.is_unusable:
                        self.counts["unusable"] += 1
                        ask_anew(body, is_greedy=is_greedy)
                    raise
            self._spare = min(self._spare + config.retry_share, max(self.FIRST_RETRIES, 100.0 * config.retry_share))
            return text

        def wait(state: RetryCallState) -> float:
            error, others = failure(state), [server for server in self._servers if server not in refused]
            soonest = min((server.away_s for server in others), default=0.0)
            has_other = error.is_away and soonest == 0.0 and any(server is not asked[-1] for server in others)
            return soonest if error.is_refusal or has_other else max(soonest, backoff(state))

        def stop(state: RetryCallState) -> bool:
            error, others = failure(state), [server for server in self._servers if server not in refused]
            given_up = SimulatorError if error.is_unusable else SimulatorAwayError
            last = f"{asked[-1].url}: {asked[-1].complaint}"
            if error.is_refusal:
                if not others and error.is_too_long:
                    raise TooLongError(f"{asked[-1].url} must take the request: {error}")
                if not others or (not error.refuses_all and all(server.away_s > 0 for server in others)):
                    raise SimulatorError(f"{asked[-1].url} must take the request: {error}")
            elif not error.is_away:
                if num_failures > config.retries:
                    raise given_up(f"the simulated user must answer within simulator.retries={config.retries} retries; the last, at {last}")
                if self._spare < 1.0:
                    raise given_up(f"retries must stay within simulator.retry_share={config.retry_share:g} of successes; {last}")
                self._spare -= 1.0
            if state.idle_for + state.upcoming_sleep > config.max_wait_s:
                complaints = "; ".join(f"{server.url}: {server.complaint}" for server in self._servers if server.complaint)
                raise given_up(f"a server must be ready within simulator.max_wait_s={config.max_wait_s:g} s; {complaints}")
            self.counts["retries"] += not error.is_refusal
            return False

        return await AsyncRetrying(retry=retry_if_exception_type(Failed), wait=wait, stop=stop)(attempt)

    async def check(self, question: Question, read: Callable[[str], Any]) -> None:
        """Asks every server a question, with the settings as they are, up to three times where the answer cannot be read.

        Raises:
            ValueError: one does not answer, refuses the key, does not take the model or the settings, or does not answer in form.
        """
        self._connect()
        for server in self._servers:
            body, is_greedy = question.body(self.config), self.config.answer_temperature == 0
            for attempt in range(self.CHECKS):
                try:
                    await self._ask_once(server, body, question, read)
                except Failed as error:
                    if error.is_unusable and attempt + 1 < self.CHECKS:
                        ask_anew(body, is_greedy=is_greedy)
                        continue
                    if error.status != 429:  # else it is there and takes the key
                        raise ValueError(await self._why_not(server, body, question, error)) from None
                break
            if server.thinks and is_greedy:
                logging.getLogger(__name__).warning("%s thinks before it answers; set simulator.thinks=true", self.config.model)

    async def _ask_once(self, server: Server, body: Mapping[str, Any], question: Question, read: Callable[[str], Any]) -> str:
        """An answer that can be read; Failed where there is none."""
        text = await server.ask(body, may_be_cut=question.may_be_cut)
        try:
            read(whole_text(text))
        except Unusable as error:
            server.complaint = server.clean(str(error))
            raise Failed(server.complaint, 200) from None
        return text

    async def _why_not(self, server: Server, body: Mapping[str, Any], question: Question, error: Failed) -> str:
        """The setting that keeps a server from answering."""
        import openai

        config = self.config
        if error.is_unusable:
            got = f"got {config.model!r} at {server.url}, of whose {self.CHECKS} answers the last cannot be used"
            remedy = "; it thinks before it answers, so set simulator.thinks=true" if server.thinks and not config.thinks else ""
            return f"simulator.model must answer in the form that it is asked for, {got}: {error}{remedy}"
        if not error.is_refusal:
            return f"simulator.urls must name servers that answer, got {server.url!r}: {error}"
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
        if "response_format" in body:
            with suppress(Failed):
                await server.ask({name: value for name, value in body.items() if name != "response_format"}, may_be_cut=True)
                remedy = "" if config.answer_format == AnswerFormat.JSON_OBJECT else "json_object or "
                got = f"got {config.answer_format.value!r}; set it to {remedy}text"
                return f"simulator.answer_format must be one that {server.url} takes, {got}: {error}"
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

    def _on_disk(self, method: str, *arguments: str) -> Any:
        """A method of the answers on disk by key, for any number of processes; a folder that fails is given up, and gives None."""
        if not self._has_cache:
            return None
        import sqlite3

        import diskcache

        folder = Path(self.config.cache).expanduser()
        if self.config.cache == "default":
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune" / "answers"
        try:
            if self._cache is None:
                self._cache = diskcache.Cache(str(folder), eviction_policy="none")
            return getattr(self._cache, method)(*arguments)
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            logging.getLogger(__name__).warning("answers of the simulated user are not kept on disk any more: %s", error)
            self._has_cache = False
            return None


def ask_anew(body: dict[str, Any], *, is_greedy: bool) -> None:
    """Changes a request whose answer cannot be used, so that another may come."""
    if "seed" in body:
        body["seed"] = (body["seed"] + 1) % 2**31
    if is_greedy:  # at temperature 0 a seed changes nothing
        body["temperature"] = min(1.0, round(body["temperature"] + 0.3, 6))


def proxy_variable(url: str) -> str:
    """Name of the environment variable whose proxy stands before an address; empty for none, and for addresses of this machine."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback or address.is_unspecified:
            return ""
    if host == "localhost" or host.endswith(".localhost") or urllib.request.proxy_bypass(host):
        return ""
    names = [name for kind in (parts.scheme, "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]
    return next((name for name in names if os.environ.get(name)), "")


ONE = {"type": "integer", "enum": [1]}
OK = Question(name="check", messages=(("user", 'Answer {"ok": 1} as JSON.'),), schema=object_of({"ok": ONE}), seed=0)
HELLO = Question(name="check", messages=(("user", "Hello."),), schema={}, seed=0, may_be_cut=True)
"""What a model is asked before the work that answers in JSON, of whole numbers as judges do, or in words."""


def check_client() -> None:
    """Raises ValueError where the client is not installed."""
    if missing := [name for name in ("openai", "tenacity", "diskcache") if importlib.util.find_spec(name) is None]:
        raise ValueError(
            f"a language model as user or listener needs {', '.join(missing)}, which is not installed; pip install 'attune-rl[llm]'"
        )


def check_endpoints(
    config: EndpointConfig, question: Question = OK, read: Callable[[str], Any] = lambda answer: record_of(answer, "ok")
) -> None:
    """Refuses servers that cannot be used, before anything is started.

    Args:
        question: what each is asked; best one of those that the work will ask.
        read: parses its answer, or raises Unusable.

    Raises:
        ValueError: the client is not installed, the key is not set, or a server does not answer or refuses; the message names the setting.
    """
    check_client()

    async def check() -> None:
        endpoints = Endpoints(config)
        try:
            await endpoints.check(question, read)
        finally:
            await endpoints.close()

    asyncio.run(check())
