"""TensorBoard's own readers must find what the dashboard wrote, and after a resume nothing of what the run unlearned."""

from __future__ import annotations

import re
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from analysis.dashboard import Dashboard
from analysis.layout import HEALTH, PAGES
from analysis.metrics import documented_keys


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return events


def scalars(events: EventAccumulator, tag: str) -> dict[int, float]:
    return {event.step: round(event.value, 6) for event in events.Scalars(tag)}


def write(folder: Path, values: dict[int, float], *, purge_step: int | None = None) -> None:
    dashboard = Dashboard(folder, purge_step=purge_step)
    for step, value in values.items():
        dashboard.scalars(step, {"reward/mean": value})
    dashboard.close()


def test_scalars_come_back_at_their_steps_with_a_wall_time(tmp_path: Path) -> None:
    write(tmp_path, {1: 0.25, 2: 0.5})
    events = read(tmp_path)
    assert scalars(events, "reward/mean") == {1: 0.25, 2: 0.5}
    assert all(event.wall_time > 1.6e9 for event in events.Scalars("reward/mean"))


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.scalars(1, {"actor/entropy": float("nan"), "reward/mean": 0.5})
    dashboard.scalars(2, {"actor/entropy": float("inf")})
    dashboard.close()
    assert read(tmp_path).Tags()["scalars"] == ["reward/mean"]


def test_text_comes_back_as_it_was_written(tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.text("collapse/alarm", 7, "**mismatch**: 難 é")
    dashboard.close()
    (event,) = read(tmp_path).Tensors("collapse/alarm")
    assert event.step == 7
    assert event.tensor_proto.string_val[0].decode() == "**mismatch**: 難 é"


def test_a_resumed_run_voids_the_later_steps_and_keeps_the_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
    write(tmp_path, {3: 0.6}, purge_step=3)
    assert scalars(read(tmp_path), "reward/mean") == {1: 0.1, 2: 0.2, 3: 0.6}


def test_a_run_resumed_from_its_very_start_keeps_nothing_but_its_layout(tmp_path: Path) -> None:
    write(tmp_path, {1: 0.1, 2: 0.2})
    write(tmp_path, {1: 0.5}, purge_step=0)
    events = read(tmp_path)
    assert scalars(events, "reward/mean") == {1: 0.5}
    assert metadata.CONFIG_SUMMARY_TAG in events.Tags()["tensors"]


def test_a_resumed_run_loses_what_it_never_writes_again(tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.text("collapse/alarm", 2, "kept")
    dashboard.text("collapse/alarm", 5, "undone")
    dashboard.close()
    Dashboard(tmp_path, purge_step=3).close()
    assert [event.step for event in read(tmp_path).Tensors("collapse/alarm")] == [2]


def test_a_file_torn_by_a_kill_keeps_its_whole_events(tmp_path: Path) -> None:
    write(tmp_path, {1: 0.1, 2: 0.2})
    (path,) = tmp_path.glob("events.out.tfevents.*")
    path.write_bytes(path.read_bytes()[:-7])
    write(tmp_path, {2: 0.6, 3: 0.7}, purge_step=2)
    assert scalars(read(tmp_path), "reward/mean") == {1: 0.1, 2: 0.6, 3: 0.7}
    assert not list(tmp_path.glob(".*"))


def test_the_layout_opens_on_one_page_about_health(tmp_path: Path) -> None:
    write(tmp_path, {})
    (event,) = read(tmp_path).Tensors(metadata.CONFIG_SUMMARY_TAG)
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [page.title for page in layout.category] == [
        "Is this run healthy?",
        "Curriculum",
        "Policy",
        "Rollouts",
        "Evaluation",
        "Timing",
    ]
    assert [page.closed for page in layout.category] == [False, True, True, True, True, True]


def test_the_health_page_shows_what_tells_a_healthy_run() -> None:
    patterns = [tag for chart in HEALTH.charts for tag in chart.tags]
    for key in (
        "reward/mean",
        "curriculum/reward_density",
        "actor/entropy",
        "curriculum/strictness",
        "curriculum/zero_variance_share",
        "collapse/alarms_on",
        "eval/during_score",
    ):
        assert any(re.fullmatch(pattern, key) for pattern in patterns), key


def test_titles_within_a_page_differ() -> None:
    for page in PAGES:
        assert len({chart.title for chart in page.charts}) == len(page.charts)


def test_every_chart_shows_a_documented_metric() -> None:
    keys = [re.sub(r"<\w+>", "full", key) for key in documented_keys()]
    for page in PAGES:
        for chart in page.charts:
            for tag in chart.tags:
                assert any(re.fullmatch(tag, key) for key in keys), tag
