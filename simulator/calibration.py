"""Calibration of difficulty: frozen conversations judged again at every strictness, and the place of each rung of the ladder.

Realised strictness is read off conversations whose words stay as they are: how far their mean final emotion falls from that of the mildest
user (0) towards that of the strictest one (1). A simulator that drifts would look like an agent that learns.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, Dialogue, Outcome, Speaker
from simulator.emotion import Skill, appraise, onset, points_of, skill_table
from simulator.explain import read_dialogues, recorded_config, require_feelings, settings_of, transcript_file, user_settings
from simulator.files import progress, write_whole
from simulator.listener import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, Family, HiddenIntention, Scenario, Split
from simulator.scripted import AGENTS, RUNGS, ScriptedAgent, mean_score, play, sample, score_agent
from simulator.version import world_of
from simulator.world import load_bank

LEVELS = tuple(round(0.05 * k, 2) for k in range(21))
RECORDED_AT = (0.2, 0.5, 0.8, 0.95)
"""Strictnesses at which the panel's conversations are held."""
MIN_SPEARMAN = 0.95
PLEASED, DISPLEASED = float(RELIEVED_AT), 40.0
"""A rung pleases until the next skill is asked for, and no more once the one after that is."""
BESIDE = 0.01
"""Distance from an onset at which a rung is scored."""
L6_UP_TO = 0.9
"""Strictness up to which all six skills please."""
MISSED = 1
"""Exit code when a bound is missed."""
IN_THE_PANEL, IN_A_RUN = 4, 24
"""Scenarios of each family in the panel, and dialogues of each family taken from a run."""
CLIMBS = 4
"""Multiple of the panel's scenarios that the rungs' places take, where single dialogues vary more."""
TABLE, FIGURE = "calibration.json", "calibration.svg"
PANEL_AGENTS = {
    **{name: agent for name, agent in AGENTS.items() if name.startswith("L")},
    **{f"without {skill}": ScriptedAgent(name=f"without {skill}", skills=frozenset(RUNGS) - {skill}) for skill in Skill},
    "praise": AGENTS["praise"],
    "parrot": AGENTS["parrot"],
}
"""Agents of the panel: the ladder, agents that lack one skill each, flattery, and the golden sentence."""


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A conversation whose words stay."""

    agent: str
    dialogue: Dialogue


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Final emotions of one set of conversations by commanded strictness."""

    levels: tuple[float, ...]
    emotion: tuple[float, ...]
    """Mean final emotion at each level, 0-100."""
    realised: tuple[float, ...]
    """Realised strictness at each level."""
    spearman: float
    """Rank correlation of realised with commanded strictness; 0 where nothing moves."""
    num_dialogues: int

    @property
    def is_faithful(self) -> bool:
        """Whether it keeps the bound."""
        return self.spearman >= MIN_SPEARMAN


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rung's scores on both sides of its place, 0-100; None where the ladder has no bound."""

    below: float | None
    """Just below the onset of the next skill; at least PLEASED."""
    above: float | None
    """Just above the onset of the skill after next; below DISPLEASED."""

    @property
    def is_kept(self) -> bool:
        """Whether both bounds are kept."""
        return (self.below is None or self.below >= PLEASED) and (self.above is None or self.above < DISPLEASED)


Places = Mapping[Family, Mapping[str, Place]]


def panel(scenarios: Sequence[Scenario], *, user: RuleUser, seed: int = 0) -> list[Frozen]:
    """Conversations of all agents with the same users; the scenarios of a family share out the four strictnesses."""
    held = []
    for family in FAMILIES:
        members = [scenario for scenario in scenarios if scenario.family == family]
        for j, scenario in enumerate(members):
            held += [(scenario, level) for level in RECORDED_AT[j % len(RECORDED_AT) :: min(len(members), len(RECORDED_AT))]]
    return [
        Frozen(agent=name, dialogue=play(agent, scenario, Difficulty.along(level), seed=seed + i, user=user))
        for i, (scenario, level) in enumerate(held)
        for name, agent in PANEL_AGENTS.items()
    ]


