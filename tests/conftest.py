"""Files that start engines go first: two processes share the files, and the long ones must not be what one of them is left with."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    starts_engines = {item.path for item in items if item.get_closest_marker("engine")}
    items.sort(key=lambda item: item.path not in starts_engines)
