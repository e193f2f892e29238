"""Attune's users as a verifiers environment: a taskset of fixed dialogues, the env that plays them, and a chat harness in this process.

    vf-eval attune_users --env.agent.runtime.type subprocess -n 3 -r 3 --no-push

A teacher has no place here: environments run in other processes. Under prime-rl it chooses the tasks (`attune_rl.prime_rl`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from attune_rl.hosts import SYSTEM_PROMPT, require_version

require_version("verifiers", "0.4")

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

from attune_rl.session import GRID, Episode, Ticket, built_in_world, fixed_tickets, user_of_process
from simulator.scenario import Split


class UsersConfig(vf.TasksetConfig):
    """Whom the agent meets."""

    split: Literal["train", "heldout"] = "heldout"
    num_scenarios: int = 24
    strictness: tuple[float, ...] = GRID
    user: Literal["rule", "encoder"] = "rule"
    """How users understand replies."""
    max_turns: int = 8


class UserData(vf.TaskData):
    """A dialogue to play."""

    ticket: dict[str, Any]
    user: str = "rule"
    max_turns: int = 8


class UserTask(vf.Task[UserData]):
    """A dialogue whose reward is the user's last emotion over 100."""

    @property
    def key(self) -> str:
        """The ticket's uid."""
        return str(self.data.ticket["uid"])

    @vf.reward
    async def emotion(self, trace: vf.Trace) -> float:
        """In [0, 1]. A dialogue without a result is an error of its trace, and never the emotion at the start."""
        return float(trace.info["attune"]["reward"])


class AttuneUsers(vf.Taskset[UserTask, UsersConfig]):
    """Every scenario at every strictness."""

    def load(self) -> Iterator[UserTask]:
        """The tasks, in the same order each time."""
        config = self.config
        for ticket in fixed_tickets(built_in_world(), Split(config.split), config.num_scenarios, config.strictness):
            yield UserTask(task_data(ticket, user=config.user, max_turns=config.max_turns), config.task)


class AttuneEnv(vf.SingleAgentEnv):
    """Plays the user of a task. Results travel in `trace.info`: all of it as `attune`, and its `turn_rewards`."""

    async def run(self, task: UserTask, agents: vf.Agents) -> None:
        """One dialogue."""
        data = task.data
        episode = Episode(user_of_process(data.user), Ticket.from_dict(data.ticket), built_in_world(), max_turns=data.max_turns)
        async with agents.agent.interaction(task) as interaction:
            heard = await episode.open()
            while heard is not None:
                segment = await interaction.turn(heard)
                if segment.terminated:  # a limit was reached or the model broke; the trace says which
                    if interaction.trace.is_timeout:
                        raise TimeoutError("the model did not answer in time")
                    if not (interaction.trace.errors or episode.dialogue.num_replies):
                        raise RuntimeError("a limit was reached before the first reply")
                    episode.cut_off()
                    break
                heard = await episode.reply(segment.last_reply)
            if episode.dialogue.error:
                raise RuntimeError(f"the simulated user broke: {episode.dialogue.error}")
            if not interaction.trace.errors:  # `ok` is true only once the trace is closed
                interaction.trace.info["attune"] = episode.result().to_dict()
                interaction.trace.info["turn_rewards"] = list(episode.result().turn_rewards)


class ChatConfig(vf.HarnessConfig):
    """Settings of `ChatHarness`: none of its own."""

    id: str = "attune_users"


class ChatHarness(vf.Harness[ChatConfig]):
    """One model call a turn, in this process: the built-in chat harness starts a Python of its own for every turn."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> ProgramResult:
        """Asks the model for the next reply."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=[*messages, *map(message_to_wire, prompt)])
        return ProgramResult(exit_code=0, stdout="", stderr="")


def task_data(ticket: Ticket, *, user: str = "rule", max_turns: int = 8) -> UserData:
    """A ticket as the data of a task, which the user opens."""
    return UserData(prompt=None, system_prompt=SYSTEM_PROMPT, ticket=ticket.to_dict(), user=user, max_turns=max_turns)


__all__ = ["AttuneEnv", "AttuneUsers", "ChatHarness"]
