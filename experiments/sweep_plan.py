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
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from analysis.endpoints import ENDPOINTS, Planned
from analysis.runs import RUNS, SUMMARY, TEACHER, read_summary
from analysis.text import count
from experiments.config import (
    DEFAULT_KINDS,
    MAY_CHANGE,
    BudgetConfig,
    ExperimentConfig,
    checked,
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
    to_plain,
)
from experiments.errors import ConfigError, checked_name, refusing
from policy.config import EngineKind
from simulator.settings import SETTINGS, leaves, setting
from simulator.user import served_by_run

OWN = ("arms", "seeds", "parallel", "name", "runs")
"""Overrides of the sweep itself; every other one goes to all arms."""
REFERENCE = re.compile(r"\{([\w.+-]+)\}")
"""An arm whose run another one replays."""


@settings_dataclass(config=SETTINGS, kw_only=True)
class SweepFile:
    """The keys of a sweep's file."""

    base: str
    arms: dict[str, dict[str, Any] | None] = Field(default=..., min_length=1)
    seeds: list[int] | int | str
    settings: dict[str, Any] = Field(default_factory=dict)
    parallel: int = Field(default=1, ge=1)
    contrasts: list[str] = Field(default_factory=list)
    primary: str = "heldout.auc"
    read: list[str] = Field(default_factory=list)
    threshold: float = Field(default=60.0, ge=0, le=100)
    differ: list[str] = Field(default_factory=list)
    tuning: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, experiment: str) -> SweepFile:
        """The file of an experiment; raises ConfigError about the first key that is wrong."""
        path = path_of(experiment)
        given = {name: value for name, value in read_yaml(path).items() if value is not None}
        try:
            file: SweepFile = checked(cls, given, "")
            return file
        except ConfigError as error:
            raise ConfigError(f"{error} in {path.name}") from error

    def __post_init__(self) -> None:
        for arm in self.arms:
            if not re.match(r"^[\w+-][\w.+-]*$", arm):
                raise ValueError(f"an arm's name becomes a folder and must consist of letters, digits and . _ + -, got {arm!r}")
        for where, given in (("settings", self.settings), *((f"arm {arm}", settings) for arm, settings in self.arms.items())):
            if own := [name for name in ("experiment", "name", "runs", "resume", "seed") if name in (given or {})]:
                raise ValueError(f"{where} must not set {own[0]}, which the sweep gives each of its runs")
        if self.primary not in ENDPOINTS:
            raise ValueError(f"primary must be one of {', '.join(ENDPOINTS)}, got {self.primary!r}")
        if not ENDPOINTS[self.primary].sign:
            raise ValueError(f"primary must be an endpoint of which more, or less, is better, got {self.primary!r}, which only describes")
        # A study's own numbers of summary.json have names of their own.
        heads = {name.partition(".")[0] for name in ENDPOINTS}
        for name in self.read:
            if name not in ENDPOINTS and name.partition(".")[0] in heads:
                raise ValueError(f"read must name endpoints ({', '.join(ENDPOINTS)}), got {name!r}")
        for pattern in self.tuning:
            if not fnmatch.filter(self.arms, pattern):
                raise ValueError(f"tuning must name arms ({', '.join(self.arms)}), got {pattern!r}")
        for arm in self.arms if self.tuning else ():
            if not any(fnmatch.fnmatch(arm, pattern) for pattern in self.tuning):
                raise ValueError(f"tuning must name every arm, got none for {arm}; say what was tried before its settings were fixed")
        for a, b in self.pairs:
            if a not in self.arms or fnmatch.filter(self.arms, b) in ([], [a]):
                raise ValueError(f"contrasts must look like first:second, two of the arms {', '.join(self.arms)}, got {f'{a}:{b}'!r}")

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The contrasts, each as two arms; the second may be a pattern such as `fixed_*`, which means the best arm that fits it."""
        parts = (text.partition(":") for text in self.contrasts)
        return tuple((first, second) for first, _, second in parts)


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
        found: set[Cell] = set()
        waiting = list(cells)
        while waiting:
            new = set(self.needs(waiting.pop())) - found
            found |= new
            waiting += new
        return sorted(found, key=lambda cell: (cell.seed, cell.arm))

    def cell(self, arm: str, seed: str) -> Cell:
        """One run by name; raises ConfigError where the sweep has none."""
        found = {(cell.arm, str(cell.seed)): cell for cell in self.cells()}
        if (arm, seed) not in found:
            raise ConfigError(f"a cell must be one of {', '.join(map(str, found.values()))}, got {arm!r} {seed!r}")
        return found[arm, seed]

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
        """Runs that must have ended before this one can begin: those that it replays.

        They have the file's seed after its own, the first after the last; one of the file's for a seed that the file lacks.
        """
        place = self.ring.index(cell.seed) + 1 if cell.seed in self.ring else cell.seed
        texts = [value for _, value in leaves(self.arms[cell.arm]) if isinstance(value, str)]
        return [Cell(arm, self.ring[place % len(self.ring)]) for text in texts for arm in REFERENCE.findall(text)]

    def words_for(self, cell: Cell) -> list[str]:
        """The words after `python -m experiments` for one run."""
        return [self.experiment, *self.words, "--cell", cell.arm, str(cell.seed)]

    def output(self, cell: Cell) -> Path:
        """The file of a run's printed output."""
        return self.folder / cell.arm / f"seed_{cell.seed}.txt"

    def resume_words(self, cell: Cell) -> list[str]:
        """Overrides that a resumed run takes from the command: paths, endpoints and memory, as far as its kinds know them."""
        known = dict(leaves(to_plain(self.config(cell))))
        names = [name for name, _ in leaves(parse_overrides(self.words)) if name in known and name.startswith(MAY_CHANGE)]
        kept = [name for name in names if not name.startswith(("budget.", "resume", "runs"))]
        return [f"{name}={json.dumps(known[name], ensure_ascii=False)}" for name in kept]

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
                settings = with_texts(self.arms[cell.arm], lambda text: REFERENCE.sub(lambda match: paths[match[1]], text))
                self.composed[key] = compose(self.base, merged(settings, own), experiment=self.experiment)
            except ConfigError as error:
                raise ConfigError(f"arm {cell.arm}: {error}") from error
        return replace(deepcopy(self.composed[key]), seed=cell.seed, name=f"seed_{cell.seed}")

    def closing_score(self, cell: Cell) -> str:
        """The held-out score of a finished run, as text."""
        summary = read_summary(self.run_folder(cell) / SUMMARY)
        score, area = setting(summary, "heldout.score"), setting(summary, "heldout.auc")
        if score is None:
            return "no held-out score"
        return f"held-out {score:.1f}" + ("" if area is None else f", over the run {area:.1f}")

    def keep_plan(self) -> None:
        """Writes the planned comparison into the sweep's folder; raises ConfigError where it was begun with another plan."""
        with refusing():
            self.planned.keep(self.folder)

    def check_arms(self) -> None:
        """Raises ConfigError for arms that replay a run which is not made, or that differ in cost, measure or start."""
        firsts = {arm: Cell(arm, self.seeds[0]) for arm in self.arms}
        for arm, cell in firsts.items():
            needed = {need.arm for need in self.needs(cell)}
            if missing := sorted(needed - set(self.arms)):
                raise ConfigError(f"arm {arm} replays arm {missing[0]}, which must be among the arms, got {', '.join(self.arms)}")
            if needed and len(self.ring) < 2:
                raise ConfigError(f"arm {arm} replays another seed's run, so the file must have two seeds, got {self.ring[0]} alone")
        for arm, cell in firsts.items():
            if arm in {other.arm for other in self.replayed([cell])}:
                raise ConfigError(f"arm {arm} must not replay itself, directly or through others")
        configs = {arm: self.config(cell) for arm, cell in firsts.items()}
        for config in configs.values() if self.parallel > 1 else ():
            policy, cluster, user = config.policy, config.cluster, served_by_run(config.simulator)
            if not cluster.address and ((user and user.serve_gpus) or policy.sleep):
                cause = "policy.sleep" if policy.sleep else "simulator.serve_gpus"
                raise ConfigError(f"parallel must be 1 with {cause}, got {self.parallel}: runs side by side use the same GPUs")
            if cluster.gpus_per_engine and not cluster.address and policy.engine is not EngineKind.HF and policy.gpu_memory_share:
                raise ConfigError(
                    f"parallel must be 1 where engines fill a share of a GPU (policy.gpu_memory_share={policy.gpu_memory_share:g}), got "
                    f"{self.parallel}: runs side by side use the same GPUs; policy.gpu_memory_share=0 takes policy.kv_cache_mb instead"
                )

        # No experiment is about the cost and measure of an arm; arms share these and the others unless `differ` names them.
        always = ("budget.", "evaluation.")
        equal = (
            *(*always, "policy.", "probe.", "group_size", "rollout.max_turns", "rollout.max_new_tokens", "rollout.max_context"),
            *("simulator.kind", "simulator.start_emotion", "simulator.momentum", "simulator.register"),
        )
        shared = {arm: {n: v for n, v in leaves(to_plain(config)) if n.startswith(equal)} for arm, config in configs.items()}
        known = set().union(*shared.values())
        for prefix in self.differ:
            fitting = [name for name in known if name.startswith(prefix)]
            if prefix.startswith(always) or any(name.startswith(always) for name in fitting):
                raise ConfigError(f"differ must name no part of budget or evaluation, got {prefix!r}; arms have equal cost and one measure")
            if not fitting:
                raise ConfigError(f"differ must name settings that arms share otherwise ({', '.join(equal)}), got {prefix!r}")
        # The register of a rule user follows the policy's language by itself.
        allowed = (*self.differ, *(("simulator.register",) if self.differ and "policy.model".startswith(self.differ) else ()))
        (first, wanted), *others = shared.items()
        for arm, settings in others:
            for name in wanted:
                if name in settings and settings[name] != wanted[name] and not name.startswith(allowed):
                    or_else = "" if name.startswith(always) else ", or name it in differ"
                    raise ConfigError(
                        f"{name} must be the same in all arms, got {wanted[name]!r} in {first} and {settings[name]!r} in {arm}; "
                        f"set it for the whole sweep{or_else}"
                    )

    def describe(self) -> str:
        """The runs to make, with the settings that each arm changes."""
        planned, cells, budget = self.planned, self.cells(), self.budget
        extra = cells[len(self.arms) * len(self.seeds) :]
        each = f"{budget.policy_tokens:,} policy tokens" + (f" or {budget.steps} steps" if budget.steps else "")
        tokens = f"{'at most ' if budget.steps else ''}{len(cells) * budget.policy_tokens:,} policy tokens in all"
        lines = [
            f"# would write {self.folder}",
            f"# {count(len(self.arms), 'arm')} x {count(len(self.seeds), 'seed')} of {each} each, {self.parallel} runs side by side",
            *([f"# and {', '.join(map(str, extra))}, which other runs replay"] if extra else []),
            f"# {count(len(cells), 'run')} and {tokens}; the time they take is known after the first step",
            f"# seeds {', '.join(map(str, self.seeds))}; endpoint {planned.primary}",
        ]
        for a, b in planned.contrasts:
            wanted = dict.fromkeys([a, *fnmatch.filter(self.file_arms, b)])
            missing = [arm for arm in wanted if arm not in self.arms and not (self.folder / arm).is_dir()]
            waits = f"; undecided until {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} run" if missing else ""
            lines.append(f"# contrast {a} against {b}{waits}")
        lines += [f"# arms differ on purpose in {name}" for name in self.differ]
        lines += [f"# tuned before, {arm}: {tried}" for arm, tried in planned.tuning.items()]
        for arm, settings in self.arms.items():
            changes = ", ".join(f"{name}={value}" for name, value in leaves(settings))
            lines.append(f"{arm}: {changes or '(as the base)'}")
        return "\n".join(lines)


