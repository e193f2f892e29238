"""The door of this package: `python -m analysis COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.comparisons.options import comparison_options
from analysis.personas.options import persona_options
from simulator.exit_code import ExitCode, ended

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
    keep = commands.add_parser("keep", help="keep what is small of a sweep's finished runs, and its page, under docs/results/")
    keep.add_argument("folder", type=Path, metavar="FOLDER", help="the sweep's folder, runs/<experiment>/<name>")
    keep.add_argument("--out", type=Path, metavar="FOLDER", help="where to (docs/results/<experiment>/<name>, where the sweep finds them)")
    comparison_options(commands.add_parser("compare", help="set the arms of a sweep against each other and write comparison.json"))
    rlver = commands.add_parser("rlver", help="hold RLVER's findings against a sweep of its table (experiment rlver_matrix)")
    rlver.add_argument("folder", type=Path, metavar="FOLDER", help="the sweep's folder, runs/rlver_matrix/<name>")
    rlver.add_argument("--out", type=Path, metavar="FILE.json", help="default FOLDER/rlver.json")
    law = commands.add_parser("entropy-law", help="fit what reward costs in entropy on the probe panel, for each run and over runs")
    law.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="runs, sweeps, or folders that hold them")
    law.add_argument("--out", type=Path, metavar="FILE.json", help="write every figure there too")
    ranking = commands.add_parser("leaderboard", help="evaluated and probed agents beside each other: one HTML page, and a CSV beside it")
    ranking.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="evaluations, or folders that hold them (runs/evaluate)")
    ranking.add_argument("--out", type=Path, metavar="FILE.html", help="the page (leaderboard.html, in the folder where there is one)")
    ranking.add_argument("--seed", type=int, default=0, help="of the draws that ranks are told from (0)")
    board = commands.add_parser("tensorboard", help="start TensorBoard, reachable from this machine only")
    board.add_argument("--logdir", type=Path, default=Path("runs"), help="a run's folder or one that holds runs (default runs)")
    board.add_argument("--port", type=int, default=6006, help="1 to 65535 (default 6006)")
    fidelity = commands.add_parser("fidelity", help="how faithful the embedded user (preset SAGE) is to recorded users, as JSON")
    fidelity.add_argument("--transcripts", type=Path, required=True, metavar="FOLDER", help="native SAGE result files, plain or gzipped")
    fidelity.add_argument("--profiles", type=Path, required=True, metavar="FILE", help="the native profiles of these dialogues")
    fidelity.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures there too")
    fidelity.add_argument("--bootstrap", type=int, default=1000, help="draws over profiles for the intervals; 0 leaves them out (1000)")
    fidelity.add_argument("--seed", type=int, default=0, help="of these draws (0)")
    persona_options(commands.add_parser("persona", help="whether simulated users stay who they are, over turns and by strictness"))
    options = parser.parse_args(arguments)

    def work() -> int:
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


def keep(options: argparse.Namespace) -> None:
    """Keeps the finished runs of a sweep and says how large they are."""
    from analysis.kept import keep_sweep

    print(keep_sweep(options.folder, options.out))


def compare(options: argparse.Namespace) -> None:
    """Compares the arms of a sweep, writes the file and prints the tables."""
    from analysis.comparisons.comparison import comparison

    print(comparison(options))


def hold_against_rlver(options: argparse.Namespace) -> None:
    """Prints each published finding with its mark, and writes the file."""
    from analysis.comparisons.rlver import hold_against

    print(hold_against(options.folder, out=options.out))


def fit_law(options: argparse.Namespace) -> None:
    """Prints the entropy law of each run and over runs."""
    from analysis.entropy_law import entropy_law
    from simulator.output import check_out

    check_out(options.out)
    print(entropy_law(options.folders, out=options.out))


def rank(options: argparse.Namespace) -> None:
    """Writes the leaderboard, says who is not on it, and where it is."""
    from analysis.agents.leaderboard_files import write_leaderboard

    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")
    beside = options.folders[0] if len(options.folders) == 1 and options.folders[0].is_dir() else Path()
    page, table, left_out = write_leaderboard(options.folders, options.out or beside / "leaderboard.html", seed=options.seed)
    print("\n".join([*left_out, str(page), str(table)]))


def measure_fidelity(options: argparse.Namespace) -> None:
    """Prints the figures of fidelity."""
    from analysis.fidelity import fidelity

    print(fidelity(options))


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
    "keep": keep,
    "compare": compare,
    "entropy-law": fit_law,
    "rlver": hold_against_rlver,
    "leaderboard": rank,
    "tensorboard": serve,
    "fidelity": measure_fidelity,
    "persona": judge,
}


if __name__ == "__main__":
    sys.exit(main())
