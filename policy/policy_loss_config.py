"""Settings of the policy's loss, and which of them contradict each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from policy.aggregation import Aggregation
from policy.correction import Correction
from policy.learner_config import LearnerConfig
from policy.reference import KlEstimator, KlPlace


class Surrogate(StrEnum):
    """Which loss carries the policy gradient; `policy.surrogates` has their formulas."""

    PPO = "ppo"
    GSPO = "gspo"
    """One ratio a dialogue."""
    CISPO = "cispo"
    """A bounded ratio as a weight, and every token keeps its gradient."""
    CLIP_COV = "clip_cov"
    """PPO without a few tokens that drive entropy down."""
    KL_COV = "kl_cov"
    """No clip, but a few tokens that drive entropy down are held to where they were."""


@dataclass
class PolicyLossConfig:
    """Settings of the loss, `algorithm.*`; each algorithm adds what concerns its advantages."""

    kind: str = ""
    """Which algorithm."""
    policy_loss: Surrogate = Surrogate.PPO
    """Which surrogate."""
    clip_low: float = 0.2
    """In (0, 1); the ratio counts down to 1 - clip_low."""
    clip_high: float = 0.28
    """> 0; the ratio counts up to 1 + clip_high. More than clip_low keeps rare tokens alive (DAPO's value)."""
    sequence_clip_low: float = 3e-4
    """In (0, 1); gspo's bound in place of clip_low. A dialogue's ratio is a geometric mean, which moves far less than a token's."""
    sequence_clip_high: float = 4e-4
    """> 0; gspo's bound in place of clip_high."""
    dual_clip: float = 0.0
    """0, or > 1: the loss of a token of negative advantage counts up to this many times its advantage (verl's value is 3)."""
    cov_share: float = 2e-4
    """In (0, 1]; share of the tokens of an optimiser step that clip_cov and kl_cov pick, at least one."""
    cov_low: float = 1.0
    """clip_cov picks among covariances above this."""
    cov_high: float = 5.0
    """> cov_low; and below this."""
    cov_seed: int = 0
    """>= 0; of what clip_cov picks."""
    kl_cov_coef: float = 1.0
    """> 0; weight of the pull that kl_cov puts on the tokens it picks."""
    loss_aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """What the losses of an optimiser step's tokens are averaged to."""
    loss_length: int = 0
    """Tokens that a dialogue stands for when loss_aggregation is constant, > 0 then: best what a dialogue may at most have sampled."""
    importance_correction: Correction = Correction.NONE
    """Whether tokens are weighed for the engine's difference from the trainer."""
    importance_cap: float = 2.0
    """>= 1; such a weight counts up to this."""
    kl_coef: float = 0.0
    """>= 0; weight of the KL to the reference policy. RLVER trains without; above 0 a reference model is kept."""
    kl_in: KlPlace = KlPlace.LOSS
    """Whether the KL is in the loss or taken off the reward."""
    kl_estimator: KlEstimator = KlEstimator.K3
    """Its value in the loss."""
    kl_target: float = 0.0
    """>= 0, nats per token; above 0 the coefficient starts at kl_coef and follows this target."""
    kl_horizon: float = 10_000.0
    """> 0; dialogues within which the coefficient can change by about a fifth, and one update at most by that."""
    entropy_coef: float = 0.0
    """>= 0; weight of an entropy bonus per token."""
    entropy_target: float = 0.0
    """>= 0, nats per token; above 0 the coefficient starts at entropy_coef, follows this target and counts only below it."""
    entropy_coef_step: float = 0.005
    """> 0; by which an adaptive coefficient changes in an update (TRL's and Skywork-OR1's value)."""
    entropy_coef_max: float = 1.0
    """> 0; an adaptive coefficient grows up to this."""

    def __post_init__(self) -> None:
        rules = {
            "be in (0, 1)": (lambda value: 0.0 < value < 1.0, ("clip_low", "sequence_clip_low")),
            "be in (0, 1]": (lambda value: 0.0 < value <= 1.0, ("cov_share",)),
            "be > 0 and finite": (
                lambda value: 0.0 < value < math.inf,
                ("clip_high", "sequence_clip_high", "kl_cov_coef", "kl_horizon", "entropy_coef_step", "entropy_coef_max"),
            ),
            "be >= 0 and finite": (
                lambda value: 0.0 <= value < math.inf,
                ("kl_coef", "kl_target", "entropy_coef", "entropy_target", "loss_length", "cov_seed"),
            ),
            "be >= 1": (lambda value: value >= 1.0, ("importance_cap",)),  # infinite: no cap
            "be 0 for none, or > 1": (lambda value: value == 0.0 or 1.0 < value < math.inf, ("dual_clip",)),
        }
        for rule, (holds, names) in rules.items():
            for name in names:
                if not holds(getattr(self, name)):
                    raise ValueError(f"algorithm.{name} must {rule}, got {getattr(self, name)!r}")
        self._refuse_contradictions()
        self._refuse_unread()

    def _refuse_unread(self) -> None:
        """A setting that nothing reads would be taken for one that was tried."""
        loss, usual = self.policy_loss, {item.name: item.default for item in fields(PolicyLossConfig)}
        read_with = {
            "algorithm.policy_loss=ppo or clip_cov": (loss in (Surrogate.PPO, Surrogate.CLIP_COV), ("clip_low",)),
            "algorithm.policy_loss=ppo, cispo or clip_cov": (
                loss in (Surrogate.PPO, Surrogate.CISPO, Surrogate.CLIP_COV),
                ("clip_high",),
            ),
            "algorithm.policy_loss=gspo": (loss is Surrogate.GSPO, ("sequence_clip_low", "sequence_clip_high")),
            "algorithm.policy_loss=clip_cov or kl_cov": (loss in (Surrogate.CLIP_COV, Surrogate.KL_COV), ("cov_share",)),
            "algorithm.policy_loss=clip_cov": (loss is Surrogate.CLIP_COV, ("cov_low", "cov_high", "cov_seed")),
            "algorithm.policy_loss=kl_cov": (loss is Surrogate.KL_COV, ("kl_cov_coef",)),
            "algorithm.importance_correction=token": (self.corrects, ("importance_cap",)),
            "algorithm.kl_coef above 0": (self.kl_coef > 0.0, ("kl_estimator",)),
            "algorithm.kl_target above 0": (self.kl_target > 0.0, ("kl_horizon",)),
            "algorithm.entropy_target above 0": (self.entropy_target > 0.0, ("entropy_coef_step", "entropy_coef_max")),
        }
        for condition, (is_read, names) in read_with.items():
            for name in names:
                if not is_read and (value := getattr(self, name)) != usual[name]:
                    instead = f"; gspo reads algorithm.sequence_{name}" if loss is Surrogate.GSPO and name.startswith("clip_") else ""
                    raise ValueError(f"algorithm.{name} is read with {condition} alone, got {value!r} without it{instead}")

    def _refuse_contradictions(self) -> None:
        loss = self.policy_loss.value
        if self.dual_clip and self.policy_loss is not Surrogate.PPO:
            raise ValueError(
                f"algorithm.dual_clip must be 0 with algorithm.policy_loss={loss}, got {self.dual_clip!r}; only ppo has a dual clip"
            )
        if self.importance_correction is Correction.TOKEN and self.policy_loss is Surrogate.GSPO:
            raise ValueError(
                "algorithm.importance_correction must be none with algorithm.policy_loss=gspo, got token: "
                "ratios of whole dialogues are not corrected token by token; set one of the two otherwise"
            )
        if not self.cov_low < self.cov_high:
            raise ValueError(f"algorithm.cov_low must be < algorithm.cov_high, got {self.cov_low!r} and {self.cov_high!r}")
        if self.loss_aggregation is Aggregation.CONSTANT and not self.loss_length:
            raise ValueError(
                "algorithm.loss_length must be > 0 with algorithm.loss_aggregation=constant, got 0; "
                "rollout.max_turns x rollout.max_new_tokens is what a dialogue may at most have sampled"
            )
        if self.loss_length and self.loss_aggregation is not Aggregation.CONSTANT:
            raise ValueError(
                f"algorithm.loss_length must be 0 with algorithm.loss_aggregation={self.loss_aggregation.value}, got {self.loss_length!r}; "
                "set algorithm.loss_aggregation=constant to divide by it"
            )
        if self.kl_target and not self.kl_coef:
            raise ValueError(
                f"algorithm.kl_target must be 0 with algorithm.kl_coef=0.0, which keeps no reference, got {self.kl_target!r}; "
                "set algorithm.kl_coef to the coefficient to start from"
            )
        if self.kl_in is KlPlace.REWARD and not self.kl_coef:
            raise ValueError(
                "algorithm.kl_in must be loss with algorithm.kl_coef=0.0, which keeps no reference, got reward; "
                "set algorithm.kl_coef above 0"
            )
        if self.kl_in is KlPlace.REWARD and self.kl_estimator is KlEstimator.K2:
            raise ValueError(
                "algorithm.kl_estimator must be k3 with algorithm.kl_in=reward, got k2: a reward takes the plain log-ratio; "
                "set algorithm.kl_in=loss to choose one"
            )
        if self.entropy_target and self.entropy_coef > self.entropy_coef_max:
            raise ValueError(
                f"algorithm.entropy_coef must be <= algorithm.entropy_coef_max={self.entropy_coef_max!r} with an entropy_target, "
                f"got {self.entropy_coef!r}"
            )

    @property
    def corrects(self) -> bool:
        """Whether tokens are weighed for the engine's difference from the trainer, which takes logprobs of the trainer's own."""
        return self.importance_correction is not Correction.NONE

    def require(self, learner: LearnerConfig) -> None:
        """Refuses an optimiser step with which the loss cannot do its work.

        Raises:
            ValueError: a correction without logprobs of the trainer's own, or kl_cov on strictly on-policy steps.
        """
        if self.corrects and learner.recompute_logprobs is False:
            raise ValueError(
                "algorithm.importance_correction must be none with learner.recompute_logprobs=false, "
                f"got {self.importance_correction.value}: "
                "the ratio to the engine's logprobs would count twice; set learner.recompute_logprobs=true"
            )
        if self.policy_loss is Surrogate.KL_COV and learner.epochs * learner.num_minibatches == 1:
            raise ValueError(
                "algorithm.policy_loss must not be kl_cov with learner.num_minibatches=1 and learner.epochs=1, got kl_cov: "
                "it acts on tokens that an earlier step of the update moved; set learner.num_minibatches above 1"
            )

    def require_whole_dialogues(self) -> None:
        """Refuses a loss that looks at rows as dialogues, for dialogues that are cut into a row for each reply.

        Raises:
            ValueError: it is such a loss.
        """
        if self.policy_loss is Surrogate.GSPO:
            raise ValueError(
                "algorithm.policy_loss must not be gspo where each reply forgets the thoughts before it (policy.keep_thoughts), got gspo: "
                "a dialogue without its earlier thoughts is no longer one sequence; keep them, or take ppo"
            )
        if self.loss_aggregation is not Aggregation.TOKEN_MEAN:
            raise ValueError(
                "algorithm.loss_aggregation must be token_mean where each reply forgets the thoughts before it (policy.keep_thoughts), "
                f"got {self.loss_aggregation.value}: "
                "a dialogue without its earlier thoughts is no longer one sequence; keep them, or take token_mean"
            )
