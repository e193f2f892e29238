"""Language models that a run serves itself: vLLM's OpenAI servers in Ray actors, which play the simulated users (`simulator.serve`)."""

from __future__ import annotations

import logging
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from policy.config import ClusterConfig
from policy.files import OwnFolder, fingerprint
from policy.process import binding_children
from policy.rollout.session import reason_of, runtime_env
from policy.versions import check_same, to_compare
from simulator.llm.config import ServedConfig

log = logging.getLogger(__name__)

PORTS = range(20_000, 32_000)
"""Of servers: neither those that systems give to outgoing connections nor those of Ray's own processes."""
HANG_S = 120.0
"""Seconds without a sign of life after which a server is ended and started again."""


class Place(NamedTuple):
    """Of a server: the node of Ray's, its address and its port."""

    node: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """What users ask."""
        return f"http://{self.host}:{self.port}/v1"


class ServerLostError(RuntimeError):
    """A server ended before it answered."""


class ModelServer:
    """One server, as a process of a Ray actor. What waits, waits in a thread of its own."""

    def __init__(self, config: ServedConfig, *, start_timeout_s: float, versions: Mapping[str, str] | None = None, port: int = 0) -> None:
        self._config, self._start_timeout_s, self._versions = config, start_timeout_s, versions or {}
        self._host, self._port = ray.util.get_node_ip_address(), port
        self._folder = OwnFolder("attune-server-")
        self._process: subprocess.Popen[bytes] | None = None

    def place(self) -> Place:
        """Where it is, which stays over restarts; ValueError where packages are of other versions, RuntimeError where no port is free."""
        check_same(self._versions)
        self._port = self._port or free_port(self._host)
        return Place(ray.get_runtime_context().get_node_id(), self._host, self._port)

    def start(self) -> None:
        """Starts the server and waits until it answers; raises ServerLostError where it ends before, with the reason, or takes too long."""
        self.stop()
        until = time.monotonic() + self._start_timeout_s
        log_file = Path(self._folder.name) / "log"
        with log_file.open("wb") as output, binding_children():
            command = [sys.executable, "-m", "policy.serve", *server_options(self._config), f"--host={self._host}", f"--port={self._port}"]
            self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=output, stderr=subprocess.STDOUT)
        while not self._answers(timeout_s=5.0):
            if self._process.poll() is not None:
                raise ServerLostError(why_ended(log_file.read_text(errors="replace"), self._process.returncode))
            if time.monotonic() > until:
                self.stop()
                raise ServerLostError(f"it must answer within policy.start_timeout_s={self._start_timeout_s:g} s")
            time.sleep(0.5)

    def wait(self) -> str:
        """Why the server ended, once it has, or was ended because it hung."""
        assert self._process is not None
        answered_at = time.monotonic()
        while self._process.poll() is None:
            if self._answers(timeout_s=10.0):
                answered_at = time.monotonic()
            elif time.monotonic() - answered_at > HANG_S:
                self.stop()
                return f"it hung, without an answer for {HANG_S:.0f} s"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        return why_ended((Path(self._folder.name) / "log").read_text(errors="replace"), self._process.returncode)

    def pid(self) -> int:
        """Of the server's process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Ends the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self, *, timeout_s: float) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), direct.open(f"http://{self._host}:{self._port}/health", timeout=timeout_s):
            return True
        return False


class ModelServers:
    """The servers of a run, all of which answer. One that ends is started again at the same address.

    Users ask the others meanwhile. One whose machine is gone, or that ends too often, is given up with a warning. Ray must run.

    Args:
        start_timeout_s: seconds that a server may take to start.
        max_restarts, restart_window_s: restarts of one server within so many seconds.

    Raises:
        ValueError: the model or the settings do not work.
        RuntimeError: a server did not answer in time.
    """

    def __init__(
        self, config: ServedConfig, cluster: ClusterConfig, *, start_timeout_s: float, max_restarts: int, restart_window_s: float
    ) -> None:
        self._config = with_weights_in_name(config)
        self._cluster, self._start_timeout_s = cluster, start_timeout_s
        self._max_restarts, self._window_s = max_restarts, restart_window_s
        self._closing = threading.Event()
        self.num_restarts = 0
        self.actors = [self._create() for _ in range(config.serve_engines)]
        self._watcher = threading.Thread(target=self._watch, name="server watch", daemon=True)
        # vLLM measures the free memory of a card: servers that share one start one after another.
        rounds = [[actor] for actor in self.actors] if 0 < config.serve_gpus < 1 else [self.actors]
        rule = f"the servers of simulator.serve={config.serve} must be able to start"
        try:
            self._places: list[Place] = ray.get([actor.place.remote() for actor in self.actors], timeout=start_timeout_s)
            rule = f"simulator.serve must be a model that vLLM serves with these settings, got {config.serve!r}"
            for actors in rounds:
                ray.get([actor.start.remote() for actor in actors], timeout=2.0 * start_timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise RuntimeError(
                f"the servers of simulator.serve={config.serve} must find room within policy.start_timeout_s={start_timeout_s:g} s; each "
                f"needs {config.serve_cpus} free CPUs and {config.serve_gpus:g} GPUs on one machine"
            ) from error
        except ray.exceptions.RayError as error:
            self.close()
            raise ValueError(f"{rule}: {reason_of(error)}") from error
        except BaseException:
            self.close()
            raise
        self._watcher.start()

    @property
    def user(self) -> ServedConfig:
        """The settings of a user who asks these servers."""
        return replace(self._config, serve="", urls=[place.url for place in self._places])

    def close(self) -> None:
        """Ends the servers."""
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join(timeout=10.0)
        if ray.is_initialized():
            with suppress(ray.exceptions.RayError):
                ray.wait([actor.stop.remote() for actor in self.actors], num_returns=len(self.actors), timeout=15.0)
            for actor in self.actors:
                ray.kill(actor)

    def _create(self, place: Place | None = None) -> Any:
        remote = ray.remote(ModelServer).options(
            num_cpus=self._config.serve_cpus,
            num_gpus=self._config.serve_gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False) if place else "SPREAD",
            max_concurrency=4,
            runtime_env=runtime_env(self._cluster, num_threads=self._config.serve_cpus),
        )
        versions = to_compare() if self._cluster.address else None
        port = place.port if place else 0
        return remote.remote(self._config, start_timeout_s=self._start_timeout_s, versions=versions, port=port)

    def _watch(self) -> None:
        """Restarts servers that end, until `close`."""
        restarts: list[deque[float]] = [deque() for _ in self.actors]
        calls = {actor.wait.remote(): (number, False) for number, actor in enumerate(self.actors)}
        while calls and not self._closing.is_set():
            done, _ = ray.wait(list(calls), num_returns=1, timeout=1.0)
            for call in done:
                number, is_start = calls.pop(call)
                is_gone = False
                try:
                    why = ray.get(call)
                except ray.exceptions.RayActorError as error:
                    why, is_gone = reason_of(error), True
                except ray.exceptions.RayError as error:
                    why = reason_of(error)
                else:
                    if is_start:
                        calls[self.actors[number].wait.remote()] = (number, False)
                        continue
                if self._closing.is_set():
                    return
                now, taken = time.monotonic(), restarts[number]
                while taken and now - taken[0] > self._window_s:
                    taken.popleft()
                url = self._places[number].url
                if len(taken) >= self._max_restarts:
                    log.warning("the server of simulator.serve at %s is given up, after %d restarts: %s", url, len(taken), why)
                    continue
                taken.append(now)
                log.warning("the server of simulator.serve at %s is restarted: %s", url, why)
                self.num_restarts += 1
                if is_gone:
                    ray.kill(self.actors[number])  # it may only have been out of reach
                    self.actors[number] = self._create(self._places[number])
                calls[self.actors[number].start.remote()] = (number, True)


def with_weights_in_name(config: ServedConfig) -> ServedConfig:
    """The settings with the model's whole path, and a digest of a folder's weights in its name: under that name answers are kept."""
    folder = Path(config.serve).expanduser()
    if folder.exists():
        config = replace(config, serve=str(folder.absolute()))
    return replace(config, model=f"{config.model}-{fingerprint(folder)}") if (folder / "config.json").is_file() else config


def server_options(config: ServedConfig) -> list[str]:
    """What a server is started with: the model, and options of vLLM's."""
    on_gpu = [
        "--gpu-memory-utilization",
        f"{config.serve_gpu_memory_share:g}",
        "--tensor-parallel-size",
        str(max(1, int(config.serve_gpus))),
    ]
    # Prompts in one piece: vLLM cannot rewind a CPU generator, which a seeded question that was split would need.
    on_cpu = ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(config.serve_context)]
    on_cpu += ["--kv-cache-memory-bytes", str(config.serve_kv_cache_mb << 20)]
    options = ["--served-model-name", config.model, "--max-model-len", str(config.serve_context), "--generation-config", "vllm"]
    options += ["--disable-uvicorn-access-log"]
    return [config.serve, *options, *(on_gpu if config.serve_gpus else on_cpu)]


def free_port(host: str) -> int:
    """A port of this machine on which nothing listens."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    raise RuntimeError(f"a port of {host} between {PORTS.start} and {PORTS.stop} must be free, got none among 100")


def why_ended(output: str, code: int) -> str:
    """Of a server, in one line: the first error that it printed, else how it ended."""
    head = r"^(?:\([^)]*\) )*(?:ERROR [^\]]*\] )?"
    # pydantic says how many errors there are, and on the next line what the first is.
    errors = re.findall(
        head + r"[\w.]*(?:Error|Exception): (?:\d+ validation errors? for .*\n" + head + r"\s*)?(.+)$", output, re.MULTILINE
    )
    return errors[0].strip() if errors else f"its process ended with code {code}"