def from_run(dialogues: Iterable[Dialogue], per_family: int, *, seed: int) -> list[Frozen]:
    """Up to `per_family` answered conversations of each family, chosen by the seed."""
    by_family: dict[Family, list[Dialogue]] = {}
    for dialogue in dialogues:
        if dialogue.num_replies and dialogue.turns[-1].speaker is Speaker.USER:
            by_family.setdefault(dialogue.scenario.family, []).append(dialogue)
    chance = random.Random(seed)
    chosen = [one for family in sorted(by_family) for one in chance.sample(by_family[family], min(per_family, len(by_family[family])))]
    return [Frozen(agent="recorded", dialogue=dialogue) for dialogue in chosen]


def judged_again(dialogue: Dialogue, difficulty: Difficulty, config: RuleUserConfig) -> int:
    """Final emotion, 0-100, of a user of that difficulty who hears exactly these words.

    A user who leaves or is delighted hears no more of them; a goodbye of the agent ends nothing, since all levels are to hear the same.
    """
    emotion = config.start_emotion
    opening = replace(dialogue.turns[0], emotion=emotion, change=None)
    heard = replace(dialogue, difficulty=difficulty, turns=(opening,), outcome=None)
    for reply, answer in zip(dialogue.turns[1::2], dialogue.turns[2::2], strict=False):
        appraisal = appraise(heard, reply.text, register=config.register or Register.OPEN)
        points = points_of(appraisal, heard, momentum=config.momentum, quantise=config.quantise)
        emotion = points.after
        if emotion >= DELIGHTED_AT or emotion < LEFT_BELOW:
            break
        heard = heard.then(reply, replace(answer, emotion=emotion, change=points.felt))
    return emotion


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Final emotions of every conversation at every level, the levels 0 and 1 always among them."""

    frozen: tuple[Frozen, ...]
    levels: tuple[float, ...]
    emotions: np.ndarray
    """[levels, conversations], 0-100."""

    def curve(self, levels: Sequence[float], keep: Sequence[bool] | None = None) -> Curve:
        """The curve of all or some conversations at some of the levels."""
        emotions = self.emotions if keep is None else self.emotions[:, np.asarray(keep, bool)]
        means = emotions.mean(axis=1)
        at = [self.levels.index(level) for level in levels]
        realised = (means[0] - means[at]) / (means[0] - means[-1]) if means[0] != means[-1] else np.zeros(len(at))
        return Curve(
            levels=tuple(levels),
            emotion=tuple(means[at].tolist()),
            realised=tuple(realised.tolist()),
            spearman=float(spearmanr(levels, realised).statistic) if np.ptp(realised) > 0 else 0.0,
            num_dialogues=emotions.shape[1],
        )

    def by_family(self, levels: Sequence[float]) -> dict[Family, Curve]:
        """A curve for each family among the conversations."""
        kept = {family: [one.dialogue.scenario.family == family for one in self.frozen] for family in FAMILIES}
        return {family: self.curve(levels, keep) for family, keep in kept.items() if any(keep)}

    def by_rung(self, family: Family) -> dict[str, tuple[float, float]]:
        """Mean final emotions of each rung from L1 on and of the rung below it, at levels at which the rung's own skill counts."""

        def score(rung: int, skill: Skill) -> float:
            columns = [i for i, one in enumerate(self.frozen) if one.dialogue.scenario.family == family and one.agent == f"L{rung}"]
            rows = [i for i, level in enumerate(self.levels) if level > onset(skill, family)]
            return float(self.emotions[np.ix_(rows, columns)].mean())

        return {f"L{k}": (score(k, skill), score(k - 1, skill)) for k, skill in enumerate(RUNGS, start=1)}


def rescored(frozen: Sequence[Frozen], levels: Sequence[float], config: RuleUserConfig) -> Scores:
    """Judges all conversations at all levels."""
    all_levels = tuple(sorted({0.0, 1.0, *levels}))
    points = [Difficulty.along(level) for level in all_levels]
    # Conversation by conversation, so that each reply is parsed once and then cached.
    watched = progress(frozen, total=len(frozen), what="Judging")
    emotions = [[judged_again(one.dialogue, point, config) for point in points] for one in watched]
    return Scores(frozen=tuple(frozen), levels=all_levels, emotions=np.array(emotions, float).T)


