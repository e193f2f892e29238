"""What settings of different groups must not say at once: whatever one group can tell by itself, its own dataclass refuses.

The experiments there are: one YAML file each, of the core or of a study, whose first line says what it is about.

Settings of evaluation, of the probe panel and of resampling.

The composed, typed configuration: schema <- experiment file and base <- overrides <- checks, before anything heavy is imported.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, is_dataclass, make_dataclass
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic.dataclasses import dataclass

from analysis.runs import OF_A_SITTING, PROVENANCE, in_a_line, leaves, setting
from curriculum import TEACHERS
from curriculum.collapse.monitor import CollapseConfig
from curriculum.task import GroupOutcome
from curriculum.teacher import LedgerTeacher
from experiments.callbacks import CALLBACKS
from experiments.errors import ConfigError, refuse_non_finite, refuse_of_other_kinds, refuse_unknown, refusing, wanted
from policy.config import (
    ALGORITHM_CONFIGS,
    EMBEDDED,
    ClusterConfig,
    CriticKind,
    EngineConfig,
    EngineDtype,
    LearnerConfig,
    LoraConfig,
    PpoConfig,
    PriorConfig,
    RolloutConfig,
)
from policy.rollout.dialogue import RolloutGroup
from simulator.listener import Register
from simulator.llm.config import EndpointConfig
from simulator.reward import REWARD_TERMS
from simulator.rule_user import RuleUserConfig
from simulator.settings import SETTINGS
from simulator.users import USERS


def require_consistent(config: ExperimentConfig) -> None:
    """Raises where settings of different groups contradict each other.

    Raises:
        ValueError: says which, and what to change.
    """
    if config.policy.system_prompt and config.policy.is_embedded:
        raise ValueError(
            f"policy.system_prompt must be empty for the embedded policy, which was taught none, got {config.policy.system_prompt!r}"
        )
    config.algorithm.require(config.learner)
    config.resampling.require(config.teacher.kind)
    require_reward(config)
    require_patience(config)
    require_adapters(config)
    require_correction(config)
    if config.learner.micro_batch_tokens < config.rollout.max_context:
        raise ValueError(
            f"learner.micro_batch_tokens must be at least rollout.max_context={config.rollout.max_context}, "
            f"got {config.learner.micro_batch_tokens}: dialogues are never cut, and a single one could be larger than the micro-batch; "
            "raise the one or lower the other"
        )
    if config.policy.keep_thoughts is False:
        config.algorithm.require_whole_dialogues()
    if isinstance(config.algorithm, PpoConfig) and 0 < config.budget.steps <= config.algorithm.critic_warmup_steps:
        raise ValueError(
            f"algorithm.critic_warmup_steps must be < budget.steps={config.budget.steps}, got {config.algorithm.critic_warmup_steps}: "
            "the policy would never be trained; lower the one or raise the other"
        )


def require_reward(config: ExperimentConfig) -> None:
    """Raises where the reward is made of what its user does not tell, or tells more than it shall.

    Raises:
        ValueError: a term that rests on strategies without a user that names them, or credit by turn beside one bit a dialogue.
    """
    for name, share in config.rollout.reward_terms.items():
        if share and REWARD_TERMS[name].reads_strategies and not isinstance(config.simulator, RuleUserConfig):
            raise ValueError(f"rollout.reward_terms.{name} must be 0 with a user that names no strategies it heard, got {share!r}")
    if config.rollout.binary_reward_at > 0.0 and getattr(config.algorithm, "turn_credit", 0.0) > 0.0:
        raise ValueError(
            f"algorithm.turn_credit must be 0 with rollout.binary_reward_at={config.rollout.binary_reward_at:g}, got "
            f"{config.algorithm.turn_credit!r}: it would tell each reply what it changed, which sparse feedback does not know"
        )


def require_adapters(config: ExperimentConfig) -> None:
    """Raises where only adapters are trained and something needs the weights beneath them.

    Raises:
        ValueError: a critic that shares the frozen layers.
    """
    if not config.policy.lora.rank:
        return
    if isinstance(config.algorithm, PpoConfig) and config.algorithm.critic is CriticKind.SHARED:
        raise ValueError(
            f"algorithm.critic must be separate with policy.lora.rank={config.policy.lora.rank}, got shared: "
            "the layers that both would read are frozen; take a critic of its own, or no adapters"
        )


def require_patience(config: ExperimentConfig) -> None:
    """Raises where dialogues would fail before anybody could tell that their user is away.

    Raises:
        ValueError: a dialogue may not take longer than one of its questions may wait.
    """
    user, rollout = config.simulator, config.rollout
    if isinstance(user, EndpointConfig) and rollout.outage_s > 0 and rollout.dialogue_timeout_s <= user.max_wait_s:
        raise ValueError(
            f"rollout.dialogue_timeout_s must be above simulator.max_wait_s={user.max_wait_s:g} "
            f"with rollout.outage_s={rollout.outage_s:g}, got {rollout.dialogue_timeout_s:g}: "
            "dialogues would fail before an outage shows; raise the one or lower the other"
        )


def require_correction(config: ExperimentConfig) -> None:
    """Raises where tokens of older weights would be taken for the learner's own.

    Raises:
        ValueError: logprobs are recomputed with the weights of now, and nothing makes up for the difference.
    """
    if config.rollout.max_staleness and config.learner.recompute_logprobs and not config.algorithm.corrects:
        raise ValueError(
            "algorithm.importance_correction must be token where logprobs are recomputed and "
            f"rollout.max_staleness={config.rollout.max_staleness}, got none: tokens of older weights would count as the learner's own; "
            "correct them, or set learner.recompute_logprobs=false"
        )


FOLDER = Path(__file__).parent
STUDIES = FOLDER.parent / "studies"


def experiments() -> dict[str, str]:
    """What each experiment is about, by name."""
    return {
        name: path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].lstrip("# ") for name, path in sorted(_files().items())
    }


def path_of(experiment: str) -> Path:
    """The file of an experiment."""
    return _files().get(experiment, FOLDER / f"{experiment}.yaml")


def import_study(experiment: str) -> None:
    """Imports the study that an experiment belongs to, which registers what its settings name; nothing for one of the core."""
    folder = path_of(experiment).parent
    if folder.parent == STUDIES and (folder / "__init__.py").is_file():
        importlib.import_module(f"studies.{folder.name}")


def _files() -> dict[str, Path]:
    return {path.stem: path for path in (*STUDIES.glob("*/*.yaml"), *FOLDER.glob("*.yaml"))}


class Contrast(StrEnum):
    """What siblings must differ in."""

    SUCCESS = "success"
    """One pleased its user and another did not, as one answer is right and another wrong."""
    REWARD = "reward"
    """Any two rewards; where these are graded nearly every group has that contrast."""


@dataclass(config=SETTINGS)
class ResamplingConfig:
    """Whether groups without contrast are replaced (`resampling.*`)."""

    max_rounds: int = 0
    """>= 0: further rounds of groups that a step may play; 0 trains on what came, all of it."""
    contrast: Contrast = Contrast.SUCCESS
    """What siblings must differ in: success or reward."""

    def __post_init__(self) -> None:
        if self.max_rounds < 0:
            raise ValueError(f"resampling.max_rounds must be >= 0, got {self.max_rounds!r}; 0 replaces no group")

    @property
    def enabled(self) -> bool:
        """Whether any group is replaced."""
        return self.max_rounds > 0

    def with_contrast(self, groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome]) -> list[RolloutGroup]:
        """The groups that may be trained on: all of them where none is replaced.

        Args:
            outcomes: of these groups, in their order.
        """
        pairs = zip(groups, outcomes, strict=True)
        return [group for group, outcome in pairs if not self.enabled or self.differ(outcome)]

    def differ(self, outcome: GroupOutcome) -> bool:
        """Whether survivors of a group fared differently."""
        fared = outcome.successes if self.contrast is Contrast.SUCCESS else outcome.rewards
        return len({fared[i] for i in outcome.surviving}) > 1

    def require(self, teacher_kind: str) -> None:
        """Refuses a teacher whose plan further rounds would hurry.

        Raises:
            ValueError: it is one.
        """
        teacher: type[LedgerTeacher] = TEACHERS[teacher_kind][1]
        if self.enabled and teacher.plans_by_proposal:
            raise ValueError(
                f"resampling.max_rounds must be 0 with teacher.kind={teacher_kind}, got {self.max_rounds!r}: "
                "its plan goes on with each proposal; take a teacher without a plan"
            )


@dataclass(config=SETTINGS)
class ProbeConfig:
    """The panel (`probe.*`)."""

    num_dialogues: int = 25
    """>= 0: dialogues on the panel; 0 switches it off."""
    every: int = 5
    """> 0: steps between two looks."""
    at_start: bool = False
    """Whether the panel is also played with the first step's rollouts, before any update: a policy may be gone before the first look."""
    num_contexts: int = 16
    """0 or [2, 64]: first replies of the panel that are scored in the contexts of all of them, for `probe/retrieval_accuracy`; with 16 that
    is 256 short passes of the model a look, 0 leaves it out."""
    teaches: bool = True
    """Whether the teacher hears how the panel fared. Only one that looks for forgetting does anything about it (frontier); false leaves
    the panel a yardstick and nothing else."""

    def __post_init__(self) -> None:
        if self.num_dialogues < 0:
            raise ValueError(f"probe.num_dialogues must be >= 0, got {self.num_dialogues!r}; 0 switches the panel off")
        if self.num_contexts != 0 and not 2 <= self.num_contexts <= 64:
            raise ValueError(f"probe.num_contexts must be 0 or in [2, 64], got {self.num_contexts!r}")
        if self.every <= 0:
            raise ValueError(f"probe.every must be > 0, got {self.every!r}")

    def is_due(self, step: int) -> bool:
        """Whether the panel is played together with this step's rollouts, with the weights that these are sampled from."""
        return self.num_dialogues > 0 and (step % self.every == 0 or (self.at_start and step == 1))


