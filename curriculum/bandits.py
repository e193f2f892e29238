"""Cells: difficulty cut into bins, for all families together or for each apart, and the drawing that teachers over such cells share.

With K bins an axis, cell k of the line holds the strictness in [k / K, (k + 1) / K); with three axes a cell is a box of a K x K x K
cube. Families share one set of cells or have one each (`scope`). For the C cells that are drawn from together (a family's, or all of them
where family and cell are drawn at once) a teacher says how it would like to share the next groups, and the part e it spreads evenly:

    P(cell) = e / C + (1 - e) * preference(cell)

A cell is drawn from P for each group, and the difficulty evenly inside it. The propensity of a task is the exact probability of its family
and cell. An outcome is credited to the cell that was *issued*. A task takes about .1 ms of CPU to propose and observe.

What one group of rollouts says about practising the like of it again: pure functions of the rewards or successes of its survivors.

With r the rewards of the G survivors, k how many of them succeeded and p = k / G:

    advantages             A = r - mean r, over the unbiased standard deviation of r plus 1e-6 where normalised (GRPO)
    mean_abs_advantage     mean |A|
    positive_advantage     mean max(A, 0), A not normalised; p (1 - p) where rewards are 0 or 1
    max_minus_mean         max r - mean r
    learnability           k (G - k) / (G (G - 1)), the unbiased p (1 - p)
    normalised_variance    learnability over the most that G rollouts can have, in [0, 1]

Normalised advantages tell a group with any spread from one without, hardly a group of even chances from a lopsided one, and with dense
rewards nothing more than that; the deviation undivided keeps what the group has to teach.

A bandit over difficulty cells that seeks large advantages: Self-Evolving Curriculum (SEC).

With r(c) the mean |advantage| over the rollouts of cell c that came back together, Q(c) its running value (0 at first), a the `rate` and
T the `temperature`, both in units of an advantage (standard deviations of a group, or reward where `normalise` is off):

    Q(c) <- a r(c) + (1 - a) Q(c)                for cells that were heard of
    P(c) = exp(Q(c) / T) / sum exp(Q / T)

Advantages are those of GRPO, divided by the standard deviation of their group, as published. With binary rewards r is then about
2 sqrt(p (1 - p)); with dense rewards it hardly depends on difficulty, and `normalise=false` with a `temperature` of about .03 keeps the
signal (a toy student with dense rewards ended at .82 instead of .66). Nothing tells noise from learning: where cells of all families are
drawn together, a family that succeeds by the toss of a coin looks like the best of all.

A cell that was not heard of keeps its value, as for the categories that the paper updates. The public code gives it a reward of 0 instead,
so that its Q decays by 1 - a a step: there all of a few categories come each step, here most of many cells do not, and their values would
be gone before they came again.

Defaults: rate .5 as in all public scripts; they set the temperature to 1, .4 or .2 by task, ours is .2.
Source: arXiv 2505.14970; public scripts (a 0.5).

A bandit over difficulty cells that seeks large advantages and cells it seldom tried: DUMP's upper confidence bound.

With L(c) the mean |advantage| over the last `window` rollouts of cell c (0 before any), n(c) the rollouts it had, N their sum over the
cells that are drawn from together, w the `exploration` and T the `temperature`, in standard deviations of a group (in reward where
`normalise` is off):

    score(c) = L(c) + w sqrt(2 ln(N + 1) / (n(c) + 1)),     P(c) = exp(score(c) / T) / sum exp(score / T)

Counts are cumulative, as published, so exploration dies; with `count_decay` below 1 they fade with every `observe` and it does not.
The public code feeds rewards of its validation set in as if they were advantages; here evaluation cannot reach a teacher at all.
Nothing tells noise from learning: a family that succeeds by the toss of a coin looks like the best of all.

A group's rollouts enter the window together, so it holds as many whole groups as `window` rollouts make up, at least one.
Defaults: window 300, T .1, w 1, as in the public code. Source: arXiv 2504.09710, github.com/ZhentingWang/DUMP.

Groups too alike to teach are made up for from a bank of difficulty cells whose groups varied most: VCRL, as far as a teacher can.

With k of a group's G rollouts successes, v = k (G - k) / (G (G - 1)) their variance and v_max the greatest that G allows:

    u = v / v_max in [0, 1];    a group is worth training on where u >= kappa, kappa = .3 at first, .8 from `strict_step` on
    priority(c) <- m priority(c) + (1 - m) u    for each group of a cell c in the bank (m = `momentum`)
    a cell enters the bank with priority u when one of its groups has u >= kappa, and leaves it when its priority falls below kappa
    P(c) = q priority(c) / sum of priorities in the bank + (1 - q) / C

q is the running share of groups below kappa, so that in the mean as many groups come from the bank as the paper would have replaced.

Kept of the paper: the normalised variance, both thresholds and their switch, the momentum, a bank that prefers high variance, and that it
fills exactly the room which alike groups leave. What a teacher cannot do: take groups out of the batch that were rolled out already (a
trainer drops only those without any variance, so the others are trained on here), refill the same batch (it is the next one that is), and
put back old rollouts or old prompts (cells are issued anew, with other scenarios and fresh rollouts; so nothing here is off-policy).

Variance is that of success, not of reward: dense rewards hardly vary by the .3 that the thresholds are made for.
Defaults: kappa .3, .8, momentum .9, and 20 steps, after published descriptions of the method. Source: arXiv 2509.19803.

Sampling for learnability (SFL): random difficulty cells are tried, and the cells of the groups nearest to even odds practised again.

With k of a group's G rollouts successes, its learnability is k (G - k) / (G (G - 1)), the unbiased p (1 - p). Every `refresh_steps` steps
the buffer is filled anew with the cells of the `buffer_size` best candidates seen since the last time (as often as each is among them):

    P(c) = rho * (entries of c in the buffer) / (entries of all C cells that c is drawn among) + (1 - rho) / C

Who pays for the candidates: published SFL rolls 5,000 fresh levels every 50 updates only to score them, some 20 % on top of training.
Here the groups are the probes. The 1 - rho random groups, which SFL trains on anyway, are scored as they come back and are the candidates;
nothing is rolled out for the teacher alone, and all of it is billed. The price is fewer and older candidates: with 8 groups a step and rho
.5 they are 4 a step, a score rests on one group of G rollouts (a standard error of .18 in p for G = 8), and it may be `refresh_steps` old.
With `scan_steps` above 0 the last so many steps before each refresh are spent wholly on fresh candidates, as published in spirit.

A family without an entry in the buffer gets random cells: with many families a longer `refresh_steps` and a larger buffer leave fewer of
them out, and `scope=flat` practises the families that are in it, as published.

Nothing tells noise from learning: a family that succeeds by the toss of a coin looks like the best of all.
Defaults: rho .5 as published; a buffer of 16 from 10 steps where published SFL keeps 100 of 5,000.
Source: arXiv 2408.15099, github.com/amacrutherford/sampling-for-learnability.

Prioritised level replay (PLR): cells are played again by the rank of their score and by how long they were left alone.

With S the latest score of each cell that was seen (the mean of its groups that came back together), rank 1 the highest, c the groups
observed so far and c_l that count when l was last observed, over the cells l that were seen:

    P_replay(l) = (1 - rho) rank(S_l) ** (-1 / beta) / Z + rho (c - c_l) / Z',     P(l) = replay P_replay(l) + (1 - replay) / C

Scores that are equal to nine digits share their ranks. Nothing is replayed before a share `fill` of all cells, of each family's own with
scope=own, has been seen: until then all groups are of the random share. Scores (`score`), from the group alone as there is no critic:
    positive_advantage   mean max(r - mean r, 0): the analogue of positive value loss; p (1 - p) where rewards are 0 or 1
    max_minus_mean       max r - mean r: the analogue of MaxMC regret; prefers cells that are hardly ever solved
    learnability         the unbiased p (1 - p) of success, whatever the rewards

Staleness counts from when a cell was last heard of, which also holds for outcomes that come late or not at all. In the paper and in dcd it
counts from when a level was last drawn: the same but for groups under way, whose cells go on ageing here until they come back.

`robust` is robust PLR: groups of the random share are played to be scored and the policy does not learn from them. A teacher has no say
over gradients, so it marks them `Mode.UNLEARNED`, and the trainer leaves them out of its batch; a trainer that does not look at the mode
trains on them and gets plain PLR. They are billed all the same.

Defaults: replay .8, rho .3, beta .3, fill .5 as in jaxued (the paper's code, dcd, has beta .1), newest score only.
Source: arXiv 2010.03934; robust: arXiv 2110.02439; github.com/facebookresearch/dcd, github.com/DramaCow/jaxued.

Teacher-student curriculum learning (TSCL): practise where reward changes fastest, whether it rises or falls.

With x the mean reward of a cell's groups that came back together, in [0, 1], and t the step they were issued in, a cell's value is, by
`variant`,
    online     Q <- a (x - x before) + (1 - a) Q, with a the `rate`; 0 before the second x
    naive      Q <- a s + (1 - a) Q after each `window` steps, s the slope of x over t within them, 1 with fewer than two t; 0 at first
    window     the slope of x over t by least squares through its last `window` pairs, reward a step; 1 before the second t
    sampling   one of its last `window` changes x - x before, drawn evenly for each group; 1 before the second x

and the next groups are drawn by the size of the values, e being `epsilon`, T the `temperature` in the units of the value:

    P(c) = e / C + (1 - e) exp(|Q(c)| / T) / sum exp(|Q| / T);    at T = 0 the greatest |Q| takes it all

With `sampling` there is no T: the greatest of the values drawn takes it, and P(c) is the exact chance that c's is the greatest.

The fall counts as much as the rise: it is what is being forgotten. Reward changes by chance as well, most at even odds, so with few
rollouts a cell the noise of x (.18 for 8 coins) is most of what is followed.

Defaults: window 10, rate .1, epsilon .1 and T = 0 as in the public code, whose own default is sampling. Reward is there that of all cells,
examined after each step; here it is that of the groups alone, so a cell's value stands still until the cell comes again (naive: is 1 as
for a cell that nobody examined). T about .003 spreads the groups of a step over several cells.
Source: arXiv 1707.00183 (its four variants), github.com/tambetm/TSCL.

Learning progress: practise where a fast and a slow average of success differ, whether success rises or falls.

With s the success share of a cell's groups that came back together and a the `rate`:

    fast <- fast + a (s - fast),    slow <- slow + a (fast - slow)        both start at the first s
    w(p) = p (1 - h) / (p + h (1 - 2 p))                                  h = `theta`; small p are told apart best
    progress = |w(fast) - w(slow)|                                        0 for a cell that was never seen
    P(c) = e / C + (1 - e) sigmoid(z(c)) / sum sigmoid(z)                 z = progress less its mean over cells, over its deviation

Success at random teaches nothing to a success that stands still: noise, the impossible and the mastered fall to little more than the even
share e (`uniform_share`). A cell in which nothing has happened keeps a sigmoid of its own, so this never narrows far: over many
cells it is gentle. The public code takes z over the cells with progress alone and leaves the others the even share; here it is as above,
since with few groups a cell that showed nothing yet is no cell that teaches nothing.

With `baseline_groups` above 0 success is counted above the untrained agent's, s <- max(s - b, 0) / (1 - b), b being the mean of the cell's
first so many groups, at most .75. It needs the whole of them before it learns, and takes early progress for part of the baseline.

Defaults: rate .1, h .1, e .25 as in the public code. Source: arXiv 2106.14876, arXiv 2306.01711 (OMNI), Syllabus
(its baseline is measured beforehand with a random policy, which a teacher does not have).

Draws a guess of the success at every strictness and practises where the guess hits the target: finds forgotten easy users again.

For each group, with the Beta posteriors (w_k, l_k) of its family's success in the K bins of strictness (`curriculum.frontier`):

    q_k ~ Beta(w_k, l_k),     k = argmin_k |q_k - p*|,     d ~ U(bin k)

A bin of uncertain success is now and then drawn at the target and so visited, and one where success has fallen to the target is
practised again wherever it lies: the curve may have any shape, unlike a tracker's. A share `explore` of the groups is uniform.

Defaults: K = 20, discount .9 per version of the policy, explore .05, p* = .45. Outcomes are credited to the strictness and the version
that were issued, so delay costs only the freshness of the evidence.

Source: our own; Thompson sampling after Chapelle & Li 2011. Measured in docs/teachers.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from curriculum.checks import require_between
from curriculum.frontier import BinsConfig, StrictnessBins
from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, mean_reward, point_choice, point_of, refuse_allocation, success_share
from simulator.settings import SETTINGS

MAX_BINS = {1: 100, 3: 10}
"""Bins an axis may have, by the number of axes."""


class Scope(StrEnum):
    """Which families a cell is for."""

    SHARED = "shared"
    OWN = "own"
    FLAT = "flat"


@dataclass(config=SETTINGS)
class CellConfig(TeacherConfig):
    """Settings that every teacher over cells has."""

    num_bins: int = 8
    """[2, 100], with three axes [2, 10]: bins of each axis. More place difficulty finer and are each seen less often."""
    scope: Scope = Scope.OWN
    """shared: one set of cells for all families, the best in runs of 50 steps or fewer. own: a set for each. flat: a set for each, family
    and cell drawn together, as published: it goes where there is most to learn, or to a family of noise, and no allocation has a say."""
    axes: int = 1
    """1 or 3: along the line of difficulty, or strictness, reserve and impatience apart, in num_bins ** 3 cells."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.axes", self.axes, 1, 3)
        if self.axes not in MAX_BINS:
            raise ValueError(f"teacher.axes must be 1 or 3, got {self.axes!r}")
        require_between("teacher.num_bins", self.num_bins, 2, MAX_BINS[self.axes])
        if self.scope is Scope.FLAT:
            refuse_allocation(self, "drawn together with cells (teacher.scope=flat)")


