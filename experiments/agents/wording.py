"""Complaints about the agent's own server in the words of the command line, and tracebacks in one."""

from __future__ import annotations

from analysis.persona_judge import in_options


def of_agent(message: str) -> str:
    """The message with options in the place of settings; the address of the agent's server is AGENT."""
    return in_options(message).replace("--url", "AGENT").replace("the simulated user", "the agent")


def last_line(error: str) -> str:
    """What a traceback ends with, which says what was wrong; the text itself where it is one line."""
    return error.strip().rpartition("\n")[2].strip()
