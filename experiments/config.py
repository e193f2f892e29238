"""The composed, typed configuration: schema <- experiment file and base <- overrides <- checks, before anything heavy is imported."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.runs import OF_A_SITTING, PROVENANCE, in_a_line, leaves, setting
from curriculum import TEACHERS
from curriculum.collapse.monitor import CollapseConfig
from experiments.callbacks import CALLBACKS
from experiments.catalogue import experiments, import_study, path_of
from experiments.contradictions import require_consistent
from experiments.evaluate import EvaluationConfig
from experiments.keys import ConfigError, refuse_non_finite, refuse_of_other_kinds, refuse_unknown, refusing, wanted
from experiments.probe import ProbeConfig
from experiments.resampling import ResamplingConfig
from policy.algorithms.algorithms import ALGORITHMS
from policy.config import EMBEDDED, ClusterConfig, EngineConfig, EngineDtype, LearnerConfig, LoraConfig, PriorConfig, RolloutConfig
from simulator.listener import Register
from simulator.reward import REWARD_TERMS
from simulator.rule_user import RuleUserConfig
from simulator.users import USERS

VARIANTS: dict[str, Mapping[str, tuple[type, Any]]] = {"teacher": TEACHERS, "algorithm": ALGORITHMS, "simulator": USERS}
"""Groups of settings whose schema is chosen by their `kind`."""


SEEDS_BELOW = 2**63
"""Torch's generators take no larger seed; one would fail in the middle of a run."""


@dataclass
class BudgetConfig:
    """When a run ends: at whichever comes first."""

    policy_tokens: int = 1_500_000
    """> 0: tokens the policy may sample in training and on the probe panel."""
    steps: int = 0
    """>= 0: optimiser steps; 0 sets no limit."""

    def __post_init__(self) -> None:
        if self.policy_tokens <= 0:
            raise ValueError(f"budget.policy_tokens must be > 0, got {self.policy_tokens!r}")
        if self.steps < 0:
            raise ValueError(f"budget.steps must be >= 0, got {self.steps!r}; 0 sets no limit")

    def spent(self, *, policy_tokens: float, steps: float) -> float:
        """Share of it that is used up, of tokens or of steps, whichever is more; above 1 where the last step took more than was left."""
        return max(policy_tokens / self.policy_tokens, steps / self.steps if self.steps else 0.0)