def load_sweep(experiment: str, overrides: Sequence[str] = ()) -> Sweep:
    """The plan of a sweep with dotted overrides; raises ConfigError for wrong settings and arms that differ in cost or measure."""
    import_study(experiment)
    file = SweepFile.of(experiment)
    given = parse_overrides(overrides)
    own = {name: given.pop(name) for name in OWN if name in given}
    for name, instead in (("seed", "its runs have seeds=..."), ("resume", "the same command again resumes it")):
        if name in given:
            raise ConfigError(f"{name} must not be set for a sweep, got {given[name]!r}; {instead}")
    if empty := [name for name in ("name", "runs") if own.get(name, name) in (None, "")]:
        raise ConfigError(f"{empty[0]} must not be empty, got {own[empty[0]]!r}")
    for group in DEFAULT_KINDS:
        kind = setting(given, f"{group}.kind")
        if kind and any(setting(arm, f"{group}.kind") for arm in file.arms.values()):
            raise ConfigError(f"{group}.kind must not be set for a sweep whose arms set it, got {kind!r}; add an arm to the file")

    base = laid_over(laid_over(read_experiment(file.base, above=[experiment]), file.settings), given)
    arms = file_arms = {arm: merged(shared_overrides(settings or {}, base, given), settings or {}) for arm, settings in file.arms.items()}
    if "arms" in own:
        asked = [str(name) for name in own["arms"]] if isinstance(own["arms"], list) else str(own["arms"] or "").split(",")
        if unknown := [name for name in asked if name not in file_arms]:
            raise ConfigError(f"arms must be among {', '.join(file_arms)}, got {unknown[0]!r}; leave it out for all of them")
        arms = {arm: file_arms[arm] for arm in asked}
    for name, lacking in unreached(base, arms, given).items():
        if len(lacking) == len(arms):
            raise ConfigError(
                f"{name} must reach an arm, got {setting(given, name)!r} for {', '.join(arms)}: each sets it itself, or has another kind; "
                "write it into the file, into the arm that it is for"
            )
    parallel = own.get("parallel", file.parallel)
    if not isinstance(parallel, int) or parallel < 1:
        raise ConfigError(f"parallel must be a whole number of at least 1, got {parallel!r}")
    file_seeds, seeds = seeds_of(file.seeds), seeds_of(own.get("seeds", file.seeds))
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
            contrasts=file.pairs,
            primary=file.primary,
            read=tuple(file.read),
            tuning={arm: str(tried) for arm, tried in file.tuning.items()},
            # Contrasts wait for the file's seeds and those that were added; for the requested alone where they are all others.
            seeds=tuple(sorted({*file_seeds, *seeds})) if {*file_seeds} & {*seeds} else seeds,
            varied=tuple(sorted({name for changes in file_arms.values() for name, _ in leaves(changes)})),
            arms=tuple(file.arms),
            overrides=tuple(word for word in overrides if not word.startswith(where)),
            threshold=file.threshold,
        ),
        differ=tuple(file.differ),
        words=tuple(overrides),
    )
    sweep.check_arms()
    return sweep


