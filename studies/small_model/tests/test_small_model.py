"""The judge by ESConv's labels, and the rows that the study keeps of a run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from analysis.__main__ import main
from simulator.dialogue import Outcome, Speaker, Turn
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.world import load_bank
from studies.small_model.esconv import PARTS, EsconvListener, read_esconv

SPOKEN = {
    "Questions": ("What happened then?", "How are you feeling?", "What did he say?", "How long have you known?"),
    "Providing Suggestions": ("You could call a friend.", "Maybe try to go out.", "You could write him a letter.", "Try to sleep on it."),
    "Affirmation and Reassurance": ("You did so well.", "You are a strong person.", "You did so much.", "You are very brave."),
    "Reflection of feelings": (
        "That must feel awful.",
        "It sounds like you feel lonely.",
        "You must feel hurt.",
        "It must be so sad for you.",
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of ESConv's repository, as far as it is read."""
    folder = tmp_path_factory.mktemp("esconv")
    (folder / "codes" / "dataset").mkdir(parents=True)
    lines = [f"1.0 0 0 I lost my job. EOS 1.0 1 1 [{name}] {text} " for name, texts in SPOKEN.items() for text in texts]
    for part in PARTS:
        (folder / "codes" / "dataset" / part).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_the_helper_s_last_utterance_is_read(checkout):
    told = "0.0 0 0 Hi. EOS 0.0 1 1 [Other] Hello EOS 0.0 0 2 I failed. And again. EOS 0.0 1 3 [Questions] At what?"
    path = checkout / "codes" / "dataset" / "one.tsv"
    path.write_text(f"{told}\n0.0 0 0 Only the seeker.\n", encoding="utf-8")
    assert read_esconv(checkout, ["one.tsv"]) == [("I failed. And again.", "At what?", "Questions")]


def test_a_reply_is_heard_by_what_people_called_the_like(checkout):
    listener = EsconvListener(read_esconv(checkout))
    scenarios = {one.family.intention: one for one in load_bank().scenarios(Split.TRAIN)}
    for intention, reply, strategy in (
        ("praise", "You did so well, you are brave.", "praise"),
        ("advice", "You did so well, you are brave.", "reassurance"),
        ("advice", "You could try to call him.", "suggestion"),
        ("empathy", "You must feel so hurt and lonely.", "reflection"),
        ("empathy", "What happened, what did he say?", "question"),
    ):
        dialogue = RuleUser(RuleUserConfig()).begin(scenarios[intention], Difficulty.along(0.35), seed=0)
        assert listener.read(dialogue, reply).strategies == (strategy,)
    said = dialogue.turns[0].text
    assert listener.read(dialogue, said).echo and not listener.read(dialogue, said).strategies


def made_run(folder: Path, *, listener: str = "encoder") -> Path:
    """A run that learned to ask, with a held-out evaluation at both ends."""
    user, lines = RuleUser(RuleUserConfig(listener="encoder", register="open")), []
    for look, reply in enumerate(
        ("The cheese of why is running blue on the letter and the door sang it.", "That must feel awful. What happened then?")
    ):
        for scenario in load_bank().scenarios(Split.HELDOUT)[:3]:
            dialogue = user.begin(scenario, Difficulty.along(0.1), seed=0)
            reaction = user.answer(dialogue, reply)
            played = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn, outcome=Outcome.MAX_TURNS)
            told = {"step": look, "grid": "full", "look": look, "uid": scenario.scenario_id, "scenario_id": scenario.scenario_id}
            lines.append({**played.to_dict(), **told, "second_listener": {"by": "rule", "final": 50 + look}})
    folder.mkdir()
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n', encoding="utf-8")
    (folder / "config.yaml").write_text(f"seed: 4\nsimulator: {{kind: rule, listener: {listener}}}\n", encoding="utf-8")
    reliability = {"errors": {"plain": {"before": 0.5, "after": 0.625}}}
    (folder / "summary.json").write_text(json.dumps({"seed": 4, "reliability": reliability}), encoding="utf-8")
    return folder


def test_a_run_leaves_a_row_for_each_judge(checkout, tmp_path):
    run = made_run(tmp_path / "seed_4")
    assert main(["small_model", str(checkout), str(run), "--out", str(tmp_path / "results.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "results.csv").open(encoding="utf-8")))
    assert [(row["judge"], row["trained"]) for row in rows] == [("encoder", "1"), ("rule", "0"), ("esconv", "0")]
    assert (rows[1]["before"], rows[1]["after"], rows[1]["change_low"]) == ("50.00", "51.00", "1.00")
    assert float(rows[0]["after"]) > float(rows[0]["before"])
    assert all((row["seed"], row["facts_error_before"], row["facts_error_after"]) == ("4", "0.500", "0.625") for row in rows)
    assert float(rows[0]["sensible_before"]) < float(rows[0]["sensible_share"]) == 1.0


def test_a_run_with_another_listener_is_refused(checkout, tmp_path, capsys):
    run = made_run(tmp_path / "seed_4", listener="rule")
    assert main(["small_model", str(checkout), str(run), "--out", str(tmp_path / "results.csv")]) == 2
    assert "simulator.listener=encoder" in capsys.readouterr().err and not (tmp_path / "results.csv").exists()
