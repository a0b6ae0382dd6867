"""One row's prompt: what its environment shows and what it did, put into templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ragen.container.container import NO_MOVE
from ragen.container.memory import history_lines
from ragen.container.templates import Templates

LONGEST_SHOP_PROMPT = 13_000
"""Characters beyond which a shop's prompt is written without its history."""

IMAGE = "<image>"
_SEP = " [SEP] "
_INSTRUCTION = "Instruction:"
_HINTS_BEGIN = ".We must buy a product within"  # what the shop adds to its first page, see WebShopEnv.render


class Facts(NamedTuple):
    """What is known of a row.

    Attributes:
        task: What it is to do, as its first observation said.
        observation: What the environment shows.
        actions: What can be done now.
        names: The name of each key.
        past: Its steps, each with ``text_obs`` and ``action``.
        limit: Most steps to show.
    """

    task: str
    observation: Any
    actions: Sequence[Any]
    names: Mapping[Any, str]
    past: Sequence[Mapping[str, Any]]
    limit: int


class PromptWriter:
    """Writes the prompts of a type of environment.

    Attributes:
        templates: What they are made of.
    """

    def __init__(self, templates: Templates) -> None:
        """Take the templates."""
        self.templates = templates

    def write(self, facts: Facts) -> str:
        """The prompt of a row; without a history in the first turn, or where none is to be shown."""
        lines = history_lines(facts.past, facts.limit)
        template = self.templates.later if lines else self.templates.first
        return template.format_map(
            {
                "task": facts.task,
                "step_count": len(facts.past),
                "history_length": len(lines),
                "action_history": "\n".join(lines),
                "current_step": len(facts.past) + 1,
                "current_observation": self.state(facts.observation),
                "available_actions": self.choice(facts.actions, facts.names),
            }
        )

    def task(self, first: Any) -> str:
        """What is to be done, as the first observation says."""
        return self.state(first)

    def state(self, observation: Any) -> str:
        """An observation as prompts and histories show it; images stay marks."""
        if isinstance(observation, str):
            return observation
        return IMAGE * (len(observation) if isinstance(observation, list | tuple) else 1)

    def choice(self, actions: Sequence[Any], names: Mapping[Any, str]) -> str:
        """The actions to choose from, in words."""
        return ", ".join(str(names.get(action, action)).lower() for action in actions)

    def action(self, action: Any, names: Mapping[Any, str]) -> str:
        """An action in words."""
        if action is None or (names and action == NO_MOVE and action not in names):
            return "none"
        return str(names.get(action, action)).lower() if names else str(action)


class BanditWriter(PromptWriter):
    """Arms have names, which are shown as they are."""

    def choice(self, actions: Sequence[Any], names: Mapping[Any, str]) -> str:
        """The arms' names."""
        return ", ".join(str(names.get(action, action)) for action in actions)

    def action(self, action: Any, names: Mapping[Any, str]) -> str:
        """The arm's name."""
        return str(names.get(action, "none"))


class WebShopWriter(PromptWriter):
    """Pages name the task over and over; it is shown once, and pages without it."""

    def write(self, facts: Facts) -> str:
        """The prompt, without its history where that would make it too long."""
        prompt = super().write(facts)
        return super().write(facts._replace(limit=0)) if len(prompt) > LONGEST_SHOP_PROMPT else prompt

    def task(self, first: Any) -> str:
        """The instruction that the first page gives."""
        pieces = str(first).split(_SEP)
        for piece, following in pairwise(pieces):
            if piece.strip() == _INSTRUCTION:
                return following.strip()
        return str(first).partition(_HINTS_BEGIN)[0].removeprefix(_INSTRUCTION).strip()

    def state(self, observation: Any) -> str:
        """The page without the task; of the first page, that it has a search box."""
        pieces = str(observation).split(_SEP)
        if len(pieces) == 1:
            return "Search" if _HINTS_BEGIN in str(observation) else str(observation)
        rest: list[str] = []
        is_task = False
        for piece in pieces:
            if not is_task and piece.strip() != _INSTRUCTION:
                rest.append(f"'{piece.strip()}'")
            is_task = not is_task and piece.strip() == _INSTRUCTION
        return _SEP.join(rest)

    def choice(self, actions: Sequence[Any], names: Mapping[Any, str]) -> str:
        """The actions of the page, one a line."""
        return "\n".join(str(action) for action in actions)


_WRITERS: dict[str, type[PromptWriter]] = {"bandit": BanditWriter, "webshop": WebShopWriter}


def prompt_writer(env_type: str, templates: Templates) -> PromptWriter:
    """The writer of a type's prompts."""
    return _WRITERS.get(env_type, PromptWriter)(templates)
