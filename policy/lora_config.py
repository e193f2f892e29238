"""Settings of low-rank adapters, apart from the adapters themselves so that reading them imports no torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass
class LoraConfig:
    """Low-rank adapters, `policy.lora.*`: the model's weights stay, and a product of two thin matrices is trained beside each.

    Source: arXiv 2106.09685. Needs the package `peft`.
    """

    rank: int = 0
    """>= 0; inner width of each adapter. 0 trains all weights and needs no `peft`."""
    alpha: float = 32.0
    """> 0; what an adapter says is scaled by alpha / rank."""
    targets: str = "all-linear"
    """Layers that get an adapter: `all-linear` (all but the output head), or the ends of their names, as in `q_proj,v_proj`. No
    embeddings, no output head that is the embedding, and no experts joined in one parameter: of a model with such experts, `all-linear`
    is refused."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"policy.lora.rank must be >= 0, got {self.rank!r}; 0 trains all weights")
        if not self.alpha > 0.0:
            raise ValueError(f"policy.lora.alpha must be > 0, got {self.alpha!r}")
        if not all(name.strip() for name in self.targets.split(",")):
            raise ValueError(f"policy.lora.targets must be all-linear or names of layers, as in q_proj,v_proj, got {self.targets!r}")


def check_lora(config: LoraConfig) -> None:
    """Refuses adapters where their package is missing.

    Raises:
        ValueError: `peft` is not installed.
    """
    if config.rank and importlib.util.find_spec("peft") is None:
        raise ValueError(
            f"policy.lora.rank must be 0 where peft is not installed, got {config.rank!r}; make setup-lora, or train all weights"
        )
