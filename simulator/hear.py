"""Plays replies that somebody else wrote to the users whom they were written for, and hears recorded dialogues again."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import Appraisal
from simulator.explain import recorded_config
from simulator.files import ExitCode, check_out, progress, read_jsonl, write_whole
from simulator.listener import ListenerKind, Register, facts_stated, read_by_rule
from simulator.llm.client import SimulatorError, check_endpoints
from simulator.llm.config import ServedConfig
from simulator.options import flag_settings, in_options
from simulator.pressure import every_scenario
from simulator.reading import Reading
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Fact, Family, Persona, Scenario, Split
from simulator.settings import message
from simulator.text import language_of
from simulator.user import first_question

T = TypeVar("T")
Player = Callable[[], Awaitable[T]]


class Guests(RuleUser):
    """The embedded user, and users of somebody else's, who say what their `card` has, turn by turn, and feel by the same rule."""

    def __init__(self, config: RuleUserConfig) -> None:
        super().__init__(config)
        self._bank, self._guests = every_scenario(), dict[str, Scenario]()
        self._scripts: dict[str, list[str]] = {}

    def scenario(self, record: Mapping[str, Any]) -> Scenario:
        """Of a line of a file. A `card` makes that of its `scenario_id` known, for later lines too.

        A card has `name`, `age`, `occupation`, `background`, `goal`, `hidden_intention`, `other`, `feelings`, `facts` (each a `text` and a
        `cue`) and `user`, the turns. The last part of its `scenario_id` names intention and persona, as in `zh/old_lift/praise-passive`.

        Raises:
            KeyError, TypeError, ValueError: there is none of this id, the card is not one, or it differs from an earlier one.
        """
        scenario_id = str(record["scenario_id"])
        if card := record.get("card"):
            family, said = Family.parse(scenario_id.rpartition("/")[2].replace("-", "/")), [str(turn) for turn in card["user"]]
            if not said:
                raise ValueError("a card whose user says nothing")
            guest = Scenario(
                scenario_id=scenario_id,
                family=family,
                persona=Persona(name=card["name"], age=card["age"], occupation=card["occupation"], persona_type=family.persona),
                facts=tuple(Fact(**fact) for fact in card["facts"]),
                feelings=tuple(card["feelings"]),
                opening=said[0],
                language=language_of("".join(said)),
                split=Split.HELDOUT,
                **{name: card[name] for name in ("background", "goal", "hidden_intention", "other")},
            )
            if (self._guests.setdefault(scenario_id, guest), self._scripts.setdefault(scenario_id, said)) != (guest, said):
                raise ValueError(f"another card of {scenario_id!r} than an earlier line")
        return self._guests.get(scenario_id) or self._bank.scenario(scenario_id)

    def begin(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """The script's first turn."""
        if scenario.scenario_id not in self._scripts:
            return super().begin(scenario, difficulty, seed=seed)
        opening = Turn(speaker=Speaker.USER, text=scenario.opening, emotion=self.config.start_emotion)
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed, turns=(opening,))

    def _words(self, appraisal: Appraisal, emotion: int, change: int, outcome: Outcome | None, *, rebuffs: bool) -> str:
        """The script's next turn, if there is one."""
        script, turn = self._scripts.get(appraisal.dialogue.scenario.scenario_id), appraisal.dialogue.num_replies + 1
        if script is None:
            return super()._words(appraisal, emotion, change, outcome, rebuffs=rebuffs)
        return script[turn] if turn < len(script) else "..."


class TellsInOrder(Guests):
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


async def rehear(dialogue: Dialogue, user: RuleUser) -> Dialogue:
    """A recorded dialogue as this user hears it: the recorded words, with readings and emotions of its own.

    It ends where the user would have ended it. One that the user would have continued ends with its last reply (MAX_TURNS).
    """
    heard = replace(dialogue, turns=dialogue.turns[:1], outcome=None)
    for _, reply, recorded in dialogue.answered():
        reaction = await user.react(heard, reply)
        said = Turn(speaker=Speaker.AGENT, text=reply)
        heard = heard.then(said, replace(reaction.turn, text=recorded.text), outcome=reaction.outcome)
        if heard.outcome is not None:
            return heard
    return heard.then(outcome=Outcome.TRUNCATED if dialogue.outcome is Outcome.TRUNCATED else Outcome.MAX_TURNS)


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


