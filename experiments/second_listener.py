"""A second listener hears a run's held-out dialogues again, so that no policy is scored only by the listener that it trains with.

And the sample of replies that a run keeps, to be heard by any other listener later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.runs import DIALOGUES, REPLIES, read_lines
from simulator.dialogue import START_EMOTION, Dialogue, Outcome, Speaker
from simulator.files import jsonable, write_whole
from simulator.hear import all_at_once, as_heard, rehear
from simulator.listener import ListenerKind, Register
from simulator.llm.client import SimulatorError
from simulator.llm.config import EndpointConfig, ServedConfig
from simulator.rule_user import Preset, RuleUser, RuleUserConfig

Choice = ListenerKind | Literal["none"]
"""A second listener, or that there is none."""


def other_listener(user: Any) -> Choice:
    """Another listener than a user's that needs no server, where there is one."""
    own = user.listener if isinstance(user, RuleUserConfig) else None
    fitted = isinstance(user, RuleUserConfig) and user.preset is Preset.SAGE
    return "none" if fitted else next((kind for kind in ListenerKind if kind not in (own, ListenerKind.MODEL)), "none")


def second_user(user: Any, listener: Choice, server: EndpointConfig | None) -> RuleUserConfig | None:
    """The settings of a user that feels as `user` does and hears by another listener, in ordinary language; None for no listener.

    Args:
        user: settings of any kind of user; one that is no rule user feels by the rule's defaults here.

    Raises:
        ValueError: server and listener do not fit, or the listener is the user's own.
    """
    is_rule = isinstance(user, RuleUserConfig)
    if (listener == ListenerKind.MODEL) != (server is not None):
        raise ValueError(
            "evaluation.server must be set with evaluation.listener=model, by evaluation.server.model=NAME, and with no other listener"
        )
    if listener == "none":
        return None
    if is_rule and user.preset is Preset.SAGE:
        raise ValueError(f"evaluation.listener must be none with simulator.preset=sage, which was fitted with the rule, got '{listener}'")
    if is_rule and user.listener is listener and (server is None or user.server is None or server.model == user.server.model):
        named = f", model {server.model}" if server else ""
        raise ValueError(f"evaluation.listener must be another one than simulator.listener={user.listener}, got '{listener}'{named}")
    asked = ServedConfig(**vars(server)) if server else None
    if is_rule:
        return replace(user, listener=listener, server=asked, register=Register.OPEN)
    start = getattr(user, "start_emotion", START_EMOTION)
    return RuleUserConfig(start_emotion=start, listener=listener, server=asked, register=Register.OPEN)


class SecondListener:
    """Hears recorded dialogues again; its counts go on over all of them.

    Args:
        user: as it feels and hears.
    """

    CHUNK = 64
    """Dialogues between two questions whether to stop."""

    def __init__(self, user: RuleUser) -> None:
        self.user = user
        server = user.config.server
        self.name = f"{user.config.listener} {server.model}" if server else str(user.config.listener)
        self._register = user.config.register or Register.OPEN

    def hear(self, dialogues: Sequence[Dialogue], *, should_stop: Callable[[], bool] = lambda: False) -> list[dict[str, Any]] | None:
        """For each dialogue `by`, `emotions`, `changes`, `readings` and `final`, or an `error`; None where it was stopped."""
        found: list[dict[str, Any]] = []
        for begin in range(0, len(dialogues), self.CHUNK):
            if should_stop():
                return None
            players = [partial(rehear, dialogue, self.user) for dialogue in dialogues[begin : begin + self.CHUNK]]
            for heard in asyncio.run(all_at_once(players)):
                found.append(
                    {"error": str(heard)} if isinstance(heard, SimulatorError) else {"by": self.name, **as_heard(heard, self._register)}
                )
        return found

    @property
    def cost(self) -> float:
        """Money that it cost so far."""
        return self.user.counts().get("cost", 0.0)


def too_many_unheard(found: Sequence[Mapping[str, Any]]) -> str:
    """Why its score would not be that of all dialogues, with the first reason; empty where nearly all were heard."""
    from analysis.judged import MAX_UNHEARD  # beside it stands what takes scipy to import

    errors = [one["error"] for one in found if "error" in one]
    if len(errors) <= MAX_UNHEARD * len(found):
        return ""
    return f"the second listener gave no usable reading in {len(errors)} of {len(found)} held-out dialogues; the first: {errors[0]}"


def keep_replies(folder: Path, *, num: int = 200, seed: int) -> int:
    """Keeps a sample of the replies of training in a run's `replies.jsonl`; returns how many.

    They are spread evenly over the steps, and drawn at random among the answered replies of a step. Each line is a recorded dialogue up to
    the answer to the reply.
    """
    # Two passes, because the dialogues of a long run need not fit into memory.
    by_step: dict[int, list[tuple[int, int]]] = {}
    for number, record in enumerate(read_lines(folder / DIALOGUES)):
        if record.get("kind") == "train" and record["outcome"] != Outcome.ERROR:
            pairs = zip(record["turns"], record["turns"][1:], strict=False)
            ends = [i + 2 for i, (reply, _) in enumerate(pairs) if reply["speaker"] == Speaker.AGENT]
            by_step.setdefault(record["step"], []).extend((number, end) for end in ends)
    rng, steps = np.random.default_rng(seed), sorted(by_step)
    places = [steps[i * len(steps) // num] for i in range(num)] if steps else []
    chosen: dict[int, list[int]] = {}
    for step in sorted(set(places)):
        answered = by_step[step]
        for pick in rng.choice(len(answered), size=min(places.count(step), len(answered)), replace=False):
            number, end = answered[pick]
            chosen.setdefault(number, []).append(end)
    lines = []
    for number, record in enumerate(read_lines(folder / DIALOGUES)):
        for end in sorted(chosen.get(number, ())):
            turns, whole = record["turns"][:end], end == len(record["turns"])
            what = {"id": f"{record['uid']}/{record['sibling']}/{end // 2}", "emotion": turns[-1]["emotion"], "turns": turns}
            kept = {name: value for name, value in record.items() if name in KEPT}
            lines.append({**kept, **what, "outcome": record["outcome"] if whole else None})
    write_whole(folder / REPLIES, "".join(json.dumps(jsonable(line), ensure_ascii=False) + "\n" for line in lines))
    return len(lines)


KEPT = ("step", "scenario_id", "family", "hidden_intention", "difficulty", "seed", "error")
"""Keys of a dialogue's record that a kept reply has too."""
