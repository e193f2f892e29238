"""Recorded dialogues replayed: what is the same, what is not, and what cannot be replayed."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.explain import replay, user_settings
from simulator.listener import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import read_profiles, write_profiles
from simulator.scenario import VANILLA, Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.version import world_name
from simulator.world import load_bank

WORLD = RuleUserConfig(register=Register.WORLD)
CONFIG = """experiment: smoke
simulator:
  start_emotion: 30
  momentum: 0.5
  register: world
  quantise: true
  kind: rule
provenance:
  world: {world}
"""
RECORDED = RuleUserConfig(register=Register.WORLD, start_emotion=30, momentum=0.5, quantise=True)
GARBLE = "Who else knows about the keys on the keys?"
"""Ordinary enough in the open register, hardly to be followed in the world's."""


def played(*, index: int = 0, d: float = 0.5, agent: str = "L3", config: RuleUserConfig = WORLD) -> Dialogue:
    scenario = load_bank().scenarios(Split.TRAIN)[index]
    return play(AGENTS[agent], scenario, Difficulty.along(d), seed=index, user=RuleUser(config))


def make_run(folder: Path, *, world: str | None = None) -> Path:
    """A run's folder with two groups of two training dialogues and one held-out dialogue, played under the settings of its config."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG.format(world=world or world_name()))
    groups = [
        {"step": 1 + i // 2, "uid": f"group{i // 2}", "sibling": i % 2, **played(index=i, config=RECORDED).to_dict()} for i in range(4)
    ]
    write(folder / "dialogues.jsonl", *groups)
    write(folder / "evaluation.jsonl", {"step": 0, "uid": "eval:one", **played(index=9, config=RECORDED).to_dict()})
    return folder


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_run_is_replayed_with_the_settings_of_its_config(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert main(["explain", str(run)]) == 0
    out = capsys.readouterr().out
    assert "register world, momentum 0.5, start at 30, changes rounded to SAGE's changes" in out
    assert "4 dialogues" in out and out.rstrip().endswith("all are the same")


def test_an_evaluation_of_an_agent_has_its_held_out_dialogues_among_the_others(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    (run / "evaluation.jsonl").rename(run / "dialogues.jsonl")
    assert main(["explain", str(run), "--uid", "eval:one"]) == 2
    assert f"{run / 'evaluation.jsonl'} is not there" in capsys.readouterr().err
    with (run / "config.yaml").open("a") as config:
        config.write("agent: {kind: scripted}\n")
    assert main(["explain", str(run), "--uid", "eval:one"]) == 0
    assert "1 dialogue" in capsys.readouterr().out


def test_dialogues_on_profiles_are_replayed_with_the_profiles(tmp_path, capsys):
    (scenario, *_) = load_bank().scenarios(Split.TRAIN)
    write_profiles(tmp_path / "profiles.jsonl", [replace(scenario, scenario_id="0-1-2")])
    (profile,) = read_profiles(tmp_path / "profiles.jsonl")
    user, reply = RuleUser(RuleUserConfig(preset=Preset.SAGE)), "我在听，你慢慢说。"
    opened = user.begin(profile, VANILLA, seed=0)
    dialogue = opened.then(Turn(speaker=Speaker.AGENT, text=reply), user.answer(opened, reply).turn)
    path = write(tmp_path / "dialogues.jsonl", {"simulator": {"preset": "sage"}, **dialogue.to_dict()})
    assert main(["explain", str(path)]) == 2 and "got 'sage/0-1-2'" in capsys.readouterr().err
    assert main(["explain", str(path), "--profiles", str(tmp_path / "profiles.jsonl")]) == 0
    assert capsys.readouterr().out.rstrip().endswith("all are the same")


def test_flags_count_more_than_the_config(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert main(["explain", str(run), "--start-emotion", "40", "--no-quantise"]) == 1
    out = capsys.readouterr().out
    assert "recorded 30, recomputed 40" in out and "DIFFERENT" in out


def test_a_changed_emotion_is_found_in_its_dialogue(tmp_path, capsys):
    record = played().to_dict()
    record["turns"][2]["change"] += 1
    path = write(tmp_path / "dialogues.jsonl", {"step": 1, **played(index=1).to_dict()}, {"step": 1, "uid": "spoiled", **record})
    assert main(["explain", str(path), "--register", "world", "--num", "0"]) == 1
    out = capsys.readouterr().out
    turn = played().turns[2]
    assert f"differs in dialogue 2 (spoiled): recorded +{turn.change + 1} to {turn.emotion}, recomputed +{turn.change} to" in out
    assert out.count("differs in") == 1


def test_one_difference_does_not_bring_others(tmp_path):
    dialogue = played()
    record = dialogue.to_dict()
    record["turns"][2]["emotion"] -= 3
    record["turns"][2]["change"] -= 3
    spoiled = Dialogue.from_dict(record, scenario=dialogue.scenario)
    # Momentum is the only thing that later turns have from it: with none, the turn itself and the next, which starts from its emotion.
    wrong = [i for i, turn in enumerate(replay(spoiled, RuleUserConfig(register=Register.WORLD, momentum=0.0))) if not turn.is_same]
    still = [i for i, turn in enumerate(replay(dialogue, RuleUserConfig(register=Register.WORLD, momentum=0.0))) if not turn.is_same]
    assert set(wrong) - set(still) <= {1, 2}


def test_other_words_are_told_and_do_not_fail(tmp_path, capsys):
    record = played().to_dict()
    record["turns"][2]["thought"] = "I thought of something else."
    path = write(tmp_path / "dialogues.jsonl", {"step": 1, **record})
    assert main(["explain", str(path), "--register", "world"]) == 0
    out = capsys.readouterr().out
    assert "recorded thought:   I thought of something else." in out
    assert "1 turn with other words, thoughts or strategies" in out


def test_the_register_decides_what_garble_costs(tmp_path, capsys):
    user = RuleUser(WORLD)
    opened = user.begin(load_bank().scenarios(Split.TRAIN)[0], Difficulty.along(0.3), seed=0)
    from simulator.scripted import exchange

    path = write(tmp_path / "dialogues.jsonl", {"step": 1, **exchange(opened, GARBLE, user=user).to_dict()})
    assert main(["explain", str(path), "--register", "world"]) == 0
    assert main(["explain", str(path), "--register", "open"]) == 1
    assert "× clarity" in capsys.readouterr().out


def test_a_full_account_holds_every_turn_and_five_steps_to_each_change(tmp_path, capsys):
    dialogue = played()
    path = write(tmp_path / "dialogues.jsonl", {"step": 1, **dialogue.to_dict()})
    assert main(["explain", str(path), "--register", "world"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(turn.text.split()) in words for turn in dialogue.turns)
    for step in ("1 what the reply says:", "2 the hidden intention:", "3 inner activity:", "4 feeling:", "5 change:"):
        assert words.count(step) == dialogue.num_replies


@pytest.mark.parametrize(
    ("selection", "num"),
    [
        (["--uid", "group1"], 2),
        (["--uid", "group1", "--sibling", "0"], 1),
        (["--step", "1"], 2),
        (["--index", "4"], 1),
        (["--evaluation"], 1),
        (["--uid", "eval:one"], 1),
        ([], 4),
    ],
)
def test_dialogues_are_selected(tmp_path, capsys, selection, num):
    assert main(["explain", str(make_run(tmp_path / "run")), *selection, "--num", "0"]) == 0
    assert f": {num} dialogue" in capsys.readouterr().out


def test_another_world_is_said(tmp_path, capsys):
    assert main(["explain", str(make_run(tmp_path / "run", world="01ab")), "--num", "0"]) == 0
    assert "note: recorded in world 01ab, replayed in world" in capsys.readouterr().out
    # A chat tells its world itself.
    chat = write(tmp_path / "chat.jsonl", {"world": "02ab", **played().to_dict()}, {"world": world_name(), **played().to_dict()})
    assert main(["explain", str(chat), "--register", "world", "--num", "0"]) == 0
    assert capsys.readouterr().out.count("note: recorded in world 02ab") == 1


def test_an_unfinished_and_an_unanswered_dialogue_are_replayed_as_far_as_they_go(tmp_path, capsys):
    record = played().to_dict()
    record |= {"outcome": "truncated", "turns": record["turns"][:4]}
    assert main(["explain", str(write(tmp_path / "dialogues.jsonl", {"step": 1, **record})), "--register", "world"]) == 0
    assert "2 emotions recomputed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        ({"scenario_id": "nowhere"}, "line 1 must be a dialogue of this world"),
        ({"turns": []}, "turns must begin with the user's opening"),
        ({"turns": [{"speaker": "agent", "text": "Hello."}]}, "turn 1 must be the user's, got one of the agent"),
        ({"turns": [{"speaker": "user", "text": "Hello."}]}, "turn 1 must hold an emotion"),
        ({"difficulty": {"strictness": 0.5}}, "line 1 must be a dialogue of this world"),
        (
            {"turns": [{"speaker": "user", "text": "Hello.", "emotion": "x"}]},
            "line 1 must be a dialogue of this world: emotion must be a whole",
        ),
        ({"turns": [{"speaker": "user", "text": None}]}, "line 1 must be a dialogue of this world: text must be a string, got None"),
        ({"simulator": {"momentum": "x"}}, "simulator.momentum must be a number, got 'x'"),
        ({"simulator": {"quantise": 1}}, "simulator.quantise must be true or false, got 1"),
        ({"simulator": {"start_emotion": True}}, "simulator.start_emotion must be a whole number, got True"),
        ({"simulator": {"kind": "llm"}}, "simulator.kind must be rule"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_sentence(tmp_path, capsys, spoil, complaint):
    path = write(tmp_path / "dialogues.jsonl", {"step": 1, **played().to_dict(), **spoil})
    assert main(["explain", str(path)]) == 2
    message = capsys.readouterr().err
    assert complaint in message and message.startswith("error: ") and message.count("\n") == 1


def test_a_gzipped_file_is_replayed_as_a_plain_one(tmp_path, capsys):
    plain = write(tmp_path / "dialogues.jsonl", {"step": 1, **played().to_dict()})
    packed = tmp_path / "dialogues.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    told = []
    for path in (plain, packed):
        assert main(["explain", str(path), "--register", "world"]) == 0
        assert main(["skills", str(path)]) == 0
        told.append(capsys.readouterr().out.replace(str(path), "FILE"))
    assert told[0] == told[1]
    packed.write_bytes(packed.read_bytes()[:-20])
    assert main(["explain", str(packed)]) == 2
    assert f"{packed} must be a whole gzip file" in capsys.readouterr().err


def test_skills_are_heard_in_the_register_that_was_recorded(tmp_path, capsys):
    plain = played().to_dict()
    # Ordinary English, which the small world's users do not understand.
    plain["turns"][1]["text"] = "That sounds genuinely exhausting, and I appreciate you telling me about everything she did."

    def shown(*records: dict, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        path = write(tmp_path / "dialogues.jsonl", *({"step": 1, **plain, **record} for record in records))
        code = main(["skills", str(path), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    by_register = {register: shown({}, arguments=("--register", register)) for register in ("open", "world")}
    assert by_register["open"] != by_register["world"]
    assert shown({}) == by_register["world"] == shown({"simulator": {"register": "world"}})
    assert shown({"simulator": {"register": "open"}}) == by_register["open"] == shown({"simulator": {"kind": "llm"}})
    code, message = shown({"simulator": {"register": "open"}}, {"simulator": {"register": "world"}})
    assert code == 2 and "FILE must hold dialogues in one register, got open and world" in message
    assert shown({"simulator": "open"}) == (2, "error: simulator must hold a user's settings by name, got 'open'\n")
    (tmp_path / "config.yaml").write_text("simulator: {register: open}")
    assert shown({}) == by_register["open"]
    (tmp_path / "config.yaml").write_text("[1]")
    assert shown({}, arguments=("--register", "world")) == by_register["world"]


def test_what_is_not_there_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    for arguments in ([str(tmp_path / "none")], [str(tmp_path)], [str(run), "--uid", "none"], [str(run), "--num", "-1"]):
        assert main(["explain", *arguments]) == 2
    assert "must hold a dialogue with uid 'none', got none" in capsys.readouterr().err
    (run / "config.yaml").write_text("a: [")
    assert main(["explain", str(run)]) == 2
    assert "config.yaml must be YAML" in capsys.readouterr().err


def test_settings_come_from_the_first_who_says_them():
    found = user_settings({"momentum": None, "register": "open"}, {"momentum": 0.4, "start_emotion": 30}, {"momentum": 0.1, "kind": "rule"})
    assert (found.momentum, found.register, found.start_emotion, found.quantise) == (0.4, Register.OPEN, 30, False)
