"""A run's TensorBoard: scalars, transcripts and maps as they happen, cut back on resume, in the charts of `dashboard.toml`."""

from __future__ import annotations

import math
import re
import struct
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

from analysis.plots import Figure, heat_map
from analysis.runs import PROVENANCE, Group, by_time
from simulator.dialogue import Outcome
from simulator.files import draft_of
from simulator.settings import setting
from simulator.version import recorded_world

IMAGE_EVERY = 10
"""Steps between two maps of issued tasks."""
COMPARED = ("algorithm.kind", "arm", "learner.lr", "seed", "teacher.kind", "teacher.near_maximum", "teacher.strictness", "world")
"""Settings in the HParams tab, which shows the first five by name. `arm` is the arm's folder in a sweep, which adds its own settings."""
JUDGED_BY = ("eval/full_score", "eval/auc", "eval/full_worst_cell", "eval/full_success_rate", "eval/full_failure_rate")
"""Scalars in the HParams tab."""
PAGES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("dashboard.toml").read_text(encoding="utf-8"))["page"]
"""Pages of charts, each about one question; the first one is open."""


def layout(keys: Collection[str]) -> layout_pb2.Layout:
    """The pages of a run that has measured these metrics, as the custom-scalars plugin reads them; none is empty."""
    found = layout_pb2.Layout()
    for number, page in enumerate(PAGES):
        # A chart is its title and regular expressions for whole metric keys; an optional one is shown from the first measurement on.
        optional = [chart for chart in page.get("optional", ()) if any(re.fullmatch(tag, key) for tag in chart[1:] for key in keys)]
        if charts := [*page.get("charts", ()), *optional]:
            category = found.category.add(title=page["title"], closed=number > 0)
            for title, *tags in charts:
                # The plugin matches from the start of a tag, so each expression is closed at its end.
                content = layout_pb2.MultilineChartContent(tag=[f"^(?:{tag})$" for tag in tags])
                category.chart.add(title=title, multiline=content)
    return found


class Dashboard:
    """Writes one file of TensorBoard events.

    Args:
        folder: of the run; made if it is not there.
        purge_step: of a resumed run: this step and later ones are cut out of the folder's earlier files, and open readers forget them.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        if purge_step is not None:
            # A session start alone is not enough: TensorBoard's fast loader drops a tag's later steps only when the tag is written again.
            for path in sorted(folder.glob("events.out.tfevents.*")):
                # Drops later events and a torn end.
                with draft_of(path) as draft, draft.open("wb") as stream:
                    writer = RecordWriter(stream)
                    for record in RawEventFileLoader(str(path)).Load():
                        event = event_pb2.Event.FromString(record)
                        if event.HasField("file_version") or event.step < purge_step:
                            writer.write(record)
        # An open dashboard lags the run by this much; a kill may cost as much of the curves, which are in `metrics.jsonl` too.
        self._writer = EventFileWriter(str(folder), flush_secs=5)
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start))
        self._keys: set[str] = set()
        self._layout = layout_pb2.Layout()
        self._lay_out(purge_step or 0, ())

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """The step's metrics, by key; NaN and infinities are left out."""
        summary = summary_pb2.Summary()
        for key, value in values.items():
            if math.isfinite(value):
                # Not as a tensor: TensorBoard's older reader, which other tools are built on, does not purge those.
                summary.value.add(tag=key, simple_value=value)
        if summary.value:
            self._add(step, summary)
            self._lay_out(step, {value.tag for value in summary.value})

    def _lay_out(self, step: int, keys: Collection[str]) -> None:
        """Writes the layout if these keys bring further charts; readers take the latest."""
        if self._layout.category and self._keys.issuperset(keys):
            return
        self._keys |= {*keys}
        if (found := layout(self._keys)) != self._layout:
            self._layout = found
            summary = summary_pb2.Summary()
            # The plugin's own writer would ask for TensorFlow.
            summary.value.add(
                tag=layout_metadata.CONFIG_SUMMARY_TAG,
                metadata=layout_metadata.create_summary_metadata(),
                tensor=tensor_util.make_tensor_proto(found.SerializeToString(), dtype=np.object_),
            )
            self._add(step, summary)

    def text(self, tag: str, step: int, text: str) -> None:
        """Markdown for the text tab."""
        self._add(step, text_pb(tag, text))

    def image(self, tag: str, step: int, png: bytes) -> None:
        """A picture for the images tab."""
        width, height = struct.unpack(">II", png[16:24])
        summary = summary_pb2.Summary()
        summary.value.add(tag=tag, image=summary_pb2.Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4))
        self._add(step, summary)

    def settings(self, name: str, settings: Mapping[str, bool | float | str], *, columns: Sequence[str], metrics: Sequence[str]) -> None:
        """A run's line in the HParams tab.

        Args:
            name: of the line, its own among the runs that are shown together.
            columns: settings in the table, the same for all runs.
            metrics: scalars in the table.
        """
        self._add(0, hparams_config_pb(hparams=[HParam(column) for column in columns], metrics=[Metric(tag) for tag in metrics]))
        self._add(0, hparams_pb(dict(settings), trial_id=name))

    def close(self) -> None:
        """Writes what is left; nothing can be written after it."""
        self._writer.close()

    def _add(self, step: int, summary: summary_pb2.Summary) -> None:
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))


