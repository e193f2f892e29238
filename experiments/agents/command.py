"""`python -m experiments evaluate AGENT`: refuses what cannot work, plays what is missing, and says what came out."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from analysis.runs import METRICS
from experiments.agents import agent_json
from experiments.agents.judge import CapabilityJudge, judged
from experiments.agents.kept import about, check_folder, config_of, folder_of
from experiments.agents.players import Played, Player, agent_config
from experiments.agents.playing import Dialogues, Key, play_all
from experiments.agents.reach import (
    ANSWERS,
    AT_A_SERVER,
    DIALOGUES_AT_ONCE,
    check_speaking,
    judge_config,
    lacking_keys,
    make_player,
    reached_judge,
    reached_user,
    server_settings,
    usage,
)
from experiments.agents.setting import Setting, make_setting
from experiments.agents.who import Agent, Kind, find_agent
from experiments.evaluate import EvaluationTask
from experiments.interruption import Interruption
from experiments.keys import ConfigError, refusing
from experiments.one_writer import begin, check_no_writer, only_writer
from simulator.dialogue import Outcome
from simulator.files import ExitCode, ended


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
