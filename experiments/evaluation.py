"""The held-out grid: every held-out scenario at five strictnesses, the same seeds for every arm, and what is read off it.

The held-out scores of a run: when they are taken, how they are played, and their references.

What a run will cost, told by one timed step: as many steps as the budget buys, and the looks at the held-out grids.

The probe panel: the same training dialogues every few steps, never trained on, as a fixed yardstick.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from analysis.endpoints import area_of, grades_of, looks
from analysis.runs import EVALUATION, read_lines
from analysis.stats import mean_interval
from analysis.transcripts import CutShort
from curriculum.task import Mode, TaskSpec
from experiments.callbacks import Callback
from experiments.checks import first_traceback
from experiments.config import EvaluationConfig, ExperimentConfig
from experiments.recorder import Recorder, dialogue_record, thoughts_of
from policy.rollout.dialogue import RolloutGroup, Task
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Outcome
from simulator.rule_user import RuleUser
from simulator.scenario import Difficulty, Family, HiddenIntention, Scenario, Split
from simulator.scripted import AGENTS, mean_score, play
from simulator.user import UserSimulator
from simulator.users import make_bank
from simulator.world import Bank

BANDS: tuple[tuple[float, float], ...] = ((0.0, 0.4), (0.4, 0.6), (0.6, 1.01))
"""Three difficulty bands [low, high): on the default grid .1 and .3, .5, and .7 and .9."""
WORST_SHARE = 0.2
TRIES = "tries"
"""Key of a recorded held-out dialogue: final emotions of all dialogues with that user at that look, its own first; None where one broke."""
EMOTION_RANGE = (0.0, 100.0)
"""Between which every score lies."""


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """One dialogue of the grid. It is no TaskSpec, so it can never reach a teacher."""

    uid: str
    scenario_id: str
    strictness: float
    difficulty: Difficulty
    seed: int
    group_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Graded:
    """How one held-out dialogue ended."""

    scenario_id: str
    intention: HiddenIntention
    strictness: float
    emotion: int
    """Final emotion, 0-100."""
    outcome: Outcome

    @classmethod
    def of(cls, dialogue: Dialogue, *, strictness: float) -> Graded:
        """What counts of a finished dialogue."""
        assert dialogue.outcome is not None, "only finished dialogues are graded"
        return cls(
            scenario_id=dialogue.scenario.scenario_id,
            intention=dialogue.scenario.family.intention,
            strictness=strictness,
            emotion=dialogue.emotion,
            outcome=dialogue.outcome,
        )


def cut_short(dialogues: Iterable[Dialogue]) -> CutShort:
    """How many dialogues ended because their context was full; those that broke count nowhere."""
    whole = (dialogue for dialogue in dialogues if dialogue.outcome is not Outcome.ERROR)
    return CutShort.of((str(dialogue.outcome), [(str(turn.speaker), turn.text) for turn in dialogue.turns]) for dialogue in whole)


def grid_seed(scenario_id: str, strictness: float) -> int:
    """A seed in [0, 2^31) from the cell alone, so that every arm and every step meets the same users."""
    digest = hashlib.sha256(f"{scenario_id}@{strictness:.4f}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def grid_tasks(scenarios: Iterable[Scenario], strictness: Sequence[float]) -> list[EvaluationTask]:
    """Every scenario at every strictness, scenarios outermost."""
    return [
        EvaluationTask(
            uid=f"eval:{scenario.scenario_id}@{d:g}",
            scenario_id=scenario.scenario_id,
            strictness=d,
            difficulty=Difficulty.along(d),
            seed=grid_seed(scenario.scenario_id, d),
        )
        for scenario in scenarios
        for d in strictness
    ]


def spread(scenarios: Sequence[Scenario], num_scenarios: int) -> list[Scenario]:
    """A fixed choice that visits the families in turn; 0, or more than there are, means all of them."""
    if num_scenarios == 0 or num_scenarios >= len(scenarios):
        return sorted(scenarios, key=lambda scenario: scenario.scenario_id)
    by_family: dict[str, list[Scenario]] = {}
    for scenario in sorted(scenarios, key=lambda scenario: scenario.scenario_id):
        by_family.setdefault(str(scenario.family), []).append(scenario)
    rounds = max(len(members) for members in by_family.values())
    in_turn = [members[i] for i in range(rounds) for _, members in sorted(by_family.items()) if i < len(members)]
    return in_turn[:num_scenarios]


def summarise(graded: Sequence[Graded], *, seed: int = 0) -> dict[str, Any]:
    """The held-out keys of `summary.json`; ERROR dialogues count nowhere, and an empty grid gives NaN.

    Args:
        seed: of the bootstrap.
    """
    valid = [item for item in graded if item.outcome is not Outcome.ERROR]
    emotions = np.array([item.emotion for item in valid], dtype=float)
    per_scenario = np.array([mean for _, mean in sorted(means_by(valid, lambda item: item.scenario_id).items())])
    by_strictness = means_by(valid, lambda item: f"{item.strictness:g}")
    return {
        "score": mean(emotions),
        "score_ci95": list(
            mean_interval(emotions, [item.scenario_id for item in valid], rng=np.random.default_rng(seed), within=EMOTION_RANGE)
        ),
        "by_strictness": dict(sorted(by_strictness.items(), key=lambda pair: float(pair[0]))),
        "worst_cell": worst_cell(valid),
        "cvar20": worst_mean(per_scenario),
        "success_rate": mean(emotions >= DELIGHTED_AT),
        "failure_rate": mean(emotions < LEFT_BELOW),
        "cut_short": mean(np.array([item.outcome is Outcome.TRUNCATED for item in valid], dtype=float)),
        "n_dialogues": len(valid),
    }


def worst_cell(graded: Sequence[Graded]) -> float:
    """Mean final emotion in the worst cell of hidden intention x difficulty band; NaN of nothing."""
    return min(means_by(graded, lambda item: (item.intention, band(item.strictness))).values(), default=float("nan"))


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean, NaN when there is nothing to average."""
    return float(np.mean(values)) if len(values) else float("nan")


