"""Builds the components of a run from its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from curriculum import make_teacher
from curriculum.collapse.monitor import CollapseMonitor
from curriculum.teacher import Teacher
from experiments.checks import ErrorBudget
from experiments.config import ExperimentConfig
from policy.algorithms.algorithms import ALGORITHMS, Algorithm
from policy.algorithms.critic import Critic
from policy.checkpoint import load_checkpoint
from policy.config import CriticKind, LearnerConfig
from policy.engine.factory import ray_needs
from policy.engine.weights import check_weight_names
from policy.files import folder_for_sockets
from policy.learner import Learner
from policy.learner_group import LearnerGroup
from policy.lora import add_adapters, merged_parameters
from policy.mode import MARK
from policy.model import find_model, has_tied_head, load_model, load_tokenizer
from policy.prior.prior import build_prior
from policy.ranks import Ranks
from policy.rollout.pool import RolloutPool
from policy.rollout.session import ray_session
from policy.sft import supervised_start
from simulator.dialogue import UserSimulator
from simulator.reward import REWARD_TERMS
from simulator.scenario import Split
from simulator.user import check_servers, make_bank, make_user, served_by_run
from simulator.world import Bank


@dataclass(kw_only=True)
class Components:
    """The components of a training step; `opened` is what ends with them, in the opposite order."""

    bank: Bank
    user: UserSimulator
    teacher: Teacher
    algorithm: Algorithm
    learner: Learner | LearnerGroup
    tokenizer: Any
    pool: RolloutPool
    collapse: CollapseMonitor
    errors: ErrorBudget
    opened: ExitStack

    def close(self) -> None:
        """Ends all processes of the run."""
        self.opened.close()


def build(config: ExperimentConfig, *, checkpoint: Path | None) -> tuple[Components, dict[str, Any] | None]:
    """Builds the components, with the state of a checkpoint if there is one.

    Returns:
        The components, and the run's own state in the checkpoint.

    Raises:
        ValueError: the model, the engine or the checkpoint does not work with these settings.
    """
    with ExitStack() as stack:
        components, saved = build_within(stack, config, checkpoint=checkpoint)
        components.opened = stack.pop_all()
    return components, saved


def build_within(stack: ExitStack, config: ExperimentConfig, *, checkpoint: Path | None) -> tuple[Components, dict[str, Any] | None]:
    """The same as `build`; all processes end with the stack."""
    initial = model_folder(config)
    saved = load_checkpoint(checkpoint) if checkpoint else None
    bank = make_bank(config.simulator)
    user_factory = partial(make_user, config.simulator.kind, reachable_user(stack, config))
    # Whole paths: another process may have another folder.
    rank_learner = partial(build_learner, config, initial.absolute(), checkpoint.absolute() if checkpoint else None)
    learner: Learner | LearnerGroup | None = None
    if config.learner.ranks == 1:
        learner = rank_learner(config.learner, Ranks(), saved=saved)
    teacher = make_teacher(config.teacher, bank.by_family(Split.TRAIN), group_size=config.group_size, seed=config.seed)
    collapse = CollapseMonitor(config.collapse)
    if saved is not None:
        teacher.load_state_dict(saved["teacher"])
        collapse.load_state_dict(saved["collapse"])
    pool = RolloutPool(
        config.rollout,
        config.policy,
        model_folder=initial,
        user_factory=user_factory,
        scenarios=partial(make_bank, config.simulator),
        seed=config.seed,
        cluster=config.cluster,
        system_prompt=config.policy.system_prompt,
        reward_terms=[(name, REWARD_TERMS[name], share) for name, share in config.rollout.reward_terms.items() if share],
    )
    stack.callback(pool.close)
    if learner is None:
        learner = stack.enter_context(closing(LearnerGroup(rank_learner, config.learner, config.cluster)))
    errors = ErrorBudget(config.rollout.max_error_share, num_needed=2 if learner.algorithm.compares_siblings else 1)
    if saved is not None:
        errors.load_state_dict(saved["faults"])
    components = Components(
        bank=bank,
        user=user_factory(),
        teacher=teacher,
        algorithm=learner.algorithm,
        learner=learner,
        tokenizer=load_tokenizer(checkpoint or initial),
        pool=pool,
        collapse=collapse,
        errors=errors,
        opened=stack,
    )
    return components, saved["run"] if saved else None


def reachable_user(stack: ExitStack, config: ExperimentConfig) -> Any:
    """The settings of the simulated user, with the addresses of its servers where the run starts these; they end with the stack.

    Raises:
        ValueError: its model does not work, or does not answer in form.
        RuntimeError: a server did not answer in time.
    """
    if (user := served_by_run(config.simulator)) is None:
        return config.simulator
    from policy.rollout.servers import ModelServers

    rollout, cluster = config.rollout, config.cluster
    folder = stack.enter_context(folder_for_sockets("attune-"))
    stack.enter_context(ray_session(cluster, **ray_needs(rollout, cluster, user), folder=Path(folder)))
    is_listener = user is not config.simulator
    try:
        servers = ModelServers(
            user,
            cluster,
            start_timeout_s=config.policy.start_timeout_s,
            max_restarts=rollout.max_restarts,
            restart_window_s=rollout.restart_window_s,
        )
        stack.callback(servers.close)
        reached = replace(config.simulator, server=servers.user) if is_listener else servers.user
        check_servers(reached)
    except ValueError as error:  # it names settings that the run has filled in
        said = re.sub(r"simulator\.(?:server\.)?(?:urls|model)\b", "simulator.serve", str(error))
        raise ValueError(said.replace("simulator.serve", "simulator.server.serve") if is_listener else said) from error
    return reached


def build_learner(
    config: ExperimentConfig,
    initial: Path,
    checkpoint: Path | None,
    own: LearnerConfig,
    ranks: Ranks,
    *,
    saved: Mapping[str, Any] | None = None,
) -> Learner:
    """The learner of one rank, with the state of a checkpoint if there is one.

    Args:
        initial: folder of the policy before training.
        own: the rank's settings.
        saved: what the checkpoint holds, where it was read before.
    """
    algorithm = ALGORITHMS[config.algorithm.kind](config.algorithm)
    # With adapters a checkpoint holds merged weights; the frozen ones are those before training.
    model, _ = load_model(initial if config.policy.lora.rank else checkpoint or initial)
    setattr(model.config, MARK, config.policy.thinking)  # recorded in checkpoints
    if config.policy.lora.rank:
        model = add_adapters(model, config.policy.lora, seed=config.seed)
    if config.policy.may_be_vllm:
        check_weight_names([name for name, _ in merged_parameters(model)], initial, is_tied=has_tied_head(initial))
    critic = None
    if algorithm.needs_critic:
        is_shared = config.algorithm.critic is CriticKind.SHARED
        critic = Critic(config.algorithm, own, model if is_shared else load_model(initial)[0], ranks)
    learner = Learner(
        own,
        algorithm,
        model,
        reference=load_model(initial)[0] if algorithm.needs_reference else None,
        critic=critic,
        temperature=config.rollout.temperature,
        seed=config.seed,
        ranks=ranks,
    )
    if checkpoint is not None:
        learner.load_state_dict((saved or load_checkpoint(checkpoint))["learner"])
    return learner


def model_folder(config: ExperimentConfig) -> Path:
    """The folder of the policy before it learns from users: the embedded prior, or `policy.model` after its supervised start, if any.

    What is not cached is built.
    """
    policy = config.policy
    if policy.is_embedded:
        return build_prior(policy.prior)
    if not policy.sft.data:
        return find_model(policy.model)
    return supervised_start(
        policy.model,
        policy.sft,
        config.learner,
        policy.lora,
        system_prompt=policy.system_prompt,
        max_tokens=config.rollout.max_context,
    )
