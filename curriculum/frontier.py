"""The default teacher, frontier: practice at the hard edge of where reward density is near its maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.allocation import AllocationConfig
from curriculum.forgetting import ForgettingConfig, ForgettingWatch
from curriculum.signals import reward_density
from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec, UpdateStats
from curriculum.teacher import Teacher, TeacherConfig
from curriculum.thompson import BinsConfig, StrictnessBins
from simulator.scenario import Family, HiddenIntention
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class FrontierConfig(TeacherConfig):
    """Settings of `FrontierTeacher`."""

    near_maximum: float = Field(default=0.6, ge=0.5, le=1)
    """Share of the greatest reward density that still counts as near it; lower practises harder tasks."""
    memory: float = Field(default=32.0, ge=4, le=10_000)
    """Groups after which an outcome counts half in both curves, ability and density; shorter follows a faster learner, longer is surer."""
    explore: float = Field(default=0.05, ge=0, le=0.25)
    """Share of the groups at any strictness once 16 have come back and while all is well."""
    entropy: bool = True
    """Whether policy entropy moves difficulty and exploration; False is the ablation."""
    replay: bool = True
    """Whether strictness that the probe panel shows forgotten is practised again; False is the ablation."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)


class AbilityCurve:
    """Mean reward as a logistic function of strictness, of one shape for all families and with an offset for each.

        m_f(d) = sigma(B (a + o_f - d))

    a (the strictness where half of the reward is earned) and ln B are the posterior mode of the latest groups, each counting as its number
    of survivors and half as much for every `memory` groups of later calls, under a ~ N(1/2, 1/4) and ln B ~ N(ln 8, 1). Rewards between
    0 and 1 count as fractions of a success, and evidence is divided by their dispersion (Pearson's, that of coin flips is 1), so graded
    rewards are as informative as they are. The inverse of the Fisher information is the uncertainty that `draw` draws from. Offsets have
    mean 0 and follow a group's surprise: o_f += max(1 / (n_f + 2), 0.06) (reward - m_f(d)) / max(B / 4, 1), n_f groups of f came before;
    surprises end at 0.3 either way. What they have in common moves a and the strictness of the groups that still count, so that an agent
    that improves is followed: by the whole of a surprise with one family, by a part with many.

    Source: our own; quasi-likelihood after McCullagh & Nelder 1989, Laplace's approximation.
    """

    PRIOR_MEAN: ClassVar[np.ndarray] = np.array([0.5, math.log(8.0)])
    PRIOR_PRECISION: ClassVar[np.ndarray] = np.array([4.0, 1.0])
    LOWEST, HIGHEST = np.array([-0.5, 0.0]), np.array([1.5, math.log(100.0)])

    def __init__(self, families: Sequence[FamilyKey], memory: float) -> None:
        self.memory = memory
        self.mode_2 = self.PRIOR_MEAN.copy()
        """a and ln B."""
        self.scale_22 = np.diag(self.PRIOR_PRECISION**-0.5)
        """Cholesky factor of their covariance."""
        self.offsets = {str(family): 0.0 for family in families}
        self.num_seen = dict.fromkeys(self.offsets, 0)
        # [N, 4] strictness less offset, mean reward, survivors, weight of the groups that still count.
        self.groups_N4 = np.zeros((0, 4))

    def expected(self, family: FamilyKey, strictness: float) -> float:
        """Mean reward of `family` at a strictness, in (0, 1)."""
        return float(logistic(self.logit(family, strictness)))

    def logit(self, family: FamilyKey, strictness: float) -> float:
        """Its logit."""
        a, log_b = self.mode_2
        return float(math.exp(log_b) * (a + self.offsets[str(family)] - strictness))

    def draw(self, family: FamilyKey, logit: float, rng: np.random.Generator) -> float:
        """The strictness, perhaps outside [0, 1], at which a curve drawn from the posterior gives `family` a mean reward of this logit."""
        a, log_b = self.mode_2 + self.scale_22 @ rng.standard_normal(2)
        return float(a + self.offsets[str(family)] - logit * math.exp(-log_b))

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in groups at the strictness that they were issued at, whenever they come."""
        rows = [[g.task.strictness - self.offsets[str(g.task.family)], g.mean_reward, len(g.surviving), 1.0] for g in groups]
        faded_N4 = self.groups_N4 * np.array([1.0, 1.0, 1.0, 0.5 ** (len(groups) / self.memory)])
        self.groups_N4 = np.concatenate([faded_N4[faded_N4[:, 3] > 0.02], rows])
        self.fit()
        gain_scale = max(math.exp(self.mode_2[1]) / 4.0, 1.0)
        for group in groups:
            key = str(group.task.family)
            surprise = (group.mean_reward - self.expected(group.task.family, group.task.strictness)) / gain_scale
            self.offsets[key] += max(1.0 / (self.num_seen[key] + 2.0), 0.06) * min(max(surprise, -0.3), 0.3)
            self.num_seen[key] += 1
        mean = sum(self.offsets.values()) / len(self.offsets)
        self.offsets = {key: offset - mean for key, offset in self.offsets.items()}
        self.mode_2[0] += mean
        self.groups_N4[:, 0] += mean

    def fit(self) -> None:
        """The posterior mode by Fisher scoring from the latest one, and its uncertainty."""
        x_N, reward_N, size_N, weight_N = self.groups_N4.T
        size_N = size_N * weight_N
        for _ in range(6):  # two or three, as a rule
            a, log_b = self.mode_2
            z_N = math.exp(log_b) * (a - x_N)
            m_N = logistic(z_N)
            spread_N = np.maximum(m_N * (1.0 - m_N), 1e-3)
            chi_square = float(size_N @ (np.square(reward_N - m_N) / spread_N))
            dispersion = (chi_square + 1.0) / (weight_N.sum() + 1.0)
            slopes_2N = np.array([np.full_like(x_N, math.exp(log_b)), z_N])
            gradient_2 = slopes_2N @ (size_N * (reward_N - m_N)) / dispersion - self.PRIOR_PRECISION * (self.mode_2 - self.PRIOR_MEAN)
            information_22 = (slopes_2N * (size_N * spread_N)) @ slopes_2N.T / dispersion + np.diag(self.PRIOR_PRECISION)
            step_2 = np.clip(np.linalg.solve(information_22, gradient_2), -0.3, 0.3)
            self.mode_2 = np.clip(self.mode_2 + step_2, self.LOWEST, self.HIGHEST)
            if np.abs(step_2).max() < 1e-3:
                break
        self.scale_22 = np.linalg.cholesky(np.linalg.inv(information_22))

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("mode_2", "scale_22", "groups_N4")}
        return {**arrays, "offsets": self.offsets, "num_seen": self.num_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mode_2, self.scale_22 = np.array(state["mode_2"]), np.array(state["scale_22"])
        self.groups_N4 = np.array(state["groups_N4"], dtype=float).reshape(-1, 4)
        self.offsets, self.num_seen = dict(state["offsets"]), dict(state["num_seen"])


class DensityCurve:
    """Reward density as a function of how hard a task is for the agent, measured by the logit z of the mean reward that is expected of it.

        V(z)   = (sum_i w_i k_i density_i + 4 h(z)) / (sum_i w_i k_i + 4),       k_i = exp(-(z - z_i)^2 / (2 0.6^2))
        sd(z)  = s / sqrt(sum_i w_i k_i + 4)

    w_i halves with every `memory` later groups. h(z) = r 4 m (1 - m), m = sigma(z), is the density of coins of that mean, scaled by r to
    that of all groups. s^2 is the mean square of density_i - V(z_i), with (0.1 r^2) as if from one group before. z_i is what the ability
    curve expects: by a group's own mean, groups that happened to agree would look certain.

    Source: our own; kernel regression after Nadaraya 1964 and Watson 1964.
    """

    GRID: ClassVar[np.ndarray] = np.linspace(-6.0, 6.0, 61)
    COIN: ClassVar[np.ndarray] = 1.0 / np.cosh(GRID / 2.0) ** 2

    def __init__(self, memory: float) -> None:
        self.keep = 0.5 ** (1.0 / memory)
        self.weight_Z, self.density_Z = np.zeros(len(self.GRID)), np.zeros(len(self.GRID))
        # Running sums over groups: weight, density, what a coin would give, squared residual.
        self.totals_4 = np.array([0.0, 0.0, 0.0, 0.0])
        self.fit()

    def learn(self, z: float, density: float) -> None:
        """Takes in the density of a group."""
        residual = density - self.at(z)
        kernel_Z = np.exp(-0.5 * np.square((self.GRID - z) / 0.6))
        self.weight_Z = self.keep * self.weight_Z + kernel_Z
        self.density_Z = self.keep * self.density_Z + kernel_Z * density
        self.totals_4 = self.keep * self.totals_4 + np.array([1.0, density, 1.0 / math.cosh(z / 2.0) ** 2, residual**2])

    def fit(self) -> None:
        """V and its uncertainty, after `learn`."""
        weight, density, coin, square = self.totals_4
        r = (density + 0.01) / (coin + 0.01)
        self.values_Z = (self.density_Z + 4.0 * r * self.COIN) / (self.weight_Z + 4.0)
        self.sd_Z = math.sqrt((square + 0.1 * r * r) / (weight + 1.0)) / np.sqrt(self.weight_Z + 4.0)

    def at(self, z: float) -> float:
        """V(z)."""
        return float(np.interp(z, self.GRID, self.values_Z))

    def window(self, near_maximum: float, noise: float = 0.0) -> tuple[float, float]:
        """z of the hard edge, down to which density is at least a share `near_maximum` of its greatest, and of the greatest itself.

        Args:
            noise: standard deviations by which density may be greater than V, at least 0; what was seldom seen gains most.
        """
        values_Z = self.values_Z + noise * self.sd_Z
        k = int(np.argmax(values_Z))
        low_Z = np.flatnonzero(values_Z[:k] < near_maximum * values_Z[k])
        return float(self.GRID[low_Z[-1] + 1 if low_Z.size else 0]), float(self.GRID[k])

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("weight_Z", "density_Z", "totals_4")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, saved in state.items():
            setattr(self, name, np.array(saved))
        self.fit()


class Steering:
    """How policy entropy and reward density move practice: easier or harder by at most one logit of mean reward, and wider.

    Of the policy's entropy H, and likewise of its forking tokens', at budget fraction b, with H_0 its start (mean of the first three values
    once tasks come from the frontier):

        fall     = -d ln H / d b                               least squares over the budget's latest tenth, 10 updates at least
        pressure = fall (1 - b) / ln(10 H / H_0)               above 1: at this rate a tenth of the start is left before the budget ends
        growth   = -fall (1 - b) / ln(2 H_0 / H)               above 1: at this rate it doubles its start before the budget ends
                                                               H: geometric mean over the same updates; logarithms are at least 0.05
        q        = density of the latest 64 groups or so at the frontier / density that the curve expected of them

        ease    = ln+(1/q) + ln+ growth - ln+ pressure         in quarters of a logit, in [-1, 1]
        explore = explore_0 max(1, pressure) max(1, 1/q)       at most 1/4

    The greater pressure of the two entropies counts, and the greater growth. Signs follow from a policy that succeeds with probability
    p = sigma(l): gradient ascent on p moves l by p (1 - p), hence p by [p (1 - p)]^2 and its entropy by -l [p (1 - p)]^2, so a unit of
    success costs l nats. Above even odds learning spends entropy, below it restores it. So practice gets harder where the policy narrows
    faster than the budget affords, easier where it widens, or where groups differ less than they should and so tell nothing. A logit is
    the bound: coins lose a fifth of their density between even odds and one logit off (1 / cosh(1/2)^2 = 0.79), and half of what is
    left from a hard edge at 0.6. Nothing is integrated, so an effect ends with its cause: entropy that is spent and stays spent has no
    slope, and moves nothing.

    Source: our own; entropy as a budget after Cui et al. 2025 (arXiv 2505.22617).
    """

    WINDOW: ClassVar[int] = 10
    """Updates at least that a slope is taken over."""
    SPAN: ClassVar[float] = 0.1
    """Share of the budget at least: noise in H moves the slope over ten of a thousand updates thirty times as much.

    Half of both is enough at first.
    """
    SPENT: ClassVar[float] = 0.1
    """Share of its start at which entropy counts as spent."""
    DOUBLED: ClassVar[float] = 2.0
    """And as exploding."""

    def __init__(self) -> None:
        self.ease = 0.0
        """Logits of mean reward by which practice is easier than the density curve says."""
        self.widen = 1.0
        """Factor of the share of groups that explores."""
        self.pressure, self.growth = 0.0, 0.0
        # Of both entropies: rows (b, ln H), and the first values that make up the start.
        self.courses: list[list[list[float]]] = [[], []]
        self.starts: list[list[float]] = [[], []]
        # Density found at the frontier and expected there, running sums.
        self.num_groups, self.found, self.expected = 0, 0.0, 0.0

    @property
    def density_ratio(self) -> float:
        """q; 1 before there are enough groups at the frontier."""
        return self.found / self.expected if self.num_groups >= 32 else 1.0

    def learn(self, found: float, expected: float) -> None:
        """Takes in the density of a group at the frontier."""
        self.num_groups += 1
        self.found += found - self.found / 64.0
        self.expected += expected - self.expected / 64.0

    def on_update(self, stats: UpdateStats, *, by_entropy: bool) -> bool:
        """Takes in an update; returns whether practice becomes easier or harder."""
        pressures, growths = [0.0], [0.0]
        if by_entropy and self.num_groups and math.isfinite(stats.budget_fraction):
            for course, start, entropy in zip(self.courses, self.starts, (stats.entropy, stats.entropy_forking), strict=True):
                if 0.0 < entropy < math.inf:
                    start.extend([entropy] if len(start) < 3 else [])
                    course.append([stats.budget_fraction, math.log(entropy)])
                    since = stats.budget_fraction - self.SPAN
                    del course[: sum(at < since for at, _ in course[: -self.WINDOW])]
                if len(course) >= self.WINDOW // 2 and course[-1][0] - course[0][0] >= self.SPAN / 2:
                    fall, now = slope_and_mean(course)
                    left, first = max(1.0 - stats.budget_fraction, 0.0), math.log(sum(start) / len(start))
                    pressures.append(-fall * left / max(now - first - math.log(self.SPENT), 0.05))
                    growths.append(fall * left / max(first + math.log(self.DOUBLED) - now, 0.05))
        self.pressure, self.growth = max(pressures), max(growths)
        starved = max(0.0, -math.log(max(self.density_ratio, 1e-3)))
        pressed, growing = math.log(max(1.0, self.pressure)), math.log(max(1.0, self.growth))
        before, self.ease = self.ease, round(4.0 * min(max(starved + growing - pressed, -1.0), 1.0)) / 4.0
        self.widen = math.exp(starved + pressed)
        return self.ease != before

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


class FrontierTeacher(Teacher):
    """The default: practises at the hard edge of where rewards within a group differ most, as hard as still teaches.

    The quantity that it controls is reward density, 4 x the variance of reward within a group, for which graded and binary, dense and
    sparse rewards are alike. Two curves are learned from outcomes, each at the strictness that it was issued at, however late:

        m_f(d)   mean reward of family f at strictness d (`AbilityCurve`); z = logit m says how hard a task is for this agent
        V(z)     reward density where a task is as hard as that (`DensityCurve`)

    For each group V is raised by a half-normal number of its standard deviations, so that what was seldom tried counts as promising. z is
    drawn evenly between the greatest density and the hard edge, down to which density stays at a share `near_maximum` of it. z plus the
    ease that `Steering` gives becomes a strictness by an m_f drawn from its posterior. So doubt spreads practice, and evidence narrows it.

    - The first groups are spread over strictness by a low-discrepancy sequence. Their share falls to `explore` while 16 groups come back.
    - When the probe panel shows forgetting (`ForgettingWatch`), a share of the groups goes wherever mean reward has sunk to that of the
      greatest density, at any strictness (`StrictnessBins`).
    - Families get groups by their learning progress (`curriculum.allocation`).

    What it cannot do: reward that is pure noise has density, and looks like something to learn where it is the greatest.

    Source: our own; compared with other designs in studies/no_search.
    """

    kind = "frontier"
    adapting: ClassVar[tuple[str, ...]] = ("ability", "density", "steering", "forgetting", "bins", "place", "num_learned")
    config: FrontierConfig

    SPREAD_FIRST: ClassVar[int] = 16
    """Groups while which the share that is spread over strictness falls from all to `explore`."""

    def start(self) -> None:
        self.ability = AbilityCurve(self.families, self.config.memory)
        self.density = DensityCurve(self.config.memory)
        self.steering = Steering()
        self.forgetting = ForgettingWatch(ForgettingConfig(enabled=self.config.replay))
        self.bins = StrictnessBins(BinsConfig(), self.families)
        self.place = float(self.rng.random())
        """The latest strictness of those that are spread."""
        self.num_learned = 0

    @property
    def explore_share(self) -> float:
        """Share of the groups that is spread over strictness now: what is unknown, and at least `explore`."""
        unknown = 1.0 - self.num_learned / self.SPREAD_FIRST
        return max(unknown, min(self.config.explore * self.steering.widen, 0.25))

    def choose(self, family: FamilyKey) -> TaskSpec:
        """At the frontier, now and then anywhere, and where something was forgotten while the probes show it."""
        explore = self.explore_share
        replay = (1.0 - explore) * self.forgetting.replay_share
        drawn = self.rng.random()
        if drawn < explore:
            self.place = (self.place + 0.6180339887498949) % 1.0  # the golden ratio's multiples fill [0, 1] evenly
            return self.task(family, self.place, Mode.UNIFORM, explore)
        edge, peak = self.density.window(self.config.near_maximum, noise=abs(self.rng.standard_normal()))
        if drawn < explore + replay:
            return self.task(family, self.bins.draw(family, float(logistic(peak)), self.rng), Mode.REPLAY, replay)
        z = edge + (peak - edge) * self.rng.random() + self.steering.ease
        strictness = self.ability.draw(family, z, self.rng)
        return self.task(family, min(max(strictness, 0.0), 1.0), Mode.FRONTIER, 1.0 - explore - replay)

    def performance(self, group: GroupOutcome) -> float:
        return group.mean_reward

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        self.num_learned += len(groups)
        self.ability.learn(groups)
        for group in groups:
            z = self.ability.logit(group.task.family, group.task.strictness)
            found = reward_density([[group.rewards[i] for i in group.surviving]])
            if group.task.mode is Mode.FRONTIER:
                self.steering.learn(found, self.density.at(z))
            self.density.learn(z, found)
        self.density.fit()
        self.bins.learn(groups, [group.mean_reward for group in groups])

    def learn_probes(self, probes: Sequence[GroupOutcome]) -> None:
        before = self.forgetting.replay_share
        self.forgetting.learn(probes, [probe.mean_reward for probe in probes])
        after = self.forgetting.replay_share
        if (before > 0.0) != (after > 0.0):
            self.decide("replay", share=after, drops=self.forgetting.drops)

    def on_update(self, stats: UpdateStats) -> None:
        steering = self.steering
        if steering.on_update(stats, by_entropy=self.config.entropy):
            inputs = {"pressure": steering.pressure, "growth": steering.growth, "density_ratio": steering.density_ratio}
            self.decide("steer", ease=steering.ease, explore=self.explore_share, **inputs)

    def metrics(self) -> dict[str, float]:
        edge, peak = self.density.window(self.config.near_maximum)
        own = {
            "level": float(self.ability.mode_2[0]),
            "slope": math.exp(self.ability.mode_2[1]),
            "hard_edge_reward": float(logistic(edge)),
            "peak_reward": float(logistic(peak)),
            "greatest_density": self.density.at(peak),
            "ease": self.steering.ease,
            "explore_share": self.explore_share,
            "entropy_pressure": self.steering.pressure,
            "entropy_growth": self.steering.growth,
            "density_ratio": self.steering.density_ratio,
            "replay_share": self.forgetting.replay_share,
            "largest_family_share": float(self.allocation.shares().max()),
        }
        for intention in HiddenIntention:
            offsets = [self.ability.offsets[str(f)] for f in self.families if isinstance(f, Family) and f.intention is intention]
            if offsets:
                own[f"offset/{intention}"] = float(np.mean(offsets))
        return {**super().metrics(), **{f"curriculum/{name}": value for name, value in own.items()}}


def logistic(z: Any) -> Any:
    """1 / (1 + exp(-z))."""
    return 1.0 / (1.0 + np.exp(-np.clip(z, -30.0, 30.0)))


def slope_and_mean(rows_N2: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Slope of the second column over the first by least squares, and the second's mean."""
    x_N, y_N = np.array(rows_N2).T
    deviations_N = x_N - x_N.mean()
    return float(deviations_N @ y_N) / max(float(np.square(deviations_N).sum()), 1e-12), float(y_N.mean())
