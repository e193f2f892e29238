"""Proof that new weights reached every engine and are what it samples by: engines and learner must agree on what was just said.

How much may go wrong before a run stops itself: broken dialogues, and steps that nothing survived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from policy.rollout.dialogue import RolloutGroup
from policy.rollout.pool import is_the_engines
from simulator.dialogue import Dialogue, Outcome

TOLERANCE = 1e-3
"""Largest |logprob difference| in nats on a canary, both sides in fp32 (measured: 1e-5)."""


def canaries(groups: Sequence[RolloutGroup], *, max_context: int, num_sequences: int = 2) -> list[np.ndarray]:
    """Token ids [T] of a few dialogues that ended well, one from a group; of one in several sequences, the first.

    Args:
        max_context: tokens of the longest dialogue; one that fills it loses its last token here, as vLLM needs the room of a further one to
            score a prompt and a model may have no position beyond.
    """
    good = [next((r for r in group.rollouts if r.dialogue.outcome is not Outcome.ERROR), None) for group in groups]
    return [rollout.token_ids[rollout.segments[0]][: max_context - 1] for rollout in good if rollout is not None][:num_sequences]


def largest_difference(
    sequences: Sequence[np.ndarray],
    *,
    engines: Callable[[list[int]], Sequence[Sequence[float]]],
    learner: Callable[[list[int]], Sequence[float]],
) -> float:
    """Largest |logprob difference| in nats between any engine and the learner; NaN without sequences, infinite where one is no number.

    Args:
        engines: token ids -> logprobs of each engine, the first token's left out.
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
    """Raises when an engine still speaks with other weights than the learner's.

    Raises:
        RuntimeError: the difference is larger than fp32 arithmetic explains.
    """
    if is_fp32 and difference > TOLERANCE:
        seen = f"logprobs that differ from the learner's by {difference:.2g} nats"
        raise RuntimeError(f"weights of version {policy_version} must reach every engine, got {seen}")


def require_agreement(difference: float, *, policy_version: int, is_exact: bool) -> None:
    """Raises when the engines sampled by something else than the learner's weights.

    New weights may have arrived and the engine go on with the keys and values that the old ones left in its cache: that shows only in
    what it samples.

    Args:
        difference: mean |logprob difference| in nats on the tokens of a batch; NaN where nothing was measured.
        is_exact: whether both sides compute in fp32 and no token may be of older weights.

    Raises:
        RuntimeError: the difference is larger than fp32 arithmetic explains.
    """
    if is_exact and difference > TOLERANCE:
        seen = f"logprobs {difference:.2g} nats apart on average"
        raise RuntimeError(
            f"engines must sample by the learner's weights of version {policy_version}, got {seen}; "
            "a prefix cache that outlives its weights does that, or another dtype than policy.dtype"
        )


WINDOW = 200
MAX_EMPTY_STEPS = 10


class FaultBudget:
    """Counts broken dialogues over the last 200, and steps in a row that errors or expiry left empty.

    A step whose groups all fared alike is not empty: it teaches the teacher.

    Args:
        max_error_share: of the last 200 dialogues, in [0, 1].
        num_needed: dialogues of a group that must survive for it to be of use; 2 where siblings are compared.
    """

    def __init__(self, max_error_share: float, *, num_needed: int = 2) -> None:
        self._max_errors = max_error_share * WINDOW
        self._num_needed = num_needed
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        """Of each dialogue the traceback of what broke it, empty where it left none; None where it is sound."""
        self._empty_steps = 0
        self._num_simulator = 0
        self._num_engine = 0

    def observe(self, groups: Sequence[RolloutGroup]) -> None:
        """Takes in the dialogues of a step, after the pool's own retries; groups that expired are not among them.

        Raises:
            RuntimeError: too many of the last 200 dialogues broke, or ten steps in a row came back empty.
        """
        dialogues = [rollout.dialogue for group in groups for rollout in group.rollouts]
        broken = [dialogue for dialogue in dialogues if dialogue.outcome is Outcome.ERROR]
        self._recent.extend(dialogue.error if dialogue.outcome is Outcome.ERROR else None for dialogue in dialogues)
        self._empty_steps = 0 if any(self._is_of_use(group) for group in groups) else self._empty_steps + 1
        num_engine = sum(map(is_the_engines, broken))
        self._num_engine += num_engine
        self._num_simulator += len(broken) - num_engine
        errors = [error for error in self._recent if error is not None]
        first = next(filter(None, errors), "")
        if len(errors) > self._max_errors:
            seen = f"{self._max_errors:g} of the last {WINDOW} dialogues may break, got {len(errors)}"
            remedy = "check the simulator and the engine, or resume with a larger rollout.max_error_share"
            raise RuntimeError(f"at most {seen}; {remedy}; the first:\n{first}")
        if self._empty_steps >= MAX_EMPTY_STEPS:
            check = "check the simulator, the engine and rollout.dialogue_timeout_s"
            why = f"the first error:\n{first}" if first else "no dialogue broke: all groups expired"
            raise RuntimeError(f"{MAX_EMPTY_STEPS} steps in a row must not come back empty; {check}; {why}")

    def _is_of_use(self, group: RolloutGroup) -> bool:
        return sum(rollout.dialogue.outcome is not Outcome.ERROR for rollout in group.rollouts) >= self._num_needed

    def counts(self) -> dict[str, int]:
        """Dialogues that broke so far, by what broke them; all of them are in no reward and no baseline."""
        return {"simulator": self._num_simulator, "engine": self._num_engine, "excluded_dialogues": self._num_simulator + self._num_engine}

    def state_dict(self) -> dict[str, Any]:
        """Everything it counts, JSON-able."""
        return {
            "recent": list(self._recent),
            "empty_steps": self._empty_steps,
            "num_simulator": self._num_simulator,
            "num_engine": self._num_engine,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`."""
        # Checkpoints of earlier versions say of each whether it broke, and hold one traceback.
        texts = {True: state.get("first_error", ""), False: None}
        self._recent = deque((texts.get(error, error) for error in state["recent"]), maxlen=WINDOW)
        self._empty_steps = state["empty_steps"]
        self._num_simulator = state["num_simulator"]
        self._num_engine = state["num_engine"]


def first_traceback(broken: Iterable[Dialogue]) -> str:
    """The traceback of the first broken dialogue that has one."""
    return next((dialogue.error for dialogue in broken if dialogue.error), "")
