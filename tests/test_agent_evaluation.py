"""`python -m experiments evaluate`, with real servers, real engines and the embedded user: what is sent, kept, scored and refused."""

from __future__ import annotations

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
from fake_endpoint import KEY, Behaviour, FakeEndpoint, Reply, completion, garbage, honest, serving, text

from analysis.__main__ import main as analysis
from analysis.transcripts import write_transcripts
from experiments.__main__ import main
from experiments.agents import scores as agent_json
from experiments.agents.evaluate import check_folder
from experiments.agents.players import PATIENCE
from experiments.errors import ConfigError
from experiments.run_lock import check_no_writer, only_writer
from experiments.tasks import grid_tasks, spread
from simulator.llm.client import Endpoints
from simulator.llm.prompts import prompts_hash
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import write_profiles
from simulator.scenario import Split
from simulator.scripted import AGENTS, play
from simulator.version import world_name
from simulator.world import load_bank

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--num-scenarios", "3", "--strictness", "0.1", "0.7")
WORDS = "It sounds like you feel hurt. I am listening, take your time."


def evaluate(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["evaluate", *arguments, "--out", str(folder)])
    return code, json.loads((folder / "agent.json").read_text(encoding="utf-8"))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["evaluate", *arguments]) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.startswith("error: ") and message.count("\n") == 1
    return message.removeprefix("error: ").strip()


def test_a_scripted_agent_gets_the_score_that_it_gets_when_it_is_played_by_hand(tmp_path):
    code, found = evaluate(tmp_path / "L3", "L3", *SMALL, "--register", "world")
    who = spread(load_bank().scenarios(Split.HELDOUT), 3)
    by_id, user = {scenario.scenario_id: scenario for scenario in who}, RuleUser(RuleUserConfig(register="world"))
    by_hand = [
        play(AGENTS["L3"], by_id[task.scenario_id], task.difficulty, seed=task.seed, user=user).emotion
        for task in grid_tasks(who, [0.1, 0.7])
    ]
    assert code == 0 and found["n_dialogues"] == 6
    assert found["score"] == pytest.approx(fmean(by_hand))
    assert found["strictness"]["0.1"]["value"] == pytest.approx(fmean(by_hand[::2]))
    assert found["setting"]["user"]["world"] == world_name()
    assert set(found["per_scenario"]) == set(by_id)
    assert found["errors"] == {"planned": 6, "not_played": 0, "excluded_dialogues": 0, "reasons": {}, "cut_short": 0}


@pytest.mark.parametrize(
    "option", ["--temperature", "--timeout", "--max-wait", "--user-timeout", "--judge-max-wait", "--momentum", "--strictness"]
)
@pytest.mark.parametrize("value", ["nan", "inf", "soon"])
def test_a_number_that_is_none_is_refused_before_anything_starts(capsys, option, value):
    with pytest.raises(SystemExit):
        main(["evaluate", "L0", option, value])
    assert f"argument {option}: must be a finite number, got {value!r}" in capsys.readouterr().err


def test_success_and_failure_are_printed_by_strictness(tmp_path, capsys):
    _, found = evaluate(tmp_path / "L2", "L2", *SMALL)
    lines = capsys.readouterr().out.splitlines()
    for line, rate in (("  success   ", "success_rate"), ("  failure   ", "failure_rate")):
        cells = {name: cell[rate]["value"] for name, cell in found["strictness"].items()}
        assert line + f"0.1 {cells['0.1']:.0%}   0.7 {cells['0.7']:.0%}" in lines


def test_what_is_kept_can_be_shown_as_transcripts(tmp_path):
    evaluate(tmp_path / "a", "L2", *SMALL)
    page = write_transcripts(tmp_path / "a").read_text(encoding="utf-8")
    assert "held-out" in page and lines_of(tmp_path / "a")[0]["scenario_id"] in page


