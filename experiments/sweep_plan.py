"""What a sweep's file and the words of a call may say, looked at before a plan is made of them (`experiments.sweep_plan`).

What makes arms comparable: they spend alike, start alike and are judged alike, unless the experiment is about just that.

A sweep as a plan: one experiment's settings, arms that change some of them, and seeds, read from a YAML file and checked whole.

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
teacher.jsonl of that arm's run with the *next* of the file's seeds, which is then run first, whichever seeds were asked for; seeds that
the file does not have replay runs of those it has. So what a run replays hangs on nothing but its seed. Four more keys, where an
experiment needs them:

    differ: [policy.prior.]          # what arms may differ in although it must be the same elsewhere, because the experiment is about it
    tuning: {fixed_*: none}          # by arm, what was tried before its settings were fixed; then no arm may be left out
    read: [heldout.forgotten]        # endpoints besides the primary one that the experiment is about: in every contrast, and on the page
    threshold: 35                    # held-out score whose first reaching is timed, 60 otherwise
"""

from __future__ import annotations

import fnmatch
import json
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.__main__ import seeds as seeds_from
from analysis.compare import Plan
from analysis.endpoints import ENDPOINTS
from analysis.runs import RUNS, SUMMARY, TEACHER, leaves, read_summary, setting
from analysis.sweeps import THRESHOLD, Planned
from analysis.text import count
from experiments.config import (
    MAY_CHANGE,
    SEEDS_BELOW,
    VARIANTS,
    BudgetConfig,
    ExperimentConfig,
    compose,
    experiments,
    import_study,
    is_replaced,
    kinds_by_setting,
    laid_over,
    merged,
    parse_overrides,
    path_of,
    read_experiment,
    read_yaml,
    require_base,
    to_plain,
)
from experiments.errors import ConfigError, checked_name
from experiments.resume import OF_A_PLACE
from policy.config import EngineKind

KEYS = ("base", "settings", "arms", "seeds", "parallel", "contrasts", "primary", "read", "threshold", "differ", "tuning")
NEEDED, OF_NAMES, LISTS = ("base", "arms", "seeds"), ("settings", "arms", "tuning"), ("contrasts", "read", "differ")
OWN = ("arms", "seeds", "parallel", "name", "runs")
"""Overrides that are the sweep's; every other one goes to all arms."""
NOT_OF_A_SWEEP = {
    "seed": "its runs have seeds=..., and --cell ARM SEED makes one of them",
    "resume": "the same command again goes on with what was broken off, and --cell ARM SEED with one run",
}
OF_A_RUN = ("experiment", "name", "runs", "resume", "seed")
"""Settings that the sweep gives each of its runs, and that its file therefore cannot."""


