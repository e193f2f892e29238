"""Settings of the policy: its engine, rollouts, learner, adapters, loss and algorithm, the cluster and the prior. Imports no torch."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from pydantic.dataclasses import dataclass

from simulator.scripted import MAX_TURNS
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS, kw_only=True)
class ThinkingConfig:
    """Whether the agent thinks before it speaks (`policy.*`)."""

    thinking: bool = False
    """Whether each reply is a thought between <think> and </think>, which the user never hears, and then words. `rollout.max_new_tokens`
    counts both."""
    keep_thoughts: bool | None = None
    """Whether the agent goes on seeing its earlier thoughts. Unset, as the chat template does it; false makes each reply a sequence of
    its own, with the dialogue's words alone before it."""
    format_weight: float = 1.0
    """In [0, 1]; what a dialogue loses of its reward when none of its replies is a thought and then words, and of it the share when some
    are not. 0 judges the words alone."""

    def __post_init__(self) -> None:
        if self.keep_thoughts is not None and not self.thinking:
            raise ValueError(f"policy.keep_thoughts must be unset where policy.thinking is false, got {self.keep_thoughts!r}")
        if not 0.0 <= self.format_weight <= 1.0:
            raise ValueError(f"policy.format_weight must be in [0, 1], got {self.format_weight!r}")


class EngineKind(StrEnum):
    """Which engine generates."""

    AUTO = "auto"
    """vLLM where it can be imported, else transformers."""
    VLLM = "vllm"
    HF = "hf"


class EngineDtype(StrEnum):
    """What an engine computes in."""

    FLOAT32 = "float32"
    """Agrees with a float32 trainer to about 1e-6 nats."""
    BFLOAT16 = "bfloat16"
    """Agrees to about 4e-3 nats."""


BYTES = {EngineDtype.FLOAT32: 4, EngineDtype.BFLOAT16: 2}
"""Of one number."""


class WeightTransport(StrEnum):
    """How new weights get from the trainer into the engines."""

    AUTO = "auto"
    """rpc."""
    RPC = "rpc"
    """The bytes, through Ray's object store."""
    FILE = "file"
    """A safetensors file in a folder that every engine sees."""
    NCCL = "nccl"
    """From GPU to GPU, by vLLM's own transfer; for vLLM engines on GPUs of their own. Not run on a GPU yet."""


