"""Whole dialogues against one offline call on the same prompts, on one engine and on two; and how long new weights take to reach them."""

from __future__ import annotations

from experiments.benchmarks.figures import Figures, Settings, figure, ratios
from experiments.benchmarks.whole_dialogues import bench_rollouts
from policy.engine import EngineConfig
from policy.rollout_config import RolloutConfig

NUM_GROUPS, GROUP_SIZE = 8, 8
"""64 dialogues at once."""


def measure(settings: Settings) -> Figures:
    """With the embedded user. The offline call is the ceiling of the engines that served the dialogues."""
    found: Figures = {}
    for num_engines in (1, 2):
        settings.progress(f"{num_engines} engine{'s' if num_engines > 1 else ''}, {settings.repeats} rounds")
        rounds = bench_rollouts(
            settings.folder(),
            user="rule",
            num_groups=NUM_GROUPS,
            group_size=GROUP_SIZE,
            repeats=settings.repeats,
            config=RolloutConfig(num_engines=num_engines, threads_per_engine=settings.threads),
            engine_config=EngineConfig(engine=settings.engine),
        )
        found[f"rollouts.engines.{num_engines}"] = figure(rounds.rollout_tokens_per_s)
    found["rollouts.tokens_per_s"] = figure(rounds.rollout_tokens_per_s)
    found["rollouts.ceiling_tokens_per_s"] = figure(rounds.offline_tokens_per_s)
    found["rollouts.ratio"] = ratios(rounds.rollout_tokens_per_s, rounds.offline_tokens_per_s)
    found["weights.sync_s"] = figure(rounds.update_s)
    return found
