"""Web pages of MiniWoB++; the player knows some of the tasks, and clicks about in others."""

from __future__ import annotations

from random import Random

from ragen.env.miniwob.solver import elements_of, solve
from ragen.llm_agent.backends.policies.base import Plan, Policy
from ragen.llm_agent.backends.prompt import Prompt


class MiniWobPolicy(Policy):
    """Reads the task and the numbered elements."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        action = solve(prompt.state)
        return self.guess(prompt, rng) if action is None else Plan("The task says so.", (action,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        numbers = [element.number for element in elements_of(prompt.state)] or [1]
        return Plan("I try this one.", (f"click[{rng.choice(numbers)}]",))