@dataclass(config=SETTINGS, kw_only=True)
class EngineConfig(ThinkingConfig):
    """How an engine is built, and in which mode its policy speaks (`policy.*`)."""

    engine: EngineKind = EngineKind.AUTO
    """auto, vllm or hf (transformers: several times slower, needs no vLLM)."""
    dtype: EngineDtype = EngineDtype.FLOAT32
    """float32 or bfloat16."""
    kv_cache_mb: int = 96
    """At least 1; MiB for the keys and values of running and remembered dialogues, on a CPU or with gpu_memory_share=0."""
    gpu_memory_share: float = 0.5
    """In [0, 1]; the part of a GPU that an engine fills. With 0 it takes its weights, its activations and kv_cache_mb, whatever others hold
    there, so that several runs can share a card."""
    block_size: int = 32
    """Tokens of a shared prefix are remembered in blocks of this size; vLLM's 128 would share nothing in short dialogues."""
    max_running: int = 128
    """At least 1; replies sampled at the same time."""
    start_timeout_s: float = 300.0
    """Above 0; seconds an engine may take to start and to answer a first prompt."""
    load_timeout_s: float = 120.0
    """Above 0; seconds new weights may take to arrive."""
    weight_transport: WeightTransport = WeightTransport.AUTO
    """auto, rpc, file or nccl; by which way they do."""
    weight_folder: str = ""
    """Where their files lie on the way, with weight_transport=file: a folder that the machines of all engines see under this path. Empty
    takes a folder of the run's own, which only this machine sees."""
    engine_process: bool = False
    """Run vLLM's engine in a process of its own beside its users and their dialogues, which otherwise share one interpreter with it: more
    tokens a second where a core is free for them, for some more memory."""
    tensor_parallel: int = 1
    """At least 1; GPUs that share the matrices of one vLLM engine (its tensor parallel size). Needs as many `cluster.gpus_per_engine`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kv_cache_mb", "block_size", "max_running", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("start_timeout_s", "load_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"policy.{name} must be above 0, got {getattr(self, name)!r}")
        if not 0 <= self.gpu_memory_share <= 1:
            raise ValueError(f"policy.gpu_memory_share must be in [0, 1], got {self.gpu_memory_share!r}")
        if self.weight_folder and self.weight_transport is not WeightTransport.FILE:
            raise ValueError(
                f"policy.weight_folder must be empty with policy.weight_transport={self.weight_transport}, got {self.weight_folder!r}; "
                "files are for policy.weight_transport=file"
            )
        if self.engine_process:
            self._check_process()
        if self.engine is EngineKind.HF and self.weight_transport is WeightTransport.NCCL:
            raise ValueError(
                "policy.weight_transport must be auto, rpc or file with policy.engine=hf, got 'nccl': it is vLLM's; take policy.engine=vllm"
            )
        if self.engine is EngineKind.HF and self.tensor_parallel > 1:
            raise ValueError(
                f"policy.tensor_parallel must be 1 with policy.engine=hf, got {self.tensor_parallel!r}: that is vLLM's; "
                "take policy.engine=vllm"
            )

    def _check_process(self) -> None:
        if self.engine is EngineKind.HF:
            raise ValueError("policy.engine_process must be false with policy.engine=hf, got true: it is vLLM's; take policy.engine=vllm")
        if self.tensor_parallel > 1:
            raise ValueError(
                f"policy.engine_process must be false with policy.tensor_parallel={self.tensor_parallel}, got true: "
                "the parts of such an engine are processes already; leave it out"
            )

    @property
    def may_be_vllm(self) -> bool:
        """Whether vLLM will sample, as far as can be told without importing it."""
        return self.engine is not EngineKind.HF and importlib.util.find_spec("vllm") is not None

    @property
    def without_vllm(self) -> str:
        """What must be otherwise where vLLM cannot be had, with a gap for why not; empty where another engine may take its place."""
        if self.engine is EngineKind.VLLM:
            return "policy.engine must be auto or hf where vLLM {}, got 'vllm'"
        if self.tensor_parallel > 1:
            return f"policy.tensor_parallel must be 1 where vLLM {{}}, got {self.tensor_parallel}"
        if self.engine_process:
            return "policy.engine_process must be false where vLLM {}, got true"
        if self.weight_transport is WeightTransport.NCCL:
            return "policy.weight_transport must be auto, rpc or file where vLLM {}, got 'nccl'"
        return ""


@dataclass(config=SETTINGS, kw_only=True)
class RolloutConfig:
    """How dialogues are rolled out (`rollout.*`)."""

    num_engines: int = 2
    """At least 1; each is a process of its own (about 0.8 GB for the embedded policy)."""
    threads_per_engine: int = 1
    """At least 1; CPU threads of an engine. Small models gain more from another engine than from another thread."""
    max_turns: int = 8
    """At least 1; replies of the agent after which a dialogue ends."""
    max_new_tokens: int = 40
    """At least 1; tokens a reply may have. The user answers a reply that was cut off, too."""
    max_context: int = 512
    """Tokens a dialogue may have; it ends as TRUNCATED once a whole further reply does not fit."""
    temperature: float = 1.0
    """At least 0.01 (vLLM samples no colder); the only thing that shapes sampling in training."""
    retries: int = 1
    """At least 0; further attempts at a dialogue that failed, before it counts as an ERROR."""
    retry_backoff_s: float = 0.5
    """At least 0; seconds before the first further attempt, doubled before each next one."""
    max_staleness: int = 0
    """At least 0; updates that may lie between the weights that sampled a token and those it is trained into. 0 rolls out and updates in
    turn; 1 rolls out the next step meanwhile; more keep so many steps under way, for dialogues that take longer than an update."""
    dialogue_timeout_s: float = 300.0
    """Above 0; seconds after which an attempt at a dialogue counts as failed. They stand still while it waits for a user that is away, or
    in line for a place at the server of a model as user."""
    outage_s: float = 120.0
    """At least 0; seconds for which dialogues wait, where they stand, for a simulated user that answers nobody, before that counts."""
    max_error_share: float = 0.05
    """In [0, 1]; share of ERROR dialogues among the last 200 above which a run stops."""
    hang_timeout_s: float = 120.0
    """Above 0; seconds in which a worker that has something to do must do some of it (a token, an answer of its process), before it counts
    as hung, is started anew and its dialogues with it."""
    max_restarts: int = 3
    """At least 0; times one worker may be started anew within `restart_window_s`; one more and the run stops, to be resumed."""
    restart_window_s: float = 3600.0
    """Above 0; seconds after which a restart is forgotten."""
    reward_terms: dict[str, float] = field(default_factory=dict)
    """Shares of the reward by registered term (`simulator.reward.REWARD_TERMS`), each in [0, 1] and together at most 1; the rest is paid
    for how the user feels in the end."""
    binary_reward_at: float = 0.0
    """In [0, 100]; above 0 a dialogue is paid 1 if its user's final emotion is at least this, else nothing: sparse feedback, like a thumb
    up or down. At 0 the final emotion itself is paid."""
    deterministic: bool = False
    """Sample every turn of all dialogues of an engine together and in a fixed order, so that two runs sample identical tokens. Slower."""

    def __post_init__(self) -> None:
        for name in ("num_engines", "threads_per_engine", "max_turns", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.{name} must be at least 1, got {getattr(self, name)!r}")
        if self.max_context < self.max_new_tokens + 2:
            raise ValueError(f"rollout.max_context must leave room for a prompt and rollout.max_new_tokens, got {self.max_context!r}")
        if self.temperature < 0.01:
            raise ValueError(f"rollout.temperature must be at least 0.01, got {self.temperature!r}; training needs replies that differ")
        if self.retries < 0 or self.retry_backoff_s < 0:
            raise ValueError(
                f"rollout.retries and rollout.retry_backoff_s must not be negative, got {self.retries!r}, {self.retry_backoff_s!r}"
            )
        for name in ("dialogue_timeout_s", "hang_timeout_s", "restart_window_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"rollout.{name} must be above 0, got {getattr(self, name)!r}")
        for name in ("max_staleness", "max_restarts", "outage_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"rollout.{name} must not be negative, got {getattr(self, name)!r}")
        for name, share in self.reward_terms.items():
            if not 0 <= share <= 1:
                raise ValueError(f"rollout.reward_terms.{name} must be in [0, 1], got {share!r}")
        if math.fsum(self.reward_terms.values()) > 1:
            raise ValueError(f"rollout.reward_terms must sum to at most 1, got {self.reward_terms!r}")
        if not 0 <= self.binary_reward_at <= 100:
            raise ValueError(f"rollout.binary_reward_at must be in [0, 100], got {self.binary_reward_at!r}")
        if not 0 <= self.max_error_share <= 1:
            raise ValueError(f"rollout.max_error_share must be in [0, 1], got {self.max_error_share!r}")


@dataclass(config=SETTINGS)
class LearnerConfig:
    """Settings of the optimiser step, `learner.*`."""

    lr: float = 5e-4
    """> 0; AdamW's step size after the warm-up. 5e-4 suits the embedded policy of two million parameters, 1e-6 one of billions."""
    beta1: float = 0.9
    """In [0, 1); how long the gradient is remembered."""
    beta2: float = 0.95
    """In [0, 1); how long its size is remembered. A run is 50-100 steps: a mean over the usual 1000 would never forget the first."""
    weight_decay: float = 0.0
    """>= 0; decoupled, on all parameters. The update is small enough without it, and it would pull at the prior."""
    warmup_steps: int = 0
    """>= 0; optimiser steps over which the step size grows linearly to `lr`."""
    lr_end: float = 1.0
    """In [0, 1]; share of `lr` that is left when the budget is spent. The step size falls in a straight line; 1 keeps it.
    A run that is resumed with a larger budget goes on at a larger one than it ended with."""
    max_grad_norm: float = 1.0
    """> 0; gradients are scaled down to this L2 norm."""
    num_minibatches: int = 1
    """>= 1; optimiser steps per pass over a batch. With 1 and one epoch every step is strictly on policy, if logprobs are
    recomputed or the present weights sampled the batch."""
    epochs: int = 1
    """>= 1; passes over a batch."""
    recompute_logprobs: bool | None = None
    """Whether the logprobs of the old policy are the trainer's own, at the price of a forward pass, or the engine's as they were sampled.
    Unset, an experiment takes the engine's where both sides compute in float32 and so agree to 1e-6 nats; a learner alone recomputes."""
    micro_batch_rows: int = 8
    """>= 1; rollouts per forward pass. Few rows of like length waste little on padding (on a CPU 8 took 2/3 of the time of 64)."""
    micro_batch_tokens: int = 16384
    """>= 1; padded tokens per forward pass, which bounds memory."""
    logit_chunk_mb: int = 64
    """>= 1; MiB of float32 logits held in one piece. More tokens than fit (large vocabularies) are scored piece by piece, which bounds
    memory at the price of computing their logits twice; what fits into one piece is not touched by it."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass, of a critic too, and compute the rest anew: a third more arithmetic for far less
    memory."""
    autocast: bool = False
    """Compute in bf16. A quarter cheaper, but the trainer then differs from a float32 engine by about 1e-3 instead of 1e-6 nats."""
    device: str = "cpu"
    """Where the model is trained (cpu, cuda, cuda:1). Engines of a local Ray take the first GPUs, so the last is the learner's."""

    def __post_init__(self) -> None:
        rules = {
            "be > 0 and finite": (lambda value: 0.0 < value < math.inf, ("lr", "max_grad_norm")),
            "be in [0, 1)": (lambda value: 0.0 <= value < 1.0, ("beta1", "beta2")),
            "be in [0, 1]": (lambda value: 0.0 <= value <= 1.0, ("lr_end",)),
            "be >= 0": (lambda value: value >= 0, ("weight_decay", "warmup_steps")),
            "be >= 1": (
                lambda value: value >= 1,
                ("num_minibatches", "epochs", "micro_batch_rows", "micro_batch_tokens", "logit_chunk_mb"),
            ),
        }
        for rule, (holds, names) in rules.items():
            for name in names:
                if not holds(getattr(self, name)):
                    raise ValueError(f"learner.{name} must {rule}, got {getattr(self, name)!r}")


