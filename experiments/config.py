"""The configuration of a run: an experiment's YAML file on its `base`, dotted overrides on both, checked before anything heavy is imported.

OmegaConf reads and composes, pydantic checks: each setting is declared once, with its type, its range and its meaning.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from analysis.runs import OF_A_MACHINE, PROVENANCE
from curriculum import TEACHERS
from curriculum.collapse.history import CollapseConfig
from experiments.agents.reliability_callback import ReliabilityProbe
from experiments.callbacks import CALLBACKS
from experiments.errors import ConfigError
from experiments.second_listener import Choice, other_listener, second_user
from policy.config import (
    ALGORITHM_CONFIGS,
    ClusterConfig,
    CriticKind,
    EngineConfig,
    EngineDtype,
    LearnerConfig,
    LoraConfig,
    PpoConfig,
    RolloutConfig,
    SftConfig,
)
from policy.prior import EMBEDDED, PriorConfig
from simulator.listener import ListenerKind, Register
from simulator.llm.config import EndpointConfig
from simulator.reward import REWARD_TERMS
from simulator.rule_user import RuleUserConfig
from simulator.settings import SETTINGS, leaves, message, setting
from simulator.user import USERS, endpoint_of


@dataclass(config=SETTINGS)
class ResamplingConfig:
    """Whether groups without contrast are replaced (`resampling.*`): DAPO's dynamic sampling, arXiv 2503.14476."""

    max_rounds: int = Field(default=0, ge=0)
    """Further rounds of groups that a step may play; 0 trains on all groups of the first."""
    contrast: Literal["success", "reward"] = "success"
    """How the rollouts of a group must differ: one succeeded and another did not, or any two rewards differ. Where rewards are graded,
    nearly every group has the second."""


@dataclass(config=SETTINGS)
class ProbeConfig:
    """The probe panel (`probe.*`): the same training dialogues every few steps, never trained on."""

    num_dialogues: int = Field(default=25, ge=0)
    """Dialogues on the panel; 0 switches it off."""
    every: int = Field(default=5, gt=0)
    """Steps between two panels."""
    at_start: bool = False
    """Whether the panel is also played with the first step's rollouts, before any update."""
    num_contexts: int = Field(default=16, ge=0, le=64)
    """0, or at least 2: first replies of the panel that are scored in the contexts of all of them, for `probe/retrieval_accuracy`. With 16
    that is 256 short forward passes a panel; 0 leaves it out."""
    teaches: bool = True
    """Whether the teacher observes the panel. Only a teacher that detects forgetting (frontier, target) uses it."""

    def __post_init__(self) -> None:
        if self.num_contexts == 1:
            raise ValueError("probe.num_contexts must be 0 or in [2, 64], got 1")

    def is_due(self, step: int) -> bool:
        """Whether the panel is played together with this step's rollouts."""
        return self.num_dialogues > 0 and (step % self.every == 0 or (self.at_start and step == 1))


@dataclass(config=SETTINGS)
class EvaluationConfig:
    """The held-out grid (`evaluation.*`): scenarios x strictness."""

    strictness: list[float] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    """Each in [0, 1], distinct, at least one: the columns of the grid."""
    num_scenarios: int = Field(default=0, ge=0)
    """Held-out scenarios in the full grid, spread over the families; 0 means all of them."""
    during_scenarios: int = Field(default=24, ge=1)
    """Scenarios in the smaller fixed grid that is played at every tenth of the budget."""
    temperature: float = Field(default=1.0, ge=0)
    """Of the policy; 0 is greedy. As in training by default, so that what is evaluated is what is trained."""
    split: Literal["heldout", "sealed"] = "heldout"
    """Scenarios that training never sees: `heldout` during development, `sealed` once, for a confirmatory result."""
    listener: Choice | None = None
    """A second listener, which hears the same dialogues again: `rule`, `encoder`, `model`, or `none`. Unset, one other than the user's that
    needs no server; none for the embedded policy in its own language."""
    server: EndpointConfig | None = None
    """The servers of `listener: model` (`urls`, `model`, ...)."""

    def __post_init__(self) -> None:
        if not self.strictness or not are_distinct(self.strictness) or not all(0.0 <= value <= 1.0 for value in self.strictness):
            raise ValueError(f"evaluation.strictness must hold distinct values in [0, 1], at least one, got {self.strictness!r}")


