"""Whether difficulty does what it says: frozen conversations judged again at every strictness, and each rung of the ladder in its place.

Realised strictness is what a user of a commanded strictness makes of conversations that stay as they are, word for word: how far their mean
final emotion has fallen from what the mildest user (0) gives towards what the strictest (1) gives.

Source: actuator calibration, as in the project's notes on teachers: a simulator that drifts looks like an agent that learns.

The figure of a calibration, as SVG: realised against commanded strictness, and each rung's place in each family.

What `python -m simulator calibrate` prints and writes.
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
from simulator.emotion import Skill, appraise, change_of_emotion, onset, skill_table
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
"""Strictnesses at which the panel's conversations were held."""
MIN_SPEARMAN = 0.95
PLEASED, DISPLEASED = float(RELIEVED_AT), 40.0
"""A rung pleases until the next skill is asked for, and no longer once the one after that is."""
BESIDE = 0.01
"""How far beside an onset a rung is looked at."""
L6_UP_TO = 0.9
"""Strictness up to which all six skills please."""
PANEL_AGENTS = {
    **{name: agent for name, agent in AGENTS.items() if name.startswith("L")},
    **{f"without {skill}": ScriptedAgent(name=f"without {skill}", skills=frozenset(RUNGS) - {skill}) for skill in Skill},
    "praise": AGENTS["praise"],
    "parrot": AGENTS["parrot"],
}
"""Who talks in the frozen panel: the ladder, agents that lack one skill each, flattery, and the golden sentence."""


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A conversation whose words do not change any more."""

    agent: str
    dialogue: Dialogue


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Final emotions of one set of conversations, by commanded strictness."""

    levels: tuple[float, ...]
    emotion: tuple[float, ...]
    """Mean final emotion at each level, 0-100."""
    realised: tuple[float, ...]
    """Share of the way from what the mildest user gives (0) to what the strictest gives (1)."""
    spearman: float
    """Rank correlation of realised with commanded strictness; 0 where nothing moves."""
    num_dialogues: int

    @property
    def is_faithful(self) -> bool:
        """Whether it keeps the bound."""
        return self.spearman >= MIN_SPEARMAN


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rung's scores on both sides of its place; None where the ladder does not say anything."""

    below: float | None
    """Just below the onset of the next skill; should be at least PLEASED."""
    above: float | None
    """Just above the onset of the skill after next; should be below DISPLEASED."""

    @property
    def is_kept(self) -> bool:
        """Whether the rung is where it belongs."""
        return (self.below is None or self.below >= PLEASED) and (self.above is None or self.above < DISPLEASED)


def panel(scenarios: Sequence[Scenario], *, user: RuleUser, seed: int = 0) -> list[Frozen]:
    """Conversations of all agents with the same users; those of a family share out the four strictnesses at which they are held."""
    members = [[scenario for scenario in scenarios if scenario.family == family] for family in FAMILIES]
    held = [
        (scenario, level)
        for family in members
        for j, scenario in enumerate(family)
        for level in RECORDED_AT[j % len(RECORDED_AT) :: min(len(family), len(RECORDED_AT))]
    ]
    return [
        Frozen(agent=name, dialogue=play(agent, scenario, Difficulty.along(level), seed=seed + i, user=user))
        for i, (scenario, level) in enumerate(held)
        for name, agent in PANEL_AGENTS.items()
    ]


