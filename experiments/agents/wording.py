"""Complaints of the servers' client, which speaks of settings of a run, in the words of this command line."""

from __future__ import annotations

import re

SETTING = re.compile(r"simulator\.(\w+|\*)")
NAMED = {"api_key_env": "key-env", "urls": "url", "timeout_s": "timeout", "max_wait_s": "max-wait"}
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


def of_agent(message: str) -> str:
    """The same for the agent's own server, whose address is AGENT."""
    return in_options(message).replace("--url", "AGENT").replace("the simulated user", "the agent")


def of_judge(message: str) -> str:
    """The same for the judge's servers."""
    return in_options(message, "--judge-").replace("the simulated user", "the judge")


def last_line(error: str) -> str:
    """What a traceback ends with, which says what was wrong; the text itself where it is one line."""
    return error.strip().rpartition("\n")[2].strip()