class TeachingBoard:
    """Gathers issued tasks, step by step."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def add(self, step: int, records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Takes in the tasks of a step; returns its scalars by hidden intention and how far these lie apart, none without tasks."""
        tasks = [record for record in records if record.get("event") == "task" and "family" in record]
        issued = [Group(step, str(record["family"]), float(record["strictness"]), None) for record in tasks]
        self.groups += issued
        if not issued:
            return {}
        values: dict[str, float] = {}
        for intention, found in strictness_by_intention(issued).items():
            values |= {f"curriculum/strictness_of/{intention}": fmean(found), f"curriculum/groups_of/{intention}": float(len(found))}
        # How far intentions lie apart is of the last ten steps: a single step has hardly a group for each.
        recent = takewhile(lambda group: group.step > step - 10, reversed(self.groups))
        means = [fmean(found) for found in strictness_by_intention(recent).values()]
        of_recent = {"mean": fmean(means), "mildest": min(means), "strictest": max(means)}
        return values | {f"curriculum/recent/{name}": value for name, value in of_recent.items()}

    def pictures(self) -> dict[str, bytes]:
        """PNG maps over steps of strictness and of the share of groups, by family and by hidden intention; none before the first task."""
        found: dict[str, bytes] = {}
        for kind, of in (("family", lambda group: group.family), ("intention", lambda group: group.intention)):
            ends, means, counts = by_time(self.groups, num_bins=10, of=of)
            totals: Counter[str] = Counter()
            for (_, end), num in counts.items():
                totals[end] += num
            shares = {cell: 100.0 * num / totals[cell[1]] for cell, num in counts.items()}
            if means:
                strictness, share = f"mean strictness issued, by {kind}", f"share of the groups issued, %, by {kind}"
                found[f"curriculum/strictness_by_{kind}"] = png_map(
                    means, ends, title=strictness, x_label="up to step", high=1.0, form="{:.2f}"
                )
                found[f"curriculum/groups_by_{kind}"] = png_map(shares, ends, title=share, x_label="up to step", high=max(shares.values()))
        return found


def strictness_by_intention(groups: Iterable[Group]) -> dict[str, list[float]]:
    """The strictness of these groups, by hidden intention."""
    found: dict[str, list[float]] = {}
    for group in groups:
        found.setdefault(group.intention, []).append(group.strictness)
    return found


def png_map(
    values: Mapping[tuple[str, str], float], columns: Sequence[str], *, title: str, x_label: str, high: float, form: str = "{:.0f}"
) -> bytes:
    """Numbers by row and column as a PNG, dark where they are high."""
    rows = sorted({row for row, _ in values})
    draw = heat_map(values, rows, columns, x_label=x_label, high=high, form=form)
    size = 140.0 + 40.0 * len(columns), 50.0 + 24.0 * len(rows)
    figure = Figure(name="map", title=title, draw=draw, caption="", header=(), rows=(), size=(max(size[0], 320.0), size[1]))
    return figure.render("png")[0]


def evaluation_picture(records: Iterable[Mapping[str, Any]]) -> bytes | None:
    """Held-out score by hidden intention and strictness as a PNG; ERROR dialogues count nowhere. None without any."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.get("outcome") != Outcome.ERROR and "family" in record and "strictness" in record:
            cell = (str(record["family"]).partition("/")[0], f"{record['strictness']:g}")
            found.setdefault(cell, []).append(float(record["emotion"]))
    if not found:
        return None
    means, levels = {cell: fmean(emotions) for cell, emotions in found.items()}, sorted({level for _, level in found}, key=float)
    return png_map(means, levels, title="held-out score by hidden intention", x_label="strictness", high=100.0)


def compared_settings(config: Mapping[str, Any], *, folder: Path, names: Iterable[str] = COMPARED) -> dict[str, bool | float | str]:
    """Those of the named settings that a run has.

    Args:
        config: its `config.yaml`, nested.
        folder: of the run.
    """
    facts = {"arm": folder.absolute().parent.name, "world": recorded_world(config.get(PROVENANCE) or {}, config)}
    found = {name: facts.get(name) or setting(config, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}
