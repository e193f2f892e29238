"""What `python -m simulator adversaries` prints: every trick beside the ladder, in both registers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from simulator.adversaries import BOUNDS, REFERENCES, Adversary, Standing, adversaries, standing
from simulator.bank import load_bank
from simulator.calibration import sample
from simulator.fingerprint import world_name
from simulator.ladder import Agent
from simulator.progress import progress
from simulator.register import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Scenario, Split

PAYS = 1
"""Exit code when a trick gets more than it may."""


def play_adversaries(options: argparse.Namespace) -> int:
    """Plays the suite and prints a line for each agent; returns the exit code."""
    suite = chosen(options.agent)
    if options.per_family < 1:
        raise ValueError(f"--per-family must be at least 1, got {options.per_family}")
    scenarios = sample(load_bank().scenarios(Split(options.split)), options.per_family, seed=options.seed)
    registers = [Register(options.register)] if options.register else list(Register)
    found = {register: standings(suite, scenarios, register, seed=options.seed) for register in registers}
    worlds = " and ".join(map(world_name, registers))
    print(f"{worlds}, {len(scenarios)} {options.split} scenarios: mean final emotion (0-100), and share of users who stayed")
    for register in registers:
        print("", *table(suite, found[register], register), sep="\n")
    paying = [f"{name} ({register})" for register in registers for name in payers(suite, found[register])]
    but = ", but for those known to" if any(one.known for one in suite) else ""
    print("", f"PAYS: {', '.join(paying)}" if paying else f"no trick gets more than its bound{but}", sep="\n")
    return PAYS if paying else 0


def chosen(names: Sequence[str] | None) -> tuple[Adversary, ...]:
    """The adversaries of these names, or all.

    Raises:
        ValueError: there is none of a name.
    """
    suite = {adversary.name: adversary for adversary in adversaries()}
    for name in names or ():
        if name not in suite:
            raise ValueError(f"--agent must be one of {', '.join(suite)}, got {name!r}")
    return tuple(suite[name] for name in names or suite)


def standings(
    suite: Sequence[Adversary], scenarios: Sequence[Scenario], register: Register, *, seed: int
) -> dict[str, tuple[Standing, ...]]:
    """Each agent's standing at each bound's difficulty, the ladder's rungs first."""
    user = RuleUser(RuleUserConfig(register=register))
    agents: dict[str, Agent] = {**REFERENCES, **{adversary.name: adversary for adversary in suite if adversary.is_played_in(register)}}
    return {
        name: tuple(standing(agent, scenarios, difficulty, user=user, seed=seed) for _, difficulty, _ in BOUNDS)
        for name, agent in progress(agents.items(), total=len(agents), what=f"Playing ({register})")
    }


def payers(suite: Sequence[Adversary], found: dict[str, tuple[Standing, ...]]) -> list[str]:
    """Adversaries that get more than they may, but for those that are known to."""
    played = [one for one in suite if one.name in found and not one.known]
    return [one.name for one in played if not all(found[one.name][i].stays_within(found[rung][i]) for i, (_, _, rung) in enumerate(BOUNDS))]


def table(suite: Sequence[Adversary], found: dict[str, tuple[Standing, ...]], register: Register) -> Iterator[str]:
    """A line for each rung and each trick."""
    wide = max(map(len, found))
    yield f"{register!s:{wide}}  " + "  ".join(f"{f'{name} (at most {rung})':>27}" for name, _, rung in BOUNDS)
    marks = {"seen in training": {one.name for one in suite if one.seen}, "known to pay": {one.name for one in suite if one.known}}
    tricks = {one.name: one.trick + "".join(f" ({mark})" for mark, names in marks.items() if one.name in names) for one in suite}
    paying = payers(suite, found)
    for name, both in found.items():
        figures = "  ".join(f"{one.score:18.1f}  {one.stayed:6.0%}" + " " for one in both)
        yield f"{name:{wide}}  {figures}  {'PAYS: ' if name in paying else ''}{tricks.get(name, 'honest')}"
