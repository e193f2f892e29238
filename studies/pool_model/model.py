"""A discrete-event model of a rollout pool: engines, simulated users, the driver, weights on their way, and failures.

An engine shares its steps among the replies that run: with n of them a step takes `step_s + step_s_per_reply * n` seconds and each gets a
token. In virtual time (tokens that every running reply got so far) a reply ends at its start plus its length, whoever comes or goes
meanwhile, so an engine's next event is the top of a heap. Engines meet only at the driver, in the order of `experiments/train.py`: tasks go
out, the oldest step is taken, the learner updates, weights go to all engines. Between those an engine is played by itself.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

INF = math.inf
MACHINE = 8
"""Engines of a machine, which share one copy of the weights."""
GROUP = 8
"""Dialogues of a task."""
CHUNK = 512
"""Lengths and delays that are drawn at once."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of the figure. Its defaults are the embedded policy with instant users; `pool_model.SOURCES` says where they come from."""

    step_s: float = 4.4e-3
    step_s_per_reply: float = 0.28e-3
    """Of an engine's decoding step: its fixed part, and what each running reply adds, its share of reading the prompt included."""
    max_running: int = 128
    """Replies that an engine samples at once; others wait."""
    reply_tokens: float = 12.0
    reply_sigma: float = 0.36
    max_new_tokens: int = 40
    """Mean of a reply's log-normal length, the deviation of its logarithm, and the bound on it."""
    max_turns: int = 8
    leave_prob: float = 0.008
    """Replies of a dialogue at most, and the chance that it ends after an earlier one."""
    num_dialogues: int = 64
    """For each engine and step, a multiple of `GROUP`."""
    user_s: float = 0.0
    user_sigma: float = 0.0
    """Median of a user's log-normal time to answer, and the deviation of its logarithm; a median of 0 is an instant user."""
    dialogue_s: float = 0.39e-3
    dialogue_s_per_group: float = 0.12e-6
    """CPU time of the driver for a dialogue that comes back: its fixed part, and what each group in flight at the start of a step adds."""
    task_s: float = 0.049e-3
    engine_s: float = 1.3e-3
    """CPU time of the driver (the teacher in it) for a task, and for each engine at an update."""
    weights_mib: float = 8.0
    pack_s_per_mib: float = 2.2e-3
    load_s_per_mib: float = 3.6e-3
    load_s: float = 0.03
    """Weights in float32, CPU time of the driver to copy and check them once, and time of an engine to take them in."""
    mib_per_s: float = 1192.0
    """Of the network between two machines; 1,192 are 10 Gbit/s."""
    spread: Literal["each", "tree"] = "each"
    """Machines fetch from the driver's machine one after another, or each that has the weights passes them on to one at a time."""
    num_drivers: int = 1
    """That share dialogues, tasks and engines. One of them packs the weights."""
    update_s: float = 0.5
    """Of the learner for a step, whose number of devices is taken to grow with the engines."""
    max_staleness: int = 0
    failures_per_s: float = 0.0
    restart_s: float = 75.0
    """Rate at which an engine is lost, and the time until another plays its dialogues again."""

    @property
    def full_tokens_per_s(self) -> float:
        """Of one engine with `max_running` replies at all times."""
        return self.max_running / (self.step_s + self.step_s_per_reply * self.max_running)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Means over steps, the first left out."""

    tokens_per_s: float
    """Trained, of all engines."""
    efficiency: float
    """The same over that of as many engines that are always full, in [0, 1]."""
    age: float
    """Updates between the weights that sampled a token and those it is trained into, mean over trained tokens."""
    driver_load: float
    """Share of the time that the drivers compute, in [0, 1]."""
    rollout_s: float
    update_s: float
    weights_s: float
    """Of a step: until its dialogues are there, in the update, and until every engine has acknowledged the weights."""
    num_dialogues: int
    """Played to their end and taken, the first step's too."""
    num_lost: int
    """Beginnings of dialogues that were lost with their engine."""


class Dialogue:
    """A dialogue under way, or to begin."""

    __slots__ = ("max_turns", "num_replies", "num_tokens", "step", "version_tokens")

    def __init__(self, step: int, max_turns: int) -> None:
        self.step, self.max_turns = step, max_turns
        self.begin()

    def begin(self) -> None:
        """From its opening, for the first time or again."""
        self.num_replies = self.num_tokens = self.version_tokens = 0


