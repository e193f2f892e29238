"""Scoring only where the loss is must give what the whole logits give; a model folder is refused with a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer
from torch import Tensor

import policy.model
from policy.batch import Batch
from policy.model import check_head, find_model, load_model, token_logprobs_and_entropy


def naive(model: torch.nn.Module, batch: Batch, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Row by row, without padding, from the logits of every position."""
    logprobs, entropies = [], []
    for row in range(batch.num_rollouts):
        token_ids_T = batch.token_ids_BT[row, : int(batch.attention_BT[row].sum())]
        logits_TV = model(input_ids=token_ids_T[None]).logits[0].double() / temperature
        for position in batch.loss_mask_BT[row].nonzero().flatten().tolist():
            log_p_V = logits_TV[position - 1].log_softmax(-1)
            logprobs.append(log_p_V[token_ids_T[position]])
            entropies.append(-(log_p_V.exp() * log_p_V).sum())
    return torch.stack(logprobs).float(), torch.stack(entropies).float()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tied", [False, True])
def test_scores_equal_those_of_the_whole_logits_without_padding(temperature: float, tied: bool) -> None:
    model, batch = tiny_model(tied=tied), random_batch(seed=1)
    with torch.no_grad():
        scored = token_logprobs_and_entropy(model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT, temperature=temperature)
        expected = naive(model, batch, temperature=temperature)
    assert len(scored[0]) == batch.num_trained
    torch.testing.assert_close(scored[0], expected[0], rtol=0, atol=3e-6)
    torch.testing.assert_close(scored[1], expected[1], rtol=0, atol=3e-6)


def test_gradients_equal_those_of_the_whole_logits() -> None:
    ours, theirs, batch = tiny_model(), tiny_model(), random_batch(seed=2)
    logprobs_N, entropies_N = token_logprobs_and_entropy(
        ours, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT, entropy_gradient=True
    )
    (logprobs_N.mean() + entropies_N.mean()).backward()
    expected_N = naive(theirs, batch, temperature=1.0)
    (expected_N[0].mean() + expected_N[1].mean()).backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_scoring_in_chunks_changes_neither_values_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, chunked, batch = tiny_model(), tiny_model(), random_batch(seed=3)
    arrays = (batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    expected_N = token_logprobs_and_entropy(whole, *arrays)[0]
    monkeypatch.setattr(policy.model, "LOGITS_PER_CHUNK", 7 * whole.config.vocab_size)
    got_N = token_logprobs_and_entropy(chunked, *arrays)[0]
    torch.testing.assert_close(got_N, expected_N, rtol=0, atol=1e-6)
    expected_N.mean().backward()
    got_N.mean().backward()
    torch.testing.assert_close(chunked.lm_head.weight.grad, whole.lm_head.weight.grad, rtol=1e-4, atol=1e-7)


def test_entropy_is_kept_out_of_the_graph_unless_asked_for() -> None:
    model, batch = tiny_model(), random_batch(seed=4)
    logprobs_N, entropies_N = token_logprobs_and_entropy(model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    assert logprobs_N.requires_grad
    assert not entropies_N.requires_grad


def test_head_that_scales_its_logits_is_refused() -> None:
    model = tiny_model()
    check_head(model)
    model.forward = lambda input_ids, use_cache: type("Output", (), {"logits": 2 * model.lm_head(model.base_model(input_ids)[0])})
    with pytest.raises(ValueError, match="plain output head"):
        check_head(model)


def test_loaded_model_and_tokenizer_are_the_saved_ones(saved: Path) -> None:
    model, tokenizer = load_model(saved)
    assert not model.training
    assert tokenizer("w3 w1")["input_ids"] == [3, 1]
    for (name, a), b in zip(model.named_parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("file", "words"), [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer.json", "a tokenizer")]
)
def test_folder_that_lacks_a_file_is_refused_by_name(saved: Path, tmp_path: Path, file: str, words: str) -> None:
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / file).unlink()
    with pytest.raises(ValueError, match=rf"policy\.model must be a folder .* without {words}"):
        load_model(tmp_path / "model")


def test_damaged_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"policy\.model must be a causal language model that transformers loads"):
        load_model(tmp_path / "model")


def test_folder_whose_weights_do_not_fill_the_model_is_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(
        config.read_text()
        .replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
        .replace('"full_attention"\n', '"full_attention", "full_attention"\n')
    )
    with pytest.raises(ValueError, match=r"policy\.model must hold every weight of its architecture"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "nothing", "a/b/c", Path("some/folder")])
def test_path_that_is_not_there_is_refused_without_asking_the_hub(name: str | Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.model must be a folder that exists or a Hugging Face id"):
        find_model(name)


def test_id_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="neither here, in the cache nor to be had"):
        find_model("nobody/nothing-of-this-name")
