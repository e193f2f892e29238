"""Processes that end with their parent, which is really killed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from policy.process import ENDS_WITH
from tests.tiny_policy import save_tiny_policy

SLEEPS = "import time; from policy.process import end_with_parent; end_with_parent(); print('up', flush=True); time.sleep(120)"
STARTS = f"""
import subprocess, sys
from policy.process import binding_children
with binding_children():
    subprocess.Popen([sys.executable, "-c", {SLEEPS!r}])
import time; time.sleep(120)
"""
ENGINE = """
import sys
from policy.config import EngineConfig, EngineKind
from policy.engine.vllm import VLLMEngine
if __name__ == "__main__":
    VLLMEngine(EngineConfig(engine=EngineKind.VLLM, engine_process=True), sys.argv[1], max_context=256)
"""


@contextmanager
def killed_with_a_child(*command: str, named: str, ready: Callable[[psutil.Process], bool], **environment: str) -> Iterator[psutil.Process]:
    """The child, with that name in its command, of a process that is killed as soon as the child is ready."""
    parent = subprocess.Popen([sys.executable, *command], env={**os.environ, "PYTHONPATH": os.getcwd(), **environment})
    children: list[psutil.Process] = []
    try:
        patience = time.monotonic() + 200.0
        while not (children and ready(children[0])):
            assert parent.poll() is None and time.monotonic() < patience, "the parent must start a child"
            time.sleep(0.05)
            children = [child for child in psutil.Process(parent.pid).children() if named in command_of(child)]
        parent.kill()
        parent.wait()
        yield children[0]
    finally:
        parent.kill()
        for child in children:
            if child.is_running():
                child.kill()


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended already
        return ""


def has_loaded(package: str) -> Callable[[psutil.Process], bool]:
    return lambda process: any(f"/{package}/" in mapped.path for mapped in process.memory_maps())


def test_a_process_that_is_bound_ends_when_its_parent_is_killed_or_was_gone_before_it_looked():
    with killed_with_a_child("-c", STARTS, named="end_with_parent", ready=lambda process: process.num_threads() > 1) as child:
        child.wait(timeout=20)
    bound = {**os.environ, ENDS_WITH: "1"}
    assert subprocess.run([sys.executable, "-c", SLEEPS], env=bound, timeout=60, stdout=subprocess.DEVNULL).returncode == 1


def test_only_a_bound_process_is_watched_and_its_children_are_not():
    script = "import os, threading; from policy.process import ENDS_WITH, end_with_parent; end_with_parent(); "
    script += "print(threading.active_count(), ENDS_WITH in os.environ)"

    def output(**environment: str) -> str:
        return subprocess.run([sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True).stdout

    assert output() == "1 False\n" and output(**{ENDS_WITH: str(os.getpid())}) == "2 False\n"


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_an_engine_that_still_starts_ends_with_the_worker_that_wanted_it(tmp_path: Path):
    """Takes 15 s: a process imports vLLM, and its child does so again."""
    script = tmp_path / "worker.py"  # whose children are spawned, and look for it
    script.write_text(ENGINE)
    folder = save_tiny_policy(tmp_path / "policy", hidden=32, layers=1)
    with killed_with_a_child(str(script), str(folder), named="spawn_main", ready=has_loaded("torch")) as child:
        child.wait(timeout=90)
