"""Words, bars and colours on a terminal, and the same without colours where there is none: plain ANSI, nothing to install.

Talk to a simulated user in the terminal and see what it feels, or step through what a scripted agent makes of it.
"""

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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

from simulator.dialogue import DELIGHTED_AT, Dialogue, Outcome
from simulator.emotion import meets
from simulator.explain import Explanation, Replayed, five_steps, replay, user_settings
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, HiddenIntention, PersonaType, Scenario, Split
from simulator.scripted import AGENTS, ScriptedAgent, exchange
from simulator.text import figure, listed, signed
from simulator.version import world_of
from simulator.world import load_bank

MOODS = ((100, "delighted", "32"), (70, "relieved", "32"), (40, "wavering", "36"), (10, "hurt", "33"), (0, "gone", "31"))
"""From which emotion on, the word for it, and its ANSI colour; the bounds are SAGE's bands."""
BAR_CELLS = 40
WIDEST = 110


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Where a conversation is shown."""

    out: TextIO
    width: int = WIDEST
    has_colours: bool = False
    is_unicode: bool = True

    @classmethod
    def of(cls, out: TextIO) -> Screen:
        """As wide as the terminal is, coloured if it is one and `NO_COLOR` does not forbid it."""
        is_terminal = out.isatty()
        colours = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        return cls(
            out=out,
            width=max(40, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)) if is_terminal else WIDEST,
            has_colours=colours,
            is_unicode=(out.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32"),
        )

    def line(self, text: str = "", *, colour: str = "") -> None:
        """Prints a line."""
        if not self.is_unicode:
            text = text.translate(ASCII).encode("ascii", "replace").decode()
        print(f"\x1b[{colour}m{text}\x1b[0m" if colour and self.has_colours else text, file=self.out, flush=True)

    def paragraph(self, opening: str, text: str, *, colour: str = "") -> None:
        """Prints a text that is wrapped beside what opens it."""
        indent = " " * len(opening)
        for line in textwrap.wrap(text, self.width, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]:
            self.line(line, colour=colour)

    def emotion(self, emotion: int, change: int | None, opening: str) -> None:
        """Prints the emotion as a bar with its number, what it moved by, and a word: nothing is told by colour alone."""
        _, mood, colour = next(mood for mood in MOODS if emotion >= mood[0])
        filled = round(BAR_CELLS * emotion / DELIGHTED_AT)
        moved = "" if change is None else f" {'▲' if change > 0 else '▼' if change < 0 else '='} {change:+d}"
        self.line(f"{opening}{'█' * filled}{'░' * (BAR_CELLS - filled)} {emotion:3}{moved} {mood}", colour=colour)


ASCII = str.maketrans({"█": "#", "░": ".", "▲": "^", "▼": "v", "−": "-", "×": "x", "→": ">", "±": "+", "“": '"', "”": '"'})
"""What stands for the characters that a poorer terminal lacks."""


class Input:
    """Lines that somebody types or that a pipe brings; a pipe's are shown, so that what is printed reads as a conversation."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._is_terminal = sys.stdin.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            # Bytes that are no text must end no conversation: `read` puts the usual sign for them in their place.
            sys.stdin.reconfigure(errors="surrogateescape")
        if self._is_terminal:
            # Importing it gives input() its editing keys; not every build of Python has it.
            with suppress(ModuleNotFoundError):
                import readline  # noqa: F401

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None when there is no more (Ctrl-D, Ctrl-C, the end of the pipe)."""
        try:
            text = input(prompt if self._is_terminal else "")
        except (EOFError, KeyboardInterrupt):
            self._screen.line()
            return None
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if not self._is_terminal:
            self._screen.line(f"{prompt}{text}")
        return text


PERSON = "person"
"""Who the agent is when nobody scripted speaks."""
HINTER = "L6"
"""The agent whose reply `/hint` shows: the one with all six skills."""
ENDINGS = {
    Outcome.DELIGHTED: "{name} is delighted",
    Outcome.LEFT: "{name} gave up and left",
    Outcome.FAREWELL: "you said goodbye",
    Outcome.MAX_TURNS: "that was the last reply",
    None: "you broke off",
}
SOFT, STRONG = "2", "1"
"""ANSI styles."""


class Lines(Protocol):
    """Where lines come from."""

    def read(self, prompt: str) -> str | None:
        """The next one, None when there is no more."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a conversation is to be."""

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
    """Talks until it is over; returns the exit code."""
    screen = Screen.of(sys.stdout)
    Conversation(setup_of(options), screen=screen, lines=Input(screen)).run()
    return 0


