"""A server that misbehaves in every way it can: what is retried, what is refused, what is paid, and that nothing leaks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
import traceback
from dataclasses import replace
from typing import Any

import pytest
from fake_endpoint import (
    JUDGED,
    KEY,
    Behaviour,
    FakeEndpoint,
    Reply,
    answer,
    completion,
    cut_off,
    garbage,
    question,
    right_answer,
    serving,
    settings,
    slow,
    status,
    text,
)

from simulator.llm.client import COUNTS, Endpoints, Question, SimulatorAwayError, SimulatorError, check_endpoints
from simulator.llm.config import AnswerFormat, EndpointConfig, TokenLimit
from simulator.llm.prompts import read_felt, schema_to_judge

pytest.importorskip("openai")

Fake = FakeEndpoint


def ask_all(config: EndpointConfig, *questions: Question) -> tuple[list[Any], dict[str, float]]:
    """Every answer's change or its error, asked all at once, and what was counted."""

    async def run() -> tuple[list[Any], dict[str, float]]:
        endpoints = Endpoints(config, rng=random.Random(0))
        found = await asyncio.gather(*(endpoints.ask(item, read_felt) for item in questions), return_exceptions=True)
        await endpoints.close()
        return [felt if isinstance(felt, BaseException) else felt.change for felt in found], endpoints.counts

    return asyncio.run(run())


