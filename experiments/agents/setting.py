"""Setting of an evaluation: its scenarios, their simulated user, difficulty and length."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.agents.agent import Agent, Kind
from experiments.agents.options import GRID, naming_options, refuse_given
from experiments.config import are_distinct
from experiments.errors import ConfigError
from experiments.tasks import EvaluationTask, grid_tasks, spread
from simulator.listener import Register
from simulator.llm.config import DECIDE_NOTHING
from simulator.llm.options import FLAGS, flag_settings, in_options
from simulator.llm.prompts import prompts_hash
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import Preset, RuleUserConfig
from simulator.sage.formats import read_profiles
from simulator.sage.user import NativeUser
from simulator.scenario import VANILLA, Scenario, Split
from simulator.user import UserSimulator
from simulator.users import make_user
from simulator.version import world_name, world_of
from simulator.world import Bank, load_bank

TURNS, NATIVE_TURNS = 8, 9
"""Answered replies: of the built-in world, and those of SAGE's ten that are scored."""
BUILT_IN, PROFILES = "built-in heldout", "profiles"
NOT_COMPARED = (*DECIDE_NOTHING, "profiles", "heldout_profiles")
"""Settings of a user that a model plays which do not decide its words; the profiles are in `bank_hash`."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Scenarios, user and length of an evaluation."""

    bank: Bank
    bank_name: str
    """`built-in heldout`, or `profiles`."""
    bank_file: str
    """Name of the file of profiles, for messages; empty for the built-in world."""
    bank_hash: str
    """World version, or 16 hex digits over the profiles."""
    scenarios: tuple[Scenario, ...]
    strictness: tuple[float, ...]
    max_turns: int
    user_kind: str
    """`rule` or `llm`."""
    user_config: RuleUserConfig | LLMUserConfig

    def tasks(self) -> list[EvaluationTask]:
        """A task for each scenario at each strictness, with the same seeds for every agent."""
        return grid_tasks(self.scenarios, self.strictness)

    def user(self) -> UserSimulator:
        """The simulated user; building it sends no request."""
        if self.bank_name == PROFILES and isinstance(self.user_config, RuleUserConfig):
            return NativeUser(self.user_config)
        return make_user(self.user_kind, self.user_config)

    @property
    def register(self) -> Register:
        """The language that replies are read in."""
        return getattr(self.user_config, "register", None) or Register.OPEN

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: everything that two evaluations must share to be compared."""
        user = {key: value for key, value in asdict(self.user_config).items() if key not in NOT_COMPARED}
        is_rule = isinstance(self.user_config, RuleUserConfig)
        version = {"world": world_of(self.user_config)} if is_rule else {"prompts_hash": prompts_hash()}
        ids = "\n".join(scenario.scenario_id for scenario in self.scenarios)
        return {
            "bank": self.bank_name,
            "bank_hash": self.bank_hash,
            "num_scenarios": len(self.scenarios),
            "scenarios_hash": hashlib.sha256(ids.encode()).hexdigest()[:16],
            "strictness": list(self.strictness),
            "max_turns": self.max_turns,
            "user": {"kind": self.user_kind, **user, **version},
        }


def setting_id(setting: Mapping[str, Any]) -> str:
    """12 hex digits; evaluations of the same setting have the same."""
    return hashlib.sha256(json.dumps(setting, sort_keys=True, default=str).encode()).hexdigest()[:12]


def make_setting(options: argparse.Namespace, agent: Agent) -> Setting:
    """The setting that the options and the agent's own run describe.

    Raises:
        ValueError: names the option that is wrong.
    """
    if options.split == Split.SEALED:
        raise ConfigError(
            "--split must be heldout, got 'sealed': the sealed half judges a teacher once, in the sweep confirmation (docs/protocol.md)"
        )
    # Users of native profiles have one difficulty, VANILLA's.
    strictness = tuple(options.strictness or ((VANILLA.strictness,) if options.profiles else GRID))
    if not all(0.0 <= value <= 1.0 for value in strictness) or not are_distinct(strictness):
        raise ConfigError(f"--strictness must hold values in [0, 1], each once, got {' '.join(map('{:g}'.format, strictness))}")
    with naming_options(partial(in_options, prefix="--user-" if options.user == "llm" else "--")):
        user_config = _llm_config(options, agent) if options.user == "llm" else _rule_config(options, agent)
    if options.profiles and getattr(user_config, "preset", None) is Preset.SAGE and len(strictness) > 1:
        raise ConfigError(f"--strictness must be one value with --preset sage, which has no difficulty, got {len(strictness)}")
    bank, digest = (load_bank(), world_name(Register.WORLD)) if not options.profiles else _read_bank(options.profiles.expanduser())
    silent = [scenario.scenario_id for scenario in bank.by_id.values() if not scenario.opening.strip()]
    if silent and options.user == "rule":
        raise ConfigError(
            f"--profiles must have a first_talk each with --user rule, got {len(silent)} of {len(bank.by_id)} without in "
            f"{options.profiles}, the first {silent[0]}; --user llm makes them up"
        )
    default_turns = NATIVE_TURNS if options.profiles else int(agent.run_setting("rollout.max_turns", TURNS))
    return Setting(
        bank=bank,
        bank_name=PROFILES if options.profiles else BUILT_IN,
        bank_file=options.profiles.name if options.profiles else "",
        bank_hash=digest,
        scenarios=tuple(spread(bank.scenarios(Split.HELDOUT), options.num_scenarios)),
        strictness=strictness,
        max_turns=options.max_turns or default_turns,
        user_kind=options.user,
        user_config=user_config,
    )


def _read_bank(path: Path) -> tuple[Bank, str]:
    """The profiles of a file, and 16 hex digits over them."""
    with naming_options("--profiles: {}".format):
        scenarios = read_profiles(path, split=Split.HELDOUT)
    if not scenarios:
        raise ConfigError(f"--profiles must hold at least one profile, got none in {path}")
    digest = hashlib.sha256(json.dumps([scenario.to_dict() for scenario in scenarios], sort_keys=True).encode()).hexdigest()
    return Bank(by_id={scenario.scenario_id: scenario for scenario in scenarios}), digest[:16]


def _rule_config(options: argparse.Namespace, agent: Agent) -> RuleUserConfig:
    """Of the embedded user: the options', else those of the agent's run, else the defaults."""
    refuse_given(options, ("user_url", *(f"user_{flag}" for flag in FLAGS), "one_call"), "goes with --user llm")
    preset = Preset(options.preset or ("sage" if options.profiles else "training"))
    if preset is Preset.SAGE and not options.profiles:
        raise ConfigError("--preset must be training for the built-in world, got 'sage', whose numbers are of native profiles")
    values = {name: getattr(options, name) for name in ("start_emotion", "momentum")}
    if preset is Preset.TRAINING:
        of_run = {name: agent.run_setting(f"simulator.{name}", None) for name in values}
        values = {name: of_run[name] if value is None else value for name, value in values.items()}
    speaks_world = (agent.kind is Kind.SCRIPTED or agent.is_embedded) and not options.profiles
    register = options.register or agent.run_setting("simulator.register", "world" if speaks_world else "open")
    given = {name: value for name, value in values.items() if value is not None}
    return RuleUserConfig(**given, preset=preset, register=Register(register))


def _llm_config(options: argparse.Namespace, agent: Agent) -> LLMUserConfig:
    """Of a user that a model plays."""
    refuse_given(options, ("preset", "register", "momentum"), "goes with --user rule")
    if not options.user_model:
        raise ConfigError("--user-model must name the model that plays the user, got none")
    start = options.start_emotion if options.start_emotion is not None else agent.run_setting("simulator.start_emotion", None)
    given = {"start_emotion": start} if start is not None else {}
    return LLMUserConfig(**flag_settings(options, "user"), one_call=options.one_call, **given)
