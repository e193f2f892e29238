"""verifiers' own evaluation of Attune's users against a chat server on loopback; run by `make adapters`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("verifiers", reason="verifiers is not installed (make adapters)")

SAID = ("That sounds hard. What hurts most about it?", "You did what you could, and that counts.", "Nobody could have known that.")


class Chat(BaseHTTPRequestHandler):
    """A model that says one of three things, or whose provider fails or takes too long."""

    fails = hangs = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = SAID[len(body["messages"]) % 3]
        if self.hangs:
            time.sleep(15)
        message = {"role": "assistant", "content": content}
        usage = {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19}
        answer = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
        kind, data = (
            "application/json",
            json.dumps({**answer, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).encode(),
        )
        if body.get("stream"):
            chunk = {**answer, "object": "chat.completion.chunk"}
            parts = [
                {**chunk, "usage": None, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
                {**chunk, "usage": None, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {**chunk, "choices": []},
            ]
            kind, data = (
                "text/event-stream",
                b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts) + b"data: [DONE]\n\n",
            )
        if self.fails:
            kind, data = "application/json", b'{"error": {"message": "overloaded"}}'
        self.send_response(500 if self.fails else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    Chat.fails = Chat.hangs = False
    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


BREAKS = """
from simulator.rule_user import RuleUser

async def react(self, dialogue, reply):
    raise ConnectionError("nobody is there")

RuleUser.react = react
"""
"""A module of this name is imported by every Python that has its folder on the path."""


def evaluate(provider: str, folder: Path, *more: str) -> list[dict]:
    """The traces of `vf-eval` on three tasks, three times each, one an episode."""
    command = [str(Path(sys.executable).parent / "vf-eval"), "attune-users", "-n", "3", "-r", "3", "--no-push", "--no-rich"]
    where = ["--model", "stub", "--client.base-url", provider, "--client.api-key-var", "NO_KEY", "--output-dir", str(folder / "out")]
    runtime = ["--env.agent.runtime.type", "subprocess", "--env.taskset.max-turns", "2"]
    environment = {**os.environ, "NO_KEY": "none", "PYTHONPATH": str(folder)}
    done = subprocess.run([*command, *where, *runtime, *more], env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    episodes = [json.loads(line) for line in next(folder.rglob("traces.jsonl")).read_text().splitlines()]
    assert len(episodes) == 9, done.stdout[-3000:] + done.stderr[-3000:]
    return [trace for episode in episodes for trace in episode["traces"]]


def test_nine_rollouts_end_with_the_users_emotion_as_reward(provider, tmp_path):
    traces = evaluate(provider, tmp_path)
    assert len(traces) == 9 and all(trace["ok"] for trace in traces)
    for trace in traces:
        turns, result = trace["info"]["turn_rewards"], trace["info"]["attune"]
        assert turns == result["turn_rewards"] and len(turns) == 2
        assert trace["rewards"]["emotion"]["score"] == pytest.approx(result["reward"]) == pytest.approx(0.4 + sum(turns) / 10)
    assert len({trace["info"]["attune"]["reward"] for trace in traces}) > 1


def test_a_provider_error_is_an_error_and_not_the_emotion_at_the_start(provider, tmp_path):
    Chat.fails = True
    traces = evaluate(provider, tmp_path)
    assert traces and not any(trace["ok"] for trace in traces)
    assert all(trace["errors"] and "attune" not in trace["info"] and "emotion" not in trace["rewards"] for trace in traces)


def test_a_user_that_breaks_is_an_error_of_its_trace_and_no_reward(provider, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    traces = evaluate(provider, tmp_path)
    assert traces and not any(trace["ok"] for trace in traces)
    assert all("nobody is there" in str(trace["errors"]) for trace in traces)
    assert not any("attune" in trace["info"] or "emotion" in trace["rewards"] for trace in traces)


def test_a_provider_that_hangs_is_an_error_and_not_the_emotion_at_the_start(provider, tmp_path):
    Chat.hangs = True
    traces = evaluate(provider, tmp_path, "--env.agent.timeout.rollout", "3")
    assert len(traces) == 9 and not any("attune" in trace["info"] or "emotion" in trace["rewards"] for trace in traces)
    assert all("did not answer in time" in str(trace["errors"]) for trace in traces)
