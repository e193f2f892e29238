"""The experiments there are: one YAML file each, whose first line says what it is about."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def experiments() -> dict[str, str]:
    """What each experiment is about, by name."""
    return {
        path.stem: path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].lstrip("# ")
        for path in sorted(FOLDER.glob("*.yaml"))
    }


def path_of(experiment: str) -> Path:
    """The file of an experiment."""
    return FOLDER / f"{experiment}.yaml"
