"""The bridge between rollouts and teaching: what a finished group says about its task, and what a step says about the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from curriculum.collapse.alarms import INDICATOR_METRICS
from curriculum.collapse.indicators import at_bounds_share, repetition, spearman
from curriculum.signals import (
    alike_excess,
    best_of_k_gain,
    effective_group_size,
    effective_groups,
    neighbours_success,
    reward_density,
    survivors,
    within_group_std,
    zero_variance_share,
)
from curriculum.task import GroupOutcome, Status, TaskSpec, UpdateStats
from experiments.behaviour import THIRDS, behaviour_metrics, finite_mean, third
from experiments.evaluate import mean
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome

STATUS: dict[Outcome | None, Status] = {Outcome.ERROR: Status.SIMULATOR_ERROR, Outcome.TRUNCATED: Status.TRUNCATED}


def measure(group: RolloutGroup, *, success_emotion: float) -> GroupOutcome:
    """What the teacher learns of a group.

    Args:
        success_emotion: final emotion, 0-100, from which a dialogue counts as a success.
    """
    assert isinstance(group.task, TaskSpec), f"only a teacher's tasks are measured, got {type(group.task).__name__}"
    rollouts = group.rollouts
    failed = [rollout.dialogue.outcome is Outcome.ERROR for rollout in rollouts]
    return GroupOutcome(
        task=group.task,
        rewards=tuple(float("nan") if bad else rollout.reward.total for rollout, bad in zip(rollouts, failed, strict=True)),
        successes=tuple(not bad and r.dialogue.emotion >= success_emotion for r, bad in zip(rollouts, failed, strict=True)),
        num_tokens=tuple(rollout.num_sampled for rollout in rollouts),
        statuses=tuple(STATUS.get(rollout.dialogue.outcome, Status.OK) for rollout in rollouts),
        signals={"entropy_sampled": entropy_sampled(rollouts), **heard_shares([r.dialogue for r in rollouts])},
    )


def entropy_sampled(rollouts: Sequence[Rollout]) -> float:
    """Mean of -logprob over the sampled tokens, nats; NaN without any."""
    logprobs = [rollout.rollout_logprobs[rollout.loss_mask] for rollout in rollouts]
    return mean(-np.concatenate(logprobs)) if logprobs else float("nan")


def heard_shares(dialogues: Sequence[Dialogue]) -> dict[str, float]:
    """For each support strategy, the share of answered replies in which the user heard it."""
    answered = [turn for dialogue in dialogues for turn in dialogue.turns if turn.change is not None]
    counts = Counter(strategy for turn in answered for strategy in set(turn.heard))
    return {f"heard/{strategy}": count / len(answered) for strategy, count in sorted(counts.items())}


def suspicious_share(dialogues: Sequence[Dialogue]) -> float:
    """Share of answered replies that address whoever plays the user; NaN without any. Only an llm user looks for them."""
    return mean(
        np.array([bool(turn.suspicion) for dialogue in dialogues for turn in dialogue.turns if turn.change is not None], dtype=float)
    )


def signal_metrics(outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """How much the groups of a step have to teach, over all of them, whatever is trained on."""
    rewards = [outcome.rewards for outcome in outcomes]
    successes = [[float("nan") if r != r else float(s) for r, s in zip(o.rewards, o.successes, strict=True)] for o in outcomes]
    strictness = [outcome.task.strictness for outcome in outcomes]
    alike = zero_variance_share(rewards)
    return {
        "curriculum/reward_density": reward_density(rewards),
        "curriculum/zero_variance_share": alike.total,
        "curriculum/all_low_share": alike.all_low,
        "curriculum/all_high_share": alike.all_high,
        "curriculum/alike_excess": alike_excess(successes, neighbours_success(strictness, successes)),
        "curriculum/within_group_std": within_group_std(rewards),
        "curriculum/effective_group_size": effective_group_size(rewards),
        "curriculum/groups_effective_share": effective_groups(rewards) / max(len(survivors(rewards)), 1),
        "curriculum/best_of_k_gain": best_of_k_gain(rewards),
        "curriculum/at_bounds_share": at_bounds_share(strictness),
    }


def update_stats(metrics: Mapping[str, float], *, step: int, policy_version: int) -> UpdateStats:
    """What the optimiser step tells the teacher; NaN for what a step without training did not measure."""
    return UpdateStats(
        step=step,
        policy_version=policy_version,
        entropy=metrics["actor/entropy"],
        entropy_sampled=metrics["rollout/entropy_sampled"],
        reward_density=metrics["curriculum/reward_density"],
        zero_variance_share=metrics["curriculum/zero_variance_share"],
        kl=metrics["actor/kl_loss"],
    )


def collapse_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """What the collapse monitor watches, by its own names; a step without a look at the probe panel has nothing of it."""
    return {indicator: metrics[key] for indicator, key in INDICATOR_METRICS.items() if key in metrics}


def dialogue_metrics(groups: Sequence[RolloutGroup], *, success_emotion: float) -> dict[str, float]:
    """How the dialogues of a step went; dialogues that failed count in `dialogue/error_share` alone."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    good = [rollout for rollout in rollouts if rollout.dialogue.outcome is not Outcome.ERROR]
    rewards = np.array([rollout.reward.total for rollout in good])
    emotions = np.array([rollout.dialogue.emotion for rollout in good])
    replies = np.array([rollout.dialogue.num_replies for rollout in good], dtype=float)
    tokens = np.array([rollout.num_sampled for rollout in good], dtype=float)
    outcomes = Counter(rollout.dialogue.outcome for rollout in good)
    return {
        "reward/mean": mean(rewards),
        "reward/emotion": mean(emotions / 100.0),
        "reward/std": float(rewards.std()) if rewards.size else float("nan"),
        "reward/success_rate": mean(emotions >= success_emotion),
        "num_turns/mean": mean(replies),
        "response_length/mean": float(tokens.sum() / replies.sum()) if replies.sum() else float("nan"),
        **behaviour_metrics(groups),
        "dialogue/error_share": 1.0 - len(good) / len(rollouts) if rollouts else float("nan"),
        **{f"dialogue/{outcome}": outcomes[outcome] / max(len(good), 1) for outcome in Outcome if outcome is not Outcome.ERROR},
        **{f"dialogue/{key}": share for key, share in heard_shares([rollout.dialogue for rollout in good]).items()},
        "simulator/suspicious_share": suspicious_share([rollout.dialogue for rollout in good]),
        "rollout/entropy_sampled": entropy_sampled(good),
        **thinking_metrics(good),
    }


