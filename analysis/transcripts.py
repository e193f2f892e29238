"""Held-out dialogues before and after training: the same scenarios, strictness and seeds, compared pair by pair.

Dialogues that end because their context is full: from when on that is told, and whose words filled it.

Dialogues as a person reads them: who said what, how the user felt about it, and why.

Thousands of dialogues in a few megabytes: what occurs again is written once, and the page's script puts it together.

Recorded dialogues with the five steps to each change, for runs whose users followed the embedded rule.

All transcripts of a run on one self-contained page that filters, sorts and searches them.

Held-out users to read before and after training, chosen by rule: nobody picks one that flatters.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.endpoints import Grade, Look, grade_of, looks
from analysis.page import STYLE, VIEWER, document
from analysis.plots import sparkline
from analysis.runs import DIALOGUES, REPORT, TRANSCRIPTS, Run, ends_early, last_record, read_torn_run, setting, turns_with_thoughts
from analysis.stats import mean_interval
from analysis.text import nth
from simulator.dialogue import Dialogue, Outcome, Speaker
from simulator.explain import TITLES, five_steps, follows_rule, replay, user_settings
from simulator.files import write_whole
from simulator.world import load_bank

OF_A_PAIR = ("uid", "scenario_id")
"""What the same dialogue before and after is found and resampled by."""
Record = Mapping[str, Any]
"""A line of `evaluation.jsonl`."""


class Pair(NamedTuple):
    """The same held-out dialogue before and after training."""

    before: Record
    after: Record

    @property
    def gain(self) -> float:
        """Points of final emotion."""
        return float(self.after["emotion"]) - float(self.before["emotion"])


@dataclass(frozen=True, kw_only=True)
class Gain:
    """By how much training changed the held-out score."""

    mean: float
    low: float
    high: float
    """Bounds of the 95 % interval over scenarios; it says nothing of other training seeds."""
    num_pairs: int


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """What a run's evaluations say, as far as they were taken."""

    looks: list[Look]
    pairs: list[Pair]
    """Of the full grid at the start and at the last full evaluation; empty while there is only one."""
    gain: Gain | None
    num_last: int = 0
    """Dialogues of the last full evaluation, ERROR ones aside; 0 while there is only one."""


def before_after(lines: Iterable[Record]) -> BeforeAfter:
    """Reads a run's evaluations.

    Args:
        lines: of `evaluation.jsonl`; ERROR dialogues count nowhere.

    Raises:
        ValueError: a line lacks something.
    """
    by_look: dict[int, list[tuple[Grade, Record]]] = {}
    for line in lines:
        if line.get("outcome") != Outcome.ERROR:
            grade = grade_of(line, needs=("outcome", *OF_A_PAIR))
            by_look.setdefault(grade.look, []).append((grade, line))
    groups = [group for _, group in sorted(by_look.items())]
    full = [[line for _, line in group] for group in groups if group[0][0].grid == "full"]
    pairs = paired(full[0], full[-1]) if len(full) > 1 else []
    grades = [grade for group in groups for grade, _ in group]
    num_last = len(full[-1]) if len(full) > 1 else 0
    return BeforeAfter(looks=looks(grades), pairs=pairs, gain=mean_gain(pairs) if pairs else None, num_last=num_last)


def paired(before: Sequence[Record], after: Sequence[Record]) -> list[Pair]:
    """The dialogues that both grids hold, in the order of the first."""
    later = {line["uid"]: line for line in after}
    return [Pair(line, later[line["uid"]]) for line in before if line["uid"] in later]


def mean_gain(pairs: Sequence[Pair], *, seed: int = 0) -> Gain:
    """The mean change with the percentile interval of resampled scenarios: dialogues of one scenario are not independent.

    Args:
        seed: of the bootstrap.
    """
    gains = [pair.gain for pair in pairs]
    low, high = mean_interval(
        gains, [str(pair.before["scenario_id"]) for pair in pairs], rng=np.random.default_rng(seed), within=(-100.0, 100.0)
    )
    return Gain(mean=statistics.fmean(gains), low=low, high=high, num_pairs=len(pairs))


