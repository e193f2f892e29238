"""The reliability probe inside a run: what training cost in facts, beside what it gained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.callbacks import Callback

if TYPE_CHECKING:
    from experiments.agents.questions import Question, Verdicts
    from experiments.callbacks import Run
    from experiments.config import ExperimentConfig


@dataclass
class ReliabilityProbe(Callback):
    """At the end of a run, asks the weights of its start and of its end questions of fact; `reliability` in summary and report.

    They answer greedily, with the run's system prompt and limits, by transformers in the driver's process, on a GPU where there is one,
    which must have room for them beside learner and engines. Larger models are better asked after the run (`experiments reliability`).
    """

    needs_start = True

    questions: str
    """File of the questions, as for `experiments reliability --questions`."""

    def check(self, config: ExperimentConfig) -> None:
        """Refuses the embedded policy, which knows no facts of the world, and a file that is none."""
        from experiments.agents.questions import read_questions

        if config.policy.is_embedded:
            raise ValueError("callbacks.reliability must be left out for the embedded policy, which knows no facts of the world")
        read_questions(Path(self.questions))

    def at_end(self, run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The model of the last checkpoint against the one that training began with."""
        from experiments.agents.questions import questions_hash, read_questions
        from experiments.agents.reliability import change_table
        from experiments.build import model_folder
        from experiments.recorder import CHECKPOINTS

        questions = read_questions(Path(self.questions))
        newest = run.recorder.folder / CHECKPOINTS / f"step_{run.state.step}"
        before, after = (ask(run.config, folder, questions) for folder in (model_folder(run.config), newest))
        return {"reliability": {"hash": questions_hash(questions), **change_table(before, after, seed=run.config.seed)}}


def ask(config: ExperimentConfig, folder: Path, questions: list[Question]) -> Verdicts:
    """The answers of the model in a folder, graded.

    Raises:
        RuntimeError: a question got no usable answer.
    """
    from experiments.agents.reliability import ask_engine
    from policy.config import EngineConfig, EngineKind
    from policy.engine.factory import make_engine
    from policy.model import no_progress_bars
    from simulator.tokens import Chat

    policy, rollout = config.policy, config.rollout
    settings = EngineConfig(engine=EngineKind.HF, dtype=policy.dtype, thinking=policy.thinking, keep_thoughts=policy.keep_thoughts)
    with no_progress_bars():
        engine = make_engine(settings, folder, max_context=rollout.max_context)
    chat = Chat(engine.tokenizer, policy.system_prompt, thinking=policy.thinking, keep_thoughts=policy.keep_thoughts)
    try:
        verdicts, _, complaint = asyncio.run(ask_engine(engine, chat, questions, max_tokens=rollout.max_new_tokens))
    finally:
        engine.close()
    if len(verdicts) < len(questions):
        raise RuntimeError(f"{len(questions) - len(verdicts)} of {len(questions)} questions got no usable answer: {complaint}")
    return verdicts
