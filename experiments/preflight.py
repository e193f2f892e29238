"""Where a run will lie, and whether it can start: asked before anything is started, so that a refusal leaves nothing behind.

What a run may do and probably should not: said before it starts, and nothing is refused for it.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from analysis.runs import CONFIG, METRICS, PROVENANCE, SUMMARY, last_record, leaves, read_config, read_summary
from experiments.build import check_teacher
from experiments.config import ExperimentConfig, PolicyConfig, require_known
from experiments.errors import ConfigError, checked_name, refusing
from experiments.resume import defaults_of, other_users, own_file
from experiments.run_folder import check_no_writer
from policy.config import LearnerConfig, WeightTransport, check_lora, require_plain_python
from policy.engine.capacity import check_capacity
from policy.engine.factory import check_weight_files, vllm_remedy
from simulator.scenario import Split
from simulator.users import check_user, make_bank
from simulator.version import is_current, recorded_world

OURS = ("runs", "docs", "experiments", "checkpoints", "models")
"""Folders of a checkout, and two that hold models by custom."""


def new_folder(config: ExperimentConfig) -> Path:
    """The folder of a new run: runs/<experiment>/<name>, named after the seed and the time unless `name` says otherwise."""
    name = config.name or f"seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    return Path(config.runs) / config.experiment / checked_name(name)


def resumed_folder(experiment: str, resume: str, *, runs: str) -> Path:
    """The folder that `resume` means: a run's folder, or the name of a run of this experiment.

    Args:
        runs: the folder of all runs.

    Raises:
        ConfigError: there is no such experiment or run, it is of another experiment, or it was begun in another world.
    """
    require_known(experiment)
    places = (Path(resume), Path(runs) / experiment / resume)
    folder = next((place for place in places if (place / CONFIG).is_file()), None)
    if folder is None:
        where = " or ".join(map(str, places))
        raise ConfigError(f"resume must name a run's folder, got {resume!r}; there is no {CONFIG} in {where}")
    with refusing():
        saved = read_config(folder / CONFIG)
    if saved.get("experiment") != experiment:
        raise ConfigError(f"resume must name a run of {experiment}, got {str(folder)!r}, a run of {saved.get('experiment')}")
    began_in = recorded_world(saved.get(PROVENANCE) or {}, saved)
    if not is_current(began_in):
        raise ConfigError(f"resume must name a run whose users are still the same, got one of world {began_in!r}; start a new run")
    return folder


def check(config: ExperimentConfig, folder: Path, *, resuming: bool) -> None:
    """Refuses a run that cannot work.

    Raises:
        ConfigError: the run exists, its folder cannot be written or another process does, it has ended, or has steps to go on from and no
            whole checkpoint; the GPU, the model or a package for it is not there, memory does not suffice, the simulated user lacks
            something or is not the one that the run began with, or the teacher cannot teach this run.
    """
    if not resuming and folder.exists():
        raise ConfigError(f"name must be new, got {folder.name!r}; {folder} is there: take another name, or go on with resume={folder}")
    check_start(config, folder, resuming=resuming)


def check_start(config: ExperimentConfig, folder: Path, *, resuming: bool, asks_teacher: bool = True) -> None:
    """Refuses a run that cannot work in a folder that is its own.

    Args:
        asks_teacher: not of a teacher that copies a run of which there is nothing to copy yet.

    Raises:
        ConfigError: as `check`, but for a folder that is there.
    """
    check_no_writer(folder)
    check_writable(folder)
    if resuming:
        check_checkpoint(folder)
        check_unfinished(config, folder)
        if other := other_users(read_config(folder / CONFIG), config):
            raise ConfigError(other)
    check_needs(config)
    if asks_teacher:
        check_teacher(config)


def check_needs(config: ExperimentConfig) -> None:
    """Refuses a run that does not find here what it works with.

    Raises:
        ConfigError: the GPU, the model or a package for it is not there, memory does not suffice, or the simulated user lacks something.
    """
    if not config.cluster.address:
        with refusing():
            require_plain_python()
    check_device(config)
    check_model(config.policy)
    check_template(config)
    check_callbacks(config)
    check_room(config)
    check_simulator(config)


def check_device(config: ExperimentConfig) -> None:
    """Raises when the policy is to be trained on a GPU that this machine does not have: asked before a model is looked for on the Hub."""
    device = config.learner.device
    if not device.startswith("cuda"):
        return
    from policy.engine.capacity import gpu_number, num_gpus

    if not (present := num_gpus()):
        raise ConfigError(
            f"learner.device must be cpu where torch finds no GPU, got {device!r}; "
            "set it to cpu and cluster.gpus_per_engine to 0, or install for GPUs by `make setup ACCELERATOR=gpu` on a machine that has one"
        )
    with refusing():
        number = gpu_number(device)
    if number >= present:
        raise ConfigError(f"learner.device must be one of this machine's {present} GPUs, cuda:0 to cuda:{present - 1}, got {device!r}")


def check_writable(folder: Path, *, called: str = "runs") -> None:
    """Raises when the folder could not be made or written.

    Args:
        called: what its place is given by.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        # Tried, because some file systems refuse what their modes allow.
        with tempfile.TemporaryDirectory(prefix=".attune-", dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{called} must be a folder that can be written, got {str(folder)!r}; {nearest} cannot be written") from error


def check_unfinished(config: ExperimentConfig, folder: Path) -> None:
    """Raises when a run has spent its budget: to go on would drop its last evaluation and judge it a second time."""
    try:
        summary = read_summary(folder / SUMMARY)
    except ValueError as error:
        raise ConfigError(f"resume must name a run whose summary can be read; {error}") from error
    if summary is None:
        return
    steps, tokens = int(summary.get("steps") or 0), int(summary.get("policy_tokens") or 0)
    if config.budget.spent(policy_tokens=tokens, steps=steps) >= 1.0:
        raise ConfigError(
            f"resume must name a run that has not ended, got {str(folder)!r}, which took {steps:,} steps and {tokens:,} policy tokens; "
            "with a larger budget.policy_tokens, or budget.steps where that ended it, it goes on"
        )


def check_checkpoint(folder: Path) -> None:
    """Raises when a run has records of training and no whole checkpoint: it would begin anew and drop them."""
    with refusing():
        last = last_record(folder / METRICS)
    if last is None or last["step"] < 1:
        return
    from experiments.resume import require_records
    from policy.checkpoint import newest_checkpoint, step_of

    torn: list[str] = []
    newest = newest_checkpoint(folder, on_torn=torn.append)
    if newest is None:
        reason = torn[0] if torn else f"there is none in {folder / 'checkpoints'}"
        raise ConfigError(
            f"resume must name a run with a whole checkpoint, got {str(folder)!r}, which came to step {last['step']}: {reason}; "
            "going on would begin anew and delete its records: bring the checkpoint back, or start a new run"
        )
    # Of its evaluations the checkpoint itself has to be asked, which is done when it is loaded.
    require_records(folder, step=step_of(newest), num_looks=0)


def check_model(config: PolicyConfig) -> None:
    """Raises when the model is not there or learnt the other mode (`policy.thinking`), or an engine is asked for that is not installed
    or cannot have this model.

    An id of the hub is looked for there.
    """
    if (rule := config.without_vllm) and importlib.util.find_spec("vllm") is None:
        raise ConfigError(f"{rule.format('is not installed')}; {vllm_remedy()}")
    with refusing():
        check_lora(config.lora)
    if config.is_embedded:
        return
    folder = Path(config.model).expanduser()
    # What lies in a folder of ours by name, such as runs/<experiment>, is a path that was mistyped, and no organisation of the hub.
    looks_like_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", config.model) and folder.parts[0] not in OURS
    if not folder.exists() and not looks_like_id:
        raise ConfigError(f"policy.model must be 'embedded', a model's folder or a Hugging Face id, got {config.model!r}; no such folder")
    from policy.model import find_model
    from policy.rollout.chat import check_mode

    with refusing():
        check_weight_files(config, model := find_model(config.model))
        check_mode(model, thinking=config.thinking)


def check_template(config: ExperimentConfig) -> None:
    """Raises when a model of the user's own has no chat template, or one that drops earlier thoughts under a loss that needs them; or
    when `policy.system_prompt` is not taken by it, or leaves no room.
    """
    if config.policy.is_embedded:
        return
    from policy.model import find_model, load_tokenizer
    from policy.rollout.chat import Chat

    with refusing((ValueError, OSError)):
        tokenizer = load_tokenizer(find_model(config.policy.model))
        policy = config.policy
        chat = Chat(tokenizer, policy.system_prompt, thinking=policy.thinking, keep_thoughts=policy.keep_thoughts)
        if chat.forks:
            config.algorithm.require_whole_dialogues()
        num_before = len(chat.opening_ids([{"role": "user", "content": ""}]))
        if num_before + config.rollout.max_new_tokens > config.rollout.max_context:
            raise ValueError(
                f"rollout.max_context must leave room for a reply (rollout.max_new_tokens={config.rollout.max_new_tokens}) after "
                f"{num_before} tokens that a dialogue begins with, got {config.rollout.max_context}; raise it, or shorten "
                "policy.system_prompt"
            )


def check_callbacks(config: ExperimentConfig) -> None:
    """Raises when a callback cannot work with these settings."""
    with refusing():
        for callback in config.callbacks.values():
            callback.check(config)


def check_room(config: ExperimentConfig) -> None:
    """Raises when the engines would not find the memory or the GPUs they need, or weights could not travel as they shall."""
    folder = Path(config.policy.model).expanduser()
    with refusing():
        weights = folder if folder.is_dir() else None
        check_capacity(config.rollout, config.policy, config.cluster, weights, learner_device=config.learner.device)
    if config.policy.weight_transport is WeightTransport.NCCL and not config.learner.device.startswith("cuda"):
        raise ConfigError(
            f"learner.device must be a CUDA device with policy.weight_transport=nccl, got {config.learner.device!r}; "
            "train on a GPU, or set policy.weight_transport=rpc"
        )


def check_simulator(config: ExperimentConfig) -> None:
    """Raises when the simulated user lacks something: a profile, a key, a server that answers, scenarios to be judged by."""
    with refusing():
        check_user(config.simulator)
        has_scenarios = bool(make_bank(config.simulator).scenarios(Split(config.evaluation.split)))
    if not has_scenarios:
        raise ConfigError(f"evaluation.split must be heldout with simulator.heldout_profiles, got {config.evaluation.split!r}")


HEAVY_BONUS = 0.02
"""Entropy bonus from which on it was seen to outweigh a reward that comes once a dialogue; .01 did not."""


def cautions(config: ExperimentConfig) -> list[str]:
    """All that there are for a run, a sentence each."""
    return [*large_step(config), *heavy_bonus(config), *left_behind(config)]


def large_step(config: ExperimentConfig) -> list[str]:
    """A caution where a language model would be trained by the embedded policy's step size."""
    if config.policy.is_embedded or config.policy.lora.rank or config.learner.lr != LearnerConfig().lr:
        return []
    from policy.rollout.chat import RECIPE

    if (Path(config.policy.model).expanduser() / RECIPE).is_file():
        return []
    return [
        f"WARNING learner.lr={config.learner.lr:g} was found for the embedded policy and is far too large for most language models: "
        f"set it for {config.policy.model} (1e-6 for billions of parameters), or begin with the experiment own_model"
    ]


def heavy_bonus(config: ExperimentConfig) -> list[str]:
    """A caution where the main job's entropy bonus is left beside a reward that comes once a dialogue."""
    bonus = config.algorithm.entropy_coef
    if not config.policy.is_embedded or getattr(config.algorithm, "turn_credit", 0.0) > 0.0 or bonus < HEAVY_BONUS:
        return []
    return [
        f"WARNING algorithm.entropy_coef={bonus:g} was found with credit by turn. Without it (algorithm.turn_credit=0) the bonus "
        "outweighed the reward in recorded runs: entropy .5 to 4 nats, little learned. With algorithm.entropy_coef=0 they did learn"
    ]


def left_behind(config: ExperimentConfig) -> list[str]:
    """A caution where another algorithm or user was chosen than the file has, if settings of the first stand otherwise in the other.

    Not for teachers, whose settings share names by chance, nor for arms of a sweep, whose file says what they take over.
    """
    file = own_file(config)
    return lost_settings(file, config, called=config.experiment) if file is not None else []


def lost_settings(before: ExperimentConfig, now: ExperimentConfig, *, called: str) -> list[str]:
    """What is lost of an algorithm's or user's settings by another kind that has them, too.

    Args:
        called: where the settings before stand.
    """
    found = []
    for group in ("algorithm", "simulator"):
        was, has = (dict(leaves(asdict(getattr(config, group)))) for config in (before, now))
        # What was given along with the new kind stands otherwise than by its default, and is not lost.
        usual = defaults_of(group, getattr(now, group).kind)
        lost = {
            name: value for name, value in was.items() if name in has and has[name] != value and has[name] == usual.get(f"{group}.{name}")
        }
        lost.pop("kind", None)
        if was["kind"] != has["kind"] and lost:
            settings = " ".join(f"{group}.{name}={value}" for name, value in lost.items())
            found.append(f"NOTE {group}.kind={has['kind']} begins with its own defaults; {called} has for {was['kind']}: {settings}")
    return found
