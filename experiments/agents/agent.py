"""Who is evaluated: what the word AGENT means, found out before anything starts and without importing anything heavy.

What an agent is put before: which users, how hard to please, how long; what makes two evaluations comparable.

Complaints about the agent's own server in the words of the command line, and tracebacks in one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from analysis.persona_judge import FLAGS, flag_settings, in_options, model_settings
from analysis.runs import CONFIG, METRICS, RUNS, read_config, setting
from experiments.agents.options import GRID, refuse_given
from experiments.config import are_distinct
from experiments.errors import ConfigError, refusing
from experiments.tasks import EvaluationTask, grid_tasks, spread
from policy.config import EMBEDDED, PriorConfig
from policy.model import check_gguf, check_model_folder, weights_of
from policy.prior import prior_folder
from policy.rollout.chat import RECIPE
from simulator.listener import Register
from simulator.llm.config import DECIDE_NOTHING, check_url
from simulator.llm.prompts import prompts_hash
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import Preset, RuleUserConfig
from simulator.sage.formats import read_profiles
from simulator.sage.user import NativeUser
from simulator.scenario import Scenario, Split
from simulator.scripted import AGENTS
from simulator.user import UserSimulator
from simulator.users import make_user
from simulator.version import world_name, world_of
from simulator.world import Bank, load_bank

PRIOR = "prior"
"""First part of a run's folder: a mistyped one is no id of the hub."""
ENDS = 2**20
"""Bytes from either end of a file of weights that its fingerprint is taken of: training moves every weight."""


class Kind(StrEnum):
    """How an agent is reached."""

    SCRIPTED = "scripted"
    MODEL = "model"
    """Weights that an engine in this process loads."""
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Who is evaluated."""

    kind: Kind
    name: str
    """Letters, digits and . _ + -: also that of its folder."""
    source: str
    """Where it was found: a folder, an address, a hub's id, a scripted agent's name."""
    folder: Path | None = None
    """Of its weights, where they are here already."""
    run_config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run that it comes from; empty for others."""
    fingerprint: str = ""
    """16 hex digits that change with its weights; empty where they cannot be seen."""

    @property
    def is_embedded(self) -> bool:
        """Whether it is the small embedded policy, before or after training."""
        if self.source == PRIOR or setting(self.run_config, "policy.model") == EMBEDDED:
            return True
        return self.folder is not None and (self.folder / RECIPE).is_file()

    def recorded(self, name: str, default: Any) -> Any:
        """A setting of the run it comes from, by dotted name, or the default."""
        return setting(self.run_config, name, default)

    def told(self, system: str | None) -> str:
        """The prompt before a dialogue: this one, else that of the run it comes from; empty for none."""
        return system if system is not None else str(self.recorded("policy.system_prompt", ""))


def find_agent(word: str, *, name: str | None = None, model: str | None = None) -> Agent:
    """What AGENT means.

    Args:
        name: what to call it instead of what follows from AGENT.
        model: the model's name at a server.

    Raises:
        ConfigError: it means nothing, or lacks something.
    """
    if name is not None and name != as_name(name):
        raise ConfigError(f"--name must consist of letters, digits and . _ + -, got {name!r}; {as_name(name)!r} would do")
    if model is not None and "://" not in word:
        raise ConfigError(f"--model goes with the address of a server, got {model!r} with AGENT {word!r}")
    if word in AGENTS:
        return Agent(kind=Kind.SCRIPTED, name=name or word, source=word)
    if word == PRIOR:
        # Of the recipe, as it may have to be built first.
        recipe = prior_folder(PriorConfig()).name.removeprefix("prior-")
        return Agent(kind=Kind.MODEL, name=name or PRIOR, source=PRIOR, fingerprint=recipe)
    if "://" in word:
        return server(word, name=name, model=model)
    folder = Path(word).expanduser()
    if folder.is_dir():
        return from_folder(folder, name=name)
    if folder.parts[0] == RUNS or (folder.parts[1:] and folder.parent.is_dir()):
        raise ConfigError(f"AGENT must be a run's folder, got {word!r}; there is no such folder in {folder.parent}")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", word):
        return Agent(kind=Kind.MODEL, name=name or as_name(word), source=word)
    scripted = ", ".join(AGENTS)
    raise ConfigError(f"AGENT must be a folder, a server's address, a Hugging Face id, {PRIOR}, or one of {scripted}, got {word!r}")


