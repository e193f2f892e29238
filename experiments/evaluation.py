"""Held-out evaluation of a run: every held-out scenario at five strictnesses, with the same seeds for every arm and step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.endpoints import area_of, grades_of, looks
from analysis.judged import SECOND, gap_of, is_heard
from analysis.runs import EVALUATION, read_lines
from analysis.stats import mean_interval
from analysis.transcripts import CutShort
from experiments.callbacks import TRIES, Callback
from experiments.config import EvaluationConfig, ExperimentConfig
from experiments.recorder import Recorder, dialogue_record, thoughts_of
from experiments.second_listener import SecondListener, too_many_unheard
from experiments.tasks import grid_tasks, spread
from policy.rollout.dialogue import RolloutGroup
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Dialogue, Outcome, UserSimulator
from simulator.pressure import score
from simulator.rule_user import RuleUser
from simulator.scenario import HiddenIntention, Split
from simulator.scripted import AGENTS, mean_score, play
from simulator.user import make_bank
from simulator.world import Bank

if TYPE_CHECKING:
    from experiments.run_state import RunState
    from policy.rollout.pool import RolloutPool


@dataclass(frozen=True, kw_only=True)
class Graded:
    """How one held-out dialogue ended."""

    scenario_id: str
    intention: HiddenIntention
    strictness: float
    emotion: int
    """Final emotion, 0-100; the score of `simulator.pressure` where the user presses."""
    outcome: Outcome

    @classmethod
    def of(cls, dialogue: Dialogue, *, strictness: float) -> Graded:
        """The grade of a finished dialogue."""
        assert dialogue.outcome is not None, "only finished dialogues are graded"
        return cls(
            scenario_id=dialogue.scenario.scenario_id,
            intention=dialogue.scenario.family.intention,
            strictness=strictness,
            emotion=score(dialogue),
            outcome=dialogue.outcome,
        )

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Graded:
        """The grade of a recorded dialogue, a line of `evaluation.jsonl`."""
        return cls(
            scenario_id=line["scenario_id"],
            intention=HiddenIntention(line["family"].partition("/")[0]),
            strictness=line["strictness"],
            emotion=line["emotion"],
            outcome=Outcome(line["outcome"]),
        )


def summarise(graded: Sequence[Graded], *, seed: int = 0) -> dict[str, Any]:
    """The held-out keys of `summary.json`; ERROR dialogues count nowhere, an empty grid gives NaN, the seed is the bootstrap's."""
    valid = [item for item in graded if item.outcome is not Outcome.ERROR]
    emotions = np.array([item.emotion for item in valid], dtype=float)
    per_scenario = np.array([mean for _, mean in sorted(means_by(valid, lambda item: item.scenario_id).items())])
    by_strictness = means_by(valid, lambda item: f"{item.strictness:g}")
    interval = mean_interval(emotions, [item.scenario_id for item in valid], rng=np.random.default_rng(seed), within=(0.0, 100.0))
    return {
        "score": mean(emotions),
        "score_ci95": list(interval),
        "by_strictness": dict(sorted(by_strictness.items(), key=lambda pair: float(pair[0]))),
        "worst_cell": worst_cell(valid),
        "cvar20": worst_mean(per_scenario),
        "success_rate": mean(emotions >= DELIGHTED_AT),
        "failure_rate": mean(emotions < LEFT_BELOW),
        "cut_short": mean(np.array([item.outcome is Outcome.TRUNCATED for item in valid], dtype=float)),
        "n_dialogues": len(valid),
    }


