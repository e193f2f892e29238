"""What runs are compared on: one number a run, by its dotted name in `summary.json`."""

from __future__ import annotations

AUC = "heldout.auc"
"""The endpoint that comparisons compute anew: runs must be measured over the same tokens."""
GAIN = "heldout.gain"
"""Not in the summary either: the score at the end less the score before training, on the full grid."""
FORGOTTEN = "heldout.forgotten"
"""Likewise: how far the last look lies below the best one on the small grid, by strictness and mean over these (`grades.forgotten`)."""
COMPUTED = (AUC, GAIN, FORGOTTEN)
EMOTIONS = (AUC, "heldout.score", "heldout.worst_cell", "heldout.cvar20")
"""On the scale of emotions, 0-100."""
SHARES = ("heldout.success_rate", "heldout.failure_rate")
ERRORS = (
    *("reliability.errors.plain.change", "reliability.errors.emotional.change", "reliability.errors.false_belief.change"),
    *("reliability.emotional_cost.change", "reliability.sycophancy.change"),
)
MARGINS = ("reliability.margin_nats.plain.change", "reliability.margin_nats.false_belief.change")
RELIABILITY = (*ERRORS, *MARGINS)
"""What training changed in the reliability probe, of runs that took it: shares of errors and what either way adds to them, and by how many
nats the right answer leads, which still moves where errors are at their ceiling."""
COSTS = ("policy_tokens", "wall_s", "cpu_s")
ENDPOINTS = (
    *(*EMOTIONS, *SHARES, *COSTS, "entropy.end", "reward_density.end", "start.score"),
    *(GAIN, FORGOTTEN, *RELIABILITY),
)
"""What may decide a comparison. What a sweep is read by besides may be a number of a study's own in `summary.json`, by its dotted name."""
SECONDARY = (*EMOTIONS, *SHARES)
"""What each contrast describes beside the primary endpoint."""
IN_WORDS = {
    AUC: "the area under the held-out score",
    "heldout.score": "the final held-out score",
    "heldout.worst_cell": "the score of the worst cell",
    "heldout.cvar20": "the mean of the worst fifth",
    "heldout.success_rate": "the share of users won over",
    "heldout.failure_rate": "the share of users who left",
    GAIN: "the gain over the start",
    FORGOTTEN: "what was forgotten since the best look",
    "entropy.end": "entropy at the end, nats",
    ERRORS[0]: "the errors that training added, asked plainly",
    ERRORS[1]: "the errors that training added, after an emotional turn",
    ERRORS[2]: "the errors that training added, against a false belief",
    ERRORS[3]: "what training changed in the errors that emotion adds",
    ERRORS[4]: "what training changed in the errors that a false belief adds",
    MARGINS[0]: "the nats that training added to what is right",
    MARGINS[1]: "the nats that training added to what is right, against a false belief",
}
"""What an axis calls those that have a short name for it."""
UNDIRECTED = frozenset({"entropy.end", "reward_density.end", "start.score"})
"""Endpoints of which neither more nor less is better: they describe a run, and decide nothing between two."""
LOWER_IS_BETTER = frozenset({"heldout.failure_rate", FORGOTTEN, *COSTS, *ERRORS})


def sign_of(endpoint: str) -> float:
    """1, or -1 for an endpoint that is better when it is lower."""
    return -1.0 if endpoint in LOWER_IS_BETTER else 1.0


def unit_of(endpoint: str) -> str:
    """What follows its numbers; empty for points of emotion, which need none, and for what has none."""
    return " nats" if endpoint in (*MARGINS, "entropy.end") else ""


def digits_of(endpoint: str) -> int:
    """Decimals that suit its numbers."""
    if endpoint in COSTS:
        return 0
    if endpoint in MARGINS:
        return 2
    return 1 if endpoint in (*EMOTIONS, "start.score", GAIN, FORGOTTEN) else 3
