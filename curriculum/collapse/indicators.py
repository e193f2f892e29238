"""Indicators that change when a policy collapses: pure functions of texts, strategies, outcomes and short series.

Each *leads* collapse, is *coincident* with it, or *lags*: a judgement of the literature, and ours unless a source is named. Words are
lower-cased, each Han character is one; n-grams never cross replies. A label is a strategy recognised in a reply, a context the user it
answered (hidden intention, persona, third of strictness). `curriculum.signals` has groups of rewards, `policy.metrics` tokens.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def words(text: str) -> list[str]:
    """Lower-case words; each Han character is one."""
    return re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+(?:'[^\W\u4e00-\u9fff]+)*", text.lower())


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All runs of `n` words, repeats included."""
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def repetition(replies: Sequence[str], n: int = 4) -> float:
    """Share of the agent's n-grams, from its second reply on, that an earlier reply contains; NaN without any. Coincident."""
    said: set[tuple[str, ...]] = set()
    num_repeated = num_later = 0
    for i, reply in enumerate(replies):
        grams = ngrams(words(reply), n)
        num_repeated += sum(gram in said for gram in grams)
        num_later += len(grams) if i else 0
        said.update(grams)
    return num_repeated / num_later if num_later else math.nan


def distinct(replies: Sequence[str], n: int = 2, *, max_words: int = 2000) -> float:
    """Distinct over all n-grams of the first `max_words` words of all replies, in (0, 1]; NaN without any. Lags.

    The share falls with the amount of text, so compare only values of the same `max_words`, with at least that many words.

    Source: Li et al. 2016 (arXiv 1510.03055).
    """
    grams: list[tuple[str, ...]] = []
    budget = max_words
    for reply in replies:
        if budget <= 0:
            break
        tokens = words(reply)[:budget]
        budget -= len(tokens)
        grams.extend(ngrams(tokens, n))
    return len(set(grams)) / len(grams) if grams else math.nan


def own_overlap(replies: Sequence[str]) -> float:
    """Mean over a dialogue's replies, from the second on, of the largest ROUGE-L to an earlier one, in [0, 1]; NaN below two. Coincident.

    ROUGE-L is the F1 of the longest common subsequence L of words: 2 L / (words of the one + words of the other).

    Source: Lin 2004; L bit-parallel, Hyyro 2004: one row of the table is one integer, so a pair of replies takes microseconds.
    """
    spoken = [tokens for tokens in map(words, replies) if tokens]
    largest = []
    for i, tokens in enumerate(spoken):
        places: dict[str, int] = {}
        for place, word in enumerate(tokens):
            places[word] = places.get(word, 0) | 1 << place
        scores = []
        for before in spoken[:i]:
            row = full = (1 << len(tokens)) - 1
            for word in before:
                matched = row & places.get(word, 0)
                row = ((row + matched) | (row - matched)) & full
            scores.append(2.0 * (len(tokens) - row.bit_count()) / (len(tokens) + len(before)))
        largest += [max(scores)] if scores else []
    return sum(largest) / len(largest) if largest else math.nan


def self_bleu(replies: Sequence[str], *, max_n: int = 4) -> float:
    """Mean BLEU of each reply against all the others, in [0, 1], 1 where all are identical; NaN below two replies with words. Lags.

    BLEU = exp(mean of log p_n) x brevity penalty, with p_n the share of the reply's n-grams found in another one, each as often as it
    occurs in that one, for n up to `max_n` as far as the reply has such n-grams; p_n is smoothed to (matches + 1) / (n-grams + 1) for
    n > 1. The penalty exp(1 - r / c) is for replies of c words shorter than the r words of the other closest in length; of two as close,
    the shorter.

    Source: Zhu et al. 2018 (arXiv 1802.01886), Papineni et al. 2002, smoothing Lin and Och 2004.
    """
    spoken = [tokens for tokens in map(words, replies) if tokens]
    if len(spoken) < 2:
        return math.nan
    log_precisions = [0.0] * len(spoken)
    for n in range(1, max_n + 1):
        counts = [Counter(ngrams(tokens, n)) for tokens in spoken]
        # Of each n-gram the largest count, the reply that has it, and the largest count of any other: work stays linear in the text.
        top: dict[tuple[str, ...], tuple[int, int, int]] = {}
        for i, own in enumerate(counts):
            for gram, count in own.items():
                first, owner, second = top.get(gram, (0, -1, 0))
                top[gram] = (count, i, first) if count > first else (first, owner, max(second, count))
        smooth = int(n > 1)
        for i, own in enumerate(counts):
            matches = sum(min(count, top[gram][2] if top[gram][1] == i else top[gram][0]) for gram, count in own.items())
            shown = (matches + smooth) / (own.total() + smooth) if own else 1.0
            log_precisions[i] += math.log(shown) / min(max_n, len(spoken[i])) if shown else -math.inf
    lengths = Counter(map(len, spoken))
    scores = []
    for log_precision, tokens in zip(log_precisions, spoken, strict=True):
        others = [length for length, count in lengths.items() if count > (length == len(tokens))]
        closest = min(others, key=lambda length: (abs(length - len(tokens)), length))
        scores.append(math.exp(log_precision + min(0.0, 1.0 - closest / len(tokens))))
    return sum(scores) / len(scores)


