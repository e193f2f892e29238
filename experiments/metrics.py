"""Metrics of a step: what a teacher observes of each group, how the dialogues went, and how the agent behaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from curriculum.collapse.indicators import (
    at_bounds_share,
    compression_ratio,
    distinct,
    mutual_information,
    own_overlap,
    repetition,
    retrieval_accuracy,
    self_bleu,
    spearman,
    strategy_entropy,
)
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
from curriculum.task import GroupOutcome, Status, TaskSpec
from experiments.evaluation import mean
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome

THIRDS = ("easy", "middle", "hard")
"""Of strictness, from the most lenient."""


def measure(group: RolloutGroup, *, success_emotion: float) -> GroupOutcome:
    """The outcome of a group that a teacher observes; a final emotion (0-100) of `success_emotion` or more is a success."""
    assert isinstance(group.task, TaskSpec), f"only a teacher's tasks are measured, got {type(group.task).__name__}"
    rollouts = group.rollouts
    failed = [rollout.dialogue.outcome is Outcome.ERROR for rollout in rollouts]
    status: dict[Outcome | None, Status] = {Outcome.ERROR: Status.SIMULATOR_ERROR, Outcome.TRUNCATED: Status.TRUNCATED}
    return GroupOutcome(
        task=group.task,
        rewards=tuple(float("nan") if bad else rollout.reward.total for rollout, bad in zip(rollouts, failed, strict=True)),
        successes=tuple(not bad and r.dialogue.emotion >= success_emotion for r, bad in zip(rollouts, failed, strict=True)),
        num_tokens=tuple(rollout.num_sampled for rollout in rollouts),
        statuses=tuple(status.get(r.dialogue.outcome, Status.OK) for r in rollouts),
        signals={"entropy_sampled": entropy_sampled(rollouts), **strategy_shares([r.dialogue for r in rollouts])},
    )


def signal_metrics(outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """Reward density and related signals over all groups of a step, trained on or not."""
    rewards = [outcome.rewards for outcome in outcomes]
    successes = [[float("nan") if r != r else float(s) for r, s in zip(o.rewards, o.successes, strict=True)] for o in outcomes]
    strictness = [outcome.task.strictness for outcome in outcomes]
    zero = zero_variance_share(rewards)
    return {
        "curriculum/reward_density": reward_density(rewards),
        "curriculum/zero_variance_share": zero.total,
        "curriculum/all_low_share": zero.all_low,
        "curriculum/all_high_share": zero.all_high,
        "curriculum/alike_excess": alike_excess(successes, neighbours_success(strictness, successes)),
        "curriculum/within_group_std": within_group_std(rewards),
        "curriculum/effective_group_size": effective_group_size(rewards),
        "curriculum/groups_effective_share": effective_groups(rewards) / max(len(survivors(rewards)), 1),
        "curriculum/best_of_k_gain": best_of_k_gain(rewards),
        "curriculum/at_bounds_share": at_bounds_share(strictness),
    }


def dialogue_metrics(groups: Sequence[RolloutGroup], *, success_emotion: float) -> dict[str, float]:
    """Rewards, lengths, outcomes and behaviour of a step's dialogues; broken ones count in `dialogue/error_share` alone."""
    alive = [[rollout for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR] for group in groups]
    good = [rollout for rollouts in alive for rollout in rollouts]
    dialogues = [rollout.dialogue for rollout in good]
    played = [rollout.dialogue for group in groups for rollout in group.rollouts]
    rewards = np.array([rollout.reward.total for rollout in good])
    emotions = np.array([dialogue.emotion for dialogue in dialogues])
    replies = np.array([dialogue.num_replies for dialogue in dialogues], dtype=float)
    num_tokens = sum(rollout.num_sampled for rollout in good)
    outcomes = Counter(dialogue.outcome for dialogue in dialogues)
    # Only an LLM user detects replies that address the model behind it.
    suspicious = [bool(turn.suspicion) for dialogue in dialogues for turn in dialogue.turns if turn.change is not None]
    thoughts = [thought for rollout in good for thought in rollout.thoughts]
    thinking = {
        "rollout/think_tokens": mean([thought.num_tokens for thought in thoughts]),
        "rollout/format_ok": mean([thought.well_formed for thought in thoughts]),
        "rollout/think_truncated": mean([thought.cut_off for thought in thoughts]),
    }
    return {
        "reward/mean": mean(rewards),
        "reward/emotion": mean(emotions / 100.0),
        "reward/std": float(rewards.std()) if rewards.size else float("nan"),
        "reward/success_rate": mean(emotions >= success_emotion),
        "num_turns/mean": mean(replies),
        "response_length/mean": float(num_tokens / replies.sum()) if replies.sum() else float("nan"),
        **behaviour_metrics(alive),
        "dialogue/error_share": 1.0 - len(good) / len(played) if played else float("nan"),
        **{f"dialogue/error_share_{band}": share for band, share in broken_by_emotion(played).items()},
        **{f"dialogue/{outcome}": outcomes[outcome] / max(len(good), 1) for outcome in Outcome if outcome is not Outcome.ERROR},
        **{f"dialogue/{key}": share for key, share in strategy_shares(dialogues).items()},
        "simulator/suspicious_share": mean(np.array(suspicious, dtype=float)),
        "rollout/entropy_sampled": entropy_sampled(good),
        **(thinking if thoughts else {}),
    }


