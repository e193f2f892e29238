"""The thread behind an engine: that one which stands still can be told from one at rest, and that nobody waits for it without end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from policy.engine.engine import Completion, EngineError, Sampling, SteppedEngine
from policy.engine.weights import PackedWeights, WeightFileError


class Stoppable(SteppedEngine):
    """Answers every request in its next step, and stands still wherever it is told to."""

    name = "stoppable"

    def __init__(self, *, load_timeout_s: float = 5.0) -> None:
        self.may_step, self.may_load = threading.Event(), threading.Event()
        self.may_step.set()
        self.may_load.set()
        self._admitted: list[int] = []
        super().__init__(start_timeout_s=5.0, load_timeout_s=load_timeout_s)

    def _start(self):
        self.tokenizer = None

    def _admit(self, request_id, request):
        self._admitted.append(request_id)

    def _step(self):
        self.may_step.wait()
        done, self._admitted = self._admitted, []
        reply = Completion(token_ids=(1,), logprobs=(-1.0,), text="a", finish_reason="stop", policy_version=self.policy_version)
        return [(request_id, reply) for request_id in done]

    def _drop(self, request_ids):
        self._admitted = [request_id for request_id in self._admitted if request_id not in request_ids]

    def _expected_names(self):
        return []

    def _load(self, weights):
        self.may_load.wait()
        return 7

    def _score(self, token_ids):
        self.may_load.wait()
        return [-1.0] * (len(token_ids) - 1)

    def _reset_cache(self):
        pass

    def _stop(self):
        pass


def ask(engine):
    return engine.generate([1, 2], sampling=Sampling(max_tokens=1), seed=0)


def test_an_engine_in_a_step_that_does_not_end_says_for_how_long():
    engine = Stoppable()
    assert engine.stuck_s == 0.0
    engine.may_step.clear()

    async def run():
        reply = asyncio.create_task(ask(engine))
        while engine.stuck_s < 0.05:
            await asyncio.sleep(0.01)
        engine.may_step.set()
        return await reply

    assert asyncio.run(run()).text == "a"
    assert engine.stuck_s == 0.0
    engine.close()


def test_an_engine_at_rest_is_not_stuck_and_neither_is_a_broken_one(monkeypatch):
    engine = Stoppable()
    asyncio.run(ask(engine))
    assert engine.stuck_s == 0.0
    monkeypatch.setattr(engine, "_step", lambda: 1 / 0)
    with pytest.raises(EngineError):
        asyncio.run(ask(engine))
    assert engine.broken and engine.stuck_s == 0.0
    engine.close()


def test_an_engine_that_fails_half_way_through_new_weights_is_broken_and_one_that_cannot_read_them_says_so(monkeypatch):
    def fail(weights):
        raise RuntimeError("CUDA out of memory")

    def unreadable(weights):
        raise WeightFileError("no such folder")

    weights = PackedWeights(version=3, arrays={}, dtypes={})
    for load, kind, words in (
        (fail, EngineError, r"the stoppable engine must take weights of version 3 whole, got RuntimeError: CUDA out of memory"),
        (unreadable, WeightFileError, "no such folder"),
    ):
        engine = Stoppable()
        monkeypatch.setattr(engine, "_load", load)
        with pytest.raises(kind, match=words):
            asyncio.run(engine.load_weights(weights))
        with pytest.raises(EngineError):
            asyncio.run(ask(engine))
        engine.close()


@pytest.mark.parametrize("task", ["take new weights", "score a dialogue"])
def test_a_call_that_takes_too_long_is_the_engines_failure_and_names_the_setting(task):
    engine = Stoppable(load_timeout_s=0.1)
    engine.may_load.clear()
    weights = PackedWeights(version=1, arrays={}, dtypes={})
    call = engine.load_weights(weights) if task == "take new weights" else engine.score([1, 2])
    with pytest.raises(EngineError, match=rf"the stoppable engine must {task} within policy\.load_timeout_s=0\.1 s"):
        asyncio.run(call)
    engine.may_load.set()
    engine.close()
