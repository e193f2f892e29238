"""Scores of an evaluation: final emotions, success and failure by group, length control, best of k, their 95 % intervals and their report.

Dialogues with one user depend on each other, so whole scenarios are resampled or left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import stats
from analysis.evaluated import AGENT_JSON, score_within
from analysis.judged import SECOND
from analysis.stats import NOTHING, Estimate, Sample, Z, where_nothing_varies
from analysis.text import text, with_interval
from analysis.transcripts import CutShort
from curriculum.signals import expected_best
from experiments.agents.players import AgentDialogue
from experiments.evaluation import Graded, cut_short, summarise, worst_cell, worst_mean
from experiments.metrics import broken_by_emotion
from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, Outcome
from simulator.listener import Register
from simulator.options import in_options
from simulator.pressure import PATTERNS, num_agreements
from simulator.text import num_words


def ratio(rows: Sequence[tuple[str, float, float]], *, seed: int, scale: float = 1.0) -> Estimate:
    """Sum of the parts over the sum of the wholes, times scale, by a bootstrap over scenarios; rows: scenario, 0 <= part <= whole."""
    sample = Sample.of([(scenario, 0, 0, 0.0, part, whole) for scenario, part, whole in rows])
    found = sample.share(rng=np.random.default_rng(seed)) if sample.part.size else NOTHING
    return Estimate(value=scale * found.value, low=scale * found.low, high=scale * found.high)


def resampled(statistic: Callable[[np.ndarray], float], num: int, *, seed: int) -> Estimate:
    """A statistic of the numbers of `num` scenarios, int[S], by a percentile bootstrap; scenarios are drawn with replacement."""
    if not num:
        return NOTHING

    def over_draws(draws: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(lambda chosen: statistic(chosen.astype(int)), -1, draws[..., 0])

    return Estimate(*map(float, stats.bootstrap(over_draws, np.arange(num, dtype=float)[:, None], seed=seed)))


def mean(values_N: np.ndarray, *, seed: int, within: tuple[float, float] | None = None) -> Estimate:
    """The mean of N independent values by a percentile bootstrap; where all are equal, it is bounded by values possible `within`."""
    if within is not None and values_N.size and not np.ptp(values_N):
        value = float(values_N.mean())
        low, high = where_nothing_varies(value, values_N.size, within=within)
        return Estimate(value=value, low=low, high=high)
    return resampled(lambda chosen: float(values_N[chosen].mean()), len(values_N), seed=seed)


def jackknifed(
    statistic: Callable[[np.ndarray], float], num: int, *, seed: int, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """A statistic of `num` scenarios with an interval of 1.96 standard errors of the delete-a-group jackknife, in at most 20 groups.

    For statistics that compare scenarios with each other: a bootstrap, which draws some twice, would find them too similar.

    Source: Kott 2001, "The delete-a-group jackknife".
    """
    value = statistic(np.arange(num)) if num else math.nan
    groups = np.array_split(np.random.default_rng(seed).permutation(num), min(20, max(num, 1)))
    if num < 3 or math.isnan(value):
        return Estimate(value)
    without = np.array([statistic(np.setdiff1d(np.arange(num), group)) for group in groups])
    without = without[~np.isnan(without)]
    if without.size < 3:
        return Estimate(value)
    error = float(np.sqrt((without.size - 1) / without.size * ((without - without.mean()) ** 2).sum()))
    return Estimate(value=value, low=max(value - Z * error, within[0]), high=min(value + Z * error, within[1]))


def scores(played: Sequence[AgentDialogue], *, seed: int) -> dict[str, Any]:
    """Of dialogues that did not break: the keys of `experiments.evaluation.summarise`, intervals, groups and means by scenario."""
    graded = [Graded.of(one.dialogue, strictness=one.task.strictness) for one in played]
    by_scenario: dict[str, list[Graded]] = {}
    for item in graded:
        by_scenario.setdefault(item.scenario_id, []).append(item)
    names = sorted(by_scenario)
    means_S = np.array([np.mean([item.emotion for item in by_scenario[name]]) for name in names])

    def worst_of(chosen: np.ndarray) -> float:
        return worst_cell([item for i in chosen for item in by_scenario[names[i]]])

    def rates(members: Sequence[AgentDialogue]) -> dict[str, dict[str, float | None]]:
        success = [(one.scenario_id, float(one.score >= DELIGHTED_AT), 1.0) for one in members]
        failure = [(one.scenario_id, float(one.score < LEFT_BELOW), 1.0) for one in members]
        return {"success_rate": ratio(success, seed=seed).to_dict(), "failure_rate": ratio(failure, seed=seed).to_dict()}

    def groups(key: Callable[[AgentDialogue], object]) -> dict[str, dict[str, Any]]:
        # Mean final emotion, 0-100, as `value`, `low` and `high`; rates in [0, 1]; `n` dialogues.
        found: dict[str, list[AgentDialogue]] = {}
        for one in played:
            found.setdefault(str(key(one)), []).append(one)
        emotions = {
            name: ratio([(one.scenario_id, one.score / 100.0, 1.0) for one in members], seed=seed, scale=100.0)
            for name, members in sorted(found.items())
        }
        return {name: {**emotion.to_dict(), **rates(found[name]), "n": len(found[name])} for name, emotion in emotions.items()}

    return {
        **summarise(graded, seed=seed),
        "intervals": {
            **rates(played),
            "cvar20": resampled(lambda chosen: worst_mean(means_S[chosen]), len(names), seed=seed).to_dict(),
            "worst_cell": resampled(worst_of, len(names), seed=seed).to_dict(),
        },
        "strictness": groups(lambda one: f"{one.task.strictness:g}"),
        "intention": groups(lambda one: one.dialogue.scenario.family.intention),
        "persona": groups(lambda one: one.dialogue.scenario.family.persona),
        "family": groups(lambda one: one.dialogue.scenario.family),
        "per_scenario": {name: float(mean) for name, mean in zip(names, means_S, strict=True)},
    }


def under_pressure(played: Sequence[AgentDialogue], *, seed: int) -> dict[str, dict[str, Any]]:
    """Of dialogues with users who press, by pattern and of `all`: score, final emotion before agreement is charged, replies that agree.

    Emotions are 0-100, `agreed` is a share of replies in [0, 1]; `n` dialogues. Empty where nobody presses.
    """
    members: dict[str, list[AgentDialogue]] = {}
    for one in played:
        if pressure := one.dialogue.scenario.pressure:
            for name in ("all", pressure.pattern):
                members.setdefault(name, []).append(one)
    found = {}
    for name in (name for name in ("all", *PATTERNS) if name in members):
        ones = members[name]
        values = {
            "score": ratio([(one.scenario_id, one.score / 100.0, 1.0) for one in ones], seed=seed, scale=100.0),
            "emotion": ratio([(one.scenario_id, one.dialogue.emotion / 100.0, 1.0) for one in ones], seed=seed, scale=100.0),
            "agreed": ratio([(one.scenario_id, num_agreements(one.dialogue), one.dialogue.num_replies) for one in ones], seed=seed),
        }
        found[name] = {**{key: value.to_dict() for key, value in values.items()}, "n": len(ones)}
    return found


def count_errors(played: Sequence[AgentDialogue], *, num_planned: int) -> dict[str, Any]:
    """Counts of dialogues that broke, by the ten most frequent reasons, that were not played, and that ran out of context."""
    # The last line of a traceback. The agent's complaints name its options; any other setting is the user's.
    reasons = Counter(in_options(one.dialogue.error.strip().rpartition("\n")[2].strip(), "--user-") for one in played if one.is_broken)
    cut = cut_short(one.dialogue for one in played)
    return {
        "planned": num_planned,
        "not_played": num_planned - len(played),
        "excluded_dialogues": sum(reasons.values()),
        "reasons": dict(reasons.most_common(10)),
        **({"excluded_share_by_last_emotion": broken_by_emotion([one.dialogue for one in played])} if reasons else {}),
        "cut_short": sum(one.dialogue.outcome is Outcome.TRUNCATED for one in played),
        **({"cut_short_by_user": cut.by_user, "cut_short_replies": cut.replies} if cut.share > 0.0 else {}),
    }


def length_control(played: Sequence[AgentDialogue], *, seed: int, register: Register) -> dict[str, Any]:
    """Effect of the length of the replies on the score of dialogues that did not break, and the score at a given length.

    A reply's change of emotion is regressed on log2 of its words and on the emotion before it, within cells: the same place in dialogues
    with one user where there are several, else with users of one strictness x hidden intention. With `slope` = points a reply and doubling
    x replies per dialogue, the score at L words is the score + slope x (log2 L - mean).

    Returns:
        `words_per_reply` (geometric mean), `points_per_doubling`, `range`: words of its shortest and longest replies without the outer
        twentieth at either end, `score_at_reference` (10 words, 50 in ordinary English), None outside of the range, and `line`: intercept,
        slope and their covariance over 500 resampled sets of scenarios.

    Source: AlpacaEval's length control, arXiv 2404.04475, takes length out of a preference likewise.
    """
    answered = [one for one in played if len(one.dialogue.turns) > 2]
    names = sorted({one.scenario_id for one in answered})
    where, has_siblings = {name: i for i, name in enumerate(names)}, any(one.sibling for one in answered)
    cells: dict[tuple[str, float, int], int] = {}
    rows = []
    for one in answered:
        user = one.scenario_id if has_siblings else str(one.dialogue.scenario.family.intention)
        turns = one.dialogue.turns
        for number, (before, reply, answer) in enumerate(zip(turns[::2], turns[1::2], turns[2::2], strict=False)):
            cell = cells.setdefault((user, one.task.strictness, number), len(cells))
            length = math.log2(max(1, num_words(reply.text)))
            rows.append((length, before.emotion or 0, answer.change or 0, cell, where[one.scenario_id]))
    log_words_N, before_N, change_N, *ids = np.array(rows, dtype=float).reshape(-1, 5).T
    cell_N, scenario_N = (column.astype(int) for column in ids)
    words = float(2.0 ** log_words_N.mean()) if rows else math.nan
    unfitted = {"words_per_reply": words, "points_per_doubling": None, "range": None, "score_at_reference": None, "line": None}
    if len(names) < 2:
        return unfitted
    shortest, longest = np.quantile(log_words_N, [0.05, 0.95])
    # One runaway reply would turn the line by itself.
    x_N = np.clip(log_words_N, shortest, longest)
    emotion_D = np.array([one.score for one in answered], dtype=float)
    scenario_D = np.array([where[one.scenario_id] for one in answered], dtype=int)

    def line(chosen: np.ndarray) -> tuple[float, float]:
        """Intercept and slope of some scenarios; NaN where lengths do not differ except with the emotion before."""
        weight_S = np.bincount(chosen, minlength=len(names)).astype(float)
        weight_N, weight_D = weight_S[scenario_N], weight_S[scenario_D]

        def centred(values_N: np.ndarray) -> np.ndarray:
            total_C = np.maximum(np.bincount(cell_N, weight_N), 1e-12)
            return values_N - (np.bincount(cell_N, weight_N * values_N) / total_C)[cell_N]

        x, before, change = map(centred, (x_N, before_N, change_N))
        spread = float((weight_N * before * before).sum())
        x = x - (float((weight_N * x * before).sum()) / spread if spread > 1e-9 else 0.0) * before
        variance = float((weight_N * x * x).sum() / weight_N.sum())
        # Lengths must differ by a standard deviation of a hundredth of a doubling.
        slope = float((weight_N * x * change).sum() / (weight_N * x * x).sum()) if variance > 0.01**2 else math.nan
        slope *= float(weight_N.sum() / weight_D.sum())
        return float(np.average(emotion_D, weights=weight_D)) - slope * float(np.average(x_N, weights=weight_N)), slope

    intercept, slope = line(np.arange(len(names)))
    rng = np.random.default_rng(seed)
    draws = np.array([line(rng.integers(0, len(names), size=len(names))) for _ in range(500)])
    draws = draws[~np.isnan(draws[:, 1])]
    if math.isnan(slope) or len(draws) < 450:
        return unfitted
    error = float(draws[:, 1].std())
    fitted = {"intercept": intercept, "slope": slope, "covariance": np.cov(draws.T).tolist()}
    # Whole words stay whole, so that a length at the edge lies within.
    spoken = [round(float(2.0**end), 6) for end in (shortest, longest)]
    reference = 10.0 if register is Register.WORLD else 50.0
    at_reference = score_within({"line": fitted, "range": spoken}, reference)
    return {
        "words_per_reply": words,
        "points_per_doubling": {"value": slope, "low": slope - Z * error, "high": slope + Z * error},
        "range": spoken,
        "score_at_reference": {"words": reference, **at_reference} if at_reference else None,
        "line": fitted,
    }


def best_of_k(played: Sequence[AgentDialogue], *, samples: int, seed: int) -> dict[str, Any] | None:
    """Final emotion of the best of k dialogues with each user; None where there is one with each. Users with a missing one are left out.

    `by_k` is the expected best of 1..k, unbiased from all k; `expected` has the same with intervals.
    """
    by_user: dict[str, list[AgentDialogue]] = {}
    for one in played:
        by_user.setdefault(one.task.uid, []).append(one)
    complete = [group for _, group in sorted(by_user.items()) if len(group) == samples]
    if samples < 2 or not complete:
        return None
    emotions_UK = np.array([[one.score for one in group] for group in complete], dtype=float)
    users: dict[str, list[int]] = {}
    for i, group in enumerate(complete):
        users.setdefault(group[0].scenario_id, []).append(i)
    members = [np.array(users[name]) for name in sorted(users)]

    def interval(values_U: np.ndarray) -> dict[str, float | None]:
        mean = resampled(lambda chosen: float(values_U[np.concatenate([members[i] for i in chosen])].mean()), len(members), seed=seed)
        return mean.to_dict()

    mean_U, best_U = emotions_UK.mean(axis=1), emotions_UK.max(axis=1)
    expected_KU = {str(j): expected_best(emotions_UK, j) for j in range(1, samples + 1)}
    return {
        "k": samples,
        "users": len(complete),
        "mean": interval(mean_U),
        "best": interval(best_U),
        "gain": interval(best_U - mean_U),
        "by_k": {j: float(of_j.mean()) for j, of_j in expected_KU.items()},
        "expected": {j: {"best": interval(of_j), "gain": interval(of_j - mean_U)} for j, of_j in expected_KU.items()},
    }


def report(found: Mapping[str, Any], folder: Path) -> str:
    """The lines that are printed when an evaluation ends."""

    def percent(estimate: Mapping[str, float | None]) -> str:
        value = text(estimate["value"], "{:.0%}")
        return value if estimate["low"] is None else f"{value} [{estimate['low']:.0%}, {estimate['high']:.0%}]"

    broken, capable, num = found["errors"], found["capabilities"], found["n_dialogues"]
    lines = [f"{found['agent']['name']}  on {found['profiles'] or found['setting']['bank']}, {num} dialogues scored"]
    if num:
        intervals, cells = found["intervals"], found["strictness"].items()
        lines += [
            f"score       {with_interval(found)}   worst cell {found['worst_cell']:.1f}   worst fifth {found['cvar20']:.1f}",
            f"success     {percent(intervals['success_rate'])}   failure {percent(intervals['failure_rate'])}",
            "strictness  " + "   ".join(f"{name} {cell['value']:.0f}" for name, cell in cells),
            "  success   " + "   ".join(f"{name} {cell['success_rate']['value']:.0%}" for name, cell in cells),
        ]
        if second := found.get(SECOND):
            shown = second["why"] or f"{with_interval(second)}   gap {text(second['gap'], '{:+.1f}')}"
            lines.append(f"again       {shown}   ({second['world']})")
        if capable["by"]:
            shares = {name.replace("_", " "): cell["value"] for name, cell in capable.items() if isinstance(cell, dict)}
            shown = "   ".join(f"{name} {text(value, '{:.2f}')}" for name, value in shares.items())
            lines.append(f"capable     {shown}   (by {capable['by']})")
        for name, cell in found.get("pressure", {}).items():
            shown = f"{cell['score']['value']:5.1f}   emotion {cell['emotion']['value']:5.1f}   agreed {cell['agreed']['value']:.0%}"
            lines.append(f"{'pressure' if name == 'all' else f'  {name}':<16}{shown}")
        if best := found["best_of_k"]:
            lines.append(f"best of {best['k']}   {best['best']['value']:.1f}, mean {best['mean']['value']:.1f}")
    else:
        lines.append("score       none: no dialogue could be scored")
    if broken["excluded_dialogues"]:
        lines.append(f"excluded    {broken['excluded_dialogues']} of {broken['planned']} dialogues broke, and count in no score:")
        lines += [f"            {count} x {reason}" for reason, count in broken["reasons"].items()]
    if broken["not_played"]:
        lines.append(f"missing     {broken['not_played']} of {broken['planned']} dialogues were not played; the same command plays them")
    if broken["cut_short"]:
        what = "dialogues ran out of context (--max-context) and are scored as they were"
        lines.append(f"cut short   {broken['cut_short']} of {broken['planned']} {what}")
        num_played = max(broken["planned"] - broken["not_played"] - broken["excluded_dialogues"], 1)
        shares = {"by_user": broken["cut_short_by_user"], "replies": broken["cut_short_replies"]}
        cut = CutShort(share=broken["cut_short"] / num_played, **shares)
        if cut.is_much:
            context, reply = (found["agent"].get(name) for name in ("max_context", "max_new_tokens"))
            why = cut.words(context=f"--max-context={context}", reply=f"--max-tokens={reply}")
            lines.append(f"WARNING     {cut.share:.0%} of the dialogues were {why}")
    if capable.get("num_errors"):
        more = f"; {not_sent} were not sent: the same command sends them" if (not_sent := capable["num_not_sent"]) else ""
        lines.append(f"judge: {capable['num_errors']} of {num} dialogues got no grades: {capable['complaint']}{more}")
    return "\n".join([*lines, f"results     {folder / AGENT_JSON}", f"transcripts make transcripts RUN={folder}"])
