"""What a teacher observes of a group, the metrics of a step, and the checks on broken dialogues and weights."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from policy_factories import group, rollout

from curriculum.task import Mode, Status, TaskSpec
from experiments.checks import ErrorBudget, arrival_difference, to_score
from experiments.metrics import (
    dialogue_metrics,
    entropy_sampled,
    length_correlation,
    measure,
    probe_metrics,
    retrieval_metrics,
    signal_metrics,
    third,
)
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Outcome, Speaker, Turn
from simulator.scenario import FAMILIES, Difficulty
from simulator.tokens import Thought


def talked(*, emotion: int = 50, outcome: Outcome = Outcome.MAX_TURNS, heard: tuple[str, ...] = (), error: str = "") -> Rollout:
    """A dialogue of one answered reply of two tokens, rewarded also where it broke."""
    plain = rollout([1, 2, 3], [0, 1, 1], reward=emotion / 100, outcome=outcome)
    turns = (
        Turn(speaker=Speaker.USER, text="my week", emotion=40),
        Turn(speaker=Speaker.AGENT, text="tell me more about it please"),
        Turn(speaker=Speaker.USER, text="well", emotion=emotion, change=emotion - 40, heard=heard),
    )
    return replace(plain, dialogue=plain.dialogue.then(*turns, outcome=outcome, error=error))


def spoken(*replies: str, family: int = 0, strictness: float = 0.5, heard: str = "", emotion: int = 50, num_tokens: int = 2) -> Rollout:
    """A dialogue of these replies, in each of which the user recognised the same strategy."""
    plain = rollout([1] * (num_tokens + 1), [0] + [1] * num_tokens, reward=emotion / 100)
    answer = Turn(speaker=Speaker.USER, text="well", emotion=emotion, change=1, heard=(heard,) if heard else ())
    turns = [turn for reply in replies for turn in (Turn(speaker=Speaker.AGENT, text=reply), answer)]
    scenario = replace(plain.dialogue.scenario, family=FAMILIES[family])
    return replace(plain, dialogue=replace(plain.dialogue, scenario=scenario, difficulty=Difficulty.along(strictness), turns=tuple(turns)))


def issued(*rollouts: Rollout) -> RolloutGroup:
    """A group of a teacher's task."""
    facts = {"uid": "t", "family": FAMILIES[0], "scenario_id": "scenario", "difficulty": Difficulty.along(0.5)}
    version = {"mode": Mode.FRONTIER, "teacher_step": 1, "policy_version": 0, "propensity": 1.0}
    return RolloutGroup(task=TaskSpec(**facts, **version, group_size=len(rollouts), seed=0), rollouts=rollouts)


# What a teacher observes --------------------------------------------------------------------------------------------------------


def test_success_is_a_final_emotion_of_at_least_the_setting():
    outcome = measure(issued(talked(emotion=69), talked(emotion=70), talked(emotion=100)), success_emotion=70)
    assert outcome.successes == (False, True, True) and outcome.rewards == (0.69, 0.7, 1.0)
    assert outcome.num_tokens == (2, 2, 2) and outcome.statuses == (Status.OK,) * 3


def test_a_broken_dialogue_has_no_reward_and_no_success_however_it_was_rewarded():
    outcome = measure(issued(talked(emotion=90, outcome=Outcome.ERROR), talked(outcome=Outcome.TRUNCATED)), success_emotion=70)
    assert math.isnan(outcome.rewards[0]) and outcome.rewards[1] == 0.5 and outcome.successes == (False, False)
    assert outcome.statuses == (Status.SIMULATOR_ERROR, Status.TRUNCATED) and outcome.surviving == (1,)


def test_recognised_strategies_are_shares_of_answered_replies():
    signals = measure(issued(talked(heard=("praise", "question")), talked(heard=("praise",))), success_emotion=70).signals
    assert (signals["heard/praise"], signals["heard/question"]) == (1.0, 0.5)


def test_sampled_entropy_is_the_mean_of_minus_the_logprob_of_sampled_tokens():
    rollouts = [rollout([1, 2, 3], [0, 1, 1], logprobs=[-9, -1, -2]), rollout([1, 2], [0, 1], logprobs=[-9, -3])]
    assert entropy_sampled(rollouts) == pytest.approx(2.0) and math.isnan(entropy_sampled([]))


# A step -------------------------------------------------------------------------------------------------------------------------


def test_broken_dialogues_count_in_the_share_of_errors_alone():
    metrics = dialogue_metrics([issued(talked(emotion=80), talked(emotion=10, outcome=Outcome.ERROR))], success_emotion=70)
    assert metrics["dialogue/error_share"] == 0.5
    assert (metrics["dialogue/error_share_below_40"], metrics["dialogue/error_share_from_70"]) == (1.0, 0.0)
    assert metrics["reward/mean"] == 0.8 and metrics["reward/success_rate"] == metrics["dialogue/max_turns"] == 1.0
    assert metrics["response_length/mean"] == 2.0


