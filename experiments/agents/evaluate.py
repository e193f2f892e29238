"""`python -m experiments evaluate AGENT`: check the request, play the missing dialogues, judge, and describe them in `agent.json`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from analysis.evaluated import AGENT_JSON, RELIABILITY, in_words, is_same_agent, read_object, read_probe
from analysis.runs import CONFIG, METRICS, PROVENANCE, RUNS, read_config
from analysis.stats import Estimate
from experiments.agents.agent import (
    ANSWERS,
    AT_A_SERVER,
    AT_ONCE,
    EVALUATE,
    MODEL_TOKENS,
    Agent,
    Kind,
    check_agent_options,
    find_agent,
    server_config,
)
from experiments.agents.judge import CapabilityJudge, grade_all
from experiments.agents.options import naming_options, refuse_given
from experiments.agents.players import (
    AgentDialogue,
    DialogueStore,
    Player,
    ServerAgent,
    TextPlayer,
    check_server,
    play_all,
)
from experiments.agents.scores import describe, is_complete, report
from experiments.agents.setting import Setting, make_setting
from experiments.errors import ConfigError, refusing
from experiments.preflight import check_writable
from experiments.run_folder import git_commit, versions
from experiments.run_lock import Interruption, begin, check_no_writer, only_writer
from experiments.tasks import EvaluationTask
from simulator.files import ExitCode, ended, jsonable, write_whole
from simulator.llm.client import Endpoints, check_endpoints
from simulator.llm.config import EndpointConfig
from simulator.llm.options import FLAGS, flag_settings, in_options
from simulator.llm.user import LLMUserConfig
from simulator.scripted import AGENTS
from simulator.settings import leaves
from simulator.user import Counts, UserSimulator


def evaluate(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    message = "interrupted; finished dialogues are kept, and the same command continues"
    return ended(lambda: _evaluate(options), refused=ConfigError, if_interrupted=message)


def _evaluate(options: argparse.Namespace) -> ExitCode:
    with refusing():
        agent = find_agent(options.agent, name=options.name, model=options.model)
        setting = make_setting(options, agent)
        check_agent_options(options, agent)
        judge_config = _check_options(options, agent)
        folder = output_folder(options, agent)
        config = config_of(options, agent, setting)
        check_same_evaluation(folder, config)
        check_no_writer(folder)
        store = DialogueStore(folder, setting, samples=options.samples)
        num_missing = len(store.planned) - len(store.read())
    if options.dry_run:
        print(_plan(options, agent, setting, folder, num_missing=num_missing, judge_config=judge_config))
        return ExitCode.FINISHED

    with refusing():
        for prefix, server in (("--judge-", judge_config), ("--user-", setting.user_config if num_missing else None)):
            if isinstance(server, EndpointConfig):
                with naming_options(partial(in_options, prefix=prefix)):
                    check_endpoints(server)
        judge = CapabilityJudge(Endpoints(judge_config)) if judge_config is not None else None
        user = setting.user()
        player = make_player(options, agent, setting, user, folder) if num_missing else None
    begin(folder, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    with only_writer(folder), Interruption() as interruption:
        store.forget_broken()
        (folder / METRICS).touch()
        played, found = asyncio.run(_play_and_judge(options, setting, store, player, judge, lambda: interruption.requested))
        earlier = read_object(folder / AGENT_JSON) if (folder / AGENT_JSON).is_file() else {}
        graded = earlier.get("capabilities", {})
        if found["by_judge"] is None and not num_missing and graded.get("by") == "judge":
            cells = {name: cell for name, cell in graded.items() if isinstance(cell, dict)}
            found["by_judge"] = {name: Estimate.from_dict(cell) for name, cell in cells.items()}
            found["judge"] = {name: value for name, value in graded.items() if name not in (*cells, "by")}
        usage = _add_usage(earlier.get("usage", {}), user, player, judge)
        sampled = {**config["agent"], **({"run": agent.run_setting("name", "")} if agent.run_config else {})}
        about = {"name": agent.name, **sampled}
        described = describe(played, setting, agent=about, samples=options.samples, seed=options.seed, usage=usage, **found)
        write_whole(folder / AGENT_JSON, json.dumps(jsonable(described), indent=2, ensure_ascii=False) + "\n")
    print(report(described, folder))
    if interruption.requested:
        return ExitCode.INTERRUPTED
    return ExitCode.FINISHED if is_complete(described) else ExitCode.FAILED


def _check_options(options: argparse.Namespace, agent: Agent) -> EndpointConfig | None:
    """Refuses options that contradict each other or the kind of agent; returns the settings of the judge, None without one."""
    if agent.kind is Kind.SCRIPTED and options.profiles:
        raise ConfigError(f"AGENT must be another with --profiles, got {agent.source!r}, which speaks of facts of the built-in world")
    if options.samples > 1:
        identical = {
            f"for the scripted {agent.source}, which always says the same to the same user": agent.kind is Kind.SCRIPTED,
            "with --temperature 0, which always gives the same dialogue": options.temperature == 0.0,
            "with --no-seed: without a seed the same words get the stored reply": options.no_seed,
        }
        for why in (why for why, applies in identical.items() if applies):
            raise ConfigError(f"--samples must be 1 {why}")
    if not options.judge_model:
        if options.judge_url:
            raise ConfigError(f"--judge-model must name the model at --judge-url, got none with {', '.join(options.judge_url)}")
        refuse_given(options, [f"judge_{flag}" for flag in FLAGS], "goes with --judge-model")
        return None
    if options.user == "rule":
        raise ConfigError(
            f"--judge-model goes with --user llm, got {options.judge_model!r}; the embedded user's dialogues are judged by rule"
        )
    with naming_options(partial(in_options, prefix="--judge-")):
        return EndpointConfig(**flag_settings(options, "judge"))


def config_of(options: argparse.Namespace, agent: Agent, setting: Setting) -> dict[str, Any]:
    """The evaluation's `config.yaml`: everything that decides its dialogues, and its provenance."""
    system = agent.system_prompt(options.system)
    sampled = {"temperature": options.temperature, "system": system, "samples": options.samples, "seed": options.seed}
    if agent.kind is Kind.SERVER:
        sampled |= {"max_tokens": options.max_tokens or MODEL_TOKENS, "extra_body": options.extra_body, "send_seed": not options.no_seed}
    if agent.kind is Kind.MODEL:
        from experiments.agents.model_player import model_settings_of

        settings = model_settings_of(options, agent, max_turns=setting.max_turns)
        limits = {name: getattr(settings.rollout, name) for name in ("max_new_tokens", "max_context")}
        sampled |= {**limits, "dtype": str(settings.engine.dtype), "thinking": settings.engine.thinking}
    identity = agent.identity()
    config = {
        "experiment": EVALUATE,
        "name": identity.pop("name"),
        "agent": {**identity, **sampled},
        "setting": setting.to_dict(),
        "simulator": {"kind": setting.user_kind, **asdict(setting.user_config)},
        PROVENANCE: {"versions": versions(), "git_commit": git_commit()},
    }
    return dict(json.loads(json.dumps(config)))


