"""Which charts stand on which page of TensorBoard: the first page tells in ten seconds whether a run is healthy.

Every metric has its place. What only some runs measure (a critic, an agent that thinks, a teacher's own figures) gets its chart when the
run first measures it, so that nobody looks at empty frames.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Some metrics in one frame."""

    title: str
    tags: tuple[str, ...]
    """Regular expressions, each for whole metric keys (docs/metrics.md)."""
    always: bool = True
    """Whether it stands there before anything was measured."""

    def shows(self, keys: Collection[str]) -> bool:
        """Whether one of the keys is drawn in it."""
        return any(re.fullmatch(tag, key) for tag in self.tags for key in keys)


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


def sometimes(title: str, *tags: str) -> Chart:
    """A chart of metrics that only some runs have."""
    return Chart(title=title, tags=tags, always=False)


def pages_for(keys: Collection[str]) -> list[Page]:
    """The pages of a run that has measured so much: without the charts that wait for a metric, and without pages left empty."""
    kept = [replace(page, charts=tuple(chart for chart in page.charts if chart.always or chart.shows(keys))) for page in PAGES]
    return [page for page in kept if page.charts]


HEALTH = Page(
    title="Is this run healthy?",
    closed=False,
    charts=(
        chart("Held-out score, 0-100: what it is for (smoothing shows it late)", "eval/during_score"),
        chart("Reward: rises, then levels off", "reward/mean", "reward/success_rate"),
        chart("Reward density: 0 teaches nothing", "curriculum/reward_density", "collapse/reward_density"),
        chart("Policy entropy: falls slowly, never to 0", "actor/entropy"),
        chart("Updates until entropy is spent; empty while it holds", "collapse/updates_to_exhaustion"),
        chart("Share of groups without contrast: should stay low", "curriculum/(zero_variance|all_low|all_high)_share"),
        chart("Difficulty: follows the agent's ability", "curriculum/strictness", "curriculum/level"),
        # Three lines and no band: TensorBoard fits a band's chart to its middle line, and cuts the band off where it leaves the frame.
        chart("Strictness by hidden wish: mildest, mean, strictest", "curriculum/recent/.*"),
        chart("Collapse alarms on: should stay at 0", "collapse/(alarms_on|alarm)"),
    ),
)
"""What the eye should meet first."""

CURRICULUM = Page(
    title="Curriculum",
    charts=(
        chart("Strictness issued", "curriculum/(strictness|strictness_std|level)"),
        chart("Success against its target", "curriculum/(success_share|success_running|target_success|ceiling)"),
        chart("Strictness by what users secretly want: maps are in the images tab", "curriculum/strictness_of/.*"),
        chart("Groups by what users secretly want", "curriculum/groups_of/.*"),
        sometimes("Offset by hidden intention", "curriculum/offset/.*"),
        sometimes("Share of the most practised family", "curriculum/largest_family_share"),
        sometimes("Share that goes back for what was forgotten", "curriculum/replay_share"),
        chart("Groups alike beyond chance: independent siblings give .05 to .23", "curriculum/alike_excess"),
        chart("How much a group differs within", "curriculum/(within_group_std|best_of_k_gain)"),
        chart("Rollouts that count in a group", "curriculum/effective_group_size"),
        chart("Share of the groups that carry a step", "curriculum/groups_effective_share"),
        chart("Share of tasks at the bounds of strictness", "curriculum/at_bounds_share"),
        chart("Outcomes in flight", "curriculum/(outstanding|in_flight_delay)"),
        chart("Outcomes counted", "curriculum/outcomes_.*"),
    ),
)

