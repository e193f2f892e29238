"""`python -m experiments evaluate AGENT`: check the request, play the missing dialogues, judge, and describe them in `agent.json`."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from analysis.evaluated import AGENT_JSON, FORMAT, RELIABILITY, in_words, is_same_agent, read_object, read_probe
from analysis.judged import SECOND
from analysis.runs import CONFIG, METRICS, PROVENANCE, RUNS, read_config
from analysis.stats import Estimate
from experiments.agents.agent import (
    ANSWERS,
    MODEL_TOKENS,
    Agent,
    check_agent_options,
    find_agent,
    naming_options,
    of_agent,
    refuse_given,
    server_config,
)
from experiments.agents.capabilities import CapabilityJudge, capabilities, plane, reply_features, strategy_shares
from experiments.agents.players import AgentDialogue, DialogueStore, ModelPlayer, ModelSettings, ServerAgent, TextPlayer, run_all
from experiments.agents.scores import best_of_k, count_errors, length_control, report, scores, under_pressure
from experiments.config import EvaluationConfig, are_distinct
from experiments.errors import ConfigError, refusing
from experiments.evaluation import summarise_second
from experiments.preflight import check_writable
from experiments.recorder import cut_back, dialogue_record
from experiments.run_folder import git_commit
from experiments.run_lock import Interruption, begin, check_no_writer, only_writer
from experiments.second_listener import Choice, SecondListener, other_listener, second_user, too_many_unheard
from experiments.tasks import EvaluationTask, grid_tasks, spread
from policy.versions import versions
from simulator.dialogue import Counts, Outcome, UserSimulator
from simulator.files import ExitCode, ended, jsonable, write_whole
from simulator.listener import ListenerKind, Register
from simulator.llm.client import HELLO, Endpoints, check_endpoints
from simulator.llm.config import DECIDE_NOTHING, EndpointConfig
from simulator.llm.prompts import prompts_hash
from simulator.llm.user import LLMUserConfig
from simulator.options import FLAGS, flag_settings, in_options, of_judge
from simulator.pressure import load_pressure, pressure_hash, score
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import read_profiles
from simulator.sage.user import NativeUser
from simulator.scenario import VANILLA, Scenario, Split
from simulator.scripted import AGENTS
from simulator.settings import leaves
from simulator.user import first_question, make_user
from simulator.version import world_name, world_of
from simulator.world import Bank, load_bank

EVALUATE = "evaluate"
"""`experiment` in an evaluation's config.yaml, and the folder of evaluations in `runs`."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Scenarios, user and length of an evaluation."""

    bank: Bank
    bank_file: str
    """Name of the file of profiles; empty for the built-in world."""
    bank_hash: str
    """World version, or 16 hex digits over the profiles, or over users who press and what agreement costs."""
    split: Split
    scenarios: tuple[Scenario, ...]
    strictness: tuple[float, ...]
    max_turns: int
    user_config: RuleUserConfig | LLMUserConfig

    @classmethod
    def of(cls, options: argparse.Namespace, agent: Agent) -> Setting:
        split = Split(options.scenarios)
        if split is Split.PRESSURE and options.profiles:
            raise ConfigError(f"--scenarios must be heldout with --profiles, got {options.scenarios!r}")
        # Users of native profiles have one difficulty, VANILLA's.
        strictness = tuple(options.strictness or ((VANILLA.strictness,) if options.profiles else EvaluationConfig().strictness))
        if not all(0.0 <= value <= 1.0 for value in strictness) or not are_distinct(strictness):
            raise ConfigError(f"--strictness must hold values in [0, 1], each once, got {' '.join(map('{:g}'.format, strictness))}")
        if options.user == "rule" and options.profiles and len(strictness) > 1:
            raise ConfigError(f"--strictness must be one value for users of profiles, who have no difficulty, got {len(strictness)}")
        of_run = {name: agent.run_setting(f"simulator.{name}", None) for name in ("start_emotion", "momentum")}
        given = {name: value for name, value in of_run.items() if value is not None}
        user_config: RuleUserConfig | LLMUserConfig
        if options.user == "llm":
            refuse_given(options, ["register"], "goes with --user rule")
            if not options.user_model:
                raise ConfigError("--user-model must name the model that plays the user, got none")
            given.pop("momentum", None)
            with naming_options(partial(in_options, prefix="--user-")):
                user_config = LLMUserConfig(**flag_settings(options, "user"), **given)
        else:
            refuse_given(options, ("user_url", *(f"user_{flag}" for flag in FLAGS)), "goes with --user llm")
            if split is Split.PRESSURE and options.register == Register.WORLD:
                raise ConfigError("--register must be open with --scenarios pressure, whose users speak ordinary English, got 'world'")
            speaks_world = (agent.kind == "scripted" or agent.is_embedded) and not options.profiles
            spoken = "open" if split is Split.PRESSURE else agent.run_setting("simulator.register", "world" if speaks_world else "open")
            register = Register(options.register or spoken)
            user_config = RuleUserConfig(register=register, **({"preset": Preset.SAGE} if options.profiles else given))
        bank, bank_hash = load_bank(), world_name(Register.WORLD)
        if split is Split.PRESSURE:
            bank, bank_hash = load_pressure(), pressure_hash()
        elif options.profiles:
            with naming_options("--profiles: {}".format):
                profiles = list(read_profiles(options.profiles.expanduser(), split=Split.HELDOUT).values())
            if not profiles:
                raise ConfigError(f"--profiles must hold at least one profile, got none in {options.profiles}")
            silent = [profile.scenario_id for profile in profiles if not profile.opening.strip()]
            if silent and options.user == "rule":
                got = f"{len(silent)} of {len(profiles)} without, the first {silent[0]}; --user llm makes them up"
                raise ConfigError(f"--profiles must have a first_talk each with --user rule, got {got}")
            bank = Bank(by_id={profile.scenario_id: profile for profile in profiles})
            text = json.dumps([profile.to_dict() for profile in profiles], sort_keys=True)
            bank_hash = hashlib.sha256(text.encode()).hexdigest()[:16]
        return cls(
            bank=bank,
            bank_file=options.profiles.name if options.profiles else "",
            bank_hash=bank_hash,
            split=split,
            scenarios=tuple(spread(bank.scenarios(split), options.num_scenarios)),
            strictness=strictness,
            # Of SAGE's ten replies nine are scored.
            max_turns=options.max_turns or (9 if options.profiles else int(agent.run_setting("rollout.max_turns", 8))),
            user_config=user_config,
        )

    def tasks(self) -> list[EvaluationTask]:
        """A task for each scenario at each strictness, with the same seeds for every agent."""
        return grid_tasks(self.scenarios, self.strictness)

    @property
    def user_kind(self) -> str:
        return "rule" if isinstance(self.user_config, RuleUserConfig) else "llm"

    def user(self) -> UserSimulator:
        if self.bank_file and isinstance(self.user_config, RuleUserConfig):
            return NativeUser(self.user_config)
        return make_user(self.user_kind, self.user_config)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: everything that two evaluations must share to be compared."""
        # The profiles are in `bank_hash`.
        left_out = (*DECIDE_NOTHING, "profiles", "heldout_profiles")
        user = {key: value for key, value in asdict(self.user_config).items() if key not in left_out}
        is_rule = self.user_kind == "rule"
        version = {"world": world_of(self.user_config)} if is_rule else {"prompts_hash": prompts_hash()}
        ids = "\n".join(scenario.scenario_id for scenario in self.scenarios)
        return {
            "bank": "profiles" if self.bank_file else f"built-in {self.split}",
            "bank_hash": self.bank_hash,
            "num_scenarios": len(self.scenarios),
            "scenarios_hash": hashlib.sha256(ids.encode()).hexdigest()[:16],
            "strictness": list(self.strictness),
            "max_turns": self.max_turns,
            "user": {"kind": self.user_kind, **user, **version},
        }


def evaluate(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    message = "interrupted; finished dialogues are kept, and the same command continues"
    return ended(lambda: run_evaluation(options), refused=ConfigError, if_interrupted=message)


def run_evaluation(options: argparse.Namespace) -> ExitCode:
    """Checks the request, then prints its plan or plays, judges and describes."""
    with refusing():
        agent = find_agent(options.agent, name=options.name, model=options.model)
        setting = Setting.of(options, agent)
        check_agent_options(options, agent)
        if agent.kind == "scripted" and options.profiles:
            raise ConfigError(f"AGENT must be another with --profiles, got {agent.source!r}, which speaks of facts of the built-in world")
        if options.samples > 1 and (agent.kind == "scripted" or options.temperature == 0.0 or options.no_seed):
            raise ConfigError("--samples must be 1 with a scripted agent, --temperature 0 or --no-seed, which repeat their dialogues")
        judge_config, second_config = judge_config_of(options), second_config_of(options, setting.user_config)
        folder = output_folder(options, agent)
        config = config_of(options, agent, setting)
        check_same_evaluation(folder, config)
        check_no_writer(folder)
        store = DialogueStore(folder, setting.tasks(), setting.bank, samples=options.samples)
        played = store.read()
        missing = [pair for key, pair in store.planned.items() if key not in played]
        servers: list[tuple[Callable[[str], str], EndpointConfig]] = [(of_judge, judge_config)] if judge_config else []
        if missing and isinstance(setting.user_config, LLMUserConfig):
            servers.append((partial(in_options, prefix="--user-"), setting.user_config))
        if missing and agent.kind == "server":
            servers.append((of_agent, server_config(options, answers=folder / ANSWERS)))
    if options.dry_run:
        num, kept = len(store.planned), f"; {len(played)} are kept" if played else ""
        print(yaml.safe_dump({name: config[name] for name in ("name", "agent", "setting")}, sort_keys=False, allow_unicode=True), end="")
        print(f"# dialogues {num}, of at most {setting.max_turns} replies: up to {num * setting.max_turns:,} replies of the agent{kept}")
        print(f"# judge     {options.judge_model or ('rules' if options.user == 'rule' else 'none')}\n# would write {folder}")
        return ExitCode.FINISHED

    with refusing():
        for rename, server in servers:
            with naming_options(rename):
                is_user = isinstance(server, LLMUserConfig)
                check_endpoints(server, *(first_question(server) if is_user else (HELLO, str) if rename is of_agent else ()))
        judge = CapabilityJudge(Endpoints(judge_config)) if judge_config is not None else None
        user = setting.user()
        player: TextPlayer | ModelPlayer | None = None
        if missing and agent.kind == "model":
            settings = ModelSettings.of(options, agent, max_turns=setting.max_turns)
            player = ModelPlayer(agent.weights_folder(), settings, user, seed=options.seed)
        elif missing:
            system = agent.system_prompt(options.system)
            speaker = AGENTS[agent.source] if agent.kind == "scripted" else ServerAgent(servers[-1][1], system=system)
            player = TextPlayer(speaker, user, max_turns=setting.max_turns, seed=options.seed)
        if second_config and second_config.server:
            with naming_options(of_listener):
                check_endpoints(second_config.server, *first_question(second_config.server))
        second = SecondListener(RuleUser(second_config)) if second_config else None
    begin(folder, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    with only_writer(folder), Interruption() as interruption:
        # Dialogues that broke, and a torn last line, are played again.
        cut_back(store.path, lambda record: record["outcome"] != Outcome.ERROR)
        (folder / METRICS).touch()
        concurrency = options.concurrency or (16 if options.model or options.user == "llm" else 64)
        work = play_and_judge(
            store, missing, player, judge, concurrency=concurrency, seed=options.seed, should_stop=lambda: interruption.requested
        )
        everything, estimates, about_judge = asyncio.run(work)
        heard_again = hear_again(everything, second, should_stop=lambda: interruption.requested) if second else {}
        earlier = read_object(folder / AGENT_JSON) if (folder / AGENT_JSON).is_file() else {}
        usage: dict[str, Counter[str]] = {who: Counter(used) for who, used in earlier.get("usage", {}).items()}
        for who, counts in (
            ("agent", player.counts() if player else {}),
            ("user", user.counts() if isinstance(user, Counts) else {}),
            ("judge", judge.endpoints.counts if judge else {}),
            ("listener", second.user.counts() if second else {}),
        ):
            if used := {name: value for name, value in counts.items() if value}:
                usage.setdefault(who, Counter()).update(used)
        described = describe(
            everything,
            setting,
            agent={"name": agent.name, **config["agent"], **({"run": agent.run_setting("name", "")} if agent.run_config else {})},
            samples=options.samples,
            seed=options.seed,
            by_judge=estimates,
            judge=about_judge if setting.user_kind == "llm" else {},
            usage=usage,
        )
        described |= heard_again
        write_whole(folder / AGENT_JSON, json.dumps(jsonable(described), indent=2, ensure_ascii=False) + "\n")
    print(report(described, folder))
    if interruption.requested:
        return ExitCode.INTERRUPTED
    errors, graded = described["errors"], described["capabilities"]
    is_whole = described["n_dialogues"] > 0 and not errors["not_played"] and not errors["excluded_dialogues"]
    is_judged = 2 * graded.get("num_errors", 0) <= described["n_dialogues"] and not graded.get("num_not_sent")
    return ExitCode.FINISHED if is_whole and is_judged else ExitCode.FAILED


def judge_config_of(options: argparse.Namespace) -> EndpointConfig | None:
    """The settings of the judge's server; None without a judge."""
    if not options.judge_model:
        refuse_given(options, ("judge_url", *(f"judge_{flag}" for flag in FLAGS)), "goes with --judge-model")
        return None
    if options.user == "rule":
        raise ConfigError(f"--judge-model goes with --user llm, got {options.judge_model!r}; dialogues with the rule are judged by rule")
    with naming_options(of_judge):
        return EndpointConfig(**flag_settings(options, "judge"))


