"""An OpenAI-compatible server on loopback that answers as scripted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from simulator.llm.client import Question
from simulator.llm.config import EndpointConfig
from simulator.llm.prompts import object_of

KEY = "sk-made-up-0123456789"
JUDGED = {"says": "that it is hard", "meets": "a little", "inner": "well", "feeling": "heard", "change": 5}
SAID = {"reply": "i do not know what to do.", "goodbye": False}


@dataclass(frozen=True)
class Reply:
    """What goes back over the wire."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False
    """Promise more bytes than come."""


Behaviour = Callable[[Mapping[str, Any]], Reply]


def completion(content: Any, *, finish: str = "stop", refusal: str | None = None, **further: Any) -> Reply:
    """A chat completion of 100 and 20 tokens; `further` keys go into its message."""
    message = {"role": "assistant", "content": content, **({"refusal": refusal} if refusal else {}), **further}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    record = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return Reply(body=json.dumps(record))


def answer(**keys: Any) -> Behaviour:
    """A behaviour that answers any question with these keys over what would be right."""
    return lambda request: completion(json.dumps({**right_answer(request), **keys}))


def right_answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the schema of a question asks for."""
    properties = request["response_format"]["json_schema"]["schema"]["properties"]
    return {name: value for name, value in {**JUDGED, **SAID, "ok": 1}.items() if name in properties}


def honest(request: Mapping[str, Any]) -> Reply:
    """A right answer."""
    return completion(json.dumps(right_answer(request)))


def status(code: int, words: str = "no", **headers: str) -> Behaviour:
    """An error as OpenAI words it; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request: Reply(status=code, body=json.dumps({"error": {"message": words}}), headers=named)


def text(content: Any, **options: Any) -> Behaviour:
    """A completion with this content."""
    return lambda request: completion(content, **options)


def slow(seconds: float) -> Behaviour:
    """A right answer that takes its time."""
    return lambda request: Reply(body=honest(request).body, delay_s=seconds)


def cut_off(request: Mapping[str, Any]) -> Reply:
    """Half a response, and the connection is gone."""
    return Reply(body=honest(request).body[:40], cut=True)


def garbage(request: Mapping[str, Any]) -> Reply:
    """Not even JSON."""
    return Reply(body="<html>what?</html>")


class FakeEndpoint:
    """What the server was asked and when; what it does next.

    Args:
        script: behaviours for the next requests, in turn; honest afterwards.
        always: behaviour once the script is played, instead of honest.
        key: the only one accepted; empty accepts any.
    """

    def __init__(self, *script: Behaviour, always: Behaviour = honest, key: str = "", models: tuple[str, ...] = ("m",)) -> None:
        self.script, self.always, self.key, self.models = list(script), always, key, models
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.most_at_once = 0
        self.url = ""
        self._at_once = 0
        self._lock = threading.Lock()

    def respond(self, request: dict[str, Any], authorization: str) -> Reply:
        """Takes a request down and decides."""
        with self._lock:
            self.requests.append(request)
            self.keys.append(authorization.removeprefix("Bearer "))
            self.times.append(time.monotonic())
            behaviour = self.script.pop(0) if self.script else self.always
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        if self.key and self.keys[-1] != self.key:
            return status(401, f"Incorrect API key provided: {self.keys[-1]}")(request)
        if request["model"] not in self.models:
            return status(404, f"The model {request['model']} does not exist.")(request)
        return behaviour(request)

    def done(self) -> None:
        """A response is about to go out."""
        with self._lock:
            self._at_once -= 1


@contextmanager
def serving(endpoint: FakeEndpoint, *, port: int = 0) -> Iterator[FakeEndpoint]:
    """Serves it on a port of loopback, an ephemeral one where none is given."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            listed = {
                "object": "list",
                "data": [{"id": name, "object": "model", "created": 0, "owned_by": "x"} for name in endpoint.models],
            }
            self.send(Reply(body=json.dumps(listed)))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.headers.append(dict(self.headers))
            reply = endpoint.respond(request, self.headers.get("Authorization", ""))
            time.sleep(reply.delay_s)
            endpoint.done()
            self.send(reply)

        def send(self, reply: Reply) -> None:
            body = reply.body.encode()
            try:
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) + 100 * reply.cut))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                return  # the client did not wait
            if reply.cut:
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings(*servers: FakeEndpoint, **changes: Any) -> EndpointConfig:
    """Settings that ask these servers and have little patience."""
    quick = {"first_backoff_s": 0.01, "max_backoff_s": 0.02, "circuit_pause_s": 0.05, "max_wait_s": 5.0, "timeout_s": 5.0, "cache": "off"}
    return EndpointConfig(urls=[server.url for server in servers] or ["http://127.0.0.1:1/v1"], **{"model": "m", **quick, **changes})


def question(*, seed: int = 7, words: str = "hi") -> Question:
    """A question that `JUDGED` answers."""
    schema = object_of({name: {"type": "integer" if name == "change" else "string"} for name in JUDGED})
    return Question(name="judge", messages=(("user", words),), schema=schema, seed=seed)
