"""TRL's trainer with Attune's users and teachers: over a stub of what TRL hands in, and for real on a random model."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pytest
import torch
from test_session import Broken
from tiny_policy import save_tiny_policy, tiny_tokenizer

from attune_rl.credit import turn_advantages
from attune_rl.session import Session
from attune_rl.tokens import chat_of
from policy.algorithms import advantages
from simulator.dialogue import Outcome

if TYPE_CHECKING:
    from attune_rl.trl import Attune

# Imported where it is used: TRL imports vLLM, and each process of the tests collects all files.
pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed (make setup-bench)")

ROOT = Path(__file__).parents[1]
WORDS = "what happened with your sister?"


def make_attune(**changes) -> Attune:
    from attune_rl.trl import Attune

    return Attune(Session("frontier", group_size=3, max_turns=2, **changes), tiny_tokenizer(), max_context=1000)


def stub(attune: Attune, *, training: bool = True, use_vllm: bool = False, room: int = 64) -> SimpleNamespace:
    """A trainer whose model says the same words, and forgets the end of turn in every second dialogue."""
    ids, end = attune.chat.reply_ids(WORDS)[:-1], attune.chat.end_of_turn_id
    said = []

    def generate(contexts, images, fields, num_generations):
        assert (images, fields, num_generations) == (None, {}, 1)
        said.append(len(contexts))
        replies = [ids if number % 2 else [*ids, end] for number in range(len(contexts))]
        return replies, [[-0.5] * len(reply) for reply in replies] if use_vllm else None

    return SimpleNamespace(
        accelerator=SimpleNamespace(process_index=0, num_processes=1),
        state=SimpleNamespace(global_step=0),
        max_completion_length=room,
        model=SimpleNamespace(training=training),
        use_vllm=use_vllm,
        callback_handler=SimpleNamespace(callbacks=[attune]),
        eos_token_ids=[end],
        reward_funcs=[attune.emotion],
        _generate_single_turn=generate,
        said=said,
    )


@pytest.mark.parametrize("use_vllm", [False, True])
def test_sampled_tokens_are_masked_in_and_what_users_say_is_not(use_vllm):
    attune = make_attune()
    out = attune.rollout(list(attune.train_dataset(6)["prompt"]), stub(attune, use_vllm=use_vllm))
    for number, (ids, mask, turns) in enumerate(zip(out["completion_ids"], out["env_mask"], out["attune_turns"], strict=True)):
        sampled = [[token for token, m, k in zip(ids, mask, turns, strict=True) if m and k == turn] for turn in range(2)]
        assert [attune.chat.decode(each) for each in sampled] == [WORDS, WORDS]
        assert ids[-1] == attune.chat.end_of_turn_id and (attune.chat.end_of_turn_id in sampled[0]) == (number % 2 == 0)
    if use_vllm:
        assert all(
            logprob == (-0.5 if m else 0.0)
            for logprobs, mask in zip(out["logprobs"], out["env_mask"], strict=True)
            for logprob, m in zip(logprobs, mask, strict=True)
        )
    else:
        assert out["logprobs"] is None
    metrics = attune.session.metrics()
    assert metrics["curriculum/outcomes_observed"] == 2 and metrics["curriculum/outstanding"] == 0
    assert metrics["session/replies"] == 12 and metrics["session/replies_cut"] == 6


def test_evaluation_plays_what_the_prompts_name_and_reaches_no_teacher():
    attune = make_attune()
    before = attune.session.state_dict()
    prompts = list(attune.eval_dataset(2, (0.2, 0.8))["prompt"])
    trainer = stub(attune, training=False)
    out = attune.rollout(prompts, trainer)
    assert [text.partition("\n")[0].split(", ")[1] for text in out["attune_dialogue"]] == ["strictness 0.20", "strictness 0.80"] * 2
    turned = attune.rollout(prompts[::-1], trainer)
    assert turned["attune_dialogue"] == out["attune_dialogue"][::-1]
    assert attune.session.state_dict() == before
    mixed, plain = [*attune.train_dataset(2)["prompt"], prompts[0]], ["hello"] * 3
    for training, these in (
        (True, prompts),
        (False, list(attune.train_dataset(3)["prompt"])),
        (True, mixed),
        (True, plain),
        (False, plain),
    ):
        with pytest.raises(ValueError, match=r"^train_dataset must be attune\.train_dataset"):
            attune.rollout(these, stub(attune, training=training))


def test_a_dialogue_that_broke_has_no_reward_and_the_others_go_on():
    attune = make_attune()
    attune.session.user = Broken()
    out = attune.rollout(list(attune.train_dataset(3)["prompt"]), stub(attune))
    columns = zip(out["completion_ids"], out["env_mask"], strict=True)
    assert out["attune_reward"] == [None] * 3 and all(sum(mask) == 0 and ids for ids, mask in columns)
    assert attune.session.metrics()["session/broken"] == 3
    attune = make_attune()
    attune.session.user = Broken(attune.session.user)
    out = attune.rollout(list(attune.train_dataset(3)["prompt"]), stub(attune))
    assert out["attune_reward"] == [None] * 3 and out["attune_credit"] == [[]] * 3


def test_an_evaluation_counts_the_dialogues_that_broke():
    attune, logged = make_attune(), {}
    attune.session.user = Broken()
    out = attune.rollout(list(attune.eval_dataset(2, (0.5,))["prompt"]), stub(attune, training=False))
    columns = {name: out[name] for name in ("attune_reward", "attune_dialogue")}
    assert attune.emotion(**columns, log_extra=lambda *_: None, log_metric=logged.__setitem__) == [None] * 2
    assert logged == {"session/broken": 2.0}


def test_a_dialogue_that_no_longer_fits_is_cut_off():
    attune = make_attune()
    attune.max_context = 120
    out = attune.rollout(list(attune.train_dataset(3)["prompt"]), stub(attune, room=30))
    assert all(text.partition("\n")[0].endswith("truncated") for text in out["attune_dialogue"])
    assert all(0.0 <= reward <= 1.0 for reward in out["attune_reward"])


def test_a_context_without_room_for_a_reply_is_refused():
    attune = make_attune()
    with pytest.raises(ValueError, match=r"max_context must leave room for a reply of max_completion_length=1000 tokens"):
        attune.rollout(list(attune.train_dataset(3)["prompt"]), stub(attune, room=1000))


def test_a_trainer_that_does_not_call_back_or_has_another_end_of_turn_is_refused():
    attune = make_attune()
    for change, says in (
        ({"callback_handler": SimpleNamespace(callbacks=[])}, "callbacks must hold"),
        ({"eos_token_ids": [1]}, "eos_token must be"),
        ({"reward_funcs": [attune.emotion, len]}, "reward_funcs must be attune.emotion alone, got 2"),
    ):
        with pytest.raises(ValueError, match=says):
            attune.rollout(list(attune.train_dataset(3)["prompt"]), SimpleNamespace(**{**vars(stub(attune)), **change}))


def test_groups_that_are_only_scored_get_no_reward_and_no_credit(monkeypatch):
    attune = make_attune()
    tickets = [replace(ticket, learned=number < 3) for number, ticket in enumerate(attune._issued(6, stub(attune)))]
    monkeypatch.setattr(attune, "_issued", lambda num, trainer: tickets)
    out = attune.rollout(list(attune.train_dataset(6)["prompt"]), stub(attune))
    assert [reward is None for reward in out["attune_reward"]] == [False] * 3 + [True] * 3
    assert [bool(credit) for credit in out["attune_credit"]] == [True] * 3 + [False] * 3


def test_vllm_is_asked_for_as_many_replies_by_every_process_at_every_turn(monkeypatch):
    attune = make_attune()
    trainer = stub(attune, use_vllm=True)
    leave = iter([True, False, False, False, False, False])
    react = attune.session.user.react

    async def some_leave(dialogue, reply):
        reaction = await react(dialogue, reply)
        return replace(reaction, outcome=Outcome.FAREWELL) if next(leave, False) else reaction

    monkeypatch.setattr(attune.session.user, "react", some_leave)
    out = attune.rollout(list(attune.train_dataset(6)["prompt"]), trainer)
    assert trainer.said == [6, 6] and sorted(len(set(turns)) for turns in out["attune_turns"]) == [1, 2, 2, 2, 2, 2]


def test_wrong_settings_of_the_trainer_are_refused():
    attune, state = make_attune(), SimpleNamespace(global_step=0, max_steps=5, stateful_callbacks={})
    batches = {"steps_per_generation": 4, "num_iterations": 1, "gradient_accumulation_steps": 2}
    right = {"num_generations": 3, "logging_steps": 1, "logging_strategy": "steps", "output_dir": ".", **batches}
    attune.on_train_begin(SimpleNamespace(**right), state, None)
    # A batch is one update, however many steps it serves. TRL logs 0 where every dialogue of a step broke.
    assert attune.session.num_updates == 2
    heard = []
    attune.session.teacher.on_update = heard.append
    for entropy in (1.0, 2.0, 0.0, 3.0):
        attune.on_log(None, None, None, {"entropy": entropy, "kl": 0.1})
    assert [(each.policy_version, each.entropy, each.kl) for each in heard] == [(1, 1.5, 0.1), (2, 3.0, 0.1)]
    # A training that goes on from the middle of a batch begins with a new one.
    attune.on_log(None, None, None, {"entropy": 9.0})
    saved = {"Attune": attune.state()}
    attune.on_train_begin(SimpleNamespace(**right), SimpleNamespace(global_step=5, max_steps=9, stateful_callbacks=saved), None)
    attune.rollout(list(attune.train_dataset(6)["prompt"]), stub(attune))
    for entropy in (1.0, 1.0):
        attune.on_log(None, None, None, {"entropy": entropy})
    assert (heard[-1].policy_version, heard[-1].entropy) == (3, 1.0)
    for wrong, says in (
        ({"num_generations": 4}, "num_generations must be the session's group_size=3, got 4"),
        ({"logging_steps": 5}, "must be 1"),
    ):
        with pytest.raises(ValueError, match=says):
            attune.on_train_begin(SimpleNamespace(**(right | wrong)), state, None)
    with pytest.raises(ValueError, match="the session must be new for a new training, got one that has had 3 updates"):
        attune.on_train_begin(SimpleNamespace(**right), state, None)
    with pytest.raises(ValueError, match="the checkpoint must hold a session to go on from"):
        attune.on_train_begin(SimpleNamespace(**right), SimpleNamespace(global_step=7, max_steps=9, stateful_callbacks={}), None)


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>assistant\n<think>\n"])
def test_a_tokenizer_without_a_chat_template_or_with_one_that_thinks_is_refused(template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"^the model must have a "):
        chat_of(tokenizer, "")


def test_credit_by_turn_is_that_of_the_core():
    generator = np.random.default_rng(0)
    for _ in range(50):
        size = int(generator.integers(2, 6))
        rewards = [list(generator.normal(size=generator.integers(0, 5))) if generator.random() > 0.2 else None for _ in range(size)]
        num_turns = max((len(each) for each in rewards if each is not None), default=0)
        filled = torch.full((size, num_turns), torch.nan, dtype=torch.float64)
        for row, each in zip(filled, rewards, strict=True):
            row[: len(each or ())] = torch.tensor(each or [])
        valid = torch.tensor([each is not None for each in rewards])
        expected = advantages.turn_advantages(filled, torch.zeros(size, dtype=torch.int64), valid, discount=0.6)
        rewards = [None if each is None else np.array(each) for each in rewards]
        for ours, theirs in zip(turn_advantages(rewards, discount=0.6), expected, strict=True):
            np.testing.assert_allclose(ours, theirs[: len(ours)], atol=1e-9)


SCRIPT = """
import json
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from attune_rl import Session
from attune_rl.trl import Attune, TurnCreditTrainer

