"""Recorded dialogues replayed through the emotion rule, and each change explained with its numbers, in the five steps of SAGE's users.

Source: SAGE, arXiv 2505.02847: the content of the reply, the hidden intention, the inner activity, the feeling, the change.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from simulator.dialogue import DELIGHTED_AT, Dialogue, Turn
from simulator.emotion import (
    MAX_CHANGE,
    PUZZLED_BELOW,
    QUANTA,
    REPEATED_AT,
    Appraisal,
    Points,
    Skill,
    against,
    appraise,
    meets,
    onset,
    skill_table,
)
from simulator.files import read_jsonl, say_torn
from simulator.listener import Register
from simulator.preset import SageNumbers, Weighed, moves, weigh
from simulator.pressure import every_scenario
from simulator.reading import Reading
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import read_profiles
from simulator.sage.user import NativeUser
from simulator.settings import message
from simulator.study_commands import import_studies
from simulator.user import USERS
from simulator.version import recorded_world, world_of
from simulator.world import Bank


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One reply and the change that it causes, with every number in between."""

    TITLES: ClassVar = ("what the reply says", "the hidden intention", "inner activity", "feeling", "change")

    reply: str
    appraisal: Appraisal
    points: Points
    thought: str
    """The user's, in the user's words."""
    weighed: Weighed | None = None
    """Under the preset SAGE, which replaces `points`."""

    @classmethod
    def of(cls, dialogue: Dialogue, reply: str, config: RuleUserConfig, reading: Reading | None = None) -> Explanation:
        """Weighs a reply that is not yet in the dialogue as the embedded user does, and keeps every number.

        Args:
            reading: of the reply; None asks the user's listener.
        """
        reading = reading or RuleUser(config).reading(dialogue, reply)
        appraisal = appraise(dialogue, reply, register=config.register or Register.OPEN, reading=reading)
        points = appraisal.points(momentum=config.momentum, quantise=config.quantise)
        weighed = weigh(dialogue, reply) if config.preset is Preset.SAGE else None
        thought = appraisal.thought(points) if weighed is None else weighed.thought
        return cls(reply=reply, appraisal=appraisal, points=points, thought=thought, weighed=weighed)

    def steps(self) -> tuple[tuple[str, str], ...]:
        """Title and text of the five steps, in the order in which SAGE's users take them."""
        by_rule = self._says, self._meets, self._activity, lambda: (self._worth(), self.thought), self._change
        texts = [step() for step in by_rule] if self.weighed is None else self._by_sage(self.weighed)
        return tuple((title, " ".join(text)) for title, text in zip(self.TITLES, texts, strict=True))

    def losses(self) -> dict[str, float]:
        """Worth that the reply lost, by name: costs, and contempt, garble or doubt."""
        lost = {cost.name: cost.taken for cost in self.appraisal.costs if cost.taken}
        table, parsed = skill_table(), self.appraisal.parsed
        if parsed.contempt:
            lost["contempt"] = self.appraisal.says_something - sum(lost.values()) - table["contempt"]
        elif self.appraisal.counts < 1.0:
            held = max(self.appraisal.says_something - sum(lost.values()), table["worst"])
            lost["garble" if parsed.clarity < 1.0 else "doubt"] = held - self.appraisal.worth
        return lost

    def _says(self) -> Iterator[str]:
        parsed, limits, dialogue = self.appraisal.parsed, self.appraisal.limits, self.appraisal.dialogue
        facts, known = dialogue.story.facts, {index for turn in parsed.mentioned for index in turn}
        yield f"Heard as {listed(parsed.strategies)}." if parsed.strategies else "No support strategy is heard in it."
        if parsed.contempt:
            yield f"It holds contempt ({listed(parsed.contempt)}); what holds it shows no strategy."
        if parsed.echo:
            yield "It is mostly the user's own words, an echo, and shows no strategy."
        taken_up = [f"{facts[index].cue}{'' if index in known else ' (not mentioned yet)'}" for index in parsed.cues]
        yield f"Takes up {listed(taken_up)}." if taken_up else "Takes up nothing of this story."
        if parsed.dropped:
            why = "it is an echo" if parsed.echo else "nothing is said about it"
            yield f"Not counted, as {why}: {listed(facts[index].cue for index in parsed.dropped)}."
        too_much = f", more than {limits['moves']} moves, {limits['cues']} facts or {limits['words']} words"
        yield f"{parsed.num_words} words{too_much if self.appraisal.scattered else ''}. Clarity {figure(parsed.clarity)}."
        if parsed.sincerity < 1.0:
            yield f"It is meant and makes sense with a probability of {figure(parsed.sincerity)}."
        if dialogue.num_replies:
            again = f", from {REPEATED_AT:g} on a repetition" if parsed.similarity >= REPEATED_AT else ""
            yield f"Overlap with the most similar earlier reply {figure(parsed.similarity)}{again}."
        if parsed.farewell:
            yield "It says goodbye."

    def _meets(self) -> Iterator[str]:
        appraisal, scenario = self.appraisal, self.appraisal.dialogue.scenario
        wanted, unwanted = (listed(sorted(strategies(scenario.family))) for strategies in (meets, against))
        yield f"{scenario.hidden_intention} Met by {wanted}; against it: {unwanted}."
        if appraisal.shown[Skill.HINTS] is not None:
            yield "So far the wish was only hinted at from afar."
        fits = appraisal.shown[Skill.FIT]
        if fits is None:
            yield "Nothing has hinted at the wish yet, so no reply is expected to meet it."
        else:
            yield "The reply meets it." if fits else "The reply does not meet it."
        if appraisal.times_missed > 1:
            yield f"It is reply number {appraisal.times_missed} in a row that does not."
        if appraisal.runs_against:
            yield "It even runs against it."
        if appraisal.asks_first:
            yield "It asks first, which excuses that."

    def _activity(self) -> Iterator[str]:
        appraisal, table, family = self.appraisal, skill_table(), self.appraisal.dialogue.scenario.family
        reasons: dict[str, str] = {
            Skill.FIT: "it does not give what was hinted at",
            Skill.GROUNDING: "it takes up nothing that the user mentioned",
            Skill.LISTENING: "it goes on without having asked enough",
            Skill.MEMORY: "it does not tie back to earlier turns, or repeats itself",
            Skill.REPAIR: "it does not own what went wrong in the reply before",
            "against": "it does the opposite of what is wished for",
            "guessing": "it would meet other wishes too, as if to try which one it is",
            "repetition": "it is nearly an earlier reply again",
            "verbatim": "it is an earlier reply again",
            "scattered": "it is too much at once",
            "unneeded_apology": "it owns a misstep that did not happen",
        }
        start = appraisal.says_something
        yield f"Starts at {figure(start)}, as {'something' if start else 'nothing'} was said."
        for title, value in (("Shown", True), ("Not called for", None)):
            if skills := [skill for skill in Appraisal.CHARGED if appraisal.shown[skill] is value]:
                yield f"{title}: {listed(skills)}."
        for cost in appraisal.costs:
            what = f"{cost.name.replace('_', ' ').capitalize()}: {reasons[cost.name]}"
            skill = "fit" if cost.name in ("against", "guessing") else cost.name
            if skill not in Appraisal.CHARGED:
                yield f"{what}, \u2212{figure(cost.taken)}."
                continue
            begins, strictness = figure(onset(Skill(skill), family)), figure(appraisal.dialogue.difficulty.strictness)
            if cost.weight == 0.0:
                yield f"{what}, which counts only from strictness {begins} on."
                continue
            ramp = f" [({strictness} \u2212 {begins}) / {figure(table['ramp'])}]" if cost.weight < 1.0 else ""
            excused = f" \u00d7 {figure(1.0 - cost.excused)} for asking first" if cost.excused else ""
            yield f"{what}, {figure(cost.price)} \u00d7 weight {figure(cost.weight)}{ramp}{excused} = \u2212{figure(cost.taken)}."

    def _worth(self) -> str:
        parsed, table, start = self.appraisal.parsed, skill_table(), self.appraisal.says_something
        costs = [cost.taken for cost in self.appraisal.costs if cost.taken]
        if parsed.contempt:
            return f"Worth {figure(self.appraisal.worth)}, for contempt; nothing else counts."
        text = "Worth " + " \u2212 ".join(map(figure, (start, *costs))) + (f" = {figure(start - sum(costs))}" if costs else "")
        if start - sum(costs) < table["worst"]:
            text += f", held at {figure(table['worst'])}"
        if (counts := self.appraisal.counts) < 1.0:
            factors = [("clarity", parsed.clarity), ("probability", parsed.sincerity)]
            by = " ".join(f"\u00d7 {name} {figure(factor)}" for name, factor in factors if factor < 1.0)
            garble, held = table["side_costs"]["garble"], max(start - sum(costs), table["worst"])
            held = held * counts - garble * (1.0 - counts)
            text += f"; {by}, less {figure(garble)} \u00d7 {figure(1.0 - counts)} for the rest, = {figure(held)}"
            text += ", held at 0, since it is doubted" if parsed.is_doubted and held > 0.0 else ""
        return f"{text}."

    def _change(self) -> Iterator[str]:
        points, table, worth, dialogue = self.points, skill_table()["points"], self.appraisal.worth, self.appraisal.dialogue
        strictness, impatience = figure(dialogue.difficulty.strictness), dialogue.difficulty.impatience

        def product(result: float, *factors: float) -> str:
            return " \u00d7 ".join(map(figure, factors)) + f" = {figure(result)}"

        kind = "gain" if worth > 0 else "loss"
        if kind == "gain":
            rate = f"{figure(table['gain'])} {plus(table['gain_slope'])} \u00d7 {strictness}"
        else:
            rate = f"{figure(table['loss'])} \u00d7 ({figure(table['loss_floor'])} {plus(table['loss_slope'])} \u00d7 {strictness})"
        moved = product(points.moved, points.rate, worth, points.by_persona)
        yield f"{kind.capitalize()} [{rate}] \u00d7 worth \u00d7 how such a person feels a {kind}: {moved}."
        if points.drained:
            yield f"Impatience drains {product(points.drained, table['drain'], impatience, 1.0 - max(0.0, worth))}."
        if points.disappointed:
            factors = (table["disappointment"], impatience, points.times_again, points.fit_weight)
            yield f"Disappointment at a wish missed again takes {product(points.disappointed, *factors)}."
        if points.carried:
            yield f"Of the change before, {product(points.carried, points.momentum, dialogue.turns[-1].change or 0)} carries over."
        if points.contempt:
            yield f"Contempt takes {figure(points.contempt)}."
        if points.pressed > 0:
            yield f"Agreement with the user's claim gives {figure(points.pressed)}."
        elif points.pressed:
            yield f"That it does not agree with the user's claim takes {figure(-points.pressed)}."
        summed = figure(points.summed, digits=6)
        yield f"Together {summed}."
        if points.doubt is not None:
            full = figure(min(points.summed, table["rebuff"]), digits=6)
            yield (
                f"A doubt comes up at this turn after any reply, and in full leaves no more than {figure(table['rebuff'])}; "
                f"with its weight: {summed} + {figure(points.doubt)} \u00d7 ({full} \u2212 {summed}) = {figure(points.exact, digits=6)}."
            )
        if abs(points.exact) > MAX_CHANGE:
            yield f"Held within \u00b1{MAX_CHANGE}."
        rounded = f"Taken to the nearest of {listed(map(figure, QUANTA))}" if points.quantise else "Rounded"
        held = f" (not beyond {DELIGHTED_AT if points.change > 0 else 0})" if points.felt != points.change else ""
        yield f"{rounded}: {signed(points.change)}. Emotion {dialogue.emotion} \u2192 {points.after}{held}."

    def _by_sage(self, weighed: Weighed) -> Sequence[Iterable[str]]:
        scenario, numbers = self.appraisal.dialogue.scenario, SageNumbers.calibrated()
        heard = listed(moves(self.reply, scenario.language))

        def terms(*, of_context: bool) -> str:
            found = {name: value for name, value in weighed.terms.items() if (name in Weighed.CONTEXT) is of_context}
            strongest = sorted(found, key=lambda name: -abs(found[name]))
            return ", ".join(f"{name.replace('_', ' ')} {plus(found[name])}" for name in strongest) or "nothing"

        meeting = [f"{scenario.hidden_intention} The reply's terms, strongest first: {terms(of_context=False)}."]
        if "wording" in weighed.terms:
            named = ", ".join(f"\u300c{piece}\u300d {plus(value)}" for piece, value in numbers.wording.strongest(self.reply, 4).items())
            meeting.append(f"Its wording is a sum of many small pieces, {plus(-numbers.wording.offset)} for all; most weigh: {named}.")
        low, middle, high = map(figure, weighed.thresholds)
        last, emotion = numbers.momentum.last, numbers.momentum.emotion
        change = [
            f"Pull {figure(weighed.score)} {plus(last)} \u00d7 {figure(weighed.last / 10)} "
            f"{plus(emotion)} \u00d7 ({weighed.emotion} \u2212 {numbers.momentum.WATERSHED}) / 30 = {figure(weighed.pull)}.",
            f"Below {low} it is \u221210, below {middle} \u22125, below {high} +5, else +10: {signed(weighed.change)}.",
        ]
        if weighed.guarded:
            reason = "it cannot be followed" if weighed.guarded == "unclear" else "all of it was said before"
            change.append(f"Whatever the score: {reason}.")
        change.append(f"Emotion {weighed.emotion} \u2192 {max(0, min(DELIGHTED_AT, weighed.emotion + weighed.change))}.")
        return (
            [f"Heard as {heard}." if heard else "No support strategy is heard in it."],
            meeting,
            [f"Such a person, with such a wish, at this turn: {terms(of_context=True)}."],
            [f"Score {figure(weighed.score)}. {self.thought}"],
            change,
        )


