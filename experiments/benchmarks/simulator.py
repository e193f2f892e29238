"""How fast the embedded user answers the scripted agents, on one core."""

from __future__ import annotations

import time

from experiments.benchmarks.figures import Figures, Settings, dialogues, embedded_user, figure
from simulator.dialogue import Dialogue
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.user import Reaction

NUM_GROUPS, GROUP_SIZE = 16, 4


class TimedUser(RuleUser):
    """The embedded user, with the CPU time that its answers took."""

    def __init__(self, config: RuleUserConfig) -> None:
        super().__init__(config)
        self.cpu_s, self.num_answers = 0.0, 0

    def answer(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer."""
        started = time.process_time()
        reaction = super().answer(dialogue, reply)
        self.cpu_s += time.process_time() - started
        self.num_answers += 1
        return reaction


def measure(settings: Settings) -> Figures:
    """Other scenarios in every repeat; a first one, not counted, reads the lexica."""
    rates = []
    for seed in range(settings.repeats + 1):
        settings.progress(f"repeat {seed} of {settings.repeats}")
        user = TimedUser(embedded_user().config)
        for _ in dialogues(NUM_GROUPS, GROUP_SIZE, seed=seed, user=user):
            pass
        rates.append(user.num_answers / user.cpu_s)
    return {"simulator.reactions_per_s": figure(rates[1:])}
