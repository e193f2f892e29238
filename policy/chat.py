"""Dialogue to token ids: the template supplies what stands between the turns, and sampled tokens are never tokenised again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from policy.thinking import CLOSE, INSTRUCTION, OPEN


class Chat:
    """The chat template of one tokenizer, taken apart once so that a dialogue grows by appending ids only.

    Every reply ends with `end_of_turn_id`; `closing_ids` follow it before the next turn (ChatML's newline) and `header_ids` open a reply.

    Args:
        system_prompt: what the agent is told before a dialogue. One that thinks and has no tokens for the tags is told of them as well,
            unless this does it.
        thinking: whether replies begin with a thought.
        keep_thoughts: whether earlier thoughts stay in the context; None for what the template does.

    Raises:
        ValueError: there is no chat template, one under which a dialogue cannot grow by appending (it rewrites earlier turns), or one
            that strips thoughts which are to be kept, or begins replies with a thought where there is to be none.
    """

    def __init__(self, tokenizer: Any, system_prompt: str = "", *, thinking: bool = False, keep_thoughts: bool | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False) or not tokenizer.chat_template:
            raise ValueError(f"policy.model must have a fast tokenizer with a chat template, got {tokenizer.name_or_path!r}")
        self._tokenizer = tokenizer
        self._template, self._plain = (_bare(tokenizer.backend_tokenizer) for _ in range(2))
        self._plain.encode_special_tokens = True
        self.thinking = thinking
        # Said either way: some templates let a model think unless they are told not to. Those that know no thinking ignore it.
        self._options = {"enable_thinking": thinking}
        if thinking and OPEN not in tokenizer.get_vocab() and OPEN not in system_prompt:
            system_prompt = "\n\n".join(filter(None, (system_prompt, INSTRUCTION)))
        self._opening = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self.forks = thinking and self._has_to_fork(keep_thoughts)
        """Whether each reply has a sequence of its own, `opening_ids` of the words so far, because its context holds no earlier thought."""
        closing, self._before_user, self._after_user, self.header_ids = self._take_apart()
        self.end_of_turn_id, self.closing_ids = closing[0], tuple(closing[1:])
        opens_thought = self._template.decode(list(self.header_ids), skip_special_tokens=False).rstrip().endswith(OPEN)
        if opens_thought and not thinking:
            raise ValueError(f"policy.thinking must be true with a chat template that begins each reply with {OPEN}, got false")
        self.opens_thought = opens_thought
        """Whether the opening of a reply already holds <think>, so that the reply begins inside the thought."""

    def opening_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation so far, the system prompt before it and the opening of the next reply behind it.

        Args:
            messages: chat messages with `role` and `content`; texts stay text, whatever special tokens they spell.
        """
        messages = [*self._opening, *messages]
        pieces = self._pieces([message["role"] for message in messages], reply_follows=True)
        texts = [message["content"] for message in messages]
        ids = self._template_ids(pieces[0])
        for text, piece in zip(texts, pieces[1:], strict=True):
            ids += self._text_ids(text) + self._template_ids(piece)
        return ids

    def continuation_ids(self, user_text: str) -> list[int]:
        """What follows a reply's end-of-turn token when the user says `user_text`, up to and including the opening of the next reply."""
        return [*self._before_user, *self._text_ids(user_text), *self._after_user]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._template.decode(list(token_ids), skip_special_tokens=True)

    def _take_apart(self) -> tuple[list[int], list[int], list[int], tuple[int, ...]]:
        system = [message["role"] for message in self._opening]
        ended = self._pieces([*system, "user", "assistant"])
        going_on = self._pieces([*system, "user", "assistant", "user"], reply_follows=True)
        left_open = self._pieces([*system, "user", "assistant", "user"])
        closing, between = self._template_ids(ended[-1]), self._template_ids(going_on[-2])
        user_closing, after_user = self._template_ids(left_open[-1]), self._template_ids(going_on[-1])
        appends = (
            going_on[: len(ended) - 1] == ended[:-1]
            and between[: len(closing)] == closing
            and after_user[: len(user_closing)] == user_closing
        )
        if self.forks:
            closing = between[:1]
        elif not appends:
            raise ValueError(
                "policy.model must have a chat template that only appends, got one that rewrites earlier turns when a new one is added"
            )
        if not closing or closing[0] not in self._special_ids():
            ending = going_on[-2] if self.forks else ended[-1]
            raise ValueError(f"policy.model must have a chat template that ends a reply with a special token, got {ending!r}")
        header = tuple(after_user[len(user_closing) :])
        if not header:
            raise ValueError("policy.model must have a chat template with a generation prompt, got one that opens no reply")
        return closing, between[1:], after_user, header

    def _has_to_fork(self, keep_thoughts: bool | None) -> bool:
        if CLOSE not in self.decode(self._template_ids(f"{OPEN}a{CLOSE}b")):
            raise ValueError(f"policy.thinking must be false with a tokenizer whose decoding drops {CLOSE} as a special token, got true")
        thought = "\ue000thought\ue001"
        roles = [*(message["role"] for message in self._opening), "user", "assistant", "user"]
        messages = [{"role": role, "content": f"{OPEN}{thought}{CLOSE}words" if role == "assistant" else "words"} for role in roles]
        strips = thought not in self._rendered(messages, reply_follows=True)
        if keep_thoughts and strips:
            raise ValueError(
                "policy.keep_thoughts must be false or unset with a chat template that strips thoughts from earlier turns, got true"
            )
        return strips or keep_thoughts is False

    def _pieces(self, roles: Sequence[str], *, reply_follows: bool = False) -> list[str]:
        """The template's own text around the messages: one piece more than there are roles."""
        # Private-use characters: no template contains them.
        places = [f"\ue000{i}\ue001" for i in range(len(roles))]
        messages = [{"role": role, "content": place} for role, place in zip(roles, places, strict=True)]
        rest = self._rendered(messages, reply_follows=reply_follows)
        pieces = []
        for place in places:
            piece, found, rest = rest.partition(place)
            if not found:
                raise ValueError(
                    f"policy.model must have a chat template that keeps every message, got one that drops a message of {roles}"
                )
            pieces.append(piece)
        return [*pieces, rest]

    def _rendered(self, messages: Sequence[Mapping[str, str]], *, reply_follows: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=reply_follows, **self._options)
            )
        except TemplateError as error:
            roles = [message["role"] for message in messages]
            raise ValueError(f"policy.model must have a chat template for the messages of {roles}, got one that says: {error}") from error

    def _template_ids(self, text: str) -> list[int]:
        return self._template.encode(text, add_special_tokens=False).ids if text else []

    def _text_ids(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids if text else []

    def _special_ids(self) -> set[int]:
        return {token_id for token_id, token in self._template.get_added_tokens_decoder().items() if token.special}


def _bare(tokenizer: Any) -> Tokenizer:
    """A copy that neither cuts nor pads, whatever the folder was saved with: pieces of a dialogue are encoded as they are."""
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.no_truncation()
    bare.no_padding()
    return bare
