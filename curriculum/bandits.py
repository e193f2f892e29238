"""Bandits over difficulty cells: SEC, DUMP, teacher-student curriculum learning (TSCL) and learning progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.cells import CellConfig, CellTeacher, mean_abs_advantage, mean_over_rollouts, softmax
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

        Q(c) <- a r(c) + (1 - a) Q(c)                for cells with outcomes
        P(c) = exp(Q(c) / T) / sum exp(Q / T)

    Advantages are those of GRPO, divided by the standard deviation of their group, as published. With binary rewards r is then about
    2 sqrt(p (1 - p)); with dense rewards it hardly depends on difficulty, and `normalise=false` with a `temperature` of about 0.03 keeps
    the signal. Noise looks like learning: a family that succeeds by the toss of a coin has the largest advantages. A cell without outcomes
    keeps its value; the public code, with few categories, decays it by 1 - a a step.

    Defaults: rate 0.5 as in all public scripts; they set the temperature to 1, 0.4 or 0.2 by task, ours is 0.2.

    Source: arXiv 2505.14970; public scripts (a 0.5).
    """

    kind = "sec"
    config: SecConfig

    def columns(self) -> dict[str, float]:
        """Q of each cell."""
        return {"q": 0.0}

    def preferences(self, cells: slice) -> np.ndarray:
        return softmax(self.table["q"][cells], self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        q_C = self.table["q"]
        for cell, members in self.by_cell(groups):
            reward = mean_over_rollouts(members, lambda group: mean_abs_advantage(group, normalise=self.config.normalise))
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
    count_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on every count after each `observe`; 1 as published, 0.99 keeps exploring."""


class DumpTeacher(CellTeacher):
    """A bandit over difficulty cells that seeks large advantages and cells it seldom tried: DUMP's upper confidence bound.

    With L(c) the mean |advantage| over the last `window` rollouts of cell c (0 before any), n(c) the rollouts it had, N their sum over the
    cells that are drawn from together, w the `exploration` and T the `temperature`, in standard deviations of a group (in reward where
    `normalise` is off):

        score(c) = L(c) + w sqrt(2 ln(N + 1) / (n(c) + 1)),     P(c) = exp(score(c) / T) / sum exp(score / T)

    Counts are cumulative, as published, so exploration dies; with `count_decay` below 1 they fade with every `observe` and it does not. The
    window holds whole groups, at least one. The public code feeds rewards of its validation set in as if they were advantages; here
    evaluation cannot reach a teacher. As with SEC, noise looks like learning.

    Defaults: window 300, T 0.1, w 1, as in the public code.

    Source: arXiv 2504.09710, github.com/ZhentingWang/DUMP.
    """

    kind = "dump"
    config: DumpConfig

    def columns(self) -> dict[str, float]:
        """L and n of each cell."""
        return {"learnability": 0.0, "count": 0.0}

    def window_size(self) -> int:
        """Whole groups."""
        return max(1, self.config.window // self.group_size)

    def preferences(self, cells: slice) -> np.ndarray:
        counts_N = self.table["count"][cells]
        bonus_N = np.sqrt(2.0 * math.log(counts_N.sum() + 1.0) / (counts_N + 1.0))
        return softmax(self.table["learnability"][cells] + self.config.exploration * bonus_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        counts_C = self.table["count"]
        counts_C *= self.config.count_decay
        for cell, members in self.by_cell(groups):
            window = self.table.windows[cell]
            for group in members:
                window.append([mean_abs_advantage(group, normalise=self.config.normalise), len(group.surviving)])
                counts_C[cell] += len(group.surviving)
            sizes = sum(size for _, size in window)
            self.table["learnability"][cell] = sum(value * size for value, size in window) / sizes

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/dump_least_count": float(self.table["count"].min())}


class Variant(StrEnum):
    """How TSCL measures change."""

    ONLINE = "online"
    NAIVE = "naive"
    WINDOW = "window"
    SAMPLING = "sampling"


@dataclass(config=SETTINGS)
class TsclConfig(CellConfig):
    """Settings of `TsclTeacher`."""

    variant: Variant = Variant.ONLINE
    """online, naive, window or sampling."""
    rate: float = Field(default=0.1, gt=0, le=1)
    """Weight a of the newest change (online) or slope (naive)."""
    window: int = Field(default=10, ge=2, le=1000)
    """Latest observations of a cell through which the slope is laid (window), or from whose changes one is drawn (sampling); steps between
    two updates (naive)."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Share of the groups that is spread evenly."""
    temperature: float = Field(default=0.0, ge=0, le=100)
    """T of the softmax over |Q|; 0 is greedy. Not for sampling."""


class TsclTeacher(CellTeacher):
    """Teacher-student curriculum learning (TSCL): practise where reward changes fastest, whether it rises or falls.

    With x the mean reward of a cell's groups that came back together, in [0, 1], and t the step they were issued in, a cell's value is, by
    `variant`,
        online     Q <- a (x - x before) + (1 - a) Q, with a the `rate`; 0 before the second x
        naive      Q <- a s + (1 - a) Q after each `window` steps, s the slope of x over t within them, 1 with fewer than two t; 0 at first
        window     the slope of x over t by least squares through its last `window` pairs, reward a step; 1 before the second t
        sampling   one of its last `window` changes x - x before, drawn evenly for each group; 1 before the second x

    and the next groups are drawn by the size of the values, e being `epsilon`, T the `temperature` in the units of the value:

        P(c) = e / C + (1 - e) exp(|Q(c)| / T) / sum exp(|Q| / T);    at T = 0 the greatest |Q| takes it all

    With `sampling` there is no T: the greatest of the values drawn takes it, and P(c) is the exact chance that c's is the greatest.

    Reward changes by chance as well, most at even odds: with few rollouts a cell the noise of x (0.18 for 8 coins) is most of the signal.

    Defaults: window 10, rate 0.1, epsilon 0.1 and T = 0 as in the public code, whose own default is sampling and which examines all cells
    after each step; here a cell's value stays until the cell comes again (naive: is 1). T about 0.003 spreads a step over several cells.

    Source: arXiv 1707.00183 (its four variants), github.com/tambetm/TSCL.
    """

    kind = "tscl"
    config: TsclConfig

    def columns(self) -> dict[str, float]:
        """Q of each cell."""
        return {"q": 0.0 if self.config.variant in (Variant.ONLINE, Variant.NAIVE) else 1.0}

    def window_size(self) -> int:
        """Pairs of step and mean reward; `online` needs the latest only, and a change lies between two."""
        return {Variant.ONLINE: 1, Variant.SAMPLING: self.config.window + 1}.get(self.config.variant, self.config.window)

    def explore_share(self) -> float:
        return self.config.epsilon

    def preferences(self, cells: slice) -> np.ndarray:
        if self.config.variant is Variant.SAMPLING:
            rewards = ([x for _, x in window] for window in self.table.windows[cells])
            return chances_of_greatest([np.abs(np.diff(x)) if len(x) > 1 else np.ones(1) for x in rewards])
        size_N = np.round(np.abs(self.table["q"][cells]), 9)  # values that are equal by algebra may differ in their last bit
        if self.config.temperature == 0.0:
            return (size_N == size_N.max()) / np.count_nonzero(size_N == size_N.max())
        return softmax(size_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        q_C, rate, variant = self.table["q"], self.config.rate, self.config.variant
        if variant is Variant.NAIVE:
            self._close_block()
        for cell, members in self.by_cell(groups):
            step = float(np.mean([group.task.teacher_step for group in members]))
            reward = mean_over_rollouts(members, lambda group: group.mean_reward)
            seen = self.table.windows[cell]
            if variant is Variant.ONLINE and seen:
                q_C[cell] += rate * (reward - seen[-1][1] - q_C[cell])
            seen.append([step, reward])
            if variant is Variant.WINDOW:
                q_C[cell] = slope(np.array(seen), unknown=q_C[cell])
            if variant is Variant.SAMPLING and len(seen) > 1:
                q_C[cell] = float(np.mean(np.diff([x for _, x in seen])))

    def _close_block(self) -> None:
        """Once a block of `window` steps is over, takes in its slopes and empties it."""
        windows, size = self.table.windows, self.config.window
        steps = [entry[0] for seen in windows for entry in seen]
        if steps and (min(steps) - 1) // size < (self.step - 1) // size:
            slopes_C = [slope(np.array(seen), unknown=1.0) if seen else 1.0 for seen in windows]
            q_C = self.table["q"]
            q_C += self.config.rate * (np.array(slopes_C) - q_C)
            for seen in windows:
                seen.clear()

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/tscl_fastest": float(np.abs(self.table["q"]).max())}


def slope(points_N2: np.ndarray, *, unknown: float) -> float:
    """Least-squares slope of the second column over the first; `unknown` where the first does not vary."""
    t_N, x_N = points_N2.T
    deviations_N = t_N - t_N.mean()
    spread = float(deviations_N @ deviations_N)
    return float(deviations_N @ x_N) / spread if spread > 0.0 else unknown


def chances_of_greatest(values: Sequence[np.ndarray]) -> np.ndarray:
    """[C] chance that a value drawn evenly from a cell's own is the greatest of the C drawn, ties broken evenly.

    With v drawn for a cell, and below and equal the shares of another cell's values that are less than v and the same, the chance that it
    wins is the integral over u in [0, 1] of the product of (below + equal u), as that of u^k, 1 / (k + 1), is the chance among k ties.
    """
    rounded = [np.round(each, 9) for each in values]
    nodes_U, weights_U = np.polynomial.legendre.leggauss(min(len(values) // 2 + 1, 24))
    u_U, weights_U = (nodes_U + 1.0) / 2.0, weights_U / 2.0
    chances_C = np.zeros(len(values))
    for v in np.unique(np.concatenate(rounded)):
        below_C = np.array([np.mean(each < v) for each in rounded])
        equal_C = np.array([np.mean(each == v) for each in rounded])
        factors_CU = below_C[:, None] + equal_C[:, None] * u_U
        for c in np.flatnonzero(equal_C):
            chances_C[c] += equal_C[c] * float(np.delete(factors_CU, c, axis=0).prod(axis=0) @ weights_U)
    return chances_C / chances_C.sum()


MAX_BASELINE = 0.75


@dataclass(config=SETTINGS)
class ProgressConfig(CellConfig):
    """Settings of `ProgressTeacher`."""

    rate: float = Field(default=0.1, gt=0, le=1)
    """Step a of the fast average, and of the slow one that follows it."""
    theta: float = Field(default=0.1, gt=0, le=0.5)
    """How much more a change near 0 counts than one near 1; 0.5 weighs all equally."""
    uniform_share: float = Field(default=0.25, ge=0, le=1)
    """Share e of the groups that is spread evenly."""
    baseline_groups: int = Field(default=0, ge=0, le=1000)
    """First groups of a cell that make up its baseline; 0 takes success as it is."""


class ProgressTeacher(CellTeacher):
    """Learning progress: practise where a fast and a slow average of success differ, whether success rises or falls.

    With s the success rate of a cell's groups that came back together and a the `rate`:

        fast <- fast + a (s - fast),    slow <- slow + a (fast - slow)        both start at the first s
        w(p) = p (1 - h) / (p + h (1 - 2 p))                                  h = `theta`; small p are resolved best
        progress = |w(fast) - w(slow)|                                        0 for a cell that was never seen
        P(c) = e / C + (1 - e) sigmoid(z(c)) / sum sigmoid(z)                 z = progress less its mean over cells, over its deviation

    Noise, impossible and mastered cells fall to little more than the even share e (`uniform_share`). A cell without progress keeps a
    sigmoid, so over many cells this is gentle; the public code takes z over the cells with progress alone.

    With `baseline_groups` above 0 success is counted above the untrained agent's, s <- max(s - b, 0) / (1 - b), b being the mean of the
    cell's first so many groups, at most 0.75; early progress then counts as baseline.

    Defaults: rate 0.1, h 0.1, e 0.25 as in the public code.

    Source: arXiv 2106.14876, arXiv 2306.01711 (OMNI), Syllabus (its baseline is measured beforehand with a random policy, which a teacher
    does not have).
    """

    kind = "progress"
    config: ProgressConfig

    def columns(self) -> dict[str, float]:
        """Both averages, and the baseline with the number of its groups."""
        return {"fast": math.nan, "slow": math.nan, "baseline": 0.0, "num_baseline": 0.0}

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
        """Moves both averages of the cells with outcomes, or their baseline while that is being measured."""
        fast_C, slow_C, baseline_C, num_C = (self.table[name] for name in ("fast", "slow", "baseline", "num_baseline"))
        rate = self.config.rate
        for cell, members in self.by_cell(groups):
            missing = max(0, self.config.baseline_groups - int(num_C[cell]))
            for group in members[:missing]:
                num_C[cell] += 1.0
                baseline_C[cell] += (group.success_rate - baseline_C[cell]) / num_C[cell]
            if after := members[missing:]:
                baseline = min(baseline_C[cell], MAX_BASELINE)
                success = max(mean_over_rollouts(after, lambda group: group.success_rate) - baseline, 0.0) / (1.0 - baseline)
                if np.isnan(fast_C[cell]):
                    fast_C[cell] = slow_C[cell] = success
                fast_C[cell] += rate * (success - fast_C[cell])
                slow_C[cell] += rate * (fast_C[cell] - slow_C[cell])

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/progress_best": float(self.progress(slice(None)).max())}
