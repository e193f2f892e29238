"""What a prior's recipe is tuned on: a sixth of the *training* events, left out of its lessons and then played.

Held-out scenarios judge and must not choose, so how well a recipe reads what it was never taught is measured here:
`python -m experiments.set_aside adaptive_curriculum policy.prior.num_tokens=2e6`. Nothing is cached.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.config import ExperimentConfig, load
from experiments.evaluate import grid_tasks, spread
from experiments.keys import ConfigError
from simulator.bank import load_bank
from simulator.dialogue import Dialogue, Outcome
from simulator.drafts import write_whole
from simulator.exit_code import ExitCode, ended
from simulator.scenario import Scenario, Split
from simulator.shown import table_of_shares

ONE_IN = 6
"""Of the training events, one in so many is set aside; by a hash of its name, so that new events move no old ones."""


def is_set_aside(scenario: Scenario) -> bool:
    """Whether the scenario's event is left out of the lessons; all scenarios of an event go the same way."""
    event = scenario.scenario_id.split("/")[1]
    return zlib.crc32(event.encode()) % ONE_IN == 0


def play_unseen(config: ExperimentConfig) -> dict[float, list[Dialogue]]:
    """Teaches a prior without the events set aside and plays these on the evaluation's difficulties, one dialogue each, by strictness."""
    from policy.pool import RolloutPool
    from policy.prior import train_prior
    from simulator.users import make_user

    scenarios = load_bank().scenarios(Split.TRAIN)
    unseen = spread([scenario for scenario in scenarios if is_set_aside(scenario)], config.evaluation.num_scenarios)
    tokenizer, model = train_prior(config.policy.prior, [s for s in scenarios if not is_set_aside(s)], progress=True)
    tasks = grid_tasks(unseen, config.evaluation.strictness)
    make = partial(make_user, config.simulator.kind, config.simulator)
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
        with RolloutPool(
            config.rollout,
            config.policy,
            model_folder=Path(name),
            user_factory=make,
            scenarios=load_bank,
            seed=config.seed,
            cluster=config.cluster,
        ) as pool:
            pool.submit(tasks, temperature=config.evaluation.temperature)
            groups = pool.ready(len(tasks))
    played: dict[float, list[Dialogue]] = {}
    for task, group in zip(tasks, groups, strict=True):
        played.setdefault(task.strictness, []).extend(r.dialogue for r in group.rollouts if r.dialogue.outcome is not Outcome.ERROR)
    return played


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.set_aside", description=__doc__)
    parser.add_argument("experiment", help="whose settings apply")
    parser.add_argument("--dialogues", type=Path, help="JSONL file to keep the dialogues in, as a run's are kept")
    parser.add_argument("overrides", nargs="*", metavar="setting=value", help="dotted settings, e.g. policy.prior.num_tokens=1e6")
    options = parser.parse_intermixed_args(arguments)
    return ended(lambda: play_and_show(options), refused=ConfigError, if_interrupted="interrupted; nothing was left behind")


def play_and_show(options: argparse.Namespace) -> ExitCode:
    """Teaches, plays and prints.

    Raises:
        ConfigError: it cannot be done as asked; nothing was taught.
        RuntimeError: an engine or Ray failed.
    """
    config = load(options.experiment, options.overrides)
    if not config.policy.is_embedded:
        raise ConfigError(f"policy.model must be embedded here, got {config.policy.model!r}: only a prior is taught without some events")
    if options.dialogues and not options.dialogues.parent.is_dir():
        raise ConfigError(f"--dialogues must lie in a folder that exists, got {str(options.dialogues)!r}")
    played = play_unseen(config)
    if options.dialogues:
        records = [{"step": 0, **dialogue.to_dict()} for dialogues in played.values() for dialogue in dialogues]
        write_whole(options.dialogues, "".join(json.dumps(record) + "\n" for record in records))
    rows = {f"{strictness:g}": dialogues for strictness, dialogues in sorted(played.items())}
    rows["all"] = [dialogue for dialogues in played.values() for dialogue in dialogues]
    print(table_of_shares(rows, header="strictness", register=config.simulator.register))
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
