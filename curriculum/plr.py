"""Prioritised level replay (PLR): cells are played again by the rank of their score and by how long they were left alone.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher, CellValues, mean_over_rollouts
from curriculum.checks import require_between
from curriculum.scores import learnability, max_minus_mean, positive_advantage
from curriculum.teacher import GroupOutcome, Mode


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


@dataclass
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