def means_by(graded: Sequence[Graded], key: Callable[[Graded], Any]) -> dict[Any, float]:
    """Mean final emotion of the dialogues that share a key."""
    groups: dict[Any, list[int]] = {}
    for item in graded:
        groups.setdefault(key(item), []).append(item.emotion)
    return {name: float(np.mean(emotions)) for name, emotions in groups.items()}


def band(strictness: float) -> int:
    """Index of the difficulty band."""
    return next(i for i, (low, high) in enumerate(BANDS) if low <= strictness < high)


def worst_mean(values_N: np.ndarray, share: float = WORST_SHARE) -> float:
    """Mean of the worst `share` of the values, at least one of them (the conditional value at risk)."""
    if not values_N.size:
        return float("nan")
    num_worst = max(1, int(np.ceil(share * values_N.size - 1e-9)))
    return float(np.sort(values_N)[:num_worst].mean())


LOOKS = 10
"""Evaluations in the course of a budget: at every tenth of it."""
CHUNK = 64
"""Dialogues between two questions whether to stop."""
SHOWN = ("score", "worst_cell", "success_rate", "failure_rate")
"""What of an evaluation TensorBoard draws."""
REFERENCES = ("L0", "L6")
"""Scripted agents on the same grid: always advice, and all six skills."""


class Tally(Protocol):
    """When in a run an evaluation is taken."""

    step: int
    policy_tokens: int
    num_looks: int


class Pool(Protocol):
    """What an evaluation needs of the rollout pool."""

    def submit(self, tasks: Sequence[Task], *, temperature: float | None = None) -> None: ...
    def ready(self, num_groups: int) -> list[RolloutGroup]: ...


