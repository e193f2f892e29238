"""Checks while a run trains: new weights reach every engine, engines sample by them, and few dialogues break."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from policy.rollout.dialogue import RolloutGroup, is_the_engines
from simulator.dialogue import Dialogue, Outcome

TOLERANCE = 1e-3
"""Largest |logprob difference| in nats between engine and learner in float32; measured: 1e-5."""
WINDOW = 200
"""Latest dialogues among which errors are counted."""
MAX_EMPTY_STEPS = 10
"""Steps in a row without a usable group."""


def canaries(groups: Sequence[RolloutGroup], *, max_context: int, num_sequences: int = 2) -> list[np.ndarray]:
    """Token ids [T] of a few sound dialogues of different groups, the first segment of each.

    Args:
        max_context: tokens of the longest dialogue; a full one loses its last token, because vLLM scores a prompt with room for one more.
    """
    sound = [next((r for r in group.rollouts if r.dialogue.outcome is not Outcome.ERROR), None) for group in groups]
    return [rollout.token_ids[rollout.segments[0]][: max_context - 1] for rollout in sound if rollout is not None][:num_sequences]


def largest_difference(
    sequences: Sequence[np.ndarray],
    *,
    engines: Callable[[list[int]], Sequence[Sequence[float]]],
    learner: Callable[[list[int]], Sequence[float]],
) -> float:
    """Largest |logprob difference| in nats between any engine and the learner; NaN without sequences, infinite where one is NaN.

    Args:
        engines: token ids -> logprobs by engine, without the first token's.
        learner: token ids -> logprobs, likewise.
    """
    largest = float("nan")
    for sequence in sequences:
        token_ids = [int(token) for token in sequence]
        expected = np.asarray(learner(token_ids), dtype=np.float64)
        for scores in engines(token_ids):
            difference = np.abs(np.asarray(scores, dtype=np.float64) - expected)
            largest = np.fmax(largest, np.where(np.isnan(difference), np.inf, difference).max())
    return float(largest)


def require_arrival(difference: float, *, policy_version: int, is_fp32: bool) -> None:
    """Raises when an engine scores by other weights than the learner's.

    Raises:
        RuntimeError: the difference is larger than float32 arithmetic explains.
    """
    if is_fp32 and difference > TOLERANCE:
        raise RuntimeError(
            f"weights of version {policy_version} must reach every engine, got logprobs {difference:.2g} nats from the learner's"
        )


def require_agreement(difference: float, *, policy_version: int, is_exact: bool) -> None:
    """Raises when engines sampled by other weights than the learner's, for instance from a prefix cache of older weights.

    Args:
        is_exact: both sides compute in float32, and no token may be of older weights.

    Raises:
        RuntimeError: the mean difference is larger than float32 arithmetic explains.
    """
    if is_exact and difference > TOLERANCE:
        raise RuntimeError(
            f"engines must sample by the learner's weights of version {policy_version}, got logprobs {difference:.2g} nats apart on "
            "average; a prefix cache that outlives its weights does that, or another dtype than policy.dtype"
        )


class ErrorBudget:
    """Counts broken dialogues among the last 200, and steps in a row in which no group was usable.

    Args:
        max_error_share: of the last 200 dialogues, in [0, 1].
        num_needed: sound dialogues that make a group usable; 2 where siblings are compared.
    """

    def __init__(self, max_error_share: float, *, num_needed: int = 2) -> None:
        self._max_errors, self._num_needed = max_error_share * WINDOW, num_needed
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        """By dialogue, the traceback of its error, possibly empty; None for a sound one."""
        self._empty_steps = self._num_simulator = self._num_engine = 0

    def observe(self, groups: Sequence[RolloutGroup]) -> None:
        """Counts the dialogues of a step, after the pool's own retries; expired groups are not among them.

        Raises:
            RuntimeError: too many of the last 200 dialogues broke, or ten steps in a row had no usable group.
        """
        dialogues = [rollout.dialogue for group in groups for rollout in group.rollouts]
        broken = [dialogue for dialogue in dialogues if dialogue.outcome is Outcome.ERROR]
        self._recent.extend(dialogue.error if dialogue.outcome is Outcome.ERROR else None for dialogue in dialogues)
        self._empty_steps = 0 if any(self._is_usable(group) for group in groups) else self._empty_steps + 1
        num_engine = sum(map(is_the_engines, broken))
        self._num_engine += num_engine
        self._num_simulator += len(broken) - num_engine
        errors = [error for error in self._recent if error is not None]
        first = next(filter(None, errors), "")
        if len(errors) > self._max_errors:
            raise RuntimeError(
                f"at most {self._max_errors:g} of the last {WINDOW} dialogues may break, got {len(errors)}; check the simulator and the "
                f"engine, or resume with a larger rollout.max_error_share; the first:\n{first}"
            )
        if self._empty_steps >= MAX_EMPTY_STEPS:
            why = f"the first error:\n{first}" if first else "no dialogue broke: all groups expired"
            raise RuntimeError(
                f"{MAX_EMPTY_STEPS} steps in a row must not be empty; check the simulator, the engine and rollout.dialogue_timeout_s; {why}"
            )

    def _is_usable(self, group: RolloutGroup) -> bool:
        return sum(rollout.dialogue.outcome is not Outcome.ERROR for rollout in group.rollouts) >= self._num_needed

    def counts(self) -> dict[str, int]:
        """Broken dialogues so far by their cause; none of them is in a reward or a baseline."""
        return {"simulator": self._num_simulator, "engine": self._num_engine, "excluded_dialogues": self._num_simulator + self._num_engine}

    def state_dict(self) -> dict[str, Any]:
        """Its counts, JSON-able."""
        return {
            "recent": list(self._recent),
            "empty_steps": self._empty_steps,
            "num_simulator": self._num_simulator,
            "num_engine": self._num_engine,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`."""
        self._recent = deque(state["recent"], maxlen=WINDOW)
        self._empty_steps, self._num_simulator, self._num_engine = state["empty_steps"], state["num_simulator"], state["num_engine"]


def first_traceback(broken: Iterable[Dialogue]) -> str:
    """The traceback of the first broken dialogue that has one."""
    return next((dialogue.error for dialogue in broken if dialogue.error), "")
