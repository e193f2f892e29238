"""What judged dialogues come to: consistency, leaks and answers, over turns and by strictness, and the table of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.clusters import Estimate, Sample, drift, rank_correlation, share, slope_over_levels
from analysis.personas.judges import LineVerdict, QuizVerdict, lines_of, names_the_wish
from analysis.personas.sameness import Sameness, sameness
from analysis.personas.valence import contradicts_emotion
from simulator.dialogue import Dialogue

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
