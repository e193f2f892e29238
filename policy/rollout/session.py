"""Ray under a run: connected to or started for this process alone, and what all of its actors share."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._common.network_utils import is_localhost
from ray._private import ray_constants
from ray._private.services import get_ray_address_from_environment

from policy.config import ClusterConfig, require_plain_python


def reason_of(error: Exception) -> str:
    """The first line of the error's message, without the traceback that Ray puts before it."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def no_cluster(address: str) -> ValueError:
    """What to raise where no cluster is at an address."""
    remedy = "a cluster that asks for a token needs RAY_AUTH_MODE=token"
    return ValueError(f"cluster.address must be that of a running Ray cluster, got {address!r}; {remedy}")


def runtime_env(cluster: ClusterConfig, *, num_threads: int) -> dict[str, Any]:
    """What the process of an actor starts with."""
    threads = str(num_threads)
    # Processes of an existing cluster do not look where this one found the project.
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment: dict[str, Any] = {
        "env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(path)}
    }
    if not cluster.address:
        # Ray starts workers through bash and leaves this one word unquoted.
        environment["py_executable"] = shlex.quote(sys.executable)
    return environment


@contextmanager
def ray_session(cluster: ClusterConfig, *, num_cpus: int, folder: Path, num_gpus: int | None = None) -> Iterator[None]:
    """While entered, this process is connected to Ray; one that was before stays so.

    Args:
        num_cpus, num_gpus: of a local Ray: CPUs at least, and its first GPUs; None for all.
        folder: for the sockets, logs and spilled objects of a local Ray.

    Raises:
        ValueError: there is no cluster at the address.
        RuntimeError: a local Ray listens where others could reach it.
    """
    if ray.is_initialized():
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        address = get_ray_address_from_environment("auto", None) if cluster.address == "auto" else cluster.address
    except ConnectionError as error:
        raise no_cluster(cluster.address) from error
    spans_machines = bool(address) and not is_localhost(address.rpartition(":")[0])
    # Otherwise Ray replaces a loopback address by that of the network interface, and listens there.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = str(int(spans_machines))
    ray_constants.ENABLE_RAY_CLUSTER = spans_machines
    if cluster.address:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError as error:
            raise no_cluster(cluster.address) from error
    else:
        # Otherwise Ray keeps one in ~/.ray, which may not be writable.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        require_plain_python()
        # Ray's processes ignore the SIGHUP of a closed terminal, which goes to all of its group: the driver finishes its step with them.
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if is_main else None
        try:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, num_cpus),
                num_gpus=num_gpus,
                include_dashboard=False,
                object_store_memory=cluster.object_store_mb << 20,
                _node_ip_address="127.0.0.1",
                # Ray opens its folder to everyone; the one around it stays closed.
                _temp_dir=str(folder / "ray"),
                **quiet,
            )
        finally:
            if is_main:
                signal.signal(signal.SIGHUP, before)
    try:
        if not cluster.address and not is_localhost(address := ray.util.get_node_ip_address()):
            raise RuntimeError(f"a local Ray must listen on loopback only, got {address!r}")
        yield
    finally:
        ray.shutdown()
