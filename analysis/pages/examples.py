"""Held-out users to read before and after training, chosen by rule: nobody picks one that flatters."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from analysis.pages.before_after import Pair, typical, why_this_one
from analysis.pages.transcripts import side_by_side


def about(pair: Pair, pairs: Sequence[Pair], *, whose: str = "", seed: int | None = None) -> str:
    """Who the user of the typical pair is, why this one is shown, and what it secretly wants.

    Args:
        whose: `of <run>`, where the page is about several.
    """
    of_seed = "" if seed is None else f", seed {seed}"
    return f'<p class="note">{escape(f"{whom(pair)}{of_seed}. {why_this_one(pair, pairs, whose=whose)}")}</p>{wish(pair)}'


def whom(pair: Pair) -> str:
    """The user's scenario, family and strictness."""
    return f"{pair.before['scenario_id']} ({pair.before['family']}), strictness {pair.before['strictness']:g}"


def wish(pair: Pair) -> str:
    """What the user secretly wants."""
    return f"<p><b>Hidden wish, which the agent is never shown:</b> {escape(pair.before['hidden_intention'])}</p>"


def extremes(pairs: Sequence[Pair]) -> list[tuple[str, Pair]]:
    """The pairs that lost and gained most, each with what it is; neither the typical one nor one twice."""
    ranked, shown = sorted(pairs, key=lambda pair: (pair.gain, pair.before["uid"])), [typical(pairs)]
    found = []
    for pair, ahead, behind in ((ranked[0], "gained least", "lost most"), (ranked[-1], "gained most", "lost least")):
        if pair not in shown:
            shown.append(pair)
            found.append((f"The user who {ahead if pair.gain > 0 else behind} by training", pair))
    return found


def folded(pairs: Sequence[Pair], *, run: str = "") -> str:
    """The extremes, each folded in: a typical user shows no failure.

    Args:
        run: whose they are, where the page is about several.
    """
    return "".join(
        f"<details><summary>{title}: {pair.gain:+.0f}{f' ({escape(run)})' if run else ''}</summary>"
        f'<p class="note">{escape(whom(pair))}.</p>{wish(pair)}{side_by_side(pair)}</details>'
        for title, pair in extremes(pairs)
    )
