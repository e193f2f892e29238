"""How faithful the embedded user is to recorded users of SAGE: it reads the same replies, and its feelings are compared with theirs."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.agreement import agent_scores, figures, intervals, names_of_agents
from simulator.follow import Feels, follow
from simulator.recorded import RecordedFile, read_recorded
from simulator.sage import read_profiles
from simulator.sage_emotion import change_by_sage
from simulator.scenario import Scenario


def fidelity(options: Namespace) -> str:
    """Measures, writes the figures and says them.

    Raises:
        ValueError: the transcripts or profiles cannot be read, or do not belong together, or nothing may be written.
    """
    if options.bootstrap < 0:
        raise ValueError(f"--bootstrap must be at least 0, got {options.bootstrap}")
    if options.out is not None and not options.out.parent.is_dir():
        raise ValueError(f"--out must be in a folder that is there, got {str(options.out)!r}")
    profiles = {scenario.scenario_id: scenario for scenario in read_profiles(options.profiles)}
    files = list(_with_profiles(read_recorded(options.transcripts), profiles, options.profiles))
    found = measure(files, change_by_sage, num_draws=options.bootstrap, seed=options.seed)
    text = json.dumps(found, ensure_ascii=False, indent=1)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return text


def measure(files: Sequence[RecordedFile], feels: Feels, *, num_draws: int, seed: int) -> dict[str, Any]:
    """The figures of one user on recorded dialogues; what is not defined is None.

    Args:
        num_draws: bootstrap draws over profiles for `intervals`; 0 leaves them out.
    """
    own = [follow(dialogue, feels, simulator=file.simulator, agent=file.agent) for file in files for dialogue in file.dialogues]
    led = [
        follow(dialogue, feels, simulator=file.simulator, agent=file.agent, from_recorded_state=True)
        for file in files
        for dialogue in file.dialogues
    ]
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
    return _rounded(found)


def _with_profiles(files: Sequence[RecordedFile], profiles: Mapping[str, Scenario], path: Path) -> Iterator[RecordedFile]:
    """The dialogues with their profiles as the file has them; one that it does not have is as the transcript tells it."""
    ids = [dialogue.scenario.scenario_id for file in files for dialogue in file.dialogues]
    missing = sorted(set(ids) - set(profiles))
    if len(missing) == len(set(ids)):
        raise ValueError(f"--profiles must hold the profiles of the transcripts, got none of them in {path}, such as {missing[0]!r}")
    if missing:
        print(f"note: {len(missing)} profiles of the transcripts are not in {path} and are taken from the transcripts", file=sys.stderr)
    for file in files:
        dialogues = [replace(d, scenario=_profile(d.scenario, profiles)) for d in file.dialogues]
        yield replace(file, dialogues=dialogues)


def _profile(scenario: Scenario, profiles: Mapping[str, Scenario]) -> Scenario:
    """The profile that the file has, with the opening that was said."""
    found = profiles.get(scenario.scenario_id)
    return scenario if found is None else replace(found, opening=scenario.opening)


def _rounded(value: Any) -> Any:
    """Four decimals, nan as None."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return (None if math.isnan(value) else round(value, 4)) if isinstance(value, float) else value
