r"""What prompts are made of, as data: texts with named slots.

    PromptTemplate    chats of turns: our own words, or a YAML file's, such as one imported from a RAGEN checkout
    StepTemplates     one message a step, as containers of environments show it; by type of environment

A file of prompts holds any of the fields below, and what it leaves out is ours::

    system: "You play games."
    instruction_in: system
    state: "{observation}\n{actions_left}Answer as {format}.{length}"
    reply_format: {think: "<think>..</think><answer>..</answer>", answer: "<answer>..</answer>"}

A slot is a name in braces, with a format after a colon where one is wanted (``{reward:.6g}``); a brace that is meant
is written twice. A part with a slot that has no value is left out, as ``actions_left`` is in a game without a limit.
``python -m ragen.llm_agent.prompting show`` writes our own prompts in this form, ``import`` those of a RAGEN checkout.
"""

from __future__ import annotations

import re
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
IN_SYSTEM, IN_USER = PLACES = ("system", "user")
VERSION = 1


def from_yaml(text: str) -> Any:
    """Parse YAML, by libyaml where PyYAML has it: a tenth of the time.

    Raises:
        yaml.YAMLError: It is no YAML.
    """
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _text(default: str, *slots: str, needs: str = "") -> Any:
    """A field whose text may have these slots, and must have the one that ``needs`` names."""
    return field(default=default, metadata={"slots": slots, "needs": needs})


def _pattern() -> Any:
    """A field that holds a regular expression with a group, or nothing."""
    return field(default="", metadata={"groups": 1})


@dataclass(frozen=True)
class InstructionTemplate:
    """The rules of a game, before the first state: what stands behind a tag's ``env_instruction``.

    Attributes:
        join: Between its paragraphs.
        symbols: What the symbols of a grid mean.
        symbol: One of them.
        symbol_join: Between two of them.
        coordinates: Said where states are coordinates and show no grid.
        actions: The actions that have names.
        action_join: Between two names.
        limits: Number of actions.
        turn_limit: How many in a turn.
        episode_limit: How many in an episode.
        limit_join: Between the two.
    """

    join: str = "\n"
    symbols: str = _text("Symbols in the state: {symbols}", "symbols")
    symbol: str = _text("{symbol} is {meaning}", "symbol", "meaning")
    symbol_join: str = ", "
    coordinates: str = ""
    actions: str = _text(
        'Available actions: {actions}. To take several in a row, put "{action_sep}" between them.',
        *("actions", "action_sep", "max_actions"),
    )
    action_join: str = ", "
    limits: str = _text("The most actions you can take: {limits}.", "limits")
    turn_limit: str = _text("{count} in one turn", "count")
    episode_limit: str = _text("{count} in the whole episode", "count")
    limit_join: str = ", "


@dataclass(frozen=True)
class ReplyFormatTemplate:
    """The form of an answer.

    Attributes:
        think: Where replies think before they answer.
        answer: Where they do not.
    """

    think: str = THINK_FORMAT
    answer: str = ANSWER_FORMAT


_STATE_SLOTS = ("observation", "invalid", "actions_left", "format", "length")
_HEADING_SLOTS = ("task", "played")


