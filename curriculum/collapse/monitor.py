"""Watches a run for collapse: smoothed indicators, alarms that say what they saw, and one that asks for two kinds of evidence.

Falling entropy alone is learning as often as collapse, so the alarm named `collapse` needs evidence of two families at once: the
*signal* (groups fare alike), the *policy* (it has narrowed, or trainer and engine disagree), the *behaviour* (it repeats itself), the
*outcome* (the probe panel fares worse than it did). docs/collapse.md has every alarm with its formula and threshold.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from curriculum.checks import require_alike, require_equal, require_fields
from curriculum.collapse.alarms import AT_ONCE, INDICATOR_METRICS, PANEL, RULES, SHARE_INDICATORS, UNLEARNED_FALL, CollapseConfig, Evidence
from curriculum.collapse.indicators import (
    EntropyLaw,
    fall_within,
    fit_entropy_law,
    largest_fall,
    spike_score,
    theil_sen_slope,
    updates_until,
)

__all__ = ["INDICATORS", "RULES", "Alarm", "CollapseConfig", "CollapseMonitor", "Evidence"]

INDICATORS = tuple(INDICATOR_METRICS)
"""What the monitor takes in, by name; `curriculum.collapse.alarms` says which metric each one is."""
LOGGED = ("entropy", "reward_density", "all_low_share", "all_high_share", "repetition", "distinct_2", "reply_length", "mismatch")
"""Indicators whose running average is a metric of its own; of the others the raw value is enough."""

SHARES_OF_START = ("entropy", "reward_density", "reply_length", "strategy_entropy")
"""Indicators whose share of their start is a metric."""
ROUNDING = 1e-6
"""By which a share may miss [0, 1]."""
MAX_LOOKS = 64
"""Latest looks at the probe panel on which the law of reward and entropy is fitted."""
MIN_LOOKS = 8
"""Looks below which it is not."""
STATE_VERSION = 7
ENDLESS = 1e6
"""What an infinite value counts as while it is the latest, and the most that a finite one does: far above every threshold."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A condition that has held for `patience` updates, or that need not wait."""

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
        self.best: dict[str, float] = {}
        """Highest running average of each cell of the probe panel."""
        self.best_look: dict[str, float] = {}
        """Highest single look at each of them, from the first one on."""
        self.latest: dict[str, float] = {}
        """Every indicator as it was last measured, not smoothed."""
        self.low_looks: dict[str, int] = {}
        """Looks in a row, up to the last one, that were low (`unlearned_below`)."""
        self.num_endless: dict[str, int] = {}
        """Values in a row, up to the last one, that were infinite: these count for as long as they last and enter no average or window."""
        self._num_values: dict[str, int] = {}
        self._entropies: deque[float] = deque(maxlen=config.entropy_window)
        self._spreads: deque[float] = deque(maxlen=config.entropy_window)
        self._gradients: deque[float] = deque(maxlen=config.entropy_window + 1)
        self._looks: deque[tuple[float, float]] = deque(maxlen=MAX_LOOKS)
        self._held = dict.fromkeys([*RULES, "collapse"], 0)
        self._active = dict.fromkeys(self._held, False)

    def observe(self, step: int, values: Mapping[str, float]) -> list[Alarm]:
        """Takes in what one update showed.

        Args:
            values: by the names in `INDICATORS`; missing ones, None and NaN leave their indicator as it was.

        Returns:
            The alarms that fire at this step; each fires once until its condition has been gone for `patience` updates.

        Raises:
            ValueError: a name that is none of the indicators, or a share that is not in [0, 1].
        """
        if strangers := sorted(set(values) - set(INDICATORS)):
            raise ValueError(f"collapse indicators must be among {sorted(INDICATORS)}, got {strangers}")
        measured = {name: float(value) for name, value in values.items() if value is not None}
        known = {name: min(max(value, -ENDLESS), ENDLESS) for name, value in measured.items() if not math.isnan(value)}
        for name in sorted(SHARE_INDICATORS & known.keys()):
            if not -ROUNDING <= measured[name] <= 1.0 + ROUNDING:
                raise ValueError(f"collapse indicator {name} must be in [0, 1], got {measured[name]!r}")
        self.latest |= known
        self.num_endless |= {name: self.num_endless.get(name, 0) + 1 if math.isinf(measured[name]) else 0 for name in known}
        finite = {name: value for name, value in known.items() if not self.num_endless[name]}
        for name, value in finite.items():
            self._smooth(name, value)
            if name in PANEL:
                self._look(name, value)
        if {"probe_entropy", "probe_reward"} <= set(finite):
            self._looks.append((finite["probe_entropy"], finite["probe_reward"]))
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
        if name == "reward_spread":
            self._spreads.append(self.now[name])
        if name == "gradient_norm":
            self._gradients.append(value)
        if name in PANEL and n >= self.config.start_updates:
            self.best[name] = max(self.best.get(name, -math.inf), self.now[name])

    def _look(self, name: str, value: float) -> None:
        """Counts looks at a cell that were low; a running average would take half a run to be sure of its own best."""
        best = self.best_look[name] = max(self.best_look.get(name, value), value)
        is_low = value < self.config.unlearned_below * best and best - value > UNLEARNED_FALL
        self.low_looks[name] = self.low_looks.get(name, 0) + 1 if is_low else 0

    def _collapse(self, messages: Mapping[str, str | None]) -> str | None:
        seen: dict[Evidence, str] = {}
        for name, (evidence, _) in RULES.items():
            if evidence is not None and messages[name]:
                seen.setdefault(evidence, str(messages[name]))
        if len(seen) < 2:
            return ""
        sides = {2: "two", 3: "three", 4: "four"}[len(seen)]
        return f"The run shows collapse on {sides} sides: " + " ".join(seen.values())

    def _fires(self, name: str, message: str | None) -> bool:
        """Counts updates for (positive) or against (negative) a condition, and says whether its alarm starts now."""
        if message is None:
            return False
        held = self._held[name]
        limit = self.config.patience
        self._held[name] = held = min(max(held, 0) + 1, limit) if message else max(min(held, 0) - 1, -limit)
        if held == -limit:
            self._active[name] = False
        starts = held >= (1 if name in AT_ONCE else limit) and not self._active[name]
        self._active[name] = self._active[name] or starts
        return starts

    def ready(self, name: str) -> bool:
        """Whether `name` has been seen often enough to have a start and a value after it."""
        return self._num_values.get(name, 0) > self.config.start_updates

    def running(self, name: str) -> float:
        """The running average of a ready indicator, +-infinity for any whose latest value is infinite; otherwise NaN."""
        if self.num_endless.get(name):
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

    def gradient_spike(self) -> float:
        """How far the latest norm of the gradient lies above those before it, in robust standard deviations; an infinite one, `ENDLESS`."""
        if self.num_endless.get("gradient_norm"):
            return ENDLESS
        *earlier, newest = self._gradients or [math.nan]
        return spike_score(earlier, newest)

    def spread_fall(self) -> float:
        """Share of the within-group standard deviation that is gone since the window's older half."""
        return fall_within(self._spreads) if self.ready("reward_spread") else math.nan

    def entropy_law(self) -> EntropyLaw | None:
        """What reward costs in entropy on the probe panel, from its latest looks; None before there are enough."""
        return fit_entropy_law(*zip(*self._looks, strict=True)) if len(self._looks) >= MIN_LOOKS else None

    def metrics(self) -> dict[str, float]:
        """Smoothed indicators, trends, shares of the start, the entropy law and the number of alarms on, under `collapse/`."""
        out = {f"collapse/{name}": value for name, value in self.now.items() if name in LOGGED}
        if {"all_low_share", "all_high_share"} <= set(self.now):
            out["collapse/zero_variance_share"] = self.now["all_low_share"] + self.now["all_high_share"]
        extra = {"entropy_slope": self.entropy_slope(), "updates_to_exhaustion": self.updates_to_exhaustion()}
        extra |= {"gradient_spike": self.gradient_spike(), "spread_fall": self.spread_fall()}
        extra["probe_fall"] = largest_fall(list(self.best.values()), [self.now[name] for name in self.best])
        extra |= {f"{name}_of_start": self.share_of_start(name) for name in SHARES_OF_START}
        if (law := self.entropy_law()) is not None:
            extra |= {"ceiling": law.ceiling, "headroom": law.headroom(self.now["probe_reward"]), "law_r_squared": law.r_squared}
        out |= {f"collapse/{name}": value for name, value in extra.items() if math.isfinite(value)}
        return {**out, "collapse/alarms_on": float(sum(self._active.values())), "collapse/alarm": float(self._active["collapse"])}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        windows = {name: list(getattr(self, attribute)) for name, attribute in _WINDOWS.items()}
        windows["looks"] = [list(look) for look in self._looks]
        values = {name: dict(getattr(self, attribute)) for name, attribute in _STATE.items()}
        return {"version": STATE_VERSION, "settings": self._settings(), **windows, **values}

    def _settings(self) -> dict[str, int]:
        """Without these a saved average or window cannot be gone on with."""
        return {name: getattr(self.config, name) for name in ("start_updates", "entropy_window")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: another version, other settings, missing or unknown fields, or values that no monitor writes; the monitor is then
                unchanged.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"collapse state must be a mapping, got {type(state).__name__}")
        require_equal("collapse state's version", state.get("version"), STATE_VERSION)
        # It may lack: then nothing that was infinite is known of.
        state = {"num_endless": {}, **state}
        require_fields("collapse state", state, ("version", "settings", *_WINDOWS, *_STATE))
        require_equal("collapse state's settings", state["settings"], self._settings())
        require_fields("collapse state's held", state["held"], self._held)
        require_fields("collapse state's active", state["active"], self._held)
        require_alike("collapse state", {name: state[name] for name in ("held", "active")}, self.state_dict())
        for name in sorted(_STATE.keys() - {"held", "active"}):
            require_alike(f"collapse state.{name}", state[name], dict.fromkeys(INDICATORS, 0.0))
            require_fields(f"collapse state.{name}", state[name], INDICATOR_METRICS.keys() & state[name].keys())
        for name in _WINDOWS:
            require_alike(f"collapse state.{name}", state[name], [[0.0, 0.0] if name == "looks" else 0.0])
        for name, attribute in _STATE.items():
            setattr(self, attribute, dict(state[name]))
        for name, attribute in _WINDOWS.items():
            setattr(self, attribute, deque(state[name], maxlen=getattr(self, attribute).maxlen))
        self._looks = deque(map(tuple, state["looks"]), maxlen=MAX_LOOKS)


_STATE = {
    **{name: name for name in ("now", "start", "best", "best_look", "latest", "low_looks", "num_endless")},
    **{name: f"_{name}" for name in ("num_values", "held", "active")},
}
_WINDOWS = {"entropies": "_entropies", "spreads": "_spreads", "gradients": "_gradients", "looks": "_looks"}