class CellTeacher(LedgerTeacher):
    """A teacher that is asked for `preferences`, perhaps for its `explore_share`, and for what it learns."""

    config: CellConfig
    preferred_mode: ClassVar[Mode] = Mode.FRONTIER
    """Why a group was issued that the preferences asked for."""

    def __init__(self, config: CellConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.num_boxes = config.num_bins**config.axes
        num_sets = 1 if config.scope is Scope.SHARED else len(self.families)
        self.num_cells = self.num_boxes * num_sets
        starts = [self.num_boxes * (i % num_sets) for i in range(len(self.families))]
        self._cells = {family: slice(start, start + self.num_boxes) for family, start in zip(self.families, starts, strict=True)}
        # Shares by the slice they were worked out for; good until the next proposal.
        self._shares: dict[tuple[int, int], tuple[np.ndarray, float]] = {}

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] how groups should be shared between these cells; sums to 1, or is all 0 where there is nothing to go by yet."""
        raise NotImplementedError(f"{type(self).__name__} must answer preferences(cells)")

    def explore_share(self) -> float:
        """Share e of the next groups that is spread evenly, in [0, 1]."""
        return 0.0

    @property
    def explore_mode(self) -> Mode:
        """Why a group was issued that was spread evenly."""
        return Mode.UNIFORM

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """By the allocation, unless family and cell are drawn together."""
        self._shares.clear()
        if self.config.scope is not Scope.FLAT:
            return super().choose_families(num_groups)
        shares_F = np.array([self.shares(family)[0].sum() for family in self.families])
        drawn = [draw(shares_F, self.rng) for _ in range(num_groups)]
        return [(self.families[i], min(float(shares_F[i]), 1.0)) for i in drawn]

    def choose(self, family: FamilyKey) -> Choice:
        """A cell of `family` by its share, and a difficulty evenly inside it."""
        shares_B, even = self.shares(family)
        box = draw(shares_B, self.rng)
        explored = self.rng.random() * shares_B[box] < even
        mode = self.explore_mode if explored else self.preferred_mode
        return self._inside(box, mode, float(shares_B[box] / shares_B.sum()))

    def shares(self, family: FamilyKey) -> tuple[np.ndarray, float]:
        """[B] P of the cells of `family` as of the latest proposal, and how much of each is its part of the even share."""
        own, together = self._cells[family], slice(0, self.num_cells)
        if self.config.scope is not Scope.FLAT:
            return self._mixed(own)
        shares_C, even = self._mixed(together)
        return shares_C[own], even

    def _mixed(self, cells: slice) -> tuple[np.ndarray, float]:
        key = (cells.start, cells.stop)
        if key not in self._shares:
            preferred_N = self.preferences(cells)
            explore = self.explore_share() if preferred_N.any() else 1.0
            even = explore / len(preferred_N)
            self._shares[key] = even + (1.0 - explore) * preferred_N, even
        return self._shares[key]

    def _inside(self, box: int, mode: Mode, share: float) -> Choice:
        num_bins = self.config.num_bins
        corner = (box,) if self.config.axes == 1 else (box // num_bins**2, box // num_bins % num_bins, box % num_bins)
        return point_choice([(low + self.rng.random()) / num_bins for low in corner], mode, share)

    def cell(self, task: TaskSpec) -> int:
        """The cell that `task` was issued in."""
        box = 0
        for value in point_of(task, self.config.axes):
            box = box * self.config.num_bins + min(int(value * self.config.num_bins), self.config.num_bins - 1)
        return self._cells[task.family].start + box

    def by_cell(self, groups: Sequence[GroupOutcome]) -> Iterator[tuple[int, list[GroupOutcome]]]:
        """The groups of each cell that has any, in the order of the cells."""
        sorted_in: dict[int, list[GroupOutcome]] = {}
        for group in groups:
            sorted_in.setdefault(self.cell(group.task), []).append(group)
        yield from sorted(sorted_in.items())

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, and over how many of a family's cells its groups are in effect spread (mean over families)."""
        self._shares.clear()
        spread = np.mean([effective_number(self.shares(family)[0]) for family in self.families])
        return {**super().metrics(), "curriculum/cells_effective": float(spread)}


