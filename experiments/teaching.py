"""The teacher of a run, and whether it can teach it: asked of one that is thrown away, before anything is started."""

from __future__ import annotations

from math import ceil

from curriculum import TEACHERS
from curriculum.replayed import AtEnd, YokedTeacher
from curriculum.task import Teacher
from experiments.config import ExperimentConfig
from experiments.keys import refusing
from simulator.scenario import Family, Split
from simulator.users import make_bank
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
