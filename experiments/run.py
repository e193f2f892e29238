"""A run from its first evaluation to its summary: when to evaluate, to save and to stop, and how to resume."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import ClassVar

from tqdm import tqdm

from analysis.judged import SECOND, gap_alarm
from analysis.report import write_report
from analysis.runs import CONFIG, EVALUATION, SUMMARY, read_lines, read_summary
from analysis.text import with_interval
from analysis.transcripts import CutShort
from experiments.build import Components, build
from experiments.config import ExperimentConfig
from experiments.errors import refusing
from experiments.evaluation import HeldOutEvaluation, cut_short, seconds_of_run
from experiments.prefetch import LANE
from experiments.preflight import warnings
from experiments.recorder import CHECKPOINTS, Recorder
from experiments.resume import check_initial_weights, check_records
from experiments.run_folder import closing_words, settings_text, summarise_run
from experiments.run_lock import Interruption, begin, only_writer
from experiments.run_state import RunState
from experiments.second_listener import SecondListener, keep_replies, second_user
from experiments.train import TrainingRun
from policy.checkpoint import newest_checkpoint, save_checkpoint
from policy.files import why_full
from simulator.files import ExitCode, as_clock
from simulator.rule_user import RuleUser
from simulator.settings import setting
from simulator.user import endpoint_of
from simulator.version import world_of


def run(config: ExperimentConfig, folder: Path, *, to_resume: str = "") -> ExitCode:
    """Trains from the start, or from the newest whole checkpoint in `folder`.

    Args:
        to_resume: the words after `python -m experiments` that resume the run; by default those with `resume=`.

    Raises:
        ConfigError: the model or the engine does not work, and nothing was left behind; another process writes this run; or it lacks
            records or weights of its past.
        KeyboardInterrupt: it was interrupted before its folder was begun.
    """
    torn: list[str] = []
    to_resume = to_resume or f"{config.experiment} resume={folder}"
    has_begun = bool(config.resume)
    try:
        with ExitStack() as stack:
            interruption = stack.enter_context(Interruption())
            if config.resume:
                stack.enter_context(only_writer(folder))
                check_initial_weights(config, folder)
            with refusing():
                components, saved = build(config, checkpoint=newest_checkpoint(folder, on_torn=torn.append) if config.resume else None)
                stack.enter_context(contextlib.closing(components))
                components.pool.load_weights(components.learner.live_weights(), components.learner.policy_version)
            state = RunState(**saved) if saved else RunState()
            text = settings_text(config, folder)
            if interruption.requested:
                raise KeyboardInterrupt
            if config.resume:
                check_records(folder, step=state.step, num_evaluations=state.num_evaluations)
                # A run that has ended and got a larger budget counts as unfinished. Its last evaluation is in no checkpoint: a small one
                # is played in its place, which keeps that point of the curve.
                earlier = folder / "summary.earlier.json"
                if (folder / SUMMARY).is_file():
                    (folder / SUMMARY).replace(earlier)
                if earlier.is_file() and (read_summary(earlier) or {}).get("steps") == state.step:
                    state.budget_decile = -1
                (folder / CONFIG).write_text(text, encoding="utf-8")  # in place: the lock lies on it
            else:
                begin(folder, text, must_be_new=True)
                has_begun = True
                stack.enter_context(only_writer(folder))
            return RunLoop(config, folder, components, state, interruption).run(to_resume=to_resume, torn=torn)
    except KeyboardInterrupt:
        if not has_begun:
            raise
        print(f"interrupted; to resume: python -m experiments {to_resume}", file=sys.stderr)
        return ExitCode.INTERRUPTED


class RunLoop:
    """The evaluations, checkpoints and messages around the steps of a run."""

    def __init__(self, config: ExperimentConfig, folder: Path, components: Components, state: RunState, interruption: Interruption) -> None:
        self.config, self.folder, self.components, self.state, self.interruption = config, folder, components, state, interruption
        self.recorder = Recorder(folder, cut_after=(state.step, state.num_evaluations) if config.resume else None)
        self.training = TrainingRun(config, components, self.recorder, state)
        self.recorder.listeners += [partial(callback.on_metrics, self.training) for callback in config.callbacks.values()]
        self.progress = Progress(folder, fraction=self.training.budget_fraction())
        second = second_user(config.simulator, config.second_listener, config.evaluation.server)
        self._second_world = world_of(second) if second else ""
        self.heldout = HeldOutEvaluation(
            config.evaluation,
            components.bank,
            callbacks=config.callbacks.values(),
            max_error_share=config.rollout.max_error_share,
            should_stop=lambda: interruption.requested,
            second=SecondListener(RuleUser(second)) if second else None,
        )
        self._saved: tuple[int, int] | None = None
        self._warned_cut_short: set[str] = set()
        asked = endpoint_of(config.simulator)
        self._has_price = asked is not None and max(asked.price_prompt, asked.price_completion) > 0.0

    def run(self, *, to_resume: str, torn: Sequence[str] = ()) -> ExitCode:
        """Steps to the end of the budget, a failure or an interrupt; `torn` says why newer checkpoints were skipped."""
        self.progress.say(f"{'continues' if self.config.resume else 'writes'} {self.folder} after step {self.state.step}")
        for message in (*warnings(self.config), *(f"SKIPPED a newer checkpoint: {reason}" for reason in torn)):
            self.progress.say(message)
        code = ExitCode.INTERRUPTED
        try:
            self.train()
            self.save()
            self.components.pool.abandon(LANE)
            if self.training.budget_fraction() >= 1.0 and self.evaluate(full=True):
                self.finish()
                code = ExitCode.FINISHED
        except (RuntimeError, OSError) as error:
            self.progress.say(f"stopped in step {self.state.step + 1}: {why_full(error, self.folder) or error}")
            self.progress.note(traceback.format_exc())
            code = ExitCode.FAILED
        except KeyboardInterrupt:
            self.progress.say(f"abandoned step {self.state.step + 1}")
        finally:
            if code is not ExitCode.FINISHED:
                self.progress.say(f"to resume: python -m experiments {to_resume}")
                if self._has_price or self.state.simulator_cost:
                    with suppress(Exception):  # the reason why workers do not answer was reported
                        self.training.usage.count_cost(timeout_s=5.0)
                self.say_cost(" so far")
            self.progress.close()
            self.recorder.close()
        return code

    def train(self) -> None:
        """Steps, with an evaluation before training and in every tenth of the budget, and regular checkpoints."""
        while not self.interruption.requested:
            fraction = self.training.budget_fraction()
            if self.heldout.decile(fraction) != self.state.budget_decile and fraction < 1.0:
                self.evaluate(full=self.state.num_evaluations == 0)
            if self.state.step % self.config.checkpoint.every == 0 and not self.interruption.requested:
                self.save()
            if fraction >= 1.0 or self.interruption.requested:
                return
            metrics, alarms = self.training.step()
            if self.state.step == 1 and self.state.policy_tokens:
                whole_s = seconds_of_run(self.config, metrics, num_tokens=self.state.policy_tokens)
                self.progress.say(f"the first step took {as_clock(metrics['timing_s/step'])}; the whole run about {as_clock(whole_s)}")
            self.progress.step(self.state.step, metrics, fraction=self.training.budget_fraction())
            for reason in self.components.learner.why_skipped:
                self.progress.say(f"SKIPPED an optimiser step in step {self.state.step}: {reason}")
            dialogues = [rollout.dialogue for group in self.training.latest for rollout in group.rollouts]
            self.warn_cut_short(cut_short(dialogues), of="training dialogues")
            for alarm in alarms:
                self.progress.say(f"ALARM {alarm.name} at step {alarm.step}: {alarm.message}")

    def evaluate(self, *, full: bool) -> bool:
        """Plays the held-out grid; False when it was interrupted, which leaves no record."""
        started = time.monotonic()
        summary = self.heldout.play(self.components.pool, self.recorder, state=self.state, full=full)
        if summary is None:
            return False
        self.state.num_evaluations += 1
        self.state.budget_decile = self.heldout.decile(self.training.budget_fraction())
        played = f"{summary['n_dialogues']} dialogues in {time.monotonic() - started:.0f} s"
        self.progress.say(f"step {self.state.step:>4}  held-out {with_interval(summary)}  {played}")
        self.warn_cut_short(self.heldout.cut_short, of="held-out dialogues")
        if self.heldout.why_unheard:
            self.progress.say(f"WARNING at step {self.state.step}: {self.heldout.why_unheard}")
        if self._second_world and (alarm := gap_alarm(read_lines(self.folder / EVALUATION))):
            self.state.alarms.append(asdict(alarm))
            self.recorder.alarm(alarm.step, f"**{alarm.name}**: {alarm.message}")
            self.progress.say(f"ALARM {alarm.name} at step {alarm.step}: {alarm.message}")
        return True

    def warn_cut_short(self, found: CutShort, *, of: str) -> None:
        """Warns once that many dialogues ended because their context was full."""
        if not found.is_much or of in self._warned_cut_short:
            return
        self._warned_cut_short.add(of)
        rollout = self.config.rollout
        bounds = {"context": f"rollout.max_context={rollout.max_context}", "reply": f"rollout.max_new_tokens={rollout.max_new_tokens}"}
        self.progress.say(f"WARNING at step {self.state.step}: {found.share:.0%} of the {of} were {found.words(**bounds)}")

    def save(self) -> None:
        """Writes a checkpoint, unless this moment has one."""
        moment = (self.state.step, self.state.num_evaluations)
        if self._saved == moment:
            return
        self.training.usage.count_time()
        self.training.usage.count_cost()
        components = self.components
        state = {
            "run": {**asdict(self.state), "in_flight": self.training.prefetcher.records()},
            "learner": components.learner.state_dict(),
            "teacher": components.teacher.state_dict(),
            "collapse": components.collapse.state_dict(),
            "faults": components.errors.state_dict(),
        }
        self.recorder.flush()
        save_checkpoint(
            self.folder / CHECKPOINTS / f"step_{self.state.step}",
            model=components.learner.model,
            model_state=components.learner.model_state(),
            tokenizer=components.tokenizer,
            state=state,
            keep=self.config.checkpoint.keep,
        )
        self._saved = moment

    def say_cost(self, when: str = "") -> None:
        """Reports the cost of the simulated users, where they have a price."""
        if cost := self.state.simulator_cost:
            prices = ", by simulator.price_prompt and simulator.price_completion" if self._has_price else ""
            self.progress.say(f"the simulated users cost {cost:.2f}{when}{prices}")

    def finish(self) -> None:
        """Writes the summary and the report, and prints the result."""
        self.training.usage.count_time()
        self.training.usage.count_cost()
        self.say_cost()
        config, state = self.config, self.state
        facts = {
            "experiment": config.experiment,
            "name": config.name,
            "seed": config.seed,
            "steps": state.step,
            "wall_s": state.wall_s,
            "cpu_s": state.cpu_s,
            "policy_tokens": state.policy_tokens,
            "simulator_calls": state.simulator_calls,
            **({"simulator_cost": state.simulator_cost} if state.simulator_cost else {}),
            "world": world_of(config.simulator),
            **({SECOND: self._second_world} if self._second_world else {}),
            "algorithm": config.algorithm.kind,
            "teacher": config.teacher.kind,
            "errors": self.components.errors.counts(),
        }
        reference = self.heldout.reference(self.components.user, max_turns=config.rollout.max_turns)
        summary = summarise_run(self.folder, facts=facts, reference=reference, alarms=state.alarms)
        self.recorder.scalars(state.step, {"eval/auc": float(setting(summary, "heldout.auc", math.nan))})
        for name, callback in config.callbacks.items():
            try:
                summary |= callback.at_end(self.training, summary)
            except Exception as error:  # noqa: BLE001 (the run is over; it keeps its summary)
                self.progress.say(f"callbacks.{name} left nothing in the summary: {error}")
                self.progress.note(traceback.format_exc())
        self.recorder.summary(summary)
        if self._second_world or not config.policy.is_embedded:
            keep_replies(self.folder, seed=config.seed)
        report = None
        try:
            report = write_report(self.folder)
        except Exception as error:  # noqa: BLE001 (the run is over and its summary written)
            self.progress.say(f"no report: {error}")
            self.progress.note(traceback.format_exc())
        self.progress.say(closing_words(summary, folder=self.folder, report=report, runs=config.runs))


class Progress:
    """Prints to stderr, and keeps messages in the run's `log.txt`; `fraction` of the budget was used before a resume."""

    SHOWN: ClassVar = {
        "reward": "reward/mean",
        "strictness": "curriculum/strictness",
        "density": "curriculum/reward_density",
        "entropy": "actor/entropy",
    }
    """Label -> metric on the line."""

    def __init__(self, folder: Path, *, fraction: float) -> None:
        self._log = (folder / "log.txt").open("a", encoding="utf-8")
        self._bar = tqdm(
            total=100,
            initial=round(100 * fraction),
            bar_format="{bar:20} {desc}",
            leave=False,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        self._fraction_before, self._began = fraction, time.monotonic()

    def note(self, text: str) -> None:
        """A message for the log alone; a full disk does not stop a run here."""
        with suppress(OSError):
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._log.flush()

    def say(self, text: str) -> None:
        """A message for terminal and log; a closed terminal does not stop a run."""
        self.note(text)
        with suppress(OSError):
            tqdm.write(text, file=sys.stderr)

    def step(self, step: int, metrics: Mapping[str, float], *, fraction: float) -> None:
        """Shows a step, the fraction of the budget used, and the time that the rest takes at the pace so far."""
        left = "?"
        if fraction > self._fraction_before:
            pace_s = (time.monotonic() - self._began) / (fraction - self._fraction_before)
            left = as_clock(pace_s * max(1.0 - fraction, 0.0))
        shown = "  ".join(f"{label} {metrics[key]:.2f}" for label, key in self.SHOWN.items() if key in metrics)
        line = f"step {step:>4}  {fraction:>4.0%}  {shown}  {left} left"
        if self._bar.disable and step % 10 == 0:
            self.say(line)
        self._bar.set_description_str(line, refresh=False)
        self._bar.update(round(100 * fraction) - self._bar.n)

    def close(self) -> None:
        """Closes the bar and the log."""
        self._bar.close()
        with suppress(OSError):
            self._log.close()
