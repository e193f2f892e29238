"""Indicators of collapse as a run goes on: settings, names, and their starts, running averages and windows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.collapse.indicators import EntropyLaw, fall_within, fit_entropy_law, spike_score, theil_sen_slope, updates_until
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class CollapseConfig:
    """When an indicator becomes an alarm. "Start" is the mean of an indicator's first `start_updates` values.

    Thresholds without a source are our proposal.
    """

    start_updates: int = Field(default=5, ge=1, le=100)
    """Values that make up the start."""
    patience: int = Field(default=5, ge=1, le=100)
    """Updates for which a condition must hold before its alarm rings, and be gone before it can ring again."""
    smoothing: float = Field(default=0.3, gt=0, le=1)
    """Weight of the newest value in the running averages on which alarms rest."""
    entropy_window: int = Field(default=20, ge=3, le=200)
    """Updates over which the slope of entropy, the cliff in reward's spread and the usual norm of the gradient are measured."""
    entropy_low: float = Field(default=0.1, gt=0, le=1)
    """Share of its start below which entropy, that of forking tokens too, is spent; ordinary runs lose 73 % early (arXiv 2505.22617)."""
    entropy_high: float = Field(default=2.0, ge=1, le=100)
    """Times its start above which entropy counts as exploding; rings at once. Of 190 kept runs the highest two reach 1.75 and 1.64."""
    exhaustion_updates: float = Field(default=10.0, gt=0, le=1000)
    """Alarm when entropy, already below half its start, would at its present rate of decay be spent within so many updates."""
    covariance_high: float = Field(default=0.2, gt=0, le=100)
    """Covariance of logprob and normalised advantage, nats, from which an update narrows the policy fast."""
    mismatch_high: float = Field(default=0.1, gt=0, le=100)
    """KL between engine and trainer, k3 or the size of k1, nats (verl's rollout-correction notes)."""
    chi_square_high: float = Field(default=1.0, gt=0, le=100)
    """chi2 between engine and trainer (verl's notes)."""
    effective_low: float = Field(default=0.3, gt=0, le=1)
    """Share of the tokens that still count under importance weights (verl's notes)."""
    kl_high: float = Field(default=1.0, gt=0, le=100)
    """KL from the reference, nats per token."""
    spike_high: float = Field(default=4.0, gt=0, le=100)
    """Robust standard deviations by which the gradient's norm sticks out; after RAGEN (arXiv 2504.20073)."""
    update_kl_high: float = Field(default=0.2, gt=0, le=100)
    """KL from the policy that sampled to the one in training, nats per token; rings at once. Three times the maximum of healthy runs."""
    density_low: float = Field(default=0.25, gt=0, le=1)
    """Share of its start below which reward density, or the gain of the best of four siblings, counts as lost (RAGEN)."""
    spread_fall: float = Field(default=0.5, gt=0, le=1)
    """Share of the within-group standard deviation that must be gone since the window's older half (RAGEN)."""
    alike_share: float = Field(default=0.7, gt=0, le=1)
    """Share of groups that all failed, or all succeeded. DAPO (arXiv 2503.14476) discards such groups."""
    alike_excess: float = Field(default=0.4, gt=0, le=1)
    """Share of groups without variance beyond chance that counts, and only if also 0.2 above its start; good runs reach 0.5."""
    groups_low: float = Field(default=0.15, gt=0, le=1)
    """Effective share of the groups that carry a step."""
    repetition_high: float = Field(default=0.5, gt=0, le=1)
    """Repetition counts from here, and only if also 0.2 above its start: the embedded policy reaches 0.45 while it improves."""
    overlap_high: float = Field(default=0.75, gt=0, le=1)
    """ROUGE-L to the agent's own earlier replies counts from here, and only if also 0.2 above its start; runs that go well reach 0.62."""
    siblings_bleu_high: float = Field(default=0.97, gt=0, le=1)
    """Self-BLEU of siblings' first replies counts from here, and only if also 0.2 above its start; runs that go well reach 0.95."""
    prompts_bleu_high: float = Field(default=0.85, gt=0, le=1)
    """The same across prompts; runs that go well reach 0.78."""
    distinct_low: float = Field(default=0.3, gt=0, le=1)
    """Share of its start below which distinct-2 counts as lost diversity; runs that go well keep 0.37."""
    compression_ratio: float = Field(default=2.5, ge=1, le=100)
    """Replies so many times as compressible as at the start; runs that go well reach 1.8."""
    length_ratio: float = Field(default=3.0, ge=1, le=100)
    """Replies so many times longer or shorter than at the start; twice the length is common in healthy runs."""
    truncated_high: float = Field(default=0.05, gt=0, le=1)
    """Share of dialogues cut off counts from here, and only if also twice its start; from 0.1 on always."""
    strategies_low: float = Field(default=0.5, gt=0, le=1)
    """Share of its start below which the entropy of strategies counts as narrowed."""
    dependence_low: float = Field(default=0.25, gt=0, le=1)
    """Share of its start below which the choice of strategy counts as independent of the user."""
    retrieval_low: float = Field(default=0.5, gt=0, le=1)
    """Share of its start below which retrieval accuracy says that replies are independent of the user."""
    probe_fall: float = Field(default=0.1, gt=0, le=1)
    """Fall of the probe panel's mean reward below its best that counts; twice the survey's 0.05, which is noise on 25 dialogues."""
    cell_fall: float = Field(default=0.2, gt=0, le=1)
    """The same for a third of the panel."""
    unlearned_below: float = Field(default=0.6, gt=0, le=1)
    """Share of the best evaluation of the panel, or of a third of it, below which an evaluation is low, and only if 0.05 below it, too."""
    unlearned_looks: int = Field(default=2, ge=1, le=100)
    """Low evaluations in a row that say that something was unlearned."""
    bounds_share: float = Field(default=0.5, gt=0, le=1)
    """Share of tasks issued at the easiest or the strictest."""
    gamed_gain: float = Field(default=0.1, gt=0, le=1)
    """By how much more than users' final emotion / 100 reward must have grown since the start, without falling by as much itself."""
    gamed_share: float = Field(default=0.33, gt=0, le=1)
    """And the share of reward's growth that emotion's must stay below."""


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
"""Indicators by name, with the metric of a run (docs/metrics.md) that each one is; a step may leave some out or give NaN."""


