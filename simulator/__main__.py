"""Commands of this package: `python -m simulator COMMAND`; `--help` lists them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from simulator.files import ExitCode, ended
from simulator.options import add_commands
from simulator.study_commands import add_study_commands


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
        printed = {"ladder": ladder, "scenarios": cards, "play": transcript, "skills": skills}
        if options.command in printed:
            print(printed[options.command](options))
            return ExitCode.FINISHED
        module, function = {
            "chat": ("simulator.chat", "converse"),
            "explain": ("simulator.explain", "explain_dialogues"),
            "calibrate": ("simulator.calibration", "calibrate"),
            "adversaries": ("simulator.adversaries", "play_adversaries"),
            "hear": ("simulator.hear", "hear_file"),
            "redteam": ("simulator.redteam", "redteam"),
            "convert": ("simulator.sage.formats", "convert"),
        }[options.command]
        return int(getattr(import_module(module), function)(options))

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
    from simulator.pressure import every_scenario
    from simulator.scenario import Split

    scenarios = every_scenario().scenarios(Split(options.split))
    lines: list[str] = []
    for scenario in (scenarios[i * len(scenarios) // options.num] for i in range(min(options.num, len(scenarios)))):
        who = scenario.persona
        lines += [scenario.scenario_id, f"  {who.name}, {who.age}, {who.occupation}. {scenario.background}", f"  Goal: {scenario.goal}"]
        lines += [f"  Hidden: {scenario.hidden_intention}", f"  Opens: {scenario.opening}"]
        lines += [f"  - {fact.text}" for fact in scenario.facts[1:]]
        if pressure := scenario.pressure:
            lines += [f"  Presses for: {pressure.claim}", *(f"  > {line}" for line in pressure.script)]
        lines.append("")
    return "\n".join(lines[:-1])


def transcript(options: argparse.Namespace) -> str:
    """One dialogue with the user's emotions and thoughts."""
    from simulator.pressure import every_scenario
    from simulator.rule_user import RuleUser, RuleUserConfig
    from simulator.scenario import Difficulty, Split
    from simulator.scripted import AGENTS, play

    if options.agent not in AGENTS:
        raise ValueError(f"agent must be one of {', '.join(AGENTS)}, got {options.agent!r}")
    bank = every_scenario()
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
    """Rows are steps or strictnesses: number of dialogues, mean final emotion, and the share of replies that showed each skill."""
    from simulator.dialogue import Dialogue, Outcome
    from simulator.explain import follows_rule, read_dialogues, recorded_config, shares_shown
    from simulator.listener import Register
    from simulator.pressure import every_scenario
    from simulator.scripted import mean_score

    if not options.file.is_file():
        raise ValueError(f"FILE must be the dialogues.jsonl or evaluation.jsonl of a run, got {str(options.file)!r}, which is no file")
    by_row: dict[str, list[Dialogue]] = {}
    config, registers = recorded_config(options.file).get("simulator") or {}, set[str]()
    for record, dialogue in read_dialogues(options.file, every_scenario()):
        if record.get("step", 0) < options.from_step or dialogue.outcome is Outcome.ERROR:
            continue
        row = f"{record.get('step', 0) // 10 * 10}" if options.by == "step" else f"{dialogue.difficulty.strictness:.1f}"
        by_row.setdefault(row, []).append(dialogue)
        # As recorded; a model as user hears ordinary language.
        settings = {**config, **(record.get("simulator") or {})}
        by_rule = follows_rule(settings.get("kind") or "rule")
        registers.add(options.register or (settings.get("register") or Register.WORLD if by_rule else Register.OPEN))
    if len(registers) > 1:
        raise ValueError(f"FILE must hold dialogues in one register, got {' and '.join(sorted(registers))}; name one with --register")
    if not by_row:
        raise ValueError(f"FILE must hold a dialogue without an error, got none from step {options.from_step} on in {str(options.file)!r}")
    lines = []
    for row, dialogues in sorted(by_row.items(), key=lambda item: float(item[0])):
        shares = shares_shown(dialogues, register=Register(next(iter(registers))))
        values = "".join(f"{share:11.3f}" for share in shares.values())
        lines.append(f"{row:>10}  {len(dialogues):9}  {mean_score(dialogues):7.1f}{values}")
    return "\n".join([f"{options.by:>10}  dialogues  emotion" + "".join(f"{name:>11}" for name in shares), *lines])


if __name__ == "__main__":
    sys.exit(main())
