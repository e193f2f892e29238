"""Credit for a reply by what came of it: the setting that every algorithm shares.

GRPO: a reply is as good as its dialogue fared among its siblings.

Source: arXiv 2402.03300.

RLOO: a reply is as good as its dialogue fared beside the others of its group, itself left out; nothing is divided by a spread.

Source: arXiv 2402.14740; the surrogate is clipped as for every algorithm here, which changes nothing strictly on policy.

REINFORCE++: a reply is as good as its dialogue fared among all of the batch, or among its siblings in units of the whole batch.

Source: arXiv 2501.03262; with `group_baseline` the variant that it calls REINFORCE++-baseline. Undiscounted, as published.

PPO: a reply is as good as what came of it beside what a critic expected at each of its tokens.

Source: arXiv 1707.06347, with generalised advantage estimates (arXiv 1506.02438) along the tokens that the agent sampled.

The contract of an algorithm, and all there are: what a batch should teach, and the loss that teaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from policy.algorithms.advantages import (
    EPSILON,
    gae,
    group_advantages,
    has_siblings,
    leave_one_out_advantages,
    to_tokens,
    token_rewards,
    turn_advantages,
    turn_deviations,
    turn_returns,
    turns_to_tokens,
    whiten,
)
from policy.algorithms.loss import PolicyLoss
from policy.batch import Targets, TokenLoss, TokenScores
from policy.config import GrpoConfig, LearnerConfig, PpoConfig, ReinforcePPConfig, RlooConfig, Spread
from simulator.reward import TURN_UNIT

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


def mixed(by_end_BT: Tensor, by_turn_BT: Tensor, turn_credit: float) -> Tensor:
    """Both advantages of each token, `turn_credit` of the second."""
    return (1.0 - turn_credit) * by_end_BT + turn_credit * by_turn_BT


class Grpo(PolicyLoss):
    """Advantages by comparison with siblings; the loss is everyone's."""

    def __init__(self, config: GrpoConfig) -> None:
        super().__init__(config)
        self.config = config

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """Every token a rollout sampled gets the rollout's advantage, mixed with its turn's by `turn_credit`."""
        batch = self.penalised(batch)
        config, siblings = self.config, (batch.group_ids_B, batch.valid_B)
        by_group = config.normalise_by is Spread.GROUP
        advantages_B = group_advantages(batch.rewards_B, *siblings, std_normalise=by_group)
        advantages_BT = self._by_batch(to_tokens(advantages_B, batch.loss_mask_BT), batch)
        if config.turn_credit > 0:
            turns_BK = turn_advantages(batch.turn_rewards_BK, *siblings, discount=config.turn_discount, std_normalise=by_group)
            if config.normalise_by is Spread.NONE:
                turns_BK = TURN_UNIT * turns_BK  # no spread takes the unit away
            by_turn_BT = self._by_batch(turns_to_tokens(turns_BK, batch.turn_ids_BT, batch.loss_mask_BT), batch)
            advantages_BT = mixed(advantages_BT, by_turn_BT, config.turn_credit)
        return Targets(advantages_BT=advantages_BT)

    def _by_batch(self, advantages_BT: Tensor, batch: Batch) -> Tensor:
        """Divided by their root mean square over the batch's trained tokens, where that is asked for."""
        if self.config.normalise_by is not Spread.BATCH or not batch.num_trained:
            return advantages_BT
        return advantages_BT / (advantages_BT[batch.loss_mask_BT].square().mean().sqrt() + EPSILON)


class Rloo(PolicyLoss):
    """Advantages by comparison with the siblings alone."""

    def __init__(self, config: RlooConfig) -> None:
        super().__init__(config)
        self.config = config

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """A rollout's advantage on each token it sampled, mixed with its turn's by `turn_credit`, both in the final reward's unit."""
        config, batch = self.config, self.penalised(batch)
        advantages_BT = to_tokens(leave_one_out_advantages(batch.rewards_B, batch.group_ids_B, batch.valid_B), batch.loss_mask_BT)
        if config.turn_credit > 0:
            returns_BK, has_BK = turn_returns(batch.turn_rewards_BK, batch.valid_B, discount=config.turn_discount)
            turns_BK, _ = turn_deviations(returns_BK, has_BK, batch.group_ids_B, leave_one_out=True)
            by_turn_BT = turns_to_tokens(TURN_UNIT * turns_BK, batch.turn_ids_BT, batch.loss_mask_BT)
            advantages_BT = mixed(advantages_BT, by_turn_BT, config.turn_credit)
        return Targets(advantages_BT=advantages_BT)


