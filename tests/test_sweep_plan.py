"""A sweep's file as it is read, planned and refused, before anything runs."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest
from sweep_file import PLAN, planned

from experiments.__main__ import main
from experiments.config import is_sweep, to_plain
from experiments.errors import ConfigError
from experiments.resume import differences
from experiments.sweep_plan import Cell, load_sweep, seeds_of


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        planned(*overrides)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# Cells --------------------------------------------------------------------------------------------------------------------------


def test_cells_come_seed_by_seed_with_the_settings_of_their_arm(write):
    write()
    sweep = planned("runs=here")
    assert is_sweep("made") and not is_sweep("smoke")
    assert [str(cell) for cell in sweep.cells()[:4]] == ["frontier seed 3", "fixed seed 3", "replayed seed 3", "frontier seed 5"]
    config = sweep.config(Cell("fixed", 5))
    assert (config.seed, config.teacher.kind, config.teacher.strictness, config.budget.policy_tokens) == (5, "fixed", 0.5, 5000)
    assert sweep.run_folder(Cell("fixed", 5)) == Path("here/made/sweep/fixed/seed_5")


def test_the_settings_of_each_run_are_its_own(write):
    write()
    sweep = planned("runs=here")
    first = {cell: sweep.config(cell) for cell in sweep.cells()}
    first[Cell("fixed", 3)].teacher.strictness = 0.9
    again = {cell: sweep.config(cell) for cell in sweep.cells()}
    assert again[Cell("fixed", 3)].teacher.strictness == again[Cell("fixed", 5)].teacher.strictness == 0.5
    assert [(config.seed, config.name) for config in again.values()] == [(cell.seed, f"seed_{cell.seed}") for cell in sweep.cells()]
    assert again[Cell("replayed", 3)].teacher.trace != again[Cell("replayed", 5)].teacher.trace


def test_an_arm_that_replays_another_waits_for_its_next_seed(write):
    write()
    sweep = planned("name=first")
    assert sweep.needs(Cell("replayed", 3)) == [Cell("frontier", 5)] and sweep.needs(Cell("replayed", 5)) == [Cell("frontier", 3)]
    assert sweep.config(Cell("replayed", 3)).teacher.trace == "runs/made/first/frontier/seed_5/teacher.jsonl"
    assert sweep.needs(Cell("fixed", 3)) == []


def test_an_arm_replays_the_same_run_whichever_seeds_are_requested(write):
    write(PLAN.replace("seeds: [3, 5]", "seeds: [3, 5, 7]"))
    whole, part = planned(), planned("seeds=3,5")
    assert part.config(Cell("replayed", 5)).teacher.trace == whole.config(Cell("replayed", 5)).teacher.trace
    added = planned("seeds=3,5,6,8")  # those that the file lacks replay runs of its seeds
    needs = [str(need) for seed in added.seeds for need in added.needs(Cell("replayed", seed))]
    assert needs == ["frontier seed 5", "frontier seed 7", "frontier seed 3", "frontier seed 7"]
    # frontier 7, which replayed 5 copies, is run too.
    assert part.cells()[-1] == Cell("frontier", 7) and len(part.cells()) == 7 and len(planned("seeds=3").cells()) == 4
    assert part.cell("frontier", "7") == Cell("frontier", 7) and part.config(Cell("frontier", 7)).seed == 7
    assert "# and frontier seed 7" in part.describe() and "7 runs and at most 35,000 policy tokens" in part.describe()


def test_seeds_are_numbers_or_ranges():
    assert seeds_of("3-5,8") == (3, 4, 5, 8) and seeds_of([0, 2]) == (0, 2) and seeds_of("05") == (5,)
    for wrong in ("x", None, "1,1", "4-2", "-1", [0.5, 1.9], "0,9223372036854775808"):
        with pytest.raises(ConfigError, match=r"^seeds must be"):
            seeds_of(wrong)


def test_a_sweep_is_described_and_nothing_is_started(write, tmp_path, capsys):
    write()
    assert main(["made", "--dry-run", f"runs={tmp_path / 'runs'}"]) == 0
    out = capsys.readouterr().out
    assert "3 arms x 2 seeds of 5,000 policy tokens or 4 steps each, 2 runs side by side" in out
    assert "6 runs and at most 30,000 policy tokens in all" in out
    assert "fixed: teacher.kind=fixed, teacher.strictness=0.5" in out and "contrast frontier against fixed" in out
    assert not (tmp_path / "runs").exists()


# The planned comparison ---------------------------------------------------------------------------------------------------------


def test_the_plan_names_all_arms_and_seeds_and_the_overrides_that_decide_results(write):
    write()
    given = planned("name=short", "arms=fixed", "seeds=3", "budget.policy_tokens=900", "learner.lr=0.01", "cluster.object_store_mb=256")
    assert all(len(plan.seeds) * len(plan.arms) == 6 for plan in (planned().planned, given.planned))
    assert given.planned.overrides == ("budget.policy_tokens=900", "learner.lr=0.01")
    # The file's seeds stay planned unless all requested are others.
    for asked, seeds in (("seeds=3", (3, 5)), ("seeds=3,6", (3, 5, 6)), ("seeds=7,8", (7, 8))):
        assert planned(asked).planned.seeds == seeds


def test_arms_that_a_contrast_lacks_are_named(capsys):
    assert main(["fixed_vs_adaptive", "--dry-run", "name=none", "arms=frontier,uniform,fixed_0.5,fixed_0.9"]) == 0
    out = capsys.readouterr().out
    assert "# contrast frontier against fixed_*; undecided until fixed_0.1, fixed_0.3, fixed_0.7 are run\n" in out
    assert "# contrast frontier against uniform\n" in out


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
        if development == "fixed_vs_adaptive" and arm == "frontier":
            # The study keeps the teacher of its time; in the core, the arm of this name is today's default.
            assert found.pop("teacher.kind") == "target"
            found = {name: value for name, value in found.items() if not name.startswith("teacher.")}
        assert set(found) <= {"experiment", "seed", "teacher.trace"}, found


# Overrides ----------------------------------------------------------------------------------------------------------------------


def test_overrides_choose_arms_and_seeds_or_go_to_every_arm(write):
    write()
    sweep = planned("arms=frontier,fixed", "seeds=1,2,4", "parallel=1", "algorithm.turn_credit=0.5")
    assert list(sweep.arms) == ["frontier", "fixed"] and sweep.seeds == (1, 2, 4) and sweep.parallel == 1
    assert all(sweep.config(cell).algorithm.turn_credit == 0.5 for cell in sweep.cells())
    assert [planned(f"name={name}").folder.name for name in ("1.10", "007", "no")] == ["1.10", "007", "no"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        *(([word], word.partition("=")[0]) for word in ("arms=frontal", "parallel=0", "name=", "name=../x", "seed=3", "resume=a")),
        (["parallel=3", "cluster.gpus_per_engine=0.3", "policy.gpu_memory_share=0.2"], "parallel"),
        (["arms=fixed,replayed"], "arm replayed replays arm frontier"),
        (["algorithm.turn_credit=2"], "arm frontier: algorithm.turn_credit"),
        (["budgte.steps=2"], "budgte is not a setting"),
        (["teacher.kind=adarft"], "teacher.kind"),
        (["arms=fixed", "teacher.strictness=0.4"], "teacher.strictness must reach an arm"),
        (["arms=fixed", "teacher.near_maximum=0.8"], "teacher.near_maximum must reach an arm"),
    ],
)
def test_overrides_that_make_no_plan_are_refused_by_name(write, overrides, name):
    write()
    assert name in refusal(*overrides)


def test_an_override_reaches_arms_of_another_kind_where_it_means_the_same():
    words = ["algorithm.turn_credit=0.5", "algorithm.normalise_by=group", "teacher.success_emotion=80"]
    sweep = load_sweep("rlver_matrix", words)
    grpo, ppo = (sweep.config(Cell(arm, 0)) for arm in ("grpo_plain_vanilla", "ppo_plain_vanilla"))
    assert (grpo.algorithm.turn_credit, ppo.algorithm.turn_credit) == (0.5, 0.5)
    assert grpo.teacher.success_emotion == ppo.teacher.success_emotion == 80 and grpo.teacher.strictness == 0.35
    # An arm's own settings win, and what another kind calls by the same name is another thing.
    compared = load_sweep("quick_comparison", ["teacher.memory=32", "teacher.success_emotion=80"])
    frontier, fixed, uniform = (compared.config(Cell(arm, 0)).teacher for arm in ("frontier", "fixed_0.5", "uniform"))
    assert (frontier.kind, frontier.memory, fixed.kind, fixed.strictness, uniform.kind) == ("frontier", 32, "fixed", 0.5, "uniform")
    assert {frontier.success_emotion, fixed.success_emotion, uniform.success_emotion} == {80}
    with pytest.raises(ConfigError, match=r"teacher\.memory must reach an arm"):
        load_sweep("rlver_matrix", ["teacher.memory=32"])
    with pytest.raises(ConfigError, match="pace is not a setting"):
        load_sweep("rlver_matrix", ["algorithm.pace=1"])


def test_a_dry_run_notes_arms_that_an_override_does_not_reach_and_settings_that_another_kind_loses(capsys):
    words = ["algorithm.kind=ppo", "teacher.near_maximum=0.8"]
    assert main(["quick_comparison", "--dry-run", "name=none", *words]) == 0
    out = capsys.readouterr().out
    assert "# NOTE algorithm.kind=ppo begins with its own defaults; quick_comparison has for grpo: " in out
    assert "# teacher.near_maximum=0.8 does not reach fixed" in out
    assert main(["rlver_matrix", "--dry-run", "name=none"]) == 0
    assert "NOTE" not in capsys.readouterr().out


def test_a_kind_for_all_arms_replaces_that_of_the_base(write):
    write(PLAN.replace("settings: {", "settings: {teacher: {kind: linear, num_steps: 7}, "))
    configs = {arm: planned("algorithm.kind=ppo").config(Cell(arm, 3)) for arm in ("frontier", "fixed")}
    assert (configs["frontier"].teacher.kind, configs["frontier"].teacher.num_steps) == ("linear", 7)
    assert configs["fixed"].teacher.kind == "fixed" and {config.algorithm.kind for config in configs.values()} == {"ppo"}
    write(PLAN.replace("  frontier: {}", "  frontier: {}\n  ppo: {algorithm: {kind: ppo}}") + "differ: [algorithm]\n")
    for kind in ("algorithm.kind=grpo", "teacher.kind=uniform"):  # arms choose theirs
        assert refusal(kind).startswith(kind.partition("=")[0])


# Files --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("{kind: fixed, strictness: 0.5}}", "{kind: fixed}, budget: {policy_tokens: 9000}}", "budget.policy_tokens must be the same"),
        ("{kind: fixed, strictness: 0.5}}", "{kind: fixed, strictness: 1.5}}", "arm fixed: teacher.strictness"),
        ("frontier: {}", "frontier: {simulator: {start_emotion: 60}}", "simulator.start_emotion must be the same"),
        *(('"frontier:fixed"', text, "contrasts") for text in ('"frontier:fixd"', '"fixed:fixed"', "frontier: fixed")),
        ("parallel: 2", "side_by_side: 2", "side_by_side is not a setting"),
        *(("parallel: 2", word, word.partition(":")[0]) for word in ("primary: heldout.acu", "tuning: none", "threshold: 135")),
        *(("parallel: 2", f"read: {value}", "read must") for value in ("[heldout.forgoten]", "heldout.forgotten")),
        *(("parallel: 2", f"differ: {value}", "differ must name") for value in ("[learner.lr]", "['']", "[budget.policy_tokens]")),
        ("parallel: 2", "tuning: {frontier: much}", "tuning must name every arm, got none for fixed"),
        ("parallel: 2", "tuning: {frontier: much, fixt: none}", "tuning must name arms"),
        ("seeds: [3, 5]", "seeds: [3]", "arm replayed replays another seed's run"),
        ("base: smoke\n", "", "base"),
        ("base: smoke\n", "base: smok\n", "base must name another experiment"),
        ("  fixed: {teacher", "  b/c: {teacher", "'b/c'"),
        ("frontier: {}", "frontier: {seed: 4}", "arm frontier must not set seed"),
        ("frontier: {}", 'frontier: {teacher: {kind: yoked, trace: "{replayed}"}}', "arm frontier must not replay itself"),
    ],
)
def test_files_that_are_no_fair_sweep_are_refused_by_name(write, before, after, message):
    assert before in PLAN
    write(PLAN.replace(before, after))
    assert message in refusal()


def test_arms_may_differ_in_the_subject_of_the_experiment_and_in_nothing_else(write):
    of_two_priors = PLAN.replace("frontier: {}", "frontier: {policy: {prior: {knowhow_prob: 0.5}}}")
    write(of_two_priors)
    assert refusal().startswith("policy.prior.knowhow_prob must be the same in all arms, got 0.5 in frontier")
    write(f"{of_two_priors}differ: [policy.prior.]\n")
    assert planned().differ == ("policy.prior.",)
    write(f"{PLAN}differ:\n")  # a key without a value counts as left out
    assert planned().differ == ()
    write(f"{of_two_priors}differ: [policy.prior.seed]\n")
    assert refusal().startswith("policy.prior.knowhow_prob must be the same")


def test_an_arm_whose_arm_replays_one_that_was_not_requested_is_refused(write):
    write(PLAN.replace("frontier: {}", 'second: {teacher: {kind: yoked, trace: "{replayed}"}}\n  frontier: {}'))
    assert planned("arms=second,replayed,frontier").needs(Cell("second", 3)) == [Cell("replayed", 5)]
    assert refusal("arms=second,replayed").startswith("arm replayed replays arm frontier")


def test_settings_of_one_kind_of_user_alone_need_not_be_the_same_and_the_register_follows_the_model(write):
    asked = PLAN.replace("fixed: {", "fixed: {simulator: {kind: llm, model: m}, ")
    write(asked)
    assert refusal().startswith("simulator.kind must be the same in all arms")
    write(f"{asked}differ: [simulator.kind]\n")
    assert planned().differ == ("simulator.kind",)
    write(PLAN.replace("fixed: {", "fixed: {policy: {model: a/b}, ") + "differ: [policy.model]\n")
    registers = {arm: planned().config(Cell(arm, 3)).simulator.register for arm in ("frontier", "fixed")}
    assert registers == {"frontier": "world", "fixed": "open"}
