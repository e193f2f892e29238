"""Files that start engines go first: two processes share the files, and the long ones must not be what one of them is left with.

No test hears of what the sealed half was opened for in this checkout. Whoever asks for `write` gets a sweep's file (`sweep_file`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sweep_file import write  # noqa: F401 (a fixture, of several files)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    starts_engines = {item.path for item in items if item.get_closest_marker("engine")}
    items.sort(key=lambda item: item.path not in starts_engines)


@pytest.fixture(scope="session", autouse=True)
def _sealed_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.sealed.CHECKOUT", tmp_path_factory.mktemp("checkout"))
        yield
