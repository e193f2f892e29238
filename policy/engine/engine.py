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
class Request:
    """A prompt to continue."""

    prompt_ids: Sequence[int]
    sampling: Sampling
    seed: int

    def check_length(self, max_context: int) -> None:
        """Raises ValueError for a prompt that is empty or leaves no room for its reply."""
        longest = max_context - self.sampling.max_tokens
        if not 0 < len(self.prompt_ids) <= longest:
            raise ValueError(f"a prompt must have 1 to {longest} tokens, got {len(self.prompt_ids)}")


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


class EngineError(RuntimeError):
    """An engine broke: it answers no more and must be rebuilt."""


_Ask = list[tuple[Request, "asyncio.Future[Completion]"]]
"""Requests to admit together, each with the future that waits for it."""
_Call = tuple[Callable[[], Any], concurrent.futures.Future[Any]]
"""A function to call between replies, and the future of its result."""


class Engine(abc.ABC):
    """An engine in this process. All access to the model is on one thread, which takes requests and calls from a queue, in order.

    A call (new weights, a score) waits until the running replies are done, so every completion is of one policy version.
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
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
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
            raise RuntimeError(f"the {self.name} engine must answer within policy.start_timeout_s={start_timeout_s:g} s") from error
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
        return (await self.generate_all([Request(prompt_ids=prompt_ids, sampling=sampling, seed=seed)]))[0]

    async def generate_all(self, requests: Sequence[Request]) -> list[Completion]:
        """Continuations of many prompts, admitted together and in this order."""
        loop = asyncio.get_running_loop()
        asked = [(request, loop.create_future()) for request in requests]
        self._put(asked)
        return await asyncio.gather(*(future for _, future in asked))

    async def load_weights(self, weights: WeightUpdate) -> WeightAck:
        """Replaces all weights once the running replies are done, forgets cached prefixes and scores a probe.

        Raises:
            ValueError: they are not those of this model, which keeps its own.
            EngineError, WeightFileError: they did not arrive in time, or whole: the engine is broken from then on.
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

    async def sleep(self) -> None:
        """Gives up the memory of weights and cache until `load_weights`; nothing may be asked before."""
        await self._in_time(self._sleep, "give up its memory")

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprob of every token but the first, given those before it: nats, at temperature 1, over the full vocabulary."""
        return await self._in_time(lambda: self._score(token_ids), "score a dialogue")

    async def reset_cache(self) -> None:
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
    def _start(self) -> None: ...

    @abc.abstractmethod
    def _admit(self, request_id: int, request: Request) -> None: ...

    @abc.abstractmethod
    def _step(self) -> list[tuple[int, Completion]]:
        """Computes for a while and returns finished completions by request."""

    @abc.abstractmethod
    def _drop(self, request_ids: list[int]) -> None: ...

    @abc.abstractmethod
    def _expected_names(self) -> Collection[str]: ...

    @abc.abstractmethod
    def _load(self, weights: WeightUpdate) -> int:
        """Replaces all weights, after sleep too; returns the checksum of those that it took."""

    @abc.abstractmethod
    def _sleep(self) -> None: ...

    @abc.abstractmethod
    def _score(self, token_ids: Sequence[int]) -> list[float]: ...

    @abc.abstractmethod
    def _reset_cache(self) -> None: ...

    @abc.abstractmethod
    def _stop(self) -> None: ...

    def _progressed(self) -> None:
        """A step begins, or a long one just sampled a token."""
        self._stepping_since = time.monotonic()

    # The thread --------------------------------------------------------------------------------------------------------------------

    async def _in_time(self, function: Callable[[], Any], task: str) -> Any:
        """The function's result, called between replies; raises EngineError where it takes longer than policy.load_timeout_s."""
        try:
            async with asyncio.timeout(self._load_timeout_s):
                return await asyncio.wrap_future(self._call(function))
        except TimeoutError as error:
            raise EngineError(f"the {self.name} engine must {task} within policy.load_timeout_s={self._load_timeout_s:g} s") from error

    def _call(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._put((function, future))
        return future

    def _put(self, item: _Ask | _Call) -> None:
        with self._door:
            if self._closed:
                raise EngineError(f"the {self.name} engine is {'broken' if self._error else 'closed'}") from self._error
            self._inbox.put(item)

    def _run(self) -> None:
        try:
            while self._error is None:
                try:
                    # Steps the engine as long as there is nothing else to do.
                    item = self._inbox.get(block=not self._waiting)
                except queue.Empty:
                    self._advance()
                    continue
                if item is None:
                    break
                if isinstance(item, tuple):
                    while self._waiting:
                        self._advance()
                    function, result = item
                    if result.set_running_or_notify_cancel():
                        try:
                            result.set_result(function())
                        except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
                            result.set_exception(error)
                    continue
                # All of them wait before the first is admitted: if the engine breaks here, it fails them all.
                taken = {next(self._ids): pair for pair in item}
                self._waiting.update({request_id: future for request_id, (_, future) in taken.items()})
                for request_id, (request, _) in taken.items():
                    try:
                        self._admit(request_id, request)
                    except ValueError as error:
                        self._deliver([(request_id, error)])
        except Exception as error:  # noqa: BLE001 - the thread's end: every waiting request gets the error
            self._error = error
        self._stepping_since = None
        stopped = EngineError(f"the {self.name} engine stopped")
        stopped.__cause__ = self._error
        with self._door:
            self._closed = True
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, tuple):
                if item[1].set_running_or_notify_cancel():
                    item[1].set_exception(stopped)
            else:
                self._waiting.update({next(self._ids): future for _, future in item or ()})
        self._deliver([(request_id, stopped) for request_id in self._waiting])
        self._stop()

    def _advance(self) -> None:
        """One step of the engine, or its end for requests that were cancelled."""
        if abandoned := [request_id for request_id, future in self._waiting.items() if future.cancelled()]:
            self._drop(abandoned)
            for request_id in abandoned:
                del self._waiting[request_id]
            return
        start = time.perf_counter()
        self._progressed()
        finished = self._step()
        self._stepping_since = None
        self.busy_s += time.perf_counter() - start
        self._deliver(finished)

    def _deliver(self, results: Sequence[tuple[int, Completion | Exception]]) -> None:
        """Settles replies that were not cancelled, in one call for each loop, so that what dialogues ask next arrives together."""

        def settle(replies: list[tuple[asyncio.Future[Completion], Completion | Exception]]) -> None:
            for future, result in replies:
                if not future.done():
                    future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)

        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Completion], Completion | Exception]]] = {}
        for request_id, result in results:
            future = self._waiting.pop(request_id)
            by_loop.setdefault(future.get_loop(), []).append((future, result))
        for loop, replies in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, replies)
