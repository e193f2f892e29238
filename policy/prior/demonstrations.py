"""Dialogues for the supervised prior: a demonstrator who mostly offers solutions and now and then shows one of the skills.

Only training scenarios are used. The demonstrator's moves are drawn independently turn by turn, so every skill can be found by exploration
while all of them together hardly ever occur.

A thought before a reply names the user's hint, the fact that is taken up and the move that follows, in a few words of a closed vocabulary.
It is read off a reply already made, so demonstrations with thoughts have the same habits and skills.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from policy.prior import DemonstrationConfig
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import Skill, hint_in, onset, skill_table
from simulator.listener import Register, cue_heads, facts_stated, strategies_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Fact, Scenario
from simulator.scripted import fill, stem
from simulator.world import read_toml

HABITS = {
    "suggestion": 0.5,
    "reassurance": 0.09,
    "information": 0.05,
    "hedging": 0.03,
    "referral": 0.04,
    "self_disclosure": 0.04,
    "question": 0.07,
    "restatement": 0.03,
    "reflection": 0.03,
    "listening": 0.02,
    "praise": 0.02,
    "siding": 0.02,
    "motives": 0.02,
    "both_sides": 0.02,
    "guided_reflection": 0.02,
}
"""How often the demonstrator makes each move by habit: mostly solutions, as a chat model before training."""
WISHES = {
    "advice": "advice",
    "empathy": "warmth",
    "listened": "space",
    "praise": "praise",
    "reflection": "insight",
    "both_sides": "fairness",
    "motives": "reasons",
    "not_at_fault": "backing",
}
"""Hidden intention -> its name in a thought."""
MOVES = {
    "question": "ask",
    "restatement": "restate",
    "reflection": "empathise",
    "reassurance": "soothe",
    "praise": "admire",
    "suggestion": "advise",
    "information": "inform",
    "self_disclosure": "share",
    "motives": "explain",
    "siding": "absolve",
    "both_sides": "balance",
    "guided_reflection": "wonder",
    "listening": "listen",
    "referral": "refer",
    "apology": "apologise",
    "hedging": "hedge",
}
"""Support strategy -> its name in a thought."""
NOTHING_HINTED = ("No hint yet", "Wish unclear")
TAKEN_UP = (", told of {cue}", ", with {cue}")


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A dialogue with, per reply, the phrases that were copied from the user."""

    dialogue: Dialogue
    copied: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShownThought:
    """The thought before one reply, the words in it that decide (wish and moves), and the phrase copied from the user, if any."""

    text: str
    chosen: tuple[str, ...]
    copied: tuple[str, ...]


def demonstrate(config: DemonstrationConfig, scenarios: Sequence[Scenario], *, seed: int) -> Iterator[Demonstration]:
    """An endless stream of demonstrations over shuffled scenarios, at difficulties drawn uniformly."""
    chance = random.Random(seed)
    user = RuleUser(RuleUserConfig(register=Register.WORLD))
    while True:
        for scenario in chance.sample(scenarios, len(scenarios)):
            if chance.random() < config.collage_prob:
                scenario = _collage(scenario, scenarios, chance)
            difficulty, kind = Difficulty.along(chance.random()), chance.random()
            if kind < config.open_prob:
                difficulty = replace(difficulty, reserve=0.0)
            elif kind < config.open_prob + config.veiled_prob:
                difficulty = replace(difficulty, reserve=chance.uniform(Difficulty.along(onset(Skill.HINTS, scenario.family)).reserve, 1.0))
            dialogue = user.begin(scenario, difficulty, seed=chance.getrandbits(32))
            copied: list[tuple[str, ...]] = []
            while dialogue.outcome is None and dialogue.num_replies < config.num_replies:
                text, phrases = _reply(config, dialogue, chance)
                reaction = user.answer(dialogue, text)
                dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=text), reaction.turn, outcome=reaction.outcome)
                copied.append(phrases)
            yield Demonstration(dialogue=dialogue, copied=tuple(copied))


def thoughts(demo: Demonstration, chance: random.Random) -> Iterator[ShownThought]:
    """One thought for each reply of a demonstration; all of it is true of the conversation so far and of the reply."""
    dialogue, copied = demo.dialogue, iter(demo.copied)
    for number, turn in enumerate(dialogue.turns):
        if turn.speaker is not Speaker.AGENT:
            continue
        wish = next((found[1] for found in _hints(dialogue.turns[:number], (("overt", "veiled"),))), None)
        is_fact = ("the ", "your ", "that ", "those ")
        cue = next((phrase for phrase in next(copied) if phrase.startswith(is_fact)), "")
        strategies = sorted(strategies_in(turn.text), key=lambda strategy: strategy != "apology")
        moves = [MOVES[strategy] for strategy in strategies]
        hinted = ("They want {wish}", "Wish: {wish}", "Wants {wish}")
        first = chance.choice(hinted).format(wish=WISHES[wish]) if wish else chance.choice(NOTHING_HINTED)
        taken_up = chance.choice(TAKEN_UP).format(cue=cue) if cue else ""
        decided = chance.choice((", so {move}.", ": {move}.", "; I {move}.")).format(move=" and ".join(moves))
        text = f"{first}{taken_up}{decided}"
        yield ShownThought(text=text, chosen=(*([WISHES[wish]] if wish else []), *moves), copied=(cue,) if cue else ())