def output_folder(options: argparse.Namespace, agent: Agent) -> Path:
    """Where an agent's evaluation and its reliability probe go.

    Raises:
        ValueError: it cannot be written, holds files of another agent, or something else.
    """
    folder: Path = options.out or Path(RUNS) / EVALUATE / agent.name
    check_writable(folder, called="--out")
    found: dict[str, Mapping[str, Any]] = {}
    if (folder / RELIABILITY).is_file():
        found[RELIABILITY] = read_probe(folder / RELIABILITY)["agent"]
    config = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if config.get("experiment") == EVALUATE:
        found[CONFIG] = {"name": config["name"], **config["agent"]}
    for name, other in found.items():
        if not is_same_agent(agent.identity(), other):
            got = f"{str(folder)!r}, whose {name} is of {in_words(other)}"
            raise ConfigError(
                f"--out must be a folder of this agent ({in_words(agent.identity())}), got {got}; take another with --out or --name"
            )
    if not config and folder.is_dir() and {path.name for path in folder.iterdir()} - {RELIABILITY, ANSWERS}:
        raise ConfigError(f"--out must be new or an evaluation's folder, got {str(folder)!r}, which holds something else")
    return folder


def check_same_evaluation(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses to resume an evaluation with other settings.

    Raises:
        ConfigError: names the first that differs.
    """

    def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
        # Weights are known by their fingerprint and may move. Addresses of the user's servers (`simulator`) may change.
        agent = {name: value for name, value in config["agent"].items() if name != "source" or not config["agent"]["fingerprint"]}
        return dict(leaves({"name": config["name"], "agent": agent, "setting": config["setting"]}))

    saved = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    before, now = decisive(saved) if saved.get("experiment") == EVALUATE else {}, decisive(config)
    if saved and before != now:
        name = next(name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
        was = f"{name} {before.get(name)!r} there and {now.get(name)!r} now"
        raise ConfigError(f"--out must be the folder of this evaluation, got {str(folder)!r}, which is another's ({was}); take another")


def make_player(options: argparse.Namespace, agent: Agent, setting: Setting, user: UserSimulator, folder: Path) -> Player:
    """The player of an agent, its server asked or its engine started.

    Raises:
        ValueError: its server or its model does not work.
        RuntimeError: its engine did not start.
    """
    if agent.kind is Kind.MODEL:
        from experiments.agents.model_player import ModelPlayer, model_settings_of

        settings = model_settings_of(options, agent, max_turns=setting.max_turns)
        return ModelPlayer(agent.weights_folder(), settings, user, seed=options.seed)
    if agent.kind is Kind.SCRIPTED:
        return TextPlayer(AGENTS[agent.source], user, max_turns=setting.max_turns, seed=options.seed)
    config = server_config(options, agent, answers=folder / ANSWERS)
    check_server(config)
    return TextPlayer(ServerAgent(config, system=agent.system_prompt(options.system)), user, max_turns=setting.max_turns, seed=options.seed)


async def _play_and_judge(
    options: argparse.Namespace,
    setting: Setting,
    store: DialogueStore,
    player: Player | None,
    judge: CapabilityJudge | None,
    should_stop: Callable[[], bool],
) -> tuple[list[AgentDialogue], dict[str, Any]]:
    """All dialogues, the missing ones played now, and `by_judge` and `judge` of `describe`."""
    before = store.read()
    played = list(before.values())
    if player is not None:
        missing: Sequence[tuple[EvaluationTask, int]] = [pair for key, pair in store.planned.items() if key not in before]
        scenarios = {scenario.scenario_id: scenario for scenario in setting.scenarios}
        concurrency = options.concurrency or (AT_A_SERVER if options.model or options.user == "llm" else AT_ONCE)
        try:
            played += await play_all(player, store, missing, scenarios=scenarios, concurrency=concurrency, should_stop=should_stop)
        finally:
            await player.close()
    if judge is None:
        return played, {"by_judge": None, "judge": {} if setting.user_kind == "rule" else {"why_not": "no --judge-model was named"}}
    try:
        found = await grade_all(judge, [one for one in played if not one.is_broken], seed=options.seed, should_stop=should_stop)
    finally:
        await judge.endpoints.close()
    if found is None:
        return played, {"by_judge": None, "judge": {"why_not": "interrupted"}}
    about = {"judge": judge.endpoints.config.model, "num_errors": found.num_errors}
    if found.num_errors:
        about |= {"num_not_sent": found.num_not_sent, "complaint": judge.complaint}
    return played, {"by_judge": found.estimates, "judge": about}


def _add_usage(
    earlier: Mapping[str, Mapping[str, float]], user: UserSimulator, player: Player | None, judge: CapabilityJudge | None
) -> dict[str, dict[str, float]]:
    """Requests, tokens and money of earlier sittings and of this one, by who used them; without zeros."""
    counts = {
        "agent": player.counts() if player else {},
        "user": user.counts() if isinstance(user, Counts) else {},
        "judge": dict(judge.endpoints.counts) if judge else {},
    }
    total = {who: dict(used) for who, used in earlier.items()}
    for who, used in counts.items():
        for name, value in used.items():
            if value:
                part = total.setdefault(who, {})
                part[name] = part.get(name, 0.0) + value
    return total


def _plan(
    options: argparse.Namespace, agent: Agent, setting: Setting, folder: Path, *, num_missing: int, judge_config: EndpointConfig | None
) -> str:
    """The plan of a dry run, and which key is lacking."""
    num = len(setting.tasks()) * options.samples
    user = ", ".join(f"{name} {value}" for name, value in setting.to_dict()["user"].items())
    grid, bank = " ".join(map("{:g}".format, setting.strictness)), setting.bank_file or setting.bank_name
    kept = f"; {num - num_missing} are kept" if num > num_missing else ""
    servers = {"--judge-": judge_config}
    if num_missing:
        servers["--user-"] = setting.user_config if isinstance(setting.user_config, LLMUserConfig) else None
        servers["--"] = server_config(options, agent, answers=folder / ANSWERS) if agent.kind is Kind.SERVER else None
    return "\n".join(
        [
            f"# would write {folder}",
            f"# agent     {agent.name}: {agent.kind}, {agent.source}{f', model {options.model}' if options.model else ''}",
            f"# scenarios {len(setting.scenarios)} of {bank}, strictness {grid}, {options.samples} with each user",
            f"# dialogues {num}, of at most {setting.max_turns} replies: up to {num * setting.max_turns:,} replies of the agent{kept}",
            f"# user      {user}",
            f"# judge     {options.judge_model or ('rules' if options.user == 'rule' else 'none')}",
            *missing_keys(servers),
        ]
    )


def missing_keys(servers: Mapping[str, EndpointConfig | None]) -> list[str]:
    """A line for each server whose environment variable holds no key.

    Args:
        servers: settings, by the prefix of their options.
    """
    lines = []
    for prefix, config in servers.items():
        try:
            if config is not None:
                config.key()
        except ValueError as error:
            lines.append(f"# it would be refused: {in_options(str(error), prefix)}")
    return lines
