"""When an indicator of collapse becomes an alarm.

What is watched for collapse and which conditions ring: every alarm is one line of the table at the end.

A rule reads the smoothed indicators of a monitor and returns its message in plain words while its condition holds, "" while it does not,
and None while it cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from pydantic.dataclasses import dataclass

from curriculum.checks import require_between
from curriculum.collapse.indicators import largest_fall
from simulator.settings import SETTINGS

SHARES = (
    "smoothing",
    "entropy_low",
    "density_low",
    "alike_share",
    "alike_excess",
    "groups_low",
    "spread_fall",
    "effective_low",
    "repetition_high",
    "overlap_high",
    "siblings_bleu_high",
    "prompts_bleu_high",
    "distinct_low",
    "truncated_high",
    "strategies_low",
    "dependence_low",
    "retrieval_low",
    "probe_fall",
    "cell_fall",
    "unlearned_below",
    "bounds_share",
    "gamed_gain",
    "gamed_share",
)
"""Settings in (0, 1]."""


@dataclass(config=SETTINGS)
class CollapseConfig:
    """When an indicator becomes an alarm. "Start" is the mean of an indicator's first `start_updates` values."""

    start_updates: int = 5
    """[1, 100]: values that make up the start."""
    patience: int = 5
    """[1, 100]: updates for which a condition must hold before its alarm fires, and be gone before it can fire again."""
    smoothing: float = 0.3
    """(0, 1]: weight of the newest value in the running averages on which alarms rest."""
    entropy_window: int = 20
    """[3, 200]: updates over which the slope of entropy, the cliff in reward's spread and the usual norm of the gradient are measured."""
    entropy_low: float = 0.1
    """(0, 1]: share of its start below which entropy counts as spent, that of forking tokens too. Conservative: arXiv 2505.22617 reports
    that ordinary runs lose about 73 % early on while reward rises."""
    entropy_high: float = 2.0
    """[1, 100]: times its start above which entropy counts as exploding; rings at once. Our proposal: of the 190 runs that were
    kept when it was set none gets there, the highest two reach 1.75 and 1.64 and the others stay below 1.4."""
    exhaustion_updates: float = 10.0
    """(0, 1000]: alarm when entropy, already below half its start, would at its present rate of decay be spent within so many updates.
    Our proposal."""
    covariance_high: float = 0.2
    """(0, 100], nats: covariance of logprob and normalised advantage from which an update narrows the policy fast. Our proposal."""
    mismatch_high: float = 0.1
    """(0, 100], nats: KL between engine and trainer, k3 or the size of k1 (verl's rollout-correction notes)."""
    chi_square_high: float = 1.0
    """(0, 100]: chi2 between engine and trainer (verl's notes)."""
    effective_low: float = 0.3
    """(0, 1]: share of the tokens that still count under importance weights (verl's notes)."""
    kl_high: float = 1.0
    """(0, 100], nats per token: KL from the reference. Our proposal."""
    spike_high: float = 4.0
    """(0, 100]: robust standard deviations by which the gradient's norm stands out. Our proposal, after RAGEN (arXiv 2504.20073)."""
    update_kl_high: float = 0.2
    """(0, 100], nats per token: KL from the policy that sampled to the one being trained, mean over the minibatches; rings at once, for
    a single step or smoothed. Our proposal: three times the smoothed most that healthy runs of the main job show (.06)."""
    density_low: float = 0.25
    """(0, 1]: share of its start below which reward density, or what the best of four siblings gains, counts as lost. Our proposal, after
    the cliff in reward variance that RAGEN (arXiv 2504.20073) describes."""
    spread_fall: float = 0.5
    """(0, 1]: share of the within-group standard deviation that must be gone since the window's older half (RAGEN)."""
    alike_share: float = 0.7
    """(0, 1]: share of groups that all failed, or all succeeded, alike. Our proposal; DAPO (arXiv 2503.14476) discards such groups."""
    alike_excess: float = 0.4
    """(0, 1]: share of groups alike beyond what chance explains counts from here, and only if also .2 above its start: families that differ
    give up to .5 in runs that go well. Our proposal."""
    groups_low: float = 0.15
    """(0, 1]: effective share of the groups that carry a step. Our proposal."""
    repetition_high: float = 0.5
    """(0, 1]: repetition counts from here, and only if also .2 above its start. Our proposal: the embedded policy reaches .45 while it does
    ever better."""
    overlap_high: float = 0.75
    """(0, 1]: ROUGE-L to the agent's own earlier replies counts from here, and only if also .2 above its start. Our proposal, likewise
    above the .62 of runs that go well."""
    siblings_bleu_high: float = 0.97
    """(0, 1]: self-BLEU of siblings' first replies counts from here, and only if also .2 above its start. Our proposal, likewise (.95)."""
    prompts_bleu_high: float = 0.85
    """(0, 1]: the same across prompts. Our proposal, likewise (.78)."""
    distinct_low: float = 0.3
    """(0, 1]: share of its start below which distinct-2 counts as lost diversity. Our proposal, likewise (.37)."""
    compression_ratio: float = 2.5
    """[1, 100]: replies so many times as compressible as at the start. Our proposal, likewise (1.8)."""
    length_ratio: float = 3.0
    """[1, 100]: replies so many times longer or shorter than at the start. Our proposal; twice the length is common in healthy runs."""
    truncated_high: float = 0.05
    """(0, 1]: share of dialogues cut off counts from here, and only if also twice its start; from .1 on always. Our proposal."""
    strategies_low: float = 0.5
    """(0, 1]: share of its start below which the entropy of strategies counts as narrowed. Our proposal."""
    dependence_low: float = 0.25
    """(0, 1]: share of its start below which the choice of strategy no longer depends on the user. Our proposal."""
    retrieval_low: float = 0.5
    """(0, 1]: share of its start below which retrieval accuracy says that replies no longer depend on the user. Our proposal."""
    probe_fall: float = 0.1
    """(0, 1]: fall of the probe panel's mean reward below its best that counts. Our proposal; twice the survey's .05, which is noise on a
    panel of 25 dialogues."""
    cell_fall: float = 0.2
    """(0, 1]: the same for a third of the panel. Our proposal."""
    unlearned_below: float = 0.6
    """(0, 1]: share of the best look at the panel, or at a third of it, below which a look is low, and only if .05 below it, too."""
    unlearned_looks: int = 2
    """[1, 100]: low looks in a row that say that something was unlearned. Our proposal."""
    bounds_share: float = 0.5
    """(0, 1]: share of tasks issued at the easiest or the strictest. Our proposal."""
    gamed_gain: float = 0.1
    """(0, 1]: by how much more than users' final emotion / 100 reward must have grown since the start, without falling by as much
    itself. Our proposal."""
    gamed_share: float = 0.33
    """(0, 1]: and the share of reward's growth that emotion's must stay below. Our proposal."""

    def __post_init__(self) -> None:
        require_between("collapse.start_updates", self.start_updates, 1, 100)
        require_between("collapse.patience", self.patience, 1, 100)
        require_between("collapse.unlearned_looks", self.unlearned_looks, 1, 100)
        require_between("collapse.entropy_window", self.entropy_window, 3, 200)
        require_between("collapse.exhaustion_updates", self.exhaustion_updates, 1e-6, 1000.0)
        for name in ("covariance_high", "mismatch_high", "chi_square_high", "kl_high", "spike_high", "update_kl_high"):
            require_between(f"collapse.{name}", getattr(self, name), 1e-9, 100.0)
        for name in ("entropy_high", "length_ratio", "compression_ratio"):
            require_between(f"collapse.{name}", getattr(self, name), 1.0, 100.0)
        for name in SHARES:
            require_between(f"collapse.{name}", getattr(self, name), 1e-6, 1.0)


