"""How often each family succeeds at each strictness: discounted Beta counts on bins, one grid for all families behind one for each.

A group of family f, issued at strictness d while the policy was at version v, adds its successes to `wins` and its failures to `losses`

    of f's own grid, in the bin of d, and of the shared grid, in the bin of clip(d - offset_f, 0, 1)

with weight discount^(v_now - v), v_now being the newest version an outcome has come from: old evidence fades as the policy moves on,
and late evidence counts for no more than it is worth. Each bin also hears its neighbours, corrected for the slope s by which success is
assumed to fall, so that a bin long unvisited is judged by them and not drawn for ever. With n_j rollouts of share p_j in bin j:

    heard_k = own counts + at most `neighbour_prior` rollouts of sum_{j != k} exp(-(d_k - d_j)^2 / (2 smoothing^2)) n_j (p_kj, 1 - p_kj)
    p_kj = clip(p_j - s (d_k - d_j), 0, 1)
    shared posterior of bin k:    (2 (1 - d_k), 2 d_k) + heard_k in the shared grid
    posterior of family f, bin k: the shared one at d_k - offset_f, worth at most `family_prior` rollouts, + heard_k in f's own grid

(2 (1 - d), 2 d) says that stricter is harder, and is outweighed by one group. Families share the curve and differ by an offset, learned
from how much better a group fared than the shared curve says: offset_f += gain_f (p - expected) / s, with mean over families kept at 0
and gain_f = max(1 / (n_f + offset_prior), offset_rate), n_f groups of the family having come before. A family that has groups enough is
judged by its own grid, whatever its shape.

Source: our own. Thompson draws on it are `curriculum.bandits`.

Does the probe panel show forgetting? How each band of strictness fares, against the best that it ever fared.

The panel plays the same training dialogues again and again. Each of its dialogues, faring x, moves the running mean of its band,

    now_b += max(rate, 1 / n_b) (x - now_b)

n_b dialogues of band b having come so far, and best_b is the greatest now_b since the band was first judged (after 1 / rate dialogues),
fading by `fading` of the gap with every dialogue so that a lucky panel is not held against the policy for ever. What has been lost asks
for practice wherever it lies:

    m_b     = (best_b + now_b) / 2
    slack_b = num_errors sqrt(m_b (1 - m_b) rate / (2 - rate))
    share   = clip(max_b (best_b - now_b - slack_b) / (full best_b), 0, 1)

The root is the standard error of a running mean of successes; graded rewards have a smaller one. Nothing is one-way: when the bands have
recovered, the share falls back to 0. Between missing what is lost and replaying what is not, `num_errors` leans to the second: a group of
replay is practice all the same (docs/toy_benchmark.md has what either costs).

Source: our own. That replay follows competence instead of being a fixed share is a choice, compared on student S3 (docs/toy_benchmark.md).

The entropy guard: when the policy narrows *and* its groups begin to fare alike, it moves the success a teacher aims at.

Source: our own; on toy students it neither helped nor hurt, so switch it off to see what it does. Each decision is logged with its inputs.

The default teacher: keeps every family where the agent fares just under half as well as it could, and goes back for what it forgets.

With d the strictness issued, p how the group's survivors fared (their mean reward, or the share that succeeded), p* the target, c the
ceiling (how easy users let the agent fare) and s the assumed slope -dp/dd, a family's frontier is estimated as a = level + offset_f, and
a group says by how much that is wrong (in strictness):

    surprise = (p - expected) / s,     expected = clip(p* c - s (d - a), 0, c)

    level    += min(1, N / 4) clip(rho * mean of surprises, -rate, rate)   once for all N groups that came together
    offset_f  = clip(offset_f, -.1 - level, 1.1 - level)                   for every family, level moved
    offset_f += max(1 / (n_f + offset_prior), offset_rate) * surprise      for each group; n_f of the family came before
    c        += ceiling_rate * (p - c)                                     for groups that the line puts above 1.3, not of top families

a stays within [-.1, 1.1], and so does what a surprise corrects it to. The clip keeps it there when the level moves by what other families
show: a family at a bound that had followed them further would have to come all the way back before its own groups moved it.

Near the frontier a + surprise is d + (p - p* c) / s: what a group says hangs on the strictness that was *issued*, not on where the level
has moved since, so outcomes may come many steps late without a swing. Far from it, a failure above or a success below is what was
expected and says nothing. Families share the level, because with 24 families and a handful of groups a step each alone would be seen
too seldom. The target is a share of the ceiling, so a simulator that spoils every sixth dialogue does not hold the level down.

Where rewards are 0 or 1 both measures are the same. Where they are graded, rollouts differ most, and so teach most, where the mean
reward is near a half; at that point few of them or none may succeed (docs/decisions.md has the measured densities).

A tracker leaves behind what it has mastered. When the probe panel shows that something is being forgotten (this module), a
share of the groups becomes replay: Thompson draws on discounted bins of strictness (this module), which find success that has sunk
to the target at any strictness. Families get groups by their learning progress (`curriculum.allocation`), so noise does not eat the
budget, and an entropy guard (`curriculum.frontier`) moves p* when the policy narrows and its groups fare alike.

Source: our own; measured on toy students (docs/teachers.md). The untagged ancestor is AdaRFT (arXiv 2504.05520).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.allocation import AllocationConfig
from curriculum.checks import require_between, require_fields
from curriculum.task import FamilyKey, GroupOutcome, Mode, UpdateStats
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, mean_reward, success_share
from simulator.scenario import Family, HiddenIntention
from simulator.settings import SETTINGS


@settings_dataclass(config=SETTINGS)
class BinsConfig:
    """How evidence fades, spreads and is shared."""

    num_bins: int = 20
    """[2, 100]: bins of equal width over [0, 1]."""
    discount: float = 0.9
    """[0, 1]: weight that evidence keeps at each new version of the policy."""
    smoothing: float = 0.1
    """[.001, 1]: width of the kernel by which a bin hears its neighbours, in strictness."""
    neighbour_prior: float = 30.0
    """[0, 1000]: the most that a bin's neighbours count for beside its own evidence, in rollouts; larger hides what is local."""
    family_prior: float = 100.0
    """[0, 1000]: worth, in rollouts, of the belief that a family is like all others, shifted; 0 leaves each to its own grid."""
    offset_prior: float = 2.0
    """[1, 100]: worth, in groups, of the belief that a family's offset is 0."""
    offset_rate: float = 0.1
    """[0, 1]: least weight of a new group in its family's offset; larger forgets faster."""
    slope: float = 2.0
    """[.1, 20]: assumed fall of success per unit of strictness, by which a surprise becomes an offset."""

    def __post_init__(self) -> None:
        require_between("teacher.bins.num_bins", self.num_bins, 2, 100)
        require_between("teacher.bins.discount", self.discount, 0.0, 1.0)
        require_between("teacher.bins.smoothing", self.smoothing, 0.001, 1.0)
        require_between("teacher.bins.neighbour_prior", self.neighbour_prior, 0.0, 1000.0)
        require_between("teacher.bins.family_prior", self.family_prior, 0.0, 1000.0)
        require_between("teacher.bins.offset_prior", self.offset_prior, 1.0, 100.0)
        require_between("teacher.bins.offset_rate", self.offset_rate, 0.0, 1.0)
        require_between("teacher.bins.slope", self.slope, 0.1, 20.0)