def typical(pairs: Sequence[Pair]) -> Pair:
    """The pair whose change lies closest to the mean change of all: an example that was not picked by hand."""
    mean = statistics.fmean(pair.gain for pair in pairs)
    return min(pairs, key=lambda pair: (abs(pair.gain - mean), pair.before["uid"]))


def why_this_one(pair: Pair, pairs: Sequence[Pair], *, whose: str = "") -> str:
    """How the typical pair was found among all of them, in words."""
    mean = statistics.fmean(pair.gain for pair in pairs)
    return f"Not picked by hand: of {len(pairs)} pairs{whose}, its change of {pair.gain:+.0f} is the closest to their mean, {mean:+.1f}."


CUT_SHORT = "truncated"
"""The outcome of such a dialogue."""
MOST_CUT_SHORT = 0.1
"""Share of the dialogues from which on it is told: their scores are those of the users' first moods."""

Said = Sequence[tuple[str, str]]
"""A dialogue's turns: who spoke, `agent` or `user`, and the text."""


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """How many of some dialogues were cut short, and by whom."""

    share: float
    """Of all dialogues, [0, 1]; NaN of none."""
    by_user: float
    """Of the characters said in those that were cut short, the user's share, [0, 1]; NaN where none was."""
    replies: float
    """Replies of the agent in one that was cut short, mean; NaN where none was."""

    @classmethod
    def of(cls, dialogues: Iterable[tuple[str, Said]]) -> CutShort:
        """Of dialogues, each its outcome and its turns; those that broke are the caller's to leave out."""
        ended = list(dialogues)
        cut = [said for outcome, said in ended if outcome == CUT_SHORT]
        num_replies = sum(speaker == "agent" for said in cut for speaker, _ in said)
        return cls(
            share=len(cut) / len(ended) if ended else float("nan"),
            by_user=user_share([turn for said in cut for turn in said]),
            replies=num_replies / len(cut) if cut else float("nan"),
        )

    @property
    def is_much(self) -> bool:
        """Whether it is to be told."""
        return self.share >= MOST_CUT_SHORT

    def words(self, *, context: str, reply: str) -> str:
        """What happened, to whom it is due, and what to set.

        Args:
            context: the setting that bounds a dialogue's tokens, with its value.
            reply: the one that bounds a reply's, with its value.
        """
        ended = f"cut short after {self.replies:.1f} replies on average, as no further one fits into {context}"
        if self.by_user >= 0.5:
            return f"{ended}: {self.by_user:.0%} of what was said are the user's words; raise {context.partition('=')[0]}"
        said = f"{1.0 - self.by_user:.0%} of what was said are the agent's own replies, each up to {reply}"
        return f"{ended}: {said}; raise {context.partition('=')[0]} or lower {reply.partition('=')[0]}"


def user_share(said: Said) -> float:
    """The user's share of the characters; NaN where nothing was said."""
    lengths = [len(text) for _, text in said]
    of_user = sum(length for length, (speaker, _) in zip(lengths, said, strict=True) if speaker == "user")
    return of_user / sum(lengths) if sum(lengths) else float("nan")


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


TASK_FIELDS = ("uid", "mode", "seed")
"""What the dialogues of a group share, beside scenario and difficulty."""
DIALOGUE_FIELDS = ("kind", "step", "sibling", "look", "outcome", "emotion")
AXES = ("strictness", "reserve", "impatience")
SENTENCE = re.compile(r"(?<=[.!?]) ")
"""Where texts are taken apart: users and small policies put the same sentences together again and again."""


class Table:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def place(self, value: Any, key: Hashable | None = None) -> int:
        """The number of a value, which is added if it is new.

        Args:
            key: stands for a value that cannot be hashed.
        """
        key = value if key is None else key
        if key not in self._places:
            self._places[key] = len(self.rows)
            self.rows.append(value)
        return self._places[key]


