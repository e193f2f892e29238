"""Settings of the policy: engine, rollouts, learner, adapters, loss, algorithm and cluster. Imports no torch."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from simulator.settings import SETTINGS

Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]


class EngineKind(StrEnum):
    """Which engine generates: vllm, hf (transformers: several times slower), or auto for vLLM where it can be imported."""

    AUTO = "auto"
    VLLM = "vllm"
    HF = "hf"


class EngineDtype(StrEnum):
    """Precision of an engine's arithmetic. float32 agrees with a float32 trainer to about 1e-6 nats, bfloat16 to about 4e-3."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    @property
    def num_bytes(self) -> int:
        return 4 if self is EngineDtype.FLOAT32 else 2


class WeightTransport(StrEnum):
    """How new weights get from the trainer into the engines: through Ray's object store, or as a safetensors file that all of them see."""

    RPC = "rpc"
    FILE = "file"


@dataclass(config=SETTINGS, kw_only=True)
class EngineConfig:
    """How an engine is built, and whether its policy thinks (`policy.*`)."""

    thinking: bool = False
    """Whether each reply is a thought in <think> tags, which the user never hears, and then words; `rollout.max_new_tokens` counts both."""
    keep_thoughts: bool | None = None
    """Whether the agent sees its earlier thoughts. Unset, as the chat template does it; false samples each reply after words alone."""
    format_weight: Share = 1.0
    """Share of its reward that a dialogue loses when none of its replies is a thought and then words, and proportionally less for some."""
    engine: EngineKind = EngineKind.AUTO
    dtype: EngineDtype = EngineDtype.FLOAT32
    kv_cache_mb: PositiveInt = 96
    """MiB for the keys and values of running and remembered dialogues, on a CPU or with gpu_memory_share=0."""
    gpu_memory_share: Share = 0.5
    """Part of a GPU that an engine fills. With 0 it takes its weights, its activations and kv_cache_mb, so that runs can share a card."""
    sleep: bool = False
    """Give the GPU's memory to the learner while it updates: an engine's weights and cache go, and come back with the new weights (vLLM's
    sleep mode). The learner's weights and optimiser state stay on the card all the time. Needs `rollout.max_staleness=0`."""
    block_size: PositiveInt = 32
    """Tokens of a shared prefix are remembered in blocks of this size; vLLM's 128 would share nothing in short dialogues."""
    max_running: PositiveInt = 128
    """Replies sampled at the same time."""
    start_timeout_s: PositiveFloat = 300.0
    """Seconds an engine may take to start and to answer a first prompt."""
    load_timeout_s: PositiveFloat = 120.0
    """Seconds new weights may take to arrive."""
    weight_transport: WeightTransport = WeightTransport.RPC
    weight_folder: str = ""
    """Folder for weight_transport=file, which the machines of all engines see under this path; empty takes a folder of this machine."""
    engine_process: bool = False
    """Run vLLM in another process than its users and their dialogues: more tokens a second where a core is free, for some more memory."""
    tensor_parallel: PositiveInt = 1
    """GPUs that share the matrices of one vLLM engine (its tensor parallel size). Needs as many `cluster.gpus_per_engine`."""

    def __post_init__(self) -> None:
        if self.keep_thoughts is not None and not self.thinking:
            raise ValueError(f"policy.keep_thoughts must be unset where policy.thinking is false, got {self.keep_thoughts!r}")
        if self.weight_folder and self.weight_transport is not WeightTransport.FILE:
            raise ValueError(f"policy.weight_folder must be empty with policy.weight_transport=rpc, got {self.weight_folder!r}")
        if self.engine_process and (self.engine is EngineKind.HF or self.tensor_parallel > 1):
            raise ValueError("policy.engine_process must be false with policy.engine=hf or policy.tensor_parallel above 1, got true")
        if self.engine is EngineKind.HF and self.tensor_parallel > 1:
            raise ValueError(f"policy.tensor_parallel must be 1 with policy.engine=hf, got {self.tensor_parallel}: only vLLM has it")

    @property
    def may_be_vllm(self) -> bool:
        """Whether vLLM will sample, as far as can be known without importing it."""
        return self.engine is not EngineKind.HF and importlib.util.find_spec("vllm") is not None

    @property
    def without_vllm(self) -> str:
        """The setting that cannot hold without vLLM, with a gap for the reason; empty where another engine may take its place."""
        if self.engine is EngineKind.VLLM:
            return "policy.engine must be auto or hf where vLLM {}, got 'vllm'"
        if self.tensor_parallel > 1:
            return f"policy.tensor_parallel must be 1 where vLLM {{}}, got {self.tensor_parallel}"
        return "policy.engine_process must be false where vLLM {}, got true" if self.engine_process else ""


