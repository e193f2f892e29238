"""Random tokens of a few dialogues, and the published losses over them as plain loops: dialogue by dialogue, token by token.

The loops share nothing with the library but torch's scalars, whose gradients they also give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from policy.batch import TokenScores

LENGTHS = (7, 1, 12, 4)
ZERO = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Step:
    """The tokens of one optimiser step; lists by dialogue, then by token."""

    logprobs: list[list[Tensor]]
    entropies: list[list[Tensor]]
    old: list[list[float]]
    rollout: list[list[float]]
    reference: list[list[float]]
    advantages: list[list[float]]
    selected: list[list[bool]]

    @property
    def leaves(self) -> list[Tensor]:
        return [token for dialogue in self.logprobs for token in dialogue]

    def scores(self) -> TokenScores:
        """What the library is given of them; its logprobs are a leaf of their own."""

        def flat_N(rows: list[list[float]]) -> Tensor:
            return torch.tensor(
                [token.item() if isinstance(token, Tensor) else token for row in rows for token in row], dtype=torch.float64
            )

        return TokenScores(
            logprobs_N=flat_N(self.logprobs).requires_grad_(),
            entropies_N=flat_N(self.entropies).requires_grad_(),
            old_logprobs_N=flat_N(self.old),
            advantages_N=flat_N(self.advantages),
            reference_logprobs_N=flat_N(self.reference),
            rollout_logprobs_N=flat_N(self.rollout),
            rows_N=torch.tensor([row for row, length in enumerate(LENGTHS) for _ in range(length)]),
            selected_N=flat_N(self.selected).bool(),
        )


def random_step(seed: int, *, spread: float = 0.4) -> Step:
    """Tokens whose probability has changed by about exp(+-spread), from an engine that differs by about exp(+-spread), too."""
    rng = np.random.default_rng(seed)
    old = [(-rng.exponential(1.0, length) - 0.05).tolist() for length in LENGTHS]

    def near(scale: float) -> list[list[float]]:
        return [[token + scale * rng.normal() for token in row] for row in old]

    return Step(
        logprobs=[[torch.tensor(token, dtype=torch.float64, requires_grad=True) for token in row] for row in near(spread)],
        entropies=[[torch.tensor(value, dtype=torch.float64) for value in rng.exponential(1.0, length)] for length in LENGTHS],
        old=old,
        rollout=near(spread),
        reference=near(spread),
        advantages=[(rng.normal() + 0.5 * rng.normal(size=length)).tolist() for length in LENGTHS],
        selected=[(rng.random(length) < 0.3).tolist() for length in LENGTHS],
    )


def clip(value: Tensor, low: float, high: float) -> Tensor:
    return torch.tensor(low, dtype=value.dtype) if value < low else torch.tensor(high, dtype=value.dtype) if value > high else value


def ppo(step: Step, i: int, t: int, *, low: float, high: float, dual: float = 0.0) -> Tensor:
    """-min(r A, clip(r) A); with a dual clip, -max(that min, c A) where A < 0."""
    ratio, advantage = (step.logprobs[i][t] - step.old[i][t]).exp(), step.advantages[i][t]
    objective = min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    if dual and advantage < 0 and objective < dual * advantage:
        objective = torch.tensor(dual * advantage, dtype=torch.float64)
    return -objective


def gspo(step: Step, i: int, t: int, *, low: float, high: float) -> Tensor:
    """-min(s_t A, clip(s_t) A), s_t = sg(s) p_t / sg(p_t), s = (product of the dialogue's ratios)^(1/length)."""
    product = 1.0
    for now, before in zip(step.logprobs[i], step.old[i], strict=True):
        product *= float(now.detach().exp()) / float(np.exp(before))
    sequence = product ** (1 / len(step.old[i]))
    probability = step.logprobs[i][t].exp()
    ratio, advantage = sequence * probability / probability.detach(), step.advantages[i][t]
    return -min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)


def cispo(step: Step, i: int, t: int, *, high: float) -> Tensor:
    """-sg(min(r, 1 + high)) A log p."""
    ratio = float((step.logprobs[i][t].detach() - step.old[i][t]).exp())
    return -min(ratio, 1 + high) * step.advantages[i][t] * step.logprobs[i][t]


def clip_cov(step: Step, i: int, t: int, *, low: float, high: float) -> Tensor:
    """PPO's, and nothing for a picked token."""
    return ZERO if step.selected[i][t] else ppo(step, i, t, low=low, high=high)


def kl_cov(step: Step, i: int, t: int, *, coef: float) -> Tensor:
    """-r A, plus coef |log r| for a picked token."""
    log_ratio = step.logprobs[i][t] - step.old[i][t]
    return -log_ratio.exp() * step.advantages[i][t] + (coef * abs(log_ratio) if step.selected[i][t] else 0.0)


def token_mean(losses: list[list[Tensor]]) -> Tensor:
    return sum((token for dialogue in losses for token in dialogue), ZERO) / sum(map(len, losses))


def dialogue_mean(losses: list[list[Tensor]]) -> Tensor:
    return sum((sum(dialogue, ZERO) / len(dialogue) for dialogue in losses), ZERO) / len(losses)


def constant(losses: list[list[Tensor]], *, length: int) -> Tensor:
    return sum((sum(dialogue, ZERO) / length for dialogue in losses), ZERO) / len(losses)
