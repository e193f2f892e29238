"""`python -m curriculum`: list teachers, and compare them on toy students; `--help` lists the commands of studies too."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from curriculum import TEACHERS
from curriculum.toy.benchmark import Job, Results, check_jobs, parse_arms, read, run_jobs, summarise, tables
from curriculum.toy.students import STUDENTS
from simulator.files import check_out, progress, write_whole
from simulator.study_commands import add_study_commands


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m curriculum", description="Teachers that decide what the agent practises next.")
    commands = parser.add_subparsers(dest="command", required=True)
    teachers = commands.add_parser("teachers", help="list teachers with their settings, defaults, ranges and effects")
    teachers.add_argument("kind", nargs="*", metavar="KIND", help=f"only these ({', '.join(TEACHERS)})")
    example = "python -m curriculum benchmark --teachers frontier fixed:strictness=.3 frontier:near_maximum=.8 --students drift"
    add = commands.add_parser("benchmark", help="compare teachers on toy students", epilog=f"example: {example}").add_argument
    add("--teachers", nargs="+", default=["all"], metavar="TEACHER", help="all, or names and kinds, with settings if need be")
    add("--students", nargs="+", default=["all"], metavar="STUDENT", help=f"all, or some of {', '.join(STUDENTS)}")
    add("--seeds", type=int, default=8, help="runs of each pair (default 8)")
    add("--first-seed", type=int, default=0, help="the first of these seeds (default 0)")
    add("--jobs", type=int, default=os.cpu_count(), help="processes in parallel (default: one for each CPU)")
    add("--out", type=Path, help="JSON file for all figures with intervals and every seed's value")
    add("--show", type=Path, metavar="FILE", help="only print the table of such a file")
    add("--markdown", action="store_true", help="print the table as Markdown")
    argv = sys.argv[1:] if argv is None else argv
    of_study = add_study_commands("curriculum", parser, commands, argv)
    args = parser.parse_args(argv)
    if of_study:
        return of_study(args)
    try:
        if args.command == "teachers":
            if unknown := [kind for kind in args.kind if kind not in TEACHERS]:
                raise ValueError(f"teacher.kind must be one of {', '.join(TEACHERS)}, got {unknown[0]!r}")
            print("\n\n".join(describe(kind) for kind in args.kind or TEACHERS))
        else:
            print(tables(read(args.show, option="--show") if args.show else benchmark(args), markdown=args.markdown))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def benchmark(args: argparse.Namespace) -> Results:
    """All pairs of teachers and students, checked first, and written to `--out`."""
    for option, least in (("seeds", 1), ("first_seed", 0), ("jobs", 1)):
        if getattr(args, option) < least:
            raise ValueError(f"--{option.replace('_', '-')} must be at least {least}, got {getattr(args, option)}")
    if unknown := [name for name in args.students if name not in (*STUDENTS, "all")]:
        raise ValueError(f"--students must be all or some of {', '.join(STUDENTS)}, got {unknown[0]!r}")
    check_out(args.out)
    students = list(STUDENTS) if "all" in args.students else list(dict.fromkeys(args.students))
    arms = parse_arms(args.teachers)
    check_jobs(students, arms)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    # Seeds outermost, so that long and short runs alternate and the bar is a fair forecast.
    jobs = [Job(student, arm, seed) for seed in seeds for student in students for arm in arms]
    done = dict(progress(run_jobs(jobs, num_processes=args.jobs), total=len(jobs), what="runs"))
    results = summarise({job: done[job] for job in jobs})
    if args.out:
        write_whole(args.out, json.dumps(results, indent=1) + "\n")
    return results


def describe(kind: str) -> str:
    """A teacher's idea and its settings with ranges, as lines of text."""
    config, teacher = TEACHERS[kind]
    lines = [f"{kind}: {(teacher.__doc__ or '').strip().splitlines()[0]}"]
    for name, default, note in settings(config(), "teacher"):
        lines.append(f"  {name}={default}")
        lines.extend(textwrap.wrap(note, width=100, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(lines)


def settings(config: Any, prefix: str) -> Iterator[tuple[str, object, str]]:
    """Dotted name, default, and range such as "(0, 1]:" with docstring of every setting of a fresh `config`, nested ones included."""
    notes: dict[str, str] = {}
    for owner in reversed([cls for cls in type(config).__mro__ if is_dataclass(cls)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        for field, below in pairwise(getattr(definition, "body", ())):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                notes[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    for setting in fields(config):
        value = getattr(config, setting.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}.{setting.name}")
        else:
            info = getattr(config, "__pydantic_fields__", {}).get(setting.name)
            rules = info.metadata if info else ()
            bounds = {end: getattr(rule, end) for rule in rules for end in ("ge", "gt", "le", "lt") if hasattr(rule, end)}
            span = ""
            if bounds:
                low = f"[{bounds['ge']:g}" if "ge" in bounds else f"({bounds['gt']:g}"
                span = f"{low}, {bounds['le']:g}]: " if "le" in bounds else f"{low}, {bounds['lt']:g}): "
            yield f"{prefix}.{setting.name}", value, span + notes.get(setting.name, "")


if __name__ == "__main__":
    sys.exit(main())
