"""`python -m experiments evaluate AGENT`: refuses what cannot work, plays what is missing, and says what came out."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from analysis.persona_source import flag_settings, model_settings
from analysis.runs import CONFIG, METRICS, PROVENANCE, read_config
from experiments.agents import agent_json
from experiments.agents.judge import CapabilityJudge, judged
from experiments.agents.players import Played, Player, Scripted, ServerAgent, WordsPlayer, server_config
from experiments.agents.playing import Dialogues, play_all
from experiments.agents.setting import Setting, make_setting
from experiments.agents.speech import speech_of
from experiments.agents.who import PRIOR, Agent, Kind, find_agent
from experiments.agents.wording import in_options
from experiments.exit_code import ExitCode
from experiments.interruption import Interruption
from experiments.keys import ConfigError
from experiments.preflight import check_writable
from experiments.summary import git_commit, versions
from simulator.bank import preset_hash, world_hash
from simulator.dialogue import Outcome
from simulator.endpoint_config import EndpointConfig, TokenLimit
from simulator.endpoints import Endpoints, check_endpoints
from simulator.ladder import AGENTS
from simulator.user import Counts, UserSimulator

ANSWERS = "answers"
"""Folder, in an evaluation's own, of what the agent's server answered: a server may serve another agent under the same name tomorrow."""
EXPERIMENT = "evaluate"
DIALOGUES_AT_ONCE, AT_A_SERVER = 64, 16
SERVER_TOKENS = 800


def evaluate(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    try:
        agent = find_agent(options.agent, name=options.name, model=options.model)
        setting = make_setting(options, agent)
        check_options(options, agent)
        folder = options.out or Path("runs") / EXPERIMENT / agent.name
        config = config_of(options, agent, setting)
        check_folder(folder, config)
        if options.dry_run:
            print(plan(options, agent, setting, folder))
            return ExitCode.FINISHED
        return run(options, agent, setting, folder, config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.REFUSED
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print("interrupted; what had ended by then is kept, and the same command goes on", file=sys.stderr)
        return ExitCode.INTERRUPTED


def check_options(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses options that contradict each other or the kind of agent.

    Raises:
        ConfigError: says which.
    """
    check_speaking(options)
    if options.profiles and agent.kind is Kind.SCRIPTED:
        raise ConfigError(f"AGENT must be another with --profiles, got {agent.source!r}, which speaks of what the built-in world tells")
    if options.samples > 1 and agent.kind is Kind.SCRIPTED:
        raise ConfigError(f"--samples must be 1 for the scripted {agent.source}, which always says the same to the same user")
    if options.samples > 1 and options.temperature == 0.0:
        raise ConfigError("--samples must be 1 with --temperature 0, which always gives the same dialogue")
    if options.samples > 1 and options.no_seed:
        raise ConfigError("--samples must be 1 with --no-seed: without a seed the same words get the reply that was kept")
    if options.judge_model and options.user == "rule":
        raise ConfigError(
            f"--judge-model goes with --user llm, got {options.judge_model!r}; the embedded user's dialogues are judged by rule"
        )