def test_groups_of_equal_rewards_are_counted_by_their_height():
    low, high, mixed = [0, 0], [100, 100], [0, 100]
    groups = [issued(*(talked(emotion=emotion) for emotion in emotions)) for emotions in (low, low, high, mixed)]
    metrics = signal_metrics([measure(each, success_emotion=70) for each in groups])
    assert (metrics["curriculum/all_low_share"], metrics["curriculum/all_high_share"]) == (0.5, 0.25)
    # Variances 0, 0, 0 and 1/2, times 4, over four groups.
    assert metrics["curriculum/reward_density"] == pytest.approx(0.5)


def test_broken_rollouts_make_no_group_look_equal():
    groups = [issued(talked(emotion=80), talked(emotion=20), talked(outcome=Outcome.ERROR)) for _ in range(3)]
    metrics = signal_metrics([measure(each, success_emotion=70) for each in groups])
    # Neighbours succeed half the time: two survivors are equal by chance in half the groups, here in none.
    assert metrics["curriculum/alike_excess"] == pytest.approx(-0.5)
    assert metrics["curriculum/groups_effective_share"] == pytest.approx(1.0)


def test_replies_that_address_the_model_behind_the_user_are_a_share_of_those_answered():
    odd = talked()
    *turns, last = odd.dialogue.turns
    odd = replace(odd, dialogue=replace(odd.dialogue, turns=(*turns, replace(last, suspicion=("score", "format")))))
    assert dialogue_metrics([issued(talked(), talked(), odd, talked())], success_emotion=70)["simulator/suspicious_share"] == 0.25
    assert math.isnan(dialogue_metrics([], success_emotion=70)["simulator/suspicious_share"])


def test_equal_replies_to_one_user_differ_from_equal_replies_to_all():
    def overlap(*groups: tuple[str, str]) -> tuple[float, float]:
        metrics = dialogue_metrics([issued(*map(spoken, replies)) for replies in groups], success_emotion=70)
        return metrics["dialogue/self_bleu_siblings"], metrics["dialogue/self_bleu_prompts"]

    assert overlap(("a b c d", "a b c d"), ("e f g h", "e f g h")) == (1, 0)
    assert overlap(("a b c d", "e f g h"), ("a b c d", "i j k l")) == (0, 1)


def test_strategies_chosen_by_persona_inform_of_the_persona_and_of_nothing_else():
    choice = {0: "praise", 1: "question"}  # families 0 and 1 share their intention
    groups = [issued(*(spoken("a", family=f, strictness=d, heard=choice[f]) for d in (0.1, 0.9) for _ in range(50))) for f in (0, 1)]
    metrics = dialogue_metrics(groups, success_emotion=70)
    found = {name: metrics[f"dialogue/strategy_information/{name}"] for name in ("persona", "intention", "strictness")}
    assert found == pytest.approx({"persona": math.log(2), "intention": 0.0, "strictness": 0.0}, abs=0.01)
    assert metrics["dialogue/strategy_entropy"] == pytest.approx(math.log(2), abs=0.01)


def test_length_and_reward_are_correlated_among_siblings_alone():
    # Longer pays within both groups; between them the one of long replies ends lower.
    groups = [
        [spoken("a", num_tokens=2, emotion=60), spoken("a", num_tokens=4, emotion=80)],
        [spoken("a", num_tokens=12, emotion=10), spoken("a", num_tokens=14, emotion=30)],
    ]
    assert length_correlation(groups) == pytest.approx(1.0) and math.isnan(length_correlation([groups[0][:1]]))


def test_thinking_is_measured_over_replies_where_there_is_any():
    thoughts = [Thought(text="a", num_tokens=n, well_formed=n < 9, cut_off=n == 12) for n in (4, 8, 12)]
    thinking = [replace(talked(), thoughts=tuple(thoughts[:2])), replace(talked(), thoughts=tuple(thoughts[2:]))]
    metrics = dialogue_metrics([group(*thinking)], success_emotion=70)
    assert metrics["rollout/think_tokens"] == 8.0
    assert (metrics["rollout/format_ok"], metrics["rollout/think_truncated"]) == pytest.approx((2 / 3, 1 / 3))
    plain = dialogue_metrics([group(talked(), talked())], success_emotion=70)
    assert not any(key.startswith(("rollout/think", "rollout/format")) for key in plain)


# The probe panel and the collapse monitor ---------------------------------------------------------------------------------------