@dataclass(config=SETTINGS, kw_only=True)
class RolloutConfig:
    """How dialogues are rolled out (`rollout.*`)."""

    num_engines: PositiveInt = 2
    """Each in its process (about 0.8 GB for the embedded policy)."""
    threads_per_engine: PositiveInt = 1
    """CPU threads of an engine. Small models gain more from another engine than from another thread."""
    max_turns: PositiveInt = 8
    """Replies of the agent after which a dialogue ends."""
    max_new_tokens: PositiveInt = 40
    """Tokens a reply may have. The user answers a reply that was cut off, too."""
    max_context: int = 512
    """Tokens a dialogue may have, at least max_new_tokens + 2; it ends as TRUNCATED once a whole further reply does not fit."""
    temperature: Annotated[float, Field(ge=0.01)] = 1.0
    """At least 0.01 (vLLM samples no colder, and training needs replies that differ); the only thing that shapes sampling in training."""
    retries: NonNegativeInt = 1
    retry_backoff_s: NonNegativeFloat = 0.5
    """Further attempts at a dialogue that failed, before it counts as an ERROR; the first after so many seconds, doubled for each next."""
    max_staleness: NonNegativeInt = 0
    """Updates between the weights that sampled a token and those it is trained into, at most. 0 rolls out and updates in turn; n keeps the
    next n steps under way meanwhile."""
    dialogue_timeout_s: PositiveFloat = 300.0
    """Seconds of an attempt at a dialogue, without those spent waiting for a user that is away or in the queue of an LLM user's server."""
    outage_s: NonNegativeFloat = 120.0
    """Seconds for which dialogues wait for a simulated user that does not answer at all, before that counts as a failure."""
    max_error_share: Share = 0.05
    """Share of ERROR dialogues among the last 200 above which a run stops."""
    hang_timeout_s: PositiveFloat = 120.0
    """Seconds without a token, or without an answer of its process, after which a busy worker is restarted with its dialogues."""
    max_restarts: NonNegativeInt = 3
    restart_window_s: PositiveFloat = 3600.0
    """Restarts of one worker within so many seconds; one more and the run stops, to be resumed."""
    reward_terms: dict[str, Share] = field(default_factory=dict)
    """Shares of the reward by term of `simulator.reward.REWARD_TERMS`, together at most 1; the rest is paid for the final emotion."""
    binary_reward_at: Annotated[float, Field(ge=0, le=100)] = 0.0
    """In [0, 100]; above 0 a dialogue is paid 1 if its final emotion is at least this, else nothing. At 0 the emotion itself is paid."""
    deterministic: bool = False
    """Sample every turn of all dialogues of an engine together and in a fixed order, so that two runs sample identical tokens. Slower."""

    def __post_init__(self) -> None:
        if self.max_context < self.max_new_tokens + 2:
            raise ValueError(f"rollout.max_context must leave room for a prompt and rollout.max_new_tokens, got {self.max_context!r}")
        if math.fsum(self.reward_terms.values()) > 1:
            raise ValueError(f"rollout.reward_terms must sum to at most 1, got {self.reward_terms!r}")


@dataclass(config=SETTINGS, kw_only=True)
class ClusterConfig:
    """Where the workers run (`cluster.*`)."""

    address: str = ""
    """Of an existing Ray cluster (host:port, or auto); empty starts a local one that only this machine can reach."""
    gpus_per_engine: NonNegativeFloat = 0.0
    """GPUs that each engine reserves."""
    object_store_mb: Annotated[int, Field(ge=80)] = 128
    """At least 80, Ray's own bound; MiB in which a local Ray keeps weights and results in transit. The rest waits on disk."""


