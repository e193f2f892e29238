"""The collapse monitor: alarms that should ring, and above all those that should not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from curriculum.collapse.alarms import SHARE_INDICATORS
from curriculum.collapse.indicators import distinct, repetition, theil_sen_slope
from curriculum.collapse.monitor import INDICATORS, RULES, Alarm, CollapseConfig, CollapseMonitor

HEALTHY = {
    "reward": 0.5,
    "emotion": 0.5,
    "entropy": 1.0,
    "reward_density": 0.5,
    "all_low_share": 0.05,
    "all_high_share": 0.05,
    "repetition": 0.05,
    "distinct_2": 0.5,
    "reply_length": 30.0,
    "mismatch": 1e-4,
    "forking_entropy": 2.5,
    "covariance": 0.02,
    "mismatch_k1": 1e-3,
    "mismatch_chi2": 0.01,
    "effective_share": 0.95,
    "kl": 0.05,
    "gradient_norm": 0.5,
    "update_kl": 0.01,
    "alike_excess": 0.05,
    "groups_effective": 0.7,
    "reward_spread": 0.3,
    "best_of_k": 0.25,
    "bounds_share": 0.05,
    "own_overlap": 0.2,
    "bleu_siblings": 0.2,
    "bleu_prompts": 0.2,
    "compression": 4.0,
    "truncated": 0.01,
    "strategy_entropy": 1.5,
    "strategy_by_intention": 0.2,
    "strategy_by_persona": 0.1,
    "probe_reward": 0.6,
    "probe_entropy": 1.0,
    "probe_easy": 0.8,
    "probe_middle": 0.6,
    "probe_hard": 0.4,
    "obedience": -0.6,
    "retrieval": 0.9,
}
STEADY = ("reward", "emotion", "probe_reward", "probe_easy", "probe_middle", "probe_hard")
"""The panel is fixed: its mean varies by .025 from look to look in real runs, far less than what is practised."""


ENTROPY_NOISE = 0.2
"""Standard deviation of log entropy from step to step: of the kept runs 95 % have less, half of them .1."""


def watch(monitor: CollapseMonitor, *, num_steps: int = 40, first: int = 0, **changing) -> list[Alarm]:
    """Steps of a healthy run but for the indicators given, each a number or a function of the step."""
    alarms = []
    for step in range(first, first + num_steps):
        values = {**HEALTHY, **{name: value(step) if callable(value) else value for name, value in changing.items()}}
        alarms.extend(monitor.observe(step, values))
    return alarms


def names(alarms: list[Alarm]) -> list[str]:
    return [alarm.name for alarm in alarms]


def test_healthy_noise_raises_no_alarm():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        noise = {name: 0.05 if name in STEADY else 0.3 for name in HEALTHY} | {"entropy": ENTROPY_NOISE}
        most = {name: 1.0 if name in SHARE_INDICATORS else math.inf for name in HEALTHY}
        noisy = {
            name: (lambda _, value=value, rng=rng, sigma=noise[name], most=most[name]: min(value * rng.lognormal(0.0, sigma), most))
            for name, value in HEALTHY.items()
        }
        assert watch(CollapseMonitor(CollapseConfig()), num_steps=300, **noisy) == []


def test_entropy_falling_to_a_quarter_while_reward_rises_is_not_collapse():
    rng = np.random.default_rng(0)
    alarms = watch(
        CollapseMonitor(CollapseConfig()),
        num_steps=200,
        entropy=lambda step: (0.25 + 0.75 * math.exp(-step / 15)) * rng.lognormal(0.0, 0.05),
        reward_density=lambda step: 0.5 * rng.lognormal(0.0, 0.2),
    )
    assert alarms == []


def test_spent_entropy_alone_rings_for_itself_and_not_for_collapse():
    alarms = watch(CollapseMonitor(CollapseConfig()), num_steps=120, entropy=lambda step: math.exp(-step / 10))
    assert names(alarms) == ["entropy_exhausting", "entropy_spent"]
    assert alarms[1].message.startswith("Entropy is 0.0") and "% of its start" in alarms[1].message


def test_entropy_that_explodes_rings_at_once_and_one_high_value_does_not():
    monitor = CollapseMonitor(CollapseConfig())
    assert watch(monitor, num_steps=10, entropy=0.5) == []
    assert watch(monitor, first=10, num_steps=1, entropy=2.0) == []
    assert watch(monitor, first=11, num_steps=10, entropy=0.6) == []
    alarms = watch(monitor, first=21, num_steps=12, entropy=lambda step: 0.6 * 1.2 ** (step - 20))
    # Its running average lags behind: at step 25, where entropy is 1.49 nats, it goes above 1, twice the start.
    assert names(alarms) == ["entropy_exploding"] and alarms[0].step == 25
    assert "times its start" in alarms[0].message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("effective_share", 0.02, "% of the tokens count."),
        ("mismatch_chi2", 2.0, "are far from one (chi2 "),
        ("mismatch_k1", -0.5, "are far from one (k1 -"),
    ],
)
def test_one_measure_of_the_weights_is_enough_where_another_trainer_has_no_more(name, value, words):
    monitor = CollapseMonitor(CollapseConfig())
    alarms = [alarm for step in range(40) for alarm in monitor.observe(step, {name: HEALTHY[name] if step < 6 else value})]
    assert names(alarms) == ["weights_lost"] and words in alarms[0].message


def test_two_families_of_evidence_make_a_collapse():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10)
    alarms = watch(monitor, first=10, entropy=0.01, reward_density=0.01)
    assert set(names(alarms)) == {"entropy_spent", "entropy_exhausting", "density_lost", "collapse"}
    collapse = next(alarm for alarm in alarms if alarm.name == "collapse")
    assert "Entropy is" in collapse.message and "Reward density is" in collapse.message
    assert monitor.metrics()["collapse/alarm"] == 1.0


def test_two_alarms_of_one_family_are_not_a_collapse():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10)
    alarms = watch(monitor, first=10, reward_density=0.0, all_low_share=1.0)
    assert set(names(alarms)) == {"density_lost", "all_fail_alike"}


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("mismatch", {"mismatch": 0.5}, "nats on the sampled tokens"),
        ("all_fail_alike", {"all_low_share": 0.9}, "failed alike: the users are too strict"),
        ("all_succeed_alike", {"all_high_share": 0.9}, "succeeded alike: the users are too lenient"),
        ("repetition", {"repetition": 0.6}, "(5% at the start)"),
        ("diversity_lost", {"distinct_2": 0.1}, "of the start"),
        ("length_drift", {"reply_length": 200.0}, "as at the start"),
        ("length_drift", {"reply_length": 2.0}, "as at the start"),
        ("density_lost", {"reward_density": 0.05}, "of its start"),
    ],
)
def test_each_condition_rings_in_plain_words_with_its_numbers(name, changed, words):
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10)
    (alarm,) = watch(monitor, first=10, num_steps=25, **changed)
    assert alarm.name == name and words in alarm.message
    assert set(alarm.values) == set(HEALTHY)
    json.dumps(asdict(alarm))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("forks_decided", {"forking_entropy": 0.1}, "Where the policy decides, entropy is 0.1 nats, 4% of its start"),
        ("narrowing", {"covariance": 0.5}, "vary together by 0.5 nats"),
        ("weights_lost", {"effective_share": 0.1}, "let 10% of the tokens count"),
        ("weights_lost", {"mismatch_chi2": 2.0}, "chi2 2"),
        ("weights_lost", {"mismatch_k1": -0.3}, "k1 -0.3 nats"),
        ("far_from_reference", {"kl": 2.0}, "2 nats a token away"),
        ("alike_beyond_chance", {"alike_excess": 0.8}, "80% more groups end alike than chance explains (5% at the start)"),
        ("few_groups_carry", {"groups_effective": 0.06}, "hangs on 6% of its groups"),
        ("best_no_better", {"best_of_k": 0.01}, "gains 0.0"),
        ("own_overlap", {"own_overlap": 0.9}, "(20% at the start)"),
        ("siblings_alike", {"bleu_siblings": 0.99}, "self-BLEU 0.99 (0.20 at the start)"),
        ("prompts_alike", {"bleu_prompts": 0.9}, "Different users are answered alike"),
        ("compressible", {"compression": 20.0}, "20.0th of their length, 5 times as small"),
        ("truncated", {"truncated": 0.5}, "50% of the dialogues are cut off"),
        ("strategies_narrowed", {"strategy_entropy": 0.3}, "0.30 nats, 20% of its start"),
        ("template", {"strategy_by_intention": 0.0}, "0% of what the user's intention once did"),
        ("template", {"strategy_by_persona": -0.01}, "0% of what the user's persona once did"),
        ("interchangeable", {"retrieval": 0.1}, "Only 10% of the first replies fit their own user best (90% at the start)"),
        ("probe_regression", {"probe_reward": 0.4}, "On the whole probe panel reward is 0.40, 0.20 below its best"),
        ("probe_regression", {"probe_easy": 0.5}, "On the easy probe panel reward is 0.50, 0.30 below its best"),
        ("stuck_at_bounds", {"bounds_share": 1.0}, "100% of the tasks"),
        ("strictness_disobeyed", {"obedience": 0.3}, "correlation of strictness and reward +0.30"),
    ],
)
def test_each_further_condition_says_the_latest_numbers_where_nothing_is_smoothed(name, changed, words):
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0))
    watch(monitor, num_steps=10)
    (alarm,) = watch(monitor, first=10, num_steps=5, **changed)
    assert alarm.name == name and words in alarm.message


def test_reward_spread_that_falls_off_a_cliff_rings_and_one_that_erodes_does_not():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=20)
    (alarm,) = watch(monitor, first=20, num_steps=30, reward_spread=0.05)
    assert alarm.name == "spread_cliff" and "went of late" in alarm.message
    assert watch(CollapseMonitor(CollapseConfig()), num_steps=100, reward_spread=lambda step: 0.3 * 0.98**step) == []


def test_gradients_that_stay_far_above_their_like_ring():
    rng = np.random.default_rng(0)
    monitor = CollapseMonitor(CollapseConfig())
    assert watch(monitor, num_steps=30, gradient_norm=lambda _: 0.5 * rng.lognormal(0.0, 0.1)) == []
    assert watch(monitor, first=30, num_steps=1, gradient_norm=20.0) == []
    assert watch(monitor, first=31, num_steps=20, gradient_norm=lambda _: 0.5 * rng.lognormal(0.0, 0.1)) == []
    (alarm,) = watch(monitor, first=51, num_steps=6, gradient_norm=20.0)
    assert alarm.name == "gradient_spike" and "robust deviations above its like" in alarm.message


def test_a_step_too_large_rings_at_the_first_update_and_a_usual_one_never():
    monitor = CollapseMonitor(CollapseConfig())
    assert watch(monitor, num_steps=40, update_kl=0.06) == []
    monitor = CollapseMonitor(CollapseConfig())
    (alarm,) = watch(monitor, num_steps=30, update_kl=lambda step: 1.5 / (step + 1))
    assert (alarm.name, alarm.step) == ("step_too_large", 0) and "moves the policy 1.5 nats a token" in alarm.message
    assert watch(monitor, first=30, num_steps=10, update_kl=0.01) == []
    assert names(watch(monitor, first=40, num_steps=10, update_kl=1.0)) == ["step_too_large"]
    # A single one late in a run counts, though the running average hardly moves, and is told as it was.
    monitor = CollapseMonitor(CollapseConfig())
    (alarm,) = watch(monitor, num_steps=40, update_kl=lambda step: 0.5 if step == 20 else 0.02)
    assert (alarm.name, alarm.step) == (
        "step_too_large",
        20,
    ) and "0.5 nats a token from the one that sampled, of late 0.16" in alarm.message


def test_an_agent_that_never_adapted_to_its_users_cannot_lose_it():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10, strategy_by_intention=0.01, strategy_by_persona=0.01, retrieval=0.1)
    assert watch(monitor, first=10, strategy_by_intention=0.0, strategy_by_persona=0.0, retrieval=0.0) == []


def test_forgetting_is_told_against_the_best_and_not_the_start():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=30, probe_hard=lambda step: 0.1 + 0.02 * step)
    (alarm,) = watch(monitor, first=30, num_steps=20, probe_hard=0.42)
    assert alarm.name == "probe_regression" and "On the hard probe panel" in alarm.message


def looked(values: Sequence[float], *, every: int = 5, **settings: Any) -> list[tuple[str, int]]:
    """Alarms of a run whose strict third of the panel is looked at every few updates and gives these values."""
    monitor = CollapseMonitor(CollapseConfig(**settings))
    alarms = []
    for step in range(every * len(values)):
        look = {"probe_hard": values[step // every]} if step % every == 0 else {}
        alarms += monitor.observe(step, look)
    return [(alarm.name, alarm.step) for alarm in alarms]


def test_two_low_looks_in_a_row_at_a_third_of_the_panel_ring_at_the_second():
    assert looked([0.1, 0.2, 0.3, 0.1, 0.1, 0.1]) == [("unlearned", 20)]
    # The best is that of any look before, were it the first.
    assert looked([0.3, 0.1, 0.1, 0.1]) == [("unlearned", 10)]
    assert looked([0.3, 0.1, 0.3, 0.1, 0.3]) == [] and looked([0.3, 0.2, 0.2, 0.2]) == []
    # Small of its best, but by less than looks differ by chance.
    assert looked([0.06, 0.02, 0.02, 0.02]) == []
    assert looked([0.3, 0.1, 0.1, 0.1], unlearned_looks=3) == [("unlearned", 15)]
    assert looked([0.3, 0.2, 0.2], unlearned_below=0.8) == [("unlearned", 10)]
    # It has to be better for five updates before it rings again.
    assert looked([0.3, 0.1, 0.1, 0.3, 0.3, 0.1, 0.1]) == [("unlearned", 10), ("unlearned", 30)]


def gamed(start: tuple[float, float], end: tuple[float, float], **settings: Any) -> list[str]:
    """Messages of a run whose reward and emotion lie at the start for ten updates, and then at the end."""
    monitor, alarms = CollapseMonitor(CollapseConfig(**settings)), []
    for step in range(40):
        alarms += monitor.observe(step, dict(zip(("reward", "emotion"), start if step < 10 else end, strict=True)))
    assert [alarm.name for alarm in alarms] == ["reward_gamed"] * len(alarms)
    return [alarm.message for alarm in alarms]


def test_reward_that_rises_without_the_users_feeling_better_rings():
    (message,) = gamed((0.25, 0.28), (0.46, 0.3))
    assert re.search(r"Reward changed by \+0\.1\d of 1 since the start, what users felt in the end by \+[12] of 100", message)
    # Paid for emotion, or for a threshold of it: the users feel better as well.
    assert gamed((0.28, 0.28), (0.7, 0.7)) == [] and gamed((0.0, 0.28), (0.7, 0.65)) == []
    # Paid for emotion in a form that is learnt: no more is paid than is felt.
    assert gamed((0.1, 0.3), (0.3, 0.3)) == []
    # Users who feel worse, and a reward that does not.
    assert len(gamed((0.4, 0.4), (0.4, 0.25))) == 1
    # Both fall: nothing was gained by it.
    assert gamed((0.9, 0.7), (0.4, 0.03)) == []
    assert gamed((0.25, 0.28), (0.36, 0.3)) == [] and len(gamed((0.25, 0.28), (0.36, 0.3), gamed_gain=0.05)) == 1
    assert gamed((0.25, 0.28), (0.5, 0.35), gamed_share=0.2) == [] and len(gamed((0.25, 0.28), (0.5, 0.35))) == 1


def test_alarms_about_difficulty_are_no_evidence_of_collapse():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10)
    assert set(names(watch(monitor, first=10, bounds_share=1.0, obedience=0.5))) == {"stuck_at_bounds", "strictness_disobeyed"}


def test_two_alarms_of_one_family_make_no_collapse():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10)
    alarms = watch(monitor, first=10, strategy_entropy=0.1, distinct_2=0.1, repetition=0.9)
    assert set(names(alarms)) == {"strategies_narrowed", "diversity_lost", "repetition"}


def test_all_four_families_are_told():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10)
    alarms = watch(monitor, first=10, entropy=0.01, reward_density=0.01, distinct_2=0.1, probe_reward=0.1)
    collapse = next(alarm for alarm in alarms if alarm.name == "collapse")
    assert collapse.message.startswith("The run shows collapse on four sides: ")


def test_the_entropy_law_is_read_off_the_looks_at_the_panel():
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0))
    for step in range(40):
        entropy = 1.5 - 0.02 * step
        look = {"probe_entropy": entropy, "probe_reward": 0.9 - 0.1 * math.exp(entropy)} if step % 5 == 0 else {}
        monitor.observe(step, look)
    metrics = monitor.metrics()
    assert metrics["collapse/ceiling"] == pytest.approx(0.8) and metrics["collapse/law_r_squared"] == pytest.approx(1.0)
    assert metrics["collapse/headroom"] == pytest.approx(0.8 - (0.9 - 0.1 * math.exp(0.8)))


def test_alarm_waits_for_patience_rings_once_and_again_only_after_it_cleared():
    monitor = CollapseMonitor(CollapseConfig(patience=5, smoothing=1.0))
    watch(monitor, num_steps=10)
    assert watch(monitor, first=10, num_steps=4, mismatch=0.5) == []
    assert names(watch(monitor, first=14, num_steps=30, mismatch=0.5)) == ["mismatch"]
    assert watch(monitor, first=44, num_steps=4) == []
    assert watch(monitor, first=48, num_steps=20, mismatch=0.5) == []  # gone for four updates only: still the same alarm
    watch(monitor, first=68, num_steps=5)
    assert names(watch(monitor, first=73, num_steps=5, mismatch=0.5)) == ["mismatch"]


def test_missing_and_nan_values_neither_ring_nor_clear():
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0))
    assert [monitor.observe(step, {}) for step in range(20)] == [[]] * 20
    gaps = [monitor.observe(step, dict.fromkeys(INDICATORS, math.nan)) for step in range(20)]
    assert gaps == [[]] * 20 and monitor.now == {}
    watch(monitor, num_steps=10)
    assert names(watch(monitor, first=10, num_steps=6, mismatch=0.5)) == ["mismatch"]
    for step in range(16, 40):
        assert monitor.observe(step, {} if step % 2 else dict.fromkeys(INDICATORS, math.nan)) == []
    assert monitor.metrics()["collapse/alarms_on"] == 1.0
    assert watch(monitor, first=40, num_steps=5, mismatch=0.5) == []


def test_start_of_zero_density_makes_no_ratio():
    assert watch(CollapseMonitor(CollapseConfig()), reward_density=0.0) == []


def test_unknown_indicator_is_refused():
    with pytest.raises(ValueError, match=r"collapse indicators must be among .* got \['entropie'\]"):
        CollapseMonitor(CollapseConfig()).observe(0, {"entropie": 1.0})


def test_resume_is_exact_through_json_and_memory_is_bounded():
    rng = np.random.default_rng(0)
    most = {name: 1.0 if name in SHARE_INDICATORS else math.inf for name in HEALTHY}
    series = [
        {name: min(value * rng.lognormal(0.0, 0.5) * 0.97**step, most[name]) for name, value in HEALTHY.items()} for step in range(120)
    ]
    whole, half = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    alarms = [whole.observe(step, values) for step, values in enumerate(series)]
    for step, values in enumerate(series[:60]):
        half.observe(step, values)
    resumed = CollapseMonitor(CollapseConfig())
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert [resumed.observe(step, values) for step, values in enumerate(series[60:], 60)] == alarms[60:]
    assert resumed.metrics() == whole.metrics() and resumed.state_dict() == whole.state_dict()
    assert len(whole.state_dict()["entropies"]) == 20 and any(alarms)
    assert {name: len(whole.state_dict()[name]) for name in ("spreads", "gradients", "looks")} == {
        "spreads": 20,
        "gradients": 21,
        "looks": 64,
    }


def test_state_that_does_not_fit_is_refused():
    state = CollapseMonitor(CollapseConfig()).state_dict()
    monitor = CollapseMonitor(CollapseConfig())
    monitor.observe(1, HEALTHY)
    before = monitor.state_dict()
    for bad in (
        None,
        {**state, "version": 0},
        {**state, "mood": 1},
        {**state, "held": {}},
        {**state, "now": 5},
        {**state, "now": {"entropy": "x"}},
        {**state, "looks": 7},
        {**state, "looks": [[1.0, "x"]]},
        {**state, "entropies": ["x"]},
        {**state, "active": dict.fromkeys(state["active"], 1)},
    ):
        with pytest.raises(ValueError, match="collapse state"):
            monitor.load_state_dict(bad)
        assert monitor.state_dict() == before


def test_averages_are_not_gone_on_with_under_settings_that_make_them_something_else():
    state = CollapseMonitor(CollapseConfig()).state_dict()
    with pytest.raises(ValueError, match=r"collapse state's settings must be .*50.*, got .*5"):
        CollapseMonitor(CollapseConfig(start_updates=50)).load_state_dict(state)
    CollapseMonitor(CollapseConfig(patience=9)).load_state_dict(state)


@pytest.mark.parametrize("worst", [math.inf, 1e9])
def test_an_infinite_value_counts_as_far_above_every_threshold(worst):
    monitor = CollapseMonitor(CollapseConfig())
    assert watch(monitor, num_steps=10) == []
    assert names(watch(monitor, first=10, num_steps=1, update_kl=worst)) == ["step_too_large"]
    assert math.isfinite(monitor.now["update_kl"])


def test_infinite_values_in_the_first_updates_leave_no_trace_in_what_comes_later():
    without, monitor = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    unbounded = ("entropy", "forking_entropy", "kl", "mismatch", "mismatch_chi2", "covariance", "gradient_norm", "reward_density")
    assert names(watch(monitor, num_steps=2, **dict.fromkeys(unbounded, math.inf))) == ["entropy_exploding"]
    assert watch(monitor, first=2) == watch(without, first=2) == []
    assert {name: monitor.start[name] for name in unbounded} == {name: without.start[name] for name in unbounded}
    assert monitor.entropy_slope() == without.entropy_slope() == 0.0 and set(monitor.num_endless.values()) == {0}


@pytest.mark.parametrize(
    ("indicator", "alarm", "value"),
    [
        ("kl", "far_from_reference", math.inf),
        ("mismatch", "mismatch", math.inf),
        ("mismatch_chi2", "weights_lost", math.inf),
        ("mismatch_k1", "weights_lost", -math.inf),
        ("covariance", "narrowing", math.inf),
        ("gradient_norm", "gradient_spike", math.inf),
    ],
)
@pytest.mark.parametrize("healthy", [0, 10])
def test_a_value_that_stays_infinite_rings_after_patience_from_the_first_update_on(indicator, alarm, value, healthy):
    monitor = CollapseMonitor(CollapseConfig(patience=5))
    watch(monitor, num_steps=healthy)
    assert watch(monitor, first=healthy, num_steps=4, **{indicator: value}) == []
    before = json.loads(json.dumps(monitor.state_dict()))
    (rung,) = watch(monitor, first=healthy + 4, num_steps=1, **{indicator: value})
    resumed = CollapseMonitor(CollapseConfig(patience=5))
    resumed.load_state_dict(before)
    assert rung.name == alarm and resumed.num_endless[indicator] == 4
    assert "inf" in rung.message and "e+06" not in rung.message
    assert watch(resumed, first=healthy + 4, num_steps=1, **{indicator: value}) == [rung]


def test_what_was_infinite_for_fewer_updates_than_patience_does_not_ring_later():
    monitor = CollapseMonitor(CollapseConfig(patience=5))
    watch(monitor, num_steps=10)
    assert watch(monitor, first=10, num_steps=4, kl=math.inf, gradient_norm=math.inf) == []
    assert watch(monitor, first=14, num_steps=20) == [] and monitor.now["kl"] == pytest.approx(HEALTHY["kl"])


def test_a_run_that_begins_with_an_infinite_step_is_told_of_it_at_once():
    (alarm, *_) = CollapseMonitor(CollapseConfig()).observe(0, {"update_kl": math.inf})
    assert (alarm.name, alarm.step) == ("step_too_large", 0)
    (alarm,) = CollapseMonitor(CollapseConfig()).observe(0, {"entropy": math.inf})
    assert alarm.name == "entropy_exploding" and alarm.message.startswith("Entropy is inf nats")


def test_a_gradient_is_compared_with_the_finite_ones_before_it():
    rng = np.random.default_rng(0)
    monitor = CollapseMonitor(CollapseConfig())
    (alarm,) = watch(monitor, num_steps=10, gradient_norm=math.inf)
    assert alarm.message == "The gradient's norm is infinite (5 in a row)."
    # Five to compare with, and five that clear the alarm.
    assert watch(monitor, first=10, num_steps=10, gradient_norm=lambda _: 0.5 * rng.lognormal(0.0, 0.1)) == []
    assert names(watch(monitor, first=20, num_steps=5, gradient_norm=20.0)) == ["gradient_spike"]


def test_an_infinite_entropy_of_the_panel_is_no_point_of_the_entropy_law():
    monitor = CollapseMonitor(CollapseConfig())
    for step in range(20):
        entropy = 1.5 - 0.02 * step
        monitor.observe(step, {"probe_entropy": math.inf if step == 0 else entropy, "probe_reward": 0.9 - 0.1 * math.exp(entropy)})
    assert monitor.entropy_law().ceiling == pytest.approx(0.8)


def test_a_state_in_which_nothing_infinite_was_counted_goes_on():
    monitor, resumed = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=3)
    resumed.load_state_dict({name: value for name, value in monitor.state_dict().items() if name != "num_endless"})
    assert watch(resumed, first=3) == watch(monitor, first=3) and resumed.state_dict() == monitor.state_dict()


def test_what_was_not_measured_leaves_its_indicator_as_it_was():
    monitor = CollapseMonitor(CollapseConfig())
    monitor.observe(1, HEALTHY)
    before = dict(monitor.now)
    monitor.observe(2, {"entropy": None, "kl": math.nan})
    assert monitor.now == before


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"collapse indicator groups_effective must be in \[0, 1\], got 6.0"):
        CollapseMonitor(CollapseConfig()).observe(1, {"groups_effective": 6.0})


def test_metrics_hold_slope_and_shares():
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0))
    watch(monitor, num_steps=30, entropy=lambda step: 1.0 - 0.02 * step)
    metrics = monitor.metrics()
    assert metrics["collapse/entropy_slope"] == pytest.approx(-0.02)
    assert metrics["collapse/entropy_of_start"] == pytest.approx(0.42 / 0.96)
    assert metrics["collapse/zero_variance_share"] == pytest.approx(0.1)
    assert all(math.isfinite(value) for value in metrics.values())


def test_time_to_exhaustion_follows_exponential_decay():
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0, start_updates=1))
    watch(monitor, num_steps=25, entropy=lambda step: math.exp(-0.05 * step))
    # From exp(-1.2) to a tenth of the start at .05 a step.
    assert monitor.updates_to_exhaustion() == pytest.approx((math.log(10) - 1.2) / 0.05)


def test_settings_are_a_structured_config_and_checked():
    assert OmegaConf.to_object(OmegaConf.structured(CollapseConfig)) == CollapseConfig()
    for name in vars(CollapseConfig()):
        with pytest.raises(ValueError, match=f"collapse.{name} must be in"):
            CollapseConfig(**{name: -1})
    assert len(RULES) == 33 and set(HEALTHY) == set(INDICATORS)


def test_the_page_on_collapse_has_every_alarm_and_the_thresholds_as_they_are():
    page = (Path(__file__).resolve().parent.parent / "docs" / "collapse.md").read_text(encoding="utf-8")
    assert [name for name in RULES if f"`{name}`" not in page] == []
    said = {name: value for name, value in re.findall(r"`(?:collapse\.)?(\w+)` = (\.?\d[\d.]*)", page) if hasattr(CollapseConfig(), name)}
    assert len(said) >= 15 and {name: float(value) for name, value in said.items()} == {
        name: getattr(CollapseConfig(), name) for name in said
    }


def test_repetition_counts_only_what_earlier_turns_said():
    assert math.isnan(repetition(["one two three four five"]))
    assert repetition(["one two three four", "one two three four"]) == 1.0
    # Of the second reply's four-grams (abcd, bcde) the first was said before.
    assert repetition(["a b c d", "A b, c d e"]) == 0.5
    assert repetition(["a b c d a b c d", "e f g h"]) == 0.0
    assert repetition(["我很难过了", "我很难过吗"]) == 0.5


def test_distinct_is_a_share_within_a_fixed_budget_of_words():
    assert distinct(["a b a b"]) == pytest.approx(2 / 3)
    assert distinct(["a b", "a b"]) == 0.5
    assert distinct(["a b c", "a b c d"], max_words=5) == pytest.approx(2 / 3)
    assert math.isnan(distinct(["one", ""]))


def test_theil_sen_ignores_a_wild_point():
    assert theil_sen_slope([0.0, 1.0, 2.0, 100.0, 4.0, 5.0, 6.0]) == pytest.approx(1.0)
    assert theil_sen_slope([3.0, 1.0]) == -2.0 and math.isnan(theil_sen_slope([1.0]))
