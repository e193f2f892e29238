"""Scoring only where the loss is must give the same as whole logits; a model folder is refused with a reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer
from torch import Tensor

from policy.batch import Batch
from policy.model import check_head, check_model_folder, find_model, load_model, recompute_layers, token_logprobs_and_entropy

LARGE_VOCABULARY = 30_000
"""Eight tokens of it to a piece of 1 MiB."""


def arrays(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT


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


@pytest.mark.parametrize("tied", [False, True])
def test_scores_and_gradients_equal_those_of_the_whole_logits_without_padding(tied: bool) -> None:
    ours, theirs, batch = tiny_model(tied=tied), tiny_model(tied=tied), random_batch(seed=1)
    scored = token_logprobs_and_entropy(ours, *arrays(batch), temperature=0.7, entropy_gradient=True)
    expected = naive(theirs, batch, temperature=0.7)
    assert len(scored[0]) == batch.num_trained
    for got_N, expected_N in zip(scored, expected, strict=True):
        torch.testing.assert_close(got_N, expected_N, rtol=0, atol=3e-6)
    (scored[0].mean() + scored[1].mean()).backward()
    (expected[0].mean() + expected[1].mean()).backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    logprobs_N, entropies_N = token_logprobs_and_entropy(ours, *arrays(batch))
    assert logprobs_N.requires_grad and not entropies_N.requires_grad


def scores(model: torch.nn.Module, batch: Batch, *, logit_chunk_mb: int, bf16: bool = False) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        return token_logprobs_and_entropy(model, *arrays(batch), temperature=0.8, entropy_gradient=True, logit_chunk_mb=logit_chunk_mb)


@pytest.mark.parametrize(("head", "bf16"), [("tied", False), ("biased", True)])
def test_scoring_in_pieces_changes_neither_values_nor_gradients(head: str, bf16: bool) -> None:
    whole, pieces = (tiny_model(tied=head == "tied", vocab_size=LARGE_VOCABULARY) for _ in range(2))
    if head == "biased":
        for model in (whole, pieces):
            model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1.0, 1.0, LARGE_VOCABULARY))
    batch = random_batch(seed=3, num_groups=2)
    results = [scores(whole, batch, logit_chunk_mb=64, bf16=bf16), scores(pieces, batch, logit_chunk_mb=1, bf16=bf16)]
    for expected_N, got_N in zip(*results, strict=True):
        torch.testing.assert_close(got_N, expected_N, rtol=0, atol=1e-4 if bf16 else 1e-5)
    for logprobs_N, entropies_N in results:
        (logprobs_N.mean() + 0.3 * entropies_N.mean()).backward()
    for (name, a), b in zip(whole.named_parameters(), pieces.parameters(), strict=True):
        allowed = float(a.grad.abs().max()) * (2e-2 if bf16 else 1e-5)
        torch.testing.assert_close(b.grad, a.grad, rtol=0, atol=allowed, msg=lambda text, name=name: f"{name}: {text}")


def test_logits_held_at_once_are_bounded_by_the_piece() -> None:
    model, batch = tiny_model(vocab_size=LARGE_VOCABULARY), random_batch(seed=3, num_groups=2)
    rows, kept = list[int](), list[int]()
    model.lm_head.register_forward_hook(lambda module, inputs, logits: rows.append(len(logits)))

    def keep(tensor: Tensor) -> Tensor:
        kept.extend([len(tensor)] * (tensor.shape[1:] == (LARGE_VOCABULARY,)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs_N, entropies_N = scores(model, batch, logit_chunk_mb=1)
    forward = len(rows)
    (logprobs_N.mean() + entropies_N.mean()).backward()
    assert max(rows) == 8 and not kept and len(rows) == 2 * forward  # recomputed piece by piece


def test_recomputed_layers_give_the_same_bits_and_keep_less() -> None:
    results = []
    for recompute in (False, True):
        model, batch, kept = tiny_model(attention_dropout=0.5), random_batch(seed=5), []
        if recompute:
            recompute_layers(model)

        def keep(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs_N, _ = scores(model, batch, logit_chunk_mb=64)
        logprobs_N.mean().backward()
        results.append((sum(kept), logprobs_N, [parameter.grad for parameter in model.parameters()]))
    (kept, logprobs_N, gradients), (kept_less, same_N, same_gradients) = results
    assert torch.equal(logprobs_N, same_N) and kept_less < kept / 2
    assert all(torch.equal(a, b) for a, b in zip(gradients, same_gradients, strict=True))
    with pytest.raises(ValueError, match=r"learner\.gradient_checkpointing"):
        recompute_layers(torch.nn.Linear(2, 2))


def test_a_head_that_scales_its_logits_is_refused() -> None:
    model = tiny_model()
    check_head(model)
    model.forward = lambda input_ids, use_cache: type("Output", (), {"logits": 2 * model.lm_head(model.base_model(input_ids)[0])})
    with pytest.raises(ValueError, match="plain output head"):
        check_head(model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_a_loaded_model_and_its_tokenizer_are_the_saved_ones(folder: Path) -> None:
    model, tokenizer = load_model(folder)
    assert not model.training and tokenizer("w3 w1")["input_ids"] == [3, 1]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny_model().parameters(), strict=True))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_with_a_missing_damaged_or_unfetched_file_is_refused(folder: Path, tmp_path: Path, file: str) -> None:
    shutil.copytree(folder, tmp_path / "pointer")
    (tmp_path / "pointer" / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        check_model_folder(tmp_path / "pointer")
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"policy\.model"):
        load_model(folder)
    (folder / file).unlink()
    with pytest.raises(ValueError, match=r"policy\.model .* without"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"text_config": {"quantization_config": {"quant_method": "mxfp4"}}}, "mxfp4"),
        ({"model_type": "made_up", "auto_map": {"AutoModelForCausalLM": "modeling_made_up.MadeUp"}}, "auto_map"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "every weight"),
    ],
)
def test_a_model_that_cannot_be_loaded_in_full_precision_by_transformers_own_code_is_refused(folder, changes, words) -> None:
    change(folder / "config.json", **changes)
    with pytest.raises(ValueError, match=rf"policy\.model .*{words}"):
        load_model(folder)


def test_a_folder_of_gguf_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model-q4_k_m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="GGUF"):
        find_model(tmp_path / "gguf")


@pytest.mark.parametrize("name", ["/no/such/folder", "nothing", Path("some/folder")])
def test_a_path_that_is_not_there_is_refused_without_asking_the_hub(name: str | Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.model must be a folder that exists or a Hugging Face id"):
        find_model(name)


def test_an_id_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"policy\.model"):
        find_model("nobody/nothing-of-this-name")
