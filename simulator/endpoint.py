"""One OpenAI-compatible server, through the official client: a request, its answer's text or why there is none, and what it cost."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simulator.api_key import hide
from simulator.asking import Messages, Schema, Unusable, whole_text
from simulator.endpoint_config import AnswerFormat, EndpointConfig
from simulator.retrying import Circuit, retry_after_s

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
