"""A recorded dialogue seen through another user: the replies are the recorded ones, the feelings its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, START_EMOTION, Dialogue, Speaker
from studies.user_fidelity.agreement import Followed

Feels = Callable[[Dialogue, str], int]
"""The change of emotion, [-10, 10], that a reply brings to a dialogue in which it does not stand yet."""


def follow(dialogue: Dialogue, feels: Feels, *, simulator: str, agent: str, from_recorded_state: bool = False) -> Followed:
    """Predicts each recorded change from the state that the predicting user has reached by itself, beginning at SAGE's 40.

    The words are the recorded ones throughout. Its score is the emotion at which it would have ended the dialogue, or else has at the end;
    changes after such an end are predicted all the same, because each recorded change is to be compared with one.

    Args:
        from_recorded_state: predict from the recorded emotions and changes instead.
    """
    turns = dialogue.turns
    so_far = replace(dialogue, turns=(replace(turns[0], emotion=START_EMOTION, change=None),), outcome=None)
    emotion, score, before, changes = START_EMOTION, None, [], []
    for index in range(1, len(turns) - 1, 2):
        if from_recorded_state:
            so_far = replace(dialogue, turns=turns[:index], outcome=None)
            emotion = so_far.emotion
        before.append(emotion)
        changes.append(feels(so_far, turns[index].text))
        emotion = max(0, min(DELIGHTED_AT, emotion + changes[-1]))
        if score is None and not LEFT_BELOW <= emotion < DELIGHTED_AT:
            score = emotion
        so_far = so_far.then(turns[index], replace(turns[index + 1], emotion=emotion, change=changes[-1]))
    return Followed(
        simulator=simulator,
        agent=agent,
        profile=dialogue.scenario.scenario_id,
        true_changes=tuple(_changes(dialogue)),
        changes=tuple(changes),
        true_before=tuple(turn.emotion or 0 for turn in turns[: 2 * len(changes)] if turn.speaker is Speaker.USER),
        before=tuple(before),
        true_score=dialogue.emotion,
        score=emotion if score is None else score,
    )


def _changes(dialogue: Dialogue) -> list[int]:
    return [turn.change for turn in dialogue.turns if turn.change is not None]
