"""How well strategies are heard in replies that a person has labelled: precision, recall and F1 by strategy, and their macro mean."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from simulator.files import read_jsonl
from simulator.lexicon import lexicon
from simulator.listener import strategies_in

NAMES = {"taking_sides": "siding", "reflection_of_feelings": "reflection"}
"""Labels that are called otherwise here."""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A reply with the strategies that a person found in it."""

    text: str
    labels: frozenset[str]
    """By our names."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One strategy, counted over replies."""

    hits: int
    """Replies in which it was labelled and heard."""
    labelled: int
    heard: int

    @property
    def precision(self) -> float:
        """Share of what was heard that was labelled, [0, 1]; 0 when nothing was heard."""
        return self.hits / self.heard if self.heard else 0.0

    @property
    def recall(self) -> float:
        """Share of what was labelled that was heard, [0, 1]; 0 when nothing was labelled."""
        return self.hits / self.labelled if self.labelled else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both, [0, 1]."""
        return 2 * self.hits / (self.labelled + self.heard) if self.hits else 0.0


def read_labelled(path: Path, *, half: str | None = None) -> Iterator[Labelled]:
    """The replies of a JSONL file, each line an object with `text` and `labels`.

    Args:
        half: take only the lines whose `half` is this one.

    Raises:
        ValueError: a line is no labelled reply.
    """
    known = {pattern.strategy for pattern in lexicon().patterns}
    what = "a reply with `text` and `labels`"
    for number, record in read_jsonl(path, what=what):
        try:
            reply = _labelled(record, known)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} line {number} must be {what}: {error}") from error
        if half is None or record.get("half") == half:
            yield reply


def _labelled(record: Mapping[str, Any], known: set[str]) -> Labelled:
    text, labels = record["text"], record["labels"]
    if not isinstance(text, str) or not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise TypeError("text must be a string and labels a list of strings")
    names = [NAMES.get(str(label), str(label)) for label in labels]
    for name in names:
        if name not in known:
            raise ValueError(f"label must be one of {', '.join(sorted(known))}, got {name!r}")
    return Labelled(text=text, labels=frozenset(names))


def scores(replies: Iterable[Labelled]) -> dict[str, Score]:
    """Strategy -> score over all replies, in the order of the lexicon."""
    pairs = [(reply.labels, frozenset(strategies_in(reply.text))) for reply in replies]
    return {
        pattern.strategy: Score(
            hits=sum(pattern.strategy in labels & heard for labels, heard in pairs),
            labelled=sum(pattern.strategy in labels for labels, _ in pairs),
            heard=sum(pattern.strategy in heard for _, heard in pairs),
        )
        for pattern in lexicon().patterns
    }


def macro_f1(by_strategy: Mapping[str, Score]) -> float:
    """Mean F1 over all strategies, [0, 1]; one that is neither labelled nor heard counts as 0."""
    return fmean(score.f1 for score in by_strategy.values())


def table_of_scores(by_strategy: Mapping[str, Score]) -> str:
    """A line for each strategy, and the macro F1."""
    lines = [f"{'strategy':18}  precision  recall     F1  support"]
    for strategy, score in by_strategy.items():
        lines.append(f"{strategy:18}  {score.precision:9.3f}  {score.recall:6.3f}  {score.f1:5.3f}  {score.labelled:7}")
    return "\n".join([*lines, f"{'macro':18}  {'':9}  {'':6}  {macro_f1(by_strategy):5.3f}"])


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", type=Path, help="JSONL, each line a reply with its text and its labels")
    parser.add_argument("--half", choices=["dev", "test"], help="only the replies of one half, where the lines say which is theirs")


def run(options: Namespace) -> int:
    """Prints rows of strategies: precision, recall, F1 and how often each was labelled."""
    if not options.file.is_file():
        raise ValueError(f"FILE must hold labelled replies, got {str(options.file)!r}, which is not there")
    replies = list(read_labelled(options.file, half=options.half))
    if not replies:
        which = f"which has none of the half {options.half}" if options.half else "which is empty"
        raise ValueError(f"FILE must hold labelled replies, got {str(options.file)!r}, {which}")
    print(table_of_scores(scores(replies)))
    return 0
