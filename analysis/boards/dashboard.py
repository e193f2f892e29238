"""A run's TensorBoard: scalars, transcripts and maps as they happen, purged to the step on resume, laid out for this work."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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

from analysis.boards.layout import Chart, Page, pages_for
from analysis.drawing.heat_image import Picture
from simulator.files import draft_of

EVENT_FILES = "events.out.tfevents.*"
FLUSH_S = 5
"""A dashboard that is open lags the run by this much; a kill may cost as much of the curves, which are in `metrics.jsonl` anyway."""

COLOUR_CHANNELS = 3


class Dashboard:
    """Writes one file of TensorBoard events.

    Args:
        folder: of the run; made if it is not there.
        purge_step: of a resumed run: this step and later ones are cut out of the folder's earlier files, and readers that had read them
            are told to forget them.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        first_step = purge_step or 0
        if purge_step is not None:
            # Telling is not enough: TensorBoard's fast loader forgets a tag's later steps only when the tag is written again.
            for path in sorted(folder.glob(EVENT_FILES)):
                cut_back(path, purge_step)
        self._folder = folder
        self._writer = EventFileWriter(str(folder), flush_secs=FLUSH_S)
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start))
        self._pages = pages_for(())
        self._keys: set[str] = set()
        self._add(first_step, layout_summary(self._pages))

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

    def _lay_out(self, step: int, keys: set[str]) -> None:
        """Writes the layout again if these keys have charts that are not in it yet; readers take the latest."""
        if keys <= self._keys:
            return
        self._keys |= keys
        pages = pages_for(self._keys)
        if pages != self._pages:
            self._pages = pages
            self._add(step, layout_summary(pages))

    def text(self, tag: str, step: int, text: str) -> None:
        """Markdown for the text tab."""
        self._add(step, text_pb(tag, text))

    def image(self, tag: str, step: int, picture: Picture) -> None:
        """A picture for the images tab."""
        summary = summary_pb2.Summary()
        png = summary_pb2.Summary.Image(
            encoded_image_string=picture.png, width=picture.width, height=picture.height, colorspace=COLOUR_CHANNELS
        )
        summary.value.add(tag=tag, image=png)
        self._add(step, summary)

    def settings(self, name: str, settings: Mapping[str, bool | float | str], *, columns: Sequence[str], metrics: Sequence[str]) -> None:
        """A run's line in the table of the HParams tab.

        Args:
            name: of the line, its own among the runs that are looked at together.
            columns: settings that the table has, the same for all runs.
            metrics: scalars that stand beside them.
        """
        self._add(0, hparams_config_pb(hparams=[HParam(column) for column in columns], metrics=[Metric(tag) for tag in metrics]))
        self._add(0, hparams_pb(dict(settings), trial_id=name))

    def close(self) -> None:
        """Writes what is left; the dashboard is of no use afterwards."""
        self._writer.close()

    def _add(self, step: int, summary: summary_pb2.Summary) -> None:
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))


def cut_back(path: Path, step: int) -> None:
    """Drops the events of this step and later, and a torn end, from a file that nobody writes any more."""
    with draft_of(path) as draft, draft.open("wb") as stream:
        writer = RecordWriter(stream)
        for record in RawEventFileLoader(str(path)).Load():
            event = event_pb2.Event.FromString(record)
            if event.HasField("file_version") or event.step < step:
                writer.write(record)


def layout_summary(pages: Sequence[Page]) -> summary_pb2.Summary:
    """The pages as the custom-scalars plugin reads them; its own writer would ask for TensorFlow."""
    summary = summary_pb2.Summary()
    layout = layout_pb2.Layout(category=[category(page) for page in pages])
    summary.value.add(
        tag=layout_metadata.CONFIG_SUMMARY_TAG,
        metadata=layout_metadata.create_summary_metadata(),
        tensor=tensor_util.make_tensor_proto(layout.SerializeToString(), dtype=np.object_),
    )
    return summary


def category(page: Page) -> layout_pb2.Category:
    """A page as the plugin's message."""
    return layout_pb2.Category(title=page.title, closed=page.closed, chart=[chart_message(chart) for chart in page.charts])


def chart_message(chart: Chart) -> layout_pb2.Chart:
    """A chart as the plugin's message; the plugin matches from the start of a tag, so each expression is closed at its end."""
    return layout_pb2.Chart(title=chart.title, multiline=layout_pb2.MultilineChartContent(tag=[f"^(?:{tag})$" for tag in chart.tags]))
