"""Teachers in the plane of two figures of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from earlier_file import EARLIER, earlier

from curriculum.__main__ import main
from studies.alarm_quality.tradeoff import is_default, panel


def summary(mean: float | None, half: float | None = None) -> dict:
    return {"mean": mean, "ci95": None if half is None else [mean - half, mean + half], "per_seed": [mean]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    table = {
        "S2_improving": {
            "target:explore=0": {"final": summary(0.94, 0.01), "worst": summary(0.6)},
            "target:explore=.05": {"final": summary(0.93, 0.02), "worst": summary(0.5)},
            "uniform": {"final": summary(0.56), "worst": summary(None)},
        },
        "S5_noise_families": {"target:explore=0": {"macro": summary(0.9)}, "target:explore=.05": {"macro": summary(0.91)}},
    }
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps(table))
    return path


def test_a_panel_holds_the_teachers_that_have_both_figures(results: Path):
    found = panel(results, "S2_improving:final", "S5_noise_families:macro")
    points = found.points
    assert found.setting == "target:explore"
    assert [(point.label, point.x, point.y, point.is_default) for point in points] == [
        ("0", 0.94, 0.9, False),
        (".05", 0.93, 0.91, True),
    ]
    assert points[0].spread_x == pytest.approx((0.01, 0.01)) and points[0].spread_y == (0.0, 0.0)
    assert [point.label for point in panel(results, "S2_improving:final", "S2_improving:worst").points] == ["0", ".05"]
    every = panel(results, "S2_improving:final", "S2_improving:final")
    assert (every.setting, [point.label for point in every.points]) == ("", ["target:explore=0", "target:explore=.05", "uniform"])


def test_a_teacher_is_at_its_defaults_whatever_is_spelt_out():
    assert is_default("target") and is_default("uniform") and is_default("target:rho=.3,guard.enabled=true")
    assert not is_default("target:rho=.2") and not is_default("fixed_.9") and not is_default("of_another_version")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_the_same_each_time(results: Path, tmp_path: Path, suffix: str):
    drawn = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        out = tmp_path / name / f"tradeoff.{suffix}"
        panels = ["--panel", str(results), "S2_improving:final", "S5_noise_families:macro"] * 2
        assert main(["tradeoff", *panels, "--out", str(out)]) == 0
        drawn.append(out.read_bytes())
    assert drawn[0] == drawn[1]
    before = earlier(out)
    assert main(["tradeoff", *panels, "--out", str(out)]) == 0
    assert out.read_bytes() == drawn[0] and before.read_text() == EARLIER
    if suffix == "svg":
        text = drawn[0].decode()
        assert "target:explore" in text and "default settings" in text and "S2_improving:final" in text


def test_a_benchmark_that_is_not_there_is_told_by_the_option_that_named_it(tmp_path: Path, capsys):
    panel = ["--panel", "none.json", "S2_improving:final", "S2_improving:worst"]
    assert main(["tradeoff", *panel, "--out", str(tmp_path / "t.svg")]) == 2
    assert capsys.readouterr().err == "error: --panel must be a file that `benchmark --out` wrote, got 'none.json'\n"


@pytest.mark.parametrize(
    ("x", "out", "words"),
    [
        ("S9:final", "t.svg", "--panel must name a student of"),
        ("S2_improving:best", "t.svg", "--panel must name a figure of S2_improving, final, worst, got 'S2_improving:best'"),
        ("S2_improving:final", "t.gif", "--out must end in .svg or .png"),
        ("S2_improving:final", "nowhere/t.svg", "--out must be a file in a folder that is there"),
    ],
)
def test_bad_input_is_one_sentence(results: Path, tmp_path: Path, capsys, x: str, out: str, words: str):
    assert main(["tradeoff", "--panel", str(results), x, "S2_improving:final", "--out", str(tmp_path / out)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "t.svg").exists()