def require_plain_python() -> None:
    """Raises ValueError for a checkout whose Python Ray could not start: it writes command lines and takes them apart again."""
    for path in (sys.executable, str(Path(__file__).parents[1])):
        if not path.isascii() or set(path) & set("'\"\\:$`\n"):
            raise ValueError(f"the checkout must lie in a folder without quotes, colons and non-ASCII letters, for Ray, got {path!r}")


@dataclass(config=SETTINGS)
class LearnerConfig:
    """Settings of the optimiser step, `learner.*`."""

    lr: PositiveFloat = 5e-4
    """AdamW's step size after the warm-up. 5e-4 suits the embedded policy of two million parameters, 1e-6 one of billions."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Both in [0, 1); how long the gradient and its size are remembered. A run is 50-100 steps, which the usual 0.999 would not forget."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled, on all parameters. The update is small enough without it, and it would pull at the prior."""
    warmup_steps: NonNegativeInt = 0
    """Optimiser steps over which the step size grows linearly to `lr`."""
    lr_end: Share = 1.0
    """Share of `lr` that is left when the budget is spent, by a straight line, which a larger budget at a resume makes flatter."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this L2 norm."""
    num_minibatches: PositiveInt = 1
    """Optimiser steps per pass over a batch. With 1, and one epoch, steps are strictly on policy if present weights sampled the batch."""
    epochs: PositiveInt = 1
    recompute_logprobs: bool | None = None
    """Whether the old policy's logprobs are the trainer's own, for a further forward pass, or the engine's as they were sampled. Unset, an
    experiment takes the engine's where both sides compute in float32 and so agree to 1e-6 nats; a learner alone recomputes."""
    micro_batch_rows: PositiveInt = 8
    """Rollouts per forward pass. Few rows of like length waste little on padding (on a CPU 8 took 2/3 of the time of 64)."""
    micro_batch_tokens: PositiveInt = 16384
    """Padded tokens per forward pass, which bounds memory."""
    logit_chunk_mb: PositiveInt = 64
    """MiB of float32 logits in one piece. More tokens than fit are scored piece by piece, which computes their logits twice."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass, of a critic too: a third more arithmetic for far less memory."""
    autocast: bool = False
    """Compute in bf16. A quarter cheaper, but the trainer then differs from a float32 engine by about 1e-3 instead of 1e-6 nats."""
    device: str = "cpu"
    """Where the model is trained (cpu, cuda, cuda:1). Engines of a local Ray take the first GPUs, so the last is the learner's."""
    ranks: PositiveInt = 1
    """Processes that share each update, each with all weights: on a CPU they share its threads, on GPUs they take one each from `device`
    on, all on this machine. Same results but for rounding."""
    sharded: bool = False
    """Whether each rank keeps a part of the weights, gradients and moments and not all of them: room for larger models, and more to send.
    Not with a critic that shares the policy's layers."""

    def __post_init__(self) -> None:
        if self.sharded and self.ranks == 1:
            raise ValueError("learner.sharded must be false with learner.ranks=1, got true; set learner.ranks to the number of devices")


@dataclass(config=SETTINGS)
class LoraConfig:
    """Low-rank adapters, `policy.lora.*`: the model's weights stay, and a product of two thin matrices is trained next to each.

    Source: arXiv 2106.09685, by `peft`.
    """

    rank: NonNegativeInt = 0
    """Inner width of each adapter. 0 trains all weights."""
    alpha: PositiveFloat = 32.0
    """An adapter's output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """Layers that get an adapter: `all-linear` (all but the output head), or the ends of their names, as in `q_proj,v_proj`. Never an
    embedding, an output head that is one, or experts joined in one parameter, with which `all-linear` is refused."""


@dataclass(config=SETTINGS)
class SftConfig:
    """A supervised start, `policy.sft.*`: the model imitates the replies of a file before it learns from users."""

    data: str = ""
    """Dialogues to imitate, a line `{"messages": [...]}` each, in which user and assistant take turns; empty skips it."""
    epochs: PositiveInt = 2
    """Passes over them."""
    lr: PositiveFloat = 1e-4
    """AdamW's peak step size for all weights; 1e-5 suits billions."""
    batch_size: PositiveInt = 8
    """Dialogues a step."""
    seed: int = 0
    """Of their order, and of adapters."""


