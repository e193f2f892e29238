"""How the agent behaved in a step: whether its replies repeat each other, and whether it chooses strategies by whom it talks to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from curriculum.collapse.indicators import (
    compression_ratio,
    distinct,
    mutual_information,
    own_overlap,
    repetition,
    self_bleu,
    strategy_entropy,
)
from experiments.evaluate import mean
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome

THIRDS = ("easy", "middle", "hard")
"""Of strictness, from the most lenient."""
MAX_COMPARED = 64
"""Dialogues of a step whose replies are compared with each other: pairs cost the most here, and these hold of each group as many as fit."""
NO_STRATEGY = "none"
"""Label of an answered reply in which the user heard no strategy."""


def behaviour_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What the replies of a step have in common; dialogues that broke are left out."""
    alive = [[rollout for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR] for group in groups]
    dialogues = [rollout.dialogue for rollouts in alive for rollout in rollouts]
    openers = [[dialogue.replies()[0] for dialogue in dealt([rollouts]) if dialogue.num_replies] for rollouts in alive]
    return {
        "dialogue/repetition": finite_mean([repetition(dialogue.replies()) for dialogue in dialogues]),
        "dialogue/own_overlap": finite_mean([own_overlap(dialogue.replies()) for dialogue in dealt(alive)[:MAX_COMPARED]]),
        "dialogue/distinct_2": distinct([reply for dialogue in dialogues for reply in dialogue.replies()]),
        "dialogue/self_bleu_siblings": finite_mean([self_bleu(replies) for replies in openers]),
        "dialogue/self_bleu_prompts": self_bleu([replies[0] for replies in openers if replies]),
        "dialogue/compression_ratio": compression_ratio(reply for dialogue in dealt(alive) for reply in dialogue.replies()),
        "reward/length_correlation": length_correlation(alive),
        **strategy_metrics(dialogues),
    }


def strategy_metrics(dialogues: Sequence[Dialogue]) -> dict[str, float]:
    """Entropy of the strategies heard, and what they tell of the user: hidden intention, persona, third of strictness."""
    heard = [(label, dialogue) for dialogue in dialogues for label in labels(dialogue)]
    strategies = [label for label, _ in heard]
    contexts: dict[str, list[str]] = {
        "intention": [dialogue.scenario.family.intention for _, dialogue in heard],
        "persona": [dialogue.scenario.family.persona for _, dialogue in heard],
        "strictness": [third(dialogue.difficulty.strictness) for _, dialogue in heard],
    }
    information = {f"dialogue/strategy_information/{name}": mutual_information(strategies, users) for name, users in contexts.items()}
    return {"dialogue/strategy_entropy": strategy_entropy(strategies), **information}


def labels(dialogue: Dialogue) -> list[str]:
    """Every strategy heard in each answered reply, or that there was none."""
    answered = [turn for turn in dialogue.turns if turn.change is not None]
    return [label for turn in answered for label in (turn.heard or (NO_STRATEGY,))]


def third(strictness: float) -> str:
    """The third of [0, 1] in which a strictness lies."""
    return THIRDS[min(int(3 * strictness), 2)]


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


def dealt(groups: Sequence[Sequence[Rollout]]) -> list[Dialogue]:
    """One dialogue of each group, then the next of each: any first part of it holds as many groups as it can."""
    longest = max(map(len, groups), default=0)
    return [rollouts[i].dialogue for i in range(longest) for rollouts in groups if i < len(rollouts)]


def finite_mean(values: Sequence[float]) -> float:
    """The mean of what could be measured, NaN when nothing could."""
    values_N = np.array(values, dtype=float)
    return mean(values_N[np.isfinite(values_N)])