INDICATOR_METRICS = {
    "entropy": "actor/entropy",
    "forking_entropy": "actor/entropy_forking",
    "covariance": "actor/logprob_advantage_cov",
    "mismatch": "training/mismatch_kl",
    "mismatch_k1": "training/mismatch_k1",
    "mismatch_chi2": "training/mismatch_chi2",
    "effective_share": "training/effective_share",
    "kl": "actor/kl_loss",
    "gradient_norm": "actor/grad_norm",
    "update_kl": "actor/approx_kl",
    "reward": "reward/mean",
    "emotion": "reward/emotion",
    "reward_density": "curriculum/reward_density",
    "all_low_share": "curriculum/all_low_share",
    "all_high_share": "curriculum/all_high_share",
    "alike_excess": "curriculum/alike_excess",
    "groups_effective": "curriculum/groups_effective_share",
    "reward_spread": "curriculum/within_group_std",
    "best_of_k": "curriculum/best_of_k_gain",
    "bounds_share": "curriculum/at_bounds_share",
    "repetition": "dialogue/repetition",
    "own_overlap": "dialogue/own_overlap",
    "bleu_siblings": "dialogue/self_bleu_siblings",
    "bleu_prompts": "dialogue/self_bleu_prompts",
    "distinct_2": "dialogue/distinct_2",
    "compression": "dialogue/compression_ratio",
    "reply_length": "response_length/mean",
    "truncated": "dialogue/truncated",
    "strategy_entropy": "dialogue/strategy_entropy",
    "strategy_by_intention": "dialogue/strategy_information/intention",
    "strategy_by_persona": "dialogue/strategy_information/persona",
    "probe_reward": "probe/reward",
    "probe_entropy": "probe/entropy_sampled",
    "probe_easy": "probe/reward_easy",
    "probe_middle": "probe/reward_middle",
    "probe_hard": "probe/reward_hard",
    "obedience": "probe/strictness_correlation",
    "retrieval": "probe/retrieval_accuracy",
}
"""What is watched, by name, and the metric of a run (docs/metrics.md) that it is; a step may leave some out or give NaN."""

