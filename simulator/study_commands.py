"""Commands that studies add to `python -m simulator`, `policy`, `curriculum` and `analysis`; imported when they are called."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

STUDIES = Path(__file__).resolve().parent.parent / "studies"
"""In a checkout; a wheel has none."""


def add_study_commands(
    door: str, parser: argparse.ArgumentParser, commands: argparse._SubParsersAction, arguments: Sequence[str]
) -> Callable[[argparse.Namespace], int] | None:
    """Adds the commands that `studies/*/commands.toml` names for a package; returns the work of the one in `arguments`.

    A command is a table [<package>.<command>] with its `help` and the `module` that has `add_arguments(parser)` and `run(options)`.

    Args:
        door: the package.
    """
    wanted = arguments[0] if arguments else "--help"
    asked: Callable[[argparse.Namespace], int] | None = None
    for path in sorted(STUDIES.glob("*/commands.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).get(door, {}).items():
            command = commands.add_parser(name, help=entry["help"])
            if name == wanted:
                module = import_module(entry["module"])
                module.add_arguments(command)
                asked = module.run
    if not STUDIES.is_dir() and not wanted.startswith("-") and wanted not in commands.choices:
        known = ", ".join(commands.choices)
        parser.error(f"COMMAND must be one of {known}, got {wanted!r}; the commands of studies need a checkout of Attune, with studies/")
    return asked


def import_studies() -> None:
    """Imports the studies of a checkout, which register their users, teachers, reward terms and callbacks.

    For readers of recorded runs; a run imports the study of its experiment alone.
    """
    for package in sorted(STUDIES.glob("*/__init__.py")):
        import_module(f"studies.{package.parent.name}")
