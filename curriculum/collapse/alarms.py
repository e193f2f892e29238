"""Alarms of collapse: the table of all conditions, with the message of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum

from curriculum.collapse.history import PANEL, IndicatorHistory
from curriculum.collapse.indicators import largest_fall

CLEARLY_MORE = 0.2
"""By how much a share must have grown since the start to count, besides being high."""
MUCH_CUT_OFF = 0.1
"""Share of dialogues cut off that counts for any start."""
RETRIEVABLE = 0.25
"""Retrieval accuracy at the start from which there is something to lose; by chance it is 1 in 16."""
DEPENDENT = 0.02
"""Nats of information between strategy and user from which an agent counts as adapted at the start."""


class Evidence(StrEnum):
    """Families of evidence; two of them make a collapse."""

    SIGNAL = "signal"
    """Rewards within groups are equal: there is nothing to learn from."""
    POLICY = "policy"
    """The policy has narrowed, or its updates are off."""
    BEHAVIOUR = "behaviour"
    """It says and does the same to all users."""
    OUTCOME = "outcome"
    """It has unlearned skills that the fixed panel asks for."""


Rule = Callable[[IndicatorHistory], str | None]
"""Reads indicators; returns its message in plain words while its condition holds, "" while it does not, and None
while that is unknown."""


def _share_below(indicator: str, setting: str, message: str) -> Rule:
    """Rings below a share of the start; the message may use {now}, {start} and {share}."""

    def rule(seen: IndicatorHistory) -> str | None:
        share = seen.share_of_start(indicator)
        if math.isnan(share):
            return None
        rings = share < getattr(seen.config, setting)
        return message.format(now=seen.now[indicator], start=seen.start[indicator], share=share) if rings else ""

    return rule


def _share_above(indicator: str, setting: str, message: str) -> Rule:
    """Rings above a multiple of the start, an infinite value before there is one; the message may use {now} and {share}."""

    def rule(seen: IndicatorHistory) -> str | None:
        now = seen.running(indicator)
        share = now if math.isinf(now) else seen.share_of_start(indicator)
        if math.isnan(share):
            return None
        return message.format(now=now, share=share) if share > getattr(seen.config, setting) else ""

    return rule


def _above(indicator: str, setting: str, message: str, *, grown: bool = False) -> Rule:
    """Rings above a threshold, an infinite value also before there is a start; the message may use {now} and {start}.

    Args:
        grown: only if it also lies `CLEARLY_MORE` above the start.
    """

    def rule(seen: IndicatorHistory) -> str | None:
        now, start = seen.running(indicator), seen.start.get(indicator, math.nan)
        if math.isnan(now):
            return None
        limit = getattr(seen.config, setting)
        return message.format(now=now, start=start) if now > (max(limit, start + CLEARLY_MORE) if grown else limit) else ""

    return rule


def _entropy_exhausting(seen: IndicatorHistory) -> str | None:
    left, share = seen.updates_to_exhaustion(), seen.share_of_start("entropy")
    if math.isnan(left) or math.isnan(share):
        return None
    message = f"Entropy is at {share:.0%} of its start and at its present rate will be spent in {left:.0f} updates."
    return message if share < 0.5 and left < seen.config.exhaustion_updates else ""


def _weights_lost(seen: IndicatorHistory) -> str | None:
    running = {name: seen.running(name) for name in ("mismatch_k1", "mismatch_chi2", "effective_share")}
    now = {name: value for name, value in running.items() if not math.isnan(value)}
    if not now:
        return None
    bias, chi2, effective = now.get("mismatch_k1", 0.0), now.get("mismatch_chi2", 0.0), now.get("effective_share", 1.0)
    config = seen.config
    if not (abs(bias) > config.mismatch_high or chi2 > config.chi_square_high or effective < config.effective_low):
        return ""
    named = {"mismatch_k1": f"k1 {bias:.2g} nats", "mismatch_chi2": f"chi2 {chi2:.2g}", "effective_share": f"{effective:.0%} effective"}
    return f"Importance weights between engine and trainer are far from one ({', '.join(named[name] for name in now)})."


def _gradient_spike(seen: IndicatorHistory) -> str | None:
    score = seen.gradient_spike()
    if math.isnan(score):
        return None
    num = seen.num_infinite.get("gradient_norm", 0)
    size = f"is infinite ({num} in a row)" if num else f"lies {score:.1f} robust deviations above the usual"
    return f"The gradient's norm {size}." if score > seen.config.spike_high else ""


def _step_too_large(seen: IndicatorHistory) -> str | None:
    if "update_kl" not in seen.latest:
        return None
    moved = math.inf if seen.num_infinite.get("update_kl") else seen.latest["update_kl"]
    usual = seen.now.get("update_kl", moved)
    message = f"This step of training moves the policy {moved:.2g} nats a token, {usual:.2g} in the running mean: the step is too large."
    return message if max(moved, usual) > seen.config.update_kl_high else ""


def _spread_cliff(seen: IndicatorHistory) -> str | None:
    fall = seen.spread_fall()
    if math.isnan(fall):
        return None
    message = f"Reward's spread within groups is {seen.now['reward_spread']:.3g}, {fall:.0%} less than shortly before."
    return message if fall > seen.config.spread_fall else ""


def _few_groups(seen: IndicatorHistory) -> str | None:
    if not seen.ready("groups_effective"):
        return None
    now = seen.now["groups_effective"]
    return f"A step rests on {now:.0%} of its groups: the others hardly differ within." if now < seen.config.groups_low else ""


def _truncated(seen: IndicatorHistory) -> str | None:
    if "truncated" not in seen.now:
        return None
    now, start = seen.now["truncated"], seen.start["truncated"]
    message = f"{now:.0%} of the dialogues are cut off, as no further reply fits their context ({start:.0%} at the start)."
    if now >= MUCH_CUT_OFF:  # also where it was so from the first
        return message
    if not seen.ready("truncated"):
        return None
    return message if now > max(seen.config.truncated_high, 2.0 * start) else ""


def _length_drift(seen: IndicatorHistory) -> str | None:
    ratio, limit = seen.share_of_start("reply_length"), seen.config.length_ratio
    if math.isnan(ratio):
        return None
    message = f"Replies have {seen.now['reply_length']:.0f} tokens, {ratio:.2g} times as many as at the start."
    return message if ratio > limit or ratio < 1.0 / limit else ""


def _template(seen: IndicatorHistory) -> str | None:
    names = [name for name in ("strategy_by_intention", "strategy_by_persona") if seen.ready(name) and seen.start[name] > DEPENDENT]
    if not names:
        return None
    shares = {name.removeprefix("strategy_by_"): seen.now[name] / seen.start[name] for name in names}
    lost = {trait: share for trait, share in shares.items() if share < seen.config.dependence_low}
    named = ", ".join(f"on the user's {trait} to {max(share, 0.0):.0%}" for trait, share in lost.items())
    return f"The dependence of strategy fell {named} of its start: all users get the same answers." if lost else ""


def _interchangeable(seen: IndicatorHistory) -> str | None:
    share = seen.share_of_start("retrieval")
    if math.isnan(share) or seen.start["retrieval"] < RETRIEVABLE:
        return None
    now, start = seen.now["retrieval"], seen.start["retrieval"]
    message = f"Only {now:.0%} of the first replies fit their own user best ({start:.0%} at the start): others would get the same answer."
    return message if share < seen.config.retrieval_low else ""


def _probe_regression(seen: IndicatorHistory) -> str | None:
    cells = [name for name in PANEL if seen.ready(name)]
    if not cells:
        return None
    falls = {name: largest_fall([seen.best[name]], [seen.now[name]]) for name in cells}
    limits = {name: seen.config.probe_fall if name == "probe_reward" else seen.config.cell_fall for name in cells}
    worst = max(cells, key=lambda name: falls[name] / limits[name])
    message = f"On the {_cell(worst)} probe panel reward is {seen.now[worst]:.2f}, {falls[worst]:.2f} below its best."
    return message if falls[worst] > limits[worst] else ""


def _unlearned(seen: IndicatorHistory) -> str | None:
    if not seen.low_evaluations:
        return None
    longest = max(seen.low_evaluations, key=lambda name: seen.low_evaluations[name])
    num, now, best = seen.low_evaluations[longest], seen.latest[longest], seen.best_evaluation[longest]
    message = f"On the {_cell(longest)} probe panel {num} evaluations in a row were low, the last one {now:.2f}, the best one {best:.2f}."
    return message if num >= seen.config.unlearned_looks else ""


def _cell(name: str) -> str:
    return "whole" if name == "probe_reward" else name.removeprefix("probe_")


def _reward_gamed(seen: IndicatorHistory) -> str | None:
    if not (seen.ready("reward") and seen.ready("emotion")):
        return None
    config, paid, felt = seen.config, seen.now["reward"], seen.now["emotion"]
    more_paid, more_felt = paid - seen.start["reward"], felt - seen.start["emotion"]
    has_gained = more_paid > -config.gamed_gain and more_paid - more_felt > config.gamed_gain
    is_gamed = has_gained and more_felt < config.gamed_share * more_paid
    message = f"Reward changed by {more_paid:+.2f} of 1 since the start, users' final emotion by {100 * more_felt:+.0f} of 100."
    # A reward below the emotion asks for more than emotion, such as a form that is learned: nothing is paid for nothing.
    return message if is_gamed and paid > felt else ""


def _disobeyed(seen: IndicatorHistory) -> str | None:
    if not seen.ready("obedience"):
        return None
    now = seen.now["obedience"]
    return f"Stricter users of the panel are no harder (rank correlation of strictness and reward {now:+.2f})." if now >= 0.0 else ""


SIGNAL, POLICY, BEHAVIOUR, OUTCOME = Evidence
ALARMS: Mapping[str, tuple[Evidence | None, Rule]] = {
    "entropy_spent": (POLICY, _share_below("entropy", "entropy_low", "Entropy is {now:.3g} nats, {share:.0%} of its start.")),
    "entropy_exhausting": (POLICY, _entropy_exhausting),
    "entropy_exploding": (None, _share_above("entropy", "entropy_high", "Entropy is {now:.3g} nats, {share:.2g} times its start.")),
    "forks_decided": (
        POLICY,
        _share_below("forking_entropy", "entropy_low", "Where the policy decides, entropy is {now:.3g} nats, {share:.0%} of its start."),
    ),
    "narrowing": (
        POLICY,
        _above("covariance", "covariance_high", "Logprob and advantage vary together by {now:.3g} nats: likely tokens become likelier."),
    ),
    "mismatch": (POLICY, _above("mismatch", "mismatch_high", "Trainer and engine differ by {now:.3g} nats on the sampled tokens.")),
    "weights_lost": (POLICY, _weights_lost),
    "far_from_reference": (POLICY, _above("kl", "kl_high", "The policy is {now:.3g} nats a token away from its reference.")),
    "gradient_spike": (POLICY, _gradient_spike),
    "step_too_large": (POLICY, _step_too_large),
    "density_lost": (SIGNAL, _share_below("reward_density", "density_low", "Reward density is {now:.3g}, {share:.0%} of its start.")),
    "spread_cliff": (SIGNAL, _spread_cliff),
    "all_fail_alike": (
        SIGNAL,
        _above("all_low_share", "alike_share", "{now:.0%} of the groups failed as a whole: the users are too strict to learn from."),
    ),
    "all_succeed_alike": (
        SIGNAL,
        _above("all_high_share", "alike_share", "{now:.0%} of the groups succeeded as a whole: the users are too lenient to learn from."),
    ),
    "alike_beyond_chance": (
        SIGNAL,
        _above(
            "alike_excess",
            "alike_excess",
            "{now:.0%} more groups than by chance end equal ({start:.0%} at the start).",
            grown=True,
        ),
    ),
    "few_groups_carry": (SIGNAL, _few_groups),
    "best_no_better": (
        SIGNAL,
        _share_below("best_of_k", "density_low", "The best of four siblings gains {now:.3g} over their mean, {share:.0%} of the start."),
    ),
    "repetition": (
        BEHAVIOUR,
        _above("repetition", "repetition_high", "{now:.0%} of 4-grams repeat the agent's own turns ({start:.0%} at first).", grown=True),
    ),
    "own_overlap": (
        BEHAVIOUR,
        _above("own_overlap", "overlap_high", "A reply shares {now:.0%} with earlier ones ({start:.0%} at the start).", grown=True),
    ),
    "siblings_alike": (
        BEHAVIOUR,
        _above("bleu_siblings", "siblings_bleu_high", "Siblings say the same: self-BLEU {now:.2f} ({start:.2f} at the start).", grown=True),
    ),
    "prompts_alike": (
        BEHAVIOUR,
        _above(
            "bleu_prompts", "prompts_bleu_high", "Users get the same answer: self-BLEU {now:.2f} ({start:.2f} at the start).", grown=True
        ),
    ),
    "diversity_lost": (
        BEHAVIOUR,
        _share_below("distinct_2", "distinct_low", "Only {now:.0%} of word pairs are distinct, {share:.0%} of the start."),
    ),
    "compressible": (
        BEHAVIOUR,
        _share_above("compression", "compression_ratio", "Replies pack to 1 / {now:.1f}, {share:.2g} times as small as at the start."),
    ),
    "length_drift": (BEHAVIOUR, _length_drift),
    "truncated": (BEHAVIOUR, _truncated),
    "strategies_narrowed": (
        BEHAVIOUR,
        _share_below("strategy_entropy", "strategies_low", "Entropy of the strategies is {now:.2f} nats, {share:.0%} of its start."),
    ),
    "template": (BEHAVIOUR, _template),
    "interchangeable": (BEHAVIOUR, _interchangeable),
    "probe_regression": (OUTCOME, _probe_regression),
    "unlearned": (OUTCOME, _unlearned),
    "stuck_at_bounds": (None, _above("bounds_share", "bounds_share", "{now:.0%} of the tasks are as easy or as strict as can be.")),
    "strictness_disobeyed": (None, _disobeyed),
    "reward_gamed": (None, _reward_gamed),
}
"""Alarms by name: the family of evidence they belong to and their rule. None counts for nothing in the composite: a fault of the difficulty
or of the reward is no collapse, and a policy that begins narrow may vary more as it learns (toy students do)."""

AT_ONCE = frozenset({"entropy_exploding", "step_too_large", "unlearned"})
"""Alarms that ring without `patience`: a policy can be gone after a single update, before there is a start to compare it with; evaluations
of the panel are several updates apart, of which `unlearned` waits for more than one; and entropy that explodes doubles within few."""
