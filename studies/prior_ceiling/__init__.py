"""Does training only elicit what the prior can do? What choosing among its own tries reaches, against what training makes of one."""

from experiments.callbacks import CALLBACKS
from studies.prior_ceiling.best_of import BestOf

CALLBACKS["best_of"] = BestOf
