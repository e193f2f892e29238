"""Recorded dialogues replayed through the emotion rule: the same reply must move the same user by the same points."""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import PUZZLED_BELOW, REPEATED_AT, Appraisal, Skill, appraise
from simulator.explanation import Explanation, count, explain_reply, signed
from simulator.files import read_jsonl, say_torn
from simulator.listener import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import profiles_by_id
from simulator.sage.user import NativeUser
from simulator.settings import message
from simulator.study_commands import import_studies
from simulator.users import USERS
from simulator.version import recorded_world, world_of
from simulator.world import Bank, load_bank

WHAT = "a dialogue of this world"
CONFIG, DIALOGUES, EVALUATION = "config.yaml", "dialogues.jsonl", "evaluation.jsonl"
SETTINGS = "simulator"
"""Key of the user's settings in a run's config and in the record of a chat."""
AGENT = "agent"
"""Key of an evaluation's config that a run's config lacks."""


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
    require_feelings(dialogue)
    opening = user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0]
    yield Replayed(reply="", recorded=dialogue.turns[0], recomputed=opening, explanation=None)
    for before, reply, recorded in _answered(dialogue):
        yield Replayed(
            reply=reply,
            recorded=recorded,
            recomputed=user.answer(before, reply).turn,
            explanation=explain_reply(user.taken(before, reply), reply, config),
        )


