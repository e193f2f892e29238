"""prime-rl with Attune's teachers: a TaskSampler that chooses whom the policy meets next. Its environment is `attune_users`.

prime-rl tells a sampler neither versions nor entropy. Versions are read off the episodes, and entropy is estimated from their logprobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attune_rl.session import Result, Session, Ticket
from attune_rl.verifiers import UserTask, task_data

try:
    from prime_rl.orchestrator.curriculum.samplers.base import TaskSampler
except ImportError as error:
    raise ImportError("prime-rl must be one with a TaskSampler (tried: commit 559b447), got one without or none") from error

import verifiers.v1 as vf
from verifiers.v1.episode import TrainRunInfo


class AttuneSampler(TaskSampler):
    """A session as prime-rl's sampler.

    Args:
        session: its `group_size` must be the number of rollouts of a task, and its user `rule` or `encoder`, as dialogues are played
            in processes of their own.
    """

    def __init__(self, session: Session) -> None:
        session.require_one_by_one()
        if session.user_name not in ("rule", "encoder"):
            raise ValueError(f"user must be rule or encoder under prime-rl, whose environments make their own, got {session.user_name}")
        self.session = session
        self._logprobs, self._num_logprobs = 0.0, 0

    def __next__(self) -> UserTask:
        """The next task, proposed when it is asked for."""
        (task,) = self.session.propose(1)
        return UserTask(task_data(Ticket.of(task), user=self.session.user_name, max_turns=self.session.max_turns))

    def observe(self, group: Sequence[vf.Episode]) -> None:
        """Takes in a finished group; rollouts that were cancelled count as missing."""
        uid, is_whole = group[0].task.key, False
        for episode in group:
            if episode.errors and not episode.traces:
                is_whole = self.session.finish(uid, Result(reward=math.nan, error=str(episode.errors[-1])))
            for trace in episode.traces:
                if trace.errors:
                    is_whole = self.session.finish(uid, Result(reward=math.nan, error=str(trace.errors[-1])))
                elif trace.ok and "attune" in trace.info:
                    is_whole = self.session.finish(uid, Result.from_dict(trace.info["attune"]))
                    logprobs = [logprob for node in trace.nodes for logprob in node.logprobs or ()]
                    self._logprobs += sum(logprobs)
                    self._num_logprobs += len(logprobs)
        if not is_whole:
            self.session.close(uid)
        run = group[0].run
        policy = run.work.policy if isinstance(run, TrainRunInfo) else None
        if policy is not None and policy.end > self.session.policy_version:
            # Also gives up groups that went stale, of which no sampler hears.
            self.session.updated(policy.end, entropy_sampled=-self._logprobs / self._num_logprobs if self._num_logprobs else None)
            self._logprobs, self._num_logprobs = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """The session's, and what is known of entropy since the last update."""
        return {"session": self.session.state_dict(), "logprobs": self._logprobs, "num_logprobs": self._num_logprobs}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        self.session.load_state_dict(state_dict["session"])
        self._logprobs, self._num_logprobs = state_dict["logprobs"], state_dict["num_logprobs"]

    def metrics(self) -> dict[str, float]:
        """The session's."""
        return self.session.metrics()


def make_sampler(tasks: Any, **settings: Any) -> AttuneSampler:
    """A sampler from settings alone, for a configuration file; the environment's own tasks are left aside.

    Args:
        settings: of `Session`: `teacher`, `user`, `group_size`, `max_turns`, `seed`, and the teacher's own.
    """
    return AttuneSampler(Session(**settings))
