"""Which charts stand on which page of TensorBoard: the first page tells in ten seconds whether a run is healthy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Some metrics in one frame."""

    title: str
    tags: tuple[str, ...]
    """Regular expressions, each for whole metric keys (docs/metrics.md)."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Charts that answer one question."""

    title: str
    charts: tuple[Chart, ...]
    closed: bool = True
    """Whether the reader has to open it."""


def chart(title: str, *tags: str) -> Chart:
    """A chart of the metrics that match."""
    return Chart(title=title, tags=tags)


HEALTH = Page(
    title="Is this run healthy?",
    closed=False,
    charts=(
        chart("Reward: rises, then levels off", "reward/mean", "reward/success_rate"),
        chart("Reward density: 0 teaches nothing", "curriculum/reward_density", "collapse/reward_density"),
        chart("Policy entropy: falls slowly, never to 0", "actor/entropy", "actor/entropy_sampled"),
        chart("Difficulty: follows the agent's ability", "curriculum/strictness", "curriculum/level"),
        chart("Zero-variance share: low is too hard, high too easy", "curriculum/(zero_variance|all_low|all_high)_share"),
        chart("Collapse alarms on: should stay at 0", "collapse/(alarms_on|alarm)"),
        chart("Held-out score, 0-100", "eval/(full|during)_score"),
        chart("Repetition: should stay low", "dialogue/repetition", "collapse/repetition"),
    ),
)
"""What the eye should meet first."""

PAGES = (
    HEALTH,
    Page(
        title="Curriculum",
        charts=(
            chart("Strictness issued", "curriculum/(strictness|strictness_std|level)"),
            chart("Success against its target", "curriculum/(success_share|success_running|target_success)"),
            chart("Offset by hidden intention", "curriculum/offset/.*"),
            chart("Share of the most practised family", "curriculum/largest_family_share"),
            chart("Groups alike beyond chance: above 0 siblings act as one", "curriculum/alike_excess"),
            chart("Outcomes in flight", "curriculum/(outstanding|in_flight_delay)"),
            chart("Outcomes counted", "curriculum/outcomes_.*"),
        ),
    ),
    Page(
        title="Policy",
        charts=(
            chart("Policy loss", "actor/pg_loss"),
            chart("Gradient norm before clipping", "actor/grad_norm"),
            chart("Clipped share of tokens", "actor/pg_clipfrac.*"),
            chart("KL, nats", "actor/(ppo_kl|kl_loss)"),
            chart("Probability ratio", "actor/ratio_.*"),
            chart("Learning rate", "actor/lr"),
            chart("Entropy where the policy decides, nats", "actor/entropy_forking"),
            chart("Logprob with advantage: above 0 narrows the policy", "actor/logprob_advantage_cov"),
            chart("Trainer against engine, nats", "training/(mismatch_kl|rollout_logprob_abs_diff_.*)"),
            chart("Share of tokens that count under importance weights", "training/effective_share"),
            chart("Updates to exhaustion of entropy", "collapse/updates_to_exhaustion"),
        ),
    ),
    Page(
        title="Rollouts",
        charts=(
            chart("How dialogues end", "dialogue/(delighted|left|farewell|max_turns|truncated)"),
            chart("Dialogues that broke", "dialogue/error_share"),
            chart("Strategies heard", "dialogue/heard/.*"),
            chart("Length of a reply, tokens", "response_length/.*"),
            chart("Replies in a dialogue", "num_turns/.*"),
            chart("Diversity: distinct word pairs", "dialogue/distinct_2"),
            chart("Sameness: self-BLEU, overlap with own earlier replies", "dialogue/(self_bleu_.*|own_overlap)"),
            chart("Strategies: entropy, nats", "dialogue/strategy_entropy"),
            chart("What a strategy tells of the user, nats: 0 is a template", "dialogue/strategy_information/.*"),
        ),
    ),
    Page(
        title="Evaluation",
        charts=(
            chart("Held-out score, 0-100", "eval/(full|during)_score"),
            chart("Worst cell: intention x difficulty band", "eval/(full|during)_worst_cell"),
            chart("Share of delighted users", "eval/(full|during)_success_rate"),
            chart("Share of users who left", "eval/(full|during)_failure_rate"),
            chart("Probe panel: a fall is forgetting", "probe/(reward|reward_.*|repetition)"),
            chart("Probe panel: reward, and the ceiling its entropy allows", "probe/reward", "collapse/ceiling"),
        ),
    ),
    Page(
        title="Timing",
        charts=(
            chart("Seconds of a step", "timing_s/.*"),
            chart("Policy tokens so far", "perf/policy_tokens"),
            chart("Tokens sampled per second", "rollout/tokens_per_s"),
            chart("Engines busy, share of the time", "rollout/engine_busy_share"),
            chart("Tokens updated on per second", "perf/update_throughput"),
            chart("CPU seconds of an update", "perf/update_cpu_s"),
            chart("Weights arrived: largest difference of logprobs, nats", "rollout/arrival_logprob_diff"),
        ),
    ),
)
"""All pages, in order."""
