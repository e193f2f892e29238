"""The encoder listener: a small network, tuned on labelled replies, reads a reply in milliseconds. English."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from simulator.dialogue import Dialogue
from simulator.emotion import meets
from simulator.listener import Register, cues_in, facts_stated, is_echo, parse_text, read_by_rule, strategies_in
from simulator.ngrams import FEWEST_WORDS, margins, reading_from, sincerity, split_moves, told_and_wished
from simulator.reading import Reading
from simulator.text import num_words

if TYPE_CHECKING:
    from simulator.encoder.network import Hearing


@cache
def make() -> EncoderListener:
    """The listener with the shipped weights.

    Raises:
        ValueError: a package is missing, or weights are not those that belong to it.
    """
    try:
        from simulator.encoder.network import Hearing
    except ModuleNotFoundError as error:
        remedy = "run make setup, or pip install 'attune-rl[encoder]'"
        raise ValueError(f"simulator.listener=encoder needs the package {error.name}, which is not installed; {remedy}") from None
    return EncoderListener(Hearing.load())


class EncoderListener:
    """Reads replies with a `Hearing`."""

    BATCH = 8
    """Replies of like length that are read together; more cost more each."""

    def __init__(self, hearing: Hearing) -> None:
        self.hearing = hearing
        self._waiting: list[tuple[Dialogue, str, asyncio.Future[Reading]]] = []

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The reading of a reply that is not yet in the dialogue.

        Raises:
            ValueError: the user speaks another language than English.
        """
        return self.read_all([(dialogue, reply)])[0]

    async def hear(self, dialogue: Dialogue, reply: str) -> Reading:
        """The same, in one batch with all replies that are waiting to be read."""
        if (reading := self._without_network(dialogue, reply)) is not None:
            return reading
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reading] = loop.create_future()
        self._waiting.append((dialogue, reply, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._read_waiting)
        return await answer

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            for (_, _, answer), reading in zip(waiting, self.read_all([one[:2] for one in waiting]), strict=True):
                if not answer.done():
                    answer.set_result(reading)
        except Exception as error:  # noqa: BLE001 - raised where each reading is awaited, which would hang without
            for _, _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)

    def counts(self) -> dict[str, float]:
        """None: no server is asked."""
        return {}

    def read_all(self, replies: Sequence[tuple[Dialogue, str]]) -> list[Reading]:
        """One reading for each reply, in order."""
        readings = [self._without_network(*one) for one in replies]
        unread = sorted((k for k, reading in enumerate(readings) if reading is None), key=lambda k: len(replies[k][1]))
        for start in range(0, len(unread), self.BATCH):
            batch = unread[start : start + self.BATCH]
            parts = [split_moves(*replies[k]) for k in batch]
            found = self.hearing.probabilities([told_and_wished(replies[k][0]) for k in batch], [rest for _, rest in parts])
            for k, (moves, _), (answers, taken_up) in zip(batch, parts, found, strict=True):
                readings[k] = self._reading(*replies[k], moves, answers, taken_up)
        return [reading for reading in readings if reading is not None]

    def _without_network(self, dialogue: Dialogue, reply: str) -> Reading | None:
        """The reading of a reply that is in no English, very short, mostly the user's own words, or made of the built-in world's moves.

        None for all others.
        """
        language = dialogue.scenario.language
        if language != "en":
            raise ValueError(f"simulator.listener must be rule or model for users who speak {language}, got 'encoder', which hears English")
        if self.hearing.words.is_foreign(reply):
            return Reading(clarity=0.0)
        if is_echo(reply, dialogue.said()):
            return Reading(echo=True)
        is_short = num_words(split_moves(dialogue, reply)[1]) < FEWEST_WORDS
        return read_by_rule(reply, dialogue.story, said=dialogue.said(), register=Register.OPEN) if is_short else None

    def _reading(self, dialogue: Dialogue, reply: str, moves: str, answers: dict[str, float], taken_up: Sequence[float]) -> Reading:
        """
        Args:
            moves: of the built-in world, in the reply.
            answers: probability of each question, by name.
            taken_up: probability of each of the user's latest turns.
        """
        over = margins(answers, self.hearing.thresholds, wanted=meets(dialogue.scenario.family))
        above = {name for name, margin in over.items() if margin >= 0.0} | set(strategies_in(moves, "en"))
        latest = dialogue.said()[-len(taken_up) :]
        told = [facts_stated(text, dialogue.story.facts) for text in latest]
        cues = {fact for facts, p in zip(told, taken_up, strict=True) if p >= self.hearing.thresholds["taken_up"] for fact in facts}
        cues |= set(cues_in(moves, dialogue.story))
        contempt, _ = parse_text(reply, "en").contempt  # in open words, and behind the end of what the network reads
        return reading_from(above, cues, sincerity=sincerity(answers, self.hearing.thresholds), contempt=contempt)
