"""Files of transcripts from one format into the other, plain or gzipped: what `python -m simulator convert` does."""

from __future__ import annotations

import argparse
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from simulator.convert import Format, format_of, from_sage, to_sage
from simulator.dialogue import Outcome
from simulator.drafts import draft_of
from simulator.jsonl import read_jsonl
from simulator.sage import profiles_by_id
from simulator.shown import say_torn


@dataclass
class Converted:
    """What became of a file's records."""

    num: int = 0
    num_errors: int = 0
    """ERROR dialogues, left out: SAGE's format would show them as ordinary ones."""
    num_nameless: int = 0
    """Records of SAGE that do not say who the user is."""
    apart: Counter[str] = field(default_factory=Counter)
    """In how many records a field had no place in the other format."""


def convert(options: argparse.Namespace) -> str:
    """Converts the file that was named; returns what is to be said about it."""
    wanted = None if options.to is None else Format(options.to)
    to, done = convert_file(options.source, options.target, to=wanted, bare=options.bare, force=options.force, profiles=options.profiles)
    return summary(options.target, to, done, bare=options.bare)


def convert_file(
    source: Path, target: Path, *, to: Format | None = None, bare: bool = False, force: bool = False, profiles: Path | None = None
) -> tuple[Format, Converted]:
    """Converts a file of one record a line; gzipped or not, as `source` is and as the name of `target` says.

    Args:
        to: the wanted format; None takes the one that `source` is not in.
        force: write over a file that is there.
        profiles: a native file of the profiles on which dialogues were played, whose cards and scenes go into SAGE's records.

    Returns:
        The format of `target`, and what became of the records.

    Raises:
        ValueError: a line is broken or lacks a field (its number is named), `target` is there, or the profiles cannot be read.
    """
    if not source.is_file():
        raise ValueError(f"SOURCE must be a file of transcripts, got {str(source)!r}, which is not there")
    if target.exists() and not force:
        raise ValueError(f"TARGET must be new, got {str(target)!r}; --force writes over it")
    if not target.parent.is_dir():
        raise ValueError(f"TARGET must lie in a folder that is there, got {str(target)!r}")
    torn: list[int] = []
    done, known = Converted(), {} if profiles is None else profiles_by_id(profiles)
    with draft_of(target) as draft:
        with _writing(draft, gzipped=target.suffix == ".gz") as file:
            for number, record in read_jsonl(source, what="a JSON object", on_torn=torn.append):
                try:
                    to = to or other(format_of(record))
                    if format_of(record) is to:
                        raise ValueError(f"record must be in {other(to)}'s format to be converted to {to}'s, got one in {to}'s")
                    if record.get("outcome") == Outcome.ERROR:
                        done.num_errors += 1
                        continue
                    found = (to_sage if to is Format.SAGE else from_sage)(record, bare=bare, apart=done.apart, profiles=known)
                    done.num_nameless += to is Format.SAGE and not found["player"]
                except (ValueError, TypeError, AttributeError) as error:
                    raise ValueError(f"{source} line {number}: {error}") from error
                done.num += 1
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
        for number in torn:
            leave_out_torn(source, number, to)
        if to is None:
            raise ValueError(f"{source} must hold at least one record, got none")
    return to, done


def leave_out_torn(source: Path, number: int, to: Format | None) -> None:
    """Says that a last line is left out, which a kill tore in a file that a run wrote; in any other file it is a broken one.

    Args:
        to: the wanted format, as the lines before have it; None before the first.

    Raises:
        ValueError: it is no run's file, or nothing tells.
    """
    if to is not Format.SAGE or number == 1:
        raise ValueError(f"{source} line {number} must be a JSON object, got one that breaks off")
    say_torn(source, number)


def other(format: Format) -> Format:
    """The format that is not this one."""
    return Format.ATTUNE if format is Format.SAGE else Format.SAGE


@contextmanager
def _writing(path: Path, *, gzipped: bool) -> Iterator[IO[str]]:
    """A text file to write; gzipped without the time, so that the same records give the same bytes."""
    if not gzipped:
        with path.open("w", encoding="utf-8") as plain:
            yield plain
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        yield text


def summary(target: Path, to: Format, done: Converted, *, bare: bool) -> str:
    """What was written, and what the other format had no place for."""
    lines = [f"{target}: {done.num:,} dialogue{'' if done.num == 1 else 's'} in {to}'s format"]
    if done.num_errors:
        lines.append(f"  left out: {done.num_errors:,} that ended in an error, which SAGE's format cannot say")
    if done.num_nameless:
        lines.append(f"  without player and scene: {done.num_nameless:,}, whose scenarios are not built in; --profiles FILE has them")
    if done.apart:
        fate = "lost, since it has no place for them" if bare else f"kept under {other(to).value!r}, since it has no place for them"
        fields = ", ".join(f"{name} ({num:,})" for name, num in sorted(done.apart.items()))
        lines.append(f"  {fate}: {fields}")
    return "\n".join(lines)
