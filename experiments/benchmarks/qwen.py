"""Models of Qwen2.5's published shapes with random weights, and the arithmetic and memory that training them takes.

Source: Qwen2.5 technical report, arXiv:2412.15115, and the models' config.json; counting of arithmetic: PaLM, arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from policy.config import PriorConfig
from policy.prior.prior import build_tokenizer
from simulator.scenario import Split
from simulator.world import load_bank


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool

    def config(self, *, positions: int) -> Qwen2Config:
        """As transformers wants it."""
        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=positions,
            tie_word_embeddings=self.tied,
        )

    @property
    def num_in_layers(self) -> int:
        """Parameters of all layers' matrices, each of which meets every token."""
        kv = self.hidden * self.kv_heads // self.heads
        return self.layers * (2 * self.hidden * (self.hidden + kv) + 3 * self.hidden * self.intermediate)

    @property
    def num_parameters(self) -> int:
        """All of them but norms and biases, which are below a thousandth."""
        return self.num_in_layers + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def update_flops(self, lengths: Sequence[int], num_trained: int) -> float:
        """Floating-point operations of one forward and backward pass: 6 for each matrix element a token meets.

        The output head counts for trained tokens alone, attention for the half that a causal mask leaves; what is computed a second time
        to save memory does not count.

        Args:
            lengths: tokens of each sequence.
        """
        matrices = 6.0 * self.num_in_layers * sum(lengths)
        head = 6.0 * self.vocabulary * self.hidden * num_trained
        attention = 6.0 * self.layers * self.hidden * sum(length * length for length in lengths)
        return matrices + head + attention

    @property
    def state_bytes(self) -> int:
        """What training cannot do without: float32 weights, their gradients and AdamW's two moments, 16 bytes a parameter."""
        return 16 * self.num_parameters


SHAPES = {
    "tiny": Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=128, vocabulary=4096, tied=True),
    "0.5b": Shape(hidden=896, layers=24, heads=14, kv_heads=2, intermediate=4864, vocabulary=151_936, tied=True),
    "1.5b": Shape(hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960, vocabulary=151_936, tied=True),
    "3b": Shape(hidden=2048, layers=36, heads=16, kv_heads=2, intermediate=11_008, vocabulary=151_936, tied=True),
    "7b": Shape(hidden=3584, layers=28, heads=28, kv_heads=4, intermediate=18_944, vocabulary=152_064, tied=False),
}
PEAK_FLOPS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 operations per second by a part of the card's name, from the makers' data sheets; the first that fits is meant."""


def peak_flops(card: str) -> float | None:
    """Of a card by its name; None for one that is not in the list."""
    return next((flops for name, flops in PEAK_FLOPS.items() if all(word in card for word in name.split())), None)


def random_model(shape: Shape, *, positions: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    """Built where it is to be, always the same for a device."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen2ForCausalLM(shape.config(positions=positions)).eval()
    finally:
        torch.set_default_dtype(before)


def save_random_policy(shape: Shape, folder: Path, *, positions: int, device: torch.device, dtype: torch.dtype) -> Path:
    """A Hugging Face folder for engines, with a small tokenizer of the built-in world in place of Qwen's."""
    tokenizer = build_tokenizer(PriorConfig(), (scenario.background for scenario in load_bank().scenarios(Split.TRAIN)))
    model = random_model(shape, positions=positions, device=device, dtype=dtype)
    assert len(tokenizer) <= shape.vocabulary, f"the vocabulary must hold the tokenizer's {len(tokenizer)} tokens, got {shape.vocabulary}"
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
