"""Settings of the policy: engine, rollouts, learner, adapters, loss, algorithm, cluster and prior. Imports no torch."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from simulator.scripted import MAX_TURNS
from simulator.settings import SETTINGS

Share = Annotated[float, Field(ge=0, le=1)]
"""In [0, 1]."""
BelowOne = Annotated[float, Field(ge=0, lt=1)]
"""In [0, 1)."""
OpenShare = Annotated[float, Field(gt=0, lt=1)]
"""In (0, 1)."""
PositiveShare = Annotated[float, Field(gt=0, le=1)]
"""In (0, 1]."""


# Engine ----------------------------------------------------------------------------------------------------------------------------


class EngineKind(StrEnum):
    """Which engine generates."""

    AUTO = "auto"
    """vLLM where it can be imported, else transformers."""
    VLLM = "vllm"
    HF = "hf"


class EngineDtype(StrEnum):
    """Precision of an engine's arithmetic."""

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


@dataclass(config=SETTINGS, kw_only=True)
class EngineConfig:
    """How an engine is built, and whether its policy thinks (`policy.*`)."""

    thinking: bool = False
    """Whether each reply is a thought between <think> and </think>, which the user never hears, and then words. `rollout.max_new_tokens`
    counts both."""
    keep_thoughts: bool | None = None
    """Whether the agent goes on seeing its earlier thoughts. Unset, as the chat template does it; false makes each reply a sequence of
    its own, with the dialogue's words alone before it."""
    format_weight: Share = 1.0
    """Share of its reward that a dialogue loses when none of its replies is a thought and then words, and proportionally less when some
    are. 0 judges the words alone."""
    engine: EngineKind = EngineKind.AUTO
    """auto, vllm or hf (transformers: several times slower, needs no vLLM)."""
    dtype: EngineDtype = EngineDtype.FLOAT32
    """float32 or bfloat16."""
    kv_cache_mb: PositiveInt = 96
    """MiB for the keys and values of running and remembered dialogues, on a CPU or with gpu_memory_share=0."""
    gpu_memory_share: Share = 0.5
    """Part of a GPU that an engine fills. With 0 it takes its weights, its activations and kv_cache_mb, however much is free there, so
    that several runs can share a card."""
    block_size: PositiveInt = 32
    """Tokens of a shared prefix are remembered in blocks of this size; vLLM's 128 would share nothing in short dialogues."""
    max_running: PositiveInt = 128
    """Replies sampled at the same time."""
    start_timeout_s: PositiveFloat = 300.0
    """Seconds an engine may take to start and to answer a first prompt."""
    load_timeout_s: PositiveFloat = 120.0
    """Seconds new weights may take to arrive."""
    weight_transport: WeightTransport = WeightTransport.AUTO
    """auto, rpc or file."""
    weight_folder: str = ""
    """Folder of the files of weight_transport=file, which the machines of all engines see under this path. Empty takes a folder of the
    run's own, which only this machine sees."""
    engine_process: bool = False
    """Run vLLM's engine in a process of its own next to its users and their dialogues, which otherwise share one interpreter with it:
    more tokens a second where a core is free for them, for some more memory."""
    tensor_parallel: PositiveInt = 1
    """GPUs that share the matrices of one vLLM engine (its tensor parallel size). Needs as many `cluster.gpus_per_engine`."""

    def __post_init__(self) -> None:
        if self.keep_thoughts is not None and not self.thinking:
            raise ValueError(f"policy.keep_thoughts must be unset where policy.thinking is false, got {self.keep_thoughts!r}")
        if self.weight_folder and self.weight_transport is not WeightTransport.FILE:
            raise ValueError(
                f"policy.weight_folder must be empty with policy.weight_transport={self.weight_transport}, got {self.weight_folder!r}"
            )
        if self.engine is EngineKind.HF and self.engine_process:
            raise ValueError("policy.engine_process must be false with policy.engine=hf, got true: only vLLM has one")
        if self.engine is EngineKind.HF and self.tensor_parallel > 1:
            raise ValueError(f"policy.tensor_parallel must be 1 with policy.engine=hf, got {self.tensor_parallel}: only vLLM has it")
        if self.engine_process and self.tensor_parallel > 1:
            raise ValueError(
                f"policy.engine_process must be false with policy.tensor_parallel={self.tensor_parallel}, got true: "
                "the ranks of such an engine are processes already"
            )

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