folder, out, steps, per_process, resume = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:] == ["resume"]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
attune = Attune(Session("frontier", group_size=4, max_turns=2), tokenizer, system_prompt="be kind.", max_context=600)
args = GRPOConfig(
    output_dir=out, max_steps=steps, per_device_train_batch_size=per_process, num_generations=4, max_completion_length=6, logging_steps=1,
    per_device_eval_batch_size=2, num_generations_eval=1, save_steps=1, report_to=[], use_cpu=True, learning_rate=1e-3,
    lr_scheduler_type="constant", seed=0, gradient_checkpointing=False,
)
trainer = TurnCreditTrainer(
    model=model, processing_class=tokenizer, rollout_func=attune.rollout, reward_funcs=attune.emotion, callbacks=[attune],
    train_dataset=attune.train_dataset(64), eval_dataset=attune.eval_dataset(1, (0.3, 0.7)), args=args,
)
trainer.train(resume_from_checkpoint=resume)
told = json.dumps(attune.session.state_dict())
scores = trainer.evaluate()
assert json.dumps(attune.session.state_dict()) == told and 0.0 < scores["eval_rewards/emotion/mean"] < 1.0, scores
with open(f"{out}-{trainer.accelerator.process_index}.json", "w") as file:
    json.dump(attune.session.state_dict(), file)
