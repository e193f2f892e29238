"""A teacher and its users for any trainer: dialogues stepped from outside, and groups whose rollouts come home one by one.

Tickets and results are JSON, for other processes. Nothing here imports a framework.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from curriculum import TEACHERS
from curriculum.signals import reward_density, zero_variance_share
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, UpdateStats, require_same
from curriculum.teacher import Teacher, whole
from simulator import episode
from simulator.dialogue import Outcome, UserSimulator
from simulator.listener import ListenerKind, Register
from simulator.reward import final_emotion, turn_rewards
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.settings import message
from simulator.world import Bank, load_bank

T = TypeVar("T")
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Strictnesses of an evaluation."""
FEWEST_DIALOGUES = 20
"""The least number of dialogues of which `max_broken` is a share."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A dialogue to play: all that another process needs of a task, or a fixed one for evaluation. JSON by `to_dict`."""

    uid: str
    scenario_id: str
    difficulty: Difficulty
    seed: int
    """All siblings of a task have the same, so that they differ in the agent's replies and nothing else."""
    learned: bool = True
    """False for a group that is played so that the teacher may score it; a trainer leaves it out of its batch."""

    @classmethod
    def of(cls, task: TaskSpec) -> Ticket:
        """That of a teacher's task."""
        learned = task.mode is not Mode.UNLEARNED
        return cls(uid=task.uid, scenario_id=task.scenario_id, difficulty=task.difficulty, seed=task.seed, learned=learned)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Ticket:
        """The inverse of `to_dict`."""
        return cls(**{**record, "difficulty": Difficulty(**record["difficulty"])})


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is left of a dialogue that is over. JSON by `to_dict`."""

    reward: float
    """The last emotion over 100, or what a host makes of it, in [0, 1]; NaN for a dialogue that broke."""
    turn_rewards: tuple[float, ...] = ()
    """Change of emotion after each reply over 10, in [-1, 1]."""
    num_tokens: int = 0
    """That the policy sampled."""
    num_cut: int = 0
    """Replies that ran out of tokens."""
    status: Status = Status.OK
    error: str = ""
    """The traceback of a dialogue that broke."""

    def __post_init__(self) -> None:
        reward, status = math.nan if self.reward is None else float(self.reward), Status(self.status)
        if not (math.isnan(reward) or 0.0 <= reward <= 1.0):
            raise ValueError(f"a result's reward must be in [0, 1], or NaN for a dialogue that broke, got {reward!r}")
        if not all(math.isfinite(change) for change in self.turn_rewards):
            raise ValueError(f"a result's turn_rewards must be finite, got {self.turn_rewards!r}")
        broke = math.isnan(reward) or status is Status.SIMULATOR_ERROR
        object.__setattr__(self, "reward", math.nan if broke else reward)
        object.__setattr__(self, "status", Status.SIMULATOR_ERROR if broke else status)

    @property
    def broke(self) -> bool:
        """Whether it has no reward, and must enter no baseline."""
        return self.status is Status.SIMULATOR_ERROR

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record, whose reward is None for a dialogue that broke; `from_dict` reads it."""
        return {
            **asdict(self),
            "reward": None if self.broke else self.reward,
            "turn_rewards": list(self.turn_rewards),
            "status": str(self.status),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Result:
        """The inverse of `to_dict`."""
        return cls(**{**record, "turn_rewards": tuple(record.get("turn_rewards", ()))})


class Episode(episode.Episode):
    """One dialogue with a simulated user. A user that breaks ends it without a reward; whoever steps it sees no exception.

    Args:
        ticket: a ticket, or a teacher's task.
        max_turns: replies after which it ends.
    """

    def __init__(self, user: UserSimulator, ticket: Ticket | TaskSpec, bank: Bank, *, max_turns: int = 8) -> None:
        super().__init__(user, bank.scenario(ticket.scenario_id), ticket.difficulty, seed=ticket.seed, max_turns=max_turns)
        self.ticket, self.num_tokens, self.num_cut = ticket, 0, 0

    async def open(self) -> str | None:  # type: ignore[override]
        """The user's first words; None where the user broke."""
        return await self._caught(super().open())

    async def reply(self, text: str, *, num_tokens: int = 0, is_cut: bool = False) -> str | None:
        """The user's answer; None when the dialogue is over.

        Args:
            num_tokens: of the reply, for the teacher's records.
            is_cut: whether it ran out of tokens, for `metrics`.
        """
        if not isinstance(text, str):
            raise TypeError(f"a reply must be a text, got {type(text).__name__}")
        if self.over or not self.dialogue.turns:
            raise RuntimeError("a dialogue must be under way; call open first, and reply until it returns None")
        self.num_tokens += num_tokens
        self.num_cut += is_cut
        return await self._caught(super().reply(text))

    def result(self) -> Result:
        """Of a dialogue that is over."""
        if not self.over:
            raise RuntimeError("a dialogue must be over before it has a result; call reply until it returns None, or cut_off")
        outcome = self.dialogue.outcome
        return Result(
            reward=math.nan if outcome is Outcome.ERROR else final_emotion(self.dialogue).total,
            turn_rewards=tuple(turn_rewards(self.dialogue)),
            num_tokens=self.num_tokens,
            num_cut=self.num_cut,
            status=Status.TRUNCATED if outcome is Outcome.TRUNCATED else Status.OK,
            error=self.dialogue.error,
        )

    async def _caught(self, words: Coroutine[Any, Any, str | None]) -> str | None:
        try:
            return await words
        except Exception:  # noqa: BLE001 - the one boundary where a user's failure becomes data
            self.end(Outcome.ERROR, error=traceback.format_exc())
            return None


class Session:
    """A teacher and its users, for a trainer that is not Attune's.

    Per update a host calls `propose`, plays every task `group_size` times by `episode`, hands each result to `finish` (in any order, late,
    or never), and calls `updated`. The teacher hears of whole groups together: once no task is open, or at the next of these calls.

    Args:
        teacher: its kind; `python -m curriculum teachers` lists them.
        user: how the embedded user hears, `rule` or `encoder`, or a simulated user of your own.
        group_size: rollouts a task, at least 2.
        max_turns: replies a dialogue.
        num_updates: of the whole run, for teachers that pace entropy; 0 if unknown.
        seed: of all that the teacher leaves to chance.
        bank: scenarios; the built-in world's by default.
        max_staleness: updates after which an unfinished task is given up.
        max_broken: share of an update's dialogues that may break before `finish` raises; of several updates where one has fewer than 20.
        settings: of the teacher, by name.

    Raises:
        ValueError: no such teacher, setting or listener, or the listener's package is missing.
    """

    def __init__(
        self,
        teacher: str = "frontier",
        *,
        user: str | UserSimulator = "rule",
        group_size: int = 8,
        max_turns: int = 8,
        num_updates: int = 0,
        seed: int = 0,
        bank: Bank | None = None,
        max_staleness: int = 16,
        max_broken: float = 0.2,
        **settings: Any,
    ) -> None:
        if teacher not in TEACHERS:
            raise ValueError(f"teacher must be one of {', '.join(TEACHERS)}, got {teacher!r}")
        self.bank, self.user, self.group_size = bank or built_in_world(), make_user(user), group_size
        self.max_turns = whole("max_turns", max_turns, least=1)
        self.num_updates, self._max_staleness = whole("num_updates", num_updates, least=0), whole("max_staleness", max_staleness, least=0)
        self.user_name = user if isinstance(user, str) else type(user).__name__
        config_class, teacher_class = TEACHERS[teacher]
        try:
            config = config_class(**settings)
        except ValidationError as error:
            raise ValueError(message(error, "teacher")) from None
        scenarios = {family: ids for family, ids in self.bank.by_family(Split.TRAIN).items() if ids}
        self.teacher: Teacher = teacher_class(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self._version, self._max_broken = 0, max_broken
        self._open: dict[str, tuple[TaskSpec, list[Result]]] = {}
        self._whole: list[tuple[TaskSpec, list[Result]]] = []
        self._rewards: list[tuple[float, ...]] = []
        self._spread: dict[str, float] = {}
        self._counts = dict.fromkeys(("dialogues", "broken", "missing", "ignored", "replies", "replies_cut"), 0)
        self._lately = {"dialogues": 0, "broken": 0}

    @property
    def policy_version(self) -> int:
        """The highest seen."""
        return self._version

    @property
    def waiting(self) -> tuple[str, ...]:
        """The uids of tasks that are not home yet."""
        return tuple(self._open)

    def propose(self, num_groups: int, *, policy_version: int = 0) -> list[TaskSpec]:
        """The next tasks, each to be played `group_size` times.

        Args:
            policy_version: updates that the policy has had; one older than before, which asynchronous trainers give, counts as the latest.
        """
        self._version = max(self._version, policy_version)
        self._tell()
        tasks = self.teacher.propose(num_groups, policy_version=self._version)
        self._open.update((task.uid, (task, [])) for task in tasks)
        return tasks

    def episode(self, ticket: Ticket | TaskSpec) -> Episode:
        """A dialogue of a task, to be stepped."""
        return Episode(self.user, ticket, self.bank, max_turns=self.max_turns)

    def heldout(self, num_scenarios: int, strictness: Sequence[float] = GRID) -> list[Ticket]:
        """Fixed dialogues with users whom no teacher ever issues, for evaluation: each scenario at each strictness."""
        return fixed_tickets(self.bank, Split.HELDOUT, num_scenarios, strictness)

    def finish(self, uid: str, result: Result) -> bool:
        """Takes in one rollout of a task; True where that made its group whole.

        A rollout of a task that is not open (never issued, whole already, given up) is counted and ignored.

        Raises:
            RuntimeError: more dialogues broke than `max_broken`; it ends with why the last one did.
        """
        if not isinstance(result, Result):
            raise TypeError(f"what a rollout brings must be a Result, got {type(result).__name__}")
        if uid not in self._open:
            self._counts["ignored"] += 1
            return False
        task, results = self._open[uid]
        results.append(result)
        for counts in (self._counts, self._lately):
            counts["dialogues"] += 1
            counts["broken"] += result.broke
        self._counts["replies"] += len(result.turn_rewards)
        self._counts["replies_cut"] += result.num_cut
        is_whole = len(results) == task.group_size
        if is_whole:
            self._settle(uid)
        num, num_broken = self._lately["dialogues"], self._lately["broken"]
        if result.broke and num >= FEWEST_DIALOGUES and num_broken > self._max_broken * num:
            why = result.error.strip().rpartition("\n")[2] or "no reason was given"
            raise RuntimeError(f"{num_broken} of the last {num} dialogues broke; the latest because: {why}")
        return is_whole

    def close(self, uid: str) -> None:
        """No more rollouts of this task will come; the teacher hears of those that did. What is missing does not count as broken."""
        if uid not in self._open:
            self._counts["ignored"] += 1
            return
        task, results = self._open[uid]
        num_missing = task.group_size - len(results)
        results += [Result(reward=math.nan)] * num_missing
        self._counts["missing"] += num_missing
        self._settle(uid)

    def updated(
        self, policy_version: int, *, entropy: float | None = None, entropy_sampled: float | None = None, kl: float | None = None
    ) -> None:
        """The policy was updated with a batch of dialogues. What was not measured is left out; tasks that are too old are given up.

        Args:
            policy_version: updates that the policy has had, this one among them.
            entropy: mean over agent tokens, nats.
            entropy_sampled: mean of -logprob of the sampled tokens, nats; taken for `entropy` where that is not given.
            kl: to the reference policy, nats.
        """
        self._version = max(self._version, policy_version)
        self._tell()
        entropy, entropy_sampled, kl = (math.nan if value is None else float(value) for value in (entropy, entropy_sampled, kl))
        self._spread = {
            "reward_density": reward_density(self._rewards),
            "zero_variance_share": zero_variance_share(self._rewards).total,
        }
        stats = UpdateStats(
            policy_version=self._version,
            entropy=entropy_sampled if math.isnan(entropy) else entropy,
            entropy_sampled=entropy_sampled,
            reward_density=self._spread["reward_density"],
            zero_variance_share=self._spread["zero_variance_share"],
            kl=kl,
            budget_fraction=min(self._version / self.num_updates, 1.0) if self.num_updates else math.nan,
        )
        self.teacher.on_update(stats)
        self._rewards = []
        if self._lately["dialogues"] >= FEWEST_DIALOGUES:
            self._lately = {"dialogues": 0, "broken": 0}
        stale = [uid for uid, (task, _) in self._open.items() if self._version - task.policy_version > self._max_staleness]
        for uid in stale:
            del self._open[uid]
        self.teacher.expire(stale, reason=f"older than {self._max_staleness} updates")

    def metrics(self) -> dict[str, float]:
        """The teacher's; how rewards differed within groups before the last update; and counts of dialogues and replies."""
        spread = {f"curriculum/{name}": value for name, value in self._spread.items()}
        return {**self.teacher.metrics(), **spread, **{f"session/{name}": float(count) for name, count in self._counts.items()}}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, groups that are half played among it; JSON-able and exact."""
        opened, whole_groups = (
            [[task.to_dict(), [result.to_dict() for result in results]] for task, results in groups]
            for groups in (self._open.values(), self._whole)
        )
        rewards = [[None if math.isnan(reward) else reward for reward in group] for group in self._rewards]
        return {
            **self._identity(),
            "teacher": self.teacher.state_dict(),
            "open": opened,
            "whole": whole_groups,
            "spread": {name: None if math.isnan(value) else value for name, value in self._spread.items()},
            "rewards": rewards,
            "version": self._version,
            "counts": dict(self._counts),
            "lately": dict(self._lately),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; ValueError for that of another teacher, user, group size or number of turns."""
        require_same("session state", state, self._identity())
        self.teacher.load_state_dict(state["teacher"])
        opened, self._whole = (
            [(TaskSpec.from_dict(task), [Result.from_dict(each) for each in results]) for task, results in groups]
            for groups in (state["open"], state["whole"])
        )
        self._open = {task.uid: (task, results) for task, results in opened}
        self._spread = {name: math.nan if value is None else value for name, value in state["spread"].items()}
        self._rewards = [tuple(math.nan if reward is None else reward for reward in group) for group in state["rewards"]]
        self._version, self._counts, self._lately = state["version"], dict(state["counts"]), dict(state["lately"])

    def require_one_by_one(self) -> None:
        """ValueError for teachers that need proposals in batches or groups that are not trained on, which some hosts do not offer."""
        if self.teacher.plans_by_proposal or getattr(self.teacher.config, "robust", False):
            raise ValueError(
                f"teacher must be one that takes proposals one by one and learns from every group, got {self.teacher.kind!r}, "
                "whose plan counts proposals or which plays groups that are not trained on"
            )

    def _identity(self) -> dict[str, Any]:
        return {"user": self.user_name, "max_turns": self.max_turns}

    def _settle(self, uid: str) -> None:
        """Moves a group from the open ones to the whole ones."""
        task, results = self._open.pop(uid)
        self._whole.append((task, results))
        if task.mode is not Mode.UNLEARNED:
            self._rewards.append(tuple(result.reward for result in results))
        if not self._open:
            self._tell()

    def _tell(self) -> None:
        """Tells the teacher of the whole groups, together, as some teachers make a step for each batch observed."""
        solved_at, groups, self._whole = self.teacher.config.success_emotion / 100.0, self._whole, []
        if groups:
            self.teacher.observe(
                [
                    GroupOutcome(
                        task=task,
                        rewards=tuple(result.reward for result in results),
                        successes=tuple(result.reward >= solved_at for result in results),
                        num_tokens=tuple(result.num_tokens for result in results),
                        statuses=tuple(result.status for result in results),
                    )
                    for task, results in groups
                ]
            )


def fixed_tickets(bank: Bank, split: Split, num_scenarios: int, strictness: Sequence[float] = GRID) -> list[Ticket]:
    """Each of the first scenarios of a split at each strictness; ValueError where there are fewer."""
    scenarios = bank.scenarios(split)
    whole("num_scenarios", num_scenarios, least=1)
    if num_scenarios > len(scenarios):
        raise ValueError(f"num_scenarios must be at most the {len(scenarios)} of split {split}, got {num_scenarios}")
    return [
        Ticket(uid=f"{scenario.scenario_id}@{d:g}", scenario_id=scenario.scenario_id, difficulty=Difficulty.along(d), seed=number)
        for number, scenario in enumerate(scenarios[:num_scenarios])
        for d in strictness
    ]


def make_user(user: str | UserSimulator) -> UserSimulator:
    """The built-in user with this listener, or the user itself."""
    if not isinstance(user, str):
        return user
    if user not in (ListenerKind.RULE, ListenerKind.ENCODER):
        raise ValueError(f"user must be 'rule', 'encoder' or a simulated user, got {user!r}")
    made = RuleUser(RuleUserConfig(register=Register.OPEN, listener=ListenerKind(user)))
    _ = made.listener  # the encoder loads now, so that what it lacks is said at once
    return made


@cache
def user_of_process(user: str) -> UserSimulator:
    """One user for all dialogues of a process."""
    return make_user(user)


@cache
def built_in_world() -> Bank:
    """The scenarios, read once."""
    return load_bank()


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine for a host without an event loop; in a notebook, whose thread has one, in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
