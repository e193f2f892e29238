"""The three axes of difficulty moved one at a time: what each does to a user, measured."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

from simulator.dialogue import Dialogue, Speaker
from simulator.rule_user import RuleUser
from simulator.scenario import VANILLA, Difficulty, Scenario
from simulator.scripted import AGENTS, Agent, ScriptedAgent, play
from simulator.text import words_of

PLEASED = 70.0
MIN_TIMES = 3
"""Texts in which a word has to stand to count as one that could give something away."""
DULL = ScriptedAgent(name="dull", skills=frozenset(), always="hedging")
"""Brings nobody any further."""


class Moody:
    """An expert at one turn and of no help at another, so that users have something to feel either way."""

    def reply(self, dialogue: Dialogue) -> str:
        """The expert's reply or a dull one, by chance."""
        chance = random.Random(f"{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}")
        return chance.choice((AGENTS["L6"], DULL)).reply(dialogue)


def lowest_rung_that_pleases(scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser) -> int:
    """How many skills it takes to leave users at 70 or more; 7 where all six do not suffice."""
    rungs = [name for name in AGENTS if name.startswith("L")]
    return next((k for k, name in enumerate(rungs) if mean_emotion(AGENTS[name], scenarios, difficulty, user=user) >= PLEASED), len(rungs))


def mean_emotion(agent: Agent, scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser) -> float:
    """Mean final emotion, 0-100."""
    return fmean(play(agent, scenario, difficulty, seed=i, user=user).emotion for i, scenario in enumerate(scenarios))


def drain(scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser) -> float:
    """Mean points that a reply without any help moves a user."""
    played = [play(DULL, scenario, difficulty, seed=i, user=user) for i, scenario in enumerate(scenarios)]
    return fmean(turn.change for dialogue in played for turn in dialogue.turns if turn.change is not None)


def what_words_give_away(scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser) -> tuple[float, float]:
    """How often somebody who only counts words guesses a user's wish from all that was said, and the sign of a change from the answer.

    The words are learnt from users without any reserve, on every other scenario; the rest are guessed at.

    Returns:
        Two accuracies in [0, 1]: of eight wishes, and of up or down.
    """
    (open_wishes, open_moved), (wishes, moved) = (
        told_and_felt(half, point, user=user)
        for half, point in ((scenarios[0::2], replace(difficulty, reserve=0.0)), (scenarios[1::2], difficulty))
    )
    return accuracy(open_wishes, wishes), accuracy(open_moved, moved)


Labelled = list[tuple[str, Hashable]]


def told_and_felt(scenarios: Sequence[Scenario], difficulty: Difficulty, *, user: RuleUser) -> tuple[Labelled, Labelled]:
    """All words of each user with the hidden wish, and the first sentence of each answer with whether it rose."""
    played = [play(Moody(), scenario, difficulty, seed=i, user=user) for i, scenario in enumerate(scenarios)]
    users = [[turn for turn in dialogue.turns if turn.speaker is Speaker.USER] for dialogue in played]
    wishes: Labelled = [
        (" ".join(turn.text for turn in turns), scenario.family.intention) for turns, scenario in zip(users, scenarios, strict=True)
    ]
    moved: Labelled = [(re.split(r"(?<=[.?!]) ", turn.text)[0], turn.change > 0) for turn in chain(*users) if turn.change]
    return wishes, moved


def accuracy(known: Labelled, asked: Labelled) -> float:
    """Share of texts whose label naive Bayes over words gets right, taken label by label so that a frequent one does not count for more."""
    guess = naive_bayes(known)
    right: dict[Hashable, list[bool]] = defaultdict(list)
    for text, label in asked:
        right[label].append(guess(text) == label)
    return fmean(fmean(hits) for hits in right.values())


def naive_bayes(known: Labelled) -> Callable[[str], Hashable]:
    """Guesses a label from which words occur, smoothed by one; what only a story or two holds is left out."""
    counts: dict[Hashable, Counter[str]] = defaultdict(Counter)
    totals: Counter[Hashable] = Counter()
    for text, label in known:
        counts[label].update(set(words_of(text)))
        totals[label] += 1
    everywhere = sum(counts.values(), Counter())
    known_words = {word for word, times in everywhere.items() if times >= MIN_TIMES}

    def score(label: Hashable, words: set[str]) -> float:
        return math.log(totals[label]) + sum(math.log((counts[label][word] + 1) / (totals[label] + 2)) for word in words)

    return lambda text: max(totals, key=lambda label: score(label, set(words_of(text)) & known_words))


def alone(axis: str, value: float) -> Difficulty:
    """VANILLA but for one axis."""
    return replace(VANILLA, **{axis: value})
