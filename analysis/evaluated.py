"""Evaluated agents as data: `agent.json` of an evaluation and `reliability.json` of a probe, and whether both are of one agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

AGENT_JSON, RELIABILITY = "agent.json", "reliability.json"
FORMAT = 1
"""Of both files; files of another format cannot be read."""
NEEDED = ("agent", "setting", "setting_id", "score", "score_ci95", "intervals", "per_scenario", "strictness", "errors", "n_dialogues")
"""Keys of every `agent.json`."""
OF_A_PROBE = ("agent", "probe", "conditions", "emotional_cost", "sycophancy")
"""Keys of every `reliability.json`."""
CAPABILITIES = ("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance", "style_flexibility")
"""RLVER's, by rule or by judge."""
Cell = Mapping[str, float | None] | None
"""`value`, `low` and `high`; None, or None in it, for figures that were not measured."""
Read = TypeVar("Read")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One evaluated agent."""

    folder: Path
    found: dict[str, Any]
    """Its `agent.json`."""
    reliability: dict[str, Any] | None
    """Its `reliability.json`, if it was probed."""
    remark: str = ""
    """Why a `reliability.json` in its folder is left out."""

    @property
    def name(self) -> str:
        """Its display name."""
        return str(self.found["agent"]["name"])

    @property
    def probe(self) -> tuple[str, str] | None:
        """As `probe_in`; None without a probe."""
        return probe_in(self.reliability) if self.reliability else None

    @property
    def tries(self) -> int | None:
        """Dialogues with each user of which the best was taken; None where there was one with each."""
        best = self.found.get("best_of_k")
        return int(best["k"]) if best else None

    def best_of(self, k: int) -> dict[str, Cell]:
        """`best` of k tries at each user and its `gain` over the mean of all tries.

        Args:
            k: at most its own; of fewer the expectation over all choices of so many, without interval in older evaluations.
        """
        best = self.found["best_of_k"]
        if k == best["k"]:
            return {"best": best["best"], "gain": best["gain"]}
        if "expected" in best:
            return dict(best["expected"][str(k)])
        value = best["by_k"][str(k)]
        return {"best": {"value": value}, "gain": {"value": value - best["mean"]["value"]}}

    @property
    def score(self) -> Cell:
        """Mean final emotion, 0-100."""
        low, high = self.found["score_ci95"]
        return {"value": self.found["score"], "low": low, "high": high}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An agent that was probed and not evaluated, or not to the end."""

    reliability: dict[str, Any]
    """Its `reliability.json`."""

    @property
    def name(self) -> str:
        """Its display name."""
        return str(self.reliability["agent"]["name"])

    @property
    def probe(self) -> tuple[str, str]:
        """As `probe_in`."""
        return probe_in(self.reliability)


def probe_in(reliability: Mapping[str, Any]) -> tuple[str, str]:
    """Kind of the questions of a probe, and their hash with how they were asked: errors of different probes cannot be compared.

    Args:
        reliability: a `reliability.json`.
    """
    probe = reliability["probe"]
    how = [f"at {probe['temperature']:g}"] if probe.get("temperature") else []
    how += [f"system prompt {sha256(probe['system'].encode()).hexdigest()[:8]}"] if probe.get("system") else []
    return probe["kind"], ", ".join([probe["hash"], *how])


