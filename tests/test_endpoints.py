"""Servers that misbehave: what is retried, refused, billed and kept on disk, and that no key leaks."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import traceback
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from fake_endpoint import (
    JUDGED,
    KEY,
    Behaviour,
    FakeEndpoint,
    Reply,
    answer,
    cut_off,
    honest,
    question,
    serving,
    settings,
    slow,
    status,
    text,
)

from simulator.llm.client import (
    DialogueClock,
    Endpoints,
    Question,
    Server,
    SimulatorAwayError,
    SimulatorError,
    TooLongError,
    check_endpoints,
)
from simulator.llm.config import AnswerFormat, EndpointConfig, TokenLimit, hide
from simulator.llm.prompts import Felt
from simulator.llm.user import LLMUserConfig
from simulator.user import first_question

pytest.importorskip("openai")

Fake = FakeEndpoint
CHANGE = JUDGED["change"]


def ask_all(config: EndpointConfig, *questions: Question) -> tuple[list[Any], dict[str, float]]:
    """Every answer's change or its error, asked all at once, and the counts."""

    async def run() -> tuple[list[Any], dict[str, float]]:
        endpoints = Endpoints(config)
        found = await asyncio.gather(*(endpoints.ask(item, Felt.read) for item in questions), return_exceptions=True)
        await endpoints.close()
        return [felt if isinstance(felt, BaseException) else felt.change for felt in found], endpoints.counts

    return asyncio.run(run())


def ask(config: EndpointConfig, *, seed: int = 7) -> int:
    """The change in the answer, or its error raised."""
    (found,), _ = ask_all(config, question(seed=seed))
    if isinstance(found, BaseException):
        raise found
    return found


def some(num: int) -> list[Question]:
    return [question(seed=seed) for seed in range(num)]


def nobody_there() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


# Requests