def check_speaking(options: argparse.Namespace) -> None:
    """Refuses a way of speaking that is out of range.

    Raises:
        ConfigError: says which option.
    """
    if not options.temperature >= 0.0:
        raise ConfigError(f"--temperature must be at least 0, got {options.temperature:g}; 0 is greedy")
    for name in ("max_tokens", "max_context", "concurrency"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def check_folder(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses a folder that cannot be written, or that holds an evaluation of something else.

    Raises:
        ConfigError: says what differs.
    """
    check_writable(folder)
    path = folder / CONFIG
    if not path.is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"--out must be new or an evaluation's folder, got {str(folder)!r}, which holds something else")
        return
    before, now = flat(read_config(path)), flat(config)
    # What decides of the user stands in `setting`; the rest of its settings, such as addresses, may change.
    deciding = [name for name in sorted({*before, *now}) if not name.startswith((PROVENANCE, "simulator."))]
    differ = [name for name in deciding if before.get(name) != now.get(name)]
    if differ:
        name = differ[0]
        was = f"{name} {before.get(name)!r} there and {now.get(name)!r} now"
        raise ConfigError(f"--out must be the folder of this evaluation, got {str(folder)!r}, which is another's ({was}); take another")


def config_of(options: argparse.Namespace, agent: Agent, setting: Setting) -> dict[str, Any]:
    """What `config.yaml` keeps: everything that decides the dialogues, so that an evaluation is only ever gone on with as it was begun."""
    spoken = {"temperature": options.temperature, "system": options.system, "samples": options.samples, "seed": options.seed}
    if agent.kind is Kind.SERVER:
        spoken |= {"max_tokens": options.max_tokens or SERVER_TOKENS, "extra_body": options.extra_body, "send_seed": not options.no_seed}
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
        PROVENANCE: {"versions": versions(), "git_commit": git_commit(), "world_hash": world_hash(), "preset_hash": preset_hash()},
    }
    return dict(json.loads(json.dumps(config)))


def run(options: argparse.Namespace, agent: Agent, setting: Setting, folder: Path, config: Mapping[str, Any]) -> ExitCode:
    """Plays, judges, writes and prints.

    Raises:
        ValueError: a server or a model cannot be worked with; nothing was played.
    """
    user, judge = reached_user(setting), reached_judge(options)
    dialogues = Dialogues(folder, setting, samples=options.samples)
    before = dialogues.resume()
    missing = [pair for key, pair in dialogues.tasks.items() if key not in before]
    player = make_player(options, agent, setting, user, folder) if missing else None
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CONFIG).is_file():
        (folder / CONFIG).write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / METRICS).touch()
    with Interruption() as interruption:
        found = asyncio.run(play_and_judge(options, setting, dialogues, before, missing, player, judge, interruption))
    found = {**found, "usage": usage(user, player, judge)}
    described = agent_json.describe(setting=setting, agent=about(agent, config), samples=options.samples, seed=options.seed, **found)
    agent_json.write(folder, described)
    print(agent_json.in_words(described, folder))
    if interruption.requested:
        return ExitCode.INTERRUPTED
    return ExitCode.FINISHED if described["n_dialogues"] and not described["errors"]["not_played"] else ExitCode.FAILED


async def play_and_judge(
    options: argparse.Namespace,
    setting: Setting,
    dialogues: Dialogues,
    before: Mapping[Any, Played],
    missing: Sequence[Any],
    player: Player | None,
    judge: CapabilityJudge | None,
    interruption: Interruption,
) -> dict[str, Any]:
    """Everything that waits for servers and engines: the dialogues, and the grades where a model judges."""
    played = list(before.values())
    if player is not None:
        scenarios = {scenario.scenario_id: scenario for scenario in setting.scenarios}
        try:
            played += await play_all(
                player,
                dialogues,
                missing,
                scenarios=scenarios,
                concurrency=options.concurrency or (AT_A_SERVER if options.model or options.user == "llm" else DIALOGUES_AT_ONCE),
                num_before=len(before),
                should_stop=lambda: interruption.requested,
            )
        finally:
            await player.close()
    alive = [one for one in played if one.dialogue.outcome is not Outcome.ERROR]
    if setting.user_kind == "rule":
        return {"played": played, "by_judge": None, "judge": {}}
    if judge is None:
        return {"played": played, "by_judge": None, "judge": {"why_not": "no --judge-model was named"}}
    grades, num_errors = await judged(judge, alive, seed=options.seed)
    await judge.endpoints.close()
    complaint = {"complaint": judge.complaint} if judge.complaint else {}
    return {"played": played, "by_judge": grades, "judge": {"judge": judge.endpoints.config.model, "num_errors": num_errors, **complaint}}


def make_player(options: argparse.Namespace, agent: Agent, setting: Setting, user: UserSimulator, folder: Path) -> Player:
    """Whoever plays the agent, ready to speak.

    Raises:
        ValueError: its server or its model cannot be worked with.
        RuntimeError: its engine did not start.
    """
    if agent.kind is Kind.MODEL:
        from experiments.agents.model_player import ModelPlayer

        return ModelPlayer(weights_folder(agent), speech_of(options, agent, max_turns=setting.max_turns), user, seed=options.seed)
    if agent.kind is Kind.SCRIPTED:
        return WordsPlayer(Scripted(AGENTS[agent.source]), user, max_turns=setting.max_turns, seed=options.seed)
    config = server_config(server_settings(options, agent, answers=folder / ANSWERS))
    return WordsPlayer(ServerAgent(config, system=options.system), user, max_turns=setting.max_turns, seed=options.seed)


def server_settings(options: argparse.Namespace, agent: Agent, *, answers: Path) -> dict[str, Any]:
    """The settings of an agent's server.

    Args:
        answers: folder in which its answers are kept.
    """
    return {
        "urls": [agent.source],
        "model": options.model,
        "api_key_env": options.key_env,
        "temperature": options.temperature,
        "send_seed": not options.no_seed,
        "max_tokens": options.max_tokens or SERVER_TOKENS,
        "token_limit": TokenLimit(options.token_limit),
        "extra_body": options.extra_body,
        "concurrency": options.concurrency or AT_A_SERVER,
        "timeout_s": options.timeout,
        "retries": options.retries,
        "max_wait_s": options.max_wait,
        "cache": str(answers),
    }


def weights_folder(agent: Agent) -> Path:
    """Where an agent's weights lie; the prior is built and a model of the hub fetched where they are not here."""
    if agent.folder is not None:
        return agent.folder
    if agent.source == PRIOR:
        from policy.prior import build_prior
        from policy.prior_config import PriorConfig

        return build_prior(PriorConfig())
    from policy.model import find_model

    return find_model(agent.source)


def reached_user(setting: Setting) -> UserSimulator:
    """The simulated user, its servers asked for a few tokens where a model plays it."""
    if setting.user_kind == "rule":
        return setting.user()
    try:
        check_endpoints(setting.user_config)
        return setting.user()
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--user-")) from error


def reached_judge(options: argparse.Namespace) -> CapabilityJudge | None:
    """The judge, its servers asked for a few tokens; None where none is named."""
    if not options.judge_model:
        return None
    try:
        config = EndpointConfig(**model_settings(flag_settings(options, "judge")))
        check_endpoints(config)
        return CapabilityJudge(Endpoints(config))
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--judge-")) from error


def usage(user: UserSimulator, player: Player | None, judge: CapabilityJudge | None) -> dict[str, dict[str, float]]:
    """What was used up in this sitting, by whom; without zeros."""
    counts = {
        "agent": player.counts() if player else {},
        "user": user.counts() if isinstance(user, Counts) else {},
        "judge": dict(judge.endpoints.counts) if judge else {},
    }
    return {who: {name: value for name, value in found.items() if value} for who, found in counts.items() if any(found.values())}


def about(agent: Agent, config: Mapping[str, Any]) -> dict[str, Any]:
    """The agent as `agent.json` names it, with how it was asked."""
    return {"name": agent.name, **config["agent"], **({"run": agent.recorded("name", "")} if agent.run_config else {})}


def plan(options: argparse.Namespace, agent: Agent, setting: Setting, folder: Path) -> str:
    """What would be played, with whom, and where it would go."""
    num = len(setting.tasks()) * options.samples
    shown = setting.to_dict()
    user = ", ".join(f"{name} {value}" for name, value in shown["user"].items())
    grid = " ".join(map("{:g}".format, setting.strictness))
    at_most = num * setting.max_turns
    return "\n".join(
        [
            f"# would write {folder}",
            f"# agent     {agent.name}: {agent.kind}, {agent.source}{f', model {options.model}' if options.model else ''}",
            f"# scenarios {len(setting.scenarios)} of {setting.bank_name}, strictness {grid}, {options.samples} with each user",
            f"# dialogues {num}, of at most {setting.max_turns} replies: up to {at_most:,} replies of the agent",
            f"# user      {user}",
            f"# judge     {options.judge_model or ('rules' if options.user == 'rule' else 'nobody')}",
        ]
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
