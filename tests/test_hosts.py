"""What every adapter refuses before it imports its host, which need not be there."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError

import pytest

ADAPTERS = {"trl": "trl", "verl": "verl", "verifiers": "verifiers", "openenv": "openenv", "prime_rl": "verifiers"}
"""Host by module."""


@pytest.mark.parametrize("found", ["0.0.1", None])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_another_version_of_a_host_or_none_is_refused_in_a_sentence(adapter: str, found: str | None, monkeypatch: pytest.MonkeyPatch):
    def version(package: str) -> str:
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr("attune_rl.hosts.version", version)
    for name in (adapter, "verifiers"):
        monkeypatch.delitem(sys.modules, f"attune_rl.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"^{ADAPTERS[adapter]} must be [\d.]+\* for this adapter, got {found or 'none'}; install that$"):
        importlib.import_module(f"attune_rl.{adapter}")
