"""Whether a run can start, checked before anything is started, and warnings about settings that seldom work."""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from math import ceil
from pathlib import Path

from curriculum import make_teacher
from curriculum.replayed import YokedTeacher
from experiments.config import ExperimentConfig, defaults_of, own_file, to_plain
from experiments.errors import ConfigError, refusing
from experiments.resume import check_resumable
from experiments.run_lock import check_no_writer
from experiments.second_listener import second_user
from policy.config import CriticKind, LearnerConfig, require_plain_python
from policy.engine.factory import card_of, check_capacity, check_weight_files, free_bytes, gpu_bytes, gpu_number, num_gpus
from policy.memory import ModelSize, in_words, learner_bytes, num_adapted
from policy.prior import EMBEDDED, prior_folder
from policy.smollm2 import SMOLLM2
from simulator.llm.config import ServedConfig
from simulator.scenario import Split
from simulator.settings import leaves
from simulator.user import check_servers, make_bank, served_by_run


def check(config: ExperimentConfig, folder: Path, *, resuming: bool, asks_teacher: bool = True) -> None:
    """Refuses a run that cannot work.

    Args:
        asks_teacher: False for a teacher that replays a run which does not exist yet.

    Raises:
        ConfigError: the first reason found.
    """
    if not resuming and folder.exists():
        raise ConfigError(f"name must be new, got {folder.name!r}; {folder} exists: take another name, or continue with resume={folder}")
    check_no_writer(folder)
    check_writable(folder)
    if resuming:
        check_resumable(config, folder)
    check_needs(config)
    if asks_teacher:
        check_teacher(config)


