"""One worker of the rollout pool: an engine, a user and the dialogues between them, on one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from policy.config import EngineConfig, RolloutConfig
from policy.engine.engine import Completion, EngineError, Request, Sampling
from policy.engine.factory import make_engine
from policy.engine.weights import WeightAck, WeightUpdate, check_acks
from policy.rollout.dialogue import Rollout, RolloutContext, RolloutGroup, SamplingOverrides, Task, roll_out_group, sampling_seed
from policy.rollout.outage import Outage
from policy.versions import check_same
from simulator.dialogue import Counts, UserSimulator
from simulator.reward import Shares
from simulator.scenario import Scenario
from simulator.tokens import Chat

ENGINE_BUSY_S = "engine_busy_s"
"""Name of the count of seconds that the engine computed."""


class Scenarios(Protocol):
    """Where a worker looks up scenarios; the simulator's Bank is one."""

    def scenario(self, scenario_id: str) -> Scenario: ...


class RolloutWorker:
    """Rolls out whole groups; each dialogue goes on as soon as its own turn is done. Arguments as of `RolloutPool`.

    Args:
        versions: of the driver's packages and code, which this machine must have, too.
    """

    def __init__(
        self,
        config: RolloutConfig,
        engine_config: EngineConfig,
        *,
        model_folder: Path,
        user_factory: Callable[[], UserSimulator],
        scenarios: Callable[[], Scenarios],
        seed: int,
        system_prompt: str,
        reward_terms: Shares = (),
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._versions = versions or {}
        self._config, self._engine_config, self._model_folder = config, engine_config, model_folder
        self._make_user, self._make_scenarios = user_factory, scenarios
        self._salt = sampling_seed(seed, 0, 0)
        self._system_prompt, self._reward_terms = system_prompt, reward_terms
        self._one_at_a_time = asyncio.Lock()

    async def start(self, weights: WeightUpdate | None = None) -> str:
        """Builds everything and waits until the engine answers; returns the kind of engine, which holds these weights if there are some."""
        check_same(self._versions)
        config = self._engine_config
        self._engine = await asyncio.to_thread(make_engine, config, self._model_folder, max_context=self._config.max_context)
        self._scenarios, self._outage = self._make_scenarios(), Outage(self._config.outage_s)
        self._context = RolloutContext(
            user=self._make_user(),
            generate=self._generate,
            chat=Chat(self._engine.tokenizer, self._system_prompt, thinking=config.thinking, keep_thoughts=config.keep_thoughts),
            config=self._config,
            outage=self._outage,
            format_weight=config.format_weight,
            reward_terms=self._reward_terms,
        )
        if weights is not None:
            check_acks([await self._engine.load_weights(weights)], weights)
        return self._engine.name

    async def roll_out(self, tasks: Sequence[Task], overrides: SamplingOverrides) -> list[RolloutGroup]:
        """Rolls out groups concurrently; raises EngineError where it broke, so that dialogues are no evidence of the user or the policy."""
        context = replace(self._context, overrides=overrides)
        if self._config.deterministic:
            async with self._one_at_a_time:
                await self._engine.reset_cache()
                lockstep = Lockstep(self.generate_all, num_dialogues=sum(task.group_size for task in tasks))
                groups = await self._groups(tasks, replace(context, generate=lockstep, on_finished=lockstep.leave))
        else:
            groups = await self._groups(tasks, context)
        if self._engine.broken:
            errors = [rollout.dialogue.error for group in groups for rollout in group.rollouts if rollout.dialogue.error]
            raise EngineError(f"the engine of a rollout worker broke\n{errors[-1] if errors else ''}")
        return groups

    async def load_weights(self, weights: WeightUpdate) -> WeightAck:
        """Replaces the engine's weights between replies; between calls, whose order no timing decides, where rollouts are deterministic."""
        async with self._one_at_a_time if self._config.deterministic else nullcontext():
            return await self._engine.load_weights(weights)

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return await self._engine.score(token_ids)

    async def generate_all(self, requests: Sequence[Request]) -> list[Completion]:
        return await self._engine.generate_all([replace(request, seed=request.seed ^ self._salt) for request in requests])

    async def reset_cache(self) -> None:
        await self._engine.reset_cache()

    async def heartbeat(self) -> float:
        """Seconds since the engine last sampled a token, while replies are wanted; the answer itself shows that this process lives."""
        return self._engine.stuck_s

    async def counts(self) -> dict[str, float]:
        """Seconds the engine computed (`ENGINE_BUSY_S`), the user's own counts, and the seconds of its outages (`paused_s`) if any."""
        user = self._context.user
        paused = {"paused_s": self._outage.paused_s} if self._outage.paused_s else {}
        return {ENGINE_BUSY_S: self._engine.busy_s, **(user.counts() if isinstance(user, Counts) else {}), **paused}

    def close(self) -> None:
        self._engine.close()

    async def _groups(self, tasks: Sequence[Task], context: RolloutContext) -> list[RolloutGroup]:
        return await asyncio.gather(*(roll_out_group(context, task, self._scenarios.scenario(task.scenario_id)) for task in tasks))

    async def _generate(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion:
        return await self._engine.generate(prompt_ids, sampling=sampling, seed=seed ^ self._salt)


class Lockstep:
    """A `Generate` that samples only when every dialogue that still goes on waits for a reply, in an order that no timing decides.

    Floating point sums depend on the composition of a batch; with the batches fixed, two runs sample identical tokens.
    """

    def __init__(self, generate_all: Callable[[Sequence[Request]], Awaitable[list[Completion]]], *, num_dialogues: int) -> None:
        self._generate_all = generate_all
        self._num_dialogues = num_dialogues
        self._waiting: dict[asyncio.Future[Completion], Request] = {}
        self._round: asyncio.Task[None] | None = None

    async def __call__(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion:
        reply = asyncio.get_running_loop().create_future()
        self._waiting[reply] = Request(prompt_ids=tuple(prompt_ids), sampling=sampling, seed=seed)
        self._sample_if_complete()
        try:
            return await reply
        finally:
            self._waiting.pop(reply, None)

    def leave(self, rollout: Rollout) -> None:
        """A dialogue is over: the others stop waiting for it."""
        self._num_dialogues -= 1
        self._sample_if_complete()

    def _sample_if_complete(self) -> None:
        if self._waiting and len(self._waiting) == self._num_dialogues:
            ordered = sorted(self._waiting.items(), key=lambda item: (item[1].seed, item[1].prompt_ids))
            self._waiting = {}
            self._round = asyncio.get_running_loop().create_task(self._sample(ordered))

    async def _sample(self, ordered: list[tuple[asyncio.Future[Completion], Request]]) -> None:
        try:
            completions = await self._generate_all([request for _, request in ordered])
        except Exception as error:  # noqa: BLE001 - every dialogue of the round gets it
            for reply, _ in ordered:
                if not reply.done():
                    reply.set_exception(error)
        else:
            for (reply, _), completion in zip(ordered, completions, strict=True):
                if not reply.done():
                    reply.set_result(completion)