def server(url: str, *, name: str | None, model: str | None) -> Agent:
    """An agent behind a server."""
    try:
        check_url(url)
    except ValueError as error:
        raise ConfigError(str(error).replace("simulator.urls", "AGENT").replace("simulator.api_key_env", "--key-env")) from error
    if not model:
        raise ConfigError(f"--model must name the model that {url} serves, got none")
    return Agent(kind=Kind.SERVER, name=name or as_name(model), source=url)


def from_folder(folder: Path, *, name: str | None) -> Agent:
    """A run, a checkpoint or a Hugging Face model.

    Raises:
        ConfigError: it is none of them, or a run without a checkpoint.
    """
    if (folder / CONFIG).is_file() and (folder / METRICS).is_file():
        from policy.checkpoint import newest_checkpoint

        newest = newest_checkpoint(folder, put_back=False)
        if newest is None:
            raise ConfigError(f"AGENT must have a whole checkpoint, got the run {str(folder)!r}, in which none is whole")
        folder = newest
    with refusing():
        check_gguf(folder, called="AGENT")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"AGENT must be a run's folder, a checkpoint or a Hugging Face model, got {str(folder)!r} without config.json")
    if not any(weights_of(folder)):
        raise ConfigError(f"AGENT must hold weights (*.safetensors), got {str(folder)!r}, which has none")
    with refusing():
        check_model_folder(folder, called="AGENT")
    run = folder.absolute().parents[1] if folder.absolute().parent.name == "checkpoints" else None
    is_of_run = run is not None and (run / CONFIG).is_file()
    with refusing():
        config = read_config(run / CONFIG) if run is not None and is_of_run else {}
    called = name_in(run, config, step=folder.name) if run is not None and is_of_run else folder.absolute().name
    return Agent(
        kind=Kind.MODEL,
        name=name or as_name(called),
        source=str(folder),
        folder=folder,
        run_config=config,
        fingerprint=fingerprint(folder),
    )


def name_in(run: Path, config: Mapping[str, Any], *, step: str) -> str:
    """What a checkpoint of a run is called, its experiment first: two experiments may share arms, seeds and steps.

    Args:
        run: `.../<experiment>/<name>`, or of a sweep `.../<experiment>/<sweep>/<arm>/seed_<n>`.
    """
    experiment = str(config.get("experiment") or "")
    return "-".join(filter(None, (experiment if experiment != run.parent.name else "", run.parent.name, run.name, step)))


