"""What is known of a sweep before its first run: what its overrides lose, what is there already, and why it would be refused."""

from __future__ import annotations

from analysis.runs import setting
from analysis.sweeps import run_folders, seed_of
from experiments.catalogue import path_of
from experiments.cautions import lost_settings
from experiments.config import compose, laid_over, parse_overrides, read_experiment, read_yaml
from experiments.keys import ConfigError
from experiments.one_writer import check_no_writer
from experiments.preflight import check_needs, check_writable
from experiments.same_run import TornRun, refuse_other
from experiments.sweep_input import OWN, unreached
from experiments.sweep_plan import Cell, Sweep
from experiments.teaching import check_teacher


def check_no_writers(sweep: Sweep) -> None:
    """Refuses a sweep of which another process writes a run.

    Raises:
        ConfigError: there is one.
    """
    for cell in sweep.cells():
        check_no_writer(sweep.run_folder(cell))


def lost_by_words(sweep: Sweep) -> list[str]:
    """What its overrides lose of the file's settings, by choosing another algorithm or user, and which arms they do not reach."""
    given = {name: value for name, value in parse_overrides(sweep.words).items() if name not in OWN}
    missed = [
        f"{name}={setting(given, name)} does not go to {', '.join(arms)}, which set it themselves or have a kind of their own"
        for name, arms in unreached(sweep.base, sweep.arms, given).items()
    ]
    file = read_yaml(path_of(sweep.experiment))
    before = laid_over(read_experiment(file["base"]), file.get("settings") or {})
    try:
        configs = [compose(base, {}, experiment=sweep.experiment) for base in (before, sweep.base)]
    except ConfigError:
        # Without what only its arms say it is no whole configuration.
        return missed
    return [*missed, *lost_settings(*configs, called=sweep.experiment)]


def refused_arms(sweep: Sweep) -> dict[str, str]:
    """By arm that has runs to make, why its teacher cannot teach them here: known before hours are spent on the others.

    A teacher that copies another run is not asked: there is nothing to copy yet.
    """
    refused = {}
    for arm in sweep.arms:
        cell = next((cell for cell in sweep.cells() if cell.arm == arm and not sweep.is_done(cell)), None)
        if cell is None or sweep.needs(cell):
            continue
        try:
            check_teacher(sweep.config(cell))
        except ConfigError as error:
            refused[arm] = f"arm {arm}: {error}."
    return refused


def torn_runs(sweep: Sweep) -> dict[Cell, str]:
    """By run whose folder cannot be read, what is wrong with it; the others go on.

    Raises:
        ConfigError: a run that is there, asked for or not, is not the one that the sweep would make.
    """
    torn, whole = {}, sweep.whole()
    asked = dict.fromkeys(sweep.cells())
    for cell in (*asked, *begun_before(sweep)):
        try:
            refuse_other(whole, cell)
        except TornRun as error:
            if cell in asked:
                torn[cell] = str(error)
    return torn


def begun_before(sweep: Sweep) -> list[Cell]:
    """Runs in the sweep's folder that were not asked for now, of arms that the file has."""
    asked = set(sweep.cells())
    if not sweep.folder.is_dir():
        return []
    try:
        begun = [Cell(folder.parent.name, seed_of(folder)) for folder in run_folders(sweep.folder)]
    except ValueError:  # it holds no run yet
        return []
    return [cell for cell in begun if cell.arm in sweep.file_arms and cell not in asked]


def check_place(sweep: Sweep) -> None:
    """Refuses a sweep whose first run that is left could not be written or would not find its model, its users or its room here.

    Raises:
        ConfigError: as `check_writable` and `check_needs` do.
    """
    check_writable(sweep.folder, called="runs")
    first = next((cell for cell in sweep.cells() if not sweep.is_done(cell)), None)
    if first is not None:
        check_needs(sweep.config(first))