def setup_of(options: argparse.Namespace) -> Setup:
    """The command line as a setup.

    Raises:
        ValueError: a value is out of range, or names nobody.
    """
    if options.agent is not None and options.agent not in AGENTS:
        raise ValueError(f"--agent must be one of {', '.join(AGENTS)}, got {options.agent!r}")
    axes = {"strictness": options.strictness_axis, "reserve": options.reserve, "impatience": options.impatience}
    settings = {name: getattr(options, name) for name in ("register", "momentum", "start_emotion", "quantise")}
    return Setup(
        scenarios=scenarios_for(options.scenario, split=Split(options.split), family=options.family),
        difficulty=replace(Difficulty.along(options.strictness), **{axis: value for axis, value in axes.items() if value is not None}),
        config=user_settings(settings),
        seed=options.seed,
        agent=AGENTS[options.agent] if options.agent else None,
        auto=options.auto,
        max_turns=options.max_turns,
        shows_thoughts=options.why,
        shows_steps=options.steps,
        save=options.save,
    )


def scenarios_for(scenario_id: str | None, *, split: Split, family: str | None) -> Sequence[Scenario]:
    """The scenario that is named, or those of a split and of a family or half a family ("advice", "negative").

    Raises:
        ValueError: there is no such scenario or family.
    """
    bank = load_bank()
    if scenario_id is not None:
        return (bank.scenario(scenario_id),)
    parts = family.split("/") if family else []
    known = (*HiddenIntention, *PersonaType)
    if any(part not in known for part in parts):
        raise ValueError(f"--family must be made of {', '.join(known)}, such as advice/negative, got {family!r}")
    found = [scenario for scenario in bank.scenarios(split) if set(parts) <= {scenario.family.intention, scenario.family.persona}]
    if not found:
        raise ValueError(f"--family must be one intention, one persona or both, such as advice/negative, got {family!r}")
    return found


class Conversation:
    """Dialogues one after the other, each shown turn by turn."""

    def __init__(self, setup: Setup, *, screen: Screen, lines: Lines) -> None:
        self.setup, self.screen, self.lines = setup, screen, lines
        self.user, self.seed = RuleUser(setup.config), setup.seed
        self.commands: dict[str, tuple[Callable[[], None], str]] = {
            "/why": (self.show_thought, "what they thought of the last reply, and the strategies they heard in it"),
            "/steps": (self.show_steps, "the five steps to the last change, with every figure"),
            "/hint": (self.show_hint, "what a scripted agent with all six skills would say now"),
            "/card": (self.show_card, "who they are and what they want: nothing is hidden then"),
            "/restart": (self.restart, "the same person from the start"),
            "/next": (self.go_on, "somebody else"),
            "/help": (self.show_help, "these commands"),
        }
        self.is_over = self.is_closed = False
        self.dialogue = self.begin()

    def run(self) -> None:
        """Until somebody quits or the input ends; an automatic one until it is over."""
        while not self.is_over or not self.setup.auto:
            if self.setup.auto:
                self.step(self.agent_reply())
                continue
            text = self.lines.read(self.prompt())
            if text is None or text.strip() == "/quit":
                break
            self.take(text.strip())
        self.close()

    def prompt(self) -> str:
        """What stands before the input."""
        if self.is_over:
            return "/restart, /next or /quit> "
        return "you> " if self.setup.agent is None else "Enter> "

    def take(self, text: str) -> None:
        """A command, a reply, or the wish to see the next one."""
        if text.startswith("/"):
            action, _ = self.commands.get(text.split()[0], (None, ""))
            if action is None:
                self.note(f"There is no {text.split()[0]}; /help lists what there is.")
            else:
                action()
        elif self.is_over:
            self.note("It is over: /restart, /next or /quit.")
        elif self.setup.agent is not None:
            self.step(self.agent_reply())
        elif text:
            self.step(text)
        else:
            self.note("Say something, or /help.")

    def begin(self) -> Dialogue:
        """A new dialogue with its opening."""
        setup = self.setup
        scenario = random.Random(f"chat|{self.seed}").choice(setup.scenarios)
        dialogue = self.user.begin(scenario, setup.difficulty, seed=self.seed)
        self.is_over = self.is_closed = False
        who, difficulty = scenario.persona, setup.difficulty
        self.screen.line()
        self.screen.line(f"{who.name}, {who.age}, {who.occupation}", colour=STRONG)
        speaker = "You answer" if setup.agent is None else f"{setup.agent.name} answers"
        axes = ", ".join(f"{axis} {value:.2g}" for axis, value in difficulty.to_dict().items())
        self.note(f"{speaker}, up to {setup.max_turns} times; {axes}. What {who.name} longs for is not said. /help lists commands.")
        self.say(dialogue, None)
        return dialogue

    def agent_reply(self) -> str:
        """What the scripted agent says."""
        assert self.setup.agent is not None, "only a scripted agent has a reply of its own"
        text = self.setup.agent.reply(self.dialogue)
        self.screen.paragraph(f"  {self.setup.agent.name}: ", text)
        return text

    def step(self, text: str) -> None:
        """A reply and the user's answer."""
        self.dialogue = exchange(self.dialogue, text, user=self.user, max_turns=self.setup.max_turns)
        self.say(self.dialogue, self.dialogue.turns[-1].change)
        if self.setup.shows_thoughts:
            self.show_thought()
        if self.setup.shows_steps:
            self.show_steps()
        if self.dialogue.outcome is not None:
            self.is_over = True
            self.close()

    def say(self, dialogue: Dialogue, change: int | None) -> None:
        """The user's latest words, and the bar beneath them."""
        name = dialogue.scenario.persona.name
        self.screen.paragraph(f"  {name}: ", dialogue.turns[-1].text)
        self.screen.emotion(dialogue.emotion, change, " " * (len(name) + 4))

    def close(self) -> None:
        """Sums a dialogue up and saves it, once; one without a reply is not worth it."""
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
        """The dialogue with how it came about, as `explain` and the other readers want it."""
        speaker = PERSON if self.setup.agent is None else self.setup.agent.name
        facts = {"step": 0, "kind": "chat", "agent": speaker, "world": world_of(self.setup.config), "simulator": asdict(self.setup.config)}
        return {**facts, **self.dialogue.to_dict()}

    def note(self, text: str) -> None:
        """Something that neither of the two says."""
        self.screen.paragraph("  ", text, colour=SOFT)

    def restart(self) -> None:
        """Begins again with the same person."""
        self.close()
        self.dialogue = self.begin()

    def go_on(self) -> None:
        """Begins with somebody else, or with the one scenario that was asked for under another seed."""
        self.seed += 1
        self.restart()

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
        for number, (title, text) in enumerate(five_steps(explanation).named(), start=1):
            self.screen.paragraph(f"      {number} {title}: ", text, colour=SOFT)

    def show_hint(self) -> None:
        """A reply of the agent with all skills."""
        if self.is_over:
            self.note("It is over.")
        else:
            self.note(f"{HINTER} would say: {AGENTS[HINTER].reply(self.dialogue)}")

    def show_card(self) -> None:
        """Everything about this user."""
        scenario = self.dialogue.scenario
        for line in (scenario.scenario_id, scenario.background, scenario.goal, scenario.hidden_intention):
            self.note(line)
        for fact in scenario.facts:
            self.note(f"- {fact.text}")

    def show_help(self) -> None:
        """The commands."""
        for name, (_, what) in self.commands.items():
            self.note(f"{name:9} {what}")
        self.note("/quit     end (Ctrl-D does too)")