def test_a_question_goes_out_with_everything_that_decides_its_answer(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", f"{KEY}\r\n")
    with serving(Fake(key=KEY)) as server:
        extra = '{"chat_template_kwargs": {"enable_thinking": false}}'
        assert ask(settings(server, temperature=0.5, max_tokens=99, extra_body=extra, api_key_env="MADE_UP_KEY")) == CHANGE
    (request,) = server.requests
    assert request["messages"] == [{"role": "user", "content": "hi"}]
    assert (request["model"], request["temperature"], request["max_tokens"], request["seed"]) == ("m", 0.5, 99, 7)
    assert request["response_format"]["json_schema"]["schema"] == question().schema
    assert request["response_format"]["json_schema"]["strict"] is True and request["chat_template_kwargs"] == {"enable_thinking": False}


def test_servers_that_take_less_are_sent_less():
    with serving(Fake(always=text(json.dumps(JUDGED)))) as server:
        config = settings(server, temperature=None, send_seed=False, answer_format=AnswerFormat.JSON_OBJECT)
        config.token_limit = TokenLimit.MAX_COMPLETION_TOKENS
        ask(config)
        ask(settings(server, answer_format=AnswerFormat.TEXT))
    first, second = server.requests
    assert first["response_format"] == {"type": "json_object"} and first["max_completion_tokens"] == 4000
    assert not {"temperature", "seed", "max_tokens"} & set(first) and "response_format" not in second


# Failures

MISBEHAVIOUR: dict[str, Behaviour] = {
    "http 500": status(500, "boom"),
    "cut-off body": cut_off,
    "empty": text(""),
    "not JSON": text("I feel better, thank you."),
    "wrong schema": text('{"change": 5}'),
    "cut-off answer": text(json.dumps(JUDGED), finish="length"),
}


@pytest.mark.parametrize("behaviour", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_a_failure_is_retried_and_a_lasting_one_is_an_error_and_never_a_score(behaviour):
    with serving(Fake(behaviour)) as once, serving(Fake(always=behaviour)) as always:
        (found,), counts = ask_all(settings(once), question())
        assert found == CHANGE and (counts["calls"], counts["retries"], counts["failures"]) == (2, 1, 0)
        (found,), counts = ask_all(settings(always, retries=2), question())
    assert isinstance(found, SimulatorError) and "\n" not in str(found) and str(found).isprintable() and "simulator.retries=2" in str(found)
    assert (counts["failures"], counts["calls"], counts["retries"]) == (1, 3, 2)


def test_an_unusable_answer_is_asked_for_with_another_seed_and_warmer_at_temperature_zero():
    with serving(Fake(text("no"), status(500), text("no"))) as server:
        ask(settings(server), seed=2**31 - 1)
    assert [request["seed"] for request in server.requests] == [2**31 - 1, 0, 0, 1]
    assert [request["temperature"] for request in server.requests] == [0.0, 0.3, 0.3, 0.6]


def error_within(code: Any) -> Behaviour:
    """A gateway's answer: success, and an error in the body."""
    return lambda request: Reply(
        body=json.dumps({"error": {"code": code, "message": "too long"}, "choices": [{"message": {"content": None}}]})
    )


def test_an_error_with_http_200_counts_by_its_code():
    with serving(Fake(error_within(429), error_within(503))) as server:
        (found,), counts = ask_all(settings(server, retries=0), question())
    assert found == CHANGE and counts["rate_limited"] == 1 and counts["unusable"] == 0
    for code, num_calls in (("402", 1), (None, 2), ("context_length_exceeded", 2)):
        with serving(Fake(always=error_within(code))) as server:
            (found,), counts = ask_all(settings(server, retries=1), question())
        assert type(found) is SimulatorError and "too long" in str(found) and counts["calls"] == num_calls


def test_an_answer_that_a_server_takes_for_a_thought_is_read():
    def misplaced(thought: str) -> Behaviour:
        message = {"role": "assistant", "content": None, "reasoning_content": thought}
        return lambda request: Reply(body=json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))

    judged = json.dumps(JUDGED)
    with serving(Fake(always=misplaced(judged))) as server:
        assert ask(settings(server)) == CHANGE
        with pytest.raises(SimulatorError, match="empty"):
            ask(settings(server, thinks=True, retries=0))
    with serving(Fake(always=misplaced(f"A first draft: {judged} But no, it was cruel."))) as server, pytest.raises(SimulatorError):
        ask(settings(server, retries=0))


def test_a_slow_server_is_given_up_in_time():
    with serving(Fake(slow(3.0))) as server:
        assert ask(settings(server, timeout_s=1.0)) == CHANGE
    with serving(Fake(always=slow(0.3))) as server, pytest.raises(SimulatorAwayError, match=r"simulator\.timeout_s=0\.1"):
        ask(settings(server, timeout_s=0.1, retries=1))


def test_retries_stop_when_hardly_anything_succeeds():
    with serving(Fake(always=status(500))) as server:
        found, counts = ask_all(settings(server, retries=10, circuit_failures=1000), *some(30))
    assert len(server.requests) == 40 and counts["retries"] == 10
    assert all(isinstance(item, SimulatorAwayError) and "simulator.retry_share" in str(item) for item in found)


# Servers that are away or refuse


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("-1", 0.0), ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0), ("soon", None), ("nan", None), ("inf", None), (None, None)],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert Server.retry_after_s(value) == seconds


def test_retry_after_is_honoured_and_costs_no_attempt():
    with serving(Fake(status(429, Retry_After="0.4"), status(429, Retry_After="0.2"), status(429))) as server:
        (found,), counts = ask_all(settings(server, retries=0), question())
    first, second, third, _ = server.times
    assert found == CHANGE and second - first >= 0.4 and third - second >= 0.2 and counts["rate_limited"] == 3


def test_a_wait_longer_than_allowed_fails_at_once_and_queueing_is_no_waiting():
    started = time.monotonic()
    with serving(Fake(always=status(429, "slow down", Retry_After="600"))) as server, pytest.raises(SimulatorAwayError) as caught:
        ask(settings(server, max_wait_s=2.0))
    assert time.monotonic() - started < 2.0 and "simulator.max_wait_s=2" in str(caught.value) and "slow down" in str(caught.value)
    with serving(Fake(*[slow(0.3)] * 4, status(429, Retry_After="0.1"))) as server:
        found, counts = ask_all(settings(server, concurrency=1, max_wait_s=0.8), *some(5))
    assert found == [CHANGE] * 5 and counts["rate_limited"] == 1