def places(scenarios: Sequence[Scenario], *, user: RuleUser, seed: int = 0) -> dict[Family, dict[str, Place]]:
    """Each rung's place in each family, in conversations held for the purpose, since hints depend on difficulty too."""
    members = {family: [scenario for scenario in scenarios if scenario.family == family] for family in FAMILIES}
    found: dict[Family, dict[str, Place]] = {}
    for family in progress([family for family in FAMILIES if members[family]], total=len(FAMILIES), what="Climbing"):
        found[family] = {}
        for rung in range(len(RUNGS) + 1):
            below = onset(RUNGS[rung], family) - BESIDE if rung < len(RUNGS) else L6_UP_TO
            above = [onset(RUNGS[rung + 1], family) + BESIDE] if rung + 1 < len(RUNGS) else []
            if rung == 0 and _is_advice(family):
                above = []  # always advising is the wish of this family: L0 has L1's skill here
            scores = score_agent(f"L{rung}", members[family], [below, *above], user=user, seed=seed)
            means = [mean_score(scores[level]) for level in (below, *above)]
            found[family][f"L{rung}"] = Place(below=means[0], above=means[1] if above else None)
    return found


def in_order(by_rung: Mapping[str, tuple[float, float]], *, is_advice: bool) -> bool:
    """Whether each rung scores more than the one before; where advice is wanted, L0 has L1's skill."""
    return all(own > below for rung, (own, below) in by_rung.items() if not (is_advice and rung == "L1"))


def _is_advice(family: Family) -> bool:
    return family.intention is HiddenIntention.ADVICE


def calibrate(options: argparse.Namespace) -> int:
    """Judges the frozen conversations, prints the table and writes the files asked for; returns the exit code.

    Raises:
        ValueError: a level is impossible, or the file of dialogues is missing, of another world or without anything to judge.
    """
    levels = tuple(options.levels or LEVELS)
    if len(levels) < 3 or not all(0.0 <= level <= 1.0 for level in levels) or any(low >= high for low, high in pairwise(levels)):
        raise ValueError(f"--levels must be at least three strictnesses in [0, 1], rising, got {' '.join(map(str, levels))}")
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, got {str(options.out)!r}, which is a file")
    if options.dialogues:
        frozen, config = _recorded(options)
        found: Places = {}
    else:
        config = user_settings({"register": options.register})
        user, scenarios = RuleUser(config), load_bank().scenarios(Split(options.split))
        per_family = options.per_family or IN_THE_PANEL
        frozen = panel(sample(scenarios, per_family, seed=options.seed), user=user, seed=options.seed)
        found = places(sample(scenarios, CLIMBS * per_family, seed=options.seed), user=user, seed=options.seed)
    result = Calibration(rescored(frozen, levels, config), levels, found)
    print(*result.lines(by_family=options.by_family, source=str(options.dialogues or f"{options.split} scenarios")), sep="\n")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        source = str(options.dialogues.name) if options.dialogues else options.split
        record = {"world": world_of(config), "source": source, "seed": options.seed, **result.record()}
        write_whole(options.out / TABLE, json.dumps(record, indent=1) + "\n")
        write_whole(options.out / FIGURE, figure(result, title=f"Commanded and realised strictness, {source}"))
        print(f"{options.out / TABLE}, {options.out / FIGURE}")
    return 0 if result.is_kept else MISSED


