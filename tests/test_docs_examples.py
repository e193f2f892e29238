"""The examples in the docs run as they stand there, and the links between pages lead somewhere."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from policy_factories import random_talks
from tiny_policy import tiny_tokenizer
from tiny_student import make_outcome

from attune_rl import Session
from curriculum import TEACHERS
from curriculum.__main__ import describe
from curriculum.collapse.history import INDICATOR_METRICS as INDICATORS
from experiments.config import load
from experiments.preflight import warnings
from experiments.recorder import Recorder
from policy.algorithms.algorithms import ALGORITHMS
from policy.config import ALGORITHM_CONFIGS
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.user import USERS, make_user
from simulator.world import load_bank

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("experiments/*.md")), *sorted(ROOT.glob("studies/*/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_that_a_page_imports_exist(page: Path):
    ours = r"from ((?:simulator|curriculum|policy|attune_rl|experiments|analysis)[\w.]*) import ([\w, ]+)"
    for module, names in re.findall(ours, page.read_text(encoding="utf-8")):
        found = importlib.import_module(module)
        assert [name for name in names.split(", ") if not hasattr(found, name.strip())] == [], module


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def run_example(page: str, place: int, *, name: str = "example") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": name}
    exec(compile(examples(page)[place], page, "exec", dont_inherit=True), names)
    return names


def num_lines(source: str) -> int:
    return len(source.splitlines())


def test_the_curriculum_runs_inside_another_trainer(capsys):
    names = run_example("teacher_api.md", 0)
    assert len(capsys.readouterr().out.splitlines()) == 3
    json.dumps(names["saved"])
    assert names["teacher"].metrics()["curriculum/outcomes_observed"] == 18.0


def test_the_loop_in_the_readme_plays_and_teaches(capsys):
    names = run_example("../README.md", 0)
    assert 0.0 <= float(capsys.readouterr().out) <= 1.0
    metrics = names["session"].metrics()
    assert (metrics["session/dialogues"], metrics["session/broken"], metrics["curriculum/outcomes_observed"]) == (40.0, 0.0, 10.0)


def test_the_example_of_tokens_masks_what_was_sampled():
    tokenizer, session = tiny_tokenizer(), Session("uniform", group_size=2, max_turns=2)
    words = tokenizer.encode("what happened with your sister?", add_special_tokens=False)
    play, (task,) = run_example("trainers.md", 0)["play"], session.propose(1)
    episode = session.episode(task)
    prompt_ids, done = asyncio.run(play(episode, tokenizer, lambda context: (words, [-1.0] * len(words))))
    sampled = [(token, turn) for token, turn, is_sampled in zip(done.token_ids, done.turn_ids, done.loss_mask, strict=True) if is_sampled]
    assert sampled == [(token, turn) for turn in (0, 1) for token in words] and sum(done.logprobs) == -len(sampled)
    # Both replies had no end of turn, which the policy is not blamed for; all else is as the template would have it.
    assert episode.result().num_cut == 2 and episode.result().num_tokens == len(sampled)
    said = [{"role": "system", "content": "You are a kind friend."}, *episode.dialogue.messages()[:-1]]  # nobody answers the last words
    text = tokenizer.apply_chat_template(said, tokenize=False)
    assert tokenizer.decode([*prompt_ids, *done.token_ids]).strip() == text.strip()


def test_the_monitor_runs_inside_another_trainer(capsys):
    names = run_example("collapse.md", 0)
    rang = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert "entropy_spent" in rang and rang.count("collapse") == 1
    json.dumps(names["saved"])


def test_every_indicator_is_in_the_table_for_other_trainers():
    text = (DOCS / "collapse.md").read_text(encoding="utf-8")
    section = text[text.index("## Inside another trainer") : text.index("## Alarms")]
    named = [re.findall(r"`([a-z0-9_]+)`", row.split("|")[1]) for row in section.splitlines() if row.startswith("| `")]
    assert sorted(name for names in named for name in names) == sorted(INDICATORS)


def test_a_teacher_of_ones_own_takes_thirty_lines_and_keeps_the_contract():
    assert num_lines(examples("teacher_api.md")[1]) <= 30
    names = run_example("teacher_api.md", 1, name="staircase")
    teacher = names["StaircaseTeacher"](names["StaircaseConfig"](), scenarios={"a": ["1"], "b": ["2"]}, group_size=8, seed=0)
    rng, ability = np.random.default_rng(0), {"a": 0.3, "b": 0.7}
    for step in range(200):
        tasks = teacher.propose(4, policy_version=step)
        chances = [1.0 / (1.0 + np.exp(8.0 * (task.strictness - ability[task.family]))) for task in tasks]
        teacher.observe([make_outcome(task, rng.binomial(8, p)) for task, p in zip(tasks, chances, strict=True)])
    assert abs(teacher.level["a"] - 0.3) < 0.15 and abs(teacher.level["b"] - 0.7) < 0.15
    copy = names["StaircaseTeacher"](names["StaircaseConfig"](), scenarios={"a": ["1"], "b": ["2"]}, group_size=8, seed=1)
    copy.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    assert copy.propose(4, policy_version=200) == teacher.propose(4, policy_version=200)


def test_a_teacher_of_ones_own_is_listed_with_its_settings(tmp_path, monkeypatch):
    (tmp_path / "staircase_of_ones_own.py").write_text(examples("teacher_api.md")[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("staircase_of_ones_own")
    monkeypatch.setitem(TEACHERS, "staircase", (module.StaircaseConfig, module.StaircaseTeacher))
    idea, *settings = describe("staircase").splitlines()
    assert idea == f"staircase: {module.StaircaseTeacher.__doc__.splitlines()[0]}" and any("teacher.step" in line for line in settings)


async def talked(user: Any, reply: str, *, strictness: float) -> Dialogue:
    dialogue = await user.open(load_bank().scenarios(Split.TRAIN)[0], Difficulty.along(strictness), seed=0)
    while dialogue.outcome is None and dialogue.num_replies < 8:
        reaction = await user.react(dialogue, reply)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn, outcome=reaction.outcome)
    return dialogue


def test_the_example_teacher_is_a_kind_and_finds_where_its_learner_meets_the_target(monkeypatch):
    monkeypatch.setattr("curriculum.TEACHERS", dict(TEACHERS))
    names = run_example("extending.md", 0)
    monkeypatch.setitem(TEACHERS, "setpoint", names["TEACHERS"]["setpoint"])
    config = load("smoke", ["teacher.kind=setpoint", "teacher.target=0.7"]).teacher
    teacher = names["SetpointTeacher"](config, scenarios={"a": ["1"]}, group_size=10, seed=0)
    for step in range(300):
        tasks = teacher.propose(1, policy_version=step)
        # A learner whose success falls from 1 to 0 as strictness rises: it meets 0.7 at 0.3.
        teacher.observe([make_outcome(task, round(10 * (1.0 - task.strictness))) for task in tasks])
    assert abs(teacher.level - 0.3) < 0.06
    copy = names["SetpointTeacher"](config, scenarios={"a": ["1"]}, group_size=10, seed=1)
    copy.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    assert copy.propose(2, policy_version=300) == teacher.propose(2, policy_version=300)


def test_the_example_user_is_a_kind(monkeypatch):
    monkeypatch.setattr("simulator.user.USERS", dict(USERS))
    names = run_example("extending.md", 1)
    monkeypatch.setitem(USERS, "asked", names["USERS"]["asked"])
    config = load("smoke", ["simulator.kind=asked", "simulator.pleased=20"]).simulator
    user = names["AskedUser"](config)
    asked, tired = (asyncio.run(talked(user, reply, strictness=0.5)) for reply in ("What happened?", "Cheer up."))
    # 40 and three times 20; 40 less 10 a turn, until the fourth falls below 10.
    assert [turn.emotion for turn in asked.turns if turn.emotion is not None] == [40, 60, 80, 100]
    assert asked.outcome is Outcome.DELIGHTED
    assert [turn.emotion for turn in tired.turns if turn.emotion is not None] == [40, 30, 20, 10, 0]
    assert tired.outcome is Outcome.LEFT
    assert Dialogue.from_dict(tired.to_dict(), scenario=tired.scenario) == tired


def test_the_example_term_has_a_share_of_the_reward(monkeypatch):
    monkeypatch.setattr("simulator.reward.REWARD_TERMS", {})
    names = run_example("extending.md", 2)
    term = names["REWARD_TERMS"]["brief"]
    replies = ["What happened?", "one two three four five six seven eight nine ten eleven", "Tell me.", "Go on."]
    dialogue = asyncio.run(talked_in_turn(replies))
    assert term.by_turn(dialogue) == [0.25, 0.0, 0.25, 0.25] and term.total(dialogue) == 0.75
    monkeypatch.setattr("experiments.config.REWARD_TERMS", names["REWARD_TERMS"])
    assert load("smoke", ["rollout.reward_terms.brief=0.2"]).rollout.reward_terms == {"brief": 0.2}


async def talked_in_turn(replies: list[str]) -> Dialogue:
    """A dialogue in which the built-in user answers these."""
    user = make_user("rule", RuleUserConfig(momentum=0.0))
    dialogue = await user.open(load_bank().scenarios(Split.TRAIN)[0], Difficulty.along(0.1), seed=0)
    for reply in replies:
        reaction = await user.react(dialogue, reply)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn)
    return dialogue


def test_the_example_callback_leaves_figures_in_the_summary(monkeypatch):
    monkeypatch.setattr("experiments.callbacks.CALLBACKS", {})
    names = run_example("extending.md", 3, name="__main__")
    monkeypatch.setattr("experiments.config.CALLBACKS", names["CALLBACKS"])
    config = load("smoke", ["callbacks.last_words.num=3"])
    run = SimpleNamespace(state=SimpleNamespace(alarms=[{}] * 5, policy_tokens=70))
    assert config.callbacks["last_words"].at_end(run, {}) == {"last_words": {"alarms": 3, "tokens": 70}}


def test_the_example_logger_gets_every_scalar_of_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.callbacks.CALLBACKS", {})
    names = run_example("extending.md", 4, name="__main__")
    recorder = Recorder(tmp_path)
    run = SimpleNamespace(recorder=recorder)
    recorder.listeners.append(partial(names["CsvLog"]().on_metrics, run))
    recorder.scalars(0, {"eval/full_score": 40.0})
    recorder.metrics(1, {"reward/mean": 0.5, "actor/kl_loss": math.nan})
    recorder.close()
    written = (tmp_path / "scalars.csv").read_text().splitlines()
    assert written == ["0,eval/full_score,40.0", "1,reward/mean,0.5", "1,actor/kl_loss,nan"]


def test_the_example_algorithm_is_a_kind(monkeypatch):
    names = run_example("algorithms.md", 0)
    monkeypatch.setitem(ALGORITHMS, "best_of_group", names["BestOfGroup"])
    monkeypatch.setitem(ALGORITHM_CONFIGS, "best_of_group", names["BestOfGroupConfig"])
    whole = load("smoke", ["algorithm.kind=best_of_group", "algorithm.clip_high=0.3", "rollout.binary_reward_at=70"])
    assert not any("turn_credit" in warning for warning in warnings(whole))
    config = whole.algorithm
    batch = random_talks(seed=3)
    advantages_BT = ALGORITHMS[config.kind](config).add_advantages(batch).advantages_BT
    best = set()
    for group in set(batch.group_ids_B.tolist()):
        alive = [row for row in range(batch.num_rollouts) if batch.group_ids_B[row] == group and batch.valid_B[row]]
        if len(alive) > 1:
            best.add(max(alive, key=lambda row: float(batch.rewards_B[row])))
    assert len(best) == 3
    for row in range(batch.num_rollouts):
        expected = batch.loss_mask_BT[row].float() * (row in best)
        assert advantages_BT[row].tolist() == expected.tolist()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(place), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_heading_stands_once_on_its_page_so_that_links_lead_to_one_place(page):
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE)
    assert [heading for heading in set(headings) if headings.count(heading) > 1] == []


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DOCS.glob("*.md") if path.name != "README.md" and f"({path.name})" not in index] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("studies/*/results.csv")), ids=lambda path: path.parent.name)
def test_every_study_says_what_was_asked_what_was_expected_and_what_came_out(page):
    text = (page.parent / "README.md").read_text(encoding="utf-8")
    places = [text.find(f"**{part}") for part in ("Question.", "Set-up.", "Expected beforehand", "Found")]
    assert -1 not in places and places == sorted(places)