class IndicatorHistory:
    """Starts, running averages and windows of indicators; memory does not grow with the run."""

    SHARES: ClassVar[frozenset[str]] = frozenset(
        "effective_share all_low_share all_high_share groups_effective bounds_share repetition own_overlap bleu_siblings bleu_prompts"
        " distinct_2 truncated retrieval reward emotion probe_reward probe_easy probe_middle probe_hard".split()
    )
    """Indicators in [0, 1]: shares of something, and rewards."""
    PANEL: ClassVar[tuple[str, ...]] = ("probe_reward", "probe_easy", "probe_middle", "probe_hard")
    """The fixed panel and its cells, of which the best is kept."""
    INFINITE: ClassVar[float] = 1e6
    """Value of an infinite indicator, and the limit of a finite one: far above every threshold."""

    def __init__(self, config: CollapseConfig) -> None:
        self.config = config
        self.now: dict[str, float] = {}
        """Running averages."""
        self.start: dict[str, float] = {}
        self.best: dict[str, float] = {}
        """Highest running average of each cell of the probe panel."""
        self.best_evaluation: dict[str, float] = {}
        """Highest single evaluation of each of them, from the first one on."""
        self.low_evaluations: dict[str, int] = {}
        """Evaluations in a row, up to the last one, that were low (`unlearned_below`)."""
        self.latest: dict[str, float] = {}
        """Every indicator as it was last measured, not smoothed."""
        self.num_infinite: dict[str, int] = {}
        """Values in a row, up to the last one, that were infinite; they enter no average or window."""
        self._num_values: dict[str, int] = {}
        self._entropies: deque[float] = deque(maxlen=config.entropy_window)
        self._spreads: deque[float] = deque(maxlen=config.entropy_window)
        self._gradients: deque[float] = deque(maxlen=config.entropy_window + 1)
        # Entropy and reward of the latest evaluations of the panel, by which the law of reward and entropy is fitted.
        self._evaluations: deque[list[float]] = deque(maxlen=64)

    def add(self, values: Mapping[str, float]) -> None:
        """Takes in the indicators of one update; see `CollapseMonitor.observe`."""
        if unknown := sorted(values.keys() - INDICATOR_METRICS.keys()):
            raise ValueError(f"collapse indicators must be among {sorted(INDICATOR_METRICS)}, got {unknown}")
        measured = {name: float(value) for name, value in values.items() if value is not None and not math.isnan(value)}
        if outside := [name for name in measured if name in self.SHARES and not -1e-6 <= measured[name] <= 1.0 + 1e-6]:
            raise ValueError(f"collapse indicator {outside[0]} must be in [0, 1], got {measured[outside[0]]!r}")
        config = self.config
        for name, measurement in measured.items():
            self.num_infinite[name] = self.num_infinite.get(name, 0) + 1 if math.isinf(measurement) else 0
            value = self.latest[name] = min(max(measurement, -self.INFINITE), self.INFINITE)
            if self.num_infinite[name]:
                continue
            n = self._num_values.get(name, 0) + 1
            self._num_values[name] = min(n, config.start_updates + 1)
            if n <= config.start_updates:
                start = self.start.get(name, 0.0)
                self.now[name] = self.start[name] = start + (value - start) / n
            else:
                self.now[name] += config.smoothing * (value - self.now[name])
            if name == "entropy":
                self._entropies.append(self.now[name])
            if name == "reward_spread":
                self._spreads.append(self.now[name])
            if name == "gradient_norm":
                self._gradients.append(value)
            if name in self.PANEL:
                if n >= config.start_updates:
                    self.best[name] = max(self.best.get(name, -math.inf), self.now[name])
                # Single evaluations: a running average would take half a run to be sure of its best.
                best = self.best_evaluation[name] = max(self.best_evaluation.get(name, value), value)
                is_low = value < config.unlearned_below * best and best - value > 0.05
                self.low_evaluations[name] = self.low_evaluations.get(name, 0) + 1 if is_low else 0
        panel = [name for name in ("probe_entropy", "probe_reward") if name in measured and not self.num_infinite[name]]
        if len(panel) == 2:
            self._evaluations.append([self.latest[name] for name in panel])

    def ready(self, name: str) -> bool:
        """Whether `name` has been seen often enough to have a start and a value after it."""
        return self._num_values.get(name, 0) > self.config.start_updates

    def running(self, name: str) -> float:
        """The running average of a ready indicator, +-infinity for any whose latest value is infinite; otherwise NaN."""
        if self.num_infinite.get(name):
            return math.copysign(math.inf, self.latest[name])
        return self.now[name] if self.ready(name) else math.nan

    def share_of_start(self, name: str) -> float:
        """The indicator now over the indicator at the start; NaN while there is none."""
        return self.now[name] / self.start[name] if self.ready(name) and self.start[name] > 0.0 else math.nan

    def entropy_slope(self) -> float:
        """Theil-Sen slope of smoothed entropy over the window, nats per update; NaN below three values."""
        return theil_sen_slope(self._entropies) if len(self._entropies) >= 3 else math.nan

    def updates_to_exhaustion(self) -> float:
        """Updates until entropy is spent (`entropy_low` of its start) at its present rate of decay; infinite where it does not fall."""
        return updates_until(self._entropies, self.config.entropy_low * self.start["entropy"]) if self.ready("entropy") else math.nan

    def entropy_affordable(self, budget_fraction: float) -> float:
        """Entropy, nats, that falls by equal ratios from its start to where it is spent, just when the budget ends; NaN without a start."""
        return self.start.get("entropy", math.nan) * self.config.entropy_low**budget_fraction

    def gradient_spike(self) -> float:
        """How far the latest norm of the gradient lies above the finite ones before it, in robust standard deviations."""
        if self.num_infinite.get("gradient_norm"):
            return self.INFINITE
        *earlier, newest = self._gradients or [math.nan]
        return spike_score(earlier, newest)

    def spread_fall(self) -> float:
        """Share of the within-group standard deviation that is gone since the window's older half."""
        return fall_within(self._spreads) if self.ready("reward_spread") else math.nan

    def entropy_law(self) -> EntropyLaw | None:
        """The price of reward in entropy on the probe panel, from its latest evaluations; None below eight."""
        return fit_entropy_law(*zip(*self._evaluations, strict=True)) if len(self._evaluations) >= 8 else None
