"""Which charts stand on which page of TensorBoard: the first page tells in ten seconds whether a run is healthy.

Every metric has its place. What only some runs measure (a critic, an agent that thinks, a teacher's own figures) gets its chart when the
run first measures it, so that nobody looks at empty frames.

A map of numbers as a PNG, for dashboards that show pictures and no drawings.

A run's TensorBoard: scalars, transcripts and maps as they happen, purged to the step on resume, laid out for this work.

What a dashboard shows besides scalars: maps of what a teacher issued and of held-out scores, and which settings led to which scores.
"""

from __future__ import annotations

import io
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

from analysis.plots import blue
from analysis.runs import PROVENANCE, Group, by_time, setting
from simulator.dialogue import Outcome
from simulator.files import draft_of
from simulator.version import recorded_world


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Some metrics in one frame."""

    title: str
    tags: tuple[str, ...]
    """Regular expressions, each for whole metric keys (docs/metrics.md)."""
    always: bool = True
    """Whether it stands there before anything was measured."""

    def shows(self, keys: Collection[str]) -> bool:
        """Whether one of the keys is drawn in it."""
        return any(re.fullmatch(tag, key) for tag in self.tags for key in keys)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Charts that answer one question."""

    title: str
    charts: tuple[Chart, ...]
    closed: bool = True
    """Whether the reader has to open it."""


def chart(title: str, *tags: str) -> Chart:
    """A chart of the metrics that match."""
    return Chart(title=title, tags=tags)


def sometimes(title: str, *tags: str) -> Chart:
    """A chart of metrics that only some runs have."""
    return Chart(title=title, tags=tags, always=False)


def pages_for(keys: Collection[str]) -> list[Page]:
    """The pages of a run that has measured so much: without the charts that wait for a metric, and without pages left empty."""
    kept = [replace(page, charts=tuple(chart for chart in page.charts if chart.always or chart.shows(keys))) for page in PAGES]
    return [page for page in kept if page.charts]


HEALTH = Page(
    title="Is this run healthy?",
    closed=False,
    charts=(
        chart("Held-out score, 0-100: what it is for (smoothing shows it late)", "eval/during_score"),
        chart("Reward: rises, then levels off", "reward/mean", "reward/success_rate"),
        chart("Reward density: 0 teaches nothing", "curriculum/reward_density", "collapse/reward_density"),
        chart("Policy entropy: falls slowly, never to 0", "actor/entropy"),
        chart("Updates until entropy is spent; empty while it holds", "collapse/updates_to_exhaustion"),
        chart("Share of groups without contrast: should stay low", "curriculum/(zero_variance|all_low|all_high)_share"),
        chart("Difficulty: follows the agent's ability", "curriculum/strictness", "curriculum/level"),
        # Three lines and no band: TensorBoard fits a band's chart to its middle line, and cuts the band off where it leaves the frame.
        chart("Strictness by hidden wish: mildest, mean, strictest", "curriculum/recent/.*"),
        chart("Collapse alarms on: should stay at 0", "collapse/(alarms_on|alarm)"),
    ),
)
"""What the eye should meet first."""

CURRICULUM = Page(
    title="Curriculum",
    charts=(
        chart("Strictness issued", "curriculum/(strictness|strictness_std|level)"),
        chart("Success against its target", "curriculum/(success_share|success_running|target_success|ceiling)"),
        chart("Strictness by what users secretly want: maps are in the images tab", "curriculum/strictness_of/.*"),
        chart("Groups by what users secretly want", "curriculum/groups_of/.*"),
        sometimes("Offset by hidden intention", "curriculum/offset/.*"),
        sometimes("Share of the most practised family", "curriculum/largest_family_share"),
        sometimes("Share that goes back for what was forgotten", "curriculum/replay_share"),
        chart("Groups alike beyond chance: independent siblings give .05 to .23", "curriculum/alike_excess"),
        chart("How much a group differs within", "curriculum/(within_group_std|best_of_k_gain)"),
        chart("Rollouts that count in a group", "curriculum/effective_group_size"),
        chart("Share of the groups that carry a step", "curriculum/groups_effective_share"),
        chart("Share of tasks at the bounds of strictness", "curriculum/at_bounds_share"),
        chart("Outcomes in flight", "curriculum/(outstanding|in_flight_delay)"),
        chart("Outcomes counted", "curriculum/outcomes_.*"),
    ),
)

