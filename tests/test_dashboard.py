"""TensorBoard's own readers must find what the dashboard wrote, and after a resume nothing of what the run unlearned."""

from __future__ import annotations

import re
from pathlib import Path

from documented_metrics import documented_keys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata
from tensorboard.plugins.hparams import plugin_data_pb2

from analysis.tensorboard import (
    COMPARED,
    JUDGED_BY,
    PAGES,
    Dashboard,
    TeachingBoard,
    compared_settings,
    evaluation_picture,
    layout,
    png_map,
)


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
    dashboard.text("collapse/alarm", 3, "undone")
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
        *("Is this run healthy?", "Curriculum", "Policy", "Signs of collapse", "Rollouts", "Simulated users", "Evaluation", "Timing"),
    ]
    assert [page.closed for page in layout.category] == [False, *[True] * 7]


def test_the_health_page_shows_what_tells_a_healthy_run() -> None:
    patterns = [tag for _, *tags in (*PAGES[0]["charts"], *PAGES[0]["optional"]) for tag in tags]
    for key in (
        "reward/mean",
        "curriculum/reward_density",
        "actor/entropy",
        "curriculum/strictness",
        "curriculum/entropy_affordable",
        *(f"curriculum/recent/{name}" for name in ("mildest", "mean", "strictest")),
        *(f"curriculum/{name}" for name in ("ease", "explore_share", "entropy_pressure", "entropy_growth", "density_ratio")),
        "curriculum/zero_variance_share",
        "collapse/alarms_on",
        "eval/during_score",
    ):
        assert any(re.fullmatch(pattern, key) for pattern in patterns), key


def test_titles_within_a_page_differ() -> None:
    for page in PAGES:
        titles = [title for title, *_ in (*page.get("charts", ()), *page.get("optional", ()))]
        assert len({*titles}) == len(titles)


def test_every_chart_shows_a_documented_metric_and_every_documented_metric_has_a_place() -> None:
    tags = [tag for page in PAGES for _, *tags in (*page.get("charts", ()), *page.get("optional", ())) for tag in tags]
    keys = [re.sub(r"<\w+>", grid, key) for key in documented_keys() for grid in ("full", "during")]
    assert [tag for tag in tags if not any(re.fullmatch(tag, key) for key in keys)] == []
    assert [key for key in keys if not any(re.fullmatch(tag, key) for tag in tags)] == []


def test_a_chart_that_only_some_runs_have_comes_with_its_metric(tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.scalars(1, {"reward/mean": 0.5})
    dashboard.scalars(2, {"critic/vf_loss": 0.5, "curriculum/rlve/highest_mean": 0.5})
    dashboard.close()
    first, *_, last = read(tmp_path).Tensors(metadata.CONFIG_SUMMARY_TAG)
    before, after = (layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]) for event in (first, last))
    assert "Critic" not in [page.title for page in before.category]
    assert {page.title: [chart.title for chart in page.chart] for page in after.category}["Critic"] == ["Loss"]
    assert "The teacher's own figures" in [page.title for page in after.category]
    assert all(page.chart for page in layout(()).category)


def test_what_was_issued_is_counted_by_hidden_intention() -> None:
    board = TeachingBoard()
    tasks = [("praise/negative", 0.2), ("praise/passive", 0.4), ("advice/negative", 0.9)]
    values = board.add(1, [{"event": "task", "family": family, "strictness": d} for family, d in tasks] + [{"event": "outcome"}])
    assert {key: round(value, 6) for key, value in values.items()} == {
        "curriculum/strictness_of/praise": 0.3,
        "curriculum/strictness_of/advice": 0.9,
        "curriculum/groups_of/praise": 2.0,
        "curriculum/groups_of/advice": 1.0,
        "curriculum/recent/mean": 0.6,
        "curriculum/recent/mildest": 0.3,
        "curriculum/recent/strictest": 0.9,
    }
    pictures = board.pictures()
    assert set(pictures) == {
        f"curriculum/{name}" for name in ("strictness_by_family", "groups_by_family", "strictness_by_intention", "groups_by_intention")
    }
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert TeachingBoard().pictures() == {}


def test_how_far_hidden_intentions_lie_apart_is_told_of_the_last_ten_steps() -> None:
    board = TeachingBoard()
    for step, family, d in (
        (1, "praise/negative", 1.0),
        (2, "praise/passive", 0.1),
        (3, "advice/negative", 0.5),
        (11, "praise/negative", 0.3),
    ):
        values = board.add(step, [{"event": "task", "family": family, "strictness": d}])
    # Step 1 is ten steps back; praise has two tasks left, .1 and .3.
    assert {name: round(values[f"curriculum/recent/{name}"], 6) for name in ("mean", "mildest", "strictest")} == {
        "mean": 0.35,
        "mildest": 0.2,
        "strictest": 0.5,
    }
    assert board.add(12, [{"event": "outcome"}]) == {}


def test_dialogues_that_broke_are_in_no_map_of_scores() -> None:
    line = {"family": "praise/negative", "strictness": 0.5, "emotion": 0.0, "outcome": "error"}
    assert evaluation_picture([line]) is None
    good = {**line, "outcome": "left"}
    assert evaluation_picture([good, {**good, "emotion": 100.0}]) == evaluation_picture([{**good, "emotion": 50.0}, line])


def test_pictures_come_back_as_they_were_written(tmp_path: Path) -> None:
    picture = png_map({("a", "1"): 0.5}, ["1"], title="t", x_label="x", high=1.0)
    dashboard = Dashboard(tmp_path)
    dashboard.image("eval/full_grid", 3, picture)
    dashboard.close()
    (event,) = read(tmp_path).Images("eval/full_grid")
    # 320 x (50 + 24 + a title of 28) pixels of the page, one and a half dots each.
    assert (event.step, event.width, event.height, event.encoded_image_string) == (3, 480, 153, picture)


def test_the_table_of_settings_holds_what_may_explain_a_score(tmp_path: Path) -> None:
    config = {"seed": 3, "teacher": {"kind": "fixed", "strictness": 0.5}, "learner": {"lr": 0.001}, "provenance": {"world_hash": "aaaa"}}
    settings = compared_settings(config, folder=tmp_path / "fixed_0.5" / "seed_3")
    expected = {
        "arm": "fixed_0.5",
        "seed": 3,
        "teacher.kind": "fixed",
        "teacher.strictness": 0.5,
        "learner.lr": 0.001,
        "world": "aaaa",
    }
    assert settings == expected
    dashboard = Dashboard(tmp_path)
    dashboard.settings("made/fixed_0.5/seed_3", settings, columns=COMPARED, metrics=JUDGED_BY)
    dashboard.close()
    content = read(tmp_path).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert start.group_name == "made/fixed_0.5/seed_3"
    assert start.hparams["teacher.strictness"].number_value == 0.5
    assert set(start.hparams) == set(expected) <= set(COMPARED)