# Rollouts --------------------------------------------------------------------------------------------------------------------------


@dataclass(config=SETTINGS, kw_only=True)
class RolloutConfig:
    """How dialogues are rolled out (`rollout.*`)."""

    num_engines: PositiveInt = 2
    """Each is a process of its own (about 0.8 GB for the embedded policy)."""
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
    """Further attempts at a dialogue that failed, before it counts as an ERROR."""
    retry_backoff_s: NonNegativeFloat = 0.5
    """Seconds before the first further attempt, doubled before each next one."""
    max_staleness: NonNegativeInt = 0
    """Updates that may lie between the weights that sampled a token and those it is trained into. 0 rolls out and updates in turn; 1
    rolls out the next step meanwhile; more keep so many steps under way, for dialogues that take longer than an update."""
    dialogue_timeout_s: PositiveFloat = 300.0
    """Seconds after which an attempt at a dialogue counts as failed. The clock stops while the dialogue waits for a user that is away, or
    in the queue of an LLM user's server."""
    outage_s: NonNegativeFloat = 120.0
    """Seconds for which dialogues wait for a simulated user that does not answer at all, before that counts as a failure."""
    max_error_share: Share = 0.05
    """Share of ERROR dialogues among the last 200 above which a run stops."""
    hang_timeout_s: PositiveFloat = 120.0
    """Seconds without a token, or without an answer of its process, after which a busy worker counts as hung and is restarted with its
    dialogues."""
    max_restarts: NonNegativeInt = 3
    """Restarts of one worker within `restart_window_s`; one more and the run stops, to be resumed."""
    restart_window_s: PositiveFloat = 3600.0
    """Seconds after which a restart is forgotten."""
    reward_terms: dict[str, Share] = field(default_factory=dict)
    """Shares of the reward by registered term (`simulator.reward.REWARD_TERMS`), together at most 1; the rest is paid for how the user
    feels in the end."""
    binary_reward_at: Annotated[float, Field(ge=0, le=100)] = 0.0
    """In [0, 100]; above 0 a dialogue is paid 1 if its user's final emotion is at least this, else nothing: sparse feedback, like a thumb
    up or down. At 0 the final emotion itself is paid."""
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
    """Refuses a checkout whose Python Ray could not start: it writes command lines and takes them apart again.

    Raises:
        ValueError: its path holds a quotation mark, a backslash, a colon or a letter that is not ASCII.
    """
    for path in (sys.executable, str(Path(__file__).parents[1])):
        if not path.isascii() or set(path) & set("'\"\\:$`\n"):
            raise ValueError(
                f"the checkout must lie where Ray can start workers, without quotes, colons and letters beyond ASCII, got {path!r}"
            )


# Learner ---------------------------------------------------------------------------------------------------------------------------


