"""verl 0.9's synchronous trainer with Attune's users and teachers: an agent loop for its workers, a dataset and a trainer for its driver.

Settings are `data.attune` (`Settings`), as in `+data.attune.teacher=frontier +data.attune.user=encoder`; docs/trainers.md has the command.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from attune_rl.hosts import SYSTEM_PROMPT, require_version

require_version("verl", "0.9")

import torch
import transfer_queue
from omegaconf import OmegaConf, open_dict
from torch.utils.data import Dataset
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.profiler import simple_timer

from attune_rl.session import Episode, Result, Session, Ticket, built_in_world, user_of_process
from attune_rl.tokens import TokenEpisode, chat_of

chat_of_process = cache(chat_of)
STATE = "attune.json"
"""File in a checkpoint."""


@dataclass
class Settings:
    """`data.attune`."""

    teacher: str = "frontier"
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the teacher, by name."""
    user: str = "rule"
    """How users understand replies, `rule` or `encoder`."""
    system_prompt: str = SYSTEM_PROMPT
    max_turns: int = 8
    max_new_tokens: int = 64
    """Of a reply."""
    num_updates: int = 0
    """Of the whole run, for teachers that pace entropy; `trainer.total_training_steps` if 0."""
    num_heldout: int = 24
    """Scenarios of a validation, each at five strictnesses."""
    seed: int = 0

    @classmethod
    def of(cls, data: Any) -> Settings:
        """Those of verl's group `data`."""
        return cls(**OmegaConf.to_container(OmegaConf.create(data.get("attune") or {}), resolve=True))

    def session(self, group_size: int) -> Session:
        """A session by these settings."""
        session = Session(
            self.teacher,
            user=self.user,
            group_size=group_size,
            max_turns=self.max_turns,
            num_updates=self.num_updates,
            seed=self.seed,
            **self.settings,
        )
        session.require_one_by_one()
        return session


@register("attune")
class AttuneAgentLoop(AgentLoopBase):
    """One dialogue, in a worker: it has users of its own, and a ticket that says whom to meet."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Plays a row; a user that breaks raises, and verl leaves the rollout out of its group."""
        settings, ticket = Settings.of(self.data_config), Ticket.from_dict(json.loads(row["extra_info"]["ticket"]))
        episode = Episode(user_of_process(settings.user), ticket, built_in_world(), max_turns=settings.max_turns)
        played = TokenEpisode(episode, chat_of_process(self.tokenizer, settings.system_prompt))
        has_logprobs, request, fields, timing = True, uuid4().hex, [], dict[str, float]()
        room = {"max_tokens": settings.max_new_tokens, "stop_token_ids": [played.chat.end_of_turn_id]}
        await played.open()
        while not played.over:
            if len(played.context) + settings.max_new_tokens >= len(played.prompt_ids) + self.rollout_config.response_length:
                episode.cut_off()
                break
            with simple_timer("generate_sequences", timing):
                sampling = {**sampling_params, **room}
                said = await self.server_manager.generate(request, prompt_ids=played.context, sampling_params=sampling)
            has_logprobs &= bool(said.log_probs)
            fields.append(said.extra_fields)
            await played.reply(said.token_ids, said.log_probs or None)
        result = episode.result()
        if result.broke:
            raise RuntimeError(f"the simulated user broke: {result.error}")
        done = played.completion()
        logprob = sum(done.logprobs) if has_logprobs else None
        # verl puts the reward on the last token, where some advantage estimators see it only if that was sampled.
        end = max(number for number, is_sampled in enumerate(done.loss_mask, 1) if is_sampled)
        return AgentLoopOutput(
            prompt_ids=played.prompt_ids,
            response_ids=done.token_ids[:end],
            response_mask=done.loss_mask[:end],
            response_logprobs=done.logprobs[:end] if has_logprobs else None,
            reward_score=result.reward,
            num_turns=2 * episode.dialogue.num_replies,
            metrics=AgentLoopMetrics(**timing),
            extra_fields={
                "min_global_steps": fields[0].get("min_global_steps"),
                "max_global_steps": fields[-1].get("max_global_steps"),
                "turn_scores": list(result.turn_rewards),
                "reward_extra_info": {},
                "attune": json.dumps({"uid": ticket.uid, "result": result.to_dict(), "logprob": logprob}),
            },
        )


