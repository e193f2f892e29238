"""What is put on the disk before it gets its name, also where a file system can do less than others."""

from __future__ import annotations

import errno
import os

import pytest

from policy.files import flush, open_as_its_folder


def test_a_file_system_without_modes_is_no_reason_to_lose_a_file(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    (tmp_path / "weights").touch()
    monkeypatch.setattr("pathlib.Path.chmod", refuse)
    open_as_its_folder(tmp_path / "weights")


def test_a_file_system_that_flushes_files_alone_will_do_and_a_full_one_will_not(tmp_path, monkeypatch):
    def fail(number):
        def fsync(_):
            raise OSError(number, os.strerror(number))

        return fsync

    (tmp_path / "weights").touch()
    monkeypatch.setattr("os.fsync", fail(errno.EINVAL))
    flush(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        flush(tmp_path / "weights")
    monkeypatch.setattr("os.fsync", fail(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        flush(tmp_path)
