"""What `python -m simulator explain` prints: recorded changes beside those that the rule gives, and the five steps to each."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.bank import Bank, load_bank
from simulator.dialogue import Dialogue, Turn
from simulator.figures import signed
from simulator.fingerprint import recorded_world, world_of
from simulator.five_steps import five_steps
from simulator.register import Register
from simulator.replay import (
    HELD_OUT_UID,
    Replayed,
    Selection,
    chosen,
    recorded_config,
    replay,
    settings_of,
    transcript_file,
    user_settings,
)
from simulator.rule_user import Preset, RuleUserConfig
from simulator.sage import profiles_by_id

WIDTH = 118
DIFFERS = 1
"""Exit code when a change is not the one that the rule gives."""
MAX_NAMED = 20
"""Dialogues with a difference that are named one by one."""


def explain_dialogues(options: argparse.Namespace) -> int:
    """Replays what was selected and prints it; returns the exit code."""
    held_out = options.evaluation or bool(options.uid and options.uid.startswith(HELD_OUT_UID))
    path = transcript_file(options.dialogue, evaluation=held_out)
    selection = Selection(uid=options.uid, sibling=options.sibling, step=options.step, index=options.index)
    if options.num < 0:
        raise ValueError(f"--num must be at least 0, got {options.num}")
    config = recorded_config(path)
    flags = {name: getattr(options, name) for name in ("register", "momentum", "start_emotion", "quantise", "preset")}
    worlds = dict[tuple[str, str], None]()
    tally = Tally()
    for number, record, dialogue in chosen(path, selection, bank_of(options.profiles)):
        settings = user_settings(flags, settings_of(record), settings_of(config))
        recorded = recorded_world(record, config) or recorded_world(config.get("provenance") or {}, config)
        worlds[recorded, world_of(settings)] = None
        try:
            turns = list(replay(dialogue, settings))
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from error
        tally.add(name_of(number, record), turns)
        if tally.num_dialogues <= options.num:
            print(*in_full(name_of(number, record), dialogue, turns, settings), sep="\n")
    print(*other_worlds(worlds), *tally.lines(path), sep="\n")
    return DIFFERS if tally.differing else 0


def bank_of(profiles: Path | None) -> Bank:
    """The built-in scenarios, or those of a native file of profiles."""
    return load_bank() if profiles is None else Bank(by_id=profiles_by_id(profiles))


def other_worlds(worlds: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A warning for each world that was recorded in and is not the one that is replayed in."""
    for recorded, now in worlds:
        if recorded and recorded != now:
            yield f"note: recorded in world {recorded}, replayed in world {now}: differences may come from that"


class Tally:
    """How many changes were the same, and which dialogues hold one that was not."""

    def __init__(self) -> None:
        self.num_dialogues = self.num_turns = self.num_differing_turns = self.num_other = 0
        self.differing: list[str] = []

    def add(self, name: str, turns: list[Replayed]) -> None:
        """Counts a dialogue in."""
        wrong = [turn for turn in turns if not turn.is_same]
        self.num_dialogues += 1
        self.num_turns += len(turns)
        self.num_differing_turns += len(wrong)
        self.num_other += sum(bool(turn.other_differences) for turn in turns)
        if wrong:
            self.differing.append(f"{name}: {'; '.join(map(compared, wrong))}")

    def lines(self, path: Path) -> Iterator[str]:
        """The verdict."""
        yield f"{path}: {count(self.num_dialogues, 'dialogue')}, {count(self.num_turns, 'emotion')} recomputed"
        yield from (f"  differs in {line}" for line in self.differing[:MAX_NAMED])
        if len(self.differing) > MAX_NAMED:
            yield f"  and in {count(len(self.differing) - MAX_NAMED, 'further dialogue')}"
        if self.num_other:
            yield f"  {count(self.num_other, 'turn')} with other words, thoughts or strategies than the rule gives"
        same = "all are the same" if not self.differing else f"{self.num_differing_turns} differ"
        yield f"  {same}"


def in_full(name: str, dialogue: Dialogue, turns: list[Replayed], config: RuleUserConfig) -> Iterator[str]:
    """A dialogue with what was recorded, what is recomputed, and the five steps between."""
    difficulty = dialogue.difficulty
    axes = ", ".join(f"{axis} {value:.3g}" for axis, value in difficulty.to_dict().items())
    yield f"{name}: {dialogue.scenario.scenario_id}, {axes}, seed {dialogue.seed}, {dialogue.outcome or 'not ended'}"
    yield settings_in_words(config)
    yield from wrapped("hidden intention: ", dialogue.scenario.hidden_intention)
    for turn in turns:
        yield ""
        if turn.explanation is not None:
            yield from wrapped("      agent  ", turn.reply)
        yield from wrapped(f"{turn.recorded.emotion:4}  user   ", turn.recorded.text)
        verdict = "the same" if turn.is_same else "DIFFERENT"
        yield f"             {compared(turn)}: {verdict}"
        for what in turn.other_differences:
            yield from wrapped(f"             recorded {what}:   ", worded(turn.recorded, what))
            yield from wrapped(f"             recomputed {what}: ", worded(turn.recomputed, what))
        if turn.explanation is not None:
            if (mood := turn.explanation.dialogue.difficulty) != difficulty:
                yield f"             in a mood: strictness {mood.strictness:g}, impatience {mood.impatience:g}"
            for number, (title, text) in enumerate(five_steps(turn.explanation).named(), start=1):
                yield from wrapped(f"             {number} {title}: ", text, hanging=15)
    yield ""


def settings_in_words(config: RuleUserConfig) -> str:
    """How the replies are read, and what else the user brings."""
    if config.preset is Preset.SAGE:
        return "preset sage: fitted on SAGE's recorded users, with their changes and momentum, start at 40"
    rounding = "rounded to SAGE's changes" if config.quantise else "in whole points"
    register = config.register or Register.OPEN
    further = "".join(f", {name} {value}" for name, value in vars(config).items() if not hasattr(RuleUserConfig, name))
    return f"register {register}, momentum {config.momentum:g}, start at {config.start_emotion}, changes {rounding}{further}"


def compared(turn: Replayed) -> str:
    """What was recorded beside what the rule gives."""
    return f"recorded {felt(turn.recorded)}, recomputed {felt(turn.recomputed)}"


def felt(turn: Turn) -> str:
    """A change and where it led."""
    return f"{turn.emotion}" if turn.change is None else f"{signed(turn.change)} to {turn.emotion}"


def worded(turn: Turn, what: str) -> str:
    """One of the turn's words, lists with commas."""
    value = getattr(turn, what)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def name_of(number: int, record: Mapping[str, Any]) -> str:
    """How to find this dialogue again."""
    uid, sibling = record.get("uid"), record.get("sibling")
    return f"dialogue {number}" + (f" ({uid}{'' if sibling is None else f', sibling {sibling}'})" if uid else "")


def count(num: int, what: str) -> str:
    """A number with its noun."""
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def wrapped(opening: str, text: str, *, hanging: int | None = None) -> list[str]:
    """Lines of text after an opening, the later ones indented as far as it or by `hanging`."""
    indent = " " * (len(opening) if hanging is None else hanging)
    return textwrap.wrap(text, WIDTH, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]
