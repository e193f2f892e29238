"""The probe panel: the same training dialogues every few steps, never trained on, as a fixed yardstick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from curriculum.task import Mode, TaskSpec
from policy.rollout.dialogue import RolloutGroup
from simulator.scenario import Difficulty, Family


@dataclass
class ProbeConfig:
    """The panel (`probe.*`)."""

    num_dialogues: int = 25
    """>= 0: dialogues on the panel; 0 switches it off."""
    every: int = 5
    """> 0: steps between two looks."""
    at_start: bool = False
    """Whether the panel is also played with the first step's rollouts, before any update: a policy may be gone before the first look."""
    num_contexts: int = 16
    """0 or [2, 64]: first replies of the panel that are scored in the contexts of all of them, for `probe/retrieval_accuracy`; with 16 that
    is 256 short passes of the model a look, 0 leaves it out."""
    teaches: bool = True
    """Whether the teacher hears how the panel fared. Only one that looks for forgetting does anything about it (frontier); false leaves
    the panel a yardstick and nothing else."""

    def __post_init__(self) -> None:
        if self.num_dialogues < 0:
            raise ValueError(f"probe.num_dialogues must be >= 0, got {self.num_dialogues!r}; 0 switches the panel off")
        if self.num_contexts != 0 and not 2 <= self.num_contexts <= 64:
            raise ValueError(f"probe.num_contexts must be 0 or in [2, 64], got {self.num_contexts!r}")
        if self.every <= 0:
            raise ValueError(f"probe.every must be > 0, got {self.every!r}")

    def is_due(self, step: int) -> bool:
        """Whether the panel is played together with this step's rollouts, with the weights that these are sampled from."""
        return self.num_dialogues > 0 and (step % self.every == 0 or (self.at_start and step == 1))


@dataclass(frozen=True, kw_only=True)
class ProbeTask:
    """One dialogue of the panel. It is no TaskSpec: what comes of it reaches no teacher unless it is made one (`as_heard`)."""

    uid: str
    family: Family
    scenario_id: str
    strictness: float
    difficulty: Difficulty
    seed: int
    group_size: int = 1


def probe_tasks(num_dialogues: int, scenarios: Mapping[Family, Sequence[str]], *, seed: int) -> list[ProbeTask]:
    """The panel: families in turn, strictness spread evenly over [0, 1] and dealt to them by chance; the same for the same seed."""
    rng = np.random.default_rng([seed, num_dialogues])
    families = [family for family in scenarios if scenarios[family]]
    grid = (rng.permutation(num_dialogues) + 0.5) / max(num_dialogues, 1)
    return [
        ProbeTask(
            uid=f"probe{i:03d}",
            family=families[i % len(families)],
            scenario_id=str(rng.choice(sorted(scenarios[families[i % len(families)]]))),
            strictness=float(d),
            difficulty=Difficulty.along(float(d)),
            seed=int(rng.integers(2**31)),
        )
        for i, d in enumerate(grid)
    ]


def as_heard(groups: Sequence[RolloutGroup], *, step: int) -> list[RolloutGroup]:
    """Dialogues of the panel as a teacher hears of them: as probes of this step, which it did not issue and does not practise."""
    heard = []
    for group in groups:
        task = group.task
        assert isinstance(task, ProbeTask), f"the panel is made of ProbeTasks, got {type(task).__name__}"
        version = group.rollouts[0].policy_versions[1]
        spec = TaskSpec(
            **{**vars(task), "uid": f"step{step:07d}-{task.uid}"}, mode=Mode.PROBE, teacher_step=0, policy_version=version, propensity=1.0
        )
        heard.append(replace(group, task=spec))
    return heard
