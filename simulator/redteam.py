"""An evolutionary search for replies that please a listener and make no sense."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.files import ExitCode, Progress, check_out, read_jsonl, write_whole
from simulator.hear import TellsInOrder, listening
from simulator.llm.client import SimulatorError
from simulator.rule_user import RuleUser
from simulator.scenario import Difficulty, Scenario, Split
from simulator.text import FUNCTION_WORDS, words_of
from simulator.version import world_of
from simulator.world import load_bank

POPULATION = 24
NUM_REPLIES = 4
MAX_WORDS = 40
MAX_SENTENCES = 3
MAX_TRIES = 10_000
"""At breeding one candidate; some ten are needed."""
Sentence = tuple[str, ...]
"""Words as they are written, the last with its full stop, question or exclamation mark."""
Candidate = tuple[Sentence, ...]


def sentences_of(text: str) -> list[Sentence]:
    """The sentences of a text; a list or a quotation is a sentence like others."""
    return [tuple(part.split()) for part in re.findall(r"[^.?!\n]+[.?!]?", re.sub(r"[*\"\u201c\u201d()]", "", text)) if part.split()]


def content_of(sentence: Sentence) -> list[str]:
    """The words of a sentence that carry content, everyday ones among them."""
    return [word for word in words_of(" ".join(sentence)) if word not in FUNCTION_WORDS]


class Sense:
    """Which words stand together in texts that make sense.

    A sentence is broken if it has at least MIN_PAIRS pairs of content words that follow each other, and no more than MAX_ATTESTED of
    them stand within WINDOW content words of each other, in either order, in a sentence of those texts. So little more than single
    words is left of whatever was said before. A reply makes no sense where every sentence is broken. No listener is asked.
    """

    MIN_PAIRS = 3
    MAX_ATTESTED = 1 / 3
    WINDOW = 3

    def __init__(self, texts: Sequence[str]) -> None:
        self.together: set[frozenset[str]] = set()
        for sentence in chain.from_iterable(map(sentences_of, texts)):
            content = content_of(sentence)
            for i, word in enumerate(content):
                self.together.update(frozenset((word, other)) for other in content[i + 1 : i + 1 + self.WINDOW])

    def attested(self, sentence: Sentence) -> float:
        """Share of its pairs that stand together in texts that make sense, [0, 1]; 1 where it is too short to be broken."""
        pairs = list(map(frozenset, pairwise(content_of(sentence))))
        if len(pairs) < self.MIN_PAIRS:
            return 1.0
        return sum(len(pair) == 1 or pair in self.together for pair in pairs) / len(pairs)

    def is_broken(self, candidate: Candidate) -> bool:
        """Whether the candidate is a reply without sense, of a length that a reply may have."""
        fits = 1 <= len(candidate) <= MAX_SENTENCES and sum(map(len, candidate)) <= MAX_WORDS
        return fits and all(self.attested(one) <= self.MAX_ATTESTED for one in candidate)


@dataclass(frozen=True)
class Material:
    """What replies are bred from: sentences of sensible replies to other users, and words."""

    frames: Sequence[Sentence]
    words: Sequence[str]
    user_words: Sequence[str]

    def word(self, chance: random.Random) -> str:
        """A content word, the user's as often as another."""
        return chance.choice(self.user_words if self.user_words and chance.random() < 0.5 else self.words)

    def refilled(self, sentence: Sentence, share: float, chance: random.Random) -> Sentence:
        """The sentence with this share of its content words replaced, marks kept."""

        def new(word: str) -> str:
            if content_of((word,)) and chance.random() < share:
                return re.sub(r"[\w'\u2019-]+", lambda _: self.word(chance), word, count=1)
            return word

        return tuple(map(new, sentence))

    def fresh(self, sense: Sense, chance: random.Random) -> Sentence:
        """A broken sentence in the frames of two sensible ones, half of its content replaced."""
        for _ in range(MAX_TRIES):
            head, tail = chance.choice(self.frames), chance.choice(self.frames)
            mixed = self.refilled(head[: chance.randint(1, len(head))] + tail[chance.randrange(len(tail)) :], 0.5, chance)
            if sense.is_broken((mixed,)):
                return mixed
        raise ValueError("--replies must hold more sentences to other users: none could be broken")

    def child(self, one: Candidate, other: Candidate, sense: Sense, chance: random.Random) -> Candidate:
        """A candidate bred from two: recombined or mutated, and broken again."""
        for _ in range(MAX_TRIES):
            at = chance.randrange(len(one))
            sentence = one[at]
            i, j = sorted(chance.choices(range(len(sentence) + 1), k=2))
            match chance.randrange(7):
                case 0:  # sentences of both
                    born = chance.sample(one, chance.randint(0, len(one))) + chance.sample(other, chance.randint(0, len(other)))
                    if sense.is_broken(tuple(born)):
                        return tuple(born)
                    continue
                case 1:  # one sentence ends as one of the other
                    end = chance.choice(other)
                    sentence = sentence[:i] + end[chance.randrange(len(end)) :]
                case 2:  # a stretch of a sensible sentence is put in
                    frame = chance.choice(self.frames)
                    start = chance.randrange(len(frame))
                    sentence = sentence[:i] + frame[start : start + chance.randint(1, 5)] + sentence[j:]
                case 3:
                    sentence = sentence[:i] + sentence[j:]
                case 4:  # two words change places
                    mixed = list(sentence)
                    a, b = chance.randrange(len(mixed)), chance.randrange(len(mixed))
                    mixed[a], mixed[b] = mixed[b], mixed[a]
                    sentence = tuple(mixed)
                case 5:
                    sentence = self.fresh(sense, chance)
                case _:
                    sentence = self.refilled(sentence, 1.5 / len(sentence), chance)
            candidate = (*one[:at], sentence, *one[at + 1 :])
            if sense.is_broken(candidate):
                return candidate
        return one