def are_distinct(strictness: Sequence[float]) -> bool:
    """Whether all differ to four digits, the precision of seeds and names of dialogues."""
    return len({f"{d:.4f}" for d in strictness}) == len(strictness)


@dataclass(config=SETTINGS)
class BudgetConfig:
    """When a run ends (`budget.*`): at whichever limit comes first."""

    policy_tokens: int = Field(default=1_500_000, gt=0)
    """Tokens that the policy may sample in training and on the probe panel."""
    steps: int = Field(default=0, ge=0)
    """Optimiser steps; 0 sets no limit."""

    def fraction(self, *, policy_tokens: float, steps: float) -> float:
        """Fraction of the budget that is used up, of tokens or of steps, whichever is more; above 1 where the last step overran it."""
        return max(policy_tokens / self.policy_tokens, steps / self.steps if self.steps else 0.0)


@dataclass(config=SETTINGS, kw_only=True)
class PolicyConfig(EngineConfig):
    """The model that is trained, and the engine that generates with it (`policy.*`)."""

    model: str = EMBEDDED
    """`embedded` is the small prior that ships, `smollm2` SmolLM2-135M-Instruct; otherwise a Hugging Face folder or id."""
    system_prompt: str = ""
    """System message before every dialogue; empty takes the chat template's own. Not for the embedded policy."""
    prior: PriorConfig = field(default_factory=PriorConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    sft: SftConfig = field(default_factory=SftConfig)

    @property
    def is_embedded(self) -> bool:
        """Whether it is the small policy of the built-in world."""
        return self.model == EMBEDDED


@dataclass(config=SETTINGS)
class CheckpointConfig:
    """How much a kill can cost (`checkpoint.*`)."""

    every: int = Field(default=10, gt=0)
    """Steps between checkpoints; one more is written at an interrupt and at the end."""
    keep: int = Field(default=2, gt=0)
    """Newest checkpoints kept."""


@dataclass(config=SETTINGS)
class ExperimentConfig:
    """Everything that decides a run."""

    experiment: str = ""
    """Name of the experiment file; set by the command line."""
    name: str = ""
    """Of the run's folder, runs/<experiment>/<name>; empty makes one from the seed and the time."""
    runs: str = "runs"
    """Folder of all runs."""
    resume: str = ""
    """A run's folder, or its name under this experiment: continue it from its newest checkpoint."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of everything random in training; evaluation has seeds of its own."""
    groups_per_step: int = Field(default=8, gt=0)
    """Tasks practised in a step."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of each task, which are compared with each other."""
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
    """Settings of registered callbacks by name (`experiments.callbacks`); naming one, if only with {}, turns it on."""
    simulator: Any = None
    """Settings of the simulated user, by `simulator.kind`."""
    algorithm: Any = None
    """Settings of the algorithm, by `algorithm.kind`."""
    teacher: Any = None
    """Settings of the teacher, by `teacher.kind`."""

    @property
    def second_listener(self) -> Choice:
        """Of held-out dialogues: `evaluation.listener`, or its default."""
        if self.evaluation.listener is not None:
            return self.evaluation.listener
        speaks_world = self.policy.is_embedded and getattr(self.simulator, "register", None) is Register.WORLD
        return "none" if speaks_world else other_listener(self.simulator)

    def __post_init__(self) -> None:
        """Fills in defaults that depend on other groups, and refuses groups that contradict each other."""
        policy, rollout, learner, algorithm, user = self.policy, self.rollout, self.learner, self.algorithm, self.simulator
        if isinstance(user, RuleUserConfig) and user.register is None:
            user.register = Register.WORLD if policy.is_embedded and user.listener is ListenerKind.RULE else Register.OPEN
        second_user(user, self.second_listener, self.evaluation.server)
        if policy.prior.thinking is None:
            policy.prior.thinking = policy.thinking
        if learner.recompute_logprobs is None:
            learner.recompute_logprobs = not self.computes_in_float32 or algorithm.corrects

        if policy.is_embedded and policy.system_prompt:
            raise ValueError(f"policy.system_prompt must be empty for the embedded policy, got {policy.system_prompt!r}")
        if policy.sft.data and (policy.is_embedded or policy.thinking):
            raise ValueError(
                f"policy.sft.data must be empty for the embedded policy, which has a prior, and one that thinks, got {policy.sft.data!r}"
            )
        if policy.is_embedded and policy.prior.thinking != policy.thinking:
            raise ValueError(
                f"policy.prior.thinking must be policy.thinking={policy.thinking}, got {policy.prior.thinking}; leave it unset"
            )
        algorithm.require(learner)
        if policy.sleep and rollout.max_staleness:
            raise ValueError(
                f"policy.sleep must be false with rollout.max_staleness={rollout.max_staleness}, got true: engines roll out during updates"
            )
        if learner.sharded and getattr(algorithm, "critic", None) is CriticKind.SHARED:
            raise ValueError("learner.sharded must be false with algorithm.critic=shared, got true")
        teacher: Any = TEACHERS[self.teacher.kind][1]
        if self.resampling.max_rounds and teacher.plans_by_proposal:
            raise ValueError(
                f"resampling.max_rounds must be 0 with teacher.kind={self.teacher.kind}, whose plan advances with each proposal, got "
                f"{self.resampling.max_rounds}"
            )
        for name, share in rollout.reward_terms.items():
            if share and REWARD_TERMS[name].reads_strategies and not isinstance(user, RuleUserConfig):
                raise ValueError(f"rollout.reward_terms.{name} must be 0 with a user that names no strategies, got {share!r}")
        if rollout.binary_reward_at > 0.0 and getattr(algorithm, "turn_credit", 0.0) > 0.0:
            raise ValueError(
                f"algorithm.turn_credit must be 0 with rollout.binary_reward_at={rollout.binary_reward_at:g}, which has no reward by turn, "
                f"got {algorithm.turn_credit!r}"
            )
        asked = endpoint_of(user)
        if asked and rollout.outage_s > 0 and rollout.dialogue_timeout_s <= asked.max_wait_s:
            raise ValueError(
                f"rollout.dialogue_timeout_s must be above simulator.max_wait_s={asked.max_wait_s:g} with rollout.outage_s="
                f"{rollout.outage_s:g}, got {rollout.dialogue_timeout_s:g}: dialogues would fail before an outage shows"
            )
        if isinstance(algorithm, PpoConfig) and algorithm.critic is CriticKind.SHARED and policy.lora.rank:
            raise ValueError(
                f"algorithm.critic must be separate with policy.lora.rank={policy.lora.rank}, got shared: the layers that both would read "
                "are frozen"
            )
        if isinstance(algorithm, PpoConfig) and 0 < self.budget.steps <= algorithm.critic_warmup_steps:
            raise ValueError(
                f"algorithm.critic_warmup_steps must be < budget.steps={self.budget.steps}, got {algorithm.critic_warmup_steps}: the "
                "policy would never be trained"
            )
        if rollout.max_staleness and learner.recompute_logprobs and not algorithm.corrects:
            raise ValueError(
                "algorithm.importance_correction must be token where logprobs are recomputed and "
                f"rollout.max_staleness={rollout.max_staleness}, got none: tokens of older weights would count as on-policy; correct "
                "them, or set learner.recompute_logprobs=false"
            )
        if learner.micro_batch_tokens < rollout.max_context:
            raise ValueError(
                f"learner.micro_batch_tokens must be at least rollout.max_context={rollout.max_context}, as dialogues are never cut, got "
                f"{learner.micro_batch_tokens}"
            )
        if policy.keep_thoughts is False:
            algorithm.require_whole_dialogues()

    @property
    def computes_in_float32(self) -> bool:
        """Whether engines and trainer do, so that their logprobs agree to about 1e-6 nats."""
        return self.policy.dtype is EngineDtype.FLOAT32 and not self.learner.autocast


CALLBACKS["reliability"] = ReliabilityProbe
DEFAULT_KINDS = {"teacher": "frontier", "algorithm": "grpo", "simulator": "rule"}
"""Groups of settings whose class is chosen by their `kind`."""
MAY_CHANGE = ("budget.", "teacher.trace", "simulator.profiles", "simulator.heldout_profiles", *OF_A_MACHINE)
"""Prefixes of settings that a resumed run may change. With `learner.lr_end` below 1, earlier step sizes followed the old budget. Files may
move; their contents are compared by `experiments.resume`."""

SERVERS = ("simulator", "simulator.server", "evaluation.server")
"""Groups that may hold the settings of servers."""
FOLDER = Path(__file__).parent


def experiments() -> dict[str, Path]:
    """Experiments by name: the YAML files in `experiments/`, `experiments/recipes/` and `studies/*/`."""
    patterns = ("studies/*/*.yaml", "experiments/recipes/*.yaml", "experiments/*.yaml")
    files = {path.stem: path for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    return dict(sorted(files.items()))


def path_of(experiment: str) -> Path:
    """The file of an experiment; raises ConfigError with a list of all where there is none."""
    if experiment not in (known := experiments()):
        close = get_close_matches(experiment, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"there is no experiment {experiment!r}, the experiments are {', '.join(known)}{meant}")
    return known[experiment]


def is_sweep(experiment: str) -> bool:
    """Whether an experiment's file describes a sweep."""
    return "arms" in read_yaml(path_of(experiment))


def import_study(experiment: str) -> None:
    """Imports the study of an experiment, which registers what its settings name; nothing for an experiment of the core."""
    folder = experiments().get(experiment, FOLDER).parent
    if folder.parent.name == "studies" and (folder / "__init__.py").is_file():
        importlib.import_module(f"studies.{folder.name}")


def load(experiment: str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The configuration of an experiment with dotted overrides.

    Raises:
        ConfigError: the experiment or a setting is unknown, or a value has the wrong type, is out of range or contradicts another.
    """
    import_study(experiment)
    return compose(read_experiment(experiment), parse_overrides(overrides), experiment=experiment)


def load_saved(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The configuration that a run was started with, with overrides of what a resumed run may change.

    Raises:
        ConfigError: the file is not a run's config, or an override changes a setting that the run's past depends on.
    """
    saved = {name: value for name, value in read_yaml(path).items() if name != PROVENANCE}
    experiment = str(saved.get("experiment", ""))
    import_study(experiment)
    config = compose(saved, {}, experiment=experiment)
    if not overrides:
        return config
    changes, before = parse_overrides(overrides), dict(leaves(to_plain(config)))
    # Another kind changes which settings exist, so the rest is checked where the kinds stay.
    kept = [name for name in before if name.endswith(".kind") or name == "policy.thinking"]
    after = {name: setting(changes, name, before[name]) for name in kept}
    if all(before[name] == after[name] for name in kept):
        config = compose(saved, changes, experiment=experiment)
        after = dict(leaves(to_plain(config)))
    for name, value in after.items():
        if before.get(name) != value and not name.startswith(MAY_CHANGE):
            raise ConfigError(f"{name} must stay {before.get(name)!r} in a resumed run, got {value!r}; start a new run for that")
    return config


def read_experiment(experiment: str, *, above: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of an experiment's file on those of its `base`; `above` are the experiments that have it as a base, the nearest last.

    Raises:
        ConfigError: one of the files cannot be read, or a base is not an experiment of a single run.
    """
    if above and (experiment in above or experiment not in experiments() or is_sweep(experiment)):
        raise ConfigError(f"base must name another experiment, one of a single run, got {experiment!r} in {path_of(above[-1]).name}")
    own = read_yaml(path_of(experiment))
    base = own.pop("base", None)
    return own if base is None else laid_over(read_experiment(str(base), above=(*above, experiment)), own)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of settings by name; raises ConfigError where it is none."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} must be a YAML file that can be read, got {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{path} must hold settings by name, got {tree!r}")
    return tree


def laid_over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of settings on another; a group of another `kind` than the base's replaces it whole."""
    return merged({group: value for group, value in base.items() if not is_replaced(group, value, own)}, own)


def is_replaced(group: str, value: Any, overrides: Mapping[str, Any]) -> bool:
    """Whether the overrides choose another kind for a group, for which the settings of the first mean nothing."""
    if group not in DEFAULT_KINDS or not isinstance(value, Mapping) or not isinstance(overrides.get(group), Mapping):
        return False
    before = value.get("kind", DEFAULT_KINDS[group])
    return overrides[group].get("kind", before) != before


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees in one; `over` wins."""
    both = {key: merged(base[key], over[key]) for key in base if isinstance(base[key], Mapping) and isinstance(over.get(key), Mapping)}
    return {**base, **over, **both}


def compose(base: Mapping[str, Any], overrides: Mapping[str, Any], *, experiment: str) -> ExperimentConfig:
    """Overrides on a base, each group checked by the class that its `kind` chooses.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, is out of range or contradicts another.
    """
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.create(laid_over(base, overrides)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"settings must refer to settings that exist, got {' '.join(str(error).split())}") from error
    for asked in (setting(plain, name, {}) for name in SERVERS):
        if isinstance(asked, dict) and isinstance(asked.get("extra_body"), Mapping):
            asked["extra_body"] = json.dumps(asked["extra_body"], ensure_ascii=False)
    for group, default in DEFAULT_KINDS.items():
        given, classes = plain.get(group) or {}, kinds(group)
        if not isinstance(given, Mapping):
            raise ConfigError(f"{group} must be set by its parts, such as {group}.kind={given}, got {given!r}")
        kind = given.get("kind", default)
        if not isinstance(kind, str) or kind not in classes:
            raise ConfigError(f"{group}.kind must be one of {', '.join(classes)}, got {kind!r}")
        plain[group] = checked(classes[kind], given, group)
    for name, registered in (("callbacks", CALLBACKS), ("rollout.reward_terms", REWARD_TERMS)):
        given = setting(plain, name, {})
        if not isinstance(given, Mapping):
            raise ConfigError(f"{name} must be a table of settings by name, got {given!r}")
        if unknown := [key for key in given if key not in registered]:
            choice = f"one of {', '.join(registered)}" if registered else "left out, as none is registered"
            raise ConfigError(f"{name}.{unknown[0]} must be {choice}; a study registers its own")
    callbacks = plain.get("callbacks") or {}
    plain["callbacks"] = {name: checked(CALLBACKS[name], given or {}, f"callbacks.{name}") for name, given in callbacks.items()}
    config: ExperimentConfig = checked(ExperimentConfig, {**plain, "experiment": experiment}, "")
    return config


def checked(settings: type, given: Mapping[str, Any], group: str) -> Any:
    """An instance of a settings class; raises ConfigError with one sentence about the first setting that is wrong."""
    try:
        return TypeAdapter(settings).validate_python(given)
    except ValidationError as error:
        unknown = [item["loc"] for item in error.errors(include_url=False) if item["type"] == "unexpected_keyword_argument"]
        if not unknown:
            raise ConfigError(message(error, group)) from error
        name = ".".join(filter(None, (group, *map(str, unknown[0]))))
        classes = kinds(group) if group in DEFAULT_KINDS else {}
        if having := [kind for kind, other in classes.items() if name in names_of(other, f"{group}.")]:
            rule = f"{name} is not a setting of this {group}.kind; leave it out or choose {group}.kind={' or '.join(having)}"
        else:
            known = [*names_of(settings, f"{group}." if group else ""), *(f"{other}.kind" for other in DEFAULT_KINDS)]
            # An equal last part counts extra, as a section is easily forgotten.
            near = max(known, key=lambda o: SequenceMatcher(None, name, o).ratio() + 0.4 * (o.split(".")[-1] == name.split(".")[-1]))
            rule = f"{name} is not a setting; did you mean {near}?"
        raise ConfigError(rule) from error


def kinds(group: str) -> dict[str, type]:
    """Settings classes of a group by kind, each with its `kind` as a field; those that studies registered among them."""
    pairs: Mapping[str, tuple[type, Any]] = TEACHERS if group == "teacher" else USERS
    classes = ALGORITHM_CONFIGS if group == "algorithm" else {kind: settings for kind, (settings, _) in pairs.items()}
    return {kind: with_kind(settings, kind) for kind, settings in classes.items()}


@cache
def with_kind(settings: type, kind: str) -> type:
    """A settings class with the `kind` that chose it as one of its fields."""
    return dataclass(config=SETTINGS)(type(settings.__name__, (settings,), {"__annotations__": {"kind": str}, "kind": kind}))


def names_of(settings: type, prefix: str = "", *, of: type | None = None) -> list[str]:
    """Dotted names of all fields of a settings class and of its parts, or of those whose type is `of`."""
    found = []
    for name, hint in get_type_hints(settings).items():
        parts = [part for part in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if is_dataclass(part)]
        if parts and isinstance(parts[0], type):
            found += names_of(parts[0], f"{prefix}{name}.", of=of)
        elif of is None or hint is of:
            found.append(prefix + name)
    return found


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Nested settings from `a.b=value` words. Values are YAML; where the setting is text they are taken as written, unless quoted."""
    # Text, or what begins like this.
    structured = {"arms": "[", "seeds": "[", **dict.fromkeys((f"{of}.extra_body" for of in SERVERS), "{")}
    words = []
    for word in overrides:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"an override must look like name=value, got {word!r}")
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        if (name in structured or name in text_settings()) and not is_quoted and value not in ("", "null", "~"):
            # A run named 1.10 is not named 1.1.
            word = f"{name}={json.dumps(value, ensure_ascii=False)}" if value[0] != structured.get(name) else word
        try:
            OmegaConf.from_dotlist([word])
        except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{name} must have a value that YAML can read, got {word!r}") from error
        words.append(word)
    tree: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(words))
    return tree


@cache
def text_settings() -> frozenset[str]:
    """Settings whose type is text, of all kinds of their group."""
    found = names_of(ExperimentConfig, of=str)
    for group in DEFAULT_KINDS:
        found += [name for settings in kinds(group).values() for name in names_of(settings, f"{group}.", of=str)]
    return frozenset(found)


def to_plain(settings: Any) -> Any:
    """Settings as nested dicts of YAML values."""
    if is_dataclass(settings) and not isinstance(settings, type):
        settings = asdict(settings)
    if isinstance(settings, dict):
        return {key: to_plain(value) for key, value in settings.items()}
    return settings.value if isinstance(settings, Enum) else settings


def to_yaml(config: ExperimentConfig, provenance: Mapping[str, Any] | None = None) -> str:
    """The resolved configuration as YAML, with the facts about the run under `provenance`."""
    return OmegaConf.to_yaml(OmegaConf.create({**to_plain(config), **({PROVENANCE: dict(provenance)} if provenance else {})}))


def defaults_of(group: str, kind: str) -> dict[str, Any]:
    """Defaults of a group's settings for this kind, plain and by dotted name; they need not be valid, as some must be set."""
    fields: Mapping[str, Any] = kinds(group)[kind].__pydantic_fields__  # type: ignore[attr-defined]
    defaults = {name: to_plain(field.get_default(call_default_factory=True)) for name, field in fields.items()}
    return dict(leaves(defaults, f"{group}."))


def own_file(config: ExperimentConfig) -> ExperimentConfig | None:
    """The configuration of an experiment's file alone; None for a sweep, or where it cannot be read."""
    with contextlib.suppress(ConfigError):
        return None if is_sweep(config.experiment) else load(config.experiment)
    return None


def overrides_of(config: ExperimentConfig) -> list[str] | None:
    """The overrides that make this configuration from its experiment's file; None where that file is no single run's."""
    if (file := own_file(config)) is None:
        return None
    usual, words = dict(leaves(to_plain(file))), []
    for group in DEFAULT_KINDS:
        # The settings of another kind than the file's are compared with that kind's defaults.
        kind = getattr(config, group).kind
        if kind != usual[f"{group}.kind"]:
            words.append(f"{group}.kind={kind}")
            usual = {name: value for name, value in usual.items() if not name.startswith(f"{group}.")} | defaults_of(group, kind)
    for name, value in leaves(to_plain(config)):
        if usual.get(name) == value or name.startswith(("cluster.", "checkpoint.", "resume", "runs", "name", "experiment")):
            continue
        word = f"{name}={json.dumps(value, ensure_ascii=False)}"
        if isinstance(value, str):
            with contextlib.suppress(ConfigError):  # plain where it reads back as itself
                word = f"{name}={value}" if setting(parse_overrides([f"{name}={value}"]), name) == value else word
        words.append(word)
    return words