def of_listener(said: str) -> str:
    """A complaint about the second listener or its server."""
    for setting, option in (
        ("evaluation.", "--"),
        ("simulator.preset=sage", "users of profiles"),
        ("simulator.listener=", "the user's own, "),
    ):
        said = said.replace(setting, option)
    return in_options(said, "--listener-").replace("--server", "--listener-model").replace("the simulated user", "the listener")


def second_config_of(options: argparse.Namespace, user: RuleUserConfig | LLMUserConfig) -> RuleUserConfig | None:
    """The settings of the user that hears the dialogues again; None without a second listener."""
    if options.listener != ListenerKind.MODEL:
        refuse_given(options, [f"listener_{flag}" for flag in FLAGS], "goes with --listener model")
    given = None if options.listener in (None, "none") else ListenerKind(options.listener)
    choice: Choice = given or "none"
    if options.listener is None and getattr(user, "register", None) is not Register.WORLD:
        choice = other_listener(user)
    with naming_options(of_listener):
        server = EndpointConfig(**flag_settings(options, "listener")) if choice is ListenerKind.MODEL else None
        config = second_user(user, choice, server)
    if config and config.listener is ListenerKind.ENCODER:
        try:
            RuleUser(config).counts()
        except ValueError as error:  # its packages are not needed for anything else here
            if given:
                raise ConfigError(of_listener(str(error))) from error
            print(f"note: scored without a second listener: {error}", file=sys.stderr)
            return None
    return config


