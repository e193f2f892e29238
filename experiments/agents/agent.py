"""Agent spec: the scripted agent, model or server that AGENT names on the command line."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from analysis.runs import CONFIG, METRICS, RUNS, read_config, setting
from experiments.agents.options import SERVER, SPEAKING, WEIGHTS, naming_options, refuse_given
from experiments.errors import ConfigError
from policy.config import EMBEDDED, PriorConfig
from policy.prior import prior_folder
from policy.rollout.chat import RECIPE
from simulator.llm.config import AnswerFormat, EndpointConfig, TokenLimit, check_url
from simulator.llm.options import in_options
from simulator.scripted import AGENTS

PRIOR = "prior"
EVALUATE = "evaluate"
"""`experiment` in an evaluation's config.yaml, and the folder of evaluations in `runs`."""
ANSWERS = "answers"
"""Folder of an agent's server's answers, in the evaluation's own: a server may serve another agent under the same name tomorrow."""
FINGERPRINTED = 2**20
"""Bytes at either end of a file of weights that its fingerprint covers: training moves every weight."""
MODEL_TOKENS, MODEL_CONTEXT = 800, 4096
"""Of any model but the embedded policy, wherever it runs: agents whose replies are cut at different lengths are not comparable."""
AT_ONCE, AT_A_SERVER = 64, 16
"""Dialogues or questions at once."""


class Kind(StrEnum):
    """How an agent is reached."""

    SCRIPTED = "scripted"
    MODEL = "model"
    """Weights that an engine in this process loads."""
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The agent that is evaluated."""

    kind: Kind
    name: str
    """Letters, digits and . _ + -: also that of its folder."""
    source: str
    """Folder, address, id of the hub, or a scripted agent's name."""
    model: str | None = None
    """Its name at a server."""
    folder: Path | None = None
    """Of its weights, where they are local."""
    run_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run that it comes from; empty for others."""
    fingerprint: str = ""
    """16 hex digits that change with its weights; empty where there are none to read."""

    @property
    def is_embedded(self) -> bool:
        """Whether it is the small embedded policy, before or after training."""
        if self.source == PRIOR or self.run_setting("policy.model", None) == EMBEDDED:
            return True
        return self.folder is not None and (self.folder / RECIPE).is_file()

    def run_setting(self, name: str, default: Any) -> Any:
        """A setting of the run it comes from, by dotted name, or the default."""
        return setting(self.run_config, name, default)

    def system_prompt(self, given: str | None) -> str:
        """The prompt before a dialogue: the given one, else that of the run it comes from; empty for none."""
        return given if given is not None else str(self.run_setting("policy.system_prompt", ""))

    def identity(self) -> dict[str, Any]:
        """What its files record of it: name, kind, source, model, fingerprint."""
        fields = {"name": self.name, "kind": str(self.kind), "source": self.source, "model": self.model}
        return {**fields, "fingerprint": self.fingerprint}

    def weights_folder(self) -> Path:
        """The local folder of its weights; the prior is built, and a model of the hub fetched, where they are not there."""
        if self.folder is not None:
            return self.folder
        if self.source == PRIOR:
            from policy.prior.prior import build_prior

            return build_prior(PriorConfig())
        from policy.model import find_model

        return find_model(self.source)


def find_agent(word: str, *, name: str | None = None, model: str | None = None) -> Agent:
    """The agent that AGENT names.

    Args:
        name: given with --name.
        model: given with --model.

    Raises:
        ValueError: there is no such agent, or it lacks something.
    """
    if name is not None and name != as_name(name):
        raise ConfigError(f"--name must consist of letters, digits and . _ + -, got {name!r}; {as_name(name)!r} would do")
    if model is not None and "://" not in word:
        raise ConfigError(f"--model goes with the address of a server, got {model!r} with AGENT {word!r}")
    if word in AGENTS:
        return Agent(kind=Kind.SCRIPTED, name=name or word, source=word)
    if word == PRIOR:
        # The hash of its recipe, as the prior may have to be built first.
        recipe = prior_folder(PriorConfig()).name.removeprefix("prior-")
        return Agent(kind=Kind.MODEL, name=name or PRIOR, source=PRIOR, fingerprint=recipe)
    if "://" in word:
        with naming_options(of_agent):
            check_url(word)
        if not model:
            raise ConfigError(f"--model must name the model that {word} serves, got none")
        return Agent(kind=Kind.SERVER, name=name or as_name(model), source=word, model=model)
    folder = Path(word).expanduser()
    if folder.is_dir():
        return _from_folder(folder, name=name)
    # A mistyped run is no id of the hub.
    if folder.parts[0] == RUNS or (folder.parts[1:] and folder.parent.is_dir()):
        raise ConfigError(f"AGENT must be a run's folder, got {word!r}; there is no such folder in {folder.parent}")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", word):
        return Agent(kind=Kind.MODEL, name=name or as_name(word), source=word)
    scripted = ", ".join(AGENTS)
    raise ConfigError(f"AGENT must be a folder, a server's address, a Hugging Face id, {PRIOR}, or one of {scripted}, got {word!r}")


def _from_folder(folder: Path, *, name: str | None) -> Agent:
    """A run, a checkpoint or a Hugging Face model."""
    from policy.model import check_gguf, check_model_folder, weights_of

    if (folder / CONFIG).is_file() and (folder / METRICS).is_file():
        from policy.checkpoint import newest_checkpoint

        newest = newest_checkpoint(folder, put_back=False)
        if newest is None:
            raise ConfigError(f"AGENT must have a complete checkpoint, got the run {str(folder)!r}, which has none")
        folder = newest
    check_gguf(folder, called="AGENT")
    if not (folder / "config.json").is_file() or not any(weights_of(folder)):
        raise ConfigError(f"AGENT must be a run, a checkpoint or a model with config.json and weights (*.safetensors), got {str(folder)!r}")
    check_model_folder(folder, called="AGENT")
    path = folder.absolute()
    run, config, default = path.parents[1], {}, path.name
    if path.parent.name == "checkpoints" and (run / CONFIG).is_file():
        config = read_config(run / CONFIG)
        # Of .../<experiment>/<run> or .../<experiment>/<sweep>/<arm>/seed_<n>: two experiments may share arms, seeds and steps.
        experiment = str(config.get("experiment") or "")
        default = "-".join(filter(None, (experiment if experiment != run.parent.name else "", run.parent.name, run.name, path.name)))
    return Agent(
        kind=Kind.MODEL,
        name=name or as_name(default),
        source=str(folder),
        folder=folder,
        run_config=config,
        fingerprint=fingerprint(folder),
    )


def fingerprint(folder: Path) -> str:
    """16 hex digits over a model's config.json and, of each file of weights, name, size and both ends."""
    from policy.model import weights_of

    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights_of(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(FINGERPRINTED))
            file.seek(max(0, size - FINGERPRINTED))
            digest.update(file.read(FINGERPRINTED))
    return digest.hexdigest()[:16]