def broken_by_emotion(dialogues: Sequence[Dialogue]) -> dict[str, float]:
    """Share that broke of the dialogues by their last emotion, [0, 1]; nothing where none broke.

    A mean without the users who were unhappy would be too high.
    """
    bands: dict[str, list[bool]] = {"below_40": [], "40_to_69": [], "from_70": []}
    for dialogue in dialogues:
        band = "below_40" if dialogue.emotion < 40 else "40_to_69" if dialogue.emotion < 70 else "from_70"
        bands[band].append(dialogue.outcome is Outcome.ERROR)
    return {band: sum(broke) / len(broke) for band, broke in bands.items() if broke} if any(map(any, bands.values())) else {}


def behaviour_metrics(groups: Sequence[Sequence[Rollout]], *, max_compared: int = 64) -> dict[str, float]:
    """Repetition and strategies in the replies of a step.

    Args:
        groups: of siblings, without broken dialogues.
        max_compared: dialogues whose replies are compared pairwise, which dominates the cost here.
    """
    dialogues = [rollout.dialogue for rollouts in groups for rollout in rollouts]
    openers = [[rollout.dialogue.replies()[0] for rollout in rollouts if rollout.dialogue.num_replies] for rollouts in groups]
    # One dialogue of each group, then the next of each, so that any prefix holds as many groups as possible.
    longest = max(map(len, groups), default=0)
    interleaved = [rollouts[i].dialogue for i in range(longest) for rollouts in groups if i < len(rollouts)]
    # Every strategy that the user recognised in an answered reply, or that it recognised none.
    heard = [(d, label) for d in dialogues for turn in d.turns if turn.change is not None for label in (turn.heard or ("none",))]
    strategies = [label for _, label in heard]
    contexts: dict[str, list[str]] = {
        "intention": [dialogue.scenario.family.intention for dialogue, _ in heard],
        "persona": [dialogue.scenario.family.persona for dialogue, _ in heard],
        "strictness": [third(dialogue.difficulty.strictness) for dialogue, _ in heard],
    }
    return {
        "dialogue/repetition": finite_mean([repetition(dialogue.replies()) for dialogue in dialogues]),
        "dialogue/own_overlap": finite_mean([own_overlap(dialogue.replies()) for dialogue in interleaved[:max_compared]]),
        "dialogue/distinct_2": distinct([reply for dialogue in dialogues for reply in dialogue.replies()]),
        "dialogue/self_bleu_siblings": finite_mean([self_bleu(replies) for replies in openers]),
        "dialogue/self_bleu_prompts": self_bleu([replies[0] for replies in openers if replies]),
        "dialogue/compression_ratio": compression_ratio(reply for dialogue in interleaved for reply in dialogue.replies()),
        "reward/length_correlation": length_correlation(groups),
        "dialogue/strategy_entropy": strategy_entropy(strategies),
        **{f"dialogue/strategy_information/{name}": mutual_information(strategies, users) for name, users in contexts.items()},
    }