def fingerprint(folder: Path) -> str:
    """16 hex digits over a model's config.json and, of each file of weights, name, size and both ends."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights_of(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(ENDS))
            file.seek(max(0, size - ENDS))
            digest.update(file.read(ENDS))
    return digest.hexdigest()[:16]


def as_name(text: str) -> str:
    """The text as a folder may be called."""
    return re.sub(r"[^\w.+-]+", "-", text).strip(".-") or "agent"


NATIVE_STRICTNESS = (0.35,)
"""VANILLA: users of native profiles have one difficulty, which it stands for."""
TURNS, NATIVE_TURNS = 8, 9
"""Replies that are answered: the built-in world's, and those of SAGE's ten that are scored."""
BUILT_IN, PROFILES = "built-in heldout", "profiles"
"""What scenarios are called in a setting: a file of profiles is told from another by what it holds."""
NO_DIFFERENCE = (*DECIDE_NOTHING, "profiles", "heldout_profiles")
"""Settings of a user that a model plays which decide nothing that it says; whose part it plays stands in the bank."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Scenarios, user and length of an evaluation."""

    bank: Bank
    bank_name: str
    """`built-in heldout`, or `profiles`."""
    bank_file: str
    """The name of the file of profiles; empty for the built-in world. It decides nothing."""
    bank_hash: str
    scenarios: tuple[Scenario, ...]
    strictness: tuple[float, ...]
    max_turns: int
    user_kind: str
    """`rule` or `llm`."""
    user_config: RuleUserConfig | LLMUserConfig

    def tasks(self) -> list[EvaluationTask]:
        """A task for each scenario at each strictness, with the seeds that every agent gets."""
        return grid_tasks(self.scenarios, self.strictness)

    def user(self) -> UserSimulator:
        """The simulated user; building it calls nobody."""
        if self.is_native and isinstance(self.user_config, RuleUserConfig):
            return NativeUser(self.user_config)
        return make_user(self.user_kind, self.user_config)

    @property
    def is_native(self) -> bool:
        """Whether the users are profiles of a file."""
        return self.bank_name != BUILT_IN

    def register(self) -> Register:
        """The language that its replies are read in."""
        return getattr(self.user_config, "register", None) or Register.OPEN

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: everything that two evaluations must share to be compared."""
        user = {key: value for key, value in asdict(self.user_config).items() if key not in NO_DIFFERENCE}
        if isinstance(self.user_config, RuleUserConfig):
            decided = {"world": world_of(self.user_config)}
        else:
            decided = {"prompts_hash": prompts_hash()}
        chosen = hashlib.sha256("\n".join(scenario.scenario_id for scenario in self.scenarios).encode()).hexdigest()[:16]
        return {
            "bank": self.bank_name,
            "bank_hash": self.bank_hash,
            "num_scenarios": len(self.scenarios),
            "scenarios_hash": chosen,
            "strictness": list(self.strictness),
            "max_turns": self.max_turns,
            "user": {"kind": self.user_kind, **user, **decided},
        }


def setting_id(setting: Mapping[str, Any]) -> str:
    """12 hex digits; evaluations of the same setting have the same."""
    return hashlib.sha256(json.dumps(setting, sort_keys=True, default=str).encode()).hexdigest()[:12]


def make_setting(options: argparse.Namespace, agent: Agent) -> Setting:
    """The setting that the options and the agent's own run describe.

    Raises:
        ConfigError: says which option must be otherwise.
    """
    if options.split == Split.SEALED:
        raise ConfigError(
            "--split must be heldout, got 'sealed': the sealed half judges a teacher once, in the sweep confirmation (docs/protocol.md)"
        )
    strictness = tuple(options.strictness or (NATIVE_STRICTNESS if options.profiles else GRID))
    wrong = [value for value in strictness if not 0.0 <= value <= 1.0]
    if wrong or not are_distinct(strictness):
        raise ConfigError(f"--strictness must hold values in [0, 1], each once, got {' '.join(map('{:g}'.format, strictness))}")
    for name, least in (("num_scenarios", 0), ("samples", 1), ("max_turns", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    user_config = make_user_config(options, agent)
    if options.profiles and getattr(user_config, "preset", None) is Preset.SAGE and len(strictness) > 1:
        raise ConfigError(f"--strictness must be one value with --preset sage, which knows no difficulty, got {len(strictness)}")
    bank, name, digest = bank_of(options)
    if name == PROFILES and options.user == "rule":
        require_openings(bank, options)
    scenarios = bank.scenarios(Split(options.split) if not options.profiles else Split.HELDOUT)
    turns = NATIVE_TURNS if options.profiles else int(agent.recorded("rollout.max_turns", TURNS))
    return Setting(
        bank=bank,
        bank_name=name,
        bank_file=Path(options.profiles).name if options.profiles else "",
        bank_hash=digest,
        scenarios=tuple(spread(scenarios, options.num_scenarios)),
        strictness=strictness,
        max_turns=options.max_turns or turns,
        user_kind=options.user,
        user_config=user_config,
    )


def bank_of(options: argparse.Namespace) -> tuple[Bank, str, str]:
    """The scenarios, what to call them, and 16 hex digits of what they say."""
    if options.profiles is None:
        return load_bank(), BUILT_IN, world_name(Register.WORLD)
    if options.split != "heldout":
        raise ConfigError(f"--split goes with the built-in world, got {options.split!r} with --profiles")
    path = Path(options.profiles).expanduser()
    try:
        scenarios = read_profiles(path, split=Split.HELDOUT)
    except ValueError as error:
        raise ConfigError(f"--profiles: {error}") from error
    if not scenarios:
        raise ConfigError(f"--profiles must hold at least one profile, got none in {path}")
    digest = hashlib.sha256(json.dumps([scenario.to_dict() for scenario in scenarios], sort_keys=True).encode()).hexdigest()
    return Bank(by_id={scenario.scenario_id: scenario for scenario in scenarios}), PROFILES, digest[:16]


def require_openings(bank: Bank, options: argparse.Namespace) -> None:
    """Refuses profiles without first words where no model can make them up.

    Raises:
        ConfigError: names one of them.
    """
    silent = [scenario.scenario_id for scenario in bank.by_id.values() if not scenario.opening.strip()]
    if silent:
        raise ConfigError(
            f"--profiles must have a first_talk each with --user rule, got {len(silent)} of {len(bank.by_id)} without in "
            f"{options.profiles}, the first {silent[0]}; --user llm makes them up"
        )


def make_user_config(options: argparse.Namespace, agent: Agent) -> RuleUserConfig | LLMUserConfig:
    """The user's settings: the options', else those of the agent's run, else the defaults."""
    try:
        return llm_config(options, agent) if options.user == "llm" else rule_config(options, agent)
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--user-" if options.user == "llm" else "--")) from error


