"""What a person sees while a run goes on: a line now and then, how long it will take, and a log of it in the run's folder.

A run from its first evaluation to its summary: when to evaluate, to save, to stop, and how to go on after a stop.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil
from tqdm import tqdm

from analysis.report import write_report
from analysis.runs import CONFIG, SUMMARY, read_summary
from analysis.text import with_interval
from analysis.transcripts import CutShort
from experiments.build import Parts, assemble
from experiments.config import ExperimentConfig
from experiments.errors import refusing
from experiments.evaluation import HeldOut, is_due, seconds_of_run, tenth_of
from experiments.preflight import cautions
from experiments.recorder import CHECKPOINTS, Recorder
from experiments.resume import require_records, require_start, require_unmoved, settings_text, stamps_of, write_over
from experiments.run_folder import Interruption, begin, closing_words, only_writer, summarise_run
from experiments.train import LANE, Tally, TrainingRun
from policy.checkpoint import newest_checkpoint, save_checkpoint
from policy.files import why_full
from simulator.files import ExitCode, as_clock
from simulator.llm.config import EndpointConfig
from simulator.version import world_of

LOG = "log.txt"
EVERY = 10
"""Steps between two lines where there is no terminal to draw a bar on."""
BAR = "{bar:20} {desc}"
SHOWN = {
    "reward": "reward/mean",
    "strictness": "curriculum/strictness",
    "density": "curriculum/reward_density",
    "entropy": "actor/entropy",
}
"""Label -> metric of what stands in the line."""


class Progress:
    """Prints to stderr and keeps what it said in the run's `log.txt`.

    Args:
        spent: share of the budget that a resumed run has used before.
    """

    def __init__(self, folder: Path, *, spent: float) -> None:
        self._log = (folder / LOG).open("a", encoding="utf-8")
        self._bar = tqdm(
            total=100, initial=round(100 * spent), bar_format=BAR, leave=False, disable=not sys.stderr.isatty(), dynamic_ncols=True
        )
        self._spent_before, self._began = spent, time.monotonic()

    def note(self, text: str) -> None:
        """What the log alone keeps, where the disk takes it: what there is to say, a full disk for one, is said all the same."""
        with suppress(OSError):
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._log.flush()

    def say(self, text: str) -> None:
        """A message for the person, kept in the log."""
        self.note(text)
        # Whoever reads may be gone (a pipe, a terminal); the log has it, and a run does not end for that before it has saved.
        with suppress(OSError):
            tqdm.write(text, file=sys.stderr)

    def step(self, step: int, metrics: Mapping[str, float], *, spent: float) -> None:
        """One step is done, and so much of the budget with it."""
        shown = "  ".join(f"{label} {metrics[key]:.2f}" for label, key in SHOWN.items() if key in metrics)
        line = f"step {step:>4}  {spent:>4.0%}  {shown}  {self.left(spent)} left"
        if self._bar.disable and step % EVERY == 0:
            self.say(line)
        self._bar.set_description_str(line, refresh=False)
        self._bar.update(round(100 * spent) - self._bar.n)

    def left(self, spent: float) -> str:
        """How long the rest of the budget will take at the pace so far, as m:ss; a question mark before there is a pace."""
        if spent <= self._spent_before:
            return "?"
        pace_s = (time.monotonic() - self._began) / (spent - self._spent_before)
        return as_clock(pace_s * max(1.0 - spent, 0.0))

    def close(self) -> None:
        """Ends the line and the log."""
        self._bar.close()
        with suppress(OSError):
            self._log.close()


EARLIER = "summary.earlier.json"
"""What a run had come to before it was given a larger budget."""
MOST_SECONDS_FOR_COST = 5.0
"""How long a run that stops waits for workers to say what their users cost."""


def run(config: ExperimentConfig, folder: Path, *, to_go_on: str = "") -> ExitCode:
    """Trains from the start, or from the newest whole checkpoint in `folder`.

    Args:
        to_go_on: the words after `python -m experiments` that go on with a run which ended early; empty for those that resume the folder.

    Raises:
        ConfigError: the model or the engine turned out not to work; nothing was left behind. Or another process writes this run or went
            on with it meanwhile, it lacks records of its past, or the weights that it began with and still needs are gone.
        KeyboardInterrupt: somebody stopped it before its folder was begun.
    """
    torn: list[str] = []
    stamps = stamps_of(folder)
    if config.resume:
        require_start(config, folder)
    with refusing():
        parts, saved = assemble(config, checkpoint=newest_checkpoint(folder, on_torn=torn.append) if config.resume else None)
    tally = Tally(**saved) if saved else Tally()
    to_go_on = to_go_on or f"{config.experiment} resume={folder}"
    has_begun = False
    try:
        with Interruption() as interruption, contextlib.closing(parts.pool):
            send_first_weights(parts)
            text = settings_text(config, folder)
            if interruption.requested:
                raise KeyboardInterrupt
            begin(folder, text, must_be_new=not config.resume)
            has_begun = True
            with only_writer(folder):
                if config.resume:
                    require_unmoved(folder, stamps)
                    require_records(folder, step=tally.step, num_looks=tally.num_looks)
                write_over(folder / CONFIG, text)
                if (folder / SUMMARY).is_file():
                    # A larger budget: while it goes on the run has not ended, and what it came to before is not lost.
                    (folder / SUMMARY).replace(folder / EARLIER)
                if ended_at(folder / EARLIER) == tally.step:
                    # The evaluation at its end is in no checkpoint: a small one in its place keeps that point of the curve.
                    tally.tenth = -1
                loop = RunLoop(config, folder, parts, tally, interruption)
                return loop.run(to_go_on=to_go_on, torn=torn)
    except KeyboardInterrupt:
        if not has_begun:
            raise
        print(f"interrupted; to go on: python -m experiments {to_go_on}", file=sys.stderr)
        return ExitCode.INTERRUPTED


def ended_at(earlier: Path) -> int | None:
    """The step with which a run ended before it was given a larger budget; None where it was given none, or nobody can tell."""
    try:
        summary = read_summary(earlier)
    except (ValueError, OSError):
        return None
    return None if summary is None else summary.get("steps")


def has_price(config: ExperimentConfig) -> bool:
    """Whether a call of the simulated users costs money, as far as the settings say."""
    user = config.simulator
    return isinstance(user, EndpointConfig) and max(user.price_prompt, user.price_completion) > 0.0


def send_first_weights(parts: Parts) -> None:
    """Gives the engines the weights that training begins with.

    Raises:
        ConfigError: an engine does not know them: it cannot sample by this model.
    """
    with refusing():
        parts.pool.load_weights(parts.learner.live_weights(), parts.learner.policy_version)


class RunLoop:
    """What happens around the steps of one run."""

    def __init__(self, config: ExperimentConfig, folder: Path, parts: Parts, tally: Tally, interruption: Interruption) -> None:
        self.config, self.folder, self.parts, self.tally, self.interruption = config, folder, parts, tally, interruption
        self.recorder = Recorder(folder, cut_after=(tally.step, tally.num_looks) if config.resume else None)
        self.training = TrainingRun(config, parts, self.recorder, tally)
        self.progress = Progress(folder, spent=self.training.spent())
        self.heldout = HeldOut(
            config.evaluation,
            parts.bank,
            callbacks=config.callbacks.values(),
            max_error_share=config.rollout.max_error_share,
            should_stop=lambda: interruption.requested,
        )
        self._saved: tuple[int, int] | None = None
        self._told_cut_short: set[str] = set()
        self._marked_wall_s, self._marked_cpu_s = time.monotonic(), cpu_seconds()

    def run(self, *, to_go_on: str, torn: Sequence[str] = ()) -> ExitCode:
        """Steps until the budget is spent, something fails or somebody interrupts.

        Args:
            torn: why newer checkpoints than the one it goes on from were passed over.
        """
        self.progress.say(f"{'continues' if self.config.resume else 'writes'} {self.folder} after step {self.tally.step}")
        for caution in cautions(self.config):
            self.progress.say(caution)
        for reason in torn:
            self.progress.say(f"SKIPPED a newer checkpoint: {reason}")
        code = ExitCode.INTERRUPTED
        try:
            self.train()
            self.save()
            self.parts.pool.abandon(LANE)
            if self.training.spent() >= 1.0 and self.look(full=True):
                self.finish()
                code = ExitCode.FINISHED
        except (RuntimeError, OSError) as error:
            self.progress.say(f"stopped in step {self.tally.step + 1}: {why_full(error, self.folder) or error}")
            self.progress.note(traceback.format_exc())
            code = ExitCode.FAILED
        except KeyboardInterrupt:
            self.progress.say(f"abandoned step {self.tally.step + 1}")
        finally:
            if code is not ExitCode.FINISHED:
                self.progress.say(f"to go on: python -m experiments {to_go_on}")
                self.say_cost(" so far", timeout_s=MOST_SECONDS_FOR_COST)
            self.progress.close()
            self.recorder.close()
        return code

    def train(self) -> None:
        """Steps, with an evaluation at every tenth of the budget and a checkpoint now and then."""
        while not self.interruption.requested:
            if is_due(self.training.spent(), latest=self.tally.tenth):
                self.look(full=self.tally.num_looks == 0)
            if self.tally.step % self.config.checkpoint.every == 0 and not self.interruption.requested:
                self.save()
            if self.training.spent() >= 1.0 or self.interruption.requested:
                return
            metrics, alarms = self.training.step()
            if self.tally.step == 1 and self.tally.policy_tokens:
                whole_s = seconds_of_run(self.config, metrics, num_tokens=self.tally.policy_tokens)
                self.progress.say(f"the first step took {as_clock(metrics['timing_s/step'])}; the whole run about {as_clock(whole_s)}")
            self.progress.step(self.tally.step, metrics, spent=self.training.spent())
            for reason in self.training.parts.learner.why_skipped:
                self.progress.say(f"SKIPPED an optimiser step in step {self.tally.step}: {reason}")
            self.say_cut_short(self.training.cut_short, of="training dialogues")
            for alarm in alarms:
                self.progress.say(f"ALARM {alarm.name} at step {alarm.step}: {alarm.message}")

    def look(self, *, full: bool) -> bool:
        """Evaluates; False when somebody interrupted, which leaves no trace."""
        started = time.monotonic()
        summary = self.heldout.play(self.parts.pool, self.recorder, tally=self.tally, full=full)
        if summary is None:
            return False
        self.tally.num_looks += 1
        self.tally.tenth = tenth_of(self.training.spent())
        played = f"{summary['n_dialogues']} dialogues in {time.monotonic() - started:.0f} s"
        self.progress.say(f"step {self.tally.step:>4}  held-out {with_interval(summary)}  {played}")
        self.say_cut_short(self.heldout.cut_short, of="held-out dialogues")
        return True

    def say_cut_short(self, cut_short: CutShort, *, of: str) -> None:
        """Warns of a score, or of rewards, that are those of dialogues whose context was full; once of each kind."""
        if not cut_short.is_much or of in self._told_cut_short:
            return
        self._told_cut_short.add(of)
        rollout = self.config.rollout
        bounds = {"context": f"rollout.max_context={rollout.max_context}", "reply": f"rollout.max_new_tokens={rollout.max_new_tokens}"}
        self.progress.say(f"WARNING at step {self.tally.step}: {cut_short.share:.0%} of the {of} were {cut_short.words(**bounds)}")

    def save(self) -> None:
        """Writes a checkpoint, unless there is one of just this moment."""
        moment = (self.tally.step, self.tally.num_looks)
        if self._saved == moment:
            return
        self.mark_time()
        self.training.count_cost()
        parts = self.parts
        state = {
            "run": {**asdict(self.tally), "in_flight": self.training.ahead.records()},
            "learner": parts.learner.state_dict(),
            "teacher": parts.teacher.state_dict(),
            "collapse": parts.collapse.state_dict(),
            "faults": parts.faults.state_dict(),
        }
        folder = self.folder / CHECKPOINTS / f"step_{self.tally.step}"
        self.recorder.flush()
        save_checkpoint(folder, model=parts.learner.model, tokenizer=parts.tokenizer, state=state, keep=self.config.checkpoint.keep)
        self._saved = moment

    def say_cost(self, when: str = "", *, timeout_s: float | None = None) -> None:
        """What the simulated users cost, evaluations among it, where they have a price.

        Args:
            timeout_s: of workers that may be stuck; without their answer it is what they had said before. None waits, as a step would.
        """
        if timeout_s is None:
            self.training.count_cost()
        elif has_price(self.config) or self.tally.simulator_cost:
            # Whatever is wrong with the workers has been said.
            with contextlib.suppress(Exception):
                self.training.count_cost(timeout_s=timeout_s)
        if cost := self.tally.simulator_cost:
            prices = ", by simulator.price_prompt and simulator.price_completion" if has_price(self.config) else ""
            self.progress.say(f"the simulated users cost {cost:.2f}{when}{prices}")

    def mark_time(self) -> None:
        """Adds the time since the last mark to the tally."""
        wall_s, cpu_s = time.monotonic(), cpu_seconds()
        self.tally.wall_s += wall_s - self._marked_wall_s
        self.tally.cpu_s += max(cpu_s - self._marked_cpu_s, 0.0)
        self._marked_wall_s, self._marked_cpu_s = wall_s, cpu_s

    def finish(self) -> None:
        """Writes the summary and the report, and says how it went and where it lies."""
        self.mark_time()
        config, tally = self.config, self.tally
        self.say_cost()
        facts = {
            "experiment": config.experiment,
            "name": config.name,
            "seed": config.seed,
            "steps": tally.step,
            "wall_s": tally.wall_s,
            "cpu_s": tally.cpu_s,
            "policy_tokens": tally.policy_tokens,
            "simulator_calls": tally.simulator_calls,
            **({"simulator_cost": tally.simulator_cost} if tally.simulator_cost else {}),
            "world": world_of(config.simulator),
            "algorithm": config.algorithm.kind,
            "teacher": config.teacher.kind,
            "errors": self.parts.faults.counts(),
        }
        reference = self.heldout.reference(self.parts.user, max_turns=config.rollout.max_turns)
        summary = summarise_run(self.folder, facts=facts, reference=reference, alarms=tally.alarms)
        for callback in config.callbacks.values():
            summary |= callback.at_end(self.training, summary)
        self.recorder.summary(summary)
        self.progress.say(closing_words(summary, folder=self.folder, report=self.report(), runs=config.runs))

    def report(self) -> Path | None:
        """The page of the run, which has ended well also where its page cannot be made: then None, and why is said."""
        try:
            return write_report(self.folder)
        except Exception as error:  # noqa: BLE001 (whatever broke, the run is over and its summary written)
            self.progress.say(f"no report: {error}")
            self.progress.note(traceback.format_exc())
            return None


def cpu_seconds() -> float:
    """CPU time of this process and of all that it started and that still live."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
