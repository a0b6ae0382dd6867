"""What prompts are made of: for each type a template for the first turn and one for later turns.

Every template may use the slots ``task``, ``step_count``, ``history_length``, ``action_history``, ``current_step``,
``current_observation`` and ``available_actions``, in braces. Braces of the game's own text are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ragen.errors import ConfigError

SLOTS = (
    "task",
    "step_count",
    "history_length",
    "action_history",
    "current_step",
    "current_observation",
    "available_actions",
)


class Templates(NamedTuple):
    """The templates of a type.

    Attributes:
        first: Without a history.
        later: With one.
    """

    first: str
    later: str


TASKS = {
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
_OTHER = "You play a game, one action a turn."

_SHOP_CHOICE = "\nWhat can be done on this page:\n{available_actions}"
_CHOICE = "\n\nAvailable actions: {available_actions}."
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


def templates_of(env_type: str, think: bool = False, symbols: Mapping[str, str] | None = None) -> Templates:
    """The templates of a type.

    Args:
        env_type: Such as ``sokoban``.
        think: Whether to demand a thought between ``<think>`` and ``</think>`` before the action.
        symbols: What the signs of a grid mean; none are explained if left out.
    """
    legend = ", ".join(f"{sign} is {meaning}" for sign, meaning in (symbols or {}).items())
    legend = f"\nSymbols in the state: {legend}".replace("{", "{{").replace("}", "}}") if legend else ""
    content, tag = _ANSWERED.get(env_type, ("one action", "action"))
    shop, free = env_type == "webshop", env_type in ("countdown", "metamathqa")
    head = TASKS.get(env_type, _OTHER) + legend + ("" if shop or free else _CHOICE)
    state = "\n\nTurn {current_step}:\nState:\n{current_observation}" + (_SHOP_CHOICE if shop else "")
    demand = "\n" + (_THINK if think else "Always output: ") + f"<{tag}> [{content}] </{tag}>"
    again = "\nThe problem: {task}" if env_type == "metamathqa" else ""  # replies to attempts do not repeat it
    return Templates(head + state + demand, head + again + _PAST + state + demand)


def checked_templates(given: Mapping[str, str] | Templates, default: Templates) -> Templates:
    """Templates of one's own, in place of some or all of the default ones.

    Raises:
        ConfigError: A template uses a slot that does not exist, or there is no such template.
    """
    chosen = given._asdict() if isinstance(given, Templates) else dict(given)
    for name, template in chosen.items():
        if name not in Templates._fields:
            raise ConfigError(f"templates has no {name!r}; expected {' and '.join(map(repr, Templates._fields))}.")
        try:
            template.format_map(dict.fromkeys(SLOTS, ""))
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"templates[{name!r}] cannot be filled in ({type(error).__name__}: {error}); its slots are "
                f"{', '.join(SLOTS)}, and a brace of its own is written twice."
            ) from error
    return default._replace(**chosen)