def summary(dialogue: Dialogue, config: RuleUserConfig) -> list[str]:
    """How a dialogue went: its end, what was wanted, what helped, what hurt and what was missing."""
    scenario = dialogue.scenario
    ending = ENDINGS[dialogue.outcome].format(name=scenario.persona.name)
    start = dialogue.turns[0].emotion
    answers = [turn for turn in replay(dialogue, config) if turn.explanation is not None]
    lines = [
        "",
        f"{ending[0].upper()}{ending[1:]}: emotion {start} \u2192 {dialogue.emotion} after {count(len(answers), 'reply', 'replies')}.",
        f"What was longed for: {scenario.hidden_intention} Met by {listed(sorted(meets(scenario.family)))}.",
    ]
    best, worst = max(answers, key=change_of), min(answers, key=change_of)
    if change_of(best) > 0:
        lines.append(f"Helped most: {told(best)}")
    if change_of(worst) < 0:
        lines.append(f"Hurt most: {told(worst)}")
    missing = lacks(answers)
    lines.append(f"What cost most: {missing}." if missing else "Nothing that counts at this difficulty was missing.")
    return lines


def change_of(turn: Replayed) -> int:
    """Points that a reply moved the user."""
    return turn.recorded.change or 0


def told(turn: Replayed) -> str:
    """A reply with its change and the thought."""
    return f"{signed(change_of(turn))} \u201c{turn.reply}\u201d ({turn.recorded.thought})"


def lacks(answers: Iterable[Replayed]) -> str:
    """What was missing over a dialogue, the dearest first, in units of a reply's worth."""
    taken: dict[str, list[float]] = defaultdict(list)
    for turn in answers:
        assert isinstance(turn.explanation, Explanation), "an answer of a chat follows the training rule"
        for cost in turn.explanation.worth.costs:
            if cost.taken:
                taken[cost.name].append(cost.taken)
        garbled = turn.explanation.worth.garble * (1.0 - turn.explanation.worth.clarity)
        if turn.explanation.worth.contempt is not None:
            taken["contempt"].append(turn.explanation.worth.lacking - turn.explanation.worth.contempt)
        elif garbled:
            taken["garble"].append(garbled)
    dearest = sorted(taken.items(), key=lambda item: -sum(item[1]))
    return "; ".join(
        f"{name.replace('_', ' ')} in {count(len(costs), 'reply', 'replies')} (\u2212{figure(sum(costs), digits=1)} worth)"
        for name, costs in dearest
    )


def count(num: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{num} {one if num == 1 else many}"
