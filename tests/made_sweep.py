"""A sweep folder with chosen numbers: small files of the shape that real runs leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BUDGET = 1000
CELLS = (("advice/positive", 0.1), ("advice/positive", 0.9), ("both_sides/negative", 0.1), ("both_sides/negative", 0.9))


def lines_of(looks: Sequence[tuple[int, float]], cells: Sequence[float]) -> list[dict[str, Any]]:
    """One dialogue a cell at each look; `cells` are added to the look's score at the last one, which the smaller grid does not show."""
    turns = [{"speaker": "user", "text": "They gave it away.", "emotion": 40}, {"speaker": "agent", "text": "That hurts."}]
    words = {"scenario_id": "heldout/x/praise-negative", "hidden_intention": "Wants praise.", "turns": turns, "outcome": "max_turns"}
    lines = []
    for look, (tokens, score) in enumerate(looks):
        full = look in (0, len(looks) - 1)
        facts = {"step": 10 * look, "look": look, "policy_tokens": tokens, "grid": "full" if full else "during", **words}
        lines.append({**facts, "uid": "small", "in_during": True, "family": "praise/negative", "strictness": 0.5, "emotion": score})
        for (family, strictness), extra in zip(CELLS, cells, strict=True) if full else ():
            emotion = min(100.0, max(0.0, score + (extra if look else 0.0)))
            uid = f"{family}@{strictness}"
            lines.append({**facts, "uid": uid, "in_during": False, "family": family, "strictness": strictness, "emotion": emotion})
    return lines


def made_result(
    folder: Path,
    arm: str,
    seed: int,
    *,
    looks: Sequence[tuple[int, float]] = ((0, 20.0), (BUDGET, 60.0)),
    cells: Sequence[float] = (30.0, -30.0, 20.0, -20.0),
    world: str = "aaaa",
    budget: int = BUDGET,
    split: str = "heldout",
    summary: Mapping[str, Any] | None = None,
    settings: str = "",
    commit: str = "c0ffee",
    initial_policy: str = "",
    metrics: Sequence[Mapping[str, Any]] = (),
    teacher: Sequence[Mapping[str, Any]] = (),
    finished: bool = True,
) -> Path:
    """Writes one run; `looks` are its curve as (policy tokens, score), `settings` further lines of its config."""
    place = folder / arm / f"seed_{seed}"
    place.mkdir(parents=True)
    config = f"experiment: made\nseed: {seed}\nname: {arm}-{seed}\nbudget:\n  policy_tokens: {budget}\n  steps: 0\n"
    config += f"evaluation:\n  split: {split}\n"
    provenance = f"provenance:\n  git_commit: {commit}\n  initial_policy: '{initial_policy}'\n"
    (place / "config.yaml").write_text(config + f"teacher:\n  kind: {arm}\n" + settings + provenance, encoding="utf-8")
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics or ({"step": 1},)), encoding="utf-8")
    (place / "teacher.jsonl").write_text("".join(json.dumps(line) + "\n" for line in teacher), encoding="utf-8")
    lines = "".join(json.dumps(line) + "\n" for line in lines_of(looks, cells))
    (place / "evaluation.jsonl").write_text(lines, encoding="utf-8")
    held_out = {"score": looks[-1][1], "worst_cell": 10.0, "cvar20": 20.0, "success_rate": 0.25, "failure_rate": 0.125}
    facts = {"seed": seed, "world_hash": world, "policy_tokens": looks[-1][0], "wall_s": 60.0, "cpu_s": 90.0}
    rest = {
        "start": {"score": looks[0][1]},
        "entropy": {"end": 0.5},
        "reward_density": {"end": 0.1},
        "collapse": {"alarms": []},
        "heldout": held_out,
    }
    if finished:
        (place / "summary.json").write_text(json.dumps({**facts, **rest, **(summary or {})}), encoding="utf-8")
    return place


def made_sweep(folder: Path, finals: Mapping[str, Sequence[float]], **facts: Any) -> Path:
    """Arms whose runs go in a straight line from 20 to a final score, seeds 0, 1, ...; the area is (20 + final) / 2."""
    for arm, scores in finals.items():
        for seed, final in enumerate(scores):
            made_result(folder, arm, seed, looks=((0, 20.0), (BUDGET, final)), **facts)
    return folder


def steps_of(num: int = 20, *, budget: int = BUDGET, **values: float) -> list[dict[str, Any]]:
    """Metrics of so many steps in which entropy falls, density rises and strictness climbs; `values` are in each."""
    return [
        {
            "step": i,
            "perf/policy_tokens": budget * i / num,
            "actor/entropy": 1.0 - i / (2 * num),
            "curriculum/reward_density": i / (10 * num),
            "curriculum/strictness": i / num,
            "collapse/alarms_on": 0.0,
            **values,
        }
        for i in range(1, num + 1)
    ]
