"""Folders of native SAGE transcripts: which agent met which simulated user, and what was said."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.dialogue import Dialogue
from simulator.sage import profiles_by_id, read_transcripts

RESULT = re.compile(r"(?P<agent>.+?)(?:_result)?\.jsonl(?:\.gz)?")
SIMULATOR = "_based_simulator"


@dataclass(frozen=True, kw_only=True)
class RecordedFile:
    """The dialogues of one agent with one simulated user."""

    simulator: str
    """As its folder is called; "" for files that lie in the given folder itself."""
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
    found = [
        RecordedFile(simulator=simulator, agent=agent, path=path, dialogues=read_transcripts(path))
        for simulator, agent, path in _files(folder)
    ]
    if not any(file.dialogues for file in found):
        raise ValueError(f"--transcripts must hold native dialogues, got {str(folder)!r}, whose files are empty")
    return found


def with_profiles(files: Sequence[RecordedFile], path: Path) -> list[RecordedFile]:
    """The dialogues with their profiles as a native file has them, but for the opening that was said.

    A profile that the file does not have stays as the transcript tells it.

    Raises:
        ValueError: the file cannot be read, or has none of the profiles.
    """
    known = profiles_by_id(path)
    ids = {dialogue.scenario.scenario_id for file in files for dialogue in file.dialogues}
    missing = sorted(ids - set(known))
    if len(missing) == len(ids):
        raise ValueError(f"--profiles must hold the profiles of the transcripts, got none of them in {path}, such as {missing[0]!r}")
    if missing:
        print(f"note: {len(missing)} profiles of the transcripts are not in {path} and are taken from the transcripts", file=sys.stderr)

    def told(dialogue: Dialogue) -> Dialogue:
        said = dialogue.scenario
        return replace(dialogue, scenario=replace(known.get(said.scenario_id, said), opening=said.opening))

    return [replace(file, dialogues=[told(dialogue) for dialogue in file.dialogues]) for file in files]


def _files(folder: Path) -> Iterator[tuple[str, str, Path]]:
    if not folder.exists():
        raise ValueError(f"--transcripts must be a folder of native result files, got {str(folder)!r}, which is not there")
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*.jsonl*") if RESULT.fullmatch(path.name))
    named = [path for path in paths if "_result.jsonl" in path.name] or paths
    if not named:
        raise ValueError(f"--transcripts must hold files <agent>_result.jsonl or .jsonl.gz, got none in {str(folder)!r}")
    seen: dict[tuple[str, str], Path] = {}
    for path in named:
        match = RESULT.fullmatch(path.name)
        agent = match["agent"] if match else path.name
        inside = path.parent != folder or path.parent.name.endswith(SIMULATOR)
        simulator = path.parent.name.removesuffix(SIMULATOR) if inside and not folder.is_file() else ""
        if (simulator, agent) in seen:
            raise ValueError(f"{path} must be of another agent than {seen[simulator, agent]}: both are {agent!r} with {simulator!r}")
        seen[simulator, agent] = path
        yield simulator, agent, path
