"""Chat: talk to a simulated user in the terminal and see its emotion, or watch a scripted agent do it."""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from simulator.dialogue import DELIGHTED_AT, Dialogue, Outcome
from simulator.emotion import meets
from simulator.explain import Replayed, replay, user_settings
from simulator.explanation import count, figure, listed, signed
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, HiddenIntention, PersonaType, Scenario, Split
from simulator.scripted import AGENTS, ScriptedAgent, exchange
from simulator.version import world_of
from simulator.world import load_bank

MOODS = ((100, "delighted", "32"), (70, "relieved", "32"), (40, "wavering", "36"), (10, "hurt", "33"), (0, "gone", "31"))
"""Lowest emotion of each mood, its word and ANSI colour; the bounds are SAGE's bands."""
BAR_CELLS = 40
WIDEST = 110
SOFT, STRONG = "2", "1"
"""ANSI styles."""
ASCII = str.maketrans({"█": "#", "░": ".", "▲": "^", "▼": "v", "−": "-", "×": "x", "→": ">", "±": "+", "“": '"', "”": '"'})
"""Substitutes for characters that a terminal may lack."""
PERSON = "person"
"""Recorded name of an agent that is a person."""
HINTER = "L6"
"""The agent whose reply `/hint` shows: the one with all six skills."""
ENDINGS = {
    Outcome.DELIGHTED: "{name} is delighted",
    Outcome.LEFT: "{name} gave up and left",
    Outcome.FAREWELL: "you said goodbye",
    Outcome.MAX_TURNS: "that was the last reply",
    None: "you broke off",
}


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Output to a terminal, or without colours to anything else."""

    out: TextIO
    width: int = WIDEST
    has_colours: bool = False
    is_unicode: bool = True

    @classmethod
    def of(cls, out: TextIO) -> Screen:
        """As wide as the terminal; coloured unless `NO_COLOR` is set."""
        is_terminal = out.isatty()
        return cls(
            out=out,
            width=max(40, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)) if is_terminal else WIDEST,
            has_colours=is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
            is_unicode=(out.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32"),
        )

    def line(self, text: str = "", *, colour: str = "") -> None:
        """Prints a line."""
        if not self.is_unicode:
            text = text.translate(ASCII).encode("ascii", "replace").decode()
        print(f"\x1b[{colour}m{text}\x1b[0m" if colour and self.has_colours else text, file=self.out, flush=True)

    def paragraph(self, opening: str, text: str, *, colour: str = "") -> None:
        """Prints a wrapped text behind its opening."""
        indent = " " * len(opening)
        for line in textwrap.wrap(text, self.width, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]:
            self.line(line, colour=colour)

    def emotion(self, emotion: int, change: int | None, opening: str) -> None:
        """Prints the emotion as a bar with its number, the change and a word, so that colour is never the only sign."""
        _, mood, colour = next(mood for mood in MOODS if emotion >= mood[0])
        filled = round(BAR_CELLS * emotion / DELIGHTED_AT)
        moved = "" if change is None else f" {'▲' if change > 0 else '▼' if change < 0 else '='} {change:+d}"
        self.line(f"{opening}{'█' * filled}{'░' * (BAR_CELLS - filled)} {emotion:3}{moved} {mood}", colour=colour)


def reader(screen: Screen) -> Callable[[str], str | None]:
    """Reads lines from a person or a pipe; a pipe's lines are printed too, so that the output reads as a conversation.

    Returns:
        A function from a prompt to the next line, None at the end (Ctrl-D, Ctrl-C).
    """
    is_terminal = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Bytes that are no text must not end a conversation; they become replacement characters below.
        sys.stdin.reconfigure(errors="surrogateescape")
    if is_terminal:
        # Importing it gives input() its editing keys; not every build of Python has it.
        with suppress(ModuleNotFoundError):
            import readline  # noqa: F401

    def read(prompt: str) -> str | None:
        try:
            text = input(prompt if is_terminal else "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except (EOFError, KeyboardInterrupt):
            screen.line()
            return None
        if not is_terminal:
            screen.line(f"{prompt}{text}")
        return text

    return read


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings of a chat."""

    scenarios: Sequence[Scenario]
    """To choose from by the seed."""
    difficulty: Difficulty
    config: RuleUserConfig
    seed: int = 0
    agent: ScriptedAgent | None = None
    """None for a person who types."""
    auto: bool = False
    max_turns: int = 8
    shows_thoughts: bool = False
    shows_steps: bool = False
    save: Path | None = None

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"--max-turns must be at least 1, got {self.max_turns}")
        if self.auto and self.agent is None:
            raise ValueError("--auto must come with --agent, got it alone")
        if self.save is not None and (self.save.is_dir() or not self.save.parent.is_dir()):
            raise ValueError(f"--save must name a file in a folder that is there, got {str(self.save)!r}")


