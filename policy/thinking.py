"""Think, then say: a reply as it was sampled, taken apart into a thought that the user never hears and the words that it does."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.reward import Reward

OPEN, CLOSE = "<think>", "</think>"
MARK = "attune_thinking"
"""Key in a model's config.json: whether it learnt to think before it speaks. Models that are not ours have none."""
RECIPE = "recipe.json"
"""Lies beside the weights of an embedded prior."""
INSTRUCTION = (
    f"Think before you speak: first write what the user may feel and want, and what you will do about it, between {OPEN} and {CLOSE}; "
    f"then, after {CLOSE}, write what you say to the user. The user hears only what comes after {CLOSE}."
)
"""System prompt for a model whose tokenizer has no tokens for the tags, and which therefore has to be told of them."""


@dataclass(kw_only=True)
class ThinkingConfig:
    """Whether the agent thinks before it speaks (`policy.*`)."""

    thinking: bool = False
    """Whether each reply is a thought between <think> and </think>, which the user never hears, and then words. `rollout.max_new_tokens`
    counts both."""
    keep_thoughts: bool | None = None
    """Whether the agent goes on seeing its earlier thoughts. Unset, as the chat template does it; false makes each reply a sequence of
    its own, with the dialogue's words alone before it."""
    format_weight: float = 1.0
    """In [0, 1]; what a dialogue loses of its reward when none of its replies is a thought and then words, and of it the share when some
    are not. 0 judges the words alone."""

    def __post_init__(self) -> None:
        if self.keep_thoughts is not None and not self.thinking:
            raise ValueError(f"policy.keep_thoughts must be unset where policy.thinking is false, got {self.keep_thoughts!r}")
        if not 0.0 <= self.format_weight <= 1.0:
            raise ValueError(f"policy.format_weight must be in [0, 1], got {self.format_weight!r}")


@dataclass(frozen=True, kw_only=True)
class Said:
    """A reply taken apart."""

    thought: str
    """What the user does not hear, without the outer tags."""
    words: str
    """What the user hears; never holds a tag."""
    well_formed: bool
    """One thought, closed, and then words, with nothing else around them."""


@dataclass(frozen=True, kw_only=True)
class Thought:
    """What is kept of the thought before one reply."""

    text: str
    num_tokens: int
    """Sampled up to the last </think>, tags included; the whole reply where none came."""
    well_formed: bool
    cut_off: bool
    """The reply ran out of tokens before the thought ended."""


def take_apart(text: str, *, opened: bool = False) -> Said:
    """The thought and the words of a reply.

    Words are what follows the last </think>, up to a further <think>: a thought is not heard, whatever is wrong with its tags. Without
    </think> nothing is heard.

    Args:
        opened: the chat template has opened the thought, so that the reply begins inside it.
    """
    before, closed, after = text.rpartition(CLOSE)
    if not closed:
        return Said(thought=text.strip().removeprefix(OPEN).strip(), words="", well_formed=False)
    words, reopened, unheard = (part.strip() for part in after.partition(OPEN))
    inner = before.strip() if opened else before.strip().removeprefix(OPEN).strip()
    begins = opened or before.lstrip().startswith(OPEN)
    well_formed = begins and bool(inner) and bool(words) and not reopened and OPEN not in inner and CLOSE not in inner
    return Said(thought=f"{inner} {unheard}".strip(), words=words, well_formed=well_formed)


def thought_of(said: Said, token_ids: Sequence[int], *, decode: Callable[[Sequence[int]], str], ran_out: bool) -> Thought:
    """What is kept of it.

    Args:
        token_ids: of the whole reply, as sampled.
        ran_out: the reply ended for want of tokens.
    """
    num_closed = decode(token_ids).count(CLOSE)
    # Tags may be one token or several: the first piece of the reply that decodes to as many closing tags ends with the last of them.
    lengths = range(1, len(token_ids) + 1)
    closed_by = bisect_left(lengths, num_closed, key=lambda length: decode(token_ids[:length]).count(CLOSE)) + 1
    return Thought(
        text=said.thought,
        num_tokens=closed_by if num_closed else len(token_ids),
        well_formed=said.well_formed,
        cut_off=ran_out and not num_closed,
    )


def with_format(reward: Reward, thoughts: Sequence[Thought], *, weight: float) -> Reward:
    """The reward less what broken replies cost: total x (1 - weight x their share), with the share of sound ones as a further term.

    It scales and adds nothing: a dialogue of sound replies earns what the user felt, as without thoughts, so that both compare.
    """
    sound = sum(thought.well_formed for thought in thoughts) / len(thoughts) if thoughts else 1.0
    return Reward(total=reward.total * (1.0 - weight * (1.0 - sound)), terms={**reward.terms, "format": sound})


def turns_with_format(turn_rewards: Sequence[float], thoughts: Sequence[Thought], *, weight: float) -> list[float]:
    """The same for each answered reply: what a broken one gained is scaled by 1 - weight, what it lost stands."""
    return [
        reward * (1.0 - weight) if reward > 0.0 and not thought.well_formed else reward
        for reward, thought in zip(turn_rewards, thoughts, strict=False)
    ]


def learnt_to_think(folder: Path) -> bool | None:
    """Whether the model in a folder thinks before it speaks; None for one that is not ours, which may do either."""
    try:
        marked = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(MARK)
    except (OSError, ValueError, AttributeError):
        return None
    return False if marked is None and (folder / RECIPE).is_file() else marked


def check_mode(folder: Path, *, thinking: bool) -> None:
    """Refuses a model of ours in the mode that it did not learn.

    Raises:
        ValueError: it thinks and is asked not to, or the other way round.
    """
    learnt = learnt_to_think(folder)
    if learnt is None or learnt == thinking:
        return
    mode, how = ("true", "to think before it speaks") if learnt else ("false", "to speak without thoughts")
    remedy = "" if learnt else ", or policy.model=embedded for a prior that thinks"
    got = str(thinking).lower()
    raise ValueError(
        f"policy.thinking must be {mode} for {str(folder)!r}, which learnt {how}, got {got}; set policy.thinking={mode}{remedy}"
    )