"""


def run(script: Path, *words: object) -> None:
    """In this process: starting one that imports TRL takes longer than what these scripts do."""
    with chdir(script.parent), mock.patch.object(sys, "argv", [str(script), *map(str, words)]):
        runpy.run_path(str(script), run_name="__main__")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with the script, a random model, and two steps of training in `whole`."""
    folder = tmp_path_factory.mktemp("trl")
    save_tiny_policy(folder / "model", hidden=32, layers=1)
    (folder / "script.py").write_text(SCRIPT)
    run(folder / "script.py", folder / "model", folder / "whole", 2, 8)
    return folder


def test_the_script_in_the_readme_trains(trained):
    source = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert len(source.splitlines()) <= 25
    small = source.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(trained / "model")).replace(
        "max_steps=3", "max_steps=3, report_to=[], use_cpu=True"
    )
    (trained / "readme.py").write_text(small.replace("max_completion_length=40", "max_completion_length=6"))
    run(trained / "readme.py")
    counts = state_of(trained / "out/checkpoint-3")["counts"]
    assert (counts["dialogues"], counts["broken"], counts["missing"], counts["ignored"]) == (24, 0, 0, 0)


def state_of(checkpoint: Path) -> dict:
    saved = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["Attune"]
    return saved["attributes"]["session"]


