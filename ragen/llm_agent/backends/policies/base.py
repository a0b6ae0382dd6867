"""The interface of a policy: it reads a prompt and, like a model, decides from the text alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ragen.llm_agent.backends.prompt import Prompt


class UnreadableError(Exception):
    """A policy cannot read a state, such as an image."""


@dataclass(frozen=True)
class Plan:
    """The decision of a policy.

    Attributes:
        thought: The reasoning, as a model would write it.
        actions: The actions to write, in order.
    """

    thought: str
    actions: tuple[str, ...]


class Policy:
    """Decides what to answer; the base class chooses among the actions, or examples, that the prompt names."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """The best answer that this policy finds.

        Args:
            prompt: The prompt, read.
            rng: Breaks ties; the same for the same prompt.

        Raises:
            UnreadableError: The state has an unknown format.
        """
        return self.guess(prompt, rng)

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """A well-formed random answer.

        Args:
            prompt: The prompt, read.
            rng: The generator.
        """
        actions = prompt.actions or ("go on",)
        count = rng.randint(1, prompt.limit)
        return Plan("I try something.", tuple(rng.choice(actions) for _ in range(count)))