FORMER = {"actor/approx_kl": "actor/ppo_kl"}
"""What a metric was called in runs recorded before."""
SHARE_INDICATORS = frozenset(
    "effective_share all_low_share all_high_share groups_effective bounds_share repetition own_overlap bleu_siblings bleu_prompts"
    " distinct_2 truncated retrieval reward emotion probe_reward probe_easy probe_middle probe_hard".split()
)
"""Indicators in [0, 1]: shares of something, and rewards."""
PANEL = ("probe_reward", "probe_easy", "probe_middle", "probe_hard")
"""The fixed panel and its cells, of which the monitor keeps the best."""
UNLEARNED_FALL = 0.05
"""Mean reward by which a look at a cell of the panel must lie below its best to count as low, besides being a small share of it."""
CLEARLY_MORE = 0.2
"""By how much a share must have grown since the start to count, besides being high."""
MUCH_CUT_OFF = 0.1
"""Share of dialogues cut off that counts whatever it was at the start."""
RETRIEVABLE = 0.25
"""Share of replies that must be told by their context at the start, or there is nothing to lose; by chance it is 1 in 16."""
DEPENDENT = 0.02
"""Nats of information between strategy and user from which an agent can be said to have adapted at the start."""


class Evidence(StrEnum):
    """Families of evidence; two of them make a collapse."""

    SIGNAL = "signal"
    """Groups no longer differ: there is nothing to learn from."""
    POLICY = "policy"
    """The policy has narrowed, or its updates are off."""
    BEHAVIOUR = "behaviour"
    """It says and does the same to everybody."""
    OUTCOME = "outcome"
    """It has unlearned what the fixed panel asks."""


class Watched(Protocol):
    """What a rule may read of the monitor; `now` and `start` hold indicators that have been seen."""

    config: CollapseConfig
    now: dict[str, float]
    start: dict[str, float]
    best: dict[str, float]
    best_look: dict[str, float]
    latest: dict[str, float]
    low_looks: dict[str, int]
    num_endless: dict[str, int]

    def ready(self, name: str) -> bool: ...
    def running(self, name: str) -> float: ...
    def share_of_start(self, name: str) -> float: ...
    def updates_to_exhaustion(self) -> float: ...
    def gradient_spike(self) -> float: ...
    def spread_fall(self) -> float: ...


Rule = Callable[[Watched], str | None]


def _share_below(indicator: str, setting: str, says: str) -> Rule:
    """Rings below a share of the start; `says` may use {now}, {start} and {share}."""

    def rule(watched: Watched) -> str | None:
        share = watched.share_of_start(indicator)
        if math.isnan(share):
            return None
        message = says.format(now=watched.now[indicator], start=watched.start[indicator], share=share)
        return message if share < getattr(watched.config, setting) else ""

    return rule


def _share_above(indicator: str, setting: str, says: str) -> Rule:
    """Rings above a multiple of the start, an infinite value before there is one; `says` may use {now} and {share}."""

    def rule(watched: Watched) -> str | None:
        now = watched.running(indicator)
        share = now if watched.num_endless.get(indicator) else watched.share_of_start(indicator)
        if math.isnan(share):
            return None
        return says.format(now=now, share=share) if share > getattr(watched.config, setting) else ""

    return rule


def _above(indicator: str, setting: str, says: str) -> Rule:
    """Rings above a threshold, an infinite value also before there is a start; `says` may use {now}."""

    def rule(watched: Watched) -> str | None:
        now = watched.running(indicator)
        if math.isnan(now):
            return None
        return says.format(now=now) if now > getattr(watched.config, setting) else ""

    return rule


