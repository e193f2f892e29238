"""The parts of a run in one process: all real but the pool, which samples from the learner's own weights."""

from __future__ import annotations

import asyncio

import torch

from curriculum.collapse.monitor import CollapseMonitor
from experiments.build import Components, make_teacher
from experiments.checks import ErrorBudget
from policy.algorithms.algorithms import make_algorithm
from policy.engine.engine import Completion
from policy.learner import Learner
from policy.model import load_model
from policy.rollout.chat import Chat
from policy.rollout.dialogue import roll_out_group
from simulator.reward import resolved
from simulator.users import make_bank, make_user


class OwnPool:
    """Rolls out at once and in this process, with the weights that the learner has."""

    def __init__(self, config, learner, tokenizer, user, bank):
        self.config, self.learner, self.chat, self.user, self.bank = config, learner, Chat(tokenizer), user, bank
        self.done = []

    async def generate(self, prompt_ids, *, sampling, seed):
        chance, ids, logprobs = torch.Generator().manual_seed(seed), list(prompt_ids), []
        while len(logprobs) < sampling.max_tokens and (not logprobs or ids[-1] != self.chat.end_of_turn_id):
            with torch.no_grad():
                logprobs_V = self.learner.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(logprobs_V.exp(), 1, generator=chance)))
            logprobs.append(float(logprobs_V[ids[-1]]))
        sampled = tuple(ids[len(prompt_ids) :])
        reason = "stop" if sampled[-1] == self.chat.end_of_turn_id else "length"
        facts = {"token_ids": sampled, "logprobs": tuple(logprobs), "text": self.chat.decode(sampled)}
        return Completion(**facts, finish_reason=reason, policy_version=self.learner.policy_version)

    def submit(self, tasks, *, lane="", temperature=None):
        async def all_groups():
            talk = {"user": self.user, "generate": self.generate, "chat": self.chat, "config": self.config.rollout}
            talk["reward_terms"] = resolved(self.config.rollout.reward_terms)
            return [await roll_out_group(task, self.bank.scenario(task.scenario_id), **talk) for task in tasks]

        self.done += asyncio.run(all_groups())

    def ready(self, num_groups, *, lane=""):
        taken, self.done = self.done[:num_groups], self.done[num_groups:]
        return taken

    def load_weights(self, weights, version):
        """Nothing to send: there is one copy."""

    def score(self, token_ids):
        return [self.learner.score(token_ids)]

    def abandon(self, lane):
        """Nothing is under way."""

    def close(self):
        """Nobody else does the work."""

    def stats(self):
        counts = ("tokens", "restarts", "dispatched", "lost", "retried", "in_flight")
        return dict.fromkeys((*(f"num_{name}" for name in counts), "rollout_s", "engine_busy_s"), 0.0)

    def user_counts(self, *, timeout_s=None):
        return {}


def parts_in_process(config, folder):
    """What a run is made of, with the policy in `folder`."""
    model, tokenizer = load_model(folder)
    algorithm, bank, user = (
        make_algorithm(config.algorithm),
        make_bank(config.simulator),
        make_user(config.simulator.kind, config.simulator),
    )
    learner = Learner(config.learner, algorithm, model)
    return Components(
        bank=bank,
        user=user,
        teacher=make_teacher(config, bank),
        algorithm=algorithm,
        learner=learner,
        tokenizer=tokenizer,
        pool=OwnPool(config, learner, tokenizer, user, bank),
        collapse=CollapseMonitor(config.collapse),
        faults=ErrorBudget(config.rollout.max_error_share),
    )
