"""Held-out evaluation of a run: every held-out scenario at five strictnesses, with the same seeds for every arm and step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from analysis.endpoints import area_of, grades_of, looks
from analysis.runs import EVALUATION, read_lines
from analysis.stats import mean_interval
from analysis.transcripts import CutShort
from experiments.callbacks import TRIES, Callback
from experiments.checks import first_traceback
from experiments.config import EvaluationConfig, ExperimentConfig
from experiments.recorder import Recorder, dialogue_record, thoughts_of
from experiments.tasks import EvaluationTask, grid_tasks, spread
from policy.rollout.dialogue import RolloutGroup, Task
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Outcome
from simulator.rule_user import RuleUser
from simulator.scenario import HiddenIntention, Split
from simulator.scripted import AGENTS, mean_score, play
from simulator.user import UserSimulator
from simulator.users import make_bank
from simulator.world import Bank

BANDS: tuple[tuple[float, float], ...] = ((0.0, 0.4), (0.4, 0.6), (0.6, 1.01))
"""Three difficulty bands [low, high): on the default grid .1 and .3, .5, and .7 and .9."""
WORST_SHARE = 0.2
EMOTION_RANGE = (0.0, 100.0)
"""Between which every score lies."""


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


NUM_DECILES = 10
"""Evaluations in the course of a budget: at every tenth of it."""
CHUNK = 64
"""Dialogues between two questions whether to stop."""
SHOWN = ("score", "worst_cell", "success_rate", "failure_rate")
"""What of an evaluation TensorBoard draws."""
REFERENCES = ("L0", "L6")
"""Scripted agents on the same grid: always advice, and all six skills."""


class State(Protocol):
    """The moment of an evaluation."""

    step: int
    policy_tokens: int
    num_evaluations: int


class Pool(Protocol):
    """What an evaluation needs of the rollout pool."""

    def submit(self, tasks: Sequence[Task], *, temperature: float | None = None) -> None: ...
    def ready(self, num_groups: int) -> list[RolloutGroup]: ...


class HeldOutEvaluation:
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
        return 2 * sum(task.group_size for task in self.full) + (NUM_DECILES - 1) * len(self.during)

    def play(self, pool: Pool, recorder: Recorder, *, state: State, full: bool) -> dict[str, Any] | None:
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
        facts = {"look": state.num_evaluations, "policy_tokens": state.policy_tokens, "grid": "full" if full else "during"}
        pairs = list(zip(tasks, (group.rollouts[0] for group in groups), strict=True))
        lines = [
            record(task, rollout.dialogue, in_during=task.uid in during, **facts, **thoughts_of(rollout), **tries_of(group))
            for (task, rollout), group in zip(pairs, groups, strict=True)
        ]
        recorder.evaluation(state.step, lines)
        grades = {task.uid: Graded.of(rollout.dialogue, strictness=task.strictness) for task, rollout in pairs}
        # The full grid holds the small one: its curve begins and ends there.
        self.cut_short = cut_short(rollout.dialogue for _, rollout in pairs)
        summaries = {"during": summarise([grade for uid, grade in grades.items() if uid in during])}
        if full:
            summaries["full"] = summarise(list(grades.values()))
        recorder.scalars(state.step, {f"eval/{grid}_{key}": summary[key] for grid, summary in summaries.items() for key in SHOWN})
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


def budget_decile(fraction: float) -> int:
    """The tenth of the budget that a fraction lies in; 10 at its end."""
    return min(int(fraction * NUM_DECILES + 1e-9), NUM_DECILES)


def is_due(fraction: float, *, latest: int) -> bool:
    """Whether to evaluate now: before training and in every tenth of the budget; the end is separate.

    Args:
        fraction: of the budget that is used up.
        latest: decile of the latest evaluation, -1 before the first.
    """
    return budget_decile(fraction) != latest and fraction < 1.0


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
    return HeldOutEvaluation(config.evaluation, make_bank(config.simulator), callbacks=config.callbacks.values()).num_dialogues
