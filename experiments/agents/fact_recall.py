"""Fact recall probe of the embedded policy: does it name the thing that the user has just mentioned?

A forced choice: after the beginning of a demonstrated reply ("What happened with the"), or of a thought where the policy thinks, is the
thing that was mentioned two turns ago likelier than another? In between the user says a neutral word, or an emotional one, or claims that
it was the other thing. Facts combine held-out events with other events' things, so nothing can be remembered. Only differences between
conditions, and between a policy and its prior, are meaningful.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.agents.questions import Condition, Messages, Verdict, Verdicts, chosen_line
from policy.mode import learnt_to_think
from policy.model import load_model
from policy.prior import DemonstrationConfig
from policy.prior.demonstrations import NOTHING_HINTED, TAKEN_UP, demonstrate
from simulator.dialogue import Dialogue
from simulator.files import progress
from simulator.scenario import Split
from simulator.tokens import OPEN, Chat
from simulator.version import world_name
from simulator.world import load_bank, read_toml


@dataclass(frozen=True, kw_only=True)
class ToldFact:
    """A fact that a user mentions, and the beginning of a reply that continues with its thing. Its fields decide the probe's hash."""

    name: str
    conversation: dict[Condition, Messages]
    begun: str
    """The reply, or the thought before it, up to the determiner."""
    right: str
    wrong: str
    """A thing that was not mentioned, with the same number of tokens, plural if the right one is."""


def make_facts(tokenizer: Any, *, num: int, seed: int, thinking: bool = False) -> list[ToldFact]:
    """`num` facts, the same for every policy with the same tokenizer; the thing is chosen in a thought where `thinking`."""
    # Dialogues whose reply takes up a noun: twice as many as needed, each noun a few times at most.
    heldout = load_bank().scenarios(Split.HELDOUT)
    most, counts, taken_up = max(1, 2 * num // 40), Counter[str](), list[tuple[Dialogue, str, str]]()
    for demo in demonstrate(DemonstrationConfig().skilled(1.0).taking_up(), heldout, seed=seed):
        reply = demo.dialogue.turns[1].text
        for phrase in demo.copied[0]:
            determiner, _, noun = phrase.partition(" ")
            # With this determiner demonstrators take up the thing that was mentioned last.
            is_usable = determiner == "the" and noun and " " not in noun and phrase in reply
            if is_usable and counts[noun] < most and len(taken_up) < 2 * num:
                counts[noun] += 1
                taken_up.append((demo.dialogue, reply[: reply.find(phrase) + len(determiner)], noun))
        if len(taken_up) >= 2 * num:
            break
    choice = random.Random(f"told facts|{seed}")
    lengths = {noun: len(tokenizer(f" {noun}", add_special_tokens=False).input_ids) for _, _, noun in taken_up}
    phrases, listening = read_toml("phrases"), read_toml("moves")["listening"]["plain"]
    found: list[ToldFact] = []
    for dialogue, begun, noun in taken_up:
        if len(found) >= num:
            break
        # The turns around the question, in the world's own lines, drawn by the question's name.
        name = f"{len(found):04d} {noun}"
        rng, reactions = random.Random(f"turns|{name}"), phrases["reactions"][dialogue.scenario.family.persona]
        feeling = rng.choice(phrases["feelings"]["said"]).format(feeling=rng.choice(dialogue.scenario.feelings))
        hurt, opening = rng.choice(phrases["hints"]["empathy"]["overt"]), dialogue.turns[0].text
        listened, neutral = rng.choice(listening), rng.choice(reactions["muted"])
        emotional = f"{rng.choice(reactions['down'])} {feeling} {hurt}"
        text = " ".join([opening, listened, neutral, emotional]).lower()
        others = [
            other
            for other in sorted(lengths)
            if lengths[other] == lengths[noun] and other.endswith("s") == noun.endswith("s") and other not in text
        ]
        if others:
            wrong = choice.choice(others)
            claim = chosen_line("claim", name, language="world").format(wrong=wrong)
            conversation = {
                condition: [
                    {"role": "user", "content": opening},
                    {"role": "assistant", "content": listened},
                    {"role": "user", "content": third},
                ]
                for condition, third in zip(Condition, (neutral, emotional, f"{neutral} {claim}"), strict=True)
            }
            # Another demonstrated beginning of a thought changes next to nothing.
            begun = f"{OPEN}{NOTHING_HINTED[-1]}{TAKEN_UP[0].format(cue='the')}" if thinking else begun
            found.append(ToldFact(name=name, conversation=conversation, begun=begun, right=noun, wrong=wrong))
    return found


@torch.no_grad()
def probe_policy(folder: Path, *, num: int, seed: int) -> tuple[Verdicts, dict[str, dict[str, float]], str]:
    """Every fact in every condition, put to the policy in a folder.

    Returns:
        Verdicts; by fact and condition, log p(right) - log p(wrong) in nats at temperature 1; the probe's hash over facts and world.
    """
    model, tokenizer = load_model(folder)
    thinking = bool(learnt_to_think(folder))
    chat, facts = Chat(tokenizer, thinking=thinking), make_facts(tokenizer, num=num, seed=seed, thinking=thinking)
    verdicts: dict[str, dict[Condition, Verdict]] = {}
    margins: dict[str, dict[str, float]] = {}
    for fact in progress(facts, total=len(facts), what="facts"):
        verdicts[fact.name], margins[fact.name] = {}, {}
        nouns = [tokenizer(f" {noun}", add_special_tokens=False).input_ids for noun in (fact.right, fact.wrong)]
        for condition in Condition:
            before = [*chat.opening_ids(fact.conversation[condition]), *tokenizer(fact.begun, add_special_tokens=False).input_ids]
            ids_2T = torch.tensor([[*before, *noun] for noun in nouns])
            logprobs_2NV: Tensor = model(input_ids=ids_2T).logits[:, len(before) - 1 : -1].float().log_softmax(-1)
            right, wrong = logprobs_2NV.gather(2, ids_2T[:, len(before) :, None]).squeeze(2).sum(dim=1).tolist()
            verdicts[fact.name][condition] = Verdict.RIGHT if right - wrong > 0 else Verdict.WRONG
            margins[fact.name][str(condition)] = round(right - wrong, 4)
    return verdicts, margins, hashlib.sha256(repr([world_name("world"), *facts]).encode()).hexdigest()[:16]
