"""Scores of an evaluation (`agent.json`): final emotions, success and failure by group, length control, best of k, and their report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.evaluated import AGENT_JSON, FORMAT
from analysis.ranking import Z, score_within
from analysis.stats import Estimate
from analysis.text import with_interval
from analysis.transcripts import CutShort
from curriculum.signals import expected_best
from experiments.agents.capabilities import capabilities, plane, reply_features, strategy_shares
from experiments.agents.intervals import ratio, resampled
from experiments.agents.players import PATIENCE, AgentDialogue
from experiments.agents.setting import Setting, setting_id
from experiments.evaluation import Graded, cut_short, summarise, worst_cell, worst_mean
from experiments.run_folder import git_commit, versions
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Outcome
from simulator.listener import Register
from simulator.llm.options import in_options
from simulator.rule_user import RuleUserConfig
from simulator.text import num_words

MAX_REASONS = 10
"""Reported reasons of broken dialogues."""
REFERENCE_WORDS = {Register.WORLD: 10.0, Register.OPEN: 50.0}
"""Words of a reply at which the length-controlled score is reported; a leaderboard takes its own agents' mean."""
NUM_DRAWS = 500
LEAST_SPREAD = 0.01
"""Standard deviation of the lengths of comparable replies, in doublings, below which there is no slope over length."""
LEAST_DRAWS = 0.9
"""Share of the resampled sets of scenarios that must have a slope."""
OUTER = 0.05
"""Share of the replies at either end of the lengths that is clipped."""