def compression_ratio(replies: Iterable[str], *, num_bytes: int = 10_000) -> float:
    """Bytes over deflated bytes of the first `num_bytes` of all replies, one a line; NaN for less text. Coincident to lagging.

    About 2 to 4 for natural replies, without bound where they are identical.

    Source: Shaib et al. 2024 (arXiv 2403.00553).
    """
    text = "\n".join(replies).encode()[:num_bytes]
    return len(text) / len(zlib.compress(text)) if len(text) == num_bytes else math.nan


def strategy_entropy(labels: Iterable[Hashable]) -> float:
    """H = -sum p log p of the labels' shares, nats, with Miller and Madow's correction (K - 1) / 2N; NaN without labels. Leads.

    Source: correction, Miller 1955, "Note on the bias of information estimates".
    """
    counts_K = np.array(list(Counter(labels).values()), dtype=float)
    if not counts_K.size:
        return math.nan
    total = counts_K.sum()
    return float(np.log(total) - counts_K @ np.log(counts_K) / total + (len(counts_K) - 1) / (2.0 * total))


def mutual_information(labels: Sequence[Hashable], contexts: Sequence[Hashable]) -> float:
    """I(M; X) = H(M) + H(X) - H(M, X) of label and context, nats, each corrected by Miller and Madow; NaN without labels. Leads.

    It falls to about 0, and possibly below, when the agent answers all users the same, which entropy need not show (template collapse).
    Labels of one dialogue depend on each other, which biases it upwards: compare values of one run only.

    Source: RAGEN-2 (arXiv 2604.06268), template collapse; correction, Miller 1955.
    """
    joint: list[Any] = list(zip(labels, contexts, strict=True))
    return strategy_entropy(labels) + strategy_entropy(contexts) - strategy_entropy(joint)


def retrieval_accuracy(logprobs_NN: np.ndarray) -> float:
    """Share of the replies that are likelier in the context they answer than in any other: argmax_j log pi(y_i | x_j) = i. Leads.

    It falls to 1 / N when the agent answers all users the same, in any words; where k contexts are equally likely a reply counts 1 / k.
    NaN with fewer than two.

    Source: RAGEN-2 (arXiv 2604.06268), its test for template collapse.

    Args:
        logprobs_NN: logprob of reply i (rows) in context j (columns), nats.
    """
    if len(logprobs_NN) < 2:
        return math.nan
    likeliest_NN = logprobs_NN >= logprobs_NN.max(axis=1, keepdims=True)
    return float(np.mean(np.diag(likeliest_NN) / likeliest_NN.sum(axis=1)))


LOW_UPDATES = 20
"""Updates for which the score of a fixed panel must stay low in a collapse."""


def low_stretches(steps: Sequence[int], scores: Sequence[float]) -> Iterator[tuple[int, int]]:
    """First and last step of each stretch in which a score stays below 80 % of its best so far, and 0.05 below it."""
    best, stretch = -math.inf, None
    for step, score in zip(steps, scores, strict=True):
        best = max(best, score)
        if score < 0.8 * best and score <= best - 0.05:
            stretch = (stretch[0] if stretch else step, step)
        elif stretch:
            yield stretch
            stretch = None
    if stretch:
        yield stretch


def collapse_onset(steps: Sequence[int], scores: Sequence[float]) -> int | None:
    """The first step of the first stretch of `LOW_UPDATES` updates, by the rising `steps`, in which a score stays low; None without one."""
    return next((since for since, last in low_stretches(steps, scores) if last - since + 1 >= LOW_UPDATES), None)


def is_undecided(steps: Sequence[int], scores: Sequence[float]) -> bool:
    """Whether a score ends in a low stretch that is shorter than `LOW_UPDATES` updates, with none before it that is as long."""
    stretches = list(low_stretches(steps, scores))
    return bool(stretches) and stretches[-1][1] == steps[-1] and collapse_onset(steps, scores) is None


def at_bounds_share(strictness_N: Sequence[float], *, margin: float = 0.02) -> float:
    """Share of the issued strictnesses within `margin` of 0 or 1, where a teacher cannot go further; NaN without any. Leads."""
    strictness = np.asarray(strictness_N, dtype=float)
    return float(np.mean((strictness <= margin) | (strictness >= 1.0 - margin))) if strictness.size else math.nan


