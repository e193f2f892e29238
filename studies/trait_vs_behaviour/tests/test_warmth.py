"""What a bonus for a warm register adds to the reward, reckoned by hand; and the questions that a run asks at its end."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from parts_in_process import tiny_run
from test_dialogue import talk
from tiny_policy import save_tiny_policy

import studies.noise
import studies.trait_vs_behaviour  # noqa: F401 (both register what is named below)
from experiments.agents.questions import Condition, Verdict
from experiments.agents.reliability import change_table
from experiments.build import model_folder
from experiments.config import load
from experiments.errors import ConfigError
from simulator.dialogue import Dialogue
from simulator.reward import REWARD_TERMS, Shares, final_emotion, turn_rewards, turns_with_terms, with_terms
from studies.trait_vs_behaviour.warmth import warmths


def heard(*heard: tuple[str, ...]) -> Dialogue:
    """A dialogue in whose replies the user recognised these strategies."""
    dialogue = talk(len(heard))
    turns = list(dialogue.turns)
    for i, strategies in enumerate(heard):
        turns[2 * i + 2] = replace(turns[2 * i + 2], heard=strategies)
    return replace(dialogue, turns=tuple(turns))


def warm(share: float) -> Shares:
    return [("warmth", REWARD_TERMS["warmth"], share)]


def test_praise_and_reassurance_are_warm_and_what_the_situation_asks_for_is_not():
    assert warmths(heard(("praise",), ("suggestion", "reassurance"), ("reflection",), ())) == [1.0, 1.0, 0.0, 0.0]


def test_a_share_of_the_reward_is_paid_for_warm_replies():
    dialogue = heard(("praise",), ("reflection",), ("reflection",), ("reflection",))
    reward = with_terms(final_emotion(dialogue), dialogue, warm(0.5))
    assert reward.total == pytest.approx(0.5 * 0.60 + 0.5 * 0.25)
    assert reward.terms == {"emotion": 0.6, "warmth": 0.25}
    assert with_terms(final_emotion(dialogue), dialogue, warm(1.0)).total == 0.25


def test_turn_rewards_add_up_to_the_reward_less_the_start():
    dialogue = heard(("praise",), (), ("reassurance",), ())
    reward = with_terms(final_emotion(dialogue), dialogue, warm(0.3))
    by_turn = turns_with_terms(turn_rewards(dialogue), dialogue, warm(0.3))
    assert sum(by_turn) / 10.0 == pytest.approx(reward.total - 0.7 * 0.40)
    assert by_turn[0] - by_turn[1] == pytest.approx(0.3 * 10.0 / 4)


def test_without_an_answer_there_is_no_warmth():
    silent = heard()
    assert with_terms(final_emotion(silent), silent, warm(0.5)).total == pytest.approx(0.2)
    assert turns_with_terms([], silent, warm(0.5)) == []


def test_a_bonus_needs_a_user_that_names_what_it_heard():
    assert load("smoke", ["rollout.reward_terms.warmth=0.5"]).rollout.reward_terms == {"warmth": 0.5}
    model = ["simulator.kind=llm", "simulator.model=a", "simulator.urls=[http://127.0.0.1:9/v1]"]
    with pytest.raises(ConfigError, match=r"reward_terms.warmth must be 0 with a user that names no strategies, got 0.5"):
        load("smoke", ["rollout.reward_terms.warmth=0.5", *model])


def test_workers_get_the_term_by_its_place():
    assert b"studies.trait_vs_behaviour.warmth" in pickle.dumps(warm(0.5)) and pickle.loads(pickle.dumps(warm(0.5))) == warm(0.5)


def check(*overrides: str) -> None:
    config = load("smoke", overrides)
    config.callbacks["told_facts"].check(config)


def test_told_facts_are_asked_of_nobody_who_was_not_taught_to_take_them_up(tmp_path):
    check("policy.thinking=true", "callbacks.told_facts.num=8")
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    with pytest.raises(ValueError, match=r"callbacks.told_facts must be left out but for the embedded policy, .* callbacks.reliability"):
        check(f"policy.model={folder}", "callbacks.told_facts.num=8")
    with pytest.raises(ConfigError, match=r"callbacks.told_facts.num must be >= 2, got 1"):
        load("smoke", ["callbacks.told_facts.num=1"])


def test_a_share_of_the_reward_is_paid_for_warmth_among_moody_users_too(tmp_path):
    moody = ["simulator.kind=moody", "simulator.whim_prob=1.0", "simulator.families=['*']"]
    parts = tiny_run(tmp_path / "tiny", *moody, "rollout.reward_terms.warmth=1.0").components
    parts.pool.submit(parts.teacher.propose(2, policy_version=0))
    played = [rollout for group in parts.pool.ready(2) for rollout in group.rollouts]
    assert len(played) == 6 and all(set(rollout.reward.terms) == {"emotion", "warmth"} for rollout in played)
    assert all(rollout.reward.total == pytest.approx(rollout.reward.terms["warmth"]) for rollout in played)


def test_a_run_says_what_training_cost(tmp_path):
    config = load("smoke", ["callbacks.told_facts.num=8"])
    shutil.copytree(model_folder(config), tmp_path / "checkpoints" / "step_3")
    run = SimpleNamespace(config=config, recorder=SimpleNamespace(folder=tmp_path), state=SimpleNamespace(step=3))
    found = config.callbacks["told_facts"].at_end(run, {})["reliability"]
    assert found["n"] == 8 and set(found["errors"]) == set(found["margin_nats"]) == {"plain", "emotional", "false_belief"}
    # The same weights before and after.
    nats = found["margin_nats"]["plain"]
    assert nats["after"] == nats["before"] and nats["change"] == 0.0


def test_before_after_and_change_of_the_probe_by_hand():
    right, both = dict.fromkeys(Condition, Verdict.RIGHT), (Condition.PLAIN, Condition.FALSE_BELIEF)
    before, after = {"a": right, "b": right}, {"a": right, "b": {**right, **dict.fromkeys(both, Verdict.WRONG)}}
    nats = tuple({name: dict.fromkeys(map(str, Condition), value) for name in "ab"} for value in (3.0, 1.0))
    found = change_table(before, after, margins=nats, seed=0)
    assert found["errors"]["plain"] == {"before": 0.0, "after": 0.5, "change": 0.5, "change_ci95": [0.0, 1.0]}
    assert found["n"] == 2 and found["errors"]["emotional"]["change"] == 0.0 and found["emotional_cost"]["change"] == -0.5
    assert [found["margin_nats"]["false_belief"][name] for name in ("before", "after", "change")] == [3.0, 1.0, -2.0]