def rule_config(options: argparse.Namespace, agent: Agent) -> RuleUserConfig:
    """Of the embedded user."""
    refuse_given(options, ("user_url", "user_model", *(f"user_{flag}" for flag in FLAGS), "one_call"), "goes with --user llm")
    preset = Preset(options.preset or ("sage" if options.profiles else "training"))
    if preset is Preset.SAGE and not options.profiles:
        raise ConfigError("--preset must be training for the built-in world, got 'sage', whose numbers are of native profiles")
    usual: dict[str, Any] = {}
    if preset is Preset.TRAINING:
        usual = {name: agent.recorded(f"simulator.{name}", getattr(RuleUserConfig, name)) for name in ("start_emotion", "momentum")}
    given = {name: getattr(options, name) for name in ("start_emotion", "momentum") if getattr(options, name) is not None}
    return RuleUserConfig(**{**usual, **given}, preset=preset, register=register_for(options, agent))


def register_for(options: argparse.Namespace, agent: Agent) -> Register:
    """What was asked for; else the language in which the agent learnt to speak."""
    if options.register:
        return Register(options.register)
    is_of_world = (agent.kind is Kind.SCRIPTED or agent.is_embedded) and not options.profiles
    return Register(agent.recorded("simulator.register", "world" if is_of_world else "open"))


def llm_config(options: argparse.Namespace, agent: Agent) -> LLMUserConfig:
    """Of a user that a model plays."""
    refuse_given(options, ("preset", "register", "momentum"), "goes with --user rule")
    if not options.user_model:
        raise ConfigError("--user-model must name the model that plays the user, got none")
    start = options.start_emotion
    if start is None:
        start = agent.recorded("simulator.start_emotion", LLMUserConfig.start_emotion)
    return LLMUserConfig(**model_settings(flag_settings(options, "user")), one_call=options.one_call, start_emotion=start)


def of_agent(message: str) -> str:
    """The message with options in the place of settings; the address of the agent's server is AGENT."""
    return in_options(message).replace("--url", "AGENT").replace("the simulated user", "the agent")


def last_line(error: str) -> str:
    """What a traceback ends with, which says what was wrong; the text itself where it is one line."""
    return error.strip().rpartition("\n")[2].strip()