def figure(value: float, *, digits: int = 4) -> str:
    """A number without needless zeros."""
    text = f"{float(value):.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "\u2212")


def plus(value: float) -> str:
    """A term of a sum with the sign before it."""
    return f"\u2212 {figure(-value)}" if value < 0 else f"+ {figure(value)}"


def signed(change: int) -> str:
    """A change with its sign."""
    return figure(change) if change < 0 else f"+{change}"


def listed(words: Iterable[str]) -> str:
    """Names with commas, spaces instead of underscores."""
    return ", ".join(word.replace("_", " ") for word in words)


def count(num: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{num:,} {one if num == 1 else many or f'{one}s'}"


# Recorded dialogues


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A user's turn as recorded and as the rule gives it."""

    reply: str
    """The reply that it answers; "" for the opening."""
    recorded: Turn
    recomputed: Turn
    explanation: Explanation | None
    """None for the opening."""

    @property
    def is_same(self) -> bool:
        """Whether the recorded feeling is the recomputed one."""
        return (self.recorded.change, self.recorded.emotion) == (self.recomputed.change, self.recomputed.emotion)

    @property
    def other_differences(self) -> tuple[str, ...]:
        """Other fields that differ: text, thought, heard."""
        return tuple(name for name in ("text", "thought", "heard") if getattr(self.recorded, name) != getattr(self.recomputed, name))

    def __str__(self) -> str:
        both = (self.recorded, self.recomputed)
        return "recorded {}, recomputed {}".format(
            *(f"{turn.emotion}" if turn.change is None else f"{signed(turn.change)} to {turn.emotion}" for turn in both)
        )


def replay(dialogue: Dialogue, config: RuleUserConfig) -> Iterator[Replayed]:
    """Every turn of the user, each recomputed from the record before it, so that one difference causes no others.

    Raises:
        ValueError: a turn lacks an emotion or a change.
    """
    classes = {settings: user for settings, user in USERS.values() if settings is not RuleUserConfig}
    user: RuleUser = classes.get(type(config), NativeUser)(config)
    dialogue.require_feelings()
    opening = user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0]
    yield Replayed(reply="", recorded=dialogue.turns[0], recomputed=opening, explanation=None)
    for before, reply, recorded in dialogue.answered():
        recomputed = user.answer(before, reply, recorded.reading).turn
        explanation = Explanation.of(user.taken(before, reply), reply, config, recorded.reading)
        yield Replayed(reply=reply, recorded=recorded, recomputed=recomputed, explanation=explanation)


