"""Dialogues to read: a recorded dialogue as a page shows it, dialogues cut short, and one page with all dialogues of a run."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.page import render
from analysis.runs import REPORT, TRANSCRIPTS, read_run, turns_with_thoughts
from analysis.text import nth
from simulator.dialogue import Dialogue, Outcome, Speaker
from simulator.explain import Explanation, follows_rule, replay, user_settings
from simulator.files import write_whole
from simulator.settings import setting
from simulator.world import load_bank

Record = Mapping[str, Any]
"""A line of `dialogues.jsonl` or `evaluation.jsonl`."""
HELD_OUT = "held-out"
"""Kind of an evaluation's dialogues."""
MOST_CUT_SHORT = 0.1
"""Share of dialogues cut short from which on it is reported: their scores are those of the users' first moods."""
ENDINGS = {
    "delighted": "the user was delighted",
    "left": "the user gave up and left",
    "farewell": "the user said goodbye",
    "max_turns": "the turns were used up",
    "truncated": "the context was full (rollout.max_context)",
    "error": "something broke",
}

Said = Sequence[tuple[str, str]]
"""A dialogue's turns: speaker, `agent` or `user`, and text."""


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """How many of some dialogues were cut short, and by whose words."""

    share: float
    """Of all dialogues, [0, 1]; NaN without dialogues."""
    by_user: float
    """The user's share of the characters in those cut short, [0, 1]; NaN without any."""
    replies: float
    """Mean replies of the agent in one that was cut short; NaN without any."""

    @classmethod
    def of(cls, dialogues: Iterable[tuple[str, Said]]) -> CutShort:
        """Counts dialogues, each its outcome and its turns; without ERROR ones."""
        ended = list(dialogues)
        cut = [said for outcome, said in ended if outcome == Outcome.TRUNCATED]
        num_replies = sum(speaker == "agent" for said in cut for speaker, _ in said)
        return cls(
            share=len(cut) / len(ended) if ended else math.nan,
            by_user=user_share([turn for said in cut for turn in said]),
            replies=num_replies / len(cut) if cut else math.nan,
        )

    @property
    def is_much(self) -> bool:
        """Whether to report it."""
        return self.share >= MOST_CUT_SHORT

    def words(self, *, context: str, reply: str) -> str:
        """What happened, whose words filled the context, and what to set.

        Args:
            context: the setting that bounds a dialogue's tokens, as `name=value`.
            reply: the one that bounds a reply's.
        """
        ended = f"cut short after {self.replies:.1f} replies on average, as no further one fits into {context}"
        if self.by_user >= 0.5:
            return f"{ended}: {self.by_user:.0%} of what was said are the user's words; raise {context.partition('=')[0]}"
        said = f"{1.0 - self.by_user:.0%} of what was said are the agent's own replies, each up to {reply}"
        return f"{ended}: {said}; raise {context.partition('=')[0]} or lower {reply.partition('=')[0]}"


def user_share(said: Said) -> float:
    """The user's share of the characters; NaN where nothing was said."""
    total = sum(len(text) for _, text in said)
    return sum(len(text) for speaker, text in said if speaker == "user") / total if total else math.nan


def ending_of(record: Record) -> str:
    """Why a recorded dialogue ended; for one that was cut short also whose words filled the context."""
    ending = ENDINGS.get(record["outcome"], str(record["outcome"]))
    of_user = user_share([(turn["speaker"], turn["text"]) for turn in record["turns"]])
    if record["outcome"] != Outcome.TRUNCATED or math.isnan(of_user):
        return ending
    return f"{ending}: {of_user:.0%} of what was said are the user's words"


def transcript(record: Record, title: str) -> dict[str, Any]:
    """A recorded dialogue for the template's `transcript`: emotions, ending, and turns with what was felt, thought and heard."""
    emotions = [turn["emotion"] for turn in record["turns"] if turn.get("emotion") is not None]
    absent = {"emotion": None, "change": 0, "thought": "", "heard": ()}
    return {
        "title": title,
        "emotions": emotions,
        "ending": f"emotion {' → '.join(map(str, (*emotions[:1], record['emotion'])))}; {ending_of(record)}",
        "turns": [{**absent, **turn} for turn in turns_with_thoughts(record)],
    }


def write_transcripts(run_folder: Path, *, steps: bool = False, most: int = 10_000) -> Path:
    """Writes `transcripts.html`, which filters, sorts and searches the dialogues of a run, finished or not; returns its path.

    Args:
        steps: explain each change in five steps, which takes longer.
        most: dialogues on the page, about, as a browser unpacks 50 MB then; of more only every so many groups are shown.

    Raises:
        ValueError: the folder is no run's, its users followed no rule and `steps` were asked for, or there is no dialogue yet.
    """
    run = read_run(run_folder)
    records = [{"kind": "train", **record} for record in run.dialogues()] + [{**record, "kind": HELD_OUT} for record in run.evaluation()]
    # A dialogue without a uid is a group of its own.
    groups = [record.get("uid") or f"alone {i}" for i, record in enumerate(records)]
    every = math.ceil(len(groups) / most) or 1
    kept = set(list(dict.fromkeys(groups))[::every])
    shown = [{**record, "turns": turns_with_thoughts(record)} for group, record in zip(groups, records, strict=True) if group in kept]
    if not shown:
        raise ValueError(f"run must have dialogues to show, got none in {run.folder}")
    if steps:
        config = user_settings(run.config.get("simulator") or {})
        for record in shown:
            if record["outcome"] == Outcome.ERROR:
                continue
            try:
                dialogue = Dialogue.from_dict(record, scenario=load_bank().scenario(record["scenario_id"]))
                answers = [turn for turn in replay(dialogue, config) if turn.explanation is not None]
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"step {record.get('step')} must hold dialogues of this world: {error}; leave out --steps") from error
            replies = [turn for turn in record["turns"] if turn["speaker"] == Speaker.USER][1:]
            for turn, answer in zip(replies, answers, strict=True):
                # Five texts, where the rule still gives the change.
                if answer.is_same and answer.explanation is not None:
                    turn["steps"] = [text for _, text in answer.explanation.steps()]
    page = render(
        "transcripts.html",
        name=run.title.replace("/", " / "),
        report=REPORT if (run.folder / REPORT).is_file() else "",
        note=f"The page shows {nth(every)} group of training dialogues and {nth(every)} held-out user." if every > 1 else "",
        about={
            "run": str(run.folder),
            "endings": ENDINGS,
            "steps": Explanation.TITLES,
            "by_rule": follows_rule(setting(run.config, "simulator.kind", "rule")),
        },
        packed=base64.b64encode(gzip.compress(json.dumps(shown, ensure_ascii=False).encode(), mtime=0)).decode(),
    )
    return write_whole(run.folder / TRANSCRIPTS, page)