@dataclass(frozen=True)
class WindowTemplate:
    """Earlier turns, inside the one user message of ``context_window_mode: single_turn``.

    Patterns are regular expressions as Python's ``re.search`` reads them; their first group counts. With those fields
    earlier turns can be shown in short: the task once, actions without thoughts, observations without what is repeated.

    Attributes:
        before: Before them; ``{completed}`` turns have been played, of which ``{shown}`` are shown.
        turn: One of them.
        reward: What ``{reward}`` of that is, where there was one.
        after: Behind them.
        asked: The turn that is asked for, behind others.
        alone: The same where no earlier turn is shown.
        state: What ``{state}`` of these is; empty for that of all prompts.
        invalid: What ``{invalid}`` of that is; empty for that of all prompts.
        task: What ``{task}`` is, where the task is found.
        played: What ``{played}`` is, from the second turn of an episode on.
        admissible: What ``{admissible}`` is, where admissible actions are found.
        find_task: Pattern of the task in an episode's first observation.
        find_admissible: Pattern of the admissible actions in the observation of the turn that is asked for.
        find_reply: Pattern of what is shown of an earlier reply; empty, or where it is not found, for the whole reply.
        clean: Patterns, and what is put in place of each in every observation, one after the other.
        longest: Maximum number of characters of an earlier observation; 0 for no limit.
        cut: Ends an observation that was longer.
    """

    before: str = _text("The turns before this one:", "completed", "shown", *_HEADING_SLOTS)
    turn: str = _text(
        "---\nTurn {turn}:\nState:\n{observation}\nYour reply:\n{reply}{reward}",
        *("turn", "observation", "reply", "reward"),
        needs="observation",
    )
    reward: str = _text("\nReward:\n{reward:.6g}", "reward", "turn")
    after: str = "---"
    asked: str = _text("Turn {turn}:\n{state}", "turn", "state", *_HEADING_SLOTS, needs="state")
    alone: str = _text("Turn {turn}:\n{state}", "turn", "state", *_HEADING_SLOTS, needs="state")
    state: str = _text("", "turn", "admissible", *_STATE_SLOTS, needs="observation")
    invalid: str = ""
    task: str = _text("", "task")
    played: str = _text("", "completed")
    admissible: str = _text("", "admissible")
    find_task: str = _pattern()
    find_admissible: str = _pattern()
    find_reply: str = _pattern()
    clean: dict[str, str] = field(default_factory=dict, metadata={"groups": 0})
    longest: int = 0
    cut: str = ""

    def cleaned(self, observation: str) -> str:
        """An observation after all of ``clean``."""
        for pattern, text in self.clean.items():
            observation = re.sub(pattern, text.replace("\\", "\\\\"), observation)
        return observation

    def shortened(self, observation: str) -> str:
        """An observation of ``longest`` characters at most."""
        if not self.longest or len(observation) <= self.longest:
            return observation
        return observation[: max(0, self.longest - len(self.cut))] + self.cut

    def excerpt(self, reply: str) -> str:
        """What is shown of an earlier reply."""
        if not self.find_reply:
            return reply
        found = find(self.find_reply, reply)
        return reply.strip() if found is None else found


def find(pattern: str, text: str) -> str | None:
    """The first group of a pattern in a text, without blanks around it; None where it is not found."""
    found = re.search(pattern, text) if pattern else None
    return (found[1] or "").strip() if found else None