def shares_shown(dialogues: Iterable[Dialogue], *, register: Register) -> dict[str, float]:
    """Share of replies that showed each skill, of those whose situation called for it; NaN for none. And shares `repeated` and `garbled`.

    Memory, for one, is called for from the third reply on and repair after a reply that hurt. Difficulty has no influence.
    """
    seen: dict[str, list[bool]] = defaultdict(list)
    for before, reply, answer in (one for dialogue in dialogues for one in dialogue.answered()):
        appraisal = appraise(before, reply, register=register, reading=answer.reading)
        for skill, shown in appraisal.shown.items():
            if shown is not None:
                seen[skill].append(shown)
        seen["repeated"].append(appraisal.parsed.similarity >= REPEATED_AT)
        seen["garbled"].append(appraisal.parsed.clarity < PUZZLED_BELOW)
    return {name: sum(seen[name]) / len(seen[name]) if seen[name] else float("nan") for name in (*Skill, "repeated", "garbled")}


def read_dialogues(path: Path, bank: Bank) -> Iterator[tuple[Mapping[str, Any], Dialogue]]:
    """The records of a run's `dialogues.jsonl`, plain or gzipped, each with its dialogue; an incomplete last line is left out.

    Raises:
        ValueError: a line is no dialogue of this world.
    """
    what = "a dialogue of this world"
    for number, record in read_jsonl(path, what=what, on_torn=lambda number: say_torn(path, number)):
        try:
            yield record, Dialogue.from_dict(record, scenario=bank.scenario(record["scenario_id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} line {number} must be {what}: {error}") from error


def transcript_file(source: Path, *, evaluation: bool) -> Path:
    """A transcript file: `source` itself, or one of the two in a run's folder.

    Args:
        evaluation: take the held-out dialogues of a run's folder.

    Raises:
        ValueError: it does not exist.
    """
    path = source
    if source.is_dir():
        path = source / "dialogues.jsonl"
        # The evaluation of an agent, whose config names it, leaves held-out dialogues only, in one file.
        if evaluation and "agent" not in recorded_config(path):
            path = source / "evaluation.jsonl"
    if not path.is_file():
        raise ValueError(f"DIALOGUE must be a JSONL file of ours or a run's folder, got {str(source)!r}; {path} is not there")
    return path


def recorded_config(path: Path) -> dict[str, Any]:
    """The run's config next to a transcript file, {} without one."""
    config = path.parent / "config.yaml"
    return yaml.safe_load(config.read_text(encoding="utf-8")) or {} if config.is_file() else {}


def follows_rule(kind: Any) -> bool:
    """Whether a kind of user follows a rule; a kind that the core does not know may be a study's."""
    if kind not in USERS:
        import_studies()
    return kind in USERS and issubclass(USERS[kind][0], RuleUserConfig)


def user_settings(*sources: Mapping[str, Any]) -> RuleUserConfig:
    """The user's settings, each from the first source that has it; None counts as missing.

    Raises:
        ValueError: the embedded user cannot have such a setting.
    """
    kind = next((source["kind"] for source in sources if source.get("kind") is not None), "rule")
    if not follows_rule(kind):
        known = " or ".join(kind for kind in USERS if follows_rule(kind))
        raise ValueError(f"simulator.kind must be {known}, got {kind!r}: only the embedded user follows a rule that can be replayed")
    config, found = USERS[kind][0], dict[str, Any]()
    for source in reversed(sources):
        found |= {field.name: source[field.name] for field in fields(config) if source.get(field.name) is not None}
    try:
        return config(**found)
    except ValidationError as error:
        raise ValueError(message(error, "simulator")) from error


def explain_dialogues(options: argparse.Namespace) -> int:
    """Replays the selected dialogues and prints them; returns the exit code, 1 when a change differs from the rule's."""
    held_out = options.evaluation or bool(options.uid and options.uid.startswith("eval:"))
    path = transcript_file(options.dialogue, evaluation=held_out)
    config, bank = recorded_config(path), every_scenario() if options.profiles is None else Bank(by_id=read_profiles(options.profiles))
    flags = {name: getattr(options, name) for name in ("register", "momentum", "start_emotion", "quantise", "preset")}
    wanted = {name: getattr(options, name) for name in ("uid", "sibling", "step", "index") if getattr(options, name) is not None}
    notes, differing, num_dialogues, num_turns, num_wrong, num_other = dict[str, None](), list[str](), 0, 0, 0, 0
    for number, (record, dialogue) in enumerate(read_dialogues(path, bank), start=1):
        if any(wanted[name] != {**record, "index": number}.get(name) for name in wanted):
            continue
        settings = user_settings(flags, record.get("simulator") or {}, config.get("simulator") or {})
        recorded, world = recorded_world(record, config) or recorded_world(config.get("provenance") or {}, config), world_of(settings)
        if recorded and recorded != world:
            notes[f"note: recorded in world {recorded}, replayed in world {world}: differences may come from that"] = None
        try:
            turns = list(replay(dialogue, settings))
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from error
        uid, sibling = record.get("uid"), record.get("sibling")
        name = f"dialogue {number}" + (f" ({uid}{'' if sibling is None else f', sibling {sibling}'})" if uid else "")
        wrong = [turn for turn in turns if not turn.is_same]
        num_dialogues, num_turns, num_wrong = num_dialogues + 1, num_turns + len(turns), num_wrong + len(wrong)
        num_other += sum(bool(turn.other_differences) for turn in turns)
        differing += [f"{name}: {'; '.join(map(str, wrong))}"] if wrong else []
        if num_dialogues <= options.num:
            print(*_in_full(name, dialogue, turns, settings), sep="\n")
    if not num_dialogues:
        selection = ", ".join(f"{name} {value!r}" for name, value in wanted.items()) or "anything"
        raise ValueError(f"{path} must hold a dialogue with {selection}, got none")
    print(*notes, f"{path}: {count(num_dialogues, 'dialogue')}, {count(num_turns, 'emotion')} recomputed", sep="\n")
    print(*(f"  differs in {line}\n" for line in differing[:20]), sep="", end="")
    if len(differing) > 20:
        print(f"  and in {count(len(differing) - 20, 'further dialogue')}")
    if num_other:
        print(f"  {count(num_other, 'turn')} with other words, thoughts or strategies than the rule gives")
    print("  all are the same" if not differing else f"  {num_wrong} differ")
    return int(bool(differing))


def _in_full(name: str, dialogue: Dialogue, turns: Sequence[Replayed], config: RuleUserConfig) -> Iterator[str]:
    """A dialogue with its recorded and recomputed turns, and the five steps between."""

    def wrapped(opening: str, text: str, *, hanging: int | None = None) -> list[str]:
        indent = " " * (len(opening) if hanging is None else hanging)
        return textwrap.wrap(text, 118, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]

    difficulty = dialogue.difficulty
    axes = ", ".join(f"{axis} {value:.3g}" for axis, value in difficulty.to_dict().items())
    yield f"{name}: {dialogue.scenario.scenario_id}, {axes}, seed {dialogue.seed}, {dialogue.outcome or 'not ended'}"
    if config.preset is Preset.SAGE:
        yield "preset sage: fitted on SAGE's recorded users, with their changes and momentum, start at 40"
    else:
        rounding = "rounded to SAGE's changes" if config.quantise else "in whole points"
        own = {field.name for field in fields(RuleUserConfig)}
        further = "".join(f", {field.name} {getattr(config, field.name)}" for field in fields(config) if field.name not in own)
        heard = f"register {config.register or Register.OPEN}, momentum {config.momentum:g}, start at {config.start_emotion}"
        yield f"{heard}, changes {rounding}{further}"
    yield from wrapped("hidden intention: ", dialogue.scenario.hidden_intention)
    indent = " " * 13
    for turn in turns:
        yield ""
        if turn.explanation is not None:
            yield from wrapped("      agent  ", turn.reply)
        yield from wrapped(f"{turn.recorded.emotion:4}  user   ", turn.recorded.text)
        yield f"{indent}{turn}: {'the same' if turn.is_same else 'DIFFERENT'}"
        for what in turn.other_differences:
            for title, one in (("recorded", turn.recorded), ("recomputed", turn.recomputed)):
                value = getattr(one, what)
                yield from wrapped(f"{indent}{title} {what}: ", value if isinstance(value, str) else ", ".join(value))
        if turn.explanation is not None:
            if (mood := turn.explanation.appraisal.dialogue.difficulty) != difficulty:
                yield f"{indent}in a mood: strictness {mood.strictness:g}, impatience {mood.impatience:g}"
            for number, (title, text) in enumerate(turn.explanation.steps(), start=1):
                yield from wrapped(f"{indent}{number} {title}: ", text, hanging=15)
    yield ""
