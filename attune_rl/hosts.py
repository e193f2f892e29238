"""What adapters have in common that is not of the session: versions of their hosts, and chat templates."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.tokens import Chat

SYSTEM_PROMPT = "Somebody tells you of a trouble. Answer in one or two warm, short sentences."


def require_version(package: str, series: str) -> None:
    """Refuses a host of another series than that which its adapter was tried with, such as 1.16; ImportError in one sentence.

    To be called before the host is imported, whose other versions lack what adapters import.
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "none"
    if not f"{found}.".startswith(f"{series}."):
        raise ImportError(f"{package} must be {series}.* for this adapter, got {found}; install that")


def chat_of(tokenizer: Any, system_prompt: str) -> Chat:
    """The chat template of a tokenizer for an agent that speaks without thoughts; ValueError for one that cannot."""
    from simulator.tokens import Chat  # needs tokenizers, which not every host has

    try:
        return Chat(tokenizer, system_prompt)
    except ValueError as error:
        said = str(error).replace("policy.model must", "the model must")
        if said.startswith("policy.thinking"):
            said = "the model must be one that speaks without thoughts, got one whose chat template begins them; take an instruct model"
        raise ValueError(said) from error
