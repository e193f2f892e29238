"""TRL's GRPOTrainer with Attune's users and teachers: one object that is rollout function, reward and callback.

Every process holds the same teacher, which hears of all processes' dialogues, so that all propose the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from attune_rl.hosts import require_version

require_version("trl", "1.16")

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl import GRPOTrainer

from attune_rl.credit import turn_advantages
from attune_rl.session import GRID, Episode, Session, Ticket, wait_for
from attune_rl.tokens import Completion, TokenEpisode, chat_of

ANYBODY = "-"
"""Prompt of a training dialogue."""


class Attune(TrainerCallback, ExportableState):
    """`GRPOTrainer(rollout_func=attune.rollout, reward_funcs=attune.emotion, train_dataset=attune.train_dataset(n), callbacks=[attune])`.

    Args:
        tokenizer: of the model, with a chat template.
        system_prompt: before every dialogue.
        max_context: tokens of a dialogue, all turns together; TRL's `max_completion_length` bounds one reply.
    """

    def __init__(self, session: Session, tokenizer: Any, *, system_prompt: str = "", max_context: int = 1024) -> None:
        self.session, self.chat, self.max_context = session, chat_of(tokenizer, system_prompt), max_context
        self._is_training, self._steps_per_batch = True, 1
        self._told: list[dict[str, float]] = []

    def train_dataset(self, num: int) -> Dataset:
        """Prompts that say nothing: whom the agent meets is decided when a batch is rolled out."""
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": ANYBODY}]] * num})

    def eval_dataset(self, num_scenarios: int, strictness: Sequence[float] = GRID) -> Dataset:
        """Fixed dialogues with held-out users; each prompt names its own, since TRL hands a rollout function nothing else."""
        named = [json.dumps(ticket.to_dict()) for ticket in self.session.heldout(num_scenarios, strictness)]
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": name}] for name in named]})

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: plays a dialogue for each prompt, all at once, turn by turn."""
        session, training = self.session, trainer.model.training
        names = [str(prompt[-1]["content"]) if isinstance(prompt, list) else "" for prompt in prompts]
        if not all(name == ANYBODY if training else name.startswith("{") for name in names):
            got = "other prompts in training" if training else "other prompts in an evaluation"
            raise ValueError(f"train_dataset must be attune.train_dataset(n) and eval_dataset attune.eval_dataset(n), got {got}")
        self._is_training = training
        self._check(trainer)
        if training:
            self._told = []  # a new batch, also where training goes on from the middle of one
        tickets = self._issued(len(prompts), trainer) if training else [Ticket.from_dict(json.loads(name)) for name in names]
        played = [TokenEpisode(session.episode(ticket), self.chat) for ticket in tickets]
        completions = self._play(played, trainer)
        results = [each.episode.result() for each in played]
        learned = [ticket.learned and not result.broke for ticket, result in zip(tickets, results, strict=True)]
        credits: list[list[float]] = [[] for _ in results]
        if training:
            everywhere = gather_object([(ticket.uid, *each) for ticket, *each in zip(tickets, learned, results, strict=True)])
            for uid, _, result in everywhere:
                session.finish(uid, result)
            turns = [result.turn_rewards if is_learned else None for _, is_learned, result in everywhere]
            size, mine = session.group_size, self._share(len(prompts), trainer)
            credits = [credit for first in range(0, len(turns), size) for credit in turn_advantages(turns[first : first + size])][mine]
        return {
            "prompt_ids": [each.prompt_ids for each in played],
            "completion_ids": [each.token_ids for each in completions],
            "env_mask": [each.loss_mask for each in completions],
            "logprobs": [each.logprobs for each in completions] if trainer.use_vllm else None,
            "attune_reward": [result.reward if is_learned else None for result, is_learned in zip(results, learned, strict=True)],
            "attune_turns": [each.turn_ids for each in completions],
            "attune_credit": credits,
            "attune_dialogue": [as_text(each.episode) for each in played],
        }

    def emotion(self, *, attune_reward: list[Any], attune_dialogue: list[str], log_extra: Any, log_metric: Any, **_: Any) -> list[Any]:
        """TRL's reward function: the user's last emotion over 100; None where a dialogue broke, which TRL keeps out of every baseline."""
        log_extra("dialogue", attune_dialogue)
        broken = {"session/broken": float(sum(reward is None for reward in attune_reward))}
        for name, value in (self.session.metrics() if self._is_training else broken).items():
            log_metric(name, value)
        return attune_reward

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Refuses settings with which the teacher would not hear of updates, and restores the session of a checkpoint."""
        if args.num_generations != self.session.group_size:
            raise ValueError(f"num_generations must be the session's group_size={self.session.group_size}, got {args.num_generations}")
        if args.logging_strategy != "steps" or args.logging_steps != 1:
            got = f"got {args.logging_steps} {args.logging_strategy}"
            raise ValueError(
                f"logging_steps must be 1, with logging_strategy=steps, {got}: TRL says an update's entropy only where it logs"
            )
        # A batch of dialogues serves several optimiser steps, which are one update to the teacher.
        self._steps_per_batch = max(args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps, 1)
        if not state.global_step and self.session.policy_version:
            got = f"got one that has had {self.session.policy_version} updates"
            raise ValueError(f"the session must be new for a new training, {got}; make another, or resume from a checkpoint")
        self.session.num_updates = self.session.num_updates or max(state.max_steps // self._steps_per_batch, 1)
        if state.global_step:
            saved = state.stateful_callbacks.get(type(self).__name__)
            if saved is None:
                raise ValueError(
                    "the checkpoint must hold a session to go on from, got none; it is saved where Attune is among the callbacks"
                )
            self.session.load_state_dict(saved["attributes"]["session"])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Tells the teacher of an update, when a batch of dialogues is used up."""
        if logs and "entropy" in logs:
            self._told.append(logs)
            if len(self._told) == self._steps_per_batch:
                # TRL logs an entropy of 0 for a step without any token to learn from.
                learned = [each for each in self._told if each["entropy"]]
                entropies, kls = ([each[name] for each in learned if each.get(name) is not None] for name in ("entropy", "kl"))
                means = {name: fmean(values) for name, values in (("entropy", entropies), ("kl", kls)) if values}
                self.session.updated(self.session.policy_version + 1, **means)
                self._told = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint of TRL's keeps in its `trainer_state.json`."""
        return {"args": {}, "attributes": {"session": self.session.state_dict()}}

    def _check(self, trainer: Any) -> None:
        """Refuses a trainer that does not call back, or whose replies do not end where turns do."""
        if self not in trainer.callback_handler.callbacks:
            raise ValueError("callbacks must hold the Attune whose rollout this is, got none; the teacher would hear of no update")
        if (num := len(trainer.reward_funcs)) != 1:
            raise ValueError(
                f"reward_funcs must be attune.emotion alone, got {num}: beside another TRL takes a broken dialogue for one of reward 0"
            )
        if self.chat.end_of_turn_id not in trainer.eos_token_ids:
            turn = self.chat.decode_special([self.chat.end_of_turn_id])
            ends = self.chat.decode_special(list(trainer.eos_token_ids))
            raise ValueError(f"the tokenizer's eos_token must be {turn!r}, which ends a turn in its chat template, got {ends!r}")

    def _share(self, num: int, trainer: Any) -> slice:
        """This process's rows among those of all processes, which lie in order."""
        first = trainer.accelerator.process_index * num
        return slice(first, first + num)

    def _issued(self, num: int, trainer: Any) -> list[Ticket]:
        """This process's share of the next tasks: groups are consecutive rows over all processes."""
        tasks = self.session.propose(num * trainer.accelerator.num_processes // self.session.group_size)
        return [Ticket.of(task) for task in tasks for _ in range(task.group_size)][self._share(num, trainer)]

    def _play(self, episodes: list[TokenEpisode], trainer: Any) -> list[Completion]:
        """Plays the dialogues to their ends, all of them a turn at a time."""
        wait_for(_all(each.open() for each in episodes))
        room = trainer.max_completion_length + 1
        while True:
            for each in episodes:
                if (length := len(each.context)) + room > self.max_context and not each.over:
                    if not each.episode.dialogue.num_replies:
                        wanted = f"a reply of max_completion_length={room - 1} tokens after an opening of {length}"
                        raise ValueError(f"max_context must leave room for {wanted}, got {self.max_context}")
                    each.episode.cut_off()
            going = [each for each in episodes if not each.over]
            if not any(gather_object([bool(going)])):  # engines and sharded models want every process at every turn
                break
            # vLLM on several processes takes each one's replies by its own number of prompts, so that must be the same on all.
            num_idle = len(episodes) - len(going) if trainer.use_vllm else int(not going)
            asked = [each.context for each in going] + num_idle * [episodes[0].prompt_ids]
            said, logprobs = trainer._generate_single_turn(asked, None, {}, num_generations=1)
            replies = zip(going, said, logprobs or [None] * len(said), strict=False)
            wait_for(_all(each.reply(token_ids, of_tokens) for each, token_ids, of_tokens in replies))
        # TRL reads the last token of every completion, and a dialogue that broke at once has none.
        nothing = Completion(token_ids=[self.chat.end_of_turn_id], loss_mask=[0], logprobs=[0.0], turn_ids=[0])
        return [done if done.token_ids else nothing for done in (each.completion() for each in episodes)]


class TurnCreditTrainer(GRPOTrainer):
    """GRPOTrainer whose replies are credited with the emotion after them, beside the dialogue's end."""

    turn_credit = 0.9
    """Share of the advantage, in [0, 1]."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            credit_BT = torch.zeros(output["completion_ids"].shape, device=output["advantages"].device)
            for credit_T, row in zip(credit_BT, inputs, strict=True):
                by_token = [row["attune_credit"][turn] if turn < len(row["attune_credit"]) else 0.0 for turn in row["attune_turns"]]
                credit_T[: len(by_token)] = torch.tensor(by_token)
            output["advantages"] = (1.0 - self.turn_credit) * output["advantages"][:, None] + self.turn_credit * credit_BT
        return output


async def _all(coroutines: Any) -> list[Any]:
    return await asyncio.gather(*coroutines)


def as_text(episode: Episode) -> str:
    """A dialogue for TRL's table of completions, whose own columns hold the ticket and a text without roles."""
    dialogue = episode.dialogue
    lines = [f"{turn.speaker}{'' if turn.emotion is None else f' ({turn.emotion})'}: {turn.text}" for turn in dialogue.turns]
    return "\n".join([f"{dialogue.scenario.family}, strictness {dialogue.difficulty.strictness:.2f}, {dialogue.outcome}", *lines])