def hear_again(
    everything: Sequence[AgentDialogue], second: SecondListener, *, should_stop: Callable[[], bool]
) -> dict[str, dict[str, Any]]:
    """`second_listener` of `agent.json`: its score of the dialogues that did not break, and the gap; empty where it was stopped."""
    whole = sorted((one for one in everything if not one.is_broken), key=lambda one: (one.task.uid, one.sibling))
    heard = second.hear([one.dialogue for one in whole], should_stop=should_stop)
    if heard is None:
        return {}
    lines = []
    for one, found in zip(whole, heard, strict=True):
        final = {"final": score(one.dialogue, found["final"])} if "final" in found else {}
        lines.append({**dialogue_record(one.dialogue, strictness=one.task.strictness, **{SECOND: found | final}), "emotion": one.score})
    facts = {"world": world_of(second.user.config), "unheard": sum("error" in found for found in heard), "why": too_many_unheard(heard)}
    return {SECOND: {**facts, **summarise_second(lines)}}


async def play_and_judge(
    store: DialogueStore,
    missing: Sequence[tuple[EvaluationTask, int]],
    player: TextPlayer | ModelPlayer | None,
    judge: CapabilityJudge | None,
    *,
    concurrency: int,
    seed: int,
    should_stop: Callable[[], bool],
) -> tuple[list[AgentDialogue], dict[str, Estimate] | None, dict[str, Any]]:
    """Plays and records the missing dialogues; returns all of them, and the judge's grades as `CapabilityJudge.grade_all`."""
    everything = list(store.read().values())
    if player is not None:

        async def play(pair: tuple[EvaluationTask, int]) -> AgentDialogue:
            task, sibling = pair
            played = await player.play(store.bank.scenario(task.scenario_id), task, sibling)
            store.append(played)
            return played

        try:
            found = await run_all(
                missing,
                play,
                concurrency=concurrency,
                label="dialogues",
                is_failure=lambda played: played.is_broken,
                num_before=len(everything),
                should_stop=should_stop,
            )
        finally:
            await player.close()
        everything += [played for _, played in found]
    if judge is None:
        return everything, None, {"why_not": "no --judge-model was named"}
    try:
        whole = [one for one in everything if not one.is_broken]
        return everything, *await judge.grade_all(whole, seed=seed, should_stop=should_stop)
    finally:
        await judge.endpoints.close()


