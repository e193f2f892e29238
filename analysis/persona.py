"""How much users repeat what users have said before: lines word for word the same as one of an earlier dialogue.

A line is all that a user says in a turn. Openings are given by the scenario and farewells (the line with which a user leaves or parts
delighted) are few by nature; both are counted apart.

Whether a user's words fit how it feels: a reader of mood that knows no emotion and no rule, only words.

What judged dialogues come to: consistency, leaks and answers, over turns and by strictness, and the table of it.

How far simulated users stay who they are: every line judged, the user asked about itself, and what they let out.

Source: prompt-to-line, line-to-line and question-and-answer consistency of simulated users, with repaired definitions: what a judge says
that cannot be read is an error and never counts as consistent; conflicting lines are a set of earlier ones; it is whoever plays the user
that is asked, with its own prompt and history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.persona_judge import (
    Examiner,
    Judge,
    LineVerdict,
    ModelExaminer,
    ModelJudge,
    QuizVerdict,
    RuleExaminer,
    RuleJudge,
    Source,
    flag_settings,
    in_options,
    lines_of,
    names_the_wish,
    of_judge,
    source_of,
)
from analysis.stats import Estimate, Sample, drift, rank_correlation, share, slope_over_levels
from simulator.adversaries import quiz_of
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.files import Progress, check_out, write_whole
from simulator.llm.client import Endpoints, check_endpoints
from simulator.llm.config import EndpointConfig
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import RuleUser
from simulator.scenario import Scenario

FAREWELLS = (Outcome.DELIGHTED, Outcome.LEFT, Outcome.FAREWELL)


@dataclass(frozen=True, kw_only=True)
class Sameness:
    """Lines by kind, and how many of each had been said in an earlier dialogue; those said before in the same dialogue are separate."""

    num_lines: int
    """Without openings and farewells."""
    num_said_before: int
    num_repeated: int
    """Said before in the same dialogue."""
    num_openings: int
    num_openings_before: int
    num_farewells: int
    num_farewells_before: int

    @property
    def share(self) -> float:
        """Share of the lines that had been said before, [0, 1]; NaN without lines."""
        return self.num_said_before / self.num_lines if self.num_lines else float("nan")

    def lines(self) -> list[str]:
        """In words."""
        return [
            f"lines that an earlier dialogue had, word for word: {self.num_said_before} of {self.num_lines} ({100 * self.share:.1f} %), "
            f"besides openings ({self.num_openings_before} of {self.num_openings}) "
            f"and farewells ({self.num_farewells_before} of {self.num_farewells})",
            f"lines that the same dialogue had before: {self.num_repeated}",
        ]


def sameness(dialogues: Iterable[Dialogue]) -> Sameness:
    """Counts over dialogues in their order: of a line that occurs n times in different dialogues n - 1 had been said before."""
    known: set[str] = set()
    counts = dict.fromkeys(Sameness.__dataclass_fields__, 0)
    for dialogue in dialogues:
        own: set[str] = set()
        turns = [turn for turn in dialogue.turns if turn.speaker is Speaker.USER]
        for number, turn in enumerate(turns):
            is_last = number == len(turns) - 1 and number > 0
            kind = "openings" if number == 0 else "farewells" if is_last and dialogue.outcome in FAREWELLS else "lines"
            counts[f"num_{kind}"] += 1
            before = {"openings": "num_openings_before", "farewells": "num_farewells_before", "lines": "num_said_before"}[kind]
            counts[before] += turn.text in known
            counts["num_repeated"] += turn.text in own
            own.add(turn.text)
        known |= own
    return Sameness(**counts)


LEXICON = Path(__file__).parent / "valence.toml"
AT_EASE_FROM, HURT_BELOW = 70, 30
"""Emotion from which a user must not sound low, and below which it must not sound high; 70 is where SAGE's users are at ease."""


