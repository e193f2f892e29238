"""Files that start engines go first: two processes share the files, and the long ones must not be what one of them is left with.
Where vLLM is built for GPUs they are skipped: what they start computes on the CPU.

Fixtures of several files: `write` makes a sweep's file, `training` a training run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sweep_file import write  # noqa: F401 (a fixture, of several files)

from policy.engine.factory import vllm_is_for_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    start_engines = [item for item in items if item.get_closest_marker("engine")]
    files = {item.path for item in start_engines}
    items.sort(key=lambda item: item.path not in files)
    if vllm_is_for_gpus():
        for item in start_engines:
            item.add_marker(pytest.mark.skip(reason="starts engines on the CPU: make setup ACCELERATOR=cpu"))


@pytest.fixture
def training(tmp_path) -> Iterator[Callable[..., Any]]:
    """Makes training runs of a tiny random policy, and closes them."""
    from parts_in_process import tiny_run  # here, because it takes seconds to import

    made = []

    def training(*overrides: str, **facts: Any) -> Any:
        made.append(tiny_run(tmp_path / "tiny", *overrides, **facts))
        return made[-1]

    yield training
    for run in made:
        run.components.pool.close()
