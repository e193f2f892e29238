"""A baseline that is the best of several: chosen on another sweep's runs, once."""

from __future__ import annotations

import json

import pytest
from made_sweep import begin_with, made_sweep

from experiments import choice
from experiments.choice import CHOSEN, read_choice
from experiments.config import ExperimentConfig, load
from experiments.keys import ConfigError

WANTED = {"from": "grid/sweep", "seeds": "0-1", "best": ["fixed_*", "linear_*"]}
ARMS = ("frontier", "fixed_0.1", "fixed_0.5", "linear_slow", "linear_fast")
FINALS = {"fixed_0.1": [40.0, 50.0], "fixed_0.5": [60.0, 44.0], "linear_slow": [70.0, 72.0], "linear_fast": [74.0, 60.0]}


TEACHERS = {
    "fixed_0.1": ("teacher.kind=fixed", "teacher.strictness=0.1"),
    "fixed_0.5": ("teacher.kind=fixed", "teacher.strictness=0.5"),
    "linear_slow": ("teacher.kind=linear", "teacher.num_steps=90"),
    "linear_fast": ("teacher.kind=linear", "teacher.num_steps=45"),
}


def config_of(arm: str, *overrides: str) -> ExperimentConfig:
    """The settings of an arm, as a sweep would give it, of a thousand policy tokens."""
    return load("smoke", ["budget.policy_tokens=1000", *TEACHERS[arm], *overrides])