class Engine:
    """An engine with its users. `clock` is its time in seconds, up to which it was played.

    Args:
        seed: of lengths, delays and failures.
    """

    def __init__(self, setting: Setting, *, seed: tuple[int, ...]) -> None:
        self.setting, self.rng = setting, np.random.default_rng(seed)
        self.clock = self.tokens_each = 0.0
        """`tokens_each` is the virtual time."""
        self.version, self.pending = 0, 0
        """Of the weights it holds, and of the newest that were sent to it."""
        self.finished: dict[int, list[float]] = {}
        """By step, when its dialogues ended."""
        self.tokens: dict[int, int] = {}
        self.version_tokens: dict[int, int] = {}
        """By step, tokens of ended dialogues, and the sum of their versions."""
        self.num_open: dict[int, int] = {}
        self.num_lost = 0
        self._running: list[tuple[float, int, Dialogue]] = []
        self._users: list[tuple[float, int, Dialogue]] = []
        self._queue: deque[Dialogue] = deque()
        self._open: dict[Dialogue, None] = {}
        self._number = 0
        self._weights_at = self._loaded_at = self._up_at = INF
        self._fails_at = self._changes_at = self._next_failure()
        """When weights arrive, are loaded, the engine is there again, fails, and the earliest of these."""
        self._lengths: list[int] = []
        self._delays: list[float] = []

    def submit(self, at: float, step: int, num_dialogues: int, *, max_turns: int | None = None) -> None:
        """Begins dialogues of a step; its clock must not be past `at`."""
        self.play(until=at)
        dialogues = [Dialogue(step, max_turns or self.setting.max_turns) for _ in range(num_dialogues)]
        self._open.update(dict.fromkeys(dialogues))
        self._queue.extend(dialogues)
        self.num_open[step] = self.num_open.get(step, 0) + num_dialogues
        self._admit()

    def send_weights(self, at: float, version: int) -> None:
        """New weights reach its machine; its clock must not be past `at`."""
        self._weights_at, self.pending = at, version
        self._changes_at = min(self._changes_at, at)

    def play(self, *, until: float = INF, step: int = 0, version: int = 0) -> None:
        """Plays until this time, until all dialogues of a step have ended, or until it holds the weights of a version."""
        setting, running, users = self.setting, self._running, self._users
        while self.num_open[step] if step else self.version < version if version else True:
            pace = setting.step_s + setting.step_s_per_reply * len(running)
            reply_at = self.clock + (running[0][0] - self.tokens_each) * pace if running else INF
            user_at = users[0][0] if users else INF
            other_at = min(self._changes_at, until)
            at = min(reply_at, user_at, other_at)
            if running:
                self.tokens_each += (at - self.clock) / pace
            self.clock = at
            if at == other_at:
                if at == until:
                    return
                self._change()
            elif at == user_at:
                self._heard(heapq.heappop(users)[2])
            else:
                self.tokens_each, _, dialogue = heapq.heappop(running)
                if delay_s := self._delay_s():
                    self._number += 1
                    heapq.heappush(users, (at + delay_s, self._number, dialogue))
                else:
                    self._heard(dialogue)
                if self._queue:
                    self._admit()
                if not running:
                    self._load_if_idle()

    def _heard(self, dialogue: Dialogue) -> None:
        """The user has answered: the dialogue goes on or is over."""
        dialogue.num_replies += 1
        if dialogue.num_replies < dialogue.max_turns and self.rng.random() >= self.setting.leave_prob:
            self._queue.append(dialogue)
            self._admit()
            return
        step = dialogue.step
        del self._open[dialogue]
        self.num_open[step] -= 1
        self.finished.setdefault(step, []).append(self.clock)
        self.tokens[step] = self.tokens.get(step, 0) + dialogue.num_tokens
        self.version_tokens[step] = self.version_tokens.get(step, 0) + dialogue.version_tokens

    def _admit(self) -> None:
        """Starts replies, unless weights wait for the running ones to end, or the engine is down."""
        if self._up_at < INF or self._holds_back():
            return
        while self._queue and len(self._running) < self.setting.max_running:
            dialogue, length = self._queue.popleft(), self._length()
            dialogue.num_tokens += length
            dialogue.version_tokens += length * self.version
            self._number += 1
            heapq.heappush(self._running, (self.tokens_each + length, self._number, dialogue))

    def _change(self) -> None:
        """Weights arrive or are loaded, or the engine fails or is there again."""
        at = self.clock
        if at == self._fails_at:
            self.num_lost += len(self._open)
            for dialogue in self._open:
                dialogue.begin()
            self._queue = deque(self._open)
            self._running.clear()
            self._users.clear()
            self._fails_at, self._loaded_at, self._up_at = INF, INF, at + self.setting.restart_s
        elif at == self._up_at:
            self._up_at, self._fails_at = INF, at + self._next_failure()
            if self._weights_at == INF:
                self.version = self.pending  # it starts with the newest
        elif at == self._weights_at:
            self._weights_at = INF
            self._load_if_idle()
        else:
            self._loaded_at, self.version = INF, self.pending
        self._changes_at = min(self._weights_at, self._loaded_at, self._up_at, self._fails_at)
        self._admit()

    def _holds_back(self) -> bool:
        """Whether new weights are there, which wait for the running replies to end, or are being loaded."""
        return self.version < self.pending and self._weights_at == INF

    def _load_if_idle(self) -> None:
        """Takes in new weights that are there, once no reply runs."""
        if self._holds_back() and not self._running and self._loaded_at == self._up_at == INF:
            self._loaded_at = self.clock + self.setting.load_s + self.setting.load_s_per_mib * self.setting.weights_mib
            self._changes_at = min(self._changes_at, self._loaded_at)

    def _length(self) -> int:
        if not self._lengths:
            setting = self.setting
            mu = math.log(setting.reply_tokens) - setting.reply_sigma**2 / 2
            drawn = np.rint(self.rng.lognormal(mu, setting.reply_sigma, CHUNK))
            self._lengths = drawn.clip(1, setting.max_new_tokens).astype(int).tolist()
        return self._lengths.pop()

    def _delay_s(self) -> float:
        if not self.setting.user_s:
            return 0.0
        if not self._delays:
            self._delays = (self.setting.user_s * self.rng.lognormal(0.0, self.setting.user_sigma, CHUNK)).tolist()
        return self._delays.pop()

    def _next_failure(self) -> float:
        return float(self.rng.exponential(1 / self.setting.failures_per_s)) if self.setting.failures_per_s else INF


