"""Reading a run's folder, whole, torn or not a run at all; and the table of metric keys against the code that logs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from documented_metrics import documented_keys, pattern_of, undocumented
from made_trace import usable_settings

from analysis.runs import read_lines, read_run
from analysis.sections import BeforeAfter, Pair, examples, typical
from curriculum import TEACHERS
from curriculum.collapse.history import INDICATOR_METRICS as INDICATORS
from curriculum.collapse.history import CollapseConfig
from curriculum.collapse.monitor import CollapseMonitor
from experiments.evaluation import HeldOutEvaluation
from experiments.metrics import dialogue_metrics, probe_metrics, retrieval_metrics, signal_metrics
from simulator.llm.user import LLMUser, LLMUserConfig
from simulator.scenario import FAMILIES
from simulator.settings import leaves, setting


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def small_run(folder: Path, *, metrics: str = '{"step": 1, "reward/mean": 0.5}\n', config: str = "experiment: smoke\nseed: 3\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    (folder / "metrics.jsonl").write_text(metrics, encoding="utf-8")
    return folder


def held_out_line(
    uid: str, emotion: int, *, look: int, grid: str = "full", scenario: str = "", outcome: str = "max_turns", in_during: bool = True
):
    return {
        "step": 10 * look,
        "look": look,
        "uid": uid,
        "scenario_id": scenario or uid,
        "emotion": emotion,
        "grid": grid,
        "outcome": outcome,
        "in_during": in_during,
        "policy_tokens": 1000 * look,
        "family": "praise/negative",
        "strictness": 0.5,
    }


def test_a_series_leaves_out_the_steps_that_did_not_measure_it(tmp_path):
    lines = '{"step": 1, "actor/entropy": 2.0}\n{"step": 2, "actor/entropy": null}\n{"step": 3}\n{"step": 4, "actor/entropy": 1}\n'
    run = read_run(small_run(tmp_path / "run", metrics=lines))
    assert run.series("actor/entropy") == ([1, 4], [2.0, 1.0])
    assert run.num_steps == 4
    assert run.summary is None


def test_provenance_stands_apart_from_the_settings(tmp_path):
    run = read_run(small_run(tmp_path / "run", config="experiment: smoke\nteacher:\n  kind: fixed\nprovenance:\n  git_commit: abc\n"))
    assert run.provenance == {"git_commit": "abc"}
    assert list(leaves(run.config)) == [("experiment", "smoke"), ("teacher.kind", "fixed")]
    assert run.experiment == "smoke"
    assert run.name == "run"


def test_a_nested_value_is_found_by_its_dotted_name_or_not_at_all():
    tree = {"a": {"b": 0, "c": None}}
    assert setting(tree, "a.b") == 0
    assert setting(tree, "a.c", "other") == "other"
    assert setting(tree, "a.b.d", "other") == "other"
    assert setting(None, "a") is None


@pytest.mark.parametrize("torn", ['{"step": 2, "rew', '{"step": 2}', "\0\0\0\0\n", '{"step": 2, "rew\n'])
def test_a_last_line_torn_by_a_kill_is_left_out(tmp_path, torn):
    assert list(read_lines(write_lines(tmp_path / "metrics.jsonl", '{"step": 1}\n', torn))) == [{"step": 1}]


def test_a_broken_line_before_the_last_is_named_and_a_missing_stream_is_empty(tmp_path):
    path = write_lines(tmp_path / "metrics.jsonl", '{"step": 1}\n', "{nonsense\n", '{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl must hold a JSON object with a step in line 2, got b'{nonsense"):
        list(read_lines(path))
    assert list(read_lines(tmp_path / "evaluation.jsonl")) == []


def test_a_folder_that_is_no_run_is_refused_with_the_runs_or_sweeps_beneath_it(tmp_path):
    for folder, complaint in (
        (tmp_path / "nowhere", "there is no such folder"),
        (tmp_path, "it has no config.yaml and no metrics.jsonl"),
        (write_lines(tmp_path / "file", "a: 1\n"), "must be a run's folder"),
    ):
        with pytest.raises(ValueError, match=complaint):
            read_run(folder)
    small_run(tmp_path / "made" / "sweep" / "frontier" / "seed_0")
    with pytest.raises(ValueError, match=r"sweeps beneath it: .*made/sweep$"):
        read_run(tmp_path)
    small_run(tmp_path / "smoke" / "first")
    with pytest.raises(ValueError, match=r"runs beneath it: .*smoke/first$"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.yaml", "a: 1\nb: [1\n", "must be YAML, got .* line 3"),
        ("config.yaml", "- 1\n", "must hold settings by name, got list"),
        ("summary.json", "{", "must be a JSON object"),
        ("summary.json", "[1]", "must be a JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, file, content, complaint):
    folder = small_run(tmp_path / "run")
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read_run(folder)


def test_runs_of_version_0_1_are_read_under_present_names(tmp_path):
    run = read_run(small_run(tmp_path / "run", metrics='{"step": 1, "actor/ppo_kl": 0.5}\n'))
    assert run.series("actor/approx_kl") == ([1], [0.5]) and run.world == ""
    assert replace(run, provenance={"world_hash": "5ad6837599ae0863"}).world == "world-1"
    assert replace(run, summary={"world": "open-2"}).world == "open-2"


def test_looks_score_the_shared_scenarios_alone():
    lines = [
        held_out_line("a", 20, look=0),
        held_out_line("b", 90, look=0, in_during=False),
        held_out_line("a", 40, look=1, grid="during"),
        held_out_line("c", 0, look=1, grid="during", outcome="error"),
    ]
    assert [(look.policy_tokens, look.score) for look in BeforeAfter.read(lines).looks] == [(0, 20.0), (1000, 40.0)]
    # A curve has one score at a time: a run that went on where it had ended was looked at twice there.
    again = [*lines, {**held_out_line("a", 50, look=2), "step": 10, "policy_tokens": 1000}]
    assert [(look.policy_tokens, look.score) for look in BeforeAfter.read(again).looks] == [(0, 20.0), (1000, 45.0)]


def test_there_is_no_gain_before_a_second_full_grid():
    seen = BeforeAfter.read([held_out_line("a", 20, look=0), held_out_line("a", 40, look=1, grid="during")])
    assert seen.pairs == []
    assert seen.gain is None


def test_gain_pairs_the_first_full_grid_with_the_last_and_skips_what_broke():
    lines = [
        *(held_out_line(uid, emotion, look=0) for uid, emotion in (("a", 10), ("b", 30), ("c", 50))),
        *(held_out_line(uid, emotion, look=3) for uid, emotion in (("a", 50), ("b", 50))),
        held_out_line("c", 0, look=3, outcome="error"),
    ]
    seen = BeforeAfter.read(lines)
    assert [pair.gain for pair in seen.pairs] == [40.0, 20.0]
    assert seen.gain == (30.0, 20.0, 40.0)


@pytest.mark.parametrize("name", ["look", "grid", "emotion"])
def test_a_held_out_line_that_lacks_something_is_named(name):
    torn = {key: value for key, value in held_out_line("b", 30, look=1).items() if key != name}
    with pytest.raises(ValueError, match=rf"evaluation\.jsonl must hold graded dialogues, got a line at step 10 with a bad '{name}'"):
        BeforeAfter.read([held_out_line("a", 10, look=0), torn])


def test_dialogues_of_one_scenario_are_resampled_together():
    before = [held_out_line(f"{s}{i}", 0, look=0, scenario=s) for s in "ab" for i in range(50)]
    after = [held_out_line(f"{s}{i}", {"a": 10, "b": 30}[s], look=1, scenario=s) for s in "ab" for i in range(50)]
    # Two scenarios carry two facts, however many dialogues each: a resample is (10, 10), (10, 30) or (30, 30).
    assert BeforeAfter.read([*before, *after]).gain == (20.0, 10.0, 30.0)


def test_the_typical_pair_comes_first_then_those_that_lost_and_gained_most_each_once():
    def pairs(uids: str, emotions: tuple[int, ...]) -> list[Pair]:
        turns = {"turns": [], "hidden_intention": "be heard"}
        ends = [
            [{**held_out_line(uid, emotion, look=i), **turns} for i, emotion in enumerate((50, end))]
            for uid, end in zip(uids, emotions, strict=True)
        ]
        return [Pair(*both) for both in ends]

    found = pairs("abcd", (60, 100, 0, 65))
    assert typical(found).before["uid"] == "a"
    assert [shown["title"] for shown in examples(found)] == [
        "",
        "The user who lost most by training: -50",
        "The user who gained most by training: +50",
    ]
    assert [shown["about"][0] for shown in examples(found)] == ["a", "c", "b"]
    assert len(examples(pairs("ab", (50, 60)))) == 2 and len(examples(pairs("a", (50,)))) == 1


def logged_keys() -> set[str]:
    """What the code logs in a step, asked of the code itself."""
    from policy_factories import random_batch

    from policy.algorithms.algorithms import Grpo
    from policy.algorithms.critic import METRICS as CRITIC_METRICS
    from policy.config import Correction, GrpoConfig, KlPlace
    from policy.learner import METRICS
    from policy.rollout.pool import off_policy_metrics

    adapted = Grpo(GrpoConfig(kl_coef=0.1, kl_in=KlPlace.REWARD, importance_correction=Correction.TOKEN))
    batch = random_batch(seed=0)
    told = adapted.observe(replace(batch, ref_logprobs_BT=batch.rollout_logprobs_BT), {})
    keys = {*METRICS, *CRITIC_METRICS, *told, *dialogue_metrics([], success_emotion=70.0), *signal_metrics([]), *probe_metrics([])}
    keys |= set(retrieval_metrics([], lambda ids: [], num_contexts=16))
    for kind, (_, teacher) in TEACHERS.items():
        with patch("curriculum.density.find_spec"):
            made = teacher(usable_settings(kind), scenarios={family: ["a"] for family in FAMILIES}, group_size=2, seed=0)
        made.propose(1, policy_version=0)
        keys |= set(made.metrics())
    monitor = CollapseMonitor(CollapseConfig())
    for step in range(10):
        monitor.observe(step, {**dict.fromkeys(INDICATORS, 0.5 + 0.01 * step), "entropy": 1.0 - 0.05 * step})
    user = LLMUser(LLMUserConfig(urls=["http://127.0.0.1:8000/v1"], model="m", cache="off"))
    keys |= {f"simulator/{name}" for name in (*user.counts(), "paused_s")} | set(off_policy_metrics([], policy_version=0, num_dropped=0))
    return keys | set(monitor.metrics()) | {f"eval/{grid}_{name}" for grid in ("full", "during") for name in HeldOutEvaluation.SHOWN}


def test_every_metric_the_code_logs_is_documented():
    assert undocumented(logged_keys()) == []


def test_every_metric_is_documented_once():
    keys = documented_keys()
    assert len(keys) == len(set(keys))


def test_what_is_documented_of_these_packages_is_logged():
    documented = [
        key
        for key in documented_keys()
        if key.startswith(("actor/", "critic/", "collapse/", "probe/", "num_turns/", "reward/", "simulator/"))
    ]
    logged = logged_keys()
    assert [key for key in documented if key not in logged] == []


def test_a_placeholder_stands_for_one_word():
    pattern = pattern_of("curriculum/offset/<intention>")
    assert pattern.fullmatch("curriculum/offset/both_sides")
    assert not pattern.fullmatch("curriculum/offset/a/b")
    assert not pattern.fullmatch("curriculum/offset/")


def test_a_key_without_a_row_is_noticed():
    assert undocumented(["reward/mean", "reward/median"]) == ["reward/median"]
