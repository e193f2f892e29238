"""Monitor of collapse: the table of all alarms, with their conditions and messages, and the monitor that raises them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from curriculum.collapse.history import CollapseConfig, IndicatorHistory
from curriculum.task import require_same


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


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A condition that has held for `patience` updates, or that need not wait."""

    name: str
    step: int
    message: str
    values: dict[str, float]
    """The smoothed indicators known at that step."""


@dataclass(frozen=True)
class Threshold:
    """The condition that an indicator lies beyond a setting."""

    indicator: str
    kind: Literal["of start <", "of start >", ">", "grown >"]
    """`of start`: as a share of its start; `grown`: and 0.2 above its start, too. An infinite value is above, also without a start."""
    setting: str
    message: str  # with {now}, {start} and {share}

    def __call__(self, seen: IndicatorHistory) -> str | None:
        """The message while the condition holds, "" while it does not, and None while that is unknown."""
        limit, now = getattr(seen.config, self.setting), seen.running(self.indicator)
        start, share = seen.start.get(self.indicator, math.nan), seen.share_of_start(self.indicator)
        if self.kind == "of start <":
            now, value, rings = seen.now.get(self.indicator, math.nan), share, share < limit
        elif self.kind == "of start >":
            value = share = now if math.isinf(now) else share
            rings = share > limit
        else:
            value, rings = now, now > (max(limit, start + 0.2) if self.kind == "grown >" else limit)
        if math.isnan(value):
            return None
        return self.message.format(now=now, start=start, share=share) if rings else ""


