"""An API key: read from the environment in one place, and taken out of whatever is written.

Settings of the servers that play the user; reading them imports no client.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pydantic.dataclasses import dataclass

from simulator.settings import SETTINGS

HIDDEN = "***"
WHOLLY_HIDDEN = "(not shown: it repeats the key)"
AROUND = "\ufeff\u200b\u2060\x00"
"""What files put before or behind a key beside whitespace: a byte order mark, spaces without width."""
SHORTEST_PART = 8
"""Characters of a key that are taken out although others around them are missing, as where a server masks the rest."""


def read_key(variable: str) -> str:
    """The key in an environment variable, without the whitespace and line ends that a file left around it.

    Raises:
        ValueError: there is none, or it is none that a header can carry; the sentence names the variable and shows nothing of the key.
    """
    value = os.environ.get(variable)
    if not value:
        # A name in lower case may be the key itself, given in the wrong place.
        named = repr(variable) if re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable) else "something else (not shown: it may be a key)"
        raise ValueError(f"simulator.api_key_env must name an environment variable that is set, got {named}; export it first")
    key = _without_margins(value)
    if wrong := why_no_key(key):
        raise ValueError(f"simulator.api_key_env must name a variable with a key, got {variable!r}, which {wrong}; the key is not shown")
    return key


def _without_margins(value: str) -> str:
    while (inner := value.strip().strip(AROUND)) != value:
        value = inner
    return value


def why_no_key(key: str) -> str:
    """What makes this no key that a header can carry, after the words "it"; empty for one that it can."""
    if not key:
        return "holds nothing but whitespace"
    if not key.isascii():
        return "holds a character that is not ASCII"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "holds a line end or another control character"
    if " " in key:
        return "holds a space"
    if key[0] in "'\"" and key[0] == key[-1]:
        return "holds quotation marks around the key"
    return ""


def hide(text: str, key: str) -> str:
    """The text without the key, however it is escaped, and without long parts of it; the text itself for an empty key."""
    if not key:
        return text
    text = _pattern(key).sub(HIDDEN, text)
    if any(key.lower() in plain.lower() for plain in _unescaped(text)):
        return WHOLLY_HIDDEN
    return _without_parts(text, key)


@lru_cache(maxsize=8)
def _pattern(key: str) -> re.Pattern[str]:
    """Whatever stands for the key: as it is, as Python, JSON, HTML, a URL, hexadecimal digits or base64 write it."""
    forms = {key, repr(key)[1:-1], json.dumps(key)[1:-1], html.escape(key), quote(key), quote(key, safe=""), key.encode().hex()}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        # Three places where it may begin in a longer text; the letters at either end depend on what stands around it.
        for before in range(3):
            whole = encode(b"\0" * before + key.encode()).decode().rstrip("=")
            inner = whole[(0, 2, 3)[before] : len(whole) if (before + len(key)) % 3 == 0 else -1]
            forms |= {inner} if len(inner) >= SHORTEST_PART or before == 0 else set()
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True) if form), re.IGNORECASE)


def _unescaped(text: str) -> list[str]:
    """The text as it reads once escapes of one kind are undone."""
    by_number = re.sub(r"\\(?:x|u00)([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text, flags=re.IGNORECASE)
    return [unquote(text), unquote(unquote(text)), html.unescape(text), by_number, text.replace("\\", "")]


def _without_parts(text: str, key: str) -> str:
    """Takes out what is a long part of the key, and the ends of it beside the asterisks by which a server masked the rest."""
    num = min(SHORTEST_PART, len(key))
    parts = {key[i : i + num] for i in range(len(key) - num + 1)}
    shown = [True] * len(text)
    for start in range(len(text) - num + 1):
        if text[start : start + num] in parts:
            shown[start : start + num] = [False] * num
    taken = "".join(letter if is_shown else "\0" for letter, is_shown in zip(text, shown, strict=True))
    masked = re.sub("\0+", HIDDEN, taken)

    def without_ends(found: re.Match[str]) -> str:
        before, after = found[1], found[2]
        is_of_key = (before and key.startswith(before)) or (after and key.endswith(after))
        return HIDDEN if is_of_key else found[0]

    return re.sub(r"([^\s*.,;'\"]*)(?:\*{2,}|\.{3,})([^\s*.,;'\"]*)", without_ends, masked)


DECIDE_NOTHING = (
    *("urls", "api_key_env", "concurrency", "timeout_s", "retries", "retry_share", "max_wait_s", "first_backoff_s", "max_backoff_s"),
    *("circuit_failures", "circuit_pause_s", "cache", "price_prompt", "price_completion"),
)
"""Settings of `EndpointConfig` that decide nothing of what a user says: where and how patiently it is asked, and what that costs."""


class AnswerFormat(StrEnum):
    """How a server is told to answer in JSON."""

    JSON_SCHEMA = "json_schema"
    """It enforces the schema (structured output)."""
    JSON_OBJECT = "json_object"
    """It enforces some JSON; the prompt names the keys."""
    TEXT = "text"
    """The prompt alone asks for it."""


class TokenLimit(StrEnum):
    """What servers call the limit on an answer's length."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


