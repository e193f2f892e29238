"""`python -m experiments evaluate` with servers on loopback and the embedded user: what is sent, kept, scored, resumed and refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fake_endpoint import KEY, Behaviour, FakeEndpoint, Reply, answer, completion, garbage, honest, serving, status, text
from pages import dialogues_on

from analysis.__main__ import main as analysis
from analysis.transcripts import write_transcripts
from experiments.__main__ import main
from experiments.agents import evaluate as command
from experiments.agents import players
from experiments.agents.agent import find_agent
from experiments.agents.evaluate import check_same_evaluation
from experiments.agents.players import PATIENCE, run_all
from experiments.errors import ConfigError
from experiments.run_lock import only_writer
from experiments.tasks import grid_tasks, spread
from policy.files import fingerprint
from simulator.llm.prompts import prompts_hash
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import profile_of, write_records
from simulator.scenario import Split
from simulator.scripted import AGENTS, play
from simulator.version import world_name
from simulator.world import load_bank

ROOT = Path(__file__).resolve().parent.parent
ONE, SMALL = ("--num-scenarios", "1", "--strictness", "0.1"), ("--num-scenarios", "3", "--strictness", "0.1", "0.7")
WORDS = "It sounds like you feel hurt. I am listening, take your time."
NOWHERE = ("http://127.0.0.1:9/v1", "--model", "m")


def evaluate(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["evaluate", *arguments, "--out", str(folder)])
    return code, json.loads((folder / "agent.json").read_text(encoding="utf-8"))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()]


def replies_in(line: Mapping[str, Any]) -> list[str]:
    return [turn["text"] for turn in line["turns"] if turn["speaker"] == "agent"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        code: Any = main(["evaluate", *arguments])
    except SystemExit as error:  # argparse's own
        code = error.code
    out, message = capsys.readouterr()
    assert code == 2 and out == ""
    return message.splitlines()[-1]


def test_a_scripted_agent_gets_the_score_of_its_dialogues(tmp_path, capsys):
    folder = tmp_path / "L3"
    code, found = evaluate(folder, "L3", *SMALL)
    chosen = spread(load_bank().scenarios(Split.HELDOUT), 3)
    by_id, user = {scenario.scenario_id: scenario for scenario in chosen}, RuleUser(RuleUserConfig(register="world"))
    emotions = [
        play(AGENTS["L3"], by_id[task.scenario_id], task.difficulty, seed=task.seed, user=user).emotion
        for task in grid_tasks(chosen, [0.1, 0.7])
    ]
    assert code == 0 and found["n_dialogues"] == 6 and found["score"] == pytest.approx(fmean(emotions))
    assert found["strictness"]["0.1"]["value"] == pytest.approx(fmean(emotions[::2]))
    assert found["setting"]["user"]["world"] == world_name() and set(found["per_scenario"]) == set(by_id)
    assert found["errors"] == {"planned": 6, "not_played": 0, "excluded_dialogues": 0, "reasons": {}, "cut_short": 0}
    rates = {name: cell["success_rate"]["value"] for name, cell in found["strictness"].items()}
    assert f"success   0.1 {rates['0.1']:.0%}   0.7 {rates['0.7']:.0%}" in capsys.readouterr().out
    assert len(dialogues_on(write_transcripts(folder))) == 6
    assert analysis(["report", str(folder)]) == 2, "it is no training run"
    assert "leaderboard" in capsys.readouterr().err


def test_the_same_command_plays_only_what_is_missing(tmp_path, capsys):
    folder = tmp_path / "a"
    _, first = evaluate(folder, "L2", *SMALL)
    printed, path = capsys.readouterr().out, folder / "dialogues.jsonl"
    kept = path.read_bytes()
    assert evaluate(folder, "L2", *SMALL) == (0, first) and path.read_bytes() == kept and capsys.readouterr().out == printed
    assert main(["evaluate", "L2", *SMALL, "--out", str(folder), "--dry-run"]) == 0 and "; 6 are kept" in capsys.readouterr().out
    path.write_bytes(kept[:-40])
    assert evaluate(folder, "L2", *SMALL) == (0, first) and path.read_bytes() == kept


def test_a_server_is_sent_the_words_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTS_KEY", KEY)
    with serving(FakeEndpoint(always=text(WORDS), key=KEY)) as endpoint:
        who = (endpoint.url, "--model", "m", "--system", "Be kind.", "--key-env", "AGENTS_KEY")
        code, found = evaluate(tmp_path / "a", *who, *SMALL)
    assert code == 0 and found["n_dialogues"] == 6 and found["agent"]["kind"] == "server" and set(endpoint.keys) == {KEY}
    assert not any(KEY.encode() in path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file())
    lines, asked = lines_of(tmp_path / "a"), endpoint.requests[1:]  # the first asks whether it is there
    assert len(asked) == sum(len(replies_in(line)) for line in lines)
    for request in asked:
        system, opening, *rest = request["messages"]
        assert system == {"role": "system", "content": "Be kind."} and opening["role"] == "user"
        assert [message["role"] for message in rest] == ["assistant", "user"] * (len(rest) // 2)
        assert set(request) == {"model", "messages", "max_tokens", "temperature", "seed"}
    sent, thoughts = json.dumps(asked), {turn["thought"] for line in lines for turn in line["turns"] if turn.get("thought")}
    assert thoughts and not any(thought in sent for thought in thoughts)
    assert not any(line["hidden_intention"] in sent for line in lines)


@pytest.mark.parametrize(
    ("answer", "words", "thought"),
    [
        (text(f"<think>she is hurt</think>{WORDS}"), WORDS, "she is hurt"),
        (text("<think>she is hurt, so I will", finish="length"), "", "she is hurt, so I will"),
        # A server that separates thoughts by itself, and spent all tokens on one.
        (text(None, finish="length"), "", None),
        # As of local weights: to leave cut replies out would judge the agent by the users with whom it was brief.
        (text(WORDS[:30], finish="length"), WORDS[:30].strip(), None),
    ],
)
def test_thoughts_are_kept_and_not_heard_and_cut_replies_count(tmp_path, answer, words, thought):
    with serving(FakeEndpoint(always=answer)) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", *ONE)
    (line,) = lines_of(tmp_path / "a")
    assert code == 0 and set(replies_in(line)) == {words} and found["usage"]["agent"]["calls"] == len(replies_in(line))
    assert line.get("thoughts") == ([thought] * len(replies_in(line)) if thought else None)


def test_a_dialogue_beyond_a_servers_context_is_cut_short_and_scored(tmp_path):
    def short_context(request: Mapping[str, Any]) -> Reply:
        too_long = "This model's maximum context length is 50 tokens"
        return status(400, too_long)(request) if len(request["messages"]) > 3 else completion(WORDS)

    with serving(FakeEndpoint(always=short_context)) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", *ONE)
    assert code == 0 and found["outcomes"] == {"truncated": 1} and found["errors"]["cut_short"] == found["n_dialogues"] == 1


def test_broken_dialogues_are_counted_by_reason_and_played_again(tmp_path, capsys):
    victim, folder = spread(load_bank().scenarios(Split.HELDOUT), 3)[0], tmp_path / "a"

    def nonsense_for_one(request: Mapping[str, Any]) -> Reply:
        return garbage(request) if request["messages"][0]["content"].startswith(victim.opening) else completion(WORDS)

    with serving(FakeEndpoint(always=nonsense_for_one)) as endpoint:
        arguments = (endpoint.url, "--model", "m", *SMALL, "--retries", "0")
        code, found = evaluate(folder, *arguments)
        assert code == 1 and found["n_dialogues"] == 4 and found["errors"]["excluded_dialogues"] == 2
        (reason,) = found["errors"]["reasons"]
        assert "chat completion" in reason and "--retries=0" in reason and "2 of 6 dialogues broke" in capsys.readouterr().out
        assert victim.scenario_id not in found["per_scenario"] and found["score"] == pytest.approx(fmean(found["per_scenario"].values()))
        calls, endpoint.always, endpoint.requests[:] = found["usage"]["agent"]["calls"], text(WORDS), []
        code, found = evaluate(folder, *arguments)
    assert code == 0 and found["n_dialogues"] == 6
    # Of both sittings; the first request of a sitting asks whether the server is there.
    assert found["usage"]["agent"]["calls"] == calls + len(endpoint.requests) - 1
    assert len(lines_of(folder)) == 6 and "error" not in {line["outcome"] for line in lines_of(folder)}


def test_errors_of_the_user_name_its_options_and_leave_no_score(tmp_path, capsys):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(honest, always=garbage)) as other:
        user = ("--user", "llm", "--user-url", other.url, "--user-model", "m", "--user-retries", "0", "--cache", "off")
        code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *ONE, *user)
    assert code == 1 and "--user-retries=0" in next(iter(found["errors"]["reasons"]))
    assert found["n_dialogues"] == 0 and found["score"] is None and "no dialogue could be scored" in capsys.readouterr().out


def test_after_an_outage_the_same_command_continues_and_pays_for_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(players, "PATIENCE", 3)  # five failures would make the client pause for seconds
    arguments = ("--model", "m", "--num-scenarios", "10", "--strictness", "0.1", "--retries", "0", "--concurrency", "1")
    with serving(FakeEndpoint(*[text(WORDS)] * 20, always=garbage)) as endpoint:
        code, broken = evaluate(tmp_path / "a", endpoint.url, *arguments)
        assert code == 1 and broken["errors"]["excluded_dialogues"] == 3
        assert broken["errors"]["not_played"] == 10 - 3 - broken["n_dialogues"] > 0
        endpoint.always, endpoint.requests[:] = text(WORDS), []
        code, whole = evaluate(tmp_path / "a", endpoint.url, *arguments)
    assert code == 0 and whole["n_dialogues"] == 10 and whole["errors"]["excluded_dialogues"] == 0
    # 19 replies were answered before; one request asks whether the server is there.
    assert len(endpoint.requests) - 1 == sum(len(replies_in(line)) for line in lines_of(tmp_path / "a")) - 19


def test_only_failures_in_a_row_stop_an_evaluation():
    async def echo(item: int) -> int:
        return item

    def num_begun(items: list[int]) -> int:
        return len(asyncio.run(run_all(items, echo, concurrency=1, label="items", is_failure=lambda item: item == 0)))

    assert num_begun([0] * 50) == PATIENCE and num_begun(([0] * (PATIENCE - 1) + [1]) * 3) == 3 * PATIENCE


def test_a_server_needs_no_training_stack(tmp_path):
    """In a process of its own, which imports everything: many seconds."""
    refuse = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "vllm", "transformers"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
from experiments.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
    with serving(FakeEndpoint(always=text(WORDS))) as endpoint:
        arguments = ["evaluate", endpoint.url, "--model", "m", *ONE, "--out", str(tmp_path / "a")]
        done = subprocess.run([sys.executable, "-c", refuse, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 dialogues scored" in done.stdout


GRADES = {"why": "w", "empathic_depth": 5, "core_insight": 4, "solution_crafting": 3, "dialogue_guidance": 2, "style_flexibility": 1}


def is_of_judge(request: Mapping[str, Any]) -> bool:
    return "core_insight" in request["response_format"]["json_schema"]["schema"]["properties"]


def user_and_judge(request: Mapping[str, Any]) -> Reply:
    return completion(json.dumps(GRADES)) if is_of_judge(request) else honest(request)


def num_graded(endpoint: FakeEndpoint) -> int:
    return sum(map(is_of_judge, endpoint.requests))


def llm_user(url: str, cache: Path) -> tuple[str, ...]:
    return ("--user", "llm", "--user-url", url, "--user-model", "m", "--max-turns", "1", "--cache", str(cache))


def judge_at(url: str) -> tuple[str, ...]:
    return ("--judge-url", url, "--judge-model", "m", "--judge-concurrency", "1", "--judge-retries", "0")


def test_a_model_judges_dialogues_with_a_user_that_a_model_plays(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=user_and_judge)) as other:
        arguments = (agent.url, "--model", "m", *SMALL, *llm_user(other.url, tmp_path / "c"))
        code, found = evaluate(tmp_path / "a", *arguments, *judge_at(other.url))
        _, unjudged = evaluate(tmp_path / "b", *arguments)
    # The one reply moves this user by 5, from 40.
    assert code == 0 and found["score"] == 45.0 and found["setting"]["user"]["prompts_hash"] == prompts_hash()
    assert found["capabilities"]["by"] == "judge" and found["capabilities"]["num_errors"] == 0
    assert [found["capabilities"][name]["value"] for name in GRADES if name != "why"] == [1.0, 0.75, 0.5, 0.25, 0.0]
    # The two dialogues of a scenario are equal here, and no question is sent twice.
    assert found["usage"]["judge"]["calls"] == 3
    assert unjudged["capabilities"] == {"by": None, "why_not": "no --judge-model was named"}


def test_a_judge_whose_server_refuses_whole_numbers_is_refused_before_a_dialogue(tmp_path, capsys):
    def no_numbers(request: Mapping[str, Any]) -> Reply:
        return (status(400, "an enum may hold text only") if '"enum"' in json.dumps(request) else text(WORDS))(request)

    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=no_numbers)) as judge:
        users = llm_user(agent.url, tmp_path / "c")
        said = refused(capsys, agent.url, "--model", "m", *SMALL, *users, "--out", str(tmp_path / "a"), *judge_at(judge.url))
    assert said.startswith("error: --judge-format must be") and "set it to json_object or text" in said and not agent.requests


def test_a_second_listener_hears_the_same_dialogues_again(tmp_path, capsys):
    schema = {"sense": "none", "tone": "plain", "strategies": [], "taken_up": [], "comes_back": False}
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=answer(**schema))) as other:
        listener = ("--listener", "model", "--listener-url", other.url, "--listener-model", "m", "--cache", str(tmp_path / "c"))
        code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *ONE, *listener)
    again = found["second_listener"]
    assert code == 0 and again["n_dialogues"] == 1 and again["unheard"] == 0 and again["world"] == f"{world_name('open')}-heard-by-m"
    # To a listener who understands nothing no reply does good.
    assert again["score"] < 40 < found["score"] and again["gap"] == found["score"] - again["score"]
    assert "heard-by-m" in capsys.readouterr().out and found["usage"]["listener"]["calls"] > 0


def test_one_that_reads_too_little_has_no_score(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent:
        listener = ("--listener", "none", "--user", "rule")
        _, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *ONE, *listener)
        assert "second_listener" not in found
        with serving(FakeEndpoint(answer(sense="all", tone="plain", strategies=[], taken_up=[], comes_back=False))) as other:
            other.always = text("no reading")
            asked = ("--listener-url", other.url, "--listener-model", "m", "--listener-retries", "0", "--cache", "off")
            _, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *ONE, "--listener", "model", *asked)
    again = found["second_listener"]
    assert again["unheard"] == 1 and again["score"] is None and "gave no usable reading in 1 of 1" in again["why"]


def interrupting(*signals: int, when: Behaviour, behave: Behaviour) -> Behaviour:
    """Sends the signals to this process at the first request that meets `when`."""
    waiting = list(signals)

    def respond(request: Mapping[str, Any]) -> Reply:
        while when(request) and waiting:
            os.kill(os.getpid(), waiting.pop(0))
        return behave(request)

    return respond


def test_an_interrupted_evaluation_pays_no_judge_and_both_continue(tmp_path):
    everything = interrupting(signal.SIGINT, when=lambda _: True, behave=text(WORDS))
    with serving(FakeEndpoint(text("here"), always=everything)) as agent, serving(FakeEndpoint()) as other:
        other.always = interrupting(signal.SIGINT, when=is_of_judge, behave=user_and_judge)
        who = (*llm_user(other.url, tmp_path / "c"), *judge_at(other.url), "--concurrency", "1")
        for sitting in ((130, 0, 1, None), (130, 1, 6, None), (0, 3, 6, "judge")):
            code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *SMALL, *who)
            assert (code, num_graded(other), found["n_dialogues"], found["capabilities"]["by"]) == sitting
            assert found["capabilities"].get("why_not", "interrupted") == "interrupted"


@pytest.mark.parametrize(("num_nonsense", "code", "num_not_sent"), [(2, 0, 0), (4, 1, 1)])
def test_missing_grades_are_never_low_ones(tmp_path, capsys, monkeypatch, num_nonsense, code, num_not_sent):
    monkeypatch.setattr(players, "PATIENCE", 3)
    nonsense = [text("nonsense")] * num_nonsense

    def judge(request: Mapping[str, Any]) -> Reply:
        return nonsense.pop()(request) if nonsense and is_of_judge(request) else user_and_judge(request)

    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=judge)) as other:
        few = ("--num-scenarios", "4", "--strictness", "0.1", *llm_user(other.url, tmp_path / "c"), *judge_at(other.url))
        got, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *few)
        capable, out = found["capabilities"], capsys.readouterr().out
        assert got == code and (capable["num_errors"], capable["num_not_sent"]) == (num_nonsense, num_not_sent)
        assert f"judge: {num_nonsense} of 4 dialogues got no grades" in out and "--judge-retries=0" in out
        assert capable["empathic_depth"]["value"] == (1.0 if num_nonsense < 4 else None)
        nonsense.clear()
        got, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *few)
    assert got == 0 and found["capabilities"]["num_errors"] == 0


def test_profiles_are_played_by_the_preset_of_such_users_and_known_by_their_contents(tmp_path, capsys):
    profiles, scenarios = tmp_path / "profiles.jsonl", load_bank().scenarios(Split.TRAIN)
    write_records(profiles, map(profile_of, scenarios[:2]))
    with serving(FakeEndpoint(always=text("我在听，你慢慢说。"))) as endpoint:
        arguments = (endpoint.url, "--model", "m", "--profiles")
        code, found = evaluate(tmp_path / "a", *arguments, str(profiles))
        setting = found["setting"]
        assert code == 0 and found["n_dialogues"] == 2
        assert (setting["user"]["preset"], setting["strictness"], setting["max_turns"]) == ("sage", [0.35], 9)
        renamed = profiles.rename(tmp_path / "renamed.jsonl")
        code, again = evaluate(tmp_path / "a", *arguments, str(renamed))
        assert code == 0 and again["setting_id"] == found["setting_id"]
        write_records(renamed, map(profile_of, scenarios[2:4]))
        capsys.readouterr()
        assert "setting.bank_hash" in refused(capsys, *arguments, str(renamed), "--out", str(tmp_path / "a"))
        write_records(renamed, map(profile_of, [replace(scenario, opening="") for scenario in scenarios[:2]]))
        assert "first_talk" in refused(capsys, *arguments, str(renamed))
        assert main(["evaluate", *arguments, str(renamed), *llm_user(endpoint.url, tmp_path / "c"), "--dry-run"]) == 0


def test_an_evaluation_is_resumed_with_the_same_settings_alone(tmp_path):
    def config(source: str, fingerprint: str = "", **user: str) -> dict[str, Any]:
        agent = {"kind": "model", "source": source, "model": None, "fingerprint": fingerprint}
        return {"experiment": "evaluate", "name": "a", "agent": agent, "setting": {"user": {"kind": "llm", **user}}}

    def check(before: dict[str, Any], now: dict[str, Any]) -> None:
        (tmp_path / "config.yaml").write_text(json.dumps(before))
        check_same_evaluation(tmp_path, now)

    check(config("runs/x", "ab"), config("../elsewhere/x", "ab"))  # the same weights elsewhere
    for before, now, name in (
        (config("runs/x", "ab"), config("runs/x", "cd"), "agent.fingerprint"),
        (config("http://a/v1"), config("http://b/v1"), "agent.source"),
        (config("a", prompts_hash="ab"), config("a", prompts_hash="cd"), "setting.user.prompts_hash"),
        ({"experiment": "smoke"}, config("a"), "another"),
    ):
        with pytest.raises(ConfigError, match=name):
            check(before, now)


def test_a_dry_run_plans_and_writes_nothing(tmp_path, capsys):
    assert main(["evaluate", *NOWHERE, "--out", str(tmp_path / "b"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "dialogues 540, of at most 8 replies: up to 4,320 replies" in out and not (tmp_path / "b").exists()


def test_an_evaluation_has_one_writer(tmp_path, capsys, monkeypatch):
    folder, made = tmp_path / "a", []
    evaluate(folder, "L1", *ONE)
    (folder / "dialogues.jsonl").write_text("")
    capsys.readouterr()
    monkeypatch.setattr(command, "TextPlayer", lambda *_, **__: made.append("player"))
    with only_writer(folder):
        assert "one process" in refused(capsys, "L1", *ONE, "--out", str(folder)) and not made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs/nope",), "AGENT must be a run's folder"),
        ((*NOWHERE, "--out", "no/such"), "AGENT must name servers that answer"),
        ((*NOWHERE, "--extra-body", "{a", "--dry-run"), "--extra-body must be"),
        (("L1", "--temperature", "0.5"), "--temperature goes with"),
        (("L1", "--strictness", "1.2"), "--strictness must hold values in [0, 1]"),
        (("L1", "--samples", "2"), "--samples must be 1"),
        (("L1", "--listener", "model"), "--listener-model must name the model"),
        (("L1", "--register", "open", "--listener", "rule"), "--listener must be another one than the user's own, rule"),
        (("L1", "--listener-model", "m"), "--listener-model goes with --listener model"),
        (("L1", "--judge-model", "m"), "--judge-model goes with --user llm"),
        (("L1", "--profiles", "gone.jsonl"), "--profiles: gone.jsonl"),
        (("L1", "--out", "/proc/x", "--dry-run"), "--out must be a folder that can be written"),
    ],
)
def test_impossible_requests_are_refused_before_anything_starts(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def checkpoint_in(run: Path, *, experiment: str) -> Path:
    """A checkpoint's folder as a run leaves it, with weights that cannot be loaded."""
    folder = run / "checkpoints" / "step_7"
    folder.mkdir(parents=True)
    (run / "config.yaml").write_text(f"experiment: {experiment}\nname: {run.name}\npolicy:\n  system_prompt: Listen.\n")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(experiment.encode())
    return folder


def test_a_checkpoint_is_named_after_its_experiment_and_known_by_its_weights(tmp_path, capsys):
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / name).write_text("")
    assert "AGENT must have a complete checkpoint" in refused(capsys, str(tmp_path))
    cells = [checkpoint_in(tmp_path / name / "sweep" / "uniform" / "seed_0", experiment=name) for name in ("noise", "teachers")]
    agents = [find_agent(str(cell)) for cell in cells]
    assert [agent.name for agent in agents] == ["noise-uniform-seed_0-step_7", "teachers-uniform-seed_0-step_7"]
    assert agents[0].fingerprint == fingerprint(cells[0]) != agents[1].fingerprint
    assert find_agent(str(checkpoint_in(tmp_path / "noise" / "seed0-today", experiment="noise"))).name == "noise-seed0-today-step_7"
    assert [agents[0].system_prompt(given) for given in (None, "", "Ask.")] == ["Listen.", "", "Ask."]
