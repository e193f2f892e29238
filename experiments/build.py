"""The teacher of a run, and whether it can teach it: asked of one that is thrown away, before anything is started.

Everything a run is made of, put together from its configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from curriculum import TEACHERS
from curriculum.collapse.monitor import CollapseMonitor
from curriculum.replayed import AtEnd, YokedTeacher
from curriculum.task import Teacher
from experiments.checks import FaultBudget
from experiments.config import ExperimentConfig
from experiments.errors import refusing
from policy.algorithms.algorithms import Algorithm, make_algorithm
from policy.algorithms.critic import Critic
from policy.checkpoint import load_checkpoint
from policy.config import CriticKind
from policy.engine.weights import check_weight_names
from policy.learner import Learner
from policy.lora import add_adapters, merged_parameters
from policy.model import find_model, has_tied_head, load_model
from policy.prior.prior import build_prior
from policy.rollout.chat import MARK
from policy.rollout.pool import RolloutPool
from simulator.reward import resolved
from simulator.scenario import Family, Split
from simulator.user import UserSimulator
from simulator.users import make_bank, make_user
from simulator.world import Bank


def make_teacher(config: ExperimentConfig, bank: Bank) -> Teacher:
    """The teacher that the settings ask for, on the training half of the bank."""
    _, teacher = TEACHERS[config.teacher.kind]
    return teacher(config.teacher, scenarios=practised(bank), group_size=config.group_size, seed=config.seed)


def practised(bank: Bank) -> dict[Family, list[str]]:
    """Training scenarios by family, without the families that a bank of profiles may lack."""
    return {family: ids for family, ids in bank.by_family(Split.TRAIN).items() if ids}


def check_teacher(config: ExperimentConfig) -> None:
    """Raises when the teacher refuses what it was given, a step of this many groups, or a budget of more steps than it can teach.

    Raises:
        ConfigError: it does.
    """
    with refusing():
        teacher = make_teacher(config, make_bank(config.simulator))
        teacher.propose(config.groups_per_step, policy_version=0)
        if isinstance(teacher, YokedTeacher) and teacher.config.on_end == AtEnd.STOP:
            teacher.require_steps(ceil(config.budget.steps * config.groups_per_step / teacher.trace.num_groups))


@dataclass(kw_only=True)
class Parts:
    """The nouns of a training step."""

    bank: Bank
    user: UserSimulator
    teacher: Teacher
    algorithm: Algorithm
    learner: Learner
    tokenizer: Any
    pool: RolloutPool
    collapse: CollapseMonitor
    faults: FaultBudget


def assemble(config: ExperimentConfig, *, checkpoint: Path | None) -> tuple[Parts, dict[str, Any] | None]:
    """Builds the parts, with the state of a checkpoint if there is one.

    Returns:
        The parts, and what the run itself kept in the checkpoint.

    Raises:
        ValueError: the model, the engine or the checkpoint turned out not to work with these settings.
    """
    start_folder = model_folder(config)
    saved = load_checkpoint(checkpoint) if checkpoint else None
    bank = make_bank(config.simulator)
    make = partial(make_user, config.simulator.kind, config.simulator)
    algorithm = make_algorithm(config.algorithm)
    model, tokenizer = load_model(start_folder if config.policy.lora.rank else checkpoint or start_folder)
    setattr(model.config, MARK, config.policy.thinking)  # checkpoints say in which mode they speak
    if config.policy.lora.rank:
        model = add_adapters(model, config.policy.lora, seed=config.seed)
    if config.policy.may_be_vllm:
        names = [name for name, _ in merged_parameters(model)]
        check_weight_names(names, start_folder, is_tied=has_tied_head(start_folder))
    reference = load_model(start_folder)[0] if algorithm.needs_reference else None
    learner = Learner(
        config.learner,
        algorithm,
        model,
        reference=reference,
        critic=make_critic(config, model, start_folder) if algorithm.needs_critic else None,
        temperature=config.rollout.temperature,
        seed=config.seed,
    )
    teacher = make_teacher(config, bank)
    collapse = CollapseMonitor(config.collapse)
    faults = FaultBudget(config.rollout.max_error_share, num_needed=2 if algorithm.compares_siblings else 1)
    if saved is not None:
        learner.load_state_dict(saved.state["learner"])
        teacher.load_state_dict(saved.state["teacher"])
        collapse.load_state_dict(saved.state["collapse"])
        faults.load_state_dict(saved.state["faults"])
    pool = RolloutPool(
        config.rollout,
        config.policy,
        model_folder=start_folder,
        user_factory=make,
        scenarios=partial(make_bank, config.simulator),
        seed=config.seed,
        cluster=config.cluster,
        system_prompt=config.policy.system_prompt,
        reward_terms=resolved(config.rollout.reward_terms),
    )
    parts = Parts(
        bank=bank,
        user=make(),
        teacher=teacher,
        algorithm=algorithm,
        learner=learner,
        tokenizer=tokenizer,
        pool=pool,
        collapse=collapse,
        faults=faults,
    )
    return parts, saved.state["run"] if saved else None


def make_critic(config: ExperimentConfig, policy: Any, start_folder: Path) -> Critic:
    """A critic that starts where the policy before training stands, or that reads the policy's own layers."""
    is_shared = config.algorithm.critic is CriticKind.SHARED
    return Critic(config.algorithm, config.learner, policy if is_shared else load_model(start_folder)[0])


def model_folder(config: ExperimentConfig) -> Path:
    """Where the policy before training lies: the embedded prior, built when it is not cached, or the model that was asked for."""
    if config.policy.is_embedded:
        return build_prior(config.policy.prior)
    return find_model(config.policy.model)