def _collage(scenario: Scenario, scenarios: Sequence[Scenario], chance: random.Random) -> Scenario:
    """The scenario with facts of other events about things of yet others, no two about the same thing; another person is in the opening."""
    facts: list[Fact] = []
    other = chance.choice(scenarios).other
    heads = set(other.split())
    while len(facts) < len(scenario.facts):
        donor, lender = chance.choice(scenarios), chance.choice(scenarios)
        fact, thing = chance.choice(donor.facts), chance.choice(lender.facts)
        (head,), (other_head,) = cue_heads((fact,)), cue_heads((thing,))
        if other_head in heads or head.endswith("s") != other_head.endswith("s"):
            continue
        donors_other = re.compile(rf"\b([Mm]y) {donor.other}\b")
        named = donors_other.search(fact.text)
        if facts or (named and head not in donor.other):
            text, cue = (re.sub(rf"(?i:\b{head}\b)", other_head, words) for words in (fact.text, fact.cue))
            text = text[0].upper() + text[1:]
            facts.append(Fact(text=text if facts else donors_other.sub(rf"\1 {other}", text), cue=cue))
            heads.add(other_head)
    return replace(scenario, facts=tuple(facts), other=other, opening=facts[0].text)


def _reply(config: DemonstrationConfig, dialogue: Dialogue, chance: random.Random) -> tuple[str, tuple[str, ...]]:
    """A reply and the phrases in it that come from the user."""
    scenario, texts, cue = dialogue.scenario, _user_texts(dialogue), ""
    if chance.random() < config.ground_prob:
        # The fact of the latest turn that has one, as "the jam"; or, from the third reply on, of the turn two before it, as "that jam".
        # Determiner and position alone say which thing it is: a small model learns to read one position, not to mix several.
        by_turn = [facts_stated(text, scenario.facts) for text in texts]
        if len(by_turn) >= 3 and by_turn[-3] and by_turn[-2] and chance.random() < config.earlier_prob:
            noun = scenario.facts[by_turn[-3][-1]].cue.split(" ", 1)[1]
            cue = f"{'those' if noun.endswith('s') and not noun.endswith('ss') else 'that'} {noun}"
        else:
            cue = scenario.facts[next(found for found in reversed(by_turn) if found)[-1]].cue
            cue = cue if cue.startswith("your ") else f"the {cue.split(' ', 1)[1]}"  # one of eight determiners costs a small model the noun
    feeling = next((feeling for feeling in reversed(scenario.feelings) if any(feeling in text for text in texts)), "hurt")
    kind, wish = next(_hints(dialogue.turns, (("overt",), ("veiled",))), (None, None))
    if dialogue.num_replies < 2 and chance.random() < config.explore_prob:
        strategy = chance.choice(("question", "question", "restatement"))
    elif wish and chance.random() < (config.fit_overt_prob if kind == ("overt",) else config.fit_veiled_prob):
        strategy = skill_table()["meets"][wish][0]
    else:
        strategy = chance.choices(list(HABITS), weights=list(HABITS.values()))[0]
    text = _wording(config, strategy, dialogue, chance, cue=cue, feeling=feeling)
    if (dialogue.turns[-1].change or 0) < 0 and chance.random() < config.repair_prob:
        text = f"{_wording(config, 'apology', dialogue, chance, cue='', feeling=feeling)} {text}"
    # Once named, the other person is "friend" for "choir friend": one word for a small model to copy.
    return text, tuple(phrase for phrase in (cue, feeling, scenario.other.split()[-1]) if phrase and phrase in text)


def _hints(turns: Sequence[Turn], kinds: Sequence[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The user's hints, latest first: the first of these kinds that a turn has, and the wish."""
    for turn in reversed(turns):
        for kind in kinds if turn.speaker is Speaker.USER else ():
            if wish := hint_in(turn.text, kinds=kind):
                yield kind, wish


def _wording(config: DemonstrationConfig, strategy: str, dialogue: Dialogue, chance: random.Random, *, cue: str, feeling: str) -> str:
    scenario = dialogue.scenario
    pool = read_toml("moves")[strategy]["grounded" if cue else "plain"]
    if not any(scenario.other in text for text in _user_texts(dialogue)):
        pool = [line for line in pool if "{other" not in line] or pool
    elif chance.random() < config.name_prob:
        pool = [line for line in pool if "{other" in line] or pool
    pool = [line for line in pool if not any(stem(line) in reply for reply in dialogue.replies())] or pool
    line = pool[0] if config.narrow else chance.choice(pool)
    return fill(line, replace(scenario, other=scenario.other.split()[-1]), cue=cue, feeling=feeling)


def _user_texts(dialogue: Dialogue) -> list[str]:
    return [turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER]