@dataclass(config=SETTINGS)
class LoraConfig:
    """Low-rank adapters, `policy.lora.*`: the model's weights stay, and a product of two thin matrices is trained beside each.

    Source: arXiv 2106.09685. Needs the package `peft`.
    """

    rank: int = 0
    """>= 0; inner width of each adapter. 0 trains all weights and needs no `peft`."""
    alpha: float = 32.0
    """> 0; what an adapter says is scaled by alpha / rank."""
    targets: str = "all-linear"
    """Layers that get an adapter: `all-linear` (all but the output head), or the ends of their names, as in `q_proj,v_proj`. No
    embeddings, no output head that is the embedding, and no experts joined in one parameter: of a model with such experts, `all-linear`
    is refused."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"policy.lora.rank must be >= 0, got {self.rank!r}; 0 trains all weights")
        if not self.alpha > 0.0:
            raise ValueError(f"policy.lora.alpha must be > 0, got {self.alpha!r}")
        if not all(name.strip() for name in self.targets.split(",")):
            raise ValueError(f"policy.lora.targets must be all-linear or names of layers, as in q_proj,v_proj, got {self.targets!r}")


def check_lora(config: LoraConfig) -> None:
    """Refuses adapters where their package is missing.

    Raises:
        ValueError: `peft` is not installed.
    """
    if config.rank and importlib.util.find_spec("peft") is None:
        raise ValueError(
            f"policy.lora.rank must be 0 where peft is not installed, got {config.rank!r}; make setup-lora, or train all weights"
        )


class KlPlace(StrEnum):
    """Where the KL to the reference counts."""

    LOSS = "loss"
    REWARD = "reward"


class KlEstimator(StrEnum):
    """The value of a token's KL in the loss; the gradient is k2's either way."""

    K2 = "k2"
    """Half the squared difference of the logprobs: biased, of little variance."""
    K3 = "k3"
    """Unbiased and never negative."""


class Correction(StrEnum):
    """Whether tokens are weighed for the difference between engine and trainer."""

    NONE = "none"
    TOKEN = "token"
    """Each by its own truncated ratio: biased for what follows it in the dialogue, but of bounded variance however long that is."""


class Aggregation(StrEnum):
    """What all tokens of an optimiser step are averaged to."""

    TOKEN_MEAN = "token_mean"
    """The mean over all trained tokens: each counts alike, a long dialogue for more than a short one (DAPO, arXiv 2503.14476)."""
    DIALOGUE_MEAN = "dialogue_mean"
    """The mean over dialogues of the mean over each one's tokens: each dialogue counts alike (GRPO, arXiv 2402.03300)."""
    CONSTANT = "constant"
    """The sum over dialogues of each one's sum, over their number and a constant length (Dr.GRPO, arXiv 2503.20783)."""


