"""The embedded policy before training: a small Qwen2 with its own tokenizer, taught by demonstrations and cached by its recipe's hash.

A prior is built in a process of its own: `python -m policy.prior.prior FOLDER`, with the pickled recipe on standard input.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch.nn import functional as F
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from policy.files import whole_folder
from policy.mode import MARK, RECIPE
from policy.prior import PriorConfig, prior_folder, recipe_of
from policy.prior.demonstrations import Demonstration, demonstrate, thoughts
from policy.process import ENDS_WITH, NUM_THREADS, choose_kernels, end_with_parent, reproducible_environment, threads
from simulator.dialogue import Speaker
from simulator.scenario import Scenario, Split
from simulator.tokens import CLOSE, OPEN
from simulator.world import load_bank

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


def build_prior(config: PriorConfig, *, progress: bool = True) -> Path:
    """The folder of the prior in Hugging Face format, built first if the cache does not hold it; two builds at once do no harm."""
    folder = prior_folder(config)
    return folder if folder.exists() else build_into(config, folder, progress=progress)


def build_into(config: PriorConfig, folder: Path, *, progress: bool = True) -> Path:
    """Builds a prior into a new folder, by way of an unfinished one next to it.

    Raises:
        ValueError: the folder is there.
        RuntimeError: the folder around it cannot be written, or the build failed.
    """
    if folder.exists():
        raise ValueError(f"--out must be a folder that is not there yet, got {str(folder)!r}")
    try:
        with whole_folder(folder, prefix=".prior-") as unfinished:
            command = [sys.executable, "-m", __name__, str(unfinished), *([] if progress else ["--quiet"])]
            # This process computes the same on every processor and ends with the one that waits for it.
            environment = reproducible_environment() | {ENDS_WITH: str(os.getpid())}
            environment["PYTHONPATH"] = ":".join(filter(None, [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]))
            code = subprocess.run(command, input=pickle.dumps(config), env=environment, check=False).returncode
            if code == 128 + signal.SIGINT:
                raise KeyboardInterrupt
            if code:
                raise RuntimeError(f"the prior could not be built: its process ended with exit code {code}, and its output says why")
    except OSError as error:
        raise RuntimeError(
            f"the prior's cache {folder.parent} must be writable ({error}); set XDG_CACHE_HOME to a folder that is"
        ) from error
    return folder


def main(arguments: list[str]) -> int:
    """Trains the prior whose recipe comes on standard input; returns the exit code."""
    end_with_parent()
    config, folder = pickle.load(sys.stdin.buffer), Path(arguments[0])
    try:
        tokenizer, model = train_prior(config, load_bank().scenarios(Split.TRAIN), progress="--quiet" not in arguments)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / RECIPE).write_text(json.dumps(recipe_of(config), indent=2))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def train_prior(config: PriorConfig, scenarios: Sequence[Scenario], *, progress: bool) -> tuple[Qwen2Tokenizer, Qwen2ForCausalLM]:
    """Tokenizer and model of a recipe, taught from these scenarios. Leaves the global generators as they were."""
    knowhow = config.demonstrations.skilled(config.knowhow_prob)
    lessons = [
        (config.hints_share, demonstrate(knowhow.answering_hints(), scenarios, seed=config.seed + 3)),
        (config.taking_up_share, demonstrate(knowhow.taking_up(), scenarios, seed=config.seed + 2)),
        (config.knowhow_share, demonstrate(knowhow, scenarios, seed=config.seed)),
        (1.0, demonstrate(config.demonstrations, scenarios, seed=config.seed + 1)),
    ]
    # The tokenizer learns its words from a thousandth as many dialogues as there are tokens to learn from, 3,000 at most.
    shown = list(itertools.islice(demonstrate(knowhow, scenarios, seed=config.seed), min(3000, config.num_tokens // 1000)))
    texts = [turn.text for demo in shown for turn in demo.dialogue.turns]
    if config.thinking:
        chance = random.Random(config.seed)
        texts += [thought.text for demo in shown for thought in thoughts(demo, chance)]
    # Rare words of the users' facts stay whole with 20 copies of each.
    tokenizer = build_tokenizer(config, [*texts, *20 * [fact_words(scenarios)]])
    with torch.random.fork_rng(devices=[]), threads(NUM_THREADS):
        torch.manual_seed(config.seed)
        model = build_model(config, tokenizer)
        choose_kernels(model)
        _fit(config, model, tokenizer, lessons, progress=progress)
    if config.thinking:
        setattr(model.config, MARK, True)
    # A head of its own lets a CPU engine take every weight update (docs/decisions.md); the sampling temperature is folded into it.
    untied = Qwen2ForCausalLM(Qwen2Config(**{**model.config.to_dict(), "tie_word_embeddings": False}))
    untied.load_state_dict({**model.state_dict(), "lm_head.weight": model.get_input_embeddings().weight.detach() / config.temperature})
    return tokenizer, untied.eval()


def fact_words(scenarios: Iterable[Scenario]) -> str:
    """Every word of the users' openings and facts, once."""
    lines = (line for scenario in scenarios for line in (scenario.opening, *(fact.text for fact in scenario.facts)))
    return " " + " ".join(sorted({word for line in lines for word in re.findall(r"[a-z]{3,}", line)}))


