"""Numbers that change when a policy collapses: pure functions of tokens, texts, strategies, outcomes and short series.

Each says whether it *leads* collapse, comes *with* it, or *lags*; that is a judgement of the literature and ours unless a source is
named. What groups of rewards say stands in `curriculum.signals`; what is watched, and when it rings, in `curriculum.evidence`.
"""

from curriculum.indicators.behaviour import mutual_information, retrieval_accuracy, strategy_entropy
from curriculum.indicators.outcomes import at_bounds_share, largest_fall, realised_strictness, spearman
from curriculum.indicators.text import compression_ratio, distinct, ngrams, own_overlap, repetition, self_bleu, words
from curriculum.indicators.trends import EntropyLaw, fall_within, fit_entropy_law, spike_score, theil_sen_slope, updates_until

__all__ = [
    "EntropyLaw",
    "at_bounds_share",
    "compression_ratio",
    "distinct",
    "fall_within",
    "fit_entropy_law",
    "largest_fall",
    "mutual_information",
    "ngrams",
    "own_overlap",
    "realised_strictness",
    "repetition",
    "retrieval_accuracy",
    "self_bleu",
    "spearman",
    "spike_score",
    "strategy_entropy",
    "theil_sen_slope",
    "updates_until",
    "words",
]
