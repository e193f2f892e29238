"""A sweep as a plan: one experiment's settings, arms that change some of them, and seeds, read from a YAML file and checked whole.

    base: adaptive_curriculum        # whose settings all arms share
    settings: {budget: {policy_tokens: 300000}}
    seeds: [0, 1, 2]
    parallel: 2                      # runs side by side
    arms:
      frontier: {}
      fixed_0.5: {teacher: {kind: fixed, strictness: 0.5}}
      yoked: {teacher: {kind: yoked, trace: "{frontier}"}}
    contrasts: [frontier:fixed_0.5]

A group of settings of another `kind` than the base's (teacher, algorithm, simulator) replaces it whole. `{frontier}` stands for the
teacher.jsonl of that arm's run with the *next* seed, which is then run first. Three more keys, where an experiment needs them:

    differ: [policy.prior.]          # what arms may differ in although it must be the same elsewhere, because the experiment is about it
    tuning: {fixed_*: none}          # by arm, what was tried before its settings were fixed; then no arm may be left out
    choose: {from: fixed_vs_adaptive/sweep, seeds: 0-4, best: ["fixed_*"]}     # of these arms only the best of another sweep (`choice`)
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.runs import TEACHER, setting
from experiments.catalogue import experiments, path_of
from experiments.choice import Choice, read_choice
from experiments.config import ExperimentConfig, compose, merged, parse_overrides, read_yaml
from experiments.fairness import require_alike, require_tuning
from experiments.keys import ConfigError, leaves
from simulator.scenario import Split

KEYS = ("base", "settings", "arms", "seeds", "parallel", "contrasts", "primary", "differ", "tuning", "choose")
OWN = ("arms", "seeds", "parallel", "name", "runs")
"""Overrides that are the sweep's; every other one goes to all arms."""
REFERENCE = re.compile(r"\{([\w.+-]+)\}")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is to be run, and what will be compared."""

    experiment: str
    folder: Path
    """runs/<experiment>/<name>."""
    base: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    """Settings that each arm changes, nested."""
    seeds: tuple[int, ...]
    parallel: int
    """Runs side by side, > 0."""
    contrasts: tuple[tuple[str, str], ...]
    """Pairs of arms whose difference is reported, over which Holm corrects; the second may be a pattern."""
    primary: str
    """The endpoint of the contrasts, a key of `summary.json`."""
    differ: tuple[str, ...] = ()
    """Settings, or beginnings of their names, in which arms differ because the experiment is about them."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """By arm or pattern, what was tried before its settings were fixed."""
    choice: Choice | None = None
    """Which arms are the best of another sweep; until that is known, all candidates are among `arms`."""
    words: tuple[str, ...] = ()
    """The overrides from which it was made."""

    @property
    def budget(self) -> int:
        """Policy tokens of one run."""
        return self.config(self.cells()[0]).budget.policy_tokens

    def cells(self) -> list[Cell]:
        """Every run, seed by seed, so that a sweep broken off has whole seeds."""
        return [Cell(arm, seed) for seed in self.seeds for arm in self.arms]

    def cell(self, arm: str, seed: str) -> Cell:
        """One run, by name.

        Raises:
            ConfigError: the sweep has no such arm or seed.
        """
        found = next((cell for cell in self.cells() if (cell.arm, str(cell.seed)) == (arm, seed)), None)
        if found is None:
            raise ConfigError(f"a cell must be one of the arms {', '.join(self.arms)} and seeds {self.seeds}, got {arm!r} {seed!r}")
        return found

    def run_folder(self, cell: Cell) -> Path:
        """Where a run lies."""
        return self.folder / cell.arm / f"seed_{cell.seed}"

    def needs(self, cell: Cell) -> list[Cell]:
        """Runs that must have ended before this one can begin."""
        texts = [value for _, value in leaves(self.arms[cell.arm]) if isinstance(value, str)]
        return [Cell(arm, self.next_seed(cell.seed)) for text in texts for arm in REFERENCE.findall(text)]

    def next_seed(self, seed: int) -> int:
        """The seed after `seed`, the first after the last."""
        return self.seeds[(self.seeds.index(seed) + 1) % len(self.seeds)]

    def config(self, cell: Cell) -> ExperimentConfig:
        """The settings of one run.

        Raises:
            ConfigError: as `experiments.config.load` does, with the arm named.
        """
        settings = filled(self.arms[cell.arm], {need.arm: str(self.run_folder(need) / TEACHER) for need in self.needs(cell)})
        own: dict[str, Any] = {"seed": cell.seed, "name": f"seed_{cell.seed}", "runs": str(self.folder.parent.parent)}
        if setting(self.base, "evaluation.split") == Split.SEALED:
            own |= {"sealed": {"seeds": list(self.seeds)}}
        try:
            return compose(self.base, merged(settings, own), experiment=self.experiment)
        except ConfigError as error:
            raise ConfigError(f"arm {cell.arm}: {error}") from error


def describe(sweep: Sweep) -> str:
    """What would be run, with the settings that each arm changes."""
    num_runs = len(sweep.cells())
    lines = [
        f"# would write {sweep.folder}",
        f"# {len(sweep.arms)} arms x {len(sweep.seeds)} seeds of {sweep.budget:,} policy tokens each, {sweep.parallel} runs side by side",
        f"# {num_runs} runs and {num_runs * sweep.budget:,} policy tokens in all; how long they take is said after the first step",
        f"# seeds {', '.join(map(str, sweep.seeds))}; endpoint {sweep.primary}",
        *(f"# contrast {first} against {second}" for first, second in sweep.contrasts),
        *(f"# arms differ on purpose in {name}" for name in sweep.differ),
        *(f"# tuned before, {arm}: {said}" for arm, said in sweep.tuning.items()),
        *(f"# {said}" for said in (sweep.choice.sentences() if sweep.choice else ())),
    ]
    for arm, settings in sweep.arms.items():
        changes = ", ".join(f"{name}={value}" for name, value in leaves(settings))
        lines.append(f"{arm}: {changes or '(as the base)'}")
    return "\n".join(lines)


def is_sweep(experiment: str) -> bool:
    """Whether an experiment's file describes a sweep."""
    return experiment in experiments() and "arms" in read_yaml(path_of(experiment))


