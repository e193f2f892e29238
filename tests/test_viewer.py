"""The page of all transcripts: what it holds is what was recorded, and nothing in it can break or leave it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from configparser import ConfigParser
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_run import make_run

from analysis.__main__ import main
from analysis.report import write_report
from analysis.runs import read_run
from analysis.text import nth
from analysis.transcripts import AXES, DIALOGUE_FIELDS, TASK_FIELDS, Thinning, kept, pack, records, thinner, transcript, write_transcripts

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("scenario_id", "family", "hidden_intention", "difficulty", "seed", "outcome", "emotion", "error", "turns")
HOSTILE = "</script><script>alert(1)</script><!-- <b onclick=x> & \u2028 \\ \" ' \U0001f600 .  . ."


def unpack(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The dialogues again, as the page's script puts them together; a field that a record did not have is None."""

    def text_at(number: int) -> str:
        return " ".join(data["sentences"][i] for i in data["texts"][number])

    def turn_at(row: list[Any]) -> dict[str, Any]:
        if len(row) <= 2:
            return {"speaker": "agent", "text": text_at(row[0]), **({"thought": text_at(row[1])} if row[1:] else {})}
        said, emotion, change, thought, heard, *steps = row
        felt = {"emotion": emotion, "change": change, "thought": text_at(thought), "heard": data["heard"][heard]}
        felt |= {"steps": [text_at(step) for step in steps[0]]} if steps else {}
        return {"speaker": "user", "text": text_at(said), **{name: value for name, value in felt.items() if value not in (None, "", [])}}

    found = []
    for number, *rest in data["dialogues"]:
        task = data["tasks"][number]
        scenario_id, family, wish = data["scenarios"][task[len(TASK_FIELDS)]]
        found.append(
            {
                **dict(zip(TASK_FIELDS, task, strict=False)),
                **dict(zip(DIALOGUE_FIELDS, rest, strict=False)),
                "scenario_id": scenario_id,
                "family": family,
                "hidden_intention": text_at(wish),
                "difficulty": dict(zip(AXES, task[len(TASK_FIELDS) + 1 :], strict=True)),
                "error": text_at(rest[len(DIALOGUE_FIELDS)]),
                "turns": [turn_at(row) for row in rest[len(DIALOGUE_FIELDS) + 1 :]],
            }
        )
    return found