def describe(
    played: Sequence[AgentDialogue],
    setting: Setting,
    *,
    agent: Mapping[str, Any],
    samples: int,
    seed: int,
    by_judge: Mapping[str, Estimate] | None,
    judge: Mapping[str, Any],
    usage: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The contents of `agent.json`.

    Args:
        played: all dialogues, also those that broke, which count in `errors` alone.
        agent: the agent and how it was sampled.
        by_judge: capabilities by a model; None where none judged.
        judge: which model judged, and its errors; or why none did.
        usage: requests, tokens and money of all sittings, by user.
    """
    # In an order that does not depend on which ended first, so that sums are equal to the last bit.
    played = sorted(played, key=lambda one: (one.task.uid, one.sibling))
    whole = [one for one in played if not one.is_broken]
    replies = reply_features(whole, setting.register)
    is_rule = isinstance(setting.user_config, RuleUserConfig)
    found = capabilities(replies, seed=seed) if is_rule else by_judge or {}
    compared = setting.to_dict()
    return {
        "format": FORMAT,
        "agent": dict(agent),
        "setting": compared,
        "setting_id": setting_id(compared),
        "profiles": setting.bank_file,
        "samples": samples,
        "seed": seed,
        **scores(whole, seed=seed),
        "outcomes": dict(sorted(Counter(str(one.dialogue.outcome) for one in played).items())),
        "errors": errors(played, num_planned=samples * len(setting.tasks())),
        "replies": {"answered": len(replies), "per_dialogue": len(replies) / len(whole) if whole else None},
        "capabilities": {
            "by": "rule" if is_rule else "judge" if by_judge else None,
            **judge,
            **{name: estimate.to_dict() for name, estimate in found.items()},
        },
        "strategies": {name: estimate.to_dict() for name, estimate in strategy_shares(replies, seed=seed).items()},
        "social_cognition": plane(replies, seed=seed),
        "length": length_control(whole, seed=seed, register=setting.register),
        "best_of_k": best_of_k(whole, samples=samples, seed=seed),
        "usage": dict(usage),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def scores(played: Sequence[AgentDialogue], *, seed: int) -> dict[str, Any]:
    """The keys of a run's `heldout` and more, of dialogues that did not break.

    Returns:
        Keys of `experiments.evaluation.summarise`; intervals of success, failure, worst cell and CVaR under `intervals`; groups by
        `strictness`, `intention`, `persona` and `family`; `per_scenario` means, for paired comparisons.
    """
    by_scenario: dict[str, list[Graded]] = {}
    for one in played:
        by_scenario.setdefault(one.scenario_id, []).append(Graded.of(one.dialogue, strictness=one.task.strictness))
    names = sorted(by_scenario)
    means_S = np.array([np.mean([item.emotion for item in by_scenario[name]]) for name in names])

    def worst_of(chosen: np.ndarray) -> float:
        return worst_cell([item for i in chosen for item in by_scenario[names[i]]])

    return {
        **summarise([Graded.of(one.dialogue, strictness=one.task.strictness) for one in played], seed=seed),
        "intervals": {
            **_rates(played, seed=seed),
            "cvar20": resampled(lambda chosen: worst_mean(means_S[chosen]), len(names), seed=seed).to_dict(),
            "worst_cell": resampled(worst_of, len(names), seed=seed).to_dict(),
        },
        "strictness": _groups(played, lambda one: f"{one.task.strictness:g}", seed=seed),
        "intention": _groups(played, lambda one: str(one.dialogue.scenario.family.intention), seed=seed),
        "persona": _groups(played, lambda one: str(one.dialogue.scenario.family.persona), seed=seed),
        "family": _groups(played, lambda one: str(one.dialogue.scenario.family), seed=seed),
        "per_scenario": {name: float(mean) for name, mean in zip(names, means_S, strict=True)},
    }


def _groups(played: Sequence[AgentDialogue], key: Callable[[AgentDialogue], str], *, seed: int) -> dict[str, dict[str, Any]]:
    """By key: mean final emotion, 0-100, as `value`, `low` and `high`; `success_rate` and `failure_rate`, [0, 1]; `n` dialogues."""
    groups: dict[str, list[AgentDialogue]] = {}
    for one in played:
        groups.setdefault(key(one), []).append(one)
    found = {}
    for name, members in sorted(groups.items()):
        emotion = ratio([(one.scenario_id, one.dialogue.emotion / 100.0, 1.0) for one in members], seed=seed, scale=100.0)
        found[name] = {**emotion.to_dict(), **_rates(members, seed=seed), "n": len(members)}
    return found


def _rates(played: Sequence[AgentDialogue], *, seed: int) -> dict[str, dict[str, float | None]]:
    """Shares of the dialogues that ended with a delighted user, and with a user who had had enough."""
    success = [(one.scenario_id, float(one.dialogue.emotion >= DELIGHTED_AT), 1.0) for one in played]
    failure = [(one.scenario_id, float(one.dialogue.emotion < LEFT_BELOW), 1.0) for one in played]
    return {"success_rate": ratio(success, seed=seed).to_dict(), "failure_rate": ratio(failure, seed=seed).to_dict()}


def errors(played: Sequence[AgentDialogue], *, num_planned: int) -> dict[str, Any]:
    """Counts of dialogues that broke, by reason, the most frequent first, that were not played, and that ran out of context."""
    # The last line of a traceback. The agent's complaints name its options; any other setting is the user's.
    reasons = Counter(in_options(one.dialogue.error.strip().rpartition("\n")[2].strip(), "--user-") for one in played if one.is_broken)
    cut = cut_short(one.dialogue for one in played)
    return {
        "planned": num_planned,
        "not_played": num_planned - len(played),
        "excluded_dialogues": sum(reasons.values()),
        "reasons": dict(reasons.most_common(MAX_REASONS)),
        "cut_short": sum(one.dialogue.outcome is Outcome.TRUNCATED for one in played),
        **({"cut_short_by_user": cut.by_user, "cut_short_replies": cut.replies} if cut.share > 0.0 else {}),
    }


class _Replies(NamedTuple):
    """The answered replies of an evaluation, N of them."""

    log_words_N: np.ndarray
    """log2 of the words of each."""
    before_N: np.ndarray
    """The user's emotion before it, 0-100."""
    change_N: np.ndarray
    """Points of emotion that it moved the user."""
    cell_N: np.ndarray
    """int: replies of one cell are compared with each other."""
    scenario_N: np.ndarray
    """int: the scenario, which is resampled."""


def length_control(played: Sequence[AgentDialogue], *, seed: int, register: Register) -> dict[str, Any]:
    """Effect of the length of the replies on the score, and the score at a given length.

    The unit is the reply, since a dialogue's mean length is also a result of how it went. The change of emotion that a reply brought is
    regressed on log2 of its words and on the emotion before it, within cells: the same place in dialogues with one user where there are
    several, else with users of one strictness x hidden intention. With `slope` = points a reply and doubling x replies per dialogue, the
    score at L words is the score + slope x (log2 L - mean). It says what length explains among this agent's own replies, not what would
    happen if it were made to speak otherwise, and nothing of lengths outside `range`.

    Args:
        played: dialogues that did not break.
        register: how the agent speaks, which decides the reference length.

    Returns:
        `words_per_reply` (geometric mean), `points_per_doubling`, `range`: words of its shortest and longest replies without the outer
        twentieth at either end, `score_at_reference`, None outside of them, and `line`: intercept, slope and their covariance over
        resampled scenarios, from which the score at a length in the range follows (`score_within`).

    Source: AlpacaEval's length control, arXiv 2404.04475, takes length out of a preference likewise.
    """
    answered = [one for one in played if len(one.dialogue.turns) > 2]
    names = sorted({one.scenario_id for one in answered})
    where = {name: i for i, name in enumerate(names)}
    replies = _answered_replies(answered, where)
    words = float(2.0 ** replies.log_words_N.mean()) if replies.log_words_N.size else math.nan
    unfitted = {"words_per_reply": words, "points_per_doubling": None, "range": None, "score_at_reference": None, "line": None}
    if len(names) < 2:
        return unfitted
    shortest, longest = np.quantile(replies.log_words_N, [OUTER, 1.0 - OUTER])
    # One runaway reply would turn the line by itself.
    x_N = np.clip(replies.log_words_N, shortest, longest)
    emotion_D = np.array([one.dialogue.emotion for one in answered], dtype=float)
    scenario_D = np.array([where[one.scenario_id] for one in answered], dtype=int)

    def line(chosen: np.ndarray) -> tuple[float, float]:
        weight_S = np.bincount(chosen, minlength=len(names)).astype(float)
        weight_N, weight_D = weight_S[replies.scenario_N], weight_S[scenario_D]
        slope = _slope(x_N, replies, weight_N) * float(weight_N.sum() / weight_D.sum())
        score = float(np.average(emotion_D, weights=weight_D))
        return score - slope * float(np.average(x_N, weights=weight_N)), slope

    intercept, slope = line(np.arange(len(names)))
    rng = np.random.default_rng(seed)
    draws = np.array([line(rng.integers(0, len(names), size=len(names))) for _ in range(NUM_DRAWS)])
    draws = draws[~np.isnan(draws[:, 1])]
    if math.isnan(slope) or len(draws) < LEAST_DRAWS * NUM_DRAWS:
        return unfitted
    error = float(draws[:, 1].std())
    fitted = {"intercept": intercept, "slope": slope, "covariance": np.cov(draws.T).tolist()}
    # Whole words stay whole, so that a length at the edge lies within.
    spoken = [round(float(2.0**end), 6) for end in (shortest, longest)]
    at_reference = score_within({"line": fitted, "range": spoken}, REFERENCE_WORDS[register])
    return {
        "words_per_reply": words,
        "points_per_doubling": {"value": slope, "low": slope - Z * error, "high": slope + Z * error},
        "range": spoken,
        "score_at_reference": {"words": REFERENCE_WORDS[register], **at_reference} if at_reference else None,
        "line": fitted,
    }


def _answered_replies(played: Sequence[AgentDialogue], where: Mapping[str, int]) -> _Replies:
    """Every answered reply; turns alternate, the user's first. `where`: number of each scenario."""
    has_siblings = any(one.sibling for one in played)
    cells: dict[tuple[str, float, int], int] = {}
    rows = []
    for one in played:
        user = one.scenario_id if has_siblings else str(one.dialogue.scenario.family.intention)
        turns = one.dialogue.turns
        for number, (before, reply, answer) in enumerate(zip(turns[::2], turns[1::2], turns[2::2], strict=False)):
            cell = cells.setdefault((user, one.task.strictness, number), len(cells))
            length = math.log2(max(1, num_words(reply.text)))
            rows.append((length, before.emotion or 0, answer.change or 0, cell, where[one.scenario_id]))
    table_NC = np.array(rows, dtype=float).reshape(-1, len(_Replies._fields))
    return _Replies(*table_NC[:, :3].T, *table_NC[:, 3:].astype(int).T)


def _slope(x_N: np.ndarray, replies: _Replies, weight_N: np.ndarray) -> float:
    """Points of emotion a reply for each doubling of its words, at equal emotion before it, within cells; NaN where lengths do not differ
    except with that emotion.
    """

    def centred(values_N: np.ndarray) -> np.ndarray:
        total_C = np.maximum(np.bincount(replies.cell_N, weight_N), 1e-12)
        return values_N - (np.bincount(replies.cell_N, weight_N * values_N) / total_C)[replies.cell_N]

    x, before, change = map(centred, (x_N, replies.before_N, replies.change_N))
    spread = float((weight_N * before * before).sum())
    x = x - (float((weight_N * x * before).sum()) / spread if spread > 1e-9 else 0.0) * before
    variance = float((weight_N * x * x).sum() / weight_N.sum())
    return float((weight_N * x * change).sum() / (weight_N * x * x).sum()) if variance > LEAST_SPREAD**2 else math.nan


def best_of_k(played: Sequence[AgentDialogue], *, samples: int, seed: int) -> dict[str, Any] | None:
    """Final emotion of the best of k dialogues with each user; None where there is one with each. Users with a missing one are left out.

    Returns:
        `k`, `users`; `mean`, `best` and `gain` with intervals; `by_k`: the expected best of 1..k, unbiased from all k; `expected`: `best`
        and `gain` of each with intervals.
    """
    by_user: dict[str, list[AgentDialogue]] = {}
    for one in played:
        by_user.setdefault(one.task.uid, []).append(one)
    complete = [group for _, group in sorted(by_user.items()) if len(group) == samples]
    if samples < 2 or not complete:
        return None
    emotions_UK = np.array([[one.dialogue.emotion for one in group] for group in complete], dtype=float)
    users: dict[str, list[int]] = {}
    for i, group in enumerate(complete):
        users.setdefault(group[0].scenario_id, []).append(i)
    members = [np.array(users[name]) for name in sorted(users)]

    def interval(values_U: np.ndarray) -> dict[str, float | None]:
        mean = resampled(lambda chosen: float(values_U[np.concatenate([members[i] for i in chosen])].mean()), len(members), seed=seed)
        return mean.to_dict()

    mean_U = emotions_UK.mean(axis=1)
    expected_KU = [expected_best(emotions_UK, j) for j in range(1, samples + 1)]
    expected = {str(j): {"best": interval(best_U), "gain": interval(best_U - mean_U)} for j, best_U in enumerate(expected_KU, 1)}
    by_k = {str(j): float(best_U.mean()) for j, best_U in enumerate(expected_KU, 1)}
    best_U = emotions_UK.max(axis=1)
    overall = {"mean": interval(mean_U), "best": interval(best_U), "gain": interval(best_U - mean_U)}
    return {"k": samples, "users": len(complete), **overall, "by_k": by_k, "expected": expected}


def is_complete(found: Mapping[str, Any]) -> bool:
    """Whether all dialogues were played, none broke, and a judge, where there is one, was asked for all and graded half of them."""
    broken, capable, num = found["errors"], found["capabilities"], found["n_dialogues"]
    is_judged = 2 * capable.get("num_errors", 0) <= num and not capable.get("num_not_sent")
    return num > 0 and is_judged and not broken["not_played"] and not broken["excluded_dialogues"]


def report(found: Mapping[str, Any], folder: Path) -> str:
    """The lines that are printed when an evaluation ends."""
    broken, capable, num = found["errors"], found["capabilities"], found["n_dialogues"]
    lines = [f"{found['agent']['name']}  on {found['profiles'] or found['setting']['bank']}, {num} dialogues scored"]
    lines += _score_lines(found) if num else ["score       none: no dialogue could be scored"]
    if broken["excluded_dialogues"]:
        lines.append(f"excluded    {broken['excluded_dialogues']} of {broken['planned']} dialogues broke, and count in no score:")
        lines += [f"            {count} x {reason}" for reason, count in broken["reasons"].items()]
    if broken["not_played"]:
        lines.append(f"missing     {broken['not_played']} of {broken['planned']} dialogues were not played; the same command plays them")
    if broken["cut_short"]:
        what = "dialogues ran out of context (--max-context) and are scored as they were"
        lines.append(f"cut short   {broken['cut_short']} of {broken['planned']} {what}")
        cut = CutShort(
            share=broken["cut_short"] / max(broken["planned"] - broken["not_played"] - broken["excluded_dialogues"], 1),
            by_user=broken["cut_short_by_user"],
            replies=broken["cut_short_replies"],
        )
        if cut.is_much:
            context, reply = (found["agent"].get(name) for name in ("max_context", "max_new_tokens"))
            why = cut.words(context=f"--max-context={context}", reply=f"--max-tokens={reply}")
            lines.append(f"WARNING     {cut.share:.0%} of the dialogues were {why}")
    if capable.get("num_errors"):
        not_sent = capable["num_not_sent"]
        more = f"; {not_sent} were not sent after {PATIENCE} such in a row, the same command sends them" if not_sent else ""
        lines.append(f"judge: {capable['num_errors']} of {num} dialogues got no grades: {capable['complaint']}{more}")
    return "\n".join([*lines, f"results     {folder / AGENT_JSON}", f"transcripts make transcripts RUN={folder}"])


def _score_lines(found: Mapping[str, Any]) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "–" if value is None or math.isnan(value) else format(value, form)

    def percent(estimate: Mapping[str, float | None]) -> str:
        value, low, high = (number(estimate[name], ".0%") for name in ("value", "low", "high"))
        return value if low == "–" else f"{value} [{low}, {high}]"

    intervals, cells = found["intervals"], found["strictness"].items()
    social, best, capable = found["social_cognition"], found["best_of_k"], found["capabilities"]
    lines = [
        f"score       {with_interval(found)}   worst cell {found['worst_cell']:.1f}   worst fifth {found['cvar20']:.1f}",
        f"success     {percent(intervals['success_rate'])}   failure {percent(intervals['failure_rate'])}",
        "strictness  " + "   ".join(f"{name} {cell['value']:.0f}" for name, cell in cells),
        "  success   " + "   ".join(f"{name} {cell['success_rate']['value']:.0%}" for name, cell in cells),
        "  failure   " + "   ".join(f"{name} {cell['failure_rate']['value']:.0%}" for name, cell in cells),
    ]
    if capable["by"]:
        shares = {name.replace("_", " "): cell["value"] for name, cell in capable.items() if isinstance(cell, dict)}
        shown = "   ".join(f"{name} {number(value, '.2f')}" for name, value in shares.items())
        lines.append(f"capable     {shown}   (by {capable['by']})")
    to_solution, to_creative = (number(social[axis]["value"], "+.2f") for axis in ("empathy_to_solution", "structured_to_creative"))
    lines.append(f"plane       empathy to solution {to_solution}   structured to creative {to_creative}")
    return [*lines, f"best of {best['k']}   {best['best']['value']:.1f}, mean {best['mean']['value']:.1f}"] if best else lines