@dataclass(config=SETTINGS)
class EvaluationConfig:
    """What is asked of the policy on scenarios it never practised."""

    strictness: list[float] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    """Each in [0, 1], distinct, at least one: the columns of the grid."""
    num_scenarios: int = 0
    """>= 0: held-out scenarios in the full grid, spread over the families; 0 means all of them."""
    during_scenarios: int = 24
    """>= 1: scenarios in the smaller fixed grid that is played at every tenth of the budget."""
    temperature: float = 1.0
    """>= 0, at which the policy speaks; 0 is greedy. As in training by default, so that what is judged is what is trained."""
    split: str = "heldout"
    """`heldout` during development; `sealed` once, for a confirmatory result."""

    def __post_init__(self) -> None:
        if not self.strictness or not are_distinct(self.strictness):
            raise ValueError(f"evaluation.strictness must name at least one strictness, each once, got {self.strictness!r}")
        for value in self.strictness:
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"evaluation.strictness must hold values in [0, 1], got {value!r}")
        if self.num_scenarios < 0:
            raise ValueError(f"evaluation.num_scenarios must be >= 0, got {self.num_scenarios!r}; 0 means all")
        if self.during_scenarios < 1:
            raise ValueError(f"evaluation.during_scenarios must be >= 1, got {self.during_scenarios!r}")
        if not self.temperature >= 0.0:
            raise ValueError(f"evaluation.temperature must be >= 0, got {self.temperature!r}; 0 is greedy")
        if self.split not in ("heldout", "sealed"):
            raise ValueError(f"evaluation.split must be 'heldout' or 'sealed', got {self.split!r}; training scenarios judge nothing")


def are_distinct(strictness: Sequence[float]) -> bool:
    """Whether no two of them are the same to four digits, as seeds and names of dialogues have them."""
    return len({f"{d:.4f}" for d in strictness}) == len(strictness)


VARIANTS: dict[str, Mapping[str, tuple[type, Any]]] = {
    "teacher": TEACHERS,
    "algorithm": {kind: (config, None) for kind, config in ALGORITHM_CONFIGS.items()},
    "simulator": USERS,
}
"""Groups of settings whose schema is chosen by their `kind`."""


SEEDS_BELOW = 2**63
"""Torch's generators take no larger seed; one would fail in the middle of a run."""


@dataclass(config=SETTINGS)
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


@dataclass(config=SETTINGS, kw_only=True)
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


@dataclass(config=SETTINGS)
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


@dataclass(config=SETTINGS)
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
