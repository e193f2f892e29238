"""Command-line options of a server that plays or judges users: `--<who>-url`, `--<who>-model` and so on. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from simulator.options import finite

FLAGS = {
    "model": "model",
    "key_env": "api_key_env",
    "format": "answer_format",
    "concurrency": "concurrency",
    "retries": "retries",
    "timeout": "timeout_s",
    "max_wait": "max_wait_s",
    "max_tokens": "max_tokens",
    "extra_body": "extra_body",
}
"""Option -> setting of the endpoint that it sets, without the addresses."""
SETTING = re.compile(r"simulator\.(\w+|\*)(?:=([\w.]+\w|\w))?")
NAMED = {**{setting: flag.replace("_", "-") for flag, setting in FLAGS.items()}, "urls": "url"}
WITHOUT_OPTION = {
    *("kind", "retry_share", "cache", "first_backoff_s", "max_backoff_s", "circuit_failures", "circuit_pause_s"),
    *("start_emotion", "max_chars", "price_prompt", "price_completion"),
}
"""Settings that no command takes."""


def server_options(parser: argparse.ArgumentParser, who: str, title: str, *, no_key: str = "none is sent without it") -> None:
    """Adds the options of a server.

    Args:
        who: `judge` or `user`.
        no_key: the key where no variable is named.
    """
    group = parser.add_argument_group(title)
    group.add_argument(f"--{who}-url", action="append", metavar="URL", help="an OpenAI-compatible server's address; may be given again")
    group.add_argument(f"--{who}-model", metavar="NAME", help="the model's name there")
    group.add_argument(f"--{who}-key-env", metavar="VARIABLE", help=f"environment variable that holds the key; {no_key}")
    group.add_argument(f"--{who}-format", choices=("json_schema", "json_object", "text"), help="how it is asked to answer in JSON")
    group.add_argument(f"--{who}-concurrency", type=int, metavar="N", help="calls under way at one server (default 16)")
    group.add_argument(f"--{who}-retries", type=int, metavar="N", help="further attempts at an answer that cannot be read (default 4)")
    group.add_argument(f"--{who}-timeout", type=finite, metavar="S", help="seconds a call may take (default 60)")
    group.add_argument(f"--{who}-max-wait", type=finite, metavar="S", help="seconds to wait for a server that is away (default 120)")
    group.add_argument(f"--{who}-max-tokens", type=int, metavar="N", help="of an answer, thoughts among them (default 800)")
    group.add_argument(f"--{who}-extra-body", metavar="JSON", help="further parameters of each request")


def flag_settings(options: argparse.Namespace, who: str) -> dict[str, Any]:
    """The endpoint's settings that were given on the command line, and the cache.

    Args:
        who: `judge` or `user`.
    """
    given = {setting: getattr(options, f"{who}_{flag}") for flag, setting in FLAGS.items()} | {"urls": getattr(options, f"{who}_url")}
    return {name: value for name, value in given.items() if value is not None} | {"cache": options.cache}


def recorded_settings(recorded: Mapping[str, Any], config: type) -> dict[str, Any]:
    """Settings of a run's config.yaml that a config class knows."""
    known = {field.name for field in fields(config)}
    return {key: value for key, value in recorded.items() if key in known}


def in_options(message: str, prefix: str = "--") -> str:
    """A complaint of the client about `simulator.<setting>`, with options in the place of settings.

    Args:
        prefix: of the options: `--` of the agent, `--user-` or `--judge-`.
    """

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name in WITHOUT_OPTION:
            words = "the " + name.removesuffix("_s").replace("_", " ")
            return f"{words} of {value}, which no option sets," if value else words
        return prefix + NAMED.get(name, name.replace("_", "-")) + (f"={value}" if value else "")

    return SETTING.sub(option, message)


def of_judge(message: str) -> str:
    """A complaint about the judge's server."""
    return in_options(message, "--judge-").replace("the simulated user", "the judge")
