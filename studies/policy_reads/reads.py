"""Whether a policy reads what it is told: its own likelihoods on demonstrated replies, on training scenarios alone.

A reward says that a reply missed; this says whether the hint was read at all, and whether the noun was, before any reinforcement. The
prior's recipe was chosen by it (docs/decisions.md).
"""

from __future__ import annotations

import itertools
import random
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from policy.mode import learnt_to_think
from policy.model import find_model, load_model
from policy.prior import DemonstrationConfig, PriorConfig
from policy.prior.demonstrations import demonstrate
from policy.prior.prior import build_prior
from simulator.dialogue import Dialogue, Speaker
from simulator.emotion import hint_in, meets
from simulator.listener import strategies_in
from simulator.scenario import HiddenIntention, Scenario, Split
from simulator.scripted import MAX_TURNS
from simulator.tokens import Chat
from simulator.world import load_bank, read_toml

FIRST = 5
"""Tokens of a reply that are scored for hints: they nearly always tell its strategy."""
NUM_OTHERS = 3
"""Other wishes whose hints are put in the place of the one that was given."""
KINDS = ("overt", "veiled")
DETERMINERS = ("the", "your", "that", "those")
Logprobs = Callable[[list[dict[str, str]], str], list[float]]
"""Of a reply's tokens after these messages, nats."""
Best = Callable[[list[dict[str, str]], str, str], bool]
"""Whether the likeliest token after these messages and the beginning of a reply is the first of what it goes on with."""


@dataclass(frozen=True, kw_only=True)
class HintCase:
    """A reply that answers a hint, and where it was given."""

    messages: list[dict[str, str]]
    """The conversation before the reply."""
    reply: str
    kind: str
    wish: HiddenIntention


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("model", nargs="?", help="a Hugging Face folder, such as a run's checkpoint (default: the prior)")
    parser.add_argument("--num", type=int, default=600, help="replies for each measure (default 600, some minutes)")
    parser.add_argument("--seed", type=int, default=99, help="of the demonstrations (default 99)")


def run(options: Namespace) -> int:
    """Measures a policy's reading and prints the tables."""
    if options.num < 1:
        raise ValueError(f"--num must be at least 1, got {options.num}")
    folder = find_model(options.model) if options.model else build_prior(PriorConfig())
    if learnt_to_think(folder):
        raise ValueError(f"model must speak without thoughts, whose replies follow the user's words at once, got {str(folder)!r}")
    print(report(folder, num=options.num, seed=options.seed))
    return 0