class Page(HTMLParser):
    """Takes a page apart as a browser does: what stands in script elements, and what would be loaded."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.loads: list[str | None] = []
        self.tags: list[str] = []
        self.words = ""
        self._inside: str | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name == "src" or (name == "href" and tag != "a")]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            attrs, before = self.scripts[-1]
            self.scripts[-1] = (attrs, before + data)
        elif self._inside != "style":
            self.words += data

    def data(self, name: str = "data") -> dict[str, Any]:
        return json.loads(next(text for attrs, text in self.scripts if attrs.get("id") == name))


def shown(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in SHOWN}


def spoil(folder: Path) -> list[dict[str, Any]]:
    """Puts hostile words wherever words can stand."""
    spoiled = []
    for name in ("dialogues.jsonl", "evaluation.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for record in lines:
            record |= {"hidden_intention": HOSTILE, "scenario_id": f"train/{HOSTILE}/x", "error": HOSTILE}
            for turn in record["turns"]:
                turn["text"] = HOSTILE
                if turn["speaker"] == "user":
                    turn |= {"thought": HOSTILE, "heard": [HOSTILE]}
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in lines))
        spoiled += lines
    return spoiled


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "seed0")


@pytest.fixture(scope="module")
def page(run) -> Page:
    return Page(write_transcripts(run))


def test_the_page_holds_every_dialogue_exactly(run, page):
    recorded = list(records(read_run(run)))
    found = unpack(page.data())
    assert len(recorded) == len(found) > 40
    assert [shown(record) for record in found] == [shown(record) for record in recorded]
    for record, again in zip(recorded, found, strict=True):
        assert all(again[name] == record.get(name) for name in ("kind", "step", "uid", "look", "sibling", "mode"))


@pytest.mark.parametrize("last", [0, 20])
def test_training_dialogues_that_are_not_there_are_missed_where_the_run_has_ended(tmp_path, last):
    folder = make_run(tmp_path / "seed0")
    assert "is not shown." not in write_transcripts(folder).read_text(encoding="utf-8")
    lines = (folder / "dialogues.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    cut = [json.dumps({**json.loads(line), "step": last}) + "\n" for line in lines] if last else []
    (folder / "dialogues.jsonl").write_text("".join(cut), encoding="utf-8")
    said = f"dialogues.jsonl ends at step {last} of the 40 that the summary counts: what was said in training after that is not shown."
    assert said in write_transcripts(folder).read_text(encoding="utf-8")


def test_the_page_loads_nothing_and_may_load_nothing(run, page):
    assert page.loads == []
    text = (run / "transcripts.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text and "url(" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_hostile_words_stay_words(tmp_path):
    folder = make_run(tmp_path / "seed0")
    spoiled = spoil(folder)
    page = Page(write_transcripts(folder))
    assert len(page.scripts) == 3 and "alert" not in page.words and "b" not in page.tags
    assert [shown(record) for record in unpack(page.data())] == [shown(record) for record in spoiled]


def test_the_script_puts_words_into_the_page_as_text_alone(page):
    script = page.scripts[-1][1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
    assert "fetch(" not in script and "import(" not in script and "XMLHttpRequest" not in script


def test_every_field_of_the_form_is_used_by_the_script_and_the_other_way_round(run, page):
    text = (run / "transcripts.html").read_text(encoding="utf-8")
    fields = set(re.findall(r'<(?:input|select) id="([\w-]+)"', text))
    script = page.scripts[-1][1]
    asked = set(re.findall(r'(?:at|number|offer)\("([\w-]+)"', script)) | {"kind", "intention", "persona", "outcome"}
    assert fields <= asked
    assert asked <= fields | {"data", "about", "list", "rows", "detail", "filters", "tally"}


def test_what_occurs_again_is_written_once(run):
    data = pack(records(read_run(run)))
    assert len(set(data["sentences"])) == len(data["sentences"])
    assert len(json.dumps(data)) < 0.4 * sum(len(json.dumps(record)) for record in records(read_run(run)))


def test_spaces_and_empty_texts_come_back_as_they_were():
    turns = [{"speaker": "user", "text": text, "emotion": 40} for text in ("", " ", "A.  B. ", ". . .", "a.b. c")]
    record = {"scenario_id": "a/b/c", "family": "advice/negative", "hidden_intention": "x", "seed": 1, "outcome": None, "emotion": 40}
    record |= {"difficulty": {"strictness": 0.1, "reserve": 1 / 3, "impatience": 0.0}, "error": "", "turns": turns, "kind": "train"}
    assert shown(unpack(pack([record]))[0]) == shown(record)


def make_many(folder: Path, *, num_groups: int, num_held_out: int) -> Path:
    """A run of groups of two training dialogues, and held-out users at two looks; each dialogue has words of its own."""
    folder.mkdir()
    (folder / "config.yaml").write_text("experiment: smoke\n")
    (folder / "metrics.jsonl").write_text("")

    def line(number: int, **facts: Any) -> str:
        turn = {"speaker": "user", "text": f"{number} {'word ' * 20}", "emotion": 40}
        record = {"scenario_id": "a/b/c", "family": "advice/negative", "hidden_intention": "x", "seed": number, "outcome": "left"}
        record |= {"difficulty": {"strictness": 0.1, "reserve": 0.0, "impatience": 0.0}, "emotion": 40, "error": "", "turns": [turn]}
        return json.dumps({"step": 1, **facts, **record}) + "\n"

    groups = [line(2 * i + j, uid=f"group{i}", sibling=j, kind="train") for i in range(num_groups) for j in range(2)]
    (folder / "dialogues.jsonl").write_text("".join(groups))
    users = [line(10_000 + i, uid=f"eval:{i}", look=look) for look in range(2) for i in range(num_held_out)]
    (folder / "evaluation.jsonl").write_text("".join(users))
    return folder


def test_a_page_too_large_shows_fewer_training_groups_but_whole_ones_and_says_so(tmp_path):
    folder = make_many(tmp_path / "run", num_groups=100, num_held_out=5)
    page = Page(write_transcripts(folder, max_bytes=12_000))
    found = unpack(page.data())
    groups = [record["uid"] for record in found if record["kind"] == "train"]
    assert 0 < len(groups) < 200 and all(groups.count(uid) == 2 for uid in groups)
    assert sum(record["kind"] == "held-out" for record in found) == 10
    every = int(groups[2].removeprefix("group"))
    assert sorted(set(groups)) == sorted(f"group{i}" for i in range(0, 100, every))
    assert f"of training it shows {nth(every)} group." in page.words


def test_held_out_users_are_thinned_last_and_at_all_looks(tmp_path):
    folder = make_many(tmp_path / "run", num_groups=70, num_held_out=100)
    found = unpack(Page(write_transcripts(folder, max_bytes=6_000)).data())
    held_out = [record["uid"] for record in found if record["kind"] == "held-out"]
    assert 0 < len(held_out) < 200 and all(held_out.count(uid) == 2 for uid in held_out)
    assert {record["uid"] for record in found if record["kind"] == "train"} == {"group0", "group64"}


def test_thinning_keeps_the_order_and_always_goes_on(tmp_path):
    run = read_run(make_many(tmp_path / "run", num_groups=7, num_held_out=3))
    assert [record["uid"] for record in kept(run, Thinning(3, 2))] == [
        *("group0", "group0", "group3", "group3", "group6", "group6"),
        *("eval:0", "eval:2", "eval:0", "eval:2"),
    ]
    assert thinner(Thinning(1, 1), 1.01) == Thinning(2, 1)
    assert thinner(Thinning(4, 1), 2.5) == Thinning(10, 1)
    assert thinner(Thinning(64, 1), 1.2) == Thinning(64, 2)
    assert thinner(Thinning(64, 2), 1.2, in_vain=True) == Thinning(76, 3)


def test_a_page_without_held_out_dialogues_that_is_too_large_is_thinned_to_the_end(tmp_path):
    run = make_many(tmp_path / "run", num_groups=200, num_held_out=0)
    found = unpack(Page(write_transcripts(run, max_bytes=1200)).data())
    assert 1 <= len({record["uid"] for record in found}) <= 3


@pytest.mark.parametrize(("kind", "is_offered"), [("rule", True), ("moody", True), ("llm", False)])
def test_the_command_that_computes_changes_again_is_offered_where_it_can(tmp_path, kind, is_offered):
    folder = make_run(tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config.setdefault("simulator", {})["kind"] = kind
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert Page(write_transcripts(folder)).data("about")["by_rule"] is is_offered


def test_the_five_steps_come_with_the_changes_on_demand(run):
    plain = unpack(Page(write_transcripts(run)).data())
    assert not any("steps" in turn for record in plain for turn in record["turns"])
    found = unpack(Page(write_transcripts(run, steps=True)).data())
    answers = [turn for record in found for turn in record["turns"][1:] if turn["speaker"] == "user"]
    assert answers and all(len(turn["steps"]) == 5 and f"→ {turn['emotion']}" in turn["steps"][-1] for turn in answers)


def test_a_change_that_the_rule_no_longer_gives_is_not_explained(tmp_path):
    folder = make_run(tmp_path / "seed0")
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + "simulator:\n  momentum: 0.9\n")
    answers = [
        turn
        for record in unpack(Page(write_transcripts(folder, steps=True)).data())
        for turn in record["turns"][1:]
        if turn["speaker"] == "user"
    ]
    assert any("steps" in turn for turn in answers) and not all("steps" in turn for turn in answers)


def test_report_and_transcripts_link_to_each_other(tmp_path, capsys):
    folder = make_run(tmp_path / "seed0")
    report = write_report(folder)
    assert "python -m analysis transcripts" in report.read_text(encoding="utf-8")
    assert main(["transcripts", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "transcripts.html")
    assert 'href="transcripts.html"' in report.read_text(encoding="utf-8")
    assert 'href="report.html"' in (folder / "transcripts.html").read_text(encoding="utf-8")


def test_a_report_that_is_there_is_written_again_where_the_settings_are_torn(tmp_path, capsys):
    folder = make_run(tmp_path / "seed0")
    write_report(folder)
    (folder / "config.yaml").write_text("a: [", encoding="utf-8")
    assert main(["transcripts", str(folder)]) == 0
    assert 'href="transcripts.html"' in (folder / "report.html").read_text(encoding="utf-8")


def test_a_run_without_dialogues_or_with_broken_ones_is_refused(tmp_path, capsys):
    folder = make_many(tmp_path / "run", num_groups=0, num_held_out=0)
    complaints = []
    for line in ("", '{"step": 7, "scenario_id": "a/b/c"}\n', '{"step": 1}\nnot JSON\n{"step": 2}\n'):
        (folder / "dialogues.jsonl").write_text(line)
        assert main(["transcripts", str(folder)]) == 2
        complaints.append(capsys.readouterr().err)
    assert "run must have dialogues to show, got none" in complaints[0]
    assert "step 7 must hold dialogues as runs write them, got one without 'family'" in complaints[1]
    assert all(complaint.count("\n") == 1 for complaint in complaints)
    assert main(["transcripts", str(tmp_path / "nowhere")]) == 2
    assert not (folder / "transcripts.html").exists()


def test_the_script_is_part_of_the_package():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for package in ("analysis.agents", "analysis.pages"):
        assert "*.js" in setup["options.package_data"][package].split()


@pytest.mark.parametrize(
    ("num", "words"), [(1, "every"), (2, "every 2nd"), (3, "every 3rd"), (11, "every 11th"), (21, "every 21st"), (64, "every 64th")]
)
def test_ordinals_read_well(num: int, words: str):
    assert nth(num) == words


def test_an_agents_thoughts_are_shown_with_its_words(run):
    record = next(dict(record) for record in records(read_run(run)) if len(record["turns"]) >= 5)
    thoughts = ["first thought. And more.", ""]
    found = unpack(pack([{**record, "thoughts": thoughts}]))[0]
    agents = [turn for turn in found["turns"] if turn["speaker"] == "agent"]
    assert [turn.get("thought", "") for turn in agents[:2]] == thoughts
    assert [turn["text"] for turn in found["turns"]] == [turn["text"] for turn in record["turns"]]
    html = transcript({**record, "thoughts": ["<b>first</b>"]}, "Before")
    assert '<p class="who">agent</p><p class="thought">&lt;b&gt;first&lt;/b&gt;</p>' in html
