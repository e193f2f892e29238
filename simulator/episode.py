"""A dialogue with a simulated user that is stepped from outside: by rollouts, by other trainers, by a server."""

from __future__ import annotations

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn, UserSimulator
from simulator.scenario import Difficulty, Scenario


class Episode:
    """One dialogue. Whoever samples the replies calls `open` once and `reply` until it is `over`; what a user raises comes through.

    Args:
        max_turns: replies after which it ends.
    """

    def __init__(self, user: UserSimulator, scenario: Scenario, difficulty: Difficulty, *, seed: int, max_turns: int) -> None:
        self.dialogue = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed)
        self._user, self._max_turns = user, max_turns

    @property
    def over(self) -> bool:
        """Whether no further reply is wanted."""
        return self.dialogue.outcome is not None

    async def open(self) -> str:
        """The user's first words."""
        self.dialogue = await self._user.open(self.dialogue.scenario, self.dialogue.difficulty, seed=self.dialogue.seed)
        return self.dialogue.turns[-1].text

    async def reply(self, text: str) -> str | None:
        """The user's answer; None when the dialogue is over, whose last words are those of its last turn."""
        reply = Turn(speaker=Speaker.AGENT, text=text.strip())
        reaction = await self._user.react(self.dialogue, reply.text)
        is_last = self.dialogue.num_replies + 1 >= self._max_turns
        outcome = reaction.outcome or (Outcome.MAX_TURNS if is_last else None)
        self.dialogue = self.dialogue.then(reply, reaction.turn, outcome=outcome)
        return None if self.over else reaction.turn.text

    def cut_off(self) -> None:
        """Ends it because the agent has no room for another reply."""
        self.end(Outcome.TRUNCATED)

    def end(self, outcome: Outcome, *, error: str = "") -> None:
        """Ends it for a reason that is not the user's; one that is over stays as it ended."""
        if not self.over:
            self.dialogue = self.dialogue.then(outcome=outcome, error=error)
