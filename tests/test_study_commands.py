"""What studies add to the doors: found where studies are, imported when asked for, and missed in a sentence where there are none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from simulator.__main__ import main


def test_a_door_lists_the_commands_of_studies_and_imports_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "weather").mkdir()
    (tmp_path / "weather" / "commands.toml").write_text('[simulator.rain]\nmodule = "no_such_module"\nhelp = "whether it rains"\n')
    monkeypatch.setattr("simulator.study_commands.STUDIES", tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "whether it rains" in capsys.readouterr().out
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        main(["rain"])


@pytest.mark.parametrize(
    ("door", "command"),
    [
        ("simulator", "fit"),
        ("simulator", "reading"),
        ("analysis", "fidelity"),
        ("analysis", "rlver"),
        ("analysis", "entropy-law"),
        ("policy", "reads"),
        ("policy", "pool_model"),
        ("curriculum", "alarms"),
        ("curriculum", "tradeoff"),
    ],
)
def test_each_command_of_a_study_is_reached_through_its_door(door: str, command: str, capsys):
    with pytest.raises(SystemExit, match="0"):
        import_module(f"{door}.__main__").main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: python -m {door} {command}")


def test_without_studies_a_command_of_one_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("simulator.study_commands.STUDIES", tmp_path / "none")
    with pytest.raises(SystemExit, match="2"):
        main(["fit"])
    assert "got 'fit'; the commands of studies need a checkout of Attune, with studies/" in capsys.readouterr().err
    assert main(["scenarios", "--num", "1"]) == 0
