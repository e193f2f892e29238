"""Files of transcripts converted between our format and SAGE's: `python -m simulator convert`.

Source: SAGE, arXiv 2505.02847, the published transcripts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from simulator.dialogue import Dialogue, Outcome
from simulator.files import read_jsonl, say_torn
from simulator.sage.formats import OF_SAGE, dialogue_of, profiles_by_id, transcript_of, write_records
from simulator.scenario import Scenario, Split
from simulator.world import load_bank


class Format(StrEnum):
    """Of a record."""

    SAGE = "sage"
    ATTUNE = "attune"


def convert(options: argparse.Namespace) -> int:
    """Converts the file SOURCE to TARGET; each is gzipped or not. Returns the exit code.

    SAGE's records have no difficulty, seed or step: these are lost on the way there, and VANILLA and 0 on the way back. ERROR dialogues are
    left out, since SAGE's format would show them as ordinary ones.

    Raises:
        ValueError: a line is broken (its number is named), TARGET exists, or a scenario is unknown.
    """
    source, target = options.source, options.target
    if not source.is_file():
        raise ValueError(f"SOURCE must be a file of transcripts, got {str(source)!r}, which is not there")
    if target.exists() and not options.force:
        raise ValueError(f"TARGET must be new, got {str(target)!r}; --force writes over it")
    if not target.parent.is_dir():
        raise ValueError(f"TARGET must lie in a folder that is there, got {str(target)!r}")
    to = Format(options.to) if options.to else None
    scenarios = {**load_bank().by_id, **({} if options.profiles is None else profiles_by_id(options.profiles))}
    records, num_errors, torn = list[dict[str, Any]](), 0, list[int]()
    for number, record in read_jsonl(source, what="a JSON object", on_torn=torn.append):
        try:
            found = format_of(record)
            to = to or (Format.ATTUNE if found is Format.SAGE else Format.SAGE)
            if found is to:
                raise ValueError(f"record must be in another format than {to}'s to be converted to it")
            if record.get("outcome") == Outcome.ERROR:
                num_errors += 1
                continue
            records.append(to_sage(record, scenarios) if to is Format.SAGE else from_sage(record, scenarios))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"record must hold {error.args[0]}" if isinstance(error, KeyError) else error
            raise ValueError(f"{source} line {number}: {reason}") from error
    if torn and to is not Format.SAGE:  # only a run's own files may end in an incomplete line
        raise ValueError(f"{source} line {torn[0]} must be a JSON object, got one that breaks off")
    if to is None:
        raise ValueError(f"{source} must hold at least one record, got none")
    write_records(target, records)
    for number in torn:
        say_torn(source, number)
    print(f"{target}: {len(records):,} dialogue{'' if len(records) == 1 else 's'} in {to}'s format")
    if num_errors:
        print(f"  left out: {num_errors:,} that ended in an error, which SAGE's format cannot say")
    return 0


def format_of(record: Any) -> Format:
    """The format of a record.

    Raises:
        ValueError: neither.
    """
    if isinstance(record, Mapping) and ("history" in record) != ("turns" in record):
        return Format.SAGE if "history" in record else Format.ATTUNE
    raise ValueError("record must hold either SAGE's 'history' or our 'turns'")


def to_sage(record: Mapping[str, Any], scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """Our record as one of SAGE's.

    Args:
        scenarios: by id; one of them is the record's.

    Raises:
        ValueError, KeyError: the scenario is unknown, or a field is missing or has an impossible value.
    """
    scenario = scenarios.get(record["scenario_id"])
    if scenario is None:
        raise ValueError(f"scenario_id must be of the built-in world or of --profiles FILE, got {record['scenario_id']!r}")
    return transcript_of(Dialogue.from_dict(record, scenario=scenario))


def from_sage(record: Mapping[str, Any], scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """One of SAGE's records as ours; the arguments are those of `to_sage`. A scenario that is not among `scenarios` is the record's own."""
    dialogue = dialogue_of(record, split=Split.HELDOUT)
    native_id = dialogue.scenario.scenario_id
    known = scenarios.get(native_id) or scenarios.get(native_id.removeprefix(OF_SAGE))
    return (replace(dialogue, scenario=known) if known else dialogue).to_dict()
