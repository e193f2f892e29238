"""Attune's users as an OpenEnv server: `python -m attune_rl.openenv` on loopback, any OpenEnv client on the other side.

`reset(strictness=0.35, seed=7)` begins a dialogue, each `step({"text": "..."})` is a reply. The reward of a step is the change of emotion
that it brought, over 10; an observation has the user's words and emotion.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Any

from attune_rl.hosts import require_version

require_version("openenv", "0.10")

import uvicorn
from openenv.core.env_server import Action, ConcurrencyConfig, Environment, Observation, State, create_app
from pydantic import Field
from starlette.exceptions import HTTPException

from attune_rl.session import Episode, Ticket, built_in_world, make_user
from simulator.dialogue import UserSimulator
from simulator.scenario import Difficulty, Split

MAX_REPLY = 20_000
"""Characters of a reply; longer ones are refused."""
MAX_BYTES = 8 * MAX_REPLY
"""Of a message or a request's body."""


class Reply(Action):
    """What the agent says."""

    text: str = Field(max_length=MAX_REPLY)


class UserObservation(Observation):
    """What the user says, and feels after the reply."""

    text: str
    emotion: int
    """0 to 100; 40 at the start. The dialogue's reward is the last one over 100."""
    outcome: str = ""
    """How the dialogue ended; empty while it goes on."""


class UserEnvironment(Environment[Reply, UserObservation, State]):
    """One user of a session, who talks to one agent after the other."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, user: UserSimulator, *, max_turns: int = 8) -> None:
        super().__init__()
        self._user, self._max_turns, self._bank = user, max_turns, built_in_world()
        self._episode: Episode | None = None
        self._state, self._is_closed = State(), False

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        strictness: float = 0.35,
        scenario_id: str | None = None,
        heldout: bool = False,
        **unknown: Any,
    ) -> UserObservation:
        """Begins a dialogue.

        Args:
            seed: decides the user and the course of the dialogue; siblings of a group share it. Random if None.
            strictness: difficulty, 0 to 1.
            scenario_id: the user, in place of the seed's choice.
            heldout: draw the user from those kept for evaluation.
        """
        self._require_open()
        if unknown:
            raise ValueError(f"reset must have seed, episode_id, strictness, scenario_id or heldout, got {', '.join(unknown)}")
        for name, value, kind, kinds in (
            ("seed", 0 if seed is None else seed, "a whole number", (int,)),
            ("strictness", strictness, "a number", (int, float)),
            ("heldout", heldout, "true or false", (bool,)),
        ):
            if type(value) not in kinds:
                raise ValueError(f"{name} must be {kind}, got {value!r}")
        seed = random.getrandbits(31) if seed is None else seed
        if scenario_id is None:
            scenarios = self._bank.scenarios(Split.HELDOUT if heldout else Split.TRAIN)
            scenario_id = scenarios[seed % len(scenarios)].scenario_id
        uid, difficulty = episode_id or f"{scenario_id}@{strictness:g}", Difficulty.along(strictness)
        ticket = Ticket(uid=uid, scenario_id=scenario_id, difficulty=difficulty, seed=seed)
        self._episode = Episode(self._user, ticket, self._bank, max_turns=self._max_turns)
        self._state = State(episode_id=ticket.uid)
        await self._episode.open()
        return self._heard()

    async def step_async(self, action: Reply, timeout_s: float | None = None) -> UserObservation:
        """Takes a reply to the user."""
        self._require_open()
        if self._episode is None or self._episode.over:
            raise ValueError("a dialogue must be under way; call reset first")
        await self._episode.reply(action.text)
        self._state.step_count += 1
        heard = self._heard()
        heard.reward = (self._episode.dialogue.turns[-1].change or 0) / 10.0
        return heard

    def reset(self, seed: int | None = None, episode_id: str | None = None, **settings: Any) -> UserObservation:
        """Required by the base class; the server calls `reset_async`."""
        raise NotImplementedError

    def step(self, action: Reply, timeout_s: float | None = None, **settings: Any) -> UserObservation:
        """Required by the base class; the server calls `step_async`."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the session; where it was idle for too long its connection may outlive it."""
        self._is_closed, self._episode = True, None

    @property
    def state(self) -> State:
        """The dialogue's id and number of replies."""
        return self._state

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the session ended, as it was idle for too long; connect again")

    def _heard(self) -> UserObservation:
        """The latest words; a user that broke is an error of the server and no reward."""
        assert self._episode is not None
        dialogue = self._episode.dialogue
        if dialogue.error:
            raise RuntimeError(f"the simulated user broke: {dialogue.error.strip().rpartition(chr(10))[2]}")
        outcome = "" if dialogue.outcome is None else dialogue.outcome.value
        return UserObservation(text=dialogue.turns[-1].text, emotion=dialogue.emotion, outcome=outcome, done=self._episode.over)


def make_app(user: str = "rule", *, max_turns: int = 8, max_sessions: int = 64, session_timeout: float = 600.0) -> Any:
    """The server as an ASGI application; sessions beyond `max_sessions` are refused, idle ones end after `session_timeout` seconds."""
    simulated = make_user(user)
    limits = ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout)
    app = create_app(
        lambda: UserEnvironment(simulated, max_turns=max_turns), Reply, UserObservation, env_name="attune", concurrency_config=limits
    )
    app.add_middleware(Bounded)
    return app


class Bounded:
    """An ASGI application whose requests have bodies of at most `MAX_BYTES`; websockets are bounded by their server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Counts what comes in."""
        taken = 0

        async def bounded() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BYTES:
                raise HTTPException(413, f"a request's body must have at most {MAX_BYTES} bytes")
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m attune_rl.openenv", description="Serves simulated users by OpenEnv's protocol.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--user", choices=("rule", "encoder"), default="rule", help="how users understand replies (default: rule)")
    parser.add_argument("--max-turns", type=int, default=8, help="replies a dialogue (default: 8)")
    parser.add_argument("--max-sessions", type=int, default=64, help="dialogues at once (default: 64)")
    parser.add_argument("--session-timeout", type=float, default=600.0, metavar="S", help="until an idle one ends (default: 600)")
    options = parser.parse_args(arguments)
    app = make_app(options.user, max_turns=options.max_turns, max_sessions=options.max_sessions, session_timeout=options.session_timeout)
    uvicorn.run(app, host=options.host, port=options.port, ws_max_size=MAX_BYTES, log_level="warning")


if __name__ == "__main__":
    main()
