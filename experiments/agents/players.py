"""Players: put an agent before simulated users, many dialogues at once, each recorded as it ends.

An agent that answers in words (scripted, or behind a server) is played turn by turn; for local weights see `model_player.py`.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from analysis.runs import DIALOGUES, THOUGHTS, read_lines
from analysis.transcripts import HELD_OUT
from experiments.agents.agent import of_agent
from experiments.agents.options import naming_options
from experiments.agents.setting import Setting
from experiments.recorder import cut_back, dialogue_record
from experiments.tasks import EvaluationTask
from policy.rollout.chat import CLOSE, OPEN, take_apart
from policy.rollout.dialogue import sampling_seed
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.files import Progress, jsonable
from simulator.llm.client import Endpoints, Question, SimulatorError, check_endpoints
from simulator.llm.config import EndpointConfig
from simulator.scenario import Scenario
from simulator.scripted import ScriptedAgent
from simulator.user import UserSimulator

PATIENCE = 20
"""Failures in a row after which no further dialogue is begun: the server is gone, and each failure may take minutes."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An agent's reply."""

    words: str
    thought: str = ""
    """Hidden from the user."""


@dataclass(frozen=True, kw_only=True)
class AgentDialogue:
    """A finished dialogue of an evaluation."""

    task: EvaluationTask
    sibling: int
    """Number among the dialogues with the same user, from 0."""
    dialogue: Dialogue
    thoughts: tuple[str, ...] = ()
    """One for each reply of an agent that thinks; empty otherwise."""

    @property
    def is_broken(self) -> bool:
        """Whether it ended by an error."""
        return self.dialogue.outcome is Outcome.ERROR

    @property
    def scenario_id(self) -> str:
        """Of its user."""
        return self.task.scenario_id


class Player(Protocol):
    """Plays one dialogue of an agent at a time, a failure becoming an ERROR dialogue; counts requests, tokens and money."""

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> AgentDialogue: ...
    def counts(self) -> dict[str, float]: ...
    async def close(self) -> None: ...


class SilentAgent(RuntimeError):
    """The agent gave no usable reply."""


class ServerAgent:
    """A model behind an OpenAI-compatible server, which gets the dialogue as chat messages.

    Args:
        system: a prompt before them; empty for none.
    """

    def __init__(self, config: EndpointConfig, *, system: str = "") -> None:
        self.endpoints = Endpoints(config)
        self._opening = (("system", system),) if system else ()

    async def answer(self, messages: Sequence[Mapping[str, str]], *, seed: int) -> Reply:
        """The answer to chat messages; one that ran out of tokens counts as far as it goes.

        Args:
            seed: of this reply, in [0, 2^31).

        Raises:
            SilentAgent: there is none after all retries.
        """
        sent = tuple((message["role"], message["content"]) for message in messages)
        question = Question(name="reply", messages=(*self._opening, *sent), schema={}, seed=seed, may_be_cut=True)
        try:
            return await self.endpoints.ask(question, read_reply)
        except SimulatorError as error:
            raise SilentAgent(of_agent(str(error))) from error


def read_reply(answer: str) -> Reply:
    """The words and the thought (up to </think>) in an answer.

    An answer that is all thought is a reply without words, as of a local model: to ask again would select the answers that came out well.
    """
    if OPEN not in answer and CLOSE not in answer:
        return Reply(words=answer.strip())
    said = take_apart(answer)
    return Reply(words=said.words, thought=said.thought)


def check_server(config: EndpointConfig) -> None:
    """Asks an agent's server for a few tokens.

    Raises:
        ValueError: it does not work; in the words of the command line.
    """
    with naming_options(of_agent):
        check_endpoints(config)


