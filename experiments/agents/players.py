"""Players: put an agent before simulated users, many dialogues at once, each recorded as it ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from analysis.runs import DIALOGUES, THOUGHTS, read_lines
from analysis.transcripts import HELD_OUT
from experiments.agents.agent import MODEL_TOKENS, Agent, naming_options, of_agent
from experiments.recorder import dialogue_record
from experiments.tasks import EvaluationTask
from policy.config import EngineConfig, EngineDtype, EngineKind, RolloutConfig
from policy.mode import learnt_to_think
from policy.rollout.dialogue import RolloutContext, SamplingOverrides, roll_out, sampling_seed
from simulator.dialogue import Dialogue, Outcome, UserSimulator
from simulator.episode import Episode
from simulator.files import Progress, jsonable
from simulator.llm.client import Endpoints, Question, SimulatorError, TooLongError
from simulator.llm.config import EndpointConfig
from simulator.pressure import score
from simulator.scenario import Scenario
from simulator.scripted import ScriptedAgent
from simulator.tokens import CLOSE, OPEN, Chat, take_apart
from simulator.world import Bank

if TYPE_CHECKING:
    from policy.engine.engine import Engine

PATIENCE = 20
"""Failures in a row after which no further dialogue is begun: the server is gone, and each failure may take minutes."""
Item = TypeVar("Item")
Result = TypeVar("Result")


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
        return self.dialogue.outcome is Outcome.ERROR

    @property
    def scenario_id(self) -> str:
        return self.task.scenario_id

    @property
    def score(self) -> int:
        """Final emotion, 0-100, less what agreement costs where the user presses."""
        return score(self.dialogue)


class SilentAgent(RuntimeError):
    """The agent gave no usable reply."""


class FullContext(SilentAgent):
    """The dialogue and a reply do not fit into the agent's context."""


class ServerAgent:
    """A model behind an OpenAI-compatible server, which gets the dialogue as chat messages, after a system prompt unless that is empty."""

    def __init__(self, config: EndpointConfig, *, system: str = "") -> None:
        self.endpoints = Endpoints(config)
        self._opening = (("system", system),) if system else ()

    async def answer(self, messages: Sequence[Mapping[str, str]], *, seed: int) -> tuple[str, str]:
        """Words and thought (up to </think>) of the answer, by a seed in [0, 2^31); raises SilentAgent after all retries."""
        sent = tuple((message["role"], message["content"]) for message in messages)
        question = Question(name="reply", messages=(*self._opening, *sent), schema={}, seed=seed, may_be_cut=True)
        try:
            answer = await self.endpoints.ask(question, str)
        except TooLongError as error:
            raise FullContext(of_agent(str(error))) from error
        except SimulatorError as error:
            raise SilentAgent(of_agent(str(error))) from error
        if OPEN not in answer and CLOSE not in answer:
            return answer.strip(), ""
        reply = take_apart(answer)
        return reply.words, reply.thought