def test_an_evaluation_has_no_page_of_a_run_and_is_told_where_it_is_shown(tmp_path, capsys):
    folder = tmp_path / "a"
    evaluate(folder, "L2", *SMALL)
    for is_finished in (True, False):
        capsys.readouterr()
        assert analysis(["report", str(folder)]) == 2
        complaint = capsys.readouterr().err
        assert complaint.startswith("error: run must be a training run's folder") and complaint.count("\n") == 1
        assert f"`python -m analysis leaderboard {folder}`" in complaint and f"`python -m analysis transcripts {folder}`" in complaint
        assert not (folder / "report.html").exists()
        if is_finished:
            (folder / "agent.json").unlink()
    (folder / "report.html").write_text("of an earlier version")
    assert analysis(["transcripts", str(folder)]) == 0


def test_the_same_command_again_plays_nothing_and_says_the_same(tmp_path, capsys):
    _, first = evaluate(tmp_path / "a", "L2", *SMALL)
    said, kept = capsys.readouterr().out, (tmp_path / "a" / "dialogues.jsonl").read_bytes()
    _, second = evaluate(tmp_path / "a", "L2", *SMALL)
    assert capsys.readouterr().out == said
    assert (tmp_path / "a" / "dialogues.jsonl").read_bytes() == kept and second == first


def test_a_torn_last_line_is_played_again(tmp_path):
    _, first = evaluate(tmp_path / "a", "L2", *SMALL)
    path = tmp_path / "a" / "dialogues.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    code, second = evaluate(tmp_path / "a", "L2", *SMALL)
    assert code == 0 and second == first and len(lines_of(tmp_path / "a")) == 6


