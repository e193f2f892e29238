"""Whether a model that plays the user obeys the dial: frozen conversations judged again by it at several strictnesses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue
from simulator.files import Progress
from simulator.llm.client import SimulatorError
from simulator.llm.user import LLMUser
from simulator.scenario import Difficulty


async def judged_again(user: LLMUser, frozen: Dialogue, strictness: float) -> int:
    """Final emotion, 0-100, of a user of that strictness to whom exactly these words are said; as `Frozen.judged_again`.

    Raises:
        SimulatorError: the model gave no usable answer.
    """
    emotion, turns = user.config.start_emotion, frozen.turns
    opening = replace(turns[0], emotion=emotion, change=None)
    heard = replace(frozen, difficulty=Difficulty.along(strictness), turns=(opening,), outcome=None)
    for reply, answer in zip(turns[1::2], turns[2::2], strict=False):
        felt, _ = await user.judge(heard, reply.text)
        before, emotion = emotion, user.emotion_after(emotion, felt)
        if emotion >= DELIGHTED_AT or emotion < LEFT_BELOW:
            break
        heard = heard.then(reply, replace(answer, emotion=emotion, change=emotion - before))
    return emotion


async def judge_all(user: LLMUser, frozen: Sequence[Dialogue], levels: Sequence[float]) -> np.ndarray:
    """Final emotions [levels, conversations], 0-100; NaN for a conversation of which a reply got no usable answer."""
    with Progress("Judging", len(levels) * len(frozen)) as bar:

        async def one(level: float, conversation: Dialogue) -> float:
            try:
                return float(await judged_again(user, conversation, level))
            except SimulatorError:
                return float("nan")
            finally:
                bar.add()

        try:
            found = await asyncio.gather(*(one(level, conversation) for level in levels for conversation in frozen))
        finally:
            await user.endpoints.close()
    return np.array(found).reshape(len(levels), len(frozen))


def fall_of(emotions: np.ndarray) -> tuple[float, float]:
    """By how many points the mean final emotion falls from the lowest level to the highest, and half its 95 % interval over conversations.

    Args:
        emotions: [levels, conversations].
    """
    falls = emotions[0] - emotions[-1]
    half = 1.96 * float(falls.std(ddof=1)) / np.sqrt(len(falls)) if len(falls) > 1 else float("nan")
    return float(falls.mean()), float(half)
