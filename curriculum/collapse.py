"""Watches a run for collapse: smoothed indicators, alarms that say what they saw, and one that asks for two kinds of evidence.

Falling entropy alone is learning as often as collapse, so the alarm named `collapse` needs evidence of two families at once: the
*signal* (groups fare alike), the *policy* (it has narrowed, or trainer and engine disagree), the *behaviour* (it repeats itself).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from curriculum.checks import require_between, require_equal, require_fields
from curriculum.indicators import theil_sen_slope

INDICATORS = {
    "entropy": "exact mean entropy over agent tokens, nats",
    "reward_density": "curriculum.signals.reward_density",
    "all_low_share": "share of groups that all failed alike",
    "all_high_share": "share of groups that all succeeded alike",
    "repetition": "mean over dialogues of curriculum.indicators.repetition",
    "distinct_2": "curriculum.indicators.distinct of the step's replies",
    "reply_length": "mean length of a reply, tokens",
    "mismatch": "KL between engine and trainer on the sampled tokens (k3), nats",
}
"""What the monitor takes in, by name; a step may leave some out or give NaN."""

STATE_VERSION = 1


class Evidence(StrEnum):
    """Families of evidence; two of them make a collapse."""

    SIGNAL = "signal"
    POLICY = "policy"
    BEHAVIOUR = "behaviour"


@dataclass
class CollapseConfig:
    """When an indicator becomes an alarm. "Start" is the mean of an indicator's first `start_updates` values."""

    start_updates: int = 5
    """[1, 100]: values that make up the start."""
    patience: int = 5
    """[1, 100]: updates for which a condition must hold before its alarm fires, and be gone before it can fire again."""
    smoothing: float = 0.3
    """(0, 1]: weight of the newest value in the running averages on which alarms rest."""
    entropy_window: int = 20
    """[3, 200]: updates over which the slope of entropy is measured."""
    entropy_low: float = 0.1
    """(0, 1]: share of its start below which entropy counts as spent. Conservative: arXiv 2505.22617 reports that ordinary runs lose about
    73 % early on while reward rises."""
    exhaustion_updates: float = 10.0
    """(0, 1000]: alarm when entropy, already below half its start, would at its present rate of decay be spent within so many updates.
    Our proposal."""
    density_low: float = 0.25
    """(0, 1]: share of its start below which reward density counts as lost. Our proposal, after the cliff in reward variance that RAGEN
    (arXiv 2504.20073) describes."""
    alike_share: float = 0.7
    """(0, 1]: share of groups that all failed, or all succeeded, alike. Our proposal; DAPO (arXiv 2503.14476) discards such groups."""
    repetition_high: float = 0.3
    """(0, 1]: repetition counts from here, and only if also .2 above its start. Our proposal."""
    distinct_low: float = 0.5
    """(0, 1]: share of its start below which distinct-2 counts as lost diversity. Our proposal."""
    length_ratio: float = 3.0
    """[1, 100]: replies so many times longer or shorter than at the start. Our proposal; twice the length is common in healthy runs."""
    mismatch_high: float = 0.1
    """(0, 100], nats: KL between engine and trainer (verl's rollout-correction notes)."""

    def __post_init__(self) -> None:
        require_between("collapse.start_updates", self.start_updates, 1, 100)
        require_between("collapse.patience", self.patience, 1, 100)
        require_between("collapse.entropy_window", self.entropy_window, 3, 200)
        require_between("collapse.exhaustion_updates", self.exhaustion_updates, 1e-6, 1000.0)
        require_between("collapse.length_ratio", self.length_ratio, 1.0, 100.0)
        require_between("collapse.mismatch_high", self.mismatch_high, 1e-9, 100.0)
        for name in ("smoothing", "entropy_low", "density_low", "alike_share", "repetition_high", "distinct_low"):
            require_between(f"collapse.{name}", getattr(self, name), 1e-6, 1.0)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A condition that has held for `patience` updates."""

    name: str
    step: int
    message: str
    """What was seen, in plain words with the numbers."""
    values: dict[str, float]
    """The smoothed indicators known at that step."""


class CollapseMonitor:
    """Streams indicators and raises alarms; memory does not grow with the run."""

    def __init__(self, config: CollapseConfig) -> None:
        self.config = config
        self.now: dict[str, float] = {}
        self.start: dict[str, float] = {}
        self._num_values: dict[str, int] = {}
        self._entropies: deque[float] = deque(maxlen=config.entropy_window)
        self._held = dict.fromkeys([*RULES, "collapse"], 0)
        self._active = dict.fromkeys(self._held, False)

    def observe(self, step: int, values: Mapping[str, float]) -> list[Alarm]:
        """Takes in what one update showed.

        Args:
            values: by the names in `INDICATORS`; missing and NaN ones leave their indicator as it was.

        Returns:
            The alarms that fire at this step; each fires once until its condition has been gone for `patience` updates.
        """
        if strangers := sorted(set(values) - set(INDICATORS)):
            raise ValueError(f"collapse indicators must be among {sorted(INDICATORS)}, got {strangers}")
        for name, value in values.items():
            if math.isfinite(value):
                self._smooth(name, float(value))
        messages = {name: rule(self) for name, (_, rule) in RULES.items()}
        messages["collapse"] = self._collapse(messages)
        fired = [name for name, message in messages.items() if self._fires(name, message)]
        return [Alarm(name=name, step=step, message=str(messages[name]), values=dict(self.now)) for name in fired]

    def _smooth(self, name: str, value: float) -> None:
        n = self._num_values.get(name, 0) + 1
        self._num_values[name] = min(n, self.config.start_updates + 1)
        if n <= self.config.start_updates:
            start = self.start.get(name, 0.0)
            self.now[name] = self.start[name] = start + (value - start) / n
        else:
            self.now[name] += self.config.smoothing * (value - self.now[name])
        if name == "entropy":
            self._entropies.append(self.now[name])

    def _collapse(self, messages: Mapping[str, str | None]) -> str | None:
        seen: dict[Evidence, str] = {}
        for name, (evidence, _) in RULES.items():
            if messages[name]:
                seen.setdefault(evidence, str(messages[name]))
        if len(seen) < 2:
            return ""
        return "The run shows collapse on two sides: " + " ".join(seen.values())

    def _fires(self, name: str, message: str | None) -> bool:
        """Counts updates for (positive) or against (negative) a condition, and says whether its alarm starts now."""
        if message is None:
            return False
        held = self._held[name]
        limit = self.config.patience
        self._held[name] = held = min(max(held, 0) + 1, limit) if message else max(min(held, 0) - 1, -limit)
        if held == -limit:
            self._active[name] = False
        starts = held == limit and not self._active[name]
        self._active[name] = self._active[name] or starts
        return starts

    def ready(self, name: str) -> bool:
        """Whether `name` has been seen often enough to have a start and a value after it."""
        return self._num_values.get(name, 0) > self.config.start_updates

    def share_of_start(self, name: str) -> float:
        """The indicator now over the indicator at the start; NaN while there is none."""
        return self.now[name] / self.start[name] if self.ready(name) and self.start[name] > 0.0 else math.nan

    def entropy_slope(self) -> float:
        """Theil-Sen slope of smoothed entropy over the window, nats per update; NaN below three values."""
        return theil_sen_slope(self._entropies) if len(self._entropies) >= 3 else math.nan

    def updates_to_exhaustion(self) -> float:
        """Updates until entropy is spent (`entropy_low` of its start) at its present rate of decay; infinite where it does not fall."""
        spent = self.config.entropy_low * self.start.get("entropy", 0.0)
        if not self.ready("entropy") or len(self._entropies) < 3 or min(self._entropies) <= 0.0 or spent <= 0.0:
            return math.nan
        decay = -theil_sen_slope([math.log(entropy) for entropy in self._entropies])
        return max(math.log(self.now["entropy"] / spent), 0.0) / decay if decay > 0.0 else math.inf

    def metrics(self) -> dict[str, float]:
        """Smoothed indicators, entropy's slope and share of its start, and the number of alarms on, under `collapse/`."""
        out = {f"collapse/{name}": value for name, value in self.now.items()}
        if {"all_low_share", "all_high_share"} <= set(self.now):
            out["collapse/zero_variance_share"] = self.now["all_low_share"] + self.now["all_high_share"]
        extra = {"entropy_slope": self.entropy_slope(), "updates_to_exhaustion": self.updates_to_exhaustion()}
        extra |= {f"{name}_of_start": self.share_of_start(name) for name in ("entropy", "reward_density", "reply_length")}
        out |= {f"collapse/{name}": value for name, value in extra.items() if math.isfinite(value)}
        return {**out, "collapse/alarms_on": float(sum(self._active.values())), "collapse/alarm": float(self._active["collapse"])}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        state = {"version": STATE_VERSION, "entropies": list(self._entropies)}
        return {**state, **{name: dict(getattr(self, attribute)) for name, attribute in _STATE.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; refuses another version, missing or unknown fields with a ValueError."""
        require_equal("collapse state's version", state.get("version"), STATE_VERSION)
        require_fields("collapse state", state, ("version", "entropies", *_STATE))
        require_fields("collapse state's held", state["held"], self._held)
        require_fields("collapse state's active", state["active"], self._held)
        for name, attribute in _STATE.items():
            setattr(self, attribute, dict(state[name]))
        self._entropies = deque(state["entropies"], maxlen=self.config.entropy_window)


_STATE = {"now": "now", "start": "start", "num_values": "_num_values", "held": "_held", "active": "_active"}


def _entropy_spent(monitor: CollapseMonitor) -> str | None:
    share = monitor.share_of_start("entropy")
    if math.isnan(share):
        return None
    says = f"Entropy is {monitor.now['entropy']:.3g} nats, {share:.0%} of its start: the policy has all but stopped exploring."
    return says if share < monitor.config.entropy_low else ""


def _entropy_exhausting(monitor: CollapseMonitor) -> str | None:
    left, share = monitor.updates_to_exhaustion(), monitor.share_of_start("entropy")
    if math.isnan(left) or math.isnan(share):
        return None
    says = f"Entropy is at {share:.0%} of its start and at its present rate will be spent in {left:.0f} updates."
    return says if share < 0.5 and left < monitor.config.exhaustion_updates else ""


def _mismatch(monitor: CollapseMonitor) -> str | None:
    if not monitor.ready("mismatch"):
        return None
    says = f"Trainer and engine differ by {monitor.now['mismatch']:.3g} nats on the sampled tokens: the update is off-policy."
    return says if monitor.now["mismatch"] > monitor.config.mismatch_high else ""


def _density_lost(monitor: CollapseMonitor) -> str | None:
    share = monitor.share_of_start("reward_density")
    if math.isnan(share):
        return None
    says = f"Reward density is {monitor.now['reward_density']:.3g}, {share:.0%} of its start: rollouts of a group fare nearly alike."
    return says if share < monitor.config.density_low else ""


def _alike(indicator: str, verb: str, remedy: str) -> Callable[[CollapseMonitor], str | None]:
    def rule(monitor: CollapseMonitor) -> str | None:
        if not monitor.ready(indicator):
            return None
        says = f"{monitor.now[indicator]:.0%} of the groups {verb} alike: the users are too {remedy} to learn from."
        return says if monitor.now[indicator] > monitor.config.alike_share else ""

    return rule


def _repetition(monitor: CollapseMonitor) -> str | None:
    if not monitor.ready("repetition"):
        return None
    now, start = monitor.now["repetition"], monitor.start["repetition"]
    says = f"{now:.0%} of the agent's four-word runs repeat its own earlier turns ({start:.0%} at the start)."
    return says if now > max(monitor.config.repetition_high, start + 0.2) else ""


def _diversity_lost(monitor: CollapseMonitor) -> str | None:
    share = monitor.share_of_start("distinct_2")
    if math.isnan(share):
        return None
    says = f"Only {monitor.now['distinct_2']:.0%} of word pairs are distinct, {share:.0%} of the start: replies have become alike."
    return says if share < monitor.config.distinct_low else ""


def _length_drift(monitor: CollapseMonitor) -> str | None:
    ratio, limit = monitor.share_of_start("reply_length"), monitor.config.length_ratio
    if math.isnan(ratio):
        return None
    says = f"Replies have {monitor.now['reply_length']:.0f} tokens, {ratio:.2g} times as many as at the start."
    return says if ratio > limit or ratio < 1.0 / limit else ""


RULES: dict[str, tuple[Evidence, Callable[[CollapseMonitor], str | None]]] = {
    "entropy_spent": (Evidence.POLICY, _entropy_spent),
    "entropy_exhausting": (Evidence.POLICY, _entropy_exhausting),
    "mismatch": (Evidence.POLICY, _mismatch),
    "density_lost": (Evidence.SIGNAL, _density_lost),
    "all_fail_alike": (Evidence.SIGNAL, _alike("all_low_share", "failed", "strict")),
    "all_succeed_alike": (Evidence.SIGNAL, _alike("all_high_share", "succeeded", "lenient")),
    "repetition": (Evidence.BEHAVIOUR, _repetition),
    "diversity_lost": (Evidence.BEHAVIOUR, _diversity_lost),
    "length_drift": (Evidence.BEHAVIOUR, _length_drift),
}
"""Alarms by name: the evidence they belong to, and a rule giving its message while the condition holds, "" while not, None if unknown."""
