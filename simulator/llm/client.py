"""When to ask a server again, when to leave it alone, and when to give up.

One OpenAI-compatible server, through the official client: a request, its answer's text or why there is none, and what it cost.

Answers kept on disk, so that a rerun asks nothing twice and gets exactly what it got before.

Several servers as one: the load spread, failures retried within bounds, answers kept, and the same question never paid for twice.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import importlib.util
import json
import logging
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from simulator.llm.clock import UnderWay
from simulator.llm.config import AnswerFormat, EndpointConfig, hide
from simulator.llm.prompts import Messages, Schema, Unusable, whole_text

LONGEST_OPEN_FACTOR = 8
"""A circuit that fails its probes stays open up to so many times its first pause."""
FIRST_RETRIES = 10.0
"""Retries that a budget holds before any call has succeeded."""


def backoff_s(failures: int, *, first_s: float, longest_s: float, rng: random.Random) -> float:
    """Seconds to wait after so many failures in a row: doubled each time, then drawn from the upper half, so that callers spread out.

    Args:
        failures: at least 1.
    """
    # The exponent is bounded because 2**2000 is no float.
    ceiling = min(longest_s, first_s * 2.0 ** min(failures - 1, 60))
    return ceiling * rng.uniform(0.5, 1.0)


def retry_after_s(value: str | None, *, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a Retry-After header asks for; None where there is none that can be read.

    Args:
        value: seconds, or an HTTP date.
        now: seconds since the epoch.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


class RetryBudget:
    """Retries that may still be made: each success earns a share of one, so that a failing server is not asked twice as often.

    Args:
        share: retries earned by a success, in [0, 1].
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = FIRST_RETRIES

    def earn(self) -> None:
        """A call succeeded."""
        self._left = min(self._left + self._share, max(FIRST_RETRIES, 100.0 * self._share))

    def spend(self) -> bool:
        """Takes a retry; False when none is left."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Circuit:
    """Whether a server is worth asking: closed while it answers, open for a while after some failures in a row, then one probe at a time.

    Args:
        failures: in a row, after which it opens.
        pause_s: how long it stays open first; doubled by each probe that fails.
        clock: seconds, monotonic.
    """

    def __init__(self, *, failures: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._first_pause_s, self._clock = failures, pause_s, clock
        self._pause_s = pause_s
        self._failures = 0
        self._asks_again_at: float | None = None
        self._probing = False

    def wait_s(self) -> float:
        """Seconds until it may be asked, 0 for now; while a probe is out, until it is worth looking again."""
        if self._asks_again_at is None:
            return 0.0
        left = self._asks_again_at - self._clock()
        return left if left > 0 else (self._first_pause_s / 4 if self._probing else 0.0)

    def begin(self) -> None:
        """A call starts, which is a probe where the circuit is not closed."""
        self._probing = self._asks_again_at is not None

    def succeeded(self) -> None:
        """The server answered."""
        self._failures, self._asks_again_at, self._probing, self._pause_s = 0, None, False, self._first_pause_s

    def failed(self) -> None:
        """The server did not."""
        self._failures += 1
        if self._asks_again_at is not None and self._probing:
            self._pause_s = min(2 * self._pause_s, LONGEST_OPEN_FACTOR * self._first_pause_s)
        if self._failures >= self._limit:
            self._asks_again_at = self._clock() + self._pause_s
        self._probing = False

    def abandoned(self) -> None:
        """A call was cancelled, which says nothing about the server."""
        self._probing = False


TOO_MANY = 429
AWAY = (502, 503, 504)
"""Statuses of a server that is not there for the moment, as if nobody had answered."""
OF_THE_SERVER = (401, 403, 404)
"""Statuses that say that a server will not take any question: another key, another model."""
PASSING = (408, 409, 425)
"""Statuses below 500 after which the same request may succeed."""
RAN_OUT = re.compile(r"max_tokens or model output limit was reached", re.IGNORECASE)
"""How a reasoning model's server says, with HTTP 400, that the tokens of an answer went into thinking."""
HTTP_ERROR = re.compile("[45][0-9][0-9]")
"""A code in an error's body that is a status of HTTP."""
CUT_OFF = "the answer was cut off; raise simulator.max_tokens"
MAX_QUOTED, MAX_READ = 200, 8000
"""Characters of a server's words that a complaint repeats, and that are looked at for it."""


OF_THE_CLIENT = "OPENAI_"
"""How variables begin whose content (keys, an organisation, a project, headers) the client would send to whomever the address names."""


class Passing(Exception):
    """The same request may succeed later."""


class Away(Passing):
    """Nobody is there for the moment, which says nothing about the request.

    Args:
        retry_after_s: how long the server asks to be left alone; None when it does not say.
    """

    asked_at: float
    """When the call began, by the loop's clock; set by whoever made it."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Away):
    """The server gets more requests than it wants."""


class Refused(Exception):
    """The same request will be refused again."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Question:
    """One thing to ask the model."""

    name: str
    """Of the schema: letters and underscores."""
    messages: Messages
    schema: Schema
    seed: int
    """In [0, 2^31)."""
    may_be_cut: bool = False
    """Whether an answer that ran out of tokens is one: words are, JSON is not."""


