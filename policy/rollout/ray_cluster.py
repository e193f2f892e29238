"""Ray, connected to or started for this process alone."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray._common.network_utils import is_localhost
from ray._private import ray_constants

from policy.config import ClusterConfig, require_plain_python


def start_ray(cluster: ClusterConfig, *, num_cpus: int, folder: Path, num_gpus: int | None = None) -> bool:
    """Connects to Ray, unless this process already is; returns whether it did.

    Args:
        num_cpus: CPUs of a local Ray, at least.
        folder: for the sockets, logs and spilled objects of a local Ray.
        num_gpus: GPUs of a local Ray, the first ones; None for all.

    Raises:
        ValueError: there is no cluster at the address.
        RuntimeError: a local Ray listens where others could reach it.
    """
    if ray.is_initialized():
        return False
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    spans_machines = bool(cluster.address) and not is_localhost(cluster.address.rpartition(":")[0])
    # Otherwise Ray replaces a loopback address by that of the network interface, and listens there.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = str(int(spans_machines))
    ray_constants.ENABLE_RAY_CLUSTER = spans_machines
    if cluster.address:
        try:
            ray.init(address=cluster.address, **quiet)
        except ConnectionError as error:
            remedy = "a cluster that asks for a token needs RAY_AUTH_MODE=token"
            raise ValueError(f"cluster.address must be that of a running Ray cluster, got {cluster.address!r}; {remedy}") from error
        return True
    # Otherwise Ray keeps one in ~/.ray, which may not be writable.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    require_plain_python()
    with ignoring_hangups():
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
    if not is_localhost(address := ray.util.get_node_ip_address()):
        ray.shutdown()
        raise RuntimeError(f"a local Ray must listen on loopback only, got {address!r}")
    return True


def stop_ray() -> None:
    """Leaves the cluster, or ends the local Ray."""
    ray.shutdown()


@contextmanager
def ignoring_hangups() -> Iterator[None]:
    """Processes that are started within ignore the SIGHUP of a closed terminal, which goes to the whole process group: the driver finishes
    its step, and needs Ray for that. The driver itself gets the SIGHUP of a terminal closed meanwhile at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was_in_front = has_terminal(in_front=True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        if was_in_front and not has_terminal():
            signal.raise_signal(signal.SIGHUP)


def has_terminal(*, in_front: bool = False) -> bool:
    """Whether a terminal controls this process; none does once it was closed.

    Args:
        in_front: whether it would also signal this process's group, and not another's, when it is closed.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return not in_front or os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
