"""Files that start engines go first: two processes share the files, and the long ones must not be what one of them is left with.
Where vLLM is built for GPUs they are skipped: what they start computes on the CPU.

Whoever asks for `write` gets a sweep's file (`sweep_file`).
"""

from __future__ import annotations

import pytest
from sweep_file import write  # noqa: F401 (a fixture, of several files)

from policy.engine.capacity import vllm_is_for_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    start_engines = [item for item in items if item.get_closest_marker("engine")]
    files = {item.path for item in start_engines}
    items.sort(key=lambda item: item.path not in files)
    if vllm_is_for_gpus():
        for item in start_engines:
            item.add_marker(pytest.mark.skip(reason="starts engines on the CPU: make setup ACCELERATOR=cpu"))