def check_writable(folder: Path, *, called: str = "runs") -> None:
    """Refuses a folder that cannot be made or written; `called` is the setting or option that names it."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        # Tried, because some file systems refuse what their modes allow.
        with tempfile.TemporaryDirectory(prefix=".attune-", dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{called} must be a folder that can be written, got {str(folder)!r}; {nearest} cannot be written") from error


def check_needs(config: ExperimentConfig) -> None:
    """Refuses a run that lacks something on this machine.

    Raises:
        ConfigError: the GPU, the model, a package, memory, or something of the simulated user is missing.
    """
    device, policy = config.learner.device, config.policy
    with refusing():
        if not config.cluster.address:
            require_plain_python()
        if device.startswith("cuda"):
            if not (present := num_gpus()):
                raise ConfigError(
                    f"learner.device must be cpu where torch finds no GPU, got {device!r}; set it to cpu and cluster.gpus_per_engine to 0, "
                    "or install for GPUs by `make setup ACCELERATOR=gpu`"
                )
            if gpu_number(device) >= present:
                raise ConfigError(
                    f"learner.device must be one of this machine's {present} GPUs, cuda:0 to cuda:{present - 1}, got {device!r}"
                )
            if config.learner.ranks > present - gpu_number(device):
                raise ConfigError(
                    f"learner.ranks must be at most the GPUs from learner.device={device} on, {present - gpu_number(device)}, got "
                    f"{config.learner.ranks}"
                )
        elif config.learner.ranks > (num_cores := len(os.sched_getaffinity(0))):
            raise ConfigError(f"learner.ranks must be at most this machine's {num_cores} cores, got {config.learner.ranks}")
        if (rule := policy.without_vllm) and importlib.util.find_spec("vllm") is None:
            from policy.engine.factory import vllm_remedy

            raise ConfigError(f"{rule.format('is not installed')}; {vllm_remedy()}")
        weights = None if policy.is_embedded else check_model(config)
        for callback in config.callbacks.values():
            callback.check(config)
        user = served_by_run(config.simulator)
        try:
            if user:
                check_served(user)
            check_capacity(config.rollout, policy, config.cluster, weights, learner_device=device, user=user)
        except ValueError as error:
            if user is None or user is config.simulator:
                raise
            raise ConfigError(str(error).replace("simulator.serve", "simulator.server.serve")) from error
        check_memory(config)
        bank = make_bank(config.simulator)
        check_servers(config.simulator)
        check_servers(second_user(config.simulator, config.second_listener, config.evaluation.server), "evaluation")
        if not bank.scenarios(Split(config.evaluation.split)):
            raise ConfigError(f"evaluation.split must be heldout with simulator.heldout_profiles, got {config.evaluation.split!r}")


def check_served(user: ServedConfig) -> None:
    """Refuses a model that the run is to serve and that is not there, or too short for its questions, and a machine without vLLM."""
    from policy.engine.factory import vllm_remedy
    from policy.model import find_model, num_positions

    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(f"simulator.serve must be empty where vLLM is not installed, got {user.serve!r}; {vllm_remedy()}")
    try:
        folder = find_model(user.serve)
    except ValueError as error:
        raise ConfigError(str(error).replace("policy.model", "simulator.serve")) from error
    if user.serve_context > (positions := num_positions(folder, otherwise=user.serve_context)):
        raise ConfigError(
            f"simulator.serve_context must be at most the {positions} tokens that {user.serve} is made for, got {user.serve_context}"
        )


def check_model(config: ExperimentConfig) -> Path:
    """The model's folder; refuses one that is missing, learned the other mode (`policy.thinking`), or that the engine cannot load.

    Also refuses a chat template that does not work with thoughts, the system prompt or the context length, and an architecture that ranks
    cannot load or share.
    """
    policy, rollout = config.policy, config.rollout
    folder = Path(policy.model).expanduser()
    # A first part like these is a mistyped path and not an organisation of the hub.
    ours = ("runs", "docs", "experiments", "checkpoints", "models")
    is_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", policy.model) and folder.parts[0] not in ours
    if not folder.exists() and not is_id and policy.model != SMOLLM2:
        known = f"'{EMBEDDED}', '{SMOLLM2}', a model's folder or a Hugging Face id"
        raise ConfigError(f"policy.model must be {known}, got {policy.model!r}; no such folder")
    from policy.mode import check_mode
    from policy.model import empty_model, find_model, load_tokenizer
    from policy.sft import read_dialogues
    from policy.shards import layers_of
    from simulator.tokens import Chat

    check_weight_files(policy, model := find_model(policy.model))
    check_mode(model, thinking=policy.thinking)
    if config.learner.ranks > 1:  # they load it after the engines
        architecture = empty_model(model)
        if config.learner.sharded:
            layers_of(architecture)
    with refusing((ValueError, OSError)):
        if policy.sft.data:
            read_dialogues(Path(policy.sft.data))
        chat = Chat(load_tokenizer(model), policy.system_prompt, thinking=policy.thinking, keep_thoughts=policy.keep_thoughts)
        if chat.forks:
            config.algorithm.require_whole_dialogues()
        num_before = len(chat.opening_ids([{"role": "user", "content": ""}]))
    if num_before + rollout.max_new_tokens > rollout.max_context:
        raise ConfigError(
            f"rollout.max_context must leave room for a reply (rollout.max_new_tokens={rollout.max_new_tokens}) after {num_before} tokens "
            f"of a dialogue's beginning, got {rollout.max_context}; raise it, or shorten policy.system_prompt"
        )
    return model


def learner_memory(config: ExperimentConfig) -> tuple[dict[str, int], int, str] | None:
    """Bytes that the learner needs by part, those that it may have, and where; None where one of these is not known."""
    policy, learner = config.policy, config.learner
    if policy.is_embedded:
        folder = prior_folder(policy.prior)
    else:
        from policy.model import find_model

        folder = find_model(policy.model)
    if not folder.is_dir():
        return None
    size = ModelSize.of(folder)
    if size is None:
        return None
    parts = learner_bytes(
        size,
        learner,
        max_context=config.rollout.max_context,
        num_adapted=num_adapted(size, policy.lora.rank),
        has_reference=getattr(config.algorithm, "kl_coef", 0.0) > 0.0,
        has_critic=getattr(config.algorithm, "critic", None) is CriticKind.SEPARATE,
    )
    if learner.device == "cpu":
        # Ranks share the machine's memory.
        return {name: learner.ranks * number for name, number in parts.items()}, free_bytes(), "free on this machine"
    where = f"on each of {learner.ranks} cards" if learner.ranks > 1 else f"on {learner.device}"
    user = served_by_run(config.simulator)
    card = card_of(learner.device, config.rollout, config.cluster, user)
    taken = card.num_served * user.serve_gpu_memory_share if user else 0.0
    # vLLM's own context stays while it sleeps.
    taken += 0.05 if policy.sleep else card.num_engines * policy.gpu_memory_share
    total = gpu_bytes(learner.device)
    return (parts, int(total * (1.0 - taken)), where + " while engines sleep" * policy.sleep) if total else None


def memory_in_words(config: ExperimentConfig) -> str:
    """What the learner needs and there is; empty where that is not known."""
    found = learner_memory(config)
    return f"the learner needs {in_words(found[0], free=found[1], where=found[2])}" if found else ""


def check_memory(config: ExperimentConfig) -> None:
    """Refuses a model whose weights, gradients and moments alone are larger than the memory."""
    if (found := learner_memory(config)) is None:
        return
    parts, free, where = found
    if sum(number for name, number in parts.items() if name not in ("activations", "logits")) > free:
        shards = "" if config.learner.device == "cpu" else "set learner.sharded=true with more learner.ranks, "
        remedy = f"{shards}train adapters (policy.lora.rank) or take a smaller model"
        raise ConfigError(f"policy.model must fit, got a learner that needs {in_words(parts, free=free, where=where)}; {remedy}")
    if config.policy.sleep:
        kept = {name: number for name, number in parts.items() if name in ("weights", "optimiser", "reference", "critic")}
        user = served_by_run(config.simulator)
        card = card_of(config.learner.device, config.rollout, config.cluster, user)
        share = card.num_engines * config.policy.gpu_memory_share + (card.num_served * user.serve_gpu_memory_share if user else 0.0)
        awake = int(gpu_bytes(config.learner.device) * (0.95 - share))
        if sum(kept.values()) > awake:
            raise ConfigError(
                f"policy.gpu_memory_share must leave the learner what it keeps while engines are awake, got "
                f"{config.policy.gpu_memory_share:g}; it keeps {in_words(kept, free=awake, where='beside them')}"
            )


def check_teacher(config: ExperimentConfig) -> None:
    """Refuses a teacher that cannot propose a step of this many groups, or replays fewer steps than the budget has."""
    with refusing():
        scenarios = make_bank(config.simulator).by_family(Split.TRAIN)
        teacher = make_teacher(config.teacher, scenarios, group_size=config.group_size, seed=config.seed)
        teacher.propose(config.groups_per_step, policy_version=0)
        if isinstance(teacher, YokedTeacher) and teacher.config.on_end == "stop":
            teacher.require_steps(ceil(config.budget.steps * config.groups_per_step / len(teacher.steps[0])))


def warnings(config: ExperimentConfig) -> list[str]:
    """Warnings about a run, a sentence each."""
    found, policy, bonus = [], config.policy, config.algorithm.entropy_coef
    if not policy.is_embedded and not policy.lora.rank and config.learner.lr == LearnerConfig().lr:
        from policy.mode import RECIPE

        if not (Path(policy.model).expanduser() / RECIPE).is_file():  # neither a prior nor a checkpoint of one
            found.append(
                f"WARNING learner.lr={config.learner.lr:g} was found for the embedded policy and is far too large for most language "
                f"models: set it for {policy.model} (1e-6 for billions of parameters), or begin with the experiment own_model"
            )
    # A bonus of 0.02 outweighed a reward given once a dialogue; 0.01 did not.
    if policy.is_embedded and not getattr(config.algorithm, "turn_credit", 0.0) and bonus >= 0.02:
        found.append(
            f"WARNING algorithm.entropy_coef={bonus:g} was found with credit by turn. Without it (algorithm.turn_credit=0) the bonus "
            "outweighed the reward in recorded runs: entropy 0.5 to 4 nats, little learned. With algorithm.entropy_coef=0 they learned"
        )
    file = own_file(config)
    return found + (lost_settings(file, config, called=config.experiment) if file is not None else [])


def lost_settings(before: ExperimentConfig, now: ExperimentConfig, *, called: str) -> list[str]:
    """Notes on settings of an algorithm or user that another kind has too and takes from its own defaults.

    Not for teachers, whose settings share names by chance. `called` is the file of the settings before.
    """
    found = []
    for group in ("algorithm", "simulator"):
        was, has = (dict(leaves({group: to_plain(getattr(config, group))})) for config in (before, now))
        kinds = was.pop(f"{group}.kind"), has[f"{group}.kind"]
        usual = defaults_of(group, kinds[1])
        lost = [f"{name}={value}" for name, value in was.items() if name in has and value != has[name] == usual.get(name)]
        if kinds[0] != kinds[1] and lost:
            found.append(f"NOTE {group}.kind={kinds[1]} begins with its own defaults; {called} has for {kinds[0]}: {' '.join(lost)}")
    return found
