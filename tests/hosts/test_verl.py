"""verl's own trainer, workers, queue and replay buffer over a stub of its engine and its updates; run by `make adapters`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl is not installed (make adapters)")

import ray
import transfer_queue
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainerSync, get_trainer_cls
from verl.workers.rollout.replica import TokenOutput

LOADED = "attune_rl.verl" in sys.modules
"""By verl itself, through the entry point."""
from attune_rl import verl as adapter  # noqa: E402

SAID = ["That sounds hard. What hurts most?", "You did what you could, and nobody could ask for more.", "Tell me more about it."]
GROUP_SIZE, NUM_GROUPS = 4, 3
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Engine:
    """Says one of three things; every fourth reply has no end, and the fifth dialogue of a worker finds it broken."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, breaks: bool = False) -> None:
        self.tokenizer, self.breaks, self.calls, self.requests = tokenizer, breaks, 0, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        assert sampling_params["stop_token_ids"] == self.tokenizer.convert_tokens_to_ids(["<|im_end|>"])
        if request_id not in self.requests:
            self.requests.append(request_id)
        if self.breaks and self.requests.index(request_id) == 4:
            raise ConnectionError("the engine is gone")
        text = SAID[self.calls % 3] + "<|im_end|>" if self.calls % 4 else "word " * 200
        self.calls += 1
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][: sampling_params["max_tokens"]]
        versions = {"min_global_steps": 3, "max_global_steps": 3}
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), extra_fields=versions)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|im_end|>", "<|im_start|>", "<|pad|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        SAID, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>", additional_special_tokens=["<|im_start|>"]
    )
    made.chat_template = CHATML
    return made


@pytest.fixture(scope="module")
def model(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen2Config(vocab_size=len(tokenizer), architectures=["Qwen2ForCausalLM"], **sizes).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def queue():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    transfer_queue.init()
    yield
    ray.shutdown()


@pytest.fixture
def config(model, tmp_path):
    settings = {
        "data.custom_cls.path": "pkg://attune_rl.verl",
        "data.custom_cls.name": "AttuneTasks",
        "data.train_files": "teacher",
        "data.val_files": "heldout",
        "data.train_batch_size": NUM_GROUPS,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "+data.attune.max_turns": 3,
        "+data.attune.num_heldout": 2,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": GROUP_SIZE,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.rollout.prompt_length": 512,
        "actor_rollout_ref.rollout.response_length": 1024,
        "trainer.total_training_steps": 50,
        "trainer.default_local_dir": tmp_path / "out",
        "trainer.v1.trainer_mode": "attune_sync",
    }
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"{name}={value}" for name, value in settings.items()])


def make_trainer(config, engine: Engine):
    """verl's trainer up to its replay buffer, with its workers but without engines and models."""
    config = config.copy()
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    trainer._init_tokenizer()
    trainer._init_dataloader()
    nobody = SimpleNamespace(reward_loop_worker_handles=[])
    trainer.global_steps, trainer.reward_loop_manager, trainer.use_teacher_policy = 1, nobody, False
    trainer.agent_loop_manager = AgentLoopManagerTQ.create(config=config, llm_client=engine)
    return trainer


@pytest.fixture
def without_updates(monkeypatch):
    """An update is the replay buffer's batch, and an entropy."""

    def step_once(self, metrics, timing_raw, sample_batch_size):
        batch, _ = self.replay_buffer.sample(global_steps=self.global_steps, partition_id="train", batch_size=sample_batch_size)
        metrics["actor/entropy"] = 1.3
        return batch

    monkeypatch.setattr(PPOTrainerSync, "_step_once", step_once)
    monkeypatch.setattr(
        PPOTrainerSync, "_save_checkpoint", lambda self: folder_of(self, self.global_steps).mkdir(parents=True, exist_ok=True)
    )
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: setattr(self, "global_steps", 1))


def folder_of(trainer, step: int) -> Path:
    return Path(trainer.config.trainer.default_local_dir) / f"global_step_{step}"


def test_verl_loads_the_adapter_by_itself():
    assert LOADED