TEACHER = Page(
    title="The teacher's own figures",
    charts=(
        sometimes("Cells in effect practised", "curriculum/cells_effective"),
        sometimes("SEC: best running advantage", "curriculum/sec_best_q"),
        sometimes("DUMP: fewest rollouts of a cell", "curriculum/dump_least_count"),
        sometimes("VCRL: cells in the bank", "curriculum/vcrl_bank"),
        sometimes("VCRL: share of groups below kappa", "curriculum/vcrl_dropped_share"),
        sometimes("SFL: entries of the buffer", "curriculum/sfl_buffer"),
        sometimes("PLR: cells seen, and the best score", "curriculum/plr_(filled|best_score)"),
        sometimes("TSCL: fastest change of reward", "curriculum/tscl_fastest"),
        sometimes("Learning progress: the greatest", "curriculum/progress_best"),
        sometimes("Staged: stage", "curriculum/staged/stage"),
        sometimes("Staged: success in it", "curriculum/staged/success"),
        sometimes("ADR: walls of the box", "curriculum/adr/(low|high)"),
        sometimes("ADR: size of the box, nats", "curriculum/adr/entropy"),
        sometimes("AdaRFT: target, and share at a bound", "curriculum/adarft/.*"),
        sometimes("RLVE: highest open level", "curriculum/rlve/.*"),
        sometimes("Copy: share of the trace gone through", "curriculum/(yoked|shuffled)/replayed"),
        sometimes("Beta-Thompson: success expected", "curriculum/beta_thompson/success_at_.*"),
        sometimes("Beta-Thompson: spread of families", "curriculum/beta_thompson/offset_std"),
        sometimes("ALP-GMM: absolute progress", "curriculum/alp_gmm/alp"),
        sometimes("ALP-GMM: Gaussians", "curriculum/alp_gmm/num_components"),
        sometimes("Self-paced: mean and width", "curriculum/spdl/(mean|std)"),
        sometimes("Self-paced: nats to the target", "curriculum/spdl/kl_to_target"),
        sometimes("Self-paced: reward expected", "curriculum/spdl/expected_return"),
    ),
)

POLICY = Page(
    title="Policy",
    charts=(
        chart("Policy loss", "actor/pg_loss"),
        chart("Gradient norm before clipping", "actor/grad_norm"),
        chart("Clipped share of tokens", "actor/clip_fraction.*"),
        chart("KL from the policy before the update, nats", "actor/approx_kl"),
        sometimes("KL from the reference, nats", "actor/kl_(loss|reward)"),
        chart("Probability ratio", "actor/ratio_.*"),
        chart("Learning rate", "actor/lr"),
        chart("Weights of KL and of the entropy bonus", "actor/(kl|entropy)_coef"),
        chart("Entropy, exact and sampled, nats", "actor/entropy", "actor/entropy_sampled", "collapse/entropy"),
        chart("Entropy where the policy decides, nats", "actor/entropy_forking"),
        chart("Logprob with advantage: above 0 narrows the policy", "actor/logprob_advantage_cov"),
        chart("Trainer against engine: logprobs, nats", "training/rollout_logprob_abs_diff_.*"),
        chart("Trainer against engine: KL, nats", "training/mismatch_(kl|k1)"),
        chart("Trainer against engine: variance of importance weights", "training/mismatch_chi2"),
        chart("Share of tokens that count under importance weights", "training/effective_share"),
        chart("Updates, and optimiser steps skipped", "training/(policy_version|skipped_steps)"),
        sometimes("Weights that correct for the engine", "training/correction_.*"),
    ),
)

CRITIC = Page(
    title="Critic",
    charts=(
        sometimes("Share of the returns' variance explained", "critic/vf_explained_var"),
        sometimes("Loss", "critic/vf_loss"),
        sometimes("Values", "critic/values/.*", "critic/vpred_mean"),
        sometimes("Returns", "critic/returns/.*"),
        sometimes("Clipped share", "critic/vf_clipfrac"),
        sometimes("Gradient norm before clipping", "critic/grad_norm"),
        sometimes("Learning rate", "critic/lr"),
    ),
)

