"""The prompts of a container's environments: chats of one message, in which the last steps are told.

The texts are the project's templates with other words; see :mod:`ragen.llm_agent.prompts.templates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.prompts.conversation import (
    IMAGE_MARK,
    ConversationBuilder,
    TagPrompt,
    instruction,
    prompt_rows,
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
        self,
        env_types: Sequence[str],
        configs: Sequence[Any],
        history_length: int,
        thinks: bool = False,
        templates: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the texts.

        Args:
            env_types: The type of each environment.
            configs: Its configuration, whose symbols are explained; None explains none.
            history_length: Maximum number of past steps in a prompt.
            thinks: Whether to require a thought between ``<think>`` and ``</think>`` before the action.
            templates: Custom texts: fields of :class:`~ragen.llm_agent.prompts.templates.PromptTemplate`.

        Raises:
            ConfigError: A text cannot be filled in.
        """
        words = filled(STEP_PROMPTS, templates or {}, "templates")
        settings = ContextSettings(window=max(0, history_length) + 1, window_mode=SINGLE, template=words)
        prompts = {}
        for place, (env_type, config) in enumerate(zip(env_types, configs, strict=True)):
            rules = instruction(_TASKS.get(env_type, "You play a game, one action a turn."), config, settings)
            form = _THINK * thinks + _ANSWERS.get(env_type, "<action> [one action] </action>")
            prompts[str(place)] = TagPrompt(rules, form)
        self._chats = ConversationBuilder(settings, prompts, {}, ControlTokens([]), "none")
        self._rollouts: list[dict[str, Any]] = [{"tag": tag, "history": []} for tag in prompts]

    def begin(self, observations: Sequence[Any]) -> None:
        """Begin episodes that show these observations."""
        for rollout, seen in zip(self._rollouts, observations, strict=True):
            rollout["history"] = [{"state": _text(seen)}]

    def add(self, row: int, action: str, observation: Any) -> None:
        """Add a step of an environment: the name of its action, and the observation after it."""
        history = self._rollouts[row]["history"]
        told = history[-1]["state"].replace(IMAGE_MARK, "an image")
        history[-1:] = [{"state": told, "llm_response": action}, {"state": _text(observation)}]

    def write(self, row: int, actions: Sequence[Any], is_text: bool) -> str:
        """The prompt of an environment's open turn.

        Args:
            row: The environment.
            actions: The names of what it can do now.
            is_text: Whether its actions are texts; such environments tell the task once, in their first observation.
        """
        rollout, window = self._rollouts[row], self._chats.settings.window or 1
        first, now = rollout["history"][0]["state"], rollout["history"][-1]["state"]
        if is_text and len(rollout["history"]) > window:
            now = f"At first:\n{first}\nNow:\n{now}"
        history = [*rollout["history"][:-1], {"state": now}]
        (message,) = self._chats.messages(prompt_rows([{**rollout, "history": history}], window)[0])
        offer = f"\nAvailable actions: {', '.join(map(str, actions))}" if actions else ""
        return message["content"] + offer


def _text(observation: Any) -> str:
    """An observation as shown in prompts, with a mark in place of an image."""
    return observation if isinstance(observation, str) else IMAGE_MARK
