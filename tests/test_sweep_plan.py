"""A sweep's file as it is read, told and refused, before anything runs."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest
from sweep_file import PLAN, planned

from experiments import config as catalogue
from experiments.__main__ import main
from experiments.config import load, to_plain
from experiments.errors import ConfigError
from experiments.resume import differences
from experiments.sweep import lost_by_words
from experiments.sweep_plan import Cell, describe, is_sweep, load_sweep


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("base: smok\n", "base must name an experiment of a single run, got 'smok' in made.yaml; there is none; did you mean smoke?"),
        ("base: made\n", "got 'made' in made.yaml, which leads back to it"),
        ("base: other\n", "got 'other' in made.yaml, which has arms; take its own base"),
        ("base: other\narms: {a: {}}\nseeds: [0]\n", "got 'other' in made.yaml, which has arms; take its own base"),
        ("", "made.yaml must hold settings by name, got none"),
        ("a: [1\nb: 2\n", "made.yaml must be a YAML file that can be read, got .* in line 2"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_laid_upon_its_base_is_refused(write, text, complaint):
    write().rename(write().parent / "other.yaml")
    write(text)
    with pytest.raises(ConfigError, match=complaint):
        load_sweep("made") if "arms" in text else load("made")


def test_a_file_that_is_no_utf8_is_refused_and_hides_no_other(write):
    write().write_bytes(b"# \xe4\nbase: smoke\n")
    assert set(catalogue.experiments()) == {"smoke", "made"} and load("smoke").experiment == "smoke"
    with pytest.raises(ConfigError, match=r"made.yaml must be a YAML file that can be read, got 'utf-8' codec"):
        load("made")


def test_cells_come_seed_by_seed_with_the_settings_of_their_arm(write):
    write()
    sweep = planned("runs=here")
    assert is_sweep("made") and not is_sweep("smoke")
    assert [str(cell) for cell in sweep.cells()[:4]] == ["frontier seed 3", "fixed seed 3", "replayed seed 3", "frontier seed 5"]
    config = sweep.config(Cell("fixed", 5))
    assert (config.seed, config.teacher.kind, config.teacher.strictness, config.budget.policy_tokens) == (5, "fixed", 0.5, 5000)
    assert sweep.run_folder(Cell("fixed", 5)) == Path("here/made/sweep/fixed/seed_5")


def test_settings_are_put_together_once_for_all_seeds_of_an_arm_and_belong_to_each_run(write, monkeypatch):
    write()
    sweep = planned("runs=here")
    first = {cell: sweep.config(cell) for cell in sweep.cells()}
    monkeypatch.setattr("experiments.sweep_plan.compose", None)
    first[Cell("fixed", 3)].teacher.strictness = 0.9
    again = {cell: sweep.config(cell) for cell in sweep.cells()}
    assert again[Cell("fixed", 3)].teacher.strictness == again[Cell("fixed", 5)].teacher.strictness == 0.5
    assert [(config.seed, config.name) for config in again.values()] == [(cell.seed, f"seed_{cell.seed}") for cell in sweep.cells()]
    assert again[Cell("replayed", 3)].teacher.trace != again[Cell("replayed", 5)].teacher.trace


def test_the_plan_keeps_the_settings_that_were_given_for_all_arms(write):
    write()
    given = planned(
        "name=short", "arms=fixed", "seeds=3", "budget.policy_tokens=900", "algorithm.entropy_coef=0.01", "cluster.object_store_mb=256"
    )
    assert given.planned.overrides == ("budget.policy_tokens=900", "algorithm.entropy_coef=0.01")


def test_the_plan_names_the_arms_and_seeds_of_the_file_whichever_are_asked_for(write):
    write()
    assert planned().planned.num_runs == planned("arms=fixed", "seeds=3").planned.num_runs == 6


def test_an_arm_that_replays_another_waits_for_the_next_seed(write):
    write()
    sweep = planned("name=first")
    assert sweep.needs(Cell("replayed", 3)) == [Cell("frontier", 5)] and sweep.needs(Cell("replayed", 5)) == [Cell("frontier", 3)]
    assert sweep.config(Cell("replayed", 3)).teacher.trace == "runs/made/first/frontier/seed_5/teacher.jsonl"
    assert sweep.needs(Cell("fixed", 3)) == []


def test_an_arm_replays_the_same_run_whichever_seeds_are_asked_for(write):
    write(PLAN.replace("seeds: [3, 5]", "seeds: [3, 5, 7]"))
    whole, part = planned(), planned("seeds=3,5")
    assert part.config(Cell("replayed", 5)).teacher.trace == whole.config(Cell("replayed", 5)).teacher.trace
    assert part.cells()[-1] == Cell("frontier", 7) and len(part.cells()) == 7
    assert part.cell("frontier", "7") == Cell("frontier", 7) and part.config(Cell("frontier", 7)).seed == 7
    assert "# and frontier seed 7, which other runs replay" in describe(part)
    assert "7 runs and at most 35,000 policy tokens in all" in describe(part)
    assert len(planned("seeds=3").cells()) == 4


def test_seeds_can_be_added_to_a_sweep_and_replay_the_runs_of_the_files_seeds(write):
    write()
    more = planned("seeds=3,5,6,7")
    assert [str(need) for seed in more.seeds for need in more.needs(Cell("replayed", seed))] == [
        *("frontier seed 5", "frontier seed 3"),
        *("frontier seed 3", "frontier seed 5"),
    ]
    assert more.config(Cell("replayed", 5)).teacher.trace == planned().config(Cell("replayed", 5)).teacher.trace
    assert planned("seeds=6").cells()[-1] == Cell("frontier", 3)


def test_seeds_may_be_told_from_the_first_to_the_last(write):
    write()
    assert planned("seeds=3-5,8").seeds == (3, 4, 5, 8)


@pytest.mark.parametrize(("asked", "expected"), [("seeds=3", (3, 5)), ("seeds=3,6", (3, 5, 6)), ("seeds=7,8", (7, 8))])
def test_seeds_of_the_file_stay_planned_whichever_are_added(write, asked, expected):
    write()
    assert planned(asked).planned.seeds == expected


@pytest.mark.parametrize(("verdict", "development"), [("confirmation", "fixed_vs_adaptive"), ("confirmation_sparse", "sparse_feedback")])
def test_a_confirmation_runs_what_was_developed_on_other_seeds_and_the_sealed_half(tmp_path, verdict, development):
    last, first = (load_sweep(name, [f"runs={tmp_path}"]) for name in (verdict, development))
    assert last.planned.primary == first.planned.primary
    for (a, b), (c, pattern) in zip(last.planned.contrasts, first.planned.contrasts, strict=True):
        assert a == c and fnmatch(b, pattern)
    assert set(last.arms) == {arm for contrast in last.planned.contrasts for arm in contrast} <= set(first.arms)
    assert not set(last.seeds) & set(first.seeds)
    for arm in last.arms:
        then = to_plain(first.config(Cell(arm, first.seeds[0])))
        found = {name: value for name, _, value in differences(then, last.config(Cell(arm, last.seeds[0])))}
        assert found.pop("evaluation.split") == "sealed"
        assert set(found) <= {"experiment", "seed", "teacher.trace"}, found


def test_overrides_choose_arms_and_seeds_or_go_to_every_arm(write):
    write()
    sweep = planned("arms=frontier,fixed", "seeds=1,2,4", "parallel=1", "algorithm.turn_credit=0.5")
    assert list(sweep.arms) == ["frontier", "fixed"] and sweep.seeds == (1, 2, 4) and sweep.parallel == 1
    assert all(sweep.config(cell).algorithm.turn_credit == 0.5 for cell in sweep.cells())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["arms=frontal"], "arms must be among frontier, fixed, replayed, got 'frontal'"),
        (["arms=1"], "arms must be among frontier, fixed, replayed, got '1'"),
        (["arms=[[1]]"], "arms must be among frontier, fixed, replayed, got '[1]'"),
        (["arms.frontier=1"], "arms must be among frontier, fixed, replayed, got \"{'frontier': 1}\""),
        (["arms="], "arms must be among frontier, fixed, replayed, got none; leave it out for all of them"),
        (["seeds=x"], "seeds must be whole numbers such as 0,1,2 or 0-2, got 'x'"),
        (["seeds="], "seeds must be whole numbers such as 0,1,2 or 0-2, got None"),
        (["name="], "name must not be empty, got None; leave it out for what is usual"),
        (["runs="], "runs must not be empty, got None; leave it out for what is usual"),
        (["teacher=1"], "teacher must be set by its parts, such as teacher.kind=1, got 1"),
        (["seeds=1,1"], "seeds must be different whole numbers of at least 0 and below 2**63, got '1,1'"),
        (["seeds=one"], "seeds must be whole numbers such as 0,1,2 or 0-2, got 'one'"),
        (["seeds=[0.5,1.9]"], "seeds must be whole numbers such as 0,1,2 or 0-2, got [0.5, 1.9]"),
        (["seeds=0,9223372036854775808"], "seeds must be different whole numbers of at least 0 and below 2**63, got"),
        (["seeds=4-2"], "seeds must be whole numbers such as 0,1,2 or 0-2, got '4-2'"),
        (["seed=3"], "seed must not be set for a sweep, got 3; its runs have seeds=..., and --cell ARM SEED makes one of them"),
        (["resume=runs/made"], "resume must not be set for a sweep, got 'runs/made'; the same command again goes on"),
        (["name=../x"], "name must consist of letters, digits and . _ + -, got '../x'"),
        (["parallel=0"], "parallel must be a whole number of at least 1, got 0"),
        (["parallel=1,2"], "parallel must be a whole number of at least 1, got '1,2'"),
        (["parallel="], "parallel must be a whole number of at least 1, got None"),
        (
            ["parallel=3", "cluster.gpus_per_engine=0.3", "policy.gpu_memory_share=0.2"],
            "parallel must be 1 where engines fill a share of a GPU (policy.gpu_memory_share=0.2), got 3",
        ),
        (["arms=fixed,replayed"], "arm replayed replays arm frontier, which must be among the arms"),
        (["algorithm.turn_credit=2"], "arm frontier: algorithm.turn_credit"),
        (["budgte.steps=2"], "budgte.steps is not a setting"),
        (["teacher.kind=adarft"], "teacher.kind must not be set for a sweep whose arms have teachers of their own, got 'adarft'"),
    ],
)
def test_plans_that_cannot_be_run_are_refused_in_a_sentence(write, overrides, message):
    write()
    with pytest.raises(ConfigError) as refused:
        planned(*overrides)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["parallel=1"],
        ["parallel=3", "policy.gpu_memory_share=0"],
        ["parallel=3", "policy.engine=hf"],
        ["parallel=3", "cluster.address=10.0.0.1:6379"],
    ],
)
def test_runs_that_leave_each_other_room_on_a_gpu_may_go_side_by_side(overrides, write):
    write()
    assert planned("cluster.gpus_per_engine=0.3", *overrides).parallel


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("{kind: fixed, strictness: 0.5}}", "{kind: fixed}, budget: {policy_tokens: 9000}}", "budget.policy_tokens must be the same"),
        ("{kind: fixed, strictness: 0.5}}", "{kind: fixed, strictness: 1.5}}", "arm fixed: teacher.strictness must be in [0, 1]"),
        ('"frontier:fixed"', '"frontier:fixd"', "contrasts must look like first:second"),
        ('"frontier:fixed"', '"frontier:front*"', "contrasts must set frontier against another arm, got 'frontier:front*'"),
        (
            '"frontier:fixed"',
            "frontier: fixed",
            "contrasts must be a list of text, got [{'frontier': 'fixed'}] in made.yaml; put each in quotes",
        ),
        ("parallel: 2", "side_by_side: 2", "got 'side_by_side' in made.yaml"),
        (
            "seeds: [3, 5]",
            "seeds: [3]",
            "arm replayed replays another seed's run, so the file's seeds must be at least two, got seed 3 alone",
        ),
        ('"frontier:fixed"', '"fixed:fixed"', "made.yaml: contrast must name two arms, got 'fixed' twice"),
        ("parallel: 2", "primary: heldout.acu", "made.yaml: primary must be one of heldout.auc"),
        ("seeds: [3, 5]\n", "", "a sweep must have base, arms, seeds, got no seeds in made.yaml"),
        ("base: smoke\n", "", "got no base in made.yaml"),
        ("  fixed: {teacher", "  b/c: {teacher", "must consist of letters, digits and . _ + -, got 'b/c' in made.yaml"),
        ("frontier: {}", "frontier: often", "arm frontier must be a table of settings, got 'often' in made.yaml"),
        ("parallel: 2", "tuning: none", "tuning must be a table of names and what belongs to them, got 'none' in made.yaml"),
        ("parallel: 2", "read: [heldout.forgoten]", "read must name endpoints (heldout.auc, "),
        ("parallel: 2", "read: heldout.forgotten", "read must be a list, got 'heldout.forgotten' in made.yaml"),
        ("parallel: 2", "threshold: 135", "made.yaml: threshold must be in [0, 100], got 135.0"),
        ("parallel: 2", "threshold: often", "threshold must be a number, got 'often' in made.yaml"),
        (
            "frontier: {}",
            "frontier: {seed: 4}",
            "arm frontier must not set seed, which the sweep gives each of its runs, got 4 in made.yaml",
        ),
        ("settings: {", "settings: {runs: here, ", "settings must not set runs, which the sweep gives each of its runs, got 'here'"),
        (
            "frontier: {}",
            'frontier: {teacher: {kind: yoked, trace: "{frontier}"}}',
            "arm frontier must not replay itself, by way of others",
        ),
        (
            "frontier: {}",
            'frontier: {teacher: {kind: yoked, trace: "{replayed}"}}',
            "arm frontier must not replay itself, by way of others",
        ),
        (
            "frontier: {}",
            "frontier: {rollout: {max_new_tokens: 30}}",
            "rollout.max_new_tokens must be the same in all arms, got 30 in frontier",
        ),
        ("frontier: {}", "frontier: {simulator: {start_emotion: 60}}", "simulator.start_emotion must be the same in all arms, got 60"),
        ("parallel: 2", "differ: learner.lr", "differ must be a list, got 'learner.lr' in made.yaml"),
    ],
)
def test_files_that_are_no_fair_sweep_are_refused_in_a_sentence(write, before, after, message):
    assert before in PLAN
    write(PLAN.replace(before, after))
    with pytest.raises(ConfigError) as refused:
        planned()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("differ: [learner.lr]", "differ must name what arms have to share otherwise"),
        ("differ: [budget]", "differ must name no part of budget or evaluation, got 'budget'"),
        ("differ: ['']", "differ must name no part of budget or evaluation, got ''"),
        ("differ: [1]", "differ must be a list of text, got [1] in made.yaml"),
        ("differ: [budget.policy_tokens]", "differ must name no part of budget or evaluation, got 'budget.policy_tokens'"),
        ("tuning: {frontier: much}", "tuning must be told of every arm, got none of fixed"),
        ("tuning: {frontier: much, fixt: none}", "tuning must be told of the arms frontier, fixed, replayed, got 'fixt'"),
    ],
)
def test_keys_that_say_something_else_than_the_arms_are_refused_in_a_sentence(write, added, message):
    write(f"{PLAN}{added}\n")
    with pytest.raises(ConfigError) as refused:
        planned()
    assert message in str(refused.value)


def test_arms_may_differ_in_what_the_experiment_is_about_and_in_nothing_else(write):
    of_two_priors = PLAN.replace("frontier: {}", "frontier: {policy: {prior: {knowhow_prob: 0.5}}}")
    write(of_two_priors)
    with pytest.raises(ConfigError, match=r"policy.prior.knowhow_prob must be the same in all arms, got 0.5 in frontier and 0.75 in fixed"):
        planned()
    write(f"{of_two_priors}differ: [policy.prior.]\n")
    assert planned().differ == ("policy.prior.",)
    write(f"{of_two_priors}differ: [policy.prior.seed]\n")
    with pytest.raises(ConfigError, match=r"policy.prior.knowhow_prob must be the same"):
        planned()


def test_an_arm_whose_arm_replays_one_that_was_not_asked_for_is_refused_in_a_sentence(write):
    write(PLAN.replace("frontier: {}", 'second: {teacher: {kind: yoked, trace: "{replayed}"}}\n  frontier: {}'))
    assert planned("arms=second,replayed,frontier").needs(Cell("second", 3)) == [Cell("replayed", 5)]
    with pytest.raises(ConfigError, match=r"arm replayed replays arm frontier, which must be among the arms, got second, replayed"):
        planned("arms=second,replayed")


def test_what_only_one_kind_of_user_has_need_not_be_the_same_where_arms_differ_in_their_users(write):
    asked = PLAN.replace("fixed: {", "fixed: {simulator: {kind: llm, model: m}, ")
    write(asked)
    with pytest.raises(ConfigError, match=r"simulator.kind must be the same in all arms"):
        planned()
    write(f"{asked}differ: [simulator.kind]\n")
    assert planned().differ == ("simulator.kind",)


def test_the_language_in_which_a_model_is_heard_follows_it_where_arms_differ_in_their_models(write):
    write(PLAN.replace("fixed: {", "fixed: {policy: {model: a/b}, ") + "differ: [policy.model]\n")
    registers = {arm: planned().config(Cell(arm, 3)).simulator.register for arm in ("frontier", "fixed")}
    assert registers == {"frontier": "world", "fixed": "open"}


def test_a_key_without_a_value_says_nothing(write):
    write(f"{PLAN}differ:\n")
    sweep = planned()
    assert sweep.differ == ()


def test_dry_run_says_what_would_be_run_and_starts_nothing(write, tmp_path, capsys):
    write()
    assert main(["made", "--dry-run", f"runs={tmp_path / 'runs'}"]) == 0
    out = capsys.readouterr().out
    assert "3 arms x 2 seeds of 5,000 policy tokens or 4 steps each, 2 runs side by side" in out
    assert "6 runs and at most 30,000 policy tokens in all; how long they take is said after the first step" in out
    assert "fixed: teacher.kind=fixed, teacher.strictness=0.5" in out and "contrast frontier against fixed" in out
    assert not (tmp_path / "runs").exists()
    assert main(["made", "--cell", "fixed", "9"]) == 2 and "a cell must be one of the arms" in capsys.readouterr().err
    assert main(["smoke", "--cell", "fixed", "9"]) == 2 and "--cell needs a sweep" in capsys.readouterr().err


def test_settings_of_another_kind_for_all_arms_leave_nothing_of_the_first(write):
    write(PLAN.replace("settings: {", "settings: {teacher: {kind: linear, num_steps: 7}, "))
    configs = {arm: planned("algorithm.kind=ppo").config(Cell(arm, 3)) for arm in ("frontier", "fixed")}
    assert (configs["frontier"].teacher.kind, configs["frontier"].teacher.num_steps) == ("linear", 7)
    assert configs["fixed"].teacher.kind == "fixed" and {config.algorithm.kind for config in configs.values()} == {"ppo"}


def test_what_an_override_of_a_sweep_loses_is_said_and_what_an_arm_changes_is_not(capsys):
    assert main(["quick_comparison", "--dry-run", "name=none", "algorithm.kind=ppo"]) == 0
    said = "# NOTE algorithm.kind=ppo begins with its own defaults; quick_comparison has for grpo: algorithm.entropy_coef=0.03"
    assert said in capsys.readouterr().out
    assert main(["rlver_matrix", "--dry-run", "name=none"]) == 0
    assert "NOTE" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("arms=fixed", "teacher.strictness=0.4"), r"teacher\.strictness must reach an arm, got 0\.4 for fixed"),
        (("arms=fixed", "teacher.target_success=0.4"), r"teacher\.target_success must reach an arm, got 0\.4 for fixed"),
        (("arms=fixed", "teacher.nonsense=2"), r"teacher\.nonsense must reach an arm, got 2 for fixed"),
    ],
)
def test_an_override_that_no_arm_takes_is_refused(write, overrides, message):
    write()
    with pytest.raises(ConfigError, match=message):
        planned(*overrides)


def test_arms_that_an_override_does_not_reach_are_named(write):
    write()
    sweep = planned("arms=frontier,fixed", "teacher.target_success=0.4", "learner.lr=0.001")
    assert lost_by_words(sweep) == ["teacher.target_success=0.4 does not go to fixed, which set it themselves or have a kind of their own"]
    assert sweep.config(Cell("frontier", 3)).teacher.target_success == 0.4 and sweep.config(Cell("fixed", 3)).learner.lr == 0.001


@pytest.mark.parametrize("group", ["algorithm", "teacher"])
def test_a_kind_for_all_arms_is_refused_where_arms_choose_theirs(write, group):
    write(PLAN.replace("  frontier: {}", "  frontier: {}\n  ppo: {algorithm: {kind: ppo}}") + "differ: [algorithm]\n")
    with pytest.raises(ConfigError, match=rf"{group}\.kind must not be set for a sweep whose arms have {group}s of their own"):
        planned(f"{group}.kind={'grpo' if group == 'algorithm' else 'uniform'}")


def test_names_and_seeds_are_what_was_written(write):
    write()
    assert (
        planned("name=1.10").folder.name == "1.10" and planned("name=007").folder.name == "007" and planned("name=no").folder.name == "no"
    )
    assert planned("seeds=05").seeds == (5,) and planned("seeds=[3, 5]").seeds == (3, 5)
    with pytest.raises(ConfigError, match="seeds must be whole numbers such as 0,1,2 or 0-2, got '1:4'"):
        planned("seeds=1:4")


def test_candidates_that_are_not_asked_for_are_named_beside_their_contrast(capsys):
    assert main(["fixed_vs_adaptive", "--dry-run", "name=none", "arms=frontier,uniform,fixed_0.5,fixed_0.9"]) == 0
    out = capsys.readouterr().out
    assert "# contrast frontier against fixed_*; undecided until fixed_0.1, fixed_0.3, fixed_0.7 are run as well\n" in out
    assert "# contrast frontier against linear_*; linear_* was not asked for, so it counts with p = 1 until it is run\n" in out
    assert "# contrast frontier against uniform\n" in out
