"""TRL's trainer on two processes that share a group; run by `make adapters`. The rest of it is in tests/test_trl_adapter.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("policy"):
    pytest.skip("it takes a minute, and runs by make adapters", allow_module_level=True)
pytest.importorskip("trl", reason="TRL is not installed (make adapters)")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCRIPT = """
import json
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig
from attune_rl import Session
from attune_rl.trl import Attune, TurnCreditTrainer

tokenizer, model = AutoTokenizer.from_pretrained("model"), AutoModelForCausalLM.from_pretrained("model", dtype="float32")
attune = Attune(Session("frontier", group_size=4, max_turns=2), tokenizer, system_prompt="be kind.", max_context=900)
args = GRPOConfig(
    output_dir="out", max_steps=2, per_device_train_batch_size=2, num_generations=4, max_completion_length=6, logging_steps=1,
    report_to=[], use_cpu=True, learning_rate=1e-3, seed=0, gradient_checkpointing=False,
)
trainer = TurnCreditTrainer(
    model=model, processing_class=tokenizer, rollout_func=attune.rollout, reward_funcs=attune.emotion, callbacks=[attune],
    train_dataset=attune.train_dataset(64), args=args,
)
trainer.train()
with open(f"{trainer.accelerator.process_index}.json", "w") as file:
    json.dump(attune.session.state_dict(), file)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special, alphabet = ["<|im_end|>", "<|im_start|>", "<|pad|>"], pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(["be kind."], trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "model")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def test_two_processes_share_a_group_and_hear_of_all_of_it(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "script.py"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    states = [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]
    assert states[0] == states[1]
    assert states[0]["counts"]["dialogues"] == 8 and states[0]["open"] == [] and states[0]["teacher"]["counts"]["observed"] == 2