def test_a_step_of_verls_trainer_reaches_the_teacher_before_its_checkpoint(config, tokenizer, without_updates, monkeypatch):
    trainer, metrics, heard = make_trainer(config, Engine(tokenizer)), {}, []
    monkeypatch.setattr(adapter.the_session().teacher, "on_update", heard.append)
    batch = trainer.step(metrics, {})
    assert (heard[0].entropy, heard[0].entropy_sampled) == (1.3, 1.0)
    assert len(batch.keys) == GROUP_SIZE * NUM_GROUPS and {tag["min_global_steps"] for tag in batch.tags} == {3}
    assert metrics["curriculum/outcomes_observed"] == NUM_GROUPS and metrics["curriculum/outstanding"] == 0
    assert metrics["session/dialogues"] == GROUP_SIZE * NUM_GROUPS and metrics["session/missing"] == 0
    session = adapter.the_session()
    assert session.policy_version == 1 and session.num_updates == 50
    trainer._save_checkpoint()
    told = session.state_dict()
    assert json.loads((folder_of(trainer, 1) / adapter.STATE).read_text()) == json.loads(json.dumps(told))
    make_trainer(config, Engine(tokenizer))._load_checkpoint()
    assert adapter.the_session() is not session and adapter.the_session().state_dict() == told
    rows = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train")
    columns = (rows[name] for name in ("response_mask", "responses", "rollout_log_probs", "rm_scores"))
    for mask, ids, logprobs, scores in zip(*columns, strict=True):
        assert len(mask) == len(ids) == len(logprobs) == len(scores) <= 1024
        assert set(logprobs[mask.bool()].tolist()) == {-1.0} and set(logprobs[~mask.bool()].tolist()) == {0.0}
        assert mask[-1] and 0.0 <= float(scores[-1]) <= 1.0 and float(scores[:-1].abs().sum()) == 0.0
        assert "<|im_end|>\n<|im_start|>user" in tokenizer.decode(ids)  # verl's own builder drops the newline of this template
        sampled = "".join(tokenizer.decode(ids[mask.bool()])).replace("<|im_end|>", "")
        assert any(said in sampled for said in SAID)


def test_a_dialogue_that_failed_is_left_out_and_counted(config, tokenizer, without_updates):
    trainer, metrics = make_trainer(config, Engine(tokenizer, breaks=True)), {}
    batch = trainer.step(metrics, {})
    assert len(batch.keys) == GROUP_SIZE * NUM_GROUPS - 1
    assert metrics["session/broken"] == 1 and metrics["curriculum/outcomes_observed"] == NUM_GROUPS
    assert metrics["curriculum/outstanding"] == 0 and not adapter.the_session().waiting


def test_validation_plays_heldout_users_of_whom_no_teacher_hears(config, tokenizer):
    trainer = make_trainer(config, Engine(tokenizer))
    before = adapter.the_session().state_dict()
    scores = trainer._validate()
    for strictness in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert 0.0 < scores[f"val-core/attune/{strictness}/reward/mean@1"] < 1.0, scores
    assert adapter.the_session().state_dict() == before and scores["val-aux/broken"] == 0


def test_a_validation_counts_the_dialogues_that_failed_and_leaves_them_out(config, tokenizer, monkeypatch):
    summarise, rewards = PPOTrainerSync._val_metrics_update, {}

    def watched(self, sources, uids, infos, *others, **more):
        for source, reward in zip(sources, infos["reward"], strict=True):
            rewards.setdefault(source, []).append(reward)
        return summarise(self, sources, uids, infos, *others, **more)

    monkeypatch.setattr(PPOTrainerSync, "_val_metrics_update", watched)
    scores = make_trainer(config, Engine(tokenizer, breaks=True))._validate()
    assert scores["val-aux/broken"] == 1 and sum(map(len, rewards.values())) == 9
    for source, of_source in rewards.items():
        assert scores[f"val-core/{source}/reward/mean@1"] == pytest.approx(sum(of_source) / len(of_source))


def test_settings_under_which_the_teacher_would_not_know_are_refused(config, tokenizer):
    for name, value, says in (
        ("dataloader_num_workers", 2, "dataloader_num_workers must be 0"),
        ("shuffle", True, "shuffle false"),
        ("train_files", "train.parquet", "data.train_files must be teacher and data.val_files heldout, got 'train.parquet'"),
    ):
        changed = config.copy()
        changed.data[name] = value
        with pytest.raises(ValueError, match=says):
            adapter.AttuneTasks(changed.data.train_files, tokenizer, None, changed.data)
    for path, value, says in (
        ("algorithm.filter_groups", {"enable": True}, r"filter_groups\.enable must be false"),
        ("actor_rollout_ref.rollout.response_length", 64, "must be more than data.attune.max_new_tokens=64, got 64"),
    ):
        changed = config.copy()
        OmegaConf.update(changed, path, value, force_add=True)
        with pytest.raises(ValueError, match=says):
            make_trainer(changed, Engine(tokenizer))
