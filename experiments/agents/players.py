"""A dialogue of an agent that speaks in words, scripted or behind a server, with any simulated user."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.agents.wording import of_agent
from experiments.evaluate import EvaluationTask
from policy.rollout.chat import CLOSE, OPEN, take_apart
from policy.rollout.dialogue import sampling_seed
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.llm.client import Endpoints, Question, SimulatorError, check_endpoints
from simulator.llm.config import AnswerFormat, EndpointConfig
from simulator.scenario import Scenario
from simulator.scripted import ScriptedAgent
from simulator.user import UserSimulator


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What an agent said, and what it thought before, which no user hears."""

    words: str
    thought: str = ""


@dataclass(frozen=True, kw_only=True)
class Played:
    """A finished dialogue of an evaluation."""

    task: EvaluationTask
    sibling: int
    """Number among the dialogues with the same user, from 0."""
    dialogue: Dialogue
    thoughts: tuple[str, ...] = ()
    """One for each reply of an agent that thinks; none of one that does not."""


class Player(Protocol):
    """An agent that can be put before a user. Whatever breaks becomes an ERROR dialogue with its reason."""

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> Played:
        """One dialogue from opening to end."""
        ...

    def counts(self) -> dict[str, float]:
        """What it used up so far."""
        ...

    async def close(self) -> None:
        """Lets go of whatever it holds."""
        ...


class Speaks(Protocol):
    """An agent that answers in words."""

    async def reply(self, dialogue: Dialogue, *, seed: int) -> Reply:
        """The next reply to what was said, and to nothing else that a dialogue holds.

        Args:
            seed: of this reply, in [0, 2^31).
        """
        ...

    def counts(self) -> dict[str, float]: ...

    async def close(self) -> None: ...


class SilentAgent(RuntimeError):
    """The agent gave no reply that could be used."""


class WordsPlayer:
    """Plays whoever answers in words."""

    def __init__(self, agent: Speaks, user: UserSimulator, *, max_turns: int, seed: int) -> None:
        self._agent, self._user, self._max_turns, self._seed = agent, user, max_turns, seed

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> Played:
        """One dialogue."""
        dialogue, thoughts = Dialogue(scenario=scenario, difficulty=task.difficulty, seed=task.seed), []
        try:
            dialogue = await self._user.open(scenario, task.difficulty, seed=task.seed)
            while dialogue.outcome is None:
                seed = sampling_seed(self._seed ^ task.seed, sibling, dialogue.num_replies) >> 32
                reply = await self._agent.reply(dialogue, seed=seed)
                thoughts.append(reply.thought)
                reaction = await self._user.react(dialogue, reply.words)
                is_last = dialogue.num_replies + 1 >= self._max_turns
                said = Turn(speaker=Speaker.AGENT, text=reply.words)
                dialogue = dialogue.then(said, reaction.turn, outcome=reaction.outcome or (Outcome.MAX_TURNS if is_last else None))
        except (SilentAgent, SimulatorError) as error:
            dialogue = dialogue.then(outcome=Outcome.ERROR, error=str(error))
        except Exception:  # noqa: BLE001 - the one boundary where anything that breaks becomes data
            dialogue = dialogue.then(outcome=Outcome.ERROR, error=traceback.format_exc())
        return Played(task=task, sibling=sibling, dialogue=dialogue, thoughts=tuple(thoughts) if any(thoughts) else ())

    def counts(self) -> dict[str, float]:
        """What the agent used up."""
        return self._agent.counts()

    async def close(self) -> None:
        """Lets the agent go."""
        await self._agent.close()


class Scripted:
    """An agent of the ladder, which draws by the dialogue's own seed."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self._agent = agent

    async def reply(self, dialogue: Dialogue, *, seed: int) -> Reply:
        """The next reply."""
        return Reply(words=self._agent.reply(dialogue))

    def counts(self) -> dict[str, float]:
        """Nothing."""
        return {}

    async def close(self) -> None:
        """Nothing to let go."""


class ServerAgent:
    """A model behind an OpenAI-compatible server, asked with the dialogue as chat messages.

    Args:
        system: a prompt before them; empty for none.
    """

    def __init__(self, config: EndpointConfig, *, system: str = "") -> None:
        self.endpoints = Endpoints(config)
        self._opening = (("system", system),) if system else ()

    async def reply(self, dialogue: Dialogue, *, seed: int) -> Reply:
        """The answer to a dialogue: sent are the words that were said, never what the user feels, thinks or hides.

        Raises:
            SilentAgent: there is none after all retries; says why.
        """
        return await self.answer(dialogue.messages(), seed=seed)

    async def answer(self, messages: Sequence[Mapping[str, str]], *, seed: int) -> Reply:
        """The answer to chat messages, its thought aside; words that ran out of tokens are said as far as they go.

        Raises:
            SilentAgent: there is none after all retries; says why.
        """
        said = tuple((message["role"], message["content"]) for message in messages)
        question = Question(name="reply", messages=(*self._opening, *said), schema={}, seed=seed, may_be_cut=True)
        try:
            return await self.endpoints.ask(question, read_reply)
        except SimulatorError as error:
            raise SilentAgent(of_agent(str(error))) from error

    def counts(self) -> dict[str, float]:
        """Requests, tokens and money."""
        return dict(self.endpoints.counts)

    async def close(self) -> None:
        """Closes the connections."""
        await self.endpoints.close()


def read_reply(answer: str) -> Reply:
    """The words and the thought in an answer: models that reason put it before </think>, some servers keep it apart by themselves.

    An answer that is all thought is a reply without words, as of a model whose weights are here: to ask again would judge the agent by the
    answers that came out well.
    """
    if OPEN not in answer and CLOSE not in answer:
        return Reply(words=answer.strip())
    said = take_apart(answer)
    return Reply(words=said.words, thought=said.thought)


def agent_config(settings: dict[str, Any]) -> EndpointConfig:
    """The settings of an agent's server, looked at.

    Raises:
        ValueError: one of them means nothing; in the words of the command line.
    """
    try:
        return EndpointConfig(**settings, answer_format=AnswerFormat.TEXT)
    except ValueError as error:
        raise ValueError(of_agent(str(error))) from error


def server_config(settings: dict[str, Any]) -> EndpointConfig:
    """The settings of an agent's server, looked at and the server asked for a few tokens.

    Raises:
        ValueError: it cannot be worked with; in the words of the command line.
    """
    config = agent_config(settings)
    try:
        check_endpoints(config)
    except ValueError as error:
        raise ValueError(of_agent(str(error)).replace("simulator.kind must be another", "AGENT must be another")) from error
    return config