def judged_again(dialogue: Dialogue, difficulty: Difficulty, config: RuleUserConfig) -> int:
    """Final emotion, 0-100, of a user of that difficulty who hears exactly these words.

    Whoever leaves or is delighted hears no more of them; a goodbye of the agent's ends nothing, since all levels are to hear the same.
    """
    emotion = config.start_emotion
    opening = replace(dialogue.turns[0], emotion=emotion, change=None)
    heard = replace(dialogue, difficulty=difficulty, turns=(opening,), outcome=None)
    for reply, answer in zip(dialogue.turns[1::2], dialogue.turns[2::2], strict=False):
        appraisal = appraise(heard, reply.text, register=config.register or Register.OPEN)
        change = change_of_emotion(appraisal, heard, momentum=config.momentum, quantise=config.quantise)
        emotion, before = max(0, min(DELIGHTED_AT, emotion + change)), emotion
        if emotion >= DELIGHTED_AT or emotion < LEFT_BELOW:
            break
        heard = heard.then(reply, replace(answer, emotion=emotion, change=emotion - before))
    return emotion


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Final emotions of every conversation at every level, the levels 0 and 1 always among them."""

    frozen: tuple[Frozen, ...]
    levels: tuple[float, ...]
    emotions: np.ndarray
    """(levels, conversations), 0-100."""

    def curve(self, levels: Sequence[float], keep: Sequence[bool] | None = None) -> Curve:
        """The curve of some of them, at some of the levels."""
        means = self.emotions[:, np.asarray(keep, bool)].mean(axis=1) if keep is not None else self.emotions.mean(axis=1)
        first, last = means[0], means[-1]
        at = [self.levels.index(level) for level in levels]
        realised = (first - means[at]) / (first - last) if first != last else np.zeros(len(at))
        moves = bool(np.ptp(realised) > 0)
        return Curve(
            levels=tuple(levels),
            emotion=tuple(float(value) for value in means[at]),
            realised=tuple(float(value) for value in realised),
            spearman=float(spearmanr(levels, realised).statistic) if moves else 0.0,
            num_dialogues=self.emotions.shape[1] if keep is None else sum(keep),
        )

    def by_family(self, levels: Sequence[float]) -> dict[Family, Curve]:
        """A curve for each family that is among the conversations."""
        kept = {family: [one.dialogue.scenario.family == family for one in self.frozen] for family in FAMILIES}
        return {family: self.curve(levels, keep) for family, keep in kept.items() if any(keep)}

    def by_rung(self, family: Family) -> dict[str, tuple[float, float]]:
        """Mean final emotions of each rung from L1 on and of the rung below it, from the level on at which the rung's own skill counts."""
        members = [i for i, one in enumerate(self.frozen) if one.dialogue.scenario.family == family]

        def score(rung: int, first: float) -> float:
            columns = [i for i in members if self.frozen[i].agent == f"L{rung}"]
            rows = [i for i, level in enumerate(self.levels) if level > first]
            return float(self.emotions[np.ix_(rows, columns)].mean())

        return {f"L{k}": (score(k, onset(skill, family)), score(k - 1, onset(skill, family))) for k, skill in enumerate(RUNGS, start=1)}


def rescored(frozen: Sequence[Frozen], levels: Sequence[float], config: RuleUserConfig) -> Scores:
    """Judges all conversations at all levels."""
    all_levels = tuple(sorted({0.0, 1.0, *levels}))
    points = [Difficulty.along(level) for level in all_levels]
    # Conversation by conversation, so that each reply is read once and then remembered.
    watched = progress(frozen, total=len(frozen), what="Judging")
    emotions = [[judged_again(one.dialogue, point, config) for point in points] for one in watched]
    return Scores(frozen=tuple(frozen), levels=all_levels, emotions=np.array(emotions, float).T)


def places(scenarios: Sequence[Scenario], *, user: RuleUser, seed: int = 0) -> dict[Family, dict[str, Place]]:
    """Each rung's place in each family, in conversations held for the purpose: what is hinted at depends on difficulty, too."""
    found: dict[Family, dict[str, Place]] = {}
    members = {family: [scenario for scenario in scenarios if scenario.family == family] for family in FAMILIES}
    for family in progress([family for family in FAMILIES if members[family]], total=len(FAMILIES), what="Climbing"):
        found[family] = dict(_places_in(family, members[family], user, seed))
    return found