def test_load_is_spread_and_bounded():
    with serving(Fake(always=slow(0.05))) as one, serving(Fake(always=slow(0.05))) as other:
        found, _ = ask_all(settings(one, other, concurrency=3), *some(24))
    assert found == [CHANGE] * 24 and (one.most_at_once, other.most_at_once) == (3, 3)
    assert abs(len(one.requests) - len(other.requests)) <= 4


def test_another_server_takes_the_work_of_one_that_is_away_limited_or_broken():
    resting = status(429, Retry_After="60")
    with serving(Fake(always=lambda request: replace(resting(request), delay_s=0.2))) as tired, serving(Fake(always=slow(0.02))) as fresh:
        found, _ = ask_all(settings(tired, fresh, retries=0, concurrency=1), *some(8))
    assert found == [CHANGE] * 8 and (len(tired.requests), len(fresh.requests)) == (1, 8)
    with serving(Fake(always=status(500))) as broken, serving(Fake()) as whole:
        found, _ = ask_all(settings(broken, whole, retries=1, circuit_failures=1000), *some(6))
        assert found == [CHANGE] * 6


def test_an_outage_is_waited_out_until_the_longest_wait():
    config = settings(max_wait_s=0.3)
    config.urls = [nobody_there()]
    with pytest.raises(SimulatorAwayError, match=r"simulator\.max_wait_s=0\.3 s; http://127.0.0.1:\d+/v1: "):
        ask(config)
    with serving(Fake(*[status(503)] * 6)) as server:
        assert ask(settings(server, retries=0, circuit_failures=2)) == CHANGE


def test_a_refused_request_goes_to_the_other_servers_and_fails_where_all_refuse():
    with (
        serving(Fake(always=status(400, "unknown parameter"))) as server,
        pytest.raises(SimulatorError, match="HTTP 400 unknown parameter"),
    ):
        ask(settings(server))
    assert len(server.requests) == 1
    for code in (400, 401):
        with serving(Fake(always=status(code))) as refusing, serving(Fake(always=slow(0.02))) as other:
            found, counts = ask_all(settings(refusing, other, concurrency=2), *some(12))
            assert found == [CHANGE] * 12 and counts["failures"] == 0
        with serving(Fake(always=status(code))) as one, serving(Fake(always=status(code))) as other:
            found, _ = ask_all(settings(one, other, max_wait_s=600.0), question())
            assert type(found[0]) is SimulatorError and (len(one.requests), len(other.requests)) == (1, 1)


# The same question twice