def _grown_above(indicator: str, setting: str, says: str) -> Rule:
    """Rings above a threshold that must also lie `CLEARLY_MORE` above the start; `says` may use {now} and {start}."""

    def rule(watched: Watched) -> str | None:
        if not watched.ready(indicator):
            return None
        now, start = watched.now[indicator], watched.start[indicator]
        return says.format(now=now, start=start) if now > max(getattr(watched.config, setting), start + CLEARLY_MORE) else ""

    return rule


def _entropy_exhausting(watched: Watched) -> str | None:
    left, share = watched.updates_to_exhaustion(), watched.share_of_start("entropy")
    if math.isnan(left) or math.isnan(share):
        return None
    says = f"Entropy is at {share:.0%} of its start and at its present rate will be spent in {left:.0f} updates."
    return says if share < 0.5 and left < watched.config.exhaustion_updates else ""


def _weights_lost(watched: Watched) -> str | None:
    running = {name: watched.running(name) for name in ("mismatch_k1", "mismatch_chi2", "effective_share")}
    now = {name: value for name, value in running.items() if not math.isnan(value)}
    if not now:
        return None
    bias, chi2, effective = now.get("mismatch_k1", 0.0), now.get("mismatch_chi2", 0.0), now.get("effective_share", 1.0)
    config = watched.config
    if not (abs(bias) > config.mismatch_high or chi2 > config.chi_square_high or effective < config.effective_low):
        return ""
    named = {"mismatch_k1": f"k1 {bias:.2g} nats", "mismatch_chi2": f"chi2 {chi2:.2g}"}
    measured = ", ".join(says for name, says in named.items() if name in now)
    fate = f"let {effective:.0%} of the tokens count" if "effective_share" in now else "are far from one"
    return f"Importance weights between engine and trainer {fate}{f' ({measured})' if measured else ''}."


def _gradient_spike(watched: Watched) -> str | None:
    score = watched.gradient_spike()
    if math.isnan(score):
        return None
    num = watched.num_endless.get("gradient_norm", 0)
    lies = f"is infinite ({num} in a row)" if num else f"lies {score:.1f} robust deviations above its like"
    return f"The gradient's norm {lies}." if score > watched.config.spike_high else ""


def _step_too_large(watched: Watched) -> str | None:
    if "update_kl" not in watched.latest:
        return None
    moved = math.inf if watched.num_endless.get("update_kl") else watched.latest["update_kl"]
    usual = watched.now.get("update_kl", moved)
    says = f"This step of training moves the policy {moved:.2g} nats a token from the one that sampled, of late {usual:.2g} in the mean"
    return f"{says}: the step is too large." if max(moved, usual) > watched.config.update_kl_high else ""


def _spread_cliff(watched: Watched) -> str | None:
    fall = watched.spread_fall()
    if math.isnan(fall):
        return None
    says = f"Reward's spread within groups is {watched.now['reward_spread']:.3g}: {fall:.0%} went of late."
    return says if fall > watched.config.spread_fall else ""


def _few_groups(watched: Watched) -> str | None:
    if not watched.ready("groups_effective"):
        return None
    now = watched.now["groups_effective"]
    return f"A step hangs on {now:.0%} of its groups: the others hardly differ within." if now < watched.config.groups_low else ""


def _truncated(watched: Watched) -> str | None:
    if "truncated" not in watched.now:
        return None
    now, start = watched.now["truncated"], watched.start["truncated"]
    says = f"{now:.0%} of the dialogues are cut off, as no further reply fits their context ({start:.0%} at the start)."
    if now >= MUCH_CUT_OFF:  # also where it was so from the first
        return says
    if not watched.ready("truncated"):
        return None
    return says if now > max(watched.config.truncated_high, 2.0 * start) else ""


def _length_drift(watched: Watched) -> str | None:
    ratio, limit = watched.share_of_start("reply_length"), watched.config.length_ratio
    if math.isnan(ratio):
        return None
    says = f"Replies have {watched.now['reply_length']:.0f} tokens, {ratio:.2g} times as many as at the start."
    return says if ratio > limit or ratio < 1.0 / limit else ""