def _places_in(family: Family, scenarios: Sequence[Scenario], user: RuleUser, seed: int) -> Iterator[tuple[str, Place]]:
    def score(rung: int, level: float) -> float:
        return mean_score(score_agent(f"L{rung}", scenarios, [level], user=user, seed=seed)[level])

    for rung in range(len(RUNGS) + 1):
        below = onset(RUNGS[rung], family) - BESIDE if rung < len(RUNGS) else L6_UP_TO
        above = onset(RUNGS[rung + 1], family) + BESIDE if rung + 1 < len(RUNGS) else None
        if rung == 0 and family.intention is HiddenIntention.ADVICE:
            above = None  # always advising is what this family wants: L0 has L1's skill here
        yield f"L{rung}", Place(below=score(rung, below), above=None if above is None else score(rung, above))


def in_order(by_rung: Mapping[str, tuple[float, float]], *, is_advice: bool) -> bool:
    """Whether each rung gets more than the one before; where advice is wanted, L0 has L1's skill."""
    return all(own > below for rung, (own, below) in by_rung.items() if not (is_advice and rung == "L1"))


def from_run(dialogues: Iterable[Dialogue], per_family: int, *, seed: int) -> list[Frozen]:
    """So many conversations of each family that hold a reply, chosen by the seed."""
    by_family: dict[Family, list[Dialogue]] = {}
    for dialogue in dialogues:
        if any(turn.speaker is Speaker.AGENT for turn in dialogue.turns) and dialogue.turns[-1].speaker is Speaker.USER:
            by_family.setdefault(dialogue.scenario.family, []).append(dialogue)
    chance = random.Random(seed)
    chosen = [one for family in sorted(by_family) for one in chance.sample(by_family[family], min(per_family, len(by_family[family])))]
    return [Frozen(agent="recorded", dialogue=dialogue) for dialogue in chosen]


WIDE, HIGH = 420, 340
LEFT, TOP, BOTTOM = 58, 64, 58
PANEL = LEFT + WIDE + 40
INK, SOFT, FAMILY, BOLD, FAIL = "#222222", "#8a8a8a", "#9db8d9", "#1f4e8c", "#b3261e"
STYLE = "font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px"


def figure(overall: Curve, families: Mapping[Family, Curve], places: Mapping[Family, Mapping[str, Place]], *, title: str) -> str:
    """The figure as a text.

    Args:
        places: of each family's rungs; without any, there is only the left half.
    """
    width, height = PANEL * (2 if places else 1) + 10, TOP + HIGH + BOTTOM
    parts = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', words(LEFT, 22, title, size=15)]
    parts += curves(overall, list(families.values()))
    if places:
        parts += rungs(places, PANEL)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="{STYLE}"'
    label = "Realised strictness over commanded strictness" + (", and the scores of each rung beside its place" if places else "")
    return "\n".join([f'{head} role="img" aria-label="{label}">', *parts, "</svg>", ""])


def curves(overall: Curve, families: Sequence[Curve]) -> Iterator[str]:
    """Left half: families pale, all of them together on top, the diagonal dashed, where each skill begins to count above."""
    low, high = min(0.0, *overall.realised, *(min(f.realised) for f in families)), max(1.0, *(max(f.realised) for f in families))

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x * WIDE, TOP + HIGH * (high - y) / (high - low)

    for k in range(6):
        (x, y), (right, bottom) = at(k / 5, k / 5), at(1.0, low)
        yield line(LEFT, y, right, y, "#e6e6e6")
        yield words(LEFT - 8, y + 4, f"{k / 5:.1f}", anchor="end")
        yield words(x, bottom + 18, f"{k / 5:.1f}", anchor="middle")
    for skill in Skill:
        x, top = at(skill_table()["onset"][skill], high)
        yield line(x, top, x, at(0, low)[1], "#d8d8d8", dash="2 3")
        yield words(x, TOP - 6, skill, anchor="middle", size=10, colour=SOFT)
    yield line(*at(0.0, 0.0), *at(1.0, 1.0), SOFT, dash="5 4")
    for curve in families:
        yield path([at(*point) for point in zip(curve.levels, curve.realised, strict=True)], FAMILY, 1)
    points = [at(*point) for point in zip(overall.levels, overall.realised, strict=True)]
    yield path(points, BOLD, 2.5)
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BOLD}"/>' for x, y in points)
    yield words(LEFT + WIDE / 2, TOP + HIGH + 40, "commanded strictness (above: where each skill begins to count)", anchor="middle")
    yield words(16, TOP + HIGH / 2, "realised strictness", anchor="middle", turned=True)
    right = LEFT + WIDE - 10
    yield line(right - 150, TOP + HIGH - 36, right - 130, TOP + HIGH - 36, BOLD, width=2.5)
    yield words(right - 124, TOP + HIGH - 32, f"all ({overall.num_dialogues:,} dialogues)")
    yield line(right - 150, TOP + HIGH - 18, right - 130, TOP + HIGH - 18, FAMILY)
    yield words(right - 124, TOP + HIGH - 14, f"each of {len(families)} families")


