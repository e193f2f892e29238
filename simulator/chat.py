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
from typing import TextIO

from simulator.dialogue import DELIGHTED_AT, Outcome
from simulator.emotion import meets
from simulator.explain import count, figure, listed, replay, signed, user_settings
from simulator.pressure import every_scenario
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, HiddenIntention, PersonaType, Scenario, Split
from simulator.scripted import AGENTS, ScriptedAgent, exchange
from simulator.version import world_of


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Output to a terminal, or without colours to anything else."""

    out: TextIO
    width: int = 110
    has_colours: bool = False

    @classmethod
    def of(cls, out: TextIO) -> Screen:
        """As wide as the terminal; coloured unless `NO_COLOR` is set."""
        is_terminal = out.isatty()
        return cls(
            out=out,
            width=max(40, min(110, shutil.get_terminal_size((110, 24)).columns)) if is_terminal else 110,
            has_colours=is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        )

    def line(self, text: str = "", *, colour: str = "") -> None:
        """Prints a line, `colour` being an ANSI style."""
        print(f"\x1b[{colour}m{text}\x1b[0m" if colour and self.has_colours else text, file=self.out, flush=True)

    def paragraph(self, opening: str, text: str, *, colour: str = "") -> None:
        """Prints a wrapped text behind its opening."""
        indent = " " * len(opening)
        for line in textwrap.wrap(text, self.width, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]:
            self.line(line, colour=colour)

    def emotion(self, emotion: int, change: int | None, opening: str) -> None:
        """Prints the emotion as a bar with its number, the change and a word, so that colour is never the only sign."""
        # The bounds are SAGE's bands.
        moods = ((100, "delighted", "32"), (70, "relieved", "32"), (40, "wavering", "36"), (10, "hurt", "33"), (0, "gone", "31"))
        _, mood, colour = next(mood for mood in moods if emotion >= mood[0])
        filled = round(40 * emotion / DELIGHTED_AT)
        moved = "" if change is None else f" {'▲' if change > 0 else '▼' if change < 0 else '='} {change:+d}"
        self.line(f"{opening}{'█' * filled}{'░' * (40 - filled)} {emotion:3}{moved} {mood}", colour=colour)

    def read(self, prompt: str) -> str | None:
        """The next line of a person or a pipe, None at the end (Ctrl-D, Ctrl-C). A pipe's lines are printed too, as in a conversation."""
        is_terminal = sys.stdin.isatty()
        try:
            text = input(prompt if is_terminal else "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except (EOFError, KeyboardInterrupt):
            self.line()
            return None
        if not is_terminal:
            self.line(f"{prompt}{text}")
        return text


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
    # Neither bytes that are no text nor a terminal without Unicode may end a conversation; `Screen.read` replaces what it cannot decode.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    # Importing it gives input() its editing keys; not every build of Python has it.
    with suppress(ModuleNotFoundError):
        import readline  # noqa: F401
    screen = Screen.of(sys.stdout)
    Conversation(setup, screen=screen, read=screen.read).run()
    return 0


def scenarios_for(scenario_id: str | None, *, split: Split, family: str | None) -> Sequence[Scenario]:
    """The named scenario, or those of a split and of a family or half a family ("advice", "negative").

    Raises:
        ValueError: there is no such scenario or family.
    """
    bank = every_scenario()
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
        self.begin()

    def begin(self) -> None:
        """A new dialogue with its opening."""
        setup = self.setup
        scenario = random.Random(f"chat|{self.seed}").choice(setup.scenarios)
        self.dialogue = self.user.begin(scenario, setup.difficulty, seed=self.seed)
        self.is_over = self.is_closed = False
        who, axes = scenario.persona, ", ".join(f"{axis} {value:.2g}" for axis, value in setup.difficulty.to_dict().items())
        self.screen.line()
        self.screen.line(f"{who.name}, {who.age}, {who.occupation}", colour="1")
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
            self.obey(text.split()[0])
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

    def obey(self, command: str) -> None:
        """Handles a command."""
        scenario = self.dialogue.scenario
        match command:
            case "/why" | "/steps" if not self.dialogue.num_replies:
                self.note("Nothing has been answered yet.")
            case "/why":
                self.show_thought()
            case "/steps":
                self.show_steps()
            case "/hint":
                self.note("It is over." if self.is_over else f"L6 would say: {AGENTS['L6'].reply(self.dialogue)}")
            case "/card":
                facts = (f"- {fact.text}" for fact in scenario.facts)
                for line in (scenario.scenario_id, scenario.background, scenario.goal, scenario.hidden_intention, *facts):
                    self.note(line)
            case "/restart" | "/next":
                # Another person, or the one scenario that was asked for under another seed.
                self.seed += command == "/next"
                self.close()
                self.begin()
            case "/help":
                self.note("/why      the user's thought about the last reply, and the strategies heard in it")
                self.note("/steps    the five steps to the last change, with every number")
                self.note("/hint     a reply of a scripted agent with all six skills")
                self.note("/card     the user and the hidden intention")
                self.note("/restart  the same person from the start")
                self.note("/next     another person")
                self.note("/help     these commands")
                self.note("/quit     end (Ctrl-D does too)")
            case _:
                self.note(f"There is no {command}; /help lists the commands.")

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
        """Sums a dialogue up and saves it, once, with its settings so that `explain` can replay it; one without a reply is skipped."""
        if self.is_closed or not self.dialogue.num_replies:
            return
        self.is_closed, setup = True, self.setup
        for line in self.summary():
            self.screen.paragraph("  ", line)
        if setup.save is not None:
            speaker = "person" if setup.agent is None else setup.agent.name
            facts = {"step": 0, "kind": "chat", "agent": speaker, "world": world_of(setup.config), "simulator": asdict(setup.config)}
            with setup.save.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**facts, **self.dialogue.to_dict()}, ensure_ascii=False) + "\n")
            self.note(f"Saved to {setup.save}.")

    def note(self, text: str) -> None:
        """A line that neither of the two says."""
        self.screen.paragraph("  ", text, colour="2")

    def show_answer(self, change: int | None) -> None:
        """The user's latest words and emotion."""
        name = self.dialogue.scenario.persona.name
        self.screen.paragraph(f"  {name}: ", self.dialogue.turns[-1].text)
        self.screen.emotion(self.dialogue.emotion, change, " " * (len(name) + 4))

    def show_thought(self) -> None:
        """Thought and strategies at the last reply."""
        turn = self.dialogue.turns[-1]
        self.screen.paragraph("      thought: ", turn.thought, colour="2")
        self.screen.paragraph("      heard:   ", listed(turn.heard) or "no support strategy", colour="2")

    def show_steps(self) -> None:
        """The five steps to the last change."""
        *_, last = replay(self.dialogue, self.setup.config)
        for number, (title, text) in enumerate(last.explanation.steps() if last.explanation else (), start=1):
            self.screen.paragraph(f"      {number} {title}: ", text, colour="2")

    def summary(self) -> list[str]:
        """How the dialogue went: its end, the wish, the best and the worst reply, and what cost most."""
        dialogue, scenario = self.dialogue, self.dialogue.scenario
        ending = {
            Outcome.DELIGHTED: f"{scenario.persona.name} is delighted",
            Outcome.LEFT: f"{scenario.persona.name} gave up and left",
            Outcome.FAREWELL: "You said goodbye",
            Outcome.MAX_TURNS: "That was the last reply",
            None: "You broke off",
        }[dialogue.outcome]
        answers = [(turn, turn.recorded.change or 0, turn.explanation) for turn in replay(dialogue, self.setup.config) if turn.explanation]
        lines = [
            "",
            f"{ending}: emotion {dialogue.turns[0].emotion} \u2192 {dialogue.emotion} after {count(len(answers), 'reply', 'replies')}.",
            f"Hidden intention: {scenario.hidden_intention} Met by {listed(sorted(meets(scenario.family)))}.",
        ]
        best, worst = max(answers, key=lambda answer: answer[1]), min(answers, key=lambda answer: answer[1])
        for title, sign, (turn, change, _) in (("Helped most", 1, best), ("Hurt most", -1, worst)):
            if sign * change > 0:
                lines.append(f"{title}: {signed(change)} \u201c{turn.reply}\u201d ({turn.recorded.thought})")
        lost: dict[str, list[float]] = defaultdict(list)
        for _, _, explanation in answers:
            for name, worth in explanation.losses().items():
                lost[name].append(worth)
        dearest = "; ".join(
            f"{name.replace('_', ' ')} in {count(len(costs), 'reply', 'replies')} (\u2212{figure(sum(costs), digits=1)} worth)"
            for name, costs in sorted(lost.items(), key=lambda item: -sum(item[1]))
        )
        return [*lines, f"What cost most: {dearest}." if dearest else "Nothing that counts at this difficulty was missing."]
