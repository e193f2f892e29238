"""The command line: what it prints at once, and that a request that cannot be run costs nothing and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_endpoint import KEY, FakeEndpoint, serving
from tiny_policy import save_tiny_policy

from experiments.__main__ import main
from experiments.config import load, to_yaml
from simulator.sage.formats import write_profiles
from simulator.scenario import Split
from simulator.version import world_name
from simulator.world import load_bank

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "ray", "vllm", "tensorboard")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.startswith("error: ") and message.count("\n") == 1
    return message.removeprefix("error: ").strip()


def test_without_a_name_the_experiments_are_listed(capsys):
    assert main([]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"adaptive_curriculum", "smoke"} <= set(names)


def test_a_reader_who_has_seen_enough_ends_the_list_without_a_complaint():
    words = f"{sys.executable} -m experiments | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_dry_run_prints_the_plan_and_the_settings_and_writes_nothing(capsys, tmp_path):
    assert main(["smoke", "--dry-run", f"runs={tmp_path}", "name=a", "teacher.kind=fixed"]) == 0
    out = capsys.readouterr().out
    assert f"would write {tmp_path}/smoke/a" in out
    assert "fixed teacher" in out and "policy_tokens: 1000000" in out
    assert not list(tmp_path.iterdir())


def test_options_may_stand_anywhere(capsys, tmp_path):
    assert main(["smoke", f"runs={tmp_path}", "--dry-run", "seed=3"]) == 0
    assert "seed: 3" in capsys.readouterr().out


def test_a_dry_run_and_a_refusal_import_nothing_heavy(tmp_path):
    program = (
        "import sys; from experiments.__main__ import main; "
        f"codes = main(['smoke', '--dry-run', 'runs={tmp_path}']), main(['smoke', 'learner.lr=-1']); "
        f"assert codes == (0, 2), codes; loaded = set({HEAVY}) & set(sys.modules); assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_run_that_exists_is_not_written_over(capsys, tmp_path):
    (tmp_path / "smoke" / "a").mkdir(parents=True)
    message = refused(capsys, "smoke", f"runs={tmp_path}", "name=a")
    assert "name must be new, got 'a'" in message and f"resume={tmp_path}/smoke/a" in message


def test_a_folder_that_cannot_be_written_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(capsys, "smoke", f"runs={tmp_path}/file")
    assert message.startswith("runs must be a folder that can be written") and message.endswith(f"{tmp_path}/file cannot be written")


@pytest.mark.parametrize("model", ["./models/gone", "/models/gone", "gone", "a/b/c", "runs/nope", "models/gone"])
def test_a_model_folder_that_is_not_there_is_refused(capsys, tmp_path, model):
    message = refused(capsys, "smoke", f"runs={tmp_path}", f"policy.model={model}")
    assert message.startswith("policy.model must be 'embedded', a model's folder or a Hugging Face id, got ")


def test_a_model_folder_that_lacks_something_is_refused(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    message = refused(capsys, "smoke", f"runs={tmp_path}/runs", f"policy.model={tmp_path}/model")
    assert message.endswith("without config.json")
    assert not (tmp_path / "runs").exists()


def test_what_an_agent_is_told_before_a_dialogue_must_leave_room_for_it(capsys, tmp_path):
    folder = save_tiny_policy(tmp_path / "tiny")
    words = [f"runs={tmp_path / 'runs'}", f"policy.model={folder}", "--dry-run"]
    assert main(["smoke", *words, "policy.system_prompt=Listen, and ask: what hurts?"]) == 0
    assert "system_prompt: 'Listen, and ask: what hurts?'" in capsys.readouterr().out
    message = refused(capsys, "smoke", *words, f"policy.system_prompt={'Listen. ' * 400}")
    assert message.startswith("rollout.max_context must leave room for a reply") and "shorten policy.system_prompt" in message


def test_a_cache_larger_than_memory_is_refused(capsys, tmp_path):
    message = refused(capsys, "smoke", f"runs={tmp_path}", "policy.kv_cache_mb=900000000")
    assert message.startswith("policy.kv_cache_mb must leave the engines room in memory, got 900000000")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a b"])
def test_a_name_that_is_no_folder_name_is_refused(capsys, tmp_path, name):
    assert refused(capsys, "smoke", f"runs={tmp_path}", f"name={name}").startswith("name must consist of letters")


def test_a_run_to_resume_must_be_there(capsys, tmp_path):
    message = refused(capsys, "smoke", f"runs={tmp_path}", "resume=gone")
    assert message.startswith("resume must name a run's folder, got 'gone'") and f"{tmp_path}/smoke/gone" in message


def test_an_unknown_experiment_is_refused_with_the_list(capsys):
    assert "the experiments are adaptive_curriculum" in refused(capsys, "adaptiv")


def make_saved_run(folder: Path, *, experiment: str = "smoke", world: str | None = None) -> Path:
    folder.mkdir(parents=True)
    text = to_yaml(load(experiment, [f"runs={folder.parent.parent}"]), {"world": world or world_name()})
    (folder / "config.yaml").write_text(text)
    return folder


def test_a_run_is_resumed_by_its_name_or_its_folder(capsys, tmp_path):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    for resume in ("a", folder):
        assert main(["smoke", "--dry-run", f"runs={tmp_path}", f"resume={resume}"]) == 0
        assert f"continues {folder}" in capsys.readouterr().out


def test_what_is_said_to_a_resumed_run_is_about_the_kinds_it_has_and_not_those_of_its_file(capsys, tmp_path):
    folder = tmp_path / "smoke" / "7"
    folder.mkdir(parents=True)
    ended = load("smoke", [f"runs={tmp_path}", "teacher.kind=yoked", f"teacher.trace={tmp_path}/before"])
    (folder / "config.yaml").write_text(to_yaml(ended, {"world": world_name()}))
    # Its trace has moved, and its name is a number; neither is known to the file, whose teacher replays nothing.
    message = refused(capsys, "smoke", f"runs={tmp_path}", "resume=7", f"teacher.trace={tmp_path}/now", "--dry-run")
    assert message.startswith("teacher.trace must ") and f"{tmp_path}/now" in message


def test_a_run_is_gone_on_with_by_the_command_and_not_by_a_file(write, capsys):
    write("base: smoke\nresume: earlier\n")
    assert refused(capsys, "made", "--dry-run").startswith(
        "resume must be given with the command and not in an experiment's file, got 'earlier'"
    )


@pytest.mark.parametrize("torn", [False, True])
def test_a_run_with_steps_and_no_whole_checkpoint_is_not_resumed_and_keeps_its_records(capsys, tmp_path, torn):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    if torn:
        (folder / "checkpoints" / "step_2").mkdir(parents=True)
    for options in ([], ["--dry-run"]):
        message = refused(capsys, "smoke", f"runs={tmp_path}", "resume=a", *options)
        assert message.startswith(f"resume must name a run with a whole checkpoint, got '{folder}', which came to step 2: ")
        reason = "step_2 must hold a readable manifest.json" if torn else f"there is none in {folder}/checkpoints; "
        assert reason in message and message.endswith("bring the checkpoint back, or start a new run")
    assert (folder / "metrics.jsonl").read_text().count("\n") == 2


def test_a_run_that_never_finished_a_step_is_resumed_from_the_start(capsys, tmp_path):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    (folder / "metrics.jsonl").touch()
    assert main(["smoke", "--dry-run", f"runs={tmp_path}", "resume=a"]) == 0
    assert f"continues {folder}" in capsys.readouterr().out


def test_a_run_of_another_experiment_or_another_world_is_not_resumed(capsys, tmp_path):
    other = make_saved_run(tmp_path / "adaptive_curriculum" / "a", experiment="adaptive_curriculum")
    assert "a run of adaptive_curriculum" in refused(capsys, "smoke", f"resume={other}")
    elsewhere = make_saved_run(tmp_path / "smoke" / "b", world="0123")
    assert "got one of world '0123'; start a new run" in refused(capsys, "smoke", f"resume={elsewhere}")


def with_model(server: FakeEndpoint, tmp_path: Path, *settings: str) -> list[str]:
    return ["smoke", f"runs={tmp_path}/runs", "simulator.kind=llm", f"simulator.urls=[{server.url}]", "simulator.model=m", *settings]


def test_a_run_with_a_model_as_user_is_planned_once_its_server_answers(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", KEY)
    with serving(FakeEndpoint(key=KEY)) as server:
        assert main([*with_model(server, tmp_path, "simulator.api_key_env=MADE_UP_KEY"), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "on the llm user" in out and "api_key_env: MADE_UP_KEY" in out
    assert KEY not in out + err and len(server.requests) == 1


def test_a_run_whose_user_cannot_be_reached_is_refused_before_it_begins(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", "sk-wrong-9876")
    with serving(FakeEndpoint(key=KEY)) as server:
        message = refused(capsys, *with_model(server, tmp_path, "simulator.api_key_env=MADE_UP_KEY"))
        assert message.startswith("simulator.api_key_env must name a variable whose key") and "sk-wrong" not in message
    with serving(FakeEndpoint()) as server:
        assert refused(capsys, *with_model(server, tmp_path, "simulator.model=n")).endswith("serves (m), got 'n'")
    gone = refused(capsys, *with_model(server, tmp_path))
    assert gone.startswith(f"simulator.urls must name servers that answer, got '{server.url}'")
    assert not (tmp_path / "runs").exists()


def test_profiles_that_cannot_be_read_are_refused_by_file_and_line(capsys, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "p1"}\n')
    with serving(FakeEndpoint()) as server:
        files = [f"simulator.profiles={tmp_path}/a.jsonl", f"simulator.heldout_profiles={tmp_path}/gone.jsonl"]
        message = refused(capsys, *with_model(server, tmp_path, *files))
    assert message.startswith(f"{tmp_path}/a.jsonl line 1 must be a SAGE profile: scene must be text that is not empty, got None")
    assert server.requests == []


def test_profiles_have_no_sealed_half(capsys, tmp_path):
    write_profiles(tmp_path / "a.jsonl", load_bank().scenarios(Split.TRAIN)[:2])
    write_profiles(tmp_path / "b.jsonl", load_bank().scenarios(Split.TRAIN)[2:4])
    with serving(FakeEndpoint()) as server:
        files = [f"simulator.profiles={tmp_path}/a.jsonl", f"simulator.heldout_profiles={tmp_path}/b.jsonl"]
        message = refused(capsys, *with_model(server, tmp_path, *files, "evaluation.split=sealed"))
    assert message == "evaluation.split must be heldout with simulator.heldout_profiles, got 'sealed'"