def rungs(places: Mapping[Family, Mapping[str, Place]], left: float) -> Iterator[str]:
    """Right half: a column for each rung, a dot for each family below the next skill's onset, a ring above that of the one after."""
    names = list(next(iter(places.values())))
    column = WIDE / len(names)

    def y_of(score: float) -> float:
        return TOP + HIGH * (1.0 - score / 100.0)

    for score in (0, 20, 40, 60, 80, 100):
        yield line(left + LEFT, y_of(score), left + LEFT + WIDE, y_of(score), "#e6e6e6")
        yield words(left + LEFT - 8, y_of(score) + 4, f"{score}", anchor="end")
    for bound in (PLEASED, DISPLEASED):
        yield line(left + LEFT, y_of(bound), left + LEFT + WIDE, y_of(bound), INK, dash="5 4")
    for k, name in enumerate(names):
        centre = left + LEFT + column * (k + 0.5)
        yield words(centre, TOP + HIGH + 18, name, anchor="middle")
        for i, by_rung in enumerate(places.values()):
            x, place = centre + (i / max(1, len(places) - 1) - 0.5) * column * 0.6, by_rung[name]
            if place.below is not None:
                yield dot(x, y_of(place.below), BOLD if place.below >= PLEASED else FAIL, filled=True)
            if place.above is not None:
                yield dot(x, y_of(place.above), BOLD if place.above < DISPLEASED else FAIL, filled=False)
    yield words(left + 16, TOP + HIGH / 2, "mean final emotion", anchor="middle", turned=True)
    yield words(left + LEFT + WIDE / 2, TOP + HIGH + 40, "rung of the ladder; a mark for each family", anchor="middle")
    yield dot(left + LEFT + 6, TOP - 30, BOLD, filled=True)
    yield words(left + LEFT + 14, TOP - 26, "just below the next skill's onset (L6: at .9): at least 70", size=11)
    yield dot(left + LEFT + 6, TOP - 14, BOLD, filled=False)
    yield words(left + LEFT + 14, TOP - 10, "just above the onset after it: below 40", size=11)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "", width: float = 1) -> str:
    """A straight line."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"{dashes}/>'


def path(points: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    """Points joined by straight lines."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def dot(x: float, y: float, colour: str, *, filled: bool) -> str:
    """A dot or a ring."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour if filled else "#ffffff"}" stroke="{colour}" stroke-width="1.2"/>'


def words(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = INK, turned: bool = False) -> str:
    """A line of text."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{turn}>{escape(text)}</text>'


MISSED = 1
"""Exit code when a bound is not kept."""
IN_THE_PANEL, IN_A_RUN = 4, 24
"""Scenarios of each family that the panel is about, and dialogues of each family that are taken from a run."""
CLIMBS = 4
"""So many times the panel's scenarios show the rungs' places, where one dialogue tells little."""
TABLE, FIGURE = "calibration.json", "calibration.svg"