def require_shape(tree: Mapping[str, Any], file: str) -> None:
    """Refuses a sweep's file whose keys are others, lacking, or of another shape.

    Raises:
        ConfigError: names the key and the file.
    """
    if unknown := sorted(set(tree) - set(KEYS)):
        raise ConfigError(f"a sweep has the keys {', '.join(KEYS)}, got {unknown[0]!r} in {file}")
    if lacking := [name for name in NEEDED if tree.get(name) in (None, "", [], {})]:
        raise ConfigError(f"a sweep must have {', '.join(NEEDED)}, got no {lacking[0]} in {file}")
    for name in (name for name in OF_NAMES if tree.get(name) is not None and not isinstance(tree[name], Mapping)):
        raise ConfigError(f"{name} must be a table of names and what belongs to them, got {tree[name]!r} in {file}")
    for name in (name for name in LISTS if tree.get(name) is not None and not isinstance(tree[name], list)):
        raise ConfigError(f"{name} must be a list, got {tree[name]!r} in {file}")
    for name in (name for name in LISTS if not all(isinstance(item, str) for item in tree.get(name) or ())):
        raise ConfigError(f"{name} must be a list of text, got {tree[name]!r} in {file}; put each in quotes, without a space after a colon")
    # A study's own numbers of summary.json stand under names of their own.
    heads = {name.partition(".")[0] for name in ENDPOINTS}
    for name in (name for name in tree.get("read") or () if name not in ENDPOINTS and name.partition(".")[0] in heads):
        raise ConfigError(f"read must name endpoints ({', '.join(ENDPOINTS)}), got {name!r} in {file}")
    if isinstance(tree.get("threshold", 0), bool) or not isinstance(tree.get("threshold", 0), int | float):
        raise ConfigError(f"threshold must be a number, got {tree['threshold']!r} in {file}")
    for arm, settings in tree["arms"].items():
        if not isinstance(arm, str) or not re.fullmatch(r"[\w.+-]+", arm) or arm.startswith("."):
            raise ConfigError(f"an arm's name becomes a folder and must consist of letters, digits and . _ + -, got {arm!r} in {file}")
        if not isinstance(settings or {}, Mapping):
            raise ConfigError(f"arm {arm} must be a table of settings, got {settings!r} in {file}")
    for where, settings in (("settings", tree.get("settings")), *((f"arm {arm}", settings) for arm, settings in tree["arms"].items())):
        if own := [name for name in OF_A_RUN if name in (settings or {})]:
            raise ConfigError(f"{where} must not set {own[0]}, which the sweep gives each of its runs, got {settings[own[0]]!r} in {file}")


def refuse_kinds(given: Mapping[str, Any], arms: Mapping[str, Any]) -> None:
    """Refuses a kind for all arms where some choose theirs.

    Raises:
        ConfigError: names the setting.
    """
    for group, what in (("teacher", "teachers"), ("algorithm", "algorithms"), ("simulator", "users")):
        kind = setting(given, f"{group}.kind")
        if kind and any("kind" in ((arm or {}).get(group) or {}) for arm in arms.values()):
            raise ConfigError(
                f"{group}.kind must not be set for a sweep whose arms have {what} of their own, got {kind!r}; the others "
                "would be called what they are not: write an arm of that kind into the file"
            )


