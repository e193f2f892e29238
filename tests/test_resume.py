"""A resumed run goes on from its own past: its folder, lock, checkpoint, records, users and first weights are those it was begun with."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from made_sweep import made_result
from policy_factories import tiny_model, tiny_tokenizer
from test_preflight import write_users
from tiny_policy import save_tiny_policy

from analysis.runs import CONFIG, COPIED, EARLIER_COMMITS, EVALUATION, METRICS, TEACHER, digest_of_tasks, read_lines
from experiments.__main__ import main
from experiments.callbacks import CALLBACKS, Callback
from experiments.config import load, load_saved, to_plain, to_yaml
from experiments.errors import ConfigError
from experiments.preflight import check
from experiments.recorder import Recorder
from experiments.resume import check_initial_weights, check_records, check_resumable, contents_of_users, differences, other_users
from experiments.run_folder import settings_text
from experiments.run_lock import begin, check_no_writer, only_writer
from policy.checkpoint import save_checkpoint
from policy.files import fingerprint
from simulator import user as users
from simulator.version import world_name


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """Resumes a run in vain; returns the sentence."""

    def refused(*arguments: str) -> str:
        assert main(["smoke", *arguments]) == 2
        out, message = capsys.readouterr()
        assert out == "" and message.startswith("error: ") and message.count("\n") == 1
        return message.removeprefix("error: ").strip()

    return refused


def make_saved_run(folder: Path, *overrides: str, experiment: str = "smoke", **provenance: object) -> Path:
    """The folder of a run before its first step."""
    folder.mkdir(parents=True)
    config = load(experiment, [f"runs={folder.parent.parent}", *overrides])
    (folder / CONFIG).write_text(to_yaml(config, {"format": 2, "world": world_name(), **provenance}))
    return folder


def records(folder: Path, *, steps: int, evaluations: int) -> Path:
    """The streams of a run with so many steps and evaluations."""
    recorder = Recorder(folder)
    for step in range(1, steps + 1):
        recorder.metrics(step, {"reward/mean": 0.5})
    for number in range(evaluations):
        recorder.evaluation(number, [{"look": number}])
    recorder.close()
    return folder


# The folder ---------------------------------------------------------------------------------------------------------------------


def test_a_run_is_resumed_by_its_name_or_its_folder_and_not_by_a_file(capsys, tmp_path, write):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    (folder / METRICS).touch()  # it never finished a step, and begins again
    for resume in ("a", folder):
        assert main(["smoke", "--dry-run", f"runs={tmp_path}", f"resume={resume}"]) == 0
        assert f"continues {folder}" in capsys.readouterr().out
    write("base: smoke\nresume: earlier\n")
    assert main(["made", "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith("error: resume must be given with the command")


def test_another_folder_experiment_world_or_version_is_refused(refused, tmp_path):
    assert f"{tmp_path}/smoke/gone" in refused(f"runs={tmp_path}", "resume=gone")
    other = make_saved_run(tmp_path / "adaptive_curriculum" / "a", experiment="adaptive_curriculum")
    assert "a run of adaptive_curriculum" in refused(f"resume={other}")
    elsewhere = make_saved_run(tmp_path / "smoke" / "b", world="0123")
    assert "world '0123'" in refused(f"resume={elsewhere}")
    old = make_saved_run(tmp_path / "smoke" / "c")
    saved = yaml.safe_load((old / CONFIG).read_text())
    del saved["provenance"]["format"]
    (old / CONFIG).write_text(yaml.safe_dump(saved))
    assert "of 0.1" in refused(f"resume={old}")


def test_overrides_of_a_resumed_run_are_of_its_kinds_and_not_of_those_of_its_file(refused, tmp_path):
    make_saved_run(tmp_path / "smoke" / "7", "teacher.kind=yoked", f"teacher.trace={tmp_path}/before")
    message = refused(f"runs={tmp_path}", "resume=7", f"teacher.trace={tmp_path}/now", "--dry-run")
    assert message.startswith("teacher.trace must ") and f"{tmp_path}/now" in message


def test_a_run_that_used_its_budget_up_needs_a_larger_one(tmp_path):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    for tokens, steps in ((1000, 2), (500, 4)):
        (folder / "summary.json").write_text(json.dumps({"policy_tokens": tokens, "steps": steps}))
        with pytest.raises(ConfigError, match=rf"^resume must .* {steps} steps and {tokens:,} policy tokens; .*budget"):
            check_resumable(load("smoke", ["budget.policy_tokens=1000", "budget.steps=4"]), folder)
        check_resumable(load("smoke", ["budget.policy_tokens=2000", "budget.steps=8"]), folder)
    (folder / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"summary\.json"):
        check_resumable(load("smoke"), folder)


# Checkpoint and records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("torn", "why"), [(False, "there is none"), (True, "manifest.json")])
def test_a_run_with_steps_and_no_whole_checkpoint_is_refused_and_keeps_its_records(refused, tmp_path, torn, why):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    (folder / METRICS).write_text('{"step": 1}\n{"step": 2}\n')
    if torn:
        (folder / "checkpoints" / "step_2").mkdir(parents=True)
    for options in ([], ["--dry-run"]):
        message = refused(f"runs={tmp_path}", "resume=a", *options)
        assert message.startswith("resume must name a run with a whole checkpoint") and "at step 2" in message and why in message
    assert (folder / METRICS).read_text().count("\n") == 2
    place = folder / "checkpoints" / "step_3"  # whole, and beyond its records
    save_checkpoint(place, model=tiny_model(), tokenizer=tiny_tokenizer(), state={"run": {}})
    assert refused(f"runs={tmp_path}", "resume=a", "--dry-run").startswith(f"{folder / METRICS} must reach step 3")


def test_records_must_reach_the_checkpoint_and_may_reach_beyond_it(tmp_path):
    check_records(tmp_path, step=0, num_evaluations=0)  # a run that begins again
    cases = {(2, 2): METRICS, (0, 2): METRICS, (3, 1): EVALUATION, (3, 0): EVALUATION, (3, 2): None, (5, 4): None}
    for (steps, evaluations), lacking in cases.items():
        folder = records(tmp_path / f"{steps}-{evaluations}", steps=steps, evaluations=evaluations)
        with pytest.raises(ConfigError, match=f"{lacking} must reach ") if lacking else nullcontext():
            check_records(folder, step=3, num_evaluations=2)


# First weights ------------------------------------------------------------------------------------------------------------------


@dataclass
class LooksBack(Callback):
    """Needs the weights before training."""

    needs_start = True


def test_a_run_whose_first_weights_were_exchanged_is_refused_where_it_still_needs_them(tmp_path, monkeypatch):
    monkeypatch.setitem(CALLBACKS, "looks_back", LooksBack)
    model = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    needing = ("algorithm.kl_coef=0.01", "policy.lora.rank=4", "callbacks.looks_back={}")
    (tmp_path / CONFIG).write_text(to_yaml(load("smoke"), {"initial_policy": fingerprint(model)}), encoding="utf-8")
    configs = {word: load("smoke", [f"policy.model={model}", word]) for word in ("seed=1", *needing)}
    check_initial_weights(configs[needing[0]], tmp_path)
    save_tiny_policy(model, hidden=64, layers=1)
    check_initial_weights(configs["seed=1"], tmp_path)
    for word in needing:
        with pytest.raises(ConfigError, match=rf"^policy\.model must .*{word.removesuffix('={}')}"):
            check_initial_weights(configs[word], tmp_path)


# Users --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run of a model as user on two files of profiles, before its first step."""
    files = {"profiles": write_users(tmp_path / "train.jsonl", 0, 4), "heldout_profiles": write_users(tmp_path / "held.jsonl", 4, 6)}
    words = ["simulator.kind=llm", "simulator.urls=[http://127.0.0.1:9]", "simulator.model=m"]
    words += [f"simulator.{name}={path}" for name, path in files.items()]
    contents = users.contents_of(load("smoke", words).simulator)
    return make_saved_run(tmp_path / "runs" / "smoke" / "a", *words, **{**contents, "world": "open-2"})


