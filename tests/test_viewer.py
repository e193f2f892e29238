"""The page of all transcripts: it holds what was recorded, and nothing in it can break or leave it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_run import make_run
from pages import Page, dialogues_on, words_alone  # noqa: F401 (fixtures)

from analysis.__main__ import main
from analysis.page import TEMPLATES
from analysis.report import write_report
from analysis.runs import read_run
from analysis.text import nth
from analysis.transcripts import transcript, write_transcripts

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "</script><script>alert(1)</script><!-- <b onclick=x> & \u2028 \\ \" ' \U0001f600 .  . ."


def about(path: Path) -> dict[str, Any]:
    return json.loads(next(text for attrs, text in Page(path).scripts if attrs.get("id") == "about"))


def recorded(folder: Path) -> list[dict[str, Any]]:
    run = read_run(folder)
    return [{"kind": "train", **record} for record in run.dialogues()] + [{**record, "kind": "held-out"} for record in run.evaluation()]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "seed0")


@pytest.fixture(scope="module")
def written(run) -> Path:
    return write_transcripts(run)


def test_the_page_holds_every_dialogue_exactly(run, written):
    found = dialogues_on(written)
    assert found == recorded(run) and len(found) > 40
    assert [record["kind"] for record in found] == ["train"] * 4 + ["held-out"] * (len(found) - 4)
    assert written.stat().st_size < 0.3 * sum(len(json.dumps(record)) for record in found)


def test_the_page_loads_nothing_and_may_load_nothing(written):
    page = Page(written)
    assert page.loads == [] and "default-src 'none'" in page.text and "url(" not in page.text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.text)
    script = page.scripts[-1][1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
    assert not re.search(r"fetch\(|import\(|XMLHttpRequest", script)


def test_hostile_words_stay_words(tmp_path):
    folder = make_run(tmp_path / "seed0")
    for name in ("dialogues.jsonl", "evaluation.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for record in lines:
            record |= {"hidden_intention": HOSTILE, "scenario_id": f"train/{HOSTILE}/x", "error": HOSTILE}
            for turn in record["turns"]:
                turn |= {"text": HOSTILE, "thought": HOSTILE, "heard": [HOSTILE]}
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in lines))
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"experiment": HOSTILE}), encoding="utf-8")
    path = write_transcripts(folder)
    page = Page(path)
    assert len(page.scripts) == 3 and "onclick=x>" in page.words and "<b onclick" not in page.text and "alert(1)</script>" not in page.text
    assert dialogues_on(path) == recorded(folder)


def test_every_field_of_the_form_is_used_by_the_script_and_the_other_way_round(written):
    fields = set(re.findall(r'<(?:input|select) id="([\w-]+)"', written.read_text(encoding="utf-8")))
    script = (TEMPLATES / "viewer.js").read_text(encoding="utf-8")
    asked = set(re.findall(r'(?:at|number|offer)\("([\w-]+)"', script)) | {"kind", "intention", "persona", "outcome"}
    assert fields <= asked <= fields | {"data", "about", "list", "rows", "detail", "filters", "tally"}


def test_of_many_dialogues_whole_groups_and_users_at_all_evaluations_are_shown(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("experiment: smoke\n")
    (folder / "metrics.jsonl").write_text("")

    def line(**facts: Any) -> str:
        turns = [{"speaker": "user", "text": "word", "emotion": 40}]
        return json.dumps({"step": 1, "family": "advice/negative", "emotion": 40, "outcome": "left", "turns": turns, **facts}) + "\n"

    (folder / "dialogues.jsonl").write_text("".join(line(uid=f"group{i}", sibling=j) for i in range(7) for j in range(2)))
    (folder / "evaluation.jsonl").write_text("".join(line(uid=f"eval:{i}", look=look) for look in range(2) for i in range(4)))
    # 22 dialogues: every third of seven groups, which are followed by four users.
    path = write_transcripts(folder, most=8)
    assert [record["uid"] for record in dialogues_on(path)] == [
        *("group0", "group0", "group3", "group3", "group6", "group6"),
        *("eval:2", "eval:2"),
    ]
    assert "every 3rd group" in Page(path).words
    path = write_transcripts(folder)
    assert len(dialogues_on(path)) == 22 and "group of training" not in Page(path).words


@pytest.mark.parametrize(("kind", "is_offered"), [("rule", True), ("moody", True), ("llm", False)])
def test_the_command_that_explains_changes_is_offered_where_it_can(tmp_path, kind, is_offered):
    folder = make_run(tmp_path / "run", num_steps=8)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config.setdefault("simulator", {})["kind"] = kind
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert about(write_transcripts(folder))["by_rule"] is is_offered


def test_the_five_steps_to_a_change_come_on_demand_where_the_rule_still_gives_it(tmp_path, run, written):
    def answers(path: Path) -> list[dict[str, Any]]:
        return [turn for record in dialogues_on(path) for turn in record["turns"][1:] if turn["speaker"] == "user"]

    assert not any("steps" in turn for turn in answers(written))
    found = answers(write_transcripts(run, steps=True))
    assert found and all(len(turn["steps"]) == 5 and f"→ {turn['emotion']}" in turn["steps"][-1] for turn in found)
    folder = make_run(tmp_path / "seed0")
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + "simulator:\n  momentum: 0.9\n")
    found = answers(write_transcripts(folder, steps=True))
    assert any("steps" in turn for turn in found) and not all("steps" in turn for turn in found)


def test_report_and_transcripts_link_to_each_other(tmp_path, capsys):
    folder = make_run(tmp_path / "seed0", num_steps=8)
    report = write_report(folder)
    assert "python -m analysis transcripts" in Page(report).words
    assert main(["transcripts", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "transcripts.html")
    assert Page(report).links == ["transcripts.html"] and Page(folder / "transcripts.html").links == ["report.html"]


def test_a_run_without_dialogues_is_refused(tmp_path, capsys):
    folder = make_run(tmp_path / "run", num_steps=8, finished=False)
    for name in ("dialogues.jsonl", "evaluation.jsonl"):
        (folder / name).write_text("")
    for path in (folder, tmp_path / "nowhere"):
        assert main(["transcripts", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (folder / "transcripts.html").exists()


def test_ordinals_read_well():
    words = {1: "every", 2: "every 2nd", 3: "every 3rd", 11: "every 11th", 21: "every 21st", 64: "every 64th"}
    assert {num: nth(num) for num in words} == words


def test_an_agents_thoughts_are_shown_with_its_words(run):
    record = next(record for record in read_run(run).dialogues() if len(record["turns"]) >= 5)
    shown = transcript({**record, "thoughts": ["first thought. And more.", ""]}, "Before")
    agents = [turn for turn in shown["turns"] if turn["speaker"] == "agent"]
    assert [turn["thought"] for turn in agents[:2]] == ["first thought. And more.", ""]
    assert [turn["text"] for turn in shown["turns"]] == [turn["text"] for turn in record["turns"]]
