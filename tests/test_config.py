"""Settings: where they come from, and the one sentence a wrong one gets."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from analysis.runs import leaves
from curriculum import TEACHERS
from experiments.config import BudgetConfig, experiments, is_sweep, load, load_saved, path_of, read_yaml, to_plain, to_yaml
from experiments.errors import ConfigError, nearest
from experiments.sweep_plan import load_sweep
from policy.config import ALGORITHM_CONFIGS, EngineKind
from simulator.llm.config import DECIDE_NOTHING, EndpointConfig
from simulator.llm.user import LLMUserConfig


def refusal(*overrides: str, experiment: str = "smoke") -> str:
    with pytest.raises(ConfigError) as caught:
        load(experiment, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("experiment", sorted(experiments()))
def test_every_experiment_file_loads_and_says_what_it_is_about(experiment):
    loaded = load_sweep(experiment) if is_sweep(experiment) else load(experiment)
    assert loaded.experiment == experiment
    assert experiments()[experiment].endswith(".")


def test_an_override_wins_over_the_file_and_the_file_over_the_default():
    config = load("smoke", ["groups_per_step=3"])
    assert (config.groups_per_step, config.group_size, config.learner.num_minibatches) == (3, 4, 1)


def test_another_kind_than_the_files_leaves_the_settings_of_the_first_behind():
    assert "start" in read_yaml(path_of("adaptive_curriculum"))["teacher"]
    config = load("adaptive_curriculum", ["teacher.kind=fixed", "teacher.strictness=0.25"])
    assert (config.teacher.kind, config.teacher.strictness, config.algorithm.turn_credit) == ("fixed", 0.25, 0.9)
    assert load("adaptive_curriculum", ["teacher.kind=frontier", "teacher.rho=0.2"]).teacher.start == 0.5


def test_the_engines_logprobs_are_taken_where_both_sides_compute_in_float32():
    assert load("smoke").learner.recompute_logprobs is False
    assert load("smoke", ["policy.dtype=bfloat16"]).learner.recompute_logprobs is True
    assert load("smoke", ["learner.autocast=true"]).learner.recompute_logprobs is True
    assert load("smoke", ["learner.recompute_logprobs=true"]).learner.recompute_logprobs is True


@pytest.mark.parametrize("kind", sorted(TEACHERS))
def test_the_kind_of_teacher_chooses_which_settings_there_are(kind):
    config = load("smoke", [f"teacher.kind={kind}"])
    assert config.teacher.kind == kind
    assert isinstance(config.teacher, TEACHERS[kind][0])


def test_a_setting_of_another_kind_of_teacher_is_unknown():
    assert load("smoke", ["teacher.kind=fixed", "teacher.strictness=0.7"]).teacher.strictness == 0.7
    assert "teacher.strictness is not a setting" in refusal("teacher.kind=frontier", "teacher.strictness=0.7")


def test_a_setting_that_only_another_kind_has_is_refused_with_both_kinds():
    assert refusal("algorithm.critic_lr=0.01") == (
        "algorithm.critic_lr is not a setting of algorithm.kind=grpo, got 0.01; leave it out or choose algorithm.kind=ppo"
    )
    message = refusal("algorithm.kind=ppo", "algorithm.normalise_by=batch")
    assert message.startswith("algorithm.normalise_by is not a setting of algorithm.kind=ppo, got 'batch'; leave it out or choose algo")


@pytest.mark.parametrize("kind", sorted(ALGORITHM_CONFIGS))
def test_the_kind_of_algorithm_chooses_which_settings_there_are(kind):
    config = load("smoke", [f"algorithm.kind={kind}", "algorithm.turn_credit=0.5"])
    assert isinstance(config.algorithm, ALGORITHM_CONFIGS[kind]) and config.algorithm.turn_credit == 0.5
    assert to_plain(config)["algorithm"]["kind"] == kind


def test_another_algorithm_leaves_the_settings_of_the_files_behind():
    assert load("adaptive_curriculum").algorithm.turn_credit == 0.9
    assert load("adaptive_curriculum", ["algorithm.kind=ppo", "algorithm.critic=shared"]).algorithm.turn_credit == 0.0


def test_an_unknown_setting_is_named_with_the_nearest_one():
    assert refusal("techer.kind=fixed") == "techer.kind is not a setting; did you mean teacher.kind?"
    assert refusal("learner.learning_rate=1").startswith("learner.learning_rate is not a setting; did you mean learner.")
    assert refusal("budget.step=3") == "budget.step is not a setting; did you mean budget.steps?"


def test_an_unknown_experiment_gets_the_list_of_those_there_are():
    message = refusal(experiment="adaptive_curiculum")
    assert "there is no experiment 'adaptive_curiculum'" in message
    assert "smoke" in message and message.endswith("did you mean adaptive_curriculum?")


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "repetition_penalty"])
def test_sampling_that_would_bias_the_ratio_is_refused_with_the_reason(name):
    assert "would bias the importance ratio" in refusal(f"rollout.{name}=1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.lr=fast", "learner.lr must be a number, got 'fast'"),
        ("groups_per_step=1.5", "groups_per_step must be a whole number, got 1.5"),
        ("evaluation.strictness=0.3", "evaluation.strictness must be a list, got 0.3"),
        ("rollout.deterministic=perhaps", "rollout.deterministic must be true or false, got 'perhaps'"),
        ("policy.engine=onnx", "policy.engine must be one of auto, vllm, hf, got 'onnx'"),
        ("groups_per_step=0", "groups_per_step must be > 0, got 0"),
        ("group_size=1", "group_size must be >= 2, got 1; siblings are compared with each other"),
        ("algorithm.kind=a2c", "algorithm.kind must be one of grpo, rloo, reinforce_pp, ppo, got 'a2c'"),
        (
            "policy.system_prompt=Listen.",
            "policy.system_prompt must be empty for the embedded policy, which was taught none, got 'Listen.'",
        ),
        ("seed=-1", "seed must be in [0, 2**63), got -1"),
        ("seed=9223372036854775808", "seed must be in [0, 2**63), got 9223372036854775808"),
        ("budget.policy_tokens=0", "budget.policy_tokens must be > 0, got 0"),
        ("learner.lr=.nan", "learner.lr must be finite, got nan"),
        ("learner.lr=null", "learner.lr must be a number, got None"),
        ("checkpoint.every=0", "checkpoint.every must be > 0, got 0"),
        ("probe.every=0", "probe.every must be > 0, got 0"),
    ],
)
def test_a_wrong_value_is_refused_with_name_rule_and_value(override, message):
    assert refusal(override) == message


@pytest.mark.parametrize(("kind", "got"), [("oracle", "'oracle'"), ("[1]", "[1]")])
def test_a_kind_that_nobody_registered_is_refused_with_those_that_there_are(kind, got):
    said = refusal(f"teacher.kind={kind}")
    assert said.startswith("teacher.kind must be one of frontier, fixed, linear") and said.endswith(f"got {got}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("callbacks.confetti.num=3", "callbacks.confetti must be "),
        ("callbacks=3", "callbacks must be a table of settings by name, got 3"),
        ("rollout.reward_terms.flattery=0.3", "rollout.reward_terms.flattery must be "),
    ],
)
def test_what_no_study_registered_is_refused(override, message):
    assert refusal(override).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lam=1.5", "algorithm.lam must be in [0, 1], got 1.5; 1 does without the critic's expectations"),
        ("algorithm.gamma=0", "algorithm.gamma must be in (0, 1], got 0.0; 1 does not discount"),
        (
            "algorithm.critic_warmup_steps=4",
            "algorithm.critic_warmup_steps must be < budget.steps=4, got 4: the policy would never be trained;"
            " lower the one or raise the other",
        ),
        ("algorithm.critic=twin", "algorithm.critic must be one of separate, shared, got 'twin'"),
        ("group_size=1", "group_size must be >= 2, got 1; siblings are compared with each other"),
    ],
)
def test_a_wrong_setting_of_ppo_is_refused(override, message):
    assert refusal("algorithm.kind=ppo", override) == message


def test_a_group_cannot_be_set_as_a_whole():
    assert refusal("teacher=fixed") == "teacher must be set by its parts, such as teacher.kind=fixed, got 'fixed'"
    assert refusal("budget=3").startswith("budget must be set by its parts: budget.policy_tokens, budget.steps")


@pytest.mark.parametrize("word", ["fast", "=3", "a=[", "learner.lr:3"])
def test_a_word_that_is_no_assignment_is_refused(word):
    refusal(word)


def test_a_whole_number_may_be_written_with_an_exponent():
    assert load("smoke", ["budget.policy_tokens=2e6"]).budget.policy_tokens == 2_000_000


def test_of_a_budget_the_larger_share_of_tokens_and_steps_is_spent():
    both, tokens_alone = BudgetConfig(policy_tokens=1000, steps=10), BudgetConfig(policy_tokens=1000)
    assert both.spent(policy_tokens=250, steps=1) == 0.25 and both.spent(policy_tokens=250, steps=4) == 0.4
    assert both.spent(policy_tokens=1200, steps=9) == 1.2
    assert tokens_alone.spent(policy_tokens=250, steps=4) == 0.25


def test_an_engine_is_named_as_it_is_written():
    config = load("smoke", ["policy.engine=hf"])
    assert config.policy.engine is EngineKind.HF
    assert to_plain(config)["policy"]["engine"] == "hf"


def save(config, folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(to_yaml(config, {"git_commit": "abc"}))
    return path


def test_saved_settings_read_back_as_they_were(tmp_path):
    config = load("smoke", ["teacher.kind=fixed", "teacher.strictness=0.3", "policy.engine=hf", "name=a"])
    assert load_saved(save(config, tmp_path)) == config


def test_a_resumed_run_may_get_more_budget_but_no_other_teacher(tmp_path):
    path = save(load("smoke", ["teacher.kind=fixed"]), tmp_path)
    assert load_saved(path, ["budget.steps=9", "resume=x"]).budget.steps == 9
    with pytest.raises(ConfigError, match=r"teacher\.kind must stay 'fixed' in a resumed run, got 'uniform'"):
        load_saved(path, ["teacher.kind=uniform"])
    with pytest.raises(ConfigError, match=r"seed must stay 0 in a resumed run, got 1; start a new run for that"):
        load_saved(path, ["seed=1"])


def test_users_listen_to_the_language_that_the_policy_speaks():
    assert load("smoke").simulator.register == "world"
    assert load("smoke", ["policy.model=some/model"]).simulator.register == "open"
    assert load("smoke", ["simulator.register=open"]).simulator.register == "open"


def test_the_kind_of_user_chooses_which_settings_there_are():
    config = load(
        "smoke", ["simulator.kind=llm", "simulator.model=m", "simulator.urls=[http://a:1/v1,https://b/v1]", "simulator.temperature=null"]
    )
    assert isinstance(config.simulator, LLMUserConfig)
    assert (config.simulator.urls, config.simulator.temperature) == (["http://a:1/v1", "https://b/v1"], None)
    assert to_plain(config)["simulator"]["answer_format"] == "json_schema"
    assert "simulator.register is not a setting" in refusal("simulator.kind=llm", "simulator.model=m", "simulator.register=open")
    assert "simulator.urls is not a setting" in refusal("simulator.urls=[http://a/v1]")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("simulator.model=", "simulator.model must be text, got None"),
        ("simulator.model=''", "simulator.model must name the model that the servers serve, got ''"),
        ("simulator.urls=http://a/v1", "simulator.urls must be a list, got 'http://a/v1'"),
        ("simulator.urls=[]", "simulator.urls must name at least one server, each once, got []"),
        ("simulator.concurrency=many", "simulator.concurrency must be a whole number, got 'many'"),
        ("simulator.timeout_s=0", "simulator.timeout_s must be > 0, got 0.0"),
        ("simulator.start_emotion=5", "simulator.start_emotion must be in [10, 100), got 5"),
        ("simulator.answer_format=xml", "simulator.answer_format must be one of json_schema, json_object, text, got 'xml'"),
        ("simulator.temprature=1", "simulator.temprature is not a setting; did you mean simulator.temperature?"),
    ],
)
def test_a_wrong_setting_of_the_llm_user_is_refused(override, message):
    assert refusal("simulator.kind=llm", "simulator.model=m", override) == message


def test_a_dialogue_may_take_longer_than_one_of_its_questions_may_wait():
    llm = ("simulator.kind=llm", "simulator.model=m")
    assert refusal(*llm, "rollout.dialogue_timeout_s=90", "rollout.outage_s=600") == (
        "rollout.dialogue_timeout_s must be above simulator.max_wait_s=120 with rollout.outage_s=600, got 90: "
        "dialogues would fail before an outage shows; raise the one or lower the other"
    )
    for settings in (["rollout.outage_s=0"], ["simulator.max_wait_s=60", "rollout.outage_s=600"]):
        assert load("smoke", [*llm, "rollout.dialogue_timeout_s=90", *settings]).rollout.dialogue_timeout_s == 90.0


def test_how_the_llm_user_samples_biases_no_ratio():
    assert refusal("simulator.kind=llm", "simulator.model=m", "simulator.top_p=0.9").startswith("simulator.top_p is not a setting; did you")


def test_a_resumed_run_may_find_its_user_elsewhere_but_not_another_user(tmp_path):
    path = save(load("smoke", ["simulator.kind=llm", "simulator.model=m"]), tmp_path)
    moved = load_saved(path, ["simulator.urls=[http://b/v1]", "simulator.concurrency=3", "simulator.api_key_env=KEY"])
    assert moved.simulator.urls == ["http://b/v1"]
    with pytest.raises(ConfigError, match=r"simulator\.model must stay 'm' in a resumed run, got 'n'"):
        load_saved(path, ["simulator.model=n"])


def test_what_decides_nothing_of_what_a_user_says_are_settings_of_its_servers():
    assert set(DECIDE_NOTHING) < {setting.name for setting in fields(EndpointConfig)}


def test_leaves_are_dotted_names():
    assert list(leaves({"a": {"b": 1, "c": [2]}, "d": None, "e": {}})) == [("a.b", 1), ("a.c", [2]), ("d", None)]


def test_nearest_looks_in_the_own_section_first_then_at_the_last_part():
    assert nearest("budget.step", ["teacher.guard.step", "budget.steps"]) == "budget.steps"
    assert nearest("lr", ["learner.lr", "l", "seed"]) == "learner.lr"
    assert nearest("teacher.kimd", ["simulator.kind", "teacher.kind"]) == "teacher.kind"


def test_the_embedded_prior_thinks_where_the_policy_does():
    assert load("smoke", ["policy.thinking=true"]).policy.prior.thinking is True
    assert load("smoke").policy.prior.thinking is False


def test_a_prior_of_the_other_mode_is_refused_with_the_remedy():
    asked = "policy.prior.thinking must be True where policy.thinking is, got False; leave it unset"
    assert asked in refusal("policy.thinking=true", "policy.prior.thinking=false")
    assert "policy.prior.thinking must be False" in refusal("policy.prior.thinking=true")
    assert "policy.keep_thoughts must be unset where policy.thinking is false" in refusal("policy.keep_thoughts=false")


def test_a_resumed_run_goes_on_in_its_mode(tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(load("smoke")))
    with pytest.raises(ConfigError, match=r"policy\.thinking must stay False in a resumed run, got True"):
        load_saved(tmp_path / "config.yaml", ["policy.thinking=true"])


@pytest.mark.parametrize("setting", ["algorithm.policy_loss=gspo", "algorithm.loss_aggregation=dialogue_mean"])
def test_losses_by_dialogue_need_dialogues_in_one_piece(setting: str):
    thinking = ["policy.thinking=true", "policy.keep_thoughts=false"]
    load("smoke", thinking)
    with pytest.raises(ConfigError, match=r"forgets the thoughts before it \(policy\.keep_thoughts\)"):
        load("smoke", [*thinking, setting])


@pytest.mark.parametrize("word", ["inf", ".inf", "nan", ".nan", "-inf"])
@pytest.mark.parametrize("name", ["algorithm.kl_coef", "rollout.temperature", "cluster.gpus_per_engine", "learner.weight_decay"])
def test_a_number_that_is_none_is_refused_however_it_is_spelt(name: str, word: str):
    assert f"{name} must be " in refusal(f"{name}={word}")


def test_settings_that_bound_the_memory_of_an_update_are_checked():
    assert "learner.logit_chunk_mb must be >= 1, got 0" in refusal("learner.logit_chunk_mb=0")
    assert "policy.lora.rank must be >= 0, got -1" in refusal("policy.lora.rank=-1")
    assert load("smoke", ["learner.gradient_checkpointing=true", "policy.lora.targets=q_proj,v_proj"]).policy.lora.rank == 0


@pytest.mark.parametrize("quotes", ["'", ""])
def test_a_table_for_a_text_is_its_json_as_a_shell_that_takes_the_quotes_away_leaves_it(quotes):
    word = f'simulator.extra_body={quotes}{{"chat_template_kwargs": {{"enable_thinking": false}}}}{quotes}'
    for base in ("smoke", "own_model"):
        user = load(base, ["simulator.kind=llm", "simulator.model=m", word]).simulator
        assert user.extra() == {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    "text", ["no", "1.10", "0123", "typo # 2", "reason: x", "[a]", "'quoted' at first", "off", "1e3", "2026-11-27", "{a: b}"]
)
def test_a_setting_that_is_text_is_what_was_written(text):
    config = load("own_model", [f"policy.system_prompt={text}"])
    assert config.policy.system_prompt == text


def test_quotes_around_a_text_are_the_shells():
    assert load("own_model", ["policy.system_prompt='Listen: first.'"]).policy.system_prompt == "Listen: first."


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_a_text_is_never_nothing(nothing):
    with pytest.raises(ConfigError, match=r"policy\.system_prompt must be text, got None"):
        load("own_model", [f"policy.system_prompt={nothing}"])


@pytest.mark.parametrize("word", ["policy.model=${name}", "name=???", "seed=???", "simulator.urls=['http://${name}']"])
def test_what_the_library_would_put_other_settings_into_is_refused(word):
    words = [word] if "urls" not in word else ["simulator.kind=llm", "simulator.model=x", word]
    with pytest.raises(ConfigError, match="must be text that stands for itself"):
        load("adaptive_curriculum", words)
