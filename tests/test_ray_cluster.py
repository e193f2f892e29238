"""Ray under a terminal that is closed: the current step can finish, and the signal is not lost."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

HANG_UP = """
import os, signal, sys
from pathlib import Path
import numpy as np, ray
from experiments.run_lock import Interruption
from policy.config import ClusterConfig
from policy.rollout.ray_cluster import start_ray, stop_ray
# The tests themselves may run under nohup.
signal.signal(signal.SIGHUP, before := signal.SIG_DFL)
start_ray(ClusterConfig(), num_cpus=1, folder=Path(sys.argv[1]))
assert signal.getsignal(signal.SIGHUP) == before
with Interruption() as interruption:
    ray.get(ray.remote(lambda: 0).remote())
    os.killpg(0, signal.SIGHUP)
    weights = ray.put(np.ones(1_000_000))
    print(interruption.requested, ray.get(ray.remote(lambda array: array.sum()).remote(weights)))
stop_ray()
"""


@pytest.mark.engine
def test_ray_outlives_a_terminal_that_is_closed():
    """The signal goes to the whole group of processes, as a terminal's does; so the test needs a group of its own."""
    with tempfile.TemporaryDirectory(prefix="hup-", dir="/tmp") as folder:
        words = [sys.executable, "-c", HANG_UP, folder]
        done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=120, check=False)
    assert done.stdout.split() == ["True", "1000000.0"], done.stderr[-2000:]


CLOSED_MEANWHILE = """
import fcntl, signal, termios, time
from policy.rollout.ray_cluster import ignoring_hangups, has_terminal
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
seen = []
signal.signal(signal.SIGHUP, lambda number, frame: seen.append("seen"))
with ignoring_hangups():
    print("within", flush=True)
    while has_terminal():
        time.sleep(0.01)
    print("closed", *seen, flush=True)
print("after", *seen, flush=True)
"""


def test_a_terminal_that_is_closed_while_ray_starts_is_noticed_afterwards():
    ours, its = os.openpty()
    words = [sys.executable, "-c", CLOSED_MEANWHILE]
    with subprocess.Popen(words, stdin=its, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            os.close(its)
            assert process.stdout is not None and process.stdout.readline() == "within\n"
            os.close(ours)
            assert process.communicate(timeout=60)[0] == "closed\nafter seen\n"
        finally:
            process.kill()
