"""Small real parts for tests of the policy: a random Qwen2, a tokenizer, rollouts and groups, learners."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from policy.batch import Batch, collate
from policy.learner import Learner
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome
from simulator.reward import Reward
from tests.tiny_scenario import AnyTask, make_scenario

VOCABULARY = 61


def tiny_model(*, seed: int = 0, tied: bool = False, **changes: float) -> Qwen2ForCausalLM:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**(sizes | changes), initializer_range=0.2, tie_word_embeddings=tied)).eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = {"<end>": 0, **{f"w{i}": i for i in range(1, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def update(learner: Learner, batch: Batch, **settings: float) -> dict[str, float]:
    """A whole update on a batch without advantages."""
    return learner.update(learner.algorithm.add_advantages(learner.prepare(batch)), **settings)


def weights_of(learner: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in learner.weights()])


def gradient_of(learner: Learner) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])


def dialogue(*, outcome: Outcome = Outcome.MAX_TURNS) -> Dialogue:
    scenario = make_scenario(scenario_id="scenario")
    return Dialogue(scenario=scenario, difficulty=AnyTask().difficulty, seed=0, outcome=outcome)


def rollout(
    token_ids: Sequence[int],
    loss_mask: Sequence[int],
    *,
    reward: float = 0.5,
    logprobs: Sequence[float] | None = None,
    outcome: Outcome = Outcome.MAX_TURNS,
    turn_rewards: Sequence[float] = (),
    policy_versions: tuple[int, int] = (0, 0),
) -> Rollout:
    """One rollout; its turns are read off the mask, and each sampled token has logprob -1 unless `logprobs` ([T]) says otherwise.

    A token's turn is the number of replies that had ended before it.
    """
    mask = np.array(loss_mask, dtype=bool)
    ended = np.cumsum(np.concatenate([[False], mask[:-1] & ~mask[1:]])) if len(mask) else np.zeros(0)
    return Rollout(
        dialogue=dialogue(outcome=outcome),
        token_ids=np.array(token_ids, dtype=np.int32),
        turn_ids=ended.astype(np.int16),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -1.0 if logprobs is None else logprobs, 0.0).astype(np.float32),
        reward=Reward(total=reward),
        turn_rewards=tuple(turn_rewards),
        policy_versions=policy_versions,
    )


def group(*rollouts: Rollout) -> RolloutGroup:
    return RolloutGroup(task=AnyTask(group_size=len(rollouts)), rollouts=rollouts)


def random_batch(*, seed: int, num_groups: int = 3, size: int = 4, num_tokens: tuple[int, int] = (12, 40)) -> Batch:
    """Groups of siblings with random tokens and rewards, about half of the tokens sampled."""
    groups = []
    for number in range(num_groups):
        generator = np.random.default_rng(1000 * seed + number)
        siblings = []
        for _ in range(size):
            length = int(generator.integers(*num_tokens))
            mask = generator.random(length) < 0.5
            mask[:3], mask[3] = False, True
            ids, reward = generator.integers(1, VOCABULARY, length), float(generator.random())
            siblings.append(rollout(ids, mask, reward=reward, logprobs=-generator.random(length)))
        groups.append(group(*siblings))
    return collate(groups)


def random_talk(generator: np.random.Generator, *, broken: bool = False) -> Rollout:
    """A dialogue of one to four answered replies, each of one to five sampled tokens, with its turn ids as rolling out sets them."""
    mask, turns = [0, 0], [0, 0]
    num_turns = int(generator.integers(1, 5))
    for k in range(num_turns):
        length = int(generator.integers(1, 6))
        mask += [1] * length + [0] * int(generator.integers(1, 4))
        turns += [k] * length + [k + 1] * (len(mask) - len(turns) - length)
    talk = rollout(
        generator.integers(1, VOCABULARY, len(mask)),
        mask,
        reward=math.nan if broken else float(generator.random()),
        logprobs=-generator.random(len(mask)),
        outcome=Outcome.ERROR if broken else Outcome.MAX_TURNS,
        turn_rewards=generator.uniform(-1, 1, num_turns).tolist(),
    )
    return replace(talk, turn_ids=np.array(turns, dtype=np.int16))


def random_talks(*, seed: int, num_groups: int = 4, size: int = 4) -> Batch:
    """Groups of dialogues with turn rewards, with a broken one here and there; the last group has one valid dialogue."""
    generator = np.random.default_rng(seed)
    groups = [group(*(random_talk(generator, broken=generator.random() < 0.15) for _ in range(size))) for _ in range(num_groups - 1)]
    return collate([*groups, group(random_talk(generator), *(random_talk(generator, broken=True) for _ in range(size - 1)))])
