"""How faithful the embedded user is to recorded users of SAGE: it reads the same replies, and its feelings are compared with theirs."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.files import check_out, progress, write_whole
from simulator.preset import weigh
from studies.user_fidelity.agreement import agent_scores, figures, intervals, names_of_agents, plain
from studies.user_fidelity.follow import Feels, follow
from studies.user_fidelity.recorded import RecordedFile, read_recorded, with_profiles


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--transcripts", type=Path, required=True, metavar="FOLDER", help="native SAGE result files, plain or gzipped")
    parser.add_argument("--profiles", type=Path, required=True, metavar="FILE", help="the native profiles of these dialogues")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures there too")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws over profiles for the intervals; 0 leaves them out (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of these draws (0)")


def run(options: Namespace) -> int:
    """Prints the figures of fidelity."""
    print(fidelity(options))
    return 0


def fidelity(options: Namespace) -> str:
    """Measures, writes the figures and says them.

    Raises:
        ValueError: the transcripts or profiles cannot be read, or do not belong together, or nothing may be written.
    """
    if options.bootstrap < 0:
        raise ValueError(f"--bootstrap must be at least 0, got {options.bootstrap}")
    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")
    check_out(options.out)
    files = with_profiles(read_recorded(options.transcripts), options.profiles)
    found = measure(files, lambda so_far, reply: weigh(so_far, reply).change, num_draws=options.bootstrap, seed=options.seed)
    text = json.dumps(found, ensure_ascii=False, indent=1)
    if options.out is not None:
        write_whole(options.out, text + "\n")
    return text


def measure(files: Sequence[RecordedFile], feels: Feels, *, num_draws: int, seed: int) -> dict[str, Any]:
    """The figures of one user on recorded dialogues; what is not defined is None.

    Args:
        num_draws: bootstrap draws over profiles for `intervals`; 0 leaves them out.
    """
    own, led = [], []
    met = [(file, dialogue) for file in files for dialogue in file.dialogues]
    for file, dialogue in progress(met, total=len(met), what="Reading"):
        own.append(follow(dialogue, feels, simulator=file.simulator, agent=file.agent))
        led.append(follow(dialogue, feels, simulator=file.simulator, agent=file.agent, from_recorded_state=True))
    names, scores = names_of_agents(own), agent_scores(own, np.ones(len(own)))
    at_hand = figures(led)
    found: dict[str, Any] = {
        **figures(own),
        "agents": {names[simulator, agent]: {"true": true, "predicted": predicted} for simulator, agent, true, predicted in scores},
        "num_turns": sum(len(dialogue.changes) for dialogue in own),
        "num_agents": len(scores),
        "turn_pearson_from_recorded_state": at_hand["turn_pearson"],
        "sign_accuracy_from_recorded_state": at_hand["sign_accuracy"],
    }
    if num_draws:
        found["intervals"] = {name: list(ends) for name, ends in intervals(own, num_draws=num_draws, seed=seed).items()}
    rounded: dict[str, Any] = plain(found)
    return rounded
