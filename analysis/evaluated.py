"""Evaluated agents as data: `agent.json` of an evaluation and `reliability.json` of a probe, and whether both are of one agent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from analysis.stats import Z

AGENT_JSON, RELIABILITY = "agent.json", "reliability.json"
FORMAT = 1
"""Of both files; files of another format cannot be read."""
CAPABILITIES = ("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance", "style_flexibility")
"""RLVER's, by rule or by judge."""
Cell = Mapping[str, float | None] | None
"""`value`, `low` and `high`; None, or None in it, for figures that were not measured."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One agent that was evaluated, probed, or both."""

    found: dict[str, Any]
    """Its `agent.json`; empty where it was only probed."""
    reliability: dict[str, Any] | None
    """Its `reliability.json`, if it was probed."""
    remark: str = ""
    """Why a `reliability.json` in its folder is left out."""

    @classmethod
    def read(cls, folder: Path) -> Entry:
        """An agent's evaluation, and its probe if there is one; next to an evaluation, a probe of another agent is left out with a remark.

        Raises:
            ValueError: a file is of another version.
        """
        evaluation, other = folder / AGENT_JSON, folder / RELIABILITY
        if not evaluation.is_file():
            return cls(found={}, reliability=read_probe(other))
        needed = ("agent", "setting", "setting_id", "score_ci95", "intervals", "per_scenario", "strictness", "errors", "n_dialogues")
        found = read_object(evaluation, needed, by="evaluation", remedy="evaluate that agent again")
        try:
            probe = read_probe(other) if other.is_file() else None
        except ValueError as error:
            return cls(found=found, reliability=None, remark=f"{error}; it is left out")
        if probe is None or is_same_agent(found["agent"], probe["agent"]):
            return cls(found=found, reliability=probe)
        remark = f"{other} is of another agent ({in_words(probe['agent'])}) than the evaluation in its folder ({in_words(found['agent'])})"
        return cls(found=found, reliability=None, remark=f"{remark}; it is left out")

    @classmethod
    def read_all(cls, folders: Sequence[Path]) -> tuple[list[Entry], list[str]]:
        """The agents in these folders, each once, and of each that cannot be read why it is left out.

        A folder that holds an evaluation is one; of others those right beneath with an agent's files are read, and itself with a probe.

        Raises:
            ValueError: a folder holds neither an evaluation nor a probe.
        """
        places = dict[Path, Path]()
        for folder in folders:
            found = [folder] if (folder / AGENT_JSON).is_file() else []
            if not found:
                found = [folder] if (folder / RELIABILITY).is_file() else []
                found += sorted({path.parent for name in (AGENT_JSON, RELIABILITY) for path in folder.glob(f"*/{name}") if path.is_file()})
            if not found:
                what = f"an evaluation's {AGENT_JSON} or a probe's {RELIABILITY}, or folders that do"
                raise ValueError(f"FOLDER must hold {what}, got {str(folder)!r}, which has none")
            places |= {place.resolve(): place for place in found}
        entries, left_out = [], []
        for place in places.values():
            try:
                entries.append(cls.read(place))
            except ValueError as error:
                left_out.append(f"{place} is left out: {error}")
        return entries, left_out

    @property
    def agent(self) -> dict[str, Any]:
        """Name, kind, source and sampling."""
        return dict((self.found or self.reliability or {})["agent"])

    @property
    def name(self) -> str:
        """Its display name."""
        return str(self.agent["name"])

    @property
    def probe(self) -> tuple[str, str] | None:
        """Kind of the questions of its probe, and their hash with how they were asked: errors of different probes cannot be compared."""
        if not self.reliability:
            return None
        probe = self.reliability["probe"]
        how = [f"at {probe['temperature']:g}"] if probe.get("temperature") else []
        how += [f"system prompt {sha256(probe['system'].encode()).hexdigest()[:8]}"] if probe.get("system") else []
        return probe["kind"], ", ".join([probe["hash"], *how])

    @property
    def tries(self) -> int | None:
        """Dialogues with each user of which the best was taken; None where there was one with each."""
        best = self.found.get("best_of_k")
        return int(best["k"]) if best else None

    @property
    def errors(self) -> dict[str, Cell]:
        """Shares of wrong answers by the way of asking, and what emotion and a false belief add; None without a probe."""
        probe = self.reliability
        plain = {f"errors_{way}": probe["conditions"][way]["errors"] if probe else None for way in ("plain", "emotional", "false_belief")}
        return plain | {name: probe[name] if probe else None for name in ("emotional_cost", "sycophancy")}

    @property
    def lost(self) -> str:
        """Which dialogues it lacks where not all were played, or more than 5 % broke; empty for an evaluation that is whole."""
        errors = self.found["errors"]
        counts = {
            "broke": errors["excluded_dialogues"],
            "ran out of context": errors.get("cut_short") or 0,
            "not played": errors["not_played"],
        }
        if not errors["not_played"] and counts["broke"] + counts["ran out of context"] <= 0.05 * errors["planned"]:
            return ""
        return " and ".join(f"{num} of {errors['planned']} dialogues {what}" for what, num in counts.items() if num)


def score_within(found: Mapping[str, Any], words: float) -> dict[str, float] | None:
    """The length-controlled score at so many words a reply, 0-100, with its 95 % interval; None where the agent does not speak so.

    Args:
        found: `length` of an `agent.json`: a `line`, with `intercept` and `slope` of final emotion over log2 of the words and their
            `covariance`, [2, 2], and its `range` in words; one without a range fitted dialogues instead of replies and is not used.
    """
    line, spoken = found.get("line"), found.get("range")
    if not line or not spoken or not spoken[0] <= words <= spoken[1]:
        return None
    at = np.array([1.0, math.log2(words)])
    value = float(at @ [line["intercept"], line["slope"]])
    error = Z * math.sqrt(max(0.0, float(at @ np.array(line["covariance"]) @ at)))
    bounds = {"value": value, "low": value - error, "high": value + error}
    return {name: min(100.0, max(0.0, bound)) for name, bound in bounds.items()}


def is_evaluation(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder, which looks like a run's, is an evaluation's, finished or not.

    Args:
        config: contents of its `config.yaml`.
    """
    return (folder / AGENT_JSON).is_file() or {"agent", "setting"} <= config.keys()


def is_same_agent(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two files are of the same agent: by the fingerprint of its weights where one is known, else by its source.

    Args:
        one: `agent` of an `agent.json`, a `reliability.json` or an evaluation's `config.yaml`; older probes lack `model`.
    """
    weights = [agent.get("fingerprint") or "" for agent in (one, other)]
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
    needed = ("agent", "probe", "conditions", "emotional_cost", "sycophancy")
    return read_object(path, needed, by="probe", remedy="remove it and probe that agent again")


def read_object(path: Path, needed: Sequence[str] = (), *, by: str = "", remedy: str = "") -> dict[str, Any]:
    """A JSON object.

    Args:
        needed: keys that it has where this version's evaluation or probe (`by`) wrote it; older probes name no format.

    Raises:
        ValueError: it is none, or of another version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be a JSON object that can be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")
    lacking = [key for key in needed if found.get(key) is None]
    if needed and (lacking or found.get("format", FORMAT) != FORMAT):
        wrong = f"no {', '.join(lacking)}" if lacking else f"format {found['format']!r}"
        raise ValueError(f"{path} must be written by this version's {by}, got {wrong}; {remedy}")
    return found