def reading_of(label: Mapping[str, Any], dialogue: Dialogue) -> Reading:
    """What a reader labelled in a reply (`simulator/replies/`), as a reading.

    Args:
        dialogue: up to the turn that the reply answers.
    """
    said, facts, is_plain = dialogue.said(), dialogue.story.facts, label["tone"] == "plain"
    stated = (facts_stated(said[turn - 1], facts) for turn in label["took_up"] if turn <= len(said))
    return Reading(
        strategies=tuple(label["strategies"]) if is_plain else (),
        cues=tuple(sorted(set(chain(*stated)))),
        clarity=label["coherence"] / 2,
        contempt=() if is_plain else (label["tone"],),
        ties_back=label["ties_back"],
    )


def text_of(reply: Any) -> str:
    """The words of a reply, given as text or as an object with its `text` and labels."""
    text = reply["text"] if isinstance(reply, dict) else reply
    if not isinstance(text, str):
        raise TypeError(f"a reply that is no text: {text!r}")
    return text


def listening(options: argparse.Namespace, **rule: Any) -> tuple[RuleUserConfig, Difficulty]:
    """The settings of the user that the options of `listener_options` ask for, and the difficulty.

    Args:
        rule: further settings.

    Raises:
        ValueError: they do not go together, or the server cannot be used.
    """
    is_model = options.listener == ListenerKind.MODEL
    try:
        server = ServedConfig(**flag_settings(options, "listener")) if is_model else None
        config = RuleUserConfig(
            register=Register(options.register or Register.OPEN), listener=ListenerKind(options.listener), server=server, **rule
        )
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
    # Recorded dialogues are felt by the rule of their run.
    recorded = recorded_config(options.file).get("simulator") or {}
    rule = {name: recorded[name] for name in ("momentum", "quantise") if recorded.get(name) is not None}
    options.register = options.register or recorded.get("register")
    config, difficulty = listening(options, **rule)
    register = config.register or Register.OPEN
    user = (TellsInOrder if options.facts == "in_order" else Guests)(config)
    ids, dialogues, finals = list[Any](), list[Player[Dialogue]](), list[int | None]()
    for number, record in read_jsonl(options.file, what="an object with id, scenario_id and replies", blank=True):
        try:
            scenario = user.scenario(record)
            if "turns" in record:
                dialogue = Dialogue.from_dict(record, scenario=scenario)
                dialogue.require_feelings()
                finals.append(dialogue.emotion)
                dialogues.append(partial(rehear, dialogue, user))
            else:
                if not isinstance(record["replies"], list):
                    raise TypeError(f"replies that are no list: {record['replies']!r}")
                replies = [text_of(reply) for reply in record["replies"]]
                finals.append(None)
                dialogues.append(partial(play_replies, user, scenario, difficulty, replies, seed=options.seed))
        except (KeyError, TypeError, ValueError) as error:
            wanted = "id, scenario_id and replies, or a recorded dialogue"
            raise ValueError(f"{options.file} line {number} must hold {wanted}, got {error}") from None
        ids.append(record.get("id", number))
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
    pairs = [(final, line["final"]) for final, line in zip(finals, lines, strict=True) if final is not None and "final" in line]
    if pairs:
        was, now = map(statistics.fmean, zip(*pairs, strict=True))
        print(f"{len(pairs)} recorded dialogues: mean final emotion {was:.1f} as recorded, {now:.1f} heard again", file=sys.stderr)
    if failed := [line["error"] for line in lines if "error" in line]:
        print(f"error: no usable reading in {len(failed)} of {len(lines)} dialogues, the first: {failed[0]}", file=sys.stderr)
    return ExitCode.FAILED if failed else ExitCode.FINISHED


async def all_at_once(dialogues: Sequence[Player[T]]) -> list[T | SimulatorError]:
    """The dialogues in their order, played side by side; the error in the place of one without a usable reading."""

    async def played(player: Player[T]) -> T | SimulatorError:
        try:
            return await player()
        except (SimulatorError, ValueError) as error:  # a ValueError: the user speaks a language that the listener does not know
            return error if isinstance(error, SimulatorError) else SimulatorError(str(error))

    tasks = [asyncio.create_task(played(player)) for player in dialogues]
    for done in progress(asyncio.as_completed(tasks), total=len(tasks), what="dialogues"):
        await done
    return [task.result() for task in tasks]