class KlPlace(StrEnum):
    """Where the KL to the reference counts."""

    LOSS = "loss"
    REWARD = "reward"


class KlEstimator(StrEnum):
    """The value of a token's KL in the loss: k2 biased, of little variance; k3 unbiased, never negative. The gradient is k2's."""

    K2 = "k2"
    K3 = "k3"


class Correction(StrEnum):
    """Whether tokens are weighed for the difference of engine and trainer, each by its truncated ratio: biased, of bounded variance."""

    NONE = "none"
    TOKEN = "token"


class Aggregation(StrEnum):
    """How the losses of an optimiser step's tokens become one number."""

    TOKEN_MEAN = "token_mean"
    """The mean over all trained tokens, so that a long dialogue counts for more than a short one (DAPO, arXiv 2503.14476)."""
    DIALOGUE_MEAN = "dialogue_mean"
    """The mean over dialogues of the mean over each one's tokens, so that dialogues count equally (GRPO, arXiv 2402.03300)."""
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
    """Settings of the loss, `algorithm.*`; each algorithm adds those of its advantages."""

    kind: str = ""
    policy_loss: Surrogate = Surrogate.PPO
    clip_low: OpenShare = 0.2
    """In (0, 1); the ratio counts down to 1 - clip_low."""
    clip_high: PositiveFloat = 0.28
    """The ratio counts up to 1 + clip_high. More than clip_low keeps rare tokens alive (DAPO's value)."""
    sequence_clip_low: OpenShare = 3e-4
    sequence_clip_high: PositiveFloat = 4e-4
    """gspo's bounds, the first in (0, 1). A dialogue's ratio is a geometric mean, which moves far less than a token's."""
    dual_clip: NonNegativeFloat = 0.0
    """0, or > 1: the loss of a token of negative advantage counts up to this many times its advantage (verl's value is 3). For ppo."""
    cov_share: PositiveShare = 2e-4
    """In (0, 1]; share of the tokens of an optimiser step that clip_cov and kl_cov pick, at least one."""
    cov_low: float = 1.0
    cov_high: float = 5.0
    cov_seed: NonNegativeInt = 0
    """clip_cov picks among the covariances between cov_low and cov_high > cov_low, with draws of this seed."""
    kl_cov_coef: PositiveFloat = 1.0
    """Weight of the pull that kl_cov puts on the tokens it picks."""
    loss_aggregation: Aggregation = Aggregation.TOKEN_MEAN
    loss_length: NonNegativeInt = 0
    """Tokens that a dialogue counts for when loss_aggregation is constant, > 0 then: best rollout.max_turns x rollout.max_new_tokens."""
    importance_correction: Correction = Correction.NONE
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """>= 1; such a weight counts up to this."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight of the KL to the reference policy. RLVER trains without; above 0 a reference model is kept."""
    kl_in: KlPlace = KlPlace.LOSS
    kl_estimator: KlEstimator = KlEstimator.K3
    kl_target: NonNegativeFloat = 0.0
    """Nats per token; above 0 the coefficient starts at kl_coef and follows this target."""
    kl_horizon: PositiveFloat = 10_000.0
    """Dialogues within which the coefficient can change by about a fifth, and one update at most by that."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus per token."""
    entropy_target: NonNegativeFloat = 0.0
    """Nats per token; above 0 the coefficient starts at entropy_coef, follows this target and counts only below it."""
    entropy_coef_step: PositiveFloat = 0.005
    entropy_coef_max: PositiveFloat = 1.0
    """An adaptive coefficient changes by so much in an update (TRL's and Skywork-OR1's value), and grows up to so much."""

    def __post_init__(self) -> None:
        loss, has_kl = self.policy_loss, self.kl_coef > 0.0
        clips = loss in (Surrogate.PPO, Surrogate.CLIP_COV)
        read_with = {
            "policy_loss=ppo or clip_cov (gspo reads sequence_clip_low)": (clips, ["clip_low"]),
            "policy_loss=ppo, cispo or clip_cov (gspo reads sequence_clip_high)": (clips or loss is Surrogate.CISPO, ["clip_high"]),
            "policy_loss=gspo": (loss is Surrogate.GSPO, ["sequence_clip_low", "sequence_clip_high"]),
            "policy_loss=ppo": (loss is Surrogate.PPO, ["dual_clip"]),
            "policy_loss=clip_cov or kl_cov": (loss in (Surrogate.CLIP_COV, Surrogate.KL_COV), ["cov_share"]),
            "policy_loss=clip_cov": (loss is Surrogate.CLIP_COV, ["cov_low", "cov_high", "cov_seed"]),
            "policy_loss=kl_cov": (loss is Surrogate.KL_COV, ["kl_cov_coef"]),
            "loss_aggregation=constant": (self.loss_aggregation is Aggregation.CONSTANT, ["loss_length"]),
            "importance_correction=token": (self.corrects, ["importance_cap"]),
            "kl_coef above 0": (has_kl, ["kl_in", "kl_target"]),
            "kl_coef above 0 and kl_in=loss": (has_kl and self.kl_in is KlPlace.LOSS, ["kl_estimator"]),
            "kl_target above 0": (self.kl_target > 0.0, ["kl_horizon"]),
            "entropy_target above 0": (self.entropy_target > 0.0, ["entropy_coef_step", "entropy_coef_max"]),
        }
        defaults = {item.name: item.default for item in fields(PolicyLossConfig)}
        # A setting that the others leave without effect would be taken for one that was tried.
        for condition, (is_read, names) in read_with.items():
            for name in names:
                if not is_read and (value := getattr(self, name)) != defaults[name]:
                    raise ValueError(f"algorithm.{name} is read with algorithm.{condition} alone, got {value!r} without it")
        if 0.0 < self.dual_clip <= 1.0:
            raise ValueError(f"algorithm.dual_clip must be 0 for none, or > 1, got {self.dual_clip!r}")
        if not self.cov_low < self.cov_high:
            raise ValueError(f"algorithm.cov_low must be < algorithm.cov_high, got {self.cov_low!r} and {self.cov_high!r}")
        if self.corrects and loss is Surrogate.GSPO:
            raise ValueError("algorithm.importance_correction must be none with algorithm.policy_loss=gspo, got token")
        if self.loss_aggregation is Aggregation.CONSTANT and not self.loss_length:
            raise ValueError("algorithm.loss_length must be > 0 with algorithm.loss_aggregation=constant, got 0")
        if self.entropy_target and self.entropy_coef > self.entropy_coef_max:
            raise ValueError(f"algorithm.entropy_coef must be <= algorithm.entropy_coef_max, got {self.entropy_coef!r}")

    @property
    def corrects(self) -> bool:
        """Whether tokens are weighed for the engine's difference from the trainer, which takes logprobs of the trainer's own."""
        return self.importance_correction is not Correction.NONE

    def require(self, learner: LearnerConfig) -> None:
        """Raises ValueError for a correction without logprobs of the trainer's own, or kl_cov on strictly on-policy steps."""
        if self.corrects and learner.recompute_logprobs is False:
            # The ratio to the engine's logprobs would count twice.
            raise ValueError("algorithm.importance_correction must be none with learner.recompute_logprobs=false, got token")
        if self.policy_loss is Surrogate.KL_COV and learner.epochs * learner.num_minibatches == 1:
            # It acts on tokens that an earlier step of the update moved.
            raise ValueError("algorithm.policy_loss must not be kl_cov with learner.num_minibatches=1 and learner.epochs=1, got kl_cov")

    def require_whole_dialogues(self) -> None:
        """Raises ValueError for a loss that looks at rows as dialogues, where dialogues are cut into a row for each reply."""
        reason = "where each reply forgets the thoughts before it (policy.keep_thoughts)"
        if self.policy_loss is Surrogate.GSPO:
            raise ValueError(f"algorithm.policy_loss must not be gspo {reason}, got gspo")
        if self.loss_aggregation is not Aggregation.TOKEN_MEAN:
            raise ValueError(f"algorithm.loss_aggregation must be token_mean {reason}, got {self.loss_aggregation.value}")


