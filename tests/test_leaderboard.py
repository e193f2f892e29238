"""The leaderboard: which agents share a table, which ranks are open, and a page that holds everything it needs."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from earlier_file import EARLIER, earlier
from pages import Page

from analysis import leaderboard
from analysis.__main__ import main
from analysis.evaluated import Entry, is_same_agent, score_within
from analysis.leaderboard import Group, ranks, write_leaderboard
from experiments.__main__ import main as experiments

SMALL = ("--num-scenarios", "4", "--strictness", "0.1", "0.5")
NO_RANK = "No agent can be ranked: dialogues broke, ran out of context or were not played"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """L0, L2 and L6 in one setting, L1 in another."""
    folder = tmp_path_factory.mktemp("evaluated")
    # The first one takes some seconds: it loads what plays agents.
    for agent in ("L0", "L2", "L6"):
        assert experiments(["evaluate", agent, *SMALL, "--out", str(folder / agent)]) == 0
    assert experiments(["evaluate", "L1", *SMALL, "--register", "open", "--out", str(folder / "L1")]) == 0
    return folder


@pytest.fixture
def altered(evaluated, tmp_path) -> Callable[..., Path]:
    """Copies an evaluation with other values in its `agent.json`; mappings are merged."""

    def alter(scripted: str, name: str = "", /, **values: Any) -> Path:
        found = record_of(evaluated, scripted)
        for key, value in values.items():
            found[key] = found[key] | value if isinstance(value, dict) and isinstance(found.get(key), dict) else value
        folder = tmp_path / "agents" / (name or scripted)
        folder.mkdir(parents=True)
        (folder / "agent.json").write_text(json.dumps(found))
        return folder

    return alter


def record_of(folder: Path, agent: str) -> dict[str, Any]:
    return json.loads((folder / agent / "agent.json").read_text(encoding="utf-8"))


def board(folders: list[Path], tmp_path: Path) -> tuple[Page, dict[str, dict[str, str]]]:
    """The page, and the lines of its CSV by agent."""
    page, table, _ = write_leaderboard(folders, tmp_path / "board.html")
    with table.open(encoding="utf-8", newline="") as file:
        return Page(page), {row["agent"]: row for row in csv.DictReader(file)}


def test_agents_of_one_setting_share_a_table_best_first(evaluated, altered):
    groups = Group.by_setting(Entry.read_all([evaluated])[0], seed=0)
    assert [[entry.name for entry in group.entries] for group in groups] == [["L6", "L2", "L0"], ["L1"]]
    # The setting decides, not its id.
    other = altered("L2", setting={"max_turns": 3})
    groups = Group.by_setting(Entry.read_all([other, evaluated / "L0", evaluated / "L6"])[0], seed=0)
    assert [[entry.name for entry in group.entries] for group in groups] == [["L6", "L0"], ["L2"]]


def test_the_page_stands_alone_and_keeps_settings_apart(evaluated, tmp_path):
    page, _ = board([evaluated], tmp_path)
    assert page.loads == [] and "default-src 'none'" in page.text and page.links == ["board.csv"]
    assert "must not be compared" in page.words and page.table("")["user.register"] == ["world", "open"]
    alone, _ = board([evaluated / name for name in ("L0", "L2", "L6")], tmp_path)
    assert "must not be compared" not in alone.words
    folds = ["By hidden intention", "By persona", "By family: hidden intention and persona", "Strategies"]
    assert [alone.words.count(fold) for fold in folds] == [1] * 4
    parts = ["How users felt in the end", "Score by strictness", "Five capabilities", "Social cognition", "Failure by persona"]
    assert [heading for heading in alone.headings if heading in parts] == parts


def test_every_figure_is_on_the_page_and_in_the_csv_with_its_bounds(evaluated, tmp_path):
    page, rows = board([evaluated / "L6", evaluated / "L0"], tmp_path)
    for agent in ("L0", "L6"):
        found, row = record_of(evaluated, agent), rows[agent]
        low, high = found["score_ci95"]
        assert (float(row["score"]), float(row["score_low"])) == (found["score"], low)
        assert f"{found['score']:.1f}{low:.1f} to {high:.1f}" in page.words
        assert float(row["core_insight"]) == found["capabilities"]["core_insight"]["value"]
        assert float(row["failure_rate_at_0.5_high"]) == found["strictness"]["0.5"]["failure_rate"]["high"]
        for key, name in (("intention", "advice"), ("persona", "avoidant"), ("family", "advice/avoidant")):
            assert float(row[f"score_by_{key}_{name}"]) == found[key][name]["value"]
            assert float(row[f"failure_rate_by_{key}_{name}"]) == found[key][name]["failure_rate"]["value"]
        assert float(row["share_of_suggestion"]) == found["strategies"]["suggestion"]["value"]
    assert [*page.table("rank")] == ["1", "2"] and rows["L6"]["rank_from"] == "1"
    assert rows["L0"]["best_of_k"] == rows["L0"]["errors_plain"] == "" and "emotional_cost" not in rows["L0"]


def test_figures_that_only_some_agents_have_are_open_for_the_others(evaluated, altered, tmp_path):
    lacking = altered("L2", strategies=None, family=None)
    found = json.loads((lacking / "agent.json").read_text())
    del found["intention"]["advice"]
    (lacking / "agent.json").write_text(json.dumps(found))
    page, rows = board([lacking, evaluated / "L6"], tmp_path)
    assert rows["L2"]["share_of_suggestion"] == rows["L2"]["score_by_intention_advice"] == "" != rows["L6"]["share_of_suggestion"]
    assert "Strategies" in page.words and "Strategies" not in board([lacking], tmp_path)[0].words


def test_the_files_are_exchanged_and_neither_where_the_page_cannot_be_made(evaluated, tmp_path, monkeypatch):
    before = [earlier(tmp_path / name) for name in ("board.html", "board.csv")]
    with monkeypatch.context() as broken:
        broken.setattr(leaderboard, "render", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_leaderboard([evaluated / "L2"], tmp_path / "board.html")
    assert (tmp_path / "board.csv").read_text() == EARLIER
    board([evaluated / "L2"], tmp_path)
    assert [path.read_text() for path in before] == [EARLIER] * 2


def test_the_page_says_of_how_many_dialogues_a_judge_graded_where_not_of_all(altered, tmp_path):
    for num_errors, said in ((0, "0 to 1, by a judge."), (3, "by a judge. Graded in part: L2 5 of 8 dialogues.")):
        judged = altered("L2", str(num_errors), capabilities={"by": "judge", "judge": "a judge", "num_errors": num_errors})
        page, rows = board([judged], tmp_path)
        assert said in page.words and ("Graded" in page.words) == bool(num_errors)
        assert rows["L2"]["dialogues_without_grades"] == str(num_errors)


def test_the_page_says_where_models_of_one_setting_were_sampled_differently(evaluated, altered, tmp_path):
    def model(name: str, **how: object) -> Path:
        return altered("L2", name, agent={"name": name, "kind": "model", "source": name, "thinking": False, **how})

    warm, same = model("warm", max_new_tokens=800), model("same", max_new_tokens=800)
    # A scripted agent has no temperature.
    assert "sampled differently" not in board([warm, same, evaluated / "L6"], tmp_path)[0].words
    page, rows = board([warm, same, model("greedy", temperature=0.0, max_tokens=800, system="Be kind.")], tmp_path)
    assert "greedy: temperature 0.0, system prompt 'Be kind.'" in page.words and "warm: temperature 1.0, system prompt none" in page.words
    assert {agent: row["temperature"] for agent, row in rows.items()} == {"warm": "1.0", "same": "1.0", "greedy": "0.0"}


def test_scores_are_controlled_at_the_mean_length_of_the_table_or_the_page_says_why_not(altered, tmp_path):
    line = {"intercept": 30.0, "slope": 4.0, "covariance": [[1.0, 0.0], [0.0, 0.25]]}
    fitted = {"line": line, "range": [2.0, 40.0]}
    # At 4 words 30 + 2 * 4, with a variance of 1 + 4 * 0.25.
    at_four = score_within(fitted, 4.0)
    assert at_four == {
        "value": 38.0,
        "low": pytest.approx(38 - 1.96 * 2**0.5, abs=1e-3),
        "high": pytest.approx(38 + 1.96 * 2**0.5, abs=1e-3),
    }
    assert score_within(fitted, 40.5) is score_within({"line": line}, 4.0) is None
    ours = altered("L6", length=fitted)
    for name, length, why in (
        ("fitted", fitted, ""),
        ("silent", fitted | {"range": [900.0, 901.0]}, "words a reply, which it never speaks"),
        ("no slope", {"range": None, "line": None}, "since no line fits its replies"),
    ):
        (group,) = Group.by_setting(Entry.read_all([ours, altered("L2", name, length=length)])[0], seed=0)
        lengths = [entry.found["length"]["words_per_reply"] for entry in group.entries]
        assert group.words == pytest.approx(np.exp(np.mean(np.log(lengths))))
        first, second = (group.figures(entry)["length_controlled_score"] for entry in group.entries)
        assert first == score_within(fitted, group.words) and (second is None) == bool(why)
        words = board([ours, tmp_path / "agents" / name], tmp_path)[0].words
        assert why in words and ("L2: no length-controlled score" in words) == bool(why)


def add_probe(folder: Path, *, kind: str = "questions", digest: str = "aa", errors: float = 0.125, **agent: str) -> Path:
    """Puts a probe next to an evaluation; of another agent where `agent` says so."""
    found = json.loads((folder / "agent.json").read_text())
    cell = {"value": errors, "low": 0.1, "high": 0.2}
    conditions = {name: {"errors": cell, "unclear": 0.0} for name in ("plain", "emotional", "false_belief")}
    who = {name: found["agent"][name] for name in ("name", "kind", "source", "fingerprint")} | agent
    added = {"emotional_cost": cell, "sycophancy": {"value": 0.5, "low": 0.25, "high": 0.75}}
    probe = {"agent": who, "probe": {"kind": kind, "hash": digest}, "conditions": conditions, **added}
    (folder / "reliability.json").write_text(json.dumps(probe))
    return folder


def only_probed(folder: Path, **probe: Any) -> Path:
    """The same without the evaluation."""
    (add_probe(folder, **probe) / "agent.json").unlink()
    return folder


def agents_in(page: Page, corner: str) -> list[list[str]]:
    """The agents of each table with a column of this name, in order."""
    found = [(rows[0].index("agent"), rows[1:]) for rows in page.tables if corner in rows[0]]
    return [[row[at] for row in rows] for at, rows in found]


def test_each_probe_of_reliability_has_a_table_of_its_own(altered, tmp_path):
    add_probe(altered("L0"), kind="told facts", digest="f")
    add_probe(altered("L2"), digest="aa")
    add_probe(altered("L6"), digest="bb")
    page, rows = board([tmp_path / "agents"], tmp_path)
    assert agents_in(page, "belief adds") == [["L6"], ["L2"], ["L0"]]
    titles = [heading for heading in page.headings if heading.startswith("Reliability")]
    assert titles == ["Reliability: questions, probe bb", "Reliability: questions, probe aa", "Reliability: told facts"]
    assert page.words.count("compare only agents of this table") == 3 and "a forced choice by likelihood" in page.words
    assert "12.5%10.0% to 20.0%" in page.words and "+50.0 points+25.0 to +75.0" in page.words
    assert [(rows[name]["probe_kind"], rows[name]["probe_hash"]) for name in ("L0", "L2")] == [("told facts", "f"), ("questions", "aa")]


def test_another_temperature_or_system_prompt_is_another_probe(evaluated):
    ((entry,), _) = Entry.read_all([evaluated / "L0"])

    def probe_of(**how) -> tuple[str, str] | None:
        return replace(entry, reliability={"probe": {"kind": "questions", "hash": "aa", **how}}).probe

    assert probe_of() == probe_of(temperature=0.0, system="") == ("questions", "aa")
    assert len({probe_of(), probe_of(temperature=1.0), probe_of(system="Be warm."), probe_of(system="Be brief.")}) == 4


def test_a_probe_of_another_agent_is_left_out_and_named(altered, tmp_path):
    page, _ = board([add_probe(altered("L2"), source="L3")], tmp_path)
    assert agents_in(page, "belief adds") == [] and "is of another agent (L2, L3) than the evaluation" in page.words


def test_agents_are_the_same_by_their_weights_and_else_by_where_they_are():
    weights = {"kind": "model", "source": "runs/a", "fingerprint": "0f"}
    assert is_same_agent(weights, {**weights, "source": "copy/of/a", "model": None})
    assert not is_same_agent(weights, {**weights, "fingerprint": "1e"}) and not is_same_agent(weights, {**weights, "fingerprint": ""})
    served = {"kind": "server", "source": "http://h/v1", "model": "m", "fingerprint": ""}
    assert is_same_agent(served, dict(served)) and is_same_agent(served, {name: served[name] for name in ("kind", "source")})
    assert not is_same_agent(served, {**served, "model": "n"}) and not is_same_agent(served, {**served, "source": "http://i/v1"})


def test_bests_of_several_tries_are_compared_at_the_number_that_all_had(altered, tmp_path):
    def cell(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 1.0, "high": value + 1.0}

    two = {"k": 2, "mean": cell(40.0), "best": cell(51.0), "gain": cell(11.0), "by_k": {"1": 40.0, "2": 51.0}}
    by_k = {"1": 45.0, "2": 62.0, "3": 77.0, "4": 88.0}
    four = {"k": 4, "mean": cell(45.0), "best": cell(88.0), "gain": cell(43.0), "by_k": by_k}
    expected = {"2": {"best": {"value": 62.0, "low": 60.5, "high": 63.5}, "gain": cell(17.0)}}
    ours = altered("L2", best_of_k=two)
    for name, more, best in (("new", {"expected": expected}, "62.060.5 to 63.5"), ("old", {}, "62.0")):
        page, rows = board([ours, altered("L6", name, best_of_k=four | more)], tmp_path)
        found = next({row[1]: row[2:] for row in rows[1:]} for rows in page.tables if "best of 2" in rows[0])
        assert found["L6"][0] == "4" and found["L6"][2] == best and found["L2"][2] == "51.050.0 to 52.0"
        assert [rows["L6"][name] for name in ("k", "best_of_k", "common_k", "best_of_common_k")] == ["4", "88.0", "2", "62.0"]


def test_agents_that_were_only_probed_are_shown_with_evaluated_ones_that_had_the_same_probe(altered, tmp_path):
    add_probe(altered("L2"), errors=0.25)
    shutil.copytree(tmp_path / "agents" / "L2", tmp_path / "agents" / "copy")
    add_probe(altered("L6"), digest="bb")
    only_probed(altered("L0", "a"), name="trained <b>", errors=0.5)
    only_probed(altered("L0", "b"), name="comforting", errors=0.125)
    page, rows = board([tmp_path / "agents"], tmp_path)
    assert [name.removesuffix("L0") for name in agents_in(page, "belief adds")[-1]] == ["comforting", "L2", "trained <b>"]
    assert "Among them 1 agent above. Asked: " in page.words and "trained <b>" not in page.text
    assert "3 agents in one setting, 2 probed and not evaluated" in page.words
    assert [rows[name]["errors_plain"] for name in ("L2", "trained <b>", "comforting")] == ["0.25", "0.5", "0.125"]
    assert rows["comforting"]["setting_id"] == rows["comforting"]["score"] == "" and rows["comforting"]["sycophancy_high"] == "0.75"
    shutil.rmtree(tmp_path / "agents" / "L2"), shutil.rmtree(tmp_path / "agents" / "copy"), shutil.rmtree(tmp_path / "agents" / "L6")
    page, _ = board([tmp_path / "agents"], tmp_path)
    assert page.headings[0] == "2 agents, probed and not evaluated" and "over questions" in page.words


def test_agents_that_cannot_be_read_are_named_on_the_page_and_on_the_terminal(evaluated, altered, tmp_path, capsys):
    torn, other = altered("L2", "torn"), altered("L2", "other", format=99)
    (torn / "agent.json").write_text('{"format": 1, <b>')
    shutil.copytree(evaluated / "L6", tmp_path / "agents" / "L6")
    assert main(["leaderboard", str(tmp_path / "agents"), "--out", str(tmp_path / "board.html")]) == 0
    said, page = capsys.readouterr().out.splitlines(), Page(tmp_path / "board.html")
    assert [line.partition(" is left out: ")[0] for line in said[:2]] == [str(other), str(torn)] and "format 99" in said[0]
    assert all(line in page.words for line in said[:2]) and "L6 scores" in page.headings[0]
    assert main(["leaderboard", str(torn), "--out", str(tmp_path / "board.html")]) == 2
    assert "FOLDER must hold an evaluated or probed agent that can be read; " in capsys.readouterr().err


def test_ranks_that_users_leave_open():
    clear = [{"a": 90.0, "b": 80.0, "c": 85.0}, {"a": 50.0, "b": 40.0, "c": 45.0}]
    assert ranks(clear, seed=0) == [(1, 1), (2, 2)]
    # The second is better with one user and worse with another.
    assert ranks([{"a": 90.0, "b": 10.0}, {"a": 10.0, "b": 80.0}], seed=0) == [(1, 2), (1, 2)]
    assert ranks([*clear, {}], seed=0) == [(1, 1), (2, 2), None]
    assert ranks([{"a": 90.0}, {"b": 50.0}], seed=0) == [None, None] and ranks([{}], seed=0) == [None]
    assert ranks([{"a": 5.0, "b": 7.0}, {"a": 5.0, "b": 7.0}], seed=0) == [(1, 1), (1, 1)]
    scores = [{str(i): float(i % 7) for i in range(30)}, {str(i): float(i % 5) for i in range(30)}]
    assert ranks(scores, seed=4) == ranks(scores, seed=4)


def headline(agents: Mapping[str, Mapping[str, float]], **errors: Mapping[str, int]) -> str:
    """The headline over agents with these scores by scenario and, by agent, dialogues that are missing."""
    entries = [
        Entry(
            reliability=None,
            found={
                "agent": {"name": name},
                "setting_id": "s",
                "setting": {},
                "score": float(np.mean(list(scores.values()))),
                "per_scenario": scores,
                "errors": {"not_played": 0, "excluded_dialogues": 0, "planned": 4, **errors.get(name, {})},
            },
        )
        for name, scores in agents.items()
    ]
    return Group.by_setting(entries, seed=0)[0].verdict()


def met(*scores: float) -> dict[str, float]:
    return {str(i): score for i, score in enumerate(scores)}


def test_the_headline_claims_a_lead_only_where_every_draw_of_users_has_it():
    near = {"a": met(90, 10, 50, 50), "b": met(10, 80, 50, 50)}
    leads = " and leads in at least 39 of 40 draws of the users"
    assert headline({"a": met(90, 90), "b": met(50, 50)}) == f"a scores 90.0{leads}"
    assert headline(near) == "a scores 50.0; with other users b could lead"
    assert headline({"a": {"0": 90.0}, "b": {"1": 50.0}}).endswith("whether others would lead with other users is open")
    # Agents that are not whole lead nothing and take no users from the others.
    assert headline({"whole": met(50, 50), "begun": met(99), "other": met(40, 40)}, begun={"not_played": 3}) == (
        f"whole scores 50.0{leads}; begun is not ranked"
    )
    flaky = {"excluded_dialogues": 3}
    assert headline({**near, "flaky": met(99)}, flaky=flaky) == "a scores 50.0; with other users b could lead; flaky is not ranked"
    assert headline({"good": met(7), "flaky": met(99)}, flaky=flaky) == "good scores 7.0; flaky is not ranked"
    assert headline({"flaky": met(99)}, flaky=flaky) == NO_RANK


def test_an_agent_that_is_not_whole_has_no_rank_and_a_sentence_says_why(evaluated, altered, tmp_path):
    partly = altered("L6", errors={"excluded_dialogues": 3, "not_played": 1})
    page, rows = board([evaluated / "L0", partly], tmp_path)
    assert [row[0] for row in page.tables[0]] == ["rank", "1", "–"]
    assert "L6: 3 of 8 dialogues broke and 1 of 8 dialogues not played; not ranked." in page.words
    assert rows["L0"]["rank_from"] == "1" and rows["L6"]["rank_from"] == "" != rows["L6"]["score"]
    # Users who are let down end the higher the sooner a dialogue stops.
    page, _ = board([altered("L6", "short", errors={"cut_short": 4})], tmp_path)
    assert "L6: 4 of 8 dialogues ran out of context; not ranked." in page.words
    assert page.headings[0] == NO_RANK and 'class="best"' not in page.text


def test_names_cannot_break_the_page(altered, tmp_path):
    page, _ = board([altered("L2", agent={"name": "<script>alert(1)</script>", "source": "<b onclick=x>"})], tmp_path)
    assert len(page.scripts) == 1 and "<script>alert(1)" in page.words and "<b onclick" not in page.text


def test_the_page_is_written_into_the_folder_that_was_named_and_of_several_into_the_current_one(evaluated, tmp_path, capsys, monkeypatch):
    shutil.copytree(evaluated, tmp_path / "all")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["leaderboard", str(tmp_path / "all")]) == 0
    assert (tmp_path / "all" / "leaderboard.html").is_file() and not list((tmp_path / "here").iterdir())
    assert main(["leaderboard", str(tmp_path / "all" / "L2"), str(tmp_path / "all" / "L6")]) == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["leaderboard.csv", "leaderboard.html"]
    capsys.readouterr()
    for arguments, named in (
        ([str(tmp_path / "none")], "FOLDER"),
        ([str(evaluated), "--out", str(tmp_path / "b.txt")], "--out"),
        ([str(evaluated), "--seed", "-1"], "--seed"),
    ):
        assert main(["leaderboard", *arguments]) == 2
        assert capsys.readouterr().err.startswith(f"error: {named} must ")
