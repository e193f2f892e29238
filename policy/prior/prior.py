"""Where the prior of a recipe lies, found without importing torch: what a run would begin with is asked before anything heavy starts.

The process that builds a prior: `python -m policy.prior_process FOLDER`, with the pickled recipe on standard input.

The embedded policy before training: a small Qwen2 with its own tokenizer, taught by demonstrations and cached by its recipe's hash.
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
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch.nn import functional as F
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from policy.config import PriorConfig
from policy.files import OwnFolder, flush, open_as_its_folder
from policy.prior import prior_folder, recipe_of
from policy.prior.demonstrations import Demonstration, ShownThought, demonstrate, thoughts
from policy.process import ENDS_WITH, NUM_THREADS, alike_everywhere, choose_kernels, end_with_parent, threads
from policy.rollout.chat import CLOSE, MARK, OPEN, RECIPE
from simulator.dialogue import Speaker
from simulator.scenario import Scenario, Split
from simulator.world import load_bank

if TYPE_CHECKING:
    from policy.config import PriorConfig


INTERRUPTED = 128 + signal.SIGINT
QUIET = "--quiet"


def build_apart(config: PriorConfig, folder: Path, *, progress: bool) -> None:
    """Trains a prior in a process of its own, which computes alike on every processor and ends with this one, and saves it in a folder.

    Raises:
        RuntimeError: it failed; what it said of it stands on standard error.
        KeyboardInterrupt: it was interrupted.
    """
    command = [sys.executable, "-m", __name__, str(folder), *([] if progress else [QUIET])]
    root = str(Path(__file__).parents[2])
    environment = alike_everywhere()
    environment[ENDS_WITH] = str(os.getpid())
    environment["PYTHONPATH"] = ":".join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    try:
        code = subprocess.run(command, input=pickle.dumps(config), env=environment, check=False).returncode
    except OSError as error:
        raise RuntimeError(f"the prior could not be built: its process could not be started ({error})") from error
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise RuntimeError(f"the prior could not be built: its process ended with exit code {code}, and what it printed says why")


def main(arguments: list[str]) -> int:
    """Trains the prior whose recipe stands on standard input; returns the exit code."""
    end_with_parent()
    config = pickle.load(sys.stdin.buffer)
    from policy.prior.prior import save_prior

    try:
        save_prior(config, Path(arguments[0]), progress=QUIET not in arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
CHOICE_TOKENS = 3
"""With which a reply begins; they nearly always tell its strategy."""
WORD_WEIGHT = 20
"""How often each word that is told counts beside the demonstrations when the tokenizer is trained: enough for rare ones to stay whole."""


def build_prior(config: PriorConfig, *, progress: bool = True) -> Path:
    """The folder of the prior in Hugging Face format, built first if the cache does not hold it.

    A build that is interrupted leaves nothing behind; what a killed one leaves goes with the next build, of whatever recipe. Two at once
    do not harm each other.

    Raises:
        RuntimeError: the cache folder cannot be written, or the build failed.
    """
    folder = prior_folder(config)
    return folder if folder.exists() else build_anew(config, folder, progress=progress)


def build_anew(config: PriorConfig, folder: Path, *, progress: bool = True) -> Path:
    """Builds a prior into a folder that is not there yet, by way of an unfinished one beside it.

    Raises:
        ValueError: the folder is there.
        RuntimeError: the folder around it cannot be written, or the build failed.
    """
    if folder.exists():
        raise ValueError(f"--out must be a folder that is not there yet, got {str(folder)!r}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with OwnFolder(".prior-", parent=folder.parent) as closed:
            # One within, since that one is for this user alone, whatever others may read here.
            unfinished = Path(closed) / folder.name
            unfinished.mkdir()
            build_apart(config, unfinished, progress=progress)
            _put_into_place(unfinished, folder)
    except OSError as error:
        raise RuntimeError(
            f"the prior's cache {folder.parent} must be writable ({error}); set XDG_CACHE_HOME to a folder that is"
        ) from error
    return folder


def _put_into_place(unfinished: Path, folder: Path) -> None:
    """Gives a prior that is whole its name; one of the same recipe that was built meanwhile is as good."""
    for path in unfinished.iterdir():
        open_as_its_folder(path)
        flush(path)
    flush(unfinished)
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    flush(folder.parent)


def save_prior(config: PriorConfig, folder: Path, *, progress: bool = True) -> None:
    """Trains a prior and saves it as a Hugging Face folder, weights in bfloat16, in this process and as it computes."""
    tokenizer, model = train_prior(config, load_bank().scenarios(Split.TRAIN), progress=progress)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / RECIPE).write_text(json.dumps(recipe_of(config), indent=2))


def train_prior(config: PriorConfig, scenarios: Sequence[Scenario], *, progress: bool) -> tuple[Qwen2Tokenizer, Qwen2ForCausalLM]:
    """Tokenizer and model of a recipe, taught from these scenarios. Leaves the global generators as they were."""
    knowhow = config.demonstrations.skilled(config.knowhow_prob)
    lessons = [
        (config.hints_share, demonstrate(knowhow.answering_hints(), scenarios, seed=config.seed + 3)),
        (config.taking_up_share, demonstrate(knowhow.taking_up(), scenarios, seed=config.seed + 2)),
        (config.knowhow_share, demonstrate(knowhow, scenarios, seed=config.seed)),
        (1.0, demonstrate(config.demonstrations, scenarios, seed=config.seed + 1)),
    ]
    shown = list(itertools.islice(demonstrate(knowhow, scenarios, seed=config.seed), 3000))
    said = (turn.text for demo in shown for turn in demo.dialogue.turns)
    thought = _thoughts_of(shown, seed=config.seed) if config.thinking else ()
    tokenizer = build_tokenizer(config, itertools.chain(said, thought, WORD_WEIGHT * [words_told(scenarios)]))
    with torch.random.fork_rng(devices=[]), threads(NUM_THREADS):
        torch.manual_seed(config.seed)
        model = build_model(config, tokenizer)
        choose_kernels(model)
        _fit(config, model, tokenizer, lessons, progress=progress)
    if config.thinking:
        setattr(model.config, MARK, True)
    return tokenizer, untied(model, temperature=config.temperature).eval()


def _thoughts_of(demos: Iterable[Demonstration], *, seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    return (thought.text for demo in demos for thought in thoughts(demo, chance))


def words_told(scenarios: Iterable[Scenario]) -> str:
    """Every word in what these users tell, once."""
    lines = (line for scenario in scenarios for line in (scenario.opening, *(fact.text for fact in scenario.facts)))
    return " " + " ".join(sorted({word for line in lines for word in re.findall(r"[a-z]{3,}", line)}))


def build_tokenizer(config: PriorConfig, texts: Iterable[str]) -> Qwen2Tokenizer:
    """A byte-level BPE tokenizer trained on these texts, with a chat template of one token a role.

    It splits words as Qwen2's own does: transformers and vLLM give a Qwen2 folder that class, whatever was saved.
    """
    trained = Tokenizer(BPE())
    trained.normalizer, trained.pre_tokenizer = (
        Qwen2Tokenizer().backend_tokenizer.normalizer,
        Qwen2Tokenizer().backend_tokenizer.pre_tokenizer,
    )
    trainer = BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
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
    tokenizer.chat_template = CHAT_TEMPLATE
    if config.thinking:
        # Not special: what is decoded keeps them.
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (OPEN, CLOSE)])
    return tokenizer


def build_model(config: PriorConfig, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """A Qwen2 that repeats what it looks at; its head is tied to its embeddings: a word it can read is then one that it can repeat."""
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
    _start_copying(model, config.copy_init)
    return model


@torch.no_grad()
def _start_copying(model: Qwen2ForCausalLM, strength: float) -> None:
    """Adds to each layer's value and output weights a rotation and its inverse, whose product is `strength` times the identity.

    Source: mimetic initialisation, arXiv 2305.09828, which starts image models near what attention layers come to look like.
    """
    for layer in model.model.layers:
        rotation_HH = torch.linalg.qr(torch.randn(model.config.hidden_size, model.config.hidden_size)).Q
        layer.self_attn.v_proj.weight.add_(rotation_HH, alpha=strength**0.5)
        layer.self_attn.o_proj.weight.add_(rotation_HH.T, alpha=strength**0.5)


def untied(model: Qwen2ForCausalLM, *, temperature: float) -> Qwen2ForCausalLM:
    """The model as sampled at this temperature; a head of its own lets a CPU engine take every weight update (docs/decisions.md)."""
    config = Qwen2Config(**{**model.config.to_dict(), "tie_word_embeddings": False})
    separate = Qwen2ForCausalLM(config)
    separate.load_state_dict({**model.state_dict(), "lm_head.weight": model.get_input_embeddings().weight.detach() / temperature})
    return separate


def encode(demo: Demonstration, tokenizer: Qwen2Tokenizer, config: PriorConfig, chance: random.Random) -> tuple[list[int], list[float]]:
    """Token ids of a dialogue and the loss weight of each, both [T]; of the user's tokens, chance picks those that count."""
    ids: list[int] = []
    weights: list[float] = []
    copied, thought = iter(demo.copied), thoughts(demo, chance)
    for turn in demo.dialogue.turns:
        agent = turn.speaker is Speaker.AGENT
        encoded = tokenizer(turn.text, add_special_tokens=False, return_offsets_mapping=True)
        spans = [_span(turn.text, phrase) for phrase in next(copied)] if agent else []
        ids.append(tokenizer.convert_tokens_to_ids("<|assistant|>" if agent else "<|user|>"))
        weights.append(0.0)
        if agent and config.thinking:
            thought_ids, thought_weights = _encode_thought(next(thought), tokenizer, config)
            ids += thought_ids
            weights += thought_weights
        ids += [*encoded["input_ids"], tokenizer.eos_token_id]
        if agent:
            inside = [_touches(spans, place) for place in encoded["offset_mapping"]]
            chosen = [config.choice_weight if number < CHOICE_TOKENS else 1.0 for number in range(len(inside))]
            weights += [*(config.copy_weight if copy else choice for copy, choice in zip(inside, chosen, strict=True)), 1.0]
        else:
            weights += [float(chance.random() < config.user_share) for _ in range(len(encoded["input_ids"]) + 1)]
    return ids, weights