class StrictnessBins:
    """Beta posteriors of success by family and bin. Shapes: F families, K bins, 2 for (wins, losses)."""

    def __init__(
        self, config: BinsConfig, families: Sequence[FamilyKey], *, fared: Callable[[GroupOutcome], float] = success_share
    ) -> None:
        """Args:
        fared: what of a group counts as successes, as a share in [0, 1].
        """
        self.config, self._fared = config, fared
        self.centres_K = (np.arange(config.num_bins) + 0.5) / config.num_bins
        self._index = {family: f for f, family in enumerate(families)}
        self._prior_K2 = 2.0 * np.stack([1.0 - self.centres_K, self.centres_K], axis=-1)
        distances_KK = self.centres_K[:, None] - self.centres_K[None, :]
        self._kernel_KK = np.exp(-0.5 * np.square(distances_KK / config.smoothing)) * (1.0 - np.eye(config.num_bins))
        self._fall_KK = config.slope * distances_KK
        self._version = 0
        self._own_FK2 = np.zeros((len(families), config.num_bins, 2))
        self._shared_K2 = np.zeros((config.num_bins, 2))
        self._offsets_F = np.zeros(len(families))
        self._num_seen_F = np.zeros(len(families))
        self._curve_K2 = self._shared_posterior()

    def bin(self, strictness: float) -> int:
        """The bin of a strictness; what lies outside [0, 1] belongs to the first or the last."""
        return min(max(int(strictness * self.config.num_bins), 0), self.config.num_bins - 1)

    def offset(self, family: FamilyKey) -> float:
        """How much stronger than the mean family the agent is here, in strictness."""
        return float(self._offsets_F[self._index[family]])

    def shared(self) -> np.ndarray:
        """[K, 2] Beta parameters of success at a strictness relative to the family's offset."""
        return self._curve_K2.copy()

    def posterior(self, family: FamilyKey) -> np.ndarray:
        """[K, 2] Beta parameters of success of `family` in each bin, all above 0."""
        f = self._index[family]
        relative_K = self.centres_K - self._offsets_F[f]
        wins_K = np.interp(relative_K, self.centres_K, self._curve_K2[:, 0])
        losses_K = np.interp(relative_K, self.centres_K, self._curve_K2[:, 1])
        # Never below the two rollouts of the first belief, so that Beta stays proper without any sharing.
        worth_K = np.minimum(1.0, max(self.config.family_prior, 2.0) / (wins_K + losses_K))
        posterior_K2 = self._heard(self._own_FK2[f])
        posterior_K2[:, 0] += worth_K * wins_K
        posterior_K2[:, 1] += worth_K * losses_K
        return posterior_K2

    def _shared_posterior(self) -> np.ndarray:
        return self._prior_K2 + self._heard(self._shared_K2)

    def _heard(self, counts_K2: np.ndarray) -> np.ndarray:
        num_K = counts_K2.sum(axis=-1)
        share_K = counts_K2[:, 0] / np.maximum(num_K, 1e-12)
        share_KK = np.minimum(np.maximum(share_K - self._fall_KK, 0.0), 1.0)
        near_K, near_wins_K = self._kernel_KK @ num_K, (self._kernel_KK * share_KK) @ num_K
        worth_K = np.minimum(1.0, self.config.neighbour_prior / np.maximum(near_K, 1e-12))
        heard_K2 = counts_K2.copy()
        heard_K2[:, 0] += worth_K * near_wins_K
        heard_K2[:, 1] += worth_K * np.maximum(near_K - near_wins_K, 0.0)
        return heard_K2

    def draw(self, family: FamilyKey, target: float, rng: np.random.Generator) -> float:
        """A Thompson draw: a strictness from the bin whose success, drawn from its posterior, comes closest to `target`."""
        posterior_K2 = self.posterior(family)
        success_K = rng.beta(posterior_K2[:, 0], posterior_K2[:, 1])
        k = int(np.argmin(np.abs(success_K - target)))
        return float((k + rng.random()) / self.config.num_bins)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in groups, each at the strictness and version with which it was issued."""
        newest = max([self._version, *(group.task.policy_version for group in groups)])
        faded = self.config.discount ** (newest - self._version)
        self._own_FK2 *= faded
        self._shared_K2 *= faded
        self._version = newest
        shares = [self._fared(group) for group in groups]
        for group, share in zip(groups, shares, strict=True):
            self._count(group, share)
        for group, share in zip(groups, shares, strict=True):
            self._learn_offset(group, share)
        self._offsets_F -= self._offsets_F.mean()
        self._curve_K2 = self._shared_posterior()

    def _count(self, group: GroupOutcome, share: float) -> None:
        f = self._index[group.task.family]
        weight = self.config.discount ** (self._version - group.task.policy_version) * len(group.surviving)
        counts_2 = weight * np.array([share, 1.0 - share])
        self._own_FK2[f, self.bin(group.task.strictness)] += counts_2
        self._shared_K2[self.bin(group.task.strictness - self._offsets_F[f])] += counts_2

    def _learn_offset(self, group: GroupOutcome, share: float) -> None:
        f = self._index[group.task.family]
        wins, losses = self._curve_K2[self.bin(group.task.strictness - self._offsets_F[f])]
        surprise = share - wins / (wins + losses)
        gain = max(1.0 / (self._num_seen_F[f] + self.config.offset_prior), self.config.offset_rate)
        self._offsets_F[f] = min(max(self._offsets_F[f] + gain * surprise / self.config.slope, -1.0), 1.0)
        self._num_seen_F[f] += 1.0

    def state_dict(self) -> dict[str, Any]:
        """Counts, offsets and the version they are faded to."""
        arrays = {name: array.tolist() for name, array in self._arrays().items()}
        return {"version": self._version, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; refuses arrays of other shapes."""
        require_fields("teacher state's bins", state, ("version", *self._arrays()))
        arrays = {name: np.array(state[name], dtype=float) for name in self._arrays()}
        for name, array in arrays.items():
            if array.shape != (expected := self._arrays()[name].shape):
                raise ValueError(
                    f"teacher state's bins.{name} must have shape {expected}, got {array.shape}; resume with the same settings"
                )
        self._version = state["version"]
        self._own_FK2, self._shared_K2, self._offsets_F, self._num_seen_F = arrays.values()
        self._curve_K2 = self._shared_posterior()

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"own": self._own_FK2, "shared": self._shared_K2, "offsets": self._offsets_F, "num_seen": self._num_seen_F}


