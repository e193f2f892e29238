"""The sealed half is opened once for a teacher in a world, unless somebody says why again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from analysis.results import MARKS
from experiments import sealed
from experiments.config import load
from experiments.keys import ConfigError
from experiments.sealed import check_sealed, mark_of, opening_sealed, read_marks
from experiments.sweep_plan import Cell, load_sweep


@pytest.fixture
def at(tmp_path):
    """Settings of a run on the sealed half, and its folder."""

    def at(place: str, *overrides: str, split: str = "sealed"):
        config = load("smoke", [f"runs={tmp_path}", f"evaluation.split={split}", *overrides])
        return config, tmp_path / place

    return at


def mark(config, folder: Path) -> None:
    with opening_sealed(config, folder):
        """Here the run begins."""


def judge(config, folder: Path) -> None:
    """Checks and marks, as a run that begins does."""
    check_sealed(config, folder, resuming=False)
    mark(config, folder)


def test_a_second_opening_is_refused_with_who_opened_it_first(at):
    judge(*at("smoke/first"))
    said = r"the sealed half was opened for frontier in world \w+ with graded rewards by smoke/first on .*sealed.again"
    with pytest.raises(ConfigError, match=said):
        check_sealed(*at("smoke/second"), resuming=False)


def test_a_run_goes_on_but_does_not_begin_anew(at):
    judge(*at("smoke/first"))
    check_sealed(*at("smoke/first"), resuming=True)
    with pytest.raises(ConfigError, match="by smoke/first"):
        check_sealed(*at("smoke/first"), resuming=False)


def test_another_teacher_another_world_and_the_held_out_half_are_free(at, monkeypatch):
    judge(*at("smoke/first"))
    judge(*at("smoke/second", "teacher.kind=uniform"))
    judge(*at("smoke/third", split="heldout"))
    monkeypatch.setattr(sealed, "world_name", lambda: "another")
    judge(*at("smoke/fourth"))


def test_another_teacher_in_the_same_folder_leaves_a_mark_of_its_own(at):
    judge(*at("smoke/first"))
    judge(*at("smoke/first", "teacher.kind=uniform"))
    with pytest.raises(ConfigError, match="was opened for uniform in world"):
        check_sealed(*at("smoke/second", "teacher.kind=uniform"), resuming=False)


@pytest.mark.parametrize(("place", "seeds"), [("smoke/first", ""), ("made/sweep/frontier/seed_0", "sealed.seeds=[0,1]")])
def test_a_run_that_was_moved_is_of_the_opening_that_it_was_of(at, tmp_path, place, seeds):
    config, _ = at(place, "runs=elsewhere", *filter(None, [seeds]))
    assert mark_of(config, tmp_path / place) == replace(mark_of(at(place, *filter(None, [seeds]))[0], tmp_path / place), time=ANY)


def test_graded_and_binary_rewards_are_two_questions_and_thresholds_are_none(at):
    judge(*at("smoke/first"))
    judge(*at("smoke/second", "rollout.binary_reward_at=70", "algorithm.turn_credit=0"))
    with pytest.raises(ConfigError, match="with binary rewards by smoke/second"):
        check_sealed(*at("smoke/third", "rollout.binary_reward_at=60", "algorithm.turn_credit=0"), resuming=False)
    with pytest.raises(ConfigError, match="with graded rewards by smoke/first"):
        check_sealed(*at("smoke/third", "algorithm.turn_credit=0.5"), resuming=False)


def test_the_word_that_opens_it_again_is_kept(at, tmp_path):
    judge(*at("smoke/first"))
    judge(*at("smoke/second", "sealed.again=the machine broke"))
    assert [(mark.run, mark.again) for mark in read_marks(tmp_path)] == [("smoke/first", ""), ("smoke/second", "the machine broke")]


def test_a_run_leaves_one_mark_however_often_it_goes_on(at, tmp_path):
    config, folder = at("smoke/first")
    mark(config, folder)
    mark(config, folder)
    mark(*at("smoke/second", split="heldout"))
    assert len((tmp_path / MARKS).read_text().splitlines()) == 1


def test_a_run_that_is_not_begun_leaves_no_mark(at, tmp_path):
    with pytest.raises(OSError, match="full"), opening_sealed(*at("smoke/first")):
        raise OSError("the disk is full")
    assert not list(read_marks(tmp_path))


def test_the_runs_of_a_sweep_are_one_opening_with_the_seeds_that_it_was_planned_with(tmp_path):
    words = [f"runs={tmp_path}", "arms=frontier,fixed_0.5,linear_x1,uniform"]
    sweep = load_sweep("confirmation", words)
    for cell in (Cell("frontier", 100), Cell("fixed_0.5", 100), Cell("frontier", 101)):
        judge(sweep.config(cell), sweep.run_folder(cell))
    assert sweep.config(Cell("frontier", 100)).sealed.seeds == list(range(100, 110))
    # Seeds by seeds is the same opening.
    for seeds in ("100-104", "105-109"):
        part = load_sweep("confirmation", [*words, f"seeds={seeds}"])
        assert part.config(part.cells()[0]).sealed.seeds == list(range(100, 110))
    check_sealed(part.config(Cell("frontier", 105)), part.run_folder(Cell("frontier", 105)), resuming=False)
    more = load_sweep("confirmation", [*words, "seeds=100,101,110"])
    with pytest.raises(ConfigError, match=r"seeds must be among those .* is planned with, 100, .*, 109, got 110; .*sealed.again"):
        check_sealed(more.config(Cell("frontier", 110)), more.run_folder(Cell("frontier", 110)), resuming=False)


def test_of_two_runs_that_were_both_let_in_the_second_to_open_is_refused(at):
    (config, first), (_, second) = at("smoke/first"), at("smoke/second")
    for folder in (first, second):
        check_sealed(config, folder, resuming=False)
    mark(config, first)
    with pytest.raises(ConfigError, match="by smoke/first"):
        mark(config, second)


@pytest.mark.parametrize("place", ["runs", "docs/results"])
def test_what_was_opened_in_this_checkout_is_not_opened_again_with_runs_elsewhere(tmp_path, monkeypatch, place):
    checkout = tmp_path / "checkout"
    (checkout / place).mkdir(parents=True)
    monkeypatch.setattr(sealed, "CHECKOUT", checkout)
    here, elsewhere = (load("smoke", [f"runs={runs}", "evaluation.split=sealed"]) for runs in (checkout / place, tmp_path / "x" / "runs"))
    judge(here, checkout / place / "smoke" / "first")
    for name in ("first", "second"):
        with pytest.raises(ConfigError, match="by smoke/first"):
            check_sealed(elsewhere, tmp_path / "x" / "runs" / "smoke" / name, resuming=False)


def test_marks_are_looked_for_where_the_code_lies():
    words = "from experiments.sealed import CHECKOUT; print(CHECKOUT)"
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found) == Path(__file__).resolve().parent.parent


def test_a_torn_file_of_marks_is_told(at, tmp_path):
    (tmp_path / MARKS).write_text("{\n")
    with pytest.raises(ConfigError, match="must hold a mark in line 1"):
        check_sealed(*at("smoke/first"), resuming=False)


@pytest.mark.parametrize("answer", ["no", "false", "Yes", "1", "No.", " ", "-", "?"])
def test_whether_is_not_why(answer):
    with pytest.raises(ConfigError, match=r"sealed\.again must say why the sealed half is opened again"):
        load("adaptive_curriculum", [f"sealed.again={answer}"])