class Surrogate(StrEnum):
    """Which loss carries the policy gradient; `policy.algorithms.loss` has their formulas."""

    PPO = "ppo"
    GSPO = "gspo"
    """One ratio a dialogue."""
    CISPO = "cispo"
    """A bounded ratio as a weight, and every token keeps its gradient."""
    CLIP_COV = "clip_cov"
    """PPO without a few tokens that drive entropy down."""
    KL_COV = "kl_cov"
    """No clip, but a few tokens that drive entropy down are held to where they were."""


@dataclass(config=SETTINGS)
class PolicyLossConfig:
    """Settings of the loss, `algorithm.*`; each algorithm adds what concerns its advantages."""

    kind: str = ""
    """Which algorithm."""
    policy_loss: Surrogate = Surrogate.PPO
    """Which surrogate."""
    clip_low: float = 0.2
    """In (0, 1); the ratio counts down to 1 - clip_low."""
    clip_high: float = 0.28
    """> 0; the ratio counts up to 1 + clip_high. More than clip_low keeps rare tokens alive (DAPO's value)."""
    sequence_clip_low: float = 3e-4
    """In (0, 1); gspo's bound in place of clip_low. A dialogue's ratio is a geometric mean, which moves far less than a token's."""
    sequence_clip_high: float = 4e-4
    """> 0; gspo's bound in place of clip_high."""
    dual_clip: float = 0.0
    """0, or > 1: the loss of a token of negative advantage counts up to this many times its advantage (verl's value is 3)."""
    cov_share: float = 2e-4
    """In (0, 1]; share of the tokens of an optimiser step that clip_cov and kl_cov pick, at least one."""
    cov_low: float = 1.0
    """clip_cov picks among covariances above this."""
    cov_high: float = 5.0
    """> cov_low; and below this."""
    cov_seed: int = 0
    """>= 0; of what clip_cov picks."""
    kl_cov_coef: float = 1.0
    """> 0; weight of the pull that kl_cov puts on the tokens it picks."""
    loss_aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """What the losses of an optimiser step's tokens are averaged to."""
    loss_length: int = 0
    """Tokens that a dialogue stands for when loss_aggregation is constant, > 0 then: best what a dialogue may at most have sampled."""
    importance_correction: Correction = Correction.NONE
    """Whether tokens are weighed for the engine's difference from the trainer."""
    importance_cap: float = 2.0
    """>= 1; such a weight counts up to this."""
    kl_coef: float = 0.0
    """>= 0; weight of the KL to the reference policy. RLVER trains without; above 0 a reference model is kept."""
    kl_in: KlPlace = KlPlace.LOSS
    """Whether the KL is in the loss or taken off the reward."""
    kl_estimator: KlEstimator = KlEstimator.K3
    """Its value in the loss."""
    kl_target: float = 0.0
    """>= 0, nats per token; above 0 the coefficient starts at kl_coef and follows this target."""
    kl_horizon: float = 10_000.0
    """> 0; dialogues within which the coefficient can change by about a fifth, and one update at most by that."""
    entropy_coef: float = 0.0
    """>= 0; weight of an entropy bonus per token."""
    entropy_target: float = 0.0
    """>= 0, nats per token; above 0 the coefficient starts at entropy_coef, follows this target and counts only below it."""
    entropy_coef_step: float = 0.005
    """> 0; by which an adaptive coefficient changes in an update (TRL's and Skywork-OR1's value)."""
    entropy_coef_max: float = 1.0
    """> 0; an adaptive coefficient grows up to this."""

    def __post_init__(self) -> None:
        rules = {
            "be in (0, 1)": (lambda value: 0.0 < value < 1.0, ("clip_low", "sequence_clip_low")),
            "be in (0, 1]": (lambda value: 0.0 < value <= 1.0, ("cov_share",)),
            "be > 0 and finite": (
                lambda value: 0.0 < value < math.inf,
                ("clip_high", "sequence_clip_high", "kl_cov_coef", "kl_horizon", "entropy_coef_step", "entropy_coef_max"),
            ),
            "be >= 0 and finite": (
                lambda value: 0.0 <= value < math.inf,
                ("kl_coef", "kl_target", "entropy_coef", "entropy_target", "loss_length", "cov_seed"),
            ),
            "be >= 1": (lambda value: value >= 1.0, ("importance_cap",)),  # infinite: no cap
            "be 0 for none, or > 1": (lambda value: value == 0.0 or 1.0 < value < math.inf, ("dual_clip",)),
        }
        for rule, (holds, names) in rules.items():
            for name in names:
                if not holds(getattr(self, name)):
                    raise ValueError(f"algorithm.{name} must {rule}, got {getattr(self, name)!r}")
        self._refuse_contradictions()
        self._refuse_unread()

    def _refuse_unread(self) -> None:
        """A setting that nothing reads would be taken for one that was tried."""
        loss, usual = self.policy_loss, {item.name: item.default for item in fields(PolicyLossConfig)}
        read_with = {
            "algorithm.policy_loss=ppo or clip_cov": (loss in (Surrogate.PPO, Surrogate.CLIP_COV), ("clip_low",)),
            "algorithm.policy_loss=ppo, cispo or clip_cov": (
                loss in (Surrogate.PPO, Surrogate.CISPO, Surrogate.CLIP_COV),
                ("clip_high",),
            ),
            "algorithm.policy_loss=gspo": (loss is Surrogate.GSPO, ("sequence_clip_low", "sequence_clip_high")),
            "algorithm.policy_loss=clip_cov or kl_cov": (loss in (Surrogate.CLIP_COV, Surrogate.KL_COV), ("cov_share",)),
            "algorithm.policy_loss=clip_cov": (loss is Surrogate.CLIP_COV, ("cov_low", "cov_high", "cov_seed")),
            "algorithm.policy_loss=kl_cov": (loss is Surrogate.KL_COV, ("kl_cov_coef",)),
            "algorithm.importance_correction=token": (self.corrects, ("importance_cap",)),
            "algorithm.kl_coef above 0": (self.kl_coef > 0.0, ("kl_estimator",)),
            "algorithm.kl_target above 0": (self.kl_target > 0.0, ("kl_horizon",)),
            "algorithm.entropy_target above 0": (self.entropy_target > 0.0, ("entropy_coef_step", "entropy_coef_max")),
        }
        for condition, (is_read, names) in read_with.items():
            for name in names:
                if not is_read and (value := getattr(self, name)) != usual[name]:
                    instead = f"; gspo reads algorithm.sequence_{name}" if loss is Surrogate.GSPO and name.startswith("clip_") else ""
                    raise ValueError(f"algorithm.{name} is read with {condition} alone, got {value!r} without it{instead}")

    def _refuse_contradictions(self) -> None:
        loss = self.policy_loss.value
        if self.dual_clip and self.policy_loss is not Surrogate.PPO:
            raise ValueError(
                f"algorithm.dual_clip must be 0 with algorithm.policy_loss={loss}, got {self.dual_clip!r}; only ppo has a dual clip"
            )
        if self.importance_correction is Correction.TOKEN and self.policy_loss is Surrogate.GSPO:
            raise ValueError(
                "algorithm.importance_correction must be none with algorithm.policy_loss=gspo, got token: "
                "ratios of whole dialogues are not corrected token by token; set one of the two otherwise"
            )
        if not self.cov_low < self.cov_high:
            raise ValueError(f"algorithm.cov_low must be < algorithm.cov_high, got {self.cov_low!r} and {self.cov_high!r}")
        if self.loss_aggregation is Aggregation.CONSTANT and not self.loss_length:
            raise ValueError(
                "algorithm.loss_length must be > 0 with algorithm.loss_aggregation=constant, got 0; "
                "rollout.max_turns x rollout.max_new_tokens is what a dialogue may at most have sampled"
            )
        if self.loss_length and self.loss_aggregation is not Aggregation.CONSTANT:
            raise ValueError(
                f"algorithm.loss_length must be 0 with algorithm.loss_aggregation={self.loss_aggregation.value}, got {self.loss_length!r}; "
                "set algorithm.loss_aggregation=constant to divide by it"
            )
        if self.kl_target and not self.kl_coef:
            raise ValueError(
                f"algorithm.kl_target must be 0 with algorithm.kl_coef=0.0, which keeps no reference, got {self.kl_target!r}; "
                "set algorithm.kl_coef to the coefficient to start from"
            )
        if self.kl_in is KlPlace.REWARD and not self.kl_coef:
            raise ValueError(
                "algorithm.kl_in must be loss with algorithm.kl_coef=0.0, which keeps no reference, got reward; "
                "set algorithm.kl_coef above 0"
            )
        if self.kl_in is KlPlace.REWARD and self.kl_estimator is KlEstimator.K2:
            raise ValueError(
                "algorithm.kl_estimator must be k3 with algorithm.kl_in=reward, got k2: a reward takes the plain log-ratio; "
                "set algorithm.kl_in=loss to choose one"
            )
        if self.entropy_target and self.entropy_coef > self.entropy_coef_max:
            raise ValueError(
                f"algorithm.entropy_coef must be <= algorithm.entropy_coef_max={self.entropy_coef_max!r} with an entropy_target, "
                f"got {self.entropy_coef!r}"
            )

    @property
    def corrects(self) -> bool:
        """Whether tokens are weighed for the engine's difference from the trainer, which takes logprobs of the trainer's own."""
        return self.importance_correction is not Correction.NONE

    def require(self, learner: LearnerConfig) -> None:
        """Refuses an optimiser step with which the loss cannot do its work.

        Raises:
            ValueError: a correction without logprobs of the trainer's own, or kl_cov on strictly on-policy steps.
        """
        if self.corrects and learner.recompute_logprobs is False:
            raise ValueError(
                "algorithm.importance_correction must be none with learner.recompute_logprobs=false, "
                f"got {self.importance_correction.value}: "
                "the ratio to the engine's logprobs would count twice; set learner.recompute_logprobs=true"
            )
        if self.policy_loss is Surrogate.KL_COV and learner.epochs * learner.num_minibatches == 1:
            raise ValueError(
                "algorithm.policy_loss must not be kl_cov with learner.num_minibatches=1 and learner.epochs=1, got kl_cov: "
                "it acts on tokens that an earlier step of the update moved; set learner.num_minibatches above 1"
            )

    def require_whole_dialogues(self) -> None:
        """Refuses a loss that looks at rows as dialogues, for dialogues that are cut into a row for each reply.

        Raises:
            ValueError: it is such a loss.
        """
        if self.policy_loss is Surrogate.GSPO:
            raise ValueError(
                "algorithm.policy_loss must not be gspo where each reply forgets the thoughts before it (policy.keep_thoughts), got gspo: "
                "a dialogue without its earlier thoughts is no longer one sequence; keep them, or take ppo"
            )
        if self.loss_aggregation is not Aggregation.TOKEN_MEAN:
            raise ValueError(
                "algorithm.loss_aggregation must be token_mean where each reply forgets the thoughts before it (policy.keep_thoughts), "
                f"got {self.loss_aggregation.value}: "
                "a dialogue without its earlier thoughts is no longer one sequence; keep them, or take token_mean"
            )


