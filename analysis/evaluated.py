"""Evaluated agents as data: what an evaluation and a probe of reliability left in a folder, and whether both are of one agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from analysis.runs import AGENT_SHAPE, PROBE_SHAPE, misfit

AGENT_JSON, RELIABILITY = "agent.json", "reliability.json"
FORMAT = 1
"""Of both files: what wrote another cannot be read."""
NEEDED = ("agent", "setting", "setting_id", "score", "score_ci95", "intervals", "per_scenario", "strictness", "errors", "n_dialogues")
"""What every `agent.json` has."""
CAPABILITIES = ("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance", "style_flexibility")
"""RLVER's, by rule or by judge."""
Cell = Mapping[str, float | None] | None
"""`value`, `low` and `high`; None, or None in it, for what was not measured."""


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
        """What it is called."""
        return str(self.found["agent"]["name"])

    @property
    def probe(self) -> tuple[str, str] | None:
        """Kind of what it was asked, and hash of that and of how: errors of different probes say nothing about each other. None without."""
        return probe_in(self.reliability) if self.reliability else None

    @property
    def tries(self) -> int | None:
        """Dialogues with each user of which the best was taken; None where there was one with each."""
        best = self.found.get("best_of_k")
        return int(best["k"]) if best else None

    def best_of(self, k: int) -> dict[str, Cell]:
        """`best` of k tries at each user and its `gain` over the mean of all tries.

        Args:
            k: at most its own; of fewer the expectation over all choices of so many, which older evaluations tell without interval.
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
        """What it is called."""
        return str(self.reliability["agent"]["name"])

    @property
    def probe(self) -> tuple[str, str]:
        """What it was asked, and how, as of an evaluated agent."""
        return probe_in(self.reliability)


def probe_in(reliability: Mapping[str, Any]) -> tuple[str, str]:
    """Kind of what an agent was asked, and hash of that and of how.

    Args:
        reliability: its `reliability.json`.
    """
    probe = reliability["probe"]
    how = [f"at {probe['temperature']:g}"] if probe.get("temperature") else []
    how += [f"system prompt {sha256(probe['system'].encode()).hexdigest()[:8]}"] if probe.get("system") else []
    return probe["kind"], ", ".join([probe["hash"], *how])


def is_evaluation(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder is an evaluation's, finished or not, which looks like a run's.

    Args:
        config: what its `config.yaml` holds.
    """
    return (folder / AGENT_JSON).is_file() or {"agent", "setting"} <= config.keys()


