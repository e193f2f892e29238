"""A judge that learned from people: which support strategies a reply makes, from ESConv's helpers and the labels that they gave themselves.

Source: Liu et al. 2021, "Towards Emotional Support Dialog Systems", arXiv 2106.01144; github.com/thu-coai/Emotional-Support-Conversation
(CC BY-NC 4.0), development and test part. The data are not part of Attune: the judge is fitted from a checkout of theirs in a minute.
It shares neither labels nor writers with the listeners of `simulator/`. From the lexicon it takes whether words can be followed and which
facts are named; it does not hear contempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer

from simulator.dialogue import Dialogue, Listener
from simulator.emotion import meets
from simulator.encoder.network import base_encoder, base_folder, pooled
from simulator.listener import Register, read_by_rule
from simulator.reading import Reading
from simulator.rule_user import RuleUser, RuleUserConfig

PARTS = ("devWithStrategy_short.tsv", "testWithStrategy_short.tsv")
STRATEGIES: dict[str, tuple[str, ...]] = {
    "Questions": ("question",),
    "Restatement or Paraphrasing": ("restatement",),
    "Reflection of feelings": ("reflection",),
    "Self-disclosure": ("self_disclosure",),
    "Affirmation and Reassurance": ("praise", "reassurance"),
    "Providing Suggestions": ("suggestion",),
    "Information": ("information",),
    "Other": (),
}
"""ESConv's strategies in ours. Affirmation is the one of two that the user wishes for, else reassurance."""
SPOKEN = re.compile(r"[\d.]+ (?P<speaker>[01]) \d+ (?:\[(?P<strategy>.+?)\] )?(?P<text>.*)")
"""An utterance; speaker 1 is the helper."""
HEARD_AT = 0.3
"""Probability from which a strategy is heard, and the likeliest one always. Fixed before any run."""


class Utterance(NamedTuple):
    """One of a helper."""

    before: str
    """The seeker's latest turn; empty where the helper begins."""
    text: str
    strategy: str


def read_esconv(folder: Path, parts: Sequence[str] = PARTS) -> list[Utterance]:
    """The helpers' utterances, one a line: the last one, behind those that it answers.

    Args:
        folder: a checkout of the repository.
    """
    found = list[Utterance]()
    for part in parts:
        for line in (folder / "codes" / "dataset" / part).read_text(encoding="utf-8").splitlines():
            spoken = [SPOKEN.match(one.strip()) for one in line.split(" EOS ")]
            before = [one["text"].strip() for one in spoken if one and one["speaker"] == "0"]
            last = spoken[-1]
            if last and last["strategy"] in STRATEGIES:
                found.append(Utterance(before[-1] if before else "", last["text"].strip(), last["strategy"]))
    return found


class Features:
    """Sentence embeddings of the turn and of the reply, of a packaged encoder that was not tuned, beside n-grams of the reply."""

    def __init__(self, replies: Sequence[str]) -> None:
        folder = base_folder()
        self._base = base_encoder(folder).eval()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(128)
        self._tokenizer.enable_padding()
        self._words = TfidfVectorizer(ngram_range=(1, 3), min_df=3, sublinear_tf=True, token_pattern=r"[\w']+|[?!.,]").fit(replies)

    def __call__(self, turns: Sequence[str], replies: Sequence[str]) -> csr_matrix:
        """float64[N, F]: 5 x embedding of the reply, that of the turn, 20 x their product, length and question marks, then n-grams."""
        turn_NH, reply_NH = self.embed(turns), self.embed(replies)
        numbers_N2 = np.array([[np.log1p(len(text.split())) / 4.0, text.count("?") / 2.0] for text in replies])
        dense_NF = np.hstack([5.0 * reply_NH, turn_NH, 20.0 * turn_NH * reply_NH, numbers_N2])
        return hstack([csr_matrix(dense_NF), self._words.transform(replies)]).tocsr()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], size: int = 64) -> np.ndarray:
        """[N, H] mean hidden states, of length 1."""
        order, found_NH = sorted(range(len(texts)), key=lambda k: len(texts[k])), np.zeros((len(texts), self._base.config.hidden_size))
        for begin in range(0, len(order), size):
            chosen = order[begin : begin + size]
            batch = self._tokenizer.encode_batch([texts[k] or "." for k in chosen])
            ids_BL = torch.tensor([one.ids for one in batch])
            mask_BL = torch.tensor([one.attention_mask for one in batch])
            mean_BH = pooled(self._base(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state, mask_BL.bool())
            found_NH[chosen] = (mean_BH / mean_BH.norm(dim=1, keepdim=True)).numpy()
        return found_NH


class EsconvListener:
    """A `Listener` by ESConv's labels.

    Args:
        utterances: to learn from.
    """

    def __init__(self, utterances: Sequence[Utterance]) -> None:
        self._features = Features([one.text for one in utterances])
        features = self._features([one.before for one in utterances], [one.text for one in utterances])
        self._model = LogisticRegression(C=0.5, max_iter=300).fit(features, [one.strategy for one in utterances])

    def probabilities(self, turns: Sequence[str], replies: Sequence[str]) -> Iterator[dict[str, float]]:
        """Of each reply to a turn of the user, by ESConv's strategy."""
        for row in self._model.predict_proba(self._features(turns, replies)):
            yield dict(zip(self._model.classes_, row.tolist(), strict=True))

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The reading of a reply that is not yet in the dialogue."""
        by_words = read_by_rule(reply, dialogue.story, said=dialogue.said(), register=Register.OPEN)
        if by_words.echo or by_words.clarity == 0.0:
            return replace(by_words, strategies=(), contempt=())
        found = next(self.probabilities([dialogue.turns[-1].text], [reply]))
        heard = [name for name in found if found[name] > HEARD_AT] or [max(found, key=lambda name: found[name])]
        wished = meets(dialogue.scenario.family)
        strategies = [strategy for name in heard for strategy in STRATEGIES[name]]
        unsaid = "reassurance" if "praise" in wished else "praise"
        return replace(by_words, strategies=tuple(one for one in strategies if one != unsaid), contempt=())

    async def hear(self, dialogue: Dialogue, reply: str) -> Reading:
        """The same."""
        return self.read(dialogue, reply)

    def counts(self) -> dict[str, float]:
        """It costs time alone."""
        return {}


class HeardBy(RuleUser):
    """Feels by the rule and hears by another listener than the rule's."""

    def __init__(self, config: RuleUserConfig, listener: Listener) -> None:
        super().__init__(config)
        self._listener = listener

    @property
    def listener(self) -> Listener:  # type: ignore[override]
        """The one that was given."""
        return self._listener
