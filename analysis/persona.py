"""Whether simulated users stay who they are: every line judged, the user asked about itself, and slips of its words.

Source: prompt-to-line, line-to-line and question-and-answer consistency of simulated users, with repaired definitions: an answer of the
judge that cannot be read is an error and never counts as consistent; conflicting lines are a set of earlier ones; the model that plays the
user is asked itself, with its own prompt and history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from analysis.persona_judge import (
    Examiner,
    Judge,
    LineVerdict,
    ModelExaminer,
    ModelJudge,
    QuizVerdict,
    RuleExaminer,
    RuleJudge,
    lines_of,
)
from analysis.stats import Estimate, Sample, rank_correlation
from simulator.dialogue import Dialogue, Outcome, Turn
from simulator.emotion import hint_in
from simulator.explain import follows_rule, read_dialogues, recorded_config, transcript_file, user_settings
from simulator.files import Progress, check_out, write_whole
from simulator.llm.client import Endpoints, check_endpoints
from simulator.llm.config import EndpointConfig
from simulator.llm.quiz import quiz_of
from simulator.llm.user import LLMUserConfig
from simulator.options import flag_settings, in_options, of_judge
from simulator.pressure import every_scenario
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.settings import message
from simulator.user import make_bank
from simulator.world import Bank, load_bank


@dataclass(frozen=True, kw_only=True)
class Source:
    """Dialogues, and the settings of the user that played them."""

    name: str
    dialogues: tuple[Dialogue, ...]
    kind: str
    """Of the user: `rule`, `llm`, or one that a study registers."""
    bank: Bank
    rule: RuleUserConfig | None
    llm: dict[str, Any]
    """Settings of the model that played, as far as they are known."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Source:
        """The dialogues that the options name.

        Raises:
            ValueError: there are none, or they cannot be read.
        """
        if options.play is not None:
            if options.play < 1:
                raise ValueError(f"--play must be at least 1, got {options.play}")
            if options.user == "llm":
                raise ValueError("--user must be rule with --play, got 'llm'; play them in a run and give its folder")
            config, grid = RuleUserConfig(), {"strictness": options.strictness, "reserve": options.reserve}
            dialogues = []
            with Progress("playing", options.play) as bar:
                for dialogue in played(options.play, **grid, split=Split(options.split), seed=options.seed, user=RuleUser(config)):
                    dialogues.append(dialogue)
                    bar.add()
            name = f"{options.play} played on {options.split} scenarios"
            return cls(name=name, dialogues=tuple(dialogues), kind="rule", bank=every_scenario(), rule=config, llm={})
        path = transcript_file(options.dialogues, evaluation=options.evaluation)
        if options.num < 1:
            raise ValueError(f"--num must be at least 1, got {options.num}")
        settings = recorded_config(path).get("simulator") or {}
        kind = options.user or str(settings.get("kind") or "rule")
        llm = {field.name: settings[field.name] for field in fields(LLMUserConfig) if field.name in settings} if kind == "llm" else {}
        bank = make_bank(LLMUserConfig(**{"model": "unknown", **llm})) if kind == "llm" else every_scenario()

        def answered() -> Iterator[Dialogue]:
            for number, (_, dialogue) in enumerate(read_dialogues(path, bank), start=1):
                if dialogue.outcome is not Outcome.ERROR and dialogue.num_replies:
                    try:
                        dialogue.require_feelings()
                    except ValueError as error:
                        raise ValueError(f"{path} line {number}: {error}") from error
                    yield dialogue

        dialogues = drawn(answered(), options.num, seed=options.seed)
        if not dialogues:
            raise ValueError(f"{path} must hold a dialogue that was answered, got none")
        rule = user_settings({**settings, "kind": kind}) if follows_rule(kind) else None
        return cls(name=str(path), dialogues=tuple(dialogues), kind=kind, bank=bank, rule=rule, llm=llm)


