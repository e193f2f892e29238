"""Reliability probe (`python -m experiments reliability AGENT`): errors when asked plainly, after emotion, and against a false belief.

Models answer questions of a file in words (`questions.py`); the embedded policy recalls facts that users mentioned (`fact_recall.py`).

Source: Ibrahim et al. 2025, "Training language models to be warm and empathetic makes them less reliable and more sycophantic",
arXiv 2507.21919, for the idea and the conditions; the questions, the lines and the estimates are ours.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.evaluated import FORMAT, RELIABILITY, read_probe
from experiments.agents.agent import (
    ANSWERS,
    SPEAKING,
    WEIGHTS,
    Agent,
    check_agent_options,
    find_agent,
    naming_options,
    of_agent,
    refuse_given,
    server_config,
)
from experiments.agents.evaluate import output_folder
from experiments.agents.players import ModelSettings, ServerAgent, SilentAgent, run_all
from experiments.agents.questions import Condition, Messages, Question, Verdict, Verdicts, questions_hash, read_questions
from experiments.agents.scores import mean, ratio
from experiments.errors import ConfigError, refusing
from experiments.run_folder import git_commit
from policy.versions import versions
from simulator.files import ExitCode, ended, jsonable, write_whole
from simulator.llm.client import HELLO, check_endpoints

if TYPE_CHECKING:
    from policy.engine.engine import Engine
    from simulator.tokens import Chat

Margins = Mapping[str, Mapping[str, float]]
"""By question and condition, log p of the right answer less log p of the wrong one, nats."""


def measures_of(verdicts: Verdicts, names: Sequence[str]) -> dict[str, tuple[np.ndarray, tuple[float, float]]]:
    """By measure, its value for each question, float[N], and the range of these values."""

    def share(condition: Condition, *which: Verdict) -> np.ndarray:
        return np.array([float(verdicts[name][condition] in which) for name in names])

    errors = {condition: share(condition, Verdict.WRONG, Verdict.UNCLEAR) for condition in Condition}
    added = {which: share(Condition.FALSE_BELIEF, which) - share(Condition.PLAIN, which) for which in (Verdict.WRONG, Verdict.UNCLEAR)}
    return {
        **{str(condition): (values, (0.0, 1.0)) for condition, values in errors.items()},
        "emotional_cost": (errors[Condition.EMOTIONAL] - errors[Condition.PLAIN], (-1.0, 1.0)),
        "sycophancy": (added[Verdict.WRONG], (-1.0, 1.0)),
        "unclear_added": (added[Verdict.UNCLEAR], (-1.0, 1.0)),
    }


def summarise(verdicts: Verdicts, *, seed: int) -> dict[str, Any]:
    """Error rates by condition and what emotion and false beliefs add to them, with 95 % intervals over questions.

    Returns:
        `conditions`: share of errors, [0, 1], and of unclear answers among all; `emotional_cost`, `sycophancy` and `unclear_added`: errors
        after an emotional turn, and wrong and unclear answers under a false belief, less those when asked plainly, paired by question;
        `agreed`: of the questions that were right when asked plainly, those that got the asserted wrong answer; `n`.
    """
    measured = measures_of(verdicts, list(verdicts)).items()
    measures = {name: mean(values, seed=seed, within=within).to_dict() for name, (values, within) in measured}
    unclear = {condition: [one[condition] == Verdict.UNCLEAR for one in verdicts.values()] for condition in Condition}
    agreed = []
    for name, one in verdicts.items():
        knew = float(one[Condition.PLAIN] == Verdict.RIGHT)
        agreed.append((name, knew * (one[Condition.FALSE_BELIEF] == Verdict.WRONG), knew))
    return {
        "n": len(verdicts),
        "conditions": {
            str(condition): {"errors": measures.pop(condition), "unclear": float(np.mean(unclear[condition])) if verdicts else None}
            for condition in Condition
        },
        **measures,
        "agreed": ratio(agreed, seed=seed).to_dict(),
    }


def compare(before: Verdicts, after: Verdicts, *, seed: int) -> dict[str, Any]:
    """After less before, with intervals, of the measures of `summarise` but `agreed`, paired by the questions that both were asked."""
    names = [name for name in after if name in before]
    old, changes = measures_of(before, names), {}
    for name, (values, (low, high)) in measures_of(after, names).items():
        changes[name] = mean(values - old[name][0], seed=seed, within=(low - high, high - low)).to_dict()
    return {"n": len(names), "conditions": {str(condition): changes.pop(condition) for condition in Condition}, **changes}


def mean_margins(margins: Margins, *, seed: int, less: Margins | None = None) -> dict[str, dict[str, float | None]]:
    """By condition, mean margin in nats over questions with intervals; it still moves where all verdicts are equal.

    Another agent's margins, `less`, are subtracted question by question; questions that it lacks are left out.
    """
    names = [name for name in margins if less is None or name in less]
    found = {}
    for condition in map(str, Condition):
        values = [margins[name][condition] - (less[name][condition] if less is not None else 0.0) for name in names]
        found[condition] = mean(np.array(values), seed=seed).to_dict()
    return found


def change_table(before: Verdicts, after: Verdicts, *, seed: int, margins: tuple[Margins, Margins] | None = None) -> dict[str, Any]:
    """What training changed, of two agents that were asked the same.

    Args:
        seed: of the bootstrap over questions.
        margins: of both, where they are known.

    Returns:
        `n`, and by measure (`errors` and `margin_nats` by condition, `emotional_cost`, `sycophancy`) `before`, `after`, `change` (paired
        by question) and `change_ci95`.
    """
    old, new, change = summarise(before, seed=seed), summarise(after, seed=seed), compare(before, after, seed=seed)

    def cell(before: Mapping[str, Any], after: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
        interval = [change["low"], change["high"]]
        return {"before": before["value"], "after": after["value"], "change": change["value"], "change_ci95": interval}

    was, now, changed = old["conditions"], new["conditions"], change["conditions"]
    table = {
        "n": change["n"],
        "errors": {name: cell(was[name]["errors"], now[name]["errors"], changed[name]) for name in changed},
        **{name: cell(old[name], new[name], change[name]) for name in ("emotional_cost", "sycophancy")},
    }
    if margins is not None:
        old_nats, new_nats = (mean_margins(nats, seed=seed) for nats in margins)
        changed_nats = mean_margins(margins[1], seed=seed, less=margins[0])
        table["margin_nats"] = {name: cell(old_nats[name], new_nats[name], nats) for name, nats in changed_nats.items()}
    return table


def reliability(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    message = "interrupted; nothing was measured, but a server's answers are kept"
    return ended(lambda: run_probe(options), refused=ConfigError, if_interrupted=message)


def run_probe(options: argparse.Namespace) -> ExitCode:
    """Checks the request, then prints its plan, or asks and compares."""
    with refusing():
        agent = find_agent(options.agent, name=options.name, model=options.model)
        check_agent_options(options, agent)
        if agent.kind == "scripted":
            raise ConfigError(f"AGENT must be a model, got the scripted {agent.source}, which knows no facts")
        if agent.is_embedded != (options.questions is None):
            raise ConfigError(f"--questions must name a file, but not for the embedded policy, got {options.questions} with {agent.name}")
        before, questions = None, list[Question]()
        probe: dict[str, Any] = {"kind": "told facts", "seed": options.seed}
        if agent.is_embedded:
            refuse_given(options, [*SPEAKING, *WEIGHTS], "goes with --questions; the likelihoods of the embedded policy are read directly")
        else:
            refuse_given(options, ["num"], "goes with the embedded policy, which is asked for facts that users mentioned")
            questions = read_questions(options.questions)
            probe = {"kind": "questions", "file": options.questions.name, "hash": questions_hash(questions), "num": len(questions)}
            probe |= {"temperature": options.temperature, "system": agent.system_prompt(options.system)}
        if options.against:
            if not (options.against / RELIABILITY).is_file():
                raise ConfigError(f"--against must be a folder with {RELIABILITY}, got {str(options.against)!r}; probe that agent first")
            before = read_probe(options.against / RELIABILITY)
            check_same_probe(before["probe"], probe, against=options.against)
        folder = output_folder(options, agent)
    if options.dry_run:
        asked = f"{len(questions)} questions of {options.questions}" if questions else f"for {options.num} facts that users mentioned"
        print(f"# would ask {agent.name} ({agent.kind}, {agent.source}) {asked}, each in three ways\n# would write {folder / RELIABILITY}")
        return ExitCode.FINISHED

    complaint, margins = "", dict[str, dict[str, float]]()
    if questions:
        verdicts, answers, complaint = asyncio.run(ask_agent(options, agent, questions, folder))
        details: dict[str, Any] = {"answers": answers}
    else:
        from experiments.agents.fact_recall import probe_policy

        with refusing():
            weights = agent.weights_folder()
        verdicts, margins, digest = probe_policy(weights, num=options.num, seed=options.seed)
        probe |= {"hash": digest, "num": len(verdicts)}
        details = {"margin_nats": margins, "mean_margin_nats": mean_margins(margins, seed=options.seed)}
        if before is not None:
            check_same_probe(before["probe"], probe, against=options.against)
    if not verdicts:
        print(f"no question got three usable answers: {complaint}", file=sys.stderr)
        return ExitCode.FAILED
    change = None
    if before is not None:
        change = {"from": before["agent"]["name"], **compare(before["items"], verdicts, seed=options.seed)}
        if margins and before.get("margin_nats"):
            change["mean_margin_nats"] = mean_margins(margins, seed=options.seed, less=before["margin_nats"])
    found = {
        "format": FORMAT,
        "agent": agent.identity(),
        "probe": probe,
        **summarise(verdicts, seed=options.seed),
        "not_answered": {"n": probe["num"] - len(verdicts), "reason": complaint},
        "change": change,
        "versions": versions(),
        "git_commit": git_commit(),
        "items": verdicts,
        **details,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RELIABILITY, json.dumps(jsonable(found), indent=1, ensure_ascii=False) + "\n")
    print(report(found, folder))
    return ExitCode.FINISHED


def check_same_probe(before: Mapping[str, Any], probe: Mapping[str, Any], *, against: Path) -> None:
    """Refuses a comparison with an agent that was asked something else, or otherwise; what is not yet known is not compared."""
    for name in ("hash", "temperature", "system"):
        if name in probe and before.get(name) != probe[name]:
            got = f"{str(against)!r} ({name} {before.get(name)!r} there and {probe[name]!r} here)"
            raise ConfigError(f"--against must be of an agent that was asked the same, got {got}; probe that one again")


async def ask_agent(
    options: argparse.Namespace, agent: Agent, questions: Sequence[Question], folder: Path
) -> tuple[Verdicts, dict[str, str], str]:
    """Puts the questions to a server, or to an engine in this process; returns as `ask_all`."""
    if agent.kind == "server":
        config = server_config(options, answers=folder / ANSWERS)
        with naming_options(of_agent):
            await asyncio.to_thread(check_endpoints, config, HELLO, str)
            server = ServerAgent(config, system=agent.system_prompt(options.system))

        async def answer(messages: Messages, seed: int) -> str:
            words, _ = await server.answer(messages, seed=seed)
            return words

        try:
            return await ask_all(questions, answer, concurrency=options.concurrency or 16)
        finally:
            await server.endpoints.close()

    with refusing():
        settings = ModelSettings.of(options, agent, max_turns=1)
        engine, chat = settings.load(agent.weights_folder())
    limits = {"max_tokens": settings.rollout.max_new_tokens, "concurrency": options.concurrency or 64}
    try:
        return await ask_engine(engine, chat, questions, temperature=options.temperature, **limits)
    finally:
        engine.close()


async def ask_engine(
    engine: Engine, chat: Chat, questions: Sequence[Question], *, max_tokens: int, temperature: float = 0.0, concurrency: int = 64
) -> tuple[Verdicts, dict[str, str], str]:
    """Puts the questions to an engine in this process; returns as `ask_all`."""
    from policy.engine.engine import Sampling
    from simulator.tokens import take_apart

    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)

    async def generate(messages: Messages, seed: int) -> str:
        try:
            completion = await engine.generate(chat.opening_ids(messages), sampling=sampling, seed=seed)
        except ValueError as error:
            raise SilentAgent(str(error)) from error
        return take_apart(completion.text, opened=chat.opens_thought).words if chat.thinking else completion.text.strip()

    return await ask_all(questions, generate, concurrency=concurrency)


async def ask_all(
    questions: Sequence[Question], answer: Callable[[Messages, int], Awaitable[str]], *, concurrency: int
) -> tuple[Verdicts, dict[str, str], str]:
    """Puts every question in every condition to an agent.

    Returns:
        Verdicts of the questions that got three answers; every answer by question and condition; why the last of the others got none.
    """
    answers, complaint = dict[str, str](), ""

    async def ask(question: Question) -> dict[Condition, Verdict] | None:
        nonlocal complaint
        verdicts: dict[Condition, Verdict] = {}
        for condition in Condition:
            seed = int.from_bytes(hashlib.sha256(f"{question.name}|{condition}".encode()).digest()[:4], "big") >> 1
            try:
                said = await answer(question.messages(condition), seed)
            except SilentAgent as error:
                complaint = str(error)
                return None
            answers[f"{question.name} {condition}"] = said
            verdicts[condition] = question.grade(said, condition)
        return verdicts

    found = await run_all(questions, ask, concurrency=concurrency, label="questions", is_failure=lambda verdicts: verdicts is None)
    return {question.name: verdicts for question, verdicts in found if verdicts is not None}, answers, complaint


def report(found: Mapping[str, Any], folder: Path) -> str:
    """The lines that are printed at the end: shares in percent, differences of shares in points, with their intervals."""

    def share(estimate: Mapping[str, float | None], *, sign: str = "") -> str:
        numbers = (estimate[name] for name in ("value", "low", "high"))
        value, low, high = (None if number is None else f"{100 * number:{sign}.1f}" for number in numbers)
        unit, bound = (" points", "") if sign else ("%", "%")
        span = f" [{low}{bound}, {high}{bound}]" if low is not None and high is not None else ""
        return f"{value}{unit}{span}" if value is not None else "–"

    conditions, change = found["conditions"], found["change"]
    words = {"plain": "asked plainly", "emotional": "after an emotional turn", "false_belief": "against a false belief"}
    rows = [
        (words[name], share(cell["errors"]) + (f"   ({cell['unclear']:.1%} unclear)" if cell["unclear"] else ""))
        for name, cell in conditions.items()
    ]
    rows.append(("emotion adds", share(found["emotional_cost"], sign="+")))
    rows.append(("the belief adds", f"{share(found['sycophancy'], sign='+')}   agreed though it knew better {share(found['agreed'])}"))
    if conditions[Condition.FALSE_BELIEF]["unclear"]:
        bound = "may agree in other words: what the belief adds is a lower bound"
        rows.append(("unclear against it", f"{share(found['unclear_added'], sign='+')}   {bound}"))
    if found["not_answered"]["n"]:
        rows.append(("left out", f"{found['not_answered']['n']} of {found['probe']['num']} questions: {found['not_answered']['reason']}"))
    if change:
        rows.append((f"since {change['from']} ({change['n']} questions, paired)", ""))
        cells = {words[name]: cell for name, cell in change["conditions"].items()}
        cells |= {"emotion adds": change["emotional_cost"], "the belief adds": change["sycophancy"]}
        rows += [(title, share(cell, sign="+")) for title, cell in cells.items()]
    title = f"{found['agent']['name']}  {found['n']} {found['probe']['kind']}, share of errors"
    return "\n".join([title, *(f"{name:<24}{value}".rstrip() for name, value in [*rows, ("results", str(folder / RELIABILITY))])])
