"""`python -m simulator fit`: the numbers of the preset SAGE from recorded conversations, and how well numbers so fitted do on others.

First a ridge regression of the recorded changes (`regression.py`), with the user's state held as a control, and of what it leaves on
the wording of replies (`wording_fit.py`). Then users are rolled through the dialogues from their own states (`rolling.py`), on scores
from weights that had no part in these profiles: their momentum is chosen, and the thresholds are set so that each change is as
frequent as it was recorded.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.dialogue import Dialogue
from simulator.files import check_out, write_whole
from simulator.preset import SageNumbers, weigh
from studies.user_fidelity.agreement import Followed, figures, intervals, plain
from studies.user_fidelity.follow import follow
from studies.user_fidelity.recorded import RecordedFile, read_recorded, with_profiles
from studies.user_fidelity.regression import Recipe, Table, scores, table_of
from studies.user_fidelity.rolling import chosen_momentum, matched_thresholds
from studies.user_fidelity.wording_fit import regress_all

Rows = NDArray[np.bool_]

NUM_FOLDS = 3
"""Parts of the profiles, each held back in turn."""
INNER_FOLDS = 5
"""The same where momentum and thresholds are set."""
ENOUGH_GROUPS = 4
"""From so many groups of agents on, two are held back together, so that they can be compared by one model that knows neither."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """All recorded dialogues, in one order throughout."""

    files: Sequence[RecordedFile]
    dialogues: Sequence[Dialogue]
    simulators: Sequence[str]
    agents: Sequence[str]
    table: Table

    @property
    def profiles(self) -> list[str]:
        """Of each dialogue."""
        return [dialogue.scenario.scenario_id for dialogue in self.dialogues]


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--transcripts", type=Path, required=True, metavar="FOLDER", help="native SAGE result files, plain or gzipped")
    parser.add_argument("--profiles", type=Path, metavar="FILE", help="native profiles, instead of those told in the transcripts")
    parser.add_argument("--seed", type=int, default=0, help="of what is held back and of the intervals (0)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws over profiles for the intervals (1000)")
    parser.add_argument("--out", type=Path, default=SageNumbers.FILE, metavar="FILE", help="where the numbers go (the preset's own)")


def run(options: Namespace) -> int:
    """Prints what the numbers, fitted anew, are worth."""
    print(fit_command(options))
    return 0


def fit_command(options: Namespace) -> str:
    """Fits, writes the numbers and says what they are worth.

    Raises:
        ValueError: the files cannot be read, there is too little to hold anything back, or the numbers cannot be written.
    """
    check_out(options.out)
    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")
    if options.bootstrap < 1:
        raise ValueError(f"--bootstrap must be at least 1, got {options.bootstrap}")
    recorded = read(options.transcripts, options.profiles)
    recipe = Recipe()
    held = {name: held_out(recorded, recipe, groups, seed=options.seed) for name, groups in groupings(recorded).items()}
    numbers = fit_numbers(recorded, recipe, np.ones(len(recorded.dialogues), bool), seed=options.seed)
    judged = {name: judge(followed, seed=options.seed, num_draws=options.bootstrap) for name, followed in held.items() if followed}
    record = {"provenance": provenance(recorded, recipe, options, judged), **numbers.to_dict()}
    write_whole(options.out, json.dumps(plain(record), ensure_ascii=False, indent=1) + "\n")
    return "\n".join([*_table(judged), f"{len(recorded.files)} files, {recorded.table.is_turn.sum()} turns: {options.out}"])


def read(transcripts: Path, profiles: Path | None) -> Recorded:
    """Reads the dialogues, and the replies in them.

    Args:
        profiles: a file whose profiles replace those told in the transcripts, None for these.

    Raises:
        ValueError: something cannot be read, or fewer than two agents or NUM_FOLDS profiles are there.
    """
    files = read_recorded(transcripts)
    if profiles:
        files = with_profiles(files, profiles)
    dialogues = [dialogue for file in files for dialogue in file.dialogues]
    simulators = [file.simulator for file in files for _ in file.dialogues]
    agents = [file.agent for file in files for _ in file.dialogues]
    num_profiles = len({dialogue.scenario.scenario_id for dialogue in dialogues})
    if len({maker(agent) for agent in agents}) < 2 or num_profiles < NUM_FOLDS:
        raise ValueError(
            f"--transcripts must hold two makers' agents and {NUM_FOLDS} profiles, got {sorted(set(agents))} and {num_profiles}"
        )
    table = table_of(list(zip(simulators, dialogues, strict=True)))
    return Recorded(files=files, dialogues=dialogues, simulators=simulators, agents=agents, table=table)


def fit_numbers(recorded: Recorded, recipe: Recipe, rows: Rows, *, seed: int) -> SageNumbers:
    """The numbers from these dialogues alone."""
    table, unseen = recorded.table, np.zeros_like(recorded.table.changes)
    folds = _folds(recorded, INNER_FOLDS, seed=seed)
    for number in sorted(set(folds[rows])):
        part = rows & (folds == number)
        if table.is_turn[rows & ~part].any():
            unseen[part] = scores(table, regress_all(table, rows & ~part, recipe))[part]
    momentum = chosen_momentum(table, unseen, rows)
    first, later = matched_thresholds(table, unseen, momentum, rows)
    return replace(regress_all(table, rows, recipe), momentum=momentum, first_thresholds=first, thresholds=later)


def held_out(recorded: Recorded, recipe: Recipe, groups: Sequence[str], *, seed: int) -> list[Followed]:
    """Every dialogue as predicted by numbers that know neither its group of agents nor its profile.

    What is held back together counts as one simulator, because only there one set of numbers judges several agents.
    """
    names = sorted(set(groups))
    sets = list(combinations(names, 2)) if len(names) >= ENOUGH_GROUPS else [(name,) for name in names]
    found = []
    for taken, judged in _cells(recorded, sets, np.array(groups), seed=seed):
        numbers = fit_numbers(recorded, recipe, taken, seed=seed)

        def feels(so_far: Dialogue, reply: str, numbers: SageNumbers = numbers) -> int:
            return weigh(so_far, reply, numbers).change

        together = "+".join(sorted({groups[place] for place in np.flatnonzero(judged)}))
        found += [
            follow(
                recorded.dialogues[place],
                feels,
                simulator=f"{recorded.simulators[place]} {together}",
                agent=recorded.agents[place],
            )
            for place in np.flatnonzero(judged)
        ]
    return found


def _cells(recorded: Recorded, sets: Sequence[Sequence[str]], groups: NDArray[np.str_], *, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """(fitted on, judged) for each set of groups and each part of the profiles: neither is on both sides."""
    folds = _folds(recorded, NUM_FOLDS, seed=seed)
    for held in sets:
        is_held = np.isin(groups, list(held))
        for number in range(NUM_FOLDS):
            yield ~is_held & (folds != number), is_held & (folds == number)


def _folds(recorded: Recorded, num: int, *, seed: int) -> NDArray[np.int64]:
    """[D] which of `num` parts of the profiles each dialogue's belongs to, by chance."""
    profiles = sorted(set(recorded.profiles))
    order = np.random.default_rng(seed).permutation(len(profiles))
    fold = dict(zip([profiles[place] for place in order], np.arange(len(profiles)) % num, strict=True))
    return np.array([fold[profile] for profile in recorded.profiles])