@dataclass(config=SETTINGS, kw_only=True)
class ClusterConfig:
    """Where the workers run (`cluster.*`)."""

    address: str = ""
    """Of an existing Ray cluster (host:port, or auto); empty starts a local one that only this machine can reach."""
    gpus_per_engine: float = 0.0
    """At least 0; what each engine reserves."""

    object_store_mb: int = 128
    """At least 80; MiB in which a local Ray keeps weights and results on their way. What does not fit waits on disk."""

    def __post_init__(self) -> None:
        if self.object_store_mb < 80:
            raise ValueError(f"cluster.object_store_mb must be at least 80, which Ray itself asks for, got {self.object_store_mb!r}")
        if self.gpus_per_engine < 0:
            raise ValueError(f"cluster.gpus_per_engine must be at least 0, got {self.gpus_per_engine!r}")


def require_plain_python() -> None:
    """Raises where Ray could not start processes with the Python of this checkout: it writes command lines and takes them apart again.

    Raises:
        ValueError: its path holds a quotation mark, a backslash, a colon or a letter that is not ASCII.
    """
    for path in (sys.executable, str(Path(__file__).parents[1])):
        if not path.isascii() or set(path) & set("'\"\\:$`\n"):
            raise ValueError(
                f"the checkout must lie where Ray can start workers, without quotes, colons and letters beyond ASCII, got {path!r}"
            )


