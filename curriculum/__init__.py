"""What to practise next: teachers that set difficulty, and indicators that warn of collapse."""

from collections.abc import Mapping, Sequence
from typing import Any

from curriculum.bandits import DumpConfig, DumpTeacher, ProgressConfig, ProgressTeacher, SecConfig, SecTeacher, TsclConfig, TsclTeacher
from curriculum.controllers import AdarftConfig, AdarftTeacher, AdrConfig, AdrTeacher, RlveConfig, RlveTeacher
from curriculum.density import AlpGmmConfig, AlpGmmTeacher, SpdlConfig, SpdlTeacher
from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.replay import PlrConfig, PlrTeacher, SflConfig, SflTeacher, VcrlConfig, VcrlTeacher
from curriculum.replayed import ShuffledTeacher, YokedConfig, YokedTeacher
from curriculum.schedules import (
    FixedConfig,
    FixedTeacher,
    LinearConfig,
    LinearTeacher,
    StagedConfig,
    StagedTeacher,
    UniformConfig,
    UniformTeacher,
)
from curriculum.target import TargetConfig, TargetTeacher
from curriculum.teacher import Teacher
from curriculum.thompson import BetaThompsonConfig, BetaThompsonTeacher
from simulator.scenario import Family

TEACHERS = {
    "frontier": (FrontierConfig, FrontierTeacher),
    "target": (TargetConfig, TargetTeacher),
    "fixed": (FixedConfig, FixedTeacher),
    "linear": (LinearConfig, LinearTeacher),
    "staged": (StagedConfig, StagedTeacher),
    "beta_thompson": (BetaThompsonConfig, BetaThompsonTeacher),
    "alp_gmm": (AlpGmmConfig, AlpGmmTeacher),
    "spdl": (SpdlConfig, SpdlTeacher),
    "uniform": (UniformConfig, UniformTeacher),
    "adr": (AdrConfig, AdrTeacher),
    "adarft": (AdarftConfig, AdarftTeacher),
    "rlve": (RlveConfig, RlveTeacher),
    "yoked": (YokedConfig, YokedTeacher),
    "shuffled": (YokedConfig, ShuffledTeacher),
    "sec": (SecConfig, SecTeacher),
    "dump": (DumpConfig, DumpTeacher),
    "vcrl": (VcrlConfig, VcrlTeacher),
    "sfl": (SflConfig, SflTeacher),
    "plr": (PlrConfig, PlrTeacher),
    "tscl": (TsclConfig, TsclTeacher),
    "progress": (ProgressConfig, ProgressTeacher),
}
"""Teachers by kind: the dataclass of their settings and the class, built as `Teacher(config, scenarios=..., group_size=..., seed=...)`."""

NEEDS = {"alp_gmm": "sklearn"}
"""Package that a teacher imports beyond the light installation; without it the teacher cannot be built, and says so."""


def make_teacher(config: Any, scenarios: Mapping[Family, Sequence[str]], *, group_size: int, seed: int) -> Teacher:
    """The teacher of `config.kind`.

    Args:
        scenarios: training scenarios by family; families without any are left out.
    """
    scenarios = {family: list(ids) for family, ids in scenarios.items() if ids}
    teacher: Teacher = TEACHERS[config.kind][1](config, scenarios=scenarios, group_size=group_size, seed=seed)
    return teacher
