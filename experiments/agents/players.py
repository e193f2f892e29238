"""A dialogue of an agent that speaks in words, scripted or behind a server, with any simulated user.

How an agent whose weights are here is asked: as its run asked it where it comes from one.

A dialogue of an agent whose weights are here: an engine in this process, and tokens kept as in a run's own rollouts.

All dialogues of an evaluation, several at once, each written as it ends; what is there already is not played again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from analysis.runs import DIALOGUES, THOUGHTS, read_lines
from analysis.transcripts import HELD_OUT
from experiments.agents.agent import Agent, Setting, of_agent
from experiments.errors import ConfigError
from experiments.recorder import cut_back, dialogue_record
from experiments.tasks import EvaluationTask
from policy.config import EngineConfig, EngineDtype, EngineKind
from policy.engine.capacity import free_bytes
from policy.engine.engine import Engine
from policy.engine.factory import make_engine
from policy.model import cache_bytes, no_progress_bars, num_positions
from policy.rollout.chat import CLOSE, OPEN, Chat, learnt_to_think, take_apart
from policy.rollout.dialogue import Conduct, RolloutConfig, roll_out, sampling_seed
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.files import Progress, jsonable
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


EMBEDDED_TOKENS, EMBEDDED_CONTEXT = 40, 512
MODEL_TOKENS, MODEL_CONTEXT = 800, 4096
"""Of a model that is not ours, wherever it runs: agents whose replies are cut at different lengths are not the same test."""
WHOLE_DIALOGUES = 4
"""For so many vLLM's cache has room on a CPU where nothing was said and memory allows: most end long before their context does."""
MOST_OF_CONTEXT = 4
"""A reply is at most one of so many parts of a context that is short."""
OPTIONS = {
    "rollout.max_new_tokens": "--max-tokens",
    "rollout.max_context": "--max-context",
    "policy.kv_cache_mb": "--kv-cache-mb",
    "policy.gpu_memory_share": "--gpu-memory-share",
    "policy.thinking must be true": "--thinking must be given",
    "policy.thinking must be false": "--thinking must be left out",
    "policy.keep_thoughts": "keep_thoughts of its run",
}
"""By setting of a run, or what is said of it, the option that takes its place here."""
LONGEST_S = 3600.0
"""Of a dialogue: a slow engine's many dialogues at once each take long."""


@dataclass(frozen=True, kw_only=True)
class Speech:
    """How a model is asked."""

    engine: EngineConfig
    has_default_cache: bool
    """Whether nobody said how large vLLM's cache is on a CPU, so that it follows from the model."""
    rollout: RolloutConfig
    """`max_turns`, `max_new_tokens` and `max_context` of it."""
    temperature: float
    """>= 0; 0 is greedy."""
    system: str
    """A prompt before the dialogue; empty for none."""


