"""`python -m analysis no_search`: how far a teacher is from the best fixed difficulty of each condition, and how often training collapses.

`collect` puts finished runs into `results.csv` and `curves.csv`; `tables` and `figure` read these alone. A run of a seed that its stage's
plan does not have has the stage `stopped`, and is in no table but those of collapses and alarms. A condition is a learner with a
reward, and an arm of a sweep is called `<condition>_<arm>`. Areas and scores are points of emotion, 0-100.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import fisher_exact

from analysis import stats
from analysis.contrasts import ALPHA, POWER
from analysis.endpoints import AUC
from analysis.plots import WIDE, Dots, Figure, dot_rows
from analysis.runs import TEACHER
from analysis.stats import Estimate
from analysis.sweeps import CURVES, RESULTS, RunResult, read_csv, read_results, run_folders, with_areas_and_gains
from curriculum.collapse.indicators import low_stretches
from experiments.sweep_plan import SweepFile, seeds_of
from simulator.files import read_lines, write_whole

FOLDER = Path(__file__).parent
PLANS = {"development": "no_search_development", "confirmation": "no_search", "stress": "no_search_stress"}
"""Experiment by stage."""
STAGES = {
    "main_graded": "development",
    "weak_binary": "development",
    "weak_graded": "development",
    "half_graded": "confirmation",
    "strong_graded": "confirmation",
    "main_binary": "confirmation",
    "strong_binary": "confirmation",
    "stress_graded": "stress",
    "stress_binary": "stress",
}
"""Stage by condition."""
KEY = ["condition", "arm", "seed"]
FIXED, FRONTIER = "fixed_", "frontier"
CUT = {
    *((condition, "fixed_0.1") for condition, stage in STAGES.items() if stage == "confirmation"),
    ("half_graded", "fixed_0.9"),
    ("main_binary", "fixed_0.9"),
}
"""Condition and arm of the confirmation that are not run further (README)."""


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    actions = parser.add_subparsers(dest="action", required=True)
    reading = actions.add_parser("collect", help="put finished runs into results.csv and curves.csv")
    reading.add_argument("folders", nargs="+", type=Path, metavar="SWEEP", help="a sweep's folder, runs/<experiment>/<name>")
    actions.add_parser("tables", help="print regret, contrasts, collapses, decisions and alarms as Markdown")
    actions.add_parser("figure", help="draw regret by arm into regret.svg")


def run(options: Namespace) -> int:
    """Does what was asked; returns the exit code."""
    if options.action == "collect":
        print(collect(options.folders, FOLDER))
    elif options.action == "tables":
        print(tables(read(FOLDER), pd.read_csv(FOLDER / CURVES), {stage: Plan.of(name) for stage, name in PLANS.items()}))
    else:
        print(write_whole(FOLDER / "regret.svg", figure(read(FOLDER))))
    return 0


# Collecting -------------------------------------------------------------------------------------------------------------------------


def collect(folders: Iterable[Path], out: Path) -> str:
    """Adds the finished runs of sweeps to the study's tables, in place of older rows of the same condition, arm and seed.

    Returns:
        A message: runs that were left out, and the number of rows.

    Raises:
        ValueError: a folder is no sweep's, or an arm is of no condition.
    """
    rows, looks, notes = list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    plans = {stage: Plan.of(name) for stage, name in PLANS.items()}
    for folder in folders:
        runs, left_out = read_results(run_folders(folder))
        runs, _, short = with_areas_and_gains(runs)
        notes += [*left_out, *short]
        for result in runs:
            rows.append(row_of(result, folder / result.arm / f"seed_{result.seed}", plans))
            looks += [{name: rows[-1][name] for name in KEY} | look for look in result.looks]
    total = put(out / RESULTS, rows)
    put(out / CURVES, looks)
    return "\n".join([*notes, f"{len(rows)} finished runs read, {total} rows in {out / RESULTS}"])


def parts(name: str) -> tuple[str, str]:
    """Condition and arm, from an arm of a sweep.

    Raises:
        ValueError: it is of no condition.
    """
    learner, reward, arm = (*name.split("_", 2), "", "")[:3]
    if f"{learner}_{reward}" not in STAGES or not arm:
        raise ValueError(f"arm must be called <condition>_<arm> with a condition of {', '.join(STAGES)}, got {name!r}")
    return f"{learner}_{reward}", arm


def row_of(result: RunResult, place: Path, plans: Mapping[str, Plan]) -> dict[str, Any]:
    """The row of a run in `results.csv`.

    Args:
        place: the run's folder.
        plans: by stage.
    """
    condition, arm = parts(result.arm)
    decisions = [line for line in read_lines(place / TEACHER) if line.get("event") == "decision" and line.get("decision") == "steer"]
    movers = [mover(decision) for decision in decisions]
    return {
        "condition": condition,
        "arm": arm,
        "seed": result.seed,
        "area": result.scalars[AUC],
        "end": result.scalars["heldout.score"],
        "collapsed": int(has_collapsed([look["score"] for look in result.looks])),
        "stage": STAGES[condition] if result.seed in plans[STAGES[condition]].seeds else "stopped",
        "start": result.scalars["start.score"],
        "steps": result.num_steps,
        "policy_tokens": int(result.scalars["policy_tokens"] or 0),
        "entropy_end": result.scalars["entropy.end"],
        "reward_density_end": result.scalars["reward_density.end"],
        "decisions": len(decisions),
        "density_moves": movers.count("density"),
        "entropy_moves": movers.count("entropy"),
        "alarms": " ".join(result.alarms_at),
        "world": result.world,
        "commits": " ".join(result.commits),
    }


def has_collapsed(scores: Sequence[float]) -> bool:
    """The post-hoc label of a run, from its held-out course, which no teacher sees.

    A score is low where it is below 80 % of the best so far, the start included, and 5 points below it. A run has collapsed if at least
    its last two evaluations are low, the final one included: a dip that ends is none, and neither is one bad score at the very end.

    Args:
        scores: mean final emotion on the small held-out grid at each evaluation, 0-100, the start first.
    """
    stretches = list(low_stretches(range(len(scores)), [score / 100.0 for score in scores]))
    return bool(stretches) and stretches[-1][0] < stretches[-1][1] == len(scores) - 1


def mover(decision: Mapping[str, Any]) -> str:
    """What decided a step towards easier or harder tasks: `density` or `entropy`; empty where neither pulls and an earlier step is undone.

    The greater of ln+(1 / density_ratio) and |ln+ growth - ln+ pressure|, the two parts of the law.
    """
    by_density = -math.log(min(max(decision["density_ratio"], 1e-3), 1.0))
    by_entropy = abs(math.log(max(decision["growth"], 1.0)) - math.log(max(decision["pressure"], 1.0)))
    if by_density == by_entropy:
        return ""
    return "density" if by_density > by_entropy else "entropy"


def put(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Writes rows into a table, in place of those of the same runs; returns how many it then has."""

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)

    new = [{name: cell(value) for name, value in row.items()} for row in rows]
    runs = {tuple(row[name] for name in KEY) for row in new}
    old = [row for row in read_csv(path).to_dict("records") if tuple(row[name] for name in KEY) not in runs]
    if not new:
        return len(old)
    whole = sorted([*old, *new], key=lambda row: (list(STAGES).index(row["condition"]), row["arm"], int(row["seed"])))
    frame = pd.DataFrame(whole, columns=list(dict.fromkeys([*new[0], *(name for row in old for name in row)]))).fillna("")
    write_whole(path, frame.to_csv(index=False, lineterminator="\n"))
    return len(whole)


