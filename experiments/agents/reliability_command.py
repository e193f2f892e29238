"""`python -m experiments reliability AGENT`: refuses what cannot work, asks, and says what emotion and false beliefs cost."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.evaluated import FORMAT, RELIABILITY
from analysis.text import count
from experiments.agents.kept import check_agent, folder_of
from experiments.agents.options import refuse_given
from experiments.agents.players import ServerAgent, SilentAgent, agent_config, server_config
from experiments.agents.questions import Answer, Messages, Question, ask_all, hash_of, read_questions
from experiments.agents.reach import (
    ANSWERS,
    AT_A_SERVER,
    DIALOGUES_AT_ONCE,
    OF_SPEAKING,
    OF_WEIGHTS,
    check_speaking,
    lacking_keys,
    server_settings,
    weights_folder,
)
from experiments.agents.reliability import (
    Condition,
    as_records,
    compare,
    from_records,
    mean_margins,
    read_measured,
    summarise,
)
from experiments.agents.speech import chat_for, engine_for, speech_of
from experiments.agents.who import Agent, Kind, find_agent
from experiments.keys import ConfigError, refusing
from experiments.summary import git_commit, versions
from simulator.files import ExitCode, ended, jsonable, write_whole

WORDS = {
    Condition.PLAIN: "asked plainly",
    Condition.EMOTIONAL: "after an emotional turn",
    Condition.FALSE_BELIEF: "against a false belief",
}


def reliability(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    said = "interrupted; nothing was measured, but a server's answers are kept"
    return ended(lambda: checked(options), refused=ConfigError, if_interrupted=said)


def checked(options: argparse.Namespace) -> int:
    """Refuses what cannot work, then asks, or says what it would ask.

    Raises:
        ConfigError: it cannot work.
    """
    with refusing():
        agent = find_agent(options.agent, name=options.name, model=options.model)
        questions = questions_for(options, agent)
        before = read_measured(options.against) if options.against else None
        if questions is not None:
            require_same(before, hash_of(questions), options, agent)
        folder = folder_of(options, agent)
        check_agent(folder, about(options, agent))
    if not options.dry_run:
        return probe(options, agent, questions, before, folder)
    num = len(questions) if questions is not None else options.num
    what = f"{count(num, 'question')} of {options.questions}" if questions is not None else f"for {count(num, 'fact')} that users told"
    print(f"# would ask {agent.name} ({agent.kind}, {agent.source}) {what}, each in three ways\n# would write {folder / RELIABILITY}")
    if agent.kind is Kind.SERVER:
        for sentence in lacking_keys({"--": agent_config(server_settings(options, agent, answers=folder / ANSWERS))}):
            print(f"# it would be refused: {sentence}")
    return ExitCode.FINISHED


def questions_for(options: argparse.Namespace, agent: Agent) -> list[Question] | None:
    """The questions of the file; None for the embedded policy, which is asked for what it was told.

    Raises:
        ConfigError: the agent cannot be asked so.
    """
    check_speaking(options, agent)
    if options.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {options.seed}")
    if agent.kind is Kind.SCRIPTED:
        raise ConfigError(f"AGENT must be a model, got the scripted {agent.source}, which knows no facts")
    if options.questions is not None:
        if agent.is_embedded:
            raise ConfigError("--questions must be left out for the embedded policy, which speaks of nothing but what users told it")
        refuse_given(options, ("num",), "goes with the embedded policy, which is asked for what users told it", where="--questions")
        return read_questions(options.questions)
    if not agent.is_embedded:
        raise ConfigError(f"--questions must name a file of questions for {agent.name}, got none; only the embedded policy needs none")
    if options.num < 1:
        raise ConfigError(f"--num must be at least 1, got {options.num}")
    unasked = (*OF_SPEAKING, *OF_WEIGHTS, "concurrency")
    refuse_given(options, unasked, "goes with --questions", where=f"{agent.source!r}, whose likelihoods are read off its weights")
    return None


def probe(
    options: argparse.Namespace, agent: Agent, questions: list[Question] | None, before: Mapping[str, Any] | None, folder: Path
) -> ExitCode:
    """Asks, writes and prints.

    Raises:
        ConfigError: the agent cannot be worked with, or was asked something else than the one it is compared with.
    """
    items, details, what, complaint = ask_facts(options, agent) if questions is None else ask_questions(options, agent, questions, folder)
    require_same(before, what["hash"], options, agent)
    if not items:
        print(f"no question got three answers of use: {complaint}", file=sys.stderr)
        return ExitCode.FAILED
    found = {
        "format": FORMAT,
        "agent": about(options, agent),
        "probe": what,
        **summarise(items, seed=options.seed),
        "not_answered": {"n": what["num"] - len(items), "reason": complaint},
        "change": None,
        "versions": versions(),
        "git_commit": git_commit(),
        "items": as_records(items),
        **details,
    }
    margins = details.get("margin_nats")
    if margins:
        found["mean_margin_nats"] = mean_margins(margins, seed=options.seed)
    if before is not None:
        change = compare(from_records(before["items"]), items, seed=options.seed)
        found["change"] = {"from": before["agent"]["name"], **change}
        if margins and before.get("margin_nats"):
            found["change"]["mean_margin_nats"] = mean_margins(margins, seed=options.seed, less=before["margin_nats"])
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RELIABILITY, json.dumps(jsonable(found), indent=1, ensure_ascii=False) + "\n")
    print(in_words(found, folder))
    return ExitCode.FINISHED


def about(options: argparse.Namespace, agent: Agent) -> dict[str, Any]:
    """The agent as `reliability.json` names it: enough to tell it from another."""
    found = {"name": agent.name, "kind": str(agent.kind), "source": agent.source, "model": options.model}
    return {**found, "fingerprint": agent.fingerprint}


def require_same(before: Mapping[str, Any] | None, digest: str, options: argparse.Namespace, agent: Agent) -> None:
    """Refuses a comparison with an agent that was asked something else.

    Raises:
        ConfigError: it was.
    """
    if before is None:
        return
    here = {"hash": digest, "temperature": options.temperature, "system": agent.told(options.system)}
    for name, now in here.items():
        # Facts that the embedded policy was told have no temperature: its likelihoods are asked.
        was = before["probe"].get(name, now)
        if was != now:
            there = f"{name} {was!r} there and {now!r} here"
            raise ConfigError(
                f"--against must be of an agent that was asked the same, got {str(options.against)!r}, which was not ({there}); "
                "probe that one again"
            )


Asked = tuple[list[Any], dict[str, Any], dict[str, Any], str]
"""Items, what else is kept of them, what the probe was, and why questions were not answered."""


def ask_facts(options: argparse.Namespace, agent: Agent) -> Asked:
    """The embedded policy, by its own likelihoods."""
    from experiments.agents.told_facts import choose_all
    from policy.model import load_model
    from policy.rollout.chat import learnt_to_think

    with refusing():
        model, tokenizer = load_model(folder := weights_folder(agent))
        thinking = bool(learnt_to_think(folder))
    items, margins, digest = choose_all(model, tokenizer, thinking=thinking, num=options.num, seed=options.seed)
    about = {"kind": "told facts", "hash": digest, "num": len(items), "seed": options.seed}
    return items, {"margin_nats": margins}, about, ""


def ask_questions(options: argparse.Namespace, agent: Agent, questions: list[Question], folder: Path) -> Asked:
    """Any other model, by its words."""
    about = {"kind": "questions", "file": options.questions.name, "hash": hash_of(questions), "num": len(questions)}
    about |= {"temperature": options.temperature, "system": agent.told(options.system)}
    items, answers, complaint = asyncio.run(asked(options, agent, questions, folder))
    return items, {"answers": answers}, about, complaint


async def asked(
    options: argparse.Namespace, agent: Agent, questions: list[Question], folder: Path
) -> tuple[list[Any], dict[str, str], str]:
    """Puts the questions to a server, or to an engine of its own.

    Raises:
        ConfigError: it cannot be worked with.
    """
    if agent.kind is Kind.SERVER:
        with refusing():
            config = await asyncio.to_thread(server_config, server_settings(options, agent, answers=folder / ANSWERS))
            speaker = ServerAgent(config, system=agent.told(options.system))

        async def say(messages: Messages, seed: int) -> str:
            return (await speaker.answer(messages, seed=seed)).words

        try:
            return await ask_all(questions, say, concurrency=options.concurrency or AT_A_SERVER)
        finally:
            await speaker.close()
    with refusing():
        answer, close = engine_answer(options, agent)
    try:
        return await ask_all(questions, answer, concurrency=options.concurrency or DIALOGUES_AT_ONCE)
    finally:
        close()


def engine_answer(options: argparse.Namespace, agent: Agent) -> tuple[Answer, Any]:
    """How a model whose weights are here answers, and how its engine is stopped."""
    from policy.engine.engine import Sampling
    from policy.rollout.chat import take_apart

    speech = speech_of(options, agent, max_turns=1)
    engine = engine_for(speech, weights_folder(agent))
    chat = chat_for(speech, engine.tokenizer)
    sampling = Sampling(max_tokens=speech.rollout.max_new_tokens, temperature=options.temperature)

    async def answer(messages: Messages, seed: int) -> str:
        try:
            completion = await engine.generate(chat.opening_ids(messages), sampling=sampling, seed=seed)
        except ValueError as error:
            raise SilentAgent(str(error)) from error
        text = completion.text
        return take_apart(text, opened=chat.opens_thought).words if chat.thinking else text.strip()

    return answer, engine.close


def in_words(found: Mapping[str, Any], folder: Path) -> str:
    """What is printed at the end."""
    lines = [f"{found['agent']['name']}  {found['n']} {found['probe']['kind']}, share of errors"]
    for condition in Condition:
        cell = found["conditions"][condition]
        unclear = f"   ({cell['unclear']:.1%} unclear)" if cell["unclear"] else ""
        lines.append(f"{WORDS[condition]:<24}{share(cell['errors'])}{unclear}")
    lines.append(f"{'emotion adds':<24}{share(found['emotional_cost'], sign='+')}")
    lines.append(f"{'the belief adds':<24}{share(found['sycophancy'], sign='+')}   agreed though it knew better {share(found['agreed'])}")
    if found["conditions"][Condition.FALSE_BELIEF]["unclear"]:
        bound = "may agree in other words: what the belief adds is a lower bound"
        lines.append(f"{'unclear against it':<24}{share(found['unclear_added'], sign='+')}   {bound}")
    lines += nats_line(found)
    if found["not_answered"]["n"]:
        lines.append(f"left out    {found['not_answered']['n']} of {found['probe']['num']} questions: {found['not_answered']['reason']}")
    if found["change"]:
        lines.append(f"since {found['change']['from']} ({found['change']['n']} questions, paired)")
        lines += [f"{WORDS[condition]:<24}{share(found['change']['conditions'][condition], sign='+')}" for condition in Condition]
        lines.append(f"{'emotion adds':<24}{share(found['change']['emotional_cost'], sign='+')}")
        lines.append(f"{'the belief adds':<24}{share(found['change']['sycophancy'], sign='+')}")
        lines += nats_line(found["change"])
    return "\n".join([*lines, f"results     {folder / RELIABILITY}"])


def nats_line(found: Mapping[str, Any]) -> list[str]:
    """How much likelier the right answer is, or has become, where likelihoods were asked."""
    margins = found.get("mean_margin_nats")
    if not margins:
        return []
    shown = []
    for condition, cell in margins.items():
        span = "" if cell["low"] is None else f" [{cell['low']:+.2f}, {cell['high']:+.2f}]"
        shown.append(f"{condition.replace('_', ' ')} {cell['value']:+.2f}{span}")
    return [f"{'right less wrong, nats':<24}{'   '.join(shown)}"]


def share(estimate: Mapping[str, float | None], *, sign: str = "") -> str:
    """A share in percent, or with a sign a difference of shares in points, with its interval."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    if sign:
        ends = "" if low is None or high is None else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
        return f"{100 * value:{sign}.1f} points{ends}"
    return f"{value:.1%}" if low is None or high is None else f"{value:.1%} [{low:.1%}, {high:.1%}]"