def read_entries(folders: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """The evaluated agents in these folders, or in folders right beneath them, and of each that cannot be read why it is left out.

    Raises:
        ValueError: a folder holds neither an evaluation nor a probe.
    """
    by_path: dict[Path, Entry] = {}
    left_out: dict[Path, str] = {}
    for place in (place for folder in folders for place in agent_folders(folder)):
        if (place / AGENT_JSON).is_file():
            try:
                by_path[place.resolve()] = read_entry(place / AGENT_JSON)
            except ValueError as error:
                left_out[place.resolve()] = f"{place} is left out: {error}"
    return list(by_path.values()), list(left_out.values())


def read_asked(folders: Sequence[Path]) -> tuple[list[Asked], list[str]]:
    """Likewise, the agents that were probed and not evaluated.

    Raises:
        ValueError: a folder holds neither an evaluation nor a probe.
    """
    by_path: dict[Path, Asked] = {}
    left_out: dict[Path, str] = {}
    for place in (place for folder in folders for place in agent_folders(folder)):
        if not (place / AGENT_JSON).is_file():
            try:
                by_path[place.resolve()] = Asked(reliability=read_probe(place / RELIABILITY))
            except ValueError as error:
                left_out[place.resolve()] = f"{place} is left out: {error}"
    return list(by_path.values()), list(left_out.values())


def agent_folders(folder: Path) -> list[Path]:
    """A folder that holds an evaluation; else those right beneath it that hold an agent's files, and itself if it holds a probe.

    Raises:
        ValueError: there is none.
    """
    if (folder / AGENT_JSON).is_file():
        return [folder]
    own = [folder] if (folder / RELIABILITY).is_file() else []
    beneath = {path.parent for name in (AGENT_JSON, RELIABILITY) for path in folder.glob(f"*/{name}") if path.is_file()}
    found = [*own, *sorted(beneath)]
    if not found:
        what = f"an evaluation's {AGENT_JSON} or a probe's {RELIABILITY}, or folders that do"
        raise ValueError(f"FOLDER must hold {what}, got {str(folder)!r}, which has none")
    return found


def read_entry(path: Path) -> Entry:
    """An evaluated agent, with its probe of reliability if there is one; one of another agent, or a torn one, is left out with a remark.

    Raises:
        ValueError: the file is not what the evaluation wrote.
    """
    found = read_object(path)
    # A score is null where no dialogue was played to its end.
    lacking = [key for key in NEEDED if found.get(key) is None and not (key == "score" and key in found)]
    if found.get("format") != FORMAT or lacking:
        what = f"no {', '.join(lacking)}" if lacking else f"format {found.get('format')!r}"
        raise ValueError(f"{path} must be written by this version's evaluation, got {what}; evaluate that agent again")
    if said := misfit(found, AGENT_SHAPE):
        raise ValueError(f"{path}: {said}; evaluate that agent again")
    beside = path.with_name(RELIABILITY)
    try:
        probe = read_probe(beside) if beside.is_file() else None
    except ValueError as error:
        return Entry(folder=path.parent, found=found, reliability=None, remark=f"{error}; it is left out")
    if probe is None or is_same_agent(found["agent"], probe["agent"]):
        return Entry(folder=path.parent, found=found, reliability=probe)
    remark = f"{beside} is of another agent ({in_words(probe['agent'])}) than the evaluation beside it ({in_words(found['agent'])})"
    return Entry(folder=path.parent, found=found, reliability=None, remark=f"{remark}; it is left out")


def is_same_agent(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two files speak of the same agent: by its weights where they could be seen, else by where it was found.

    Args:
        one: `agent` of an `agent.json`, a `reliability.json` or an evaluation's `config.yaml`; older probes lack `model`.
    """
    weights = [who.get("fingerprint") or "" for who in (one, other)]
    if any(weights):
        return weights[0] == weights[1]
    return all(one[name] == other[name] for name in ("kind", "source", "model") if name in one and name in other)


def in_words(agent: Mapping[str, Any]) -> str:
    """What an agent is called, where it was found, and its weights' fingerprint."""
    told = [agent.get(name) for name in ("name", "source", "model")]
    weights = agent.get("fingerprint")
    return ", ".join(dict.fromkeys(filter(None, (*told, f"weights {weights}" if weights else ""))))


def read_probe(path: Path) -> dict[str, Any]:
    """A probe of reliability.

    Raises:
        ValueError: the file is not what the probe wrote.
    """
    found = read_object(path)
    lacking = [key for key in ("agent", "probe", "conditions", "emotional_cost", "sycophancy") if not isinstance(found.get(key), dict)]
    lacking += [f"probe.{key}" for key in ("kind", "hash") if not lacking and not found["probe"].get(key)]
    if lacking:
        raise ValueError(
            f"{path} must be what a reliability probe wrote, got no {', '.join(lacking)}; remove it and probe that agent again"
        )
    if (written := found.get("format", FORMAT)) != FORMAT:
        raise ValueError(f"{path} must be written by this version's probe, got format {written!r}; probe that agent again")
    if said := misfit(found, PROBE_SHAPE):
        raise ValueError(f"{path}: {said}; remove it and probe that agent again")
    return found


def refuse_constant(name: str) -> None:
    """Raises on NaN and infinities: what was not measured is null in these files."""
    raise ValueError(f"{name} is no number that an evaluation writes")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be a JSON object that can be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")
    return found