def begin_all_with(sweep, *overrides: str) -> None:
    """Gives the runs of a grid settings of their own, each with its name, seed and checkpoints."""
    for arm in FINALS:
        for seed in (0, 1):
            own = (f"name=seed_{seed}", f"seed={seed}", "checkpoint.every=3")
            begin_with(sweep / arm / f"seed_{seed}", config_of(arm, *own, *overrides))


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A finished sweep of both seeds: means of the areas 32.5 and 36, 45.5 and 43.5."""
    monkeypatch.setattr(choice, "world_name", lambda: "aaaa")
    begin_all_with(made_sweep(tmp_path / "grid" / "sweep", FINALS))
    return tmp_path


def chosen(runs, arms=ARMS, name="judged", config_of=config_of, all_at_once=False):
    folder, endpoint = runs / "final" / name, "heldout.auc"
    return read_choice(WANTED, ARMS, asked=arms, folder=folder, runs=runs, endpoint=endpoint, config_of=config_of, all_at_once=all_at_once)


@pytest.mark.parametrize(
    ("best", "message"),
    [
        ("fixed_*", r"best must be a list of names of arms, such as \[fixed_\*\], got 'fixed_\*'"),
        ([], r"best must be a list of names of arms, .* got \[\]"),
        (["fixed_*", "lineal_*"], r"best must name arms of the sweep, got lineal_\*; the arms are frontier, fixed_0.1"),
    ],
)
def test_what_the_best_is_chosen_among_is_a_list_of_which_each_names_an_arm(tmp_path, best, message):
    wanted = {**WANTED, "best": best}
    with pytest.raises(ConfigError, match=message):
        read_choice(wanted, ARMS, asked=ARMS, folder=tmp_path / "a" / "b", runs=tmp_path, endpoint="heldout.auc", config_of=config_of)


def test_the_best_is_chosen_among_all_arms_of_the_file_whichever_were_asked_for(grid):
    with pytest.raises(ConfigError, match=r"arms must hold fixed_0.5, on grid/sweep the best fixed_\*, got fixed_0.1"):
        chosen(grid, ("frontier", "fixed_0.1"))
    found = chosen(grid, ("frontier", "fixed_0.5"))
    assert [(pick.arm, sorted(pick.means)) for pick in found.picks] == [("fixed_0.5", ["fixed_0.1", "fixed_0.5"])]


def test_nothing_is_chosen_on_runs_that_the_sealed_half_judged(grid):
    run = grid / "grid" / "sweep" / "fixed_0.5" / "seed_1"
    begin_with(run, config_of("fixed_0.5", "name=seed_1", "seed=1", "evaluation.split=sealed"))
    assert "fixed_0.5/seed_1 was judged on the sealed half, on which nothing may be chosen" in chosen(grid).why_not


def test_nothing_is_chosen_among_candidates_that_began_with_other_weights(grid):
    for arm, weights in (("fixed_0.1", "aa"), ("fixed_0.5", "bb")):
        config = grid / "grid" / "sweep" / arm / "seed_0" / "config.yaml"
        config.write_text(config.read_text().replace("git_commit: c0ffee", f"git_commit: c0ffee\n  initial_policy: {weights}"))
    assert "began with different policies (aa and bb)" in chosen(grid).why_not


def test_the_best_of_each_kind_by_the_mean_over_the_seeds_is_kept_and_the_others_are_not(grid):
    found = chosen(grid)
    assert [(pick.pattern, pick.arm) for pick in found.picks] == [("fixed_*", "fixed_0.5"), ("linear_*", "linear_slow")]
    assert found.picks[0].means == {"fixed_0.1": 32.5, "fixed_0.5": 36.0}
    assert found.rejected == {"fixed_0.1", "linear_fast"}
    assert "fixed_0.5 is the best fixed_* on seeds 0-1 of grid/sweep (heldout.auc: fixed_0.1 32.50, fixed_0.5 36.00)" in found.sentences()


def test_a_candidate_that_came_after_the_choice_is_not_among_the_arms(grid):
    chosen(grid).keep(grid / "final" / "judged")
    found = read_choice(
        WANTED, (*ARMS, "fixed_0.7"), asked=ARMS, folder=grid / "final" / "judged", runs=grid, endpoint="heldout.auc", config_of=config_of
    )
    assert found.rejected == {"fixed_0.1", "fixed_0.7", "linear_fast"}
    assert any(said.endswith("fixed_0.5 36.00); fixed_0.7 came later and is not among them") for said in found.sentences())


def test_what_was_chosen_stays_chosen_whatever_happens_to_the_other_sweep(grid):
    chosen(grid).keep(grid / "final" / "judged")
    made_sweep(grid / "grid" / "other", FINALS)
    (grid / "grid" / "sweep").rename(grid / "grid" / "gone")
    assert chosen(grid).rejected == {"fixed_0.1", "linear_fast"}
    assert json.loads((grid / "final" / "judged" / CHOSEN).read_text())["origin"] == "grid/sweep"


def test_what_was_chosen_binds_later_sittings_and_is_added_to(grid):
    folder = grid / "final" / "judged"
    chosen(grid, ("frontier", "fixed_0.1", "fixed_0.5")).keep(folder)
    with pytest.raises(ConfigError, match=r"arms must hold fixed_0.5, which .*chosen.json has as the best fixed_\*, got fixed_0.1"):
        chosen(grid, ("frontier", "fixed_0.1"))
    chosen(grid, ("frontier", "fixed_0.5", "linear_slow")).keep(folder)
    chosen(grid).keep(folder)
    assert [pick["arm"] for pick in json.loads((folder / CHOSEN).read_text())["picks"]] == ["fixed_0.5", "linear_slow"]


def test_a_choice_is_made_once_and_not_anew_with_other_seeds(grid):
    chosen(grid).keep(folder := grid / "final" / "judged")
    before = (folder / CHOSEN).read_text()
    path = folder / CHOSEN
    path.write_text(before.replace('"seeds": "0-1"', '"seeds": "0-3"'))
    with pytest.raises(ConfigError, match=r"chosen.json was chosen with seeds '0-3', this would be with '0-1'; a choice is made once"):
        chosen(grid)


def test_a_choice_made_in_another_world_is_made_anew(grid, monkeypatch):
    chosen(grid).keep(grid / "final" / "judged")
    monkeypatch.setattr(choice, "world_name", lambda: "bbbb")
    assert "was run in world aaaa, this is bbbb" in chosen(grid).why_not


def test_nothing_is_chosen_on_runs_that_are_missing_or_of_another_world(grid, monkeypatch):
    (grid / "grid" / "sweep" / "fixed_0.1" / "seed_1" / "summary.json").unlink()
    found = chosen(grid)
    assert found.rejected == set() and "lacks heldout.auc of fixed_0.1 with seed 1; run grid first" in found.why_not
    with pytest.raises(ConfigError, match=r"fixed_\*, linear_\* must be chosen before a run begins"):
        found.keep(grid / "final" / "judged")
    monkeypatch.setattr(choice, "world_name", lambda: "bbbb")
    assert "was run in world aaaa, this is bbbb" in chosen(grid, ("fixed_0.5", "linear_slow", "linear_fast")).why_not


@pytest.mark.parametrize(
    ("setting", "before", "now"), [("budget.policy_tokens=900", 900, 1000), ("learner.lr=0.5", 0.5, load("smoke").learner.lr)]
)
def test_nothing_is_chosen_on_runs_with_other_settings(grid, setting, before, now):
    begin_with(grid / "grid" / "sweep" / "fixed_0.1" / "seed_1", config_of("fixed_0.1", "seed=1", setting))
    name = setting.partition("=")[0]
    said = f"fixed_0.1/seed_1 was run with {name}={before!r}, this sweep wants {now!r}; run grid first"
    assert chosen(grid).rejected == set() and said in chosen(grid).why_not


def test_an_arm_whose_own_settings_changed_is_no_candidate_any_more(grid):
    found = chosen(grid, config_of=lambda arm: config_of(arm, *(["teacher.strictness=0.2"] if arm == "fixed_0.1" else [])))
    assert "fixed_0.1/seed_0 was run with teacher.strictness=0.1, this sweep wants 0.2" in found.why_not


def test_the_split_the_seed_and_the_planned_seeds_may_be_others(grid):
    other = ("evaluation.split=sealed", "seed=100", "sealed.seeds=[100]", "name=seed_100", "runs=elsewhere")
    found = chosen(grid, config_of=lambda arm: config_of(arm, *other))
    assert found.rejected == {"fixed_0.1", "linear_fast"} and not found.why_not


def test_runs_whose_settings_cannot_be_read_are_not_chosen_from(grid):
    path = grid / "grid" / "sweep" / "fixed_0.5" / "seed_0" / "config.yaml"
    path.write_text(path.read_text() + "mood: 1\n")
    assert "mood" in chosen(grid).why_not


def test_one_candidate_leaves_nothing_to_choose(grid):
    (grid / "grid" / "sweep").rename(grid / "grid" / "gone")
    found = chosen(grid, ("frontier", "fixed_0.5", "linear_slow"))
    assert found.picks == () and found.rejected == set() and not found.why_not


def test_once_the_sealed_half_is_open_nothing_is_left_to_choose(grid):
    # Arms that need no choice are asked for first: what could still be chosen afterwards would be chosen with sealed results in view.
    found = chosen(grid, ("frontier",), all_at_once=True)
    assert [pick.arm for pick in found.picks] == ["fixed_0.5", "linear_slow"]
    found.keep(grid / "final" / "judged")
    assert set(json.loads((grid / "final" / "judged" / CHOSEN).read_text())["candidates"]) == {"fixed_*", "linear_*"}
    (grid / "grid" / "sweep").rename(grid / "grid" / "gone")
    for arms in (("frontier",), ("frontier", "fixed_0.5", "linear_slow")):
        found = chosen(grid, arms, name="another", all_at_once=True)
        assert found.why_not and found.num_open == 0
        with pytest.raises(ConfigError, match=r"fixed_\*, linear_\* must be chosen before a run begins"):
            found.keep(grid / "final" / "another")