def is_evaluation(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder, which looks like a run's, is an evaluation's, finished or not.

    Args:
        config: contents of its `config.yaml`.
    """
    return (folder / AGENT_JSON).is_file() or {"agent", "setting"} <= config.keys()


def read_entries(folders: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """The evaluated agents in these folders, or in folders right beneath them, and of each that cannot be read why it is left out.

    Raises:
        ValueError: a folder holds neither an evaluation nor a probe.
    """
    return read_each([place / AGENT_JSON for place in agent_folders(folders) if (place / AGENT_JSON).is_file()], read_entry)


def read_asked(folders: Sequence[Path]) -> tuple[list[Asked], list[str]]:
    """As `read_entries`, the agents that were probed and not evaluated."""
    probes = [place / RELIABILITY for place in agent_folders(folders) if not (place / AGENT_JSON).is_file()]
    return read_each(probes, lambda path: Asked(reliability=read_probe(path)))


def read_each(paths: Sequence[Path], read: Callable[[Path], Read]) -> tuple[list[Read], list[str]]:
    """The contents of each file, once, and of each that cannot be read why it is left out."""
    found, left_out = [], []
    for path in {path.resolve(): path for path in paths}.values():
        try:
            found.append(read(path))
        except ValueError as error:
            left_out.append(f"{path.parent} is left out: {error}")
    return found, left_out


def agent_folders(folders: Sequence[Path]) -> list[Path]:
    """Of each folder itself if it holds an evaluation; else those right beneath it that hold an agent's files, and itself with a probe.

    Raises:
        ValueError: there is none.
    """
    everything = []
    for folder in folders:
        if (folder / AGENT_JSON).is_file():
            everything.append(folder)
            continue
        own = [folder] if (folder / RELIABILITY).is_file() else []
        found = own + sorted({path.parent for name in (AGENT_JSON, RELIABILITY) for path in folder.glob(f"*/{name}") if path.is_file()})
        if not found:
            what = f"an evaluation's {AGENT_JSON} or a probe's {RELIABILITY}, or folders that do"
            raise ValueError(f"FOLDER must hold {what}, got {str(folder)!r}, which has none")
        everything += found
    return everything


def read_entry(path: Path) -> Entry:
    """An evaluated agent, with its probe of reliability if there is one; a probe of another agent is left out with a remark.

    Raises:
        ValueError: the file is of another version.
    """
    found = read_version(path, NEEDED, by="evaluation", remedy="evaluate that agent again")
    other = path.with_name(RELIABILITY)
    try:
        probe = read_probe(other) if other.is_file() else None
    except ValueError as error:
        return Entry(folder=path.parent, found=found, reliability=None, remark=f"{error}; it is left out")
    if probe is None or is_same_agent(found["agent"], probe["agent"]):
        return Entry(folder=path.parent, found=found, reliability=probe)
    remark = f"{other} is of another agent ({in_words(probe['agent'])}) than the evaluation in its folder ({in_words(found['agent'])})"
    return Entry(folder=path.parent, found=found, reliability=None, remark=f"{remark}; it is left out")


def is_same_agent(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two files are of the same agent: by the fingerprint of its weights where one is known, else by its source.

    Args:
        one: `agent` of an `agent.json`, a `reliability.json` or an evaluation's `config.yaml`; older probes lack `model`.
    """
    weights = [who.get("fingerprint") or "" for who in (one, other)]
    if any(weights):
        return weights[0] == weights[1]
    return all(one[name] == other[name] for name in ("kind", "source", "model") if name in one and name in other)


def in_words(agent: Mapping[str, Any]) -> str:
    """An agent's name, source, model and fingerprint of its weights."""
    weights = agent.get("fingerprint")
    words = (*(agent.get(name) for name in ("name", "source", "model")), f"weights {weights}" if weights else "")
    return ", ".join(dict.fromkeys(filter(None, words)))


def read_probe(path: Path) -> dict[str, Any]:
    """A probe of reliability.

    Raises:
        ValueError: the file is of another version.
    """
    return read_version(path, OF_A_PROBE, by="probe", remedy="remove it and probe that agent again")


def read_version(path: Path, needed: Sequence[str], *, by: str, remedy: str) -> dict[str, Any]:
    """A JSON object of this version's format, with all keys that it needs; probes of the first edition name no format.

    Raises:
        ValueError: it is of another one.
    """
    found = read_object(path)
    # A score is null where no dialogue was played to its end.
    lacking = [key for key in needed if key not in found or (found[key] is None and key != "score")]
    if found.get("format", FORMAT) != FORMAT or lacking:
        what = f"no {', '.join(lacking)}" if lacking else f"format {found.get('format')!r}"
        raise ValueError(f"{path} must be written by this version's {by}, got {what}; {remedy}")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be a JSON object that can be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")
    return found
