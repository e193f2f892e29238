"""The recipe of the embedded policy, apart from its making so that reading it imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from policy.demonstrations import DemonstrationConfig

EMBEDDED = "embedded"
"""What `policy.model` says of the small policy that this recipe builds, which speaks the built-in world's language alone."""


@dataclass
class PriorConfig:
    """The recipe of the embedded policy; keys `policy.prior.*`."""

    seed: int = 0
    """Of the demonstrations, the initial weights and the order of batches."""
    num_tokens: int = 3_400_000
    """Tokens to train on, > 0."""
    vocab_size: int = 6144
    """Of the byte-level BPE tokenizer at most, >= 300; enough for every word that a user tells to be one token: of one in pieces a small
    model takes up the last piece alone."""
    hidden_size: int = 128
    """Width, a multiple of `num_heads`."""
    num_layers: int = 3
    """Transformer blocks, >= 1."""
    num_heads: int = 2
    """Attention heads, >= 1."""
    intermediate_size: int = 384
    """Width of the feed-forward layers, >= 1."""
    init_std: float = 0.06
    """Of the initial weights; .02 learns to copy far later at this size."""
    copy_init: float = 1.5
    """>= 0; how strongly every attention layer repeats what it looks at before anything was learnt: value and output weights start as this
    multiple of the identity, up to noise. Without it a model of this size finds copying late or not at all (docs/decisions.md)."""
    batch_size: int = 8
    """Dialogues an update, >= 1."""
    lr: float = 2e-3
    """Peak learning rate of AdamW, > 0."""
    copy_weight: float = 3.0
    """Loss weight of tokens that the agent takes from the user's words, > 0."""
    choice_weight: float = 2.5
    """Loss weight of a reply's first tokens, where its strategy is chosen, > 0."""
    hints_share: float = 0.32
    """Share of the tokens, from the start, on short exchanges in which each reply does what the latest hint asks for, [0, 1]."""
    taking_up_share: float = 0.39
    """Share of the tokens, by then, on single exchanges that take up what was just told, [0, 1]: short ones teach copying fast."""
    knowhow_share: float = 0.74
    """Share of the tokens, by then, whose demonstrator shows its skills at `knowhow_prob`, [0, 1]; the rest sets the habits."""
    knowhow_prob: float = 0.75
    """Chance of each skill meanwhile, [0, 1]: what is shown rarely is never learnt at this size, what was learnt can become rare."""
    user_share: float = 0.0
    """Share of the user's tokens that are learnt, drawn anew for each dialogue, [0, 1]; the agent's all are. Learning the user's part
    costs a small model part of what it needs to read it."""
    temperature: float = 0.85
    """What the taught model is sampled at, folded into its head, > 0; below 1 it leaves out most of the slips a small model makes."""
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    thinking: bool | None = None
    """Whether each demonstrated reply has a thought before it. Unset, an experiment does as `policy.thinking` says; else there is none."""

    def __post_init__(self) -> None:
        for name in (
            "num_tokens",
            "num_layers",
            "num_heads",
            "intermediate_size",
            "batch_size",
            "lr",
            "copy_weight",
            "choice_weight",
            "init_std",
            "temperature",
        ):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"policy.prior.{name} must be > 0, got {value!r}")
        if self.vocab_size < 300:
            raise ValueError(f"policy.prior.vocab_size must be >= 300, got {self.vocab_size!r}; 256 of them are the bytes")
        if self.hidden_size <= 0 or self.hidden_size % self.num_heads:
            raise ValueError(f"policy.prior.hidden_size must be a multiple of num_heads ({self.num_heads}), got {self.hidden_size!r}")
        if not self.copy_init >= 0:
            raise ValueError(f"policy.prior.copy_init must be >= 0, got {self.copy_init!r}")
        for name in ("hints_share", "taking_up_share", "knowhow_share", "knowhow_prob", "user_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"policy.prior.{name} must be in [0, 1], got {getattr(self, name)!r}")
        for before, name in (("hints_share", "taking_up_share"), ("taking_up_share", "knowhow_share")):
            if getattr(self, name) < getattr(self, before):
                least = f"{before} ({getattr(self, before):g})"
                raise ValueError(f"policy.prior.{name} must be at least {least}, which ends before it, got {getattr(self, name)!r}")
        self._check_demonstrations()

    def _check_demonstrations(self) -> None:
        # Here and not where they are defined: that module's text is part of what a prior is kept under.
        shown, keys = self.demonstrations, "policy.prior.demonstrations"
        if shown.num_replies < 1:
            raise ValueError(f"{keys}.num_replies must be at least 1, got {shown.num_replies!r}")
        most_open = 1.0 - DemonstrationConfig().skilled(self.knowhow_prob).veiled_prob
        if shown.open_prob > most_open:
            raise ValueError(
                f"{keys}.open_prob must be at most {most_open:g}, got {shown.open_prob!r}: other users of the know-how lesson are veiled"
            )