@dataclass(frozen=True)
class PromptTemplate:
    """All texts of a chat.

    Attributes:
        system: The system message; an empty one is left out.
        instruction_in: Where the instruction stands: at the head of the first ``user`` message, or behind the text of
            the ``system`` message.
        join: Between the paragraphs of a message.
        trim: Whether paragraphs and messages lose the blanks at both their ends.
        first_turn: The first turn that a prompt shows; ``{turn}`` is its number, from 1.
        later_turn: Any other.
        state: What ``{state}`` of these is.
        reward: The turn's reward, at the head of the message that shows the next turn.
        actions_left: ``{actions_left}`` more actions may be taken.
        length: The length that a reply is asked to keep to.
        invalid: Said in the state behind a turn without any valid action (generation 2026 marks these).
        reply_format: What ``{format}`` is.
        instruction: The rules of the game.
        window: Earlier turns within one message.
        windows: The same for types of environments that have a form of their own, such as ``alfworld``; what one of
            these leaves out is not that of ``window``, but ours.
        instructions: A tag's ``env_instruction``, in place of the one that comes with this package.
    """

    system: str = SYSTEM_PROMPT
    instruction_in: str = IN_USER
    join: str = "\n\n"
    trim: bool = True
    first_turn: str = _text("Turn {turn}:\n{state}", "turn", "state", needs="state")
    later_turn: str = _text("Turn {turn}:\n{state}", "turn", "state", needs="state")
    state: str = _text(
        "State:\n{observation}\n"
        "{invalid}{actions_left}Always output: {format} with nothing before, between or after.{length}",
        *_STATE_SLOTS,
        needs="observation",
    )
    reward: str = _text("Reward:\n{reward:.6g}", "reward", needs="reward")
    actions_left: str = _text("You have {actions_left} actions left. ", "actions_left")
    length: str = _text(" Use {max_tokens} words (tokens) at most.", "max_tokens")
    invalid: str = "Your last reply named no action that can be taken, so nothing has changed.\n"
    reply_format: ReplyFormatTemplate = field(default_factory=ReplyFormatTemplate)
    instruction: InstructionTemplate = field(default_factory=InstructionTemplate)
    window: WindowTemplate = field(default_factory=WindowTemplate)
    windows: dict[str, WindowTemplate] = field(default_factory=dict, metadata={"each": WindowTemplate})
    instructions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of prompts.

        Args:
            path: The file.

        Raises:
            ConfigError: It cannot be read, or a field or a slot in it is not known or of the wrong type.
        """
        import yaml

        path = Path(path).expanduser()
        try:
            content = from_yaml(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"the prompts of {path} cannot be read: {' '.join(str(error).split())}.") from error
        if not isinstance(content, Mapping):
            raise ConfigError(f"{path} holds {type(content).__name__}; expected the fields of prompts.")
        version = content.get("version", VERSION)
        if version != VERSION:
            raise ConfigError(f"{path}: version is {version!r}; this release reads {VERSION}.")
        about = ("version", "source")
        return _filled(cls(), {key: value for key, value in content.items() if key not in about}, str(path))

    def dump(self, source: str = "") -> str:
        """The prompts as the text of a file.

        Args:
            source: Where they come from, for readers of the file.
        """
        import yaml

        class Dumper(yaml.SafeDumper):
            """Shows texts of several lines as they are."""

        def shown(dumper: Any, text: str) -> Any:
            return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

        Dumper.add_representer(str, shown)
        content = {"version": VERSION, **({"source": source} if source else {}), **asdict(self)}
        return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)

    def with_system(self, system: str) -> Self:
        """The same with another system message."""
        return replace(self, system=system)

    def joined(self, paragraphs: list[str], join: str | None = None) -> str:
        """Paragraphs as one text, without those that are empty."""
        texts = [text.strip() for text in paragraphs] if self.trim else paragraphs
        return (self.join if join is None else join).join(filter(None, texts))


DEFAULT_PROMPTS = PromptTemplate()
"""Our own prompts."""

# Steps

_STEP_SLOTS = (
    *("task", "step_count", "history_length", "action_history", "current_step"),
    *("current_observation", "available_actions"),
)


@dataclass(frozen=True)
class StepTemplates:
    """The prompts of one type of environment where every step is one message.

    Attributes:
        first: Without a history.
        later: With one.
    """

    first: str = _text("", *_STEP_SLOTS)
    later: str = _text("", *_STEP_SLOTS)

    def replaced(self, given: Mapping[str, str]) -> Self:
        """The same with some or all of its texts replaced.

        Raises:
            ConfigError: There is no such text, or one has a slot that does not exist.
        """
        return _filled(self, given, "templates")


_TASKS = {
    "sokoban": (
        "You play Sokoban.\nGoal: every box on a target.\nRules: you walk up, down, left or right, one cell a "
        "turn. Walking into a box pushes it on if the cell behind it is free. Boxes cannot be pulled, and two at a "
        "time cannot be pushed, so a box in a corner is lost."
    ),
    "frozen_lake": (
        "You cross a frozen lake.\nGoal: reach the goal without falling into a hole.\nRules: you walk "
        "left, down, right or up, one cell a turn, and ice may be slippery: you may end up to the left or right of "
        "where you were going."
    ),
    "webshop": "You shop on a website. What you are to buy: {task}",
    "countdown": (
        "You play Countdown: write an arithmetic expression that has the target as its value and uses each given "
        "number exactly once, with +, -, * and / and parentheses."
    ),
    "metamathqa": "You solve a mathematical problem, and may try again where you were wrong.",
    "bandit": "You choose between two arms that pay differently, and want the highest reward.",
}
_ANSWERED = {  # what is to stand between which tags
    "countdown": ("the expression", "answer"),
    "metamathqa": ("the result", "answer"),
    "bandit": ("the name of one arm", "answer"),
    "webshop": ("one action of the page, with your own words in search[...]", "action"),
}
_THINK = (
    "Think first, step by step: what the situation is, and what each choice would lead to. Then say what to do. Always "
    "output: <think> [your thoughts] </think> "
)
_PAST = (
    "\n\nYou have taken {step_count} steps. The last {history_length} observations, each with what you did then:\n"
    "{action_history}"
)


def step_templates(env_type: str, think: bool = False, symbols: Mapping[str, str] | None = None) -> StepTemplates:
    """Our own prompts of a type.

    Args:
        env_type: Such as ``sokoban``.
        think: Whether to demand a thought between ``<think>`` and ``</think>`` before the action.
        symbols: What the signs of a grid mean; none are explained if left out.
    """
    legend = ", ".join(f"{sign} is {meaning}" for sign, meaning in (symbols or {}).items())
    content, tag = _ANSWERED.get(env_type, ("one action", "action"))
    shop, free = env_type == "webshop", env_type in ("countdown", "metamathqa")
    head = _TASKS.get(env_type, "You play a game, one action a turn.")
    head += escaped(f"\nSymbols in the state: {legend}") if legend else ""
    head += "" if shop or free else "\n\nAvailable actions: {available_actions}."
    state = "\n\nTurn {current_step}:\nState:\n{current_observation}"
    state += "\nWhat can be done on this page:\n{available_actions}" if shop else ""
    demand = "\n" + (_THINK if think else "Always output: ") + f"<{tag}> [{content}] </{tag}>"
    again = "\nThe problem: {task}" if env_type == "metamathqa" else ""  # replies to attempts do not repeat it
    return StepTemplates(head + state + demand, head + again + _PAST + state + demand)


# Slots


def fill(text: str, values: Mapping[str, Any]) -> str:
    """A text with its slots filled.

    Args:
        text: A field of a template, checked when it was read.
        values: What goes into the slots.

    Returns:
        The text; an empty one if a slot of it has None for a value.
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
    """A text's pieces: each what stands before a slot, the slot, and how it is formatted."""
    return tuple((literal, name, form or "") for literal, name, form, _ in Formatter().parse(text))