def calibrate(options: argparse.Namespace) -> int:
    """Judges the frozen conversations, prints the table, writes what was asked for; returns the exit code."""
    levels = checked_levels(options.levels)
    if options.per_family is None:
        options.per_family = IN_A_RUN if options.dialogues else IN_THE_PANEL
    if options.per_family < 1:
        raise ValueError(f"--per-family must be at least 1, got {options.per_family}")
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, got {str(options.out)!r}, which is a file")
    frozen, config, found = conversations(options)
    scores = rescored(frozen, levels, config)
    result = Calibration(scores, levels, found)
    print(*result.lines(by_family=options.by_family, source=str(options.dialogues or f"{options.split} scenarios")), sep="\n")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        source = str(options.dialogues.name) if options.dialogues else options.split
        record = {"world": world_of(config), "source": source, "seed": options.seed, **result.record()}
        write_whole(options.out / TABLE, json.dumps(record, indent=1) + "\n")
        title = f"Commanded and realised strictness, {source}"
        write_whole(options.out / FIGURE, figure(result.overall, result.families, found, title=title))
        print(f"{options.out / TABLE}, {options.out / FIGURE}")
    return 0 if result.is_kept else MISSED


def checked_levels(levels: Sequence[float] | None) -> tuple[float, ...]:
    """The levels to judge at.

    Raises:
        ValueError: fewer than three, one twice, or one that is no strictness.
    """
    chosen = tuple(levels) if levels else LEVELS
    if len(chosen) < 3:
        raise ValueError(f"--levels must be at least three strictnesses, got {len(chosen)}: a rank correlation of fewer says nothing")
    for level in chosen:
        if not 0.0 <= level <= 1.0:
            raise ValueError(f"--levels must be in [0, 1], got {level!r}")
    if any(low >= high for low, high in pairwise(chosen)):
        raise ValueError(f"--levels must rise, got {' '.join(map(str, chosen))}")
    return chosen


def conversations(options: argparse.Namespace) -> tuple[list[Frozen], RuleUserConfig, Mapping[Family, Mapping[str, Place]]]:
    """The frozen conversations, how the user was set, and the rungs' places where the ladder itself is looked at.

    Raises:
        ValueError: the file is not there, is no transcript of this world, or holds nothing to judge.
    """
    flags = {"register": options.register}
    if not options.dialogues:
        config = user_settings(flags)
        user = RuleUser(config)
        scenarios = load_bank().scenarios(Split(options.split))
        chosen = sample(scenarios, options.per_family, seed=options.seed)
        climbed = sample(scenarios, CLIMBS * options.per_family, seed=options.seed)
        return panel(chosen, user=user, seed=options.seed), config, places(climbed, user=user, seed=options.seed)
    path = transcript_file(options.dialogues, evaluation=False)
    found = list(read_dialogues(path, load_bank()))
    own = [settings_of(record) for record, _ in found]
    if any(settings != own[0] for settings in own):
        raise ValueError(f"{path} must hold dialogues of users that were set alike, got several settings: split it")
    config = user_settings(flags, *own[:1], settings_of(recorded_config(path)))
    if config.preset is Preset.SAGE:
        raise ValueError(f"{path} must be of users of the preset training, got sage: there difficulty does not enter")
    recorded = [dialogue for _, dialogue in found if dialogue.outcome is not Outcome.ERROR]
    frozen = from_run(recorded, options.per_family, seed=options.seed)
    if not frozen:
        raise ValueError(f"{path} must hold a dialogue in which the user answers a reply, got none")
    for one in frozen:
        require_feelings(one.dialogue)
    return frozen, config, {}


