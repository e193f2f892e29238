"""Bandits over difficulty cells: SEC, DUMP, teacher-student curriculum learning (TSCL) and learning progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.cells import CellConfig, CellTeacher, advantages, mean_over_rollouts, softmax
from curriculum.task import GroupOutcome
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class SecConfig(CellConfig):
    """Settings of `SecTeacher`."""

    rate: float = Field(default=0.5, gt=0, le=1)
    """Weight a of the newest mean |advantage| in a cell's value."""
    temperature: float = Field(default=0.2, ge=1e-3, le=100)
    """T of the softmax; lower is greedier."""
    normalise: bool = True
    """Whether advantages are divided by the standard deviation of their group (as published), or left in units of reward."""


class SecTeacher(CellTeacher):
    """A bandit over difficulty cells that seeks large advantages: Self-Evolving Curriculum (SEC).

    With r(c) the mean |advantage| over the rollouts of cell c that came back together, Q(c) its running value (0 at first), a the `rate`
    and T the `temperature`, both in units of an advantage (standard deviations of a group, or reward where `normalise` is off):

        Q(c) <- a r(c) + (1 - a) Q(c)                for cells with outcomes; the others keep their value
        P(c) = exp(Q(c) / T) / sum exp(Q / T)

    With binary rewards r is about 2 sqrt(p (1 - p)); with dense rewards it hardly depends on difficulty, and `normalise=false` with a
    `temperature` of about 0.03 keeps the signal. Noise looks like learning: a coin's family has the largest advantages.

    Source: arXiv 2505.14970; rate 0.5 as in its public scripts, which set the temperature to 1, 0.4 or 0.2 by task.
    """

    kind = "sec"
    columns: ClassVar = {"q": 0.0}
    config: SecConfig

    def preferences(self, cells: slice) -> np.ndarray:
        return softmax(self.table["q"][cells], self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        q_C = self.table["q"]
        for cell, members in self.by_cell(groups):
            reward = mean_over_rollouts(members, lambda group: np.abs(advantages(group, normalise=self.config.normalise)).mean())
            q_C[cell] += self.config.rate * (reward - q_C[cell])

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/sec_best_q": float(self.table["q"].max())}


@dataclass(config=SETTINGS)
class DumpConfig(CellConfig):
    """Settings of `DumpTeacher`."""

    window: int = Field(default=300, ge=1, le=10_000)
    """Latest rollouts of a cell whose |advantage| is averaged."""
    temperature: float = Field(default=0.1, ge=1e-3, le=100)
    """T of the softmax; lower is greedier."""
    exploration: float = Field(default=1.0, ge=0, le=10)
    """Weight w of the bonus for cells that were seldom tried."""
    normalise: bool = True
    """Whether advantages are divided by the standard deviation of their group (as published), or left in units of reward."""


class DumpTeacher(CellTeacher):
    """A bandit over difficulty cells that seeks large advantages and cells it seldom tried: DUMP's upper confidence bound.

    With L(c) the mean |advantage| over the last `window` rollouts of cell c (0 before any), n(c) the rollouts it had, N their sum over the
    cells that are drawn from together, w the `exploration` and T the `temperature`, in standard deviations of a group (in reward where
    `normalise` is off):

        score(c) = L(c) + w sqrt(2 ln(N + 1) / (n(c) + 1)),     P(c) = exp(score(c) / T) / sum exp(score / T)

    Counts are cumulative, as published, so exploration dies. The window holds whole groups, at least one. As with SEC, noise looks like
    learning. The public code feeds rewards of its validation set in as if they were advantages; here evaluation cannot reach a teacher.

    Source: arXiv 2504.09710, github.com/ZhentingWang/DUMP (window 300, T 0.1, w 1).
    """

    kind = "dump"
    columns: ClassVar = {"learnability": 0.0, "count": 0.0}
    config: DumpConfig

    def window_size(self) -> int:
        return max(1, self.config.window // self.group_size)

    def preferences(self, cells: slice) -> np.ndarray:
        counts_N = self.table["count"][cells]
        bonus_N = np.sqrt(2.0 * math.log(counts_N.sum() + 1.0) / (counts_N + 1.0))
        return softmax(self.table["learnability"][cells] + self.config.exploration * bonus_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        counts_C = self.table["count"]
        for cell, members in self.by_cell(groups):
            window = self.table.windows[cell]
            for group in members:
                window.append([float(np.abs(advantages(group, normalise=self.config.normalise)).mean()), len(group.surviving)])
                counts_C[cell] += len(group.surviving)
            sizes = sum(size for _, size in window)
            self.table["learnability"][cell] = sum(value * size for value, size in window) / sizes

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/dump_least_count": float(self.table["count"].min())}


@dataclass(config=SETTINGS)
class TsclConfig(CellConfig):
    """Settings of `TsclTeacher`."""

    rate: float = Field(default=0.1, gt=0, le=1)
    """Weight a of the newest change."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Share of the groups that is spread evenly."""
    temperature: float = Field(default=0.0, ge=0, le=100)
    """T of the softmax over |Q|; 0 is greedy."""


class TsclTeacher(CellTeacher):
    """Teacher-student curriculum learning (TSCL): practise where reward changes fastest, whether it rises or falls.

    With x the mean reward of a cell's groups that came back together, in [0, 1], a the `rate`, e `epsilon` and T the `temperature` in units
    of reward:

        Q <- a (x - x before) + (1 - a) Q                                         0 before the second x
        P(c) = e / C + (1 - e) exp(|Q(c)| / T) / sum exp(|Q| / T);    at T = 0 the greatest |Q| takes it all

    Reward changes by chance as well, most at even odds: with few rollouts a cell the noise of x (0.18 for 8 coins) is most of the signal.
    T about 0.003 spreads a step over several cells. The public code has three more measures of change.

    Source: arXiv 1707.00183 (its online variant), github.com/tambetm/TSCL (rate 0.1, epsilon 0.1, T 0).
    """

    kind = "tscl"
    columns: ClassVar = {"q": 0.0, "before": math.nan}
    config: TsclConfig

    def explore_share(self) -> float:
        return self.config.epsilon

    def preferences(self, cells: slice) -> np.ndarray:
        size_N = np.round(np.abs(self.table["q"][cells]), 9)  # values that are equal by algebra may differ in their last bit
        if self.config.temperature == 0.0:
            return (size_N == size_N.max()) / np.count_nonzero(size_N == size_N.max())
        return softmax(size_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        q_C, before_C = self.table["q"], self.table["before"]
        for cell, members in self.by_cell(groups):
            reward = mean_over_rollouts(members, lambda group: group.mean_reward)
            if not np.isnan(before_C[cell]):
                q_C[cell] += self.config.rate * (reward - before_C[cell] - q_C[cell])
            before_C[cell] = reward

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/tscl_fastest": float(np.abs(self.table["q"]).max())}


@dataclass(config=SETTINGS)
class ProgressConfig(CellConfig):
    """Settings of `ProgressTeacher`."""

    rate: float = Field(default=0.1, gt=0, le=1)
    """Step a of the fast average, and of the slow one that follows it."""
    theta: float = Field(default=0.1, gt=0, le=0.5)
    """How much more a change near 0 counts than one near 1; 0.5 weighs all equally."""
    uniform_share: float = Field(default=0.25, ge=0, le=1)
    """Share e of the groups that is spread evenly."""


class ProgressTeacher(CellTeacher):
    """Learning progress: practise where a fast and a slow average of success differ, whether success rises or falls.

    With s the success rate of a cell's groups that came back together and a the `rate`:

        fast <- fast + a (s - fast),    slow <- slow + a (fast - slow)        both start at the first s
        w(p) = p (1 - h) / (p + h (1 - 2 p))                                  h = `theta`; small p are resolved best
        progress = |w(fast) - w(slow)|                                        0 for a cell that was never seen
        P(c) = e / C + (1 - e) sigmoid(z(c)) / sum sigmoid(z)                 z = progress less its mean over cells, over its deviation

    Noise, impossible and mastered cells fall to little more than the even share e (`uniform_share`). A cell without progress keeps a
    sigmoid, so over many cells this is gentle; the public code takes z over the cells with progress alone.

    Source: arXiv 2106.14876, arXiv 2306.01711 (OMNI), Syllabus (rate 0.1, h 0.1, e 0.25); without their baseline of a random policy.
    """

    kind = "progress"
    columns: ClassVar = {"fast": math.nan, "slow": math.nan}
    config: ProgressConfig

    def explore_share(self) -> float:
        return self.config.uniform_share

    def progress(self, cells: slice) -> np.ndarray:
        """[N] |w(fast) - w(slow)| of these cells, in [0, 1]."""
        h = self.config.theta
        fast_N, slow_N = (p * (1.0 - h) / (p + h * (1.0 - 2.0 * p)) for p in (self.table["fast"][cells], self.table["slow"][cells]))
        return np.nan_to_num(np.abs(fast_N - slow_N))

    def preferences(self, cells: slice) -> np.ndarray:
        progress_N = self.progress(cells)
        spread = progress_N.std()
        weights_N = 1.0 / (1.0 + np.exp((progress_N.mean() - progress_N) / spread)) if spread > 0.0 else np.ones(len(progress_N))
        return weights_N / weights_N.sum()

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        fast_C, slow_C, rate = self.table["fast"], self.table["slow"], self.config.rate
        for cell, members in self.by_cell(groups):
            success = mean_over_rollouts(members, lambda group: group.success_rate)
            if np.isnan(fast_C[cell]):
                fast_C[cell] = slow_C[cell] = success
            fast_C[cell] += rate * (success - fast_C[cell])
            slow_C[cell] += rate * (fast_C[cell] - slow_C[cell])

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/progress_best": float(self.progress(slice(None)).max())}