class Driver:
    """Servers with one queue, in the order of arrival."""

    def __init__(self, num: int) -> None:
        self._free_at = [0.0] * num
        self.busy_s = 0.0

    def serve(self, at: float, cost_s: float) -> float:
        """When work that arrives at `at`, not before work that was given earlier, is done."""
        done = max(at, self._free_at[0]) + cost_s
        heapq.heapreplace(self._free_at, done)
        self.busy_s += cost_s
        return done


def arrivals(setting: Setting, num_engines: int) -> list[float]:
    """Seconds from packed weights to each engine's machine."""
    copy_s = setting.weights_mib / setting.mib_per_s
    machines = [i // MACHINE + 1 for i in range(num_engines)]
    return [copy_s * (machine.bit_length() if setting.spread == "tree" else machine) for machine in machines]


def simulate(setting: Setting, num_engines: int, *, seed: int = 0, num_steps: int = 4) -> Result:
    """A run of `num_steps` >= 2 steps, of which the first is not measured."""
    engines = [Engine(setting, seed=(seed, i)) for i in range(num_engines)]
    driver, now, submitted = Driver(setting.num_drivers), 0.0, 0
    num_groups = num_engines * setting.num_dialogues // GROUP
    dialogue_s = setting.dialogue_s + setting.dialogue_s_per_group * num_groups
    phases, measured_from, busy_before = np.zeros(3), 0.0, 0.0
    for step in range(1, num_steps + 1):
        if step == 2:
            phases, measured_from, busy_before = np.zeros(3), now, driver.busy_s
        started = now
        while submitted < step + setting.max_staleness:
            submitted += 1
            now = driver.serve(now, num_groups * setting.task_s)
            for engine in engines:
                engine.submit(now, submitted, setting.num_dialogues)
        for engine in engines:
            engine.play(step=step)
        # The driver looks only at the step that it waits for, and at nothing during an update.
        taken = max(driver.serve(max(now, at), dialogue_s) for at in sorted(at for engine in engines for at in engine.finished[step]))
        updated = taken + setting.update_s
        packed = driver.serve(updated, setting.weights_mib * setting.pack_s_per_mib)
        for engine, after_s in zip(engines, arrivals(setting, num_engines), strict=True):
            engine.send_weights(packed + after_s, step)
            engine.play(version=step)
        now = max(driver.serve(at, setting.engine_s) for at in sorted(engine.clock for engine in engines))
        phases += taken - started, setting.update_s, now - updated
    steps, wall_s = range(2, num_steps + 1), now - measured_from
    tokens = {step: sum(engine.tokens[step] for engine in engines) for step in steps}
    ages = sum(tokens[step] * (step - 1) - sum(engine.version_tokens[step] for engine in engines) for step in steps)
    num_tokens = sum(tokens.values())
    rollout_s, update_s, weights_s = (phases / len(steps)).tolist()
    return Result(
        tokens_per_s=num_tokens / wall_s,
        efficiency=num_tokens / wall_s / (num_engines * setting.full_tokens_per_s),
        age=ages / num_tokens,
        driver_load=(driver.busy_s - busy_before) / (wall_s * setting.num_drivers),
        rollout_s=rollout_s,
        update_s=update_s,
        weights_s=weights_s,
        num_dialogues=sum(len(engine.finished[step]) for engine in engines for step in range(1, num_steps + 1)),
        num_lost=sum(engine.num_lost for engine in engines),
    )