def drawn(dialogues: Iterator[Dialogue], num: int, *, seed: int) -> list[Dialogue]:
    """So many of a stream, each with the same chance, in their order (reservoir sampling)."""
    chance, kept = random.Random(f"drawn|{seed}"), list[tuple[int, Dialogue]]()
    for place, dialogue in enumerate(dialogues):
        if len(kept) < num:
            kept.append((place, dialogue))
        elif (slot := chance.randrange(place + 1)) < num:
            kept[slot] = (place, dialogue)
    return [dialogue for _, dialogue in sorted(kept, key=lambda pair: pair[0])]


def played(
    num: int,
    *,
    strictness: Sequence[float],
    user: RuleUser,
    reserve: Sequence[float] | None = None,
    split: Split = Split.TRAIN,
    agents: Sequence[str] = tuple(AGENTS),
    seed: int = 0,
) -> Iterator[Dialogue]:
    """Dialogues over the grid of strictness, reserve and agents, each cell as often as any other; scenarios come in shuffled rounds.

    Args:
        reserve: instead of the reserve that follows from strictness; None keeps that.
        agents: of the ladder, by name.
    """
    chance = random.Random(f"played|{seed}")
    cells = [(d, r, agent) for d in strictness for r in reserve or (None,) for agent in agents]
    scenarios = list(load_bank().scenarios(split))
    for i in range(num):
        if i % len(cells) == 0:
            chance.shuffle(cells)
        if i % len(scenarios) == 0:
            chance.shuffle(scenarios)
        d, r, agent = cells[i % len(cells)]
        difficulty = Difficulty.along(d) if r is None else replace(Difficulty.along(d), reserve=r)
        yield play(AGENTS[agent], scenarios[i % len(scenarios)], difficulty, seed=chance.randrange(2**31), user=user)


def repeated_lines(dialogues: Iterable[Dialogue]) -> dict[str, int]:
    """How many of the users' lines had been said word for word in an earlier dialogue, and how many before in the same one.

    Openings are given by the scenario and farewells are few by nature; both are counted apart from other lines.
    """
    farewells = (Outcome.DELIGHTED, Outcome.LEFT, Outcome.FAREWELL)
    known: set[str] = set()
    counts = Counter[Any]()
    for dialogue in dialogues:
        own: set[str] = set()
        turns = [turn for _, turn in lines_of(dialogue)]
        for number, turn in enumerate(turns):
            is_last = number == len(turns) - 1 and number > 0
            kind = "opening" if number == 0 else "farewell" if is_last and dialogue.outcome in farewells else "line"
            counts[kind] += 1
            counts[kind, "before"] += turn.text in known
            counts["repeated"] += turn.text in own
            own.add(turn.text)
        known |= own
    return {
        "num_lines": counts["line"],
        "num_said_before": counts["line", "before"],
        "num_repeated": counts["repeated"],
        "num_openings": counts["opening"],
        "num_openings_before": counts["opening", "before"],
        "num_farewells": counts["farewell"],
        "num_farewells_before": counts["farewell", "before"],
    }


AT_EASE_FROM, HURT_BELOW = 70, 30
"""Emotion from which a user must not sound low, and below which it must not sound high; 70 is where SAGE's users are at ease."""


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    table = tomllib.loads(Path(__file__).with_name("valence.toml").read_text(encoding="utf-8"))
    classes = table.pop("classes")
    filled = {name: [re.sub(r"\{(\w+)\}", lambda found: classes[found[1]], item) for item in items] for name, items in table.items()}
    return {name: re.compile(rf"\b(?:{'|'.join(items)})\b", re.IGNORECASE) for name, items in filled.items()}