def thinking_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How long an agent that thinks thinks, and how often its replies have the form that it was asked for; nothing of one that does not."""
    thoughts = [thought for rollout in rollouts for thought in rollout.thoughts]
    if not thoughts:
        return {}
    return {
        "rollout/think_tokens": mean(np.array([thought.num_tokens for thought in thoughts], dtype=float)),
        "rollout/format_ok": mean(np.array([thought.well_formed for thought in thoughts], dtype=float)),
        "rollout/think_truncated": mean(np.array([thought.cut_off for thought in thoughts], dtype=float)),
    }


def probe_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How the probe panel fared."""
    good = [rollout for rollout in rollouts if rollout.dialogue.outcome is not Outcome.ERROR]
    rewards = [rollout.reward.total for rollout in good]
    strictness = [rollout.dialogue.difficulty.strictness for rollout in good]
    cells = {name: [r for r, d in zip(rewards, strictness, strict=True) if third(d) == name] for name in THIRDS}
    return {
        "probe/reward": finite_mean(rewards),
        **{f"probe/reward_{name}": finite_mean(cell) for name, cell in cells.items()},
        "probe/strictness_correlation": spearman(strictness, rewards),
        "probe/entropy_sampled": entropy_sampled(good),
        "probe/repetition": finite_mean([repetition(rollout.dialogue.replies()) for rollout in good]),
    }