TEACHER = Page(
    title="The teacher's own figures",
    charts=(
        sometimes("Cells in effect practised", "curriculum/cells_effective"),
        sometimes("SEC: best running advantage", "curriculum/sec_best_q"),
        sometimes("DUMP: fewest rollouts of a cell", "curriculum/dump_least_count"),
        sometimes("VCRL: cells in the bank", "curriculum/vcrl_bank"),
        sometimes("VCRL: share of groups below kappa", "curriculum/vcrl_dropped_share"),
        sometimes("SFL: entries of the buffer", "curriculum/sfl_buffer"),
        sometimes("PLR: cells seen, and the best score", "curriculum/plr_(filled|best_score)"),
        sometimes("TSCL: fastest change of reward", "curriculum/tscl_fastest"),
        sometimes("Learning progress: the greatest", "curriculum/progress_best"),
        sometimes("Staged: stage", "curriculum/staged/stage"),
        sometimes("Staged: success in it", "curriculum/staged/success"),
        sometimes("ADR: walls of the box", "curriculum/adr/(low|high)"),
        sometimes("ADR: size of the box, nats", "curriculum/adr/entropy"),
        sometimes("AdaRFT: target, and share at a bound", "curriculum/adarft/.*"),
        sometimes("RLVE: highest open level", "curriculum/rlve/.*"),
        sometimes("Copy: share of the trace gone through", "curriculum/(yoked|shuffled)/replayed"),
        sometimes("Beta-Thompson: success expected", "curriculum/beta_thompson/success_at_.*"),
        sometimes("Beta-Thompson: spread of families", "curriculum/beta_thompson/offset_std"),
        sometimes("ALP-GMM: absolute progress", "curriculum/alp_gmm/alp"),
        sometimes("ALP-GMM: Gaussians", "curriculum/alp_gmm/num_components"),
        sometimes("Self-paced: mean and width", "curriculum/spdl/(mean|std)"),
        sometimes("Self-paced: nats to the target", "curriculum/spdl/kl_to_target"),
        sometimes("Self-paced: reward expected", "curriculum/spdl/expected_return"),
    ),
)

POLICY = Page(
    title="Policy",
    charts=(
        chart("Policy loss", "actor/pg_loss"),
        chart("Gradient norm before clipping", "actor/grad_norm"),
        chart("Clipped share of tokens", "actor/clip_fraction.*"),
        chart("KL from the policy before the update, nats", "actor/approx_kl"),
        sometimes("KL from the reference, nats", "actor/kl_(loss|reward)"),
        chart("Probability ratio", "actor/ratio_.*"),
        chart("Learning rate", "actor/lr"),
        chart("Weights of KL and of the entropy bonus", "actor/(kl|entropy)_coef"),
        chart("Entropy, exact and sampled, nats", "actor/entropy", "actor/entropy_sampled", "collapse/entropy"),
        chart("Entropy where the policy decides, nats", "actor/entropy_forking"),
        chart("Logprob with advantage: above 0 narrows the policy", "actor/logprob_advantage_cov"),
        chart("Trainer against engine: logprobs, nats", "training/rollout_logprob_abs_diff_.*"),
        chart("Trainer against engine: KL, nats", "training/mismatch_(kl|k1)"),
        chart("Trainer against engine: variance of importance weights", "training/mismatch_chi2"),
        chart("Share of tokens that count under importance weights", "training/effective_share"),
        chart("Updates, and optimiser steps skipped", "training/(policy_version|skipped_steps)"),
        sometimes("Weights that correct for the engine", "training/correction_.*"),
    ),
)

CRITIC = Page(
    title="Critic",
    charts=(
        sometimes("Share of the returns' variance explained", "critic/vf_explained_var"),
        sometimes("Loss", "critic/vf_loss"),
        sometimes("Values", "critic/values/.*", "critic/vpred_mean"),
        sometimes("Returns", "critic/returns/.*"),
        sometimes("Clipped share", "critic/vf_clipfrac"),
        sometimes("Gradient norm before clipping", "critic/grad_norm"),
        sometimes("Learning rate", "critic/lr"),
    ),
)

COLLAPSE = Page(
    title="Signs of collapse",
    charts=(
        chart("Of the start: 1 is unchanged", "collapse/(entropy|reward_density|reply_length|strategy_entropy)_of_start"),
        chart("Entropy's slope, nats per update", "collapse/entropy_slope"),
        chart("Groups alike, smoothed", "collapse/(zero_variance|all_low|all_high)_share"),
        chart("Share of the spread within groups that is gone", "collapse/spread_fall"),
        chart("Gradient above its usual, robust deviations", "collapse/gradient_spike"),
        chart("Fall of the probe panel below its best", "collapse/probe_fall"),
        chart("Distinct word pairs, smoothed", "collapse/distinct_2"),
        chart("Reply length, smoothed, tokens", "collapse/reply_length"),
        chart("Trainer against engine, smoothed, nats", "collapse/mismatch"),
        chart("Headroom: the ceiling less the reward", "collapse/headroom"),
        chart("Does the law of entropy hold? Below .5 hardly", "collapse/law_r_squared"),
    ),
)

