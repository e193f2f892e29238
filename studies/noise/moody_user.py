"""The embedded user on a bad day: now and then not the reply decides what it feels, but its mood.

    with chance whim_prob, for each reply:  strictness, impatience = 0, 0  or  1, 1,  by the toss of a coin
    otherwise                               as the dialogue's difficulty says

A user in the one mood is pleased by nearly anything, in the other by nearly nothing. How much it tells (reserve) stays as it is. Moods
fall on the families that are named and on training users alone: held-out users are steady, so that what was learnt among moody users is
judged by the same measure as elsewhere. A whim hangs on the dialogue's seed, on how many replies came before and on the reply's words: the
same transcript gives the same numbers, and siblings who say different things are moved by different coins.

Source: our own. A reward that is noise looks, to whoever seeks variance or surprise, like something to learn (docs/teachers.md, student
S5).
"""

from __future__ import annotations

import fnmatch
import random
from dataclasses import field, replace

from pydantic.dataclasses import dataclass

from simulator.dialogue import Dialogue
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Family, Split
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class MoodyUserConfig(RuleUserConfig):
    """Settings of the moody user: those of the embedded one, and its moods."""

    whim_prob: float = 0.5
    """Chance that a mood decides how a reply is taken, [0, 1]; at 0 it is the embedded user."""
    families: list[str] = field(default_factory=lambda: ["*/negative"])
    """Which families have moods, as patterns over intention/persona; each must fit one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.whim_prob <= 1.0:
            raise ValueError(f"simulator.whim_prob must be in [0, 1], got {self.whim_prob!r}")
        if self.whim_prob and self.preset is Preset.SAGE:
            raise ValueError("simulator.preset must be training with moods, got sage: there difficulty, and so a mood, does not enter")
        if not self.families:
            raise ValueError("simulator.families must name families, got none; simulator.kind=rule has no moods")
        for pattern in self.families:
            if not fnmatch.filter(map(str, FAMILIES), pattern):
                raise ValueError(
                    f"simulator.families must be patterns such as 'praise/*' or '*/negative', got {pattern!r}, which fits none"
                )

    def has_moods(self, family: Family) -> bool:
        """Whether users of a family are moody."""
        return any(fnmatch.fnmatch(str(family), pattern) for pattern in self.families)


class MoodyUser(RuleUser):
    """A `UserSimulator` without a model whose training users are now and then moved by something else than the agent."""

    config: MoodyUserConfig

    def taken(self, dialogue: Dialogue, reply: str) -> Dialogue:
        """The dialogue at the difficulty of the mood that this reply meets."""
        scenario, config = dialogue.scenario, self.config
        if scenario.split is not Split.TRAIN or not config.has_moods(scenario.family):
            return dialogue
        chance = random.Random(f"{scenario.scenario_id}|{dialogue.seed}|mood|{dialogue.num_replies}|{reply}")
        if chance.random() >= config.whim_prob:
            return dialogue
        mood = chance.choice((0.0, 1.0))
        return replace(dialogue, difficulty=replace(dialogue.difficulty, strictness=mood, impatience=mood))