@dataclass(config=SETTINGS, kw_only=True)
class EndpointConfig:
    """Which servers are asked, how, and how patiently (`simulator.*`)."""

    urls: list[str] = field(default_factory=lambda: ["http://127.0.0.1:8000/v1"])
    """Base addresses of OpenAI-compatible servers that serve the same model; the load is spread over them."""
    model: str = ""
    """The model's name there; required."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key, which stands nowhere else; empty sends none. No other variable is read."""
    temperature: float | None = 0.0
    """>= 0; null leaves it to the server, for models that refuse any."""
    send_seed: bool = True
    """Send a seed that follows from the dialogue; false for servers that refuse one."""
    max_tokens: int = 800
    """> 0: tokens an answer may have; one that is cut off counts as unusable."""
    token_limit: TokenLimit = TokenLimit.MAX_TOKENS
    """Under which name `max_tokens` is sent."""
    answer_format: AnswerFormat = AnswerFormat.JSON_SCHEMA
    """Weaker for servers that do not enforce a schema; every answer is checked whatever this is."""
    extra_body: str = ""
    """JSON object of further parameters (but `model` and `messages`), e.g. '{"chat_template_kwargs": {"enable_thinking": false}}'."""
    concurrency: int = 16
    """> 0: calls under way at one server from one process (each engine of a run is a process)."""
    timeout_s: float = 60.0
    """> 0: seconds a call may take."""
    retries: int = 4
    """>= 0: further attempts at a question that got an error, no answer in time or an unusable one."""
    retry_share: float = 0.2
    """In [0, 1]: retries that each success earns, beside a small stock; when none is left, failures count at once."""
    first_backoff_s: float = 0.5
    """> 0: seconds before the first retry, doubled before each next one."""
    max_backoff_s: float = 20.0
    """>= first_backoff_s: longest pause."""
    max_wait_s: float = 120.0
    """>= 0: seconds a question waits, all pauses together, for servers that are away or limit the rate and before retries, before it
    fails."""
    circuit_failures: int = 5
    """> 0: failures in a row after which a server is left alone for a while."""
    circuit_pause_s: float = 5.0
    """> 0: that while, in seconds; grows up to eightfold as long as probes fail."""
    cache: str = "default"
    """Folder of the answers on disk, $XDG_CACHE_HOME/attune/answers by default; `off` keeps none. A rerun is then free and exact."""
    price_prompt: float = 0.0
    """>= 0: money for a million prompt tokens, for `simulator/cost`."""
    price_completion: float = 0.0
    """>= 0: money for a million completion tokens."""

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise ValueError(f"simulator.urls must name at least one server, each once, got {self.urls!r}")
        for url in self.urls:
            check_url(url)
        if not self.model:
            raise ValueError("simulator.model must name the model that the servers serve, got ''")
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            # It may be the key itself, given in the wrong place: not repeated.
            raise ValueError("simulator.api_key_env must be the name of an environment variable, got something else (not shown)")
        for name in ("max_tokens", "concurrency", "timeout_s", "first_backoff_s", "circuit_failures", "circuit_pause_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"simulator.{name} must be > 0, got {getattr(self, name)!r}")
        for name in ("retries", "max_wait_s", "price_prompt", "price_completion"):
            if getattr(self, name) < 0:
                raise ValueError(f"simulator.{name} must be >= 0, got {getattr(self, name)!r}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"simulator.temperature must be >= 0 or null, got {self.temperature!r}")
        if self.max_backoff_s < self.first_backoff_s:
            raise ValueError(f"simulator.max_backoff_s must be >= simulator.first_backoff_s, got {self.max_backoff_s!r}")
        if not 0.0 <= self.retry_share <= 1.0:
            raise ValueError(f"simulator.retry_share must be in [0, 1], got {self.retry_share!r}")
        if not self.cache:
            raise ValueError("simulator.cache must be a folder, 'default' or 'off', got ''")
        self.extra()

    def extra(self) -> dict[str, Any]:
        """What `extra_body` says."""
        try:
            parsed = json.loads(self.extra_body) if self.extra_body else {}
        except ValueError as error:
            raise ValueError(f"simulator.extra_body must be a JSON object, got {self.extra_body!r}") from error
        if not isinstance(parsed, dict):
            raise ValueError(f"simulator.extra_body must be a JSON object, got {self.extra_body!r}")
        if own := sorted({"model", "messages"} & set(parsed)):
            raise ValueError(f"simulator.extra_body must leave {' and '.join(own)} to Attune, got {self.extra_body!r}")
        return parsed

    def key(self) -> str:
        """The key from the environment; empty when none is sent.

        Raises:
            ValueError: the variable is not set here, or holds no key.
        """
        return read_key(self.api_key_env) if self.api_key_env else ""


def check_url(url: str) -> None:
    """Raises when the address is no plain http(s) address; one with a key in it is not repeated."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        parts, has_port = urlsplit(""), False
    if "@" in url or parts.query or parts.fragment:
        raise ValueError(f"simulator.urls must hold no user, password or query, got one for {parts.hostname!r}; use simulator.api_key_env")
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        raise ValueError(f"simulator.urls must look like http://127.0.0.1:8000/v1, got {url!r}")
