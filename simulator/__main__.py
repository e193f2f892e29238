"""The door of this package: `python -m simulator COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from simulator.files import ExitCode, ended
from simulator.options import adversaries_options, calibrate_options, chat_options, convert_options, explain_options, finite
from simulator.study_commands import add_study_commands

GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command and runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description="Simulated users whose feelings are the reward.")
    commands = parser.add_subparsers(dest="command", required=True)
    ladder = commands.add_parser("ladder", help="score of the scripted agents by difficulty: mean final emotion, 0-100")
    ladder.add_argument("--split", choices=("train", "heldout", "sealed"), default="train", help="whose scenarios (default train)")
    ladder.add_argument("--strictness", type=finite, nargs="+", default=list(GRID), help="scalar difficulties in [0, 1]")
    ladder.add_argument("--by-family", action="store_true", help="a table for each hidden intention and persona type")
    scenarios = commands.add_parser("scenarios", help="print scenario cards")
    scenarios.add_argument("--split", choices=("train", "heldout", "sealed"), default="train", help="which split (default train)")
    scenarios.add_argument("--num", type=int, default=10, help="how many, spread over the split (default 10)")
    play = commands.add_parser("play", help="a dialogue between a scripted agent and a user, with emotions and thoughts")
    play.add_argument("agent", help="L0 to L6, or praise")
    play.add_argument("--scenario", help="its id (default: the first training scenario)")
    play.add_argument("--strictness", type=finite, default=0.35, help="scalar difficulty in [0, 1] (default .35, VANILLA)")
    play.add_argument("--seed", type=int, default=0, help="of the user's chances (default 0)")
    skills = commands.add_parser("skills", help="how often an agent showed each skill where it was called for, read off a run's dialogues")
    skills.add_argument("file", type=Path, help="dialogues.jsonl or evaluation.jsonl of a run")
    skills.add_argument("--by", choices=("step", "strictness"), default="step", help="a row for ten steps, or for a tenth of strictness")
    skills.add_argument("--from-step", type=int, default=0, help="leave out what came before (default 0)")
    skills.add_argument("--register", choices=("open", "world"), help="what counts as clear (default: as recorded, else world)")
    calibrate_options(commands.add_parser("calibrate", help="realised against commanded strictness, on frozen dialogues judged again"))
    adversaries_options(commands.add_parser("adversaries", help="agents that try to be paid for nothing, beside the ladder"))
    chat_options(commands.add_parser("chat", help="talk to a simulated user in the terminal, or watch a scripted agent do it"))
    explain_options(commands.add_parser("explain", help="replay recorded dialogues and show, step by step, how each change comes about"))
    convert_options(commands.add_parser("convert", help="transcripts into SAGE's format, or from it"))
    arguments = sys.argv[1:] if arguments is None else arguments
    of_study = add_study_commands("simulator", parser, commands, arguments)
    options = parser.parse_args(arguments)

    def work() -> int:
        if of_study:
            return of_study(options)
        if options.command in ACTIONS:
            return ACTIONS[options.command](options)
        print(TABLES[options.command](options))
        return ExitCode.FINISHED

    return ended(work, refused=(ValueError, OSError), if_interrupted="interrupted")


def ladder_table(options: argparse.Namespace) -> str:
    """Rows are agents, columns difficulties."""
    from simulator.rule_user import RuleUser, RuleUserConfig
    from simulator.scenario import FAMILIES, Split
    from simulator.scripted import AGENTS, mean_score, score_agent
    from simulator.version import world_of
    from simulator.world import load_bank

    scenarios = load_bank().scenarios(Split(options.split))
    user = RuleUser(RuleUserConfig())
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
    """Scenario cards as a person would read them."""
    from simulator.scenario import Split
    from simulator.world import load_bank

    if options.num < 1:
        raise ValueError(f"--num must be at least 1, got {options.num}")
    scenarios = load_bank().scenarios(Split(options.split))
    chosen = [scenarios[i * len(scenarios) // options.num] for i in range(min(options.num, len(scenarios)))]
    return "\n\n".join(
        "\n".join(
            (
                scenario.scenario_id,
                f"  {scenario.persona.name}, {scenario.persona.age}, {scenario.persona.occupation}. {scenario.background}",
                f"  Goal: {scenario.goal}",
                f"  Hidden: {scenario.hidden_intention}",
                f"  Opens: {scenario.opening}",
                *(f"  - {fact.text}" for fact in scenario.facts[1:]),
            )
        )
        for scenario in chosen
    )


def transcript(options: argparse.Namespace) -> str:
    """One dialogue with what the user felt and thought."""
    from simulator.rule_user import RuleUser, RuleUserConfig
    from simulator.scenario import Difficulty, Split
    from simulator.scripted import AGENTS, play
    from simulator.world import load_bank

    if options.agent not in AGENTS:
        raise ValueError(f"agent must be one of {', '.join(AGENTS)}, got {options.agent!r}")
    bank = load_bank()
    scenario = bank.scenario(options.scenario) if options.scenario else bank.scenarios(Split.TRAIN)[0]
    user = RuleUser(RuleUserConfig())
    dialogue = play(AGENTS[options.agent], scenario, Difficulty.along(options.strictness), seed=options.seed, user=user)
    lines = [f"{scenario.scenario_id} at strictness {options.strictness}: {scenario.hidden_intention}"]
    for turn in dialogue.turns:
        mark = "     " if turn.emotion is None else f"{turn.emotion:5}"
        lines.append(f"{mark} {turn.speaker:5} {turn.text}")
        if turn.thought:
            lines.append(f"            [{turn.change:+d}] {turn.thought}")
    return "\n".join([*lines, f"ended: {dialogue.outcome}"])


def skill_shares(options: argparse.Namespace) -> str:
    """Rows are steps or strictnesses, columns the skills."""
    from simulator.dialogue import Dialogue, Outcome
    from simulator.explain import read_dialogues, recorded_config, recorded_register, settings_of, table_of_shares
    from simulator.listener import Register
    from simulator.world import load_bank

    if not options.file.is_file():
        what = "which is a folder" if options.file.is_dir() else "which is not there"
        raise ValueError(f"FILE must be the dialogues.jsonl or evaluation.jsonl of a run, got {str(options.file)!r}, {what}")
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
        since = f" from step {options.from_step} on" if options.from_step else ""
        raise ValueError(f"FILE must hold a dialogue that did not break, got none{since} in {str(options.file)!r}")
    in_order = dict(sorted(rows.items(), key=lambda row: float(row[0])))
    return table_of_shares(in_order, header=options.by, register=Register(next(iter(registers), Register.WORLD)))


def chat(options: argparse.Namespace) -> int:
    """A conversation in the terminal."""
    from simulator.chat import converse

    return converse(options)


def explanations(options: argparse.Namespace) -> int:
    """Recorded changes, replayed and explained."""
    from simulator.explain import explain_dialogues

    return explain_dialogues(options)


def calibration(options: argparse.Namespace) -> int:
    """Realised against commanded strictness."""
    from simulator.calibration import calibrate

    return calibrate(options)


def adversarial(options: argparse.Namespace) -> int:
    """Whether any trick pays."""
    from simulator.adversaries import play_adversaries

    return play_adversaries(options)


def converted(options: argparse.Namespace) -> str:
    """A file in the other format."""
    from simulator.sage.convert import convert

    return convert(options)


TABLES: dict[str, Callable[[argparse.Namespace], str]] = {
    "ladder": ladder_table,
    "scenarios": cards,
    "play": transcript,
    "skills": skill_shares,
    "convert": converted,
}
"""Commands that answer with a text."""
ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "chat": chat,
    "explain": explanations,
    "calibrate": calibration,
    "adversaries": adversarial,
}
"""Commands that print as they go and answer with an exit code."""


if __name__ == "__main__":
    sys.exit(main())