def test_a_server_is_sent_the_words_that_were_said_and_nothing_else(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", *SMALL, "--system", "Be kind.")
    assert code == 0 and found["n_dialogues"] == 6 and found["agent"]["kind"] == "server"
    lines, asked = lines_of(tmp_path / "a"), endpoint.requests[1:]  # the first asks whether it is there
    assert len(asked) == sum(len(line["turns"]) // 2 for line in lines)
    openings = {turns[0]["text"] for turns in (line["turns"] for line in lines)}
    for request in asked:
        system, opening, *rest = request["messages"]
        assert system == {"role": "system", "content": "Be kind."} and opening["role"] == "user" and opening["content"] in openings
        assert [message["role"] for message in rest] == ["assistant", "user"] * (len(rest) // 2)
        assert set(request) == {"model", "messages", "max_tokens", "temperature", "seed"}
    sent = json.dumps(asked)
    thoughts = {turn["thought"] for line in lines for turn in line["turns"] if turn.get("thought")}
    assert thoughts and not any(thought in sent for thought in thoughts)
    assert not any(line["hidden_intention"] in sent for line in lines)


def test_thoughts_of_a_server_are_kept_and_not_heard(tmp_path):
    with serving(FakeEndpoint(always=text(f"<think>she is hurt</think>{WORDS}"))) as endpoint:
        evaluate(tmp_path / "a", endpoint.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.1")
    (line,) = lines_of(tmp_path / "a")
    replies = [turn["text"] for turn in line["turns"] if turn["speaker"] == "agent"]
    assert set(replies) == {WORDS} and line["thoughts"] == ["she is hurt"] * len(replies)


@pytest.mark.parametrize(
    ("answer", "thought"),
    [
        (text("<think>she is hurt, so I will", finish="length"), "she is hurt, so I will"),
        (text("<think>she is hurt</think>"), "she is hurt"),
        # A server that keeps thoughts apart, and whose tokens were spent on one.
        (text(None, finish="length"), None),
        (text("", reasoning_content="she is hurt"), None),
    ],
)
def test_a_reply_without_words_is_heard_as_such_and_counts_as_it_does_for_weights_that_are_here(tmp_path, answer, thought):
    with serving(FakeEndpoint(always=answer)) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.1")
    (line,) = lines_of(tmp_path / "a")
    replies = [turn["text"] for turn in line["turns"] if turn["speaker"] == "agent"]
    assert code == 0 and found["n_dialogues"] == 1 and set(replies) == {""} and found["usage"]["agent"]["calls"] == len(replies)
    assert line.get("thoughts") == ([thought] * len(replies) if thought else None)


def test_a_server_that_says_nothing_at_all_breaks_the_dialogue(tmp_path):
    with serving(FakeEndpoint(always=text(""))) as endpoint:
        code, found = evaluate(
            tmp_path / "a", endpoint.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.1", "--retries", "0"
        )
    assert code == 1 and found["n_dialogues"] == 0
    assert "the answer was empty" in " ".join(found["errors"]["reasons"])


def test_words_that_ran_out_of_tokens_are_said_as_far_as_they_go(tmp_path):
    # As a model whose weights are here is heard: to leave such dialogues out would judge it by the users with whom it was brief.
    with serving(FakeEndpoint(always=text(WORDS[:30], finish="length"))) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.1")
    (line,) = lines_of(tmp_path / "a")
    replies = [turn["text"] for turn in line["turns"] if turn["speaker"] == "agent"]
    assert code == 0 and set(replies) == {WORDS[:30].strip()}
    assert found["usage"]["agent"]["cut_off"] == found["usage"]["agent"]["calls"]


def nonsense_for(opening: str):
    def behave(request: Mapping[str, Any]) -> Reply:
        return garbage(request) if request["messages"][0]["content"].startswith(opening) else completion(WORDS)

    return behave


def test_nonsense_makes_an_error_with_its_reason_and_the_rest_is_said(tmp_path, capsys):
    victim = spread(load_bank().scenarios(Split.HELDOUT), 3)[0]
    with serving(FakeEndpoint(always=nonsense_for(victim.opening))) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", *SMALL, "--retries", "0")
    assert code == 1 and found["n_dialogues"] == 4 and found["errors"]["excluded_dialogues"] == 2
    (reason,) = found["errors"]["reasons"]
    assert "a response must be a chat completion, got '<html>what?</html>'" in reason and "--retries=0" in reason
    assert victim.scenario_id not in found["per_scenario"] and found["score"] == pytest.approx(fmean(found["per_scenario"].values()))
    out = capsys.readouterr().out
    assert "2 of 6 dialogues broke" in out and "chat completion" in out


def test_nonsense_of_a_user_that_a_model_plays_is_named_by_the_users_options(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(text("here"), always=garbage)) as other:
        who = ("--user", "llm", "--user-url", other.url, "--user-model", "m", "--user-retries", "0", "--cache", "off")
        code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.1", *who)
    assert code == 1
    (reason,) = found["errors"]["reasons"]
    assert "the simulated user must answer within --user-retries=0 retries" in reason


def test_a_fault_of_ours_while_dialogues_are_played_is_not_the_requests(tmp_path, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(agent_json, "describe", broken)
    with pytest.raises(ValueError, match="a fault of ours"):
        main(["evaluate", "L1", *SMALL, "--out", str(tmp_path / "a")])
    assert len(lines_of(tmp_path / "a")) == 6


def test_half_a_character_in_a_reply_costs_a_dialogue_and_not_the_evaluation(tmp_path):
    arguments = ("--model", "m", *SMALL, "--retries", "0", "--concurrency", "1")
    with serving(FakeEndpoint(text(WORDS), text("hi \ud800 there"), always=text(WORDS))) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, *arguments)
        assert code == 1 and found["errors"]["excluded_dialogues"] == 1
        assert "it holds half a character" in next(iter(found["errors"]["reasons"]))
        code, found = evaluate(tmp_path / "a", endpoint.url, *arguments)
    assert code == 0 and found["n_dialogues"] == 6


def test_a_server_that_only_talks_nonsense_gives_no_score_and_says_so(tmp_path, capsys):
    with serving(FakeEndpoint(text("hi"), always=garbage)) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", *SMALL, "--retries", "0")
    assert code == 1 and found["n_dialogues"] == 0 and found["score"] is None
    assert "no dialogue could be scored" in capsys.readouterr().out


def test_after_an_outage_the_same_command_goes_on_and_pays_for_nothing_twice(tmp_path):
    fine = [text(WORDS)] * 30
    arguments = ("--model", "m", "--num-scenarios", "40", "--strictness", "0.1", "--retries", "0", "--concurrency", "1")
    with serving(FakeEndpoint(*fine, always=garbage)) as endpoint:
        code, broken = evaluate(tmp_path / "a", endpoint.url, *arguments)
        assert code == 1 and broken["errors"]["excluded_dialogues"] == PATIENCE
        assert broken["errors"]["not_played"] == 40 - PATIENCE - broken["n_dialogues"] > 0
        answered = 29
        endpoint.always, endpoint.requests[:] = text(WORDS), []
        code, whole = evaluate(tmp_path / "a", endpoint.url, *arguments)
    assert code == 0 and whole["n_dialogues"] == 40 and whole["errors"]["excluded_dialogues"] == 0
    num_replies = sum(len(line["turns"]) // 2 for line in lines_of(tmp_path / "a"))
    assert len(endpoint.requests) - 1 == num_replies - answered


def test_a_server_needs_no_training_stack(tmp_path):
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
        command = ["evaluate", endpoint.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.1", "--out", str(tmp_path / "a")]
        done = subprocess.run([sys.executable, "-c", refuse, *command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 dialogues scored" in done.stdout


def test_a_key_is_sent_and_stands_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTS_KEY", KEY)
    with serving(FakeEndpoint(always=text(WORDS), key=KEY)) as endpoint:
        arguments = ("--model", "m", "--num-scenarios", "1", "--strictness", "0.1", "--key-env", "AGENTS_KEY")
        code, _ = evaluate(tmp_path / "a", endpoint.url, *arguments)
    assert code == 0 and set(endpoint.keys) == {KEY}
    assert not any(KEY.encode() in path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file())


GRADES = {"why": "w", "empathic_depth": 5, "core_insight": 4, "solution_crafting": 3, "dialogue_guidance": 2, "style_flexibility": 1}


def user_and_judge(request: Mapping[str, Any]) -> Reply:
    schema = request["response_format"]["json_schema"]["schema"]["properties"]
    return completion(json.dumps(GRADES)) if "core_insight" in schema else honest(request)


def test_a_user_that_a_model_plays_is_judged_by_a_model(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=user_and_judge)) as other:
        who = ("--user", "llm", "--user-url", other.url, "--user-model", "m", "--judge-url", other.url, "--judge-model", "m")
        code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *SMALL, "--max-turns", "2", *who, "--cache", str(tmp_path / "c"))
    # every reply moves this user by 5, from 40
    assert code == 0 and found["score"] == 50.0 and found["setting"]["user"]["kind"] == "llm"
    assert found["setting"]["user"]["prompts_hash"] == prompts_hash()
    assert found["capabilities"]["by"] == "judge" and found["capabilities"]["num_errors"] == 0
    assert [found["capabilities"][name]["value"] for name in GRADES if name != "why"] == [1.0, 0.75, 0.5, 0.25, 0.0]
    # the two dialogues of a scenario are word for word the same here, and nobody is asked twice
    assert found["usage"]["judge"]["calls"] == 3


def test_a_further_sitting_adds_to_what_was_used_and_keeps_the_grades(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=user_and_judge)) as other:
        user = ("--user", "llm", "--user-url", other.url, "--user-model", "m", "--max-turns", "1", "--cache", str(tmp_path / "c"))
        judge = ("--judge-url", other.url, "--judge-model", "m")
        _, before = evaluate(tmp_path / "a", agent.url, "--model", "m", *SMALL, *user, *judge)
        _, after = evaluate(tmp_path / "a", agent.url, "--model", "m", *SMALL, *user)
    assert after["usage"] == before["usage"] and before["usage"]["agent"]["calls"] > 0
    assert after["capabilities"] == before["capabilities"] and before["capabilities"]["by"] == "judge"


def asked_signals(*signals: int, to: str, behave: Behaviour) -> Behaviour:
    """Sends the signals to this process with the first answer to a question whose schema has this key; to any with an empty one."""
    waiting = list(signals)

    def respond(request: Mapping[str, Any]) -> Reply:
        is_meant = not to or to in request["response_format"]["json_schema"]["schema"]["properties"]
        while is_meant and waiting:
            os.kill(os.getpid(), waiting.pop(0))
        return behave(request)

    return respond


def num_graded(endpoint: FakeEndpoint) -> int:
    return sum("core_insight" in request["response_format"]["json_schema"]["schema"]["properties"] for request in endpoint.requests)


def judged_at(url: str, cache: Path) -> tuple[str, ...]:
    who = ("--user", "llm", "--user-url", url, "--user-model", "m", "--judge-url", url, "--judge-model", "m")
    return (*who, "--judge-concurrency", "1", "--max-turns", "1", "--cache", str(cache))


def test_an_interrupted_evaluation_pays_no_judge(tmp_path):
    agent = FakeEndpoint(text("here"), always=asked_signals(signal.SIGINT, to="", behave=text(WORDS)))
    with serving(agent), serving(FakeEndpoint(always=user_and_judge)) as other:
        who = judged_at(other.url, tmp_path / "c")
        code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *SMALL, "--concurrency", "1", *who)
    assert (code, num_graded(other)) == (130, 0) and found["n_dialogues"] == 1
    assert found["capabilities"] == {"by": None, "why_not": "interrupted"}


def test_an_interrupted_judge_is_asked_nothing_more_and_goes_on_where_it_was(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint()) as other:
        other.always = asked_signals(signal.SIGINT, to="core_insight", behave=user_and_judge)
        command = (agent.url, "--model", "m", *SMALL, *judged_at(other.url, tmp_path / "c"))
        code, found = evaluate(tmp_path / "a", *command)
        assert (code, num_graded(other)) == (130, 1) and found["n_dialogues"] == 6
        assert found["capabilities"] == {"by": None, "why_not": "interrupted"}
        code, found = evaluate(tmp_path / "a", *command)
    assert (code, num_graded(other)) == (0, 3) and found["capabilities"]["by"] == "judge"


def test_the_judges_connections_are_closed_when_somebody_interrupts_twice(tmp_path, monkeypatch):
    closed, close = [], Endpoints.close

    async def and_told(endpoints: Endpoints) -> None:
        closed.append(endpoints.config.model)
        await close(endpoints)

    monkeypatch.setattr(Endpoints, "close", and_told)
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(models=("m", "judge"))) as other:
        other.always = asked_signals(signal.SIGINT, signal.SIGTERM, to="core_insight", behave=user_and_judge)
        who = judged_at(other.url, tmp_path / "c")
        words = ["evaluate", agent.url, "--model", "m", *SMALL, *who, "--judge-model", "judge", "--out", str(tmp_path / "a")]
        assert main(words) == 130
    # The first are those that were asked whether they are there.
    assert closed.count("judge") == 2


def judge_that(behaviour: Behaviour) -> Behaviour:
    """A server that plays the user as it should and judges so."""

    def respond(request: Mapping[str, Any]) -> Reply:
        is_judge = "core_insight" in request["response_format"]["json_schema"]["schema"]["properties"]
        return behaviour(request) if is_judge else honest(request)

    return respond


def test_a_judge_that_answers_nonsense_is_told_of_stopped_and_asked_again_by_the_same_command(tmp_path, capsys):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=judge_that(text("well done")))) as other:
        few = ("--num-scenarios", "25", "--strictness", "0.1", "--judge-retries", "0")
        command = (agent.url, "--model", "m", *few, *judged_at(other.url, tmp_path / "c"))
        code, found = evaluate(tmp_path / "a", *command)
        assert (code, num_graded(other), found["n_dialogues"]) == (1, PATIENCE, 25)
        assert (found["capabilities"]["num_errors"], found["capabilities"]["num_not_sent"]) == (25, 5)
        out = capsys.readouterr().out
        assert "judge: 25 of 25 dialogues got no grades: the judge must answer within --judge-retries=0 retries" in out
        assert "; 5 were not sent after 20 such in a row, the same command goes on" in out
        other.always = user_and_judge
        code, found = evaluate(tmp_path / "a", *command)
    assert code == 0 and found["capabilities"]["num_errors"] == 0 and "no grades" not in capsys.readouterr().out


@pytest.mark.parametrize(("num_nonsense", "expected"), [(2, 0), (3, 1)])
def test_an_evaluation_of_which_the_judge_graded_half_counts(tmp_path, capsys, num_nonsense, expected):
    answers = [text("first nonsense"), *[text("nonsense")] * (num_nonsense - 1)]

    def judge(request: Mapping[str, Any]) -> Reply:
        return answers.pop(0)(request) if answers else user_and_judge(request)

    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint(always=judge_that(judge))) as other:
        few = ("--num-scenarios", "4", "--strictness", "0.1", "--judge-retries", "0")
        code, found = evaluate(tmp_path / "a", agent.url, "--model", "m", *few, *judged_at(other.url, tmp_path / "c"))
    assert code == expected and found["capabilities"]["num_errors"] == num_nonsense and found["capabilities"]["by"] == "judge"
    out = capsys.readouterr().out
    assert f"judge: {num_nonsense} of 4 dialogues got no grades: " in out and "first nonsense" in out and "not sent" not in out


