"""Records as columns in one small file: what the records of a stream have in common is written once."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def columns_of(stream: Path) -> Path:
    """The file that holds a stream as columns: `metrics.columns.xz` for `metrics.jsonl`."""
    return stream.with_suffix(".columns.xz")


def write_columns(stream: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes records to the file that `columns_of` names; their order is kept, and the order of their keys.

    It holds a table for each set of keys, with the values of each key over the records that have just these keys.
    """
    tables: dict[tuple[str, ...], int] = {}
    rows: list[list[list[Any]]] = []
    order = []
    for record in records:
        place = tables.setdefault(tuple(record), len(tables))
        if place == len(rows):
            rows.append([])
        rows[place].append(list(record.values()))
        order.append(place)
    found = [{"keys": list(keys), "columns": [list(column) for column in zip(*rows[i], strict=True)]} for keys, i in tables.items()]
    text = json.dumps({"order": order, "tables": found}, ensure_ascii=False, separators=(",", ":"))
    columns_of(stream).write_bytes(lzma.compress(text.encode("utf-8"), preset=9))


def read_columns(path: Path) -> Iterator[dict[str, Any]]:
    """The records that `write_columns` wrote.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        kept = json.loads(lzma.decompress(path.read_bytes()))
        tables = [(table["keys"], zip(*table["columns"], strict=True)) for table in kept["tables"]]
        records = [dict(zip(tables[place][0], next(tables[place][1]), strict=True)) for place in kept["order"]]
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} must hold records as columns, got something else (it breaks off or was damaged)") from error
    except (ValueError, KeyError, TypeError, IndexError, StopIteration) as error:
        raise ValueError(f"{path} must hold records as columns, got something else ({error!r})") from error
    yield from records