def _answered(dialogue: Dialogue) -> Iterator[tuple[Dialogue, str, Turn]]:
    """Each answered reply with the dialogue before it and the answer."""
    for index, turn in enumerate(dialogue.turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            yield replace(dialogue, turns=dialogue.turns[:index], outcome=None), turn.text, dialogue.turns[index + 1]


def require_feelings(dialogue: Dialogue) -> None:
    """Raises unless the turns alternate, the user's first, and each of the user's has an emotion.

    Raises:
        ValueError: with the number of the turn.
    """
    if not dialogue.turns:
        raise ValueError("turns must begin with the user's opening, got none")
    for number, turn in enumerate(dialogue.turns, start=1):
        due = (Speaker.AGENT, Speaker.USER)[number % 2]
        if turn.speaker is not due:
            raise ValueError(f"turn {number} must be the {due}'s, got one of the {turn.speaker}")
        if turn.speaker is Speaker.USER and (turn.emotion is None or (turn.change is None and number > 1)):
            raise ValueError(f"turn {number} must hold an emotion{' and a change' if number > 1 else ''}, got neither or one of them")


def read_dialogues(path: Path, bank: Bank) -> Iterator[tuple[Mapping[str, Any], Dialogue]]:
    """The records of a run's `dialogues.jsonl`, plain or gzipped, each with its dialogue; an incomplete last line is left out.

    Raises:
        ValueError: a line is no dialogue of this world.
    """
    for number, record in read_jsonl(path, what=WHAT, on_torn=lambda number: say_torn(path, number)):
        try:
            yield record, Dialogue.from_dict(record, scenario=bank.scenario(record["scenario_id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} line {number} must be {WHAT}: {error}") from error


def transcript_file(source: Path, *, evaluation: bool) -> Path:
    """A transcript file: `source` itself, or one of the two in a run's folder.

    Args:
        evaluation: take the held-out dialogues of a run's folder.

    Raises:
        ValueError: it does not exist.
    """
    path = source
    if source.is_dir():
        # The evaluation of an agent leaves held-out dialogues only, in one file.
        is_apart = evaluation and AGENT not in recorded_config(source / CONFIG)
        path = source / (EVALUATION if is_apart else DIALOGUES)
    if not path.is_file():
        raise ValueError(f"DIALOGUE must be a JSONL file of ours or a run's folder, got {str(source)!r}; {path} is not there")
    return path


def recorded_config(path: Path) -> dict[str, Any]:
    """The run's config next to a transcript file, {} without one.

    Raises:
        ValueError: it cannot be read.
    """
    config = path.parent / CONFIG
    if not config.is_file():
        return {}
    try:
        tree = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} must be YAML, got {str(error).splitlines()[0]}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{config} must hold settings by name")
    return tree


def settings_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The user's settings in a dialogue's record or a run's config; none where it has none.

    Raises:
        ValueError: the entry holds something else.
    """
    found = record.get(SETTINGS) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{SETTINGS} must hold a user's settings by name, got {found!r}")
    return found


def by_rule() -> dict[str, type[RuleUserConfig]]:
    """Kinds of user that follow a rule, with the settings of each."""
    return {kind: settings for kind, (settings, _) in USERS.items() if issubclass(settings, RuleUserConfig)}


def follows_rule(kind: Any) -> bool:
    """Whether a kind of user follows a rule; a kind that the core does not know may be a study's."""
    if kind not in USERS:
        import_studies()
    return kind in by_rule()


def recorded_register(*sources: Mapping[str, Any]) -> str:
    """The register of a dialogue's user, from the first source that names it; a model as user hears the open one."""
    if any(source.get("kind") is not None and not follows_rule(source["kind"]) for source in sources):
        return Register.OPEN
    return next((str(source["register"]) for source in sources if source.get("register")), str(Register.WORLD))


def user_settings(*sources: Mapping[str, Any]) -> RuleUserConfig:
    """The user's settings, each from the first source that has it; None counts as missing.

    Raises:
        ValueError: the embedded user cannot have such a setting.
    """
    kind = next((source["kind"] for source in sources if source.get("kind") is not None), "rule")
    if not follows_rule(kind):
        known = " or ".join(by_rule())
        raise ValueError(f"simulator.kind must be {known}, got {kind!r}: only the embedded user follows a rule that can be replayed")
    config, found = by_rule()[kind], dict[str, Any]()
    for source in reversed(sources):
        found |= {field.name: source[field.name] for field in fields(config) if source.get(field.name) is not None}
    try:
        return config(**found)
    except ValidationError as error:
        raise ValueError(message(error, SETTINGS)) from error


# Commands

FURTHER = ("repeated", "garbled")
"""Columns besides the skills, as shares of all replies."""
WIDTH = 118
DIFFERS = 1
"""Exit code when a change differs from the rule's."""
MAX_NAMED = 20
"""Dialogues with a difference that are named one by one."""


def appraisals(dialogue: Dialogue, *, register: Register) -> Iterator[Appraisal]:
    """Every answered reply of a dialogue, weighed again in the light of the turns before it."""
    return (appraise(before, reply, register=register) for before, reply, _ in _answered(dialogue))


def shares_shown(dialogues: Iterable[Dialogue], *, register: Register) -> dict[str, float]:
    """Share of replies that showed each skill, of those whose situation called for it, and the `FURTHER` shares; NaN for none.

    Memory, for one, is called for from the third reply on and repair after a reply that hurt. Difficulty has no influence.
    """
    seen: dict[str, list[bool]] = defaultdict(list)
    for dialogue in dialogues:
        for appraisal in appraisals(dialogue, register=register):
            for skill, shown in appraisal.shown.items():
                if shown is not None:
                    seen[skill].append(shown)
            seen["repeated"].append(appraisal.parsed.similarity >= REPEATED_AT)
            seen["garbled"].append(appraisal.parsed.clarity < PUZZLED_BELOW)
    return {name: sum(seen[name]) / len(seen[name]) if seen[name] else float("nan") for name in (*Skill, *FURTHER)}


def table_of_shares(rows: Mapping[str, Sequence[Dialogue]], *, header: str, register: Register) -> str:
    """A line for each set of dialogues: their number, mean final emotion, and `shares_shown`."""
    lines = [f"{header:>10}  dialogues  emotion" + "".join(f"{column:>11}" for column in (*Skill, *FURTHER))]
    for name, dialogues in rows.items():
        shares = shares_shown(dialogues, register=register)
        emotion = sum(dialogue.emotion for dialogue in dialogues) / len(dialogues)
        lines.append(f"{name:>10}  {len(dialogues):9}  {emotion:7.1f}" + "".join(f"{share:11.3f}" for share in shares.values()))
    return "\n".join(lines)


def explain_dialogues(options: argparse.Namespace) -> int:
    """Replays the selected dialogues and prints them; returns the exit code."""
    held_out = options.evaluation or bool(options.uid and options.uid.startswith("eval:"))
    path = transcript_file(options.dialogue, evaluation=held_out)
    config, bank = recorded_config(path), load_bank() if options.profiles is None else Bank(by_id=profiles_by_id(options.profiles))
    flags = {name: getattr(options, name) for name in ("register", "momentum", "start_emotion", "quantise", "preset")}
    wanted = {name: getattr(options, name) for name in ("uid", "sibling", "step", "index") if getattr(options, name) is not None}
    notes, differing, num_dialogues, num_turns, num_wrong, num_other = dict[str, None](), list[str](), 0, 0, 0, 0
    for number, (record, dialogue) in enumerate(read_dialogues(path, bank), start=1):
        if any(wanted[name] != {**record, "index": number}.get(name) for name in wanted):
            continue
        settings = user_settings(flags, settings_of(record), settings_of(config))
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
    print(*(f"  differs in {line}\n" for line in differing[:MAX_NAMED]), sep="", end="")
    if len(differing) > MAX_NAMED:
        print(f"  and in {count(len(differing) - MAX_NAMED, 'further dialogue')}")
    if num_other:
        print(f"  {count(num_other, 'turn')} with other words, thoughts or strategies than the rule gives")
    print("  all are the same" if not differing else f"  {num_wrong} differ")
    return DIFFERS if differing else 0


def _in_full(name: str, dialogue: Dialogue, turns: Sequence[Replayed], config: RuleUserConfig) -> Iterator[str]:
    """A dialogue with its recorded and recomputed turns, and the five steps between."""
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
    yield from _wrapped("hidden intention: ", dialogue.scenario.hidden_intention)
    indent = " " * 13
    for turn in turns:
        yield ""
        if turn.explanation is not None:
            yield from _wrapped("      agent  ", turn.reply)
        yield from _wrapped(f"{turn.recorded.emotion:4}  user   ", turn.recorded.text)
        yield f"{indent}{turn}: {'the same' if turn.is_same else 'DIFFERENT'}"
        for what in turn.other_differences:
            for title, one in (("recorded", turn.recorded), ("recomputed", turn.recomputed)):
                value = getattr(one, what)
                yield from _wrapped(f"{indent}{title} {what}: ", value if isinstance(value, str) else ", ".join(value))
        if turn.explanation is not None:
            if (mood := turn.explanation.dialogue.difficulty) != difficulty:
                yield f"{indent}in a mood: strictness {mood.strictness:g}, impatience {mood.impatience:g}"
            for number, (title, text) in enumerate(turn.explanation.steps(), start=1):
                yield from _wrapped(f"{indent}{number} {title}: ", text, hanging=15)
    yield ""


def _wrapped(opening: str, text: str, *, hanging: int | None = None) -> list[str]:
    """Lines of text after an opening, the later ones indented as far as it or by `hanging`."""
    indent = " " * (len(opening) if hanging is None else hanging)
    return textwrap.wrap(text, WIDTH, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]
