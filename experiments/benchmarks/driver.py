"""What the driver itself has to do: CPU time and bytes for each dialogue that comes back and for each update that goes out.

All in CPU time of this process, threads of Ray's in it included, so that other work on the machine does not change the figures; what
engines and users compute is in other processes. `docs/scaling.md` says where the driver would saturate by them.
"""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import torch

from experiments.benchmarks.figures import Figure, Figures, Settings, figure
from experiments.benchmarks.rollouts import USERS, tasks_of_round
from policy.config import EngineConfig, RolloutConfig
from policy.engine.weights import pack_weights
from policy.model import load_model
from policy.rollout.pool import RolloutPool
from simulator.world import load_bank

NUM_GROUPS, GROUP_SIZE = 8, 8
NUM_ENGINES = 2
NUM_UPDATES = 10
"""Updates of a repeat: one alone is too short for a clock of CPU time."""
LARGE_MB = 256
"""MiB of weights by which the cost of bytes is told from that of calls."""


def measure(settings: Settings) -> Figures:
    """Whole dialogues with a user that costs nothing, and updates of the same policy, on two engines."""
    folder = settings.folder()
    config = RolloutConfig(num_engines=NUM_ENGINES, threads_per_engine=settings.threads)
    engine = EngineConfig(engine=settings.engine)
    settings.progress(f"{NUM_GROUPS * GROUP_SIZE} dialogues and {NUM_UPDATES} updates on {NUM_ENGINES} engines, {settings.repeats} times")
    dialogues_ms, kilobytes, updates_ms = [], [], []
    with RolloutPool(config, engine, model_folder=folder, user_factory=USERS["echo"], scenarios=load_bank, seed=0) as pool:
        for repeat in range(settings.repeats + 1):
            cpu_ms, kb = _dialogues(pool, repeat)
            update_ms = _updates(pool, folder, first_version=1 + repeat * NUM_UPDATES)
            if repeat:  # the first warms up what is imported and connected on demand
                dialogues_ms.append(cpu_ms)
                kilobytes.append(kb)
                updates_ms.append(update_ms)
    settings.progress(f"{LARGE_MB} MiB of weights, {settings.repeats} times")
    return {
        "driver.cpu_ms_per_dialogue": figure(dialogues_ms),
        "driver.kb_per_dialogue": figure(kilobytes),
        "driver.cpu_ms_per_update": figure(updates_ms),
        "driver.cpu_ms_per_weight_mb": _bytes(settings.repeats),
    }


def _dialogues(pool: RolloutPool, repeat: int) -> tuple[float, float]:
    """(CPU milliseconds of the driver, KiB as they cross the process boundary), each per dialogue."""
    tasks = tasks_of_round(NUM_GROUPS, GROUP_SIZE, repeat)
    started = time.process_time()
    pool.submit(tasks)
    groups = pool.ready(NUM_GROUPS)
    cpu_s = time.process_time() - started
    num_dialogues = NUM_GROUPS * GROUP_SIZE
    return 1e3 * cpu_s / num_dialogues, sum(len(pickle.dumps(group)) for group in groups) / 1024 / num_dialogues


def _updates(pool: RolloutPool, folder: Path, *, first_version: int) -> float:
    """CPU milliseconds of the driver per update, on all engines together."""
    named = list(load_model(folder)[0].named_parameters())
    started = time.process_time()
    for version in range(first_version, first_version + NUM_UPDATES):
        pool.load_weights(named, version)
    return 1e3 * (time.process_time() - started) / NUM_UPDATES


def _bytes(repeats: int) -> Figure:
    """CPU milliseconds per MiB to look weights over, copy them and take their checksum: what an update costs for its size."""
    named = [(f"w{i}", torch.randn(1 << 22)) for i in range(LARGE_MB // 16)]
    costs = []
    for version in range(repeats):
        started = time.process_time()
        pack_weights(named, version=version).digest()
        costs.append(1e3 * (time.process_time() - started) / LARGE_MB)
    return figure(costs)