@dataclass(frozen=True, kw_only=True)
class Mood:
    """What a line sounds like; both or neither may be."""

    low: tuple[str, ...]
    """Words of somebody close to giving up."""
    high: tuple[str, ...]
    """Words of somebody at ease."""


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    with LEXICON.open("rb") as file:
        table = tomllib.load(file)
    classes = table.pop("classes")
    filled = {name: [re.sub(r"\{(\w+)\}", lambda found: classes[found[1]], item) for item in items] for name, items in table.items()}
    return {name: re.compile(rf"\b(?:{'|'.join(items)})\b", re.IGNORECASE) for name, items in filled.items()}


def mood_of(line: str, scenario: Scenario | None = None) -> Mood:
    """How a line sounds.

    Args:
        scenario: whose facts are story and not mood.
    """
    for fact in scenario.facts if scenario else ():
        line = line.replace(fact.text, " ")
    patterns = _patterns()
    taken_back = [found.span() for found in patterns["unless"].finditer(line)]

    def heard(kind: str) -> tuple[str, ...]:
        found = patterns[kind].finditer(line)
        return tuple(one.group().lower() for one in found if not any(one.start() < end and begin < one.end() for begin, end in taken_back))

    return Mood(low=heard("low"), high=heard("high"))


def contradicts_emotion(turn: Turn, scenario: Scenario) -> tuple[str, ...]:
    """The words of a user's turn that cannot be those of somebody who feels so; empty where they can."""
    if turn.emotion is None or AT_EASE_FROM > turn.emotion >= HURT_BELOW:
        return ()
    mood = mood_of(turn.text, scenario)
    return mood.low if turn.emotion >= AT_EASE_FROM else mood.high


BEFORE = -1
MAX_LEVELS = 6
"""Columns of strictness; more are put together."""
LINES = {
    "prompt_to_line": "prompt to line",
    "line_to_line": "line to line",
    "reveals_hidden": "wish said outright",
    "assistant_register": "speaks as assistants do",
    "fits_emotion": "words fit emotion",
    "names_the_wish": "wish hinted at overtly",
}
QUIZ = {"quiz": "questions right", "quiz_answered": "questions answered", "quiz_before": "right before dialogue"}
NAMES = {**LINES, **QUIZ}
"""Measure -> what it is called in the table."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A dialogue and what was found in it."""

    dialogue: Dialogue
    lines: dict[int, LineVerdict | None]
    """By number of the user's line, without an opening that the scenario gives word for word; None is an error."""
    quiz: dict[int, QuizVerdict | None]
    """By number of the line after which the user was asked, BEFORE for the round before the dialogue; None is an error."""
    demands: float | None
    """How demanding the user came across; None if that could not be judged."""


def measures(examined: Sequence[Examined], *, seed: int) -> dict[str, Any]:
    """Every measure: overall, by strictness, by turn, its drift over turns and its slope over strictness.

    Args:
        seed: of the bootstrap.
    """
    rng = np.random.default_rng(seed)
    by_measure = {name: Sample.of(rows) for name, rows in _rows(examined).items()}
    verdicts = [verdict for one in examined for verdict in one.lines.values()]
    heard = [one for one in examined if one.demands is not None]
    adherence = rank_correlation(
        [one.dialogue.scenario.scenario_id for one in heard],
        [one.dialogue.difficulty.strictness for one in heard],
        [one.demands or 0.0 for one in heard],
        rng=rng,
    )
    return {
        "num_dialogues": len(examined),
        "num_scenarios": len({one.dialogue.scenario.scenario_id for one in examined}),
        "num_judged": sum(verdict is not None for verdict in verdicts),
        "num_line_errors": verdicts.count(None),
        "num_quiz_errors": sum(list(one.quiz.values()).count(None) for one in examined),
        "num_unrated": len(examined) - len(heard),
        "measures": {name: _figures(sample, rng) for name, sample in by_measure.items() if sample.turn.size},
        "adherence_spearman": adherence.to_dict(),
        "same_lines": vars(sameness([one.dialogue for one in examined])),
    }


def _rows(examined: Sequence[Examined]) -> dict[str, list[tuple[str, int, int, float, float, float]]]:
    rows: dict[str, list[tuple[str, int, int, float, float, float]]] = {name: [] for name in NAMES}
    for index, one in enumerate(examined):
        who, level = one.dialogue.scenario.scenario_id, one.dialogue.difficulty.strictness
        for name, turn, part, whole in _measured(one):
            rows[name].append((who, index, turn, level, part, whole))
    return rows


