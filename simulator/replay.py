"""Recorded dialogues put through the embedded user's rule again: the same reply must move the same user by the same points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from simulator.bank import Bank
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.explanation import Explanation, explain_reply
from simulator.native_user import NativeUser
from simulator.register import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage_steps import SageExplanation, explain_by_sage
from simulator.shown import read_dialogues
from simulator.study_commands import import_studies
from simulator.users import USERS

CONFIG, DIALOGUES, EVALUATION = "config.yaml", "dialogues.jsonl", "evaluation.jsonl"
SETTINGS = "simulator"
"""Where a run's config, and the record of a chat, hold the user's settings."""
AGENT = "agent"
"""What the config of an evaluation has, and that of a run has not."""
TYPES: Mapping[type, tuple[type | tuple[type, ...], str]] = {
    float: ((int, float), "a number"),
    int: (int, "a whole number"),
    bool: (bool, "true or false"),
    list: (list, "a list"),
}
"""By the type of its default, what a recorded setting of the user can be, and how that is said."""
HELD_OUT_UID = "eval:"
"""How the uid of a held-out dialogue begins."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A user's turn, as it was recorded and as the rule gives it."""

    reply: str
    """What it answers; "" for the opening."""
    recorded: Turn
    recomputed: Turn
    explanation: Explanation | SageExplanation | None
    """None for the opening."""

    @property
    def is_same(self) -> bool:
        """Whether the user felt what was recorded."""
        return (self.recorded.change, self.recorded.emotion) == (self.recomputed.change, self.recomputed.emotion)

    @property
    def other_differences(self) -> tuple[str, ...]:
        """What else is told differently: words, thought, strategies heard."""
        return tuple(name for name in ("text", "thought", "heard") if getattr(self.recorded, name) != getattr(self.recomputed, name))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which dialogues of a file are meant; None does not choose."""

    uid: str | None = None
    sibling: int | None = None
    step: int | None = None
    index: int | None = None
    """Number of the dialogue in its file, from 1."""

    def takes(self, record: Mapping[str, Any], number: int) -> bool:
        """Whether it is one of them."""
        asked = (
            (self.uid, record.get("uid")),
            (self.sibling, record.get("sibling")),
            (self.step, record.get("step")),
            (self.index, number),
        )
        return all(wanted is None or wanted == is_there for wanted, is_there in asked)

    def __str__(self) -> str:
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value!r}" for name, value in asked.items() if value is not None) or "anything"


def replay(dialogue: Dialogue, config: RuleUserConfig) -> Iterator[Replayed]:
    """Every turn of the user, each recomputed from what was recorded before it, so that one difference does not bring others.

    Raises:
        ValueError: a turn lacks what the rule is to be compared with.
    """
    user, turns = user_of(config), dialogue.turns
    require_feelings(dialogue)
    opening = user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0]
    yield Replayed(reply="", recorded=turns[0], recomputed=opening, explanation=None)
    for index, turn in enumerate(turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            before = replace(dialogue, turns=turns[:index], outcome=None)
            recomputed = user.answer(before, turn.text).turn
            before = user.taken(before, turn.text)
            yield Replayed(
                reply=turn.text,
                recorded=turns[index + 1],
                recomputed=recomputed,
                explanation=explain_by_sage(before, turn.text)
                if config.preset is Preset.SAGE
                else explain_reply(before, turn.text, config),
            )


def user_of(config: RuleUserConfig) -> RuleUser:
    """The user who follows a rule with these settings; one of a study has a class of its own."""
    own = {settings: user for settings, user in USERS.values() if settings is not RuleUserConfig}
    user: RuleUser = own.get(type(config), NativeUser)(config)
    return user


def by_rule() -> dict[str, type[RuleUserConfig]]:
    """Kinds of user whose recorded changes can be computed again, with the settings of each."""
    return {kind: settings for kind, (settings, _) in USERS.items() if issubclass(settings, RuleUserConfig)}


def follows_rule(kind: Any) -> bool:
    """Whether a user of this kind can be computed again; a kind that the core does not know may be a study's."""
    if kind not in USERS:
        import_studies()
    return kind in by_rule()


