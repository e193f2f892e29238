"""prime-rl's own Curriculum around Attune's sampler, fed with verifiers' own episodes; run by `make adapters PRIME_RL=<checkout>`."""

from __future__ import annotations

import json
import os
import uuid

import pytest

pytest.importorskip("verifiers", reason="verifiers is not installed (make adapters)")
if not os.environ.get("PRIME_RL"):
    pytest.skip("PRIME_RL must be a checkout of prime-rl, which no index has", allow_module_level=True)

import verifiers.v1 as vf
from prime_rl.configs.orchestrator import CurriculumConfig
from prime_rl.orchestrator.curriculum.base import Curriculum
from verifiers.v1.episode import PolicySpan, TrainRunInfo, TrainWorkInfo
from verifiers.v1.trace import Error

from attune_rl.prime_rl import AttuneSampler


def make_curriculum() -> Curriculum:
    """By prime-rl's constructor, to which our patch was applied."""
    settings = {"teacher": "frontier", "group_size": 3, "max_turns": 2, "max_staleness": 3}
    sampler = {"type": "custom", "factory": "attune_rl.prime_rl:make_sampler", "settings": settings}
    return Curriculum(CurriculumConfig(sampler=sampler), [])


def episode(task, reward: float, version: int, *, broke: bool = False, logprob: float = -1.0) -> vf.Episode:
    result = {"reward": reward, "turn_rewards": [0.1], "num_tokens": 9, "status": "ok", "error": ""}
    trace = vf.Trace(
        task=vf.TraceTask(type="UserTask", data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        ok=not broke,
        errors=[Error(type="RuntimeError", message="the engine is gone")] if broke else [],
        info={} if broke else {"attune": result},
        nodes=[
            vf.MessageNode(message=vf.AssistantMessage(content="Go on."), mask=[False, True, True], logprobs=[logprob] * 2, sampled=True)
        ],
    )
    run = TrainRunInfo(id="r", work=TrainWorkInfo(step=version + 1, policy=PolicySpan(start=version, end=version)))
    return vf.Episode(env=vf.EnvInfo(id="attune"), task=trace.task, group=vf.GroupInfo(id=str(uuid.uuid4())), traces=[trace], run=run)


def test_whole_short_and_broken_groups_reach_the_teacher_and_stale_ones_are_given_up() -> None:
    curriculum = make_curriculum()
    tasks = [next(curriculum.sampler) for _ in range(6)]
    assert len({task.key for task in tasks}) == 6
    for version, task in enumerate(tasks[:5]):
        group = [
            episode(task, 0.2 + 0.1 * number, version, broke=(version, number) == (2, 0)) for number in range(2 if version == 3 else 3)
        ]
        assert curriculum.on_result(group) is True
    metrics = curriculum.metrics()
    assert metrics["sampler/curriculum/outcomes_observed"] == 5 and metrics["sampler/session/missing"] == 1
    assert metrics["sampler/session/broken"] == 1
    assert metrics["sampler/curriculum/outcomes_expired"] == 1 and metrics["sampler/curriculum/outstanding"] == 0


def test_it_goes_on_where_it_was_saved() -> None:
    ours, other = make_curriculum(), make_curriculum()
    task = next(ours.sampler)
    ours.on_result([episode(task, 0.2 * number, 1) for number in range(3)])
    other.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert isinstance(other.sampler, AttuneSampler)
    assert next(ours.sampler).data.ticket == next(other.sampler).data.ticket


def test_entropy_is_that_of_the_logprobs_since_the_last_update(monkeypatch) -> None:
    curriculum, heard = make_curriculum(), []
    monkeypatch.setattr(curriculum.sampler.session.teacher, "on_update", heard.append)
    first, second = next(curriculum.sampler), next(curriculum.sampler)
    curriculum.on_result([episode(first, 0.3, 1, logprob=-0.5 - number) for number in range(3)])
    curriculum.on_result([episode(second, 0.3, 2, logprob=-2.0, broke=number == 2) for number in range(3)])
    assert [(stats.policy_version, stats.entropy) for stats in heard] == [(1, 1.5), (2, 2.0)]


def test_an_episode_that_failed_before_its_dialogue_is_broken_and_not_missing() -> None:
    curriculum = make_curriculum()
    task = next(curriculum.sampler)
    failed = episode(task, 0.5, 1).model_copy(update={"traces": [], "errors": [Error(type="RuntimeError", message="no encoder")]})
    curriculum.on_result([episode(task, 0.5, 1), failed])
    metrics = curriculum.metrics()
    assert metrics["sampler/session/broken"] == 1 and metrics["sampler/session/missing"] == 1
