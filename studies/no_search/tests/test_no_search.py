"""The study's label, regret, contrasts and tables, against values worked out by hand, and its tables from made runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_sweep import made_result, made_sweep, steps_of

from studies.no_search.no_search import (
    PLANS,
    STAGES,
    Plan,
    alarm_table,
    collapse_table,
    collect,
    contrast,
    contrast_table,
    figure,
    has_collapsed,
    mean_and_worst,
    mover,
    read,
    regret,
    regrets,
    tables,
    uncut,
)


def made(areas: dict[tuple[str, str], list[float]], **columns: object) -> pd.DataFrame:
    """Rows by condition and arm, seeds 0, 1, ..."""
    rows = [
        {"condition": condition, "arm": arm, "seed": seed, "area": area, "stage": STAGES[condition], **columns}
        for (condition, arm), found in areas.items()
        for seed, area in enumerate(found)
    ]
    return pd.DataFrame(rows)


# Best 50: low is below 40, so the last two count; one low score, or a dip that ends, does not. Of a best of 20, 15.5 is not 5 points below.
@pytest.mark.parametrize(
    ("scores", "collapsed"),
    [
        ([30, 50, 39, 38], True),
        ([50, 20, 20], True),
        ([30, 50, 45, 39], False),
        ([30, 50, 39, 38, 41], False),
        ([50, 39, 41, 39], False),
        ([20, 15.5, 15.5], False),
        ([20, 15, 15], True),
        ([30], False),
    ],
)
def test_a_run_has_collapsed_if_its_last_two_scores_are_low(scores, collapsed):
    assert has_collapsed(scores) is collapsed


def test_regret_is_against_the_fixed_arm_that_is_best_on_the_other_seeds():
    fixed_FS, arm_S, once = np.array([[40.0, 10.0, 20.0], [12.0, 32.0, 12.0]]), np.array([10.0, 12.0, 14.0]), np.ones((1, 3), dtype=int)
    # Means without seeds 0, 1, 2: 15, 30, 25 and 22, 12, 22. So the best are the second, the first, the first: 12, 10, 20.
    assert regret(fixed_FS, arm_S, once).tolist() == [pytest.approx((2 - 2 + 6) / 3)]
    assert regret(fixed_FS, fixed_FS[0], once).tolist() == [pytest.approx((12 - 40 + 0 + 0) / 3)]
    # Drawn twice, seed 0 is left out twice: seed 0 by seed 1 alone, the second, 12; seed 1 by seed 0 alone, the first, 10.
    assert regret(fixed_FS, arm_S, np.array([[2, 1, 0], [3, 0, 0]])).tolist() == pytest.approx([(2 * 2 - 2) / 3, np.nan], nan_ok=True)


def test_regret_goes_over_conditions_as_a_mean_and_as_the_worst():
    fixed = {"fixed_0.1": [30.0, 30.0, 30.0], "fixed_0.9": [20.0, 20.0, 20.0]}
    frame = made({("weak_graded", arm): found for arm, found in fixed.items()} | {("weak_graded", "frontier"): [29.0, 28.0, 27.0]})
    other = made({("main_binary", arm): found for arm, found in fixed.items()} | {("main_binary", "frontier"): [24.0, 24.0, 24.0, 99.0]})
    frame = pd.concat([frame, other])
    assert {name: found[0] for name, found in regrets(frame, "frontier").items()} == {"weak_graded": 2.0, "main_binary": 6.0}
    mean, worst = mean_and_worst(regrets(frame, "frontier"))
    assert (mean.value, worst.value, worst.low, worst.high) == (4.0, 6.0, 6.0, 6.0) and 3.5 <= mean.low < 4.0 < mean.high <= 4.5
    assert regrets(frame, "fixed_0.9")["main_binary"][0] == 10.0 and regrets(frame, "fixed_0.1")["main_binary"][0] == 0.0
    assert regrets(frame, "uniform") == {}
    begun = made({("weak_graded", "fixed_0.5"): [90.0], ("weak_graded", "uniform"): [25.0, 25.0]})
    assert regrets(pd.concat([frame, begun]), "frontier")["weak_graded"][0] == 2.0  # an arm with fewer seeds is no reference yet
    assert regrets(pd.concat([frame, begun]), "uniform")["weak_graded"][0] == 5.0
    np.testing.assert_array_equal(regrets(frame, "frontier")["weak_graded"], regrets(frame, "frontier")["weak_graded"])


def test_arms_that_were_cut_leave_the_tables():
    frame = made({(condition, arm): [1.0] for condition in ("half_graded", "strong_graded") for arm in ("fixed_0.1", "fixed_0.9")})
    assert uncut(frame)[["condition", "arm"]].to_numpy().tolist() == [["strong_graded", "fixed_0.9"]]


def test_a_contrast_is_paired_over_seeds_and_averaged_over_conditions():
    conditions, seeds = ("weak_graded", "main_binary"), range(8)
    plan = Plan([(condition, arm) for condition in conditions for arm in ("frontier", "uniform", "target")], tuple(seeds))
    frame = made(
        {(condition, "frontier"): [30.0 + seed for seed in seeds] for condition in conditions}
        | {("weak_graded", "uniform"): [29.0 + seed for seed in seeds], ("main_binary", "uniform"): [27.0 + seed for seed in seeds]}
        | {("weak_graded", "target"): [31.0 + seed for seed in seeds], ("main_binary", "target"): [31.0, 32.0]}
    )
    against_uniform, against_target = (contrast(frame, rival, plan) for rival in plan.rivals)
    assert against_uniform.differences_S.tolist() == [2.0] * 8 and against_uniform.is_complete
    # Seeds that lack a condition are left out, and what is planned is not there.
    assert against_target.differences_S.tolist() == [-1.0, -1.0] and not against_target.is_complete
    # 2 of 2 ** 8 sign patterns are as far from 0, twice that after Holm.
    assert contrast_table(frame, plan).splitlines()[2:] == [
        "| `frontier` - `uniform` | +2.0 [+2.0, +2.0] | 8 of 8 | 2 | 0.00781 | 0.0156 | yes | 0.0 |",
        "| `frontier` - `target` | -1.0 [-1.0, -1.0] | 0 of 2 | 2 | 0.5 | 1 | undecided | 0.0 |",
    ]
    assert "| `frontier` - `uniform` | – | – | 0 |" in contrast_table(frame[frame["arm"] == "frontier"], plan)


def test_collapses_are_compared_by_fishers_exact_test():
    areas = {(condition, arm): [0.0] * 2 for condition in ("stress_graded", "stress_binary") for arm in ("frontier", "fixed_0.5")}
    frame = made(areas, collapsed=0)
    frame.loc[frame["arm"] == "fixed_0.5", "collapsed"] = 1
    plan = Plan([*areas, ("stress_graded", "uniform")], (0, 1))
    # 4 of 8 runs collapsed: the 70 ways to place them have two that are as uneven. Uniform, which is missing, belongs to the family.
    assert collapse_table(frame, plan).splitlines()[2:] == [
        "| `frontier` | 0 of 2 | 0 of 2 | 0 of 4 | – | – | – |",
        "| `fixed_0.5` | 2 of 2 | 2 of 2 | 4 of 4 | 0.0286 | 0.0571 | – |",
    ]
    assert "| 4 of 4 | 0.0286 | 1 | – |" in collapse_table(frame, plan._replace(seeds=(0, 1, 2)))


def test_alarms_are_counted_by_the_collapses_that_they_foretell():
    frame = made({("main_binary", arm): [0.0] for arm in ("fixed_0.1", "fixed_0.5", "uniform")}, collapsed=1, alarms="early@4 late@31")
    frame.loc[frame["arm"] == "uniform", ["collapsed", "alarms"]] = [0, "early@3"]
    frame.loc[frame["arm"] == "fixed_0.5", "alarms"] = None
    looks = pd.DataFrame({"step": [0, 5, 10, 15], "score": [30.0, 60.0, 40.0, 30.0]})
    curves = frame[["condition", "arm", "seed"]].merge(looks, how="cross")
    assert alarm_table(frame, curves).splitlines()[2:] == [
        "| `early` | 2 | 1 | 1 of 2 | 6 |",
        "| `late` | 1 | 1 | 0 of 2 | – |",
    ]


def steer(density_ratio: float, pressure: float, growth: float) -> dict[str, object]:
    inputs = {"density_ratio": density_ratio, "pressure": pressure, "growth": growth}
    return {"step": 3, "event": "decision", "decision": "steer", "ease": 0.25, **inputs}


def test_a_step_is_decided_by_the_greater_part_of_the_law():
    # ln 1.25 = .22 against ln 1.5 = .41; growth and pressure that cancel pull nowhere.
    assert mover(steer(0.8, 1.5, 0.0)) == mover(steer(0.8, 0.0, 1.5)) == "entropy"
    assert mover(steer(0.8, 1.1, 0.2)) == mover(steer(0.8, 1.5, 1.5)) == "density"
    assert mover(steer(1.2, 0.9, 0.9)) == ""


def test_runs_are_collected_once_and_stay_when_their_folder_is_gone(tmp_path: Path):
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    out.mkdir()
    looks = ((0, 20.0), (500, 60.0), (800, 40.0), (1000, 40.0))
    alarms = {"collapse": {"alarms": [{"name": "unlearned", "step": 31}]}, "steps": 30}
    log = [steer(0.5, 0.0, 0.0), steer(0.9, 2.0, 0.0), {"step": 4, "event": "decision", "decision": "replay"}]
    made_result(first, "stress_graded_frontier_no_entropy", 200, looks=looks, summary=alarms, teacher=log, metrics=steps_of())
    made_result(first, "stress_graded_uniform", 200, finished=False)
    made_sweep(second, {"main_graded_fixed_0.5": [60.0, 40.0], "main_graded_frontier": [50.0, 60.0]})
    assert "stress_graded_uniform/seed_200 is left out" in collect([first, second], out)
    table, curves = read(out), pd.read_csv(out / "curves.csv")
    (stress,) = table[table["stage"] == "stress"].to_dict("records")
    # 40 (500) + 50 (300) + 40 (200) points and tokens, over 1000; 40 is below 80 % of 60, twice.
    assert (stress["arm"], stress["area"], stress["end"], stress["collapsed"]) == ("frontier_no_entropy", 43.0, 40.0, 1)
    assert (stress["decisions"], stress["density_moves"], stress["entropy_moves"]) == (2, 1, 1) and stress["alarms"] == "unlearned@31"
    assert len(table) == 5 and len(curves) == 4 + 4 * 2 and curves["score"].tolist()[-4:] == [20.0, 60.0, 40.0, 40.0]

    before = [(out / name).read_bytes() for name in ("results.csv", "curves.csv")]
    assert "4 finished runs read, 5 rows" in collect([second], out)
    assert before == [(out / name).read_bytes() for name in ("results.csv", "curves.csv")]
    made_sweep(tmp_path / "again", {"main_graded_frontier": [30.0], "half_graded_uniform": [30.0]})
    collect([tmp_path / "again"], out)
    table = read(out).set_index(["arm", "seed"])
    assert table.loc[("uniform", 0), "stage"] == "stopped"  # the confirmation has no seed 0
    assert len(table) == 6 and table.loc[("frontier", 0), "area"] == 25.0 and table.loc[("frontier", 1), "area"] == 40.0

    text = tables(read(out), pd.read_csv(out / "curves.csv"), {stage: Plan.of(name) for stage, name in PLANS.items()})
    # Areas 40, 30 of the only fixed arm against 25, 40.
    assert "| `frontier` | 2.5 (32.5, 2) | 2.5 [" in text and "| `frontier_no_entropy` | 1 of 1 | – | 1 of 1 | – | – | – |" in text
    assert "4 of 57 planned runs." in text and "| `unlearned` | 1 | 1 | 0 of 1 | – |" in text and figure(read(out)).count("worst ") == 2


def test_an_arm_of_no_condition_is_refused(tmp_path: Path):
    made_sweep(tmp_path / "sweep", {"frontier": [60.0]})
    with pytest.raises(ValueError, match="a condition of main_graded, weak_binary"):
        collect([tmp_path / "sweep"], tmp_path)


def test_the_plans_have_the_arms_of_the_study():
    development, confirmation, stress = map(Plan.of, PLANS.values())
    arms = ["frontier", "fixed_0.1", "fixed_0.3", "fixed_0.5", "fixed_0.7", "fixed_0.9", "uniform", "target"]
    whole, short = ("main_graded", "weak_binary"), ("frontier", "fixed_0.5", "fixed_0.7")
    assert sorted(development.arms) == sorted([(c, arm) for arm in arms for c in whole] + [("weak_graded", arm) for arm in short])
    assert development.seeds == (0, 1, 2)
    assert {c for c, _ in confirmation.arms} == {c for c, stage in STAGES.items() if stage == "confirmation"}
    assert confirmation.rivals == [*arms[1:], "other"] and len(confirmation.arms) == 36
    assert stress.rivals == ["frontier_no_entropy", "fixed_0.5", "fixed_0.9", "uniform"] and len(stress.arms) == 10
    assert confirmation.seeds == tuple(range(220, 230)) and stress.seeds == tuple(range(200, 210))