def refuse_without_effect(base: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> None:
    """Refuses an override that no arm takes.

    Raises:
        ConfigError: names it.
    """
    for name, lacking in unreached(base, arms, given).items():
        if len(lacking) == len(arms):
            raise ConfigError(
                f"{name} must reach an arm, got {setting(given, name)!r} for {', '.join(arms)}: each of these sets it itself, or has a "
                "kind of its own for which it means nothing or something else; write it into the file, into the arm that it is for"
            )


def unreached(base: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """By override, the arms that do not take it: they set it themselves, or chose a kind of their own."""
    taken = {arm: dict(leaves(laid_over(base, settings))) for arm, settings in arms.items()}
    lacking = {name: [arm for arm in arms if name not in taken[arm] or taken[arm][name] != value] for name, value in leaves(given)}
    return {name: found for name, found in lacking.items() if found}


def chosen_arms(arms: Mapping[str, Any], names: Any) -> list[str]:
    """The arms that were asked for, each once, as YAML or as text between commas.

    Raises:
        ConfigError: there is no such arm, or none was named.
    """
    if names in (None, "", []):
        raise ConfigError(f"arms must be among {', '.join(arms)}, got none; leave it out for all of them")
    asked = [str(name) for name in names] if isinstance(names, list) else str(names).split(",")
    for name in asked:
        if name not in arms:
            raise ConfigError(f"arms must be among {', '.join(arms)}, got {name!r}")
    return list(dict.fromkeys(asked))


def whole_numbers(name: str, value: Any, *, least: int) -> tuple[int, ...]:
    """One or several whole numbers, as YAML or as text between commas, in which `0-4` means all from the first to the last.

    Raises:
        ConfigError: they are none, below `least` or too large for a seed, one stands twice, or there are none.
    """
    items = value if isinstance(value, list) else str(value).split(",")
    try:
        if unfit := [item for item in items if isinstance(item, bool) or not isinstance(item, int | str)]:
            raise ValueError(f"{unfit[0]!r} is none")
        numbers = tuple(number for item in items for number in (seeds_from(item) if "-" in str(item).strip("-") else (int(item),)))
    except (ValueError, ArgumentTypeError) as error:
        raise ConfigError(f"{name} must be whole numbers such as 0,1,2 or 0-2, got {value!r}") from error
    if not numbers or min(numbers) < least or max(numbers) >= SEEDS_BELOW or len(set(numbers)) < len(numbers):
        raise ConfigError(f"{name} must be different whole numbers of at least {least} and below 2**63, got {value!r}")
    return numbers


def num_parallel(value: Any) -> int:
    """How many runs go side by side.

    Raises:
        ConfigError: it is no whole number of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"parallel must be a whole number of at least 1, got {value!r}")
    return value


def parse_contrast(text: str, arms: Mapping[str, Any]) -> tuple[str, str]:
    """Two arms from `first:second`; the second may be a pattern such as `fixed_*`, which means the best arm that fits it.

    Raises:
        ConfigError: there is no such arm, or none that fits.
    """
    first, _, second = text.partition(":")
    if first not in arms or not fnmatch.filter(arms, second):
        raise ConfigError(f"contrasts must look like first:second, of the arms {', '.join(arms)}, got {text!r}")
    if second != first and fnmatch.filter(arms, second) == [first]:
        raise ConfigError(f"contrasts must set {first} against another arm, got {text!r}, which fits {first} alone")
    return first, second


ALWAYS_EQUAL = ("budget.", "evaluation.")
"""What is spent and how arms are judged: no experiment is about these, and no comparison reads runs that differ in them."""
EQUAL = (
    *(*ALWAYS_EQUAL, "policy.", "probe.", "group_size", "rollout.max_turns", "rollout.max_new_tokens", "rollout.max_context"),
    *("simulator.kind", "simulator.start_emotion", "simulator.momentum", "simulator.register"),
)
"""Settings that arms must share, by the beginnings of their names: those above, who starts, how much it may say, and whom it talks to."""


def require_alike(configs: Mapping[str, ExperimentConfig], *, differ: Sequence[str]) -> None:
    """Raises on the first setting that arms must share and do not.

    Args:
        configs: by arm.
        differ: settings, or beginnings of their names, that the experiment is about.

    Raises:
        ConfigError: arms differ in one, or `differ` names what need not be or must not be excepted.
    """
    shared = {arm: shared_settings(config) for arm, config in configs.items()}
    known = set().union(*shared.values())
    for about in differ:
        if any(name.startswith(about) for name in known if name.startswith(ALWAYS_EQUAL)) or about.startswith(ALWAYS_EQUAL):
            raise ConfigError(f"differ must name no part of budget or evaluation, got {about!r}; arms have equal cost and one measure")
        if not any(name.startswith(about) for name in known):
            raise ConfigError(f"differ must name what arms have to share otherwise ({', '.join(EQUAL)}), got {about!r}")
    (first, wanted), *others = shared.items()
    for arm, settings in others:
        # A setting that one of them lacks goes with its kind, which is compared itself.
        for name in (name for name in wanted if name in settings):
            if settings[name] != wanted[name] and not name.startswith((*differ, *following(differ))):
                values = f"{wanted[name]!r} in {first} and {settings[name]!r} in {arm}"
                or_else = "" if name.startswith(ALWAYS_EQUAL) else ", or name it in differ"
                raise ConfigError(f"{name} must be the same in all arms, got {values}; set it for the whole sweep{or_else}")


def following(differ: Sequence[str]) -> tuple[str, ...]:
    """Settings that are others by themselves where arms differ on purpose: the language in which a model of another kind is heard."""
    return ("simulator.register",) if "policy.model".startswith(tuple(differ)) else ()


def shared_settings(config: ExperimentConfig) -> dict[str, object]:
    """The settings of an arm that all arms must have alike, by dotted name."""
    return {name: value for name, value in leaves(to_plain(config)) if name.startswith(EQUAL)}


def require_tuning(tuning: Mapping[str, str], arms: Sequence[str]) -> None:
    """Raises when the tuning of some arms is told and that of others is not.

    Raises:
        ConfigError: names the arm that is left out, or the pattern that fits none.
    """
    if not tuning:
        return
    for pattern in tuning:
        if not fnmatch.filter(arms, pattern):
            raise ConfigError(f"tuning must be told of the arms {', '.join(arms)}, got {pattern!r}")
    for arm in arms:
        if not any(fnmatch.fnmatch(arm, pattern) for pattern in tuning):
            raise ConfigError(f"tuning must be told of every arm, got none of {arm}; say what was tried before its settings were fixed")


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
    file_arms: dict[str, dict[str, Any]]
    """The same of all arms in the file, whichever were asked for."""
    seeds: tuple[int, ...]
    ring: tuple[int, ...]
    """The file's seeds, in the order in which one run replays the next one's."""
    parallel: int
    """Runs side by side, > 0."""
    planned: Planned
    """What will be compared, whichever arms were asked for."""
    differ: tuple[str, ...] = ()
    """Settings, or beginnings of their names, in which arms differ because the experiment is about them."""
    words: tuple[str, ...] = ()
    """The overrides from which it was made."""
    composed: dict[tuple[str, ...], ExperimentConfig] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By arm and what it replays, settings that were put together before."""

    def whole(self) -> Sweep:
        """The same with all arms of the file."""
        return replace(self, arms=self.file_arms)

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.folder.parent.parent

    @property
    def budget(self) -> BudgetConfig:
        """What one run may spend; arms have equal budgets."""
        return self.config(self.cells()[0]).budget

    def cells(self) -> list[Cell]:
        """Every run, seed by seed, so that a sweep broken off has whole seeds; then those of other seeds that arms replay."""
        asked = [Cell(arm, seed) for seed in self.seeds for arm in self.arms]
        return asked + [cell for cell in self.replayed() if cell.seed not in self.seeds]

    def replayed(self) -> list[Cell]:
        """Runs that must have ended before others can begin, each once."""
        found: dict[Cell, None] = {}
        waiting = [Cell(arm, seed) for seed in self.seeds for arm in self.arms]
        while waiting:
            new = [need for need in self.needs(waiting.pop()) if need not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return sorted(found, key=lambda cell: (cell.seed, cell.arm))

    def cell(self, arm: str, seed: str) -> Cell:
        """One run, by name.

        Raises:
            ConfigError: the sweep has no such arm or seed.
        """
        found = next((cell for cell in self.cells() if (cell.arm, str(cell.seed)) == (arm, seed)), None)
        if found is None:
            seeds = ", ".join(map(str, self.seeds))
            raise ConfigError(f"a cell must be one of the arms {', '.join(self.arms)} and seeds {seeds}, got {arm!r} {seed!r}")
        return found

    def run_folder(self, cell: Cell) -> Path:
        """Where a run lies."""
        return self.folder / cell.arm / f"seed_{cell.seed}"

    def is_done(self, cell: Cell) -> bool:
        """Whether a run has ended well, and its summary can be read."""
        try:
            return read_summary(self.run_folder(cell) / SUMMARY) is not None
        except (ValueError, OSError):
            return False

    def needs(self, cell: Cell) -> list[Cell]:
        """Runs that must have ended before this one can begin."""
        texts = [value for _, value in leaves(self.arms[cell.arm]) if isinstance(value, str)]
        return [Cell(arm, self.next_seed(cell.seed)) for text in texts for arm in REFERENCE.findall(text)]

    def next_seed(self, seed: int) -> int:
        """The seed after `seed`, the first after the last; for a seed that the file does not have, one of the file's."""
        if seed in self.ring:
            return self.ring[(self.ring.index(seed) + 1) % len(self.ring)]
        return self.ring[seed % len(self.ring)]

    def for_resumed(self, cell: Cell) -> list[str]:
        """Those of its overrides that a run which goes on is given anew: where things are, how patiently they are waited for, and
        in how much memory.

        Only what the run's own kinds know; of what its arm sets itself, that.
        """
        given, known = dict(leaves(parse_overrides(self.words))), dict(leaves(to_plain(self.config(cell))))
        anew = [name for name in given if name in known and name.startswith(MAY_CHANGE)]
        anew = [name for name in anew if not name.startswith(("budget.", "resume", "runs"))]
        return [f"{name}={json.dumps(known[name], ensure_ascii=False)}" for name in anew]

    def config(self, cell: Cell) -> ExperimentConfig:
        """The settings of one run.

        Raises:
            ConfigError: as `experiments.config.load` does, with the arm named.
        """
        # A tenth of a second each, and the runs of an arm that replay the same differ in nothing but these two.
        key = (cell.arm, *map(str, self.needs(cell)))
        if key not in self.composed:
            self.composed[key] = self.compose(cell)
        return replace(deepcopy(self.composed[key]), seed=cell.seed, name=f"seed_{cell.seed}")

    def compose(self, cell: Cell) -> ExperimentConfig:
        """As `config`, through the schema."""
        settings = filled(self.arms[cell.arm], {need.arm: str(self.run_folder(need) / TEACHER) for need in self.needs(cell)})
        own: dict[str, Any] = {"seed": cell.seed, "name": f"seed_{cell.seed}", "runs": str(self.runs)}
        try:
            return compose(self.base, merged(settings, own), experiment=self.experiment)
        except ConfigError as error:
            raise ConfigError(f"arm {cell.arm}: {error}") from error


def describe(sweep: Sweep) -> str:
    """What would be run, with the settings that each arm changes."""
    planned = sweep.planned
    lines = [
        f"# would write {sweep.folder}",
        *numbers(sweep),
        f"# seeds {', '.join(map(str, sweep.seeds))}; endpoint {planned.primary}",
        *(f"# contrast {a} against {b}{absent((a, b), sweep)}" for a, b in planned.contrasts),
        *(f"# arms differ on purpose in {name}" for name in sweep.differ),
        *(f"# tuned before, {arm}: {said}" for arm, said in planned.tuning.items()),
    ]
    for arm, settings in sweep.arms.items():
        changes = ", ".join(f"{name}={value}" for name, value in leaves(settings))
        lines.append(f"{arm}: {changes or '(as the base)'}")
    return "\n".join(lines)


def numbers(sweep: Sweep) -> list[str]:
    """How many runs, and what they may spend."""
    cells, budget = sweep.cells(), sweep.budget
    extra = cells[len(sweep.arms) * len(sweep.seeds) :]
    each = f"{budget.policy_tokens:,} policy tokens" + (f" or {budget.steps} steps" if budget.steps else "")
    lines = [f"# {count(len(sweep.arms), 'arm')} x {count(len(sweep.seeds), 'seed')} of {each} each, {sweep.parallel} runs side by side"]
    lines += [f"# and {', '.join(map(str, extra))}, which other runs replay"] if extra else []
    lines.append(f"# {in_all(len(cells), budget)}; how long they take is said after the first step")
    return lines


def in_all(num_runs: int, budget: BudgetConfig) -> str:
    """So many runs, and what they spend together."""
    return f"{count(num_runs, 'run')} and {'at most ' if budget.steps else ''}{num_runs * budget.policy_tokens:,} policy tokens in all"


def absent(contrast: tuple[str, str], sweep: Sweep) -> str:
    """That a contrast lacks an arm which was not asked for, or some of those whose best it names; empty where it lacks none."""
    missing = [name for name in contrast if not fnmatch.filter(sweep.arms, name)]
    was, it_is = ("was", "it is") if len(missing) == 1 else ("were", "they are")
    if missing:
        return f"; {' and '.join(missing)} {was} not asked for, so it counts with p = 1 until {it_is} run"
    a, b = contrast
    others = [arm for arm in fnmatch.filter(sweep.file_arms, b) if arm not in (a, *sweep.arms) and not (sweep.folder / arm).is_dir()]
    return f"; undecided until {', '.join(others)} {'is' if len(others) == 1 else 'are'} run as well" if others else ""


def is_sweep(experiment: str) -> bool:
    """Whether an experiment's file describes a sweep."""
    return experiment in experiments() and "arms" in read_yaml(path_of(experiment))


def load_sweep(experiment: str, overrides: Sequence[str] = ()) -> Sweep:
    """The plan of a sweep with dotted overrides, every arm of it checked.

    Raises:
        ConfigError: the file or an override is no plan, an arm's settings are wrong, or arms would spend or be judged differently.
    """
    import_study(experiment)
    file = path_of(experiment)
    tree = read_yaml(file)
    require_shape(tree, file.name)
    require_base(str(tree["base"]), [experiment])
    own, given = parted(parse_overrides(overrides), tree)
    base = laid_over(laid_over(read_experiment(tree["base"]), tree.get("settings") or {}), given)
    file_arms = {arm: reached(settings or {}, base, given) for arm, settings in tree["arms"].items()}
    arms = {arm: file_arms[arm] for arm in chosen_arms(tree["arms"], own.get("arms", list(tree["arms"])))}
    refuse_without_effect(base, arms, given)
    folder = Path(str(own.get("runs", RUNS))) / experiment / checked_name(str(own.get("name", "sweep")))
    seeds = whole_numbers("seeds", own.get("seeds", tree["seeds"]), least=0)
    file_seeds = whole_numbers("seeds", tree["seeds"], least=0)
    planned = planned_of(tree, file_arms, seeds=planned_seeds(file_seeds, seeds), overrides=overrides)
    require_plan(planned, file.name)
    sweep = Sweep(
        experiment=experiment,
        folder=folder,
        base=base,
        arms=arms,
        file_arms=file_arms,
        seeds=seeds,
        ring=file_seeds,
        parallel=num_parallel(own.get("parallel", tree.get("parallel", 1))),
        planned=planned,
        differ=tuple(tree.get("differ") or ()),
        words=tuple(overrides),
    )
    check(sweep, all_arms=list(tree["arms"]))
    return sweep


def parted(given: Mapping[str, Any], tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The words that are the sweep's own, and the settings for all its arms.

    Raises:
        ConfigError: one of them is no word for a sweep, or says nothing.
    """
    for name, instead in NOT_OF_A_SWEEP.items():
        if name in given:
            raise ConfigError(f"{name} must not be set for a sweep, got {given[name]!r}; {instead}")
    refuse_kinds(given, tree["arms"])
    own = {name: given[name] for name in OWN if name in given}
    for name in ("name", "runs"):
        if name in own and own[name] in (None, ""):
            raise ConfigError(f"{name} must not be empty, got {own[name]!r}; leave it out for what is usual")
    return own, {name: value for name, value in given.items() if name not in own}


def planned_of(tree: Mapping[str, Any], arms: Mapping[str, Any], *, seeds: tuple[int, ...], overrides: Sequence[str]) -> Planned:
    """What a sweep's file sets out to compare.

    Args:
        arms: settings that each arm of the file changes, nested.
        seeds: those that must be in before a contrast is answered.
    """
    return Planned(
        contrasts=tuple(parse_contrast(text, tree["arms"]) for text in tree.get("contrasts") or ()),
        primary=tree.get("primary", "heldout.auc"),
        read=tuple(tree.get("read") or ()),
        tuning={arm: str(said) for arm, said in (tree.get("tuning") or {}).items()},
        seeds=seeds,
        varied=tuple(sorted({name for changes in arms.values() for name, _ in leaves(changes)})),
        arms=tuple(tree["arms"]),
        overrides=tuple(word for word in overrides if not word.startswith((*(f"{name}=" for name in OWN), *OF_A_PLACE))),
        threshold=float(tree.get("threshold", THRESHOLD)),
    )


def require_plan(planned: Planned, name: str) -> None:
    """Raises unless a comparison can be made of what was planned.

    Args:
        name: of the sweep's file.
    """
    try:
        Plan(contrasts=planned.contrasts, primary=planned.primary, threshold=planned.threshold)
    except ValueError as error:
        raise ConfigError(f"{name}: {str(error).replace('--', '')}") from error


def planned_seeds(of_file: Sequence[int], asked: Sequence[int]) -> tuple[int, ...]:
    """All that must be in before a contrast is answered: the file's and those asked for; these alone if they are all others."""
    return tuple(sorted({*of_file, *asked})) if {*of_file} & {*asked} else tuple(asked)


def reached(arm: Mapping[str, Any], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """An arm's settings with the overrides that it would lose by choosing another kind than the base, as far as that kind has them.

    Of teachers' settings, and of those given with a kind of their own, only what all kinds have: else the same name is another thing.

    Args:
        given: the overrides, for all arms; what the arm itself sets wins.
    """
    kept = {}
    for group, settings in given.items():
        if is_replaced(group, base.get(group, {}), arm) and isinstance(settings, Mapping):
            kinds = set(VARIANTS[group]) if group == "teacher" or "kind" in settings else {arm[group]["kind"]}
            kept[group] = {name: value for name, value in settings.items() if kinds <= set(kinds_by_setting().get(f"{group}.{name}", ()))}
            kept[group].pop("kind", None)
    return merged(kept, arm)


def check(sweep: Sweep, *, all_arms: Sequence[str]) -> None:
    """Raises unless every arm can be run and all share what makes them comparable.

    Args:
        all_arms: those of the file, whichever were asked for.
    """
    for arm in sweep.arms:
        needed = {need.arm for need in sweep.needs(Cell(arm, sweep.seeds[0]))}
        if missing := sorted(needed - set(sweep.arms)):
            raise ConfigError(f"arm {arm} replays arm {missing[0]}, which must be among the arms, got {', '.join(sweep.arms)}")
        if needed and len(sweep.ring) < 2:
            raise ConfigError(
                f"arm {arm} replays another seed's run, so the file's seeds must be at least two, got seed {sweep.ring[0]} alone"
            )
    for arm in sweep.arms:
        if arm in replayed_by(sweep, arm):
            raise ConfigError(f"arm {arm} must not replay itself, by way of others or not: its runs would wait for each other for ever")
    configs = {arm: sweep.config(Cell(arm, sweep.seeds[0])) for arm in sweep.arms}
    require_alike(configs, differ=sweep.differ)
    require_tuning(sweep.planned.tuning, all_arms)
    if sweep.parallel > 1:
        for config in configs.values():
            require_room_on_the_gpu(config, sweep.parallel)


def replayed_by(sweep: Sweep, arm: str) -> set[str]:
    """The arms that an arm replays, those that these replay, and so on."""
    found: set[str] = set()
    waiting = [arm]
    while waiting:
        new = {need.arm for need in sweep.needs(Cell(waiting.pop(), sweep.seeds[0]))} - found
        found |= new
        waiting += new
    return found


def require_room_on_the_gpu(config: ExperimentConfig, parallel: int) -> None:
    """Raises where runs side by side would each fill a share of one card: the Ray of every run gives out the same GPUs, the first ones."""
    policy, cluster = config.policy, config.cluster
    if cluster.gpus_per_engine and not cluster.address and policy.engine is not EngineKind.HF and policy.gpu_memory_share:
        raise ConfigError(
            f"parallel must be 1 where engines fill a share of a GPU (policy.gpu_memory_share={policy.gpu_memory_share:g}), "
            f"got {parallel}: runs side by side use the same GPUs; with policy.gpu_memory_share=0 an engine takes its weights and "
            "policy.kv_cache_mb, and several find room"
        )


def filled(settings: Any, places: Mapping[str, str]) -> Any:
    """The settings with every `{arm}` replaced by its path."""
    if isinstance(settings, Mapping):
        return {key: filled(value, places) for key, value in settings.items()}
    if isinstance(settings, str):
        return REFERENCE.sub(lambda match: places[match[1]], settings)
    return settings