def summarise_second(lines: Iterable[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """The score by the second listener and its gap to that of training, of lines of `evaluation.jsonl`; NaN where too few were heard."""
    valid = [line for line in lines if line["outcome"] != Outcome.ERROR]
    heard = [line for line in valid if "final" in (line.get(SECOND) or {})] if is_heard(valid) else []
    summary = summarise([replace(Graded.of_line(line), emotion=line[SECOND]["final"]) for line in heard], seed=seed)
    return {name: summary[name] for name in ("score", "score_ci95", "by_strictness", "n_dialogues")} | gap_of(heard, seed=seed)


def worst_cell(graded: Sequence[Graded]) -> float:
    """Mean final emotion in the worst cell of hidden intention x difficulty band; NaN of nothing.

    The bands are [0, 0.4), [0.4, 0.6) and [0.6, 1]: on the default grid 0.1 and 0.3, 0.5, and 0.7 and 0.9.
    """
    cells = means_by(graded, lambda item: (item.intention, item.strictness >= 0.4, item.strictness >= 0.6))
    return min(cells.values(), default=float("nan"))


def worst_mean(values_N: np.ndarray, share: float = 0.2) -> float:
    """Mean of the worst `share` of the values, at least one of them (the conditional value at risk)."""
    if not values_N.size:
        return float("nan")
    num_worst = max(1, int(np.ceil(share * values_N.size - 1e-9)))
    return float(np.sort(values_N)[:num_worst].mean())


def means_by(graded: Sequence[Graded], key: Callable[[Graded], Any]) -> dict[Any, float]:
    """Mean final emotion of the dialogues that share a key."""
    groups: dict[Any, list[int]] = {}
    for item in graded:
        groups.setdefault(key(item), []).append(item.emotion)
    return {name: float(np.mean(emotions)) for name, emotions in groups.items()}


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean, NaN when there is nothing to average."""
    return float(np.mean(values)) if len(values) else float("nan")


def cut_short(dialogues: Iterable[Dialogue]) -> CutShort:
    """How many dialogues ended because their context was full; those that broke count nowhere."""
    whole = (dialogue for dialogue in dialogues if dialogue.outcome is not Outcome.ERROR)
    return CutShort.of((str(dialogue.outcome), [(str(turn.speaker), turn.text) for turn in dialogue.turns]) for dialogue in whole)


class HeldOutEvaluation:
    """Plays the held-out grids and keeps them in the run's `evaluation.jsonl`.

    Args:
        callbacks: may ask for further dialogues.
        max_error_share: of a grid's dialogues, in [0, 1]: how many may break. One always may.
        should_stop: asked between chunks; a yes abandons the evaluation, which then leaves no trace.
        second: hears the same dialogues again.
    """

    CHUNK = 64
    """Dialogues between two questions whether to stop."""
    SHOWN = ("score", "worst_cell", "success_rate", "failure_rate")
    """Keys of a summary that TensorBoard draws."""

    def __init__(
        self,
        config: EvaluationConfig,
        bank: Bank,
        *,
        callbacks: Iterable[Callback] = (),
        max_error_share: float = 0.05,
        should_stop: Callable[[], bool] = lambda: False,
        second: SecondListener | None = None,
    ) -> None:
        self.scenarios = spread(bank.scenarios(Split(config.split)), config.num_scenarios)
        self.during = grid_tasks(spread(self.scenarios, config.during_scenarios), config.strictness)
        self.full = grid_tasks(self.scenarios, config.strictness)
        for callback in callbacks:
            self.full = list(callback.evaluation_tasks(self.full, self.during))
        self._temperature, self._max_error_share, self._should_stop = config.temperature, max_error_share, should_stop
        self._second = second
        self.why_unheard = ""
        """Why the second listener has no score of the latest grid; empty where it has, or there is none."""
        self.cut_short = cut_short([])
        """Of the latest grid."""

    @property
    def num_dialogues(self) -> int:
        """Of a whole run: the full grid at both ends, the smaller one at each tenth between."""
        return 2 * sum(task.group_size for task in self.full) + 9 * len(self.during)

    @staticmethod
    def decile(fraction: float) -> int:
        """The tenth of the budget that a fraction of it lies in; 10 at its end."""
        return min(int(fraction * 10), 10)

    def play(self, pool: RolloutPool, recorder: Recorder, *, state: RunState, full: bool) -> dict[str, Any] | None:
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
            groups.extend(pool.ready(min(self.CHUNK, len(tasks) - len(groups))))

        # A score must not be that of the users who happened to answer.
        dialogues = [rollout.dialogue for group in groups for rollout in group.rollouts]
        broken = [dialogue for dialogue in dialogues if dialogue.outcome is Outcome.ERROR]
        if len(broken) > (at_most := max(1, int(self._max_error_share * len(dialogues)))):
            raise RuntimeError(
                f"at most {at_most} of {len(dialogues)} held-out dialogues may break, got {len(broken)}; nothing was recorded, and a run "
                "that goes on plays them again (where they break for good, with a larger rollout.max_error_share); "
                f"the first:\n{next((dialogue.error for dialogue in broken if dialogue.error), '')}"
            )

        again = iter(list[dict[str, Any]]())
        if self._second:
            sound = [group.rollouts[0].dialogue for group in groups if group.rollouts[0].dialogue.outcome is not Outcome.ERROR]
            spent = self._second.cost
            heard = self._second.hear(sound, should_stop=self._should_stop)
            state.simulator_cost += self._second.cost - spent
            if heard is None:
                return None
            self.why_unheard = too_many_unheard(heard)
            again = iter(heard)

        during = {task.uid for task in self.during}
        facts = {"look": state.num_evaluations, "policy_tokens": state.policy_tokens, "grid": "full" if full else "during"}
        lines, grades = [], []
        for task, group in zip(tasks, groups, strict=True):
            rollout, *further = group.rollouts
            emotions = [None if r.dialogue.outcome is Outcome.ERROR else r.dialogue.emotion for r in group.rollouts]
            # `in_during` marks dialogues that the smaller grid has too, so that curves compare equal grids.
            what = {"uid": task.uid, "strictness": task.strictness, "in_during": task.uid in during}
            extra = {**thoughts_of(rollout), **({TRIES: emotions} if further else {})}
            if self._second and rollout.dialogue.outcome is not Outcome.ERROR:
                extra[SECOND] = next(again)
            lines.append(dialogue_record(rollout.dialogue, **facts, **extra, **what))
            grades.append(Graded.of(rollout.dialogue, strictness=task.strictness))
        recorder.evaluation(state.step, lines)
        self.cut_short = cut_short(group.rollouts[0].dialogue for group in groups)
        summaries = {"during": summarise([grade for task, grade in zip(tasks, grades, strict=True) if task.uid in during])}
        if full:
            summaries["full"] = summarise(grades)
        scalars = {f"eval/{grid}_{key}": summary[key] for grid, summary in summaries.items() for key in self.SHOWN}
        if self._second:
            for grid in summaries:
                found = summarise_second([line for line in lines if grid == "full" or line["in_during"]])
                scalars |= {f"eval/{grid}_second_listener": found["score"], f"eval/{grid}_judge_gap": found["gap"]}
        recorder.scalars(state.step, scalars)
        return summaries["full" if full else "during"]

    def reference(self, user: UserSimulator, *, max_turns: int) -> dict[str, float]:
        """Scores of L0 (always advises) and L6 (has all six skills) on the full grid and its seeds; empty without the rule user.

        So they are where the encoder or a model listens: each reply would have to be heard by it, one after the other.
        """
        if not isinstance(user, RuleUser) or user.listener:
            return {}
        by_id = {scenario.scenario_id: scenario for scenario in self.scenarios}
        return {
            name: mean_score(
                [play(AGENTS[name], by_id[t.scenario_id], t.difficulty, seed=t.seed, user=user, max_turns=max_turns) for t in self.full]
            )
            for name in ("L0", "L6")
        }


def start_and_end(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Held-out summaries before training and at the end, each with the area under the curve up to it."""
    lines = list(read_lines(folder / EVALUATION))
    full: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["grid"] == "full":
            full.setdefault(line["step"], []).append(line)
    seen = looks(grades_of(lines))

    def described(played: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        second = {SECOND: summarise_second(played)} if any(SECOND in line for line in played) else {}
        return summarise(list(map(Graded.of_line, played))) | second

    start = {**described(full[min(full)] if full else []), "auc": area_of(seen[:1])}
    end = {**described(full[max(full)] if len(full) > 1 else []), "auc": area_of(seen)}
    return start, end


def seconds_of_run(config: ExperimentConfig, step: Mapping[str, float], *, num_tokens: float) -> float:
    """Seconds that a run takes with its evaluations, without the start of the engines, if all steps are like this one.

    Args:
        step: its metrics; a held-out dialogue takes as long as one of its own.
        num_tokens: policy tokens that it took, > 0.
    """
    num_steps = config.budget.policy_tokens / num_tokens
    if config.budget.steps:
        num_steps = min(num_steps, config.budget.steps)
    heldout = HeldOutEvaluation(config.evaluation, make_bank(config.simulator), callbacks=config.callbacks.values())
    per_dialogue_s = step["timing_s/gen"] / (config.groups_per_step * config.group_size)
    return num_steps * step["timing_s/step"] + heldout.num_dialogues * per_dialogue_s