def _measured(one: Examined) -> Iterator[tuple[str, int, float, float]]:
    """Measure, number of the line, part and whole, for everything that could be judged."""
    turns = [turn for _, turn in lines_of(one.dialogue)]
    for number, verdict in one.lines.items():
        if verdict is None:
            continue
        yield "prompt_to_line", number, not verdict.contradicts_card, 1
        yield "line_to_line", number, number - len(verdict.conflicts_with), number
        yield "reveals_hidden", number, verdict.reveals_hidden, 1
        yield "assistant_register", number, verdict.assistant_register, 1
        if one.dialogue.scenario.language == "en":
            yield "fits_emotion", number, not contradicts_emotion(turns[number], one.dialogue.scenario), 1
            yield "names_the_wish", number, names_the_wish(turns[number].text), 1
    for number, quiz in one.quiz.items():
        if quiz is None:
            continue
        if number == BEFORE:
            yield "quiz_before", 0, quiz.num_right, quiz.num_questions
        else:
            yield "quiz", number, quiz.num_right, quiz.num_questions
            yield "quiz_answered", number, quiz.num_answered, quiz.num_questions


def _figures(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    levels = {name: (sample.level >= low) & (sample.level < high) for name, low, high in level_bands(sample.level)}
    turns = {int(turn): sample.turn == turn for turn in np.unique(sample.turn)}
    return {
        "value": share(sample, rng=rng).to_dict(),
        "num": int(sample.turn.size),
        "drift_per_turn": drift(sample, rng=rng).to_dict(),
        "slope_over_strictness": slope_over_levels(sample, rng=rng).to_dict(),
        "by_strictness": {name: share(sample.where(mask), rng=rng).to_dict() for name, mask in levels.items() if mask.any()},
        "by_turn": {turn: share(sample.where(mask), rng=rng).to_dict() for turn, mask in turns.items()},
    }


def level_bands(levels: np.ndarray) -> list[tuple[str, float, float]]:
    """Name and bounds of each column: the strictnesses themselves if they are few, else fifths of the scale."""
    distinct = sorted({round(float(level), 6) for level in levels})
    if len(distinct) <= MAX_LEVELS:
        return [(f"{level:g}", level - 1e-6, level + 1e-6) for level in distinct]
    return [(f"{i / 5:g}-{(i + 1) / 5:g}", i / 5, (i + 1) / 5 + (i == 4) * 1e-6) for i in range(5)]


def table(found: dict[str, Any]) -> str:
    """What was found, a line for each measure."""
    listed = found["measures"]
    levels = list(dict.fromkeys(level for figures in listed.values() for level in figures["by_strictness"]))
    head = f"{found['source']}: {found['num_dialogues']} dialogues of the {found['user']} user, {found['num_scenarios']} scenarios"
    lines = [
        head,
        f"judge: {found['judge']}; {found['num_judged']} lines judged; could not be and count nowhere: {found['num_line_errors']} lines, "
        f"{found['num_quiz_errors']} rounds of questions, strictness of {found['num_unrated']} dialogues",
        *(f"the last complaint about the {who}: {said}" for who, said in found.get("complaints", {}).items()),
        "",
        f"{'':24}{'all [95 %]':21}{'drift a turn [95 %]':28}" + "".join(f"{f'd={level}':>10}" for level in levels),
    ]
    for name, figures in listed.items():
        value, slope = Estimate.from_dict(figures["value"]), Estimate.from_dict(figures["drift_per_turn"])
        by = [figures["by_strictness"].get(level) for level in levels]
        cells = "".join(f"{'-' if one is None or one['value'] is None else format(one['value'], '.3f'):>10}" for one in by)
        lines.append(f"{NAMES[name]:24}{value.text(3):21}{slope.text(4):28}{cells}")
    adherence = Estimate.from_dict(found["adherence_spearman"])
    lines += ["", f"strictness as it comes across against strictness asked for, rank correlation: {adherence.text(2)}"]
    return "\n".join([*lines, *Sameness(**found["same_lines"]).lines()])


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
