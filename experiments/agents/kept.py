"""What an evaluation's folder says of itself, so that it is only ever gone on with as it was begun."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.evaluated import RELIABILITY, in_words, is_same_agent, read_probe
from analysis.runs import CONFIG, PROVENANCE, RUNS, leaves, read_config
from experiments.agents.reach import ANSWERS
from experiments.agents.setting import Setting
from experiments.agents.speech import MODEL_TOKENS, speech_of
from experiments.agents.who import Agent, Kind
from experiments.keys import ConfigError
from experiments.preflight import check_writable
from experiments.summary import git_commit, versions

EXPERIMENT = "evaluate"
PROMPTS_HASH = "setting.user.prompts_hash"


def folder_of(options: argparse.Namespace, agent: Agent) -> Path:
    """Where an agent's evaluation lies.

    Raises:
        ConfigError: it cannot be written there.
    """
    folder: Path = options.out or Path(RUNS) / EXPERIMENT / agent.name
    check_writable(folder, called="--out")
    return folder


def check_folder(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses a folder that holds an evaluation of something else.

    Raises:
        ConfigError: says what differs.
    """
    path = folder / CONFIG
    if not path.is_file():
        # A probe of reliability may have come first.
        if folder.is_dir() and {path.name for path in folder.iterdir()} - {RELIABILITY, ANSWERS}:
            raise ConfigError(f"--out must be new or an evaluation's folder, got {str(folder)!r}, which holds something else")
        check_agent(folder, {"name": config["name"], **config["agent"]})
        return
    before, now = dict(leaves(read_config(path))), dict(leaves(config))
    # What decides of the user stands in `setting`; the rest of its settings, such as addresses, may change.
    deciding = [name for name in sorted({*before, *now}) if not name.startswith((PROVENANCE, "simulator."))]
    differ = [name for name in deciding if before.get(name) != now.get(name)]
    # Evaluations from before prompts had a hash go on.
    differ = [name for name in differ if name != PROMPTS_HASH or before.get(name)]
    if now.get("agent.fingerprint") and "agent.fingerprint" not in differ:
        # The weights tell who it is; where they lie may be written otherwise, or have been moved.
        differ = [name for name in differ if name != "agent.source"]
    if differ:
        name = differ[0]
        was = f"{name} {before.get(name)!r} there and {now.get(name)!r} now"
        raise ConfigError(f"--out must be the folder of this evaluation, got {str(folder)!r}, which is another's ({was}); take another")


def check_agent(folder: Path, agent: Mapping[str, Any]) -> None:
    """Refuses a folder that holds an evaluation or a probe of another agent.

    Args:
        agent: as `is_same_agent` takes it, with its name.

    Raises:
        ValueError: says whose it is, or that a file of it cannot be read.
    """
    kept: dict[str, Mapping[str, Any]] = {}
    if (folder / RELIABILITY).is_file():
        kept[RELIABILITY] = read_probe(folder / RELIABILITY)["agent"]
    config = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if config.get("experiment") == EXPERIMENT:
        kept[CONFIG] = {"name": config["name"], **config["agent"]}
    for name, other in kept.items():
        if not is_same_agent(agent, other):
            got = f"{str(folder)!r}, whose {name} is of {in_words(other)}"
            raise ConfigError(f"--out must be a folder of this agent ({in_words(agent)}), got {got}; take another with --out or --name")


def config_of(options: argparse.Namespace, agent: Agent, setting: Setting) -> dict[str, Any]:
    """What `config.yaml` keeps: everything that decides the dialogues, so that an evaluation is only ever gone on with as it was begun."""
    spoken = {"temperature": options.temperature, "system": agent.told(options.system), "samples": options.samples, "seed": options.seed}
    if agent.kind is Kind.SERVER:
        spoken |= {"max_tokens": options.max_tokens or MODEL_TOKENS, "extra_body": options.extra_body, "send_seed": not options.no_seed}
    if agent.kind is Kind.MODEL:
        speech = speech_of(options, agent, max_turns=setting.max_turns)
        rollout = speech.rollout
        spoken |= {"max_new_tokens": rollout.max_new_tokens, "max_context": rollout.max_context, "dtype": str(speech.engine.dtype)}
        spoken |= {"thinking": speech.engine.thinking}
    config = {
        "experiment": EXPERIMENT,
        "name": agent.name,
        "agent": {"kind": str(agent.kind), "source": agent.source, "model": options.model, "fingerprint": agent.fingerprint, **spoken},
        "setting": setting.to_dict(),
        "simulator": {"kind": setting.user_kind, **asdict(setting.user_config)},
        PROVENANCE: {"versions": versions(), "git_commit": git_commit()},
    }
    return dict(json.loads(json.dumps(config)))


def about(agent: Agent, config: Mapping[str, Any]) -> dict[str, Any]:
    """The agent as `agent.json` names it, with how it was asked."""
    return {"name": agent.name, **config["agent"], **({"run": agent.recorded("name", "")} if agent.run_config else {})}
