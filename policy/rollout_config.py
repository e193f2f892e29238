"""Settings of rolling out, apart from the rollouts themselves so that reading them imports little."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class RolloutConfig:
    """How dialogues are rolled out (`rollout.*`)."""

    num_engines: int = 2
    """At least 1; each is a process of its own (about 0.8 GB for the embedded policy)."""
    threads_per_engine: int = 1
    """At least 1; CPU threads of an engine. Small models gain more from another engine than from another thread."""
    max_turns: int = 8
    """At least 1; replies of the agent after which a dialogue ends."""
    max_new_tokens: int = 40
    """At least 1; tokens a reply may have. The user answers a reply that was cut off, too."""
    max_context: int = 512
    """Tokens a dialogue may have; it ends as TRUNCATED once a whole further reply does not fit."""
    temperature: float = 1.0
    """At least 0.01 (vLLM samples no colder); the only thing that shapes sampling in training."""
    retries: int = 1
    """At least 0; further attempts at a dialogue that failed, before it counts as an ERROR."""
    retry_backoff_s: float = 0.5
    """At least 0; seconds before the first further attempt, doubled before each next one."""
    max_staleness: int = 0
    """At least 0; updates that may lie between the weights that sampled a token and those it is trained into. 0 rolls out and updates in
    turn; 1 rolls out the next step meanwhile; more keep so many steps under way, for dialogues that take longer than an update."""
    dialogue_timeout_s: float = 300.0
    """Above 0; seconds after which an attempt at a dialogue counts as failed. They stand still while it waits for a user that is away, or
    in line for a place at the server of a model as user."""
    outage_s: float = 120.0
    """At least 0; seconds for which dialogues wait, where they stand, for a simulated user that answers nobody, before that counts."""
    max_error_share: float = 0.05
    """In [0, 1]; share of ERROR dialogues among the last 200 above which a run stops."""
    hang_timeout_s: float = 120.0
    """Above 0; seconds in which a worker that has something to do must do some of it (a token, an answer of its process), before it counts
    as hung, is started anew and its dialogues with it."""
    max_restarts: int = 3
    """At least 0; times one worker may be started anew within `restart_window_s`; one more and the run stops, to be resumed."""
    restart_window_s: float = 3600.0
    """Above 0; seconds after which a restart is forgotten."""
    reward_terms: dict[str, float] = field(default_factory=dict)
    """Shares of the reward by registered term (`simulator.reward.REWARD_TERMS`), each in [0, 1] and together at most 1; the rest is paid
    for how the user feels in the end."""
    binary_reward_at: float = 0.0
    """In [0, 100]; above 0 a dialogue is paid 1 if its user's final emotion is at least this, else nothing: sparse feedback, like a thumb
    up or down. At 0 the final emotion itself is paid."""
    deterministic: bool = False
    """Sample every turn of all dialogues of an engine together and in a fixed order, so that two runs sample identical tokens. Slower."""

    def __post_init__(self) -> None:
        for name in ("num_engines", "threads_per_engine", "max_turns", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.{name} must be at least 1, got {getattr(self, name)!r}")
        if self.max_context < self.max_new_tokens + 2:
            raise ValueError(f"rollout.max_context must leave room for a prompt and rollout.max_new_tokens, got {self.max_context!r}")
        if self.temperature < 0.01:
            raise ValueError(f"rollout.temperature must be at least 0.01, got {self.temperature!r}; training needs replies that differ")
        if self.retries < 0 or self.retry_backoff_s < 0:
            raise ValueError(
                f"rollout.retries and rollout.retry_backoff_s must not be negative, got {self.retries!r}, {self.retry_backoff_s!r}"
            )
        for name in ("dialogue_timeout_s", "hang_timeout_s", "restart_window_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"rollout.{name} must be above 0, got {getattr(self, name)!r}")
        for name in ("max_staleness", "max_restarts", "outage_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"rollout.{name} must not be negative, got {getattr(self, name)!r}")
        for name, share in self.reward_terms.items():
            if not 0 <= share <= 1:
                raise ValueError(f"rollout.reward_terms.{name} must be in [0, 1], got {share!r}")
        if math.fsum(self.reward_terms.values()) > 1:
            raise ValueError(f"rollout.reward_terms must sum to at most 1, got {self.reward_terms!r}")
        if not 0 <= self.binary_reward_at <= 100:
            raise ValueError(f"rollout.binary_reward_at must be in [0, 100], got {self.binary_reward_at!r}")
        if not 0 <= self.max_error_share <= 1:
            raise ValueError(f"rollout.max_error_share must be in [0, 1], got {self.max_error_share!r}")
