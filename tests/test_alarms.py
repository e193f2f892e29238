"""The collapse monitor: alarms that should ring, and above all those that should not."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from curriculum.collapse.history import INDICATOR_METRICS, CollapseConfig
from curriculum.collapse.monitor import ALARMS, Alarm, CollapseMonitor

HEALTHY = {
    name: float(value)
    for name, value in re.findall(
        r"(\w+) (-?[\d.e-]+)",
        """
    reward 0.5, emotion 0.5, entropy 1, reward_density 0.5, all_low_share 0.05, all_high_share 0.05, repetition 0.05
    distinct_2 0.5, reply_length 30, mismatch 0.0001, forking_entropy 2.5, covariance 0.02, mismatch_k1 0.001
    mismatch_chi2 0.01, effective_share 0.95, kl 0.05, gradient_norm 0.5, update_kl 0.01, alike_excess 0.05
    groups_effective 0.7, reward_spread 0.3, best_of_k 0.25, bounds_share 0.05, own_overlap 0.2, bleu_siblings 0.2
    bleu_prompts 0.2, compression 4, truncated 0.01, strategy_entropy 1.5, strategy_by_intention 0.2
    strategy_by_persona 0.1, probe_reward 0.6, probe_entropy 1, probe_easy 0.8, probe_middle 0.6, probe_hard 0.4
    obedience -0.6, retrieval 0.9
    """,
    )
}
STEADY = ("reward", "emotion", "probe_reward", "probe_easy", "probe_middle", "probe_hard")
"""The panel is fixed: its mean varies by 0.025 between evaluations in real runs, far less than training rewards."""


def watch(monitor: CollapseMonitor, *, num_steps: int = 40, first: int = 0, **changing) -> list[Alarm]:
    """Steps of a healthy run but for the indicators given, each a number or a function of the step."""
    alarms = []
    for step in range(first, first + num_steps):
        values = {**HEALTHY, **{name: value(step) if callable(value) else value for name, value in changing.items()}}
        alarms.extend(monitor.observe(step, values))
    return alarms


def after_a_healthy_start(num_steps: int = 40, *, healthy: int = 10, settings=None, **changing) -> list[Alarm]:
    monitor = CollapseMonitor(CollapseConfig(**(settings or {})))
    assert watch(monitor, num_steps=healthy) == []
    return watch(monitor, first=healthy, num_steps=num_steps, **changing)


def names(alarms: list[Alarm]) -> list[str]:
    return [alarm.name for alarm in alarms]


def noisy(rng: np.random.Generator) -> dict:
    """Healthy indicators with the noise of real runs: 95 % of kept runs have less than 0.2 in log entropy."""

    def value(name: str):
        sigma = 0.05 if name in STEADY else 0.2 if name == "entropy" else 0.3
        most = 1.0 if name in CollapseMonitor.SHARES else math.inf
        return lambda _: min(HEALTHY[name] * rng.lognormal(0.0, sigma), most)

    return {name: value(name) for name in HEALTHY}


def test_healthy_noise_and_healthy_learning_raise_no_alarm():
    for seed in range(4):
        assert watch(CollapseMonitor(CollapseConfig()), num_steps=200, **noisy(np.random.default_rng(seed))) == []
    rng = np.random.default_rng(0)
    falling = {"entropy": lambda step: (0.25 + 0.75 * math.exp(-step / 15)) * rng.lognormal(0.0, 0.05)}
    assert watch(CollapseMonitor(CollapseConfig()), num_steps=200, **falling) == []
    assert watch(CollapseMonitor(CollapseConfig()), reward_density=0.0) == []  # no start, no share of it


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("forks_decided", {"forking_entropy": 0.1}, "0.1 nats, 4% of its start"),
        ("narrowing", {"covariance": 0.5}, "0.5 nats"),
        ("mismatch", {"mismatch": 0.5}, "0.5 nats"),
        ("weights_lost", {"effective_share": 0.1}, "10% effective"),
        ("weights_lost", {"mismatch_chi2": 2.0, "mismatch_k1": -0.3}, "k1 -0.3 nats, chi2 2"),
        ("far_from_reference", {"kl": 2.0}, "2 nats a token"),
        ("density_lost", {"reward_density": 0.05}, "0.05, 10% of its start"),
        ("all_fail_alike", {"all_low_share": 0.9}, "90% of the groups failed"),
        ("all_succeed_alike", {"all_high_share": 0.9}, "90% of the groups succeeded"),
        ("alike_beyond_chance", {"alike_excess": 0.8}, "80% more groups than by chance end equal (5% at the start)"),
        ("few_groups_carry", {"groups_effective": 0.06}, "6% of its groups"),
        ("best_no_better", {"best_of_k": 0.01}, "gains 0.01 over their mean, 4% of the start"),
        ("repetition", {"repetition": 0.6}, "60% of 4-grams"),
        ("own_overlap", {"own_overlap": 0.9}, "(20% at the start)"),
        ("siblings_alike", {"bleu_siblings": 0.99}, "self-BLEU 0.99 (0.20 at the start)"),
        ("prompts_alike", {"bleu_prompts": 0.9}, "self-BLEU 0.90"),
        ("diversity_lost", {"distinct_2": 0.1}, "10% of word pairs"),
        ("compressible", {"compression": 20.0}, "5 times as small"),
        ("length_drift", {"reply_length": 200.0}, "200 tokens"),
        ("truncated", {"truncated": 0.5}, "50% of the dialogues"),
        ("strategies_narrowed", {"strategy_entropy": 0.3}, "0.30 nats, 20% of its start"),
        ("template", {"strategy_by_intention": 0.0}, "intention to 0% of its start"),
        ("interchangeable", {"retrieval": 0.1}, "Only 10% of the first replies fit their own user best (90% at the start)"),
        ("probe_regression", {"probe_easy": 0.5}, "easy probe panel reward is 0.50, 0.30 below its best"),
        ("stuck_at_bounds", {"bounds_share": 1.0}, "100% of the tasks"),
        ("strictness_disobeyed", {"obedience": 0.3}, "+0.30"),
    ],
)
def test_each_condition_rings_with_its_numbers(name, changed, words):
    (alarm,) = after_a_healthy_start(5, settings={"smoothing": 1.0}, **changed)
    assert alarm.name == name and words in alarm.message and set(alarm.values) == set(HEALTHY)
    json.dumps(asdict(alarm))


def test_falling_entropy_alone_is_not_the_composite():
    alarms = watch(CollapseMonitor(CollapseConfig()), num_steps=120, entropy=lambda step: math.exp(-step / 10))
    assert names(alarms) == ["entropy_exhausting", "entropy_spent"] and "% of its start" in alarms[1].message


def test_exploding_entropy_rings_at_once_and_one_high_value_does_not():
    monitor = CollapseMonitor(CollapseConfig())
    assert watch(monitor, num_steps=10, entropy=0.5) == watch(monitor, first=10, num_steps=1, entropy=2.0) == []
    assert watch(monitor, first=11, num_steps=10, entropy=0.6) == []
    # The running average lags behind: at step 25, where entropy is 1.49 nats, it goes above 1, twice the start.
    (alarm,) = watch(monitor, first=21, num_steps=12, entropy=lambda step: 0.6 * 1.2 ** (step - 20))
    assert (alarm.name, alarm.step) == ("entropy_exploding", 25)


def test_the_composite_needs_two_families_of_evidence():
    alarms = after_a_healthy_start(entropy=0.01, reward_density=0.01)
    assert set(names(alarms)) == {"entropy_spent", "entropy_exhausting", "density_lost", "collapse"}
    collapse = next(alarm for alarm in alarms if alarm.name == "collapse")
    assert "on two sides" in collapse.message and "Entropy is" in collapse.message and "Reward density is" in collapse.message
    four = after_a_healthy_start(entropy=0.01, reward_density=0.01, distinct_2=0.1, probe_reward=0.1)
    assert "on four sides" in next(alarm for alarm in four if alarm.name == "collapse").message
    one_family = {"strategy_entropy": 0.1, "distinct_2": 0.1, "repetition": 0.9}
    assert set(names(after_a_healthy_start(**one_family))) == {"strategies_narrowed", "diversity_lost", "repetition"}
    assert set(names(after_a_healthy_start(bounds_share=1.0, obedience=0.5))) == {"stuck_at_bounds", "strictness_disobeyed"}


def test_a_cliff_in_reward_spread_and_a_lasting_gradient_spike_ring_and_erosion_and_one_spike_do_not():
    assert names(after_a_healthy_start(30, healthy=20, reward_spread=0.05)) == ["spread_cliff"]
    assert watch(CollapseMonitor(CollapseConfig()), num_steps=100, reward_spread=lambda step: 0.3 * 0.98**step) == []
    rng, monitor = np.random.default_rng(0), CollapseMonitor(CollapseConfig())
    usual = {"gradient_norm": lambda _: 0.5 * rng.lognormal(0.0, 0.1)}
    assert watch(monitor, num_steps=30, **usual) == watch(monitor, first=30, num_steps=1, gradient_norm=20.0) == []
    assert watch(monitor, first=31, num_steps=20, **usual) == []
    assert names(watch(monitor, first=51, num_steps=6, gradient_norm=20.0)) == ["gradient_spike"]


def test_a_step_too_large_rings_at_the_first_update_and_for_a_single_one_late_in_a_run():
    assert watch(CollapseMonitor(CollapseConfig()), num_steps=40, update_kl=0.06) == []
    (alarm,) = watch(CollapseMonitor(CollapseConfig()), num_steps=30, update_kl=lambda step: 1.5 / (step + 1))
    assert (alarm.name, alarm.step) == ("step_too_large", 0) and "1.5 nats a token" in alarm.message
    (alarm,) = watch(CollapseMonitor(CollapseConfig()), num_steps=40, update_kl=lambda step: 0.5 if step == 20 else 0.02)
    assert alarm.step == 20 and "0.5 nats a token, 0.16 in the running mean" in alarm.message


def test_an_agent_that_never_adapted_to_its_users_cannot_lose_it():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=10, strategy_by_intention=0.01, strategy_by_persona=0.01, retrieval=0.1)
    assert watch(monitor, first=10, strategy_by_intention=0.0, strategy_by_persona=0.0, retrieval=0.0) == []


def test_regression_is_measured_against_the_best_and_not_the_start():
    monitor = CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=30, probe_hard=lambda step: 0.1 + 0.02 * step)
    assert names(watch(monitor, first=30, num_steps=20, probe_hard=0.42)) == ["probe_regression"]


@pytest.mark.parametrize(
    ("evaluations", "settings", "rings"),
    [
        ([0.1, 0.2, 0.3, 0.1, 0.1, 0.1], {}, [20]),
        ([0.06, 0.02, 0.02, 0.02], {}, []),  # a small share of the best, but within chance
        ([0.3, 0.1, 0.1, 0.3, 0.3, 0.1, 0.1], {}, [10, 30]),  # it must be better for five updates before it rings again
    ],
)
def test_two_low_evaluations_in_a_row_of_a_third_of_the_panel_ring_at_the_second(evaluations, settings, rings):
    monitor, alarms = CollapseMonitor(CollapseConfig(**settings)), []
    for step in range(5 * len(evaluations)):
        alarms += monitor.observe(step, {"probe_hard": evaluations[step // 5]} if step % 5 == 0 else {})
    assert [(alarm.name, alarm.step) for alarm in alarms] == [("unlearned", step) for step in rings]


@pytest.mark.parametrize(
    ("start", "end", "settings", "num"),
    [
        ((0.25, 0.28), (0.46, 0.3), {}, 1),
        ((0.28, 0.28), (0.7, 0.7), {}, 0),  # paid for emotion
        ((0.4, 0.4), (0.4, 0.25), {}, 1),  # users feel worse, reward stays
        ((0.9, 0.7), (0.4, 0.03), {}, 0),  # both fall
        ((0.25, 0.28), (0.36, 0.3), {"gamed_gain": 0.05}, 1),
    ],
)
def test_reward_that_rises_without_users_who_feel_better_is_gamed(start, end, settings, num):
    monitor, alarms = CollapseMonitor(CollapseConfig(**settings)), []
    for step in range(40):
        alarms += monitor.observe(step, dict(zip(("reward", "emotion"), start if step < 10 else end, strict=True)))
    assert names(alarms) == ["reward_gamed"] * num


def test_an_alarm_waits_for_patience_rings_once_and_again_only_after_it_cleared():
    monitor = CollapseMonitor(CollapseConfig(patience=5, smoothing=1.0))
    watch(monitor, num_steps=10)
    assert watch(monitor, first=10, num_steps=4, mismatch=0.5) == []
    assert names(watch(monitor, first=14, num_steps=30, mismatch=0.5)) == ["mismatch"]
    assert watch(monitor, first=44, num_steps=4) == watch(monitor, first=48, num_steps=20, mismatch=0.5) == []  # four updates only
    watch(monitor, first=68, num_steps=5)
    assert names(watch(monitor, first=73, num_steps=5, mismatch=0.5)) == ["mismatch"]


def test_missing_and_nan_values_neither_ring_nor_clear():
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0))
    watch(monitor, num_steps=10)
    assert names(watch(monitor, first=10, num_steps=6, mismatch=0.5)) == ["mismatch"]
    for step, missing in enumerate([{}, dict.fromkeys(INDICATOR_METRICS), dict.fromkeys(INDICATOR_METRICS, math.nan)] * 5, 16):
        assert monitor.observe(step, missing) == []
    assert monitor.metrics()["collapse/alarms_on"] == 1.0 and watch(monitor, first=31, num_steps=5, mismatch=0.5) == []


def test_an_infinite_value_counts_while_it_lasts_and_leaves_no_trace():
    without, monitor = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    unbounded = ("entropy", "forking_entropy", "kl", "mismatch", "mismatch_chi2", "covariance", "gradient_norm", "reward_density")
    (alarm,) = watch(monitor, num_steps=2, **dict.fromkeys(unbounded, math.inf))
    assert alarm.name == "entropy_exploding" and alarm.message.startswith("Entropy is inf nats")
    assert watch(monitor, first=2) == watch(without, first=2) == []
    assert {name: monitor.start[name] for name in unbounded} == {name: without.start[name] for name in unbounded}
    assert monitor.entropy_slope() == without.entropy_slope() == 0.0 and set(monitor.num_infinite.values()) == {0}
    for worst in (math.inf, 1e9):
        assert names(after_a_healthy_start(1, update_kl=worst)) == ["step_too_large"]


@pytest.mark.parametrize("healthy", [0, 10])
@pytest.mark.parametrize(("indicator", "alarm"), [("kl", "far_from_reference"), ("gradient_norm", "gradient_spike")])
def test_a_value_that_stays_infinite_rings_after_patience_also_across_a_resume(indicator, alarm, healthy):
    value = math.inf
    monitor, resumed = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    watch(monitor, num_steps=healthy)
    assert watch(monitor, first=healthy, num_steps=4, **{indicator: value}) == []
    resumed.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
    (rung,) = watch(resumed, first=healthy + 4, num_steps=1, **{indicator: value})
    assert rung.name == alarm and "inf" in rung.message and "e+06" not in rung.message
    assert watch(resumed, first=healthy + 5, num_steps=20) == []


def test_values_out_of_range_and_unknown_names_are_refused():
    for values in ({"entropie": 1.0}, {"groups_effective": 6.0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            CollapseMonitor(CollapseConfig()).observe(0, values)


def test_resume_is_exact_through_json_and_memory_is_bounded():
    rng = np.random.default_rng(0)
    most = {name: 1.0 if name in CollapseMonitor.SHARES else math.inf for name in HEALTHY}
    series = [{n: min(v * rng.lognormal(0.0, 0.5) * 0.97**step, most[n]) for n, v in HEALTHY.items()} for step in range(120)]
    whole, resumed = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    alarms, saved = [], ""
    for step, values in enumerate(series):
        if step == 60:
            saved = json.dumps(whole.state_dict())
        alarms.append(whole.observe(step, values))
    resumed.load_state_dict(json.loads(saved))
    assert [resumed.observe(step, values) for step, values in enumerate(series[60:], 60)] == alarms[60:] and any(alarms)
    assert resumed.metrics() == whole.metrics() and resumed.state_dict() == whole.state_dict()
    assert len(json.dumps(whole.state_dict())) < 1.2 * len(saved)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    monitor, other = CollapseMonitor(CollapseConfig()), CollapseMonitor(CollapseConfig())
    monitor.observe(1, HEALTHY)
    state, before = other.state_dict(), json.dumps(monitor.state_dict())
    CollapseMonitor(CollapseConfig(patience=9)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"settings\.start_updates must be 50, got 5"):
        CollapseMonitor(CollapseConfig(start_updates=50)).load_state_dict(state)
    with pytest.raises(ValueError, match="version must be"):
        monitor.load_state_dict({**state, "version": 0})
    with pytest.raises(KeyError):
        monitor.load_state_dict({name: value for name, value in state.items() if name != "now"})
    assert json.dumps(monitor.state_dict()) == before


def test_metrics_have_trends_shares_of_the_start_and_the_entropy_law():
    monitor = CollapseMonitor(CollapseConfig(smoothing=1.0))
    for step in range(40):
        entropy = 1.5 - 0.02 * step
        panel = {"probe_entropy": math.inf if step == 0 else entropy, "probe_reward": 0.9 - 0.1 * math.exp(entropy)}
        monitor.observe(step, {**HEALTHY, "entropy": 1.0 - 0.02 * step, **(panel if step % 5 == 0 else dict.fromkeys(panel))})
    metrics = monitor.metrics()
    assert metrics["collapse/entropy_slope"] == pytest.approx(-0.02) and metrics["collapse/zero_variance_share"] == pytest.approx(0.1)
    assert metrics["collapse/entropy_of_start"] == pytest.approx(0.22 / 0.96) and all(map(math.isfinite, metrics.values()))
    assert monitor.entropy_law() is None  # seven finite evaluations
    monitor.observe(40, {"probe_entropy": 0.7, "probe_reward": 0.9 - 0.1 * math.exp(0.7)})
    assert monitor.metrics()["collapse/ceiling"] == pytest.approx(0.8) and monitor.metrics()["collapse/law_r_squared"] == pytest.approx(1)
    assert monitor.metrics()["collapse/headroom"] == pytest.approx(0.1 * math.exp(0.7) - 0.1)
    decaying = CollapseMonitor(CollapseConfig(smoothing=1.0, start_updates=1))
    watch(decaying, num_steps=25, entropy=lambda step: math.exp(-0.05 * step))
    # From exp(-1.2) to a tenth of the start at 0.05 a step.
    assert decaying.updates_to_exhaustion() == pytest.approx((math.log(10) - 1.2) / 0.05)


def test_settings_are_checked_by_name_and_every_alarm_is_documented_with_its_threshold():
    for name in vars(CollapseConfig()):
        with pytest.raises(ValidationError, match=name):
            CollapseConfig(**{name: -1})
    assert len(ALARMS) == 33 and set(HEALTHY) == set(INDICATOR_METRICS)
    page = (Path(__file__).resolve().parent.parent / "docs" / "collapse.md").read_text(encoding="utf-8")
    assert [name for name in ALARMS if f"`{name}`" not in page] == []
    settings = vars(CollapseConfig())
    stated = {name: float(value) for name, value in re.findall(r"`(?:collapse\.)?(\w+)` = (\d[\d.]*\d|\d)", page) if name in settings}
    assert len(stated) >= 15 and stated == {name: settings[name] for name in stated}
