"""`python -m analysis COMMAND`; `--help` lists the commands and imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from simulator.files import ExitCode, ended
from simulator.options import finite, server_options
from simulator.study_commands import add_study_commands

Work = Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command and runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Look at finished and running runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    works = {name: add(commands.add_parser(name, help=words)) for name, (words, add) in COMMANDS.items()}
    arguments = sys.argv[1:] if arguments is None else arguments
    of_study = add_study_commands("analysis", parser, commands, arguments)
    options = parser.parse_args(arguments)

    def work() -> int:
        if of_study:
            return of_study(options)
        works[options.command](options)
        return ExitCode.FINISHED

    return ended(work, refused=(ValueError, OSError), if_interrupted="interrupted")


def report(parser: argparse.ArgumentParser) -> Work:
    """Writes the report of a run or a sweep."""
    parser.add_argument("run", type=Path, metavar="RUN", help="runs/<experiment>/<name>, of a run or of a sweep with its arms")

    def work(options: argparse.Namespace) -> None:
        from analysis.report import write_report
        from analysis.sweep_report import is_sweep, write_sweep_report

        print(write_sweep_report(options.run) if is_sweep(options.run) else write_report(options.run))

    return work


def transcripts(parser: argparse.ArgumentParser) -> Work:
    """Writes the transcripts; a report that is there is written again, so that it links to them."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, runs/<experiment>/<name>")
    parser.add_argument("--steps", action="store_true", help="with the five steps to each change; takes a while longer")

    def work(options: argparse.Namespace) -> None:
        from analysis.evaluated import is_evaluation
        from analysis.report import write_report
        from analysis.runs import CONFIG, REPORT, read_config
        from analysis.transcripts import write_transcripts

        print(write_transcripts(options.run, steps=options.steps))
        if (options.run / REPORT).is_file() and not is_evaluation(options.run, read_config(options.run / CONFIG)):
            write_report(options.run)

    return work


def export(parser: argparse.ArgumentParser) -> Work:
    """Adds a sweep's runs to a study's tables."""
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="the sweep's folder, runs/<experiment>/<name>")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the study's folder, studies/<question>")

    def work(options: argparse.Namespace) -> None:
        from analysis.sweeps import export

        print(export(options.folder, options.out))

    return work


def contrast(text: str) -> tuple[str, str]:
    """Two arms, from `A:B`.

    Raises:
        ArgumentTypeError: they are not two.
    """
    a, colon, b = text.partition(":")
    if not (a and colon and b) or a == b:
        raise argparse.ArgumentTypeError(f"must name two arms as A:B, got {text!r}")
    return a, b


def seeds(text: str) -> range:
    """The seeds from the first to the last, from `FIRST-LAST` or one seed.

    Raises:
        ArgumentTypeError: they are not such.
    """
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last.isdecimal() or text == first) or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"must be FIRST-LAST or one seed, got {text!r}")
    return range(int(first), int(last or first) + 1)


def compare(parser: argparse.ArgumentParser) -> Work:
    """Compares the arms of a sweep, writes the file and prints the tables."""
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="a sweep's folder, with runs as <arm>/seed_<n>, or a results.csv")
    parser.add_argument(
        "--contrast",
        action="append",
        type=contrast,
        default=[],
        metavar="A:B",
        help="arm A less arm B; several make the family for Holm. B may be a pattern such as 'fixed_*': the best arm that fits. "
        "Default: the sweep's plan; without one, those of the comparison that is there, frontier against every other arm, or every pair",
    )
    parser.add_argument("--primary", metavar="ENDPOINT", help="the number of summary.json that decides (the plan's, else heldout.auc)")
    parser.add_argument("--seeds", type=seeds, metavar="FIRST-LAST", help="only runs with these seeds, such as 0-4; default all")
    parser.add_argument("--threshold", type=float, help="emotion, 0-100, whose first reaching is timed (the plan's, else 60)")
    parser.add_argument("--bootstrap-seed", type=int, default=0, help="of the intervals that are resampled (0)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.json",
        help="default SWEEP/comparison.json, unless the sweep has a plan and this is something else; of a results.csv none",
    )

    def work(options: argparse.Namespace) -> None:
        from analysis.compare import comparison

        print(comparison(options))

    return work


