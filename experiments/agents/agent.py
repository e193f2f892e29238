"""Agents: the scripted agent, model or server that AGENT names on a command line, and the options that all commands about agents have."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from analysis.runs import CONFIG, METRICS, RUNS, read_config, setting
from experiments.errors import ConfigError
from policy.files import fingerprint, weights_of
from policy.mode import RECIPE
from policy.prior import EMBEDDED, PriorConfig, prior_folder
from policy.smollm2 import SMOLLM2
from simulator.llm.config import AnswerFormat, EndpointConfig, TokenLimit
from simulator.options import at_least, finite, in_options, server_options
from simulator.scripted import AGENTS
from simulator.settings import message

ANSWERS = "answers"
"""Folder of the answers of an agent's server, in the evaluation's own: a server may serve another agent under the same name tomorrow."""
MODEL_TOKENS = 800
"""Of a reply of any model but the embedded policy: agents whose replies are cut at different lengths are not comparable."""
POSITIVE = at_least(1)
SPEAKING: dict[str, dict[str, Any]] = {
    "--temperature": {"type": finite, "default": 1.0, "help": "of sampling (%(default)g); 0 is greedy, training samples at 1"},
    "--system": {"metavar": "TEXT", "help": "a system prompt before the dialogue (default: its run's, or none)"},
    "--max-tokens": {"type": POSITIVE, "metavar": "N", "help": "of a reply (default: as the run; 40 embedded, else 800)"},
    "--concurrency": {"type": POSITIVE, "metavar": "N", "help": "dialogues at once (default 64; a server 16)"},
}
WEIGHTS: dict[str, dict[str, Any]] = {
    "--engine": {"choices": ("auto", "hf", "vllm"), "default": "auto", "help": "vLLM where it can be imported, or transformers"},
    "--dtype": {"choices": ("float32", "bfloat16"), "default": "float32", "help": "of the engine (default float32)"},
    "--max-context": {"type": POSITIVE, "metavar": "N", "help": "tokens of a dialogue (default: as the run; 512 embedded, else 4096)"},
    "--thinking": {"action": "store_true", "help": "it thinks before it speaks, up to </think> (default: as it was trained)"},
    "--gpu-memory-share": {"type": finite, "metavar": "S", "help": "of a GPU for vLLM (default: as the run, else 0.5)"},
}
SERVER: dict[str, dict[str, Any]] = {
    "--model": {"metavar": "NAME", "help": "the model's name there"},
    "--key-env": {"default": "", "metavar": "VARIABLE", "help": "environment variable that holds the key; else none is sent"},
    "--retries": {"type": int, "default": 4, "metavar": "N", "help": "further attempts at a reply that cannot be used (default 4)"},
    "--token-limit": {"choices": tuple(TokenLimit), "default": "max_tokens", "help": "parameter that limits a reply's tokens (max_tokens)"},
    "--no-seed": {"action": "store_true", "help": "send no seed, for servers that refuse one"},
    "--extra-body": {"default": "", "metavar": "JSON", "help": "further parameters of each request"},
}


def agent_parser(command: str) -> argparse.ArgumentParser:
    """The command line of `evaluate` or `reliability`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments {command}",
        description="Evaluate any agent on users it never practised with. The same command again continues where it was stopped."
        if command == "evaluate"
        else "What training cost: facts asked plainly, after an emotional turn, and against a false belief that asks for agreement. "
        "Without a file of questions the embedded policy is asked for things that users mentioned; any other agent needs the file.",
        epilog="Exit code 0: all was played or asked; 1: some is missing or broke; 2: refused before anything started.",
    )
    parser.add_argument(
        "agent",
        metavar="AGENT",
        help="a run or checkpoint, a Hugging Face folder or id, the address of an OpenAI-compatible server (http://127.0.0.1:8000/v1), "
        "`prior` for the embedded policy before training, or a scripted agent (L0 to L6, praise, parrot)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: runs/evaluate/ and the agent's name)")
    parser.add_argument("--name", help="of the agent on a leaderboard (default: follows from AGENT)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of sampling and of the intervals; users have their own (default 0)")
    if command == "reliability":
        which = parser.add_argument_group("which questions")
        which.add_argument("--against", type=Path, metavar="FOLDER", help="of an agent probed before, such as the one before training")
        which.add_argument("--questions", type=Path, metavar="FILE", help="JSONL: id, question, right (a list), wrong (docs/evaluation.md)")
        which.add_argument("--num", type=POSITIVE, default=200, metavar="N", help="facts that the embedded policy is asked for (200)")
    else:
        which, user = parser.add_argument_group("on which scenarios"), parser.add_argument_group("with whom")
        which.add_argument(
            "--profiles", type=Path, metavar="FILE", help="SAGE or RLVER profiles (JSONL, gzipped or not) instead of our own"
        )
        which.add_argument(
            "--scenarios", choices=("heldout", "pressure"), default="heldout", help="pressure: users who press for agreement (heldout)"
        )
        which.add_argument("--num-scenarios", type=at_least(0), default=0, metavar="N", help="spread over the families (default 0: all)")
        which.add_argument("--strictness", type=finite, nargs="+", metavar="D", help="in [0, 1] (default .1 .3 .5 .7 .9; profiles .35)")
        which.add_argument("--samples", type=POSITIVE, default=1, metavar="K", help="dialogues with each user; from 2 on best-of-K (1)")
        which.add_argument("--max-turns", type=POSITIVE, metavar="N", help="replies that are answered (default: as the run; 8, profiles 9)")
        user.add_argument("--user", choices=("rule", "llm"), default="rule", help="the embedded user, or one that a model plays (rule)")
        user.add_argument("--register", choices=("open", "world"), help="language it follows (default: as the run; world for L0 to L6)")
        user.add_argument("--cache", default="default", help="folder of answers of user and judge (default as in runs; off keeps none)")
        listeners = ("rule", "encoder", "model", "none")
        default = "encoder with --user rule, none with profiles or world; rule with llm"
        user.add_argument("--listener", choices=listeners, help=f"a second listener, who hears the dialogues again (default: {default})")
        server_options(parser, "user", "the model that plays the user, with --user llm")
        server_options(parser, "listener", "the model that hears the dialogues again, with --listener model")
        server_options(parser, "judge", "the model that judges the five capabilities of dialogues with a user that a model plays")
    speaking = {"how the agent speaks": SPEAKING, "an agent whose weights are here": WEIGHTS, "an agent behind a server": SERVER}
    for title, table in speaking.items():
        group = parser.add_argument_group(title)
        for option, arguments in table.items():
            group.add_argument(option, **arguments)
    parser.set_defaults(parser=parser, **({"temperature": 0.0} if command == "reliability" else {}))
    return parser