@dataclass(config=SETTINGS)
class LearnerConfig:
    """Settings of the optimiser step, `learner.*`."""

    lr: PositiveFloat = 5e-4
    """AdamW's step size after the warm-up. 5e-4 suits the embedded policy of two million parameters, 1e-6 one of billions."""
    beta1: BelowOne = 0.9
    """In [0, 1); how long the gradient is remembered."""
    beta2: BelowOne = 0.95
    """In [0, 1); how long its size is remembered. A run is 50-100 steps: a mean over the usual 1000 would never forget the first."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled, on all parameters. The update is small enough without it, and it would pull at the prior."""
    warmup_steps: NonNegativeInt = 0
    """Optimiser steps over which the step size grows linearly to `lr`."""
    lr_end: Share = 1.0
    """Share of `lr` that is left when the budget is spent. The step size falls in a straight line; 1 keeps it.
    A run that is resumed with a larger budget goes on at a larger one than it ended with."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this L2 norm."""
    num_minibatches: PositiveInt = 1
    """Optimiser steps per pass over a batch. With 1 and one epoch every step is strictly on policy, if logprobs are recomputed or the
    present weights sampled the batch."""
    epochs: PositiveInt = 1
    """Passes over a batch."""
    recompute_logprobs: bool | None = None
    """Whether the logprobs of the old policy are the trainer's own, at the price of a forward pass, or the engine's as they were sampled.
    Unset, an experiment takes the engine's where both sides compute in float32 and so agree to 1e-6 nats; a learner alone recomputes."""
    micro_batch_rows: PositiveInt = 8
    """Rollouts per forward pass. Few rows of like length waste little on padding (on a CPU 8 took 2/3 of the time of 64)."""
    micro_batch_tokens: PositiveInt = 16384
    """Padded tokens per forward pass, which bounds memory."""
    logit_chunk_mb: PositiveInt = 64
    """MiB of float32 logits held in one piece. More tokens than fit (large vocabularies) are scored piece by piece, which bounds memory
    at the price of computing their logits twice; what fits into one piece is not touched by it."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass, of a critic too, and recompute the rest: a third more arithmetic for far less
    memory."""
    autocast: bool = False
    """Compute in bf16. A quarter cheaper, but the trainer then differs from a float32 engine by about 1e-3 instead of 1e-6 nats."""
    device: str = "cpu"
    """Where the model is trained (cpu, cuda, cuda:1). Engines of a local Ray take the first GPUs, so the last is the learner's."""