@dataclass(config=SETTINGS)
class TurnCreditConfig(PolicyLossConfig):
    """How the dialogue's end and its turns share the credit, `algorithm.*`."""

    turn_credit: Share = 0.0
    """Share of the advantage that credits a reply with the emotion after it, instead of the dialogue's end."""
    turn_discount: Share = 0.6
    """How much of the next turn's change of emotion counts for a reply, and so on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "ppo" and not self.turn_credit and self.turn_discount != type(self).turn_discount:
            raise ValueError(f"algorithm.turn_discount is read with algorithm.turn_credit above 0 alone, got {self.turn_discount!r}")


class Spread(StrEnum):
    """Divisor of the deviations from a group's mean."""

    GROUP = "group"
    """The group's own standard deviation: every group counts equally, also one whose rollouts differ by little more than noise."""
    BATCH = "batch"
    """The root mean square over all trained tokens: groups that differ more count for more (REINFORCE++, arXiv 2501.03262)."""
    NONE = "none"
    """Nothing, as in Dr.GRPO (arXiv 2503.20783)."""


@dataclass(config=SETTINGS)
class GrpoConfig(TurnCreditConfig):
    """Settings of GRPO, `algorithm.*`."""

    kind: Literal["grpo"] = "grpo"
    normalise_by: Spread = Spread.GROUP
    """Whose spread advantages are divided by: the group's, as RLVER does; the batch's; or none."""


