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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any, Self

from ragen.errors import ConfigError

# Chats

SYSTEM_PROMPT = "You are an agent that acts in an environment, one turn at a time. Earn as much reward as you can."
THINK_FORMAT = "<think> how you decide </think> <answer> what you do </answer>"
ANSWER_FORMAT = "<answer> what you do </answer>"


def from_yaml(text: str) -> Any:
    """Parse YAML, with libyaml if PyYAML has it, which is ten times faster.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def text_field(default: str, *slots: str, needs: str = "") -> Any:
    """A field whose text may have these slots, and must have the slot ``needs``."""
    return field(default=default, metadata={"slots": slots, "needs": needs})


@dataclass(frozen=True)
class InstructionTemplate:
    """The rules of a game before the first state, after the tag's ``env_instruction``; each is a line.

    Attributes:
        symbols: The meaning of a grid's symbols.
        actions: The names of actions.
        limits: The limits on actions.
    """

    symbols: str = text_field("Symbols in the state: {symbols}", "symbols")
    actions: str = text_field(
        'Available actions: {actions}. To take several in a row, put "{action_sep}" between them.',
        *("actions", "action_sep", "max_actions"),
    )
    limits: str = text_field("The most actions you can take: {limits}.", "limits")


@dataclass(frozen=True)
class ReplyFormatTemplate:
    """The required form of a reply.

    Attributes:
        think: With a thought before the answer.
        answer: Without one.
    """

    think: str = THINK_FORMAT
    answer: str = ANSWER_FORMAT


@dataclass(frozen=True)
class WindowTemplate:
    """The texts for earlier turns within the single user message of ``context_window_mode: single_turn``.

    Attributes:
        before: Before the earlier turns; ``{completed}`` turns were played, of which ``{shown}`` are shown.
        turn: One earlier turn.
        reward: The value of its slot ``{reward}``, if the turn has a reward.
        after: After the earlier turns.
    """

    before: str = text_field("The turns before this one:", "completed", "shown")
    turn: str = text_field(
        "---\nTurn {turn}:\nState:\n{observation}\nYour reply:\n{reply}{reward}",
        *("turn", "observation", "reply", "reward"),
        needs="observation",
    )
    reward: str = text_field("\nReward:\n{reward:.6g}", "reward", "turn")
    after: str = "---"


@dataclass(frozen=True)
class PromptTemplate:
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
    turn: str = text_field(
        "Turn {turn}:\nState:\n{observation}\n"
        "{invalid}{actions_left}Always output: {format} with nothing before, between or after.{length}",
        *("turn", "observation", "invalid", "actions_left", "format", "length"),
        needs="observation",
    )
    reward: str = text_field("Reward:\n{reward:.6g}", "reward", needs="reward")
    actions_left: str = text_field("You have {actions_left} actions left. ", "actions_left")
    length: str = text_field(" Use {max_tokens} words (tokens) at most.", "max_tokens")
    invalid: str = "Your last reply named no action that can be taken, so nothing has changed.\n"
    reply_format: ReplyFormatTemplate = field(default_factory=ReplyFormatTemplate)
    instruction: InstructionTemplate = field(default_factory=InstructionTemplate)
    window: WindowTemplate = field(default_factory=WindowTemplate)

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
            content = from_yaml(path.read_text("utf-8"))
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
        return yaml.dump(asdict(self), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)

    def with_system(self, system: str) -> Self:
        """These prompts with another system message."""
        return replace(self, system=system)


DEFAULT_PROMPTS = PromptTemplate()
"""This package's prompts."""

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


def escaped(text: str) -> str:
    """A text with doubled braces, so that it has no slots."""
    return text.replace("{", "{{").replace("}", "}}")


def filled(default: Any, content: Mapping[str, Any], where: str, section: str = "") -> Any:
    """The default with the values of a file, which are checked."""
    known = {each.name: each for each in fields(default)}
    changed: dict[str, Any] = {}
    for name, value in content.items():
        key = f"{section}{name}"
        if name not in known:
            raise ConfigError(f"{where}: {key!r} is not a field of prompts; expected one of {', '.join(known)}.")
        rules = known[name].metadata
        changed[name] = _checked(getattr(default, name), value, where, key)
        if "slots" in rules and value != getattr(default, name):
            _check_slots(value, where, key, **rules)
    return replace(default, **changed)


def _checked(default: Any, value: Any, where: str, key: str) -> Any:
    if is_dataclass(default):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {key} is {value!r}; expected a mapping.")
        return filled(default, value, where, f"{key}.")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} is {value!r}; expected a text.")
    return value


def _check_slots(text: str, where: str, key: str, slots: Sequence[str], needs: str) -> None:
    try:
        found = [(name, form, turned) for _, name, form, turned in Formatter().parse(text) if name is not None]
        for name, form, turned in found:
            if name not in slots or turned:
                known = ", ".join(f"{{{each}}}" for each in slots)
                raise ConfigError(f"{where}: {key} has the slot {{{name}}}; it may have {known}.")
            format(1 if name in _NUMBERS else "", form or "")
    except ValueError as error:
        raise ConfigError(f"{where}: {key} is {text!r}, which is invalid ({error}); double a literal brace.") from error
    if needs and needs not in [name for name, _, _ in found]:
        raise ConfigError(f"{where}: {key} lacks the slot {{{needs}}}, which it needs.")


_NUMBERS = (
    *("reward", "actions_left", "max_tokens", "turn", "completed", "shown", "max_actions"),
    *("step_count", "history_length", "current_step"),
)
