"""The prompts of environments of a container, in which every step is a chat of one message, and their texts as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.replies import NO_MOVE, ControlTokens
from ragen.llm_agent.prompts.templates import escaped, fill, text_field

STEP_IMAGE_MARK = "<image>"
LONGEST_SHOP_PROMPT = 13_000
"""Step prompts of a shop with more characters than this are written without their history."""
_SLOTS = (
    *("task", "step_count", "history_length", "action_history", "current_step"),
    *("current_observation", "available_actions"),
)


@dataclass(frozen=True)
class StepTemplates:
    """The prompts of one type of environment with one message per step.

    Attributes:
        first: A prompt without a history.
        later: A prompt with one.
    """

    first: str = text_field("", *_SLOTS)
    later: str = text_field("", *_SLOTS)


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
_ANSWERED = {  # the content of which tag
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
    """This package's prompts for a type of environment.

    Args:
        env_type: Such as ``sokoban``.
        think: Whether to require a thought between ``<think>`` and ``</think>`` before the action.
        symbols: The meaning of a grid's symbols; None explains none.
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


@dataclass(frozen=True)
class StepPrompts:
    """Writes the prompts of a type of environment with one message per step.

    Attributes:
        templates: The texts.
        env_type: The type. Arms of a ``bandit`` keep the case of their names. Pages of a ``webshop`` repeat the
            task; a prompt shows it once, and pages without it.
    """

    templates: StepTemplates
    env_type: str = ""

    def write(
        self, task: str, seen: Any, actions: Sequence[Any], names: Mapping[Any, str], past: Sequence[Any], limit: int
    ) -> str:
        """The prompt of an environment; without a history in the first turn, or if the limit is 0.

        Args:
            task: The task, according to the first observation.
            seen: The current observation.
            actions: The available actions.
            names: The name of each action key.
            past: The past steps, each with ``text_obs`` and ``action``.
            limit: Maximum number of past steps to show.
        """
        lines, shop = history_lines(past, limit), self.env_type == "webshop"
        choice = "\n".join(map(str, actions)) if shop else ", ".join(self._name(action, names) for action in actions)
        slots = {
            "task": task,
            "step_count": len(past),
            "history_length": len(lines),
            "action_history": "\n".join(lines),
            "current_step": len(past) + 1,
            "current_observation": self.state(seen),
            "available_actions": choice,
        }
        prompt = fill(self.templates.later if lines else self.templates.first, slots)
        if lines and shop and len(prompt) > LONGEST_SHOP_PROMPT:
            return self.write(task, seen, actions, names, past, 0)
        return prompt

    def task(self, first: Any) -> str:
        """The task, according to the first observation."""
        return _shop_task(str(first)) if self.env_type == "webshop" else self.state(first)

    def state(self, observation: Any) -> str:
        """An observation as shown in prompts and histories, with marks in place of images."""
        if self.env_type == "webshop":
            return _shop_page(str(observation))
        if isinstance(observation, str):
            return observation
        return STEP_IMAGE_MARK * (len(observation) if isinstance(observation, list | tuple) else 1)

    def action(self, action: Any, names: Mapping[Any, str]) -> str:
        """The name of an action."""
        if action is None or (names and action == NO_MOVE and action not in names):
            return "none"
        return self._name(action, names) if names else str(action)

    def _name(self, action: Any, names: Mapping[Any, str]) -> str:
        name = str(names.get(action, action))
        return name if self.env_type == "bandit" else name.lower()


def history_lines(
    steps: Sequence[Mapping[str, Any]], length: int, obs_key: str = "text_obs", action_key: str = "action"
) -> list[str]:
    """The last steps of an environment, one line each, numbered from 1 at the reset."""
    first = max(0, len(steps) - max(0, length))
    return [
        f"[Observation {number}: '{step[obs_key]}', Action {number}: '{step[action_key]}']"
        for number, step in enumerate(steps[first:], first + 1)
    ]


def step_message(text: str, image: Any, control: ControlTokens, as_items: bool) -> Message:
    """A step's prompt as a message.

    Args:
        text: The prompt.
        image: The current observation as an array; None for none.
        control: Control tokens, which are broken up.
        as_items: Whether the content is a list of items, in which the image replaces the last mark, that of the current
            observation; marks in the history stay.
    """
    if not as_items:
        return {"role": "user", "content": control.defuse(text)}
    before, mark, after = text.rpartition(STEP_IMAGE_MARK)
    texts = [text] if not mark or image is None else [before, after]
    items: list[Message] = [{"type": "text", "text": control.defuse(each)} for each in texts]
    if len(items) == 2:
        from PIL import Image

        items.insert(1, {"type": "image", "image": Image.fromarray(image)})
    return {"role": "user", "content": items}


_PAGE_SEPARATOR = " [SEP] "
_INSTRUCTION = "Instruction:"
_HINTS_BEGIN = ".We must buy a product within"  # the text that the shop adds to its first page, see WebShopEnv.render


def _shop_task(page: str) -> str:
    """The instruction on a shop's first page."""
    for piece, following in pairwise(page.split(_PAGE_SEPARATOR)):
        if piece.strip() == _INSTRUCTION:
            return following.strip()
    return page.partition(_HINTS_BEGIN)[0].removeprefix(_INSTRUCTION).strip()


def _shop_page(page: str) -> str:
    """A shop's page without the task; for the first page, ``Search``, its search box."""
    pieces = [piece.strip() for piece in page.split(_PAGE_SEPARATOR)]
    if len(pieces) == 1:
        return "Search" if _HINTS_BEGIN in page else page
    shown, rest = [], iter(pieces)
    for piece in rest:
        if piece == _INSTRUCTION:
            next(rest, None)
        else:
            shown.append(f"'{piece}'")
    return _PAGE_SEPARATOR.join(shown)