def body_of(question: Question, config: EndpointConfig) -> dict[str, Any]:
    """Everything that is sent, and so everything that an answer depends on."""
    body: dict[str, Any] = {
        "model": config.model,
        "messages": [{"role": role, "content": content} for role, content in question.messages],
        config.token_limit.value: config.max_tokens,
    }
    if config.temperature is not None:
        body["temperature"] = config.temperature
    if config.send_seed:
        body["seed"] = question.seed
    if config.answer_format is AnswerFormat.JSON_SCHEMA:
        schema = {"name": question.name, "schema": question.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif config.answer_format is AnswerFormat.JSON_OBJECT:
        body["response_format"] = {"type": "json_object"}
    return {**body, **config.extra()}


@contextmanager
def _without_variables(beginning: str) -> Iterator[None]:
    """Hides the environment's variables that begin so."""
    hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith(beginning)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def is_client_installed() -> bool:
    """Whether the official client can be imported; it is not, before the first request."""
    return importlib.util.find_spec("openai") is not None


class Server:
    """A server on the running event loop, and whether it may be asked.

    Args:
        key: sent with every request, and repeated by no exception; empty for none.
        counts: where `calls`, `rate_limited`, tokens and `cost` are added up.
    """

    def __init__(self, url: str, config: EndpointConfig, *, key: str, counts: dict[str, float]) -> None:
        from openai import AsyncOpenAI

        self.url = url
        self.places = asyncio.Semaphore(config.concurrency)
        self.load = 0
        """Questions that are at this server or wait for a place there."""
        self.num_away = 0
        """Times in a row that it was away or limited the rate; calls that were under way together count once."""
        self._away_since = -math.inf
        self.complaint = ""
        """Why it last gave nothing."""
        self.refuses: Refused | None = None
        """That its last call was refused as any other would be, for want of a key or a model."""
        self._config, self._key, self._counts = config, key, counts
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._circuit = Circuit(failures=config.circuit_failures, pause_s=config.circuit_pause_s, clock=self._clock)
        self._held_until = 0.0
        with _without_variables(OF_THE_CLIENT):
            self._client = AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, timeout=config.timeout_s)

    def hold(self, seconds: float) -> None:
        """Leaves it alone for a while."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def count_away(self, error: Away) -> None:
        """Counts a call that found it away, unless it had begun before the last one that was counted."""
        if error.asked_at >= self._away_since:
            self.num_away += 1
            self._away_since = self._clock()

    def wait_s(self) -> float:
        """Seconds until it may be asked; 0 for now."""
        return max(0.0, self._held_until - self._clock(), self._circuit.wait_s())

    async def ask(self, body: dict[str, Any], *, may_be_cut: bool = False) -> str:
        """The text of one answer.

        Args:
            may_be_cut: take one that ran out of tokens, and an empty one after a thought that the server keeps apart.

        Raises:
            Passing, Refused, Unusable: there is none.
        """
        self._circuit.begin()
        self.refuses = None
        try:
            text = await self._send(dict(body), may_be_cut=may_be_cut)
        except (RateLimited, Refused, Unusable) as error:
            self._circuit.succeeded()
            if isinstance(error, Refused) and error.status in OF_THE_SERVER:
                self.refuses = error
            raise
        except Passing:
            self._circuit.failed()
            raise
        except asyncio.CancelledError:
            self._circuit.abandoned()
            raise
        self._circuit.succeeded()
        return text

    async def models(self) -> list[str]:
        """Names of the models it serves; none if it does not say."""
        import openai

        try:
            async with asyncio.timeout(self._config.timeout_s):
                return [str(model.id) async for model in self._client.models.list()]
        except (TimeoutError, openai.OpenAIError, ValueError, AttributeError, TypeError):
            return []

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()

    async def _send(self, body: dict[str, Any], *, may_be_cut: bool) -> str:
        import openai

        extra = {name: body.pop(name) for name in self._config.extra()}
        self._counts["calls"] += 1
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = await self._client.chat.completions.with_raw_response.create(**body, extra_body=extra or None)
        except (TimeoutError, openai.APITimeoutError):
            raise Passing(f"no answer within simulator.timeout_s={self._config.timeout_s:g} s") from None
        except openai.APIStatusError as error:
            raise self._of_status(error) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            said = self.clean(f"{type(cause).__name__}: {cause}")
            # A connection that was made and then broke may be the request's fault, so it costs an attempt.
            raise (Away(said) if type(cause).__name__ == "ConnectError" else Passing(said)) from None
        except openai.OpenAIError as error:
            raise Passing(self.clean(f"{type(error).__name__}: {error}")) from None
        return self._content(response.text, may_be_cut=may_be_cut)

    def _of_status(self, error: Any) -> Exception:
        """What an HTTP status other than success means."""
        said = self.clean(f"HTTP {error.status_code} {_words_of(error.body)}".strip())
        return self._of_code(error.status_code, said, wait_s=retry_after_s(error.response.headers.get("retry-after")))

    def _of_code(self, status: int, said: str, *, wait_s: float | None = None) -> Exception:
        if RAN_OUT.search(said):
            return Unusable(CUT_OFF)
        if status == TOO_MANY:
            self._counts["rate_limited"] += 1
            return RateLimited(said, retry_after_s=wait_s)
        if status in AWAY:
            return Away(said, retry_after_s=wait_s)
        return Passing(said) if status >= 500 or status in PASSING else Refused(said, status=status)

    def _content(self, text: str, *, may_be_cut: bool) -> str:
        """The message in a response, which is billed whatever it is worth.

        Raises:
            Passing, Refused, Unusable: there is none.
        """
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and record.get("error") and not _says_something(record):
            raise self._of_error(record)
        try:
            choice = record["choices"][0]
            content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
            finish, usage = choice.get("finish_reason"), record.get("usage")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise Unusable(self.clean(f"a response must be a chat completion, got {text!r}")) from None
        self._bill(usage if isinstance(usage, dict) else {})
        if refusal:
            raise Unusable(self.clean(f"the model refused: {refusal}"))
        if finish == "length" and not may_be_cut:
            raise Unusable(CUT_OFF)
        if finish == "content_filter":
            raise Unusable("the server's content filter withheld the answer")
        if content is None or (isinstance(content, str) and not content.strip()):
            thought = choice["message"].get("reasoning_content") or choice["message"].get("reasoning")
            if not may_be_cut or not (thought or finish == "length"):
                raise Unusable("the answer was empty")
            # All that came is a thought, which the server keeps apart or drops.
            content = ""
        if not isinstance(content, str):
            raise Unusable(self.clean(f"the answer is no text: content must be a string, got {content!r}"))
        if finish == "length":
            self._counts["cut_off"] = self._counts.get("cut_off", 0.0) + 1.0
        return whole_text(content)

    def _of_error(self, record: dict[str, Any]) -> Exception:
        """What an error means that came with HTTP 200, as gateways say what happened behind them."""
        usage, error = record.get("usage"), record["error"]
        self._bill(usage if isinstance(usage, dict) else {})
        code = str(error.get("code") if isinstance(error, dict) else "")
        said = self.clean(f"HTTP 200 with an error: {_words_of(record)} ({code})")
        return self._of_code(int(code), said) if HTTP_ERROR.fullmatch(code) else Unusable(said)

    def _bill(self, usage: dict[str, Any]) -> None:
        for name, price in (("prompt_tokens", self._config.price_prompt), ("completion_tokens", self._config.price_completion)):
            tokens = usage.get(name)
            if isinstance(tokens, int) and tokens > 0:
                self._counts[name] += tokens
                self._counts["cost"] += tokens * price / 1e6

    def clean(self, text: str) -> str:
        """One line of a server's words that can be written anywhere, short and without the key, which some servers repeat."""
        text = " ".join(text[:MAX_READ].split()).encode("utf-8", "backslashreplace").decode("utf-8")
        text = hide(text, self._key)
        return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


