"""Tokenizers, random models and users small enough to build inside a test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from simulator.dialogue import Dialogue, Reaction, Speaker, Turn
from tests.tiny_scenario import make_scenario

TINY_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHATML_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = [
    "i had a hard week with my sister and i do not know what to say to her any more.",
    "that sounds heavy. what happened with your sister this week? tell me more about it, please.",
    "Thank you for listening; I feel a little better, system, user and assistant alike!",
]


def tiny_tokenizer(*, vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the embedded policy's template."""
    return _tokenizer(vocab_size, ["<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"], "<|end|>", TINY_TEMPLATE)


def chatml_tokenizer(*, vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a template in the manner of Qwen2.5."""
    return _tokenizer(vocab_size, ["<|im_end|>", "<|im_start|>", "<|pad|>"], "<|im_end|>", CHATML_TEMPLATE)


def _tokenizer(vocab_size: int, special: list[str], end: str, template: str) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        _TEXT, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    rest = [token for token in special if token not in (end, "<|pad|>")]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, pad_token="<|pad|>", additional_special_tokens=rest)
    tokenizer.chat_template = template
    return tokenizer


def save_tiny_policy(
    folder: Path,
    *,
    tied: bool = False,
    hidden: int = 128,
    layers: int = 3,
    vocab_size: int = 1000,
    positions: int = 1024,
    seed: int = 0,
) -> Path:
    """Writes a random Qwen2 with its tokenizer as a Hugging Face folder; as often, its vocabulary is larger than the tokenizer's."""
    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        initializer_range=0.06,
    )
    torch.manual_seed(seed)
    Qwen2ForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)


def logprobs_of(model: Qwen2ForCausalLM, prompt_ids, token_ids, *, temperature: float = 1.0) -> torch.Tensor:
    """[len(token_ids)] nats, of each token after those before it."""
    ids = torch.tensor([*map(int, prompt_ids), *map(int, token_ids)])
    logprobs_TV = (model(ids[None]).logits[0] / temperature).log_softmax(dim=-1)
    return logprobs_TV[len(prompt_ids) - 1 : -1].gather(1, ids[len(prompt_ids) :, None])[:, 0]


class FakeScenarios:
    """Makes up every scenario that is looked up."""

    def scenario(self, scenario_id):
        return make_scenario(scenario_id=scenario_id)


class NumberingUser:
    """Says the turn's number; slow in scenarios called `slow`, and broken in those called `broken`."""

    async def open(self, scenario, difficulty, *, seed):
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed).then(
            Turn(speaker=Speaker.USER, text=scenario.opening, emotion=40)
        )

    async def react(self, dialogue, reply):
        if dialogue.scenario.scenario_id == "broken":
            raise ConnectionError("not there")
        if dialogue.scenario.scenario_id == "slow":
            await asyncio.sleep(0.05)
        text = f"i heard thing number {dialogue.num_replies}."
        return Reaction(turn=Turn(speaker=Speaker.USER, text=text, emotion=dialogue.emotion + 2, change=2))
