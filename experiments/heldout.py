"""The held-out scores of a run: when they are taken, how they are played, and their references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from analysis.endpoints import area_of, grades_of, looks
from analysis.runs import EVALUATION, read_lines
from experiments.callbacks import Callback
from experiments.evaluate import TRIES, EvaluationConfig, EvaluationTask, Graded, cut_short, grid_tasks, spread, summarise
from experiments.faults import first_traceback
from experiments.recorder import Recorder, dialogue_record, thoughts_of
from policy.rollout.dialogue import RolloutGroup, Task
from simulator.dialogue import Dialogue, Outcome
from simulator.rule_user import RuleUser
from simulator.scenario import HiddenIntention, Split
from simulator.scripted import AGENTS, mean_score, play
from simulator.user import UserSimulator
from simulator.world import Bank

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
