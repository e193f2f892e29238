"""Should frontier practise where the rollouts of a group differ most?"""

from curriculum import TEACHERS
from studies.variants.contrast import FrontierByContrastConfig, FrontierByContrastTeacher

TEACHERS["frontier_by_contrast"] = (FrontierByContrastConfig, FrontierByContrastTeacher)