def test_without_a_judge_the_capabilities_stay_open(tmp_path):
    with serving(FakeEndpoint(always=text(WORDS))) as agent, serving(FakeEndpoint()) as other:
        who = ("--user", "llm", "--user-url", other.url, "--user-model", "m", "--cache", "off")
        _, found = evaluate(tmp_path / "a", agent.url, "--model", "m", "--num-scenarios", "1", "--strictness", "0.5", *who)
    assert found["capabilities"] == {"by": None, "why_not": "no --judge-model was named"}


def test_profiles_are_played_by_the_preset_fitted_on_such_users(tmp_path):
    profiles = tmp_path / "profiles.jsonl"
    write_profiles(profiles, load_bank().scenarios(Split.TRAIN)[:2])
    with serving(FakeEndpoint(always=text("我在听，你慢慢说。"))) as endpoint:
        code, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", "--profiles", str(profiles))
    assert code == 0 and found["n_dialogues"] == 2
    assert found["setting"]["user"]["preset"] == "sage" and found["setting"]["strictness"] == [0.35] and found["setting"]["max_turns"] == 9


def test_a_file_of_profiles_is_told_from_another_by_what_it_holds(tmp_path, capsys):
    profiles = tmp_path / "profiles.jsonl"
    write_profiles(profiles, load_bank().scenarios(Split.TRAIN)[:2])
    with serving(FakeEndpoint(always=text("我在听，你慢慢说。"))) as endpoint:
        _, found = evaluate(tmp_path / "a", endpoint.url, "--model", "m", "--profiles", str(profiles))
        renamed = profiles.rename(tmp_path / "renamed.jsonl")
        code, again = evaluate(tmp_path / "a", endpoint.url, "--model", "m", "--profiles", str(renamed))
        assert code == 0 and again["setting_id"] == found["setting_id"] and "on renamed.jsonl, 2 dialogues" in capsys.readouterr().out
        write_profiles(renamed, load_bank().scenarios(Split.TRAIN)[2:4])
        assert "is another's (setting.bank_hash" in refused(
            capsys, endpoint.url, "--model", "m", "--profiles", str(renamed), "--out", str(tmp_path / "a")
        )


