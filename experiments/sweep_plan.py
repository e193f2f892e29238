"""A sweep as a plan: one experiment's settings, arms that change some of them, and seeds, read from a YAML file.

    base: adaptive_curriculum        # whose settings all arms share
    settings: {budget: {policy_tokens: 300000}}
    seeds: [0, 1, 2]
    parallel: 2                      # runs side by side
    arms:
      frontier: {}
      fixed_0.5: {teacher: {kind: fixed, strictness: 0.5}}
      yoked: {teacher: {kind: yoked, trace: "{frontier}"}}
    contrasts: [frontier:fixed_0.5]
    primary: heldout.auc             # endpoint of the contrasts
    read: [heldout.forgotten]        # further endpoints
    threshold: 35                    # held-out score whose first reaching is timed; 60 by default
    differ: [policy.prior.]          # settings in which arms differ because the experiment is about them
    tuning: {fixed_*: none}          # by arm, what was tried before its settings were fixed

A group of settings of another `kind` than the base (teacher, algorithm, simulator) replaces it whole. `{frontier}` is the teacher.jsonl of
that arm's run with the next of the file's seeds, which is run first.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as settings_dataclass

from analysis.compare import Plan
from analysis.endpoints import ENDPOINTS
from analysis.plan import THRESHOLD, Planned
from analysis.runs import RUNS, SUMMARY, TEACHER, read_summary
from analysis.text import count
from experiments.config import (
    MAY_CHANGE,
    BudgetConfig,
    ExperimentConfig,
    compose,
    import_study,
    is_replaced,
    kinds,
    laid_over,
    merged,
    names_of,
    parse_overrides,
    path_of,
    read_experiment,
    read_yaml,
    require_base,
    to_plain,
)
from experiments.errors import ConfigError, checked_name, message, refusing, unknown_names
from policy.config import EngineKind
from simulator.settings import SETTINGS, leaves, setting

NAME = r"^[\w+-][\w.+-]*$"
REFERENCE = re.compile(r"\{([\w.+-]+)\}")
OWN = ("arms", "seeds", "parallel", "name", "runs")
"""Overrides of the sweep itself; every other one goes to all arms."""
OF_A_RUN = ("experiment", "name", "runs", "resume", "seed")
"""Settings that the sweep gives each of its runs."""
ALWAYS_EQUAL = ("budget.", "evaluation.")
"""Prefixes of settings that no experiment is about: cost and measure of an arm."""
EQUAL = (
    *(*ALWAYS_EQUAL, "policy.", "probe.", "group_size", "rollout.max_turns", "rollout.max_new_tokens", "rollout.max_context"),
    *("simulator.kind", "simulator.start_emotion", "simulator.momentum", "simulator.register"),
)
"""Prefixes of settings that arms must share unless `differ` names them."""


@settings_dataclass(config=SETTINGS, kw_only=True)
class SweepFile:
    """The keys of a sweep's file."""

    base: str
    arms: dict[str, dict[str, Any] | None] = Field(default=..., min_length=1)
    seeds: list[int] | int | str
    settings: dict[str, Any] | None = None
    parallel: int = Field(default=1, ge=1)
    contrasts: list[str] | None = None
    primary: str = "heldout.auc"
    read: list[str] | None = None
    threshold: float = THRESHOLD
    differ: list[str] | None = None
    tuning: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for arm in self.arms:
            if not re.match(NAME, arm):
                raise ValueError(f"an arm's name becomes a folder and must consist of letters, digits and . _ + -, got {arm!r}")
        for where, given in (("settings", self.settings), *((f"arm {arm}", settings) for arm, settings in self.arms.items())):
            if own := [name for name in OF_A_RUN if name in (given or {})]:
                raise ValueError(f"{where} must not set {own[0]}, which the sweep gives each of its runs")
        # A study's own numbers of summary.json have names of their own.
        heads = {name.partition(".")[0] for name in ENDPOINTS}
        for name in self.read or ():
            if name not in ENDPOINTS and name.partition(".")[0] in heads:
                raise ValueError(f"read must name endpoints ({', '.join(ENDPOINTS)}), got {name!r}")
        for pattern in self.tuning or ():
            if not fnmatch.filter(self.arms, pattern):
                raise ValueError(f"tuning must name arms ({', '.join(self.arms)}), got {pattern!r}")
        for arm in self.arms if self.tuning else ():
            if not any(fnmatch.fnmatch(arm, pattern) for pattern in self.tuning or ()):
                raise ValueError(f"tuning must name every arm, got none for {arm}; say what was tried before its settings were fixed")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs to make, and what will be compared."""

    experiment: str
    folder: Path
    """runs/<experiment>/<name>."""
    base: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    """Settings that each requested arm changes, nested."""
    file_arms: dict[str, dict[str, Any]]
    """Those of all arms in the file."""
    seeds: tuple[int, ...]
    ring: tuple[int, ...]
    """The file's seeds, in the order in which one run replays the next one's."""
    parallel: int
    """Runs side by side, > 0."""
    planned: Planned
    """What will be compared, whichever arms are requested."""
    differ: tuple[str, ...] = ()
    """Prefixes of settings in which arms differ because the experiment is about them."""
    words: tuple[str, ...] = ()
    """The overrides of the command."""
    composed: dict[tuple[str, ...], ExperimentConfig] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of configurations, by arm and the runs that it replays."""

    def whole(self) -> Sweep:
        """The same with all arms of the file."""
        return replace(self, arms=self.file_arms)

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.folder.parent.parent

    @property
    def budget(self) -> BudgetConfig:
        """Of one run; arms have equal budgets."""
        return self.config(self.cells()[0]).budget

    def cells(self) -> list[Cell]:
        """Every run, seed by seed, so that an interrupted sweep has whole seeds; then runs of other seeds that arms replay."""
        asked = [Cell(arm, seed) for seed in self.seeds for arm in self.arms]
        return asked + [cell for cell in self.replayed(asked) if cell.seed not in self.seeds]

    def replayed(self, cells: Sequence[Cell]) -> list[Cell]:
        """Runs that these replay, those that these in turn replay, and so on, each once."""
        found: dict[Cell, None] = {}
        waiting = list(cells)
        while waiting:
            new = [need for need in self.needs(waiting.pop()) if need not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return sorted(found, key=lambda cell: (cell.seed, cell.arm))

    def cell(self, arm: str, seed: str) -> Cell:
        """One run by name.

        Raises:
            ConfigError: the sweep has no such arm or seed.
        """
        found = next((cell for cell in self.cells() if (cell.arm, str(cell.seed)) == (arm, seed)), None)
        if found is None:
            seeds = ", ".join(map(str, self.seeds))
            raise ConfigError(f"a cell must be one of the arms {', '.join(self.arms)} and seeds {seeds}, got {arm!r} {seed!r}")
        return found

    def run_folder(self, cell: Cell) -> Path:
        """The folder of a run."""
        return self.folder / cell.arm / f"seed_{cell.seed}"

    def is_done(self, cell: Cell) -> bool:
        """Whether a run has a summary."""
        try:
            return read_summary(self.run_folder(cell) / SUMMARY) is not None
        except (ValueError, OSError):
            return False

    def needs(self, cell: Cell) -> list[Cell]:
        """Runs that must have ended before this one can begin."""
        texts = [value for _, value in leaves(self.arms[cell.arm]) if isinstance(value, str)]
        return [Cell(arm, self.next_seed(cell.seed)) for text in texts for arm in REFERENCE.findall(text)]

    def next_seed(self, seed: int) -> int:
        """The file's seed after `seed`, the first after the last; one of the file's for a seed that it lacks."""
        return self.ring[(self.ring.index(seed) + 1) % len(self.ring)] if seed in self.ring else self.ring[seed % len(self.ring)]

    def resume_words(self, cell: Cell) -> list[str]:
        """Overrides that a resumed run takes from the command: paths, endpoints and memory, as far as its kinds know them."""
        given, known = dict(leaves(parse_overrides(self.words))), dict(leaves(to_plain(self.config(cell))))
        names = [name for name in given if name in known and name.startswith(MAY_CHANGE)]
        names = [name for name in names if not name.startswith(("budget.", "resume", "runs"))]
        return [f"{name}={json.dumps(known[name], ensure_ascii=False)}" for name in names]

    def config(self, cell: Cell) -> ExperimentConfig:
        """The configuration of one run.

        Raises:
            ConfigError: as `experiments.config.load`, with the arm named.
        """
        needs = self.needs(cell)
        key = (cell.arm, *map(str, needs))
        if key not in self.composed:
            paths = {need.arm: str(self.run_folder(need) / TEACHER) for need in needs}
            own: dict[str, Any] = {"seed": cell.seed, "name": f"seed_{cell.seed}", "runs": str(self.runs)}
            try:
                self.composed[key] = compose(self.base, merged(filled(self.arms[cell.arm], paths), own), experiment=self.experiment)
            except ConfigError as error:
                raise ConfigError(f"arm {cell.arm}: {error}") from error
        return replace(deepcopy(self.composed[key]), seed=cell.seed, name=f"seed_{cell.seed}")


def load_sweep(experiment: str, overrides: Sequence[str] = ()) -> Sweep:
    """The plan of a sweep with dotted overrides, every arm checked.

    Raises:
        ConfigError: the file or an override is wrong, an arm's settings are wrong, or arms differ in cost or measure.
    """
    import_study(experiment)
    path = path_of(experiment)
    file = read_sweep_file(path)
    require_base(file.base, [experiment])
    given = parse_overrides(overrides)
    own = {name: given.pop(name) for name in OWN if name in given}
    check_overrides(own, given, file)
    base = laid_over(laid_over(read_experiment(file.base), file.settings or {}), given)
    file_arms = {arm: with_shared(settings or {}, base, given) for arm, settings in file.arms.items()}
    arms = {arm: file_arms[arm] for arm in chosen_arms(file_arms, own["arms"])} if "arms" in own else file_arms
    for name, lacking in unreached(base, arms, given).items():
        if len(lacking) == len(arms):
            raise ConfigError(
                f"{name} must reach an arm, got {setting(given, name)!r} for {', '.join(arms)}: each sets it itself, or has another kind; "
                "write it into the file, into the arm that it is for"
            )
    file_seeds, seeds = seeds_of(file.seeds), seeds_of(own.get("seeds", file.seeds))
    # Contrasts wait for the file's seeds and those that were added; for the requested alone where they are all others.
    planned_seeds = tuple(sorted({*file_seeds, *seeds})) if {*file_seeds} & {*seeds} else seeds
    contrasts = tuple(parse_contrast(text, file.arms) for text in file.contrasts or ())
    with refusing():
        Plan(contrasts=contrasts, primary=file.primary, threshold=file.threshold)
    try:
        parallel = TypeAdapter(Annotated[int, Field(ge=1)]).validate_python(own.get("parallel", file.parallel))
    except ValidationError as error:
        raise ConfigError(message(error, "parallel")) from error
    where = ("cluster.", "checkpoint.", "resume", "runs", "name", "experiment", *(f"{name}=" for name in OWN))
    sweep = Sweep(
        experiment=experiment,
        folder=Path(str(own.get("runs", RUNS))) / experiment / checked_name(str(own.get("name", "sweep"))),
        base=base,
        arms=arms,
        file_arms=file_arms,
        seeds=seeds,
        ring=file_seeds,
        parallel=parallel,
        planned=Planned(
            contrasts=contrasts,
            primary=file.primary,
            read=tuple(file.read or ()),
            tuning={arm: str(tried) for arm, tried in (file.tuning or {}).items()},
            seeds=planned_seeds,
            varied=tuple(sorted({name for changes in file_arms.values() for name, _ in leaves(changes)})),
            arms=tuple(file.arms),
            overrides=tuple(word for word in overrides if not word.startswith(where)),
            threshold=file.threshold,
        ),
        differ=tuple(file.differ or ()),
        words=tuple(overrides),
    )
    check_arms(sweep)
    return sweep


def read_sweep_file(path: Path) -> SweepFile:
    """A sweep's file.

    Raises:
        ConfigError: one sentence about the first key that is wrong.
    """
    tree = {name: value for name, value in read_yaml(path).items() if value is not None}
    try:
        file: SweepFile = TypeAdapter(SweepFile).validate_python(tree)
        return file
    except ValidationError as error:
        if unknown := unknown_names(error):
            raise ConfigError(f"a sweep has the keys {', '.join(names_of(SweepFile))}, got {unknown[0]!r} in {path.name}") from error
        raise ConfigError(f"{message(error)} in {path.name}") from error


def check_overrides(own: Mapping[str, Any], given: Mapping[str, Any], file: SweepFile) -> None:
    """Refuses overrides that make no sense for a sweep."""
    for name, instead in (("seed", "its runs have seeds=..."), ("resume", "the same command again resumes it")):
        if name in given:
            raise ConfigError(f"{name} must not be set for a sweep, got {given[name]!r}; {instead}")
    for name in ("name", "runs"):
        if name in own and own[name] in (None, ""):
            raise ConfigError(f"{name} must not be empty, got {own[name]!r}")
    for group in ("teacher", "algorithm", "simulator"):
        kind = setting(given, f"{group}.kind")
        if kind and any("kind" in ((arm or {}).get(group) or {}) for arm in file.arms.values()):
            raise ConfigError(f"{group}.kind must not be set for a sweep whose arms set it, got {kind!r}; add an arm to the file")


def with_shared(arm: Mapping[str, Any], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """An arm's settings with the overrides that it would lose by its own kind, as far as that kind has them.

    Of teachers' settings, and of those given with a kind, only what all kinds have, because one name may mean two things.

    Args:
        given: the overrides for all arms; the arm's own settings win.
    """
    kept = {}
    for group, settings in given.items():
        if is_replaced(group, base.get(group, {}), arm) and isinstance(settings, Mapping):
            classes = kinds(group)
            among = classes if group == "teacher" or "kind" in settings else {arm[group]["kind"]: classes.get(arm[group]["kind"], dict)}
            shared = set.intersection(*(set(names_of(item)) for item in among.values()))
            kept[group] = {name: value for name, value in settings.items() if name in shared}
    return merged(kept, arm)


def unreached(base: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """By override, the arms that do not take it: they set it themselves, or have another kind."""
    taken = {arm: dict(leaves(laid_over(base, settings))) for arm, settings in arms.items()}
    lacking = {name: [arm for arm in arms if name not in taken[arm] or taken[arm][name] != value] for name, value in leaves(given)}
    return {name: found for name, found in lacking.items() if found}


def chosen_arms(arms: Mapping[str, Any], names: Any) -> list[str]:
    """The requested arms, as a list or as text between commas."""
    asked = [str(name) for name in names] if isinstance(names, list) else str(names or "").split(",")
    for name in asked:
        if name not in arms:
            raise ConfigError(f"arms must be among {', '.join(arms)}, got {name!r}; leave it out for all of them")
    return list(dict.fromkeys(asked))


def seeds_of(value: Any) -> tuple[int, ...]:
    """Seeds as a list or as text between commas, in which `0-4` means all from the first to the last.

    Raises:
        ConfigError: they are no distinct whole numbers in [0, 2**63).
    """
    found: list[int] = []
    try:
        for item in value if isinstance(value, list) else str(value).split(","):
            first, dash, last = str(item).partition("-")
            found += range(int(first), int(last) + 1) if dash and first else [int(str(item))]
    except ValueError as error:
        raise ConfigError(f"seeds must be whole numbers such as 0,1,2 or 0-2, got {value!r}") from error
    if not found or min(found) < 0 or max(found) >= 2**63 or len(set(found)) < len(found):
        raise ConfigError(f"seeds must be different whole numbers in [0, 2**63), at least one, got {value!r}")
    return tuple(found)


def parse_contrast(text: str, arms: Mapping[str, Any]) -> tuple[str, str]:
    """Two arms from `first:second`; the second may be a pattern such as `fixed_*`, which means the best arm that fits it."""
    first, _, second = text.partition(":")
    fitting = fnmatch.filter(arms, second)
    if first not in arms or not fitting or (second != first and fitting == [first]):
        raise ConfigError(f"contrasts must look like first:second, two of the arms {', '.join(arms)}, got {text!r}")
    return first, second


def check_arms(sweep: Sweep) -> None:
    """Refuses arms that replay what is not run, or that differ in cost, measure or start.

    Raises:
        ConfigError: names the arm or the setting.
    """
    for arm in sweep.arms:
        needed = {need.arm for need in sweep.needs(Cell(arm, sweep.seeds[0]))}
        if missing := sorted(needed - set(sweep.arms)):
            raise ConfigError(f"arm {arm} replays arm {missing[0]}, which must be among the arms, got {', '.join(sweep.arms)}")
        if needed and len(sweep.ring) < 2:
            raise ConfigError(f"arm {arm} replays another seed's run, so the file must have two seeds, got {sweep.ring[0]} alone")
    for arm in sweep.arms:
        if arm in {cell.arm for cell in sweep.replayed([Cell(arm, sweep.seeds[0])])}:
            raise ConfigError(f"arm {arm} must not replay itself, directly or through others")
    configs = {arm: sweep.config(Cell(arm, sweep.seeds[0])) for arm in sweep.arms}
    check_equal(configs, differ=sweep.differ)
    for config in configs.values() if sweep.parallel > 1 else ():
        policy, cluster = config.policy, config.cluster
        if cluster.gpus_per_engine and not cluster.address and policy.engine is not EngineKind.HF and policy.gpu_memory_share:
            raise ConfigError(
                f"parallel must be 1 where engines fill a share of a GPU (policy.gpu_memory_share={policy.gpu_memory_share:g}), got "
                f"{sweep.parallel}: runs side by side use the same GPUs; policy.gpu_memory_share=0 takes policy.kv_cache_mb instead"
            )


def check_equal(configs: Mapping[str, ExperimentConfig], *, differ: Sequence[str]) -> None:
    """Refuses the first setting that arms must share and do not.

    Args:
        configs: by arm.
        differ: prefixes of settings that the experiment is about.
    """
    shared = {arm: {n: v for n, v in leaves(to_plain(config)) if n.startswith(EQUAL)} for arm, config in configs.items()}
    known = set().union(*shared.values())
    for prefix in differ:
        fitting = [name for name in known if name.startswith(prefix)]
        if prefix.startswith(ALWAYS_EQUAL) or any(name.startswith(ALWAYS_EQUAL) for name in fitting):
            raise ConfigError(f"differ must name no part of budget or evaluation, got {prefix!r}; arms have equal cost and one measure")
        if not fitting:
            raise ConfigError(f"differ must name settings that arms share otherwise ({', '.join(EQUAL)}), got {prefix!r}")
    # The register of a rule user follows the policy's language by itself.
    allowed = (*differ, *(("simulator.register",) if differ and "policy.model".startswith(tuple(differ)) else ()))
    (first, wanted), *others = shared.items()
    for arm, settings in others:
        for name in (name for name in wanted if name in settings):
            if settings[name] != wanted[name] and not name.startswith(allowed):
                or_else = "" if name.startswith(ALWAYS_EQUAL) else ", or name it in differ"
                raise ConfigError(
                    f"{name} must be the same in all arms, got {wanted[name]!r} in {first} and {settings[name]!r} in {arm}; "
                    f"set it for the whole sweep{or_else}"
                )


def filled(settings: Any, paths: Mapping[str, str]) -> Any:
    """The settings with every `{arm}` replaced by its path."""
    if isinstance(settings, Mapping):
        return {key: filled(value, paths) for key, value in settings.items()}
    if isinstance(settings, str):
        return REFERENCE.sub(lambda match: paths[match[1]], settings)
    return settings


def describe(sweep: Sweep) -> str:
    """What would be run, with the settings that each arm changes."""
    planned, cells, budget = sweep.planned, sweep.cells(), sweep.budget
    extra = cells[len(sweep.arms) * len(sweep.seeds) :]
    each = f"{budget.policy_tokens:,} policy tokens" + (f" or {budget.steps} steps" if budget.steps else "")
    in_all = (
        f"{count(len(cells), 'run')} and {'at most ' if budget.steps else ''}{len(cells) * budget.policy_tokens:,} policy tokens in all"
    )
    lines = [
        f"# would write {sweep.folder}",
        f"# {count(len(sweep.arms), 'arm')} x {count(len(sweep.seeds), 'seed')} of {each} each, {sweep.parallel} runs side by side",
        *([f"# and {', '.join(map(str, extra))}, which other runs replay"] if extra else []),
        f"# {in_all}; the time they take is known after the first step",
        f"# seeds {', '.join(map(str, sweep.seeds))}; endpoint {planned.primary}",
        *(f"# contrast {a} against {b}{missing_arms(a, b, sweep)}" for a, b in planned.contrasts),
        *(f"# arms differ on purpose in {name}" for name in sweep.differ),
        *(f"# tuned before, {arm}: {tried}" for arm, tried in planned.tuning.items()),
    ]
    for arm, settings in sweep.arms.items():
        changes = ", ".join(f"{name}={value}" for name, value in leaves(settings))
        lines.append(f"{arm}: {changes or '(as the base)'}")
    return "\n".join(lines)


def missing_arms(a: str, b: str, sweep: Sweep) -> str:
    """What a contrast lacks of the requested arms; empty where it lacks nothing."""
    wanted = dict.fromkeys([a, *fnmatch.filter(sweep.file_arms, b)])
    missing = [arm for arm in wanted if arm not in sweep.arms and not (sweep.folder / arm).is_dir()]
    return f"; undecided until {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} run" if missing else ""
