"""Calibration of difficulty: frozen conversations judged again at every strictness, and the place of each rung of the ladder.

Realised strictness is read off conversations whose words stay as they are: how far their mean final emotion falls from that of the mildest
user (0) towards that of the strictest one (1). A simulator that drifts would look like an agent that learns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.stats import spearmanr

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, Dialogue, Outcome, Speaker
from simulator.emotion import Skill, appraise, onset, skill_table
from simulator.explain import read_dialogues, recorded_config, transcript_file, user_settings
from simulator.files import progress, write_whole
from simulator.listener import Register
from simulator.llm.prompts import prompts_hash
from simulator.options import FLAGS, flag_settings, in_options
from simulator.pressure import every_scenario
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, Family, HiddenIntention, Scenario, Split
from simulator.scripted import AGENTS, ScriptedAgent, mean_score, play, sample, score_agent
from simulator.settings import message
from simulator.version import world_of
from simulator.world import load_bank


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A conversation whose words stay."""

    agent: str
    dialogue: Dialogue

    @classmethod
    def panel(cls, scenarios: Sequence[Scenario], *, user: RuleUser, seed: int = 0) -> list[Frozen]:
        """Conversations of the ladder, of agents that lack one skill each, of flattery and of the golden sentence, with the same users.

        The scenarios of a family share out four strictnesses.
        """
        lacking = {f"without {skill}": ScriptedAgent(name=f"without {skill}", skills=frozenset(Skill) - {skill}) for skill in Skill}
        agents = {**{f"L{k}": AGENTS[f"L{k}"] for k in range(7)}, **lacking, "praise": AGENTS["praise"], "parrot": AGENTS["parrot"]}
        levels, held = (0.2, 0.5, 0.8, 0.95), []
        for family in FAMILIES:
            members = [scenario for scenario in scenarios if scenario.family == family]
            for j, scenario in enumerate(members):
                held += [(scenario, level) for level in levels[j % 4 :: min(len(members), 4)]]
        return [
            cls(agent=name, dialogue=play(agent, scenario, Difficulty.along(level), seed=seed + i, user=user))
            for i, (scenario, level) in enumerate(held)
            for name, agent in agents.items()
        ]

    def judged_again(self, difficulty: Difficulty, config: RuleUserConfig) -> int:
        """Final emotion, 0-100, of a user of that difficulty who hears exactly these words.

        A user who leaves or is delighted hears no more of them; a goodbye of the agent ends nothing, since all levels are to hear the same.
        """
        emotion, turns = config.start_emotion, self.dialogue.turns
        opening = replace(turns[0], emotion=emotion, change=None)
        heard = replace(self.dialogue, difficulty=difficulty, turns=(opening,), outcome=None)
        for reply, answer in zip(turns[1::2], turns[2::2], strict=False):
            appraisal = appraise(heard, reply.text, register=config.register or Register.OPEN, reading=answer.reading)
            points = appraisal.points(momentum=config.momentum, quantise=config.quantise)
            emotion = points.after
            if emotion >= DELIGHTED_AT or emotion < LEFT_BELOW:
                break
            heard = heard.then(reply, replace(answer, emotion=emotion, change=points.felt))
        return emotion


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


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rung's scores on both sides of its place, 0-100; None where the ladder has no bound.

    A rung pleases until the next skill is asked for, and no more once the one after that is.
    """

    PLEASED: ClassVar[float] = float(RELIEVED_AT)
    DISPLEASED: ClassVar[float] = 40.0

    below: float | None
    """Just below the onset of the next skill; at least PLEASED."""
    above: float | None
    """Just above the onset of the skill after next; below DISPLEASED."""

    @property
    def is_kept(self) -> bool:
        """Whether both bounds are kept."""
        return (self.below is None or self.below >= self.PLEASED) and (self.above is None or self.above < self.DISPLEASED)

    @classmethod
    def ladder(cls, scenarios: Sequence[Scenario], *, user: RuleUser, seed: int = 0) -> dict[Family, dict[str, Place]]:
        """Each rung's place in each family, in conversations held for the purpose, since hints depend on difficulty too."""
        members = {family: [scenario for scenario in scenarios if scenario.family == family] for family in FAMILIES}
        found: dict[Family, dict[str, Place]] = {}
        skills = list(Skill)
        for family in progress([family for family in FAMILIES if members[family]], total=len(FAMILIES), what="Climbing"):
            found[family] = {}
            for rung in range(len(skills) + 1):
                # Each is scored 0.01 away from an onset; all six skills please up to strictness 0.9.
                below = onset(skills[rung], family) - 0.01 if rung < len(skills) else 0.9
                above = [onset(skills[rung + 1], family) + 0.01] if rung + 1 < len(skills) else []
                if rung == 0 and family.intention is HiddenIntention.ADVICE:
                    above = []  # always advising is the wish of this family: L0 has L1's skill here
                scores = score_agent(f"L{rung}", members[family], [below, *above], user=user, seed=seed)
                means = [mean_score(scores[level]) for level in (below, *above)]
                found[family][f"L{rung}"] = cls(below=means[0], above=means[1] if above else None)
        return found


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Final emotions of every conversation at every level, the levels 0 and 1 always among them."""

    frozen: tuple[Frozen, ...]
    levels: tuple[float, ...]
    emotions: np.ndarray
    """[levels, conversations], 0-100."""

    @classmethod
    def of(cls, frozen: Sequence[Frozen], levels: Sequence[float], config: RuleUserConfig) -> Scores:
        """Judges all conversations at all levels."""
        all_levels = tuple(sorted({0.0, 1.0, *levels}))
        points = [Difficulty.along(level) for level in all_levels]
        # Conversation by conversation, so that each reply is parsed once and then cached.
        watched = progress(frozen, total=len(frozen), what="Judging")
        emotions = [[one.judged_again(point, config) for point in points] for one in watched]
        return cls(frozen=tuple(frozen), levels=all_levels, emotions=np.array(emotions, float).T)

    def curve(self, levels: Sequence[float], family: Family | None = None) -> Curve:
        """The curve of all conversations, or of one family's, at some of the levels."""
        emotions = self.emotions[:, [family in (None, one.dialogue.scenario.family) for one in self.frozen]]
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

    def by_rung(self, family: Family) -> dict[str, tuple[float, float]]:
        """Mean final emotions of each rung from L1 on and of the rung below it, at levels at which the rung's own skill counts."""

        def score(rung: int, skill: Skill) -> float:
            columns = [i for i, one in enumerate(self.frozen) if one.dialogue.scenario.family == family and one.agent == f"L{rung}"]
            rows = [i for i, level in enumerate(self.levels) if level > onset(skill, family)]
            return float(self.emotions[np.ix_(rows, columns)].mean())

        return {f"L{k}": (score(k, skill), score(k - 1, skill)) for k, skill in enumerate(Skill, start=1)}