class ReinforcePP(PolicyLoss):
    """Advantages with mean 0 and variance 1 over the batch's trained tokens."""

    def __init__(self, config: ReinforcePPConfig) -> None:
        super().__init__(config)
        self.config = config
        self.compares_siblings = config.group_baseline

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """A rollout's advantage on each token it sampled, mixed with its turn's by `turn_credit`; each normalised by itself.

        With a KL in the reward, a token answers for its own and for those that came after it, not for those before.
        """
        advantages_BT = self._by_end(batch)
        if self.config.turn_credit > 0:
            advantages_BT = mixed(advantages_BT, self._by_turn(batch), self.config.turn_credit)
        return Targets(advantages_BT=advantages_BT)

    def _by_end(self, batch: Batch) -> Tensor:
        if self.config.group_baseline:
            compared_B = has_siblings(batch.group_ids_B, batch.valid_B)
            scores_B = group_advantages(batch.rewards_B, batch.group_ids_B, batch.valid_B, std_normalise=False)
        else:
            compared_B, scores_B = batch.valid_B, batch.rewards_B.nan_to_num(0.0)
        mask_BT = batch.loss_mask_BT & compared_B[:, None]
        return whiten(scores_B[:, None] - self.token_penalties(batch).flip(1).cumsum(1).flip(1), mask_BT)

    def _by_turn(self, batch: Batch) -> Tensor:
        batch = self.penalised(batch)
        returns_BK, compared_BK = turn_returns(batch.turn_rewards_BK, batch.valid_B, discount=self.config.turn_discount)
        if self.config.group_baseline:
            returns_BK, compared_BK = turn_deviations(returns_BK, compared_BK, batch.group_ids_B)
        mask_BT = turns_to_tokens(compared_BK.double(), batch.turn_ids_BT, batch.loss_mask_BT) > 0
        return whiten(turns_to_tokens(returns_BK, batch.turn_ids_BT, batch.loss_mask_BT), mask_BT)


class Ppo(PolicyLoss):
    """Advantages over a critic's expectations, with mean 0 and variance 1 over the batch's trained tokens."""

    compares_siblings = False
    needs_critic = True

    def __init__(self, config: PpoConfig) -> None:
        super().__init__(config)
        self.config = config

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """Advantages of the tokens sampled, and what the critic should have expected of them. A KL in the reward is paid token by token.

        Args:
            values_BT: the critic's expectations before the update.
        """
        assert values_BT is not None, "PPO must be given the critic's values"
        config, mask_BT = self.config, batch.loss_mask_BT
        rewards_BT = token_rewards(batch.rewards_B, batch.turn_rewards_BK, batch.turn_ids_BT, mask_BT, turn_credit=config.turn_credit)
        advantages_BT, returns_BT = gae(
            rewards_BT - self.token_penalties(batch),
            values_BT,
            batch.turn_ids_BT,
            mask_BT,
            gamma=config.gamma,
            lam=config.lam,
            turn_discount=config.turn_discount,
        )
        return Targets(advantages_BT=whiten(advantages_BT, mask_BT), returns_BT=returns_BT.float(), values_BT=values_BT)


class Algorithm(Protocol):
    """Mathematics on tensors: it knows neither model nor optimiser. What adapts in it changes in `observe` alone."""

    compares_siblings: bool
    """Whether a rollout is judged by its group, so that a group of one survivor, or whose rollouts all fared alike, teaches nothing."""
    needs_critic: bool
    """Whether advantages are over a critic's values."""

    def require(self, learner: LearnerConfig) -> None:
        """Raises ValueError where the algorithm cannot do its work with these settings of the optimiser step."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        ...

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss differentiates the entropies; asked anew for every micro-batch."""
        ...

    @property
    def selects(self) -> bool:
        """Whether `select` is to be asked before every optimiser step."""
        ...

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """What to reinforce, per token; zero outside the loss mask. Where a reference is kept, the batch has its logprobs.

        Args:
            values_BT: what the critic expects before each trained token; only algorithms that need a critic read it.
        """
        ...

    @property
    def selects_unclipped(self) -> bool:
        """Whether `select` wants the logprobs by the present weights, too."""
        ...

    def select(self, old_logprobs_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor | None = None) -> Tensor:
        """The tokens that the loss is to treat in a way of its own, bool, out of all those of an optimiser step."""
        ...

    def loss(self, scores: TokenScores) -> TokenLoss:
        """The loss of a micro-batch of whole rows, summed over its tokens."""
        ...

    def denominator(self, batch: Batch) -> float:
        """What the loss of one optimiser step, summed over its micro-batches, is divided by; `batch` is all of the step's rows."""
        ...

    def observe(self, batch: Batch, metrics: Mapping[str, float], *, stepped: bool = True) -> dict[str, float]:
        """Adapts to an update that is done and to what was measured in it; returns what there is to log of that.

        Args:
            stepped: whether the update changed the policy; one that did not (the critic warms up, or every step was skipped) is no reason
                to adapt.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, with a version."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: the state is of another version or of other settings.
        """
        ...


ALGORITHMS: dict[str, Any] = {"grpo": Grpo, "rloo": Rloo, "reinforce_pp": ReinforcePP, "ppo": Ppo}
"""Algorithms by `algorithm.kind`."""


def make_algorithm(config: Any) -> Algorithm:
    """The algorithm that `config.kind` names.

    Raises:
        ValueError: there is none of that kind.
    """
    if config.kind not in ALGORITHMS:
        raise ValueError(f"algorithm.kind must be one of {', '.join(ALGORITHMS)}, got {config.kind!r}")
    return ALGORITHMS[config.kind](config)