def mood_of(line: str, scenario: Scenario | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words of a line of somebody close to giving up, and of somebody at ease; both or neither may be there.

    Args:
        scenario: its facts are story and not mood.
    """
    for fact in scenario.facts if scenario else ():
        line = line.replace(fact.text, " ")
    taken_back = [found.span() for found in _patterns()["unless"].finditer(line)]

    def heard(kind: str) -> tuple[str, ...]:
        found = _patterns()[kind].finditer(line)
        return tuple(one.group().lower() for one in found if not any(one.start() < end and begin < one.end() for begin, end in taken_back))

    return heard("low"), heard("high")


def contradicts_emotion(turn: Turn, scenario: Scenario) -> tuple[str, ...]:
    """The words of a user's turn that do not fit its emotion; empty where they do."""
    if turn.emotion is None or AT_EASE_FROM > turn.emotion >= HURT_BELOW:
        return ()
    low, high = mood_of(turn.text, scenario)
    return low if turn.emotion >= AT_EASE_FROM else high


BEFORE = -1
NAMES = {
    "prompt_to_line": "prompt to line",
    "line_to_line": "line to line",
    "reveals_hidden": "wish said outright",
    "assistant_register": "speaks as assistants do",
    "fits_emotion": "words fit emotion",
    "names_the_wish": "wish hinted at overtly",
    "quiz": "questions right",
    "quiz_answered": "questions answered",
    "quiz_before": "right before dialogue",
}
"""Measure -> its name in the table."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A dialogue with its verdicts."""

    dialogue: Dialogue
    lines: dict[int, LineVerdict | None]
    """By number of the user's line, without an opening that the scenario gives word for word; None is an error."""
    quiz: dict[int, QuizVerdict | None]
    """By number of the line after which the user was asked, BEFORE for the round before the dialogue; None is an error."""
    demands: float | None
    """How demanding the user came across; None if that could not be judged."""

    def measured(self) -> Iterator[tuple[str, int, float, float]]:
        """Measure, number of the line, part and whole, for everything that could be judged."""
        turns = [turn for _, turn in lines_of(self.dialogue)]
        for number, verdict in self.lines.items():
            if verdict is None:
                continue
            yield "prompt_to_line", number, not verdict.contradicts_card, 1
            yield "line_to_line", number, number - len(verdict.conflicts_with), number
            yield "reveals_hidden", number, verdict.reveals_hidden, 1
            yield "assistant_register", number, verdict.assistant_register, 1
            if self.dialogue.scenario.language == "en":
                yield "fits_emotion", number, not contradicts_emotion(turns[number], self.dialogue.scenario), 1
                yield "names_the_wish", number, hint_in(turns[number].text, kinds=("overt",)) is not None, 1
        for number, quiz in self.quiz.items():
            if quiz is None:
                continue
            if number == BEFORE:
                yield "quiz_before", 0, quiz.num_right, quiz.num_questions
            else:
                yield "quiz", number, quiz.num_right, quiz.num_questions
                yield "quiz_answered", number, quiz.num_answered, quiz.num_questions


def measures(examined: Sequence[Examined], *, seed: int) -> dict[str, Any]:
    """Every measure: overall, by strictness, by turn, its drift over turns and its slope over strictness.

    Args:
        seed: of the bootstrap.
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, list[tuple[str, int, int, float, float, float]]] = {name: [] for name in NAMES}
    for index, one in enumerate(examined):
        who, level = one.dialogue.scenario.scenario_id, one.dialogue.difficulty.strictness
        for name, turn, part, whole in one.measured():
            rows[name].append((who, index, turn, level, part, whole))
    samples = {name: Sample.of(found) for name, found in rows.items()}

    def figures(sample: Sample) -> dict[str, Any]:
        # Columns are the strictnesses themselves if they are few, else fifths of the scale.
        distinct = sorted({round(float(level), 6) for level in sample.level})
        bands = [(f"{level:g}", level - 1e-6, level + 1e-6) for level in distinct]
        if len(distinct) > 6:
            bands = [(f"{i / 5:g}-{(i + 1) / 5:g}", i / 5, (i + 1) / 5 + (i == 4) * 1e-6) for i in range(5)]
        levels = {name: (sample.level >= low) & (sample.level < high) for name, low, high in bands}
        turns = {int(turn): sample.turn == turn for turn in np.unique(sample.turn)}
        return {
            "value": sample.share(rng=rng).to_dict(),
            "num": int(sample.turn.size),
            "drift_per_turn": sample.drift(rng=rng).to_dict(),
            "slope_over_strictness": sample.slope_over_levels(rng=rng).to_dict(),
            "by_strictness": {name: sample.where(mask).share(rng=rng).to_dict() for name, mask in levels.items() if mask.any()},
            "by_turn": {turn: sample.where(mask).share(rng=rng).to_dict() for turn, mask in turns.items()},
        }

    verdicts = [verdict for one in examined for verdict in one.lines.values()]
    rated = [one for one in examined if one.demands is not None]
    adherence = rank_correlation(
        [one.dialogue.scenario.scenario_id for one in rated],
        [one.dialogue.difficulty.strictness for one in rated],
        [one.demands or 0.0 for one in rated],
        rng=rng,
    )
    return {
        "num_dialogues": len(examined),
        "num_scenarios": len({one.dialogue.scenario.scenario_id for one in examined}),
        "num_judged": sum(verdict is not None for verdict in verdicts),
        "num_line_errors": verdicts.count(None),
        "num_quiz_errors": sum(list(one.quiz.values()).count(None) for one in examined),
        "num_unrated": len(examined) - len(rated),
        "measures": {name: figures(sample) for name, sample in samples.items() if sample.turn.size},
        "adherence_spearman": adherence.to_dict(),
        "same_lines": repeated_lines(one.dialogue for one in examined),
    }


def table(found: Mapping[str, Any]) -> str:
    """The findings, a line for each measure."""
    listed = found["measures"]
    levels = list(dict.fromkeys(level for figures in listed.values() for level in figures["by_strictness"]))
    lines = [
        f"{found['source']}: {found['num_dialogues']} dialogues of the {found['user']} user, {found['num_scenarios']} scenarios",
        f"judge: {found['judge']}; {found['num_judged']} lines judged; could not be and count nowhere: {found['num_line_errors']} lines, "
        f"{found['num_quiz_errors']} rounds of questions, strictness of {found['num_unrated']} dialogues",
        *(f"the last complaint about the {who}: {complaint}" for who, complaint in found["complaints"].items()),
        "",
        f"{'':24}{'all [95 %]':21}{'drift a turn [95 %]':28}" + "".join(f"{f'd={level}':>10}" for level in levels),
    ]
    for name, figures in listed.items():
        value, slope = Estimate.from_dict(figures["value"]), Estimate.from_dict(figures["drift_per_turn"])
        by = [figures["by_strictness"].get(level) for level in levels]
        cells = "".join(f"{'-' if one is None or one['value'] is None else format(one['value'], '.3f'):>10}" for one in by)
        lines.append(f"{NAMES[name]:24}{value.text(3):21}{slope.text(4):28}{cells}")
    adherence, same = Estimate.from_dict(found["adherence_spearman"]), found["same_lines"]
    percent = 100.0 * same["num_said_before"] / same["num_lines"] if same["num_lines"] else float("nan")
    lines += [
        "",
        f"strictness as it comes across against strictness asked for, rank correlation: {adherence.text(2)}",
        f"lines that an earlier dialogue had, word for word: {same['num_said_before']} of {same['num_lines']} ({percent:.1f} %), "
        f"besides openings ({same['num_openings_before']} of {same['num_openings']}) "
        f"and farewells ({same['num_farewells_before']} of {same['num_farewells']})",
        f"lines that the same dialogue had before: {same['num_repeated']}",
    ]
    return "\n".join(lines)


def persona(options: argparse.Namespace) -> str:
    """Runs the command; returns its table.

    Raises:
        ValueError: an option is out of range or names nothing that is there, or nothing could be judged.
    """
    for name in ("quiz_every", "seed"):
        if getattr(options, name) < 0:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 0, got {getattr(options, name)}")
    for name in ("strictness", "reserve"):
        if wrong := [value for value in getattr(options, name) or () if not 0.0 <= value <= 1.0]:
            raise ValueError(f"--{name} must be in [0, 1], got {wrong[0]!r}")
    check_out(options.out)
    # Servers are asked before anything starts.
    given = flag_settings(options, "judge")
    judges = reached("judge", EndpointConfig, given) if options.judge != "rule" and {"model", "urls"} & given.keys() else None
    source = Source.of(options)
    judge_kind = options.judge or ("llm" if judges or source.kind == "llm" else "rule")
    if judge_kind == "llm" and judges is None:
        raise ValueError("--judge-model must name the model that judges, got none; give --judge-url as well, or --judge rule")
    if judge_kind == "rule" and any(dialogue.scenario.language != "en" for dialogue in source.dialogues):
        raise ValueError("--judge must be llm for dialogues that are not in English, got 'rule'")
    judge: Judge = ModelJudge(judges) if judge_kind == "llm" and judges else RuleJudge()
    examiner: Examiner | None = None
    if options.quiz_every and source.rule is not None:
        examiner = RuleExaminer(RuleUser(source.rule))
    elif options.quiz_every:
        # The key is of the servers that played: another address gets none, unless one is named with it.
        recorded = {name: value for name, value in source.llm.items() if name != "api_key_env" or not options.user_url}
        settings = {**recorded, **flag_settings(options, "user")}
        if "model" not in settings:
            raise ValueError("--user-model must name the model that played the user, got none; --quiz-every 0 asks it nothing")
        examiner = ModelExaminer(reached("user", LLMUserConfig, settings))
    examined = asyncio.run(_examine(source, judge, examiner, options))
    found = measures(examined, seed=options.seed)
    if found["num_judged"] == 0:
        raise ValueError(f"the judge must give answers that can be read, got none in {found['num_line_errors']}: {judge.complaint}")
    complaints = {"judge": judge.complaint, "user": examiner.complaint if examiner else ""}
    found = {"source": source.name, "user": source.kind, "judge": judge_kind, **found}
    found["complaints"] = {who: complaint for who, complaint in complaints.items() if complaint}
    if options.out is not None:
        write_whole(options.out, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return table(found)


def reached(who: str, config: type[EndpointConfig], settings: Mapping[str, Any]) -> Endpoints:
    """Servers that answer.

    Args:
        who: `judge` or `user`.

    Raises:
        ValueError: they do not, or a setting is wrong; in the words of the command line.
    """
    try:
        endpoints = config(**settings)
        check_endpoints(endpoints)
        return Endpoints(endpoints)
    except ValueError as error:
        complaint = message(error, "simulator") if isinstance(error, ValidationError) else str(error)
        raise ValueError(of_judge(complaint) if who == "judge" else in_options(complaint, "--user-")) from None


async def _examine(source: Source, judge: Judge, examiner: Examiner | None, options: argparse.Namespace) -> list[Examined]:
    splits = dict.fromkeys(dialogue.scenario.split for dialogue in source.dialogues)
    cards = [scenario for split in splits for scenario in source.bank.scenarios(split)]
    with Progress("judging", sum(len(lines_of(dialogue)) for dialogue in source.dialogues)) as bar:

        async def one(dialogue: Dialogue) -> Examined:
            turns = lines_of(dialogue)
            # An opening that the scenario gives is not judged.
            numbers = [number for number, (_, turn) in enumerate(turns) if number or turn.text != dialogue.scenario.opening]
            lines = dict(zip(numbers, await asyncio.gather(*(judge.line(dialogue, number) for number in numbers)), strict=True))
            # A user that has left or was delighted is not asked any more.
            rounds = [BEFORE, *range(0, len(turns) - 1, options.quiz_every)] if examiner else []
            quiz = dict(zip(rounds, await asyncio.gather(*(asked(dialogue, number) for number in rounds)), strict=True))
            bar.add(len(turns))
            return Examined(dialogue=dialogue, lines=lines, quiz=quiz, demands=await judge.demands(dialogue))

        async def asked(dialogue: Dialogue, number: int) -> QuizVerdict | None:
            turns = () if number == BEFORE else dialogue.turns[: lines_of(dialogue)[number][0] + 1]
            questions = quiz_of(dialogue.scenario, cards, seed=options.seed, turn=number)
            assert examiner is not None
            return await examiner.ask(replace(dialogue, turns=turns, outcome=None), questions)

        try:
            return list(await asyncio.gather(*map(one, source.dialogues)))
        finally:
            for who in (judge, examiner):
                if who and who.endpoints:
                    await who.endpoints.close()