def calibrate(options: argparse.Namespace) -> int:
    """Judges the frozen conversations, prints the table and writes the files asked for; returns the exit code, 1 when a bound is missed.

    Raises:
        ValueError: a level is impossible, or the file of dialogues is missing, of another world or without anything to judge.
    """
    levels, out = tuple(options.levels or (round(0.05 * k, 2) for k in range(21))), options.out
    if len(levels) < 3 or not all(0.0 <= level <= 1.0 for level in levels) or any(low >= high for low, high in pairwise(levels)):
        raise ValueError(f"--levels must be at least three strictnesses in [0, 1], rising, got {' '.join(map(str, levels))}")
    if out and out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got {str(out)!r}, which is a file")
    is_model, found = options.user == "llm", dict[Family, dict[str, Place]]()
    if not is_model and (given := [flag for flag in FLAGS if getattr(options, f"user_{flag}") is not None]):
        raise ValueError(
            f"--user-{given[0].replace('_', '-')} must go with --user llm, got {getattr(options, f'user_{given[0]}')!r} without it"
        )
    if options.listener and (options.dialogues or is_model):
        raise ValueError(f"--listener must be left out with --dialogues and --user llm, got {options.listener!r}")
    if options.dialogues:
        # Up to so many answered conversations of each family, chosen by the seed.
        path = transcript_file(options.dialogues, evaluation=False)
        records = list(read_dialogues(path, every_scenario()))
        own = [record.get("simulator") or {} for record, _ in records]
        if any(settings != own[0] for settings in own):
            raise ValueError(f"{path} must hold dialogues of users with the same settings, got several: split it")
        config = user_settings({"register": options.register}, *own[:1], recorded_config(path).get("simulator") or {})
        if config.preset is Preset.SAGE:
            raise ValueError(f"{path} must be of users of the preset training, got sage: there difficulty has no influence")
        by_family: dict[Family, list[Dialogue]] = {}
        for _, dialogue in records:
            if dialogue.outcome is not Outcome.ERROR and dialogue.num_replies and dialogue.turns[-1].speaker is Speaker.USER:
                dialogue.require_feelings()
                by_family.setdefault(dialogue.scenario.family, []).append(dialogue)
        if not by_family:
            raise ValueError(f"{path} must hold a dialogue in which the user answers a reply, got none")
        chance = random.Random(options.seed)
        chosen = (chance.sample(by_family[one], min(options.per_family or 24, len(by_family[one]))) for one in sorted(by_family))
        frozen = [Frozen(agent="recorded", dialogue=dialogue) for dialogues in chosen for dialogue in dialogues]
    else:
        config = user_settings({"register": options.register, "listener": options.listener})
        user, scenarios = RuleUser(config), load_bank().scenarios(Split(options.split))
        per_family = options.per_family or (1 if is_model else 4)
        panel = sample(scenarios, per_family, seed=options.seed)
        if is_model:
            # Each reply is a question at each level: one conversation for each scenario, of agents and strictnesses in turn.
            names, strictnesses = ("L0", "L1", "L2", "L3", "L4", "L5", "L6", "praise"), (0.2, 0.5, 0.8, 0.95)
            plans = [(one, names[i % 8], Difficulty.along(strictnesses[(i + i // 8) % 4])) for i, one in enumerate(panel)]
            frozen = [
                Frozen(agent=name, dialogue=play(AGENTS[name], one, difficulty, seed=options.seed + i, user=user))
                for i, (one, name, difficulty) in enumerate(plans)
            ]
        else:
            frozen = Frozen.panel(panel, user=user, seed=options.seed)
            # Single dialogues vary more here.
            found = Place.ladder(sample(scenarios, 4 * per_family, seed=options.seed), user=user, seed=options.seed)
    if is_model:
        return calibrate_model(options, frozen, tuple(options.levels or (0.0, 0.25, 0.5, 0.75, 1.0)), config)
    result = Calibration(Scores.of(frozen, levels, config), levels, found)
    print(*result.lines(by_family=options.by_family, source=str(options.dialogues or f"{options.split} scenarios")), sep="\n")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        source = str(options.dialogues.name) if options.dialogues else options.split
        record = {"world": world_of(config), "source": source, "seed": options.seed, **result.record()}
        table = write_whole(out / "calibration.json", json.dumps(record, indent=1) + "\n")
        print(f"{table}, {write_whole(out / 'calibration.svg', result.figure(title=f'Commanded and realised strictness, {source}'))}")
    return int(bool(result.missed))


def calibrate_model(options: argparse.Namespace, frozen: Sequence[Frozen], levels: Sequence[float], config: RuleUserConfig) -> int:
    """The same conversations judged by a model at each level, beside the rule; returns the exit code, 1 when it does not obey.

    It obeys where its mean final emotion keeps the order of the levels, and its fall from 0 to 1 is above 0 with 95 % confidence.

    Raises:
        ValueError: a setting is wrong, or the server does not answer.
        RuntimeError: most conversations got no usable answer.
    """
    from simulator.llm.calibration import fall_of, judge_all
    from simulator.llm.client import check_endpoints
    from simulator.llm.user import LLMUser, LLMUserConfig
    from simulator.user import first_question

    try:
        settings = LLMUserConfig(**flag_settings(options, "user"))
        check_endpoints(settings, *first_question(settings))
        user = LLMUser(settings)
    except ValueError as error:
        raise ValueError(in_options(message(error), "--user-")) from None
    all_levels = tuple(sorted({0.0, 1.0, *levels}))
    emotions = asyncio.run(judge_all(user, [one.dialogue for one in frozen], all_levels))
    whole = ~np.isnan(emotions).any(axis=0)
    if 2 * whole.sum() < len(frozen):
        raise RuntimeError(f"--user-model must judge most conversations, got {whole.sum()} of {len(frozen)} judged; see its answers")
    kept = tuple(one for one, is_whole in zip(frozen, whole, strict=True) if is_whole)
    curve = Scores(frozen=kept, levels=all_levels, emotions=emotions[:, whole]).curve(levels)
    rule = Scores.of(kept, levels, config).curve(levels)
    fall, half = fall_of(emotions[:, whole])
    obeys = curve.spearman >= Calibration.MIN_SPEARMAN and fall - half > 0.0
    print(f"{settings.model}: {len(kept)} of {len(frozen)} frozen dialogues judged at each level, {user.counts()['calls']:.0f} calls")
    print("\ncommanded  realised  emotion   by rule: realised  emotion")
    for row in zip(levels, curve.realised, curve.emotion, rule.realised, rule.emotion, strict=True):
        print("{:9.2f}  {:8.3f}  {:7.1f}  {:17.3f}  {:7.1f}".format(*row))
    print(
        f"\nSpearman {curve.spearman:.3f}, at least {Calibration.MIN_SPEARMAN}; fall from 0 to 1 {fall:.1f} +- {half:.1f} points, above 0"
    )
    print("obeys" if obeys else "DOES NOT OBEY")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"model": settings.model, "prompts_hash": prompts_hash(), "seed": options.seed, "obeys": obeys, "fall": fall}
        record |= {"fall_half_width": half, "num_left_out": len(frozen) - len(kept), "overall": asdict(curve), "rule": asdict(rule)}
        print(write_whole(options.out / "calibration.json", json.dumps(record, indent=1) + "\n"))
    return int(not obeys)


class Calibration:
    """All curves and places, and the bounds that are missed."""

    MIN_SPEARMAN = 0.95

    def __init__(self, scores: Scores, levels: Sequence[float], found: Mapping[Family, Mapping[str, Place]]) -> None:
        self.overall: Curve = scores.curve(levels)
        present = {one.dialogue.scenario.family for one in scores.frozen}
        self.families = {family: scores.curve(levels, family) for family in FAMILIES if family in present}
        self.places = found
        self.order = {family: scores.by_rung(family) for family in self.families} if found else {}
        curves = {"all": self.overall, **{str(family): curve for family, curve in self.families.items()}}
        self.missed = [name for name, curve in curves.items() if curve.spearman < self.MIN_SPEARMAN]
        self.missed += [f"{family} {rung}" for family, rungs in found.items() for rung, place in rungs.items() if not place.is_kept]
        # Each rung must score more than the one before.
        leads = {family: [self.lead(family, rung) for rung in rungs] for family, rungs in self.order.items()}
        self.missed += [f"{family} order" for family, ones in leads.items() if any(lead is not None and lead <= 0 for lead in ones)]

    def lead(self, family: Family, rung: str) -> float | None:
        """Points of emotion by which a rung scores more than the one before; None for L0, and for L1 where advice is wanted, L0's skill."""
        if rung not in self.order[family] or (family.intention is HiddenIntention.ADVICE and rung == "L1"):
            return None
        own, below = self.order[family][rung]
        return own - below

    def lines(self, *, by_family: bool, source: str) -> Iterator[str]:
        """The table."""
        overall, families = self.overall, self.families
        yield f"{source}: {overall.num_dialogues:,} frozen dialogues of {len(families)} families judged again"
        yield "\ncommanded  realised  emotion   realised by family, lowest and highest"
        for i, level in enumerate(overall.levels):
            spread = [curve.realised[i] for curve in families.values()]
            yield f"{level:9.2f}  {overall.realised[i]:8.3f}  {overall.emotion[i]:7.1f}  {min(spread):9.3f}  {max(spread):9.3f}"
        worst, lowest = min((curve.spearman, str(family)) for family, curve in families.items())
        yield f"\nSpearman {overall.spearman:.3f} overall, {worst:.3f} in the worst family ({lowest}); at least {self.MIN_SPEARMAN}"
        if by_family:
            yield "\nfamily                  dialogues  Spearman  realised at 0.25 0.5 0.75 of the levels"
            for family, curve in families.items():
                quarters = "  ".join(f"{curve.realised[round(q * (len(curve.levels) - 1))]:.3f}" for q in (0.25, 0.5, 0.75))
                yield f"{family!s:22}  {curve.num_dialogues:9}  {curve.spearman:8.3f}  {quarters}"
        if self.places:
            yield "\neach rung in its place"
            yield f"below: just below the next skill's onset (L6: at 0.9), at least {Place.PLEASED:.0f}"
            yield f"above: just above the onset after it, below {Place.DISPLEASED:.0f}"
            yield "lead: over the rung below on frozen dialogues, from the level on at which its own skill counts, above 0"
            yield "\nrung   family                   below   above    lead"
            for rung in next(iter(self.places.values())):
                rows: dict[str, tuple[float | None, ...]] = {
                    str(family): (rungs[rung].below, rungs[rung].above, self.lead(family, rung)) for family, rungs in self.places.items()
                }
                if not by_family:
                    worst_of = zip((min, max, min), zip(*rows.values(), strict=True), strict=True)
                    values = (choose((v for v in column if v is not None), default=None) for choose, column in worst_of)
                    rows = {"worst of each": tuple(values)}
                for name, row in rows.items():
                    yield f"{rung:5}  {name:22}  " + "  ".join(f"{'-' if value is None else f'{value:.1f}':>6}" for value in row)
        yield "\nall bounds kept" if not self.missed else f"\nMISSED: {', '.join(self.missed)}"

    def record(self) -> dict[str, Any]:
        """A JSON-able record."""
        return {
            "is_kept": not self.missed,
            "missed": self.missed,
            "min_spearman": self.MIN_SPEARMAN,
            "overall": asdict(self.overall),
            "families": {str(family): asdict(curve) for family, curve in self.families.items()},
            "places": {str(family): {rung: asdict(place) for rung, place in rungs.items()} for family, rungs in self.places.items()},
            "frozen_rung_and_rung_below": {str(family): by_rung for family, by_rung in self.order.items()},
        }

    def figure(self, *, title: str) -> str:
        """An SVG: realised over commanded strictness, a pale line for each family; and the scores of rungs, if there are any."""
        wide, high, margin = 420, 340, 60
        bold, grey, light = "#1f4e8c", "#8a8a8a", "#e6e6e6"
        parts: list[str] = []

        def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> None:
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>')

        def line(points: Sequence[tuple[float, float]], colour: str, *, dash: str = "none", width: float = 1.0) -> None:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            style = f'fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-dasharray="{dash}"'
            parts.append(f'<polyline points="{joined}" {style}/>')

        curves = [*self.families.values(), self.overall]
        low, top = min(0.0, *(min(curve.realised) for curve in curves)), max(1.0, *(max(curve.realised) for curve in curves))

        def at(x: float, y: float) -> tuple[float, float]:
            return margin + x * wide, margin + high * (top - y) / (top - low)

        foot = margin + high + 42
        text(margin, 24, title, size=15)
        text(margin, foot, "realised over commanded strictness, and where skills begin")
        for k in range(6):
            line([at(0, k / 5), at(1, k / 5)], light)
            text(margin - 8, at(0, k / 5)[1] + 4, f"{k / 5:.1f}", anchor="end")
            text(at(k / 5, low)[0], margin + high + 18, f"{k / 5:.1f}", anchor="middle")
        for skill, begins in skill_table()["onset"].items():
            line([at(begins, top), at(begins, low)], grey, dash="2 3")
            text(at(begins, top)[0], margin - 6, skill, anchor="middle")
        line([at(0, 0), at(1, 1)], grey, dash="5 4")
        for curve in curves:
            colour, width = (bold, 2.5) if curve is self.overall else ("#9db8d9", 1.0)
            line([at(*point) for point in zip(curve.levels, curve.realised, strict=True)], colour, width=width)
        left, names = 2 * margin + wide, list(next(iter(self.places.values()), ()))
        for score in (0.0, 20.0, Place.DISPLEASED, 60.0, Place.PLEASED, 100.0) if names else ():
            y = margin + high * (1.0 - score / 100.0)
            line([(left, y), (left + wide, y)], grey if score in (Place.DISPLEASED, Place.PLEASED) else light)
            text(left - 8, y + 4, f"{score:.0f}", anchor="end")
        for k, name in enumerate(names):
            text(left + wide * (k + 0.5) / len(names), margin + high + 18, name, anchor="middle")
            for i, rungs in enumerate(self.places.values()):
                x = left + wide * (k + 0.2 + 0.6 * i / len(self.places)) / len(names)
                for value, fill in ((rungs[name].below, bold), (rungs[name].above, "#ffffff")):
                    if value is not None:
                        y = margin + high * (1.0 - value / 100.0)
                        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{fill}" stroke="{bold}"/>')
        if names:
            text(left, foot, "filled: just below the next skill's onset; rings: just above the one after", size=10)
        width, height = (left + wide if names else margin + wide) + margin // 2, 2 * margin + high
        style = "font-family:system-ui,Arial,sans-serif;background:#ffffff"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="{style}">'
        return "\n".join([head, *parts, "</svg>", ""])
