"""Commands of this package: `python -m simulator COMMAND`; `--help` lists them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from simulator.files import ExitCode, ended
from simulator.options import add_commands
from simulator.study_commands import add_study_commands

ACTIONS = {
    "chat": ("simulator.chat", "converse"),
    "explain": ("simulator.explain", "explain_dialogues"),
    "calibrate": ("simulator.calibration", "calibrate"),
    "adversaries": ("simulator.adversaries", "play_adversaries"),
    "convert": ("simulator.sage.convert", "convert"),
}
"""Module and function of commands that print and return an exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command and runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description="Simulated users whose feelings are the reward.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_commands(commands)
    arguments = sys.argv[1:] if arguments is None else arguments
    of_study = add_study_commands("simulator", parser, commands, arguments)
    options = parser.parse_args(arguments)

    def work() -> int:
        if of_study:
            return of_study(options)
        if options.command in ACTIONS:
            module, function = ACTIONS[options.command]
            return int(getattr(import_module(module), function)(options))
        print({"ladder": ladder, "scenarios": cards, "play": transcript, "skills": skills}[options.command](options))
        return ExitCode.FINISHED

    return ended(work, refused=(ValueError, OSError), if_interrupted="interrupted")


def ladder(options: argparse.Namespace) -> str:
    """Rows are agents, columns difficulties."""
    from simulator.rule_user import RuleUser, RuleUserConfig
    from simulator.scenario import FAMILIES, Split
    from simulator.scripted import AGENTS, mean_score, score_agent
    from simulator.version import world_of
    from simulator.world import load_bank

    scenarios, user = load_bank().scenarios(Split(options.split)), RuleUser(RuleUserConfig())
    groups = {"all families": scenarios}
    if options.by_family:
        groups = {str(family): tuple(s for s in scenarios if s.family == family) for family in FAMILIES}
    lines = [f"{world_of(user.config)}, {options.split}: mean final emotion (0-100)"]
    for name, members in groups.items():
        lines += ["", f"{name} ({len(members)} scenarios)", "agent  " + " ".join(f"{d:5.2f}" for d in options.strictness)]
        for agent in AGENTS:
            scores = score_agent(agent, members, options.strictness, user=user)
            lines.append(f"{agent:7}" + " ".join(f"{mean_score(scores[d]):5.1f}" for d in options.strictness))
    return "\n".join(lines)


def cards(options: argparse.Namespace) -> str:
    """Scenario cards for people."""
    from simulator.scenario import Split
    from simulator.world import load_bank

    scenarios = load_bank().scenarios(Split(options.split))
    lines: list[str] = []
    for scenario in (scenarios[i * len(scenarios) // options.num] for i in range(min(options.num, len(scenarios)))):
        who = scenario.persona
        lines += [scenario.scenario_id, f"  {who.name}, {who.age}, {who.occupation}. {scenario.background}", f"  Goal: {scenario.goal}"]
        lines += [f"  Hidden: {scenario.hidden_intention}", f"  Opens: {scenario.opening}"]
        lines += [*(f"  - {fact.text}" for fact in scenario.facts[1:]), ""]
    return "\n".join(lines[:-1])


def transcript(options: argparse.Namespace) -> str:
    """One dialogue with the user's emotions and thoughts."""
    from simulator.rule_user import RuleUser, RuleUserConfig
    from simulator.scenario import Difficulty, Split
    from simulator.scripted import AGENTS, play
    from simulator.world import load_bank

    if options.agent not in AGENTS:
        raise ValueError(f"agent must be one of {', '.join(AGENTS)}, got {options.agent!r}")
    bank = load_bank()
    scenario = bank.scenario(options.scenario) if options.scenario else bank.scenarios(Split.TRAIN)[0]
    user, difficulty = RuleUser(RuleUserConfig()), Difficulty.along(options.strictness)
    dialogue = play(AGENTS[options.agent], scenario, difficulty, seed=options.seed, user=user)
    lines = [f"{scenario.scenario_id} at strictness {options.strictness}: {scenario.hidden_intention}"]
    for turn in dialogue.turns:
        lines.append(f"{'' if turn.emotion is None else turn.emotion:5} {turn.speaker:5} {turn.text}")
        if turn.thought:
            lines.append(f"            [{turn.change:+d}] {turn.thought}")
    return "\n".join([*lines, f"ended: {dialogue.outcome}"])


def skills(options: argparse.Namespace) -> str:
    """Rows are steps or strictnesses, columns the skills."""
    from simulator.dialogue import Dialogue, Outcome
    from simulator.explain import read_dialogues, recorded_config, recorded_register, settings_of, table_of_shares
    from simulator.listener import Register
    from simulator.world import load_bank

    if not options.file.is_file():
        raise ValueError(f"FILE must be the dialogues.jsonl or evaluation.jsonl of a run, got {str(options.file)!r}, which is no file")
    rows: dict[str, list[Dialogue]] = {}
    config = {} if options.register else settings_of(recorded_config(options.file))
    registers = {options.register} if options.register else set()
    for record, dialogue in read_dialogues(options.file, load_bank()):
        if record.get("step", 0) < options.from_step or dialogue.outcome is Outcome.ERROR:
            continue
        name = f"{record.get('step', 0) // 10 * 10}" if options.by == "step" else f"{dialogue.difficulty.strictness:.1f}"
        rows.setdefault(name, []).append(dialogue)
        if not options.register:
            registers.add(recorded_register(settings_of(record), config))
    if len(registers) > 1:
        raise ValueError(f"FILE must hold dialogues in one register, got {' and '.join(sorted(registers))}; name one with --register")
    if not rows:
        raise ValueError(f"FILE must hold a dialogue without an error, got none from step {options.from_step} on in {str(options.file)!r}")
    in_order = dict(sorted(rows.items(), key=lambda row: float(row[0])))
    return table_of_shares(in_order, header=options.by, register=Register(next(iter(registers), Register.WORLD)))


if __name__ == "__main__":
    sys.exit(main())
