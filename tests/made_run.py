"""A run directory that looks like a real one, written by the real recorder: real dialogues of scripted agents, made-up curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.runs import DIALOGUES, TEACHER
from experiments.recorder import Recorder, dialogue_record
from experiments.run_folder import summarise_run
from simulator.dialogue import Dialogue
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
TOKENS_PER_STEP = 6_000
ALARM = {"name": "density_lost", "step": 31, "message": "Reward density is 0.02, 9% of its start: rollouts of a group fare nearly alike."}
CONFIG = """experiment: adaptive_curriculum
name: seed0
seed: {seed}
groups_per_step: 8
group_size: 8
budget:
  policy_tokens: 240000
policy:
  model: embedded
teacher:
  kind: target
  target_success: 0.45
algorithm:
  kind: grpo
provenance:
  git_commit: 0123456789abcdef0123456789abcdef01234567
  world_hash: 1f2e3d4c
"""


def scenarios(num: int) -> list[Scenario]:
    """Of different families."""
    bank = load_bank()
    everyone = bank.scenarios(Split.HELDOUT) or bank.scenarios(Split.TRAIN)
    return list(everyone[:: max(len(everyone) // num, 1)][:num])


def played(agent: str, who: Sequence[Scenario]) -> list[Dialogue]:
    """The agent on every scenario at every strictness."""
    user = RuleUser(RuleUserConfig())
    return [play(AGENTS[agent], scenario, Difficulty.along(d), seed=i, user=user) for i, scenario in enumerate(who) for d in GRID]


def evaluation_records(dialogues: Sequence[Dialogue], *, look: int, tokens: int, full: bool) -> list[dict[str, Any]]:
    """As the producer writes them; the first two scenarios make up the small grid."""
    kept = dialogues if full else dialogues[: 2 * len(GRID)]
    facts = {"look": look, "policy_tokens": tokens, "grid": "full" if full else "during"}
    return [
        dialogue_record(
            dialogue,
            **facts,
            uid=f"eval:{dialogue.scenario.scenario_id}@{dialogue.difficulty.strictness:g}",
            strictness=round(dialogue.difficulty.strictness, 6),
            in_during=i < 2 * len(GRID),
        )
        for i, dialogue in enumerate(kept)
    ]


def step_metrics(step: int, num_steps: int, rng: np.random.Generator) -> dict[str, float]:
    """A course of training that is plausible to the eye."""
    done = step / num_steps
    ability = 1.0 / (1.0 + math.exp(-7.0 * (done - 0.4)))
    low, high = max(0.25 - 0.2 * ability + 0.05 * rng.normal(), 0.0), max(0.06 + 0.05 * rng.normal(), 0.0)
    return {
        "reward/mean": float(np.clip(0.42 + 0.14 * ability + 0.05 * rng.normal(), 0, 1)),
        "reward/success_rate": float(np.clip(0.30 + 0.15 * ability + 0.08 * rng.normal(), 0, 1)),
        "curriculum/reward_density": max(0.22 + 0.1 * math.sin(3 * done) + 0.04 * rng.normal(), 0.0),
        "curriculum/strictness": 0.15 + 0.55 * ability + 0.02 * rng.normal(),
        "curriculum/zero_variance_share": low + high,
        "curriculum/all_low_share": low,
        "curriculum/all_high_share": high,
        "curriculum/entropy_affordable": 1.5 * 0.1**done,
        "curriculum/ease": eased(step),
        "curriculum/explore_share": 0.05 + 0.05 * (eased(step) != 0.0),
        "curriculum/entropy_pressure": 0.6 - 0.8 * min(eased(step), 0.0),
        "curriculum/entropy_growth": 0.0,
        "curriculum/density_ratio": 1.0 - 0.4 * max(eased(step), 0.0),
        "actor/entropy": 0.35 + 1.15 * math.exp(-2.2 * done) + 0.03 * rng.normal(),
        "training/mismatch_kl": 1e-9,
        "training/rollout_logprob_abs_diff_mean": 3.2e-6,
        "actor/grad_norm": 0.8 + 0.2 * rng.random(),
        "collapse/alarms_on": float(31 <= step < 36),
        "collapse/alarm": 0.0,
        "dialogue/repetition": 0.08 + 0.02 * rng.random(),
        "response_length/mean": 24 + 3 * ability + rng.normal(),
        "timing_s/step": 4.1 + 0.3 * rng.random(),
        "timing_s/gen": 2.6 + 0.2 * rng.random(),
        "timing_s/update_actor": 1.2,
        "timing_s/update_weights": 0.1,
        "perf/policy_tokens": float(step * TOKENS_PER_STEP),
    }


def eased(step: int) -> float:
    """Logits by which the teacher makes tasks easier: at step 12 it begins to, at step 30 it makes them harder."""
    return 0.0 if step < 12 else 0.5 if step < 30 else -0.25


def taught(step: int, strictness: float) -> list[dict[str, Any]]:
    """Two tasks and what came of them, and at steps 12 and 30 a decision."""
    families = ("praise/negative", "advice/passive")
    uids = [f"step{step}-group{i}" for i in range(len(families))]
    tasks = [
        {"event": "task", "uid": uid, "family": family, "strictness": min(strictness + 0.1 * i, 1.0)}
        for i, (uid, family) in enumerate(zip(uids, families, strict=True))
    ]
    outcomes = [{"event": "outcome", "task": uid, "success_share": 0.25 + 0.5 * i} for i, uid in enumerate(uids)]
    inputs = {"ease": eased(step), "explore": 0.1, "pressure": 0.8, "why": "<low entropy>"}
    decision = {"event": "decision", "decision": "steer", "teacher_step": step, **inputs}
    return [*tasks, *outcomes, *([decision] if step in (12, 30) else [])]


def summary_of(folder: Path, *, seed: int, num_steps: int, alarms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`summary.json` as a finished run has it."""
    facts = {"experiment": "adaptive_curriculum", "name": "seed0", "seed": seed, "steps": num_steps, "wall_s": 341.0, "cpu_s": 655.0}
    facts |= {"policy_tokens": num_steps * TOKENS_PER_STEP, "simulator_calls": num_steps * 500, "world_hash": "1f2e3d4c"}
    facts |= {"algorithm": "grpo", "teacher": "target", "errors": {"simulator": 0, "engine": 0, "excluded_dialogues": 0}}
    return summarise_run(folder, facts=facts, reference={"L0": 17.5, "L6": 84.0}, alarms=alarms)


