"""The embedded user: deterministic, in character, and as strict as the ladder of scripted agents says."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace

import pytest

from analysis.persona_judge import says_outright
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import QUANTA, Skill, appraise, hint_in, is_rebuff, onset
from simulator.explain import replay
from simulator.listener import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import profile_of, scenario_of
from simulator.sage.user import NativeUser
from simulator.scenario import FAMILIES, Difficulty, PersonaType, Scenario, Split
from simulator.scripted import AGENTS, MAX_TURNS, mean_score, play, sample, score_agent
from simulator.world import load_bank, read_toml

TRAIN = load_bank().scenarios(Split.TRAIN)
USER = RuleUser(RuleUserConfig())
ASK = "What happened then?"
ADVISE = "You could ask someone you trust for help."


def opened(d: float, *, index: int = 0, seed: int = 0, user: RuleUser = USER) -> Dialogue:
    return user.begin(TRAIN[index], Difficulty.along(d), seed=seed)


def after(dialogue: Dialogue, *replies: str, user: RuleUser = USER) -> Dialogue:
    for reply in replies:
        reaction = user.answer(dialogue, reply)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn, outcome=reaction.outcome)
        if reaction.outcome is not None:
            break
    return dialogue


def of_family(name: str) -> Scenario:
    return next(scenario for scenario in TRAIN if str(scenario.family) == name)


def test_the_same_dialogue_gives_the_same_reaction_with_and_without_a_loop():
    dialogue = opened(0.5)
    assert USER.answer(dialogue, ASK) == USER.answer(replace(dialogue), ASK) == asyncio.run(USER.react(dialogue, ASK))
    assert asyncio.run(USER.open(dialogue.scenario, dialogue.difficulty, seed=0)) == dialogue


def test_another_seed_mentions_the_facts_in_another_order():
    first, second = (after(opened(0.3, seed=seed), *[ASK] * 3).turns[-1].text for seed in (1, 2))
    assert first != second


def test_emotion_stays_in_bounds_and_its_ends_end_the_dialogue():
    pleased = play(AGENTS["L4"], TRAIN[3], Difficulty.along(0.05), seed=0, user=USER)
    hurt = play(AGENTS["L0"], TRAIN[3], Difficulty.along(0.8), seed=0, user=USER)
    assert (pleased.emotion, pleased.outcome) == (100, Outcome.DELIGHTED)
    assert hurt.emotion < 10 and hurt.outcome is Outcome.LEFT


def test_a_stricter_user_is_never_easier_to_please():
    changes = [USER.answer(opened(d), ADVISE).turn.change for d in (0.0, 0.3, 0.6, 0.9)]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0 > changes[-1]


def test_hints_shrink_with_reserve_and_the_wish_is_never_said_outright():
    def kinds(d: float) -> list[str]:
        texts = after(opened(d), *[ASK] * 5).said()
        return ["overt" if hint_in(text, kinds=("overt",)) else "veiled" if hint_in(text) else "none" for text in texts]

    assert kinds(0.35)[0] == kinds(0.1)[0] == "overt" and kinds(0.5)[0] == "none"
    assert 1 <= kinds(0.6).count("overt") < kinds(0.1).count("overt") >= 3
    assert "overt" not in kinds(0.95) and "veiled" in kinds(0.95)
    for scenario in TRAIN[:30]:
        dialogue = play(AGENTS["L6"], scenario, Difficulty.along(0.3), seed=0, user=USER)
        assert not any(says_outright(text, scenario) for text in dialogue.said())


def test_stuffing_garble_and_silence_do_not_pay_even_where_nothing_is_asked_for():
    stuffed = "I admire how you handled this. You could make a plan. This is not your fault. I am listening. Maybe your friend was afraid."
    assert USER.answer(opened(0.3), stuffed).turn.change < USER.answer(opened(0.3), ASK).turn.change
    assert USER.answer(opened(0.3), stuffed).turn.change <= 0
    for reply in ("I admire your same the so.", "", "proud proud proud proud", "admire fault sorry listening"):
        assert USER.answer(opened(0.0), reply).turn.change <= 0, reply


def test_momentum_carries_a_share_of_the_last_change():
    started = opened(0.0)
    up = replace(started, turns=(replace(started.turns[0], change=10),))
    still, carried = (RuleUser(RuleUserConfig(momentum=momentum)).answer(up, ADVISE).turn.change for momentum in (0.0, 0.1))
    assert carried == still + 1


def test_quantised_changes_are_those_that_were_recorded():
    user = RuleUser(RuleUserConfig(quantise=True))
    assert {user.answer(opened(d, index=i), ADVISE).turn.change for d in (0.0, 0.4, 0.9) for i in range(5)} <= set(QUANTA)


def test_a_difficult_user_doubts_twice_a_dialogue_by_its_seed():
    for seed, doubted in ((0, [3, 6]), (1, [4, 6]), (2, [3, 7]), (3, [4, 7])):
        dialogue, turns = opened(1.0, seed=seed), []
        for number in range(1, 9):
            turns += [number] if is_rebuff(dialogue) else []
            silent = Turn(speaker=Speaker.USER, text="Hm.", emotion=40, change=0)
            dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text="Hm."), silent)
        assert turns == doubted
    assert not is_rebuff(replace(dialogue, difficulty=Difficulty.along(0.3), turns=dialogue.turns[:5]))


def test_listening_takes_two_explorations_from_the_second_reply_on():
    first = opened(0.5)
    assert appraise(first, ASK).shown[Skill.LISTENING]
    second = after(first, ADVISE)
    assert not appraise(second, ASK).shown[Skill.LISTENING]
    assert appraise(after(first, ASK), "What did they say?").shown[Skill.LISTENING]


def test_hints_are_shown_only_where_all_hints_so_far_were_veiled():
    hints = read_toml("phrases")["hints"]["advice"]
    start = replace(USER.begin(of_family("advice/passive"), Difficulty.along(0.9), seed=0))

    def shown(*lines: str) -> bool | None:
        turns = [Turn(speaker=Speaker.USER, text=lines[0], emotion=40)]
        for line in lines[1:]:
            turns += [Turn(speaker=Speaker.AGENT, text="Hm."), Turn(speaker=Speaker.USER, text=line, emotion=40, change=0)]
        return appraise(replace(start, turns=tuple(turns)), ADVISE).shown[Skill.HINTS]

    overt, veiled = hints["overt"][0], hints["veiled"][0]
    assert (shown(veiled), shown(overt), shown(overt, veiled), shown("Hm.")) == (True, None, None, None)


def test_a_line_is_repeated_at_random_once_all_were_said():
    drawn = {RuleUser.fresh(["a", "b", "c"], "a\nb\nc", random.Random(seed)) for seed in range(30)}
    assert drawn == {"a", "b", "c"} and RuleUser.fresh(["a", "b", "c"], "a\nc", random.Random(0)) == "b"


def test_a_goodbye_of_the_agent_ends_the_dialogue_once_the_user_is_relieved():
    start = opened(0.2)
    assert USER.answer(start, "I wish you well, goodbye.").outcome is None
    relieved = replace(start, turns=(replace(start.turns[0], emotion=90),))
    assert USER.answer(relieved, "I wish you well, goodbye.").outcome is Outcome.FAREWELL


@pytest.mark.parametrize(
    ("field", "value"), [("start_emotion", 100), ("start_emotion", 5), ("momentum", 1.0), ("momentum", -0.1), ("momentum", float("nan"))]
)
def test_settings_out_of_range_are_named(field: str, value: float):
    with pytest.raises(ValueError, match=field):
        RuleUserConfig(**{field: value})
    with pytest.raises(ValueError, match=r"simulator\.momentum must be"):
        RuleUserConfig(preset=Preset.SAGE, momentum=0.5)


# The ladder

SCENARIOS = sample(TRAIN, 1, seed=0)
ONSETS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85)


@pytest.mark.parametrize("register", list(Register))
def test_a_rung_pleases_until_the_next_skill_is_asked_for_and_fails_once_the_one_after_is(register: Register):
    user = RuleUser(RuleUserConfig(register=register))

    def score(name: str, d: float) -> float:
        return mean_score(score_agent(name, SCENARIOS, [d], user=user)[d])

    assert min(score(f"L{rung}", ONSETS[rung] - 0.06) for rung in range(6)) >= 70
    assert max(score(f"L{rung}", ONSETS[rung + 1] + 0.01) for rung in range(5)) < 40
    assert min(score("L6", d) for d in (0.1, 0.5, 0.9)) >= 70
    assert score("praise", 0.1) >= 55 and score("praise", 0.5) <= 25
    assert all(score("parrot", d) <= 68 < score("L6", d) for d in (0.3, 0.7))


def test_families_shift_onsets_by_at_most_point_fifteen():
    shifts = [onset(skill, family) - base for skill, base in zip(Skill, ONSETS, strict=True) for family in FAMILIES]
    assert max(map(abs, shifts)) <= 0.15 + 1e-9 and len({round(shift, 3) for shift in shifts}) > 5


def test_a_scripted_agent_stops_at_the_turn_limit():
    dialogue = play(AGENTS["L6"], TRAIN[0], Difficulty.along(0.95), seed=1, user=USER)
    assert dialogue.num_replies <= MAX_TURNS and dialogue.outcome is not None


# Profiles

CHINESE = ("后来怎么样了？", "你一定很委屈。", "你应该去找他谈谈。", "我在听，你慢慢说。", "这不是你的错。", "你真了不起。")


def native(*, persona: PersonaType = PersonaType.PASSIVE, language: str = "zh") -> Scenario:
    scenario = next(one for one in TRAIN if one.family.persona is persona)
    opening = "我今天特别难受，没人理解我。" if language == "zh" else scenario.opening
    return replace(scenario_of(profile_of(scenario), split=Split.HELDOUT), opening=opening, language=language)


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize("persona", PersonaType)
def test_a_user_with_a_chinese_profile_says_nothing_in_english_and_hints_at_nothing(persona: PersonaType, preset: Preset):
    user = NativeUser(RuleUserConfig(preset=preset))
    for strictness, seed in ((0.1, 0), (0.5, 1), (0.9, 2)):
        played = after(user.begin(native(persona=persona), Difficulty.along(strictness), seed=seed), *CHINESE, user=user)
        assert not [text for text in played.said() if re.search("[A-Za-z]", text) or not text or hint_in(text)]
        assert len(set(played.said()[1:])) > len(played.replies()) / 2
        assert all(turn.is_same and not turn.other_differences for turn in replay(played, user.config))


def test_a_profile_changes_the_words_and_not_the_feelings():
    user, config = NativeUser(RuleUserConfig()), RuleUserConfig()
    dialogue = user.begin(native(), Difficulty.along(0.4), seed=3)
    mine, plain = (kind(config).answer(dialogue, CHINESE[1]).turn for kind in (NativeUser, RuleUser))
    assert (mine.emotion, mine.change, mine.thought) == (plain.emotion, plain.change, plain.thought) and mine.text != plain.text
    assert "那件事" in user.answer(dialogue, CHINESE[0]).turn.text
    assert opened(0.5, user=user) == opened(0.5)
