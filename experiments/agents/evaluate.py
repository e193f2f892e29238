"""Agents, users and judges, ready to speak: whatever they need is looked at before the first dialogue.

What an evaluation's folder says of itself, so that it is only ever gone on with as it was begun.

`python -m experiments evaluate AGENT`: refuses what cannot work, plays what is missing, and says what came out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from analysis.evaluated import RELIABILITY, in_words, is_same_agent, read_probe
from analysis.persona_judge import FLAGS, flag_settings, in_options, model_settings
from analysis.runs import CONFIG, METRICS, PROVENANCE, RUNS, leaves, read_config
from experiments.agents import scores as agent_json
from experiments.agents.agent import PRIOR, Agent, Kind, Setting, find_agent, make_setting
from experiments.agents.judge import CapabilityJudge, judged
from experiments.agents.options import refuse_given
from experiments.agents.players import (
    MODEL_TOKENS,
    Dialogues,
    Key,
    Played,
    Player,
    Scripted,
    ServerAgent,
    WordsPlayer,
    agent_config,
    play_all,
    server_config,
    speech_of,
)
from experiments.errors import ConfigError, refusing
from experiments.preflight import check_writable
from experiments.run_folder import git_commit, versions
from experiments.run_lock import Interruption, begin, check_no_writer, only_writer
from experiments.tasks import EvaluationTask
from simulator.dialogue import Outcome
from simulator.files import ExitCode, ended
from simulator.llm.client import Endpoints, check_endpoints
from simulator.llm.config import EndpointConfig, TokenLimit
from simulator.llm.prompts import HALF
from simulator.llm.user import LLMUserConfig
from simulator.scripted import AGENTS
from simulator.user import Counts, UserSimulator

ANSWERS = "answers"
"""Folder, in an evaluation's own, of what the agent's server answered: a server may serve another agent under the same name tomorrow."""
DIALOGUES_AT_ONCE, AT_A_SERVER = 64, 16


def make_player(options: argparse.Namespace, agent: Agent, setting: Setting, user: UserSimulator, folder: Path) -> Player:
    """Whoever plays the agent, ready to speak.

    Raises:
        ValueError: its server or its model cannot be worked with.
        RuntimeError: its engine did not start.
    """
    if agent.kind is Kind.MODEL:
        from experiments.agents.players import ModelPlayer

        return ModelPlayer(weights_folder(agent), speech_of(options, agent, max_turns=setting.max_turns), user, seed=options.seed)
    if agent.kind is Kind.SCRIPTED:
        return WordsPlayer(Scripted(AGENTS[agent.source]), user, max_turns=setting.max_turns, seed=options.seed)
    config = server_config(server_settings(options, agent, answers=folder / ANSWERS))
    return WordsPlayer(ServerAgent(config, system=agent.told(options.system)), user, max_turns=setting.max_turns, seed=options.seed)


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
        "max_tokens": options.max_tokens or MODEL_TOKENS,
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
        from policy.config import PriorConfig
        from policy.prior.prior import build_prior

        return build_prior(PriorConfig())
    from policy.model import find_model

    return find_model(agent.source)


def reached_user(setting: Setting) -> UserSimulator:
    """The simulated user, its servers asked for a few tokens where a model plays it."""
    if not isinstance(setting.user_config, LLMUserConfig):
        return setting.user()
    try:
        check_endpoints(setting.user_config)
        return setting.user()
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--user-")) from error


def reached_judge(options: argparse.Namespace) -> CapabilityJudge | None:
    """The judge, its servers asked for a few tokens; None where none is named."""
    config = judge_config(options)
    if config is None:
        return None
    try:
        check_endpoints(config)
        return CapabilityJudge(Endpoints(config))
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--judge-")) from error


def judge_config(options: argparse.Namespace) -> EndpointConfig | None:
    """The settings of the judge's server; None where none is named.

    Raises:
        ConfigError: one of them means nothing.
    """
    if not options.judge_model:
        if options.judge_url:
            raise ConfigError(f"--judge-model must name the model at --judge-url, got none with {', '.join(options.judge_url)}")
        refuse_given(options, [f"judge_{flag}" for flag in FLAGS], "goes with --judge-model")
        return None
    try:
        return EndpointConfig(**model_settings(flag_settings(options, "judge")))
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--judge-")) from error


def lacking_keys(configs: Mapping[str, Any]) -> Iterator[str]:
    """Which environment variables hold no key although they should, a sentence each.

    Args:
        configs: by beginning of its options, settings of a server; others ask nobody.
    """
    for prefix, config in configs.items():
        try:
            if isinstance(config, EndpointConfig):
                config.key()
        except ValueError as error:
            yield in_options(str(error), prefix)


def usage(user: UserSimulator, player: Player | None, judge: CapabilityJudge | None) -> dict[str, dict[str, float]]:
    """What was used up in this sitting, by whom; without zeros."""
    counts = {
        "agent": player.counts() if player else {},
        "user": user.counts() if isinstance(user, Counts) else {},
        "judge": dict(judge.endpoints.counts) if judge else {},
    }
    return {who: {name: value for name, value in found.items() if value} for who, found in counts.items() if any(found.values())}


def check_speaking(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses a way of speaking that is out of range, and settings of a server that mean nothing.

    Raises:
        ConfigError: says which option.
    """
    if not options.temperature >= 0.0:
        raise ConfigError(f"--temperature must be at least 0, got {options.temperature:g}; 0 is greedy")
    for name in ("max_tokens", "max_context", "kv_cache_mb", "concurrency"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if HALF.search(options.system or ""):
        raise ConfigError(f"--system must be text that can be written, got {options.system!r}")
    refuse_idle(options, agent)
    if agent.kind is Kind.SERVER:
        agent_config(server_settings(options, agent, answers=Path(ANSWERS)))


OF_A_SERVER = ("key_env", "retries", "timeout", "max_wait", "token_limit", "no_seed", "extra_body")
OF_WEIGHTS = ("engine", "dtype", "max_context", "kv_cache_mb", "gpu_memory_share", "thinking")
OF_SPEAKING = ("temperature", "system", "max_tokens")


def refuse_idle(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses options that this kind of agent has no use for: an evaluation would name them as if they had been heeded.

    Raises:
        ConfigError: names the first.
    """
    idle: dict[Kind, list[tuple[tuple[str, ...], str]]] = {
        Kind.SERVER: [(OF_WEIGHTS, "goes with an agent whose weights are here")],
        Kind.MODEL: [(OF_A_SERVER, "goes with an agent behind a server")],
        Kind.SCRIPTED: [((*OF_A_SERVER, *OF_WEIGHTS, *OF_SPEAKING), "goes with an agent that is a model")],
    }
    for names, why in idle[agent.kind]:
        refuse_given(options, names, why, where=repr(agent.source))


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


def evaluate(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    said = "interrupted; what had ended by then is kept, and the same command goes on"
    return ended(lambda: checked(options), refused=ConfigError, if_interrupted=said)


def checked(options: argparse.Namespace) -> int:
    """Refuses what cannot work, then plays, or says what it would play.

    Raises:
        ConfigError: it cannot work.
    """
    with refusing():
        agent = find_agent(options.agent, name=options.name, model=options.model)
        setting = make_setting(options, agent)
        check_options(options, agent)
        folder = folder_of(options, agent)
        config = config_of(options, agent, setting)
        check_folder(folder, config)
        check_no_writer(folder)
    if not options.dry_run:
        return run(options, agent, setting, folder, config)
    print(plan(options, agent, setting, folder))
    return ExitCode.FINISHED


def check_options(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses options that contradict each other or the kind of agent.

    Raises:
        ConfigError: says which.
    """
    check_speaking(options, agent)
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
    judge_config(options)


def run(options: argparse.Namespace, agent: Agent, setting: Setting, folder: Path, config: Mapping[str, Any]) -> ExitCode:
    """Plays, judges, writes and prints.

    Raises:
        ConfigError: a server or a model cannot be worked with; nothing was played.
    """
    with refusing():
        judge, dialogues = reached_judge(options), Dialogues(folder, setting, samples=options.samples)
        is_missing = len(dialogues.sound()) < len(dialogues.tasks)
        user = reached_user(setting) if is_missing else setting.user()
        player = make_player(options, agent, setting, user, folder) if is_missing else None
    begin(folder, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    with only_writer(folder), Interruption() as interruption:
        before = dialogues.resume()
        missing = [pair for key, pair in dialogues.tasks.items() if key not in before]
        (folder / METRICS).touch()
        found = asyncio.run(play_and_judge(options, setting, dialogues, before, missing, player, judge, interruption))
        earlier = agent_json.read(folder)
        if found["by_judge"] is None and not missing:
            found |= agent_json.graded_before(earlier)
        found |= {"usage": agent_json.added_up(earlier.get("usage", {}), usage(user, player, judge))}
        described = agent_json.describe(setting=setting, agent=about(agent, config), samples=options.samples, seed=options.seed, **found)
        agent_json.write(folder, described)
    print(agent_json.in_words(described, folder))
    if interruption.requested:
        return ExitCode.INTERRUPTED
    return ExitCode.FINISHED if is_whole(described) else ExitCode.FAILED


def is_whole(described: Mapping[str, Any]) -> bool:
    """Whether every dialogue was played and none broke, and a judge, where there is one, was asked for all and graded half of them.

    Args:
        described: what stands in `agent.json`.
    """
    errors, capable, num = described["errors"], described["capabilities"], described["n_dialogues"]
    is_judged = 2 * capable.get("num_errors", 0) <= num and not capable.get("num_not_sent")
    return num > 0 and is_judged and not errors["not_played"] and not errors["excluded_dialogues"]


async def play_and_judge(
    options: argparse.Namespace,
    setting: Setting,
    dialogues: Dialogues,
    before: Mapping[Key, Played],
    missing: Sequence[tuple[EvaluationTask, int]],
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
    try:
        graded = await judged(judge, alive, seed=options.seed, should_stop=lambda: interruption.requested)
    finally:
        await judge.endpoints.close()
    if graded is None:
        return {"played": played, "by_judge": None, "judge": {"why_not": "interrupted"}}
    told = {"judge": judge.endpoints.config.model, "num_errors": graded.num_errors}
    if graded.num_errors:
        told |= {"num_not_sent": graded.num_not_sent, "complaint": judge.complaint}
    return {"played": played, "by_judge": graded.estimates, "judge": told}


def plan(options: argparse.Namespace, agent: Agent, setting: Setting, folder: Path) -> str:
    """What would be played, with whom, where it would go, and which key is lacking."""
    dialogues = Dialogues(folder, setting, samples=options.samples)
    with refusing():
        num, num_kept = len(dialogues.tasks), len(dialogues.sound())
    asked: dict[str, Any] = {"--judge-": judge_config(options)}
    if num_kept < num:
        asked["--user-"] = setting.user_config
        asked["--"] = agent_config(server_settings(options, agent, answers=folder / ANSWERS)) if agent.kind is Kind.SERVER else None
    shown = setting.to_dict()
    user = ", ".join(f"{name} {value}" for name, value in shown["user"].items())
    grid, bank = " ".join(map("{:g}".format, setting.strictness)), setting.bank_file or setting.bank_name
    at_most, kept = num * setting.max_turns, f"; {num_kept} are kept" if num_kept else ""
    return "\n".join(
        [
            f"# would write {folder}",
            f"# agent     {agent.name}: {agent.kind}, {agent.source}{f', model {options.model}' if options.model else ''}",
            f"# scenarios {len(setting.scenarios)} of {bank}, strictness {grid}, {options.samples} with each user",
            f"# dialogues {num}, of at most {setting.max_turns} replies: up to {at_most:,} replies of the agent{kept}",
            f"# user      {user}",
            f"# judge     {options.judge_model or ('rules' if options.user == 'rule' else 'nobody')}",
            *(f"# it would be refused: {sentence}" for sentence in lacking_keys(asked)),
        ]
    )