def refuse_given(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuses options that have no use here and differ from their default: the results would record them as if they had been heeded."""
    for name in names:
        attribute = name.removeprefix("--").replace("-", "_")
        if (given := getattr(options, attribute)) != options.parser.get_default(attribute):
            raise ConfigError(f"--{attribute.replace('_', '-')} {why}, got {given!r}")


@contextlib.contextmanager
def naming_options(rename: Callable[[str], str], group: str = "simulator") -> Iterator[None]:
    """Turns errors about settings of a group (a dotted name) into ConfigErrors, in which `rename` puts options in their place."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(rename(message(error, group))) from error


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent that can be evaluated."""

    kind: Literal["scripted", "model", "server"]
    """`model`: weights that an engine in this process loads."""
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
        is_named = self.source == "prior" or self.run_setting("policy.model", None) == EMBEDDED
        return is_named or (self.folder is not None and (self.folder / RECIPE).is_file())

    def run_setting(self, name: str, default: Any) -> Any:
        """A setting of the run it comes from, by dotted name, or the default."""
        return setting(self.run_config, name, default)

    def system_prompt(self, given: str | None) -> str:
        """The prompt before a dialogue: the given one, else that of the run it comes from; empty for none."""
        return given if given is not None else str(self.run_setting("policy.system_prompt", ""))

    def identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("name", "kind", "source", "model", "fingerprint")}

    def weights_folder(self) -> Path:
        """The local folder of its weights; the prior is built, and a model of the hub fetched, where it is missing."""
        if self.folder is not None:
            return self.folder
        if self.source == "prior":
            from policy.prior.prior import build_prior

            return build_prior(PriorConfig())
        from policy.model import find_model

        return find_model(self.source)


def find_agent(word: str, *, name: str | None = None, model: str | None = None) -> Agent:
    """The agent that AGENT, --name and --model describe; ConfigError where there is none."""

    def as_name(text: str) -> str:
        return re.sub(r"[^\w.+-]+", "-", text).strip(".-") or "agent"

    if name is not None and name != as_name(name):
        raise ConfigError(f"--name must consist of letters, digits and . _ + -, got {name!r}; {as_name(name)!r} would do")
    if model is not None and "://" not in word:
        raise ConfigError(f"--model goes with the address of a server, got {model!r} with AGENT {word!r}")
    if word in AGENTS:
        return Agent(kind="scripted", name=name or word, source=word)
    if word == "prior":
        # The hash of its recipe, as the prior may have to be built first.
        recipe = prior_folder(PriorConfig()).name.removeprefix("prior-")
        return Agent(kind="model", name=name or word, source=word, fingerprint=recipe)
    if "://" in word:
        with naming_options(of_agent):
            EndpointConfig.check_url(word)
        if not model:
            raise ConfigError(f"--model must name the model that {word} serves, got none")
        return Agent(kind="server", name=name or as_name(model), source=word, model=model)
    folder = Path(word).expanduser()
    if not folder.is_dir():
        # A mistyped run is no id of the hub.
        if folder.parts[0] == RUNS or (folder.parts[1:] and folder.parent.is_dir()):
            raise ConfigError(f"AGENT must be a run's folder, got {word!r}; there is no such folder in {folder.parent}")
        if word == SMOLLM2 or re.fullmatch(r"\w[\w.-]*/[\w.-]+", word):
            return Agent(kind="model", name=name or as_name(word), source=word)
        raise ConfigError(
            f"AGENT must be a folder, a server's address, a Hugging Face id, prior, {SMOLLM2}, or one of {', '.join(AGENTS)}, got {word!r}"
        )

    from policy.model import check_gguf, check_model_folder

    if (folder / CONFIG).is_file() and (folder / METRICS).is_file():
        from policy.checkpoint import newest_checkpoint

        newest = newest_checkpoint(folder)
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
    name = name or as_name(default)
    return Agent(kind="model", name=name, source=str(folder), folder=folder, run_config=config, fingerprint=fingerprint(folder))


def of_agent(message: str) -> str:
    """The message of an agent's server with options in the place of settings; its address is AGENT."""
    return in_options(message).replace("--url", "AGENT").replace("the kind must", "AGENT must").replace("the simulated user", "the agent")


def check_agent_options(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses options that this kind of agent has no use for, and settings of a server that are out of range."""
    useless = {"scripted": [*SPEAKING, *WEIGHTS, *SERVER], "model": [*SERVER], "server": [*WEIGHTS]}
    refuse_given(options, useless[agent.kind], f"goes with another kind of agent than {agent.source!r}")
    if agent.kind == "server":
        server_config(options, answers=Path(ANSWERS))
    if options.temperature < 0.0:
        raise ConfigError(f"--temperature must be at least 0, got {options.temperature:g}")


def server_config(options: argparse.Namespace, *, answers: Path) -> EndpointConfig:
    """The settings of an agent's server, whose answers are kept in a folder."""
    with naming_options(of_agent):
        return EndpointConfig(
            urls=[options.agent],
            model=options.model,
            api_key_env=options.key_env,
            temperature=options.temperature,
            send_seed=not options.no_seed,
            max_tokens=options.max_tokens or MODEL_TOKENS,
            token_limit=TokenLimit(options.token_limit),
            extra_body=options.extra_body,
            concurrency=options.concurrency or 16,
            retries=options.retries,
            cache=str(answers),
            answer_format=AnswerFormat.TEXT,
        )