def as_name(text: str) -> str:
    """The text as the name of a folder."""
    return re.sub(r"[^\w.+-]+", "-", text).strip(".-") or "agent"


def of_agent(message: str) -> str:
    """The message of an agent's server with options in the place of settings; its address is AGENT."""
    return in_options(message).replace("--url", "AGENT").replace("the kind must", "AGENT must").replace("the simulated user", "the agent")


def check_agent_options(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses options that this kind of agent has no use for, and settings of a server that are out of range.

    Raises:
        ValueError: names the option.
    """
    where = f"(AGENT is {agent.source!r})"
    if agent.kind is Kind.SCRIPTED:
        refuse_given(options, [*SPEAKING, *WEIGHTS, *SERVER], f"goes with an agent that is a model {where}")
    elif agent.kind is Kind.MODEL:
        refuse_given(options, list(SERVER), f"goes with an agent behind a server {where}")
    else:
        refuse_given(options, list(WEIGHTS), f"goes with an agent whose weights are here {where}")
        server_config(options, agent, answers=Path(ANSWERS))


def server_config(options: argparse.Namespace, agent: Agent, *, answers: Path) -> EndpointConfig:
    """The settings of an agent's server.

    Args:
        answers: folder in which its answers are kept.

    Raises:
        ValueError: one of them is out of range; in the words of the command line.
    """
    with naming_options(of_agent):
        return EndpointConfig(
            urls=[agent.source],
            model=options.model,
            api_key_env=options.key_env,
            temperature=options.temperature,
            send_seed=not options.no_seed,
            max_tokens=options.max_tokens or MODEL_TOKENS,
            token_limit=TokenLimit(options.token_limit),
            extra_body=options.extra_body,
            concurrency=options.concurrency or AT_A_SERVER,
            timeout_s=options.timeout,
            retries=options.retries,
            max_wait_s=options.max_wait,
            cache=str(answers),
            answer_format=AnswerFormat.TEXT,
        )