def _template(watched: Watched) -> str | None:
    names = [name for name in ("strategy_by_intention", "strategy_by_persona") if watched.ready(name) and watched.start[name] > DEPENDENT]
    if not names:
        return None
    shares = {name.removeprefix("strategy_by_"): watched.now[name] / watched.start[name] for name in names}
    lost = {who: share for who, share in shares.items() if share < watched.config.dependence_low}
    says = " and ".join(f"{max(share, 0.0):.0%} of what the user's {who} once did" for who, share in lost.items())
    return f"The choice of strategy follows {says}: everybody is answered alike." if lost else ""


def _interchangeable(watched: Watched) -> str | None:
    share = watched.share_of_start("retrieval")
    if math.isnan(share) or watched.start["retrieval"] < RETRIEVABLE:
        return None
    now, start = watched.now["retrieval"], watched.start["retrieval"]
    says = f"Only {now:.0%} of the first replies fit their own user best ({start:.0%} at the start): others would get the same answer."
    return says if share < watched.config.retrieval_low else ""


def _probe_regression(watched: Watched) -> str | None:
    seen = [name for name in PANEL if watched.ready(name)]
    if not seen:
        return None
    falls = {name: largest_fall([watched.best[name]], [watched.now[name]]) for name in seen}
    limits = {name: watched.config.probe_fall if name == "probe_reward" else watched.config.cell_fall for name in seen}
    worst = max(seen, key=lambda name: falls[name] / limits[name])
    where = "whole" if worst == "probe_reward" else worst.removeprefix("probe_")
    says = f"On the {where} probe panel reward is {watched.now[worst]:.2f}, {falls[worst]:.2f} below its best: something was unlearned."
    return says if falls[worst] > limits[worst] else ""


def _unlearned(watched: Watched) -> str | None:
    if not watched.low_looks:
        return None
    longest = max(watched.low_looks, key=lambda name: watched.low_looks[name])
    num, now, best = watched.low_looks[longest], watched.latest[longest], watched.best_look[longest]
    where = "whole" if longest == "probe_reward" else longest.removeprefix("probe_")
    says = f"On the {where} probe panel {num} looks in a row were low, the last one {now:.2f} where {best:.2f} had been reached."
    return says if num >= watched.config.unlearned_looks else ""


def _reward_gamed(watched: Watched) -> str | None:
    if not (watched.ready("reward") and watched.ready("emotion")):
        return None
    config, paid, felt = watched.config, watched.now["reward"], watched.now["emotion"]
    more_paid, more_felt = paid - watched.start["reward"], felt - watched.start["emotion"]
    has_gained = more_paid > -config.gamed_gain and more_paid - more_felt > config.gamed_gain
    is_gamed = has_gained and more_felt < config.gamed_share * more_paid
    says = f"Reward changed by {more_paid:+.2f} of 1 since the start, what users felt in the end by {100 * more_felt:+.0f} of 100"
    # A reward below the emotion is one that hangs on more than it, such as a form that is learnt: nothing is paid for nothing.
    return f"{says}: it is earned by something else than users who feel better." if is_gamed and paid > felt else ""


def _disobeyed(watched: Watched) -> str | None:
    if not watched.ready("obedience"):
        return None
    now = watched.now["obedience"]
    return f"Stricter users of the panel are no harder (rank correlation of strictness and reward {now:+.2f})." if now >= 0.0 else ""