def test_the_same_question_asked_at_once_is_sent_once_even_if_the_first_asker_leaves():
    with serving(Fake(always=slow(0.1))) as server:
        found, counts = ask_all(settings(server), *[question()] * 5, question(seed=8))
    assert found == [CHANGE] * 6 and len(server.requests) == 2 and (counts["calls"], counts["cache_hits"]) == (2, 4)

    async def run(config: EndpointConfig) -> int:
        endpoints = Endpoints(config)
        tasks = [asyncio.create_task(endpoints.ask(question(seed=i // 2), Felt.read)) for i in range(6)]
        await asyncio.sleep(0.1)
        for task in (tasks[0], *tasks[2:]):
            task.cancel()
        felt = await tasks[1]
        await asyncio.sleep(0.2)
        await endpoints.close()
        return felt.change

    with serving(Fake(always=slow(0.3))) as server:
        assert asyncio.run(run(settings(server, concurrency=1))) == CHANGE
    # Questions that nobody waits for any more are not sent.
    assert {request["seed"] for request in server.requests} == {0}


def test_a_rerun_is_free_and_exact_and_other_settings_are_another_question(tmp_path):
    with serving(Fake(answer(change=3), always=answer(change=-8), models=("m", "n"))) as server:
        config = settings(server, cache=str(tmp_path), price_prompt=2.0)
        first, paid = ask_all(config, question())
        again, free = ask_all(config, question())
        assert (first, again) == ([3], [3]) and (paid["calls"], paid["cost"]) == (1, pytest.approx(100 * 2.0 / 1e6))
        assert (free["calls"], free["cache_hits"], free["cost"], free["prompt_tokens"]) == (0, 1, 0.0, 0)
        for changes in ({"temperature": 1.0}, {"model": "n"}, {"max_tokens": 9}, {"extra_body": '{"a": 1}'}):
            assert ask(settings(server, cache=str(tmp_path), **changes)) == -8


def test_the_first_answer_to_a_question_counts_for_every_process(tmp_path):
    async def ask_at_once(*configs: EndpointConfig) -> list[int]:
        clients = [Endpoints(config) for config in configs]
        found = await asyncio.gather(*(client.ask(question(), Felt.read) for client in clients))
        await asyncio.gather(*(client.close() for client in clients))
        return [felt.change for felt in found]

    slower: Behaviour = lambda request: replace(answer(change=-8)(request), delay_s=0.2)  # noqa: E731
    with serving(Fake(always=answer(change=3))) as one, serving(Fake(always=slower)) as other:
        for cache, changes in ((str(tmp_path / "new"), [3, 3]), ("off", [3, -8])):
            assert asyncio.run(ask_at_once(settings(one, cache=cache), settings(other, cache=cache))) == changes


def test_a_cache_that_cannot_be_written_costs_the_cache_and_not_the_answer(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with serving(Fake()) as server:
        assert ask(settings(server, cache=str(tmp_path / "file" / "folder"))) == CHANGE
    assert "not kept on disk any more" in caplog.text


def test_every_call_is_billed_and_counts_go_on_over_event_loops():
    with serving(Fake(text("no"))) as server:
        endpoints = Endpoints(settings(server, price_prompt=1.0, price_completion=10.0))
        for seed in range(2):
            asyncio.run(asked(endpoints, seed))
    counts = endpoints.counts
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["unusable"], counts["calls"]) == (300, 60, 1, 3)
    assert counts["cost"] == pytest.approx((300 * 1.0 + 60 * 10.0) / 1e6) and set(counts) == set(Endpoints.COUNTS)


async def asked(endpoints: Endpoints, seed: int) -> None:
    await endpoints.ask(question(seed=seed), Felt.read)
    await endpoints.close()


# The clock of a dialogue


def test_a_dialogues_clock_pauses_while_its_question_is_queued():
    async def run(config: EndpointConfig) -> None:
        endpoints = Endpoints(config)

        async def dialogue(number: int) -> None:
            async with asyncio.timeout(0.9) as limit:
                with DialogueClock(limit):
                    await endpoints.ask(question(seed=number), Felt.read)

        await asyncio.gather(*map(dialogue, range(3)))
        await endpoints.close()

    # Each answer takes 0.4 s; the last question waits 0.8 s for the others.
    with serving(Fake(always=slow(0.4))) as server:
        asyncio.run(run(settings(server, concurrency=1)))


def test_a_paused_limit_lets_no_time_pass_and_a_clock_ends_with_its_dialogue():
    async def run() -> None:
        async with asyncio.timeout(60) as limit:
            with DialogueClock(limit):
                assert DialogueClock.current.get() is not None
        assert DialogueClock.current.get() is None
        async with asyncio.timeout(0.1) as limit:
            clock = DialogueClock(limit)
            with clock.paused():
                with clock.paused():
                    await asyncio.sleep(0.3)
                assert limit.when() is None and not limit.expired()
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(run())


# The check before the work, and keys


def refusal(config: EndpointConfig) -> str:
    with pytest.raises(ValueError, match=r"^simulator\.") as caught:
        check_endpoints(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_servers_that_answer_pass_the_check_and_are_asked_for_little(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(Fake(key=KEY)) as one, serving(Fake(text("nonsense", finish="length"), honest, status(429), key=KEY)) as other:
        for _ in range(2):
            check_endpoints(settings(one, other, api_key_env="MADE_UP_KEY"))
    # With the settings' own limits.
    assert [request["max_tokens"] for request in (*one.requests, *other.requests)] == [800] * 5


def test_the_check_asks_what_the_work_will_ask_and_names_the_format_that_a_server_refuses():
    def no_numbers(request):
        has_enum = '"enum"' in json.dumps(request.get("response_format", {}))
        return (status(400, "an enum may hold text only") if has_enum else text(json.dumps(JUDGED)))(request)

    def check(server, **changes):
        model = LLMUserConfig(urls=[server.url], model="m", cache="off", **changes)
        check_endpoints(model, *first_question(model))

    with serving(Fake(always=no_numbers)) as server:
        with pytest.raises(ValueError, match=r"^simulator.answer_format must .* got 'json_schema'; set it to json_object or text"):
            check(server)
        check(server, answer_format="text")
        assert server.requests[-1]["max_tokens"] == 4000 and "response_format" not in server.requests[-1]
        check(server, answer_format="json_object", max_tokens=30)
        assert server.requests[-1]["max_tokens"] == 30
    with serving(Fake(always=text("I would rather talk."))) as server, pytest.raises(ValueError, match=r"^simulator.model must answer"):
        check(server)
    assert len(server.requests) == Endpoints.CHECKS


def test_a_model_that_thinks_first_is_told_what_suits_it(caplog):
    judged = json.dumps(JUDGED)

    def check(server, **changes):
        model = LLMUserConfig(urls=[server.url], model="m", cache="off", **changes)
        check_endpoints(model, *first_question(model))

    for answered in (f"<think>hm</think>{judged}", judged):
        with serving(Fake(always=text(answered))) as server:
            check(server)
            check(server, thinks=True)
            assert (server.requests[-1]["temperature"], server.requests[-1]["max_tokens"]) == (0.6, 4000)
            check(server, thinks=True, temperature=1, max_tokens=900)
            assert (server.requests[-1]["temperature"], server.requests[-1]["max_tokens"]) == (1, 900)
    assert caplog.text.count("m thinks before it answers; set simulator.thinks=true") == 1
    with (
        serving(Fake(always=text("<think>hm</think>I would rather talk."))) as server,
        pytest.raises(ValueError, match="it thinks before it answers, so set"),
    ):
        check(server)


def test_a_proxy_is_not_used_on_this_machine_and_named_elsewhere(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", nobody_there().removesuffix("/v1"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(Fake()) as server:
        assert ask(settings(server)) == CHANGE
    config = settings()
    config.urls = ["http://models.invalid/v1"]
    assert "HTTP_PROXY" in refusal(config)


def test_parts_are_joined_and_a_question_beyond_the_context_is_told_from_other_refusals():
    felt = json.dumps({**JUDGED, "change": CHANGE})
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm {"}]}, {"type": "text", "text": felt}]
    with serving(Fake(text(parts))) as server:
        assert ask(settings(server)) == CHANGE
    too_long = (
        "This model's maximum context length is 900 tokens",
        "the input has 309 tokens, more than this model's context holds",
        "Please reduce the length of the messages or completion",
        "`inputs` must have less than 4095 tokens",
        "too many tokens",
    )
    for words in (*too_long, "unknown parameter"):
        with serving(Fake(always=status(400, words))) as server:
            (found,), _ = ask_all(settings(server), question())
        assert type(found) is (TooLongError if words in too_long else SimulatorError)


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        (status(400, "response_format is not supported"), "simulator.* must be settings that {url} takes: HTTP 400 response_format"),
        (status(404, "no such page"), "simulator.urls must be base addresses"),
        (status(500, "boom"), "simulator.urls must name servers that answer, got '{url}': HTTP 500 boom"),
        (slow(3.0), "simulator.urls must name servers that answer, got '{url}': no answer within simulator.timeout_s=1 s"),
    ],
)
def test_servers_that_will_not_work_are_named_before_the_work(behaviour, complaint):
    with serving(Fake(always=behaviour)) as server:
        assert refusal(settings(server, timeout_s=1.0)).startswith(complaint.format(url=server.url))


def test_a_wrong_key_a_missing_model_and_an_absent_server_are_named(monkeypatch):
    variables = {"OPENAI_API_KEY": "of-somebody", "OPENAI_ORG_ID": "of-somebody", "OPENAI_CUSTOM_HEADERS": "X-Token: of-somebody"}
    for name, value in {"MADE_UP_KEY": "sk-wrong-9876", **variables}.items():
        monkeypatch.setenv(name, value)
    with serving(Fake(key=KEY, models=("a", "b"))) as server:
        message = refusal(settings(server, api_key_env="MADE_UP_KEY"))
        assert "'MADE_UP_KEY': HTTP 401" in message and "sk-wrong-9876" not in message and "***" in message
        assert "so that none was sent" in refusal(settings(server))
        assert "of-somebody" not in json.dumps(server.headers) and {name: os.environ[name] for name in variables} == variables
        monkeypatch.setenv("MADE_UP_KEY", KEY)
        assert "(a, b), got 'm'" in refusal(settings(server, api_key_env="MADE_UP_KEY"))
    config = settings()
    config.urls = [nobody_there()]
    assert refusal(config).startswith(f"simulator.urls must name servers that answer, got '{config.urls[0]}': ")


@pytest.mark.parametrize("code", [400, 429, 500])
def test_the_key_is_in_no_exception_and_no_log_even_if_the_server_repeats_it(monkeypatch, caplog, code):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    caplog.set_level("DEBUG", logger="simulator")
    for words in (f"your key is {KEY}", "x" * 180 + KEY * 3):
        with serving(Fake(always=status(code, words))) as server:
            config = settings(server, api_key_env="MADE_UP_KEY", retries=1, max_wait_s=0.1)
            (found,), _ = ask_all(config, question())
        said = "".join(traceback.format_exception(found))
        assert isinstance(found, SimulatorError) and KEY[:8] not in said + caplog.text + repr(config)
    assert "your key is ***" in hide(f"your key is {KEY}", KEY)


AWKWARD = "sk-0123<&>'ab\\cd+/=%~9876"


@pytest.mark.parametrize(
    "form",
    [
        AWKWARD,
        quote(AWKWARD, safe=""),
        AWKWARD[:14],
        "sk-012...",
    ],
)
def test_a_key_is_hidden_however_it_is_written(form):
    said = hide(f"Illegal header value {form}, so no answer", AWKWARD)
    assert "sk-" not in said.lower() and "9876" not in said and "so no answer" in said
    words = "HTTP 500 the model m is not loaded yet... wait 5 s (**never** retried), simulator.api_key_env is set"
    assert hide(words, AWKWARD) == hide(words, "") == words


@pytest.mark.parametrize("value", ["sk-made\nup-1234", "sk-madé-1234", "Bearer sk-made-1234", " \r\n"])
def test_a_key_that_no_header_can_carry_is_refused_by_its_variable(monkeypatch, value):
    monkeypatch.setenv("MADE_UP_KEY", value)
    with pytest.raises(ValueError, match="'MADE_UP_KEY', which holds") as found:
        check_endpoints(EndpointConfig(model="m", api_key_env="MADE_UP_KEY"))
    said = "".join(traceback.format_exception(found.value))
    assert "sk-ma" not in said and "1234" not in said
    with pytest.raises(ValueError, match="something else") as found:
        EndpointConfig(model="m", api_key_env="gsk_a1b2c3d4e5").key()
    assert "gsk_a" not in str(found.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"urls": []},
        {"urls": ["http://me:secret@a/v1"]},
        {"api_key_env": "sk-secret-1"},
        {"max_tokens": 0},
        {"max_backoff_s": 0.1, "first_backoff_s": 1.0},
        {"extra_body": '{"model": "x"}'},
    ],
)
def test_a_setting_out_of_range_is_named_and_a_secret_in_it_not_repeated(changes):
    with pytest.raises(ValueError, match=next(iter(changes))) as caught:
        EndpointConfig(**{"model": "m", **changes})
    assert "secret" not in str(caught.value)
