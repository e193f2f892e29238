"""The OpenEnv server for real, on loopback, with OpenEnv's own client; run by `make adapters`."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed (make adapters)")

from openenv.core.generic_client import GenericEnvClient

REPLIES = ("That sounds hard. What hurts most about it?", "You did what you could, and that counts.", "Nobody could have known that.")
MAX_SESSIONS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server that has room for eight dialogues."""
    with running("--max-sessions", str(MAX_SESSIONS)) as address:
        yield address


@contextmanager
def running(*options: str, path: str = "") -> Iterator[str]:
    """The address of a server with these options."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "attune_rl.openenv", "--port", str(port), "--max-turns", "3", *options]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        for _ in range(300):
            assert process.poll() is None, "the server ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def connect(server: str):
    return GenericEnvClient(base_url=server).sync()


def play(server: str, *, strictness: float = 0.35, seed: int = 7) -> list[tuple[dict, float | None, bool]]:
    with connect(server) as env:
        results = [env.reset(strictness=strictness, seed=seed), *[env.step({"text": text}) for text in REPLIES]]
    return [(result.observation, result.reward, result.done) for result in results]


def test_eight_dialogues_at_once_with_a_reward_a_step(server):
    with ThreadPoolExecutor(MAX_SESSIONS) as pool:
        played = list(pool.map(lambda seed: play(server, seed=seed), range(MAX_SESSIONS)))
    for steps in played:
        emotions = [observation["emotion"] for observation, _, _ in steps]
        assert emotions[0] == 40 and [done for _, _, done in steps] == [False, False, False, True]
        assert [reward for _, reward, _ in steps[1:]] == pytest.approx([(b - a) / 10 for a, b in itertools.pairwise(emotions)])
        assert steps[-1][0]["outcome"] == "max_turns" and all(observation["text"] for observation, _, _ in steps)
    assert len({steps[0][0]["text"] for steps in played}) == MAX_SESSIONS


def test_one_seed_is_one_user_and_strictness_is_heard(server):
    assert play(server) == play(server)
    mild, strict = (sum(reward for _, reward, _ in play(server, strictness=d)[1:]) for d in (0.05, 0.95))
    assert mild > strict


def test_a_flood_of_sessions_is_bounded_and_room_comes_back(server):
    with ExitStack() as stack:
        for seed in range(MAX_SESSIONS):
            stack.enter_context(connect(server)).reset(seed=seed)
        with pytest.raises(Exception, match=r"(?i)capacity|maximum|1013|closed"), connect(server) as env:
            env.reset(seed=99)
    time.sleep(0.5)
    assert play(server)[-1][2]


@pytest.mark.parametrize("action", [{"text": "x" * 20_001}, {"words": "hello"}, {}])
def test_replies_that_are_none_are_refused_and_the_dialogue_goes_on(server, action):
    with connect(server) as env:
        env.reset(seed=1)
        with pytest.raises(Exception, match="VALIDATION_ERROR"):
            env.step(action)
        assert not env.step({"text": REPLIES[0]}).done


def test_bad_settings_and_steps_out_of_turn_are_refused(server):
    with connect(server) as env:
        with pytest.raises(Exception, match="call reset first"):
            env.step({"text": REPLIES[0]})
        with pytest.raises(Exception, match=r"strictness must be in \[0, 1\]"):
            env.reset(strictness=2.0)
        for settings, says in (
            ({"strictness": "0.5"}, "strictness must be a number, got '0.5'"),
            ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
            ({"heldout": "no"}, "heldout must be true or false, got 'no'"),
        ):
            with pytest.raises(Exception, match=says):
                env.reset(**settings)
        with pytest.raises(Exception, match="nowhere"):
            env.reset(scenario_id="nowhere")
        env.reset(seed=3)
        for text in REPLIES:
            env.step({"text": text})
        with pytest.raises(Exception, match="call reset first"):
            env.step({"text": REPLIES[0]})


@pytest.mark.parametrize("path", ["reset", "step"])
def test_a_request_with_a_huge_body_is_refused(server, path):
    request = urllib.request.Request(f"{server}/{path}", data=b"[" * 1_000_000, headers={"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(request, timeout=30)
    assert play(server)[-1][2]


def test_an_idle_session_is_over_although_its_connection_stays():
    with running("--session-timeout", "1") as server, connect(server) as env:
        env.reset(seed=1)
        time.sleep(12.0)
        with pytest.raises(Exception, match="idle for too long; connect again"):
            env.step({"text": REPLIES[0]})
        assert play(server)[-1][2]


def test_closing_in_the_middle_harms_nobody(server):
    with connect(server) as other:
        other.reset(seed=1)
        with connect(server) as env:
            env.reset(seed=2)
            env.step({"text": REPLIES[0]})
        assert not other.step({"text": REPLIES[0]}).done
    assert play(server)[-1][2]


BREAKS = """
from simulator.rule_user import RuleUser

async def react(self, dialogue, reply):
    raise ConnectionError("nobody is there")

RuleUser.react = react
"""
"""A module of the name `sitecustomize` is imported by every Python that has its folder on the path."""


def test_a_user_that_breaks_is_an_error_and_no_reward(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    with running(path=str(tmp_path)) as server, connect(server) as env:
        assert env.reset(seed=1).observation["emotion"] == 40
        with pytest.raises(Exception, match="the simulated user broke: ConnectionError: nobody is there"):
            env.step({"text": REPLIES[0]})
