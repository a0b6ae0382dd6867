"""The prompts of environments of a container, in which every step is a chat of one message, and their texts as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.replies import NO_MOVE, ControlTokens
from ragen.llm_agent.prompts.templates import escaped, fill, filled, text_field

STEP_IMAGE_MARK = "<image>"
LONGEST_SHOP_PROMPT = 13_000
"""Step prompts of a shop with more characters than this are written without their history."""

# Texts

_STEP_SLOTS = (
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

    first: str = text_field("", *_STEP_SLOTS)
    later: str = text_field("", *_STEP_SLOTS)

    def replaced(self, given: Mapping[str, str]) -> Self:
        """These templates with some texts replaced.

        Raises:
            ConfigError: There is no such text, or one has an unknown slot.
        """
        return filled(self, given, "templates")


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


# Prompts


class Facts(NamedTuple):
    """The facts about an environment of a container that its prompt shows.

    Attributes:
        task: The task, according to the first observation.
        observation: The current observation.
        actions: The available actions.
        names: The name of each action key.
        past: The past steps, each with ``text_obs`` and ``action``.
        limit: Maximum number of past steps to show.
    """

    task: str
    observation: Any
    actions: Sequence[Any]
    names: Mapping[Any, str]
    past: Sequence[Mapping[str, Any]]
    limit: int


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

    def write(self, facts: Facts) -> str:
        """The prompt of an environment; without a history in the first turn, or if the limit is 0."""
        lines = history_lines(facts.past, facts.limit)
        prompt = fill(
            self.templates.later if lines else self.templates.first,
            {
                "task": facts.task,
                "step_count": len(facts.past),
                "history_length": len(lines),
                "action_history": "\n".join(lines),
                "current_step": len(facts.past) + 1,
                "current_observation": self.state(facts.observation),
                "available_actions": self._choice(facts.actions, facts.names),
            },
        )
        if lines and self.env_type == "webshop" and len(prompt) > LONGEST_SHOP_PROMPT:
            return self.write(facts._replace(limit=0))
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

    def _choice(self, actions: Sequence[Any], names: Mapping[Any, str]) -> str:
        """The names of the available actions; for a page, one per line."""
        if self.env_type == "webshop":
            return "\n".join(map(str, actions))
        return ", ".join(self._name(action, names) for action in actions)

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
    if not mark or image is None:
        return {"role": "user", "content": [{"type": "text", "text": control.defuse(text)}]}
    from PIL import Image

    seen: Message = {"type": "image", "image": Image.fromarray(image)}
    around = [{"type": "text", "text": control.defuse(each)} for each in (before, after)]
    return {"role": "user", "content": [around[0], seen, around[1]]}


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
    pieces = page.split(_PAGE_SEPARATOR)
    if len(pieces) == 1:
        return "Search" if _HINTS_BEGIN in page else page
    rest: list[str] = []
    is_task = False
    for piece in pieces:
        if not is_task and piece.strip() != _INSTRUCTION:
            rest.append(f"'{piece.strip()}'")
        is_task = not is_task and piece.strip() == _INSTRUCTION
    return _PAGE_SEPARATOR.join(rest)