def test_other_users_in_a_file_are_refused_before_any_work_starts(begun, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.preflight.check_needs", lambda config: pytest.fail("it looked for what it needs"))
    for file, setting in (("held", "simulator.heldout_profiles"), ("train", "simulator.profiles")):
        write_users(tmp_path / f"{file}.jsonl", 6, 9)
        with pytest.raises(ConfigError, match=f"^{setting} must hold the users"):
            check(load_saved(begun / CONFIG), begun, resuming=True)


def test_a_file_that_is_gone_is_asked_for_and_one_that_moved_is_taken(refused, begun, tmp_path):
    words = (f"runs={begun.parents[1]}", f"resume={begun}", "--dry-run")
    (tmp_path / "train.jsonl").rename(tmp_path / "elsewhere.jsonl")
    assert refused(*words).startswith("simulator.profiles must hold the users")
    # Nothing is wrong with the moved file: then the server is refused, which does not answer.
    assert refused(*words, f"simulator.profiles={tmp_path}/elsewhere.jsonl").startswith("simulator.urls must")


@pytest.mark.parametrize(
    ("key", "words", "named"),
    [
        ("numbers_hash", ["simulator.preset=sage"], "simulator.preset=sage"),
        ("prompts_hash", ["simulator.kind=llm", "simulator.urls=[http://127.0.0.1:9]", "simulator.model=m"], "prompts"),
        (
            "listener_hash",
            [
                "simulator.listener=model",
                "simulator.register=open",
                "simulator.server.urls=[http://127.0.0.1:9]",
                "simulator.server.model=m",
            ],
            "simulator.listener",
        ),
        ("listener_hash", ["simulator.listener=encoder", "simulator.register=open"], "weights of simulator.listener"),
    ],
)
def test_edited_prompts_and_numbers_of_the_preset_are_other_users(key, words, named):
    config = load("smoke", words)
    assert other_users({"provenance": users.contents_of(config.simulator)}, config) == ""
    message = other_users({"provenance": {key: "0123"}}, config)
    assert named in message and "(0123)" in message
    assert users.contents_of(load("smoke").simulator) == {}


def test_a_served_user_with_other_weights_is_another_user(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    config = load("smoke", ["simulator.kind=llm", f"simulator.serve={tmp_path}"])
    written = {"provenance": contents_of_users(config)}
    assert other_users(written, config) == ""
    tiny_model(seed=1).save_pretrained(tmp_path)
    message = other_users(written, config)
    assert message.startswith(
        f"the weights of simulator.serve must be those that the run began with ({written['provenance']['served_hash']}"
    )


def test_settings_that_decide_results_are_compared():
    config = load("smoke", ["teacher.kind=fixed", "teacher.strictness=0.5", "runs=new"])
    saved = {**to_plain(config), "runs": "old", "cluster": {"address": "auto"}}
    saved["teacher"] = {**saved["teacher"], "strictness": 0.7}
    assert list(differences(saved, config)) == [("teacher.strictness", 0.7, 0.5)]


# One writer ---------------------------------------------------------------------------------------------------------------------


def test_a_run_is_refused_while_it_is_written_and_free_afterwards(tmp_path):
    check_no_writer(tmp_path / "nothing there")
    (tmp_path / CONFIG).touch()
    with only_writer(tmp_path):
        with pytest.raises(ConfigError, match="one process at a time"), only_writer(tmp_path):
            pass
        with pytest.raises(ConfigError, match="one process at a time"):
            check(load("smoke"), tmp_path, resuming=True)
    with only_writer(tmp_path):
        (tmp_path / CONFIG).write_text("seed: 1\n")
    check_no_writer(tmp_path)


def test_the_lock_is_taken_on_a_descriptor_that_may_write_as_network_file_systems_want(tmp_path, monkeypatch):
    (tmp_path / CONFIG).write_text("seed: 1\n")
    asked = []

    def as_nfs_does(file, operation):
        asked.append(operation)
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("experiments.run_lock.fcntl.flock", as_nfs_does)
    check_no_writer(tmp_path)
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB] and (tmp_path / CONFIG).read_text() == "seed: 1\n"


def test_of_two_that_begin_one_run_at_once_the_slower_is_refused(tmp_path):
    folder = tmp_path / "run"
    begin(folder, "seed: 1\n", must_be_new=True)
    with pytest.raises(ConfigError, match=r"^name must be new, got 'run'"):
        begin(folder, "seed: 2\n", must_be_new=True)
    begin(folder, "seed: 2\n")
    assert [path.name for path in folder.iterdir()] == [CONFIG] and (folder / CONFIG).read_text() == "seed: 1\n"


# Provenance ---------------------------------------------------------------------------------------------------------------------


def provenance(folder: Path, *overrides: str) -> dict:
    return yaml.safe_load(settings_text(load("smoke", overrides), folder))["provenance"]


def test_a_resumed_run_names_every_commit_it_ran_on(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.run_folder.git_commit", lambda: "decaf")
    monkeypatch.setattr("experiments.run_folder.fingerprint", lambda folder: "other")
    folder = make_saved_run(tmp_path / "smoke" / "a", git_commit="c0ffee", initial_policy="first")
    resumed = provenance(folder, f"resume={folder}")
    assert (resumed["git_commit"], resumed[EARLIER_COMMITS], resumed["initial_policy"]) == ("decaf", ["c0ffee"], "first")
    assert EARLIER_COMMITS not in (new := provenance(folder)) and new["initial_policy"] == "other"
    (folder / CONFIG).write_text(settings_text(load("smoke", [f"resume={folder}"]), folder))
    monkeypatch.setattr("experiments.run_folder.git_commit", lambda: "bead")
    assert provenance(folder, f"resume={folder}")[EARLIER_COMMITS] == ["c0ffee", "decaf"]
    assert yaml.safe_load((folder / CONFIG).read_text())["resume"] == ""


def task(strictness: float, step: int = 1) -> dict:
    return {"step": step, "event": "task", "uid": str(step), "teacher_step": step, "family": "praise/negative", "strictness": strictness}


def test_the_tasks_that_a_run_replays_are_recorded_once(tmp_path):
    source = made_result(tmp_path, "frontier", 1, teacher=[task(0.25)])
    digest = digest_of_tasks(read_lines(source / TEACHER))
    assert COPIED not in provenance(tmp_path)
    for trace in (source, source / TEACHER):
        assert provenance(tmp_path, "teacher.kind=yoked", f"teacher.trace={trace}")[COPIED] == digest
    folder = make_saved_run(tmp_path / "smoke" / "a", **{COPIED: "before"})
    assert provenance(folder, "teacher.kind=yoked", f"teacher.trace={source}", f"resume={folder}")[COPIED] == "before"
