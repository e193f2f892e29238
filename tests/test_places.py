"""Homes, temporary folders and checkouts in odd places: a way round, or one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policy import config as cluster
from policy.files import first_writable
from simulator.files import settle_home


def test_a_home_that_is_not_there_is_replaced_by_a_folder_of_ones_own(monkeypatch):
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.delenv("USER", raising=False)
    settle_home()
    home = Path(os.environ["HOME"])
    assert home.is_dir() and home.stat().st_mode & 0o077 == 0 and os.environ["USER"]


def test_a_home_that_can_be_written_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    settle_home()
    assert os.environ["HOME"] == str(tmp_path)


def test_the_first_temporary_folder_that_takes_something_is_used(tmp_path):
    assert first_writable(Path("/proc"), tmp_path) == tmp_path
    with pytest.raises(ValueError, match="a folder for temporary files must be writable, got none among /proc"):
        first_writable(Path("/proc"))


@pytest.mark.parametrize("path", ["/a/b'c/python", "/a/é/python", '/a"b/python', "/a:b/python"])
def test_a_checkout_whose_path_ray_cannot_take_is_refused_by_name(monkeypatch, path):
    monkeypatch.setattr(cluster.sys, "executable", path)
    with pytest.raises(ValueError, match="the checkout must lie where Ray can start workers"):
        cluster.require_plain_python()


def test_a_checkout_with_spaces_and_parentheses_is_taken(monkeypatch):
    monkeypatch.setattr(cluster.sys, "executable", "/a b (1)/python")
    cluster.require_plain_python()