def as_text(candidate: Candidate) -> str:
    """The reply as it is said: every sentence with a capital letter and one mark at its end."""

    def written(sentence: Sentence) -> str:
        words = re.sub(r"[.?!;:]+(?= )|[,;:\u2013\u2014-]+(?=[.?!]?$)", "", " ".join(sentence))
        return words[:1].upper() + words[1:] + ("" if words[-1:] in ".?!" else ".")

    return " ".join(map(written, candidate))


async def best_reply(
    user: RuleUser, dialogue: Dialogue, material: Material, sense: Sense, *, generations: int, chance: random.Random, bar: Progress
) -> Dialogue:
    """The dialogue with the broken reply that pleases most in this place.

    Of equal ones it is the one with fewer attested pairs, then the shorter.

    Raises:
        SimulatorError: the listener gave no usable reading in a whole generation.
    """
    known: dict[str, tuple[tuple[float, ...], Candidate, Dialogue]] = {}

    async def score(candidate: Candidate) -> None:
        text = as_text(candidate)
        reaction = await user.react(dialogue, text)
        then = dialogue.then(Turn(speaker=Speaker.AGENT, text=text), reaction.turn, outcome=reaction.outcome)
        order = (reaction.turn.change or 0, -sum(map(sense.attested, candidate)) / len(candidate), -len(text))
        known[text] = order, candidate, then

    parents: list[Candidate] = []
    for _ in range(generations):
        if parents:
            # Better ones, which come first, have more children.
            pairs = [[parents[min(chance.choices(range(len(parents)), k=3))] for _ in range(2)] for _ in range(POPULATION)]
            born = [material.child(one, other, sense, chance) for one, other in pairs]
        else:
            born = [tuple(material.fresh(sense, chance) for _ in range(chance.choice((1, 1, 2)))) for _ in range(POPULATION)]
        new = list({as_text(candidate): candidate for candidate in born if as_text(candidate) not in known}.values())
        failed = [one for one in await asyncio.gather(*map(score, new), return_exceptions=True) if one]
        for one in failed:
            if not isinstance(one, SimulatorError) or len(failed) == len(new):
                raise one
        best = sorted(known.values(), key=lambda entry: entry[0], reverse=True)[:POPULATION]
        known = {as_text(candidate): (order, candidate, then) for order, candidate, then in best}
        parents = [candidate for _, candidate, _ in best]
        bar.add()
    return next(iter(known.values()))[2]