def test_profiles_without_first_words_need_a_model(tmp_path, capsys):
    profiles = tmp_path / "profiles.jsonl"
    write_profiles(profiles, [replace(scenario, opening="") for scenario in load_bank().scenarios(Split.TRAIN)[:2]])
    message = refused(capsys, "http://127.0.0.1:9/v1", "--model", "m", "--profiles", str(profiles))
    assert message.startswith("--profiles must have a first_talk each with --user rule, got 2 of 2 without") and "--user llm" in message
    who = ("--user", "llm", "--user-url", "http://127.0.0.1:9/v1", "--user-model", "m")
    assert main(["evaluate", "http://127.0.0.1:9/v1", "--model", "m", "--profiles", str(profiles), *who, "--dry-run"]) == 0


def test_the_same_weights_go_on_wherever_they_lie(tmp_path):
    def config(source: str, fingerprint: str) -> dict[str, Any]:
        agent = {"kind": "model", "source": source, "model": None, "fingerprint": fingerprint}
        return {"experiment": "evaluate", "name": "a", "agent": agent, "setting": {}}

    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(config("runs/x", "ab")))
    check_folder(folder, config("../elsewhere/x", "ab"))
    with pytest.raises(ConfigError, match=r"is another's \(agent.fingerprint 'ab' there and 'cd' now\)"):
        check_folder(folder, config("runs/x", "cd"))
    (folder / "config.yaml").write_text(json.dumps(config("http://a/v1", "")))
    with pytest.raises(ConfigError, match=r"agent\.source"):
        check_folder(folder, config("http://b/v1", ""))


