"""`agent.json`: everything that is said of an agent after an evaluation, and the words that are printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from analysis.evaluated import AGENT_JSON, FORMAT, read_object
from analysis.stats import Estimate
from analysis.text import with_interval
from analysis.transcripts import CutShort
from experiments.agents.capabilities import capabilities
from experiments.agents.cognition import plane, strategy_shares
from experiments.agents.heard import answered, sound_ones
from experiments.agents.length import length_control
from experiments.agents.players import Played
from experiments.agents.playing import PATIENCE
from experiments.agents.scores import errors, scores
from experiments.agents.setting import Setting, setting_id
from experiments.agents.tries import best_of_k
from experiments.summary import git_commit, versions
from simulator.files import jsonable, write_whole
from simulator.rule_user import RuleUserConfig

Capabilities = Mapping[str, Estimate] | None


def describe(
    played: Sequence[Played],
    setting: Setting,
    *,
    agent: Mapping[str, Any],
    samples: int,
    seed: int,
    by_judge: Capabilities,
    judge: Mapping[str, Any],
    usage: Mapping[str, float],
) -> dict[str, Any]:
    """The whole of `agent.json`.

    Args:
        played: all dialogues, also those that broke.
        agent: who spoke, and how it was asked.
        by_judge: capabilities by a model; None where none judged.
        judge: which model judged, how many dialogues got no grades, how many of these were not sent and why the first got none; or why
            nobody judged.
        usage: requests, tokens and money of all sittings, by who used them.
    """
    # In an order that does not depend on which ended first: sums are then the same to the last bit.
    played = sorted(played, key=lambda one: (one.task.uid, one.sibling))
    alive = sound_ones(played)
    replies = answered(alive, setting.register())
    is_rule = isinstance(setting.user_config, RuleUserConfig)
    by_rule = capabilities(replies, seed=seed) if is_rule else None
    shown = setting.to_dict()
    return {
        "format": FORMAT,
        "agent": dict(agent),
        "setting": shown,
        "setting_id": setting_id(shown),
        "profiles": setting.bank_file,
        "samples": samples,
        "seed": seed,
        **scores(played, seed=seed),
        "errors": errors(played, planned=samples * len(setting.tasks())),
        "replies": {"answered": len(replies), "per_dialogue": len(replies) / len(alive) if alive else None},
        "capabilities": {
            "by": "rule" if is_rule else "judge" if by_judge else None,
            **dict(judge),
            **{name: estimate.to_dict() for name, estimate in (by_rule or by_judge or {}).items()},
        },
        "strategies": {name: estimate.to_dict() for name, estimate in strategy_shares(replies, seed=seed).items()},
        "social_cognition": as_plain(plane(replies, seed=seed)),
        "length": length_control(alive, seed=seed, register=setting.register()),
        "best_of_k": best_of_k(alive, samples=samples, seed=seed),
        "usage": dict(usage),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def write(folder: Path, found: Mapping[str, Any]) -> Path:
    """Writes `agent.json`, whole or not at all."""
    return write_whole(folder / AGENT_JSON, json.dumps(jsonable(found), indent=2, ensure_ascii=False) + "\n")


def read(folder: Path) -> dict[str, Any]:
    """What an earlier sitting wrote; empty where there is none that can be read."""
    try:
        return read_object(folder / AGENT_JSON)
    except ValueError:
        return {}


def graded_before(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """What a model that judged the same dialogues in an earlier sitting found, as `describe` takes it; empty where none did."""
    capable = earlier.get("capabilities")
    if not isinstance(capable, dict) or capable.get("by") != "judge":
        return {}
    graded = {name: Estimate.from_dict(value) for name, value in capable.items() if isinstance(value, dict)}
    return {"by_judge": graded, "judge": {name: value for name, value in capable.items() if name not in (*graded, "by")}}


def added_up(*sittings: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """What was used up over several sittings, by who used it."""
    total: dict[str, dict[str, float]] = {}
    for who, used in chain.from_iterable(sitting.items() for sitting in sittings):
        mine = total.setdefault(who, {})
        for name, value in used.items():
            mine[name] = mine.get(name, 0.0) + value
    return total


def as_plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Estimates in it as dicts."""
    return {name: value.to_dict() if isinstance(value, Estimate) else value for name, value in tree.items()}