class Calibration:
    """All figures, and whether the bounds are kept."""

    def __init__(self, scores: Scores, levels: Sequence[float], found: Mapping[Family, Mapping[str, Place]]) -> None:
        self.overall: Curve = scores.curve(levels)
        self.families = scores.by_family(levels)
        self.places = found
        self.order = {family: scores.by_rung(family) for family in self.families} if found else {}

    @property
    def misplaced(self) -> list[str]:
        """Rungs that are not where they belong, and families in which they do not come in order."""
        wrong = [f"{family} {rung}" for family, rungs in self.places.items() for rung, place in rungs.items() if not place.is_kept]
        return wrong + [f"{family} order" for family, rungs in self.order.items() if not in_order(rungs, is_advice=_is_advice(family))]

    @property
    def unfaithful(self) -> list[str]:
        """Families whose users are not what was commanded, and `all` if that holds for all together."""
        curves = {"all": self.overall, **{str(family): curve for family, curve in self.families.items()}}
        return [name for name, curve in curves.items() if not curve.is_faithful]

    @property
    def is_kept(self) -> bool:
        """Whether every bound is."""
        return not self.misplaced and not self.unfaithful

    def lines(self, *, by_family: bool, source: str) -> list[str]:
        """The table."""
        overall = self.overall
        worst, lowest = min(((curve.spearman, str(family)) for family, curve in self.families.items()))
        lines = [
            f"{source}: {overall.num_dialogues:,} frozen dialogues of {len(self.families)} families judged again",
            "",
            "commanded  realised  emotion   realised by family, lowest and highest",
        ]
        for i, level in enumerate(overall.levels):
            spread = [curve.realised[i] for curve in self.families.values()]
            lines.append(f"{level:9.2f}  {overall.realised[i]:8.3f}  {overall.emotion[i]:7.1f}  {min(spread):9.3f}  {max(spread):9.3f}")
        lines += ["", f"Spearman {overall.spearman:.3f} overall, {worst:.3f} in the worst family ({lowest}); at least {MIN_SPEARMAN}"]
        if by_family:
            lines += ["", "family                  dialogues  Spearman  realised at .25 .5 .75 of the levels"]
            for family, curve in self.families.items():
                quarters = [curve.realised[round(q * (len(curve.levels) - 1))] for q in (0.25, 0.5, 0.75)]
                shown = "  ".join(f"{value:.3f}" for value in quarters)
                lines.append(f"{family!s:22}  {curve.num_dialogues:9}  {curve.spearman:8.3f}  {shown}")
        if self.places:
            lines += ["", *self._ladder(by_family=by_family)]
        verdict = "all bounds kept" if self.is_kept else f"MISSED: {', '.join([*self.unfaithful, *self.misplaced])}"
        return [*lines, "", verdict]

    def _ladder(self, *, by_family: bool) -> list[str]:
        lines = [
            f"each rung in its place. below: just below the next skill's onset (L6: at .9), at least {PLEASED:.0f};",
            f"above: just above the onset after it, below {DISPLEASED:.0f};",
            "lead: over the rung below on frozen dialogues, from the level on at which its own skill counts, above 0",
            "",
            "rung   family                   below   above    lead",
        ]
        for rung in next(iter(self.places.values())):
            rows = [(str(family), rungs[rung], self._lead(family, rung)) for family, rungs in self.places.items()]
            if not by_family:
                below = min((place.below for _, place, _ in rows if place.below is not None), default=None)
                above = max((place.above for _, place, _ in rows if place.above is not None), default=None)
                lead = min((lead for *_, lead in rows if lead is not None), default=None)
                rows = [("worst of each", Place(below=below, above=above), lead)]
            lines += [f"{rung:5}  {name:22}  {_shown(place.below)}  {_shown(place.above)}  {_shown(lead)}" for name, place, lead in rows]
        return lines

    def _lead(self, family: Family, rung: str) -> float | None:
        if rung not in self.order[family] or (_is_advice(family) and rung == "L1"):
            return None
        own, below = self.order[family][rung]
        return own - below

    def record(self) -> dict[str, Any]:
        """A JSON-able record."""
        return {
            "is_kept": self.is_kept,
            "missed": [*self.unfaithful, *self.misplaced],
            "min_spearman": MIN_SPEARMAN,
            "overall": asdict(self.overall),
            "families": {str(family): asdict(curve) for family, curve in self.families.items()},
            "places": {str(family): {rung: asdict(place) for rung, place in rungs.items()} for family, rungs in self.places.items()},
            "frozen_rung_and_rung_below": {str(family): by_rung for family, by_rung in self.order.items()},
        }


def _is_advice(family: Family) -> bool:
    return family.intention is HiddenIntention.ADVICE


def _shown(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.1f}"
