"""The contract of an engine, token ids in, sampled token ids and their logprobs out, and the thread that steps one."""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import itertools
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from policy.engine.weights import WeightAck, WeightUpdate


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. Top-p, top-k and penalties do not exist here: they would bias the importance ratio (docs/decisions.md)."""

    max_tokens: int
    temperature: float = 1.0
    """Must be > 0 in training; 0 means greedy and is for evaluation only."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """An engine's continuation of a prompt, verbatim."""

    token_ids: tuple[int, ...]
    """[T], the end-of-turn token included when the model emitted it."""
    logprobs: tuple[float, ...]
    """[T] nats, at the sampling temperature, over the full vocabulary."""
    text: str
    """Decoded without special tokens."""
    finish_reason: str
    """`stop` (end of turn) or `length`."""
    policy_version: int
    """Of the weights that sampled it."""


class Generate(Protocol):
    """One continuation of a prompt. Rollout code receives this callable and cannot learn whether it is local, an actor or a test's fake."""

    async def __call__(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to continue."""

    prompt_ids: Sequence[int]
    sampling: Sampling
    seed: int


def check_length(request: Request, max_context: int) -> None:
    """Refuses a prompt that is empty or leaves no room for its reply.

    Raises:
        ValueError: it is too long, or empty.
    """
    longest = max_context - request.sampling.max_tokens
    if not 0 < len(request.prompt_ids) <= longest:
        raise ValueError(f"a prompt must have 1 to {longest} tokens, got {len(request.prompt_ids)}")


class EngineError(RuntimeError):
    """An engine broke: it answers no more and must be rebuilt."""


@dataclass(frozen=True)
class _Ask:
    """Requests to admit together, each with the future that waits for it."""

    loop: asyncio.AbstractEventLoop
    pairs: list[tuple[Request, asyncio.Future[Completion]]]


@dataclass(frozen=True)
class _Call:
    """A function to call between replies."""

    function: Callable[[], Any]
    future: concurrent.futures.Future[Any]


class Engine(abc.ABC):
    """An engine in this process. All access to the model is on one thread, which takes work from a queue.

    Consumes requests and calls, in order. A call (new weights, a score) waits until the running replies are done, so every completion is
    of one policy version.

    Raises:
        RuntimeError: it did not start in time.
    """

    name: str
    """Its kind, `vllm` or `hf`."""
    tokenizer: Any
    """The model's Hugging Face tokenizer."""

    def __init__(self, *, start_timeout_s: float, load_timeout_s: float) -> None:
        self.policy_version = 0
        """Of the weights it holds."""
        self.busy_s = 0.0
        """Seconds it has spent computing."""
        self._load_timeout_s = load_timeout_s
        self._inbox: queue.SimpleQueue[_Ask | _Call | None] = queue.SimpleQueue()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Completion]]] = {}
        self._ids = itertools.count()
        self._error: BaseException | None = None
        self._stepping_since: float | None = None
        self._closed = False
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"{self.name} engine", daemon=True)
        self._thread.start()
        try:
            self._call(self._start).result(start_timeout_s)
        except TimeoutError as error:
            self.close(wait=False)
            raise RuntimeError(
                f"the {self.name} engine must answer within policy.start_timeout_s, got nothing in {start_timeout_s:g} s"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def broken(self) -> bool:
        """Whether it failed and must be rebuilt."""
        return self._error is not None

    @property
    def stuck_s(self) -> float:
        """Seconds since it last sampled a token, while replies are wanted; 0 while none are."""
        since = self._stepping_since
        return 0.0 if since is None else time.monotonic() - since

    async def generate(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion:
        """One continuation of a prompt."""
        return (await self.generate_all([Request(prompt_ids=prompt_ids, sampling=sampling, seed=seed)]))[0]

    async def generate_all(self, requests: Sequence[Request]) -> list[Completion]:
        """Continuations of many prompts, admitted together and in this order."""
        loop = asyncio.get_running_loop()
        pairs = [(request, loop.create_future()) for request in requests]
        self._put(_Ask(loop, pairs))
        return await asyncio.gather(*(future for _, future in pairs))

    async def load_weights(self, weights: WeightUpdate) -> WeightAck:
        """Replaces all weights once the running replies are done, forgets cached prefixes and scores a probe.

        Raises:
            ValueError: they are not those of this model, which keeps its own.
            EngineError: it did not take them in time, or only half of them: it is broken from then on.
            WeightFileError: they cannot be read.
        """
        # Imports torch, which agents behind a server do without.
        from policy.engine.weights import PROBE_IDS, WeightAck, WeightFileError, require_names

        def load() -> WeightAck:
            require_names(weights.names, expected=self._expected_names())
            try:
                checksum = self._load(weights)
            except BaseException as error:
                self._error = error  # half of them are the old ones: no reply may be sampled from that
                if isinstance(error, WeightFileError):
                    raise  # another engine could not read it either
                why = f"{type(error).__name__}: {error}"
                raise EngineError(f"the {self.name} engine must take weights of version {weights.version} whole, got {why}") from error
            self._reset_cache()
            self.policy_version = weights.version
            return WeightAck(version=self.policy_version, checksum=checksum, probe=tuple(self._score(PROBE_IDS)))

        return await self._in_time(load, "take new weights")

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprob of every token but the first, given those before it: nats, at temperature 1, over the full vocabulary."""
        return await self._in_time(lambda: self._score(token_ids), "score a dialogue")

    async def reset_cache(self) -> None:
        """Forgets all cached prefixes."""
        await self._in_time(self._reset_cache, "forget its cached prefixes")

    def close(self, *, wait: bool = True) -> None:
        """Stops the engine's thread; waiting requests fail."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        if wait:
            self._thread.join()

    # A kind of engine, on its thread -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _start(self) -> None:
        """Builds the engine and lets it answer a first prompt."""

    @abc.abstractmethod
    def _admit(self, request_id: int, request: Request) -> None:
        """Takes up a request; raises ValueError for one that it cannot."""

    @abc.abstractmethod
    def _step(self) -> list[tuple[int, Completion]]:
        """Computes for a while and returns finished completions by request."""

    @abc.abstractmethod
    def _drop(self, request_ids: list[int]) -> None:
        """Forgets requests that were cancelled."""

    @abc.abstractmethod
    def _expected_names(self) -> Collection[str]:
        """Of all parameters of the model."""

    @abc.abstractmethod
    def _load(self, weights: WeightUpdate) -> int:
        """Replaces all weights; returns the checksum of those that it took."""

    @abc.abstractmethod
    def _score(self, token_ids: Sequence[int]) -> list[float]: ...

    @abc.abstractmethod
    def _reset_cache(self) -> None: ...

    @abc.abstractmethod
    def _stop(self) -> None:
        """Frees the engine's memory."""

    def _progressed(self) -> None:
        """A step begins, or a long one just sampled a token."""
        self._stepping_since = time.monotonic()

    # The thread --------------------------------------------------------------------------------------------------------------------

    async def _in_time(self, function: Callable[[], Any], task: str) -> Any:
        """The function's result, called between replies.

        Raises:
            EngineError: it did not return in time.
        """
        try:
            async with asyncio.timeout(self._load_timeout_s):
                return await asyncio.wrap_future(self._call(function))
        except TimeoutError as error:
            raise EngineError(f"the {self.name} engine must {task} within policy.load_timeout_s={self._load_timeout_s:g} s") from error

    def _call(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        call = _Call(function, concurrent.futures.Future())
        self._put(call)
        return call.future

    def _put(self, item: _Ask | _Call) -> None:
        with self._door:
            if self._closed:
                raise EngineError(f"the {self.name} engine is {'broken' if self._error else 'closed'}") from self._error
            self._inbox.put(item)

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if isinstance(item, _Ask):
                    self._take(item)
                else:
                    while self._waiting:
                        self._advance()
                    self._answer(item)
                    if self._error is not None:
                        break
        except Exception as error:  # noqa: BLE001 - the thread's end: every waiting request gets the error
            self._error = error
        self._fail_waiting()
        self._stop()

    def _next(self) -> _Ask | _Call | None:
        """The next item of the queue; steps the engine as long as there is none."""
        while self._waiting:
            try:
                return self._inbox.get_nowait()
            except queue.Empty:
                self._advance()
        return self._inbox.get()

    def _take(self, ask: _Ask) -> None:
        # All of them wait before the first is admitted: if the engine breaks here, it fails them all.
        taken = {next(self._ids): pair for pair in ask.pairs}
        self._waiting.update({request_id: (ask.loop, future) for request_id, (_, future) in taken.items()})
        for request_id, (request, future) in taken.items():
            try:
                self._admit(request_id, request)
            except ValueError as error:
                del self._waiting[request_id]
                ask.loop.call_soon_threadsafe(_fail, future, error)

    def _answer(self, call: _Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        try:
            call.future.set_result(call.function())
        except Exception as error:  # noqa: BLE001 - the caller's to judge
            call.future.set_exception(error)

    def _advance(self) -> None:
        if abandoned := [request_id for request_id, (_, future) in self._waiting.items() if future.cancelled()]:
            self._drop(abandoned)
            for request_id in abandoned:
                del self._waiting[request_id]
            return
        start = time.perf_counter()
        self._progressed()
        finished = self._step()
        self._stepping_since = None
        self.busy_s += time.perf_counter() - start
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Completion], Completion]]] = {}
        for request_id, completion in finished:
            loop, future = self._waiting.pop(request_id)
            by_loop.setdefault(loop, []).append((future, completion))
        for loop, done in by_loop.items():
            loop.call_soon_threadsafe(_deliver, done)

    def _fail_waiting(self) -> None:
        self._stepping_since = None
        error = EngineError(f"the {self.name} engine stopped")
        error.__cause__ = self._error
        with self._door:
            self._closed = True
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, _Ask):
                self._waiting.update({next(self._ids): (item.loop, future) for _, future in item.pairs})
            elif isinstance(item, _Call) and item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)
        for loop, future in self._waiting.values():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_fail, future, error)
        self._waiting.clear()


def _deliver(done: list[tuple[asyncio.Future[Completion], Completion]]) -> None:
    for future, completion in done:
        if not future.done():
            future.set_result(completion)


def _fail(future: asyncio.Future[Completion], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