def pack(records: Iterable[Record]) -> dict[str, Any]:
    """Dialogues as tables, JSON-able; `viewer.js` puts together again what a reader of transcripts wants to see.

    Returns:
        `sentences`: strings; `texts`: lists of sentence numbers, joined by spaces; `heard`: lists of strategies;
        `scenarios`: [id, family, hidden intention as a text]; `tasks`: [*TASK_FIELDS, scenario, *AXES]; `dialogues`:
        [task, *DIALOGUE_FIELDS, error as a text, *turns], where a turn of the agent is [text] or [text, thought as a text], one of the user
        [text, emotion, change, thought as a text, heard], with a sixth entry where the record has `steps`: their texts.

    Raises:
        ValueError: a record lacks something.
    """
    sentences, texts, heard, scenarios, tasks = Table(), Table(), Table(), Table(), Table()

    def text_of(text: str) -> int:
        parts = tuple(sentences.place(sentence) for sentence in SENTENCE.split(text))
        return texts.place(list(parts), parts)

    def turn_of(turn: Record) -> list[Any]:
        said = text_of(turn["text"])
        if turn["speaker"] == Speaker.AGENT:
            return [said, text_of(turn["thought"])] if turn.get("thought") else [said]
        strategies = turn.get("heard", [])
        thought = text_of(turn.get("thought", ""))
        row = [said, turn.get("emotion"), turn.get("change"), thought, heard.place(strategies, tuple(strategies))]
        return [*row, [text_of(step) for step in turn["steps"]]] if "steps" in turn else row

    def row_of(record: Record) -> list[Any]:
        card = (record["scenario_id"], record["family"], text_of(record["hidden_intention"]))
        scenario = scenarios.place(list(card), card)
        difficulty = [record["difficulty"][axis] for axis in AXES]
        task = [*(record.get(name) for name in TASK_FIELDS), scenario, *difficulty]
        head = [tasks.place(task, tuple(task)), *(record.get(name) for name in DIALOGUE_FIELDS)]
        return [*head, text_of(record.get("error", "")), *map(turn_of, turns_with_thoughts(record))]

    dialogues = []
    for record in records:
        try:
            dialogues.append(row_of(record))
        except (KeyError, TypeError, AttributeError) as error:
            wrong = f"without {error}" if isinstance(error, KeyError) else f"({record.get('uid')}) with a value of another kind: {error}"
            raise ValueError(f"step {record.get('step')} must hold dialogues as runs write them, got one {wrong}") from error
    tables = {"sentences": sentences, "texts": texts, "heard": heard, "scenarios": scenarios, "tasks": tasks}
    return {**{name: table.rows for name, table in tables.items()}, "dialogues": dialogues}


STEP_TITLES = TITLES


class Stepwise:
    """Explains the dialogues of one run with the settings of its users.

    Raises:
        ValueError: its users followed no rule.
    """

    def __init__(self, run: Run) -> None:
        self._config = user_settings(run.config.get("simulator") or {})

    def explained(self, record: Record) -> Record:
        """The record with `steps` on the user's turns; a turn whose change the rule no longer gives has none.

        Raises:
            ValueError: it is no dialogue of this world.
        """
        if record["outcome"] == Outcome.ERROR:
            return record
        try:
            dialogue = Dialogue.from_dict(record, scenario=load_bank().scenario(record["scenario_id"]))
            answers = [turn for turn in replay(dialogue, self._config) if turn.explanation is not None]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"step {record.get('step')} must hold dialogues of this world: {error}; leave out --steps") from error
        turns = [dict(turn) for turn in record["turns"]]
        places = [i for i, turn in enumerate(turns) if turn["speaker"] == Speaker.USER][1:]
        for place, answer in zip(places, answers, strict=True):
            if answer.is_same and answer.explanation is not None:
                turns[place]["steps"] = [text for _, text in five_steps(answer.explanation).named()]
        return {**record, "turns": turns}


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
