"""Settings: where they come from, and the one sentence that a wrong one gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from experiments.callbacks import CALLBACKS, Callback
from experiments.config import (
    BudgetConfig,
    defaults_of,
    experiments,
    is_sweep,
    kinds,
    load,
    load_saved,
    overrides_of,
    path_of,
    read_yaml,
    to_plain,
    to_yaml,
)
from experiments.errors import ConfigError
from experiments.sweep_plan import Cell, load_sweep
from policy.config import EngineKind
from simulator.llm.config import EndpointConfig

LLM = ("simulator.kind=llm", "simulator.model=m")


def refusal(*overrides: str, experiment: str = "smoke") -> str:
    with pytest.raises(ConfigError) as caught:
        load(experiment, overrides)
    message = str(caught.value)
    assert "\n" not in message and "Error" not in message
    return message


# Experiment files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_file_loads_and_begins_with_its_idea(experiment):
    idea = path_of(experiment).read_text(encoding="utf-8").partition("\n")[0]
    assert idea.startswith("# ") and idea.endswith(".") and len(idea) <= 142
    if not is_sweep(experiment):
        assert load(experiment).experiment == experiment
        return
    sweep = load_sweep(experiment)
    assert sweep.experiment == experiment
    assert len(sweep.seeds) >= 3 and len(sweep.arms) >= 2 and sweep.planned.contrasts and sweep.planned.tuning


def test_the_matrix_of_rlver_has_every_combination_of_algorithm_mode_and_user_once():
    sweep = load_sweep("rlver_matrix")
    cells = [sweep.config(Cell(arm, 0)) for arm in sweep.arms]
    table = [(cell.algorithm.kind, cell.policy.thinking, cell.teacher.strictness) for cell in cells]
    assert sorted(table) == sorted((kind, mode, d) for kind in ("ppo", "grpo") for mode in (False, True) for d in (0.35, 0.75))


def test_an_unknown_experiment_is_refused_with_the_nearest_and_all():
    message = refusal(experiment="adaptive_curiculum")
    assert "smoke" in message and message.endswith("did you mean adaptive_curriculum?")


@pytest.mark.parametrize("text", ["base: smok\n", "base: made\n", "", "a: [1\nb: 2\n", b"# \xe4\nbase: smoke\n"])
def test_a_file_without_a_sound_base_is_refused_by_name_and_hides_no_other(write, text):
    write().rename(write().parent / "other.yaml")
    write().write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=r"made\.yaml"):
        load("made")
    assert set(experiments()) == {"smoke", "made", "other"} and load("smoke").experiment == "smoke"


# Layers and kinds ---------------------------------------------------------------------------------------------------------------


def test_an_override_wins_over_the_file_and_the_file_over_the_default():
    config = load("smoke", ["groups_per_step=3", "group_size=${groups_per_step}"])
    assert (config.groups_per_step, config.group_size, config.learner.num_minibatches) == (3, 3, 1)
    assert load("smoke").group_size == 4 and "no_such_setting" in refusal("group_size=${no_such_setting}")


@pytest.mark.parametrize("group", ["teacher", "algorithm", "simulator"])
def test_the_kind_of_a_group_chooses_its_settings(group):
    for kind, settings in kinds(group).items():
        needed = LLM[1:] if issubclass(settings, EndpointConfig) else []
        config = getattr(load("smoke", [f"{group}.kind={kind}", *needed]), group)
        assert isinstance(config, settings) and config.kind == kind
        assert defaults_of(group, kind)[f"{group}.kind"] == kind
    message = refusal(f"{group}.kind=oracle")
    assert message.startswith(f"{group}.kind") and message.endswith("'oracle'") and next(iter(kinds(group))) in message


def test_another_kind_than_the_files_leaves_the_settings_of_the_first_behind():
    assert "start" in read_yaml(path_of("adaptive_by_target"))["teacher"]
    config = load("adaptive_by_target", ["teacher.kind=fixed", "teacher.strictness=0.25"])
    assert (config.teacher.kind, config.teacher.strictness, config.algorithm.turn_credit) == ("fixed", 0.25, 0.9)
    assert load("adaptive_by_target", ["teacher.kind=target", "teacher.rho=0.2"]).teacher.start == 0.5
    assert load("adaptive_curriculum", ["algorithm.kind=ppo", "algorithm.critic=shared"]).algorithm.turn_credit == 0.0


def test_an_unknown_setting_is_refused_with_the_kinds_that_have_it_or_the_nearest():
    message = refusal("algorithm.critic_lr=0.01")
    assert message.startswith("algorithm.critic_lr is not a setting") and message.endswith("algorithm.kind=ppo")
    assert "teacher.kind=" in refusal("teacher.kind=frontier", "teacher.strictness=0.7")
    assert "simulator.kind=" in refusal(*LLM, "simulator.register=open") and "simulator.kind=" in refusal("simulator.urls=[http://a/v1]")
    assert refusal("techer.kind=fixed") == "techer is not a setting; did you mean teacher?"
    assert refusal("learner.learning_rate=1").startswith("learner.learning_rate is not a setting; did you mean learner.")
    assert refusal("budget.step=3").endswith("did you mean budget.steps?") and refusal("lr=1").endswith("did you mean learner.lr?")
    assert refusal(*LLM, "simulator.temprature=1").endswith("did you mean simulator.temperature?")


def test_settings_whose_default_depends_on_others():
    assert load("smoke").simulator.register == "world"
    assert load("smoke", ["policy.model=some/model"]).simulator.register == "open"
    assert load("smoke", ["simulator.register=open"]).simulator.register == "open"
    assert [load("smoke", [f"policy.thinking={mode}"]).policy.prior.thinking for mode in ("true", "false")] == [True, False]
    # The engine's logprobs are the old ones where both sides compute in float32.
    for exact in ([], ["rollout.max_staleness=2"]):
        assert load("smoke", exact).learner.recompute_logprobs is False
    for inexact in ("policy.dtype=bfloat16", "learner.autocast=true", "learner.recompute_logprobs=true"):
        assert load("smoke", [inexact]).learner.recompute_logprobs is True


# Values -------------------------------------------------------------------------------------------------------------------------

WRONG = {
    (): [
        *("learner.lr=fast", "learner.lr=.nan", "learner.lr=null", "groups_per_step=1.5", "group_size=1", "seed=-1", "budget=3"),
        *("budget.policy_tokens=0", "probe.num_contexts=1", "probe.num_contexts=65", "evaluation.during_scenarios=0"),
        *("evaluation.strictness=0.3", "evaluation.strictness=[]", "evaluation.strictness=[0.1,1.2]", "evaluation.strictness=[0.3,0.3]"),
        *("evaluation.split=train", "policy.engine=onnx", "policy.system_prompt=Listen.", "policy.keep_thoughts=false", "teacher=fixed"),
        *("callbacks.confetti.num=3", "callbacks=3", "rollout.reward_terms.flattery=0.3", "rollout.top_p=0.9", "policy.system_prompt=null"),
    ],
    ("algorithm.kind=ppo",): ["algorithm.lam=1.5", "algorithm.critic=twin"],
    LLM: [*("simulator.model=''", "simulator.urls=http://a/v1", "simulator.urls=[]"), "simulator.extra_body=[1]"],
}
"""By the kind that is chosen before, values that are out of range, of another type or without a meaning."""


@pytest.mark.parametrize(("kind", "override"), [(kind, each) for kind, cases in WRONG.items() for each in cases])
def test_a_wrong_value_is_refused_by_the_name_of_its_setting(kind, override):
    assert refusal(*kind, override).startswith(override.partition("=")[0].removesuffix(".num"))


CONTRADICTIONS = {
    "algorithm.importance_correction": [
        ["algorithm.importance_correction=token", "learner.recompute_logprobs=false"],
        ["learner.autocast=true", "rollout.max_staleness=2"],
    ],
    "policy.prior.thinking": [["policy.prior.thinking=true"]],
    "learner.micro_batch_tokens": [["learner.micro_batch_tokens=511", "rollout.max_context=512"]],
    "algorithm.kl_target": [["algorithm.kl_target=0.01", "algorithm.kl_coef=0"]],
    "algorithm.kl_in": [["algorithm.kl_in=reward", "algorithm.kl_coef=0"]],
    "policy.tensor_parallel": [["policy.tensor_parallel=2", "policy.engine=hf"]],
    "policy.engine_process": [["policy.engine_process=true", "policy.engine=hf"]],
    "algorithm.critic": [["algorithm.kind=ppo", "algorithm.critic=shared", "policy.lora.rank=4"]],
    "algorithm.critic_warmup_steps": [["algorithm.kind=ppo", "algorithm.critic_warmup_steps=4", "budget.steps=4"]],
    "algorithm.turn_credit": [["rollout.binary_reward_at=20", "algorithm.turn_credit=0.5"]],
    "rollout.dialogue_timeout_s": [[*LLM, "rollout.dialogue_timeout_s=90", "rollout.outage_s=600"]],
    "policy.keep_thoughts": [["policy.thinking=true", "policy.keep_thoughts=false", "algorithm.policy_loss=gspo"]],
    "resampling.max_rounds": [[f"teacher.kind={kind}", "resampling.max_rounds=2"] for kind in ("linear", "vcrl")],
}
"""By the setting that the message names, settings that contradict each other."""


@pytest.mark.parametrize(("name", "settings"), [(name, each) for name, cases in CONTRADICTIONS.items() for each in cases])
def test_settings_that_contradict_each_other_are_refused_with_both_names(name, settings):
    message = refusal(*settings)
    assert name in message and any(word.partition("=")[0] in message for word in settings[-2:])


@pytest.mark.parametrize(
    "settings",
    [
        ["learner.micro_batch_tokens=512", "rollout.max_context=512"],
        ["learner.autocast=true", "rollout.max_staleness=2", "algorithm.importance_correction=token"],
        [*LLM, "rollout.dialogue_timeout_s=90", "simulator.max_wait_s=60", "rollout.outage_s=600"],
        ["policy.thinking=true", "policy.keep_thoughts=false"],
    ],
)
def test_settings_that_agree_are_taken(settings):
    load("smoke", settings)


def test_the_larger_fraction_of_tokens_and_steps_of_a_budget_counts():
    both, tokens_alone = BudgetConfig(policy_tokens=1000, steps=10), BudgetConfig(policy_tokens=1000)
    assert both.fraction(policy_tokens=250, steps=1) == 0.25 and both.fraction(policy_tokens=250, steps=4) == 0.4
    assert both.fraction(policy_tokens=1200, steps=9) == 1.2 and tokens_alone.fraction(policy_tokens=250, steps=4) == 0.25


# Overrides as words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["fast", "=3", "a=[", "learner.lr:3"])
def test_a_word_that_is_no_assignment_is_refused(word):
    refusal(word)


def test_values_are_yaml():
    assert load("smoke", ["budget.policy_tokens=2e6"]).budget.policy_tokens == 2_000_000
    config = load("smoke", ["policy.engine=hf"])
    assert config.policy.engine is EngineKind.HF and to_plain(config)["policy"]["engine"] == "hf"
    user = load("smoke", [*LLM, "simulator.urls=[http://a:1/v1,https://b/v1]", "simulator.temperature=null"]).simulator
    assert (user.urls, user.temperature) == (["http://a:1/v1", "https://b/v1"], None)


@pytest.mark.parametrize("text", ["no", "1.10", "typo # 2", "reason: x", "'quoted' at first", "{a: b}"])
def test_text_is_taken_as_written(text):
    assert load("own_model", [f"policy.system_prompt={text}"]).policy.system_prompt == text


@pytest.mark.parametrize("quotes", ["'", ""])
def test_a_table_for_a_text_is_its_json_also_where_a_shell_took_its_quotes(quotes):
    word = f'simulator.extra_body={quotes}{{"chat_template_kwargs": {{"enable_thinking": false}}}}{quotes}'
    for base in ("smoke", "own_model"):
        assert load(base, [*LLM, word]).simulator.extra() == {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["seed=3", "learner.lr=0.001"],
        ["teacher.kind=uniform", "budget.policy_tokens=300000", "evaluation.strictness=[0.1, 0.5]"],
        ["algorithm.kind=ppo", "algorithm.turn_credit=0.9", "probe.at_start=true"],
        [*LLM, 'simulator.urls=["http://127.0.0.1:8001/v1"]', 'simulator.extra_body={"a":1}', "rollout.max_error_share=0.1"],
        ["teacher.kind=yoked", "teacher.trace=elsewhere/teacher.jsonl"],
    ],
)
def test_a_run_knows_the_overrides_that_make_it_again(words):
    config = load("adaptive_curriculum", words)
    again = overrides_of(config)
    assert {word.partition("=")[0] for word in words} == {word.partition("=")[0] for word in again}
    assert to_plain(load("adaptive_curriculum", again)) == to_plain(config)
    assert overrides_of(replace(config, experiment="gone")) is None


@pytest.mark.parametrize("text", ['"hi"', "'quoted'", '"Hi" and "bye"', "Be kind.  # first", "null", "~", "1.10", "a: b", "a\nb", "ü😊"])
def test_the_override_for_a_text_gives_the_same_text(text):
    config = load("own_model")
    config.policy.system_prompt = text
    assert load("own_model", overrides_of(config)).policy.system_prompt == text


# Saved settings -----------------------------------------------------------------------------------------------------------------


def save(folder: Path, *overrides: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(to_yaml(load("smoke", overrides), {"git_commit": "abc"}))
    return path


def test_saved_settings_read_back_as_they_were(tmp_path):
    words = ["teacher.kind=fixed", "teacher.strictness=0.3", "policy.engine=hf", "name=a"]
    assert load_saved(save(tmp_path, *words)) == load("smoke", words)


@dataclass
class Added(Callback):
    share: float = 0.25


@pytest.mark.parametrize(
    "change",
    ["teacher.kind=uniform", "policy.thinking=true", "learner.lr=0.1", "callbacks.added.share=0.5"],
)
def test_a_resumed_run_keeps_the_settings_that_its_past_depends_on(tmp_path, change, monkeypatch):
    monkeypatch.setitem(CALLBACKS, "added", Added)
    with pytest.raises(ConfigError) as refused:
        load_saved(save(tmp_path, "teacher.kind=fixed"), [change])
    assert str(refused.value).startswith(f"{change.partition('=')[0]} must stay")


def test_a_resumed_run_may_have_another_budget_machine_and_place_of_its_user(tmp_path):
    path = save(tmp_path, *LLM)
    moved = ["budget.steps=9", "resume=x", "learner.micro_batch_rows=2", "simulator.urls=[http://b/v1]", "simulator.api_key_env=KEY"]
    config = load_saved(path, moved)
    assert (config.budget.steps, config.resume, config.learner.micro_batch_rows, config.simulator.urls) == (9, "x", 2, ["http://b/v1"])
    with pytest.raises(ConfigError, match=r"simulator\.model must stay"):
        load_saved(path, ["simulator.model=n"])
