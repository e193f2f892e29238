"""Explanations: the numbers are the rule's, the words hold the numbers, and recorded dialogues are replayed to the same changes."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import Skill, hint_in, onset
from simulator.explain import Explanation, figure, read_dialogues, replay, shares_shown, user_settings
from simulator.listener import Register
from simulator.reading import Reading
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import profile_of, read_profiles, write_records
from simulator.scenario import VANILLA, Difficulty, Scenario, Split
from simulator.scripted import AGENTS, play, score_agent
from simulator.version import world_name
from simulator.world import load_bank

TRAIN = load_bank().scenarios(Split.TRAIN)
SETTINGS = (
    RuleUserConfig(),
    RuleUserConfig(register=Register.WORLD, momentum=0.0, start_emotion=30),
    RuleUserConfig(register=Register.WORLD, momentum=0.7, quantise=True),
    RuleUserConfig(preset=Preset.SAGE),
)
WORLD = RuleUserConfig(register=Register.WORLD)
PRODUCT = re.compile(r"(−?[\d.]+(?: × −?[\d.]+)+) = (−?[\d.]*\d)")


def explained(*, config: RuleUserConfig, num: int, seed: int = 0) -> Iterator[tuple[Explanation, Turn]]:
    """Every answered reply of dialogues with all agents and families, on the line of difficulty and off it, and its answer."""
    chance, user = random.Random(seed), RuleUser(config)
    for i in range(num):
        axes = Difficulty(strictness=chance.random(), reserve=chance.random(), impatience=chance.random())
        difficulty = axes if i % 2 else Difficulty.along(chance.random())
        dialogue = play(AGENTS[chance.choice(list(AGENTS))], chance.choice(TRAIN), difficulty, seed=chance.randrange(1000), user=user)
        for index, turn in enumerate(dialogue.turns[:-1]):
            if turn.speaker is Speaker.AGENT:
                before = replace(dialogue, turns=dialogue.turns[:index], outcome=None)
                yield Explanation.of(before, turn.text, config), dialogue.turns[index + 1]


def first_reply(reply: str, d: float, *, family: str = "advice/passive", heard: tuple[str, ...] | None = None) -> Explanation:
    scenario = next(one for one in TRAIN if str(one.family) == family)
    reading = None if heard is None else Reading(strategies=heard)
    return Explanation.of(RuleUser(SETTINGS[0]).begin(scenario, Difficulty.along(d), seed=0), reply, SETTINGS[0], reading)


def value(text: str) -> float:
    return float(text.replace("−", "-"))


@pytest.mark.parametrize("config", SETTINGS)
def test_the_explanation_gives_the_users_change_and_thought(config: RuleUserConfig):
    num_doubts = 0
    for explanation, answer in explained(config=config, num=30):
        points, steps = explanation.points, dict(explanation.steps())
        assert list(steps) == list(Explanation.TITLES) and all(steps.values())
        assert explanation.thought == answer.thought
        assert f"→ {answer.emotion}" in steps["change"]
        if config.preset is Preset.TRAINING:
            assert (points.felt, points.after) == (answer.change, answer.emotion)
            num_doubts += points.doubt is not None
    assert num_doubts > 2 or config.preset is Preset.SAGE


def test_every_product_and_every_sum_in_the_words_is_right():
    num_products = 0
    for explanation, _ in explained(config=SETTINGS[0], num=20, seed=1):
        change = dict(explanation.steps())["change"]
        products = PRODUCT.findall(change)
        for factors, result in products:
            assert math.prod(map(value, factors.split(" × "))) == pytest.approx(value(result), abs=2e-3), (factors, result)
        num_products += len(products)
        by_hand = value(products[0][1])
        for opening, sign in (("Impatience", -1.0), ("Disappointment", -1.0), ("Of the change", 1.0)):
            found = re.search(opening + r"[^=]*= (−?[\d.]*\d)", change)
            by_hand += sign * value(found[1]) if found else 0.0
        together = re.search(r"Together (−?[\d.]*\d)\.", change)
        assert together and value(together[1]) == pytest.approx(by_hand, abs=1e-3)
        lost = explanation.losses()
        if "garble" not in lost and "contempt" not in lost:
            assert (
                explanation.appraisal.worth == pytest.approx(max(-0.8, 1.0 - sum(lost.values())))
                or not explanation.appraisal.says_something
            )
    assert num_products > 150


def test_a_missed_fit_is_charged_by_hand():
    # Strictness 0.2, "advice" from a passive user: fit counts in full (onset 0.1, ramp 0.1), the rest not yet.
    explanation = first_reply("Everything will be fine.", 0.2)
    # 1 - 1.2 for the fit - 0.3 for running against the wish = -0.5
    assert explanation.losses() == pytest.approx({"fit": 1.2, "against": 0.3})
    assert explanation.appraisal.worth == pytest.approx(-0.5)
    # 3.5 * (0.4 + 1.6 * 0.2) = 2.52; 2.52 * -0.5 = -1.26; impatience 0.3 * 0.2 / 0.35 = 0.1714 drains 1.5 * 0.1714 = 0.2571: -1.517
    assert explanation.points.exact == pytest.approx(-1.517, abs=1e-3) and explanation.points.felt == -2


def test_costs_that_do_not_count_yet_are_named_with_their_onset():
    explanation = first_reply("Everything will be fine.", 0.05)
    activity, begins = dict(explanation.steps())["inner activity"], onset(Skill.LISTENING, explanation.appraisal.dialogue.scenario.family)
    assert f"Listening: it goes on without having asked enough, which counts only from strictness {begins:.2f} on." in activity
    assert explanation.losses() == {}


def test_garble_is_charged_in_figures():
    explanation = first_reply("I admire your same the so.", 0.0)
    clarity = explanation.appraisal.parsed.clarity
    assert clarity < 1.0 and explanation.losses()["garble"] == pytest.approx(2.0 * (1.0 - clarity))  # from 1 to clarity less the rest
    assert f"× clarity {figure(clarity)}, less 1 × {figure(1 - clarity)}" in dict(explanation.steps())["feeling"]


def test_a_doubted_reply_is_explained_in_figures_and_not_thanked():
    dialogue = RuleUser(RuleUserConfig()).begin(TRAIN[0], Difficulty.along(0.0), seed=1)
    reading = Reading(strategies=("reflection",), cues=(0,), sincerity=0.4)
    explanation = Explanation.of(dialogue, "Well done.", RuleUserConfig(), reading)
    steps = dict(explanation.steps())
    assert "meant and makes sense with a probability of 0.4" in steps["what the reply says"]
    assert "× probability 0.4, less 1 × 0.6 for the rest" in steps["feeling"]
    assert explanation.appraisal.worth == pytest.approx(0.4 - 0.6) and explanation.losses() == pytest.approx({"doubt": 1.2})
    assert "I am not sure that they mean it." in explanation.thought and "hoping for" not in explanation.thought


def test_a_doubted_reply_does_not_please_however_good_it_is():
    dialogue = RuleUser(RuleUserConfig()).begin(TRAIN[0], Difficulty.along(0.0), seed=1)
    reading = Reading(strategies=("reflection",), cues=(0,), sincerity=0.58)
    explanation = Explanation.of(dialogue, "Well done.", RuleUserConfig(), reading)
    assert "for the rest, = 0.16, held at 0, since it is doubted." in dict(explanation.steps())["feeling"]
    assert explanation.appraisal.worth == 0.0 and explanation.losses() == pytest.approx({"doubt": 1.0})


def test_a_reply_that_is_not_doubted_is_not_explained_as_doubted():
    dialogue = RuleUser(RuleUserConfig()).begin(TRAIN[0], Difficulty.along(0.2), seed=1)
    for strategies in combinations(("question", "apology", "praise", "suggestion"), 2):
        explanation = Explanation.of(dialogue, "Well.", RuleUserConfig(), Reading(strategies=strategies, sincerity=0.8))
        assert "doubted" not in dict(explanation.steps())["feeling"]


def test_an_echo_and_the_facts_it_names_are_in_the_first_step():
    scenario = TRAIN[0]
    dialogue = RuleUser(SETTINGS[0]).begin(scenario, VANILLA, seed=0)
    says = Explanation.of(dialogue, scenario.opening, SETTINGS[0]).steps()[0][1]
    assert "an echo" in says and f"Not counted, as it is an echo: {scenario.facts[0].cue}" in says
    asked = Explanation.of(dialogue, f"What happened with {scenario.facts[0].cue}?", SETTINGS[0])
    assert asked.steps()[0][1].startswith(f"Heard as question. Takes up {scenario.facts[0].cue}.")


def test_a_wish_missed_again_and_again_disappoints_more_each_time_until_it_is_met():
    # Impatience 0.3 at VANILLA: the second miss in a row takes 1.5 * 0.3 * 1 = 0.45 on top, the third 0.9, the fifth and later 1.8.
    scenario = next(one for one in TRAIN if str(one.family) == "advice/passive")
    user, praise, advice = RuleUser(SETTINGS[0]), "You did so well.", "You could talk to them openly."
    dialogue, taken = user.begin(scenario, VANILLA, seed=0), []
    for reply in (praise, praise, praise, advice, praise, praise, *[praise] * 5):
        explanation = Explanation.of(dialogue, reply, SETTINGS[0])
        taken.append((explanation.appraisal.times_missed, explanation.points.disappointed))
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), user.answer(dialogue, reply).turn)
    assert [times for times, _ in taken] == [1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]
    assert [points for _, points in taken] == pytest.approx([0, 0.45, 0.9, 0, 0, 0.45, 0.9, 1.35, 1.8, 1.8, 1.8])
    assert "reply number 7 in a row" in explanation.steps()[1][1] and "takes 1.5 × 0.3 × 4 × 1 = 1.8." in explanation.steps()[4][1]


def test_a_user_who_has_not_hinted_yet_is_not_disappointed():
    dialogue = RuleUser(SETTINGS[0]).begin(TRAIN[0], Difficulty.along(0.6), seed=0)
    assert hint_in(dialogue.turns[0].text) is None
    for _ in range(2):
        assert Explanation.of(dialogue, "Hm.", SETTINGS[0]).appraisal.times_missed == 0
        silent = Turn(speaker=Speaker.USER, text="Hm.", emotion=40, change=0)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text="Hm."), silent)


def test_a_reply_that_tries_several_wishes_is_paid_less_for_the_right_one_and_not_charged_twice_for_a_wrong_one():
    right, both = (
        first_reply("You did so well.", 0.2, family="praise/passive", heard=heard) for heard in (("praise",), ("praise", "siding"))
    )
    assert right.appraisal.worth - both.appraisal.worth == pytest.approx(0.3) and both.losses()["guessing"] == pytest.approx(0.3)
    missed = first_reply("You did nothing wrong. Take your time, I'm listening.", 0.2, family="praise/passive")
    assert missed.appraisal.wishes_tried == 2 and "guessing" not in missed.losses()


# Recorded dialogues


def played(*, index: int = 0, d: float = 0.5, agent: str = "L3", config: RuleUserConfig = WORLD) -> Dialogue:
    return play(AGENTS[agent], TRAIN[index], Difficulty.along(d), seed=index, user=RuleUser(config))


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with two groups of two training dialogues and one held-out dialogue, played under the settings of its config."""
    folder, config = tmp_path / "run", RuleUserConfig(register=Register.WORLD, start_emotion=30, momentum=0.5, quantise=True)
    folder.mkdir()
    settings = "{start_emotion: 30, momentum: 0.5, register: world, quantise: true, kind: rule}"
    (folder / "config.yaml").write_text(f"experiment: smoke\nsimulator: {settings}\nprovenance: {{world: {world_name()}}}\n")
    groups = [{"step": 1 + i // 2, "uid": f"group{i // 2}", "sibling": i % 2, **played(index=i, config=config).to_dict()} for i in range(4)]
    write(folder / "dialogues.jsonl", *groups)
    write(folder / "evaluation.jsonl", {"step": 0, "uid": "eval:one", **played(index=9, config=config).to_dict()})
    return folder


def test_a_run_is_replayed_with_the_settings_of_its_config_unless_flags_say_otherwise(run, capsys):
    assert main(["explain", str(run)]) == 0
    out = capsys.readouterr().out
    assert "register world, momentum 0.5, start at 30, changes rounded to SAGE's changes" in out
    assert "5 change: " in out and "4 dialogues" in out and out.rstrip().endswith("all are the same")
    assert main(["explain", str(run), "--start-emotion", "40", "--no-quantise"]) == 1
    out = capsys.readouterr().out
    assert "recorded 30, recomputed 40" in out and "DIFFERENT" in out


def test_dialogues_are_selected(run, capsys):
    assert main(["explain", str(run), "--uid", "group1", "--sibling", "0", "--num", "0"]) == 0
    assert "1 dialogue," in capsys.readouterr().out
    assert main(["explain", str(run), "--step", "9"]) == 2 and "step 9" in capsys.readouterr().err
    assert main(["explain", str(run), "--uid", "eval:one"]) == 0 and "evaluation.jsonl: 1 dialogue" in capsys.readouterr().out
    # The evaluation of an agent has one file.
    (run / "evaluation.jsonl").rename(run / "dialogues.jsonl")
    assert main(["explain", str(run), "--uid", "eval:one"]) == 2
    with (run / "config.yaml").open("a") as config:
        config.write("agent: {kind: scripted}\n")
    assert main(["explain", str(run), "--uid", "eval:one"]) == 0


def test_a_changed_emotion_is_found_in_its_dialogue_and_causes_no_other_difference(tmp_path, capsys):
    dialogue = played()
    record = dialogue.to_dict()
    record["turns"][2]["change"] += 1
    path = write(tmp_path / "dialogues.jsonl", {"step": 1, **played(index=1).to_dict()}, {"step": 1, "uid": "spoiled", **record})
    assert main(["explain", str(path), "--register", "world", "--num", "0"]) == 1
    out = capsys.readouterr().out
    assert f"differs in dialogue 2 (spoiled): recorded +{dialogue.turns[2].change + 1} to" in out and out.count("differs in") == 1
    record["turns"][2]["emotion"] += 1
    spoiled = Dialogue.from_dict(record, scenario=dialogue.scenario)
    # Without momentum: the turn itself and the next, which starts from its emotion.
    wrong = [i for i, turn in enumerate(replay(spoiled, RuleUserConfig(register=Register.WORLD, momentum=0.0))) if not turn.is_same]
    assert set(wrong) >= {1} and len([i for i in wrong if i > 2]) < len(spoiled.replies())


def test_dialogues_on_profiles_are_replayed_with_the_profiles(tmp_path, capsys):
    write_records(tmp_path / "profiles.jsonl", [profile_of(replace(TRAIN[0], scenario_id="0-1-2"))])
    (profile,) = read_profiles(tmp_path / "profiles.jsonl").values()
    user, reply = RuleUser(RuleUserConfig(preset=Preset.SAGE)), "我在听，你慢慢说。"
    begun = user.begin(profile, VANILLA, seed=0)
    dialogue = begun.then(Turn(speaker=Speaker.AGENT, text=reply), user.answer(begun, reply).turn)
    path = write(tmp_path / "dialogues.jsonl", {"simulator": {"preset": "sage"}, **dialogue.to_dict()})
    assert main(["explain", str(path)]) == 2 and "scenario_id" in capsys.readouterr().err
    assert main(["explain", str(path), "--profiles", str(tmp_path / "profiles.jsonl")]) == 0
    assert capsys.readouterr().out.rstrip().endswith("all are the same")


def test_another_world_is_noted_and_gzipped_files_are_read(tmp_path, capsys):
    record = {"world": "world-7", **played().to_dict()}
    path = tmp_path / "dialogues.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(record) + "\n").encode()))
    assert main(["explain", str(path), "--register", "world"]) == 0
    assert "recorded in world world-7, replayed in world world-1" in capsys.readouterr().out


def test_requests_that_cannot_be_met_are_named(tmp_path, capsys):
    record = played().to_dict()
    silent = {**record, "turns": [record["turns"][0], record["turns"][1], {"speaker": "user", "text": "Hm."}]}
    cases = [(silent, "turn 3"), ({**record, "simulator": {"kind": "llm"}}, "simulator.kind"), ({**record, "turns": []}, "turns")]
    cases += [({**record, "simulator": {"momentum": 2}}, "simulator.momentum"), ({**record, "scenario_id": "nowhere"}, "scenario_id")]
    for broken, name in cases:
        assert main(["explain", str(write(tmp_path / "d.jsonl", broken))]) == 2
        assert name in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none.jsonl")]) == 2


def test_settings_come_from_the_first_source_that_has_them():
    settings = user_settings(
        {"momentum": None}, {"momentum": 0.1, "register": "open"}, {"momentum": 0.5, "start_emotion": 30, "kind": "rule"}
    )
    assert (settings.momentum, settings.start_emotion, settings.register) == (0.1, 30, Register.OPEN)


# Skills read off dialogues

FEW = TRAIN[::41]


def shares_of(agent: str, strictness: float, scenarios: tuple[Scenario, ...] = FEW) -> dict[str, float]:
    dialogues = score_agent(agent, scenarios, [strictness], user=RuleUser(WORLD))[strictness]
    return shares_shown(dialogues, register=Register.WORLD)


def test_each_rung_of_the_ladder_shows_its_skill_and_the_rung_below_does_not():
    for rung, skill in enumerate((Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY), start=1):
        below, at = shares_of(f"L{rung - 1}", 0.3), shares_of(f"L{rung}", 0.3)
        assert at[skill] > below[skill] + 0.4, skill
    assert shares_of("L6", 0.3)["garbled"] < 0.02 and math.isnan(shares_of("L6", 0.1)[Skill.HINTS])


def test_the_skills_command_reads_a_runs_dialogues(tmp_path, capsys):
    scored = score_agent("L2", FEW[:4], [0.2, 0.8], user=RuleUser(WORLD))
    lines = [{"step": step, **dialogue.to_dict()} for step, d in ((3, 0.2), (14, 0.8)) for dialogue in scored[d]]
    path = write(tmp_path / "dialogues.jsonl", *lines)
    assert [dialogue for _, dialogue in read_dialogues(path, load_bank())] == [*scored[0.2], *scored[0.8]]
    assert main(["skills", str(path)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["step", "dialogues", "emotion", "fit"] and [row.split()[:2] for row in rows] == [["0", "4"], ["10", "4"]]
    assert main(["skills", str(path), "--by", "strictness", "--from-step", "10"]) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == ["0.8"]
    with path.open("a") as file:
        file.write(json.dumps(lines[0])[:200])
    assert main(["skills", str(path)]) == 0 and "breaks off within line 9" in capsys.readouterr().err
    for content in ("", "{}\n", '{"scenario_id": "nowhere"}\n'):
        path.write_text(content)
        assert main(["skills", str(path)]) == 2