@dataclass(config=SETTINGS)
class DemonstrationConfig:
    """What the demonstrations show; keys `policy.prior.demonstrations.*`."""

    fit_overt_prob: float = 0.2
    """Chance of answering an overt hint with the strategy it asks for, [0, 1]."""
    fit_veiled_prob: float = 0.2
    """Chance of answering a veiled hint with the strategy it asks for, [0, 1]."""
    ground_prob: float = 0.32
    """Chance of taking up something the user told, [0, 1]."""
    earlier_prob: float = 0.9
    """Given that, from the third reply on, chance of taking up what was told two turns before the latest, [0, 1]."""
    explore_prob: float = 0.33
    """Chance of asking or restating in the first two replies, whatever was hinted, [0, 1]."""
    repair_prob: float = 0.2
    """Chance of owning a turn that went wrong, [0, 1]."""
    collage_prob: float = 0.0
    """Share of the demonstrations whose facts come from many events, [0, 1]: there, only reading tells what to take up, not remembering."""
    open_prob: float = 0.0
    """Share of the demonstrations whose user hides nothing and names the wish in the opening, [0, 1]; else reserve follows difficulty."""
    veiled_prob: float = 0.0
    """Share of the demonstrations whose user is so reserved that every hint is veiled, [0, 1]; with `open_prob` at most 1."""
    name_prob: float = 0.0
    """Chance of choosing a wording that names the other person, where there is one, [0, 1]; else all wordings are alike."""
    num_replies: int = MAX_TURNS
    """After how many replies a demonstration stops, >= 1."""
    narrow: bool = False
    """Only the first wording of each move: demonstrations without variety, to measure what variety buys."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            if name.endswith("_prob") and not 0.0 <= value <= 1.0:
                raise ValueError(f"policy.prior.demonstrations.{name} must be in [0, 1], got {value!r}")
        if self.open_prob + self.veiled_prob > 1.0:
            raise ValueError(f"policy.prior.demonstrations.veiled_prob must be at most 1 - open_prob, got {self.veiled_prob!r}")

    def answering_hints(self) -> DemonstrationConfig:
        """The same demonstrator in the first three replies of a dialogue, doing nothing but what each hint asks for."""
        return replace(
            self,
            fit_overt_prob=1.0,
            fit_veiled_prob=1.0,
            ground_prob=0.0,
            explore_prob=0.0,
            open_prob=0.5,
            veiled_prob=0.5,
            collage_prob=1.0,
            num_replies=3,
        )

    def taking_up(self) -> DemonstrationConfig:
        """The same demonstrator in first replies that all take up what was just told."""
        return replace(self, ground_prob=1.0, collage_prob=1.0, num_replies=1)

    def skilled(self, prob: float) -> DemonstrationConfig:
        """The same demonstrator, showing each skill with this chance, mostly about collages."""
        return replace(
            self,
            fit_overt_prob=prob,
            fit_veiled_prob=prob,
            ground_prob=prob,
            earlier_prob=0.6,
            explore_prob=0.5,
            repair_prob=prob,
            name_prob=0.4,
            veiled_prob=0.4,
            collage_prob=0.8,
        )


EMBEDDED = "embedded"
"""What `policy.model` says of the small policy that this recipe builds, which speaks the built-in world's language alone."""


