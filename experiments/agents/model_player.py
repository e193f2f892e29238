"""A dialogue of an agent whose weights are here: an engine in this process, and tokens kept as in a run's own rollouts."""

from __future__ import annotations

from pathlib import Path

from experiments.agents.players import Played
from experiments.agents.speech import Speech, chat_for, engine_for
from experiments.evaluate import EvaluationTask
from policy.engine.engine import Engine
from policy.model import no_progress_bars
from policy.rollout.dialogue import Conduct, roll_out, sampling_seed
from simulator.scenario import Scenario
from simulator.user import UserSimulator


class ModelPlayer:
    """Plays a model by an engine of its own.

    Raises:
        ValueError: the model cannot be loaded or its chat template cannot be used.
        RuntimeError: the engine did not start.
    """

    def __init__(self, folder: Path, speech: Speech, user: UserSimulator, *, seed: int) -> None:
        self._speech, self._user, self._seed = speech, user, sampling_seed(seed, 0, 0)
        with no_progress_bars():
            self.engine: Engine = engine_for(speech, folder)
        self._chat = chat_for(speech, self.engine.tokenizer)
        self._num_tokens = 0

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> Played:
        """One dialogue, with what a run's own evaluation would have made of it: its limits, its endings, its form of thoughts."""
        rollout = await roll_out(
            scenario,
            task.difficulty,
            task.seed,
            user=self._user,
            generate=self.engine.generate,
            chat=self._chat,
            config=self._speech.rollout,
            # The sampling seeds follow from the task's, the sibling's and the turn's numbers; the run's seed sets the sibling apart.
            sibling=self._seed % 2**31 + sibling,
            conduct=Conduct(temperature=self._speech.temperature),
        )
        self._num_tokens += rollout.num_sampled
        thoughts = tuple(thought.text for thought in rollout.thoughts)
        return Played(task=task, sibling=sibling, dialogue=rollout.dialogue, thoughts=thoughts)

    def counts(self) -> dict[str, float]:
        """Tokens it sampled."""
        return {"completion_tokens": float(self._num_tokens)}

    async def close(self) -> None:
        """Stops the engine."""
        self.engine.close()