def mean_over_rollouts(groups: Sequence[GroupOutcome], score: Callable[[GroupOutcome], float]) -> float:
    """The mean of a score of groups, each group counted by its survivors."""
    sizes = [len(group.surviving) for group in groups]
    return sum(size * score(group) for size, group in zip(sizes, groups, strict=True)) / sum(sizes)


def softmax(values_C: np.ndarray, temperature: float) -> np.ndarray:
    """[C] shares in proportion to exp(value / temperature)."""
    weights_C = np.exp((values_C - values_C.max()) / temperature)
    return weights_C / weights_C.sum()


def effective_number(shares: np.ndarray) -> float:
    """exp of the entropy of what is in proportion to `shares`: 1 where one has it all, their number where they are even."""
    positive = shares[shares > 0.0] / shares.sum()
    return float(np.exp(-np.sum(positive * np.log(positive))))


def draw(shares: np.ndarray, rng: np.random.Generator) -> int:
    """An index with probability in proportion to its share; never one without any."""
    sums = np.cumsum(shares)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


class CellValues:
    """One number for each cell, NaN where there is none yet; saved as a plain list with None for NaN."""

    may_lack = True
    """Whether None may stand in a saved state, here for a cell that nobody had seen (`checks.require_alike`)."""

    def __init__(self, num_cells: int, start: float = float("nan")) -> None:
        self.values_C = np.full(num_cells, start)

    def state_dict(self) -> list[float | None]:
        """By cell."""
        return [None if value != value else value for value in self.values_C.tolist()]

    def load_state_dict(self, state: Sequence[float | None]) -> None:
        """Restores `state_dict()`."""
        _require_cells(state, len(self.values_C))
        self.values_C = np.array([float("nan") if value is None else value for value in state], dtype=float)