def require_feelings(dialogue: Dialogue) -> None:
    """Raises unless the turns alternate, the user's first, and each of the user's tells what was felt.

    Raises:
        ValueError: with the number of the turn.
    """
    if not dialogue.turns:
        raise ValueError("turns must begin with the user's opening, got none")
    for number, turn in enumerate(dialogue.turns, start=1):
        due = (Speaker.AGENT, Speaker.USER)[number % 2]
        if turn.speaker is not due:
            raise ValueError(f"turn {number} must be the {due}'s, got one of the {turn.speaker}")
        if turn.speaker is Speaker.USER and (turn.emotion is None or (turn.change is None and number > 1)):
            raise ValueError(f"turn {number} must hold an emotion{' and a change' if number > 1 else ''}, got neither or one of them")


def chosen(path: Path, selection: Selection, bank: Bank) -> Iterator[tuple[int, Mapping[str, Any], Dialogue]]:
    """The dialogues of a file that are meant, each with its number and record.

    Raises:
        ValueError: a line is no dialogue on a scenario of the bank, or none is meant.
    """
    num_taken = 0
    for number, (record, dialogue) in enumerate(read_dialogues(path, bank), start=1):
        if selection.takes(record, number):
            num_taken += 1
            yield number, record, dialogue
    if not num_taken:
        raise ValueError(f"{path} must hold a dialogue with {selection}, got none")


def transcript_file(source: Path, *, evaluation: bool) -> Path:
    """The file that is meant: itself, or one of a run's two.

    Args:
        evaluation: of a run's folder take the held-out dialogues.

    Raises:
        ValueError: it is not there.
    """
    path = source
    if source.is_dir():
        # What an evaluation of any agent leaves behind is all held out, and in one file.
        is_apart = evaluation and AGENT not in recorded_config(source / CONFIG)
        path = source / (EVALUATION if is_apart else DIALOGUES)
    if not path.is_file():
        raise ValueError(f"DIALOGUE must be a JSONL file of ours or a run's folder, got {str(source)!r}; {path} is not there")
    return path


def recorded_config(path: Path) -> dict[str, Any]:
    """The run's config beside a transcript file, {} without one.

    Raises:
        ValueError: it cannot be read.
    """
    config = path.parent / CONFIG
    if not config.is_file():
        return {}
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{config} must be read with PyYAML, which is not installed; install it, or move the dialogues elsewhere"
        ) from error
    try:
        tree = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} must be YAML, got {str(error).splitlines()[0]}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get(SETTINGS, {}), dict):
        raise ValueError(f"{config} must hold settings by name")
    return tree


def settings_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The user's settings in a dialogue's record or a run's config; none where it has none.

    Raises:
        ValueError: what stands there is something else.
    """
    found = record.get(SETTINGS) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{SETTINGS} must hold a user's settings by name, got {found!r}")
    return found


def recorded_register(*sources: Mapping[str, Any]) -> str:
    """In which register the users of a dialogue heard, of several sources the first that says it; a model as user hears the open one."""
    if any(source.get("kind") is not None and not follows_rule(source["kind"]) for source in sources):
        return Register.OPEN
    return next((str(source["register"]) for source in sources if source.get("register")), str(Register.WORLD))


def user_settings(*sources: Mapping[str, Any]) -> RuleUserConfig:
    """The user's settings, of several sources the first that has each; what is None says nothing.

    Raises:
        ValueError: a setting is not one that the embedded user can have.
    """
    kind = next((source["kind"] for source in sources if source.get("kind") is not None), "rule")
    if not follows_rule(kind):
        known = " or ".join(by_rule())
        raise ValueError(f"simulator.kind must be {known}, got {kind!r}: only the embedded user follows a rule that can be replayed")
    config = by_rule()[kind]
    found: dict[str, Any] = {}
    for source in reversed(sources):
        found |= {field.name: source[field.name] for field in fields(config) if source.get(field.name) is not None}
    usual = vars(config())
    for name, value in found.items():
        types, what = TYPES.get(type(usual[name]), (object, ""))
        if not isinstance(value, types) or (types is not object and isinstance(value, bool) != (types is bool)):
            raise ValueError(f"simulator.{name} must be {what}, got {value!r}")
    if "register" in found:
        found["register"] = Register(found["register"])
    if "preset" in found:
        found["preset"] = Preset(found["preset"])
    return config(**found)