def append(path: Path, step: int, records: Iterable[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"step": step, **record}) + "\n" for record in records)


def make_run(
    folder: Path,
    *,
    num_steps: int = 40,
    num_scenarios: int = 3,
    before: str = "L0",
    after: str = "L4",
    alarms: Sequence[dict[str, Any]] = (),
    finished: bool = True,
    seed: int = 0,
) -> Path:
    """Writes a run that goes from one scripted agent to another; an unfinished one stops before its last evaluation."""
    rng = np.random.default_rng(0)
    who = scenarios(num_scenarios)
    start, end = played(before, who), played(after, who)
    recorder = Recorder(folder)
    (folder / "config.yaml").write_text(CONFIG.format(seed=seed), encoding="utf-8")
    for step in range(num_steps + 1):
        if step:
            recorder.metrics(step, step_metrics(step, num_steps, rng))
            issued = taught(step, step_metrics(step, num_steps, np.random.default_rng(step))["curriculum/strictness"])
            append(folder / TEACHER, step, issued)
        if step % (num_steps // 4) == 0 and step < num_steps:
            look = step // (num_steps // 4)
            mixed = [late if i % 4 < look else early for i, (early, late) in enumerate(zip(start, end, strict=True))]
            recorder.scalars(step, {"eval/full_score" if step == 0 else "eval/during_score": 25.0 + 8.0 * look})
            recorder.evaluation(step, evaluation_records(mixed, look=look, tokens=step * TOKENS_PER_STEP, full=step == 0))
    for alarm in alarms:
        recorder.alarm(alarm["step"], f"**{alarm['name']}**: {alarm['message']}")
    if finished:
        recorder.evaluation(num_steps, evaluation_records(end, look=4, tokens=num_steps * TOKENS_PER_STEP, full=True))
        recorder.scalars(num_steps, {"eval/full_score": 68.0})
        recorder.summary(summary_of(folder, seed=seed, num_steps=num_steps, alarms=alarms))
    append(folder / DIALOGUES, num_steps, [dialogue_record(dialogue, kind="train") for dialogue in end[:4]])
    recorder.close()
    return folder
