"""What to practise next: teachers that set difficulty, and indicators that warn of collapse."""

from curriculum.alp_gmm import AlpGmmConfig, AlpGmmTeacher
from curriculum.beta_thompson import BetaThompsonConfig, BetaThompsonTeacher
from curriculum.fixed import FixedConfig, FixedTeacher
from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.spdl import SpdlConfig, SpdlTeacher
from curriculum.uniform import UniformConfig, UniformTeacher

TEACHERS = {
    "frontier": (FrontierConfig, FrontierTeacher),
    "fixed": (FixedConfig, FixedTeacher),
    "beta_thompson": (BetaThompsonConfig, BetaThompsonTeacher),
    "alp_gmm": (AlpGmmConfig, AlpGmmTeacher),
    "spdl": (SpdlConfig, SpdlTeacher),
    "uniform": (UniformConfig, UniformTeacher),
}
"""Teachers by kind: the dataclass of their settings and the class, built as `Teacher(config, scenarios=..., group_size=..., seed=...)`."""

NEEDS = {"alp_gmm": "sklearn"}
"""What a teacher imports beyond the light installation; without it the teacher cannot be built, and says so."""