class CellWindows:
    """The latest entries of each cell, each a short list of numbers."""

    def __init__(self, num_cells: int, size: int) -> None:
        self._size = int(size)
        self.entries: list[deque[list[float]]] = [deque(maxlen=self._size) for _ in range(num_cells)]

    def state_dict(self) -> list[list[list[float]]]:
        """By cell, oldest first."""
        return [[list(entry) for entry in window] for window in self.entries]

    def load_state_dict(self, state: Sequence[Sequence[Sequence[float]]]) -> None:
        """Restores `state_dict()`."""
        _require_cells(state, len(self.entries))
        self.entries = [deque((list(entry) for entry in window), maxlen=self._size) for window in state]


def _require_cells(state: Sequence[Any], num_cells: int) -> None:
    if len(state) != num_cells:
        raise ValueError(f"teacher state's cells must number {num_cells}, got {len(state)}; resume with the bins it was saved with")


EPSILON = 1e-6
"""Added to a group's standard deviation, as where the policy is trained."""


def advantages(group: GroupOutcome, *, normalise: bool) -> np.ndarray:
    """[G] each survivor's reward less their mean; all 0 where they fared alike."""
    rewards_G = np.array([group.rewards[i] for i in group.surviving])
    size = len(rewards_G)
    deviations_G = rewards_G - rewards_G.sum() / size
    if rewards_G.max() == rewards_G.min():
        return np.zeros(size)
    return deviations_G / (math.sqrt(deviations_G @ deviations_G / (size - 1)) + EPSILON) if normalise else deviations_G


def mean_abs_advantage(group: GroupOutcome, *, normalise: bool) -> float:
    """In [0, 1): at most .5 where not normalised."""
    return float(np.abs(advantages(group, normalise=normalise)).mean())


def positive_advantage(group: GroupOutcome) -> float:
    """In [0, .25]: what positive value loss is to a learner with a critic."""
    return float(np.maximum(advantages(group, normalise=False), 0.0).mean())


def max_minus_mean(group: GroupOutcome) -> float:
    """In [0, 1): by how much the best attempt beat the mean one, which is what MaxMC regret is to a learner with a critic."""
    return float(advantages(group, normalise=False).max())


def learnability(group: GroupOutcome) -> float:
    """In [0, 1/2]: see above; 1/2 needs a group of two."""
    size, num_successes = _counts(group)
    return num_successes * (size - num_successes) / (size * (size - 1))


