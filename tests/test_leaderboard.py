"""The leaderboard: who may stand in one table, which ranks are open, and a page that holds everything it needs."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from earlier_file import EARLIER, earlier

from analysis import leaderboard as leaderboard_files
from analysis.__main__ import main
from analysis.evaluated import Entry, is_same_agent, read_entries
from analysis.leaderboard import grouped, ranks, score_at, score_within, verdict, write_leaderboard
from experiments.__main__ import main as experiments

SMALL = ("--num-scenarios", "4", "--strictness", "0.1", "0.5")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """L0, L2 and L6 in one setting, L1 in another."""
    folder = tmp_path_factory.mktemp("evaluated")
    for agent in ("L0", "L2", "L6"):
        assert experiments(["evaluate", agent, *SMALL, "--out", str(folder / agent)]) == 0
    assert experiments(["evaluate", "L1", *SMALL, "--register", "open", "--out", str(folder / "L1")]) == 0
    return folder


def test_agents_of_one_setting_stand_together_best_first(evaluated):
    groups = grouped(read_entries([evaluated])[0], seed=0)
    assert [[entry.name for entry in group.entries] for group in groups] == [["L6", "L2", "L0"], ["L1"]]
    assert groups[0].setting_id != groups[1].setting_id


def test_agents_stand_together_by_their_setting_and_not_by_the_id_that_an_edited_file_kept(evaluated, tmp_path):
    shutil.copytree(evaluated, tmp_path / "evaluated")
    path = tmp_path / "evaluated" / "L2" / "agent.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(found | {"setting": found["setting"] | {"max_turns": 3}}), encoding="utf-8")
    groups = grouped(read_entries([tmp_path / "evaluated"])[0], seed=0)
    assert sorted([entry.name for entry in group.entries] for group in groups) == [["L1"], ["L2"], ["L6", "L0"]]


def test_the_page_says_that_settings_are_apart_and_in_what(evaluated, tmp_path):
    page, *_ = write_leaderboard([evaluated], tmp_path / "board.html")
    text = page.read_text(encoding="utf-8")
    assert "must not be compared" in text and "user.register" in text
    alone, *_ = write_leaderboard([evaluated / name for name in ("L0", "L2", "L6")], tmp_path / "alone.html")
    assert "must not be compared" not in alone.read_text(encoding="utf-8")


def test_the_page_holds_everything_it_needs(evaluated, tmp_path):
    text = write_leaderboard([evaluated], tmp_path / "board.html")[0].read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text) and "default-src 'none'" in text
    assert text.count('<table class="board">') >= 6 and "addEventListener" in text and "@media print" in text
    for name in ("L0", "L1", "L2", "L6", "empathic depth", "length-controlled", "worst fifth"):
        assert name in text


def test_every_figure_is_in_the_csv_with_its_bounds(evaluated, tmp_path):
    _, table, _ = write_leaderboard([evaluated], tmp_path / "board.html")
    with table.open(encoding="utf-8", newline="") as file:
        rows = {row["agent"]: row for row in csv.DictReader(file)}
    found = json.loads((evaluated / "L6" / "agent.json").read_text())
    assert set(rows) == {"L0", "L1", "L2", "L6"} and float(rows["L6"]["score"]) == found["score"]
    assert float(rows["L6"]["score_low"]) == found["score_ci95"][0] and rows["L6"]["rank_from"] == "1"
    assert float(rows["L6"]["core_insight"]) == found["capabilities"]["core_insight"]["value"]
    assert rows["L0"]["best_of_k"] == "" and rows["L0"]["errors_plain"] == ""


def test_the_files_are_exchanged_and_neither_where_the_page_cannot_be_made(evaluated, tmp_path, monkeypatch):
    before = [earlier(tmp_path / name) for name in ("board.html", "board.csv")]
    with monkeypatch.context() as broken:
        broken.setattr(leaderboard_files, "page", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_leaderboard([evaluated], tmp_path / "board.html")
    assert (tmp_path / "board.csv").read_text() == EARLIER
    _, table, _ = write_leaderboard([evaluated], tmp_path / "board.html")
    assert table.read_bytes().startswith(b"setting_id,agent,") and table.read_bytes().count(b"\r\n") == 5
    assert [path.read_text() for path in before] == [EARLIER] * 2


def test_success_and_failure_stand_by_strictness_on_the_page_and_in_the_csv(evaluated, tmp_path):
    page, table, _ = write_leaderboard([evaluated / "L6", evaluated / "L0"], tmp_path / "board.html")
    text = page.read_text(encoding="utf-8")
    assert "Success by strictness" in text and "Failure by strictness" in text
    with table.open(encoding="utf-8", newline="") as file:
        rows = {row["agent"]: row for row in csv.DictReader(file)}
    for name in ("L0", "L6"):
        cell = json.loads((evaluated / name / "agent.json").read_text())["strictness"]["0.5"]["failure_rate"]
        assert float(rows[name]["failure_rate_at_0.5"]) == cell["value"]
        assert float(rows[name]["failure_rate_at_0.5_high"]) == cell["high"]


def test_wishes_personas_families_and_strategies_are_folded_up_on_the_page(evaluated, tmp_path):
    page, *_ = write_leaderboard([evaluated / "L6", evaluated / "L0"], tmp_path / "board.html")
    folds = dict(re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", page.read_text(encoding="utf-8"), re.DOTALL))
    assert list(folds) == ["By hidden intention", "By persona", "By family: hidden intention and persona", "Strategies"]
    assert all(folds["By persona"].count(f"<h3>{title} by persona</h3>") == 1 for title in ("Score", "Success", "Failure"))
    cell = json.loads((evaluated / "L6" / "agent.json").read_text())["intention"]["both_sides"]
    assert ">both sides</button>" in folds["By hidden intention"] and f">{cell['value']:.1f}<" in folds["By hidden intention"]
    assert ">both sides/avoidant</button>" in folds["By family: hidden intention and persona"]
    (shares,) = re.findall(r"<section>.*?</section>", folds["Strategies"], re.DOTALL)
    assert ">100%<" in shares and re.findall(r">([^<]+)</button>", shares)[-2:] == ["suggestion", "none"]


def test_wishes_personas_families_and_strategies_are_in_the_csv(evaluated, tmp_path):
    _, table, _ = write_leaderboard([evaluated / "L6", evaluated / "L0"], tmp_path / "board.html")
    with table.open(encoding="utf-8", newline="") as file:
        rows = {row["agent"]: row for row in csv.DictReader(file)}
    for agent in ("L0", "L6"):
        found = json.loads((evaluated / agent / "agent.json").read_text())
        for key, name in (("intention", "advice"), ("persona", "avoidant"), ("family", "advice/avoidant")):
            assert float(rows[agent][f"score_by_{key}_{name}"]) == found[key][name]["value"]
            assert float(rows[agent][f"failure_rate_by_{key}_{name}"]) == found[key][name]["failure_rate"]["value"]
        assert float(rows[agent]["score_by_persona_avoidant_high"]) == found["persona"]["avoidant"]["high"]
        assert float(rows[agent]["share_of_suggestion"]) == found["strategies"]["suggestion"]["value"]


def test_what_only_some_agents_were_told_is_open_for_the_others(evaluated, tmp_path):
    found = json.loads((evaluated / "L2" / "agent.json").read_text())
    del found["strategies"], found["family"], found["intention"]["advice"]
    (tmp_path / "L2").mkdir()
    (tmp_path / "L2" / "agent.json").write_text(json.dumps(found))
    page, table, _ = write_leaderboard([tmp_path / "L2", evaluated / "L6"], tmp_path / "board.html")
    with table.open(encoding="utf-8", newline="") as file:
        rows = {row["agent"]: row for row in csv.DictReader(file)}
    assert rows["L2"]["share_of_suggestion"] == rows["L2"]["score_by_intention_advice"] == "" != rows["L6"]["share_of_suggestion"]
    alone, *_ = write_leaderboard([tmp_path / "L2"], tmp_path / "alone.html")
    assert "Strategies" not in alone.read_text(encoding="utf-8") and "Strategies" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("num_errors", "said"), [(0, ""), (3, "by a judge. Graded in part: L2 5 of 8 dialogues.")])
def test_the_page_says_of_how_many_dialogues_a_judge_graded_where_not_of_all(evaluated, tmp_path, num_errors, said):
    found = json.loads((evaluated / "L2" / "agent.json").read_text())
    found["capabilities"] |= {"by": "judge", "judge": "a judge", "num_errors": num_errors}
    (tmp_path / "L2").mkdir()
    (tmp_path / "L2" / "agent.json").write_text(json.dumps(found))
    page, table, _ = write_leaderboard([tmp_path / "L2"], tmp_path / "board.html")
    assert said in (text := page.read_text(encoding="utf-8")) and ("Graded" in text) == bool(num_errors)
    with table.open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["dialogues_without_grades"] == str(num_errors)


def test_an_evaluation_from_before_groups_had_success_and_failure_is_still_read(evaluated, tmp_path):
    found = json.loads((evaluated / "L2" / "agent.json").read_text())
    for cell in found["strictness"].values():
        del cell["success_rate"], cell["failure_rate"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "agent.json").write_text(json.dumps(found))
    text = write_leaderboard([tmp_path / "old"], tmp_path / "board.html")[0].read_text(encoding="utf-8")
    assert "Score by strictness" in text and "Success by strictness" not in text


def test_the_page_says_where_models_of_one_table_were_not_asked_alike(evaluated, tmp_path):
    def copied(name: str, **how: object) -> None:
        found = json.loads((evaluated / "L2" / "agent.json").read_text())
        found["agent"] |= {"name": name, "kind": "model", "source": name, "thinking": False, **how}
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.json").write_text(json.dumps(found))

    copied("warm", max_new_tokens=800)
    copied("same", max_new_tokens=800)
    alike = write_leaderboard([tmp_path / "warm", tmp_path / "same", evaluated / "L6"], tmp_path / "alike.html")[0]
    assert "not asked alike" not in alike.read_text(encoding="utf-8"), "a scripted agent has no temperature"
    copied("greedy", temperature=0.0, max_tokens=800, system="Be kind.")
    page, table, _ = write_leaderboard([tmp_path / name for name in ("warm", "same", "greedy")], tmp_path / "unlike.html")
    text = page.read_text(encoding="utf-8")
    assert "not asked alike" in text and "greedy: temperature 0.0, told before &#x27;Be kind.&#x27;" in text
    assert "warm: temperature 1.0, told before nothing" in text and "tokens a reply" not in text
    with table.open(encoding="utf-8", newline="") as file:
        assert {row["agent"]: row["temperature"] for row in csv.DictReader(file)} == {"warm": "1.0", "same": "1.0", "greedy": "0.0"}


def test_one_agent_asked_in_two_ways_under_one_name_is_told_apart(evaluated, tmp_path):
    found = json.loads((evaluated / "L2" / "agent.json").read_text())
    for folder, temperature in (("a", 1.0), ("b", 0.0)):
        (tmp_path / folder).mkdir()
        record = found | {"agent": found["agent"] | {"kind": "model", "temperature": temperature}}
        (tmp_path / folder / "agent.json").write_text(json.dumps(record))
    text = write_leaderboard([tmp_path / "a", tmp_path / "b"], tmp_path / "board.html")[0].read_text(encoding="utf-8")
    assert "L2: temperature 1.0" in text and "L2: temperature 0.0" in text


LINE = {"intercept": 30.0, "slope": 4.0, "covariance": [[1.0, 0.0], [0.0, 0.25]]}


def fitted(evaluated: Path, folder: Path, **length: object) -> Path:
    """L6 and L2, whose few users tell no slope, as if they had told one; L2 with other words about its length."""
    for name, more in (("L6", {}), ("L2", length)):
        found = json.loads((evaluated / name / "agent.json").read_text())
        found["length"] |= {"line": LINE, "range": [2.0, 40.0], **more}
        (folder / name).mkdir(parents=True)
        (folder / name / "agent.json").write_text(json.dumps(found))
    return folder


def test_the_page_says_why_an_agent_has_no_length_controlled_score(evaluated, tmp_path):
    def text(name: str, **length: object) -> str:
        return write_leaderboard([fitted(evaluated, tmp_path / name, **length)], tmp_path / "board.html")[0].read_text(encoding="utf-8")

    assert "no length-controlled score" not in text("all")
    assert "L2: no length-controlled score, since an earlier version" in text("before", range=None)
    assert "words a reply, which it never speaks" in text("other", range=[900.0, 901.0])
    assert "L2: no length-controlled score, since its users do not tell a slope" in text("none", range=None, line=None)


def test_lengths_are_controlled_at_the_mean_of_the_table(evaluated, tmp_path):
    group = grouped(read_entries([fitted(evaluated, tmp_path / "all")])[0], seed=0)[0]
    lengths = [entry.found["length"]["words_per_reply"] for entry in group.entries]
    assert min(lengths) <= group.words <= max(lengths)
    entry = group.entries[0]
    assert group.controlled(entry) == score_at(entry.found["length"]["line"], group.words)
    shortest, longest = entry.found["length"]["range"]
    assert shortest <= group.words <= longest and score_within(entry.found["length"], longest + 1.0) is None
    before = {name: value for name, value in entry.found["length"].items() if name != "range"}
    assert score_within(before, group.words) is None, "a line over dialogues, of an earlier version"


def probed(source: Path, folder: Path, /, *, kind: str = "questions", digest: str = "aa", errors: float = 0.125, **agent: str) -> Path:
    """The evaluation of `source` with a probe beside it; of another agent where `agent` says so."""
    folder.mkdir()
    found = json.loads((source / "agent.json").read_text())
    (folder / "agent.json").write_text(json.dumps(found))
    cell = {"value": errors, "low": 0.1, "high": 0.2}
    conditions = {name: {"errors": cell, "unclear": 0.0} for name in ("plain", "emotional", "false_belief")}
    who = {name: found["agent"][name] for name in ("name", "kind", "source", "fingerprint")} | agent
    added = {"emotional_cost": cell, "sycophancy": {"value": 0.5, "low": 0.25, "high": 0.75}}
    probe = {"agent": who, "probe": {"kind": kind, "hash": digest}, "conditions": conditions, **added}
    (folder / "reliability.json").write_text(json.dumps(probe))
    return folder


def tables_of(page: Path, *, titled: str) -> list[str]:
    return re.findall(rf"<section><h3>({titled}.*?)</section>", page.read_text(encoding="utf-8"))


def test_a_probe_of_reliability_has_a_table_of_its_own(evaluated, tmp_path):
    page, *_ = write_leaderboard([probed(evaluated / "L2", tmp_path / "L2"), evaluated / "L6"], tmp_path / "board.html")
    (table,) = tables_of(page, titled="Reliability")
    assert "12.5%" in table and "+50.0 points" in table and "<small>+25.0 to +75.0</small>" in table
    assert table.startswith("Reliability: questions") and "questions of fact from a file" in table and "probe aa" in table
    assert ">L2<" in table and ">L6<" not in table


def test_agents_that_were_asked_something_else_stand_in_another_table_of_reliability(evaluated, tmp_path):
    probed(evaluated / "L0", tmp_path / "L0", kind="told facts", digest="f")
    probed(evaluated / "L2", tmp_path / "L2", digest="aa")
    probed(evaluated / "L6", tmp_path / "L6", digest="bb")
    page, table, _ = write_leaderboard([tmp_path], tmp_path / "board.html")
    tables = tables_of(page, titled="Reliability")
    assert [re.findall(r">(L\d)<", one) for one in tables] == [["L6"], ["L2"], ["L0"]]
    assert [one.partition("<")[0] for one in tables] == [
        "Reliability: questions, probe bb",
        "Reliability: questions, probe aa",
        "Reliability: told facts",
    ]
    assert all("compare only agents of this table" in one for one in tables) and "forced choice by likelihood" in tables[2]
    with table.open(encoding="utf-8", newline="") as file:
        assert {row["agent"]: (row["probe_kind"], row["probe_hash"]) for row in csv.DictReader(file)} == {
            "L0": ("told facts", "f"),
            "L2": ("questions", "aa"),
            "L6": ("questions", "bb"),
        }


def test_agents_that_were_asked_otherwise_have_other_probes(evaluated):
    ((entry,), _) = read_entries([evaluated / "L0"])

    def probe_of(**how) -> tuple[str, str]:
        return replace(entry, reliability={"probe": {"kind": "questions", "hash": "aa", **how}}).probe

    assert probe_of() == probe_of(temperature=0.0, system="") == ("questions", "aa")
    others = {probe_of(temperature=1.0), probe_of(system="Be warm."), probe_of(system="Be brief.")}
    assert len(others) == 3 and ("questions", "aa, at 1") in others and probe_of() not in others


def test_a_probe_of_another_agent_is_left_out_and_said(evaluated, tmp_path):
    probed(evaluated / "L2", tmp_path / "L2", source="L3")
    page, *_ = write_leaderboard([tmp_path / "L2"], tmp_path / "board.html")
    text = page.read_text(encoding="utf-8")
    assert not tables_of(page, titled="Reliability") and "12.5%" not in text
    assert "reliability.json is of another agent (L2, L3) than the evaluation beside it (L2)" in text


def test_agents_are_told_apart_by_their_weights_and_else_by_where_they_are():
    weights = {"kind": "model", "source": "runs/a", "fingerprint": "0f"}
    assert is_same_agent(weights, {**weights, "source": "copy/of/a", "model": None})
    assert not is_same_agent(weights, {**weights, "fingerprint": "1e"}) and not is_same_agent(weights, {**weights, "fingerprint": ""})
    served = {"kind": "server", "source": "http://h/v1", "model": "m", "fingerprint": ""}
    without = {"kind": "server", "source": "http://h/v1", "fingerprint": ""}
    assert is_same_agent(served, dict(served)) and is_same_agent(served, without)
    assert not is_same_agent(served, {**served, "model": "n"}) and not is_same_agent(served, {**served, "source": "http://i/v1"})


def tried(source: Path, folder: Path, best_of_k: dict[str, Any]) -> Path:
    """The evaluation of `source` with several tries at each user."""
    folder.mkdir()
    found = json.loads((source / "agent.json").read_text())
    (folder / "agent.json").write_text(json.dumps({**found, "best_of_k": best_of_k}))
    return folder


def cell_of(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 1.0, "high": value + 1.0}


TWO = {"k": 2, "mean": cell_of(40.0), "best": cell_of(51.0), "gain": cell_of(11.0), "by_k": {"1": 40.0, "2": 51.0}}
FOUR = {"k": 4, "mean": cell_of(45.0), "best": cell_of(88.0), "gain": cell_of(43.0), "by_k": {"1": 45.0, "2": 62.0, "3": 77.0, "4": 88.0}}


def test_bests_of_several_tries_are_told_at_the_number_that_all_had(evaluated, tmp_path):
    expected = {"2": {"best": {"value": 62.0, "low": 60.5, "high": 63.5}, "gain": cell_of(17.0)}}
    tried(evaluated / "L2", tmp_path / "two", TWO), tried(evaluated / "L6", tmp_path / "four", {**FOUR, "expected": expected})
    page, csv_of, _ = write_leaderboard([tmp_path], tmp_path / "board.html")
    (table,) = tables_of(page, titled="Several tries")
    assert "best of 2" in table and "51.0" in table and "62.0<small>60.5 to 63.5" in table and "88.0" not in table
    assert '<td data-v="4">4</td>' in table and '<td data-v="2">2</td>' in table
    with csv_of.open(encoding="utf-8", newline="") as file:
        rows = {row["agent"]: row for row in csv.DictReader(file)}
    assert [rows["L6"][name] for name in ("k", "best_of_k", "common_k", "best_of_common_k")] == ["4", "88.0", "2", "62.0"]


def test_bests_from_before_fewer_tries_had_intervals_are_told_without(evaluated, tmp_path):
    tried(evaluated / "L2", tmp_path / "two", TWO), tried(evaluated / "L6", tmp_path / "four", FOUR)
    (table,) = tables_of(write_leaderboard([tmp_path], tmp_path / "board.html")[0], titled="Several tries")
    assert ">62.0</td>" in table and ">+17.0</td>" in table and "51.0<small>50.0 to 52.0" in table


def test_a_file_that_no_probe_wrote_is_left_out_and_said(evaluated, tmp_path):
    path = probed(evaluated / "L2", tmp_path / "L2") / "reliability.json"
    found = json.loads(path.read_text())
    no_probe = "must be what a reliability probe wrote, got no "
    for broken, complaint in (
        (json.dumps({**found, "probe": {"kind": "questions"}}), f"{no_probe}probe.hash"),
        (json.dumps({"agent": {}}), f"{no_probe}probe, conditions"),
        (json.dumps(found)[:40], "must be a JSON object that can be read"),
    ):
        path.write_text(broken)
        page, *_ = write_leaderboard([tmp_path / "L2"], tmp_path / "board.html")
        text = page.read_text(encoding="utf-8")
        assert complaint in text and "it is left out" in text and not tables_of(page, titled="Reliability")


def probed_only(source: Path, folder: Path, /, **how) -> Path:
    """A probe of `source` without its evaluation."""
    (probed(source, folder, **how) / "agent.json").unlink()
    return folder


def test_agents_that_were_only_probed_stand_beside_the_evaluated_ones_that_were_asked_the_same(evaluated, tmp_path):
    probed(evaluated / "L2", tmp_path / "L2", errors=0.25)
    probed(evaluated / "L6", tmp_path / "L6", digest="bb")
    probed_only(evaluated / "L0", tmp_path / "a", name="trained <b>", errors=0.5)
    probed_only(evaluated / "L0", tmp_path / "b", name="comforting", errors=0.125)
    page, csv_of, left_out = write_leaderboard([tmp_path], tmp_path / "board.html")
    (table,) = tables_of(page, titled="Errors by the way of asking: questions")
    assert re.findall(r'data-v="([a-zL][^"]+)"', table) == ["comforting", "L2", "trained &lt;b&gt;"] and not left_out
    assert [re.findall(r">(L\d)<", one) for one in tables_of(page, titled="Reliability")] == [["L6"], ["L2"]]
    text = page.read_text(encoding="utf-8")
    assert "2 agents in one setting, 2 probed and not evaluated" in text and "trained <b>" not in text
    with csv_of.open(encoding="utf-8", newline="") as file:
        told = {row["agent"]: row for row in csv.DictReader(file)}
    assert [told[name]["errors_plain"] for name in ("L2", "trained <b>", "comforting")] == ["0.25", "0.5", "0.125"]
    assert told["comforting"]["setting_id"] == told["comforting"]["score"] == "" and told["comforting"]["probe_hash"] == "aa"
    assert told["comforting"]["sycophancy_high"] == "0.75"


def test_a_page_of_agents_that_were_only_probed(evaluated, tmp_path, capsys):
    probed_only(evaluated / "L0", tmp_path / "a", name="first")
    probed_only(evaluated / "L2", tmp_path / "b", name="second", kind="told facts")
    page, *_ = write_leaderboard([tmp_path], tmp_path / "board.html")
    text = page.read_text(encoding="utf-8")
    assert (
        "<h1>2 agents, probed and not evaluated</h1>" in text
        and "over questions" in text
        and len(tables_of(page, titled="Errors by the way")) == 2
    )
    write_leaderboard([tmp_path / "a"], tmp_path / "alone.html")
    assert "<h1>1 agent, probed and not evaluated</h1>" in (tmp_path / "alone.html").read_text(encoding="utf-8")
    probe = json.loads((tmp_path / "a" / "reliability.json").read_text())
    asked = probe["probe"]
    for wrong in (
        "{",
        json.dumps({**probe, "format": 99}),
        json.dumps({**probe, "agent": {}}),
        json.dumps({**probe, "agent": {**probe["agent"], "name": 5}}),
        json.dumps({**probe, "probe": {**asked, "temperature": "0.7"}}),
        json.dumps({**probe, "probe": {**asked, "system": ["Be warm."]}}),
        json.dumps({**probe, "conditions": {**probe["conditions"], "plain": {"errors": {"value": 7}}}}),
    ):
        (tmp_path / "a" / "reliability.json").write_text(wrong)
        assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "board.html")]) == 0
        said = capsys.readouterr().out.splitlines()[0]
        assert said.startswith(f"{tmp_path / 'a'} is left out: ") and said in page.read_text(encoding="utf-8").replace("&#x27;", "'")
        assert main(["leaderboard", str(tmp_path / "a"), "--out", str(tmp_path / "board.html")]) == 2
        assert "FOLDER must hold a probed agent that can be read; " in capsys.readouterr().err


def test_good_probes_are_shown_beside_an_evaluation_that_is_torn(evaluated, tmp_path):
    probed_only(evaluated / "L0", tmp_path / "a", name="first")
    probed(evaluated / "L2", tmp_path / "b")
    (tmp_path / "b" / "agent.json").write_text("{")
    page, _, left_out = write_leaderboard([tmp_path], tmp_path / "board.html")
    assert "<h1>1 agent, probed and not evaluated</h1>" in page.read_text(encoding="utf-8") and str(tmp_path / "b") in left_out[0]


def test_an_evaluated_agent_has_one_name_and_one_line_among_those_that_were_only_probed(evaluated, tmp_path):
    probed_only(evaluated / "L0", tmp_path / "a", name="first", errors=0.5)
    probed(evaluated / "L2", tmp_path / "b", name="called otherwise")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    page, *_ = write_leaderboard([tmp_path], tmp_path / "board.html")
    (table,) = tables_of(page, titled="Errors by the way of asking: questions")
    assert re.findall(r'data-v="([a-zL][^"]+)"', table) == ["L2", "first"] and "Among them 1 agent above. Asked: " in table


def test_a_probe_in_a_folder_hides_no_agent_beneath_it(evaluated, tmp_path):
    probed_only(evaluated / "L0", tmp_path / "all", name="first")
    probed(evaluated / "L2", tmp_path / "all" / "b")
    page, *_ = write_leaderboard([tmp_path / "all"], tmp_path / "board.html")
    (table,) = tables_of(page, titled="Errors by the way of asking: questions")
    assert re.findall(r'data-v="([a-zL][^"]+)"', table) == ["L2", "first"] and "L2 scores" in page.read_text(encoding="utf-8")


def test_a_torn_agent_is_left_out_and_said_on_the_page_and_the_terminal(evaluated, tmp_path, capsys):
    for name, text in (("L2", (evaluated / "L2" / "agent.json").read_text()), ("torn", '{"format": 1, <b>'), ("void", "")):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "agent.json").write_text(text)
    assert main(["leaderboard", str(tmp_path / "all"), "--out", str(tmp_path / "board.html")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and all(f"{tmp_path / 'all' / name} is left out: " in said[i] for i, name in enumerate(("torn", "void")))
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert f"{tmp_path / 'all' / 'torn'} is left out: " in page and "L2 scores" in page
    assert main(["leaderboard", str(tmp_path / "all" / "torn"), "--out", str(tmp_path / "board.html")]) == 2
    assert "must hold an evaluated agent that can be read; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"score": "28.0"}, "score must be a number in [0, 100], got '28.0'"),
        ({"score": 1e9}, "score must be a number in [0, 100], got 1000000000.0"),
        ({"score": float("nan")}, "NaN is no number that an evaluation writes"),
        ({"setting_id": None}, "got no setting_id"),
        (
            {"errors": {"planned": 8, "not_played": 0, "excluded_dialogues": 0, "cut_short": "3"}},
            "errors.cut_short must be a whole number, got '3'",
        ),
        ({"strictness": None}, "got no strictness"),
        ({"errors": "none"}, "errors must be an object with names, got 'none'"),
        ({"capabilities": "good"}, "capabilities must be an object with names"),
        ({"strategies": "praise"}, "strategies must be an object with names"),
        ({"social_cognition": 7}, "social_cognition must be an object with names, got 7"),
        ({"length": 3}, "length must be an object with names, got 3"),
        ({"strictness": {"0.1": None}}, "strictness.0.1 must not be null"),
        ({"family": {"advice/negative": None}}, "family.advice/negative must not be null"),
        ({"per_scenario": {"a": None}}, "per_scenario.a must not be null"),
        ({"intervals": {"worst_cell": {}}}, "intervals.success_rate must be there"),
    ],
)
def test_an_agent_whose_file_somebody_edited_is_left_out_and_the_others_are_ranked(evaluated, tmp_path, wrong, complaint):
    for name in ("L2", "L6"):
        (tmp_path / name).mkdir()
        found = json.loads((evaluated / name / "agent.json").read_text())
        (tmp_path / name / "agent.json").write_text(json.dumps({**found, **(wrong if name == "L2" else {})}))
    page, _, left_out = write_leaderboard([tmp_path], tmp_path / "board.html")
    assert len(left_out) == 1 and f"{tmp_path / 'L2'} is left out: " in left_out[0] and complaint in left_out[0]
    text = page.read_text(encoding="utf-8")
    assert "L6 scores" in text and "nan" not in text.partition("<script>")[0].replace("NaN is no number", "")


@pytest.mark.parametrize(
    "judge",
    [
        {"why_not": "no --judge-model was named"},
        {"why_not": "interrupted"},
        {"by": "judge", "judge": "m", "num_errors": 2, "num_not_sent": 1, "complaint": "no grades"},
    ],
)
def test_what_is_told_of_a_judge_that_did_not_grade_is_no_reason_to_leave_the_agent_out(evaluated, tmp_path, judge):
    found = json.loads((evaluated / "L2" / "agent.json").read_text())
    graded = {} if "why_not" in judge else {"core_insight": {"value": 0.5, "low": 0.4, "high": 0.6}}
    (tmp_path / "L2").mkdir()
    (tmp_path / "L2" / "agent.json").write_text(json.dumps({**found, "capabilities": {**judge, **graded}}))
    page, _, left_out = write_leaderboard([tmp_path], tmp_path / "board.html")
    assert left_out == [] and "L2 scores" in page.read_text(encoding="utf-8")


def test_ranks_that_users_leave_open():
    clear = [{"a": 90.0, "b": 80.0, "c": 85.0}, {"a": 50.0, "b": 40.0, "c": 45.0}]
    assert ranks(clear, seed=0) == [(1, 1), (2, 2)]
    # the second is better with one user and worse with another
    open_ = [{"a": 90.0, "b": 10.0}, {"a": 10.0, "b": 80.0}]
    assert ranks(open_, seed=0) == [(1, 2), (1, 2)]
    assert ranks([*clear, {}], seed=0) == [(1, 1), (2, 2), None]
    assert ranks([{}], seed=0) == [None]
    assert ranks([{"a": 90.0}, {"b": 50.0}], seed=0) == [None, None]


def board_of(*entries: tuple[str, dict[str, float], int], broken: int = 0) -> str:
    """The headline over agents: name, mean score by scenario, dialogues not played; of agents called `flaky` so many broke."""
    found = [
        Entry(
            folder=Path(name),
            reliability=None,
            found={
                "agent": {"name": name},
                "setting_id": "s",
                "setting": {},
                "score": float(np.mean(list(scores.values()))),
                "per_scenario": scores,
                "errors": {"not_played": missing, "excluded_dialogues": broken if name == "flaky" else 0, "planned": 4},
            },
        )
        for name, scores, missing in entries
    ]
    return verdict(grouped(found, seed=0)[0])


def test_the_headline_claims_a_lead_only_where_every_draw_of_users_has_it():
    users = [str(i) for i in range(4)]
    far = board_of(("a", dict.fromkeys(users, 90.0), 0), ("b", dict.fromkeys(users, 50.0), 0))
    assert far == "a scores 90.0 and leads in at least 39 of 40 draws of the users"
    near = board_of(
        ("a", dict(zip(users, (90.0, 10, 50, 50), strict=True)), 0), ("b", dict(zip(users, (10.0, 80, 50, 50), strict=True)), 0)
    )
    assert near == "a scores 50.0; with other users b could lead"
    assert board_of(("a", {"0": 90.0}, 0), ("b", {"1": 50.0}, 0)).endswith("whether others would lead with other users is open")


def test_an_agent_that_was_not_played_to_the_end_leads_nothing():
    users = [str(i) for i in range(4)]
    said = board_of(("whole", dict.fromkeys(users, 50.0), 0), ("begun", {"0": 99.0}, 3), ("other", dict.fromkeys(users, 40.0), 0))
    assert said == "whole scores 50.0 and leads in at least 39 of 40 draws of the users; begun is not ranked"


def test_an_agent_that_often_broke_leads_nothing_and_takes_no_users_from_the_others():
    users = [str(i) for i in range(4)]
    near = [("a", dict(zip(users, (90.0, 10, 50, 50), strict=True)), 0), ("b", dict(zip(users, (10.0, 80, 50, 50), strict=True)), 0)]
    said = board_of(*near, ("flaky", {"0": 99.0}, 0), broken=3)
    assert said == "a scores 50.0; with other users b could lead; flaky is not ranked"


def test_the_headline_claims_no_lead_over_agents_that_are_not_ranked():
    users = [str(i) for i in range(4)]
    begun = [("begun", dict.fromkeys(users, 60.0), 1), ("flaky", {"0": 99.0}, 0)]
    assert board_of(("good", dict.fromkeys(users, 7.1), 0), *begun, broken=3) == "good scores 7.1; flaky, begun are not ranked"
    assert board_of(*begun, broken=3) == "No agent can be ranked: dialogues broke, ran out of context or were not played"


def unwhole(source: Path, folder: Path, /, *, score: float | None, **errors: int) -> Path:
    """The evaluation of `source` with another score, and dialogues that broke or were not played."""
    folder.mkdir()
    found = json.loads((source / "agent.json").read_text())
    errors = {**found["errors"], **errors}
    (folder / "agent.json").write_text(json.dumps({**found, "score": score, "errors": errors}))
    return folder


def test_an_agent_that_is_not_whole_has_no_rank_on_the_page_and_in_the_csv_and_a_sentence_says_why(evaluated, tmp_path):
    unwhole(evaluated / "L6", tmp_path / "L6", score=54.5, excluded_dialogues=4)
    page, table, _ = write_leaderboard([evaluated / "L0", tmp_path / "L6"], tmp_path / "board.html")
    text = page.read_text(encoding="utf-8")
    (scores,) = tables_of(page, titled="How users felt")
    assert re.findall(r"<tr[^>]*><td[^>]*>(.*?)</td>", scores) == ["1", "\u2013"]
    assert text.index("L6: 4 of 8 dialogues broke; not ranked.") < text.index("How users felt")
    with table.open(encoding="utf-8", newline="") as file:
        rows = {row["agent"]: (row["rank_from"], row["rank_to"], row["score"]) for row in csv.DictReader(file)}
    assert rows["L0"][:2] == ("1", "1") and rows["L6"] == ("", "", "54.5")


def test_where_no_agent_is_whole_nobody_is_ranked_and_no_row_stands_out(evaluated, tmp_path):
    unwhole(evaluated / "L6", tmp_path / "L6", score=None, excluded_dialogues=3, not_played=5)
    unwhole(evaluated / "L0", tmp_path / "L0", score=20.0, not_played=1)
    text = write_leaderboard([tmp_path], tmp_path / "board.html")[0].read_text(encoding="utf-8")
    assert (
        "<h1>No agent can be ranked: dialogues broke, ran out of context or were not played</h1>" in text
        and '<tr class="best">' not in text
    )
    assert "L6: 3 of 8 dialogues broke and 5 of 8 dialogues not played; not ranked." in text
    assert "L0: 1 of 8 dialogues not played; not ranked." in text


def test_scores_as_they_stood_when_the_context_ended_are_not_ranked_beside_others(evaluated, tmp_path):
    # A user who is let down ends the higher the sooner the dialogue stops.
    unwhole(evaluated / "L0", tmp_path / "L0", score=90.0, cut_short=4)
    page, table, _ = write_leaderboard([evaluated / "L6", tmp_path / "L0"], tmp_path / "board.html")
    assert "L0: 4 of 8 dialogues ran out of context; not ranked." in page.read_text(encoding="utf-8")
    with table.open(encoding="utf-8", newline="") as file:
        assert {row["agent"]: (row["rank_from"], row["cut_short"]) for row in csv.DictReader(file)} == {"L6": ("1", "0"), "L0": ("", "4")}


def test_equal_agents_share_a_rank():
    assert ranks([{"a": 5.0, "b": 7.0}, {"a": 5.0, "b": 7.0}], seed=0) == [(1, 1), (1, 1)]


def test_ranks_repeat_with_their_seed():
    scores = [{str(i): float(i % 7) for i in range(30)}, {str(i): float(i % 5) for i in range(30)}]
    assert ranks(scores, seed=4) == ranks(scores, seed=4)


def test_a_seed_below_zero_is_refused(tmp_path, capsys):
    assert main(["leaderboard", str(tmp_path), "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "error: --seed must be at least 0, got -1\n"


def test_names_cannot_break_the_page(evaluated, tmp_path):
    found = json.loads((evaluated / "L2" / "agent.json").read_text())
    found["agent"]["name"] = "<script>alert(1)</script>"
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "agent.json").write_text(json.dumps(found))
    text = write_leaderboard([tmp_path / "x"], tmp_path / "board.html")[0].read_text(encoding="utf-8")
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text


def test_the_page_lies_in_the_one_folder_that_was_named_and_of_several_in_the_current_one(evaluated, tmp_path, capsys, monkeypatch):
    shutil.copytree(evaluated, tmp_path / "all")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["leaderboard", str(tmp_path / "all")]) == 0
    assert (tmp_path / "all" / "leaderboard.html").is_file() and not list((tmp_path / "here").iterdir())
    assert main(["leaderboard", str(tmp_path / "all" / "L2"), str(tmp_path / "all" / "L6")]) == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["leaderboard.csv", "leaderboard.html"]
    capsys.readouterr()
    assert main(["leaderboard", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "none") in said and "--out" not in said


def test_the_command_writes_both_and_refuses_in_one_sentence(evaluated, tmp_path, capsys):
    assert main(["leaderboard", str(evaluated), "--out", str(tmp_path / "b.html")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "b.html"), str(tmp_path / "b.csv")]
    for arguments, message in (
        ([str(tmp_path)], "FOLDER must hold an evaluation's agent.json"),
        ([str(evaluated), "--out", str(tmp_path / "b.txt")], "--out must be an .html file"),
    ):
        assert main(["leaderboard", *arguments]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "agent.json").write_text("{}")
    assert main(["leaderboard", str(tmp_path / "old")]) == 2
    assert "must be written by this version's evaluation" in capsys.readouterr().err
