"""Complaints of the servers' client, which speaks of settings of a run, in the words of a command line."""

from __future__ import annotations

import re

from analysis.personas.source import FLAGS

SETTING = re.compile(r"simulator\.(\w+|\*)(?:=([\w.]+\w|\w))?")
NAMED = {**{setting: flag.replace("_", "-") for flag, setting in FLAGS.items()}, "urls": "url"}
WITHOUT_OPTION = {
    *("kind", "retry_share", "cache", "first_backoff_s", "max_backoff_s", "circuit_failures", "circuit_pause_s"),
    *("start_emotion", "max_chars", "price_prompt", "price_completion"),
}
"""Settings that no command takes."""


def in_options(message: str, prefix: str = "--") -> str:
    """The message with options in the place of `simulator.<setting>`.

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
    """The same for the judge's servers."""
    return in_options(message, "--judge-").replace("the simulated user", "the judge")