RULES: Mapping[str, tuple[Evidence | None, Rule]] = {
    "entropy_spent": (
        Evidence.POLICY,
        _share_below(
            "entropy", "entropy_low", "Entropy is {now:.3g} nats, {share:.0%} of its start: the policy has all but stopped exploring."
        ),
    ),
    "entropy_exhausting": (Evidence.POLICY, _entropy_exhausting),
    "entropy_exploding": (
        None,
        _share_above(
            "entropy", "entropy_high", "Entropy is {now:.3g} nats, {share:.2g} times its start: the policy drifts into saying anything."
        ),
    ),
    "forks_decided": (
        Evidence.POLICY,
        _share_below("forking_entropy", "entropy_low", "Where the policy decides, entropy is {now:.3g} nats, {share:.0%} of its start."),
    ),
    "narrowing": (
        Evidence.POLICY,
        _above("covariance", "covariance_high", "Logprob and advantage vary together by {now:.3g} nats: likely tokens become likelier."),
    ),
    "mismatch": (
        Evidence.POLICY,
        _above("mismatch", "mismatch_high", "Trainer and engine differ by {now:.3g} nats on the sampled tokens: the update is off-policy."),
    ),
    "weights_lost": (Evidence.POLICY, _weights_lost),
    "far_from_reference": (Evidence.POLICY, _above("kl", "kl_high", "The policy is {now:.3g} nats a token away from its reference.")),
    "gradient_spike": (Evidence.POLICY, _gradient_spike),
    "step_too_large": (Evidence.POLICY, _step_too_large),
    "density_lost": (
        Evidence.SIGNAL,
        _share_below(
            "reward_density",
            "density_low",
            "Reward density is {now:.3g}, {share:.0%} of its start: rollouts of a group fare nearly alike.",
        ),
    ),
    "spread_cliff": (Evidence.SIGNAL, _spread_cliff),
    "all_fail_alike": (
        Evidence.SIGNAL,
        _above("all_low_share", "alike_share", "{now:.0%} of the groups failed alike: the users are too strict to learn from."),
    ),
    "all_succeed_alike": (
        Evidence.SIGNAL,
        _above("all_high_share", "alike_share", "{now:.0%} of the groups succeeded alike: the users are too lenient to learn from."),
    ),
    "alike_beyond_chance": (
        Evidence.SIGNAL,
        _grown_above(
            "alike_excess",
            "alike_excess",
            "{now:.0%} more groups end alike than chance explains ({start:.0%} at the start): siblings act as one.",
        ),
    ),
    "few_groups_carry": (Evidence.SIGNAL, _few_groups),
    "best_no_better": (
        Evidence.SIGNAL,
        _share_below("best_of_k", "density_low", "The best of four siblings gains {now:.3g} over their mean, {share:.0%} of the start."),
    ),
    "repetition": (
        Evidence.BEHAVIOUR,
        _grown_above(
            "repetition",
            "repetition_high",
            "{now:.0%} of the agent's four-word runs repeat its own earlier turns ({start:.0%} at the start).",
        ),
    ),
    "own_overlap": (
        Evidence.BEHAVIOUR,
        _grown_above(
            "own_overlap", "overlap_high", "A reply shares {now:.0%} with the agent's own earlier ones ({start:.0%} at the start)."
        ),
    ),
    "siblings_alike": (
        Evidence.BEHAVIOUR,
        _grown_above("bleu_siblings", "siblings_bleu_high", "Siblings answer alike: self-BLEU {now:.2f} ({start:.2f} at the start)."),
    ),
    "prompts_alike": (
        Evidence.BEHAVIOUR,
        _grown_above(
            "bleu_prompts", "prompts_bleu_high", "Different users are answered alike: self-BLEU {now:.2f} ({start:.2f} at the start)."
        ),
    ),
    "diversity_lost": (
        Evidence.BEHAVIOUR,
        _share_below(
            "distinct_2", "distinct_low", "Only {now:.0%} of word pairs are distinct, {share:.0%} of the start: replies have become alike."
        ),
    ),
    "compressible": (
        Evidence.BEHAVIOUR,
        _share_above(
            "compression", "compression_ratio", "Replies pack to a {now:.1f}th of their length, {share:.2g} times as small as at the start."
        ),
    ),
    "length_drift": (Evidence.BEHAVIOUR, _length_drift),
    "truncated": (Evidence.BEHAVIOUR, _truncated),
    "strategies_narrowed": (
        Evidence.BEHAVIOUR,
        _share_below("strategy_entropy", "strategies_low", "Entropy of the strategies is {now:.2f} nats, {share:.0%} of its start."),
    ),
    "template": (Evidence.BEHAVIOUR, _template),
    "interchangeable": (Evidence.BEHAVIOUR, _interchangeable),
    "probe_regression": (Evidence.OUTCOME, _probe_regression),
    "unlearned": (Evidence.OUTCOME, _unlearned),
    "stuck_at_bounds": (
        None,
        _above(
            "bounds_share", "bounds_share", "{now:.0%} of the tasks are as easy or as strict as can be: difficulty cannot follow further."
        ),
    ),
    "strictness_disobeyed": (None, _disobeyed),
    "reward_gamed": (None, _reward_gamed),
}
"""Alarms by name: the family of evidence they belong to and their rule. None counts for nothing in the composite: a fault of the difficulty
or of the reward is no collapse, and a policy that begins narrow may vary more as it learns (toy students do)."""

AT_ONCE = frozenset({"entropy_exploding", "step_too_large", "unlearned"})
"""Alarms that wait for nothing: a policy can be gone after a single update, before there is a start to compare it with; looks at the panel
are several updates apart, of which `unlearned` waits for more than one; and entropy that has once begun to explode doubles within few."""
