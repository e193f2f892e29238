"""Whether difficulty does what it says: frozen conversations judged again at every strictness, and each rung of the ladder in its place.

Realised strictness is what a user of a commanded strictness makes of conversations that stay as they are, word for word: how far their mean
final emotion has fallen from what the mildest user (0) gives towards what the strictest (1) gives.

Source: actuator calibration, as in the project's notes on teachers: a simulator that drifts looks like an agent that learns.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import spearmanr

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, Dialogue, Speaker
from simulator.difficulty import Difficulty
from simulator.emotion import appraise, change_of_emotion
from simulator.ladder import AGENTS, RUNGS, ScriptedAgent, mean_score, play, score_agent
from simulator.progress import progress
from simulator.register import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Family, HiddenIntention, Scenario
from simulator.skills import Skill, onset

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


def sample(scenarios: Iterable[Scenario], per_family: int, *, seed: int) -> list[Scenario]:
    """So many scenarios of each family, chosen by the seed; fewer where there are no more."""
    by_family: dict[Family, list[Scenario]] = {family: [] for family in FAMILIES}
    for scenario in scenarios:
        by_family[scenario.family].append(scenario)
    chance = random.Random(seed)
    return [scenario for members in by_family.values() for scenario in chance.sample(members, min(per_family, len(members)))]


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
