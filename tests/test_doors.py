"""Small things at the doors: closed streams, folders that are not there, files of another kind, options that a command has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.agents.agent import of_agent
from simulator.files import read_jsonl
from simulator.llm.options import in_options, of_judge

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_spoil_a_good_end(closed):
    command = f'exec "{sys.executable}" -m simulator scenarios --num 1 {closed}'
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, timeout=120).returncode == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_refuses_a_board_of_a_folder_that_is_not_there():
    done = subprocess.run(["make", "tensorboard", "RUN=/nonexistent/a b"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "RUN must name a folder with runs, got '/nonexistent/a b'" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", ["tensorboard", "report", "transcripts"])
def test_make_keeps_a_folder_with_a_space_whole(target, tmp_path):
    folder = tmp_path / 'a b\'s "(1)"'
    folder.mkdir()
    command = ["make", "-o", "setup", target, f"RUN={folder}", "RUN_PYTHON=printf '[%s]'"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"[{folder}]" in done.stdout


def test_an_array_or_a_pointer_in_the_place_of_lines_is_called_that(tmp_path):
    path = tmp_path / "profiles.jsonl"
    for content in ('[{"a": 1}]', '\ufeff[\n {"a": 1}\n]'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="must be JSON Lines, one object a line, got a JSON array"):
            list(read_jsonl(path, what="a profile"))
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(ValueError, match="got a Git LFS pointer; run `git lfs pull`"):
        list(read_jsonl(path, what="a profile"))


def test_a_command_blames_no_setting_that_it_does_not_have():
    said = "retries must stay within simulator.retry_share=0.2 of successes; simulator.timeout_s=60"
    assert of_agent(said) == "retries must stay within the retry share of 0.2, which no option sets, of successes; --timeout=60"
    assert of_judge("simulator.api_key_env must be set") == "--judge-key-env must be set"
    assert in_options("simulator.kind must be another", "--user-") == "the kind must be another"