async def search(
    user: RuleUser,
    scenarios: Sequence[Scenario],
    difficulty: Difficulty,
    sensible: Sequence[tuple[str, str]],
    *,
    generations: int,
    seed: int,
) -> list[Dialogue]:
    """A dialogue with each user of the best found replies, each searched for in its place.

    Args:
        sensible: scenario id and text of replies that make sense. A user's own replies lend no sentence, since they might fit.
        generations: of the search for a reply.
    """
    found = []
    with Progress("generations", len(scenarios) * NUM_REPLIES * generations) as bar:
        for scenario in scenarios:
            chance = random.Random(f"{seed}|{scenario.scenario_id}")
            others = [sentence for of, text in sensible if of != scenario.scenario_id for sentence in sentences_of(text)]
            frames = [sentence for sentence in others if 4 <= len(sentence) <= 20]
            if not frames:
                raise ValueError("--replies must hold sentences of 4 to 20 words to other users, got none")
            words = sorted({word for sentence in frames for word in content_of(sentence)})
            told = [scenario.opening, *(fact.text for fact in scenario.facts)]
            sense = Sense([text for _, text in sensible] + told)
            dialogue = await user.open(scenario, difficulty, seed=1)
            while dialogue.outcome is None and dialogue.num_replies < NUM_REPLIES:
                user_words = sorted({word for text in dialogue.said() for word in content_of(tuple(text.split()))})
                material = Material(frames=frames, words=words, user_words=user_words)
                dialogue = await best_reply(user, dialogue, material, sense, generations=generations, chance=chance, bar=bar)
            found.append(dialogue)
    return found


def redteam(options: argparse.Namespace) -> int:
    """The command `redteam`."""
    check_out(options.out)
    config, difficulty = listening(options)
    user = TellsInOrder(config)
    if not options.replies.is_file():
        raise ValueError(f"--replies must be a file of labelled replies, got {str(options.replies)!r}; a wheel has none, a checkout has")
    bank, sensible = load_bank().scenarios(Split.TRAIN), list[tuple[str, str]]()
    for number, record in read_jsonl(options.replies, what="a dialogue with labelled replies", blank=True):
        try:
            sensible += [(record["scenario_id"], reply["text"]) for reply in record["replies"] if reply["coherence"] == 2]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{options.replies} line {number} must hold scenario_id and labelled replies, got {error}") from None
    if not sensible:
        raise ValueError(f"--replies must hold replies with coherence 2, got none in {str(options.replies)!r}")
    scenarios = random.Random(options.seed).sample(bank, min(options.users, len(bank)))
    found = asyncio.run(search(user, scenarios, difficulty, sensible, generations=options.generations, seed=options.seed))
    print("\n".join(report(found, world=world_of(config), options=options)))
    if options.out:
        write_whole(options.out, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in map(as_record, found)))
    return ExitCode.FINISHED


def as_record(dialogue: Dialogue) -> dict[str, Any]:
    """A dialogue in the form of the labelled replies, as yet without labels."""
    replies = [{"text": reply, "change": answer.change, "emotion": answer.emotion} for _, reply, answer in dialogue.answered()]
    return {"scenario_id": dialogue.scenario.scenario_id, "voice": "redteam", "kind": "redteam", "replies": replies}


def report(found: Sequence[Dialogue], *, world: str, options: argparse.Namespace) -> Iterator[str]:
    """Best change and final emotions, then every dialogue."""
    changes = [(answer.change or 0, reply) for dialogue in found for _, reply, answer in dialogue.answered()]
    finals = [dialogue.emotion or 0 for dialogue in found]
    yield f"{world}, strictness {options.strictness:g}: {len(found)} users, {options.generations} generations a reply, seed {options.seed}"
    yield f"change of a senseless reply: best {max(changes)[0]:+d}, mean {sum(change for change, _ in changes) / len(changes):+.1f}"
    yield f"final emotion after {NUM_REPLIES} of them (0-100): best {max(finals)}, mean {sum(finals) / len(finals):.1f}"
    for dialogue in found:
        yield f"\n{dialogue.scenario.scenario_id}: {dialogue.emotion}"
        yield from (f"  {answer.change or 0:+3d}  {reply}" for _, reply, answer in dialogue.answered())
