"""Settings of the servers that play the user, and their API key: read in one place, and removed from everything that is written."""

from __future__ import annotations

import html
import json
import os
import re
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import Field
from pydantic.dataclasses import dataclass

from simulator.settings import USER_SETTINGS

DEFAULT_URL = "http://127.0.0.1:8000/v1"
DECIDE_NOTHING = (
    *("urls", "api_key_env", "concurrency", "timeout_s", "retries", "retry_share", "max_wait_s", "first_backoff_s", "max_backoff_s"),
    *("circuit_failures", "circuit_pause_s", "cache", "price_prompt", "price_completion"),
    *("serve_engines", "serve_cpus", "serve_gpus", "serve_gpu_memory_share", "serve_kv_cache_mb", "serve_context"),
)
"""Settings of `EndpointConfig` without influence on a user's words: where and how patiently it is asked, and the price."""


class AnswerFormat(StrEnum):
    """How a server is asked to answer in JSON."""

    JSON_SCHEMA = "json_schema"
    """It enforces the schema (structured output)."""
    JSON_OBJECT = "json_object"
    """It enforces some JSON; the prompt names the keys."""
    TEXT = "text"
    """The prompt alone asks for it."""


class TokenLimit(StrEnum):
    """The servers' name for the limit on an answer's length."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


@dataclass(config=USER_SETTINGS, kw_only=True)
class EndpointConfig:
    """Which servers are asked, how, and how patiently (`simulator.*`)."""

    urls: list[str] = field(default_factory=lambda: [DEFAULT_URL])
    """Base addresses of OpenAI-compatible servers that serve the same model; they are asked in turn."""
    model: str = ""
    """The model's name there; required."""
    api_key_env: str = ""
    """Name of the environment variable with the key, which is stored nowhere else; empty sends none. No other variable is read."""
    thinks: bool = False
    """The model thinks before it answers."""
    temperature: Annotated[float, Field(ge=0.0)] | Literal["default"] | None = "default"
    """>= 0; null leaves it to the server, for models that refuse any. By default 0, and 0.6 for a model that thinks: at 0 these tend to go
    round in circles."""
    send_seed: bool = True
    """Send a seed that follows from the dialogue; false for servers that refuse one."""
    max_tokens: int | None = Field(default=None, gt=0)
    """> 0: tokens an answer may have, thoughts among them; one that is cut off counts as unusable. By default 800 where the server enforces
    a schema, and 4,000 where the model thinks, or may talk before it answers."""
    token_limit: TokenLimit = TokenLimit.MAX_TOKENS
    """The name under which `max_tokens` is sent."""
    answer_format: AnswerFormat = AnswerFormat.JSON_SCHEMA
    """Weaker for servers that do not enforce a schema; every answer is checked anyway."""
    extra_body: str = ""
    """JSON object of further parameters (but `model` and `messages`), e.g. '{"chat_template_kwargs": {"enable_thinking": false}}'."""
    concurrency: int = Field(default=16, gt=0)
    """> 0: calls under way at one server from one process (each engine of a run is a process)."""
    timeout_s: float = Field(default=60.0, gt=0.0)
    """> 0: seconds a call may take."""
    retries: int = Field(default=4, ge=0)
    """>= 0: further attempts at a question that got an error, no answer in time or an unusable one."""
    retry_share: float = Field(default=0.2, ge=0.0, le=1.0)
    """In [0, 1]: retries that each success earns, besides a small stock; when none is left, failures count at once."""
    first_backoff_s: float = Field(default=0.5, gt=0.0)
    """> 0: upper bound of the random pause before the first retry, in seconds; doubled before each next one."""
    max_backoff_s: float = 20.0
    """>= first_backoff_s: longest pause, in seconds."""
    max_wait_s: float = Field(default=120.0, ge=0.0)
    """>= 0: seconds a question waits, all pauses together, before it fails."""
    circuit_failures: int = Field(default=5, gt=0)
    """> 0: failures in a row after which a server is left alone for a while."""
    circuit_pause_s: float = Field(default=5.0, gt=0.0)
    """> 0: that while, in seconds."""
    cache: str = Field(default="default", min_length=1)
    """Folder of the answers on disk, $XDG_CACHE_HOME/attune/answers by default; `off` keeps none. A rerun is then free and exact."""
    price_prompt: float = Field(default=0.0, ge=0.0)
    """>= 0: money for a million prompt tokens, for `simulator/cost`."""
    price_completion: float = Field(default=0.0, ge=0.0)
    """>= 0: money for a million completion tokens."""

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise ValueError(f"simulator.urls must name at least one server, each once, got {self.urls!r}")
        for url in self.urls:
            self.check_url(url)
        if not self.model:
            raise ValueError("simulator.model must name the model that the servers serve, got ''")
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            # It may be the key itself, given in the wrong place: not repeated.
            raise ValueError("simulator.api_key_env must be the name of an environment variable, got something else (not shown)")
        if self.max_backoff_s < self.first_backoff_s:
            raise ValueError(f"simulator.max_backoff_s must be >= simulator.first_backoff_s, got {self.max_backoff_s!r}")
        self.extra()

    @property
    def answer_tokens(self) -> int:
        """`max_tokens`, or its default."""
        return self.max_tokens or (800 if self.answer_format == AnswerFormat.JSON_SCHEMA and not self.thinks else 4000)

    @property
    def answer_temperature(self) -> float | None:
        """`temperature`, or its default."""
        return (0.6 if self.thinks else 0.0) if self.temperature == "default" else self.temperature

    def extra(self) -> dict[str, Any]:
        """`extra_body`, parsed."""
        try:
            parsed = json.loads(self.extra_body or "{}")
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict) or {"model", "messages"} & set(parsed):
            raise ValueError(f"simulator.extra_body must be a JSON object without model and messages, got {self.extra_body!r}")
        return parsed

    def key(self) -> str:
        """The key from the environment, without surrounding whitespace; empty when none is sent.

        Raises:
            ValueError: the variable is not set, or a header cannot carry its content; the message shows nothing of the key.
        """
        variable = self.api_key_env
        if not variable:
            return ""
        value = os.environ.get(variable)
        if not value:
            # A name in lower case may be the key itself, given in the wrong place.
            named = repr(variable) if variable == variable.upper() else "something else (not shown: it may be a key)"
            raise ValueError(f"simulator.api_key_env must name an environment variable that is set, got {named}; export it first")
        # Files may also leave a byte order mark and spaces without width around a key.
        key = re.sub("^[\\s\ufeff\u200b\u2060\0]+|[\\s\ufeff\u200b\u2060\0]+$", "", value)
        if wrong := self.why_no_key(key):
            raise ValueError(
                f"simulator.api_key_env must name a variable with a key, got {variable!r}, which {wrong}; the key is not shown"
            )
        return key

    @staticmethod
    def check_url(url: str) -> None:
        """Raises unless the address is a plain http(s) address; one with a key in it is not repeated."""
        try:
            parts = urlsplit(url)
            has_port = parts.port != 0
        except ValueError:
            parts, has_port = urlsplit(""), False
        if "@" in url or parts.query or parts.fragment:
            raise ValueError(
                f"simulator.urls must hold no user, password or query, got one for {parts.hostname!r}; use simulator.api_key_env"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
            raise ValueError(f"simulator.urls must look like http://127.0.0.1:8000/v1, got {url!r}")

    @staticmethod
    def why_no_key(key: str) -> str:
        """Why a header cannot carry this key, as "holds ..."; empty for a good one."""
        if not key:
            return "holds nothing but whitespace"
        if not key.isascii():
            return "holds a character that is not ASCII"
        if not key.isprintable():
            return "holds a line end or another control character"
        if " " in key:
            return "holds a space"
        return "holds quotation marks around the key" if key[0] in "'\"" and key[0] == key[-1] else ""


@dataclass(config=USER_SETTINGS, kw_only=True)
class ServedConfig(EndpointConfig):
    """Servers that a run may start itself."""

    serve: str = ""
    """A Hugging Face folder or id, or `smollm2`: the run itself serves this model by vLLM, in place of `urls`. `model` is then its name."""
    serve_engines: int = Field(default=1, gt=0)
    """> 0: servers of it, which are asked in turn."""
    serve_cpus: int = Field(default=1, gt=0)
    """> 0: CPU threads of each."""
    serve_gpus: float = Field(default=0.0, ge=0.0)
    """>= 0: GPUs that each reserves: 0 computes on the CPU, a fraction shares a card, and several share the model's matrices."""
    serve_gpu_memory_share: float = Field(default=0.9, gt=0.0, le=1.0)
    """In (0, 1]: part of a GPU's memory that each fills."""
    serve_kv_cache_mb: int = Field(default=512, gt=0)
    """> 0: MiB for the keys and values of the questions under way, on a CPU."""
    serve_context: int = Field(default=8192, gt=0)
    """> 0: tokens that a question and its answer may have."""

    def __post_init__(self) -> None:
        if self.serve:
            self.model = self.model or self.serve
            if self.urls != [DEFAULT_URL]:
                raise ValueError(f"simulator.urls must be unset with simulator.serve, which starts its own servers, got {self.urls!r}")
            if self.serve_gpus > 1 and self.serve_gpus != int(self.serve_gpus):
                raise ValueError(f"simulator.serve_gpus must be a whole number above 1, got {self.serve_gpus:g}")
        super().__post_init__()


def hide(text: str, key: str) -> str:
    """The text without the key, as it is or escaped, without parts of 8 characters, and without its ends where a server masked the rest."""
    if not key:
        return text
    forms = {key, repr(key)[1:-1], json.dumps(key)[1:-1], html.escape(key), quote(key), quote(key, safe="")}
    parts = {form[i : i + 8] for form in forms for i in range(max(1, len(form) - 7))}
    either = "|".join(re.escape(part) for part in sorted({*forms, *parts}, key=len, reverse=True))
    # Parts overlap, so each match may go on by single characters that end a further part.
    ends = "|".join(f"(?<={re.escape(part[:-1])}){re.escape(part[-1])}" for part in sorted(parts) if len(part) > 1)
    text = re.sub(f"(?:{either})(?:{ends})*" if ends else either, "***", text, flags=re.IGNORECASE)

    def without_ends(found: re.Match[str]) -> str:
        is_of_key = (found[1] and key.startswith(found[1])) or (found[2] and key.endswith(found[2]))
        return "***" if is_of_key else found[0]

    return re.sub(r"([^\s*.,;'\"]*)(?:\*{2,}|\.{3,})([^\s*.,;'\"]*)", without_ends, text)
