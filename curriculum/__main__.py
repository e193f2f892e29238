"""The door to teachers: `python -m curriculum teachers` lists them with their settings, `alarms` says what alarms are worth."""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

from curriculum import TEACHERS, alarm_study

NOT_BUILT = "the benchmark on toy students is not built yet; `python -m curriculum teachers` lists the teachers that are"


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m curriculum", description="Teachers that decide what the agent practises next.")
    commands = parser.add_subparsers(dest="command", required=True)
    teachers = commands.add_parser("teachers", help="list teachers with their settings, defaults, ranges and effects")
    teachers.add_argument("kind", nargs="*", metavar="KIND", help=f"only these ({', '.join(TEACHERS)})")
    commands.add_parser("benchmark", help="compare teachers on toy students (not built yet)")
    alarms = commands.add_parser("alarms", help="precision, recall and lead time of the collapse alarms over runs or toy students")
    alarm_study.add_arguments(alarms)
    args = parser.parse_args(argv)
    if args.command == "alarms":
        return alarm_study.run(args)
    if args.command == "benchmark":
        print(NOT_BUILT, file=sys.stderr)
        return 2
    if unknown := [kind for kind in args.kind if kind not in TEACHERS]:
        print(f"teacher.kind must be one of {', '.join(TEACHERS)}, got {unknown[0]!r}", file=sys.stderr)
        return 2
    print("\n\n".join(describe(kind) for kind in args.kind or TEACHERS))
    return 0


def describe(kind: str) -> str:
    """A teacher's idea and its settings, as lines of text."""
    config, teacher = TEACHERS[kind]
    idea = (sys.modules[teacher.__module__].__doc__ or "").splitlines()[0]
    lines = [f"{kind}: {idea}"]
    for name, default, note in settings(config(), "teacher"):
        lines.append(f"  {name}={default}")
        lines.extend(textwrap.wrap(note, width=100, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(lines)


def settings(config: Any, prefix: str) -> Iterator[tuple[str, object, str]]:
    """Dotted name, default and docstring line of every setting of a fresh `config`, nested ones included."""
    notes = setting_notes(type(config))
    for setting in fields(config):
        value = getattr(config, setting.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}.{setting.name}")
        else:
            yield f"{prefix}.{setting.name}", value, notes.get(setting.name, "")


def setting_notes(config: type) -> dict[str, str]:
    """The docstring lines beneath the fields of a dataclass and of those it extends."""
    notes: dict[str, str] = {}
    for owner in reversed([cls for cls in config.__mro__ if is_dataclass(cls)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef), f"the source of {owner} is not a class"
        for setting, below in pairwise(definition.body):
            if isinstance(setting, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                notes[ast.unparse(setting.target)] = " ".join(str(below.value.value).split())
    return notes


if __name__ == "__main__":
    sys.exit(main())
