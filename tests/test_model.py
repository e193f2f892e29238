"""Scoring only where the loss is must give what the whole logits give; a model folder is refused with a reason."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from policy.batch import Batch
from policy.model import check_head, find_model, load_model, recompute_layers, token_logprobs_and_entropy


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


LARGE_VOCABULARY = 30_000
"""Eight tokens of it to a piece of 1 MiB."""


def scores(model: torch.nn.Module, batch: Batch, *, logit_chunk_mb: int, bf16: bool = False) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        arrays = (batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
        return token_logprobs_and_entropy(model, *arrays, temperature=0.8, entropy_gradient=True, logit_chunk_mb=logit_chunk_mb)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("head", ["plain", "tied", "biased"])
def test_scoring_in_pieces_changes_neither_values_nor_gradients(head: str, bf16: bool) -> None:
    whole, pieces = (tiny_model(tied=head == "tied", vocab_size=LARGE_VOCABULARY) for _ in range(2))
    if head == "biased":
        for model in (whole, pieces):
            model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1.0, 1.0, LARGE_VOCABULARY))
    batch = random_batch(seed=3, num_groups=2)
    assert batch.num_trained > 4 * 8
    results = [scores(whole, batch, logit_chunk_mb=64, bf16=bf16), scores(pieces, batch, logit_chunk_mb=1, bf16=bf16)]
    for expected_N, got_N in zip(*results, strict=True):
        torch.testing.assert_close(got_N, expected_N, rtol=0, atol=1e-4 if bf16 else 1e-5)
    for logprobs_N, entropies_N in results:
        (logprobs_N.mean() + 0.3 * entropies_N.mean()).backward()
    for (name, a), b in zip(whole.named_parameters(), pieces.parameters(), strict=True):
        allowed = float(a.grad.abs().max()) * (2e-2 if bf16 else 1e-5)
        torch.testing.assert_close(b.grad, a.grad, rtol=0, atol=allowed, msg=lambda text, name=name: f"{name}: {text}")


class HeldLogits(TorchDispatchMode):
    """Counts rows as wide as the vocabulary that are alive at once, and the most there ever were; the head and its gradient apart."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.vocabulary, self.width = head.weight.shape
        self.held, self.most = 0, 0
        self.alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor) and tensor.dim() == 2 and tensor.shape[1] == self.vocabulary and tensor.shape[0] != self.width:
                self._count(tensor.untyped_storage(), tensor.shape[0])
        return result

    def _count(self, storage: torch.UntypedStorage, size: int) -> None:
        address = storage.data_ptr()
        if address in self.alive:
            return
        self.alive.add(address)
        self.held += size
        self.most = max(self.most, self.held)

        def freed() -> None:
            self.alive.discard(address)
            self.held -= size

        weakref.finalize(storage, freed)


@pytest.mark.parametrize("tokens_per_piece", [8, 17, None])
def test_logits_held_at_once_are_bounded_by_the_piece(tokens_per_piece: int | None) -> None:
    model, batch = tiny_model(vocab_size=LARGE_VOCABULARY), random_batch(seed=3, num_groups=6)
    with HeldLogits(model.lm_head) as logits:
        logprobs_N, entropies_N = scores(model, batch, logit_chunk_mb=tokens_per_piece // 8 if tokens_per_piece else 64)
        (logprobs_N.mean() + entropies_N.mean()).backward()
    at_once = tokens_per_piece or batch.num_trained
    assert batch.num_trained > 8 * (tokens_per_piece or 0)
    assert 2 * at_once <= logits.most <= 4 * at_once


def test_one_piece_is_scored_without_being_recomputed() -> None:
    model, batch, calls = tiny_model(), random_batch(seed=3), []
    model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    logprobs_N, _ = scores(model, batch, logit_chunk_mb=1)
    logprobs_N.mean().backward()
    assert len(calls) == 1


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
    assert torch.equal(logprobs_N, same_N)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same_gradients, strict=True))
    assert kept_less < kept / 2


def test_model_whose_layers_cannot_be_recomputed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"learner\.gradient_checkpointing must be False for a Linear"):
        recompute_layers(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("logit_chunk_mb", [64, 0])
def test_autocast_rounds_logits_and_nothing_that_is_computed_from_them(logit_chunk_mb: int) -> None:
    model, batch, seen = tiny_model(), random_batch(seed=3), []
    model.get_output_embeddings().weight.data.mul_(40.0)
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: seen.append(logits.double()))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        _, entropies_N = token_logprobs_and_entropy(
            model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT, logit_chunk_mb=logit_chunk_mb
        )
        total = entropies_N.sum()
    log_p_NV = torch.cat(seen).log_softmax(-1)
    expected_N = -(log_p_NV.exp() * log_p_NV).sum(-1)
    assert entropies_N.dtype == total.dtype == torch.float32
    torch.testing.assert_close(entropies_N.double(), expected_N, rtol=0, atol=1e-5)


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
