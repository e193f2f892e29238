"""The forgetting watch: a fall of the probe panel below its best calls for replay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.task import GroupOutcome
from simulator.settings import SETTINGS


@settings_dataclass(config=SETTINGS)
class ForgettingConfig:
    """When a fall in the probe panel counts as forgetting, and how much replay it calls for."""

    enabled: bool = True
    """False never replays (the ablation)."""
    rate: float = Field(default=0.06, gt=0, le=1)
    """Weight of one probe dialogue in the running mean of its band."""
    fading: float = Field(default=0.002, ge=0, le=1)
    """Share of the gap to the present by which the best fades with each dialogue of its band."""
    num_errors: float = Field(default=2.5, ge=0, le=100)
    """Fall that is attributed to chance, in standard errors of the running mean."""
    full: float = Field(default=0.05, gt=0, le=1)
    """Fall beyond that from which all groups are replay, as a share of the band's best."""


class ForgettingWatch:
    """Compares the performance of each band of strictness on the probe panel with its best; a loss calls for a share of replay.

    The panel plays the same training dialogues again and again. Each dialogue, of performance x, moves the running mean of its band,

        now_b += max(rate, 1 / n_b) (x - now_b)

    n_b dialogues of band b having come so far, and best_b is the greatest now_b since the band was first judged (after 1 / rate dialogues),
    fading by `fading` of the gap with every dialogue so that a lucky panel is not held against the policy for ever. A loss asks for
    practice in any band:

        m_b     = (best_b + now_b) / 2
        slack_b = num_errors sqrt(m_b (1 - m_b) rate / (2 - rate))
        share   = clip(max_b (best_b - now_b - slack_b) / (full best_b), 0, 1)

    The root is the standard error of a running mean of successes; graded rewards have a smaller one. When the bands have recovered, the
    share falls back to 0. A group of replay is practice all the same, so `num_errors` is low.

    Source: our own; compared with a fixed share on student S3 (docs/toy_benchmark.md).
    """

    NUM_BANDS: ClassVar[int] = 5

    def __init__(self, config: ForgettingConfig) -> None:
        self.config = config
        self.now, self.best, self.num_seen = [0.0] * self.NUM_BANDS, [0.0] * self.NUM_BANDS, [0] * self.NUM_BANDS

    def learn(self, probes: Sequence[GroupOutcome], performances: Sequence[float]) -> None:
        """Takes in probe groups with their performance in [0, 1], each one dialogue or several of the same kind; NaN is passed over."""
        for probe, performance in zip(probes, performances, strict=True):
            if math.isnan(performance):
                continue
            band = min(int(probe.task.strictness * self.NUM_BANDS), self.NUM_BANDS - 1)
            self.num_seen[band] += 1
            self.now[band] += max(self.config.rate, 1.0 / self.num_seen[band]) * (performance - self.now[band])
            if self.num_seen[band] * self.config.rate >= 1.0:
                faded = self.best[band] - self.config.fading * (self.best[band] - self.now[band])
                self.best[band] = max(faded, self.now[band])

    @property
    def drops(self) -> list[float]:
        """How far the performance of each band lies below its best, from lenient to strict; 0 before a band is judged."""
        bands = zip(self.now, self.best, self.num_seen, strict=True)
        return [best - now if num_seen * self.config.rate >= 1.0 else 0.0 for now, best, num_seen in bands]

    @property
    def replay_share(self) -> float:
        """Share of the groups that should practise what was lost, in [0, 1]."""
        num_errors, rate, share = self.config.num_errors, self.config.rate, 0.0
        for drop, now, best in zip(self.drops, self.now, self.best, strict=True):
            middle = (best + now) / 2.0
            slack = num_errors * math.sqrt(max(middle * (1.0 - middle), 0.0) * rate / (2.0 - rate))
            if drop > slack:
                share = max(share, (drop - slack) / (self.config.full * best))
        return min(share, 1.0) if self.config.enabled else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.now, "best": self.best, "num_seen": self.num_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.now, self.best, self.num_seen = (list(state[name]) for name in ("now", "best", "num_seen"))
