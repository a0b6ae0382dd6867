"""What a policy is: it reads a prompt and decides, as a model would, from the text alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ragen.llm_agent.backends.prompt import Prompt


class UnreadableError(Exception):
    """A policy cannot make sense of a state, such as one that is shown as an image."""


@dataclass(frozen=True)
class Plan:
    """What a policy decided.

    Attributes:
        thought: Why, as a model would put it.
        actions: The actions to write, in order.
    """

    thought: str
    actions: tuple[str, ...]


class Policy:
    """Decides what to answer; the base class chooses among the actions that the prompt names."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """The best answer this policy knows.

        Args:
            prompt: The prompt, read.
            rng: Breaks ties; the same for the same prompt.

        Raises:
            UnreadableError: The state is not of the kind that this policy knows.
        """
        return self.guess(prompt, rng)

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """A well-formed answer without thought.

        Args:
            prompt: The prompt, read.
            rng: What to draw from.
        """
        actions = prompt.actions or ("go on",)
        count = rng.randint(1, prompt.limit)
        return Plan("I try something.", tuple(rng.choice(actions) for _ in range(count)))