COLLAPSE = Page(
    title="Signs of collapse",
    charts=(
        chart("Of the start: 1 is unchanged", "collapse/(entropy|reward_density|reply_length|strategy_entropy)_of_start"),
        chart("Entropy's slope, nats per update", "collapse/entropy_slope"),
        chart("Groups alike, smoothed", "collapse/(zero_variance|all_low|all_high)_share"),
        chart("Share of the spread within groups that is gone", "collapse/spread_fall"),
        chart("Gradient above its usual, robust deviations", "collapse/gradient_spike"),
        chart("Fall of the probe panel below its best", "collapse/probe_fall"),
        chart("Distinct word pairs, smoothed", "collapse/distinct_2"),
        chart("Reply length, smoothed, tokens", "collapse/reply_length"),
        chart("Trainer against engine, smoothed, nats", "collapse/mismatch"),
        chart("Headroom: the ceiling less the reward", "collapse/headroom"),
        chart("Does the law of entropy hold? Below .5 hardly", "collapse/law_r_squared"),
    ),
)

ROLLOUTS = Page(
    title="Rollouts",
    charts=(
        chart("Reward, and what users felt: the further above, the more it is gamed", "reward/mean", "reward/emotion"),
        chart("Spread of the reward", "reward/std"),
        chart("Length of a reply, tokens", "response_length/.*"),
        chart("Does length pay? Correlation with reward", "reward/length_correlation"),
        chart("Replies in a dialogue", "num_turns/.*"),
        chart("Repetition: should stay low", "dialogue/repetition", "collapse/repetition"),
        chart("Entropy of all sampled tokens, nats", "rollout/entropy_sampled"),
        chart("Diversity: distinct word pairs", "dialogue/distinct_2"),
        chart("Sameness: self-BLEU, overlap with own earlier replies", "dialogue/(self_bleu_.*|own_overlap)"),
        chart("Sameness: compression", "dialogue/compression_ratio"),
        sometimes("Thinking: tokens of a thought", "rollout/think_tokens"),
        sometimes("Thinking: well formed, cut off", "rollout/(format_ok|think_truncated)"),
    ),
)

SIMULATOR = Page(
    title="Simulated users",
    charts=(
        chart("How dialogues end", "dialogue/(delighted|left|farewell|max_turns|truncated)"),
        chart("Dialogues that broke", "dialogue/error_share"),
        chart("Strategies heard", "dialogue/heard/.*"),
        chart("Strategies: entropy, nats", "dialogue/strategy_entropy"),
        chart("What a strategy tells of the user, nats: 0 is a template", "dialogue/strategy_information/.*"),
        chart("Replies that address whoever plays the user", "simulator/suspicious_share"),
        sometimes("Requests and answers", "simulator/(calls|cache_hits|retries|rate_limited|unusable|failures)"),
        sometimes("Changes cut to 10 points", "simulator/clipped"),
        sometimes("Tokens of requests and answers", "simulator/(prompt|completion)_tokens"),
        sometimes("Cost so far", "simulator/cost"),
    ),
)

EVALUATION = Page(
    title="Evaluation",
    charts=(
        chart("Held-out score, 0-100, on the small grid", "eval/during_score"),
        chart("Held-out score, 0-100, on the full grid: before and after", "eval/full_score"),
        chart("Worst cell: intention x difficulty band", "eval/(full|during)_worst_cell"),
        chart("Share of delighted users", "eval/(full|during)_success_rate"),
        chart("Share of users who left", "eval/(full|during)_failure_rate"),
        sometimes("Area under the score over its own tokens, at the end", "eval/auc"),
        chart("Probe panel: a fall is forgetting", "probe/(reward|reward_.*|repetition)"),
        chart("Probe panel: reward, and the ceiling its entropy allows", "probe/reward", "collapse/ceiling"),
        chart("Probe panel: strictness against reward, must be negative", "probe/strictness_correlation"),
        chart("Probe panel: entropy, nats", "probe/entropy_sampled"),
        chart("Probe panel: share of first replies that fit their own user best", "probe/retrieval_accuracy"),
    ),
)