@dataclass(kw_only=True)
class PolicyConfig(EngineConfig):
    """Which model is trained, and the engine that generates with it."""

    model: str = EMBEDDED
    """`embedded` builds the small prior; otherwise a Hugging Face folder or id."""
    system_prompt: str = ""
    """What the agent is told before every dialogue, with a model of one's own; empty for what its chat template says by itself."""
    prior: PriorConfig = field(default_factory=PriorConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def is_embedded(self) -> bool:
        """Whether it is the small policy of the built-in world, and no model of the user's own."""
        return self.model == EMBEDDED


@dataclass
class CheckpointConfig:
    """How much a kill can cost."""

    every: int = 10
    """> 0: steps between checkpoints; one more is written at an interrupt and at the end."""
    keep: int = 2
    """> 0: newest checkpoints kept."""

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            if getattr(self, name) <= 0:
                raise ValueError(f"checkpoint.{name} must be > 0, got {getattr(self, name)!r}")


@dataclass
class ExperimentConfig:
    """Everything that decides a run."""

    experiment: str = ""
    """Name of the experiment file; set by the command line."""
    name: str = ""
    """Of the run's folder, runs/<experiment>/<name>; empty makes one from the seed and the time."""
    runs: str = "runs"
    """Folder that holds all runs."""
    resume: str = ""
    """A run's folder, or its name under this experiment: continue it from its newest checkpoint."""
    seed: int = 0
    """>= 0: of everything random in training; evaluation has seeds of its own."""
    groups_per_step: int = 8
    """> 0: tasks practised in a step."""
    group_size: int = 8
    """>= 2: rollouts of each task, which are compared with each other."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    collapse: CollapseConfig = field(default_factory=CollapseConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    resampling: ResamplingConfig = field(default_factory=ResamplingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    callbacks: dict[str, Any] = field(default_factory=dict)
    """Settings of registered callbacks, by name (`experiments.callbacks`); naming one, if only with {}, turns it on."""
    simulator: Any = None
    """Config of the simulated user, by `simulator.kind`."""
    algorithm: Any = None
    """Config of the algorithm, by `algorithm.kind`."""
    teacher: Any = None
    """Config of the teacher, by `teacher.kind`."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS_BELOW:
            raise ValueError(f"seed must be in [0, 2**63), got {self.seed!r}")
        if self.groups_per_step <= 0:
            raise ValueError(f"groups_per_step must be > 0, got {self.groups_per_step!r}")
        if self.group_size < 2:
            raise ValueError(f"group_size must be >= 2, got {self.group_size!r}; siblings are compared with each other")

    @property
    def computes_in_float32(self) -> bool:
        """Whether engines and trainer do, so that their logprobs agree to about 1e-6 nats."""
        return self.policy.dtype is EngineDtype.FLOAT32 and not self.learner.autocast


EXTRA_BODY = "simulator.extra_body"
"""A setting that is JSON as text."""
DEFAULT_KINDS = {"teacher": "frontier", "algorithm": "grpo", "simulator": "rule"}
PLACES = ("teacher.trace", "simulator.profiles", "simulator.heldout_profiles")
"""Files that may have moved since a run began: what they hold must be the same, which is looked at apart."""
MAY_CHANGE = ("budget.", *PLACES, *OF_A_SITTING)
"""Settings that a resumed run may change, because nothing already trained depends on them. One exception: with `learner.lr_end` below 1,
earlier step sizes followed the old budget."""


def load(experiment: str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The configuration of an experiment with dotted overrides.

    Raises:
        ConfigError: the experiment or a setting is unknown, or a value is of the wrong type or out of range.
    """
    require_known(experiment)
    import_study(experiment)
    return compose(read_experiment(experiment), parse_overrides(overrides), experiment=experiment)


def require_known(experiment: str) -> None:
    """Refuses the name of an experiment that there is not.

    Raises:
        ConfigError: lists those that there are.
    """
    known = experiments()
    if experiment not in known:
        raise ConfigError(f"there is no experiment {experiment!r}, the experiments are {', '.join(known)}{meant(experiment)}")


def meant(experiment: str) -> str:
    """The name that was probably meant, as a question; empty where none is near."""
    close = difflib.get_close_matches(experiment, experiments(), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def read_experiment(experiment: str, *, above: Sequence[str] = ()) -> dict[str, Any]:
    """The settings in an experiment's file, on top of those of the experiment that it names as its `base`.

    Args:
        above: the experiments whose base, or base's base, it is.

    Raises:
        ConfigError: one of the files cannot be read, or a base is no experiment of a single run.
    """
    own = read_yaml(path_of(experiment))
    if "base" not in own:
        return own
    base, above = str(own.pop("base")), (*above, experiment)
    require_base(base, above)
    return laid_over(read_experiment(base, above=above), own)


def require_base(base: str, above: Sequence[str]) -> None:
    """Refuses what settings cannot be laid upon.

    Args:
        above: the experiments that it would be the base of, the nearest last.

    Raises:
        ConfigError: there is no such experiment, it is a sweep, or it is one of those above it.
    """
    rule = f"base must name an experiment of a single run, got {base!r} in {path_of(above[-1]).name}"
    if base in above:
        raise ConfigError(f"{rule}, which leads back to it")
    if base not in experiments():
        raise ConfigError(f"{rule}; there is none{meant(base)}")
    if "arms" in read_yaml(path_of(base)):
        raise ConfigError(f"{rule}, which has arms; take its own base")


def load_saved(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The configuration a run was started with, with overrides of what a resumed run may change.

    Raises:
        ConfigError: the file is not a run's config, or an override changes what the run's past depends on.
    """
    saved = read_yaml(path)
    saved.pop(PROVENANCE, None)
    experiment = str(saved.get("experiment", ""))
    import_study(experiment)
    config = compose(saved, {}, experiment=experiment)
    if not overrides:
        return config
    changes, before = parse_overrides(overrides), dict(leaves(to_plain(config)))
    # These decide what other settings mean, and are looked at before those.
    deciding = {name: value for name, value in leaves(changes) if name.endswith(".kind") or name == "policy.thinking"}
    refuse_changes(before, deciding)
    config = compose(saved, changes, experiment=experiment)
    refuse_changes(before, dict(leaves(to_plain(config))))
    return config


def refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raises when a resumed run would be given another setting that its past depends on."""
    for name, value in after.items():
        if name in before and before[name] != value and not name.startswith(MAY_CHANGE):
            raise ConfigError(f"{name} must stay {before[name]!r} in a resumed run, got {value!r}; start a new run for that")


def compose(base: dict[str, Any], overrides: dict[str, Any], *, experiment: str) -> ExperimentConfig:
    """Schema <- base <- overrides, checked, as typed objects; a group of another kind than the base's replaces it whole."""
    base = {group: value for group, value in base.items() if not is_replaced(group, value, overrides)}
    base, overrides = with_json(base), with_json(overrides)
    given = merged(base, overrides)
    schema = schema_for(given)
    defaults = dict(leaves(OmegaConf.to_container(schema)))
    refuse_of_other_kinds(dict(leaves(given)), defaults, kinds_by_setting())
    for layer in (base, overrides):
        refuse_unknown([name for name, _ in leaves(layer)], defaults)
    for name, value in leaves(given):
        set_typed(schema, name, value, default=defaults[name])
    typed = dict(leaves(OmegaConf.to_container(schema)))
    refuse_non_finite({name: typed[name] for name, _ in leaves(given) if name in typed})
    schema.experiment = experiment
    with refusing():
        return with_choices(OmegaConf.to_object(schema))


def with_json(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with `simulator.extra_body` as the text that it is, where a shell took the quotes away and YAML read a table."""
    body = setting(tree, EXTRA_BODY)
    return merged(tree, {"simulator": {"extra_body": json.dumps(body, ensure_ascii=False)}}) if isinstance(body, Mapping) else tree


def laid_over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of settings on another; a group of another kind than the base's replaces it whole."""
    return merged({group: value for group, value in base.items() if not is_replaced(group, value, own)}, own)


def is_replaced(group: str, value: Any, overrides: Mapping[str, Any]) -> bool:
    """Whether the overrides choose another kind for a group of settings, which leaves the settings of the first without meaning."""
    if group not in VARIANTS or not isinstance(value, Mapping) or not isinstance(overrides.get(group), Mapping):
        return False
    before = value.get("kind", DEFAULT_KINDS[group])
    return overrides[group].get("kind", before) != before


def with_choices(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration with what was left to choose.

    That is the user's register, by the language its policy speaks; whether the prior thinks; and whose logprobs are the old ones.

    Raises:
        ValueError: settings of different groups contradict each other.
    """
    if isinstance(config.simulator, RuleUserConfig) and config.simulator.register is None:
        config.simulator.register = Register.WORLD if config.policy.is_embedded else Register.OPEN
    settle_thinking(config.policy)
    if config.learner.recompute_logprobs is None:
        config.learner.recompute_logprobs = not config.computes_in_float32 or config.algorithm.corrects
    require_consistent(config)
    return config


def settle_thinking(policy: PolicyConfig) -> None:
    """Gives the embedded prior the mode that the policy is asked for.

    Raises:
        ValueError: it was given the other one.
    """
    if policy.prior.thinking is None:
        policy.prior.thinking = policy.thinking
    if policy.is_embedded and policy.prior.thinking != policy.thinking:
        raise ValueError(
            f"policy.prior.thinking must be {policy.thinking} where policy.thinking is, got {policy.prior.thinking}; leave it unset"
        )


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees in one; `over` wins."""
    both = {key: merged(base[key], over[key]) for key in base if isinstance(base[key], Mapping) and isinstance(over.get(key), Mapping)}
    return {**base, **over, **both}


def set_typed(schema: DictConfig, name: str, value: Any, *, default: Any) -> None:
    """Sets one setting; a whole number may be written as 1e6.

    Raises:
        ConfigError: it is of another type, or text in which the library would put other settings.
    """
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            require_literal(name, text)
    if type(default) is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        OmegaConf.update(schema, name, value)
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{name} must be {wanted(default)}, got {value!r}") from error


def require_literal(name: str, text: str) -> None:
    """Raises where the library that reads settings would put others into a text, or nothing.

    Raises:
        ConfigError: it has `${` or is `???`.
    """
    if "${" in text or text == "???":
        raise ConfigError(f"{name} must be text that stands for itself, without ${{ and other than ???, got {text!r}")


def schema_for(given: Mapping[str, Any]) -> DictConfig:
    """The structured schema, with the settings of each chosen variant in place."""
    schema = OmegaConf.structured(ExperimentConfig)
    for name in registered(given, "rollout.reward_terms", REWARD_TERMS):
        schema.rollout.reward_terms[name] = 0.0
    for name in registered(given, "callbacks", CALLBACKS):
        schema.callbacks[name] = OmegaConf.structured(CALLBACKS[name])
    for group, kinds in VARIANTS.items():
        settings = given.get(group) or {}
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{group} must be set by its parts, such as {group}.kind={settings}, got {settings!r}")
        kind = settings.get("kind", DEFAULT_KINDS[group])
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigError(f"{group}.kind must be one of {', '.join(kinds)}, got {kind!r}")
        schema[group] = OmegaConf.structured(with_kind(kinds[kind][0], kind))
    return schema


def registered(given: Mapping[str, Any], dotted: str, known: Mapping[str, Any]) -> list[str]:
    """The names in a group of settings that holds what studies registered.

    Raises:
        ConfigError: one is not registered, or the group is no table.
    """
    names = setting(given, dotted, {})
    if not isinstance(names, Mapping):
        raise ConfigError(f"{dotted} must be a table of settings by name, got {names!r}")
    for name in names:
        if name not in known:
            there = f"one of {', '.join(known)}" if known else "left out, as none is registered"
            raise ConfigError(f"{dotted}.{name} must be {there}; a study registers its own")
    return list(names)


def kinds_by_setting() -> dict[str, list[str]]:
    """By dotted name, the kinds of its group that have a setting."""
    having: dict[str, list[str]] = {}
    for group, kinds in VARIANTS.items():
        for kind, (settings, _) in kinds.items():
            for item in fields(settings):
                having.setdefault(f"{group}.{item.name}", []).append(kind)
    return having


@cache
def with_kind(settings: type, kind: str) -> type:
    """A variant's dataclass with the `kind` that chose it as one of its settings."""
    if any(item.name == "kind" for item in fields(settings)):
        return settings
    return make_dataclass(settings.__name__, [("kind", str, kind)], bases=(settings,))


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Nested settings from `a.b=value` words; values are read as YAML.

    Raises:
        ConfigError: a word is no assignment, or its value is no YAML.
    """
    words = []
    for word in overrides:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"an override must look like name=value, got {word!r}")
        require_literal(name, value)
        words.append(f"{name}={json.dumps(value, ensure_ascii=False)}" if is_as_written(name, value) else word)
        try:
            OmegaConf.from_dotlist([words[-1]])
        except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{name} must have a value that YAML can read, got {word!r}") from error
    tree: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(words))
    return tree


TEXT_OF_A_SWEEP = ("arms", "seeds")
"""A sweep's own words that are text between commas or a list."""


@cache
def text_settings() -> frozenset[str]:
    """Settings whose type is text (a kind is a choice), whichever kind their group is of."""
    found = set(texts_of(ExperimentConfig, ""))
    for group, kinds in VARIANTS.items():
        found.update(name for settings, _ in kinds.values() for name in texts_of(settings, f"{group}."))
    return frozenset(name for name in found if not name.endswith(".kind"))


def texts_of(settings: type, prefix: str) -> Iterator[str]:
    """The dotted names of a dataclass's fields that are text, those of its parts among them."""
    for name, hint in get_type_hints(settings).items():
        if hint is str:
            yield prefix + name
        elif is_dataclass(hint) and isinstance(hint, type):
            yield from texts_of(hint, f"{prefix}{name}.")


def is_as_written(name: str, value: str) -> bool:
    """Whether an override is the very text that was written, whatever else YAML could read in it.

    It would make 1.1 of a run named 1.10, 64 of seeds 1:4, and False of a reason that is "no". In quotes it is YAML's, and so is a list
    for a sweep, a table for a request's body, whose quotes a shell took away, and what stands for nothing, which no text is.
    """
    if value in ("", "null", "~") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return False
    if name in TEXT_OF_A_SWEEP:
        return not value.startswith("[")
    return name in text_settings() and not (name == EXTRA_BODY and value.startswith("{") and not is_json(value))


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds settings by name.

    Raises:
        ConfigError: it does not.
    """
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} must be a YAML file that can be read, got {in_a_line(error)}") from error
    except (OSError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} must be a YAML file that can be read, got {str(error).splitlines()[0]}") from error
    if tree == {}:
        raise ConfigError(f"{path} must hold settings by name, got none")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold settings by name, got a {type(tree).__name__}")
    return tree


def to_plain(config: ExperimentConfig) -> dict[str, Any]:
    """The configuration as nested dicts of YAML values."""
    return without_enums(asdict(config))


def without_enums(value: Any) -> Any:
    """The tree with every Enum as its value, as a person would write it."""
    if isinstance(value, dict):
        return {key: without_enums(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value


@cache
def defaults_for(**kinds: str) -> Mapping[str, Any]:
    """Every setting at its default, plain and by dotted name, with these kinds by group."""
    schema = schema_for({group: {"kind": kind} for group, kind in kinds.items()})
    return dict(leaves(without_enums(OmegaConf.to_container(schema))))


def to_yaml(config: ExperimentConfig, provenance: Mapping[str, Any] | None = None) -> str:
    """The resolved configuration as YAML, with the facts about the run beside it."""
    return OmegaConf.to_yaml(OmegaConf.create({**to_plain(config), **({PROVENANCE: dict(provenance)} if provenance else {})}))


def is_json(content: str) -> bool:
    """Whether a text can be read as JSON."""
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
