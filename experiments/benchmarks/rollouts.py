"""Whole dialogues against one offline call on the same prompts, on one engine and on two; and how long new weights take to reach them."""

from __future__ import annotations

import importlib.util
import os

from experiments.benchmarks.figures import Figures, Settings, figure, ratio_of_medians, ratios
from experiments.benchmarks.whole_dialogues import Rounds, bench_rollouts
from policy.config import EngineConfig, EngineKind, RolloutConfig

NUM_GROUPS, GROUP_SIZE = 8, 8
"""64 dialogues at once."""
NO_PROCESS = "not measured: an engine in a process of its own needs vLLM and two cores for {} threads"


def measure(settings: Settings) -> Figures:
    """With the embedded user. The offline call is the ceiling of the engines that served the dialogues.

    The headline is one engine in a process of its own, where its users have a core to themselves. Engines that share their process with
    their users are beside it; where all cores are engines', these sample more.
    """
    found: Figures = {}
    in_process = {num_engines: _rounds(settings, num_engines=num_engines, engine_process=False) for num_engines in (1, 2)}
    for num_engines, rounds in in_process.items():
        found[f"rollouts.engines.{num_engines}"] = figure(rounds.rollout_tokens_per_s)
        found[f"rollouts.in_process_ratio.{num_engines}"] = ratios(rounds.rollout_tokens_per_s, rounds.offline_tokens_per_s)
    found["rollouts.two_over_one"] = ratio_of_medians(in_process[2].rollout_tokens_per_s, in_process[1].rollout_tokens_per_s)
    found["weights.sync_s"] = figure(in_process[2].update_s)
    if settings.engine is EngineKind.HF or importlib.util.find_spec("vllm") is None or (os.cpu_count() or 1) < 2 * settings.threads:
        reason = NO_PROCESS.format(settings.threads)
        return found | {f"rollouts.{name}": reason for name in ("tokens_per_s", "ceiling_tokens_per_s", "ratio")}
    rounds = _rounds(settings, num_engines=1, engine_process=True)
    found["rollouts.tokens_per_s"] = figure(rounds.rollout_tokens_per_s)
    found["rollouts.ceiling_tokens_per_s"] = figure(rounds.offline_tokens_per_s)
    found["rollouts.ratio"] = ratios(rounds.rollout_tokens_per_s, rounds.offline_tokens_per_s)
    return found


def _rounds(settings: Settings, *, num_engines: int, engine_process: bool) -> Rounds:
    where = ", in a process of its own" if engine_process else ""
    settings.progress(f"{num_engines} engine{'s' if num_engines > 1 else ''}{where}, {settings.repeats} rounds")
    return bench_rollouts(
        settings.folder(),
        user="rule",
        num_groups=NUM_GROUPS,
        group_size=GROUP_SIZE,
        repeats=settings.repeats,
        config=RolloutConfig(num_engines=num_engines, threads_per_engine=settings.threads),
        engine_config=EngineConfig(engine=settings.engine, engine_process=engine_process),
    )
