"""How far simulated users stay who they are: every line judged, the user asked about itself, and what they let out.

Source: prompt-to-line, line-to-line and question-and-answer consistency of simulated users, with repaired definitions: what a judge says
that cannot be read is an error and never counts as consistent; conflicting lines are a set of earlier ones; it is whoever plays the user
that is asked, with its own prompt and history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

from analysis.personas.judges import Examiner, Judge, QuizVerdict, RuleExaminer, RuleJudge, lines_of
from analysis.personas.measures import BEFORE, Examined, measures, table
from analysis.personas.model_judge import ModelExaminer, ModelJudge
from analysis.personas.source import Source, flag_settings, source_of
from analysis.personas.wording import in_options, of_judge
from simulator.adversaries import quiz_of
from simulator.dialogue import Dialogue
from simulator.files import Progress, check_out, write_whole
from simulator.llm.client import Endpoints, check_endpoints
from simulator.llm.config import EndpointConfig
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import RuleUser


def persona(options: argparse.Namespace) -> str:
    """Runs the command; returns its table.

    Raises:
        ValueError: what was asked for cannot be had, or nothing could be judged.
    """
    if options.quiz_every < 0:
        raise ValueError(f"--quiz-every must be at least 0, got {options.quiz_every}")
    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")
    check_out(options.out)
    for name in ("strictness", "reserve"):
        wrong = [value for value in getattr(options, name) or () if not 0.0 <= value <= 1.0]
        if wrong:
            raise ValueError(f"--{name} must be in [0, 1], got {wrong[0]!r}")
    judges = judge_endpoints(options)
    source = source_of(options)
    judge_kind = options.judge or ("llm" if judges or source.kind == "llm" else "rule")
    if judge_kind == "llm" and judges is None:
        raise ValueError("--judge-model must name the model that judges, got none; give --judge-url as well, or --judge rule")
    if judge_kind == "rule" and any(dialogue.scenario.language != "en" for dialogue in source.dialogues):
        raise ValueError("--judge must be llm for dialogues that are not in English, got 'rule'")
    judge: Judge = ModelJudge(judges) if judge_kind == "llm" and judges else RuleJudge()
    examiner = examiner_of(source, options) if options.quiz_every else None
    examined = asyncio.run(_examine(source, judge, examiner, options))
    found = measures(examined, seed=options.seed)
    if found["num_judged"] == 0:
        raise ValueError(f"the judge must give answers that can be read, got none in {found['num_line_errors']}: {judge.complaint}")
    complaints = {"judge": judge.complaint, "user": examiner.complaint if examiner else ""}
    found = {"source": source.name, "user": source.kind, "judge": judge_kind, **found}
    found["complaints"] = {who: said for who, said in complaints.items() if said}
    if options.out is not None:
        write_whole(options.out, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return table(found)


def judge_endpoints(options: argparse.Namespace) -> Endpoints | None:
    """The judge's servers, looked at before anything starts; None where none are named."""
    settings = flag_settings(options, "judge")
    if options.judge == "rule" or not {"model", "urls"} & set(settings):
        return None
    return reached("judge", lambda: EndpointConfig(**settings))


def examiner_of(source: Source, options: argparse.Namespace) -> Examiner:
    """Who is asked: the embedded user, or the model that played."""
    if source.rule is not None:
        return RuleExaminer(RuleUser(source.rule))
    # The key is of the servers that played: another address gets none, unless one is named with it.
    played = {name: value for name, value in source.llm.items() if name != "api_key_env" or not options.user_url}
    settings = {**played, **flag_settings(options, "user")}
    if "model" not in settings:
        raise ValueError("--user-model must name the model that played the user, got none; --quiz-every 0 asks it nothing")
    return ModelExaminer(reached("user", lambda: LLMUserConfig(**settings)))


def reached(who: str, make: Callable[[], EndpointConfig]) -> Endpoints:
    """Servers that answer.

    Raises:
        ValueError: they do not, or a setting is wrong; in the words of the command line.
    """
    try:
        config = make()
        check_endpoints(config)
        return Endpoints(config)
    except ValueError as error:
        said = of_judge(str(error)) if who == "judge" else in_options(str(error), "--user-")
        raise ValueError(said) from None


async def _examine(source: Source, judge: Judge, examiner: Examiner | None, options: argparse.Namespace) -> list[Examined]:
    splits = dict.fromkeys(dialogue.scenario.split for dialogue in source.dialogues)
    cards = [scenario for split in splits for scenario in source.bank.scenarios(split)]
    with Progress("judging", sum(len(lines_of(dialogue)) for dialogue in source.dialogues)) as bar:

        async def one(dialogue: Dialogue) -> Examined:
            numbers = judged_lines(dialogue)
            lines = dict(zip(numbers, await asyncio.gather(*(judge.line(dialogue, number) for number in numbers)), strict=True))
            quiz = await _ask(dialogue, examiner) if examiner else {}
            bar.add(len(lines_of(dialogue)))
            return Examined(dialogue=dialogue, lines=lines, quiz=quiz, demands=await judge.demands(dialogue))

        async def _ask(dialogue: Dialogue, examiner: Examiner) -> dict[int, QuizVerdict | None]:
            async def after(number: int) -> QuizVerdict | None:
                turns = () if number == BEFORE else dialogue.turns[: lines_of(dialogue)[number][0] + 1]
                questions = quiz_of(dialogue.scenario, cards, seed=options.seed, turn=number)
                return await examiner.ask(replace(dialogue, turns=turns, outcome=None), questions)

            # A user that has left or was delighted is not asked any more.
            numbers = [BEFORE, *range(0, len(lines_of(dialogue)) - 1, options.quiz_every)]
            return dict(zip(numbers, await asyncio.gather(*map(after, numbers)), strict=True))

        try:
            return list(await asyncio.gather(*map(one, source.dialogues)))
        finally:
            await judge.close()
            if examiner:
                await examiner.close()


def judged_lines(dialogue: Dialogue) -> list[int]:
    """Numbers of the user's lines but for an opening that the scenario gives."""
    return [number for number, (_, turn) in enumerate(lines_of(dialogue)) if number or turn.text != dialogue.scenario.opening]