class AttuneTasks(Dataset[dict[str, Any]]):
    """Rows: a task of the teacher, proposed when it is asked for; with `heldout` as its files the fixed dialogues of a validation."""

    def __init__(self, data_files: Any, tokenizer: Any, processor: Any, config: Any, max_samples: int = -1) -> None:
        if config.get("dataloader_num_workers", 8) or config.get("shuffle", True):
            raise ValueError("data.dataloader_num_workers must be 0 and data.shuffle false: who comes next depends on what just happened")
        if data_files not in ("teacher", "heldout"):
            raise ValueError(f"data.train_files must be teacher and data.val_files heldout, got {data_files!r}")
        settings, self._num = Settings.of(config), max_samples if max_samples > 0 else 100_000
        chat_of(tokenizer, settings.system_prompt)  # a template under which no dialogue can grow is refused before engines start
        self._heldout = the_session().heldout(settings.num_heldout) if data_files == "heldout" else None

    def __len__(self) -> int:
        return self._num if self._heldout is None else len(self._heldout)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ticket = Ticket.of(*the_session().propose(1)) if self._heldout is None else self._heldout[index]
        return {
            "raw_prompt": [{"role": "user", "content": ticket.scenario_id}],
            "agent_name": "attune",
            # verl averages a validation by source.
            "data_source": "attune" if self._heldout is None else f"attune/{ticket.difficulty.strictness:g}",
            "index": index,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "ticket": json.dumps(ticket.to_dict())},
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }


@register_trainer("attune_sync")
class AttuneTrainer(PPOTrainerSync):
    """The synchronous trainer, which tells the teacher how groups went and what the update did to entropy."""

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # any other name is taken for an asynchronous mode
        if (config.algorithm.get("filter_groups") or {}).get("enable"):
            raise ValueError("algorithm.filter_groups.enable must be false, got true: the teacher would not hear of the groups left out")
        settings, room = Settings.of(config.data), config.actor_rollout_ref.rollout.response_length
        if room <= settings.max_new_tokens:
            wanted = f"more than data.attune.max_new_tokens={settings.max_new_tokens}"
            raise ValueError(f"rollout.response_length must be {wanted}, got {room}: it holds a whole dialogue")
        settings.num_updates = settings.num_updates or config.trainer.total_training_steps or 0
        SESSIONS[:] = [settings.session(config.actor_rollout_ref.rollout.n)]
        super().__init__(config)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """An update. The teacher hears of it here, as checkpoints are written before metrics."""
        batch = super().step(metrics, timing_raw)
        tell(the_session(), batch, metrics, self.global_steps, is_mean=self.config.actor_rollout_ref.actor.loss_agg_mode.endswith("-mean"))
        return batch

    def _val_metrics_update(self, *columns: Any, expected_acc_counts: dict[Any, int], **others: Any) -> dict[str, float]:
        """verl's means of a validation, which leave out the dialogues that failed; and how many did."""
        scores = super()._val_metrics_update(*columns, expected_acc_counts=expected_acc_counts, **others)
        _sources, uids = columns[:2]
        return {**scores, "val-aux/broken": float(sum(expected_acc_counts.values()) - len(uids))}

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATE).write_text(json.dumps(the_session().state_dict()))
        super()._save_checkpoint()  # last, as it names the checkpoint that a resumed run takes

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            folder = self.config.trainer.resume_from_path if self.config.trainer.resume_mode == "resume_path" else None
            folder = folder or Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
            the_session().load_state_dict(json.loads((Path(folder) / STATE).read_text()))


def tell(session: Session, batch: Any, metrics: dict[str, Any], global_steps: int, *, is_mean: bool = True) -> None:
    """Hands in a step's rollouts; those that are not among them broke.

    Args:
        is_mean: whether verl's `actor/entropy` is a mean, as its other ways of adding up tokens depend on how long dialogues are.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])["extra_fields"]
    homes = [json.loads(getattr(each, "data", each)["attune"]) for each in fields]
    results = [Result.from_dict(home["result"]) for home in homes]
    for home, result in zip(homes, results, strict=True):
        session.finish(home["uid"], result)
    for uid in session.waiting:  # a step ends when all its dialogues have
        while not session.finish(uid, Result(reward=math.nan, error="it failed in a worker, whose log says why")):
            pass
    logprobs, num_tokens = [home["logprob"] for home in homes], sum(result.num_tokens for result in results)
    session.updated(
        global_steps,
        entropy=metrics.get("actor/entropy") if is_mean else None,
        entropy_sampled=None if None in logprobs or not num_tokens else -sum(logprobs) / num_tokens,
        kl=metrics.get("actor/kl_loss"),
    )
    metrics.update(session.metrics())


SESSIONS: list[Session] = []
"""The driver's, which its datasets and its trainer share."""


def the_session() -> Session:
    """The driver's session."""
    if not SESSIONS:
        raise RuntimeError("trainer.v1.trainer_mode must be attune_sync, got another; it opens the session that the dataset asks")
    return SESSIONS[0]