def test_it_trains_for_real_and_the_teacher_hears_of_every_update(trained):
    first, second = (state_of(trained / "whole" / f"checkpoint-{step}") for step in (1, 2))
    assert (first["version"], second["version"]) == (1, 2) and second["counts"]["dialogues"] == 16 and second["open"] == []
    logs = json.loads((trained / "whole/checkpoint-2/trainer_state.json").read_text())["log_history"]
    assert all(log["grad_norm"] > 0 and 0 < log["rewards/emotion/mean"] < 1 and log["session/broken"] == 0 for log in logs)


def test_a_resumed_training_ends_as_one_that_was_not_stopped(trained):
    shutil.copytree(trained / "whole/checkpoint-1", trained / "again/checkpoint-1")
    run(trained / "script.py", trained / "model", trained / "again", 2, 8, "resume")
    assert state_of(trained / "again/checkpoint-2") == state_of(trained / "whole/checkpoint-2")


COLOCATED = """
import json
import sys
from pathlib import Path
from policy.engine.vllm import import_vllm
from policy.prior import SHIPPED
import_vllm()
import vllm._custom_ops
vllm._custom_ops._supports_onednn = False  # on CPUs with AVX-512 oneDNN keeps the first weights, and TRL cannot load others
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig
from attune_rl import Session
from attune_rl.trl import Attune, TurnCreditTrainer

tokenizer, model = AutoTokenizer.from_pretrained(SHIPPED), AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="float32")
attune = Attune(Session("frontier", group_size=4, max_turns=3), tokenizer, max_context=400)
args = GRPOConfig(
    output_dir=sys.argv[1], max_steps=2, per_device_train_batch_size=8, num_generations=4, max_completion_length=40, logging_steps=1,
    save_strategy="no", report_to=[], use_cpu=True, bf16=False, learning_rate=1e-3, lr_scheduler_type="constant",
    use_vllm=True, vllm_mode="colocate", vllm_max_model_length=400,
)
trainer = TurnCreditTrainer(
    model=model, processing_class=tokenizer, rollout_func=attune.rollout, reward_funcs=attune.emotion, callbacks=[attune],
    train_dataset=attune.train_dataset(64), args=args,
)
trainer.train()
Path(sys.argv[1], "logs.json").write_text(json.dumps(trainer.state.log_history[:2]))
"""


@pytest.mark.engine
def test_vllm_in_the_trainers_process_samples_from_the_newest_weights_and_each_token_keeps_its_logprob(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_CPU_KVCACHE_SPACE": "1", "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "script.py").write_text(COLOCATED)
    command = [sys.executable, tmp_path / "script.py", tmp_path / "out"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = json.loads((tmp_path / "out/logs.json").read_text())
    assert [log["session/dialogues"] for log in logs] == [8, 16] and all(log["session/broken"] == 0 for log in logs)
    # The engine computes in bfloat16, and the trainer does not. One token off, or an update behind, they would differ by tenths.
    assert all(log["sampling/sampling_logp_difference/mean"] < 0.03 < log["entropy"] for log in logs), logs


def test_credit_reaches_the_tokens_of_its_turn(monkeypatch):
    from attune_rl.trl import TurnCreditTrainer

    inputs = [{"attune_credit": [0.5, -1.0], "attune_turns": [0, 0, 1, 1, 1]}, {"attune_credit": [], "attune_turns": [0]}]
    output = {"completion_ids": torch.zeros(2, 6), "advantages": torch.tensor([2.0, 1.0])}
    monkeypatch.setattr("trl.GRPOTrainer._generate_and_score_completions", lambda self, inputs: dict(output))
    trainer = TurnCreditTrainer.__new__(TurnCreditTrainer)
    trainer.model, trainer.turn_credit = SimpleNamespace(training=True), 0.5
    scored = trainer._generate_and_score_completions(inputs)["advantages"]
    torch.testing.assert_close(scored, torch.tensor([[1.25, 1.25, 0.5, 0.5, 0.5, 1.0], [0.5] * 6]))
