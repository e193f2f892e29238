"""What settings of different groups must not say at once: whatever one group can tell by itself, its own dataclass refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.algorithms.algorithms import CriticKind, PpoConfig
from simulator.llm.config import EndpointConfig
from simulator.reward import REWARD_TERMS
from simulator.rule_user import RuleUserConfig

if TYPE_CHECKING:
    from experiments.config import ExperimentConfig


def require_consistent(config: ExperimentConfig) -> None:
    """Raises where settings of different groups contradict each other.

    Raises:
        ValueError: says which, and what to change.
    """
    if config.policy.system_prompt and config.policy.is_embedded:
        raise ValueError(
            f"policy.system_prompt must be empty for the embedded policy, which was taught none, got {config.policy.system_prompt!r}"
        )
    config.algorithm.require(config.learner)
    config.resampling.require(config.teacher.kind)
    require_reward(config)
    require_patience(config)
    require_adapters(config)
    require_correction(config)
    if config.learner.micro_batch_tokens < config.rollout.max_context:
        raise ValueError(
            f"learner.micro_batch_tokens must be at least rollout.max_context={config.rollout.max_context}, "
            f"got {config.learner.micro_batch_tokens}: dialogues are never cut, and a single one could be larger than the micro-batch; "
            "raise the one or lower the other"
        )
    if config.policy.keep_thoughts is False:
        config.algorithm.require_whole_dialogues()
    if isinstance(config.algorithm, PpoConfig) and 0 < config.budget.steps <= config.algorithm.critic_warmup_steps:
        raise ValueError(
            f"algorithm.critic_warmup_steps must be < budget.steps={config.budget.steps}, got {config.algorithm.critic_warmup_steps}: "
            "the policy would never be trained; lower the one or raise the other"
        )


def require_reward(config: ExperimentConfig) -> None:
    """Raises where the reward is made of what its user does not tell, or tells more than it shall.

    Raises:
        ValueError: a term that rests on strategies without a user that names them, or credit by turn beside one bit a dialogue.
    """
    for name, share in config.rollout.reward_terms.items():
        if share and REWARD_TERMS[name].reads_strategies and not isinstance(config.simulator, RuleUserConfig):
            raise ValueError(f"rollout.reward_terms.{name} must be 0 with a user that names no strategies it heard, got {share!r}")
    if config.rollout.binary_reward_at > 0.0 and getattr(config.algorithm, "turn_credit", 0.0) > 0.0:
        raise ValueError(
            f"algorithm.turn_credit must be 0 with rollout.binary_reward_at={config.rollout.binary_reward_at:g}, got "
            f"{config.algorithm.turn_credit!r}: it would tell each reply what it changed, which sparse feedback does not know"
        )


def require_adapters(config: ExperimentConfig) -> None:
    """Raises where only adapters are trained and something needs the weights beneath them.

    Raises:
        ValueError: a critic that shares the frozen layers.
    """
    if not config.policy.lora.rank:
        return
    if isinstance(config.algorithm, PpoConfig) and config.algorithm.critic is CriticKind.SHARED:
        raise ValueError(
            f"algorithm.critic must be separate with policy.lora.rank={config.policy.lora.rank}, got shared: "
            "the layers that both would read are frozen; take a critic of its own, or no adapters"
        )


def require_patience(config: ExperimentConfig) -> None:
    """Raises where dialogues would fail before anybody could tell that their user is away.

    Raises:
        ValueError: a dialogue may not take longer than one of its questions may wait.
    """
    user, rollout = config.simulator, config.rollout
    if isinstance(user, EndpointConfig) and rollout.outage_s > 0 and rollout.dialogue_timeout_s <= user.max_wait_s:
        raise ValueError(
            f"rollout.dialogue_timeout_s must be above simulator.max_wait_s={user.max_wait_s:g} "
            f"with rollout.outage_s={rollout.outage_s:g}, got {rollout.dialogue_timeout_s:g}: "
            "dialogues would fail before an outage shows; raise the one or lower the other"
        )


def require_correction(config: ExperimentConfig) -> None:
    """Raises where tokens of older weights would be taken for the learner's own.

    Raises:
        ValueError: logprobs are recomputed with the weights of now, and nothing makes up for the difference.
    """
    if config.rollout.max_staleness and config.learner.recompute_logprobs and not config.algorithm.corrects:
        raise ValueError(
            "algorithm.importance_correction must be token where logprobs are recomputed and "
            f"rollout.max_staleness={config.rollout.max_staleness}, got none: tokens of older weights would count as the learner's own; "
            "correct them, or set learner.recompute_logprobs=false"
        )
