"""Checks while a run trains: new weights reach every engine, and few dialogues break."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from policy.rollout.dialogue import RolloutGroup, is_the_engines
from simulator.dialogue import Outcome

TOLERANCE = 1e-3
"""Largest |logprob difference| in nats between engine and learner in float32; measured: 1e-5."""


def to_score(groups: Sequence[RolloutGroup], *, max_context: int, num_sequences: int = 2) -> list[list[int]]:
    """Token ids of a few dialogues of a step: the first segment of the first sound dialogue of a group.

    Args:
        max_context: tokens of the longest dialogue; a full one loses its last token, because vLLM scores a prompt with room for one more.
    """
    sound = [next((r for r in group.rollouts if r.dialogue.outcome is not Outcome.ERROR), None) for group in groups]
    chosen = [rollout for rollout in sound if rollout is not None][:num_sequences]
    return [[int(token) for token in rollout.token_ids[rollout.segments[0]][: max_context - 1]] for rollout in chosen]


def arrival_difference(scored: Sequence[Sequence[float]], by_engine: Sequence[Sequence[Sequence[float]]]) -> float:
    """Largest |logprob difference| in nats between any engine and the learner; NaN without dialogues, infinite where one score is NaN.

    Args:
        scored: the learner's logprobs of each dialogue, without the first token's.
        by_engine: of each dialogue, those of every engine.
    """
    largest = float("nan")
    for expected, engines in zip(scored, by_engine, strict=True):
        for scores in engines:
            difference = np.abs(np.subtract(scores, expected, dtype=np.float64))
            largest = np.fmax(largest, np.where(np.isnan(difference), np.inf, difference).max())
    return float(largest)


class ErrorBudget:
    """Counts broken dialogues among the last 200, and steps in a row in which no group was usable.

    Args:
        max_error_share: of the last 200 dialogues, in [0, 1].
        num_needed: sound dialogues that make a group usable; 2 where siblings are compared.
    """

    WINDOW = 200
    """Latest dialogues among which errors are counted."""
    MAX_EMPTY_STEPS = 10
    """Steps in a row without a usable group."""

    def __init__(self, max_error_share: float, *, num_needed: int = 2) -> None:
        self._max_errors, self._num_needed = max_error_share * self.WINDOW, num_needed
        self._recent: deque[str | None] = deque(maxlen=self.WINDOW)
        """By dialogue, the traceback of its error, possibly empty; None for a sound one."""
        self._empty_steps = self._num_simulator = self._num_engine = 0

    def observe(self, groups: Sequence[RolloutGroup]) -> None:
        """Counts the dialogues of a step, after the pool's own retries; expired groups are not among them.

        Raises:
            RuntimeError: too many of the last 200 dialogues broke, or ten steps in a row had no usable group.
        """
        is_usable = False
        for group in groups:
            broken = [rollout.dialogue for rollout in group.rollouts if rollout.dialogue.outcome is Outcome.ERROR]
            is_usable |= len(group.rollouts) - len(broken) >= self._num_needed
            num_engine = sum(map(is_the_engines, broken))
            self._num_engine += num_engine
            self._num_simulator += len(broken) - num_engine
            self._recent.extend(r.dialogue.error if r.dialogue.outcome is Outcome.ERROR else None for r in group.rollouts)
        self._empty_steps = 0 if is_usable else self._empty_steps + 1
        errors = [error for error in self._recent if error is not None]
        first = next(filter(None, errors), "")
        if len(errors) > self._max_errors:
            raise RuntimeError(
                f"at most {self._max_errors:g} of the last {self.WINDOW} dialogues may break, got {len(errors)}; check the simulator and "
                f"the engine, or resume with a larger rollout.max_error_share; the first:\n{first}"
            )
        if self._empty_steps >= self.MAX_EMPTY_STEPS:
            why = f"the first error:\n{first}" if first else "no dialogue broke: all groups expired"
            raise RuntimeError(
                f"{self.MAX_EMPTY_STEPS} steps in a row must not be empty; check the simulator, the engine and "
                f"rollout.dialogue_timeout_s; {why}"
            )

    def counts(self) -> dict[str, int]:
        """Broken dialogues so far by their cause; none of them is in a reward or a baseline."""
        return {"simulator": self._num_simulator, "engine": self._num_engine, "excluded_dialogues": self._num_simulator + self._num_engine}

    def state_dict(self) -> dict[str, Any]:
        """Its counts, JSON-able."""
        counts = {"num_simulator": self._num_simulator, "num_engine": self._num_engine}
        return {"recent": list(self._recent), "empty_steps": self._empty_steps, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`."""
        self._recent = deque(state["recent"], maxlen=self.WINDOW)
        self._empty_steps, self._num_simulator, self._num_engine = state["empty_steps"], state["num_simulator"], state["num_engine"]
