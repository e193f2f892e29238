"""The entropy law over runs: fitted, forecast, and said plainly where there is none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from earlier_file import EARLIER, earlier

from analysis.__main__ import main
from studies.entropy_law.entropy_law import as_text, law_of, over_runs

ENTROPIES = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]


def lawful(a: float, b: float) -> list[float]:
    return [b - a * math.exp(h) for h in ENTROPIES]


def write_run(folder: Path, entropies: list[float], rewards: list[float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"experiment": "made"}))
    records = [
        {"step": 5 * i, "probe/entropy_sampled": h, "probe/reward": r} for i, (h, r) in enumerate(zip(entropies, rewards, strict=True))
    ]
    records.insert(1, {"step": 1, "probe/entropy_sampled": None, "probe/reward": None})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_a_run_that_keeps_the_law_foretells_itself():
    found = law_of("one", ENTROPIES, lawful(0.3, 1.2))
    assert found is not None and (found.law.a, found.law.b) == pytest.approx((0.3, 1.2))
    assert found.forecast_error == pytest.approx(0.0, abs=1e-9)
    # From the fourth look on, the rewards of the last four are expected to stay.
    rewards = lawful(0.3, 1.2)
    assert found.standstill_error == pytest.approx(sum(r - rewards[3] for r in rewards[4:]) / 4)


def test_a_run_that_breaks_the_law_in_its_second_half_is_foretold_badly():
    rewards = [*lawful(0.3, 1.2)[:4], 0.2, 0.2, 0.2, 0.2]
    found = law_of("one", ENTROPIES, rewards)
    assert found is not None and found.forecast_error > 0.4


def test_too_few_looks_or_none_that_differ_have_no_law():
    assert law_of("one", ENTROPIES[:5], lawful(0.3, 1.2)[:5]) is None
    assert law_of("one", [1.0] * 8, lawful(0.3, 1.2)) is None


def test_the_mean_over_runs_has_the_error_between_them():
    laws = [law_of(str(a), ENTROPIES, lawful(a, 1.0)) for a in (0.1, 0.3)]
    assert over_runs(laws)["a"] == {"mean": pytest.approx(0.2), "error": pytest.approx(0.1)}
    assert over_runs(laws[:1])["a"]["error"] is None


def test_ways_to_foretell_are_compared_on_the_runs_that_have_both():
    without = law_of("still at first", [1.0] * 4 + ENTROPIES[4:], lawful(0.3, 1.2))
    assert without is not None and math.isnan(without.forecast_error)
    found = law_of("lawful", ENTROPIES, lawful(0.3, 1.2))
    assert over_runs([found, without])["standstill_error"]["mean"] == pytest.approx(found.standstill_error)
    said = as_text([found, without], num_without=0)
    assert said.endswith("better than no change in 1 of 1 runs; in 1 more the first half has no law")


def test_the_command_reads_sweeps_and_writes_what_it_says(tmp_path, capsys):
    for seed, a in enumerate((0.1, 0.3)):
        write_run(tmp_path / "sweep" / "frontier" / f"seed_{seed}", ENTROPIES, lawful(a, 1.0))
    write_run(tmp_path / "sweep" / "fixed" / "seed_0", ENTROPIES[:3], lawful(0.1, 1.0)[:3])
    out = tmp_path / "law.json"
    before = earlier(out)
    assert main(["entropy-law", str(tmp_path / "sweep"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert (
        before.read_text() == EARLIER
        and "over 2 runs" in said
        and "better than no change in 2 of 2 runs" in said
        and "1 more runs have fewer than 6 looks" in said
    )
    assert before.read_text() == EARLIER
    kept = json.loads(out.read_text())
    assert [run["a"] for run in kept["runs"]] == pytest.approx([0.1, 0.3]) and kept["num_without"] == 1


def test_a_run_that_lies_in_two_places_counts_once(tmp_path, capsys):
    for place, a in (("noise/steady", 0.1), ("forgetting/keeps", 0.1 + 1e-9), ("forgetting/other", 0.2)):
        write_run(tmp_path / place / "seed_0", ENTROPIES, lawful(a, 1.0))
    for place in ("noise/short", "forgetting/short"):
        write_run(tmp_path / place / "seed_0", ENTROPIES[:3], lawful(0.1, 1.0)[:3])
    out = tmp_path / "law.json"
    assert main(["entropy-law", str(tmp_path / "noise"), str(tmp_path / "forgetting"), "--out", str(out)]) == 0
    said, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert "over 2 runs" in said and "1 more runs have the same looks as one above" in said and "2 more runs have fewer" in said
    assert [Path(run["run"]).parent.name for run in kept["runs"]] == ["steady", "other"]
    assert (kept["num_again"], kept["num_without"]) == (1, 2)


def test_a_torn_run_is_left_out_with_its_reason_and_the_others_are_fitted(tmp_path, capsys):
    for seed in (0, 1):
        write_run(tmp_path / "sweep" / "frontier" / f"seed_{seed}", ENTROPIES, lawful(0.1, 1.0))
    torn = tmp_path / "sweep" / "frontier" / "seed_1"
    (torn / "metrics.jsonl").write_text("torn\n{}\n")
    out = tmp_path / "law.json"
    assert main(["entropy-law", str(tmp_path / "sweep"), "--out", str(out)]) == 0
    said, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert "over 1 runs" in said and "fewer than 6 looks" not in said
    assert f"{torn} is left out: " in said and "metrics.jsonl must hold a JSON object" in said
    assert len(kept["runs"]) == 1 and kept["num_without"] == 0 and "seed_1 is left out" in kept["left_out"][0]
    assert main(["entropy-law", str(torn)]) == 2
    assert "got none among 1 runs; " in (said := capsys.readouterr().err) and "must hold a JSON object" in said


@pytest.mark.parametrize("folder", ["nowhere", "empty", "short"])
def test_folders_without_a_law_are_one_sentence(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "short" / "seed_0", ENTROPIES[:3], lawful(0.1, 1.0)[:3])
    assert main(["entropy-law", str(tmp_path / folder)]) == 2
    assert capsys.readouterr().err.startswith("error: FOLDER must")