@dataclass(config=SETTINGS)
class PriorConfig:
    """The recipe of the embedded policy; keys `policy.prior.*`."""

    seed: int = 0
    """Of the demonstrations, the initial weights and the order of batches."""
    num_tokens: int = 3_400_000
    """Tokens to train on, > 0."""
    vocab_size: int = 6144
    """Of the byte-level BPE tokenizer at most, >= 300; enough for every word that a user tells to be one token: of one in pieces a small
    model takes up the last piece alone."""
    hidden_size: int = 128
    """Width, a multiple of `num_heads`."""
    num_layers: int = 3
    """Transformer blocks, >= 1."""
    num_heads: int = 2
    """Attention heads, >= 1."""
    intermediate_size: int = 384
    """Width of the feed-forward layers, >= 1."""
    init_std: float = 0.06
    """Of the initial weights; .02 learns to copy far later at this size."""
    copy_init: float = 1.5
    """>= 0; how strongly every attention layer repeats what it looks at before anything was learnt: value and output weights start as this
    multiple of the identity, up to noise. Without it a model of this size finds copying late or not at all (docs/decisions.md)."""
    batch_size: int = 8
    """Dialogues an update, >= 1."""
    lr: float = 2e-3
    """Peak learning rate of AdamW, > 0."""
    copy_weight: float = 3.0
    """Loss weight of tokens that the agent takes from the user's words, > 0."""
    choice_weight: float = 2.5
    """Loss weight of a reply's first tokens, where its strategy is chosen, > 0."""
    hints_share: float = 0.32
    """Share of the tokens, from the start, on short exchanges in which each reply does what the latest hint asks for, [0, 1]."""
    taking_up_share: float = 0.39
    """Share of the tokens, by then, on single exchanges that take up what was just told, [0, 1]: short ones teach copying fast."""
    knowhow_share: float = 0.74
    """Share of the tokens, by then, whose demonstrator shows its skills at `knowhow_prob`, [0, 1]; the rest sets the habits."""
    knowhow_prob: float = 0.75
    """Chance of each skill meanwhile, [0, 1]: what is shown rarely is never learnt at this size, what was learnt can become rare."""
    user_share: float = 0.0
    """Share of the user's tokens that are learnt, drawn anew for each dialogue, [0, 1]; the agent's all are. Learning the user's part
    costs a small model part of what it needs to read it."""
    temperature: float = 0.85
    """What the taught model is sampled at, folded into its head, > 0; below 1 it leaves out most of the slips a small model makes."""
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    thinking: bool | None = None
    """Whether each demonstrated reply has a thought before it. Unset, an experiment does as `policy.thinking` says; else there is none."""

    def __post_init__(self) -> None:
        for name in (
            "num_tokens",
            "num_layers",
            "num_heads",
            "intermediate_size",
            "batch_size",
            "lr",
            "copy_weight",
            "choice_weight",
            "init_std",
            "temperature",
        ):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"policy.prior.{name} must be > 0, got {value!r}")
        if self.vocab_size < 300:
            raise ValueError(f"policy.prior.vocab_size must be >= 300, got {self.vocab_size!r}; 256 of them are the bytes")
        if self.hidden_size <= 0 or self.hidden_size % self.num_heads:
            raise ValueError(f"policy.prior.hidden_size must be a multiple of num_heads ({self.num_heads}), got {self.hidden_size!r}")
        if not self.copy_init >= 0:
            raise ValueError(f"policy.prior.copy_init must be >= 0, got {self.copy_init!r}")
        for name in ("hints_share", "taking_up_share", "knowhow_share", "knowhow_prob", "user_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"policy.prior.{name} must be in [0, 1], got {getattr(self, name)!r}")
        for before, name in (("hints_share", "taking_up_share"), ("taking_up_share", "knowhow_share")):
            if getattr(self, name) < getattr(self, before):
                least = f"{before} ({getattr(self, before):g})"
                raise ValueError(f"policy.prior.{name} must be at least {least}, which ends before it, got {getattr(self, name)!r}")
        self._check_demonstrations()

    def _check_demonstrations(self) -> None:
        # Here and not where they are defined: that module's text is part of what a prior is kept under.
        shown, keys = self.demonstrations, "policy.prior.demonstrations"
        if shown.num_replies < 1:
            raise ValueError(f"{keys}.num_replies must be at least 1, got {shown.num_replies!r}")
        most_open = 1.0 - DemonstrationConfig().skilled(self.knowhow_prob).veiled_prob
        if shown.open_prob > most_open:
            raise ValueError(
                f"{keys}.open_prob must be at most {most_open:g}, got {shown.open_prob!r}: other users of the know-how lesson are veiled"
            )


@dataclass(config=SETTINGS)
class TurnCreditConfig(PolicyLossConfig):
    """Settings of how the dialogue's end and its turns share the credit, `algorithm.*`."""

    turn_credit: float = 0.0
    """In [0, 1]; share of the advantage that credits a reply with what came of it, instead of with how the dialogue ended."""
    turn_discount: float = 0.6
    """In [0, 1]; how much of the next turn's change of emotion counts for a reply, and so on."""

    credits_turns_alone: ClassVar[bool] = True
    """Whether `turn_discount` has no other use."""

    def __post_init__(self) -> None:
        if self.kind != type(self).kind:
            raise ValueError(f"algorithm.kind must be {type(self).kind!r} here, got {self.kind!r}")
        super().__post_init__()
        for name in ("turn_credit", "turn_discount"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"algorithm.{name} must be in [0, 1], got {getattr(self, name)!r}")
        if self.credits_turns_alone and not self.turn_credit and self.turn_discount != type(self).turn_discount:
            raise ValueError(
                f"algorithm.turn_discount is read with algorithm.turn_credit above 0 alone, got {self.turn_discount!r} without it"
            )


class Spread(StrEnum):
    """What the deviations from a group's mean are measured by."""

    GROUP = "group"
    """The group's own standard deviation: every group counts alike, also one whose rollouts differ by little more than noise."""
    BATCH = "batch"
    """The root mean square over all tokens that are trained on: groups that differ more count for more (REINFORCE++, arXiv 2501.03262)."""
    NONE = "none"
    """Nothing, as in Dr.GRPO (arXiv 2503.20783)."""


@dataclass(config=SETTINGS)
class GrpoConfig(TurnCreditConfig):
    """Settings of GRPO, `algorithm.*`."""

    kind: str = "grpo"
    """Which algorithm."""
    normalise_by: Spread = Spread.GROUP
    """Whose spread advantages are divided by: the group's, as RLVER does; the batch's; or none."""


@dataclass(config=SETTINGS)
class RlooConfig(TurnCreditConfig):
    """Settings of RLOO, `algorithm.*`."""

    kind: str = "rloo"
    """Which algorithm."""


@dataclass(config=SETTINGS)
class ReinforcePPConfig(TurnCreditConfig):
    """Settings of REINFORCE++, `algorithm.*`."""

    kind: str = "reinforce_pp"
    """Which algorithm."""
    group_baseline: bool = False
    """Subtract the mean of a rollout's group before advantages are normalised over the batch's tokens. Without it all tasks share one
    mean, so a rollout of an easy task counts as good whatever the agent did there; groups that fared alike are then trained on too."""


class CriticKind(StrEnum):
    """Where the values come from."""

    SEPARATE = "separate"
    """A model of its own, which starts as the policy did: twice the memory, and neither disturbs the other."""
    SHARED = "shared"
    """A head on the policy's own layers, which both losses then train."""


@dataclass(config=SETTINGS)
class PpoConfig(TurnCreditConfig):
    """Settings of PPO, `algorithm.*`."""

    kind: str = "ppo"
    """Which algorithm."""
    turn_credit: float = 0.0
    """In [0, 1]; share of the reward that is paid as changes of emotion at the end of each reply, instead of at the dialogue's end."""
    turn_discount: float = 1.0
    """In [0, 1]; how much of what is paid after the user's next turn counts for a reply, whichever kind of reward it is."""
    gamma: float = 1.0
    """In (0, 1]; discount from one sampled token to the next."""
    lam: float = 1.0
    """In [0, 1]; 1 judges a token by what came in the end, 0 by what the critic expects right after it: less noise, but the critic's
    mistakes count."""
    critic: CriticKind = CriticKind.SEPARATE
    """Where the values come from: separate or shared."""
    critic_lr: float = 1e-3
    """> 0; AdamW's step size for what the critic has of its own, the same from beginning to end: `learner.warmup_steps` and
    `learner.lr_end` are the policy's. 1e-3 suits the embedded policy, 1e-5 a critic of billions."""
    critic_warmup_steps: int = 0
    """>= 0; training steps in which the critic learns alone and the policy stays as it is."""
    value_clip: float = 0.2
    """>= 0; how far a value may move in one update before the loss stops rewarding it, in units of the final reward; 0 sets no limit."""
    value_coef: float = 0.5
    """> 0; weight of the critic's loss in the gradient of layers that it shares with the policy."""

    credits_turns_alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"algorithm.gamma must be in (0, 1], got {self.gamma!r}; 1 does not discount")
        if not 0.0 <= self.lam <= 1.0:
            raise ValueError(f"algorithm.lam must be in [0, 1], got {self.lam!r}; 1 does without the critic's expectations")
        for name in ("critic_lr", "value_coef"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"algorithm.{name} must be > 0, got {getattr(self, name)!r}")
        for name in ("critic_warmup_steps", "value_clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"algorithm.{name} must be >= 0, got {getattr(self, name)!r}")
        if self.critic is CriticKind.SEPARATE and self.value_coef != type(self).value_coef:
            raise ValueError(f"algorithm.value_coef is read with algorithm.critic=shared alone, got {self.value_coef!r} without it")


ALGORITHM_CONFIGS: dict[str, type[TurnCreditConfig]] = {
    "grpo": GrpoConfig,
    "rloo": RlooConfig,
    "reinforce_pp": ReinforcePPConfig,
    "ppo": PpoConfig,
}
"""Settings by `algorithm.kind`."""