def _recorded(options: argparse.Namespace) -> tuple[list[Frozen], RuleUserConfig]:
    """Conversations of a run, and the settings of their users."""
    path = transcript_file(options.dialogues, evaluation=False)
    found = list(read_dialogues(path, load_bank()))
    own = [settings_of(record) for record, _ in found]
    if any(settings != own[0] for settings in own):
        raise ValueError(f"{path} must hold dialogues of users with the same settings, got several: split it")
    config = user_settings({"register": options.register}, *own[:1], settings_of(recorded_config(path)))
    if config.preset is Preset.SAGE:
        raise ValueError(f"{path} must be of users of the preset training, got sage: there difficulty has no influence")
    recorded = [dialogue for _, dialogue in found if dialogue.outcome is not Outcome.ERROR]
    frozen = from_run(recorded, options.per_family or IN_A_RUN, seed=options.seed)
    if not frozen:
        raise ValueError(f"{path} must hold a dialogue in which the user answers a reply, got none")
    for one in frozen:
        require_feelings(one.dialogue)
    return frozen, config


class Calibration:
    """All curves and places, and whether the bounds are kept."""

    def __init__(self, scores: Scores, levels: Sequence[float], found: Places) -> None:
        self.overall: Curve = scores.curve(levels)
        self.families = scores.by_family(levels)
        self.places = found
        self.order = {family: scores.by_rung(family) for family in self.families} if found else {}
        curves = {"all": self.overall, **{str(family): curve for family, curve in self.families.items()}}
        self.missed = [name for name, curve in curves.items() if not curve.is_faithful]
        self.missed += [f"{family} {rung}" for family, rungs in found.items() for rung, place in rungs.items() if not place.is_kept]
        self.missed += [f"{family} order" for family, rungs in self.order.items() if not in_order(rungs, is_advice=_is_advice(family))]

    @property
    def is_kept(self) -> bool:
        """Whether every bound is kept."""
        return not self.missed

    def lines(self, *, by_family: bool, source: str) -> Iterator[str]:
        """The table."""
        overall, families = self.overall, self.families
        yield f"{source}: {overall.num_dialogues:,} frozen dialogues of {len(families)} families judged again"
        yield "\ncommanded  realised  emotion   realised by family, lowest and highest"
        for i, level in enumerate(overall.levels):
            spread = [curve.realised[i] for curve in families.values()]
            yield f"{level:9.2f}  {overall.realised[i]:8.3f}  {overall.emotion[i]:7.1f}  {min(spread):9.3f}  {max(spread):9.3f}"
        worst, lowest = min((curve.spearman, str(family)) for family, curve in families.items())
        yield f"\nSpearman {overall.spearman:.3f} overall, {worst:.3f} in the worst family ({lowest}); at least {MIN_SPEARMAN}"
        if by_family:
            yield "\nfamily                  dialogues  Spearman  realised at 0.25 0.5 0.75 of the levels"
            for family, curve in families.items():
                quarters = "  ".join(f"{curve.realised[round(q * (len(curve.levels) - 1))]:.3f}" for q in (0.25, 0.5, 0.75))
                yield f"{family!s:22}  {curve.num_dialogues:9}  {curve.spearman:8.3f}  {quarters}"
        if self.places:
            yield "\neach rung in its place"
            yield f"below: just below the next skill's onset (L6: at {L6_UP_TO}), at least {PLEASED:.0f}"
            yield f"above: just above the onset after it, below {DISPLEASED:.0f}"
            yield "lead: over the rung below on frozen dialogues, from the level on at which its own skill counts, above 0"
            yield "\nrung   family                   below   above    lead"
            for rung in next(iter(self.places.values())):
                rows: dict[str, tuple[float | None, ...]] = {
                    str(family): (rungs[rung].below, rungs[rung].above, self._lead(family, rung)) for family, rungs in self.places.items()
                }
                if not by_family:
                    worst_of = zip((min, max, min), zip(*rows.values(), strict=True), strict=True)
                    values = (choose((v for v in column if v is not None), default=None) for choose, column in worst_of)
                    rows = {"worst of each": tuple(values)}
                for name, row in rows.items():
                    yield f"{rung:5}  {name:22}  " + "  ".join(f"{'-' if value is None else f'{value:.1f}':>6}" for value in row)
        yield "\nall bounds kept" if self.is_kept else f"\nMISSED: {', '.join(self.missed)}"

    def _lead(self, family: Family, rung: str) -> float | None:
        if rung not in self.order[family] or (_is_advice(family) and rung == "L1"):
            return None
        own, below = self.order[family][rung]
        return own - below

    def record(self) -> dict[str, Any]:
        """A JSON-able record."""
        return {
            "is_kept": self.is_kept,
            "missed": self.missed,
            "min_spearman": MIN_SPEARMAN,
            "overall": asdict(self.overall),
            "families": {str(family): asdict(curve) for family, curve in self.families.items()},
            "places": {str(family): {rung: asdict(place) for rung, place in rungs.items()} for family, rungs in self.places.items()},
            "frozen_rung_and_rung_below": {str(family): by_rung for family, by_rung in self.order.items()},
        }