def converse(options: argparse.Namespace) -> int:
    """Chats as the command line says; returns the exit code.

    Raises:
        ValueError: a value is out of range or unknown.
    """
    if options.agent is not None and options.agent not in AGENTS:
        raise ValueError(f"--agent must be one of {', '.join(AGENTS)}, got {options.agent!r}")
    axes = {"strictness": options.strictness_axis, "reserve": options.reserve, "impatience": options.impatience}
    setup = Setup(
        scenarios=scenarios_for(options.scenario, split=Split(options.split), family=options.family),
        difficulty=replace(Difficulty.along(options.strictness), **{axis: value for axis, value in axes.items() if value is not None}),
        config=user_settings({name: getattr(options, name) for name in ("register", "momentum", "start_emotion", "quantise")}),
        seed=options.seed,
        agent=AGENTS[options.agent] if options.agent else None,
        auto=options.auto,
        max_turns=options.max_turns,
        shows_thoughts=options.why,
        shows_steps=options.steps,
        save=options.save,
    )
    screen = Screen.of(sys.stdout)
    Conversation(setup, screen=screen, read=reader(screen)).run()
    return 0


def scenarios_for(scenario_id: str | None, *, split: Split, family: str | None) -> Sequence[Scenario]:
    """The named scenario, or those of a split and of a family or half a family ("advice", "negative").

    Raises:
        ValueError: there is no such scenario or family.
    """
    bank = load_bank()
    if scenario_id is not None:
        return (bank.scenario(scenario_id),)
    parts = set(family.split("/") if family else ())
    found = [scenario for scenario in bank.scenarios(split) if parts <= {scenario.family.intention, scenario.family.persona}]
    if not found:
        known = ", ".join((*HiddenIntention, *PersonaType))
        raise ValueError(f"--family must be one intention, one persona or both of {known}, such as advice/negative, got {family!r}")
    return found


class Conversation:
    """Dialogues one after the other, each shown turn by turn.

    Args:
        read: from a prompt to the next line; None at the end.
    """

    def __init__(self, setup: Setup, *, screen: Screen, read: Callable[[str], str | None]) -> None:
        self.setup, self.screen, self.read = setup, screen, read
        self.user, self.seed = RuleUser(setup.config), setup.seed
        self.commands: dict[str, tuple[Callable[[], None], str]] = {
            "/why": (self.show_thought, "the user's thought about the last reply, and the strategies heard in it"),
            "/steps": (self.show_steps, "the five steps to the last change, with every number"),
            "/hint": (self.show_hint, "a reply of a scripted agent with all six skills"),
            "/card": (self.show_card, "the user and the hidden intention"),
            "/restart": (self.restart, "the same person from the start"),
            "/next": (self.go_on, "another person"),
            "/help": (self.show_help, "these commands"),
        }
        self.begin()

    def begin(self) -> None:
        """A new dialogue with its opening."""
        setup = self.setup
        scenario = random.Random(f"chat|{self.seed}").choice(setup.scenarios)
        self.dialogue = self.user.begin(scenario, setup.difficulty, seed=self.seed)
        self.is_over = self.is_closed = False
        who, axes = scenario.persona, ", ".join(f"{axis} {value:.2g}" for axis, value in setup.difficulty.to_dict().items())
        self.screen.line()
        self.screen.line(f"{who.name}, {who.age}, {who.occupation}", colour=STRONG)
        speaker = "You answer" if setup.agent is None else f"{setup.agent.name} answers"
        self.note(f"{speaker}, up to {setup.max_turns} times; {axes}. {who.name}'s hidden intention is not shown. /help lists commands.")
        self.show_answer(None)

    def run(self) -> None:
        """Until the person quits or the input ends; an automatic one until the dialogue is over."""
        while not self.is_over or not self.setup.auto:
            if self.setup.auto:
                self.take("")
                continue
            prompt = "you> " if self.setup.agent is None else "Enter> "
            text = self.read("/restart, /next or /quit> " if self.is_over else prompt)
            if text is None or text.strip() == "/quit":
                break
            self.take(text.strip())
        self.close()

    def take(self, text: str) -> None:
        """Handles a command or a reply; with a scripted agent any other input asks for its next reply."""
        if text.startswith("/"):
            action, _ = self.commands.get(text.split()[0], (None, ""))
            if action is None:
                self.note(f"There is no {text.split()[0]}; /help lists the commands.")
            else:
                action()
        elif self.is_over:
            self.note("It is over: /restart, /next or /quit.")
        elif self.setup.agent is not None:
            reply = self.setup.agent.reply(self.dialogue)
            self.screen.paragraph(f"  {self.setup.agent.name}: ", reply)
            self.step(reply)
        elif text:
            self.step(text)
        else:
            self.note("Say something, or /help.")

    def step(self, text: str) -> None:
        """A reply and the user's answer."""
        self.dialogue = exchange(self.dialogue, text, user=self.user, max_turns=self.setup.max_turns)
        self.show_answer(self.dialogue.turns[-1].change)
        if self.setup.shows_thoughts:
            self.show_thought()
        if self.setup.shows_steps:
            self.show_steps()
        if self.dialogue.outcome is not None:
            self.is_over = True
            self.close()

    def close(self) -> None:
        """Sums a dialogue up and saves it, once; one without a reply is skipped."""
        if self.is_closed or not self.dialogue.num_replies:
            return
        self.is_closed = True
        for line in summary(self.dialogue, self.setup.config):
            self.screen.paragraph("  ", line)
        if self.setup.save is not None:
            with self.setup.save.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.record(), ensure_ascii=False) + "\n")
            self.note(f"Saved to {self.setup.save}.")

    def record(self) -> dict[str, Any]:
        """The dialogue with its settings, so that `explain` can replay it."""
        speaker = PERSON if self.setup.agent is None else self.setup.agent.name
        facts = {"step": 0, "kind": "chat", "agent": speaker, "world": world_of(self.setup.config), "simulator": asdict(self.setup.config)}
        return {**facts, **self.dialogue.to_dict()}

    def note(self, text: str) -> None:
        """A line that neither of the two says."""
        self.screen.paragraph("  ", text, colour=SOFT)

    def restart(self) -> None:
        """Begins again with the same person."""
        self.close()
        self.begin()

    def go_on(self) -> None:
        """Begins with another person, or with the one scenario that was asked for under another seed."""
        self.seed += 1
        self.restart()

    def show_answer(self, change: int | None) -> None:
        """The user's latest words and emotion."""
        name = self.dialogue.scenario.persona.name
        self.screen.paragraph(f"  {name}: ", self.dialogue.turns[-1].text)
        self.screen.emotion(self.dialogue.emotion, change, " " * (len(name) + 4))

    def show_thought(self) -> None:
        """Thought and strategies at the last reply."""
        turn = self.dialogue.turns[-1]
        if turn.change is None:
            self.note("Nothing has been answered yet.")
            return
        self.screen.paragraph("      thought: ", turn.thought, colour=SOFT)
        self.screen.paragraph("      heard:   ", listed(turn.heard) or "no support strategy", colour=SOFT)

    def show_steps(self) -> None:
        """The five steps to the last change."""
        explanation = list(replay(self.dialogue, self.setup.config))[-1].explanation
        if explanation is None:
            self.note("Nothing has been answered yet.")
            return
        for number, (title, text) in enumerate(explanation.steps(), start=1):
            self.screen.paragraph(f"      {number} {title}: ", text, colour=SOFT)

    def show_hint(self) -> None:
        """A reply of the agent with all skills."""
        self.note("It is over." if self.is_over else f"{HINTER} would say: {AGENTS[HINTER].reply(self.dialogue)}")

    def show_card(self) -> None:
        """Everything about this user."""
        scenario = self.dialogue.scenario
        facts = (f"- {fact.text}" for fact in scenario.facts)
        for line in (scenario.scenario_id, scenario.background, scenario.goal, scenario.hidden_intention, *facts):
            self.note(line)

    def show_help(self) -> None:
        """The commands."""
        for name, (_, what) in self.commands.items():
            self.note(f"{name:9} {what}")
        self.note("/quit     end (Ctrl-D does too)")