def escaped(text: str) -> str:
    """A text with its braces written twice, so that none of them is a slot."""
    return text.replace("{", "{{").replace("}", "}}")


def _filled(default: Any, content: Mapping[str, Any], where: str, section: str = "") -> Any:
    """The default with a file's values, each checked."""
    known = {each.name: each for each in fields(default)}
    changed: dict[str, Any] = {}
    for name, value in content.items():
        key = f"{section}{name}"
        if name not in known:
            raise ConfigError(f"{where}: {key!r} is no field of prompts; there are {', '.join(known)}.")
        rules = known[name].metadata
        changed[name] = _checked(getattr(default, name), value, where, key, rules.get("each"))
        if "slots" in rules and value != getattr(default, name):
            _check_slots(value, where, key, **rules)
        if "groups" in rules:
            for pattern in [value] if isinstance(value, str) else value:
                _check_pattern(pattern, where, key, rules["groups"])
    return replace(default, **changed)


def _checked(default: Any, value: Any, where: str, key: str, each: type | None = None) -> Any:
    if is_dataclass(default) or isinstance(default, dict):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {key} is {value!r}; expected a mapping.")
        if is_dataclass(default):
            return _filled(default, value, where, f"{key}.")
        if each is not None:
            return {str(name): _checked(each(), given, where, f"{key}.{name}") for name, given in value.items()}
        wrong = [name for name, text in value.items() if not isinstance(text, str)]
        if wrong:
            raise ConfigError(f"{where}: {key}.{wrong[0]} is {value[wrong[0]]!r}; expected a text.")
        return {str(name): text for name, text in value.items()}
    if type(value) is not type(default):
        expected = {bool: "true or false", int: "a whole number"}.get(type(default), "a text")
        raise ConfigError(f"{where}: {key} is {value!r}; expected {expected}.")
    if isinstance(value, int) and value < 0:
        raise ConfigError(f"{where}: {key} is {value}; expected at least 0.")
    if key == "instruction_in" and value not in PLACES:
        raise ConfigError(f"{where}: instruction_in is {value!r}; expected one of {', '.join(PLACES)}.")
    return value


def _check_slots(text: str, where: str, key: str, slots: Sequence[str], needs: str) -> None:
    try:
        found = [(name, form, turned) for _, name, form, turned in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{where}: {key} cannot be read ({error}); write a brace that is meant twice.") from error
    for name, form, turned in found:
        if name not in slots or turned:
            known = ", ".join(f"{{{each}}}" for each in slots)
            raise ConfigError(f"{where}: {key} has the slot {{{name}}}; it may have {known}.")
        _check_format(name, form or "", where, key)
    if needs and needs not in [name for name, _, _ in found]:
        raise ConfigError(f"{where}: {key} lacks the slot {{{needs}}}, which it needs.")


def _check_pattern(pattern: str, where: str, key: str, groups: int) -> None:
    try:
        found = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(f"{where}: {key} has {pattern!r}, which is no regular expression: {error}.") from error
    if pattern and found < groups:
        raise ConfigError(f"{where}: {key} is {pattern!r}; expected a group, (..), around what is to be found.")


_NUMBERS = (
    *("reward", "actions_left", "max_tokens", "count", "turn", "completed", "shown", "max_actions"),
    *("step_count", "history_length", "current_step"),
)


def _check_format(name: str, form: str, where: str, key: str) -> None:
    try:
        format(1 if name in _NUMBERS else "", form)
    except ValueError as error:
        raise ConfigError(f"{where}: {key} shows {{{name}:{form}}}, which cannot be: {error}.") from error
