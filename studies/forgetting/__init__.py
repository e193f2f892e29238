"""What is not practised fades: do teachers go back for it?"""

from experiments.callbacks import CALLBACKS
from studies.forgetting.pull_to_start import PullToStart

CALLBACKS["pull_to_start"] = PullToStart
