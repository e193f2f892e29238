"""Does rewarding warmth cost reliability? Registers the reward term `warmth`."""

from simulator.reward import REWARD_TERMS
from studies.trait_vs_behaviour.warmth import WARMTH

REWARD_TERMS["warmth"] = WARMTH
