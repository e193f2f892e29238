"""Folders of SAGE's recorded conversations: the dialogues of each agent with each simulated user."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.dialogue import Dialogue
from simulator.sage.formats import dialogue_of, read_profiles, read_records


@dataclass(frozen=True, kw_only=True)
class RecordedFile:
    """The dialogues of one agent with one simulated user."""

    simulator: str
    """Named by its folder; "" for files directly in the given folder."""
    agent: str
    path: Path
    dialogues: Sequence[Dialogue]

    @property
    def digest(self) -> str:
        """First 16 hex digits of the file's SHA-256."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]


def read_recorded(folder: Path) -> list[RecordedFile]:
    """Every native result file of a folder and the folders in it, or a single file.

    Raises:
        ValueError: there is none, one of them is broken, or two are of the same agent and simulator.
    """
    if not folder.exists():
        raise ValueError(f"--transcripts must be a folder of native result files, got {str(folder)!r}, which is not there")
    named = re.compile(r"(?P<agent>.+?)(?:_result)?\.jsonl(?:\.gz)?")
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*.jsonl*") if named.fullmatch(path.name))
    found: dict[tuple[str, str], RecordedFile] = {}
    for path in [path for path in paths if "_result.jsonl" in path.name] or paths:
        match, place = named.fullmatch(path.name), path.parent
        agent = match["agent"] if match else path.name
        is_inside = not folder.is_file() and (place != folder or place.name.endswith("_based_simulator"))
        simulator = place.name.removesuffix("_based_simulator") if is_inside else ""
        if (simulator, agent) in found:
            before = found[simulator, agent].path
            raise ValueError(f"{path} must be of another agent than {before}: both are {agent!r} with {simulator!r}")
        dialogues = [dialogue for _, dialogue in read_records(path, dialogue_of, what="a SAGE transcript")]
        found[simulator, agent] = RecordedFile(simulator=simulator, agent=agent, path=path, dialogues=dialogues)
    if not any(file.dialogues for file in found.values()):
        raise ValueError(f"--transcripts must hold native dialogues in files <agent>_result.jsonl(.gz), got none in {str(folder)!r}")
    return list(found.values())


def with_profiles(files: Sequence[RecordedFile], path: Path) -> list[RecordedFile]:
    """The dialogues with the profiles of a native file instead of the transcripts' own, which lack persona types; openings stay.

    Raises:
        ValueError: the file cannot be read, or has none of the profiles.
    """
    known = read_profiles(path)
    ids = {dialogue.scenario.scenario_id for file in files for dialogue in file.dialogues}
    missing = sorted(ids - set(known))
    if len(missing) == len(ids):
        raise ValueError(f"--profiles must hold the profiles of the transcripts, got none of them in {path}, such as {missing[0]!r}")
    if missing:
        print(f"note: {len(missing)} profiles of the transcripts are not in {path} and are taken from the transcripts", file=sys.stderr)

    def with_profile(dialogue: Dialogue) -> Dialogue:
        said = dialogue.scenario
        return replace(dialogue, scenario=replace(known.get(said.scenario_id, said), opening=said.opening))

    return [replace(file, dialogues=[with_profile(dialogue) for dialogue in file.dialogues]) for file in files]