@dataclass(config=SETTINGS)
class LoraConfig:
    """Low-rank adapters, `policy.lora.*`: the model's weights stay, and a product of two thin matrices is trained next to each.

    Source: arXiv 2106.09685. Needs the package `peft`.
    """

    rank: NonNegativeInt = 0
    """Inner width of each adapter. 0 trains all weights and needs no `peft`."""
    alpha: PositiveFloat = 32.0
    """An adapter's output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """Layers that get an adapter: `all-linear` (all but the output head), or the ends of their names, as in `q_proj,v_proj`. No
    embeddings, no output head that is the embedding, and no experts joined in one parameter: of a model with such experts, `all-linear`
    is refused."""

    def __post_init__(self) -> None:
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


# Loss ------------------------------------------------------------------------------------------------------------------------------


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
    """Which algorithm."""
    policy_loss: Surrogate = Surrogate.PPO
    """Which surrogate."""
    clip_low: OpenShare = 0.2
    """In (0, 1); the ratio counts down to 1 - clip_low."""
    clip_high: PositiveFloat = 0.28
    """The ratio counts up to 1 + clip_high. More than clip_low keeps rare tokens alive (DAPO's value)."""
    sequence_clip_low: OpenShare = 3e-4
    """In (0, 1); gspo's bound in place of clip_low. A dialogue's ratio is a geometric mean, which moves far less than a token's."""
    sequence_clip_high: PositiveFloat = 4e-4
    """gspo's bound in place of clip_high."""
    dual_clip: NonNegativeFloat = 0.0
    """0, or > 1: the loss of a token of negative advantage counts up to this many times its advantage (verl's value is 3). For ppo."""
    cov_share: PositiveShare = 2e-4
    """In (0, 1]; share of the tokens of an optimiser step that clip_cov and kl_cov pick, at least one."""
    cov_low: float = 1.0
    """clip_cov picks among covariances above this."""
    cov_high: float = 5.0
    """> cov_low; and below this."""
    cov_seed: NonNegativeInt = 0
    """Of clip_cov's draws."""
    kl_cov_coef: PositiveFloat = 1.0
    """Weight of the pull that kl_cov puts on the tokens it picks."""
    loss_aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """token_mean, dialogue_mean or constant."""
    loss_length: NonNegativeInt = 0
    """Tokens that a dialogue counts for when loss_aggregation is constant, > 0 then: best the most that a dialogue may sample."""
    importance_correction: Correction = Correction.NONE
    """Whether tokens are weighed for the engine's difference from the trainer."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """>= 1; such a weight counts up to this."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight of the KL to the reference policy. RLVER trains without; above 0 a reference model is kept."""
    kl_in: KlPlace = KlPlace.LOSS
    """Whether the KL is in the loss or taken off the reward."""
    kl_estimator: KlEstimator = KlEstimator.K3
    """Its value in the loss."""
    kl_target: NonNegativeFloat = 0.0
    """Nats per token; above 0 the coefficient starts at kl_coef and follows this target."""
    kl_horizon: PositiveFloat = 10_000.0
    """Dialogues within which the coefficient can change by about a fifth, and one update at most by that."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus per token."""
    entropy_target: NonNegativeFloat = 0.0
    """Nats per token; above 0 the coefficient starts at entropy_coef, follows this target and counts only below it."""
    entropy_coef_step: PositiveFloat = 0.005
    """By which an adaptive coefficient changes in an update (TRL's and Skywork-OR1's value)."""
    entropy_coef_max: PositiveFloat = 1.0
    """An adaptive coefficient grows up to this."""

    def __post_init__(self) -> None:
        self._refuse_unread()
        if 0.0 < self.dual_clip <= 1.0:
            raise ValueError(f"algorithm.dual_clip must be 0 for none, or > 1, got {self.dual_clip!r}")
        if not self.cov_low < self.cov_high:
            raise ValueError(f"algorithm.cov_low must be < algorithm.cov_high, got {self.cov_low!r} and {self.cov_high!r}")
        if self.corrects and self.policy_loss is Surrogate.GSPO:
            raise ValueError(
                "algorithm.importance_correction must be none with algorithm.policy_loss=gspo, got token: "
                "ratios of whole dialogues are not corrected token by token"
            )
        if self.loss_aggregation is Aggregation.CONSTANT and not self.loss_length:
            raise ValueError(
                "algorithm.loss_length must be > 0 with algorithm.loss_aggregation=constant, got 0; "
                "rollout.max_turns x rollout.max_new_tokens is the most that a dialogue may sample"
            )
        if self.entropy_target and self.entropy_coef > self.entropy_coef_max:
            raise ValueError(f"algorithm.entropy_coef must be <= algorithm.entropy_coef_max, got {self.entropy_coef!r}")

    def _refuse_unread(self) -> None:
        """Refuses a setting that the others leave without effect: it would be taken for one that was tried."""
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
        for condition, (is_read, names) in read_with.items():
            for name in names:
                if not is_read and (value := getattr(self, name)) != defaults[name]:
                    raise ValueError(f"algorithm.{name} is read with algorithm.{condition} alone, got {value!r} without it")

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
                "algorithm.importance_correction must be none with learner.recompute_logprobs=false, got "
                f"{self.importance_correction.value}: the ratio to the engine's logprobs would count twice"
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
        reason = "where each reply forgets the thoughts before it (policy.keep_thoughts)"
        if self.policy_loss is Surrogate.GSPO:
            raise ValueError(f"algorithm.policy_loss must not be gspo {reason}, got gspo: such a dialogue is several sequences")
        if self.loss_aggregation is not Aggregation.TOKEN_MEAN:
            got = self.loss_aggregation.value
            raise ValueError(f"algorithm.loss_aggregation must be token_mean {reason}, got {got}: such a dialogue is several sequences")


# Algorithms ------------------------------------------------------------------------------------------------------------------------


@dataclass(config=SETTINGS)
class TurnCreditConfig(PolicyLossConfig):
    """How the dialogue's end and its turns share the credit, `algorithm.*`."""

    turn_credit: Share = 0.0
    """Share of the advantage that credits a reply with the emotion after it, instead of the dialogue's end."""
    turn_discount: Share = 0.6
    """How much of the next turn's change of emotion counts for a reply, and so on."""

    credits_turns_alone: ClassVar[bool] = True
    """Whether `turn_discount` has no other use."""

    def __post_init__(self) -> None:
        if self.kind != type(self).kind:
            raise ValueError(f"algorithm.kind must be {type(self).kind!r} here, got {self.kind!r}")
        super().__post_init__()
        if self.credits_turns_alone and not self.turn_credit and self.turn_discount != type(self).turn_discount:
            raise ValueError(
                f"algorithm.turn_discount is read with algorithm.turn_credit above 0 alone, got {self.turn_discount!r} without it"
            )


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
    mean, so every rollout of an easy task counts as good; groups without variance are then trained on too."""


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
    turn_credit: Share = 0.0
    """Share of the reward that is paid as changes of emotion at the end of each reply, instead of at the dialogue's end."""
    turn_discount: Share = 1.0
    """How much of the pay after the user's next turn counts for a reply, whichever kind of reward it is."""
    gamma: PositiveShare = 1.0
    """In (0, 1]; discount from one sampled token to the next."""
    lam: Share = 1.0
    """1 judges a token by the final return, 0 by the critic's value right after it: less noise, but the critic's mistakes count."""
    critic: CriticKind = CriticKind.SEPARATE
    """Where the values come from: separate or shared."""
    critic_lr: PositiveFloat = 1e-3
    """AdamW's step size for the critic's own parameters, constant: `learner.warmup_steps` and `learner.lr_end` are the policy's. 1e-3
    suits the embedded policy, 1e-5 a critic of billions."""
    critic_warmup_steps: NonNegativeInt = 0
    """Training steps in which the critic learns alone and the policy stays as it is."""
    value_clip: NonNegativeFloat = 0.2
    """How far a value may move in one update before the loss stops rewarding it, in units of the final reward; 0 sets no limit."""
    value_coef: PositiveFloat = 0.5
    """Weight of the critic's loss in the gradient of layers that it shares with the policy."""

    credits_turns_alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic is CriticKind.SEPARATE and self.value_coef != type(self).value_coef:
            raise ValueError(f"algorithm.value_coef is read with algorithm.critic=shared alone, got {self.value_coef!r} without it")


ALGORITHM_CONFIGS: dict[str, type[TurnCreditConfig]] = {
    "grpo": GrpoConfig,
    "rloo": RlooConfig,
    "reinforce_pp": ReinforcePPConfig,
    "ppo": PpoConfig,
}
"""Settings by `algorithm.kind`."""


# Prior -----------------------------------------------------------------------------------------------------------------------------


@dataclass(config=SETTINGS)
class DemonstrationConfig:
    """The demonstrator's habits and skills; keys `policy.prior.demonstrations.*`."""

    fit_overt_prob: Share = 0.2
    """Chance of answering an overt hint with the strategy it asks for."""
    fit_veiled_prob: Share = 0.2
    """Chance of answering a veiled hint with the strategy it asks for."""
    ground_prob: Share = 0.32
    """Chance of taking up one of the user's facts."""
    earlier_prob: Share = 0.9
    """Given that, from the third reply on, chance of taking up the fact of two turns before the latest."""
    explore_prob: Share = 0.33
    """Chance of asking or restating in the first two replies, at any hint."""
    repair_prob: Share = 0.2
    """Chance of apologising for a turn that went wrong."""
    collage_prob: Share = 0.0
    """Share of the demonstrations whose facts come from many events: there, only reading shows what to take up, not remembering."""
    open_prob: Share = 0.0
    """Share of the demonstrations whose user hides nothing and names the wish in the opening; else reserve follows difficulty."""
    veiled_prob: Share = 0.0
    """Share of the demonstrations whose user is so reserved that every hint is veiled; with `open_prob` at most 1."""
    name_prob: Share = 0.0
    """Chance of choosing a wording that names the other person, where there is one; else all wordings are equally likely."""
    num_replies: PositiveInt = MAX_TURNS
    """After how many replies a demonstration stops."""
    narrow: bool = False
    """Only the first wording of each move: demonstrations without variety, to measure what variety buys."""

    def __post_init__(self) -> None:
        if self.open_prob + self.veiled_prob > 1.0:
            raise ValueError(f"policy.prior.demonstrations.veiled_prob must be at most 1 - open_prob, got {self.veiled_prob!r}")

    def answering_hints(self) -> DemonstrationConfig:
        """The same demonstrator in the first three replies of a dialogue, answering hints and nothing else."""
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
        """The same demonstrator in first replies that all take up the latest fact."""
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
"""Value of `policy.model` for the small policy that this recipe builds, which speaks the built-in world's language alone."""


@dataclass(config=SETTINGS)
class PriorConfig:
    """The recipe of the embedded policy; keys `policy.prior.*`."""

    seed: int = 0
    """Of the demonstrations, the initial weights and the order of batches."""
    num_tokens: PositiveInt = 3_400_000
    """Tokens to train on."""
    vocab_size: Annotated[int, Field(ge=300)] = 6144
    """Of the byte-level BPE tokenizer at most, >= 300; enough for every word of the users' facts to be one token: of a word in
    pieces a small model copies the last piece alone."""
    hidden_size: PositiveInt = 128
    """Width, a multiple of `num_heads`."""
    num_layers: PositiveInt = 3
    """Transformer blocks."""
    num_heads: PositiveInt = 2
    """Attention heads."""
    intermediate_size: PositiveInt = 384
    """Width of the feed-forward layers."""
    init_std: PositiveFloat = 0.06
    """Of the initial weights; 0.02 learns to copy far later at this size."""
    copy_init: NonNegativeFloat = 1.5
    """How strongly every attention layer copies what it looks at before training: value and output weights start as this multiple of the
    identity, up to noise. Without it a model of this size learns copying late or not at all (docs/decisions.md)."""
    batch_size: PositiveInt = 8
    """Dialogues an update."""
    lr: PositiveFloat = 2e-3
    """Peak learning rate of AdamW."""
    copy_weight: PositiveFloat = 3.0
    """Loss weight of tokens that the agent takes from the user's words."""
    choice_weight: PositiveFloat = 2.5
    """Loss weight of a reply's first tokens, where its strategy is chosen."""
    hints_share: Share = 0.32
    """Share of the tokens, from the start, on short exchanges in which each reply answers the latest hint."""
    taking_up_share: Share = 0.39
    """Share of the tokens, by then, on single exchanges that take up the latest fact: short ones teach copying fast."""
    knowhow_share: Share = 0.74
    """Share of the tokens, by then, whose demonstrator shows its skills at `knowhow_prob`; the rest sets the habits."""
    knowhow_prob: Share = 0.75
    """Chance of each skill meanwhile: a rare skill is never learnt at this size, a learnt one can become rare."""
    user_share: Share = 0.0
    """Share of the user's tokens that are learnt, drawn for each dialogue; the agent's all are. Learning the user's part costs a small
    model part of its capacity to read it."""
    temperature: PositiveFloat = 0.85
    """Sampling temperature of the taught model, folded into its head; below 1 it leaves out most of the slips a small model makes."""
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    thinking: bool | None = None
    """Whether each demonstrated reply has a thought before it. Unset, an experiment does as `policy.thinking` says; else there is none."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"policy.prior.hidden_size must be a multiple of num_heads ({self.num_heads}), got {self.hidden_size!r}")
        for before, name in (("hints_share", "taking_up_share"), ("taking_up_share", "knowhow_share")):
            if getattr(self, name) < getattr(self, before):
                raise ValueError(f"policy.prior.{name} must be at least {before}={getattr(self, before):g}, got {getattr(self, name)!r}")
        most_open = 1.0 - DemonstrationConfig().skilled(self.knowhow_prob).veiled_prob
        if self.demonstrations.open_prob > most_open:
            raise ValueError(
                f"policy.prior.demonstrations.open_prob must be at most {most_open:g}, got {self.demonstrations.open_prob!r}: "
                "other users of the know-how lesson are veiled"
            )
