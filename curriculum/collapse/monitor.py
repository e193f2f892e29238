"""Monitor of collapse: raises alarms on the indicators of a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from curriculum.checks import require_same
from curriculum.collapse.alarms import ALARMS, AT_ONCE, Evidence
from curriculum.collapse.history import CollapseConfig, IndicatorHistory
from curriculum.collapse.indicators import largest_fall

LOGGED = ("entropy", "reward_density", "all_low_share", "all_high_share", "repetition", "distinct_2", "reply_length", "mismatch")
"""Indicators whose running average is a metric of its own; of the others the raw value is enough."""
SHARES_OF_START = ("entropy", "reward_density", "reply_length", "strategy_entropy")
"""Indicators whose share of their start is a metric."""
STATE_VERSION = 8


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A condition that has held for `patience` updates, or that need not wait."""

    name: str
    step: int
    message: str
    """The condition in plain words with its numbers."""
    values: dict[str, float]
    """The smoothed indicators known at that step."""


class CollapseMonitor(IndicatorHistory):
    """Streams indicators and raises alarms; memory does not grow with the run.

    Falling entropy alone is learning as often as collapse, so the composite alarm named `collapse` needs evidence of two families at once:
    the *signal* (rewards within groups are equal), the *policy* (it has narrowed, or trainer and engine disagree), the *behaviour* (it
    repeats itself), the *outcome* (the probe panel scores lower). docs/collapse.md has every alarm with its formula and threshold.
    """

    def __init__(self, config: CollapseConfig) -> None:
        super().__init__(config)
        # Updates with (above 0) or without (below 0) a condition, in a row, at most `patience`.
        self._held = dict.fromkeys([*ALARMS, "collapse"], 0)
        self._active = dict.fromkeys(self._held, False)

    def observe(self, step: int, values: Mapping[str, float]) -> list[Alarm]:
        """Takes in the indicators of one update.

        Args:
            values: by the names in `INDICATOR_METRICS`; missing ones, None and NaN leave their indicator as it was.

        Returns:
            The alarms that ring at this step; each rings once until its condition has been gone for `patience` updates.

        Raises:
            ValueError: a name that is none of the indicators, or a share that is not in [0, 1].
        """
        self.add(values)
        messages = {name: rule(self) for name, (_, rule) in ALARMS.items()}
        messages["collapse"] = _composite(messages)
        rung = [name for name, message in messages.items() if self._rings(name, message)]
        return [Alarm(name=name, step=step, message=str(messages[name]), values=dict(self.now)) for name in rung]

    def _rings(self, name: str, message: str | None) -> bool:
        """Counts an update with or without the condition; True when an alarm that is off has been held long enough."""
        if message is None:
            return False
        limit = self.config.patience
        held = min(max(self._held[name], 0) + 1, limit) if message else max(min(self._held[name], 0) - 1, -limit)
        self._held[name] = held
        if held == -limit:
            self._active[name] = False
        starts = held >= (1 if name in AT_ONCE else limit) and not self._active[name]
        self._active[name] = self._active[name] or starts
        return starts

    def metrics(self) -> dict[str, float]:
        """Smoothed indicators, trends, shares of the start, the entropy law and the number of alarms on, under `collapse/`."""
        out = {name: self.now[name] for name in LOGGED if name in self.now}
        if {"all_low_share", "all_high_share"} <= set(self.now):
            out["zero_variance_share"] = self.now["all_low_share"] + self.now["all_high_share"]
        extra = {"entropy_slope": self.entropy_slope(), "updates_to_exhaustion": self.updates_to_exhaustion()}
        extra |= {"gradient_spike": self.gradient_spike(), "spread_fall": self.spread_fall()}
        extra["probe_fall"] = largest_fall(list(self.best.values()), [self.now[name] for name in self.best])
        extra |= {f"{name}_of_start": self.share_of_start(name) for name in SHARES_OF_START}
        if (law := self.entropy_law()) is not None:
            extra |= {"ceiling": law.ceiling, "headroom": law.headroom(self.now["probe_reward"]), "law_r_squared": law.r_squared}
        out |= {name: value for name, value in extra.items() if math.isfinite(value)}
        out |= {"alarms_on": float(sum(self._active.values())), "alarm": float(self._active["collapse"])}
        return {f"collapse/{name}": value for name, value in out.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        state = {name: deepcopy(value) for name, value in vars(self).items() if name != "config"}
        return {**self._identity(), **{name: list(value) if isinstance(value, deque) else value for name, value in state.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; a state that cannot be restored leaves the monitor unchanged.

        Raises:
            ValueError: it is of another version or other settings.
        """
        require_same("collapse state", state, self._identity())
        restored = {name: deepcopy(state[name]) for name in vars(self) if name != "config"}
        for name, value in vars(self).items():
            if isinstance(value, deque):
                restored[name] = deque(restored[name], maxlen=value.maxlen)
        vars(self).update(restored)

    def _identity(self) -> dict[str, Any]:
        """Version, and the settings without which a saved average or window means something else."""
        settings = {name: getattr(self.config, name) for name in ("start_updates", "entropy_window")}
        return {"version": STATE_VERSION, "settings": settings}


def _composite(messages: Mapping[str, str | None]) -> str:
    """The message of the alarm named `collapse` where alarms of two families hold, with one message of each."""
    seen: dict[Evidence, str] = {}
    for name, (evidence, _) in ALARMS.items():
        if evidence is not None and messages[name]:
            seen.setdefault(evidence, str(messages[name]))
    if len(seen) < 2:
        return ""
    sides = {2: "two", 3: "three", 4: "four"}[len(seen)]
    return f"The run shows collapse on {sides} sides: " + " ".join(seen.values())
