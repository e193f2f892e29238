"""Who is evaluated: what the word AGENT means, found out before anything starts and without importing anything heavy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from analysis.runs import CONFIG, METRICS, RUNS, read_config, setting
from experiments.keys import ConfigError, refusing
from policy.config import EMBEDDED, PriorConfig
from policy.model import check_gguf, check_model_folder, weights_of
from policy.prior import prior_folder
from policy.rollout.chat import RECIPE
from simulator.llm.config import check_url
from simulator.scripted import AGENTS

PRIOR = "prior"
"""First part of a run's folder: a mistyped one is no id of the hub."""
ENDS = 2**20
"""Bytes from either end of a file of weights that its fingerprint is taken of: training moves every weight."""


class Kind(StrEnum):
    """How an agent is reached."""

    SCRIPTED = "scripted"
    MODEL = "model"
    """Weights that an engine in this process loads."""
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Who is evaluated."""

    kind: Kind
    name: str
    """Letters, digits and . _ + -: also that of its folder."""
    source: str
    """Where it was found: a folder, an address, a hub's id, a scripted agent's name."""
    folder: Path | None = None
    """Of its weights, where they are here already."""
    run_config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run that it comes from; empty for others."""
    fingerprint: str = ""
    """16 hex digits that change with its weights; empty where they cannot be seen."""

    @property
    def is_embedded(self) -> bool:
        """Whether it is the small embedded policy, before or after training."""
        if self.source == PRIOR or setting(self.run_config, "policy.model") == EMBEDDED:
            return True
        return self.folder is not None and (self.folder / RECIPE).is_file()

    def recorded(self, name: str, default: Any) -> Any:
        """A setting of the run it comes from, by dotted name, or the default."""
        return setting(self.run_config, name, default)

    def told(self, system: str | None) -> str:
        """The prompt before a dialogue: this one, else that of the run it comes from; empty for none."""
        return system if system is not None else str(self.recorded("policy.system_prompt", ""))


def find_agent(word: str, *, name: str | None = None, model: str | None = None) -> Agent:
    """What AGENT means.

    Args:
        name: what to call it instead of what follows from AGENT.
        model: the model's name at a server.

    Raises:
        ConfigError: it means nothing, or lacks something.
    """
    if name is not None and name != as_name(name):
        raise ConfigError(f"--name must consist of letters, digits and . _ + -, got {name!r}; {as_name(name)!r} would do")
    if model is not None and "://" not in word:
        raise ConfigError(f"--model goes with the address of a server, got {model!r} with AGENT {word!r}")
    if word in AGENTS:
        return Agent(kind=Kind.SCRIPTED, name=name or word, source=word)
    if word == PRIOR:
        # Of the recipe, as it may have to be built first.
        recipe = prior_folder(PriorConfig()).name.removeprefix("prior-")
        return Agent(kind=Kind.MODEL, name=name or PRIOR, source=PRIOR, fingerprint=recipe)
    if "://" in word:
        return server(word, name=name, model=model)
    folder = Path(word).expanduser()
    if folder.is_dir():
        return from_folder(folder, name=name)
    if folder.parts[0] == RUNS or (folder.parts[1:] and folder.parent.is_dir()):
        raise ConfigError(f"AGENT must be a run's folder, got {word!r}; there is no such folder in {folder.parent}")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", word):
        return Agent(kind=Kind.MODEL, name=name or as_name(word), source=word)
    scripted = ", ".join(AGENTS)
    raise ConfigError(f"AGENT must be a folder, a server's address, a Hugging Face id, {PRIOR}, or one of {scripted}, got {word!r}")


def server(url: str, *, name: str | None, model: str | None) -> Agent:
    """An agent behind a server."""
    try:
        check_url(url)
    except ValueError as error:
        raise ConfigError(str(error).replace("simulator.urls", "AGENT").replace("simulator.api_key_env", "--key-env")) from error
    if not model:
        raise ConfigError(f"--model must name the model that {url} serves, got none")
    return Agent(kind=Kind.SERVER, name=name or as_name(model), source=url)


def from_folder(folder: Path, *, name: str | None) -> Agent:
    """A run, a checkpoint or a Hugging Face model.

    Raises:
        ConfigError: it is none of them, or a run without a checkpoint.
    """
    if (folder / CONFIG).is_file() and (folder / METRICS).is_file():
        from policy.checkpoint import newest_checkpoint

        newest = newest_checkpoint(folder, put_back=False)
        if newest is None:
            raise ConfigError(f"AGENT must have a whole checkpoint, got the run {str(folder)!r}, in which none is whole")
        folder = newest
    with refusing():
        check_gguf(folder, called="AGENT")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"AGENT must be a run's folder, a checkpoint or a Hugging Face model, got {str(folder)!r} without config.json")
    if not any(weights_of(folder)):
        raise ConfigError(f"AGENT must hold weights (*.safetensors), got {str(folder)!r}, which has none")
    with refusing():
        check_model_folder(folder, called="AGENT")
    run = folder.absolute().parents[1] if folder.absolute().parent.name == "checkpoints" else None
    is_of_run = run is not None and (run / CONFIG).is_file()
    with refusing():
        config = read_config(run / CONFIG) if run is not None and is_of_run else {}
    called = name_in(run, config, step=folder.name) if run is not None and is_of_run else folder.absolute().name
    return Agent(
        kind=Kind.MODEL,
        name=name or as_name(called),
        source=str(folder),
        folder=folder,
        run_config=config,
        fingerprint=fingerprint(folder),
    )


def name_in(run: Path, config: Mapping[str, Any], *, step: str) -> str:
    """What a checkpoint of a run is called, its experiment first: two experiments may share arms, seeds and steps.

    Args:
        run: `.../<experiment>/<name>`, or of a sweep `.../<experiment>/<sweep>/<arm>/seed_<n>`.
    """
    experiment = str(config.get("experiment") or "")
    return "-".join(filter(None, (experiment if experiment != run.parent.name else "", run.parent.name, run.name, step)))


def fingerprint(folder: Path) -> str:
    """16 hex digits over a model's config.json and, of each file of weights, name, size and both ends."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights_of(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(ENDS))
            file.seek(max(0, size - ENDS))
            digest.update(file.read(ENDS))
    return digest.hexdigest()[:16]


def as_name(text: str) -> str:
    """The text as a folder may be called."""
    return re.sub(r"[^\w.+-]+", "-", text).strip(".-") or "agent"