NUM_BANDS = 5


@settings_dataclass(config=SETTINGS)
class ForgettingConfig:
    """When a fall in the probe panel counts as forgetting, and how much replay it calls for."""

    enabled: bool = True
    """False never replays (the ablation)."""
    rate: float = 0.06
    """(0, 1]: weight of one probe dialogue in the running mean of its band."""
    fading: float = 0.002
    """[0, 1]: share of the gap to the present by which the best fades with each dialogue of its band."""
    num_errors: float = 2.5
    """[0, 100]: fall that is put down to chance, in standard errors of the running mean."""
    full: float = 0.05
    """(0, 1]: fall beyond that from which all groups are replay, as a share of the band's best."""

    def __post_init__(self) -> None:
        require_between("teacher.forgetting.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.forgetting.fading", self.fading, 0.0, 1.0)
        require_between("teacher.forgetting.num_errors", self.num_errors, 0.0, 100.0)
        require_between("teacher.forgetting.full", self.full, 1e-6, 1.0)


@dataclass
class _Memory:
    now: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)
    best: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)
    num_seen: list[int] = field(default_factory=lambda: [0] * NUM_BANDS)


class ForgettingWatch:
    """Streams the probe panel and says which share of the groups should be replay.

    Args:
        fared: how well a group fared, in [0, 1]; asked for each dialogue of the panel, as a group of its own.
    """

    def __init__(self, config: ForgettingConfig, *, fared: Callable[[GroupOutcome], float]) -> None:
        self.config, self._fared = config, fared
        self._memory = _Memory()

    def learn(self, probes: Sequence[GroupOutcome]) -> None:
        """Takes in probe groups, each of them one dialogue or several of the same kind; ones that broke are passed over."""
        for probe in probes:
            if probe.surviving:
                band = min(int(probe.task.strictness * NUM_BANDS), NUM_BANDS - 1)
                self._learn_dialogue(band, self._fared(probe))

    def _learn_dialogue(self, band: int, fared: float) -> None:
        memory, config = self._memory, self.config
        memory.num_seen[band] += 1
        memory.now[band] += max(config.rate, 1.0 / memory.num_seen[band]) * (fared - memory.now[band])
        if self._is_judged(band):
            faded = memory.best[band] - config.fading * (memory.best[band] - memory.now[band])
            memory.best[band] = max(faded, memory.now[band])

    def _is_judged(self, band: int) -> bool:
        return self._memory.num_seen[band] * self.config.rate >= 1.0

    @property
    def drops(self) -> list[float]:
        """How far each band fares below its best, from lenient to strict; 0 before a band is judged."""
        return [best - now for best, now in self._judged_bands()]

    @property
    def slacks(self) -> list[float]:
        """Which fall of each band is not held against the policy."""
        num_errors, rate = self.config.num_errors, self.config.rate
        middles = [(best + now) / 2.0 for best, now in self._judged_bands()]
        return [num_errors * math.sqrt(max(m * (1.0 - m), 0.0) * rate / (2.0 - rate)) for m in middles]

    @property
    def replay_share(self) -> float:
        """Share of the groups that should practise what was lost, in [0, 1]."""
        if not self.config.enabled:
            return 0.0
        lost = zip(self.drops, self.slacks, self._memory.best, strict=True)
        return min(max(((drop - slack) / (self.config.full * best) for drop, slack, best in lost if drop > slack), default=0.0), 1.0)

    def _judged_bands(self) -> Iterator[tuple[float, float]]:
        memory = self._memory
        for band in range(NUM_BANDS):
            yield (memory.best[band], memory.now[band]) if self._is_judged(band) else (0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Running mean and best of the bands, and what they rest on."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        names = [item.name for item in fields(_Memory)]
        require_fields("teacher state's forgetting", state, names)
        for name in names:
            if len(state[name]) != NUM_BANDS:
                raise ValueError(f"teacher state's forgetting.{name} must have {NUM_BANDS} numbers, got {len(state[name])}")
        self._memory = _Memory(**{name: list(state[name]) for name in names})


@settings_dataclass(config=SETTINGS)
class GuardConfig:
    """When the guard acts and how far it may go."""

    enabled: bool = True
    """False leaves the target success alone (the ablation)."""
    entropy_low: float = 0.8
    """(0, 1]: acts while smoothed entropy is below this share of its start and falling."""
    density_low: float = 0.8
    """(0, 10]: acts only while smoothed reward density is below this share of its start; 10 makes entropy alone decide.
    Entropy that falls while groups still fare differently is learning."""
    success_margin: float = 0.1
    """[0, 1]: success below target by more than this means that the agent starves, otherwise the users are too lenient."""
    step: float = 0.02
    """(0, .5]: how far one decision moves the target success."""
    max_shift: float = 0.1
    """[0, .3]: how far all decisions together may move it either way."""
    hold_updates: int = 5
    """[1, 1000]: updates that make up the start, and the least number between two decisions."""
    smoothing: float = 0.3
    """(0, 1]: weight of the newest update in the smoothed values."""

    def __post_init__(self) -> None:
        require_between("teacher.guard.entropy_low", self.entropy_low, 1e-6, 1.0)
        require_between("teacher.guard.density_low", self.density_low, 1e-6, 10.0)
        require_between("teacher.guard.success_margin", self.success_margin, 0.0, 1.0)
        require_between("teacher.guard.step", self.step, 1e-6, 0.5)
        require_between("teacher.guard.max_shift", self.max_shift, 0.0, 0.3)
        require_between("teacher.guard.hold_updates", self.hold_updates, 1, 1000)
        require_between("teacher.guard.smoothing", self.smoothing, 1e-6, 1.0)


@dataclass
class _GuardMemory:
    num_updates: int = 0
    entropy: float = 0.0
    density: float = 0.0
    entropy_start: float = 0.0
    density_start: float = 0.0
    held: int = 0
    """Updates since the last decision."""
    alike: int = 0
    """Consecutive updates on which the guard's condition held (positive) or did not (negative)."""
    shift: float = 0.0


class EntropyGuard:
    """Shifts the target success: down (stricter users) when success comes too easily, up (easier ones) when it does not come.

    Every `hold_updates` updates at most one decision, and only after the condition held for as many in a row;
    once it has been gone for as long, the shift goes back the same way.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self._memory = _GuardMemory()

    @property
    def shift(self) -> float:
        """What to add to the target success, in [-max_shift, max_shift]."""
        return self._memory.shift

    def on_update(self, stats: UpdateStats, *, success: float, target: float) -> dict[str, Any] | None:
        """Takes in an update and the success share of late; returns the decision with its inputs, if one was taken."""
        finite = math.isfinite(stats.entropy) and math.isfinite(stats.reward_density)
        if not self.config.enabled or not finite:
            return None
        memory = self._memory
        change = self._smooth(stats.entropy, stats.reward_density)
        if memory.num_updates <= self.config.hold_updates:
            return None
        low = memory.entropy < self.config.entropy_low * memory.entropy_start
        alike = memory.density < self.config.density_low * memory.density_start
        acting = low and change < 0.0 and alike
        memory.alike = max(memory.alike, 0) + 1 if acting else min(memory.alike, 0) - 1
        memory.held += 1
        return self._decide(success, target, change)

    def _smooth(self, entropy: float, density: float) -> float:
        """Updates averages and, at first, the start; returns the change of smoothed entropy, nats per update."""
        memory, weight = self._memory, self.config.smoothing
        memory.num_updates += 1
        n = memory.num_updates
        if n <= self.config.hold_updates:
            memory.entropy_start += (entropy - memory.entropy_start) / n
            memory.density_start += (density - memory.density_start) / n
            memory.entropy, memory.density = memory.entropy_start, memory.density_start
            return 0.0
        before = memory.entropy
        memory.entropy += weight * (entropy - memory.entropy)
        memory.density += weight * (density - memory.density)
        return memory.entropy - before

    def _decide(self, success: float, target: float, change: float) -> dict[str, Any] | None:
        memory, config = self._memory, self.config
        if memory.held < config.hold_updates or abs(memory.alike) < config.hold_updates:
            return None
        if memory.alike > 0:
            starved = success < target - config.success_margin
            action, step = ("easier", config.step) if starved else ("stricter", -config.step)
        else:
            action, step = "relax", max(-config.step, min(config.step, -memory.shift))
        shift = max(-config.max_shift, min(config.max_shift, memory.shift + step))
        if shift == memory.shift:
            return None
        inputs = {"entropy": memory.entropy, "entropy_start": memory.entropy_start, "entropy_change": change}
        inputs |= {"updates_in_a_row": abs(memory.alike), "updates_since_last": memory.held}
        memory.shift, memory.held = shift, 0
        inputs |= {"reward_density": memory.density, "reward_density_start": memory.density_start}
        return {"action": action, "shift": shift, "success": success, "target": target, **inputs}

    def state_dict(self) -> dict[str, Any]:
        """Averages, start, counters and shift."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        require_fields("teacher state's guard", state, [field.name for field in fields(_GuardMemory)])
        self._memory = _GuardMemory(**state)


FULL_STEP_GROUPS = 4
"""Fewer groups than this in one `observe` move the level by a proportionally smaller step."""
MARGIN = 0.1
"""How far outside [0, 1] a frontier may be estimated to lie: enough for noise at a bound to average out, too little to wind up."""
EASY = 0.3
"""A group counts towards the ceiling when its expected success lies this far above 1: even with half the assumed slope it is easy."""


class Measure(StrEnum):
    """What a group's faring is read from; both are in [0, 1]."""

    REWARD = "reward"
    SUCCESS = "success"


@settings_dataclass(config=SETTINGS)
class FrontierConfig(TeacherConfig):
    """Settings of `FrontierTeacher`."""

    measure: Measure = Measure.REWARD
    """What `target_success` is a target of: the mean reward, or the share of successes (final emotion from `success_emotion`)."""
    target_success: float = 0.46
    """[.05, .95]: p* to aim at, as a share of the ceiling; groups teach most at half, and .4 costs 4 % of that."""
    start: float = 0.15
    """[0, 1]: level before anything was observed."""
    slope: float = 2.0
    """[.1, 20]: assumed fall s of success per unit of strictness at the frontier; wrong by a factor of two is harmless."""
    rho: float = 0.3
    """(0, 1]: share of the mean surprise by which the level moves."""
    rate: float = 0.05
    """(0, 1]: the most the level moves at once, in strictness."""
    offset_prior: float = 1.35
    """[1, 100]: worth, in groups, of the belief that a family is like all others."""
    offset_rate: float = 0.06
    """(0, 1]: least weight of a new group in its family's offset; larger forgets faster."""
    ceiling_rate: float = 0.03
    """[0, 1]: weight of an easy group in the ceiling; 0 keeps it at 1."""
    explore: float = 0.05
    """[0, 1]: share of groups away from the frontier, at any strictness."""
    jitter: float = 0.01
    """[0, .2]: half-width of the uniform noise on the strictness of a group."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)
    bins: BinsConfig = field(default_factory=BinsConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_success", self.target_success, 0.05, 0.95)
        require_between("teacher.start", self.start, 0.0, 1.0)
        require_between("teacher.slope", self.slope, 0.1, 20.0)
        require_between("teacher.rho", self.rho, 1e-6, 1.0)
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.offset_prior", self.offset_prior, 1.0, 100.0)
        require_between("teacher.offset_rate", self.offset_rate, 1e-6, 1.0)
        require_between("teacher.ceiling_rate", self.ceiling_rate, 0.0, 1.0)
        require_between("teacher.explore", self.explore, 0.0, 1.0)
        require_between("teacher.jitter", self.jitter, 0.0, 0.2)


class FrontierTeacher(LedgerTeacher):
    """Tracks the strictness of target success for every family with one shared level and an offset per family; replays what is lost."""

    kind = "frontier"
    adapting: ClassVar[tuple[str, ...]] = ("level", "offsets", "num_seen", "ceiling", "success", "guard", "forgetting", "bins")
    config: FrontierConfig

    def __init__(self, config: FrontierConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.level = config.start
        self.offsets = {str(family): 0.0 for family in self.families}
        self.num_seen = {str(family): 0 for family in self.families}
        self.ceiling = 1.0
        # How groups at the frontier fared of late; the guard reads it.
        self.success = config.target_success
        self.guard = EntropyGuard(config.guard)
        self.forgetting = ForgettingWatch(config.forgetting, fared=self.fared)
        self.bins = StrictnessBins(config.bins, self.families, fared=self.fared)

    @property
    def target(self) -> float:
        """What is aimed at now: the setting and what the guard adds, of the ceiling."""
        return min(max(self.config.target_success + self.guard.shift, 0.05), 0.95) * self.ceiling

    def frontier(self, family: FamilyKey) -> float:
        """Where `family` is estimated to fare as aimed at, in strictness; may lie `MARGIN` outside [0, 1]."""
        return min(max(self.level + self.offsets[str(family)], -MARGIN), 1.0 + MARGIN)

    def choose(self, family: FamilyKey) -> Choice:
        """At the family's frontier, now and then anywhere, and wherever something was lost while the probes show forgetting."""
        explore, replay = self.config.explore, (1.0 - self.config.explore) * self.forgetting.replay_share
        drawn = self.rng.random()
        if drawn < explore:
            return Choice(self.explored(family), Mode.UNIFORM, explore)
        if drawn < explore + replay:
            return Choice(self.bins.draw(family, self.target, self.rng), Mode.REPLAY, replay)
        strictness = self.frontier(family) + self.config.jitter * self.rng.uniform(-1.0, 1.0)
        return Choice(float(min(max(strictness, 0.0), 1.0)), Mode.FRONTIER, 1.0 - explore - replay)

    def explored(self, family: FamilyKey) -> float:
        """The strictness of a group away from the frontier: any."""
        return float(self.rng.random())

    def fared(self, group: GroupOutcome) -> float:
        """How well the group fared, by the measure, in [0, 1]."""
        return mean_reward(group) if self.config.measure is Measure.REWARD else success_share(group)

    def unclipped(self, group: GroupOutcome) -> float:
        """How well the group is expected to fare, by a straight line through its family's frontier."""
        return self.target - self.config.slope * (group.task.strictness - self.frontier(group.task.family))

    def surprise(self, group: GroupOutcome) -> float:
        """By how much the group says its family's frontier is misjudged, in strictness; positive means stronger than thought."""
        estimate = self.frontier(group.task.family)
        expected = min(max(self.unclipped(group), 0.0), self.ceiling)
        corrected = estimate + (self.fared(group) - expected) / self.config.slope
        return min(max(corrected, -MARGIN), 1.0 + MARGIN) - estimate

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves the level once, within every family's reach, then each family's offset, the ceiling, and the bins."""
        rho, rate = self.config.rho, self.config.rate
        scale = min(1.0, len(groups) / FULL_STEP_GROUPS)
        move = rho * float(np.mean([self.surprise(group) for group in groups]))
        self.level += scale * min(max(move, -rate), rate)
        self._keep_within_reach()
        for group in groups:
            self._learn_offset(group)
            self._learn_ceiling(group)
        self.bins.learn(groups)

    def _keep_within_reach(self) -> None:
        """Takes from each offset what the level's move would carry its family beyond the margin; what lies within is left to the bit."""
        low, high = -MARGIN - self.level, 1.0 + MARGIN - self.level
        self.offsets = {key: min(max(offset, low), high) for key, offset in self.offsets.items()}

    def _learn_offset(self, group: GroupOutcome) -> None:
        key = str(group.task.family)
        gain = max(1.0 / (self.num_seen[key] + self.config.offset_prior), self.config.offset_rate)
        self.offsets[key] += gain * self.surprise(group)
        self.num_seen[key] += 1
        if group.task.mode is Mode.FRONTIER:
            self.success += 0.05 * (self.fared(group) - self.success)

    def _learn_ceiling(self, group: GroupOutcome) -> None:
        # A family at the upper bound is mastered or noise, and cannot tell what an able agent would get.
        if self.frontier(group.task.family) < 1.0 and self.unclipped(group) > 1.0 + EASY:
            self.ceiling += self.config.ceiling_rate * (self.fared(group) - self.ceiling)

    def learn_probes(self, probes: Sequence[GroupOutcome]) -> None:
        """Looks for forgetting, and notes when replay begins and ends."""
        before = self.forgetting.replay_share
        self.forgetting.learn(probes)
        after = self.forgetting.replay_share
        if (before > 0.0) != (after > 0.0):
            self.decide("replay", share=after, drops=self.forgetting.drops)

    def on_update(self, stats: UpdateStats) -> None:
        """Lets the entropy guard move the target success, and notes it when it does."""
        decision = self.guard.on_update(stats, success=self.success, target=self.target)
        if decision is not None:
            self.decide("entropy_guard", update_step=stats.step, **decision)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the level, the target, and each intention's distance from the mean over families."""
        mean = float(np.mean(list(self.offsets.values())))
        own = {"curriculum/level": self.level + mean, "curriculum/target_success": self.target, "curriculum/success_running": self.success}
        own |= {"curriculum/ceiling": self.ceiling, "curriculum/replay_share": self.forgetting.replay_share}
        own["curriculum/largest_family_share"] = float(self.allocation.shares().max())
        for intention in HiddenIntention:
            offsets = [self.offsets[str(f)] for f in self.families if isinstance(f, Family) and f.intention is intention]
            if offsets:
                own[f"curriculum/offset/{intention}"] = float(np.mean(offsets)) - mean
        return {**super().metrics(), **own}