ROLLOUTS = Page(
    title="Rollouts",
    charts=(
        chart("Reward, and what users felt: the further above, the more it is gamed", "reward/mean", "reward/emotion"),
        chart("Spread of the reward", "reward/std"),
        chart("Length of a reply, tokens", "response_length/.*"),
        chart("Does length pay? Correlation with reward", "reward/length_correlation"),
        chart("Replies in a dialogue", "num_turns/.*"),
        chart("Repetition: should stay low", "dialogue/repetition", "collapse/repetition"),
        chart("Entropy of all sampled tokens, nats", "rollout/entropy_sampled"),
        chart("Diversity: distinct word pairs", "dialogue/distinct_2"),
        chart("Sameness: self-BLEU, overlap with own earlier replies", "dialogue/(self_bleu_.*|own_overlap)"),
        chart("Sameness: compression", "dialogue/compression_ratio"),
        sometimes("Thinking: tokens of a thought", "rollout/think_tokens"),
        sometimes("Thinking: well formed, cut off", "rollout/(format_ok|think_truncated)"),
    ),
)

SIMULATOR = Page(
    title="Simulated users",
    charts=(
        chart("How dialogues end", "dialogue/(delighted|left|farewell|max_turns|truncated)"),
        chart("Dialogues that broke", "dialogue/error_share"),
        chart("Strategies heard", "dialogue/heard/.*"),
        chart("Strategies: entropy, nats", "dialogue/strategy_entropy"),
        chart("What a strategy tells of the user, nats: 0 is a template", "dialogue/strategy_information/.*"),
        chart("Replies that address whoever plays the user", "simulator/suspicious_share"),
        sometimes("Requests and answers", "simulator/(calls|cache_hits|retries|rate_limited|unusable|failures)"),
        sometimes("Changes cut to 10 points", "simulator/clipped"),
        sometimes("Tokens of requests and answers", "simulator/(prompt|completion)_tokens"),
        sometimes("Cost so far", "simulator/cost"),
    ),
)

EVALUATION = Page(
    title="Evaluation",
    charts=(
        chart("Held-out score, 0-100, on the small grid", "eval/during_score"),
        chart("Held-out score, 0-100, on the full grid: before and after", "eval/full_score"),
        chart("Worst cell: intention x difficulty band", "eval/(full|during)_worst_cell"),
        chart("Share of delighted users", "eval/(full|during)_success_rate"),
        chart("Share of users who left", "eval/(full|during)_failure_rate"),
        sometimes("Area under the score over its own tokens, at the end", "eval/auc"),
        chart("Probe panel: a fall is forgetting", "probe/(reward|reward_.*|repetition)"),
        chart("Probe panel: reward, and the ceiling its entropy allows", "probe/reward", "collapse/ceiling"),
        chart("Probe panel: strictness against reward, must be negative", "probe/strictness_correlation"),
        chart("Probe panel: entropy, nats", "probe/entropy_sampled"),
        chart("Probe panel: share of first replies that fit their own user best", "probe/retrieval_accuracy"),
    ),
)

TIMING = Page(
    title="Timing",
    charts=(
        chart("Seconds of a step", "timing_s/.*"),
        chart("Policy tokens so far", "perf/policy_tokens"),
        chart("Tokens of a batch", "perf/(total|trained)_num_tokens"),
        chart("Tokens sampled per second", "rollout/tokens_per_s"),
        chart("Engines busy, share of the time", "rollout/engine_busy_share"),
        chart("Workers started anew", "rollout/num_restarts"),
        chart("Dialogues lost with a worker, attempts repeated", "rollout/num_(lost|retried)"),
        chart("Dialogues dispatched, in flight", "rollout/num_(dispatched|in_flight)"),
        chart("Age of what is trained on, updates", "off_policy/(mean|max)"),
        chart("Groups dropped as too old", "off_policy/dropped"),
        sometimes("Groups played until enough had contrast, rounds", "rollout/num_(groups|rounds)"),
        sometimes("Seconds paused for users who were away", "simulator/paused_s"),
        chart("Tokens updated on per second", "perf/update_throughput"),
        chart("CPU seconds of an update", "perf/update_cpu_s"),
        chart("Weights arrived: largest difference of logprobs, nats", "rollout/arrival_logprob_diff"),
    ),
)

PAGES = (HEALTH, CURRICULUM, TEACHER, POLICY, CRITIC, COLLAPSE, ROLLOUTS, SIMULATOR, EVALUATION, TIMING)
"""All pages, in order."""
