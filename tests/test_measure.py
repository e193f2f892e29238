"""What a group says about its task, and what a step says about the policy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from policy_factories import group, rollout

from curriculum.collapse.monitor import INDICATORS
from curriculum.task import Mode, Status, TaskSpec
from experiments.checks import ErrorBudget
from experiments.metrics import (
    INDICATOR_METRICS,
    behaviour_metrics,
    collapse_values,
    crossed_logprobs,
    dealt,
    dialogue_metrics,
    entropy_sampled,
    exchanges,
    length_correlation,
    measure,
    probe_metrics,
    signal_metrics,
    suspicious_share,
    third,
)
from policy.rollout.chat import Thought
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Outcome, Speaker, Turn
from simulator.scenario import FAMILIES, Difficulty


def make_rollout(*, emotion: int = 50, outcome: Outcome = Outcome.MAX_TURNS, heard: tuple[str, ...] = (), error: str = "") -> Rollout:
    plain = rollout([1, 2, 3], [0, 1, 1], reward=math.nan if outcome is Outcome.ERROR else emotion / 100, outcome=outcome)
    turns = (
        Turn(speaker=Speaker.USER, text="my week", emotion=40),
        Turn(speaker=Speaker.AGENT, text="tell me more about it please"),
        Turn(speaker=Speaker.USER, text="well", emotion=emotion, change=emotion - 40, heard=heard),
    )
    return replace(plain, dialogue=plain.dialogue.then(*turns, outcome=outcome, error=error))


def make_group(*rollouts: Rollout) -> RolloutGroup:
    task = TaskSpec(
        uid="t",
        family=FAMILIES[0],
        scenario_id="scenario",
        difficulty=Difficulty.along(0.5),
        strictness=0.5,
        group_size=len(rollouts),
        seed=0,
        mode=Mode.FRONTIER,
        teacher_step=1,
        policy_version=0,
        propensity=1.0,
    )
    return RolloutGroup(task=task, rollouts=rollouts)


def test_success_is_a_final_emotion_of_at_least_the_setting():
    outcome = measure(make_group(make_rollout(emotion=69), make_rollout(emotion=70), make_rollout(emotion=100)), success_emotion=70)
    assert outcome.successes == (False, True, True)
    assert outcome.rewards == (0.69, 0.7, 1.0)
    assert outcome.num_tokens == (2, 2, 2)
    assert outcome.statuses == (Status.OK,) * 3


def test_a_broken_dialogue_is_marked_and_has_no_reward_and_no_success():
    broken = make_rollout(emotion=90, outcome=Outcome.ERROR)
    outcome = measure(make_group(broken, make_rollout(outcome=Outcome.TRUNCATED)), success_emotion=70)
    assert math.isnan(outcome.rewards[0]) and outcome.rewards[1] == 0.5
    assert outcome.successes == (False, False)
    assert outcome.statuses == (Status.SIMULATOR_ERROR, Status.TRUNCATED)
    assert outcome.surviving == (1,)


def test_strategies_heard_are_shares_of_answered_replies():
    outcome = measure(make_group(make_rollout(heard=("praise", "question")), make_rollout(heard=("praise",))), success_emotion=70)
    assert outcome.signals["heard/praise"] == 1.0
    assert outcome.signals["heard/question"] == 0.5


def test_sampled_entropy_is_the_mean_surprise_of_the_sampled_tokens():
    rollouts = [rollout([1, 2, 3], [0, 1, 1], logprobs=[-9, -1, -2]), rollout([1, 2], [0, 1], logprobs=[-9, -3])]
    assert entropy_sampled(rollouts) == pytest.approx(2.0)
    assert math.isnan(entropy_sampled([]))


def test_broken_dialogues_count_in_the_share_of_errors_alone():
    groups = [make_group(make_rollout(emotion=80), make_rollout(outcome=Outcome.ERROR))]
    metrics = dialogue_metrics(groups, success_emotion=70)
    assert metrics["dialogue/error_share"] == 0.5
    assert metrics["reward/mean"] == 0.8 and metrics["reward/success_rate"] == 1.0
    assert metrics["dialogue/max_turns"] == 1.0
    assert metrics["response_length/mean"] == 2.0


def test_groups_that_fare_alike_are_told_apart_by_how_they_fared():
    low, high, mixed = [0, 0], [100, 100], [0, 100]
    groups = [make_group(*(make_rollout(emotion=emotion) for emotion in emotions)) for emotions in (low, low, high, mixed)]
    metrics = signal_metrics([measure(each, success_emotion=70) for each in groups])
    assert metrics["curriculum/all_low_share"] == 0.5
    assert metrics["curriculum/all_high_share"] == 0.25
    # variances 0, 0, 0 and 1/2, times 4, over four groups
    assert metrics["curriculum/reward_density"] == pytest.approx(0.5)


def test_the_collapse_monitor_gets_every_indicator_it_knows():
    assert set(INDICATOR_METRICS) == set(INDICATORS)


def broken_group(*, num_good: int, num_broken: int, error: str = "Traceback: no answer") -> RolloutGroup:
    good = [make_rollout() for _ in range(num_good)]
    return group(*good, *(make_rollout(outcome=Outcome.ERROR, error=error) for _ in range(num_broken)))


def test_one_dialogue_in_twenty_may_break_and_not_one_more():
    faults = ErrorBudget(0.05)
    faults.observe([broken_group(num_good=190, num_broken=10)])
    remedy = r"check the simulator and the engine, or resume with a larger rollout\.max_error_share"
    said = rf"at most 10 of the last 200 dialogues may break, got 11; {remedy}; the first:\nTraceback: no answer"
    with pytest.raises(RuntimeError, match=said):
        faults.observe([broken_group(num_good=0, num_broken=1)])


def test_the_error_that_is_quoted_is_one_of_those_that_count():
    faults = ErrorBudget(0.05)
    faults.observe([broken_group(num_good=0, num_broken=1, error="Traceback: of long ago")])
    faults.observe([broken_group(num_good=200, num_broken=0)])
    resumed = ErrorBudget(0.05)
    resumed.load_state_dict(json.loads(json.dumps(faults.state_dict())))
    for budget in (faults, resumed):
        with pytest.raises(RuntimeError, match=r"got 11; .*; the first:\nTraceback: of now"):
            budget.observe([broken_group(num_good=0, num_broken=11, error="Traceback: of now")])


def test_old_errors_are_forgotten():
    faults = ErrorBudget(0.05)
    faults.observe([broken_group(num_good=0, num_broken=10)])
    faults.observe([broken_group(num_good=200, num_broken=0)])
    faults.observe([broken_group(num_good=0, num_broken=10)])
    assert faults.counts() == {"simulator": 20, "engine": 0, "excluded_dialogues": 20}


def test_errors_of_the_engine_are_counted_apart():
    faults = ErrorBudget(0.05)
    faults.observe(
        [broken_group(num_good=5, num_broken=2, error="policy.engine.engine.EngineError: gone"), broken_group(num_good=5, num_broken=1)]
    )
    assert faults.counts() == {"simulator": 1, "engine": 2, "excluded_dialogues": 3}


def test_ten_empty_steps_in_a_row_stop_a_run_but_steps_that_fare_alike_do_not():
    faults = ErrorBudget(1.0)
    for _ in range(20):
        faults.observe([broken_group(num_good=2, num_broken=0)])
    for _ in range(9):
        faults.observe([])
    faults.observe([broken_group(num_good=0, num_broken=2), broken_group(num_good=2, num_broken=1)])
    for _ in range(9):
        faults.observe([broken_group(num_good=0, num_broken=2)])
    with pytest.raises(RuntimeError, match=r"10 steps in a row must not come back empty; .*the first error:\nTraceback: no answer"):
        faults.observe([])


def test_steps_that_expired_whole_stop_a_run_and_say_so():
    faults = ErrorBudget(1.0)
    for _ in range(9):
        faults.observe([])
    with pytest.raises(RuntimeError, match=r"10 steps in a row must not come back empty; .*no dialogue broke: all groups expired"):
        faults.observe([])


def test_a_survivor_without_siblings_is_of_use_only_where_siblings_are_not_compared():
    for num_needed, is_stopped in ((2, True), (1, False)):
        faults = ErrorBudget(1.0, num_needed=num_needed)
        for _ in range(9):
            faults.observe([broken_group(num_good=1, num_broken=1)])
        if is_stopped:
            with pytest.raises(RuntimeError, match="10 steps in a row"):
                faults.observe([broken_group(num_good=1, num_broken=1)])
        else:
            faults.observe([broken_group(num_good=1, num_broken=1)])


def test_the_fault_budget_resumes_where_it_was():
    faults, again = ErrorBudget(0.05), ErrorBudget(0.05)
    faults.observe([broken_group(num_good=90, num_broken=10)])
    again.load_state_dict(faults.state_dict())
    assert again.state_dict() == faults.state_dict()
    with pytest.raises(RuntimeError, match="got 11"):
        again.observe([broken_group(num_good=0, num_broken=1)])


def test_replies_that_address_the_simulator_are_a_share_of_those_answered():
    plain, odd = make_rollout().dialogue, make_rollout().dialogue
    odd = replace(odd, turns=(*odd.turns[:-1], replace(odd.turns[-1], suspicion=("score", "format"))))
    assert suspicious_share([plain, plain, odd, plain]) == 0.25
    assert math.isnan(suspicious_share([]))


def spoken(*replies: str, family: int = 0, strictness: float = 0.5, heard: str = "", emotion: int = 50, num_tokens: int = 2) -> Rollout:
    """A dialogue of these replies, each heard as the same strategy."""
    plain = rollout([1] * (num_tokens + 1), [0] + [1] * num_tokens, reward=emotion / 100)
    heard_as = (heard,) if heard else ()
    turns = [
        turn
        for reply in replies
        for turn in (
            Turn(speaker=Speaker.AGENT, text=reply),
            Turn(speaker=Speaker.USER, text="well", emotion=emotion, change=1, heard=heard_as),
        )
    ]
    scenario = replace(plain.dialogue.scenario, family=FAMILIES[family])
    dialogue = replace(plain.dialogue, scenario=scenario, difficulty=Difficulty.along(strictness), turns=tuple(turns))
    return replace(plain, dialogue=dialogue)


def test_siblings_that_answer_alike_are_told_from_users_that_are_answered_alike():
    alike_within = [make_group(spoken("a b c d"), spoken("a b c d")), make_group(spoken("e f g h"), spoken("e f g h"))]
    metrics = behaviour_metrics(alike_within)
    assert metrics["dialogue/self_bleu_siblings"] == 1.0 and metrics["dialogue/self_bleu_prompts"] == 0.0
    alike_across = [make_group(spoken("a b c d"), spoken("e f g h")), make_group(spoken("a b c d"), spoken("i j k l"))]
    metrics = behaviour_metrics(alike_across)
    assert metrics["dialogue/self_bleu_siblings"] == 0.0 and metrics["dialogue/self_bleu_prompts"] == 1.0


def test_strategies_chosen_by_persona_tell_of_the_persona_and_not_of_strictness():
    choice = {0: "praise", 1: "question"}  # families 0 and 1 share their intention
    groups = [make_group(*(spoken("a", family=f, strictness=d, heard=choice[f]) for d in (0.1, 0.9) for _ in range(50))) for f in (0, 1)]
    metrics = behaviour_metrics(groups)
    assert metrics["dialogue/strategy_entropy"] == pytest.approx(math.log(2), abs=0.01)
    assert metrics["dialogue/strategy_information/persona"] == pytest.approx(math.log(2), abs=0.01)
    assert metrics["dialogue/strategy_information/intention"] == pytest.approx(0.0, abs=0.01)
    assert metrics["dialogue/strategy_information/strictness"] == pytest.approx(0.0, abs=0.01)


def test_length_and_reward_are_compared_among_siblings_alone():
    # Longer pays within both groups; between them the one of long replies fares worse.
    groups = [
        [spoken("a", num_tokens=2, emotion=60), spoken("a", num_tokens=4, emotion=80)],
        [spoken("a", num_tokens=12, emotion=10), spoken("a", num_tokens=14, emotion=30)],
    ]
    assert length_correlation(groups) == pytest.approx(1.0)
    assert math.isnan(length_correlation([groups[0][:1]]))


def test_any_first_part_of_what_is_dealt_holds_every_group():
    a, b, c = (spoken(text) for text in "abc")
    assert [dialogue.replies() for dialogue in dealt([[a, b], [c]])] == [["a"], ["c"], ["b"]]


def test_broken_rollouts_make_no_group_look_alike():
    groups = [make_group(make_rollout(emotion=80), make_rollout(emotion=20), make_rollout(outcome=Outcome.ERROR)) for _ in range(3)]
    metrics = signal_metrics([measure(each, success_emotion=70) for each in groups])
    # Neighbours succeed half the time: two survivors are alike by chance in half the groups, here in none.
    assert metrics["curriculum/alike_excess"] == pytest.approx(-0.5)
    assert metrics["curriculum/groups_effective_share"] == pytest.approx(1.0)


def test_the_panel_is_told_by_thirds_of_strictness_and_must_fall_with_it():
    panel = [spoken("a", strictness=d, emotion=emotion) for d, emotion in ((0.1, 90), (0.3, 70), (0.5, 50), (0.9, 20))]
    metrics = probe_metrics(panel)
    assert metrics["probe/reward_easy"] == pytest.approx(0.8)
    assert metrics["probe/reward_middle"] == 0.5 and metrics["probe/reward_hard"] == 0.2
    assert metrics["probe/strictness_correlation"] == pytest.approx(-1.0)
    assert [third(d) for d in (0.0, 1 / 3, 0.66, 1.0)] == ["easy", "middle", "middle", "hard"]


def test_first_replies_are_scored_in_the_contexts_of_all_that_differ():
    panel = [
        rollout([1, 2, 7, 8, 3, 9], [0, 0, 1, 1, 0, 1]),
        rollout([5, 6, 4], [0, 1, 1]),
        rollout([1, 2, 9], [0, 0, 1]),  # the first one's context
        rollout([3, 9], [0, 1], outcome=Outcome.ERROR),
        rollout([4, 6], [0, 1]),
    ]
    pairs = exchanges(panel, num_contexts=2)
    assert pairs == [([1, 2], [7, 8]), ([5], [6, 4])]
    # A policy that goes on counting: each token costs its distance from the one before.
    crossed_NN = crossed_logprobs(pairs, lambda ids: [-abs(b - a) for a, b in pairwise(ids)])
    assert crossed_NN.tolist() == [[-5 - 1, -2 - 1], [-4 - 2, -1 - 2]]
    assert exchanges(panel, num_contexts=16)[2:] == [([4], [6])]


def test_a_step_without_a_look_at_the_panel_says_nothing_of_it():
    step = {key: 0.5 for key in INDICATOR_METRICS.values() if not key.startswith("probe/")}
    assert set(INDICATORS) - set(collapse_values(step)) == {name for name in INDICATORS if name.startswith("probe_")} | {
        "obedience",
        "retrieval",
    }


def test_thinking_is_measured_over_replies_where_there_is_any():
    thoughts = [Thought(text="a", num_tokens=n, well_formed=n < 9, cut_off=n == 12) for n in (4, 8, 12)]
    thinking = [replace(make_rollout(), thoughts=tuple(thoughts[:2])), replace(make_rollout(), thoughts=tuple(thoughts[2:]))]
    metrics = dialogue_metrics([group(*thinking)], success_emotion=70)
    assert metrics["rollout/think_tokens"] == 8.0
    assert metrics["rollout/format_ok"] == pytest.approx(2 / 3)
    assert metrics["rollout/think_truncated"] == pytest.approx(1 / 3)
    plain = dialogue_metrics([group(make_rollout(), make_rollout())], success_emotion=70)
    assert not any(key.startswith(("rollout/think", "rollout/format")) for key in plain)