def speech_of(options: argparse.Namespace, agent: Agent, *, max_turns: int) -> Speech:
    """The options, else what the agent's run was set to, else what suits the embedded policy or any other.

    Raises:
        ConfigError: a value is out of range, or a context too short for a reply.
    """
    tokens, context = (EMBEDDED_TOKENS, EMBEDDED_CONTEXT) if agent.is_embedded else (MODEL_TOKENS, MODEL_CONTEXT)
    if agent.folder is not None:
        context = min(context, num_positions(agent.folder, otherwise=context))
    context = options.max_context or int(agent.recorded("rollout.max_context", context))
    learnt = learnt_to_think(agent.folder) if agent.folder is not None else False
    cache_mb = options.kv_cache_mb or agent.recorded("policy.kv_cache_mb", None)
    try:
        return Speech(
            has_default_cache=cache_mb is None,
            engine=EngineConfig(
                engine=EngineKind(options.engine),
                dtype=EngineDtype(options.dtype),
                kv_cache_mb=int(cache_mb or EngineConfig.kv_cache_mb),
                gpu_memory_share=options.gpu_memory_share
                if options.gpu_memory_share is not None
                else float(agent.recorded("policy.gpu_memory_share", EngineConfig.gpu_memory_share)),
                thinking=options.thinking or bool(agent.recorded("policy.thinking", learnt)),
                keep_thoughts=agent.recorded("policy.keep_thoughts", None),
            ),
            rollout=RolloutConfig(
                max_turns=max_turns,
                max_new_tokens=options.max_tokens or int(agent.recorded("rollout.max_new_tokens", min(tokens, context // MOST_OF_CONTEXT))),
                max_context=context,
                dialogue_timeout_s=LONGEST_S,
            ),
            temperature=options.temperature,
            system=agent.told(options.system),
        )
    except ValueError as error:
        raise ConfigError(as_options(str(error))) from error


def engine_for(speech: Speech, folder: Path) -> Engine:
    """An engine in this process that samples by the weights in a folder.

    Raises:
        ConfigError: the model cannot be loaded, or has no room.
        RuntimeError: it did not start.
    """
    engine, context = speech.engine, speech.rollout.max_context
    if speech.has_default_cache:
        engine = replace(engine, kv_cache_mb=max(engine.kv_cache_mb, default_cache_mb(folder, engine, context=context)))
    try:
        return make_engine(engine, folder, max_context=context)
    except ValueError as error:
        raise ConfigError(as_options(str(error))) from error


def default_cache_mb(folder: Path, engine: EngineConfig, *, context: int) -> int:
    """MiB of vLLM's cache on a CPU: room for `WHOLE_DIALOGUES`, for fewer where these take a quarter of the free memory, at least one."""
    # As vLLM counts: one token more, and whole blocks.
    each = cache_bytes(folder, num_tokens=context + 1 + engine.block_size, dtype=engine.dtype)
    num = min(WHOLE_DIALOGUES, max(1, free_bytes() // 4 // each)) if each else 0
    return -(-num * each >> 20)


def chat_for(speech: Speech, tokenizer: Any) -> Chat:
    """The chat template by which the model is asked.

    Raises:
        ConfigError: it cannot be used, or not so.
    """
    try:
        return Chat(tokenizer, speech.system, thinking=speech.engine.thinking, keep_thoughts=speech.engine.keep_thoughts)
    except ValueError as error:
        raise ConfigError(as_options(str(error))) from error


def as_options(message: str) -> str:
    """The message with options in the place of a run's settings."""
    for setting, option in OPTIONS.items():
        message = message.replace(setting, option)
    return message


class ModelPlayer:
    """Plays a model by an engine of its own.

    Raises:
        ValueError: the model cannot be loaded or its chat template cannot be used.
        RuntimeError: the engine did not start.
    """

    def __init__(self, folder: Path, speech: Speech, user: UserSimulator, *, seed: int) -> None:
        self._speech, self._user, self._seed = speech, user, sampling_seed(seed, 0, 0)
        with no_progress_bars():
            self.engine: Engine = engine_for(speech, folder)
        self._chat = chat_for(speech, self.engine.tokenizer)
        self._num_tokens = 0

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> Played:
        """One dialogue, with what a run's own evaluation would have made of it: its limits, its endings, its form of thoughts."""
        rollout = await roll_out(
            scenario,
            task.difficulty,
            task.seed,
            user=self._user,
            generate=self.engine.generate,
            chat=self._chat,
            config=self._speech.rollout,
            # The sampling seeds follow from the task's, the sibling's and the turn's numbers; the run's seed sets the sibling apart.
            sibling=self._seed % 2**31 + sibling,
            conduct=Conduct(temperature=self._speech.temperature),
        )
        self._num_tokens += rollout.num_sampled
        thoughts = tuple(thought.text for thought in rollout.thoughts)
        return Played(task=task, sibling=sibling, dialogue=rollout.dialogue, thoughts=thoughts)

    def counts(self) -> dict[str, float]:
        """Tokens it sampled."""
        return {"completion_tokens": float(self._num_tokens)}

    async def close(self) -> None:
        """Stops the engine."""
        self.engine.close()


PATIENCE = 20
"""Broken dialogues in a row after which no further one is begun: whoever broke them is gone, and each may cost minutes of waiting."""

Key = tuple[str, int]
"""A task's uid and a sibling's number."""


class Dialogues:
    """The dialogues of an evaluation's folder.

    Args:
        samples: dialogues with each user.
    """

    def __init__(self, folder: Path, setting: Setting, *, samples: int) -> None:
        self.path = folder / DIALOGUES
        self._setting = setting
        self.tasks = {(task.uid, sibling): (task, sibling) for task in setting.tasks() for sibling in range(samples)}

    def resume(self) -> dict[Key, Played]:
        """What was played before; dialogues that broke are forgotten, to be played again."""
        cut_back(self.path, lambda record: record["outcome"] != Outcome.ERROR)
        return self.sound()

    def sound(self) -> dict[Key, Played]:
        """What was played and did not break."""
        found = {(played.task.uid, played.sibling): played for played in self.read()}
        return {key: played for key, played in found.items() if played.dialogue.outcome is not Outcome.ERROR}

    def read(self) -> Iterator[Played]:
        """The recorded dialogues, in the order in which they ended.

        Raises:
            ValueError: a line is no dialogue of this evaluation.
        """
        for record in read_lines(self.path):
            key = (record.get("uid"), record.get("sibling"))
            if key not in self.tasks:
                raise ValueError(f"{self.path} must hold dialogues of this evaluation, got {record.get('uid')!r}")
            task, sibling = self.tasks[key]
            dialogue = Dialogue.from_dict(record, scenario=self._setting.bank.scenario(task.scenario_id))
            yield Played(task=task, sibling=sibling, dialogue=dialogue, thoughts=tuple(record.get(THOUGHTS, ())))

    def append(self, played: Played) -> None:
        """Writes one more, so that it is not lost whatever comes."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(jsonable(as_record(played)), ensure_ascii=False) + "\n")


def as_record(played: Played) -> dict[str, Any]:
    """A line of `dialogues.jsonl`, in the format of a run's."""
    facts = {"step": 0, "kind": HELD_OUT, "uid": played.task.uid, "sibling": played.sibling, "strictness": played.task.strictness}
    thoughts = {THOUGHTS: list(played.thoughts)} if played.thoughts else {}
    return dialogue_record(played.dialogue, **facts, **thoughts)


async def play_all(
    player: Player,
    dialogues: Dialogues,
    missing: Sequence[tuple[EvaluationTask, int]],
    *,
    scenarios: Mapping[str, Scenario],
    concurrency: int,
    num_before: int,
    should_stop: Callable[[], bool],
) -> list[Played]:
    """Plays what is missing, in order, so many at a time.

    Args:
        num_before: dialogues that were there already, for the bar.
        should_stop: asked before each dialogue; after a yes none is begun any more.

    Returns:
        What was played, in the order in which it ended.
    """
    waiting, done, in_a_row = iter(missing), list[Played](), 0
    with Progress("dialogues", num_before + len(missing), before=num_before) as bar:

        async def play_on() -> None:
            nonlocal in_a_row
            for task, sibling in waiting:
                if should_stop() or in_a_row >= PATIENCE:
                    return
                played = await player.play(scenarios[task.scenario_id], task, sibling)
                dialogues.append(played)
                done.append(played)
                in_a_row = in_a_row + 1 if played.dialogue.outcome is Outcome.ERROR else 0
                bar.add()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(missing))):
                tasks.create_task(play_on())
    return done
