"""Dialogues as token ids by a model's chat template, and replies split into a thought and the words that the user hears.

Sampled tokens are never tokenised again: the template supplies the ids between the turns, and a dialogue grows by appending.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
INSTRUCTION = (
    f"Think before you speak: first write what the user may feel and want, and what you will do about it, between {OPEN} and {CLOSE}; "
    f"then, after {CLOSE}, write what you say to the user. The user hears only what comes after {CLOSE}."
)
"""System prompt for a model whose tokenizer has no tokens for the tags."""


@dataclass(frozen=True, kw_only=True)
class SplitReply:
    """A reply split by its tags."""

    thought: str
    """Not heard by the user, without the outer tags."""
    words: str
    """Heard by the user; never holds a tag."""
    well_formed: bool
    """One thought, closed, and then words, with nothing else around them."""


@dataclass(frozen=True, kw_only=True)
class Thought:
    """The thought before one reply."""

    text: str
    num_tokens: int
    """Sampled up to the last </think>, tags included; the whole reply where none came."""
    well_formed: bool
    cut_off: bool
    """The reply ran out of tokens before the thought ended."""


def take_apart(text: str, *, opened: bool = False) -> SplitReply:
    """The thought of a reply and its words: those after the last </think>, up to a further <think>; none without </think>.

    A reply is `opened` where the chat template has opened the thought, so that it begins inside.
    """
    before, closed, after = text.rpartition(CLOSE)
    if not closed:
        return SplitReply(thought=text.strip().removeprefix(OPEN).strip(), words="", well_formed=False)
    words, reopened, unheard = (part.strip() for part in after.partition(OPEN))
    inner = before.strip() if opened else before.strip().removeprefix(OPEN).strip()
    begins = opened or before.lstrip().startswith(OPEN)
    well_formed = begins and bool(inner) and bool(words) and not reopened and OPEN not in inner and CLOSE not in inner
    return SplitReply(thought=f"{inner} {unheard}".strip(), words=words, well_formed=well_formed)


def thought_of(reply: SplitReply, token_ids: Sequence[int], *, decode: Callable[[Sequence[int]], str], ran_out: bool) -> Thought:
    """The thought of a reply of these tokens, with its length; `ran_out` where the reply ended for want of tokens."""
    num_closed = decode(token_ids).count(CLOSE)
    # Tags may be one token or several: the first piece of the reply that decodes to as many closing tags ends with the last of them.
    lengths = range(1, len(token_ids) + 1)
    closed_by = bisect_left(lengths, num_closed, key=lambda length: decode(token_ids[:length]).count(CLOSE)) + 1
    num_tokens, cut_off = (closed_by, False) if num_closed else (len(token_ids), ran_out)
    return Thought(text=reply.thought, num_tokens=num_tokens, well_formed=reply.well_formed, cut_off=cut_off)


class Chat:
    """The chat template of one tokenizer, taken apart once so that a dialogue grows by appending ids only.

    Every reply ends with `end_of_turn_id`; `closing_ids` follow it before the next turn (ChatML's newline) and `header_ids` open a reply.

    Args:
        system_prompt: the agent's. An agent that thinks and has no tokens for the tags gets `INSTRUCTION`, unless the prompt names them.
        keep_thoughts: whether earlier thoughts stay in the context; None follows the template.

    Raises:
        ValueError: there is no chat template, or none under which a dialogue can grow by appending and think as it should.
    """

    def __init__(self, tokenizer: Any, system_prompt: str = "", *, thinking: bool = False, keep_thoughts: bool | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False) or not tokenizer.chat_template:
            raise ValueError(
                f"policy.model must have a fast tokenizer with a chat template, got {getattr(tokenizer, 'name_or_path', tokenizer)!r}"
            )
        self._tokenizer = tokenizer
        self._template, self._plain = (Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()) for _ in range(2))
        self._plain.encode_special_tokens = True
        # Pieces of a dialogue are encoded as they are, even if the folder was saved with cutting or padding.
        for encoder in (self._template, self._plain):
            encoder.no_truncation()
            encoder.no_padding()
        self.thinking = thinking
        # Set either way: some templates let a model think by default. Those that know no thinking ignore it.
        self._options = {"enable_thinking": thinking}
        if thinking and OPEN not in tokenizer.get_vocab() and OPEN not in system_prompt:
            system_prompt = "\n\n".join(filter(None, (system_prompt, INSTRUCTION)))
        self._opening = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self.forks = thinking and self._has_to_fork(keep_thoughts)
        """Whether each reply is a sequence, after `opening_ids` of the words so far, as its context holds no earlier thought."""
        closing, self._before_user, self._after_user, self.header_ids = self._split_template()
        self.end_of_turn_id, self.closing_ids = closing[0], tuple(closing[1:])
        opens_thought = self._template.decode(list(self.header_ids), skip_special_tokens=False).rstrip().endswith(OPEN)
        if opens_thought and not thinking:
            raise ValueError(f"policy.thinking must be true with a chat template that begins each reply with {OPEN}, got false")
        self.opens_thought = opens_thought
        """Whether the opening of a reply already holds <think>, so that the reply begins inside the thought."""

    def opening_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation so far, the system prompt before it and the opening of the next reply behind it.

        Texts stay text, even if they spell special tokens.
        """
        messages = [*self._opening, *messages]
        pieces = self._pieces([message["role"] for message in messages], reply_follows=True)
        texts = [message["content"] for message in messages]
        ids = self._template_ids(pieces[0])
        for text, piece in zip(texts, pieces[1:], strict=True):
            ids += self._text_ids(text) + self._template_ids(piece)
        return ids

    def continuation_ids(self, user_text: str) -> list[int]:
        """The ids after a reply's end-of-turn token when the user says `user_text`, up to and including the opening of the next reply."""
        return [*self._before_user, *self._text_ids(user_text), *self._after_user]

    def reply_ids(self, text: str) -> list[int]:
        """The ids of a reply that was written and not sampled, with its end of turn."""
        return [*self._text_ids(text), self.end_of_turn_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._template.decode(list(token_ids), skip_special_tokens=True)

    def decode_special(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return self._template.decode(list(token_ids), skip_special_tokens=False)

    def _split_template(self) -> tuple[list[int], list[int], list[int], tuple[int, ...]]:
        system = [message["role"] for message in self._opening]
        ended = self._pieces([*system, "user", "assistant"])
        going_on = self._pieces([*system, "user", "assistant", "user"], reply_follows=True)
        left_open = self._pieces([*system, "user", "assistant", "user"])
        closing, between = self._template_ids(ended[-1]), self._template_ids(going_on[-2])
        user_closing, after_user = self._template_ids(left_open[-1]), self._template_ids(going_on[-1])
        continues = between[: len(closing)] == closing and after_user[: len(user_closing)] == user_closing
        appends = continues and going_on[: len(ended) - 1] == ended[:-1]
        if self.forks:
            closing = between[:1]
        elif not appends:
            raise ValueError("policy.model must have a chat template that only appends, got one that rewrites earlier turns")
        special = {token_id for token_id, token in self._template.get_added_tokens_decoder().items() if token.special}
        if not closing or closing[0] not in special:
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
            raise ValueError("policy.keep_thoughts must be false or unset with a chat template that strips earlier thoughts, got true")
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
                raise ValueError(f"policy.model must have a chat template that keeps every message, got one that drops one of {roles}")
            pieces.append(piece)
        return [*pieces, rest]

    def _rendered(self, messages: Sequence[Mapping[str, str]], *, reply_follows: bool) -> str:
        options = {"tokenize": False, "add_generation_prompt": reply_follows, **self._options}
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), **options))
        except TemplateError as error:
            roles = [message["role"] for message in messages]
            raise ValueError(f"policy.model must have a chat template for the messages of {roles}, got one that says: {error}") from error

    def _template_ids(self, text: str) -> list[int]:
        return self._template.encode(text, add_special_tokens=False).ids if text else []

    def _text_ids(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids if text else []


class TokenColumns:
    """The columns of one dialogue, alike in length, which grow by appending.

    Sampled ids stay as they were sampled. Where earlier thoughts leave the context (`Chat.forks`), each reply begins a sequence of its own
    with all that the engine sees (`policy.rollout.dialogue.Rollout` has examples).
    """

    def __init__(self, chat: Chat) -> None:
        self.token_ids: list[int] = []
        self.turn_ids: list[int] = []
        """Agent turns finished before each token."""
        self.loss_mask: list[bool] = []
        """Whether the agent sampled it."""
        self.logprobs: list[float] = []
        """Nats; 0 where it was not sampled."""
        self.segment_starts = [0]
        self._chat, self._num_turns = chat, 0

    @property
    def context(self) -> list[int]:
        """The ids after which the next reply is sampled."""
        return self.token_ids[self.segment_starts[-1] :]

    def open(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Begins with a conversation so far."""
        self._add(self._chat.opening_ids(messages))

    def add_reply(self, token_ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Appends a sampled reply, and its end of turn where it was not sampled."""
        self._add(token_ids, logprobs=[0.0] * len(token_ids) if logprobs is None else logprobs)
        if self._chat.end_of_turn_id not in token_ids[-1:]:
            self._add([self._chat.end_of_turn_id])

    def add_answer(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Appends the user's answer, the last of these messages, and the opening of the next reply."""
        self._num_turns += 1
        if self._chat.forks:
            self.segment_starts.append(len(self.token_ids))
            self._add(self._chat.opening_ids(messages))
            return
        ids, closing = self._chat.continuation_ids(messages[-1]["content"]), len(self._chat.closing_ids)
        self._add(ids[:closing], turn=self._num_turns - 1)
        self._add(ids[closing:])

    def close(self, max_tokens: int) -> None:
        """Drops the opening of a reply that will not come and what lies beyond `max_tokens`; no sampled token is among them."""
        num_kept = max((number for number, is_sampled in enumerate(self.loss_mask, 1) if is_sampled), default=0)
        length = max(min(len(self.token_ids) - len(self._chat.header_ids), max_tokens), num_kept)
        if len(self.segment_starts) > 1:
            length = self.segment_starts.pop()
        for column in (self.token_ids, self.turn_ids, self.loss_mask, self.logprobs):
            del column[length:]

    def _add(self, ids: Sequence[int], *, logprobs: Sequence[float] | None = None, turn: int | None = None) -> None:
        self.token_ids += ids
        self.turn_ids += [self._num_turns if turn is None else turn] * len(ids)
        self.loss_mask += [logprobs is not None] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        assert len(self.logprobs) == len(self.token_ids), "a completion must have one logprob per token"
