"""The door of this package: `python -m analysis COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.comparisons.options import comparison_options
from analysis.personas.options import persona_options
from simulator.files import ExitCode, ended
from simulator.study_commands import add_study_commands

LOOPBACK = "127.0.0.1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command and runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Look at what runs left.")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="write report.html into the folder of a run or a sweep: verdict, figures, transcripts")
    report.add_argument("run", type=Path, metavar="RUN", help="runs/<experiment>/<name>, of a run or of a sweep with its arms")
    viewer = commands.add_parser("transcripts", help="write transcripts.html into a run's folder: all its dialogues, to filter and search")
    viewer.add_argument("run", type=Path, metavar="RUN", help="the run's folder, runs/<experiment>/<name>")
    viewer.add_argument("--steps", action="store_true", help="with the five steps to each change; takes a while longer")
    tables = commands.add_parser("export", help="add a sweep's finished runs to results.csv and curves.csv of a study")
    tables.add_argument("folder", type=Path, metavar="SWEEP", help="the sweep's folder, runs/<experiment>/<name>")
    tables.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the study's folder, studies/<question>")
    comparison_options(commands.add_parser("compare", help="set the arms of a sweep against each other and write comparison.json"))
    ranking = commands.add_parser("leaderboard", help="evaluated and probed agents beside each other: one HTML page, and a CSV beside it")
    ranking.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="evaluations, or folders that hold them (runs/evaluate)")
    ranking.add_argument("--out", type=Path, metavar="FILE.html", help="the page (leaderboard.html, in the folder where there is one)")
    ranking.add_argument("--seed", type=int, default=0, help="of the draws that ranks are told from (0)")
    board = commands.add_parser("tensorboard", help="start TensorBoard, reachable from this machine only")
    board.add_argument("--logdir", type=Path, default=Path("runs"), help="a run's folder or one that holds runs (default runs)")
    board.add_argument("--port", type=int, default=6006, help="1 to 65535 (default 6006)")
    persona_options(commands.add_parser("persona", help="whether simulated users stay who they are, over turns and by strictness"))
    arguments = sys.argv[1:] if arguments is None else arguments
    of_study = add_study_commands("analysis", parser, commands, arguments)
    options = parser.parse_args(arguments)

    def work() -> int:
        if of_study:
            return of_study(options)
        COMMANDS[options.command](options)
        return ExitCode.FINISHED

    return ended(work, refused=(ValueError, OSError), if_interrupted="interrupted")


def write(options: argparse.Namespace) -> None:
    """Writes the report and says where."""
    from analysis.pages.report import write_report
    from analysis.pages.sweep_report import is_sweep, write_sweep_report

    print(write_sweep_report(options.run) if is_sweep(options.run) else write_report(options.run))


def write_viewer(options: argparse.Namespace) -> None:
    """Writes the transcripts and says where; a report that is there is written again, so that it links to them."""
    from analysis.agents.evaluated import is_evaluation
    from analysis.pages.report import write_report
    from analysis.pages.viewer import write_transcripts
    from analysis.runs import REPORT, read_torn_run

    print(write_transcripts(options.run, steps=options.steps))
    if (options.run / REPORT).is_file() and not is_evaluation(options.run, read_torn_run(options.run).config):
        write_report(options.run)


def export(options: argparse.Namespace) -> None:
    """Adds a sweep's runs to a study's tables and says how many are new."""
    from analysis.comparisons.table import export

    print(export(options.folder, options.out))


def compare(options: argparse.Namespace) -> None:
    """Compares the arms of a sweep, writes the file and prints the tables."""
    from analysis.comparisons.comparison import comparison

    print(comparison(options))


def rank(options: argparse.Namespace) -> None:
    """Writes the leaderboard, says who is not on it, and where it is."""
    from analysis.agents.leaderboard_files import write_leaderboard

    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")
    beside = options.folders[0] if len(options.folders) == 1 and options.folders[0].is_dir() else Path()
    page, table, left_out = write_leaderboard(options.folders, options.out or beside / "leaderboard.html", seed=options.seed)
    print("\n".join([*left_out, str(page), str(table)]))


def judge(options: argparse.Namespace) -> None:
    """Judges simulated users and prints the table."""
    from analysis.personas.persona import persona

    print(persona(options))


def serve(options: argparse.Namespace) -> None:
    """Becomes TensorBoard, so that Ctrl-C ends it and nothing is left behind."""
    command = tensorboard_command(options.logdir, options.port)
    print(f"TensorBoard on http://{LOOPBACK}:{options.port}/#custom_scalars", flush=True)
    os.execv(command[0], command)


def tensorboard_command(logdir: Path, port: int) -> list[str]:
    """The command line of a TensorBoard that only this machine can reach.

    Raises:
        ValueError: there is no such folder, or no such port.
    """
    if not logdir.is_dir():
        raise ValueError(f"logdir must be a folder with runs, got {str(logdir)!r}; there is no such folder")
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be in 1..65535, got {port!r}")
    return [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", LOOPBACK, "--port", str(port)]


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "report": write,
    "transcripts": write_viewer,
    "export": export,
    "compare": compare,
    "leaderboard": rank,
    "tensorboard": serve,
    "persona": judge,
}


if __name__ == "__main__":
    sys.exit(main())