def ask(config: EndpointConfig, *, seed: int = 7) -> int:
    """The change in the answer, or its error raised."""
    (found,), _ = ask_all(config, question(seed=seed))
    if isinstance(found, BaseException):
        raise found
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_question_goes_out_with_everything_that_fixes_its_answer(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(Fake(key=KEY)) as server:
        extra = '{"chat_template_kwargs": {"enable_thinking": false}}'
        config = settings(server, temperature=0.5, max_tokens=99, extra_body=extra, api_key_env="MADE_UP_KEY")
        assert ask(config) == JUDGED["change"]
    (request,) = server.requests
    assert request["messages"] == [{"role": "user", "content": "hi"}]
    assert (request["model"], request["temperature"], request["max_tokens"], request["seed"]) == ("m", 0.5, 99, 7)
    assert request["response_format"]["json_schema"]["schema"] == schema_to_judge(max_chars=0, with_reply=False)
    assert request["response_format"]["json_schema"]["strict"] is True
    assert request["chat_template_kwargs"] == {"enable_thinking": False}


def test_servers_that_take_less_are_sent_less():
    with serving(Fake(always=text(json.dumps(JUDGED)))) as server:
        config = settings(server, temperature=None, send_seed=False, answer_format=AnswerFormat.JSON_OBJECT)
        config.token_limit = TokenLimit.MAX_COMPLETION_TOKENS
        ask(config)
        ask(settings(server, answer_format=AnswerFormat.TEXT))
    first, second = server.requests
    assert first["response_format"] == {"type": "json_object"} and first["max_completion_tokens"] == 800
    assert not {"temperature", "seed", "max_tokens"} & set(first)
    assert "response_format" not in second


MISBEHAVIOUR: dict[str, Behaviour] = {
    "http 500": status(500, "boom"),
    "http 503": status(503, "loading"),
    "cut-off body": cut_off,
    "garbage": garbage,
    "empty": text(""),
    "no content": text(None),
    "not JSON": text("I feel better, thank you."),
    "wrong schema": text('{"change": 5}'),
    "change in words": answer(change="five"),
    "half a character": text("\ud800" + json.dumps(JUDGED)),
    "half a character in JSON": answer(inner="well \ud800"),
    "refusal in half characters": text(None, refusal="I cannot \ud800."),
    "cut-off answer": text(json.dumps(JUDGED), finish="length"),
    "filtered": text(json.dumps(JUDGED), finish="content_filter"),
    "refusal": text(None, refusal="I cannot help with that."),
    "no choices": lambda request: Reply(body='{"id": "c", "object": "chat.completion", "choices": []}'),
}


@pytest.mark.parametrize("behaviour", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_what_goes_wrong_once_is_asked_again(behaviour):
    with serving(Fake(behaviour)) as server:
        (found,), counts = ask_all(settings(server), question())
    assert found == JUDGED["change"]
    assert (counts["calls"], counts["retries"], counts["failures"]) == (2, 1, 0)


@pytest.mark.parametrize("behaviour", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_what_goes_wrong_every_time_is_an_error_and_never_a_score(behaviour):
    with serving(Fake(always=behaviour)) as server:
        (found,), counts = ask_all(settings(server, retries=2, max_wait_s=1.0), question())
    assert isinstance(found, SimulatorError) and "\n" not in str(found) and str(found).isprintable()
    assert counts["failures"] == 1 and counts["calls"] == 1 + counts["retries"] - (behaviour is MISBEHAVIOUR["http 503"])


@pytest.mark.parametrize("may_be_cut", [False, True])
def test_only_who_takes_a_thought_for_an_answer_gets_an_empty_one(may_be_cut):
    async def said(config: EndpointConfig) -> str:
        endpoints = Endpoints(config)
        try:
            return await endpoints.ask(replace(question(), may_be_cut=may_be_cut), str)
        finally:
            await endpoints.close()

    with serving(Fake(always=text("", reasoning_content="hm"))) as server:
        if may_be_cut:
            assert asyncio.run(said(settings(server, retries=0))) == ""
        else:
            with pytest.raises(SimulatorError, match="the answer was empty"):
                asyncio.run(said(settings(server, retries=0)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "the answer was empty"),
        (" \n", "the answer was empty"),
        (42, "the answer is no text: content must be a string, got 42"),
        ([{"type": "text", "text": "hi"}], "the answer is no text: content must be a string, got [{'type': 'text', 'text': 'hi'}]"),
        ("hi \ud800 there", r"the answer is no text that can be written: it holds half a character, '\ud800'"),
    ],
)
def test_an_answer_that_is_no_text_is_told_from_an_empty_one(content, reason):
    with serving(Fake(always=text(content))) as server, pytest.raises(SimulatorError) as caught:
        ask(settings(server, retries=0))
    assert reason in str(caught.value)


def test_an_unusable_answer_is_asked_for_with_another_seed_and_a_broken_call_with_the_same():
    with serving(Fake(text("no"), status(500), text("no"))) as server:
        ask(settings(server), seed=2**31 - 1)
    assert [request["seed"] for request in server.requests] == [2**31 - 1, 0, 0, 1]


def test_at_temperature_zero_where_a_seed_changes_nothing_an_unusable_answer_is_asked_for_warmer():
    with serving(Fake(*[text("no")] * 5)) as server:
        ask(settings(server, retries=5))
        ask(settings(server, temperature=0.5), seed=8)
    assert [request["temperature"] for request in server.requests] == [0.0, 0.3, 0.6, 0.9, 1.0, 1.0, 0.5]
    with serving(Fake(status(500), text("no"))) as server:
        ask(settings(server))
        ask(settings(server, temperature=None), seed=8)
    assert [request.get("temperature") for request in server.requests] == [0.0, 0.0, 0.3, None]
    for own, asked in (("null", [None, None]), ("0.2", [0.2, 0.2]), ("0", [0, 0.3])):
        with serving(Fake(text("no"))) as server:
            ask(settings(server, extra_body=f'{{"temperature": {own}}}'))
        assert [request.get("temperature") for request in server.requests] == asked


RAN_OUT = "Could not finish the message because max_tokens or model output limit was reached. Please try again with higher max_tokens."


def test_a_reasoning_model_that_thought_until_its_tokens_were_used_up_was_cut_off_and_refuses_nothing():
    with serving(Fake(always=status(400, RAN_OUT))) as server:
        check_endpoints(settings(server))
        with pytest.raises(SimulatorError, match=r"the answer was cut off; raise simulator\.max_tokens"):
            ask(settings(server, retries=1))
    assert len(server.requests) == 3


def error_within(code: Any, words: str = "what is behind says no") -> Behaviour:
    """As gateways answer: success, and an error in the body, with an empty choice or without."""
    return lambda request: Reply(body=json.dumps({"error": {"code": code, "message": words}, "choices": [{"message": {"content": None}}]}))


def test_an_error_that_comes_with_http_200_is_what_its_code_says():
    with serving(Fake(error_within(429), error_within(503))) as server:
        (found,), counts = ask_all(settings(server, retries=0), question())
    assert found == JUDGED["change"] and counts["rate_limited"] == 1 and counts["unusable"] == 0
    with (
        serving(Fake(always=error_within("402", "no credit"))) as server,
        pytest.raises(SimulatorError, match=r"an error: no credit \(402\)"),
    ):
        ask(settings(server))
    assert len(server.requests) == 1
    for code in (None, 0, "context_length_exceeded", "9" * 5000, True):
        with serving(Fake(always=error_within(code, "too long"))) as server:
            (found,), counts = ask_all(settings(server, retries=1), question())
        assert type(found) is SimulatorError and "too long" in str(found) and counts["unusable"] == 2
    record = json.loads(completion(json.dumps(JUDGED)).body)
    with serving(Fake(always=lambda request: Reply(body=json.dumps({**record, "error": {"code": 0, "message": "success"}})))) as server:
        assert ask(settings(server, retries=0)) == JUDGED["change"]


def test_a_change_beyond_the_bounds_is_clipped():
    with serving(Fake(answer(change=500))) as server:
        assert ask(settings(server)) == 10


def test_a_server_too_slow_is_given_up_in_time():
    with serving(Fake(slow(6.0))) as server:
        assert ask(settings(server, timeout_s=2.0)) == JUDGED["change"]
    assert len(server.requests) == 2
    with serving(Fake(always=slow(0.3))) as server, pytest.raises(SimulatorError, match=r"no answer within simulator.timeout_s=0.1 s"):
        ask(settings(server, timeout_s=0.1, retries=1))


def test_retry_after_is_honoured_and_costs_no_attempt():
    with serving(Fake(status(429, Retry_After="0.4"), status(429, Retry_After="0.2"))) as server:
        (found,), counts = ask_all(settings(server, retries=0), question())
    assert found == JUDGED["change"]
    first, second, third = server.times
    assert second - first >= 0.4 and third - second >= 0.2
    assert counts["rate_limited"] == 2


def test_a_rate_limit_without_a_time_is_waited_out_with_growing_pauses():
    with serving(Fake(status(429), status(429))) as server:
        assert ask(settings(server, retries=0, first_backoff_s=0.1, max_backoff_s=1.0)) == JUDGED["change"]
    first, second, third = server.times
    assert second - first >= 0.05 and third - second >= 0.1


def test_queueing_for_a_place_is_no_waiting_for_a_server_that_is_away():
    """The fifth question is rate-limited once, after four others were served one by one for longer than a question may wait."""
    behaviours = [slow(0.3)] * 4 + [status(429, Retry_After="0.1")]
    with serving(Fake(*behaviours)) as server:
        found, counts = ask_all(settings(server, concurrency=1, max_wait_s=0.8), *(question(seed=i) for i in range(5)))
    assert found == [JUDGED["change"]] * 5 and counts["rate_limited"] == 1


def test_questions_that_are_limited_together_count_as_one_time_in_a_row():
    with serving(Fake(*[status(429)] * 8)) as server:
        found, counts = ask_all(
            settings(server, first_backoff_s=0.1, max_backoff_s=60.0, max_wait_s=5.0), *(question(seed=i) for i in range(8))
        )
    assert found == [JUDGED["change"]] * 8 and counts["rate_limited"] == 8
    # Doubled eight times the pause would have been 12.8 s or more.
    assert max(server.times) - min(server.times) < 5.0


def test_a_wait_longer_than_allowed_fails_at_once():
    started = time.monotonic()
    with serving(Fake(always=status(429, "slow down", Retry_After="600"))) as server, pytest.raises(SimulatorError) as caught:
        ask(settings(server, max_wait_s=2.0))
    assert time.monotonic() - started < 2.0
    assert "a server must be ready within simulator.max_wait_s=2 s" in str(caught.value) and "slow down" in str(caught.value)


def test_while_one_server_asks_for_rest_another_is_asked():
    with serving(Fake(always=status(429, Retry_After="60"))) as tired, serving(Fake()) as fresh:
        found, _ = ask_all(settings(tired, fresh, retries=0), *(question(seed=i) for i in range(8)))
    assert found == [JUDGED["change"]] * 8
    assert len(tired.requests) <= 4 and len(fresh.requests) == 8


def test_load_is_spread_and_bounded():
    with serving(Fake(always=slow(0.05))) as one, serving(Fake(always=slow(0.05))) as other:
        found, _ = ask_all(settings(one, other, concurrency=3), *(question(seed=i) for i in range(24)))
    assert found == [JUDGED["change"]] * 24
    assert (one.most_at_once, other.most_at_once) == (3, 3)
    assert abs(len(one.requests) - len(other.requests)) <= 4


def test_a_server_that_is_gone_is_left_alone_and_the_other_does_the_work():
    with serving(Fake()) as alive:
        config = settings(alive, circuit_failures=2, circuit_pause_s=60.0, max_wait_s=60.0)
        config.urls = [f"http://127.0.0.1:{free_port()}/v1", alive.url]
        changes, counts = asyncio.run(ask_in_turn(config, 8))
    assert changes == [JUDGED["change"]] * 8 and len(alive.requests) == 8
    assert counts["calls"] == 8 + config.circuit_failures


async def ask_in_turn(config: EndpointConfig, num: int) -> tuple[list[int], dict[str, float]]:
    endpoints = Endpoints(config)
    changes = [(await endpoints.ask(question(seed=i), read_felt)).change for i in range(num)]
    await endpoints.close()
    return changes, endpoints.counts


def test_an_outage_is_waited_out():
    """The server comes up on its port while the question waits."""
    port = free_port()

    async def run() -> tuple[int, dict[str, float]]:
        endpoints = Endpoints(config)
        task = asyncio.create_task(endpoints.ask(question(), read_felt))
        await asyncio.sleep(0.5)
        assert not task.done()
        server = await asyncio.start_server(respond, "127.0.0.1", port)
        felt = await task
        server.close()
        await endpoints.close()
        return felt.change, endpoints.counts

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        request = json.loads(await reader.readexactly(length))
        body = completion(json.dumps(right_answer(request))).body.encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()

    config = settings(retries=0, max_wait_s=20.0, circuit_failures=2)
    config.urls = [f"http://127.0.0.1:{port}/v1"]
    change, counts = asyncio.run(run())
    assert change == JUDGED["change"] and counts["retries"] >= 2


def test_an_outage_that_lasts_fails_after_the_longest_wait():
    config = settings(max_wait_s=0.3)
    config.urls = [f"http://127.0.0.1:{free_port()}/v1"]
    with pytest.raises(SimulatorAwayError, match=r"a server must be ready within simulator.max_wait_s=0.3 s; http://127.0.0.1:\d+/v1: "):
        ask(config)


def test_a_wait_that_runs_out_over_answers_of_no_use_does_not_say_that_nobody_is_there():
    with serving(Fake(always=text("no"))) as server:
        (found,), _ = ask_all(settings(server, max_wait_s=0.0), question())
    assert type(found) is SimulatorError and "simulator.max_wait_s=0 s" in str(found)


def test_a_retry_goes_to_another_server():
    with serving(Fake(always=status(500))) as broken, serving(Fake()) as whole:
        found, _ = ask_all(settings(broken, whole, retries=1, circuit_failures=1000), *(question(seed=i) for i in range(6)))
    assert found == [JUDGED["change"]] * 6
    assert len(broken.requests) <= 6


def test_whoever_waits_in_line_at_a_server_that_goes_away_is_served_elsewhere():
    """Eight questions, one place at each server: those in line at the first are not sent there after it asked for rest."""
    resting = status(429, Retry_After="60")
    with serving(Fake(always=lambda request: replace(resting(request), delay_s=0.2))) as tired, serving(Fake(always=slow(0.02))) as fresh:
        found, _ = ask_all(settings(tired, fresh, retries=0, concurrency=1), *(question(seed=i) for i in range(8)))
    assert found == [JUDGED["change"]] * 8
    assert (len(tired.requests), len(fresh.requests)) == (1, 8)


def test_retries_stop_when_hardly_anything_succeeds():
    with serving(Fake(always=status(500))) as server:
        found, counts = ask_all(settings(server, retries=10, circuit_failures=1000), *(question(seed=i) for i in range(30)))
    assert all(isinstance(item, SimulatorError) for item in found)
    assert len(server.requests) == 40 and counts["retries"] == 10
    assert sum("simulator.retry_share" in str(item) for item in found) == 30


def test_a_request_that_is_refused_is_not_repeated():
    with (
        serving(Fake(always=status(400, "unknown parameter"))) as server,
        pytest.raises(SimulatorError, match="HTTP 400 unknown parameter"),
    ):
        ask(settings(server))
    assert len(server.requests) == 1


def test_what_one_server_refuses_another_is_asked():
    for code in (400, 401, 404):
        with serving(Fake(always=status(code))) as refusing, serving(Fake(always=slow(0.02))) as other:
            config = settings(refusing, other, circuit_pause_s=60.0, concurrency=2)
            found, counts = ask_all(config, *(question(seed=i) for i in range(12)))
            assert found == [JUDGED["change"]] * 12 and counts["failures"] == 0
            # One that takes no key or model is left alone; one that refuses a question may take the next.
            assert len(refusing.requests) == 2 if code != 400 else len(refusing.requests) > 2


def test_what_every_server_refuses_fails():
    with serving(Fake(always=status(404, "one"))) as one, serving(Fake(always=status(404, "other"))) as other:
        with pytest.raises(SimulatorError, match="must take the request"):
            ask(settings(one, other))
        assert (len(one.requests), len(other.requests)) == (1, 1)


def test_where_all_refuse_whatever_they_are_asked_nobody_waits_for_them():
    with serving(Fake(always=status(401, "expired"))) as one, serving(Fake(always=status(401, "expired"))) as other:
        found, _ = in_turn(settings(one, other, circuit_pause_s=60.0, max_wait_s=600.0), *(question(seed=i) for i in range(3)))
        assert [type(error) for error in found] == [SimulatorError] * 3 and all("expired" in str(error) for error in found)
        assert (len(one.requests), len(other.requests)) == (1, 1)


def test_a_question_that_is_refused_waits_for_no_server_that_is_away_and_a_server_without_the_key_makes_wait_for_it():
    away = f"http://127.0.0.1:{free_port()}/v1"
    for code in (400, 401):
        with serving(Fake(always=status(code, "no"))) as server:
            config = settings(server, circuit_failures=1, circuit_pause_s=60.0, max_wait_s=0.5)
            config.urls = [away, server.url]
            found, _ = in_turn(config, question(seed=0), question(seed=1))
            assert [type(error) for error in found] == [SimulatorError if code == 400 else SimulatorAwayError] * 2


def test_servers_that_took_no_key_and_are_merely_busy_now_are_waited_for():
    busy = [status(401), status(429, Retry_After="0.2")]
    with serving(Fake(*busy)) as one, serving(Fake(*busy)) as other:
        config = settings(one, other, circuit_pause_s=0.05)

        async def run() -> list[Any]:
            endpoints, found = Endpoints(config), []
            for item in (question(seed=0), question(seed=1)):
                found += await asyncio.gather(endpoints.ask(item, read_felt), return_exceptions=True)
                await asyncio.sleep(0.1)
            await endpoints.close()
            return found

        refused, answered = asyncio.run(run())
    assert type(refused) is SimulatorError and answered.change == JUDGED["change"]


def in_turn(config: EndpointConfig, *questions: Question) -> tuple[list[Any], dict[str, float]]:
    """As `ask_all`, one after the other."""

    async def run() -> tuple[list[Any], dict[str, float]]:
        endpoints, found = Endpoints(config, rng=random.Random(0)), []
        for item in questions:
            found += await asyncio.gather(endpoints.ask(item, read_felt), return_exceptions=True)
        await endpoints.close()
        return found, endpoints.counts

    return asyncio.run(run())


def test_the_same_question_asked_at_once_is_sent_once():
    with serving(Fake(always=slow(0.1))) as server:
        found, counts = ask_all(settings(server), *[question()] * 5, question(seed=8))
    assert found == [JUDGED["change"]] * 6 and len(server.requests) == 2
    assert (counts["calls"], counts["cache_hits"]) == (2, 4)


def test_who_asked_first_may_be_cancelled_without_harm_to_the_others():
    async def run(config: EndpointConfig) -> int:
        endpoints = Endpoints(config)
        first = asyncio.create_task(endpoints.ask(question(), read_felt))
        second = asyncio.create_task(endpoints.ask(question(), read_felt))
        await asyncio.sleep(0.05)
        first.cancel()
        felt = await second
        await endpoints.close()
        return felt.change

    with serving(Fake(always=slow(0.2))) as server:
        assert asyncio.run(run(settings(server))) == JUDGED["change"]
    assert len(server.requests) == 1


def test_a_rerun_is_free_and_exact(tmp_path):
    with serving(Fake(answer(change=3), always=answer(change=-8))) as server:
        config = settings(server, cache=str(tmp_path), price_prompt=2.0)
        first, paid = ask_all(config, question())
        again, free = ask_all(config, question())
        other, _ = ask_all(config, question(words="hello"))
    assert (first, again, other) == ([3], [3], [-8])
    assert (paid["calls"], paid["cost"]) == (1, pytest.approx(100 * 2.0 / 1e6))
    assert (free["calls"], free["cache_hits"], free["cost"], free["prompt_tokens"]) == (0, 1, 0.0, 0)


def test_another_temperature_or_model_is_another_question(tmp_path):
    with serving(Fake(models=("m", "n"))) as server:
        for changes in ({}, {"temperature": 1.0}, {"model": "n"}, {"max_tokens": 9}, {"extra_body": '{"a": 1}'}, {}):
            ask(settings(server, cache=str(tmp_path), **changes))
    assert len(server.requests) == 5


@pytest.mark.parametrize("kept", ["of an older form", json.dumps(JUDGED).replace("well", "\ud800")])
def test_a_kept_answer_that_can_no_longer_be_read_is_asked_for_again(tmp_path, kept):
    with serving(Fake()) as server:
        config = settings(server, cache=str(tmp_path))
        ask(config)
        next(tmp_path.rglob("*.json")).write_text(json.dumps({"answer": kept}))
        assert ask(config) == JUDGED["change"]
    assert len(server.requests) == 2


def test_a_cache_that_cannot_be_written_costs_the_cache_and_not_the_answer(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with serving(Fake()) as server:
        assert ask(settings(server, cache=str(tmp_path / "file" / "folder"))) == JUDGED["change"]
    assert "no longer kept on disk" in caplog.text


def test_every_call_is_billed_whatever_it_is_worth():
    with serving(Fake(text("no"))) as server:
        _, counts = ask_all(settings(server, price_prompt=1.0, price_completion=10.0), question())
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["unusable"]) == (200, 40, 1)
    assert counts["cost"] == pytest.approx((200 * 1.0 + 40 * 10.0) / 1e6)
    assert set(counts) == set(COUNTS)


def test_one_object_serves_several_loops():
    with serving(Fake()) as server:
        endpoints = Endpoints(settings(server))
        for seed in range(3):
            assert asyncio.run(asked(endpoints, seed)) == JUDGED["change"]
    assert endpoints.counts["calls"] == 3


async def asked(endpoints: Endpoints, seed: int) -> int:
    felt = await endpoints.ask(question(seed=seed), read_felt)
    await endpoints.close()
    return felt.change


def refusal(config: EndpointConfig) -> str:
    with pytest.raises(ValueError, match=r"^simulator\.") as caught:
        check_endpoints(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_server_that_answers_passes_the_check_and_is_asked_for_little(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(Fake(key=KEY)) as one, serving(Fake(text("nonsense", finish="length"), key=KEY)) as other:
        check_endpoints(settings(one, other, api_key_env="MADE_UP_KEY"))
        check_endpoints(settings(one, api_key_env="MADE_UP_KEY"))
    assert [request["max_tokens"] for request in (*one.requests, *other.requests)] == [16, 16, 16]


def test_a_wrong_key_is_refused_in_one_sentence_that_does_not_repeat_it(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", "sk-wrong-9876")
    with serving(Fake(key=KEY)) as server:
        message = refusal(settings(server, api_key_env="MADE_UP_KEY"))
    assert message.startswith(f"simulator.api_key_env must name a variable whose key {server.url} accepts, got 'MADE_UP_KEY': HTTP 401")
    assert "sk-wrong-9876" not in message and "***" in message


def test_no_key_is_sent_but_the_one_that_is_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    with serving(Fake(key=KEY)) as server:
        assert "got '', so that none was sent" in refusal(settings(server))
    assert server.keys == ["none"]


def test_nothing_of_the_clients_own_variables_is_sent(monkeypatch):
    variables = {
        "OPENAI_ORG_ID": "org-of-somebody",
        "OPENAI_PROJECT_ID": "project-of-somebody",
        "OPENAI_ADMIN_KEY": "sk-admin-of-somebody",
        "OPENAI_CUSTOM_HEADERS": "X-Token: token-of-somebody\nAuthorization: Bearer of-somebody",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(Fake(key=KEY)) as server:
        check_endpoints(settings(server, api_key_env="MADE_UP_KEY"))
    sent = json.dumps(server.headers)
    assert KEY in sent and "of-somebody" not in sent
    assert {name: os.environ[name] for name in variables} == variables


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("MADE_UP_KEY", raising=False)
    message = refusal(settings(api_key_env="MADE_UP_KEY"))
    assert message == "simulator.api_key_env must name an environment variable that is set, got 'MADE_UP_KEY'; export it first"


def test_a_server_that_is_not_there_is_named():
    config = settings()
    config.urls = [f"http://127.0.0.1:{free_port()}/v1"]
    assert refusal(config).startswith(f"simulator.urls must name servers that answer, got '{config.urls[0]}': ")


def test_a_model_that_is_not_served_is_named_with_those_that_are():
    with serving(Fake(models=("a", "b"))) as server:
        assert refusal(settings(server)) == f"simulator.model must be one that {server.url} serves (a, b), got 'm'"


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        (status(400, "response_format is not supported"), "simulator.* must be settings that {url} takes: HTTP 400 response_format is not"),
        (
            status(404, "no such page"),
            "simulator.urls must be base addresses, such as http://127.0.0.1:8000/v1, got '{url}': HTTP 404 no such",
        ),
        (status(500, "boom"), "simulator.urls must name servers that answer, got '{url}': HTTP 500 boom"),
        (slow(6.0), "simulator.urls must name servers that answer, got '{url}': no answer within simulator.timeout_s=2 s"),
    ],
    ids=["setting", "path", "broken", "slow"],
)
def test_what_will_not_work_is_said_before_the_work(behaviour, complaint):
    with serving(Fake(always=behaviour)) as server:
        assert refusal(settings(server, timeout_s=2.0)).startswith(complaint.format(url=server.url))


def test_a_rate_limit_is_no_reason_not_to_begin():
    with serving(Fake(always=status(429))) as server:
        check_endpoints(settings(server))


@pytest.mark.parametrize("code", [400, 401, 429, 500, 503])
def test_the_key_is_in_no_exception_and_no_log_even_if_the_server_repeats_it(monkeypatch, caplog, code):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    caplog.set_level("DEBUG", logger="simulator")
    with serving(Fake(always=status(code, f"your key is {KEY}"))) as server:
        config = settings(server, api_key_env="MADE_UP_KEY", retries=1, max_wait_s=0.1)
        (found,), _ = ask_all(config, question())
    said = "".join(traceback.format_exception(found))
    assert isinstance(found, SimulatorError) and "your key is ***" in said
    assert KEY not in said and KEY not in caplog.text and KEY not in repr(config)


@pytest.mark.parametrize("answer", [lambda words: lambda request: Reply(body=words), text], ids=["no completion", "no JSON"])
@pytest.mark.parametrize("before", [60, 180])
def test_no_part_of_the_key_is_left_where_a_complaint_is_cut(monkeypatch, answer, before):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(Fake(always=answer("x" * before + KEY * 3))) as server:
        (found,), _ = ask_all(settings(server, api_key_env="MADE_UP_KEY", retries=0), question())
    assert isinstance(found, SimulatorError) and KEY[:4] not in str(found)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"urls": []}, "simulator.urls must name at least one server, each once, got []"),
        ({"urls": ["http://a/v1", "http://a/v1"]}, "simulator.urls must name at least one server, each once"),
        ({"urls": ["ftp://a"]}, "simulator.urls must look like http://127.0.0.1:8000/v1, got 'ftp://a'"),
        ({"urls": ["127.0.0.1:8000"]}, "simulator.urls must look like http://127.0.0.1:8000/v1, got '127.0.0.1:8000'"),
        ({"urls": ["http://a:x/v1"]}, "simulator.urls must look like http://127.0.0.1:8000/v1, got 'http://a:x/v1'"),
        ({"urls": ["http://me:secret@a/v1"]}, "simulator.urls must hold no user, password or query, got one for 'a'"),
        ({"urls": ["http://a/v1?key=secret"]}, "simulator.urls must hold no user, password or query, got one for 'a'"),
        ({"model": ""}, "simulator.model must name the model that the servers serve, got ''"),
        (
            {"api_key_env": "sk-secret-1"},
            "simulator.api_key_env must be the name of an environment variable, got something else (not shown)",
        ),
        ({"temperature": -1.0}, "simulator.temperature must be >= 0 or null, got -1.0"),
        ({"max_tokens": 0}, "simulator.max_tokens must be > 0, got 0"),
        ({"concurrency": 0}, "simulator.concurrency must be > 0, got 0"),
        ({"retries": -1}, "simulator.retries must be >= 0, got -1"),
        ({"retry_share": 1.5}, "simulator.retry_share must be in [0, 1], got 1.5"),
        ({"max_backoff_s": 0.1, "first_backoff_s": 1.0}, "simulator.max_backoff_s must be >= simulator.first_backoff_s, got 0.1"),
        ({"price_prompt": -1.0}, "simulator.price_prompt must be >= 0, got -1.0"),
        ({"extra_body": '{"model": "x"}'}, "simulator.extra_body must leave model to Attune"),
        ({"extra_body": "[1]"}, "simulator.extra_body must be a JSON object, got '[1]'"),
        ({"extra_body": "{"}, "simulator.extra_body must be a JSON object, got '{'"),
        ({"cache": ""}, "simulator.cache must be a folder, 'default' or 'off', got ''"),
    ],
)
def test_a_setting_out_of_range_is_named_and_a_secret_in_it_not_repeated(changes, complaint):
    with pytest.raises(ValueError, match=r"^simulator\.") as caught:
        EndpointConfig(**{"model": "m", **changes})
    assert str(caught.value).startswith(complaint)
    assert "secret" not in str(caught.value)
