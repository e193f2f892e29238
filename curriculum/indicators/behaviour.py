"""What the agent does, in strategies rather than words: how many it still uses, and whether it chooses them by whom it talks to.

A label is a strategy seen in a reply, a context what the reply answered (the user's hidden intention, persona, third of strictness).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np


def strategy_entropy(labels: Iterable[Hashable]) -> float:
    """H = -sum p log p of the labels' shares, with Miller and Madow's correction (K - 1) / 2N. Leads: a shortcut wins here first.

    Returns:
        Nats, 0 for one strategy, about log K for K even ones; NaN without labels.

    Source: correction, Miller 1955, "Note on the bias of information estimates".
    """
    return _entropy(Counter(labels))


def mutual_information(labels: Sequence[Hashable], contexts: Sequence[Hashable]) -> float:
    """I(M; X) = H(M) + H(X) - H(M, X) of label and context, each corrected by Miller and Madow: input dependence. Leads.

    It falls to 0 when the agent answers everybody alike, which entropy need not show (template collapse). With bands of strictness for
    contexts it is the Jensen-Shannon divergence between the bands, weighted by their size. Labels of one dialogue hang together, which
    leaves some upward bias: compare values of one run, not of runs of different size.

    Source: RAGEN-2 (arXiv 2604.06268), template collapse; correction, Miller 1955.

    Args:
        contexts: one for each label.

    Returns:
        Nats, at most the smaller of H(M) and H(X); about 0, and possibly below, where they are independent. NaN without labels.
    """
    joint = Counter(zip(labels, contexts, strict=True))
    return _entropy(Counter(labels)) + _entropy(Counter(contexts)) - _entropy(joint)


def retrieval_accuracy(logprobs_NN: np.ndarray) -> float:
    """Share of the replies that are likelier in the context they answer than in any other: argmax_j log pi(y_i | x_j) = i. Leads.

    It falls to 1 / N when the agent answers everybody alike, in whatever words, and needs no labels of strategies.

    Source: RAGEN-2 (arXiv 2604.06268), its test for template collapse.

    Args:
        logprobs_NN: logprob of reply i (rows) in context j (columns), nats.

    Returns:
        In [0, 1]; where k contexts are equally likely a reply counts 1 / k. NaN with fewer than two.
    """
    if len(logprobs_NN) < 2:
        return math.nan
    likeliest_NN = logprobs_NN >= logprobs_NN.max(axis=1, keepdims=True)
    return float(np.mean(np.diag(likeliest_NN) / likeliest_NN.sum(axis=1)))


def _entropy(counts: Counter[Any]) -> float:
    counts_K = np.array(list(counts.values()), dtype=float)
    if not counts_K.size:
        return math.nan
    total = counts_K.sum()
    return float(np.log(total) - counts_K @ np.log(counts_K) / total + (len(counts_K) - 1) / (2.0 * total))
