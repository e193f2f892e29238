"""Names of metrics that verl has too: what ours mean by them, and that runs recorded under former names can be read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from documented_metrics import TABLE

from policy.algorithms.loss import clipped_surrogate
from policy.batch import TokenScores
from policy.learner import METRICS
from studies.alarm_quality.courses import course_of_run

RATIOS, ADVANTAGES = [1.5, 0.5, 6.0, 1.0], [1.0, -1.0, -1.0, 1.0]


def sums() -> dict[str, float]:
    scores = TokenScores(
        logprobs_N=torch.tensor(RATIOS, dtype=torch.float64).log(),
        entropies_N=torch.zeros(4),
        old_logprobs_N=torch.zeros(4, dtype=torch.float64),
        advantages_N=torch.tensor(ADVANTAGES, dtype=torch.float64),
    )
    loss = clipped_surrogate(scores, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    return {key: float(value) for key, value in loss.sums.items()}


def test_the_clip_fraction_counts_the_dual_clip_and_its_parts_go_by_the_sign_of_the_advantage():
    # 1.5 and 0.5 are held by the clip, 6 by the dual clip alone, which is what verl's pg_clipfrac_lower counts.
    found = sums()
    assert found["actor/clip_fraction"] == 3
    assert found["actor/clip_fraction_negative"] == 2 and found["actor/clip_fraction_positive"] == 1


def test_the_kl_from_the_policy_before_is_k3_and_never_negative():
    k1 = sum(-math.log(ratio) for ratio in RATIOS)
    assert sums()["actor/approx_kl"] == pytest.approx(sum(ratio - 1.0 - math.log(ratio) for ratio in RATIOS))
    assert k1 < 0.0 < sums()["actor/approx_kl"]


@pytest.mark.parametrize("name", ["actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_clipfrac_upper"])
def test_a_name_that_means_something_else_in_verl_is_not_ours_any_more(name):
    assert name not in METRICS
    assert f"`{name}`" in TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["actor/ppo_kl", "actor/approx_kl"])
def test_the_study_of_alarms_reads_the_name_before_as_well(name, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, name: 0.25}) + "\n", encoding="utf-8")
    assert course_of_run(tmp_path).values == [{"update_kl": 0.25}]