def spearman(x_N: Sequence[float], y_N: Sequence[float]) -> float:
    """Pearson correlation of ranks, ties sharing their mean rank, in [-1, 1]. Leads, of strictness and reward.

    Between strictness and the reward of dialogues it must be negative; take it from a panel of evenly spread strictness, as a good teacher
    makes it vanish in training. Pairs with a NaN are dropped; NaN with fewer than three, or where one side does not vary.
    """
    from scipy.stats import rankdata  # here, as it takes half a second to import

    pairs_N2 = np.column_stack([np.asarray(x_N, dtype=float), np.asarray(y_N, dtype=float)])
    pairs_N2 = pairs_N2[np.isfinite(pairs_N2).all(axis=1)]
    if len(pairs_N2) < 3 or (np.ptp(pairs_N2, axis=0) == 0.0).any():
        return math.nan
    # Means that are equal by algebra may differ in their last bit.
    ranks_N2 = rankdata(np.round(pairs_N2, 9), axis=0)
    return float(np.corrcoef(ranks_N2[:, 0], ranks_N2[:, 1])[0, 1])


def theil_sen_slope(values: Sequence[float]) -> float:
    """Median slope over all pairs of an evenly spaced series, per step; up to 29 % of the points may be wild. NaN below two points."""
    if len(values) < 2:
        return math.nan
    series_N = np.asarray(values, dtype=float)
    earlier, later = np.triu_indices(len(series_N), k=1)
    return float(np.median((series_N[later] - series_N[earlier]) / (later - earlier)))


def updates_until(values: Sequence[float], floor: float) -> float:
    """Steps until a positive series that decays like exp(-rate t) meets `floor`: log(last / floor) / rate, rate by Theil-Sen. Leads.

    Infinite where the series does not fall; NaN below three values or where a value or the floor is not positive.
    """
    if len(values) < 3 or min(values) <= 0.0 or floor <= 0.0:
        return math.nan
    rate = -theil_sen_slope([math.log(value) for value in values])
    return max(math.log(values[-1] / floor), 0.0) / rate if rate > 0.0 else math.inf


def spike_score(earlier: Sequence[float], newest: float) -> float:
    """z = (log newest - median of log earlier) / (1.4826 MAD of log earlier): a gradient's norm in robust standard deviations. Coincident.

    NaN below five earlier values, without any spread, or where a value is not positive.

    Source: RAGEN (arXiv 2504.20073) sees reward variance fall off a cliff, then gradients spike.
    """
    if len(earlier) < 5 or min(earlier) <= 0.0 or newest <= 0.0:
        return math.nan
    logs = np.log(np.asarray(earlier, dtype=float))
    median = np.median(logs)
    mad = np.median(np.abs(logs - median))
    return float((math.log(newest) - median) / (1.4826 * mad)) if mad > 0.0 else math.nan


def fall_within(values: Sequence[float]) -> float:
    """By what share the last value lies below the median of the window's older half. Leads, of reward's spread within groups.

    The median, because under rare rewards a single lucky group would look like a cliff a little later. NaN below four values or without a
    positive median.

    Source: RAGEN (arXiv 2504.20073), the cliff in reward variance.
    """
    if len(values) < 4:
        return math.nan
    usual = float(np.median(list(values)[: len(values) // 2]))
    return 1.0 - values[-1] / usual if usual > 0.0 else math.nan


@dataclass(frozen=True, kw_only=True)
class EntropyLaw:
    """R = -a exp(H) + b: the price of reward R in entropy H (nats)."""

    a: float
    b: float
    a_error: float
    """Standard error of `a`, from the scatter about the law."""
    b_error: float
    """Standard error of `b`."""
    r_squared: float
    """Share of the reward's variance that the law explains, in [0, 1]."""

    def reward(self, entropy: float) -> float:
        """Reward by the law at an entropy, in nats."""
        return self.b - self.a * math.exp(entropy)

    @property
    def ceiling(self) -> float:
        """b - a: the reward at which entropy is used up (H = 0)."""
        return self.b - self.a

    def headroom(self, reward: float) -> float:
        """Distance to the ceiling, in units of reward."""
        return self.ceiling - reward


def fit_entropy_law(entropies_N: Sequence[float], rewards_N: Sequence[float]) -> EntropyLaw | None:
    """Least squares of reward on x = exp(entropy): a = -cov(R, x) / var(x), b = mean R + a mean x. Leads.

    The rewards must come from a fixed panel. None with fewer than three points or without any variation.

    Source: Cui et al. 2025 (arXiv 2505.22617): 36 steps predict the next 200 to about 1 %.
    """
    x_N, rewards = np.exp(np.asarray(entropies_N, dtype=float)), np.asarray(rewards_N, dtype=float)
    if len(x_N) < 3 or np.ptp(x_N) == 0.0 or np.ptp(rewards) == 0.0:
        return None
    (var_x, cov), (_, var_r) = np.cov(x_N, rewards, ddof=0)
    a, n = -cov / var_x, len(x_N)
    b = rewards.mean() + a * x_N.mean()
    scatter = np.square(rewards - b + a * x_N).sum() / (n - 2)
    return EntropyLaw(
        a=float(a),
        b=float(b),
        a_error=math.sqrt(scatter / (n * var_x)),
        b_error=math.sqrt(scatter * (1.0 / n + x_N.mean() ** 2 / (n * var_x))),
        r_squared=float(cov**2 / (var_x * var_r)),
    )