class HeldOut:
    """Plays the held-out grids and keeps them in the run's `evaluation.jsonl`.

    Args:
        callbacks: may ask for further dialogues.
        max_error_share: of a grid's dialogues, in [0, 1]: how many may break. One always may.
        should_stop: asked between chunks; a yes abandons the evaluation, which then leaves no trace.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        bank: Bank,
        *,
        callbacks: Iterable[Callback] = (),
        max_error_share: float = 0.05,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        scenarios = bank.scenarios(Split(config.split))
        full = spread(scenarios, config.num_scenarios)
        self.during = grid_tasks(spread(full, config.during_scenarios), config.strictness)
        self.full = grid_tasks(full, config.strictness)
        for callback in callbacks:
            self.full = list(callback.evaluation_tasks(self.full, self.during))
        self.scenarios = full
        self._temperature = config.temperature
        self._max_error_share = max_error_share
        self._should_stop = should_stop
        self.cut_short = cut_short([])
        """Of the latest grid."""

    @property
    def num_dialogues(self) -> int:
        """Of a whole run: the full grid at both ends, the smaller one at each tenth between."""
        return 2 * sum(task.group_size for task in self.full) + (LOOKS - 1) * len(self.during)

    def play(self, pool: Pool, recorder: Recorder, *, tally: Tally, full: bool) -> dict[str, Any] | None:
        """Plays a grid with the pool's present weights; returns its summary, or None when it was abandoned, and the pool with it.

        Raises:
            RuntimeError: too many of its dialogues broke; nothing was recorded, so that a run that goes on plays it again.
        """
        tasks = self.full if full else self.during
        groups: list[RolloutGroup] = []
        pool.submit(tasks, temperature=self._temperature)
        while len(groups) < len(tasks):
            if self._should_stop():
                return None
            groups.extend(pool.ready(min(CHUNK, len(tasks) - len(groups))))
        self._refuse_broken(groups)
        during = {task.uid for task in self.during}
        facts = {"look": tally.num_looks, "policy_tokens": tally.policy_tokens, "grid": "full" if full else "during"}
        pairs = list(zip(tasks, (group.rollouts[0] for group in groups), strict=True))
        lines = [
            record(task, rollout.dialogue, in_during=task.uid in during, **facts, **thoughts_of(rollout), **tries_of(group))
            for (task, rollout), group in zip(pairs, groups, strict=True)
        ]
        recorder.evaluation(tally.step, lines)
        grades = {task.uid: Graded.of(rollout.dialogue, strictness=task.strictness) for task, rollout in pairs}
        # The full grid holds the small one: its curve begins and ends there.
        self.cut_short = cut_short(rollout.dialogue for _, rollout in pairs)
        summaries = {"during": summarise([grade for uid, grade in grades.items() if uid in during])}
        if full:
            summaries["full"] = summarise(list(grades.values()))
        recorder.scalars(tally.step, {f"eval/{grid}_{key}": summary[key] for grid, summary in summaries.items() for key in SHOWN})
        return summaries["full" if full else "during"]

    def _refuse_broken(self, groups: Sequence[RolloutGroup]) -> None:
        """Raises where a score would be that of the users who happened to answer."""
        dialogues = [rollout.dialogue for group in groups for rollout in group.rollouts]
        broken = [dialogue for dialogue in dialogues if dialogue.outcome is Outcome.ERROR]
        at_most = max(1, int(self._max_error_share * len(dialogues)))
        if len(broken) > at_most:
            raise RuntimeError(
                f"at most {at_most} of {len(dialogues)} held-out dialogues may break, got {len(broken)}; nothing was recorded, and a run "
                "that goes on plays them again (where they break for good, with a larger rollout.max_error_share); "
                f"the first:\n{first_traceback(broken)}"
            )

    def reference(self, user: UserSimulator, *, max_turns: int) -> dict[str, float]:
        """Scores of scripted agents on the full grid, with the same seeds; none when the user is not the embedded one."""
        if not isinstance(user, RuleUser):
            return {}
        return {name: mean_score(self._scripted(name, user, max_turns=max_turns)) for name in REFERENCES}

    def _scripted(self, name: str, user: RuleUser, *, max_turns: int) -> list[Dialogue]:
        by_id = {scenario.scenario_id: scenario for scenario in self.scenarios}
        return [
            play(AGENTS[name], by_id[task.scenario_id], task.difficulty, seed=task.seed, user=user, max_turns=max_turns)
            for task in self.full
        ]


def record(task: EvaluationTask, dialogue: Dialogue, *, in_during: bool, **facts: Any) -> dict[str, Any]:
    """The line of one held-out dialogue; `in_during` marks those that the smaller grid has too, so that curves compare like with like."""
    return dialogue_record(dialogue, **facts, uid=task.uid, strictness=task.strictness, in_during=in_during)


def tries_of(group: RolloutGroup) -> dict[str, list[int | None]]:
    """What is recorded of a user who was tried several times: how each dialogue ended, None where it broke; else nothing."""
    if len(group.rollouts) < 2:
        return {}
    dialogues = [rollout.dialogue for rollout in group.rollouts]
    return {TRIES: [None if dialogue.outcome is Outcome.ERROR else dialogue.emotion for dialogue in dialogues]}


def tenth_of(spent: float) -> int:
    """Which tenth of the budget a share of it lies in; 10 when it is spent."""
    return min(int(spent * LOOKS + 1e-9), LOOKS)


def is_due(spent: float, *, latest: int) -> bool:
    """Whether to evaluate now: before training, and in every tenth of the budget that training reaches; the end is a matter of its own.

    Args:
        spent: share of the budget.
        latest: tenth of the latest evaluation, -1 before the first.
    """
    return tenth_of(spent) != latest and spent < 1.0


def summarise_lines(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The held-out keys of `summary.json` from recorded lines."""
    return summarise([graded(line) for line in lines])


def graded(line: Mapping[str, Any]) -> Graded:
    """A recorded line as a grade."""
    return Graded(
        scenario_id=line["scenario_id"],
        intention=HiddenIntention(line["family"].partition("/")[0]),
        strictness=line["strictness"],
        emotion=line["emotion"],
        outcome=Outcome(line["outcome"]),
    )


def start_and_end(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Held-out summaries before training and at the end, each with the area under the curve up to it."""
    lines = list(read_lines(folder / EVALUATION))
    full: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        if line["grid"] == "full":
            full.setdefault(line["step"], []).append(line)
    seen = looks(grades_of(lines))
    start = {**summarise_lines(full[min(full)] if full else []), "auc": area_of(seen[:1])}
    end = {**summarise_lines(full[max(full)] if len(full) > 1 else []), "auc": area_of(seen)}
    return start, end


def seconds_of_run(config: ExperimentConfig, step: Mapping[str, float], *, num_tokens: float) -> float:
    """Seconds that a run takes with its looks, were all steps like this one.

    A held-out dialogue is reckoned as long as one of training. What starting the engines takes is not counted.

    Args:
        step: what was measured in it.
        num_tokens: policy tokens that it took, > 0.
    """
    num_steps = config.budget.policy_tokens / num_tokens
    if config.budget.steps:
        num_steps = min(num_steps, config.budget.steps)
    per_dialogue_s = step["timing_s/gen"] / (config.groups_per_step * config.group_size)
    return num_steps * step["timing_s/step"] + heldout_dialogues(config) * per_dialogue_s


def heldout_dialogues(config: ExperimentConfig) -> int:
    """Held-out dialogues of a whole run."""
    return HeldOut(config.evaluation, make_bank(config.simulator), callbacks=config.callbacks.values()).num_dialogues


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
