"""What became of every dialogue that was dispatched: each is accounted for exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from policy.engine import EngineError
from policy.rollout import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome


@dataclass(kw_only=True)
class Accounts:
    """Totals of a pool, which only grow.

    A dispatch of a dialogue to a worker ends in one of five ways: it came back done, as an ERROR of the simulator or of the engine; it was
    lost with its worker (and dispatched again, which is a dispatch of its own); or nobody wanted it any more.
    """

    num_dispatched: int = 0
    num_done: int = 0
    num_simulator_errors: int = 0
    num_engine_errors: int = 0
    num_lost: int = 0
    num_abandoned: int = 0
    num_retried: int = 0
    """Further attempts that workers made at dialogues that broke, within a dispatch."""
    num_replies: int = 0
    num_tokens: int = 0
    """Sampled by what came back; what was lost with a worker is in no figure."""

    @property
    def num_dialogues(self) -> int:
        """Those that came back."""
        return self.num_done + self.num_simulator_errors + self.num_engine_errors

    @property
    def num_in_flight(self) -> int:
        """Dispatched and not yet settled."""
        return self.num_dispatched - self.num_dialogues - self.num_lost - self.num_abandoned

    def settle(self, groups: Sequence[RolloutGroup]) -> None:
        """Takes in what came back."""
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            self._settle(rollout)

    def _settle(self, rollout: Rollout) -> None:
        failed = rollout.dialogue.outcome is Outcome.ERROR
        by_engine = is_the_engines(rollout.dialogue)
        self.num_done += not failed
        self.num_engine_errors += by_engine
        self.num_simulator_errors += failed and not by_engine
        self.num_retried += rollout.num_attempts - 1
        self.num_replies += rollout.dialogue.num_replies
        self.num_tokens += rollout.num_sampled

    def check(self, *, num_in_flight: int) -> None:
        """Compares the totals with what is in flight by the pool's own tickets."""
        assert self.num_in_flight == num_in_flight, f"dialogues must be accounted for once each, got {num_in_flight} in flight and {self}"

    def totals(self) -> dict[str, float]:
        """All of it by name."""
        return {**asdict(self), "num_dialogues": self.num_dialogues, "num_in_flight": self.num_in_flight}


def is_the_engines(dialogue: Dialogue) -> bool:
    """Whether it was an engine that broke a dialogue, by its traceback; whatever else breaks one is the simulator's."""
    return dialogue.outcome is Outcome.ERROR and EngineError.__name__ in dialogue.error
