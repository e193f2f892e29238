"""When an indicator of collapse becomes an alarm."""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.checks import require_between, settle_types

SHARES = (
    "smoothing",
    "entropy_low",
    "density_low",
    "alike_share",
    "alike_excess",
    "groups_low",
    "spread_fall",
    "effective_low",
    "repetition_high",
    "overlap_high",
    "siblings_bleu_high",
    "prompts_bleu_high",
    "distinct_low",
    "truncated_high",
    "strategies_low",
    "dependence_low",
    "retrieval_low",
    "probe_fall",
    "cell_fall",
    "unlearned_below",
    "bounds_share",
    "gamed_gain",
    "gamed_share",
)
"""Settings in (0, 1]."""


@dataclass
class CollapseConfig:
    """When an indicator becomes an alarm. "Start" is the mean of an indicator's first `start_updates` values."""

    start_updates: int = 5
    """[1, 100]: values that make up the start."""
    patience: int = 5
    """[1, 100]: updates for which a condition must hold before its alarm fires, and be gone before it can fire again."""
    smoothing: float = 0.3
    """(0, 1]: weight of the newest value in the running averages on which alarms rest."""
    entropy_window: int = 20
    """[3, 200]: updates over which the slope of entropy, the cliff in reward's spread and the usual norm of the gradient are measured."""
    entropy_low: float = 0.1
    """(0, 1]: share of its start below which entropy counts as spent, that of forking tokens too. Conservative: arXiv 2505.22617 reports
    that ordinary runs lose about 73 % early on while reward rises."""
    entropy_high: float = 2.0
    """[1, 100]: times its start above which entropy counts as exploding; rings at once. Our proposal: of the 190 runs that were
    kept when it was set none gets there, the highest two reach 1.75 and 1.64 and the others stay below 1.4."""
    exhaustion_updates: float = 10.0
    """(0, 1000]: alarm when entropy, already below half its start, would at its present rate of decay be spent within so many updates.
    Our proposal."""
    covariance_high: float = 0.2
    """(0, 100], nats: covariance of logprob and normalised advantage from which an update narrows the policy fast. Our proposal."""
    mismatch_high: float = 0.1
    """(0, 100], nats: KL between engine and trainer, k3 or the size of k1 (verl's rollout-correction notes)."""
    chi_square_high: float = 1.0
    """(0, 100]: chi2 between engine and trainer (verl's notes)."""
    effective_low: float = 0.3
    """(0, 1]: share of the tokens that still count under importance weights (verl's notes)."""
    kl_high: float = 1.0
    """(0, 100], nats per token: KL from the reference. Our proposal."""
    spike_high: float = 4.0
    """(0, 100]: robust standard deviations by which the gradient's norm stands out. Our proposal, after RAGEN (arXiv 2504.20073)."""
    update_kl_high: float = 0.2
    """(0, 100], nats per token: KL from the policy that sampled to the one being trained, mean over the minibatches; rings at once, for
    a single step or smoothed. Our proposal: three times the smoothed most that healthy runs of the main job show (.06)."""
    density_low: float = 0.25
    """(0, 1]: share of its start below which reward density, or what the best of four siblings gains, counts as lost. Our proposal, after
    the cliff in reward variance that RAGEN (arXiv 2504.20073) describes."""
    spread_fall: float = 0.5
    """(0, 1]: share of the within-group standard deviation that must be gone since the window's older half (RAGEN)."""
    alike_share: float = 0.7
    """(0, 1]: share of groups that all failed, or all succeeded, alike. Our proposal; DAPO (arXiv 2503.14476) discards such groups."""
    alike_excess: float = 0.4
    """(0, 1]: share of groups alike beyond what chance explains counts from here, and only if also .2 above its start: families that differ
    give up to .5 in runs that go well. Our proposal."""
    groups_low: float = 0.15
    """(0, 1]: effective share of the groups that carry a step. Our proposal."""
    repetition_high: float = 0.5
    """(0, 1]: repetition counts from here, and only if also .2 above its start. Our proposal: the embedded policy reaches .45 while it does
    ever better."""
    overlap_high: float = 0.75
    """(0, 1]: ROUGE-L to the agent's own earlier replies counts from here, and only if also .2 above its start. Our proposal, likewise
    above the .62 of runs that go well."""
    siblings_bleu_high: float = 0.97
    """(0, 1]: self-BLEU of siblings' first replies counts from here, and only if also .2 above its start. Our proposal, likewise (.95)."""
    prompts_bleu_high: float = 0.85
    """(0, 1]: the same across prompts. Our proposal, likewise (.78)."""
    distinct_low: float = 0.3
    """(0, 1]: share of its start below which distinct-2 counts as lost diversity. Our proposal, likewise (.37)."""
    compression_ratio: float = 2.5
    """[1, 100]: replies so many times as compressible as at the start. Our proposal, likewise (1.8)."""
    length_ratio: float = 3.0
    """[1, 100]: replies so many times longer or shorter than at the start. Our proposal; twice the length is common in healthy runs."""
    truncated_high: float = 0.05
    """(0, 1]: share of dialogues cut off counts from here, and only if also twice its start; from .1 on always. Our proposal."""
    strategies_low: float = 0.5
    """(0, 1]: share of its start below which the entropy of strategies counts as narrowed. Our proposal."""
    dependence_low: float = 0.25
    """(0, 1]: share of its start below which the choice of strategy no longer depends on the user. Our proposal."""
    retrieval_low: float = 0.5
    """(0, 1]: share of its start below which retrieval accuracy says that replies no longer depend on the user. Our proposal."""
    probe_fall: float = 0.1
    """(0, 1]: fall of the probe panel's mean reward below its best that counts. Our proposal; twice the survey's .05, which is noise on a
    panel of 25 dialogues."""
    cell_fall: float = 0.2
    """(0, 1]: the same for a third of the panel. Our proposal."""
    unlearned_below: float = 0.6
    """(0, 1]: share of the best look at the panel, or at a third of it, below which a look is low, and only if .05 below it, too."""
    unlearned_looks: int = 2
    """[1, 100]: low looks in a row that say that something was unlearned. Our proposal."""
    bounds_share: float = 0.5
    """(0, 1]: share of tasks issued at the easiest or the strictest. Our proposal."""
    gamed_gain: float = 0.1
    """(0, 1]: by how much more than users' final emotion / 100 reward must have grown since the start, without falling by as much
    itself. Our proposal."""
    gamed_share: float = 0.33
    """(0, 1]: and the share of reward's growth that emotion's must stay below. Our proposal."""

    def __post_init__(self) -> None:
        settle_types(self, "collapse")
        require_between("collapse.start_updates", self.start_updates, 1, 100)
        require_between("collapse.patience", self.patience, 1, 100)
        require_between("collapse.unlearned_looks", self.unlearned_looks, 1, 100)
        require_between("collapse.entropy_window", self.entropy_window, 3, 200)
        require_between("collapse.exhaustion_updates", self.exhaustion_updates, 1e-6, 1000.0)
        for name in ("covariance_high", "mismatch_high", "chi_square_high", "kl_high", "spike_high", "update_kl_high"):
            require_between(f"collapse.{name}", getattr(self, name), 1e-9, 100.0)
        for name in ("entropy_high", "length_ratio", "compression_ratio"):
            require_between(f"collapse.{name}", getattr(self, name), 1.0, 100.0)
        for name in SHARES:
            require_between(f"collapse.{name}", getattr(self, name), 1e-6, 1.0)
