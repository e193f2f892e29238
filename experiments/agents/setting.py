"""What an agent is put before: which users, how hard to please, how long; what makes two evaluations comparable."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.persona_judge import FLAGS, flag_settings, in_options, model_settings
from experiments.agents.options import GRID, refuse_given
from experiments.agents.who import Agent, Kind
from experiments.evaluate import EvaluationTask, are_distinct, grid_tasks, spread
from experiments.keys import ConfigError
from simulator.listener import Register
from simulator.llm.config import DECIDE_NOTHING
from simulator.llm.prompts import prompts_hash
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import Preset, RuleUserConfig
from simulator.sage.formats import read_profiles
from simulator.sage.user import NativeUser
from simulator.scenario import Scenario, Split
from simulator.user import UserSimulator
from simulator.users import make_user
from simulator.version import world_name, world_of
from simulator.world import Bank, load_bank

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