def length_correlation(groups: Sequence[Sequence[Rollout]]) -> float:
    """Correlation of reward and tokens per reply over siblings, each less its group's mean; NaN without variation."""
    lengths, rewards = [], []
    for rollouts in groups:
        spoken = [rollout for rollout in rollouts if rollout.dialogue.num_replies]
        tokens_G = np.array([rollout.num_sampled / rollout.dialogue.num_replies for rollout in spoken])
        rewards_G = np.array([rollout.reward.total for rollout in spoken])
        if len(spoken) > 1:
            lengths.extend(tokens_G - tokens_G.mean())
            rewards.extend(rewards_G - rewards_G.mean())
    varies = len(lengths) > 1 and np.ptp(lengths) > 0.0 and np.ptp(rewards) > 0.0
    return float(np.corrcoef(lengths, rewards)[0, 1]) if varies else float("nan")


def entropy_sampled(rollouts: Sequence[Rollout]) -> float:
    """Mean of -logprob over the sampled tokens, nats; NaN without any."""
    logprobs = [rollout.rollout_logprobs[rollout.loss_mask] for rollout in rollouts]
    return mean(-np.concatenate(logprobs)) if logprobs else float("nan")


def strategy_shares(dialogues: Sequence[Dialogue]) -> dict[str, float]:
    """By support strategy, the share of answered replies in which the user recognised it."""
    answered = [turn for dialogue in dialogues for turn in dialogue.turns if turn.change is not None]
    counts = Counter(strategy for turn in answered for strategy in set(turn.heard))
    return {f"heard/{strategy}": count / len(answered) for strategy, count in sorted(counts.items())}


def probe_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Rewards of the probe panel, in all and by third of strictness."""
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


def retrieval_metrics(rollouts: Sequence[Rollout], score: Callable[[list[int]], Sequence[float]], *, num_contexts: int) -> dict[str, float]:
    """Whether first replies depend on whom they answer; nothing where `num_contexts` is 0.

    The first replies, with their thoughts, of the first N = `num_contexts` dialogues that did not fail and whose contexts differ are scored
    in the contexts of all of them: N^2 passes of the model.

    Args:
        score: token ids -> logprobs of all but the first, nats.
    """
    if num_contexts == 0:
        return {}
    replies: dict[tuple[int, ...], list[int]] = {}
    for rollout in rollouts:
        begin = int(rollout.loss_mask.argmax()) if rollout.loss_mask.any() else 0
        if begin and rollout.dialogue.outcome is not Outcome.ERROR:
            num_sampled = int(np.cumprod(rollout.loss_mask[begin:]).sum())
            reply = rollout.token_ids[begin : begin + num_sampled].tolist()
            replies.setdefault(tuple(rollout.token_ids[:begin].tolist()), reply)
    pairs = list(replies.items())[:num_contexts]
    # Replies are rows, contexts columns.
    logprobs = [[np.sum(score([*context, *reply])[-len(reply) :]) for context, _ in pairs] for _, reply in pairs]
    return {"probe/retrieval_accuracy": retrieval_accuracy(np.array(logprobs).reshape(len(pairs), len(pairs)))}


def third(strictness: float) -> str:
    """The third of [0, 1] in which a strictness lies."""
    return THIRDS[min(int(3 * strictness), 2)]


def finite_mean(values: Sequence[float]) -> float:
    """The mean of the finite values, NaN without any."""
    values_N = np.array(values, dtype=float)
    return mean(values_N[np.isfinite(values_N)])