def groupings(recorded: Recorded) -> dict[str, list[str]]:
    """Agents that are held back together, narrowly and widely."""
    return {"lines": [line(agent) for agent in recorded.agents], "makers": [maker(agent) for agent in recorded.agents]}


def line(agent: str) -> str:
    """The line of models an agent belongs to: its name without a date at the end."""
    return re.sub(r"[-_.]?\d{4}(?:-\d{2}-\d{2})?$", "", agent)


def maker(agent: str) -> str:
    """Who made it, as far as the name tells: its first letters."""
    letters = re.match(r"[a-z]+", agent.lower())
    return letters.group() if letters else agent


def judge(followed: Sequence[Followed], *, seed: int, num_draws: int) -> dict[str, tuple[float, float, float]]:
    """Each figure with the ends of its interval over profiles."""
    ends = intervals(followed, num_draws=num_draws, seed=seed)
    return {name: (value, *ends[name]) for name, value in figures(followed).items()}


def provenance(recorded: Recorded, recipe: Recipe, options: Namespace, judged: Mapping[str, Any]) -> dict[str, Any]:
    """Where the numbers come from; folders are named without what lies above them."""
    profiles = f" --profiles {options.profiles.name}" if options.profiles else ""
    return {
        "command": f"python -m simulator fit --transcripts {options.transcripts.name}{profiles} --seed {options.seed}",
        "source": "SAGE, arXiv 2505.02847: recorded conversations; figures only, no text",
        "files": {f"{file.path.parent.name}/{file.path.name}": file.digest for file in recorded.files},
        "dialogues": len(recorded.dialogues),
        "turns": int(recorded.table.is_turn.sum()),
        "profiles": len(set(recorded.profiles)),
        "recipe": asdict(recipe),
        "held_out": {name: {figure: list(values) for figure, values in found.items()} for name, found in judged.items()},
    }


def _table(judged: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> Iterator[str]:
    """Rows are figures, columns what was held back together."""
    yield "on agents and profiles held back, with 95 % intervals over profiles"
    yield f"{'':24}" + "".join(f"{'agents by ' + name:>26}" for name in judged)
    for figure in next(iter(judged.values()), {}):
        cells = [f"{found[figure][0]:.3f} [{found[figure][1]:.3f}, {found[figure][2]:.3f}]" for found in judged.values()]
        yield f"{figure:24}" + "".join(f"{cell:>26}" for cell in cells)
