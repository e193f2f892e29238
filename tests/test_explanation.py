"""What a user felt, taken apart: the parts are those of the rule, and the words hold the figures."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import Skill, change_of_emotion, hint_in, onset
from simulator.explain import Explanation, FiveSteps, explain_reply, figure, five_steps
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

SETTINGS = (
    RuleUserConfig(),
    RuleUserConfig(register=Register.WORLD, momentum=0.0, start_emotion=30),
    RuleUserConfig(register=Register.WORLD, momentum=0.7, quantise=True),
)
PRODUCT = re.compile(r"(−?[\d.]+(?: × −?[\d.]+)+) = (−?[\d.]*\d)")


def some_dialogues(num: int, *, config: RuleUserConfig, seed: int = 0) -> Iterator[Dialogue]:
    """Of all agents and families, on the line of difficulty and off it."""
    chance, user, scenarios = random.Random(seed), RuleUser(config), load_bank().scenarios(Split.TRAIN)
    for i in range(num):
        axes = Difficulty(strictness=chance.random(), reserve=chance.random(), impatience=chance.random())
        difficulty = axes if i % 2 else Difficulty.along(chance.random())
        yield play(AGENTS[chance.choice(list(AGENTS))], chance.choice(scenarios), difficulty, seed=chance.randrange(1000), user=user)


def answered(dialogue: Dialogue) -> Iterator[tuple[Dialogue, int]]:
    """Each reply's dialogue before it, and its place."""
    for index, turn in enumerate(dialogue.turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            yield replace(dialogue, turns=dialogue.turns[:index], outcome=None), index


def explained(reply: str, d: float, *, index: int = 0, config: RuleUserConfig = SETTINGS[0]) -> Explanation:
    """The first reply to a training scenario."""
    opened = RuleUser(config).begin(load_bank().scenarios(Split.TRAIN)[index], Difficulty.along(d), seed=0)
    return explain_reply(opened, reply, config)


def value(text: str) -> float:
    return float(text.replace("−", "-"))


@pytest.mark.parametrize("config", SETTINGS)
def test_the_parts_add_up_to_the_rules_change_on_hundreds_of_dialogues(config: RuleUserConfig):
    num_replies = num_costs = num_doubts = 0
    for dialogue in some_dialogues(200, config=config):
        for before, index in answered(dialogue):
            explanation = explain_reply(before, dialogue.turns[index].text, config)
            answer = dialogue.turns[index + 1]
            assert explanation.worth.total == explanation.appraisal.worth
            change = change_of_emotion(explanation.appraisal, before, momentum=config.momentum, quantise=config.quantise)
            assert explanation.points.change == change
            assert (explanation.points.felt, explanation.points.after) == (answer.change, answer.emotion)
            assert explanation.thought == answer.thought
            num_replies += 1
            num_costs += sum(cost.taken > 0 for cost in explanation.worth.costs)
            num_doubts += explanation.points.doubt is not None
    assert num_replies > 800 and num_costs > 800 and num_doubts > 20


def test_every_product_and_every_sum_in_the_words_is_right():
    num_products = 0
    for dialogue in some_dialogues(60, config=SETTINGS[0], seed=1):
        for before, index in answered(dialogue):
            explanation = explain_reply(before, dialogue.turns[index].text, SETTINGS[0])
            steps, points = five_steps(explanation), explanation.points
            products = PRODUCT.findall(steps.change)
            for factors, result in products:
                product = 1.0
                for factor in factors.split(" × "):
                    product *= value(factor)
                assert product == pytest.approx(value(result), abs=2e-3), (factors, result)
            num_products += len(products)
            by_hand = value(products[0][1])
            for opening, sign in (("Impatience", -1.0), ("Disappointment", -1.0), ("Of the change", 1.0)):
                found = re.search(opening + r"[^=]*= (−?[\d.]*\d)", steps.change)
                by_hand += sign * value(found[1]) if found else 0.0
            together = re.search(r"Together (−?[\d.]*\d)\.", steps.change)
            assert together and value(together[1]) == pytest.approx(by_hand, abs=1e-3)
            assert steps.change.endswith(f"Emotion {points.before} → {points.after}.") or "(not beyond" in steps.change
    assert num_products > 400


def test_a_missed_fit_is_charged_by_hand():
    # Strictness .2, "advice" from a passive user: fit counts in full (onset .1, ramp .1), the rest not yet.
    scenarios = load_bank().scenarios(Split.TRAIN)
    index = next(i for i, scenario in enumerate(scenarios) if str(scenario.family) == "advice/passive")
    explanation = explained("Everything will be fine.", 0.2, index=index)
    taken = {cost.name: cost.taken for cost in explanation.worth.costs if cost.taken}
    # 1 - 1.2 for the fit - .3 for running against the wish = -.5
    assert taken == pytest.approx({"fit": 1.2, "against": 0.3})
    assert explanation.worth.total == pytest.approx(-0.5)
    # 3.5 * (.4 + 1.6 * .2) = 2.52; 2.52 * -.5 = -1.26; impatience .3 * .2 / .35 = .1714 drains 1.5 * .1714 = .2571: -1.517
    assert explanation.points.exact == pytest.approx(-1.517, abs=1e-3)
    assert explanation.points.felt == -2


def test_what_does_not_count_yet_is_named_with_its_onset_and_costs_nothing():
    explanation = explained("Everything will be fine.", 0.05)
    steps, begins = five_steps(explanation), onset(Skill.LISTENING, explanation.dialogue.scenario.family)
    assert f"it goes on without having asked enough, which counts only from strictness {begins:.2f} on." in steps.activity
    assert steps.feeling.startswith("Worth 1.")


def test_the_steps_name_what_was_heard_and_what_was_wished_for():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    steps = five_steps(explained(f"What happened with {scenario.facts[0].cue}?", 0.5))
    assert steps.says.startswith(f"Heard as question. Takes up {scenario.facts[0].cue}.")
    assert scenario.hidden_intention in steps.meets


def test_garble_is_charged_in_figures():
    explanation = explained("I admire your same the so.", 0.0)
    assert explanation.worth.clarity < 1.0
    assert (
        f"× clarity {figure(explanation.worth.clarity)}, less 1 × {figure(1 - explanation.worth.clarity)}"
        in five_steps(explanation).feeling
    )


def test_the_steps_come_in_sages_order():
    steps = FiveSteps(says="a", meets="b", activity="c", feeling="d", change="e")
    assert [text for _, text in steps.named()] == ["a", "b", "c", "d", "e"]
    assert [title for title, _ in steps.named()] == ["what the reply says", "the hidden intention", "inner activity", "feeling", "change"]


@pytest.mark.parametrize(("number", "text"), [(1.0, "1"), (-0.25, "−0.25"), (-0.00001, "0"), (1 / 3, "0.3333"), (10.0, "10")])
def test_figures_have_no_needless_zeros(number: float, text: str):
    assert figure(number) == text


def test_a_wish_missed_again_and_again_disappoints_more_each_time_until_it_is_met():
    # Impatience .3 at VANILLA: the second miss in a row takes 1.5 * .3 * 1 = .45 on top, the third .9, the sixth and later 1.8.
    scenario = next(one for one in load_bank().scenarios(Split.TRAIN) if str(one.family) == "advice/passive")
    user, praise, advice = RuleUser(SETTINGS[0]), "You did so well.", "You could talk to them openly."
    dialogue = user.begin(scenario, VANILLA, seed=0)
    taken = []
    for reply in (praise, praise, praise, advice, praise, praise, *[praise] * 5):
        explanation = explain_reply(dialogue, reply, SETTINGS[0])
        taken.append((explanation.appraisal.times_missed, explanation.points.disappointed))
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), user.answer(dialogue, reply).turn)
    assert [times for times, _ in taken] == [1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]
    assert [points for _, points in taken] == pytest.approx([0, 0.45, 0.9, 0, 0, 0.45, 0.9, 1.35, 1.8, 1.8, 1.8])
    steps = five_steps(explanation)
    assert "It is reply number 7 in a row that does not." in steps.meets and "it is not the first time" in steps.feeling
    assert "Disappointment at a wish missed again takes 1.5 × 0.3 × 4 = 1.8." in steps.change


def test_nobody_is_disappointed_who_has_not_hinted_yet():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = RuleUser(SETTINGS[0]).begin(scenario, Difficulty.along(0.6), seed=0)
    assert hint_in(dialogue.turns[0].text) is None
    for _ in range(2):
        assert explain_reply(dialogue, "Hm.", SETTINGS[0]).appraisal.times_missed == 0
        silent = Turn(speaker=Speaker.USER, text="Hm.", emotion=40, change=0)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text="Hm."), silent)


def test_whoever_tries_several_wishes_at_once_is_paid_less_for_the_right_one():
    scenario = next(one for one in load_bank().scenarios(Split.TRAIN) if str(one.family) == "praise/passive")
    dialogue = RuleUser(SETTINGS[0]).begin(scenario, Difficulty.along(0.2), seed=0)
    right, both = (explain_reply(dialogue, reply, SETTINGS[0]) for reply in ("You did so well.", "You did so well. You did nothing wrong."))
    assert right.worth.total - both.worth.total == pytest.approx(0.3)
    assert "as if to try which one it is, 0.3 × weight 1 = −0.3." in five_steps(both).activity
