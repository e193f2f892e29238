"""Whoever waits in line for a place at a server: their dialogue's clock stands still, and a question without them is not sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from fake_endpoint import JUDGED, FakeEndpoint, Reply, completion, question, serving, settings, slow

from simulator.llm.client import Endpoints
from simulator.llm.clock import CLOCK, DialogueClock, dialogue_clock
from simulator.llm.config import EndpointConfig
from simulator.llm.prompts import read_felt

pytest.importorskip("openai")


def test_a_question_that_nobody_waits_for_any_more_is_not_sent():
    async def run(config: EndpointConfig) -> tuple[int, int]:
        endpoints = Endpoints(config)
        tasks = [asyncio.create_task(endpoints.ask(question(seed=i), read_felt)) for i in range(5)]
        await asyncio.sleep(0.1)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.sleep(0)
        again = await endpoints.ask(question(seed=4), read_felt)
        felt = await tasks[0]
        await asyncio.sleep(0.3)
        await endpoints.close()
        return felt.change, again.change

    with serving(FakeEndpoint(always=slow(0.3))) as server:
        assert asyncio.run(run(settings(server, concurrency=1))) == (JUDGED["change"],) * 2
    assert [request["seed"] for request in server.requests] == [0, 4]


class MadeUpClock:
    def __init__(self) -> None:
        self.num_stops = 0

    def stop(self) -> None:
        self.num_stops += 1

    def go_on(self) -> None:
        self.num_stops -= 1


def test_a_dialogues_clock_stands_still_while_its_question_is_in_line():
    clocks = [MadeUpClock() for _ in range(6)]
    stopped: list[list[int]] = []

    def look(request: Mapping[str, Any]) -> Reply:
        stopped.append([clock.num_stops for clock in clocks])
        return Reply(body=completion(json.dumps(JUDGED)).body, delay_s=0.1)

    async def run(config: EndpointConfig) -> None:
        endpoints = Endpoints(config)

        async def dialogue(number: int) -> None:
            CLOCK.set(clocks[number])
            await endpoints.ask(question(seed=number % 3), read_felt)

        await asyncio.gather(*(dialogue(number) for number in range(6)))
        await endpoints.close()

    with serving(FakeEndpoint(always=look)) as server:
        asyncio.run(run(settings(server, concurrency=1)))
    # Those who share a question wait in line together.
    assert stopped == [[0, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]]
    assert [clock.num_stops for clock in clocks] == [0] * 6


def test_a_stopped_clock_lets_no_time_pass_and_goes_on_afterwards():
    async def run() -> None:
        async with asyncio.timeout(0.1) as limit:
            clock = DialogueClock(limit)
            clock.stop()
            clock.stop()
            await asyncio.sleep(0.3)
            clock.go_on()
            assert limit.when() is None and not limit.expired()
            clock.go_on()
            assert limit.when() - asyncio.get_running_loop().time() < 0.11
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_a_clock_does_not_outlive_its_dialogue():
    async def run() -> None:
        async with asyncio.timeout(60) as limit:
            with dialogue_clock(limit):
                assert CLOCK.get() is not None
        assert CLOCK.get() is None

    asyncio.run(run())
