"""A supervised start: a language model imitates demonstrated replies before it learns from users, once, into a folder of the cache.

A base that rarely makes sense has little for a reward to choose from. `policy.sft.data` is a file of dialogues, a line each, in the
conversational format of other trainers: `{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}`.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from policy.config import LearnerConfig, LoraConfig, SftConfig
from policy.files import whole_folder
from policy.lora import adapter_parameters, add_adapters, merged_state
from policy.model import find_model, load_model, load_tokenizer, no_progress_bars, recompute_layers, token_logprobs_and_entropy
from policy.prior import cache_folder
from policy.process import choose_kernels
from simulator.files import read_jsonl
from simulator.tokens import Chat

Encoded = tuple[list[int], list[bool]]
"""Token ids of a dialogue and the mask of those that are learned, both [T]."""


def read_dialogues(path: Path) -> list[list[dict[str, str]]]:
    """The messages of every dialogue; ValueError for a file without any, or in which user and assistant do not take turns."""
    dialogues = []
    for number, record in read_jsonl(path, what="a dialogue with messages"):
        messages = record.get("messages") if isinstance(record, dict) else None
        said = messages if isinstance(messages, list) and all(isinstance(message, dict) for message in messages) else []
        roles, texts = [message.get("role") for message in said], [message.get("content") for message in said]
        if (
            not said
            or roles != ["user", "assistant"] * (len(said) // 2)
            or not all(isinstance(text, str) and text.strip() for text in texts)
        ):
            raise ValueError(
                f"policy.sft.data line {number} must hold messages, each a text, in which user and assistant take turns, the user first, "
                f"got the roles {roles}; a system prompt is policy.system_prompt"
            )
        dialogues.append([{"role": role, "content": text.strip()} for role, text in zip(roles, texts, strict=True)])
    if not dialogues:
        raise ValueError(f"policy.sft.data must hold a dialogue a line, got none in {str(path)!r}")
    return dialogues


def encode(chat: Chat, messages: Sequence[Mapping[str, str]], *, max_tokens: int) -> Encoded:
    """A dialogue as rollouts build it: all that the assistant says is learned, each reply with its end of turn. The end is cut off."""
    ids, mask = list[int](), list[bool]()
    for user, reply in zip(messages[::2], messages[1::2], strict=True):
        before = chat.continuation_ids(user["content"]) if ids else chat.opening_ids([user])
        said = chat.reply_ids(reply["content"])
        if len(ids) + len(before) + len(said) > max_tokens:
            break
        ids += before + said
        mask += [False] * len(before) + [True] * len(said)
    return ids, mask


def supervised_start(
    model: str | Path,
    config: SftConfig,
    learner: LearnerConfig,
    lora: LoraConfig,
    *,
    system_prompt: str,
    max_tokens: int,
    progress: bool = True,
) -> Path:
    """The folder of the model after its supervised start, trained first if the cache does not hold it.

    Args:
        model: folder or id of the model to start from.
        learner: its device, precision and micro-batches; the step size is `config.lr`.
        lora: adapters to train instead of all weights; the folder has them merged.
        max_tokens: of a dialogue; replies behind are left out.

    Raises:
        ValueError: the data cannot be read or learned from, or the cache cannot be written.
    """
    base, data = find_model(model), Path(config.data)
    dialogues = read_dialogues(data)
    chat = Chat(load_tokenizer(base), system_prompt)
    encoded = [encode(chat, messages, max_tokens=max_tokens) for messages in dialogues]
    encoded = [(ids, mask) for ids, mask in encoded if ids]
    if not encoded:
        raise ValueError(f"policy.sft.data must have a reply within rollout.max_context={max_tokens} tokens, got none in {str(data)!r}")
    facts = {"sft": {**asdict(config), "data": encoded}, "lora": asdict(lora), "base": _weights_hash(base), "autocast": learner.autocast}
    folder = cache_folder() / f"sft-{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    trained, tokenizer = load_model(base)
    if lora.rank:
        trained = add_adapters(trained, lora, seed=config.seed)
    _fit(trained.to(learner.device), encoded, config, learner, progress=progress)
    try:
        with whole_folder(folder, prefix=".sft-") as unfinished, no_progress_bars():
            trained.save_pretrained(unfinished, state_dict=merged_state(trained))
            tokenizer.save_pretrained(unfinished)
    except OSError as error:
        raise ValueError(f"{folder.parent} must be a folder that can be written, got {error}; set XDG_CACHE_HOME to another") from error
    del trained
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # engines and ranks may want the card
    return folder


def _weights_hash(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def _fit(model: Any, encoded: Sequence[Encoded], config: SftConfig, learner: LearnerConfig, *, progress: bool) -> None:
    """AdamW on the mean negative logprob a token; the step size rises over the first twentieth, then falls to 0 along a cosine."""
    if learner.gradient_checkpointing:
        recompute_layers(model)
    choose_kernels(model)
    adapters = adapter_parameters(model)
    trained = [each for name, each in model.named_parameters() if not adapters or name in adapters]
    optimizer = torch.optim.AdamW(trained, lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0)
    chance, per_epoch = random.Random(config.seed), math.ceil(len(encoded) / config.batch_size)
    num_steps, step, loss_mean = config.epochs * per_epoch, 0, math.nan
    every_s = 0.1 if sys.stderr.isatty() else 60.0  # a log file gets a line a minute
    with tqdm(total=num_steps, unit="batch", desc="Supervised start", mininterval=every_s, disable=not progress) as bar:
        for _ in range(config.epochs):
            order = chance.sample(range(len(encoded)), len(encoded))
            for first in range(0, len(order), config.batch_size):
                done = step / num_steps
                for group in optimizer.param_groups:
                    group["lr"] = config.lr * min(1.0, (step + 1) / (0.05 * num_steps), 0.5 * (1.0 + math.cos(math.pi * done)))
                loss = _step(model, [encoded[k] for k in order[first : first + config.batch_size]], learner)
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                loss_mean = loss if math.isnan(loss_mean) else 0.9 * loss_mean + 0.1 * loss
                bar.update()
                bar.set_postfix(nats=f"{loss_mean:.3f}", refresh=False)


def _step(model: Any, rows: Sequence[Encoded], learner: LearnerConfig) -> float:
    """Adds the gradient of a batch, micro-batch by micro-batch; returns its loss, nats a token."""
    num_learned, total = sum(sum(mask) for _, mask in rows), 0.0
    left = sorted(rows, key=lambda row: len(row[0]))
    while left:
        longest = len(left[-1][0])
        taken, left = left[-max(1, learner.micro_batch_tokens // longest) :], left[: -max(1, learner.micro_batch_tokens // longest)]
        ids_BT, mask_BT, real_BT = (torch.zeros((len(taken), longest), dtype=kind) for kind in (torch.int64, torch.bool, torch.bool))
        for row, (ids, mask) in enumerate(taken):
            ids_BT[row, : len(ids)], mask_BT[row, : len(ids)], real_BT[row, : len(ids)] = torch.tensor(ids), torch.tensor(mask), True
        on_device = [tensor.to(learner.device) for tensor in (ids_BT, real_BT, mask_BT)]
        with torch.autocast(torch.device(learner.device).type, dtype=torch.bfloat16, enabled=learner.autocast):
            logprobs_N, _ = token_logprobs_and_entropy(model, *on_device, logit_chunk_mb=learner.logit_chunk_mb)
        loss = -logprobs_N.sum() / num_learned
        loss.backward()
        total += loss.item()
    return total