class TextPlayer:
    """Plays an agent that answers in words."""

    def __init__(self, agent: ScriptedAgent | ServerAgent, user: UserSimulator, *, max_turns: int, seed: int) -> None:
        self._agent, self._user, self._max_turns, self._seed = agent, user, max_turns, seed

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> AgentDialogue:
        """One dialogue."""
        dialogue, thoughts = Dialogue(scenario=scenario, difficulty=task.difficulty, seed=task.seed), []
        try:
            dialogue = await self._user.open(scenario, task.difficulty, seed=task.seed)
            while dialogue.outcome is None:
                if isinstance(self._agent, ServerAgent):
                    seed = sampling_seed(self._seed ^ task.seed, sibling, dialogue.num_replies) >> 32
                    reply = await self._agent.answer(dialogue.messages(), seed=seed)
                else:
                    reply = Reply(words=self._agent.reply(dialogue))
                thoughts.append(reply.thought)
                reaction = await self._user.react(dialogue, reply.words)
                is_last = dialogue.num_replies + 1 >= self._max_turns
                said = Turn(speaker=Speaker.AGENT, text=reply.words)
                dialogue = dialogue.then(said, reaction.turn, outcome=reaction.outcome or (Outcome.MAX_TURNS if is_last else None))
        except (SilentAgent, SimulatorError) as error:
            dialogue = dialogue.then(outcome=Outcome.ERROR, error=str(error))
        except Exception:  # noqa: BLE001 - the one boundary where any failure becomes data
            dialogue = dialogue.then(outcome=Outcome.ERROR, error=traceback.format_exc())
        return AgentDialogue(task=task, sibling=sibling, dialogue=dialogue, thoughts=tuple(thoughts) if any(thoughts) else ())

    def counts(self) -> dict[str, float]:
        """Of its server."""
        return dict(self._agent.endpoints.counts) if isinstance(self._agent, ServerAgent) else {}

    async def close(self) -> None:
        """Closes the connections."""
        if isinstance(self._agent, ServerAgent):
            await self._agent.endpoints.close()


async def run_all(
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    concurrency: int,
    label: str,
    is_failure: Callable[[Result], bool],
    num_before: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[tuple[Item, Result]]:
    """Runs `work` on the items in order, so many at once; begins none after PATIENCE failures in a row.

    Args:
        label, num_before: of the progress bar.
        should_stop: asked before each item; after a yes none is begun.

    Returns:
        The items that were begun, in their order, each with its result.
    """
    waiting, found, failures = iter(enumerate(items)), dict[int, Result](), 0
    with Progress(label, num_before + len(items), before=num_before) as bar:

        async def worker() -> None:
            nonlocal failures
            for i, item in waiting:
                if should_stop() or failures >= PATIENCE:
                    return
                found[i] = result = await work(item)
                failures = failures + 1 if is_failure(result) else 0
                bar.add()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(items))):
                tasks.create_task(worker())
    return [(items[i], found[i]) for i in sorted(found)]


class DialogueStore:
    """The recorded dialogues of an evaluation's folder.

    Args:
        samples: dialogues with each user.
    """

    def __init__(self, folder: Path, setting: Setting, *, samples: int) -> None:
        self.path = folder / DIALOGUES
        self._setting = setting
        self.planned = {(task.uid, sibling): (task, sibling) for task in setting.tasks() for sibling in range(samples)}
        """By uid and sibling."""

    def forget_broken(self) -> None:
        """Removes dialogues that broke, and a torn last line, so that they are played again."""
        cut_back(self.path, lambda record: record["outcome"] != Outcome.ERROR)

    def read(self) -> dict[tuple[str, int], AgentDialogue]:
        """The dialogues that did not break, by uid and sibling.

        Raises:
            ValueError: one is of another evaluation.
        """
        found = {}
        for record in read_lines(self.path):
            key = (record.get("uid"), record.get("sibling"))
            if key not in self.planned:
                raise ValueError(f"{self.path} must hold dialogues of this evaluation, got {record.get('uid')!r}")
            task, sibling = self.planned[key]
            dialogue = Dialogue.from_dict(record, scenario=self._setting.bank.scenario(task.scenario_id))
            if dialogue.outcome is not Outcome.ERROR:
                thoughts = tuple(record.get(THOUGHTS, ()))
                found[task.uid, sibling] = AgentDialogue(task=task, sibling=sibling, dialogue=dialogue, thoughts=thoughts)
        return found

    def append(self, played: AgentDialogue) -> None:
        """Records one more, in the format of a run's dialogues."""
        facts = {"step": 0, "kind": HELD_OUT, "uid": played.task.uid, "sibling": played.sibling, "strictness": played.task.strictness}
        thoughts = {THOUGHTS: list(played.thoughts)} if played.thoughts else {}
        record = jsonable(dialogue_record(played.dialogue, **facts, **thoughts))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


async def play_all(
    player: Player,
    store: DialogueStore,
    missing: Sequence[tuple[EvaluationTask, int]],
    *,
    scenarios: Mapping[str, Scenario],
    concurrency: int,
    should_stop: Callable[[], bool],
) -> list[AgentDialogue]:
    """Plays the missing dialogues, each with its sibling's number, and records them."""

    async def play(pair: tuple[EvaluationTask, int]) -> AgentDialogue:
        task, sibling = pair
        played = await player.play(scenarios[task.scenario_id], task, sibling)
        store.append(played)
        return played

    found = await run_all(
        missing,
        play,
        concurrency=concurrency,
        label="dialogues",
        is_failure=lambda played: played.is_broken,
        num_before=len(store.planned) - len(missing),
        should_stop=should_stop,
    )
    return [played for _, played in found]