def read(folder: Path) -> pd.DataFrame:
    """The study's `results.csv`, a row a run.

    Raises:
        ValueError: there is none yet.
    """
    if not (folder / RESULTS).is_file():
        raise ValueError(f"{folder / RESULTS} must be there; make it by `python -m analysis no_search collect SWEEP...`")
    return pd.read_csv(folder / RESULTS)


def uncut(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the single runs of arms that were cut later."""
    return frame[[pair not in CUT for pair in zip(frame["condition"], frame["arm"], strict=True)]]


class Plan(NamedTuple):
    """What a stage is to run."""

    arms: list[tuple[str, str]]
    """Condition and arm."""
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, experiment: str) -> Plan:
        """The plan in an experiment's file."""
        file = SweepFile.of(experiment)
        return cls([parts(name) for name in file.arms], seeds_of(file.seeds))

    @property
    def rivals(self) -> list[str]:
        """All arms but frontier."""
        return [arm for arm in dict.fromkeys(arm for _, arm in self.arms) if arm != FRONTIER]


# Regret -----------------------------------------------------------------------------------------------------------------------------


def regret(fixed_FS: np.ndarray, arm_S: np.ndarray, counts_BS: np.ndarray) -> np.ndarray:
    """How far an arm is behind the best fixed arm of its condition, float[B], points of area; negative where it is ahead.

    For each seed the best fixed arm is the one with the highest mean area over the other seeds, so no arm is chosen on the run that it is
    compared on. Regret is the mean over seeds of that arm's area less the arm's own. A fixed arm's regret is computed in the same way.

    Args:
        fixed_FS: areas of the fixed arms by seed.
        counts_BS: how often each resample drew each seed; all ones for the data. All copies of a seed are left out together. A resample of
            one seed alone leaves none to choose by, and gives NaN.
    """
    num_B1 = counts_BS.sum(axis=1, keepdims=True)
    sums_BFS = (counts_BS @ fixed_FS.T)[:, :, None] - counts_BS[:, None, :] * fixed_FS
    with np.errstate(invalid="ignore", divide="ignore"):
        means_BFS = sums_BFS / (num_B1 - counts_BS)[:, None, :]
    best_BS = fixed_FS[means_BFS.argmax(axis=1), np.arange(len(arm_S))]
    found_B = ((best_BS - arm_S) * counts_BS).sum(axis=1) / num_B1[:, 0]
    return np.asarray(np.where((counts_BS == num_B1).any(axis=1), np.nan, found_B))


def beside_fixed(rows: pd.DataFrame, arm: str) -> tuple[list[str], pd.DataFrame]:
    """The fixed arms of a condition that have the most seeds, and areas of these and of an arm on the seeds that all of them have."""
    areas = rows.pivot(index="seed", columns="arm", values="area")
    num_seeds = areas.filter(like=FIXED).count()
    fixed = [name for name in num_seeds.index if num_seeds[name] == num_seeds.max()]
    return fixed, areas[list(dict.fromkeys([*fixed, arm]))].dropna() if fixed and arm in areas else areas.iloc[:0]


def regrets(frame: pd.DataFrame, arm: str, *, seed: int = 0) -> dict[str, np.ndarray]:
    """By condition an arm's regret: that of the data first, then of resampled seeds; NaN from a single seed.

    Fixed arms of which seeds are missing are no reference yet. The seeds of `beside_fixed` are drawn with replacement, all arms of a
    condition together. Conditions with equally many seeds share the draws, so that a seed stays together over conditions, too.

    Args:
        seed: of the draws.
    """
    found = {}
    for condition, rows in frame.groupby("condition", sort=False):
        fixed, whole = beside_fixed(rows, arm)
        if num := len(whole):
            counts_BS = np.random.default_rng(seed).multinomial(num, [1.0 / num] * num, size=stats.NUM_RESAMPLES)
            counts_BS = np.concatenate([np.ones((1, num), dtype=int), counts_BS])
            found[str(condition)] = regret(whole[fixed].to_numpy().T, whole[arm].to_numpy(), counts_BS)
    return found


def mean_and_worst(found: Mapping[str, np.ndarray]) -> tuple[Estimate, Estimate]:
    """Mean regret over conditions and that of the worst one, with percentile intervals; which one is worst may change with the resample."""
    known_CB = np.array([values for values in found.values() if not np.isnan(values[0])])
    if not known_CB.size:
        return stats.NOTHING, stats.NOTHING
    mean, worst = (
        Estimate(float(of_B[0]), *map(float, np.nanquantile(of_B[1:], [stats.LOW, stats.HIGH])))
        for of_B in (known_CB.mean(axis=0), known_CB.max(axis=0))
    )
    return mean, worst


def regret_table(frame: pd.DataFrame) -> str:
    """Regret by arm and condition, with the mean area on the same seeds and their number in brackets, least mean regret first."""
    conditions = [condition for condition in STAGES if condition in set(frame["condition"])]
    areas = {(arm, name): beside_fixed(rows, arm)[1] for name, rows in frame.groupby("condition") for arm in dict.fromkeys(rows["arm"])}
    found = {arm: regrets(frame, arm) for arm in dict.fromkeys(frame["arm"])}
    ranked = []
    for arm, of in found.items():
        mean, worst = mean_and_worst(of)
        cells = [
            f"{Estimate(of[name][0]).text(1)} ({areas[arm, name][arm].mean():.1f}, {len(areas[arm, name])})" if name in of else ""
            for name in conditions
        ]
        row = [f"`{arm}`", *cells, mean.text(1), worst.text(1), str(int((frame["arm"] == arm).sum()))]
        ranked.append((-len(of), math.isnan(mean.value), mean.value, row))
    rows = [row for *_, row in sorted(ranked, key=lambda item: item[:3])]
    return markdown(["regret (area, seeds)", *conditions, "mean [95 %]", "worst condition [95 %]", "runs"], rows)


# Contrasts --------------------------------------------------------------------------------------------------------------------------


class Contrast(NamedTuple):
    """Frontier less another arm, on the same seeds, averaged over conditions."""

    rival: str
    differences_S: np.ndarray
    """Area by seed, mean over conditions."""
    num_conditions: int
    is_complete: bool
    """Whether all that was planned is there."""


def contrast(frame: pd.DataFrame, rival: str, plan: Plan) -> Contrast:
    """The seeds on which both arms have a run in every condition in which any seed has both."""
    areas = frame.pivot(index=["condition", "seed"], columns="arm", values="area").reindex(columns=[FRONTIER, rival])
    table = (areas[FRONTIER] - areas[rival]).dropna().unstack("condition").dropna()
    planned = {condition for condition, arm in plan.arms if arm == rival}
    return Contrast(rival, table.mean(axis=1).to_numpy(), table.shape[1], {*table} >= planned and {*table.index} >= {*plan.seeds})


def contrast_table(frame: pd.DataFrame, plan: Plan) -> str:
    """Frontier against every other arm of the plan: paired over seeds, exact test, Holm.

    Seeds are the units of the sign-flip test: a seed's differences are averaged over conditions first. Runs of one seed
    share their draws of scenarios in every condition, so pairs of (condition, seed) need not be independent, and flipping each by itself
    would be wrong then. Flipping a seed whole is exact however its conditions depend on each other. Ten seeds can give p = 0.002, eight
    times that after Holm is 0.016. A contrast that is not complete counts with p = 1 and is undecided.
    """
    found = [contrast(frame, rival, plan) for rival in plan.rivals]
    ps = [stats.sign_flip_test(one.differences_S) if one.differences_S.size else 1.0 for one in found]
    adjusted = stats.holm([p if one.is_complete else 1.0 for p, one in zip(ps, found, strict=True)])
    per_sd, rows = stats.detectable(10, ALPHA / len(found), POWER), list[list[str]]()
    for one, p, p_holm in zip(found, ps, adjusted, strict=True):
        if not (d := one.differences_S).size:
            rows.append([f"`{FRONTIER}` - `{one.rival}`", "–", "–", "0", "–", "–", "undecided", "–"])
            continue
        found_by_ten = f"{per_sd * d.std(ddof=1):.1f}" if d.size > 1 else "–"
        answer = "undecided" if p_holm > ALPHA else "yes" if d.mean() > 0 else "no"
        mean, better = with_signs(stats.mean_difference(d)), f"{(d > 0).sum()} of {d.size}"
        rows.append(
            [f"`{FRONTIER}` - `{one.rival}`", mean, better, str(one.num_conditions), f"{p:.3g}", f"{p_holm:.3g}", answer, found_by_ten]
        )
    return markdown(["area: difference", "mean [95 %]", "seeds better", "conditions", "p", "Holm p", "answer", "ten seeds find"], rows)


def with_signs(estimate: Estimate) -> str:
    """`+1.0 [-3.1, +5.1]`."""
    bounds = "" if math.isnan(estimate.low) else f" [{estimate.low:+.1f}, {estimate.high:+.1f}]"
    return f"{estimate.value:+.1f}{bounds}"


# Collapses and decisions ------------------------------------------------------------------------------------------------------------


def collapse_table(frame: pd.DataFrame, plan: Plan) -> str:
    """Collapsed runs by arm under stress, both conditions together against frontier by Fisher's exact test; and elsewhere, untested.

    A comparison that is planned and not complete counts with p = 1 in the correction.

    Args:
        plan: of the stress.
    """
    stress, elsewhere = frame[frame["stage"] == "stress"], frame[frame["stage"] != "stress"]
    conditions = [condition for condition, stage in STAGES.items() if stage == "stress"]

    def counted(rows: pd.DataFrame) -> str:
        return f"{rows['collapsed'].sum()} of {len(rows)}" if len(rows) else "–"

    by_arm, num = {arm: rows["collapsed"] for arm, rows in stress.groupby("arm")}, len(conditions) * len(plan.seeds)
    ps = {arm: fisher(by_arm[FRONTIER], by_arm[arm]) for arm in plan.rivals if {FRONTIER, arm} <= {*by_arm}}
    whole = [ps[arm] if arm in ps and len(by_arm[FRONTIER]) == len(by_arm[arm]) == num else 1.0 for arm in plan.rivals]
    adjusted = dict(zip(plan.rivals, stats.holm(whole), strict=True))
    rows = []
    for arm in dict.fromkeys([*stress["arm"], *elsewhere["arm"]]):
        mine = stress[stress["arm"] == arm]
        cells = [counted(mine[mine["condition"] == condition]) for condition in conditions]
        test = [f"{ps[arm]:.3g}", f"{adjusted[arm]:.3g}"] if arm in ps else ["–", "–"]
        rows.append([f"`{arm}`", *cells, counted(mine), *test, counted(elsewhere[elsewhere["arm"] == arm])])
    return markdown(["collapsed", *conditions, "both", "p against frontier", "Holm p", "other conditions"], rows)


def fisher(a: pd.Series, b: pd.Series) -> float:
    """The two-sided p of equal shares of collapsed runs in two arms, 0 or 1 a run. Source: Fisher 1935."""
    return float(fisher_exact([[a.sum(), len(a) - a.sum()], [b.sum(), len(b) - b.sum()]]).pvalue)


def alarm_table(frame: pd.DataFrame, curves: pd.DataFrame) -> str:
    """Of each alarm that rang: how many runs it rang in and how many of them collapsed, and how many of the collapses it foretold.

    A collapse is foretold by a ring at or before the first evaluation of the low stretch that ends the run; the lead is the median number
    of steps between them.
    """
    onsets, rings = dict[tuple[Any, ...], int](), dict[str, dict[tuple[Any, ...], int]]()
    for key, looks in curves.groupby(KEY):
        stretches = list(low_stretches(looks["step"].tolist(), (looks["score"] / 100.0).tolist()))
        onsets |= {key: stretches[-1][0]} if stretches else {}
    collapsed = {tuple(row[name] for name in KEY) for row in frame.to_dict("records") if row["collapsed"]}
    for row in frame[frame["alarms"].notna()].to_dict("records"):
        for name, _, step in (ring.partition("@") for ring in row["alarms"].split()):
            rings.setdefault(name, {})[tuple(row[name] for name in KEY)] = int(step)
    rows = []
    for name, fired in sorted(rings.items(), key=lambda item: -len(item[1])):
        leads = [onsets[key] - step for key, step in fired.items() if key in collapsed]
        early = [lead for lead in leads if lead >= 0]
        lead = f"{np.median(early):g}" if early else "–"
        rows.append([f"`{name}`", str(len(fired)), str(len(leads)), f"{len(early)} of {len(collapsed)}", lead])
    return markdown(["alarm", "runs with it", "of them collapsed", "collapses foretold", "lead, steps"], rows)


def decision_table(frame: pd.DataFrame) -> str:
    """Steps towards easier or harder tasks per run, and what decided them, of the arms that log any."""
    steers = frame[frame["arm"].isin(frame.loc[frame["decisions"] > 0, "arm"])]
    rows = []
    for (condition, arm), runs in steers.groupby(["condition", "arm"], sort=False):
        means = [f"{runs[name].mean():.1f}" for name in ("decisions", "density_moves", "entropy_moves")]
        shares = [f"{(runs[name] > 0).sum()} of {len(runs)}" for name in ("density_moves", "entropy_moves")]
        rows.append([str(condition), f"`{arm}`", *means, *shares])
    names = ["condition", "arm", "decisions a run", "by density", "by entropy", "runs with one by density", "by entropy"]
    return markdown(names, rows)


# Output -----------------------------------------------------------------------------------------------------------------------------


def tables(frame: pd.DataFrame, curves: pd.DataFrame, plans: Mapping[str, Plan]) -> str:
    """All tables, of what is there so far.

    Args:
        curves: scores over training, a row an evaluation.
        plans: by stage.
    """
    found = list[str]()
    for stage in ("development", "confirmation"):
        rows, plan = uncut(frame[frame["stage"] == stage]), plans[stage]
        if len(rows):
            planned = {*plan.arms} - CUT
            num = sum((condition, arm) in planned for condition, arm in zip(rows["condition"], rows["arm"], strict=True))
            others = f", and {len(rows) - num} of other arms" if len(rows) > num else ""
            found.append(f"**{stage.capitalize()}**: {num} of {len(planned) * len(plan.seeds)} planned runs{others}.")
            found += [regret_table(rows), contrast_table(rows, plan)]
    return "\n\n".join([*found, collapse_table(frame, plans["stress"]), decision_table(frame), alarm_table(frame, curves)])


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(frame: pd.DataFrame) -> str:
    """Regret by arm as SVG: a ring a condition, the mean on its interval; of the confirmation, before it of the development.

    Raises:
        ValueError: no arm has a regret yet.
    """
    stage = "confirmation" if (frame["stage"] == "confirmation").any() else "development"
    rows = uncut(frame[frame["stage"] == stage])
    dots = []
    for arm in dict.fromkeys(rows["arm"]):
        values = {condition: float(of_B[0]) for condition, of_B in regrets(rows, arm).items() if not math.isnan(of_B[0])}
        if values:
            mean, worst = mean_and_worst(regrets(rows, arm))
            at = max(values, key=lambda condition: values[condition])
            note, colour = f"worst {worst.value:.1f}: {at.replace('_', ' ')}", "b" if arm == FRONTIER else "a"
            dots.append(Dots(arm, list(values.values()), mean.value, mean.low, mean.high, note, colour))
    draw, height = dot_rows(sorted(dots, key=lambda dot: dot.mean), x_label="points of area behind the best fixed arm", zero=True)
    if draw is None:
        raise ValueError(f"results.csv must hold two seeds of a fixed arm and of another, got {len(rows)} runs of the {stage}")
    title = f"Regret by arm ({stage}): a ring a condition, a dot the mean"
    found = Figure(name="regret", title=title, draw=draw, caption="", header=(), rows=(), size=(WIDE[0] + 120, height))
    # The page behind it may be dark.
    return found.render("svg")[0].decode().replace("<svg ", '<svg style="background:white" ', 1)