@dataclass(config=SETTINGS)
class RlooConfig(TurnCreditConfig):
    """Settings of RLOO, `algorithm.*`."""

    kind: Literal["rloo"] = "rloo"


@dataclass(config=SETTINGS)
class ReinforcePPConfig(TurnCreditConfig):
    """Settings of REINFORCE++, `algorithm.*`."""

    kind: Literal["reinforce_pp"] = "reinforce_pp"
    group_baseline: bool = False
    """Subtract the mean of a rollout's group before advantages are normalised over the batch's tokens. Without it all tasks share a mean,
    so that rollouts of an easy task count as good, and groups without variance are trained on."""


class CriticKind(StrEnum):
    """Where the values come from."""

    SEPARATE = "separate"
    """Another model, which starts as the policy did: twice the memory, and neither disturbs the other."""
    SHARED = "shared"
    """A head on the policy's layers, which both losses then train."""


@dataclass(config=SETTINGS)
class PpoConfig(TurnCreditConfig):
    """Settings of PPO, `algorithm.*`."""

    kind: Literal["ppo"] = "ppo"
    turn_credit: Share = 0.0
    """Share of the reward that is paid as changes of emotion at the end of each reply, instead of at the dialogue's end."""
    turn_discount: Share = 1.0
    """How much of the pay after the user's next turn counts for a reply, whichever kind of reward it is."""
    gamma: PositiveShare = 1.0
    """In (0, 1]; discount from one sampled token to the next."""
    lam: Share = 1.0
    """1 judges a token by the final return, 0 by the critic's value right after it: less noise, but the critic's mistakes count."""
    critic: CriticKind = CriticKind.SEPARATE
    critic_lr: PositiveFloat = 1e-3
    """AdamW's constant step size for the critic's own parameters. 1e-3 suits the embedded policy, 1e-5 a critic of billions."""
    critic_warmup_steps: NonNegativeInt = 0
    """Training steps in which the critic learns alone and the policy stays as it is."""
    value_clip: NonNegativeFloat = 0.2
    """How far a value may move in one update before the loss stops rewarding it, in units of the final reward; 0 sets no limit."""
    value_coef: PositiveFloat = 0.5
    """Weight of the critic's loss in the gradient of layers that it shares with the policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic is CriticKind.SEPARATE and self.value_coef != type(self).value_coef:
            raise ValueError(f"algorithm.value_coef is read with algorithm.critic=shared alone, got {self.value_coef!r} without it")


ALGORITHM_CONFIGS: dict[str, type[TurnCreditConfig]] = {
    config.kind: config for config in (GrpoConfig, RlooConfig, ReinforcePPConfig, PpoConfig)
}
"""Settings by `algorithm.kind`."""