def load_sweep(experiment: str, overrides: Sequence[str] = ()) -> Sweep:
    """The plan of a sweep with dotted overrides, every arm of it checked.

    Raises:
        ConfigError: the file or an override is no plan, an arm's settings are wrong, or arms would spend or be judged differently.
    """
    tree = read_yaml(path_of(experiment))
    if unknown := sorted(set(tree) - set(KEYS)):
        raise ConfigError(f"a sweep has the keys {', '.join(KEYS)}, got {unknown[0]!r} in {path_of(experiment).name}")
    given = parse_overrides(overrides)
    own = {key: given.pop(key) for key in OWN if key in given}
    base = merged(merged(read_yaml(path_of(tree["base"])), tree.get("settings") or {}), given)
    arms = chosen_arms(tree["arms"], own.get("arms"))
    pairs = [parse_contrast(text, tree["arms"]) for text in tree.get("contrasts") or ()]
    runs, primary = Path(str(own.get("runs", "runs"))), tree.get("primary", "heldout.auc")
    folder = runs / experiment / str(own.get("name", "sweep"))
    choice = read_choice(tree["choose"], arms, folder=folder, runs=runs, endpoint=primary) if "choose" in tree else None
    if choice:
        arms = {arm: settings for arm, settings in arms.items() if arm not in choice.rejected}
    sweep = Sweep(
        experiment=experiment,
        folder=folder,
        base=base,
        arms=arms,
        seeds=whole_numbers("seeds", own.get("seeds", tree["seeds"]), least=0),
        parallel=whole_numbers("parallel", own.get("parallel", tree.get("parallel", 1)), least=1)[0],
        contrasts=tuple(pair for pair in pairs if all(fnmatch.filter(arms, name) for name in pair)),
        primary=primary,
        differ=tuple(tree.get("differ") or ()),
        tuning={arm: str(said) for arm, said in (tree.get("tuning") or {}).items()},
        choice=choice,
        words=tuple(overrides),
    )
    check(sweep, all_arms=list(tree["arms"]))
    return sweep


def chosen_arms(arms: Mapping[str, Any], names: Any) -> dict[str, dict[str, Any]]:
    """The arms that were asked for, all of them by default."""
    if names is None:
        names = list(arms)
    elif isinstance(names, str):
        names = names.split(",")
    for name in names:
        if name not in arms:
            raise ConfigError(f"arms must be among {', '.join(arms)}, got {name!r}")
    return {name: dict(arms[name] or {}) for name in names}


def whole_numbers(name: str, value: Any, *, least: int) -> tuple[int, ...]:
    """One or several whole numbers, as YAML or as text between commas."""
    items = value if isinstance(value, list) else str(value).split(",")
    try:
        numbers = tuple(int(item) for item in items)
    except ValueError as error:
        raise ConfigError(f"{name} must be whole numbers such as 0,1,2, got {value!r}") from error
    if not numbers or min(numbers) < least or len(set(numbers)) < len(numbers):
        raise ConfigError(f"{name} must be different whole numbers of at least {least}, got {value!r}")
    return numbers


def parse_contrast(text: str, arms: Mapping[str, Any]) -> tuple[str, str]:
    """Two arms from `first:second`; the second may be a pattern such as `fixed_*`, which means the best arm that fits it."""
    first, _, second = text.partition(":")
    if first not in arms or not fnmatch.filter(arms, second):
        raise ConfigError(f"contrasts must look like first:second, of the arms {', '.join(arms)}, got {text!r}")
    return first, second


def check(sweep: Sweep, *, all_arms: Sequence[str]) -> None:
    """Raises unless every arm can be run and all share what makes them comparable.

    Args:
        all_arms: those of the file, whichever were asked for.
    """
    for arm in sweep.arms:
        needed = {need.arm for need in sweep.needs(Cell(arm, sweep.seeds[0]))}
        if missing := sorted(needed - set(sweep.arms)):
            raise ConfigError(f"arm {arm} replays arm {missing[0]}, which must be among the arms, got {', '.join(sweep.arms)}")
        if needed and len(sweep.seeds) < 2:
            raise ConfigError(f"arm {arm} replays another seed's run, so seeds must be at least two, got {sweep.seeds}")
    require_alike({arm: sweep.config(Cell(arm, sweep.seeds[0])) for arm in sweep.arms}, differ=sweep.differ)
    require_tuning(sweep.tuning, all_arms)


def filled(settings: Any, places: Mapping[str, str]) -> Any:
    """The settings with every `{arm}` replaced by its path."""
    if isinstance(settings, Mapping):
        return {key: filled(value, places) for key, value in settings.items()}
    if isinstance(settings, str):
        return REFERENCE.sub(lambda match: places[match[1]], settings)
    return settings
