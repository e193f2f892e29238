"""What to practise next: teachers that set difficulty, and indicators that warn of collapse."""

from curriculum.dump import DumpConfig, DumpTeacher
from curriculum.fixed import FixedConfig, FixedTeacher
from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.plr import PlrConfig, PlrTeacher
from curriculum.progress import ProgressConfig, ProgressTeacher
from curriculum.sec import SecConfig, SecTeacher
from curriculum.sfl import SflConfig, SflTeacher
from curriculum.tscl import TsclConfig, TsclTeacher
from curriculum.uniform import UniformConfig, UniformTeacher
from curriculum.vcrl import VcrlConfig, VcrlTeacher

TEACHERS = {
    "frontier": (FrontierConfig, FrontierTeacher),
    "fixed": (FixedConfig, FixedTeacher),
    "uniform": (UniformConfig, UniformTeacher),
    "sec": (SecConfig, SecTeacher),
    "dump": (DumpConfig, DumpTeacher),
    "vcrl": (VcrlConfig, VcrlTeacher),
    "sfl": (SflConfig, SflTeacher),
    "plr": (PlrConfig, PlrTeacher),
    "tscl": (TsclConfig, TsclTeacher),
    "progress": (ProgressConfig, ProgressTeacher),
}
"""Teachers by kind: the dataclass of their settings and the class, built as `Teacher(config, scenarios=..., group_size=..., seed=...)`."""