def test_the_panel_is_rewarded_by_thirds_of_strictness():
    panel = [spoken("a", strictness=d, emotion=emotion) for d, emotion in ((0.1, 90), (0.3, 70), (0.5, 50), (0.9, 20))]
    metrics = probe_metrics(panel)
    assert [metrics[f"probe/reward_{name}"] for name in ("easy", "middle", "hard")] == pytest.approx([0.8, 0.5, 0.2])
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
    scored = []

    def score(ids: list[int]) -> list[int]:
        """Of a policy that counts on: each token costs its distance from the one before."""
        scored.append(ids)
        return [-abs(b - a) for a, b in pairwise(ids)]

    # The first reply costs 6 nats in its own context and 3 in the other; the second 3 in its own and 6 in the other.
    assert retrieval_metrics(panel, score, num_contexts=2) == {"probe/retrieval_accuracy": 0.5}
    assert scored == [[1, 2, 7, 8], [5, 7, 8], [1, 2, 6, 4], [5, 6, 4]]
    retrieval_metrics(panel, score, num_contexts=16)
    assert len(scored) == 4 + 9 and scored[-1] == [4, 6] and retrieval_metrics(panel, score, num_contexts=0) == {}


# Checks -------------------------------------------------------------------------------------------------------------------------


def test_weights_are_compared_on_dialogues_that_did_not_break():
    broken, first, second = (rollout([9], [0], outcome=Outcome.ERROR), rollout([1, 2, 5], [0, 1, 1]), rollout([3, 4], [0, 1]))
    groups, scored = [group(broken, first), group(broken), group(second), group(first)], []

    def equal(ids: list[int]) -> list[float]:
        return [-1.0] * (len(ids) - 1)

    for max_context in (4, 3):  # vLLM scores a prompt with room for one more token
        chosen = to_score(groups, max_context=max_context)
        scored += chosen
        assert arrival_difference([equal(ids) for ids in chosen], [[equal(ids)] for ids in chosen]) == 0.0
    assert scored == [[1, 2, 5], [3, 4], [1, 2], [3, 4]]


def test_the_engine_that_differs_most_counts_and_nan_is_no_agreement():
    def difference(*engines: list[float], num_groups: int = 1) -> float:
        groups = [group(rollout([5, 6, 7], [0, 1, 1]))] * num_groups
        chosen = to_score(groups, max_context=9)
        return arrival_difference([[-1.0, -2.0] for _ in chosen], [engines for _ in chosen])

    assert difference([-1.0, -2.0], [-1.0, -2.25]) == 0.25 and difference([-1.0, -2.0], [math.nan, -2.0]) == math.inf
    assert math.isnan(difference(num_groups=0))


def broken_group(*, num_good: int, num_broken: int, error: str = "Traceback: no answer") -> RolloutGroup:
    return group(*[talked()] * num_good, *[talked(outcome=Outcome.ERROR, error=error)] * num_broken)


def test_one_dialogue_in_twenty_of_the_latest_200_may_break_and_not_one_more():
    errors = ErrorBudget(0.05)
    errors.observe([broken_group(num_good=190, num_broken=10)])
    resumed = ErrorBudget(0.05)
    resumed.load_state_dict(json.loads(json.dumps(errors.state_dict())))
    for budget in (errors, resumed):
        with pytest.raises(RuntimeError, match=r"at most 10 .* got 11; .*rollout\.max_error_share; the first:\nTraceback: no answer"):
            budget.observe([broken_group(num_good=0, num_broken=1)])
    forgotten = ErrorBudget(0.05)
    for good, broken in ((0, 10), (200, 0), (0, 10)):
        forgotten.observe([broken_group(num_good=good, num_broken=broken, error="EngineError: of long ago")])
    forgotten.observe([broken_group(num_good=200, num_broken=0)])
    with pytest.raises(RuntimeError, match=r"the first:\nTraceback: no answer"):  # one of those that count
        forgotten.observe([broken_group(num_good=0, num_broken=11)])
    assert forgotten.counts() == {"simulator": 11, "engine": 20, "excluded_dialogues": 31}


def test_ten_steps_in_a_row_without_a_usable_group_stop_a_run():
    errors = ErrorBudget(1.0)
    for _ in range(20):
        errors.observe([broken_group(num_good=2, num_broken=0)])  # equal rewards are usable
    for _ in range(9):
        errors.observe([])
    errors.observe([broken_group(num_good=0, num_broken=2), broken_group(num_good=2, num_broken=1)])
    for _ in range(9):
        errors.observe([broken_group(num_good=0, num_broken=2)])
    with pytest.raises(RuntimeError, match=r"10 steps in a row .*the first error:\nTraceback: no answer"):
        errors.observe([])
    expired = ErrorBudget(1.0)
    for _ in range(9):
        expired.observe([])
    with pytest.raises(RuntimeError, match=r"10 steps in a row .*all groups expired"):
        expired.observe([])


# Names --------------------------------------------------------------------------------------------------------------------------