def shared_overrides(arm: Mapping[str, Any], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the overrides given for all arms, those that an arm would lose by its own kind, as far as that kind has them.

    Of teachers' settings, and of those given with a kind, only those that all kinds have, because one name may mean two things.
    """
    kept = {}
    for group, settings in given.items():
        if is_replaced(group, base.get(group, {}), arm) and isinstance(settings, Mapping):
            classes = kinds(group)
            among = classes if group == "teacher" or "kind" in settings else {arm[group]["kind"]: classes.get(arm[group]["kind"], dict)}
            shared = set.intersection(*(set(names_of(item)) for item in among.values()))
            kept[group] = {name: value for name, value in settings.items() if name in shared}
    return kept


def unreached(base: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """By override, the arms that do not take it: they set it themselves, or have another kind."""
    taken = {arm: dict(leaves(laid_over(base, settings))) for arm, settings in arms.items()}
    lacking = {name: [arm for arm in arms if name not in taken[arm] or taken[arm][name] != value] for name, value in leaves(given)}
    return {name: found for name, found in lacking.items() if found}


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


def with_texts(settings: Any, change: Callable[[str], str]) -> Any:
    """The settings with each text changed."""
    if isinstance(settings, Mapping):
        return {key: with_texts(value, change) for key, value in settings.items()}
    return change(settings) if isinstance(settings, str) else settings