def leaderboard(parser: argparse.ArgumentParser) -> Work:
    """Writes the leaderboard, prints which agents are not on it, and its path."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="evaluations, or folders that hold them (runs/evaluate)")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page (leaderboard.html, in the folder where there is one)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws that intervals of ranks rest on (0)")

    def work(options: argparse.Namespace) -> None:
        from analysis.leaderboard import write_leaderboard

        if options.seed < 0:
            raise ValueError(f"--seed must be at least 0, got {options.seed}")
        folder = options.folders[0] if len(options.folders) == 1 and options.folders[0].is_dir() else Path()
        page, table, left_out = write_leaderboard(options.folders, options.out or folder / "leaderboard.html", seed=options.seed)
        print("\n".join([*left_out, str(page), str(table)]))

    return work


def persona(parser: argparse.ArgumentParser) -> Work:
    """Judges simulated users and prints the table."""
    parser.description = (
        "Whether simulated users stay who they are: each line against the card and against earlier lines, questions about themselves, "
        "leaks of their wish, over turns and by strictness, with 95 % intervals over scenarios."
    )
    source = parser.add_argument_group("whose lines").add_mutually_exclusive_group(required=True)
    source.add_argument("--dialogues", type=Path, metavar="PATH", help="a run's folder, or a JSONL file of dialogues as runs write them")
    source.add_argument("--play", type=int, metavar="N", help="N fresh dialogues of the embedded user with scripted agents of mixed skill")
    which = parser.add_argument_group("which of them")
    which.add_argument("--evaluation", action="store_true", help="of a run's folder the held-out dialogues, not those of training")
    which.add_argument("--num", type=int, default=200, help="dialogues drawn from the file, all if it has fewer (default 200)")
    which.add_argument(
        "--strictness", type=finite, nargs="+", default=[0.1, 0.35, 0.55, 0.75, 0.95], help="with --play: scalar difficulties, [0, 1]"
    )
    which.add_argument("--reserve", type=finite, nargs="+", help="with --play: reserve instead of the one of strictness, [0, 1]")
    which.add_argument("--split", choices=("train", "heldout"), default="train", help="with --play: whose scenarios (train)")
    which.add_argument("--seed", type=int, default=0, help="of draws, play, options' order and intervals (default 0)")
    who = parser.add_argument_group("who plays and who judges")
    who.add_argument("--user", choices=("rule", "llm"), help="who played them (default: as the run's config.yaml says, else rule)")
    who.add_argument(
        "--judge",
        choices=("rule", "llm"),
        help="a plain rule, or a model (default: the model if one is named or one played, else the rule)",
    )
    who.add_argument("--quiz-every", type=int, default=1, metavar="N", help="ask at every N-th line (default 1); 0 asks nothing")
    server_options(parser, "judge", "the model that judges")
    title = "the model that played the user, to be asked about itself (default: as config.yaml says)"
    server_options(parser, "user", title, no_key="without it that of config.yaml, and none at another --user-url")
    parser.add_argument("--cache", default="default", help="folder of answers of models (default as in runs; off keeps none)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON to this file")

    def work(options: argparse.Namespace) -> None:
        from analysis.persona import persona

        print(persona(options))

    return work


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], Work]]] = {
    "report": ("write report.html into the folder of a run or a sweep: verdict, figures, transcripts", report),
    "transcripts": ("write transcripts.html into a run's folder: all its dialogues, to filter and search", transcripts),
    "export": ("add a sweep's finished runs to results.csv and curves.csv of a study", export),
    "compare": ("set the arms of a sweep against each other and write comparison.json", compare),
    "leaderboard": ("evaluated and probed agents in one HTML page, with a CSV", leaderboard),
    "persona": ("whether simulated users stay who they are, over turns and by strictness", persona),
}
"""Help of each command, and the function that adds its options and returns its work."""


if __name__ == "__main__":
    sys.exit(main())