def normalised_variance(group: GroupOutcome) -> float:
    """In [0, 1]: the variance of success in the group over the greatest that its size allows."""
    size, num_successes = _counts(group)
    return num_successes * (size - num_successes) / ((size // 2) * (size - size // 2))


def _counts(group: GroupOutcome) -> tuple[int, int]:
    return len(group.surviving), sum(group.successes[i] for i in group.surviving)


@dataclass(config=SETTINGS)
class SecConfig(CellConfig):
    """Settings of `SecTeacher`."""

    rate: float = 0.5
    """(0, 1]: weight a of the newest mean |advantage| in a cell's value."""
    temperature: float = 0.2
    """[.001, 100]: T of the softmax; lower is greedier."""
    normalise: bool = True
    """Whether advantages are divided by the standard deviation of their group (as published), or left in units of reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.temperature", self.temperature, 1e-3, 100.0)


class SecTeacher(CellTeacher):
    """Softmax over running values of mean |advantage|."""

    kind = "sec"
    adapting = ("q",)
    config: SecConfig

    def __init__(self, config: SecConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.q = CellValues(self.num_cells, start=0.0)

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] P."""
        return softmax(self.q.values_C[cells], self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """One TD(0) step for each cell that was heard of."""
        for cell, heard in self.by_cell(groups):
            reward = mean_over_rollouts(heard, lambda group: mean_abs_advantage(group, normalise=self.config.normalise))
            self.q.values_C[cell] += self.config.rate * (reward - self.q.values_C[cell])

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the greatest value of any."""
        return {**super().metrics(), "curriculum/sec_best_q": float(self.q.values_C.max())}


@dataclass(config=SETTINGS)
class DumpConfig(CellConfig):
    """Settings of `DumpTeacher`."""

    window: int = 300
    """[1, 10000]: latest rollouts of a cell whose |advantage| is averaged."""
    temperature: float = 0.1
    """[.001, 100]: T of the softmax; lower is greedier."""
    exploration: float = 1.0
    """[0, 10]: weight w of the bonus for cells that were seldom tried."""
    normalise: bool = True
    """Whether advantages are divided by the standard deviation of their group (as published), or left in units of reward."""
    count_decay: float = 1.0
    """(0, 1]: what is left of every count after each `observe`; 1 as published, .99 keeps exploring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.window", self.window, 1, 10_000)
        require_between("teacher.temperature", self.temperature, 1e-3, 100.0)
        require_between("teacher.exploration", self.exploration, 0.0, 10.0)
        require_between("teacher.count_decay", self.count_decay, 1e-6, 1.0)


class DumpTeacher(CellTeacher):
    """Softmax over mean |advantage| of late plus a bonus for few visits."""

    kind = "dump"
    adapting = ("latest", "learnability", "counts")
    config: DumpConfig

    def __init__(self, config: DumpConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.latest = CellWindows(self.num_cells, size=max(1, config.window // group_size))
        self.learnability = CellValues(self.num_cells, start=0.0)
        self.counts = CellValues(self.num_cells, start=0.0)

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] P, these cells alone making up N."""
        counts_N = self.counts.values_C[cells]
        bonus_N = np.sqrt(2.0 * math.log(counts_N.sum() + 1.0) / (counts_N + 1.0))
        return softmax(self.learnability.values_C[cells] + self.config.exploration * bonus_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves the windows of the cells that were heard of, and their counts."""
        self.counts.values_C *= self.config.count_decay
        for cell, heard in self.by_cell(groups):
            window = self.latest.entries[cell]
            for group in heard:
                window.append([mean_abs_advantage(group, normalise=self.config.normalise), len(group.surviving)])
                self.counts.values_C[cell] += len(group.surviving)
            sizes = sum(size for _, size in window)
            self.learnability.values_C[cell] = sum(value * size for value, size in window) / sizes

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the fewest rollouts that any cell had."""
        return {**super().metrics(), "curriculum/dump_least_count": float(self.counts.values_C.min())}


DROPPED_RATE = 0.05
"""Weight of the newest group in the running share of groups below kappa."""


@dataclass(config=SETTINGS)
class VcrlConfig(CellConfig):
    """Settings of `VcrlTeacher`."""

    kappa_first: float = 0.3
    """[0, 1]: normalised variance from which a group is worth training on, at first."""
    kappa: float = 0.8
    """[0, 1]: the same from `strict_step` on."""
    strict_step: int = 20
    """[0, 1000000]: teacher step after which the stricter threshold holds."""
    momentum: float = 0.9
    """[0, 1): weight of what was known in a cell's priority."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.kappa_first", self.kappa_first, 0.0, 1.0)
        require_between("teacher.kappa", self.kappa, 0.0, 1.0)
        require_between("teacher.strict_step", self.strict_step, 0, 1_000_000)
        require_between("teacher.momentum", self.momentum, 0.0, 1.0 - 1e-6)


class VcrlTeacher(CellTeacher):
    """Random cells, and cells of high variance in place of those that taught too little."""

    kind = "vcrl"
    plans_by_proposal = True
    adapting = ("bank", "dropped_share")
    preferred_mode = Mode.REPLAY
    config: VcrlConfig

    def __init__(self, config: VcrlConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        # Priority by cell; NaN outside the bank.
        self.bank = CellValues(self.num_cells)
        self.dropped_share = 0.0

    @property
    def kappa_now(self) -> float:
        """The threshold that holds at this step."""
        return self.config.kappa_first if self._step <= self.config.strict_step else self.config.kappa

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] in proportion to the priorities in the bank."""
        priorities_N = np.nan_to_num(self.bank.values_C[cells])
        return priorities_N / max(priorities_N.sum(), 1e-300)

    def explore_share(self) -> float:
        """1 - q."""
        return 1.0 - self.dropped_share

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Weighs each group against kappa and its cell's priority."""
        priorities_C, momentum = self.bank.values_C, self.config.momentum
        for group in groups:
            cell, variance = self.cell(group.task), normalised_variance(group)
            self.dropped_share += DROPPED_RATE * (float(variance < self.kappa_now) - self.dropped_share)
            if not np.isnan(priorities_C[cell]):
                priorities_C[cell] = momentum * priorities_C[cell] + (1.0 - momentum) * variance
            elif variance >= self.kappa_now:
                priorities_C[cell] = variance
        priorities_C[priorities_C < self.kappa_now] = np.nan

    def metrics(self) -> dict[str, float]:
        """The cells' figures, how many cells the bank holds, and the share of groups below the threshold."""
        held = float(np.count_nonzero(~np.isnan(self.bank.values_C)))
        return {**super().metrics(), "curriculum/vcrl_bank": held, "curriculum/vcrl_dropped_share": self.dropped_share}


@dataclass(config=SETTINGS)
class SflConfig(CellConfig):
    """Settings of `SflTeacher`."""

    rho: float = 0.5
    """[0, 1]: share of the groups that come from the buffer, once there is one."""
    buffer_size: int = 16
    """[1, 10000]: best candidates kept at each refresh."""
    refresh_steps: int = 10
    """[1, 100000]: steps between two refreshes of the buffer."""
    scan_steps: int = 0
    """[0, 100000]: steps before each refresh in which all groups are fresh candidates; at `refresh_steps` all of them are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rho", self.rho, 0.0, 1.0)
        require_between("teacher.buffer_size", self.buffer_size, 1, 10_000)
        require_between("teacher.refresh_steps", self.refresh_steps, 1, 100_000)
        require_between("teacher.scan_steps", self.scan_steps, 0, 100_000)


class SflTeacher(CellTeacher):
    """Half from the buffer of the most learnable, half at random."""

    kind = "sfl"
    plans_by_proposal = True
    adapting = ("buffer", "candidates", "refreshed")
    preferred_mode = Mode.REPLAY
    config: SflConfig

    def __init__(self, config: SflConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.buffer: list[int] = []
        # Learnability and cell of the best since the last refresh, newest first among equals; never more than the buffer holds.
        self.candidates: list[list[float]] = []
        self.refreshed = 0

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] as often as each cell is in the buffer."""
        entries_N = np.bincount(self.buffer, minlength=self.num_cells)[cells]
        return entries_N / max(entries_N.sum(), 1)

    def explore_share(self) -> float:
        """1 - rho; everything while scanning."""
        scanning = self._step - self.refreshed > self.config.refresh_steps - self.config.scan_steps
        return 1.0 if scanning else 1.0 - self.config.rho

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Scores the random groups, and fills the buffer anew when it is time."""
        for group in groups:
            if group.task.mode is Mode.UNIFORM:
                self.candidates.insert(0, [learnability(group), self.cell(group.task)])
        self.candidates.sort(key=lambda candidate: -candidate[0])
        del self.candidates[self.config.buffer_size :]
        if self._step - self.refreshed >= self.config.refresh_steps:
            self._refresh()

    def _restore_all(self, state: Mapping[str, Any]) -> None:
        super()._restore_all(state)
        cells = [*self.buffer, *(int(cell) for _, cell in self.candidates)]
        if cells and max(cells) >= self.num_cells:
            raise ValueError(f"teacher state's buffer must hold cells below {self.num_cells}, got {max(cells)}; resume with the same bins")

    def _refresh(self) -> None:
        worth = [candidate for candidate in self.candidates if candidate[0] > 0.0]
        if worth:
            self.buffer = [int(cell) for _, cell in worth]
            self.decide("refresh", size=len(worth), learnability=float(np.mean([score for score, _ in worth])))
        self.candidates, self.refreshed = [], self._step

    def metrics(self) -> dict[str, float]:
        """The cells' figures and how many entries the buffer has."""
        return {**super().metrics(), "curriculum/sfl_buffer": float(len(self.buffer))}


class Score(StrEnum):
    """What makes a cell worth replaying."""

    POSITIVE_ADVANTAGE = "positive_advantage"
    MAX_MINUS_MEAN = "max_minus_mean"
    LEARNABILITY = "learnability"


SCORES: dict[Score, Callable[[GroupOutcome], float]] = {
    Score.POSITIVE_ADVANTAGE: positive_advantage,
    Score.MAX_MINUS_MEAN: max_minus_mean,
    Score.LEARNABILITY: learnability,
}


@dataclass(config=SETTINGS)
class PlrConfig(CellConfig):
    """Settings of `PlrTeacher`."""

    score: Score = Score.POSITIVE_ADVANTAGE
    """positive_advantage, max_minus_mean or learnability."""
    score_rate: float = 1.0
    """(0, 1]: weight of the newest groups in their cell's score; 1 keeps nothing else, as published."""
    replay: float = 0.8
    """[0, 1]: share of the groups that are replayed."""
    staleness: float = 0.3
    """[0, 1]: share rho of the replayed that goes by how long a cell was left alone."""
    beta: float = 0.3
    """[.01, 100]: temperature of the ranks; lower keeps to the best."""
    fill: float = 0.5
    """[0, 1]: share of the cells that must have been seen before any is replayed."""
    robust: bool = False
    """Whether the policy is kept from learning on the random share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.score_rate", self.score_rate, 1e-6, 1.0)
        require_between("teacher.replay", self.replay, 0.0, 1.0)
        require_between("teacher.staleness", self.staleness, 0.0, 1.0)
        require_between("teacher.beta", self.beta, 0.01, 100.0)
        require_between("teacher.fill", self.fill, 0.0, 1.0)


class PlrTeacher(CellTeacher):
    """Replays cells by rank and staleness, and keeps drawing random ones."""

    kind = "plr"
    adapting = ("scores", "last_seen", "num_seen")
    preferred_mode = Mode.REPLAY
    config: PlrConfig

    def __init__(self, config: PlrConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.scores = CellValues(self.num_cells)
        self.last_seen = CellValues(self.num_cells)
        self.num_seen = 0

    @property
    def explore_mode(self) -> Mode:
        """Not learned from where robust."""
        return Mode.UNLEARNED if self.config.robust else Mode.UNIFORM

    def explore_share(self) -> float:
        """1 - replay."""
        return 1.0 - self.config.replay

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] P_replay; 0 for cells that were never seen."""
        scores_N = self.scores.values_C[cells]
        seen_N = ~np.isnan(scores_N)
        shares_N = np.zeros(len(scores_N))
        if seen_N.sum() >= max(1.0, self.config.fill * len(scores_N)):
            by_rank = ranks(scores_N[seen_N]) ** (-1.0 / self.config.beta)
            by_age = self.num_seen - self.last_seen.values_C[cells][seen_N]
            rho = self.config.staleness if by_age.sum() > 0.0 else 0.0
            shares_N[seen_N] = (1.0 - rho) * by_rank / by_rank.sum() + rho * by_age / max(by_age.sum(), 1.0)
        return shares_N

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Scores the cells of the groups, whether the policy learns from them or not."""
        scores_C, rate = self.scores.values_C, self.config.score_rate
        self.num_seen += len(groups)
        for cell, heard in self.by_cell(groups):
            score = mean_over_rollouts(heard, SCORES[self.config.score])
            known = scores_C[cell] if scores_C[cell] == scores_C[cell] else score
            scores_C[cell] = known + rate * (score - known)
            self.last_seen.values_C[cell] = self.num_seen

    def metrics(self) -> dict[str, float]:
        """The cells' figures, the share of cells that were seen and the highest score."""
        scores_C = self.scores.values_C
        filled = float(np.mean(~np.isnan(scores_C)))
        return {**super().metrics(), "curriculum/plr_filled": filled, "curriculum/plr_best_score": float(np.nan_to_num(scores_C).max())}


def ranks(scores_N: np.ndarray) -> np.ndarray:
    """[N] 1 for the highest; scores that are equal to nine digits have the mean of the ranks that they take up."""
    # Scores that are equal by algebra, such as those of 3 and of 5 successes in 8, may differ in their last bit.
    rounded_N = np.round(scores_N, 9)
    falling_N = np.sort(-rounded_N)
    num_higher_N, num_not_lower_N = (np.searchsorted(falling_N, -rounded_N, side=side) for side in ("left", "right"))
    return (num_higher_N + 1 + num_not_lower_N) / 2.0


class Variant(StrEnum):
    """How change is measured."""

    ONLINE = "online"
    NAIVE = "naive"
    WINDOW = "window"
    SAMPLING = "sampling"


@dataclass(config=SETTINGS)
class TsclConfig(CellConfig):
    """Settings of `TsclTeacher`."""

    variant: Variant = Variant.ONLINE
    """online, naive, window or sampling."""
    rate: float = 0.1
    """(0, 1]: weight a of the newest change (online) or slope (naive)."""
    window: int = 10
    """[2, 1000]: latest observations of a cell through which the slope is laid (window), or from whose changes one is drawn (sampling);
    steps between two updates (naive)."""
    epsilon: float = 0.1
    """[0, 1]: share of the groups that is spread evenly."""
    temperature: float = 0.0
    """[0, 100]: T of the softmax over |Q|; 0 is greedy. Not for sampling."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.window", self.window, 2, 1000)
        require_between("teacher.epsilon", self.epsilon, 0.0, 1.0)
        require_between("teacher.temperature", self.temperature, 0.0, 100.0)


class TsclTeacher(CellTeacher):
    """Softmax over the size of each cell's change in reward."""

    kind = "tscl"
    adapting = ("q", "observations")
    config: TsclConfig

    def __init__(self, config: TsclConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        starts_at_0 = config.variant in (Variant.ONLINE, Variant.NAIVE)
        self.q = CellValues(self.num_cells, start=0.0 if starts_at_0 else 1.0)
        # Step and mean reward; the online variant needs the latest only, a change is between two.
        sizes = {Variant.ONLINE: 1, Variant.SAMPLING: config.window + 1}
        self.observations = CellWindows(self.num_cells, size=sizes.get(config.variant, config.window))

    def explore_share(self) -> float:
        """epsilon."""
        return self.config.epsilon

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] by |Q|."""
        if self.config.variant is Variant.SAMPLING:
            rewards = ([x for _, x in entries] for entries in self.observations.entries[cells])
            return chances_of_greatest([np.abs(np.diff(x)) if len(x) > 1 else np.ones(1) for x in rewards])
        size_N = np.round(np.abs(self.q.values_C[cells]), 9)  # what is equal by algebra may differ in its last bit
        if self.config.temperature == 0.0:
            return (size_N == size_N.max()) / np.count_nonzero(size_N == size_N.max())
        return softmax(size_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in one observation for each cell that was heard of."""
        if self.config.variant is Variant.NAIVE:
            self._close_block()
        for cell, heard in self.by_cell(groups):
            observed = [float(np.mean([group.task.teacher_step for group in heard])), mean_over_rollouts(heard, mean_reward)]
            seen = self.observations.entries[cell]
            if self.config.variant is Variant.ONLINE and seen:
                self.q.values_C[cell] += self.config.rate * (observed[1] - seen[-1][1] - self.q.values_C[cell])
            seen.append(observed)
            if self.config.variant is Variant.WINDOW:
                self.q.values_C[cell] = slope(np.array(seen), unknown=self.q.values_C[cell])
            if self.config.variant is Variant.SAMPLING and len(seen) > 1:
                self.q.values_C[cell] = float(np.mean(np.diff([x for _, x in seen])))

    def _close_block(self) -> None:
        """Once a block of `window` steps is over, takes in its slopes and begins the next with nothing."""
        steps = [entry[0] for seen in self.observations.entries for entry in seen]
        if steps and (min(steps) - 1) // self.config.window < (self._step - 1) // self.config.window:
            slopes_C = [slope(np.array(seen), unknown=1.0) if seen else 1.0 for seen in self.observations.entries]
            self.q.values_C += self.config.rate * (np.array(slopes_C) - self.q.values_C)
            for seen in self.observations.entries:
                seen.clear()

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the fastest change."""
        return {**super().metrics(), "curriculum/tscl_fastest": float(np.abs(self.q.values_C).max())}


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

    rate: float = 0.1
    """(0, 1]: step a of the fast average, and of the slow one that follows it."""
    theta: float = 0.1
    """(0, .5]: how much more a change near 0 counts than one near 1; .5 weighs all alike."""
    uniform_share: float = 0.25
    """[0, 1]: share e of the groups that is spread evenly."""
    baseline_groups: int = 0
    """[0, 1000]: first groups of a cell that make up its baseline; 0 takes success as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.theta", self.theta, 1e-6, 0.5)
        require_between("teacher.uniform_share", self.uniform_share, 0.0, 1.0)
        require_between("teacher.baseline_groups", self.baseline_groups, 0, 1000)


class ProgressTeacher(CellTeacher):
    """Cells by their learning progress above an even share."""

    kind = "progress"
    adapting = ("fast", "slow", "baseline", "num_baseline")
    config: ProgressConfig

    def __init__(self, config: ProgressConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.fast, self.slow = CellValues(self.num_cells), CellValues(self.num_cells)
        self.baseline, self.num_baseline = CellValues(self.num_cells, start=0.0), CellValues(self.num_cells, start=0.0)

    def explore_share(self) -> float:
        """e."""
        return self.config.uniform_share

    def progress(self, cells: slice) -> np.ndarray:
        """[N] |w(fast) - w(slow)| of these cells, in [0, 1]."""
        fast_N, slow_N = (reweigh(average.values_C[cells], self.config.theta) for average in (self.fast, self.slow))
        return np.nan_to_num(np.abs(fast_N - slow_N))

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] by progress; even where all progress alike."""
        progress_N = self.progress(cells)
        spread = progress_N.std()
        weights_N = 1.0 / (1.0 + np.exp((progress_N.mean() - progress_N) / spread)) if spread > 0.0 else np.ones(len(progress_N))
        return weights_N / weights_N.sum()

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves both averages of the cells that were heard of, or their baseline while that is being taken."""
        for cell, heard in self.by_cell(groups):
            missing = max(0, self.config.baseline_groups - int(self.num_baseline.values_C[cell]))
            for group in heard[:missing]:
                self.num_baseline.values_C[cell] += 1.0
                self.baseline.values_C[cell] += (success_share(group) - self.baseline.values_C[cell]) / self.num_baseline.values_C[cell]
            if after := heard[missing:]:
                self._learn_cell(cell, mean_over_rollouts(after, success_share))

    def _learn_cell(self, cell: int, success: float) -> None:
        baseline = min(self.baseline.values_C[cell], MAX_BASELINE)
        success = max(success - baseline, 0.0) / (1.0 - baseline)
        fast_C, slow_C, rate = self.fast.values_C, self.slow.values_C, self.config.rate
        if np.isnan(fast_C[cell]):
            fast_C[cell] = slow_C[cell] = success
        fast_C[cell] += rate * (success - fast_C[cell])
        slow_C[cell] += rate * (fast_C[cell] - slow_C[cell])

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the greatest progress."""
        return {**super().metrics(), "curriculum/progress_best": float(self.progress(slice(None)).max())}


def reweigh(p: np.ndarray, theta: float) -> np.ndarray:
    """w(p): 0 at 0, 1 at 1, slope (1 - theta) / theta at 0."""
    return p * (1.0 - theta) / (p + theta * (1.0 - 2.0 * p))


@dataclass(config=SETTINGS)
class BetaThompsonConfig(TeacherConfig):
    """Settings of `BetaThompsonTeacher`."""

    target_success: float = 0.45
    """[.05, .95]: success share p* to aim at."""
    explore: float = 0.05
    """[0, 1]: share of groups at a uniformly drawn strictness."""
    bins: BinsConfig = field(default_factory=BinsConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_success", self.target_success, 0.05, 0.95)
        require_between("teacher.explore", self.explore, 0.0, 1.0)


class BetaThompsonTeacher(LedgerTeacher):
    """Thompson draws on discounted strictness bins, aimed at a target success."""

    kind = "beta_thompson"
    adapting = ("bins",)
    config: BetaThompsonConfig

    def __init__(self, config: BetaThompsonConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.bins = StrictnessBins(config.bins, self.families)

    def choose(self, family: FamilyKey) -> Choice:
        """A Thompson draw, now and then anything."""
        explore = self.config.explore
        if self.rng.random() < explore:
            return Choice(float(self.rng.random()), Mode.UNIFORM, explore)
        return Choice(self.bins.draw(family, self.config.target_success, self.rng), Mode.FRONTIER, 1.0 - explore)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Adds the groups to the bins."""
        self.bins.learn(groups)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, what is expected of the mean family at lenient and at strict users, and how far families differ."""
        shared_K2 = self.bins.shared()
        success_K = shared_K2[:, 0] / shared_K2.sum(axis=-1)
        own = {f"curriculum/beta_thompson/success_at_{d}": float(success_K[self.bins.bin(d)]) for d in (0.25, 0.75)}
        own["curriculum/beta_thompson/offset_std"] = float(np.std([self.bins.offset(family) for family in self.families]))
        return {**super().metrics(), **own}