class CollapseMonitor(IndicatorHistory):
    """Streams indicators and raises alarms; memory does not grow with the run.

    Falling entropy alone is learning as often as collapse, so the composite alarm named `collapse` needs evidence of two families at once:
    the *signal* (rewards within groups are equal), the *policy* (it has narrowed, or trainer and engine disagree), the *behaviour* (it
    repeats itself), the *outcome* (the probe panel scores lower). docs/collapse.md has every alarm with its formula and threshold.

    The methods without a docstring are the conditions of the alarms of their name, with the same results as those of `Threshold`.
    """

    def __init__(self, config: CollapseConfig) -> None:
        super().__init__(config)
        # Updates with (above 0) or without (below 0) a condition, in a row, at most `patience`.
        self._held = dict.fromkeys([*ALARMS, "collapse"], 0)
        self._active = dict.fromkeys(self._held, False)

    def observe(self, step: int, values: Mapping[str, float]) -> list[Alarm]:
        """Takes in the indicators of one update; the alarms that ring now, each once until its condition was gone for `patience` updates.

        Args:
            values: by the names in `INDICATOR_METRICS`; missing ones, None and NaN leave their indicator as it was.

        Raises:
            ValueError: a name that is none of the indicators, or a share that is not in [0, 1].
        """
        self.add(values)
        messages = {name: rule(self) for name, (_, rule) in ALARMS.items()}
        sides: dict[Evidence, str] = {}
        for name, (evidence, _) in ALARMS.items():
            if evidence is not None and (message := messages[name]):
                sides.setdefault(evidence, message)
        number = {2: "two", 3: "three", 4: "four"}.get(len(sides))
        messages["collapse"] = f"The run shows collapse on {number} sides: " + " ".join(sides.values()) if number else ""
        patience, rung = self.config.patience, []
        for name, message in messages.items():
            if message is None:
                continue
            held = self._held[name]
            self._held[name] = held = min(max(held, 0) + 1, patience) if message else max(min(held, 0) - 1, -patience)
            if held == -patience:
                self._active[name] = False
            # A policy can be gone after a single update, before there is a start to compare it with; evaluations of the panel are several
            # updates apart, of which `unlearned` waits for more than one; and entropy that explodes doubles within few.
            rings_at_once = name in ("entropy_exploding", "step_too_large", "unlearned")
            if held >= (1 if rings_at_once else patience) and not self._active[name]:
                self._active[name] = True
                rung.append(Alarm(name=name, step=step, message=message, values=dict(self.now)))
        return rung

    def metrics(self) -> dict[str, float]:
        """Smoothed indicators, trends, shares of the start, the entropy law and the number of alarms on, under `collapse/`."""
        logged = ("entropy", "reward_density", "all_low_share", "all_high_share", "repetition", "distinct_2", "reply_length", "mismatch")
        out = {name: self.now.get(name, math.nan) for name in logged}
        out["zero_variance_share"] = out["all_low_share"] + out["all_high_share"]
        out |= {"entropy_slope": self.entropy_slope(), "updates_to_exhaustion": self.updates_to_exhaustion()}
        out |= {"gradient_spike": self.gradient_spike(), "spread_fall": self.spread_fall()}
        out["probe_fall"] = max((best - self.now[name] for name, best in self.best.items()), default=math.nan)
        shares = ("entropy", "reward_density", "reply_length", "strategy_entropy")
        out |= {f"{name}_of_start": self.share_of_start(name) for name in shares}
        if (law := self.entropy_law()) is not None:
            out |= {"ceiling": law.ceiling, "headroom": law.headroom(self.now["probe_reward"]), "law_r_squared": law.r_squared}
        out |= {"alarms_on": float(sum(self._active.values())), "alarm": float(self._active["collapse"])}
        return {f"collapse/{name}": value for name, value in out.items() if math.isfinite(value)}

    def identity(self) -> dict[str, Any]:
        """Version, and the settings without which a saved average or window means something else."""
        return {"version": 8, "settings": {name: getattr(self.config, name) for name in ("start_updates", "entropy_window")}}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        parts = {name: value for name, value in vars(self).items() if name != "config"}
        return {**self.identity(), **{name: list(part) if isinstance(part, deque) else dict(part) for name, part in parts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; ValueError for another version or settings, which leaves the monitor unchanged."""
        require_same("collapse state", state, self.identity())
        parts = {name: (part, deepcopy(state[name])) for name, part in vars(self).items() if name != "config"}
        vars(self).update({name: deque(saved, part.maxlen) if isinstance(part, deque) else saved for name, (part, saved) in parts.items()})

    def entropy_exhausting(self) -> str | None:
        left, share = self.updates_to_exhaustion(), self.share_of_start("entropy")
        if math.isnan(left) or math.isnan(share):
            return None
        message = f"Entropy is at {share:.0%} of its start and at its present rate will be spent in {left:.0f} updates."
        return message if share < 0.5 and left < self.config.exhaustion_updates else ""

    def weights_lost(self) -> str | None:
        running = {name: self.running(name) for name in ("mismatch_k1", "mismatch_chi2", "effective_share")}
        now = {name: value for name, value in running.items() if not math.isnan(value)}
        if not now:
            return None
        bias, chi2, effective = now.get("mismatch_k1", 0.0), now.get("mismatch_chi2", 0.0), now.get("effective_share", 1.0)
        config = self.config
        if not (abs(bias) > config.mismatch_high or chi2 > config.chi_square_high or effective < config.effective_low):
            return ""
        named = {"mismatch_k1": f"k1 {bias:.2g} nats", "mismatch_chi2": f"chi2 {chi2:.2g}", "effective_share": f"{effective:.0%} effective"}
        return f"Importance weights between engine and trainer are far from one ({', '.join(named[name] for name in now)})."

    def gradient_spiking(self) -> str | None:
        score = self.gradient_spike()
        if math.isnan(score):
            return None
        num = self.num_infinite.get("gradient_norm", 0)
        size = f"is infinite ({num} in a row)" if num else f"lies {score:.1f} robust deviations above the usual"
        return f"The gradient's norm {size}." if score > self.config.spike_high else ""

    def step_too_large(self) -> str | None:
        if "update_kl" not in self.latest:
            return None
        moved = math.inf if self.num_infinite.get("update_kl") else self.latest["update_kl"]
        usual = self.now.get("update_kl", moved)
        numbers = f"{moved:.2g} nats a token, {usual:.2g} in the running mean"
        message = f"This step of training moves the policy {numbers}: the step is too large."
        return message if max(moved, usual) > self.config.update_kl_high else ""

    def spread_cliff(self) -> str | None:
        fall = self.spread_fall()
        if math.isnan(fall):
            return None
        message = f"Reward's spread within groups is {self.now['reward_spread']:.3g}, {fall:.0%} less than shortly before."
        return message if fall > self.config.spread_fall else ""

    def few_groups_carry(self) -> str | None:
        if not self.ready("groups_effective"):
            return None
        now = self.now["groups_effective"]
        return f"A step rests on {now:.0%} of its groups: the others hardly differ within." if now < self.config.groups_low else ""

    def truncated(self) -> str | None:
        if "truncated" not in self.now:
            return None
        now, start = self.now["truncated"], self.start["truncated"]
        message = f"{now:.0%} of the dialogues are cut off, as no further reply fits their context ({start:.0%} at the start)."
        if now >= 0.1:  # also where it was so from the first
            return message
        if not self.ready("truncated"):
            return None
        return message if now > max(self.config.truncated_high, 2.0 * start) else ""

    def length_drift(self) -> str | None:
        ratio, limit = self.share_of_start("reply_length"), self.config.length_ratio
        if math.isnan(ratio):
            return None
        message = f"Replies have {self.now['reply_length']:.0f} tokens, {ratio:.2g} times as many as at the start."
        return message if ratio > limit or ratio < 1.0 / limit else ""

    def template(self) -> str | None:
        # From 0.02 nats of information between strategy and user an agent counts as adapted at the start.
        names = [name for name in ("strategy_by_intention", "strategy_by_persona") if self.ready(name) and self.start[name] > 0.02]
        if not names:
            return None
        shares = {name.removeprefix("strategy_by_"): self.now[name] / self.start[name] for name in names}
        lost = {trait: share for trait, share in shares.items() if share < self.config.dependence_low}
        named = ", ".join(f"on the user's {trait} to {max(share, 0.0):.0%}" for trait, share in lost.items())
        return f"The dependence of strategy fell {named} of its start: all users get the same answers." if lost else ""

    def interchangeable(self) -> str | None:
        # By chance retrieval accuracy is 1 in 16; from 0.25 at the start there is something to lose.
        share = self.share_of_start("retrieval")
        if math.isnan(share) or self.start["retrieval"] < 0.25:
            return None
        now, start = self.now["retrieval"], self.start["retrieval"]
        message = f"Only {now:.0%} of the first replies fit their own user best ({start:.0%} at the start): all get the same answer."
        return message if share < self.config.retrieval_low else ""

    def probe_regression(self) -> str | None:
        cells = [name for name in self.PANEL if self.ready(name)]
        if not cells:
            return None
        falls = {name: self.best[name] - self.now[name] for name in cells}
        limits = {name: self.config.probe_fall if name == "probe_reward" else self.config.cell_fall for name in cells}
        worst = max(cells, key=lambda name: falls[name] / limits[name])
        message = f"On the {cell_named(worst)} probe panel reward is {self.now[worst]:.2f}, {falls[worst]:.2f} below its best."
        return message if falls[worst] > limits[worst] else ""

    def unlearned(self) -> str | None:
        if not self.low_evaluations:
            return None
        longest = max(self.low_evaluations, key=lambda name: self.low_evaluations[name])
        num, now, best = self.low_evaluations[longest], self.latest[longest], self.best_evaluation[longest]
        numbers = f"{num} evaluations in a row were low, the last one {now:.2f}, the best one {best:.2f}"
        return f"On the {cell_named(longest)} probe panel {numbers}." if num >= self.config.unlearned_looks else ""

    def reward_gamed(self) -> str | None:
        if not (self.ready("reward") and self.ready("emotion")):
            return None
        config, paid, felt = self.config, self.now["reward"], self.now["emotion"]
        more_paid, more_felt = paid - self.start["reward"], felt - self.start["emotion"]
        has_gained = more_paid > -config.gamed_gain and more_paid - more_felt > config.gamed_gain
        is_gamed = has_gained and more_felt < config.gamed_share * more_paid
        message = f"Reward changed by {more_paid:+.2f} of 1 since the start, users' final emotion by {100 * more_felt:+.0f} of 100."
        # A reward below the emotion asks for more than emotion, such as a form that is learned: nothing is paid for nothing.
        return message if is_gamed and paid > felt else ""

    def strictness_disobeyed(self) -> str | None:
        if not self.ready("obedience"):
            return None
        now = self.now["obedience"]
        return f"Stricter users of the panel are no harder (rank correlation of strictness and reward {now:+.2f})." if now >= 0.0 else ""


def cell_named(name: str) -> str:
    """A cell of the panel in words."""
    return "whole" if name == "probe_reward" else name.removeprefix("probe_")


SIGNAL, POLICY, BEHAVIOUR, OUTCOME = Evidence
ALARMS: Mapping[str, tuple[Evidence | None, Callable[[Any], str | None]]] = {
    "entropy_spent": (POLICY, Threshold("entropy", "of start <", "entropy_low", "Entropy is {now:.3g} nats, {share:.0%} of its start.")),
    "entropy_exhausting": (POLICY, CollapseMonitor.entropy_exhausting),
    "entropy_exploding": (
        None,
        Threshold("entropy", "of start >", "entropy_high", "Entropy is {now:.3g} nats, {share:.2g} times its start."),
    ),
    "forks_decided": (
        POLICY,
        Threshold(
            "forking_entropy", "of start <", "entropy_low", "Where the policy decides, entropy is {now:.3g} nats, {share:.0%} of its start."
        ),
    ),
    "narrowing": (
        POLICY,
        Threshold(
            "covariance", ">", "covariance_high", "Logprob and advantage vary together by {now:.3g} nats: likely tokens become likelier."
        ),
    ),
    "mismatch": (POLICY, Threshold("mismatch", ">", "mismatch_high", "Trainer and engine differ by {now:.3g} nats on the sampled tokens.")),
    "weights_lost": (POLICY, CollapseMonitor.weights_lost),
    "far_from_reference": (POLICY, Threshold("kl", ">", "kl_high", "The policy is {now:.3g} nats a token away from its reference.")),
    "gradient_spike": (POLICY, CollapseMonitor.gradient_spiking),
    "step_too_large": (POLICY, CollapseMonitor.step_too_large),
    "density_lost": (
        SIGNAL,
        Threshold("reward_density", "of start <", "density_low", "Reward density is {now:.3g}, {share:.0%} of its start."),
    ),
    "spread_cliff": (SIGNAL, CollapseMonitor.spread_cliff),
    "all_fail_alike": (
        SIGNAL,
        Threshold(
            "all_low_share", ">", "alike_share", "{now:.0%} of the groups failed as a whole: the users are too strict to learn from."
        ),
    ),
    "all_succeed_alike": (
        SIGNAL,
        Threshold(
            "all_high_share", ">", "alike_share", "{now:.0%} of the groups succeeded as a whole: the users are too lenient to learn from."
        ),
    ),
    "alike_beyond_chance": (
        SIGNAL,
        Threshold("alike_excess", "grown >", "alike_excess", "{now:.0%} more groups than by chance end equal ({start:.0%} at the start)."),
    ),
    "few_groups_carry": (SIGNAL, CollapseMonitor.few_groups_carry),
    "best_no_better": (
        SIGNAL,
        Threshold(
            "best_of_k", "of start <", "density_low", "The best of four siblings gains {now:.3g} over their mean, {share:.0%} of the start."
        ),
    ),
    "repetition": (
        BEHAVIOUR,
        Threshold("repetition", "grown >", "repetition_high", "{now:.0%} of 4-grams repeat the agent's own turns ({start:.0%} at first)."),
    ),
    "own_overlap": (
        BEHAVIOUR,
        Threshold("own_overlap", "grown >", "overlap_high", "A reply shares {now:.0%} with earlier ones ({start:.0%} at the start)."),
    ),
    "siblings_alike": (
        BEHAVIOUR,
        Threshold(
            "bleu_siblings", "grown >", "siblings_bleu_high", "Siblings say the same: self-BLEU {now:.2f} ({start:.2f} at the start)."
        ),
    ),
    "prompts_alike": (
        BEHAVIOUR,
        Threshold(
            "bleu_prompts", "grown >", "prompts_bleu_high", "Users get the same answer: self-BLEU {now:.2f} ({start:.2f} at the start)."
        ),
    ),
    "diversity_lost": (
        BEHAVIOUR,
        Threshold("distinct_2", "of start <", "distinct_low", "Only {now:.0%} of word pairs are distinct, {share:.0%} of the start."),
    ),
    "compressible": (
        BEHAVIOUR,
        Threshold(
            "compression", "of start >", "compression_ratio", "Replies pack to 1 / {now:.1f}, {share:.2g} times as small as at the start."
        ),
    ),
    "length_drift": (BEHAVIOUR, CollapseMonitor.length_drift),
    "truncated": (BEHAVIOUR, CollapseMonitor.truncated),
    "strategies_narrowed": (
        BEHAVIOUR,
        Threshold(
            "strategy_entropy", "of start <", "strategies_low", "Entropy of the strategies is {now:.2f} nats, {share:.0%} of its start."
        ),
    ),
    "template": (BEHAVIOUR, CollapseMonitor.template),
    "interchangeable": (BEHAVIOUR, CollapseMonitor.interchangeable),
    "probe_regression": (OUTCOME, CollapseMonitor.probe_regression),
    "unlearned": (OUTCOME, CollapseMonitor.unlearned),
    "stuck_at_bounds": (None, Threshold("bounds_share", ">", "bounds_share", "{now:.0%} of the tasks are as easy or as strict as can be.")),
    "strictness_disobeyed": (None, CollapseMonitor.strictness_disobeyed),
    "reward_gamed": (None, CollapseMonitor.reward_gamed),
}
"""Alarms by name: the family of evidence they belong to and their rule. None counts for nothing in the composite: a fault of the difficulty
or of the reward is no collapse, and a policy that begins narrow may vary more as it learns (toy students do)."""
