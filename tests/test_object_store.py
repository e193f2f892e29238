"""What grows goes through Ray's object store: weights once for all engines, and results from where they were made."""

from __future__ import annotations

import pytest
import ray

from policy.engine.weights import PackedWeights
from tests.test_pool import load, tasks_of
from tests.test_pool_faults import make_pool
from tests.tiny_policy import save_tiny_policy


@pytest.mark.engine
def test_weights_are_put_once_for_all_engines_and_results_lie_in_the_store(tmp_path, monkeypatch):
    folder = save_tiny_policy(tmp_path, hidden=32, layers=1)
    put, kept = ray.put, []
    monkeypatch.setattr("policy.rollout.worker_group.ray.put", lambda value: kept.append(put(value)) or kept[-1])
    with make_pool(folder, num_engines=2) as pool:
        pool.load_weights(load(folder).named_parameters(), 1)
        [weights] = kept
        assert isinstance(ray.get(weights), PackedWeights)
        pool.submit(tasks_of("plain", "plain", group_size=64))
        results = [job.ref for job, _ in pool._lanes[""]]
        pool.ready(2)
        where = ray.experimental.get_local_object_locations([weights, *results])
        assert all(where[ref]["node_ids"] for ref in (weights, *results))
        assert min(where[ref]["object_size"] for ref in results) > 100 << 10  # smaller ones travel within the answer itself
