"""A rollout worker without an engine, for tests of the pool: it plays by script and does what files in its folder order."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np

from policy.engine.engine import EngineError
from policy.engine.weights import CheckedTensors, WeightAck
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.reward import Reward
from tests.tiny_scenario import make_scenario


class ScriptedWorker:
    """Dialogues of one reply of two tokens; in scenarios called `slow` they wait for the file `go`.

    Files `hang` and `break`, each taken once, stop its heartbeat or break its engine at the next dialogue; `never` keeps it from starting.
    `user_factory` is the folder here.
    """

    def __init__(self, config, engine_config, *, user_factory, **build) -> None:
        self.folder, self.version, self.num_calls, self.stuck = Path(user_factory), 0, 0, False

    async def start(self, weights=None) -> str:
        began = time.time()
        if (self.folder / "never").exists():
            raise ValueError("policy.model must be there, got nothing")
        if (self.folder / "starts").is_dir():
            await asyncio.sleep(1.0)
            (self.folder / "starts" / str(os.getpid())).write_text(f"{began} {time.time()}")
        if weights is not None:
            await self.load_weights(weights)
        return "scripted"

    async def roll_out(self, tasks, overrides) -> list[RolloutGroup]:
        return [RolloutGroup(task=task, rollouts=tuple([await self.play(task) for _ in range(task.group_size)])) for task in tasks]

    async def play(self, task) -> Rollout:
        self.num_calls += 1
        if task.scenario_id == "slow":
            (self.folder / f"reached-{os.getpid()}").touch()
            while not (self.folder / "go").exists():
                await asyncio.sleep(0.02)
        if self.taken("break"):
            raise EngineError("the engine of a rollout worker broke")
        if self.taken("hang"):
            self.stuck = True
            await asyncio.Event().wait()
        dialogue = Dialogue(scenario=make_scenario(), difficulty=task.difficulty, seed=task.seed)
        return Rollout(
            dialogue=dialogue.then(Turn(speaker=Speaker.USER, text="a", emotion=40), outcome=Outcome.MAX_TURNS),
            token_ids=np.arange(3, dtype=np.int32),
            turn_ids=np.zeros(3, dtype=np.int16),
            loss_mask=np.array([False, True, True]),
            rollout_logprobs=np.array([0.0, -1.0, -1.0], dtype=np.float32),
            reward=Reward(total=0.4),
            turn_rewards=(),
            policy_versions=(self.version, self.version),
        )

    def taken(self, order: str) -> bool:
        try:
            (self.folder / order).unlink()
        except FileNotFoundError:
            return False
        return True

    async def load_weights(self, weights) -> WeightAck:
        tensors = CheckedTensors(weights)
        probe = tuple(float(tensor.sum()) for _, tensor in tensors)
        self.version = weights.version
        return WeightAck(version=self.version, checksum=tensors.checksum, probe=probe)

    async def score(self, token_ids) -> list[float]:
        return [float(self.version)] * (len(token_ids) - 1)

    async def heartbeat(self) -> float:
        return 1e9 if self.stuck else 0.0

    async def counts(self) -> dict[str, float]:
        return {"engine_busy_s": 1.0, "calls": float(self.num_calls)}
