"""Fact recall probe of the embedded policy: does it name the thing that the user has just told of?

The prior knows nothing of the world but has learnt to take up a thing that a user told of ("What happened with the piano?"). So the fact
is the user's own, told two turns ago, and the question is a forced choice: after the beginning of a demonstrated reply ("What happened
with the"), is that thing likelier than one that was never told of? Between telling and question the user says a neutral word, or an
emotional one, or claims that it was the other thing and asks for agreement. Facts combine held-out events with other events' things, so
nothing can be remembered, and no training scenario is among them.

The probe measures whether a policy still reads facts under emotion and pressure. A policy cannot say no: to agree means that the claimed
thing has become the likelier one. Only differences between conditions, and between a policy and its prior, are meaningful.

A policy that thinks takes things up in its thought, from which its words copy them: it chooses there, after the beginning of a demonstrated
thought ("Wish unclear, told of the"). That is another probe, with another hash.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.agents.questions import Condition, Messages, Verdict, Verdicts, chosen_line
from policy.config import DemonstrationConfig
from policy.model import load_model
from policy.prior.demonstrations import NOTHING_HINTED, TAKEN_UP, demonstrate
from policy.rollout.chat import OPEN, Chat, learnt_to_think
from simulator.dialogue import Dialogue
from simulator.files import progress
from simulator.scenario import Split
from simulator.version import world_name
from simulator.world import load_bank, read_toml

DETERMINER = "the"
"""Before the things that are asked for: with it demonstrators take up the thing that was told of last."""
THOUGHT = f"{OPEN}{NOTHING_HINTED[-1]}{TAKEN_UP[0].format(cue=DETERMINER)}"
"""Beginning of the thought in which a policy that thinks chooses; another demonstrated beginning changes next to nothing."""


@dataclass(frozen=True, kw_only=True)
class ToldFact:
    """A fact that a user tells, and the beginning of a reply that continues with its thing. Its fields decide the probe's hash."""

    name: str
    conversation: dict[Condition, Messages]
    """The turns before the reply."""
    begun: str
    """The reply, or the thought before it, up to the determiner."""
    right: str
    wrong: str
    """A thing that was not told of, with the same number of tokens, plural if the right one is."""


def make_facts(tokenizer: Any, *, num: int, seed: int, thinking: bool = False) -> list[ToldFact]:
    """`num` facts, the same for every policy with the same tokenizer.

    Args:
        tokenizer: decides how many tokens a noun has.
        thinking: whether the thing is chosen in a thought.
    """
    # Dialogues whose reply takes up a noun: twice as many as needed, each noun a few times at most.
    heldout = load_bank().scenarios(Split.HELDOUT)
    most, counts, told = max(1, 2 * num // 40), Counter[str](), list[tuple[Dialogue, str, str]]()
    for demo in demonstrate(DemonstrationConfig().skilled(1.0).taking_up(), heldout, seed=seed):
        reply = demo.dialogue.turns[1].text
        for phrase in demo.copied[0]:
            determiner, _, noun = phrase.partition(" ")
            is_usable = determiner == DETERMINER and noun and " " not in noun and phrase in reply
            if is_usable and counts[noun] < most and len(told) < 2 * num:
                counts[noun] += 1
                told.append((demo.dialogue, reply[: reply.find(phrase) + len(determiner)], noun))
        if len(told) >= 2 * num:
            break
    rng = random.Random(f"told facts|{seed}")
    lengths = {noun: len(tokenizer(f" {noun}", add_special_tokens=False).input_ids) for _, _, noun in told}
    found: list[ToldFact] = []
    for dialogue, begun, noun in told:
        if len(found) >= num:
            break
        name = f"{len(found):04d} {noun}"
        turns = _turns(dialogue, name)
        text = " ".join(turns.values()).lower()
        others = [
            other
            for other in sorted(lengths)
            if lengths[other] == lengths[noun] and other.endswith("s") == noun.endswith("s") and other not in text
        ]
        if others:
            wrong = rng.choice(others)
            claim = chosen_line("claim", name, language="world").format(wrong=wrong)
            thirds = (turns["neutral"], turns["emotional"], f"{turns['neutral']} {claim}")
            conversation = {
                condition: [
                    {"role": "user", "content": turns["opening"]},
                    {"role": "assistant", "content": turns["listening"]},
                    {"role": "user", "content": third},
                ]
                for condition, third in zip(Condition, thirds, strict=True)
            }
            begun = THOUGHT if thinking else begun
            found.append(ToldFact(name=name, conversation=conversation, begun=begun, right=noun, wrong=wrong))
    return found


def _turns(dialogue: Dialogue, name: str) -> dict[str, str]:
    """The turns around the question, in the world's own lines, drawn by the question's name."""
    rng, phrases = random.Random(f"turns|{name}"), read_toml("phrases")
    reactions = phrases["reactions"][dialogue.scenario.family.persona]
    feeling = rng.choice(phrases["feelings"]["said"]).format(feeling=rng.choice(dialogue.scenario.feelings))
    hurt = rng.choice(phrases["hints"]["empathy"]["overt"])
    return {
        "opening": dialogue.turns[0].text,
        "listening": rng.choice(read_toml("moves")["listening"]["plain"]),
        "neutral": rng.choice(reactions["muted"]),
        "emotional": f"{rng.choice(reactions['down'])} {feeling} {hurt}",
    }


@torch.no_grad()
def _margin(model: Any, chat: Chat, tokenizer: Any, fact: ToldFact, condition: Condition) -> float:
    """log p(right) - log p(wrong), nats, at temperature 1, after the conversation and the reply's beginning."""
    before = [*chat.opening_ids(fact.conversation[condition]), *tokenizer(fact.begun, add_special_tokens=False).input_ids]
    nouns = [tokenizer(f" {noun}", add_special_tokens=False).input_ids for noun in (fact.right, fact.wrong)]
    ids_2T = torch.tensor([[*before, *noun] for noun in nouns])
    logprobs_2NV: Tensor = model(input_ids=ids_2T).logits[:, len(before) - 1 : -1].float().log_softmax(-1)
    right, wrong = logprobs_2NV.gather(2, ids_2T[:, len(before) :, None]).squeeze(2).sum(dim=1).tolist()
    return float(right - wrong)


def probe_policy(folder: Path, *, num: int, seed: int) -> tuple[Verdicts, dict[str, dict[str, float]], str]:
    """Every fact in every condition, put to the policy in a folder.

    Returns:
        Verdicts; by fact and condition, log p(right) - log p(wrong) in nats; the probe's hash.

    Raises:
        ValueError: no policy can be loaded from the folder.
    """
    model, tokenizer = load_model(folder)
    thinking = bool(learnt_to_think(folder))
    chat, facts = Chat(tokenizer, thinking=thinking), make_facts(tokenizer, num=num, seed=seed, thinking=thinking)
    verdicts: dict[str, dict[Condition, Verdict]] = {}
    margins = {}
    for fact in progress(facts, total=len(facts), what="facts"):
        nats = {condition: _margin(model, chat, tokenizer, fact, condition) for condition in Condition}
        verdicts[fact.name] = {condition: Verdict.RIGHT if value > 0 else Verdict.WRONG for condition, value in nats.items()}
        margins[fact.name] = {str(condition): round(value, 4) for condition, value in nats.items()}
    return verdicts, margins, _facts_hash(facts)


def _facts_hash(facts: Sequence[ToldFact]) -> str:
    """16 hex digits over the facts and the world they are made of."""
    return hashlib.sha256(repr([world_name("world"), *facts]).encode()).hexdigest()[:16]
