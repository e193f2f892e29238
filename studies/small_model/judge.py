"""`python -m analysis small_model`: held-out dialogues before and after training as three listeners hear them, facts and sense."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from analysis.judged import SECOND
from analysis.runs import EVALUATION, read_lines, read_run
from analysis.stats import mean_interval
from simulator.dialogue import Dialogue, Outcome
from simulator.encoder import make
from simulator.files import ExitCode, check_out, progress, write_whole
from simulator.hear import Guests, rehear
from simulator.listener import ListenerKind, Register
from simulator.ngrams import told_and_wished
from simulator.rule_user import RuleUserConfig
from simulator.settings import setting
from studies.small_model.esconv import EsconvListener, HeardBy, read_esconv

RESULTS = Path(__file__).with_name("results.csv")
SENSELESS_AT = 0.5
"""Probability of `senseless` or `unclear`, by the encoder, from which a reply does not make sense. Fixed before any run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("esconv", type=Path, help="checkout of github.com/thu-coai/Emotional-Support-Conversation")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of finished runs of small_model")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV to write (default: results.csv of the study)")


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    check_out(options.out)
    listener = EsconvListener(read_esconv(options.esconv))
    rows = [row for folder in options.runs for row in rows_of(folder, listener)]
    lines = [list(rows[0]), *(row.values() for row in rows)]
    write_whole(options.out, "".join(",".join(map(str, line)) + "\n" for line in lines))
    return ExitCode.FINISHED


def rows_of(folder: Path, listener: EsconvListener) -> list[dict[str, Any]]:
    """A row for each judge.

    Raises:
        ValueError: the run is no finished one of the study.
    """
    found = read_run(folder)
    lines = [line for line in read_lines(folder / EVALUATION) if line["grid"] == "full" and line["outcome"] != Outcome.ERROR]
    looks = sorted({line["look"] for line in lines})
    probed, trained_with = setting(found.summary, "reliability.errors.plain"), setting(found.config, "simulator.listener")
    heard_again = all(setting(line, f"{SECOND}.by") == ListenerKind.RULE for line in lines)
    if len(looks) != 2 or not probed or trained_with != ListenerKind.ENCODER or not heard_again:
        raise ValueError(
            f"{folder} must be a finished run with simulator.listener=encoder, evaluation.listener=rule and callbacks.reliability, got "
            f"{len(looks)} full evaluations and the listener '{trained_with}'"
        )
    ends = [[line for line in lines if line["look"] == look] for look in looks]
    user = HeardBy(RuleUserConfig(register=Register.OPEN), listener)
    guests = Guests(user.config)
    dialogues = [[Dialogue.from_dict(line, scenario=guests.scenario(line)) for line in end] for end in ends]
    shares = [sensible_share(end) for end in dialogues]
    of_run = {
        "facts_error_before": f"{probed['before']:.3f}",
        "facts_error_after": f"{probed['after']:.3f}",
        "sensible_before": f"{shares[0]:.3f}",
        "sensible_share": f"{shares[1]:.3f}",
    }
    rows = list[dict[str, Any]]()
    finals: dict[str, tuple[int, Sequence[Sequence[int]]]] = {
        "encoder": (1, [[line["emotion"] for line in end] for end in ends]),
        "rule": (0, [[line[SECOND]["final"] for line in end] for end in ends]),
        "esconv": (0, [heard_by(user, end) for end in dialogues]),
    }
    for name, (trained, (before, after)) in finals.items():
        low, high = paired_interval(ends, before, after)
        scores = {"before": fmean(before), "after": fmean(after), "change_low": low, "change_high": high}
        said = {key: f"{value:.2f}" for key, value in scores.items()}
        rows.append({"seed": setting(found.config, "seed"), "judge": name, "trained": trained, **said, **of_run})
    return rows


def heard_by(user: HeardBy, dialogues: Sequence[Dialogue]) -> list[int]:
    """Final emotions."""
    return [asyncio.run(rehear(one, user)).emotion for one in progress(dialogues, total=len(dialogues), what="dialogues")]


def paired_interval(ends: Sequence[Sequence[Mapping[str, Any]]], before: Sequence[int], after: Sequence[int]) -> tuple[float, float]:
    """95 % interval of the mean change, paired by held-out user and strictness, over scenarios."""
    first, last = (
        {line["uid"]: final for line, final in zip(end, finals, strict=True)} for end, finals in zip(ends, (before, after), strict=True)
    )
    scenario = {line["uid"]: line["scenario_id"] for line in ends[1]}
    both = [uid for uid in last if uid in first]
    return mean_interval([last[uid] - first[uid] for uid in both], [scenario[uid] for uid in both], rng=np.random.default_rng(0))


def sensible_share(dialogues: Sequence[Dialogue], size: int = 32) -> float:
    """Share of the last answered replies that make sense to the encoder."""
    hearing, last = make().hearing, [list(one.answered())[-1] for one in dialogues]
    turns, replies, found = [told_and_wished(before) for before, _, _ in last], [reply for _, reply, _ in last], list[bool]()
    for k in range(0, len(replies), size):
        for answers, _ in hearing.probabilities(turns[k : k + size], replies[k : k + size]):
            found.append(max(answers["senseless"], answers["unclear"]) < SENSELESS_AT)
    return fmean(found)