def build_tokenizer(config: PriorConfig, texts: Iterable[str]) -> Qwen2Tokenizer:
    """A byte-level BPE tokenizer trained on these texts, with a chat template of one token a role.

    It splits words as Qwen2's own does: transformers and vLLM load a Qwen2 folder with that class, even if another was saved.
    """
    qwen2, trained = Qwen2Tokenizer().backend_tokenizer, Tokenizer(BPE())
    trained.normalizer, trained.pre_tokenizer = qwen2.normalizer, qwen2.pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=config.vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    learnt = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(pair) for pair in learnt["merges"]],
        unk_token="<|pad|>",
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    if config.thinking:
        # Not special: decoding keeps them.
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (OPEN, CLOSE)])
    return tokenizer


def build_model(config: PriorConfig, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """A Qwen2 whose attention copies from the start; its head is tied to its embeddings: a word it can read is one that it can copy.

    Each layer's value and output weights get a rotation and its inverse, whose product is `copy_init` times the identity.

    Source: mimetic initialisation, arXiv 2305.09828, which starts image models near the final form of attention layers.
    """
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            intermediate_size=config.intermediate_size,
            initializer_range=config.init_std,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        for layer in model.model.layers:
            rotation_HH = torch.linalg.qr(torch.randn(config.hidden_size, config.hidden_size)).Q
            layer.self_attn.v_proj.weight.add_(rotation_HH, alpha=config.copy_init**0.5)
            layer.self_attn.o_proj.weight.add_(rotation_HH.T, alpha=config.copy_init**0.5)
    return model


def encode(demo: Demonstration, tokenizer: Qwen2Tokenizer, config: PriorConfig, chance: random.Random) -> tuple[list[int], list[float]]:
    """Token ids of a dialogue and the loss weight of each, both [T]; of the user's tokens, chance picks those that count.

    What decides weighs more (in a reply its first three tokens, in a thought the wish and the move), as do phrases copied from the user.
    """
    ids: list[int] = []
    weights: list[float] = []
    copied, thought = iter(demo.copied), thoughts(demo, chance)

    def learn(text: str, copied: Sequence[str], *, chosen: Sequence[str] = (), num_first: int = 0, ends_with: int) -> None:
        def overlaps(phrases: Sequence[str], start: int, end: int) -> bool:
            return any(start < at + len(phrase) and at < end for phrase in phrases for at in [text.find(phrase)])

        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        for number, offsets in enumerate(encoded["offset_mapping"]):
            weight = config.choice_weight if number < num_first or overlaps(chosen, *offsets) else 1.0
            weights.append(config.copy_weight if overlaps(copied, *offsets) else weight)
        ids.extend([*encoded["input_ids"], ends_with])
        weights.append(1.0)

    for turn in demo.dialogue.turns:
        agent = turn.speaker is Speaker.AGENT
        ids.append(tokenizer.convert_tokens_to_ids("<|assistant|>" if agent else "<|user|>"))
        weights.append(0.0)
        if agent:
            if config.thinking:
                shown = next(thought)
                ids.append(tokenizer.convert_tokens_to_ids(OPEN))
                weights.append(1.0)
                learn(shown.text, shown.copied, chosen=shown.chosen, ends_with=tokenizer.convert_tokens_to_ids(CLOSE))
            learn(turn.text, next(copied), num_first=3, ends_with=tokenizer.eos_token_id)
        else:
            said = [*tokenizer(turn.text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            ids += said
            weights += [float(chance.random() < config.user_share) for _ in said]
    return ids, weights


Lessons = Sequence[tuple[float, Iterable[Demonstration]]]
"""Demonstrations and the share of the tokens until which each kind lasts."""


def _fit(config: PriorConfig, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, lessons: Lessons, *, progress: bool) -> None:
    """AdamW over `num_tokens` tokens; the learning rate has 3 % warm-up, then a cosine to a twentieth of its peak."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    seen, loss_mean = 0, math.nan
    model.train()
    every_s = 0.1 if sys.stderr.isatty() else 60.0  # a log file gets a line a minute
    with tqdm(
        total=config.num_tokens, unit="tok", unit_scale=True, desc="Building the prior", mininterval=every_s, disable=not progress
    ) as bar:
        for share, demos in lessons:
            for ids_BT, weights_BT, attention_BT in _batches(config, tokenizer, demos):
                if seen >= share * config.num_tokens:
                    break
                learnt_BT, done = weights_BT[:, 1:] > 0, seen / config.num_tokens
                hidden_BTH = model.model(input_ids=ids_BT, attention_mask=attention_BT).last_hidden_state
                logits_NV, weights_N = model.lm_head(hidden_BTH[:, :-1][learnt_BT]), weights_BT[:, 1:][learnt_BT]
                losses_N = F.cross_entropy(logits_NV, ids_BT[:, 1:][learnt_BT], reduction="none")
                loss = (losses_N * weights_N).sum() / weights_N.sum()
                cosine = 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
                for group in optimizer.param_groups:
                    group["lr"] = config.lr * ((done + 1e-3) / 0.03 if done < 0.03 else cosine)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                num_tokens = int(attention_BT.sum())
                seen += num_tokens
                loss_mean = loss.item() if math.isnan(loss_mean) else 0.98 * loss_mean + 0.02 * loss.item()
                bar.update(num_tokens)
                bar.set_postfix(loss=f"{loss_mean:.3f}", refresh=False)


def _batches(
    config: PriorConfig, tokenizer: Qwen2Tokenizer, demos: Iterable[Demonstration]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Padded batches of dialogues of similar length, in random order within windows of batches: ids, loss weights, attention."""
    # Sixty-four batches in the default recipe, fewer for the few tokens of a small one.
    chance, num_batches = random.Random(config.seed), min(64, config.num_tokens // 50_000 + 1)
    stream = (encode(demo, tokenizer, config, chance) for demo in demos)
    while True:
        window = sorted(itertools.islice(stream, num_batches * config.batch_size), key=lambda pair: len(pair[0]))
        batches = [window[i : i + config.batch_size] for i in range(0, len(window), config.batch_size)]
        chance.shuffle(batches)
        for batch in batches:
            longest = max(len(ids) for ids, _ in batch)
            gaps = [longest - len(ids) for ids, _ in batch]
            yield (
                torch.tensor([ids + [tokenizer.pad_token_id] * gap for (ids, _), gap in zip(batch, gaps, strict=True)]),
                torch.tensor([weights + [0.0] * gap for (_, weights), gap in zip(batch, gaps, strict=True)]),
                torch.tensor([[1] * (longest - gap) + [0] * gap for gap in gaps]),
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
