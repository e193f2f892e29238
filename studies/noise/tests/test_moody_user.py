"""Users whose mood decides now and then: whom it strikes, that it repeats, and that without it they are the embedded user."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simulator.__main__ import main
from simulator.listener import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, PersonaType, Split
from simulator.scripted import AGENTS, play
from simulator.user import make_user
from simulator.world import load_bank
from studies.noise.moody_share import share_of
from studies.noise.moody_user import MoodyUser, MoodyUserConfig

MIDDLE = Difficulty.along(0.5)


def scenarios(split: Split, persona: PersonaType):
    return [scenario for scenario in load_bank().scenarios(split) if scenario.family.persona is persona][:6]


def moody(whim_prob: float, *families: str) -> MoodyUser:
    return make_user("moody", MoodyUserConfig(whim_prob=whim_prob, families=list(families or ["*/negative"]), register=Register.WORLD))


def dialogues(user: RuleUser, split: Split, persona: PersonaType, agent: str = "L3", difficulty: Difficulty = MIDDLE):
    found = scenarios(split, persona)
    return [play(AGENTS[agent], scenario, difficulty, seed=i, user=user) for i, scenario in enumerate(found)]


def test_moods_strike_training_users_of_the_named_families_and_nobody_else():
    steady = RuleUser(RuleUserConfig(register=Register.WORLD))
    for split, persona, is_moody in [
        (Split.TRAIN, PersonaType.NEGATIVE, True),
        (Split.TRAIN, PersonaType.PASSIVE, False),
        (Split.HELDOUT, PersonaType.NEGATIVE, False),
        (Split.SEALED, PersonaType.NEGATIVE, False),
    ]:
        assert (dialogues(moody(0.7), split, persona) != dialogues(steady, split, persona)) is is_moody, (split, persona)


def test_a_user_without_whims_is_the_embedded_user():
    steady = RuleUser(RuleUserConfig(register=Register.WORLD))
    assert dialogues(moody(0.0), Split.TRAIN, PersonaType.NEGATIVE) == dialogues(steady, Split.TRAIN, PersonaType.NEGATIVE)


def test_a_mood_repeats_for_the_same_words_and_differs_for_others():
    user = moody(1.0)
    (scenario, *_) = scenarios(Split.TRAIN, PersonaType.NEGATIVE)
    opened = user.begin(scenario, MIDDLE, seed=3)
    assert user.answer(opened, "that must hurt.") == user.answer(opened, "that must hurt.")
    moods = {user.taken(opened, f"i hear you, number {i}.").difficulty.strictness for i in range(20)}
    assert moods == {0.0, 1.0}
    assert user.taken(opened, "that must hurt.").difficulty.reserve == MIDDLE.reserve


def test_with_moods_it_matters_less_what_the_agent_does():
    def gap(user: RuleUser) -> float:
        able, unable = (
            np.mean([dialogue.emotion for dialogue in dialogues(user, Split.TRAIN, PersonaType.NEGATIVE, agent)]) for agent in ("L3", "L0")
        )
        return float(able - unable)

    assert gap(moody(0.0)) > gap(moody(0.7)) + 15.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"preset": Preset.SAGE},
            "simulator.preset must be training with moods, got sage: there difficulty, and so a mood, does not enter",
        ),
        ({"families": []}, "simulator.families must name families, got none; simulator.kind=rule has no moods"),
        ({"whim_prob": 1.5}, r"simulator.whim_prob must be in \[0, 1\], got 1.5"),
        ({"families": ["*/cheerful"]}, "simulator.families must be patterns such as .* got '\\*/cheerful', which fits none"),
    ],
)
def test_wrong_moods_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MoodyUserConfig(**settings)


def test_moods_are_replayed_and_told(tmp_path, capsys):
    settings = {"whim_prob": 0.7, "families": ["*/negative"], "register": Register.WORLD}
    (scenario, *_) = [one for one in load_bank().scenarios(Split.TRAIN) if one.family.persona is PersonaType.NEGATIVE]
    dialogue = play(AGENTS["L3"], scenario, Difficulty.along(0.5), seed=3, user=MoodyUser(MoodyUserConfig(**settings)))
    (path := tmp_path / "dialogues.jsonl").write_text(json.dumps({"step": 1, **dialogue.to_dict()}) + "\n", encoding="utf-8")
    assert main(["explain", str(path), "--register", "world", "--num", "0"]) == 1
    (tmp_path / "config.yaml").write_text(json.dumps({"simulator": {"kind": "moody", **settings}}))
    capsys.readouterr()
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "whim_prob 0.7, families ['*/negative']" in out and "in a mood: strictness 1, impatience 1" in out
    assert out.rstrip().endswith("all are the same")


def test_the_share_of_groups_that_went_to_moody_families():
    assert share_of(["advice/positive", "praise/negative", "praise/negative", "blame/negative"], ["*/negative"]) == 0.75