def in_words(found: Mapping[str, Any], folder: Path) -> str:
    """What is printed when an evaluation ends."""
    broken = found["errors"]
    lines = [f"{found['agent']['name']}  on {found['profiles'] or found['setting']['bank']}, {found['n_dialogues']} dialogues scored"]
    if not found["n_dialogues"]:
        lines.append("score       none: no dialogue could be scored")
    else:
        lines += figures(found)
    if broken["excluded_dialogues"]:
        lines.append(f"excluded    {broken['excluded_dialogues']} of {broken['planned']} dialogues broke, and count in no score:")
        lines += [f"            {count} x {reason}" for reason, count in broken["reasons"].items()]
    if broken["not_played"]:
        lines.append(f"missing     {broken['not_played']} of {broken['planned']} dialogues were not played; the same command goes on")
    if broken["cut_short"]:
        said = "dialogues ran out of context (--max-context) and are scored as they stood"
        lines.append(f"cut short   {broken['cut_short']} of {broken['planned']} {said}")
        cut = CutShort(
            share=broken["cut_short"] / max(broken["planned"] - broken["not_played"] - broken["excluded_dialogues"], 1),
            by_user=broken["cut_short_by_user"],
            replies=broken["cut_short_replies"],
        )
        if cut.is_much:
            why = cut.words(
                context=f"--max-context={found['agent'].get('max_context')}", reply=f"--max-tokens={found['agent'].get('max_new_tokens')}"
            )
            lines.append(f"WARNING     {cut.share:.0%} of the dialogues were {why}")
    if found["capabilities"].get("num_errors"):
        lines.append(ungraded(found["capabilities"], num_dialogues=found["n_dialogues"]))
    return "\n".join([*lines, f"results     {folder / AGENT_JSON}", f"transcripts make transcripts RUN={folder}"])


def ungraded(capable: Mapping[str, Any], *, num_dialogues: int) -> str:
    """How many dialogues the judge gave no grades, and why."""
    said = f"judge: {capable['num_errors']} of {num_dialogues} dialogues got no grades: {capable['complaint']}"
    not_sent = capable["num_not_sent"]
    return f"{said}; {not_sent} were not sent after {PATIENCE} such in a row, the same command goes on" if not_sent else said


def figures(found: Mapping[str, Any]) -> list[str]:
    """The lines of scores and capabilities."""
    intervals = found["intervals"]
    lines = [
        f"score       {with_interval(found)}   worst cell {found['worst_cell']:.1f}   worst fifth {found['cvar20']:.1f}",
        f"success     {percent(intervals['success_rate'])}   failure {percent(intervals['failure_rate'])}",
        "strictness  " + "   ".join(f"{name} {cell['value']:.0f}" for name, cell in found["strictness"].items()),
        "  success   " + "   ".join(f"{name} {cell['success_rate']['value']:.0%}" for name, cell in found["strictness"].items()),
        "  failure   " + "   ".join(f"{name} {cell['failure_rate']['value']:.0%}" for name, cell in found["strictness"].items()),
    ]
    capable = found["capabilities"]
    if capable["by"]:
        shown = [f"{name.replace('_', ' ')} {number(capable[name]['value'], '.2f')}" for name in capable if isinstance(capable[name], dict)]
        lines.append(f"capable     {'   '.join(shown)}   (by {capable['by']})")
    social = found["social_cognition"]
    lines.append(
        f"plane       empathy to solution {number(social['empathy_to_solution']['value'], '+.2f')}"
        f"   structured to creative {number(social['structured_to_creative']['value'], '+.2f')}"
    )
    if found["best_of_k"]:
        best = found["best_of_k"]
        lines.append(f"best of {best['k']}   {best['best']['value']:.1f}, mean {best['mean']['value']:.1f}")
    return lines


def percent(estimate: Mapping[str, float | None]) -> str:
    """A share as a percentage with its interval."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.0%}" if low is None or high is None else f"{value:.0%} [{low:.0%}, {high:.0%}]"


def number(value: float | None, form: str) -> str:
    """The number in its form, a dash for none."""
    return "–" if value is None or value != value else format(value, form)
