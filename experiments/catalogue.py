"""The experiments there are: one YAML file each, of the core or of a study, whose first line says what it is about."""

from __future__ import annotations

import importlib
from pathlib import Path

FOLDER = Path(__file__).parent
STUDIES = FOLDER.parent / "studies"


def experiments() -> dict[str, str]:
    """What each experiment is about, by name."""
    return {
        name: path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].lstrip("# ") for name, path in sorted(_files().items())
    }


def path_of(experiment: str) -> Path:
    """The file of an experiment."""
    return _files().get(experiment, FOLDER / f"{experiment}.yaml")


def import_study(experiment: str) -> None:
    """Imports the study that an experiment belongs to, which registers what its settings name; nothing for one of the core."""
    folder = path_of(experiment).parent
    if folder.parent == STUDIES and (folder / "__init__.py").is_file():
        importlib.import_module(f"studies.{folder.name}")


def _files() -> dict[str, Path]:
    return {path.stem: path for path in (*STUDIES.glob("*/*.yaml"), *FOLDER.glob("*.yaml"))}