class TextPlayer:
    """Plays an agent that answers in words, one dialogue at a time; a failure becomes an ERROR dialogue."""

    def __init__(self, agent: ScriptedAgent | ServerAgent, user: UserSimulator, *, max_turns: int, seed: int) -> None:
        self._agent, self._user, self._max_turns, self._seed = agent, user, max_turns, seed

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> AgentDialogue:
        episode, thoughts = Episode(self._user, scenario, task.difficulty, seed=task.seed, max_turns=self._max_turns), []
        try:
            await episode.open()
            while not episode.over:
                dialogue = episode.dialogue
                if isinstance(self._agent, ServerAgent):
                    seed = sampling_seed(self._seed ^ task.seed, sibling, dialogue.num_replies) >> 32
                    words, thought = await self._agent.answer(dialogue.messages(), seed=seed)
                else:
                    words, thought = self._agent.reply(dialogue), ""
                thoughts.append(thought)
                await episode.reply(words)
        except FullContext:  # as `roll_out` ends it
            episode.cut_off()
        except (SilentAgent, SimulatorError) as error:
            episode.end(Outcome.ERROR, error=str(error))
        except Exception:  # noqa: BLE001 - the one boundary where any failure becomes data
            episode.end(Outcome.ERROR, error=traceback.format_exc())
        return AgentDialogue(task=task, sibling=sibling, dialogue=episode.dialogue, thoughts=tuple(thoughts) if any(thoughts) else ())

    def counts(self) -> dict[str, float]:
        return dict(self._agent.endpoints.counts) if isinstance(self._agent, ServerAgent) else {}

    async def close(self) -> None:
        if isinstance(self._agent, ServerAgent):
            await self._agent.endpoints.close()


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a local model is sampled: the options, else the settings of the agent's run, else defaults."""

    engine: EngineConfig
    rollout: RolloutConfig
    temperature: float
    system: str
    """A prompt before the dialogue; empty for none."""
    has_default_cache: bool
    """Neither its run nor an option sizes vLLM's cache on a CPU."""

    @classmethod
    def of(cls, options: argparse.Namespace, agent: Agent, *, max_turns: int) -> ModelSettings:
        from policy.model import num_positions

        tokens, context = (40, 512) if agent.is_embedded else (MODEL_TOKENS, 4096)
        if agent.folder is not None:
            context = min(context, num_positions(agent.folder, otherwise=context))
        context = options.max_context or int(agent.run_setting("rollout.max_context", context))
        # A reply is at most a quarter of a short context.
        tokens = int(agent.run_setting("rollout.max_new_tokens", min(tokens, context // 4)))
        thinks = learnt_to_think(agent.folder) if agent.folder is not None else False
        given = {name: agent.run_setting(f"policy.{name}", None) for name in ("kv_cache_mb", "gpu_memory_share")}
        given["gpu_memory_share"] = given["gpu_memory_share"] if options.gpu_memory_share is None else options.gpu_memory_share
        with naming_options(in_model_options, "policy"):
            return cls(
                engine=EngineConfig(
                    engine=EngineKind(options.engine),
                    dtype=EngineDtype(options.dtype),
                    thinking=options.thinking or bool(agent.run_setting("policy.thinking", thinks)),
                    keep_thoughts=agent.run_setting("policy.keep_thoughts", None),
                    **{name: value for name, value in given.items() if value is not None},
                ),
                # Many dialogues at once on a slow engine each take long.
                rollout=RolloutConfig(
                    max_turns=max_turns, max_new_tokens=options.max_tokens or tokens, max_context=context, dialogue_timeout_s=3600.0
                ),
                temperature=options.temperature,
                system=agent.system_prompt(options.system),
                has_default_cache=given["kv_cache_mb"] is None,
            )

    def load(self, folder: Path) -> tuple[Engine, Chat]:
        """An engine in this process that samples by the weights in a folder, and its chat template."""
        from policy.engine.factory import free_bytes, make_engine
        from policy.model import cache_bytes, no_progress_bars

        config, context = self.engine, self.rollout.max_context
        if self.has_default_cache:
            # Four whole dialogues where a quarter of the memory has room. As vLLM counts: one token more, and whole blocks.
            each = cache_bytes(folder, num_tokens=context + 1 + config.block_size, dtype=config.dtype)
            num = min(4, max(1, free_bytes() // 4 // each)) if each else 0
            config = replace(config, kv_cache_mb=max(config.kv_cache_mb, -(-num * each >> 20)))
        with naming_options(in_model_options), no_progress_bars():
            engine = make_engine(config, folder, max_context=context)
            return engine, Chat(engine.tokenizer, self.system, thinking=config.thinking, keep_thoughts=config.keep_thoughts)


def in_model_options(message: str) -> str:
    """A message with options in the place of a run's settings."""
    for setting, option in (
        ("rollout.max_new_tokens", "--max-tokens"),
        ("rollout.max_context", "--max-context"),
        ("policy.gpu_memory_share", "--gpu-memory-share"),
        ("policy.thinking must be true", "--thinking must be given"),
        ("policy.thinking must be false", "--thinking must be left out"),
    ):
        message = message.replace(setting, option)
    return message


class ModelPlayer:
    """Plays a local model by an engine in this process, one dialogue at a time; a failure becomes an ERROR dialogue."""

    def __init__(self, folder: Path, settings: ModelSettings, user: UserSimulator, *, seed: int) -> None:
        self._settings, self._user, self._seed = settings, user, sampling_seed(seed, 0, 0)
        self.engine, self._chat = settings.load(folder)
        self._num_tokens = 0

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> AgentDialogue:
        context = RolloutContext(
            user=self._user,
            generate=self.engine.generate,
            chat=self._chat,
            config=self._settings.rollout,
            overrides=SamplingOverrides(temperature=self._settings.temperature),
        )
        # Sampling seeds derive from those of task, sibling and turn; the run's seed makes the sibling differ.
        rollout = await roll_out(context, scenario, task.difficulty, task.seed, sibling=self._seed % 2**31 + sibling)
        self._num_tokens += rollout.num_sampled
        thoughts = tuple(thought.text for thought in rollout.thoughts)
        return AgentDialogue(task=task, sibling=sibling, dialogue=rollout.dialogue, thoughts=thoughts)

    def counts(self) -> dict[str, float]:
        return {"completion_tokens": float(self._num_tokens)}

    async def close(self) -> None:
        self.engine.close()


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
    """Runs `work` on the items in order, so many at once; begins none after PATIENCE failures in a row or a yes of `should_stop`.

    Returns the items that were begun, in order, each with its result.
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
    """The recorded dialogues of an evaluation's folder, so many samples of each task."""

    def __init__(self, folder: Path, tasks: Sequence[EvaluationTask], bank: Bank, *, samples: int) -> None:
        self.path, self.bank = folder / DIALOGUES, bank
        self.planned = {(task.uid, sibling): (task, sibling) for task in tasks for sibling in range(samples)}

    def read(self) -> dict[tuple[str, int], AgentDialogue]:
        """The dialogues that did not break, by uid and sibling."""
        found = {}
        for record in read_lines(self.path):
            task, sibling = self.planned[record["uid"], record["sibling"]]
            dialogue = Dialogue.from_dict(record, scenario=self.bank.scenario(task.scenario_id))
            if dialogue.outcome is not Outcome.ERROR:
                thoughts = tuple(record.get(THOUGHTS, ()))
                found[task.uid, sibling] = AgentDialogue(task=task, sibling=sibling, dialogue=dialogue, thoughts=thoughts)
        return found

    def append(self, played: AgentDialogue) -> None:
        facts = {"step": 0, "kind": HELD_OUT, "uid": played.task.uid, "sibling": played.sibling, "strictness": played.task.strictness}
        thoughts = {THOUGHTS: list(played.thoughts)} if played.thoughts else {}
        record = jsonable(dialogue_record(played.dialogue, **facts, **thoughts))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
