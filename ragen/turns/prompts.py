"""The prompts of a container's environments: chats of one message, in which the last steps are told.

The texts are the project's templates with other words; see :mod:`ragen.llm_agent.prompts.templates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragen.llm_agent.prompts.conversation import (
    IMAGE_MARK,
    ConversationBuilder,
    TagPrompt,
    instruction,
    row_of,
)
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import SINGLE, ContextSettings
from ragen.llm_agent.prompts.templates import InstructionTemplate, PromptTemplate, WindowTemplate, filled

STEP_PROMPTS = PromptTemplate(
    system="",
    turn="Turn {turn}:\nState:\n{observation}\nAlways output: {format}",
    instruction=InstructionTemplate(actions="", limits=""),
    window=WindowTemplate(
        before="You have taken {completed} steps. The last {shown} observations, each with what you did then:",
        turn="[Observation {turn}: '{observation}', Action {turn}: '{reply}']",
        after="",
    ),
)
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
    "webshop": "You shop on a website, and the instruction says what to buy.",
    "countdown": (
        "You play Countdown: write an arithmetic expression that has the target as its value and uses each given "
        "number exactly once, with +, -, * and / and parentheses."
    ),
    "metamathqa": "You solve a mathematical problem, and may try again where you were wrong.",
    "bandit": "You choose between two arms that pay differently, and want the highest reward.",
}
_ANSWERS = {
    "countdown": "<answer> [the expression] </answer>",
    "metamathqa": "<answer> [the result] </answer>",
    "bandit": "<answer> [the name of one arm] </answer>",
    "webshop": "<action> [one action of the page, with your own words in search[...]] </action>",
}
_THINK = (
    "first <think> [your thoughts, step by step: what the situation is, and what each choice would lead to] </think>, "
    "then "
)


class StepPrompts:
    """Writes the prompts of environments, and keeps what they have shown and what was done since their resets."""

    def __init__(
        self, games: Iterable[tuple[str, Any]], history_length: int, thinks: bool, templates: Mapping[str, Any]
    ) -> None:
        """Read the texts.

        Args:
            games: The type of each environment, and its configuration, whose symbols are explained; None explains none.
            history_length: Maximum number of past steps in a prompt.
            thinks: Whether to require a thought between ``<think>`` and ``</think>`` before the action.
            templates: Custom texts: fields of :class:`~ragen.llm_agent.prompts.templates.PromptTemplate`.

        Raises:
            ConfigError: A text cannot be filled in.
        """
        self._window = history_length + 1
        words = filled(STEP_PROMPTS, templates, "templates")
        settings = ContextSettings(window=self._window, window_mode=SINGLE, template=words)
        prompts = {}
        for row, (env_type, config) in enumerate(games):
            rules = instruction(_TASKS.get(env_type, "You play a game, one action a turn."), config, settings)
            form = _THINK * thinks + _ANSWERS.get(env_type, "<action> [one action] </action>")
            prompts[str(row)] = TagPrompt(rules, form)
        self._chats = ConversationBuilder(settings, prompts, {}, ControlTokens([]), "none")
        self._histories: list[list[dict[str, str]]] = [[] for _ in prompts]

    def add(self, row: int, observation: Any, action: str | None = None) -> None:
        """Add an observation of an environment: the first of an episode, or that after an action with this name."""
        history = self._histories[row]
        if action is None:
            history.clear()
        else:
            history[-1] = {"state": history[-1]["state"].replace(IMAGE_MARK, "an image"), "llm_response": action}
        history.append({"state": observation if isinstance(observation, str) else IMAGE_MARK})

    def write(self, row: int, names: Mapping[Any, str], actions: Sequence[Any]) -> str:
        """The prompt of an environment's open turn.

        Args:
            row: The environment.
            names: The names of keys. Without any, actions are texts; such environments tell the task once, in their
                first observation.
            actions: What it can do now: keys or texts.
        """
        history, turns = self._histories[row], len(self._histories[row])
        *told, now = history
        if not names and turns > self._window:
            now = {"state": f"At first:\n{history[0]['state']}\nNow:\n{now['state']}"}
        rollout = {"tag": str(row), "history": [*told, now]}
        (message,) = self._chats.messages(row_of(row, rollout, turns, self._window, is_prompt=True))
        offer = ", ".join(str(names.get(each, each)) for each in actions)
        return message["content"] + (f"\nAvailable actions: {offer}" if offer else "")
