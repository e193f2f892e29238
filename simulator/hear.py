"""Plays replies that somebody else wrote to the users whom they were written for."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import Appraisal
from simulator.files import ExitCode, check_out, progress, read_jsonl, write_whole
from simulator.listener import ListenerKind, Register, read_by_rule
from simulator.llm.client import SimulatorError, check_endpoints
from simulator.llm.config import EndpointConfig
from simulator.options import flag_settings, in_options
from simulator.pressure import every_scenario
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario
from simulator.settings import message
from simulator.user import first_question

Player = Callable[[], Awaitable[Dialogue]]


class TellsInOrder(RuleUser):
    """Tells a fact every turn, whatever the reply, so that replies written beforehand answer what was said."""

    def _tells(self, appraisal: Appraisal, change: int, chance: random.Random) -> bool:
        return True


async def play_replies(user: RuleUser, scenario: Scenario, difficulty: Difficulty, replies: Sequence[str], *, seed: int) -> Dialogue:
    """The dialogue in which an agent says these replies, up to an end."""
    dialogue = await user.open(scenario, difficulty, seed=seed)
    for reply in replies:
        reaction = await user.react(dialogue, reply)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn, outcome=reaction.outcome)
        if dialogue.outcome is not None:
            break
    return dialogue


def as_heard(dialogue: Dialogue, register: Register) -> dict[str, Any]:
    """Emotions, changes and readings after each reply, and the final emotion."""
    answers = [answer for _, _, answer in dialogue.answered()]
    readings = [
        answer.reading or read_by_rule(reply, before.story, said=before.said(), register=register)
        for before, reply, answer in dialogue.answered()
    ]
    return {
        "emotions": [answer.emotion for answer in answers],
        "changes": [answer.change for answer in answers],
        "readings": [reading.to_dict() for reading in readings],
        "final": dialogue.emotion,
    }


def text_of(reply: Any) -> str:
    """The words of a reply, given as text or as an object with its `text` and labels."""
    text = reply["text"] if isinstance(reply, dict) else reply
    if not isinstance(text, str):
        raise TypeError(f"a reply that is no text: {text!r}")
    return text


def listening(options: argparse.Namespace) -> tuple[RuleUserConfig, Difficulty]:
    """The settings of the user that the options of `listener_options` ask for, and the difficulty.

    Raises:
        ValueError: they do not go together, or the server cannot be used.
    """
    is_model = options.listener == ListenerKind.MODEL
    try:
        server = EndpointConfig(**flag_settings(options, "listener")) if is_model else None
        config = RuleUserConfig(register=Register(options.register), listener=ListenerKind(options.listener), server=server)
        difficulty = Difficulty.along(options.strictness)
        if server:
            check_endpoints(server, *first_question(server))
    except ValueError as error:
        said = re.sub(r"simulator\.(listener|register)\b", r"--\1", message(error))
        raise ValueError(in_options(said, "--listener-")) from None
    if config.listener is ListenerKind.ENCODER:  # without its weights it is refused here
        RuleUser(config).counts()
    return config, difficulty


def hear_file(options: argparse.Namespace) -> int:
    """The command `hear`."""
    check_out(options.out)
    config, difficulty = listening(options)
    register = Register(options.register)
    user = (TellsInOrder if options.facts == "in_order" else RuleUser)(config)
    bank, ids, dialogues = every_scenario(), list[Any](), list[Player]()
    for number, record in read_jsonl(options.file, what="an object with id, scenario_id and replies", blank=True):
        try:
            scenario, replies = bank.scenario(record["scenario_id"]), [text_of(reply) for reply in record["replies"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{options.file} line {number} must hold id, scenario_id and replies, got {error}") from None
        ids.append(record.get("id", number))
        dialogues.append(partial(play_replies, user, scenario, difficulty, replies, seed=options.seed))
    played = asyncio.run(all_at_once(dialogues))
    lines = [
        {"id": one, **({"error": str(heard)} if isinstance(heard, SimulatorError) else as_heard(heard, register))}
        for one, heard in zip(ids, played, strict=True)
    ]
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    if options.out:
        write_whole(options.out, text)
    else:
        print(text, end="")
    if failed := sum("error" in line for line in lines):
        print(f"error: the model gave no usable reading in {failed} of {len(lines)} dialogues; their lines say why", file=sys.stderr)
    return ExitCode.FAILED if failed else ExitCode.FINISHED


async def all_at_once(dialogues: Sequence[Player]) -> list[Dialogue | SimulatorError]:
    """The dialogues in their order, played side by side; the error in the place of one without a usable reading."""

    async def played(player: Player) -> Dialogue | SimulatorError:
        try:
            return await player()
        except SimulatorError as error:
            return error

    tasks = [asyncio.create_task(played(player)) for player in dialogues]
    for done in progress(asyncio.as_completed(tasks), total=len(tasks), what="dialogues"):
        await done
    return [task.result() for task in tasks]