TIMING = Page(
    title="Timing",
    charts=(
        chart("Seconds of a step", "timing_s/.*"),
        chart("Policy tokens so far", "perf/policy_tokens"),
        chart("Tokens of a batch", "perf/(total|trained)_num_tokens"),
        chart("Tokens sampled per second", "rollout/tokens_per_s"),
        chart("Engines busy, share of the time", "rollout/engine_busy_share"),
        chart("Workers started anew", "rollout/num_restarts"),
        chart("Dialogues lost with a worker, attempts repeated", "rollout/num_(lost|retried)"),
        chart("Dialogues dispatched, in flight", "rollout/num_(dispatched|in_flight)"),
        chart("Age of what is trained on, updates", "off_policy/(mean|max)"),
        chart("Groups dropped as too old", "off_policy/dropped"),
        sometimes("Groups played until enough had contrast, rounds", "rollout/num_(groups|rounds)"),
        sometimes("Seconds paused for users who were away", "simulator/paused_s"),
        chart("Tokens updated on per second", "perf/update_throughput"),
        chart("CPU seconds of an update", "perf/update_cpu_s"),
        chart("Weights arrived: largest difference of logprobs, nats", "rollout/arrival_logprob_diff"),
    ),
)

PAGES = (HEALTH, CURRICULUM, TEACHER, POLICY, CRITIC, COLLAPSE, ROLLOUTS, SIMULATOR, EVALUATION, TIMING)
"""All pages, in order."""


CELL_HEIGHT, MOST_CELL, LEAST_CELL = 26, 38, 14
"""Pixels."""
LEFT, TOP, RIGHT, BOTTOM = 110, 34, 20, 50
"""Margins in pixels; the left one is wider where a row's name needs it."""
COLOURS = 256
"""A map has few besides the soft edges of its letters; a palette of them takes a quarter of the bytes."""
WIDTH = 900
"""Of the map without its margins, at most, where cells may be narrower."""
GROUND, INK, SOFT = "#ffffff", "#1b1f24", "#5c6570"


class Picture(NamedTuple):
    """An image as a dashboard takes it."""

    png: bytes
    width: int
    height: int


