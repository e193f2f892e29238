"""Complaints of the servers' client, which speaks of settings of a run, in the words of a command line."""

from __future__ import annotations

import re

from analysis.personas.source import FLAGS

SETTING = re.compile(r"simulator\.(\w+|\*)")
NAMED = {**{setting: flag.replace("_", "-") for flag, setting in FLAGS.items()}, "urls": "url"}
WITHOUT_OPTION = {"kind", "retry_share"}


def in_options(message: str, prefix: str = "--") -> str:
    """The message with options in the place of `simulator.<setting>`.

    Args:
        prefix: of the options: `--` of the agent, `--user-` or `--judge-`.
    """

    def option(found: re.Match[str]) -> str:
        name = found[1]
        return found[0] if name in WITHOUT_OPTION else prefix + NAMED.get(name, name.replace("_", "-"))

    return SETTING.sub(option, message)


def of_judge(message: str) -> str:
    """The same for the judge's servers."""
    return in_options(message, "--judge-").replace("the simulated user", "the judge")
