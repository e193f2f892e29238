"""RLVER's findings against a table whose numbers are chosen by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from made_run import played, scenarios
from made_sweep import BUDGET, made_result

from analysis.__main__ import main
from experiments.recorder import dialogue_record
from studies.rlver_replication.rlver import by_judge, findings
from studies.rlver_replication.rlver_table import CELLS, USERS, Cell, Figures, figures_of, heard, read_table, replies_in, unlike_steps


def figures(score: float, *, gain: float = 30.0, gain_at_equal_length: float = 28.0, num_steps: int = 30) -> Figures:
    shares = dict.fromkeys(("understanding_before", "understanding", "acting_before", "acting"), 0.2)
    return Figures(score=score, gain=gain, gain_at_equal_length=gain_at_equal_length, num_steps=num_steps, **shares)


def score_of(cell: Cell, seed: int) -> float:
    """Challenging costs 10, and 4 more without thinking; seeds differ by 1, with PPO by 6."""
    fall = {"vanilla": 0.0, "challenging": 10.0 if cell.mode == "think" else 14.0}[cell.user]
    return 60.0 - fall + (6.0 if cell.algorithm == "ppo" else 1.0) * (seed - 1)


def made_table(**changes) -> dict[Cell, dict[int, Figures]]:
    return {cell: {seed: figures(score_of(cell, seed), **changes) for seed in range(3)} for cell in CELLS}


def by_claim(table) -> dict[str, tuple[float, str]]:
    return {finding.claim: (finding.estimate.value, finding.mark) for finding in findings(table)}


def test_each_claim_is_measured_as_it_says():
    found = by_claim(made_table())
    assert found["moderate users teach more than challenging ones"] == (pytest.approx(12.0), "reproduced")
    assert found["thinking is more robust to a hard user"] == (pytest.approx(4.0), "reproduced")
    # Pooled sd 6 and 1, each from four cells of three seeds.
    assert found["GRPO is steadier"] == (pytest.approx(math.log(6.0)), "reproduced")
    assert found["PPO's ceiling is higher"] == (pytest.approx(5.0), "reproduced")
    assert found["length does not explain the gain"] == (pytest.approx(13.0), "reproduced")


def test_a_best_run_is_the_best_of_as_many_seeds_on_both_sides():
    table = made_table()
    # GRPO has one run a cell, of seed 0: PPO's best there lies below it, whatever its other seeds reached.
    few = {cell: {seed: run for seed, run in runs.items() if cell.algorithm == "ppo" or seed == 0} for cell, runs in table.items()}
    # And as a best of one is no ceiling, that decides nothing.
    assert by_claim(few)["PPO's ceiling is higher"] == (pytest.approx(-5.0), "undecided")


def made_priors(folder, starts):
    """A sweep whose runs began with `starts(cell, seed)`."""
    for cell in CELLS:
        for seed in (0, 1):
            prior = f"policy:\n  model: embedded\n  thinking: {str(cell.mode == 'think').lower()}\n"
            made_run(folder, cell, seed, initial_policy=starts(cell, seed), settings=prior)


def test_a_run_that_began_otherwise_than_its_seeds_others_is_left_out(tmp_path):
    odd = (Cell("grpo", "plain", "challenging"), 1)
    made_priors(tmp_path, lambda cell, seed: {"think": "cc"}.get(cell.mode, "bb" if (cell, seed) == odd else "aa"))
    found = read_table(tmp_path)
    seeds = {cell: sorted(runs) for cell, runs in found.table.items()}
    assert seeds == {cell: [0] if cell == odd[0] else [0, 1] for cell in CELLS}
    assert any("began with different policies (aa and bb)" in note for note in found.notes)


def test_seeds_may_begin_with_different_builds_and_that_is_no_spread_of_an_algorithm(tmp_path):
    made_priors(tmp_path, lambda cell, seed: f"{cell.mode}-{seed}")
    found = read_table(tmp_path)
    assert all(sorted(runs) == [0, 1] for runs in found.table.values())
    assert [note for note in found.notes if note.startswith("plain: seed 0 and seed 1 began with different builds of the prior")]
    by_name = {finding.claim: finding for finding in findings(found.table)}
    assert by_name["moderate users teach more than challenging ones"].mark == "reproduced"
    steadier = by_name["GRPO is steadier"]
    assert (steadier.mark, steadier.reason) == ("undecided", "there are no two runs of an arm that differ")


def test_a_claim_that_goes_the_other_way_is_not_reproduced_and_one_without_a_difference_neither():
    table = made_table(gain_at_equal_length=2.0)
    turned = {cell: table[cell._replace(user=USERS[1 - USERS.index(cell.user)])] for cell in CELLS}
    found = by_claim(turned)
    assert found["moderate users teach more than challenging ones"] == (pytest.approx(-12.0), "not reproduced")
    assert found["length does not explain the gain"] == (pytest.approx(-13.0), "not reproduced")
    assert found["thinking gives empathy and insight"] == (0.0, "not reproduced")
    assert found["no thinking gives action"] == (0.0, "not reproduced")


@pytest.mark.parametrize("gain", [-10.0, 0.0])
def test_length_explains_or_does_not_explain_only_a_gain_that_is_there(gain):
    table = made_table(gain=gain, gain_at_equal_length=-2.0)
    found = next(finding for finding in findings(table) if finding.claim == "length does not explain the gain")
    assert (found.mark, found.estimate.value) == ("undecided", pytest.approx(-2.0 - gain / 2.0))
    assert found.reason.startswith(f"that there is a gain is not sure ({gain:.1f} [")


def test_robustness_to_hard_users_is_asked_only_where_they_cost_something():
    table = made_table()
    turned = {cell: table[cell._replace(user=USERS[1 - USERS.index(cell.user)])] for cell in CELLS}
    found = next(finding for finding in findings(turned) if finding.claim == "thinking is more robust to a hard user")
    # The number is told, and marks nothing: whoever gains less by a hard user would count as less robust.
    assert (found.mark, found.estimate.value) == ("undecided", pytest.approx(-4.0))
    assert found.reason.startswith("that a hard user costs anything is not sure (-12.0 [")


def test_what_training_added_is_compared_and_not_how_the_priors_spoke():
    def shares(cell: Cell) -> Figures:
        if cell.mode == "think":
            return replace(figures(50.0), understanding_before=0.5, understanding=0.6, acting_before=0.1, acting=0.1)
        return replace(figures(50.0), understanding_before=0.2, understanding=0.2, acting_before=0.4, acting=0.7)

    found = by_claim({cell: {seed: shares(cell) for seed in range(2)} for cell in CELLS})
    assert found["thinking gives empathy and insight"] == (pytest.approx(0.1), "reproduced")
    assert found["no thinking gives action"] == (pytest.approx(0.3), "reproduced")


def test_less_action_lost_is_no_action_gained():
    def shares(cell: Cell) -> Figures:
        return replace(figures(50.0), acting_before=0.5, acting=0.2 if cell.mode == "think" else 0.4)

    table = {cell: {seed: shares(cell) for seed in range(2)} for cell in CELLS}
    found = next(finding for finding in findings(table) if finding.claim == "no thinking gives action")
    assert (found.mark, found.estimate.value) == ("not reproduced", pytest.approx(0.2))
    assert found.reason.startswith("that policies that do not think gain action is false (-0.10 [")


def test_arms_that_were_updated_more_often_than_others_are_named():
    assert unlike_steps(made_table()) == []
    table = {cell: {0: figures(50.0, num_steps=25 if cell.mode == "think" else 49)} for cell in CELLS}
    table[CELLS[1]][1] = figures(50.0, num_steps=0)
    (note,) = unlike_steps(table)
    assert note.startswith("grpo_plain_vanilla took 49 steps and grpo_think_vanilla 25: they differ in how often they were updated")


def test_seeds_that_disagree_leave_a_claim_undecided():
    table = made_table()
    for cell in CELLS:
        if cell.user == "challenging":
            table[cell][2] = figures(90.0)
    assert by_claim(table)["moderate users teach more than challenging ones"][1] == "undecided"


def test_claims_without_their_runs_are_undecided_with_the_reason():
    table = {cell: runs for cell, runs in made_table().items() if cell != Cell("ppo", "think", "vanilla")}
    found = {finding.claim: finding for finding in findings(table)}
    assert len(found) == 7
    moderate = found["moderate users teach more than challenging ones"]
    assert (moderate.mark, moderate.reason) == ("undecided", "there is no run that can be used of ppo_think_vanilla")
    alone = {cell: {0: runs[0]} for cell, runs in made_table().items()}
    reasons = {one.claim: one.reason for one in findings(alone) if one.reason}
    assert reasons["thinking is more robust to a hard user"] == "that a hard user costs anything is not sure (12.0)"
    assert reasons["GRPO is steadier"] == "there are no two runs of an arm that differ"


def line(look: int, emotion: float, words: int, heard: tuple[str, ...] = (), *, strictness: float = 0.5) -> dict:
    turns = [{"speaker": "user", "text": "well.", "change": None, "heard": []}]
    turns += [{"speaker": "agent", "text": "word " * words, "change": None, "heard": []}]
    turns += [{"speaker": "user", "text": "hm.", "change": 1, "heard": list(heard)}]
    return {
        "step": look,
        "grid": "full",
        "look": look,
        "outcome": "max_turns",
        "emotion": emotion,
        "strictness": strictness,
        "family": "praise/positive",
        "turns": turns,
    }


def test_a_gain_that_length_explains_is_none_at_equal_length():
    # Emotion is 10 log2(words): after training replies are four times as long, and better by that alone.
    lines = [line(look, 10.0 * math.log2(words), words) for look, counts in ((0, (2, 4)), (9, (8, 16))) for words in counts]
    found = figures_of(lines)
    assert found.gain == pytest.approx(20.0) and found.gain_at_equal_length == pytest.approx(0.0, abs=1e-9)
    flat = figures_of([line(0, 30.0, 4), line(0, 30.0, 8), line(9, 50.0, 4), line(9, 50.0, 8)])
    assert (flat.gain, flat.gain_at_equal_length) == (pytest.approx(20.0), pytest.approx(20.0))
    assert (flat.words_before, flat.words) == (pytest.approx(math.sqrt(32)), pytest.approx(math.sqrt(32)))


def test_length_takes_from_a_gain_and_never_adds_to_it():
    # Who fails talks longer, and replies grew: by a line over all dialogues growing would have cost points, and the gain would be greater.
    lines = [line(look, start - 10.0 * math.log2(words), words) for look, start in ((0, 60.0), (9, 95.0)) for words in (2 + look, 4 + look)]
    found = figures_of(lines)
    assert found.gain > 0.0 and found.gain_at_equal_length == found.gain


def test_length_is_compared_between_dialogues_of_as_many_replies():
    # Users who left after the first reply, a long one, take no part in a comparison with those who stayed for short ones.
    early = [line(look, 5.0, 16) for look in (0, 9)]
    late = [line(look, emotion, words) for look, emotion, words in ((0, 40.0, 4), (0, 50.0, 8), (9, 50.0, 8), (9, 60.0, 16))]
    for one in late:
        one["turns"] += one["turns"][1:]
    found = figures_of([*early, *late])
    assert found.gain - found.gain_at_equal_length == pytest.approx(10.0 * 2 / 3)


def test_who_judges_is_told_for_moderate_against_challenging_users():
    mild = figures_of(
        [line(0, 30.0, 4), line(9, 80.0, 4, strictness=0.3), line(9, 10.0, 4, strictness=0.7), line(9, 20.0, 4, strictness=0.7)]
    )
    hard = figures_of([line(0, 30.0, 4), line(9, 50.0, 4, strictness=0.3), line(9, 40.0, 4, strictness=0.7)])
    assert mild.by_strictness == {0.3: 80.0, 0.7: 15.0}
    table = {Cell("grpo", "plain", "vanilla"): {0: mild, 1: mild}, Cell("grpo", "plain", "challenging"): {0: hard}}
    assert by_judge(table).endswith("who judge (mean of 1 pairs): +30.0 by 0.3, -25.0 by 0.7.")
    assert by_judge({Cell("grpo", "plain", "vanilla"): {0: mild}}) == ""


def test_shares_are_of_replies_in_which_it_was_heard():
    lines = [line(9, 1.0, 1, said) for said in (("reflection",), ("suggestion",), ("motives", "suggestion"), ("listening",))]
    assert heard(lines) == (0.75, 0.5)
    assert all(math.isnan(share) for share in heard([]))


def test_a_run_of_which_no_reply_was_answered_is_refused_and_not_taken_for_a_number():
    silent = [line(9, 30.0, 4) | {"turns": []}]
    with pytest.raises(ValueError, match="an answered reply both before and after training, got none on one side"):
        figures_of([line(0, 30.0, 4), *silent])


def test_replies_are_counted_in_dialogues_as_a_run_records_them():
    # A record leaves out what is empty: the opening's change, and `heard` where nothing was heard.
    for dialogue in played("L4", scenarios(2)):
        agent = [turn.text for turn in dialogue.turns if turn.speaker == "agent"]
        answers = [turn for turn in dialogue.turns if turn.change is not None]
        found = replies_in(dialogue_record(dialogue))
        assert (found.num, found.words) == (len(agent), sum(len(text.split()) for text in agent))
        assert found.answered == len(answers)
        assert found.acting == sum(bool({"suggestion", "information", "referral"} & set(turn.heard)) for turn in answers)


def made_run(folder, cell: Cell, seed: int, **facts):
    """A run whose dialogues are a hard and an easy one at either look."""
    place = made_result(folder, "_".join(cell), seed, **facts)
    records = [line(0, 30.0, 4), line(0, 31.0, 8), line(9, score_of(cell, seed), 4), line(9, score_of(cell, seed), 8)]
    shared = {"policy_tokens": 0, "in_during": True, "family": "praise/negative", "strictness": 0.5}
    lines = [{**shared, **record, "policy_tokens": BUDGET if record["look"] else 0} for record in records]
    (place / "evaluation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    return place


def test_the_command_reads_a_sweep_marks_each_finding_and_keeps_them(tmp_path, capsys):
    for cell in CELLS:
        for seed in range(2):
            made_run(tmp_path, cell, seed)
    assert main(["rlver", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "moderate users teach more than challenging ones" in out and "16 runs" in out and "reproduced" in out
    kept = json.loads((tmp_path / "rlver.json").read_text())
    assert kept["num_runs"] == 16 and kept["worlds"] == ["aaaa"] and kept["notes"] == []
    first = kept["findings"][0]
    assert (first["claim"], first["value"], first["mark"]) == ("moderate users teach more than challenging ones", 12.0, "reproduced")
    assert main(["rlver", str(tmp_path / "ppo_think_vanilla")]) == 2


def test_the_findings_can_be_written_elsewhere_and_the_sweeps_own_file_stays(tmp_path, capsys):
    for cell in CELLS:
        made_run(tmp_path / "sweep", cell, 0)
    (tmp_path / "sweep" / "rlver.json").write_text("kept", encoding="utf-8")
    out = tmp_path / "findings.json"
    assert main(["rlver", str(tmp_path / "sweep"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"\n\n{out}\n") and json.loads(out.read_text())["num_runs"] == 8
    assert (tmp_path / "sweep" / "rlver.json").read_text() == "kept"
    assert main(["rlver", str(tmp_path / "sweep"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: --out must be a file in a folder that is there")


def test_runs_that_are_unlike_torn_or_missing_are_left_out_and_said_to_be(tmp_path, capsys):
    for cell in CELLS[1:]:
        for seed in range(3):
            made_run(tmp_path, cell, seed, world="bbbb" if (cell, seed) == (CELLS[1], 1) else "aaaa")
    (tmp_path / "ppo_plain_vanilla" / "seed_0" / "config.yaml").write_text("a: [")
    torn = tmp_path / "ppo_plain_challenging" / "seed_0" / "evaluation.jsonl"
    torn.write_text(torn.read_text().replace('"grid": "full", ', "", 1))
    assert main(["rlver", str(tmp_path)]) == 0
    notes = json.loads((tmp_path / "rlver.json").read_text())["notes"]
    assert any(note.startswith("ppo_plain_vanilla/seed_0 is left out") for note in notes)
    assert any(note.startswith("ppo_plain_challenging/seed_0 is left out") and "'grid'" in note for note in notes)
    assert any("ran in different worlds" in note and note.endswith("grpo_plain_challenging/seed_1 is left out.") for note in notes)
    out = capsys.readouterr().out
    assert "undecided" in out and "there is no run that can be used of grpo_plain_vanilla" in out
