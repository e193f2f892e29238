"""How the rule listener hears ordinary English: by weighted turns of phrase, in less than half a millisecond."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import numpy as np

from simulator.dialogue import Dialogue
from simulator.lexicon import lexicon
from simulator.listener import Moves, Register, facts_stated, read_by_rule
from simulator.reading import Reading
from simulator.words import WordFeatures
from simulator.world import LEXICON

WEIGHTS = LEXICON / "phrases_en.npz"
"""Made by `python -m simulator.encoder.train --phrases`."""


LEXICON_COUNTS = 3.0
"""Size of the features that the lexicon hears, so that the penalty on weights bears less on them."""


@cache
def strategies() -> tuple[str, ...]:
    """The support strategies."""
    return tuple(sorted(pattern.strategy for pattern in lexicon("en").patterns))


@cache
def questions() -> tuple[str, ...]:
    """What is asked about every reply."""
    return (*strategies(), "irony", "contempt", "senseless", "unclear", "takes_up", "ties_back")


class Phrases:
    """Logistic regressions, one a question, over turns of phrase, what the lexicon hears, and how much of it are the user's own words.

    Args:
        weights_FQ: a column a question.
        thresholds: of the logits, by question; filled by training.
    """

    def __init__(self, words: WordFeatures, weights_FQ: np.ndarray, thresholds: dict[str, float]) -> None:
        self.words, self.weights_FQ, self.thresholds = words, weights_FQ, thresholds

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The reading of a reply that is not yet in the dialogue.

        The lexicon alone hears the sentences that are moves of the built-in world, and replies whose lack of sense it sees.
        """
        by_lexicon = read_by_rule(reply, dialogue.story, said=dialogue.said(), register=Register.OPEN)
        rest = self.rest(dialogue, reply)
        if by_lexicon.echo or not by_lexicon.clarity or not rest:
            return by_lexicon
        features_F = self.features(dialogue, rest)
        known = np.flatnonzero(features_F)
        logits_Q = features_F[known].astype(float) @ self.weights_FQ[known].astype(float)  # in double precision the same everywhere
        heard = {name for name, logit in zip(questions(), logits_Q.tolist(), strict=True) if logit >= self.thresholds[name]}
        contempt = tuple(dict.fromkeys([*by_lexicon.contempt, *(kind for kind in ("irony", "contempt") if kind in heard)]))
        if rest != reply:
            heard |= set(by_lexicon.strategies)
        latest = facts_stated(dialogue.said()[-1], dialogue.story.facts) if "takes_up" in heard else ()
        return Reading(
            strategies=() if contempt or "senseless" in heard else tuple(name for name in strategies() if name in heard),
            cues=tuple(sorted({*by_lexicon.cues, *latest})),
            clarity=0.0 if "senseless" in heard else 0.5 if "unclear" in heard else 1.0,
            contempt=contempt,
            ties_back="ties_back" in heard,
        )

    @staticmethod
    def rest(dialogue: Dialogue, reply: str) -> str:
        """A reply without the sentences that are moves of the built-in world; empty if it has no others."""
        story = dialogue.story
        if not story.other:  # a profile from elsewhere
            return reply
        sentences = [one for one in re.findall(r"[^.!?]+[.!?]*", reply) if any(map(str.isalnum, one))]
        others = [one for one in sentences if Moves.clarity(one, story.facts, story.other) < 1.0]
        return reply if len(others) == len(sentences) else "".join(others).strip()

    def features(self, dialogue: Dialogue, reply: str) -> np.ndarray:
        """[F] of the words, then of what the lexicon hears, then 1."""
        by_lexicon = read_by_rule(reply, dialogue.story, said=dialogue.said(), register=Register.OPEN)
        heard = [float(name in by_lexicon.strategies) for name in strategies()]
        heard += [float(bool(by_lexicon.contempt)), 1.0 - by_lexicon.clarity, float(bool(by_lexicon.cues))]
        return np.concatenate(
            [self.words(dialogue.said(), reply), LEXICON_COUNTS * np.array(heard, dtype=np.float32), np.ones(1, np.float32)]
        )

    def save(self, path: Path) -> None:
        """Writes it."""
        kept = {"idf": self.words.known, "thresholds": self.thresholds}
        np.savez_compressed(path, weights_FQ=self.weights_FQ.astype(np.float16), kept=np.array(json.dumps(kept)))

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Phrases:
        """The trained one."""
        with np.load(path) as file:
            kept = json.loads(str(file["kept"]))
            return cls(WordFeatures(kept["idf"]), file["weights_FQ"].astype(np.float32), kept["thresholds"])


@cache
def shipped() -> Phrases:
    """With the weights that come with the package."""
    return Phrases.load()