def report(folder: Path, *, num: int, seed: int) -> str:
    """Both measures of the policy in a folder, as tables.

    Args:
        num: replies whose hints are looked at, and up to that many whose nouns are.
    """
    scenarios = load_bank().scenarios(Split.TRAIN)
    logprobs, best = _judges(folder)
    hints = hint_nats(logprobs, itertools.islice(hint_cases(scenarios, seed=seed), num), num=num, seed=seed)
    shares = noun_shares(best, scenarios, num_dialogues=max(1, num // MAX_TURNS), seed=seed)
    wishes = ("all", *HiddenIntention)
    lines = [
        "nats by which a fitting reply is likelier than after another wish's hint",
        f"{'':14}" + "".join(f"{kind:>8}" for kind in KINDS),
    ]
    lines += [f"{wish:14}" + "".join(f"{_mean(hints[kind, wish]):8.2f}" for kind in KINDS) for wish in wishes]
    lines += [
        "",
        "places in which the right noun is the likeliest",
        *(f"{word:14}{_mean(hits):8.2f}  of {len(hits)}" for word, hits in shares),
    ]
    return "\n".join(lines)


def hint_cases(scenarios: Sequence[Scenario], *, seed: int) -> Iterator[HintCase]:
    """Demonstrated replies that give the latest hint what it asks for, without an apology before it."""
    config = replace(DemonstrationConfig(), fit_overt_prob=0.9, fit_veiled_prob=0.9, veiled_prob=0.45, ground_prob=0.3)
    for demo in demonstrate(config, scenarios, seed=seed):
        dialogue = demo.dialogue
        for number in range(4, len(dialogue.turns)):
            reply = dialogue.turns[number]
            if reply.speaker is not Speaker.AGENT:
                continue
            before = replace(dialogue, turns=dialogue.turns[:number])
            kind, wish = _latest_hint(before)
            heard = strategies_in(reply.text)
            if wish and "apology" not in heard and meets(dialogue.scenario.family) & set(heard):
                yield HintCase(messages=before.messages(), reply=reply.text, kind=kind, wish=wish)


def hint_nats(logprobs: Logprobs, cases: Iterator[HintCase], *, num: int, seed: int) -> dict[tuple[str, str], list[float]]:
    """For every case, log p(reply | its hints) less the mean over other wishes of log p(reply | theirs), over the first tokens.

    Returns:
        Nats by (kind of hint, wish or "all").
    """
    chance = random.Random(seed)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in tqdm(cases, total=num, desc="Hints", unit="reply", leave=False):
        others = chance.sample([wish for wish in HiddenIntention if wish is not case.wish], NUM_OTHERS)
        own = sum(logprobs(case.messages, case.reply)[:FIRST])
        changed = [sum(logprobs(_hinting(case.messages, other, chance), case.reply)[:FIRST]) for other in others]
        nats = own - sum(changed) / NUM_OTHERS
        found[case.kind, case.wish].append(nats)
        found[case.kind, "all"].append(nats)
    return found


def noun_shares(best: Best, scenarios: Sequence[Scenario], *, num_dialogues: int, seed: int) -> list[tuple[str, list[float]]]:
    """Whether the likeliest token after a determiner is the one that goes on with what was told, by determiner.

    The facts are collages, in which nothing can be remembered.
    """
    config = replace(DemonstrationConfig().skilled(0.75), earlier_prob=0.5, ground_prob=0.9, collage_prob=1.0)
    hits: dict[str, list[float]] = {word: [] for word in DETERMINERS}
    demos = itertools.islice(demonstrate(config, scenarios, seed=seed), num_dialogues)
    for demo in tqdm(demos, total=num_dialogues, desc="Nouns", unit="dialogue", leave=False):
        places = [number for number, turn in enumerate(demo.dialogue.turns) if turn.speaker is Speaker.AGENT]
        for number, phrases in zip(places, demo.copied, strict=True):
            before, text = replace(demo.dialogue, turns=demo.dialogue.turns[:number]).messages(), demo.dialogue.turns[number].text
            for phrase in phrases:
                determiner, _, noun = phrase.partition(" ")
                if determiner in hits and noun:
                    hits[determiner].append(best(before, text[: text.find(phrase) + len(determiner)], f" {noun}"))
    return list(hits.items())


def _latest_hint(dialogue: Dialogue) -> tuple[str, HiddenIntention | None]:
    for turn in reversed(dialogue.turns):
        if turn.speaker is Speaker.USER:
            for kind in KINDS:
                if wish := hint_in(turn.text, kinds=(kind,)):
                    return kind, wish
    return "", None


def _hinting(messages: list[dict[str, str]], wish: HiddenIntention, chance: random.Random) -> list[dict[str, str]]:
    """The same conversation with a user who hints at another wish, as openly."""
    hints, changed = read_toml("phrases")["hints"], []
    for message in messages:
        text = message["content"]
        if message["role"] == "user":
            for pools in hints.values():
                for kind, lines in pools.items():
                    for line in lines:
                        text = text.replace(line, chance.choice(hints[wish][kind]))
        changed.append({**message, "content": text})
    return changed


def _judges(folder: Path) -> tuple[Logprobs, Best]:
    model, tokenizer = load_model(folder)
    chat = Chat(tokenizer)

    @torch.no_grad()
    def logprobs(messages: list[dict[str, str]], reply: str) -> list[float]:
        before, said = chat.opening_ids(messages), tokenizer(reply, add_special_tokens=False).input_ids
        ids_1T = torch.tensor([[*before, *said]])
        scores_SV = model(input_ids=ids_1T).logits[0, len(before) - 1 : -1].log_softmax(-1)
        return scores_SV.gather(1, ids_1T[0, len(before) :, None]).squeeze(1).tolist()

    @torch.no_grad()
    def best(messages: list[dict[str, str]], begun: str, goes_on: str) -> bool:
        ids = [*chat.opening_ids(messages), *tokenizer(begun, add_special_tokens=False).input_ids]
        likeliest = model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()
        return int(likeliest) == tokenizer(goes_on, add_special_tokens=False).input_ids[0]

    return logprobs, best


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
