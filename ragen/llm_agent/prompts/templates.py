r"""The texts of prompts as data, with named slots: this package's, or those of a YAML file.

A file of prompts has any of the fields below; omitted ones have this package's texts::

    system: "You play games."
    turn: "Turn {turn}:\n{observation}\n{actions_left}Answer as {format}.{length}"
    reply_format: {think: "<think>..</think><answer>..</answer>", answer: "<answer>..</answer>"}

A slot is a name in braces, optionally with a format after a colon (``{reward:.6g}``); a literal brace is doubled. A
part is omitted if one of its slots has no value, such as ``actions_left`` in a game without a limit.
``python -m ragen.llm_agent.prompts`` writes this package's prompts as such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Self, TypeVar

from pydantic import ConfigDict, model_validator

from ragen.config.loading import as_model
from ragen.config.schema import Section
from ragen.errors import ConfigError

M = TypeVar("M", bound=Section)

# Chats

SYSTEM_PROMPT = "You are an agent that acts in an environment, one turn at a time. Earn as much reward as you can."
THINK_FORMAT = "<think> how you decide </think> <answer> what you do </answer>"
ANSWER_FORMAT = "<answer> what you do </answer>"


@dataclass(frozen=True)
class Slots:
    """The slots that a text may have, and the one that it must have."""

    names: tuple[str, ...]
    needs: str = ""


_NUMBERS = ("reward", "actions_left", "max_tokens", "turn", "completed", "shown", "max_actions")


def _check_slots(key: str, text: str, slots: Slots) -> None:
    try:
        found = [(name, form, turned) for _, name, form, turned in Formatter().parse(text) if name is not None]
        for name, form, turned in found:
            if name not in slots.names or turned:
                known = ", ".join(f"{{{each}}}" for each in slots.names)
                raise ConfigError(f"{key} has the slot {{{name}}}; it may have {known}.")
            format(1 if name in _NUMBERS else "", form or "")
    except ValueError as error:
        raise ConfigError(f"{key} = {text!r}, which is invalid ({error}); double a literal brace.") from error
    if slots.needs and slots.needs not in [name for name, _, _ in found]:
        raise ConfigError(f"{key} lacks the slot {{{slots.needs}}}, which it needs.")


class Texts(Section):
    """Texts with slots."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="after")
    def _check_slots(self) -> Self:
        for name, field in type(self).model_fields.items():
            for slots in field.metadata:
                _check_slots(name, getattr(self, name), slots)
        return self


class InstructionTemplate(Texts):
    """The rules of a game before the first state, after the tag's ``env_instruction``; each is a line.

    Attributes:
        symbols: The meaning of a grid's symbols.
        actions: The names of actions.
        limits: The limits on actions.
    """

    symbols: Annotated[str, Slots(("symbols",))] = "Symbols in the state: {symbols}"
    actions: Annotated[str, Slots(("actions", "action_sep", "max_actions"))] = (
        'Available actions: {actions}. To take several in a row, put "{action_sep}" between them.'
    )
    limits: Annotated[str, Slots(("limits",))] = "The most actions you can take: {limits}."


class ReplyFormatTemplate(Texts):
    """The required form of a reply.

    Attributes:
        think: With a thought before the answer.
        answer: Without one.
    """

    think: str = THINK_FORMAT
    answer: str = ANSWER_FORMAT


class WindowTemplate(Texts):
    """The texts for earlier turns within the single user message of ``context_window_mode: single_turn``.

    Attributes:
        before: Before the earlier turns; ``{completed}`` turns were played, of which ``{shown}`` are shown.
        turn: One earlier turn.
        reward: The value of its slot ``{reward}``, if the turn has a reward.
        after: After the earlier turns.
    """

    before: Annotated[str, Slots(("completed", "shown"))] = "The turns before this one:"
    turn: Annotated[str, Slots(("turn", "observation", "reply", "reward"), "observation")] = (
        "---\nTurn {turn}:\nState:\n{observation}\nYour reply:\n{reply}{reward}"
    )
    reward: Annotated[str, Slots(("reward", "turn"))] = "\nReward:\n{reward:.6g}"
    after: str = "---"


class PromptTemplate(Texts):
    """All texts of a chat.

    Attributes:
        system: The system message; omitted if empty.
        turn: Text that asks for a turn; ``{turn}`` is its number, from 1.
        reward: The turn's reward, at the beginning of the message with the next turn.
        actions_left: The number of actions left.
        length: The requested maximum length of a reply.
        invalid: Added to the state after a turn without a valid action.
        reply_format: The value of ``{format}``.
        instruction: The rules of the game.
        window: Earlier turns within one message.
    """

    system: str = SYSTEM_PROMPT
    turn: Annotated[
        str, Slots(("turn", "observation", "invalid", "actions_left", "format", "length"), "observation")
    ] = (
        "Turn {turn}:\nState:\n{observation}\n"
        "{invalid}{actions_left}Always output: {format} with nothing before, between or after.{length}"
    )
    reward: Annotated[str, Slots(("reward",), "reward")] = "Reward:\n{reward:.6g}"
    actions_left: Annotated[str, Slots(("actions_left",))] = "You have {actions_left} actions left. "
    length: Annotated[str, Slots(("max_tokens",))] = " Use {max_tokens} words (tokens) at most."
    invalid: str = "Your last reply named no action that can be taken, so nothing has changed.\n"
    reply_format: ReplyFormatTemplate = ReplyFormatTemplate()
    instruction: InstructionTemplate = InstructionTemplate()
    window: WindowTemplate = WindowTemplate()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of prompts.

        Args:
            path: The file.

        Raises:
            ConfigError: The file cannot be read, or a field or slot is unknown or of the wrong type.
        """
        import yaml

        path = Path(path).expanduser()
        try:
            content = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"the prompts of {path} cannot be read: {' '.join(str(error).split())}.") from error
        if not isinstance(content, Mapping):
            raise ConfigError(f"{path} contains {type(content).__name__}; expected the fields of prompts.")
        return filled(cls(), content, str(path))

    def dump(self) -> str:
        """The prompts as the text of a YAML file."""
        import yaml

        class Dumper(yaml.SafeDumper):
            """Writes texts of several lines as blocks."""

        def shown(dumper: Any, text: str) -> Any:
            return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

        Dumper.add_representer(str, shown)
        return yaml.dump(self.model_dump(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


# Slots


def fill(text: str, values: Mapping[str, Any]) -> str:
    """A text with its slots filled.

    Args:
        text: A field of a template, checked when it was read.
        values: The value of each slot.

    Returns:
        The text; empty if the value of one of its slots is None.
    """
    pieces = []
    for literal, name, form in _parsed(text):
        pieces.append(literal)
        if name is not None:
            value = values[name]
            if value is None:
                return ""
            pieces.append(format(value + 0.0 if form and value == 0 else value, form))  # no "-0"
    return "".join(pieces)


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[tuple[str, str | None, str], ...]:
    """A text's pieces: the literal text before each slot, the slot, and its format."""
    return tuple((literal, name, form or "") for literal, name, form, _ in Formatter().parse(text))


def filled(default: M, content: Mapping[str, Any], where: str) -> M:
    """The default with other texts, which are checked.

    Raises:
        ConfigError: A field or slot is unknown, or a text is none.
    """
    given: dict[str, Any] = default.model_dump()
    for name, value in content.items():
        is_section = isinstance(value, Mapping) and isinstance(given.get(name), dict)
        given[name] = {**given[name], **value} if is_section else value
    try:
        return as_model(type(default), given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


DEFAULT_PROMPTS = PromptTemplate()
"""This package's prompts."""
