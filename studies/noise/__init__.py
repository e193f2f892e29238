"""Which teachers spend their groups on noise, where a third of the families reward by the toss of a coin?"""

from experiments.callbacks import CALLBACKS
from simulator.user import USERS
from studies.noise.moody_share import MoodyShare
from studies.noise.moody_user import MoodyUser, MoodyUserConfig

USERS["moody"] = (MoodyUserConfig, MoodyUser)
CALLBACKS["moody_share"] = MoodyShare
