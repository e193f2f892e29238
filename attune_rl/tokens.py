"""Dialogues for a trainer that samples token ids: what the policy goes on from, and the columns that it learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attune_rl.session import Episode
from simulator.tokens import Chat, TokenColumns


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What followed the prompt: replies as they were sampled, and between them what the user said. Lists of one length."""

    token_ids: list[int]
    loss_mask: list[int]
    """1 where the policy sampled the token."""
    logprobs: list[float]
    """Nats; 0 where it was not sampled."""
    turn_ids: list[int]
    """Replies finished before the token."""


class TokenEpisode:
    """An episode whose replies are token ids: `open` it, then sample after `context` and hand in the `reply` until it is `over`."""

    def __init__(self, episode: Episode, chat: Chat) -> None:
        self.episode, self.chat, self._columns = episode, chat, TokenColumns(chat)
        self.prompt_ids: list[int] = []
        """All before the first reply."""

    @property
    def over(self) -> bool:
        """Whether the user will say no more."""
        return self.episode.over

    @property
    def context(self) -> list[int]:
        """The ids after which the next reply is sampled."""
        return self._columns.context

    def completion(self) -> Completion:
        """All after the prompt, so far."""
        columns, start = self._columns, len(self.prompt_ids)
        return Completion(
            token_ids=columns.token_ids[start:],
            loss_mask=[int(is_sampled) for is_sampled in columns.loss_mask[start:]],
            logprobs=columns.logprobs[start:],
            turn_ids=columns.turn_ids[start:],
        )

    async def open(self) -> None:
        """The user's first words; where the user breaks, the prompt is that of an empty message."""
        await self.episode.open()
        self._columns.open(self.episode.dialogue.messages() or [{"role": "user", "content": ""}])
        self.prompt_ids = list(self._columns.token_ids)

    async def reply(self, token_ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """A sampled reply, with or without its end of turn, and the user's answer.

        Args:
            logprobs: of these tokens, nats.
        """
        self._columns.add_reply(token_ids, logprobs)
        is_cut = self.chat.end_of_turn_id not in token_ids[-1:]
        heard = await self.episode.reply(self.chat.decode(token_ids), num_tokens=len(token_ids), is_cut=is_cut)
        if heard is not None:
            self._columns.add_answer(self.episode.dialogue.messages())


def chat_of(tokenizer: Any, system_prompt: str) -> Chat:
    """The chat template of a tokenizer for an agent that speaks without thoughts; ValueError for one that cannot."""
    try:
        return Chat(tokenizer, system_prompt)
    except ValueError as error:
        said = str(error).replace("policy.model must", "the model must")
        if said.startswith("policy.thinking"):
            said = "the model must be one that speaks without thoughts, got one whose chat template begins them; take an instruct model"
        raise ValueError(said) from error
