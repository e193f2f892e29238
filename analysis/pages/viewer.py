"""All transcripts of a run on one self-contained page that filters, sorts and searches them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from analysis.drawing.page import document
from analysis.drawing.style import STYLE, VIEWER
from analysis.packing import Record, pack
from analysis.pages.transcripts import ENDINGS
from analysis.runs import DIALOGUES, REPORT, TRANSCRIPTS, Run, ends_early, last_record, read_torn_run, setting
from analysis.stepwise import STEP_TITLES, Stepwise
from analysis.wording import nth
from simulator.explain import follows_rule
from simulator.files import write_whole

MAX_BYTES = 20_000_000
"""Of the packed dialogues: what a browser still opens at once."""
SCRIPT = Path(__file__).with_name("viewer.js")
HELD_OUT = "held-out"
RARELY = 64
"""From this on, thinning the training groups further would leave too few to look at, and held-out users are thinned instead."""


class Thinning(NamedTuple):
    """Which dialogues are shown: whole groups of training, and held-out users at every look."""

    training: int = 1
    """Of the training groups every n-th is shown."""
    others: int = 1
    """Of the held-out users and probes likewise."""

    def in_words(self) -> str:
        """What a reader must know of it; nothing where all are shown."""
        if self == Thinning():
            return ""
        held_out = f" and {nth(self.others)} held-out user and probe" if self.others > 1 else ""
        return f"The page would exceed {MAX_BYTES / 1e6:.0f} MB: of training it shows {nth(self.training)} group{held_out}."


def write_transcripts(run_folder: Path, *, steps: bool = False, max_bytes: int = MAX_BYTES) -> Path:
    """Writes `transcripts.html` into the folder of a run, finished or not, and returns its path.

    Args:
        steps: with the five steps to each change, which takes longer.

    Raises:
        ValueError: the folder is no run's, a line is no dialogue, or there is none yet.
    """
    # What torn metrics or a torn summary cost is none of its business.
    run = read_torn_run(run_folder)
    thinning, packed = fitting(run, max_bytes, stepwise=Stepwise(run) if steps else None)
    return write_whole(run.folder / TRANSCRIPTS, page(run, thinning, packed))


def fitting(run: Run, max_bytes: int, *, stepwise: Stepwise | None = None) -> tuple[Thinning, str]:
    """As many dialogues as the page has room for, packed as JSON.

    Raises:
        ValueError: there is none.
    """
    thinning = before = Thinning()
    num_before = 0
    while True:
        chosen = kept(run, thinning)
        data = pack(chosen if stepwise is None else map(stepwise.explained, chosen))
        if not data["dialogues"]:
            raise ValueError(f"run must have dialogues to show, got none in {run.folder}")
        packed = as_json(data)
        over = len(packed.encode()) / max_bytes
        if over <= 1.0 or len({row[0] for row in data["dialogues"]}) == 1:
            return thinning, packed
        num = len(data["dialogues"])
        in_vain = thinning.others > before.others and num == num_before
        thinning, before, num_before = thinner(thinning, over, in_vain=in_vain), thinning, num


def thinner(thinning: Thinning, over: float, *, in_vain: bool = False) -> Thinning:
    """The next thinning to try when the page is `over` times too large.

    Args:
        in_vain: that of the others took nothing away.
    """
    rarer = max(thinning.training + 1, math.floor(thinning.training * over))
    if thinning.training < RARELY:
        return thinning._replace(training=min(RARELY, rarer))
    others = max(thinning.others + 1, math.floor(thinning.others * over))
    return thinning._replace(others=others, training=rarer if in_vain else thinning.training)


def kept(run: Run, thinning: Thinning) -> Iterator[Record]:
    """The records that are shown, in the order in which they were played, the held-out ones last."""
    places: dict[bool, dict[Any, int]] = {True: {}, False: {}}
    for record in records(run):
        is_training = record["kind"] == "train"
        seen = places[is_training]
        # A dialogue without a uid is a group of its own.
        place = seen.setdefault(record.get("uid") or f"alone {len(seen)}", len(seen))
        if place % (thinning.training if is_training else thinning.others) == 0:
            yield record


def records(run: Run) -> Iterator[Record]:
    """Every dialogue of a run with its kind."""
    for record in run.dialogues():
        yield {"kind": "train", **record}
    for record in run.evaluation():
        yield {**record, "kind": HELD_OUT}


def lacks_training(run: Run) -> str:
    """That training dialogues of a run which has ended are not there, in a sentence; empty where none is missed."""
    last = last_record(run.folder / DIALOGUES)
    reason = ends_early(run.summary, last["step"] if last else 0)
    return f"{DIALOGUES} {reason}: what was said in training after that is not shown." if reason else ""


def as_json(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: nothing in it can end that element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def page(run: Run, thinning: Thinning, packed: str) -> str:
    """The whole page."""
    name = run.title.replace("/", " / ")
    by_rule = follows_rule(setting(run.config, "simulator.kind", "rule"))
    about = {"run": str(run.folder), "endings": ENDINGS, "steps": STEP_TITLES, "by_rule": by_rule}
    said_first = (lacks_training(run), thinning.in_words())
    note = "".join(f'<p class="note">{escape(said)}</p>' for said in said_first if said)
    report = f' \u00b7 <a href="{REPORT}">report</a>' if (run.folder / REPORT).is_file() else ""
    parts = [
        f'<header class="top"><p class="where">{escape(name)}{report}</p><h1>Transcripts</h1>{note}</header>',
        FORM,
        '<p id="tally" class="tally" role="status"></p>',
        '<div class="panes"><div id="list" tabindex="0" role="listbox" aria-label="dialogues"><div id="rows"></div></div>',
        '<section id="detail" tabindex="0" aria-label="the dialogue that is chosen"></section></div>',
        "<noscript><p>This page needs JavaScript, which draws the transcripts that stand in it.</p></noscript>",
        f'<script type="application/json" id="about">{as_json(about)}</script>',
        f'<script type="application/json" id="data">{packed}</script>',
        f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>",
    ]
    return document(f"{name}: transcripts", "\n".join(parts), style=STYLE + VIEWER, has_script=True, of_class="viewer")


FORM = """<form id="filters" class="filters" autocomplete="off">
<label>search<input id="search" type="search" placeholder="said or thought ( / )"></label>
<label>kind<select id="kind"><option value="">all</option></select></label>
<label>wish<select id="intention"><option value="">all</option></select></label>
<label>persona<select id="persona"><option value="">all</option></select></label>
<label>outcome<select id="outcome"><option value="">all</option></select></label>
<label>strictness<span class="range">
<input id="strictness-from" type="number" min="0" max="1" step="0.05" placeholder="0" aria-label="strictness from">
<input id="strictness-to" type="number" min="0" max="1" step="0.05" placeholder="1" aria-label="strictness to"></span></label>
<label>step<span class="range"><input id="step-from" type="number" min="0" step="1" placeholder="first" aria-label="step from">
<input id="step-to" type="number" min="0" step="1" placeholder="last" aria-label="step to"></span></label>
<label>order<select id="order"><option value="played">as played</option><option value="low">worst end first</option>
<option value="high">best end first</option><option value="rise">largest rise first</option>
<option value="strict">strictest first</option></select></label>
<span class="checks"><label class="check"><input id="thoughts" type="checkbox" checked>thoughts</label>
<label class="check"><input id="heard" type="checkbox" checked>heard</label>
<button type="reset">reset</button></span>
</form>"""