def describe(
    played: Sequence[AgentDialogue],
    setting: Setting,
    *,
    agent: Mapping[str, Any],
    samples: int,
    seed: int,
    by_judge: Mapping[str, Estimate] | None,
    judge: Mapping[str, Any],
    usage: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The contents of `agent.json`; dialogues that broke count in `errors` alone, and `usage` is of all sittings."""
    # In an order that does not depend on which ended first, so that sums are equal to the last bit.
    played = sorted(played, key=lambda one: (one.task.uid, one.sibling))
    whole = [one for one in played if not one.is_broken]
    register = getattr(setting.user_config, "register", None) or Register.OPEN
    replies, is_rule, compared = reply_features(whole, register), setting.user_kind == "rule", setting.to_dict()
    found = capabilities(replies, seed=seed) if is_rule else by_judge or {}
    return {
        "format": FORMAT,
        "agent": dict(agent),
        "setting": compared,
        "setting_id": hashlib.sha256(json.dumps(compared, sort_keys=True, default=str).encode()).hexdigest()[:12],
        "profiles": setting.bank_file,
        "samples": samples,
        "seed": seed,
        **scores(whole, seed=seed),
        **({"pressure": table} if (table := under_pressure(whole, seed=seed)) else {}),
        "outcomes": dict(sorted(Counter(str(one.dialogue.outcome) for one in played).items())),
        "errors": count_errors(played, num_planned=samples * len(setting.tasks())),
        "replies": {"answered": len(replies), "per_dialogue": len(replies) / len(whole) if whole else None},
        "capabilities": {
            "by": "rule" if is_rule else "judge" if by_judge else None,
            **judge,
            **{name: estimate.to_dict() for name, estimate in found.items()},
        },
        "strategies": {name: estimate.to_dict() for name, estimate in strategy_shares(replies, seed=seed).items()},
        "social_cognition": plane(replies, seed=seed),
        "length": length_control(whole, seed=seed, register=register),
        "best_of_k": best_of_k(whole, samples=samples, seed=seed),
        "usage": {who: dict(used) for who, used in usage.items()},
        "versions": versions(),
        "git_commit": git_commit(),
    }


def config_of(options: argparse.Namespace, agent: Agent, setting: Setting) -> dict[str, Any]:
    """The evaluation's `config.yaml`: everything that decides its dialogues, and its provenance."""
    system = agent.system_prompt(options.system)
    sampled = {"temperature": options.temperature, "system": system, "samples": options.samples, "seed": options.seed}
    if agent.kind == "server":
        sampled |= {"max_tokens": options.max_tokens or MODEL_TOKENS, "extra_body": options.extra_body, "send_seed": not options.no_seed}
    if agent.kind == "model":
        settings = ModelSettings.of(options, agent, max_turns=setting.max_turns)
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
    """The folder of an agent's evaluation and reliability probe; one with something else, or of another agent, is refused."""
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
            raise ConfigError(f"--out must be a folder of {in_words(agent.identity())}, got {got}")
    if not config and folder.is_dir() and {path.name for path in folder.iterdir()} - {RELIABILITY, ANSWERS}:
        raise ConfigError(f"--out must be new or an evaluation's folder, got {str(folder)!r}, which holds something else")
    return folder


def check_same_evaluation(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses to resume an evaluation with other settings, and names the first that differs."""

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
