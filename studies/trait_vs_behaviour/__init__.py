"""Empathy as behaviour or as a trait: what does a reward for a warm register everywhere do?"""

from experiments.callbacks import CALLBACKS
from simulator.reward import REWARD_TERMS
from studies.trait_vs_behaviour.told_facts import ToldFacts
from studies.trait_vs_behaviour.warmth import WARMTH

REWARD_TERMS["warmth"] = WARMTH
CALLBACKS["told_facts"] = ToldFacts