def summary(dialogue: Dialogue, config: RuleUserConfig) -> list[str]:
    """How a dialogue went: its end, the wish, the best and the worst reply, and what cost most."""
    scenario = dialogue.scenario
    ending = ENDINGS[dialogue.outcome].format(name=scenario.persona.name)
    answers = [turn for turn in replay(dialogue, config) if turn.explanation is not None]

    def change_of(turn: Replayed) -> int:
        return turn.recorded.change or 0

    lines = [
        "",
        f"{ending[0].upper()}{ending[1:]}: emotion {dialogue.turns[0].emotion} \u2192 {dialogue.emotion} after "
        f"{count(len(answers), 'reply', 'replies')}.",
        f"Hidden intention: {scenario.hidden_intention} Met by {listed(sorted(meets(scenario.family)))}.",
    ]
    best, worst = max(answers, key=change_of), min(answers, key=change_of)
    for title, turn in (("Helped most", best if change_of(best) > 0 else None), ("Hurt most", worst if change_of(worst) < 0 else None)):
        if turn is not None:
            lines.append(f"{title}: {signed(change_of(turn))} \u201c{turn.reply}\u201d ({turn.recorded.thought})")
    lost: dict[str, list[float]] = defaultdict(list)
    for turn in answers:
        for name, worth in turn.explanation.losses().items() if turn.explanation is not None else ():
            lost[name].append(worth)
    dearest = "; ".join(
        f"{name.replace('_', ' ')} in {count(len(costs), 'reply', 'replies')} (\u2212{figure(sum(costs), digits=1)} worth)"
        for name, costs in sorted(lost.items(), key=lambda item: -sum(item[1]))
    )
    return [*lines, f"What cost most: {dearest}." if dearest else "Nothing that counts at this difficulty was missing."]
