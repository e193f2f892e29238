"""Where the dialogues of simulated users come from: a run, a file, or fresh ones between scripted agents and the embedded user."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from simulator.dialogue import Dialogue, Outcome
from simulator.explain import SETTINGS, follows_rule, read_dialogues, recorded_config, require_feelings, transcript_file, user_settings
from simulator.files import Progress
from simulator.llm.config import AnswerFormat, TokenLimit
from simulator.llm.user import LLMUserConfig
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.users import make_bank
from simulator.world import Bank, load_bank

ENUMS: dict[str, type[Enum]] = {"answer_format": AnswerFormat, "token_limit": TokenLimit}
FLAGS = {
    "model": "model",
    "key_env": "api_key_env",
    "format": "answer_format",
    "concurrency": "concurrency",
    "retries": "retries",
    "timeout": "timeout_s",
    "max_wait": "max_wait_s",
    "max_tokens": "max_tokens",
    "extra_body": "extra_body",
}
"""Option -> setting of the endpoint that it sets, beside the addresses."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Dialogues and what is known of who played the user."""

    name: str
    dialogues: tuple[Dialogue, ...]
    kind: str
    """Of the user: `rule`, `llm`, or one of somebody's own."""
    bank: Bank
    rule: RuleUserConfig | None
    llm: dict[str, Any]
    """Settings of the model that played, as far as they are known."""


def source_of(options: argparse.Namespace) -> Source:
    """The dialogues that the options name.

    Raises:
        ValueError: they cannot be had; the sentence says why.
    """
    if options.play is not None:
        return played_source(options)
    path = transcript_file(options.dialogues, evaluation=options.evaluation)
    if options.num < 1:
        raise ValueError(f"--num must be at least 1, got {options.num}")
    settings = recorded_config(path).get(SETTINGS) or {}
    kind = options.user or str(settings.get("kind") or "rule")
    llm = model_settings(settings) if kind == "llm" else {}
    bank = make_bank(LLMUserConfig(**{"model": "unknown", **llm})) if kind == "llm" else load_bank()
    dialogues = tuple(drawn(read_whole(path, bank), options.num, seed=options.seed))
    if not dialogues:
        raise ValueError(f"{path} must hold a dialogue that was answered, got none")
    rule = user_settings({**settings, "kind": kind}) if follows_rule(kind) else None
    return Source(name=str(path), dialogues=dialogues, kind=kind, bank=bank, rule=rule, llm=llm)


def read_whole(path: Path, bank: Bank) -> Iterator[Dialogue]:
    """The dialogues of a file but those that broke or in which nobody answered."""
    for number, (_, dialogue) in enumerate(read_dialogues(path, bank), start=1):
        if dialogue.outcome is Outcome.ERROR or not dialogue.num_replies:
            continue
        try:
            require_feelings(dialogue)
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from error
        yield dialogue


def drawn(dialogues: Iterator[Dialogue], num: int, *, seed: int) -> list[Dialogue]:
    """So many of a stream, each with the same chance, in their order (reservoir sampling)."""
    chance, kept = random.Random(f"drawn|{seed}"), list[tuple[int, Dialogue]]()
    for place, dialogue in enumerate(dialogues):
        if len(kept) < num:
            kept.append((place, dialogue))
        elif (slot := chance.randrange(place + 1)) < num:
            kept[slot] = (place, dialogue)
    return [dialogue for _, dialogue in sorted(kept, key=lambda pair: pair[0])]


def played_source(options: argparse.Namespace) -> Source:
    """Fresh dialogues with the embedded user."""
    if options.play < 1:
        raise ValueError(f"--play must be at least 1, got {options.play}")
    if options.user == "llm":
        raise ValueError("--user must be rule with --play, got 'llm'; play them in a run and give its folder")
    config = RuleUserConfig()
    with Progress("playing", options.play) as bar:
        dialogues = []
        for dialogue in played(
            options.play,
            strictness=options.strictness,
            reserve=options.reserve,
            split=Split(options.split),
            seed=options.seed,
            user=RuleUser(config),
        ):
            dialogues.append(dialogue)
            bar.add()
    name = f"{options.play} played on {options.split} scenarios"
    return Source(name=name, dialogues=tuple(dialogues), kind="rule", bank=load_bank(), rule=config, llm={})


def played(
    num: int,
    *,
    strictness: Sequence[float],
    user: RuleUser,
    reserve: Sequence[float] | None = None,
    split: Split = Split.TRAIN,
    agents: Sequence[str] = tuple(AGENTS),
    seed: int = 0,
) -> Iterator[Dialogue]:
    """Dialogues over the grid of strictness, reserve and agents, each cell as often as any other; scenarios come in shuffled rounds.

    Args:
        reserve: instead of what strictness gives; None leaves that.
        agents: of the ladder, by name.
    """
    chance = random.Random(f"played|{seed}")
    cells = [(d, r, agent) for d in strictness for r in reserve or (None,) for agent in agents]
    scenarios = list(load_bank().scenarios(split))
    for i in range(num):
        if i % len(cells) == 0:
            chance.shuffle(cells)
        if i % len(scenarios) == 0:
            chance.shuffle(scenarios)
        d, r, agent = cells[i % len(cells)]
        difficulty = Difficulty.along(d) if r is None else replace(Difficulty.along(d), reserve=r)
        yield play(AGENTS[agent], scenarios[i % len(scenarios)], difficulty, seed=chance.randrange(2**31), user=user)


def model_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an llm user as they stand in a run's config.yaml, ready for `LLMUserConfig`."""
    known = {field.name for field in fields(LLMUserConfig)}
    return {key: ENUMS[key](value) if key in ENUMS else value for key, value in recorded.items() if key in known}


def flag_settings(options: argparse.Namespace, who: str) -> dict[str, Any]:
    """Settings of an endpoint as they stand on the command line.

    Args:
        who: `judge` or `user`.
    """
    given = {setting: getattr(options, f"{who}_{flag}") for flag, setting in FLAGS.items()}
    found = {name: ENUMS[name](value) if name in ENUMS else value for name, value in given.items() if value is not None}
    urls = getattr(options, f"{who}_url")
    return {**found, **({"urls": urls} if urls else {}), "cache": options.cache}
