"""Coefficients that follow what they are to bring about; each changes once an update, between the passes over two batches."""

from __future__ import annotations

import math

MAX_KL_ERROR = 0.2
"""A KL's relative error counts up to +-0.2 (Ziegler et al.)."""


def next_kl_coef(coef: float, kl: float, *, target: float, horizon: float, num_dialogues: int) -> float:
    """The KL's coefficient after an update: coef (1 + clip(kl / target - 1, +-0.2) min(1, num_dialogues / horizon)).

    Args:
        kl: measured in the update, nats per token; not a number leaves the coefficient as it is.
        horizon: dialogues within which the coefficient can grow or fall by about a fifth, which is also the most that an update of more
            dialogues changes it by: unbounded, one low KL could take the coefficient to 0, from where nothing multiplies it back.

    Source: Ziegler et al., arXiv 1909.08593, section 2.2, with the horizon of their code; the bound is ours.
    """
    if not math.isfinite(kl):
        return coef
    error = min(max(kl / target - 1.0, -MAX_KL_ERROR), MAX_KL_ERROR)
    return coef * (1.0 + error * min(1.0, num_dialogues / horizon))


def next_entropy_coef(coef: float, entropy: float, *, target: float, step: float, highest: float) -> float:
    """The entropy bonus's coefficient after an update: a step up where entropy is at or below its target, else down, within [0, highest].

    Args:
        entropy: measured in the update, nats per token; not a number leaves the coefficient as it is.

    Source: Skywork-OR1, arXiv 2505.22312; it applies the coefficient only while entropy is at or below the target.
    """
    if not math.isfinite(entropy):
        return coef
    return min(max(coef + (step if entropy <= target else -step), 0.0), highest)