def _says_something(record: Mapping[str, Any]) -> bool:
    """Whether a response holds an answer, whatever else it holds."""
    try:
        content = record["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return False
    return isinstance(content, str) and bool(content.strip())


def _words_of(body: Any) -> str:
    """The message in an error's body, as the various servers have it."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        return str(inner.get("message") or inner.get("detail") or "") if isinstance(inner, dict) else str(inner)
    return body if isinstance(body, str) else ""


OFF, DEFAULT = "off", "default"


def answers_folder(setting: str) -> Path | None:
    """Where answers are kept.

    Args:
        setting: `default` is $XDG_CACHE_HOME/attune/answers (~/.cache without the variable), `off` keeps none, else a folder.
    """
    if setting == OFF:
        return None
    if setting == DEFAULT:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune" / "answers"
    return Path(setting).expanduser()


def key_of(question: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of everything that an answer depends on."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class Answers:
    """A folder of answers by key. Any number of processes may use it: the first answer to a question is everybody's.

    Args:
        folder: made when the first answer comes; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, key: str) -> str | None:
        """The answer to a question; None if there is none, or its file is damaged."""
        if self._folder is None:
            return None
        try:
            record = json.loads(self._path(key).read_text(encoding="utf-8"))
            return record["answer"] if isinstance(record["answer"], str) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, key: str, answer: str) -> str:
        """Keeps an answer, unless there is one by now; returns the one that counts.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._folder is None:
            return answer
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".tmp", delete=False) as draft:
            json.dump({"answer": answer}, draft, ensure_ascii=True)
        try:
            # A link refuses to replace, so that of two processes the second takes over the answer of the first.
            os.link(draft.name, path)
        except FileExistsError:
            kept = self.find(key)
            if kept is not None:
                return kept
            os.replace(draft.name, path)
        except OSError:
            os.replace(draft.name, path)
        finally:
            Path(draft.name).unlink(missing_ok=True)
        return answer

    def forget(self, key: str) -> None:
        """Drops an answer that turned out to be of no use."""
        if self._folder is not None:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self._folder is not None, "only a cache that keeps something has paths"
        return self._folder / key[:2] / f"{key}.json"


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
