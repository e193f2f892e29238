"""What to practise next: teachers that set difficulty, and indicators that warn of collapse."""

from curriculum.adarft import AdarftConfig, AdarftTeacher
from curriculum.adr import AdrConfig, AdrTeacher
from curriculum.alp_gmm import AlpGmmConfig, AlpGmmTeacher
from curriculum.beta_thompson import BetaThompsonConfig, BetaThompsonTeacher
from curriculum.dump import DumpConfig, DumpTeacher
from curriculum.fixed import FixedConfig, FixedTeacher
from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.linear import LinearConfig, LinearTeacher
from curriculum.plr import PlrConfig, PlrTeacher
from curriculum.progress import ProgressConfig, ProgressTeacher
from curriculum.rlve import RlveConfig, RlveTeacher
from curriculum.sec import SecConfig, SecTeacher
from curriculum.sfl import SflConfig, SflTeacher
from curriculum.shuffled import ShuffledConfig, ShuffledTeacher
from curriculum.spdl import SpdlConfig, SpdlTeacher
from curriculum.staged import StagedConfig, StagedTeacher
from curriculum.tscl import TsclConfig, TsclTeacher
from curriculum.uniform import UniformConfig, UniformTeacher
from curriculum.vcrl import VcrlConfig, VcrlTeacher
from curriculum.yoked import YokedConfig, YokedTeacher

TEACHERS = {
    "frontier": (FrontierConfig, FrontierTeacher),
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
    "shuffled": (ShuffledConfig, ShuffledTeacher),
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
"""What a teacher imports beyond the light installation; without it the teacher cannot be built, and says so."""
