"""Dialogues as a person reads them: who said what, how the user felt about it, and why."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from analysis.cut_short import CUT_SHORT, user_share
from analysis.drawing.sparkline import sparkline
from analysis.pages.before_after import Pair
from analysis.runs import turns_with_thoughts
from simulator.dialogue import Speaker

ENDINGS = {
    "delighted": "the user was delighted",
    "left": "the user gave up and left",
    "farewell": "the user said goodbye",
    "max_turns": "the turns were used up",
    "truncated": "the context was full (rollout.max_context)",
    "error": "something broke",
}


def side_by_side(pair: Pair) -> str:
    """The same held-out dialogue before and after training."""
    return f'<div class="pair">{transcript(pair.before, "Before training")}{transcript(pair.after, "After training")}</div>'


def transcript(record: Mapping[str, Any], title: str) -> str:
    """A recorded dialogue with its emotions and thoughts."""
    emotions = [turn["emotion"] for turn in record["turns"] if turn.get("emotion") is not None]
    course = f"emotion {' → '.join(map(str, (*emotions[:1], record['emotion'])))}; {ending_of(record)}"
    head = f"<h3>{escape(title)}</h3>{sparkline(emotions)}<p>{escape(course)}</p>"
    return f'<article class="transcript"><header>{head}</header>{"".join(map(turn_html, turns_with_thoughts(record)))}</article>'


def ending_of(record: Mapping[str, Any]) -> str:
    """Why a recorded dialogue ended; of one that was cut short also whose words filled the context."""
    ending = ENDINGS.get(record["outcome"], str(record["outcome"]))
    if record["outcome"] != CUT_SHORT:
        return ending
    of_user = user_share([(turn["speaker"], turn["text"]) for turn in record["turns"]])
    return f"{ending}: {of_user:.0%} of what was said are the user's words" if of_user == of_user else ending


def turn_html(turn: Mapping[str, Any]) -> str:
    """One turn; what was felt and thought stands above the words."""
    thought = f'<p class="thought">{escape(turn["thought"])}</p>' if turn.get("thought") else ""
    said = f'<p class="said">{escape(turn["text"])}</p>'
    if turn["speaker"] == Speaker.AGENT:
        return f'<div class="turn agent"><p class="who">agent</p>{thought}{said}</div>'
    heard = "".join(f"<span>{escape(strategy.replace('_', ' '))}</span>" for strategy in turn.get("heard", ()))
    heard = f'<p class="heard">heard: {heard}</p>' if heard else ""
    return f'<div class="turn user"><p class="who">user {feeling(turn)}</p>{thought}{heard}{said}</div>'


def feeling(turn: Mapping[str, Any]) -> str:
    """The emotion after the turn and how it moved, told by a sign as well as by colour."""
    if turn.get("emotion") is None:
        return ""
    moved = turn.get("change")
    if not moved:
        return f'<span class="emotion">{turn["emotion"]}</span>'
    kind, sign = ("up", "▲") if moved > 0 else ("down", "▼")
    return f'<span class="emotion">{turn["emotion"]}</span> <span class="{kind}">{sign} {moved:+d}</span>'
