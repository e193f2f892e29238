"""How well listeners hear: labelled replies played to the users they were written for, and set against their readers' marks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from simulator.dialogue import START_EMOTION, Dialogue
from simulator.emotion import meets
from simulator.files import ExitCode, check_out, jsonable, read_jsonl, write_whole
from simulator.hear import TellsInOrder, all_at_once, listening, play_replies, reading_of
from simulator.listener import ListenerKind, Register
from simulator.options import server_options
from simulator.reading import Reading
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Difficulty


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A labelled reply that was played."""

    label: dict[str, Any]
    change: int
    heard: tuple[str, ...]
    wanted: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Played:
    """A labelled dialogue that was played."""

    voice: str
    scenario_id: str
    replies: tuple[Heard, ...]
    final: int
    reader: float
    """Where the reader would end: the start and all marks, in [0, 100]."""


class LabelListener:
    """Hears a reply as its reader labelled it, for reference: marks do not depend on strictness, so it is no upper bound.

    Args:
        labels: of the replies of one dialogue.
    """

    def __init__(self, labels: Sequence[dict[str, Any]]) -> None:
        self._labels = {label["text"]: label for label in labels}

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The labels of a reply as a reading."""
        return reading_of(self._labels[reply], dialogue)

    async def hear(self, dialogue: Dialogue, reply: str) -> Reading:
        """The same."""
        return self.read(dialogue, reply)

    def counts(self) -> dict[str, float]:
        """It costs nothing."""
        return {}


async def play_all(
    records: Sequence[dict[str, Any]], config: RuleUserConfig, strictness: float, *, by_labels: bool = False
) -> list[Played]:
    """Every dialogue at one strictness; a reply behind an early end is not played.

    A dialogue that a model gave no usable reading of is left out.

    Args:
        by_labels: the labels are the readings, whatever listener the config names.
    """
    user = TellsInOrder(config)

    async def play(record: dict[str, Any]) -> Played:
        labels, scenario = record["replies"], user.scenario(record)
        if by_labels:
            user.listener = LabelListener(labels)
        dialogue = await play_replies(user, scenario, Difficulty.along(strictness), [label["text"] for label in labels], seed=1)
        replies = [
            Heard(label=label, change=answer.change or 0, heard=answer.heard, wanted=meets(scenario.family))
            for label, (_, _, answer) in zip(labels, dialogue.answered(), strict=False)
        ]
        reader = min(100.0, max(0.0, START_EMOTION + sum(label["mark"] for label in labels)))
        ends = {"final": dialogue.emotion, "reader": reader}
        return Played(voice=record["voice"], scenario_id=record["scenario_id"], replies=tuple(replies), **ends)

    if config.listener is ListenerKind.MODEL:
        played = await all_at_once([partial(play, record) for record in records])
        return [one for one in played if isinstance(one, Played)]
    return [await play(record) for record in records]


def figures(played: Sequence[Played]) -> dict[str, float]:
    """The figures of the table; NaN where there is nothing to count."""
    replies = [reply for one in played for reply in one.replies]
    by_user, by_voice = defaultdict(list), defaultdict(list)
    for one in played:
        by_user[one.scenario_id].append(one)
        by_voice[one.voice].append(one)
    pairs = [
        0.5 + 0.5 * np.sign((a.final - b.final) * (a.reader - b.reader))
        for ones in by_user.values()
        for a, b in combinations(ones, 2)
        if abs(a.reader - b.reader) > 10
    ]
    means = [(fmean(one.final for one in ones), fmean(one.reader for one in ones)) for ones in by_voice.values()]
    made = [bool(reply.wanted & set(reply.label["strategies"])) for reply in replies]
    hit = [bool(reply.wanted & set(reply.heard)) for reply in replies]
    pays = {
        "senseless": [reply.change > 0 for reply in replies if reply.label["coherence"] == 0],
        "mocking": [reply.change > 0 for reply in replies if reply.label["tone"] != "plain"],
        "good": [reply.change > 0 for reply in replies if reply.label["mark"] >= 6],
    }
    return {
        "r": correlation([reply.change for reply in replies], [reply.label["mark"] for reply in replies]),
        "pairs": mean(pairs),
        "rank of agents": rank_correlation(means),
        "wanted heard": mean([h for h, m in zip(hit, made, strict=True) if m]),
        "wanted false": mean([h for h, m in zip(hit, made, strict=True) if not m]),
        "F1": micro_f1(replies),
        **{f"{name} pays": mean(values) for name, values in pays.items()},
        "replies": len(replies),
    }


def mean(values: Sequence[float] | Sequence[bool]) -> float:
    """NaN of nothing."""
    return fmean(values) if values else float("nan")


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's r; NaN where one of them is constant."""
    return float(np.corrcoef(a, b)[0, 1]) if len(set(a)) > 1 and len(set(b)) > 1 else float("nan")


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rho."""
    from scipy.stats import rankdata

    a, b = zip(*pairs, strict=True)
    return correlation(list(rankdata(a)), list(rankdata(b)))


def micro_f1(replies: Iterable[Heard]) -> float:
    """Of strategies."""
    shared = heard = made = 0
    for reply in replies:
        truth = set(reply.label["strategies"])
        shared, heard, made = shared + len(truth & set(reply.heard)), heard + len(set(reply.heard)), made + len(truth)
    return 2 * shared / (heard + made) if heard + made else float("nan")


def intervals(played: Sequence[Played], *, num_draws: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """95 % of each figure when voices are drawn again."""
    rng, voices = np.random.default_rng(seed), sorted({one.voice for one in played})
    by_voice = {voice: [one for one in played if one.voice == voice] for voice in voices}
    draws = [figures([one for voice in rng.choice(voices, len(voices)) for one in by_voice[voice]]) for _ in range(num_draws)]

    def bounds(name: str) -> tuple[float, float]:
        low, high = np.nanpercentile([draw[name] for draw in draws], [2.5, 97.5])
        return float(low), float(high)

    return {name: bounds(name) for name in draws[0]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument("file", type=Path, help="labelled dialogues, JSONL (simulator/replies/)")
    parser.add_argument(
        "--listener",
        choices=("rule", "encoder", "model", "reader"),
        nargs="+",
        default=["rule"],
        help="reader: the labels in place of a listener, for reference",
    )
    parser.add_argument("--strictness", type=float, nargs="+", default=[0.1, 0.35, 0.75], help="default 0.1, VANILLA and CHALLENGING")
    parser.add_argument("--by-voice", action="store_true", help="mean final emotion and mean mark of each voice")
    parser.add_argument("--draws", type=int, default=0, help="draws of voices for 95 %% intervals (default: none)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--cache", default="default", help="folder of the model's answers, or off (default: in ~/.cache)")
    server_options(parser, "listener", "the model, with --listener model")


def run(options: argparse.Namespace) -> int:
    """The command `hearing`."""
    check_out(options.out)
    records = [record for _, record in read_jsonl(options.file, what="a labelled dialogue")]
    found, exit_code = dict[str, Any](), ExitCode.FINISHED
    for listener in options.listener:
        for d in options.strictness:
            began = time.process_time()
            kind = ListenerKind.RULE if listener == "reader" else ListenerKind(listener)
            config, _ = listening(argparse.Namespace(**{**vars(options), "listener": kind, "register": Register.OPEN, "strictness": d}))
            played = asyncio.run(play_all(records, config, d, by_labels=listener == "reader"))
            if failed := len(records) - len(played):
                print(f"{listener} at {d:g}: no usable reading in {failed} of {len(records)} dialogues", file=sys.stderr)
                exit_code = ExitCode.FAILED
            if not played:
                continue
            cost = (time.process_time() - began) / sum(len(one.replies) for one in played)
            row = {**figures(played), "ms a reply": 1e3 * cost}
            found[f"{listener} at {d:g}"] = {**row, "intervals": intervals(played, num_draws=options.draws) if options.draws else {}}
            print(f"{listener} at {d:g}: " + ", ".join(f"{name} {value:.3g}" for name, value in row.items()))
            if options.by_voice:
                print_voices(played)
    if options.out:
        write_whole(options.out, json.dumps(jsonable(found), indent=1) + "\n")
    return exit_code


def print_voices(played: Sequence[Played]) -> None:
    """Reader's and listener's mean final emotion of each voice, the best one first."""
    by_voice: dict[str, list[Played]] = defaultdict(list)
    for one in played:
        by_voice[one.voice].append(one)
    rows = [(fmean(one.reader for one in ones), fmean(one.final for one in ones), voice) for voice, ones in by_voice.items()]
    for reader, final, voice in sorted(rows, reverse=True):
        print(f"    {voice:6} reader {reader:5.1f}  final {final:5.1f}")