def _encode_thought(thought: ShownThought, tokenizer: Qwen2Tokenizer, config: PriorConfig) -> tuple[list[int], list[float]]:
    """The ids of a thought between its tags, and their loss weights: what it chooses and what it copies weigh as they do in words."""
    encoded = tokenizer(thought.text, add_special_tokens=False, return_offsets_mapping=True)
    copied, chosen = ([_span(thought.text, phrase) for phrase in phrases] for phrases in (thought.copied, thought.chosen))
    weights = [
        config.copy_weight if _touches(copied, place) else config.choice_weight if _touches(chosen, place) else 1.0
        for place in encoded["offset_mapping"]
    ]
    opening, closing = tokenizer.convert_tokens_to_ids([OPEN, CLOSE])
    return [opening, *encoded["input_ids"], closing], [1.0, *weights, 1.0]


def _touches(spans: Sequence[tuple[int, int]], place: tuple[int, int]) -> bool:
    """Whether a token's characters overlap one of the spans."""
    return any(place[0] < b and a < place[1] for a, b in spans)


def _span(text: str, phrase: str) -> tuple[int, int]:
    start = text.find(phrase)
    return start, start + len(phrase)


def _fit(
    config: PriorConfig,
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    lessons: Sequence[tuple[float, Iterable[Demonstration]]],
    *,
    progress: bool,
) -> None:
    """AdamW with warm-up and cosine decay over `num_tokens` tokens; each lesson lasts until its share of them is done."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    seen, loss_mean = 0, math.nan
    model.train()
    with tqdm(total=config.num_tokens, unit="tok", unit_scale=True, desc="Building the prior", disable=not progress) as bar:
        for share, demos in lessons:
            for ids_BT, weights_BT, attention_BT in _batches(config, tokenizer, demos):
                if seen >= share * config.num_tokens:
                    break
                loss = _weighted_loss(model, ids_BT, weights_BT, attention_BT)
                _descend(model, optimizer, loss, lr=config.lr * _schedule(seen / config.num_tokens))
                num_tokens = int(attention_BT.sum())
                seen += num_tokens
                loss_mean = loss.item() if math.isnan(loss_mean) else 0.98 * loss_mean + 0.02 * loss.item()
                bar.update(num_tokens)
                bar.set_postfix(loss=f"{loss_mean:.3f}", refresh=False)


def _descend(model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, loss: torch.Tensor, *, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _schedule(done: float) -> float:
    """Share of the peak learning rate after a share of the tokens: 3 % warm-up, then cosine to a twentieth."""
    if done < 0.03:
        return (done + 1e-3) / 0.03
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def _weighted_loss(model: Qwen2ForCausalLM, ids_BT: torch.Tensor, weights_BT: torch.Tensor, attention_BT: torch.Tensor) -> torch.Tensor:
    hidden_BTH = model.model(input_ids=ids_BT, attention_mask=attention_BT).last_hidden_state
    learnt_BT = weights_BT[:, 1:] > 0
    logits_NV = model.lm_head(hidden_BTH[:, :-1][learnt_BT])
    losses_N = F.cross_entropy(logits_NV, ids_BT[:, 1:][learnt_BT], reduction="none")
    weights_N = weights_BT[:, 1:][learnt_BT]
    return (losses_N * weights_N).sum() / weights_N.sum()


def _batches(
    config: PriorConfig, tokenizer: Qwen2Tokenizer, demos: Iterable[Demonstration]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Padded batches of dialogues of like length, in random order within windows of 64 batches."""
    chance = random.Random(config.seed)
    stream = (encode(demo, tokenizer, config, chance) for demo in demos)
    while True:
        window = sorted(itertools.islice(stream, 64 * config.batch_size), key=lambda pair: len(pair[0]))
        batches = [window[i : i + config.batch_size] for i in range(0, len(window), config.batch_size)]
        chance.shuffle(batches)
        yield from (_pad(batch, tokenizer.pad_token_id) for batch in batches)


def _pad(batch: list[tuple[list[int], list[float]]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    length = max(len(ids) for ids, _ in batch)
    ids_BT = torch.tensor([ids + [pad_id] * (length - len(ids)) for ids, _ in batch])
    weights_BT = torch.tensor([weights + [0.0] * (length - len(weights)) for _, weights in batch])
    attention_BT = torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids, _ in batch])
    return ids_BT, weights_BT, attention_BT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