def heat_image(
    values: Mapping[tuple[str, str], float],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    x_label: str,
    low: float,
    high: float,
    form: str = "{:.0f}",
) -> Picture:
    """Dark where numbers are high, each with its number where there is room; white where nothing was measured.

    Args:
        values: by row and column.
        low, high: values of the palest and of the darkest colour, low < high.
    """
    wide = max(min(WIDTH // max(len(columns), 1), MOST_CELL), LEAST_CELL)
    font, small = ImageFont.load_default(size=13), ImageFont.load_default(size=11)
    left = max(LEFT, *(math.ceil(font.getlength(row)) + 16 for row in rows))
    size = (left + wide * len(columns) + RIGHT, TOP + CELL_HEIGHT * len(rows) + BOTTOM)
    image = Image.new("RGB", (max(size[0], left + 300), size[1]), GROUND)
    draw = ImageDraw.Draw(image)
    draw.text((left, TOP / 2), title, fill=INK, font=ImageFont.load_default(size=14), anchor="lm")
    for i, row in enumerate(rows):
        middle = TOP + CELL_HEIGHT * (i + 0.5)
        draw.text((left - 8, middle), row, fill=SOFT, font=font, anchor="rm")
        for j, column in enumerate(columns):
            value = values.get((row, column))
            if value is None:
                continue
            share = min(max((value - low) / (high - low), 0.0), 1.0)
            x, y = left + wide * j, TOP + CELL_HEIGHT * i
            draw.rectangle((x, y, x + wide - 2, y + CELL_HEIGHT - 2), fill=blue(share))
            if wide >= 34:
                draw.text((x + wide / 2, middle), form.format(value), fill=GROUND if share > 0.55 else INK, font=small, anchor="mm")
    bottom = TOP + CELL_HEIGHT * len(rows)
    every = -(-44 // wide)
    for j, column in enumerate(columns):
        if j % every == 0:
            draw.text((left + wide * (j + 0.5), bottom + 6), column, fill=SOFT, font=small, anchor="mt")
    draw.text((left + wide * len(columns), bottom + 28), x_label, fill=SOFT, font=small, anchor="rt")
    stream = io.BytesIO()
    image.quantize(COLOURS).save(stream, format="PNG", optimize=True)
    return Picture(stream.getvalue(), *image.size)


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


IMAGE_EVERY = 10
"""Steps between two maps of what was issued."""
RECENT_STEPS = 10
"""Steps whose tasks tell how far hidden intentions lie apart: a single step has hardly a group for each hidden intention."""
NUM_BINS = 10
"""Stretches of a run in a map: the images tab shows it small."""
COMPARED = ("algorithm.kind", "arm", "learner.lr", "seed", "teacher.kind", "teacher.strictness", "teacher.target_success", "world")
"""What may explain a score, few enough to be read beside it; `arm` is the folder that a sweep keeps a run in.

The tab sorts them by name and shows the first five, so these are the ones that differ in most comparisons. A sweep adds its own.
"""
JUDGED_BY = ("eval/full_score", "eval/auc", "eval/full_worst_cell", "eval/full_success_rate", "eval/full_failure_rate")
"""Scalars in the table of settings."""


class TeachingBoard:
    """Gathers what was issued, step by step."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def add(self, step: int, records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Takes in the tasks of a step; returns its scalars by hidden intention, if there were any, and how far these lie apart."""
        issued = [
            Group(step, str(record["family"]), float(record["strictness"]), None)
            for record in records
            if record.get("event") == "task" and "family" in record
        ]
        self.groups += issued
        if not issued:
            return {}
        values: dict[str, float] = {}
        for intention, found in strictness_by_intention(issued).items():
            values |= {f"curriculum/strictness_of/{intention}": fmean(found), f"curriculum/groups_of/{intention}": float(len(found))}
        recent = takewhile(lambda group: group.step > step - RECENT_STEPS, reversed(self.groups))
        means = [fmean(found) for found in strictness_by_intention(recent).values()]
        of_recent = {"mean": fmean(means), "mildest": min(means), "strictest": max(means)}
        return values | {f"curriculum/recent/{name}": value for name, value in of_recent.items()}

    def pictures(self) -> dict[str, Picture]:
        """How strict each hidden intention and each family was practised, and how often, so far; nothing before the first task."""
        if not self.groups:
            return {}
        ends, means, counts = by_time(self.groups, num_bins=NUM_BINS)
        intentions = sorted({intention for intention, _ in means})
        _, by_family, counts_by_family = by_time(self.groups, num_bins=NUM_BINS, of=lambda group: group.family)
        families = sorted({family for family, _ in by_family})
        draw = partial(heat_image, columns=ends, x_label="up to step", low=0.0)
        draw_strictness = partial(draw, high=1.0, form="{:.2f}")

        def draw_shares(counts: Mapping[tuple[str, str], int], rows: Sequence[str], title: str) -> Picture:
            shares = shares_of_groups(counts)
            return draw(shares, rows=rows, title=title, high=max(shares.values()))

        return {
            "curriculum/strictness_by_family": draw_strictness(by_family, rows=families, title="mean strictness issued, by family"),
            "curriculum/groups_by_family": draw_shares(counts_by_family, rows=families, title="share of the groups issued, %, by family"),
            "curriculum/strictness_by_intention": draw_strictness(means, rows=intentions, title="mean strictness issued"),
            "curriculum/groups_by_intention": draw_shares(counts, rows=intentions, title="share of the groups issued, %"),
        }


def shares_of_groups(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    """Percentages of the groups issued up to the same step, by row and step."""
    totals: Counter[str] = Counter()
    for (_, end), num in counts.items():
        totals[end] += num
    return {cell: 100.0 * num / totals[cell[1]] for cell, num in counts.items()}


def strictness_by_intention(groups: Iterable[Group]) -> dict[str, list[float]]:
    """The strictness of these groups, by what their users secretly want."""
    found: dict[str, list[float]] = {}
    for group in groups:
        found.setdefault(group.intention, []).append(group.strictness)
    return found


def evaluation_picture(records: Iterable[Mapping[str, Any]]) -> Picture | None:
    """Held-out score by hidden intention and strictness; ERROR dialogues count nowhere. None without any."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.get("outcome") != Outcome.ERROR and "family" in record and "strictness" in record:
            cell = (str(record["family"]).partition("/")[0], f"{record['strictness']:g}")
            found.setdefault(cell, []).append(float(record["emotion"]))
    if not found:
        return None
    intentions, levels = sorted({intention for intention, _ in found}), sorted({level for _, level in found}, key=float)
    means = {cell: fmean(emotions) for cell, emotions in found.items()}
    title = "held-out score by hidden intention"
    return heat_image(means, intentions, levels, title=title, x_label="strictness", low=0.0, high=100.0)


def compared_settings(config: Mapping[str, Any], *, folder: Path, names: Iterable[str] = COMPARED) -> dict[str, bool | float | str]:
    """Those of the names that a run has.

    Args:
        config: its `config.yaml`, nested.
        folder: of the run.
    """
    facts = {"arm": folder.absolute().parent.name, "world": recorded_world(config.get(PROVENANCE) or {}, config)}
    found = {name: facts.get(name) or setting(config, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}