def test_an_evaluation_with_a_user_of_other_prompts_is_another_one_and_goes_on_where_it_had_no_hash_of_them(tmp_path):
    def config(**prompts: str) -> dict[str, Any]:
        agent = {"kind": "server", "source": "http://a/v1", "model": "m", "fingerprint": ""}
        return {"experiment": "evaluate", "name": "a", "agent": agent, "setting": {"user": {"kind": "llm", **prompts}}}

    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(config()))
    check_folder(folder, config(prompts_hash="ab"))
    (folder / "config.yaml").write_text(json.dumps(config(prompts_hash="ab")))
    check_folder(folder, config(prompts_hash="ab"))
    with pytest.raises(ConfigError, match=r"setting\.user\.prompts_hash 'ab' there and 'cd' now"):
        check_folder(folder, config(prompts_hash="cd"))


def test_a_dry_run_plans_and_writes_nothing(tmp_path, capsys):
    assert main(["evaluate", "L1", "--dry-run", "--out", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    assert "dialogues 540, of at most 8 replies: up to 4,320 replies" in out and not (tmp_path / "a").exists()


def test_a_dry_run_says_what_is_kept_and_which_key_is_lacking(tmp_path, capsys):
    words = ["evaluate", "http://127.0.0.1:9/v1", "--model", "m", "--key-env", "UNSET_KEY", "--out", str(tmp_path / "b"), "--dry-run"]
    assert main(words) == 0
    assert "# it would be refused: --key-env must name an environment variable that is set, got 'UNSET_KEY'" in capsys.readouterr().out
    evaluate(tmp_path / "a", "L1", *SMALL)
    capsys.readouterr()
    assert main(["evaluate", "L1", *SMALL, "--out", str(tmp_path / "a"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "are kept" in out and "refused" not in out


def test_another_evaluation_is_not_written_over(tmp_path, capsys):
    evaluate(tmp_path / "a", "L1", "--num-scenarios", "1", "--strictness", "0.1")
    capsys.readouterr()
    message = refused(capsys, "L1", "--num-scenarios", "1", "--strictness", "0.3", "--out", str(tmp_path / "a"))
    assert message.startswith("--out must be the folder of this evaluation") and "[0.1] there and [0.3] now" in message


def test_an_evaluation_that_another_process_writes_is_refused_before_its_agent_is_made(tmp_path, capsys, monkeypatch):
    evaluate(tmp_path / "a", "L1", *SMALL)
    (tmp_path / "a" / "dialogues.jsonl").write_text("")
    capsys.readouterr()
    made = []
    monkeypatch.setattr("experiments.agents.evaluate.make_player", lambda *_: made.append("player"))
    with only_writer(tmp_path / "a"):
        message = refused(capsys, "L1", *SMALL, "--out", str(tmp_path / "a"))
    assert "must be written by one process at a time" in message and not made


def test_an_evaluation_is_described_while_no_other_process_may_write_it(tmp_path, monkeypatch):
    write = agent_json.write

    def write_alone(folder: Path, described: Mapping[str, Any]) -> None:
        with pytest.raises(ConfigError, match="one process at a time"):
            check_no_writer(folder)
        write(folder, described)

    monkeypatch.setattr(agent_json, "write", write_alone)
    assert evaluate(tmp_path / "a", "L1", *SMALL)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), "AGENT must be a folder, a server's address"),
        (("http://127.0.0.1:9/v1",), "--model must name the model that http://127.0.0.1:9/v1 serves"),
        (("http://127.0.0.1:9/v1", "--model", "m", "--out", "no/such"), "AGENT must name servers that answer"),
        (("http://u:p@h/v1", "--model", "m"), "AGENT must hold no user, password or query"),
        (("L1", "--strictness", "1.2"), "--strictness must hold values in [0, 1]"),
        (("L1", "--samples", "0"), "--samples must be at least 1, got 0"),
        (("L1", "--samples", "2"), "--samples must be 1 for the scripted L1"),
        (("L1", "--momentum", "1"), "--momentum must be in [0, 1), got 1.0"),
        (("L1", "--preset", "sage"), "--preset must be training for the built-in world"),
        (("L1", "--user", "llm"), "--user-model must name the model that plays the user"),
        (("L1", "--user-model", "m"), "--user-model goes with --user llm"),
        (("L1", "--judge-model", "m"), "--judge-model goes with --user llm"),
        (("L1", "--user-max-tokens", "5"), "--user-max-tokens goes with --user llm, got 5"),
        (("L1", "--judge-extra-body", "nope"), "--judge-extra-body goes with --judge-model, got 'nope'"),
        (("L1", "--strictness", ".3", ".3000001"), "--strictness must hold values in [0, 1], each once"),
        (("L1", "--model", "m"), "--model goes with the address of a server"),
        (("L1", "--profiles", "gone.jsonl"), "--profiles: gone.jsonl must be a file that can be read"),
        (("L1", "--name", "a/b"), "--name must consist of letters"),
        (("L1", "--temperature", "-1"), "--temperature must be at least 0"),
        (("L1", "--split", "sealed"), "--split must be heldout, got 'sealed': the sealed half judges a teacher once"),
        (("runs/nope",), "AGENT must be a run's folder, got 'runs/nope'; there is no such folder in runs"),
        (("tests/nope",), "AGENT must be a run's folder, got 'tests/nope'"),
        (("L1", "--temperature", "0.5"), "--temperature goes with an agent that is a model, got 0.5 with 'L1'"),
        (("L1", "--extra-body", "{}"), "--extra-body goes with an agent that is a model"),
        (("prior", "--retries", "9"), "--retries goes with an agent behind a server, got 9 with 'prior'"),
        (("http://127.0.0.1:9/v1", "--model", "m", "--dtype", "bfloat16"), "--dtype goes with an agent whose weights are here"),
        (("L1", "--gpu-memory-share", ".2"), "--gpu-memory-share goes with an agent that is a model, got 0.2"),
        (("prior", "--gpu-memory-share", "-.1", "--dry-run"), "--gpu-memory-share must be in [0, 1], got -0.1"),
        (("L1", "--judge-url", "http://127.0.0.1:9/v1"), "--judge-model must name the model at --judge-url"),
        (("L1", "--user", "llm", "--user-model", "m", "--momentum", "0"), "--momentum goes with --user rule, got 0.0"),
        (("L1", "--out", "/proc/x", "--dry-run"), "--out must be a folder that can be written, got '/proc/x'"),
        (("http://127.0.0.1:9/v1", "--model", "m", "--extra-body", "{a", "--dry-run"), "--extra-body must be"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_a_run_without_a_checkpoint_is_refused(tmp_path, capsys):
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / name).write_text("")
    assert "AGENT must have a whole checkpoint" in refused(capsys, str(tmp_path))


def test_help_says_what_an_agent_may_be(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    assert "a Hugging Face folder or id" in " ".join(capsys.readouterr().out.split())