WIDE, HIGH, MARGIN = 420, 340, 60
PALE, BOLD, GREY, LIGHT = "#9db8d9", "#1f4e8c", "#8a8a8a", "#e6e6e6"


def figure(result: Calibration, *, title: str) -> str:
    """An SVG: realised over commanded strictness, a pale line for each family; and the scores of rungs, if there are any."""
    foot = MARGIN + HIGH + 42
    parts = [_text(MARGIN, 24, title, size=15), _text(MARGIN, foot, "realised over commanded strictness, and where skills begin")]
    curves = [*result.families.values(), result.overall]
    low, high = min(0.0, *(min(curve.realised) for curve in curves)), max(1.0, *(max(curve.realised) for curve in curves))

    def at(x: float, y: float) -> tuple[float, float]:
        return MARGIN + x * WIDE, MARGIN + HIGH * (high - y) / (high - low)

    for k in range(6):
        parts += [_line([at(0, k / 5), at(1, k / 5)], LIGHT), _text(MARGIN - 8, at(0, k / 5)[1] + 4, f"{k / 5:.1f}", anchor="end")]
        parts.append(_text(at(k / 5, low)[0], MARGIN + HIGH + 18, f"{k / 5:.1f}", anchor="middle"))
    for skill, begins in skill_table()["onset"].items():
        x, top = at(begins, high)
        parts += [_line([(x, top), at(begins, low)], GREY, dash="2 3"), _text(x, MARGIN - 6, skill, anchor="middle")]
    parts.append(_line([at(0, 0), at(1, 1)], GREY, dash="5 4"))
    for curve in curves:
        is_overall = curve is result.overall
        points = [at(*point) for point in zip(curve.levels, curve.realised, strict=True)]
        parts.append(_line(points, BOLD if is_overall else PALE, width=2.5 if is_overall else 1.0))
    left, names = 2 * MARGIN + WIDE, list(next(iter(result.places.values()), ()))
    for score in (0.0, 20.0, DISPLEASED, 60.0, PLEASED, 100.0) if names else ():
        y = MARGIN + HIGH * (1.0 - score / 100.0)
        parts.append(_line([(left, y), (left + WIDE, y)], GREY if score in (DISPLEASED, PLEASED) else LIGHT))
        parts.append(_text(left - 8, y + 4, f"{score:.0f}", anchor="end"))
    for k, name in enumerate(names):
        parts.append(_text(left + WIDE * (k + 0.5) / len(names), MARGIN + HIGH + 18, name, anchor="middle"))
        for i, rungs in enumerate(result.places.values()):
            x = left + WIDE * (k + 0.2 + 0.6 * i / len(result.places)) / len(names)
            for value, fill in ((rungs[name].below, BOLD), (rungs[name].above, "#ffffff")):
                if value is not None:
                    y = MARGIN + HIGH * (1.0 - value / 100.0)
                    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{fill}" stroke="{BOLD}"/>')
    if names:
        parts.append(_text(left, foot, "filled: just below the next skill's onset; rings: just above the one after", size=10))
    width, height = (left + WIDE if names else MARGIN + WIDE) + MARGIN // 2, 2 * MARGIN + HIGH
    style = "font-family:system-ui,Arial,sans-serif;background:#ffffff"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="{style}">'
    return "\n".join([head, *parts, "</svg>", ""])


def _line(points: Sequence[tuple[float, float]], colour: str, *, dash: str = "none", width: float = 1.0) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-dasharray="{dash}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
